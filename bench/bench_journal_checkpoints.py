"""The price of short checkpoint intervals to the persistent queue, and the gain in recovery.

For each `checkpoint_bytes`, in turn and several times: 1 KiB messages are put, the queue is left as
a killed process leaves it, and opened again. Printed: messages a second, how that compares with the
longest interval of the same turn, checkpoints written, and what recovery took and rolled forward.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.bench_journal import _abandon
from feedhandler.journal import BlockingQueue, QueueSettings
from feedhandler.journal.engine import Engine

INTERVALS = (1 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20, 256 << 20)
SIZE, MANY = 1024, 1024
#: What is put for each figure: it ends behind a checkpoint by as much as the interval allows.
BYTES, QUICK_BYTES = 190 << 20, 24 << 20
ROUNDS = 3
SMOKE: dict[str, object] = {"INTERVALS": (1 << 20,)}


def once(folder: Path, interval: int, total: int) -> dict[str, float]:
    """Run one turn at one interval."""
    chosen = QueueSettings(blocks=total // (56 << 20) + 3, checkpoint_bytes=interval)
    batch = [os.urandom(SIZE) for _ in range(MANY)]
    with BlockingQueue(folder, chosen) as queue:
        before = queue.statistics()["checkpoints"]
        began = time.perf_counter()
        for _ in range(total // SIZE // MANY):
            queue.put_many(batch)
        took = time.perf_counter() - began
        written = queue.statistics()["checkpoints"] - before
        _abandon(queue.engine)
    engine = Engine(folder, chosen)
    figures = {
        "rate": total // SIZE // MANY * MANY / took,
        "checkpoints": written,
        "recovery_ms": engine.recovery_ns / 1e6,
        "rolled": engine.report.segments,
    }
    engine.close()
    shutil.rmtree(folder)
    return figures


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all intervals; return the table."""
    root = Path("out")
    root.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=root))
    turns: dict[int, list[dict[str, float]]] = {interval: [] for interval in INTERVALS}
    try:
        for _ in range(1 if quick else ROUNDS):
            for interval, found in turns.items():
                found.append(once(folder / "queue", interval, QUICK_BYTES if quick else BYTES))
    finally:
        shutil.rmtree(folder)
    longest = turns[INTERVALS[-1]]
    table = {}
    for interval, found in turns.items():
        one = {name: statistics.median(turn[name] for turn in found) for name in found[0]}
        one["of_longest"] = statistics.median(
            turn["rate"] / other["rate"] for turn, other in zip(found, longest, strict=True)
        )
        table[interval] = one
        print(
            f"  every {interval >> 20:3} MiB: {one['rate']:9,.0f}/s, {one['of_longest']:.2f} of the"
            f" longest interval's; {one['checkpoints']:.0f} checkpoints; recovery"
            f" {one['recovery_ms']:.0f} ms, {one['rolled']:.0f} segments rolled forward"
        )
    return {"intervals": table, "problems": []}
