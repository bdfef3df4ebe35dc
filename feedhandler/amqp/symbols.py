"""A bounded map from a symbol (u64) to a small number: the routing cache's table.

Open addressing with linear probing in two flat arrays: one cache line a look-up, no objects. Half
of the slots at most are taken; the table doubles until `count_max` symbols are in it, and then
`put` returns False: what happens at the bound is the caller's policy.
"""

import cython
import numpy

from feedhandler.codecs.visibility import Readonly

_FIRST_SIZE = 1024
#: Fibonacci hashing: the odd number nearest to 2**64 divided by the golden ratio.
_SPREAD = cython.declare(cython.ulonglong, 11400714819323198485)


@cython.cclass
class SymbolMap:
    """A map from symbols to numbers (>= 0), for at most `count_max` symbols."""

    keys: cython.ulonglong[::1]
    values: cython.int[::1]
    mask: cython.Py_ssize_t
    count: Readonly[cython.Py_ssize_t]
    count_max: Readonly[cython.Py_ssize_t]

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._allocate(_FIRST_SIZE)

    def _allocate(self, size: int) -> None:
        self.keys = memoryview(numpy.zeros(size, numpy.uint64))
        self.values = memoryview(numpy.full(size, -1, numpy.int32))
        self.mask = size - 1
        self.count = 0

    def _slot(self, key: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot of the key, or the free slot where it would go."""
        spread: cython.ulonglong = key * _SPREAD
        if not cython.compiled:
            spread &= (1 << 64) - 1
        slot: cython.Py_ssize_t = (spread >> 32) & self.mask
        while self.values[slot] >= 0 and self.keys[slot] != key:
            slot = (slot + 1) & self.mask
        return slot

    def get(self, key: cython.ulonglong) -> cython.int:
        """Return the symbol's number, or -1."""
        return self.values[self._slot(key)]

    def put(self, key: cython.ulonglong, value: cython.int) -> cython.bint:
        """Set the symbol's number; return False where `count_max` other symbols are in the map."""
        slot: cython.Py_ssize_t = self._slot(key)
        if self.values[slot] < 0:
            if self.count >= self.count_max:
                return False
            self.keys[slot] = key
            self.count += 1
        self.values[slot] = value
        if self.count * 2 > self.mask:
            self._grow()
        return True

    def _grow(self) -> None:
        """Double the slots."""
        keys, values = self.keys, self.values
        self._allocate(2 * (self.mask + 1))
        for slot in range(len(keys)):
            if values[slot] >= 0:
                self.put(keys[slot], values[slot])

    def clear(self) -> None:
        """Remove all symbols."""
        self._allocate(_FIRST_SIZE)
