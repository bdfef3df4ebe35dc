"""What the operator is told about servers: news, once, and never without end."""

from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.config import loopback_config
from feedhandler.gateway import Gateway
from feedhandler.recovery import complaints
from feedhandler.recovery.complaints import LASTING_NS, LINES_MAX, WINDOW_NS, Complaints
from feedhandler.recovery.runner import RecoveryRunner
from feedhandler.retrans.events import RefreshAccepted

SECOND = 1_000_000_000


@pytest.fixture
def lines() -> list[str]:
    return []


def test_the_same_line_is_told_once_and_different_ones_a_few_times(lines: list[str]) -> None:
    told = Complaints(lines.append)
    for at in range(100):
        told.connected("rts", at * SECOND)
        told.disconnected("rts", "the server closed it", at * SECOND)
    assert lines == ["server rts: the server closed it; connecting again"]
    for at in range(100):
        told.disconnected("rts", f"reason {at}", WINDOW_NS + at)
    assert len(lines) == LINES_MAX
    assert told.untold == 200 - LINES_MAX
    told.disconnected("rfs", "reason 5", 0)
    assert len(lines) == LINES_MAX + 1


def test_a_server_that_was_well_is_news_again(lines: list[str]) -> None:
    told = Complaints(lines.append)
    for at in range(2):
        told.disconnected("rts", "gone", at)
        told.well("rts")
    assert len(lines) == 2
    told.disconnected("rts", "gone", SECOND)
    told.connected("rts", SECOND)
    told.disconnected("rts", "gone", SECOND + LASTING_NS)
    # Well and broken by turns: no more than a few lines in a while.
    assert len(lines) == LINES_MAX
    told.well("rts")
    told.disconnected("rts", "gone", WINDOW_NS)
    assert len(lines) == LINES_MAX + 1


def test_a_server_that_answers_and_drops_for_a_day_writes_a_few_lines_an_hour(
    lines: list[str],
) -> None:
    told = Complaints(lines.append)
    for second in range(86_400):
        told.connected("rfs", second * SECOND)
        told.well("rfs")
        told.disconnected("rfs", f"sent {second}", second * SECOND)
    assert len(lines) <= LINES_MAX * (86_400 * SECOND // WINDOW_NS)


def test_subjects_are_bounded(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints, "SUBJECTS_MAX", 10)
    told = Complaints(lines.append)
    for at in range(100):
        told.tell(f"service {at}", f"service {at}", 0)
    assert (len(lines), told.untold) == (10, 90)


def running(lines: list[str]) -> RecoveryRunner:
    """A gateway's runner; the test is its servers."""
    runner = Gateway(loopback_config()).recovery
    runner._complaints = Complaints(lines.append)
    runner._loop = SimpleNamespace(  # type: ignore[assignment]
        call_soon=lambda *about: None, call_later=lambda *about: None
    )
    return runner


def test_a_server_that_takes_every_connection_and_drops_it_is_told_once(lines: list[str]) -> None:
    runner: Any = running(lines)
    name = "rfs"
    for _ in range(50):
        runner._on_up(name, 0)
        runner._on_down(name, "the server closed it", 0)
    assert len(lines) == 1
    runner._on_up(name, 0)
    runner._on_events(name, [RefreshAccepted(1)], 0)
    runner._on_down(name, "the server closed it", 0)
    assert len(lines) == 2
    runner.alert("service 1: refused")
    runner.alert("service 1: refused")
    assert len(lines) == 3
    assert runner.snapshot()["untold"] == 50
