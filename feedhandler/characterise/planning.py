"""Slices with exact boundaries, for readers that cannot take back rows.

Rows that a Spark partition has yielded stay yielded, so for the data source the boundaries are
found beforehand: each slice's walk from record to record runs in a thread, over the mapped file and
without the interpreter's lock, and ends are compared with beginnings as in the job. It reads record
headers only, a small part of the time that reading takes. Only plain local captures are cut here.

Nor can a slice ask the one before it which pieces of fragmented datagrams it has left: they are
looked for in the bytes before the slice (`with_pieces`).
"""

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import structs

from feedhandler.characterise.boundaries import find_boundary, walk
from feedhandler.characterise.files import is_remote, open_at
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import (
    CaptureFile,
    Slice,
    SliceReport,
    Stitcher,
    by_file,
    cut_into_slices,
    whole,
)

#: Threads that look for boundaries.
THREADS = 4
#: How far before a slice pieces are looked for: those of a datagram are sent one after the other.
PIECES_BYTES_MAX = 1 << 20


def exact_slices(files: Sequence[CaptureFile], size: int) -> list[Slice]:
    """Cut every file into slices of about `size` bytes that begin at records; numbered in order."""
    made: list[Slice] = []
    for group in by_file(cut_into_slices(files, size)):
        file = group[0].file
        if file.kind != "pcap" or is_remote(file.path) or len(group) == 1:
            found = [whole(file)]
        else:
            found = _checked(group)
        made += [
            with_pieces(Slice(file, len(made) + index, each.start, each.end))
            for index, each in enumerate(found)
        ]
    return made


def with_pieces(part: Slice) -> Slice:
    """Return the slice with the pieces of datagrams that wait before it (`Slice.waiting`), where it
    is a part of a plain local capture."""
    file = part.file
    if file.kind != "pcap" or part.start <= len(file.header):
        return part
    begin = _record_before(part)
    if begin < 0:
        return part
    reader = SliceReader(Slice(file, 0, begin, part.start, growing=True), lasting=False)
    for _ in reader.batches():
        pass
    return structs.replace(part, waiting=reader.report.waiting)


def _record_before(part: Slice) -> int:
    """Return where a record begins, `PIECES_BYTES_MAX` before the slice or later; -1: nowhere."""
    file, end = part.file, part.start
    begin = len(file.header)
    if end - begin <= PIECES_BYTES_MAX:
        return begin
    asked = end, file.big_endian, file.ticks, file.second
    with (
        open_at(file.path, 0) as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        begin = find_boundary(data, end - PIECES_BYTES_MAX, *asked)
        # From a wrong guess a walk leads elsewhere.
        while begin >= 0 and walk(data, begin, end, file.big_endian) != end:
            begin = find_boundary(data, begin + 1, *asked)
    return begin


def _checked(group: Sequence[Slice]) -> list[Slice]:
    """Return the slices of one file with their true beginnings."""
    file = group[0].file
    with (
        open(file.path, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        reports = list(pool.map(lambda part: _walked(part, data), group))
        stitcher = Stitcher()
        for part, report in zip(group, reports, strict=True):
            again = stitcher.offer(part, report, part)
            if again is not None:
                stitcher.offer(again, _walked(again, data), again)
    return [
        Slice(file, 0, report.began, max(report.ended, part.end))
        for report, part in stitcher.kept
        if report.began < part.end
    ]


def _walked(part: Slice, data: memoryview) -> SliceReport:
    """Find where the slice's records begin and end."""
    file, began = part.file, part.start
    if not part.exact:
        began = find_boundary(data, part.start, part.end, file.big_endian, file.ticks, file.second)
        if began < 0:
            return SliceReport(part.end, part.end)
    ended = walk(data, began, part.end, file.big_endian)
    return SliceReport(began, ended, cut="" if ended >= part.end else "stopped")
