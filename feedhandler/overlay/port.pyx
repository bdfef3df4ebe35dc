# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""What a member asks of Linux: many datagrams in one call, and an exact sleep.

`Port` is a member's UDP socket. `receive` takes what waits by one `recvmmsg`, each with the kernel's
stamp of when it came, so that delays are the network's and not the loop's; `send` gives one
datagram to many addresses by `sendmmsg`, without copying it: each message of the call points at the
same bytes. `wait` sleeps until something comes or a time is over, to the microsecond. `hand_over`
gives many payloads to a socket of this machine by one call.

Compiled only, for the system calls. What is sent, and to whom, is the caller's business.
"""

import os
import socket as _socket

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from feedhandler.ingest.system_calls cimport (
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_NXTHDR, MSG_DONTWAIT, MSG_TRUNC, POLLIN, SOL_SOCKET,
    SO_RXQ_OVFL, SO_TIMESTAMPNS, cmsghdr, fill_address, iovec, mmsghdr, msghdr, ntohl, ntohs, pollfd, ppoll,
    recvmmsg, sendmmsg, sockaddr_in,
)

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, unsigned long value, unsigned long, unsigned long, unsigned long)
    int PR_SET_TIMERSLACK

#: Datagrams in one system call.
BATCH = _BATCH
#: Longest datagram that is received whole; longer ones are dropped, and counted.
DATAGRAM_BYTES = _DATAGRAM_BYTES


cdef class _Targets:
    """Addresses as the kernel wants them, with a message for each."""

    def __cinit__(self, tuple addresses):
        cdef int slot
        self.count = len(addresses)
        self.addresses = <sockaddr_in *>PyMem_Calloc(max(self.count, 1), sizeof(sockaddr_in))
        self.messages = <mmsghdr *>PyMem_Calloc(max(self.count, 1), sizeof(mmsghdr))
        if self.addresses == NULL or self.messages == NULL:
            raise MemoryError
        for slot, (host, port) in enumerate(addresses):
            number = int.from_bytes(_socket.inet_aton(host), "big")
            fill_address(&self.addresses[slot], number, port)
            self.messages[slot].msg_hdr.msg_name = &self.addresses[slot]
            self.messages[slot].msg_hdr.msg_namelen = sizeof(sockaddr_in)
            self.messages[slot].msg_hdr.msg_iov = &self.vector
            self.messages[slot].msg_hdr.msg_iovlen = 1

    def __dealloc__(self):
        PyMem_Free(self.addresses)
        PyMem_Free(self.messages)


cdef class Port:
    """See the module. The socket stays the caller's. `errors` counts datagrams that the kernel did
    not take, by errno; `oversize` those that were too long to receive; `kernel_drops` those for which
    the receive buffer had no room, known with the next one that came."""

    #: Sets of addresses kept ready, and senders whose names are: beyond, all are made anew.
    KEPT_MAX = 4096

    def __dealloc__(self):
        PyMem_Free(self._messages)
        PyMem_Free(self._vectors)
        PyMem_Free(self._senders)
        PyMem_Free(self._room)
        PyMem_Free(self._control)

    def __init__(self, sock):
        self._prepare(sock, _BATCH)

    cdef int _prepare(self, sock, int slots) except -1:
        """Take a socket, with so many slots for datagrams that come in."""
        cdef int slot
        self.errors, self._targets, self._names = {}, {}, {}
        self._keep, self._fd = sock, sock.fileno()
        self._messages = <mmsghdr *>PyMem_Calloc(slots, sizeof(mmsghdr))
        self._vectors = <iovec *>PyMem_Calloc(slots, sizeof(iovec))
        self._senders = <sockaddr_in *>PyMem_Calloc(slots, sizeof(sockaddr_in))
        self._room = <unsigned char *>PyMem_Calloc(slots, _DATAGRAM_BYTES)
        self._control = <unsigned char *>PyMem_Calloc(slots, _CONTROL_BYTES)
        if (
            self._messages == NULL or self._vectors == NULL or self._senders == NULL
            or self._room == NULL or self._control == NULL
        ):
            raise MemoryError
        sock.setsockopt(SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setsockopt(SOL_SOCKET, SO_RXQ_OVFL, 1)
        for slot in range(slots):
            self._vectors[slot].iov_base = &self._room[slot * _DATAGRAM_BYTES]
            self._vectors[slot].iov_len = _DATAGRAM_BYTES
            self._messages[slot].msg_hdr.msg_iov = &self._vectors[slot]
            self._messages[slot].msg_hdr.msg_iovlen = 1
            self._messages[slot].msg_hdr.msg_name = &self._senders[slot]
            self._messages[slot].msg_hdr.msg_control = &self._control[slot * _CONTROL_BYTES]
            self._empty(slot)
        # Timers of this thread are not put off to be served together with others.
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        return 0

    cdef void _empty(self, int slot) noexcept nogil:
        """Free a slot to be received into: reset the sizes that the kernel may fill."""
        self._messages[slot].msg_hdr.msg_namelen = sizeof(sockaddr_in)
        self._messages[slot].msg_hdr.msg_controllen = _CONTROL_BYTES

    cdef void _refused(self, int reason) noexcept:
        """Count what the kernel did not do."""
        self.errors[reason] = self.errors.get(reason, 0) + 1

    def receive(self):
        """What waits, at most `BATCH`: (datagram, (host, port), ns since 1970) of each."""
        cdef int slot, got, reason
        # It does not wait; without the GIL a thread that is busy would have it for a switch interval.
        got = recvmmsg(self._fd, self._messages, _BATCH, MSG_DONTWAIT, NULL)
        reason = errno
        if got < 0:
            # What an address that is closed answered to an earlier sending is no fault of this one.
            if reason != EAGAIN and reason != EINTR:
                self._refused(reason)
            return []
        found = []
        for slot in range(got):
            if self._messages[slot].msg_hdr.msg_flags & MSG_TRUNC:
                self.oversize += 1
            else:
                found.append(self._datagram(slot))
            self._empty(slot)
        self.received += len(found)
        return found

    cdef object _datagram(self, int slot):
        """Return what a slot has received: the datagram, its sender and its time."""
        return (
            (<char *>self._vectors[slot].iov_base)[:self._messages[slot].msg_len],
            self._name(slot),
            self._stamp(&self._messages[slot].msg_hdr),
        )

    cdef long long _stamp(self, msghdr *message) noexcept nogil:
        """When the kernel had a datagram; now, where it does not say. Its count of drops is looked
        at in passing."""
        cdef timespec at
        cdef unsigned int drops
        cdef bint stamped = False
        cdef cmsghdr *control = CMSG_FIRSTHDR(message)
        while control != NULL:
            if control.cmsg_level == SOL_SOCKET:
                if control.cmsg_type == SO_TIMESTAMPNS:
                    memcpy(&at, CMSG_DATA(control), sizeof(at))
                    stamped = True
                elif control.cmsg_type == SO_RXQ_OVFL:
                    memcpy(&drops, CMSG_DATA(control), sizeof(drops))
                    self.kernel_drops += <unsigned int>(drops - self._drops)
                    self._drops = drops
            control = CMSG_NXTHDR(message, control)
        if not stamped:
            clock_gettime(CLOCK_REALTIME, &at)
        return at.tv_sec * 1_000_000_000LL + at.tv_nsec

    cdef object _name(self, int slot):
        cdef unsigned long long key = ntohl(self._senders[slot].sin_addr.s_addr)
        key = key << 16 | ntohs(self._senders[slot].sin_port)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= self.KEPT_MAX:
                self._names.clear()
            host = _socket.inet_ntoa((<unsigned int>(key >> 16)).to_bytes(4, "big"))
            name = self._names[key] = (host, <int>(key & 0xFFFF))
        return name

    def send(self, bytes datagram not None, tuple addresses not None):
        """Send one datagram to each address. What the kernel refuses is lost, as by the network."""
        cdef _Targets targets = self._aimed(datagram, addresses)
        cdef int slot = 0, got, reason
        while slot < targets.count:
            with nogil:
                got = sendmmsg(self._fd, &targets.messages[slot], targets.count - slot, 0)
                reason = errno
            if got > 0:
                self.sent += got
                slot += got
            elif reason != EINTR:
                self._refused(reason)
                slot += 1

    cdef _Targets _aimed(self, bytes datagram, tuple addresses):
        """Messages for the kernel: this datagram to each address. They point at its bytes."""
        # A proxy names the same tuple each time; to hash one takes as long as two sendings.
        if addresses is not self._last_addresses:
            self._last, self._last_addresses = self._kept(addresses), addresses
        self._last.vector.iov_base = <char *>datagram
        self._last.vector.iov_len = len(datagram)
        return self._last

    cdef _Targets _kept(self, tuple addresses):
        targets = self._targets.get(addresses)
        if targets is None:
            if len(self._targets) >= self.KEPT_MAX:
                self._targets.clear()
            targets = self._targets[addresses] = _Targets(addresses)
        return targets

    def wait(self, long long timeout_ns):
        """Sleep until a datagram is there (True), the time is over or a signal has come (False).
        Below 0: without an end."""
        cdef pollfd poll
        cdef timespec timeout
        cdef int got
        poll.fd, poll.events, poll.revents = self._fd, <short>POLLIN, 0
        timeout.tv_sec = max(timeout_ns, 0) // 1_000_000_000
        timeout.tv_nsec = max(timeout_ns, 0) % 1_000_000_000
        with nogil:
            got = ppoll(&poll, 1, NULL if timeout_ns < 0 else &timeout, NULL)
        if got < 0:
            PyErr_CheckSignals()
        return got > 0


def hand_over(sock, list payloads not None, Py_ssize_t first):
    """Send `payloads` from number `first` on, each as a datagram, by a connected socket, without
    waiting; how many were taken, which may be none. Raises `OSError` for any other reason."""
    cdef mmsghdr messages[_BATCH]
    cdef iovec vectors[_BATCH]
    cdef int fd = sock.fileno()
    cdef int slot, got
    cdef Py_ssize_t begin = first, size = len(payloads)
    memset(messages, 0, sizeof(messages))
    for slot in range(_BATCH):
        messages[slot].msg_hdr.msg_iov = &vectors[slot]
        messages[slot].msg_hdr.msg_iovlen = 1
    while first < size:
        for slot in range(min(_BATCH, size - first)):
            payload = <bytes?>payloads[first + slot]
            vectors[slot].iov_base = <char *>payload
            vectors[slot].iov_len = len(payload)
        # With the GIL, as in `receive`.
        got = sendmmsg(fd, messages, <unsigned int>min(_BATCH, size - first), MSG_DONTWAIT)
        if got < 0:
            if errno == EAGAIN or errno == EINTR:
                break
            raise OSError(errno, os.strerror(errno))
        first += got
    return first - begin
