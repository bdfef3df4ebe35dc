"""A lake of Parquet files: captures decoded once, one table a message layout.

    lake/capture=<identity>/type=order_update/day=2011-03-15/service=104/part-0.parquet
    lake/capture=<identity>/_about.json       which capture, of which feed, what was read
    lake/capture=<identity>/_tally/0.npz      what the tables of the session are made of
    lake/capture=<identity>/records=mbo/day=2011-03-15/part-0.parquet     (`lake_records`)

A capture is identified by its content, not by its name or compression: a second run finds its
folder and leaves it alone. A recording that has grown since replaces its former state
(`lake_identity`). A new one is first written to `_staging-<identity>` and becomes visible by one
rename when all of it is there; what an interrupted run left is removed by the next, and one process
at a time fills a lake. Spark ignores folders that begin with an underscore, so a table is read by

    spark.read.option("basePath", lake).parquet(f"{lake}/capture=*/type=order_update")

Slices are decoded in parallel by the mapper, each into files of its own, which are then put
together to files of at most `FILE_ROWS_MAX` rows; the mapper may repeat either step. The lake is a
local or mounted folder. `contents_table` reports what of a capture is in no table.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field, structs

from feedhandler.characterise import lake_files
from feedhandler.characterise.channels import ChannelMap, Samples, tally_keys
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.files import shown
from feedhandler.characterise.job import (
    FileAccount,
    Mapper,
    Outcome,
    Request,
    count_batch,
    look_at_all,
    note,
    sample_slices,
)
from feedhandler.characterise.lake_files import PartFiles, abandon
from feedhandler.characterise.lake_identity import (
    PREFIX_SIZES,
    Identity,
    begin_of,
    look,
    quick_identity,
)
from feedhandler.characterise.lake_lock import held
from feedhandler.characterise.lake_records import (
    channel_keys,
    folder_of,
    refuse_records,
    write_records,
)
from feedhandler.characterise.lake_rows import Contents, MessageTables, Partition
from feedhandler.characterise.planning import exact_slices
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import CaptureFile, Slice, SliceReport, slice_bytes
from feedhandler.characterise.tables import Table
from feedhandler.characterise.tally import TOTALS, Tally
from feedhandler.characterise.tally_blobs import packed, unpacked, write_whole
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError, unwritable

_FIRST_NS = TOTALS.index("first_ns")
#: The file in a capture's folder that its channels are guessed from (`channels.Samples`).
SAMPLES = "_samples.msgpack"


class Written(Struct, frozen=True):
    """The result of filling in one capture: its folder in the lake, and whether it is new.

    `records` are the rows of each schema of normalised records that was not there before.
    """

    path: str
    folder: str
    new: bool
    rows: int = 0
    problem: str = ""
    contents: Contents = field(default_factory=Contents)
    records: dict[str, int] = {}


class About(Struct):
    """The content of `_about.json`.

    `size` and `begins` are of the content; `known`: quick identities of files that were found to
    hold this capture; `marks`: by size, identities of its beginnings.
    """

    path: str
    feed: str
    size: int
    begins: str
    rows: int
    account: FileAccount
    contents: Contents
    known: list[str]
    marks: dict[int, str]


class _Shelf:
    """The captures of one feed that are in a lake."""

    def __init__(self, lake: Path, feed: str) -> None:
        self.lake = lake
        self.feed = feed
        self.abouts: dict[str, About] = {}
        for folder in sorted(lake.glob("capture=*")):
            about = read_about(folder)
            if about.feed == feed:
                self.abouts[folder.name.partition("=")[2]] = about

    def folder(self, name: str) -> Path:
        return self.lake / f"capture={name}"

    def find(self, file: CaptureFile) -> tuple[str, Identity | None]:
        """Return the name of the capture that the file is, and its identity if the lake lacks it.

        A file that is found under another form of the same capture is noted there, for the next
        time.
        """
        quick = quick_identity(file, self.feed)
        for name, about in self.abouts.items():
            if name == quick or quick in about.known:
                return name, None
        begins = begin_of(file)
        sizes = [
            each.size
            for each in self.abouts.values()
            if each.account.records and begins.startswith(each.begins)
        ]
        identity = look(file, self.feed, {*sizes, *PREFIX_SIZES})
        same = self.abouts.get(identity.name)
        if same is None:
            return identity.name, identity
        same.known.append(quick)
        write_about(self.folder(identity.name), same)
        return identity.name, None

    def longer(self, identity: Identity) -> str:
        """Describe a longer capture in the lake that begins as this one; empty if there is none."""
        for about in self.abouts.values():
            both = about.marks.keys() & identity.at.keys()
            if about.size > identity.size and both:
                size = max(both)
                if about.marks[size] == identity.at[size]:
                    return f"a longer one, {about.path}, is in the lake: is it a part of that?"
        return ""

    def outgrown(self, identity: Identity) -> list[str]:
        """Return the names of the captures that are a beginning of this one."""
        return [name for name in identity.at.values() if name in self.abouts]


def read_about(folder: Path) -> About:
    """Read what is known of a capture in the lake. Raises `UsageError` where it cannot."""
    try:
        return msgspec.json.decode((folder / "_about.json").read_bytes(), type=About)
    except (OSError, msgspec.DecodeError):
        hint = "an older version wrote it, or it is damaged: remove the folder and fill the lake"
        raise UsageError(f"{folder} has no readable account of its capture", hint) from None


def write_about(folder: Path, about: About) -> None:
    """Write what is known of a capture. Raises `OSError`."""
    write_whole(folder / "_about.json", msgspec.json.encode(about))


def fill_lake(
    paths: Sequence[str],
    feed: str,
    lake: Path,
    mapper: Mapper = map,
    workers: int = 1,
    records: Sequence[str] = (),
) -> list[Written]:
    """Decode every capture that is not in the lake yet; report and skip unreadable files.

    `records` are schemas of normalised records that each of the captures is to have as well. Raises
    `UsageError` for those that the feed cannot have, and as `unwritable` says where the lake cannot
    be written; then no part of an incomplete capture stays.
    """
    load_feed(feed)
    refuse_records(feed, records)
    files, accounts = look_at_all(paths)
    lake = lake.absolute()  # workers may have another working directory
    try:
        lake.mkdir(parents=True, exist_ok=True)
        done = []
        with _filling(lake):
            for file in files:
                written = _fill_one(file, feed, lake, mapper, workers)
                new = _add_records(file, feed, Path(written.folder), records, mapper)
                done.append(structs.replace(written, records=new))
    except OSError as error:
        raise unwritable(f"to {lake}", error, "check --lake") from None
    odd = [Written(each.path, "", False, 0, each.problem) for each in accounts if each.problem]
    return done + odd


@contextlib.contextmanager
def _filling(lake: Path) -> Iterator[None]:
    """Hold the lake against other processes, and clear it: before, and after an `OSError`."""
    with held(lake):
        try:
            _clear(lake)
            yield
        except OSError:
            with contextlib.suppress(OSError):
                _clear(lake)
            raise


def _clear(lake: Path) -> None:
    """Remove what an interrupted run left."""
    for pattern in ("_staging-*", "_outgrown-*"):
        for folder in lake.glob(pattern):
            shutil.rmtree(folder)


def _fill_one(file: CaptureFile, feed: str, lake: Path, mapper: Mapper, workers: int) -> Written:
    shelf = _Shelf(lake, feed)
    name, identity = shelf.find(file)
    folder, staging = shelf.folder(name), lake / f"_staging-{name}"
    if identity is None:
        problem = shelf.abouts[name].account.problem
        return Written(shown(file.path), str(folder), False, problem=problem)
    (staging / "_tally").mkdir(parents=True)
    # Times that count from a clock message need all that came before them: one slice.
    has_clock = load_feed(feed).clock is not None
    size = max(file.size, 1) if has_clock else slice_bytes(file.size, workers)
    slices = exact_slices([file], size)
    keys = _channel_keys(slices, feed, staging, mapper)
    tasks = [(part, feed, str(staging), keys) for part in slices]
    account = FileAccount(shown(file.path), file.kind, file.size, slices=len(slices))
    contents = Contents()
    for report, outcome in mapper(_decode_slice, tasks):
        note(account, report)
        contents.add(outcome)
    rows = _put_all_together(staging, mapper)
    about = About(
        path=shown(file.path),
        feed=feed,
        size=identity.size,
        begins=identity.begins,
        rows=rows,
        account=account,
        contents=contents,
        known=[quick_identity(file, feed)],
        marks={size: identity.at[size] for size in PREFIX_SIZES if size in identity.at},
    )
    write_about(staging, about)
    _make_durable(staging)
    # Between the two renames the lake has neither, never both: nothing in it counts twice.
    for each in shelf.outgrown(identity):
        shelf.folder(each).rename(lake / f"_outgrown-{each}")
    staging.rename(folder)
    _clear(lake)
    problem = "; ".join(each for each in (account.problem, shelf.longer(identity)) if each)
    return Written(shown(file.path), str(folder), True, rows, problem, contents)


def _add_records(
    file: CaptureFile, feed: str, folder: Path, records: Sequence[str], mapper: Mapper
) -> dict[str, int]:
    """Make the records of a capture that its folder has not; return the rows of each schema."""
    lacking = tuple(each for each in dict.fromkeys(records) if not folder_of(folder, each).exists())
    if not lacking:
        return {}
    staging = folder.with_name(f"_staging-records-{folder.name}")
    staging.mkdir()
    task = (file, feed, lacking, str(staging), channel_keys(folder / SAMPLES))
    (rows,) = mapper(write_records, [task])
    _make_durable(staging)
    for each in lacking:
        folder_of(staging, each).rename(folder_of(folder, each))
    staging.rmdir()
    return rows


def _channel_keys(
    slices: Sequence[Slice], feed: str, staging: Path, mapper: Mapper
) -> dict[int, int] | None:
    """Guess which lines carry one channel's numbers, where the feed's packets name no service.

    The samples are kept in the capture's folder: a lake's captures may each hold one line.
    """
    if load_feed(feed).table.service_size:
        return None
    samples = sample_slices(slices, Request(feed), mapper)
    (staging / SAMPLES).write_bytes(msgspec.msgpack.encode(samples))
    return tally_keys(samples.guess())


def _put_all_together(staging: Path, mapper: Mapper) -> int:
    """Merge the slices' many files into few; return the number of rows."""
    rows = sum(mapper(_put_together, [str(each) for each in _leaves(staging)]))
    # Not before all are there: the mapper may run the task of a worker that died once more.
    for path in staging.rglob("slice-*.parquet"):
        path.unlink()
    return rows


