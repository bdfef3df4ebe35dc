"""A model of latency in a cloud region, and trees simulated in it, message by message.

A node sends its copies one after the other, each `child_us` after the one before. A hop then takes
`hop_us`, plus noise that is drawn for each copy from a log-normal distribution, plus what the
receiving machine costs more than the best one does: a constant of that machine, exponential with
mean `machine_us`, as machines in a cloud differ ("Jasper", section 4). A copy may meet a spike:
with probability `spike_share` it takes an exponential time of mean `spike_us` more. The noise of
all hops varies with the time of day (`drift`), second by second.

`SOURCE` has the constants for which this comes near to what the source measured on AWS (Table 1,
Figure 8c, Table 3), `GCP` those for its Table 4. They were found by a search over all of them at
once, so agreement with those figures is a fit, not a prediction; everything else is.

Different techniques are compared on one trace: the draws of a copy are the same whatever else is
sent (`Trace`), as the source interleaves techniques message by message (9.2).
"""

from dataclasses import dataclass

import numpy

from feedhandler.overlay.holding import Delays
from feedhandler.overlay.tree import Shape

#: Upper limit on draws in memory, 4 bytes each: some 300 MB with what is computed from them.
DRAWS_MAX = 12_000_000
#: Messages a second in the source's experiments, for a second of drift.
MESSAGES_A_SECOND = 5_000


@dataclass(frozen=True, slots=True)
class CloudModel:
    """Constants of the model; see the module. Times in us, shares from 0 to 1."""

    hop_us: float
    child_us: float
    noise_us: float
    noise_sigma: float
    machine_us: float
    spike_share: float
    spike_us: float
    drift: float
    #: Standard deviation of a receiver's clock error after synchronisation.
    clock_us: float = 0.1
    #: Mean lateness of a release: a thread wakes up a little late.
    release_us: float = 0.2


SOURCE = CloudModel(
    hop_us=3.1, child_us=3.0, noise_us=14.4, noise_sigma=0.445, machine_us=8.8,
    spike_share=0.0008, spike_us=113.0, drift=0.05,
)  # fmt: skip
GCP = CloudModel(
    hop_us=49.0, child_us=0.8, noise_us=14.4, noise_sigma=0.445, machine_us=3.5,
    spike_share=0.0008, spike_us=113.0, drift=0.05,
)  # fmt: skip


