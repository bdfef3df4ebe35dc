"""Final status of items in recycled blocks, kept for a trading day or 24 h.

What it is for: an id that a trader holds may be older than every block. `TombstoneIndex` keeps the
final status of ids that ended since the day began, as runs of ids with the same status; before a
block is recycled its runs are written to the file `ended`, a record of whole pages with a CRC32C.
The file is rewritten without what is older than a day when the queue is opened, and when it has
grown to `FILE_BYTES_MAX`. An id that it does not know ended before that: a pending item is never in
it.

What it promises: at most `RUNS_MAX` runs in memory; the oldest are dropped first. No I/O.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

from crc32c import crc32c

from feedhandler.journal.layout import PAGE, Status, pages

RECORD = struct.Struct("<4sHH16sQQQII")
MAGIC = b"FHQE"
VERSION = 1
RUN = struct.Struct("<QII")
#: Upper limit on runs; each takes at most 24 bytes on disk and some hundred in memory.
RUNS_MAX = 1_000_000
NAME = "ended"
#: Without trading days, ids are known for this long.
KEEP_NS = 24 * 3600 * 1_000_000_000
#: The file is rewritten at this size: `RUNS_MAX` runs are a quarter of it.
FILE_BYTES_MAX = 64 << 20
#: Upper limit on the bytes read from the file.
READ_BYTES_MAX = 2 * FILE_BYTES_MAX
#: When the file is rewritten, the runs of an hour become one record.
TOGETHER_NS = 3600 * 1_000_000_000

#: First id, count, status.
Run = tuple[int, int, int]


def runs_of(first_id: int, statuses: bytes | bytearray) -> list[Run]:
    """Group consecutive ids from `first_id` on into runs of equal status."""
    runs, number = [], first_id
    for status, group in groupby(statuses):
        count = sum(1 for _ in group)
        runs.append((number, count, status))
        number += count
    return runs


def pack_record(queue_id: bytes, stamp_ns: int, runs: list[Run]) -> bytes:
    """Encode a record of the file as whole pages; `stamp_ns`: when the last item was journalled."""
    body = b"".join(RUN.pack(*run) for run in runs)
    head = RECORD.pack(
        MAGIC, VERSION, RECORD.size, queue_id, stamp_ns, runs[0][0], sum(run[1] for run in runs),
        len(runs), 0,
    )[:-4]  # fmt: skip
    data = head + struct.pack("<I", crc32c(body, crc32c(head))) + body
    return data.ljust(pages(len(data)), b"\0")


def parse_records(
    data: bytes, queue_id: bytes, bad: Callable[[int], None] = lambda at: None
) -> Iterator[tuple[int, list[Run]]]:
    """Yield (stamp in ns, runs) of each record that verifies.

    Pages that do not are skipped; `bad` is called with their positions, unless they are blank.
    """
    at = 0
    while at + RECORD.size <= len(data):
        magic, version, _, queue, stamp_ns, _, _, count, crc = RECORD.unpack_from(data, at)
        end = at + RECORD.size + RUN.size * count
        if magic == MAGIC and version == VERSION and queue == queue_id and end <= len(data):
            body = data[at + RECORD.size : end]
            if crc32c(body, crc32c(data[at : at + RECORD.size - 4])) == crc:
                yield stamp_ns, list(RUN.iter_unpack(body))
                at = pages(end)
                continue
        if any(data[at : at + PAGE]):
            bad(at)
        at += PAGE
    if any(data[at:]):
        bad(at)


class TombstoneIndex:
    """Runs of ended ids, in order of ids. `damaged`: pages of the file that did not verify."""

    def __init__(self, queue_id: bytes) -> None:
        self.damaged = 0
        self._queue_id = queue_id
        self._firsts: list[int] = []
        self._runs: list[tuple[int, int, int, int]] = []  # first, count, status, stamp

    def __len__(self) -> int:
        return len(self._runs)

    def load(self, data: bytes, since_ns: int) -> bytes | None:
        """Load the file's records; return its new content where it has to be rewritten, else None.

        That is so where some are older than `since_ns`, or do not verify.
        """
        kept, dropped = [], False
        bad: list[int] = []
        for stamp_ns, runs in parse_records(data, self._queue_id, bad.append):
            if stamp_ns < since_ns:
                dropped = True
                continue
            kept.append(pack_record(self._queue_id, stamp_ns, runs))
            self.add(stamp_ns, runs)
        self.damaged = len(bad)
        return b"".join(kept) if dropped or bad else None

    def shortened(self, since_ns: int) -> bytes:
        """Drop what came before `since_ns`, and return the file's new content."""
        self._runs = [run for run in self._runs if run[3] >= since_ns]
        self._firsts = [run[0] for run in self._runs]
        records = []
        for _, group in groupby(self._runs, key=lambda run: run[3] // TOGETHER_NS):
            runs = list(group)
            stamp_ns = max(run[3] for run in runs)
            records.append(pack_record(self._queue_id, stamp_ns, [run[:3] for run in runs]))
        return b"".join(records)

    def record(self, stamp_ns: int, runs: list[Run]) -> bytes:
        """Add a block's runs, and return the record that is to be written."""
        self.add(stamp_ns, runs)
        return pack_record(self._queue_id, stamp_ns, runs)

    def add(self, stamp_ns: int, runs: Iterable[Run]) -> None:
        """Add runs, in order, replacing what was known of their ids.

        Ids are known already where they were written before their block was to be recycled and a
        crash came in between.
        """
        new: list[tuple[int, int, int, int]] = []
        for first, count, status in runs:
            if new and first != new[-1][0] + new[-1][1]:
                self._add(new)
                new = []
            new.append((first, count, status, stamp_ns))
        self._add(new)
        excess = len(self._runs) - RUNS_MAX
        if excess > 0:
            del self._runs[:excess], self._firsts[:excess]

    def _add(self, new: list[tuple[int, int, int, int]]) -> None:
        """Add runs that follow each other without a gap."""
        if new:
            at = self.forget(new[0][0], new[-1][0] + new[-1][1])
            self._firsts[at:at] = [run[0] for run in new]
            self._runs[at:at] = new

    def forget(self, first: int, end: int) -> int:
        """Drop the ids from `first` to `end` - 1; return the index where they would stand."""
        at, after = bisect_left(self._firsts, first), bisect_left(self._firsts, end)
        del self._firsts[at:after], self._runs[at:after]
        return at

    def status(self, number: int) -> Status | None:
        """Return the item's final status; None where that is not known any more."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        first, count, status, _ = self._runs[at]
        return Status(status) if number < first + count else None

    def delivered_since(self, since_ns: int, after: int = 0) -> Iterator[int]:
        """Yield ids above `after` of delivered items that came since `since_ns`.

        Stamps are those of blocks: the last item's.
        """
        at = max(bisect_right(self._firsts, after) - 1, 0)
        for first, count, status, stamp_ns in islice(self._runs, at, None):
            if status == Status.DELIVERED and stamp_ns >= since_ns:
                yield from range(max(first, after + 1), first + count)