def _leaves(staging: Path) -> list[Path]:
    """Return the folders that hold Parquet files."""
    return sorted({path.parent for path in staging.rglob("slice-*.parquet")})


def _make_durable(folder: Path) -> None:
    """Sync the folder's files, so that they survive a power cut after the rename shows them."""
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _decode_slice(
    task: tuple[Slice, str, str, dict[int, int] | None],
) -> tuple[SliceReport, Contents]:
    """Write one slice's rows and tally below the staging folder; runs in a worker."""
    part, feed_name, staging, keys = task
    feed = load_feed(feed_name)
    tables, tally = MessageTables(feed), Tally(feed.table, channel_keys=keys)
    reader = SliceReader(part)
    with _Writers(Path(staging), part.number) as writers:
        for batch in reader.batches():
            count_batch(tally, batch)
            for partition, rows in tables.batches(batch):
                writers.add(partition, rows)
    (Path(staging) / "_tally" / f"{part.number}.npz").write_bytes(packed(tally.columns()))
    return reader.report, tables.contents


class _Writers:
    """The open Parquet files of one slice, one for each partition that it has rows for."""

    def __init__(self, staging: Path, number: int) -> None:
        self._staging = staging
        self._number = number
        self._waiting: dict[Partition, list[pa.RecordBatch]] = {}
        self._rows: dict[Partition, int] = {}
        self._files: dict[Partition, pq.ParquetWriter] = {}

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            for file in self._files.values():
                abandon(file)

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Add rows of one partition, in order; write a row group once there are enough."""
        self._waiting.setdefault(partition, []).append(rows)
        self._rows[partition] = self._rows.get(partition, 0) + rows.num_rows
        if self._rows[partition] >= lake_files.GROUP_ROWS:
            self._write(partition)

    def _write(self, partition: Partition) -> None:
        table = pa.Table.from_batches(self._waiting.pop(partition))
        self._rows[partition] = 0
        file = self._files.get(partition)
        if file is None:
            folder = self._staging / f"type={partition.layout}" / f"day={partition.day}"
            folder = folder / f"service={partition.service}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"slice-{self._number:06}.parquet"
            file = self._files[partition] = pq.ParquetWriter(path, table.schema, compression="zstd")
        file.write_table(table)

    def close(self) -> None:
        """Write the rows that wait, and close the files."""
        for partition in list(self._waiting):
            self._write(partition)
        for file in self._files.values():
            file.close()


def _put_together(folder: str) -> int:
    """Merge the slices' files of one partition in order; return the rows. Runs in a worker."""
    with PartFiles(Path(folder)) as parts:
        for path in sorted(Path(folder).glob("slice-*.parquet")):
            source = pq.ParquetFile(path)
            for group in range(source.num_row_groups):
                parts.add(source.read_row_group(group))
            source.close()
    return parts.rows


