# cython: language_level=3, boundscheck=True, wraparound=False
"""Commit scheduling in an event loop: when waiting items become a segment, and who is woken then.

What it is for: `put` and its like add to what waits and await a `CommitWaiter`; this module
decides when the waiting items become a segment, and wakes the tasks once it is durable. Segments,
and checkpoints when they are due, are built in the event loop, which costs less than passing the
interpreter lock to and fro, and are written by a thread that never takes it (`Writer`). That thread
takes the interpreter lock only for steps that are neither a write nor a sync.

A segment is handed over

    when all ready callbacks have run, so that producers that were acknowledged together are in the
        next segment together; at once where an item has waited `journal_max_us`
    when a segment is back from the disk: with everything that has come meanwhile
    when the journal is full, or half of the producers that waited a moment ago are back, even while
        another is in flight: so the disk always has one, and one half of the producers runs while
        the other half's segment is being written

Compiled; the interpreted twin does the same.
"""

import asyncio
import contextlib
import errno
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import cython
from cython.cimports.feedhandler.journal.commit_waiter import CommitWaiter, CommitWaiters
from cython.cimports.feedhandler.journal.mutex import Mutex
from cython.cimports.feedhandler.journal.pending_batch import PendingBatch
from cython.cimports.feedhandler.journal.writer import Writer

from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.journal.files import Files, Sync, Write, WriteThrough, carry_out
from feedhandler.journal.groups import ProducerState

if TYPE_CHECKING:
    from feedhandler.journal.engine import Committed, Engine

Answer = TypeVar("Answer")

#: While no block is free, the queue tries again at this interval.
STALL_SECONDS = 0.05
#: Fewer waiting producers than this are not split into halves: one segment serves them better.
HALVED_MIN = cython.declare(cython.Py_ssize_t, 8)
#: Steps that the thread can do without the interpreter.
_PLAIN = frozenset((Write, WriteThrough, Sync))


