# The few atomic operations and unaligned loads that the hand-over needs, as inline C.
#
# Acquire and release order the record bytes around the two positions of the ring; the full fence
# separates publishing from checking whether the consumer sleeps. The interpreted twins run in one
# thread and use plain assignments instead.

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    static inline unsigned long long feed_load_acquire(unsigned long long *where) {
        return __atomic_load_n(where, __ATOMIC_ACQUIRE);
    }
    static inline void feed_store_release(unsigned long long *where, unsigned long long value) {
        __atomic_store_n(where, value, __ATOMIC_RELEASE);
    }
    static inline unsigned long long feed_exchange(unsigned long long *where,
                                                   unsigned long long value) {
        return __atomic_exchange_n(where, value, __ATOMIC_SEQ_CST);
    }
    static inline void feed_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline unsigned long long feed_load_word(const unsigned char *where) {
        unsigned long long word;
        memcpy(&word, where, 8);
        return word;
    }
    """
    unsigned long long load_acquire "feed_load_acquire"(unsigned long long *where) noexcept
    void store_release "feed_store_release"(
        unsigned long long *where, unsigned long long value) noexcept
    unsigned long long exchange "feed_exchange"(
        unsigned long long *where, unsigned long long value) noexcept
    void fence "feed_fence"() noexcept
    unsigned long long load_word "feed_load_word"(const unsigned char *where) noexcept
