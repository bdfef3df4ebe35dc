# Declarations for other compiled modules; fix_normaliser.py describes each name.

from feedhandler.market.normaliser cimport Ladder, Normaliser


cdef class FixNormaliser(Normaliser):
    cdef int symbol_tag

    cpdef int message(
        self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
        unsigned short message_type, unsigned long long send_ns, unsigned long long received_ns,
        unsigned long long sequence, unsigned int channel
    ) except -1
    cdef int take(self, dict root, list entries, bint full) except -1
    cdef int stamp(self, dict root, dict said) except -1
    cdef int empty_book(self) except -1
    cdef unsigned int security_of(self, dict said) except? 4294967295
    cdef int define(self, list found, bint is_list) except -1
    cdef int note_status(self, dict root) except -1
    cdef int entry(self, dict root, dict said, bytes action) except -1
    cdef int trade(self, dict said, bytes action) except -1
    cdef int by_id(self, dict said, bytes action, unsigned char side) except -1
    cdef int by_position(self, dict said, bytes action, unsigned char side) except -1
    cdef long long price_in(self, dict said) except? -1
    cdef unsigned int size_in(self, dict said) except? 4294967295
