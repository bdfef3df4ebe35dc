"""`feedhandler replay`: captures onto a line A and a line B, or onto the lines they came from."""

import dataclasses
import itertools
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from feedhandler.codecs import BadPacket, Feed, UsageError, load_feed
from feedhandler.ops.replay import plan as replay_plan
from feedhandler.ops.replay.progress import play
from feedhandler.ops.replay.verbs import ReplayVerbs
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.playing.blocks import make_preparer
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.line_map import RECORDED, LineMap, mapped_lines
from feedhandler.replay.playing.pace import Pace
from feedhandler.replay.playing.pipeline import Pipeline, endpoints, first_time_ns
from feedhandler.replay.playing.player import Player, PlayResult
from feedhandler.replay.playing.selection import Selection
from feedhandler.replay.playing.sender_lines import Endpoint, MulticastLine
from feedhandler.replay.playing.senders import FrameSettings, raw, udp
from feedhandler.replay.playing.stamps import Stamper, Stamps
from feedhandler.terminal.arguments import LineAddress, RecordingPart, TcpAddress
from feedhandler.terminal.captures import complain_if_cut, held_in_part, open_captures, read_slowly
from feedhandler.terminal.console import ExitCode, complain, print_json
from feedhandler.terminal.feed_guess import PROBE_DATAGRAMS, fitting_hint


class Options(Struct, frozen=True, kw_only=True):
    """The captures to send, their destinations, the pace, and the faults on the way.

    `lines` are A and B (None: not there). Without `lines` and `maps` each datagram goes to the
    group and port it was recorded on. With `maps`, those of mapped groups go there, and the rest
    only where `as_recorded`. `frames`: as raw frames. `tcp`: served as a line by TCP, and sent
    nowhere.
    """

    captures: tuple[Path, ...]
    lines: tuple[LineAddress | None, ...]
    pace: Pace
    losses: tuple[float, float]
    as_recorded: bool = False
    maps: tuple[LineMap, ...] = ()
    part: RecordingPart = RecordingPart()
    feed: str | None = None
    merge: bool = False
    loop: int = 1
    stamps: str = "keep"
    dry_run: bool = False
    write: Path | None = None
    overwrite: bool = False
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_b_us: int = 0
    spare_shared: bool = False
    seed: int = 1
    interface: str = "127.0.0.1"
    interface_b: str = "127.0.0.1"
    frames: FrameSettings | None = None
    tcp: TcpAddress | None = None
    control: str = ""
    as_json: bool = False


def run(options: Options) -> int:
    """Play to the end, or only write or print what would be sent; print the account.

    `FOUND` where a capture is cut short or damaged, or a frame was too long.
    """
    source = _source(options)
    if options.tcp is not None:
        from feedhandler.ops.replay import (
            tcp as replay_tcp,  # the servers of retrans: not for every replay
        )

        code = replay_tcp.run(source, options.pace, options.tcp, options.as_json)
        return ExitCode.FOUND if _complain_of_captures(source) else code
    lines = _lines(source, options)
    if options.dry_run or options.write is not None:
        return _without_sending(source, lines, options)
    player = Player(
        source,
        lines,
        pace=options.pace,
        seed=options.seed,
        spare_shared=options.spare_shared,
        stamper=_stamper(source, options),
        transport=udp() if options.frames is None else raw(options.frames),
    )
    title = _title(options)
    start_ns = first_time_ns(source.captures) if options.control else 0
    verbs = ReplayVerbs(player, title, start_ns, _zone(options, source.feed))
    result = play(player, verbs, f"replaying {title}", options.control, options.as_json)
    played = player.source if isinstance(player.source, Pipeline) else source
    _print_account(result, played, options, is_sought=played is not source)
    if result.too_long:
        complain(
            f"{result.too_long:,} frames were longer than the interface takes, and not sent",
            f"ip link set {options.interface} mtu 9000",
        )
    flawed = _complain_of_captures(played)
    return ExitCode.FOUND if flawed or result.too_long else ExitCode.OK


def _without_sending(source: Pipeline, lines: list[MulticastLine], options: Options) -> int:
    """Print what would be sent, or write it into a file."""
    preparer = make_preparer(
        lines,
        options.pace,
        seed=options.seed,
        spare_shared=options.spare_shared,
        stamper=_stamper(source, options),
    )
    plan = replay_plan.Plan(source, lines, preparer, _title(options), options.as_json)
    plan.keeps_times = options.stamps == "keep"
    if options.write is not None:
        plan.write(options.write, options.frames or FrameSettings(), options.overwrite)
    else:
        plan.report()
    return ExitCode.FOUND if _complain_of_captures(source) else ExitCode.OK


def _complain_of_captures(source: Pipeline) -> bool:
    """Report captures that are cut short or damaged; return whether any is."""
    for error in source.damages.values():
        complain(error.message, "all before it was played")
    cut = [complain_if_cut(capture) for capture in source.captures]
    return any(cut) or bool(source.damages)


def _stamper(source: Pipeline, options: Options) -> Stamper | None:
    """Make the stamper of send times; None where they stay. Raises `UsageError` without a feed."""
    if options.stamps == "keep":
        return None
    if source.feed is None:
        raise UsageError("send times are known only of a feed", "name it with --feed")
    return Stamper(source.feed, Stamps(options.stamps))


