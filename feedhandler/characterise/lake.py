"""A lake of Parquet files: captures decoded once, one table a message layout.

    lake/capture=<identity>/type=order_update/day=2011-03-15/service=104/part-0.parquet
    lake/capture=<identity>/_about.json       which capture, of which feed, what was read
    lake/capture=<identity>/_tally/0.npz      what the tables of the session are made of

A capture is known by what it holds, not by its name: a second run finds its folder and leaves it
alone. A new one is written beside, in `_staging-<identity>`, and becomes visible by one rename when
all of it is there; what an interrupted run left is removed by the next. Folders that begin with an
underscore are none of Spark's, so a table is read by

    spark.read.option("basePath", lake).parquet(f"{lake}/capture=*/type=order_update")

Slices are decoded side by side by whatever runs them, each into files of its own, which are then
put together to files of at most `FILE_ROWS_MAX` rows. The lake is a local or mounted folder.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from feedhandler.characterise.digest import Digest
from feedhandler.characterise.files import local_copy, shown
from feedhandler.characterise.job import FileAccount, Outcome, look_at_all
from feedhandler.characterise.lake_rows import MessageTables, Place
from feedhandler.characterise.planning import exact_slices
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import CaptureFile, Slice, SliceReport, slice_bytes
from feedhandler.characterise.tally import Tally
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError

#: Rows that are gathered for one place before they are written as a row group.
GROUP_ROWS = 1 << 17
#: Rows a file at most: some hundred megabytes.
FILE_ROWS_MAX = 5_000_000
#: Bytes at either end of a capture that make its identity, with its size.
IDENTITY_BYTES = 1 << 20

#: Calls a function with each of many values, in any place and any order; answers in order.
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Written(Struct, frozen=True):
    """What became of a capture: its folder in the lake, and whether this run made it."""

    path: str
    folder: str
    new: bool
    rows: int = 0
    problem: str = ""


class About(Struct):
    """What `_about.json` holds."""

    path: str
    feed: str
    size: int
    rows: int
    account: FileAccount


def here(function: Callable[[Any], Any], values: Sequence[Any]) -> Iterable[Any]:
    """A mapper: one after the other, in this process."""
    return map(function, values)


def identity_of(file: CaptureFile, feed: str) -> str:
    """Of a capture's content as this feed reads it: 24 hexadecimal digits."""
    digest = hashlib.blake2b(f"{feed} {file.size} ".encode(), digest_size=12)
    with local_copy(file.path) as path, path.open("rb") as opened:
        digest.update(opened.read(IDENTITY_BYTES))
        opened.seek(max(0, file.size - IDENTITY_BYTES))
        digest.update(opened.read(IDENTITY_BYTES))
    return digest.hexdigest()


def fill_lake(
    paths: Sequence[str], feed: str, lake: Path, mapper: Mapper = here, workers: int = 1
) -> list[Written]:
    """Decode every capture that is not in the lake yet; odd files are told and passed over.

    Raises `UsageError` where the lake cannot be written."""
    load_feed(feed)
    files, accounts = look_at_all(paths)
    try:
        lake.mkdir(parents=True, exist_ok=True)
        done = [_fill_one(file, feed, lake, mapper, workers) for file in files]
    except OSError as error:
        raise UsageError(f"cannot write to {lake}: {error.strerror}", "check --lake") from None
    odd = [Written(each.path, "", False, 0, each.problem) for each in accounts if each.problem]
    return done + odd


def _fill_one(file: CaptureFile, feed: str, lake: Path, mapper: Mapper, workers: int) -> Written:
    identity = identity_of(file, feed)
    folder, staging = lake / f"capture={identity}", lake / f"_staging-{identity}"
    if folder.is_dir():
        return Written(shown(file.path), str(folder), False)
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "_tally").mkdir(parents=True)
    slices = exact_slices([file], slice_bytes(file.size, workers))
    tasks = [(part, feed, str(staging)) for part in slices]
    account = FileAccount(shown(file.path), file.kind, file.size, slices=len(slices))
    for report in mapper(_decode_slice, tasks):
        _note(account, report)
    rows = sum(mapper(_put_together, [str(each) for each in _leaves(staging)]))
    about = About(shown(file.path), feed, file.size, rows, account)
    (staging / "_about.json").write_text(json.dumps(structs.asdict(about), default=structs.asdict))
    _make_durable(staging)
    staging.rename(folder)
    return Written(shown(file.path), str(folder), True, rows, account.problem)


