cdef class Histogram:
    cdef unsigned long long[::1] buckets
    cdef readonly unsigned long long count
    cdef readonly long long total
    cdef readonly long long minimum
    cdef readonly long long maximum
    cpdef int record(self, long long value) noexcept
