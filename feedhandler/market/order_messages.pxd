# Declarations for other compiled modules; order_messages.py describes each name.

from feedhandler.codecs.scanner cimport MessageIndex
from feedhandler.market.depth_book cimport DepthBook
from feedhandler.market.normaliser cimport Normaliser
from feedhandler.market.records cimport Records


cdef class OrderMessages:
    cdef readonly Records records
    cdef Normaliser normaliser
    cdef DepthBook book
    cdef dict sizes
    cdef Py_ssize_t stride
    cdef unsigned short[::1] row_sizes
    cdef unsigned char[::1] octets

    cpdef int apply_packet(
        self, const unsigned char[::1] data, Py_ssize_t start, MessageIndex index,
        Py_ssize_t skip, unsigned int service
    ) except -1
    cpdef int apply_message(
        self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
        unsigned short code, unsigned long long sequence, unsigned int service
    ) except -1
    cdef int note(
        self, Py_ssize_t first, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size
    ) except -1
    cdef bint is_applied(self, Py_ssize_t row, Py_ssize_t word) except -1
    cdef int grow(self, Py_ssize_t row) except -1
