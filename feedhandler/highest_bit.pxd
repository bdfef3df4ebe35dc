# The index of the highest set bit, as inline C; 0 for 1, not defined for 0.

cdef extern from *:
    """
    static CYTHON_INLINE int feedhandler_highest_bit(unsigned long long value)
    {
        return 63 - __builtin_clzll(value);
    }
    """
    int highest_bit "feedhandler_highest_bit"(unsigned long long value) noexcept nogil
