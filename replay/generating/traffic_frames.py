# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""From payloads and columns to the records of a capture file, compiled.

Each record is a pcap record header (nanoseconds, little-endian), an Ethernet, an IPv4 and a UDP
header as `records.frame_headers` makes them, and the payload, padded to Ethernet's minimum.
"""

from collections.abc import Sequence

import cython
from cython.cimports.feedhandler.replay.captures.records import begin_record, fit_headers
from cython.cimports.feedhandler.replay.generating.wirebytes import copy

from feedhandler.replay.captures.records import FRAME_BYTES_MIN, HEADERS_BYTES, frame_headers


@cython.cclass
class RecordWriter:
    """Writes records to the groups and ports of `destinations`, which columns name by number."""

    headers: cython.uchar[::1]

    def __init__(self, destinations: Sequence[tuple[str, int]]) -> None:
        blank = [frame_headers(g, p, "10.0.0.1", 10_000, 0) for g, p in destinations]
        self.headers = memoryview(bytearray(b"".join(blank)))

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
        for row in range(len(time_ns)):
            size: cython.Py_ssize_t = length[row]
            frame: cython.Py_ssize_t = HEADERS_SIZE + size
            if frame < FRAME_SIZE_MIN:
                frame = FRAME_SIZE_MIN
            begin_record(out, at, time_ns[row], frame)
            at += 16
            index: cython.Py_ssize_t = destination[row]
            copy(out, at, self.headers, index * HEADERS_SIZE, HEADERS_SIZE)
            fit_headers(out, at, size)
            copy(out, at + HEADERS_SIZE, data, offset[row], size)
            for index in range(at + HEADERS_SIZE + size, at + frame):
                out[index] = 0
            at += frame
        return at


HEADERS_SIZE = cython.declare(cython.Py_ssize_t, HEADERS_BYTES)
FRAME_SIZE_MIN = cython.declare(cython.Py_ssize_t, FRAME_BYTES_MIN)
