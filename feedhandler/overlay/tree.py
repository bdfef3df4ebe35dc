"""Shapes of a tree: how many hops, how many children, and who sends to whom.

A message takes `depth` hops from the sender to a receiver. The sender and each proxy have `fan_out`
children; receivers are spread evenly over the last layer of proxies, so that the last hop has its
own fan-out. Layer 0 is what the sender sends to; the last layer (`depth` - 1) are the receivers.

With hedging a proxy also serves the children of its `hedging` neighbours, so a node has 1 +
`hedging` sources: its parent and the siblings before that, wrapping around in the layer ("Jasper",
section 5.1). The sender has no neighbour: layer 0 is served by the sender alone. A proxy sends each
message 1 + `hedging` times as often as it has children, so that its goodput is 1 / (1 + `hedging`)
of its throughput; `hedging` more trees with the same root and leaves compensate for that (5.3,
`merging`).

By default `fan_out` is 10 and `depth` the nearest integer to log10 of the receivers (section 4).
`best_shape` finds the cheapest shape of a linear cost model instead, whose costs `fit_costs`
determines from measurements.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedhandler.codecs.errors import UsageError

if TYPE_CHECKING:
    import numpy

FAN_OUT = 10
#: Limits of a shape: a number beyond is a typing error.
DEPTH_MAX = 8
FAN_OUT_MAX = 4096
RECEIVERS_MAX = 1_000_000
#: Upper limit on hedging: more only costs bandwidth; the first gains most (Figure 5c).
HEDGING_MAX = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a hop and a child, us (section 4, measured by the source on c5.2xlarge).

    base   what does not depend on the shape
    level  one more hop
    child  one more message that a node sends before the one that counts
    """

    level: float = 30.0
    child: float = 2.7
    base: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree's shape. Raises `UsageError` where it is impossible."""

    receivers: int
    depth: int
    fan_out: int
    hedging: int = 0

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("receivers", self.receivers, 1, RECEIVERS_MAX),
            ("depth", self.depth, 1, DEPTH_MAX),
            ("fan-out", self.fan_out, 1, FAN_OUT_MAX),
            ("hedging", self.hedging, 0, HEDGING_MAX),
        ):
            if not least <= value <= most:
                raise UsageError(f"{name} {value}: it goes from {least} to {most}")
        if self.proxies and self.widths[-2] > self.receivers:
            raise UsageError(
                f"depth {self.depth} with fan-out {self.fan_out} has {self.widths[-2]} proxies in"
                f" its last layer, and there are {self.receivers} receivers",
                "less depth or fan-out",
            )
        if self.proxies and self.hedging >= min(self.widths[:-1]):
            raise UsageError(
                f"hedging {self.hedging}: a layer of {min(self.widths[:-1])} proxies has fewer"
                " neighbours",
                "less hedging or more fan-out",
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of each layer, the receivers last."""
        return (*(self.fan_out**n for n in range(1, self.depth)), self.receivers)

    @property
    def proxies(self) -> int:
        """Number of proxies."""
        return sum(self.widths[:-1])

    @property
    def goodput(self) -> float:
        """Share of a proxy's messages that its own children get (section 5.3)."""
        return 1 / (1 + self.hedging)

    @property
    def last_fan_out(self) -> int:
        """Upper limit on the children of a node in the layer before the receivers."""
        return -(-self.receivers // (self.widths[-2] if self.proxies else 1))

    def parents(self, layer: int) -> "numpy.ndarray":
        """Return each node's parent, an index in the layer before; zeros for layer 0. int64,
        (width,)."""
        import numpy  # proxies are smaller, and start faster, without it

        width = self.widths[layer]
        if layer == 0:
            return numpy.zeros(width, numpy.int64)
        return numpy.arange(width, dtype=numpy.int64) * self.widths[layer - 1] // width

    def child_indexes(self, layer: int) -> "numpy.ndarray":
        """Return each node's index among its parent's children, from 0. int64, (width,)."""
        import numpy

        parents = self.parents(layer)
        first = numpy.searchsorted(parents, parents)
        return numpy.arange(len(parents)) - first

    def sources(self, layer: int, index: int) -> tuple[int, ...]:
        """Return the indices of the nodes that send to a node: its parent, then those that hedge.

        They are in the layer before; (0,) stands for the sender in layer 0.
        """
        if layer == 0:
            return (0,)
        before = self.widths[layer - 1]
        parent = index * before // self.widths[layer]
        return tuple((parent - j) % before for j in range(1 + self.hedging))

    def children(self, layer: int, index: int) -> range:
        """Return a node's own children in the next layer; the sender is layer -1."""
        width = self.widths[layer + 1]
        if layer < 0:
            return range(width)
        own = self.widths[layer]
        return range(-(-index * width // own), -(-(index + 1) * width // own))

    def targets(self, layer: int, index: int) -> Iterator[int]:
        """Yield the nodes that a node sends to, in order.

        First its own children, then those of the neighbours that it hedges for, the nearest first.
        """
        yield from self.children(layer, index)
        if layer >= 0:
            for j in range(1, 1 + self.hedging):
                yield from self.children(layer, (index + j) % self.widths[layer])

    def cost(self, costs: Costs) -> float:
        """Return the last receiver's latency by the linear model, us."""
        sent = (self.depth - 1) * self.fan_out + self.last_fan_out
        return costs.base + costs.level * self.depth + costs.child * sent


def default_shape(receivers: int, hedging: int = 0) -> Shape:
    """Return the shape by the source's rule: fan-out 10, depth log10 of the receivers, rounded."""
    depth = min(max(1, round(math.log10(max(receivers, 1)))), DEPTH_MAX)
    return Shape(receivers, depth, FAN_OUT, hedging)


def fan_out_of(receivers: int, depth: int) -> int:
    """Return the fan-out of a depth: equal at all hops, the smallest integer that suffices.

    So the source has 32 for 1,000 receivers in two hops. It is smaller where there would be more
    proxies in the last layer than receivers.
    """
    if depth == 1:
        return receivers
    fan_out = max(1, round(receivers ** (1 / depth)))
    while fan_out**depth < receivers:
        fan_out += 1
    while fan_out > 1 and fan_out ** (depth - 1) > receivers:
        fan_out -= 1
    return fan_out


def best_shape(receivers: int, costs: Costs, hedging: int = 0) -> Shape:
    """Return the cheapest shape of the linear model.

    Raises `UsageError` where no tree has so much hedging.
    """
    found = []
    for depth in range(1, DEPTH_MAX + 1):
        most = math.ceil(receivers ** (1 / max(depth - 1, 1)))
        least = most if depth == 1 else 1  # without proxies the fan-out is the receivers'
        for fan_out in range(min(least, FAN_OUT_MAX), min(most, FAN_OUT_MAX) + 1):
            try:
                found.append(Shape(receivers, depth, fan_out, hedging))
            except UsageError:
                continue
    if not found:
        raise UsageError(
            f"hedging {hedging}: no tree of {receivers} receivers has that many neighbours",
            "less hedging",
        )
    return min(found, key=lambda shape: (shape.cost(costs), shape.proxies))


def fit_costs(measured: Sequence[tuple[Shape, float]]) -> Costs:
    """Fit costs to measured latencies (shape, us of the last receiver), by least squares.

    Raises `UsageError` where the shapes do not separate the costs.
    """
    import numpy

    rows = [
        (1, shape.depth, (shape.depth - 1) * shape.fan_out + shape.last_fan_out)
        for shape, _ in measured
    ]
    matrix = numpy.array(rows or [(0, 0, 0)], float)
    if numpy.linalg.matrix_rank(matrix) < 3:
        raise UsageError(
            "these measurements do not show what a hop costs from what a child costs",
            "measure three shapes or more that differ in both depth and fan-out",
        )
    found, *_ = numpy.linalg.lstsq(matrix, numpy.array([us for _, us in measured]), rcond=None)
    base, level, child = (float(each) for each in found)
    return Costs(level=level, child=child, base=base)
