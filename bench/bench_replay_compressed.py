"""Replaying a gzipped and a zstd capture flat out, against the plain one, in turn.

No receiver listens, so sending is as cheap as it gets and reading has to keep up with that. The
figures are datagrams a second sent; the bar is 60 % of the plain capture's rate, where a processor
is free to inflate beside the two threads of a replay.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.session_file import compressed, write_session
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.sender_lines import MulticastLine

BAR = 0.6
SMOKE: dict[str, object] = {"QUICK_SECONDS": 1}
SECONDS, RUNS = 20, 5
QUICK_SECONDS, QUICK_RUNS = 5, 2


def sent_rate(path: Path, count: int) -> tuple[float, bool]:
    """Return datagrams a second of one replay flat out, and whether all were sent."""
    line = MulticastLine("A", ("239.192.78.9", 20_078))
    result = Player(Pipeline([Capture(path)]), [line], pace=Pace(PaceKind.FLAT_OUT)).run()
    return result.datagrams / result.duration_ns * 1e9, result.lines[0].sent == count


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the rates and their ratios to the plain capture's."""
    seconds, runs = (QUICK_SECONDS, QUICK_RUNS) if quick else (SECONDS, RUNS)
    rates: dict[str, list[float]] = {"plain": [], "gzip": [], "zstd": []}
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "session.pcap"
        count = write_session(plain, seconds)
        paths = {"plain": plain, **compressed(plain)}
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        for _ in range(runs):
            for name, path in paths.items():
                rate, whole = sent_rate(path, count)
                rates[name].append(rate)
                if not whole:
                    problems.append(f"{name}: not everything was sent")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratios = {name: medians[name] / medians["plain"] for name in ("gzip", "zstd")}
    for name, rate in medians.items():
        beside = f", {ratios[name]:.0%} of plain (bar {BAR:.0%})" if name in ratios else ""
        print(f"  {name:6} {rate:10,.0f} datagrams/s sent{beside}")
    return {
        "datagrams": count, "bytes": sizes, "sent_per_second": medians, "ratios": ratios,
        "bar": BAR, "ok": min(ratios.values()) >= BAR, "problems": problems,
    }  # fmt: skip
