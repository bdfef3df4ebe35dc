/* Preloaded into a process: every call by which it changes files below one folder, in one order.

   Each call is made under one mutex and written down, with its data, before the next one is made; so
   are the notes that the process gives (`journal_note`), for instance of what was acknowledged. One
   of the calls may fail (`journal_calls_begin`). Read by tests/system/journal_calls.py, which knows the
   numbers below as well. Calls that read are not written down; where writes do half for good, so do
   they. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NOTE, CREATE, OPEN, WRITE, THROUGH, SYNC, RENAME, REMOVE, CUT, OTHER };

/* How a call fails: an errno, or one of these. */
enum { SHORT = -1, NO_FLAG = -2 };

/* One entry: this, the path, the data. `offset` is also a file's new size; of what failed `result`
   says how many bytes may have been written all the same. */
struct entry {
    int32_t kind, error, path_bytes, unused;
    int64_t offset, result, data_bytes;
};

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static int trace = -1;
static long calls, fails_at, fails_for_good;
static int fails_how;
static long delay_us;

static void record(enum kind kind, int error, const char *path, int64_t offset, int64_t result,
                   const void *data, size_t size) {
    struct entry entry = {kind, error, (int32_t)strlen(path), 0, offset, result, (int64_t)size};
    struct iovec parts[] = {
        {&entry, sizeof entry}, {(void *)path, strlen(path)}, {(void *)data, size}};
    ssize_t whole = sizeof entry + strlen(path) + size;
    if (syscall(SYS_writev, trace, parts, 3) != whole) abort();
}

/* Call `at` (0: none) fails, and those after it with `for_good`; each sync takes so long. */
void journal_calls_begin(const char *below, int file, long at, int how, int for_good,
                         long sync_us) {
    strncpy(folder, below, sizeof folder - 1);
    fails_at = at, fails_how = how, fails_for_good = for_good;
    delay_us = sync_us;
    calls = 0;
    trace = file;
}

void journal_note(const char *text, size_t size) {
    pthread_mutex_lock(&order);
    record(NOTE, 0, "", 0, 0, text, size);
    pthread_mutex_unlock(&order);
}

/* Whether this path is below the folder, or the folder. */
static int ours(const char *path) {
    size_t size = strlen(folder);
    return trace >= 0 && !strncmp(path, folder, size) && (!path[size] || path[size] == '/');
}

/* The path of an open file of ours. */
static int ours_open(int file, char *path) {
    char link[64];
    if (trace < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return ours(path);
}

/* Count a call; how it fails: 0, an errno, SHORT. */
static int fault(enum kind kind) {
    calls += 1;
    if (kind == THROUGH || kind == SYNC) usleep(delay_us);
    if (!fails_at || calls < fails_at) return 0;
    if (fails_how == NO_FLAG) return kind == THROUGH ? EOPNOTSUPP : 0;
    if (calls > fails_at && !fails_for_good) return 0;
    if (fails_how == SHORT) return kind == WRITE || kind == THROUGH ? SHORT : 0;
    return fails_how;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* A call of ours that is not a write: `call` is made, or fails. */
#define WITNESSED(kind, path, offset, data, size, call)                                           \
    do {                                                                                          \
        pthread_mutex_lock(&order);                                                               \
        int error = fault(kind), result = -1;                                                     \
        if (!error && (result = (call)) < 0) error = errno;                                       \
        record(kind, error, path, offset, result, data, size);                                    \
        pthread_mutex_unlock(&order);                                                             \
        if (error) errno = error;                                                                 \
        return result;                                                                            \
    } while (0)

static ssize_t witnessed_write(int file, const struct iovec *parts, int count, int64_t offset,
                               int flags) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return REAL(pwritev64v2)(file, parts, count, offset, flags);
    if (count != 1 || (flags & ~RWF_DSYNC)) abort();
    pthread_mutex_lock(&order);
    enum kind kind = flags ? THROUGH : WRITE;
    int error = fault(kind);
    struct iovec part = *parts;
    ssize_t done = 0;
    if (error == SHORT) {
        part.iov_len -= part.iov_len / 2;
        error = 0;
    }
    /* Of what is to be on the disk at once it may be the sync that fails. */
    if (!error || (kind == THROUGH && error != EOPNOTSUPP && error != EINTR && calls % 2)) {
        done = REAL(pwritev64v2)(file, &part, 1, offset, error ? 0 : flags);
        if (done < 0) error = errno, done = 0;
    }
    record(kind, error, path, offset, done, part.iov_base, done);
    pthread_mutex_unlock(&order);
    if (!error) return done;
    errno = error;
    return -1;
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t offset, int flags) {
    return witnessed_write(file, parts, count, offset, flags);
}
ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    return witnessed_write(file, parts, count, offset, flags);
}
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
    return witnessed_write(file, parts, count, offset, 0);
}
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    return witnessed_write(file, parts, count, offset, 0);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    struct iovec part = {(void *)data, size};
    return witnessed_write(file, &part, 1, offset, 0);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    return pwrite64(file, data, size, offset);
}

