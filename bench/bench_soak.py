"""An hour with 1 % of the packets lost and a fault each minute (`make soak`), at half the rate that
the machine holds with these losses and no faults, 20,000 packets a second at most.

What is lost is lost on both lines together and comes from a retransmission server. The faults take
turns, a minute each: a subscriber is stopped for two seconds and goes on; a subscriber is killed
and another takes its place; line A is silent for a second; a run of sequence numbers is missing on
both lines; the retransmission server is killed and comes back. A moment of more than the machine
holds comes before, and short outages of that server: the gateway's pools keep the most that they
ever held, and an hour has too few outages until they have held it.

The bars: the gateway's resident memory grows by less than 1 MB an hour over the last three
quarters, it has as many descriptors open at the end as at the start, no link is detached, and each
subscriber that stayed attached got every message, except those that were announced as lost.
Numbers are lost only in that moment and in the minutes in which the server was away, and no more of
them than were left out or than the kernel dropped.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.bench_gateway import holds
from bench.processes import every
from bench.rig import (
    BURST_US,
    MESSAGES_A_PACKET,
    SEQUENCE_OFFSET,
    SERVICE,
    START_SECONDS,
    Rig,
    kernel_drops,
    templates,
)
from feedhandler.replay.playing.sender_lines import MulticastLine
from tests.support.load import LoadGenerator

#: The highest rate that is soaked at, packets a second, and the least one that makes a soak.
RATE, RATE_MIN = 20_000, 1_000
#: Length of a trial of a rate.
TRIAL_SECONDS = 5.0
MINUTES = 60
PERIOD_SECONDS = 60.0
#: With `--quick`: a turn of every fault, a look and no figure.
QUICK_PERIODS, QUICK_PERIOD_SECONDS = 5, 5.0
SUBSCRIBERS = 4
#: How long the stopped subscriber stands still: its queue must hold what is sent meanwhile.
STOPPED_SECONDS = 2.0
SILENT_SECONDS = 1.0
#: Numbers in a row that neither line carries, and one in so many lost all along.
MISSING = 30
LOST_EVERY = 100
SAMPLE_SECONDS = 5.0
#: The overload before memory is measured: so many times the rate, and how long.
OVERLOAD, OVERLOAD_SECONDS = 4, 4.0
#: Outages before memory is measured, also with `--quick`, and how long the load of each lasts.
WARM_UP_OUTAGES, QUICK_OUTAGES, WARM_UP_SECONDS = 20, 1, 4.0
SLOPE_BAR_BYTES_AN_HOUR = 1_000_000
SMOKE: dict[str, object] = {
    "RATE": 2_000,
    "QUICK_PERIOD_SECONDS": 1.5,
    "WARM_UP_SECONDS": 1.5,
    "OVERLOAD_SECONDS": 1.0,
    "STOPPED_SECONDS": 0.5,
}


class SoakRig(Rig):
    """The measuring rig with subscribers that come and go. The last two of them take the faults."""

    def stop_one(self) -> None:
        """Let a subscriber stand still, and go on."""
        pid = self._subscribers[-2].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        os.kill(pid, signal.SIGCONT)

    def replace_one(self) -> None:
        """Kill a subscriber without a goodbye, and start another."""
        gone = self._subscribers.pop()
        gone.kill()
        gone.wait()
        child = self._child(list(gone.args))
        self._await_line(child, "ready")
        self._subscribers.append(child)

    def replace_server(self) -> None:
        """Kill the retransmission server, and start it again on its port."""
        self.server.kill()
        self.server.wait()
        self.start_server()

    def descriptors(self) -> int:
        """Open descriptors of the gateway process."""
        return len(os.listdir(f"/proc/{self.gateway.pid}/fd"))


class Soak:
    """One run: a load in slices, a fault in each, samples all along."""

    def __init__(self, rig: SoakRig, period_seconds: float, rate: int) -> None:
        self.rig = rig
        self.rate = rate
        self.period_seconds = period_seconds
        self.samples: list[tuple[float, int]] = []
        self.restarts = 0
        #: Lost numbers by the fault in whose period they were announced.
        self.lost: dict[str, int] = {}
        #: How late the sender was at most, in the period under way: as long as the machine stood.
        self._late_ns = 0
        line = rig.config.channels[0].lines[1]
        self.line_b = LoadGenerator(
            templates(LOST_EVERY),
            [MulticastLine("B", (line.group, line.port))],
            sequence_offset=SEQUENCE_OFFSET,
        )

    def lost_max(self, dropped: int) -> int:
        """Return how many numbers may be lost while the server is away: those left out in the
        seconds that it takes to come back, and the `dropped` of the kernel."""
        return self.restarts * int(START_SECONDS * self.rate / LOST_EVERY) + dropped

    def warm_up(self, outages: int) -> None:
        """Send too much, and kill the server `outages` times in short slices, until the gateway's
        pools are full."""
        asked_for, self.period_seconds = self.period_seconds, WARM_UP_SECONDS
        self._with_counts(self.overload)
        for _ in range(outages):
            self._with_counts(self.replace_server)
        self.period_seconds = asked_for

    def run(self, periods: int) -> None:
        """Run `periods` slices, each with the next fault."""
        faults = [
            self.stop_one, self.replace_one, self.silence_a, self.leave_out, self.replace_server,
        ]  # fmt: skip
        began = time.monotonic()

        def look() -> None:
            self.samples.append((time.monotonic() - began, self.rig.memory_bytes()))

        with contextlib.closing(self.line_b), every(SAMPLE_SECONDS, look):
            for number in range(periods):
                fault = faults[number % len(faults)]
                lost, dropped = self._with_counts(fault)
                print(
                    f"  {number + 1}: {fault.__name__.replace('_', ' ')}: {lost:,} lost, "
                    f"{dropped:,} dropped by the kernel, "
                    f"{self.rig.memory_bytes() / 1e6:.1f} MB, "
                    f"sent {self._late_ns / 1e6:.0f} ms late at most",
                    flush=True,
                )

    def _with_counts(self, fault: Callable[[], None]) -> tuple[int, int]:
        """Run a slice with `fault`, and return what was announced lost in it and what the kernel
        dropped."""
        self._late_ns = 0
        lost_before, dropped_before = self._counts()
        fault()
        # One packet more, once what came is read and there is room for it: where the last
        # numbers never came, it shows only now.
        self.rig.settled()
        self._send(1.5 / self.rate)
        lost, dropped = self._counts()
        lost -= lost_before
        name = fault.__name__
        self.lost[name] = self.lost.get(name, 0) + lost
        return lost, dropped - dropped_before

    def _counts(self) -> tuple[int, int]:
        """Return the numbers announced lost so far and the kernel's drops, once nothing is under
        way."""
        settled = self.rig.settled()
        return int(settled["channels"][0]["lost"]), kernel_drops(settled)

    def _send(self, seconds: float, load: LoadGenerator | None = None) -> None:
        result = (load or self.rig.load).run(self.rate, seconds, BURST_US)
        self._late_ns = max(self._late_ns, result.lateness_max_ns)

    def _send_during(self, fault: Any) -> None:
        """Send a slice, with the fault in its middle."""
        worker = threading.Timer(self.period_seconds / 4, fault)
        worker.start()
        self._send(self.period_seconds)
        worker.join()

    def stop_one(self) -> None:
        """Stall one subscriber for two seconds."""
        self._send_during(self.rig.stop_one)

    def replace_one(self) -> None:
        """Kill one subscriber and start another."""
        self._send_during(self.rig.replace_one)

    def silence_a(self) -> None:
        """Line A carries nothing for a second."""
        self.line_b.next_sequences[:] = self.rig.load.next_sequences
        self._send(SILENT_SECONDS, self.line_b)
        self.rig.load.next_sequences[:] = self.line_b.next_sequences
        self._send(self.period_seconds - SILENT_SECONDS)

    def leave_out(self) -> None:
        """Leave out a run of numbers on both lines."""
        self._send(self.period_seconds / 4)
        self.rig.load.next_sequences[:] += MISSING
        self._send(self.period_seconds * 3 / 4)

    def overload(self) -> None:
        """Send more than the machine holds, for a moment."""
        self.rig.load.run(OVERLOAD * self.rate, OVERLOAD_SECONDS, BURST_US)

    def replace_server(self) -> None:
        """Kill the retransmission server and start it again."""
        self.restarts += 1
        self._send_during(self.rig.replace_server)


def soak_rate() -> int:
    """Return half the highest rate that a trial holds, of `2 * RATE`, `RATE`, `RATE / 2` and so on.

    More would measure an overload, which is not what a soak is about.
    """
    rate = 2 * RATE
    while rate > 2 * RATE_MIN:
        if holds("packet", SUBSCRIBERS, rate, TRIAL_SECONDS, LOST_EVERY)[0]:
            break
        rate //= 2
    return rate // 2


def slope_bytes_an_hour(samples: list[tuple[float, int]]) -> float:
    """Return the growth an hour over the last three quarters, by least squares."""
    import numpy

    settled = samples[len(samples) // 4 :]
    if len(settled) < 2:
        return 0.0
    seconds, sizes = zip(*settled, strict=True)
    return float(numpy.polyfit(seconds, sizes, 1)[0]) * 3600


def problems_of(soak: Soak, after: dict[str, Any], reports: list[dict[str, Any]]) -> list[str]:
    """Return the problems of what was published and received, a text each."""
    channel, node = after["channels"][0], after["node"]
    sent, lost = soak.rig.numbers_sent, channel["lost"]
    explained = soak.lost_max(kernel_drops(after))
    problems = []
    if channel["packets"] + lost != sent:
        problems.append(f"{sent - lost - channel['packets']} packets neither published nor lost")
    for fault, count in soak.lost.items():
        if count and fault not in (soak.overload.__name__, soak.replace_server.__name__):
            problems.append(f"{count} numbers lost while there was a server ({fault})")
    if lost > explained:
        problems.append(f"{lost} numbers announced lost, {explained} would be explained")
    if node["links_overrun"]:
        problems.append(f"{node['links_overrun']} subscribers detached")
    for report in reports[:-1]:
        expected = (sent - lost) * MESSAGES_A_PACKET
        if (report["market"], report["announced_lost"]) != (expected, lost):
            problems.append(
                f"a subscriber got {report['market']} of {expected} messages and heard of "
                f"{report['announced_lost']} of {lost} lost packets"
            )
    return problems


def run(quick: bool = False) -> dict[str, Any]:
    """Measure for an hour: memory, descriptors, and what was lost or announced."""
    periods = QUICK_PERIODS if quick else MINUTES
    rate = RATE if quick else soak_rate()
    with SoakRig("packet", SUBSCRIBERS, lost_every=LOST_EVERY) as rig:
        rig.settled()
        descriptors = rig.descriptors()
        soak = Soak(rig, QUICK_PERIOD_SECONDS if quick else PERIOD_SECONDS, rate)
        soak.warm_up(QUICK_OUTAGES if quick else WARM_UP_OUTAGES)
        print(f"  pools filled: {rig.memory_bytes() / 1e6:.1f} MB, {soak.lost} lost", flush=True)
        soak.run(periods)
        after = rig.settled()
        grown = _awaited(rig, descriptors) - descriptors
        reports = rig.finish()
    problems = problems_of(soak, after, reports)
    slope = slope_bytes_an_hour(soak.samples)
    if not quick and slope >= SLOPE_BAR_BYTES_AN_HOUR:
        problems.append(f"memory grows by {slope / 1e6:.2f} MB an hour")
    if grown:
        problems.append(f"{grown} descriptors more than at the start")
    print(
        f"  service {SERVICE}: {soak.rig.numbers_sent:,} packets at {rate:,}/s,"
        f" {after['recovery']['retransmitted']:,} retransmitted,"
        f" {after['channels'][0]['lost']:,} lost,"
        f" {kernel_drops(after):,} dropped by the kernel, memory "
        f"{slope / 1e6:+.2f} MB an hour (bar {SLOPE_BAR_BYTES_AN_HOUR / 1e6:.0f}), descriptors "
        f"{grown:+d}: "
        + (
            "; ".join(problems)
            or "nothing lost but in overload or without a server, no link detached"
        )
    )
    return {
        "rate": rate,
        "packets": soak.rig.numbers_sent,
        "retransmitted": after["recovery"]["retransmitted"],
        "lost": after["channels"][0]["lost"],
        "lost_by_fault": soak.lost,
        "kernel_drops": kernel_drops(after),
        "slope_bytes_an_hour": slope,
        "bar_bytes_an_hour": SLOPE_BAR_BYTES_AN_HOUR,
        "descriptors_grown": grown,
        "problems": problems,
        "samples": soak.samples,
    }


def _awaited(rig: SoakRig, expected: int) -> int:
    """Return the gateway's descriptors once they are back at `expected`, or after a while."""
    deadline = time.monotonic() + START_SECONDS
    with contextlib.suppress(OSError):
        while rig.descriptors() != expected and time.monotonic() < deadline:
            rig.snapshot(START_SECONDS)
    return rig.descriptors()
