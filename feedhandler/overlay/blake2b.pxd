# Keyed BLAKE2b (RFC 7693) with a digest of 16 bytes, as inline C, for seals that are checked without
# the GIL. A key is digested once (`seal_key`): its block is the first of every message, which saves a
# third of the work for a message of 200 bytes. `hashlib.blake2b`, which makes the same seals elsewhere,
# takes two microseconds a seal for its objects alone.

cdef extern from * nogil:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>

    static const uint64_t seal_start[8] = {
        0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
        0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL};
    static const unsigned char seal_order[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
        {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
        {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
        {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
        {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

    #define SEAL_TURN(word, by) ((word) >> (by) | (word) << (64 - (by)))
    #define SEAL_MIX(a, b, c, d, x, y) do { \\
        a += b + (x); d = SEAL_TURN(d ^ a, 32); c += d; b = SEAL_TURN(b ^ c, 24); \\
        a += b + (y); d = SEAL_TURN(d ^ a, 16); c += d; b = SEAL_TURN(b ^ c, 63); } while (0)
    #define SEAL_PART(n, i, a, b, c, d) \\
        SEAL_MIX(a, b, c, d, m[seal_order[n][2 * (i)]], m[seal_order[n][2 * (i) + 1]])
    #define SEAL_ROUND(n) do { \\
        SEAL_PART(n, 0, v0, v4, v8, v12); SEAL_PART(n, 1, v1, v5, v9, v13); \\
        SEAL_PART(n, 2, v2, v6, v10, v14); SEAL_PART(n, 3, v3, v7, v11, v15); \\
        SEAL_PART(n, 4, v0, v5, v10, v15); SEAL_PART(n, 5, v1, v6, v11, v12); \\
        SEAL_PART(n, 6, v2, v7, v8, v13); SEAL_PART(n, 7, v3, v4, v9, v14); } while (0)

    /* One block of 128 bytes; `count` bytes of the message up to its end; `last`: all ones, or 0. */
    static void seal_block(uint64_t *h, const unsigned char *block, uint64_t count, uint64_t last) {
        uint64_t m[16];
        uint64_t v0 = h[0], v1 = h[1], v2 = h[2], v3 = h[3], v4 = h[4], v5 = h[5], v6 = h[6], v7 = h[7];
        uint64_t v8 = seal_start[0], v9 = seal_start[1], v10 = seal_start[2], v11 = seal_start[3];
        uint64_t v12 = seal_start[4] ^ count, v13 = seal_start[5], v14 = seal_start[6] ^ last;
        uint64_t v15 = seal_start[7];
        memcpy(m, block, sizeof m);
        for (int i = 0; i < 16; i++) m[i] = le64toh(m[i]);
        SEAL_ROUND(0); SEAL_ROUND(1); SEAL_ROUND(2); SEAL_ROUND(3); SEAL_ROUND(4); SEAL_ROUND(5);
        SEAL_ROUND(6); SEAL_ROUND(7); SEAL_ROUND(8); SEAL_ROUND(9); SEAL_ROUND(0); SEAL_ROUND(1);
        h[0] ^= v0 ^ v8; h[1] ^= v1 ^ v9; h[2] ^= v2 ^ v10; h[3] ^= v3 ^ v11;
        h[4] ^= v4 ^ v12; h[5] ^= v5 ^ v13; h[6] ^= v6 ^ v14; h[7] ^= v7 ^ v15;
    }

    /* The state after a key's block; at most 64 bytes of key, and a message follows. */
    static void seal_key(uint64_t *state, const unsigned char *key, size_t size) {
        unsigned char block[128] = {0};
        memcpy(state, seal_start, sizeof seal_start);
        state[0] ^= 0x01010000ULL ^ (uint64_t)size << 8 ^ 16;
        memcpy(block, key, size);
        seal_block(state, block, sizeof block, 0);
    }

    /* The seal of a header of 40 bytes and a payload: 16 bytes into `out`. */
    static void seal_parts(const uint64_t *state, const unsigned char *head,
                           const unsigned char *payload, size_t size, unsigned char *out) {
        unsigned char block[128] = {0};
        uint64_t h[8], count = 128;
        size_t taken = size < 88 ? size : 88;
        memcpy(h, state, sizeof h);
        memcpy(block, head, 40);
        memcpy(block + 40, payload, taken);
        if (size > taken) {
            seal_block(h, block, count += 128, 0);
            payload += taken;
            size -= taken;
            for (; size > 128; payload += 128, size -= 128) seal_block(h, payload, count += 128, 0);
            memset(block, 0, sizeof block);
            memcpy(block, payload, size);
            count += size;
        } else {
            count += 40 + taken;
        }
        seal_block(h, block, count, ~0ULL);
        h[0] = htole64(h[0]);
        h[1] = htole64(h[1]);
        memcpy(out, h, 16);
    }

    /* Whether two seals are the same, in constant time. */
    static int seal_same(const unsigned char *one, const unsigned char *other) {
        uint64_t a[2], b[2];
        memcpy(a, one, 16);
        memcpy(b, other, 16);
        return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0;
    }

    static inline uint64_t seal_word(const unsigned char *at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return le64toh(word);
    }
    static inline unsigned int seal_half(const unsigned char *at) { return at[0] | at[1] << 8; }
    """
    ctypedef unsigned long long uint64_t
    void seal_key(uint64_t *state, const unsigned char *key, size_t size) noexcept
    void seal_parts(
        const uint64_t *state, const unsigned char *head, const unsigned char *payload,
        size_t size, unsigned char *out) noexcept
    bint seal_same(const unsigned char *one, const unsigned char *other) noexcept
    # Little-endian numbers of 8 and 2 bytes.
    uint64_t word_at "seal_word"(const unsigned char *at) noexcept
    unsigned int half_at "seal_half"(const unsigned char *at) noexcept
