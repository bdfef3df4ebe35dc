"""Writer of captures: UDP datagrams framed as Ethernet and IPv4; plain, gzip or zstd.

Nanosecond pcap by default. Frames are what a switch would deliver: the multicast MAC
address belongs to the group (RFC 1112, section 6.4), the IPv4 header has its checksum, the UDP
checksum is 0 (not computed, RFC 768) and frames below the Ethernet minimum are padded.
"""

import contextlib
import functools
import gzip
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, cast

from feedhandler.codecs.errors import DISK_FAULTS, UsageError, unwritable
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, LinkType

#: What a UDP datagram can carry over IPv4: 65,535 minus the IPv4 and UDP headers.
PAYLOAD_BYTES_MAX = 65_507
#: The shortest Ethernet frame, without its check sequence.
FRAME_BYTES_MIN = 60
#: Fast rather than small: captures are written once and usually read soon.
GZIP_LEVEL = 4

_SOURCE_MAC = b"\x02\x00\x00\x00\x00\x01"
_MAGICS = {True: 0xA1B23C4D, False: 0xA1B2C3D4}


def multicast_mac(group: str) -> bytes:
    """Return the Ethernet address of a group: 01:00:5e and its lower 23 bits (RFC 1112)."""
    number = int.from_bytes(socket.inet_aton(group), "big")
    return b"\x01\x00\x5e" + (number & 0x7F_FFFF).to_bytes(3, "big")


def internet_checksum(header: bytes) -> int:
    """Compute the Internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@functools.lru_cache(maxsize=1_024)
def _ethernet_header(group: str, vlan_ids: tuple[int, ...]) -> bytes:
    """Build the addresses, VLAN tags (outermost first) and the EtherType of IPv4."""
    multicast = socket.inet_aton(group)[0] >> 4 == 0xE
    destination = multicast_mac(group) if multicast else b"\x02\x00\x00\x00\x00\x02"
    tags = b""
    for depth, vlan_id in enumerate(vlan_ids):
        outer = depth < len(vlan_ids) - 1
        tags += struct.pack(">HH", 0x88A8 if outer else 0x8100, vlan_id)
    return destination + _SOURCE_MAC + tags + b"\x08\x00"


@functools.lru_cache(maxsize=4_096)
def frame_headers(
    group: str,
    port: int,
    source: str,
    source_port: int,
    size: int,
    vlan_ids: tuple[int, ...] = (),
) -> bytes:
    """Build the Ethernet, IPv4 and UDP headers of a payload of `size` bytes."""
    addresses = socket.inet_aton(source) + socket.inet_aton(group)
    # Version 4 and five words, no fragments, a time to live of 1 as the player sends.
    start = struct.pack(">BBHHHBB", 0x45, 0, 28 + size, 0, 0, 1, 17)
    checksum = internet_checksum(start + b"\0\0" + addresses)
    ip = start + struct.pack(">H", checksum) + addresses
    udp = struct.pack(">HHHH", source_port, port, 8 + size, 0)
    return _ethernet_header(group, vlan_ids) + ip + udp


class CaptureWriter:
    """A capture file being written; a name that ends in `.gz` is gzipped, in `.zst` zstd.

    `nanosecond=False` writes the microsecond magic (times are then cut to microseconds).
    `byte_order` and `vlan_ids` (outermost first) are for files that must look like another
    recorder's. Use as a context manager, or call `close`. Raises `UsageError` where the file
    cannot be created or a datagram cannot exist.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        nanosecond: bool = True,
        byte_order: Literal["little", "big"] = "little",
        vlan_ids: tuple[int, ...] = (),
    ) -> None:
        self.path = Path(path)
        self.records = 0
        self._order = "<" if byte_order == "little" else ">"
        self._tick_ns = 1 if nanosecond else 1_000
        self._vlan_ids = vlan_ids
        self._record_header = struct.Struct(self._order + "IIII")
        try:
            self._file = self._open()
        except OSError as error:
            raise unwritable(f"capture {self.path}", error) from None
        self._file.write(
            struct.pack(
                self._order + "IHHiIII",
                _MAGICS[nanosecond],
                2,
                4,
                0,
                0,
                RECORD_BYTES_MAX,
                LinkType.ETHERNET,
            )
        )

    def __enter__(self) -> "CaptureWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            self._abandon(error)
            return
        try:
            self.close()
        except OSError as fault:
            self._abandon(fault)
            raise

    def _abandon(self, error: OSError) -> None:
        """Remove the unfinished file, and add its path to a disk fault that has none."""
        with contextlib.suppress(OSError):
            self.close()
        if self.path.is_file():  # `/dev/null` is nothing of ours to remove
            self.path.unlink()
        if error.errno in DISK_FAULTS and error.filename is None:
            error.filename = str(self.path)

    def _open(self) -> BinaryIO:
        if self.path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(self.path, "wb", compresslevel=GZIP_LEVEL))
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
        seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
        fraction = nanoseconds // self._tick_ns
        self._file.write(self._record_header.pack(seconds, fraction, len(frame), len(frame)))
        self._file.write(frame)
        self.records += 1

    def write_records(self, records: Any, count: int) -> None:
        """Append `count` whole records that are laid out already (little-endian, nanoseconds)."""
        self._file.write(records)
        self.records += count

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self._file.close()
