"""Messages of a slice as Arrow tables, one for each message layout, for the lake's files.

`MessageTables` takes batches of a capture and yields, for each layout, day and service, record
batches with real column types: times as 64-bit nanoseconds, prices of a fixed scale as decimals,
prices whose scale is in the message as the wire's integer beside that scale, text as text. Rows
stand in the order of the capture; those of compressed packets, whose column `refresh` is true,
behind the others of the same batch. Messages of unknown types, and those too short for their type,
are kept as bytes in a table of their own (`RAW`). `contents` counts what is in no table.
"""

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from feedhandler.characterise.rows import RowMaker
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.columns import Columns
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import Reject
from feedhandler.codecs.layouts import Layout
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.replay.captures.packet_headers import read_headers
from feedhandler.replay.captures.reading import DatagramBatch

Array = np.ndarray[Any, Any]

#: Digits of a decimal price: what a signed integer of 64 bits can hold.
PRICE_DIGITS = 19
#: The table of messages that no layout fits.
RAW = "unknown"


class Contents(Struct):
    """Counts of the messages of a capture by outcome.

    `messages`: by packet headers; `in_tables`: decoded; `raw`: kept as bytes, of unknown types or
    too short; `refresh_packets`: compressed ones that were inflated; `not_inflated`, `not_whole`:
    packets whose messages could not be read. A message is in one of the tables or in such a packet.
    """

    messages: int = 0
    in_tables: int = 0
    raw: int = 0
    refresh_packets: int = 0
    not_inflated: int = 0
    not_whole: int = 0

    @property
    def lost(self) -> int:
        """The number of messages that are in no table."""
        return self.messages - self.in_tables - self.raw

    def add(self, other: "Contents") -> None:
        """Add another's counts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Partition(NamedTuple):
    """The partition in the lake where rows belong."""

    layout: str
    day: str
    service: int


class MessageTables:
    """Makes the lake's record batches of a feed's messages; see the module's text."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.contents = Contents()
        self._maker = RowMaker(feed, messages=True)
        self._layouts = [
            _LayoutTable(feed, layout) for ways in feed.layouts.values() for layout in ways
        ]

    def batches(self, batch: DatagramBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """Yield the rows of one batch of datagrams, by partition."""
        messages, packets = self._maker.counts(batch)
        self.contents.messages += messages
        self.contents.not_whole += packets
        yield from self._tables(batch, refresh=False)
        refresh, bad = _inflated(self.feed, batch)
        self.contents.not_inflated += bad
        self.contents.refresh_packets += len(refresh)
        self.contents.not_whole += len(refresh)
        yield from self._tables(refresh, refresh=True)

    def _tables(
        self, batch: DatagramBatch, *, refresh: bool
    ) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """Yield the rows of packets whose bodies are not compressed, or no longer."""
        for columns, data, index in self._maker.scans(batch):
            self.contents.not_whole -= index.packets
            columns["refresh"] = refresh
            for first, last, day in _days(columns["time_ns"], self.feed.trading_day):
                taken = np.zeros(len(columns["code"]), bool)
                for table in self._layouts:
                    rows = table.rows(columns, data, index, day)
                    if rows is None:
                        continue
                    taken[rows["at"]] = True
                    within = pa.array((rows["at"] >= first) & (rows["at"] < last))
                    yield from _by_service(table.layout.name, day, rows["batch"].filter(within))
                raw = np.flatnonzero(~taken[first:last]) + first
                self.contents.raw += len(raw)
                self.contents.in_tables += last - first - len(raw)
                if len(raw):
                    yield from _by_service(RAW, day, _raw_rows(columns, data, index, raw))


def _inflated(feed: Feed, batch: DatagramBatch) -> tuple[DatagramBatch, int]:
    """Inflate the batch's compressed packets and clear their flags; also return how many failed.

    The packets lie over bytes of their own; those that could not be inflated are left out.
    """
    headers = read_headers(feed.table, batch.data, batch.offset, batch.length)
    rows = np.flatnonzero((headers.verdict == Reject.FINE) & (headers.compressed != 0))
    packets, good = [], []
    for row in rows.tolist():
        try:
            packets.append(feed.inflated(batch.payload(row)))
        except BadPacket:
            continue
        good.append(row)
    length = np.array([len(packet) for packet in packets], np.uint32)
    offset = (np.cumsum(length) - length).astype(np.uint32)
    made = dataclasses.replace(
        batch.select(np.array(good, np.int64)),
        data=np.frombuffer(b"".join(packets), np.uint8),
        offset=offset,
        length=length,
        frame_offset=offset,
        frame_length=length,
    )
    return made, len(rows) - len(good)


def _raw_rows(columns: dict[str, Any], data: Array, index: Any, rows: Array) -> pa.RecordBatch:
    """Make rows of messages kept as bytes."""
    offsets, sizes = (index.arrays()[name][rows].tolist() for name in ("offsets", "sizes"))
    taken = pa.array(rows)
    made = {
        "time_ns": pa.array(columns["time_ns"][rows]),
        "line": columns["line"].take(taken),
        "sequence": pa.array(columns["sequence"][rows].astype(np.int64)),
        "number": pa.array(columns["number"][rows].astype(np.int32)),
        "service": pa.array(columns["service"][rows].astype(np.int64)),
        "symbol": columns["symbol"].take(taken),
        "refresh": pa.repeat(columns["refresh"], len(rows)),
        "type": columns["type"].take(taken),
        "body": pa.array(
            [data[at : at + size].tobytes() for at, size in zip(offsets, sizes, strict=True)],
            pa.binary(),
        ),
    }
    return pa.RecordBatch.from_pydict(made)


def _days(times_ns: Array, trading_day: TradingDay) -> Iterator[tuple[int, int, datetime.date]]:
    """Yield stretches of rows of one trading day: first row, row after the last, day.

    Most batches are one stretch. Times may go back.
    """
    days = [trading_day.of(int(time_ns)) for time_ns in (times_ns.min(), times_ns.max())]
    if days[0] == days[1]:
        yield 0, len(times_ns), days[0]
        return
    every = [trading_day.of(each) for each in times_ns.tolist()]
    starts = [n for n, day in enumerate(every) if n == 0 or day != every[n - 1]]
    for start, end in zip(starts, [*starts[1:], len(every)], strict=True):
        yield start, end, every[start]


def _by_service(
    layout: str, day: datetime.date, rows: pa.RecordBatch
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Split rows by service; the service itself goes into the partition, not the columns."""
    service = rows.column("service").to_numpy(zero_copy_only=False)
    for each in np.unique(service).tolist():
        mine = rows if (service == each).all() else rows.filter(pa.array(service == each))
        yield Partition(layout, day.isoformat(), int(each)), mine.drop_columns(["service"])


class _LayoutTable:
    """Makes the rows of one layout."""

    def __init__(self, feed: Feed, layout: Layout) -> None:
        self.layout = layout
        self._columns = Columns(feed, layout.name)
        larger = [each.size for each in feed.layouts[layout.code] if each.size > layout.size]
        self._below = min(larger, default=2**32)
        blocks = [layout.named] if layout.group is None else [layout.named, layout.group.named]
        prices = [field for fields in blocks for field in fields if field.price is not None]
        self._scales = {field.name: field.price for field in prices}
        self._nulls = {field.name: field.null for field in prices}

    def rows(
        self, columns: dict[str, Any], data: Array, index: Any, day: datetime.date
    ) -> dict[str, Any] | None:
        """Return the layout's rows of all that was scanned; None where there are none.

        `batch` has the rows, `at` the message of each (i64).
        """
        sizes = columns["message_bytes"]
        mine = (columns["code"] == self.layout.code) & (sizes >= self.layout.size)
        indexes = np.flatnonzero(mine & (sizes < self._below))
        if not len(indexes):
            if self._columns.feed.clock is not None:
                self._columns.decode(data, index, day)  # it keeps the clock for rows of later calls
            return None
        self._columns.decode(data, index, day)
        arrays = self._columns.arrays
        at = indexes
        if "element" in arrays:
            at = indexes[np.cumsum(arrays["element"] <= 0) - 1]
        taken = pa.array(at)
        made: dict[str, Any] = {
            "time_ns": pa.array(columns["time_ns"][at]),
            "line": columns["line"].take(taken),
            "sequence": pa.array(arrays["seq"].astype(np.int64)),
            "number": pa.array(columns["number"][at].astype(np.int32)),
            "service": pa.array(arrays["service"].astype(np.int64)),
            "symbol": columns["symbol"].take(taken),
            "refresh": pa.repeat(columns["refresh"], len(at)),
        }
        decoded = self._columns.to_arrow()
        for name in decoded.schema.names:
            if name not in ("seq", "service", "symbol", "refresh") and name not in self._scales:
                self._put(made, name, decoded.column(name), arrays[name])
        return {"at": at, "batch": pa.RecordBatch.from_pydict(made)}

    def _put(self, made: dict[str, Any], name: str, column: pa.Array, raw: Array) -> None:
        """Add one decoded column under its name, prices as decimals or with their scale."""
        price = name.removesuffix("_raw")
        if price == name or price not in self._scales:
            made[name] = column
            return
        scale = self._scales[price]
        null = self._nulls[price]
        if isinstance(scale, int):
            made[price] = decimals(raw, scale, null)
        else:
            made[price] = column if null is None else pa.array(raw, mask=raw == null)


def decimals(raw: Array, scale: int, null: int | None = None) -> pa.Array:
    """Convert integers to decimals with `scale` decimal places, all at once.

    `null` is none, and so is an unsigned integer of more digits than a price has.
    """
    words = np.empty((len(raw), 2), np.int64)
    words[:, 0] = raw.astype(np.int64)
    words[:, 1] = words[:, 0] >> 63 if raw.dtype.kind == "i" else 0
    kind = pa.decimal128(PRICE_DIGITS, scale)
    made = pa.Array.from_buffers(kind, len(raw), [None, pa.py_buffer(words.tobytes())])
    is_none = raw >= 10**PRICE_DIGITS if raw.dtype == np.uint64 else np.zeros(len(raw), bool)
    if null is not None:
        is_none |= raw == null
    return pc.if_else(pa.array(is_none), None, made) if is_none.any() else made
