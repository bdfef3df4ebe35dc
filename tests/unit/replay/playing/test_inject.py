"""The fault injector is a tool that other tests lean on, so it is tested itself."""

import os
from collections import Counter

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.inject import Injector, LineFaults, LineSends

SEED = int(os.environ.get("FEEDHANDLER_SEED", "7"))
RERUN = f"FEEDHANDLER_SEED={SEED} pytest tests/unit/replay/playing/test_inject.py"
COUNT = 80_000

EVERYTHING = LineFaults(
    loss=0.03, duplicate=0.02, reorder=0.05, reorder_distance=16, delay_us=700, jitter_us=300
)


def due_times(count: int = COUNT, gap_ns: int = 10_000) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * gap_ns


def plan_all(injector: Injector, due_ns: np.ndarray, chunk: int = 0) -> list[LineSends]:
    """The whole plan, made in chunks of `chunk` datagrams, or at once."""
    chunk = chunk or len(due_ns)
    parts = [injector.plan(due_ns[at : at + chunk]) for at in range(0, len(due_ns), chunk)]
    parts.append(injector.finish())
    return [
        LineSends(
            *(np.concatenate([getattr(p, name) for p in line]) for name in LineSends.__slots__)
        )
        for line in zip(*parts, strict=True)
    ]


def within_binomial(happened: int, count: int, rate: float) -> bool:
    """Within five standard deviations: a fixed seed passes for good, or the rate is wrong."""
    return abs(happened - count * rate) <= 5 * (count * rate * (1 - rate)) ** 0.5


def test_without_faults_everything_is_sent_once_and_on_time() -> None:
    due_ns = due_times(1_000)
    for sends in plan_all(Injector([LineFaults(), LineFaults()]), due_ns, 77):
        assert sends.index.tolist() == sends.turn.tolist() == list(range(1_000))
        assert sends.due_ns.tolist() == due_ns.tolist()


def test_rates_are_what_was_asked_for() -> None:
    print(f"seed {SEED}: {RERUN}")
    injector = Injector([EVERYTHING, LineFaults(loss=0.5)], SEED)
    sends, _ = plan_all(injector, due_times())
    first, second = injector.counts
    assert within_binomial(first.dropped, COUNT, 0.03)
    assert within_binomial(first.duplicated, COUNT - first.dropped, 0.02)
    assert within_binomial(first.reordered, COUNT - first.dropped, 0.05)
    assert within_binomial(second.dropped, COUNT, 0.5)
    assert first.datagrams == COUNT
    assert first.sends == len(sends) == COUNT - first.dropped + first.duplicated
    assert sorted(Counter(Counter(sends.index.tolist()).values())) == [1, 2]


def test_the_lines_lose_independently() -> None:
    print(f"seed {SEED}: {RERUN}")
    injector = Injector([LineFaults(loss=0.1), LineFaults(loss=0.1)], SEED)
    kept = [set(sends.index.tolist()) for sends in plan_all(injector, due_times())]
    both = COUNT - len(kept[0] | kept[1])
    assert within_binomial(both, COUNT, 0.01)


def test_spared_datagrams_are_never_lost_on_both_lines() -> None:
    print(f"seed {SEED}: {RERUN}")
    injector = Injector([LineFaults(loss=0.3), LineFaults(loss=0.3)], SEED, spare_shared=True)
    kept = [set(sends.index.tolist()) for sends in plan_all(injector, due_times(), 999)]
    assert kept[0] | kept[1] == set(range(COUNT))
    first, second = injector.counts
    assert first.spared == 0
    assert within_binomial(second.spared, COUNT, 0.09)
    assert within_binomial(second.dropped, COUNT, 0.21)


def test_everything_lost_on_a_is_all_spared_on_b() -> None:
    injector = Injector([LineFaults(loss=1.0), LineFaults(loss=1.0)], spare_shared=True)
    a, b = plan_all(injector, due_times(100))
    assert len(a) == 0
    assert b.index.tolist() == list(range(100))
    assert injector.counts[1].spared == 100


def test_what_is_lost_together_is_lost_on_every_line_and_never_spared() -> None:
    print(f"seed {SEED}: {RERUN}")
    injector = Injector([LineFaults()] * 3, SEED, spare_shared=True, together=0.01)
    kept = [set(sends.index.tolist()) for sends in plan_all(injector, due_times(), 999)]
    assert kept[0] == kept[1] == kept[2]
    assert within_binomial(COUNT - len(kept[0]), COUNT, 0.01)
    for counts in injector.counts:
        assert counts.together == counts.dropped == COUNT - len(kept[0])
        assert counts.spared == 0


def test_shared_loss_comes_on_top_of_what_each_line_loses() -> None:
    print(f"seed {SEED}: {RERUN}")
    due_ns = due_times()
    alone = Injector([LineFaults(loss=0.1), LineFaults(loss=0.2)], SEED)
    both = Injector([LineFaults(loss=0.1), LineFaults(loss=0.2)], SEED, together=0.05)
    shared = Injector([LineFaults()], SEED, together=0.05)
    (kept,) = (set(sends.index.tolist()) for sends in plan_all(shared, due_ns))
    for own, all_of_it in zip(plan_all(alone, due_ns), plan_all(both, due_ns, 777), strict=True):
        assert set(all_of_it.index.tolist()) == set(own.index.tolist()) & kept
    for counts, before in zip(both.counts, alone.counts, strict=True):
        assert counts.dropped > before.dropped
        assert counts.together == COUNT - len(kept)
        assert counts.sends == counts.datagrams - counts.dropped + counts.duplicated


