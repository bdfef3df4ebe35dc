"""Log scales on which times are counted, and a latency histogram that records in a few ns.

On a scale of `bits` each power of two is cut into 2**bits buckets, and values below 2**(bits + 1)
have a bucket of their own (the scheme of HdrHistogram); longer values go to the last bucket. The
scale of `Histogram` has 5 bits up to 2**42 ns, some 73 minutes: percentiles within 3 percent. The
fine one has 7 bits up to 2**47 ns, 39 hours: within 1 percent.
"""

import cython
import numpy

from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.feedhandler.highest_bit import highest_bit
else:

    def highest_bit(value: int) -> int:
        """Return the index of the highest set bit of a number of at least 1."""
        return value.bit_length() - 1


BITS, FINE_BITS = 5, 7
BUCKETS = (42 - BITS + 1) << BITS
FINE_BUCKETS = (47 - FINE_BITS + 1) << FINE_BITS

_FINE_LAST = cython.declare(cython.Py_ssize_t, FINE_BUCKETS - 1)


@cython.ccall
@cython.nogil
@cython.exceptval(check=False)
def bucket_of(
    value: cython.longlong, bits: cython.int, last: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the bucket of a value of at least 0, `last` at most, on a scale of `bits`."""
    if value >> bits == 0:
        return value
    power: cython.int = highest_bit(value) - bits
    bucket: cython.Py_ssize_t = (value >> power) + (power << bits)
    return bucket if bucket < last else last


@cython.ccall
@cython.nogil
@cython.exceptval(check=False)
def fine_bucket_of(value: cython.longlong) -> cython.Py_ssize_t:
    """Return the bucket of a time of at least 0 ns on the fine scale."""
    return bucket_of(value, 7, _FINE_LAST)


def lower_bounds(bits: int = BITS, buckets: int = BUCKETS) -> numpy.ndarray:
    """Return the least value of each bucket (int64[buckets])."""
    bucket = numpy.arange(buckets)
    power = numpy.maximum((bucket >> bits) - 1, 0)
    return (bucket - (power << bits)) << power


#: The largest value of each bucket of a `Histogram`, and the least of each one of the fine scale.
UPPER_BOUNDS = lower_bounds(BITS, BUCKETS + 1)[1:] - 1
FINE_BOUNDS = lower_bounds(FINE_BITS, FINE_BUCKETS)


@cython.cclass
class Histogram:
    """Counts of values, in nanoseconds; `count`, `total`, `minimum` and `maximum` are exact."""

    buckets: cython.ulonglong[::1]
    count: Readonly[cython.ulonglong]
    total: Readonly[cython.longlong]
    minimum: Readonly[cython.longlong]
    maximum: Readonly[cython.longlong]

    def __init__(self) -> None:
        self.buckets = memoryview(numpy.zeros(BUCKETS, numpy.uint64))
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    @cython.ccall
    @cython.exceptval(check=False)
    def record(self, value: cython.longlong) -> cython.int:
        """Count one value, in ns; a negative one in the first bucket."""
        self.buckets[bucket_of(value, 5, len(self.buckets) - 1) if value > 0 else 0] += 1
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


def percentiles_of(
    buckets: numpy.ndarray, *shares: float, bounds: numpy.ndarray = UPPER_BOUNDS
) -> list[int]:
    """Return percentiles of bucket counts, which may be the difference of two snapshots.

    A percentile is the bound of the bucket in which this share (0..1) of the values ends; zeros
    where nothing is counted.
    """
    running = numpy.cumsum(buckets)
    total = int(buckets.sum())
    if total == 0:
        return [0] * len(shares)
    ranks = [max(1, int(numpy.ceil(share * total))) for share in shares]
    return bounds[numpy.searchsorted(running, ranks)].tolist()
