# The index of the highest set bit of a number, which the caller has checked not to be 0.

cdef extern from *:
    """
    /* 0 for 1, 63 at most. */
    static CYTHON_INLINE int feedhandler_highest_bit(unsigned long long value)
    {
        return 63 - __builtin_clzll(value);
    }
    """
    int highest_bit "feedhandler_highest_bit"(unsigned long long value) noexcept nogil
