# cython: language_level=3, boundscheck=True, cdivision=True
"""Random numbers for the generator, as integers: the same seed, the same draws, on any machine.

`Prng` is PCG-32 (O'Neill 2014: a 64-bit linear congruence, its output permuted), with waits that
are exponentially distributed by a table of correctly rounded logarithms. No floating point takes
part, so compiled and interpreted twins and all machines agree to the last byte.

`Crowd` draws the next of some instruments: any, as often as its weight says, or one that came a
few milliseconds ago (`again`).
"""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate

import cython
import numpy

#: PCG-32's multiplier and an odd increment, both below 2**63.
_FACTOR = cython.declare(cython.ulonglong, 6364136223846793005)
_STEP = cython.declare(cython.ulonglong, 1442695040888963407)
_WORD = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_MASK = (1 << 64) - 1
#: Entries of the table of waits.
WAITS = 1024
#: Entries of a crowd's table of weights: the least likely member has about one.
TABLE_ENTRIES = 1 << 18
#: Comers that a crowd remembers, and how long ago `again` looks for them.
RING = 1 << 14
AGAIN_NS_MIN, AGAIN_NS_MAX = 1_050_000, 9_000_000
_RING = cython.declare(cython.Py_ssize_t, RING)
_AGAIN_MIN = cython.declare(cython.longlong, AGAIN_NS_MIN)
_AGAIN_MAX = cython.declare(cython.longlong, AGAIN_NS_MAX)


@cython.final
@cython.cclass
class Prng:
    """Draws from a seed, 0 or more."""

    state: cython.ulonglong
    waits: cython.int[::1]

    def __init__(self, seed: int) -> None:
        self.state = (seed * 2_862_933_555_777_941_757 + 3_037_000_493) & _MASK
        self.waits = memoryview(_waits().copy())
        for _ in range(4):
            self.next_u32()

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def next_u32(self) -> cython.uint:
        """Draw a uniform number of 32 bits."""
        old: cython.ulonglong = self.state
        if cython.compiled:
            self.state = old * _FACTOR + _STEP
        else:
            self.state = (old * _FACTOR + _STEP) & _MASK
        word: cython.ulonglong = (((old >> 18) ^ old) >> 27) & _WORD
        turn: cython.ulonglong = old >> 59
        return ((word >> turn) | (word << ((32 - turn) & 31))) & _WORD

    def below(self, number: cython.uint) -> cython.int:
        """Draw a uniform number of 0 to `number` - 1; 0 for 0."""
        wide: cython.ulonglong = self.next_u32()
        return (wide * number) >> 32

    def wait(self, mean: cython.int) -> cython.int:
        """Draw an exponentially distributed number of mean `mean`, at most about 7 times that."""
        wide: cython.longlong = self.waits[self.next_u32() >> 22]
        return (wide * mean) >> 16


@cython.final
@cython.cclass
class Crowd:
    """Members 0 to n - 1, each with a weight of 0 or more; see the module."""

    prng: Prng
    table: cython.int[::1]
    ring: cython.int[::1]
    ring_ns: cython.longlong[::1]
    noted: cython.Py_ssize_t
    near: cython.Py_ssize_t
    far: cython.Py_ssize_t

    def __init__(self, prng: Prng, weights: Sequence[int]) -> None:
        self.prng = prng
        self.table = memoryview(weighted_table(weights))
        self.ring = memoryview(numpy.zeros(RING, numpy.intc))
        self.ring_ns = memoryview(numpy.zeros(RING, numpy.int64))
        self.noted = self.near = self.far = 0

    def draw(self) -> cython.int:
        """Draw a member by weight."""
        return self.table[self.prng.next_u32() >> 14]

    def note(self, who: cython.int, now_ns: cython.longlong) -> cython.int:
        """Note that the member `who` was drawn at `now_ns`."""
        self.ring[self.noted % _RING] = who
        self.ring_ns[self.noted % _RING] = now_ns
        self.noted += 1
        if self.noted - self.far > _RING:
            self.far = self.noted - _RING
            self.near = max(self.near, self.far)
        return 0

    @cython.ccall
    @cython.exceptval(-2, check=False)
    def again(self, now_ns: cython.longlong) -> cython.int:
        """Draw a member noted between `AGAIN_NS_MIN` and `AGAIN_NS_MAX` ago; -1 for none."""
        while self.far < self.noted and now_ns - self.ring_ns[self.far % _RING] > _AGAIN_MAX:
            self.far += 1
        if self.near < self.far:
            self.near = self.far
        while self.near < self.noted and now_ns - self.ring_ns[self.near % _RING] >= _AGAIN_MIN:
            self.near += 1
        if self.near == self.far:
            return -1
        return self.ring[(self.far + self.prng.below(self.near - self.far)) % _RING]


def weighted_table(weights: Sequence[int]) -> numpy.ndarray:
    """Build a table of `TABLE_ENTRIES` entries with each member as often as its weight says.

    A member with less than an entry's weight may be missing."""
    total = sum(weights)
    bounds = [so_far * TABLE_ENTRIES // total for so_far in accumulate(weights, initial=0)]
    counts = numpy.diff(numpy.array(bounds, numpy.int64))
    return numpy.repeat(numpy.arange(len(weights), dtype=numpy.intc), counts)


@lru_cache(maxsize=1)
def _waits() -> numpy.ndarray:
    """Return -ln of the middles of `WAITS` equal parts of 0..1, scaled to a mean of 65536."""
    logs = [-(Decimal(2 * i + 1) / (2 * WAITS)).ln() for i in range(WAITS)]
    mean = sum(logs) / WAITS
    return numpy.array([int(log / mean * 65536) for log in logs], numpy.intc)
