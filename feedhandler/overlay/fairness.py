"""The hold that gives a wanted probability of perfect fairness.

A message is fair if every receiver has it before its deadline. The source holds for the maximum of
the receivers' 95th percentiles (section 6): the slowest receiver alone then misses one deadline in
twenty, so that no more than about 95 % are fair, whatever the tree. Here the percentile is chosen
by what was measured: `observe` is given how many messages were fair, and moves the percentile until
the wanted share is. It moves in the logarithm of what lies above: from 99 to 99.9 % is as far as
from 90 to 99.

Between the reported quantiles the hold is interpolated; above the maximum it grows by
`BEYOND_PER_DECADE` for each further decade. Pure arithmetic, without clock or chance.
"""

import math
from collections.abc import Sequence

from feedhandler.overlay.wire import QUANTILE_LEVELS

#: The source's percentile.
PERCENTILE_START = 95.0
#: A report's maximum counts as this decade: 99.99 %.
DECADE_MAXIMUM = 4.0
#: Decades that the controller moves within: from the 50th percentile to beyond the maximum.
DECADE_MIN, DECADE_MAX = 0.3, 6.0
#: Beyond the maximum the hold grows by a quarter for each decade.
BEYOND_PER_DECADE = 0.25
#: Decades that one observation of `OBSERVED_WHOLE` messages moves by, for each time that the
#: allowed share of unfair messages was exceeded (or, of -1, was not used at all).
GAIN = 0.05
OBSERVED_WHOLE = 1_000
#: Times that the allowed share counts as exceeded: a spike moves by one decade at most.
EXCESS_MAX = 20.0

_DECADES = [
    DECADE_MAXIMUM if level == 10_000 else -math.log10(1 - level / 10_000)
    for level in QUANTILE_LEVELS
]


def decade_of(percentile: float) -> float:
    """The logarithm of what lies above a percentile: 1 for 90 %, 2 for 99 %."""
    return -math.log10(max(1e-9, 1 - percentile / 100))


class FairnessController:
    """The percentile, and the hold in ns.

    wanted        the wanted probability of perfect fairness; 0: the percentile stays as it is,
                  which with `percentile` 95 is the source's rule
    hold_ns_max   the hold is never longer, whatever is reported
    """

    def __init__(
        self,
        wanted: float = 0.99,
        hold_ns_max: int = 20_000_000,
        percentile: float = PERCENTILE_START,
        gain: float = GAIN,
    ) -> None:
        if not 0 <= wanted < 1:
            raise ValueError(f"a probability of {wanted}: from 0 up to below 1")
        self._allowed = 1 - wanted if wanted else 0.0
        self._gain, self._hold_ns_max = gain, hold_ns_max
        self._decade = min(max(decade_of(percentile), DECADE_MIN), DECADE_MAX)
        self._quantiles: tuple[int, ...] = ()

    @property
    def percentile(self) -> float:
        """The percentile of the delays that is held for; above 99.99 beyond their maximum."""
        return float(100 * (1 - 10**-self._decade))

    @property
    def known(self) -> bool:
        """Whether any delays were reported: before, no deadline can be given."""
        return bool(self._quantiles)

    def report(self, quantiles_ns: Sequence[int]) -> None:
        """Take the delays of an interval: the maximum over receivers at each `QUANTILE_LEVELS`."""
        self._quantiles = tuple(quantiles_ns)

    def observe(self, fair: int, total: int) -> None:
        """So many messages were fair, of so many."""
        if not total or not self._allowed:
            return
        excess = min(((total - fair) / total - self._allowed) / self._allowed, EXCESS_MAX)
        moved = self._gain * excess * min(1.0, total / OBSERVED_WHOLE)
        self._decade = min(max(self._decade + moved, DECADE_MIN), DECADE_MAX)

    @property
    def hold_ns(self) -> int:
        """How long after its sending a message is delivered; 0 before the first report."""
        if not self._quantiles:
            return 0
        return min(self._hold_ns_max, round(self._delay_ns()))

    def _delay_ns(self) -> float:
        low_decade, low_ns = _DECADES[0], self._quantiles[0]
        for decade, delay_ns in zip(_DECADES, self._quantiles, strict=True):
            if self._decade <= decade:
                share = (self._decade - low_decade) / (decade - low_decade or 1.0)
                return low_ns + max(0.0, share) * (delay_ns - low_ns)
            low_decade, low_ns = decade, delay_ns
        return low_ns * (1 + BEYOND_PER_DECADE * (self._decade - DECADE_MAXIMUM))
