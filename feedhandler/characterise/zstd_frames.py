"""zstd files of several frames: where each frame lies, and how to read from any of them on.

A recorder that compresses piece by piece writes a frame for each. `frames_of` walks over the
frames' headers and block sizes (RFC 8878, section 3) without inflating anything; where every frame
states its content's size, positions in the content are known, and the file can be cut like a plain
one. `FramedFile` reads the content from any offset: it inflates from the frame that holds it on.
"""

import bisect
from typing import Any, NamedTuple

_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50
#: A frame's header at most, and a block's.
HEADER_BYTES_MAX, BLOCK_HEADER_BYTES = 18, 3
#: Inflated bytes of one frame: a recorder's are of a mebibyte; larger ones are read as a stream.
FRAME_BYTES_MAX = 64 << 20
#: Frames of a file.
FRAMES_MAX = 1 << 20


class Frame(NamedTuple):
    """The position of a frame: of its content, with length, and of the frame in the file."""

    start: int
    content: int
    at: int
    size: int


def frames_of(file: Any) -> list[Frame]:
    """Return the frames of an open file, or none where it cannot be cut.

    It cannot if it is a single frame, if a frame does not state its content's size, is too large or
    cut short, or if there are other bytes between.
    """
    frames: list[Frame] = []
    at = start = 0
    while len(frames) < FRAMES_MAX:
        file.seek(at)
        head = bytes(file.read(HEADER_BYTES_MAX))
        if not head:
            return frames if len(frames) > 1 else []
        if len(head) < 8:
            return []
        magic = int.from_bytes(head[:4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE:
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        content, header = _header(head)
        size = _size(file, at, header, head[4]) if magic == _MAGIC else 0
        if not size or content < 0 or content > FRAME_BYTES_MAX:
            return []
        frames.append(Frame(start, content, at, size))
        start += content
        at += size
    return []


def _header(head: bytes) -> tuple[int, int]:
    """Return the content's size (-1: not stated) and the header's own."""
    flags = head[4]
    single = bool(flags & 0x20)
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    kind = flags >> 6
    size = (1 if single else 0, 2, 4, 8)[kind]
    if at + size > len(head) or not size:
        return -1, at
    content = int.from_bytes(head[at : at + size], "little")
    return content + (256 if size == 2 else 0), at + size


def _size(file: Any, at: int, header: int, flags: int) -> int:
    """Return the size in bytes of the whole frame; 0 where the file ends before it does."""
    offset = at + header
    while True:
        file.seek(offset)
        block = bytes(file.read(BLOCK_HEADER_BYTES))
        if len(block) < BLOCK_HEADER_BYTES:
            return 0
        word = int.from_bytes(block, "little")
        # A block of one repeated byte (type 1) has one byte, whatever it stands for.
        offset += BLOCK_HEADER_BYTES + (1 if word >> 1 & 3 == 1 else word >> 3)
        if word & 1:
            end = offset + (4 if flags & 4 else 0)
            file.seek(end - 1)
            return end - at if file.read(1) else 0


class FramedFile:
    """The content of a row of frames as a file: `seek`, `readinto`, `close`, context manager.

    `file` is the compressed file, opened, and is closed with this. The content ends at a frame that
    cannot be inflated; `damage` then says so.
    """

    def __init__(self, file: Any, frames: tuple[Frame, ...], name: str) -> None:
        import pyarrow

        self._codec = pyarrow.Codec("zstd")
        self._file = file
        self._frames = frames
        self.damage = ""
        self._name = name
        self._next = 0
        self._rest = memoryview(b"")

    def __enter__(self) -> "FramedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the compressed file."""
        self._file.close()

    def seek(self, position: int) -> int:
        """Seek to a position in the content."""
        index = bisect.bisect_right(self._frames, position, key=lambda frame: frame.start)
        self._next = max(0, index - 1)
        self._rest = memoryview(b"")
        skip = position - self._frames[self._next].start
        if skip and self._fill():
            self._rest = self._rest[skip:]
        return position

    def readinto(self, room: memoryview) -> int:
        """Fill part of `room`; return 0 at the end."""
        while not self._rest:
            if not self._fill():
                return 0
        size = min(len(room), len(self._rest))
        room[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _fill(self) -> bool:
        """Inflate the next frame; return whether there was one."""
        if self._next == len(self._frames):
            return False
        frame = self._frames[self._next]
        self._next += 1
        self._file.seek(frame.at)
        try:
            inflated = self._codec.decompress(self._file.read(frame.size), frame.content)
        except OSError:
            self.damage = f"{self._name}: the zstd stream is damaged"
            self._next = len(self._frames)
            return False
        self._rest = memoryview(inflated).cast("B")
        return True
