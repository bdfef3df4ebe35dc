"""One-way delays and lateness: of one receiver in an interval, and merged up the tree (section 6).

A receiver takes quantiles of the delays of an interval, and notes which messages were late. Each
member above merges what its children have reported since its last interval: the maximum of each
quantile, the union of the late messages. Children that reported nothing are passed over. The
source merges the 95th percentile alone; here a few quantiles go up together, so that the sender may
choose, and the union says of every message whether it was fair, which no count per receiver does.

A report moves the deadline by no more than its bounds: delays are cut to `delay_ns_max`, and where
three children or more report, one whose 95th percentile is `outlier_factor` times the median, or
that alone is late, is set apart and told. One that claims to be late in fewer messages than that
can have the controller hold for the maximum of what was reported and half of it more
(`fairness.DECADE_MAX`), within the sender's `hold_ns_max`.
"""

import random
from typing import NamedTuple

from feedhandler.overlay.counters import Counts
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.wire import OUTLIERS_MAX, QUANTILE_LEVELS, REPORT_IDS_MAX, Report

#: Delays of an interval that are kept: 2,048 leave two above the 99.9th percentile.
SAMPLES_MAX = 2_048
#: Where the 95th percentile is among a report's quantiles.
P95 = QUANTILE_LEVELS.index(9_500)
#: An outlier is at least so far from the median: less is what hosts differ by.
OUTLIER_NS_MIN = 50_000
#: A child that is late in a quarter of what it judges, where half of them are in no twentieth.
LATE_OUTLIER, LATE_NORMAL = 0.25, 0.05
#: With fewer children nobody can say which one is the outlier.
OUTLIER_CHILDREN_MIN = 3
#: Ids below which a share of late ones says nothing.
LATE_IDS_MIN = 16
#: Late ids that wait for a report; beyond, those that no report will have any more are dropped.
LATE_IDS_MAX = 4 * REPORT_IDS_MAX
#: Ids that a tally follows: those of two intervals and of reports that are late themselves.
TALLY_IDS_MAX = 16 * REPORT_IDS_MAX


class DelaySettings(NamedTuple):
    """Bounds of reports.

    delay_ns_max     a reported delay counts up to here
    outlier_factor   times the median of the children's 95th percentiles, it is an outlier
    """

    delay_ns_max: int = 5_000_000
    outlier_factor: int = 4


class DelayWindow:
    """The delays of one interval: all of them, or an even sample of `SAMPLES_MAX`."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._samples: list[int] = []
        self._seen = 0

    def add(self, delay_ns: int) -> None:
        """A message took so long; a clock that is behind makes it 0, no less."""
        self._seen += 1
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(max(0, delay_ns))
        elif (at := self._dice.randrange(self._seen)) < SAMPLES_MAX:
            self._samples[at] = max(0, delay_ns)

    def take(self) -> tuple[int, ...]:
        """The quantiles of `QUANTILE_LEVELS`, by nearest rank, and begin anew; () without any."""
        ordered = sorted(self._samples)
        self._samples, self._seen = [], 0
        if not ordered:
            return ()
        return tuple(ordered[-(-level * len(ordered) // 10_000) - 1] for level in QUANTILE_LEVELS)


class LateIds:
    """The messages of one receiver that were late, until they have been reported."""

    def __init__(self) -> None:
        self._late: set[int] = set()
        self._first = 0

    def begin(self, first: int) -> None:
        """Judge from this id on, of a new epoch."""
        self._late, self._first = set(), first

    def add(self, id: int) -> None:
        """A message came after its deadline."""
        if id < self._first:
            return
        self._late.add(id)
        if len(self._late) > LATE_IDS_MAX:
            lowest = max(self._late) - REPORT_IDS_MAX
            self._late = {each for each in self._late if each > lowest}

    def take(self, end: int) -> tuple[int, int, int]:
        """First id, count and late bits of the ids below `end` that were not yet reported; of more
        than `REPORT_IDS_MAX` the last ones."""
        first = max(self._first, end - REPORT_IDS_MAX)
        late = sum(1 << (each - first) for each in self._late if first <= each < end)
        self._late = {each for each in self._late if each >= end}
        self._first = max(self._first, end)
        return first, max(0, end - first), late


class SetApart(NamedTuple):
    """Children's reports were set apart, as outliers."""

    names: tuple[str, ...]


