# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The scanner's part for feeds that are framed by FIX: runs into `PacketHeader` and `MessageIndex`.

`feedhandler.codecs.scanner` has the promises and the entry points. Four functions here are for
other modules, too: `parse_first` and `parse_further` read a run in two steps, `begin_symbols_of`
and `next_symbol_of` the symbols of a message that names several.
"""

import cython
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.fix import reasons
from cython.cimports.feedhandler.codecs.fix_runs import (
    Run,
    begin_run,
    begin_symbols,
    envelope,
    extend_run,
    message_bytes,
    next_symbol,
    symbol_value,
    type_of,
)

#: Numbers from here on are rejected; inside the product they mean something else
#: (`kinds.UNSEQUENCED_BIT`).
SEQUENCE_END = cython.declare(cython.ulonglong, 1 << 62)


@cython.cfunc
@cython.nogil
def parse_run(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
    alone: cython.bint,
) -> cython.int:
    """Read the first run of the datagram of `size` bytes at `first` into the packet header `out`.

    `alone`: the run must be all of the datagram. Returns a `Reject`.
    """
    verdict: cython.int = parse_begin(table, first, room, size, out)
    if verdict == kinds.FINE:
        verdict = parse_rest(table, first, size, out)
    if verdict == kinds.FINE and alone and out.run.length != size:
        return kinds.LENGTH_MISMATCH
    return verdict


@cython.cfunc
@cython.nogil
def parse_begin(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the first message alone, as if it were all of its run; return a `Reject`.

    See `parse_run`.
    """
    if size < 1 or size > room:
        return kinds.TRUNCATED
    verdict: cython.int = begin_run(first, size, table.slots, out.run)
    if verdict != reasons.FINE:
        return _reject_of(verdict)
    return _fill_header(out)


