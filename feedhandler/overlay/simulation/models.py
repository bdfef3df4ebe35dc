"""Deployment models 1 to 3 (section 8): where a message is held, and what comes after the hold."""

import enum
import math
from dataclasses import dataclass

import numpy as np

from feedhandler.overlay.last_hop import SAMPLES, LastHop
from feedhandler.overlay.simulation.latency import Interval, Micros, Weather
from feedhandler.overlay.simulation.source import ENCLAVE_SPREAD_US

#: Last hops of receivers in model 3.
LAST_HOP_US = (10.0, 50.0)
#: Jitter of a last hop one way: 90 % are within half of what the source measured there and back.
LAST_HOP_JITTER_US = ENCLAVE_SPREAD_US / 2 / math.log(10)
#: The layer whose draws gateways' hops to receivers have.
_GATEWAY_LAYER = 32


class Model(enum.StrEnum):
    """Where a message is held."""

    RECEIVER = "1: in the receiver"
    GATEWAY = "2: in a gateway before it"
    ISOLATED = "3: before an isolated process"
    EXCHANGED = "3: with the last hops exchanged"


@dataclass(frozen=True)
class Delivered:
    """Windows and overall latencies of messages, us."""

    window: Micros
    latency: Micros


def deliver(
    model: Model, weather: Weather, interval: Interval, delays_us: Micros, deadline_us: float
) -> Delivered:
    """Release at the deadline, or late, and go the rest of the way."""
    released = np.maximum(delays_us, np.float32(deadline_us))
    receivers = delays_us.shape[1]
    if model is Model.GATEWAY:
        released = released + interval.edge(_GATEWAY_LAYER, receivers)
    elif model in (Model.ISOLATED, Model.EXCHANGED):
        rng = weather.generator(9, receivers)
        fixed = np.asarray(rng.uniform(*LAST_HOP_US, size=receivers), np.float32)
        jitter = rng.standard_exponential((len(delays_us), receivers), dtype=np.float32)
        hops = fixed + jitter * np.float32(LAST_HOP_JITTER_US)
        if model is Model.EXCHANGED:
            released = released + _extra_us(hops)
        released = released + hops
    last = released.max(axis=1)
    return Delivered(last - released.min(axis=1), last)


def _extra_us(hops_us: Micros) -> Micros:
    """What each receiver holds more, by the class that receivers have, from its first samples."""
    own = []
    for samples in hops_us[:SAMPLES].T.tolist():
        hop = LastHop()
        for each in samples:
            hop.observe(round(each * 1_000))
        own.append(hop)
    longest_ns = max(hop.own_ns for hop in own)
    for hop in own:
        hop.longest(longest_ns, 0)
    return np.array([hop.extra_ns(0) / 1_000 for hop in own], dtype=np.float32)
