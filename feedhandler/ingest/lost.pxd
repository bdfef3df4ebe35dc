from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.hold cimport PacketPool

cdef class LostRanges:
    cdef unsigned long long[::1] first
    cdef unsigned long long[::1] end
    cdef unsigned long long[::1] published
    cdef unsigned char[::1] doubtful
    cdef Py_ssize_t count, newest, lines

    cpdef bint touches(
        self, unsigned long long sequence, unsigned long long next_sequence) except -1 nogil
    cdef Py_ssize_t _index_of(self, unsigned long long sequence) except -2 nogil
    cdef Py_ssize_t _before(self, Py_ssize_t at) noexcept nogil
    cpdef unsigned long long published_before(
        self, unsigned long long sequence, int line) except? 6148914691236517205 nogil
    cpdef bint is_doubtful(self, unsigned long long sequence) except -1 nogil
    cpdef unsigned long long first_of(
        self, unsigned long long sequence) except? 6148914691236517205 nogil
    cpdef int note(self, int line, unsigned long long published) except -1 nogil
    cpdef unsigned long long newest_first(self) except? 6148914691236517205 nogil
    cpdef unsigned long long newest_end(self) except? 6148914691236517205 nogil
    cpdef int cut(self, unsigned long long first) except -1 nogil
    cpdef int add(
        self, unsigned long long first, unsigned long long end, bint doubtful) except -1 nogil
    cpdef int clear(self) noexcept nogil

cdef class Runs:
    cdef PacketPool pool
    cdef int lines
    cdef int[::1] slots, count
    cdef readonly int all
    cdef unsigned long long[::1] first, next, others

    cpdef int follow(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns,
        unsigned long long others) except -1 nogil
    cpdef int pass_over(self, int line, PacketHeader header) except -1 nogil
    cpdef int let_go(self, int line) except -1 nogil
    cpdef int forget(self, int line) except -1 nogil
    cpdef int forget_all(self) except -1 nogil

cdef class Islands:
    cdef unsigned long long[::1] first, end
    cdef Py_ssize_t count

    cpdef unsigned long long rise(
        self, LostRanges lost, unsigned long long begin,
        unsigned long long expected) except? 6148914691236517205 nogil
    cdef int _add(self, unsigned long long first, unsigned long long end) except -1 nogil
    cpdef int drop_first(self) except -1 nogil
    cpdef unsigned long long highest(self) except? 6148914691236517205 nogil
