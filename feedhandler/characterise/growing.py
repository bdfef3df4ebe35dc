"""Captures that are still being written: how far they can be read, and what is new since.

An *offset* says of each recording how many bytes are read: {name: byte}. `reach` returns the offset
up to which everything is whole: a plain capture up to its last whole record, even while the next is
being written; any other file once a later one (in the order of names) follows it, because then it
is rotated away and complete. `news` are the slices between two offsets, each beginning at a record.
A file that is no capture (yet) has no offset. What an offset covers never changes, so a batch that
is read again brings the same rows.

A recording keeps its name whatever its file is called meanwhile: the gateway's recorder writes
`NAME.part` until it is complete, and compressing an old recording leaves `NAME.gz` or `NAME.zst`.
The offset of a plain capture that was compressed since stays valid, in bytes of its content:
reading continues there, and nothing counts twice.
"""

import contextlib
import glob
import mmap
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from feedhandler.characterise.boundaries import walk
from feedhandler.characterise.files import (
    COMPRESSED,
    PART,
    absolute,
    compressed,
    find_captures,
    is_pattern,
    is_remote,
    look_at,
    look_at_content,
    open_at,
    open_content,
)
from feedhandler.characterise.slices import CaptureFile, Slice
from feedhandler.codecs.errors import PeerError, UsageError

Offset = dict[str, int]

#: Bytes of a plain capture that one step takes at most, so that a stream that begins late does not
#: take everything as one batch.
STEP_BYTES_MAX = 256 << 20
#: No bound to a step.
UNBOUNDED = 1 << 62
#: Bytes inflated at a time, to find the end of a compressed recording's content.
COPY_BYTES = 1 << 20


def recordings(paths: Sequence[str], known: Mapping[str, int]) -> dict[str, str]:
    """Find the recordings that the paths mean, in the order of names, and the file of each.

    `known` is the offset: it shows that a compressed file was read as a plain one before. Paths
    that match nothing yet are ignored. Raises `UsageError` for paths of another machine.
    """
    found: set[str] = set()
    for path in map(absolute, paths):
        if is_remote(path):
            raise UsageError(f"{path}: a stream reads local captures", "record to a folder")
        with contextlib.suppress(UsageError):
            found.update(find_captures([path]))
        pattern = os.path.join(glob.escape(path), f"*{PART}") if Path(path).is_dir() else path
        if pattern != path or is_pattern(path):
            found.update(each for each in glob.glob(pattern.removesuffix(PART) + PART))
    names = {each.removesuffix(PART) for each in found}
    made = {}
    for name in names:
        plain = _without_compression(name)
        if plain == name or not (plain in names or plain in known):
            made[name] = name
        elif plain not in names:
            made[plain] = name
        # Else the plain one is still there: it is being compressed.
    return dict(sorted(made.items()))


def _without_compression(name: str) -> str:
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return name


class ContentEnds:
    """Where the whole records of compressed recordings end, so that a file is inflated once.

    Whoever follows the recordings keeps it from look to look. It has one entry a file, and no bound
    of its own: every look asks for all files in the same order, so that a cache of fewer entries
    would have dropped each of them by the time that it is asked for again.
    """

    def __init__(self) -> None:
        #: By path: what was asked (stamp, start, step), and where the records end.
        self._found: dict[str, tuple[tuple[int, ...], int]] = {}

    def end(self, path: str, start: int, step: int) -> int:
        """Return the end of the whole records that begin within `step` behind `start`.

        It is a position in the file's content, up to any damage.
        """
        asked = (*_stamp(path), start, step)
        known = self._found.get(path)
        if known is None or known[0] != asked:
            known = self._found[path] = asked, _whole_content(path, start, step)
        return known[1]

    def keep(self, paths: Collection[str]) -> None:
        """Forget all other files: they are gone."""
        for path in self._found.keys() - set(paths):
            del self._found[path]


