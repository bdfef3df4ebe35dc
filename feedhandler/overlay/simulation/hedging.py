"""Monte Carlo of hedging (section 5.2, Figure 5): latency of one node, hops uniform in (0, 1).

The node's sources share ancestors, and so do theirs; drawing each path anew would make hedging look
better than it is. All nodes that can reach the node are drawn, each edge once an iteration: a few
siblings a layer, which wrap in the layer as in the tree.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Iterations drawn at once: a layer's array stays within the processor's cache.
CHUNK = 10_000


@dataclass(frozen=True)
class Drawn:
    """Latencies of the node, sorted, in units of a hop's longest."""

    latencies: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean latency."""
        return float(self.latencies.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return float(self.latencies.std(ddof=1))


def cone(depth: int, fan_out: int, hedge: int, index: int) -> list[list[int]]:
    """The nodes of each layer that can reach node `index` of the last, which comes last.

    Raises `ValueError` where a layer would have the same sibling twice.
    """
    if depth < 1 or hedge < 0 or (depth > 1 and hedge >= fan_out):
        raise ValueError(f"depth {depth}, fan-out {fan_out}, hedge {hedge}: no tree")
    layers = [[index]]
    for layer in range(depth - 2, -1, -1):
        width = fan_out ** (layer + 1)
        found = {
            (node // fan_out - behind) % width for node in layers[0] for behind in range(hedge + 1)
        }
        layers.insert(0, sorted(found))
    return layers


def simulate(
    depth: int, hedge: int, iterations: int = 100_000, seed: int = 1, fan_out: int = 10
) -> Drawn:
    """Draw the latency from the sender to the last layer's first node."""
    layers = cone(depth, fan_out, hedge, 0)
    rng = np.random.Generator(np.random.SFC64([seed, depth, hedge]))
    found = []
    for start in range(0, iterations, CHUNK):
        count = min(CHUNK, iterations - start)
        found.append(_chunk(layers, fan_out, hedge, count, rng))
    return Drawn(np.sort(np.concatenate(found)))


def _chunk(
    layers: list[list[int]], fan_out: int, hedge: int, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    above = rng.random((count, len(layers[0])))
    for layer in range(1, len(layers)):
        width = fan_out**layer
        column = {node: place for place, node in enumerate(layers[layer - 1])}
        below = np.empty((count, len(layers[layer])))
        for place, node in enumerate(layers[layer]):
            sources = [column[(node // fan_out - behind) % width] for behind in range(hedge + 1)]
            below[:, place] = (above[:, sources] + rng.random((count, hedge + 1))).min(axis=1)
        above = below
    return above[:, 0]


def exact(depth: int) -> tuple[float, float]:
    """Mean and deviation without hedging: the sum of `depth` uniform hops."""
    return depth / 2, float((depth / 12) ** 0.5)
