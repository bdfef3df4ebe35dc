"""The Monte Carlo of hedging: exact moments, shared ancestors, the source's takeaways."""

import itertools

import numpy as np
import pytest

from feedhandler.overlay.simulation import hedging

ITERATIONS = 100_000


@pytest.mark.random
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_without_hedging_mean_and_deviation_are_the_exact_ones(depth: int, seed: int) -> None:
    drawn = hedging.simulate(depth, 0, ITERATIONS, seed)
    mean, deviation = hedging.exact(depth)
    # Six standard errors; the deviation's is at most deviation / sqrt(2 n) for sums of uniforms.
    assert abs(drawn.mean - mean) < 6 * deviation / ITERATIONS**0.5
    assert abs(drawn.deviation - deviation) < 6 * deviation / (2 * ITERATIONS) ** 0.5


def test_two_hops_with_one_hedge_have_the_exact_mean() -> None:
    """The least of two independent sums of two uniforms has the mean 2 - 37/30 = 23/30."""
    drawn = hedging.simulate(2, 1, ITERATIONS)
    assert abs(drawn.mean - 23 / 30) < 6 * drawn.deviation / ITERATIONS**0.5


@pytest.mark.random
def test_the_takeaways_of_figure_5_hold(seed: int) -> None:
    drawn = {
        (depth, hedge): hedging.simulate(depth, hedge, 50_000, seed)
        for depth in (1, 2, 3, 4)
        for hedge in (0, 1, 2, 3)
    }
    plain = [drawn[depth, 0].deviation for depth in (1, 2, 3, 4)]
    assert all(one < two for one, two in itertools.pairwise(plain))
    for depth in (2, 3, 4):
        hedged = [drawn[depth, hedge] for hedge in (0, 1, 2, 3)]
        for one, two in itertools.pairwise(hedged):
            assert two.mean < one.mean
            assert two.deviation < one.deviation
        gains = [one.mean - two.mean for one, two in itertools.pairwise(hedged)]
        assert gains == sorted(gains, reverse=True)
    grown = [drawn[4, hedge].deviation - drawn[2, hedge].deviation for hedge in (0, 1)]
    assert grown[1] < grown[0]


def test_sources_share_ancestors_and_wrap_in_their_layer() -> None:
    assert hedging.cone(3, 3, 1, 0) == [[0, 1, 2], [0, 8], [0]]
    assert hedging.cone(3, 3, 0, 26) == [[2], [8], [26]]


@pytest.mark.parametrize(("depth", "fan_out", "hedge"), [(0, 3, 0), (2, 3, 3), (2, 3, -1)])
def test_what_is_no_tree_is_refused(depth: int, fan_out: int, hedge: int) -> None:
    with pytest.raises(ValueError, match="no tree"):
        hedging.cone(depth, fan_out, hedge, 0)


def test_the_same_seed_draws_the_same() -> None:
    one, two = (hedging.simulate(3, 1, 1_000, 7).latencies for _ in range(2))
    assert np.array_equal(one, two)
