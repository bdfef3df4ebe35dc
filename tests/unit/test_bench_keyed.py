"""The bench of keyed queues: its schedule, its workload, and what its check of histories finds."""

import itertools
import random
from pathlib import Path

import pytest

from bench import keyed_work
from bench.keyed_work import Handled, Message, Rule, Workload, check, figures, rounds, values_of

RULES: tuple[Rule, ...] = ("composite", "pair", "any")


def scanned_rounds(keys: list[tuple[int, ...]], workers: int, rule: Rule) -> int:
    """The greedy schedule by its definition: scan all that waits, oldest first."""
    waiting, steps = [values_of(key, rule) for key in keys], 0
    while waiting:
        blocked: set[object] = set()
        left, busy = [], 0
        for values in waiting:
            if busy < workers and not values & blocked:
                busy += 1
            else:
                left.append(values)
            blocked |= values
        waiting, steps = left, steps + 1
    return steps


def fewest_rounds(keys: list[tuple[int, ...]], workers: int, rule: Rule) -> int:
    """The best of all schedules that keep the order, by breadth."""
    held = [values_of(key, rule) for key in keys]
    states, steps = {frozenset(range(len(keys)))}, 0
    while frozenset() not in states:
        following = set()
        for state in states:
            eligible = [
                one for one in state if not any(held[one] & held[o] for o in state if o < one)
            ]
            for chosen in itertools.combinations(eligible, min(workers, len(eligible))):
                following.add(state.difference(chosen))
        states, steps = following, steps + 1
    return steps


@pytest.mark.parametrize("rule", RULES)
def test_the_schedule_is_that_of_a_scan_and_within_twice_the_best(rule: Rule) -> None:
    for seed in range(150):
        chance = random.Random(seed)
        keys = [tuple(chance.sample(range(5), 2)) for _ in range(chance.randint(0, 8))]
        workers = chance.randint(1, 4)
        found, best = rounds(keys, workers, rule), fewest_rounds(keys, workers, rule)
        assert found == scanned_rounds(keys, workers, rule), (seed, keys, workers)
        # Graham's bound for a schedule that leaves no worker idle for nothing.
        assert best <= found <= (2 - 1 / workers) * best, (seed, keys, workers)


@pytest.mark.parametrize(
    ("rule", "keys", "workers", "steps"),
    [
        ("composite", [(1, 2), (2, 1)], 2, 1),
        ("pair", [(1, 2), (2, 1)], 2, 2),
        ("pair", [(1, 2), (1, 3)], 2, 1),
        ("any", [(1, 2), (1, 3)], 2, 2),
        # (3, 4) waits for (2, 3), which waits itself.
        ("any", [(1, 2), (2, 3), (3, 4)], 3, 3),
        ("composite", [(1,)] * 5, 8, 5),
        ("composite", [(n,) for n in range(9)], 8, 2),
        ("composite", [], 8, 0),
    ],
)
def test_rules_say_what_goes_side_by_side(
    rule: Rule, keys: list[tuple[int, ...]], workers: int, steps: int
) -> None:
    assert rounds(keys, workers, rule) == steps
    assert keyed_work.makespan_seconds(keys, workers, 0.5, rule) == steps / 2


def test_a_workload_is_the_same_by_seed_and_as_skewed_as_it_says() -> None:
    skewed = Workload(5000, keys=100, zipf=1.0, seed=3)
    assert skewed.messages() == skewed.messages()
    assert skewed.messages() != Workload(5000, keys=100, zipf=1.0, seed=4).messages()
    most = sum(message.fields == (0,) for message in skewed.messages()) / 5000
    # One in the hundredth harmonic number, 5.19.
    assert 0.17 < most < 0.22
    even = Workload(5000, keys=100).messages()
    assert sum(message.fields == (0,) for message in even) < 100
    assert all(a != b for (a, b), _ in Workload(500, keys=3, fields=2).messages())
    with pytest.raises(ValueError, match="different fields"):
        Workload(1, keys=1, fields=2).messages()


MESSAGES = [Message((1,), 0), Message((2,), 0), Message((1,), 1)]
GOOD = [
    Handled(0, "1", 0, 0, 10, 20),
    Handled(1, "2", 0, 0, 10, 30),
    Handled(1, "1", 1, 0, 30, 40),
]


def test_a_good_history_has_no_problem_and_its_figures_are_those_of_its_times() -> None:
    assert check(MESSAGES, GOOD).problems == []
    found = figures(GOOD, ready_ns=5)
    assert found.a_second == pytest.approx(3 / 35e-9)
    assert (found.wait_p50_ms, found.wait_p99_ms, found.workers_used) == (5e-6, 25e-6, 2)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (GOOD[:2], "1 lost"),
        ([*GOOD, Handled(0, "2", 0, 0, 50, 60)], "1 doubled"),
        ([*GOOD, Handled(0, "3", 0, 0, 50, 60)], "1 strange"),
        (
            [GOOD[1], Handled(0, "1", 1, 0, 10, 20), Handled(0, "1", 0, 0, 20, 30)],
            "1 disordered",
        ),
        ([*GOOD[:2], Handled(1, "1", 1, 0, 19, 40)], "1 overlapping"),
    ],
)
def test_what_is_wrong_with_a_history_is_found(history: list[Handled], problem: str) -> None:
    assert check(MESSAGES, history).problems == [problem]


def test_syncs_are_counted_and_leave_nothing_behind(tmp_path: Path) -> None:
    assert keyed_work.syncs_a_second(tmp_path, 0.0) > 0
    assert not list(tmp_path.iterdir())
