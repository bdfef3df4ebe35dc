"""Rates, lateness and the time left, for any reader and however often."""

import dataclasses

from feedhandler.replay.playing.rates import LOOK_NS, Sample, Watch

SECOND = 1_000_000_000


def sample(seconds: float, sent: int, share: float, turn: int = 0, late_ns: int = 0) -> Sample:
    return Sample(round(seconds * SECOND), sent, late_ns, turn, share)


def test_before_anything_is_sent_nothing_is_known() -> None:
    progress = Watch().update(sample(0, 0, 0.0))
    assert (progress.datagrams_per_second, progress.lateness_ns, progress.left_ns) == (0.0, 0, None)


def test_rates_and_lateness_are_of_the_latest_stretch() -> None:
    watch = Watch()
    watch.update(sample(0, 0, 0.0))
    first = watch.update(sample(1, 1_000, 0.1, late_ns=5_000_000))
    assert (first.datagrams_per_second, first.lateness_ns) == (1_000, 5_000)
    second = watch.update(sample(2, 4_000, 0.4, late_ns=11_000_000))
    assert (second.datagrams_per_second, second.lateness_ns) == (3_000, 2_000)
    idle = watch.update(sample(3, 4_000, 0.4, late_ns=11_000_000))
    assert (idle.datagrams_per_second, idle.lateness_ns) == (0, 2_000)


def test_looks_in_quick_succession_change_no_rate() -> None:
    watch = Watch()
    watch.update(sample(0, 0, 0.0))
    assert watch.update(sample(1, 1_000, 0.1)).datagrams_per_second == 1_000
    step = LOOK_NS / SECOND / 4
    for number in range(1, 4):
        now = sample(1 + number * step, 1_000 + number * 500, 0.1)
        assert watch.update(now).datagrams_per_second == 1_000
    assert watch.update(sample(1 + 4 * step, 3_000, 0.1)).datagrams_per_second == 2_000 / (4 * step)


def test_the_first_rate_does_not_wait_for_a_whole_stretch() -> None:
    watch = Watch()
    watch.update(sample(0, 0, 0.0))
    assert watch.update(sample(0.01, 50, 0.1)).datagrams_per_second == 5_000
    assert watch.update(sample(0.2, 100, 0.1)).datagrams_per_second == 500


def test_the_time_left_comes_from_what_was_played_of_this_turn() -> None:
    watch = Watch()
    watch.update(sample(0, 0, 0.0))
    assert watch.update(sample(10, 10, 0.25)).left_ns == 30 * SECOND
    assert watch.update(sample(11, 11, 0.5, turn=1)).left_ns is None
    assert watch.update(sample(12, 12, 0.5, turn=1)).left_ns is None
    assert watch.update(sample(13, 13, 0.6, turn=1)).left_ns == 8 * SECOND


def test_a_pause_in_which_the_clock_stands_still_changes_nothing() -> None:
    watch = Watch()
    watch.update(sample(0, 0, 0.0))
    now = sample(2, 2_000, 0.5)
    assert watch.update(now) == watch.update(dataclasses.replace(now))
