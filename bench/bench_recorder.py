"""The price of recording everything: the same load with and without, in turn.

Lines A and B and what is published go to files. The figures are the gateway's processor time a
packet, with and without, and what found no room for the disk.
"""

import statistics
from typing import Any

from bench.rig import Rig

RATE, SECONDS, RUNS = 35_500, 3.0, 2
QUICK_SECONDS = 2.0
SMOKE: dict[str, object] = {"QUICK_SECONDS": 0.5}


def cost(record: bool, seconds: float) -> tuple[float, dict[str, Any], list[str]]:
    """Return gateway microseconds a packet, the recorder's series, and what went wrong."""
    with Rig("packet", 1, record=record) as rig:
        outcome = rig.run(RATE, seconds)
        rig.finish()
    series = outcome.gateway.get("recorder", {}).get("series", {})
    return outcome.cpu_seconds["gateway"] / outcome.sent * 1e6, series, outcome.problems


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the ratio of the medians, and what was not recorded."""
    seconds = QUICK_SECONDS if quick else SECONDS
    without, recording, refused, problems = [], [], 0, []
    for _ in range(1 if quick else RUNS):
        spent, _, wrong = cost(False, seconds)
        without.append(spent)
        problems += wrong
        spent, series, wrong = cost(True, seconds)
        recording.append(spent)
        problems += wrong
        refused += sum(each["dropped"] for each in series.values())
    before, after = statistics.median(without), statistics.median(recording)
    print(
        f"  at {RATE:,}/s, A, B and published recorded: gateway {after:.1f} us a packet,"
        f" {before:.1f} without ({after / before:.2f} times); {refused} not recorded, stream: "
        + ("; ".join(problems) or "nothing lost")
    )
    if refused:
        problems.append(f"{refused} not recorded")
    return {
        "us_without": without, "us_recording": recording, "ratio": after / before,
        "refused": refused, "problems": problems,
    }  # fmt: skip