class Aggregator:
    """Reports of children, merged once an interval. Children are named; `receiver` numbers them
    where they are receivers, and is -1 for proxies."""

    def __init__(self, settings: DelaySettings, counts: Counts) -> None:
        self.settings, self._counts = settings, counts
        self._reports: dict[str, tuple[int, Report]] = {}
        #: 95th percentile and share of late messages that each child has reported last: outliers
        #: are judged by all children, those too that reported nothing lately.
        self._normal: dict[str, tuple[int, float]] = {}

    def add(self, name: str, receiver: int, report: Report) -> None:
        """Take a child's report; a second one in an interval replaces its delays and adds ids."""
        bound_ns = self.settings.delay_ns_max
        if report.quantiles_ns[-1] > bound_ns:
            self._counts.add(C.CLAMPED)
            cut = tuple(min(each, bound_ns) for each in report.quantiles_ns)
            report = report._replace(quantiles_ns=cut)
        if name in self._reports:
            first, count, late = _union([self._reports[name][1], report])
            report = report._replace(first=first, count=count, late=late)
        self._counts.add(C.REPORTS)
        self._reports[name] = receiver, report
        self._normal[name] = report.quantiles_ns[P95], _late_share(report)

    def forget(self, name: str) -> None:
        """A child is another one now."""
        self._reports.pop(name, None)
        self._normal.pop(name, None)

    def merge(self) -> tuple[Report | None, SetApart | None]:
        """What all reports together say, without outliers, and who those were; begin anew."""
        reports, self._reports = self._reports, {}
        names = tuple(name for name in reports if self._is_outlier(name))
        self._counts.add(C.OUTLIERS, len(names))
        apart = SetApart(names) if names else None
        taken = [report for name, (_, report) in reports.items() if name not in names]
        if not taken:
            return None, apart
        told = [reports[name][0] for name in names if reports[name][0] >= 0]
        for each in taken:
            told += each.outliers
        first, count, late = _union(taken)
        quantiles_ns = tuple(
            max(column) for column in zip(*(each.quantiles_ns for each in taken), strict=True)
        )
        receivers = sum(each.receivers for each in taken)
        outliers = tuple(told[:OUTLIERS_MAX])
        return Report(receivers, quantiles_ns, first, count, late, outliers), apart

    def _is_outlier(self, name: str) -> bool:
        if len(self._normal) < OUTLIER_CHILDREN_MIN:
            return False
        middle = (len(self._normal) - 1) // 2
        median_ns = sorted(delay_ns for delay_ns, _ in self._normal.values())[middle]
        share = sorted(share for _, share in self._normal.values())[middle]
        high_ns = max(self.settings.outlier_factor * median_ns, median_ns + OUTLIER_NS_MIN)
        delay_ns, late = self._normal[name]
        return delay_ns > high_ns or (share <= LATE_NORMAL and late > LATE_OUTLIER)


def _late_share(report: Report) -> float:
    """The share of late messages; 0 where there are too few to say."""
    return report.late.bit_count() / report.count if report.count >= LATE_IDS_MIN else 0.0


def _union(reports: list[Report]) -> tuple[int, int, int]:
    """First id, count and late bits of all reports together; of too many ids the last ones."""
    judged = [each for each in reports if each.count]
    if not judged:
        return 0, 0, 0
    end = max(each.first + each.count for each in judged)
    first = max(min(each.first for each in judged), end - REPORT_IDS_MAX)
    late = 0
    for each in judged:
        ahead = each.first - first
        late |= each.late << ahead if ahead >= 0 else each.late >> -ahead
    return first, end - first, late


class FairTally:
    """Which messages were fair at all receivers, as reports come in: a message is judged once two
    intervals have passed since the first report on it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget all, for a new epoch."""
        self._base = 0
        self._known = self._late = 0
        self._settled = self._end = 0

    def add(self, report: Report) -> None:
        """Take what one report judges."""
        if not report.count or not report.first:
            return
        if not self._base:
            self._base = self._settled = self._end = report.first
        ahead = report.first - self._base
        if ahead + report.count > TALLY_IDS_MAX or ahead + report.count <= 0:
            return
        known, late = (1 << report.count) - 1, report.late
        self._known |= known << ahead if ahead >= 0 else known >> -ahead
        self._late |= late << ahead if ahead >= 0 else late >> -ahead
        self._end = max(self._end, report.first + report.count)

    def settle(self) -> tuple[int, int]:
        """How many messages were fair, and of how many; call it once an interval."""
        width = self._settled - self._base
        mask = (1 << width) - 1
        total = (self._known & mask).bit_count()
        fair = total - (self._known & self._late & mask).bit_count()
        self._known >>= width
        self._late >>= width
        self._base, self._settled = self._settled, self._end
        return fair, total
