"""The sender's clock, as another member knows it.

Where chrony or PTP synchronises the machines' clocks, a member's own clock is the sender's. Else
members probe their parents: a probe and its answer carry four times, as in NTP, of which the
parent's two are in the sender's time as the parent knows it, so that offsets add up down the tree.
Of the last `WINDOW` answers the one with the shortest round trip counts: queueing only makes it
longer, and half of it is the error.

A clock that is set steps by more than any answer's error. Then the answers disagree with the one
that counts, by more than both round trips allow: after `AGREEING` of them in a row the window
begins anew.
"""

from collections import deque
from typing import NamedTuple

WINDOW = 16
AGREEING = 3


class Sample(NamedTuple):
    """One answer: offset (parent's time less own time) and round trip, ns."""

    offset_ns: int
    trip_ns: int


def sample_of(asked_ns: int, taken_ns: int, answered_ns: int, came_ns: int) -> Sample | None:
    """Return an answer's sample; None where the times are impossible.

    `asked_ns` and `came_ns` are of the own clock, `taken_ns` and `answered_ns` of the parent's.
    """
    trip = (came_ns - asked_ns) - (answered_ns - taken_ns)
    if came_ns < asked_ns or answered_ns < taken_ns or trip < 0:
        return None
    return Sample(((taken_ns - asked_ns) + (answered_ns - came_ns)) // 2, trip)


class OffsetEstimator:
    """Estimator of the sender's clock; see the module.

    `offset_ns` added to the own clock gives the sender's.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._odd: list[Sample] = []
        #: The offset, 0 before the first answer, and its possible error.
        self.offset_ns = self.error_ns = 0
        self.steps = 0

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return bool(self._samples)

    def add(self, sample: Sample) -> None:
        """Take the sample of an answer."""
        if self.known:
            apart = abs(sample.offset_ns - self.offset_ns)
            if apart > sample.trip_ns // 2 + self.error_ns + 1:
                self._odd.append(sample)
                if len(self._odd) < AGREEING:
                    return
                self.steps += 1
                self._samples.clear()
                self._samples.extend(self._odd[:-1])
        self._odd.clear()
        self._samples.append(sample)
        best = min(self._samples, key=lambda each: each.trip_ns)
        self.offset_ns, self.error_ns = best.offset_ns, best.trip_ns // 2
