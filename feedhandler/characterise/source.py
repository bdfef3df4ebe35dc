"""The Spark data source `feedhandler`: captures as tables.

    from feedhandler import characterise
    characterise.register(spark)
    packets = spark.read.format("feedhandler").option("feed", "iex-deep").load("day/*.pcap.gz")

Options, all text:

feed        a built-in feed or a description's path; needed
path(s)     what `load` is given: files, folders, patterns, `s3a://...`, several as a list
rows        `packets` (default) or `messages`; `tallies`: see below
fields      decoded fields by name, comma between them (rows of messages)
from, until the window: full times (2026-11-20T09:00:00Z) or nanoseconds since 1970
service     one or several numbers
line        `group:port`, one or several
lines       names for them: `A=239.1.1.1:15000,B=239.1.2.1:15000`
slice_bytes about how long partitions of plain captures are
odd         `fail` (default) or `skip`: what to do with files that are no captures
channels    which lines carry one channel, for rows of tallies: a `ChannelMap` as JSON
complete    `yes`: nothing is being written, so that a stream takes the latest file whole

`spark.readStream` reads the same while captures are written: a folder of rotating recordings.
There `ordinal` counts within a batch.

A row of `tallies` is a slice, counted where it was read: what `following` keeps (`tally_blobs`),
for a session's tables without rows. `packets_only`: `yes` leaves messages alone.

Window, service and line are also pushed down from simple filters: `register` has Spark do that.
Module and reader are pickled: neither keeps anything open.
Needs pyspark; nothing else in the package imports this module.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct, structs
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # pragma: no cover (Spark before 4.2)

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A stand-in for older versions of Spark, which do not use it."""


from feedhandler.characterise.channels import ChannelMap
from feedhandler.characterise.cluster import is_local
from feedhandler.characterise.files import find_captures, look_at, shown
from feedhandler.characterise.following import blob_of
from feedhandler.characterise.growing import (
    STEP_BYTES_MAX,
    UNBOUNDED,
    ContentEnds,
    Offset,
    news,
    reach,
)
from feedhandler.characterise.job import Request, selected
from feedhandler.characterise.planning import exact_slices, with_pieces
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.rows import RowMaker
from feedhandler.characterise.slices import (
    SLICE_BYTES_MAX,
    CaptureFile,
    Slice,
    SliceReport,
    slice_bytes,
)
from feedhandler.characterise.tally_blobs import TallyBlob
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.playing.selection import parse_group
from feedhandler.replay.playing.time_spec import parse_time_spec

#: Workers that slices are cut for by default.
WORKERS = 4
#: A tally of a recording (`tally_blobs.TallyBlob`); the report as JSON.
TALLY_SCHEMA = pa.schema(
    [("name", pa.string()), ("start", pa.int64()), ("report", pa.binary()), ("tally", pa.binary())]
)
ROWS = ("packets", "messages", "tallies")


