"""The overlay's members beside C programs that do the same, in one run.

`proxy`: datagrams go through a proxy, as it ships, to 10 and to 20 addresses on loopback (F = 10,
H = 0 and 1), and through a C program that sends each to the same addresses without looking into it.
What counts is processor time, with what the kernel does for the sending in it; a window of
datagrams is under way, so none is lost. Bars: 80 % of C, 350,000 sends a second of processor.

`unicast`: one datagram to 10 and to 100 addresses on loopback, by one `sendmmsg` and by one
submission to io_uring, in turns. What counts is processor time of the process, with what the kernel
does for the sending in it. No bar: io_uring is measured beside; left out where it is refused.

`release`: 100 receivers' messages with one deadline are released by one thread, and a C program
waits for the same instants. Bars: late at most twice as C at p99 and p99.9, window p99 50 us.

`spikes`: 100 receivers, 0.1 % of hops put off by 2 ms (`overlay measure`). Bars: window p99 of
H = 1 at most 0.43 of H = 0, of H = 2 0.34.
"""

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy

from bench.programs import compiled
from feedhandler.overlay.io_uring import RingPort, refusal
from feedhandler.overlay.measuring import Spikes, Technique, opened
from feedhandler.overlay.members import Proxy, Sender
from feedhandler.overlay.port import Port
from feedhandler.overlay.release import Release
from feedhandler.overlay.releasing import release_all
from feedhandler.overlay.running import Loop, open_socket
from feedhandler.overlay.topology import Topology, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind

MESSAGES = 20_000
WINDOW = 48
ROUNDS = 3
#: Datagrams that receivers have room for at a time, and how often each way has its turn.
BURST, TURNS = 50, 20
RECEIVERS = 100
INSTANTS = 2_000
PERIOD_NS = 2_000_000
SPIKED = 1_500
SMOKE: dict[str, object] = {
    "MESSAGES": 200, "ROUNDS": 1, "TURNS": 2, "INSTANTS": 20, "SPIKED": 40,
}  # fmt: skip
PROXY_BAR, SENDS_BAR = 0.8, 350_000
SPIKE_BARS = {1: 0.43, 2: 0.34}
PATIENCE_S = 30
FORK = multiprocessing.get_context("fork")


class Rig:
    """A sender, a proxy's place, and sockets where its children are; the first one is read."""

    def __init__(self, hedging: int) -> None:
        shape = Shape(20, 2, 2, hedging)
        self.sockets = [self._bound() for _ in range(23)]
        keys = (os.urandom(32) for _ in range(30))
        addresses = [each.getsockname() for each in self.sockets]
        self.topology: Topology = make_topology(shape, 1, addresses, keys)
        self.me = self.topology.member("proxy-0-0")
        self.targets = [each.address for each in self.topology.targets(self.me)]
        self.first = self.sockets[addresses.index(self.targets[0])]
        self.first.settimeout(PATIENCE_S)
        self.sockets[1].close()  # the proxy's

    def _bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        return sock

    def drive(self) -> int:
        """Send all messages through the proxy's address; those that came out."""
        sender = Sender(self.topology, time.time_ns(), held=False)
        own, came = self.sockets[0], 0
        for n in range(MESSAGES):
            (datagram, _), *_ = sender.send(b"x" * 200, time.time_ns())
            own.sendto(datagram, self.me.address)
            if n >= WINDOW:
                self.first.recv(2_048)
                came += 1
        while came < MESSAGES:
            self.first.recv(2_048)
            came += 1
        return came

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def _ours(rig: Rig) -> float:
    """Return processor seconds of a proxy, as it ships, for all messages."""
    here, there = FORK.Pipe()

    def work() -> None:
        member = Proxy(rig.topology, rig.me.name, time.time_ns())
        loop = Loop(member, open_socket(rig.me))
        there.send(0.0)
        before = time.process_time()
        loop.run(lambda: member.counts["first"] >= MESSAGES)
        there.send(time.process_time() - before)

    process = FORK.Process(target=work, daemon=True)
    process.start()
    here.recv()
    rig.drive()
    used: float = here.recv()
    process.join()
    return used


def _theirs(rig: Rig, program: Path) -> float:
    """Return the same of the C program."""
    ports = [str(port) for _, port in rig.targets]
    words = [str(program), "forward", str(rig.me.address[1]), str(MESSAGES), *ports]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rig.drive()
        found: dict[str, float] = json.loads(process.stdout.readline())
    return found["processor_s"]


def _proxy(program: Path, hedging: int) -> dict[str, Any]:
    ours, theirs, sends = [], [], 0
    for _ in range(ROUNDS):
        rig = Rig(hedging)
        sends = MESSAGES * len(rig.targets)
        ours.append(_ours(rig))
        rig.close()
        rig = Rig(hedging)
        theirs.append(_theirs(rig, program))
        rig.close()
    share = float(numpy.median([b / a for a, b in zip(ours, theirs, strict=True)]))
    rate = sends / float(numpy.median(ours))
    return {
        "targets": sends // MESSAGES,
        "of_c": round(share, 2),
        "bar": PROXY_BAR,
        "sends_a_processor_second": round(rate),
        "sends_bar": SENDS_BAR,
        "c_sends_a_processor_second": round(sends / float(numpy.median(theirs))),
        "bars_met": share >= PROXY_BAR and rate >= SENDS_BAR,
    }


