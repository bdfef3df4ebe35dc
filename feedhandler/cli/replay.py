"""`feedhandler replay` on the command line."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedhandler.cli.options import (
    Interface,
    Json,
    Loss,
    LossA,
    LossB,
    Overwrite,
    Seed,
    SpareShared,
    Work,
    feed_names,
    share,
)
from feedhandler.terminal import arguments

if TYPE_CHECKING:
    from feedhandler.ops.replay.playing import Options


class Stamps(StrEnum):
    """Treatment of send times."""

    keep = "keep"
    shift = "shift"
    now = "now"


def _line(letter: str) -> Any:
    return typer.Option(
        parser=arguments.line_address, metavar="GROUP:PORT", help=f"Where line {letter} goes."
    )


Captures = Annotated[
    list[Path],
    typer.Argument(metavar="CAPTURE...", help="pcap or pcapng, plain, gzip or zstd; in turn."),
]
AsRecorded = Annotated[
    bool, typer.Option("--as-recorded", help="Each datagram to the group and port it came from.")
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="OLD=NEW[@A|B]",
        help="What was recorded on one GROUP[:PORT] goes to another, as line A or B if given; the "
        "rest is left out, or with --as-recorded stays where it was. Several: the first that fits.",
    ),
]
Tcp = Annotated[
    arguments.TcpAddress | None,
    typer.Option(
        parser=arguments.tcp_address,
        metavar="FRAMING:HOST:PORT",
        help="Serve it as a line by TCP, with --feed, from when the first client is there: soupbin "
        "(a SoupBinTCP session), length or length-little (packets behind their lengths).",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Only what was recorded from then on: 2026-11-20T09:00:00Z, 09:00[:00.5] of the "
        "first day, or +90 seconds from the start.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only what was recorded before that.")
]
Zone = Annotated[
    str | None,
    typer.Option(help="What zone times of day are meant in; else the feed's own, or UTC."),
]
Group = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP[:PORT]", help="Only this group. Several: any of them."),
]
Port = Annotated[
    list[int] | None,
    typer.Option("--port", min=1, max=65_535, help="Only this port. Several: any of them."),
]
Service = Annotated[
    list[int] | None,
    typer.Option("--service", min=0, help="Only this service, with --feed. Several: any of them."),
]
Sequence = Annotated[
    str | None,
    typer.Option(
        "--sequence",
        metavar="FIRST-LAST",
        help="Only packets with one of these numbers, with --feed; 100- is all from 100 on.",
    ),
]
Feed = Annotated[
    str | None,
    typer.Option(
        help="The feed whose packets these are, for --service and --sequence; a capture that is "
        "not of it is refused.",
        autocompletion=feed_names,
    ),
]
Speed = Annotated[
    str,
    typer.Option(
        "--speed", "--pace", help="1 (the capture's pace), 100x, 40mbps, 5000pps or flat."
    ),
]
MergeOption = Annotated[
    bool, typer.Option("--merge", help="Several captures together, by time, instead of in turn.")
]
Loops = Annotated[
    int,
    typer.Option(
        "--loop",
        min=0,
        help="Play all of it so often, 0: for ever; sequence numbers go on (--feed).",
    ),
]
StampsOption = Annotated[
    Stamps,
    typer.Option(
        "--stamps",
        help="Send times in packet headers, with --feed: keep, shift so that the first is now, or "
        "now for each.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be sent.")]
Write = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write it into a capture, with the times at which it would be sent; .gz and .zst are "
        "compressed.",
    ),
]
InterfaceB = Annotated[
    str | None, typer.Option(help="Where line B is sent, if not where line A is.")
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="Send Ethernet frames, with the headers as they were captured. Takes CAP_NET_RAW.",
    ),
]
SourceMac = Annotated[
    str | None,
    typer.Option("--source-mac", metavar="MAC", help="Source MAC of raw frames."),
]
SourceIp = Annotated[
    str | None,
    typer.Option("--source-ip", metavar="ADDRESS", help="Source address of raw frames."),
]
BypassQueue = Annotated[
    bool,
    typer.Option(
        "--bypass-queue", help="Raw frames go to the driver at once: faster, without shaping."
    ),
]
Duplicate = Annotated[float, share("Packets sent twice, on each line.")]
Reorder = Annotated[float, share("Packets sent late, on each line.")]
DelayB = Annotated[int, typer.Option(help="Line B lags behind A.", min=0)]

Control = Annotated[
    str,
    typer.Option(
        metavar="ENDPOINT",
        help="Where `feedhandler replay-control` may pause, move and stop it: ipc:///tmp/replay or "
        "tcp://127.0.0.1:5573.",
    ),
]


HELP = """Send captures to a line A and a line B, or to the lines they were recorded on.

All of it or a part, with losses, duplicates, reordering and delay if asked; the same seed, the
same losses. docs/replay.md has the details.

