# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""One datagram to many addresses by io_uring, the kernel's other way beside `sendmmsg`.

`RingPort` is a `Port` that sends so: an entry a target in the submission ring, then one system call
that submits them all and waits until all are done. Nothing is copied: every entry points at the
same bytes, which is why it waits. What the kernel refuses is counted as `Port.send` counts it.

io_uring has no state here but the rings: no thread polls them, no buffers are registered. Kernels
and containers may refuse it; `refusal` says so. For comparison with `sendmmsg`; members that ship do
not use it. Compiled only, by the kernel's own header and system calls, without a library.
"""

import os

from libc.errno cimport EAGAIN, EBUSY, EINTR, errno
from libc.string cimport memset

from feedhandler.overlay.port cimport _Targets, Port

cdef extern from * nogil:
    """
    #include <linux/io_uring.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static inline int uring_setup(unsigned entries, struct io_uring_params *params) {
        return (int)syscall(__NR_io_uring_setup, entries, params);
    }
    static inline int uring_enter(int fd, unsigned submitted, unsigned completed) {
        return (int)syscall(
            __NR_io_uring_enter, fd, submitted, completed, IORING_ENTER_GETEVENTS, NULL, 0);
    }
    static inline void *uring_map(int fd, size_t size, unsigned long long what) {
        void *at = mmap(
            NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)what);
        return at == MAP_FAILED ? NULL : at;
    }
    static inline unsigned uring_load(unsigned *where) {
        return __atomic_load_n(where, __ATOMIC_ACQUIRE);
    }
    static inline void uring_store(unsigned *where, unsigned value) {
        __atomic_store_n(where, value, __ATOMIC_RELEASE);
    }
    """
    struct io_sqring_offsets:
        unsigned int tail
        unsigned int ring_mask
        unsigned int array
    struct io_cqring_offsets:
        unsigned int head
        unsigned int tail
        unsigned int ring_mask
        unsigned int cqes
    struct io_uring_params:
        unsigned int sq_entries
        unsigned int cq_entries
        io_sqring_offsets sq_off
        io_cqring_offsets cq_off
    struct io_uring_sqe:
        unsigned char opcode
        int fd
        unsigned long long addr
        unsigned int len
    struct io_uring_cqe:
        int res
    int IORING_OP_SENDMSG
    unsigned long long IORING_OFF_SQ_RING
    unsigned long long IORING_OFF_CQ_RING
    unsigned long long IORING_OFF_SQES
    int uring_setup(unsigned int entries, io_uring_params *params)
    int uring_enter(int fd, unsigned int submitted, unsigned int completed)
    void *uring_map(int fd, size_t size, unsigned long long what)
    unsigned int uring_load(unsigned int *where)
    void uring_store(unsigned int *where, unsigned int value)
    int munmap(void *at, size_t size)
    int close_fd "close"(int fd)

cdef enum:
    # Of one system call, as sendmmsg's (UIO_MAXIOV).
    _ENTRIES = 1024

#: Sendings in one system call.
ENTRIES = _ENTRIES


cdef class RingPort(Port):
    """See the module. `close` gives back the rings; the socket stays the caller's. Raises `OSError`
    where the kernel refuses io_uring."""

    cdef int _ring
    # Mapped from the kernel: the submission ring, its entries, the completion ring.
    cdef unsigned char *_submission
    cdef unsigned char *_completion
    cdef io_uring_sqe *_entries
    cdef io_uring_params _params

    def __cinit__(self, *_):
        self._ring = -1

    def __init__(self, sock):
        super().__init__(sock)
        self._open()

    def __dealloc__(self):
        self._close()

    def close(self):
        """Give back the rings; nothing is sent any more."""
        self._close()

    cdef int _open(self) except -1:
        """Make the rings and map them."""
        cdef unsigned int index
        cdef unsigned int *array
        memset(&self._params, 0, sizeof(self._params))
        self._ring = uring_setup(_ENTRIES, &self._params)
        if self._ring < 0:
            raise OSError(errno, os.strerror(errno))
        self._submission = <unsigned char *>uring_map(
            self._ring, self._submission_bytes(), IORING_OFF_SQ_RING)
        self._completion = <unsigned char *>uring_map(
            self._ring, self._completion_bytes(), IORING_OFF_CQ_RING)
        self._entries = <io_uring_sqe *>uring_map(self._ring, self._entries_bytes(), IORING_OFF_SQES)
        if self._submission == NULL or self._completion == NULL or self._entries == NULL:
            reason = errno
            self._close()
            raise OSError(reason, os.strerror(reason))
        # Slots of the ring and of the entries are the same.
        array = <unsigned int *>(self._submission + self._params.sq_off.array)
        for index in range(self._params.sq_entries):
            array[index] = index
        return 0

    cdef size_t _submission_bytes(self) noexcept nogil:
        return self._params.sq_off.array + self._params.sq_entries * sizeof(unsigned int)

    cdef size_t _completion_bytes(self) noexcept nogil:
        return self._params.cq_off.cqes + self._params.cq_entries * sizeof(io_uring_cqe)

    cdef size_t _entries_bytes(self) noexcept nogil:
        return self._params.sq_entries * sizeof(io_uring_sqe)

    cdef void _close(self) noexcept:
        if self._entries != NULL:
            munmap(self._entries, self._entries_bytes())
        if self._completion != NULL:
            munmap(self._completion, self._completion_bytes())
        if self._submission != NULL:
            munmap(self._submission, self._submission_bytes())
        self._entries, self._completion, self._submission = NULL, NULL, NULL
        if self._ring >= 0:
            close_fd(self._ring)
        self._ring = -1

    def send(self, bytes datagram not None, tuple addresses not None):
        """Send one datagram to each address, as `Port.send` does. Raises `ValueError` when closed,
        `OSError` where the kernel does not take the rings any more."""
        cdef _Targets targets = self._aimed(datagram, addresses)
        cdef int index = 0, count, reason
        if self._ring < 0:
            raise ValueError("the port is closed")
        while index < targets.count:
            count = min(targets.count - index, <int>_ENTRIES)
            with nogil:
                self._put(targets, index, count)
                reason = self._complete(count)
            if reason:
                raise OSError(reason, os.strerror(reason))
            index += count

    cdef void _put(self, _Targets targets, int first, int count) noexcept nogil:
        """Put entries for `count` targets from `first` on into the submission ring, which is empty."""
        cdef unsigned int *end = <unsigned int *>(self._submission + self._params.sq_off.tail)
        cdef unsigned int mask = (<unsigned int *>(
            self._submission + self._params.sq_off.ring_mask))[0]
        cdef unsigned int tail = end[0]
        cdef io_uring_sqe *entry
        cdef int index
        for index in range(first, first + count):
            entry = &self._entries[tail & mask]
            memset(entry, 0, sizeof(io_uring_sqe))
            entry.opcode = <unsigned char>IORING_OP_SENDMSG
            entry.fd = self._fd
            entry.addr = <unsigned long long>&targets.messages[index].msg_hdr
            entry.len = 1
            tail += 1
        uring_store(end, tail)

    cdef int _complete(self, int count) noexcept nogil:
        """Submit `count` entries and wait until all are done; 0, or why the kernel did not take
        them."""
        cdef int to_submit = count, left = count, got, reason
        while left:
            got = uring_enter(self._ring, to_submit, left)
            reason = errno
            if got >= 0:
                to_submit -= got
            elif reason != EINTR and reason != EAGAIN and reason != EBUSY:
                return reason
            left -= self._reap()
        return 0

    cdef int _reap(self) noexcept nogil:
        """Count what is done; how many were."""
        cdef unsigned int *begin = <unsigned int *>(self._completion + self._params.cq_off.head)
        cdef unsigned int *end = <unsigned int *>(self._completion + self._params.cq_off.tail)
        cdef unsigned int mask = (<unsigned int *>(
            self._completion + self._params.cq_off.ring_mask))[0]
        cdef io_uring_cqe *done = <io_uring_cqe *>(self._completion + self._params.cq_off.cqes)
        cdef unsigned int head = begin[0], tail = uring_load(end)
        cdef int found = <int>(tail - head), result
        while head != tail:
            result = done[head & mask].res
            if result >= 0:
                self.sent += 1
            else:
                with gil:
                    self._refused(-result)
            head += 1
        uring_store(begin, head)
        return found


def refusal():
    """Why this kernel or container has no io_uring for us; "" where it has."""
    cdef io_uring_params params
    cdef int ring
    memset(&params, 0, sizeof(params))
    ring = uring_setup(_ENTRIES, &params)
    if ring < 0:
        return os.strerror(errno)
    close_fd(ring)
    return ""
