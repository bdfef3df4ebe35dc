# System calls of the writer thread and of scattered reads, and the two atomic operations that the
# thread needs, as inline C, so that they need no interpreter lock. The interpreted twin uses
# Python's.

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/uio.h>
    #include <unistd.h>

    /* Makes what was written to the file durable. Returns 0 or an errno. A call that a signal has
       interrupted is repeated, as Python does. */
    static inline int journal_sync(int file) {
        while (fdatasync(file) < 0) {
            if (errno != EINTR) return errno ? errno : EIO;
        }
        return 0;
    }
    /* Writes all of `size` bytes at `at`; with `through` they are durable afterwards. Returns 0 or
       an errno. Clears `*flagged` where the file system does not support the write-through flag. */
    static inline int journal_write(int file, char *data, size_t size, long long at, int through,
                             int *flagged) {
        while (size) {
            struct iovec part = {data, size};
            ssize_t done = -1;
            errno = EOPNOTSUPP;
    #ifdef RWF_DSYNC
            if (through && *flagged) {
                done = pwritev2(file, &part, 1, at, RWF_DSYNC);
                if (done < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) {
                    *flagged = 0;
                    continue;
                }
            } else
    #else
            *flagged = 0;
    #endif
            {
                done = pwritev(file, &part, 1, at);
                if (done >= 0 && through) {
                    int failed = journal_sync(file);
                    if (failed) return failed;
                }
            }
            if (done < 0) {
                if (errno == EINTR) continue;
                return errno ? errno : EIO;
            }
            data += done; size -= done; at += done;
        }
        return 0;
    }
    /* Reads all of `total` bytes from `at` into these parts, in as many reads as it takes; modifies
       `parts`. Returns 0, an errno, or -1 where the file ends before. */
    static inline int journal_read(int file, struct iovec *parts, int count, size_t total,
                                   long long at) {
        while (total) {
            ssize_t done = preadv(file, parts, count, at);
            if (done == 0) return -1;
            if (done < 0) {
                if (errno == EINTR) continue;
                return errno ? errno : EIO;
            }
            total -= done; at += done;
            for (; count && (size_t)done >= parts->iov_len; count--) done -= parts++->iov_len;
            if (count) {
                parts->iov_base = (char *)parts->iov_base + done;
                parts->iov_len -= done;
            }
        }
        return 0;
    }
    static inline void journal_notify(int event) {
        uint64_t one = 1;
        while (write(event, &one, 8) < 0 && errno == EINTR) {}
    }
    static inline void journal_wait(int event) {
        uint64_t count;
        while (read(event, &count, 8) < 0 && errno == EINTR) {}
    }
    static inline long long journal_load(long long *where) {
        return __atomic_load_n(where, __ATOMIC_ACQUIRE);
    }
    static inline void journal_store(long long *where, long long value) {
        __atomic_store_n(where, value, __ATOMIC_RELEASE);
    }
    """
    int journal_write(int file, char *data, size_t size, long long at, int through,
                      int *flagged) noexcept
    struct iovec:
        void *iov_base
        size_t iov_len
    int journal_sync(int file) noexcept
    int journal_read(int file, iovec *parts, int count, size_t total, long long at) noexcept
    void journal_notify(int event) noexcept
    void journal_wait(int event) noexcept
    long long journal_load(long long *where) noexcept
    void journal_store(long long *where, long long value) noexcept
