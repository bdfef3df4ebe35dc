"""Work in shares: no turn does more than its units, and everybody comes."""

import itertools
from functools import partial

from feedhandler.amqp.work_budget import WorkBudget
from tests.support.turns import Loop


def test_a_turn_spends_its_units_and_the_rest_goes_on_in_rotation() -> None:
    loop = Loop()
    turns = WorkBudget(loop.call_soon, 10)
    left, done = {"greedy": 12, "modest": 1}, []

    def work(name: str) -> None:
        for _ in range(2):  # its own share
            if left[name] == 0 or not turns.try_spend(3):
                break
            left[name] -= 1
            done.append(name)
        if left[name]:
            turns.wait(partial(work, name))

    work("greedy")
    work("modest")
    assert done == ["greedy", "greedy", "modest"]
    spent = [len(done)]
    while loop.soon:
        loop.turn()
        spent.append(len(done))
    assert not any(left.values())
    assert max(after - before for before, after in itertools.pairwise(spent)) <= 4


def test_nothing_is_scheduled_without_a_request() -> None:
    loop = Loop()
    turns = WorkBudget(loop.call_soon, 1)
    assert turns.try_spend(5)
    assert not turns.try_spend(1)
    loop.turn()
    assert turns.left == 1
    assert not loop.soon
