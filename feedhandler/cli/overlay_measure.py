"""`feedhandler overlay measure` on the command line: techniques, triangles, the last hop."""

from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Json, Work, refuse_beside, share
from feedhandler.codecs.errors import UsageError

Receivers = Annotated[int, typer.Option(help="Number of receivers.", min=1, max=1_000_000)]
Hedging = Annotated[
    list[int] | None, typer.Option(help="Hedging neighbours; several times: 0, 1, 2.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="DEPTHxFANOUT", help="Or trees of these shapes; several times: 2x10."
    ),
]
Messages = Annotated[int, typer.Option(help="Messages of each technique.", min=20)]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Messages a second of each technique, or pair of hosts (50); of the last hop (8,000).",
        min=0.1,
        max=100_000,
    ),
]
SpikeUs = Annotated[int, typer.Option(help="Duration of a spike.", min=1)]
Fair = Annotated[
    float, typer.Option(help="Probability that the controller is asked for.", min=0.5, max=0.999)
]
Seed = Annotated[int, typer.Option(help="Seed of the spikes.", min=0)]
Triangles = Annotated[
    bool,
    typer.Option("--triangles", help="Measure delays of all pairs of hosts, by seconds."),
]
Hosts = Annotated[
    int, typer.Option(help="With --triangles: number of hosts, on this machine.", min=3, max=100)
]
Mesh = Annotated[
    Path | None,
    typer.Option(metavar="TOPOLOGY", help="With --triangles: run one of its members, on its host."),
]
Member = Annotated[str, typer.Option(metavar="MEMBER", help="With --topology: the member to run.")]
Read = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="With --triangles: output of a member; several times."),
]
LastHop = Annotated[
    bool,
    typer.Option("--last-hop", help="Measure round trips to an isolated process, by seconds."),
]
Echo = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="With --last-hop: a running `overlay echo`."),
]
Processors = Annotated[
    list[int] | None,
    typer.Option("--cpu", help="With --last-hop: for receiver and process; else the last two."),
]
Seconds = Annotated[
    float, typer.Option(help="With --triangles and --last-hop: the duration.", min=1, max=86_400)
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With either: write a page (.html) or its tables (.md)."),
]

#: What says something with one of the three only.
_OF_TECHNIQUES = ("receivers", "hedging", "shape", "messages", "spikes", "spike_us", "fair", "seed")
_OF_TRIANGLES = ("hosts", "topology", "member", "read")
_OF_LAST_HOP = ("echo", "cpu")


def measure(
    context: typer.Context,
    receivers: Receivers = 100,
    hedging: Hedging = None,
    shape: Shapes = None,
    messages: Messages = 1_000,
    rate: Rate = None,
    spikes: Annotated[float, share("Hops of which a copy is put off: 0.1%.")] = 0.0,
    spike_us: SpikeUs = 2_000,
    fair: Fair = 0.99,
    seed: Seed = 1,
    triangles: Triangles = False,
    hosts: Hosts = 10,
    topology: Mesh = None,
    member: Member = "",
    read: Read = None,
    last_hop: LastHop = False,
    echo: Echo = "",
    cpu: Processors = None,
    seconds: Seconds = 10,
    report: Report = None,
    as_json: Json = False,
) -> Work:
    """Measure unicast, by sendmmsg and by io_uring, and trees on this machine, message by message
    in turns, with the members that ship and real sockets: latency, delivery windows, and what
    deadlines make of them. Or what a network has before there is a tree (--triangles), and what
    comes after it (--last-hop).

    \b
    Examples:
      feedhandler overlay measure --receivers 100 --spikes 0.1%
      feedhandler overlay measure --shape 1x1 --shape 2x4 --shape 2x10 --json > measured.jsonl
      feedhandler overlay measure --triangles --seconds 60 --report delays.html
      feedhandler overlay measure --triangles --topology tree.toml --member receiver-0 > 0.jsonl
      feedhandler overlay measure --triangles --read 0.jsonl --read 1.jsonl
      feedhandler overlay measure --last-hop
    """
    if triangles and last_hop:
        raise UsageError("--triangles and --last-hop", "give one of them")
    if triangles:
        refuse_beside(context, "beside --triangles", *_OF_TECHNIQUES, *_OF_LAST_HOP)
        return _triangles(context, (hosts, topology, member, read or []), rate, seconds, report,
                          as_json)  # fmt: skip
    if last_hop:
        refuse_beside(context, "beside --last-hop", *_OF_TECHNIQUES, *_OF_TRIANGLES)
        from feedhandler.ops.overlay import last_hop as overlay_last_hop

        hop = overlay_last_hop.LastHopWanted(seconds, rate or 8_000, echo, cpu or [])
        return lambda: overlay_last_hop.measure_last_hop(hop, report, as_json)
    others = (*_OF_TRIANGLES, *_OF_LAST_HOP, "seconds", "report")
    refuse_beside(context, "by itself", *others, hint="give --triangles or --last-hop with it")
    from feedhandler.ops.overlay import measure as ops
    from feedhandler.overlay.measuring import Spikes

    if shape:
        refuse_beside(context, "beside --shape", "hedging")
    options = ops.Options(
        receivers, hedging or [0, 1, 2], messages, rate or 50, Spikes(spikes, spike_us * 1_000),
        fair, seed, [depth_and_fan_out(each) for each in shape or ()],
    )  # fmt: skip
    return lambda: ops.measure(options, as_json)


def depth_and_fan_out(text: str) -> tuple[int, int]:
    """Parse `2x10` into two numbers. Raises `UsageError`."""
    depth, _, fan_out = text.partition("x")
    if not (depth.isdecimal() and fan_out.isdecimal()):
        raise UsageError(f"{text!r} is no shape", "give depth x fan-out, such as 2x10")
    return int(depth), int(fan_out)


def _triangles(
    context: typer.Context,
    which: tuple[int, Path | None, str, list[Path]],
    rate: float | None,
    seconds: float,
    report: Path | None,
    as_json: bool,
) -> Work:
    """Measure triangles here, as a member of a mesh, or from what its members printed."""
    from feedhandler.ops.overlay import triangles as ops

    hosts, topology, member, read = which
    probing = ops.Probing(seconds, rate or 50)
    if read:
        refuse_beside(context, "beside --read", "hosts", "topology", "member", "rate", "seconds")
        return lambda: ops.triangles_read(read, report, as_json)
    if topology is not None or member:
        if topology is None or not member:
            raise UsageError("--topology and --member", "give both: which host is this?")
        refuse_beside(context, "beside --topology", "hosts", "report")
        return lambda: ops.triangles_member(topology, member, probing)
    return lambda: ops.triangles_here(hosts, probing, report, as_json)