def reach(
    paths: Sequence[str],
    known: Mapping[str, int],
    step: int = STEP_BYTES_MAX,
    *,
    complete: bool = False,
    ends: ContentEnds | None = None,
) -> Offset:
    """Return how far each recording can be read.

    That is never less than `known`, and of a plain capture at most `step` bytes more. `complete`:
    nothing is being written any more, so that the latest file too is read whole. `ends`: what
    earlier looks have found.
    """
    ends = ends or ContentEnds()
    found = dict(known)
    files = list(recordings(paths, known).items())
    for index, (name, path) in enumerate(files):
        try:
            file = look_at(name) if path == name else look_at_content(path)
        except (PeerError, UsageError):
            continue  # its first bytes are not written yet
        if path != name:
            begin = max(found[name], len(file.header))
            found[name] = ends.end(path, begin, step)
        elif file.kind == "pcap":
            found[name] = _whole_records(file, found.get(name, len(file.header)), step)
        elif complete or index + 1 < len(files):
            found.setdefault(name, file.size)
    ends.keep([path for _, path in files])
    return found


@contextlib.contextmanager
def _mapped(file: Any) -> Iterator[memoryview]:
    with (
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        yield data


def _whole_records(file: CaptureFile, start: int, step: int) -> int:
    """Return where the last whole record ends that begins within `step` behind `start`."""
    if file.size <= start:
        return start
    with open_at(file.path, 0) as opened, _mapped(opened) as data:
        return walk(data, start, min(len(data), start + step), file.big_endian)


def _stamp(path: str) -> tuple[int, int]:
    """Return size and modification time (ns) of a file, which tell that it has changed."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return 0, 0


def _whole_content(path: str, start: int, step: int) -> int:
    """Return the same as `_whole_records` of a compressed capture's content, up to any damage."""
    file = look_at_content(path)
    with tempfile.TemporaryFile(prefix="feedhandler-") as copy, open_content(path, 0) as content:
        block = memoryview(bytearray(COPY_BYTES))
        with contextlib.suppress(PeerError):
            while got := content.readinto(block):
                copy.write(block[:got])
        copy.flush()
        with _mapped(copy) as data:
            if len(data) <= start:
                return start
            return walk(data, start, min(len(data), start + step), file.big_endian)


def news(start: Mapping[str, int], end: Mapping[str, int], size: int) -> list[Slice]:
    """Cut what lies between two offsets into slices of about `size` bytes, in the order of names.

    Each begins at a record, but perhaps within a datagram: the pieces that wait before it are
    the caller's to pass on. Raises `UsageError` for a file that is gone, as its rows could not be
    read again.
    """
    made: list[Slice] = []
    for name in sorted(end):
        if start.get(name, -1) >= end[name]:
            continue
        file = located(name)
        if file.kind == "content":
            # A stream of bytes without positions to seek to: one slice.
            begin = start.get(name, len(file.header))
            if begin < end[name]:
                made.append(Slice(file, len(made), begin, end[name], growing=True))
        elif file.kind != "pcap":
            made.append(Slice(file, len(made), 0, file.size))
        else:
            made += _cut(file, start.get(name, len(file.header)), end[name], size, len(made))
    return made


def located(name: str) -> CaptureFile:
    """Examine a recording under the name it has now.

    Raises `UsageError` where it is gone, `PeerError` where it is no capture.
    """
    if not any(Path(each).exists() for each in (name, name + PART, name)):
        path = compressed(name)
        if path:
            try:
                return structs.replace(look_at_content(path), path=name)
            except PeerError:
                return look_at(path)  # no classic capture: read whole, as it was
    return look_at(name)


def _cut(file: CaptureFile, begin: int, end: int, size: int, number: int) -> list[Slice]:
    """Cut a plain capture between two record boundaries into slices."""
    made: list[Slice] = []
    if begin >= end:
        return made
    with open_at(file.path, 0) as opened, _mapped(opened) as data:
        while begin < end:
            stop = walk(data, begin, min(begin + size, end), file.big_endian)
            if stop == begin:
                break
            made.append(Slice(file, number + len(made), begin, stop, growing=True))
            begin = stop
    return made
