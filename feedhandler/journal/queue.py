"""The queue for asyncio: `async with PersistentQueue.open(folder) as queue`.

A thread of its own does the writing, so that a sync never holds the event loop up. While it writes,
the next segment gathers; `producers.py` says when which segment is made.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from feedhandler.journal.cancels import CancelAnswer
from feedhandler.journal.engine import Callback, Engine
from feedhandler.journal.groups import ProducerState
from feedhandler.journal.layout import Status
from feedhandler.journal.producers import Producers
from feedhandler.journal.reading import Item
from feedhandler.journal.settings import QueueSettings

#: Items that `pending` reads at a time.
LOOK = 64
#: Whether a trading day is over is looked at so often: the clock may be set.
DAY_CHECK_SECONDS = 1.0


class PersistentQueue(Producers):
    """A persistent queue in one event loop; made by `PersistentQueue.open`.

    Raises `UsageError` (another process has it, an item is too large), `PeerError` (its files
    cannot be believed), `QueueStopped` (the disk failed), `QueueClosed`.
    """

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
        watch_days: bool = True,
        **options: Any,
    ) -> AsyncIterator["PersistentQueue"]:
        """The queue in `folder`, made where none is, recovered where one is; closed at the end.

        The callbacks are called in the event loop with an id, once what they say is durable;
        `on_forward`: cancel this one at its destination, it was delivered. `watch_days`: what is
        left of a trading day that ends expires; else that is the caller's.
        """
        settings = settings or QueueSettings()
        engine = await asyncio.to_thread(lambda: Engine(folder, settings, **options))
        engine.on_delivered, engine.on_cancelled = on_delivered, on_cancelled
        engine.on_expired, engine.on_forward = on_expired, on_forward
        queue = cls(engine)
        day = asyncio.create_task(queue._watch_days()) if watch_days else None
        try:
            engine.tell(on_expired, engine.expired_at_open)
            yield queue
        finally:
            if day is not None:
                day.cancel()
            await queue._close()

    # -- groups -----------------------------------------------------------------------------

    async def mark(self, number: int, mark: int) -> None:
        """A pending item has this mark (0 to 127) once that is durable."""
        await self.commit(marks=[(number, mark)])

    def mark_of(self, number: int) -> int:
        """The mark of a pending item, or 0."""
        return self.engine.delivery.mark_of(number)

    def walk(self) -> Iterator[list[tuple[int, int, bytes]]]:
        """Everything undelivered as (id, mark, content), oldest first, in lists: for an owner who
        keeps ids in memory, when the queue is opened."""
        return self.engine.delivery.walk()

    def producer(self, producer: bytes) -> ProducerState | None:
        """How far a producer has come: (epoch, sequence); None where it is not known."""
        return self.engine.producer(producer)

    def producers(self) -> dict[bytes, ProducerState]:
        """How far every producer has come."""
        return self.engine.producers()

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
        return self.engine.take(limit)

    async def pending(self) -> AsyncIterator[Item]:
        """What is undelivered, oldest first, without taking it: handed out or not."""
        after = 0
        while True:
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

    async def _watch_days(self) -> None:
        while self.engine.day_ns:
            await asyncio.sleep(DAY_CHECK_SECONDS)
            await self.expire()
