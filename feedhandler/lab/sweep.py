"""A search over rates or client counts for where latency exceeds a bound, one trial at a time.

No I/O and no clock: `Search` proposes the next value and is given each result. From its start it
goes up by `STRIDE` while the bound is kept, or down until it is, then halves the distance between
what kept it and what did not. Every machine has bad moments: a value that failed is tried once more
before it counts as failed.
"""

from collections.abc import Iterator

from feedhandler.lab.plan import CLIENTS_MAX, Bound
from feedhandler.lab.results import Step, Trial
from feedhandler.lab.thresholds import NOTHING_TIMED

STRIDE = 2.0
#: The search ends when held and failed rates are this close, and after this many values.
RATIO_ENOUGH = 1.1
VALUES_MAX = 14
#: How often a value may fail before it counts as failed.
TRIES = 2
#: Limits of rates: beyond them the unit is wrong, or the rate is below a session's own.
RATE_BPS_MIN, RATE_BPS_MAX = 1e5, 1e11
#: Sends that may leave late before a rate counts as not kept by the replayer itself.
BEHIND_SHARE_MAX = 0.02


class Search:
    """A search for the highest value that holds; `held` and `failed` are None until known."""

    def __init__(self, start: float, whole: bool) -> None:
        self.held: float | None = None
        self.failed: float | None = None
        self._whole = whole
        self._lowest = 1.0 if whole else RATE_BPS_MIN
        self._highest = float(CLIENTS_MAX) if whole else RATE_BPS_MAX
        self._value = min(max(start, self._lowest), self._highest)
        self._failures = self._values = 0

    def values(self) -> Iterator[float]:
        """Yield the values to try, until enough is known.

        `report` must be called with each result before the next value is taken.
        """
        while self._values < VALUES_MAX:
            yield self._value
            if self._failures:
                continue
            self._values += 1
            following = self._next()
            if following is None:
                return
            self._value = following

    def report(self, held: bool) -> None:
        """Record whether the bound was kept at the latest value."""
        if held:
            self.held, self._failures = self._value, 0
            return
        self._failures += 1
        if self._failures == TRIES:
            self.failed, self._failures = self._value, 0

    def _next(self) -> float | None:
        """Return the next value to try; None where the search is over."""
        if self.held is None or self.failed is None:
            factor = STRIDE if self.failed is None else 1 / STRIDE
            return self._within(self._value * factor)
        if self._whole:
            middle = (self.held + self.failed) // 2
            return None if middle in (self.held, self.failed) else middle
        if self.failed / self.held < RATIO_ENOUGH:
            return None
        return (self.held + self.failed) / 2

    def _within(self, value: float) -> float | None:
        """Return the value clamped to the limits; None where that was tried already."""
        value = min(max(value // 1, self._lowest), self._highest)
        return None if value == self._value else value


def trial_of(step: Step, value: float, bound: Bound) -> Trial:
    """Judge a step by a bound: kept only without a loss, and by a replayer that kept the rate."""
    (found_ns,) = step.latency.percentiles(bound.share)
    if step.findings:
        why = step.findings[0]
    elif step.sent.behind > BEHIND_SHARE_MAX * step.sent.datagrams:
        why = f"the replayer did not keep the rate: {step.sent.behind:,} sends were late"
    elif not step.latency.count:
        why = NOTHING_TIMED
    elif found_ns > bound.bound_ns:
        why = f"{bound.quantity} is {found_ns / 1e6:.3f} ms"
    else:
        why = ""
    return Trial(value=value, found_ns=found_ns, held=not why, why=why)
