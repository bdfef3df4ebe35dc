"""Monte Carlo of hedging with uniform hops ("Jasper", section 5.2 and Figure 5).

Each hop's latency is drawn from U(0, 1), independently, and a node takes the first of the copies
that its sources send. Sources of one node have sources in common, so the nodes that can reach one
receiver are simulated as a whole, layer by layer. Without hedging the latency of D hops is a sum of
D uniform draws: mean D / 2, standard deviation sqrt(D / 12).
"""

import numpy

from feedhandler.overlay.tree import FAN_OUT, Shape

#: Messages that are simulated at a time, which bounds the memory.
CHUNK = 16_384


def sources_of_one(shape: Shape) -> list[list[int]]:
    """Return the nodes of each layer that a message to the first receiver may pass, it last."""
    needed = [[0]]
    for layer in range(shape.depth - 1, 0, -1):
        needed.insert(
            0, sorted({source for node in needed[0] for source in shape.sources(layer, node)})
        )
    return needed


def latencies(
    depth: int, hedging: int, iterations: int, rng: numpy.random.Generator
) -> numpy.ndarray:
    """Simulate a receiver's latency in each iteration, in units of a hop. float64, (iterations,).

    A hop is drawn from U(0, 1). Raises `UsageError` where the shape is impossible.
    """
    shape = Shape(FAN_OUT**depth, depth, FAN_OUT, hedging)
    needed = sources_of_one(shape)
    found = [
        _chunk(shape, needed, min(CHUNK, iterations - begin), rng)
        for begin in range(0, iterations, CHUNK)
    ]
    return numpy.concatenate(found) if found else numpy.empty(0)


def _chunk(
    shape: Shape, needed: list[list[int]], count: int, rng: numpy.random.Generator
) -> numpy.ndarray:
    arrived = rng.random((count, len(needed[0])))
    for layer in range(1, shape.depth):
        at = {node: index for index, node in enumerate(needed[layer - 1])}
        columns = [[at[source] for source in shape.sources(layer, n)] for n in needed[layer]]
        copies = arrived[:, numpy.array(columns)]
        arrived = (copies + rng.random(copies.shape)).min(axis=2)
    return arrived[:, 0]
