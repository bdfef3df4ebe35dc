"""The sender's clock, as another member knows it.

Where chrony or PTP keeps the machines' clocks together, a member's own clock is the sender's. Else
members ask their parents: a probe and its answer carry four times, as in NTP, of which the parent's
two are in the sender's time as the parent knows it, so that offsets add up down the tree. Of the
last `WINDOW` answers the one with the shortest round trip counts: waiting in queues only ever makes
it longer, and half of that is the error.

A clock that is set steps by more than any answer's error. Then the answers disagree with the one
that counts, by more than both round trips allow: after `AGREEING` of them in a row the window
begins anew.
"""

from collections import deque
from typing import NamedTuple

WINDOW = 16
AGREEING = 3


class Sample(NamedTuple):
    """One answer: offset (parent's time less ours) and round trip, ns."""

    offset_ns: int
    trip_ns: int


def sample_of(asked_ns: int, taken_ns: int, answered_ns: int, came_ns: int) -> Sample | None:
    """An answer's sample: asked and came by our clock, taken and answered by the parent's. None
    where the times cannot be."""
    trip = (came_ns - asked_ns) - (answered_ns - taken_ns)
    if came_ns < asked_ns or answered_ns < taken_ns or trip < 0:
        return None
    return Sample(((taken_ns - asked_ns) + (answered_ns - came_ns)) // 2, trip)


class OffsetEstimator:
    """See the module. `offset_ns` is what is added to the own clock to have the sender's."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._odd: list[Sample] = []
        #: 0 before the first answer, and by how much it may be wrong.
        self.offset_ns = self.error_ns = 0
        self.steps = 0

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return bool(self._samples)

    def add(self, sample: Sample) -> None:
        """An answer has come."""
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
