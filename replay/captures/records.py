"""The records of a capture file as bytes: file header, record header, frame. No I/O.

`file_header` and `record_header` are pcap's. `begin_record`, `begin_block` (of pcapng: an enhanced
packet block) and `fit_headers` write into a buffer; they are the interpreted twins of the inline
functions of `records.pxd`, which compiled writers use, and raise where the buffer has no room.

Frames are what a switch would deliver: the multicast MAC address belongs to the group (RFC 1112,
section 6.4), the IPv4 header has its checksum, the UDP checksum is 0 (not computed, RFC 768), and
frames below the Ethernet minimum are padded.
"""

import functools
import struct
from ipaddress import IPv4Address

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, LinkType

#: What a UDP datagram can carry over IPv4: 65,535 minus the IPv4 and UDP headers.
PAYLOAD_BYTES_MAX = 65_507
#: The shortest Ethernet frame, without its check sequence.
FRAME_BYTES_MIN = 60
#: Ethernet, IPv4 and UDP headers, without VLAN tags and options.
HEADERS_BYTES = 42
#: The length of the header before each record of a pcap file.
RECORD_HEADER_BYTES = 16
#: The first time (ns since 1970) that a pcap record cannot have: it counts seconds in 32 bits.
TIME_END_NS = (1 << 32) * 1_000_000_000
#: What stands before and behind a frame in pcapng's enhanced packet block.
BLOCK_HEAD_BYTES, BLOCK_TAIL_BYTES = 28, 4

_SOURCE_MAC = b"\x02\x00\x00\x00\x00\x01"
_MAGICS = {True: 0xA1B23C4D, False: 0xA1B2C3D4}


def file_header(
    nanosecond: bool = True, order: str = "<", link_type: int = LinkType.ETHERNET
) -> bytes:
    """Build what stands before a pcap file's first record; `order` is `struct`'s."""
    return struct.pack(
        order + "IHHiIII", _MAGICS[nanosecond], 2, 4, 0, 0, RECORD_BYTES_MAX, link_type
    )


def check_times(earliest_ns: int, latest_ns: int) -> None:
    """Raise `UsageError` where pcap records cannot have times from one to the other."""
    if earliest_ns < 0 or latest_ns >= TIME_END_NS:
        raise UsageError(
            "times before 1970 or after 2106-02-07 06:28:15 UTC, which a pcap file cannot hold",
            "choose another day or pace",
        )


def record_header(time_ns: int, frame_bytes: int, tick_ns: int = 1, order: str = "<") -> bytes:
    """Build what stands before a frame in a pcap file whose times count `tick_ns`.

    Raises `UsageError` for a time that it cannot hold; compiled writers call `check_times` first.
    """
    check_times(time_ns, time_ns)
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    return struct.pack(order + "IIII", seconds, fraction // tick_ns, frame_bytes, frame_bytes)


def begin_record(out: memoryview, at: int, time_ns: int, frame_bytes: int) -> int:
    """Write a pcap record's header at `at` (nanoseconds, little-endian)."""
    struct.pack_into("<16s", out, at, record_header(time_ns, frame_bytes))
    return 0


def begin_block(
    out: memoryview, at: int, size: int, interface: int, time_ns: int, frame_bytes: int
) -> int:
    """Write what stands around the frame of an enhanced packet block of `size` bytes at `at`."""
    struct.pack_into(
        "<IIIIIII", out, at, 6, size, interface, time_ns >> 32, time_ns & 0xFFFF_FFFF,
        frame_bytes, frame_bytes,
    )  # fmt: skip
    struct.pack_into("<I", out, at + size - BLOCK_TAIL_BYTES, size)
    return 0


def fit_headers(out: memoryview, at: int, payload_bytes: int) -> int:
    """Set lengths and the IPv4 checksum of the headers at `at` to a payload's length."""
    put16(out, at + 16, 28 + payload_bytes)
    put16(out, at + 38, 8 + payload_bytes)
    put16(out, at + 24, 0)
    return put16(out, at + 24, internet_checksum(bytes(out[at + 14 : at + 34])))


def put16(out: memoryview, at: int, value: int) -> int:
    """Write two bytes in network order."""
    struct.pack_into(">H", out, at, value)
    return 0


def multicast_mac(group: str) -> bytes:
    """Return the Ethernet address of a group: 01:00:5e and its lower 23 bits (RFC 1112)."""
    return b"\x01\x00\x5e" + (int(IPv4Address(group)) & 0x7F_FFFF).to_bytes(3, "big")


def internet_checksum(header: bytes) -> int:
    """Compute the Internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@functools.lru_cache(maxsize=1_024)
def _ethernet_header(group: str, vlan_ids: tuple[int, ...]) -> bytes:
    """Build the addresses, VLAN tags (outermost first) and the EtherType of IPv4."""
    multicast = IPv4Address(group).is_multicast
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
    addresses = IPv4Address(source).packed + IPv4Address(group).packed
    # Version 4 and five words, no fragments, a time to live of 1 as the player sends.
    start = struct.pack(">BBHHHBB", 0x45, 0, 28 + size, 0, 0, 1, 17)
    checksum = internet_checksum(start + b"\0\0" + addresses)
    ip = start + struct.pack(">H", checksum) + addresses
    udp = struct.pack(">HHHH", source_port, port, 8 + size, 0)
    return _ethernet_header(group, vlan_ids) + ip + udp
