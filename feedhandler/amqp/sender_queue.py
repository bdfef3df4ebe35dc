"""One subscriber's side of the fan-out: its credit, its bounded queue, its open batches.

What it promises: messages leave in the order they were delivered to it; none is sent without the
subscriber's credit; what waits never exceeds `queue_bytes_max`, and a subscriber that lets it
overrun is marked (`overrun`), gets nothing more, and is detached by the node. No sender queue waits
for another.

`Peer` is the connection a sender queue sends on; it is put on a list once something waits in its
engine, so that a turn of the fan-out ends with one write a connection.
"""

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING

import cython
import numpy
from cython.cimports.feedhandler.amqp.framing import Frame, Template
from cython.cimports.feedhandler.amqp.proton import Connection, SenderLink

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.codecs.visibility import Public, Readonly

if TYPE_CHECKING:
    from feedhandler.amqp.routing import Subscription

#: Overhead in bytes of a queued message: the object around its bytes and its entry in the queue.
QUEUE_ENTRY_BYTES = 64
_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, QUEUE_ENTRY_BYTES)
_WHOLE = cython.declare(cython.uint, WHOLE_PACKET)
#: No batch's first sequence number.
_NO_SEQUENCE = cython.declare(cython.ulonglong, (1 << 64) - 1)

#: The largest UDP payload: room that a batch needs beyond its limit for the packet that passes it.
PACKET_BYTES_MAX = 65_535
#: Room for a message's sections before its body; a routing key is at most a few hundred bytes.
SECTIONS_BYTES_MAX = 4096
#: Messages a packet can hold in any feed (the count field has at most 16 bits).
MESSAGES_MAX = 65_535
#: Messages of one packet that a link has room to select at first; more room is made when needed.
SELECTED_FIRST = 64
#: Tables of message types that are kept: links that ask for the same types share one.
TYPE_TABLES_MAX = 256


@lru_cache(maxsize=TYPE_TABLES_MAX)
def type_table(types: frozenset[int] | None) -> bytearray:
    """Return a table with a byte for each message type, 1 where it is one of `types`; one byte long
    where all are. Shared: do not change it."""
    table = bytearray(65536 if types is not None else 1)
    for message_type in types or ():
        table[message_type] = 1
    return table


@cython.cclass
class Peer:
    """A connection; `dirty_peers` is the list it is on when `dirty`.

    `overruns` are its sender queues that have just been given up, `backlog` counts those for which
    something waits, `engine` is its protocol state. `writing`: the socket takes no more for now.
    `leaving`: our side has closed. `gone`: the socket is closed, and its descriptor may be another
    client's by now.
    """

    dirty: Public[cython.bint]
    writing: Public[cython.bint]
    leaving: Public[cython.bint]
    gone: Public[cython.bint]
    engine: Public[Connection]
    backlog: Public[cython.Py_ssize_t]
    dirty_peers: Public[list]
    overruns: Readonly[list]

    def __init__(self, dirty_peers: list["Peer"]) -> None:
        self.dirty = False
        self.dirty_peers: list[Peer] = dirty_peers
        self.overruns: list[SenderQueue] = []
        self.writing = False
        self.leaving = False
        self.gone = False
        self.engine = None
        self.backlog = 0

    @cython.cfunc
    def mark_dirty(self) -> cython.void:
        """Schedule a write to the connection at the end of the turn: its engine has output."""
        if not self.dirty:
            self.dirty = True
            self.dirty_peers.append(self)

    def schedule_flush(self) -> None:
        """Schedule a write to the connection, as `mark_dirty` does."""
        self.mark_dirty()

    def leave(self, queue: "deque[bytes]") -> None:
        """Free the messages of a queue to which no other reference exists."""
        queue.clear()

    def fail(self, error: Exception) -> None:
        """End the connection because of an internal error in handling it. Here, without a
        connection, the error is raised again."""
        raise error

    def flush(self) -> cython.bint:
        """Write what is in the engine; return True where that was all there is to do.

        The ordinary end of a turn: the socket takes everything, no sender queue waits, and the
        engine has no news. False: the connection has other work to do (`attend`).
        """
        if self.writing or self.leaving or self.backlog > 0 or len(self.overruns) > 0:
            return False
        if self.engine is None:
            return False
        if self.engine.flush() != 0 or not self.engine.quiet():
            return False
        self.dirty = False
        return True

    def attend(self) -> None:
        """Do what `flush` left to do; implemented by the owner of the socket."""
        raise AssertionError("a connection without a socket has nothing to attend to")


