"""Techniques over the same draws: who sends to whom, what each costs, what hedging mends."""

import resource

import numpy as np
import pytest

from feedhandler.overlay.simulation import techniques
from feedhandler.overlay.simulation.latency import AWS, Cloud, Weather
from feedhandler.overlay.simulation.techniques import Technique
from feedhandler.overlay.topology import Place, Shape

#: Nothing but the base and the cost of a child: delays can be counted by hand.
STILL = Cloud(**{**dict.fromkeys(AWS.__dict__, 0.0), "base_us": 30.0, "child_us": 3.0})


@pytest.mark.parametrize("shape", [Shape(2, 10, 1, 100), Shape(3, 6, 2, 100), Shape(3, 3, 0, 31)])
def test_parents_and_places_are_those_of_the_planned_tree(shape: Shape) -> None:
    for layer in range(1, shape.depth):
        parent = techniques.parents(shape, layer)
        assert parent.tolist() == [
            shape.parent(Place(layer, index)).index for index in range(shape.widths[layer])
        ]
        position, counts = techniques.positions(parent, shape.widths[layer - 1])
        for index, above in enumerate(parent.tolist()):
            children = shape.own_children(Place(layer - 1, above))
            assert len(children) == counts[above]
            assert children[position[index]].index == index


def test_without_chance_each_delay_is_hops_and_copies_sent_before() -> None:
    weather = Weather(STILL, 1)
    interval = weather.interval(0, 2)
    shape = Shape(2, 3, 1, 9)
    delays = techniques.tree(weather, interval, shape)
    assert delays[0].tolist() == [60 + 3 * (one + two) for one in (1, 2, 3) for two in (1, 2, 3)]
    assert techniques.unicast(weather, interval, shape)[0].tolist() == [
        30 + 3 * place for place in range(1, 10)
    ]


def test_in_turns_each_proxy_of_the_first_layer_is_first_equally_often() -> None:
    weather = Weather(STILL, 1)
    delays = techniques.tree(weather, weather.interval(0, 30), Shape(2, 3, 0, 9), rotate=True)
    assert np.ptp(delays.mean(axis=0).reshape(3, 3), axis=0).max() < 1e-3
    assert np.ptp(delays.mean(axis=0)) > 1


@pytest.mark.random
def test_more_hedging_never_makes_a_message_later(seed: int) -> None:
    weather = Weather(AWS, seed)
    interval = weather.interval(0)
    delays = [techniques.tree(weather, interval, Shape(3, 10, hedge, 300)) for hedge in (0, 1, 2)]
    assert (delays[1] <= delays[0]).all()
    assert (delays[2] <= delays[1]).all()
    assert (delays[1] < delays[0]).any()


@pytest.mark.random
def test_windows_under_spikes_shrink_to_the_sources_shares(seed: int) -> None:
    """Window p99, 0.1 % of hops 2 ms late: H = 1 at most 0.43 of H = 0, H = 2 at most 0.34."""
    spiky = Cloud(**{**AWS.__dict__, "spike_probability": 0.001, "spike_us": 2_000.0})
    weather = Weather(spiky, seed)
    worst = []
    for hedge in (0, 1, 2):
        shape = Shape(2, 10, hedge, 100)
        windows = [
            np.ptp(techniques.tree(weather, weather.interval(number), shape), axis=1)
            for number in range(10)
        ]
        worst.append(np.percentile(np.concatenate(windows), 99))
    assert worst[1] <= 0.43 * worst[0]
    assert worst[2] <= 0.34 * worst[0]


@pytest.mark.random
def test_receivers_that_are_not_hedged_keep_their_own_spikes(seed: int) -> None:
    weather = Weather(AWS, seed)
    shape = Shape(2, 10, 1, 100)
    worst = []
    for receivers_hedged in (True, False):
        windows = [
            np.ptp(
                techniques.tree(
                    weather, weather.interval(number), shape, receivers_hedged=receivers_hedged
                ),
                axis=1,
            )
            for number in range(10)
        ]
        worst.append(np.percentile(np.concatenate(windows), 99))
    assert worst[0] < 0.6 * worst[1]


def test_the_strawman_hedges_too_but_its_hedge_nodes_are_the_bottleneck() -> None:
    weather = Weather(AWS, 1)
    shape = Shape(3, 10, 1, 1000)
    interval = weather.interval(0)
    assert (
        techniques.strawman(weather, interval, shape)
        <= techniques.tree(weather, interval, shape._replace(hedge=0))
    ).all()
    assert techniques.sends(Technique.STRAWMAN, shape) == 100
    assert techniques.sends(Technique.TREE, shape) == 20
    # The source's rate is 5,000 messages a second.
    assert techniques.rate_max(weather, Technique.STRAWMAN, shape) < 5_000
    assert techniques.rate_max(weather, Technique.TREE, shape) > 5_000


def test_draws_are_the_same_whoever_asks_and_in_whatever_order() -> None:
    one, two = Weather(AWS, 3), Weather(AWS, 3)
    late = two.interval(4).node(1, 20)
    assert np.array_equal(one.interval(1).edge(2, 30, 1), two.interval(1).edge(2, 30, 1))
    one.interval(2).node(1, 20)
    assert np.array_equal(one.interval(4).node(1, 20), late)
    assert np.array_equal(two.interval(2).node(1, 20), one.interval(2).node(1, 20))


def test_10_000_receivers_fit_in_memory() -> None:
    weather = Weather(AWS, 1)
    delays = techniques.tree(weather, weather.interval(0), Shape(4, 10, 2, 10_000))
    assert delays.shape == (500, 10_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # KiB: 2 GiB
