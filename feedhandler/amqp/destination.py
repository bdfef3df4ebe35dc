"""One broker's side of the fan-out: its bounded queue, its window, its numbering.

What it is for: to the fan-out a `Destination` is one more link: routing, thinning, grains and
quality messages are the same. Behind it is no subscriber's credit alone but a broker that has to
confirm: what is sent stays in the `Window` until it has.

What it promises: messages of a service leave in order; what waits and what is unconfirmed never
exceed `queue_bytes` together; nothing here waits for the broker. When the bound is reached the
oldest of what waits gives way (`drop_oldest`), and the `Shortfall` of its service tells the
destination so before any later data.

What it adds to a message: a group-sequence that counts per routing key. A hole in it is a loss on
the way to the broker. Numbers of quality messages are given as they are sent.

When a batch is sent: as soon as nothing more waits for the fan-out, when it is full, or when
`flush_batches` is called because it has gathered for long enough; without room in the window it
grows until it is full.

What it leaves to others: what goes around a message (`envelope`); sockets, connecting, time
(`publisher`).
"""

from collections import deque
from collections.abc import Callable

import cython
import msgspec

if cython.compiled:
    from cython.cimports.feedhandler.amqp.envelope import Envelope
    from cython.cimports.feedhandler.amqp.framing import Frame, Template, read_uint
    from cython.cimports.feedhandler.amqp.outlet import Batch, Outlet, Peer
    from cython.cimports.feedhandler.amqp.proton import PublisherLink
    from cython.cimports.feedhandler.amqp.stream import Stream
    from cython.cimports.feedhandler.amqp.window import Parcel, Window
else:
    from feedhandler.amqp.envelope import Envelope
    from feedhandler.amqp.framing import Frame, Template, read_uint
    from feedhandler.amqp.outlet import Batch, Outlet, Peer
    from feedhandler.amqp.proton import PublisherLink
    from feedhandler.amqp.stream import Stream
    from feedhandler.amqp.window import Parcel, Window

from feedhandler.amqp.framing import QUALITY_NOTE
from feedhandler.amqp.outlet import PACKET_BYTES_MAX, QUEUE_ENTRY_BYTES, SECTIONS_BYTES_MAX
from feedhandler.amqp.shortfall import Shortfall
from feedhandler.amqp.stopwatch import Stopwatch

#: Routing keys whose group-sequence is remembered; past it all begin again at 0.
KEYS_MAX = 1_000_000
_KEYS_MAX = cython.declare(cython.Py_ssize_t, KEYS_MAX)
_NOTE = cython.declare(cython.uint, QUALITY_NOTE)
_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, QUEUE_ENTRY_BYTES)
_BLOCK_BIT = cython.declare(cython.ulonglong, 1 << 63)


