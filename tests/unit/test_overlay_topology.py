"""The overlay's trees: shapes, who sends to whom, cost models, shards."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.topology import (
    SENDER_PLACE,
    LinearCost,
    Member,
    Place,
    Role,
    Shape,
    Topology,
    fit,
    goodput,
    plan_shape,
    shard,
    trees_for_whole_goodput,
)
from tests.support.overlay import tree

SHAPES = [
    Shape(1, 5, 0, 5),
    Shape(2, 3, 1, 7),
    Shape(2, 10, 2, 100),
    Shape(3, 3, 2, 10),
    Shape(4, 2, 1, 9),
    Shape(3, 1, 0, 4),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_sources_and_children_are_the_same_edges(shape: Shape) -> None:
    topology = tree(shape)
    down = {(m.name, c.name) for m in topology.members for c in topology.children(m)}
    up = {(s.name, m.name) for m in topology.members for s in topology.sources(m)}
    assert down == up
    for member in topology.members:
        sources = topology.sources(member)
        hedged = member.layer > 0
        assert len(sources) == (0 if member.layer < 0 else shape.hedge + 1 if hedged else 1)
        own = topology.own_children(member)
        assert topology.children(member)[: len(own)] == own
        assert all(topology.sources(child)[0] is member for child in own)


@pytest.mark.parametrize("shape", SHAPES)
def test_receivers_are_spread_evenly(shape: Shape) -> None:
    above = [Place(shape.depth - 2, at) for at in range(shape.last_proxies)]
    counts = [len(shape.own_children(each)) for each in above] if shape.depth > 1 else [5]
    assert sum(counts) == shape.receivers
    assert max(counts) - min(counts) <= 1


def test_hedging_wraps_in_the_layer() -> None:
    shape = Shape(2, 3, 1, 6)
    assert shape.sources(Place(1, 0)) == [Place(0, 0), Place(0, 2)]
    assert shape.sources(Place(1, 5)) == [Place(0, 2), Place(0, 1)]
    assert shape.children(Place(0, 2)) == [Place(1, 4), Place(1, 5), Place(1, 0), Place(1, 1)]
    assert shape.parent(Place(0, 2)) == SENDER_PLACE
    assert shape.goodput == 0.5


@pytest.mark.parametrize(
    ("receivers", "given", "wanted"),
    [
        (1, {}, (1, 1)),
        (10, {}, (1, 10)),
        (31, {}, (1, 31)),
        (32, {}, (2, 10)),
        (100, {}, (2, 10)),
        (1000, {}, (3, 10)),
        (100, {"depth": 3, "fan_out": 5}, (3, 5)),
        (100, {"depth": 3}, (3, 10)),
        (10, {"cost": LinearCost()}, (1, 10)),
        (100, {"cost": LinearCost()}, (2, 10)),
        (1000, {"cost": LinearCost()}, (3, 10)),
        (100, {"cost": LinearCost(), "depth": 1}, (1, 100)),
    ],
)
def test_the_shape_follows_the_rule_the_model_or_what_is_given(
    receivers: int, given: dict, wanted: tuple[int, int]
) -> None:
    shape = plan_shape(receivers, hedge=1, **given)
    assert (shape.depth, shape.fan_out) == wanted
    assert shape.hedge == (shape.depth > 1)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(0, 3, 0, 3), Shape(10, 1, 0, 3), Shape(2, 0, 0, 3), Shape(2, 3, -1, 3),
        Shape(2, 3, 0, 0), Shape(2, 3, 3, 9), Shape(3, 3, 1, 8), Shape(5, 10, 1, 15_000),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused_with_a_remedy(shape: Shape) -> None:
    with pytest.raises(UsageError) as error:
        shape.check()
    assert error.value.hint


def test_no_receivers_are_no_tree() -> None:
    with pytest.raises(UsageError):
        plan_shape(0)


def test_a_fitted_model_finds_the_costs_that_made_the_measurements() -> None:
    rows = [(d, f, 30.0 * d + 2.7 * d * f) for d, f in [(1, 10), (2, 10), (3, 5), (3, 10)]]
    cost = fit(rows)
    assert cost.level_us == pytest.approx(30)
    assert cost.child_us == pytest.approx(2.7)
    with pytest.raises(UsageError):
        fit([(1, 10, 66.0), (2, 10, 139.0)])


def test_channels_are_sharded_whole_or_numbered_and_symbols_are_refused() -> None:
    assert shard(["a", "b", "c"], 2) == {"a": (0,), "b": (1,), "c": (0,)}
    assert shard(["a"], 3, "number") == {"a": (0, 1, 2)}
    with pytest.raises(UsageError, match="numbering"):
        shard(["a"], 2, "symbol")
    with pytest.raises(UsageError):
        shard(["a"], 0)


@pytest.mark.parametrize("hedge", [0, 1, 2])
def test_so_many_trees_as_copies_make_the_goodput_whole(hedge: int) -> None:
    assert goodput(hedge) == pytest.approx(1 / (hedge + 1))
    assert goodput(hedge, trees_for_whole_goodput(hedge)) == pytest.approx(1)


def test_a_member_is_replaced_in_the_next_version() -> None:
    old = tree()
    new = old.replaced("proxy-0-1", ("10.0.0.2", 9), bytes(32))
    assert new.version == old.version + 1
    assert new.member("proxy-0-1") == old.member("proxy-0-1")._replace(
        address=("10.0.0.2", 9), key=bytes(32)
    )
    assert sum(a != b for a, b in zip(old.members, new.members, strict=True)) == 1
    with pytest.raises(UsageError, match="the key of the one"):
        old.replaced("proxy-0-1", ("10.0.0.2", 9), old.member("proxy-0-1").key)
    with pytest.raises(UsageError, match="no member"):
        old.replaced("nobody", ("10.0.0.2", 9), bytes(32))


def changed(at: int, **fields: object) -> list[Member]:
    members = list(tree().members)
    members[at] = members[at]._replace(**fields)  # type: ignore[arg-type]
    return members


@pytest.mark.parametrize(
    "members",
    [
        changed(1, role=Role.RECEIVER),
        changed(1, layer=5),
        changed(1, layer=-2),
        changed(1, index=3),
        changed(1, index=1),
        changed(1, name="proxy-0-1"),
        changed(1, address=("10.0.0.1", 3)),
        list(tree().members)[:-1],
        [*tree().members, tree().members[-1]],
    ],
)
def test_members_that_do_not_fill_the_tree_are_refused(members: list[Member]) -> None:
    with pytest.raises(UsageError):
        Topology(1, 7, tree().shape, bytes(32), members)


def test_a_trees_number_has_16_bits() -> None:
    with pytest.raises(UsageError):
        tree(number=1 << 16)
