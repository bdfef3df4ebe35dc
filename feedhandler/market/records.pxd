# Declarations for other compiled modules; records.py describes each name.

from feedhandler.codecs.scanner cimport MessageIndex
from feedhandler.market.depth_book cimport DepthBook
from feedhandler.market.normaliser cimport Normaliser


cdef class LevelRecords:
    cdef readonly int depth
    cdef readonly Py_ssize_t count, stride
    cdef public bint active
    cdef readonly object buffer
    cdef DepthBook book
    cdef object dtype
    cdef unsigned long long head
    cdef unsigned long long[::1] words, sent
    cdef unsigned char[::1] octets
    cdef Py_ssize_t room, rows
    cdef dict offsets, pending
    cdef bint is_pending
    cdef unsigned int pending_instrument
    cdef Py_ssize_t pending_at
    cdef int pending_depth

    cdef int report(
        self, const unsigned long long[::1] events, Py_ssize_t at, unsigned int instrument, int depth
    ) except -1
    cdef int note(self, Py_ssize_t at, unsigned int instrument, int depth) except -1
    cdef int finish(self, const unsigned long long[::1] events, unsigned int instrument) except -1
    cdef int keep_if_new(
        self, const unsigned long long[::1] events, Py_ssize_t at, unsigned int instrument, int depth
    ) except -1
    cdef Py_ssize_t offset_of(self, unsigned int instrument) except -1
    cdef int grow(self) except -1


cdef class Records:
    cdef readonly Normaliser normaliser
    cdef readonly DepthBook book
    cdef readonly dict outputs
    cdef list levels
    cdef readonly bint keeps_events, makes_definitions
    cdef list statuses, definitions
    cdef object defined, name_of
    cdef long long channel

    cpdef int apply_message(
        self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
        unsigned short message_type, unsigned long long send_ns, unsigned long long received_ns,
        unsigned long long sequence, unsigned int channel
    ) except -1
    cpdef int apply_packet(
        self, const unsigned char[::1] data, Py_ssize_t start, MessageIndex index,
        Py_ssize_t skip, unsigned long long send_ns, unsigned long long received_ns,
        unsigned int channel
    ) except -1
    cpdef int clear(self) except -1
    cdef int apply_words(
        self, const unsigned long long[::1] events, Py_ssize_t first, Py_ssize_t count
    ) except -1
    cdef unsigned int channel_of(self, unsigned long long tail) noexcept
    cdef int clear_all(
        self, const unsigned long long[::1] events, Py_ssize_t at
    ) except -1
