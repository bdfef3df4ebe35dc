"""`feedhandler exchange`: a simulated UTP-MD session on two lines, in real time."""

import dataclasses
from pathlib import Path

from msgspec import Struct

from feedhandler.ops.console import ExitCode, host_faults, print_json, progress
from feedhandler.replay.exchange import Exchange, ExchangePlan, ExchangeProgress, ExchangeResult
from feedhandler.replay.inject import LineFaults


class Options(Struct, frozen=True, kw_only=True):
    """What to send, how fast, how long, and what goes wrong on each line."""

    seconds: float = 0.0
    rate: float = 20_000.0
    losses: tuple[float, float] = (0.0, 0.0)
    spare_shared: bool = False
    seed: int = 1
    interface: str = "127.0.0.1"
    port_base: int = 30_000
    ledger: Path | None = None
    as_json: bool = False


def run(options: Options) -> int:
    """Send until the time is up or a signal comes; either way the session is closed in order."""
    exchange = Exchange(plan(options))
    with progress("sending", total=options.seconds or None, unit="s") as advance:

        def on_progress(state: ExchangeProgress) -> None:
            advance(completed=state.elapsed_ns / 1e9)

        with host_faults():
            result = exchange.run(on_progress, handle_signals=True)
    _print_account(result, options)
    return ExitCode.OK


def plan(options: Options) -> ExchangePlan:
    """The options in the exchange's own terms."""
    loss_a, loss_b = options.losses
    return ExchangePlan(
        seed=options.seed,
        seconds=options.seconds,
        messages_per_s=options.rate,
        faults=(LineFaults(loss=loss_a), LineFaults(loss=loss_b)),
        spare_shared=options.spare_shared,
        ledger=options.ledger,
        interface=options.interface,
        base_ports=(options.port_base, options.port_base + 1000),
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
        print(f"  line {name}: {counts.dropped:,} of {counts.datagrams:,} packets dropped")
    if result.behind:
        late_ms = result.lateness_max_ns / 1e6
        print(f"  behind schedule: {result.behind:,} packets, the latest by {late_ms:,.1f} ms")
