"""The laboratory as a user runs it: whole runs, and runs that something befalls.

Each run is a process of its own with the roles as its children. All of them carry a mark in their
environment, by which a test finds them, whatever became of their parent.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.lab import commands as lab
from feedhandler.lab import results, supervisor
from feedhandler.lab.plan import Plan
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture
from feedhandler.terminal.console import ExitCode

MARK = "FEEDHANDLER_TEST_LAB"
#: What a run does that the command line cannot say: a short session, little patience, no figures.
DRIVER = """
import sys, msgspec
from feedhandler import drawing
from feedhandler.lab import supervisor
from feedhandler.lab.plan import Plan
from feedhandler.lab import commands as lab
from feedhandler.terminal.console import run_command
plan = msgspec.json.decode(sys.argv[1], type=Plan, dec_hook=lambda kind, value: kind(value))
supervisor.END_TIMEOUT_S = float(sys.argv[2])
drawing.available = lambda: False
sys.exit(run_command(lambda: lambda: lab.run(plan)))
"""
WAIT_S = 200.0


class LabRun:
    """One run as a process, with all that it starts."""

    def __init__(self, plan: Plan, folder: Path, end_s: float) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        text = msgspec.json.encode(plan, enc_hook=str).decode()
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, text, str(end_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(folder)},
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """Return the run's living processes: command lines by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    if words != [b""]:  # a zombie has no command line
                        found[int(folder.name)] = b" ".join(words).decode()
            except OSError:
                continue
        return found

    def role(self, name: str) -> int:
        """The process of one role; 0 where it is not there."""
        return next((pid for pid, line in self.processes().items() if f" {name} " in line), 0)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, errors

    def end(self) -> None:
        """Whatever the test has left."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate()


def wait_until(happened: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LabRun]]:
    runs = []

    def started(end_s: float = supervisor.END_TIMEOUT_S, **changes: Any) -> LabRun:
        plan: dict[str, Any] = {
            "out": tmp_path / "out", "clients": (1,), "duration_s": 1.0, "warm_up_s": 0.2,
            "rate_bps": 5e6, "generate_messages": 5_000,
        }  # fmt: skip
        runs.append(LabRun(Plan(**(plan | changes)), tmp_path, end_s))
        return runs[-1]

    yield started
    for run in runs:
        run.end()


def playing(run: LabRun) -> Callable[[], bool]:
    """Return a predicate: whether clients have been told what is sent next."""
    return lambda: any(run.folder.glob("feedhandler-lab-*/expected.npz"))


def test_a_run_measures_every_step_and_leaves_no_process_behind(
    start: Callable[..., LabRun], tmp_path: Path
) -> None:
    run = start(
        scenarios=("packets", "messages"), exchanges=("topic",), clients=(2,), duration_s=0.5
    )
    code, out, errors = run.finish()
    assert (code, errors) == (0, "")
    assert run.processes() == {}
    found = results.read_run(tmp_path / "out")
    assert [(s.scenario, s.exchange, s.clients) for s in found.steps] == [
        (scenario, "topic", 2) for scenario in ("packets", "messages")
    ]
    for step in found.steps:
        assert step.findings == []
        assert len(step.results) == step.clients
        wanted = step.sent.packets if step.scenario == "packets" else step.sent.messages
        for client in step.results:
            assert client.received == client.expected > wanted
            assert client.latency.count == wanted
            assert 0 < client.latency.min_ns <= client.latency.max_ns
        assert step.latency.count == wanted * step.clients
        assert step.sent.datagrams == 2 * step.sent.packets == 2 * sum(step.sent.services.values())
    assert found.configuration["workload"]["messages"] >= 5_000
    assert {"processors", "gateway", "sender_real_time"} <= set(found.configuration)
    assert found.machine["processors"] == os.cpu_count()
    assert "feedhandler" in found.versions
    assert "written: " in out


def test_a_capture_at_its_own_pace_reaches_clients_of_some_symbols_and_of_all(
    start: Callable[..., LabRun], tmp_path: Path
) -> None:
    profile = load_profile("market")
    write_capture(Traffic(profile, 1, duration_s=1.0, rate_mbps=10.0), tmp_path / "m.pcap")
    with (tmp_path / "m.pcap").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 5)
    run = start(
        captures=(tmp_path / "m.pcap",), pace=1.0, symbols=("20", "all"),
        scenarios=("messages",), clients=(2,), duration_s=0.5,
    )  # fmt: skip
    code, _, errors = run.finish()
    assert code == 0
    (line,) = errors.splitlines()
    assert line.startswith(f"feedhandler: lab: {tmp_path}/m.pcap: cut short after ")
    (step,) = results.read_run(tmp_path / "out").steps
    some, everything = step.results
    assert (some.symbols, everything.symbols) == (20, 0)
    assert 0 < some.received == some.expected < everything.received == everything.expected
    assert step.sent.peak_bps > step.sent.rate_bps


@pytest.mark.parametrize("moment", ["while it plays", "anywhere"])
def test_an_interrupt_at_any_moment_leaves_no_process_behind(
    start: Callable[..., LabRun], moment: str, seed: int
) -> None:
    run = start(duration_s=30.0)
    if moment == "while it plays":
        wait_until(playing(run), "it does not play")
    else:
        count = random.Random(seed).randint(2, 4)
        wait_until(lambda: len(run.processes()) >= count, "roles do not start")
    number = random.Random(seed).choice([signal.SIGINT, signal.SIGTERM])
    os.kill(run.process.pid, number)
    code, _, errors = run.finish()
    assert (code, errors) == (130, "feedhandler: lab: interrupted\n")
    assert run.processes() == {}


def test_a_controller_that_is_killed_leaves_no_process_behind(start: Callable[..., LabRun]) -> None:
    run = start(duration_s=30.0)
    wait_until(playing(run), "it does not play")
    run.process.kill()
    wait_until(lambda: not run.processes(), "roles outlive their controller")


def test_a_role_that_hangs_fails_the_run_with_its_name(start: Callable[..., LabRun]) -> None:
    run = start(duration_s=30.0, silent_s=1.5, end_s=0.5)
    wait_until(playing(run), "it does not play")
    os.kill(run.role("client-1"), signal.SIGSTOP)
    code, _, errors = run.finish()
    assert code == ExitCode.BUG
    (line,) = errors.splitlines()
    assert "client-1" in line
    assert run.processes() == {}


def test_a_role_that_dies_fails_the_run_with_its_name_and_what_was_measured_is_kept(
    start: Callable[..., LabRun], tmp_path: Path
) -> None:
    run = start(clients=(1, 1), duration_s=0.5)
    wait_until(lambda: "first" if run.process.stdout.readline().startswith("packets") else "", "")
    os.kill(run.role("replayer"), signal.SIGKILL)
    code, _, errors = run.finish()
    assert code == ExitCode.BUG, errors
    kept, failed = errors.splitlines()
    assert "ended after 1 whole steps" in kept
    assert "replayer ended (signal 9)" in failed
    assert len(results.read_run(tmp_path / "out").steps) == 1
    assert run.processes() == {}


def test_findings_fail_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = results.Step(scenario="packets", exchange="direct", clients=1,
                        findings=["client 1: 3 lost of 10"])  # fmt: skip
    plan = Plan(out=tmp_path)
    assert lab._report(results.Run(steps=[step]), plan) == ExitCode.FOUND
    errors = capsys.readouterr().err
    assert errors == "feedhandler: lab: packets to 1, direct: client 1: 3 lost of 10\n"


def test_a_step_without_a_timed_delivery_fails_a_run(
    start: Callable[..., LabRun], tmp_path: Path
) -> None:
    run = start(rate_bps=100.0, duration_s=0.5)
    code, _, errors = run.finish()
    wanted = "feedhandler: lab: packets to 1, direct: no delivery was timed in 0.5 s\n"
    assert (code, errors) == (ExitCode.FOUND, wanted)
    (step,) = results.read_run(tmp_path / "out").steps
    assert step.results[0].received == step.results[0].expected == 1
    assert (step.sent.packets, step.sent.duration_ns) == (0, 0)


def test_a_capture_of_another_feed_is_the_users_mistake(
    start: Callable[..., LabRun], tmp_path: Path
) -> None:
    missing = start(captures=(tmp_path / "none.pcap",))
    code, _, errors = missing.finish()
    assert (code, errors.count("\n")) == (ExitCode.USAGE, 1)
    assert "none.pcap" in errors
