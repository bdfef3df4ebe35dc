"""Holds of deadlines: from receivers' delays to one hold for all.

Each receiver reports, for an interval, some quantiles of its one-way delays (`LADDER`); proxies
take the maximum of each rung on the way up, so the sender knows, for every rung, the delay that
every receiver keeps with that share of its messages. The source takes the rung of 95 % ("Jasper",
section 6). That cannot give simultaneous delivery above 95 % of the messages: the receiver that has
the maximum is later than its own 95th percentile with 5 % of them.

`HoldController` picks the step of the ladder instead, for a wanted probability that a message is
in time at all receivers. For each interval it is given how many messages were late somewhere, and
goes up where that is more than wanted and down where it is less, in steps of the logarithm of their
ratio. Between rungs the hold is interpolated over the logarithm of 1 - quantile, on which the tail
of delays is nearly a line.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

from feedhandler.codecs.errors import UsageError

#: Quantiles in a report; the last stands for the maximum of an interval.
LADDER = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999)
#: The source's rule.
RULE = 0.95
#: Share of the measured error that one interval corrects, and decades of 1 - quantile at most.
GAIN = 0.5
STEP_MAX = 0.5
#: Of the late messages that are allowed, the controller aims at this share: its estimate comes from
#: one interval, and half of the intervals would be worse than what was wanted.
AIM = 0.7

_LEVELS = tuple(-math.log10(1 - quantile) for quantile in LADDER)


def hold_at(quantile: float, rungs: Sequence[float]) -> float:
    """Return the delay at a quantile, interpolated between those of `LADDER`, which are `rungs`."""
    level = min(max(-math.log10(1 - quantile), _LEVELS[0]), _LEVELS[-1])
    above = bisect_left(_LEVELS, level)
    if _LEVELS[above] == level:
        return rungs[above]
    share = (level - _LEVELS[above - 1]) / (_LEVELS[above] - _LEVELS[above - 1])
    return rungs[above - 1] + share * (rungs[above] - rungs[above - 1])


class HoldController:
    """Controller of the hold; see the module.

    `wanted`: the probability that a message is in time everywhere, from 0.5 to 0.999; `start`: the
    initial quantile. Raises `UsageError` where `wanted` is out of range.
    """

    def __init__(self, wanted: float, start: float = RULE) -> None:
        if not 0.5 <= wanted <= 0.999:
            raise UsageError(f"a probability of {wanted:g}: it goes from 0.5 to 0.999")
        self.wanted = wanted
        self._level = -math.log10(1 - start)

    @property
    def quantile(self) -> float:
        """The present quantile of the hold."""
        return 1 - float(10**-self._level)

    def observe(self, messages: int, late: int) -> None:
        """Adjust by an interval's messages, of which `late` were late at some receiver."""
        if messages <= 0:
            return
        share = (late + 0.5) / (messages + 1)
        step = GAIN * math.log10(share / (AIM * (1 - self.wanted)))
        step = min(max(step, -STEP_MAX), STEP_MAX)
        self._level = min(max(self._level + step, _LEVELS[0]), _LEVELS[-1])

    def hold(self, rungs: Sequence[float]) -> float:
        """Return the delay to hold for, of the rungs' maxima over all receivers."""
        return hold_at(self.quantile, rungs)
