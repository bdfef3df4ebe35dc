# cython: annotation_typing=False, wraparound=True
"""Sets of sequence numbers, kept as merged ranges.

Losses come in runs, so what is missing, requested, announced or held is a handful of ranges even
when it is a hundred thousand packets. A `RangeSet` holds them sorted, disjoint and merged: [3, 5]
and [6, 9] are one range, [3, 9]. Both ends belong to a range, as in a retransmission request.

It is bounded. A set that would hold more than `limit` ranges joins the two neighbours with the
narrowest gap between them, and counts the numbers taken in by that as `widened`, the ranges as
`joined`. So a full set claims too much, never too little: losses announced from it are never
understated, and a caller that needs exactness checks that `widened` is zero. Looking for that gap
costs as much as the set is long, for each range added. A set that seldom shrinks (`only_grows`) is
halved when it is full; its latest quarter stays exact, as numbers may come late, or a loss be
withdrawn.

It knows nothing of services, time or what the numbers count; the caller keeps one set for each
sequence-number space.

Compiled. Most sets are empty or hold one
range most of the time, so that case is tested first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import cython

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.visibility import Public

#: Ranges a set may hold: at 100 bytes a range well under a megabyte for each channel.
RANGES_MAX = 4096


@cython.final
@cython.cclass
class RangeSet:
    """A bounded set of whole numbers, kept as sorted ranges `(first, last)`, both included.

    Raises `UsageError` for a `limit` below 1, and for an empty range.
    """

    _firsts: list
    _lasts: list
    _only_grows: cython.bint
    limit: Public[object]
    widened: Public[object]
    joined: Public[object]

    def __init__(
        self,
        ranges: Iterable[tuple[int, int]] = (),
        limit: int = RANGES_MAX,
        only_grows: bool = False,
    ) -> None:
        if limit < 1:
            raise UsageError(f"a range set cannot be limited to {limit} ranges", "use 1 or more")
        self._only_grows = only_grows
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.limit = limit
        #: Counts of the numbers that joining ranges of a full set has taken in, and of the ranges
        #: that became part of another by it.
        self.widened = self.joined = 0
        for first, last in ranges:
            self.add(first, last)

    @cython.ccall
    def add(self, first: int, last: int) -> None:
        """Add `first` to `last`, both included. Raises `UsageError` for an empty range."""
        _check(first, last)
        if not self._firsts:
            self._firsts.append(first)
            self._lasts.append(last)
            return
        if first > self._lasts[len(self._lasts) - 1] + 1:
            # Beyond all other ranges, which is the usual case.
            self._firsts.append(first)
            self._lasts.append(last)
            if len(self._firsts) > self.limit:
                self._make_room()
            return
        # The new range absorbs every range that overlaps or touches it.
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]
        while len(self._firsts) > self.limit:
            self._make_room()

    def replace(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Replace the content by `ranges`, which may overlap and come in any order.

        Raises `UsageError` for an empty range; the set is unchanged then.
        """
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in sorted(ranges):
            _check(first, last)
            if lasts and first <= lasts[len(lasts) - 1] + 1:
                if last > lasts[len(lasts) - 1]:
                    lasts[len(lasts) - 1] = last
            else:
                firsts.append(first)
                lasts.append(last)
        self._firsts, self._lasts = firsts, lasts
        if len(firsts) > self.limit:
            self.coarsen(self.limit)

    def latest(self, most: int) -> list[tuple[int, int]]:
        """Return the highest ranges, at most `most` of them, ascending."""
        at = max(len(self._firsts) - most, 0)
        return list(zip(self._firsts[at:], self._lasts[at:], strict=True))

    def latest_with(self, ranges: Iterable[tuple[int, int]], most: int) -> list[tuple[int, int]]:
        """Return the highest ranges, at most `most` of them, ascending, of this set and `ranges`
        together. The set is unchanged, and of it no more is looked at than is returned.

        Raises `UsageError` for an empty range in `ranges`.
        """
        others = list(RangeSet(ranges))
        found: list[tuple[int, int]] = []
        at = len(self._firsts) - 1
        while at >= 0 or others:
            if not others or (at >= 0 and self._lasts[at] >= others[-1][1]):
                first, last = self._firsts[at], self._lasts[at]
                at -= 1
            else:
                first, last = others.pop()
            if found and last + 1 >= found[-1][0]:
                low, high = found[-1]
                found[-1] = (min(first, low), high)
            elif len(found) == most:
                break
            else:
                found.append((first, last))
        found.reverse()
        return found

    @cython.ccall
    def discard(self, first: int, last: int) -> None:
        """Remove `first` to `last`, both included, whether or not they are in the set.

        Splitting a range may fill the set; then the narrowest gap is taken in again. Raises
        `UsageError` for an empty range.
        """
        _check(first, last)
        if not self.touches(first, last):
            return
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        kept: list[tuple[int, int]] = []
        if self._firsts[low] < first:
            kept.append((self._firsts[low], first - 1))
        if self._lasts[high - 1] > last:
            kept.append((last + 1, self._lasts[high - 1]))
        self._firsts[low:high] = [begin for begin, _ in kept]
        self._lasts[low:high] = [end for _, end in kept]
        while len(self._firsts) > self.limit:
            self._make_room()

    @cython.ccall
    def discard_below(self, number: int) -> None:
        """Remove every number less than `number`."""
        if self._firsts and self._firsts[0] < number:
            self.discard(self._firsts[0], number - 1)

    @cython.ccall
    def clear(self) -> None:
        """Remove every number; `widened` and `joined` stay, as counters do."""
        self._firsts.clear()
        self._lasts.clear()

    @cython.returns(list)
    @cython.ccall
    def missing_in(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges inside `first` to `last` that are not in the set, ascending."""
        _check(first, last)
        gaps: list[tuple[int, int]] = []
        for begin, end in self.within(first, last):
            if begin > first:
                gaps.append((first, begin - 1))
            first = end + 1
        if first <= last:
            gaps.append((first, last))
        return gaps

    @cython.returns(list)
    @cython.ccall
    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of the set inside `first` to `last`, ascending."""
        _check(first, last)
        if not self._firsts:
            return []
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [
            (max(first, self._firsts[at]), min(last, self._lasts[at])) for at in range(low, high)
        ]

    @cython.returns(cython.bint)
    def touches(self, first: int, last: int) -> bool:
        """Return whether any number from `first` to `last` is in the set."""
        _check(first, last)
        if not self._firsts or last < self._firsts[0] or first > self._lasts[-1]:
            return False
        return bool(self._firsts[bisect_left(self._lasts, first)] <= last)

    @cython.returns(cython.bint)
    def covers(self, first: int, last: int) -> bool:
        """Return whether every number from `first` to `last` is in the set."""
        _check(first, last)
        at = bisect_left(self._lasts, last)
        return at < len(self._firsts) and self._firsts[at] <= first

    @property
    def lowest(self) -> int:
        """The lowest number of the set. Raises IndexError for an empty set."""
        return self._firsts[0]

    @property
    def highest(self) -> int:
        """The highest number of the set. Raises IndexError for an empty set."""
        return self._lasts[-1]

    @property
    def total(self) -> int:
        """The number of numbers in the set (`len` counts ranges)."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_left(self._lasts, number)
        return at < len(self._firsts) and self._firsts[at] <= number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """Return the number of ranges (`total` counts the numbers)."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def coarsen(self, most: int, exact: int = 0) -> None:
        """Join neighbours, narrowest gap first, until at most `most` ranges (1 at least) are left.

        The latest `exact` ranges, fewer than `most`, stay as they are. `widened` counts the numbers
        taken in.
        """
        excess = len(self._firsts) - max(most, 1)
        if excess <= 0:
            return
        # The gap behind each range, but those in front of the latest.
        behind = self._firsts[1 : len(self._firsts) - exact]
        gaps = [begin - end - 1 for begin, end in zip(behind, self._lasts, strict=False)]
        narrow = sorted(gaps)[:excess]
        widest = narrow[-1]
        # Not all gaps as wide as the widest one to be closed need be closed: `spare` of them.
        spare = narrow.count(widest)
        firsts, lasts = self._firsts[:1], []
        for at, width in enumerate(gaps):
            if width < widest or (width == widest and spare > 0):
                spare -= width == widest
            else:
                firsts.append(self._firsts[at + 1])
                lasts.append(self._lasts[at])
        at = len(gaps)
        self._firsts, self._lasts = firsts + self._firsts[at + 1 :], lasts + self._lasts[at:]
        self.widened += sum(narrow)
        self.joined += excess

    def _make_room(self) -> None:
        """Join the two neighbours with the narrowest gap between them, or half of the ranges."""
        if self._only_grows:
            self.coarsen(self.limit // 2, exact=self.limit // 4)
            return
        gaps = [begin - end - 1 for begin, end in zip(self._firsts[1:], self._lasts, strict=False)]
        at = gaps.index(min(gaps))
        self.widened += gaps[at]
        self.joined += 1
        del self._firsts[at + 1]
        del self._lasts[at]


@cython.cfunc
def _check(first: int, last: int) -> None:
    if first > last:
        raise UsageError(f"the range {first} to {last} is empty", "give the lower number first")
