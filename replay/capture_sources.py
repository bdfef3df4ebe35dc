"""A capture file's bytes: as they are, gzipped, or zstd; told apart by their first bytes.

`open_source` gives a `ByteSource`. Each is read piece by piece into the caller's buffer, so that a
small file that inflates to much takes no more memory than any other. A file that ended before its
own end mark (its writer was killed, a copy was interrupted) sets `cut` instead of raising, so that
all that was written before can be read; compressed bytes that are damaged raise `PeerError`.
"""

import os
import zlib
from pathlib import Path
from typing import Any, Protocol

from feedhandler.codecs.errors import PeerError

#: Compressed bytes read at a time.
COMPRESSED_READ_BYTES = 1 << 17

#: Inflated at a time from zstd: what Arrow holds of a file that was cut short is lost with it.
ZSTD_PIECE_BYTES = 1 << 15

_GZIP_MAGIC = b"\x1f\x8b"
#: A zstd frame's magic number, and the last three bytes of a skippable frame's (RFC 8878).
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"


class ByteSource(Protocol):
    """A file or what looks like one; `cut` says that it ended before its own end mark."""

    cut: bool

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        ...

    def share_done(self) -> float:
        """How much of the file has been read, 0.0 to 1.0."""
        ...

    def close(self) -> None:
        """Let the file go."""
        ...


class PlainSource:
    """An ordinary file."""

    cut = False

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        self._read = 0

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        got = self._file.readinto(buffer) or 0
        self._read += got
        return got

    def share_done(self) -> float:
        """How much of the file has been read, 0.0 to 1.0."""
        return min(1.0, self._read / self._size) if self._size else 1.0

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class GzipSource:
    """A gzipped file, inflated piece by piece; several members in a row are one stream.

    A missing end mark sets `cut` instead of raising, so that all that was written before an
    interruption can be read. Raises `PeerError` where the compressed bytes are damaged.
    """

    def __init__(self, path: Path) -> None:
        self.cut = False
        self._path = path
        self._file = PlainSource(path)
        self._pending = b""
        self._inflater = zlib.decompressobj(wbits=31)
        self._ended = False

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        while not self._ended:
            piece = self._inflate(len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)
        return 0

    def _inflate(self, bytes_max: int) -> bytes:
        """At most `bytes_max` inflated bytes; none where more input has to be looked at."""
        if self._inflater.eof:
            return self._next_member()
        if not self._pending:
            self._pending = self._read()
            if not self._pending:
                # Some bytes may still wait inside the inflater.
                rest = self._inflater.decompress(b"", bytes_max)
                self.cut = not self._inflater.eof
                self._ended = not rest
                return rest
        try:
            piece = self._inflater.decompress(self._pending, bytes_max)
        except zlib.error as error:
            raise PeerError(
                f"{self._path}: the gzip stream is damaged: {error}", "fetch the file again"
            ) from None
        self._pending = self._inflater.unconsumed_tail
        return piece

    def _next_member(self) -> bytes:
        self._pending = self._inflater.unused_data.lstrip(b"\0") or self._read().lstrip(b"\0")
        if self._pending.startswith(_GZIP_MAGIC[:1]):
            self._inflater = zlib.decompressobj(wbits=31)
        else:
            self._ended = True  # what follows the last member is ignored, as gzip does
        return b""

    def _read(self) -> bytes:
        block = bytearray(COMPRESSED_READ_BYTES)
        return bytes(block[: self._file.readinto(memoryview(block))])

    def share_done(self) -> float:
        """How much of the compressed file has been read, 0.0 to 1.0."""
        return self._file.share_done()

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class ZstdSource:
    """A zstd file; several frames in a row are one stream.

    Inflated by Arrow, which holds no more than a piece at a time.
    """

    def __init__(self, path: Path) -> None:
        # Takes a while to import, and most captures do without.
        import pyarrow

        self.cut = False
        self._path = path
        self._size = path.stat().st_size
        self._file = pyarrow.OSFile(str(path))
        self._stream: Any = pyarrow.CompressedInputStream(self._file, "zstd")

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        if self.cut:
            return 0
        try:
            return int(self._stream.readinto(buffer[:ZSTD_PIECE_BYTES]))
        except OSError as error:
            # A frame that ends too early is told in these words, and anything else is damage.
            if "runcated" in str(error):
                self.cut = True
                return 0
            raise PeerError(
                f"{self._path}: the zstd stream is damaged", "fetch the file again"
            ) from None

    def share_done(self) -> float:
        """How much of the compressed file has been read, 0.0 to 1.0."""
        return min(1.0, self._file.tell() / self._size) if self._size else 1.0

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()
        self._file.close()


def open_source(path: Path) -> ByteSource:
    """The file from its beginning, inflated where it is compressed. Raises `OSError`."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP_MAGIC):
        return GzipSource(path)
    if magic == _ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPABLE and magic[0] >> 4 == 5):
        return ZstdSource(path)
    return PlainSource(path)


def read_up_to(source: ByteSource, size: int) -> bytes:
    """`size` bytes, or what there is before the end."""
    block = bytearray(size)
    filled = 0
    while filled < size:
        got = source.readinto(memoryview(block)[filled:])
        if not got:
            break
        filled += got
    return bytes(block[:filled])
