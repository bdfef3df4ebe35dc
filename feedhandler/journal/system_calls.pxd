# The system calls of the writing thread and of reading by parts, and the two atomic operations that
# the thread needs, as inline C.
#
# Here so that they can be made without the interpreter. The interpreted twin makes Python's.

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/uio.h>
    #include <unistd.h>

    /* What was written to the file is on the disk afterwards. 0, or an errno. One that a signal has
       interrupted has not failed: it is gone on with, as Python does it. */
    static inline int journal_sync(int file) {
        while (fdatasync(file) < 0) {
            if (errno != EINTR) return errno ? errno : EIO;
        }
        return 0;
    }
    /* All of `size` bytes to `at`; with `through` they are on the disk afterwards. 0, or an errno.
       `*flagged` is cleared where the file system cannot write through by a flag of the call. */
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
    /* All of `total` bytes from `at` into these parts, in as many reads as it takes; `parts` are used
       up. 0, an errno, or -1: the file ends before. */
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
    static inline void journal_tell(int event) {
        uint64_t one = 1;
        while (write(event, &one, 8) < 0 && errno == EINTR) {}
    }
    static inline void journal_wait(int event) {
        uint64_t told;
        while (read(event, &told, 8) < 0 && errno == EINTR) {}
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
    void journal_tell(int event) noexcept
    void journal_wait(int event) noexcept
    long long journal_load(long long *where) noexcept
    void journal_store(long long *where, long long value) noexcept
