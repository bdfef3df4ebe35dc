# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""A proxy's path from datagrams in to datagrams out, compiled and without the GIL.

Datagrams are received into a ring of `RING` slots, and stay in their slots until they have been
sent: nothing is copied. `Judge` decides about each in turn. First copies make a chunk: for every
message and target there is a prepared message of `sendmmsg` whose address never changes and whose
bytes are those of the message's slot, so that a message costs one write however many targets
there are, and one system call sends many messages.

Receiving does not wait for sending: between two chunks, of some hundred sends, the socket is
emptied into the ring. Where the kernel cannot take more, sending waits and receiving goes on, until
the ring is full; then the kernel's buffer fills, and the kernel drops what it has no room for.

A datagram for Python (`judging.RARE`) has its turn in the order of arrival, with everything before
it sent: `serve` returns, and `rare` has the datagram. Compiled only, for the system calls.
"""

import struct

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EAGAIN, EINTR, errno
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from feedhandler.ingest.system_calls cimport (
    MSG_DONTWAIT, MSG_TRUNC, MSG_WAITFORONE, POLLIN, POLLOUT, SOL_SOCKET, SO_RCVTIMEO, fill_address,
    iovec, mmsghdr, ntohl, ntohs, pollfd, ppoll, recvmmsg, sendmmsg, sockaddr_in,
)
from feedhandler.overlay.blake2b cimport uint64_t
from feedhandler.overlay.judging cimport Judge
from feedhandler.overlay.port cimport _BATCH, Port

from feedhandler.overlay.judging import address_number

cdef enum:
    _RING = 1024
    # Upper limit of one sendmmsg (UIO_MAXIOV), and of a chunk, unless one message has more.
    _SENDS_MAX = 1024
    # Receiving system calls between two chunks.
    _FILLS = 4
    # Time-out of a receiving call on an idle socket; where something is due sooner it is polled.
    _IDLE_NS = 20_000_000

#: Slots of the ring.
RING = _RING


cdef class Forwarder(Port):
    """A proxy's port that forwards by itself; see the module. Call `direct` first."""

    cdef Judge _judge
    # Positions in the ring: the oldest unsent datagram, the next one to judge, the end.
    cdef unsigned long long _head, _next, _tail
    cdef bint _rare
    #: When the last first copy came, ns since 1970.
    cdef readonly long long heard_ns
    # The chunk: messages of sendmmsg, a row of targets for each part; how far it is sent.
    cdef sockaddr_in *_addresses
    cdef mmsghdr *_out
    cdef iovec *_parts
    cdef int _width, _parts_max, _parts_count, _sends, _done

    def __dealloc__(self):
        PyMem_Free(self._addresses)
        PyMem_Free(self._out)
        PyMem_Free(self._parts)

    def __init__(self, sock):
        # A receiving call that blocks saves a call to poll and one that finds nothing.
        sock.setblocking(True)
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("ll", 0, _IDLE_NS // 1000))
        self._prepare(sock, _RING)
        self._judge = Judge()

    def direct(self, topology, name, copies, tuple targets not None):
        """Forward as this member of a topology to `targets`.

        `copies`: the `Deduplicator` of its `Admission`. What still waits for the previous targets
        is dropped. Raises `UsageError` where a host is no IPv4 address.
        """
        numbers = [address_number(each) for each in targets]
        self._judge.direct(topology, name, copies)
        self._give_up()
        self._arrange(numbers)

    cdef int _arrange(self, list numbers) except -1:
        """Prepare the chunk for these targets."""
        cdef int part, slot
        cdef mmsghdr *message
        PyMem_Free(self._addresses)
        PyMem_Free(self._out)
        PyMem_Free(self._parts)
        self._out, self._parts = NULL, NULL
        self._width = len(numbers)
        self._parts_max = min(max(_SENDS_MAX // max(self._width, 1), 1), _BATCH)
        sends = max(self._width * self._parts_max, 1)
        self._addresses = <sockaddr_in *>PyMem_Calloc(max(self._width, 1), sizeof(sockaddr_in))
        self._out = <mmsghdr *>PyMem_Calloc(sends, sizeof(mmsghdr))
        self._parts = <iovec *>PyMem_Calloc(self._parts_max, sizeof(iovec))
        if self._addresses == NULL or self._out == NULL or self._parts == NULL:
            raise MemoryError
        for slot in range(self._width):
            fill_address(&self._addresses[slot], numbers[slot] >> 16, numbers[slot] & 0xFFFF)
        for part in range(self._parts_max):
            for slot in range(self._width):
                message = &self._out[part * self._width + slot]
                message.msg_hdr.msg_name = &self._addresses[slot]
                message.msg_hdr.msg_namelen = sizeof(sockaddr_in)
                message.msg_hdr.msg_iov = &self._parts[part]
                message.msg_hdr.msg_iovlen = 1
        return 0

    cdef int _give_up(self) except -1:
        """Drop what waits to be sent; it is counted as what the kernel did not take."""
        cdef int left = self._sends - self._done
        if left:
            self.errors[EAGAIN] = self.errors.get(EAGAIN, 0) + left
        self._sent_all()
        return 0

    def serve(self, long long until_ns, bint busy=False):
        """Forward until `until_ns` (ns since 1970); return whether anything came or was sent.

        What is there already is forwarded even if that time is over. Returns earlier where a
        datagram is for Python, or a signal has come. `busy`: poll the socket instead of sleeping.
        """
        cdef bint worked = False, interrupted = False
        cdef long long left_ns
        with nogil:
            self._fill(MSG_DONTWAIT)
            while True:
                worked = self._turn() or worked
                if self._rare and not self._sends:
                    break
                left_ns = until_ns - _now_ns()
                if left_ns <= 0:
                    break
                if self._next != self._tail and not self._sends:
                    self._fill(MSG_DONTWAIT)
                elif not self._idle(left_ns, busy):
                    interrupted = True
                    break
        if interrupted:
            PyErr_CheckSignals()
        return worked

    cdef bint _turn(self) noexcept nogil:
        """Judge a chunk and send it; return whether there was anything to do."""
        cdef unsigned long long before = self._next
        cdef int done = self._done
        if not self._sends:
            self._gather()
            done = 0
        self._flush()
        return self._next != before or self._done != done

    cdef void _gather(self) noexcept nogil:
        """Judge what has come, up to a chunk of first copies or a datagram for Python."""
        cdef int slot, answer
        cdef long long came_ns
        cdef uint64_t source
        while self._next != self._tail and self._parts_count < self._parts_max and not self._rare:
            slot = <int>(self._next & (_RING - 1))
            if self._messages[slot].msg_hdr.msg_flags & MSG_TRUNC:
                self.oversize += 1
            else:
                # In the order of arrival, for the kernel's count of drops.
                came_ns = self._stamp(&self._messages[slot].msg_hdr)
                source = <uint64_t>ntohl(self._senders[slot].sin_addr.s_addr) << 16
                source |= ntohs(self._senders[slot].sin_port)
                answer = self._judge.judge(
                    <unsigned char *>self._vectors[slot].iov_base,
                    self._messages[slot].msg_len, source,
                )
                if answer == self._judge.first:
                    self.heard_ns = came_ns
                    self._parts[self._parts_count].iov_base = self._vectors[slot].iov_base
                    self._parts[self._parts_count].iov_len = self._messages[slot].msg_len
                    self._parts_count += 1
                elif answer == 0:
                    self._rare = True
                    break  # it keeps its slot until Python has taken it
                self.received += 1
            self._empty(slot)
            self._next += 1
        self._sends = self._parts_count * self._width

    cdef void _flush(self) noexcept nogil:
        """Send the chunk, as far as the kernel takes it."""
        cdef int got, reason
        while self._done < self._sends:
            got = min(self._sends - self._done, <int>_SENDS_MAX)
            got = sendmmsg(self._fd, &self._out[self._done], got, MSG_DONTWAIT)
            reason = errno
            if got > 0:
                self.sent += got
                self._done += got
            elif reason == EAGAIN:
                return
            elif reason != EINTR:
                with gil:
                    self._refused(reason)
                self._done += 1
        self._sent_all()

    cdef void _sent_all(self) noexcept nogil:
        """End the chunk: its slots may be received into."""
        self._parts_count = self._sends = self._done = 0
        self._head = self._next

    cdef int _fill(self, int flags) noexcept nogil:
        """Receive what has come, as far as there is room; return 0, or the first call's errno."""
        cdef int slot, room, got, reason, fills
        for fills in range(_FILLS):
            slot = <int>(self._tail & (_RING - 1))
            room = min(<int>(_RING - (self._tail - self._head)), <int>(_RING - slot))
            room = min(room, <int>_BATCH)
            if not room:
                return 0
            got = recvmmsg(self._fd, &self._messages[slot], room, flags, NULL)
            reason = errno
            if got < 0:
                # A closed address's answer to an earlier send is counted, and is no failure here.
                if reason != EAGAIN and reason != EINTR:
                    with gil:
                        self._refused(reason)
                return 0 if fills else reason
            self._tail += got
            if got < room:
                return 0
            flags = MSG_DONTWAIT
        return 0

    cdef bint _idle(self, long long left_ns, bint busy) noexcept nogil:
        """Wait until something comes or what waits can be sent, `left_ns` at most.

        Returns False where a signal came instead.
        """
        cdef pollfd poll
        cdef timespec timeout
        if busy:
            self._fill(MSG_DONTWAIT)
            return True
        if not self._sends and left_ns >= _IDLE_NS:
            return self._fill(MSG_WAITFORONE) != EINTR
        poll.fd, poll.events, poll.revents = self._fd, 0, 0
        if self._sends:
            poll.events = <short>POLLOUT
        if self._tail - self._head < _RING:
            poll.events |= <short>POLLIN
        timeout.tv_sec = left_ns // 1_000_000_000
        timeout.tv_nsec = left_ns % 1_000_000_000
        if ppoll(&poll, 1, &timeout, NULL) < 0:
            return False
        self._fill(MSG_DONTWAIT)
        return True

    def rare(self):
        """Return the datagram for Python, (datagram, (host, port), ns since 1970), or None.

        Later ones are judged after it: call `refresh` when `Admission` has judged it.
        """
        cdef int slot
        if not self._rare or self._sends:
            return None
        slot = <int>(self._next & (_RING - 1))
        found = self._datagram(slot)
        self._empty(slot)
        self.received += 1
        self._rare = False
        self._next += 1
        self._head = self._next
        return found

    def refresh(self):
        """Take the epoch anew, after `Admission` has judged something (`Judge.refresh`)."""
        self._judge.refresh()

    def drain_counts(self, counts):
        """Add the counts since the last call to a member's `Counter`."""
        first = self._judge.drain_counts(counts)
        if first:
            counts["forwarded"] += first * self._width


cdef inline long long _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return now.tv_sec * 1_000_000_000LL + now.tv_nsec
