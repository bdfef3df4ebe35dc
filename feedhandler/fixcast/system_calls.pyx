# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""System calls of a publisher: many datagrams in one call, and an exact timer.

`LineSender` sends datagrams that lie in a slab to each line of a channel by `sendmmsg`, without the
GIL. `Alarm` is a timerfd: event loops round their timers up to milliseconds, which is a whole clock
period of a publisher.

Compiled only, for the system calls. The caller decides which datagrams leave, and when.
"""

import os
import socket as _socket

from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC

from feedhandler.ingest.system_calls cimport (
    MSG_DONTWAIT, TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, fill_address, iovec, itimerspec,
    mmsghdr, sendmmsg, sockaddr_in, timerfd_create, timerfd_settime,
)

#: Datagrams in one system call. More gain nothing, and make the lines drift apart.
BATCH = 64
#: Upper limit on a channel's lines: A, B, and room.
LINES_MAX = 4

cdef enum:
    _BATCH = 64
    _LINES = 4


cdef class LineSender:
    """Sender on the lines of a channel: (open UDP socket, (group, port)) of each, in order.

    `errors` counts datagrams that the kernel did not take, by errno. A line whose interface takes
    nothing is waited for once, for the send time-out of its socket (SO_SNDTIMEO), and until it
    takes something again not at all: it must not hold up the others.

    The caller keeps and closes the sockets; connecting them would save nothing, because Linux looks
    up a group's route each time. Raises `ValueError` for no lines or more than `LINES_MAX`.
    """

    cdef readonly dict errors
    cdef readonly unsigned long long sent
    cdef object _keep
    cdef int _count
    cdef int _fds[_LINES]
    cdef bint _stalled[_LINES]
    cdef sockaddr_in _addresses[_LINES]
    cdef mmsghdr _messages[_BATCH]
    cdef iovec _vectors[_BATCH]

    def __init__(self, lines):
        cdef int number
        self.errors = {}
        self._keep = [sock for sock, _ in lines]
        if not 0 < len(self._keep) <= LINES_MAX:
            raise ValueError(f"a channel has 1 to {LINES_MAX} lines")
        memset(self._messages, 0, sizeof(self._messages))
        memset(self._addresses, 0, sizeof(self._addresses))
        memset(self._stalled, 0, sizeof(self._stalled))
        for number, (sock, (group, port)) in enumerate(lines):
            self._fds[number] = sock.fileno()
            host = int.from_bytes(_socket.inet_aton(group), "big")
            fill_address(&self._addresses[number], host, port)
        self._count = len(self._keep)

    def send(
        self, const unsigned char[::1] slab not None, const long long[::1] offsets not None,
        const long long[::1] sizes not None, Py_ssize_t first, Py_ssize_t count,
    ):
        """Send `count` datagrams to each line.

        They are `slab[offsets[i]:offsets[i] + sizes[i]]`, with i from `first` on, wrapping around.
        Raises `IndexError` where one lies outside.
        """
        cdef Py_ssize_t done = 0
        cdef int taken, line
        if first < 0 or first >= offsets.shape[0] or sizes.shape[0] != offsets.shape[0]:
            raise IndexError("a datagram outside its table")
        while done < count:
            taken = <int>min(count - done, _BATCH)
            self._fill(slab, offsets, sizes, first + done, taken)
            for line in range(self._count):
                self._send(line, taken)
            done += taken

    cdef int _fill(
        self, const unsigned char[::1] slab, const long long[::1] offsets,
        const long long[::1] sizes, Py_ssize_t first, int count,
    ) except -1:
        """Point the messages at the datagrams."""
        cdef int index
        cdef Py_ssize_t entry
        for index in range(count):
            entry = (first + index) % offsets.shape[0]
            if (
                offsets[entry] < 0 or sizes[entry] < 1
                or offsets[entry] + sizes[entry] > slab.shape[0]
            ):
                raise IndexError("a datagram outside its slab")
            self._vectors[index].iov_base = <void *>&slab[offsets[entry]]
            self._vectors[index].iov_len = <size_t>sizes[entry]
            self._messages[index].msg_hdr.msg_iov = &self._vectors[index]
            self._messages[index].msg_hdr.msg_iovlen = 1
        return 0

    cdef int _send(self, int line, int count) except -1:
        """Send the datagrams of the messages to one line.

        A datagram that the kernel refuses is lost there, as in the network: the other line, or
        retransmission, has it.
        """
        cdef int index, got, reason, flags = MSG_DONTWAIT if self._stalled[line] else 0
        for index in range(count):
            self._messages[index].msg_hdr.msg_name = &self._addresses[line]
            self._messages[index].msg_hdr.msg_namelen = sizeof(sockaddr_in)
        index = 0
        while index < count:
            with nogil:
                got = sendmmsg(self._fds[line], &self._messages[index], count - index, flags)
                reason = errno
            if got > 0:
                self._stalled[line] = False
                self.sent += got
                index += got
            elif reason == EAGAIN:
                self._stalled[line] = True
                self.errors[reason] = self.errors.get(reason, 0) + count - index
                break
            elif reason != EINTR:
                self.errors[reason] = self.errors.get(reason, 0) + 1
                index += 1
        return 0


cdef class Alarm:
    """A timer on CLOCK_MONOTONIC whose `fileno()` is readable from the set time on.

    It stays readable until it is set again.
    """

    cdef int _fd

    def __cinit__(self):
        self._fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(errno, f"timerfd: {os.strerror(errno)}")

    def fileno(self):
        """Return the timerfd."""
        return self._fd

    def set(self, long long at_ns):
        """Set the time of expiry, monotonic ns; a past one expires at once. Raises `OSError`."""
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        at_ns = max(at_ns, 1)  # 0 would switch it off
        when.it_value.tv_sec = at_ns // 1_000_000_000
        when.it_value.tv_nsec = at_ns % 1_000_000_000
        if timerfd_settime(self._fd, TFD_TIMER_ABSTIME, &when, NULL) < 0:
            raise OSError(errno, f"timerfd: {os.strerror(errno)}")

    def close(self):
        """Close the timerfd; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __dealloc__(self):
        if self._fd >= 0:
            os.close(self._fd)
