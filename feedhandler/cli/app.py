"""The command line: arguments in, work out.

Each command only reads its arguments and answers with the work to do, a function of a module in
`feedhandler/ops`. `main` runs that work outside the argument parser, so that errors, signals and
exit codes are handled in one place (`feedhandler.terminal.console`). Modules of commands are
imported when a command is chosen: `--help` stays fast.
"""

import copy
import gc
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedhandler import __version__
from feedhandler.cli import capture as cli_capture
from feedhandler.cli import characterise as cli_characterise
from feedhandler.cli import feeds as cli_feeds
from feedhandler.cli import fix as cli_fix
from feedhandler.cli import fixcast as cli_fixcast
from feedhandler.cli import generate as cli_generate
from feedhandler.cli import keyed as cli_keyed
from feedhandler.cli import lab as cli_lab
from feedhandler.cli import overlay as cli_overlay
from feedhandler.cli import queue as cli_queue
from feedhandler.cli import replay as cli_replay
from feedhandler.cli.options import (
    ControlEndpoint,
    FeedName,
    Interface,
    Json,
    Loss,
    LossA,
    LossB,
    MessageRate,
    Overwrite,
    RecordSchema,
    Seed,
    SpareShared,
    Timeout,
    Work,
    share,
    with_login,
)
from feedhandler.terminal import arguments
from feedhandler.terminal.console import ExitCode, complain, run_command

if TYPE_CHECKING:
    from feedhandler.amqp.identity import Login

EXIT_CODES = """
\b
Exit codes:
  0   done as asked; also after Ctrl-C or SIGTERM, where a command goes on until then:
      run, exchange, replay, capture, subscribe, status --watch, characterise --follow,
      keyed work, fixcast publish, fixcast receive, fixcast keys serve,
      fixcast keys fetch --follow, overlay send, overlay proxy, overlay receive,
      overlay echo
  1   ran, and found something wrong (loss unannounced, a damaged file, a failed check)
  2   wrong arguments, configuration or input file
  3   the other side could not be reached, refused, or ended it
  70  a fault of this program, or of the host while it ran; FEEDHANDLER_DEBUG=1 shows where
  130  interrupted: Ctrl-C or SIGTERM ended any other command before it was done
"""