class Asked(Struct, frozen=True):
    """The options, parsed; `request`: what is read of the captures, and tallied for tallies."""

    request: Request
    paths: tuple[str, ...]
    rows: str = "packets"
    fields: tuple[str, ...] = ()
    lines: tuple[tuple[int, int, str], ...] = ()
    slice_bytes: int | None = None
    skip_odd: bool = False
    complete: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows. Raises `UsageError`."""
        return TALLY_SCHEMA if self.rows == "tallies" else self.row_maker().schema

    def row_maker(self) -> RowMaker:
        """Make the maker of rows. Raises `UsageError`."""
        names = {(group, port): name for group, port, name in self.lines}
        return RowMaker(
            load_feed(self.request.feed),
            messages=self.rows == "messages",
            fields=self.fields,
            lines=names,
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _moment_ns(text: str | None) -> int | None:
    if not text:
        return None
    if _is_whole(text.removeprefix("-")):
        return int(text)
    spec = parse_time_spec(text)
    if spec.since != "epoch":
        raise UsageError(f"'{text}' is no full time", "give 2026-11-20T09:00:00Z, say")
    return spec.ns


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str, what: str) -> int:
    if not _is_whole(text):
        raise UsageError(f"{what}: '{text}' is no number", "give whole numbers")
    return int(text)


def _line(text: str) -> tuple[int, int, str]:
    name, _, address = text.partition("=")
    group, port = parse_group(address)
    if port is None:
        raise UsageError(f"'{text}' names no port", "give A=239.1.1.1:15000")
    return group, port, name


def _channels(text: str | None) -> ChannelMap | None:
    return msgspec.json.decode(text, type=ChannelMap) if text else None


def understand(options: Mapping[str, str]) -> Asked:
    """Parse the options as Spark has them. Raises `UsageError` where one is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    if "feed" not in given:
        raise UsageError("no feed is given", 'add .option("feed", "iex-deep"), say')
    rows = given.get("rows", "packets")
    if rows not in ROWS:
        raise UsageError(f"rows: '{rows}'", f"give {' or '.join(ROWS)}")
    paths = json.loads(given["paths"]) if "paths" in given else [given.get("path", "")]
    size = given.get("slice_bytes")
    request = Request(
        feed=given["feed"],
        from_ns=_moment_ns(given.get("from")),
        until_ns=_moment_ns(given.get("until")),
        groups=tuple(parse_group(word) for word in _words(given.get("line", ""))),
        services=tuple(_number(word, "service") for word in _words(given.get("service", ""))),
        messages=given.get("packets_only") != "yes",
        channels=_channels(given.get("channels")),
    )
    return Asked(
        request,
        paths=tuple(paths),
        rows=rows,
        fields=tuple(_words(given.get("fields", ""))),
        lines=tuple(_line(word) for word in _words(given.get("lines", ""))),
        slice_bytes=_number(size, "slice_bytes") if size else None,
        skip_odd=given.get("odd") == "skip",
        complete=given.get("complete") == "yes",
    )


def open_files(asked: Asked) -> list[CaptureFile]:
    """Examine the captures.

    Raises `UsageError` for a file that is none, unless such are to be skipped.
    """
    files = []
    for path in find_captures(asked.paths):
        try:
            files.append(look_at(path))
        except (PeerError, UsageError) as error:
            if not asked.skip_odd:
                raise UsageError(error.message, '.option("odd", "skip") passes over it') from None
    return files


class SlicePartition(InputPartition):
    """One slice of a capture."""

    def __init__(self, part: Slice) -> None:
        self.part = part


