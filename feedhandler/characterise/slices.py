"""Slices of captures that are read in parallel, and the check that they fit together; no I/O.

A `Slice` is a range of bytes of a plain capture, or a whole file of any other kind. Where a record
begins in the middle of a file can only be guessed (`boundaries`), so a slice's reader reports where
its records began and ended (`SliceReport`), and `Stitcher` walks through a file's reports in order:
a slice that does not begin where the one before it ended is read again from there. So is a slice
before which fragments of a datagram wait, which are then passed to it. The result equals that of
one reader from beginning to end, damage included: behind a damaged record nothing counts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from feedhandler.characterise.zstd_frames import Frame

#: Bytes a slice, unless that makes too many or too few of them.
SLICE_BYTES_MIN, SLICE_BYTES_MAX = 8 << 20, 256 << 20
#: Bytes of slices that are only tallied, which hardly take more memory where they are longer: each
#: task and each tally has a fixed cost. (Short captures have shorter slices.)
TALLIED_BYTES_MIN, TALLIED_BYTES_MAX = 64 << 20, 2 << 30


class CaptureFile(Struct, frozen=True):
    """A capture as its first bytes describe it.

    `kind`: `pcap` (plain, can be cut anywhere), `pcapng`, `gzip`, `zstd` or `content`; `size` in
    bytes. A plain capture also has its `header` and the `second` of its first record; so has a zstd
    file of several frames that hold a classic capture, and its `frames`: it is cut by its content.
    A `content` file is a compressed capture that was read as a plain one up to some position before
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
        """The bytes to be read: of the content of frames, else of the file."""
        return self.frames[-1].start + self.frames[-1].content if self.frames else self.size

    @property
    def big_endian(self) -> bool:
        """Whether a plain capture is big-endian."""
        return self.header[:1] == b"\xa1"

    @property
    def ticks(self) -> int:
        """Ticks per second of a plain capture's times."""
        return 10**9 if b"\x3c" in self.header[1:3] else 10**6


class Slice(Struct, frozen=True):
    """The records of a capture that begin in `[start, end)`; `exact`: one begins at `start`.

    A file that is read whole has the range 0 to its size. `number` counts the slices of all files.
    `waiting`: pieces of fragmented datagrams that stand before and wait for others
    (`Fragments.waiting`). `growing`: records may still follow where the file ends now, so that
    pieces go on waiting there.
    """

    file: CaptureFile
    number: int
    start: int
    end: int
    exact: bool = True
    waiting: bytes = b""
    growing: bool = False

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.end - self.start


def whole(file: CaptureFile) -> Slice:
    """Return the slice that is all of a capture."""
    return Slice(file, 0, len(file.header) if file.kind == "pcap" else 0, file.size)


class SliceReport(Struct, frozen=True):
    """The report of a slice's reader.

    `began`, `ended`: where its first record began and its last one ended (equal: there was none);
    whole records, datagrams, `skipped` frames by reason; why reading stopped early, if it did
    (`damage`: nothing behind it can be read; `cut`: the file ends in the middle of a record).
    `slowly`, `joined` and `stand_ins` as in `CaptureStatistics`. `began_with` are the fragments
    that the slice was given, `waiting` those that wait at its end.
    """

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
    """Choose the size of slices for so many bytes and workers: a few slices for each worker."""
    wanted = total // max(1, 4 * workers)
    return min(max(wanted, SLICE_BYTES_MIN), SLICE_BYTES_MAX)


def cut_into_slices(files: Sequence[CaptureFile], size: int) -> list[Slice]:
    """Cut the files into slices of about `size` bytes, in order.

    Files that cannot be cut stay whole.
    """
    return _cut(files, lambda left: size)


def cut_for_tallying(files: Sequence[CaptureFile], workers: int) -> list[Slice]:
    """Cut the files into ever shorter slices, each a worker's share of the rest.

    They are for tallying only. So few tasks keep all workers busy and all end at about the same
    time, however fast each of them is (guided self-scheduling: Polychronopoulos and Kuck, 1987).
    """
    least = min(slice_bytes(cut_bytes(files), workers), TALLIED_BYTES_MIN)
    return _cut(files, lambda left: min(max(left // workers, least), TALLIED_BYTES_MAX))


def cut_bytes(files: Sequence[CaptureFile]) -> int:
    """Count the bytes of these files that can be cut."""
    return sum(file.length for file in files if file.is_cut)


def _cut(files: Sequence[CaptureFile], size_of: Callable[[int], int]) -> list[Slice]:
    """Cut the files into slices; `size_of` gives each slice's size for the bytes that are left."""
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
    """A check that the slices of one file fit together, in order.

    `offer` takes a slice and its reader's result and returns the slice to read again, or None where
    nothing is missing. `kept` holds the results that count.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[SliceReport, Any]] = []
        self.read_again = 0
        #: Of the latest slice that counts.
        self.before: SliceReport | None = None

    def offer(self, part: Slice, report: SliceReport, result: Any) -> Slice | None:
        """Take the next slice of the file, or the answer to the one that was asked for again."""
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
    """Return whether what was read of a slice begins where the slice before it ended.

    `before` is of the latest one of its file that counts, None for the first.
    """
    if _reaches_past(before, part):
        return False
    misplaced = not part.exact and report.began != _expected(before, part)
    return not misplaced and report.began_with == (before.waiting if before else b"")


def _expected(before: SliceReport | None, part: Slice) -> int:
    """Return the offset at which a slice's first record has to begin."""
    if before is None:
        return part.start if part.exact else -1
    return before.ended


def _reaches_past(before: SliceReport | None, part: Slice) -> bool:
    """Return whether nothing of a slice counts: the record before reaches past all of it, or
    reading ended before."""
    ended = before is not None and bool(before.damage or before.cut)
    return ended or _expected(before, part) >= part.end > part.start


def by_file(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Group the slices by file, in order."""
    group: list[Slice] = []
    for part in slices:
        if group and group[-1].file.path != part.file.path:
            yield group
            group = []
        group.append(part)
    if group:
        yield group
