"""Sources of a player, as chunks: captures, iterables, and the channel of each datagram.

A chunk is some thousand datagrams as columns. The channel of a datagram is a number into the
lines' channel keys, or -1 where no line has its key.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeGuard, cast

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.reading import Datagram, DatagramBatch, address_text
from feedhandler.replay.playing.pipeline import BatchSource

#: Datagrams taken from an iterable at a time.
CHUNK_DATAGRAMS = 2_048

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadField:
    """An unsigned field of the payload as channel key: a service number, say.

    A payload too short to have the field belongs to no channel.
    """

    offset: int
    width: int = 2
    byte_order: Literal["big", "little"] = "big"

    def values(self, data: Array, start: Array, length: Array) -> Array:
        """Read the field of each payload (int64); -1 where the payload is too short."""
        whole = length.astype(np.int64) >= self.offset + self.width
        first = np.where(whole, start.astype(np.int64) + self.offset, 0)
        value = np.zeros(len(start), np.int64)
        for i in range(self.width):
            shift = 8 * (self.width - 1 - i if self.byte_order == "big" else i)
            value |= data[np.where(whole, first + i, 0)].astype(np.int64) << shift
        return np.where(whole, value, -1)


#: None: the capture's own (group, port).
Key = PayloadField | Callable[[bytes], Hashable] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive datagrams: `data` u8 holds the payloads at `offset`, `length` (u32); `time_ns`
    int64; `channel` int64; `only_line` int64 where some belong to one line only, else -1;
    `share_done` is how much of the source lies before the chunk's end; `batch` has the rest of what
    a capture says of the same datagrams, row by row, and is None for other sources."""

    data: Array
    offset: Array
    length: Array
    time_ns: Array
    channel: Array
    only_line: Array | None
    share_done: float
    batch: DatagramBatch | None = None


def has_batches(source: BatchSource | Iterable[Any]) -> TypeGuard[BatchSource]:
    """Return whether the source yields batches of columns, as captures do."""
    return hasattr(source, "batches")


def chunks_of(
    source: BatchSource | Iterable[Any],
    key: Key,
    channels: Sequence[Hashable],
    lines: Sequence[str],
) -> Iterator[Chunk]:
    """Yield the source's datagrams in chunks, each with its channel. Raises `UsageError`."""
    numbers = {channel: number for number, channel in enumerate(channels)}
    if has_batches(source):
        for batch in source.batches():
            channel = _channel_of_batch(batch, key, numbers)
            yield Chunk(
                batch.data,
                batch.offset,
                batch.length,
                batch.time_ns,
                channel,
                None,
                source.share_done,
                batch,
            )
        return
    assert isinstance(source, Iterable)
    source = cast(Iterable[Any], source)
    total = len(source) if isinstance(source, Sequence) else 0
    items = iter(source)
    done = 0
    while some := list(itertools.islice(items, CHUNK_DATAGRAMS)):
        done += len(some)
        share_done = done / total if total else 0.0
        yield _chunk_of_items(some, key, numbers, lines, share_done)


def _channel_of_batch(batch: DatagramBatch, key: Key, numbers: dict[Hashable, int]) -> Array:
    if not numbers:
        return np.zeros(len(batch), np.int64)
    if isinstance(key, PayloadField):
        return _numbered(key.values(batch.data, batch.offset, batch.length), numbers)
    if key is not None:
        keys = (key(batch.payload(position)) for position in range(len(batch)))
        return np.fromiter((numbers.get(k, -1) for k in keys), np.int64, len(batch))
    endpoint = (batch.destination.astype(np.int64) << 16) | batch.destination_port
    by_number: dict[Hashable, int] = {}
    values, inverse = np.unique(endpoint, return_inverse=True)
    for value in values.tolist():
        by_number[value] = numbers.get((address_text(value >> 16), value & 0xFFFF), -1)
    return np.array([by_number[value] for value in values.tolist()], np.int64)[inverse]


def _numbered(values: Array, numbers: dict[Hashable, int]) -> Array:
    """Return channel numbers for integer keys."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([numbers.get(value, -1) for value in distinct.tolist()], np.int64)[inverse]


def _chunk_of_items(
    items: list[Any],
    key: Key,
    numbers: dict[Hashable, int],
    lines: Sequence[str],
    share_done: float,
) -> Chunk:
    times, payloads, channel, only_line = [], [], [], []
    for item in items:
        line = -1
        if isinstance(item, Datagram):
            time_ns, payload = item.time_ns, item.payload
            endpoint: Hashable = (item.group, item.port)
        else:
            time_ns, payload = item[0], item[1]
            endpoint = None
            if len(item) > 2 and item[2] is not None:
                line = _line_number(item[2], lines)
        times.append(time_ns)
        payloads.append(payload)
        only_line.append(line)
        if callable(key):
            endpoint = key(payload)
        channel.append(numbers.get(endpoint, -1) if numbers else 0)
    data = np.frombuffer(b"".join(payloads), np.uint8)
    length = np.fromiter(map(len, payloads), np.uint32, len(payloads))
    offset = (np.cumsum(length, dtype=np.int64) - length).astype(np.uint32)
    if numbers and isinstance(key, PayloadField):
        channels = _numbered(key.values(data, offset, length), numbers)
    else:
        channels = np.array(channel, np.int64)
    lines_column = np.array(only_line, np.int64) if max(only_line) >= 0 else None
    return Chunk(
        data, offset, length, np.array(times, np.int64), channels, lines_column, share_done
    )


def _line_number(name: str, lines: Sequence[str]) -> int:
    if name not in lines:
        raise UsageError(f"a datagram is for line '{name}'", f"the lines are {', '.join(lines)}")
    return lines.index(name)
