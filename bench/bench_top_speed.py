"""Top speed of sending: raw frames beside tcpreplay, UDP beside a bare C loop.

One capture, with the sizes of a market's packets, is sent as fast as the kernel takes it: as frames
through a veth pair by tcpreplay (`--topspeed`, with what else makes it fastest: the file loaded
beforehand, no statistics of flows) and by us; as UDP to a group on loopback by `send_ceiling.c`,
which has the file in memory and does nothing but `sendmmsg`, and by us, who read the file
meanwhile. There is no receiver, so what is measured is sending. All four take turns; medians count.

The bars: 80 % of tcpreplay's packets a second, 90 % of the C loop's. Without root there are no
figures; without tcpreplay none of raw frames.
"""

import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.programs import compiled
from bench.replay_kit import (
    GROUP,
    PORT,
    NoTcpreplay,
    account_of,
    ours,
    payload_sizes,
    tcpreplay,
    tcpreplay_version,
    write_numbered,
)
from tests.support.veth import NoNamespace, namespace

RAW_BAR, UDP_BAR = 0.8, 0.9
PACKETS, ROUNDS = 1_000_000, 3
QUICK_PACKETS = 200_000
#: What makes tcpreplay fastest, tried one by one.
TCPREPLAY_OPTIONS = (
    ("--topspeed",),
    ("--topspeed", "--preload-pcap"),
    ("--topspeed", "--preload-pcap", "--no-flow-stats"),
)
#: Loopback's own address: where UDP is sent.
LOOPBACK = "127.0.0.1"
SMOKE: dict[str, object] = {"QUICK_PACKETS": 20_000}


def _output(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def tcpreplay_rate(path: Path, options: tuple[str, ...]) -> float:
    """Return packets a second, as tcpreplay prints them."""
    match = re.search(r"([\d.]+) pps", _output(tcpreplay(path, *options)))
    assert match is not None
    return float(match[1])


def our_raw_rate(path: Path, *options: str) -> float:
    """Return packets a second of our command, raw frames."""
    return _rate(_output(ours(path, "--speed", "flat", *options)))


def our_udp_rate(path: Path) -> float:
    """Return packets a second of our command, UDP on loopback."""
    words = ["--as-recorded", "--interface", LOOPBACK, "--json", "--speed", "flat"]
    return _rate(_output([*ours(path)[:4], str(path), *words]))


def _rate(text: str) -> float:
    account = account_of(text)
    return account["lines"][0]["sent"] * 1e9 / account["duration_ns"]


def ceiling_rate(program: Path, path: Path) -> float:
    """Return packets a second of the bare loop."""
    figures = json.loads(_output([str(program), str(path), GROUP, str(PORT), LOOPBACK]))
    return figures["sent"] / figures["seconds"]


def in_turn(
    sides: dict[str, Callable[[], float]],
    rounds: int,
    of: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Return the median rate of each, or what `of` makes of its rates."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            rates[name].append(measure())
    return {name: of(each) for name, each in rates.items()}


def verdict(name: str, mine: float, other: float, bar: float) -> dict[str, Any]:
    """Print one line, and return the figures."""
    ratio = mine / other
    good = ratio >= bar
    print(f"  {name}: {ratio:.0%} (bar {bar:.0%}): {'ok' if good else 'MISSED'}", flush=True)
    return {"ratio": round(ratio, 3), "bar": bar, "ok": good}


def best_options(path: Path, rounds: int) -> tuple[str, ...]:
    """Return the fastest of tcpreplay's options."""

    def rate_with(options: tuple[str, ...]) -> Callable[[], float]:
        return lambda: tcpreplay_rate(path, options)

    sides = {" ".join(options): rate_with(options) for options in TCPREPLAY_OPTIONS}
    rates = in_turn(sides, rounds, max)
    return tuple(max(rates, key=lambda name: rates[name]).split())


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all sides in turn, printed; figures, ratios and verdicts."""
    rounds = 1 if quick else ROUNDS
    count = QUICK_PACKETS if quick else PACKETS
    try:
        with namespace(), tempfile.TemporaryDirectory() as name:
            path = Path(name) / "flat.pcap"
            write_numbered(path, np.arange(count, dtype=np.int64) * 1_000, payload_sizes(count))
            return _measure(path, rounds)
    except NoNamespace as reason:
        print(f"  no figures: {reason}")
        return {"skipped": str(reason)}


def _measure(path: Path, rounds: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    program = compiled("send_ceiling", path.parent)
    sides = {
        "raw frames": lambda: our_raw_rate(path),
        "raw frames past the queue": lambda: our_raw_rate(path, "--bypass-queue"),
        "raw frames with new headers": lambda: our_raw_rate(path, "--source-ip", "10.9.9.9"),
        "C loop, UDP": lambda: ceiling_rate(program, path),
        "UDP": lambda: our_udp_rate(path),
    }
    try:
        figures["tcpreplay"] = tcpreplay_version()
        options = best_options(path, max(1, rounds // 2))
        figures["tcpreplay_options"] = " ".join(options)
        print(f"  tcpreplay {figures['tcpreplay']} {figures['tcpreplay_options']}", flush=True)
        sides = {"tcpreplay": lambda: tcpreplay_rate(path, options), **sides}
    except NoTcpreplay as reason:
        print(f"  no figures of tcpreplay: {reason}", flush=True)
    rates = in_turn(sides, rounds)
    for side, rate in rates.items():
        print(f"  {side:28s} {rate:11,.0f} packets/s")
    figures["packets_per_second"] = {side: round(rate) for side, rate in rates.items()}
    if "tcpreplay" in rates:
        figures["raw"] = verdict(
            "raw frames against tcpreplay", rates["raw frames"], rates["tcpreplay"], RAW_BAR
        )
    figures["udp"] = verdict(
        "UDP against the bare loop", rates["UDP"], rates["C loop, UDP"], UDP_BAR
    )
    return figures
