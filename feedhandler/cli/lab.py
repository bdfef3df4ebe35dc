"""`feedhandler lab` on the command line."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import FeedName, Work, refuse_beside


class Scenarios(StrEnum):
    """Content of one AMQP message."""

    packets = "packets"
    messages = "messages"
    both = "both"


class Exchanges(StrEnum):
    """Kind of exchange by which clients ask for everything."""

    direct = "direct"
    topic = "topic"
    both = "both"


class Brokers(StrEnum):
    """Broker between the gateway and its clients."""

    embedded = "embedded"
    rabbitmq = "rabbitmq"
    rabbitmq_3 = "rabbitmq-3"
    rabbitmq_4 = "rabbitmq-4"
    artemis = "artemis"
    qpid = "qpid"


class Modes(StrEnum):
    """Method by which latency is measured."""

    direct = "direct"
    paper = "paper"


class Sweeps(StrEnum):
    """Quantity that a sweep goes through."""

    rate = "rate"
    clients = "clients"


Out = Annotated[Path, typer.Option(help="The folder that the report is written to.")]
WhichScenarios = Annotated[
    Scenarios, typer.Option(help="Whole packets, or each market message alone.")
]
WhichExchanges = Annotated[
    Exchanges, typer.Option(help="Each service by its key, or all by a pattern.")
]
Clients = Annotated[
    str, typer.Option(help="Client counts, one step each; without --symbols all take everything.")
]
Symbols = Annotated[
    str,
    typer.Option(
        help="Symbols of clients, in turn, drawn by seed and popularity: 100, 5%, or 100,5%,all."
    ),
]
Broker = Annotated[Brokers, typer.Option(help="The gateway's own node, or a broker beside it.")]
BrokerUrl = Annotated[
    str,
    typer.Option(help="A running one, else one starts: amqp://user:password@host:5672/vhost."),
]
BrokerManagement = Annotated[
    int, typer.Option(help="The management's HTTP port; 0: 15672 of RabbitMQ, 8080 of Broker-J.")
]
Mode = Annotated[
    Modes,
    typer.Option(
        help="Gateway's kernel stamp to client's read; or the paper's way, the broker alone."
    ),
]
Rate = Annotated[str, typer.Option(help="Bits of Ethernet frames a second, both lines together.")]
PaceText = Annotated[
    str,
    typer.Option(
        help="original: a --capture's own gaps, bursts and all, instead of --rate; or 10x."
    ),
]
Duration = Annotated[str, typer.Option(help="Duration of each measurement.")]
WarmUp = Annotated[
    str, typer.Option(help="Time before that at the same rate; checked, but not timed.")
]
Captures = Annotated[
    list[Path] | None,
    typer.Option(help="Replay this capture (several: in turn), looped where it is shorter."),
]
Generate = Annotated[
    bool, typer.Option("--generate", help="Replay a generated session (the default).")
]
Seed = Annotated[
    int, typer.Option(help="Seed of the generated session, and of clients' symbols.", min=0)
]
Interface = Annotated[str, typer.Option(help="Where the lines are: a name or an address.")]
SweepOf = Annotated[
    Sweeps | None,
    typer.Option(help="Search how far the rate, or the clients, can go within --bound."),
]
BoundText = Annotated[str, typer.Option(help="A sweep's p50, p90, p99, p99.9 or max = a time.")]
Apart = Annotated[
    bool, typer.Option(help="Keep sender and gateway on one processor, clients on the others.")
]


def lab(
    context: typer.Context,
    out: Out,
    scenario: WhichScenarios = Scenarios.packets,
    exchange: WhichExchanges = Exchanges.direct,
    clients: Clients = "1,2,4,6,8,10",
    broker: Broker = Brokers.embedded,
    broker_url: BrokerUrl = "",
    broker_management: BrokerManagement = 0,
    mode: Mode = Modes.direct,
    symbols: Symbols = "all",
    rate: Rate = "40mbps",
    pace: PaceText = "",
    duration: Duration = "60s",
    warm_up: WarmUp = "2s",
    capture: Captures = None,
    generate: Generate = False,
    feed: FeedName = "euronext-utp-md",
    seed: Seed = 1,
    interface: Interface = "127.0.0.1",
    sweep: SweepOf = None,
    bound: BoundText = "p90=1ms",
    apart: Apart = True,
) -> Work:
    """Measure latency, in one command: replayer, gateway, broker and clients as processes.

    Each step replays for --duration at --rate, or at a capture's own --pace, to so many clients,
    which subscribe to everything or to some --symbols.
    Latency is from the kernel's receive stamp at the gateway to the client's read. Every client
    checks that it gets each packet (or message) once and in order: exit code 1 where one did not,
    70 where a role died or hung.

    \b
    Examples:
      feedhandler lab --out out/lab --clients 1,2 --duration 5s
      feedhandler lab --out out/lab --scenario both --exchange both --clients 1,5,10
      feedhandler lab --out out/lab --broker rabbitmq --mode paper --clients 1,2,4
      feedhandler lab --out out/lab --capture day.pcap.gz --feed iex-deep --rate 100mbps
      feedhandler lab --out out/lab --capture day.pcap.gz --pace original --symbols 100,5%,all
      feedhandler lab --out out/lab --sweep rate --bound p90=1ms --clients 10 --duration 10s
    """
    from feedhandler.lab import commands as ops
    from feedhandler.lab import plan as words

    _check(context, capture and generate, sweep is not None)
    duration_s = words.check_duration(words.parse_duration(duration))
    plan = words.Plan(
        out=out,
        scenarios=tuple(each for each in words.SCENARIOS if scenario in (each, "both")),
        exchanges=tuple(each for each in words.EXCHANGES if exchange in (each, "both")),
        clients=words.parse_clients(clients),
        broker=broker.value,
        broker_url=broker_url,
        broker_management=broker_management,
        mode=mode.value,
        rate_bps=words.parse_rate(rate),
        pace=words.parse_own_pace(pace) if pace else 0.0,
        symbols=words.parse_symbols(symbols),
        duration_s=duration_s,
        warm_up_s=words.parse_duration(warm_up),
        captures=tuple(capture or ()),
        feed=feed,
        seed=seed,
        interface=interface,
        sweep=sweep.value if sweep else "",
        bound=words.parse_bound(bound) if sweep else None,
        apart=apart,
    )
    return lambda: ops.run(plan)


def _check(context: typer.Context, has_two_loads: object, sweeps: bool) -> None:
    """Raise `BadParameter` for options that contradict one another, or that nothing takes."""
    if has_two_loads:
        raise typer.BadParameter("--capture and --generate: what is to be replayed?")
    if not sweeps:
        refuse_beside(context, "without --sweep", "bound", hint="add --sweep rate, or leave it out")
