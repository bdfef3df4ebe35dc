"""Hold and release on recorded delays: the effect of deadlines on windows, latency and fairness.

A deadline is the sender's clock plus a hold, estimated in the interval before; a receiver that has
a message earlier waits for it, one that has it later delivers it at once ("Jasper", section 6). As
the source counts, delivery = max(arrival, deadline), so that a message which is in time everywhere
has a window of 0; `simulation.last_hop.released` adds clock errors and the lateness of releases,
which the source leaves out. Delays are simulated (`simulation.cloud`) or measured (`measuring`).
"""

from dataclasses import dataclass

import numpy

from feedhandler.overlay.fairness import LADDER, RULE, HoldController, hold_at

#: Messages of an interval: a second at the source's rate.
INTERVAL = 5_000


@dataclass(frozen=True, slots=True)
class Delays:
    """One-way delays of one technique, simulated or measured, us: float32, (messages, receivers).

    Techniques that are compared have theirs on one trace.
    """

    name: str
    delays: numpy.ndarray

    @property
    def overall(self) -> numpy.ndarray:
        """Overall multicast latency of each message: the last receiver's delay."""
        return self.delays.max(axis=1)

    @property
    def windows(self) -> numpy.ndarray:
        """Delivery window of each message: the last receiver's delay less the first one's."""
        return self.delays.max(axis=1) - self.delays.min(axis=1)


@dataclass(frozen=True, slots=True)
class Held:
    """One technique's deliveries with deadlines, us, without the first interval, which has none.

    delays  one-way delays, float32, (messages, receivers)
    holds   deadline of each message less its sending, float64, (messages,)
    """

    name: str
    delays: numpy.ndarray
    holds: numpy.ndarray

    @property
    def fair(self) -> float:
        """Share of messages that were in time at every receiver."""
        return float((self.delays.max(axis=1) <= self.holds).mean())

    @property
    def overall(self) -> numpy.ndarray:
        """When each message was delivered everywhere, us after its sending. float64,
        (messages,)."""
        return numpy.maximum(self.delays.max(axis=1), self.holds)

    @property
    def windows(self) -> numpy.ndarray:
        """Window of each message, us; 0 where it was in time everywhere. float64, (messages,)."""
        first = numpy.maximum(self.delays.min(axis=1), self.holds)
        return self.overall - first

    @property
    def held(self) -> numpy.ndarray:
        """Mean time that each receiver held messages, us. float64, (receivers,)."""
        waits = numpy.maximum(self.holds[:, None] - self.delays, 0)
        return waits.mean(axis=0)


def rungs_of(delays: numpy.ndarray) -> list[float]:
    """Return the maximum over all receivers of each quantile of `LADDER`.

    `delays`: (messages, receivers).
    """
    quantiles = numpy.quantile(delays, LADDER, axis=0)
    return [float(each) for each in quantiles.max(axis=1)]


def hold_and_release(
    found: Delays,
    name: str,
    quantile: float = RULE,
    controller: HoldController | None = None,
    interval: int = INTERVAL,
) -> Held:
    """Apply deadlines by a fixed quantile, or by a controller, to a technique's delays.

    Of a short trace a quarter is an interval.
    """
    delays = found.delays
    interval = min(interval, max(len(delays) // 4, 1))
    holds = numpy.zeros(len(delays))
    for begin in range(interval, len(delays), interval):
        rungs = rungs_of(delays[begin - interval : begin])
        hold = controller.hold(rungs) if controller else hold_at(quantile, rungs)
        part = delays[begin : begin + interval]
        holds[begin : begin + interval] = hold
        if controller:
            controller.observe(len(part), int((part.max(axis=1) > hold).sum()))
    return Held(name, delays[interval:], holds[interval:])
