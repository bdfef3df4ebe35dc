"""The overlay's time, given or estimated, and its steps; clocks are injected."""

import random

import pytest

from feedhandler.overlay.clocks import DRIFT_PPM_MAX, STEP_ANSWERS, STEP_NS, OverlayClock

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000


class Peer:
    """A parent whose time is the local one plus an offset, over a path of two delays."""

    def __init__(self, offset_ns: int, ppm: float = 0) -> None:
        self.clock, self.offset_ns, self.ppm, self.now_ns = OverlayClock(known=False), 0, ppm, 0
        self.offset_ns = offset_ns

    def true_offset_ns(self) -> int:
        return self.offset_ns + round(self.now_ns * self.ppm / 1e6)

    def probe(self, there_ns: int, back_ns: int) -> int:
        asked_ns = self.now_ns
        self.now_ns += there_ns
        received_ns = self.now_ns + self.true_offset_ns()
        self.now_ns += back_ns
        return self.clock.answer(asked_ns, received_ns, received_ns, self.now_ns)


def test_the_probe_of_the_shortest_round_trip_counts() -> None:
    peer = Peer(5 * SECOND)
    peer.probe(900 * US, 100 * US)
    assert abs(peer.clock.offset_ns - peer.offset_ns) == 400 * US
    peer.probe(20 * US, 20 * US)
    assert peer.clock.offset_ns == peer.offset_ns
    peer.probe(900 * US, 100 * US)
    assert peer.clock.offset_ns == peer.offset_ns
    assert peer.clock.known
    assert peer.clock.local_ns(peer.clock.time_ns(7)) == 7


def test_the_estimate_keeps_within_the_error_that_it_tells(seed: int) -> None:
    dice = random.Random(seed)
    peer = Peer(dice.randint(-(10**12), 10**12), ppm=dice.uniform(-DRIFT_PPM_MAX, DRIFT_PPM_MAX))
    for _ in range(500):
        peer.probe(dice.randint(10 * US, MS), dice.randint(10 * US, MS))
        peer.now_ns += 100 * MS
        error_ns = peer.clock.error_ns(peer.now_ns)
        assert abs(peer.clock.offset_ns - peer.true_offset_ns()) <= error_ns + 1
        assert error_ns < MS
    assert peer.clock.steps == 0


@pytest.mark.parametrize("step_ns", [-3_600 * SECOND, -MS, MS, 3_600 * SECOND])
def test_a_step_counts_after_several_answers_agree(step_ns: int) -> None:
    peer = Peer(SECOND)
    peer.probe(20 * US, 20 * US)
    peer.offset_ns += step_ns
    found = [peer.probe(20 * US, 20 * US) for _ in range(STEP_ANSWERS)]
    assert found[:-1] == [0] * (STEP_ANSWERS - 1)
    assert abs(found[-1] - step_ns) <= 40 * US
    assert peer.clock.steps == 1
    assert abs(peer.clock.offset_ns - peer.offset_ns) <= 1


def test_single_answers_that_contradict_one_another_move_nothing(seed: int) -> None:
    dice, peer = random.Random(seed), Peer(SECOND)
    peer.probe(20 * US, 20 * US)
    for at in range(20):
        peer.offset_ns = SECOND + (at + 1) * dice.choice([-SECOND, SECOND])
        peer.probe(20 * US, 20 * US)
    assert peer.clock.offset_ns == SECOND
    peer.offset_ns = SECOND
    assert peer.probe(20 * US, 20 * US) == 0
    assert peer.clock.steps == 0


@pytest.mark.parametrize(
    "times",
    [
        (100, 50, 40, 200),  # left before it came
        (100, 50, 50, 90),  # back before it was asked
        (0, 0, 0, 2 * SECOND),  # too slow
        (0, 0, 500, 400),  # held longer than the round trip took
    ],
)
def test_times_that_cannot_be_are_ignored(times: tuple[int, int, int, int]) -> None:
    clock = OverlayClock(known=False)
    assert clock.answer(*times) == 0
    assert not clock.known


def test_a_wall_clock_counts_at_once_and_its_steps_are_counted() -> None:
    clock = OverlayClock(known=False)
    assert clock.wall(1_000, 5 * SECOND) == 0
    assert clock.known
    assert clock.wall(2_000, 5 * SECOND + 1_000 + STEP_NS - 1) == 0
    assert clock.wall(3_000, 4 * SECOND) < -STEP_NS
    assert clock.time_ns(3_000) == 4 * SECOND
    assert clock.steps == 1
    assert clock.error_ns(3_000) == 0
