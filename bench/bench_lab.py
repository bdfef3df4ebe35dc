"""The laboratory's bars, a minute each (`make bench-long`): latency and loss as `feedhandler lab`
finds them, everything on this machine.

What the source paper measured on seven machines stands in `feedhandler.lab.thresholds`. A loss is a
fault; a latency that misses its bar is a figure, with where the processors' time went.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from feedhandler.lab import thresholds
from feedhandler.lab.laboratory import Laboratory
from feedhandler.lab.plan import Plan
from feedhandler.lab.results import Step
from feedhandler.lab.thresholds import THRESHOLDS, Threshold
from feedhandler.lab.view import View

SECONDS = 60.0
QUICK_SECONDS = 5.0
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SMOKE: dict[str, object] = {"QUICK_SECONDS": 1.0, "THRESHOLDS": THRESHOLDS[:1]}


def measured(bar: Threshold, seconds: float) -> Step:
    """Measure one step at a bar's load; exchanges cost the node the same, so one is enough."""
    with tempfile.TemporaryDirectory(prefix="bench-lab-") as folder:
        plan = Plan(
            out=Path(folder),
            scenarios=(bar.scenario,),
            exchanges=("topic",),
            clients=(bar.clients,),
            rate_bps=bar.rate_bps,
            duration_s=seconds,
        )
        laboratory = Laboratory(plan, View(quiet=True))

        async def measure() -> None:
            async with laboratory:
                await laboratory.measure_all()

        asyncio.run(measure())
    return laboratory.run.steps[0]


def figures(step: Step) -> dict[str, Any]:
    """Return a step as JSON-ready values."""
    found = step.latency.percentiles(*_SHARES.values())
    return {
        **{f"{name}_ms": ns / 1e6 for name, ns in zip(_SHARES, found, strict=True)},
        "mean_ms": step.latency.mean_ns / 1e6,
        "mbps": step.sent.rate_bps / 1e6,
        "verdicts": {verdict.quantity: verdict.met for verdict in step.verdicts},
        "processors": thresholds.busy(step),
        "sends_behind": step.sent.behind,
        "load_average": os.getloadavg()[0],
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every bar in turn."""
    problems: list[str] = []
    found: dict[str, Any] = {"problems": problems}
    for bar in THRESHOLDS:
        step = measured(bar, QUICK_SECONDS if quick else SECONDS)
        found[bar.name] = figures(step)
        problems += [f"{bar.name}: {finding}" for finding in step.findings]
        for line in thresholds.lines(step):
            print(f"  {line}", flush=True)
    return found
