"""Delays and lateness: of a receiver, up the tree, and what a liar can do."""

import random

import pytest

from feedhandler.overlay.counters import Counts
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.delays import (
    LATE_IDS_MAX,
    P95,
    SAMPLES_MAX,
    Aggregator,
    DelaySettings,
    DelayWindow,
    FairTally,
    LateIds,
    SetApart,
)
from feedhandler.overlay.wire import DELAY_NS_MAX, QUANTILE_LEVELS, REPORT_IDS_MAX, Report

BOUND = 1_000_000


def quantiles(delay_ns: int) -> tuple[int, ...]:
    return (delay_ns,) * len(QUANTILE_LEVELS)


def report(delay_ns: int, first: int = 0, count: int = 0, late: int = 0, **more: object) -> Report:
    return Report(1, quantiles(delay_ns), first, count, late, **more)  # type: ignore[arg-type]


class Rig:
    """An aggregator, and its counters."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.merging = Aggregator(DelaySettings(delay_ns_max=BOUND), self.counts)

    def merged(self, **reports: Report) -> tuple[Report | None, SetApart | None]:
        for at, (name, each) in enumerate(reports.items()):
            self.merging.add(name, at, each)
        return self.merging.merge()


def test_quantiles_are_by_nearest_rank_and_of_one_interval() -> None:
    window = DelayWindow()
    assert window.take() == ()
    for each in range(100, -1, -1):
        window.add(each - 1)
    assert window.take() == (49, 89, 94, 98, 99, 99)
    assert window.take() == ()


def test_more_delays_than_are_kept_are_sampled_evenly(seed: int) -> None:
    window = DelayWindow(seed)
    for each in range(20 * SAMPLES_MAX):
        window.add(each)
    found = window.take()
    for level, delay in zip(QUANTILE_LEVELS, found, strict=True):
        assert abs(delay / (20 * SAMPLES_MAX) - level / 10_000) < 0.06


def test_late_messages_are_reported_once_and_the_last_ones_of_too_many() -> None:
    late = LateIds()
    late.begin(5)
    for id in (3, 5, 7, 12):
        late.add(id)
    assert late.take(10) == (5, 5, 0b101)
    assert late.take(13) == (10, 3, 0b100)
    assert late.take(13) == (13, 0, 0)
    late.add(20)
    late.add(2_000)
    first, count, bits = late.take(13 + 2 * REPORT_IDS_MAX)
    assert (first, count) == (13 + REPORT_IDS_MAX, REPORT_IDS_MAX)
    assert bits == 1 << (2_000 - first)


def test_late_messages_that_nobody_asks_for_take_no_more_than_their_room() -> None:
    late = LateIds()
    for id in range(1, 100_001):
        late.add(id)
        assert len(late._late) <= LATE_IDS_MAX
    assert late.take(100_001) == (100_001 - 1_024, 1_024, (1 << 1_024) - 1)


def test_maxima_go_up_and_the_silent_are_passed_over() -> None:
    rig = Rig()
    assert rig.merged() == (None, None)
    assert rig.merged(a=report(5), b=report(7)) == (Report(2, quantiles(7)), None)
    assert rig.merged(a=report(6)) == (Report(1, quantiles(6)), None)
    assert rig.counts[C.REPORTS] == 3


def test_late_messages_are_united_wherever_the_reports_begin() -> None:
    rig = Rig()
    merged, _ = rig.merged(a=report(1, 10, 4, 0b1001), b=report(1, 8, 4, 0b0011), c=report(1))
    assert merged == Report(3, quantiles(1), 8, 6, 0b100111)
    merged, _ = rig.merged(a=report(1, 1, 4, 0b1111), b=report(1, 1_020, 8, 0b1))
    assert merged == Report(2, quantiles(1), 4, 1_024, 1 | 1 << 1_016)


def test_a_second_report_in_an_interval_adds_its_messages() -> None:
    rig = Rig()
    rig.merging.add("a", -1, report(9, 1, 2, 0b01))
    assert rig.merged(a=report(3, 3, 2, 0b10))[0] == Report(1, quantiles(3), 1, 4, 0b1001)


def test_a_report_moves_the_maximum_to_its_bound_at_most() -> None:
    rig = Rig()
    assert rig.merged(a=report(5), b=report(DELAY_NS_MAX))[0] == Report(2, quantiles(BOUND))
    assert rig.counts[C.CLAMPED] == 1


@pytest.mark.parametrize(
    ("others", "lie", "apart"),
    [
        (report(100_000), report(DELAY_NS_MAX), True),
        (report(100_000), report(400_001), True),
        (report(100_000), report(400_000), False),
        (report(1_000), report(51_000), False),
        (report(1_000), report(51_001), True),
        (report(1_000, 1, 100), report(1_000, 1, 100, (1 << 26) - 1), True),
        (report(1_000, 1, 100), report(1_000, 1, 100, (1 << 25) - 1), False),
        (report(1_000, 1, 100, 0b111111), report(1_000, 1, 100, (1 << 26) - 1), False),
        (report(1_000, 1, 100), report(1_000, 1, 15, (1 << 15) - 1), False),
    ],
)
def test_an_outlier_among_three_is_set_apart_and_told(
    others: Report, lie: Report, apart: bool
) -> None:
    rig = Rig()
    merged, told = rig.merged(a=others, b=others, liar=lie)
    assert merged is not None
    assert merged.outliers == ((2,) if apart else ())
    assert told == (SetApart(("liar",)) if apart else None)
    assert merged.receivers == (2 if apart else 3)
    if apart:
        assert merged.quantiles_ns == others.quantiles_ns
        assert merged.late == others.late


def test_a_liar_that_reports_alone_is_judged_by_what_the_others_said_last() -> None:
    rig = Rig()
    lie = report(DELAY_NS_MAX)
    rig.merged(a=report(1_000), b=report(1_000), liar=lie)
    rig.merging.add("liar", 2, lie)
    assert rig.merging.merge() == (None, SetApart(("liar",)))
    rig.merging.forget("b")
    rig.merging.add("liar", 2, lie)
    assert rig.merging.merge()[0] == Report(1, quantiles(BOUND))


def test_outliers_of_the_layer_below_go_up_and_a_proxy_is_told_by_name_only() -> None:
    rig = Rig()
    for name in "abc":
        rig.merging.add(name, -1, report(BOUND if name == "c" else 10, outliers=(5,)))
    merged, told = rig.merging.merge()
    assert told == SetApart(("c",))
    assert merged is not None
    assert merged.outliers == (5, 5)
    assert merged.quantiles_ns[P95] == 10


def test_messages_are_judged_once_two_intervals_are_over() -> None:
    tally = FairTally()
    assert tally.settle() == (0, 0)
    tally.add(report(1))
    tally.add(report(1, 1, 10, 0b1))
    assert tally.settle() == (0, 0)
    tally.add(report(1, 1, 10, 0b10))  # another proxy's, of the same messages
    tally.add(report(1, 11, 5))
    assert tally.settle() == (8, 10)
    tally.add(report(1, 9, 4, 0b1111))  # of those that are judged, too late
    assert tally.settle() == (3, 5)
    tally.add(report(1, 1, 4))
    tally.add(report(1, 1 << 40, 4))
    assert tally.settle() == (0, 0)
    tally.begin()
    tally.add(report(1, 1, 1))
    tally.settle()
    assert tally.settle() == (1, 1)


def test_the_union_up_a_tree_is_exact(seed: int) -> None:
    dice, tally = random.Random(seed), FairTally()
    late: set[int] = set()
    windows = [LateIds() for _ in range(9)]
    for each in windows:
        each.begin(1)
    fair = total = 0
    for end in range(101, 2_002, 100):
        rigs = [Rig() for _ in range(3)]
        for at, window in enumerate(windows):
            for id in range(end - 100, end):
                if dice.random() < 0.002:
                    late.add(id)
                    window.add(id)
            rigs[at % 3].merging.add(f"{at}", at, Report(1, quantiles(5), *window.take(end)))
        for rig in rigs:
            merged, _ = rig.merging.merge()
            assert merged is not None
            tally.add(merged)
        fair, total = (a + b for a, b in zip((fair, total), tally.settle(), strict=True))
    for _ in range(2):
        fair, total = (a + b for a, b in zip((fair, total), tally.settle(), strict=True))
    assert (fair, total) == (2_000 - len(late), 2_000)
