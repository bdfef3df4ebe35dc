"""One-way delays of an interval, on their way up the tree.

A message belongs to the interval of its sender's clock in which it was sent, so that all receivers
count the same messages together. A receiver keeps the delays of an interval, at most `SAMPLES_MAX`
of them, and reports quantiles (`fairness.LADDER`) and which messages were late. A proxy takes the
maximum of each quantile over its children's reports and the union of the late messages, and reports
that; silent children are left out ("Jasper", section 6: an all-reduce up the tree, because reports
of all receivers at once would be lost at the sender).

A report's delay above `bound_ns` counts as `bound_ns`: a receiver that lies moves everyone's
deadline by no more than that. A child whose median already is above it is no working part of this
tree (its machine is stalled, or its clock is off): its report is set apart, and the child is named.

A report also has the longest last hop (`last_hop`), which is merged separately.

A report as a payload, little-endian: interval (8 bytes), receivers (4), messages (4), the last hop
in ns (8; 0: not known), delays at the quantiles in ns (8 each), and the late messages, a bit for
each id modulo `LATE_BITS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from feedhandler.overlay import last_hop
from feedhandler.overlay.fairness import LADDER

#: Upper limit on the delays kept of an interval: more are thinned out evenly.
SAMPLES_MAX = 16_384
#: Late messages that a report distinguishes: those of an interval, at 8,192 a second.
LATE_BITS = 8_192
LATE_BYTES = LATE_BITS // 8
#: Default upper limit on delays: longer ones count as this.
BOUND_NS = 10_000_000
#: Default interval.
INTERVAL_NS = 1_000_000_000
_HEAD = Struct(f"<QIIQ{len(LADDER)}Q")
REPORT_BYTES = _HEAD.size + LATE_BYTES


@dataclass(frozen=True, slots=True)
class Report:
    """One member's report of an interval.

    `rungs`: delays at the quantiles of `LADDER`, ns; `late`: a bitmap as a number; `last_hop_ns`:
    the longest, 0 where none is known.
    """

    interval: int
    receivers: int
    messages: int
    rungs: tuple[int, ...]
    late: int = 0
    last_hop_ns: int = 0

    @property
    def late_count(self) -> int:
        """Number of messages that were late somewhere."""
        return self.late.bit_count()

    def encoded(self) -> bytes:
        """Encode the report as a payload."""
        head = _HEAD.pack(
            self.interval, self.receivers, self.messages, self.last_hop_ns, *self.rungs
        )
        return head + self.late.to_bytes(LATE_BYTES, "little")


def decode_report(payload: bytes) -> Report | None:
    """Decode a report; None where the payload is none."""
    if len(payload) != REPORT_BYTES:
        return None
    interval, receivers, messages, last_hop_ns, *rungs = _HEAD.unpack_from(payload)
    if receivers == 0 or list(rungs) != sorted(rungs):
        return None
    late = int.from_bytes(payload[_HEAD.size :], "little")
    return Report(interval, receivers, messages, tuple(rungs), late, last_hop_ns)


class DelayRecord:
    """A receiver's record of delays, interval by interval."""

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        import numpy  # imported when a receiver starts: a proxy is smaller without it

        self._numpy = numpy
        self.interval_ns = interval_ns
        self._interval = -1
        self._delays: list[int] = []
        self._every = 1
        self._messages = 0
        self._late = 0

    @property
    def ends_ns(self) -> int:
        """When the present interval ends, by the sender's clock; 0 where there is none."""
        return (self._interval + 1) * self.interval_ns if self._messages else 0

    def add(self, number: int, sent_ns: int, delay_ns: int, late: bool) -> Report | None:
        """Record a first copy; return the last interval's report where this begins another.

        A message of an interval that was reported is not counted.
        """
        interval = sent_ns // self.interval_ns
        if interval < self._interval:
            return None
        report = self.close() if interval > self._interval else None
        self._interval = interval
        if self._messages % self._every == 0:
            self._delays.append(max(delay_ns, 0))
            if len(self._delays) >= SAMPLES_MAX:
                self._delays = self._delays[::2]
                self._every *= 2
        self._messages += 1
        if late:
            self._late |= 1 << (number % LATE_BITS)
        return report

    def missed(self, first: int, last: int, step: int = 1) -> None:
        """Record every `step`-th of these messages as late, because they were given up.

        Without delays of their own they count for the present interval.
        """
        for number in range(first, min(last, first + LATE_BITS) + 1, step):
            self._late |= 1 << (number % LATE_BITS)

    def close(self) -> Report | None:
        """Close the present interval and return its report; None where nothing came."""
        if not self._messages:
            return None
        numpy = self._numpy
        rungs = numpy.quantile(numpy.array(self._delays, numpy.float64), LADDER)
        report = Report(
            self._interval, 1, self._messages, tuple(int(rung) for rung in rungs), self._late
        )
        self._delays, self._every, self._messages, self._late = [], 1, 0, 0
        self._interval += 1  # what still comes of the one that is reported is not counted
        return report


