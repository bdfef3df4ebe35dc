"""`feedhandler characterise --follow`: a session's report while its recordings are written.

What is new in the recordings is counted in batches, in this process or by a stream of Spark's, and
after each the whole report is written anew, file by file in place of the one before. The counts are
kept in the report's folder (`STATE`), so that a later run goes on from them, even after a `kill
-9`: nothing is lost and nothing counts twice.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from feedhandler.characterise import report
from feedhandler.characterise.channels import ChannelMap
from feedhandler.characterise.files import absolute, is_remote
from feedhandler.characterise.following import Following, batches_here, fitted
from feedhandler.characterise.growing import news, reach
from feedhandler.characterise.job import Request, sample_slices
from feedhandler.characterise.slices import SLICE_BYTES_MAX
from feedhandler.characterise.tables import Tables
from feedhandler.characterise.tally_blobs import FORM, write_whole
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.ops.characterise import (
    Options,
    complain_if_foreign,
    complain_of,
    report_findings,
    request_of,
)
from feedhandler.ops.spark import AUTO, NO_SPARK, command_session
from feedhandler.replay.playing.time_spec import check_zone
from feedhandler.terminal.console import ExitCode, complain

#: Where in the report's folder the batches are kept, and Spark's checkpoint.
STATE = "_followed"
_CHECKPOINT = "checkpoint"
#: The channels, as they were guessed when following began.
_CHANNELS = "channels.json"
#: Interval of the checks whether a running query has ended.
ASK_S = 0.5
#: Time for a batch to end after a signal, in s; one that is cut off is repeated by the next run.
PATIENCE_S = 2.0


class _Session:
    """A session that is followed, and its report."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.feed = load_feed(options.feed)
        self.zone = check_zone(options.zone or self.feed.zone)
        # Absolute, so that a recording is the same one wherever the next run is begun.
        self.captures = tuple(map(absolute, options.captures))
        self.request = self._with_channels(request_of(options))
        # Recordings grow slowly while a market is open: `auto` is this process.
        self.on_spark = options.master not in (NO_SPARK, AUTO)
        asked = {
            "captures": self.captures,
            "request": self.request,
            "spark": self.on_spark,
            "form": FORM,
        }
        asked_bytes = msgspec.json.encode(asked)
        self.following = Following(options.out / STATE, asked_bytes, self.request.channels)
        self.odd = False

    def _with_channels(self, request: Request) -> Request:
        """Return the request with channels, where packets do not carry them.

        They are those guessed when following began, else guessed from what is there by now; waits
        until something is. Raises `UsageError` with `once` where nothing is: the folder of the
        report would else belong to a session without channels.
        """
        if request.channels is not None or self.feed.table.service_size:
            return request
        kept = self.options.out / STATE / _CHANNELS
        if kept.exists():
            found = msgspec.json.decode(kept.read_bytes(), type=ChannelMap)
            return structs.replace(request, channels=found)
        while True:
            reached = reach(self.captures, {}, complete=self.options.once)
            if self.options.once and not reached:
                raise _nothing_there(self.options)
            guessed = sample_slices(news({}, reached, SLICE_BYTES_MAX), request).guess()
            if guessed is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, msgspec.json.encode(guessed))
            if guessed is not None or self.options.once:
                return structs.replace(request, channels=guessed)
            time.sleep(self.options.every_ns / 1e9)

    def write(self) -> None:
        """Write the report of all that is counted by now."""
        options, batch = self.options, self.following.last
        outcome = self.following.outcome(self.captures, complete=options.once)
        tables = Tables(outcome, self.feed, self.zone)
        about = {
            "feed": self.feed.name,
            "zone": self.zone,
            "captures": len(outcome.files),
            "followed to batch": batch,
        }
        report.write(tables.all(), about, options.out)
        packets = int(outcome.digest.totals[:, 0].sum())
        if options.as_json:
            print(json.dumps({"batch": batch, "packets": packets}), flush=True)
        else:
            print(f"batch {batch}: {packets:,} packets in {options.out}", flush=True)
        if options.once:
            report_findings(tables, tables.unknown_types())
            foreign = complain_if_foreign(options, outcome, self.feed)
            self.odd = complain_of(outcome.files) or foreign

    def report_batch(self) -> None:
        """Report a batch; with `once` the report is written at the end only."""
        if not self.options.once:
            self.write()


