"""Numbers for keys: a table from a key's digest to a small number, reused once it is free.

A digest is 128 bits of a hash whose secret is not known outside the process, so that two keys are
never taken for one and no client can construct keys that collide (`feedhandler.keyed.structure`).
The table is open-addressed with linear probing; removing a key leaves no tombstone (Knuth, The Art
of Computer Programming, volume 3, 6.4, algorithm R).
"""

import cython
import numpy

from feedhandler.codecs.visibility import Readonly

#: Slots of an empty table, a power of two; it doubles when it is two thirds full.
SLOTS_LEAST = 64


@cython.final
@cython.cclass
class KeyTable:
    """At most `keys_max` keys at a time, numbered from 1.

    count   number of keys
    fresh   numbers from this one on have never been used
    high, low   a key's digest, by its number
    """

    high: cython.ulonglong[::1]
    low: cython.ulonglong[::1]
    _slots: cython.int[::1]
    _mask: cython.ulonglong
    keys_max: Readonly[cython.Py_ssize_t]
    count: Readonly[cython.Py_ssize_t]
    fresh: Readonly[cython.int]
    _free: cython.int

    def __init__(self, keys_max: int) -> None:
        if keys_max < 1:
            raise ValueError("a table of keys needs room")
        # zeros() maps pages lazily: room that was never needed costs address space, not memory.
        self.high = memoryview(numpy.zeros(keys_max + 1, numpy.uint64))
        self.low = memoryview(numpy.zeros(keys_max + 1, numpy.uint64))
        self.keys_max = keys_max
        self.count = 0
        self.fresh = 1
        self._free = 0
        self._slots = memoryview(numpy.zeros(SLOTS_LEAST, numpy.int32))
        self._mask = SLOTS_LEAST - 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def find(self, high: cython.ulonglong, low: cython.ulonglong) -> cython.int:
        """Return the number of the key with this digest; 0 where there is none."""
        index: cython.Py_ssize_t = low & self._mask
        while True:
            key: cython.int = self._slots[index]
            if key == 0 or (self.low[key] == low and self.high[key] == high):
                return key
            index = (index + 1) & self._mask

    def add(self, high: cython.ulonglong, low: cython.ulonglong) -> cython.int:
        """Add a key that the table does not have; return its number, 0 where the table is full."""
        if self.count == self.keys_max:
            return 0
        if 3 * self.count >= 2 * self._mask:
            self._grow()
        if self._free:
            key: cython.int = self._free
            self._free = self.low[key]
        else:
            key = self.fresh
            self.fresh += 1
        self.high[key] = high
        self.low[key] = low
        self.count += 1
        self._put(key)
        return key

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def remove(self, key: cython.int) -> cython.int:
        """Remove a key; its number will be reused."""
        mask: cython.Py_ssize_t = self._mask
        free: cython.Py_ssize_t = self.low[key] & mask
        while self._slots[free] != key:
            free = (free + 1) & mask
        index: cython.Py_ssize_t = free
        while True:
            index = (index + 1) & mask
            other: cython.int = self._slots[index]
            if other == 0:
                break
            own: cython.Py_ssize_t = self.low[other] & mask
            # It may move to the free slot unless its own lies behind that.
            if ((index - own) & mask) >= ((index - free) & mask):
                self._slots[free] = other
                free = index
        self._slots[free] = 0
        self.low[key] = self._free
        self._free = key
        self.count -= 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _put(self, key: cython.int) -> cython.int:
        index: cython.Py_ssize_t = self.low[key] & self._mask
        while self._slots[index] != 0:
            index = (index + 1) & self._mask
        self._slots[index] = key
        return 0

    def _grow(self) -> cython.int:
        index: cython.Py_ssize_t
        old = self._slots
        size: cython.Py_ssize_t = 2 * (self._mask + 1)
        self._slots = memoryview(numpy.zeros(size, numpy.int32))
        self._mask = size - 1
        for index in range(old.shape[0]):
            if old[index] != 0:
                self._put(old[index])
        return 0
