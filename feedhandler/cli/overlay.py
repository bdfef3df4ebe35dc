"""`feedhandler overlay` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Json, Timeout, Work, refuse_beside
from feedhandler.cli.overlay_hooks import hooks
from feedhandler.cli.overlay_measure import measure

overlay = typer.Typer(
    help="A fair multicast over a tree of proxies, for networks without one.",
)
overlay.add_typer(hooks, name="hooks")
overlay.command("measure")(measure)

Receivers = Annotated[int, typer.Option(help="Number of receivers.", min=1, max=1_000_000)]
Hedging = Annotated[
    int, typer.Option(help="Neighbours that each proxy helps: so many more copies.", min=0)
]  # fmt: skip


Topology = Annotated[
    Path, typer.Argument(metavar="TOPOLOGY", help="The tree's members, a TOML file.")
]
Also = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="TOPOLOGY", help="A further tree of the same sender and receivers; several times."
    ),
]
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="Its name in the topology.")]
Slots = Annotated[
    int, typer.Option(help="Ids remembered: a power of two, a second's messages.", min=1)
]
Clock = Annotated[
    bool,
    typer.Option("--follow-clock", help="Ask the parent for the sender's time: no chrony, no PTP."),
]
Processor = Annotated[int | None, typer.Option("--cpu", help="Run on this processor.", min=0)]
Metrics = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Serve /metrics, /live and /ready there.")
]
Control = Annotated[
    str, typer.Option(metavar="ENDPOINT", help="Answer `overlay status` there: ipc:///PATH.")
]
Busy = Annotated[bool, typer.Option("--busy", help="Ask the clock again and again near deadlines.")]


_ALREADY = "leave it out: the present tree has it already"
#: What `plan` makes a tree's shape of.
_SHAPE = ("receivers", "hedging", "depth", "fan_out", "level_us", "child_us", "measured")


@overlay.command("plan")
def plan(
    context: typer.Context,
    topology: Topology,
    receivers: Receivers = 10,
    hedging: Annotated[int, typer.Option(help="Neighbours that each proxy helps.", min=0)] = 1,
    depth: Annotated[int, typer.Option(help="Hops to a receiver; 0: chosen.", min=0)] = 0,
    fan_out: Annotated[int, typer.Option(help="Children of each node; 0: chosen.", min=0)] = 0,
    level_us: Annotated[
        float, typer.Option(help="Cost of a hop: the cheapest shape is taken.", min=0)
    ] = 0,
    child_us: Annotated[float, typer.Option(help="Cost of a child.", min=0)] = 0,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or: measured trees, JSON lines; costs are fitted."),
    ] = None,
    tree: Annotated[
        int | None,
        typer.Option(help="The tree's number; 1, or one more than beside.", min=0, max=65_535),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Addresses of machines, in turns; several times.")
    ] = None,
    port: Annotated[int, typer.Option(help="The first port.", min=1, max=65_535)] = 7000,
    replace: Annotated[
        str, typer.Option(metavar="MEMBER=HOST:PORT", help="Replace a member's machine by another.")
    ] = "",
    beside: Annotated[
        Path | None,
        typer.Option(metavar="TOPOLOGY", help="Plan a further tree beside this one."),
    ] = None,
    as_json: Json = False,
) -> Work:
    """Plan a tree: choose its shape, give members addresses and keys, and write the topology; or
    replace a member in one that is there; or plan a further tree to the same receivers, by proxies
    of its own. Members that run read it again at SIGHUP.

    \b
    Examples:
      feedhandler overlay plan tree-2.toml --beside tree.toml --host 10.0.0.7 --host 10.0.0.8
      feedhandler overlay plan tree.toml --receivers 100 --hedging 1 --host 10.0.0.5 --host 10.0.0.6
      feedhandler overlay plan tree.toml --replace proxy-0-3=10.0.0.9:7000
    """
    from feedhandler.ops.overlay import plan as ops
    from feedhandler.overlay.tree import Costs

    if replace:
        refuse_beside(
            context, "beside --replace", "beside", "tree", "host", "port", *_SHAPE, hint=_ALREADY
        )
        name, _, address = replace.partition("=")
        return lambda: ops.replace_member(topology, name, address, as_json)
    if beside is not None:
        refuse_beside(context, "beside --beside", *_SHAPE, hint=_ALREADY)
        hosts = tuple(host or ("127.0.0.1",))
        return lambda: ops.plan_beside(beside, topology, tree, hosts, port, as_json)
    costs = Costs(level_us, child_us) if level_us or child_us else None
    if measured is not None:
        refuse_beside(context, "beside --measured", "level_us", "child_us", "depth", "fan_out")
    options = ops.Options(
        receivers,
        hedging,
        depth,
        fan_out,
        costs,
        1 if tree is None else tree,
        tuple(host or ("127.0.0.1",)),
        port,
        measured,
    )
    return lambda: ops.plan(options, topology, as_json)


@overlay.command("send")
def send(
    topology: Topology,
    messages: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A line is a message; - for stdin.")
    ] = None,
    source: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="Send a group's datagrams.")
    ] = "",
    interface: Annotated[
        str, typer.Option(help="Local address where a group is joined.")
    ] = "0.0.0.0",
    rate: Annotated[float, typer.Option(help="Messages a second; 0: as they come.", min=0)] = 0,
    hold: Annotated[bool, typer.Option(help="Give messages deadlines.")] = True,
    fair: Annotated[
        float,
        typer.Option(
            help="Probability that all have a message in time, 0.5 to 0.999; 0: the 95 % rule."
        ),
    ] = 0.99,
    rotate: Annotated[bool, typer.Option(help="Begin with another child each time.")] = True,
    also: Also = None,
    cpu: Processor = None,
    metrics: Metrics = "",
    control: Control = "",
    as_json: Json = False,
) -> Work:
    """Send messages down a tree, or down several in turns: lines of a file, or datagrams as they
    come.

    \b
    Examples:
      feed | feedhandler overlay send tree.toml -
      feedhandler overlay send tree.toml --from 239.1.1.1:5001 --interface 10.0.0.5
    """
    from feedhandler.ops.overlay import members as ops

    running = ops.Running(
        (topology, *(also or ())), "sender", 1, False, cpu, False, as_json, metrics, control
    )
    sending = ops.Sending(messages, source, interface, rate, hold, fair, rotate)
    return lambda: ops.send(running, sending)


@overlay.command("proxy")
def proxy(
    topology: Topology,
    member: Member,
    slots: Slots = 65_536,
    follow_clock: Clock = False,
    cpu: Processor = None,
    busy: Annotated[
        bool,
        typer.Option("--busy", help="Look for datagrams without sleeping: a processor is spent."),
    ] = False,
    metrics: Metrics = "",
    control: Control = "",
    as_json: Json = False,
) -> Work:
    """Run a proxy of a tree, until Ctrl-C or SIGTERM: first copies go to its children and to those
    that it hedges for. At the end it prints what it did.

    \b
    Example:
      feedhandler overlay proxy tree.toml proxy-0-0 --cpu 1 --metrics 127.0.0.1:9465
    """
    from feedhandler.ops.overlay import members as ops

    running = ops.Running(
        (topology,), member, slots, follow_clock, cpu, busy, as_json, metrics, control
    )
    return lambda: ops.proxy(running)


@overlay.command("receive")
def receive(
    topology: Topology,
    member: Member,
    to: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Send payloads on, to a program or a group.")
    ] = "",
    gap_wait_us: Annotated[
        int, typer.Option(help="Longest wait of a message for a missing one before it.", min=0)
    ] = 2_000,
    echo: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the isolated process echoes probes: evens out a shorter last hop.",
        ),
    ] = "",
    extra_hold_us: Annotated[
        int | None, typer.Option(help="Hold this long beyond deadlines, not as measured.", min=0)
    ] = None,
    count: Annotated[int, typer.Option(help="End after so many messages; 0: never.", min=0)] = 0,
    also: Also = None,
    slots: Slots = 65_536,
    follow_clock: Clock = False,
    cpu: Processor = None,
    busy: Busy = False,
    metrics: Metrics = "",
    control: Control = "",
    as_json: Json = False,
) -> Work:
    """Receive from a tree: each message once, in order, released at its deadline. Exit code 1 where
    messages are missing.

    \b
    Examples:
      feedhandler overlay receive tree.toml receiver-0 --json
      feedhandler overlay receive tree.toml receiver-0 --to 239.1.1.1:5001
      feedhandler overlay receive tree.toml receiver-0 --also tree-2.toml
    """
    from feedhandler.ops.overlay import members as ops

    running = ops.Running(
        (topology, *(also or ())),
        member,
        slots,
        follow_clock,
        cpu,
        busy,
        as_json,
        metrics,
        control,
    )
    receiving = ops.Receiving(to, echo, gap_wait_us, extra_hold_us, count)
    return lambda: ops.receive(running, receiving)


@overlay.command("status")
def status(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="What the member was given as --control.")
    ],
    timeout: Timeout = 2.0,
    as_json: Json = False,
) -> Work:
    """Ask a running member how it is: what it has counted, measures, and waits for. Exit code 1
    where it is not ready, misses messages or has set a child apart; 3 where no member answers.

    \b
    Example:
      feedhandler overlay status ipc:///run/proxy.ipc
    """
    from feedhandler.ops.overlay import status as ops

    return lambda: ops.status(endpoint, timeout, as_json)


@overlay.command("echo")
def echo(
    listen: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of probes.")],
    only: Annotated[str, typer.Option(metavar="HOST:PORT", help="Answer this receiver only.")] = "",
    cpu: Processor = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Look for probes without sleeping: a processor is spent.")
    ] = False,
    as_json: Json = False,
) -> Work:
    """Send a receiver's probes back, beside an isolated process: so it measures its last hop.

    \b
    Examples:
      feedhandler overlay echo 10.0.0.7:6001 --only 10.0.0.5:7003
      feedhandler overlay receive tree.toml receiver-0 --to 10.0.0.7:6000 --echo 10.0.0.7:6001
    """
    from feedhandler.ops.overlay import echo as ops

    echoing = ops.Echoing(listen, only, cpu, busy, as_json)
    return lambda: ops.echo(echoing)


@overlay.command("simulate")
def simulate(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT", help="Such as table-1 or figure-8; else all."),
    ] = None,
    receivers: Receivers = 100,
    hedging: Hedging = 2,
    messages: Annotated[
        int, typer.Option(help="Messages of each experiment; deadlines need 10,000.", min=100)
    ] = 20_000,
    iterations: Annotated[int, typer.Option(help="Iterations of Figure 5.", min=1)] = 100_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.", min=0)] = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page (.html) or its tables (.md).")
    ] = None,
    as_json: Json = False,
) -> Work:
    """Simulate trees in a cloud: latency, delivery windows, deadlines and fairness, beside the
    figures of the paper that the overlay is made after.

    \b
    Examples:
      feedhandler overlay simulate table-1 figure-5
      feedhandler overlay simulate --receivers 1000 --report overlay.html
    """
    from feedhandler.ops.overlay import simulate as ops
    from feedhandler.overlay.simulation.experiments import Setting

    setting = Setting(receivers, hedging, messages, iterations, seed)
    return lambda: ops.simulate(setting, experiments or (), report, as_json)
