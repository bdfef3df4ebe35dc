"""`feedhandler generate`: a capture of a generated session, and its ledger."""

import shutil
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.order_capture import write_session
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.profile import FEED_NAME, load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import (
    Forecast,
    forecast,
    ledger_path,
    write_capture,
)
from feedhandler.spans import span_text
from feedhandler.terminal.console import ExitCode, print_json, progress
from feedhandler.terminal.outputs import refuse_existing, refuse_input, refuse_no_file

#: The keys that `--json` prints; the ledger has the rest.
_SHORT = ("profile", "seed", "scale", "packets", "payload_bytes", "counted_bytes", "messages",
          "mean_payload_bytes", "mean_message_bytes", "mean_messages", "services")  # fmt: skip
#: A session of orders, where nothing else is said.
INSTRUMENTS, MESSAGES_PER_S, DURATION_S = 100, 2000.0, 10.0


class Options(Struct, frozen=True, kw_only=True):
    """The session to generate and the file to write."""

    out: Path
    feed: str = FEED_NAME
    profile: str = "market"
    scale: float = 1.0
    rate_mbps: float | None = None
    duration_s: float | None = None
    seed: int = 1
    refresh: bool = True
    losses: tuple[float, float] | None = None
    instruments: int | None = None
    messages_per_s: float | None = None
    overwrite: bool = False
    as_json: bool = False


def run(options: Options) -> int:
    """Announce what it will take, generate, write, and report what was written.

    Raises `UsageError` where an existing file would be lost, or the disk cannot hold the new one.
    """
    refuse_no_file(options.out)
    for written in (options.out, ledger_path(options.out)):
        refuse_input(written, Path(options.profile), Path(options.feed))
    refuse_existing(options.overwrite, options.out, ledger_path(options.out))
    if options.feed != FEED_NAME:
        return _run_orders(options)
    for name in ("instruments", "messages_per_s"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} makes no sense for {FEED_NAME}",
                "its profile says it: give --scale or --rate",
            )
    traffic = Traffic(
        load_profile(options.profile),
        options.seed,
        scale=options.scale,
        rate_mbps=options.rate_mbps,
        duration_s=options.duration_s,
        refresh=options.refresh,
        loss=options.losses,
    )
    _announce(options.out, forecast(traffic, options.out))
    with progress(f"generating {options.out.name}", total=1.0) as advance:
        document = write_capture(
            traffic, options.out, lambda share, packets: advance(completed=share)
        )
    if options.as_json:
        print_json({"out": str(options.out), **{name: document[name] for name in _SHORT}})
    else:
        _report(options.out, document)
    return ExitCode.OK


def _run_orders(options: Options) -> int:
    """Write a session of a feed that has a writer of orders, as `run` does."""
    usual = Options(out=options.out)
    for name in ("profile", "scale", "rate_mbps", "refresh"):
        if getattr(options, name) != getattr(usual, name):
            option = {"rate_mbps": "rate", "refresh": "no-refresh"}.get(name, name)
            raise UsageError(f"--{option} makes no sense for {options.feed}", "leave it out")
    session = OrderSession(
        load_feed(options.feed),
        options.seed,
        instruments=options.instruments or INSTRUMENTS,
        messages_per_s=options.messages_per_s or MESSAGES_PER_S,
    )
    document = write_session(
        session,
        int((options.duration_s or DURATION_S) * 1e9),
        options.out,
        seed=options.seed,
        losses=options.losses or (0.0, 0.0),
    )
    if options.as_json:
        print_json({"out": str(options.out), **document})
        return ExitCode.OK
    print(
        f"{options.out}: {document['packets']:,} packets, {document['messages']:,} messages; "
        f"{ledger_path(options.out)}"
    )
    for name, count in document["types"].items():
        print(f"  {name:34}{count:>12,}")
    return ExitCode.OK


def _announce(out: Path, coming: Forecast) -> None:
    """Print one line on stderr; raise `UsageError` where the file system has less room."""
    folder = out.absolute().parent
    size = f"about {coming.file_bytes / 1e9:,.2f} GB"
    # What is no file (a pipe, `/dev/null`) takes any amount.
    if folder.is_dir() and (out.is_file() or not out.exists()):
        # A file of this name is replaced: its room is free as well.
        freed = out.stat().st_size if out.is_file() else 0
        free = shutil.disk_usage(folder).free + freed
        if coming.file_bytes > free:
            smaller = "" if out.suffix == ".zst" else ", or .zst behind the name"
            raise UsageError(
                f"{out} would have {size}, and {folder} has room for {free / 1e9:,.2f} GB",
                f"give a shorter --duration, a lower --rate or --scale{smaller}",
            )
    span = span_text(max(coming.seconds, 1) * 1e9)
    print(
        f"{out}: {size}, {coming.packets:,} packets, in about {span}",
        file=sys.stderr,
        flush=True,
    )


def _report(out: Path, document: dict[str, Any]) -> None:
    packets, counted = document["packets"], document["counted_bytes"]
    print(f"{out}: {packets:,} packets, {document['messages']:,} messages; {ledger_path(out)}")
    print(
        f"mean payload {document['mean_payload_bytes']:.2f} bytes, message "
        f"{document['mean_message_bytes']:.2f}, {document['mean_messages']:.2f} messages a packet"
    )
    for name, row in document["services"].items():
        print(
            f"  {name:8}{row['packets']:>12,} packets {row['packets'] / max(packets, 1):7.2%}"
            f"{row['counted_bytes']:>16,} bytes {row['counted_bytes'] / max(counted, 1):7.2%}"
        )
