"""Ways to bring a message to all receivers, over the same draws: when it reaches each of them.

Each function returns one-way delays in us, of shape (messages, receivers). A tree's edges and nodes
are shared by all below them, as in a real one: who has a slow parent has slow siblings.
"""

import enum

import numpy as np
from numpy.typing import NDArray

from feedhandler.overlay.simulation.latency import Interval, Micros, Weather
from feedhandler.overlay.topology import Shape

Indices = NDArray[np.int64]


class Technique(enum.StrEnum):
    """What a message is sent by."""

    UNICAST = "direct unicast"
    TREE = "tree"
    STRAWMAN = "F+H strawman"


def parents(shape: Shape, layer: int) -> Indices:
    """The index of each node's parent, as `Shape.parent` has it."""
    nodes = np.arange(shape.widths[layer])
    if layer == 0:
        return np.zeros_like(nodes)
    if layer == shape.depth - 1:
        return nodes * shape.last_proxies // shape.receivers
    return nodes // shape.fan_out


def positions(parent: Indices, width_above: int) -> tuple[Indices, Indices]:
    """Each node's place among its parent's children, and the children of each parent."""
    counts = np.bincount(parent, minlength=width_above)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return np.arange(parent.size) - first[parent], counts


def unicast(weather: Weather, interval: Interval, shape: Shape) -> Micros:
    """One copy to each receiver, one after the other."""
    layer = shape.depth - 1
    sent = weather.cloud.child_us * np.arange(1, shape.receivers + 1, dtype=np.float32)
    arrived = interval.edge(layer, shape.receivers) + interval.node(layer, shape.receivers)
    arrived += sent[None, :].astype(np.float32)
    arrived += interval.sender()
    return arrived


def tree(
    weather: Weather,
    interval: Interval,
    shape: Shape,
    rotate: bool = False,
    receivers_hedged: bool = True,
) -> Micros:
    """A tree with the shape's hedging: parent and H siblings send, the first copy counts.

    A proxy serves its own children first, then those of its next siblings. With `rotate` each
    message starts at the next child of the sender.
    """
    above = _first_layer(weather, interval, shape, rotate)
    for layer in range(1, shape.depth):
        last = layer == shape.depth - 1
        hedge = shape.hedge if receivers_hedged or not last else 0
        above = _next_layer(weather, interval, shape, layer, hedge, above)
    return above


def _first_layer(weather: Weather, interval: Interval, shape: Shape, rotate: bool) -> Micros:
    width = shape.widths[0]
    order = np.arange(width)[None, :]
    if rotate:
        order = (order + np.arange(interval.messages)[:, None]) % width
    sent = ((order + 1) * weather.cloud.child_us).astype(np.float32)
    return np.asarray(
        interval.edge(0, width) + interval.node(0, width) + interval.sender() + sent, np.float32
    )


def _next_layer(
    weather: Weather, interval: Interval, shape: Shape, layer: int, hedge: int, above: Micros
) -> Micros:
    parent = parents(shape, layer)
    width_above = above.shape[1]
    position, counts = positions(parent, width_above)
    first: Micros | None = None
    before = np.zeros_like(parent)
    for behind in range(hedge + 1):
        source = (parent - behind) % width_above
        if behind:
            before = before + counts[source]
        sent = ((before + position + 1) * weather.cloud.child_us).astype(np.float32)
        copy = interval.edge(layer, parent.size, behind)
        copy += np.take(above, source, axis=1)
        copy += sent
        first = copy if first is None else np.minimum(first, copy, out=first)
    assert first is not None
    first += interval.node(layer, parent.size)
    return first


def strawman(weather: Weather, interval: Interval, shape: Shape) -> Micros:
    """The source's first design: H hedge nodes beside each F siblings, each serving F^2 nieces.

    A hedge node is one more child of the group's parent, and gets its copy after the F siblings.
    """
    above = _first_layer(weather, interval, shape, rotate=False)
    hedges = _hedge_nodes(weather, interval, shape, 0, np.zeros((interval.messages, 1), np.float32))
    for layer in range(1, shape.depth):
        parent = parents(shape, layer)
        below = _next_layer(weather, interval, shape, layer, 0, above)
        group = parent // shape.fan_out if layer > 1 else np.zeros_like(parent)
        niece, _counts = positions(group, int(group.max()) + 1)
        sent = ((niece + 1) * weather.cloud.child_us).astype(np.float32)
        own = interval.node(layer, parent.size)
        for number, each in enumerate(hedges):
            copy = interval.edge(layer, parent.size, number + 1) + sent + own
            copy += np.take(each, group, axis=1)
            np.minimum(below, copy, out=below)
        if layer < shape.depth - 1:
            hedges = _hedge_nodes(weather, interval, shape, layer, above)
        above = below
    return above


def _hedge_nodes(
    weather: Weather, interval: Interval, shape: Shape, layer: int, above: Micros
) -> list[Micros]:
    """When the hedge nodes of a layer have their copies, one array for each of H."""
    found = []
    for number in range(shape.hedge):
        # Layers of their own, so that the draws are not those of proxies.
        drawn = interval.edge(64 + layer, above.shape[1], number)
        sent = np.float32(weather.cloud.child_us * (shape.fan_out + number + 1))
        start = interval.sender() if layer == 0 else above
        found.append(np.asarray(drawn + start + sent, np.float32))
    return found


def sends(technique: Technique, shape: Shape) -> int:
    """Copies of a message that the busiest host sends."""
    if technique is Technique.UNICAST:
        return shape.receivers
    if technique is Technique.STRAWMAN:
        return shape.fan_out**2
    return shape.fan_out * (shape.hedge + 1)


def rate_max(weather: Weather, technique: Technique, shape: Shape) -> float:
    """Messages a second that the busiest host can send, at `child_us` a copy."""
    return 1e6 / (weather.cloud.child_us * sends(technique, shape))