\b
Examples:
  feedhandler replay day.pcap.gz --feed iex-deep --line-a 239.1.1.1:5001 --line-b 239.1.2.1:5002
  feedhandler replay day.pcap --line-a 239.1.1.1:5001 --speed 100x --loss 5% --spare-shared
  feedhandler replay day.pcap --as-recorded --from 09:00 --until 09:05 --zone Europe/Paris
  feedhandler replay day.pcap --map 224.0.59.76:11076=239.1.1.1:5001@A
  feedhandler replay day.pcap --as-recorded --dry-run --speed 40mbps
  feedhandler replay day.pcap --feed iex-deep --line-a 239.1.1.1:5001 --loop 0 --stamps now
  feedhandler replay day.pcap --as-recorded --raw --interface eth1 --speed flat
  feedhandler replay itch.pcap --feed nasdaq-totalview-itch --tcp soupbin:127.0.0.1:7001
"""


def replay(
    captures: Captures,
    line_a: Annotated[arguments.LineAddress | None, _line("A")] = None,
    line_b: Annotated[arguments.LineAddress | None, _line("B")] = None,
    as_recorded: AsRecorded = False,
    maps: Map = None,
    tcp: Tcp = None,
    from_: From = None,
    until: Until = None,
    zone: Zone = None,
    group: Group = None,
    port: Port = None,
    service: Service = None,
    sequence: Sequence = None,
    feed: Feed = None,
    speed: Speed = "1",
    merge: MergeOption = False,
    loop: Loops = 1,
    stamps: StampsOption = Stamps.keep,
    dry_run: DryRun = False,
    write: Write = None,
    overwrite: Overwrite = False,
    loss: Loss = 0.0,
    loss_a: LossA = None,
    loss_b: LossB = None,
    duplicate: Duplicate = 0.0,
    reorder: Reorder = 0.0,
    delay_b_us: DelayB = 0,
    spare_shared: SpareShared = False,
    seed: Seed = 1,
    interface: Interface = "127.0.0.1",
    interface_b: InterfaceB = None,
    raw: Raw = False,
    source_mac: SourceMac = None,
    source_ip: SourceIp = None,
    bypass_queue: BypassQueue = False,
    control: Control = "",
    as_json: Json = False,
) -> Work:
    """Declare the arguments of `feedhandler replay`, whose help text is `HELP`."""
    from feedhandler.ops.replay import playing as ops

    options = ops.Options(
        captures=tuple(captures),
        feed=feed,
        lines=(line_a, line_b) if line_a is not None or line_b is not None else (),
        as_recorded=as_recorded,
        maps=arguments.line_maps(maps or ()),
        tcp=tcp,
        part=arguments.recording_part(from_, until, zone, group, port, service, sequence),
        pace=arguments.pace(speed),
        merge=merge,
        loop=loop,
        stamps=stamps.value,
        dry_run=dry_run,
        write=write,
        overwrite=overwrite,
        losses=(loss if loss_a is None else loss_a, loss if loss_b is None else loss_b),
        duplicate=duplicate,
        reorder=reorder,
        delay_b_us=delay_b_us,
        spare_shared=spare_shared,
        seed=seed,
        interface=interface,
        interface_b=interface_b or interface,
        frames=arguments.frames(raw or write is not None, source_mac, source_ip, bypass_queue),
        control=control,
        as_json=as_json,
    )
    _check(options, raw, (loss_a, loss_b) != (None, None))
    return lambda: ops.run(options)


def _check(options: "Options", raw: bool, losses: bool) -> None:
    """Raise `BadParameter` where it is not clear where to send; `losses`: a line has its own."""
    per_line = losses or bool(options.delay_b_us) or options.spare_shared
    if options.tcp is not None:
        _check_tcp(options, raw, per_line)
        return
    if options.as_recorded and (per_line or options.lines) and not options.maps:
        raise typer.BadParameter("--as-recorded knows no line A and B: leave their options out")
    if options.maps and options.lines:
        raise typer.BadParameter("--map says where to send: leave --line-a and --line-b out")
    if not options.as_recorded and not options.maps and not options.lines:
        raise typer.BadParameter("nowhere to send: give --line-a, or --as-recorded")


def _check_tcp(options: "Options", raw: bool, per_line: bool) -> None:
    """Raise `BadParameter` for what a line by TCP cannot have."""
    if options.feed is None:
        raise typer.BadParameter("--tcp serves messages of a feed: name it with --feed")
    elsewhere = options.lines or options.maps or options.as_recorded or raw or options.control
    if elsewhere or options.dry_run or options.write is not None:
        raise typer.BadParameter(
            "--tcp says where to send: leave the options of lines, frames, files and --control out"
        )
    faults = any(options.losses) or options.duplicate or options.reorder
    if faults or per_line or options.stamps != "keep":
        raise typer.BadParameter(
            "TCP loses nothing: leave losses, --duplicate, --reorder, --delay-b-us and --stamps out"
        )
    if not options.loop:
        raise typer.BadParameter("all that was sent is kept for --tcp: give --loop a number")
