"""Queues that keep order per key: ours, RabbitMQ, Artemis and Kafka, beside an offline schedule.

Every scenario is put first, whole, and then taken by the workers: all of them have work from the
start, as in the schedule. Every peer gets the same messages on the same disk; each handling is
written down, and the history is checked: nothing lost, doubled, out of order in its key, or beside
another of its key. The ceiling is the greedy schedule whose step is the handler and one sync of
that disk, measured in the same run. A peer that is not installed is listed with the reason.
"""

import contextlib
import queue
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.keyed_peers import PEERS, Absent, Command, Peer, environment
from bench.keyed_work import (
    Figures,
    Handled,
    Message,
    Rule,
    Workload,
    check,
    figures,
    read_history,
    rounds,
    syncs_a_second,
)
from feedhandler.lab.brokers import BrokerFailed
from feedhandler.lab.brokers.process import end_with_us
from tests.support.processes import cpu_seconds_of

#: The peers.
NAMES = tuple(PEERS)
#: Of these, ours.
OURS = ("keyed", "keyed_run", "serial")
SYNC_SECONDS, SYNC_TURNS = 1.0, 5
#: A run is cut then: at 100 ms a message one worker would be at it for hours.
TAKE_SECONDS_MAX = 60.0
PUT_SECONDS_MAX = 300.0
READY_SECONDS_MAX = 60.0
#: Without a handling for so long, nothing more comes.
IDLE_SECONDS = 15.0
#: Between the word to begin and the beginning: longer than a client takes to read it. A client
#: with credit before the others gets every group of Artemis.
BEGIN_SECONDS = 0.2
#: How long is listened for what should not come once all has.
AFTER_SECONDS = 0.5
#: What the rules of a key allow side by side is shown by transfers between accounts.
TRANSFERS = Workload(40_000, keys=10_000, zipf=1.0, fields=2)
TRANSFER_WORKERS = 8
RULES: tuple[Rule, ...] = ("composite", "pair", "any")
#: The part of the messages that a quick run has.
QUICK_SHARE = 0.1


@dataclass(frozen=True)
class Scenario:
    """A workload, who handles it, and how long that takes."""

    name: str
    workload: Workload
    workers: int
    handler_ms: float

    def shortened(self, share: float) -> "Scenario":
        """Return the scenario with this share of its messages."""
        fields = {**asdict(self.workload), "count": max(round(self.workload.count * share), 1)}
        return Scenario(self.name, Workload(**fields), self.workers, self.handler_ms)


SCENARIOS = (
    Scenario("even", Workload(50_000, keys=10_000), workers=8, handler_ms=0),
    Scenario("hot", Workload(20_000, keys=1), workers=8, handler_ms=0),
    Scenario("zipf", Workload(40_000, keys=10_000, zipf=1.0), workers=8, handler_ms=1),
    Scenario("slow", Workload(50_000, keys=1000), workers=1000, handler_ms=100),
    Scenario("turns", Workload(100_000, keys=1000, in_turn=True), workers=1000, handler_ms=100),
)

SMOKE: dict[str, object] = {
    # The one with single active consumer is a part of the one with shards.
    "NAMES": tuple(name for name in NAMES if name != "rabbitmq4_single"),
    "SYNC_SECONDS": 0.1,
    "TRANSFERS": Workload(100, keys=50, zipf=1.0, fields=2),
    "QUICK_SHARE": 1.0,
    "SCENARIOS": (Scenario("zipf", Workload(100, keys=20, zipf=1.0), workers=4, handler_ms=1),),
}


#: What clients say; None: one has ended.
Lines = queue.SimpleQueue[str | None]


