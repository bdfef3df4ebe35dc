"""Leftovers of closed links are freed in shares."""

import itertools
from collections import deque

from feedhandler.amqp.serving.leftovers import BYTES_PER_UNIT, WHOLE_UNITS, Leftovers
from feedhandler.amqp.work_budget import WorkBudget
from tests.support.turns import Loop

UNITS = 100


def test_queues_of_many_links_are_freed_over_many_turns_and_wholly() -> None:
    loop = Loop()
    leftovers = Leftovers(WorkBudget(loop.call_soon, UNITS))
    queues = [deque(bytes(10_000) for _ in range(1000)) for _ in range(20)]
    for queue in queues:
        leftovers.leave(queue)
    share = UNITS * BYTES_PER_UNIT / 10_000
    left = sum(map(len, queues))
    assert left > 20_000 - 2 * share
    while loop.soon:
        loop.turn()
        now = sum(map(len, queues))
        assert left - now <= share + UNITS + 1, "more than a turn's units"
        left = now
    assert left == 0
    assert not len(leftovers)
    assert loop.turns >= 200e6 // (UNITS * BYTES_PER_UNIT)


def test_what_is_whole_is_let_go_as_units_last() -> None:
    class Connection:
        there = 0

        def __init__(self) -> None:
            Connection.there += 1

        def __del__(self) -> None:
            Connection.there -= 1

    loop = Loop()
    leftovers = Leftovers(WorkBudget(loop.call_soon, UNITS))
    for _ in range(50):
        leftovers.leave(Connection())
    seen = [Connection.there]
    while loop.soon:
        loop.turn()
        seen.append(Connection.there)
    assert seen[0] >= 50 - UNITS // WHOLE_UNITS - 1
    assert max(a - b for a, b in itertools.pairwise(seen)) <= UNITS // WHOLE_UNITS + 1
    assert seen[-1] == 0


def test_an_empty_queue_is_nothing_to_free() -> None:
    loop = Loop()
    leftovers = Leftovers(WorkBudget(loop.call_soon, UNITS))
    leftovers.leave(deque())
    assert not loop.soon
    assert not len(leftovers)


def test_a_callback_is_called_once_it_is_gone() -> None:
    loop = Loop()
    leftovers = Leftovers(WorkBudget(loop.call_soon, WHOLE_UNITS))
    gone: list[int] = []
    for number in range(3):
        leftovers.leave(object(), WHOLE_UNITS, lambda number=number: gone.append(number))
    assert gone == [0]
    while loop.soon:
        loop.turn()
    assert gone == [0, 1, 2]
    leftovers.leave(deque(), freed=lambda: gone.append(3))
    assert gone[-1] == 3


def test_who_asks_for_everything_leaves_half_of_each_turn_to_the_freeing() -> None:
    loop = Loop()
    turns = WorkBudget(loop.call_soon, UNITS)
    leftovers = Leftovers(turns)
    gone: list[int] = []

    def greedy() -> None:
        while turns.try_spend(1):
            pass
        turns.wait(greedy)

    for _ in range(50):
        turns.wait(greedy)
    for number in range(20):
        leftovers.leave(object(), UNITS // 4, lambda number=number: gone.append(number))
    before = len(gone)
    for _ in range(5):
        loop.turn()
    assert len(gone) - before >= 2 * 4
    assert turns.left <= 0, "and the others have the rest"
