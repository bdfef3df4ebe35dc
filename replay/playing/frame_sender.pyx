"""Sending Ethernet frames on schedule through packet sockets: `sendmmsg`, without the GIL.

`FrameSender` is to frames what `sender.Sender` is to datagrams: the same columns, the same
absolute schedule, the same requests (`sender_loop`). A captured frame leaves as it is, or with the
headers that its destination wants, or, where the capture has none, with headers made around the
payload (`frame_headers`). Headers are changed in a scratch area of the window; what was read from
the capture is never written to, so lines A and B share it.

Of the ways to hand frames to Linux this is the fastest measured: a transmit ring (TPACKET_V2 and
V3) costs a copy more than `sendmmsg` on the same socket, and saves nothing that a window of 64
frames a system call does not.

A frame that is longer than the interface takes is left out and counted (`Progress.TOO_LONG`): the
interface decides, so a changed MTU is heeded while sending. Everything else that the kernel refuses
ends the call.

Compiled only, for the system calls. Opening the sockets is `frame_lines`' business.
"""

cimport cython
from libc.errno cimport EBADMSG, EMSGSIZE, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.frame_headers import HEADERS_BYTES, HEADERS_BYTES_MAX, LINK_BYTES
from feedhandler.replay.playing.sender_loop import SPIN_NS

from feedhandler.replay.playing.frame_headers cimport HeaderChanges
from feedhandler.replay.playing.progress cimport BYTES, SENT, SYSTEM_CALLS, TOO_LONG
from feedhandler.replay.playing.sender_loop cimport HALTED, RUN_ON, SendLoop

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <arpa/inet.h>

    /* The one's complement sum of RFC 1071, in network order: eight bytes at a time, in the
       machine's order, which comes to the same (section 2.B). */
    static uint32_t fh_ones_sum(const uint8_t *at, size_t length) {
        uint64_t total = 0, word = 0;
        for (; length >= 8; at += 8, length -= 8) {
            memcpy(&word, at, 8);
            total += word;
            total += total < word;
        }
        if (length) {
            word = 0;
            memcpy(&word, at, length);
            total += word;
            total += total < word;
        }
        total = (total & 0xFFFFFFFFu) + (total >> 32);
        total = (total & 0xFFFFFFFFu) + (total >> 32);
        total = (total & 0xFFFF) + (total >> 16);
        total = (total & 0xFFFF) + (total >> 16);
        return ntohs((uint16_t)total);
    }
    """
    uint32_t fh_ones_sum(const uint8_t *at, size_t length) nogil
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags) nogil
    int MSG_DONTWAIT

#: Destinations and sockets of one sender at most.
DESTINATIONS_MAX = 1_024
SOCKETS_MAX = 64

cdef enum:
    _WINDOW = 64       # frames in one system call; more gain nothing
    _ROOM = 128        # bytes of scratch a frame
    _HEAD_MIN = 42
    _HEAD_MAX = 90
    _ETHERNET_LINK = 1
    _ETHERNET = 14

assert HEADERS_BYTES == _HEAD_MIN and HEADERS_BYTES_MAX == _HEAD_MAX

# Where in a captured frame the headers begin that are kept, by link type; `_BARE`: there is none.
cdef enum:
    _LINK_TYPES = 277
    _BARE = 255
cdef uint8_t[_LINK_TYPES] _LINK_BYTES
for _number in range(_LINK_TYPES):
    _LINK_BYTES[_number] = LINK_BYTES.get(_number, 0 if _number == _ETHERNET_LINK else _BARE)


def payload_sum(const uint8_t[::1] payload not None):
    """The one's complement sum (RFC 1071) of bytes as 16-bit numbers in network order."""
    return fh_ones_sum(&payload[0] if payload.shape[0] else NULL, payload.shape[0])


cdef struct Frames:
    # The columns of a block, as the loop walks them; the last three may be NULL.
    const uint64_t *starts
    const uint32_t *buffer_of
    const uint32_t *offsets
    const uint32_t *lengths
    const uint16_t *destinations
    const int64_t *due_ns
    const uint32_t *frame_offsets
    const uint32_t *frame_lengths
    const uint16_t *link_types
    Py_ssize_t count


