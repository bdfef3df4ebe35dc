# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Blocks of sends as pcap records: what a replay would put onto the wire, as bytes of a capture.

`RecordMaker.records` lays out one pcap record a send, in the block's order: the record header with
the time at which it is due, then the frame. Frames are the recorded ones with the headers that
their destination wants (`frame_headers`); those recorded without Ethernet get one in front. Frames
below the Ethernet minimum are padded. Compiled, no I/O; where the bytes go is `writer`'s.
"""

from collections.abc import Sequence
from typing import Any

import cython
import numpy as np
from cython.cimports.feedhandler.replay.captures.records import begin_record
from cython.cimports.feedhandler.replay.playing.frame_headers import HeaderChanges

from feedhandler.replay.captures.frames import LinkType
from feedhandler.replay.playing.blocks import Block

if cython.compiled:
    from cython.cimports.libc.string import memcpy

from feedhandler.replay.captures.records import FRAME_BYTES_MIN, RECORD_HEADER_BYTES, check_times
from feedhandler.replay.playing.frame_headers import LINK_BYTES, Destination

_RECORD_HEADER = cython.declare(cython.Py_ssize_t, RECORD_HEADER_BYTES)
_ETHERNET_BYTES = cython.declare(cython.Py_ssize_t, 14)

Array = np.ndarray[Any, Any]


@cython.cfunc
@cython.inline
def _copy(
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Copy `size` bytes from one buffer into another; both bounds are checked."""
    if size <= 0:
        return 0
    if cython.compiled:
        out[to + size - 1]
        data[start + size - 1]
        memcpy(cython.address(out[to]), cython.address(data[start]), size)
    else:
        out[to : to + size] = data[start : start + size]
    return 0


@cython.cfunc
def _ones_sum(
    data: cython.uchar[::1], start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.uint:
    """Compute the one's complement sum (RFC 1071) of 16-bit numbers, an odd byte padded with 0."""
    total: cython.ulonglong = 0
    index: cython.Py_ssize_t
    for index in range(start, start + size - 1, 2):
        total += (cython.cast(cython.uint, data[index]) << 8) | data[index + 1]
    if size % 2 == 1:
        total += cython.cast(cython.uint, data[start + size - 1]) << 8
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@cython.cfunc
def _fill(
    changes: HeaderChanges,
    out: cython.uchar[::1],
    data: cython.const_uchar[::1],
    rows: cython.const_longlong[:, ::1],
) -> cython.int:
    """Lay out the records of one buffer. Each row: where in `out`, bytes of the record, time in ns,
    destination, frame's offset, payload's offset and length, bytes of the link's header (-1:
    Ethernet)."""
    row: cython.Py_ssize_t
    unwritten: cython.int = 0
    for row in range(len(rows)):
        at: cython.Py_ssize_t = rows[row, 0]
        size: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, rows[row, 1]) - _RECORD_HEADER
        payload: cython.Py_ssize_t = rows[row, 5]
        length: cython.Py_ssize_t = rows[row, 6]
        skip: cython.Py_ssize_t = rows[row, 7]
        begin_record(out, at, rows[row, 2], size)
        start: cython.Py_ssize_t = at + _RECORD_HEADER
        if skip < 0:
            head: cython.Py_ssize_t = payload - cython.cast(cython.Py_ssize_t, rows[row, 4])
            _copy(out, start, data, payload - head, head)
        else:
            head = payload - cython.cast(cython.Py_ssize_t, rows[row, 4]) - skip + _ETHERNET_BYTES
            _copy(
                out, start + _ETHERNET_BYTES, data, payload - head + _ETHERNET_BYTES,
                head - _ETHERNET_BYTES,
            )  # fmt: skip
            changes.cover(cython.cast(cython.Py_ssize_t, rows[row, 3]), out, start, start + head)
        _copy(out, start + head, data, payload, length)
        unwritten += changes.apply(
            cython.cast(cython.Py_ssize_t, rows[row, 3]),
            out,
            start,
            start + head,
            length,
            _ones_sum(out, start + head, length),
            False,
        )
    return unwritten


class RecordMaker:
    """A maker of records for `destinations` (of `frame_headers`); see the module's text."""

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self._changes = HeaderChanges(destinations)

    def records(self, block: Block, base_ns: int) -> Array:
        """Build the records of all sends (u8); the time of what is due at 0 is `base_ns`.

        Raises `UsageError` where the source is no capture, or a pcap file cannot hold the times.
        """
        times = block.due_ns + base_ns
        if len(times):
            check_times(int(times.min()), int(times.max()))
        names = ("frame_offset", "offset", "length", "link_type")
        frame_at, payload_at, length, link = (
            block.gather_batch(name).astype(np.int64) for name in names
        )
        skip = np.full(len(block), -1, np.int64)
        for kind, size in LINK_BYTES.items():
            skip[link == kind] = size
        head = payload_at - frame_at
        head = np.where(link == LinkType.ETHERNET, head, head - skip + 14)
        size = np.maximum(head + length, FRAME_BYTES_MIN) + RECORD_HEADER_BYTES
        at = np.cumsum(size) - size
        out = np.zeros(int(size.sum()), np.uint8)
        rows = np.stack(
            [
                at,
                size,
                times,
                block.destinations.astype(np.int64),
                frame_at,
                payload_at,
                length,
                skip,
            ],
            axis=1,
        )
        for number, buffer in enumerate(block.buffers):
            here = np.ascontiguousarray(rows[block.chunk_of == number])
            if len(here):
                _fill(self._changes, memoryview(out), memoryview(buffer), memoryview(here))
        return out
