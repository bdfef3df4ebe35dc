"""The highest rate that a proxy forwards, and what memory it takes doing so.

A proxy as it ships (`feedhandler overlay proxy`) has 10 targets on loopback and is sent messages at
one rate after the other; a trial fails where the kernel drops more than 0.2 % of them for want of
room in the proxy's receive buffer, or where the sender does not reach the rate. The highest rate
that a search of halves finds stands beside that of a C program that forwards without looking into
datagrams ("Jasper", section 9.6). The targets are not read: their buffers fill, and what they
do not take is dropped, for both alike.

Memory: what the proxy's process has resident after a tenth of `SECONDS` at a steady rate, with a
heartbeat a second, and at the end. Bars: 50 MB, and growth of 1 MB, for pools of the allocator.
`overlay_memory` does this for an hour (`make bench-long`).
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.programs import compiled
from feedhandler.overlay.members import Sender
from feedhandler.overlay.port import hand_over
from feedhandler.overlay.topology import make_topology
from feedhandler.overlay.topology_file import write_topology
from feedhandler.overlay.tree import Shape
from tests.support.processes import resident_bytes

TARGETS = 10
PAYLOAD = b"x" * 200
DROPS_MAX = 0.002
#: Of the search: where it begins, how long a trial is, halves after the first failure, how often a
#: rate may fail before it counts as too high (other work takes processors away for a moment).
RATE_FIRST, TRIAL_SECONDS, HALVES, TRIES = 5_000, 1.0, 5, 3
RATE_MAX = 200_000
#: Of memory: messages a second, and how long.
STEADY_RATE, SECONDS, QUICK_SECONDS = 5_000, 20.0, 5.0
MEMORY_BAR_BYTES, GROWTH_BAR_BYTES = 50_000_000, 1_000_000
SLICE_SECONDS = 0.0005
PATIENCE_S = 30.0
SMOKE: dict[str, object] = {
    "TRIAL_SECONDS": 0.05,
    "HALVES": 1,
    "RATE_MAX": 10_000,
    "QUICK_SECONDS": 1.0,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate: messages a second that were sent, and the share that the kernel dropped."""

    rate: float
    dropped: float

    def is_good(self, wanted: float) -> bool:
        """Return whether the proxy kept up, and the sender sent at the wanted rate."""
        return self.dropped <= DROPS_MAX and self.rate >= 0.99 * wanted


