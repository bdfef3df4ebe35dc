cdef extern from *:
    """
    /* The index of the highest set bit; 0 for 1, not defined for 0. */
    static CYTHON_INLINE int feedhandler_highest_bit(unsigned long long value)
    {
        return 63 - __builtin_clzll(value);
    }
    """
    int highest_bit "feedhandler_highest_bit"(unsigned long long value) noexcept nogil

cpdef Py_ssize_t bucket_of(long long value, int bits, Py_ssize_t last) noexcept nogil
cpdef Py_ssize_t fine_bucket_of(long long value) noexcept nogil

cdef class Histogram:
    cdef unsigned long long[::1] buckets
    cdef readonly unsigned long long count
    cdef readonly long long total
    cdef readonly long long minimum
    cdef readonly long long maximum
    cpdef int record(self, long long value) noexcept
