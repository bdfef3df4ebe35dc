# What other compiled modules may use of the reader. The meaning of each name stands in
# refresh_packets.py.

from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class RefreshReader:
    cdef FeedTable _table
    cdef object _most
    cdef readonly PacketHeader header
    cdef readonly MessageIndex index
    cdef public str fault

    cpdef bytes read(self, bytes data)
    cdef bytes _inflate(self, bytes data)
