"""A slice of a capture read as batches of datagrams, with a report.

`SliceReader.batches` yields the datagrams in the slice; afterwards `report` says where the records
began and ended. The compiled readers of `replay` do the walks; memory is bounded by a chunk. Files
that cannot be cut are read whole by `Capture`, from a local copy where they are remote.
"""

import functools
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from feedhandler.characterise.boundaries import find_boundary, walk
from feedhandler.characterise.files import local_copy, open_capture_at, shown
from feedhandler.characterise.slices import Slice, SliceReport
from feedhandler.codecs.errors import PeerError
from feedhandler.replay.captures.fragments import Fragments
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, DatagramColumns, Skip
from feedhandler.replay.captures.pcap import PcapScanner
from feedhandler.replay.captures.pcapng import BLOCK_BYTES_MAX
from feedhandler.replay.captures.reading import (
    BATCH_DATAGRAMS_MAX,
    CHUNK_BYTES,
    BatchMaker,
    Capture,
    DatagramBatch,
    pcap_scanner,
)
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES
from feedhandler.replay.captures.status import Status

#: The longest record of a classic capture, with its header.
RECORD_MAX = RECORD_BYTES_MAX + RECORD_HEADER_BYTES
assert RECORD_MAX < CHUNK_BYTES
assert BLOCK_BYTES_MAX < CHUNK_BYTES


def _skips(skipped: dict[Skip, int]) -> dict[str, int]:
    return {reason.name.lower().replace("_", " "): count for reason, count in skipped.items()}


def given_up(waiting: bytes) -> dict[str, int]:
    """Count records of datagrams that stay incomplete where nothing follows (`skipped`)."""
    fragments = Fragments(waiting)
    fragments.finish()
    return _skips({Skip.FRAGMENT: fragments.given_up})


def _read_into(file: Any, room: memoryview) -> int:
    """Fill `room` as far as the file goes; return how many bytes were read."""
    filled = 0
    while filled < len(room):
        got = file.readinto(room[filled:])
        if not got:
            break
        filled += got
    return filled


class SliceReader:
    """A reader of one slice; see the module's text.

    `report` is complete once `batches` has ended. `lasting=False`: a batch is valid until the next
    one only, which saves memory traffic.
    """

    def __init__(self, part: Slice, *, lasting: bool = True) -> None:
        self.part = part
        self._lasting = lasting
        self.report = SliceReport(part.start, part.start)

    def batches(self) -> Iterator[DatagramBatch]:
        """Yield the datagrams whose records begin in the slice.

        Faults of the capture are reported and not raised; a file that is gone raises `UsageError`.
        """
        return self._plain() if self._by_bytes else self._whole()

    @property
    def _by_bytes(self) -> bool:
        """Whether the slice is a range of the capture's bytes."""
        file = self.part.file
        return file.is_cut and not (file.frames and self.part.start == 0)

    def _whole(self) -> Iterator[DatagramBatch]:
        damage = ""
        with local_copy(self.part.file.path) as path:
            try:
                capture = Capture(path)
            except PeerError as error:
                damage = error.message.replace(str(path), shown(self.part.file.path))
                self.report = SliceReport(0, self.part.file.size, damage=damage)
                return
            try:
                yield from capture.batches()
            except PeerError as error:
                damage = error.message.replace(str(path), shown(self.part.file.path))
        statistics = capture.statistics
        self.report = SliceReport(
            0,
            self.part.file.size,
            statistics.records,
            statistics.datagrams,
            _skips(statistics.skipped),
            statistics.cut_payloads,
            damage,
            str(capture.truncation or ""),
            statistics.slowly,
            statistics.joined,
            statistics.stand_ins,
        )

    def _plain(self) -> Iterator[DatagramBatch]:
        part = self.part
        scanner = pcap_scanner(part.file.header, part.file.path)
        reader = _RecordReader(
            scanner, part.file.big_endian, part.start, self._lasting, part.waiting
        )
        with open_capture_at(part.file, part.start) as file:
            if part.exact:
                began = part.start
            else:
                began = self._begin(file, reader)
            position = began
            if began < part.end:
                yield from reader.read_to(file, part.end)
                position = reader.position
        damage, cut = reader.damage, reader.cut
        not_inflated: str = getattr(file, "damage", "")
        if position < part.end and not_inflated:
            damage, cut = not_inflated, ""
        maker = reader.maker
        if damage or cut or (position >= part.file.length and not part.growing):
            maker.finish()
        self.report = SliceReport(
            began,
            position,
            scanner.records,
            reader.datagrams,
            _skips(maker.skipped),
            maker.cut_payloads,
            damage,
            cut,
            maker.slowly,
            maker.joined,
            maker.stand_ins,
            part.waiting,
            maker.waiting,
        )

    def _begin(self, file: Any, reader: "_RecordReader") -> int:
        """Find where a record seems to begin first, else the slice's end; move `reader` there."""
        part = self.part
        size = min(CHUNK_BYTES + RECORD_MAX, part.file.length - part.start)
        look = np.empty(size, np.uint8)
        filled = _read_into(file, look.data)
        end = min(filled, part.end - part.start)
        found = find_boundary(
            look.data[:filled], 0, end, part.file.big_endian, part.file.ticks, part.file.second
        )
        if found < 0:
            return part.end
        reader.position = part.start + found
        file.seek(reader.position)
        return reader.position


