"""The folder of a command's work, and a signal that ends a command which has a Spark session: with
its Java, within seconds, and whatever call to Java it is in."""

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.ops import spark as ops_spark
from feedhandler.ops.spark import (
    AUTO,
    COUNTING,
    LOCAL,
    NO_SPARK,
    chosen_master,
    command_session,
)

WAIT_S = 30
#: What stands for Java: ends when it is told to, or only when it is killed.
OBEDIENT = ("sleep", "600")
DEAF = ("sh", "-c", "trap '' TERM; echo; exec sleep 600")


class FakeSession:
    """A session whose Java is a child of ours."""

    def __init__(self, java: subprocess.Popen[bytes]) -> None:
        self.java = java
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=java))
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def call(self) -> None:
        """Calls Java in a frame that is py4j's, and breaks where that ends."""
        java_call(lambda: self.java.wait(WAIT_S))
        raise RuntimeError("Answer from Java side is empty")


Started = Callable[..., FakeSession]


@pytest.fixture(autouse=True)
def logging_again() -> Iterator[None]:
    """Logging as before: an interrupted command's process logs no more."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Yield a function that has `command_session` find a session whose Java runs."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> FakeSession:
        java = subprocess.Popen(command or OBEDIENT, stdout=subprocess.PIPE)
        running.append(java)
        if command:
            assert java.stdout is not None
            java.stdout.readline()  # by then it hears no signal
        made = FakeSession(java)
        monkeypatch.setattr(ops_spark, "spark_session", lambda master: made)
        return made

    yield start
    for each in running:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


def java_call(does: Callable[[], object]) -> None:
    """Run `does` in a frame that is py4j's."""
    module = ModuleType("py4j.clientserver")
    exec("def call(does): does()", module.__dict__)
    module.call(does)  # type: ignore[attr-defined]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupted(*steps: Callable[[], object], **how: Any) -> None:
    """Take the steps with a session, out of which KeyboardInterrupt has to come."""

    def work() -> None:
        with command_session("local", **how):
            for step in steps:
                step()

    with pytest.raises(KeyboardInterrupt):
        work()


def test_without_a_signal_the_session_is_stopped_and_nothing_raised(started: Started) -> None:
    session = started()
    with command_session("local") as spark:
        assert spark is session
    assert session.stopped
    assert session.java.poll() is None


def test_a_signal_between_calls_interrupts_at_once_and_java_ends(started: Started) -> None:
    session = started()
    interrupted(interrupt, lambda: pytest.fail("went on"))
    assert session.java.poll() == -signal.SIGTERM
    assert not session.stopped, "a call to a Java that ends may never come back"


def test_a_signal_in_a_call_to_java_breaks_it(started: Started) -> None:
    session = started()
    interrupted(lambda: java_call(interrupt), session.call)
    assert session.java.poll() == -signal.SIGTERM