def _source(options: Options) -> Pipeline:
    """Open the captures, and select the part of them that is asked for. Raises `UsageError`."""
    captures = open_captures(options.captures)
    feed = load_feed(options.feed) if options.feed is not None else None
    if feed is not None:
        for capture in captures:
            _refuse_foreign(capture, feed)
    part = options.part
    zone = _zone(options, feed)
    begins = first_time_ns(captures) if part.begin or part.end else 0
    selection = Selection(
        from_ns=part.begin.at_ns(begins, zone) if part.begin else None,
        until_ns=part.end.at_ns(begins, zone) if part.end else None,
        groups=part.groups,
        ports=part.ports,
        services=part.services,
        sequences=part.sequences,
    )
    if options.dry_run and options.write is not None:
        raise UsageError("a dry run writes nothing", "leave --dry-run or --write out")
    passes = options.loop
    if not passes and (options.dry_run or options.write is not None):
        raise UsageError("a loop for ever has no end to print or to write", "give --loop a number")
    return Pipeline(
        captures,
        selection=selection,
        feed=feed,
        merge=options.merge,
        passes=passes,
        headers=options.dry_run,
    )


def _zone(options: Options, feed: Feed | None) -> str:
    """Return the zone that times of day are meant in."""
    return options.part.zone or (feed.zone if feed is not None else "UTC")


def _title(options: Options) -> str:
    """Return the capture's name, or the first one's and how many more."""
    first, *others = options.captures
    return first.name + (f" and {len(others)} more" if others else "")


def _lines(source: Pipeline, options: Options) -> list[MulticastLine]:
    """Return the lines with their faults; only B may lag. Raises `UsageError` for none."""
    faults = {name: _faults(options, name) for name in ("A", "B", RECORDED)}
    interfaces = {"A": options.interface, "B": options.interface_b, RECORDED: options.interface}
    if options.lines:
        return [
            MulticastLine(name, (address.group, address.port), interfaces[name], faults[name])
            for name, address in zip("AB", options.lines, strict=False)
            if address is not None
        ]
    lines = mapped_lines(
        options.maps,
        _endpoints(source, options),
        keep_others=options.as_recorded or not options.maps,
        interfaces=interfaces,
        faults=faults,
    )
    if not lines:
        _refuse_no_lines(source, options)
    return lines


def _refuse_no_lines(source: Pipeline, options: Options) -> NoReturn:
    """Raise `UsageError`: no datagram goes anywhere, by what was chosen or by its group."""
    title = _title(options)
    if options.part != RecordingPart() and next(iter(source.once()), None) is None:
        raise UsageError(
            f"{title}: no datagram is of what was chosen",
            "see --from, --until, --group, --port, --service and --sequence",
        )
    if options.maps:
        raise UsageError(f"{title}: no datagram that is meant is of a mapped group", "see --map")
    raise UsageError(
        f"{title}: no datagram that is meant went to a multicast group",
        "say where to send it: --line-a",
    )


def _endpoints(source: Pipeline, options: Options) -> list[Endpoint]:
    """Return the groups and ports that lines are for.

    Those in the captures, or those that all maps name in full, which needs no reading.
    """
    named = [(group, port) for group, port in (one.old for one in options.maps) if port is not None]
    if named and len(named) == len(options.maps) and not options.as_recorded:
        return named
    return endpoints(source.once())


def _faults(options: Options, line: str) -> LineFaults:
    return LineFaults(
        loss=options.losses[line == "B"],
        duplicate=options.duplicate,
        reorder=options.reorder,
        delay_us=options.delay_b_us if line == "B" else 0,
    )


def _refuse_foreign(capture: Capture, feed: Feed) -> None:
    """Raise `UsageError` where none of the first datagrams is a packet of the feed."""
    reasons = set()
    payloads = []
    for datagram in itertools.islice(Pipeline([capture]), PROBE_DATAGRAMS):
        try:
            feed.decode_packet(datagram.payload)
        except BadPacket as error:
            reasons.add(error.reason.name.lower())
            payloads.append(datagram.payload)
        else:
            return
    if reasons:
        raise UsageError(
            f"{capture.path}: none of the first datagrams is a {feed.name} packet "
            f"({', '.join(sorted(reasons))})",
            fitting_hint(payloads),
        )


def _print_account(result: PlayResult, source: Pipeline, options: Options, is_sought: bool) -> None:
    """Print the account; `is_sought`: not all was played, or some of it twice."""
    if options.as_json:
        account = dataclasses.asdict(result)
        account["truncation"] = str(result.truncation) if result.truncation else None
        named = ", ".join(str(path) for path in options.captures)
        account["left_out"] = replay_plan.left_out(source, result.unmapped)
        account["sent"] = sum(line.sent for line in result.lines)
        account["read_slowly"] = read_slowly(source.captures)
        account["held_in_part"] = held_in_part(source.captures)
        print_json({"capture": named, "seed": options.seed, **account})
        return
    seconds = result.duration_ns / 1e9
    # An end before the captures', or a seek: more was read ahead than was sent, or less.
    is_whole = result.complete and not is_sought
    count = result.datagrams if is_whole else sum(line.sent for line in result.lines)
    rate = count / seconds if seconds else 0.0
    print(
        f"replay: {count:,} datagrams {'' if is_whole else 'sent '}in {seconds:,.2f} s "
        f"({rate:,.0f}/s), seed {options.seed}{'' if result.complete else ', ended early'}"
    )
    for line in result.lines:
        extras = ""
        if line.duplicated or line.reordered:
            extras = f", {line.duplicated:,} sent twice, {line.reordered:,} reordered"
        print(f"  line {line.name}: {line.sent:,} sent, {line.dropped:,} dropped{extras}")
    replay_plan.print_left_out(source, result.unmapped)
    if result.behind:
        late_ms = result.lateness_max_ns / 1e6
        print(f"  behind schedule: {result.behind:,} sends, the latest by {late_ms:,.1f} ms")
