"""Messages of several trees in one order."""

import random

import pytest

from feedhandler.overlay.merging import Merged, MergedEpoch, MergedGap, TreeMerger, place_of
from feedhandler.overlay.release import Deliver, Gap, NewEpoch


def message(id: int, epoch: int = 1) -> Deliver:
    return Deliver(epoch, id, b"", 0, 0, 0, False)


def short(events: list[object]) -> list[object]:
    """Numbers of messages; ("gap", number); ("epoch", epoch, first)."""
    found: list[object] = []
    for each in events:
        if isinstance(each, Merged):
            found.append(each.number)
        elif isinstance(each, MergedGap):
            found += [("gap", number) for number in range(each.first, each.last + 1)]
        elif isinstance(each, MergedEpoch):
            found.append(("epoch", *each))
    return found


def joined(trees: int = 2, waiting_max: int = 10) -> TreeMerger:
    merger = TreeMerger(trees, waiting_max)
    told = [merger.take(tree, NewEpoch(1, 1)) for tree in range(trees)]
    assert told == [[]] * (trees - 1) + [[MergedEpoch(1, 0)]]
    return merger


@pytest.mark.parametrize(
    ("taken", "merged"),
    [
        ([(0, message(1)), (1, message(1)), (0, message(2))], [0, 1, 2]),
        ([(1, message(1)), (1, message(2)), (0, message(1))], [0, 1]),
        ([(0, message(1)), (0, message(2)), (1, Gap(1, 1, 2))], [0, ("gap", 1), 2, ("gap", 3)]),
        ([(0, message(1, epoch=3)), (0, Gap(0, 1, 2)), (1, message(1))], []),
        ([(0, Gap(1, 1, 1)), (0, message(2)), (1, message(1))], [("gap", 0), 1, 2]),
        ([(0, message(2)), (1, message(1))], [("gap", 0), 1, 2]),
    ],
)
def test_the_order_is_that_of_the_numbers(
    taken: list[tuple[int, Deliver | Gap]], merged: list[object]
) -> None:
    merger = joined()
    assert short([out for tree, each in taken for out in merger.take(tree, each)]) == merged


def test_who_joins_late_begins_where_all_trees_are_complete() -> None:
    merger = TreeMerger(3)
    assert merger.take(0, message(9)) == []
    assert merger.take(1, NewEpoch(1, 7)) == []
    assert merger.take(1, message(7)) == []
    assert merger.take(1, message(8)) == []
    assert merger.take(0, NewEpoch(1, 8)) == []
    # Tree 0 begins with number 21, tree 1 with 19, tree 2 with 23: from 21 on all are there.
    assert short(merger.take(2, NewEpoch(1, 8))) == [("epoch", 1, 21)]
    assert short(merger.take(0, message(8))) == [21, 22]
    assert short(merger.take(2, message(8))) == [23]


def test_a_restart_begins_anew_and_the_old_epoch_is_dropped() -> None:
    merger = joined()
    merger.take(1, message(1))
    assert merger.take(0, NewEpoch(2, 1)) == []
    assert merger.take(1, message(2)) == []
    assert merger.take(1, NewEpoch(1, 1)) == []
    assert short(merger.take(1, NewEpoch(2, 1))) == [("epoch", 2, 0)]
    assert short(merger.take(0, message(1, 2))) == [0]


def test_a_tree_that_stands_still_is_passed_over_once_too_many_wait_for_it() -> None:
    merger = joined(waiting_max=3)
    found = [out for id in range(1, 6) for out in merger.take(1, message(id))]
    assert short(found) == [("gap", 0), 1, ("gap", 2), 3]
    assert merger.passed_over == 2
    # What it brings of them afterwards is too late.
    assert short(merger.take(0, message(1))) == []
    assert short(merger.take(0, message(3))) == [4, 5]


@pytest.mark.parametrize("trees", [1, 3])
def test_a_gap_of_all_trees_is_one_event_however_wide(trees: int) -> None:
    merger = joined(trees)
    out = [each for tree in range(trees) for each in merger.take(tree, Gap(1, 1, 1 << 60))]
    assert len(out) <= 2 * trees
    assert merger.expected == trees << 60


@pytest.mark.parametrize("trees", [1, 2, 5])
def test_every_message_comes_once_or_is_a_gap(seed: int, trees: int) -> None:
    dice, merger = random.Random(seed), TreeMerger(trees)
    queues: list[list[Deliver | Gap | NewEpoch]] = [[NewEpoch(1, 1)] for _ in range(trees)]
    lost = set()
    for number in range(600):
        tree, id = place_of(number, trees)
        if dice.random() < 0.1:
            lost.add(number)
        queues[tree].append(Gap(1, id, id) if number in lost else message(id))
    out: list[object] = []
    while waiting := [tree for tree in range(trees) if queues[tree]]:
        tree = dice.choice(waiting)
        out += short(list(merger.take(tree, queues[tree].pop(0))))
    assert out[0] == ("epoch", 1, 0)
    assert out[1:] == [("gap", each) if each in lost else each for each in range(600)]
