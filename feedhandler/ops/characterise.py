"""`feedhandler characterise`: what a session looks like, on Spark or in this process."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs
from rich.table import Table as Printed

from feedhandler.characterise import report
from feedhandler.characterise.arbitrated import (
    Mapper,
    arbitrated_tables,
    characterise_arbitrated,
)
from feedhandler.characterise.job import (
    FileAccount,
    Outcome,
    Request,
    Runner,
    characterise,
    in_process,
)
from feedhandler.characterise.lake import contents_table, outcome_of
from feedhandler.characterise.measured_profile import profile_of
from feedhandler.characterise.slices import Slice
from feedhandler.characterise.tables import Table, Tables
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.ops.console import ExitCode, complain, print_json, progress, stdout_console
from feedhandler.ops.feeds import open_feed
from feedhandler.ops.spark import AUTO, COUNTING, LOCAL, NO_SPARK, chosen_master, command_session
from feedhandler.replay.playing.moments import check_zone, parse_moment
from feedhandler.replay.playing.selection import parse_group

#: Tables that are printed; all are written.
PRINTED = ("services", "packet_peaks", "byte_peaks", "figures", "interarrival", "gaps")
#: Rows of the interarrival that are printed: all, and each service's.
PRINTED_ROWS = 24
#: How often a session that is followed is looked at.
EVERY_NS = 10_000_000_000


class Options(Struct, frozen=True, kw_only=True):
    """What to characterise, how, and where the report goes."""

    captures: tuple[str, ...]
    lake: Path | None = None
    feed: str
    out: Path
    zone: str | None = None
    master: str = AUTO
    window: tuple[str | None, str | None] = (None, None)
    services: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    packets_only: bool = False
    exact: bool = False
    arbitrated: bool = False
    profile: Path | None = None
    follow: bool = False
    every_ns: int = EVERY_NS
    once: bool = False
    as_json: bool = False


def run(options: Options) -> int:
    """Do the job, print and write; `FOUND` where a file is odd."""
    if options.follow or options.once:
        from feedhandler.ops.following import follow

        return follow(options)
    feed = open_feed(options.feed)
    zone = check_zone(options.zone or feed.zone)
    _refuse_senseless(options)
    options = structs.replace(options, master=_master(options))
    outcome = _outcome(options, feed)
    whole = Tables(outcome, feed, zone)
    if options.profile is not None:
        _write_profile(whole, options.profile)
    tables = whole.all() if outcome.lines is None else arbitrated_tables(outcome, feed, zone)
    if options.lake is not None:
        tables.append(contents_table(options.lake, options.feed))
    about = {
        "feed": feed.name,
        "zone": zone,
        "captures": len(outcome.files),
        "master": options.master,
        "interarrival": "window function" if options.exact else "",
        "of": "the arbitrated stream" if options.arbitrated else "",
    }
    written = report.write(tables, about, options.out)
    _show(tables, options, written)
    return ExitCode.FOUND if complain_of(outcome.files) else ExitCode.OK


def _master(options: Options) -> str:
    """Where the work is done. Raises `UsageError` for captures that are not there."""
    if options.lake is not None:
        return NO_SPARK
    # The window function is Spark's alone.
    asked = LOCAL if options.exact and options.master == AUTO else options.master
    return chosen_master(asked, options.captures, COUNTING)


def _refuse_senseless(options: Options) -> None:
    """Raise `UsageError` for what does not go together."""
    if options.lake is not None:
        parts = (options.captures, options.exact, any(options.window), options.services)
        if any(parts) or options.lines or options.packets_only or options.arbitrated:
            raise UsageError(
                "a lake is read as it is, and whole",
                "leave out the captures and whatever chooses a part, and --exact",
            )
    elif not options.captures:
        raise UsageError("there is nothing to characterise", "give captures, or --lake")
    if options.arbitrated and (options.exact or options.profile is not None):
        raise UsageError(
            "the window function and profiles are of lines",
            "leave out --exact and --write-profile, or --arbitrated",
        )
    if options.exact and options.master == NO_SPARK:
        raise UsageError("the window function is Spark's", "leave --master or --exact out")


def _outcome(options: Options, feed: Feed) -> Outcome:
    """What is in the captures, or in the lake."""
    if options.lake is not None:
        return outcome_of(options.lake, options.feed)
    request = request_of(options)
    with (
        progress("characterising", total=1.0, unit="bytes") as advance,
        _runner(options, lambda done, total: advance(completed=done, total=total)) as chosen,
    ):
        runner, workers, spark = chosen
        if options.arbitrated:
            mapper = map if spark is None else _mapper(spark)
            return characterise_arbitrated(
                options.captures, request, runner, mapper, workers=workers
            )
        outcome = characterise(options.captures, request, runner, workers=workers)
        if options.exact:
            _take_exact(outcome, spark, options, feed)
    return outcome


def _mapper(spark: Any) -> Mapper:
    from feedhandler.ops.pipeline import spark_mapper

    return spark_mapper(spark.sparkContext)


def request_of(options: Options) -> Request:
    """What is asked of the captures. Raises `UsageError`."""
    moments = [None if text is None else _full_time_ns(text) for text in options.window]
    return Request(
        feed=options.feed,
        from_ns=moments[0],
        until_ns=moments[1],
        groups=tuple(parse_group(each) for each in options.lines),
        services=options.services,
        messages=not options.packets_only,
    )


def _full_time_ns(text: str) -> int:
    moment = parse_moment(text)
    if moment.since != "epoch":
        raise UsageError(f"'{text}' is no full time", "give 2026-11-20T09:00:00Z, say")
    return moment.ns


@contextlib.contextmanager
def _runner(
    options: Options, on_progress: Callable[[int, int], object]
) -> Iterator[tuple[Runner, int, Any]]:
    """What tallies slices, how many at once, and the Spark session if there is one."""
    if options.master == NO_SPARK:
        yield _told(on_progress), 1, None
        return
    from feedhandler.characterise.cluster import SparkRunner

    with command_session(options.master) as spark:
        runner = SparkRunner(spark, on_progress)
        yield runner, runner.workers, spark


def _told(on_progress: Callable[[int, int], object]) -> Runner:
    """`in_process`, with its progress told."""

    def runner(slices: Sequence[Slice], request: Request) -> Iterator[Any]:
        done, total = 0, sum(part.length for part in slices)
        for part, tallied in zip(slices, in_process(slices, request), strict=True):
            yield tallied
            done += part.length
            on_progress(done, total)

    return runner


def _take_exact(outcome: Any, spark: Any, options: Options, feed: Feed) -> None:
    """Put the window function's interarrival in the place of the tallies'."""
    from feedhandler.characterise import register
    from feedhandler.characterise.cluster import exact_interarrival
    from feedhandler.characterise.digest import Histogram
    from feedhandler.replay.captures.capture import address_text

    register(spark)
    reader = spark.read.format("feedhandler").option("feed", options.feed)
    reader = reader.options(rows="messages", odd="skip")
    for name, text in zip(("from", "until"), options.window, strict=True):
        reader = reader if text is None else reader.option(name, text)
    if options.services:
        reader = reader.option("service", ",".join(map(str, options.services)))
    if options.lines:
        reader = reader.option("line", ",".join(options.lines))
    exact = exact_interarrival(reader.load(list(options.captures)))
    for (place, code), cell in outcome.digest.cells.items():
        channel = outcome.digest.channels[place]
        line = f"{address_text(channel.group)}:{channel.port}"
        key = (line, channel.service, str(feed.type_label(code)))
        cell.interarrival = exact.get(key, Histogram())


def _write_profile(tables: Tables, path: Path) -> None:
    """The session as a profile that `feedhandler generate` follows."""
    profile = profile_of(tables, path.stem)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "check the path") from None


def _show(tables: Sequence[Table], options: Options, written: Sequence[Path]) -> None:
    if options.as_json:
        for table in tables:
            print_json({"table": table.name, "columns": table.columns, "rows": table.rows})
        return
    console = stdout_console()
    for table in tables:
        if table.name in PRINTED and table.rows:
            console.print(_printed(table))
            console.print()
    console.print(f"{len(written)} files in {options.out}; begin with {written[-1].name}")


def _printed(table: Table) -> Printed:
    printed = Printed(title=table.title, title_justify="left", box=None, pad_edge=False)
    for name in table.columns:
        printed.add_column(name, justify="left" if name == table.columns[0] else "right")
    rows = [row for row in table.rows if table.name != "interarrival" or row[1] == "all"]
    for row in rows[:PRINTED_ROWS]:
        printed.add_row(*(f"{x:,}" if isinstance(x, int | float) else str(x) for x in row))
    return printed


def complain_of(files: Sequence[FileAccount]) -> bool:
    """Name the odd files; were there any?"""
    odd = [each for each in files if each.problem]
    for each in odd:
        complain(
            f"{each.path}: {each.problem}".replace(f"{each.path}: {each.path}:", f"{each.path}:"),
            f"{each.records:,} records of it count",
        )
    return bool(odd)
