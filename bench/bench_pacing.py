"""Exactness of pacing: our replay beside tcpreplay, on one capture and one absolute schedule.

Two schedules: 40 Mbit/s of Ethernet frames (the paper's rate), and the pace of a recording with the
bursts and pauses of a market. Both programs send the same frames through the same veth pair, in
turn; the kernel stamps each at the far end while it is delivered (`veth.StampRing`). A packet's
error is its arrival minus its time in the schedule; the median over the run, which is how long the
way takes and when the program began, is taken off.

tcpreplay is tried with each of its timers, and for 40 Mbit/s both by its own `--mbps` and by the
times in the capture; what has the smallest p99 then meets us. The bar: our p99 at most half of it,
by the median of the rounds. Without root or without tcpreplay there are no figures.

Run alone: `python -m bench --only pacing`; a minute a run, and the drift over ten minutes, are
`bench_pacing_long`.
"""

import dataclasses
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.replay_kit import (
    SEED,
    NoTcpreplay,
    account_of,
    ours,
    payload_sizes,
    tcpreplay,
    tcpreplay_version,
    write_numbered,
)
from tests.support.veth import NoNamespace, StampRing, namespace

#: Our p99 against tcpreplay's.
BAR = 0.5
RATE_BITS = 40_000_000
TIMERS = ("gtod", "nano", "select", "ioport")
#: A recording's pauses between packets: log-normal, most of them far below the mean.
PAUSE_SIGMA = 1.8
SECONDS, ROUNDS, TRIAL_SECONDS = 6.0, 3, 1.5
QUICK_SECONDS = 1.5
#: How often the ring is read, and how long after the end something may still arrive.
LOOK_SECONDS = 0.5
SMOKE: dict[str, object] = {"QUICK_SECONDS": 0.3, "LOOK_SECONDS": 0.2}

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of one run: packets, and the error's size in microseconds; `drift_us` is the median of the
    last hundredth minus that of the first."""

    packets: int
    p50_us: float
    p99_us: float
    max_us: float
    drift_us: float

    def __str__(self) -> str:
        return f"p50 {self.p50_us:9,.1f}  p99 {self.p99_us:9,.1f}  max {self.max_us:9,.1f} us"


def errors_of(numbers: Array, times_ns: Array, due_ns: Array) -> Errors:
    """Return the errors of packets that arrived, by number, at these times."""
    error = times_ns - due_ns[numbers]
    error = error - np.median(error)
    part = max(1, len(error) // 100)
    size = np.abs(error) / 1e3
    return Errors(
        packets=len(error),
        p50_us=float(np.percentile(size, 50)),
        p99_us=float(np.percentile(size, 99)),
        max_us=float(size.max()),
        drift_us=float(np.median(error[-part:]) - np.median(error[:part])) / 1e3,
    )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A capture and what both programs are asked to make of it.

    `due_ns` is when each packet is due. A rate leaves open whether that is when those before it
    have passed or when it has itself, and tcpreplay counts whole microseconds: of `others_ns`
    whatever suits it best is taken.
    """

    name: str
    path: Path
    due_ns: Array
    others_ns: tuple[Array, ...]
    tcpreplay_options: tuple[tuple[str, ...], ...]
    our_options: tuple[str, ...]


def whole_us(times_ns: Array) -> Array:
    """Round down to the microseconds that a capture holds."""
    return times_ns // 1_000 * 1_000


def steady(folder: Path, seconds: float) -> Schedule:
    """Return a schedule at the paper's rate: a packet is due when those before it have passed."""
    sizes = payload_sizes(int(RATE_BITS * seconds / 8 / 330))
    bits = (sizes + 42) * 8
    ends_ns = (np.cumsum(bits) * (1e9 / RATE_BITS)).astype(np.int64)
    due_ns = ((np.cumsum(bits) - bits) * (1e9 / RATE_BITS)).astype(np.int64)
    path = folder / "steady.pcap"
    write_numbered(path, due_ns, sizes)
    mbps = RATE_BITS // 1_000_000
    return Schedule(
        f"{mbps} Mbit/s", path, due_ns, (ends_ns, whole_us(due_ns), whole_us(ends_ns)),
        ((f"--mbps={mbps}",), ("--multiplier=1",)),
        ("--speed", f"{mbps}mbps"),
    )  # fmt: skip


def recorded(folder: Path, seconds: float) -> Schedule:
    """Return a schedule of as many packets as `steady`, at the pace of a session."""
    sizes = payload_sizes(int(RATE_BITS * seconds / 8 / 330))
    pauses = np.random.default_rng(SEED + 1).lognormal(0, PAUSE_SIGMA, len(sizes))
    due_ns = np.cumsum(pauses * (seconds * 1e9 / pauses.sum())).astype(np.int64)
    due_ns = whole_us(due_ns - due_ns[0])
    path = folder / "recorded.pcap"
    write_numbered(path, due_ns, sizes)
    return Schedule(
        "original pace", path, due_ns, (), (("--multiplier=1",),), ("--speed", "1")
    )  # fmt: skip


