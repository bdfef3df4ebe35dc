"""What became of items whose blocks have been used anew: so that today's ids are never unknown.

What it is for: an id that a trader holds may be older than every block. `Ended` knows, of ids that
ended since the day began, what each became, as runs of ids with the same status; before a block is
used anew its runs are written to the file `ended`, a record of whole pages with a CRC32C. The file
is made anew without what is older than a day when the queue is opened, and when it has grown to
`FILE_BYTES_MAX`. An id that it does not know ended before: nothing pending is ever in it.

What it promises: at most `RUNS_MAX` runs in memory, the oldest give way. No I/O.
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
#: 24 bytes each on disk at most, some hundred in memory.
RUNS_MAX = 1_000_000
NAME = "ended"
#: Without trading days, ids are known for this long after their block was used anew.
KEEP_NS = 24 * 3600 * 1_000_000_000
#: The file is made anew at that size: `RUNS_MAX` runs are a quarter of it.
FILE_BYTES_MAX = 64 << 20
#: More of it is not read.
READ_BYTES_MAX = 2 * FILE_BYTES_MAX
#: When it is made anew, what came within an hour becomes one record.
TOGETHER_NS = 3600 * 1_000_000_000

#: First id, how many, what they became.
Run = tuple[int, int, int]


def runs_of(first_id: int, statuses: bytes | bytearray) -> list[Run]:
    """Consecutive ids from `first_id` on, by what they became."""
    runs, number = [], first_id
    for status, group in groupby(statuses):
        count = sum(1 for _ in group)
        runs.append((number, count, status))
        number += count
    return runs


def pack_record(queue_id: bytes, stamp_ns: int, runs: list[Run]) -> bytes:
    """A record of the file: whole pages. `stamp_ns`: when the last of the items came."""
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
    """(stamp, runs) of each record that verifies; pages that do not are passed over, and `bad` is
    told where they are, unless they are blank."""
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


class Ended:
    """Runs of ended ids in order of their ids. `damaged`: pages of the file that did not verify."""

    def __init__(self, queue_id: bytes) -> None:
        self.damaged = 0
        self._queue_id = queue_id
        self._firsts: list[int] = []
        self._runs: list[tuple[int, int, int, int]] = []  # first, count, status, stamp

    def __len__(self) -> int:
        return len(self._runs)

    def load(self, data: bytes, since_ns: int) -> bytes | None:
        """Take in the file's records; its new content, where some are older than `since_ns`, or do
        not verify."""
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
        """Forget what came before `since_ns`; the file's new content."""
        self._runs = [run for run in self._runs if run[3] >= since_ns]
        self._firsts = [run[0] for run in self._runs]
        records = []
        for _, group in groupby(self._runs, key=lambda run: run[3] // TOGETHER_NS):
            runs = list(group)
            stamp_ns = max(run[3] for run in runs)
            records.append(pack_record(self._queue_id, stamp_ns, [run[:3] for run in runs]))
        return b"".join(records)

    def record(self, stamp_ns: int, runs: list[Run]) -> bytes:
        """Take in a block's runs; the record that is to be written."""
        self.add(stamp_ns, runs)
        return pack_record(self._queue_id, stamp_ns, runs)

    def add(self, stamp_ns: int, runs: Iterable[Run]) -> None:
        """Take in runs, in order. What was known of these ids gives way: it was written when their
        block was to be used anew, and a crash came before that."""
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
        """Take in runs that follow each other."""
        if new:
            at = self.forget(new[0][0], new[-1][0] + new[-1][1])
            self._firsts[at:at] = [run[0] for run in new]
            self._runs[at:at] = new

    def forget(self, first: int, end: int) -> int:
        """Know nothing of the ids from `first` to `end` - 1; where they would stand."""
        at, after = bisect_left(self._firsts, first), bisect_left(self._firsts, end)
        del self._firsts[at:after], self._runs[at:after]
        return at

    def status(self, number: int) -> Status | None:
        """What the item became; None where that is not known any more."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        first, count, status, _ = self._runs[at]
        return Status(status) if number < first + count else None

    def delivered_since(self, since_ns: int, after: int = 0) -> Iterator[int]:
        """Ids above `after` of the items that were delivered and had come since, block by block."""
        at = max(bisect_right(self._firsts, after) - 1, 0)
        for first, count, status, stamp_ns in islice(self._runs, at, None):
            if status == Status.DELIVERED and stamp_ns >= since_ns:
                yield from range(max(first, after + 1), first + count)
