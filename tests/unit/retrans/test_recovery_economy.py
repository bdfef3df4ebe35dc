"""Recovery in a small world with faults: no storms, no request in vain, and in sync in the end."""

import random

import pytest

from feedhandler.retrans.states import State
from tests.support.recovery import MS, SECOND, Faults, World, make
from tests.support.seeds import drawn


def world(seed: int, faults: Faults | None = None, **settings: int) -> World:
    return World(make(**settings), faults or Faults(), seed)


def rain(world: World, rate: float, seconds: int, answer: int = 1) -> int:
    """Lose that share of a packet a millisecond on both lines; the number of runs lost."""
    chance = random.Random(world.seed + 1)
    runs = begin = 0
    for number in range(world.newest + 1, world.newest + 1 + seconds * 1000):
        world.run(world.now_ns + MS)
        world.newest = number
        if chance.random() < rate:
            begin = begin or number
        elif begin:
            world.lose(begin, number)
            runs, begin = runs + 1, 0
    return runs


def test_one_percent_lost_costs_one_request_a_run_and_not_a_packet_too_many() -> None:
    trial = world(1)
    runs = rain(trial, 0.01, 10)
    trial.run(trial.now_ns + SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked, trial.refreshes) == (set(), runs, 0)
    assert trial.asked_numbers == len(trial.fetched)


def test_twenty_percent_lost_is_recovered_without_a_storm() -> None:
    trial = world(2)
    runs = rain(trial, 0.2, 10)
    trial.run(trial.now_ns + SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked) == (set(), runs)


def test_a_slow_server_and_a_slow_rate_make_no_storm_either() -> None:
    trial = world(3, Faults(answer_ms=20, stall=0.05, partial=0.05), requests_per_s=200)
    runs = rain(trial, 0.2, 5)
    trial.run(trial.now_ns + 30 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert trial.asked <= 1.5 * runs
    assert trial.asked <= 200 * 6 + 20


def test_more_loss_than_the_quota_allows_wastes_no_request() -> None:
    trial = world(6, requests_per_s=20)
    rain(trial, 0.2, 5)
    trial.run(trial.now_ns + 5 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert 20 * 5 <= trial.asked <= 20 * 6 + 20
    # Each request brought what it asked for, in time: none was for a gap about to be given up.
    assert trial.recovery.counts["late"] == trial.recovery.counts["cancelled"] == 0
    assert len(trial.fetched) == trial.asked_numbers


@pytest.mark.parametrize("reason", [2, 3, 4, 5])
def test_a_blackout_that_no_server_can_fill_is_one_refresh(reason: int) -> None:
    trial = world(4, Faults(refuse=1.0, reasons=(reason,)), request_packets_max=100)
    trial.lose(1, 10_001)
    trial.run(SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert trial.lost == set(range(1, 10_001))
    assert trial.refreshes == 1
    assert trial.asked <= 16 * 9


def test_a_blackout_that_the_server_fills_is_one_set_of_requests() -> None:
    trial = world(5, request_packets_max=100)
    trial.lose(1, 2_001)
    trial.run(SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked, trial.asked_numbers) == (set(), 20, 2_000)


# -- convergence --------------------------------------------------------------------------------


@drawn(6)
def test_after_healing_everything_is_in_sync_again(seed: int) -> None:
    chance = random.Random(seed)

    def draw(most: float) -> float:
        return chance.choice((0.0, chance.random() * most))

    faults = Faults(
        refuse=draw(0.5),
        stall=draw(0.5),
        partial=draw(0.5),
        disconnect=draw(0.3),
        refresh_refuse=draw(0.8),
        refresh_stall=draw(0.8),
        snapshot_fail=draw(0.8),
        snapshot_old=draw(0.8),
        answer_ms=chance.choice((1, 10, 200)),
        refresh_ms=chance.choice((10, 1000)),
    )
    trial = world(
        seed,
        faults,
        request_packets_max=chance.choice((1, 3, 1000)),
        outstanding_max=chance.choice((1, 2, 16)),
        requests_per_s=chance.choice((0, 20, 1000)),
        requests_per_day=chance.choice((0, 0, 50)),
        refresh_timeout_us=2_000_000,
        refresh_retry_us=10_000_000,
    )
    rain(trial, draw(0.2), 3)
    trial.faults = Faults()
    # The worst: a snapshot's time-out, a rest, and one more try.
    trial.run(trial.now_ns + 15 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert not trial.gaps
    assert trial.recovery.requested == []
    trial.run(trial.now_ns + 86_400 * SECOND)
    lost = len(trial.lost)
    rain(trial, 0.01, 1)
    trial.run(trial.now_ns + SECOND)
    assert (trial.recovery.state, len(trial.lost)) == (State.IN_SYNC, lost)
