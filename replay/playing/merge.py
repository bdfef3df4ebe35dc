"""Several recordings as one, by their times.

A `Merger` reads batches of several inputs and yields them as batches in rising time. Inputs are
read as far as they are needed and no further: always the one whose times lag behind the others'.
What stands out of order inside a recording (a recorder with several queues, a capture of two
interfaces) is put in order as far as `DISORDER_NS` reaches; what comes later than that keeps its
place behind what has left already, and is counted in `late`. Equal times: the order of the inputs,
and within an input the order of the recording.

Memory: what lies within `DISORDER_NS` of the newest, and a batch an input; at `HELD_BYTES_MAX` the
wait for what is out of order is given up for the moment, which `hurried` counts. Sans-IO.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.packet_headers import join_headers
from feedhandler.replay.captures.reading import COLUMNS, DatagramBatch

#: How far behind the newest time of its recording a datagram may stand and still be put in order.
DISORDER_NS = 100_000_000
#: Bytes of recordings that wait for their turn.
HELD_BYTES_MAX = 64 << 20
#: Recordings merged at most: each is an open file and at least a batch in memory.
INPUTS_MAX = 64

_NEVER = np.iinfo(np.int64).max
#: Columns that say where in `data` something lies.
_OFFSETS = ("offset", "frame_offset")

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(slots=True)
class _Input:
    """One recording: what was read of it and not yielded, and the newest time read."""

    batches: Iterator[DatagramBatch]
    waiting: list[DatagramBatch] = dataclasses.field(default_factory=list)
    newest_ns: int = np.iinfo(np.int64).min
    ended: bool = False

    def read(self) -> None:
        """One batch more."""
        batch = next(self.batches, None)
        if batch is None:
            self.ended = True
        elif len(batch):
            self.waiting.append(batch)
            self.newest_ns = max(self.newest_ns, int(batch.time_ns.max()))

    def until(self, horizon_ns: int) -> list[DatagramBatch]:
        """What waits and is not after the horizon, in its order; the rest waits on."""
        ready, waiting = [], []
        for batch in self.waiting:
            due = batch.time_ns <= horizon_ns
            if due.all():
                ready.append(batch)
            elif not due.any():
                waiting.append(batch)
            else:
                ready.append(batch.take(due))
                waiting.append(batch.take(~due))
        self.waiting = waiting
        return ready


class Merger:
    """Merges inputs; see the module's text. Iterate over it once.

    `late` counts datagrams that stood further out of order than is waited for, `hurried` how often
    memory was short, `held_bytes_most` is the most that has waited.
    """

    def __init__(self, inputs: Sequence[Iterator[DatagramBatch]]) -> None:
        if len(inputs) > INPUTS_MAX:
            raise UsageError(
                f"{len(inputs)} captures are too many to merge", f"merge {INPUTS_MAX} at a time"
            )
        self.late = self.hurried = self.held_bytes_most = 0
        self._inputs = [_Input(each) for each in inputs]
        self._left_ns = np.iinfo(np.int64).min

    def __iter__(self) -> Iterator[DatagramBatch]:
        while running := [each for each in self._inputs if not each.ended]:
            min(running, key=lambda each: each.newest_ns).read()
            ready = self._ready(self._horizon_ns())
            if ready is not None:
                yield ready

    def _horizon_ns(self) -> int:
        """Up to where nothing that counts is still to be read."""
        newest = min((each.newest_ns for each in self._inputs if not each.ended), default=_NEVER)
        held = self._held_bytes()
        self.held_bytes_most = max(self.held_bytes_most, held)
        if newest in (_NEVER, np.iinfo(np.int64).min):
            return newest
        if held > HELD_BYTES_MAX:
            self.hurried += 1
            return newest
        return newest - DISORDER_NS

    def _held_bytes(self) -> int:
        buffers = {
            id(batch.data): len(batch.data) for each in self._inputs for batch in each.waiting
        }
        return sum(buffers.values())

    def _ready(self, horizon_ns: int) -> DatagramBatch | None:
        """What may leave, in order; None where nothing does."""
        pieces = [batch for each in self._inputs for batch in each.until(horizon_ns)]
        if not pieces:
            return None
        batch = join_batches(pieces)
        order = np.argsort(batch.time_ns, kind="stable")
        self.late += int((batch.time_ns < self._left_ns).sum())
        self._left_ns = max(self._left_ns, int(batch.time_ns.max()))
        return batch.take(order)


def join_batches(pieces: Sequence[DatagramBatch]) -> DatagramBatch:
    """Batches one after the other as one, over a copy of the bytes that they need."""
    if len(pieces) == 1:
        return pieces[0]
    columns: dict[str, list[Array]] = {name: [] for name in COLUMNS}
    data: list[Array] = []
    used = 0
    for piece in pieces:
        first = int(min(piece.frame_offset.min(), piece.offset.min()))
        frames = piece.frame_offset.astype(np.int64) + piece.frame_length
        payloads = piece.offset.astype(np.int64) + piece.length
        last = int(max(frames.max(), payloads.max()))
        data.append(piece.data[first:last])
        for name, column in columns.items():
            values = getattr(piece, name)
            moved = (values.astype(np.int64) + (used - first)).astype(np.uint32)
            column.append(moved if name in _OFFSETS else values)
        used += last - first
    headers = [piece.headers for piece in pieces if piece.headers is not None]
    joined: dict[str, Any] = {name: np.concatenate(column) for name, column in columns.items()}
    joined["headers"] = join_headers(headers) if len(headers) == len(pieces) else None
    return dataclasses.replace(pieces[0], data=np.concatenate(data), **joined)
