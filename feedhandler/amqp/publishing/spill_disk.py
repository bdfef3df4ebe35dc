"""The journal of one destination, on the disk: does jobs, one after the other.

What it is for: `SpillDisk` opens a persistent queue and does `Job`s to it: reads items back, marks
those that the broker has confirmed as delivered, those that were given up as cancelled, and writes
new ones, all of a job's in as few segments as they take. `SpillThread` does that on a thread of its
own, so that the event loop does not wait for the disk; a block by which the journal grows is made
on a second one, beside it.

What it promises: jobs are done in the order in which they are given, and each has a result, a
failure too: after the first one nothing more is written or acknowledged (the queue has stopped).

What it leaves to others: what to do and when (`spill_queue`); the files (`feedhandler.journal`).
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from feedhandler.amqp.publishing.spill_items import parse_item
from feedhandler.amqp.publishing.spill_queue import Job, Result
from feedhandler.codecs.errors import ConfigError, FeedhandlerError
from feedhandler.journal.engine import Engine
from feedhandler.journal.settings import FAST, QueueSettings

#: The journal grows by blocks of this size.
BLOCK_BYTES = 16 << 20
#: Blocks that it begins with: one is written while the other is still read.
BLOCKS_FIRST = 2
#: Messages that are read by one call at most.
LOOK = 64


def settings_of(bytes_max: int, durability: str = FAST) -> QueueSettings:
    """Return the settings of a journal of at most `bytes_max`."""
    return QueueSettings(
        block_bytes=BLOCK_BYTES,
        blocks=BLOCKS_FIRST,
        blocks_max=max(bytes_max // BLOCK_BYTES, BLOCKS_FIRST),
        durability=durability,
    )


class SpillDisk:
    """The journal in `folder`, recovered or created; used on the journal's thread after it is
    opened.

    `pending`: number of messages of the run before in it. `item_bytes_max`: the largest item that
    there can be; `options`: the engine's, for tests. Raises `UsageError` (another process has it),
    `PeerError` (its files are damaged), `ConfigError` (it holds something else), `OSError`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: QueueSettings,
        item_bytes_max: int,
        **options: Any,
    ) -> None:
        self.engine = Engine(folder, settings, **options)
        self.pending = int(self.engine.statistics()["pending"])
        self._item_bytes_max = item_bytes_max
        try:
            self._check_first()
        except BaseException:
            self.engine.close()
            raise

    def _check_first(self) -> None:
        """Check that the pending items are messages of a gateway. Raises ConfigError."""
        first = self.engine.peek_raw(0, 1)
        if first and parse_item(first[0].content) is None:
            raise ConfigError(
                f"{self.engine.folder}: the queue there holds something else than a gateway's "
                "messages",
                "give each destination a journal_folder of its own",
            )

    def carry_out(self, job: Job) -> Result:
        """Run a job; return its result, with `error` set where it failed. Raises nothing."""
        result = Result()
        engine = self.engine
        try:
            engine.check()
            if job.read_bytes:
                self._read(job, result)
            engine.deliver(job.ended)
            for number in job.given_up:
                engine.cancel(number)
            if job.contents:
                result.first_id = engine.put(job.contents)
            while engine.flush():
                pass
        except FeedhandlerError as error:
            result.error = error.message
        except OSError as error:
            result.error = f"{engine.folder}: its disk failed: {error.strerror or error}"
            engine.stop(error)
        result.durable_id = engine.durable_id
        return result

    def _read(self, job: Job, result: Result) -> None:
        """Read items above `job.after` into `result`: as many as surely fit into `job.read_bytes`,
        one at least."""
        left, after = job.read_bytes, job.after
        most = self._item_bytes_max
        while not result.items or left >= most:
            limit = min(max(left // most, 1), LOOK)
            items = self.engine.peek_raw(after, limit)
            for item in items:
                result.items.append((item.id, item.content))
                left -= len(item.content)
                after = item.id
            if len(items) < limit:
                result.exhausted = True
                return

    def close(self) -> None:
        """Close the journal; where its disk has failed, leave it as it is."""
        with contextlib.suppress(FeedhandlerError, OSError):
            self.engine.close()


class SpillThread:
    """A thread that does jobs; `on_done(result)` is called on it after each."""

    def __init__(self, disk: SpillDisk, on_done: Callable[[Result], None], name: str) -> None:
        self.disk = disk
        self._on_done = on_done
        # One job at a time; None ends the thread.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._growth: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name=f"journal {name}", daemon=True)
        self._thread.start()

    def give(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def close(self, seconds: float) -> bool:
        """Close the journal; return whether it was closed within `seconds`."""
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            result = self.disk.carry_out(job)
            self._grow_beside()
            self._on_done(result)
        if self._growth is not None:
            self._growth.join()
        self.disk.close()

    def _grow_beside(self) -> None:
        """Allocate one more block where one is wanted, while jobs go on. Where the disk has no
        room for it, the journal goes on without."""
        if self.disk.engine.growth_due and not (self._growth and self._growth.is_alive()):
            self._growth = threading.Thread(
                target=self.disk.engine.grow, name="journal growth", daemon=True
            )
            self._growth.start()