@dataclass(slots=True)
class _Gathering:
    """Reports of one interval, by child."""

    since_ns: int
    reports: dict[str, Report] = field(default_factory=dict)


class ReportGatherer:
    """Reports of the children, gathered interval by interval.

    `wait_ns`: how long after an interval's first report the others are waited for. Delays count up
    to `bound_ns`, last hops up to `last_hop.BOUND_NS`.
    """

    def __init__(
        self,
        children: Sequence[str],
        wait_ns: int = INTERVAL_NS // 4,
        bound_ns: int = BOUND_NS,
    ) -> None:
        self.children = frozenset(children)
        self.bound_ns = bound_ns
        self._hops = last_hop.LongestHop()
        self._wait_ns = wait_ns
        self._gathering: dict[int, _Gathering] = {}
        self._done = -1
        #: Children whose last report was set apart.
        self.apart: set[str] = set()
        #: Reports that came after their interval was closed, or again.
        self.useless = 0

    def succeed(self, before: "ReportGatherer") -> None:
        """Go on where the gatherer of an older topology ends: an interval that it has reported is
        not reported again, and its count goes on."""
        self._done, self.useless = before._done, before.useless

    #: Upper limit on intervals gathered at a time: more come from a member whose clock is off.
    INTERVALS_MAX = 4

    @property
    def deadline_ns(self) -> int:
        """When `due` must be called; 0: no deadline."""
        waiting = [each.since_ns for each in self._gathering.values()]
        return min(waiting) + self._wait_ns if waiting else 0

    def add(self, child: str, report: Report, now_ns: int) -> None:
        """Take a child's report."""
        gathering = self._gathering.get(report.interval)
        if (
            report.interval <= self._done
            or child not in self.children
            or (gathering is None and len(self._gathering) >= self.INTERVALS_MAX)
            or (gathering is not None and child in gathering.reports)
        ):
            self.useless += 1
            return
        if gathering is None:
            gathering = self._gathering[report.interval] = _Gathering(now_ns)
        gathering.reports[child] = report

    def due(self, now_ns: int) -> Report | None:
        """Return the merged report of the oldest complete or overdue interval; None: none is."""
        for interval in sorted(self._gathering):
            gathering = self._gathering[interval]
            complete = len(gathering.reports) == len(self.children)
            if complete or now_ns - gathering.since_ns >= self._wait_ns:
                del self._gathering[interval]
                for older in [each for each in self._gathering if each < interval]:
                    self.useless += len(self._gathering.pop(older).reports)
                self._done = max(self._done, interval)
                if (report := self._merged(interval, gathering.reports)) is not None:
                    return report
        return None

    def _merged(self, interval: int, reports: dict[str, Report]) -> Report | None:
        bound = self.bound_ns
        counted = {}
        for child, report in reports.items():
            if report.rungs[0] > bound:
                self.apart.add(child)
            else:
                self.apart.discard(child)
                counted[child] = report
                self._hops.report(child, report.last_hop_ns, interval)
        if not counted:
            return None
        late = 0
        for report in counted.values():
            late |= report.late
        rungs = tuple(
            min(max(each.rungs[rung] for each in counted.values()), bound)
            for rung in range(len(LADDER))
        )
        return Report(
            interval,
            sum(each.receivers for each in counted.values()),
            max(each.messages for each in counted.values()),
            rungs,
            late,
            self._hops.longest_ns(interval),
        )
