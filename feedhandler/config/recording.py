"""The settings of recording: `[record]`, with bounds and the reasons for them."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from feedhandler.codecs.errors import ConfigError

#: The least a file may hold: a few of the largest datagrams.
FILE_BYTES_MIN = 1 << 20
#: `total_bytes` holds at least so many full files: two being written, and others to delete.
FILES_MIN = 4


class RecordConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[record]`: recordings of what was received and what was published, as pcap files."""

    dir: Annotated[
        str, Meta(description="folder for the files, which must exist; empty: nothing is recorded")
    ] = ""
    what: Annotated[
        Literal["lines", "published", "both"],
        Meta(description="what each line received, what was published, or both"),
    ] = "lines"
    file_bytes: Annotated[
        int, Meta(description="a file is closed at this size", ge=FILE_BYTES_MIN, le=2**40)
    ] = 256 * 2**20
    file_seconds: Annotated[
        int, Meta(description="a file is closed at this age", ge=1, le=86_400)
    ] = 900
    total_bytes: Annotated[
        int,
        Meta(
            description="all recordings in the folder together, earlier runs' included; "
            "at least 4 * file_bytes",
            ge=FILES_MIN * FILE_BYTES_MIN,
            le=2**50,
        ),
    ] = 8 * 2**30
    disk_free_min_share: Annotated[
        float,
        Meta(description="share of the file system that recording leaves free", ge=0.0, le=1.0),
    ] = 0.1
    when_full: Annotated[
        Literal["stop", "delete-oldest"],
        Meta(description="at either bound: recording stops, or the oldest files give way"),
    ] = "stop"
    ring_bytes: Annotated[
        int,
        Meta(
            description="waiting for the disk, lines and published each; a power of two",
            ge=2**18,
            le=2**31,
        ),
    ] = 16 * 2**20

    @property
    def series(self) -> tuple[str, ...]:
        """The series that are recorded: `lines`, `published`; none where `dir` is empty."""
        if not self.dir:
            return ()
        return ("lines", "published") if self.what == "both" else (self.what,)


def check_folder(path: str) -> None:
    """Check that the folder of recordings is there. Raises `ConfigError`."""
    if not Path(path).exists():
        raise ConfigError(f"{path}: no such folder", f"mkdir -p {path}")
    if not Path(path).is_dir():
        raise ConfigError(f"{path}: not a folder", "name a folder")
