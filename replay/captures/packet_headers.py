# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The feed's packet headers of many datagrams at once: read into columns, and changed in place.

What a replay needs of a feed is little: of which service a packet is, which numbers it carries and
when it was sent, to choose by it and to go on counting. `read_headers` fills `PacketHeaders`, one
row a datagram, through the scanner's own `parse_header`; `write_sequences` and `write_send_times`
put other numbers into the same fields of the same bytes. A datagram that is no packet of the feed
is no error: its `verdict` says what is wrong with it, and nothing is ever written into it. Nor is
anything into FIX messages, whose numbers and times are text; a datagram of several runs of them has
one row, with the numbers of all its application messages.

A write also sets the two bytes of the UDP checksum before the payload to 0, which means "not
computed" (RFC 768), where the bytes of a frame stand there: the old one would be wrong.

No I/O, compiled; the interpreted file does the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cython
import numpy as np
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import DATA, FINE
from cython.cimports.feedhandler.codecs.scanner import (
    header_bytes,
    parse_header,
    parse_next,
    write_number,
)

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class PacketHeaders:
    """Columns, a row a datagram: `verdict` u8 (a `Reject`; where it is not FINE the rest is 0),
    `kind` u8 (a `PacketKind`), `compressed` u8 (0 or 1), `service` u32, `sequence`,
    `next_sequence` and `send_time` u64, as `feed_table.PacketHeader` has them."""

    verdict: Array
    kind: Array
    compressed: Array
    service: Array
    sequence: Array
    next_sequence: Array
    send_time: Array

    def __len__(self) -> int:
        return len(self.verdict)

    def select(self, rows: Any) -> "PacketHeaders":
        """Select rows by a mask, an index array or a slice."""
        return PacketHeaders(*(column[rows] for column in vars(self).values()))


def join_headers(pieces: Sequence[PacketHeaders]) -> PacketHeaders:
    """Concatenate the rows of several `PacketHeaders`."""
    columns = zip(*(vars(each).values() for each in pieces), strict=True)
    return PacketHeaders(*(np.concatenate(each) for each in columns))


def empty_headers(count: int) -> PacketHeaders:
    """Allocate `count` rows, all zero."""
    return PacketHeaders(
        verdict=np.zeros(count, np.uint8),
        kind=np.zeros(count, np.uint8),
        compressed=np.zeros(count, np.uint8),
        service=np.zeros(count, np.uint32),
        sequence=np.zeros(count, np.uint64),
        next_sequence=np.zeros(count, np.uint64),
        send_time=np.zeros(count, np.uint64),
    )


def read_headers(table: FeedTable, data: Array, offset: Array, length: Array) -> PacketHeaders:
    """Read the headers of the datagrams `data[offset[i]:offset[i] + length[i]]` (u8; u32, u32).

    Raises `IndexError` where the columns differ in length. A datagram that lies outside `data` is
    TRUNCATED, as one is that has no room for a header.
    """
    if len(offset) != len(length):
        raise IndexError("the columns differ in length")
    out = empty_headers(len(offset))
    _read(
        table,
        memoryview(data),
        memoryview(offset),
        memoryview(length),
        memoryview(out.verdict),
        memoryview(out.kind),
        memoryview(out.compressed),
        memoryview(out.service),
        memoryview(out.sequence),
        memoryview(out.next_sequence),
        memoryview(out.send_time),
    )
    return out


@cython.cfunc
def _read(
    table: FeedTable,
    data: cython.const_uchar[::1],
    offset: cython.const_uint[::1],
    length: cython.const_uint[::1],
    verdict: cython.uchar[::1],
    kind: cython.uchar[::1],
    compressed: cython.uchar[::1],
    service: cython.uint[::1],
    sequence: cython.ulonglong[::1],
    next_sequence: cython.ulonglong[::1],
    send_time: cython.ulonglong[::1],
) -> cython.int:
    header: PacketHeader = PacketHeader()
    index: cython.Py_ssize_t
    for index in range(len(offset)):
        if table.fix:
            verdict[index] = _read_runs(table, data, offset[index], length[index], header)
        else:
            verdict[index] = parse_header(table, data, offset[index], length[index], header)
        if verdict[index] != FINE:
            continue
        kind[index] = header.kind
        if header.count:
            compressed[index] = table.is_compressed(header.flags & 0xFF)
        service[index] = header.service
        sequence[index] = header.sequence
        next_sequence[index] = header.next_sequence
        send_time[index] = header.send_time
    return 0


