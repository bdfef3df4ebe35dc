"""Progress of a run: rates, lateness and the time left, from samples of a player's counts.

A `Watch` is given a `Sample` each time and returns the changes since an earlier one. However
often it is sampled, rates are over `LOOK_NS` or more. The clock of the samples is
the sender's, which stands still in a pause, so that pauses change no rate and no estimate; a seek
begins another turn, and what is left is estimated from what was played of that. Sans-IO.
"""

import dataclasses

#: Rates are over so much of the sender's time or more.
LOOK_NS = 200_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class PlayProgress:
    """Progress of a run.

    `elapsed_ns` is without pauses. `datagrams_per_second`, summed over lines, and `lateness_ns`,
    the mean of the sends, are of the latest fraction of a second; flat out there is no lateness.
    `left_ns` is an estimate, None while there is nothing to estimate from. `position_ns` is the
    recorded time of the latest datagram sent, None before the first.
    """

    elapsed_ns: int
    paused: bool
    sent: int
    payload_bytes: int
    datagrams_per_second: float
    share_done: float
    left_ns: int | None
    lateness_ns: int
    lateness_max_ns: int
    position_ns: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One sample: the sender's clock and counts, and how much of the source the turn has done."""

    clock_ns: int
    sent: int
    lateness_sum_ns: int
    turn: int
    share_done: float


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """Speed over an interval: datagrams a second, mean lateness, and the time left, if known."""

    datagrams_per_second: float
    lateness_ns: int
    left_ns: int | None


class Watch:
    """Samples of one run; to be used by one thread at a time."""

    def __init__(self) -> None:
        self._base = Sample(0, 0, 0, -1, 0.0)
        self._begun = self._base
        self._rate = 0.0
        self._lateness_ns = 0

    def update(self, sample: Sample) -> Speed:
        """Return rate, lateness and time left since an earlier sample."""
        if sample.turn != self._begun.turn:
            if self._begun.turn < 0:
                self._base = sample
            self._begun = sample
        spent_ns = sample.clock_ns - self._base.clock_ns
        if spent_ns >= LOOK_NS or (spent_ns > 0 and not self._rate):
            self._compare(sample, spent_ns)
        return Speed(self._rate, self._lateness_ns, self._left_ns(sample))

    def _compare(self, sample: Sample, spent_ns: int) -> None:
        sent = sample.sent - self._base.sent
        self._rate = sent * 1e9 / spent_ns
        if sent:
            self._lateness_ns = (sample.lateness_sum_ns - self._base.lateness_sum_ns) // sent
        if spent_ns >= LOOK_NS:
            self._base = sample

    def _left_ns(self, sample: Sample) -> int | None:
        done = sample.share_done - self._begun.share_done
        spent_ns = sample.clock_ns - self._begun.clock_ns
        if done <= 0 or spent_ns <= 0:
            return None
        return round(spent_ns * (1 - sample.share_done) / done)
