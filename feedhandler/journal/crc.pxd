# CRC32C by the processor's own instruction, as inline C.
#
# A call of the package `crc32c` costs more than computing the CRC of a short item. Three lanes of
# JOURNAL_LANE bytes are processed at a time, because each instruction waits for the preceding one
# of its lane; a table then shifts a lane's CRC over the lanes behind it. `crc_ready` is 0 where the
# processor has no such instruction: then the package is used.

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #define JOURNAL_LANE 336
    static uint32_t journal_crc_over[4][256];  /* a sum, moved over JOURNAL_LANE zero bytes */
    static inline uint64_t journal_crc_word(const unsigned char *at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }
    static inline uint32_t journal_crc_move(uint32_t sum) {
        return journal_crc_over[0][sum & 255] ^ journal_crc_over[1][sum >> 8 & 255]
            ^ journal_crc_over[2][sum >> 16 & 255] ^ journal_crc_over[3][sum >> 24];
    }
    __attribute__((target("sse4.2"))) static int journal_crc_ready(void) {
        if (!__builtin_cpu_supports("sse4.2")) return 0;
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t value = 0; value < 256; value++) {
                uint64_t sum = value << 8 * byte;
                for (int n = 0; n < JOURNAL_LANE; n += 8) sum = __builtin_ia32_crc32di(sum, 0);
                journal_crc_over[byte][value] = (uint32_t)sum;
            }
        return 1;
    }
    __attribute__((target("sse4.2")))
    static uint32_t journal_crc(const unsigned char *at, size_t size, uint32_t seed) {
        uint64_t sum = ~seed;
        while (size >= 3 * JOURNAL_LANE) {
            uint64_t second = 0, third = 0;
            for (int n = 0; n < JOURNAL_LANE; n += 8) {
                sum = __builtin_ia32_crc32di(sum, journal_crc_word(at + n));
                second = __builtin_ia32_crc32di(second, journal_crc_word(at + JOURNAL_LANE + n));
                third = __builtin_ia32_crc32di(third, journal_crc_word(at + 2 * JOURNAL_LANE + n));
            }
            sum = journal_crc_move((uint32_t)sum) ^ second;
            sum = journal_crc_move((uint32_t)sum) ^ third;
            at += 3 * JOURNAL_LANE;
            size -= 3 * JOURNAL_LANE;
        }
        for (; size >= 8; size -= 8, at += 8)
            sum = __builtin_ia32_crc32di(sum, journal_crc_word(at));
        for (; size; size--, at++) sum = __builtin_ia32_crc32qi((uint32_t)sum, *at);
        return ~(uint32_t)sum;
    }
    #else
    static int journal_crc_ready(void) { return 0; }
    static uint32_t journal_crc(const unsigned char *at, size_t size, uint32_t seed) { return 0; }
    #endif
    """
    bint crc_ready "journal_crc_ready"() noexcept
    unsigned int crc_of "journal_crc"(
        const unsigned char *at, size_t size, unsigned int seed) noexcept