app = typer.Typer(
    name="feedhandler",
    help="Two multicast lines in, one ordered AMQP 1.0 stream out.\n" + EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Check or print a configuration.", rich_markup_mode=None)
app.add_typer(config_app, name="config")


class SimulatedFeed(StrEnum):
    """Feeds that can be simulated, by their keys."""

    euronext = "euronext"
    fix = "fix"


Simulated = Annotated[
    SimulatedFeed, typer.Option(help="What is sent: UTP-MD's packets, or FIX channels.")
]


class ExchangedFeed(StrEnum):
    """Feeds that the simulated exchange sends: two by their keys, those of orders by name."""

    euronext = "euronext"
    fix = "fix"
    itch = "nasdaq-totalview-itch"
    asx = "asx-ntp-itch"
    pitch = "cboe-byx-pitch"
    memoir = "memx-memoir"
    xdp = "nyse-integrated-pillar"
    xdp_before = "nyse-integrated-xdp"
    options = "cboe-c1-options-pitch"
    deep_plus = "iex-deep-plus"
    deep = "iex-deep"
    tops = "iex-tops"
    cme = "cme-mdp3"


class RecordForm(StrEnum):
    """Forms of files with records."""

    DBN = "dbn"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Loop(StrEnum):
    """Event loops that the gateway runs on."""

    uvloop = "uvloop"
    asyncio = "asyncio"


class GatewayVerb(StrEnum):
    """Commands to a running gateway."""

    resume_requests = "resume-requests"


class Granularity(StrEnum):
    """Unit of what a subscriber receives: packets, batches, messages, records."""

    packet = "packet"
    batch = "batch"
    message = "message"
    mbo = "mbo"
    bbo = "bbo"
    mbp10 = "mbp10"
    trades = "trades"
    status = "status"
    definition = "definition"


GapAt = Annotated[
    float | None,
    typer.Option(
        help="So many seconds into the session, lose a packet of service 104 for good: only a "
        "refresh makes up for it.",
        min=0,
    ),
]
PortBase = Annotated[
    int,
    typer.Option(
        help="All ports count from this: line A's is this plus the service.", min=1024, max=60_000
    ),
]

KeepBytes = Annotated[
    int,
    typer.Option(
        parser=arguments.size_bytes,
        metavar="SIZE",
        help="Sent packets of each service that can be asked for again, in bytes; older ones are "
        "refused as no longer available.",
        show_default="16mib",
    ),
]
RefreshOverTcp = Annotated[
    bool, typer.Option("--refresh-over-tcp", help="A snapshot goes to who asked over TCP as well.")
]
ExchangedFeedOption = Annotated[
    ExchangedFeed, typer.Option(help="What is sent: UTP-MD, FIX channels, or orders.")
]
LossTogether = Annotated[
    float, share("Loss of the same packet on both lines: only a retransmission has it.")
]
Servers = Annotated[
    bool, typer.Option(help="Retransmission and refresh; without them, lines A and B alone.")
]
RefreshPeriod = Annotated[
    float, typer.Option(help="Seconds between a service's snapshots; 0: only at request.", min=0)
]
Ledger = Annotated[
    Path | None,
    typer.Option(help="Write the list of what was sent to this file, new or empty."),
]
WriteConfig = Annotated[
    Path | None, typer.Option(help="Write the configuration of a gateway of it to this file.")
]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"feedhandler {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options of every command; the application's own help is above."""


@app.command()
def demo(
    feed: Simulated = SimulatedFeed.euronext,
    seconds: Annotated[float, typer.Option(help="How long the exchange sends.", min=1)] = 20.0,
    rate: MessageRate = 20_000.0,
    loss: Annotated[float, share("Loss on each line, independent: 2% or 0.02.")] = 0.02,
    loss_together: Annotated[
        float, share("Loss of the same packet on both lines, to be recovered.")
    ] = 0.01,
    seed: Seed = 1,
    loop: Annotated[Loop, typer.Option(help="The gateway's event loop.")] = Loop.uvloop,
    as_json: Json = False,
) -> Work:
    """Show the main job on this machine.

    Exchange, gateway and three subscribers run as separate processes, with a live table per
    service. What both lines lose, the gateway gets back; one packet that the retransmission
    server does not have is made good by a snapshot. At the end every subscriber's stream is held
    against the exchange's own list of what it sent.

    \b
    Examples:
      feedhandler demo
      feedhandler demo --seconds 60 --loss 5%
      feedhandler demo --feed fix
      feedhandler demo --loop asyncio --json
    """
    from feedhandler.demo import showing as ops

    options = ops.Options(
        feed=feed.value,
        seconds=seconds,
        rate=rate,
        loss=loss,
        together=loss_together,
        seed=seed,
        loop=loop.value,
        as_json=as_json,
    )
    return lambda: ops.run(options)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The gateway's TOML file.")],
) -> Work:
    """Run a gateway.

    Ctrl-C or SIGTERM end it: what was received is still delivered.

    \b
    Examples:
      feedhandler config check gateway.toml && feedhandler run gateway.toml
    """
    from feedhandler.ops import run as ops

    return lambda: ops.run(config)


@app.command()
def exchange(
    feed: ExchangedFeedOption = ExchangedFeed.euronext,
    seconds: Annotated[float, typer.Option(help="How long to send; 0: until Ctrl-C.", min=0)] = 0.0,
    rate: MessageRate = 20_000.0,
    loss: Loss = 0.0,
    loss_a: LossA = None,
    loss_b: LossB = None,
    loss_together: LossTogether = 0.0,
    loss_refresh: Annotated[float, share("Loss on each refresh or retransmission line.")] = 0.0,
    spare_shared: SpareShared = False,
    gap_at: GapAt = None,
    seed: Seed = 1,
    interface: Interface = "127.0.0.1",
    port_base: PortBase = 30_000,
    servers: Servers = True,
    listen: Annotated[str, typer.Option(help="Address of the servers.")] = "127.0.0.1",
    refresh_s: RefreshPeriod = 5.0,
    refresh_over_tcp: RefreshOverTcp = False,
    keep: KeepBytes = 16 << 20,
    ledger: Ledger = None,
    write_config: WriteConfig = None,
    as_json: Json = False,
) -> Work:
    """Send a simulated session, of UTP-MD, of FIX channels, or of orders in another feed.

    UTP-MD: services 101 to 107 on two lines: line A of service s is 239.101.1.(s-100):(30000+s),
    line B is 239.101.2.(s-100):(31000+s). The retransmission server (TCP port 30001) has the latest
    packets; the refresh server (TCP port 30002) sends snapshots, in turn and at request, on refresh
    lines A, 239.101.3.(s-100):(32000+s), and B, 239.101.4.(s-100):(33000+s).

    FIX: channels 1 to 3; line A of channel c is 239.101.5.c:(30000+c), line B is
    239.101.6.c:(31000+c). Port 30001 takes Resend Requests, 30002 Market Data Requests.

    Orders, in one of the other feeds: one channel, where service 101 of UTP-MD is, with the servers
    of the feed (Nasdaq, ASX, Cboe, NYSE, IEX, CME) on ports 30001 and 30002; docs/exchange.md has
    their protocols and lines, and --write-config a gateway that knows them. Any login will do.

    \b
    Examples:
      feedhandler exchange --loss 2% --loss-together 1% --gap-at 10
      feedhandler exchange --feed fix --seconds 60 --seed 7 --ledger sent.ledger
      feedhandler exchange --feed cboe-byx-pitch --rate 5000 --loss 2% --write-config gateway.toml
    """
    from feedhandler.ops import exchange as ops

    options = ops.Options(
        feed=feed.value,
        seconds=seconds,
        rate=rate,
        losses=(loss if loss_a is None else loss_a, loss if loss_b is None else loss_b),
        together=loss_together,
        refresh_loss=loss_refresh,
        spare_shared=spare_shared,
        gap_s=gap_at,
        seed=seed,
        interface=interface,
        port_base=port_base,
        servers=servers,
        host=listen,
        refresh_s=refresh_s,
        refresh_over_tcp=refresh_over_tcp,
        keep_bytes=keep,
        ledger=ledger,
        as_json=as_json,
    )
    if write_config is not None:
        from feedhandler.ops import exchange_config

        return lambda: exchange_config.run(options, write_config)
    return lambda: ops.run(options)


