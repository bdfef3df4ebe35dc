"""A capture's file on disk: plain, gzip or zstd, by its name's suffix.

A compressed file is a sequence of gzip members or zstd frames of about a mebibyte each, so that it
is whole after every write, whatever ends the capture; readers of either format read them as one
stream. Compression is level 1, without the GIL, in the thread that writes.
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

from feedhandler.private_files import SHARED_FILE_MODE
from feedhandler.recording.recorder import DiskFile

try:
    from isal import igzip

    def _gzip(data: bytes | bytearray) -> bytes:
        return igzip.compress(data, compresslevel=1)
except ImportError:  # pragma: no cover (no wheel for this processor)

    def _gzip(data: bytes | bytearray) -> bytes:
        return gzip.compress(data, compresslevel=1)


#: Bytes compressed at a time: fewer compress worse, more are lost when the machine dies.
BLOCK_BYTES = 1 << 20


class CompressedFile:
    """A file of blocks, each compressed by itself."""

    def __init__(self, path: Path, compress: Callable[[bytearray], bytes]) -> None:
        self._file = DiskFile(path, SHARED_FILE_MODE)
        self._compress = compress
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes that were taken and are not in the file yet."""
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """The compressed bytes in the file."""
        return self._file.size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Take `data`, and write a block once there is enough for one."""
        self._held += data
        if len(self._held) >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held back; if that fails it is lost, and the file stays as it was."""
        held, self._held = self._held, bytearray()
        if held:
            self._file.write(self._compress(held))

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def _zstd(data: bytearray) -> bytes:
    # Takes a while to import, and most captures do without.
    import pyarrow

    return bytes(pyarrow.compress(bytes(data), codec="zstd", asbytes=True))


def create_file(path: Path, overwrite: bool) -> DiskFile | CompressedFile:
    """Create the file at `path`, compressed as its suffix says.

    Raises `OSError`; `FileExistsError` if it exists, unless `overwrite`.
    """
    if overwrite and path.is_file():
        os.unlink(path)
    compress = {".gz": _gzip, ".zst": _zstd}.get(path.suffix)
    return CompressedFile(path, compress) if compress else DiskFile(path, SHARED_FILE_MODE)
