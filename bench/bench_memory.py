"""Memory of the gateway over ten minutes at 20,000 packets a second (`make bench-long`).

The figure is the growth between minute 2 and minute 10; the bar is 2 MB. `bench_soak` is the same
over an hour, with faults.
"""

import time
from typing import Any

from bench.processes import every
from bench.rig import Rig

RATE = 20_000
BAR_BYTES = 2_000_000
SAMPLE_SECONDS = 5.0
QUICK_MINUTES = 1.0
SMOKE: dict[str, object] = {"QUICK_MINUTES": 0.03, "RATE": 2_000, "SAMPLE_SECONDS": 0.2}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure resident bytes over time, with four subscribers to whole packets."""
    minutes = QUICK_MINUTES if quick else 10.0
    first = minutes / 5
    samples: list[tuple[float, int]] = []
    with Rig("packet", 4) as rig:
        began = time.monotonic()

        def look() -> None:
            samples.append((time.monotonic() - began, rig.memory_bytes()))

        with every(SAMPLE_SECONDS, look):
            outcome = rig.run(RATE, minutes * 60)
        rig.finish()
    settled = [size for seconds, size in samples if seconds >= first * 60] or [0]
    growth = settled[-1] - settled[0]
    problems = list(outcome.problems)
    # A minute is a look: pools still fill.
    if not quick and growth >= BAR_BYTES:
        problems.append(f"memory grew by {growth / 1e6:.2f} MB")
    print(
        f"  resident at minute {first:.0f}: {settled[0] / 1e6:.1f} MB, at the end "
        f"{settled[-1] / 1e6:.1f} MB: {growth / 1e6:+.2f} MB (bar {BAR_BYTES / 1e6:.0f} MB)"
    )
    return {
        "growth_bytes": growth,
        "bar_bytes": BAR_BYTES,
        "minutes": minutes,
        "rate": RATE,
        "problems": problems,
        "samples": samples,
    }