cdef class FrameSender(SendLoop):
    """Destinations and the loop that serves them; see the module's text.

    `sockets[i]` is the packet socket through which `destinations[i]` is sent, bound to its
    interface; the sender keeps sockets alive but does not close them. `spin_ns` is the
    `SendLoop`'s. `sent_by_destination` int64 counts frames. Not to be used by two threads at once,
    except the requests and the counts.
    """

    cdef readonly object sent_by_destination
    cdef object _keep
    cdef HeaderChanges _headers
    cdef const uint8_t[::1] _changes
    cdef const uint8_t[::1] _complete
    cdef uint8_t[::1] _room           # _ROOM a slot
    cdef int64_t[::1] _sent_by
    cdef int _socket_count
    cdef Py_ssize_t _destination_count
    cdef int *_fds                    # by socket number
    cdef int *_socket_of              # by destination
    cdef mmsghdr *_messages           # _WINDOW a socket
    cdef iovec *_vectors              # two a message: headers, and what follows
    cdef Py_ssize_t *_destination_of  # by message
    cdef uint32_t *_length_of         # of the payload, by message
    cdef unsigned int *_filled        # by socket number

    def __cinit__(self, sockets, destinations, *, int64_t spin_ns=SPIN_NS):
        cdef Py_ssize_t number
        count = len(destinations)
        if not 0 < count <= DESTINATIONS_MAX:
            raise UsageError(
                f"a sender serves 1 to {DESTINATIONS_MAX:,} destinations, not {count:,}",
                "use several senders",
            )
        self._keep = list(sockets)
        fds = list(dict.fromkeys(sock.fileno() for sock in self._keep))
        if len(fds) > SOCKETS_MAX:
            raise UsageError(f"a sender uses at most {SOCKETS_MAX} sockets", "share sockets")
        self._destination_count = count
        self._socket_count = len(fds)
        slots = self._socket_count * _WINDOW
        self._fds = <int *>calloc(self._socket_count, sizeof(int))
        self._filled = <unsigned int *>calloc(self._socket_count, sizeof(unsigned int))
        self._socket_of = <int *>calloc(count, sizeof(int))
        self._messages = <mmsghdr *>calloc(slots, sizeof(mmsghdr))
        self._vectors = <iovec *>calloc(2 * slots, sizeof(iovec))
        self._destination_of = <Py_ssize_t *>calloc(slots, sizeof(Py_ssize_t))
        self._length_of = <uint32_t *>calloc(slots, sizeof(uint32_t))
        if not (
            self._fds and self._filled and self._socket_of and self._messages
            and self._vectors and self._destination_of and self._length_of
        ):
            raise MemoryError
        for number, fd in enumerate(fds):
            self._fds[number] = fd
        for number, sock in enumerate(self._keep):
            self._socket_of[number] = fds.index(sock.fileno())
        self._headers = HeaderChanges(destinations)
        self._changes = self._headers.changes
        self._complete = self._headers.complete
        self._room = np.zeros(slots * _ROOM, np.uint8)
        self.sent_by_destination = np.zeros(count, np.int64)
        self._sent_by = self.sent_by_destination

    def __dealloc__(self):
        free(self._fds)
        free(self._filled)
        free(self._socket_of)
        free(self._messages)
        free(self._vectors)
        free(self._destination_of)
        free(self._length_of)

    def send_block(
        self,
        list buffers not None,
        const uint32_t[::1] buffer_of not None,
        const uint32_t[::1] offsets not None,
        const uint32_t[::1] lengths not None,
        const uint16_t[::1] destinations not None,
        const int64_t[::1] due_ns not None,
        int64_t anchor_ns,
        const uint32_t[::1] frame_offsets=None,
        const uint32_t[::1] frame_lengths=None,
        const uint16_t[::1] link_types=None,
    ):
        """Send frames in the given order, each at `anchor_ns + due_ns` or at once if that is past.

        The payload of frame i is `buffers[buffer_of[i]][offsets[i] : offsets[i] + lengths[i]]`, and
        it goes to `destinations[i]`. The frame that it was captured in begins at `frame_offsets[i]`
        of the same buffer, has `frame_lengths[i]` bytes and the link layer `link_types[i]`
        (`LinkType`; 0: there was none); without these columns none has a frame.
        Returns how many were sent or left out as too long: fewer than all only after `stop()` or
        `drop()`. Raises `IndexError` for what lies outside its buffer, an unknown destination, or a
        bare payload for a destination without group and port; `OSError` where the kernel refuses a
        frame, and where what stands before a payload is no UDP header.
        """
        cdef Frames frames
        cdef Py_ssize_t count = due_ns.shape[0]
        cdef Py_ssize_t done = 0
        cdef const uint8_t[::1] view
        cdef Py_ssize_t number
        starts_array = np.zeros(len(buffers) + 1, np.uint64)
        sizes_array = np.zeros(len(buffers) + 1, np.int64)
        cdef uint64_t[::1] starts = starts_array
        cdef int64_t[::1] sizes = sizes_array
        for number, buffer in enumerate(buffers):
            view = buffer
            sizes[number] = view.shape[0]
            starts[number] = <uint64_t>&view[0] if view.shape[0] else 0
        cdef bint framed = link_types is not None
        if (
            buffer_of.shape[0] != count or offsets.shape[0] != count
            or lengths.shape[0] != count or destinations.shape[0] != count
        ):
            raise IndexError("the columns differ in length")
        if framed and (
            frame_offsets is None or frame_lengths is None or link_types.shape[0] != count
            or frame_offsets.shape[0] != count or frame_lengths.shape[0] != count
        ):
            raise IndexError("the columns of frames differ in length")
        if count == 0:
            return 0
        frames.starts = &starts[0]
        frames.buffer_of = &buffer_of[0]
        frames.offsets = &offsets[0]
        frames.lengths = &lengths[0]
        frames.destinations = &destinations[0]
        frames.due_ns = &due_ns[0]
        frames.frame_offsets = &frame_offsets[0] if framed else NULL
        frames.frame_lengths = &frame_lengths[0] if framed else NULL
        frames.link_types = &link_types[0] if framed else NULL
        frames.count = count
        self._check(&frames, sizes, len(buffers))
        cdef unsigned long slack = self._begin()
        try:
            with nogil:
                self._send_frames(&frames, anchor_ns, &done)
        finally:
            self._end(slack)
        return done

    cdef int _check(self, Frames *frames, int64_t[::1] sizes, uint32_t buffers) except -1:
        """Raise `IndexError` where a frame is not what the loop relies on."""
        cdef Py_ssize_t i
        cdef int64_t frame_offset
        cdef int64_t before
        cdef int link
        for i in range(frames.count):
            if (
                frames.buffer_of[i] >= buffers
                or <int64_t>frames.offsets[i] + frames.lengths[i] > sizes[frames.buffer_of[i]]
            ):
                raise IndexError(f"datagram {i} lies outside its buffer")
            if frames.destinations[i] >= self._destination_count:
                raise IndexError(f"datagram {i} has no destination {frames.destinations[i]}")
            link = _link_bytes(frames, i)
            if link == _BARE:
                if not self._complete[frames.destinations[i]]:
                    raise IndexError(f"datagram {i} has neither headers nor a group to go to")
                continue
            frame_offset = frames.frame_offsets[i]
            before = frames.offsets[i] - frame_offset - link
            if frames.link_types[i] != _ETHERNET_LINK:
                before += _ETHERNET
            if (
                frame_offset + frames.frame_lengths[i] > sizes[frames.buffer_of[i]]
                or frames.offsets[i] + <int64_t>frames.lengths[i]
                > frame_offset + frames.frame_lengths[i]
                or not _HEAD_MIN <= before <= _HEAD_MAX
            ):
                raise IndexError(f"datagram {i} lies outside its frame")
        return 0

    cdef int _send_frames(
        self, const Frames *frames, int64_t anchor_ns, Py_ssize_t *done
    ) except -1 nogil:
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t window_end
        cdef int64_t now
        cdef int number
        for number in range(self._socket_count):
            self._filled[number] = 0
        while position < frames.count:
            if self._wait_until(anchor_ns + frames.due_ns[position]) == HALTED:
                return HALTED
            now = self._now() - anchor_ns
            window_end = position
            while (
                window_end < frames.count
                and window_end - position < _WINDOW
                and frames.due_ns[window_end] <= now
            ):
                if self._append(frames, window_end) == HALTED:
                    return HALTED
                self._note_lateness(now - frames.due_ns[window_end])
                window_end += 1
            if self._flush() == HALTED:
                return HALTED
            position = window_end
            done[0] = position
        return RUN_ON

    cdef int _append(self, const Frames *frames, Py_ssize_t i) except -1 nogil:
        """Put a frame behind what its socket already has in this window."""
        cdef Py_ssize_t destination = frames.destinations[i]
        cdef int number = self._socket_of[destination]
        cdef Py_ssize_t slot = number * _WINDOW + self._filled[number]
        cdef iovec *vector = &self._vectors[2 * slot]
        cdef const uint8_t *data = <const uint8_t *><size_t>frames.starts[frames.buffer_of[i]]
        cdef int link = _link_bytes(frames, i)
        self._messages[slot].msg_hdr.msg_iov = vector
        self._destination_of[slot] = destination
        self._length_of[slot] = frames.lengths[i]
        if link != _BARE and frames.link_types[i] == _ETHERNET_LINK:
            if not self._changes[destination]:
                vector.iov_base = <void *>(data + frames.frame_offsets[i])
                vector.iov_len = frames.frame_lengths[i]
                self._messages[slot].msg_hdr.msg_iovlen = 1
                self._filled[number] += 1
                return RUN_ON
        if self._put_headers(frames, i, data, link, slot) < 0:
            self._failed_errno = EBADMSG
            return HALTED
        self._messages[slot].msg_hdr.msg_iovlen = 2
        self._filled[number] += 1
        return RUN_ON

    cdef int _put_headers(
        self, const Frames *frames, Py_ssize_t i, const uint8_t *data, int link, Py_ssize_t slot
    ) except? -1 nogil:
        """Headers into the slot's scratch and its two vectors; -1 where there are none to change.

        An Ethernet frame keeps what stands behind the payload (padding); others end with it.
        """
        cdef Py_ssize_t destination = frames.destinations[i]
        cdef Py_ssize_t start = slot * _ROOM
        cdef Py_ssize_t end
        cdef Py_ssize_t kept
        cdef uint32_t length = frames.lengths[i]
        cdef const uint8_t *payload = data + frames.offsets[i]
        cdef iovec *vector = &self._vectors[2 * slot]
        vector[1].iov_base = <void *>payload
        vector[1].iov_len = length
        if link == _BARE:
            end = start + self._headers.make(destination, self._room, start, length)
        else:
            kept = frames.offsets[i] - frames.frame_offsets[i] - link
            end = start + kept
            if frames.link_types[i] == _ETHERNET_LINK:
                memcpy(&self._room[start], payload - kept, kept)
                vector[1].iov_len = frames.frame_lengths[i] - kept
            else:
                end += _ETHERNET
                memcpy(&self._room[start + _ETHERNET], payload - kept, kept)
                if self._headers.cover(destination, self._room, start, end) < 0:
                    return -1
        vector[0].iov_base = &self._room[start]
        vector[0].iov_len = end - start
        return self._headers.apply(
            destination, self._room, start, end, length, fh_ones_sum(payload, length),
            link == _BARE
        )

    cdef int _flush(self) except -1 nogil:
        """Hand the window to the kernel, socket by socket; sets `_failed_errno` and halts."""
        cdef int number
        cdef int outcome = RUN_ON
        for number in range(self._socket_count):
            if self._filled[number] and outcome == RUN_ON:
                outcome = self._flush_socket(number)
            self._filled[number] = 0
        return outcome

    cdef int _flush_socket(self, int number) except -1 nogil:
        cdef Py_ssize_t index = number * _WINDOW
        cdef Py_ssize_t end = index + self._filled[number]
        cdef Py_ssize_t taken
        cdef int sent
        cdef int reason
        while index < end:
            sent = sendmmsg(
                self._fds[number], &self._messages[index], <unsigned int>(end - index), MSG_DONTWAIT
            )
            self._counts[SYSTEM_CALLS] += 1
            if sent >= 0:
                self._no_buffers_since_ns = 0
                for taken in range(index, index + sent):
                    self._counts[SENT] += 1
                    self._counts[BYTES] += self._length_of[taken]
                    self._sent_by[self._destination_of[taken]] += 1
                index += sent
                continue
            reason = errno
            if reason == EMSGSIZE:
                self._counts[TOO_LONG] += 1
                index += 1
            elif self._wait_for_room(self._fds[number], reason) == HALTED:
                return HALTED
        return RUN_ON


cdef inline int _link_bytes(const Frames *frames, Py_ssize_t i) noexcept nogil:
    """Bytes before the headers that are kept of datagram i's frame, `_BARE` where it has none."""
    if frames.link_types == NULL or frames.link_types[i] >= _LINK_TYPES:
        return _BARE
    return _LINK_BYTES[frames.link_types[i]]
