# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""From payloads and columns to the records of a capture file, compiled.

Each record is a pcap record header (nanoseconds, little-endian), an Ethernet, an IPv4 and a UDP
header as `writer.frame_headers` makes them, and the payload, padded to Ethernet's minimum.
"""

from collections.abc import Sequence

import cython
import numpy
from cython.cimports.feedhandler.replay.generating.wirebytes import copy, put2

from feedhandler.replay.captures.writer import frame_headers

#: Record header; Ethernet, IPv4 and UDP headers; the shortest frame.
RECORD_HEADER, HEADERS, FRAME_MIN = 16, 42, 60
#: Places in the headers: IPv4's length and checksum, UDP's length.
_IP_LENGTH, _IP_SUM, _UDP_LENGTH = (
    cython.declare(cython.Py_ssize_t, 16),
    cython.declare(cython.Py_ssize_t, 24),
    cython.declare(cython.Py_ssize_t, 38),
)


@cython.cclass
class RecordWriter:
    """Writes records to the groups and ports of `destinations`, which columns name by number."""

    headers: cython.uchar[::1]
    sums: cython.uint[::1]

    def __init__(
        self, destinations: Sequence[tuple[str, int]], source: str = "10.0.0.1",
        source_port: int = 10_000,
    ) -> None:  # fmt: skip
        blank = [frame_headers(g, p, source, source_port, 0) for g, p in destinations]
        self.headers = memoryview(bytearray(b"".join(blank)))
        self.sums = memoryview(
            numpy.array([_sum_without_length(each) for each in blank], numpy.uintc)
        )

    def write(
        self,
        data: cython.uchar[::1],
        time_ns: cython.longlong[::1],
        destination: cython.uchar[::1],
        offset: cython.uint[::1],
        length: cython.ushort[::1],
        out: cython.uchar[::1],
    ) -> cython.Py_ssize_t:
        """Write the records of all rows, in order, to `out`; return their length in bytes.

        Raises `IndexError` where `out` has no room or a row points outside its data."""
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t = 0
        frame: cython.Py_ssize_t
        size: cython.Py_ssize_t
        place: cython.Py_ssize_t
        total: cython.uint
        for row in range(len(time_ns)):
            size = length[row]
            frame = HEADERS_SIZE + size
            if frame < FRAME_SIZE_MIN:
                frame = FRAME_SIZE_MIN
            _little(out, at, time_ns[row] // 1_000_000_000)
            _little(out, at + 4, time_ns[row] % 1_000_000_000)
            _little(out, at + 8, frame)
            _little(out, at + 12, frame)
            at += 16
            place = destination[row]
            copy(out, at, self.headers, place * HEADERS_SIZE, HEADERS_SIZE)
            put2(out, at + _IP_LENGTH, 28 + size)
            put2(out, at + _UDP_LENGTH, 8 + size)
            total = self.sums[place] + cython.cast(cython.uint, 28 + size)
            total = (total & 0xFFFF) + (total >> 16)
            total = (total & 0xFFFF) + (total >> 16)
            put2(out, at + _IP_SUM, 0xFFFF - total)
            copy(out, at + HEADERS_SIZE, data, offset[row], size)
            for place in range(at + HEADERS_SIZE + size, at + frame):
                out[place] = 0
            at += frame
        return at


HEADERS_SIZE = cython.declare(cython.Py_ssize_t, HEADERS)
FRAME_SIZE_MIN = cython.declare(cython.Py_ssize_t, FRAME_MIN)


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _little(out: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.int:
    """Write 32 bits, low byte first."""
    out[at] = value & 0xFF
    out[at + 1] = value >> 8 & 0xFF
    out[at + 2] = value >> 16 & 0xFF
    out[at + 3] = value >> 24 & 0xFF
    return 0


def _sum_without_length(headers: bytes) -> int:
    """Sum the words of the IPv4 header, without its length and checksum."""
    words = numpy.frombuffer(headers[14:34], ">u2")
    return int(words.sum(dtype=numpy.int64)) - int(words[1]) - int(words[5])
