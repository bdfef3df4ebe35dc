"""Playing a stream of datagrams onto multicast lines: mapping, faults, pace, progress.

A `Player` takes a capture, or any iterable of `(time_ns, payload)`, and sends it to one or more
lines. On the way each datagram is mapped to its channel (by the capture's own group, by a field
of the payload or by a function), gets its time from the pace, and meets the faults of each line.

Two threads do the work: one reads ahead and prepares blocks (`blocks`, a few at most), the
other sends them without the GIL; one thread serves all lines, so A and B stay together. Memory is
bounded by the chunk size and by what delays and reordering hold back.

Sending is UDP: *nothing slows the player down for a receiver*. Flat out, a receiver gets as much
as its socket buffer holds and loses the rest; `Pace.packets_max` is the remedy. A datagram costs
that buffer more than its bytes: 0.8 to 2.3 KB each on Linux 6 up to a payload of 1,400 bytes. The
kernel doubles what SO_RCVBUF asks for, within net.core.rmem_max, so asking for 4 MiB holds about
5,000 datagrams of mixed sizes that are not read yet.
"""

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.reading import Truncation
from feedhandler.replay.playing.blocks import Block, make_preparer
from feedhandler.replay.playing.pace import Pace
from feedhandler.replay.playing.pipeline import BatchSource, Pipeline
from feedhandler.replay.playing.rates import PlayProgress, Sample, Watch
from feedhandler.replay.playing.reading import BlockPrefetcher
from feedhandler.replay.playing.sender import Progress
from feedhandler.replay.playing.sender_lines import MulticastLine, open_lines
from feedhandler.replay.playing.senders import Transport, udp
from feedhandler.replay.playing.source import Chunk, Key, chunks_of
from feedhandler.replay.playing.stamps import Stamper

#: How often the sending thread looks for a stop while nothing is ready.
STOP_POLL_S = 0.05
#: How long a seek waits for what it found to be under way.
SEEK_WAIT_S = 10.0
#: How often, and how many times, a pause looks whether the sender holds.
PAUSE_LOOK_S, PAUSE_LOOKS = 0.001, 2_000
#: How often progress is reported.
PROGRESS_INTERVAL_S = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class LineTotals:
    """One line's account. After a complete run `sent` = `datagrams` - `dropped` + `duplicated`."""

    name: str
    datagrams: int
    sent: int
    dropped: int
    duplicated: int
    reordered: int
    spared: int


@dataclasses.dataclass(frozen=True, slots=True)
class PlayResult:
    """A run's account.

    `datagrams` read from the source, of which `unmapped` belong to no line's channel; `behind`
    counts sends more than a millisecond late; `too_long` frames were longer than their interface
    takes, and not sent (raw frames only); `complete` is False after a stop.
    """

    lines: list[LineTotals]
    datagrams: int
    unmapped: int
    payload_bytes: int
    duration_ns: int
    lateness_max_ns: int
    behind: int
    no_buffers: int
    complete: bool
    truncation: Truncation | None = None
    too_long: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Reach:
    """The block that is being sent: sends before it, and the share done before it in its turn."""

    turn: int
    block: Block
    sent_before: int
    share_before: float

    def share_done(self, sent: int) -> float:
        """Return the share of the source that is done after `sent` sends."""
        after = self.block.share_done
        if not len(self.block):
            return after
        part = min(1.0, (sent - self.sent_before) / len(self.block))
        return self.share_before + (after - self.share_before) * part

    def latest(self, sent: int) -> tuple[Chunk, int] | None:
        """Return chunk and row of the latest send; None where nothing was sent yet."""
        if not sent or not len(self.block):
            return None
        row = min(max(sent - self.sent_before - 1, 0), len(self.block) - 1)
        return self.block.chunks[int(self.block.chunk_of[row])], int(self.block.row_of[row])

    def position_ns(self, sent: int) -> int | None:
        """Return the recorded time of the latest send (ns); None where nothing was sent yet."""
        latest = self.latest(sent)
        if latest is None:
            return None
        chunk, row = latest
        return int(chunk.time_ns[row]) - (chunk.batch.moved_ns if chunk.batch is not None else 0)


