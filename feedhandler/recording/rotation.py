"""The files of a capture: where records go, and when the next file begins. No I/O.

`CaptureFiles` writes one file after the other: one of the name given, or, where files rotate,
`NAME-<yyyymmdd-hhmmss>-<number>` with the same suffixes, after the time (UTC) it was begun. A file
is closed at a size and at an age, and the oldest of this capture may be deleted for the newest.
Every file is a whole capture: a header, the records, and what `trailer` returns at its end.

The files themselves are behind `Sink`. What a sink still holds back (compression works on blocks)
is not counted as written: `packets` counts what is in files, whatever fails.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Protocol

from msgspec import Struct

from feedhandler.recording.frame_writer import RECORD_SPACE

#: The longest time that compressed and buffered records are held back.
FLUSH_NS = 1_000_000_000
#: The least file size for rotation: a few of the largest datagrams.
ROTATE_BYTES_MIN = 1 << 20
#: The suffixes of a capture's name, the inner before the outer.
FORMATS = (".pcap", ".pcapng", ".cap")
COMPRESSIONS = (".gz", ".zst")


class Sink(Protocol):
    """A file being written."""

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`; after an `OSError` the file is as it was before."""

    def flush(self) -> None:
        """Write what is held back; after an `OSError` the file is as it was before."""

    def close(self) -> None:
        """Flush and close the file."""

    @property
    def held_bytes(self) -> int:
        """Bytes that were taken and are not in the file yet."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size of the file, compressed or not."""
        ...


class Rotation(Struct, frozen=True):
    """Rule by which a next file begins and old ones go.

    One begins at a size, at an age (0: never); `keep` is how many files stay (0: all).
    """

    size_bytes: int = 0
    every_ns: int = 0
    keep: int = 0

    def __bool__(self) -> bool:
        return bool(self.size_bytes or self.every_ns)


class WrittenFile(Struct):
    """The account of one file."""

    name: str
    begun_ns: int
    packets: int = 0
    size_bytes: int = 0
    deleted: bool = False


def split_suffixes(name: str) -> tuple[str, str]:
    """Split `day.pcap.gz` into `day` and `.pcap.gz`; other suffixes belong to the name."""
    path = PurePath(name)
    suffix = path.suffix if path.suffix in COMPRESSIONS else ""
    stem = name.removesuffix(suffix)
    inner = PurePath(stem).suffix
    if inner in FORMATS:
        suffix, stem = inner + suffix, stem.removesuffix(inner)
    return stem, suffix


class CaptureFiles:
    """The files of one capture; see the module's text.

    `create` makes the file of a name, `remove` deletes one, `header` begins each and `trailer`
    returns what ends each; `laid_out` returns how many packets were handed to `write` so far.
    `packets` counts those in files. `OSError`s of sinks pass through.
    """

    def __init__(
        self,
        name: str,
        rotation: Rotation,
        create: Callable[[str], Sink],
        remove: Callable[[str], None],
        *,
        header: bytes,
        trailer: Callable[[], bytes],
        laid_out: Callable[[], int],
    ) -> None:
        self.written: list[WrittenFile] = []
        self.packets = 0
        self._stem, self._suffix = split_suffixes(name)
        self._rotation = rotation
        self._create = create
        self._remove = remove
        self._header = header
        self._trailer = trailer
        self._laid_out = laid_out
        self._sink: Sink | None = None
        self._file = WrittenFile("", 0)
        self._packets_before = 0
        self._flushed_ns = 0
        self._failed = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the capture's files, without deleted ones."""
        open_bytes = self._sink.size_bytes if self._sink else 0
        return open_bytes + sum(file.size_bytes for file in self.written if not file.deleted)

    def begin(self, now_ns: int) -> None:
        """Begin a file. The first one is begun before there is anything to write."""
        stem = self._stem
        if self._rotation:
            begun = datetime.datetime.fromtimestamp(now_ns // 1_000_000_000, datetime.UTC)
            stem += f"-{begun:%Y%m%d-%H%M%S}-{len(self.written) + 1:06}"
        name = stem + self._suffix
        sink = self._create(name)
        try:
            sink.write(self._header)
            sink.flush()
        except OSError:
            # A file without its header is no capture, and would be in the way of the next attempt.
            with contextlib.suppress(OSError):
                sink.close()
            with contextlib.suppress(OSError):
                self._remove(name)
            raise
        self._sink = sink
        self._file = WrittenFile(name, now_ns)
        self.written.append(self._file)
        self._packets_before = self.packets
        self._flushed_ns = now_ns

    def room(self, _series: str) -> int:
        """Return the bytes that the file may still take; too many where it is compressed."""
        if not self._rotation.size_bytes:
            return RECORD_SPACE << 20
        held = self._sink.size_bytes + self._sink.held_bytes if self._sink else len(self._header)
        return max(0, self._rotation.size_bytes - held)

    def write(self, _series: str, data: memoryview, now_ns: int) -> None:
        """Append whole records, to a new file where none is open."""
        if self._sink is None:
            self.begin(now_ns)
        assert self._sink is not None
        with self._noting_failure():
            self._sink.write(data)
        self._note(self._sink)

    def tick(self, now_ns: int) -> None:
        """Close the file if it is old enough, else flush it every `FLUSH_NS`.

        A file begun in the future is closed, too: the clock was set back.
        """
        if self._sink is None:
            return
        every_ns = self._rotation.every_ns
        if every_ns and not 0 <= now_ns - self._file.begun_ns < every_ns:
            self.finish("")
        elif not 0 <= now_ns - self._flushed_ns < FLUSH_NS:
            with self._noting_failure():
                self._sink.flush()
            self._flushed_ns = now_ns
            self._note(self._sink)

    def finish(self, _series: str) -> None:
        """End the open file, if there is one; delete the oldest where too many are kept."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        try:
            with self._noting_failure():
                sink.flush()
            self._note(sink)
            sink.write(self._trailer())
        finally:
            sink.close()
            self._file.packets = self.packets - self._packets_before
            self._file.size_bytes = sink.size_bytes
        kept = [file for file in self.written if not file.deleted]
        for file in kept[: max(0, len(kept) - self._rotation.keep) if self._rotation.keep else 0]:
            # Where it is gone already, an operator has moved it away.
            with contextlib.suppress(FileNotFoundError):
                self._remove(file.name)
            file.deleted = True

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Count a failed write: its packets are lost."""
        try:
            yield
        except OSError:
            self._failed = True
            raise

    def _note(self, sink: Sink) -> None:
        """Count all packets laid out as in files, unless some are held back or were lost."""
        if not sink.held_bytes and not self._failed:
            self.packets = self._laid_out()
            self._file.packets = self.packets - self._packets_before
