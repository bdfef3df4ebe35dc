"""From the bytes of a classic pcap file to UDP payloads, as columns: no I/O, compiled.

`PcapScanner` is given the file's header once and then chunks of the bytes that follow it. Each
call of `scan` walks the complete records of a chunk and fills `DatagramColumns`; what is left of
an incomplete record at the end is the caller's to keep and to put before the next chunk. Times
are integer nanoseconds whatever the file's resolution, byte order is the file's own, and the
payload is bounded by what the UDP length, the IP length and the capture all agree on, so that
Ethernet padding never becomes payload.

Understood below: Ethernet with up to two VLAN tags, raw IPv4, Linux cooked captures (both
versions); IPv4 with options; UDP. Everything else is counted by reason (`Skip`) and passed over.
A record that claims more than `RECORD_BYTES_MAX` means that the file is damaged: there is no way
to find the next record, so scanning stops there and says so.

Opening, decompressing and reading files is `feedhandler.replay.capture`'s.
"""

import enum

import cython
import numpy as np

#: The length of the file header, and of the header before each record.
FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 16
#: libpcap's own bound on what one record may hold (MAXIMUM_SNAPLEN).
RECORD_BYTES_MAX = 262_144

_RECORD_HEADER = cython.declare(cython.Py_ssize_t, 16)
_RECORD_MAX = cython.declare(cython.Py_ssize_t, 262_144)
_VLAN_TAGS_MAX = cython.declare(cython.int, 2)
_UDP_HEADER = cython.declare(cython.Py_ssize_t, 8)
_IPV4_HEADER = cython.declare(cython.Py_ssize_t, 20)
_ETHERTYPE_IPV4 = cython.declare(cython.int, 0x0800)
_PROTOCOL_UDP = cython.declare(cython.int, 17)


class LinkType(enum.IntEnum):
    """Link layers that are understood, by their number in the file header (tcpdump.org)."""

    ETHERNET = 1
    RAW_BSD = 12
    RAW_OPENBSD = 14
    RAW = 101
    LINUX_COOKED = 113
    RAW_IPV4 = 228
    LINUX_COOKED_V2 = 276


class Skip(enum.IntEnum):
    """Why a record is no datagram; counted, never raised. (1 is free: -1 marks an exception.)"""

    NOT_IPV4 = 2  # ARP, IPv6, LLDP, ...
    TOO_MANY_TAGS = 3  # more than two VLAN tags
    SHORT_CAPTURE = 4  # the record ends inside the headers
    BAD_IP_HEADER = 5  # version, header length or total length contradict each other
    FRAGMENT = 6  # a piece of a larger datagram; pieces are not put together
    NOT_UDP = 7  # TCP, ICMP, IGMP, ...
    BAD_UDP_LENGTH = 8  # the UDP length is shorter than its own header


_NOT_IPV4 = cython.declare(cython.int, 2)
_TOO_MANY_TAGS = cython.declare(cython.int, 3)
_SHORT_CAPTURE = cython.declare(cython.int, 4)
_BAD_IP_HEADER = cython.declare(cython.int, 5)
_FRAGMENT = cython.declare(cython.int, 6)
_NOT_UDP = cython.declare(cython.int, 7)
_BAD_UDP_LENGTH = cython.declare(cython.int, 8)
_SKIP_COUNT = cython.declare(cython.int, 9)


class Status(enum.IntEnum):
    """Why `scan` returned."""

    NEED_DATA = 0  # what is left of the chunk is not a whole record
    FULL = 1  # the columns have no room left
    DAMAGED = 2  # the record at the returned position claims an impossible length


_NEED_DATA = cython.declare(cython.int, 0)
_FULL = cython.declare(cython.int, 1)
_DAMAGED = cython.declare(cython.int, 2)


