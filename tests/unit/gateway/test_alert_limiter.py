"""Alerts about servers: news, once, and never without end."""

import pytest

from feedhandler.gateway import alert_limiter
from feedhandler.gateway.alert_limiter import LASTING_NS, LINES_MAX, WINDOW_NS, AlertLimiter

SECOND = 1_000_000_000


@pytest.fixture
def lines() -> list[str]:
    return []


def test_the_same_line_is_logged_once_and_different_ones_a_few_times(lines: list[str]) -> None:
    limiter = AlertLimiter(lines.append)
    for at in range(100):
        limiter.connected("rts", at * SECOND)
        limiter.disconnected("rts", "the server closed it", at * SECOND)
    assert lines == ["server rts: the server closed it; connecting again"]
    for at in range(100):
        limiter.disconnected("rts", f"reason {at}", WINDOW_NS + at)
    assert len(lines) == LINES_MAX
    assert limiter.suppressed == 200 - LINES_MAX
    limiter.disconnected("rfs", "reason 5", 0)
    assert len(lines) == LINES_MAX + 1


def test_a_server_that_was_well_is_news_again(lines: list[str]) -> None:
    limiter = AlertLimiter(lines.append)
    for at in range(2):
        limiter.disconnected("rts", "gone", at)
        limiter.well("rts")
    assert len(lines) == 2
    limiter.disconnected("rts", "gone", SECOND)
    limiter.connected("rts", SECOND)
    limiter.disconnected("rts", "gone", SECOND + LASTING_NS)
    # Well and broken by turns: no more than a few lines in a while.
    assert len(lines) == LINES_MAX
    limiter.well("rts")
    limiter.disconnected("rts", "gone", WINDOW_NS)
    assert len(lines) == LINES_MAX + 1


def test_a_server_that_answers_and_drops_for_a_day_writes_a_few_lines_an_hour(
    lines: list[str],
) -> None:
    limiter = AlertLimiter(lines.append)
    for second in range(86_400):
        limiter.connected("rfs", second * SECOND)
        limiter.well("rfs")
        limiter.disconnected("rfs", f"sent {second}", second * SECOND)
    assert len(lines) <= LINES_MAX * (86_400 * SECOND // WINDOW_NS)


def test_subjects_are_bounded(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_limiter, "SUBJECTS_MAX", 10)
    limiter = AlertLimiter(lines.append)
    for at in range(100):
        limiter.report(f"service {at}", f"service {at}", 0)
    assert (len(lines), limiter.suppressed) == (10, 90)


def test_what_is_still_so_is_reported_again_once_it_is_renewed(lines: list[str]) -> None:
    limiter = AlertLimiter(lines.append)
    for _ in range(3):
        limiter.report("service 101", "no more requests today", 0)
    limiter.renew()
    limiter.report("service 101", "no more requests today", SECOND)
    assert lines == ["no more requests today"] * 2
    assert limiter.suppressed == 2
