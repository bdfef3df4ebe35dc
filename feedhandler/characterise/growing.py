"""Captures that are still being written: how far they can be read, and what is new since.

An *offset* says of each file how many bytes are read: {path: byte}. `reach` gives the offset up to
which everything is whole: a plain capture to its last whole record, however far its writer is in
the next one; any other file once a later one (in the order of names) follows it, for then it is
rotated away and complete. `news` are the slices between two offsets, each beginning at a record. A
file that is no capture (yet) has no offset. What an offset covers never changes, so a batch that is
read again brings the same rows.
"""

import mmap
from collections.abc import Mapping

from feedhandler.characterise.boundaries import walk
from feedhandler.characterise.files import find_captures, is_remote, look_at
from feedhandler.characterise.slices import CaptureFile, Slice
from feedhandler.codecs.errors import PeerError, UsageError

Offset = dict[str, int]

#: Bytes of a plain capture that one step takes at most, so that a stream that begins late does not
#: take everything as one batch.
STEP_BYTES_MAX = 256 << 20


def reach(paths: tuple[str, ...], known: Mapping[str, int], step: int = STEP_BYTES_MAX) -> Offset:
    """How far can be read, never less than `known`, of a plain capture at most `step` bytes more. A
    path that means nothing yet means nothing."""
    found = dict(known)
    try:
        names = sorted(set(find_captures(paths)))
    except UsageError:
        return found
    for place, name in enumerate(names):
        if is_remote(name):
            raise UsageError(f"{name}: a stream reads local captures", "record to a folder")
        try:
            file = look_at(name)
        except (PeerError, UsageError):
            continue  # its first bytes are not written yet
        if file.kind == "pcap":
            found[name] = _whole_records(file, found.get(name, len(file.header)), step)
        elif place + 1 < len(names):
            found.setdefault(name, file.size)
    return found


def _whole_records(file: CaptureFile, start: int, step: int) -> int:
    """Where the last whole record ends, or the last that begins within `step` behind `start`."""
    if file.size <= start:
        return start
    with (
        open(file.path, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        end = min(len(data), start + step)
        return walk(data, start, end, file.big_endian)


def news(start: Mapping[str, int], end: Mapping[str, int], size: int) -> list[Slice]:
    """What lies between two offsets, in the order of names, in slices of about `size` bytes.

    Raises `UsageError` for a file that is gone: its rows could not be had again."""
    made: list[Slice] = []
    for name in sorted(end):
        if start.get(name, -1) >= end[name]:
            continue
        file = look_at(name)
        begin = start.get(name, len(file.header) if file.kind == "pcap" else 0)
        if file.kind != "pcap":
            made.append(Slice(file, len(made), 0, file.size))
            continue
        made += _cut(file, begin, end[name], size, len(made))
    return made


def _cut(file: CaptureFile, begin: int, end: int, size: int, number: int) -> list[Slice]:
    """Slices of a plain capture between two record boundaries."""
    made: list[Slice] = []
    if begin >= end:
        return made
    with (
        open(file.path, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        while begin < end:
            stop = walk(data, begin, min(begin + size, end), file.big_endian)
            if stop == begin:
                break
            made.append(Slice(file, number + len(made), begin, stop))
            begin = stop
    return made
