"""The latest ranges announced as lost, to tell a late packet from a duplicate."""

import cython
import numpy

#: Ranges remembered; the oldest gives way, and what comes for it counts as a duplicate.
LOST_RANGES = cython.declare(cython.Py_ssize_t, 64)
#: No number: the largest signed one. (C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class LostRanges:
    """Half-open ranges in ascending order, `LOST_RANGES` of them at most. Beside each stands, by
    line, how many packets others had published when it was announced."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.first = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
        self.end = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
        self.doubtful = memoryview(bytearray(LOST_RANGES))
        self.published = memoryview(numpy.zeros(LOST_RANGES * lines, numpy.uint64))
        self.count = 0
        self.newest = 0

    @cython.locals(at=cython.Py_ssize_t, seen=cython.Py_ssize_t)
    def touches(self, sequence, next_sequence):
        """Does [sequence, next_sequence) touch one? Nearly always the newest answers."""
        at = self.newest
        seen = 0
        while seen < self.count:
            if self.end[at] <= sequence:
                return False
            if self.first[at] < next_sequence:
                return True
            at = at - 1 if at > 0 else LOST_RANGES - 1
            seen += 1
        return False

    @cython.locals(at=cython.Py_ssize_t, seen=cython.Py_ssize_t)
    def _place(self, sequence):
        """Where the range stands that ends behind `sequence`; -1 where none does."""
        at = self.newest
        seen = 0
        while seen < self.count and self.end[at] > sequence:
            if seen + 1 == self.count or self.end[self._before(at)] <= sequence:
                return at
            at = self._before(at)
            seen += 1
        return -1

    def _before(self, at):
        """The place of the range before."""
        return at - 1 if at > 0 else LOST_RANGES - 1

    @cython.locals(at=cython.Py_ssize_t)
    def published_before(self, sequence, line):
        """How much others than `line` had published when the range with `sequence` was announced;
        0 for none."""
        at = self._place(sequence)
        return self.published[at * self.lines + line] if at >= 0 else 0

    @cython.locals(at=cython.Py_ssize_t)
    def first_of(self, sequence):
        """Where the range begins that ends behind `sequence`; the largest number for none."""
        at = self._place(sequence)
        return self.first[at] if at >= 0 else NEVER

    def newest_first(self):
        """Where the newest range begins; there is one."""
        return self.first[self.newest]

    def newest_end(self):
        """One past the newest range; there is one."""
        return self.end[self.newest]

    def cut(self, first):
        """The newest range ends before `first`, or is none at all."""
        self.end[self.newest] = first
        if first <= self.first[self.newest]:
            self.newest = self._before(self.newest)
            self.count -= 1
        return 0

    @cython.locals(at=cython.Py_ssize_t)
    def is_doubtful(self, sequence):
        """Is this number in a range that may be taken back?"""
        at = self._place(sequence)
        return at >= 0 and self.doubtful[at] != 0 and self.first[at] <= sequence

    def add(self, first, end, doubtful):
        """Add the next range, joined to the newest of its kind where they touch. `doubtful`: should
        lines go on in it, it was not lost."""
        if self.count and self.end[self.newest] == first and self.doubtful[self.newest] == doubtful:
            self.end[self.newest] = end
            return 0
        self.newest = self.newest + 1 if self.newest + 1 < LOST_RANGES else 0
        if self.count < LOST_RANGES:
            self.count += 1
        self.first[self.newest] = first
        self.end[self.newest] = end
        self.doubtful[self.newest] = doubtful
        return 0

    def clear(self):
        """Forget all: a new numbering begins."""
        self.count = 0
        return 0
