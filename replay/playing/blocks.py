"""Blocks of sends, made from chunks of a source: which datagram leaves when, on which line.

A `Preparer` is given chunks in turn. Each datagram gets its time from the pace, then the faults of
each line, and becomes zero, one or more sends; a `Block` is sends of all lines in their final
order. What faults hold back (delays, reordering) comes with a later block; `HELD_BYTES_MAX` bounds
the bytes of chunks held for that. All work is on columns, and nothing is sent here: a dry run
counts the same blocks, and others are written into a capture. Sans-IO.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.inject import Injector, LineSends
from feedhandler.replay.playing.pace import Pace, Schedule
from feedhandler.replay.playing.sender_lines import NO_DESTINATION, MulticastLine, number_lines
from feedhandler.replay.playing.source import Chunk
from feedhandler.replay.playing.stamps import Stamper

#: Payload bytes that delays and reordering may hold back.
HELD_BYTES_MAX = 256 << 20

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Sends in their final order, a row a send.

    `chunk_of` u32 and `row_of` int64: in which of `chunks`, and which of its rows, the datagram is;
    `destinations` u16: where it goes; `due_ns` int64, never falling: when, after the anchor;
    `share_done` is how much of the source lies before the block's end.
    """

    chunks: list[Chunk]
    chunk_of: Array
    row_of: Array
    destinations: Array
    due_ns: Array
    share_done: float

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def buffers(self) -> list[Array]:
        """The bytes of the chunks, u8."""
        return [chunk.data for chunk in self.chunks]

    def gather(self, columns: Sequence[Array]) -> Array:
        """Gather a column of the sends from one column of each chunk."""
        if len(columns) == 1:
            return columns[0][self.row_of]
        out = np.empty(len(self), columns[0].dtype if columns else np.int64)
        for number, column in enumerate(columns):
            here = np.flatnonzero(self.chunk_of == number)
            out[here] = column[self.row_of[here]]
        return out

    def gather_batch(self, name: str) -> Array:
        """Gather the column `name` of the sends, as `DatagramBatch` has it.

        Raises `UsageError` where the source is no capture.
        """
        columns = []
        for chunk in self.chunks:
            if chunk.batch is None:
                raise UsageError("only captures have frames", "give a capture as the source")
            columns.append(getattr(chunk.batch, name))
        return self.gather(columns)

    def udp_columns(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return the arguments of `Sender.send_block` behind the buffers, for UDP payloads."""
        return (
            self.chunk_of,
            self.gather([chunk.offset for chunk in self.chunks]).astype(np.uint32, copy=False),
            self.gather([chunk.length for chunk in self.chunks]).astype(np.uint32, copy=False),
            self.destinations,
            self.due_ns,
        )


@dataclasses.dataclass(slots=True)
class _Sends:
    """Sends of all lines together, not yet ordered."""

    due_ns: Array
    turn: Array
    index: Array
    line: Array

    def select(self, which: Array) -> "_Sends":
        return _Sends(self.due_ns[which], self.turn[which], self.index[which], self.line[which])


def _gather(held: _Sends | None, planned: list[LineSends]) -> _Sends:
    """Join the sends held back and those that each line adds."""
    lines = [np.full(len(sends), number, np.int64) for number, sends in enumerate(planned)]
    before = [held] if held is not None else []
    return _Sends(
        np.concatenate([*(b.due_ns for b in before), *(s.due_ns for s in planned)]),
        np.concatenate([*(b.turn for b in before), *(s.turn for s in planned)]),
        np.concatenate([*(b.index for b in before), *(s.index for s in planned)]),
        np.concatenate([*(b.line for b in before), *lines]),
    )


class Preparer:
    """A maker of blocks from chunks of a source; see the module's text.

    `table` u16[lines, channels]: a destination's number, or `NO_DESTINATION`. `delay_min_ns`: the
    least that any line's faults delay everything. `stamper` writes send times, where they change.
    `datagrams` were read from the source, `unmapped` of them belong to no line.
    """

    def __init__(
        self,
        table: Array,
        injector: Injector,
        pace: Pace,
        delay_min_ns: int = 0,
        stamper: Stamper | None = None,
    ) -> None:
        self.datagrams = 0
        self.unmapped = 0
        self.injector = injector
        self._table = table
        self._stamper = stamper
        self.pace = pace
        self._schedule = Schedule(pace)
        self._delay_min_ns = delay_min_ns
        self._chunks: list[tuple[int, Chunk]] = []  # first datagram's number, chunk
        self._held: _Sends | None = None
        self._next_index = 0

    def begin(self, start_ns: int = 0) -> None:
        """Begin a run: its first datagram is due at 0, which is `start_ns` after 1970 UTC.

        Discards what is held back."""
        if self._stamper is not None:
            self._stamper.begin(start_ns)
        self._schedule = Schedule(self.pace)
        self.injector.restart()
        self._chunks = []
        self._held = None

    def block(self, chunk: Chunk, late_ns: int = 0) -> Block:
        """Add a chunk and return the sends that are now final.

        `late_ns`: the delay by pauses so far, for send times that are written."""
        self.datagrams += len(chunk.time_ns)
        present = [row[chunk.channel] != NO_DESTINATION for row in self._table]
        for line, mask in enumerate(present):
            mask &= chunk.channel >= 0
            if chunk.only_line is not None:
                mask &= (chunk.only_line < 0) | (chunk.only_line == line)
        self.unmapped += int((~np.logical_or.reduce(present)).sum())
        due_ns = self._schedule.due_ns(chunk.time_ns, chunk.length)
        if self._stamper is not None and chunk.batch is not None:
            self._stamper(chunk.batch, due_ns, late_ns)
        self._chunks.append((self._next_index, chunk))
        self._next_index += len(chunk.time_ns)
        whole = all(mask.all() for mask in present)
        planned = self.injector.plan(due_ns, None if whole else present)
        # Nothing that comes later leaves before the last of this chunk would, plus the delay.
        horizon_ns = int(due_ns[-1]) + self._delay_min_ns if len(due_ns) else 0
        return self._release(_gather(self._held, planned), horizon_ns, chunk.share_done)

    def last_block(self) -> Block:
        """Return all that faults still hold back, at the end of the source."""
        sends = _gather(self._held, self.injector.finish())
        return self._release(sends, np.iinfo(np.int64).max, 1.0)

    def _release(self, sends: _Sends, horizon_ns: int, share_done: float) -> Block:
        """Order what is due up to the horizon; hold the rest."""
        ready = sends.due_ns <= horizon_ns
        if ready.all():
            self._held = None
        else:
            self._held = sends.select(~ready)
            sends = sends.select(ready)
        # By time, then by the stream's order: within a line neither ever falls.
        sends = sends.select(np.lexsort((sends.line, sends.turn, sends.due_ns)))
        block = self._locate(sends, share_done)
        self._forget()
        return block

    def _locate(self, sends: _Sends, share_done: float) -> Block:
        """Build the block: the chunk, row and destination of each send."""
        firsts = np.array([first for first, _ in self._chunks], np.int64)
        chunk_of = np.searchsorted(firsts, sends.index, side="right") - 1
        chunks = [chunk for _, chunk in self._chunks]
        index = sends.index - firsts[chunk_of] if len(firsts) else sends.index
        block = Block(
            chunks, chunk_of.astype(np.uint32), index, np.empty(0), sends.due_ns, share_done
        )
        channel = block.gather([chunk.channel for chunk in chunks])
        return dataclasses.replace(block, destinations=self._table[sends.line, channel])

    def _forget(self) -> None:
        """Release chunks without references. Raises `UsageError` above `HELD_BYTES_MAX`."""
        oldest = self.injector.oldest_held
        if self._held is not None:
            oldest = min(oldest, int(self._held.index.min()))
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1].time_ns) <= oldest:
            self._chunks.pop(0)
        if sum(len(chunk.data) for _, chunk in self._chunks) > HELD_BYTES_MAX:
            raise UsageError(
                f"delay and reordering hold more than {HELD_BYTES_MAX >> 20} MiB back",
                "lower the delay or the pace",
            )


def make_preparer(
    lines: Sequence[MulticastLine],
    pace: Pace,
    *,
    seed: int = 0,
    spare_shared: bool = False,
    stamper: Stamper | None = None,
) -> Preparer:
    """Create a preparer for these lines, with the destinations of `number_lines`.

    `seed` and `spare_shared` are the `Injector`'s. Raises `UsageError` for delays without a
    schedule."""
    table = number_lines(lines).table
    if not pace.has_schedule and any(line.faults.shifts_time for line in lines):
        raise UsageError("flat out there is no time to delay", "give a pace, or no delay")
    injector = Injector([line.faults for line in lines], seed, spare_shared)
    delay_min_ns = min(line.faults.delay_us for line in lines) * 1_000
    return Preparer(table, injector, pace, delay_min_ns, stamper)


def all_blocks(preparer: Preparer, chunks: Iterable[Chunk], start_ns: int = 0) -> Iterator[Block]:
    """Yield every block of the chunks, with the last one; `start_ns` as in `Preparer.begin`."""
    preparer.begin(start_ns)
    for chunk in chunks:
        yield preparer.block(chunk)
    yield preparer.last_block()
