"""The cost of recovery: time from a gap to the filled stream, and throughput lost meanwhile.

1 % of the packets are lost on both lines together (the load leaves every hundredth number out), and
a retransmission server on loopback has them. The ceiling is the same rig without loss, in the same
run.
"""

import statistics
from typing import Any

from bench.bench_gateway import TRIES, Highest, highest
from bench.rig import MESSAGES_A_PACKET, Outcome, Rig

SECONDS = 5.0
QUICK_SECONDS = 3.0
#: The paper's mean rate of unique packets, and how often it is measured.
PAPER_RATE, RUNS = 7_100, 3
#: Bars: beyond gap_wait_us, and the share of throughput that is left.
P50_MS, P99_MS, SHARE = 2.0, 10.0, 0.9
#: Where the search for the loss-free rate begins.
FIRST_RATE = 150_000
#: One number in so many is lost on both lines.
LOST_EVERY = 100
SMOKE: dict[str, object] = {
    "QUICK_SECONDS": 0.5,
    "FIRST_RATE": 3_000,
    "PAPER_RATE": 2_000,
    "bench_gateway.STEPS_MAX": 1,
}


def recoveries(rate: int, seconds: float) -> dict[str, Any]:
    """Return latency percentiles of one run, in milliseconds."""
    with Rig("recovered", 1, lost_every=LOST_EVERY, apart=True) as rig:
        outcome = rig.run(rate, seconds)
        (report,) = rig.finish()
    return {
        "problems": outcome.problems,
        "filled": report["filled"],
        "retransmitted": outcome.gateway["recovery"]["retransmitted"],
        "requests": outcome.gateway["recovery"]["requests"],
        **{name: report[f"{name}_ns"] / 1e6 for name in ("p50", "p90", "p99")},
    }


def lossy(rate: int, seconds: float) -> Outcome:
    """Run one load with its losses, every one of which must be recovered."""
    with Rig("packet", 1, lost_every=LOST_EVERY) as rig:
        outcome = rig.run(rate, seconds)
        outcome.subscribers = rig.finish()
    expected = rig.numbers_sent * MESSAGES_A_PACKET
    for report in outcome.subscribers:
        if report["market"] != expected:
            outcome.problems.append(f"a subscriber got {report['market']} of {expected} messages")
    return outcome


def share_left(clean: int, seconds: float) -> tuple[float, Highest]:
    """Return the share of the loss-free rate that holds with losses; steps of 5 % from the top."""
    why = ""
    faults: list[str] = []
    for percent in (100, 95, 90, 85, 80, 70, 50):
        rate = clean * percent // 100
        for _ in range(TRIES):
            outcome = lossy(rate, seconds)
            if outcome.passed:
                return percent / 100, Highest(rate, why, [])
        why, faults = outcome.why, outcome.problems
    return 0.0, Highest(0, why, faults)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures; `quick` shortens the loads."""
    seconds = QUICK_SECONDS if quick else SECONDS
    runs = [recoveries(PAPER_RATE, seconds) for _ in range(1 if quick else RUNS)]
    middle = {name: statistics.median(run[name] for run in runs) for name in ("p50", "p90", "p99")}
    problems = [problem for run in runs for problem in run["problems"]]
    print(
        f"  a gap filled, beyond gap_wait_us, at {PAPER_RATE:,}/s: p50 {middle['p50']:.2f} ms (bar"
        f" {P50_MS}), p90 {middle['p90']:.2f}, p99 {middle['p99']:.2f} ms (bar {P99_MS}),"
        f" {sum(run['filled'] for run in runs):,} gaps"
    )
    clean = highest("packet", 1, FIRST_RATE, seconds)
    share, held = share_left(clean.rate, seconds) if clean.rate else (0.0, clean)
    which = "with" if clean.rate else "without"
    problems += [f"no rate held {which} losses: {fault}" for fault in held.faults]
    print(
        f"  1 % lost on both lines: {held.rate:,} of {clean.rate:,} unique packets/s without loss,"
        f" {share:.0%} (bar {SHARE:.0%}) {held.why}"
    )
    return {
        "gap_to_recovery_ms": middle,
        "bars_ms": {"p50": P50_MS, "p99": P99_MS},
        "runs": runs,
        "rate_without_loss": clean.rate,
        "rate_with_loss": held.rate,
        "share": share,
        "share_bar": SHARE,
        "problems": problems,
    }
