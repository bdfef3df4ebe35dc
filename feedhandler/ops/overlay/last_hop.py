"""`feedhandler overlay measure --last-hop`: duration and evenness of a receiver's last hop.

A receiver hands messages to an isolated process on the same machine (model 3). Here probes take the
messages' way and come back: to an `overlay echo` that this command starts, once unpinned and once
with both ends pinned to a processor each and polling without sleep; or to one that runs already.
"""

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from feedhandler.codecs.errors import HostFault, PeerError, UsageError
from feedhandler.ops.overlay.simulate import check_report, print_experiment, write_report
from feedhandler.overlay.experiment import Experiment, us
from feedhandler.overlay.last_hop import WAIT_NS, Probes
from feedhandler.overlay.mesh import WINDOW_NS
from feedhandler.overlay.port import Port
from feedhandler.overlay.running import pin
from feedhandler.overlay.topology import Address
from feedhandler.overlay.topology_file import ipv4_address_of
from feedhandler.overlay.wire import KEY_BYTES
from feedhandler.terminal.console import ExitCode, print_json

#: An echo that does not end within this, once it was asked to, is killed.
END_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class LastHopWanted:
    """The settings of a measurement.

    `echo`: an address, or "" for an echo of this command's own, which is pinned to the second of
    `processors`, the receiver's end to the first.
    """

    seconds: float
    rate: float
    echo: str
    processors: Sequence[int]


@dataclass(frozen=True, slots=True)
class Trips:
    """Round trips of one way to run, in us: float64 arrays, one a window; and unanswered probes."""

    name: str
    windows: Sequence[numpy.ndarray]
    unanswered: int

    @property
    def all(self) -> numpy.ndarray:
        """All round trips. float64."""
        return numpy.concatenate(self.windows)


def measure_last_hop(wanted: LastHopWanted, report: Path | None, as_json: bool) -> int:
    """Measure and print. Raises `UsageError`, and `PeerError` where no probe is answered."""
    check_report(report)
    found = []
    if wanted.echo and wanted.processors:
        raise UsageError("--cpu says nothing beside --echo", "give it to the `overlay echo` there")
    if wanted.echo:
        found.append(_trips("as it runs", ipv4_address_of(wanted.echo), wanted, False))
    else:
        processors = _processors(wanted.processors)
        with _echo([]) as address:
            found.append(_trips("as it comes", address, wanted, False))
        with _echo(["--cpu", str(processors[1]), "--busy"]) as address, _pinned(processors[0]):
            found.append(_trips("pinned, busy", address, wanted, True))
    experiment = last_hop_experiment(found)
    if as_json:
        for trips in found:
            print_json(_figures(trips))
    else:
        print_experiment(experiment)
    if report is not None:
        about = f"{wanted.rate:,.0f} probes a second, windows of a second"
        write_report([experiment], "The last hop, measured", about, report)
    return ExitCode.OK


def _processors(given: Sequence[int]) -> Sequence[int]:
    there = sorted(os.sched_getaffinity(0))
    if given:
        if len(set(given)) != 2 or not set(given) <= set(there):
            raise UsageError(
                f"processors {', '.join(map(str, given))}",
                f"--cpu twice, two of {', '.join(map(str, there))}",
            )
        return given
    if len(there) < 2:
        raise UsageError("one processor only", "pinning both ends takes two; or give --echo")
    return there[-2:]


@contextlib.contextmanager
def _pinned(processor: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    pin(processor)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _echo(options: Sequence[str]) -> Iterator[Address]:
    """Run an `overlay echo` of this command's own at a free port while the block runs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        host, port = sock.getsockname()
    command = [sys.executable, "-m", "feedhandler", "overlay", "echo", f"{host}:{port}", *options]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        said = child.stderr.readline()
        if "echo is at" not in said:
            raise HostFault(f"the echo did not start: {said.strip()}", "run it by itself: --echo")
        yield host, port
    finally:
        child.terminate()
        try:
            child.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


def _trips(name: str, address: Address, wanted: LastHopWanted, busy: bool) -> Trips:
    """Send probes at the rate, each at its due time, and take the answers.

    Raises `PeerError` where none is answered.
    """
    every_ns = int(1e9 / wanted.rate)
    probes = Probes(os.urandom(KEY_BYTES), asked_max=max(WAIT_NS // every_ns, 1))
    windows: list[list[float]] = [[] for _ in range(math.ceil(wanted.seconds))]
    sent = taken = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        port = Port(sock)
        began_ns = time.monotonic_ns()
        end_ns = began_ns + int(wanted.seconds * 1e9)
        due_ns, last_ns = began_ns, end_ns + WAIT_NS
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= last_ns or (now_ns >= end_ns and taken == sent):
                break
            if due_ns <= now_ns < end_ns:
                port.send(probes.probe(time.time_ns()), (address,))
                sent += 1
                # A probe that is late does not make the next one early.
                due_ns = max(due_ns + every_ns, now_ns)
            for datagram, came_from, came_ns in port.receive():
                trip_ns = probes.answered(datagram, came_ns) if came_from == address else None
                if trip_ns is not None and trip_ns >= 0:
                    taken += 1
                    at = (time.monotonic_ns() - began_ns) // WINDOW_NS
                    windows[min(at, len(windows) - 1)].append(trip_ns / 1e3)
            wait_ns = (due_ns if due_ns < end_ns else last_ns) - time.monotonic_ns()
            if wait_ns > 0 and not busy:
                port.wait(wait_ns)
    if not taken:
        raise PeerError(
            f"no answer from {address[0]}:{address[1]}", "start `feedhandler overlay echo` there"
        )
    return Trips(name, [numpy.array(window) for window in windows if window], sent - taken)


def last_hop_experiment(found: Sequence[Trips]) -> Experiment:
    """Make Figure 6: round trips, and their 90th percentile window by window."""
    rows, curves, over_time = [], {}, {}
    for trips in found:
        figures = _figures(trips)
        rows.append((trips.name, *(_cell(figures[each]) for each in _SHOWN)))
        curves[trips.name] = trips.all
        over_time[f"{trips.name}, p90"] = _p90(trips)
    return Experiment(
        "Last hop", "Round trip to an isolated process and back", ("ends", *_SHOWN.values()), rows,
        "source: p90 is 5.4 us above the lowest with pinned threads on processors of their own;"
        " half of a trip is the last hop",
        curves, over_time,
    )  # fmt: skip


_SHOWN = {
    "lowest_us": "lowest", "p50_us": "p50", "p90_us": "p90", "p99_us": "p99",
    "p90_less_lowest_us": "p90 less lowest", "window_p90_lowest_us": "lowest window's p90",
    "window_p90_highest_us": "highest", "unanswered": "unanswered",
}  # fmt: skip


def _cell(value: object) -> str:
    return us(value) if isinstance(value, float) else f"{value:,}"


def _p90(trips: Trips) -> numpy.ndarray:
    return numpy.array([numpy.quantile(window, 0.9) for window in trips.windows])


def _figures(trips: Trips) -> dict[str, Any]:
    """Return the figures of round trips, in us."""
    p50, p90, p99 = (float(each) for each in numpy.quantile(trips.all, (0.5, 0.9, 0.99)))
    lowest, by_window = float(trips.all.min()), _p90(trips)
    return {
        "ends": trips.name, "answered": len(trips.all), "lowest_us": lowest, "p50_us": p50,
        "p90_us": p90, "p99_us": p99, "p90_less_lowest_us": p90 - lowest,
        "window_p90_lowest_us": float(by_window.min()),
        "window_p90_highest_us": float(by_window.max()), "unanswered": trips.unanswered,
    }  # fmt: skip
