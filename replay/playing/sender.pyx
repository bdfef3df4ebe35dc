"""Sending prepared datagrams on schedule: `sendmmsg` in a loop without the GIL.

`Sender` owns the destinations (a socket and an address each) and two verbs. `send_block` sends a
block of datagrams, each at its own time; `send_load` is the load generator, which repeats a set
of prebuilt datagrams with the sequence number patched into each, at a steady rate. Both run in
the calling thread, release the GIL, and can be paused and stopped from any thread
(`sender_loop`); a signal that arrives in the main thread is handled within `POLL_NS`.

Times are nanoseconds after `anchor_ns`, a moment of the sender's clock (CLOCK_MONOTONIC, without
the pauses): an absolute schedule, so a late datagram never makes the next ones late. The loop
sleeps until shortly before the next datagram is due and spins the rest, `spin_ns` at most. What is
due at the same time goes out in one system call a socket; the order within a line is always kept,
between lines it is not defined. Equal-sized neighbours for the same destination are handed over as
one piece that the kernel cuts apart again (UDP_SEGMENT, Linux 4.18): receivers see the same
datagrams, at several times the rate.

Nothing here slows down for a receiver: UDP has no flow control, and a datagram that overruns a
receiver's buffer is lost without the sender noticing.

Compiled only, for the system calls. Which datagrams and when is the player's business.
"""

cimport cython
from libc.errno cimport EINVAL, EIO, EMSGSIZE, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import socket as _socket

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.progress import Progress
from feedhandler.replay.playing.sender_loop import BEHIND_NS, POLL_NS, SPIN_NS