@cython.cclass
class DatagramColumns:
    """Room for `capacity` datagrams, a numpy array per column; `count` of them are filled.

    time_ns int64 (since 1970 UTC); source, destination u32 (IPv4 addresses as numbers);
    source_port, destination_port u16; offset u32 (of the payload, from the chunk's start),
    length u32 (of the payload, in bytes).
    """

    arrays = cython.declare(dict, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="public")
    capacity = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _time_ns: cython.longlong[::1]
    _source: cython.uint[::1]
    _destination: cython.uint[::1]
    _source_port: cython.ushort[::1]
    _destination_port: cython.ushort[::1]
    _offset: cython.uint[::1]
    _length: cython.uint[::1]

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.capacity = capacity
        self.count = 0
        self.arrays = {
            "time_ns": np.empty(capacity, np.int64),
            "source": np.empty(capacity, np.uint32),
            "destination": np.empty(capacity, np.uint32),
            "source_port": np.empty(capacity, np.uint16),
            "destination_port": np.empty(capacity, np.uint16),
            "offset": np.empty(capacity, np.uint32),
            "length": np.empty(capacity, np.uint32),
        }
        self._time_ns = memoryview(self.arrays["time_ns"])
        self._source = memoryview(self.arrays["source"])
        self._destination = memoryview(self.arrays["destination"])
        self._source_port = memoryview(self.arrays["source_port"])
        self._destination_port = memoryview(self.arrays["destination_port"])
        self._offset = memoryview(self.arrays["offset"])
        self._length = memoryview(self.arrays["length"])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u16(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.int:
    """Two bytes in network order."""
    return (cython.cast(cython.int, data[at]) << 8) | data[at + 1]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u32(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes in network order."""
    high: cython.longlong = _u16(data, at)
    return (high << 16) | _u16(data, at + 2)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u32_little(data: cython.const_uchar[::1], at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes, least significant first."""
    low: cython.longlong = (cython.cast(cython.longlong, data[at + 1]) << 8) | data[at]
    high: cython.longlong = (cython.cast(cython.longlong, data[at + 3]) << 8) | data[at + 2]
    return (high << 16) | low


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _behind_ethernet(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the IPv4 header of an Ethernet frame begins, or minus a `Skip` reason."""
    position: cython.Py_ssize_t = start + 12
    tags: cython.int = 0
    ethertype: cython.int
    while True:
        if position + 2 > end:
            return -_SHORT_CAPTURE
        ethertype = _u16(data, position)
        position += 2
        if ethertype == _ETHERTYPE_IPV4:
            return position
        # 802.1Q, 802.1ad, and the number that was used for double tags before 802.1ad.
        if ethertype != 0x8100 and ethertype != 0x88A8 and ethertype != 0x9100:
            return -_NOT_IPV4
        tags += 1
        if tags > _VLAN_TAGS_MAX:
            return -_TOO_MANY_TAGS
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
    """Where the IPv4 header begins behind any link layer, or minus a `Skip` reason."""
    if link_type == 1:
        return _behind_ethernet(data, start, end)
    if link_type == 113:  # 16 bytes, the protocol in the last two
        if start + 16 > end:
            return -_SHORT_CAPTURE
        return start + 16 if _u16(data, start + 14) == _ETHERTYPE_IPV4 else -_NOT_IPV4
    if link_type == 276:  # 20 bytes, the protocol in the first two
        if start + 20 > end:
            return -_SHORT_CAPTURE
        return start + 20 if _u16(data, start) == _ETHERTYPE_IPV4 else -_NOT_IPV4
    if start >= end:
        return -_SHORT_CAPTURE
    return start if data[start] >> 4 == 4 else -_NOT_IPV4


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _behind_ipv4(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the UDP header begins behind the IPv4 header, or minus a `Skip` reason."""
    if start + _IPV4_HEADER > end:
        return -_SHORT_CAPTURE
    header_bytes: cython.Py_ssize_t = (data[start] & 0x0F) * 4
    total: cython.Py_ssize_t = _u16(data, start + 2)
    if data[start] >> 4 != 4 or header_bytes < _IPV4_HEADER:
        return -_BAD_IP_HEADER
    # A total of 0 is what a capture on the sender shows when the network card does the cutting.
    if total != 0 and total < header_bytes:
        return -_BAD_IP_HEADER
    if data[start + 9] != _PROTOCOL_UDP:
        return -_NOT_UDP
    if _u16(data, start + 6) & 0x3FFF:  # more fragments, or a fragment offset
        return -_FRAGMENT
    if total != 0 and total < header_bytes + _UDP_HEADER:
        return -_BAD_IP_HEADER
    if start + header_bytes + _UDP_HEADER > end:
        return -_SHORT_CAPTURE
    return start + header_bytes


@cython.cclass
class PcapScanner:
    """Walks the records of one capture; see the module's text.

    `swapped`: the file is big-endian. `tick_ns`: nanoseconds a unit of the time's fraction.
    `records` counts all records passed, `cut_payloads` those datagrams whose UDP length says
    more than the capture holds (their payload is what there is).
    """

    records = cython.declare(cython.longlong, visibility="readonly")
    cut_payloads = cython.declare(cython.longlong, visibility="readonly")
    status = cython.declare(cython.int, visibility="readonly")
    _big_endian: cython.bint
    _tick_ns: cython.longlong
    _link_type: cython.int
    _skips: cython.longlong[::1]

    def __init__(self, big_endian: bool, tick_ns: int, link_type: int) -> None:
        self._big_endian = big_endian
        self._tick_ns = tick_ns
        self._link_type = link_type
        self._skips = np.zeros(_SKIP_COUNT, np.int64).data
        self.records = 0
        self.cut_payloads = 0
        self.status = _NEED_DATA

    def skipped(self) -> dict:
        """Records that were no datagrams, counted by `Skip` reason; reasons not met are absent."""
        return {reason: self._skips[reason] for reason in Skip if self._skips[reason]}

    def scan(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        columns: DatagramColumns,
    ) -> cython.Py_ssize_t:
        """Append the datagrams of the whole records in `data[start:end]` to `columns`.

        Returns the offset of the first record not taken; `status` says why it stopped there.
        Raises `IndexError` for `start` or `end` outside `data`, or past what a u32 offset holds.
        """
        if start < 0 or end > len(data) or start > end or end > 0xFFFF_FFFF:
            raise IndexError("start and end must lie within data, and below 4 GiB")
        position: cython.Py_ssize_t
        with cython.nogil:
            position = self._scan(data, start, end, columns)
        return position

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _scan(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        columns: DatagramColumns,
    ) -> cython.Py_ssize_t:
        position: cython.Py_ssize_t = start
        captured: cython.Py_ssize_t
        time_ns: cython.longlong
        while True:
            self.status = _NEED_DATA
            if position + _RECORD_HEADER > end:
                return position
            if self._big_endian:
                time_ns = _u32(data, position) * 1_000_000_000
                time_ns += _u32(data, position + 4) * self._tick_ns
                captured = _u32(data, position + 8)
            else:
                time_ns = _u32_little(data, position) * 1_000_000_000
                time_ns += _u32_little(data, position + 4) * self._tick_ns
                captured = _u32_little(data, position + 8)
            if captured > _RECORD_MAX:
                self.status = _DAMAGED
                return position
            if position + _RECORD_HEADER + captured > end:
                return position
            if columns.count == columns.capacity:
                self.status = _FULL
                return position
            position += _RECORD_HEADER
            self._take(data, position, position + captured, time_ns, columns)
            self.records += 1
            position += captured

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _take(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        time_ns: cython.longlong,
        columns: DatagramColumns,
    ) -> cython.int:
        """One record's bytes into the columns, or into the count of its `Skip` reason."""
        ip: cython.Py_ssize_t = _behind_link(self._link_type, data, start, end)
        udp: cython.Py_ssize_t = _behind_ipv4(data, ip, end) if ip >= 0 else ip
        if udp < 0:
            self._skips[-udp] += 1
            return 0
        length: cython.Py_ssize_t = _u16(data, udp + 4)
        if length < _UDP_HEADER:
            self._skips[_BAD_UDP_LENGTH] += 1
            return 0
        total: cython.Py_ssize_t = _u16(data, ip + 2)
        room: cython.Py_ssize_t = end - udp
        if total != 0 and ip + total < end:
            room = ip + total - udp
        if length > room:
            length = room
            self.cut_payloads += 1
        slot: cython.Py_ssize_t = columns.count
        columns._time_ns[slot] = time_ns
        columns._source[slot] = cython.cast(cython.uint, _u32(data, ip + 12))
        columns._destination[slot] = cython.cast(cython.uint, _u32(data, ip + 16))
        columns._source_port[slot] = cython.cast(cython.ushort, _u16(data, udp))
        columns._destination_port[slot] = cython.cast(cython.ushort, _u16(data, udp + 2))
        columns._offset[slot] = cython.cast(cython.uint, udp + _UDP_HEADER)
        columns._length[slot] = cython.cast(cython.uint, length - _UDP_HEADER)
        columns.count = slot + 1
        return 0
