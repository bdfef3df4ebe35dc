"""Pacing with runs of a minute, and what is left of the schedule after ten (`make bench-long`).

Drift: a recording of ten minutes, with few and small packets, is replayed at its own pace; the
error of the last hundredth, against that of the first, may be a millisecond. See `bench_pacing`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bench.bench_pacing import QUICK_SECONDS, TRIAL_SECONDS, Lane, compare, whole_us
from bench.replay_kit import ours, write_numbered

SECONDS, ROUNDS = 60.0, 1
#: The bar, over so many seconds.
DRIFT_US_MAX, DRIFT_SECONDS = 1_000.0, 600.0
QUICK_DRIFT_SECONDS = 10.0
SMOKE: dict[str, object] = {"QUICK_DRIFT_SECONDS": 1.0}
PACKETS_A_SECOND, PAYLOAD_BYTES = 1_000, 60


def _drift(lane: Lane, folder: Path, seconds: float) -> dict[str, Any]:
    count = int(seconds * PACKETS_A_SECOND)
    due_ns = whole_us(np.arange(count, dtype=np.int64) * (10**9 // PACKETS_A_SECOND))
    path = folder / "drift.pcap"
    write_numbered(path, due_ns, np.full(count, PAYLOAD_BYTES))
    found, _ = lane.run(ours(path, "--speed", "1"), due_ns)
    good = abs(found.drift_us) < DRIFT_US_MAX
    print(
        f"  drift over {seconds / 60:.1f} minutes: {found.drift_us:+.1f} us (bar"
        f" {DRIFT_US_MAX:,.0f}): {'ok' if good else 'MISSED'}; {found}",
        flush=True,
    )
    return {"seconds": seconds, "us": round(found.drift_us, 1), "bar_us": DRIFT_US_MAX, "ok": good}


def drift(lane: Lane, folder: Path) -> dict[str, Any]:
    """Measure the drift over ten minutes."""
    return _drift(lane, folder, DRIFT_SECONDS)


def quick_drift(lane: Lane, folder: Path) -> dict[str, Any]:
    """Measure the drift for a short while."""
    return _drift(lane, folder, QUICK_DRIFT_SECONDS)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure a run of a minute each, then ten minutes."""
    if quick:
        return compare(QUICK_SECONDS, 1, QUICK_SECONDS / 2, (quick_drift,))
    return compare(SECONDS, ROUNDS, TRIAL_SECONDS, (drift,))
