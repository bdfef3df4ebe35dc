"""The job: makes one digest of captures, and an account of each file, wherever slices are read.

`characterise` finds the captures, cuts them into slices, has a runner tally each slice, puts the
pieces of each file together in order and reads again what did not fit. A runner is a function
from slices to their results in the same order; `in_process` is the one that needs nothing, the one
for a cluster is `cluster`'s. The workers of a `MergingRunner` also merge the digests of neighbours,
so that only a few `SliceRun`s are left. A fault of one file is reported in its account, and the
rest counts.

Captures follow one another in the order in which they are named (folders and patterns: in the order
of names), which for the interarrival should be the order of time.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct, structs

from feedhandler.characterise.channels import ChannelMap, Samples, tally_keys
from feedhandler.characterise.digest import Columns, Digest
from feedhandler.characterise.files import find_captures, look_at, shown
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import (
    SLICE_BYTES_MAX,
    CaptureFile,
    Slice,
    SliceReport,
    Stitcher,
    by_file,
    cut_bytes,
    cut_for_tallying,
    cut_into_slices,
    goes_on,
    slice_bytes,
)
from feedhandler.characterise.tally import Tally
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.feed_table import FeedTable
from feedhandler.replay.captures.reading import DatagramBatch
from feedhandler.replay.playing.selection import Selection, Selector


class Request(Struct, frozen=True):
    """The part of the captures that the job reads, and whether it reads messages.

    `feed`: a name or a description's path; `from_ns`, `until_ns`: the window in ns since 1970;
    `groups`: (address as a number, port or None); `services`; `messages`: whether messages are
    looked at, or packets only; `channels`: which lines carry one channel, where that is given.
    """

    feed: str
    from_ns: int | None = None
    until_ns: int | None = None
    groups: tuple[tuple[int, int | None], ...] = ()
    services: tuple[int, ...] = ()
    messages: bool = True
    channels: ChannelMap | None = None

    @property
    def selection(self) -> Selection:
        """The part of the request that selects datagrams."""
        return Selection(
            from_ns=self.from_ns,
            until_ns=self.until_ns,
            groups=self.groups,
            services=self.services,
        )


class Tallied(NamedTuple):
    """The result of one slice."""

    report: SliceReport
    columns: Columns


#: Calls a function with each of many values, in any process; yields results in order.
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
#: Tallies slices; yields results in their order.
Runner = Callable[[Sequence[Slice], Request], Iterable[Tallied]]


class SliceRun(NamedTuple):
    """Consecutive slices and their merged digest.

    `head`: the first slice, without its file's content; `path`: the file of the last one.
    """

    head: Slice
    path: str
    reports: list[SliceReport]
    digest: Digest


@runtime_checkable
class MergingRunner(Protocol):
    """A runner whose workers also merge neighbouring slices."""

    def __call__(self, slices: Sequence[Slice], request: Request) -> Iterable[Tallied]:
        """Tally the slices; results in their order."""

    def merged_runs(self, slices: Sequence[Slice], request: Request) -> Iterable[SliceRun]:
        """Tally the slices and merge neighbours, as far as they continue each other."""


class FileAccount(Struct):
    """The account of reading one file; `problem` is empty where nothing was wrong with it."""

    path: str
    kind: str = ""
    size: int = 0
    records: int = 0
    datagrams: int = 0
    skipped: dict[str, int] = {}
    cut_payloads: int = 0
    slowly: dict[str, int] = {}
    joined: int = 0
    stand_ins: dict[str, str] = {}
    slices: int = 0
    read_again: int = 0
    problem: str = ""


class Outcome(NamedTuple):
    """The result of the job.

    `lines`: where `digest` is of the arbitrated stream, the digest of the lines (`arbitrated`).
    """

    digest: Digest
    files: list[FileAccount]
    lines: Digest | None = None

    @property
    def of_lines(self) -> "Outcome":
        """The outcome of the lines, whichever `digest` is of."""
        return self if self.lines is None else Outcome(self.lines, self.files)


@functools.lru_cache(maxsize=8)
def _table(feed: str) -> FeedTable:
    """Load the feed's table, cached: a worker reads many slices of one feed."""
    return load_feed(feed).table


