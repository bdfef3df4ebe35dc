"""An open queue between its callers and the disk: locks, one write at a time, one way to stop.

What it is for: `PersistentQueue` (asyncio) and `BlockingQueue` (threads) are both an `Engine` with
a way of waiting. What waits for the disk is guarded by `lock`, what items have become by the lock
of each block (`Delivery`, whose methods take them; nobody who holds `lock` may call those). All are
held for microseconds; the writes and syncs of a flush, and the making of a new block, are done
without any.

What it promises: whoever flushes next takes all that waits, so that while one sync is under way the
next segment gathers. The first failed write or sync stops the queue: everybody who waits, or comes
later, is told so (`QueueStopped`), nothing is tried again, nothing more is acknowledged.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.journal.cancels import CancelAnswer, ForwardPage
from feedhandler.journal.delivery import Delivery
from feedhandler.journal.ended import KEEP_NS
from feedhandler.journal.files import Create, Files, RealFiles, carry_out
from feedhandler.journal.groups import ProducerState
from feedhandler.journal.layout import Status
from feedhandler.journal.mutex import Mutex
from feedhandler.journal.opening import open_store
from feedhandler.journal.owner import Owner
from feedhandler.journal.reading import Item
from feedhandler.journal.recovery import RecoveryReport, block_path, read_control
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import BlocksNeeded, Flush, Store
from feedhandler.notes import Level, tell

#: After a block could not be made the next attempt waits.
GROWTH_PAUSE_NS = 5_000_000_000
#: What is moved in one turn at most: items, and their bytes but for the first one's.
MOVE_ITEMS_MAX, MOVE_BYTES_MAX = 256, 256 << 10
_HINT = "what was acknowledged counts; see to the disk, then open the queue anew"


class QueueStopped(FeedhandlerError):
    """A write or a sync failed: the queue takes, gives and acknowledges nothing any more."""


class QueueClosed(FeedhandlerError):
    """The queue was closed while somebody waited for it."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A group that was taken: its items' ids (`first_id` to `end_id` - 1), with which counts of the
    engine it is durable (`Engine.has_committed`), what ends by it, and what is to be forwarded."""

    first_id: int
    end_id: int
    groups: int
    marks: int
    ends: dict[Status, list[int]]
    forward: list[int]


Callback = Callable[[int], None]
Answer = TypeVar("Answer")


class Engine:
    """See the module. `files` is for tests; `clock` gives ns since 1970.

    Of the four callbacks each is called with an id once what it says is durable: `on_delivered`,
    `on_cancelled`, `on_expired`; `on_forward`: this one is to be cancelled where it was delivered.
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
        self.clock = clock
        self.stopped: FeedhandlerError | None = None
        self.durable_id = 0
        self.durable_marks = self.durable_groups = 0
        self.growth_failures = 0
        self.on_delivered: Callback | None = None
        self.on_cancelled: Callback | None = None
        self.on_expired: Callback | None = None
        self.on_forward: Callback | None = None
        #: Called, by whatever thread it is, when the disk has failed: who waits is to be told.
        self.on_stop: Callable[[], None] | None = None
        self._growth_after_ns = 0
        #: The latest try to grow failed.
        self._cramped = False
        self._owner = Owner(self.folder)
        try:
            self.files: Files = files or RealFiles()
            began = clock()
            opened = open_store(self.files, self.folder, settings, os.urandom(16), began, Mutex)
            self.recovery_ns = max(clock() - began, 0)
        except BaseException:
            self._owner.release()
            raise
        self.store: Store = opened.store
        self.lock = cast(Mutex, self.store.lock)
        self.delivery: Delivery = opened.delivery
        self.report: RecoveryReport = opened.report
        self.expired_at_open = opened.expired
        self.durable_id = self.store.visible_end - 1
        self.durable_marks = self.store.marks_added
        self.day_ns = settings.day_began_ns(began)

    # -- the disk ---------------------------------------------------------------------------

    def flush(self) -> bool:
        """Make durable what waits, one segment; False where there is nothing, or no room for it.
        Only one thread at a time may be in here. Raises `QueueStopped`."""
        self.check()
        flush = self.begin()
        if flush is None:
            return False
        self._carry_out(flush.steps)
        self._settle()
        return True

    def _settle(self) -> None:
        store = self.store
        assert store.in_flight is not None
        if store.in_flight.groups:  # they have changed something in any block
            with store.everything(), self.lock:
                self._count(store.settle())
        else:
            with store.live[-1].lock, self.lock:
                self._count(store.settle())

    def _count(self, flush: Flush) -> None:
        """Take note of what is durable with that flush."""
        self.durable_id = max(self.durable_id, flush.next_id - 1)
        self.durable_marks = flush.marks_end
        self.durable_groups = flush.groups_end

    def begin(self) -> Flush | None:
        """A segment of what waits, for who writes it by himself and then says `finish`: in place of
        `flush`. It is to be written after the one on its way, of which there may be one; None:
        nothing waits, no block has room for it, or it does not go behind that one."""
        store = self.store
        try:
            with self.lock:
                if store.in_flight is not None:
                    return store.prepare(self.clock())
                return store.seal(self.clock(), alone=False)
        except BlocksNeeded:
            with store.everything(), self.lock:
                return store.seal(self.clock())

    def finish(self) -> None:
        """The segment on its way is on the disk; the one behind it is on its way now."""
        self._settle()
        self.store.go_on()

    @property
    def growth_due(self) -> bool:
        """Whether one more block is wanted, and it is time to try."""
        return self.store.wants_block and self.clock() >= self._growth_after_ns

    def grow(self) -> bool:
        """Make one more block where one is wanted; whether that was done. Where the disk has no
        room for it the queue goes on without, and tries again later."""
        with self.lock:
            if self.stopped or not self.growth_due:
                return False
            growth = self.store.grow(self.clock())
        failure: OSError | None = None
        try:
            carry_out(self.files, growth.steps)
        except OSError as error:
            self._give_up_growth(growth.steps[0])
            made, failure = False, error
        else:
            made = True
        with self.lock:
            self.store.grown(growth, made=made)
            if not made:
                self.growth_failures += 1
                self._growth_after_ns = self.clock() + GROWTH_PAUSE_NS
            changed, self._cramped = self._cramped is made, not made
        if changed:
            self._tell_growth(made, failure)
        return made

    def move_some(self) -> int:
        """Where blocks are short, and only a few items that nobody takes keep one of them from
        being used anew: have some of those written again, with the next segment. How many: 0 where
        there is nothing to do. For the queue's owner, once a turn; it reads from the disk."""
        store = self.store
        self.check()
        if len(store.blocks) < self.settings.blocks_max and not self._cramped:
            return 0
        block = store.pinned()
        if block is None:
            return 0
        return self._read(lambda: self.delivery.move(block, MOVE_ITEMS_MAX, MOVE_BYTES_MAX))

    def _tell_growth(self, made: bool, failure: OSError | None) -> None:
        """Tell the operator, once, that the queue cannot grow, and once that it grows again."""
        if made:
            tell("queue_grows", f"queue {self.folder}: grows again", Level.INFO, queue=self.folder)
        else:
            why = failure.strerror if failure is not None else "unknown"
            text = f"queue {self.folder}: cannot grow ({why}); make room, it tries again by itself"
            tell("queue_cannot_grow", text, Level.ERROR, queue=self.folder)

    def _give_up_growth(self, made: Any) -> None:
        """Take the unfinished block's room back. The control file does not name it, or does and
        has not been synced: then the block is whole and stays."""
        if isinstance(made, Create) and not self._named(made.path):
            with contextlib.suppress(OSError):
                self.files.remove(made.path)

    def _named(self, path: str) -> bool:
        """Whether the control file on disk names a block."""
        try:
            control = read_control(self.files, self.folder)
        except (FeedhandlerError, OSError):
            return True
        return any(block_path(self.folder, place) == path for place in control.blocks)

    def _carry_out(self, steps: list[Any]) -> None:
        try:
            carry_out(self.files, steps)
        except OSError as error:
            raise self.stop(error) from error

    def _read(self, read: Callable[[], Answer]) -> Answer:
        """What `read` finds. A disk that cannot be read stops the queue as well."""
        self.check()
        try:
            return read()
        except OSError as error:
            raise self.stop(error) from error

    def stop(self, error: OSError) -> FeedhandlerError:
        """The disk failed: nothing goes any more; what everybody is told."""
        reason = error.strerror or error
        self.stopped = QueueStopped(
            f"{self.folder}: the queue has stopped: its disk failed: {reason}", _HINT
        )
        if self.on_stop is not None:
            self.on_stop()
        return self.stopped

    def check(self) -> None:
        """Raises `QueueStopped` or `QueueClosed` where the queue does nothing any more."""
        if self.stopped is not None:
            raise self.stopped

    def close(self) -> None:
        """Write what waits and a last round of checkpoints, and let the queue go. A queue that
        has stopped is let go as it is."""
        try:
            if self.stopped is None:
                while self.flush():
                    pass
                with self.lock:
                    steps = self.store.tidy(False)
                self._carry_out(steps)
        finally:
            self.stopped = self.stopped or QueueClosed(f"{self.folder}: the queue is closed", "")
            self.files.close()
            self._owner.release()

    # -- what callers ask -------------------------------------------------------------------

    def add(self, contents: list[bytes]) -> int:
        """Take items, under the lock; the first one's id. They wait for a flush. Raises
        `UsageError`."""
        store = self.store
        first = store.add(contents)
        if store.in_flight is not None and store.full_segment:
            store.prepare(self.clock())
        return first

    def commit(
        self,
        puts: Sequence[bytes],
        ends: Sequence[tuple[int, int]],
        marks: Sequence[tuple[int, int]],
        producers: Mapping[bytes, ProducerState] | None,
    ) -> Committed:
        """Take a group, which waits for a flush. Raises `UsageError`."""
        self.check()
        group, forward = self.delivery.commit(list(puts), ends, marks, producers)
        ends_by = {
            status: [number for number, end in ends if end == status]
            for status in (Status.DELIVERED, Status.CANCELLED, Status.EXPIRED)
        }
        with self.lock:
            waiting = self.store.waiting
            return Committed(
                group.first_id,
                group.end_id,
                waiting.groups_added if group.among_items else 0,
                0 if group.among_items else waiting.marks_added,
                ends_by,
                forward,
            )

    def has_committed(self, committed: Committed) -> bool:
        """Whether that group is durable."""
        return self.durable_groups >= committed.groups and self.durable_marks >= committed.marks

    def tell_committed(self, committed: Committed) -> None:
        """Tell what ended with a group that is durable."""
        self.tell(self.on_delivered, committed.ends[Status.DELIVERED])
        self.tell(self.on_cancelled, committed.ends[Status.CANCELLED])
        self.tell(self.on_expired, committed.ends[Status.EXPIRED])
        self.tell(self.on_forward, committed.forward)

    def producer(self, producer: bytes) -> ProducerState | None:
        """How far a producer has come, with what is on its way to the disk; None: not known."""
        with self.lock:
            return self.store.producers.latest.get(producer)

    def producers(self) -> dict[bytes, ProducerState]:
        """How far every producer has come, with what is on its way to the disk."""
        with self.lock:
            return dict(self.store.producers.latest)

    @property
    def has_room(self) -> bool:
        """Whether what waits for the disk is within its bound."""
        return self.store.waiting_bytes < self.settings.waiting_bytes_max

    def take(self, limit: int) -> list[Item]:
        """Up to `limit` pending items, oldest first, that nobody else has."""
        return self._read(lambda: self.delivery.take(limit))

    def look(self, after: int, limit: int) -> list[Item]:
        """Up to `limit` undelivered items with ids above `after`, handed out or not."""
        return self._read(lambda: self.delivery.look(after, limit))

    def day_over(self) -> list[int]:
        """Where a trading day has ended since the last call: what expired by that."""
        if not self.day_ns:
            return []
        began = self.settings.day_began_ns(self.clock())
        if began <= self.day_ns:
            return []
        self.day_ns = began
        return self._read(lambda: self.delivery.expire(began))

    def cancel_all(self) -> tuple[list[int], list[int]]:
        """Cancel everything: the cancelled ids, and those to forward."""
        return self._read(lambda: self.delivery.cancel_all(self._since_ns))

    def cancel_all_by_page(self, limit: int) -> tuple[list[int], list[int], ForwardPage]:
        """Cancel everything: the cancelled ids, those that consumers have, and the first page of
        what is to be forwarded."""
        return self._read(lambda: self.delivery.cancel_all_by_page(self._since_ns, limit))

    def forward_page(self, after: int, until: int, limit: int) -> ForwardPage:
        """A further page of what is to be forwarded."""
        return self._read(lambda: self.delivery.forward_page(self._since_ns, after, until, limit))

    @property
    def _since_ns(self) -> int:
        """What came before needs no forwarding: its day is over."""
        return self.day_ns or self.clock() - KEEP_NS

    def marks_now(self) -> tuple[int, bool]:
        """How many status changes there have been, and whether all of them are durable."""
        with self.lock:
            marks = self.store.marks_added
            return marks, self.durable_marks >= marks

    def tell(self, callback: Callback | None, numbers: list[int]) -> None:
        """Call back for each id."""
        if callback is not None:
            for number in numbers:
                callback(number)

    def tell_cancelled(self, number: int, answer: CancelAnswer, changed: bool) -> None:
        """Tell what came of cancelling one item; that it is cancelled is told once."""
        if changed:
            self.tell(self.on_cancelled, [number])
        elif answer is CancelAnswer.DELIVERED:
            self.tell(self.on_forward, [number])

    def tell_released(self, number: int, status: Status) -> None:
        """Tell what an item that was given back has become."""
        if status is Status.CANCELLED:
            self.tell(self.on_cancelled, [number])
        elif status is Status.EXPIRED:
            self.tell(self.on_expired, [number])

    def statistics(self) -> dict[str, Any]:
        """Figures of the queue, for people and for metrics."""
        store, counts = self.store, self.store.counts
        return {
            "pending": sum(block.active for block in store.live),
            "handed_out": len(self.delivery.handed),
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
            "damaged": self.delivery.damaged + self.report.items_damaged,
            "recovery_ms": self.recovery_ns / 1e6,
            "durability": self.settings.durability,
            "stopped": str(self.stopped) if self.stopped else "",
        }

    def status(self, number: int) -> Status | None:
        """What an item is; None where no item had that id, or it ended more than a day ago."""
        return self.delivery.status(number)