def _bound(stack: contextlib.ExitStack) -> socket.socket:
    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def _drained(sockets: list[socket.socket]) -> int:
    """Take what has come to these sockets; how many datagrams."""
    came = 0
    for sock in sockets:
        with contextlib.suppress(BlockingIOError):
            while sock.recv(2_048):
                came += 1
    return came


def _unicast(targets: int) -> tuple[dict[str, Any], list[str]]:
    """Return sends a processor second by each of both ways."""
    if reason := refusal():
        return {"targets": targets, "skipped": f"io_uring is refused: {reason}"}, []
    datagram, came = bytes(256), 0
    with contextlib.ExitStack() as stack:
        receivers = [_bound(stack) for _ in range(targets)]
        addresses = tuple(each.getsockname() for each in receivers)
        ring = RingPort(_bound(stack))
        stack.callback(ring.close)
        ports = [Port(_bound(stack)), ring]
        spent = numpy.zeros((TURNS, len(ports)))
        for turn in range(TURNS):
            for way in (0, 1) if turn % 2 else (1, 0):
                began_ns = time.process_time_ns()
                for _ in range(BURST):
                    ports[way].send(datagram, addresses)
                spent[turn, way] = time.process_time_ns() - began_ns
                came += _drained(receivers)
    rates = BURST * targets * 1e9 / numpy.median(spent, axis=0)
    lost = TURNS * len(ports) * BURST * targets - came
    return {
        "targets": targets,
        "io_uring_of_sendmmsg": round(float(numpy.median(spent[:, 0] / spent[:, 1])), 2),
        "sends_a_processor_second": round(float(rates[0])),
        "io_uring_sends_a_processor_second": round(float(rates[1])),
    }, [f"unicast to {targets}: {lost} datagrams never came"] if lost else []


def _released(begin_ns: int) -> numpy.ndarray:
    """Return how late each receiver's release was, in ns, as an array (instants, receivers)."""
    late = numpy.zeros((INSTANTS, RECEIVERS), numpy.int64)
    holding = [Release(2_000_000) for _ in range(RECEIVERS)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        port = Port(sock)
        for n in range(INSTANTS):
            at = begin_ns + n * PERIOD_NS
            head = Head(Kind.DATA, 1, 1, n + 1, at - 1_000_000, at)
            for each in holding:
                each.put(head, b"", at - 500_000)
            port.wait(max(at - time.time_ns(), 0))
            while time.time_ns() < at:
                pass
            found = release_all(holding)
            assert all(len(events) == 1 for _, events in found)
            late[n] = [released_ns - at for released_ns, _ in found]
    return late


def _release(program: Path) -> dict[str, Any]:
    words = [
        "wait",
        str(RECEIVERS),
        str(time.time_ns() + 200_000_000),
        str(PERIOD_NS),
        str(INSTANTS),
    ]
    done = subprocess.run([str(program), *words], capture_output=True, text=True, check=True)
    theirs = numpy.array([line.split() for line in done.stdout.splitlines()], numpy.int64)
    ours = _released(time.time_ns() + 200_000_000)
    found: dict[str, Any] = {}
    for name, quantile in (("p99", 0.99), ("p99_9", 0.999)):
        mine, other = (float(numpy.quantile(each, quantile)) / 1e3 for each in (ours, theirs))
        found[name] = {
            "us": round(mine, 1),
            "c_us": round(other, 1),
            "of_c": round(mine / other, 2),
        }
    windows = ours.max(axis=1) - ours.min(axis=1)
    found["window_p99_us"] = round(float(numpy.quantile(windows, 0.99)) / 1e3, 1)
    found["bars"] = {"of_c": 2, "window_p99_us": 50}
    return found


def _spikes() -> tuple[dict[str, Any], list[str]]:
    techniques = [Technique(f"H = {h}", Shape(RECEIVERS, 2, 10, h)) for h in (0, 1, 2)]
    with opened(techniques, SPIKED, Spikes(0.001, 2_000_000), 1) as measurement:
        measurement.run(60)
        found = [float(numpy.quantile(each.windows, 0.99)) for each in measurement.delays()]
        missing = sum(tree.missing for tree in measurement.trees)
    figures: dict[str, Any] = {"window_p99_us": [round(each) for each in found]}
    for hedging, bar in SPIKE_BARS.items():
        share = found[hedging] / found[0]
        figures[f"h{hedging}_of_h0"] = {"ratio": round(share, 2), "bar": bar, "met": share <= bar}
    return figures, [f"spikes: {missing} messages never came"] if missing else []


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all four; quick: one round of the proxy."""
    with tempfile.TemporaryDirectory() as folder:
        program = compiled("overlay_ceiling", folder)
        proxies = {f"h{hedging}": _proxy(program, hedging) for hedging in (0, 1)}
        release = _release(program)
    spikes, problems = _spikes()
    figures: dict[str, Any] = {"proxy": proxies, "release": release, "spikes": spikes}
    figures["unicast"] = []
    for targets in (10, RECEIVERS):
        found, lost = _unicast(targets)
        figures["unicast"].append(found)
        problems += lost
    return {**figures, "problems": problems}
