"""Sending prepared datagrams on schedule: `sendmmsg` in a loop without the GIL.

`Sender` owns the destinations (a socket and an address each) and two verbs. `send_block` sends a
block of datagrams, each at its own time; `send_load` is the load generator, which repeats a set
of prebuilt datagrams with the sequence number patched into each, at a steady rate. Both run in
the calling thread, release the GIL, and can be stopped from any thread with `stop()`; a signal
that arrives in the main thread is handled within `POLL_NS`.

Times are nanoseconds after `anchor_ns`, a moment of CLOCK_MONOTONIC: an absolute schedule, so a
late datagram never makes the next ones late. The loop sleeps until `spin_ns` before the next
datagram is due and spins the rest. What is due at the same time goes out in one system call a
socket; the order within a line is always kept, between lines it is not defined. Equal-sized
neighbours for the same destination are handed over as one piece that the kernel cuts apart again
(UDP_SEGMENT, Linux 4.18): receivers see the same datagrams, at several times the rate.

Nothing here slows down for a receiver: UDP has no flow control, and a datagram that overruns a
receiver's buffer is lost without the sender noticing.

Compiled only, for the system calls. Which datagrams and when is the player's business.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strerror

import enum
import socket as _socket
import threading

import numpy as np

from feedhandler.codecs.errors import UsageError

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    #include <sys/prctl.h>
    #include <netinet/in.h>
    #include <arpa/inet.h>
    #include <poll.h>
    #include <string.h>
    #include <time.h>

    static int64_t fh_monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static int fh_sleep_until(int64_t when_ns) {
        struct timespec when;
        when.tv_sec = when_ns / 1000000000LL;
        when.tv_nsec = when_ns % 1000000000LL;
        return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
    }
    #if defined(__x86_64__) || defined(__i386__)
    #define fh_relax() __builtin_ia32_pause()
    #else
    #define fh_relax() ((void)0)
    #endif
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
    #define fh_stop_load(flag) __atomic_load_n(&(flag), __ATOMIC_RELAXED)
    #define fh_stop_store(flag, value) __atomic_store_n(&(flag), value, __ATOMIC_RELAXED)
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
    cdef struct pollfd:
        int fd
        short events
        short revents
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags) nogil
    int poll(pollfd *fds, unsigned long count, int timeout_ms) nogil
    int prctl(int option, unsigned long value, ...) nogil
    int PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
    int AF_INET, MSG_DONTWAIT, POLLOUT
    uint16_t htons(uint16_t) nogil
    uint32_t htonl(uint32_t) nogil
    int64_t fh_monotonic_ns() nogil
    int fh_sleep_until(int64_t when_ns) nogil
    void fh_relax() nogil
    int FH_CONTROL_BYTES
    void fh_set_segment(msghdr *message, void *control, uint16_t size) nogil
    int fh_stop_load(int flag) nogil
    void fh_stop_store(int flag, int value) nogil

#: The last stretch before a datagram is due is spun, not slept: waking up takes about this long
#: (the thread's timer slack is set to 1 ns). A longer spin is no more exact, and on a busy machine
#: less: the scheduler wakes a thread that sleeps at once, but takes its turn from one that spins.
SPIN_NS = 10_000
#: The longest single sleep, and so the longest time until a stop is noticed.
POLL_NS = 10_000_000
#: Datagrams in one system call. Larger blocks gain nothing and make the lines drift apart.
WINDOW_DATAGRAMS = 64
#: A datagram sent later than this after its time counts as behind schedule.
BEHIND_NS = 1_000_000
#: Bytes that may be handed over as one piece: what fits one IPv4 datagram.
JOINED_BYTES_MAX = 65_507
#: Destinations and sockets of one sender at most.
DESTINATIONS_MAX = 1_024
SOCKETS_MAX = 64
#: How long to wait when the kernel has no buffer for a datagram.
NO_BUFFER_WAIT_NS = 50_000

cdef enum:
    _WINDOW = 64
    _SOCKETS_MAX = 64

cdef size_t _JOINED_BYTES_MAX = JOINED_BYTES_MAX
cdef int64_t _POLL_NS = POLL_NS
cdef int64_t _BEHIND_NS = BEHIND_NS
cdef int64_t _NO_BUFFER_WAIT_NS = NO_BUFFER_WAIT_NS


class Progress(enum.IntEnum):
    """Columns of `Sender.progress`, readable by any thread while the sender runs."""

    SENT = 0  # datagrams handed to the kernel
    BYTES = 1  # their payload bytes
    BEHIND = 2  # sent more than BEHIND_NS after their time
    LATENESS_MAX_NS = 3
    LATENESS_SUM_NS = 4
    WOULD_BLOCK = 5  # waits for room in a socket's send buffer
    NO_BUFFERS = 6  # waits because the kernel was out of buffers
    SYSTEM_CALLS = 7


cdef enum:
    _SENT = 0
    _BYTES = 1
    _BEHIND = 2
    _LATENESS_MAX = 3
    _LATENESS_SUM = 4
    _WOULD_BLOCK = 5
    _NO_BUFFERS = 6
    _SYSTEM_CALLS = 7
    _PROGRESS_COUNT = 8

cdef enum:
    _RUN_ON = 0
    _STOPPED = 1


cdef inline int64_t _due_ns(int64_t position, int64_t rate) noexcept nogil:
    """When datagram `position` of a steady rate is due, without rounding that adds up."""
    return position // rate * 1_000_000_000 + position % rate * 1_000_000_000 // rate


cdef inline void _patch(uint8_t *at, int width, bint big_endian, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(width):
        at[width - 1 - i if big_endian else i] = <uint8_t>(value >> (8 * i))


cdef class Sender:
    """Destinations and the loop that serves them; see the module's text.

    `join` False keeps every datagram a message of its own towards the kernel. `spin_ns` is the
    stretch that is spun instead of slept: 0 leaves the processor to others and costs accuracy.
    `destinations` is a sequence of (socket, group, port): open IPv4 UDP sockets, which the sender
    keeps alive but does not close. The position in it is the destination number.
    `progress` int64[8] has the columns of `Progress`; `sent_by_destination` int64 counts
    datagrams. Not to be used by two threads at once, except `stop` and the two arrays.
    """

    cdef readonly object progress
    cdef readonly object sent_by_destination
    cdef object _keep
    cdef int _stop
    cdef int _failed_errno
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
    cdef bint _in_main_thread
    cdef int64_t _spin_ns
    cdef int64_t _signals_seen_ns
    cdef int64_t[::1] _counts
    cdef int64_t[::1] _sent_by

    def __cinit__(self, destinations, bint join=True, int64_t spin_ns=SPIN_NS):
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
        self._spin_ns = spin_ns
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
        self.progress = np.zeros(_PROGRESS_COUNT, np.int64)
        self.sent_by_destination = np.zeros(count, np.int64)
        self._counts = self.progress
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

    def stop(self):
        """Make the running call, and all later ones, return early; from any thread."""
        fh_stop_store(self._stop, 1)

    @property
    def stopped(self):
        """Whether `stop` was called."""
        return fh_stop_load(self._stop) != 0

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
        all only after `stop()`. Raises `IndexError` for a datagram outside its buffer or an
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
            prctl(PR_SET_TIMERSLACK, slack)
        self._raise_failure()
        return done

    cdef unsigned long _begin(self):
        """Prepare the calling thread; returns its timer slack, to be put back at the end."""
        cdef unsigned long slack = prctl(PR_GET_TIMERSLACK, 0)
        prctl(PR_SET_TIMERSLACK, 1)
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        return slack

    cdef int _raise_failure(self) except -1:
        """Raise what made the last call end early, where that was no stop."""
        if self._failed_errno:
            number, self._failed_errno = self._failed_errno, 0
            raise OSError(number, strerror(number).decode())
        return 0

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
            prctl(PR_SET_TIMERSLACK, slack)
        self._raise_failure()
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
            ) == _STOPPED:
                return _STOPPED
            now = fh_monotonic_ns() - anchor_ns
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
            if self._flush() == _STOPPED:
                return _STOPPED
            position = due
            done[0] = position
        return _RUN_ON

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
            if self._wait_until(anchor_ns + due_ns[position]) == _STOPPED:
                return _STOPPED
            now = fh_monotonic_ns() - anchor_ns
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
            if self._flush() == _STOPPED:
                return _STOPPED
            position = window_end
            done[0] = position
        return _RUN_ON

    cdef inline void _note_lateness(self, int64_t behind) noexcept nogil:
        self._counts[_LATENESS_SUM] += behind
        if behind > self._counts[_LATENESS_MAX]:
            self._counts[_LATENESS_MAX] = behind
        if behind > _BEHIND_NS:
            self._counts[_BEHIND] += 1

    cdef int _wait_until(self, int64_t when_ns) except -1 nogil:
        """Sleep, then spin, until the monotonic clock shows `when_ns`; tells of a stop."""
        cdef int64_t now = fh_monotonic_ns()
        cdef int64_t wake_ns
        if self._interrupted(now) == _STOPPED:
            return _STOPPED
        while now < when_ns:
            if when_ns - now > self._spin_ns:
                wake_ns = when_ns - self._spin_ns
                if wake_ns - now > _POLL_NS:
                    wake_ns = now + _POLL_NS
                fh_sleep_until(wake_ns)
                now = fh_monotonic_ns()
                if self._interrupted(now) == _STOPPED:
                    return _STOPPED
            else:
                fh_relax()
                now = fh_monotonic_ns()
        return _RUN_ON

    cdef inline int _interrupted(self, int64_t now) except -1 nogil:
        """Whether to stop. In the main thread signals are looked at every `POLL_NS`."""
        if self._in_main_thread and now - self._signals_seen_ns > _POLL_NS:
            self._signals_seen_ns = now
            with gil:
                PyErr_CheckSignals()
        return _STOPPED if fh_stop_load(self._stop) else _RUN_ON

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
        cdef Py_ssize_t place = number * _WINDOW + self._message_count[number]
        cdef msghdr *header = &self._messages[place].msg_hdr
        header.msg_name = &self._addresses[self._destination_of[slot]]
        header.msg_namelen = sizeof(sockaddr_in)
        header.msg_iov = &self._vectors[slot]
        header.msg_iovlen = 1
        fh_set_segment(header, NULL, 0)
        self._message_count[number] += 1

    cdef inline bint _extend(self, int number, Py_ssize_t slot) noexcept nogil:
        """Join the datagram in `slot` to the message before it, where the kernel can part them."""
        cdef size_t length = self._vectors[slot].iov_len
        cdef Py_ssize_t place = number * _WINDOW + self._message_count[number] - 1
        cdef msghdr *header
        if self._message_count[number] == 0 or length == 0:
            return False
        header = &self._messages[place].msg_hdr
        if (
            self._vectors[slot - 1].iov_len != length
            or self._destination_of[slot - 1] != self._destination_of[slot]
            or (header.msg_iovlen + 1) * length > _JOINED_BYTES_MAX
        ):
            return False
        if header.msg_iovlen == 1:
            fh_set_segment(header, self._controls + place * FH_CONTROL_BYTES, <uint16_t>length)
        header.msg_iovlen += 1
        return True

    cdef int _flush(self) except -1 nogil:
        """Hand the window to the kernel, socket by socket; sets `_failed_errno` and stops."""
        cdef int number
        cdef int outcome = _RUN_ON
        for number in range(self._socket_count):
            if self._filled[number] and outcome == _RUN_ON:
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
            self._counts[_SYSTEM_CALLS] += 1
            if sent >= 0:
                self._account(first + done, sent)
                done += <unsigned int>sent
                continue
            reason = errno
            if self._join and (reason == EINVAL or reason == EMSGSIZE or reason == EIO):
                # Not on this kernel or interface, or longer than the interface's packets.
                self._join = False
                self._part(number, &self._messages[first + done].msg_hdr)
                done = 0
            elif self._wait_for_room(self._fds[number], reason) == _STOPPED:
                return _STOPPED
        return _RUN_ON

    cdef void _account(self, Py_ssize_t place, int sent) noexcept nogil:
        """Count the datagrams of messages that the kernel has taken."""
        cdef msghdr *header
        cdef size_t i
        for place in range(place, place + sent):
            header = &self._messages[place].msg_hdr
            self._counts[_SENT] += <int64_t>header.msg_iovlen
            self._counts[_BYTES] += <int64_t>(header.msg_iovlen * header.msg_iov[0].iov_len)
            i = header.msg_iov - self._vectors
            self._sent_by[self._destination_of[i]] += <int64_t>header.msg_iovlen

    cdef void _part(self, int number, msghdr *header) noexcept nogil:
        """Make each datagram from this message on a message of its own."""
        cdef Py_ssize_t slot = header.msg_iov - self._vectors
        cdef Py_ssize_t end = number * _WINDOW + self._filled[number]
        self._message_count[number] = 0
        for slot in range(slot, end):
            self._begin_message(number, slot)

    cdef int _wait_for_room(self, int fd, int reason) except -1 nogil:
        """After a refused send: wait where waiting helps, else note the failure and stop."""
        cdef pollfd waiting
        if reason == EAGAIN:
            self._counts[_WOULD_BLOCK] += 1
            waiting.fd = fd
            waiting.events = <short>POLLOUT
            poll(&waiting, 1, <int>(_POLL_NS // 1_000_000))
        elif reason == ENOBUFS:
            self._counts[_NO_BUFFERS] += 1
            fh_sleep_until(fh_monotonic_ns() + _NO_BUFFER_WAIT_NS)
        elif reason != EINTR:
            self._failed_errno = reason
            return _STOPPED
        return self._interrupted(fh_monotonic_ns())
