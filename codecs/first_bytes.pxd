# An integer from one load of eight bytes, which the caller has checked to be there.

cdef extern from *:
    """
    #include <string.h>

    /* The unsigned integer of the first `size` (0 to 8) of eight bytes, in either order. */
    static CYTHON_INLINE unsigned long long feedhandler_first_bytes(
        const unsigned char *from, int size, int big_endian)
    {
        unsigned long long value;
        memcpy(&value, from, 8);
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (big_endian) value = __builtin_bswap64(value);
    #else
        if (!big_endian) value = __builtin_bswap64(value);
    #endif
        /* What was read first stands at the top now, or at the bottom; a shift by 64 is none. */
        if (big_endian) return size ? value >> (64 - 8 * size) : 0;
        return size == 8 ? value : value & ((1ULL << 8 * size) - 1);
    }
    """
    unsigned long long first_bytes "feedhandler_first_bytes"(
        const unsigned char *start, int size, bint big_endian
    ) noexcept nogil
