"""`feedhandler exchange`: a simulated session on two lines, in real time, with its servers.

A session is UTP-MD's, or that of FIX channels. The ports of lines, refresh lines and TCP servers
are all offsets from one `port_base`, so that a gateway's configuration follows from it.
"""

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.exchange.plan import FEED_NAME, Offered
from feedhandler.replay.exchange.simulated import (
    Exchange,
    ExchangePlan,
    ExchangeProgress,
    ExchangeResult,
)
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.retrans.settings import SERVER_BOUNDS, ServerSettings
from feedhandler.terminal.console import (
    ExitCode,
    host_faults,
    print_json,
    progress,
    run_async,
    signal_handlers,
)
from feedhandler.terminal.outputs import refuse_filled

if TYPE_CHECKING:
    from feedhandler.fixcast.exchange_plan import FixExchangePlan

#: Offsets from `port_base`; the service is added for lines A and B, and for the lines of snapshots
#: or of packets that were asked for.
LINE_PORTS, RECOVERY_LINE_PORTS = (0, 1000), (2000, 3000)
RETRANSMISSION_PORT, REFRESH_PORT = 1, 2
LOOPBACK = "127.0.0.1"
#: Bytes of each service that the retransmission server keeps: minutes of the default rate, and with
#: the tables of their numbers some 170 MB for all seven services.
KEEP_BYTES = 16 << 20
#: Prefixes of the counts of a server that the account names.
COUNTS_SHOWN = (
    "requests",
    "packets",
    "messages",
    "rejected",
    "refresh_",
    "gone",
    "snapshots",
    "spins",
    "loops",
    "unavailable",
)
#: Feeds that can be simulated, by their keys.
EURONEXT, FIX = "euronext", "fix"
#: Options that a session without refresh lines has no use for; FIX has no such lines at all.
OF_REFRESH_LINES = {"refresh_s": "--refresh-s", "refresh_over_tcp": "--refresh-over-tcp"}
NOT_OF_FIX = {**OF_REFRESH_LINES, "refresh_loss": "--loss-refresh"}
#: Printed on stderr after the last message, while clients may still have requests.
CLOSED = "the session is closed; the servers stay while they are asked"


class Options(Struct, frozen=True, kw_only=True):
    """The session to send, its speed and duration, and the faults of each line.

    `refresh_s` 0: snapshots at request only; `servers` False: lines A and B and nothing else.
    """

    feed: str = EURONEXT
    seconds: float = 0.0
    rate: float = 20_000.0
    losses: tuple[float, float] = (0.0, 0.0)
    together: float = 0.0
    refresh_loss: float = 0.0
    spare_shared: bool = False
    gap_s: float | None = None
    seed: int = 1
    interface: str = LOOPBACK
    port_base: int = 30_000
    servers: bool = True
    host: str = LOOPBACK
    refresh_s: float = 5.0
    refresh_over_tcp: bool = False
    keep_bytes: int = KEEP_BYTES
    ledger: Path | None = None
    as_json: bool = False


def run(options: Options) -> int:
    """Send until the time is up or a signal comes; either way the session is closed in order.

    Raises `UsageError` where the ledger's file has content already.
    """
    if options.ledger is not None:
        refuse_filled(options.ledger)
    if options.feed == FIX:
        return _run_fix(options)
    exchange = Exchange(plan(options))
    with progress("sending", total=options.seconds or None, unit="s") as advance:

        def on_progress(state: ExchangeProgress) -> None:
            advance(completed=state.elapsed_ns / 1e9)
            if state.closed:
                print(f"feedhandler: exchange: {CLOSED}", file=sys.stderr, flush=True)

        with host_faults(), signal_handlers(lambda *_: exchange.stop()):
            result = exchange.run(on_progress)
    _print_account(result, options)
    return ExitCode.OK


def _run_fix(options: Options) -> int:
    """Send a session of FIX channels, as `run` does."""
    from feedhandler.fixcast.exchange import FixExchange

    exchange = FixExchange(fix_plan(options))

    async def main(stop: asyncio.Event) -> int:
        with progress("sending", total=options.seconds or None, unit="s") as advance:

            def on_progress(state: ExchangeProgress) -> None:
                if state.closed:
                    print(f"feedhandler: exchange: {CLOSED}", file=sys.stderr, flush=True)
                else:
                    advance(completed=state.elapsed_ns / 1e9)

            with host_faults():
                result = await exchange.run(stop, on_progress)
        _print_account(result, options)
        return ExitCode.OK

    return run_async(main, "uvloop")


