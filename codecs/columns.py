# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Messages as columns: all fields of one message type as numpy arrays, and as Arrow.

`Columns` takes the bytes of packets and the `MessageIndex` that the scanner made of them, picks the
messages of one layout, and decodes every field into preallocated arrays, which it reuses from one
call to the next. The bytes are walked in compiled code without the GIL, a block of rows at a time,
field by field; prices and full times are then computed by whole columns.

Columns, by name: `seq` (u64), `service` (u32), `symbol` (u64, as the scanner gives it; the text
itself where the layout has a field of that name), `send_time_ns` (i64), then the layout's fields.
Integers keep the width of the wire; those of 3, 5, 6 or 7 bytes are widened to 4 or 8. A null value
stays the wire's (Arrow: null). Text is `S<n>`, cut at its first NUL, without trailing spaces.
A price has two columns: `<name>_raw` (the wire's integer) and `<name>` (f64, the nearest float; NaN
where the scale is unknown). Full times are i64, and `UNKNOWN_TIME` where the day is needed and not
given, or no clock message came yet. Named bits have a column each. A layout that begins its parts
with a group gives one row for each element, the message's own fields repeated, and the column
`element` (i32) with the element's number, -1 for the one row of a message without elements; the
other parts have no columns.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

import cython
import msgspec
import numpy
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.scanner import element_symbol, fixed_size, open_group

from feedhandler.codecs.prices import SCALE_MAX
from feedhandler.codecs.times import SECOND_NS, UNIT_NS, Midnights

#: The value of a full time that cannot be known: the least i64, which numpy calls NaT.
UNKNOWN_TIME = -(2**63)
#: Midnights of 0: with them the wire time 1 converts to its unit in ns.
_FROM_ZERO = Midnights(0, 0, 0)
#: Rows decoded field by field before the next rows: their messages then stay in the first caches.
_BLOCK_ROWS = cython.declare(cython.Py_ssize_t, 512)

_POWERS = numpy.full(256, numpy.nan)
_POWERS[: SCALE_MAX + 1] = [10.0**exponent for exponent in range(SCALE_MAX + 1)]


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _elements(
    table: FeedTable,
    data: cython.const_uchar[::1],
    index: MessageIndex,
    entry: cython.Py_ssize_t,
    least: cython.Py_ssize_t,
    element_least: cython.int,
    header: PacketHeader,
) -> cython.int:
    """Find the elements of an entry's message, in `header`; return how many, -2 for no row at all.

    A message whose fixed part, or elements, are shorter than the layout's (of an earlier version)
    has no row.
    """
    at: cython.Py_ssize_t = index.offsets[entry]
    size: cython.Py_ssize_t = index.sizes[entry]
    if table.block_size and fixed_size(table, data, at) < least:
        return -2
    if element_least == 0:
        return 0
    many: cython.int = open_group(table, data, at, size, index.types[entry], header)
    if many > 0 and header.element_size < element_least:
        return -2
    return many


@cython.boundscheck(False)  # entries below `index.count` are in its arrays
def count_rows(
    table: FeedTable,
    data: cython.const_uchar[::1],
    index: MessageIndex,
    code: cython.uint,
    least: cython.uint,
    below: cython.uint,
    element_least: cython.int,
    header: PacketHeader,
) -> int:
    """Return the number of rows of the messages of type `code` with sizes in [least, below)."""
    rows: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    varied: cython.bint = table.block_size > 0 or element_least > 0
    with cython.nogil:
        for entry in range(index.count):
            if index.types[entry] != code:
                continue
            if index.sizes[entry] < least or index.sizes[entry] >= below:
                continue
            many: cython.int = 0
            if varied:
                many = _elements(table, data, index, entry, least, element_least, header)
            if many != -2:
                rows += many if many > 0 else 1
    return rows


