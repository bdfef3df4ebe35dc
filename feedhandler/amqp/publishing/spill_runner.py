"""The journal of one destination in the running gateway: opened, given jobs, reported on, closed.

What it is for: `when_full = "journal"`. A `SpillRunner` opens the journal before the first
packet, has the `SpillQueue`'s jobs done on a thread (`spill_disk`), and takes each result back into
the event loop. At the end it puts everything unconfirmed into the journal.

What it promises: no call but `open` and `close` waits, and those wait outside the event loop; the
operator gets one line each time that messages begin to go to disk and that all have come back, and
one for a disk that failed, or does not keep up.

What it leaves to others: which messages (`spill_destination`), when (`spill_queue`), the connection
(`publisher`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from feedhandler.amqp.publishing.spill_destination import SpillDestination
from feedhandler.amqp.publishing.spill_disk import SpillDisk, SpillThread, settings_of
from feedhandler.amqp.publishing.spill_items import HEAD
from feedhandler.amqp.publishing.spill_queue import Result, SpillQueue, State, bounds_of
from feedhandler.amqp.sender_queue import PACKET_BYTES_MAX, SECTIONS_BYTES_MAX
from feedhandler.codecs.errors import ConfigError
from feedhandler.config.publishing import PublishConfig
from feedhandler.counters import DestinationCounter

#: Interval at which `close` checks whether all is in the journal.
STOP_LOOK_SECONDS = 0.002
#: How long `close` waits for that at most.
STOP_SECONDS = 5.0


def item_bytes_max(batch_max_bytes: int) -> int:
    """Return the size of the largest item: a batch and the packet that passes its bound, with
    header, key and reason."""
    key_and_reason = 4096
    return batch_max_bytes + PACKET_BYTES_MAX + SECTIONS_BYTES_MAX + HEAD.size + key_and_reason


class SpillRunner:
    """The journal of one destination; see the module.

    `report` gets lines for the operator; `on_news` is called after each job, when messages may have
    come back from the disk. All but `_on_done_there` runs on the event loop's thread.
    """

    def __init__(
        self, config: PublishConfig, report: Callable[[str], None], on_news: Callable[[], None]
    ) -> None:
        self.config = config
        self.spill = SpillQueue(bounds_of(config.queue_bytes), config.journal_max_us * 1000)
        self.destination: SpillDestination
        self._report = report
        self._on_news = on_news
        self._disk: SpillDisk | None = None
        self._thread: SpillThread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._reported_spilling = self._reported_late = False
        self._drained_before = 0

    async def open(self) -> None:
        """Open the journal, and recover it. Raises `FeedhandlerError`."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        settings = settings_of(config.journal_bytes_max, config.journal_durability)
        largest = item_bytes_max(config.batch_max_bytes)
        try:
            self._disk = await asyncio.to_thread(
                SpillDisk, config.journal_folder, settings, largest
            )
        except OSError as error:
            raise ConfigError(
                f"publish {config.name!r}: journal_folder {config.journal_folder}: "
                f"{(error.strerror or str(error)).lower()}",
                "a folder that the gateway may write to, with room for the journal",
            ) from None
        count = self._disk.pending
        self.spill.find(count, time.monotonic_ns())
        if count:
            self._reported_spilling = True
            self._report(f"{count:,} messages of the run before are in the journal, and go first")
        self._thread = SpillThread(self._disk, self._on_done_there, config.name)
        self.schedule_job()

    # -- jobs -------------------------------------------------------------------------------

    def schedule_job(self) -> None:
        """Give the next job to the thread, now or when it is due."""
        if self._thread is None:
            return
        destination, spill = self.destination, self.spill
        job = spill.next_job(time.monotonic_ns(), destination.front_bytes)
        if job is not None:
            self._disarm()
            destination.attended = True
            self._thread.give(job)
        elif spill.in_flight is None and self._timer is None and spill.due_ns is not None:
            destination.attended = True
            wait_ns = max(spill.due_ns - time.monotonic_ns(), 0)
            self._timer = self._loop.call_later(wait_ns / 1e9, self._on_due)
        self._report_spilling()

    def _on_due(self) -> None:
        self._timer = None
        self.destination.attended = False
        self.schedule_job()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_done_there(self, result: Result) -> None:
        """Pass a result to the event loop; called on the journal's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended before the disk answered
            self._loop.call_soon_threadsafe(self._on_done, result)

    def _on_done(self, result: Result) -> None:
        """Take back the result of a job, and report a failure or a slow disk."""
        self.destination.attended = False
        self.destination.process_result(result)
        if result.error:
            left = f", {self.spill.on_disk:,} messages stay in it" if self.spill.on_disk else ""
            self._report(
                f"the journal has failed{left}: {result.error}; what waits stays in memory, and "
                "the oldest gives way. See to the disk, then start the gateway anew"
            )
        elif self.spill.late and not self._reported_late:
            self._reported_late = True
            self._report("the journal's disk does not keep up; `journal_late` counts the messages")
        self._on_news()
        self.schedule_job()

    def _report_spilling(self) -> None:
        """Report when messages begin to be on the disk only, and when none is any more."""
        spill = self.spill
        if spill.state is State.SPILLING and not self._reported_spilling:
            self._reported_spilling = True
            self._drained_before = spill.drained
            self._report("the broker does not keep up: messages go to the journal")
        elif spill.state is State.MEMORY and self._reported_spilling:
            self._reported_spilling = False
            count = spill.drained - self._drained_before
            self._report(
                f"nothing waits in the journal only any more; {count:,} messages came back"
            )

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Put what is unconfirmed into the journal, and close it; waits `STOP_SECONDS` twice at
        most."""
        thread, spill = self._thread, self.spill
        if thread is None:
            return
        deadline = self._loop.time() + STOP_SECONDS
        spill.hurry = True
        self._disarm()
        self.schedule_job()
        while not spill.settled and not spill.stalled and self._loop.time() < deadline:
            await asyncio.sleep(STOP_LOOK_SECONDS)
        self._disarm()
        self._thread = None
        if not await asyncio.to_thread(thread.close, STOP_SECONDS):
            self._report("the journal's disk does not answer; it is left as it is")
        self._report_left()

    def _report_left(self) -> None:
        """Report how many unconfirmed messages are in the journal, and how many are lost."""
        destination, spill = self.destination, self.spill
        unsaved = spill.unwritten
        memory = len(destination.unsettled.held) + len(destination.queue)
        left = memory + spill.on_disk - (0 if spill.failed else unsaved)
        if spill.failed:
            unsaved, left = memory, spill.on_disk
        if left > 0:
            self._report(f"{left:,} messages stay in the journal, and go first at the next start")
        if unsaved:
            self._report(f"{unsaved:,} messages are not in the journal, and lost")

    # -- statistics -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the journal's state, and what is on the disk."""
        oldest_ns = self.destination.oldest_ns
        age_ns = max(time.time_ns() - oldest_ns, 0) if oldest_ns else 0
        return {
            "journal": self.spill.state.name,
            "journal_backlog": self.spill.on_disk,
            "journal_bytes": self._disk.engine.file_bytes if self._disk else 0,
            "oldest_seconds": age_ns / 1e9,
        }

    def counts(self, now_ns: int) -> dict[DestinationCounter, float]:
        """Return the journal's part of the destination's counters."""
        spill = self.spill
        return {
            DestinationCounter.JOURNALLED: spill.written,
            DestinationCounter.SPILLED: spill.spilled,
            DestinationCounter.DRAINED: spill.drained,
            DestinationCounter.RECOVERED: spill.found,
            DestinationCounter.JOURNAL_LATE: spill.late,
            DestinationCounter.JOURNAL_DAMAGED: spill.damaged + self._damaged,
            DestinationCounter.JOURNAL_FAULTS: int(spill.failed),
            DestinationCounter.SPILLING_SECONDS: spill.spill_time.total_ns(now_ns) / 1e9,
        }

    @property
    def _damaged(self) -> int:
        return self._disk.engine.damaged if self._disk else 0
