"""Range sets against a plain set of numbers."""

import itertools
import random

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.ranges import RangeSet
from tests.support.seeds import drawn


def numbers(ranges: RangeSet) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def test_ranges_that_touch_or_overlap_become_one():
    ranges = RangeSet([(3, 5), (6, 9), (20, 20)])
    assert list(ranges) == [(3, 9), (20, 20)]
    ranges.add(8, 19)
    assert list(ranges) == [(3, 20)]
    assert ranges.total == 18


def test_a_range_taken_out_of_the_middle_leaves_both_ends():
    ranges = RangeSet([(1, 10)])
    ranges.discard(4, 6)
    assert list(ranges) == [(1, 3), (7, 10)]
    ranges.discard_below(3)
    assert list(ranges) == [(3, 3), (7, 10)]
    ranges.discard_below(3)
    ranges.discard(100, 200)
    assert list(ranges) == [(3, 3), (7, 10)]


def test_what_is_missing_inside_a_window_is_listed_in_order():
    ranges = RangeSet([(3, 4), (8, 12)])
    assert ranges.missing_in(1, 10) == [(1, 2), (5, 7)]
    assert ranges.missing_in(3, 4) == []
    assert ranges.missing_in(12, 14) == [(13, 14)]
    assert ranges.within(4, 9) == [(4, 4), (8, 9)]


def test_an_empty_range_and_a_senseless_limit_are_refused():
    with pytest.raises(UsageError, match="empty"):
        RangeSet([(5, 4)])
    with pytest.raises(UsageError, match="limited"):
        RangeSet(limit=0)


def test_a_full_set_claims_too_much_and_says_how_much():
    ranges = RangeSet([(1, 1), (4, 4), (10, 10)], limit=3)
    ranges.add(100, 100)
    assert list(ranges) == [(1, 4), (10, 10), (100, 100)]
    assert ranges.widened == 2
    ranges.discard(2, 3)
    assert len(ranges) == 3
    assert {1, 4, 10, 100} <= numbers(ranges)
    ranges.clear()
    assert not ranges
    assert ranges.total == 0


def test_sets_with_the_same_ranges_are_equal():
    assert RangeSet([(1, 2), (3, 4)]) == RangeSet([(1, 4)])
    assert RangeSet([(1, 2)]) != RangeSet([(1, 3)])
    assert RangeSet() != []
    assert repr(RangeSet([(1, 2)])) == "RangeSet([(1, 2)])"


@drawn(6)
def test_any_mix_of_changes_equals_a_plain_set(seed):
    rng = random.Random(seed)
    ranges, plain = RangeSet(), set()
    for _ in range(300):
        first = rng.randrange(120)
        last = first + rng.randrange(12)
        if rng.random() < 0.6:
            ranges.add(first, last)
            plain |= set(range(first, last + 1))
        else:
            ranges.discard(first, last)
            plain -= set(range(first, last + 1))
        window = range(first, last + 1)
        assert numbers(ranges) == plain
        assert ranges.total == len(plain)
        assert ranges.covers(first, last) == (set(window) <= plain)
        assert all((number in ranges) == (number in plain) for number in range(140))
        missing = {n for a, b in ranges.missing_in(first, last) for n in range(a, b + 1)}
        assert missing == set(window) - plain
    ends = list(ranges)
    assert all(end + 1 < begin for (_, end), (begin, _) in itertools.pairwise(ends))


@drawn(3)
def test_a_bounded_set_never_forgets_a_number_and_never_holds_more_ranges(seed):
    rng = random.Random(seed)
    ranges, plain = RangeSet(limit=5), set()
    for _ in range(100):
        first = rng.randrange(1000)
        ranges.add(first, first + rng.randrange(5))
        plain |= {first}
        assert len(ranges) <= 5
        assert plain <= numbers(ranges)


@drawn(3)
def test_a_full_set_that_only_grows_is_halved_and_looks_at_all_its_ranges_seldom(seed):
    rng = random.Random(seed)
    limit, number, plain, halved = 64, 0, set(), 0
    ranges = RangeSet(limit=limit, only_grows=True)
    for _ in range(1000):
        before = len(ranges)
        number += rng.randint(2, 9)
        ranges.add(number, number)
        plain.add(number)
        halved += len(ranges) < before
        assert len(ranges) <= limit
        latest = sorted(plain)[-(limit // 4) :]
        assert ranges.latest(len(latest)) == [(each, each) for each in latest]
    assert plain <= numbers(ranges)
    assert 0 < halved <= 1000 / (limit / 2)
    assert ranges.widened == ranges.total - len(plain)
    assert ranges.joined == 1000 - len(ranges)


@drawn(3)
def test_a_coarsened_set_claims_what_joining_one_by_one_would(seed):
    rng = random.Random(seed)
    most = rng.randint(1, 30)
    parts = [(first, first + rng.randrange(3)) for first in range(0, 400, rng.randint(5, 9))]
    # No two holes are equally wide: which of those is joined first does not matter to anybody.
    at, wide = 0, []
    widths = list(range(1, len(parts) + 1))
    rng.shuffle(widths)
    for width, (first, last) in zip(widths, parts, strict=True):
        wide.append((at, at + last - first))
        at += last - first + 1 + width
    ranges, narrow = RangeSet(wide), RangeSet(wide, limit=most)
    ranges.coarsen(most)
    assert ranges == narrow
    assert len(ranges) == min(most, len(parts))
    assert ranges.widened == narrow.widened == ranges.total - RangeSet(wide).total
    ranges.coarsen(most)
    assert ranges == narrow


def test_a_set_touches_what_it_has_a_number_of():
    ranges = RangeSet([(3, 4), (8, 12)])
    for first, last in itertools.combinations_with_replacement(range(15), 2):
        assert ranges.touches(first, last) == bool(ranges.within(first, last)), (first, last)
    assert not RangeSet().touches(1, 5)
    with pytest.raises(UsageError, match="empty"):
        ranges.touches(5, 4)


@drawn(4)
def test_a_set_filled_at_once_equals_one_filled_range_by_range(seed):
    draw = random.Random(seed)
    drawn = [(first, first + draw.randrange(6)) for first in draw.choices(range(300), k=40)]
    at_once = RangeSet([(5000, 6000)])
    at_once.replace(drawn)
    assert at_once == RangeSet(drawn)
    assert at_once.latest(3) == list(at_once)[-3:]
    assert at_once.latest(1000) == list(at_once)
    bounded = RangeSet(limit=4)
    bounded.replace(drawn)
    assert len(bounded) == 4
    assert numbers(at_once) <= numbers(bounded)
    assert bounded.widened == bounded.total - at_once.total
    at_once.replace([])
    assert (list(at_once), at_once.latest(3)) == ([], [])
    with pytest.raises(UsageError):
        at_once.replace([(2, 1)])


@drawn(6)
def test_the_latest_of_a_set_and_of_further_ranges_are_those_of_both_together(seed):
    draw = random.Random(seed)

    def some() -> list[tuple[int, int]]:
        firsts = draw.choices(range(300), k=draw.randrange(40))
        return [(first, first + draw.randrange(8)) for first in firsts]

    mine, others = some(), some()
    ranges = RangeSet(mine)
    for most in (1, 3, 1000):
        assert ranges.latest_with(others, most) == RangeSet(mine + others).latest(most)
    assert ranges == RangeSet(mine)
