"""One subscriber stops reading for a minute (`make bench-long`); see `bench_stall`."""

from typing import Any

from bench.bench_stall import alternate

RUNS = 5
SECONDS = 60.0
SMOKE: dict[str, object] = {"SECONDS": 1.0}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure five runs of each kind, a minute long."""
    return alternate(1 if quick else RUNS, SECONDS)