def test_what_breaks_with_java_is_not_reported(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    started()
    interrupted(
        lambda: java_call(interrupt),
        lambda: logging.error("as py4j does, by the root's logger"),
        lambda: logging.getLogger("py4j.java_gateway").error("or by its own"),
    )
    assert not caplog.records


def test_a_java_that_does_not_end_is_killed(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_spark, "GRACE_S", 0.05)
    session = started(*DEAF)
    interrupted(lambda: java_call(interrupt), session.call)
    assert session.java.poll() == -signal.SIGKILL


def test_a_second_signal_does_not_wait(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_spark, "GRACE_S", 10 * WAIT_S)
    session = started(*DEAF)
    interrupted(lambda: java_call(interrupt), interrupt, session.call)
    assert session.java.poll() == -signal.SIGKILL


def test_a_call_that_ends_all_the_same_is_followed_by_the_interrupt(started: Started) -> None:
    started()
    interrupted(lambda: java_call(interrupt))


def test_a_signal_while_the_session_is_made_ends_the_java_that_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[threading.Thread] = []
    codes: list[int] = []

    def slow(master: str) -> Any:
        asked.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # After the signal: what is not there yet cannot be ended at once.
        with subprocess.Popen(OBEDIENT) as java:
            codes.append(java.wait(WAIT_S))
        raise UsageError(f"no Spark session on {master}")

    monkeypatch.setattr(ops_spark, "spark_session", slow)
    with pytest.raises(KeyboardInterrupt), command_session("local"):
        raise AssertionError("nothing is begun any more")
    assert codes == [-signal.SIGTERM]
    # In the main thread Spark would take the signals for itself.
    assert asked != [threading.main_thread()]


def test_work_that_ends_by_itself_in_time_is_left_to_it(started: Started) -> None:
    session, signalled = started(), threading.Event()
    interrupted(interrupt, patience_s=10 * WAIT_S, on_signal=signalled.set)
    assert signalled.is_set()
    assert session.stopped
    assert session.java.poll() is None


def test_work_that_does_not_end_by_itself_in_time_breaks(started: Started) -> None:
    session = started()
    interrupted(interrupt, session.call, patience_s=0.05)
    assert session.java.poll() == -signal.SIGTERM


def test_what_fails_by_itself_is_raised_as_it_is(started: Started) -> None:
    session = started()
    with pytest.raises(ValueError, match="odd"), command_session("local"):
        raise ValueError("odd")
    assert session.stopped


def test_signals_go_back_to_whom_they_went(started: Started) -> None:
    started()
    before = signal.getsignal(signal.SIGINT)
    with command_session("local"):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


GB = 10**9


@pytest.mark.parametrize(
    ("sizes", "processors", "master", "reason"),
    [
        ({"a.pcap": GB // 1000}, 2, NO_SPARK, "1.0 MB take some 0 s here, on Spark 8 s"),
        ({"a.pcap": 6 * GB}, 2, NO_SPARK, "6,000.0 MB take some 12 s here, on Spark 14 s"),
        ({"a.pcap": 10 * GB}, 2, LOCAL, "10,000.0 MB take some 21 s here, on Spark 18 s"),
        ({"a.pcap": 10 * GB}, 1, NO_SPARK, "21 s here, on Spark 29 s"),
        # One process inflates a file, so that others are no help with a single one.
        ({"a.pcap.gz": 4 * GB}, 8, NO_SPARK, "93 s here, on Spark 101 s"),
        ({"a.pcap.gz": 2 * GB, "b.pcap.zst": 2 * GB}, 8, LOCAL, "93 s here, on Spark 55 s"),
    ],
)
def test_auto_is_spark_where_it_gains_more_than_its_start_costs(
    sizes: dict[str, int],
    processors: int,
    master: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, size in sizes.items():
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)  # holes: no room is taken
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    monkeypatch.setattr(ops_spark, "missing", lambda: "")
    assert chosen_master(AUTO, [str(tmp_path)], COUNTING) == master
    (line,) = capsys.readouterr().err.splitlines()
    start = "without Spark" if master == NO_SPARK else "on Spark, local[*]"
    assert line.startswith(f"feedhandler: {start} (")
    assert reason in line


def test_auto_does_without_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pcap").touch()
    monkeypatch.setattr(ops_spark, "missing", lambda: "Java was not found")
    assert chosen_master(AUTO, [str(tmp_path / "a.pcap")], COUNTING) == NO_SPARK
    assert capsys.readouterr().err == "feedhandler: without Spark (Java was not found)\n"


def test_a_master_that_is_named_is_taken_and_what_is_not_there_reported_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pcap").touch()
    assert chosen_master("spark://far:7077", [str(tmp_path)], COUNTING) == "spark://far:7077"
    assert capsys.readouterr().err == ""
    for path in ("none.pcap", "file:///none.pcap"):
        with pytest.raises(UsageError, match=r"no capture at /.*none\.pcap"):
            chosen_master("spark://far:7077", [path], COUNTING)
