"""Changing the headers of a captured frame, or putting headers before a bare payload: no I/O.

`HeaderChanges` knows for each destination what its frames must say: source MAC, source address and
port, group and port; what is not given stays as it was captured. `apply` changes headers in
place and puts the checksums right:

* the IPv4 header's is computed anew, options included;
* UDP's is computed anew from the payload's sum where the whole datagram is there, and updated for
  what changed (RFC 1624, equation 3) where the capture has cut it;
* a UDP checksum of 0 means that none was computed (RFC 768), and stays;
* where nothing changes, nothing is touched: what a capture shows wrong stays wrong.

A new group brings the Ethernet address that belongs to it (RFC 1112, section 6.4). Up to two VLAN
tags stay in their place. Captures without Ethernet keep their IPv4 and UDP headers behind an
Ethernet header of ours; payloads that come without any get all three.

Where the payload lies, and what to do with the result, is `frame_sender`'s.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cython
import numpy as np

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.captures.frames import LinkType
from feedhandler.replay.captures.records import HEADERS_BYTES, frame_headers, multicast_mac

#: Ethernet with two tags, IPv4 with all its options, UDP: the longest headers there are.
HEADERS_BYTES_MAX = 22 + 60 + 8
#: What stands before the IPv4 header in captures of other link layers.
LINK_BYTES: dict[int, int] = {
    LinkType.RAW_BSD: 0,
    LinkType.RAW_OPENBSD: 0,
    LinkType.RAW: 0,
    LinkType.RAW_IPV4: 0,
    LinkType.LINUX_COOKED: 16,
    LinkType.LINUX_COOKED_V2: 20,
}

_HEADERS = cython.declare(cython.Py_ssize_t, HEADERS_BYTES)
_ETHERNET = cython.declare(cython.Py_ssize_t, 14)
_UDP = cython.declare(cython.Py_ssize_t, 8)
_PROTOCOL_UDP = cython.declare(cython.uint, 17)


class Destination(NamedTuple):
    """Header fields of the frames for one destination; None keeps the captured frame's.

    `group` and `source_ip` are dotted IPv4 addresses, MAC addresses are 6 bytes. `interface_mac`
    and `interface_ip` are the sending interface's: they stand where there is neither a captured
    header nor a setting.
    """

    group: str | None = None
    port: int | None = None
    source_mac: bytes | None = None
    source_ip: str | None = None
    source_port: int | None = None
    interface_mac: bytes = bytes(6)
    interface_ip: str = "0.0.0.0"


def _number(address: str | None) -> int:
    """Convert a dotted IPv4 address to a number, -1 for None."""
    if address is None:
        return -1
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def _made(destination: Destination) -> bytes:
    """Build headers for an empty payload; the UDP checksum of 1 is a placeholder for `apply`."""
    if destination.group is None or destination.port is None:
        return bytes(HEADERS_BYTES)
    source_port = destination.source_port
    head = frame_headers(
        destination.group,
        destination.port,
        destination.source_ip or destination.interface_ip,
        destination.port if source_port is None else source_port,
        0,
    )
    mac = destination.source_mac or destination.interface_mac
    return head[:6] + mac + head[12 : HEADERS_BYTES - 2] + b"\0\1"


@cython.final
@cython.cclass
class HeaderChanges:
    """The changes for each of several destinations; see the module's text.

    `changes` u8: does the destination change anything; `complete` u8: does it say enough to make
    headers for a bare payload. Destination numbers are positions in `destinations`.
    """

    changes: Readonly[object]
    complete: Readonly[object]
    group: cython.longlong[::1]
    source_ip: cython.longlong[::1]
    port: cython.int[::1]
    source_port: cython.int[::1]
    has_source_mac: cython.uchar[::1]
    group_macs: cython.const_uchar[::1]
    source_macs: cython.const_uchar[::1]
    heads: cython.const_uchar[::1]

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self.changes: np.ndarray = np.array(
            [any(v is not None for v in d[:5]) for d in destinations], np.uint8
        )
        self.complete: np.ndarray = np.array(
            [d.group is not None and d.port is not None for d in destinations], np.uint8
        )
        self.group = np.array([_number(d.group) for d in destinations], np.int64).data
        self.source_ip = np.array([_number(d.source_ip) for d in destinations], np.int64).data
        ports = [(d.port, d.source_port) for d in destinations]
        self.port = np.array([-1 if p is None else p for p, _ in ports], np.int32).data
        self.source_port = np.array([-1 if p is None else p for _, p in ports], np.int32).data
        has_mac = [d.source_mac is not None for d in destinations]
        self.has_source_mac = np.array(has_mac, np.uint8).data
        macs = [
            (multicast_mac(d.group or "0.0.0.0"), d.source_mac or d.interface_mac)
            for d in destinations
        ]
        self.group_macs = memoryview(b"".join(mac for mac, _ in macs))
        self.source_macs = memoryview(b"".join(mac for _, mac in macs))
        self.heads = memoryview(b"".join(_made(d) for d in destinations))

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def make(
        self,
        destination: cython.Py_ssize_t,
        room: cython.uchar[::1],
        start: cython.Py_ssize_t,
        payload_length: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write all headers for a bare payload into `room` from `start` on; return their length.

        `apply` then corrects the checksums; it does not change the addresses any more.
        """
        at: cython.Py_ssize_t
        for at in range(_HEADERS):
            room[start + at] = self.heads[destination * _HEADERS + at]
        _put16(room, start + 16, cython.cast(cython.uint, 28 + payload_length))
        _put16(room, start + 38, cython.cast(cython.uint, 8 + payload_length))
        return _HEADERS

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def cover(
        self,
        destination: cython.Py_ssize_t,
        room: cython.uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.int:
        """Write an Ethernet header before the IPv4 header at `start + 14`; -1 if too short, else 0.

        Its destination is the address of the group that the IPv4 header names.
        """
        at: cython.Py_ssize_t
        if start + _HEADERS > end:
            return -1
        for at in range(6):
            room[start + 6 + at] = self.source_macs[6 * destination + at]
        room[start], room[start + 1], room[start + 2] = 0x01, 0x00, 0x5E
        room[start + 3] = room[start + 31] & 0x7F
        room[start + 4], room[start + 5] = room[start + 32], room[start + 33]
        _put16(room, start + 12, 0x0800)
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def apply(
        self,
        destination: cython.Py_ssize_t,
        room: cython.uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        payload_length: cython.Py_ssize_t,
        payload_sum: cython.uint,
        made: cython.bint,
    ) -> cython.int:
        """Change the headers `room[start:end]`, from Ethernet to UDP; -1 if invalid, else 0.

        `payload_sum` is the one's complement sum (RFC 1071) of the payload's `payload_length`
        bytes. `made`: the checksums are wrong even where nothing else changes.
        """
        ip: cython.Py_ssize_t = _behind_ethernet(room, start, end)
        if ip < 0 or ip + 20 + _UDP > end:
            return -1
        udp: cython.Py_ssize_t = ip + 4 * cython.cast(cython.Py_ssize_t, room[ip] & 0x0F)
        if udp + _UDP != end or room[ip] >> 4 != 4:
            return -1
        before: cython.uint = _sum(room, ip + 12, 8) + _sum(room, udp, 4)
        if not self.change(destination, room, start, ip, udp) and not made:
            return 0
        _put16(room, ip + 10, 0)
        _put16(room, ip + 10, ~_folded(_sum(room, ip, udp - ip)) & 0xFFFF)
        checksum: cython.uint = _u16(room, udp + 6)
        if checksum == 0:
            return 0
        udp_length: cython.uint = _u16(room, udp + 4)
        _put16(room, udp + 6, 0)
        if cython.cast(cython.Py_ssize_t, udp_length) == _UDP + payload_length:
            checksum = _sum(room, ip + 12, 8) + _PROTOCOL_UDP + udp_length
            checksum += _sum(room, udp, _UDP) + payload_sum
        else:
            checksum = (~checksum & 0xFFFF) + (~_folded(before) & 0xFFFF)
            checksum += _sum(room, ip + 12, 8) + _sum(room, udp, 4)
        checksum = ~_folded(checksum) & 0xFFFF
        _put16(room, udp + 6, checksum if checksum != 0 else 0xFFFF)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def change(
        self,
        destination: cython.Py_ssize_t,
        room: cython.uchar[::1],
        start: cython.Py_ssize_t,
        ip: cython.Py_ssize_t,
        udp: cython.Py_ssize_t,
    ) -> cython.bint:
        """Write the changes; return whether anything behind the Ethernet header changed."""
        at: cython.Py_ssize_t
        changed: cython.bint = False
        if self.has_source_mac[destination] != 0:
            for at in range(6):
                room[start + 6 + at] = self.source_macs[6 * destination + at]
        if self.source_ip[destination] >= 0:
            changed |= _put32(room, ip + 12, self.source_ip[destination])
        if self.group[destination] >= 0 and _put32(room, ip + 16, self.group[destination]):
            changed = True
            for at in range(6):
                room[start + at] = self.group_macs[6 * destination + at]
        if self.source_port[destination] >= 0:
            changed |= _put_port(room, udp, self.source_port[destination])
        if self.port[destination] >= 0:
            changed |= _put_port(room, udp + 2, self.port[destination])
        return changed


@cython.cfunc
@cython.nogil
def _behind_ethernet(
    room: cython.uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Find the offset of the IPv4 header, or -1 where there is none within two VLAN tags."""
    position: cython.Py_ssize_t
    for position in range(start + 12, start + 24, 4):
        if position + 2 > end:
            return -1
        ethertype: cython.uint = _u16(room, position)
        if ethertype == 0x0800:
            return position + 2
        if ethertype != 0x8100 and ethertype != 0x88A8 and ethertype != 0x9100:
            return -1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(0xFFFFFFFF, check=True)
def _u16(room: cython.uchar[::1], at: cython.Py_ssize_t) -> cython.uint:
    """Read two bytes in network order."""
    return (cython.cast(cython.uint, room[at]) << 8) | room[at + 1]


@cython.cfunc
@cython.nogil
def _put16(room: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.uint) -> cython.int:
    room[at] = (value >> 8) & 0xFF
    room[at + 1] = value & 0xFF
    return 0


@cython.cfunc
@cython.nogil
def _put_port(room: cython.uchar[::1], at: cython.Py_ssize_t, port: cython.int) -> cython.bint:
    """Write a port; return whether it changed."""
    if _u16(room, at) == cython.cast(cython.uint, port):
        return False
    _put16(room, at, cython.cast(cython.uint, port))
    return True


@cython.cfunc
@cython.nogil
def _put32(room: cython.uchar[::1], at: cython.Py_ssize_t, address: cython.longlong) -> cython.bint:
    """Write an address; return whether it changed."""
    high: cython.uint = (address >> 16) & 0xFFFF
    low: cython.uint = address & 0xFFFF
    if _u16(room, at) == high and _u16(room, at + 2) == low:
        return False
    _put16(room, at, high)
    _put16(room, at + 2, low)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(0xFFFFFFFF, check=True)
def _sum(room: cython.uchar[::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.uint:
    """Sum an even number of bytes as 16-bit numbers, without folding the carries in."""
    position: cython.Py_ssize_t
    total: cython.uint = 0
    for position in range(at, at + length, 2):
        total += _u16(room, position)
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _folded(total: cython.uint) -> cython.uint:
    """Fold a one's complement sum to 16 bits."""
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)
