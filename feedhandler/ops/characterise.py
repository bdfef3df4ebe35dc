"""`feedhandler characterise`: the profile of a session, on Spark or in this process."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from feedhandler.characterise import report
from feedhandler.characterise.arbitrated import (
    Mapper,
    arbitrated_tables,
    characterise_arbitrated,
)
from feedhandler.characterise.channels import ChannelMap, endpoint_text, parse_channel_map
from feedhandler.characterise.files import find_captures, is_remote
from feedhandler.characterise.job import (
    FileAccount,
    Outcome,
    Request,
    Runner,
    characterise,
    first_payloads,
    in_process,
)
from feedhandler.characterise.lake import contents_table, outcome_of
from feedhandler.characterise.measured_profile import profile_of, refuse_other_feeds
from feedhandler.characterise.rows import refuse_rows_of_fix
from feedhandler.characterise.slices import Slice
from feedhandler.characterise.tables import Table, Tables, cell_text, heading_of
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import DISK_FAULTS, UsageError, unwritable
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.toml_text import read_text
from feedhandler.ops.spark import AUTO, COUNTING, LOCAL, NO_SPARK, chosen_master, command_session
from feedhandler.replay.captures.writer import remove_unfinished
from feedhandler.replay.playing.selection import parse_group
from feedhandler.replay.playing.time_spec import check_zone, parse_time_spec
from feedhandler.terminal import feed_guess
from feedhandler.terminal.captures import complain_of_parts
from feedhandler.terminal.console import ExitCode, complain, print_json, progress, stdout_console
from feedhandler.terminal.feed_guess import PROBE_DATAGRAMS
from feedhandler.terminal.fitted import FittedTable
from feedhandler.terminal.outputs import refuse_folder, refuse_input, refuse_nowhere

#: Tables that are printed; all are written.
PRINTED = ("services", "packet_peaks", "byte_peaks", "figures", "interarrival", "gaps")
#: Rows of the interarrival that are printed: all, and each service's.
PRINTED_ROWS = 24
#: Channels, and types, that are named on stderr.
CHANNELS_SHOWN = 8
#: Interval of the reports of a session that is followed.
EVERY_NS = 10_000_000_000


class Options(Struct, frozen=True, kw_only=True):
    """The captures or the lake to characterise, how to do it, and where the report goes."""

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
    channels: Path | None = None
    as_json: bool = False


def run(options: Options) -> int:
    """Run the job, print and write; return `FOUND` where a file is odd."""
    feed = load_feed(options.feed)
    zone = check_zone(options.zone or feed.zone)
    _refuse_senseless(options)
    if options.profile is not None:
        _refuse_inputs(options.profile, options)
        refuse_other_feeds(feed)
        if options.profile.absolute().parent != options.out.absolute():  # that one will be made
            refuse_nowhere(options.profile, "--write-profile")
    refuse_folder(options.out, "--out")
    if options.exact or options.lake is not None:
        refuse_rows_of_fix(feed)
    options = structs.replace(options, master=_master(options))
    outcome = _outcome(options, feed)
    if options.lake is None and (
        complain_if_foreign(options, outcome, feed) or _complain_if_nothing(options, outcome, feed)
    ):
        complain_of(outcome.files)
        return ExitCode.FOUND
    whole = Tables(outcome, feed, zone)
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
    lines = whole if outcome.lines is None else Tables(outcome.of_lines, feed, zone)
    report_findings(lines, whole.unknown_types())
    _show(tables, options, written)
    if options.profile is not None:
        _write_profile(whole, options.profile)
    return ExitCode.FOUND if complain_of(outcome.files) else ExitCode.OK


def _master(options: Options) -> str:
    """Return the master to work on. Raises `UsageError` for captures that do not exist."""
    if options.lake is not None:
        return NO_SPARK
    # The window function is Spark's alone.
    asked = LOCAL if options.exact and options.master == AUTO else options.master
    return chosen_master(asked, options.captures, COUNTING)


def _refuse_senseless(options: Options) -> None:
    """Raise `UsageError` where options contradict one another."""
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


def _refuse_inputs(out: Path, options: Options) -> None:
    """Raise `UsageError` where `out` is one of the files that are read."""
    captures = [Path(path) for path in find_captures(options.captures) if not is_remote(path)]
    channels = [options.channels] if options.channels is not None else []
    refuse_input(out, *captures, *channels, Path(options.feed))


def _outcome(options: Options, feed: Feed) -> Outcome:
    """Count the captures, or read the counts of the lake."""
    if options.lake is not None:
        return outcome_of(options.lake, options.feed, channels_of(options))
    request = request_of(options)
    with (
        progress("characterising", total=1.0, unit="bytes") as advance,
        _runner(options, lambda done, total: advance(completed=done, total=total)) as chosen,
    ):
        runner, workers, spark = chosen
        mapper = map if spark is None else _mapper(spark)
        if options.arbitrated:
            return characterise_arbitrated(
                options.captures, request, runner, mapper, workers=workers
            )
        outcome = characterise(options.captures, request, runner, mapper, workers=workers)
        if options.exact:
            _replace_by_exact(outcome, spark, options, feed)
    return outcome


def _mapper(spark: Any) -> Mapper:
    from feedhandler.ops.pipeline import spark_mapper

    return spark_mapper(spark.sparkContext)


def request_of(options: Options) -> Request:
    """Make the request for the captures. Raises `UsageError`."""
    specs = [None if text is None else _full_time_ns(text) for text in options.window]
    return Request(
        feed=options.feed,
        from_ns=specs[0],
        until_ns=specs[1],
        groups=tuple(parse_group(line) for line in options.lines),
        services=options.services,
        messages=not options.packets_only,
        channels=channels_of(options),
    )


def channels_of(options: Options) -> ChannelMap | None:
    """Read the channel map that was given; None where none was. Raises `ConfigError`."""
    if options.channels is None:
        return None
    text = read_text(options.channels, "give a TOML file")
    by_service = bool(load_feed(options.feed).table.service_size)
    return parse_channel_map(text, str(options.channels), by_service=by_service)


def complain_if_foreign(options: Options, outcome: Outcome, feed: Feed) -> bool:
    """Report captures that have no packet of the feed; return whether that is so.

    The feed that fits is named as a hint.
    """
    datagrams = sum(file.datagrams for file in outcome.files)
    if outcome.of_lines.digest.channels or not datagrams:
        return False
    payloads = first_payloads(options.captures, PROBE_DATAGRAMS)
    return feed_guess.complain_if_foreign(payloads, feed, datagrams)


def _complain_if_nothing(options: Options, outcome: Outcome, feed: Feed) -> bool:
    """Report that the choice of a part leaves nothing; return whether that is so."""
    datagrams = sum(file.datagrams for file in outcome.files)
    if outcome.of_lines.digest.channels or not datagrams or not _names_part(options):
        return False
    complain(
        f"none of {datagrams:,} datagrams is a packet of {feed.name} and of what was chosen",
        "see --service, --line, --from and --until",
    )
    return True


def _names_part(options: Options) -> bool:
    return bool(options.services or options.lines or any(options.window))


def report_findings(tables: Tables, unknown: Mapping[str, int]) -> None:
    """Report on stderr what the tables assume: guessed channels, frames read slowly or in part.

    And the messages of `unknown` types (type to count).
    """
    channel_map = tables.digest.channel_map
    names = tables.services_found
    if channel_map is not None and channel_map.origin == "guessed" and len(names) > 1:
        lines = [
            " with ".join(
                endpoint_text(line.channel.group << 16 | line.channel.port)
                for line in tables.lines
                if line.service == name
            )
            for name in names[:CHANNELS_SHOWN]
        ]
        more = f", and {len(names) - len(lines)} more" if len(names) > len(lines) else ""
        complain(
            f"{len(names)} channels, guessed from their numbers: {', '.join(lines)}{more}",
            "--channels FILE says otherwise",
        )
    if unknown:
        types = ", ".join(list(unknown)[:CHANNELS_SHOWN])
        complain(
            f"{sum(unknown.values()):,} messages are of types that {tables.feed.name} does not "
            f"describe: {types}",
            "they count as unknown",
        )
    slowly: Counter[str] = Counter()
    for file in tables.files:
        slowly.update(file.slowly)
    if slowly:
        parts = ", ".join(f"{count:,} {how}" for how, count in slowly.items())
        complain(f"datagrams read slowly, by what they were in: {parts}")
    complain_of_parts(sum(file.cut_payloads for file in tables.files))
    foreign = int(tables.digest.foreign.sum())
    if foreign and tables.digest.channels:
        complain(
            f"{foreign:,} datagrams are no {tables.feed.name} packets",
            'the table "Left out" says why',
        )


def _full_time_ns(text: str) -> int:
    spec = parse_time_spec(text)
    if spec.since != "epoch":
        raise UsageError(f"'{text}' is no full time", "give 2026-11-20T09:00:00Z, say")
    return spec.ns


@contextlib.contextmanager
def _runner(
    options: Options, on_progress: Callable[[int, int], object]
) -> Iterator[tuple[Runner, int, Any]]:
    """Yield the runner that tallies slices, how many run at once, and the Spark session or None."""
    if options.master == NO_SPARK:
        yield _reporting(on_progress), 1, None
        return
    from feedhandler.characterise.cluster import SparkRunner

    with command_session(options.master) as spark:
        runner = SparkRunner(spark, on_progress)
        yield runner, runner.workers, spark


def _reporting(on_progress: Callable[[int, int], object]) -> Runner:
    """Return `in_process` with its progress reported: bytes done, and bytes in all."""

    def runner(slices: Sequence[Slice], request: Request) -> Iterator[Any]:
        done, total = 0, sum(part.length for part in slices)
        for part, tallied in zip(slices, in_process(slices, request), strict=True):
            yield tallied
            done += part.length
            on_progress(done, total)

    return runner


def _replace_by_exact(outcome: Any, spark: Any, options: Options, feed: Feed) -> None:
    """Replace the tallies' interarrival by that of Spark's window function, in place."""
    from feedhandler.characterise import register
    from feedhandler.characterise.cluster import exact_interarrival
    from feedhandler.characterise.digest import FineHistogram
    from feedhandler.replay.captures.reading import address_text

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
    for (index, code), cell in outcome.digest.cells.items():
        channel = outcome.digest.channels[index]
        line = f"{address_text(channel.group)}:{channel.port}"
        key = (line, channel.service, str(feed.type_label(code)))
        cell.interarrival = exact.get(key, FineHistogram())


def _write_profile(tables: Tables, path: Path) -> None:
    """Write the session as a profile that `feedhandler generate` follows.

    Raises `UsageError` or `HostFault` where the file cannot be written. What was written in part is
    removed; a file that could not be opened for writing stays.
    """
    profile = profile_of(tables, path.stem)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    except OSError as error:
        if error.errno in DISK_FAULTS:
            remove_unfinished(path)
        raise unwritable(path, error) from None


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
    _, words = report.verdict({table.name: table for table in tables})
    console.print(words)
    console.print(f"{len(written)} files in {options.out}; begin with {written[-1].name}")


def _printed(table: Table) -> FittedTable:
    headings = [heading_of(name) for name in table.columns]
    printed = FittedTable(headings[:1], headings[1:])
    printed.title, printed.title_justify = table.title, "left"
    rows = [row for row in table.rows if table.name != "interarrival" or row[1] == "all"]
    for row in rows[:PRINTED_ROWS]:
        printed.add_row(*map(cell_text, table.columns, row))
    return printed


def complain_of(files: Sequence[FileAccount]) -> bool:
    """Report the odd files on stderr; return whether there are any."""
    odd = [file for file in files if file.problem]
    for each in odd:
        named = "" if each.problem.startswith(each.path) else f"{each.path}: "
        complain(f"{named}{each.problem}", f"{each.records:,} records of it count")
    return bool(odd)