class Process:
    """A client that runs; its lines as they come.

    What it says once it is `ready` goes to `handled`, which several clients may share.
    """

    def __init__(self, command: Command, handled: Lines) -> None:
        self._lines: Lines = queue.SimpleQueue()
        self._handled = handled
        self._process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            preexec_fn=end_with_us,
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._listen, self._complain)
        ]
        for thread in self._threads:
            thread.start()
        self._stdin = self._process.stdin
        self.report(command.stdin)

    def report(self, text: str, last: bool = False) -> None:
        """Write to its standard input; `last`: and close that."""
        assert self._stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(text)
            self._stdin.flush()
            if last:
                self._stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        lines = self._lines
        for line in self._process.stdout:
            lines.put(line)
            if line.startswith("ready"):
                lines = self._handled
        lines.put(None)

    def _complain(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def numbers_after(self, word: str, seconds: float) -> list[int]:
        """Return the numbers behind a word that it must say now. Raises `BrokerFailed`."""
        line = next_of(self._lines, seconds)
        if line is None or not line.startswith(word):
            raise BrokerFailed(f"the client did not say {word!r}: {line or self._last_error()}")
        return [int(number) for number in line.split()[1:]]

    def must_run(self) -> None:
        """Raise `BrokerFailed` where it has ended by itself."""
        if self._process.poll() is not None:
            raise BrokerFailed(f"a client ended: {self._last_error()}")

    def _last_error(self) -> str:
        self.end()
        return next((text.strip() for text in reversed(self._errors) if text.strip()), "no word")

    @property
    def cpu_seconds(self) -> float:
        """Of its processors' time, while it runs."""
        return cpu_seconds_of(self._process.pid)

    def end(self) -> None:
        """Kill it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()


def next_of(lines: Lines, seconds: float) -> str | None:
    """Return the next line; None where none comes in time, or a client has ended."""
    with contextlib.suppress(queue.Empty):
        return lines.get(timeout=max(seconds, 0.0))
    return None


@dataclass(frozen=True)
class Taken:
    """Result of the workers' run; `cut`: the time was over before all was handled."""

    history: list[Handled]
    ready_ns: int
    cut: bool
    #: Of the busiest client process: near one, in Python, it is the client that is measured.
    processors: float


def put(peer: Peer, name: str, workload: Workload) -> float:
    """Return messages a second accepted."""
    process = Process(peer.produce(name, workload), queue.SimpleQueue())
    try:
        process.report("", last=True)
        began, done = process.numbers_after("put", PUT_SECONDS_MAX)
    finally:
        process.end()
    return workload.count / max(done - began, 1) * 1e9


def consume(peer: Peer, name: str, scenario: Scenario) -> Taken:
    """Run the workers until all is handled, or nothing more comes, or the time is over."""
    workers = scenario.workers if peer.parallel else 1
    handled: Lines = queue.SimpleQueue()
    lines: list[str] = []
    with contextlib.ExitStack() as running:
        processes = []
        for command in peer.consume(name, workers, scenario.handler_ms):
            processes.append(Process(command, handled))
            running.callback(processes[-1].end)
        for process in processes:
            process.numbers_after("attached", READY_SECONDS_MAX)
        begin_ns = time.monotonic_ns() + round(BEGIN_SECONDS * 1e9)
        for process in processes:
            process.report(f"{begin_ns}\n")
        ready_ns = min(
            process.numbers_after("ready", READY_SECONDS_MAX)[0] for process in processes
        )
        used, began = [process.cpu_seconds for process in processes], time.monotonic()
        end = began + TAKE_SECONDS_MAX
        while (left := end - time.monotonic()) > 0 and len(lines) < scenario.workload.count:
            line = next_of(handled, min(IDLE_SECONDS, left))
            if line is not None:
                lines.append(line)
            elif left > IDLE_SECONDS:
                break
        took = max(time.monotonic() - began, 1e-6)
        share = max(
            (process.cpu_seconds - before) / took
            for process, before in zip(processes, used, strict=True)
        )
        cut = left <= 0 and len(lines) < scenario.workload.count
        while not cut and time.monotonic() < end:
            if (line := next_of(handled, AFTER_SECONDS)) is None:
                break
            lines.append(line)
        for process in processes:
            process.must_run()
    return Taken(list(read_history(lines)), ready_ns, cut, share)


def judged(messages: list[Message], taken: Taken) -> list[str]:
    """Return what is wrong with a run; in one that was cut, what was not handled is not lost."""
    problems = check(messages, taken.history).problems
    return [each for each in problems if not (taken.cut and each.endswith(" lost"))]


def compare(
    peer: Peer, scenario: Scenario, name: str, ceiling_a_second: float
) -> tuple[dict[str, Any], list[str]]:
    """Compare one peer in one scenario; return figures and what was wrong."""
    peer.declare(name, scenario.workers)
    messages = scenario.workload.messages()
    put_a_second = put(peer, name, scenario.workload)
    taken = consume(peer, name, scenario)
    found: Figures = figures(taken.history, taken.ready_ns)
    share = found.a_second / ceiling_a_second
    problems = judged(messages, taken)
    print(
        f"    {scenario.name}: {found.a_second:,.0f}/s, {share:.0%} of the schedule; "
        f"wait p50 {found.wait_p50_ms:,.1f} ms, p99 {found.wait_p99_ms:,.1f} ms; "
        f"{found.workers_used} workers had work; put {put_a_second:,.0f}/s; "
        f"the busiest client used {taken.processors:.2f} processors"
        + ("; cut" if taken.cut else "")
        + "".join(f"; {problem}" for problem in problems)
    )
    row = {
        **asdict(found), "of_schedule": share, "put_a_second": put_a_second,
        "client_processors": taken.processors, "cut": taken.cut,
        "handled": len(taken.history), "problems": problems,
    }  # fmt: skip
    return row, [f"{peer.name}, {scenario.name}: {problem}" for problem in problems]


def ceilings(scenario: Scenario, sync_seconds: float) -> dict[str, Any]:
    """Return the greedy schedule's messages a second, and its ratio to the serial one's."""
    keys = [message.fields for message in scenario.workload.messages()]
    step = scenario.handler_ms / 1000 + sync_seconds
    steps = rounds(keys, scenario.workers)
    seconds, times = steps * step, len(keys) / steps
    return {"a_second": len(keys) / seconds, "times_serial": times, "step_ms": step * 1000}


def times_of_peers(found: dict[str, Any], ours: str) -> dict[str, dict[str, float]]:
    """Return our rate as a multiple of each peer's, by peer and scenario, of those measured."""
    own = found.get(ours, {})
    return {
        name: {
            each.name: own[each.name]["a_second"] / max(found[name][each.name]["a_second"], 1e-9)
            for each in SCENARIOS
            if each.name in own and each.name in found[name]
        }
        for name in NAMES
        if name != ours and "version" in found.get(name, {})
    }


def rules_allow() -> dict[str, float]:
    """Return the rate that each rule allows, in serial rates, by the schedule of `TRANSFERS`."""
    keys = [message.fields for message in TRANSFERS.messages()]
    found = {rule: len(keys) / rounds(keys, TRANSFER_WORKERS, rule) for rule in RULES}
    text = ", ".join(f"{rule} {times:.1f}" for rule, times in found.items())
    print(f"  transfers, {TRANSFER_WORKERS} workers, times the serial rate: {text}")
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every peer that is installed, in every scenario."""
    scenarios = [each.shortened(QUICK_SHARE) if quick else each for each in SCENARIOS]
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-keyed-") as made:
        folder = Path(made)
        # The best of some: the ceiling is the rate of a disk that no other process uses.
        syncs = max(syncs_a_second(folder, SYNC_SECONDS) for _ in range(SYNC_TURNS))
        print(f"  the disk: {syncs:,.0f} syncs/s of a page")
        found: dict[str, Any] = {"syncs_a_second": syncs, "problems": problems}
        found["schedule"] = schedules = {each.name: ceilings(each, 1 / syncs) for each in scenarios}
        for name, each in schedules.items():
            print(
                f"  schedule of {name}: {each['a_second']:,.0f}/s at {each['step_ms']:.2f} ms "
                f"a step, {each['times_serial']:.1f} times serial"
            )
        found["rules"] = rules_allow()
        for name in NAMES:
            peer = PEERS[name](folder)
            try:
                version = peer.start()
                print(f"  {name}: {version}")
                results = found[name] = {"version": version}
                for scenario in scenarios:
                    ceiling = schedules[scenario.name]["a_second"]
                    results[scenario.name], wrong = compare(
                        peer, scenario, f"keyed-{scenario.name}", ceiling
                    )
                    problems += wrong
            except Absent as reason:
                found[name] = {"left_out": str(reason)}
                print(f"  {name}: left out, {reason}")
            except TimeoutError:
                # The bench's own time is over: no further peer is tried.
                raise
            except (BrokerFailed, OSError, subprocess.SubprocessError) as error:
                found.setdefault(name, {})["failed"] = str(error)
                problems.append(f"{name}: {error}")
                print(f"  {name}: failed, {error}")
            finally:
                peer.stop()
    found["times"] = {ours: times_of_peers(found, ours) for ours in OURS}
    for ours, peers in found["times"].items():
        for name, by_scenario in peers.items():
            times = ", ".join(f"{which} {ratio:.1f}" for which, ratio in by_scenario.items())
            if times:
                print(f"  {ours} has, in times of {name}: {times}")
    return found
