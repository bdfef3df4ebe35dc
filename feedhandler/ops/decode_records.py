"""`feedhandler decode --as`: normalised records of a capture, in a file that other programs read.

Of each packet the first copy counts, in the order of the capture: a packet whose number came before
is passed over. After numbers that did not come in order the records of that service say that its
books may be wrong (FLAG_MAYBE_BAD_BOOK), until new numbers begin: with a new session, or with a
reset on a line that had brought the reset before.
"""

import datetime
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from feedhandler.codecs import Feed, ReferenceData
from feedhandler.codecs.dbn import SCHEMAS, UNDEFINED_TIME, Schema, encode_metadata
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import BadPacket
from feedhandler.codecs.kinds import PacketKind
from feedhandler.market.records import Records
from feedhandler.replay.captures.reading import Datagram

Array = numpy.ndarray[Any, Any]

#: Datagrams between two lots of records that are written.
LOT = 10_000
STDOUT: Final = "-"


class _Numbering:
    """The numbers of one service and session: what comes next, and whether something is missing."""

    def __init__(self) -> None:
        self.following: int | None = None
        self.has_gap = False
        #: The lines that have brought the reset with which the numbers began.
        self.reset_by: set[tuple[str, int]] = set()

    def reset(self, line: tuple[str, int], following: int) -> bool:
        """Take a reset; return whether it begins new numbers, or is another line's copy."""
        if self.reset_by and line not in self.reset_by:
            self.reset_by.add(line)
            return False
        self.following, self.has_gap, self.reset_by = following, False, {line}
        return True

    def take(self, first: int, following: int) -> bool:
        """Take a data packet; return whether it is new."""
        if self.following is not None and first < self.following:
            return False
        self.has_gap |= self.following is not None and first > self.following
        self.following = following
        return True


class Unduplicated:
    """Messages of datagrams to records, each packet once; `rejected` are other feeds' datagrams.

    `day` is the trading day; None: that of the first datagram.
    """

    def __init__(self, feed: Feed, schema: str, day: datetime.date | None) -> None:
        self.records = Records(feed, schema, name_of=self._name_of)
        self.schema = schema
        self.rejected = self.copies = self.packets = 0
        self.first_ns = self.last_ns = 0
        self.day: datetime.date | None = None
        self._feed = feed
        self._known = ReferenceData(feed)
        self._numberings: dict[tuple[int, int], _Numbering] = {}
        if day is not None:
            self._set_day(day)

    def _set_day(self, day: datetime.date) -> None:
        self.day = day
        self.records.normaliser.set_day(day)

    def take(self, datagram: Datagram) -> None:
        """Take one datagram of the capture."""
        if self.day is None:
            self._set_day(self._feed.trading_day.of(datagram.time_ns))
        self.first_ns, self.last_ns = self.first_ns or datagram.time_ns, datagram.time_ns
        try:
            for begin, header, index in self._feed.scanned(datagram.payload):
                self.packets += 1
                if self._is_new(datagram, header):
                    self._packet(datagram, begin, header, index)
                else:
                    self.copies += 1
        except BadPacket:
            self.rejected += 1

    def _is_new(self, datagram: Datagram, header: Any) -> bool:
        """Return whether a packet is no copy; set what its records say of the books."""
        key = (header.service, header.session)
        numbering = self._numberings.setdefault(key, _Numbering())
        is_new = True
        if header.kind == PacketKind.RESET:
            line = (datagram.group, datagram.port)
            is_new = numbering.reset(line, header.next_sequence)
        elif header.kind == PacketKind.DATA:
            is_new = numbering.take(header.sequence, header.next_sequence)
        self.records.normaliser.maybe_bad = numbering.has_gap
        return is_new

    def _packet(self, datagram: Datagram, begin: int, header: Any, index: Any) -> None:
        feed, data = self._feed, datagram.payload
        sent_ns = feed.send_time_ns(header.send_time, feed.midnights(self.day))
        for place in range(index.count):
            if index.types[place] == self._known.code:
                at = begin + index.offsets[place]
                self._known.learn(data[at : at + index.sizes[place]])
        sent_ns = UNDEFINED_TIME if sent_ns is None else sent_ns
        self.records.take_packet(data, begin, index, 0, sent_ns, datagram.time_ns, header.service)

    def taken(self) -> Array:
        """Return the records since the last call."""
        taken = self.records.of(self.schema).copy()
        self.records.clear()
        return taken

    def write(self, file: IO[bytes]) -> None:
        """Write the records since the last call."""
        file.write(self.taken().tobytes())

    def _name_of(self, instrument: int) -> str:
        symbol = self.records.normaliser.symbol_of(instrument)
        return self._known.names.get(symbol) or self._feed.symbol_text(symbol)

    def names(self) -> dict[int, str]:
        """Return the symbols' names by instrument id, as far as they are known."""
        numbers = self.records.normaliser.instrument_ids()
        if not numbers:
            return {symbol & 0xFFFF_FFFF: name for symbol, name in self._known.names.items()}
        told = {
            number: self._known.names.get(symbol) or self._feed.symbol_name(symbol)
            for symbol, number in numbers.items()
        }
        return {number: name for number, name in told.items() if name}


