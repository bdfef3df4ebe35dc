# Declarations for other compiled modules; refresh_packets.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class RefreshReader:
    cdef FeedTable _table
    cdef object _most
    cdef readonly PacketHeader header
    cdef readonly MessageIndex index
    cdef public str fault

    cpdef bytes read(self, bytes data)
    cdef bytes _inflate(self, bytes data)