@cython.cclass
class Batch:
    """The batch message that one sender queue is filling from one service's packets. `following`:
    the sequence number after its last packet, where a `Backlog` records that. `sequence`: that of
    its first packet; `part`: how many batches before it began with the same one, which has more
    records than a batch holds."""

    frame: Frame
    is_open: cython.bint
    following: cython.ulonglong
    sequence: cython.ulonglong
    part: cython.uint

    def __init__(self, bytes_max: int) -> None:
        self.frame = Frame(bytes_max + PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.is_open = False
        self.following = 0
        self.sequence = _NO_SEQUENCE
        self.part = 0


@cython.cclass
class SenderQueue:
    """A link that receives what `subscription` asks for, over `sender`.

    `chosen` marks the links that a snapshot block goes to, while it does; `more` says at the end of
    a turn that another follows at once. `catching` counts the services whose history the link is
    still reading (`catchup`).
    """

    # What each delivery reads or writes comes first: it then lies together in memory, which is
    # what many links on one connection cost.
    peer: Readonly[Peer]
    sender: Readonly[SenderLink]
    grain: Readonly[cython.int]
    stamp: Readonly[cython.bint]
    any_type: Readonly[cython.bint]
    overrun: Readonly[cython.bint]
    behind: Readonly[cython.bint]
    chosen: Public[cython.bint]
    more: Public[cython.bint]
    catching: Public[cython.int]
    group_sequence: Readonly[cython.uint]
    queued_bytes: Readonly[cython.Py_ssize_t]
    sent: Readonly[cython.ulonglong]
    sent_bytes: Readonly[cython.ulonglong]
    types: cython.uchar[::1]
    selected_count: cython.Py_ssize_t
    subscription: Readonly[object]
    queue: Readonly[object]
    queue_bytes_max: Readonly[cython.Py_ssize_t]
    batch_bytes_max: Readonly[cython.Py_ssize_t]
    waited: Readonly[cython.ulonglong]
    queued_bytes_high: Readonly[cython.Py_ssize_t]
    batches: dict
    open_batches: list
    selected: cython.ushort[::1]

    def __init__(
        self,
        peer: Peer,
        sender: SenderLink,
        subscription: "Subscription",
        queue_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        self.peer = peer
        self.sender = sender
        self.subscription: Subscription = subscription
        self.grain = subscription.grain
        self.stamp = subscription.stamp
        self.any_type = subscription.types is None
        self.types = type_table(subscription.types)
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.queue_bytes_max = queue_bytes_max
        self.batch_bytes_max = batch_bytes_max
        self.overrun = False
        self.behind = self.chosen = self.more = False
        self.catching = 0
        self.group_sequence = 0
        self.selected = memoryview(numpy.zeros(SELECTED_FIRST, numpy.uint16))
        self.selected_count = 0
        self.batches = {}
        self.open_batches = []
        self.sent = 0
        self.sent_bytes = 0
        self.waited = 0
        self.queued_bytes_high = 0

    def wants_type(self, message_type: cython.int) -> cython.bint:
        """Return whether the link takes messages of this type."""
        return self.any_type or self.types[message_type] != 0

    def select(self, number: cython.Py_ssize_t) -> cython.int:
        """Select one message of the current packet; return the count selected so far."""
        if self.selected_count == self.selected.shape[0]:
            self._make_room()
        self.selected[self.selected_count] = number
        self.selected_count += 1
        return self.selected_count

    def _make_room(self) -> None:
        """Double the room for messages selected of one packet."""
        wider = numpy.zeros(2 * len(self.selected), numpy.uint16)
        wider[: len(self.selected)] = self.selected
        self.selected = memoryview(wider)

    def deliver(self, frame: Frame) -> cython.int:
        """Send the finished message, or queue it behind what waits."""
        if self.overrun:
            return 0
        frame.number(self.group_sequence)
        self.group_sequence += 1
        if not cython.compiled:
            self.group_sequence &= 0xFFFF_FFFF  # C wraps by itself
        if self.queued_bytes == 0 and self.sender.ready():
            self.sender.send(frame.data, 0, frame.used)
            self.sent += 1
            self.sent_bytes += frame.used
            self.peer.mark_dirty()
        else:
            self._enqueue(frame)
        return 0

    def _enqueue(self, frame: Frame) -> cython.int:
        """Queue a message; past the bound the link is given up and its queue freed."""
        self.waited += 1
        self.queued_bytes += frame.used + _ENTRY_BYTES
        if self.queued_bytes > self.queue_bytes_max:
            self.give_up()
            return 0
        if self.queued_bytes > self.queued_bytes_high:
            self.queued_bytes_high = self.queued_bytes
        self.queue.append(frame.snapshot())
        self._note_backlog()
        return 0

    def accepts_more(self) -> cython.bint:
        """Return whether a message delivered now would be sent at once."""
        return not self.overrun and self.queued_bytes == 0 and self.sender.ready()

    def give_up(self) -> cython.int:
        """Give the link up, which lacks something that cannot be announced to it: it gets nothing
        more, and the node detaches it."""
        self.overrun = True
        self.peer.leave(self.queue)
        self.queue = deque()
        self.batches.clear()
        self.open_batches.clear()
        self.peer.overruns.append(self)
        self.peer.mark_dirty()
        self._note_backlog()
        return 0

    def _note_backlog(self) -> cython.int:
        """Record at the connection and the link whether anything waits for credit or room."""
        behind: cython.bint = not self.overrun and self._is_behind()
        if behind != self.behind:
            self.behind = behind
            self.sender.wants_flow = behind
            self.peer.backlog += 1 if behind else -1
        return 0

    def _is_behind(self) -> cython.bint:
        """Return whether anything waits for credit or room."""
        return self.queued_bytes > 0 or len(self.open_batches) > 0 or self.catching > 0

    def drain(self) -> cython.int:
        """Send what waits, as far as credit and the engine allow; called when either grew."""
        while self.queue and self.sender.ready():
            data: bytes = self.queue.popleft()
            size: cython.Py_ssize_t = len(data)
            self.sender.send(data, 0, size)
            self.queued_bytes -= size + _ENTRY_BYTES
            self.sent += 1
            self.sent_bytes += size
            self.peer.mark_dirty()
        if self.open_batches:
            self.flush_due_batches()
        self._note_backlog()
        return 0

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
        """Add a packet to the batch of its service (`stream`), and send one that is full."""
        if self.overrun:
            return 0
        batch: Batch = self.batches.get(stream)
        if batch is None:
            batch = Batch(self.batch_bytes_max)
            self.batches[stream] = batch
        if batch.is_open and batch.frame.used + size > self.batch_bytes_max:
            self._close(batch)
            if self.overrun:
                return 0
        if not batch.is_open:
            batch.part = batch.part + 1 if sequence == batch.sequence else 0
            batch.sequence = sequence
            batch.frame.begin(template, sequence, batch.part if batch.part else _WHOLE, received_ns)
            batch.is_open = True
            self.open_batches.append(batch)
        batch.frame.append(data, start, size)
        return 0

    def _close(self, batch: Batch) -> cython.int:
        """Finish an open batch and deliver it."""
        batch.is_open = False
        self.open_batches.remove(batch)
        batch.frame.finish(0)
        self.deliver(batch.frame)
        return 0

    def close_batch(self, stream: cython.int) -> cython.int:
        """Finish the open batch of one service, ahead of a quality message about it."""
        batch: Batch = self.batches.get(stream)
        if batch is not None and batch.is_open:
            self._close(batch)
        return 0

    def has_open_batch(self) -> cython.bint:
        """Return whether packets wait in a batch."""
        return len(self.open_batches) > 0

    def flush_due_batches(self) -> cython.int:
        """Send what was gathered at the end of a turn of the fan-out.

        Without credit a batch stays open and grows, up to its limit: as many packets as wait.
        """
        while self.open_batches and self.queued_bytes == 0 and self.sender.ready():
            self._close(self.open_batches[0])
        self._note_backlog()
        return 0
