"""Schedules against exact arithmetic: however long the stream, however it is cut, nothing drifts.

Each due time is held against the same formula in fractions, computed from the stream's start alone;
a schedule that added up distances would leave the nanosecond's tolerance within a few chunks.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from feedhandler.replay.playing.pace import (
    FRAME_BYTES_MIN,
    FRAME_OVERHEAD_BYTES,
    Pace,
    PaceKind,
    Schedule,
)

MONTH_NS = 30 * 86_400 * 10**9
RATES = some.one_of(
    some.integers(1, 10**10).map(float),
    some.floats(0.001, 1e10, allow_nan=False),
)


def exact_ns(pace: Pace, times: list[int], lengths: list[int]) -> list[Fraction]:
    """Return when each packet is due, from the start, in fractions of a nanosecond."""
    value, answer, bits, latest = Fraction(pace.value), [], 0, Fraction(0)
    for position, (at, length) in enumerate(zip(times, lengths, strict=True)):
        if pace.kind is PaceKind.ORIGINAL:
            due = (at - times[0]) / value
        elif pace.kind is PaceKind.PACKETS:
            due = position * 10**9 / value
        else:
            due = bits * 10**9 / value
        if pace.kind is PaceKind.FRAME_BITS:
            length = max(length + FRAME_OVERHEAD_BYTES, FRAME_BYTES_MIN)
        bits += 8 * length
        latest = max(latest, due)
        answer.append(latest)
    return answer


def scheduled(pace: Pace, times: list[int], lengths: list[int], cuts: list[int]) -> list[int]:
    schedule, answer = Schedule(pace), []
    edges = sorted({0, len(times), *(cut % (len(times) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        part = schedule.due_ns(
            np.array(times[begin:end], np.int64), np.array(lengths[begin:end], np.uint32)
        )
        answer += part.tolist()
    return answer


@given(
    kind=some.sampled_from(
        [PaceKind.ORIGINAL, PaceKind.PACKETS, PaceKind.FRAME_BITS, PaceKind.PAYLOAD_BITS]
    ),
    rate=RATES,
    distances=some.lists(some.integers(-(10**9), 10**12), min_size=1, max_size=60),
    lengths=some.lists(some.integers(0, 9_000), min_size=60, max_size=60),
    cuts=some.lists(some.integers(0, 60), max_size=6),
)
def test_every_due_time_is_the_exact_one_to_the_nanosecond_however_it_is_cut(
    kind: PaceKind, rate: float, distances: list[int], lengths: list[int], cuts: list[int]
) -> None:
    times = np.cumsum([1_700_000_000 * 10**9, *distances[1:]]).tolist()
    lengths = lengths[: len(times)]
    pace = Pace(kind, rate)
    expected = exact_ns(pace, times, lengths)
    if expected[-1] > 2**62:
        return  # centuries: more than due times can hold
    found = scheduled(pace, times, lengths, cuts)
    assert found == scheduled(pace, times, lengths, [])
    assert found == sorted(found)
    for due, exact in zip(found, expected, strict=True):
        # A double holds 53 bits: beyond a hundred days a nanosecond is less than its last one.
        assert abs(due - exact) <= 1 + exact / 2**51


@pytest.mark.parametrize("value", [7_100.0, 3.0, 1e6 / 3, 199_999.9])
def test_a_month_of_packets_ends_at_the_exact_moment(value: float) -> None:
    schedule = Schedule(Pace(PaceKind.PACKETS, value))
    count = int(value * MONTH_NS / 1e9)
    schedule._packets = count - 3
    last = schedule.due_ns(np.zeros(3, np.int64), np.zeros(3, np.uint32))
    for position, due in zip(range(count - 3, count), last.tolist(), strict=True):
        assert abs(due - position * 10**9 / Fraction(value)) <= 1


@pytest.mark.parametrize("megabits", [40.0, 1_000.0, 33.3])
def test_a_month_of_frames_ends_at_the_exact_moment(megabits: float) -> None:
    pace = Pace(PaceKind.FRAME_BITS, megabits * 1e6)
    schedule = Schedule(pace)
    # Chunks of a million bits and odd sizes, a thousand of them, then where a month has got to.
    lengths = np.array([287, 1_400, 18, 0, 999] * 200, np.uint32)
    bits = 0
    for _ in range(20):
        last = schedule.due_ns(np.zeros(len(lengths), np.int64), lengths)
        bits += int((np.maximum(lengths.astype(int) + 42, 60) * 8).sum())
    first_of_next = schedule.due_ns(np.zeros(1, np.int64), lengths[:1])
    assert abs(int(first_of_next[0]) - bits * 10**9 / Fraction(pace.value)) <= 1
    assert last[-1] < first_of_next[0]
    bits = schedule._bits = math.floor(pace.value) * 30 * 86_400
    (due,) = schedule.due_ns(np.zeros(1, np.int64), lengths[:1]).tolist()
    assert abs(due - bits * 10**9 / Fraction(pace.value)) <= 1


@given(
    distances=some.lists(some.integers(0, 3_000_000), min_size=2, max_size=80),
    ceiling=some.integers(1, 10**6),
    cuts=some.lists(some.integers(0, 80), max_size=6),
)
def test_a_ceiling_holds_in_every_stretch_and_delays_nothing_longer_than_it_must(
    distances: list[int], ceiling: int, cuts: list[int]
) -> None:
    times = np.cumsum(distances).tolist()
    pace = Pace(packets_max=float(ceiling))
    found = scheduled(pace, times, [100] * len(times), cuts)
    assert found == scheduled(pace, times, [100] * len(times), [])
    gap = Fraction(10**9, ceiling)
    latest = Fraction(-(10**18))
    for due, at in zip(found, times, strict=True):
        wanted = Fraction(at - times[0])
        latest = max(wanted, latest + gap)
        assert abs(due - latest) <= 2
