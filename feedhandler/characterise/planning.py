"""Slices with exact boundaries, for readers that cannot take back rows.

Rows that a Spark partition has yielded stay yielded, so for the data source the boundaries are
found beforehand: each slice's walk from record to record runs in a thread, over the mapped file and
without the interpreter's lock, and ends are compared with beginnings as in the job. It reads record
headers only, a small part of the time that reading takes. Only plain local captures are cut here.
"""

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from feedhandler.characterise.boundaries import find_boundary, walk
from feedhandler.characterise.files import is_remote
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


def exact_slices(files: Sequence[CaptureFile], size: int) -> list[Slice]:
    """Cut every file into slices of about `size` bytes that begin at records; numbered in order."""
    made: list[Slice] = []
    for group in by_file(cut_into_slices(files, size)):
        file = group[0].file
        if file.kind != "pcap" or is_remote(file.path) or len(group) == 1:
            found = [whole(file)]
        else:
            found = _checked(group)
        made += [Slice(file, len(made) + index, x.start, x.end) for index, x in enumerate(found)]
    return made


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