@cython.cfunc
def _read_runs(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
) -> cython.int:
    """Read one header of a FIX datagram: over its application messages, else its first run's."""
    at: cython.Py_ssize_t = 0
    kind: cython.int = 0
    sequence: cython.ulonglong = 0
    after: cython.ulonglong = 0
    while at == 0 or at < size:
        verdict: cython.int = parse_next(table, data, start + at, size - at, header)
        if verdict != FINE:
            return verdict
        if at == 0 or (header.kind == DATA and kind != DATA):
            kind, sequence, after = header.kind, header.sequence, header.next_sequence
        elif header.kind == DATA:
            sequence = min(sequence, header.sequence)
            after = max(after, header.next_sequence)
        at += header.length
    header.kind = kind
    header.sequence, header.next_sequence = sequence, after
    return FINE


@cython.cfunc
@cython.inline
def _put(
    data: cython.uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    big: cython.bint,
    value: cython.ulonglong,
) -> cython.int:
    """Write the unsigned integer `value` into `size` bytes at `at`; of 0 bytes: nothing."""
    index: cython.int
    for index in range(size):
        data[at + (size - 1 - index if big else index)] = value & 0xFF
        value >>= 8
    return 0


@cython.cfunc
@cython.inline
def _forget_checksum(data: cython.uchar[::1], start: cython.Py_ssize_t) -> cython.int:
    """Set the UDP checksum before a changed payload to 0: not computed."""
    if start >= 2:
        data[start - 2] = 0
        data[start - 1] = 0
    return 0


def having_field(table: FeedTable, data: Array, offset: Array, end: int) -> Array:
    """Return which packets at `offset[i]` (u32) of `data` have `end` bytes of header (bool).

    `end` is where a field of the header ends: all have it but those whose short header leaves it
    out. The caller has seen that each is a packet of the feed.
    """
    found = np.ones(len(offset), np.uint8)
    if 0 < table.short_header < end:
        _find_field(table, memoryview(data), memoryview(offset), memoryview(found), end)
    return found.view(bool)


@cython.cfunc
def _find_field(
    table: FeedTable,
    data: cython.const_uchar[::1],
    offset: cython.const_uint[::1],
    found: cython.uchar[::1],
    end: cython.int,
) -> cython.int:
    index: cython.Py_ssize_t
    for index in range(len(offset)):
        start: cython.Py_ssize_t = offset[index]
        found[index] = header_bytes(table, data, start, len(data) - start) >= end
    return 0


def write_sequences(
    table: FeedTable, data: Array, offset: Array, value: Array, in_frames: bool = True
) -> None:
    """Put the sequence number `value[i]` (u64) into the packet at `offset[i]` (u32) of `data`.

    The caller has seen that each is a packet of the feed, behind its UDP header if `in_frames`, or
    else anything. A number too large for its field, with the bits above it, loses its upper bits.
    """
    _write_sequences(table, memoryview(data), memoryview(offset), memoryview(value), in_frames)


@cython.cfunc
def _write_sequences(
    table: FeedTable,
    data: cython.uchar[::1],
    offset: cython.const_uint[::1],
    value: cython.const_ulonglong[::1],
    in_frames: cython.bint,
) -> cython.int:
    by_packet: cython.bint = table.high_size > 0 or table.short_header > 0
    index: cython.Py_ssize_t
    for index in range(len(offset)):
        start: cython.Py_ssize_t = offset[index]
        if by_packet:
            write_number(table, data, start, value[index])
        else:
            _put(
                data, start + table.sequence_at, table.sequence_size, table.big_endian, value[index]
            )
        if in_frames:
            _forget_checksum(data, start)
    return 0


def write_send_times(table: FeedTable, data: Array, offset: Array, value: Array) -> None:
    """Put the raw send time `value[i]` (u64) into the packet at `offset[i]`; else as
    `write_sequences`. Where the feed has two fields, the value is seconds * 10**9 + nanoseconds.
    A packet whose short header has no send time stays as it is."""
    _write_send_times(table, memoryview(data), memoryview(offset), memoryview(value))


@cython.cfunc
def _write_send_times(
    table: FeedTable,
    data: cython.uchar[::1],
    offset: cython.const_uint[::1],
    value: cython.const_ulonglong[::1],
) -> cython.int:
    index: cython.Py_ssize_t
    big: cython.bint = table.big_endian
    end: cython.int = max(
        table.time_at + table.time_size, table.time_ns_at + (4 if table.time_ns_at >= 0 else 0)
    )
    for index in range(len(offset)):
        start: cython.Py_ssize_t = offset[index]
        whole: cython.ulonglong = value[index]
        if table.short_header and header_bytes(table, data, start, len(data) - start) < end:
            continue
        if table.time_ns_at >= 0:
            _put(data, start + table.time_ns_at, 4, big, whole % 1_000_000_000)
            whole = whole // 1_000_000_000
        _put(data, start + table.time_at, table.time_size, big, whole)
        _forget_checksum(data, start)
    return 0