def _note(account: FileAccount, report: SliceReport) -> None:
    account.records += report.records
    account.datagrams += report.datagrams
    account.problem = account.problem or report.damage or report.cut


def _leaves(staging: Path) -> list[Path]:
    """The folders that hold Parquet files."""
    return sorted({path.parent for path in staging.rglob("slice-*.parquet")})


def _make_durable(folder: Path) -> None:
    """What is in the folder survives a power cut before the rename tells of it."""
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _decode_slice(task: tuple[Slice, str, str]) -> SliceReport:
    """Write one slice's rows and tally below the staging folder. What workers run."""
    part, feed_name, staging = task
    feed = load_feed(feed_name)
    tables, tally = MessageTables(feed), Tally(feed.table)
    reader, writers = SliceReader(part), _Writers(Path(staging), part.number)
    for batch in reader.batches():
        tally.take(
            batch.data,
            batch.offset,
            batch.length,
            batch.frame_length,
            batch.time_ns,
            batch.destination,
            batch.destination_port,
        )
        for place, rows in tables.batches(batch):
            writers.add(place, rows)
    writers.close()
    np.savez(Path(staging) / "_tally" / f"{part.number}.npz", **tally.columns())  # type: ignore[arg-type]
    return reader.report


class _Writers:
    """A Parquet file for each place that a slice has rows for."""

    def __init__(self, staging: Path, number: int) -> None:
        self._staging = staging
        self._number = number
        self._waiting: dict[Place, list[pa.RecordBatch]] = {}
        self._rows: dict[Place, int] = {}
        self._files: dict[Place, pq.ParquetWriter] = {}

    def add(self, place: Place, rows: pa.RecordBatch) -> None:
        """Rows of one place, in order."""
        self._waiting.setdefault(place, []).append(rows)
        self._rows[place] = self._rows.get(place, 0) + rows.num_rows
        if self._rows[place] >= GROUP_ROWS:
            self._write(place)

    def _write(self, place: Place) -> None:
        table = pa.Table.from_batches(self._waiting.pop(place))
        self._rows[place] = 0
        file = self._files.get(place)
        if file is None:
            folder = self._staging / f"type={place.layout}" / f"day={place.day}"
            folder = folder / f"service={place.service}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"slice-{self._number:06}.parquet"
            file = self._files[place] = pq.ParquetWriter(path, table.schema, compression="zstd")
        file.write_table(table)

    def close(self) -> None:
        """Write what waits, and end the files."""
        for place in list(self._waiting):
            self._write(place)
        for file in self._files.values():
            file.close()


def _put_together(folder: str) -> int:
    """The slices' files of one place as few files, in order; how many rows. What workers run."""
    whole = rows = number = 0
    writer: pq.ParquetWriter | None = None
    for path in sorted(Path(folder).glob("slice-*.parquet")):
        source = pq.ParquetFile(path)
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            if writer is not None and rows + table.num_rows > FILE_ROWS_MAX:
                writer.close()
                writer, rows, number = None, 0, number + 1
            if writer is None:
                target = Path(folder) / f"part-{number}.parquet"
                writer = pq.ParquetWriter(target, table.schema, compression="zstd")
            writer.write_table(table)
            rows += table.num_rows
            whole += table.num_rows
        source.close()
        path.unlink()
    if writer is not None:
        writer.close()
    return whole


def outcome_of(lake: Path, feed: str) -> Outcome:
    """What the job would find in the lake's captures of a feed, in the order of their first
    packets. Raises `UsageError` where there is none."""
    found = []
    for folder in sorted(lake.glob("capture=*")):
        about = json.loads((folder / "_about.json").read_text())
        if about["feed"] == feed:
            parts = sorted((folder / "_tally").glob("*.npz"), key=lambda path: int(path.stem))
            tallies = [_tally_of(path) for path in parts]
            firsts = [t["totals"][:, 11].min() for t in tallies if len(t["totals"])]
            found.append((min(firsts, default=0), about, tallies))
    if not found:
        raise UsageError(
            f"no capture of {feed} in the lake {lake}", "fill it with `feedhandler pipeline`"
        )
    digest, accounts = Digest(), []
    for _, about, tallies in sorted(found, key=lambda each: (each[0], each[1]["path"])):
        accounts.append(FileAccount(**about["account"]))
        for columns in tallies:
            digest.add(columns)
    return Outcome(digest, accounts)


def _tally_of(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}
