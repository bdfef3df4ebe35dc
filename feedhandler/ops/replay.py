"""`feedhandler replay`: captures onto a line A and a line B, or onto the lines they came from."""

import dataclasses
import ipaddress
import itertools
from pathlib import Path

from msgspec import Struct

from feedhandler.codecs import BadPacket, UsageError
from feedhandler.ops.arguments import LineAddress
from feedhandler.ops.captures import complain_if_cut, open_captures
from feedhandler.ops.console import ExitCode, host_faults, print_json, progress
from feedhandler.ops.feeds import open_feed
from feedhandler.replay.capture import Capture
from feedhandler.replay.inject import LineFaults
from feedhandler.replay.pace import Pace
from feedhandler.replay.pipeline import Pipeline, endpoints
from feedhandler.replay.player import Player, PlayProgress, PlayResult
from feedhandler.replay.sender_lines import MulticastLine

#: How many datagrams are looked at to tell whether a capture is of the feed.
PROBE_DATAGRAMS = 100


class Options(Struct, frozen=True, kw_only=True):
    """What to send where, how fast, and what goes wrong on the way.

    Without `lines` each datagram goes to the group and port it was recorded on.
    """

    captures: tuple[Path, ...]
    lines: tuple[LineAddress, ...]
    pace: Pace
    losses: tuple[float, float]
    feed: str | None = None
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_b_us: int = 0
    spare_shared: bool = False
    seed: int = 1
    interface: str = "127.0.0.1"
    as_json: bool = False


def run(options: Options) -> int:
    """Play to the end and print the account; `FOUND` where the capture is cut short."""
    captures = open_captures(options.captures)
    source = Pipeline(captures)
    if options.feed is not None:
        for capture in captures:
            _refuse_foreign(capture, options.feed)
    player = Player(
        source,
        _lines(options) if options.lines else [_as_recorded(source, options)],
        pace=options.pace,
        seed=options.seed,
        spare_shared=options.spare_shared,
    )
    with progress(f"replaying {_title(options)}", total=1.0) as advance:

        def on_progress(state: PlayProgress) -> None:
            advance(completed=state.share_done)

        with host_faults():
            result = player.run(on_progress)
    _print_account(result, options)
    cut = [complain_if_cut(capture) for capture in captures]
    return ExitCode.FOUND if any(cut) else ExitCode.OK


def _title(options: Options) -> str:
    """The capture's name, or the first one's and how many more."""
    first, *others = options.captures
    return first.name + (f" and {len(others)} more" if others else "")


def _as_recorded(source: Pipeline, options: Options) -> MulticastLine:
    """Every group and port of the captures as itself. Raises `UsageError` where there is none."""
    groups = {
        (group, port): (group, port)
        for group, port in endpoints(source)
        if ipaddress.IPv4Address(group).is_multicast and port
    }
    if not groups:
        raise UsageError(
            f"{_title(options)}: no datagram went to a multicast group",
            "say where to send it: --line-a",
        )
    faults = LineFaults(
        loss=options.losses[0], duplicate=options.duplicate, reorder=options.reorder
    )
    return MulticastLine("recorded", groups, options.interface, faults)


def _lines(options: Options) -> list[MulticastLine]:
    """The lines with their faults; B alone may lag."""
    made = []
    for number, address in enumerate(options.lines):
        faults = LineFaults(
            loss=options.losses[number],
            duplicate=options.duplicate,
            reorder=options.reorder,
            delay_us=options.delay_b_us if number else 0,
        )
        groups = (address.group, address.port)
        made.append(MulticastLine("AB"[number], groups, options.interface, faults))
    return made


def _refuse_foreign(capture: Capture, feed_name: str) -> None:
    """Raise `UsageError` where none of the first datagrams is a packet of the feed."""
    feed = open_feed(feed_name)
    reasons = set()
    for datagram in itertools.islice(capture, PROBE_DATAGRAMS):
        try:
            feed.decode_packet(datagram.payload)
        except BadPacket as error:
            reasons.add(error.reason.name.lower())
        else:
            return
    if reasons:
        raise UsageError(
            f"{capture.path}: none of the first datagrams is a {feed.name} packet "
            f"({', '.join(sorted(reasons))})",
            "see --feed",
        )


def _print_account(result: PlayResult, options: Options) -> None:
    if options.as_json:
        account = dataclasses.asdict(result)
        account["truncation"] = str(result.truncation) if result.truncation else None
        named = ", ".join(str(path) for path in options.captures)
        print_json({"capture": named, "seed": options.seed, **account})
        return
    seconds = result.duration_ns / 1e9
    rate = result.datagrams / seconds if seconds else 0.0
    print(
        f"replay: {result.datagrams:,} datagrams in {seconds:,.2f} s ({rate:,.0f}/s), "
        f"seed {options.seed}"
    )
    for line in result.lines:
        extras = ""
        if line.duplicated or line.reordered:
            extras = f", {line.duplicated:,} sent twice, {line.reordered:,} reordered"
        print(f"  line {line.name}: {line.sent:,} sent, {line.dropped:,} dropped{extras}")
    if result.behind:
        late_ms = result.lateness_max_ns / 1e6
        print(f"  behind schedule: {result.behind:,} sends, the latest by {late_ms:,.1f} ms")