@cython.cclass
class CommitScheduler:
    """Commit scheduler of one event loop's queue; see the module.

    `on_settled` is called in the event loop after each flush, and once the queue has stopped.
    """

    engine: Readonly[object]
    on_settled: Public[object]
    _files: object
    _add_all: object
    _check_sizes: object
    _loop: object
    _new_future: object
    _lock: Mutex
    _clock: object
    _durable: CommitWaiters
    _changed: CommitWaiters
    _consumers: Readonly[object]
    _grouped: CommitWaiters
    _room: object
    _pending: PendingBatch
    _writer: Writer
    _room_bytes: cython.Py_ssize_t
    _journal_bytes: cython.Py_ssize_t
    _item_bytes_max: cython.Py_ssize_t
    _direct: cython.bint
    _ending: cython.bint
    _asked: cython.bint
    _stalled: cython.bint
    _growth: object
    _asked_ns: cython.longlong
    _max_ns: cython.longlong
    _handed: cython.longlong
    _done: cython.longlong
    _first_end: cython.longlong
    _second_end: cython.longlong
    _fresh: cython.Py_ssize_t
    _first_asks: cython.Py_ssize_t
    _second_asks: cython.Py_ssize_t
    _peak: cython.Py_ssize_t

    def __init__(self, engine: "Engine") -> None:
        self.engine: Engine = engine
        self.on_settled: Callable[[], None] | None = None
        parts = engine.scheduling()
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._lock, self._pending = parts.lock, parts.pending
        self._clock, self._files = parts.clock, parts.files
        self._add_all, self._check_sizes = parts.add, parts.check_sizes
        self._durable, self._changed = CommitWaiters(), CommitWaiters()
        self._grouped = CommitWaiters()
        self._consumers: deque[asyncio.Future[None]] = deque()
        self._room = deque()
        self._room_bytes = parts.waiting_bytes_max
        self._journal_bytes = parts.journal_bytes
        self._item_bytes_max = parts.item_bytes_max
        # Simulated files of tests have no descriptors.
        self._direct = type(parts.files) is Files
        self._ending = self._asked = self._stalled = False
        self._asked_ns = 0
        self._max_ns = parts.journal_max_ns
        self._handed = self._done = 0
        self._fresh = self._first_asks = self._second_asks = self._peak = 0
        self._first_end = self._second_end = 0
        self._growth = None
        self._writer = Writer()
        self._loop.add_reader(self._writer.event_fd, self._heard)
        engine.on_stop = self._look

    # -- producing --------------------------------------------------------------------------

    async def put(self, content: bytes) -> int:
        """Put one item and return its id once it is durable. Waits where the queue is full."""
        while self._pending.content_bytes >= self._room_bytes:
            self.engine.check()
            await self._wait(self._room)
        waiter: CommitWaiter = self._put(content)
        await waiter
        return waiter.target

    @cython.cfunc
    def _put(self, content: object) -> CommitWaiter:
        """Put one item and return its waiter, whose target is the item's id."""
        if len(content) > self._item_bytes_max:
            self._check_sizes([content])
        self._lock.lock()
        try:
            if self.engine.stopped is not None:
                self.engine.check()
            number: cython.longlong = self._pending.put(content)
        finally:
            self._lock.give()
        waiter: CommitWaiter = self._durable.add(number)
        self._ask()
        return waiter

    async def put_many(self, contents: list[bytes]) -> range:
        """Put items and return their ids once all are durable. Waits where the queue is full."""
        items = list(contents)
        while self._pending.content_bytes >= self._room_bytes:
            self.engine.check()
            await self._wait(self._room)
        first = self._add(items)
        last = first + len(items) - 1
        if items:
            waiter: CommitWaiter = self._durable.add(last)
            self._ask()
            await waiter
        return range(first, last + 1)

    def put_soon(self, contents: list[bytes]) -> int:
        """Put items (at least one) without waiting, and return the first one's id.

        They are durable once `engine.durable_id` has reached them; `on_settled` says when to check.
        The caller checks `engine.has_room` first.
        """
        first = self._add(contents)
        self._ask()
        return first

    def _add(self, items: list) -> int:
        with self._lock:
            self.engine.check()
            return self._add_all(items)

    async def commit(
        self,
        puts: Sequence[bytes] = (),
        ends: Sequence[tuple[int, int]] = (),
        marks: Sequence[tuple[int, int]] = (),
        producers: Mapping[bytes, ProducerState] | None = None,
    ) -> range:
        """Put, end and mark items and set producers' states, all or nothing; wait until durable.

        `ends`: (id, status) each; `marks`: (id, 0 to 127) each; `producers`: (epoch, sequence) by
        id. Returns the new items' ids. Waits where the queue is full. Raises `UsageError` where an
        item is not pending or the group is larger than a segment can be: then nothing was done.
        """
        while puts and self._pending.content_bytes >= self._room_bytes:
            self.engine.check()
            await self._wait(self._room)
        committed = self.commit_soon(puts, ends, marks, producers)
        if self.engine.durable_groups < committed.groups:
            await self._grouped.add(committed.groups)
        elif self.engine.durable_changes < committed.changes:
            await self._changed.add(committed.changes)
        self.engine.report_committed(committed)
        return range(committed.first_id, committed.end_id)

    def commit_soon(
        self,
        puts: Sequence[bytes] = (),
        ends: Sequence[tuple[int, int]] = (),
        marks: Sequence[tuple[int, int]] = (),
        producers: Mapping[bytes, ProducerState] | None = None,
    ) -> "Committed":
        """Do as `commit`, without waiting.

        The group is durable once `engine.has_committed` says so; pass it then to
        `engine.report_committed`. `on_settled` says when to check.
        """
        committed = self.engine.commit(puts, ends, marks, producers)
        self._ask()
        return committed

    def change_soon(self, change: Callable[[], Answer]) -> tuple[Answer, int]:
        """Apply a change without waiting; return its result and the `engine.durable_changes` that
        covers it.

        `on_settled` says when to check.
        """
        self.engine.check()
        result = change()
        changes, done = self.engine.changes_now()
        if not done:
            self._ask()
        return result, changes

    async def _durably(self, change: Callable[[], Answer]) -> Answer:
        """Apply a change and return its result once that is durable."""
        result, changes = self.change_soon(change)
        if self.engine.durable_changes < changes:
            await self._changed.add(changes)
        return result

    # -- waiting ----------------------------------------------------------------------------

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Wait until `_wake` is called for `waiting`; the caller then checks its condition."""
        future = self._new_future()
        waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # A task that is cancelled after it was woken passes the wake-up on.
            if future.done() and not future.cancelled():
                self._wake(waiting)
            raise

    def _wake(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Wake all tasks in `waiting`, each of which checks its condition again."""
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _resolve(self) -> cython.bint:
        """Wake the tasks whose changes are durable, or all where the queue has stopped."""
        engine = self.engine
        error = engine.stopped
        # Tasks are resumed within this call, unless a task is closing the queue and runs this.
        at_once: cython.bint = not self._ending
        try:
            self._durable.complete(engine.durable_id, error, at_once)
            self._changed.complete(engine.durable_changes, error, at_once)
            self._grouped.complete(engine.durable_groups, error, at_once)
        except BaseException:
            self._loop.call_soon(self._heard)  # the others, if the loop goes on
            raise
        if self._consumers:
            self._wake(self._consumers)
        if self._room and (error is not None or engine.has_room):
            self._wake(self._room)
        if self.on_settled is not None:
            self.on_settled()
        return True

    # -- when segments are written ----------------------------------------------------------

    def _ask(self) -> cython.bint:
        """Schedule a segment for something that was just added."""
        self._fresh += 1
        if self._pending.content_bytes >= self._journal_bytes or (
            self._peak >= HALVED_MIN and 2 * self._fresh >= self._peak
        ):
            return self._start()
        if self._handed == self._done:
            if not self._asked:
                self._asked = True
                self._asked_ns = self._clock()
                self._loop.call_soon(self._go)
            elif self._clock() - self._asked_ns >= self._max_ns:
                return self._start()
        return True

    def _go(self) -> None:
        """Start a segment after all ready callbacks have run, unless one is in flight."""
        self._asked = False
        if self.engine.stopped is not None:
            self._resolve()
        elif self._handed == self._done:
            self._start()

    def _start(self) -> cython.bint:
        """Hand a segment over, and a second one behind it where as much again waits."""
        engine = self.engine
        while not self._ending and self._handed - self._done < 2:
            if engine.stopped is not None:
                return False
            flush = engine.begin()
            if flush is None:
                if self._handed == self._done and engine.has_waiting:
                    self._look_later()
                return False
            try:
                end: cython.longlong = self._hand_over(flush.steps)
            except OSError as error:
                engine.stop(error)
                return False
            if self._handed > self._done:
                self._second_asks, self._second_end = self._fresh, end
            else:
                self._first_asks, self._first_end = self._fresh, end
            self._handed += 1
            self._fresh = 0
            if self._pending.content_bytes < self._journal_bytes:
                return True
        return True

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _hand_over(self, steps: list) -> cython.longlong:
        """Hand steps to the writer thread and return the count of `done` that covers them.

        Without steps (checkpoints cover everything) the thread just reports completion. Raises
        `OSError`.
        """
        writer = self._writer
        count: cython.Py_ssize_t = len(steps)
        # Leave a slot for the next hand-over.
        plain: cython.bint = self._direct and 0 < count < writer.room()
        if not plain or not _PLAIN.issuperset(map(type, steps)):
            return writer.call(functools.partial(carry_out, self._files, steps))
        descriptor = self._files.descriptor
        files = [descriptor(step.path) for step in steps]
        number: cython.Py_ssize_t
        end: cython.longlong = 0
        more: cython.bint
        for number in range(count):
            step, more = steps[number], number + 1 < count
            if type(step) is Sync:
                end = writer.sync(files[number], more)
            else:
                through: cython.bint = type(step) is WriteThrough
                end = writer.write(files[number], step.data, step.offset, through, more)
        return end

    def _look_later(self) -> cython.bint:
        """Try again later, because no block is free.

        The events that free one (a block was created, its disk has space again) do not always
        notify the queue.
        """
        if not self._stalled:
            self._stalled = True
            self._loop.call_later(STALL_SECONDS, self._look_again)
        return True

    def _look_again(self) -> None:
        self._stalled = False
        self._grow_beside()
        self._go()

    def _heard(self) -> None:
        """Handle the writer's notification that something was done."""
        self._writer.clear_wakeup()
        self._collect()

    def _collect(self) -> cython.bint:
        """Settle the written segments, start the next one, and wake the tasks that waited."""
        engine, writer = self.engine, self._writer
        done: cython.longlong = writer.done()
        self._peak = self._fresh
        while self._done < self._handed and self._first_end <= done:
            engine.finish()
            self._done += 1
            self._peak += self._first_asks
            self._first_asks, self._second_asks = self._second_asks, 0
            self._first_end = self._second_end
        self._peak += self._first_asks
        crash = writer.failure if engine.stopped is None else None
        if crash is not None:
            engine.stop(OSError(errno.EIO, repr(crash)))
        elif writer.error_number and engine.stopped is None:
            engine.stop(OSError(writer.error_number, os.strerror(writer.error_number)))
        elif self._handed == self._done or 2 * self._fresh >= self._peak >= HALVED_MIN:
            self._start()
        self._resolve()
        self._grow_beside()
        if crash is not None:
            raise crash  # the event loop reports it
        return True

    def _look(self) -> None:
        """Have the event loop check the queue again; any thread may call."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
            self._loop.call_soon_threadsafe(self._go)

    def _grow_beside(self) -> None:
        """Start the thread that creates one more block, where one is wanted."""
        if self._ending or not self.engine.growth_due:
            return
        if self._growth is None or not self._growth.is_alive():
            self._growth = threading.Thread(target=self._grow, name="journal growth", daemon=True)
            self._growth.start()

    def _grow(self) -> None:
        self.engine.grow()
        self._look()

    async def _close(self) -> None:
        stopped = self.engine.stopped
        self._ending = True
        self._loop.remove_reader(self._writer.event_fd)
        await asyncio.to_thread(self._writer.end)
        self._collect()
        failed = self.engine.stopped
        self._writer.close()
        if self._growth is not None:
            await asyncio.to_thread(self._growth.join)
        try:
            await asyncio.to_thread(self.engine.close)
        finally:
            self._resolve()
        if failed is not None and stopped is None:
            raise failed  # the last segments failed, and perhaps no task waited for them