def outcome_of(lake: Path, feed: str, channels: ChannelMap | None = None) -> Outcome:
    """Return what the job would find in the lake's captures of a feed.

    The captures are in the order of their first packets; `channels` as in a `Request`. Raises
    `UsageError` where there is no such capture.
    """
    found = []
    samples = Samples()
    for name, about in _Shelf(lake, feed).abouts.items():
        kept = lake / f"capture={name}" / SAMPLES
        if kept.exists():
            samples.merge(msgspec.msgpack.decode(kept.read_bytes(), type=Samples))
        folder = lake / f"capture={name}" / "_tally"
        parts = sorted(folder.glob("*.npz"), key=lambda path: int(path.stem))
        tallies = [unpacked(path.read_bytes()) for path in parts]
        firsts = [t["totals"][:, _FIRST_NS].min() for t in tallies if len(t["totals"])]
        found.append((min(firsts, default=0), about, tallies))
    if not found:
        raise UsageError(
            f"no capture of {feed} in the lake {lake}", "fill it with `feedhandler pipeline`"
        )
    digest, accounts = Digest(channels or samples.guess()), []
    for _, about, tallies in sorted(found, key=lambda each: (each[0], each[1].path)):
        accounts.append(about.account)
        for columns in tallies:
            digest.add(columns)
            digest.resolve()
    return Outcome(digest, accounts)


def contents_table(lake: Path, feed: str) -> Table:
    """Make the table of the outcomes of the messages of each capture in the lake."""
    rows = [
        [each.path, each.rows, *structs.astuple(each.contents), each.contents.lost]
        for each in sorted(_Shelf(lake, feed).abouts.values(), key=lambda each: each.path)
    ]
    columns = ["file", "rows", *Contents.__struct_fields__, "in_no_table"]
    note = (
        "Messages by packet headers. Those of unknown types, or too short for theirs, are kept as "
        "bytes (raw). In no table are those of compressed packets that could not be inflated and "
        "of packets whose messages are not whole."
    )
    return Table("lake", "What is in the lake", columns, rows, note)
