# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The scanner: from a packet's bytes to its header fields and the offsets of its messages.

One scanner walks the packets of every feed. What differs between feeds (offsets of fields, byte
order, what a length includes, what a sequence number counts, where a message keeps its symbol)
stands in a `FeedTable`, which `feedhandler.codecs.loader` builds from a feed description.

Promises: never reads outside `data[start:start + size]`; answers every packet with exactly one
`Reject` (0, `FINE`, where nothing is wrong) and never raises for what a peer sent; allocates
nothing per packet. The compiled module and this very file, interpreted, agree on every input.
Message *contents* are not examined, except type and symbol: unknown types pass, and so do messages
shorter than their layout and packets with an unknown delivery flag. They are counted.

Reject reasons (the values of `feedhandler.codecs.kinds.Reject`):

FINE                 nothing wrong
TRUNCATED            fewer bytes than the packet header (or than a reset's next number) needs
LENGTH_MISMATCH      the header's length field disagrees with the size of the datagram
COUNT_MISMATCH       the packet ends before or after the number of messages its header names
MESSAGE_SHORT        a message's size is too small for the message header itself
MESSAGE_OVERRUN      a message reaches past the packet's end
UNKNOWN_PACKET_TYPE  the kind field has a value that the description does not know
WRONG_CONSTANT       a field that must be constant (version, protocol) has another value
CONTROL_SHORT        a control packet's body is shorter than its layout
COMPRESSED           the body is compressed: inflate it before looking for messages
INDEX_FULL           more messages than the index has room for; the caller's doing, not the peer's
CHECKSUM             FIX: a message's CheckSum is not the sum of its bytes
MALFORMED            FIX: a field of a message's envelope or header is wrong or missing

A feed that is framed by FIX has no packet header. In place of a packet it has a *run*
(`feedhandler.codecs.fix_runs`): application messages with consecutive numbers, or one
administrative message. A datagram may hold several; `parse_next` reads the first in one go,
`parse_first` and `parse_further` of `feedhandler.codecs.fix_scanning` in two.
"""

import cython
from cython.cimports.feedhandler.codecs.fix_runs import symbol_value
from cython.cimports.feedhandler.codecs.fix_scanning import (
    check_run,
    fill_run,
    message_size_at,
    parse_run,
    scan_runs,
)
from cython.cimports.feedhandler.codecs.kinds import (
    COMPRESSED,
    CONTROL,
    CONTROL_SHORT,
    COUNT_MISMATCH,
    DATA,
    FINE,
    HEARTBEAT,
    INDEX_FULL,
    LENGTH_MISMATCH,
    MESSAGE_OVERRUN,
    MESSAGE_SHORT,
    RESET,
    TRUNCATED,
    UNKNOWN_KIND,
    UNKNOWN_PACKET_TYPE,
    UNSEQUENCED,
    WRONG_CONSTANT,
)
from cython.cimports.feedhandler.codecs.layout_sizes import layout_size

from feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader

if cython.compiled:
    from cython.cimports.feedhandler.codecs.first_bytes import first_bytes

#: Number of reject reasons, `FINE` included: the length of an array of counters by reason.
REJECT_COUNT = 13


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u16(data: cython.const_uchar[::1], at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    if big:
        return (cython.cast(cython.uint, data[at]) << 8) | data[at + 1]
    return (cython.cast(cython.uint, data[at + 1]) << 8) | data[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u32(data: cython.const_uchar[::1], at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    if big:
        return (
            (cython.cast(cython.uint, data[at]) << 24)
            | (cython.cast(cython.uint, data[at + 1]) << 16)
            | (cython.cast(cython.uint, data[at + 2]) << 8)
            | data[at + 3]
        )
    return (
        (cython.cast(cython.uint, data[at + 3]) << 24)
        | (cython.cast(cython.uint, data[at + 2]) << 16)
        | (cython.cast(cython.uint, data[at + 1]) << 8)
        | data[at]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _read(
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    big: cython.bint,
) -> cython.ulonglong:
    """Return the unsigned integer of `size` bytes (0..8) at `at`; of 0 bytes: 0."""
    if size == 2:
        return _u16(data, at, big)
    if size == 4:
        return _u32(data, at, big)
    if size == 1:
        return data[at]
    if size == 0:
        return 0
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | data[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field(
    first: cython.p_const_uchar,
    at: cython.int,
    size: cython.int,
    big: cython.bint,
    eight: cython.bint,
) -> cython.ulonglong:
    """Return `_read` of a packet that begins at `first`; `eight`: bytes for one load are there."""
    if eight:
        return first_bytes(first + at, size, big)
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | first[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _write(
    data: cython.uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    big: cython.bint,
    value: cython.ulonglong,
) -> cython.int:
    index: cython.int
    for index in range(size):
        data[at + (size - 1 - index if big else index)] = value & 0xFF
        value >>= 8
    return 0


@cython.ccall
@cython.nogil
def frame_length(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the whole length of the packet that begins at `start`, from its length field.

    0 while `size` is too small to hold that field. For cutting a TCP stream into packets. FIX: of
    the first message, which can stand alone; 0 while it is not whole. Without a length field: to
    the end of as many messages as the header counts; without a count as well, all of `size`.
    """
    if table.fix:
        return message_size_at(data, start, start + size)
    if table.length_size == 0:
        return _walked_length(table, data, start, size)
    if size < table.length_at + table.length_size or start < 0 or start + size > len(data):
        return 0
    big: cython.bint = table.big_endian
    return (
        cython.cast(cython.int, _read(data, start + table.length_at, table.length_size, big))
        + table.length_add
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _walked_length(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the length of a packet that has no field for it; 0 where its messages end beyond."""
    at: cython.Py_ssize_t = start + table.header_size
    end: cython.Py_ssize_t = start + size
    if table.alone:
        return size
    if start < 0 or end > len(data):
        return 0
    if table.short_header and size >= table.short_header:
        kind: cython.ushort = (
            _read(data, start + table.kind_at, table.kind_size, table.big_endian) & table.kind_mask
        )
        if table.shorts[kind]:
            if table.kinds[kind] != DATA:
                return table.short_header
            at = start + table.short_header
    if size < at - start:
        return 0
    count: cython.int = _read(data, start + table.count_at, table.count_size, table.big_endian)
    if count == table.end_of_session:
        count = 0
    for _ in range(count):
        if end - at < table.message_header_size:
            return 0
        length: cython.Py_ssize_t = _read(
            data, at + table.message_length_at, table.message_length_size, table.big_endian
        )
        length += table.message_length_add
        if length < table.message_header_size or length > end - at:
            return 0
        at += padded(table, length, end - at)
    return at - start


@cython.boundscheck(False)  # the first line checks the packet against the bounds
@cython.ccall
@cython.nogil
def parse_header(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the header of the packet `data[start:start + size]` into `out`; return a `Reject`.

    `out` is complete only where the answer is FINE. The messages are not examined: `check_messages`
    or `scan_messages` does that.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    return parse_header_at(table, first, len(data) - start, size, out)


@cython.boundscheck(False)  # the first line checks the datagram against the bounds
@cython.ccall
@cython.nogil
def parse_next(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the first packet header in the datagram `data[start:start + size]`; return a `Reject`.

    The next packet, where `out.length` is less than `size`, begins behind it. Only FIX, and feeds
    whose table says `several`, have more than one in a datagram.
    """
    if not table.fix and not table.several:
        return parse_header(table, data, start, size, out)
    if start < 0 or size < 1 or start + size > len(data):
        return TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    if not table.fix:
        return _parse_varied(table, first, len(data) - start, size, out, False)
    return parse_run(table, first, len(data) - start, size, out, False)


@cython.cfunc
@cython.nogil
def parse_header_at(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read a packet header for compiled callers that know its address; return a `Reject`.

    Of the `room` bytes from `first` on, the packet is the first `size`. See `parse_header`.
    """
    big: cython.bint = table.big_endian
    index: cython.int
    if table.fix:
        return parse_run(table, first, room, size, out, True)
    if table.varied:
        return _parse_varied(table, first, room, size, out, True)
    # The loader has checked that all fields lie in the header.
    eight: cython.bint = cython.compiled and table.header_size + 8 <= room
    if size < table.header_size or size > room:
        return TRUNCATED
    out.length = (
        cython.cast(cython.uint, _field(first, table.length_at, table.length_size, big, eight))
        + table.length_add
    )
    if out.length != size:
        return LENGTH_MISMATCH
    for index in range(table.constant_count):
        if (
            _field(first, table.constant_at[index], table.constant_size[index], big, eight)
            != table.constant_value[index]
        ):
            return WRONG_CONSTANT
    out.body = table.header_size
    out.sequence = _field(first, table.sequence_at, table.sequence_size, big, eight)
    out.session = _field(first, table.session_at, table.session_size, big, eight)
    out.service = cython.cast(
        cython.uint, _field(first, table.service_at, table.service_size, big, eight)
    )
    out.flags = cython.cast(cython.int, _field(first, table.flags_at, table.flags_size, big, eight))
    out.count = cython.cast(cython.int, _field(first, table.count_at, table.count_size, big, eight))
    out.packet_type = cython.cast(
        cython.int, _field(first, table.type_at, table.type_size, big, eight)
    )
    out.send_time = _field(first, table.time_at, table.time_size, big, eight)
    if table.time_ns_at >= 0:
        out.send_time = out.send_time * 1_000_000_000 + _field(
            first, table.time_ns_at, 4, big, eight
        )
    return _classify(table, first, out)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _within(
    first: cython.p_const_uchar,
    at: cython.int,
    size: cython.int,
    body: cython.int,
    big: cython.bint,
    eight: cython.bint,
) -> cython.ulonglong:
    """Return the header's field at `at`; 0 where a header of `body` bytes lacks it."""
    if at + size > body:
        return 0
    return _field(first, at, size, big, eight)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _session(
    first: cython.p_const_uchar, at: cython.int, size: cython.int, big: cython.bint
) -> cython.ulonglong:
    """Return a session as a number: the last eight bytes, mixed with any before them."""
    value: cython.ulonglong = 0
    index: cython.int
    if size <= 8:
        return _field(first, at, size, big, False)
    for index in range(size - 8):
        value = value * 0x0100_0193 + first[at + index]
    value = (value << 56) ^ (value >> 8) ^ _field(first, at + size - 8, 8, True, False)
    if not cython.compiled:
        value &= 0xFFFF_FFFF_FFFF_FFFF
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _set_number(
    table: FeedTable, first: cython.p_const_uchar, out: PacketHeader, eight: cython.bint
) -> cython.void:
    """Set the number and the session of a packet whose header has `out.body` bytes."""
    big: cython.bint = table.big_endian
    body: cython.int = out.body
    out.sequence = _within(first, table.sequence_at, table.sequence_size, body, big, eight)
    if table.high_size:
        out.sequence |= (
            (_within(first, table.high_at, table.high_size, body, big, eight) >> table.high_shift)
            & table.high_mask
        ) << (8 * table.sequence_size)
    out.session = 0
    if table.session_at + table.session_size <= body:
        out.session = _session(first, table.session_at, table.session_size, big)
    if table.session_mask:
        out.session = (out.session >> table.session_shift) & table.session_mask


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _parse_varied(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
    alone: cython.bint,
) -> cython.int:
    """Read a header that lacks usual fields or has them elsewhere; see `parse_header_at`.

    `alone`: the packet must be all of the `size` bytes.
    """
    big: cython.bint = table.big_endian
    body: cython.int = table.header_size
    eight: cython.bint = cython.compiled and table.header_size + 8 <= room
    index: cython.int
    if size > room:
        return TRUNCATED
    out.packet_type = 0
    if table.type_size:
        if size < table.type_at + table.type_size:
            return TRUNCATED
        out.packet_type = cython.cast(
            cython.int, _field(first, table.type_at, table.type_size, big, eight) & table.kind_mask
        )
    if table.kind_size:
        out.kind = table.kinds[cython.cast(cython.ushort, out.packet_type)]
        if out.kind == UNKNOWN_KIND:
            return UNKNOWN_PACKET_TYPE
        if table.shorts[cython.cast(cython.ushort, out.packet_type)]:
            body = table.short_header
    if size < body:
        return TRUNCATED
    out.length = cython.cast(cython.uint, size)
    if table.length_size:
        out.length = cython.cast(
            cython.uint, _field(first, table.length_at, table.length_size, big, eight)
        ) + cython.cast(cython.uint, table.length_add)
        if not cython.compiled:
            out.length &= 0xFFFF_FFFF
        if out.length > size or out.length < body or (alone and out.length != size):
            return LENGTH_MISMATCH
    for index in range(table.constant_count):
        if (
            _within(first, table.constant_at[index], table.constant_size[index], body, big, eight)
            != table.constant_value[index]
        ):
            return WRONG_CONSTANT
    out.body = body
    _set_number(table, first, out, eight)
    out.service = cython.cast(
        cython.uint, _within(first, table.service_at, table.service_size, body, big, eight)
    )
    out.flags = cython.cast(
        cython.int, _within(first, table.flags_at, table.flags_size, body, big, eight)
    )
    out.send_time = _within(first, table.time_at, table.time_size, body, big, eight)
    if table.time_ns_at >= 0:
        out.send_time = out.send_time * 1_000_000_000 + _within(
            first, table.time_ns_at, 4, body, big, eight
        )
    verdict: cython.int = _parse_count(table, first, out)
    if verdict == FINE:
        verdict = _classify(table, first, out)
    if verdict == FINE and table.reset_message >= 0:
        verdict = _find_reset(table, first, out)
    return verdict


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _find_reset(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Make a data packet whose first message says so a reset; return a `Reject`."""
    at: cython.int = out.body
    end: cython.int = out.length
    if out.kind != DATA or out.count == 0 or table.compressed[out.flags & 0xFF]:
        return FINE
    if at + table.message_header_size > end:
        return MESSAGE_OVERRUN
    if _type_at(table, first, at) != table.reset_message:
        return FINE
    out.kind = RESET
    if table.reset_size:
        size: cython.Py_ssize_t = _size_at(table, first, at, end - at)
        if at + size < end:
            end = at + cython.cast(cython.int, size)
        at += table.reset_at
        if at + table.reset_size > end:
            return TRUNCATED
        out.next_sequence = _field(first, at, table.reset_size, table.big_endian, False)
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _type_at(table: FeedTable, first: cython.p_const_uchar, at: cython.int) -> cython.int:
    """Return the type of the message that begins `at` bytes behind `first`."""
    kind: cython.int = _field(
        first, at + table.message_type_at, table.message_type_size, table.big_endian, False
    )
    if table.type_second_size:
        kind = (kind << 8) | first[at + table.type_second_at]
    return kind


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _parse_count(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Set `out.count`, and the number of a packet that has that of its first message."""
    big: cython.bint = table.big_endian
    body: cython.int = out.body
    out.count = cython.cast(
        cython.int, _within(first, table.count_at, table.count_size, body, big, False)
    )
    if table.count_size and out.count == table.end_of_session:
        out.count = 0
    elif table.count_size == 0 and (not table.kind_size or out.kind == DATA or out.kind == RESET):
        verdict: cython.int = _count_messages(table, first, out)
        if verdict != FINE:
            return verdict
    if table.number_size and table.sequence_size == 0 and out.count:
        offset: cython.int = body + table.number_at
        if offset + table.number_size > cython.cast(cython.int, out.length):
            return MESSAGE_OVERRUN
        out.sequence = _field(first, offset, table.number_size, big, False)
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _count_messages(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Set `out.count` to the messages between header and end; return a `Reject`."""
    at: cython.Py_ssize_t = out.body
    end: cython.Py_ssize_t = out.length
    out.count = 0
    while end - at > table.trailing_max:
        if end - at < table.message_header_size:
            return MESSAGE_OVERRUN
        size: cython.Py_ssize_t = _size_at(table, first, at, end - at)
        if size < table.message_header_size or size == 0:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        at += padded(table, size, end - at)
        out.count += 1
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _size_at(
    table: FeedTable,
    first: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of the message that begins `at` bytes behind `first`, its header among `room`
    bytes: as it says, by its layout, or all of them."""
    if table.message_length_size:
        return table.message_length_add + cython.cast(
            cython.Py_ssize_t,
            _field(
                first,
                cython.cast(cython.int, at + table.message_length_at),
                table.message_length_size,
                table.big_endian,
                False,
            ),
        )
    if table.sized:
        return _layout_size(table, first + at if cython.compiled else first[at:], room)
    return room


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def padded(table: FeedTable, size: cython.Py_ssize_t, room: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the size of a message with its padding, as far as there is `room` for it."""
    over: cython.Py_ssize_t = size % table.message_align
    if over:
        size += table.message_align - over
    return size if size < room else room


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _layout_size(
    table: FeedTable, first: cython.p_const_uchar, room: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message that begins at `first`, its header among `room` bytes."""
    return layout_size(table.sizes, first, table.slots[_type_at(table, first, 0)], room)


@cython.ccall
@cython.nogil
def message_size_by_type(
    table: FeedTable, data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message at `at` by the layout of its type; above what is left where
    it does not end by `end`. Its header must be there."""
    first = cython.address(data[at]) if cython.compiled else memoryview(data)[at:]
    return _layout_size(table, first, end - at)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _other_size(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of the message at `at`, where it is no u16; without one it goes to `end`,
    unless the layout of its type says otherwise."""
    if table.sized:
        return message_size_by_type(table, data, at, end)
    if table.message_length_size == 0:
        return end - at
    return table.message_length_add + cython.cast(
        cython.Py_ssize_t,
        _read(data, at + table.message_length_at, table.message_length_size, table.big_endian),
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _odd_type(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    message_type: cython.ushort,
) -> cython.int:
    """Return the type of the message at `at`, whose first part is `message_type`."""
    if table.type_second_size == 0:
        return message_type
    return ((message_type << 8) & 0xFFFF) | data[at + table.type_second_at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _classify(
    table: FeedTable,
    first: cython.p_const_uchar,
    out: PacketHeader,
) -> cython.int:
    """Set `out.kind` and `out.next_sequence`; return a `Reject`."""
    big: cython.bint = table.big_endian
    out.kind = DATA
    if table.kind_size:
        # The kind is in the same field as the type.
        out.kind = table.kinds[cython.cast(cython.ushort, out.packet_type)]
        if out.kind == UNKNOWN_KIND:
            return UNKNOWN_PACKET_TYPE
    if out.count == 0 and table.heartbeat_when_empty and out.kind == DATA:
        out.kind = HEARTBEAT
    if out.sequence == table.unsequenced and table.sets_aside and out.kind <= HEARTBEAT:
        # A heartbeat stays one, but its number says nothing about the sequence.
        if out.kind == DATA:
            out.kind = UNSEQUENCED
        out.next_sequence = 0
    elif out.kind == HEARTBEAT:
        out.next_sequence = 0
        if table.heartbeat_adds >= 0:
            out.next_sequence = out.sequence + table.heartbeat_adds
    elif out.kind == CONTROL:
        out.next_sequence = 0
    elif out.kind == RESET and table.reset_size:
        if out.length < cython.cast(cython.uint, table.reset_at + table.reset_size):
            return TRUNCATED
        out.next_sequence = _field(first, table.reset_at, table.reset_size, big, False)
    elif table.counts_messages:
        out.next_sequence = out.sequence + out.count
    else:
        out.next_sequence = out.sequence + 1
    if not cython.compiled:
        out.next_sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _check_body(table: FeedTable, header: PacketHeader) -> cython.int:
    """Return the `Reject` of a body that needs no walk of its messages; -2: walk it."""
    if header.kind == CONTROL or (
        header.kind == RESET and table.reset_size and table.reset_message < 0
    ):
        if header.length - header.body < table.control_sizes[header.packet_type & 0xFFFF]:
            return CONTROL_SHORT
        return FINE
    if header.count and table.compressed[header.flags & 0xFF]:
        return COMPRESSED
    return -2


@cython.ccall
@cython.nogil
def check_messages(
    table: FeedTable, data: cython.const_uchar[::1], start: cython.Py_ssize_t, header: PacketHeader
) -> cython.int:
    """Walk the messages of a packet whose header `parse_header` found FINE; return a `Reject`.

    FINE means: exactly `header.count` messages, ending exactly at the packet's end. Control
    packets, and resets that carry their number in the body, hold no messages: there the body must
    be at least as long as its layout. Counts into `header.unknown` and `header.short`.
    """
    header.unknown = header.short = 0
    if table.fix:
        return check_run(table, data, start, header)
    verdict: cython.int = _check_body(table, header)
    if verdict != -2:
        return verdict
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = start + header.body
    end: cython.Py_ssize_t = start + header.length
    least: cython.Py_ssize_t = table.message_header_size
    unknown: cython.int = 0
    short: cython.int = 0
    message_type: cython.ushort = header.packet_type & 0xFFFF
    length_at: cython.int = table.message_length_at
    length_size: cython.int = table.message_length_size
    length_add: cython.int = table.message_length_add
    type_at: cython.int = table.message_type_at
    type_size: cython.int = table.message_type_size
    if start < 0 or end > len(data):
        return TRUNCATED
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        # Most feeds have u16 sizes and types: those are read in place.
        if length_size == 2:
            size: cython.Py_ssize_t = _u16(data, at + length_at, big)
            size += length_add
        else:
            size = _other_size(table, data, at, end)
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        if type_size == 2:
            message_type = _u16(data, at + type_at, big)
        elif type_size:
            message_type = data[at + type_at]
        if table.odd_messages:
            message_type = _odd_type(table, data, at, message_type)
            size = padded(table, size, end - at)
        slot: cython.int = table.slots[message_type]
        short += size < table.least_size[slot]
        unknown += slot == 0
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    header.unknown = unknown
    header.short = short
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2, check=True)  # -1 is NO_SYMBOL, an answer that must cost nothing
def _symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    slot: cython.int,
    header: PacketHeader,
) -> cython.ulonglong:
    """Return the symbol of the message of `size` bytes at `at`."""
    symbol_size: cython.int = table.symbol_size[slot]
    index: cython.Py_ssize_t = at + table.symbol_at[slot]
    if symbol_size == 0:
        if table.group[slot][8]:
            return _group_symbol(table, data, at, size, message_type, header)
        return table.no_symbol
    if size < table.symbol_at[slot] + symbol_size:
        return table.no_symbol
    if symbol_size == 4 and table.symbol_big[slot] == 1:
        # In place: most symbols are this, and the call would cost as much as the rest.
        return (
            (cython.cast(cython.uint, data[index]) << 24)
            | (cython.cast(cython.uint, data[index + 1]) << 16)
            | (cython.cast(cython.uint, data[index + 2]) << 8)
            | data[index + 3]
        )
    return symbol_at(table, data, index, symbol_size, table.symbol_big[slot])


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def symbol_at(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    order: cython.int,
) -> cython.ulonglong:
    """Return the symbol whose `size` bytes begin at `at`.

    `order`: of an integer 0 for little-endian, 1 for big-endian; 2: text, which counts as padded to
    eight bytes, or where it is longer becomes a number as FIX makes one.
    """
    length: cython.int = size
    if order == 2 and table.strips_symbols:
        while length > 0 and (data[at + length - 1] | 32) == 32:
            length -= 1
        if length == 0:
            return table.symbol_pad
    while size > 8 and length > 8 and (data[at + length - 1] | 32) == 32:  # a blank or NUL
        length -= 1
    if length <= 8:
        value: cython.ulonglong = _read(data, at, length, order != 0)
        if order == 2 and 0 < length < 8:
            value = (value << (64 - 8 * length)) | (table.symbol_pad >> (8 * length))
        return value
    first = cython.address(data[at]) if cython.compiled else memoryview(data)[at:]
    return symbol_value(first, 0, length)


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def element_symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    message_type: cython.ushort,
    otherwise: cython.ulonglong,
) -> cython.ulonglong:
    """Return the symbol of the element at `at`; `otherwise` where elements have none."""
    slot: cython.int = table.slots[message_type]
    if table.group[slot][8] == 0:
        return otherwise
    return symbol_at(
        table, data, at + table.group[slot][7], table.group[slot][8], table.symbol_big[slot]
    )


@cython.ccall
@cython.nogil
def fixed_size(
    table: FeedTable, data: cython.const_uchar[::1], at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of header and fixed part of the message at `at`, as it says itself."""
    return table.message_header_size + cython.cast(
        cython.Py_ssize_t, _read(data, at + table.block_at, table.block_size, table.big_endian)
    )


@cython.ccall
@cython.nogil
def open_group(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    header: PacketHeader,
) -> cython.int:
    """Find the elements of the message of `size` bytes at `at` that have symbols.

    Sets `header.element_at`, of the first, and `element_size`; returns how many are whole. Where
    the message says that they have no bytes, all that it counts are.
    """
    slot: cython.int = table.slots[message_type]
    big: cython.bint = table.big_endian
    end: cython.Py_ssize_t = at + size
    offset: cython.Py_ssize_t = at + table.group[slot][0]
    count: cython.Py_ssize_t = 0
    if end > len(data):
        return 0
    header.element_size = table.group[slot][6]
    if table.block_size:
        if size < table.message_header_size:
            return 0
        offset = at + fixed_size(table, data, at)
    if offset + table.group[slot][1] > end:
        return 0
    if table.group[slot][5]:
        header.element_size = _read(data, offset + table.group[slot][4], table.group[slot][5], big)
    if header.element_size < table.group[slot][7] + table.group[slot][8]:
        return 0
    header.element_at = offset + table.group[slot][1]
    if table.group[slot][3]:
        count = _read(data, offset + table.group[slot][2], table.group[slot][3], big)
    if header.element_size > 0:  # else the wire says that they have no bytes
        fit: cython.Py_ssize_t = (end - header.element_at) // header.element_size
        count = min(count, fit) if table.group[slot][3] else fit
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def _group_symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    header: PacketHeader,
) -> cython.ulonglong:
    """Return the symbol of a message whose elements name it; SEVERAL_SYMBOLS where they differ."""
    count: cython.int = open_group(table, data, at, size, message_type, header)
    slot: cython.int = table.slots[message_type]
    offset: cython.Py_ssize_t = header.element_at + table.group[slot][7]
    if count == 0:
        return table.no_symbol
    symbol: cython.ulonglong = symbol_at(
        table, data, offset, table.group[slot][8], table.symbol_big[slot]
    )
    for _ in range(count - 1):
        offset += header.element_size
        if symbol_at(table, data, offset, table.group[slot][8], table.symbol_big[slot]) != symbol:
            return table.several_symbols
    return symbol


@cython.ccall
@cython.exceptval(6148914691236517205, check=True)
def symbol_of(
    table: FeedTable, message: cython.const_uchar[::1], message_type: cython.ushort
) -> cython.ulonglong:
    """Return the symbol of one whole message, as `MessageIndex.symbols` has it."""
    slot: cython.int = table.slots[message_type]
    return _symbol(table, message, 0, len(message), message_type, slot, PacketHeader())


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _close_packet(header: PacketHeader, out: MessageIndex, entry: cython.Py_ssize_t) -> cython.int:
    """Make the packet's messages, up to `entry`, part of `out`, and the packet where it has any."""
    if header.count:
        out.firsts[out.packets] = cython.cast(cython.uint, out.count)
        out.services[out.packets] = header.service
        out.send_times[out.packets] = header.send_time
        out.packets += 1
    out.count = entry
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _two(first: cython.p_const_uchar, at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    """Return the unsigned integer of two bytes at `at`, which the caller has checked."""
    if big:
        return (cython.cast(cython.uint, first[at]) << 8) | first[at + 1]
    return (cython.cast(cython.uint, first[at + 1]) << 8) | first[at]


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)  # `_fill` has checked: the packet is in `data`, its entries in `out`
@cython.exceptval(-1, check=True)
def _fill_usual(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """`_fill` of messages like those of XDP and ITCH, in half the time.

    Their size has two bytes, and their type stands as it is.
    """
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = header.body
    end: cython.Py_ssize_t = header.length
    least: cython.Py_ssize_t = table.message_header_size
    size_at: cython.int = table.message_length_at
    size_add: cython.int = table.message_length_add
    type_at: cython.int = table.message_type_at
    wide_type: cython.bint = table.message_type_size == 2
    entry: cython.Py_ssize_t = out.count
    unknown: cython.Py_ssize_t = 0
    short: cython.Py_ssize_t = 0
    sequence: cython.ulonglong = header.sequence
    step: cython.ulonglong = 1 if table.counts_messages and header.kind != UNSEQUENCED else 0
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        size: cython.Py_ssize_t = _two(first, at + size_at, big)
        size += size_add
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        message_type: cython.ushort = first[at + type_at]
        if wide_type:
            message_type = _two(first, at + type_at, big)
        slot: cython.int = table.slots[message_type]
        offset: cython.Py_ssize_t = at + table.symbol_at[slot]
        if table.symbol_size[slot] == 4 and table.symbol_big[slot] == 1 and offset + 4 <= at + size:
            # In place: most symbols are this, and the call would cost as much as the rest.
            out.symbols[entry] = (_two(first, offset, True) << 16) | _two(first, offset + 2, True)
        elif (
            table.symbol_size[slot] == 2 and table.symbol_big[slot] < 2 and offset + 2 <= at + size
        ):
            out.symbols[entry] = _two(first, offset, table.symbol_big[slot] != 0)
        else:
            out.symbols[entry] = _symbol(table, data, start + at, size, message_type, slot, header)
        out.types[entry] = message_type
        out.offsets[entry] = cython.cast(cython.uint, start + at - base)
        out.sizes[entry] = cython.cast(cython.uint, size)
        out.sequences[entry] = sequence
        short += size < table.least_size[slot]
        unknown += slot == 0
        sequence += step
        if not cython.compiled:
            sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        entry += 1
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    out.unknown += unknown
    out.short += short
    return _close_packet(header, out, entry)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _fill_other(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """`_fill` of messages of any description."""
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = start + header.body
    end: cython.Py_ssize_t = start + header.length
    least: cython.Py_ssize_t = table.message_header_size
    entry: cython.Py_ssize_t = out.count
    unknown: cython.Py_ssize_t = 0
    short: cython.Py_ssize_t = 0
    sequence: cython.ulonglong = header.sequence
    step: cython.ulonglong = 1 if table.counts_messages and header.kind != UNSEQUENCED else 0
    message_type: cython.ushort = header.packet_type & 0xFFFF
    length_at: cython.int = table.message_length_at
    length_size: cython.int = table.message_length_size
    type_size: cython.int = table.message_type_size
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        if length_size == 2:  # as in `check_messages`
            size: cython.Py_ssize_t = _u16(data, at + length_at, big)
            size += table.message_length_add
        else:
            size = _other_size(table, data, at, end)
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        if type_size == 2:
            message_type = _u16(data, at + table.message_type_at, big)
        elif type_size:
            message_type = data[at + table.message_type_at]
        if table.odd_messages:
            message_type = _odd_type(table, data, at, message_type)
            size = padded(table, size, end - at)
            if table.number_size and step:  # the loader has put it into the message's header
                sequence = _read(data, at + table.number_at, table.number_size, big)
        out.types[entry] = message_type
        slot: cython.int = table.slots[message_type]
        out.symbols[entry] = _symbol(table, data, at, size, message_type, slot, header)
        out.offsets[entry] = cython.cast(cython.uint, at - base)
        out.sizes[entry] = cython.cast(cython.uint, size)
        out.sequences[entry] = sequence
        short += size < table.least_size[slot]
        unknown += slot == 0
        sequence += step
        if not cython.compiled:
            sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        entry += 1
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    out.unknown += unknown
    out.short += short
    return _close_packet(header, out, entry)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _fill(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the messages to `out`, offsets counted from `base`; return a `Reject`, then none."""
    if table.fix:
        return fill_run(table, data, start, base, header, out)
    verdict: cython.int = _check_body(table, header)
    if verdict != -2:
        return verdict
    if start < 0 or start + header.length > len(data):
        return TRUNCATED
    if header.count > out.capacity - out.count:
        return INDEX_FULL
    if table.message_length_size == 2 and table.message_type_size and not table.odd_messages:
        return _fill_usual(table, data, start, base, header, out)
    return _fill_other(table, data, start, base, header, out)


@cython.ccall
@cython.nogil
def scan_messages(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Check the messages of a packet and write their positions to `out`; return a `Reject`.

    As `check_messages`, with every message's type, symbol, offset, size and number. `out` is
    emptied first; offsets count from `start`. On any answer but FINE `out` stays empty.
    """
    out.count = out.packets = out.unknown = out.short = 0
    return _fill(table, data, start, start, header, out)


@cython.ccall
@cython.nogil
def scan_packets(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Scan the consecutive packets in `data[start:start + size]`, appending to `out`.

    Offsets count from the beginning of `data`. Returns FINE at the end of the bytes; else the
    `Reject` of the first bad packet: what came before it is in `out`, and `header` holds the bad
    packet's.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    if start < 0 or end > len(data):
        return TRUNCATED
    while at < end:
        length: cython.Py_ssize_t = frame_length(table, data, at, end - at)
        if length <= 0 or length > end - at:
            return TRUNCATED
        verdict: cython.int = parse_header(table, data, at, length, header)
        if verdict == FINE:
            verdict = _fill(table, data, at, 0, header, out)
        if verdict != FINE:
            return verdict
        at += length
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _scan_several(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the messages of all packets of a datagram, or of none where one is wrong."""
    packets: cython.Py_ssize_t = out.packets
    count: cython.Py_ssize_t = out.count
    end: cython.Py_ssize_t = start + size
    verdict: cython.int = TRUNCATED if size < 1 else FINE
    while start < end and verdict == FINE:
        verdict = parse_next(table, data, start, end - start, header)
        if verdict == FINE:
            verdict = _fill(table, data, start, 0, header, out)
        start += header.length
    if verdict != FINE:
        out.packets = packets
        out.count = count
    return verdict


@cython.ccall
@cython.nogil
def scan_datagrams(
    table: FeedTable,
    data: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    sizes: cython.const_uint[::1],
    header: PacketHeader,
    out: MessageIndex,
    rejects: cython.ulonglong[::1],
) -> cython.int:
    """Scan the datagrams `data[starts[i]:starts[i] + sizes[i]]`, appending to `out`.

    Offsets count from the beginning of `data`. A bad packet is counted in `rejects[reason]` and
    left out, a good one in `rejects[FINE]`. Returns the number of datagrams handled: all of them,
    or fewer where `out` became full.
    """
    index: cython.Py_ssize_t
    for index in range(len(starts)):
        if table.fix:
            verdict: cython.int = scan_runs(table, data, starts[index], sizes[index], header, out)
        elif table.several:
            verdict = _scan_several(table, data, starts[index], sizes[index], header, out)
        else:
            verdict = parse_header(table, data, starts[index], sizes[index], header)
            if verdict == FINE:
                verdict = _fill(table, data, starts[index], 0, header, out)
        if verdict == INDEX_FULL:
            return index
        rejects[verdict] += 1
    return len(starts)


@cython.ccall
@cython.nogil
def header_bytes(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the bytes of the header of the packet in `data[start:start + size]`.

    They are fewer than `table.header_size` where its kind has the short header. `size` may be less
    than that: then the kind counts as soon as it is there.
    """
    if (
        table.short_header == 0
        or start < 0
        or size < table.kind_at + table.kind_size
        or start + size > len(data)
    ):
        return table.header_size
    kind: cython.ushort = (
        _read(data, start + table.kind_at, table.kind_size, table.big_endian) & table.kind_mask
    )
    return table.short_header if table.shorts[kind] else table.header_size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2, check=True)
def _whole_header(
    table: FeedTable, data: cython.uchar[::1], start: cython.Py_ssize_t
) -> cython.int:
    """Return the bytes of the header at `start`; -1 where `data` does not hold it whole."""
    if start < 0 or start > len(data):
        return -1
    body: cython.int = header_bytes(table, data, start, len(data) - start)
    return body if start + body <= len(data) else -1


@cython.ccall
@cython.nogil
def patch_header(
    table: FeedTable,
    data: cython.uchar[::1],
    start: cython.Py_ssize_t,
    length: cython.uint,
    count: cython.int,
) -> cython.int:
    """Write `length` (of the whole packet) and `count` of messages into the header at `start`.

    A packet of which messages were left out keeps its header, with the length and count of what
    remains. Returns a `Reject` (TRUNCATED where the header does not fit into `data`). FIX has no
    header to patch; of other feeds the fields that are there are patched.
    """
    if table.fix:
        return FINE
    body: cython.int = _whole_header(table, data, start)
    if body < 0:
        return TRUNCATED
    if table.length_at + table.length_size <= body:
        _write(
            data,
            start + table.length_at,
            table.length_size,
            table.big_endian,
            length - table.length_add,
        )
    if table.count_at + table.count_size <= body:
        _write(data, start + table.count_at, table.count_size, table.big_endian, count)
    return FINE


@cython.ccall
@cython.nogil
def write_number(
    table: FeedTable, data: cython.uchar[::1], start: cython.Py_ssize_t, number: cython.ulonglong
) -> cython.int:
    """Write a packet's sequence number into the header at `start`, and the bits above its field.

    The other bits beside those stay. Returns a `Reject` as `patch_header` does; of a number of more
    than `table.number_bits()` bits the upper ones are lost.
    """
    if table.fix:
        return FINE
    body: cython.int = _whole_header(table, data, start)
    if body < 0:
        return TRUNCATED
    if table.sequence_at + table.sequence_size <= body:
        _write(data, start + table.sequence_at, table.sequence_size, table.big_endian, number)
    if table.high_size and table.high_at + table.high_size <= body:
        high: cython.ulonglong = _read(
            data, start + table.high_at, table.high_size, table.big_endian
        )
        high &= ~(table.high_mask << table.high_shift)
        high |= ((number >> (8 * table.sequence_size)) & table.high_mask) << table.high_shift
        _write(data, start + table.high_at, table.high_size, table.big_endian, high)
    return FINE
