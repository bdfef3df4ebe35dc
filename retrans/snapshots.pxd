# Declarations for other compiled modules; snapshots.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable


cdef class PacketFramer:
    cdef FeedTable _table
    cdef object _order
    cdef bytes _header

    cpdef bytes packet(self, sequence, body, count)