def selected(reader: SliceReader, request: Request, table: FeedTable) -> Iterator[DatagramBatch]:
    """Read a slice, and of each batch what the request selects."""
    selection = request.selection
    if selection.is_everything:
        return reader.batches()
    return map(Selector(selection, table), reader.batches())


def count_batch(tally: Tally, batch: DatagramBatch) -> None:
    """Count every datagram of a batch."""
    tally.count(
        batch.data, batch.offset, batch.length, batch.frame_length, batch.time_ns,
        batch.destination, batch.destination_port,
    )  # fmt: skip


def tally_slice(part: Slice, request: Request) -> Tallied:
    """Read one slice and tally the selected part of it; runs in a worker."""
    table = _table(request.feed)
    tally = Tally(table, request.messages, tally_keys(request.channels))
    reader = SliceReader(part, lasting=False)
    for batch in selected(reader, request, table):
        count_batch(tally, batch)
    return Tallied(reader.report, tally.columns())


def tally_run(part: Slice, request: Request) -> SliceRun:
    """Read one slice and return it as a run, to be merged with its neighbours; runs in a worker."""
    tallied = tally_slice(part, request)
    digest = Digest(request.channels)
    digest.add(tallied.columns)
    file = structs.replace(part.file, header=b"", frames=())
    return SliceRun(structs.replace(part, file=file), file.path, [tallied.report], digest)


def merge_runs(runs: Iterable[SliceRun]) -> list[SliceRun]:
    """Merge runs, which are given in order, each into the one that it continues.

    A run that continues nothing (it began at a wrong guess) stays separate. Associative.
    """
    kept: list[SliceRun] = []
    for run in runs:
        if kept:
            last = kept[-1]
            before = last.reports[-1] if last.path == run.head.file.path else None
            if goes_on(before, run.head, run.reports[0]):
                last.digest.merge(run.digest)
                kept[-1] = last._replace(path=run.path, reports=last.reports + run.reports)
                continue
        kept.append(run)
    return kept


def in_process(slices: Sequence[Slice], request: Request) -> Iterator[Tallied]:
    """Tally the slices one after the other, in this process: a runner."""
    return (tally_slice(part, request) for part in slices)


def look_at_all(paths: Sequence[str]) -> tuple[list[CaptureFile], list[FileAccount]]:
    """Find every capture that the paths mean, and make an account of each file.

    Files that cannot be read have an account only. Raises `UsageError` for a path that names
    nothing, and where no file is a capture.
    """
    files, accounts = [], []
    for path in find_captures(paths):
        account = FileAccount(shown(path))
        accounts.append(account)
        try:
            file = look_at(path)
        except (PeerError, UsageError) as error:
            account.problem = error.message
            continue
        account.kind, account.size = file.kind, file.size
        files.append(file)
    if not files:
        raise UsageError(accounts[0].problem, "give at least one capture that can be read")
    return files, accounts


def characterise(
    paths: Sequence[str],
    request: Request,
    runner: Runner = in_process,
    mapper: Mapper = map,
    *,
    workers: int = 1,
    slice_size: int | None = None,
) -> Outcome:
    """Make the digest of all captures.

    `slice_size` in bytes, by default as suits so many workers; `mapper` runs the extra read that
    guesses channels, where that is needed. Raises `UsageError` for paths that mean nothing and for
    an unknown feed (`ConfigError`).
    """
    load_feed(request.feed)
    files, accounts = look_at_all(paths)
    request = with_channels(request, files, mapper, workers)
    if slice_size:
        slices = cut_into_slices(files, slice_size)
    else:
        slices = cut_for_tallying(files, workers)
    digest = Digest(request.channels)
    by_path = {account.path: account for account in accounts}
    if isinstance(runner, MergingRunner):
        runs = runner.merged_runs(slices, request)
        _add_runs(digest, runs, slices, by_path, runner, request)
        return Outcome(digest, accounts)
    results = iter(runner(slices, request))
    for group in by_file(slices):
        account = by_path[shown(group[0].file.path)]
        for tallied in stitched(group, results, account, lambda each: runner([each], request)):
            digest.add(tallied.columns)
            digest.resolve()
    return Outcome(digest, accounts)


