"""The tally of a stretch of a recording, with its position in it, to be sent and kept.

A `TallyBlob` is a slice's tally and report with the recording's name and the byte it begins at, by
which blobs are ordered. `packed` serialises a tally, `write_blobs` writes several to a file,
which appears under its name when all of it is on disk.
"""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from feedhandler.characterise.digest import Columns
from feedhandler.characterise.slices import SliceReport
from feedhandler.replacing import replacing

#: Raised when a tally's columns change: a folder of older blobs is refused (`ops.following`).
FORM = 2


class TallyBlob(Struct, frozen=True):
    """The tally of a slice, as `packed` columns, with its position in the recording."""

    name: str
    start: int
    report: SliceReport
    tally: bytes

    @property
    def position(self) -> tuple[str, int]:
        """The sort key of blobs."""
        return self.name, self.start

    @property
    def columns(self) -> Columns:
        """The columns of the tally."""
        return unpacked(self.tally)


_WRITING, _READING = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[TallyBlob])


def packed(columns: Columns) -> bytes:
    """Serialise a tally's columns."""
    file = io.BytesIO()
    np.savez(file, **columns)  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(data: bytes) -> Columns:
    """Restore the columns that `packed` was given."""
    with np.load(io.BytesIO(data)) as arrays:
        return {name: arrays[name] for name in arrays.files}


def write_blobs(path: Path, blobs: Sequence[TallyBlob]) -> None:
    """Write the blobs as one file, whole or not at all. Raises `OSError`."""
    write_whole(path, _WRITING.encode(list(blobs)))


def read_blobs(path: Path) -> list[TallyBlob]:
    """Read the blobs that `write_blobs` wrote. Raises `OSError`."""
    return _READING.decode(path.read_bytes())


def write_whole(path: Path, data: bytes) -> None:
    """Write the file and sync it to disk before it is renamed into place. Raises `OSError`."""
    with replacing(path, sync=True) as beside:
        beside.write_bytes(data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