class _Room:
    """The buffers that batches lie in, allocated on first use."""

    @functools.cached_property
    def chunk(self) -> np.ndarray[Any, Any]:
        """Bytes of the capture."""
        return np.empty(CHUNK_BYTES, np.uint8)

    @functools.cached_property
    def columns(self) -> DatagramColumns:
        """Columns of the chunk's datagrams."""
        return DatagramColumns(BATCH_DATAGRAMS_MAX)


class _RecordReader:
    """Reads a plain capture's records from `position` on, which advances with them."""

    def __init__(
        self,
        scanner: PcapScanner,
        big_endian: bool,
        position: int,
        lasting: bool,
        waiting: bytes,
    ) -> None:
        self.position = position
        self._room = None if lasting else _Room()
        self.datagrams = 0
        self.maker = BatchMaker(scanner.frames, waiting)
        self.damage = ""
        self.cut = ""
        self._scanner = scanner
        self._big_endian = big_endian

    def read_to(self, file: Any, end: int) -> Iterator[DatagramBatch]:
        """Yield all records that begin before `end`; `file` must stand at `position`."""
        rest = np.empty(0, np.uint8)
        while self.position < end:
            chunk = (self._room or _Room()).chunk
            chunk[: len(rest)] = rest
            filled = len(rest) + _read_into(file, chunk.data[len(rest) :])
            taken = yield from self._scan(chunk, self._limit(chunk, filled, end))
            self.position += taken
            rest = chunk[taken:filled]
            if self._scanner.status == Status.DAMAGED:
                self.damage = f"damaged at byte {self.position:,}: {self._scanner.damage}"
                return
            if filled < CHUNK_BYTES:
                if self.position < end and len(rest):
                    self.cut = f"cut short at byte {self.position:,}: the last record is not whole"
                return

    def _limit(self, chunk: np.ndarray[Any, Any], filled: int, end: int) -> int:
        """Return how many bytes of the chunk hold records that begin before `end`."""
        if self.position + filled < end:
            return filled
        past = walk(chunk.data[:filled], 0, end - self.position, self._big_endian)
        # Where the walk stopped earlier, the scanner reports why.
        return past if self.position + past >= end else filled

    def _scan(self, chunk: np.ndarray[Any, Any], limit: int) -> Generator[DatagramBatch, None, int]:
        """Yield the records in `chunk[:limit]`; return the position behind the last taken."""
        position = 0
        while True:
            columns = (self._room or _Room()).columns
            columns.clear()
            position = self._scanner.scan(chunk.data, position, limit, columns)
            batch = self.maker(chunk, columns)
            self.datagrams += len(batch)
            if len(batch):
                yield batch
            if self._scanner.status != Status.FULL:
                return position
