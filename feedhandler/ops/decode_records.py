"""`feedhandler decode --as`: normalised records of a capture, in a file for other programs."""

import datetime
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import numpy
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from feedhandler.codecs import Feed
from feedhandler.codecs.dbn import SCHEMAS, Schema, encode_metadata
from feedhandler.codecs.dbn_tables import record_columns, record_table
from feedhandler.codecs.errors import UsageError
from feedhandler.market.capture_records import CaptureRecords
from feedhandler.replay.captures.reading import Datagram
from feedhandler.replay.captures.writer import remove_unfinished

#: Datagrams between two lots of records that are written.
LOT = 10_000
STDOUT: Final = "-"


def write_records(
    datagrams: Iterator[Datagram],
    feed: Feed,
    schema: str,
    form: str,
    out: str,
    day: datetime.date | None = None,
) -> CaptureRecords:
    """Write the capture's records to the file `out` ("-": stdout) in the form; return the account.

    Raises `UsageError` for a feed without books, and for a form that stdout does not take.
    """
    if out == STDOUT and form == "parquet":
        raise UsageError("a Parquet file is written from its end", "name a file: --out FILE")
    source = CaptureRecords(feed, schema, day=day)
    with tempfile.TemporaryFile() as kept:
        for number, datagram in enumerate(datagrams, 1):
            line = (datagram.group, datagram.port)
            source.add(datagram.payload, datagram.time_ns, line)
            if number % LOT == 0:
                kept.write(source.pop()[0])
        kept.write(source.pop()[0])
        kept.seek(0)
        if out == STDOUT:
            _FORMS[form](kept, sys.stdout.buffer, source, SCHEMAS[schema])
        else:
            with Path(out).open("wb") as file:
                try:
                    _FORMS[form](kept, file, source, SCHEMAS[schema])
                    file.flush()
                except BaseException:
                    remove_unfinished(Path(out))
                    raise
    return source


def _write_dbn(kept: IO[bytes], file: IO[bytes], source: CaptureRecords, schema: Schema) -> None:
    name = source.records.normaliser.feed.name
    head = encode_metadata(name, schema, source.first_ns, source.last_ns + 1, source.names())
    file.write(head)
    shutil.copyfileobj(kept, file)


def _write_csv(kept: IO[bytes], file: IO[bytes], source: CaptureRecords, schema: Schema) -> None:
    names = source.names()
    with pyarrow.csv.CSVWriter(file, record_columns(schema)) as writer:
        for table in _tables(kept, schema, names):
            writer.write_table(table)


def _write_arrow(kept: IO[bytes], file: IO[bytes], source: CaptureRecords, schema: Schema) -> None:
    names = source.names()
    with pyarrow.ipc.new_stream(file, record_columns(schema)) as writer:
        for table in _tables(kept, schema, names):
            writer.write_table(table)


def _write_parquet(
    kept: IO[bytes], file: IO[bytes], source: CaptureRecords, schema: Schema
) -> None:
    names = source.names()
    with pyarrow.parquet.ParquetWriter(file, record_columns(schema)) as writer:
        for table in _tables(kept, schema, names):
            writer.write_table(table)


_FORMS: Mapping[str, Callable[[IO[bytes], IO[bytes], CaptureRecords, Schema], None]] = {
    "dbn": _write_dbn,
    "csv": _write_csv,
    "arrow": _write_arrow,
    "parquet": _write_parquet,
}
#: The forms of a file, by name.
FORMS: Final = tuple(_FORMS)


def _tables(kept: IO[bytes], schema: Schema, names: Mapping[int, str]) -> Iterator[pyarrow.Table]:
    while block := kept.read(LOT * schema.records.itemsize):
        yield record_table(numpy.frombuffer(block, schema.records), names)
