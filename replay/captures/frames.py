"""From one captured frame to its UDP datagram, as columns: no I/O, compiled.

What every capture format shares: a record's bytes are a frame of some link layer, behind which an
IPv4 header and a UDP header may stand. `FrameReader` looks at one frame after the other and fills
`DatagramColumns`. The payload is bounded by what the UDP length, the IP length and the capture all
agree on, so that Ethernet padding never becomes payload.

`read_u16` and `read_u32` read numbers in the order of a file.

Read here: Ethernet with up to two VLAN tags, raw IPv4, Linux cooked captures (both versions); IPv4
with options; UDP. What may hold a datagram behind other layers (IPv6, PPPoE, MPLS, tunnels, pieces
of fragmented datagrams, other link layers) is put aside for `slow_frames`: it takes a row of the
same columns, from their end. Everything else is counted by reason (`Skip`) and passed over.

Where records begin and end is the formats' (`pcap`, `pcapng`).
"""

import enum

import cython
import numpy as np

from feedhandler.codecs.visibility import Public, Readonly

#: libpcap's own bound on what one record may hold (MAXIMUM_SNAPLEN).
RECORD_BYTES_MAX = 262_144

_VLAN_TAGS_MAX = cython.declare(cython.int, 2)
_UDP_HEADER = cython.declare(cython.Py_ssize_t, 8)
_IPV4_HEADER = cython.declare(cython.Py_ssize_t, 20)
_ETHERTYPE_IPV4 = cython.declare(cython.int, 0x0800)
_PROTOCOL_UDP = cython.declare(cython.int, 17)
#: The port of VXLAN (RFC 7348), whose datagrams hold frames.
VXLAN_PORT = 4789
_VXLAN_PORT = cython.declare(cython.int, VXLAN_PORT)
_VXLAN_HEADER = cython.declare(cython.Py_ssize_t, 8)


class LinkType(enum.IntEnum):
    """Supported link layers, by their number (tcpdump.org/linktypes.html)."""

    LOOPBACK = 0
    ETHERNET = 1
    PPP = 9
    RAW_BSD = 12
    RAW_OPENBSD = 14
    PPP_HDLC = 50
    PPPOE = 51
    RAW = 101
    LOOPBACK_OPENBSD = 108
    LINUX_COOKED = 113
    RAW_IPV4 = 228
    RAW_IPV6 = 229
    LINUX_COOKED_V2 = 276


class Skip(enum.IntEnum):
    """Reasons why a record is no datagram; counted, never raised.

    The number 1 is not used: -1 marks an exception."""

    NOT_IP = 2  # ARP, LLDP, ...
    TOO_MANY_LAYERS = 3  # tunnels in tunnels beyond the bound
    SHORT_CAPTURE = 4  # the record ends inside the headers
    BAD_IP_HEADER = 5  # version, header length or total length contradict each other
    FRAGMENT = 6  # a piece of a larger datagram that did not become whole
    NOT_UDP = 7  # TCP, ICMP, IGMP, ...
    BAD_UDP_LENGTH = 8  # the UDP length is shorter than its own header
    OTHER_LINK = 9  # from an interface whose link layer is not understood
    MALFORMED = 10  # a layer that dpkt cannot make sense of
    OVERLAPPING = 11  # a piece that contradicts another one of its datagram


_NOT_IP = cython.declare(cython.int, 2)
_SHORT_CAPTURE = cython.declare(cython.int, 4)
_BAD_IP_HEADER = cython.declare(cython.int, 5)
_NOT_UDP = cython.declare(cython.int, 7)
_BAD_UDP_LENGTH = cython.declare(cython.int, 8)
_OTHER_LINK = cython.declare(cython.int, 9)
_SKIP_COUNT = cython.declare(cython.int, 12)
#: In the place of a `Skip`: to be put aside.
_ASIDE = cython.declare(cython.int, 100)


