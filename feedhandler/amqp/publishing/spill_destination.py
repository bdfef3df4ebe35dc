"""A destination whose backlog goes to disk: `when_full = "journal"`.

What it is for: messages of the fan-out are encoded at once (numbered, quality messages too), so
that each is the same whether it leaves now or after a restart. The `SpillQueue` decides where it
goes: into the queue that every destination has, or by way of the journal. The journal is informed
of what the broker has confirmed, and of what was given up.

What it promises: the broker gets messages in the order in which they came; those of the run before
first. What is in memory never exceeds `queue_bytes`. What is refused because the journal has no
room, or its disk does not keep up, is dropped, the newest first, and announced where it is missing:
by a quality message before the next one that is taken.

Where the disk has failed, the destination goes on as one that drops its oldest. What was on the
disk only is announced as lost; it stays there, and the next start publishes it.

A batch is closed at the end of its time whether the broker has room or not: packets in an open
batch are not in the journal.

What it leaves to others: threads and files (`spill_runner`); connections (`publisher`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import cython
from cython.cimports.feedhandler.amqp.framing import Frame
from cython.cimports.feedhandler.amqp.publishing.destination import Destination
from cython.cimports.feedhandler.amqp.queueing.backlog import Backlog
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from cython.cimports.feedhandler.amqp.sender_queue import Peer
from cython.cimports.feedhandler.amqp.stream import Stream

from feedhandler.amqp.framing import is_unsequenced
from feedhandler.amqp.policies import JOURNAL
from feedhandler.amqp.publishing.spill_queue import Result, SpillQueue, Where
from feedhandler.amqp.queueing.unsettled_map import WHOLE
from feedhandler.amqp.sender_queue import QUEUE_ENTRY_BYTES, SECTIONS_BYTES_MAX
from feedhandler.codecs.visibility import Public, Readonly

if TYPE_CHECKING:
    from feedhandler.amqp.routing import Subscription

_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, QUEUE_ENTRY_BYTES)
_SECTIONS_BYTES = cython.declare(cython.Py_ssize_t, SECTIONS_BYTES_MAX)
_WHOLE = cython.declare(cython.Py_ssize_t, WHOLE)


@cython.cclass
class SpillDestination(Destination):
    """A `Destination` with a `spill`.

    `wall`: ns since 1970. `on_work` is called where the journal may have something to do, unless
    `attended`: a job is under way or its timer set. `lacking`: a refused message has not been
    announced to the receiver.
    """

    spill: Readonly[object]
    wall: object
    on_work: object
    lacking: Readonly[cython.bint]
    attended: Public[cython.bint]

    def __init__(
        self,
        peer: Peer,
        subscription: "Subscription",
        streams: list[Stream],
        messages_max: int,
        queue_bytes_max: int,
        batch_bytes_max: int,
        retry_ns: Callable[[int], int],
        clock: Callable[[], int],
        on_batch: Callable[[], None] | None,
        spill: SpillQueue,
        wall: Callable[[], int],
        on_work: Callable[[], None],
    ) -> None:
        super().__init__(
            peer, subscription, streams, messages_max, queue_bytes_max, batch_bytes_max, retry_ns,
            clock, on_batch, JOURNAL,
        )  # fmt: skip
        self.spill: SpillQueue = spill
        self.wall = wall
        self.on_work = on_work
        self.lacking = False
        self.attended = False

    @property
    def front_bytes(self) -> int:
        """Bytes of what waits in memory, or is sent and unconfirmed."""
        return self.queued_bytes + self.unsettled.bytes

    @property
    def oldest_ns(self) -> int:
        """When the oldest unconfirmed message in memory came, ns since 1970; 0: there is none."""
        outgoing: OutgoingMessage
        for outgoing in self.unsettled.held.values():
            return outgoing.came_ns
        outgoing = self._peek()
        return 0 if outgoing is None else outgoing.came_ns

    # -- what the fan-out brings ------------------------------------------------------------

    def deliver(self, frame: Frame) -> cython.int:
        """Send the finished message, let it wait in memory, or send it to the journal."""
        if self.spill.failed:
            return Backlog.deliver(self, frame)
        outgoing: OutgoingMessage = self._outgoing(frame)
        loss_tracker = self.loss_trackers[outgoing.service]
        if loss_tracker.skipping and loss_tracker.skips(outgoing):
            self._count_drop(outgoing)
        elif self.lacking and not self._report_lacking(outgoing.service, outgoing.sequence):
            self._lose(outgoing)
        else:
            self._accept(outgoing)
        self._note_backlog()
        if not self.attended:
            self.on_work()
        return 0

    def _accept(self, outgoing: OutgoingMessage) -> None:
        """Accept a message where the spill has room for it, or drop it."""
        size = len(outgoing.data) + (_SECTIONS_BYTES if outgoing.reason else 0)
        where = self.spill.admit(size, self.front_bytes)
        if where is Where.NOWHERE:
            if not self.overflowing:
                self._set_overflowing(True)
                self.overflows += 1
            self._lose(outgoing)
            return
        if self.overflowing:
            self._set_overflowing(False)
        if outgoing.reason:
            outgoing = self._finished(outgoing)
            outgoing.number_at = _WHOLE
        self._put(outgoing, where)

    def _put(self, outgoing: OutgoingMessage, where: Where) -> None:
        """Send an encoded message, queue it, or leave it to the spill, as `where` says."""
        outgoing.came_ns = self.wall()
        if where is Where.FRONT:
            if self._may_send() and self._room(len(outgoing.data)):
                self._send(outgoing)
            else:
                self.waited += 1
                self._join(outgoing)
        else:
            self.waited += 1
        self.spill.add(outgoing, where, self.clock())

    def _join(self, outgoing: OutgoingMessage) -> None:
        """Put a message behind what waits in memory."""
        self.queue.append(outgoing)
        self.queued_bytes += len(outgoing.data) + _ENTRY_BYTES
        if self.queued_bytes > self.queued_bytes_high:
            self.queued_bytes_high = self.queued_bytes

    def _send(self, outgoing: OutgoingMessage) -> cython.int:
        """Send a message; one that is encoded already goes as it is."""
        if not outgoing.reason or outgoing.number_at != _WHOLE:
            return Backlog._send(self, outgoing)
        self._dispatch(outgoing)
        self.sent += 1
        self.sent_bytes += len(outgoing.data)
        self.peer.mark_dirty()
        return 0

    def _is_behind(self) -> cython.bint:
        """Return whether anything waits, on the disk too."""
        return not self.spill.level or self.lacking or Destination._is_behind(self)

    # -- what is missing --------------------------------------------------------------------

    def _count_drop(self, outgoing: OutgoingMessage) -> None:
        """Count a drop. As long as the journal takes messages, it is announced in the stream."""
        self.dropped += 1
        self.dropped_bytes += len(outgoing.data)
        self._lack()

    def _lack(self) -> None:
        if self.spill.failed:
            self.unannounced = True
        else:
            self.lacking = True

    def _set_overflowing(self, full: bool) -> None:
        """Record that messages are refused from now on, or taken again; that the queue is empty
        does not end a refusal."""
        if full or not self.spill.refusing:
            Destination._set_overflowing(self, full)

    def _report_lacking(self, service: int, sequence: int) -> bool:
        """Put what the receiver lacks into the stream, before message `sequence` of `service`;
        return whether there was room for that."""
        while True:
            where = self.spill.admit(_SECTIONS_BYTES, self.front_bytes)
            if where is Where.NOWHERE:
                return False
            if not self._gather_notices():
                break
            about, reason, body, _ = self.notices.popleft()
            stream: Stream = self.by_service[about]
            numbered = about == service and not is_unsequenced(sequence)
            following = sequence if numbered else stream.next_sequence
            notice: OutgoingMessage = self._note(about, following, reason, body)
            notice.number_at = _WHOLE
            self._put(notice, where)
        self.lacking = False
        return True

    def _drop_oldest(self) -> None:
        """Drop what has waited longest. One of the run before may be of a service that is published
        no more, whose loss cannot be announced."""
        head: OutgoingMessage = self._peek()
        if head.service in self.loss_trackers:
            Destination._drop_oldest(self)
        else:
            self._count_drop(self._pop())

    def abandon(self, outgoing: OutgoingMessage) -> None:
        """Give up a message that was refused for good, or came back too often."""
        self.spill.end(outgoing, self.clock(), given_up=True)
        self.abandoned += 1
        if outgoing.service in self.loss_trackers:
            self.loss_trackers[outgoing.service].refuse(outgoing)
            self._lack()
        self._note_backlog()

    # -- what the broker takes --------------------------------------------------------------

    def process_outcomes(self) -> cython.int:
        """Forget what the broker has confirmed, in the journal too."""
        number: cython.ulonglong
        if self.link.confirmed:
            now_ns: cython.longlong = self.clock()
            for number in self.link.confirmed:
                outgoing: OutgoingMessage = self.unsettled.held.get(number)
                if outgoing is not None:
                    self.unsettled.confirm(number, now_ns)
                    self.spill.end(outgoing, now_ns)
            self.link.confirmed.clear()
            if not self.attended:
                self.on_work()
        return 0

    def drain(self) -> cython.int:
        """Send what waits, and have more read from the disk where there is room for it."""
        Destination.drain(self)
        if not self.spill.level:
            self._fetch()
        if self.lacking and self.spill.level:
            self._report_lacking(-1, 0)
            Destination.drain(self)
        return 0

    def _fetch(self) -> None:
        """Ask for what is on the disk, as far as there is room."""
        joined = self.spill.poll(self.front_bytes, self.clock())
        for outgoing in joined:
            self._join(outgoing)
        if joined:
            Destination.drain(self)
        self._note_backlog()
        self.on_work()

    def process_result(self, result: Result) -> None:
        """Process the result of a job; `drain` sends the messages that it brought."""
        failed = self.spill.failed
        joined = self.spill.done(result, self.clock(), self.front_bytes)
        if self.spill.failed and not failed:
            # What was read back, and so has an item, comes before what is lost now.
            for outgoing in joined:
                if outgoing.item:
                    self._join(outgoing)
            joined = [outgoing for outgoing in joined if not outgoing.item]
            self._report_failed()
        for outgoing in joined:
            self._join(outgoing)
        self._note_backlog()

    def _report_failed(self) -> None:
        """Announce as lost what is on the failed disk only, where it is missing: behind what waits
        in memory, before what was to follow it to the disk."""
        disk_only = self.spill.disk_only if self.spill.on_disk else {}
        self.dropped += self.spill.on_disk
        for service, missed in disk_only.items():
            stream: Stream = self.by_service[service]
            if missed.messages <= 0 or self not in stream.concerned:
                continue
            began = missed.epoch_began if missed.epochs else b""
            number = missed.packets.highest + 1 if missed.packets else stream.next_sequence
            notices = self.loss_trackers[service].miss(
                missed.packets, missed.told, missed.blocks > 0, began
            )
            for reason, body in notices:
                notice: OutgoingMessage = self._note(service, number, reason, body)
                notice.number_at = _WHOLE
                notice.came_ns = self.wall()
                self._join(notice)

    # -- batches ----------------------------------------------------------------------------

    def flush_batches(self) -> cython.int:
        """Finish what was gathered, whether the broker has room or not."""
        while self.open_batches:
            self._close(self.open_batches[0])
        self._note_backlog()
        return 0
