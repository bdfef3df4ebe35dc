# Declarations for other compiled modules; order_messages.py describes each name.

from feedhandler.codecs.scanner cimport MessageIndex
from feedhandler.market.depth_book cimport DepthBook
from feedhandler.market.normaliser cimport Normaliser
from feedhandler.market.records cimport Records


cdef class OrderMessages:
    cdef readonly Records records
    cdef readonly dict kept
    cdef Normaliser normaliser
    cdef DepthBook book
    cdef dict sizes

    cpdef int apply_packet(
        self, bytes data, Py_ssize_t start, MessageIndex index, Py_ssize_t skip,
        unsigned int service
    ) except -1
    cpdef int apply_message(
        self, bytes data, Py_ssize_t at, Py_ssize_t size, unsigned short code,
        unsigned long long sequence, unsigned int service
    ) except -1
    cdef int note(self, Py_ssize_t first, bytes message) except -1
    cdef int keep(
        self, unsigned int instrument, unsigned long long order, int action, bytes message
    ) except -1
    cpdef int drop_empty(self, unsigned int instrument) except -1