@cython.cclass
class DatagramColumns:
    """Room for `capacity` datagrams, a numpy array per column; `count` of them are filled.

    Rows from `limit` on, the latest first, are frames put aside: their times, frames, interfaces
    and link types; `offset` is the number of datagrams that were there before them.

    time_ns int64 (since 1970 UTC); source, destination u32 (IPv4 addresses as numbers);
    source_port, destination_port u16; offset u32 (of the payload, from the chunk's start),
    length u32 (of the payload, in bytes); frame_offset, frame_length u32 (the same of the whole
    frame, as captured); interface u16 (which of the capture's interfaces saw it, 0 where the
    format knows one only); link_type u16 (the frame's `LinkType`).
    """

    arrays: Readonly[dict]
    count: Public[cython.Py_ssize_t]
    limit: Public[cython.Py_ssize_t]
    capacity: Readonly[cython.Py_ssize_t]
    _time_ns: cython.longlong[::1]
    _source: cython.uint[::1]
    _destination: cython.uint[::1]
    _offset: cython.uint[::1]
    _length: cython.uint[::1]
    _frame_offset: cython.uint[::1]
    _frame_length: cython.uint[::1]
    _source_port: cython.ushort[::1]
    _destination_port: cython.ushort[::1]
    _interface: cython.ushort[::1]
    _link_type: cython.ushort[::1]

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.capacity = self.limit = capacity
        self.count = 0
        self.arrays = {
            "time_ns": np.empty(capacity, np.int64),
            "source": np.empty(capacity, np.uint32),
            "destination": np.empty(capacity, np.uint32),
            "source_port": np.empty(capacity, np.uint16),
            "destination_port": np.empty(capacity, np.uint16),
            "offset": np.empty(capacity, np.uint32),
            "length": np.empty(capacity, np.uint32),
            "frame_offset": np.empty(capacity, np.uint32),
            "frame_length": np.empty(capacity, np.uint32),
            "interface": np.empty(capacity, np.uint16),
            "link_type": np.empty(capacity, np.uint16),
        }
        self._time_ns = memoryview(self.arrays["time_ns"])
        self._source = memoryview(self.arrays["source"])
        self._destination = memoryview(self.arrays["destination"])
        self._source_port = memoryview(self.arrays["source_port"])
        self._destination_port = memoryview(self.arrays["destination_port"])
        self._offset = memoryview(self.arrays["offset"])
        self._length = memoryview(self.arrays["length"])
        self._frame_offset = memoryview(self.arrays["frame_offset"])
        self._frame_length = memoryview(self.arrays["frame_length"])
        self._interface = memoryview(self.arrays["interface"])
        self._link_type = memoryview(self.arrays["link_type"])

    def clear(self) -> None:
        """Discard all rows; the arrays stay allocated."""
        self.count = 0
        self.limit = self.capacity


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def u16(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.int:
    """Read two bytes in network order."""
    return (cython.cast(cython.int, data[at]) << 8) | data[at + 1]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def u32(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Read four bytes in network order."""
    high: cython.longlong = u16(data, at)
    return (high << 16) | u16(data, at + 2)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def u32_little(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Read four bytes, least significant first."""
    low: cython.longlong = (cython.cast(cython.longlong, data[at + 1]) << 8) | data[at]
    high: cython.longlong = (cython.cast(cython.longlong, data[at + 3]) << 8) | data[at + 2]
    return (high << 16) | low


@cython.ccall
@cython.nogil
def read_u16(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, big_endian: cython.bint
) -> cython.int:
    """Read two bytes in the file's order."""
    if big_endian:
        return u16(data, at)
    return (cython.cast(cython.int, data[at + 1]) << 8) | data[at]


@cython.ccall
@cython.nogil
def read_u32(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, big_endian: cython.bint
) -> cython.longlong:
    """Read four bytes in the file's order."""
    return u32(data, at) if big_endian else u32_little(data, at)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _unread(ethertype: cython.int) -> cython.int:
    """Classify an EtherType other than IPv4: `_ASIDE`, or a `Skip` reason."""
    # IPv6; PPPoE; MPLS, of groups too; tags, where they stand in a cooked header.
    if ethertype == 0x86DD or ethertype == 0x8864 or ethertype == 0x8847 or ethertype == 0x8848:
        return _ASIDE
    if ethertype == 0x8100 or ethertype == 0x88A8 or ethertype == 0x9100:
        return _ASIDE
    return _NOT_IP


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _behind_ethernet(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Find the offset of the IPv4 header of an Ethernet frame, or minus a `Skip` reason."""
    position: cython.Py_ssize_t = start + 12
    tags: cython.int = 0
    while True:
        if position + 2 > end:
            return -_SHORT_CAPTURE
        ethertype: cython.int = u16(data, position)
        position += 2
        if ethertype == _ETHERTYPE_IPV4:
            return position
        # 802.1Q, 802.1ad, and the number that was used for double tags before 802.1ad.
        if ethertype != 0x8100 and ethertype != 0x88A8 and ethertype != 0x9100:
            return -_unread(ethertype)
        tags += 1
        if tags > _VLAN_TAGS_MAX:
            return -_ASIDE
        position += 2


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _behind_link(
    link_type: cython.int,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Find the offset of the IPv4 header behind any link layer, or minus a `Skip` reason."""
    if link_type == 1:
        return _behind_ethernet(data, start, end)
    if link_type == 113:  # 16 bytes, the protocol in the last two
        if start + 16 > end:
            return -_SHORT_CAPTURE
        if u16(data, start + 14) == _ETHERTYPE_IPV4:
            return start + 16
        return -_unread(u16(data, start + 14))
    if link_type == 276:  # 20 bytes, the protocol in the first two
        if start + 20 > end:
            return -_SHORT_CAPTURE
        return start + 20 if u16(data, start) == _ETHERTYPE_IPV4 else -_unread(u16(data, start))
    if start >= end:
        return -_SHORT_CAPTURE
    if link_type != 12 and link_type != 14 and link_type != 101 and link_type != 228:
        return -_ASIDE
    if data[start] >> 4 == 4:
        return start
    return -_ASIDE if data[start] >> 4 == 6 else -_NOT_IP


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _behind_ipv4(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Find the offset of the UDP header behind the IPv4 header, or minus a `Skip` reason."""
    if start + _IPV4_HEADER > end:
        return -_SHORT_CAPTURE
    header_bytes: cython.Py_ssize_t = (data[start] & 0x0F) * 4
    total: cython.Py_ssize_t = u16(data, start + 2)
    if data[start] >> 4 != 4 or header_bytes < _IPV4_HEADER:
        return -_BAD_IP_HEADER
    # A total of 0 is what a capture on the sender shows when the network card does the cutting.
    if total != 0 and total < header_bytes:
        return -_BAD_IP_HEADER
    if data[start + 9] != _PROTOCOL_UDP:
        # IPv4 in IPv4, IPv6 in IPv4, GRE
        if data[start + 9] == 4 or data[start + 9] == 41 or data[start + 9] == 47:
            return -_ASIDE
        return -_NOT_UDP
    if u16(data, start + 6) & 0x3FFF:  # more fragments, or a fragment offset
        return -_ASIDE
    if total != 0 and total < header_bytes + _UDP_HEADER:
        return -_BAD_IP_HEADER
    if start + header_bytes + _UDP_HEADER > end:
        return -_SHORT_CAPTURE
    return start + header_bytes


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _holds_vxlan(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether a payload begins as VXLAN does: the flag of a VNI, reserved bytes 0."""
    if start + _VXLAN_HEADER > end or data[start] != 8:
        return False
    return u16(data, start + 1) == 0 and data[start + 3] == 0 and data[start + 7] == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _put_aside(
    link_type: cython.int,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    time_ns: cython.longlong,
    interface: cython.int,
    columns: DatagramColumns,
) -> cython.int:
    """Put the frame `data[start:end]` into the last free row, for `slow_frames`."""
    slot: cython.Py_ssize_t = columns.limit - 1
    columns._time_ns[slot] = time_ns
    columns._offset[slot] = cython.cast(cython.uint, columns.count)
    columns._frame_offset[slot] = cython.cast(cython.uint, start)
    columns._frame_length[slot] = cython.cast(cython.uint, end - start)
    columns._interface[slot] = cython.cast(cython.ushort, interface)
    columns._link_type[slot] = cython.cast(cython.ushort, link_type)
    columns.limit = slot
    return 0


@cython.final
@cython.cclass
class FrameReader:
    """A reader of frames; see the module's text.

    `cut_payloads` counts those datagrams whose UDP length says more than the capture holds (their
    payload is what there is).
    """

    cut_payloads: Readonly[cython.longlong]
    skips: cython.longlong[::1]

    def __init__(self) -> None:
        self.cut_payloads = 0
        self.skips = np.zeros(_SKIP_COUNT, np.int64).data

    def skipped(self) -> dict:
        """Return counts of frames that were no datagrams, by `Skip` reason, without zeros."""
        return {reason: self.skips[reason] for reason in Skip if self.skips[reason]}

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def add(
        self,
        link_type: cython.int,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        time_ns: cython.longlong,
        interface: cython.int,
        columns: DatagramColumns,
    ) -> cython.int:
        """Append the frame `data[start:end]` to the columns, or count its `Skip` reason.

        `link_type` -1: an unsupported one. The columns must have room.
        """
        if link_type < 0:
            self.skips[_OTHER_LINK] += 1
            return 0
        ip: cython.Py_ssize_t = _behind_link(link_type, data, start, end)
        udp: cython.Py_ssize_t = _behind_ipv4(data, ip, end) if ip >= 0 else ip
        if udp == -_ASIDE:
            return _put_aside(link_type, start, end, time_ns, interface, columns)
        if udp < 0:
            self.skips[-udp] += 1
            return 0
        length: cython.Py_ssize_t = u16(data, udp + 4)
        port: cython.int = u16(data, udp + 2)
        if port == _VXLAN_PORT and _holds_vxlan(data, udp + _UDP_HEADER, end):
            return _put_aside(link_type, start, end, time_ns, interface, columns)
        if length < _UDP_HEADER:
            self.skips[_BAD_UDP_LENGTH] += 1
            return 0
        total: cython.Py_ssize_t = u16(data, ip + 2)
        room: cython.Py_ssize_t = end - udp
        if total != 0 and ip + total < end:
            room = ip + total - udp
        if length > room:
            length = room
            self.cut_payloads += 1
        slot: cython.Py_ssize_t = columns.count
        columns._time_ns[slot] = time_ns
        columns._source[slot] = cython.cast(cython.uint, u32(data, ip + 12))
        columns._destination[slot] = cython.cast(cython.uint, u32(data, ip + 16))
        columns._source_port[slot] = cython.cast(cython.ushort, u16(data, udp))
        columns._destination_port[slot] = cython.cast(cython.ushort, port)
        columns._offset[slot] = cython.cast(cython.uint, udp + _UDP_HEADER)
        columns._length[slot] = cython.cast(cython.uint, length - _UDP_HEADER)
        columns._frame_offset[slot] = cython.cast(cython.uint, start)
        columns._frame_length[slot] = cython.cast(cython.uint, end - start)
        columns._interface[slot] = cython.cast(cython.ushort, interface)
        columns._link_type[slot] = cython.cast(cython.ushort, link_type)
        columns.count = slot + 1
        return 0
