"""The overlay's time: the local monotonic clock plus an offset that is given or estimated.

Members are driven by a clock that never steps (`now_ns`). The overlay's time comes from

- the wall clock, where chrony or PTP keeps it: the caller samples both (`wall`), or
- the parent: a probe carries the local time t1, its answer the parent's overlay times t2 and t3 of
  coming and leaving, and it comes back at t4. The offset is ((t2 - t1) + (t3 - t4)) / 2, wrong by
  half of the round trip at most. Of the last probes the one counts whose error is bounded lowest,
  half its round trip plus what a clock drifts in its age.

A step is a change of offset that neither round trips nor drift explain. The wall's counts at once;
the parent's after several answers agree on it, as a single one may lie.
"""

from collections import deque
from typing import NamedTuple

#: Probes that are kept: at ten a second the best of the last 1.6 s.
WINDOW = 16
#: Clocks of hosts drift by no more: crystals are within 50 ppm, two of them within 100.
DRIFT_PPM_MAX = 100
#: A wall clock that chrony slews (500 ppm at most) moves less between two samples.
STEP_NS = 200_000
#: Answers that must contradict what was believed before they are.
STEP_ANSWERS = 3
#: A round trip that says nothing: half a second either way.
ROUND_TRIP_NS_MAX = 1_000_000_000


class _Sample(NamedTuple):
    at_ns: int
    offset_ns: int
    error_ns: int

    def bound_ns(self, now_ns: int) -> int:
        return self.error_ns + (now_ns - self.at_ns) * DRIFT_PPM_MAX // 1_000_000


class OverlayClock:
    """The overlay's time as one member knows it."""

    def __init__(self, offset_ns: int = 0, known: bool = True) -> None:
        self.offset_ns = offset_ns
        #: Whether the offset is known: nothing is measured or dated before.
        self.known = known
        self.steps = 0
        self._samples: deque[_Sample] = deque(maxlen=WINDOW)
        self._contradicting: list[_Sample] = []

    def time_ns(self, now_ns: int) -> int:
        """The overlay's time at a local time."""
        return now_ns + self.offset_ns

    def local_ns(self, time_ns: int) -> int:
        """The local time at which the overlay's time is reached."""
        return time_ns - self.offset_ns

    def error_ns(self, now_ns: int) -> int:
        """The bound of the estimate's error against the parent; 0 where the offset is given."""
        return min((each.bound_ns(now_ns) for each in self._samples), default=0)

    def wall(self, now_ns: int, wall_ns: int) -> int:
        """Take both clocks' readings at one moment; answers with a step in ns, or 0."""
        moved_ns = wall_ns - now_ns - self.offset_ns
        first, self.known = not self.known, True
        self.offset_ns += moved_ns
        if first or abs(moved_ns) < STEP_NS:
            return 0
        self.steps += 1
        return moved_ns

    def answer(self, asked_ns: int, received_ns: int, left_ns: int, now_ns: int) -> int:
        """Take a probe's four times; answers with a step in ns, or 0.

        Times that cannot be are ignored: an answer from before its probe, or slower than
        `ROUND_TRIP_NS_MAX`.
        """
        round_trip_ns = (now_ns - asked_ns) - (left_ns - received_ns)
        if left_ns < received_ns or not 0 <= round_trip_ns <= ROUND_TRIP_NS_MAX:
            return 0
        offset_ns = ((received_ns - asked_ns) + (left_ns - now_ns)) // 2
        sample = _Sample(now_ns, offset_ns, round_trip_ns // 2 + 1)
        if self._samples and self._contradicts(sample):
            return self._believe_step(sample)
        self._contradicting.clear()
        self._samples.append(sample)
        self._choose(now_ns)
        return 0

    def _contradicts(self, sample: _Sample) -> bool:
        best = min(self._samples, key=lambda each: each.bound_ns(sample.at_ns))
        apart_ns = abs(best.offset_ns - sample.offset_ns)
        return apart_ns > best.bound_ns(sample.at_ns) + sample.error_ns

    def _believe_step(self, sample: _Sample) -> int:
        """Keep a sample that contradicts; move once enough of them agree with one another."""
        agreeing = [
            each
            for each in self._contradicting
            if abs(each.offset_ns - sample.offset_ns)
            <= each.bound_ns(sample.at_ns) + sample.error_ns
        ]
        self._contradicting = [*agreeing, sample]
        if len(self._contradicting) < STEP_ANSWERS:
            return 0
        before_ns = self.offset_ns
        self._samples.clear()
        self._samples.extend(self._contradicting)
        self._contradicting.clear()
        self._choose(sample.at_ns)
        self.steps += 1
        return self.offset_ns - before_ns

    def _choose(self, now_ns: int) -> None:
        best = min(self._samples, key=lambda each: each.bound_ns(now_ns))
        self.offset_ns, self.known = best.offset_ns, True
