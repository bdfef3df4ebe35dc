# Having memory fetched before it is needed, as inline C. A hint: the processor may leave it, and an
# address that is no memory does no harm. The interpreted twins do without.

cdef extern from * nogil:
    """
    #include <stddef.h>
    static inline void feed_prefetch(const void *where, size_t bytes) {
        const char *line = (const char *) where;
        size_t at;
        for (at = 0; at < bytes; at += 64) __builtin_prefetch(line + at);
    }
    """
    void prefetch "feed_prefetch"(const void *where, size_t size) noexcept
