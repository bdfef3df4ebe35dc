"""A latency histogram of fixed size that records in a few ns, with percentiles within 3 percent.

Buckets are linear below 64 and then 32 to each power of two (the scheme of HdrHistogram), up to
2**42 ns, some 73 minutes; longer values go to the last bucket, negative ones to the first.
"""

import cython
import numpy

#: 32 buckets for each of the powers 2**6 .. 2**41, and the 64 linear ones.
BUCKETS = 32 * 36 + 64


@cython.cclass
class Histogram:
    """Counts of values, in nanoseconds; `count`, `total`, `minimum` and `maximum` are exact."""

    def __init__(self) -> None:
        self.buckets = memoryview(numpy.zeros(BUCKETS, numpy.uint64))
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    @cython.locals(exponent=cython.longlong, top=cython.longlong)
    def record(self, value):
        """Count one value, in ns."""
        exponent = 0
        top = value if value > 0 else 0
        while top >= 1024:
            top >>= 4
            exponent += 4
        while top >= 64:
            top >>= 1
            exponent += 1
        exponent = exponent * 32 + top
        if exponent >= len(self.buckets):
            exponent = len(self.buckets) - 1
        self.buckets[exponent] += 1
        if value < self.minimum or self.count == 0:
            self.minimum = value
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value
        return 0

    def counts(self) -> numpy.ndarray:
        """Return a copy of the buckets (uint64[BUCKETS])."""
        return numpy.array(self.buckets)

    def percentiles(self, *shares: float) -> list[int]:
        """Return the percentiles at these shares (0..1), in ns; zeros where nothing is counted."""
        return percentiles_of(numpy.asarray(self.buckets), *shares)

    def clear(self) -> None:
        """Reset all counts to zero."""
        numpy.asarray(self.buckets)[:] = 0
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0


def upper_bound(bucket: int) -> int:
    """Return the largest value that falls into a bucket."""
    if bucket < 64:
        return bucket
    exponent = (bucket - 32) // 32
    top = bucket - 32 * exponent
    return ((top + 1) << exponent) - 1


def percentiles_of(buckets: numpy.ndarray, *shares: float) -> list[int]:
    """Return percentiles of bucket counts, which may be the difference of two snapshots."""
    running = numpy.cumsum(buckets)
    total = int(buckets.sum())
    if total == 0:
        return [0] * len(shares)
    ranks = [max(1, int(numpy.ceil(share * total))) for share in shares]
    return [upper_bound(int(numpy.searchsorted(running, rank))) for rank in ranks]