class Player:
    """One run of a source onto lines; see the module's text.

    `source`: a `Capture`, a `Pipeline`, or an iterable of `Datagram`, `(time_ns, payload)` or
    `(time_ns, payload, line name)` in rising time. `key`: how a datagram finds its channel where
    lines have several groups: None for the capture's own `(group, port)`, a `PayloadField`, or a
    function of the payload. `seed` and `spare_shared` are the `Injector`'s. `stamper` writes other
    send times into a capture's packets. `transport` is how they travel (`senders`): through
    UDP sockets, unless it says as raw frames.
    Raises `ConfigError` or `UsageError` for lines that cannot be opened.
    """

    def __init__(
        self,
        source: BatchSource | Iterable[Any],
        lines: Sequence[MulticastLine],
        *,
        key: Key = None,
        pace: Pace | None = None,
        seed: int = 0,
        spare_shared: bool = False,
        stamper: Stamper | None = None,
        transport: Transport | None = None,
    ) -> None:
        pace = pace or Pace()
        self._paced = pace.has_schedule
        self._source = source
        self._lines = list(lines)
        self._key = key
        transport = transport or udp()
        self._preparer = make_preparer(
            lines, pace, seed=seed, spare_shared=spare_shared, stamper=stamper
        )
        self._open = open_lines(lines, transport.open_socket)
        try:
            self._sender = transport.make_sender(self._open)
        except BaseException:
            self._open.close()
            raise
        self._reading = BlockPrefetcher(
            self._preparer, self._chunks(source), lambda: self._sender.shift_ns
        )
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._complete = False
        self._anchor_ns = self._end_ns = 0
        # The turn of the reading that is being sent; guards the sender's `drop` and
        # `stop_dropping`.
        self._turn = -1
        self._turned = threading.Condition()
        self._reach: _Reach | None = None
        # The latest seek: its turn, and the share of the source before what it found.
        self._sought = (-1, 0.0)
        self._sending = False
        self._watch = Watch()
        self._looking = threading.Lock()

    def start(self) -> None:
        """Start the run in the background. A player runs once."""
        if self._thread is not None:
            raise UsageError("this player has run already", "make a new one")
        self._thread = threading.Thread(target=self._send, name="replay-send", daemon=True)
        self._reading.start()
        self._thread.start()

    def stop(self) -> None:
        """End the run early: within 10 ms nothing more is sent. From any thread."""
        self._sender.stop()

    def pause(self) -> None:
        """Send nothing until `resume`: everything behind it comes later by just as much.

        Returns when that is so: a sender notices within `POLL_NS`, on a busy machine later.
        """
        self._sender.pause()
        for _ in range(PAUSE_LOOKS):
            if self._sender.holding or not self._sending or self._ended.wait(PAUSE_LOOK_S):
                return

    def resume(self) -> None:
        """End a pause."""
        self._sender.resume()

    @property
    def source(self) -> BatchSource | Iterable[Any]:
        """Source that is played: after a seek another one than was given."""
        return self._source

    def seek(self, at_ns: int, timeout_s: float = SEEK_WAIT_S) -> int:
        """Go on from the recorded time `at_ns`; answers with the time of the first datagram there.

        Playing goes on while the time is looked for, so a refusal changes nothing; nothing from
        before the seek is sent after the answer. Raises `UsageError` where nothing is there, where
        the run has ended and where the source is no pipeline.
        """
        if not isinstance(self._source, Pipeline):
            raise UsageError("this source cannot be entered in the middle", "play captures")
        source = self._source.starting_at(at_ns, self._pass_number())
        chunks = self._chunks(source)
        first = next(chunks, None)
        if first is None or first.batch is None:
            raise UsageError("nothing is recorded from there on", "name an earlier time")
        with self._turned:
            if self._ended.is_set():
                raise UsageError("the run has ended", "start it again")
            turn = self._reading.turn_to(itertools.chain([first], chunks))
            self._sought = (turn, _share_before(source, first))
            self._sender.drop()
            self._source = source
            self._turned.wait_for(lambda: self._turn >= turn or self._ended.is_set(), timeout_s)
            if self._turn < turn:
                raise UsageError("the run has ended", "start it again")
        return int(first.time_ns[0]) - first.batch.moved_ns

    def _pass_number(self) -> int:
        """Return the pass that is being sent; reading may be passes ahead."""
        reach = self._reach
        if reach is None or reach.turn != self._turn:
            return 1
        latest = reach.latest(int(self._sender.progress[Progress.SENT]))
        return latest[0].batch.pass_number if latest is not None and latest[0].batch else 1

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the run's end, at most `timeout_s`; return whether it has ended."""
        return self._ended.wait(timeout_s)

    def run(
        self,
        on_progress: Callable[[PlayProgress], object] | None = None,
        interval_s: float = PROGRESS_INTERVAL_S,
    ) -> PlayResult:
        """Run to the end, in this thread's time. An interrupt stops the run and is raised."""
        self.start()
        try:
            while not self.wait(interval_s):
                if on_progress is not None:
                    on_progress(self.progress())
        finally:
            self.stop()
            self.wait()
        return self.result()

    async def play(
        self,
        on_progress: Callable[[PlayProgress], object] | None = None,
        interval_s: float = PROGRESS_INTERVAL_S,
    ) -> PlayResult:
        """Run to the end without blocking the event loop. Cancelling stops the run."""
        self.start()
        try:
            while not await asyncio.to_thread(self.wait, interval_s):
                if on_progress is not None:
                    on_progress(self.progress())
        finally:
            self.stop()
            self.wait()
        return self.result()

    def progress(self) -> PlayProgress:
        """Return the progress of the run at this moment, for any thread."""
        counts = self._sender.progress
        lateness_max_ns, _ = self._lateness()
        clock_ns = self._end_ns or self._clock_ns()
        elapsed_ns = max(0, clock_ns - self._anchor_ns) if self._anchor_ns else 0
        sent = int(counts[Progress.SENT])
        reach = self._reach
        turn, share_done = self._sought
        if reach is not None and reach.turn >= turn:
            share_done = reach.share_done(sent)
        lateness_sum_ns = int(counts[Progress.LATENESS_SUM_NS]) if self._paced else 0
        sample = Sample(elapsed_ns, sent, lateness_sum_ns, self._turn, share_done)
        with self._looking:
            speed = self._watch.update(sample)
        paused = self._sender.paused
        return PlayProgress(
            elapsed_ns=elapsed_ns,
            paused=paused,
            sent=sent,
            payload_bytes=int(counts[Progress.BYTES]),
            datagrams_per_second=0.0 if paused else speed.datagrams_per_second,
            share_done=share_done,
            left_ns=speed.left_ns,
            lateness_ns=speed.lateness_ns,
            lateness_max_ns=lateness_max_ns,
            position_ns=reach.position_ns(sent) if reach is not None else None,
        )

    def _clock_ns(self) -> int:
        """Return the sender's clock (monotonic ns), which stands still in a pause."""
        return time.monotonic_ns() - self._sender.shift_ns

    def _lateness(self) -> tuple[int, int]:
        """Return the greatest lateness in ns and the sends behind schedule; flat out: zeros."""
        if not self._paced:
            return 0, 0
        counts = self._sender.progress
        return int(counts[Progress.LATENESS_MAX_NS]), int(counts[Progress.BEHIND])

    def result(self) -> PlayResult:
        """Return the result of an ended run. Raises the error that ended it, if any.

        Raises `UsageError` before the end."""
        if not self._ended.is_set():
            raise UsageError("the run has not ended", "wait for it")
        if self._error is not None:
            raise self._error
        counts = self._sender.progress
        lateness_max_ns, behind = self._lateness()
        return PlayResult(
            lines=self._line_totals(),
            datagrams=self._preparer.datagrams,
            unmapped=self._preparer.unmapped,
            payload_bytes=int(counts[Progress.BYTES]),
            duration_ns=self._end_ns - self._anchor_ns,
            lateness_max_ns=lateness_max_ns,
            behind=behind,
            no_buffers=int(counts[Progress.NO_BUFFERS]),
            complete=self._complete,
            truncation=getattr(self._source, "truncation", None),
            too_long=int(counts[Progress.TOO_LONG]),
        )

    def _line_totals(self) -> list[LineTotals]:
        line_of = np.array(self._open.line_of_destination())
        sent_by = self._sender.sent_by_destination
        return [
            LineTotals(
                name=line.name,
                datagrams=counts.datagrams,
                sent=int(sent_by[line_of == number].sum()),
                dropped=counts.dropped,
                duplicated=counts.duplicated,
                reordered=counts.reordered,
                spared=counts.spared,
            )
            for number, (line, counts) in enumerate(
                zip(self._lines, self._preparer.injector.counts, strict=True)
            )
        ]

    def _chunks(self, source: BatchSource | Iterable[Any]) -> Iterator[Chunk]:
        names = [line.name for line in self._lines]
        return chunks_of(source, self._key, self._open.channels, names)

    def _send(self) -> None:
        """Send all blocks and end the run; runs in the sending thread."""
        try:
            self._send_blocks()
        except BaseException as error:
            self._error = error
        finally:
            self._sender.stop()
            self._reading.end()
            self._end_ns = self._clock_ns()
            self._anchor_ns = self._anchor_ns or self._end_ns
            self._open.close()
            self._ended.set()
            with self._turned:
                self._turned.notify_all()

    def _send_blocks(self) -> None:
        while not self._sender.stopped:
            ready = self._reading.next(STOP_POLL_S)
            if ready is None or not self._is_wanted(ready.turn):
                continue
            if ready.error is not None:
                raise ready.error
            if ready.block is None:
                self._complete = True
                return
            self._anchor_ns = self._anchor_ns or ready.anchor_ns
            sent = int(self._sender.progress[Progress.SENT])
            self._reach = _Reach(ready.turn, ready.block, sent, self._share_before(ready.turn))
            # Looked at by `pause`: a call that begins after it has noticed it before it sends.
            self._sending = True
            self._sender.send(ready.block, ready.anchor_ns)
            self._sending = False

    def _share_before(self, turn: int) -> float:
        """Return the share done before a turn's next block."""
        before = self._reach
        if before is not None and before.turn == turn:
            return before.block.share_done
        sought, share = self._sought
        return share if sought == turn else 0.0

    def _is_wanted(self, turn: int) -> bool:
        """Return whether a block is of the present turn; its first one resumes the sender."""
        with self._turned:
            if turn != self._reading.turn:
                return False
            if turn != self._turn:
                self._sender.stop_dropping()
                self._turn = turn
                self._turned.notify_all()
        return True


def _share_before(source: Pipeline, first: Chunk) -> float:
    """Return the share of the source that lies before the first chunk that was read of it."""
    before = source.share_before
    batch = first.batch
    assert batch is not None
    part = int(batch.offset[0]) / (int(batch.offset[-1]) + int(batch.length[-1]))
    return before + (first.share_done - before) * part
