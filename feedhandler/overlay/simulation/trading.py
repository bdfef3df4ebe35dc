"""Profit where data arrive unequally: the source's application (Appendix C and Table 2).

The sender multicasts trades; the first two and the last two receivers run the same algorithm and
send an order at the moment they get a trade whose price is above a threshold. The exchange takes
the order with the earliest stamp, whose sender gets the trade's profit.
"""

import numpy

#: Share of trades whose price is above the threshold.
TRADED = 0.5


def shares(delivered: numpy.ndarray, seed: int) -> numpy.ndarray:
    """Return the share of the profit that each of the four receivers gets. float64, (4,).

    `delivered`: when each receiver had each message, us after its sending, (messages, receivers),
    at least four.
    """
    rng = numpy.random.default_rng((seed, 11))
    active = delivered[:, [0, 1, -2, -1]]
    traded = rng.random(len(active)) < TRADED
    profits = rng.lognormal(0, 0.5, len(active)) * traded
    winners = active.argmin(axis=1)
    won = numpy.bincount(winners, weights=profits, minlength=4)
    return numpy.asarray(won / won.sum())
