"""From the bytes of a pcapng file to UDP payloads, as columns: no I/O, compiled.

`PcapngScanner` walks the file's blocks as `pcap.PcapScanner` walks records: chunk after chunk, what
is left of an incomplete block being the caller's to keep. The format is that of the IETF draft
`draft-ietf-opsawg-pcapng`, whose block and option numbers stand below.

* Sections may follow one another, each with its own byte order and its own interfaces.
* Each interface has its own link type, resolution (powers of ten and of two), offset and name; a
  packet of one whose link layer is not understood is counted, not taken.
* Enhanced and simple packet blocks are taken, and the obsolete packet block. A simple one has no
  time: it gets that of the packet before it (0 for the first), and is counted in `untimed`.
* Other blocks (names, statistics, custom ones) are passed over.

Times are integer nanoseconds, rounded down from finer resolutions. A block whose lengths contradict
each other means that the file is damaged: scanning stops there, and `damage` says why.
"""

import enum
from typing import Literal

import cython
import numpy as np
from cython.cimports.feedhandler.replay.captures.frames import (
    DatagramColumns,
    FrameReader,
    read_u16,
    read_u32,
)
from cython.cimports.feedhandler.replay.captures.status import DAMAGED, FULL, NEED_DATA

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX, LinkType

#: The four bytes that begin every section, in either order.
SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
#: What stands behind a section's first length, in either order.
BYTE_ORDERS = (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a")
#: The largest block taken: a packet, its header and some options.
BLOCK_BYTES_MAX = RECORD_BYTES_MAX + 65_536
#: Interfaces of one section at most: a recorder describes those that it listened to.
INTERFACES_MAX = 1_024
#: Seconds that a time may have: to the year 2242, so that nanoseconds fit a signed 64-bit number.
_SECONDS_MAX = cython.declare(cython.longlong, 1 << 33)

_SECTION = cython.declare(cython.longlong, 0x0A0D0D0A)
_BYTE_ORDER = cython.declare(cython.longlong, 0x1A2B3C4D)
_INTERFACE = cython.declare(cython.longlong, 1)
_OLD_PACKET = cython.declare(cython.longlong, 2)
_SIMPLE = cython.declare(cython.longlong, 3)
_ENHANCED = cython.declare(cython.longlong, 6)
_OPTION_NAME, _OPTION_RESOLUTION, _OPTION_OFFSET = 2, 9, 14
#: Type, length, and the length again at the end.
_FRAMING = cython.declare(cython.Py_ssize_t, 12)
_BLOCK_MAX = cython.declare(cython.longlong, BLOCK_BYTES_MAX)
_RECORD_MAX = cython.declare(cython.longlong, RECORD_BYTES_MAX)
_BILLION = cython.declare(cython.ulonglong, 1_000_000_000)


class Damage(enum.IntEnum):
    """Reasons that a capture cannot be read further."""

    NONE = 0
    NO_SECTION = 2  # (1 is free: -1 marks an exception)
    BLOCK_LENGTH = 3
    BYTE_ORDER = 4
    PACKET_LENGTH = 5
    NO_INTERFACE = 6
    TOO_MANY_INTERFACES = 7
    INTERFACE_TIME = 8
    TIME = 9


DAMAGE_TEXT = {
    Damage.NONE: "nothing",
    Damage.NO_SECTION: "it does not begin with a section",
    Damage.BLOCK_LENGTH: "the lengths of a block contradict each other, or it is far too long",
    Damage.BYTE_ORDER: "a section of unknown byte order",
    Damage.PACKET_LENGTH: "a packet is longer than its block",
    Damage.NO_INTERFACE: "a packet of an interface that was not described",
    Damage.TOO_MANY_INTERFACES: f"more than {INTERFACES_MAX} interfaces in a section",
    Damage.INTERFACE_TIME: "an interface whose resolution or time offset cannot be",
    Damage.TIME: "a time that cannot be",
}
_Order = Literal["big", "little"]

_NO_SECTION = cython.declare(cython.int, 2)
_BLOCK_LENGTH = cython.declare(cython.int, 3)
_NO_ORDER = cython.declare(cython.int, 4)
_PACKET_LENGTH = cython.declare(cython.int, 5)
_NO_INTERFACE = cython.declare(cython.int, 6)
_TIME = cython.declare(cython.int, 9)


@cython.cclass
class PcapngScanner:
    """Walks the blocks of one capture; see the module's text.

    `records` counts the packets passed, `untimed` those without a time, `sections` and `interfaces`
    (names, "" where there is none, of the latest section) what the file has described so far.
    """

    frames: Readonly[FrameReader]
    records: Readonly[cython.longlong]
    untimed: Readonly[cython.longlong]
    sections: Readonly[cython.longlong]
    status: Readonly[cython.int]
    interfaces: Readonly[list]
    _damage: cython.int
    _big_endian: cython.bint
    _last_ns: cython.longlong
    _count: cython.int
    # By interface: link type (-1: not understood), units a second, whether those are a power of two
    # (then their exponent), seconds to add, bytes that a simple packet holds at most (0: all).
    _links: cython.int[::1]
    _units: cython.ulonglong[::1]
    _shifts: cython.int[::1]
    _offsets: cython.longlong[::1]
    _snap: cython.longlong[::1]

    def __init__(self) -> None:
        self.frames = FrameReader()
        self.records = self.untimed = self.sections = 0
        self.status = NEED_DATA
        self.interfaces = []
        self._damage = 0
        self._big_endian = False
        self._last_ns = 0
        self._count = 0
        self._links = np.zeros(INTERFACES_MAX, np.int32).data
        self._units = np.zeros(INTERFACES_MAX, np.uint64).data
        self._shifts = np.zeros(INTERFACES_MAX, np.int32).data
        self._offsets = np.zeros(INTERFACES_MAX, np.int64).data
        self._snap = np.zeros(INTERFACES_MAX, np.int64).data

    @property
    def damage(self) -> str:
        """Description of the damage at which `scan` stopped."""
        return DAMAGE_TEXT[Damage(self._damage)]

    def scan(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        columns: DatagramColumns,
    ) -> cython.Py_ssize_t:
        """Append the datagrams of the whole blocks in `data[start:end]` to `columns`.

        Returns the offset of the first block not taken; `status` says why it stopped there.
        Raises `IndexError` for `start` or `end` outside `data`, or past what a u32 offset holds.
        """
        if start < 0 or end > len(data) or start > end or end > 0xFFFF_FFFF:
            raise IndexError("start and end must lie within data, and below 4 GiB")
        with cython.nogil:
            position: cython.Py_ssize_t = self._scan(data, start, end, columns)
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
        length: cython.Py_ssize_t = 0
        while True:
            self.status = NEED_DATA
            if position + _FRAMING > end:
                return position
            # The number of a section reads the same in either order.
            kind: cython.longlong = read_u32(data, position, self._big_endian)
            if kind == _SECTION:
                self._begin(data, position)
            elif self.sections == 0:
                self._damage = _NO_SECTION
            if self._damage == 0:
                length = self._length(data, position, end)
            if self._damage != 0:
                self.status = DAMAGED
                return position
            if length == 0:
                if kind == _SECTION:
                    self.sections -= 1  # it will be met again, whole
                return position
            if kind in (_ENHANCED, _SIMPLE, _OLD_PACKET):
                if columns.count == columns.limit:
                    self.status = FULL
                    return position
                self._packet(kind, data, position + 8, position + length - 4, columns)
            elif kind == _INTERFACE:
                with cython.gil:
                    self._describe(bytes(data[position + 8 : position + length - 4]))
            elif kind == _SECTION:
                self._count = 0
                with cython.gil:
                    self.interfaces = []
            if self._damage != 0:
                self.status = DAMAGED
                return position
            position += length

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _begin(self, data: cython.const_uchar[::1], position: cython.Py_ssize_t) -> cython.int:
        """Begin a section and set its byte order; damage where it has none."""
        if read_u32(data, position + 8, True) == _BYTE_ORDER:
            self._big_endian = True
        elif read_u32(data, position + 8, False) == _BYTE_ORDER:
            self._big_endian = False
        else:
            self._damage = _NO_ORDER
        self.sections += 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _length(
        self, data: cython.const_uchar[::1], position: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return the length of the block, 0 while it is incomplete; damage if it is invalid."""
        length: cython.longlong = read_u32(data, position + 4, self._big_endian)
        if length < _FRAMING or length > _BLOCK_MAX or length % 4 != 0:
            self._damage = _BLOCK_LENGTH
            return 0
        if position + length > end:
            return 0
        if read_u32(data, position + length - 4, self._big_endian) != length:
            self._damage = _BLOCK_LENGTH
            return 0
        return length

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _packet(
        self,
        kind: cython.longlong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        columns: DatagramColumns,
    ) -> cython.int:
        """Read a packet block whose body is `data[start:end]`."""
        big: cython.bint = self._big_endian
        interface: cython.longlong = 0
        header: cython.Py_ssize_t = 4 if kind == _SIMPLE else 20
        if end - start < header:
            self._damage = _BLOCK_LENGTH
            return 0
        if kind == _ENHANCED:
            interface = read_u32(data, start, big)
        elif kind == _OLD_PACKET:
            interface = read_u16(data, start, big)
        if interface >= self._count:
            self._damage = _NO_INTERFACE
            return 0
        if kind == _SIMPLE:
            captured: cython.longlong = read_u32(data, start, big)
            if self._snap[0] != 0 and captured > self._snap[0]:
                captured = self._snap[0]
            self.untimed += 1
        else:
            captured = read_u32(data, start + 12, big)
            self._set_time(
                cython.cast(cython.int, interface),
                read_u32(data, start + 4, big),
                read_u32(data, start + 8, big),
            )
        start += header
        if captured > end - start or captured > _RECORD_MAX:
            self._damage = _PACKET_LENGTH
        if self._damage != 0:
            return 0
        self.records += 1
        self.frames.add(
            self._links[interface],
            data,
            start,
            start + cython.cast(cython.Py_ssize_t, captured),
            self._last_ns,
            cython.cast(cython.int, interface),
            columns,
        )
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _set_time(
        self, interface: cython.int, high: cython.longlong, low: cython.longlong
    ) -> cython.int:
        """Convert a time in units of the interface's resolution to ns, and keep it."""
        ticks: cython.ulonglong = (cython.cast(cython.ulonglong, high) << 32) | low
        units: cython.ulonglong = self._units[interface]
        shift: cython.int = self._shifts[interface]
        fraction: cython.ulonglong = ticks % units
        seconds: cython.longlong = ticks // units
        seconds += self._offsets[interface]
        if seconds < 0 or seconds >= _SECONDS_MAX:
            self._damage = _TIME
            return 0
        if shift > 32:
            fraction >>= shift - 32
            units = cython.cast(cython.ulonglong, 1) << 32
        elif shift == 0 and units > _BILLION:
            fraction //= units // _BILLION
            units = _BILLION
        self._last_ns = seconds * 1_000_000_000
        self._last_ns += cython.cast(cython.longlong, fraction * _BILLION // units)
        return 0

    def _describe(self, body: bytes) -> cython.int:
        """Read an interface description block."""
        order: _Order = "big" if self._big_endian else "little"
        if len(body) < 8:
            self._damage = Damage.BLOCK_LENGTH
            return 0
        if self._count >= INTERFACES_MAX:
            self._damage = Damage.TOO_MANY_INTERFACES
            return 0
        link = int.from_bytes(body[:2], order)
        options = _options(body[8:], order)
        resolution = options.get(_OPTION_RESOLUTION, b"\x06")[:1] or b"\x06"
        exponent = resolution[0] & 0x7F
        power_of_two = resolution[0] > 0x7F
        offset = int.from_bytes(options.get(_OPTION_OFFSET, b""), order, signed=True)
        if exponent > (63 if power_of_two else 19) or not -(1 << 33) < offset < 1 << 33:
            self._damage = Damage.INTERFACE_TIME
            return 0
        index = self._count
        self._links[index] = link if link in _KNOWN_LINKS else -1
        self._units[index] = 1 << exponent if power_of_two else 10**exponent
        self._shifts[index] = exponent if power_of_two else 0
        self._offsets[index] = offset
        self._snap[index] = int.from_bytes(body[4:8], order)
        self.interfaces.append(options.get(_OPTION_NAME, b"").decode(errors="replace"))
        self._count = index + 1
        return 0


_KNOWN_LINKS = frozenset(int(each) for each in LinkType)


def _options(data: bytes, order: _Order) -> dict[int, bytes]:
    """Read a block's options by number, the first of each, up to one that is cut off."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        code = int.from_bytes(data[at : at + 2], order)
        size = int.from_bytes(data[at + 2 : at + 4], order)
        if code == 0 or at + 4 + size > len(data):
            break
        found.setdefault(code, data[at + 4 : at + 4 + size])
        at += 4 + size + -size % 4
    return found