def follow(options: Options) -> int:
    """Follow until a signal comes, or to the end of what is there (`once`).

    Returns `FOUND` where, with `once`, a file is odd.
    """
    _refuse_parts(options)
    session = _Session(options)
    if options.master == AUTO:
        complain("without Spark", "what comes while recordings are written is little")
    if session.following.last >= 0:
        session.report_batch()
    runner = _follow_on_spark if session.on_spark else _follow_here
    # A signal is the usual end of following; with `once` it is an interruption.
    with contextlib.nullcontext() if options.once else contextlib.suppress(KeyboardInterrupt):
        runner(session)
    if options.once and session.following.last < 0:
        raise _nothing_there(options)
    if options.once:
        session.write()
    return ExitCode.FOUND if session.odd else ExitCode.OK


def _nothing_there(options: Options) -> UsageError:
    return UsageError(f"no capture at {', '.join(options.captures)}", "is it the right folder?")


def _refuse_parts(options: Options) -> None:
    if options.lake or options.exact or options.profile or options.arbitrated:
        raise UsageError(
            "--follow counts recordings as they are written",
            "leave out --lake, --exact, --arbitrated and --write-profile",
        )
    if not options.captures:
        raise UsageError("there is nothing to follow", "give the folder of the recordings")
    if any(is_remote(capture) for capture in options.captures):
        raise UsageError("recordings are followed on this machine", "record to a folder")
    if options.every_ns <= 0:
        raise UsageError("--every 0 is no time", "give 10s, say")


def _follow_here(session: _Session) -> None:
    """Count batches in this process."""
    options = session.options
    while True:
        for _ in batches_here(
            session.following, session.captures, session.request, complete=options.once
        ):
            session.report_batch()
        if options.once:
            return
        time.sleep(options.every_ns / 1e9)


def _follow_on_spark(session: _Session) -> None:
    """Count batches of a Spark stream, whose offsets are in its checkpoint."""
    from feedhandler.characterise import register
    from feedhandler.characterise.cluster import worker_error

    stopping = threading.Event()
    failed: list[FeedhandlerError] = []
    with command_session(session.options.master, PATIENCE_S, stopping.set) as spark:
        try:
            register(spark)
            query = _query(spark, session, failed)
            while not query.awaitTermination(ASK_S) and not stopping.is_set():
                pass
            query.stop()
        except Exception as error:
            raise (failed[0] if failed else worker_error(error)) from None


def _query(spark: Any, session: _Session, failed: list[FeedhandlerError]) -> Any:
    """Start the stream and return its query; errors of a batch are appended to `failed`."""
    checkpoint = session.options.out.absolute() / STATE / _CHECKPOINT
    stream = spark.readStream.format("feedhandler").options(**_stream_options(session)).load()
    writer = stream.writeStream.foreachBatch(_storing(session, failed))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**_trigger(session.options)).start()


def _storing(session: _Session, failed: list[FeedhandlerError]) -> Callable[[Any, int], None]:
    """Return the callback for a batch of the stream.

    Its errors are appended to `failed`, because Spark reports them in words of its own.
    """
    from feedhandler.characterise.source import blob_of_row

    following = session.following

    def store(batch: Any, number: int) -> None:
        try:
            blobs = map(blob_of_row, batch.collect())
            following.store(number, fitted(blobs, following.waiting(number), session.request))
            session.report_batch()
        except FeedhandlerError as error:
            failed.append(error)
            raise

    return store


def _trigger(options: Options) -> dict[str, Any]:
    if options.once:
        return {"availableNow": True}
    return {"processingTime": f"{options.every_ns // 1_000_000} milliseconds"}


def _encoded(channels: ChannelMap | None) -> str:
    return msgspec.json.encode(channels).decode() if channels is not None else ""


def _stream_options(session: _Session) -> dict[str, str]:
    """Return the options of the data source, as text."""
    options = session.options
    settings = {
        "feed": options.feed,
        "paths": json.dumps(session.captures),
        "rows": "tallies",
        "channels": _encoded(session.request.channels),
        "packets_only": "yes" if options.packets_only else "",
        "complete": "yes" if options.once else "",
        "from": options.window[0] or "",
        "until": options.window[1] or "",
        "service": ",".join(map(str, options.services)),
        "line": ",".join(options.lines),
    }
    return {name: value for name, value in settings.items() if value}
