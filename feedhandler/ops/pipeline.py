"""`feedhandler pipeline`: captures into a lake of Parquet files, each once."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from feedhandler.characterise.cluster import DiskFault, disk_fault_or, worker_error
from feedhandler.characterise.job import first_payloads
from feedhandler.characterise.lake import Written, fill_lake, read_about
from feedhandler.characterise.lake_rows import RAW, Contents
from feedhandler.characterise.rows import refuse_rows_of_fix
from feedhandler.codecs import load_feed
from feedhandler.ops.spark import AUTO, FILLING, NO_SPARK, chosen_master, command_session
from feedhandler.terminal.captures import complain_of_parts
from feedhandler.terminal.console import ExitCode, complain, print_json, progress
from feedhandler.terminal.feed_guess import PROBE_DATAGRAMS, complain_if_foreign


class Options(Struct, frozen=True, kw_only=True):
    """The captures, and the lake that they go into."""

    captures: tuple[str, ...]
    feed: str
    lake: Path
    records: tuple[str, ...] = ()
    master: str = AUTO
    as_json: bool = False


def run(options: Options) -> int:
    """Fill the lake and print what was new; `FOUND` where a file is odd, or of another feed."""
    refuse_rows_of_fix(load_feed(options.feed))
    asked = (options.captures, options.feed, options.lake)
    master = chosen_master(options.master, options.captures, FILLING)
    with progress("filling the lake", total=None):
        if master == NO_SPARK:
            done = fill_lake(*asked, records=options.records)
        else:
            with command_session(master) as spark:
                context = spark.sparkContext
                mapper, workers = spark_mapper(context), context.defaultParallelism
                done = fill_lake(*asked, mapper, workers, options.records)
    for each in done:
        if options.as_json:
            print_json(structs.asdict(each))
        elif each.folder:
            what = f"{each.rows:,} rows in {each.folder}" if each.new else "was there already"
            print(f"{each.path}: {what}")
            _print_rest(each.contents)
            for schema, rows in each.records.items():
                print(f"  {rows:,} records {schema}")
    for each in done:
        if each.new:
            account = read_about(Path(each.folder)).account
            complain_of_parts(account.cut_payloads, f"{each.path}: ")
    foreign = [each for each in done if _is_foreign(each, options.feed)]
    odd = [each for each in done if each.problem]
    for each in odd:
        complain(each.problem if each.path in each.problem else f"{each.path}: {each.problem}")
    return ExitCode.FOUND if odd or foreign else ExitCode.OK


def _is_foreign(written: Written, feed_name: str) -> bool:
    """Report a capture of another feed, whose folder in the lake is empty; return whether it is."""
    if not written.folder or written.rows:
        return False
    about = read_about(Path(written.folder))
    if about.rows or not about.account.datagrams:
        return False
    payloads = first_payloads([written.path], PROBE_DATAGRAMS)
    count, where = about.account.datagrams, f"{written.path}: "
    return complain_if_foreign(payloads, load_feed(feed_name), count, where)


def _print_rest(contents: Contents) -> None:
    """Print what is in no table of its type, if anything."""
    if contents.raw:
        print(f"  {contents.raw:,} messages of unknown types or too short: as bytes, type={RAW}")
    if contents.lost:
        print(
            f"  {contents.lost:,} messages in no table: {contents.not_inflated:,} compressed "
            f"packets not inflated, {contents.not_whole:,} packets not whole"
        )


def spark_mapper(context: Any) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]:
    """Return a mapper whose calls are tasks of Spark's workers.

    The workers must reach the lake's folder. The mapper raises `UsageError` where Spark failed.
    """

    def mapper(function: Callable[[Any], Any], values: Sequence[Any]) -> Iterable[Any]:
        if not values:
            return []
        tasks = context.parallelize(list(values), len(values))
        try:
            found = tasks.map(functools.partial(disk_fault_or, function)).collect()
        except Exception as error:
            raise worker_error(error) from None
        for each in found:
            if isinstance(each, DiskFault):
                raise each.error()
        return list(found)

    return mapper
