"""Memory of a proxy over an hour at a steady rate (`make bench-long`): see `bench_overlay_rate`."""

from typing import Any

from bench.bench_overlay_rate import GROWTH_BAR_BYTES, steady

SECONDS, QUICK_SECONDS = 3_600.0, 60.0
SMOKE: dict[str, object] = {"QUICK_SECONDS": 1.0}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure for an hour; quick: a minute."""
    kept = steady(QUICK_SECONDS if quick else SECONDS)
    print(f"  memory: {kept}", flush=True)
    # In a minute pools of the allocator may still grow.
    grown = not quick and kept["growth_bytes"] > GROWTH_BAR_BYTES
    return kept | {"problems": ["memory: it grows"] if grown else []}