@app.command()
def decode(
    capture: Annotated[
        Path, typer.Argument(metavar="CAPTURE", help="pcap or pcapng, plain, gzip or zstd.")
    ],
    feed: FeedName = "euronext-utp-md",
    service: Annotated[int | None, typer.Option(help="Only this service.", min=0)] = None,
    symbol: Annotated[str | None, typer.Option(help="Only this symbol.")] = None,
    types: Annotated[
        str | None, typer.Option(help="Only these message types: 230,240 or Q,T.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Stop after so many messages; 0: all.", min=0)] = 0,
    day: Annotated[
        str | None, typer.Option(help="Trading day, yyyy-mm-dd; else the capture's own.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Symbols by name, once reference data has given it.")
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Heartbeats, resets and control packets too.")
    ] = False,
    as_json: Json = False,
    records: Annotated[
        RecordSchema | None,
        typer.Option("--as", help="Normalised records instead of messages."),
    ] = None,
    form: Annotated[
        RecordForm | None, typer.Option("--format", help="Of records: csv by default.")
    ] = None,
    out: Annotated[str, typer.Option(help="File for records; -: stdout.")] = "-",
    overwrite: Overwrite = False,
) -> Work:
    """Print every message of a capture, or write its normalised records.

    \b
    Examples:
      feedhandler decode day.pcap.gz --feed iex-deep --limit 20
      feedhandler decode day.pcap --feed nasdaq-totalview-itch --as mbo --format dbn --out day.dbn
      feedhandler decode day.pcap --types 230,240 --symbol 10616 --json | jq .price
    """
    from feedhandler.ops import decode as ops

    options = ops.Options(
        capture=capture,
        feed=feed,
        service=service,
        symbol=symbol,
        types=arguments.words(types),
        limit=limit,
        day=arguments.date(day),
        names=names,
        control=control,
        as_json=as_json,
        records=records.value if records else "",
        form=form.value if form else "",
        out=out,
        overwrite=overwrite,
    )
    return lambda: ops.run(options)