def fix_plan(options: Options) -> "FixExchangePlan":
    """Convert the options into a plan of the FIX exchange. Raises `UsageError`."""
    from feedhandler.fixcast.exchange_plan import FixExchangePlan

    _refuse(options, NOT_OF_FIX, "FIX channels")
    ports = [
        options.port_base + port if options.servers else None
        for port in (RETRANSMISSION_PORT, REFRESH_PORT)
    ]
    return FixExchangePlan(
        seed=options.seed,
        seconds=options.seconds,
        messages_per_s=options.rate,
        losses=options.losses,
        together=options.together,
        spare_shared=options.spare_shared,
        interface=options.interface,
        port_base=options.port_base,
        host=options.host,
        gap_s=options.gap_s,
        server_port=ports[0],
        state_port=ports[1],
        store_bytes=_server_settings(options).window_bytes,
        ledger=options.ledger,
    )


def _refuse(options: Options, of_others: dict[str, str], what: str) -> None:
    """Raise `UsageError` where an option is given that is of other sessions."""
    usual = Options()
    for name, option in of_others.items():
        if getattr(options, name) != getattr(usual, name):
            raise UsageError(f"{option} makes no sense for {what}", "leave it out")


def plan(options: Options) -> ExchangePlan:
    """Convert the options into a plan of the exchange. Raises `UsageError`.

    Refresh lines are UTP-MD's; a feed without a protocol of recovery has lines A and B alone.
    """
    feed = FEED_NAME if options.feed == EURONEXT else options.feed
    has = Offered.of(load_feed(feed))
    if not has.refresh_lines:
        _refuse(options, OF_REFRESH_LINES, feed)
    offered = has if options.servers else Offered()
    loss_a, loss_b = options.losses
    base, refresh = options.port_base, LineFaults(loss=options.refresh_loss)
    return ExchangePlan(
        feed=feed,
        seed=options.seed,
        seconds=options.seconds,
        messages_per_s=options.rate,
        faults=(LineFaults(loss=loss_a), LineFaults(loss=loss_b)),
        together=options.together,
        spare_shared=options.spare_shared,
        gap_s=options.gap_s,
        ledger=options.ledger,
        interface=options.interface,
        base_ports=(base + LINE_PORTS[0], base + LINE_PORTS[1]),
        refresh_s=options.refresh_s if offered.refresh_lines else None,
        refresh_faults=(refresh, refresh),
        recovery_base_ports=(base + RECOVERY_LINE_PORTS[0], base + RECOVERY_LINE_PORTS[1]),
        host=options.host,
        retransmission_port=base + RETRANSMISSION_PORT if offered.retransmission else None,
        refresh_port=base + REFRESH_PORT if offered.refresh else None,
        servers=_server_settings(options),
    )


def _server_settings(options: Options) -> ServerSettings:
    least, most = SERVER_BOUNDS["window_bytes"]
    if not least <= options.keep_bytes <= most:
        raise UsageError(
            f"--keep is {options.keep_bytes:,} bytes", f"give from {least:,} to {most:,}"
        )
    return ServerSettings(
        window_bytes=options.keep_bytes, refresh_over_tcp=options.refresh_over_tcp
    )


def _print_account(result: ExchangeResult, options: Options) -> None:
    packets, messages = sum(result.packets.values()), sum(result.messages.values())
    if options.as_json:
        account = dataclasses.asdict(result)
        account["by_service"] = {
            service: {"packets": result.packets[service], "messages": result.messages[service]}
            for service in result.packets
        }
        print_json({**account, "packets": packets, "messages": messages, "seed": options.seed})
        return
    seconds = result.duration_ns / 1e9
    print(
        f"exchange: {messages:,} messages in {packets:,} packets, {seconds:,.1f} s, "
        f"seed {options.seed}"
    )
    for name, counts in result.lines.items():
        together = f", {counts.together:,} of them on both lines" if counts.together else ""
        print(
            f"  line {name}: {counts.dropped:,} of {counts.datagrams:,} packets dropped{together}"
        )
    if result.withheld:
        service, sequence = result.withheld
        print(f"  withheld for good: service {service}, packet {sequence}")
    for name, numbers in result.servers.items():
        text = ", ".join(
            f"{count:,} {what.replace('_', ' ')}"
            for what, count in numbers.items()
            if what.startswith(COUNTS_SHOWN)
        )
        print(f"  {name}: {text or 'nothing was asked for'}")
    if result.snapshots:
        cyclic, asked = result.snapshots["cyclic"], result.snapshots["asked"]
        print(f"  snapshots: {cyclic:,} in turn, {asked:,} at request")
    if result.behind:
        late_ms = result.lateness_max_ns / 1e6
        print(f"  behind schedule: {result.behind:,} packets, the latest by {late_ms:,.1f} ms")
