cdef class TokenBucket:
    cdef readonly long long rate_bytes_s, burst_bytes
    cdef long long _level, _at_ns
    cdef bint _started

    cpdef long long ready_ns(self, long long size, long long now_ns) noexcept nogil
    cpdef bint admits(self, long long before, long long size, long long now_ns) noexcept nogil
    cpdef int take(self, long long size, long long now_ns) noexcept nogil
    cdef int _fill(self, long long now_ns) noexcept nogil
