"""Forecast of a replay, without sending it: counts, sizes, times and peak rates.

A `Forecast` is given the blocks that a sender would get, faults and all, and sums them up by line,
group and port, and by service where the feed's headers are there. Peak rates are the most that
leaves in any whole window of 10 ms and of 1 s, windows counted from the first datagram: over
everything, and for each group and port. Bytes are payload bytes, and Ethernet frame bytes as `pace`
counts them. Sans-IO; nothing here looks at single datagrams.
"""

import dataclasses
from typing import Any

import numpy as np

from feedhandler.replay.playing.blocks import Block
from feedhandler.replay.playing.pace import FRAME_BYTES_MIN, FRAME_OVERHEAD_BYTES
from feedhandler.replay.playing.sender_lines import NumberedLines

#: Windows of peak rates, in ns, by their names.
WINDOWS_NS = {"10ms": 10_000_000, "1s": 1_000_000_000}
#: Where no service is known.
NO_SERVICE = -1
#: Groups, ports and services that are distinguished; more are counted without service.
ROWS_MAX = 65_536

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Peak:
    """The maximum of a window, as a rate a second."""

    datagrams_per_second: float
    frame_bits_per_second: float


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Datagrams to one group and port, of one service where that is known; times in ns after the
    first datagram."""

    line: str
    group: str
    port: int
    service: int | None
    datagrams: int
    payload_bytes: int
    frame_bytes: int
    first_ns: int
    last_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class Outlook:
    """Forecast of a replay: `rows` by line, group, port and service; `peaks` by window over
    everything, `peaks_of` the same by "group:port". `duration_ns` from the first to the last."""

    datagrams: int
    payload_bytes: int
    frame_bytes: int
    duration_ns: int
    recorded_from_ns: int
    recorded_until_ns: int
    rows: list[Row]
    peaks: dict[str, Peak]
    peaks_of: dict[str, dict[str, Peak]]


class _Peaks:
    """The fullest window of each of `count` destinations, blocks in rising time."""

    def __init__(self, window_ns: int, count: int) -> None:
        self._window_ns = window_ns
        # Of the window that is still open: its number, what is in it so far.
        self._open = np.full(count, -1, np.int64)
        self._datagrams, self._bytes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._most_datagrams, self._most_bytes = (
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
        )

    def add(self, destination: Array, due_ns: Array, frame_bytes: Array) -> None:
        """Add sends: destinations, due times (int64 ns, rising) and frame bytes."""
        keys, inverse = np.unique(
            (destination.astype(np.int64) << 44) | (due_ns // self._window_ns), return_inverse=True
        )
        datagrams = np.bincount(inverse).astype(np.int64)
        sizes = np.bincount(inverse, weights=frame_bytes).astype(np.int64)
        who, window = keys >> 44, keys & ((1 << 44) - 1)
        turns = np.flatnonzero(np.diff(who)) + 1
        firsts, lasts = np.r_[0, turns], np.r_[turns, len(who)] - 1
        goes_on = firsts[self._open[who[firsts]] == window[firsts]]
        datagrams[goes_on] += self._datagrams[who[goes_on]]
        sizes[goes_on] += self._bytes[who[goes_on]]
        np.maximum.at(self._most_datagrams, who, datagrams)
        np.maximum.at(self._most_bytes, who, sizes)
        self._open[who[lasts]] = window[lasts]
        self._datagrams[who[lasts]], self._bytes[who[lasts]] = datagrams[lasts], sizes[lasts]

    def peak(self, destination: int) -> Peak:
        """Return the rates of the fullest window of a destination."""
        a_second = 1e9 / self._window_ns
        return Peak(
            float(self._most_datagrams[destination] * a_second),
            float(self._most_bytes[destination] * 8 * a_second),
        )


class Forecast:
    """A summary of blocks; see the module's text. `names` are the lines' names."""

    def __init__(self, lines: NumberedLines, names: list[str]) -> None:
        self._lines = lines
        self._names = names
        # By destination and service: datagrams, payload bytes, frame bytes, first and last due.
        self._rows: dict[tuple[int, int], list[int]] = {}
        self._recorded: list[int] = []
        count = len(lines.destinations)
        self._peaks = {name: _Peaks(window, 1) for name, window in WINDOWS_NS.items()}
        self._peaks_of = {name: _Peaks(window, count) for name, window in WINDOWS_NS.items()}

    def add(self, block: Block) -> None:
        """Add another block of the same replay."""
        if not len(block):
            return
        length = block.gather([chunk.length for chunk in block.chunks]).astype(np.int64)
        frame = np.maximum(length + FRAME_OVERHEAD_BYTES, FRAME_BYTES_MIN)
        destination = block.destinations.astype(np.int64)
        for name in WINDOWS_NS:
            self._peaks[name].add(np.zeros(len(block), np.int64), block.due_ns, frame)
            self._peaks_of[name].add(destination, block.due_ns, frame)
        self._note_recorded(block)
        self._add_rows(destination, _services(block), length, frame, block.due_ns)

    def _note_recorded(self, block: Block) -> None:
        columns = [
            chunk.time_ns - (chunk.batch.moved_ns if chunk.batch is not None else 0)
            for chunk in block.chunks
        ]
        times = block.gather(columns)
        now = [int(times.min()), int(times.max())]
        before = self._recorded or now
        self._recorded = [min(before[0], now[0]), max(before[1], now[1])]

    def _add_rows(
        self, destination: Array, service: Array, length: Array, frame: Array, due_ns: Array
    ) -> None:
        keys, first, inverse = np.unique(
            (destination << 33) | (service + 1), return_index=True, return_inverse=True
        )
        last = np.zeros(len(keys), np.int64)
        last[inverse] = np.arange(len(inverse))
        datagrams = np.bincount(inverse)
        payload = np.bincount(inverse, weights=length)
        frames = np.bincount(inverse, weights=frame)
        for index, key in enumerate(keys.tolist()):
            who = (key >> 33, (key & ((1 << 33) - 1)) - 1)
            if who not in self._rows and len(self._rows) >= ROWS_MAX:
                who = (who[0], NO_SERVICE)
            begin = int(due_ns[first[index]])
            row = self._rows.setdefault(who, [0, 0, 0, begin, begin])
            row[0] += int(datagrams[index])
            row[1] += int(payload[index])
            row[2] += int(frames[index])
            row[3] = min(row[3], begin)
            row[4] = max(row[4], int(due_ns[last[index]]))

    def outlook(self) -> Outlook:
        """Return the summary of the blocks so far."""
        rows = []
        for (destination, service), row in sorted(self._rows.items()):
            line, group, port = self._lines.destinations[destination]
            known = None if service == NO_SERVICE else service
            rows.append(Row(self._names[line], group, port, known, *row))
        begins = min((row.first_ns for row in rows), default=0)
        peaks_of = {
            f"{group}:{port}": {name: self._peaks_of[name].peak(number) for name in WINDOWS_NS}
            for number, (_, group, port) in enumerate(self._lines.destinations)
        }
        recorded = self._recorded or [0, 0]
        return Outlook(
            datagrams=sum(row.datagrams for row in rows),
            payload_bytes=sum(row.payload_bytes for row in rows),
            frame_bytes=sum(row.frame_bytes for row in rows),
            duration_ns=max((row.last_ns for row in rows), default=0) - begins,
            recorded_from_ns=recorded[0],
            recorded_until_ns=recorded[1],
            rows=rows,
            peaks={name: self._peaks[name].peak(0) for name in WINDOWS_NS},
            peaks_of=peaks_of,
        )


def _services(block: Block) -> Array:
    """Return the service of each send (int64), `NO_SERVICE` where there is none."""
    columns = []
    for chunk in block.chunks:
        headers = chunk.batch.headers if chunk.batch is not None else None
        if headers is None:
            columns.append(np.full(len(chunk.time_ns), NO_SERVICE, np.int64))
        else:
            fine = headers.verdict == 0
            columns.append(np.where(fine, headers.service.astype(np.int64), NO_SERVICE))
    return block.gather(columns)
