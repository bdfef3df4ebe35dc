# Declarations for other compiled modules; message_symbols.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable, PacketHeader


cdef class SymbolWalk:
    cdef public int slot, left
    cdef public Py_ssize_t at, text_at, text_size


cpdef int begin_symbols(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end,
    unsigned short message_type, PacketHeader header, SymbolWalk walk
) except -1 nogil
cpdef unsigned long long next_symbol(
    FeedTable table, const unsigned char[::1] data, PacketHeader header, SymbolWalk walk
) except? 6148914691236517205 nogil
