"""Hold and release over simulated delays: the source's rule and the controller, with one class.

The deadline of an interval's messages comes from the delays that receivers reported of the interval
before (section 6), the maximum over receivers of each quantile. A message is fair if all had it by
its deadline; its window is what the latest is later than that, as delivery is the later of arrival
and deadline.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedhandler.overlay.fairness import FairnessController
from feedhandler.overlay.simulation.latency import Micros
from feedhandler.overlay.wire import QUANTILE_LEVELS

#: Intervals before anything is counted: the controller settles.
INTERVALS_WARM = 2
Delays = Callable[[int], Micros]


def quantiles_ns(delays_us: Micros) -> list[int]:
    """The maximum over receivers of each of `QUANTILE_LEVELS`, in ns, as receivers report it."""
    ordered = np.sort(np.ascontiguousarray(delays_us.T), axis=1)
    count = ordered.shape[1]
    found = []
    for level in QUANTILE_LEVELS:
        rank = min(count - 1, -(-level * count // 10_000) - 1)
        found.append(int(ordered[:, rank].max() * 1_000))
    return found


@dataclass
class Held:
    """What was measured of messages held; us."""

    latency: list[Micros] = field(default_factory=list)
    window: list[Micros] = field(default_factory=list)
    hold: list[Micros] = field(default_factory=list)
    fair: int = 0
    count: int = 0

    def add(self, delays_us: Micros, deadline_us: float) -> int:
        """Count an interval's messages; returns how many were fair."""
        last, first = delays_us.max(axis=1), delays_us.min(axis=1)
        deadline = np.float32(deadline_us)
        self.latency.append(np.maximum(last, deadline))
        self.window.append(np.maximum(last, deadline) - np.maximum(first, deadline))
        self.hold.append(np.maximum(deadline - delays_us, np.float32(0)).mean(axis=0))
        fair = int((last <= deadline).sum())
        self.fair += fair
        self.count += last.size
        return fair

    @property
    def fairness(self) -> float:
        """The probability of perfect fairness."""
        return self.fair / self.count

    @property
    def latency_us(self) -> float:
        """Median of the overall latency."""
        return float(np.median(np.concatenate(self.latency)))

    def window_us(self, percentile: float) -> float:
        """A percentile of the delivery window."""
        return float(np.percentile(np.concatenate(self.window), percentile))

    @property
    def hold_us(self) -> float:
        """Mean hold of a receiver."""
        return float(np.mean(self.hold))


def held(
    intervals: Iterable[Micros], controller: FairnessController, warm: int = INTERVALS_WARM
) -> Held:
    """Hold interval after interval, each by what was reported of those before."""
    measured = Held()
    for number, delays_us in enumerate(intervals):
        if controller.known:
            deadline_us = controller.hold_ns / 1_000
            counted = measured if number >= warm else Held()
            controller.observe(counted.add(delays_us, deadline_us), len(delays_us))
        controller.report(quantiles_ns(delays_us))
    return measured


def p95_rule() -> FairnessController:
    """The source's rule: the maximum of the receivers' 95th percentiles."""
    return FairnessController(wanted=0.0, percentile=95.0)


def trading_shares(
    delivered_us: Micros, traders: list[int], jitter_us: Micros
) -> NDArray[np.float64]:
    """Each trader's share of profit where the earliest order wins (Appendix C, Table 2).

    jitter_us  what clocks err and traders take, of shape (messages, traders)
    """
    placed = delivered_us[:, traders] + jitter_us
    wins = np.bincount(placed.argmin(axis=1), minlength=len(traders))
    return np.asarray(wins / wins.sum(), np.float64)


def incast_dropped(
    reports: int, spread_us: float, service_us: float, queue: int, seed: int
) -> float:
    """The share of reports dropped at one host, all sent within `spread_us` (section 6).

    A queue of `queue` places, one report served in `service_us`; what finds it full is dropped.
    """
    rng = np.random.default_rng([seed, reports])
    dropped, rounds = 0, 200
    for _ in range(rounds):
        ends: list[float] = []
        for now in np.sort(rng.uniform(0, spread_us, reports)).tolist():
            ends = [end for end in ends if end > now]
            if len(ends) >= queue:
                dropped += 1
            else:
                ends.append((ends[-1] if ends else now) + service_us)
    return dropped / (rounds * reports)