@app.command()
@with_login
def subscribe(
    login: "Login",
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The node: amqp://host:5672; several of the same, with commas."
        ),
    ],
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A key; * is one word, # any number of words.")
    ],
    granularity: Annotated[
        Granularity | None,
        typer.Option("--as", help="The unit to receive; message, unless the address says."),
    ] = None,
    types: Annotated[str | None, typer.Option(help="Only these message types.")] = None,
    count: Annotated[int, typer.Option(help="Stop after so many; 0: never.", min=0)] = 0,
    stamp: Annotated[
        bool, typer.Option("--stamp", help="Latency since the gateway's kernel stamp.")
    ] = False,
    quality: Annotated[
        bool, typer.Option("--quality", help="Quality messages as lines of the stream.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Begin with a snapshot of each service.")
    ] = False,
    reconnect: Annotated[
        bool, typer.Option(help="Come back after a lost connection, and go on from there.")
    ] = True,
    feed: Annotated[
        str | None, typer.Option(help="The description's path, where it is no built-in feed.")
    ] = None,
    as_json: Json = False,
) -> Work:
    """Print what a gateway publishes, until Ctrl-C.

    \b
    Examples:
      feedhandler subscribe amqp://127.0.0.1:5672 euronext.104
      feedhandler subscribe amqp://127.0.0.1:5672 'euronext.*.10616' --types 230,240
      feedhandler subscribe amqp://127.0.0.1:5672 'euronext.#' --as packet --json --count 100
      feedhandler subscribe amqp://127.0.0.1:5672 'nasdaq.#' --as mbo --snapshot
      feedhandler subscribe amqps://ann@gw1:5671 'iex.#' --ca ca.pem --password-file ann.txt
    """
    from feedhandler.ops import subscribe as ops

    options = ops.Options(
        url=url,
        pattern=pattern,
        granularity=granularity.value if granularity else None,
        types=arguments.words(types),
        count=count,
        stamp=stamp,
        quality=quality,
        snapshot=snapshot,
        reconnect=reconnect,
        feed=feed,
        as_json=as_json,
        login=login,
    )
    return lambda: ops.run(options)


@app.command()
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
) -> Work:
    """Make the hash of a password for a gateway's [[amqp.users]].

    
    Examples:
      feedhandler user ann >> gateway.toml
    """
    from feedhandler.ops import user as ops

    return lambda: ops.run(name)


@app.command(hidden=True)
def ledger_client(url: str, pattern: str, granularity: str, feed: str, path: Path) -> Work:
    """Run one of the demo's subscribers: it receives, counts, and writes a ledger."""
    from feedhandler.demo import ledger_client as ops

    return lambda: ops.run(url, pattern, granularity, feed, path)


@app.command()
def status(
    gateway: ControlEndpoint = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between looks with --watch.", min=0.1)
    ] = 1.0,
    timeout: Timeout = 2.0,
    as_json: Json = False,
) -> Work:
    """Ask a running gateway how it is.

    Each channel's quality and recovery, the ranges under way, and the counters of its lines; the
    gateway wants `[control] bind` for that. Exit code 1 says that a channel is STALE or SILENT, or
    closed (kept back until its first snapshot comes), or that recording stopped by itself; 3 that
    no gateway answers.

    \b
    Examples:
      feedhandler status
      feedhandler status ipc:///run/gateway.ipc --watch
      feedhandler status gateway.toml --json | jq '.channels[].quality'
    """
    from feedhandler.ops import status as ops

    options = ops.Options(
        gateway=gateway, watch=watch, interval_s=interval, timeout_s=timeout, as_json=as_json
    )
    return lambda: ops.run(options)


@app.command()
def control(
    verb: Annotated[GatewayVerb, typer.Argument(metavar="VERB", help="resume-requests.")],
    gateway: ControlEndpoint = None,
    server: Annotated[str, typer.Option(help="This [[server]] only, by its name.")] = "",
    timeout: Timeout = 2.0,
    as_json: Json = False,
) -> Work:
    """Send a command to a running gateway.

    resume-requests: ask a retransmission or refresh server again that was given up for today,
    because it said "too many requests today" twice, or because requests_per_day was used up; the
    day's requests are counted anew. `feedhandler status` lists which servers are not asked, and
    until when. The gateway wants `[control] bind`; exit code 3 says that no gateway answers, or
    that it refused, as for a server that it has not.

    \b
    Examples:
      feedhandler control resume-requests
      feedhandler control resume-requests gateway.toml --server rts
    """
    from feedhandler.ops import gateway_control as ops

    options = ops.Options(
        verb=verb.value, gateway=gateway, server=server, timeout_s=timeout, as_json=as_json
    )
    return lambda: ops.run(options)


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="A gateway's TOML file.")
    ] = None,
    interface: Annotated[
        str | None, typer.Option(help="The interface the lines arrive on.")
    ] = None,
    topology: Annotated[
        list[Path] | None,
        typer.Option(help="An overlay's topology, whose members are to run here; several times."),
    ] = None,
    follow_clock: Annotated[
        bool, typer.Option("--follow-clock", help="Its members ask for the sender's time.")
    ] = False,
    as_json: Json = False,
) -> Work:
    """Check what a feed host needs.

    Each finding that is not ok says how to mend it.

    \b
    Examples:
      feedhandler doctor
      feedhandler doctor gateway.toml
      feedhandler doctor --interface eth1 --json
      feedhandler doctor --topology tree.toml
    """
    from feedhandler.doctor import examination as ops

    return lambda: ops.run(config, interface, as_json, topology or (), follow_clock)


