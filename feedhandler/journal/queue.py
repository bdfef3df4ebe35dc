"""The persistent queue for asyncio: `async with PersistentQueue.open(folder) as queue`.

A separate thread writes, so that a sync never blocks the event loop. While it writes, the next
segment gathers; `commit_scheduler.py` decides when a segment is made.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from feedhandler.journal.cancels import CancelAnswer
from feedhandler.journal.commit_scheduler import CommitScheduler
from feedhandler.journal.engine import Callback, Engine, QueueInterface
from feedhandler.journal.reading import Item
from feedhandler.journal.settings import QueueSettings

#: Items that `pending` reads at a time.
LOOK = 64
#: Interval of checks whether the trading day is over: not one timer, because the clock may be set.
DAY_CHECK_SECONDS = 1.0


class PersistentQueue(CommitScheduler, QueueInterface):
    """A persistent queue in one event loop; made by `PersistentQueue.open`.

    Raises `UsageError` (another process has it, an item is too large), `PeerError` (its files
    cannot be trusted), `QueueStopped` (the disk failed), `QueueClosed`.
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
        """Open the queue in `folder`, or create it; it is recovered first, and closed at the end.

        The callbacks are called in the event loop with an id, once the change is durable;
        `on_forward`: the item was delivered, so cancel it at its destination. `watch_days`: expire
        what is left of a trading day when that ends; else the caller calls `expire`.
        """
        settings = settings or QueueSettings()
        engine = await asyncio.to_thread(lambda: Engine(folder, settings, **options))
        engine.on_delivered, engine.on_cancelled = on_delivered, on_cancelled
        engine.on_expired, engine.on_forward = on_expired, on_forward
        queue = cls(engine)
        day = asyncio.create_task(queue._watch_days()) if watch_days else None
        try:
            engine.call_back(on_expired, engine.expired_at_open)
            yield queue
        finally:
            if day is not None:
                day.cancel()
            await queue._close()

    # -- groups -----------------------------------------------------------------------------

    async def mark(self, number: int, mark: int) -> None:
        """Give a pending item a mark (0 to 127), and wait until that is durable."""
        await self.commit(marks=[(number, mark)])

    # -- consuming --------------------------------------------------------------------------

    async def get(self) -> Item:
        """Take the next pending item, for this consumer alone; waits for one."""
        return (await self.get_many(1))[0]

    async def get_many(self, limit: int) -> list[Item]:
        """Take the next pending items, at least one, for this consumer alone; waits for them."""
        while not (items := self.take_now(limit)):
            await self._wait(self._consumers)
        return items

    def take_now(self, limit: int) -> list[Item]:
        """Take the next pending items, for this consumer alone; none where nothing is pending."""
        return self.engine.take(limit)

    async def pending(self) -> AsyncIterator[Item]:
        """Yield what is undelivered, oldest first, handed out or not, without taking it."""
        after = 0
        while True:
            items = self.engine.peek(after, LOOK)
            if not items:
                return
            for item in items:
                yield item
            after = items[-1].id

    async def delivered(self, *numbers: int) -> int:
        """Record that these items were delivered; return how many were pending, once durable."""
        delivered, forward = await self._durably(lambda: self.engine.deliver(numbers))
        self.engine.call_back(self.engine.on_delivered, delivered)
        self.engine.call_back(self.engine.on_forward, forward)
        return len(delivered)

    async def release(self, number: int) -> None:
        """Give an item back, which is then handed out again.

        It is not where it was to be cancelled meanwhile, or its day has ended.
        """
        status = await self._durably(lambda: self.engine.release(number))
        self.engine.report_released(number, status)
        self._wake(self._consumers)

    # -- ending -----------------------------------------------------------------------------

    async def cancel(self, number: int) -> CancelAnswer:
        """Cancel one item, and return the outcome once that is durable."""
        answer: CancelAnswer
        answer, changed = await self._durably(lambda: self.engine.cancel(number))
        self.engine.report_cancelled(number, answer, changed)
        return answer

    async def cancel_all(self) -> tuple[list[int], list[int]]:
        """Cancel everything pending.

        Returns the cancelled ids, and those to be cancelled at their destination, once that is
        durable.
        """
        cancelled, forward = await self._durably(self.engine.cancel_all)
        self.engine.call_back(self.engine.on_cancelled, cancelled)
        self.engine.call_back(self.engine.on_forward, forward)
        return cancelled, forward

    async def expire(self) -> list[int]:
        """Expire what is left of past trading days, and return the ids; a timer does so too."""
        expired: list[int] = await self._durably(self.engine.day_over)
        self.engine.call_back(self.engine.on_expired, expired)
        return expired

    async def _watch_days(self) -> None:
        while self.engine.day_ns:
            await asyncio.sleep(DAY_CHECK_SECONDS)
            await self.expire()