@cython.cclass
class Destination(Outlet):
    """A broker that receives what `subscription` asks for.

    `streams`: the fan-out's, in its order. `retry_ns`: see `Window`. `clock`: nanoseconds that do
    not go back. `on_batch` is called when batches stay open at the end of a hand-over because more
    waits for the fan-out; None: none does.

    `behind_time` and `full_time` say for how long messages waited, and were dropped.
    """

    def __init__(
        self,
        peer: Peer,
        subscription: object,
        streams: list,
        messages_max: int,
        queue_bytes_max: int,
        batch_bytes_max: int,
        retry_ns: Callable[[int], int],
        clock: Callable[[], int],
        on_batch: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(peer, PublisherLink(), subscription, queue_bytes_max, batch_bytes_max)
        self.link = self.sender
        self.streams = streams
        self.by_service = {stream.service: stream for stream in streams}
        self.shortfalls = {stream.service: Shortfall() for stream in streams}
        self.window = Window(messages_max, queue_bytes_max, retry_ns)
        self.envelope = Envelope()
        self.clock = clock
        self.behind_time = Stopwatch()
        self.full_time = Stopwatch()
        self.queue = deque()
        self.numbers = {}
        self.note = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.untold = False
        self.following = 0
        self.on_batch = on_batch
        self.dropped = self.dropped_bytes = self.abandoned = self.overflows = 0
        self.overflowing = False

    def connect(self, link: PublisherLink, envelope: Envelope) -> None:
        """Send on this link from now on, in such an envelope; what was unconfirmed goes first."""
        self.link = link
        self.envelope = envelope
        self.sender = link
        link.wants_flow = self.behind

    def disconnect(self) -> int:
        """The link is gone; how many messages are to be sent again."""
        self.connect(PublisherLink(), self.envelope)
        count = self.window.lost()
        self._note_backlog()
        return count

    # -- what the fan-out brings ------------------------------------------------------------

    @cython.ccall
    def deliver(self, frame: Frame) -> cython.int:
        """Send the finished message, or queue it behind what waits."""
        template: Template = frame.template
        at: cython.Py_ssize_t = template.tag_at
        service: cython.uint = cython.cast(cython.uint, read_uint(frame.data, at + 6, 2))
        sequence: cython.ulonglong = read_uint(frame.data, at + 8, 8)
        stream: Stream = self.by_service[service]
        parcel: Parcel
        following: cython.ulonglong
        if read_uint(frame.data, at + 16, 2) == _NOTE:
            body = frame.snapshot()[frame.body_at :]
            reason = msgspec.json.decode(body)["reason"]
            parcel = Parcel(body, service, sequence, sequence, False, reason, template.key)
        else:
            frame.number(cython.cast(cython.uint, self._number(template.key)))
            following = self.following
            if following == 0:
                following = stream.next_sequence
            block: cython.bint = sequence >= _BLOCK_BIT
            parcel = Parcel(frame.snapshot(), service, sequence, following, block, "", template.key)
        shortfall = self.shortfalls[service]
        if shortfall.skipping and shortfall.skips(parcel.block, parcel.reason, parcel.data):
            self._count_drop(parcel)
        elif self._may_send() and self.window.room(len(parcel.data)):
            self._send(parcel)
        else:
            self._wait(parcel)
        return 0

    @cython.cfunc
    def _number(self, key: str) -> cython.longlong:
        """The next group-sequence of a routing key."""
        number: cython.longlong = self.numbers.get(key, 0)
        if len(self.numbers) >= _KEYS_MAX and number == 0:
            self.numbers.clear()
        self.numbers[key] = (number + 1) & 0xFFFF_FFFF
        return number

    @cython.cfunc
    def _may_send(self) -> cython.bint:
        """Whether nothing is to go before a new message, and the link takes one."""
        return not self.queue and not self.untold and not self.window.again and self.link.ready()

    @cython.cfunc
    def _send(self, parcel: Parcel) -> cython.int:
        """Send a message first; the caller has asked for room and readiness."""
        if parcel.reason:
            parcel = self._finished(parcel)
        return self._send_now(parcel)

    @cython.cfunc
    def _send_now(self, parcel: Parcel) -> cython.int:
        """Send a finished message."""
        number: cython.ulonglong = self.window.add(parcel, self.clock())
        self.envelope.send(self.link, number, parcel.key, parcel.data)
        self.sent += 1
        self.sent_bytes += len(parcel.data)
        self.peer.touch()
        return 0

    def _finished(self, parcel: Parcel) -> Parcel:
        """A quality message as the destination must hear it, encoded."""
        body = self.shortfalls[parcel.service].outgoing(parcel.data)
        return self._note(parcel.service, parcel.sequence, parcel.reason, body)

    def _note(self, service: int, sequence: int, reason: str, body: bytes) -> Parcel:
        stream: Stream = self.by_service[service]
        template: Template = stream.quality_template
        self.note.begin(template, sequence, _NOTE, 0)
        self.note.append(body, 0, len(body))
        self.note.finish(cython.cast(cython.uint, self._number(template.key)))
        data = self.note.snapshot()
        return Parcel(data, service, sequence, sequence, False, reason, template.key)

    # -- what waits -------------------------------------------------------------------------

    @cython.cfunc
    def _wait(self, parcel: Parcel) -> cython.int:
        """Let a message wait; at the bound the oldest give way."""
        self.waited += 1
        self.queue.append(parcel)
        self.queued_bytes += len(parcel.data) + _ENTRY_BYTES
        while self.queue and self.queued_bytes + self.window.bytes > self.queue_bytes_max:
            self._drop_oldest()
        if self.queued_bytes > self.queued_bytes_high:
            self.queued_bytes_high = self.queued_bytes
        self._note_backlog()
        return 0

    @cython.cfunc
    def _pop(self) -> Parcel:
        parcel: Parcel = self.queue.popleft()
        self.queued_bytes -= len(parcel.data) + _ENTRY_BYTES
        return parcel

    def _drop_oldest(self) -> None:
        """Drop what has waited longest; of a snapshot block everything that is there of it."""
        if not self.overflowing:
            self._overflow(True)
            self.overflows += 1
        parcel: Parcel = self._pop()
        self._lose(parcel)
        shortfall = self.shortfalls[parcel.service]
        while self.queue and shortfall.skipping:
            following: Parcel = self.queue[0]
            if following.service != parcel.service or not shortfall.skips(
                following.block, following.reason, following.data
            ):
                return
            self._count_drop(self._pop())

    def _overflow(self, full: bool) -> None:
        """The queue is full from now on, or empty."""
        self.overflowing = full
        self.full_time.set(full, self.clock())

    def _lose(self, parcel: Parcel) -> None:
        """The destination will not get this message, and must be told."""
        self.shortfalls[parcel.service].drop(parcel)
        self._count_drop(parcel)

    def _count_drop(self, parcel: Parcel) -> None:
        self.dropped += 1
        self.dropped_bytes += len(parcel.data)
        self.untold = True

    @cython.cfunc
    def _note_backlog(self) -> cython.int:
        """Tell connection and link whether anything waits for credit, room or confirmation."""
        behind: cython.bint = (
            len(self.queue) > 0
            or self.untold
            or len(self.window.again) > 0
            or (len(self.open_batches) > 0 and not self.more)
        )
        self.link.wants_flow = behind
        if behind != self.behind:
            self.behind = behind
            self.behind_time.set(behind, self.clock())
            self.peer.backlog += 1 if behind else -1
        return 0

    @cython.ccall
    def drain(self) -> cython.int:
        """Send what waits, as far as window, credit and the engine allow."""
        parcel: Parcel
        number: cython.ulonglong
        while self.window.again and self.link.ready():
            number = self.window.next_again()
            parcel = self.window.held.get(number)
            if parcel is not None:
                self.envelope.send(self.link, number, parcel.key, parcel.data)
                self.peer.touch()
        if not self.window.again and self.untold:
            self._tell()
        while self.queue and not self.untold and not self.window.again and self.link.ready():
            parcel = self.queue[0]
            if not self.window.room(len(parcel.data)):
                break
            self._send(self._pop())
        if not self.queue:
            if self.overflowing:
                self._overflow(False)
            self.settle_batches()
        self._note_backlog()
        return 0

    def _tell(self) -> None:
        """Tell the destination what it lacks, before anything later."""
        for service, shortfall in self.shortfalls.items():
            if not shortfall.untold:
                continue
            stream: Stream = self.by_service[service]
            if stream not in self.concerned:
                shortfall.notices()
                continue
            if not self.link.ready() or not self.window.room(SECTIONS_BYTES_MAX):
                return
            for reason, body in shortfall.notices():
                parcel: Parcel = self._note(service, stream.next_sequence, reason, body)
                self._send_now(parcel)
        self.untold = False

    @property
    def concerned(self) -> list:
        """The streams whose quality messages this destination gets."""
        return [stream for stream in self.streams if self in stream.concerned]

    # -- what the broker says ---------------------------------------------------------------

    @cython.ccall
    def settle(self) -> cython.int:
        """Forget what the broker has confirmed since the last call."""
        number: cython.ulonglong
        now_ns: cython.longlong
        if self.link.confirmed:
            now_ns = self.clock()
            for number in self.link.confirmed:
                self.window.confirm(number, now_ns)
            self.link.confirmed.clear()
        return 0

    def abandon(self, parcel: Parcel) -> None:
        """A message was refused for good: the destination is told like of one that was dropped."""
        self.abandoned += 1
        self.shortfalls[parcel.service].refuse(parcel)
        self.untold = True
        self._note_backlog()

    # -- batches ----------------------------------------------------------------------------

    @cython.ccall
    def batch(
        self,
        stream: cython.int,
        template: Template,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Add a packet to the batch of its service, and remember which number follows it."""
        source: Stream = self.streams[stream]
        batch: Batch
        Outlet.batch(self, stream, template, sequence, received_ns, data, start, size)
        batch = self.batches[stream]
        batch.following = source.next_sequence
        return 0

    @cython.cfunc
    def _close(self, batch: Batch) -> cython.int:
        """Finish an open batch and hand it on."""
        self.following = batch.following
        Outlet._close(self, batch)
        self.following = 0
        return 0

    @cython.ccall
    def settle_batches(self) -> cython.int:
        """At the end of a hand-over: send what was gathered, unless more is to come at once.

        Without room it stays open and grows, up to its limit: as many packets as wait.
        """
        if not self.more or self.on_batch is None:
            return self.flush_batches()
        if self.open_batches:
            self.on_batch()
        return 0

    @cython.ccall
    def flush_batches(self) -> cython.int:
        """Send what was gathered; what finds no room stays open, and grows."""
        while self.open_batches and self._may_send():
            self._close(self.open_batches[0])
        self._note_backlog()
        return 0