@cython.cfunc
@cython.nogil
def parse_rest(
    table: FeedTable, first: cython.p_const_uchar, size: cython.Py_ssize_t, out: PacketHeader
) -> cython.int:
    """Read the rest of the run whose first message `parse_begin` has read; return a `Reject`."""
    extend_run(first, size, table.slots, out.run)
    return _fill_header(out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_header(out: PacketHeader) -> cython.int:
    """Fill the packet header from the run that was read; return a `Reject`."""
    if out.run.next_sequence >= SEQUENCE_END or out.run.sequence >= SEQUENCE_END:
        return kinds.MALFORMED
    out.sequence = out.run.sequence
    out.next_sequence = out.run.next_sequence
    out.session = 0
    out.send_time = out.run.send_time
    out.service = 0
    out.length = cython.cast(cython.uint, out.run.length)
    out.body = 0
    out.packet_type = cython.cast(cython.int, out.run.message_type)
    out.kind = out.run.kind
    out.flags = out.run.poss_dup
    out.count = out.run.count
    out.unknown = out.run.unknown
    out.short = 0
    return kinds.FINE


@cython.boundscheck(False)  # the first line checks the datagram against the bounds
@cython.ccall
@cython.nogil
def parse_first(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the first message alone, as if it were all of its run; return a `Reject`.

    A caller that recognises the datagram by that can skip the rest; else `parse_further` follows.
    See `scanner.parse_next`.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return kinds.TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    return parse_begin(table, first, len(data) - start, size, out)


@cython.boundscheck(False)  # the first line checks the datagram against the bounds
@cython.ccall
@cython.nogil
def parse_further(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the rest of the run whose first message `parse_first` found FINE; return a `Reject`."""
    if start < 0 or size < 1 or start + size > len(data):
        return kinds.TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    return parse_rest(table, first, size, out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _reject_of(verdict: cython.int) -> cython.int:
    """Return the `Reject` of a `FixReject`."""
    if verdict == reasons.TRUNCATED or verdict == reasons.NO_MESSAGES:
        return kinds.TRUNCATED
    if verdict == reasons.CHECKSUM_WRONG:
        return kinds.CHECKSUM
    if verdict == reasons.BODY_LENGTH_BEYOND:
        return kinds.MESSAGE_OVERRUN
    if verdict == reasons.BODY_LENGTH_TOO_SHORT or verdict == reasons.BODY_LENGTH_TOO_LONG:
        return kinds.LENGTH_MISMATCH
    if verdict == reasons.NO_BEGIN_STRING:
        return kinds.WRONG_CONSTANT
    return kinds.MALFORMED


@cython.cfunc
@cython.nogil
def check_run(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    header: PacketHeader,
) -> cython.int:
    """Check the types of the run's messages (`check_messages`); return a `Reject`.

    The rest was checked when the header was read. Adds to `header.unknown`.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + header.length
    if start < 0 or end > len(data) or header.length == 0:
        return kinds.TRUNCATED
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    for _ in range(header.count):
        if not envelope(first, at, end, header.run):
            return kinds.MESSAGE_OVERRUN
        header.unknown += table.slots[type_of(first, header.run)] == 0
        at = header.run.end
    return kinds.FINE


@cython.cfunc
@cython.nogil
def fill_run(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the run's messages to the message index `out`, offsets counted from `base`.

    Returns a `Reject`; on any but FINE nothing is appended.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + header.length
    entry: cython.Py_ssize_t = out.count
    unknown: cython.Py_ssize_t = 0
    number: cython.int
    if start < 0 or end > len(data) or header.length == 0:
        return kinds.TRUNCATED
    if header.count > out.capacity - entry:
        return kinds.INDEX_FULL
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    for number in range(header.count):
        if not envelope(first, at, end, header.run):
            return kinds.MESSAGE_OVERRUN
        out.types[entry] = cython.cast(cython.ushort, type_of(first, header.run))
        unknown += table.slots[out.types[entry]] == 0
        out.offsets[entry] = cython.cast(cython.uint, at - base)
        out.sizes[entry] = cython.cast(cython.uint, header.run.end - at)
        out.sequences[entry] = header.sequence + cython.cast(cython.ulonglong, number)
        at = header.run.end
        out.symbols[entry] = _symbol_of(table, first, header.run)
        entry += 1
    if header.count:
        out.firsts[out.packets] = cython.cast(cython.uint, out.count)
        out.services[out.packets] = header.service
        out.send_times[out.packets] = header.send_time
        out.packets += 1
    out.count = entry
    out.unknown += unknown
    return kinds.FINE


@cython.cfunc
@cython.nogil
def scan_runs(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the messages of all runs of a datagram to `out`, or of none where one is wrong.

    Returns a `Reject`.
    """
    packets: cython.Py_ssize_t = out.packets
    count: cython.Py_ssize_t = out.count
    end: cython.Py_ssize_t = start + size
    if start < 0 or size < 1 or end > len(data):
        return kinds.TRUNCATED
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    while start < end:
        verdict: cython.int = parse_run(
            table, first + start if cython.compiled else first[start:], end - start, end - start,
            header, False,
        )  # fmt: skip
        if verdict == kinds.FINE:
            verdict = fill_run(table, data, start, 0, header, out)
        if verdict != kinds.FINE:
            out.packets = packets
            out.count = count
            return verdict
        start += header.length
    return kinds.FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _symbol_of(table: FeedTable, first: cython.p_const_uchar, run: Run) -> cython.ulonglong:
    """Return the symbol of the message that `envelope` found.

    `NO_SYMBOL` where it has none, `SEVERAL_SYMBOLS` where it names different ones.
    """
    begin_symbols(run)
    if table.symbol_tag == 0 or not next_symbol(first, table.symbol_tag, run):
        return table.no_symbol
    symbol: cython.ulonglong = symbol_value(first, run.symbol_at, run.symbol_size)
    while next_symbol(first, table.symbol_tag, run):
        if symbol_value(first, run.symbol_at, run.symbol_size) != symbol:
            return table.several_symbols
    return symbol


@cython.cfunc
@cython.nogil
def message_size_at(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message at `at`, which is in `data` and before `end`.

    0 where it does not end by `end`.
    """
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    return message_bytes(first, at, end)


@cython.ccall
@cython.nogil
def begin_symbols_of(
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: PacketHeader,
) -> cython.int:
    """Begin to read the symbols of the message `data[at:end]`; return 0 where it is none."""
    if at < 0 or end > len(data) or at >= end:
        return 0
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    if not envelope(first, at, end, header.run):
        return 0
    begin_symbols(header.run)
    return 1


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def next_symbol_of(
    table: FeedTable, data: cython.const_uchar[::1], header: PacketHeader
) -> cython.ulonglong:
    """Return the next symbol of the message that `begin_symbols_of` found in `data`.

    NO_SYMBOL behind the last. Its text is `header.run.symbol_size` bytes from
    `header.run.symbol_at` on. A symbol that is named twice comes twice.
    """
    if header.run.end > len(data) or header.run.end <= 0:
        return table.no_symbol
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    if not next_symbol(first, table.symbol_tag, header.run):
        return table.no_symbol
    return symbol_value(first, header.run.symbol_at, header.run.symbol_size)
