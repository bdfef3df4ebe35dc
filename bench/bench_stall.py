"""One of five subscribers stops reading at 36,000 messages a second: do the others notice?

Runs with and without the stall take turns. The stalled subscriber's process is stopped with its
connection open; what waits for it comes to its bound, and then its link is detached. The bars: the
others' p99 (the worst of theirs, the median of the runs) changes by less than 20 % or 0.3 ms, and
the gateway's memory stays within the one queue's bound and what it takes without.

Here the stall is shorter than a minute; `bench_stall_long` has it in full.
"""

import statistics
from typing import Any

from bench.processes import every
from bench.rig import MESSAGES_A_PACKET, Rig

SUBSCRIBERS = 5
RATE = 36_000 // MESSAGES_A_PACKET
RUNS = 3
SECONDS = 5.0
SHARE_BAR, CHANGE_BAR_MS = 0.2, 0.3
SAMPLE_SECONDS = 0.25
#: What the stalled link may take beside its queue, which holds its bound and no more: the engine's
#: and the socket's buffers of one connection, and pages that the allocator keeps between what it
#: frees. The same for a queue of any bound.
BESIDE_BYTES = 4 << 20
SMOKE: dict[str, object] = {"SECONDS": 1.0}


def once(stalled: bool, seconds: float) -> dict[str, Any]:
    """Run once; return the others' p99 in milliseconds, and the gateway's highest memory."""
    memory: list[int] = []
    with Rig("message", SUBSCRIBERS, stamp=True, apart=True) as rig:
        bound = rig.config.amqp.queue_bytes
        # Without a stall the same one is left out of the count.
        left_out = rig.stop_reading() if stalled else None
        try:
            with every(SAMPLE_SECONDS, lambda: memory.append(rig.memory_bytes())):
                outcome = rig.run(RATE, seconds)
        finally:
            if left_out is not None:
                left_out.kill()
        reports = rig.finish()[: SUBSCRIBERS - 1]
    # A stall brings with it that its link is detached in the end.
    expected = "a subscriber was detached" if stalled else ""
    return {
        "p99_ms": max(report["p99_ns"] for report in reports) / 1e6,
        "memory_bytes": max(memory),
        "queue_bytes": bound,
        "detached": outcome.gateway["node"]["links_overrun"],
        "problems": [each for each in outcome.problems if each != expected],
    }


def change(without: list[float], with_stall: list[float]) -> tuple[float, float, bool]:
    """Return the medians' change in milliseconds and as a share, and whether it is within a bar."""
    before, after = statistics.median(without), statistics.median(with_stall)
    moved = after - before
    share = moved / before if before else 0.0
    return moved, share, moved < CHANGE_BAR_MS or share < SHARE_BAR


def alternate(runs: int, seconds: float) -> dict[str, Any]:
    """Run with and without the stall in turns."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(runs):
        for stalled in (False, True):
            found[stalled].append(once(stalled, seconds))
    p99 = {stalled: [each["p99_ms"] for each in found[stalled]] for stalled in found}
    moved, share, within = change(p99[False], p99[True])
    highest = {stalled: max(each["memory_bytes"] for each in found[stalled]) for stalled in found}
    bound = found[True][0]["queue_bytes"]
    room = bound + BESIDE_BYTES
    grown = highest[True] - highest[False]
    problems = [each for some in found.values() for run in some for each in run["problems"]]
    if grown > room:
        problems.append(f"memory grew by {grown / 1e6:.1f} MB, its bound {room / 1e6:.1f} MB")
    print(
        f"  p99 of the others {statistics.median(p99[False]):.3f} ms, with one stalled "
        f"{statistics.median(p99[True]):.3f} ms: {moved:+.3f} ms, {share:+.0%} (bar "
        f"{CHANGE_BAR_MS} ms or {SHARE_BAR:.0%}: {'kept' if within else 'missed'})"
    )
    print(
        f"  memory {highest[False] / 1e6:.0f} MB, with one stalled {grown / 1e6:+.0f} MB "
        f"(its queue's bound {bound / 1e6:.0f} MB, bar {room / 1e6:.0f} MB); " + "; ".join(problems)
    )
    return {
        "without": found[False], "with_stall": found[True], "p99_change_ms": moved,
        "p99_change_share": share, "p99_within": within, "memory_grown_bytes": grown,
        "memory_bar_bytes": room, "memory_within": grown <= room, "problems": problems,
    }  # fmt: skip


def run(quick: bool = False) -> dict[str, Any]:
    """Measure with short runs."""
    return alternate(1 if quick else RUNS, SECONDS)
