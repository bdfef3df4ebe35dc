"""A capture file's bytes: as they are, gzipped, or zstd; distinguished by their first bytes.

`open_source` gives a `ByteSource`. Each is read piece by piece into the caller's buffer, so that a
small file that inflates to much takes no more memory than any other. A file that ended before its
own end mark (its writer was killed, a copy was interrupted) sets `cut` instead of raising, so that
all that was written before can be read; compressed bytes that are damaged raise `PeerError`.

Compressed files are inflated ahead of their reader, in a thread of their own (`ReadAhead`) and
without the GIL, so that where a processor is free a compressed capture is as fast as its inflating.
For gzip that is Intel's igzip where the `isal` library has it for this machine, which inflates at
two to three times zlib's rate, else zlib.
"""

import os
import queue
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from feedhandler.codecs.errors import PeerError, UsageError

try:
    from isal import isal_zlib

    _inflater: Callable[..., Any] = isal_zlib.decompressobj
    _DAMAGED: tuple[Any, ...] = (zlib.error, isal_zlib.error)
except ImportError:  # pragma: no cover (no wheel for this processor)
    _inflater = zlib.decompressobj
    _DAMAGED = (zlib.error,)

#: Compressed bytes read at a time.
COMPRESSED_READ_BYTES = 1 << 17

#: Inflated ahead of the reader: so many blocks of so many bytes, which is all the memory it takes.
AHEAD_BLOCKS = 4
AHEAD_BLOCK_BYTES = 1 << 19
#: Reads of less only inspect the file's beginning, which needs no thread.
AHEAD_FROM_BYTES = 1 << 12

#: Inflated at a time: what is inflated together with damaged bytes is lost with them, and so is
#: what Arrow holds of a zstd file that was cut short.
GZIP_PIECE_BYTES = 1 << 17
ZSTD_PIECE_BYTES = 1 << 15

_GZIP_MAGIC = b"\x1f\x8b"
#: A zstd frame's magic number, and the last three bytes of a skippable frame's (RFC 8878).
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"


class ByteSource(Protocol):
    """A file or what looks like one; `cut` says that it ended before its own end mark."""

    @property
    def cut(self) -> bool:
        """Whether the file ended before its own end mark."""
        ...

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        ...

    def share_done(self) -> float:
        """Share of the file that has been read, 0.0 to 1.0."""
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
        """Share of the file that has been read, 0.0 to 1.0."""
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
        self._inflater = _inflater(wbits=31)
        self._ended = False

    def readinto(self, buffer: memoryview) -> int:
        """Fill some of `buffer`; 0 at the end."""
        while not self._ended:
            piece = self._inflate(min(len(buffer), GZIP_PIECE_BYTES))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)
        return 0

    def _inflate(self, bytes_max: int) -> bytes:
        """Return at most `bytes_max` inflated bytes; none where more input has to be looked at."""
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
        except _DAMAGED as error:
            raise PeerError(
                f"{self._path}: the gzip stream is damaged: {error}", "fetch the file again"
            ) from None
        self._pending = self._inflater.unconsumed_tail
        return piece

    def _next_member(self) -> bytes:
        self._pending = self._inflater.unused_data.lstrip(b"\0") or self._read().lstrip(b"\0")
        if self._pending.startswith(_GZIP_MAGIC[:1]):
            self._inflater = _inflater(wbits=31)
        else:
            self._ended = True  # what follows the last member is ignored, as gzip does
        return b""

    def _read(self) -> bytes:
        block = bytearray(COMPRESSED_READ_BYTES)
        return bytes(block[: self._file.readinto(memoryview(block))])

    def share_done(self) -> float:
        """Share of the compressed file that has been read, 0.0 to 1.0."""
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
            # zstd reports a frame that ends too early, and a larger window than it takes by itself,
            # in these words; all else is damage.
            if "runcated" in str(error):
                self.cut = True
                return 0
            if "too much memory" in str(error):
                raise PeerError(
                    f"{self._path}: the zstd stream has a window of more than 128 MiB",
                    "zstd -d --long=31 inflates it: compress it again without --long",
                ) from None
            raise PeerError(
                f"{self._path}: the zstd stream is damaged", "fetch the file again"
            ) from None

    def share_done(self) -> float:
        """Share of the compressed file that has been read, 0.0 to 1.0."""
        return min(1.0, self._file.tell() / self._size) if self._size else 1.0

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()
        self._file.close()


