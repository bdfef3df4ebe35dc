"""The log scale on which times are counted: 1 % resolution from a nanosecond to a day and a half.

Below 128 ns each nanosecond has a bucket of its own; above, each power of two is cut into 128 (a
bucket is at most 0.8 % wide). Longer times fall into the last bucket. `bucket_of` is for compiled
callers; `lower_bounds` is its inverse, for readers of histograms. No I/O, compiled.
"""

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.feedhandler.characterise.highest_bit import highest_bit
else:

    def highest_bit(value: int) -> int:
        """Return the index of the highest set bit of a number of at least 1."""
        return value.bit_length() - 1


#: Buckets to a power of two, and the linear ones below.
STEPS = 128
#: The first power that is cut into steps, and the one at which the scale ends (39 hours).
FIRST_POWER, LAST_POWER = 7, 47
BUCKETS = STEPS + STEPS * (LAST_POWER - FIRST_POWER)

_LAST = cython.declare(cython.Py_ssize_t, BUCKETS - 1)


@cython.ccall
@cython.nogil
@cython.exceptval(-1, check=True)
def bucket_of(value_ns: cython.longlong) -> cython.Py_ssize_t:
    """Return the bucket of a time of at least 0 ns."""
    if value_ns < 256:
        return value_ns
    power: cython.int = highest_bit(value_ns) - 7
    bucket: cython.Py_ssize_t = (value_ns >> power) + 128 * power
    return bucket if bucket < _LAST else _LAST


def lower_bounds() -> np.ndarray:
    """Return the least time of each bucket, in ns (int64[BUCKETS])."""
    linear = np.arange(2 * STEPS, dtype=np.int64)
    powers = np.arange(1, LAST_POWER - FIRST_POWER, dtype=np.int64)
    return np.concatenate([linear, *(linear[STEPS:] << power for power in powers)])
