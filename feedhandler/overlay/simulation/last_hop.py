"""Deployment models 1 to 3: who releases, and what comes after the release ("Jasper", section 8).

1: the receiver releases, and nothing comes after; clock errors and wake-ups are left. 2: a gateway
before the receiver releases, and the hop from it has the cloud's noise. 3: the receiver releases to
a program in an enclave, behind a hop that differs from machine to machine (10 to 50 us) and jitters
little. In this model receivers report the latency of their last hop, and each holds messages for
the difference of its own to the longest.
"""

import numpy

from feedhandler.overlay.holding import Held
from feedhandler.overlay.last_hop import LastHop, LongestHop
from feedhandler.overlay.simulation.cloud import CloudModel
from feedhandler.overlay.wire import KEY_BYTES

#: Last hops of model 3, us, and their jitter: half of the source's 5.4 us both ways between the
#: lowest and the 90th percentile, exponential.
ENCLAVE_US = (10.0, 50.0)
JITTER_US = 5.4 / 2 / numpy.log(10)
#: The same without pinning and without dedicated processors. The source says only that 90 % are
#: within some 50 us; the rest is assumed: jitter with which the middle machine has that, and whose
#: size varies from window to window, log-normal.
UNPINNED_JITTER_US = 20 / numpy.log(10)
UNPINNED_SIGMA = 0.3
#: Messages of a window of Figure 6: the source's, a second's.
FIGURE_6_WINDOW = 8_000


def lateness(messages: int, receivers: int, model: CloudModel, seed: int) -> numpy.ndarray:
    """Return how far from its deadline each release is, us: clock error and wake-up.

    float64, (messages, receivers).
    """
    rng = numpy.random.default_rng((seed, 7))
    clocks = rng.normal(0, model.clock_us, receivers)
    return numpy.asarray(clocks + rng.exponential(model.release_us, (messages, receivers)))


def gateway_hops(messages: int, receivers: int, model: CloudModel, seed: int) -> numpy.ndarray:
    """Return the latency from a gateway to its receiver, model 2, us. float64, (messages,
    receivers)."""
    rng = numpy.random.default_rng((seed, 17))
    noise = model.noise_us * rng.lognormal(0, model.noise_sigma, (messages, receivers))
    return numpy.asarray(model.hop_us + noise + rng.exponential(model.machine_us, receivers))


def enclave_hops(messages: int, receivers: int, seed: int, pinned: bool = True) -> numpy.ndarray:
    """Return the latency from a receiver to its enclave, model 3, us. float64, (messages,
    receivers).

    `pinned`: with low jitter, which pinned threads on dedicated processors have.
    """
    rng = numpy.random.default_rng((seed, 19))
    fixed = rng.uniform(*ENCLAVE_US, receivers)
    jitter = rng.exponential(1.0, (messages, receivers))
    return numpy.asarray(fixed + jitter * _jitter_us(messages, rng, pinned)[:, None])


def enclave_trips(windows: int, seed: int, pinned: bool) -> numpy.ndarray:
    """Return round trips between the middle receiver and its enclave, us.

    float64, (windows, `FIGURE_6_WINDOW`).
    """
    rng = numpy.random.default_rng((seed, 29))
    messages = windows * FIGURE_6_WINDOW
    jitter = 2 * rng.exponential(1.0, messages) * _jitter_us(messages, rng, pinned)
    return numpy.asarray(sum(ENCLAVE_US) + jitter).reshape(windows, FIGURE_6_WINDOW)


def _jitter_us(messages: int, rng: numpy.random.Generator, pinned: bool) -> numpy.ndarray:
    """Return the mean jitter one way at each message, us. float64, (messages,)."""
    if pinned:
        return numpy.full(messages, JITTER_US)
    windows = -(-messages // FIGURE_6_WINDOW)
    level = UNPINNED_JITTER_US * rng.lognormal(0, UNPINNED_SIGMA, windows)
    return numpy.repeat(level, FIGURE_6_WINDOW)[:messages]


def extra_holds(measured: numpy.ndarray) -> numpy.ndarray:
    """Return each receiver's extra hold, us, computed as running receivers do. float64,
    (receivers,).

    `measured`: last hops, us, (samples, receivers), of which there and back takes two.
    """
    hops = [LastHop(bytes(KEY_BYTES)) for _ in range(measured.shape[1])]
    longest = LongestHop()
    for receiver, hop in enumerate(hops):
        for there, back in zip(measured[::2, receiver], measured[1::2, receiver], strict=False):
            hop.observe(int(1e3 * (there + back)), 0)
        longest.report(str(receiver), hop.own_ns(0), 0)
    for hop in hops:
        hop.longest_ns = longest.longest_ns(0)
    return numpy.array([hop.extra_ns(0) / 1e3 for hop in hops])


def released(held: Held, model: CloudModel, seed: int) -> numpy.ndarray:
    """Return release times, us after sending, with clock errors and late wake-ups.

    float64, (messages, receivers).
    """
    late = lateness(len(held.delays), held.delays.shape[1], model, seed)
    return numpy.maximum(held.delays, held.holds[:, None] + late)
