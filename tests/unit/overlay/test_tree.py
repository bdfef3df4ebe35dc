"""Shapes of the overlay's trees: layers, who sends to whom, the cheapest shape of a cost model."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.tree import (
    Costs,
    Shape,
    best_shape,
    default_shape,
    fan_out_of,
    fit_costs,
)


@pytest.mark.parametrize(
    ("receivers", "depth"),
    [(1, 1), (10, 1), (31, 1), (32, 2), (100, 2), (316, 2), (317, 3), (1_000, 3), (10_000, 4)],
)
def test_the_default_depth_is_the_logarithm_rounded(receivers: int, depth: int) -> None:
    shape = default_shape(receivers)
    assert (shape.depth, shape.fan_out) == (depth, 10)


SHAPES = [
    Shape(7, 1, 1), Shape(100, 2, 10, 1), Shape(100, 3, 4, 2), Shape(37, 3, 3, 2),
    Shape(1_000, 3, 10, 2), Shape(5, 2, 5, 4), Shape(317, 3, 10, 0),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whom_a_node_sends_to_is_who_has_it_as_a_source(shape: Shape) -> None:
    for layer in range(shape.depth):
        width = shape.widths[layer]
        before = shape.widths[layer - 1] if layer else 1
        served = {
            (node, child) for node in range(before) for child in shape.targets(layer - 1, node)
        }
        listed = {(node, child) for child in range(width) for node in shape.sources(layer, child)}
        assert served == listed
        assert len(listed) == width * (1 if layer == 0 else 1 + shape.hedging)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_receivers_are_even_over_the_last_layer(shape: Shape) -> None:
    before = shape.widths[-2] if shape.proxies else 1
    last = shape.depth - 2
    counts = [len(shape.children(last, node)) for node in range(before)]
    assert sum(counts) == shape.receivers
    assert max(counts) - min(counts) <= 1
    assert max(counts) == shape.last_fan_out
    parents, indexes = shape.parents(shape.depth - 1), shape.child_indexes(shape.depth - 1)
    for node in range(before):
        assert [int(index) for index in indexes[parents == node]] == list(range(counts[node]))


def test_hedging_reaches_the_children_of_the_nearest_neighbours_around_the_end() -> None:
    shape = Shape(9, 3, 3, 1)
    assert list(shape.targets(0, 2)) == [6, 7, 8, 0, 1, 2]
    assert shape.sources(1, 0) == (0, 2)
    assert shape.sources(0, 2) == (0,)
    assert shape.goodput == 0.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0, 1, 1, 0), "receivers 0"), ((10, 9, 1, 0), "depth 9"), ((10, 2, 0, 0), "fan-out 0"),
        ((10, 2, 2, 9), "hedging 9"), ((10, 3, 4, 0), "16 proxies in its last layer"),
        ((10, 2, 2, 2), "fewer neighbours"),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_is_refused(given: tuple[int, int, int, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Shape(*given)


@pytest.mark.parametrize(
    ("receivers", "depth", "fan_out"),
    [(1_000, 2, 32), (1_000, 3, 10), (1_000, 4, 6), (100, 1, 100), (100, 3, 5), (2, 3, 1)],
)
def test_the_fan_out_of_a_depth_is_the_least_that_suffices(
    receivers: int, depth: int, fan_out: int
) -> None:
    assert fan_out_of(receivers, depth) == fan_out


@pytest.mark.parametrize(("receivers", "depth"), [(5, 1), (10, 1), (100, 2), (1_000, 3)])
def test_the_linear_model_finds_the_depths_that_the_source_found(
    receivers: int, depth: int
) -> None:
    assert best_shape(receivers, Costs()).depth == depth


def test_no_tree_has_fewer_proxies_than_neighbours() -> None:
    assert best_shape(1, Costs(), 3) == Shape(1, 1, 1, 3)  # no proxy, no child to help
    assert best_shape(1_000_000, Costs()).depth > 3
    with pytest.raises(UsageError, match="hedging 9"):
        best_shape(100, Costs(), 9)


def test_costs_are_found_again_in_latencies_made_of_them() -> None:
    costs = Costs(level=25.0, child=3.5, base=12.0)
    shapes = [Shape(100, 1, 1), Shape(100, 2, 10), Shape(1_000, 3, 10), Shape(1_000, 2, 32)]
    found = fit_costs([(shape, shape.cost(costs)) for shape in shapes])
    assert (found.level, found.child, found.base) == pytest.approx((25.0, 3.5, 12.0))


@pytest.mark.parametrize("shapes", [[], [Shape(100, 2, 10)] * 5], ids=["none", "all alike"])
def test_costs_that_cannot_be_told_apart_are_refused(shapes: list[Shape]) -> None:
    with pytest.raises(UsageError, match="do not show"):
        fit_costs([(shape, 100.0) for shape in shapes])
