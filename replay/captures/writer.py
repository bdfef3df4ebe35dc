"""Writer of captures: UDP datagrams framed as Ethernet and IPv4; plain, gzip or zstd.

Nanosecond pcap by default; what a record looks like is `records`'s.
"""

import contextlib
import gzip
import os
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from feedhandler.codecs.errors import DISK_FAULTS, UsageError, unwritable
from feedhandler.replay.captures.records import (
    FRAME_BYTES_MIN,
    PAYLOAD_BYTES_MAX,
    file_header,
    frame_headers,
    record_header,
)

#: Fast rather than small: captures are written once and usually read soon.
GZIP_LEVEL = 4


def remove_unfinished(path: Path) -> None:
    """Remove a file whose writing has failed, if it is one: `/dev/null` is not ours to remove."""
    with contextlib.suppress(OSError):
        if path.is_file():
            path.unlink()


class CaptureWriter:
    """A capture file being written; a name that ends in `.gz` is gzipped, in `.zst` zstd.

    `nanosecond=False` writes the microsecond magic (times are then cut to microseconds).
    `byte_order` and `vlan_ids` (outermost first) are for files that must look like another
    recorder's. Use as a context manager, which removes the file after an error, or call `close`.
    Raises `UsageError` where the file cannot be created, or holds no such datagram or time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        nanosecond: bool = True,
        byte_order: Literal["little", "big"] = "little",
        vlan_ids: tuple[int, ...] = (),
        gzip_level: int = GZIP_LEVEL,
    ) -> None:
        self.path = Path(path)
        self.records = 0
        self._order = "<" if byte_order == "little" else ">"
        self._tick_ns = 1 if nanosecond else 1_000
        self._vlan_ids = vlan_ids
        self._gzip_level = gzip_level
        try:
            self._file = self._open()
        except OSError as error:
            raise unwritable(f"capture {self.path}", error) from None
        self._file.write(file_header(nanosecond, self._order))

    def __enter__(self) -> "CaptureWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is not None:
            self._abandon(error)
            return
        try:
            self.close()
        except OSError as fault:
            self._abandon(fault)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Remove the unfinished file, and add its path to a disk fault that has none."""
        with contextlib.suppress(OSError):
            self.close()
        remove_unfinished(self.path)
        if isinstance(error, OSError) and error.errno in DISK_FAULTS and error.filename is None:
            error.filename = str(self.path)

    def _open(self) -> BinaryIO:
        if self.path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(self.path, "wb", compresslevel=self._gzip_level))
        if self.path.suffix == ".zst":
            # Takes a while to import, and most captures do without.
            import pyarrow

            file = pyarrow.OSFile(str(self.path), "wb")
            return cast(BinaryIO, pyarrow.CompressedOutputStream(file, "zstd"))
        return self.path.open("wb", buffering=1 << 18)

    def write(
        self,
        time_ns: int,
        group: str,
        port: int,
        payload: bytes,
        *,
        source: str = "10.0.0.1",
        source_port: int = 10_000,
    ) -> None:
        """Append one datagram. Times need not rise, as in a real capture they do not always."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise UsageError(
                f"a datagram of {len(payload):,} bytes does not exist",
                f"UDP over IPv4 carries at most {PAYLOAD_BYTES_MAX:,}",
            )
        headers = frame_headers(group, port, source, source_port, len(payload), self._vlan_ids)
        self.write_frame(time_ns, headers + payload)

    def write_frame(self, time_ns: int, frame: bytes) -> None:
        """Append a whole Ethernet frame, padded to the Ethernet minimum where it is shorter."""
        frame = frame.ljust(FRAME_BYTES_MIN, b"\0")
        self._file.write(record_header(time_ns, len(frame), self._tick_ns, self._order))
        self._file.write(frame)
        self.records += 1

    def write_records(self, records: Any, count: int) -> None:
        """Append `count` whole records that are laid out already (little-endian, nanoseconds)."""
        self._file.write(records)
        self.records += count

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self._file.close()
