"""`feedhandler fixcast plan`: channels for volumes given by a table, or measured in a capture."""

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.planner import (
    CHANNELS_USUAL,
    SHARE_MAX,
    Volume,
    channels_at_most,
    definition,
    plan,
    read_volumes,
)
from feedhandler.fixcast.volumes import VolumeMeter
from feedhandler.terminal.captures import ReadablePart, open_capture, report_reading
from feedhandler.terminal.console import ExitCode, complain, progress
from feedhandler.terminal.feed_guess import first_payloads, fitting_hint


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a plan: `measured` is a table of volumes, or a capture of `feed`.

    busiest     weigh instruments by a capture's busiest minute, not by all of it
    by_service  each service of a capture is a content
    """

    measured: Path
    feed: str = ""
    channels: int = CHANNELS_USUAL
    busiest: bool = False
    by_service: bool = False
    prefix: str = "239.10"
    port: int = 31_001
    sources: tuple[str, str] = ("", "")


def make_plan(options: Options) -> int:
    """Print a definition of channels for measured volumes; its spread goes to stderr.

    Returns `FOUND` where it is not even, or the capture is cut short or damaged.
    """
    if not options.feed:
        if options.busiest or options.by_service:
            raise UsageError("a table has neither minutes nor services", "give a capture: --feed")
        return _plan_of(options, read_volumes(options.measured))
    meter, whole = _measured(options)
    day, minute = meter.volumes(), meter.busiest_volumes()
    volumes, others = (minute, day) if options.busiest else (day, minute)
    moment = datetime.datetime.fromtimestamp(meter.busiest_ns // 10**9, datetime.UTC)
    if options.busiest:
        other_span = "over the whole capture"
    else:
        other_span = f"in the busiest minute, {moment:%H:%M} UTC"
    code = _plan_of(options, volumes, other_span, others)
    return code if whole else ExitCode.FOUND


def _measured(options: Options) -> tuple[VolumeMeter, bool]:
    """Return a capture's volumes, and whether it was whole.

    Raises `UsageError` where nothing in it names an instrument.
    """
    feed = load_feed(options.feed)
    meter = VolumeMeter(feed, options.by_service)
    capture = open_capture(options.measured)
    with progress(f"measuring {capture.path.name}", total=1.0) as advance:
        read = ReadablePart(capture, advance)
        for batch in read.batches():
            meter.add(batch)
    report_reading(capture)
    flawed = read.complain_of_rest()
    for reason, count in meter.rejected.items():
        complain(f"{count:,} datagrams are no {feed.name} packets: {reason}", "see --feed")
    if not meter.messages:
        payloads = first_payloads(read)
        raise UsageError(f"{capture.path}: no messages of {feed.name}", fitting_hint(payloads))
    text = f"{meter.messages:,} messages on all lines"
    if meter.unnamed_bytes:
        text += f"; {meter.unnamed_bytes:,} bytes name no instrument and are left out"
    print(text, file=sys.stderr)
    return meter, not flawed


def _plan_of(
    options: Options, volumes: list[Volume], when: str = "", others: Sequence[Volume] = ()
) -> int:
    """Plan and print the channels, and report how even the load is.

    `others` are the volumes of the same instruments over the other span, which `when` describes.
    """
    planned = plan(volumes, options.channels)
    sys.stdout.write(definition(planned, options.prefix, options.port, options.sources))
    for number, share in enumerate(planned.shares, 1):
        listed = sum(len(symbols) for symbols in share.symbols.values())
        contents = ", ".join(filter(None, share.contents))
        text = f"channel {number}: {share.volume:,}" + (f" of {contents}" if contents else "")
        print(text + (f", {listed} listed" if listed else ""), file=sys.stderr)
    heaviest = f"{float(planned.heaviest):.2f}"
    print(f"heaviest channel: {heaviest} of the mean", file=sys.stderr)
    if when:
        print(f"{when}: {float(planned.heaviest_of(others)):.2f} of the mean", file=sys.stderr)
    if planned.is_even:
        return ExitCode.OK
    heavy = max(volumes, key=lambda each: each.volume)
    most = channels_at_most(volumes)
    reason = "no spread of these instruments was found that is even"
    if most < options.channels:
        reason = f"{heavy.symbol} alone weighs {heavy.volume:,}: --channels {most} at most"
    complain(
        f"the heaviest channel has {heaviest} of the mean, more than {float(SHARE_MAX)}", reason
    )
    return ExitCode.FOUND
