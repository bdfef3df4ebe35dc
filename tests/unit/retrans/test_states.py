"""Every (state, input) pair of recovery's table, and every arrow of its diagram."""

import random
from typing import Any

import pytest

from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.states import TABLE, Action, Input, State
from tests.support.recovery import MS, SECOND, Watched, make, monkey_input
from tests.support.seeds import drawn

I, S, Q, F, X = State

#: What each input is about, where `in_state` has left request 1 for 10 to 19 and refresh 2 open.
ABOUT: dict[Input, tuple[Any, ...]] = {
    Input.MISSING: (30, 40, 1),
    Input.LOST: (50, 60),
    Input.CLOSED: (70,),
    Input.PROGRESS: (20,),
    Input.ACCEPTED: (1,),
    Input.REJECTED: (1, 5),
    Input.ARRIVED: (1, 10, 20),
    Input.ANSWERED: (1,),
    Input.REFRESH_ACCEPTED: (2,),
    Input.REFRESH_REJECTED: (2, 1),
    Input.SNAPSHOT_FAILED: ("no end",),
    Input.SNAPSHOT: (100,),
}

#: The state after it, from each of the five.
AFTER: dict[Input, tuple[State, State, State, State, State]] = {
    Input.NOTICED: (S, S, Q, F, X),
    Input.MISSING: (Q, Q, Q, F, X),
    Input.LOST: (F, F, F, F, X),
    Input.CLOSED: (I, I, I, F, X),
    Input.PROGRESS: (I, S, S, F, X),
    Input.RESET: (I, I, I, I, I),
    Input.ACCEPTED: (I, S, Q, F, X),
    Input.REJECTED: (I, S, Q, F, X),
    Input.ARRIVED: (I, S, S, F, X),
    Input.ANSWERED: (I, S, Q, F, X),
    Input.SERVER_UP: (I, S, Q, F, X),
    Input.SERVER_DOWN: (I, S, Q, F, X),
    Input.REFRESH_ACCEPTED: (I, S, Q, F, X),
    Input.REFRESH_REJECTED: (I, S, Q, X, X),
    Input.REFRESH_UP: (I, S, Q, F, F),
    Input.SNAPSHOT_BEGAN: (I, S, Q, F, X),
    Input.SNAPSHOT_FAILED: (I, S, Q, F, X),
    # The lost range is healed; the gap from 10 is still asked for.
    Input.SNAPSHOT: (I, S, Q, Q, Q),
    Input.WANT_SNAPSHOT: (I, S, Q, F, X),
    Input.TICK: (I, S, Q, F, X),
}


def in_state(state: State) -> Recovery:
    """A recovery in that state, at time 0; nothing is due before 200 ms."""
    recovery = make()
    if state is State.SUSPECTING:
        recovery.noticed(0)
    elif state is not State.IN_SYNC:
        recovery.missing(10, 20, 1, 0)
    if state in (State.REFRESHING, State.STALE):
        recovery.lost(1, 5, 0)
    if state is State.STALE:
        recovery.refresh_rejected(2, 1, 0)
    recovery.pop_actions()
    assert recovery.state is state
    return recovery


@pytest.mark.parametrize("given", Input, ids=lambda each: each.name)
@pytest.mark.parametrize("state", State, ids=lambda each: each.name)
def test_every_input_in_every_state_leads_where_it_should(state: State, given: Input) -> None:
    recovery = in_state(state)
    getattr(recovery, given.name.lower())(*ABOUT.get(given, ()), MS)
    assert recovery.state is AFTER[given][state]
    assert recovery.state in TABLE[state][given].next


@pytest.mark.parametrize("given", Input, ids=lambda each: each.name)
@pytest.mark.parametrize("state", State, ids=lambda each: each.name)
def test_what_tells_nothing_new_changes_nothing(state: State, given: Input) -> None:
    action = TABLE[state][given].action
    if action not in (Action.NOTHING, Action.COUNT_LATE):
        return
    recovery = in_state(state)
    before = dict(recovery.counts), recovery.deadline_ns, recovery.missing_ranges
    getattr(recovery, given.name.lower())(*ABOUT.get(given, ()), MS)
    late = int(action is Action.COUNT_LATE)
    before[0]["late"] += late
    assert (dict(recovery.counts), recovery.deadline_ns, recovery.missing_ranges) == before
    assert recovery.pop_actions() == []


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(State)
    for state, rules in TABLE.items():
        assert set(rules) == set(Input), state.name
    assert {rule.action for rules in TABLE.values() for rule in rules.values()} == set(Action)


def walk(seed: int) -> set[tuple[State, Input, State]]:
    """The arrows gone in 120 inputs of any kind, everything checked after each."""
    chance = random.Random(seed)
    watched = Watched(
        make(refresh=seed % 5 != 0, refresh_timeout_us=200_000, refresh_retry_us=5_000_000)
    )
    now_ns = 0
    for _ in range(120):
        now_ns += chance.choice((0, MS, 30 * MS, 300 * MS, 5 * SECOND))
        given, about = monkey_input(watched, chance)
        watched.give(given, now_ns, *about)
    return watched.arrows


@drawn(4)
def test_whatever_a_monkey_does_the_invariants_hold(seed: int) -> None:
    walk(seed)


def test_every_arrow_of_the_table_is_gone_and_no_other() -> None:
    wanted = {
        (state, given, after)
        for state, rules in TABLE.items()
        for given, rule in rules.items()
        for after in rule.next
    }
    gone: set[tuple[State, Input, State]] = set()
    for seed in range(400):
        gone |= walk(seed)
        if gone == wanted:
            break
    assert gone == wanted
