"""A signal ends a command that has a Spark session: at once, or after the call to Java that it came
in; never in its middle."""

import signal
import threading
from types import ModuleType
from typing import Any

import pytest

from feedhandler.ops import spark as ops_spark
from feedhandler.ops.spark import command_session, session_under


class FakeContext:
    def __init__(self) -> None:
        self.given_up = threading.Event()

    def cancelAllJobs(self) -> None:
        self.given_up.set()


class FakeSession:
    def __init__(self) -> None:
        self.sparkContext = FakeContext()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    made = FakeSession()
    monkeypatch.setattr(ops_spark, "spark_session", lambda master: made)
    return made


def java_call(does: Any) -> None:
    """Run `does` in a frame that is py4j's."""
    module = ModuleType("py4j.clientserver")
    exec("def call(does): does()", module.__dict__)
    module.call(does)  # type: ignore[attr-defined]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_without_a_signal_the_session_is_stopped_and_nothing_raised(session: FakeSession) -> None:
    with command_session("local") as spark:
        assert spark is session
    assert session.stopped


def test_a_signal_between_calls_interrupts_at_once(session: FakeSession) -> None:
    with pytest.raises(KeyboardInterrupt), command_session("local"):
        interrupt()
    assert session.stopped
    assert not session.sparkContext.given_up.is_set()


def test_a_signal_in_a_call_to_java_gives_the_jobs_up_and_interrupts_after_it(
    session: FakeSession,
) -> None:
    def fails_as_its_job_is_cancelled() -> None:
        interrupt()
        assert session.sparkContext.given_up.wait(10)
        raise RuntimeError("Job cancelled")

    with pytest.raises(KeyboardInterrupt), command_session("local"):
        java_call(fails_as_its_job_is_cancelled)
    assert session.stopped


def test_a_call_that_ends_all_the_same_is_followed_by_the_interrupt(session: FakeSession) -> None:
    with pytest.raises(KeyboardInterrupt), command_session("local"):
        java_call(interrupt)


def test_a_signal_while_the_session_is_made_counts_once_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = FakeSession()
    asked = []

    def slow(master: str) -> FakeSession:
        asked.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return made

    monkeypatch.setattr(ops_spark, "spark_session", slow)
    with pytest.raises(KeyboardInterrupt), command_session("local"):
        raise AssertionError("nothing is begun any more")
    assert made.stopped
    # In the main thread Spark would take the signals for itself.
    assert asked != [threading.main_thread()]


def test_what_fails_by_itself_is_told_as_it_is(session: FakeSession) -> None:
    with pytest.raises(ValueError, match="odd"), command_session("local"):
        raise ValueError("odd")
    assert session.stopped


def test_signals_go_back_to_whom_they_went(session: FakeSession) -> None:
    before = signal.getsignal(signal.SIGINT)
    heard = []
    with session_under(lambda *_: heard.append(1), "local"):
        interrupt()
    assert heard == [1]
    assert signal.getsignal(signal.SIGINT) is before