def _add_runs(
    digest: Digest,
    runs: Iterable[SliceRun],
    slices: Sequence[Slice],
    accounts: dict[str, FileAccount],
    runner: Runner,
    request: Request,
) -> None:
    """Add runs in order; one that does not continue what is before it is read again, slice by
    slice."""
    stitchers: dict[str, Stitcher] = {}
    for run in runs:
        parts = slices[run.head.number : run.head.number + len(run.reports)]
        stitcher = stitchers.setdefault(parts[0].file.path, Stitcher())
        if goes_on(stitcher.before, parts[0], run.reports[0]):
            for part, report in zip(parts, run.reports, strict=True):
                stitchers.setdefault(part.file.path, Stitcher()).offer(part, report, None)
                account = accounts[shown(part.file.path)]
                account.slices += 1
                note(account, report)
            digest.merge(run.digest)
            digest.resolve()
            continue
        # Of the first slice the report is enough: it does not count.
        results = itertools.chain([Tallied(run.reports[0], {})], runner(parts[1:], request))
        for group in by_file(parts):
            path = group[0].file.path
            stitcher = stitchers.setdefault(path, Stitcher())
            again = stitched(
                group, results, accounts[shown(path)], lambda x: runner([x], request), stitcher
            )
            for tallied in again:
                digest.add(tallied.columns)
                digest.resolve()


def with_channels(
    request: Request, files: Sequence[CaptureFile], mapper: Mapper, workers: int
) -> Request:
    """Complete the request with guessed channels, where packets name no service and none are given.

    The guess reads the captures once more.
    """
    if request.channels is not None or load_feed(request.feed).table.service_size:
        return request
    slices = cut_into_slices(files, slice_bytes(cut_bytes(files), workers))
    return structs.replace(request, channels=sample_slices(slices, request, mapper).guess())


def sample_slices(slices: Sequence[Slice], request: Request, mapper: Mapper = map) -> Samples:
    """Sample the numbered packets in the slices, to guess the channels from (`Samples.guess`)."""
    samples = Samples()
    for each in mapper(sample_slice, [(part, request) for part in slices]):
        samples.merge(each)
    return samples


def first_payloads(paths: Sequence[str], count: int) -> list[bytes]:
    """Return the payloads of the first datagrams in the captures, at most `count`."""
    payloads: list[bytes] = []
    files, _ = look_at_all(paths)
    for part in cut_into_slices(files, SLICE_BYTES_MAX):
        for batch in SliceReader(part).batches():
            payloads += [
                batch.payload(row) for row in range(min(len(batch), count - len(payloads)))
            ]
            if len(payloads) == count:
                return payloads
    return payloads


def sample_slice(task: tuple[Slice, Request]) -> Samples:
    """Sample the numbered packets of one slice; runs in a worker."""
    part, request = task
    table = _table(request.feed)
    samples = Samples()
    # A slice that begins at a wrong guess holds a few bytes that are no packets of the feed.
    for batch in selected(SliceReader(part, lasting=False), request, table):
        samples.add(table, batch)
    return samples


def stitched(
    group: Sequence[Slice],
    results: Iterator[Tallied],
    account: FileAccount,
    again: Callable[[Slice], Iterable[Tallied]],
    stitcher: Stitcher | None = None,
) -> Iterator[Tallied]:
    """Yield what counts of one file's results, in order, and note it in the file's account.

    `stitcher`: of the slices before these.
    """
    stitcher = stitcher or Stitcher()
    stitcher.kept.clear()
    account.slices += len(group)
    for part in group:
        tallied = next(results)
        wanted = stitcher.offer(part, tallied.report, tallied)
        if wanted is not None:
            (tallied,) = again(wanted)
            stitcher.offer(wanted, tallied.report, tallied)
        for report, kept in stitcher.kept:
            note(account, report)
            yield kept
        stitcher.kept.clear()
    account.read_again = stitcher.read_again


def note(account: FileAccount, report: SliceReport) -> None:
    """Add a slice's report to the account."""
    account.records += report.records
    account.datagrams += report.datagrams
    account.cut_payloads += report.cut_payloads
    account.joined += report.joined
    for totals, counts in ((account.skipped, report.skipped), (account.slowly, report.slowly)):
        for reason, count in counts.items():
            totals[reason] = totals.get(reason, 0) + count
    account.stand_ins.update(report.stand_ins)
    account.problem = account.problem or report.damage or report.cut
