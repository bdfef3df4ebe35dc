"""Merge of several recordings into one, by time.

A `Merger` reads batches of several inputs and yields them as batches in rising time. Inputs are
read no further than needed: always the one whose times lag behind the others'. Datagrams out of
order inside a recording (a recorder with several queues, a capture of two interfaces) are sorted
within `DISORDER_NS`; later ones follow what was yielded already, and `late` counts them. Datagrams
of equal times keep the order of the inputs, and within an input that of the recording.

Memory: the datagrams within `DISORDER_NS` of the newest, and a batch per input. At `HELD_BYTES_MAX`
the merger yields without waiting for datagrams out of order, which `hurried` counts. Sans-IO.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.packet_headers import join_headers
from feedhandler.replay.captures.reading import COLUMNS, DatagramBatch

#: How far behind the newest time of its recording a datagram may be and still be sorted.
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
    """One recording: its batches that were read and not yielded, and the newest time read."""

    batches: Iterator[DatagramBatch]
    waiting: list[DatagramBatch] = dataclasses.field(default_factory=list)
    newest_ns: int = np.iinfo(np.int64).min
    ended: bool = False

    def read(self) -> None:
        """Read one more batch, or note that the recording ended."""
        batch = next(self.batches, None)
        if batch is None:
            self.ended = True
        elif len(batch):
            self.waiting.append(batch)
            self.newest_ns = max(self.newest_ns, int(batch.time_ns.max()))

    def until(self, horizon_ns: int) -> list[DatagramBatch]:
        """Take the waiting datagrams up to the horizon (inclusive), in order; keep the rest."""
        ready, waiting = [], []
        for batch in self.waiting:
            due = batch.time_ns <= horizon_ns
            if due.all():
                ready.append(batch)
            elif not due.any():
                waiting.append(batch)
            else:
                ready.append(batch.select(due))
                waiting.append(batch.select(~due))
        self.waiting = waiting
        return ready


class Merger:
    """A merger of inputs; see the module's text. Iterate over it once.

    `late` counts datagrams further out of order than is waited for, `hurried` how often memory was
    short; `held_bytes_most` is the maximum of bytes held. Raises `UsageError` for too many inputs.
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
        """Return the time (ns) up to which datagrams can be yielded: none earlier is expected."""
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
        """Return the datagrams up to the horizon, sorted by time; None where there are none."""
        pieces = [batch for each in self._inputs for batch in each.until(horizon_ns)]
        if not pieces:
            return None
        batch = join_batches(pieces)
        order = np.argsort(batch.time_ns, kind="stable")
        self.late += int((batch.time_ns < self._left_ns).sum())
        self._left_ns = max(self._left_ns, int(batch.time_ns.max()))
        return batch.select(order)


def join_batches(pieces: Sequence[DatagramBatch]) -> DatagramBatch:
    """Concatenate batches to one, over a copy of the bytes that they refer to."""
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