def write_records(
    datagrams: Iterator[Datagram],
    feed: Feed,
    schema: str,
    form: str,
    out: str,
    day: datetime.date | None = None,
) -> Unduplicated:
    """Write the capture's records to the file `out` ("-": stdout) in the form; return the account.

    Raises `UsageError` for a feed without books, and for a form that stdout does not take.
    """
    if out == STDOUT and form == "parquet":
        raise UsageError("a Parquet file is written from its end", "name a file: --out FILE")
    source = Unduplicated(feed, schema, day)
    with tempfile.TemporaryFile() as kept:
        for number, datagram in enumerate(datagrams, 1):
            source.take(datagram)
            if number % LOT == 0:
                source.write(kept)
        source.write(kept)
        kept.seek(0)
        if out == STDOUT:
            _FORMS[form](kept, sys.stdout.buffer, source, SCHEMAS[schema])
        else:
            with Path(out).open("wb") as file:
                _FORMS[form](kept, file, source, SCHEMAS[schema])
    return source


def _write_dbn(kept: IO[bytes], file: IO[bytes], source: Unduplicated, schema: Schema) -> None:
    day = source.day or datetime.date(1970, 1, 1)
    name = source.records.normaliser.feed.name
    head = encode_metadata(name, schema, source.first_ns, source.last_ns, source.names(), day)
    file.write(head)
    shutil.copyfileobj(kept, file)


def _write_csv(kept: IO[bytes], file: IO[bytes], source: Unduplicated, schema: Schema) -> None:
    with pyarrow.csv.CSVWriter(file, _arrow_schema(schema)) as writer:
        for table in _tables(kept, schema):
            writer.write_table(table)


def _write_arrow(kept: IO[bytes], file: IO[bytes], source: Unduplicated, schema: Schema) -> None:
    with pyarrow.ipc.new_stream(file, _arrow_schema(schema)) as writer:
        for table in _tables(kept, schema):
            writer.write_table(table)


def _write_parquet(kept: IO[bytes], file: IO[bytes], source: Unduplicated, schema: Schema) -> None:
    with pyarrow.parquet.ParquetWriter(file, _arrow_schema(schema)) as writer:
        for table in _tables(kept, schema):
            writer.write_table(table)


_FORMS: Mapping[str, Callable[[IO[bytes], IO[bytes], Unduplicated, Schema], None]] = {
    "dbn": _write_dbn,
    "csv": _write_csv,
    "arrow": _write_arrow,
    "parquet": _write_parquet,
}
#: The forms of a file, by name.
FORMS: Final = tuple(_FORMS)


def _tables(kept: IO[bytes], schema: Schema) -> Iterator[pyarrow.Table]:
    while block := kept.read(LOT * schema.records.itemsize):
        yield _table(numpy.frombuffer(block, schema.records))


def _table(records: Array) -> pyarrow.Table:
    """Return the records as a table, a column a field; one letter is text, `length` is left out."""
    columns = {}
    for name in records.dtype.names or ():
        if name != "length":
            column = numpy.ascontiguousarray(records[name])
            columns[name] = column.astype("U1") if column.dtype.kind == "S" else column
    return pyarrow.table(columns)


def _arrow_schema(schema: Schema) -> pyarrow.Schema:
    return _table(numpy.zeros(0, schema.records)).schema