/* Whether a read of this file does half. */
static int reads_half(int file) {
    char path[PATH_MAX];
    return fails_at && fails_how == SHORT && fails_for_good && calls >= fails_at &&
           ours_open(file, path);
}
ssize_t pread64(int file, void *data, size_t size, off64_t offset) {
    return REAL(pread64)(file, data, reads_half(file) ? size - size / 2 : size, offset);
}
ssize_t preadv64(int file, const struct iovec *parts, int count, off64_t offset) {
    if (!reads_half(file)) return REAL(preadv64)(file, parts, count, offset);
    /* Half of the parts, or of the only one. */
    struct iovec part = *parts;
    part.iov_len -= part.iov_len / 2;
    return count > 1 ? REAL(preadv64)(file, parts, count / 2, offset)
                     : REAL(preadv64)(file, &part, count, offset);
}

int fdatasync(int file) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return REAL(fdatasync)(file);
    WITNESSED(SYNC, path, 0, "", 0, REAL(fdatasync)(file));
}
int fsync(int file) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return REAL(fsync)(file);
    WITNESSED(SYNC, path, 0, "", 0, REAL(fsync)(file));
}
int rename(const char *old, const char *new) {
    if (!ours(old)) return REAL(rename)(old, new);
    WITNESSED(RENAME, old, 0, new, strlen(new), REAL(rename)(old, new));
}
int unlink(const char *path) {
    if (!ours(path)) return REAL(unlink)(path);
    WITNESSED(REMOVE, path, 0, "", 0, REAL(unlink)(path));
}
int ftruncate64(int file, off64_t size) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return REAL(ftruncate64)(file, size);
    WITNESSED(CUT, path, size, "", 0, REAL(ftruncate64)(file, size));
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

static int witnessed_open(const char *path, int flags, mode_t mode) {
    if (!ours(path)) return REAL(open64)(path, flags, mode);
    enum kind kind = (flags & (O_CREAT | O_TRUNC)) == (O_CREAT | O_TRUNC) ? CREATE : OPEN;
    WITNESSED(kind, path, 0, "", 0, REAL(open64)(path, flags, mode));
}

#define MODE(flags)                                                                               \
    mode_t mode = 0;                                                                              \
    if ((flags) & O_CREAT) {                                                                     \
        va_list rest;                                                                             \
        va_start(rest, flags);                                                                    \
        mode = va_arg(rest, mode_t);                                                              \
        va_end(rest);                                                                             \
    }

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return witnessed_open(path, flags, mode);
}
int open(const char *path, int flags, ...) {
    MODE(flags)
    return witnessed_open(path, flags, mode);
}

/* What a queue does not call: if it ever does, a test is to know. */
#define UNHEARD(path, call) WITNESSED(OTHER, path, 0, __func__, strlen(__func__), call)

ssize_t write(int file, const void *data, size_t size) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return syscall(SYS_write, file, data, size);
    UNHEARD(path, (int)syscall(SYS_write, file, data, size));
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    if (!ours(path)) return REAL(openat64)(at, path, flags, mode);
    UNHEARD(path, REAL(openat64)(at, path, flags, mode));
}
int renameat(int at, const char *old, int to, const char *new) {
    if (!ours(old)) return REAL(renameat)(at, old, to, new);
    UNHEARD(old, REAL(renameat)(at, old, to, new));
}
int unlinkat(int at, const char *path, int flags) {
    if (!ours(path)) return REAL(unlinkat)(at, path, flags);
    UNHEARD(path, REAL(unlinkat)(at, path, flags));
}
int truncate64(const char *path, off64_t size) {
    if (!ours(path)) return REAL(truncate64)(path, size);
    UNHEARD(path, REAL(truncate64)(path, size));
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    char path[PATH_MAX];
    if (!ours_open(file, path)) return REAL(posix_fallocate64)(file, at, size);
    UNHEARD(path, REAL(posix_fallocate64)(file, at, size));
}
