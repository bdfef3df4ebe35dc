"""The identity of a capture by its content, whatever its file's name and compression.

An identity is a hash of the feed's name and of the content's size and the bytes at either end.
`look` returns a file's, and those that shorter recordings of the same would have (`at`), by which a
recording is found again that was taken into a lake while it still grew. Compressed files are
inflated for that, so each file has a quick identity, too, of its bytes as they are.
"""

import hashlib
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from feedhandler.characterise.files import local_copy, open_content
from feedhandler.characterise.slices import CaptureFile

#: Bytes at either end of a capture that, with its size, make its identity.
IDENTITY_BYTES = 1 << 20
#: A capture's first bytes, which include its first packet, so that two captures' differ.
BEGIN_BYTES = 512
#: Sizes of beginnings whose identities are kept with a capture, to recognise its parts.
PREFIX_SIZES = tuple(1 << power for power in range(12, 44))


class Identity(Struct, frozen=True):
    """The identity of a capture as one feed reads it.

    `name`: 24 hexadecimal digits; `size` of the content in bytes; `begins`: its first bytes, in
    hexadecimal; `at`: by size, the names that the first so many bytes of it would have.
    """

    name: str
    size: int
    begins: str
    at: dict[int, str] = {}


def quick_identity(file: CaptureFile, feed: str) -> str:
    """Hash the file's bytes as they are: 24 hexadecimal digits.

    For a plain capture this is its identity.
    """
    with local_copy(file.path) as path, path.open("rb") as opened:
        head = opened.read(IDENTITY_BYTES)
        opened.seek(max(0, file.size - IDENTITY_BYTES))
        return _name(feed, file.size, head, opened.read(IDENTITY_BYTES))


def begin_of(file: CaptureFile) -> str:
    """Return the first bytes of the content, in hexadecimal."""
    with local_copy(file.path) as path, open_content(str(path), 0) as content:
        head = memoryview(bytearray(BEGIN_BYTES))
        filled = 0
        while filled < BEGIN_BYTES and (got := content.readinto(head[filled:])):
            filled += got
        return head[:filled].hex()


def look(file: CaptureFile, feed: str, sizes: Collection[int] = ()) -> Identity:
    """Compute the identity of a file, and those of its beginnings of the given sizes."""
    with local_copy(file.path) as path:
        if file.kind in ("gzip", "zstd"):
            return _of_stream(path, feed, sizes)
        with path.open("rb") as opened:
            head = opened.read(IDENTITY_BYTES)
            names = {}
            for size in {file.size, *(each for each in sizes if each < file.size)}:
                opened.seek(max(0, size - IDENTITY_BYTES))
                tail = opened.read(min(size, IDENTITY_BYTES))
                names[size] = _name(feed, size, head[:size], tail)
    return Identity(names.pop(file.size), file.size, head[:BEGIN_BYTES].hex(), names)


def _of_stream(path: Path, feed: str, sizes: Collection[int]) -> Identity:
    """Compute the same for a compressed file, inflated once, up to any damage."""
    wanted = sorted(sizes, reverse=True)
    head, tail, size = b"", b"", 0
    names = {}
    with open_content(str(path), 0) as content:
        block = memoryview(bytearray(IDENTITY_BYTES))
        while True:
            # Never across a wanted size, so that the last read ends there.
            most = wanted[-1] - size if wanted else IDENTITY_BYTES
            got = content.readinto(block[: min(most, IDENTITY_BYTES)])
            if not got:
                break
            size += got
            read = bytes(block[:got])
            head += read[: max(0, IDENTITY_BYTES - len(head))]
            tail = (tail + read)[-IDENTITY_BYTES:]
            if wanted and size == wanted[-1]:
                names[wanted.pop()] = _name(feed, size, head, tail)
    names.pop(size, None)
    return Identity(_name(feed, size, head, tail), size, head[:BEGIN_BYTES].hex(), names)


def _name(feed: str, size: int, head: bytes, tail: bytes) -> str:
    digest = hashlib.blake2b(f"{feed} {size} ".encode(), digest_size=12)
    digest.update(head)
    digest.update(tail)
    return digest.hexdigest()
