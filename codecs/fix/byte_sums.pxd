# Eight bytes a load: the sum of a message's bytes, and where the next SOH is.

cdef extern from *:
    """
    #include <string.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif

    /* The sum of `size` bytes, modulo 256. */
    static CYTHON_INLINE unsigned int feedhandler_byte_sum(const unsigned char *at, Py_ssize_t size)
    {
        const unsigned char *end = at + size;
        unsigned long long total = 0;
    #if defined(__SSE2__)
        __m128i zero = _mm_setzero_si128(), one = zero, other = zero;
        for (; end - at >= 32; at += 32) {
            one = _mm_add_epi64(one, _mm_sad_epu8(_mm_loadu_si128((const __m128i *)at), zero));
            other = _mm_add_epi64(other,
                _mm_sad_epu8(_mm_loadu_si128((const __m128i *)(at + 16)), zero));
        }
        one = _mm_add_epi64(one, other);
        if (end - at >= 16) {
            one = _mm_add_epi64(one, _mm_sad_epu8(_mm_loadu_si128((const __m128i *)at), zero));
            at += 16;
        }
        total = (unsigned int)_mm_cvtsi128_si32(one)
            + (unsigned int)_mm_cvtsi128_si32(_mm_srli_si128(one, 8));
    #endif
        /* Two bytes in each 16 bits: no carry before 128 times 510. */
        while (end - at >= 8) {
            unsigned long long lanes = 0, word;
            int turns = 0;
            for (; turns < 128 && end - at >= 8; turns++, at += 8) {
                memcpy(&word, at, 8);
                lanes += (word & 0x00FF00FF00FF00FFULL) + ((word >> 8) & 0x00FF00FF00FF00FFULL);
            }
            total += (lanes & 0xFFFF) + ((lanes >> 16) & 0xFFFF)
                + ((lanes >> 32) & 0xFFFF) + (lanes >> 48);
        }
        while (at < end) total += *at++;
        return (unsigned int)(total & 0xFF);
    }

    /* Bytes from `at` to the next SOH. There is one, and seven bytes or more behind it. */
    static CYTHON_INLINE Py_ssize_t feedhandler_to_soh(const unsigned char *at)
    {
        const unsigned char *start = at;
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        for (;; at += 8) {
            unsigned long long word, zeros;
            memcpy(&word, at, 8);
            word ^= 0x0101010101010101ULL;
            zeros = (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL;
            if (zeros) return at - start + (__builtin_ctzll(zeros) >> 3);
        }
    #else
        while (*at != 1) at++;
        return at - start;
    #endif
    }
    """
    unsigned int byte_sum "feedhandler_byte_sum"(
        const unsigned char *first, Py_ssize_t size
    ) noexcept nogil
    Py_ssize_t to_soh "feedhandler_to_soh"(const unsigned char *first) noexcept nogil
