"""The persistent queue for threads: changes return once they are durable.

A thread that waits for durability and finds no other one writing writes for all that wait
(`Engine.flush`); the others wait until their item is among what was written. So a single producer
needs no other thread, and many share each sync.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

from feedhandler.journal.cancels import CancelAnswer
from feedhandler.journal.engine import Engine, QueueInterface
from feedhandler.journal.groups import ProducerState
from feedhandler.journal.reading import Item
from feedhandler.journal.settings import QueueSettings

#: Interval of retries while no block is free; a delivery wakes all waiting threads anyway.
STALL_SECONDS = 0.05
#: Items that `pending` reads at a time.
LOOK = 64


class BlockingQueue(QueueInterface):
    """A persistent queue whose methods any thread may call; a context manager.

    Raises `UsageError` (another process has it, an item is too large), `PeerError` (its files
    cannot be trusted), `QueueStopped` (the disk failed), `QueueClosed`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: QueueSettings | None = None,
        **options: Any,
    ) -> None:
        self.engine = Engine(folder, settings or QueueSettings(), **options)
        self._changed = threading.Condition(cast(threading.Lock, self.engine.scheduling().lock))
        self._writing = False
        #: Count of changes that a thread may wait for.
        self._changes = 0
        self.engine.on_stop = self._stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits and close the queue; no other thread may be calling."""
        self.engine.close()

    # -- producing --------------------------------------------------------------------------

    def put(self, content: bytes) -> int:
        """Put one item, and return its id once it is durable."""
        return self.put_many([content])[0]

    def put_many(self, contents: Sequence[bytes]) -> range:
        """Put items, and return their ids once all are durable. Waits where the queue is full."""
        items = list(contents)
        with self._changed:
            engine = self.engine
            engine.check()
            while not engine.has_room:
                self._changed.wait(STALL_SECONDS)
                engine.check()
            first = engine.add(items)
        last = first + len(items) - 1
        self._until(lambda: engine.durable_id >= last)
        return range(first, last + 1)

    def commit(
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
        engine = self.engine
        if puts:
            with self._changed:
                while not engine.has_room:
                    self._changed.wait(STALL_SECONDS)
                    engine.check()
        committed = engine.commit(puts, ends, marks, producers)
        with self._changed:
            self._report_changed()
        self._until(lambda: engine.has_committed(committed))
        engine.report_committed(committed)
        return range(committed.first_id, committed.end_id)

    def mark(self, number: int, mark: int) -> None:
        """Give a pending item a mark (0 to 127), and wait until that is durable."""
        self.commit(marks=[(number, mark)])

    # -- consuming --------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Item | None:
        """Take the next pending item, for this consumer alone; None after `timeout` seconds."""
        items = self.get_many(1, timeout)
        return items[0] if items else None

    def get_many(self, limit: int, timeout: float | None = None) -> list[Item]:
        """Take the next pending items, for this consumer alone; waits for at least one.

        Returns none after `timeout` seconds; None: waits without limit.
        """
        self.expire()
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                changes = self._changes
            items = self.engine.take(limit)
            if items:
                return items
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                return []
            with self._changed:
                self._changed.wait_for(lambda: self._changes != changes, left)  # noqa: B023

    def pending(self) -> Iterator[Item]:
        """Yield what is undelivered, oldest first, handed out or not, without taking it."""
        after = 0
        while True:
            items = self.engine.peek(after, LOOK)
            if not items:
                return
            yield from items
            after = items[-1].id

    def delivered(self, *numbers: int) -> int:
        """Record that these items were delivered; return how many were pending, once durable."""
        delivered, forward = self._durably(lambda: self.engine.deliver(numbers))
        self.engine.call_back(self.engine.on_delivered, delivered)
        self.engine.call_back(self.engine.on_forward, forward)
        return len(delivered)

    def release(self, number: int) -> None:
        """Give an item back, which is then handed out again.

        It is not where it was to be cancelled meanwhile, or its day has ended.
        """
        status = self._durably(lambda: self.engine.release(number))
        self.engine.report_released(number, status)

    # -- ending -----------------------------------------------------------------------------

    def cancel(self, number: int) -> CancelAnswer:
        """Cancel one item, and return the outcome once that is durable."""
        answer: CancelAnswer
        answer, changed = self._durably(lambda: self.engine.cancel(number))
        self.engine.report_cancelled(number, answer, changed)
        return answer

    def cancel_all(self) -> tuple[list[int], list[int]]:
        """Cancel everything pending.

        Returns the cancelled ids, and those to be cancelled at their destination, once that is
        durable.
        """
        cancelled, forward = self._durably(self.engine.cancel_all)
        self.engine.call_back(self.engine.on_cancelled, cancelled)
        self.engine.call_back(self.engine.on_forward, forward)
        return cancelled, forward

    def expire(self) -> list[int]:
        """Expire what is left of past trading days, and return the ids; `get` does so too."""
        expired: list[int] = self._durably(self.engine.day_over)
        self.engine.call_back(self.engine.on_expired, expired)
        return expired

    # -- waiting ----------------------------------------------------------------------------

    def _durably(self, change: Callable[[], Any]) -> Any:
        """Apply a change, and return its result once that is durable."""
        engine = self.engine
        engine.check()
        result = change()
        changes, done = engine.changes_now()
        with self._changed:
            self._report_changed()
        if not done:
            self._until(lambda: engine.durable_changes >= changes)
        return result

    def _stopped(self) -> None:
        with self._changed:
            self._report_changed()

    def _report_changed(self) -> None:
        """Wake all waiting threads, which check their conditions again. The lock is held."""
        self._changes += 1
        self._changed.notify_all()

    def _until(self, durable: Callable[[], bool]) -> None:
        """Wait until `durable()` holds; write for all where no other thread does."""
        while True:
            with self._changed:
                while not durable():
                    self.engine.check()
                    if not self._writing:
                        self._writing = True
                        break
                    self._changed.wait()
                else:
                    return
            self._write()

    def _write(self) -> None:
        """Flush once for all waiting threads; where no block has room, wait a moment."""
        try:
            wrote = self.engine.flush()
            grown = self.engine.grow()
        finally:
            with self._changed:
                self._writing = False
                self._report_changed()
        if not wrote and not grown:
            with self._changed:
                self._changed.wait(STALL_SECONDS)