class Refused(Exception):
    """The program ended with an error; the text is the end of what it said."""


class Lane:
    """The veth pair with its ring: runs one program after the other."""

    def __init__(self, ring: StampRing) -> None:
        self.ring = ring
        self.problems: list[str] = []

    def run(
        self, command: list[str], due_ns: Array, others_ns: tuple[Array, ...] = ()
    ) -> tuple[Errors, str]:
        """Send the whole capture by `command`: the errors, and what it printed.

        They are counted against whichever schedule makes the p99 smallest. Raises `Refused` where
        the program ends with an error.
        """
        self.ring.drain()
        self.ring.dropped()
        taken = []
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    time.sleep(LOOK_SECONDS)
                    taken.append(self.ring.drain())
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            output = log.read()
        taken.append(self.ring.drain())
        numbers, times_ns = (np.concatenate(column) for column in zip(*taken, strict=True))
        if process.returncode or not len(numbers):
            raise Refused(output.strip()[-200:])
        if len(numbers) != len(due_ns) or self.ring.dropped():
            self.problems.append(f"{command[0]}: {len(numbers)} of {len(due_ns)} packets arrived")
        found = [errors_of(numbers, times_ns, each) for each in (due_ns, *others_ns)]
        return min(found, key=lambda errors: errors.p99_us), output

    def run_tcpreplay(self, schedule: Schedule, options: tuple[str, ...]) -> Errors:
        """Send a schedule's capture by tcpreplay."""
        command = tcpreplay(schedule.path, *options)
        return self.run(command, schedule.due_ns, schedule.others_ns)[0]

    def best_tcpreplay(self, short: Schedule) -> tuple[str, ...]:
        """Return tcpreplay's options with the smallest p99, tried on a short capture."""
        tried: list[tuple[float, tuple[str, ...]]] = []
        for timer in TIMERS:
            for option in short.tcpreplay_options:
                options = (f"--timer={timer}", "--preload-pcap", *option)
                try:
                    found = self.run_tcpreplay(short, options)
                except Refused:
                    print(f"    {' '.join(options):44s} not in this build", flush=True)
                    continue
                tried.append((found.p99_us, options))
                print(f"    {' '.join(options):44s} {found}", flush=True)
        return min(tried)[1]


def meet(
    lane: Lane, make: Callable[[Path, float], Schedule], folder: Path, seconds: float, rounds: int,
    trial_seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Compare on one schedule: find the best of tcpreplay, then run both in turn."""
    short = make(folder, trial_seconds)
    print(f"  {short.name}: which options of tcpreplay are its best", flush=True)
    best = lane.best_tcpreplay(short)
    schedule = make(folder, seconds)
    theirs, mine = [], []
    for _ in range(rounds):
        found = lane.run_tcpreplay(schedule, best)
        theirs.append(found)
        print(f"    tcpreplay {found}", flush=True)
        found, output = lane.run(ours(schedule.path, *schedule.our_options), schedule.due_ns)
        mine.append(found)
        if account_of(output)["lines"][0]["sent"] != len(schedule.due_ns):
            lane.problems.append(f"{schedule.name}: our account differs from what was sent")
        print(f"    ours      {found}", flush=True)
    ratio = statistics.median(e.p99_us for e in mine) / statistics.median(e.p99_us for e in theirs)
    print(
        f"  {schedule.name}: our p99 is {ratio:.2f} of tcpreplay's, {' '.join(best)} (bar {BAR}):"
        f" {'ok' if ratio <= BAR else 'MISSED'}",
        flush=True,
    )
    return {
        "tcpreplay_options": " ".join(best),
        "tcpreplay": [dataclasses.asdict(each) for each in theirs],
        "ours": [dataclasses.asdict(each) for each in mine],
        "p99_ratio": round(ratio, 3),
        "ok": ratio <= BAR,
    }


def compare(
    seconds: float, rounds: int, trial_seconds: float, more: Iterable[Callable[[Lane, Path], Any]]
) -> dict[str, Any]:
    """Run both schedules, then `more`, with figures of its own; or return why there are none."""
    try:
        version = tcpreplay_version()
        print(f"  tcpreplay {version}", flush=True)
        figures: dict[str, Any] = {"tcpreplay": version, "bar": BAR}
        with namespace(), StampRing() as ring, tempfile.TemporaryDirectory() as name:
            lane, folder = Lane(ring), Path(name)
            for make in (steady, recorded):
                figures[make.__name__] = meet(lane, make, folder, seconds, rounds, trial_seconds)
            for measure in more:
                figures[measure.__name__] = measure(lane, folder)
            figures["problems"] = lane.problems
    except (NoNamespace, NoTcpreplay) as reason:
        print(f"  no figures: {reason}")
        return {"skipped": str(reason)}
    return figures


def run(quick: bool = False) -> dict[str, Any]:
    """Measure rounds of a few seconds."""
    if quick:
        return compare(QUICK_SECONDS, 1, QUICK_SECONDS / 2, ())
    return compare(SECONDS, ROUNDS, TRIAL_SECONDS, ())
