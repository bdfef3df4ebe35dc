from feedhandler.overlay.blake2b cimport uint64_t

cdef enum:
    _SOURCES_MAX = 16
    # Counters of faults, then of verdicts.
    _COUNTERS = 32


cdef class Judge:
    # The answer for a first copy.
    cdef readonly int first
    cdef uint64_t _key[8]
    cdef uint64_t _sources[_SOURCES_MAX]
    cdef int _sources_count
    cdef unsigned int _tree
    cdef object _copies
    cdef uint64_t[::1] _ids
    cdef uint64_t _mask
    cdef uint64_t _epoch
    cdef unsigned long long _counts[_COUNTERS]

    cdef int judge(
        self, const unsigned char *datagram, size_t length, uint64_t source
    ) noexcept nogil
    cdef int _decide(
        self, const unsigned char *datagram, size_t length, uint64_t source
    ) noexcept nogil
    cdef int _form(self, const unsigned char *datagram, size_t length) noexcept nogil
    cdef bint _knows(self, uint64_t source) noexcept nogil
