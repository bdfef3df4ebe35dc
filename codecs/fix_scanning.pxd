# Declarations for other compiled modules; scanning.py describes each name.

from feedhandler.codecs.fix_runs cimport Run
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef int parse_run(
    FeedTable table, const unsigned char *first, Py_ssize_t room, Py_ssize_t size,
    PacketHeader out, bint alone
) except -1 nogil
cdef int parse_begin(
    FeedTable table, const unsigned char *first, Py_ssize_t room, Py_ssize_t size, PacketHeader out
) except -1 nogil
cdef int parse_rest(
    FeedTable table, const unsigned char *first, Py_ssize_t size, PacketHeader out
) except -1 nogil
cpdef int parse_first(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader out
) except -1 nogil
cpdef int parse_further(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader out
) except -1 nogil
cdef int _take_run(PacketHeader out) noexcept nogil
cdef int check_run(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, PacketHeader header
) except -1 nogil
cdef int fill_run(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t base,
    PacketHeader header, MessageIndex out
) except -1 nogil
cdef int scan_runs(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader header, MessageIndex out
) except -1 nogil
cdef unsigned long long _symbol_of(
    FeedTable table, const unsigned char *first, Run run) noexcept nogil
cdef Py_ssize_t message_size_at(
    const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end
) except -1 nogil
cpdef int begin_symbols_of(
    const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, PacketHeader header
) except -1 nogil
cpdef unsigned long long next_symbol_of(
    FeedTable table, const unsigned char[::1] data, PacketHeader header
) except? 6148914691236517205 nogil
