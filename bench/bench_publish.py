"""Publishing confirmed to each broker, beside a bare sender in C to the same queue.

Ours is the gateway's publisher with all that belongs to it: fan-out, window, numbering. The peer is
the example `send` of proton's C library, built from Debian's package, which encodes a small message
and counts what is accepted. They take turns to be the first, and each finds the queue empty. The
bar: at least 80 % of the peer's rate, in the same run.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.peers import (
    BROKERS,
    Absent,
    Broker,
    Rate,
    bare_rate,
    broker,
    build_sender,
    child,
    feed,
    publish_options,
    watch,
)

BAR = 0.8
#: An order update's size.
MESSAGE_BYTES = 64
SINK = "sink"
WARM_UP_SECONDS = 1.0
#: Messages of the bare sender at least.
COUNT_MIN = 1000
SMOKE: dict[str, object] = {"WARM_UP_SECONDS": 0.2}


def sink(made: Broker) -> str:
    """Declare a queue for both; return its address for the C sender."""
    if made.kind == "artemis":
        return SINK  # comes into being as the publisher uses it, which is first
    made.exchange("bench")
    made.queue(SINK, "bench", "unused")
    return SINK if made.kind == "qpid" else made.source(SINK)


def ours_rate(made: Broker, seconds: float) -> Rate:
    """Return the publisher's rate."""
    with child(feed, MESSAGE_BYTES, publish_options(made, queue=SINK), 0) as feeding:
        watch(WARM_UP_SECONDS, [feeding], {})
        parts = {"gateway": [feeding.process.pid], "broker": [made.pid]}
        return watch(seconds, [feeding], parts)


def compare(name: str, program: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure both rates in turns; the bare sender sends as many as ours in the round before."""
    ours: list[float] = []
    bare: list[float] = []
    processors: list[dict[str, float]] = []
    with broker(name) as made:
        address = sink(made)

        def publisher() -> None:
            rate = ours_rate(made, seconds)
            ours.append(rate.a_second)
            processors.append(rate.processors)

        def sender() -> None:
            count = max(COUNT_MIN, int(ours[-1] * seconds))
            bare.append(bare_rate(program, made, address, count))

        for number in range(rounds):
            for side in (sender, publisher) if number % 2 else (publisher, sender):
                side()
                made.empty(SINK)
    return {
        "problems": [] if all(ours) else [f"{name}: nothing confirmed"],
        "ours_a_second": statistics.median(ours),
        "bare_a_second": statistics.median(bare),
        "to_bare": statistics.median(mine / peer for mine, peer in zip(ours, bare, strict=True)),
        "processors": processors,
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every broker that is installed."""
    seconds, rounds = (2.0, 1) if quick else (2.0, 3)
    problems: list[str] = []
    found: dict[str, Any] = {"bar": BAR, "problems": problems}
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = build_sender(Path(folder))
        except Absent as reason:
            print(f"  left out: {reason}")
            return {"left_out": str(reason)}
        for name in BROKERS:
            try:
                seen = found[name] = compare(name, program, seconds, rounds)
            except Absent as reason:
                found[name] = {"left_out": str(reason)}
                print(f"  {name}: left out, {reason}")
                continue
            problems += seen["problems"]
            used = seen["processors"][-1]
            print(
                f"  {name}: {seen['ours_a_second']:,.0f} confirmed/s, {seen['to_bare']:.2f} of the "
                f"bare sender's {seen['bare_a_second']:,.0f}/s (bar {BAR}); processors used: "
                + ", ".join(f"{who} {share:.2f}" for who, share in used.items())
            )
    return found
