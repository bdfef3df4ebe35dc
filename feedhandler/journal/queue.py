"""The queue for asyncio: `async with PersistentQueue.open(folder) as queue`.

A thread of its own does the writing, so that a sync never holds the event loop up. It is woken once
all callbacks that are ready have had their turn, so that producers that were acknowledged together
are in the next segment together; at once where an item has waited `journal_max_us`, or the journal
is full. While it writes, the next segment gathers, and it goes on with that without being told.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.journal.delivery import CancelAnswer, Item
from feedhandler.journal.engine import Callback, Engine, QueueStopped
from feedhandler.journal.layout import Status
from feedhandler.journal.settings import QueueSettings

#: Items that `pending` reads at a time.
LOOK = 64
#: Whether a trading day is over is looked at so often: the clock may be set.
DAY_CHECK_SECONDS = 1.0
#: While no block can be had the writer looks again so often.
STALL_SECONDS = 0.05


class PersistentQueue:
    """A persistent queue in one event loop; made by `PersistentQueue.open`.

    Raises `UsageError` (another process has it, an item is too large), `PeerError` (its files
    cannot be believed), `QueueStopped` (the disk failed), `QueueClosed`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._durable: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._marked: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._consumers: deque[asyncio.Future[None]] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._work = threading.Event()
        self._ending = False
        self._asked = False
        self._asked_ns = 0
        self._max_ns = engine.settings.journal_max_us * 1000
        #: Called in the event loop after each flush, and once the queue has stopped.
        self.on_settled: Callable[[], None] | None = None
        self._growth: threading.Thread | None = None
        self._writer = threading.Thread(target=self._write, name="journal", daemon=True)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        folder: str | os.PathLike[str],
        settings: QueueSettings | None = None,
        *,
        on_delivered: Callback | None = None,
        on_cancelled: Callback | None = None,
        on_expired: Callback | None = None,
        on_forward: Callback | None = None,
        **options: Any,
    ) -> AsyncIterator["PersistentQueue"]:
        """The queue in `folder`, made where none is, recovered where one is; closed at the end.

        The callbacks are called in the event loop with an id, once what they say is durable;
        `on_forward`: cancel this one at its destination, it was delivered.
        """
        settings = settings or QueueSettings()
        engine = await asyncio.to_thread(lambda: Engine(folder, settings, **options))
        engine.on_delivered, engine.on_cancelled = on_delivered, on_cancelled
        engine.on_expired, engine.on_forward = on_expired, on_forward
        queue = cls(engine)
        queue._writer.start()
        day = asyncio.create_task(queue._watch_days())
        try:
            engine.tell(on_expired, engine.expired_at_open)
            yield queue
        finally:
            day.cancel()
            await queue._close()

    # -- producing --------------------------------------------------------------------------

    async def put(self, content: bytes) -> int:
        """Put one item; its id, once it is durable. Waits where the queue is full."""
        engine = self.engine
        while not engine.has_room:
            engine.check()
            await self._wait(self._room)
        with engine.lock:
            engine.check()
            number = engine.add([content])
        future = self._loop.create_future()
        self._durable.append((number, future))
        self._ask()
        await future
        return number

    async def put_many(self, contents: Sequence[bytes]) -> range:
        """Put items; their ids, once all are durable. Waits where the queue is full."""
        items = list(contents)
        engine = self.engine
        while not engine.has_room:
            engine.check()
            await self._wait(self._room)
        with engine.lock:
            engine.check()
            first = engine.add(items)
        last = first + len(items) - 1
        if items:
            future = self._loop.create_future()
            self._durable.append((last, future))
            self._ask()
            await future
        return range(first, last + 1)

    def put_soon(self, contents: list[bytes]) -> int:
        """Put items (at least one) without waiting: the first one's id. They are durable once
        `engine.durable_id` has come that far; `on_settled` tells when to look. Whoever puts this
        way asks `engine.has_room` first."""
        engine = self.engine
        with engine.lock:
            engine.check()
            first = engine.add(contents)
        self._ask()
        return first

    # -- consuming --------------------------------------------------------------------------

    async def get(self) -> Item:
        """The next pending item, for this consumer alone."""
        return (await self.get_many(1))[0]

    async def get_many(self, limit: int) -> list[Item]:
        """The next pending items, at least one, for this consumer alone."""
        while not (items := self.take_now(limit)):
            await self._wait(self._consumers)
        return items

    def take_now(self, limit: int) -> list[Item]:
        """The next pending items, for this consumer alone; none where nothing is pending."""
        with self._telling():
            return self.engine.take(limit)

    async def pending(self) -> AsyncIterator[Item]:
        """What is undelivered, oldest first, without taking it: handed out or not."""
        after = 0
        while True:
            with self._telling():
                items = self.engine.look(after, LOOK)
            if not items:
                return
            for item in items:
                yield item
            after = items[-1].id

    async def delivered(self, *numbers: int) -> int:
        """These items were truly delivered; how many were pending, once that is durable."""
        delivered, forward = await self._durably(lambda: self.engine.delivery.deliver(numbers))
        self.engine.tell(self.engine.on_delivered, delivered)
        self.engine.tell(self.engine.on_forward, forward)
        return len(delivered)

    async def release(self, number: int) -> None:
        """Give an item back: it is handed out again, unless it was to be cancelled meanwhile or
        its day has ended."""
        status = await self._durably(lambda: self.engine.delivery.release(number))
        self.engine.tell_released(number, status)
        self._wake(self._consumers)

    # -- ending -----------------------------------------------------------------------------

    async def cancel(self, number: int) -> CancelAnswer:
        """Cancel one item; what came of it, once that is durable."""
        answer: CancelAnswer
        answer, changed = await self._durably(lambda: self.engine.delivery.cancel_now(number))
        self.engine.tell_cancelled(number, answer, changed)
        return answer

    async def cancel_all(self) -> tuple[list[int], list[int]]:
        """Cancel everything pending: those ids, and those to be cancelled at their destination."""
        cancelled, forward = await self._durably(self.engine.cancel_all)
        self.engine.tell(self.engine.on_cancelled, cancelled)
        self.engine.tell(self.engine.on_forward, forward)
        return cancelled, forward

    async def expire(self) -> list[int]:
        """Expire what is left of trading days that are over; the queue looks by itself too."""
        expired: list[int] = await self._durably(self.engine.day_over)
        self.engine.tell(self.engine.on_expired, expired)
        return expired

    def close_order(self, number: int) -> None:
        """A delivered item is done with at its destination: `cancel_all` forwards it no more."""
        self.engine.delivery.close_order(number)

    def status(self, number: int) -> Status | None:
        """What an item is; None where no item had that id, or it ended more than a day ago."""
        return self.engine.status(number)

    def statistics(self) -> dict[str, Any]:
        """Figures of the queue."""
        with self.engine.lock:
            return self.engine.statistics()

    # -- waiting ----------------------------------------------------------------------------

    def change_soon(self, change: Callable[[], Any]) -> tuple[Any, int]:
        """Change something without waiting: what came of it, and the `engine.durable_marks` with
        which it is durable; `on_settled` tells when to look."""
        self.engine.check()
        with self._telling():
            result = change()
        marks, done = self.engine.marks_now()
        if not done:
            self._ask()
        return result, marks

    async def _durably(self, change: Callable[[], Any]) -> Any:
        """Change something; what came of it, once that is durable."""
        result, marks = self.change_soon(change)
        if self.engine.durable_marks < marks:
            future = self._loop.create_future()
            self._marked.append((marks, future))
            await future
        return result

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Where the queue stops by this, the writer tells everybody who waits."""
        try:
            yield
        except QueueStopped:
            self._work.set()
            raise

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Wait until there may be something."""
        future = self._loop.create_future()
        waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # Whoever was woken and goes away passes it on.
            if future.done() and not future.cancelled():
                self._wake(waiting)
            raise

    def _wake(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Everybody who waits for that looks again."""
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _ask(self) -> None:
        """Have the writer woken: when all that is ready has had its turn, or it is time."""
        if not self._asked:
            self._asked = True
            self._asked_ns = self.engine.clock()
            self._loop.call_soon(self._go)
        elif self.engine.store.full_segment or self.engine.clock() - self._asked_ns >= self._max_ns:
            self._work.set()

    def _go(self) -> None:
        self._asked = False
        self._work.set()

    def _settled(self) -> None:
        """In the event loop, after a flush: tell whoever waited for it."""
        engine = self.engine
        error = engine.stopped
        for waiting, durable in (
            (self._durable, engine.durable_id),
            (self._marked, engine.durable_marks),
        ):
            while waiting and (error is not None or waiting[0][0] <= durable):
                target, future = waiting.popleft()
                if future.done():
                    continue  # whoever waited has gone away
                if error is not None and target > durable:
                    future.set_exception(error)
                else:
                    future.set_result(None)
        self._wake(self._consumers)
        if engine.has_room or error is not None:
            self._wake(self._room)
        if self.on_settled is not None:
            self.on_settled()

    async def _watch_days(self) -> None:
        while self.engine.day_ns:
            await asyncio.sleep(DAY_CHECK_SECONDS)
            await self.expire()

    async def _close(self) -> None:
        self._ending = True
        self._work.set()
        await asyncio.to_thread(self._writer.join)
        if self._growth is not None:
            await asyncio.to_thread(self._growth.join)
        try:
            await asyncio.to_thread(self.engine.close)
        finally:
            self._settled()

    # -- the writer's thread ----------------------------------------------------------------

    def _write(self) -> None:
        """Flush whenever there is something, until the queue is closed or the disk fails."""
        engine = self.engine
        while not self._ending:
            self._work.wait(STALL_SECONDS if engine.store.has_waiting else None)
            self._work.clear()
            try:
                while engine.flush():
                    self._loop.call_soon_threadsafe(self._settled)
                    self._grow_beside()
                self._grow_beside()
            except FeedhandlerError:
                self._loop.call_soon_threadsafe(self._settled)
                return

    def _grow_beside(self) -> None:
        """Have one more block made where one is wanted, while flushes go on."""
        if self.engine.growth_due and not (self._growth and self._growth.is_alive()):
            self._growth = threading.Thread(target=self._grow, name="journal growth", daemon=True)
            self._growth.start()

    def _grow(self) -> None:
        self.engine.grow()
        self._work.set()
