# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Resting orders by id, in about 60 bytes each: instrument, side, price and what is left.

For messages that name an order alone: what they leave out is found here. An order is known by a
*scope* and its id; the scope is the instrument, or where messages about orders do not name it, the
channel. Open addressing: at most three quarters of the slots are in use, and a removed order leaves
no mark. Clearing an instrument or a scope takes no time: what it held counts as gone from then on,
and its slots are given back as they are met, and when the table is full.

At most `orders_max` orders are kept; those beyond are counted in `refused` and not known later.
"""

import cython
import numpy

from feedhandler.codecs.visibility import Public

#: Sides of an order; 0 marks a slot that is free.
BUY, SELL = 1, 2
#: Orders kept where nothing else is said: several times those of the largest market, 250 MB.
ORDERS_MAX = 3 << 20
_SLOTS_MIN = 1 << 10
#: Where less than one slot in so many was stale, as many orders are refused before the next look.
_SWEEP_SHARE = cython.declare(cython.Py_ssize_t, 8)
_MASK = cython.declare(cython.ulonglong, (1 << 64) - 1)
#: Spreads keys over slots: 2^64 divided by the golden ratio.
_SPREAD = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
_BY_INSTRUMENT = cython.declare(cython.ulonglong, 1 << 32)


@cython.cclass
class OrderTable:
    """The table; `find`, `put` and `remove` deal in slots, good until the next `put` or `remove`.

    `ids`, `instruments`, `sides`, `prices` and `sizes` are read and written by slot.
    """

    ids: Public[cython.ulonglong[::1]]
    prices: Public[cython.longlong[::1]]
    scopes: Public[cython.uint[::1]]
    instruments: Public[cython.uint[::1]]
    sizes: Public[cython.uint[::1]]
    born: Public[cython.uint[::1]]
    sides: Public[cython.uchar[::1]]
    count: Public[cython.Py_ssize_t]
    slots: Public[cython.Py_ssize_t]
    slots_max: Public[cython.Py_ssize_t]
    refused: Public[cython.ulonglong]
    sweep_at: cython.ulonglong
    clock: cython.uint
    last_clear: cython.uint
    cleared: dict

    def __init__(self, orders_max: int = ORDERS_MAX) -> None:
        slots: int = _SLOTS_MIN
        while slots * 3 // 4 < orders_max:
            slots *= 2
        self.slots_max = slots
        self.refused = 0
        #: How many orders must have been refused before it is tried again to find stale ones.
        self.sweep_at = 0
        self.allocate(_SLOTS_MIN)

    @cython.ccall
    @cython.exceptval(-2, check=False)
    def find(self, scope: cython.uint, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot of an order; -1 where it is not known."""
        slot: cython.Py_ssize_t = self.slot_of(scope, order_id)
        if self.sides[slot] == 0:
            return -1
        if self.born[slot] <= self.last_clear and self.is_stale(slot):
            self.remove(slot)
            return -1
        return slot

    @cython.ccall
    @cython.exceptval(-2, check=False)
    def put(
        self,
        scope: cython.uint,
        order_id: cython.ulonglong,
        instrument: cython.uint,
        side: cython.uchar,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.Py_ssize_t:
        """Keep an order, or change one that is known; return its slot, or -1 where all is full."""
        slot: cython.Py_ssize_t = self.slot_of(scope, order_id)
        if self.sides[slot] == 0:
            if (self.count + 1) * 4 > self.slots * 3:
                if not self.make_room():
                    self.refused += 1
                    return -1
                slot = self.slot_of(scope, order_id)
            self.count += 1
        self.ids[slot] = order_id
        self.scopes[slot] = scope
        self.instruments[slot] = instrument
        self.sides[slot] = side
        self.prices[slot] = price
        self.sizes[slot] = size
        self.born[slot] = self.clock
        return slot

    def remove(self, slot: cython.Py_ssize_t) -> cython.int:
        """Remove the order in a slot, and close the gap in the run of slots behind it."""
        mask: cython.Py_ssize_t = self.slots - 1
        gap: cython.Py_ssize_t = slot
        at: cython.Py_ssize_t = (slot + 1) & mask
        while self.sides[at]:
            home: cython.Py_ssize_t = self.home(self.scopes[at], self.ids[at])
            if ((at - home) & mask) >= ((at - gap) & mask):
                self.move(at, gap)
                gap = at
            at = (at + 1) & mask
        self.sides[gap] = 0
        self.count -= 1
        return 0

    def clear(self, instrument: cython.uint) -> cython.int:
        """Forget all orders of an instrument."""
        self.cleared[_BY_INSTRUMENT | instrument] = self.clock
        return self.tick()

    def clear_scope(self, scope: cython.uint) -> cython.int:
        """Forget all orders of a scope."""
        self.cleared[scope] = self.clock
        return self.tick()

    def clear_all(self) -> cython.int:
        """Forget all orders."""
        return self.allocate(_SLOTS_MIN)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def tick(self) -> cython.int:
        """Count a clearance: orders that are put from now on are not of it."""
        self.last_clear = self.clock
        self.clock += 1
        if self.clock == 0xFFFF_FFFF:  # the next one would look like the first
            self.sweep()
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def is_stale(self, slot: cython.Py_ssize_t) -> cython.bint:
        """Return whether the order in a slot was forgotten with its instrument or scope."""
        scope: cython.ulonglong = self.scopes[slot]
        instrument: cython.ulonglong = _BY_INSTRUMENT | self.instruments[slot]
        last: cython.uint = max(self.cleared.get(scope, 0), self.cleared.get(instrument, 0))
        return self.born[slot] <= last

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def slot_of(self, scope: cython.uint, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot that an order has, or would have."""
        mask: cython.Py_ssize_t = self.slots - 1
        slot: cython.Py_ssize_t = self.home(scope, order_id)
        while self.sides[slot] and (self.ids[slot] != order_id or self.scopes[slot] != scope):
            slot = (slot + 1) & mask
        return slot

    @cython.cfunc
    @cython.exceptval(check=False)
    def home(self, scope: cython.uint, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot where the search for an order begins."""
        mixed: cython.ulonglong = order_id ^ (cython.cast(cython.ulonglong, scope) << 40)
        mixed = (mixed * _SPREAD) & _MASK
        mixed ^= mixed >> 32
        return cython.cast(cython.Py_ssize_t, mixed & 0x7FFF_FFFF) & (self.slots - 1)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def move(self, at: cython.Py_ssize_t, to: cython.Py_ssize_t) -> cython.int:
        """Copy the order of slot `at` into slot `to`."""
        self.ids[to] = self.ids[at]
        self.scopes[to] = self.scopes[at]
        self.instruments[to] = self.instruments[at]
        self.sides[to] = self.sides[at]
        self.prices[to] = self.prices[at]
        self.sizes[to] = self.sizes[at]
        self.born[to] = self.born[at]
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def make_room(self) -> cython.bint:
        """Make room for one more order; return whether there is."""
        before: cython.Py_ssize_t = self.count
        if self.slots < self.slots_max:
            self.sweep()
        elif self.cleared and self.refused >= self.sweep_at:
            self.sweep()
            if before - self.count < self.slots // _SWEEP_SHARE:
                self.sweep_at = self.refused + self.slots // _SWEEP_SHARE
        return (self.count + 1) * 4 <= self.slots * 3

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def sweep(self) -> cython.int:
        """Keep the orders that are not stale, in twice the slots where these are half full of
        them."""
        ids: cython.ulonglong[::1] = self.ids
        prices: cython.longlong[::1] = self.prices
        scopes: cython.uint[::1] = self.scopes
        instruments: cython.uint[::1] = self.instruments
        sizes: cython.uint[::1] = self.sizes
        born: cython.uint[::1] = self.born
        sides: cython.uchar[::1] = self.sides
        kept: list = [
            slot
            for slot in range(self.slots)
            if sides[slot] and not (born[slot] <= self.last_clear and self.is_stale(slot))
        ]
        slots: cython.Py_ssize_t = self.slots
        if len(kept) * 8 > slots * 3 and slots < self.slots_max:
            slots *= 2
        self.allocate(slots)
        for slot in kept:
            self.put(
                scopes[slot], ids[slot], instruments[slot], sides[slot], prices[slot], sizes[slot]
            )
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def allocate(self, slots: cython.Py_ssize_t) -> cython.int:
        """Take empty slots, and forget what was cleared: nothing that is kept is older."""
        self.ids = memoryview(numpy.zeros(slots, numpy.uint64))
        self.prices = memoryview(numpy.zeros(slots, numpy.int64))
        self.scopes = memoryview(numpy.zeros(slots, numpy.uint32))
        self.instruments = memoryview(numpy.zeros(slots, numpy.uint32))
        self.sizes = memoryview(numpy.zeros(slots, numpy.uint32))
        self.born = memoryview(numpy.zeros(slots, numpy.uint32))
        self.sides = memoryview(numpy.zeros(slots, numpy.uint8))
        self.cleared = {}
        self.last_clear = 0
        self.clock = 1
        self.slots = slots
        self.count = 0
        return 0
