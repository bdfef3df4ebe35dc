"""Chance in whole numbers: known sequences, fair draws, the same in both twins."""

from collections import Counter

from feedhandler._compiled import load_interpreted
from feedhandler.replay.generating.prng import (
    AGAIN_NS_MAX,
    AGAIN_NS_MIN,
    TABLE_ENTRIES,
    Crowd,
    Prng,
    weighted_table,
)

TWIN = load_interpreted("feedhandler.replay.generating.prng")


def test_the_twins_draw_the_same() -> None:
    for seed in (0, 1, 7, 1 << 62):
        one, other = Prng(seed), TWIN.Prng(seed)
        assert [one.next_u32() for _ in range(50)] == [other.next_u32() for _ in range(50)]
        assert [one.below(n) for n in range(50)] == [other.below(n) for n in range(50)]
        assert [one.wait(n * 99) for n in range(50)] == [other.wait(n * 99) for n in range(50)]


def test_draws_are_fair() -> None:
    prng = Prng(3)
    counts = Counter(prng.below(10) for _ in range(20_000))
    assert set(counts) == set(range(10))
    # Five standard deviations of a binomial count.
    assert all(abs(count - 2_000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5 for count in counts.values())
    assert prng.below(0) == prng.below(1) == 0


def test_waits_are_exponential_around_their_mean() -> None:
    prng = Prng(4)
    waits = [prng.wait(10_000) for _ in range(20_000)]
    assert abs(sum(waits) / len(waits) - 10_000) < 5 * 10_000 / len(waits) ** 0.5
    above = sum(wait > 10_000 for wait in waits) / len(waits)
    assert abs(above - 0.3679) < 5 * (0.3679 * 0.6321 / len(waits)) ** 0.5
    assert prng.wait(0) == 0


def test_a_crowd_comes_by_weight() -> None:
    table = weighted_table([3, 1, 0, 4])
    assert len(table) == TABLE_ENTRIES
    eighth = TABLE_ENTRIES // 8
    assert Counter(table.tolist()) == {0: 3 * eighth, 1: eighth, 3: 4 * eighth}
    crowd = Crowd(Prng(1), [3, 1, 0, 4])
    counts = Counter(crowd.draw() for _ in range(8_000))
    assert counts[2] == 0
    assert abs(counts[3] - 4_000) < 5 * (8_000 / 4) ** 0.5


def test_again_is_who_came_some_milliseconds_ago() -> None:
    crowd = Crowd(Prng(1), [1] * 9)
    assert crowd.again(0) == -1
    crowd.note(5, 1_000)
    assert crowd.again(1_000 + AGAIN_NS_MIN - 1) == -1
    assert crowd.again(1_000 + AGAIN_NS_MIN + 1) == 5
    crowd.note(6, 2_000_000)
    assert crowd.again(1_000 + AGAIN_NS_MAX + 1) == 6
    assert crowd.again(2_000_000 + AGAIN_NS_MAX + 1) == -1


def test_a_crowd_remembers_a_bounded_number() -> None:
    crowd = Crowd(Prng(1), [1] * 9)
    for turn in range(40_000):
        crowd.note(turn % 9, turn)
    assert crowd.again(40_000 + AGAIN_NS_MIN) in range(9)