class ReadAhead:
    """Another source, read by a thread up to `AHEAD_BLOCKS` blocks ahead of its reader.

    The thread begins with the first read of `AHEAD_FROM_BYTES` or more. An error reaches the reader
    behind all bytes before it. Each read fills its buffer, except the one before the end.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._free: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        # Block, bytes in it, share of the file read; then None, or what went wrong.
        self._filled: queue.SimpleQueue[tuple[bytearray, int, float] | BaseException | None]
        self._filled = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._block = bytearray()
        self._rest = memoryview(b"")
        self._share = 0.0
        self._ended = False
        self._error: BaseException | None = None

    @property
    def cut(self) -> bool:
        """Whether the file ended before its own end mark; known at the end."""
        return self._source.cut

    def readinto(self, buffer: memoryview) -> int:
        """Fill `buffer` as far as the file goes; 0 at the end."""
        if self._thread is None:
            if len(buffer) < AHEAD_FROM_BYTES:
                return self._source.readinto(buffer)
            self._start()
        filled = 0
        while filled < len(buffer) and self._has_rest():
            size = min(len(self._rest), len(buffer) - filled)
            buffer[filled : filled + size] = self._rest[:size]
            self._rest = self._rest[size:]
            filled += size
        if not filled and self._error is not None:
            raise self._error
        return filled

    def share_done(self) -> float:
        """Share of the compressed file behind what was read here, 0.0 to 1.0."""
        return self._share

    def close(self) -> None:
        """End the thread and let the file go."""
        if self._thread is not None:
            self._free.put(None)
            self._thread.join()
        self._source.close()

    def _start(self) -> None:
        for _ in range(AHEAD_BLOCKS):
            self._free.put(bytearray(AHEAD_BLOCK_BYTES))
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def _has_rest(self) -> bool:
        """Return whether anything is left to copy; wait for a block where this one is used up."""
        if self._rest or self._ended:
            return bool(self._rest)
        if self._block:
            self._free.put(self._block)
            self._block = bytearray()
        filled = self._filled.get()
        if not isinstance(filled, tuple):
            self._ended = True
            self._error = filled
            self._share = self._source.share_done()
            return False
        self._block, size, self._share = filled
        self._rest = memoryview(self._block)[:size]
        return True

    def _run(self) -> None:
        """Fill blocks in order until the end, an error, or `close`; runs in the thread."""
        while (block := self._free.get()) is not None:
            filled, error = self._fill(memoryview(block))
            if filled:
                self._filled.put((block, filled, self._source.share_done()))
            if error is not None or filled < len(block):
                self._filled.put(error)
                return

    def _fill(self, block: memoryview) -> tuple[int, BaseException | None]:
        """Fill the block; return the bytes filled, and the error that stopped it, if any."""
        filled = 0
        try:
            while filled < len(block):
                got = self._source.readinto(block[filled:])
                if not got:
                    break
                filled += got
        except BaseException as error:
            return filled, error
        return filled, None


def refuse_pipe(path: Path) -> None:
    """Raise `UsageError` for a pipe: what was read of it to recognise the format would be gone."""
    if path.is_fifo():
        raise UsageError(f"{path} is a pipe, and captures are read from files", "make a file of it")


def open_source(path: Path) -> ByteSource:
    """Open a file from its beginning, inflated where it is compressed. Raises `OSError`."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP_MAGIC):
        return ReadAhead(GzipSource(path))
    if magic == _ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPABLE and magic[0] >> 4 == 5):
        return ReadAhead(ZstdSource(path))
    return PlainSource(path)


def read_up_to(source: ByteSource, size: int) -> bytes:
    """Read `size` bytes, or fewer at the end."""
    block = bytearray(size)
    filled = 0
    while filled < size:
        got = source.readinto(memoryview(block)[filled:])
        if not got:
            break
        filled += got
    return bytes(block[:filled])
