"""Datagrams as Arrow batches, a row for each packet or each message, for the Spark source.

`RowMaker` turns batches of a capture into record batches of the wanted columns. Every row has
`ordinal`, which rises in the order of the capture (and of the captures among one another), whatever
partition it came from. Sequence numbers and times are int64, which they fit; a symbol is its name
as text, or null.

Datagrams that are no packets of the feed make no row. Messages of compressed packets, and of
packets whose messages are not whole, make none either.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from feedhandler.codecs.columns import Columns
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import MessageIndex, PacketHeader
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.layouts import Layout
from feedhandler.codecs.scanner import REJECT_COUNT, scan_datagrams
from feedhandler.replay.captures.packet_headers import (
    PacketHeaders,
    having_field,
    read_headers,
)
from feedhandler.replay.captures.reading import DatagramBatch, address_text
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES

Array = np.ndarray[Any, Any]

#: Messages a record batch at most: some 5 MB with a few fields.
MESSAGES_MAX = 1 << 16
#: Numbers of rows that one slice may have before the next slice's begin.
SLICE_ROWS = 1 << 40

PACKET_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),
        ("file", pa.string()),
        ("time_ns", pa.int64()),
        ("line", pa.string()),
        ("service", pa.int64()),
        ("sequence", pa.int64()),
        ("next_sequence", pa.int64()),
        ("kind", pa.string()),
        ("refresh", pa.bool_()),
        ("messages", pa.int32()),
        ("payload_bytes", pa.int32()),
        ("file_bytes", pa.int32()),
    ]
)
MESSAGE_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),
        ("file", pa.string()),
        ("time_ns", pa.int64()),
        ("line", pa.string()),
        ("service", pa.int64()),
        ("sequence", pa.int64()),
        ("number", pa.int32()),
        ("type", pa.string()),
        ("name", pa.string()),
        ("symbol", pa.string()),
        ("message_bytes", pa.int32()),
    ]
)


def refuse_rows_of_fix(feed: Feed) -> None:
    """Raise `UsageError` for a feed whose messages have no columns: FIX."""
    if feed.table.fix:
        raise UsageError(
            f"{feed.name} has no rows of messages, for FIX messages have no layouts",
            "characterise counts them, decode --json prints them, and "
            "feedhandler.codecs.fix.entries makes columns of their entries",
        )


#: Kinds of packets that have messages; resets do where a message makes them such.
_WITH_MESSAGES = (PacketKind.DATA, PacketKind.UNSEQUENCED)


class RowMaker:
    """A maker of record batches; see the module's text.

    `messages`: a row a message, else a packet; `fields`: decoded fields by name, null where a
    message has none of that name; `lines`: names of lines by (group as a number, port), the others
    are called `group:port`. Raises `UsageError` for fields that no message of the feed has, and for
    rows of FIX messages.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        messages: bool = False,
        fields: Sequence[str] = (),
        lines: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        if messages:
            refuse_rows_of_fix(feed)
        self.feed = feed
        self._messages = messages
        self._lines = dict(lines or {})
        self._decoders = [
            _Decoder(feed, layout, fields)
            for ways in feed.layouts.values()
            for layout in ways
            if fields and messages
        ]
        self._fields = {name: self._type_of(name) for name in fields}
        self._header, self._index = PacketHeader(), MessageIndex(MESSAGES_MAX)
        #: Datagrams that the latest scan rejected.
        self._rejected = 0
        #: Whether a datagram's header carries its number of messages.
        self._counted = feed.table.count_size > 0 and not feed.table.several
        resets = (PacketKind.RESET,) if feed.table.reset_message >= 0 else ()
        self._with_messages = (*_WITH_MESSAGES, *resets)

    def _type_of(self, name: str) -> pa.DataType:
        types = {decoder.types[name] for decoder in self._decoders if name in decoder.types}
        if not types:
            raise UsageError(
                f"no message of {self.feed.name} has a field '{name}'",
                "see `feedhandler feeds`; fields need rows of messages",
            )
        return types.pop() if len(types) == 1 else pa.string()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        if not self._messages:
            return PACKET_SCHEMA
        schema = MESSAGE_SCHEMA
        for name, kind in self._fields.items():
            schema = schema.append(pa.field(name, kind))
        return schema

    def batches(
        self, batches: Iterator[DatagramBatch], file: str, slice_number: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice of a capture."""
        ordinal = slice_number * SLICE_ROWS
        for batch in batches:
            batch, headers = self._sound(batch)
            if not len(batch):
                continue
            parts = self._of_messages if self._messages else self._of_packets
            for columns in parts(batch, headers):
                count = len(columns["time_ns"])
                columns["ordinal"] = np.arange(ordinal, ordinal + count)
                columns["file"] = pa.repeat(pa.scalar(file), count)
                ordinal += count
                yield _record_batch(columns, self.schema)

    def _sound(self, batch: DatagramBatch) -> tuple[DatagramBatch, PacketHeaders]:
        """Return the datagrams that are packets of the feed, and their headers."""
        headers = read_headers(self.feed.table, batch.data, batch.offset, batch.length)
        fine = np.flatnonzero(headers.verdict == Reject.FINE)
        return batch.select(fine), headers.select(fine)

    def counts(self, batch: DatagramBatch) -> tuple[int, int]:
        """Count messages by a batch's headers, and the uncompressed packets that have some.

        Where headers carry no count, readable messages are counted, and packets without any.
        """
        batch, headers = self._sound(batch)
        if not self._counted:
            messages = packets = 0
            for _ in self._scanned(batch, self._full(batch, headers)):
                messages += self._index.count
                packets += self._index.packets + self._rejected
            return messages, packets
        counts = self._counts(batch, headers)
        return int(counts.sum()), int(((counts > 0) & (headers.compressed == 0)).sum())

    def scans(self, batch: DatagramBatch) -> Iterator[tuple[dict[str, Any], Array, MessageIndex]]:
        """Yield the messages of a batch for callers that decode them: columns, bytes, index.

        The columns have a row a message (with `code`, the type's number); the next step overwrites
        the index.
        """
        batch, headers = self._sound(batch)
        for columns in self._of_messages(batch, headers):
            columns["code"] = self._index.arrays()["types"]
            yield columns, batch.data, self._index

    def _of_packets(self, batch: DatagramBatch, headers: PacketHeaders) -> Iterator[dict[str, Any]]:
        kinds = [each.name.lower() for each in PacketKind]
        yield {
            "time_ns": batch.time_ns,
            "line": self._line_names(batch),
            "service": headers.service,
            "sequence": headers.sequence,
            "next_sequence": headers.next_sequence,
            "kind": _named(headers.kind, kinds),
            "refresh": headers.compressed.astype(bool),
            "messages": self._counts(batch, headers),
            "payload_bytes": batch.length,
            "file_bytes": batch.frame_length + np.uint32(RECORD_HEADER_BYTES),
        }

    def _line_names(self, batch: DatagramBatch) -> pa.Array:
        addresses = batch.destination.astype(np.int64) << 16 | batch.destination_port
        distinct, of = np.unique(addresses, return_inverse=True)
        pairs = [(address >> 16, address & 0xFFFF) for address in distinct.tolist()]
        return _named(
            of, [self._lines.get(pair, f"{address_text(pair[0])}:{pair[1]}") for pair in pairs]
        )

    def _counts(self, batch: DatagramBatch, headers: PacketHeaders) -> Array:
        """Return the number of messages of each datagram (i64): by its header, or else those that
        can be read."""
        table = self.feed.table
        size, total = table.count_size, np.zeros(len(batch), np.int64)
        if not self._counted:
            for good in self._scanned(batch, self._full(batch, headers)):
                firsts = np.asarray(self._index.firsts)[: self._index.packets].astype(np.int64)
                np.add.at(total, good, np.diff(np.append(firsts, self._index.count)))
            return total
        rows: Any = slice(None)
        if table.short_header:
            rows = having_field(table, batch.data, batch.offset, table.count_at + size)
        offset = batch.offset[rows].astype(np.int64) + table.count_at
        for index in range(size):
            shift = 8 * (size - 1 - index if table.big_endian else index)
            total[rows] |= batch.data[offset + index].astype(np.int64) << shift
        # The end of a session stands in the count of a heartbeat.
        total[headers.kind == PacketKind.HEARTBEAT] = 0
        return total

    def _full(self, batch: DatagramBatch, headers: PacketHeaders) -> Array:
        """Return the rows whose datagrams have messages that can be read as they are, or may."""
        if self._counted:
            has_messages = self._counts(batch, headers) > 0
        else:
            has_messages = np.isin(headers.kind, self._with_messages) | self.feed.table.several
        return np.flatnonzero(has_messages & (headers.compressed == 0))

    def _scanned(self, batch: DatagramBatch, rows: Array) -> Iterator[Array]:
        """Scan the datagrams of `rows`, as many at a time as there is room for; yield the row of
        each packet in the index."""
        while len(rows):
            done, good = self._scan(batch, rows)
            yield good
            rows = rows[done:]

    def _of_messages(
        self, batch: DatagramBatch, headers: PacketHeaders
    ) -> Iterator[dict[str, Any]]:
        names = self._line_names(batch)
        for rows in self._scanned(batch, self._full(batch, headers)):
            if self._index.count:
                yield self._message_columns(batch, headers, names, rows)

    def _scan(self, batch: DatagramBatch, rows: Array) -> tuple[int, Array]:
        """Scan packets of `rows` while there is room; return how many, and the good ones' rows."""
        index, rejects = self._index, np.zeros(REJECT_COUNT, np.uint64)
        starts, sizes = batch.offset[rows].astype(np.int64), batch.length[rows]
        table, header = self.feed.table, self._header
        index.clear()
        done = scan_datagrams(table, batch.data, starts, sizes, header, index, rejects)
        self._rejected = int(rejects.sum() - rejects[Reject.FINE])
        if index.packets == done and not table.several:
            return done, rows[:done]
        # Some were bad, or had several packets, and the index does not say which: scan them again,
        # one by one.
        index.clear()
        good = []
        for number in range(done):
            one = slice(number, number + 1)
            before = index.packets
            scan_datagrams(table, batch.data, starts[one], sizes[one], header, index, rejects)
            good += [rows[number]] * (index.packets - before)
        return done, np.array(good, np.int64)

    def _message_columns(
        self, batch: DatagramBatch, headers: PacketHeaders, lines: pa.Array, rows: Array
    ) -> dict[str, Any]:
        index = self._index
        arrays = index.arrays()
        firsts = np.asarray(index.firsts)[: index.packets].astype(np.int64)
        counts = np.diff(np.append(firsts, index.count))
        of = np.repeat(rows, counts)
        columns = {
            "time_ns": batch.time_ns[of],
            "line": lines.take(pa.array(of)),
            "service": headers.service[of],
            "sequence": arrays["sequences"],
            "number": np.arange(index.count) - np.repeat(firsts, counts),
            **self._type_columns(arrays["types"]),
            "symbol": self._symbols(arrays["symbols"]),
            "message_bytes": arrays["sizes"],
        }
        for name, kind in self._fields.items():
            columns[name] = pa.nulls(index.count, kind)
        for decoder in self._decoders:
            decoder.fill(columns, batch.data, index, arrays)
        return columns

    def _type_columns(self, types: Array) -> dict[str, pa.Array]:
        distinct, of = np.unique(types, return_inverse=True)
        codes = distinct.tolist()
        names = [
            self.feed.layouts[code][0].name if code in self.feed.layouts else "unknown"
            for code in codes
        ]
        return {
            "type": _named(of, [str(self.feed.type_label(code)) for code in codes]),
            "name": _named(of, names),
        }

    def _symbols(self, symbols: Array) -> pa.Array:
        distinct, of = np.unique(symbols, return_inverse=True)
        return _named(of, [self.feed.symbol_name(int(each)) for each in distinct])


class _Decoder:
    """A decoder of the wanted fields of one layout; of a repeated group, the first element's."""

    def __init__(self, feed: Feed, layout: Layout, fields: Sequence[str]) -> None:
        self._columns = Columns(feed, layout.name)
        self._layout = layout
        self._largest = self._columns._below
        sample = self._columns
        sample.decode(b"", MessageIndex(1))
        self.types = {
            name: _arrow_type(column)
            for name, column in sample.arrays.items()
            if name in fields and name not in MESSAGE_SCHEMA.names
        }

    def fill(
        self, columns: dict[str, Any], data: Array, index: MessageIndex, arrays: dict[str, Array]
    ) -> None:
        """Write the layout's fields into the rows of its messages."""
        sizes = arrays["sizes"]
        mine = (arrays["types"] == self._layout.code) & (sizes >= self._layout.size)
        mine &= sizes < self._largest
        if not self.types or not mine.any():
            return
        self._columns.decode(data, index)
        decoded = self._columns.to_arrow()
        if "element" in decoded.schema.names:
            element = decoded.column("element").to_numpy(zero_copy_only=False)
            decoded = decoded.filter(pa.array(element <= 0))
        for name in self.types:
            target = columns[name]
            values = decoded.column(name).cast(target.type)
            indexes = np.full(len(mine), -1, np.int64)
            indexes[mine] = np.arange(int(mine.sum()))
            taken = values.take(pa.array(indexes, mask=indexes < 0))
            columns[name] = taken if target.null_count == len(target) else _first(target, taken)


def _first(target: pa.Array, other: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.coalesce(target, other)


def _arrow_type(column: Array) -> pa.DataType:
    if column.dtype.kind == "S":
        return pa.string()
    return pa.float64() if column.dtype.kind == "f" else pa.int64()


def _named(of: Array, names: Sequence[str | None]) -> pa.Array:
    """Return `names[of[i]]` as text, for each i."""
    return pa.array(names, pa.string()).take(pa.array(of.astype(np.int64)))


def _record_batch(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        column = columns[field.name]
        if isinstance(column, np.ndarray):
            column = pa.array(column.astype(field.type.to_pandas_dtype()))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
