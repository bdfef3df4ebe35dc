"""A binary heap of messages, ordered by their numbers.

A message is named by its slot; `ids` and `positions` are tables by slot that the heap shares with
its owner: the messages' numbers, and the position of each in the heap.
"""

import cython
import numpy

from feedhandler.codecs.visibility import Readonly

#: Messages that an empty heap has room for; it doubles.
ROOM_LEAST = 16


@cython.final
@cython.cclass
class Heap:
    """A heap of slots, the one with the lowest number first."""

    _ids: cython.ulonglong[::1]
    _positions: cython.int[::1]
    _slots: cython.int[::1]
    count: Readonly[cython.int]

    def __init__(self, ids, positions):
        self._ids = ids
        self._positions = positions
        self._slots = memoryview(numpy.zeros(ROOM_LEAST + 1, numpy.int32))  # from 1 on
        self.count = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def first(self) -> cython.int:
        """Return the slot with the lowest number; 0 where the heap is empty."""
        return self._slots[1] if self.count else 0

    def push(self, slot: cython.int) -> cython.int:
        """Add a slot."""
        if self.count + 1 == self._slots.shape[0]:
            larger = numpy.zeros(2 * self.count + 1, numpy.int32)
            larger[: self.count + 1] = self._slots
            self._slots = memoryview(larger)
        self.count += 1
        self._rise(slot, self.count)
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def remove(self, slot: cython.int) -> cython.int:
        """Remove a slot, which must be in the heap."""
        index: cython.int = self._positions[slot]
        last: cython.int = self._slots[self.count]
        self.count -= 1
        if last == slot:
            return 0
        if index > 1 and self._ids[last] < self._ids[self._slots[index >> 1]]:
            self._rise(last, index)
        else:
            self._sink(last, index)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _rise(self, slot: cython.int, index: cython.int) -> cython.int:
        """Put a slot at this position or above."""
        while index > 1:
            above: cython.int = self._slots[index >> 1]
            if self._ids[above] < self._ids[slot]:
                break
            self._slots[index] = above
            self._positions[above] = index
            index >>= 1
        self._slots[index] = slot
        self._positions[slot] = index
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _sink(self, slot: cython.int, index: cython.int) -> cython.int:
        """Put a slot at this position or below."""
        while 2 * index <= self.count:
            child: cython.int = 2 * index
            if (
                child < self.count
                and self._ids[self._slots[child + 1]] < self._ids[self._slots[child]]
            ):
                child += 1
            below: cython.int = self._slots[child]
            if self._ids[slot] < self._ids[below]:
                break
            self._slots[index] = below
            self._positions[below] = index
            index = child
        self._slots[index] = slot
        self._positions[slot] = index
        return 0
