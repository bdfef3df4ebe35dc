"""Last hops (model 3) and the liveness of neighbours."""

import random

import pytest

from feedhandler.overlay.last_hop import LAST_HOP_NS_MAX, SAMPLES, VALID_NS, LastHop, LongestHop
from feedhandler.overlay.liveness import GONE_NS, SILENT_NS, Change, Liveness, State


def test_a_receiver_holds_what_its_last_hop_is_shorter() -> None:
    hop = LastHop()
    assert hop.own_ns == hop.extra_ns(0) == 0
    for latency_ns in (9_000, 10_000, 500_000):
        hop.observe(latency_ns)
    assert hop.own_ns == 10_000
    hop.longest(50_000, 100)
    assert hop.extra_ns(100) == 40_000
    hop.longest(5_000, 100)
    assert hop.extra_ns(100) == 0
    hop.longest(1 << 40, 100)
    assert hop.extra_ns(100) == LAST_HOP_NS_MAX - 10_000, "a liar adds no more than the bound"
    assert hop.extra_ns(101 + VALID_NS) == 0


def test_the_own_last_hop_is_that_of_the_last_samples() -> None:
    hop = LastHop()
    for _ in range(SAMPLES):
        hop.observe(90_000)
    for _ in range(SAMPLES):
        hop.observe(-5)
    assert hop.own_ns == 0


def test_the_longest_of_those_told_lately_counts() -> None:
    longest = LongestHop()
    assert longest.longest(0) == (0, 0)
    longest.add("a", 10, 3, 0)
    longest.add("b", 1 << 40, 2, 1)
    assert longest.longest(2) == (LAST_HOP_NS_MAX, 5)
    longest.add("b", 7, 2, 2)
    assert longest.longest(VALID_NS) == (10, 5)
    assert longest.longest(VALID_NS + 1) == (7, 2)


def test_the_extra_hold_makes_the_window_a_quarter(seed: int) -> None:
    """Last hops of 10 to 50 us, which vary by the source's 5.4 us after its optimisations."""
    dice, longest = random.Random(seed), LongestHop()
    means = [dice.randrange(10_000, 50_000) for _ in range(100)]
    hops = [LastHop() for _ in means]
    for at, (hop, mean) in enumerate(zip(hops, means, strict=True)):
        for _ in range(SAMPLES):
            hop.observe(mean + dice.randrange(5_400))
        longest.add(at, hop.own_ns, 1, 0)
    for hop in hops:
        hop.longest(longest.longest(0)[0], 0)
    without, with_hold = [], []
    for _ in range(200):
        took = [mean + dice.randrange(5_400) for mean in means]
        held = [hop.extra_ns(0) + each for hop, each in zip(hops, took, strict=True)]
        without.append(max(took) - min(took))
        with_hold.append(max(held) - min(held))
    assert sorted(with_hold)[100] <= sorted(without)[100] / 4


#: State, input, next state: all of them.
HEARD, SILENCE = "heard", "silence"
TRANSITIONS = [
    (State.NEW, HEARD, State.ALIVE),
    (State.NEW, SILENCE, State.GONE),
    (State.ALIVE, HEARD, State.ALIVE),
    (State.ALIVE, SILENCE, State.SILENT),
    (State.SILENT, HEARD, State.ALIVE),
    (State.SILENT, SILENCE, State.GONE),
    (State.GONE, HEARD, State.ALIVE),
    (State.GONE, SILENCE, State.GONE),
]


def neighbour(state: State) -> tuple[Liveness, int]:
    """Liveness with one neighbour in that state, and the time."""
    liveness = Liveness(["a"], 0)
    if state is State.NEW:
        return liveness, 0
    liveness.heard("a", 0)
    if state is State.ALIVE:
        return liveness, 0
    liveness.tick(SILENT_NS)
    if state is State.SILENT:
        return liveness, SILENT_NS
    liveness.tick(GONE_NS)
    return liveness, GONE_NS


@pytest.mark.parametrize(("state", "given", "wanted"), TRANSITIONS)
def test_every_state_has_an_answer_to_every_input(state: State, given: str, wanted: State) -> None:
    liveness, now_ns = neighbour(state)
    assert liveness.state("a") is state
    if given == HEARD:
        changes = liveness.heard("a", now_ns)
    else:
        assert liveness.tick(max(now_ns, liveness.deadline_ns - 1) if state is not State.GONE
                             else now_ns) == []  # fmt: skip
        changes = liveness.tick(liveness.deadline_ns if state is not State.GONE else now_ns * 2)
    assert changes == ([Change("a", wanted)] if wanted is not state else [])
    assert liveness.state("a") is wanted
    assert liveness.is_gone("a") == (wanted is State.GONE)


def test_neighbours_that_are_others_now_are_new_again() -> None:
    liveness = Liveness(["a", "b", "c"], 0)
    for name in "abc":
        liveness.heard(name, 5)
    liveness.adopt(["a", "b", "d"], 9, anew=["b"])
    states = {name: liveness.state(name) for name in "abd"}
    assert states == {"a": State.ALIVE, "b": State.NEW, "d": State.NEW}
    assert liveness.deadline_ns == 5 + SILENT_NS
