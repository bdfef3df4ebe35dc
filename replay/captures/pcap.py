"""Scanner from the bytes of a classic pcap file to columns of UDP payloads: sans-IO, compiled.

`PcapScanner` is given the file's header once and then chunks of the bytes that follow it. Each
call of `scan` walks the complete records of a chunk and fills `DatagramColumns`; the caller keeps
the incomplete record at the end and puts it before the next chunk. Times are integer nanoseconds
whatever the file's resolution; the byte order is the file's own.

A record that claims more than `RECORD_BYTES_MAX` means that the file is damaged: there is no way
to find the next record, so scanning stops there with the status `DAMAGED`.

`frames` parses the frames; `capture` opens, decompresses and reads files.
"""

import cython
from cython.cimports.feedhandler.replay.captures.frames import (
    DatagramColumns,
    FrameReader,
    read_u32,
)
from cython.cimports.feedhandler.replay.captures.status import DAMAGED, FULL, NEED_DATA

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.captures.frames import RECORD_BYTES_MAX
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES

#: The length of the file header.
FILE_HEADER_BYTES = 24

_RECORD_HEADER = cython.declare(cython.Py_ssize_t, RECORD_HEADER_BYTES)
_RECORD_MAX = cython.declare(cython.Py_ssize_t, RECORD_BYTES_MAX)


@cython.cclass
class PcapScanner:
    """A scanner of the records of one capture; see the module's text.

    `big_endian`: the file's byte order. `tick_ns`: nanoseconds per unit of the time's fraction.
    `records` counts all records passed; `frames` counts their frames by outcome.
    """

    frames: Readonly[FrameReader]
    records: Readonly[cython.longlong]
    status: Readonly[cython.int]
    _big_endian: cython.bint
    _tick_ns: cython.longlong
    _link_type: cython.int

    def __init__(self, big_endian: bool, tick_ns: int, link_type: int) -> None:
        self._big_endian = big_endian
        self._tick_ns = tick_ns
        self._link_type = link_type
        self.frames = FrameReader()
        self.records = 0
        self.status = NEED_DATA

    @property
    def damage(self) -> str:
        """Description of the damage at which `scan` stopped."""
        return f"a record claims more than {RECORD_BYTES_MAX:,} bytes"

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
        while True:
            self.status = NEED_DATA
            if position + _RECORD_HEADER > end:
                return position
            time_ns: cython.longlong = read_u32(data, position, self._big_endian) * 1_000_000_000
            time_ns += read_u32(data, position + 4, self._big_endian) * self._tick_ns
            captured: cython.Py_ssize_t = read_u32(data, position + 8, self._big_endian)
            if captured > _RECORD_MAX:
                self.status = DAMAGED
                return position
            if position + _RECORD_HEADER + captured > end:
                return position
            if columns.count == columns.limit:
                self.status = FULL
                return position
            position += _RECORD_HEADER
            self.frames.add(
                self._link_type, data, position, position + captured, time_ns, 0, columns
            )
            self.records += 1
            position += captured