from feedhandler.replay.playing.progress cimport BYTES, SENT, SYSTEM_CALLS
from feedhandler.replay.playing.sender_loop cimport HALTED, RUN_ON, SendLoop

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    #include <netinet/in.h>
    #include <arpa/inet.h>
    #include <string.h>

    #ifndef UDP_SEGMENT
    #define UDP_SEGMENT 103
    #endif
    #define FH_CONTROL_BYTES CMSG_SPACE(sizeof(uint16_t))
    /* Ask the kernel to cut the message into datagrams of `size` bytes; 0: as it is. */
    static void fh_set_segment(struct msghdr *message, void *control, uint16_t size) {
        struct cmsghdr *entry = (struct cmsghdr *)control;
        message->msg_control = size ? control : NULL;
        message->msg_controllen = size ? FH_CONTROL_BYTES : 0;
        if (!size) return;
        entry->cmsg_level = IPPROTO_UDP;
        entry->cmsg_type = UDP_SEGMENT;
        entry->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        memcpy(CMSG_DATA(entry), &size, sizeof(size));
    }
    """
    cdef struct in_addr:
        uint32_t s_addr
    cdef struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags) nogil
    int AF_INET, MSG_DONTWAIT
    uint16_t htons(uint16_t) nogil
    uint32_t htonl(uint32_t) nogil
    int FH_CONTROL_BYTES
    void fh_set_segment(msghdr *message, void *control, uint16_t size) nogil

#: Datagrams in one system call. Larger blocks gain nothing and make the lines drift apart.
WINDOW_DATAGRAMS = 64
#: Bytes that may be handed over as one piece: what fits one IPv4 datagram.
JOINED_BYTES_MAX = 65_507
#: Destinations and sockets of one sender at most.
DESTINATIONS_MAX = 1_024
SOCKETS_MAX = 64

cdef enum:
    _WINDOW = 64

cdef size_t _JOINED_BYTES_MAX = JOINED_BYTES_MAX


cdef inline int64_t _due_ns(int64_t position, int64_t rate) noexcept nogil:
    """When datagram `position` of a steady rate is due, without rounding that adds up."""
    return position // rate * 1_000_000_000 + position % rate * 1_000_000_000 // rate


cdef inline void _patch(uint8_t *at, int width, bint big_endian, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(width):
        at[width - 1 - i if big_endian else i] = <uint8_t>(value >> (8 * i))


cdef class Sender(SendLoop):
    """Destinations and the loop that serves them; see the module's text.

    `join` False keeps every datagram a message of its own towards the kernel; `spin_ns` is the
    `SendLoop`'s.
    `destinations` is a sequence of (socket, group, port): open IPv4 UDP sockets, which the sender
    keeps alive but does not close. The position in it is the destination number.
    `progress` int64 has the columns of `Progress`; `sent_by_destination` int64 counts datagrams.
    Not to be used by two threads at once, except the requests and the two arrays.
    """

    cdef readonly object sent_by_destination
    cdef object _keep
    cdef int _socket_count
    cdef Py_ssize_t _destination_count
    cdef int *_fds                    # by socket number
    cdef int *_socket_of              # by destination
    cdef sockaddr_in *_addresses      # by destination
    cdef mmsghdr *_messages           # _WINDOW a socket, of one or more datagrams each
    cdef char *_controls              # FH_CONTROL_BYTES a message
    cdef iovec *_vectors              # _WINDOW a socket, one a datagram
    cdef Py_ssize_t *_destination_of  # of each datagram of the window
    cdef unsigned int *_message_count  # by socket number
    cdef unsigned int *_filled        # by socket number: datagrams
    cdef bint _join
    cdef int64_t[::1] _sent_by

    def __cinit__(self, destinations, bint join=True, *, int64_t spin_ns=SPIN_NS):
        cdef Py_ssize_t number
        cdef int fd
        count = len(destinations)
        if not 0 < count <= DESTINATIONS_MAX:
            raise UsageError(
                f"a sender serves 1 to {DESTINATIONS_MAX:,} destinations, not {count:,}",
                "use several senders",
            )
        self._keep = [destination[0] for destination in destinations]
        fds = list(dict.fromkeys(sock.fileno() for sock in self._keep))
        if len(fds) > SOCKETS_MAX:
            raise UsageError(f"a sender uses at most {SOCKETS_MAX} sockets", "share sockets")
        self._destination_count = count
        self._socket_count = len(fds)
        self._fds = <int *>calloc(self._socket_count, sizeof(int))
        self._join = join
        self._filled = <unsigned int *>calloc(self._socket_count, sizeof(unsigned int))
        self._message_count = <unsigned int *>calloc(self._socket_count, sizeof(unsigned int))
        self._controls = <char *>calloc(self._socket_count * _WINDOW, FH_CONTROL_BYTES)
        self._socket_of = <int *>calloc(count, sizeof(int))
        self._addresses = <sockaddr_in *>calloc(count, sizeof(sockaddr_in))
        self._messages = <mmsghdr *>calloc(self._socket_count * _WINDOW, sizeof(mmsghdr))
        self._vectors = <iovec *>calloc(self._socket_count * _WINDOW, sizeof(iovec))
        self._destination_of = <Py_ssize_t *>calloc(
            self._socket_count * _WINDOW, sizeof(Py_ssize_t)
        )
        if not (
            self._fds and self._filled and self._socket_of and self._addresses
            and self._messages and self._vectors and self._destination_of
            and self._message_count and self._controls
        ):
            raise MemoryError
        for number, fd in enumerate(fds):
            self._fds[number] = fd
        for number, (sock, group, port) in enumerate(destinations):
            self._socket_of[number] = fds.index(sock.fileno())
            self._addresses[number].sin_family = AF_INET
            self._addresses[number].sin_port = htons(port)
            self._addresses[number].sin_addr.s_addr = htonl(
                int.from_bytes(_socket.inet_aton(group), "big")
            )
        self.sent_by_destination = np.zeros(count, np.int64)
        self._sent_by = self.sent_by_destination

    def __dealloc__(self):
        free(self._fds)
        free(self._filled)
        free(self._message_count)
        free(self._controls)
        free(self._socket_of)
        free(self._addresses)
        free(self._messages)
        free(self._vectors)
        free(self._destination_of)

    def send_block(
        self,
        list buffers not None,
        const uint32_t[::1] buffer_of not None,
        const uint32_t[::1] offsets not None,
        const uint32_t[::1] lengths not None,
        const uint16_t[::1] destinations not None,
        const int64_t[::1] due_ns not None,
        int64_t anchor_ns,
    ):
        """Send datagrams in the given order, each at `anchor_ns + due_ns` or at once if that is past.

        Datagram i is `buffers[buffer_of[i]][offsets[i] : offsets[i] + lengths[i]]` (buffers of
        unsigned bytes) and goes to `destinations[i]`. Returns how many were sent: fewer than
        all only after `stop()` or `drop()`. Raises `IndexError` for a datagram outside its buffer or an
        unknown destination, `OSError` where the kernel refuses a datagram.
        """
        cdef Py_ssize_t count = due_ns.shape[0]
        cdef Py_ssize_t number
        cdef Py_ssize_t done = 0
        cdef const uint8_t[::1] view
        if (
            buffer_of.shape[0] != count or offsets.shape[0] != count
            or lengths.shape[0] != count or destinations.shape[0] != count
        ):
            raise IndexError("the columns differ in length")
        starts_array = np.zeros(len(buffers) + 1, np.uint64)
        sizes_array = np.zeros(len(buffers) + 1, np.int64)
        cdef uint64_t[::1] starts = starts_array
        cdef int64_t[::1] sizes = sizes_array
        for number, buffer in enumerate(buffers):
            view = buffer
            sizes[number] = view.shape[0]
            starts[number] = <uint64_t>&view[0] if view.shape[0] else 0
        for number in range(count):
            if (
                buffer_of[number] >= <uint32_t>len(buffers)
                or <int64_t>offsets[number] + lengths[number] > sizes[buffer_of[number]]
            ):
                raise IndexError(f"datagram {number} lies outside its buffer")
            if destinations[number] >= self._destination_count:
                raise IndexError(f"datagram {number} has no destination {destinations[number]}")
        cdef unsigned long slack = self._begin()
        try:
            with nogil:
                self._send_block(
                    starts, buffer_of, offsets, lengths, destinations, due_ns, anchor_ns, &done
                )
        finally:
            self._end(slack)
        return done

    def send_load(
        self,
        uint8_t[::1] slab not None,
        const uint32_t[::1] offsets not None,
        const uint32_t[::1] lengths not None,
        const uint16_t[::1] channels not None,
        const uint32_t[::1] steps not None,
        const uint16_t[:, ::1] destinations not None,
        uint64_t[::1] next_sequences not None,
        Py_ssize_t sequence_offset,
        int sequence_width,
        bint big_endian,
        int64_t rate,
        int64_t count,
        int64_t anchor_ns,
        int64_t burst=1,
    ):
        """Send `count` datagrams at `rate` a second from `anchor_ns` on, each to every line.

        `burst` datagrams leave together, when the last of them is due.

        The templates `slab[offsets[i] : offsets[i] + lengths[i]]` take turns. Before template i
        is sent, `next_sequences[channels[i]]` is written into it, `sequence_width` bytes (1 to 8)
        at `sequence_offset`, and then grows by `steps[i]`. It goes to `destinations[line,
        channels[i]]` for each line. There must be at least `WINDOW_DATAGRAMS` templates, so that
        no system call holds one twice. Returns how many were sent (to every line).
        Raises `IndexError` for a template or destination that is not there.
        """
        cdef Py_ssize_t number
        cdef Py_ssize_t templates = offsets.shape[0]
        cdef int64_t done = 0
        if (
            templates < _WINDOW or lengths.shape[0] != templates or rate < 1
            or channels.shape[0] != templates or steps.shape[0] != templates
            or not 1 <= sequence_width <= 8 or sequence_offset < 0
            or not 1 <= destinations.shape[0] <= _WINDOW or burst < 1
        ):
            raise IndexError("templates, lines, rate or sequence width are out of range")
        if max(destinations.base.flat) >= self._destination_count:
            raise IndexError("a line's destination is not there")
        for number in range(templates):
            if (
                <int64_t>offsets[number] + lengths[number] > slab.shape[0]
                or sequence_offset + sequence_width > <Py_ssize_t>lengths[number]
                or channels[number] >= next_sequences.shape[0]
                or channels[number] >= destinations.shape[1]
            ):
                raise IndexError(f"template {number} lies outside the slab or its channel")
        cdef unsigned long slack = self._begin()
        try:
            with nogil:
                self._send_load(
                    slab, offsets, lengths, channels, steps, destinations, next_sequences,
                    sequence_offset, sequence_width, big_endian, rate, count, anchor_ns, burst,
                    &done
                )
        finally:
            self._end(slack)
        return done

    @cython.boundscheck(False)  # send_load has checked every template
    cdef int _send_load(
        self,
        uint8_t[::1] slab,
        const uint32_t[::1] offsets,
        const uint32_t[::1] lengths,
        const uint16_t[::1] channels,
        const uint32_t[::1] steps,
        const uint16_t[:, ::1] destinations,
        uint64_t[::1] next_sequences,
        Py_ssize_t sequence_offset,
        int width,
        bint big_endian,
        int64_t rate,
        int64_t count,
        int64_t anchor_ns,
        int64_t burst,
        int64_t *done,
    ) except -1 nogil:
        cdef Py_ssize_t templates = offsets.shape[0]
        # Lines may share a socket, whose part of the window must hold them all.
        cdef int64_t window_max = _WINDOW // destinations.shape[0]
        cdef int64_t position = 0
        cdef int64_t now
        cdef int64_t due
        cdef Py_ssize_t slot = 0
        cdef Py_ssize_t line
        cdef uint8_t *payload
        while position < count:
            if self._wait_until(
                anchor_ns + _due_ns(min(position + burst, count) - 1, rate)
            ) == HALTED:
                return HALTED
            now = self._now() - anchor_ns
            due = position
            while due < count and due - position < window_max and _due_ns(due, rate) <= now:
                payload = &slab[offsets[slot]]
                _patch(
                    payload + sequence_offset, width, big_endian, next_sequences[channels[slot]]
                )
                next_sequences[channels[slot]] += steps[slot]
                for line in range(destinations.shape[0]):
                    self._append(destinations[line, channels[slot]], payload, lengths[slot])
                self._note_lateness(now - _due_ns(due, rate))
                slot = slot + 1 if slot + 1 < templates else 0
                due += 1
            if self._flush() == HALTED:
                return HALTED
            position = due
            done[0] = position
        return RUN_ON

    @cython.boundscheck(False)  # send_block has checked every datagram and destination
    cdef int _send_block(
        self,
        uint64_t[::1] starts,
        const uint32_t[::1] buffer_of,
        const uint32_t[::1] offsets,
        const uint32_t[::1] lengths,
        const uint16_t[::1] destinations,
        const int64_t[::1] due_ns,
        int64_t anchor_ns,
        Py_ssize_t *done,
    ) except -1 nogil:
        cdef Py_ssize_t count = due_ns.shape[0]
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t window_end
        cdef int64_t now
        while position < count:
            if self._wait_until(anchor_ns + due_ns[position]) == HALTED:
                return HALTED
            now = self._now() - anchor_ns
            window_end = position
            while (
                window_end < count
                and window_end - position < _WINDOW
                and due_ns[window_end] <= now
            ):
                self._append(
                    destinations[window_end],
                    <void *>(starts[buffer_of[window_end]] + offsets[window_end]),
                    lengths[window_end],
                )
                self._note_lateness(now - due_ns[window_end])
                window_end += 1
            if self._flush() == HALTED:
                return HALTED
            position = window_end
            done[0] = position
        return RUN_ON

    cdef inline void _append(
        self, Py_ssize_t destination, void *payload, size_t length
    ) noexcept nogil:
        """Put one datagram behind what its socket already has in this window."""
        cdef int number = self._socket_of[destination]
        cdef Py_ssize_t slot = number * _WINDOW + self._filled[number]
        self._vectors[slot].iov_base = payload
        self._vectors[slot].iov_len = length
        self._destination_of[slot] = destination
        self._filled[number] += 1
        if not (self._join and self._extend(number, slot)):
            self._begin_message(number, slot)

    cdef inline void _begin_message(self, int number, Py_ssize_t slot) noexcept nogil:
        """A new message for the datagram in `slot`."""
        cdef Py_ssize_t index = number * _WINDOW + self._message_count[number]
        cdef msghdr *header = &self._messages[index].msg_hdr
        header.msg_name = &self._addresses[self._destination_of[slot]]
        header.msg_namelen = sizeof(sockaddr_in)
        header.msg_iov = &self._vectors[slot]
        header.msg_iovlen = 1
        fh_set_segment(header, NULL, 0)
        self._message_count[number] += 1

    cdef inline bint _extend(self, int number, Py_ssize_t slot) noexcept nogil:
        """Join the datagram in `slot` to the message before it, where the kernel can part them."""
        cdef size_t length = self._vectors[slot].iov_len
        cdef Py_ssize_t index = number * _WINDOW + self._message_count[number] - 1
        cdef msghdr *header
        if self._message_count[number] == 0 or length == 0:
            return False
        header = &self._messages[index].msg_hdr
        if (
            self._vectors[slot - 1].iov_len != length
            or self._destination_of[slot - 1] != self._destination_of[slot]
            or (header.msg_iovlen + 1) * length > _JOINED_BYTES_MAX
        ):
            return False
        if header.msg_iovlen == 1:
            fh_set_segment(header, self._controls + index * FH_CONTROL_BYTES, <uint16_t>length)
        header.msg_iovlen += 1
        return True

    cdef int _flush(self) except -1 nogil:
        """Hand the window to the kernel, socket by socket; sets `_failed_errno` and halts."""
        cdef int number
        cdef int outcome = RUN_ON
        for number in range(self._socket_count):
            if self._filled[number] and outcome == RUN_ON:
                outcome = self._flush_socket(number)
            self._filled[number] = 0
            self._message_count[number] = 0
        return outcome

    cdef int _flush_socket(self, int number) except -1 nogil:
        cdef Py_ssize_t first = number * _WINDOW
        cdef unsigned int done = 0
        cdef int sent
        cdef int reason
        while done < self._message_count[number]:
            sent = sendmmsg(
                self._fds[number],
                &self._messages[first + done],
                self._message_count[number] - done,
                MSG_DONTWAIT,
            )
            self._counts[SYSTEM_CALLS] += 1
            if sent >= 0:
                self._no_buffers_since_ns = 0
                self._account(first + done, sent)
                done += <unsigned int>sent
                continue
            reason = errno
            if self._join and (reason == EINVAL or reason == EMSGSIZE or reason == EIO):
                # Not on this kernel or interface, or longer than the interface's packets.
                self._join = False
                self._part(number, &self._messages[first + done].msg_hdr)
                done = 0
            elif self._wait_for_room(self._fds[number], reason) == HALTED:
                return HALTED
        return RUN_ON

    cdef void _account(self, Py_ssize_t index, int sent) noexcept nogil:
        """Count the datagrams of messages that the kernel has taken."""
        cdef msghdr *header
        cdef size_t i
        for index in range(index, index + sent):
            header = &self._messages[index].msg_hdr
            self._counts[SENT] += <int64_t>header.msg_iovlen
            self._counts[BYTES] += <int64_t>(header.msg_iovlen * header.msg_iov[0].iov_len)
            i = header.msg_iov - self._vectors
            self._sent_by[self._destination_of[i]] += <int64_t>header.msg_iovlen

    cdef void _part(self, int number, msghdr *header) noexcept nogil:
        """Make each datagram from this message on a message of its own."""
        cdef Py_ssize_t slot = header.msg_iov - self._vectors
        cdef Py_ssize_t end = number * _WINDOW + self._filled[number]
        self._message_count[number] = 0
        for slot in range(slot, end):
            self._begin_message(number, slot)
