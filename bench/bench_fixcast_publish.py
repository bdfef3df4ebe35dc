"""Publishing FIX over multicast: messages a second on both lines, pacing, and how long they wait.

The publisher is a process of its own on one core (`fixcast_load`): it reads, stamps, keeps, packs
and paces book updates of 150 to 400 bytes and sends them to lines A and B on loopback. Beside it,
in the same run, a C program that does the least of it, without checks or a store
(`fixcast_ceiling.c`). Each is run alone and with a receiver of both lines on the other core, whose
share of the kernel's work falls to the sender on loopback. `publisher_user_per_s` leaves out the
kernel's part of its processor time. Then the receiver, with the kernel's
time stamps, measures what left:

* paced: a bucket that is the limit; the largest window of 10 ms, as a share of what the bucket lets
  through in such a time. Above 1 is a fault.
* waiting: messages are offered at `OFFERED_S`, below the bucket; the time from being given to the
  publisher until its datagram left, beyond the clock period. `excess_undisturbed`: of the messages
  while which the scheduler did not let the publisher wait for a processor; where those are few,
  others had the machine.

The bars: 500,000 messages a second, goal a million; p99.9 of the excess at most 0.3 ms.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from bench.fixcast_load import Load, as_json, book_updates
from bench.programs import compiled
from feedhandler.fixcast.pacing import OVERHEAD_BYTES
from feedhandler.ports import free_udp_port

GROUPS = ("239.192.79.1", "239.192.79.2")
MESSAGES = 1_000_000
ROUNDS = 3
#: What is published: so many different messages, again and again.
DIFFERENT = 10_000
BAR_S, GOAL_S = 500_000, 1_000_000
PERIOD_NS = 1_000_000
#: Far above what is reached: the bucket is asked for each datagram, and never the limit.
WIDE_BYTES_S, WIDE_BURST = 2_000_000_000, 1 << 20
#: 1 Gbit/s with the burst that is usual, for half a second of it.
PACED_BYTES_S, PACED_BURST = 125_000_000, 64 << 10
PACED_MESSAGES = 400_000
#: What is offered where waiting is measured.
OFFERED_S, OFFERED_MESSAGES = 300_000, 600_000
WINDOW_NS = 10_000_000
EXCESS_BAR_MS = 0.3
#: A wait for a processor that is no longer than this counts as none.
DISTURBED_NS = 20_000
SEND_CPU, RECEIVE_CPU = 1, 0
BUFFER_BYTES = 64 << 20
SMOKE: dict[str, object] = {
    "MESSAGES": 20_000, "PACED_MESSAGES": 20_000, "OFFERED_MESSAGES": 20_000, "ROUNDS": 1,
    "DIFFERENT": 1_000,
}  # fmt: skip


@dataclass
class Received:
    """Datagrams of a receiver: rows of line, stamp in ns, bytes, first number, messages."""

    rows: Any
    drops: int

    def of_line(self, line: int) -> Any:
        """Return the rows of one line, as they came."""
        return self.rows[self.rows[:, 0] == line]

    def problems(self, count: int) -> list[str]:
        """Return what is wrong on either line; missing messages only if the kernel lost none."""
        problems = []
        for line in (0, 1):
            rows = self.of_line(line)
            rows = rows[rows[:, 4] > 0]
            numbers = int(rows[:, 4].sum())
            if not self.drops and numbers != count:
                problems.append(f"line {'AB'[line]}: {numbers} of {count} messages")
            if not self.drops and (rows[1:, 3] != rows[:-1, 3] + rows[:-1, 4]).any():
                problems.append(f"line {'AB'[line]}: numbers do not follow one another")
            if (rows[:, 2] > 1400).any():
                problems.append(f"line {'AB'[line]}: a datagram of {int(rows[:, 2].max())} bytes")
        return problems


class Site:
    """The programs, the messages and a port."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.program = compiled("fixcast_ceiling", folder)
        self.file = self.folder / "updates.fix"
        messages = book_updates(DIFFERENT, seed=1)
        self.sizes = sorted(map(len, messages))
        self.file.write_bytes(b"".join(messages))
        self.port = free_udp_port()

    def load(self, count: int, **given: Any) -> Load:
        """Return a load of so many messages."""
        known: dict[str, Any] = {
            "rate_bytes_s": WIDE_BYTES_S, "burst_bytes": WIDE_BURST, "period_ns": PERIOD_NS,
        }  # fmt: skip
        return Load(str(self.file), count, GROUPS, self.port, cpu=SEND_CPU, **(known | given))

    def publish(self, load: Load) -> dict[str, Any]:
        """Publish in a process of its own; what it says."""
        command = [sys.executable, "-m", "bench.fixcast_load"]
        done = subprocess.run(
            command, input=as_json(load), stdout=subprocess.PIPE, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ceiling(self, load: Load) -> dict[str, Any]:
        """Measure the same with the C program."""
        command = [
            self.program, "send", *GROUPS, str(self.port), load.file, str(load.count),
            str(load.rate_bytes_s), str(load.burst_bytes), str(load.cpu),
        ]  # fmt: skip
        found: dict[str, Any] = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
        return found

    @contextmanager
    def receiving(self) -> Iterator[list[Received]]:
        """Run a receiver of both lines meanwhile; afterwards the list has what it got."""
        out = self.folder / "received"
        command = [
            self.program, "receive", *GROUPS, str(self.port), str(out), str(BUFFER_BYTES),
            str(RECEIVE_CPU),
        ]  # fmt: skip
        got: list[Received] = []
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdin is not None
            receiver.stdout.readline()
            try:
                yield got
            finally:
                receiver.stdin.close()
                said = json.loads(receiver.stdout.readline())
        rows = numpy.fromfile(out, numpy.uint64).reshape(-1, 5).astype(numpy.int64)
        got.append(Received(rows, said["drops"]))


def largest_window(rows: Any, rate_bytes_s: int, burst_bytes: int) -> float:
    """Return the bytes of the fullest window of `WINDOW_NS`, as a share of the bucket's bound."""
    times = rows[:, 1]
    total = numpy.concatenate([[0], numpy.cumsum(rows[:, 2] + OVERHEAD_BYTES)])
    ends = numpy.searchsorted(times, times + WINDOW_NS, side="left")
    most = int((total[ends] - total[: len(times)]).max())
    return most / (burst_bytes + rate_bytes_s * WINDOW_NS / 1e9)


def excess_ms(rows: Any, given: list[tuple[int, int, int]]) -> tuple[Any, Any]:
    """Return how long each message of a line waited beyond the period, in ms.

    The second array says of each whether the publisher had a processor meanwhile.
    """
    rows = rows[rows[:, 4] > 0]
    numbers = numpy.repeat(rows[:, 3], rows[:, 4])
    starts = numpy.repeat(numpy.cumsum(rows[:, 4]) - rows[:, 4], rows[:, 4])
    numbers += numpy.arange(len(numbers)) - starts
    left = numpy.repeat(rows[:, 1], rows[:, 4])
    firsts, when, delay = numpy.array(given, numpy.int64).T
    index = numpy.searchsorted(firsts, numbers, side="right") - 1
    after = numpy.minimum(numpy.searchsorted(when, left), len(when) - 1)
    undisturbed = delay[after] - delay[index] < DISTURBED_NS
    return (left - when[index] - PERIOD_NS) / 1e6, undisturbed


def _fastest(site: Site, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """Return messages a second of the publisher and of the ceiling, alone and with a receiver."""
    load, problems = site.load(MESSAGES), []
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, send in (("publisher", site.publish), ("ceiling", site.ceiling)):
            alone = send(load)
            with site.receiving() as got:
                beside = send(load)
            if name == "publisher":
                own = MESSAGES / max(alone["user"], 1e-3)
                best["publisher_user_per_s"] = max(best.get("publisher_user_per_s", 0), own)
                problems += got[0].problems(MESSAGES)
            for key, said in (("", alone), ("_with_receiver", beside)):
                for kind in ("seconds", "processor"):
                    rate = MESSAGES / said[kind]
                    where = f"{name}{key}_{'cpu_' * (kind == 'processor')}per_s"
                    best[where] = max(best.get(where, 0), rate)
    figures: dict[str, Any] = {name: round(rate) for name, rate in best.items()}
    figures["of_ceiling"] = round(best["publisher_per_s"] / best["ceiling_per_s"], 3)
    figures["of_ceiling_cpu"] = round(best["publisher_cpu_per_s"] / best["ceiling_cpu_per_s"], 3)
    return figures, problems


def _paced(site: Site) -> tuple[dict[str, Any], list[str]]:
    """Measure with the bucket as the limit: the rate, and the fullest window."""
    load = site.load(PACED_MESSAGES, rate_bytes_s=PACED_BYTES_S, burst_bytes=PACED_BURST)
    with site.receiving() as got:
        said = site.publish(load)
    problems, (received,) = got[0].problems(PACED_MESSAGES), got
    shares = [largest_window(received.of_line(line), PACED_BYTES_S, PACED_BURST) for line in (0, 1)]
    problems += [
        f"a window of 10 ms has {share:.3f} of the bucket" for share in shares if share > 1
    ]
    sent = received.of_line(0)
    wire_bytes = int((sent[:, 2] + OVERHEAD_BYTES).sum())
    return {
        "paced_per_s": round(PACED_MESSAGES / said["seconds"]),
        "paced_of_rate": round(wire_bytes / said["seconds"] / PACED_BYTES_S, 3),
        "largest_window": round(max(shares), 3),
    }, problems


def _percentiles(values: Any) -> tuple[float, float, float]:
    """Return the 50th, 99th and 99.9th percentile."""
    p50, p99, p999 = (round(float(numpy.quantile(values, q)), 3) for q in (0.5, 0.99, 0.999))
    return p50, p99, p999


def _waiting(site: Site) -> tuple[dict[str, Any], list[str]]:
    """Measure at a rate below the bucket: how long messages wait beyond the period."""
    load = replace(site.load(OFFERED_MESSAGES), offered=OFFERED_S)
    with site.receiving() as got:
        said = site.publish(load)
    found = [excess_ms(got[0].of_line(line), said["given"]) for line in (0, 1)]
    excess, undisturbed = (numpy.concatenate(each) for each in zip(*found, strict=True))
    p50, p99, p999 = _percentiles(excess)
    if undisturbed.any():
        quiet = dict(zip(("p50", "p99", "p999"), _percentiles(excess[undisturbed]), strict=True))
    else:
        quiet = {}
    return {
        "offered_per_s": OFFERED_S,
        "offered_reached_per_s": round(OFFERED_MESSAGES / said["seconds"]),
        "excess_p50_ms": p50, "excess_p99_ms": p99, "excess_p999_ms": p999,
        "excess_bar_ms": EXCESS_BAR_MS, "excess_bar_met": p999 <= EXCESS_BAR_MS,
        "excess_undisturbed_ms": quiet,
        "undisturbed_share": round(float(undisturbed.mean()), 3),
        "waiting_drops": got[0].drops,
    }, got[0].problems(OFFERED_MESSAGES)  # fmt: skip


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all of it, printing as it goes."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        site = Site(folder)
        fastest, found = _fastest(site, 1 if quick else ROUNDS)
        problems += found
        print(
            f"  {fastest['publisher_per_s']:,} messages/s ({fastest['of_ceiling']:.0%} of C,"
            f" {fastest['of_ceiling_cpu']:.0%} by processor time), with a receiver"
            f" {fastest['publisher_with_receiver_per_s']:,} (bar {BAR_S:,}); without the kernel"
            f" {fastest['publisher_user_per_s']:,}",
            flush=True,
        )
        paced, found = _paced(site)
        problems += found
        print(
            f"  paced: {paced['paced_per_s']:,} messages/s, {paced['paced_of_rate']:.0%} of the"
            f" rate; fullest 10 ms {paced['largest_window']:.0%} of the bucket",
            flush=True,
        )
        waiting, found = _waiting(site)
        problems += found
        print(
            f"  waiting beyond the period at {waiting['offered_reached_per_s']:,} messages/s:"
            f" p50 {waiting['excess_p50_ms']} ms, p99 {waiting['excess_p99_ms']} ms,"
            f" p99.9 {waiting['excess_p999_ms']} ms (bar {EXCESS_BAR_MS} ms); of the"
            f" {waiting['undisturbed_share']:.0%} while the publisher had its processor"
            f" {waiting['excess_undisturbed_ms'].get('p999')} ms"
        )
    return {
        "name": "FIX by multicast on both lines, messages/s",
        "given_bytes": [site.sizes[0], site.sizes[-1]],
        **fastest, "bar_per_s": BAR_S, "bar_met": fastest["publisher_per_s"] >= BAR_S,
        "goal_per_s_bar": GOAL_S, **paced, **waiting, "problems": problems,
    }  # fmt: skip
