"""Stretches of captures that are read side by side, and whether they fit together; no I/O.

A `Slice` is a range of bytes of a plain capture, or a whole file of any other kind. Where a record
begins in the middle of a file can only be guessed (`boundaries`), so whoever reads a slice reports
where its records began and ended (`SliceReport`), and `Stitcher` walks through a file's reports in
order: a stretch whose end is not the next one's beginning is asked for again, this time from the
right place. So is one before which pieces of a fragmented datagram wait, which it is given. What
comes out is what one reader from beginning to end would have seen, damage and all: behind a damaged
record nothing counts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from feedhandler.characterise.zstd_frames import Frame

#: Bytes a slice, unless that makes too many or too few of them.
SLICE_BYTES_MIN, SLICE_BYTES_MAX = 8 << 20, 256 << 20
#: Of slices that are only tallied, which hardly take more memory where they are longer: each task
#: costs Spark some time beside its work, and each tally the driver. (Short captures have shorter.)
TALLIED_BYTES_MIN, TALLIED_BYTES_MAX = 64 << 20, 2 << 30


class CaptureFile(Struct, frozen=True):
    """A capture and what its first bytes told.

    `kind`: `pcap` (plain, can be cut anywhere), `pcapng`, `gzip` or `zstd`; `size` in bytes. Of a
    plain one also its `header` and the second of its first record; of a zstd file that is a row of
    frames with a classic capture in it the same, and the `frames`: it is cut by its content. Of
    kind `content` is a compressed capture that was read as a plain one up to some place before
    (`growing`): a slice of it is a range of its content.
    """

    path: str
    kind: str
    size: int
    header: bytes = b""
    second: int = 0
    frames: tuple[Frame, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether it can be read from any record on."""
        return self.kind in ("pcap", "content") or bool(self.frames)

    @property
    def length(self) -> int:
        """Of what is read, in bytes: the content of frames, else the file."""
        return self.frames[-1].start + self.frames[-1].content if self.frames else self.size

    @property
    def big_endian(self) -> bool:
        """The byte order of a plain capture."""
        return self.header[:1] == b"\xa1"

    @property
    def ticks(self) -> int:
        """Of a plain capture: how many parts a second has."""
        return 10**9 if b"\x3c" in self.header[1:3] else 10**6


class Slice(Struct, frozen=True):
    """The records of a capture that begin in `[start, end)`; `exact`: one begins at `start`.

    Of a file that is read whole: 0 to its size. `number` counts the slices of all files. `waiting`:
    pieces of fragmented datagrams that stand before and wait for others (`Fragments.waiting`).
    """

    file: CaptureFile
    number: int
    start: int
    end: int
    exact: bool = True
    waiting: bytes = b""

    @property
    def length(self) -> int:
        """In bytes."""
        return self.end - self.start


class SliceReport(Struct, frozen=True):
    """What was met in a slice: where its first record began and where its last one ended (equal:
    there was none), whole records, datagrams, frames that were none by reason, and why reading
    stopped early, if it did (`damage`: nothing behind it can be read; `cut`: the file ends in the
    middle of a record). `slowly`, `joined` and `stand_ins` are `CaptureStatistics`'. `began_with`
    are the slice's pieces that waited, `waiting` those that wait at its end."""

    began: int
    ended: int
    records: int = 0
    datagrams: int = 0
    skipped: dict[str, int] = {}
    cut_payloads: int = 0
    damage: str = ""
    cut: str = ""
    slowly: dict[str, int] = {}
    joined: int = 0
    stand_ins: dict[str, str] = {}
    began_with: bytes = b""
    waiting: bytes = b""


def slice_bytes(total: int, workers: int) -> int:
    """How long slices should be for so many bytes and so many workers: a few for each."""
    wanted = total // max(1, 4 * workers)
    return min(max(wanted, SLICE_BYTES_MIN), SLICE_BYTES_MAX)


def cut_into_slices(files: Sequence[CaptureFile], size: int) -> list[Slice]:
    """Slices of about `size` bytes of every file that can be cut, all others whole; in order."""
    return _cut(files, lambda left: size)


def cut_for_tallying(files: Sequence[CaptureFile], workers: int) -> list[Slice]:
    """The same for slices that are only tallied: ever shorter ones, each a worker's share of what
    is left, so that few tasks keep all workers busy and all end at about the same time, however
    fast each of them is (guided self-scheduling: Polychronopoulos and Kuck, 1987)."""
    least = min(slice_bytes(cut_bytes(files), workers), TALLIED_BYTES_MIN)
    return _cut(files, lambda left: min(max(left // workers, least), TALLIED_BYTES_MAX))


def cut_bytes(files: Sequence[CaptureFile]) -> int:
    """How much of these files can be cut."""
    return sum(file.length for file in files if file.is_cut)


def _cut(files: Sequence[CaptureFile], size_of: Callable[[int], int]) -> list[Slice]:
    """`size_of` is asked for each slice's size, given the bytes that are left."""
    made: list[Slice] = []
    left = cut_bytes(files)
    for file in files:
        if not file.is_cut:
            made.append(Slice(file, len(made), 0, file.size))
            continue
        start = begin = len(file.header)
        while start == begin or start < file.length:
            end = min(start + size_of(left), file.length)
            made.append(Slice(file, len(made), start, end, start == begin))
            left -= end - start
            start = max(end, begin + 1)
    return made


class Stitcher:
    """Puts the slices of one file together again, in order.

    `offer` takes a slice and what its reader brought and answers with the slice to read again, or
    with None where nothing is missing. `kept` are the results that count.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[SliceReport, Any]] = []
        self.read_again = 0
        #: Of the latest slice that counts.
        self.before: SliceReport | None = None

    def offer(self, part: Slice, report: SliceReport, result: Any) -> Slice | None:
        """The next slice of the file, or the answer to the one that was asked for again."""
        if _reaches_past(self.before, part):
            return None
        if not goes_on(self.before, part, report):
            self.read_again += 1
            waiting = self.before.waiting if self.before else b""
            begin = _expected(self.before, part)
            return Slice(part.file, part.number, begin, part.end, waiting=waiting)
        self.kept.append((report, result))
        self.before = report
        return None


def goes_on(before: SliceReport | None, part: Slice, report: SliceReport) -> bool:
    """Whether what was read of a slice begins where the slice before it ended; `before` is of the
    latest one of its file that counts, None for the first."""
    if _reaches_past(before, part):
        return False
    misplaced = not part.exact and report.began != _expected(before, part)
    return not misplaced and report.began_with == (before.waiting if before else b"")


def _expected(before: SliceReport | None, part: Slice) -> int:
    """Where a slice's first record has to begin."""
    if before is None:
        return part.start if part.exact else -1
    return before.ended


def _reaches_past(before: SliceReport | None, part: Slice) -> bool:
    """Whether nothing of a slice counts: the record before reaches past all of it, or reading ended
    before."""
    ended = before is not None and bool(before.damage or before.cut)
    return ended or _expected(before, part) >= part.end > part.start


def by_file(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """The slices of each file in turn."""
    group: list[Slice] = []
    for part in slices:
        if group and group[-1].file.path != part.file.path:
            yield group
            group = []
        group.append(part)
    if group:
        yield group
