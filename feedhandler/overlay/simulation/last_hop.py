"""Deployment models 1 to 3: who releases, and what comes after the release ("Jasper", section 8).

1: the receiver releases, nothing comes after; what is left are clock errors and wake-ups. 2: a
gateway before the receiver does, and the hop from it has the cloud's noise. 3: the receiver
releases to a program in an enclave, behind a hop that differs from machine to machine (10 to 50 us)
and jitters little. There receivers tell each other the latency of their last hop, and each holds
what its own is less than the longest.
"""

import numpy

from feedhandler.overlay.last_hop import LastHop, LongestHop
from feedhandler.overlay.simulation.cloud import CloudModel
from feedhandler.overlay.wire import KEY_BYTES

#: Last hops of model 3, us, and their jitter: half of the source's 5.4 us both ways between the
#: lowest and the 90th percentile, exponential.
ENCLAVE_US = (10.0, 50.0)
JITTER_US = 5.4 / 2 / numpy.log(10)


def lateness(messages: int, receivers: int, model: CloudModel, seed: int) -> numpy.ndarray:
    """How far from its deadline a release is: the receiver's clock error, and its wake-up. float64,
    (messages, receivers)."""
    rng = numpy.random.default_rng((seed, 7))
    clocks = rng.normal(0, model.clock_us, receivers)
    return numpy.asarray(clocks + rng.exponential(model.release_us, (messages, receivers)))


def gateway_hops(messages: int, receivers: int, model: CloudModel, seed: int) -> numpy.ndarray:
    """Latency from a gateway to its receiver, model 2. float64, (messages, receivers)."""
    rng = numpy.random.default_rng((seed, 17))
    noise = model.noise_us * rng.lognormal(0, model.noise_sigma, (messages, receivers))
    return numpy.asarray(model.hop_us + noise + rng.exponential(model.machine_us, receivers))


def enclave_hops(messages: int, receivers: int, seed: int) -> numpy.ndarray:
    """Latency from a receiver to its enclave, model 3. float64, (messages, receivers)."""
    rng = numpy.random.default_rng((seed, 19))
    fixed = rng.uniform(*ENCLAVE_US, receivers)
    return numpy.asarray(fixed + rng.exponential(JITTER_US, (messages, receivers)))


def extra_holds(measured: numpy.ndarray) -> numpy.ndarray:
    """What each receiver holds besides, us, by the last hops that it measured, of which there and
    back takes two: as receivers that run find it. `measured`: (samples, receivers), us; float64,
    (receivers,)."""
    hops = [LastHop(bytes(KEY_BYTES)) for _ in range(measured.shape[1])]
    longest = LongestHop()
    for receiver, hop in enumerate(hops):
        for there, back in zip(measured[::2, receiver], measured[1::2, receiver], strict=False):
            hop.observe(int(1e3 * (there + back)), 0)
        longest.told(str(receiver), hop.own_ns(0), 0)
    for hop in hops:
        hop.longest_ns = longest.longest_ns(0)
    return numpy.array([hop.extra_ns(0) / 1e3 for hop in hops])
