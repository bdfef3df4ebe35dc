"""A keyed queue's store: what is asked of it in a turn of the event loop is one group of the
journal.

What it is for: a `JournalStore` makes durable, in a persistent queue, what a `queue.KeyedQueue`
asks of it, in that order. Operations are gathered; `push` commits them, all or nothing, and once
that is durable the queue is notified (`durable`, `ended`, `marked`), in order, and those that wait
for it (`when_durable`). So an acknowledgement and what its
consumer has put in the same unit count together, and a unit is never split (`unit`).

A message that goes to another queue is an outbox entry here first: its end here and the entry are
one group. Then it is put there, with this queue's id and the entry's number as its stamp, so that
it is put there once however often that is repeated; then the entry ends. `outbox` has those that
are durable here, in order.

What waits is bounded by the engine's `has_room`. Nothing here waits; the persistent queue's thread
writes.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from feedhandler.journal import PersistentQueue, QueueStopped, Status
from feedhandler.journal.engine import Committed
from feedhandler.keyed.envelope import (
    OutboxEntry,
    keys_of,
    outbox_entry_in,
    wrap,
    wrap_outbox_entry,
)
from feedhandler.keyed.producers import Stamp
from feedhandler.keyed.queue import KeyedQueue

#: A group is committed before it has more bytes, or changes, than this, beside one unit.
GROUP_BYTES_MAX = 1 << 20
GROUP_CHANGES_MAX = 4096

OnDurable = Callable[[], None]


@dataclass(slots=True)
class _Group:
    """Operations that are committed together."""

    puts: list[bytes] = field(default_factory=list)
    put_bytes: int = 0
    ends: dict[int, Status] = field(default_factory=dict)
    arrived: list[int] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)
    producers: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    outbox: list[tuple[int, OutboxEntry]] = field(default_factory=list)
    on_durable: list[OnDurable] = field(default_factory=list)
    committed: Committed | None = None

    @property
    def changes(self) -> int:
        """Return how many changes of the journal it has."""
        ended = len(self.ends) + len(self.arrived)
        return len(self.puts) + ended + len(self.marks) + len(self.producers)

    def __bool__(self) -> bool:
        return bool(self.changes or self.on_durable)


class JournalStore:
    """The store of one keyed queue; see the module.

    `dead` names the queue that dead messages go to ("": they are cancelled, and `on_lost` is called
    with the reason); `read` reads a message, and calls back with it, or with None where its bytes
    are damaged.
    """

    def __init__(
        self,
        store: PersistentQueue,
        dead: str,
        read: Callable[[int, Callable[[bytes | None], None]], None],
        on_lost: Callable[[int, str], None] = lambda number, reason: None,
    ) -> None:
        self.queue: KeyedQueue
        self.dead = dead
        self.outbox: deque[tuple[int, OutboxEntry]] = deque()
        #: Called with each message that ends without having been delivered.
        self.on_dropped: Callable[[int], object] = lambda number: None
        self.put_bytes = 0
        self._store = store
        self._read = read
        self._on_lost = on_lost
        self._next = store.engine.next_id
        self._group = _Group()
        self._flying: deque[_Group] = deque()
        self._units = 0

    def restore(self, queue: KeyedQueue) -> None:
        """Load the journal's messages and outbox into a new queue, before either is used."""
        self.queue = queue
        for items in self._store.walk():
            messages = []
            for number, mark, item in items:
                keys = keys_of(item)
                if keys is not None:
                    messages.append((number, mark, keys))
                elif (entry := outbox_entry_in(item)) is not None:
                    self.outbox.append((number, entry))
            if messages:
                queue.restore_many(messages)
        queue.durable(self._store.engine.durable_id)

    # -- as the queue sees it -----------------------------------------------------------------

    def add(self, content: bytes, keys: bytes, stamp: Stamp | None) -> int:
        """Add a message, together with its producer's stamp; return its number, above all before
        it. `keys` are the digests of its keys."""
        return self._put(wrap(content, keys), stamp)

    def divert(self, content: bytes, reason: str, stamp: Stamp | None) -> None:
        """Put an invalid message into the dead queue; without one, report it as lost."""
        if self.dead:
            self.send(OutboxEntry(self.dead, reason, content), stamp)
        else:
            self._on_lost(0, reason)
            if stamp is not None:
                self.note(stamp)

    def send(self, entry: OutboxEntry, stamp: Stamp | None = None) -> None:
        """Send a message to another queue."""
        number = self._put(wrap_outbox_entry(entry), stamp)
        self._group.outbox.append((number, entry))

    def note(self, stamp: Stamp) -> None:
        """Record a producer's stamp without a message."""
        self._group.producers[stamp.producer] = stamp.epoch, stamp.sequence

    def deliver(self, number: int) -> None:
        """End a message as delivered."""
        self._end(number, Status.DELIVERED)

    def cancel(self, number: int) -> None:
        """End a message as cancelled."""
        self._end(number, Status.CANCELLED)

    def expire(self, number: int) -> None:
        """End a message as expired."""
        self._end(number, Status.EXPIRED)

    def arrived(self, number: int) -> None:
        """End an outbox entry, which is durable where it was sent. Nobody is notified: it is no
        message of the queue."""
        self._full()
        self._group.arrived.append(number)

    def bury(self, number: int, reason: str) -> None:
        """Move a message to the dead queue, in one group with its end."""

        def end(content: bytes | None) -> None:
            with self.unit():
                if content is None:
                    self._on_lost(number, reason)
                else:
                    self.send(OutboxEntry(self.dead, reason, content))
                self._end(number, Status.CANCELLED)

        if self.dead:
            self._read(number, end)
        else:
            end(None)

    def mark(self, number: int, mark: int) -> None:
        """Record a pending message's mark."""
        self._group.marks[number] = mark
        self._full()

    def _put(self, item: bytes, stamp: Stamp | None) -> int:
        self._full(len(item))
        group = self._group
        number = self._next
        self._next += 1
        group.puts.append(item)
        group.put_bytes += len(item)
        if stamp is not None:
            group.producers[stamp.producer] = stamp.epoch, stamp.sequence
        return number

    def _end(self, number: int, status: Status) -> None:
        self._full()
        self._group.marks.pop(number, None)
        self._group.ends[number] = status
        if status is not Status.DELIVERED:
            self.on_dropped(number)

    def _full(self, more_bytes: int = 0) -> None:
        """Commit what is gathered where it has reached the bounds of a group, except within a
        unit."""
        group = self._group
        if not self._units and (
            (group.put_bytes and group.put_bytes + more_bytes > GROUP_BYTES_MAX)
            or group.changes >= GROUP_CHANGES_MAX
        ):
            # Who asks for a change is told by the end of the queue, and cannot do anything here.
            with contextlib.suppress(QueueStopped):
                self.push()

    # -- groups -------------------------------------------------------------------------------

    def unit(self) -> "_Unit":
        """Return a context in which all operations count together."""
        return _Unit(self)

    def when_durable(self, on_durable: OnDurable) -> None:
        """Have `on_durable` called once all operations so far are durable."""
        if self._group or not self._flying:
            self._group.on_durable.append(on_durable)
        else:
            self._flying[-1].on_durable.append(on_durable)

    def push(self) -> None:
        """Commit what was gathered. Raises `QueueStopped`."""
        group = self._group
        if not group:
            return
        self._group = _Group()
        if not group.changes:
            if not self._flying:
                for on_durable in group.on_durable:
                    on_durable()
            else:
                self._flying[-1].on_durable += group.on_durable
            return
        ends = [*group.ends.items(), *((number, Status.DELIVERED) for number in group.arrived)]
        group.committed = self._store.commit_soon(
            group.puts, ends, list(group.marks.items()), group.producers
        )
        assert not group.puts or group.committed.end_id == self._next, "ids are ours alone"
        self.put_bytes += group.put_bytes
        self._flying.append(group)

    def move_some(self) -> None:
        """Rewrite old pending messages where blocks are short. Raises `QueueStopped`."""
        if not self.busy and self._store.engine.move_some():
            self._next = self._store.engine.next_id

    @property
    def gathered_bytes(self) -> int:
        """Bytes of messages that are not committed yet."""
        return self._group.put_bytes

    @property
    def busy(self) -> bool:
        """Whether anything is on its way to the disk."""
        return bool(self._group or self._flying)

    def settled(self) -> Iterator[OnDurable]:
        """Notify the queue of groups that are durable, after a flush; yield the callbacks to call
        besides."""
        engine = self._store.engine
        while self._flying:
            group = self._flying[0]
            assert group.committed is not None
            if not engine.has_committed(group.committed):
                return
            self._flying.popleft()
            engine.report_committed(group.committed)
            self.outbox += group.outbox
            if group.puts:
                self.queue.durable(group.committed.end_id - 1)
            for number in group.ends:
                self.queue.ended(number)
            for number in group.marks:
                self.queue.marked(number)
            yield from group.on_durable


class _Unit:
    """Context in which all operations of a store count together."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._store._full(GROUP_BYTES_MAX // 2)
        self._store._units += 1

    def __exit__(self, *_: object) -> None:
        self._store._units -= 1
