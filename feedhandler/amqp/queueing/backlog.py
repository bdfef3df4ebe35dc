"""The queue of a link or a broker that is behind, and its policy when it is full.

What it is for: a `SenderQueue` by itself gives its link up when its queue is full. A `Backlog` is a
sender queue whose queue has a policy instead (`policies`): the oldest messages are dropped, and the
`LossTracker` of their service announces that before any later data. A `Destination` is a backlog
with a broker behind it, a `BackloggedLink` one with a subscriber.

What it promises: messages of a service leave in order; what is held never exceeds
`queue_bytes_max`; nothing here waits; no drop goes unannounced where quality messages are taken. An
eighth of the bound is dropped at a time, so that a slow receiver does not get a notice for each
message; but few enough messages that the feed is not delayed.

What it leaves to others: sending and numbering (the subclasses implement them).
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import cython
import msgspec
from cython.cimports.feedhandler.amqp.fanout import Fanout
from cython.cimports.feedhandler.amqp.framing import Frame, Template, read_uint
from cython.cimports.feedhandler.amqp.proton import SenderLink
from cython.cimports.feedhandler.amqp.queueing.conflation import Conflation, Waiting
from cython.cimports.feedhandler.amqp.queueing.message_splitter import MessageSplitter
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from cython.cimports.feedhandler.amqp.sender_queue import Batch, Peer, SenderQueue
from cython.cimports.feedhandler.amqp.stream import Stream

from feedhandler.amqp.framing import QUALITY_NOTE
from feedhandler.amqp.queueing.loss_tracker import LossTracker
from feedhandler.amqp.queueing.stopwatch import Stopwatch
from feedhandler.amqp.sender_queue import PACKET_BYTES_MAX, QUEUE_ENTRY_BYTES, SECTIONS_BYTES_MAX
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.codecs.visibility import Readonly

if TYPE_CHECKING:
    from feedhandler.amqp.routing import Subscription
    from feedhandler.codecs import Feed

_NOTE = cython.declare(cython.uint, QUALITY_NOTE)
_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, QUEUE_ENTRY_BYTES)
_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)
_BLOCK_BIT = cython.declare(cython.ulonglong, 1 << 63)

#: At an overflow, one part in so many of the queue's bound is dropped at once,
DROP_SHARE = 8
_DROP_SHARE = cython.declare(cython.Py_ssize_t, DROP_SHARE)
#: but no more messages than this beyond what must go: some 0.8 us each, and the feed waits.
DROP_MESSAGES_MAX = 1000


def _never_enough(service: int, symbol: int) -> int:
    """Return a bound on orders that is never reached, for where no books are kept."""
    return 1 << 62


@cython.cclass
class Backlog(SenderQueue):
    """A sender queue whose queue has a policy for overflow.

    `streams`: the fan-out's, in its order. `clock`: monotonic ns. `behind_time` and `full_time`
    accumulate for how long messages waited, and were dropped.

    `unannounced`: a loss is to be announced. `overflowing`: the queue became full and has not
    been empty since. `numbers_late`: messages are numbered as they are sent, so that drops leave no
    gap; else as they come. `given_up`: all that comes is dropped, until the receiver is there
    again.
    """

    streams: Readonly[list]
    by_service: dict
    loss_trackers: Readonly[dict]
    note: Frame
    clock: Readonly[object]
    conflated: Readonly[cython.ulonglong]
    conflated_bytes: Readonly[cython.ulonglong]
    books_sent: Readonly[cython.ulonglong]
    behind_time: Readonly[object]
    full_time: Readonly[object]
    numbers_late: cython.bint
    notices: object
    unannounced: Readonly[cython.bint]
    following: cython.ulonglong
    dropped: Readonly[cython.ulonglong]
    dropped_bytes: Readonly[cython.ulonglong]
    overflows: Readonly[cython.ulonglong]
    overflowing: Readonly[cython.bint]
    given_up: Readonly[cython.bint]
    conflation: Readonly[Conflation]
    splitter: MessageSplitter
    book_cache: object
    fanout: object
    fetching: cython.bint

    def __init__(
        self,
        peer: Peer,
        sender: SenderLink,
        subscription: "Subscription",
        streams: list[Stream],
        queue_bytes_max: int,
        batch_bytes_max: int,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(peer, sender, subscription, queue_bytes_max, batch_bytes_max)
        self.streams: list[Stream] = streams
        self.by_service = {stream.service: stream for stream in streams}
        self.loss_trackers: dict[int, LossTracker] = {
            stream.service: LossTracker() for stream in streams
        }
        self.clock: Callable[[], int] = clock
        self.behind_time: Stopwatch = Stopwatch()
        self.full_time: Stopwatch = Stopwatch()
        self.note = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.queue = deque()
        self.numbers_late = True
        self.notices = deque()
        self.unannounced = False
        self.following = 0
        self.dropped = self.dropped_bytes = self.overflows = 0
        self.conflated = self.conflated_bytes = self.books_sent = 0
        self.overflowing = self.given_up = False
        self.conflation: Conflation | None = None
        self.splitter = None
        self.book_cache = None
        self.fanout = None
        self.fetching = False

    def conflate(self, fanout: Fanout, feed: "Feed") -> None:
        """Conflate from now on; to be called before anything waits. Books come from the book cache
        of `fanout`, if it has one."""
        self.fanout = fanout
        self.book_cache = fanout.book_cache
        if self.book_cache is None:
            orders_max, self.splitter = _never_enough, MessageSplitter(feed, False)
        else:
            orders_max = self.book_cache.orders_of
            self.splitter = MessageSplitter(feed, True, self.book_cache)
        self.conflation = Conflation(self.queue_bytes_max, orders_max)
        self.queue = self.conflation
        self.numbers_late = True

    # -- what a subclass says ---------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _number(self, key: str) -> cython.longlong:
        """Take the next group-sequence for a message with this routing key."""
        raise AssertionError("a backlog by itself sends nothing")

    def _dispatch(self, outgoing: OutgoingMessage) -> cython.int:
        """Send a message that has its number; the caller has checked room and readiness."""
        raise AssertionError("a backlog by itself sends nothing")

    def _first(self) -> cython.bint:
        """Return whether something else has to be sent before what waits here."""
        return False

    def _room(self, size: cython.Py_ssize_t) -> cython.bint:
        """Return whether a message of `size` bytes may be in flight beside those that are."""
        return True

    def _held_elsewhere(self) -> cython.Py_ssize_t:
        """Return the bytes that are held beside the queue and count towards its bound."""
        return 0

    # -- what the fan-out brings ------------------------------------------------------------

    def deliver(self, frame: Frame) -> cython.int:
        """Send the finished message, or queue it behind what waits."""
        outgoing: OutgoingMessage = self._outgoing(frame)
        loss_tracker = self.loss_trackers[outgoing.service]
        if loss_tracker.skipping and loss_tracker.skips(outgoing):
            self._count_drop(outgoing)
            self._note_backlog()
        elif self.given_up:
            self._lose(outgoing)
            self._note_backlog()
        elif self._may_send() and self._room(len(outgoing.data)):
            self._send(outgoing)
        else:
            self._wait(outgoing)
        return 0

    @cython.cfunc
    def _outgoing(self, frame: Frame) -> OutgoingMessage:
        """Copy the finished message, so that it may wait; of a quality message the body alone."""
        template: Template = frame.template
        at: cython.Py_ssize_t = template.tag_at
        service: cython.uint = read_uint(frame.data, at + 6, 2)
        sequence: cython.ulonglong = read_uint(frame.data, at + 8, 8)
        if read_uint(frame.data, at + 16, 2) == _NOTE:
            body = frame.snapshot()[frame.body_at :]
            reason = msgspec.json.decode(body)["reason"]
            return OutgoingMessage(body, service, sequence, sequence, False, reason, template.key)
        if not self.numbers_late:
            frame.number(cython.cast(cython.uint, self._number(template.key)))
        following: cython.ulonglong = self.following
        if following == 0:
            following = self._next_of(self.by_service[service])
        block: cython.bint = sequence >= _BLOCK_BIT
        if sequence >= _UNSEQUENCED and not block:
            following = sequence  # it holds no sequence numbers
        outgoing: OutgoingMessage = OutgoingMessage(
            frame.snapshot(), service, sequence, following, block, "", template.key
        )
        outgoing.template = template
        if self.numbers_late:
            outgoing.number_at = template.sequence_at
        return outgoing

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _next_of(self, stream: Stream) -> cython.ulonglong:
        """Return the number after the packet of this service that is being delivered: a live one,
        or one of the history that the link still reads."""
        if self.catching and self not in stream.concerned:
            stream = stream.past
        return stream.next_sequence

    def accepts_more(self) -> cython.bint:
        """Return whether a message delivered now would be sent at once."""
        return not self.overrun and self._may_send()

    def _may_send(self) -> cython.bint:
        """Return whether nothing has to be sent before a new message, and the link takes one."""
        return not self.queue and not self.unannounced and not self._first() and self.sender.ready()

    def _send(self, outgoing: OutgoingMessage) -> cython.int:
        """Assign the number of a message and send it; the caller has checked room and readiness."""
        at: cython.Py_ssize_t = outgoing.number_at
        data: bytes = outgoing.data
        if outgoing.reason:
            outgoing = self._finished(outgoing)
        elif at > 0:
            number = self._number(outgoing.key).to_bytes(4, "big")
            outgoing = outgoing.cut(data[:at] + number + data[at + 4 :])
        self._dispatch(outgoing)
        self.sent += 1
        self.sent_bytes += len(outgoing.data)
        self.peer.mark_dirty()
        return 0

    def _finished(self, outgoing: OutgoingMessage) -> OutgoingMessage:
        """Encode a quality message as this receiver must see it."""
        body = self.loss_trackers[outgoing.service].outgoing(outgoing.data)
        return self._note(outgoing.service, outgoing.sequence, outgoing.reason, body)

    def _note(self, service: int, sequence: int, reason: str, body: bytes) -> OutgoingMessage:
        stream: Stream = self.by_service[service]
        template: Template = stream.quality_template
        self.note.begin(template, sequence, _NOTE, 0)
        self.note.append(body, 0, len(body))
        self.note.finish(cython.cast(cython.uint, self._number(template.key)))
        data = self.note.snapshot()
        return OutgoingMessage(data, service, sequence, sequence, False, reason, template.key)

    # -- what waits -------------------------------------------------------------------------

    def _wait(self, outgoing: OutgoingMessage) -> cython.int:
        """Queue a message; apply the policy where the bound is passed."""
        self.waited += 1
        if self.conflation is not None:
            self._wait_conflated(outgoing)
        else:
            self.queue.append(outgoing)
            self.queued_bytes += len(outgoing.data) + _ENTRY_BYTES
        if self.queued_bytes + self._held_elsewhere() > self.queue_bytes_max:
            self._overflow()
        if self.queued_bytes > self.queued_bytes_high:
            self.queued_bytes_high = self.queued_bytes
        self._note_backlog()
        return 0

    def _overflow(self) -> None:
        """Conflate what can be conflated, then drop the oldest until the bound is kept."""
        if self.conflation is not None and self._squeeze():
            return
        if not self.overflowing:
            self._set_overflowing(True)
            self.overflows += 1
        room = self.queue_bytes_max - self._held_elsewhere()
        least = room - self.queue_bytes_max // _DROP_SHARE
        enough = self.dropped + DROP_MESSAGES_MAX
        while self._peek() is not None and self.queued_bytes > (
            room if self.dropped >= enough else least
        ):
            self._drop_oldest()
        while self.conflation is not None and self.conflation.dirty and self.queued_bytes > room:
            self._give_up_book()

    def _give_up_book(self) -> None:
        """Give up a book that is to be sent: not even the names of all such books have room."""
        key = next(iter(self.conflation.dirty))
        self.conflation.clean(key)
        self.queued_bytes = self.conflation.bytes
        self.loss_trackers[key[0]].miss_book()
        self.unannounced = True

    def _set_overflowing(self, full: bool) -> None:
        """Record that the queue became full, or empty."""
        self.overflowing = full
        self.full_time.set(full, self.clock())

    # -- what is conflated ------------------------------------------------------------------

    def _wait_conflated(self, outgoing: OutgoingMessage) -> cython.int:
        """Queue a message; its market messages replace older ones."""
        waiting: Waiting
        if self.fetching:
            self.conflation.put_front(outgoing)
        else:
            for waiting in self.splitter.split(outgoing):
                self.conflation.put(waiting)
        self._count_conflated()
        return 0

    def _count_conflated(self) -> cython.int:
        """Count what was taken out, and record it for the services' notices."""
        conflation: Conflation = self.conflation
        self.queued_bytes = conflation.bytes
        if conflation.gone:
            self.conflated = conflation.conflated
            self.conflated_bytes = conflation.conflated_bytes
            for service, (count, first, last) in conflation.drain_gone().items():
                self.loss_trackers[service].conflate(count, first, last)
        return 0

    def _squeeze(self) -> bool:
        """Conflate until the bound is kept; return whether that was enough."""
        while self.queued_bytes + self._held_elsewhere() > self.queue_bytes_max:
            if not self.conflation.squeeze():
                return False
            self._count_conflated()
        return True

    def _fetch_books(self) -> bool:
        """Put the next books that are due in front of what waits; return whether there were any."""
        if self.book_cache is None or self.catching or not self.conflation.at_end_of_turn():
            return False
        while self.open_batches:  # their packets are older than the books
            self._close(self.open_batches[0])
        key = None if self.overrun else self.conflation.due()
        if key is None:
            return False
        stream: Stream = self.by_service[key[0]]
        symbols: list = []
        while key is not None and key[0] == stream.service:
            if not self.book_cache.fits(stream.service, symbols, key[1]):
                break
            symbols.append(key[1])
            self.conflation.clean(key)
            key = self.conflation.due()
        self.books_sent += len(symbols)
        loss_tracker = self.loss_trackers[stream.service]
        self.fetching = True
        try:
            self.book_cache.send(self.fanout, stream, symbols, loss_tracker, self)
        finally:
            self.fetching = False
        self.queued_bytes = self.conflation.bytes
        return True

    def _report_caught_up(self) -> None:
        """Queue the notice that nothing waits any more, for services where something was
        conflated."""
        for service, loss_tracker in self.loss_trackers.items():
            if loss_tracker.conflating and not loss_tracker.conflation_unannounced:
                stream: Stream = self.by_service[service]
                number = stream.next_sequence
                self.notices.append((service, *loss_tracker.caught_up(number), number))
                self.unannounced = True

    # -- what goes --------------------------------------------------------------------------

    @cython.cfunc
    def _pop(self) -> OutgoingMessage:
        if self.conflation is not None:
            outgoing: OutgoingMessage = self.splitter.join(self.conflation.pop())
            self.queued_bytes = self.conflation.bytes
            return outgoing
        outgoing = self.queue.popleft()
        self.queued_bytes -= len(outgoing.data) + _ENTRY_BYTES
        return outgoing

    def _drop_oldest(self) -> None:
        """Drop what has waited longest; of a snapshot block all of it that waits."""
        outgoing: OutgoingMessage = self._pop()
        self._lose(outgoing)
        loss_tracker = self.loss_trackers[outgoing.service]
        while loss_tracker.skipping:
            following: OutgoingMessage = self._peek()
            if (
                following is None
                or following.service != outgoing.service
                or not loss_tracker.skips(following)
            ):
                return
            self._count_drop(self._pop())

    def _lose(self, outgoing: OutgoingMessage) -> None:
        """Record and count the loss of a message, which is to be announced."""
        self.loss_trackers[outgoing.service].drop(outgoing)
        self._count_drop(outgoing)

    def _count_drop(self, outgoing: OutgoingMessage) -> None:
        self.dropped += 1
        self.dropped_bytes += len(outgoing.data)
        self.unannounced = True

    def _note_backlog(self) -> cython.int:
        """Record at the connection and the link whether anything waits for credit or room."""
        behind: cython.bint = not self.overrun and self._is_behind()
        self.sender.wants_flow = behind
        if behind != self.behind:
            self.behind = behind
            self.behind_time.set(behind, self.clock())
            self.peer.backlog += 1 if behind else -1
        return 0

    def _is_behind(self) -> cython.bint:
        waits: cython.bint = len(self.queue) > 0 or len(self.open_batches) > 0
        return waits or self.unannounced or self.catching > 0

    def drain(self) -> cython.int:
        """Send what waits, as far as credit, room and the engine allow."""
        if self.given_up:
            return 0
        if self._must_announce() and not self._first():
            self._report()
        while self.queue and not self.unannounced and not self._first() and self.sender.ready():
            if self.conflation is not None and self._fetch_books():
                continue
            size: cython.Py_ssize_t = self._next_size()
            if size < 0 or not self._room(size):
                break
            self._send(self._pop())
        if self.conflation is not None and not (self.queue or self.unannounced or self.overrun):
            self._report_caught_up()
            self._report()
        if not self.queue:
            if self.overflowing:
                self._set_overflowing(False)
            self.flush_due_batches()
        self._note_backlog()
        return 0

    @cython.cfunc
    def _peek(self) -> OutgoingMessage:
        """Return the next message, or the head of it; None where there is none."""
        if self.conflation is not None:
            return self.conflation.peek()
        return self.queue[0] if self.queue else None

    def _next_size(self) -> cython.Py_ssize_t:
        """Return the bytes of the next message; -1 where there is none."""
        if self.conflation is not None:
            return self.conflation.next_size()
        outgoing: OutgoingMessage = self.queue[0]
        return len(outgoing.data)

    def _must_announce(self) -> cython.bint:
        """Return whether a notice must be sent before any later data."""
        if self.conflation is not None and not self.unannounced:
            for loss_tracker in self.loss_trackers.values():
                if loss_tracker.conflation_unannounced:
                    self.unannounced = True
        return self.unannounced

    def _report(self) -> None:
        """Send the notices of what the receiver lacks, before any later data."""
        while self._gather_notices():
            if not self.sender.ready() or not self._room(SECTIONS_BYTES_MAX):
                return
            service, reason, body, number = self.notices.popleft()
            self._send_note(self._note(service, number, reason, body))
        self.unannounced = False

    def _gather_notices(self) -> bool:
        """Return whether there are notices to send; gathers new ones once all are sent."""
        if self.notices:
            return True
        for service, loss_tracker in self.loss_trackers.items():
            if loss_tracker.unannounced:
                stream: Stream = self.by_service[service]
                # What still waits comes behind the notice, and has later numbers.
                number = loss_tracker.dropped_to or stream.next_sequence
                notices = loss_tracker.notices()
                if self in stream.concerned:
                    self.notices.extend((service, *notice, number) for notice in notices)
            if loss_tracker.conflation_unannounced:
                number = loss_tracker.conflated_from
                self.notices.append((service, *loss_tracker.conflated_notice(), number))
        return len(self.notices) > 0

    def _send_note(self, outgoing: OutgoingMessage) -> None:
        self._dispatch(outgoing)
        self.sent += 1
        self.sent_bytes += len(outgoing.data)
        self.peer.mark_dirty()

    # -- batches ----------------------------------------------------------------------------

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
        """Add a packet to the batch of its service, and record which number follows it."""
        SenderQueue.batch(self, stream, template, sequence, received_ns, data, start, size)
        batch: Batch = self.batches.get(stream)
        if batch is not None:
            batch.following = self._next_of(self.streams[stream])
        return 0

    def _close(self, batch: Batch) -> cython.int:
        """Finish an open batch and deliver it."""
        self.following = batch.following
        SenderQueue._close(self, batch)
        self.following = 0
        return 0

    def flush_due_batches(self) -> cython.int:
        """Send what was gathered at the end of a turn of the fan-out.

        Without room a batch stays open and grows, up to its limit: as many packets as wait.
        """
        while self.open_batches and self._may_send():
            self._close(self.open_batches[0])
        self._note_backlog()
        return 0