@config_app.command("check")
def config_check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The gateway's TOML file.")],
) -> Work:
    """Check a configuration against itself and its feed: print ok, or the wrong line and why.

    \b
    Examples:
      feedhandler config check gateway.toml
    """
    from feedhandler.ops import config as ops

    return lambda: ops.check(config)


@config_app.command("show")
def config_show(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="The file; else an example.")
    ] = None,
    comments: Annotated[bool, typer.Option(help="Say what each setting means.")] = False,
) -> Work:
    """Print the configuration in force, defaults included, as TOML.

    \b
    Examples:
      feedhandler config show gateway.toml
      feedhandler config show --comments > gateway.toml
    """
    from feedhandler.ops import config as ops

    return lambda: ops.show(config, comments)


app.command(help=cli_replay.HELP)(cli_replay.replay)
app.command()(cli_lab.lab)
app.command()(cli_capture.capture)
app.command("replay-control")(cli_capture.replay_control)
app.command()(cli_generate.generate)
app.command()(cli_characterise.characterise)
app.command()(cli_characterise.pipeline)
app.add_typer(cli_queue.queue, name="queue")
app.add_typer(cli_keyed.keyed, name="keyed")
app.add_typer(cli_feeds.feeds, name="feeds")
app.add_typer(cli_fix.fix, name="fix")
app.add_typer(cli_fixcast.fixcast, name="fixcast")
app.add_typer(cli_overlay.overlay, name="overlay")


def main(interrupted: int = ExitCode.INTERRUPTED) -> None:
    """Run the `feedhandler` command, and exit with one of `ExitCode`.

    After a signal that is not the command's usual end the exit code is `interrupted`. Garbage is
    collected from when the work is chosen, and what it needs is imported.
    """

    def choose() -> Work:
        work = chosen(sys.argv[1:])
        gc.freeze()
        gc.enable()
        return work

    sys.exit(run_command(choose, interrupted))


def _name_of(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or typer.main.get_command_name(command.callback.__name__)


def _narrowed(whole: typer.Typer, words: list[str]) -> typer.Typer:
    """Return `whole` with the one command that `words` begin with, or as it is where there is none.

    Making the parsers of all commands takes longer than most commands' imports.
    """
    name = "".join(words[:1])
    part = copy.copy(whole)
    part.registered_commands = [
        each for each in whole.registered_commands if name == _name_of(each)
    ]
    part.registered_groups = [
        copy.copy(each) for each in whole.registered_groups if each.name == name
    ]
    for group in part.registered_groups:
        assert group.typer_instance is not None
        group.typer_instance = _narrowed(group.typer_instance, words[1:])
    return part if part.registered_commands or part.registered_groups else whole


def chosen(words: list[str]) -> Work:
    """Return the work that `words` ask for; where the parser did all, or complained, no work."""
    parser = typer.main.get_command(_narrowed(app, words))
    refuse_infinite(parser)
    try:
        answer = parser.main(words or ["--help"], prog_name="feedhandler", standalone_mode=False)
    except Exception as error:
        # Every parser's complaint has this method; which class it is depends on typer's version.
        if not hasattr(error, "format_message"):
            raise
        complain(_sentence(error.format_message()), _help_hint(error, parser, words))
        return lambda: ExitCode.USAGE
    return answer if callable(answer) else lambda: int(answer or 0)


def _sentence(message: str) -> str:
    """Return a parser's message in the style of ours: lower case first, no full stop."""
    return message[:1].lower() + message[1:].rstrip(".")


def _help_hint(error: Any, parser: Any, words: list[str]) -> str:
    """Return where to read on; where a group's command is missing, also which there are."""
    context = getattr(error, "ctx", None)
    command, path = parser, ["feedhandler"]
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
        path.append(word)
    see = f"see `{context.command_path if context else ' '.join(path)} --help`"
    if hasattr(command, "commands") and path[1:] == words:
        return f"one of {', '.join(command.commands)}; {see}"
    return see


def refuse_infinite(parser: Any) -> None:
    """Make every option of `parser` that takes a number refuse `nan` and `inf`.

    Both are numbers to the parser, and `nan` passes every range.
    """
    for command in getattr(parser, "commands", {}).values():
        refuse_infinite(command)
    for option in parser.params:
        if option.type.name in ("float", "float range"):
            assert option.callback is None
            option.callback = _finite


def _finite(_context: Any, _option: Any, value: float | None) -> float | None:
    """Return the option's value. Raises `BadParameter` where it is no finite number."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value