class FeedhandlerReader(DataSourceReader):
    """The reader of a query: plans the slices on the driver, reads one in a worker."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what `narrowed` can serve by reading less; yield all, as Spark checks again."""
        for each in filters:
            request = narrowed(self.asked.request, each, self.asked.lines)
            self.asked = structs.replace(self.asked, request=request)
            yield each

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the slices, a partition each."""
        files = open_files(self.asked)
        total = sum(file.size for file in files if file.kind == "pcap")
        size = self.asked.slice_bytes or slice_bytes(total, WORKERS)
        return [SlicePartition(part) for part in exact_slices(files, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        assert isinstance(partition, SlicePartition)
        asked, part = self.asked, partition.part
        if asked.rows == "tallies":
            yield _tally_row(part, asked.request)
            return
        maker = asked.row_maker()
        chosen = selected(SliceReader(part), asked.request, maker.feed.table)
        yield from maker.batches(chosen, shown(part.file.path), part.number)


def _tally_row(part: Slice, request: Request) -> pa.RecordBatch:
    """Tally one slice as a row."""
    piece = blob_of(part, request)
    row = {**structs.asdict(piece), "report": msgspec.json.encode(piece.report)}
    return pa.RecordBatch.from_pylist([row], TALLY_SCHEMA)


def blob_of_row(row: Any) -> TallyBlob:
    """Restore the piece that a row of tallies holds."""
    report = msgspec.json.decode(bytes(row.report), type=SliceReport)
    return TallyBlob(row.name, row.start, report, bytes(row.tally))


def narrowed(
    asked: Request, condition: Filter, lines: tuple[tuple[int, int, str], ...] = ()
) -> Request:
    """Narrow what is asked by what a simple filter certainly leaves out.

    Spark still applies the filter.
    """
    column = ".".join(getattr(condition, "attribute", ()))
    value = getattr(condition, "value", None)
    if column == "time_ns" and isinstance(value, int):
        if isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo):
            begin = value if asked.from_ns is None else max(value, asked.from_ns)
            asked = structs.replace(asked, from_ns=begin)
        if isinstance(condition, LessThan | LessThanOrEqual | EqualTo):
            end = value + 1 if asked.until_ns is None else min(value + 1, asked.until_ns)
            asked = structs.replace(asked, until_ns=end)
    if column == "service" and not asked.services:
        if isinstance(condition, EqualTo) and isinstance(value, int):
            asked = structs.replace(asked, services=(value,))
        elif isinstance(condition, In) and isinstance(value, tuple):
            asked = structs.replace(asked, services=value)
    if column == "line" and isinstance(condition, EqualTo) and not asked.groups:
        named = {name: (group, port) for group, port, name in lines}
        if value in named:
            asked = structs.replace(asked, groups=(named[value],))
        elif isinstance(value, str) and ":" in value and not named:
            asked = structs.replace(asked, groups=(parse_group(value),))
    return asked


class FeedhandlerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of captures while they grow; offsets are bytes of files (`growing`).

    Spark keeps one of these for each query. Spark before 4.2 does not say which offset it has, so
    the next look begins at the last one returned (`_latest`). `_target` is where a query ends that
    is to read only what is there now.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._latest: Offset = {}
        self._ends = False
        self._target: Offset | None = None
        self._content_ends = ContentEnds()

    def initialOffset(self) -> Offset:
        """Return the offset before anything is read."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to what is there now, in as many batches as that takes."""
        self._ends = True

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the offset up to which everything is whole.

        A batch is bounded where the offset read before is known; without it, a bound could lie
        before that offset.
        """
        bounded = start is not None
        known = start or self._latest
        if self._ends and self._target is None:
            self._target = self._reach(known, UNBOUNDED)
        found = self._reach(known, STEP_BYTES_MAX if bounded else UNBOUNDED)
        if self._target is not None:
            target = self._target
            found = {name: min(at, target[name]) for name, at in found.items() if name in target}
        self._latest = found
        return found

    def _reach(self, known: Offset, step: int) -> Offset:
        complete, ends = self.asked.complete, self._content_ends
        return reach(self.asked.paths, known, step, complete=complete, ends=ends)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the slices of a batch."""
        size = self.asked.slice_bytes or SLICE_BYTES_MAX
        parts = news(start, end, size)
        if self.asked.rows != "tallies":  # who keeps those passes the pieces on (`following`)
            parts = [with_pieces(part) for part in parts]
        return [SlicePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        return FeedhandlerReader(self.asked).read(partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: no state is kept for a finished batch."""


class FeedhandlerSource(DataSource):
    """The data source; see the module's text."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "feedhandler"

    def schema(self) -> StructType:
        """Return the schema of the wanted rows."""
        return from_arrow_schema(understand(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a reader of everything that is asked for."""
        return FeedhandlerReader(understand(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make a reader of what comes while captures are written."""
        return FeedhandlerStreamReader(understand(self.options))


def register(spark: SparkSession) -> None:
    """Register the data source, and set what it needs in the session."""
    # A source that takes filters is refused without it.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    context = getattr(spark, "sparkContext", None)
    if context is not None and is_local(context) and "PYSPARK_PYTHON" not in os.environ:
        # Else workers of this machine run `python3`, which may lack this package.
        context.pythonExec = sys.executable
    spark.dataSource.register(FeedhandlerSource)
