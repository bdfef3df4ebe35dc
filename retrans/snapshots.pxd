# What other compiled modules may use of snapshots. The meaning of each name stands in snapshots.py.

from feedhandler.codecs.scanner cimport FeedTable


cdef class PacketFramer:
    cdef FeedTable _table
    cdef object _order
    cdef bytes _header

    cpdef bytes packet(self, sequence, body, count)
