"""The search for where latency leaves a bound."""

import random

import pytest

from feedhandler.histogram import Histogram
from feedhandler.lab import results, sweep
from feedhandler.lab.plan import CLIENTS_MAX, Bound
from feedhandler.lab.results import Sent, Step
from feedhandler.lab.sweep import Search
from tests.support.report import latency_of


def searched(search: Search, limit: float, unlucky: frozenset[int] = frozenset()) -> list[float]:
    """All values tried where everything up to `limit` holds but for the trials in `unlucky`."""
    tried = []
    for number, value in enumerate(search.values()):
        tried.append(value)
        search.report(value <= limit and number not in unlucky)
    return tried


def test_a_rate_is_found_between_what_held_and_what_failed() -> None:
    search = Search(40e6, whole=False)
    searched(search, 300e6)
    assert search.held is not None
    assert search.failed is not None
    assert search.held <= 300e6 < search.failed
    assert search.failed / search.held < sweep.RATIO_ENOUGH


def test_a_start_that_fails_is_searched_downwards() -> None:
    search = Search(100e6, whole=False)
    tried = searched(search, 20e6)
    assert tried[:4] == [100e6, 100e6, 50e6, 50e6]
    assert search.held is not None
    assert search.held <= 20e6


def test_client_counts_are_whole_and_exact(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        limit, start = chance.randint(1, CLIENTS_MAX - 1), chance.randint(1, CLIENTS_MAX)
        search = Search(start, whole=True)
        tried = searched(search, limit)
        assert all(value == int(value) for value in tried)
        assert (search.held, search.failed) == (limit, limit + 1)


def test_where_everything_holds_the_search_ends_at_the_most() -> None:
    search = Search(10, whole=True)
    assert searched(search, 1e9)[-1] == CLIENTS_MAX
    assert (search.held, search.failed) == (CLIENTS_MAX, None)


def test_where_nothing_holds_the_search_ends_at_the_least() -> None:
    search = Search(4, whole=True)
    assert searched(search, 0) == [4, 4, 2, 2, 1, 1]
    assert (search.held, search.failed) == (None, 1)


def test_one_bad_moment_is_no_failure() -> None:
    lucky, unlucky = Search(40e6, whole=False), Search(40e6, whole=False)
    searched(lucky, 300e6)
    tried = searched(unlucky, 300e6, frozenset({0}))
    assert tried[:3] == [40e6, 40e6, 80e6]
    assert unlucky.held == lucky.held


def test_a_search_has_an_end() -> None:
    search = Search(1, whole=False)
    assert len(searched(search, 1e12)) <= sweep.TRIES * sweep.VALUES_MAX
    assert search.failed is None


@pytest.mark.parametrize(
    ("findings", "behind", "latency_ns", "held", "why"),
    [
        ([], 0, 900_000, True, ""),
        ([], 0, 1_200_000, False, "p90 is"),
        (["client 1: 3 lost"], 0, 1_000, False, "3 lost"),
        ([], 50, 1_000, False, "did not keep the rate"),
        ([], 0, None, False, "no delivery was timed"),
    ],
)
def test_a_bound_is_kept_only_without_loss_and_at_the_full_rate(
    findings: list[str], behind: int, latency_ns: int | None, held: bool, why: str
) -> None:
    histogram = Histogram()
    if latency_ns is not None:
        histogram.record(latency_ns)
    step = Step(
        scenario="packets", exchange="topic", clients=1, findings=findings, trial=True,
        latency=latency_of(histogram), sent=Sent(datagrams=1000, behind=behind),
    )  # fmt: skip
    trial = sweep.trial_of(step, 4e7, Bound("p90", 0.9, 1_000_000))
    assert (trial.held, why in trial.why) == (held, True)
    assert results.Run(steps=[step]).findings == []
