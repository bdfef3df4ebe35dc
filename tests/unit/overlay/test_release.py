"""Held messages, compiled: as the interpreted twin has it, and for many receivers at once."""

import random
import time
from typing import Any

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.overlay.release import HOLD_MAX_NS, WAIT_MAX_NS, Deliver, Gap, Release, Restart
from feedhandler.overlay.releasing import release_all, soonest
from feedhandler.overlay.wire import Head, Kind

TWIN = load_interpreted("feedhandler.overlay.release")
TWINS = load_interpreted("feedhandler.overlay.releasing")
HUGE = (1 << 63) - 1


def head_of(number: int, deadline_ns: int = 0, epoch: int = 1, sent_ns: int | None = None) -> Head:
    return Head(Kind.DATA, 7, epoch, number, sent_ns or max(deadline_ns - 5, 1), deadline_ns)


def figures(release: Any) -> tuple[int, ...]:
    return (
        release.deadline_ns, release.held, release.delivered, release.late, release.passed,
        release.missing, release.overfull,
    )  # fmt: skip


@pytest.mark.random
def test_the_compiled_one_releases_what_its_twin_does(seed: int) -> None:
    rng = random.Random(seed)
    kinds: set[str] = set()
    for _ in range(60):
        waits = rng.choice([0, 5]), rng.choice([0, 7, HUGE]), rng.choice([0, 5])
        pair = Release(*waits), TWIN.Release(*waits)
        epoch, number, now = 1, rng.choice([1, 1, 50, (1 << 64) - 40]), 1 << 40
        waiting: list[Head] = []
        for _ in range(120):
            now += rng.choice([0, 1, 4])
            if rng.random() < 0.02:  # the clock is set
                now += rng.choice([-2, -1, 1]) * HOLD_MAX_NS
            number += rng.choice([0, 1, 1, 1, 3])
            if rng.random() < 0.02:
                epoch, number = epoch + 1, 1
            if rng.random() < 0.05:
                for each in pair:
                    each.heard(epoch, number, now)
            deadline = rng.choice([0, now - 2, now + 4, now + 4, now + 9, HUGE])
            waiting.append(head_of(number, max(deadline, 0), epoch, rng.choice([None, HUGE])))
            number += 1
            rng.shuffle(waiting)
            for head in waiting[: rng.choice([0, 1, 1, 2])]:
                assert pair[0].put(head, b"x", now) == pair[1].put(head, b"x", now)
                waiting.remove(head)
            if rng.random() < 0.02:
                for each in pair:
                    each.extra_hold_ns = 3
            one, other = (each.release(now) for each in pair)
            assert list(map(tuple, one)) == list(map(tuple, other))
            assert [type(each).__name__ for each in one] == [type(each).__name__ for each in other]
            assert figures(pair[0]) == figures(pair[1])
            kinds |= {type(each).__name__ for each in one}
    assert kinds == {Deliver.__name__, Gap.__name__, Restart.__name__}


def test_a_heartbeat_that_comes_again_does_not_put_the_gap_off() -> None:
    release = Release(5)
    release.put(head_of(1), b"", 10)
    release.heard(1, 2, 10)
    release.heard(1, 2, 14)
    release.heard(1, 1, 14)
    assert [type(each) for each in release.release(14)] == [Deliver]
    assert release.release(15) == [Gap(1, 2, 2)]


@pytest.mark.parametrize(
    ("came", "events"),
    [
        ((1, 2), ["Deliver 1", "Deliver 2"]),
        ((2,), ["Deliver 2"]),
        ((4,), ["Gap 2-3", "Deliver 4"]),
        ((), ["Gap 2-4"]),
    ],
)
def test_a_heartbeat_of_the_quicker_tree_does_not_shut_out_what_the_other_brings(
    came: tuple[int, ...], events: list[str]
) -> None:
    release = Release(5, start_wait_ns=5)
    release.heard(1, 1, 10)
    assert (release.deadline_ns, release.release(14)) == (15, [])
    for number in came:
        release.put(head_of(number), b"", 14)
    release.heard(1, 4, 14)
    found = [each for now in (15, 19, 24) for each in release.release(now)]
    said = [
        f"Deliver {each.id}" if isinstance(each, Deliver) else f"Gap {each.first}-{each.last}"
        for each in found
        if not isinstance(each, Restart)
    ]
    assert said[: len(events)] == events
    assert release.passed == 0


def test_times_and_waits_that_are_too_large_are_bounded() -> None:
    release = Release(HUGE, 1 << 70, 1 << 70)
    assert (release.gap_wait_ns, release.extra_hold_ns) == (WAIT_MAX_NS, WAIT_MAX_NS)
    release.put(head_of(2, HUGE, sent_ns=HUGE), b"", 1 << 62)
    assert release.release(1 << 62) == []
    assert [each.id for each in release.release(HUGE) if isinstance(each, Deliver)] == [2]


def test_a_clock_that_is_behind_holds_nothing_for_longer_than_a_deadline_may_be_ahead() -> None:
    release, hour_ns = Release(5), 3_600 * 10**9
    release.put(head_of(1, hour_ns + 20, sent_ns=hour_ns), b"", 10)
    assert release.deadline_ns == 10 + HOLD_MAX_NS


def test_what_came_before_the_clock_was_set_back_is_due_and_shuts_out_nothing() -> None:
    release, hour_ns = Release(5), 3_600 * 10**9
    release.put(head_of(1, hour_ns), b"", hour_ns - 10)
    release.put(head_of(3, hour_ns), b"", hour_ns - 10)
    release.heard(1, 4, hour_ns - 10)
    release.put(head_of(5, 30), b"", 10)
    events = [each for now in (10, 15, 35) for each in release.release(now)]
    assert [each.id if isinstance(each, Deliver) else each for each in events] == [
        1, Gap(1, 2, 2), 3, Gap(1, 4, 4), 5,
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
def test_many_receivers_are_asked_at_once_each_by_its_own_stamp(compiled: bool) -> None:
    kind, all_of, first_of = (
        (Release, release_all, soonest)
        if compiled
        else (TWIN.Release, TWINS.release_all, TWINS.soonest)
    )
    holdings = [kind(5) for _ in range(100)]
    assert first_of(holdings) == 0
    began_ns = time.time_ns()
    later_ns = began_ns + 3_600 * 10**9
    for index, each in enumerate(holdings):
        each.put(head_of(1, began_ns - index, sent_ns=1), bytes([index]), began_ns)
        each.put(head_of(2, later_ns - index, sent_ns=later_ns), b"", later_ns - 500)
    assert first_of(holdings) == 1 + 1_000_000_000  # as far ahead as a deadline may be
    found = all_of(holdings)
    stamps = [stamp for stamp, _ in found]
    assert began_ns <= stamps[0]
    assert stamps == sorted(stamps)
    assert [[each.payload for each in events] for _, events in found] == [
        [bytes([index])] for index in range(100)
    ]
    assert first_of(holdings) == later_ns - 99
    later = all_of(holdings, 3_601 * 10**9)
    assert [[each.id for each in events] for _, events in later] == [[2]] * 100
    assert all(abs(stamp - time.time_ns()) < 3_600 * 10**9 for stamp, _ in later)
