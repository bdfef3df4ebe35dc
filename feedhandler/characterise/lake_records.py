"""Normalised records of the lake's captures, beside the tables of their messages.

    lake/capture=<identity>/records=mbo/day=2011-03-15/part-0.parquet

Books are kept from the first packet on, so a capture is read from its beginning to its end by one
task; of each packet the first copy counts (`market.capture_records`). Columns are those of DBN's
records, with the instrument's name as `symbol`, in all rows by the names in the whole capture. A
schema's folder appears by one rename, when all of it is there.
"""

import contextlib
import datetime
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import numpy

from feedhandler.characterise import lake_files
from feedhandler.characterise.channels import Samples, tally_keys
from feedhandler.characterise.lake_files import PartFiles
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import CaptureFile, whole
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.codecs.dbn_tables import record_table
from feedhandler.codecs.errors import UsageError
from feedhandler.market.capture_records import CaptureRecords
from feedhandler.replay.captures.reading import DatagramBatch, address_text

#: What one task does: the capture, its feed, the schemas, the folder they go into, and the channel
#: of each endpoint where packets name none.
Task = tuple[CaptureFile, str, tuple[str, ...], str, dict[int, int] | None]


def refuse_records(feed_name: str, schemas: Sequence[str]) -> None:
    """Raise `UsageError` for schemas that there are not, and for a feed without books."""
    for schema in schemas:
        if schema not in SCHEMAS:
            raise UsageError(f"no records {schema!r}", f"name some of {', '.join(SCHEMAS)}")
    if schemas:
        CaptureRecords(load_feed(feed_name), *schemas)


def folder_of(capture: Path, schema: str) -> Path:
    """Return where a capture's records of a schema stand."""
    return capture / f"records={schema}"


def channel_keys(samples: Path) -> dict[int, int] | None:
    """Return the channel by endpoint, guessed of a capture's samples; None where there are none."""
    if not samples.exists():
        return None
    kept = msgspec.msgpack.decode(samples.read_bytes(), type=Samples)
    return tally_keys(kept.guess())


def write_records(task: Task) -> dict[str, int]:
    """Write a capture's records below a folder; return the rows of each schema. Runs in a worker.

    Raises `OSError` where the folder cannot be written.
    """
    file, feed_name, schemas, folder, keys = task
    source = CaptureRecords(load_feed(feed_name), *schemas)
    with contextlib.ExitStack() as opened:
        kept = _Kept(opened, Path(folder), schemas)
        for batch in SliceReader(whole(file)).batches():
            _add_batch(source, batch, keys, kept)
        names = source.names()
        return {schema: kept.write(schema, names) for schema in schemas}


def _add_batch(
    source: CaptureRecords, batch: DatagramBatch, keys: dict[int, int] | None, kept: "_Kept"
) -> None:
    """Add the datagrams of a batch, and keep the records of each day apart."""
    payloads = batch.data.data
    columns = (batch.time_ns, batch.destination, batch.destination_port, batch.offset, batch.length)
    for time_ns, group, port, begin, size in zip(*(c.tolist() for c in columns), strict=True):
        if source.day is not None and source.day_of(time_ns) != source.day:
            kept.add(source)
        endpoint = group << 16 | port
        channel = None if keys is None else keys.get(endpoint, endpoint)
        line = (address_text(group), port)
        source.add(bytes(payloads[begin : begin + size]), time_ns, line, channel)
    kept.add(source)


class _Kept:
    """Records that wait for the names, in temporary files, one a schema and day."""

    def __init__(
        self, opened: contextlib.ExitStack, folder: Path, schemas: tuple[str, ...]
    ) -> None:
        self._opened, self._folder = opened, folder
        self._files: dict[str, dict[datetime.date, IO[bytes]]] = {schema: {} for schema in schemas}

    def add(self, source: CaptureRecords) -> None:
        """Take the records that a source has made since the last call, all of its present day."""
        if source.day is None:
            return
        for schema, records in zip(source.schemas, source.pop(), strict=True):
            if not len(records):
                continue
            files = self._files[schema]
            if source.day not in files:
                file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (the stack closes it)
                files[source.day] = self._opened.enter_context(file)
            files[source.day].write(records.tobytes())

    def write(self, schema: str, names: dict[int, str]) -> int:
        """Write the tables of one schema; return the rows."""
        rows = 0
        kind = SCHEMAS[schema]
        target = folder_of(self._folder, schema)
        shutil.rmtree(target, ignore_errors=True)  # of a worker that died over the same task
        target.mkdir()
        for day, file in self._files[schema].items():
            file.seek(0)
            folder = target / f"day={day.isoformat()}"
            folder.mkdir()
            with PartFiles(folder) as parts:
                while block := file.read(lake_files.GROUP_ROWS * kind.records.itemsize):
                    parts.add(record_table(numpy.frombuffer(block, kind.records), names))
            rows += parts.rows
        return rows