def _chunk(shape: Shape) -> int:
    """Return how many messages are drawn at a time.

    It is the same for all trees of some receivers, or their draws would differ.
    """
    return max(1, DRAWS_MAX // (4 * max(shape.widths)))


def _earliest(hops: numpy.ndarray) -> numpy.ndarray:
    """Return the least of the last axis: copy by copy, several times faster than `min` of a short
    axis."""
    least = hops[:, :, 0].copy()
    for number in range(1, hops.shape[2]):
        numpy.minimum(least, hops[:, :, number], out=least)
    return least


class Trace:
    """Conditions of one run: machines, drift, and draws that are the same for every technique."""

    def __init__(self, model: CloudModel, seed: int) -> None:
        self.model = model
        self._seed = seed

    def machines(self, layer: int, width: int, last: bool) -> numpy.ndarray:
        """Return what each machine of a layer costs more than the best one, us. float32, (width,).

        Receivers are the same machines in every tree.
        """
        rng = numpy.random.default_rng((self._seed, 1, 999 if last else layer))
        return rng.exponential(self.model.machine_us, width).astype(numpy.float32)

    def drift(self, messages: int) -> numpy.ndarray:
        """Return the factor of all noise for each message. float32, (messages, 1, 1)."""
        rng = numpy.random.default_rng((self._seed, 2))
        seconds = -(-messages // MESSAGES_A_SECOND)
        level = numpy.empty(seconds)
        now = rng.standard_normal()
        for second in range(seconds):
            level[second] = now
            now = 0.9 * now + 0.19**0.5 * rng.standard_normal()
        factor = numpy.exp(self.model.drift * level).astype(numpy.float32)
        return numpy.repeat(factor, MESSAGES_A_SECOND)[:messages, None, None]

    def hops(self, begin: int, shape: tuple[int, int, int], layer: int) -> numpy.ndarray:
        """Return the latency of hops without the machine, us, for messages from `begin` on.

        float32, `shape`, which is (messages, nodes, copies). The first copies are the same however
        many there are.
        """
        model = self.model
        messages, nodes, copies = shape
        hops = numpy.empty(shape, numpy.float32)
        for copy in range(copies):
            rng = numpy.random.default_rng((self._seed, 3, layer, copy, begin))
            noise = rng.standard_normal((messages, nodes), numpy.float32)
            numpy.multiply(noise, model.noise_sigma, out=noise)
            numpy.exp(noise, out=noise)
            noise *= model.noise_us
            spikes = rng.binomial(messages * nodes, model.spike_share)
            where = rng.integers(0, messages * nodes, spikes)
            noise.reshape(-1)[where] += rng.exponential(model.spike_us, spikes)
            hops[:, :, copy] = noise
        return hops

    # -- techniques -------------------------------------------------------------------------

    def unicast(self, receivers: int, messages: int, name: str = "unicast") -> Delays:
        """Simulate unicast: the sender sends to each receiver itself, one after the other."""
        return self.tree(Shape(receivers, 1, 1), messages, name)

    def tree(self, shape: Shape, messages: int, name: str = "tree", rotate: bool = False) -> Delays:
        """Simulate a tree of proxies, hedged as the shape says.

        `rotate`: the sender begins with the next node of layer 0 each time, so that none is always
        last.
        """
        chunk = _chunk(shape)
        drift = self.drift(messages)
        delays = numpy.empty((messages, shape.receivers), numpy.float32)
        for begin in range(0, messages, chunk):
            end = min(begin + chunk, messages)
            delays[begin:end] = self._tree(shape, begin, drift[begin:end], rotate)
        return Delays(name, delays)

    def _tree(self, shape: Shape, begin: int, drift: numpy.ndarray, rotate: bool) -> numpy.ndarray:
        count = len(drift)
        arrived = numpy.zeros((count, 1), numpy.float32)
        for layer, width in enumerate(shape.widths):
            copies = 1 if layer == 0 else 1 + shape.hedging
            stage = -1 if layer == shape.depth - 1 else layer
            hops = self.hops(begin, (count, width, copies), stage + 1)
            hops *= drift
            parents, child_indexes = shape.parents(layer), shape.child_indexes(layer)
            before = max(shape.widths[layer - 1], 1) if layer else 1
            share = -(-width // before)
            for copy in range(copies):
                sources = (parents - copy) % before
                waits = ((copy * share + child_indexes + 1) * self.model.child_us).astype(
                    numpy.float32
                )
                hops[:, :, copy] += arrived[:, sources]
                if layer == 0 and rotate:
                    turned = (child_indexes[None, :] + begin + numpy.arange(count)[:, None]) % width
                    hops[:, :, copy] += (turned + 1) * numpy.float32(self.model.child_us)
                else:
                    hops[:, :, copy] += waits
            arrived = _earliest(hops)
            arrived += numpy.float32(self.model.hop_us)
            arrived += self.machines(layer, width, layer == shape.depth - 1)
        return arrived

    def extra_nodes(self, shape: Shape, messages: int) -> Delays:
        """Simulate the source's first design of hedging, with extra nodes.

        Each node has `hedging` further children, which have none of their own and serve those of
        all its siblings: F * F copies each.
        """
        chunk = _chunk(shape)
        drift = self.drift(messages)
        delays = numpy.empty((messages, shape.receivers), numpy.float32)
        for begin in range(0, messages, chunk):
            end = min(begin + chunk, messages)
            delays[begin:end] = self._extra_nodes(shape, begin, drift[begin:end])
        return Delays("F+H", delays)

    def _extra_nodes(self, shape: Shape, begin: int, drift: numpy.ndarray) -> numpy.ndarray:
        count, model = len(drift), self.model
        arrived = numpy.zeros((count, 1), numpy.float32)
        helpers: numpy.ndarray | None = None  # (messages, parents' parents, hedging)
        for layer, width in enumerate(shape.widths):
            copies = 1 if layer == 0 else 1 + shape.hedging
            stage = -1 if layer == shape.depth - 1 else layer
            hops = self.hops(begin, (count, width, copies), stage + 1)
            hops *= drift
            parents, child_indexes = shape.parents(layer), shape.child_indexes(layer)
            hops[:, :, 0] += arrived[:, parents]
            hops[:, :, 0] += ((child_indexes + 1) * model.child_us).astype(numpy.float32)
            if helpers is not None:
                grand = shape.parents(layer - 1)[parents]
                first = numpy.searchsorted(grand, grand)
                among = numpy.arange(width) - first
                for copy in range(1, copies):
                    hops[:, :, copy] += helpers[:, grand, copy - 1]
                    hops[:, :, copy] += ((among + 1) * model.child_us).astype(numpy.float32)
            if layer < shape.depth - 1 and shape.hedging:
                before = arrived.shape[1]
                extra = self.hops(begin, (count, before, shape.hedging), 100 + layer)
                extra *= drift
                extra += arrived[:, :, None] + numpy.float32(
                    model.hop_us + model.child_us * (width // before + 1)
                )
                helpers = extra
            arrived = _earliest(hops)
            arrived += numpy.float32(model.hop_us)
            arrived += self.machines(layer, width, layer == shape.depth - 1)
        return arrived
