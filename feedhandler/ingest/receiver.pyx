# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The receive thread: from sockets to the ring, without the GIL and without allocating.

One `Receiver` is one thread that serves a group of lines. In each turn it sleeps in `ppoll` until
a line is readable, a deadline comes or it must stop; reads up to `BATCH` datagrams of each
readable line with one `recvmmsg`; checks each (sender, packet header, service, messages) and gives
it to its channel's arbiter; then publishes the ring once and wakes the consumer if that sleeps.

Two clocks: the kernel's receive stamp (CLOCK_REALTIME) goes with the packet, deadlines run on
CLOCK_MONOTONIC. A deadline only takes effect once every line has been read up to it: a thread that
was not scheduled for a while must not declare a gap whose packets wait in the other line's socket.
That wait ends after `LAG_NS` and `LAG_READS`, so that a line that never runs dry cannot stop the
clock.

Recovery's packets and refusals come from the event loop through a second ring, the inlet, and are
taken between batches: only this thread ever touches the arbiters. With a `tap`, a copy of every
datagram goes to that ring as well, for a recorder; a datagram that finds no room there is counted,
not waited for. Without a feed's table the tap is the only output: nothing is parsed or arbitrated.

When the ring is too full for a batch, lines are not read: the kernel buffers, and what it drops is
counted. An error inside the thread ends it; it is kept in `error` and the consumer is woken.
"""

import os
import threading

import numpy

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport read, write

from feedhandler.codecs.fix_scanning cimport parse_first, parse_further
from feedhandler.codecs.feed_table cimport FeedTable, PacketHeader
from feedhandler.codecs.scanner cimport check_messages, parse_next
from feedhandler.ingest cimport columns
from feedhandler.ingest.arbitration cimport Arbiter
from feedhandler.ingest.known cimport may_be_copy, accept_copy
from feedhandler.ingest.recovered cimport disprove, give_up, recover
from feedhandler.ingest.records cimport (
    CHANNEL_SHIFT, HEADER_BYTES, KIND_MASK, KIND_SHIFT, PACKET, PAD, WITHDRAWN, WORD_AUXILIARY,
    WORD_NEXT_SEQUENCE, WORD_PAYLOAD, WORD_RECEIVED_NS, WORD_RECORD,
)
from feedhandler.ingest.ring cimport Ring
from feedhandler.ingest.system_calls cimport (
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_NXTHDR, MSG_DONTWAIT, MSG_TRUNC, POLLIN, SOL_SOCKET,
    SO_RXQ_OVFL, SO_TIMESTAMPNS, TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, cmsghdr, iovec,
    itimerspec, mmsghdr, msghdr, ntohl, ntohs, pollfd, ppoll, recvmmsg, sockaddr_in,
    timerfd_create, timerfd_settime,
)

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.counters import ChannelCounter, LineCounter, as_dict, counter_array
from feedhandler.ingest.lines import (
    RECEIVE_BUFFER_BYTES, ChannelPlan, Line, open_line, receive_buffer, source_addresses,
)
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.settings import ArbitrationSettings

#: Datagrams per system call.
cdef enum:
    BATCH = 64
    CONTROL_BYTES = 96

#: How long a deadline waits for a line that never runs dry, and how many full batches of it: time
#: that the thread did not run, or waited for room in the ring, says nothing of a line.
cdef unsigned long long LAG_NS = 100_000_000
cdef int LAG_READS = 1024
#: Longest sleep.
cdef unsigned long long SLEEP_NS = 1_000_000_000
#: How long to leave a full ring to its consumer before checking again.
cdef unsigned long long FULL_NS = 200_000

#: Size of the inlet: room for some thousand packets that recovery brings at once.
INLET_BYTES = 1 << 22

#: Upper limits on one thread's sockets, and on its (line, service) pairs.
LINES_MAX = 256
ROUTES_MAX = 4096


cdef inline unsigned long long clock_ns(int which) noexcept nogil:
    cdef timespec now
    clock_gettime(which, &now)
    return <unsigned long long>now.tv_sec * 1_000_000_000 + <unsigned long long>now.tv_nsec


cdef struct Route:
    # Destination of the packets of one service on one socket.
    unsigned int service
    int line
    bint refresh                 # may be compressed: the consumer inflates and checks messages
    void *arbiter


cdef struct Socket:
    int fd
    unsigned int sources[4]      # host byte order; lines.SOURCES_MAX of them at most
    int source_count             # 0: any
    unsigned int drops           # the kernel's counter when last seen
    int first_route
    int route_count
    int beside                   # another line of the first channel; itself where there is none
    unsigned long long dry_ns    # when the socket was last known to be empty
    int full_reads               # full batches read since then, LAG_READS at most


cdef class Receiver:
    """A thread that receives and arbitrates `channels` into `ring`.

    `table` is the feed's compiled description, `first_sequence` the number its day begins with.
    Channel `i` of `channels` has index `first_channel + i` in the ring's records. Several channels
    may name equal `Line`s; they then share one socket, named after the first one, and packets are
    routed by their service id. `cpu` pins the thread. Raises `ConfigError` for faults that the
    operator can correct. `fed` has, for lines that this process feeds itself, a non-blocking
    datagram socket each, which the receiver closes; all others are joined.

    Line counters have a row for each line, and behind them one for each channel with recovery,
    named "<service>/R". `tap` is a ring that gets every datagram (`line` its line's number). With a
    `table` of None there are no channels, and `lines` are received into the tap alone.

    `fileno()` is an eventfd that becomes readable when records wait and the consumer had armed the
    ring (see `ring.py`), or when the thread has died (`error`). Where the consumer had asked to
    rest, a timerfd, the second of `filenos()`, becomes readable instead once that is over.
    """

    cdef readonly Ring ring, inlet, tap
    cdef readonly list arbiters, lines, sockets, channels
    cdef readonly object line_counters, channel_counters, error, settings
    cdef readonly unsigned long long ring_high_bytes, ring_waits, tap_drops
    cdef readonly dict recovered_rows
    cdef object thread, cpu
    cdef dict fed
    cdef int event_fd, timer_fd, stop_fd, inlet_fd, first_channel
    cdef bint stopping
    cdef FeedTable table
    cdef PacketHeader header
    cdef unsigned char[::1] slab
    cdef unsigned char[::1] control
    cdef unsigned long long[::1] counters
    cdef Py_ssize_t stride
    cdef Socket *socks
    cdef pollfd *polled
    cdef Route *routes
    cdef void **arbiter_pointers
    cdef int socket_count, arbiter_count
    cdef mmsghdr *messages
    cdef iovec *vectors
    cdef sockaddr_in *senders

    def __cinit__(self):
        self.event_fd = self.timer_fd = self.stop_fd = self.inlet_fd = -1

    def __init__(
        self, FeedTable table, first_sequence, channels, Ring ring not None, *,
        settings=None, first_channel=0, receive_buffer_bytes=RECEIVE_BUFFER_BYTES, cpu=None,
        Ring tap=None, lines=(), fed=None,
    ):
        self.table = table
        self.ring = ring
        self.inlet = Ring(INLET_BYTES)
        self.tap = tap
        self.fed = dict(fed or {})
        self.first_channel = first_channel
        self.settings = settings or ArbitrationSettings()
        self.channels = list(channels)
        self.header = PacketHeader()
        self.cpu = cpu
        named = (line for plan in self.channels for line in plan.lines)
        self.lines = list(dict.fromkeys(lines if table is None else named))
        self._check_plan()
        recovering = [plan for plan in self.channels if plan.recovery_wait_us]
        self.recovered_rows = {
            f"{plan.service}/R": len(self.lines) + row for row, plan in enumerate(recovering)
        }
        self.line_counters = counter_array(LineCounter, len(self.lines) + len(recovering))
        self.channel_counters = counter_array(ChannelCounter, len(self.channels))
        self.counters = self.line_counters.reshape(-1)
        self.arbiters = [
            Arbiter(
                ring, lines=len(plan.lines), channel=first_channel + index,
                first_sequence=first_sequence, counts_messages=table.counts_messages, table=table,
                settings=self.settings, line_counters=self.line_counters,
                recovery_wait_us=plan.recovery_wait_us, rows=self._rows(plan),
                channel_counters=self.channel_counters[index],
            )
            for index, plan in enumerate(self.channels)
        ]
        self._allocate()
        self.sockets = []
        try:
            for line in self.lines:
                sock = self.fed.get(line)
                self.sockets.append(
                    open_line(line, receive_buffer_bytes) if sock is None else sock)
        except BaseException:
            self.close()
            raise
        self._fill_tables()
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.timer_fd < 0:
            raise OSError(errno, f"timerfd: {os.strerror(errno)}")
        self.stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.inlet_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _rows(self, plan):
        """Return the counter rows of a channel's lines, and recovery's behind them."""
        rows = [self.lines.index(line) for line in plan.lines]
        if plan.recovery_wait_us:
            rows.append(self.recovered_rows[f"{plan.service}/R"])
        return rows

    def _check_plan(self):
        """Raise `ConfigError` where a channel would be unreachable or two be confused."""
        if self.table is None:
            if self.channels or self.tap is None or not self.lines:
                raise ConfigError("a receiver without a table needs lines, a tap and no channels")
        elif not self.channels or not all(plan.lines for plan in self.channels):
            raise ConfigError("a receiver needs channels, and each channel a line")
        if len(self.lines) > LINES_MAX:
            raise ConfigError(f"{len(self.lines)} lines in one group; at most {LINES_MAX}")
        seen = {}
        by_endpoint = {}
        for plan in self.channels:
            for line in plan.lines:
                other = by_endpoint.setdefault((line.group, line.port, line.interface), line)
                if other != line and line not in self.fed:
                    raise ConfigError(
                        f"lines {other.name} and {line.name} are the same group, port and"
                        " interface, with another source", "give both the same source and"
                        " source_filter, or one of them another group or port")
                key = (line, plan.service if self.table.service_size else 0)
                if key in seen:
                    raise ConfigError(
                        f"line {line.name} serves service {plan.service} twice",
                        "a feed without service ids needs a line of its own per channel")
                seen[key] = plan
        if len(seen) > ROUTES_MAX:
            raise ConfigError(f"{len(seen)} services on lines in one group; at most {ROUTES_MAX}")

    def _allocate(self):
        """Allocate the scratch slab and the arrays that the system calls need."""
        # Longer datagrams are cut off there and are marked as truncated.
        self.stride = (self.settings.packet_bytes_max + 63) // 64 * 64
        self.slab = numpy.zeros(BATCH * self.stride, numpy.uint8)
        self.control = numpy.zeros(BATCH * CONTROL_BYTES, numpy.uint8)
        route_count = sum(len(plan.lines) for plan in self.channels)
        self.socks = <Socket *>PyMem_Calloc(len(self.lines), sizeof(Socket))
        self.polled = <pollfd *>PyMem_Calloc(len(self.lines) + 2, sizeof(pollfd))
        self.routes = <Route *>PyMem_Calloc(route_count, sizeof(Route))
        self.arbiter_pointers = <void **>PyMem_Calloc(len(self.arbiters), sizeof(void *))
        self.messages = <mmsghdr *>PyMem_Calloc(BATCH, sizeof(mmsghdr))
        self.vectors = <iovec *>PyMem_Calloc(BATCH, sizeof(iovec))
        self.senders = <sockaddr_in *>PyMem_Calloc(BATCH, sizeof(sockaddr_in))
        if not (self.socks and self.polled and self.routes and self.arbiter_pointers
                and self.messages and self.vectors and self.senders):
            raise MemoryError("receiver's tables")

    def _fill_tables(self):
        """Fill the tables of sockets, routes and message headers."""
        cdef int slot = 0, index
        for index, (line, sock) in enumerate(zip(self.lines, self.sockets)):
            self.socks[index].fd = sock.fileno()
            for number, source in enumerate(source_addresses(line)):
                self.socks[index].sources[<int>number] = source
                self.socks[index].source_count = number + 1
            self.socks[index].first_route = slot
            for arbiter, plan in zip(self.arbiters, self.channels):
                if line in plan.lines:
                    self.routes[slot].service = plan.service
                    self.routes[slot].line = plan.lines.index(line)
                    self.routes[slot].refresh = plan.refresh
                    self.routes[slot].arbiter = <void *>arbiter
                    slot += 1
            self.socks[index].route_count = slot - self.socks[index].first_route
            plan = next((plan for plan in self.channels if line in plan.lines), ChannelPlan(0))
            others = [self.lines.index(other) for other in plan.lines if other != line]
            self.socks[index].beside = others[0] if others else index
            self.polled[index].fd = sock.fileno()
            self.polled[index].events = POLLIN
        self.socket_count = len(self.lines)
        self.arbiter_count = len(self.arbiters)
        for index, arbiter in enumerate(self.arbiters):
            self.arbiter_pointers[index] = <void *>arbiter
        for index in range(BATCH):
            self.vectors[index].iov_base = &self.slab[index * self.stride]
            self.vectors[index].iov_len = self.settings.packet_bytes_max
            self.messages[index].msg_hdr.msg_iov = &self.vectors[index]
            self.messages[index].msg_hdr.msg_iovlen = 1
            self._rearm(index)

    def __dealloc__(self):
        PyMem_Free(self.socks)
        PyMem_Free(self.polled)
        PyMem_Free(self.routes)
        PyMem_Free(self.arbiter_pointers)
        PyMem_Free(self.messages)
        PyMem_Free(self.vectors)
        PyMem_Free(self.senders)

    # -- methods for the consumer ------------------------------------------------------------

    def fileno(self):
        """Return the eventfd of the hand-over."""
        return self.event_fd

    def filenos(self):
        """Return the eventfd of the hand-over, and the timerfd for a consumer that rests."""
        return self.event_fd, self.timer_fd

    def start(self):
        """Start the thread, once; silence and start waits count from now.

        Raises `UsageError` the second time.
        """
        if self.thread is not None or self.stop_fd < 0:
            raise UsageError("a receiver starts once")
        self.thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self.thread.start()

    def stop(self):
        """Stop the thread, after it published what it had written, and close the sockets."""
        self.stopping = True
        if self.thread is not None and self.thread.is_alive():
            os.eventfd_write(self.stop_fd, 1)
            self.thread.join()
        self.close()

    def close(self):
        """Close the sockets and eventfds of a receiver that does not run."""
        for sock in self.sockets:
            sock.close()
        for fd in (self.event_fd, self.timer_fd, self.stop_fd, self.inlet_fd):
            if fd >= 0:
                os.close(fd)
        self.event_fd = self.timer_fd = self.stop_fd = self.inlet_fd = -1

    def fill(self, int channel, bytes data, unsigned long long epoch,
             unsigned long long received_ns):
        """Give a channel packets that were missing; return False when the inlet is full.

        The event loop calls it. `channel` is the index in the ring's records; `epoch` the one that
        the gap was reported with; `received_ns`: when they came (CLOCK_REALTIME).
        """
        return self._into_inlet(self.inlet.write_packet(
            channel, 0, 0, 0, 0, 0, received_ns, 0, 0, 0, epoch, data, 0, len(data)))

    def give_up(self, int channel, unsigned long long until, unsigned long long epoch):
        """Have what is missing below `until` announced; return False when the inlet is full."""
        return self._into_inlet(
            self.inlet.write_control_event(RecordKind.GAP, channel, 0, 0, until, 0, 0, epoch))

    def disprove(self, int channel, unsigned long long number, unsigned long long epoch):
        """Report that `number` was not sent yet; return False when the inlet is full."""
        return self._into_inlet(
            self.inlet.write_control_event(RecordKind.WITHDRAWN, channel, 0, 0, number, 0, 0, epoch))

    def _into_inlet(self, written):
        if self.inlet.publish() and self.inlet_fd >= 0:
            os.eventfd_write(self.inlet_fd, 1)
        return bool(written)

    def wake(self):
        """Wake the consumer as if something had just been published.

        For a consumer that found more when it armed the ring.
        """
        self._wake()

    @property
    def running(self):
        """Whether the thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def receive_buffers(self):
        """Return the kernel's receive buffer of each joined line, in bytes, by line name."""
        return {line.name: receive_buffer(sock)
                for line, sock in zip(self.lines, self.sockets) if line not in self.fed}

    def snapshot(self):
        """Return all counters by name.

        {"lines": {name: {...}}, "channels": {service: {...}}, "ring_high_bytes", "ring_waits"}.
        """
        return {
            "lines": {line.name: as_dict(LineCounter, row)
                      for line, row in zip(self.lines, self.line_counters)},
            "channels": {plan.service: as_dict(ChannelCounter, row)
                         for plan, row in zip(self.channels, self.channel_counters)},
            "ring_high_bytes": self.ring_high_bytes,
            "ring_waits": self.ring_waits,
        }

    def _run(self):
        """Run the thread. An exception is kept in `error`, and the consumer is woken."""
        try:
            if self.cpu is not None:
                os.sched_setaffinity(threading.get_native_id(), {self.cpu})
            with nogil:
                self._loop()
        except BaseException as error:  # a thread has no caller to raise to
            self.error = error
            os.eventfd_write(self.event_fd, 1)

    # -- the loop ----------------------------------------------------------------------------

    cdef int _loop(self) except -1 nogil:
        """Receive until `stopping` is set."""
        cdef unsigned long long now = clock_ns(CLOCK_MONOTONIC)
        cdef int index
        self.polled[self.socket_count].fd = self.stop_fd
        self.polled[self.socket_count].events = POLLIN
        self.polled[self.socket_count + 1].fd = self.inlet_fd
        self.polled[self.socket_count + 1].events = POLLIN
        for index in range(self.arbiter_count):
            (<Arbiter>self.arbiter_pointers[index]).start(now)
        while not self.stopping:
            if self.table is not None and (
                self.ring.room() < <unsigned long long>(BATCH * (self.stride + 128)) * 2
            ):
                self._leave_to_consumer()
            elif self._turn() < 0:
                break
            self._tick()
            self._hand_over()
        self._hand_over()
        return 0

    cdef int _turn(self) except -1 nogil:
        """Sleep, then read one batch of each readable line, and of the lines beside it.

        The other line's copy of a packet comes a few microseconds after the first: that line is
        read before sleeping again, because a sleep costs more than a read that finds nothing.
        """
        cdef unsigned long long before = clock_ns(CLOCK_MONOTONIC)
        cdef int index, got
        cdef bint any_read = False
        self._sleep(before, 0, self.socket_count + 2)
        for index in range(self.socket_count):
            if self.polled[index].revents == 0:
                self._note_dry(index, before)
                continue
            any_read = True
            before = clock_ns(CLOCK_MONOTONIC)
            got = self._read(index, before)
            if got < BATCH:
                self._note_dry(index, before)
            elif self.socks[index].full_reads < LAG_READS:
                self.socks[index].full_reads += 1
        if any_read:
            self._hand_over()
            self._read_beside()
        if self.polled[self.socket_count + 1].revents:
            self._read_inlet()
        return 0

    cdef int _read_inlet(self) except -1 nogil:
        """Handle what the event loop has put into the inlet, until it is empty."""
        cdef unsigned long long now = clock_ns(CLOCK_MONOTONIC)
        cdef unsigned long long position, first
        cdef unsigned long long wakeups
        read(self.inlet_fd, &wakeups, 8)
        while True:
            position = self.inlet.tail_bytes
            while position < self.inlet.readable():
                if self.ring.room() < <unsigned long long>(self.stride + 128) * 2:
                    self._leave_to_consumer()
                first = self.inlet.words[((position & self.inlet.mask) >> 3) + WORD_RECORD]
                if (first >> KIND_SHIFT) & KIND_MASK != PAD:
                    self._route_inlet_record(position & self.inlet.mask, now)
                position += first & <unsigned long long>0xFFFF_FFFF
                self.inlet.release(position)
                if self.stopping:
                    return 0
            if self.inlet.arm():
                return 0

    cdef int _route_inlet_record(self, Py_ssize_t offset, unsigned long long now) except -1 nogil:
        """Pass one record of the inlet to its channel; a bad packet is counted by reason."""
        cdef Py_ssize_t word = offset >> 3
        cdef unsigned long long first = self.inlet.words[word + WORD_RECORD]
        cdef unsigned long long epoch = self.inlet.words[word + WORD_AUXILIARY]
        cdef int slot = <int>(first >> CHANNEL_SHIFT) - self.first_channel
        cdef Py_ssize_t start = offset + HEADER_BYTES
        cdef Py_ssize_t size = <Py_ssize_t>(self.inlet.words[word + WORD_PAYLOAD] & <unsigned long long>0xFFFF_FFFF)
        cdef Py_ssize_t end = start + size
        cdef Py_ssize_t length
        cdef int reject
        if slot < 0 or slot >= self.arbiter_count:
            return 0
        if (first >> KIND_SHIFT) & KIND_MASK == WITHDRAWN:
            disprove(<Arbiter>self.arbiter_pointers[slot], self.inlet.words[word + WORD_NEXT_SEQUENCE], now, epoch)
            return 0
        if (first >> KIND_SHIFT) & KIND_MASK != PACKET:
            give_up(<Arbiter>self.arbiter_pointers[slot], self.inlet.words[word + WORD_NEXT_SEQUENCE], now, epoch)
            return 0
        while start < end:
            reject = parse_next(self.table, self.inlet.data, start, end - start, self.header)
            if reject == 0:
                reject = check_messages(self.table, self.inlet.data, start, self.header)
            if reject:
                (<Arbiter>self.arbiter_pointers[slot]).out.count_line(
                    (<Arbiter>self.arbiter_pointers[slot]).line_count,
                    columns.LINE_TRUNCATED + reject - 1)
                return 0
            length = self.header.length
            recover(<Arbiter>self.arbiter_pointers[slot], self.header, self.inlet.data, start,
                    self.inlet.words[word + WORD_RECEIVED_NS], now, epoch)
            start += length
        return 0

    cdef int _read_beside(self) except -1 nogil:
        """Read lines that were not readable, where the line beside them was."""
        cdef int index
        cdef unsigned long long now
        for index in range(self.socket_count):
            if self.polled[index].revents == 0 and self.polled[self.socks[index].beside].revents:
                now = clock_ns(CLOCK_MONOTONIC)
                if self._read(index, now) < BATCH:
                    self._note_dry(index, now)
        return 0

    cdef void _note_dry(self, int index, unsigned long long now) noexcept nogil:
        """Note that nothing was left of a line at that time."""
        self.socks[index].dry_ns = now
        self.socks[index].full_reads = 0

    cdef int _sleep(self, unsigned long long now, int first, int end) except -1 nogil:
        """Wait in ppoll over polled[first:end], no longer than to the next deadline.

        With `first` above 0 it waits `FULL_NS`. Raises `OSError`.
        """
        cdef unsigned long long wait = SLEEP_NS
        cdef unsigned long long deadline
        cdef timespec timeout
        cdef int index
        for index in range(self.arbiter_count):
            deadline = (<Arbiter>self.arbiter_pointers[index]).next_deadline()
            if deadline <= now:
                wait = 0
            elif deadline - now < wait:
                wait = deadline - now
        if first > 0:
            wait = FULL_NS
        timeout.tv_sec = wait // 1_000_000_000
        timeout.tv_nsec = wait % 1_000_000_000
        if ppoll(&self.polled[first], end - first, &timeout, NULL) < 0:
            for index in range(first, end):
                self.polled[index].revents = 0
            if errno != EINTR:
                with gil:
                    raise OSError(errno, os.strerror(errno))
        return 0

    cdef int _leave_to_consumer(self) except -1 nogil:
        """Publish what is in the ring and wait a moment, because it is too full to read into."""
        self.ring_waits += 1
        self._hand_over()
        return self._sleep(clock_ns(CLOCK_MONOTONIC), self.socket_count, self.socket_count + 1)

    cdef int _tick(self) except -1 nogil:
        """Handle the deadlines that every line has been read up to."""
        cdef unsigned long long now = clock_ns(CLOCK_MONOTONIC)
        cdef unsigned long long read_up_to = now
        cdef unsigned long long dry_ns
        cdef int index
        for index in range(self.socket_count):
            dry_ns = self.socks[index].dry_ns
            if dry_ns + LAG_NS < now and self.socks[index].full_reads == LAG_READS:
                dry_ns = now - LAG_NS
            if dry_ns < read_up_to:
                read_up_to = dry_ns
        for index in range(self.arbiter_count):
            (<Arbiter>self.arbiter_pointers[index]).note_read(read_up_to)
            if (<Arbiter>self.arbiter_pointers[index]).next_deadline() <= read_up_to:
                (<Arbiter>self.arbiter_pointers[index]).tick(read_up_to)
        return 0

    cdef int _hand_over(self) except -1 nogil:
        """Publish what was written; wake the consumer if it sleeps."""
        cdef unsigned long long filled
        if self.ring.head == self.ring.readable():
            return 0
        filled = self.ring.capacity - self.ring.room()
        if filled > self.ring_high_bytes:
            self.ring_high_bytes = filled
        if self.ring.publish():
            self._wake()
        return 0

    cdef int _wake(self) except -1 nogil:
        """Wake the consumer: now, or when it has rested as long as it wished."""
        cdef unsigned long long one = 1
        cdef unsigned long long until = self.ring.rest_until_ns
        cdef itimerspec when
        if until > clock_ns(CLOCK_MONOTONIC):
            memset(&when, 0, sizeof(when))
            when.it_value.tv_sec = until // 1_000_000_000
            when.it_value.tv_nsec = until % 1_000_000_000
            if timerfd_settime(self.timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0:
                return 0
        # This can only fail when the counter is at its maximum; then the consumer is awake.
        write(self.event_fd, &one, 8)
        return 0

    # -- datagrams ---------------------------------------------------------------------------

    cdef int _read(self, int index, unsigned long long now) except -1 nogil:
        """Read one batch of a line and arbitrate it; return how many datagrams came.

        Raises `OSError`.
        """
        cdef Socket *sock = &self.socks[index]
        cdef Py_ssize_t row = index * columns.LINE_COLUMNS
        cdef unsigned long long stamp
        cdef int slot
        cdef int got = recvmmsg(sock.fd, self.messages, BATCH, MSG_DONTWAIT, NULL)
        if got < 0:
            if errno == EAGAIN or errno == EINTR:
                return 0
            with gil:
                raise OSError(errno, f"line {self.lines[index].name}: {os.strerror(errno)}")
        self.counters[row + columns.LINE_PACKETS] += got
        for slot in range(got):
            self.counters[row + columns.LINE_BYTES] += self.messages[slot].msg_len
            stamp = self._stamp(sock, row, &self.messages[slot].msg_hdr)
            if self.tap is not None:
                self._tap(index, slot, stamp)
            if self.table is None:
                if self.messages[slot].msg_hdr.msg_flags & MSG_TRUNC:
                    self.counters[row + columns.LINE_OVERSIZE] += 1
            elif sock.source_count and not self._is_ours(sock, slot):
                self.counters[row + columns.LINE_FOREIGN_SOURCE] += 1
            elif self.messages[slot].msg_hdr.msg_flags & MSG_TRUNC:
                self.counters[row + columns.LINE_OVERSIZE] += 1
            else:
                self._route_datagram(
                    sock, row, slot * self.stride, self.messages[slot].msg_len, stamp, now)
            self._rearm(slot)
        if self.tap is not None:
            self.tap.publish()
        return got

    cdef bint _is_ours(self, Socket *sock, int slot) noexcept nogil:
        """Return whether the datagram comes from one of the line's senders."""
        cdef unsigned int sender = ntohl(self.senders[slot].sin_addr.s_addr)
        cdef int index
        for index in range(sock.source_count):
            if sender == sock.sources[index]:
                return True
        return False

    cdef int _tap(self, int index, int slot, unsigned long long stamp) except -1 nogil:
        """Copy a datagram for the recorder, its sender in the session word, or count it."""
        cdef Py_ssize_t size = self.messages[slot].msg_len
        cdef unsigned long long sender = ntohl(self.senders[slot].sin_addr.s_addr)
        sender = sender << 16 | ntohs(self.senders[slot].sin_port)
        if self.messages[slot].msg_hdr.msg_namelen == 0:
            sender = 0  # fed: there is no sender, and the field holds an earlier datagram's
        if not self.tap.write_packet(
            0, index, 0, 0, 0, 0, stamp, sender, 0, 0, 0, self.slab, slot * self.stride, size
        ):
            self.tap_drops += 1
        return 0

    cdef int _rearm(self, int slot) noexcept nogil:
        """Reset a message header's buffers, because the kernel has overwritten their sizes."""
        cdef msghdr *message = &self.messages[slot].msg_hdr
        message.msg_name = &self.senders[slot]
        message.msg_namelen = sizeof(sockaddr_in)
        message.msg_control = <unsigned char *>&self.control[slot * CONTROL_BYTES]
        message.msg_controllen = CONTROL_BYTES
        return 0

    cdef unsigned long long _stamp(
        self, Socket *sock, Py_ssize_t row, msghdr *message
    ) except? 6148914691236517205 nogil:
        """Return the kernel's receive stamp, ns since 1970; count its drops in passing."""
        cdef unsigned long long stamp = 0
        cdef unsigned int drops
        cdef timespec *when
        cdef cmsghdr *control = CMSG_FIRSTHDR(message)
        while control != NULL:
            if control.cmsg_level == SOL_SOCKET:
                if control.cmsg_type == SO_TIMESTAMPNS:
                    when = <timespec *>CMSG_DATA(control)
                    stamp = (<unsigned long long>when.tv_sec * 1_000_000_000
                             + <unsigned long long>when.tv_nsec)
                elif control.cmsg_type == SO_RXQ_OVFL:
                    drops = (<unsigned int *>CMSG_DATA(control))[0]
                    self.counters[row + columns.LINE_KERNEL_DROPS] += <unsigned int>(
                        drops - sock.drops)
                    sock.drops = drops
            control = CMSG_NXTHDR(message, control)
        return stamp if stamp else clock_ns(CLOCK_REALTIME)

    cdef int _route_datagram(
        self, Socket *sock, Py_ssize_t row, Py_ssize_t start, Py_ssize_t size,
        unsigned long long stamp, unsigned long long now,
    ) except -1 nogil:
        """Pass the packets of one datagram to their channels; a bad one is counted by reason."""
        cdef Py_ssize_t end = start + size
        cdef Py_ssize_t length
        cdef int reject
        if self.table.fix:
            return self._route_runs(sock, row, start, size, stamp, now)
        while True:
            reject = parse_next(self.table, self.slab, start, end - start, self.header)
            if reject:
                self.counters[row + columns.LINE_TRUNCATED + reject - 1] += 1
                return 0
            length = self.header.length  # a packet that is trimmed has another length then
            self._route_packet(sock, row, start, stamp, now)
            start += length
            if start >= end:
                return 0

    cdef int _route_packet(
        self, Socket *sock, Py_ssize_t row, Py_ssize_t start,
        unsigned long long stamp, unsigned long long now,
    ) except -1 nogil:
        """Check one packet, whose header was read, and pass it to its channel."""
        cdef Route *route
        cdef int index, reject
        for index in range(sock.route_count):
            route = &self.routes[sock.first_route + index]
            if route.service == self.header.service or self.table.service_size == 0:
                break
        else:
            self.counters[row + columns.LINE_UNCONFIGURED_SERVICE] += 1
            return 0
        if not self.table.known_flags[self.header.flags & 0xFF]:
            self.counters[row + columns.LINE_UNKNOWN_FLAGS] += 1
        # A malformed packet must not win over the other line's good copy; copies need no check.
        if not route.refresh and not (<Arbiter>route.arbiter).is_old(self.header, now):
            reject = check_messages(self.table, self.slab, start, self.header)
            if reject:
                self.counters[row + columns.LINE_TRUNCATED + reject - 1] += 1
                return 0
            self.counters[row + columns.LINE_UNKNOWN_TYPES] += self.header.unknown
            self.counters[row + columns.LINE_SHORT_MESSAGES] += self.header.short
        (<Arbiter>route.arbiter).receive(
            route.line, self.header, self.slab, start, stamp, now)
        return 0

    cdef int _route_runs(
        self, Socket *sock, Py_ssize_t row, Py_ssize_t start, Py_ssize_t size,
        unsigned long long stamp, unsigned long long now,
    ) except -1 nogil:
        """Pass each run of a FIX datagram to the line's channel, up to the first bad one."""
        cdef Route *route = &self.routes[sock.first_route]
        cdef Py_ssize_t end = start + size
        cdef Py_ssize_t length
        cdef int reject
        while start < end or size == 0:
            reject = parse_first(self.table, self.slab, start, end - start, self.header)
            if reject == 0 and may_be_copy(<Arbiter>route.arbiter, self.header, now):
                if accept_copy(
                    <Arbiter>route.arbiter, route.line, self.header, self.slab, start,
                    end - start, stamp, now,
                ):
                    return 0
            if reject == 0:
                reject = parse_further(self.table, self.slab, start, end - start, self.header)
            if reject:
                self.counters[row + columns.LINE_TRUNCATED + reject - 1] += 1
                return 0
            # A packet that is trimmed has another length then.
            length = self.header.length
            if not (<Arbiter>route.arbiter).is_old(self.header, now):
                self.counters[row + columns.LINE_UNKNOWN_TYPES] += self.header.unknown
            (<Arbiter>route.arbiter).receive(
                route.line, self.header, self.slab, start, stamp, now)
            start += length
        return 0
