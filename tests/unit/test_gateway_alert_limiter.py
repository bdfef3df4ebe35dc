"""Alerts about servers: news, once, and never without end."""

import pytest

from feedhandler.gateway import alert_limiter
from feedhandler.gateway.alert_limiter import LASTING_NS, LINES_MAX, WINDOW_NS, AlertLimiter

SECOND = 1_000_000_000


@pytest.fixture
def lines() -> list[str]:
    return []


def test_the_same_line_is_told_once_and_different_ones_a_few_times(lines: list[str]) -> None:
    told = AlertLimiter(lines.append)
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
    told = AlertLimiter(lines.append)
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
    told = AlertLimiter(lines.append)
    for second in range(86_400):
        told.connected("rfs", second * SECOND)
        told.well("rfs")
        told.disconnected("rfs", f"sent {second}", second * SECOND)
    assert len(lines) <= LINES_MAX * (86_400 * SECOND // WINDOW_NS)


def test_subjects_are_bounded(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_limiter, "SUBJECTS_MAX", 10)
    told = AlertLimiter(lines.append)
    for at in range(100):
        told.report(f"service {at}", f"service {at}", 0)
    assert (len(lines), told.untold) == (10, 90)