@pytest.mark.parametrize("rate", [-0.1, 1.01, float("nan")])
def test_an_impossible_rate_of_shared_loss_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="together is a probability"):
        Injector([LineFaults()], together=rate)


@pytest.mark.parametrize("chunk", [1, 7, 100, 4_096])
def test_the_plan_depends_on_the_seed_and_not_on_the_chunks(chunk: int) -> None:
    due_ns = due_times(5_000)
    whole = plan_all(Injector([EVERYTHING, EVERYTHING], SEED, True, 0.1), due_ns)
    pieces = plan_all(Injector([EVERYTHING, EVERYTHING], SEED, True, 0.1), due_ns, chunk)
    other = plan_all(Injector([EVERYTHING, EVERYTHING], SEED + 1, True, 0.1), due_ns)
    for one, same, different in zip(whole, pieces, other, strict=True):
        for name in LineSends.__slots__:
            assert getattr(one, name).tolist() == getattr(same, name).tolist()
        assert one.index.tolist() != different.index.tolist()
    assert whole[0].index.tolist() != whole[1].index.tolist()


def test_one_fault_does_not_change_what_another_does() -> None:
    due_ns = due_times(5_000)
    (plain,) = plan_all(Injector([LineFaults(loss=0.1)], SEED), due_ns)
    (noisy,) = plan_all(Injector([LineFaults(loss=0.1, reorder=0.2, duplicate=0.2)], SEED), due_ns)
    assert set(plain.index.tolist()) == set(noisy.index.tolist())


def test_reordering_displaces_by_no_more_than_the_distance() -> None:
    print(f"seed {SEED}: {RERUN}")
    distance = 5
    (sends,) = plan_all(
        Injector([LineFaults(reorder=0.2, reorder_distance=distance)], SEED), due_times(), 333
    )
    assert sorted(sends.index.tolist()) == list(range(COUNT))
    late = sends.turn - sends.index
    assert set(late.tolist()) == set(range(distance + 1))
    # Nothing is overtaken by a datagram more than `distance` behind it.
    highest_before = np.maximum.accumulate(sends.index)
    assert int((highest_before - sends.index).max()) <= distance
    assert (np.diff(sends.turn) >= 0).all()


def test_duplicates_follow_their_original_at_once() -> None:
    (sends,) = plan_all(Injector([LineFaults(duplicate=1.0)]), due_times(50))
    assert sends.index.tolist() == [number for number in range(50) for _ in range(2)]


def test_delay_is_fixed_and_jitter_stretches_without_reordering() -> None:
    print(f"seed {SEED}: {RERUN}")
    due_ns = due_times(10_000)
    (fixed,) = plan_all(Injector([LineFaults(delay_us=250)]), due_ns)
    assert (fixed.due_ns - due_ns == 250_000).all()
    (shaken,) = plan_all(Injector([LineFaults(delay_us=250, jitter_us=1_000)], SEED), due_ns, 777)
    late = shaken.due_ns - due_ns
    assert shaken.index.tolist() == list(range(10_000))
    assert (np.diff(shaken.due_ns) >= 0).all()
    assert late.min() >= 250_000
    assert late.max() <= 1_250_000
    assert len(set(late.tolist())) > 1_000


@pytest.mark.parametrize("chunk", [1, 64, 5_000])
def test_sends_of_a_line_never_go_back_in_time(chunk: int) -> None:
    (sends,) = plan_all(Injector([EVERYTHING], SEED), due_times(5_000), chunk)
    assert (np.diff(sends.due_ns) >= 0).all()


def test_what_is_held_back_is_known_until_it_is_sent() -> None:
    injector = Injector([LineFaults(reorder=1.0, reorder_distance=1)], SEED)
    (sends,) = injector.plan(due_times(3))
    assert sends.index.tolist() == [0, 1]
    assert injector.oldest_held == 2
    (rest,) = injector.finish()
    assert rest.index.tolist() == [2]
    assert rest.due_ns.tolist() == [20_000]
    assert injector.oldest_held == 3
    assert injector.counts[0].sends == 3


def test_datagrams_that_a_line_does_not_carry_are_no_loss() -> None:
    injector = Injector([LineFaults(), LineFaults(loss=1.0)], spare_shared=True)
    here = np.array([True, False, True])
    a, b = injector.plan(due_times(3), [here, ~here])
    assert a.index.tolist() == [0, 2]
    assert len(b) == 0
    everything = Injector([LineFaults()], together=1.0)
    everything.plan(due_times(3), [here])
    assert everything.counts[0].together == everything.counts[0].dropped == 2
    assert [counts.datagrams for counts in injector.counts] == [2, 1]
    assert [counts.dropped for counts in injector.counts] == [0, 1]


def test_an_empty_chunk_changes_nothing() -> None:
    injector = Injector([EVERYTHING], SEED)
    (sends,) = injector.plan(np.empty(0, np.int64))
    assert len(sends) == 0
    assert len(injector.finish()[0]) == 0


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        ({"loss": 1.5}, "loss is a probability"),
        ({"duplicate": -0.1}, "duplicate is a probability"),
        ({"reorder": float("nan")}, "reorder is a probability"),
        ({"reorder_distance": 0}, "reorder_distance is 0"),
        ({"delay_us": -1}, "delay_us is -1"),
        ({"jitter_us": 10**9}, "jitter_us is 1000000000"),
    ],
)
def test_impossible_faults_are_refused(faults: dict[str, float], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        LineFaults(**faults)  # type: ignore[arg-type]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed"):
        Injector([LineFaults()], -1)
