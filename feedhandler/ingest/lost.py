"""The latest ranges announced as lost, to tell a late packet from a duplicate."""

import cython
import numpy

#: Ranges remembered; the oldest gives way, and what comes for it counts as a duplicate.
LOST_RANGES = cython.declare(cython.Py_ssize_t, 64)


@cython.final
@cython.cclass
class LostRanges:
    """Half-open ranges in ascending order, `LOST_RANGES` of them at most."""

    def __init__(self) -> None:
        self.first = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
        self.end = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
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

    def add(self, first, end):
        """Add the next range, joined to the newest where they touch."""
        if self.count and self.end[self.newest] == first:
            self.end[self.newest] = end
            return 0
        self.newest = self.newest + 1 if self.newest + 1 < LOST_RANGES else 0
        if self.count < LOST_RANGES:
            self.count += 1
        self.first[self.newest] = first
        self.end[self.newest] = end
        return 0

    def clear(self):
        """Forget all: a new numbering begins."""
        self.count = 0
        return 0
