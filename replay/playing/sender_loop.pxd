# What the senders share of `sender_loop.pyx`: its class, and the system's clock and waits.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FH_SENDER_LOOP
    #define FH_SENDER_LOOP
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    static inline int64_t fh_monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static inline int fh_sleep_until(int64_t when_ns) {
        struct timespec when;
        when.tv_sec = when_ns / 1000000000LL;
        when.tv_nsec = when_ns % 1000000000LL;
        return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
    }
    /* Sleep while `*word` is `value`, for `ns` at most. */
    static inline void fh_wait_while(int *word, int value, int64_t ns) {
        struct timespec time = {.tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL};
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0);
    }
    static inline void fh_wake(int *word) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    #if defined(__x86_64__) || defined(__i386__)
    #define fh_relax() __builtin_ia32_pause()
    #else
    #define fh_relax() ((void)0)
    #endif
    #define fh_load(variable) __atomic_load_n(&(variable), __ATOMIC_ACQUIRE)
    #define fh_store(variable, value) __atomic_store_n(&(variable), value, __ATOMIC_RELEASE)
    #endif
    """
    int64_t fh_monotonic_ns() nogil
    int fh_sleep_until(int64_t when_ns) nogil
    void fh_wait_while(int *word, int value, int64_t ns) nogil
    void fh_wake(int *word) nogil
    void fh_relax() nogil
    int fh_load(int variable) nogil
    void fh_store(int variable, int value) nogil
    int64_t fh_load_ns "fh_load"(int64_t variable) nogil
    void fh_store_ns "fh_store"(int64_t variable, int64_t value) nogil

cdef enum:
    RUN_ON = 0
    HALTED = 1


cdef class SendLoop:
    cdef readonly object progress
    cdef int64_t[::1] _counts
    cdef int64_t _spin_ns             # learnt, at most _spin_ns_max
    cdef int64_t _spin_ns_max
    cdef int _halt
    cdef int _pausing                 # the word that a pause sleeps on
    cdef int _holding                 # whether the loop sleeps there
    cdef int64_t _pause_began_ns
    cdef int64_t _pauses_ns           # of the pauses that are over
    cdef bint _in_main_thread
    cdef int64_t _signals_seen_ns
    cdef int64_t _no_buffers_since_ns
    cdef int _failed_errno

    cdef unsigned long _begin(self)
    cdef int _end(self, unsigned long slack) except -1
    cdef int64_t _now(self) noexcept nogil
    cdef void _note_lateness(self, int64_t behind) noexcept nogil
    cdef int _wait_until(self, int64_t when_ns) except -1 nogil
    cdef void _sleep_until(self, int64_t when_ns) noexcept nogil
    cdef int _interrupted(self, int64_t now) except -1 nogil
    cdef int _hold(self) except -1 nogil
    cdef int _wait_for_room(self, int fd, int reason) except -1 nogil
