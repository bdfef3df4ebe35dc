"""An open queue between its callers and the disk: locks, one write at a time, one way to stop.

What it is for: `PersistentQueue` (asyncio) and `BlockingQueue` (threads) are both an `Engine` with
a way of waiting. One lock guards what waits for the disk; each block's lock guards its items'
statuses (`Delivery`, whose methods take these locks and must not be called with the first one
held). All are held for microseconds; the writes and syncs of a flush, and the creation of a new
block, run without any.

Who has a queue calls the public methods of its engine and takes none of its parts. Only the two
schedulers (`commit_scheduler.py`, `blocking.py`) have some of these, by `Engine.scheduling`.

What it promises: the next flush takes everything that waits, so that the next segment gathers while
one sync is in progress. The first failed write or sync stops the queue: all present and later
callers get `QueueStopped`, nothing is retried, nothing more is acknowledged.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.journal.block import Block
from feedhandler.journal.cancels import CancelAnswer, ForwardPage
from feedhandler.journal.delivery import Delivery
from feedhandler.journal.files import Create, Files, carry_out
from feedhandler.journal.groups import Group, ProducerState
from feedhandler.journal.layout import Status
from feedhandler.journal.mutex import Mutex
from feedhandler.journal.opening import open_store
from feedhandler.journal.owner import Owner
from feedhandler.journal.reading import Item, SegmentReader
from feedhandler.journal.recovery import RecoveryReport, block_path, read_control
from feedhandler.journal.scheduling import Scheduling
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import BlocksNeeded, Flush, Store
from feedhandler.journal.tombstone_index import KEEP_NS
from feedhandler.operator_log import log_event

#: Pause after a failed attempt to create a block.
GROWTH_PAUSE_NS = 5_000_000_000
#: Upper limits on what is moved in one turn: items, and their bytes except for the first one's.
MOVE_ITEMS_MAX, MOVE_BYTES_MAX = 256, 256 << 10
_HINT = "what was acknowledged counts; see to the disk, then open the queue anew"


class QueueStopped(FeedhandlerError):
    """A write or sync failed: the queue takes, gives and acknowledges nothing any more."""


class QueueClosed(FeedhandlerError):
    """The queue is closed: raised for those that still wait for it, and for later calls."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A group that was taken.

    `first_id` to `end_id` - 1 are its items' ids; `groups` and `changes`: the engine's counts at
    which it is durable (`Engine.has_committed`); `ends`: ids that it ends, by status; `forward`:
    ids whose cancel is to be forwarded.
    """

    first_id: int
    end_id: int
    groups: int
    changes: int
    ends: dict[Status, list[int]]
    forward: list[int]


Callback = Callable[[int], None]
Answer = TypeVar("Answer")


class Engine:
    """An open queue; see the module. `files`, if given, are closed with it.

    `clock` returns ns since 1970. `durable_id`: items up to this id are durable; `durable_changes`
    and `durable_groups`: how many status changes and groups are; `day_ns`: start of the trading
    day, 0 where the queue has none; `stopped`: the error that callers get, once there is one.

    Four callbacks are called with an id once the change is durable: `on_delivered`, `on_cancelled`,
    `on_expired`, and `on_forward`, which asks for a cancel at the item's destination.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: QueueSettings,
        *,
        files: Files | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.folder = os.fspath(folder)
        self.settings = settings
        #: Returns the queue's time, ns since 1970.
        self.now_ns = clock
        self.stopped: FeedhandlerError | None = None
        self.durable_id = 0
        self.durable_changes = self.durable_groups = 0
        self.growth_failures = 0
        self.on_delivered: Callback | None = None
        self.on_cancelled: Callback | None = None
        self.on_expired: Callback | None = None
        self.on_forward: Callback | None = None
        #: Called, in any thread, when the disk has failed, to wake those that wait.
        self.on_stop: Callable[[], None] | None = None
        self._growth_after_ns = 0
        #: Whether the latest attempt to grow failed.
        self._cramped = False
        self._owner = Owner(self.folder)
        try:
            self._files: Files = files or Files()
            began = clock()
            opened = open_store(self._files, self.folder, settings, os.urandom(16), began, Mutex)
            self.recovery_ns = max(clock() - began, 0)
        except BaseException:
            self._owner.release()
            raise
        self._store: Store = opened.store
        self._pending = opened.store.pending
        self._lock = cast(Mutex, opened.store.lock)
        self._delivery: Delivery = opened.delivery
        self.report: RecoveryReport = opened.report
        self.expired_at_open = opened.expired
        self.durable_id = self._store.visible_end - 1
        self.durable_changes = self._store.changes_added
        self.day_ns = settings.day_began_ns(began)

    # -- the disk ---------------------------------------------------------------------------

    def flush(self) -> bool:
        """Make what waits durable, one segment; return False where nothing waits or has room.

        Only one thread at a time may be in here. Raises `QueueStopped`.
        """
        self.check()
        flush = self.begin()
        if flush is None:
            return False
        self._carry_out(flush.steps)
        self._settle()
        return True

    def _settle(self) -> None:
        store = self._store
        assert store.in_flight is not None
        if store.in_flight.groups:  # a group may have changed any block
            with store.everything(), self._lock:
                self._count(store.complete_flush())
        else:
            with store.live[-1].lock, self._lock:
                self._count(store.complete_flush())

    def _count(self, flush: Flush) -> None:
        """Update the counts of what is durable by that flush."""
        self.durable_id = max(self.durable_id, flush.next_id - 1)
        self.durable_changes = flush.changes_end
        self.durable_groups = flush.groups_end

    def begin(self) -> Flush | None:
        """Make a segment for a caller that writes it itself and calls `finish`, instead of `flush`.

        It must be written after the one in flight, of which there may be one. None: nothing waits,
        no block has room for it, or it cannot follow that one.
        """
        store = self._store
        try:
            with self._lock:
                if store.in_flight is not None:
                    return store.prepare(self.now_ns())
                return store.seal(self.now_ns(), alone=False)
        except BlocksNeeded:
            with store.everything(), self._lock:
                return store.seal(self.now_ns())

    def finish(self) -> None:
        """Settle the segment in flight, which is on the disk; the next one is in flight now."""
        self._settle()
        self._store.go_on()

    @property
    def growth_due(self) -> bool:
        """Whether one more block is wanted and the pause after a failure is over."""
        return self._store.wants_block and self.now_ns() >= self._growth_after_ns

    def grow(self) -> bool:
        """Create one more block where one is wanted; return whether one was created.

        Where the disk has no space for it the queue goes on without, and tries again later.
        """
        with self._lock:
            if self.stopped or not self.growth_due:
                return False
            growth = self._store.grow(self.now_ns())
        failure: OSError | None = None
        try:
            carry_out(self._files, growth.steps)
        except OSError as error:
            self._give_up_growth(growth.steps[0])
            made, failure = False, error
        else:
            made = True
        with self._lock:
            self._store.grown(growth, made=made)
            if not made:
                self.growth_failures += 1
                self._growth_after_ns = self.now_ns() + GROWTH_PAUSE_NS
            changed, self._cramped = self._cramped is made, not made
        if changed:
            self._report_growth(made, failure)
        return made

    def move_some(self) -> int:
        """Move some items out of a block that few pending ones keep from being recycled.

        They are written again with the next segment. Does so only where blocks are short; returns
        how many items, 0 where there is nothing to do. For the queue's owner, once a turn; it reads
        from the disk.
        """
        store = self._store
        self.check()
        if len(store.blocks) < self.settings.blocks_max and not self._cramped:
            return 0
        block = store.pinned()
        if block is None:
            return 0
        return self._read(lambda: self._delivery.move(block, MOVE_ITEMS_MAX, MOVE_BYTES_MAX))

    def _report_growth(self, made: bool, failure: OSError | None) -> None:
        """Report to the operator, once each, that the queue cannot grow, or grows again."""
        if made:
            text = f"queue {self.folder}: grows again"
            log_event("queue_grows", text, logging.INFO, queue=self.folder)
        else:
            why = failure.strerror if failure is not None else "unknown"
            text = f"queue {self.folder}: cannot grow ({why}); make room, it tries again by itself"
            log_event("queue_cannot_grow", text, logging.ERROR, queue=self.folder)

    def _give_up_growth(self, made: Any) -> None:
        """Remove the unfinished block's file.

        Where the control file names it, though not synced, the block is whole and stays.
        """
        if isinstance(made, Create) and not self._named(made.path):
            with contextlib.suppress(OSError):
                self._files.remove(made.path)

    def _named(self, path: str) -> bool:
        """Return whether the control file on disk names a block; True where it cannot be read."""
        try:
            control = read_control(self._files, self.folder)
        except (FeedhandlerError, OSError):
            return True
        return any(block_path(self.folder, block) == path for block in control.blocks)

    def _carry_out(self, steps: list[Any]) -> None:
        try:
            carry_out(self._files, steps)
        except OSError as error:
            raise self.stop(error) from error

    def _read(self, read: Callable[[], Answer]) -> Answer:
        """Return the result of `read`; a disk that cannot be read stops the queue as well."""
        self.check()
        try:
            return read()
        except OSError as error:
            raise self.stop(error) from error

    def stop(self, error: OSError) -> FeedhandlerError:
        """Stop the queue because the disk failed, and return the error that callers get."""
        reason = error.strerror or error
        self.stopped = QueueStopped(
            f"{self.folder}: the queue has stopped: its disk failed: {reason}", _HINT
        )
        if self.on_stop is not None:
            self.on_stop()
        return self.stopped

    def check(self) -> None:
        """Raise `QueueStopped` or `QueueClosed` where the queue has ended."""
        if self.stopped is not None:
            raise self.stopped

    def close(self) -> None:
        """Write what waits and a last round of checkpoints, and close the queue.

        A queue that has stopped is closed without writing.
        """
        try:
            if self.stopped is None:
                while self.flush():
                    pass
                with self._lock:
                    steps = self._store.tidy(False)
                self._carry_out(steps)
        finally:
            self.stopped = self.stopped or QueueClosed(f"{self.folder}: the queue is closed", "")
            self._files.close()
            self._owner.release()

    # -- for the schedulers -----------------------------------------------------------------

    def scheduling(self) -> Scheduling:
        """Return the parts that a scheduler works on; for the two schedulers alone."""
        store, settings = self._store, self.settings
        return Scheduling(
            lock=self._lock,
            pending=self._pending,
            files=self._files,
            clock=self.now_ns,
            add=store.add,
            check_sizes=store.check_sizes,
            waiting_bytes_max=settings.waiting_bytes_max,
            journal_bytes=store.journal_bytes,
            item_bytes_max=store.item_bytes_max,
            journal_max_ns=settings.journal_max_us * 1000,
        )

    def add(self, contents: list[bytes]) -> int:
        """Add items, and return the first one's id; the lock is held. They wait for a flush.

        Where a full segment waits behind one in flight it is made. Raises `UsageError` where an
        item is too large.
        """
        store = self._store
        first = store.add(contents)
        if store.in_flight is not None and store.full_segment:
            store.prepare(self.now_ns())
        return first

    def changes_now(self) -> tuple[int, bool]:
        """Return how many status changes there have been, and whether all are durable."""
        with self._lock:
            changes = self._store.changes_added
            return changes, self.durable_changes >= changes

    # -- putting and committing -------------------------------------------------------------

    def put(self, contents: list[bytes]) -> int:
        """Add items, which wait for a flush, and return the first one's id.

        Raises `UsageError` where one is too large.
        """
        with self._lock:
            return self.add(contents)

    def commit(
        self,
        puts: Sequence[bytes],
        ends: Sequence[tuple[int, int]],
        marks: Sequence[tuple[int, int]],
        producers: Mapping[bytes, ProducerState] | None,
    ) -> Committed:
        """Add a group, which waits for a flush. Raises `UsageError` as `Delivery.commit` does."""
        self.check()
        group, forward = self._delivery.commit(list(puts), ends, marks, producers)
        ends_by = {
            status: [number for number, end in ends if end == status]
            for status in (Status.DELIVERED, Status.CANCELLED, Status.EXPIRED)
        }
        with self._lock:
            pending = self._pending
            return Committed(
                group.first_id,
                group.end_id,
                pending.groups_added if group.among_items else 0,
                0 if group.among_items else pending.changes_added,
                ends_by,
                forward,
            )

    def check_commit(
        self,
        puts: Sequence[bytes],
        changes: int,
        producers: Mapping[bytes, ProducerState] | None = None,
    ) -> None:
        """Check that a `commit` of these items, so many ends and marks, and producers' states fits.

        Raises `UsageError` where it does not fit into a segment, or where the queue's format has no
        groups.
        """
        group = Group([(0, 1, Status.DELIVERED)] * changes, producers or {})
        self._store.check_group(group, list(puts))

    def has_committed(self, committed: Committed) -> bool:
        """Return whether that group is durable."""
        return self.durable_groups >= committed.groups and self.durable_changes >= committed.changes

    def report_committed(self, committed: Committed) -> None:
        """Call the callbacks for what a durable group ended."""
        self.call_back(self.on_delivered, committed.ends[Status.DELIVERED])
        self.call_back(self.on_cancelled, committed.ends[Status.CANCELLED])
        self.call_back(self.on_expired, committed.ends[Status.EXPIRED])
        self.call_back(self.on_forward, committed.forward)

    def producer(self, producer: bytes) -> ProducerState | None:
        """Return a producer's (epoch, sequence), in-flight changes included; None: not known."""
        with self._lock:
            return self._store.producers.latest.get(producer)

    def producers(self) -> dict[bytes, ProducerState]:
        """Return every producer's (epoch, sequence), in-flight changes included, by id."""
        with self._lock:
            return dict(self._store.producers.latest)

    # -- figures ----------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether what waits for the disk is below its limit."""
        return self._pending.content_bytes < self.settings.waiting_bytes_max

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits for the disk and is not in a segment in flight."""
        return self._store.has_waiting

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the items that wait for the disk, their table entries included."""
        return self._pending.content_bytes

    @property
    def next_id(self) -> int:
        """The id that the next item gets."""
        return self._pending.next_id

    @property
    def visible_end(self) -> int:
        """End of the ids that consumers may get: those below it have been durable."""
        return self._store.visible_end

    @property
    def queue_id(self) -> bytes:
        """The 16 bytes that identify the queue, made with it."""
        return self._store.queue_id

    @property
    def version(self) -> int:
        """Version of the format of the queue's files."""
        return self._store.version

    @property
    def incarnation(self) -> int:
        """Incarnation of the newest block; it rises as another block is begun."""
        return self._store.incarnation

    @property
    def item_bytes_max(self) -> int:
        """Size of the largest item that a block holds."""
        return self._store.item_bytes_max

    @property
    def file_bytes(self) -> int:
        """Size of the files of all blocks."""
        return len(self._store.blocks) * self._store.geometry.block_bytes

    @property
    def damaged(self) -> int:
        """Number of items that did not verify when they were to be handed out."""
        return self._delivery.damaged

    def statistics(self) -> dict[str, Any]:
        """Return figures of the queue, for people and for metrics."""
        with self._lock:
            return self._figures()

    def _figures(self) -> dict[str, Any]:
        store, counts = self._store, self._store.counts
        return {
            "pending": sum(block.active for block in store.live),
            "handed_out": len(self._delivery.handed),
            "waiting_bytes": store.waiting_bytes,
            "next_id": store.next_id,
            "blocks": len(store.blocks),
            "blocks_free": sum(not block.incarnation or block.reusable for block in store.blocks),
            "blocks_max": self.settings.blocks_max,
            "flushes": counts.flushes,
            "flushes_prepared": counts.prepared,
            "items": counts.items,
            "content_bytes": counts.content_bytes,
            "journal_bytes": counts.journal_bytes,
            "changes": counts.changes,
            "checkpoints": counts.checkpoints,
            "blocks_reused": counts.blocks_reused,
            "blocks_grown": counts.blocks_grown,
            "growth_failures": self.growth_failures,
            "stalls": counts.stalls,
            "groups": counts.groups,
            "moved": counts.moved,
            "producers": len(store.producers.latest),
            "producers_forgotten": store.producers.forgotten,
            "format": store.version,
            "damaged": self._delivery.damaged + self.report.items_damaged,
            "recovery_ms": self.recovery_ns / 1e6,
            "durability": self.settings.durability,
            "stopped": str(self.stopped) if self.stopped else "",
        }

    # -- handing out ------------------------------------------------------------------------

    def take(self, limit: int) -> list[Item]:
        """Take up to `limit` pending items, oldest first, that no other consumer has."""
        return self._read(lambda: self._delivery.take(limit))

    def claim(self, limit: int) -> list[tuple[int, Block]]:
        """Take as `take` does, but without reading: return ids and their blocks.

        The caller reads them with a `new_reader`, and calls `spoil` for those that do not verify.
        """
        return self._delivery.claim(limit)

    def hold(self, number: int) -> None:
        """Hold an item for its owner: it neither expires nor is it cancelled with the others.

        `claim` may still return it.
        """
        self._delivery.hold(number)

    def in_hand(self, number: int) -> bool:
        """Return whether a consumer has this item."""
        return number in self._delivery.handed

    def spoil(self, number: int) -> None:
        """Mark an item as damaged, because its bytes do not verify.

        One that was moved while the caller read its old slot is given back instead.
        """
        self._delivery.spoil(number)

    # -- reading ----------------------------------------------------------------------------

    def peek(self, after: int, limit: int) -> list[Item]:
        """Return up to `limit` undelivered items with ids above `after`, handed out or not."""
        return self._read(lambda: self._delivery.peek(after, limit))

    def peek_raw(self, after: int, limit: int) -> list[Item]:
        """Do as `peek`, for a caller that calls `stop` itself where it raises `OSError`."""
        return self._delivery.peek(after, limit)

    def read(self, number: int) -> bytes | None:
        """Read a pending item's content; None: it is not pending, or does not verify.

        Raises `OSError`.
        """
        return self._delivery.read(number)

    def read_many(self, numbers: Sequence[int], bytes_max: int) -> dict[int, bytes | None]:
        """Read the first of several items, ascending, until `bytes_max` bytes or more are read.

        Returns contents by id, as `read` does. Items that lie together are read together, and the
        segment of the last is kept for the next call: one thread at a time. Raises `OSError`.
        """
        return self._delivery.read_many(numbers, bytes_max)

    def at_hand(self, number: int) -> bytes | None:
        """Return an item's content where `read_many` has its segment in memory, else None.

        Also None where the item is not pending. Must not be called while `read_many` runs.
        """
        return self._delivery.at_hand(number)

    def find(self, number: int) -> Block | None:
        """Return the block with an item's bytes, whatever its status; None: recycled since."""
        return self._delivery.find(number)

    def new_reader(self) -> SegmentReader:
        """Return a reader of items in the blocks that `claim` and `find` return; for one thread."""
        return SegmentReader(self._files)

    def walk(self) -> Iterator[list[tuple[int, int, bytes]]]:
        """Yield everything undelivered as lists of (id, mark, content), oldest first.

        Raises `OSError`.
        """
        return self._delivery.walk()

    def walk_blocks(self, first: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield (slot, content) of all items in the blocks in use, from slot `first` on.

        Whatever their status; None where they do not verify. For an owner that keeps an index of
        them, when the queue is opened. Raises `OSError`.
        """
        return self._delivery.walk_blocks(first)

    def mark_of(self, number: int) -> int:
        """Return the mark of a pending item, or 0."""
        return self._delivery.mark_of(number)

    def status(self, number: int) -> Status | None:
        """Return an item's status; None: the id is unused, or ended more than a day ago."""
        return self._delivery.status(number)

    # -- ending -----------------------------------------------------------------------------

    def deliver(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Record that items were delivered.

        Returns those that were pending, and those of them whose cancel is to be forwarded.
        """
        return self._delivery.deliver(numbers)

    def release(self, number: int) -> Status:
        """Give an item back, and return its status now.

        It is cancelled or expired where its cancel, or the end of its day, came meanwhile; else it
        is pending and the next to be handed out.
        """
        return self._delivery.release(number)

    def cancel(self, number: int) -> tuple[CancelAnswer, bool]:
        """Cancel one item; return the answer, and whether this call cancelled it.

        Where the answer is DELIVERED, the cancel is to be forwarded.
        """
        return self._delivery.cancel_now(number)

    def close_order(self, number: int) -> None:
        """Record that a delivered item's order is finished: no cancel of it is forwarded."""
        self._delivery.close_order(number)

    def day_over(self) -> list[int]:
        """Expire what is left of a trading day that ended since the last call; return the ids."""
        if not self._begin_day():
            return []
        return self._read(lambda: self._delivery.expire(self.day_ns))

    def begin_day(self) -> int:
        """Return the first id of a trading day that began since the last call; 0 where none did.

        For an owner that expires what is left of the day before, instead of `day_over`. Raises
        `OSError`.
        """
        return self._delivery.first_since(self.day_ns) if self._begin_day() else 0

    def _begin_day(self) -> bool:
        """Note that another trading day has begun; return whether one has."""
        began = self.settings.day_began_ns(self.now_ns()) if self.day_ns else 0
        if began <= self.day_ns:
            return False
        self.day_ns = began
        return True

    def cancel_all(self) -> tuple[list[int], list[int]]:
        """Cancel everything; return the cancelled ids, and those to forward."""
        return self._read(lambda: self._delivery.cancel_all(self.since_ns))

    def cancel_all_by_page(self, limit: int) -> tuple[list[int], list[int], ForwardPage]:
        """Cancel everything, for a caller that forwards page by page.

        Returns the cancelled ids, those that consumers have, and the first page of what is to be
        forwarded.
        """
        return self._read(lambda: self._delivery.cancel_all_by_page(self.since_ns, limit))

    def forward_page(self, after: int, until: int, limit: int) -> ForwardPage:
        """Return a further page of what is to be forwarded."""
        return self._read(lambda: self._delivery.forward_page(self.since_ns, after, until, limit))

    @property
    def since_ns(self) -> int:
        """Start of what may need forwarding, ns: the day of anything earlier is over."""
        return self.day_ns or self.now_ns() - KEEP_NS

    # -- notifying --------------------------------------------------------------------------

    def call_back(self, callback: Callback | None, numbers: list[int]) -> None:
        """Call the callback for each id."""
        if callback is not None:
            for number in numbers:
                callback(number)

    def report_cancelled(self, number: int, answer: CancelAnswer, changed: bool) -> None:
        """Call the callback for the outcome of a cancel; a cancelled item is reported once."""
        if changed:
            self.call_back(self.on_cancelled, [number])
        elif answer is CancelAnswer.DELIVERED:
            self.call_back(self.on_forward, [number])

    def report_released(self, number: int, status: Status) -> None:
        """Call the callback for the status of an item that was given back."""
        if status is Status.CANCELLED:
            self.call_back(self.on_cancelled, [number])
        elif status is Status.EXPIRED:
            self.call_back(self.on_expired, [number])


class QueueInterface:
    """Base of the interfaces of a queue for asyncio and for threads."""

    engine: Engine

    def mark_of(self, number: int) -> int:
        """Return the mark of a pending item, or 0."""
        return self.engine.mark_of(number)

    def walk(self) -> Iterator[list[tuple[int, int, bytes]]]:
        """Yield everything undelivered as lists of (id, mark, content), oldest first.

        For an owner that keeps ids in memory, when the queue is opened.
        """
        return self.engine.walk()

    def producer(self, producer: bytes) -> ProducerState | None:
        """Return a producer's (epoch, sequence); None where it is not known."""
        return self.engine.producer(producer)

    def producers(self) -> dict[bytes, ProducerState]:
        """Return every producer's (epoch, sequence), by id."""
        return self.engine.producers()

    def close_order(self, number: int) -> None:
        """Record that a delivered item is finished at its destination.

        `cancel_all` does not forward it any more.
        """
        self.engine.close_order(number)

    def status(self, number: int) -> Status | None:
        """Return an item's status; None: the id is unused, or ended more than a day ago."""
        return self.engine.status(number)

    def statistics(self) -> dict[str, Any]:
        """Return figures of the queue, by name."""
        return self.engine.statistics()