class Rig:
    """A sender's socket, a proxy's port, and 10 sockets that are not read."""

    def __init__(self) -> None:
        self._bound = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        self._bound += [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(TARGETS)]
        for each in self._bound:
            each.bind(("127.0.0.1", 0))
        addresses = [each.getsockname() for each in self._bound]
        shape = Shape(2 * TARGETS, 2, 2)
        keys = iter(lambda: os.urandom(32), b"")
        others = [("127.0.0.2", port) for _, port in addresses[3:]]  # the other proxy's
        self.topology = make_topology(shape, 1, addresses + others, keys)
        self.me = self.topology.members[1]
        self.ports = [each.address[1] for each in self.topology.targets(self.me)]
        self.sender = Sender(self.topology, time.time_ns(), held=False)
        self._bound[1].close()
        self.sock = self._bound[0]
        self.sock.connect(self.me.address)

    def close(self) -> None:
        for each in self._bound:
            each.close()

    def drops(self) -> int:
        """Return how many datagrams the kernel dropped at the proxy's buffer, once it is empty."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            waiting, dropped = self._queue()
            if not waiting:
                return dropped
            time.sleep(0.001)
        raise TimeoutError("the proxy does not empty its receive buffer")

    def _queue(self) -> tuple[int, int]:
        local = f"0100007F:{self.me.address[1]:04X}"
        for line in Path("/proc/net/udp").read_text().splitlines():
            words = line.split()
            if words[1] == local:
                return int(words[4].partition(":")[2], 16), int(words[-1])
        raise LookupError("the proxy has no socket")

    def send(self, rate: float, seconds: float) -> float:
        """Send at a rate; the rate that was had."""
        count = max(int(rate * seconds), 1)
        made = [self.sender.send(PAYLOAD, time.time_ns())[0][0] for _ in range(count)]
        began, sent = time.monotonic(), 0
        while sent < count:
            due = min(int((time.monotonic() - began) * rate) + 1, count)
            if due > sent:
                sent += hand_over(self.sock, made[sent:due], 0)
            time.sleep(SLICE_SECONDS)
        return count / max(time.monotonic() - began, seconds)

    def trial(self, rate: float) -> Trial:
        """Send at a rate for a while, and see what was dropped."""
        before = self.drops()
        had = self.send(rate, TRIAL_SECONDS)
        return Trial(had, (self.drops() - before) / max(rate * TRIAL_SECONDS, 1))


def _kept_up(rig: Rig, rate: float) -> tuple[bool, Trial]:
    for _ in range(TRIES):
        trial = rig.trial(rate)
        if trial.is_good(rate):
            return True, trial
    return False, trial


def highest(rig: Rig) -> dict[str, Any]:
    """Return the highest rate that goes, and what the next higher one failed with."""
    good, bad, failed = 0.0, 0.0, None
    rate = float(RATE_FIRST)
    halves = 0
    while halves < HALVES and rate <= RATE_MAX:
        went, trial = _kept_up(rig, rate)
        if went:
            good = rate
        else:
            bad, failed = rate, trial
        halves += bool(bad)
        rate = (good + bad) / 2 if bad else 2 * rate
    figures: dict[str, Any] = {"messages_s": round(good), "sends_s": round(good * TARGETS)}
    if failed is not None:
        figures["beyond"] = "drops" if failed.dropped > DROPS_MAX else "the sender is too slow"
    return figures


@contextlib.contextmanager
def proxy(rig: Rig, folder: str) -> Iterator[subprocess.Popen[str]]:
    """Run the proxy as it ships, as a process."""
    path = Path(folder) / "tree.toml"
    write_topology(rig.topology, path)
    words = [sys.executable, "-m", "feedhandler", "overlay", "proxy", str(path), rig.me.name]
    with _running(words) as process:
        assert process.stderr is not None
        process.stderr.readline()  # where it is: it is bound
        yield process


@contextlib.contextmanager
def _ceiling(rig: Rig, folder: str) -> Iterator[None]:
    program = compiled("overlay_ceiling", folder)
    ports = map(str, rig.ports)
    words = [str(program), "forward", str(rig.me.address[1]), str(1 << 40), *ports]
    with _running(words) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


@contextlib.contextmanager
def _running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def memory(rig: Rig, pid: int, seconds: float) -> dict[str, Any]:
    """Return a proxy's memory after a tenth of some time at a steady rate, and after it."""
    looks = []
    for share in (0.1, 0.9):
        for _ in range(max(round(seconds * share), 1)):
            rig.send(STEADY_RATE, 1.0)
            hand_over(rig.sock, [rig.sender.beat(time.time_ns())[0][0]], 0)
        dropped = rig.drops()
        looks.append(resident_bytes(pid))
    growth = looks[1] - looks[0]
    return {
        "messages": rig.sender.last_id,
        "dropped": dropped,
        "bytes": looks[1],
        "bar_bytes": MEMORY_BAR_BYTES,
        "growth_bytes": growth,
        "growth_bar_bytes": GROWTH_BAR_BYTES,
        "bars_met": looks[1] <= MEMORY_BAR_BYTES and growth <= GROWTH_BAR_BYTES,
    }


def steady(seconds: float) -> dict[str, Any]:
    """Return `memory` of a proxy of its own."""
    rig = Rig()
    try:
        with tempfile.TemporaryDirectory() as folder, proxy(rig, folder) as process:
            return memory(rig, process.pid, seconds)
    finally:
        rig.close()


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the search for both, and memory for a short while."""
    rig = Rig()
    try:
        with tempfile.TemporaryDirectory() as folder:
            with proxy(rig, folder):
                ours = highest(rig)
            with _ceiling(rig, folder):
                theirs = highest(rig)
    finally:
        rig.close()
    found = {
        "proxy": ours,
        "c": theirs,
        "of_c": round(ours["messages_s"] / max(theirs["messages_s"], 1), 2),
    }
    kept = steady(QUICK_SECONDS if quick else SECONDS)
    # Figures, on a machine that may be busy; a proxy that stands still or ends raises.
    missed = [] if ours["messages_s"] else ["no rate goes"]
    missed += [] if kept["bars_met"] else ["memory"]
    print(f"  {json.dumps(found)}\n  memory: {json.dumps(kept)}", flush=True)
    return {"rate": found, "memory": kept, "missed": missed}