@cython.boundscheck(False)  # as there; the rows' arrays are checked by their length
def select_rows(
    table: FeedTable,
    data: cython.const_uchar[::1],
    index: MessageIndex,
    code: cython.uint,
    least: cython.uint,
    below: cython.uint,
    element_least: cython.int,
    header: PacketHeader,
    bases: cython.longlong[:, ::1],
    seqs: cython.ulonglong[::1],
    symbols: cython.ulonglong[::1],
    packets: cython.uint[::1],
    numbers: cython.int[::1],
) -> int:
    """Write the position of each row into the arrays, and return the number of rows.

    `bases[0]` gets the message's offset, `bases[1]` the element's (-1: none); the others the
    sequence number, symbol, packet and element number. The arrays must hold `count_rows` entries:
    raises IndexError where they do not, as when `data` has changed since. A message without
    elements has one row. `header` is scratch.
    """
    rows: cython.Py_ssize_t = 0
    packet: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    element: cython.int
    room: cython.Py_ssize_t = min(
        len(numbers), len(seqs), len(symbols), len(packets), bases.shape[1]
    )
    varied: cython.bint = table.block_size > 0 or element_least > 0
    with cython.nogil:
        for entry in range(index.count):
            while packet + 1 < index.packets and index.firsts[packet + 1] <= entry:
                packet += 1
            if index.types[entry] != code:
                continue
            if index.sizes[entry] < least or index.sizes[entry] >= below:
                continue
            many: cython.int = 0
            if varied:
                many = _elements(table, data, index, entry, least, element_least, header)
            if many == -2:
                continue
            if rows + max(many, 1) > room:
                with cython.gil:
                    raise IndexError(f"more than {room} rows")
            symbol: cython.ulonglong = index.symbols[entry]
            for element in range(many if many > 0 else 1):
                bases[0, rows] = index.offsets[entry]
                bases[1, rows] = -1
                numbers[rows] = -1
                if many > 0:
                    bases[1, rows] = header.element_at + element * header.element_size
                    numbers[rows] = element
                    symbol = element_symbol(
                        table, data, bases[1, rows], index.types[entry], index.symbols[entry]
                    )
                seqs[rows] = index.sequences[entry]
                symbols[rows] = symbol
                packets[rows] = cython.cast(cython.uint, packet)
                rows += 1
    return rows


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u8(
    data: cython.const_uchar[::1], base: cython.Py_ssize_t, at: cython.Py_ssize_t
) -> cython.int:
    return 0 if base < 0 else data[base + at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u16(
    data: cython.const_uchar[::1],
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    big: cython.bint,
) -> cython.uint:
    if base < 0:
        return 0
    at += base
    if big:
        return (cython.cast(cython.uint, data[at]) << 8) | data[at + 1]
    return (cython.cast(cython.uint, data[at + 1]) << 8) | data[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u32(
    data: cython.const_uchar[::1],
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    big: cython.bint,
) -> cython.uint:
    if base < 0:
        return 0
    at += base
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
def _u64(
    data: cython.const_uchar[::1],
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    big: cython.bint,
) -> cython.ulonglong:
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    if base < 0:
        return 0
    at += base
    for index in range(8):
        value = (value << 8) | data[at + (index if big else 7 - index)]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _odd(
    data: cython.const_uchar[::1],
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    big: cython.bint,
    signed: cython.bint,
    width: cython.int,
) -> cython.ulonglong:
    """Return an integer of 3, 5, 6 or 7 bytes, extended to `width`."""
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    if base < 0:
        return 0
    at += base
    for index in range(size):
        value = (value << 8) | data[at + (index if big else size - 1 - index)]
    if signed and value >> (8 * size - 1):
        for index in range(size, width):
            value |= cython.cast(cython.ulonglong, 0xFF) << (8 * index)
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _copy_text(
    data: cython.const_uchar[::1],
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    to: cython.Py_ssize_t,
) -> cython.int:
    """Copy text up to its first NUL, without trailing spaces; fill the rest with NUL."""
    length: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    at += base
    for index in range(size if base >= 0 else 0):
        if data[at + index] == 0:
            break
        texts[to + index] = data[at + index]
        if data[at + index] != 32:
            length = index + 1
    for index in range(length, size):
        texts[to + index] = 0
    return 0


def fill_columns(
    data: cython.const_uchar[::1],
    bases: cython.const_longlong[:, ::1],
    rows: cython.Py_ssize_t,
    plan: cython.const_longlong[:, ::1],
    cells8: cython.ulonglong[:, ::1],
    cells4: cython.uint[:, ::1],
    cells2: cython.ushort[:, ::1],
    cells1: cython.uchar[:, ::1],
    texts: cython.uchar[::1],
) -> None:
    """Decode every field of `plan` for rows 0..rows-1 into the cells and `texts`.

    Each row of the plan has seven numbers: the field's offset, its size, which of `bases` it counts
    from, whether it is text, its row among the cells of its width (text: where its column begins in
    `texts`), whether it is big-endian, and whether it is signed. Integers of 3 bytes go to cells of
    4, of 5 to 7 to cells of 8. A base of -1 gives 0 or blank.
    """
    first: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    field: cython.Py_ssize_t
    with cython.nogil:
        while first < rows:
            last: cython.Py_ssize_t = min(first + _BLOCK_ROWS, rows)
            for field in range(len(plan)):
                at: cython.Py_ssize_t = plan[field, 0]
                size: cython.Py_ssize_t = plan[field, 1]
                base: cython.const_longlong[::1] = bases[plan[field, 2]]
                cell: cython.Py_ssize_t = plan[field, 4]
                big: cython.bint = plan[field, 5]
                signed: cython.bint = plan[field, 6]
                if plan[field, 3]:
                    for row in range(first, last):
                        _copy_text(data, base[row], at, size, texts, cell + row * size)
                elif size == 4:
                    column4: cython.uint[::1] = cells4[cell]
                    for row in range(first, last):
                        column4[row] = _u32(data, base[row], at, big)
                elif size == 1:
                    column1: cython.uchar[::1] = cells1[cell]
                    for row in range(first, last):
                        column1[row] = _u8(data, base[row], at)
                elif size == 2:
                    column2: cython.ushort[::1] = cells2[cell]
                    for row in range(first, last):
                        column2[row] = _u16(data, base[row], at, big)
                elif size == 8:
                    column8: cython.ulonglong[::1] = cells8[cell]
                    for row in range(first, last):
                        column8[row] = _u64(data, base[row], at, big)
                elif size == 3:
                    column4 = cells4[cell]
                    for row in range(first, last):
                        column4[row] = _odd(data, base[row], at, size, big, signed, 4)
                else:
                    column8 = cells8[cell]
                    for row in range(first, last):
                        column8[row] = _odd(data, base[row], at, size, big, signed, 8)
            first = last


class Columns:
    """Columns of one message layout of a feed, for any number of `decode` calls.

    feed      the `Feed`
    layout    a message type, or the name of a layout where a type has two
    capacity  rows to make room for at first; grows when a call needs more

    `rows` is the number of rows of the last `decode`; `arrays` and `to_arrow` return them. A field
    of a group's elements whose name the message has, too, has the group's name in front of its own.
    """

    def __init__(self, feed: Any, layout: int | str, capacity: int = 4_096) -> None:
        self.feed = feed
        self.layout = feed.layout(layout)
        self.rows = 0
        self._below = self._next_size()
        group = self.layout.group
        self._selection: tuple[int, int, int, int, PacketHeader] = (
            self.layout.code,
            self.layout.size,
            self._below,
            group.size if group is not None else 0,
            PacketHeader(),
        )
        self._fields = [(field, 0) for field in self.layout.named]
        if group is not None:
            self._fields += [(field, 1) for field in _told_apart(self.layout, group)]
        self._nulls = {
            field.name: field.null for field, _ in self._fields if field.null is not None
        }
        #: Of prices whose scale is in the message: what their integers are divided by, by its byte.
        self._divisors = {
            field.name: _POWERS.take(numpy.array(field.scale_codes.decimals) & 0xFF)
            for field, _ in self._fields
            if field.scale_codes is not None
        }
        self._time_rules = self._named_times()
        #: What the last clock message gave, by service, ns since 1970.
        self._clocks: dict[int, int] = {}
        self._reserve(capacity)

    def _next_size(self) -> int:
        """Return the least size of the type's next larger layout."""
        sizes = [each.size for each in self.feed.layouts[self.layout.code]]
        return min((size for size in sizes if size > self.layout.size), default=2**32 - 1)

    def _reserve(self, capacity: int) -> None:
        """Allocate the arrays for `capacity` rows."""
        self.capacity = capacity
        self._bases = numpy.zeros((2, capacity), numpy.int64)
        self._seqs = numpy.zeros(capacity, numpy.uint64)
        self._symbols = numpy.zeros(capacity, numpy.uint64)
        self._packets = numpy.zeros(capacity, numpy.uint32)
        self._numbers = numpy.zeros(capacity, numpy.int32)
        widths = {1: 0, 2: 0, 4: 0, 8: 0}
        text_end = 0
        plan: list[tuple[int, ...]] = []
        for field, base in self._fields:
            big = (field.byte_order or self.feed.byte_order) == "big"
            if field.kind == "c" and field.size > 1:
                plan.append((field.at, field.size, base, 1, text_end, big, False))
                text_end += field.size * capacity
            else:
                width = _cell_width(field.size)
                plan.append((field.at, field.size, base, 0, widths[width], big, field.kind == "i"))
                widths[width] += 1
        self._plan = numpy.array(plan, numpy.int64).reshape(len(plan), 7)
        self._cells = {
            size: numpy.zeros((max(count, 1), capacity), f"u{size}")
            for size, count in widths.items()
        }
        self._texts = numpy.zeros(max(text_end, 1), numpy.uint8)
        self._views = self._column_views()

    def _column_views(self) -> dict[str, numpy.ndarray]:
        """Return the cells of every field by name (prices: `<name>_raw`), at full capacity."""
        views = {}
        for (field, _), (_, size, _, is_text, cell, *_) in zip(
            self._fields, self._plan.tolist(), strict=True
        ):
            name = f"{field.name}_raw" if _is_price(field) else field.name
            if is_text:
                views[name] = self._texts[cell : cell + size * self.capacity].view(f"S{size}")
            else:
                kind, width = "S" if field.kind == "c" else field.kind, _cell_width(size)
                views[name] = self._cells[width][cell].view(f"{kind}{width}")
        return views

    def decode(
        self,
        data: Any,
        index: MessageIndex,
        day: date | None = None,
        scales: Mapping[str, Mapping[int, int]] | None = None,
    ) -> int:
        """Decode the layout's messages in `data`, found by `index`, and return the number of rows.

        The rows replace those of the call before. `data` must be the bytes that were scanned into
        `index`. `day` is the trading day of times since midnight; `scales` gives decimal places for
        feeds that have them in reference data only: `ReferenceData.all_scales`.
        """
        selection = (self.feed.table, data, index, *self._selection)
        rows = count_rows(*selection)
        if rows > self.capacity:
            self._reserve(max(rows, 2 * self.capacity))
        select_rows(
            *selection,
            self._bases,
            self._seqs,
            self._symbols,
            self._packets,
            self._numbers,
        )
        fill_columns(
            data,
            self._bases,
            rows,
            self._plan,
            self._cells[8],
            self._cells[4],
            self._cells[2],
            self._cells[1],
            self._texts,
        )
        self.rows = rows
        self._arrays = self._collect(index, day, scales or {})
        for name, since, parts in self._time_rules:
            if since == "clock":
                clocks = self._clock_times(data, index, self.feed.midnights(day))
                self._arrays[name] = self._since(clocks, parts)
        return rows

    @property
    def arrays(self) -> dict[str, numpy.ndarray]:
        """The columns by name, `rows` long. Most are views that the next `decode` overwrites."""
        return self._arrays

    def _collect(
        self, index: MessageIndex, day: date | None, scales: Mapping[str, Mapping[int, int]]
    ) -> dict[str, numpy.ndarray]:
        rows = self.rows
        midnights = self.feed.midnights(day)
        packets = self._packets[:rows]
        sent = self._send_times(index, midnights)[packets] if index.packets else packets
        columns: dict[str, numpy.ndarray] = {
            "seq": self._seqs[:rows],
            "service": numpy.asarray(index.services)[packets],
            "symbol": self._symbols[:rows],
            "send_time_ns": sent.astype(numpy.int64, copy=False),
        }
        if self.layout.group is not None:
            columns["element"] = self._numbers[:rows]
        for field, _ in self._fields:
            if not _is_price(field):
                columns[field.name] = self._views[field.name][:rows]
            else:
                raw = self._views[f"{field.name}_raw"][:rows]
                columns[field.name] = raw / self._powers(field, scales)
                if field.null is not None:
                    columns[field.name][raw == field.null] = numpy.nan
                columns[f"{field.name}_raw"] = raw
            for name, (shift, width) in field.bits.items():
                columns[name] = (self._views[field.name][:rows] >> shift) & ((1 << width) - 1)
        for name, since, parts in self._time_rules:
            columns[name] = self._times(since, parts, midnights, columns["send_time_ns"])
        return columns

    def _powers(self, field: Any, scales: Mapping[str, Mapping[int, int]]) -> Any:
        """Return the divisor of a price's integers: one number, or one for each row as an array."""
        price = field.exponent or field.price
        if isinstance(price, int):
            return _POWERS[price]
        if field.name in self._divisors:
            codes = self._views[price][: self.rows].view(numpy.uint8)
            return self._divisors[field.name].take(codes)
        of_symbol = scales.get(price, {})
        known = [of_symbol.get(symbol, 255) for symbol in self._symbols[: self.rows].tolist()]
        return _POWERS.take(known)

    def _named_times(self) -> list[tuple[str, str, list[tuple[str, int]]]]:
        """Return the layout's times as (name, since, [(column, ns a unit)])."""
        named = {field.wire: field.name for field, base in self._fields if base == 0}
        rules: dict[str, tuple[str, str, list[tuple[str, int]]]] = {}
        for rule in self.feed.description.times:
            wires = [
                (rule.seconds, UNIT_NS["s"]),
                (rule.milliseconds, UNIT_NS["ms"]),
                (rule.microseconds, UNIT_NS["us"]),
                (rule.nanoseconds, UNIT_NS["ns"]),
            ]
            parts = [(named.get(wire, ""), unit) for wire, unit in wires if wire]
            if all(name for name, _ in parts):
                rules.setdefault(rule.name, (rule.name, rule.since, parts))
        return list(rules.values())

    def _times(
        self,
        since: str,
        parts: list[tuple[str, int]],
        midnights: Midnights | None,
        sent: numpy.ndarray,
    ) -> Any:
        """Return a time of each row; unknown where a part of it is null."""
        total = numpy.zeros(self.rows, numpy.int64)
        for name, unit in parts:
            total += self._views[name][: self.rows].astype(numpy.int64) * unit
        found = self._counted(since, total, midnights, sent)
        for name, _ in parts:
            if name in self._nulls:
                found[self._views[name][: self.rows] == self._nulls[name]] = UNKNOWN_TIME
        return found

    def _counted(
        self, since: str, total: numpy.ndarray, midnights: Midnights | None, sent: numpy.ndarray
    ) -> Any:
        """Return `total` as counted from what `since` names; as it is for a clock's (`decode`)."""
        if since in ("epoch", "clock"):
            return total
        if since == "midnight":
            if midnights is None:
                return numpy.full(self.rows, UNKNOWN_TIME, numpy.int64)
            return _moments(midnights, total)
        within = sent % SECOND_NS
        found = sent - within + total - (total > within) * SECOND_NS
        found[sent == UNKNOWN_TIME] = UNKNOWN_TIME
        return found

    def _since(self, clocks: numpy.ndarray, parts: list[tuple[str, int]]) -> numpy.ndarray:
        """Return the rows' times counted from `clocks`; unknown where those are."""
        total = self._times("epoch", parts, None, clocks)
        found: numpy.ndarray = clocks + total
        found[(clocks == UNKNOWN_TIME) | (total == UNKNOWN_TIME)] = UNKNOWN_TIME
        return found

    def _clock_times(
        self, data: Any, index: MessageIndex, midnights: Midnights | None
    ) -> numpy.ndarray:
        """Return the time of the last clock message of its service before each row.

        One of an earlier call counts as well. The messages must stand in the bytes in the order in
        which they came.
        """
        clock, rows = self.feed.clock, self.rows
        entries = numpy.flatnonzero(numpy.asarray(index.types)[: index.count] == clock.code)
        packets = numpy.searchsorted(
            numpy.asarray(index.firsts)[: index.packets], entries, side="right"
        )
        offsets = numpy.asarray(index.offsets)[entries].astype(numpy.int64)
        sizes = numpy.asarray(index.sizes)[entries]
        times = [
            clock.read(memoryview(data)[at : at + size], midnights)
            for at, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]
        moments = numpy.array([UNKNOWN_TIME if ns is None else ns for ns in times], numpy.int64)
        services = numpy.asarray(index.services)[packets - 1] if len(entries) else packets
        own = numpy.asarray(index.services)[self._packets[:rows]]
        found = numpy.full(rows, UNKNOWN_TIME, numpy.int64)
        for service in numpy.unique(numpy.concatenate([services, own])).tolist():
            of_service = moments[services == service]
            mine = own == service
            before = numpy.searchsorted(
                offsets[services == service], self._bases[0, :rows][mine], side="left"
            )
            known = numpy.concatenate([[self._clocks.get(service, UNKNOWN_TIME)], of_service])
            found[mine] = known[before]
            self._clocks[service] = int(known[-1])
        return found

    def _send_times(self, index: MessageIndex, midnights: Midnights | None) -> Any:
        """Return the send time of each packet in ns since 1970, or `UNKNOWN_TIME`."""
        if self.feed.send_time_ns(1, _FROM_ZERO) is None:  # packets carry none
            return numpy.full(index.packets, UNKNOWN_TIME, numpy.int64)
        raw = numpy.asarray(index.send_times)[: index.packets].astype(numpy.int64)
        sent = raw * self.feed.send_time_ns(1, _FROM_ZERO)
        if self.feed.send_time_ns(0, None) is None:  # they count from midnight
            if midnights is None:
                return numpy.full(index.packets, UNKNOWN_TIME, numpy.int64)
            sent = _moments(midnights, sent)
        sent[raw == -1] = UNKNOWN_TIME  # `NO_SEND_TIME`, seen as signed
        return sent

    def to_arrow(self) -> Any:
        """Return the columns as a `pyarrow.RecordBatch` with memory of its own.

        Text becomes strings; unknown times and prices of unknown scale become nulls.
        """
        import pyarrow

        arrays, names = [], []
        nulls = self._nulls
        for name, column in self.arrays.items():
            names.append(name)
            arrays.append(_arrow_array(pyarrow, column, nulls.get(name)))
        return pyarrow.RecordBatch.from_arrays(arrays, names)


def _moments(midnights: Midnights, since_ns: Any) -> Any:
    """Return `Midnights.moment_ns` of a whole column."""
    begins_ns, early_ns, late_ns = midnights
    if begins_ns == 0:
        return since_ns + late_ns
    return since_ns + numpy.where(since_ns >= begins_ns, late_ns, early_ns)


def _told_apart(layout: Any, group: Any) -> list[Any]:
    """Return the fields of a group's elements, those renamed whose names the message has, too."""
    taken = {name for field in layout.named for name in (field.name, *field.bits)}
    names = {
        name: f"{group.name}_{name}" if name in taken else name
        for field in group.named
        for name in (field.name, *field.bits)
    }
    return [
        msgspec.structs.replace(
            field,
            name=names[field.name],
            price=names.get(field.price, field.price),
            exponent=names.get(field.exponent, field.exponent),
            bits={names[name]: position for name, position in field.bits.items()},
        )
        for field in group.named
    ]


def _is_price(field: Any) -> bool:
    return field.price is not None or bool(field.exponent)


def _cell_width(size: int) -> int:
    """Return the bytes of a column's cell for an integer of `size` bytes."""
    return next(width for width in (1, 2, 4, 8) if size <= width)


def _arrow_array(pyarrow: Any, column: numpy.ndarray, null: int | None) -> Any:
    if column.dtype.kind == "S":
        texts = column.tolist()
        return pyarrow.array([text.decode("latin-1") for text in texts], pyarrow.string())
    if column.dtype == numpy.int64:
        return pyarrow.array(column.copy(), mask=column == UNKNOWN_TIME)
    if column.dtype.kind == "f":
        return pyarrow.array(column.copy(), mask=numpy.isnan(column))
    if null is not None:
        return pyarrow.array(column.copy(), mask=column == null)
    return pyarrow.array(column.copy())
