# Declarations for other compiled modules; stream_reader.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader
from feedhandler.market.latest_messages cimport LatestMessages
from feedhandler.market.normaliser cimport Normaliser
from feedhandler.market.order_messages cimport OrderMessages
from feedhandler.market.records cimport Records


cdef class StreamReader:
    cdef readonly OrderMessages orders
    cdef readonly LatestMessages latest
    cdef readonly Records records
    cdef readonly object feed, known
    cdef readonly bint clears_on_reset
    cdef readonly dict trades, states
    cdef readonly Py_ssize_t kept_max, refused
    cdef FeedTable table
    cdef Normaliser normaliser
    cdef PacketHeader header
    cdef MessageIndex index
    cdef unsigned char[::1] teaches

    cpdef Py_ssize_t read(self, bytes data, long long service, Py_ssize_t skip) except? -999
    cpdef bint read_message(self, bytes data, unsigned int service) except -1
    cdef int learn(self, bytes data, Py_ssize_t begin) except -1
    cpdef int empty(self, unsigned int service) except -1
    cpdef int note(self, unsigned int service) except -1
