"""Latencies of a cloud: what a message meets on an edge and in a host, drawn once for all
techniques.

A draw belongs to (seed, interval, layer, copy), never to a technique: a tree with hedging and one
without meet the same weather, message by message, as the source interleaves them (section 9.2).
All times are microseconds, in float32 arrays of shape (messages, nodes).

The model of one hop: base latency, exponential jitter, a node's fixed slowness, its drift from one
interval to the next, rare spikes of the edge (hedging avoids them), rare stalls of the node itself
(nothing avoids a receiver's own), and `child_us` for each copy that the parent sent before. The
drift of the whole region and stalls of the sender move all receivers together.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Micros = NDArray[np.float32]

#: Messages of an interval, after which receivers report: 0.1 s at the source's 5,000 a second.
INTERVAL_MESSAGES = 500
#: Words that keep the streams of random numbers apart.
_EDGE, _NODE, _SENDER, _STATIC, _DRIFT = range(5)


@dataclass(frozen=True)
class Cloud:
    """Settings of a network; microseconds, probabilities for each message.

    drift_memory   correlation of the drift from one interval to the next
    """

    base_us: float
    child_us: float
    jitter_us: float
    static_us: float
    drift_us: float
    region_us: float
    drift_memory: float
    spike_probability: float
    spike_us: float
    stall_probability: float
    stall_us: float
    sender_stall_probability: float
    sender_stall_us: float


#: Fitted to Table 1; spread and tails, of which it says nothing, to the fairness of Table 3 and to
#: Figure 8c without hedging. Base and child are within the source's 30 +- 10 us a level and
#: 2.7 +- 0.9 us a child (section 4).
AWS = Cloud(
    base_us=25.0,
    child_us=3.1,
    jitter_us=2.0,
    static_us=7.5,
    drift_us=0.2,
    region_us=0.2,
    drift_memory=0.5,
    spike_probability=8e-4,
    spike_us=150.0,
    stall_probability=1e-3,
    stall_us=15.0,
    sender_stall_probability=1e-3,
    sender_stall_us=12.0,
)
#: The other cloud of the source, fitted to Table 4 alone: a longer base, and a region that drifts
#: more from one interval to the next, which no report of the interval before foresees.
GCP = replace(AWS, base_us=33.0, region_us=6.0)
CLOUDS = {"aws": AWS, "gcp": GCP}


class Interval:
    """The draws of one interval, the same whoever asks and however often."""

    def __init__(self, weather: "Weather", number: int, messages: int) -> None:
        self._weather, self._number, self.messages = weather, number, messages

    def edge(self, layer: int, width: int, copy: int = 0) -> Micros:
        """Latency of the edges that bring copy `copy` to each node of a layer."""
        cloud = self._weather.cloud
        rng = self._weather.generator(_EDGE, self._number, layer, copy)
        drawn = rng.standard_exponential((self.messages, width), dtype=np.float32)
        drawn *= np.float32(cloud.jitter_us)
        drawn += np.float32(cloud.base_us)
        _add_rare(drawn, rng, cloud.spike_probability, cloud.spike_us)
        return drawn

    def node(self, layer: int, width: int) -> Micros:
        """What each node of a layer adds to any copy: fixed slowness, drift, rare stalls."""
        cloud = self._weather.cloud
        rng = self._weather.generator(_NODE, self._number, layer)
        drawn = np.zeros((self.messages, width), dtype=np.float32)
        drawn += self._weather.slowness(self._number, layer, width)
        _add_rare(drawn, rng, cloud.stall_probability, cloud.stall_us)
        return drawn

    def sender(self) -> Micros:
        """What the sender and the region add to every path; shape (messages, 1)."""
        cloud = self._weather.cloud
        rng = self._weather.generator(_SENDER, self._number)
        drawn = np.full((self.messages, 1), self._weather.region(self._number), dtype=np.float32)
        _add_rare(drawn, rng, cloud.sender_stall_probability, cloud.sender_stall_us)
        return drawn


class Weather:
    """All draws of one seed in one cloud."""

    def __init__(self, cloud: Cloud, seed: int) -> None:
        self.cloud, self._seed = cloud, seed
        self._drifts: dict[tuple[int, int], tuple[int, Micros]] = {}

    def interval(self, number: int, messages: int = INTERVAL_MESSAGES) -> Interval:
        """The draws of an interval."""
        return Interval(self, number, messages)

    def generator(self, *words: int) -> np.random.Generator:
        """The stream of random numbers for these words."""
        return np.random.Generator(np.random.SFC64([self._seed, *words]))

    def slowness(self, number: int, layer: int, width: int) -> Micros:
        """Fixed slowness of a layer's nodes and their drift in this interval; shape (width,)."""
        static = self.generator(_STATIC, layer).standard_exponential(width, dtype=np.float32)
        slow: Micros = static * np.float32(self.cloud.static_us)
        return slow + self._drift(number, layer, width) * np.float32(self.cloud.drift_us)

    def region(self, number: int) -> np.float32:
        """Drift of the whole region in this interval."""
        return np.float32(self._drift(number, 255, 1)[0] * self.cloud.region_us)

    def _drift(self, number: int, layer: int, width: int) -> Micros:
        """A walk of variance 1 that forgets: each interval from the one before."""
        done, drift = self._drifts.get((layer, width), (-1, np.zeros(width, dtype=np.float32)))
        if done > number:
            done, drift = -1, np.zeros(width, dtype=np.float32)
        memory = np.float32(self.cloud.drift_memory)
        fresh = np.float32((1 - self.cloud.drift_memory**2) ** 0.5)
        for each in range(done + 1, number + 1):
            step = self.generator(_DRIFT, layer, each).standard_normal(width, dtype=np.float32)
            drift = step if each == 0 else memory * drift + fresh * step
        self._drifts[layer, width] = number, drift
        return drift


def _add_rare(times: Micros, rng: np.random.Generator, probability: float, mean_us: float) -> None:
    """Add exponential times at the few places that chance chooses."""
    count = rng.binomial(times.size, probability)
    places = rng.integers(0, times.size, count)
    flat = times.reshape(-1)
    np.add.at(flat, places, rng.standard_exponential(count, dtype=np.float32) * np.float32(mean_us))
