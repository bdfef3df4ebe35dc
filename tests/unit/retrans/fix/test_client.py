"""The receiver's requests (`retrans/fix/client.py`)."""

import itertools
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.fix import client as module
from feedhandler.retrans.fix.client import Requester, RequesterSettings
from feedhandler.retrans.fix.request import ResendRequest
from feedhandler.retrans.fix.server import NEVER

MS = 1_000_000


def requester(seed: int = 1, **settings: Any) -> Requester:
    return Requester("c", RequesterSettings(**settings), seed)


def due(made: Requester) -> list[tuple[int, int]]:
    """Return the ranges that are requested at the next deadline."""
    return [request[1:] for request in made.tick(made.deadline_ns)]


def test_a_loss_is_asked_for_within_its_random_wait(seed: int) -> None:
    times = []
    for number in range(50):
        made = requester(seed + number, spread_us=10_000)
        made.missing(3, 5, 100)
        times.append(made.deadline_ns)
        assert made.tick(made.deadline_ns - 1) == []
        assert made.tick(made.deadline_ns) == [ResendRequest("c", 3, 5)]
    assert 100 <= min(times) < max(times) <= 100 + 10 * MS
    assert len(set(times)) > 40
    assert sum(time > 5 * MS for time in times) > 25


def test_a_lone_receiver_asks_at_once() -> None:
    made = requester(receivers=1)
    made.missing(1, 1, 7)
    assert made.deadline_ns == 7


def test_an_answer_to_another_client_keeps_a_request_back() -> None:
    made = requester(spread_us=10_000)
    made.missing(3, 5, 0)
    for number in (3, 4, 5):
        made.settled(number, number, 1)
    assert made.deadline_ns == NEVER
    assert made.counts == {"answered_to_others": 1}


def test_while_an_answer_comes_nothing_is_asked_for() -> None:
    made = requester(spread_us=0, retry_us=1000)
    made.missing(1, 100, 0)
    assert due(made) == [(1, 100)]
    for number in range(1, 100):
        made.settled(number, number, number * 400_000)
        assert made.tick(number * 400_000) == []
    # The last one does not come.
    assert due(made) == [(100, 100)]


def test_a_request_is_repeated_with_longer_waits_and_then_given_up() -> None:
    made = requester(spread_us=0, retry_us=1000, retry_most_us=4000, tries_max=4)
    made.missing(1, 2, 0)
    times = []
    while made.deadline_ns != NEVER:
        times.append(made.deadline_ns)
        made.tick(made.deadline_ns)
    assert made.counts == {"requests": 4, "abandoned": 1}
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    for wait_ns, whole_us in zip(waits, (1000, 2000, 4000, 4000), strict=True):
        assert whole_us * 500 <= wait_ns <= whole_us * 1000


def test_one_loss_is_one_request_though_parts_of_it_have_come() -> None:
    made = requester(spread_us=0)
    made.missing(1, 9, 0)
    made.settled(4, 5, 0)
    assert due(made) == [(1, 9)]


def test_long_losses_are_asked_for_in_parts() -> None:
    made = requester(spread_us=0, request_messages_max=4)
    made.missing(1, 10, 0)
    assert due(made) == [(1, 4), (5, 8), (9, 10)]


def test_losses_that_are_asked_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_MAX", 2)
    made = requester()
    for number in (1, 3, 5):
        made.missing(number, number, 0)
    assert made.counts["not_asked_for_room"] == 1


def test_another_epoch_is_not_asked_for() -> None:
    made = requester()
    made.missing(1, 5, 0)
    made.clear()
    assert made.deadline_ns == NEVER


@pytest.mark.parametrize("settings", [{"retry_us": 0}, {"tries_max": 0}])
def test_settings_that_would_ask_for_ever_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        requester(**settings)
