# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Order books of many instruments, kept by MBO records of any feed, in some 110 bytes an order.

What it holds: for each instrument the price levels of both sides, best first, and in each level its
orders in the order of their priority. By-level feeds, whose records have order id 0, have levels
without orders.

What it promises:

* price-time priority: an order that changes its price or grows goes to the back of its level's
  queue, one that shrinks keeps its priority. A level's size and count are the sums over its orders.
* every record takes a time that depends on the number of levels of one side at most; near the best
  price, where nearly all happens, it does not depend on anything.
* nothing in a record raises. What does not fit is counted: `unknown` (an order that is not known: a
  change is then an addition, a cancellation nothing), `duplicate` (an addition of a known order: a
  change), `overdrawn` (more cancelled than there was), `odd` (no side, no size, no price, a level
  that has orders set as a whole, or the reverse), `refused` (beyond a bound).

Structures: orders and levels are rows of arrays, found by number, with lists of those that are
free. A *ladder* is one side of one book: its levels' keys in rising order, so that the best level,
where most changes are, is the last and little moves. A key is the price of a bid, and the negated
price of an ask.
"""

import cython
import numpy

from feedhandler.codecs.dbn import MBO, UNDEFINED_PRICE
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.visibility import Public, Readonly

#: Orders, levels and instruments kept where nothing else is said: several times the largest
#: market's.
ORDERS_MAX: int = 16 << 20
LEVELS_MAX: int = 4 << 20
BOOKS_MAX: int = 1 << 20
#: Depth (0: the best level) that `take` returns where no level changed, or none of the first 255.
UNCHANGED: int = 255
BID, ASK = 0, 1

_ROOM_MIN = 1 << 10
_RUNGS_MIN = cython.declare(cython.int, 8)
#: Rungs that are looked at one by one, from the best, before the others are halved.
_NEAR = cython.declare(cython.int, 12)
_NONE = cython.declare(cython.uint, 0xFFFF_FFFF)
_DEEP = cython.declare(cython.int, UNCHANGED)
_MASK = cython.declare(cython.ulonglong, (1 << 64) - 1)
#: Multipliers that spread keys over slots: 2^64 and 2^32 divided by the golden ratio.
_SPREAD = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
_SPREAD_FAR = cython.declare(cython.ulonglong, 0xC2B2_AE3D_27D4_EB4F)
_SPREAD_BOOKS = cython.declare(cython.ulonglong, 0x9E37_79B1)
_PRICE_MAX = cython.declare(cython.longlong, UNDEFINED_PRICE - 1)
_NO_PRICE = cython.declare(cython.ulonglong, UNDEFINED_PRICE)
_SIZE_MAX = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
_LOW = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
_WORDS = cython.declare(cython.int, MBO.itemsize // 8)
_ADD, _CANCEL = cython.declare(cython.int, 65), cython.declare(cython.int, 67)
_MODIFY, _CLEAR = cython.declare(cython.int, 77), cython.declare(cython.int, 82)
_IS_BID, _IS_ASK = cython.declare(cython.int, 66), cython.declare(cython.int, 65)


@cython.final
@cython.cclass
class DepthBook:
    """The books. Prices are in 1e-9, as in DBN; sides `BID` and `ASK`; depth 0 is the best level.

    `order_count`, `level_count`, `book_count` say how many there are.
    """

    orders_max: Readonly[cython.Py_ssize_t]
    levels_max: Readonly[cython.Py_ssize_t]
    books_max: Readonly[cython.Py_ssize_t]
    order_count: Readonly[cython.Py_ssize_t]
    level_count: Readonly[cython.Py_ssize_t]
    book_count: Readonly[cython.Py_ssize_t]
    refused: Public[cython.ulonglong]
    unknown: Public[cython.ulonglong]
    duplicate: Public[cython.ulonglong]
    overdrawn: Public[cython.ulonglong]
    odd: Public[cython.ulonglong]
    order_ids: cython.ulonglong[::1]
    order_sizes: cython.uint[::1]
    order_levels: cython.uint[::1]
    order_before: cython.uint[::1]
    order_behind: cython.uint[::1]
    order_slots: cython.uint[::1]
    orders_made: cython.Py_ssize_t
    order_mask: cython.Py_ssize_t
    order_free: cython.uint
    level_prices: cython.longlong[::1]
    level_sizes: cython.ulonglong[::1]
    level_counts: cython.uint[::1]
    level_first: cython.uint[::1]
    level_last: cython.uint[::1]
    level_ladders: cython.uint[::1]
    levels_made: cython.Py_ssize_t
    level_free: cython.uint
    book_ids: cython.uint[::1]
    book_slots: cython.uint[::1]
    book_channels: cython.uint[::1]
    book_mask: cython.Py_ssize_t
    ladder_begins: cython.Py_ssize_t[::1]
    ladder_rooms: cython.uint[::1]
    ladder_lengths: cython.uint[::1]
    rung_keys: cython.longlong[::1]
    rung_levels: cython.uint[::1]
    rungs_made: cython.Py_ssize_t
    free_rungs: list

    def __init__(
        self,
        orders_max: int = ORDERS_MAX,
        levels_max: int = LEVELS_MAX,
        books_max: int = BOOKS_MAX,
    ) -> None:
        self.orders_max, self.levels_max, self.books_max = orders_max, levels_max, books_max
        self.order_count = self.level_count = self.book_count = 0
        self.orders_made = self.levels_made = self.rungs_made = 0
        self.refused = self.unknown = self.duplicate = self.overdrawn = self.odd = 0
        self.order_free = self.level_free = _NONE
        room = _ROOM_MIN
        self.order_ids = memoryview(numpy.zeros(room, numpy.uint64))
        self.order_sizes = memoryview(numpy.zeros(room, numpy.uint32))
        self.order_levels = memoryview(numpy.zeros(room, numpy.uint32))
        self.order_before = memoryview(numpy.zeros(room, numpy.uint32))
        self.order_behind = memoryview(numpy.zeros(room, numpy.uint32))
        self.order_slots = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.order_mask = 2 * room - 1
        self.level_prices = memoryview(numpy.zeros(room, numpy.int64))
        self.level_sizes = memoryview(numpy.zeros(room, numpy.uint64))
        self.level_counts = memoryview(numpy.zeros(room, numpy.uint32))
        self.level_first = memoryview(numpy.zeros(room, numpy.uint32))
        self.level_last = memoryview(numpy.zeros(room, numpy.uint32))
        self.level_ladders = memoryview(numpy.zeros(room, numpy.uint32))
        self.book_ids = memoryview(numpy.zeros(room, numpy.uint32))
        self.book_channels = memoryview(numpy.zeros(room, numpy.uint32))
        self.book_slots = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.book_mask = 2 * room - 1
        self.ladder_begins = memoryview(numpy.zeros(2 * room, numpy.int64))
        self.ladder_rooms = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.ladder_lengths = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.rung_keys = memoryview(numpy.zeros(room, numpy.int64))
        self.rung_levels = memoryview(numpy.zeros(room, numpy.uint32))
        self.free_rungs = [[] for _ in range(40)]

    # -- records ----------------------------------------------------------------------------

    def apply(self, records) -> cython.Py_ssize_t:
        """Apply records (an array of dtype `MBO`); return how many changed a book.

        Raises `UsageError` for another dtype.
        """
        index: cython.Py_ssize_t
        head: cython.ulonglong
        tail: cython.ulonglong
        changed: cython.Py_ssize_t = 0
        if records.dtype != MBO:
            raise UsageError(f"a book takes MBO records, not {records.dtype}", "see codecs/dbn.py")
        if not len(records):
            return 0
        records = numpy.require(records, requirements=("C", "A", "W"))
        words: cython.ulonglong[::1] = memoryview(records.view(numpy.uint64))
        signed: cython.longlong[::1] = memoryview(records.view(numpy.int64))
        for index in range(len(records)):
            at: cython.Py_ssize_t = index * _WORDS
            head, tail = words[at], words[at + 4]
            depth: cython.int = self.apply_record(
                head >> 32, words[at + 2], signed[at + 3], tail & _LOW,
                (tail >> 48) & 0xFF, tail >> 56, (tail >> 40) & 0xFF,
            )  # fmt: skip
            changed += depth != _DEEP
        return changed

    def apply_record(
        self,
        instrument: cython.uint,
        order_id: cython.ulonglong,
        price: cython.longlong,
        size: cython.uint,
        action: cython.uchar,
        side: cython.uchar,
        channel: cython.uint,
    ) -> cython.int:
        """Apply one record; return the least depth at which a level changed, or `UNCHANGED`.

        Depths are those before a level went, and after one came.
        """
        if action == _CLEAR:
            return self.clear_all(channel) if instrument == 0 else self.clear_one(instrument)
        if action != _ADD and action != _CANCEL and action != _MODIFY:
            return _DEEP
        book: cython.Py_ssize_t = self.book_of(instrument, action != _CANCEL, channel)
        if book < 0:
            if action == _CANCEL:
                self.unknown += 1
            return _DEEP
        ladder: cython.Py_ssize_t = 2 * book + (side == _IS_ASK)
        if order_id == 0:
            if side != _IS_BID and side != _IS_ASK:
                self.odd += 1
                return _DEEP
            return self.set_level(ladder, price, 0 if action == _CANCEL else size)
        order: cython.Py_ssize_t = self.find_order(book, order_id)
        if action == _CANCEL:
            if order < 0:
                self.unknown += 1
                return _DEEP
            return self.reduce(order, size)
        if order >= 0 and side != _IS_BID and side != _IS_ASK:
            ladder = self.level_ladders[self.order_levels[order]]
        elif side != _IS_BID and side != _IS_ASK:
            self.odd += 1
            return _DEEP
        if price > _PRICE_MAX or price < -_PRICE_MAX:
            self.odd += 1
            return _DEEP
        if action == _ADD and order >= 0:
            self.duplicate += 1
        elif action == _MODIFY and order < 0:
            self.unknown += 1
        if order < 0:
            return self.add(ladder, order_id, price, size)
        return self.modify(order, ladder, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def add(
        self,
        ladder: cython.Py_ssize_t,
        order_id: cython.ulonglong,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.int:
        """Add an order that is not known; return the depth of its level."""
        if size == 0:
            self.odd += 1
            return _DEEP
        if self.order_count >= self.orders_max:
            self.refused += 1
            return _DEEP
        level: cython.Py_ssize_t = self.level_at(ladder, price)
        if level < 0:
            return _DEEP
        if self.level_counts[level] == 0 and self.level_sizes[level]:
            self.odd += 1  # a level that was set as a whole
            return _DEEP
        order: cython.Py_ssize_t = self.make_order(ladder >> 1, order_id)
        self.append(level, order, size)
        return self.depth_of(level)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def modify(
        self,
        order: cython.Py_ssize_t,
        ladder: cython.Py_ssize_t,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.int:
        """Give a known order this side, price and size; return the least depth that changed."""
        level: cython.Py_ssize_t = self.order_levels[order]
        order_id: cython.ulonglong = self.order_ids[order]
        if size == 0:
            before: cython.int = self.depth_of(level)
            self.drop_order(order)
            return before
        if self.level_ladders[level] == ladder and self.level_prices[level] == price:
            if size <= self.order_sizes[order]:
                self.level_sizes[level] -= self.order_sizes[order] - size
                self.order_sizes[order] = size
            else:
                self.unlink(order)
                self.append(level, order, size)
            return self.depth_of(level)
        before = self.depth_of(level)
        self.drop_order(order)
        return min(before, self.add(ladder, order_id, price, size))

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def reduce(self, order: cython.Py_ssize_t, size: cython.uint) -> cython.int:
        """Take `size` off an order, which goes where nothing is left; return its level's depth."""
        level: cython.Py_ssize_t = self.order_levels[order]
        depth: cython.int = self.depth_of(level)
        if size >= self.order_sizes[order]:
            self.overdrawn += size > self.order_sizes[order]
            self.drop_order(order)
        else:
            self.order_sizes[order] -= size
            self.level_sizes[level] -= size
        return depth

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def set_level(
        self, ladder: cython.Py_ssize_t, price: cython.longlong, size: cython.uint
    ) -> cython.int:
        """Set a level without orders; it goes where `size` is 0. Return its depth."""
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        if price > _PRICE_MAX or price < -_PRICE_MAX:
            self.odd += 1
            return _DEEP
        if size == 0:
            key: cython.longlong = -price if ladder & 1 else price
            rung: cython.Py_ssize_t = self.rung_of(ladder, key)
            if rung == self.ladder_lengths[ladder] or self.rung_keys[begin + rung] != key:
                self.unknown += 1
                return _DEEP
            level: cython.Py_ssize_t = self.rung_levels[begin + rung]
        else:
            level = self.level_at(ladder, price)
            if level < 0:
                return _DEEP
        if self.level_counts[level]:
            self.odd += 1
            return _DEEP
        depth: cython.int = self.depth_of(level)
        self.level_sizes[level] = size
        if size == 0:
            self.close_level(level)
        return depth

    # -- clearing ---------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def clear_one(self, instrument: cython.uint) -> cython.int:
        """Empty the book of an instrument; return 0, or `UNCHANGED` where there is none."""
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        return _DEEP if book < 0 else self.clear_book(book)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def clear_all(self, channel: cython.uint) -> cython.int:
        """Empty the books of a channel; return 0."""
        book: cython.Py_ssize_t
        for book in range(self.book_count):
            if self.book_channels[book] == channel:
                self.clear_book(book)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def clear_book(self, book: cython.Py_ssize_t) -> cython.int:
        """Empty both sides of a book; return 0."""
        ladder: cython.Py_ssize_t
        for ladder in range(2 * book, 2 * book + 2):
            while self.ladder_lengths[ladder]:
                level: cython.Py_ssize_t = self.rung_levels[
                    self.ladder_begins[ladder] + self.ladder_lengths[ladder] - 1
                ]
                while self.level_first[level] != _NONE:
                    self.unlink_first(level)
                self.close_level(level)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def unlink_first(self, level: cython.Py_ssize_t) -> cython.int:
        """Remove the first order of a level that will be closed."""
        order: cython.Py_ssize_t = self.level_first[level]
        self.unlink(order)
        return self.forget_order(order)

    # -- orders -----------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(check=False)
    def order_home(self, book: cython.Py_ssize_t, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot where the search for an order begins."""
        # Ids may repeat from book to book, or differ in their highest bits alone.
        mixed: cython.ulonglong = cython.cast(cython.ulonglong, book) * _SPREAD_FAR
        mixed = (mixed + order_id) & _MASK
        mixed ^= mixed >> 32
        mixed = (mixed * _SPREAD) & _MASK
        mixed ^= mixed >> 32
        return cython.cast(cython.Py_ssize_t, mixed & 0x7FFF_FFFF) & self.order_mask

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def slot_of(self, book: cython.Py_ssize_t, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the slot that an order has, or would have."""
        slot: cython.Py_ssize_t = self.order_home(book, order_id)
        while self.order_slots[slot]:
            order: cython.Py_ssize_t = self.order_slots[slot] - 1
            if (
                self.order_ids[order] == order_id
                and self.level_ladders[self.order_levels[order]] >> 1 == book
            ):
                break
            slot = (slot + 1) & self.order_mask
        return slot

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def find_order(self, book: cython.Py_ssize_t, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the row of an order; -1 where it is not known."""
        return cython.cast(cython.Py_ssize_t, self.order_slots[self.slot_of(book, order_id)]) - 1

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def make_order(self, book: cython.Py_ssize_t, order_id: cython.ulonglong) -> cython.Py_ssize_t:
        """Return a row for an order that is not known; it must be appended to a level at once."""
        if self.order_free == _NONE and self.orders_made == len(self.order_ids):
            self.grow_orders()
        if self.order_free != _NONE:
            order: cython.Py_ssize_t = self.order_free
            self.order_free = self.order_behind[order]
        else:
            order = self.orders_made
            self.orders_made += 1
        self.order_ids[order] = order_id
        self.order_slots[self.slot_of(book, order_id)] = cython.cast(cython.uint, order + 1)
        self.order_count += 1
        return order

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def drop_order(self, order: cython.Py_ssize_t) -> cython.int:
        """Remove an order, and its level where it was the last."""
        level: cython.Py_ssize_t = self.order_levels[order]
        self.unlink(order)
        self.forget_order(order)
        if self.level_counts[level] == 0:
            self.close_level(level)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def forget_order(self, order: cython.Py_ssize_t) -> cython.int:
        """Give the row of an order back that is in no queue, and its slot.

        Its level must still be there. The gap in the run of slots behind it is closed.
        """
        mask: cython.Py_ssize_t = self.order_mask
        book: cython.Py_ssize_t = self.level_ladders[self.order_levels[order]] >> 1
        gap: cython.Py_ssize_t = self.slot_of(book, self.order_ids[order])
        at: cython.Py_ssize_t = (gap + 1) & mask
        while self.order_slots[at]:
            other: cython.Py_ssize_t = self.order_slots[at] - 1
            home: cython.Py_ssize_t = self.order_home(
                self.level_ladders[self.order_levels[other]] >> 1, self.order_ids[other]
            )
            if ((at - home) & mask) >= ((at - gap) & mask):
                self.order_slots[gap] = self.order_slots[at]
                gap = at
            at = (at + 1) & mask
        self.order_slots[gap] = 0
        self.order_behind[order] = self.order_free
        self.order_free = order
        self.order_count -= 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def append(
        self, level: cython.Py_ssize_t, order: cython.Py_ssize_t, size: cython.uint
    ) -> cython.int:
        """Put an order at the back of a level's queue."""
        last: cython.uint = self.level_last[level]
        self.order_sizes[order] = size
        self.order_levels[order] = cython.cast(cython.uint, level)
        self.order_before[order] = last
        self.order_behind[order] = _NONE
        if last == _NONE:
            self.level_first[level] = cython.cast(cython.uint, order)
        else:
            self.order_behind[last] = cython.cast(cython.uint, order)
        self.level_last[level] = cython.cast(cython.uint, order)
        self.level_sizes[level] += size
        self.level_counts[level] += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def unlink(self, order: cython.Py_ssize_t) -> cython.int:
        """Take an order out of its level's queue."""
        level: cython.Py_ssize_t = self.order_levels[order]
        before: cython.uint = self.order_before[order]
        behind: cython.uint = self.order_behind[order]
        if before == _NONE:
            self.level_first[level] = behind
        else:
            self.order_behind[before] = behind
        if behind == _NONE:
            self.level_last[level] = before
        else:
            self.order_before[behind] = before
        self.level_sizes[level] -= self.order_sizes[order]
        self.level_counts[level] -= 1
        return 0

    # -- levels -----------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def rung_of(self, ladder: cython.Py_ssize_t, key: cython.longlong) -> cython.Py_ssize_t:
        """Return the rung of the first key that is not below `key`; the length where all are."""
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        high: cython.Py_ssize_t = self.ladder_lengths[ladder]
        low: cython.Py_ssize_t = max(high - _NEAR, 0)
        if low == 0 or self.rung_keys[begin + low] < key:
            while high > low and self.rung_keys[begin + high - 1] >= key:
                high -= 1
            return high
        low, high = 0, low
        while low < high:
            middle: cython.Py_ssize_t = (low + high) // 2
            if self.rung_keys[begin + middle] < key:
                low = middle + 1
            else:
                high = middle
        return low

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def depth_of(self, level: cython.Py_ssize_t) -> cython.int:
        """Return the depth of a level; `UNCHANGED` for all that are deeper."""
        ladder: cython.Py_ssize_t = self.level_ladders[level]
        price: cython.longlong = self.level_prices[level]
        rung: cython.Py_ssize_t = self.rung_of(ladder, -price if ladder & 1 else price)
        return min(self.ladder_lengths[ladder] - 1 - rung, _DEEP)

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def level_at(self, ladder: cython.Py_ssize_t, price: cython.longlong) -> cython.Py_ssize_t:
        """Return the level at a price, made where there is none; -1 beyond the bound."""
        key: cython.longlong = -price if ladder & 1 else price
        rung: cython.Py_ssize_t = self.rung_of(ladder, key)
        length: cython.Py_ssize_t = self.ladder_lengths[ladder]
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        index: cython.Py_ssize_t
        if rung < length and self.rung_keys[begin + rung] == key:
            return self.rung_levels[begin + rung]
        level: cython.Py_ssize_t = self.make_level(ladder, price)
        if level < 0:
            return -1
        if length == self.ladder_rooms[ladder]:
            self.widen(ladder)
            begin = self.ladder_begins[ladder]
        for index in range(begin + length, begin + rung, -1):
            self.rung_keys[index] = self.rung_keys[index - 1]
            self.rung_levels[index] = self.rung_levels[index - 1]
        self.rung_keys[begin + rung] = key
        self.rung_levels[begin + rung] = cython.cast(cython.uint, level)
        self.ladder_lengths[ladder] += 1
        return level

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def make_level(self, ladder: cython.Py_ssize_t, price: cython.longlong) -> cython.Py_ssize_t:
        """Return an empty level that is on no rung yet; -1 beyond the bound."""
        if self.level_count >= self.levels_max:
            self.refused += 1
            return -1
        if self.level_free == _NONE and self.levels_made == len(self.level_prices):
            self.grow_levels()
        if self.level_free != _NONE:
            level: cython.Py_ssize_t = self.level_free
            self.level_free = self.level_first[level]
        else:
            level = self.levels_made
            self.levels_made += 1
        self.level_prices[level] = price
        self.level_sizes[level] = 0
        self.level_counts[level] = 0
        self.level_first[level] = self.level_last[level] = _NONE
        self.level_ladders[level] = cython.cast(cython.uint, ladder)
        self.level_count += 1
        return level

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def close_level(self, level: cython.Py_ssize_t) -> cython.int:
        """Take an empty level off its ladder, and give its row back."""
        ladder: cython.Py_ssize_t = self.level_ladders[level]
        price: cython.longlong = self.level_prices[level]
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        index: cython.Py_ssize_t
        rung: cython.Py_ssize_t = self.rung_of(ladder, -price if ladder & 1 else price)
        self.ladder_lengths[ladder] -= 1
        for index in range(begin + rung, begin + self.ladder_lengths[ladder]):
            self.rung_keys[index] = self.rung_keys[index + 1]
            self.rung_levels[index] = self.rung_levels[index + 1]
        self.level_first[level] = self.level_free
        self.level_free = level
        self.level_count -= 1
        return 0

    # -- room -------------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def widen(self, ladder: cython.Py_ssize_t) -> cython.int:
        """Move a ladder to memory with twice the room."""
        room: cython.Py_ssize_t = self.ladder_rooms[ladder]
        wanted: cython.Py_ssize_t = max(2 * room, _RUNGS_MIN)
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        index: cython.Py_ssize_t
        free: list = self.free_rungs[wanted.bit_length()]
        if free:
            to: cython.Py_ssize_t = free.pop()
        else:
            self.grow_rungs(self.rungs_made + wanted)
            to = self.rungs_made
            self.rungs_made += wanted
        for index in range(room):
            self.rung_keys[to + index] = self.rung_keys[begin + index]
            self.rung_levels[to + index] = self.rung_levels[begin + index]
        if room:
            self.free_rungs[room.bit_length()].append(begin)
        self.ladder_begins[ladder] = to
        self.ladder_rooms[ladder] = cython.cast(cython.uint, wanted)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow_orders(self) -> cython.int:
        """Double the room for orders, and find all of them new slots."""
        room: cython.Py_ssize_t = 2 * len(self.order_ids)
        slots: cython.uint[::1] = self.order_slots
        slot: cython.Py_ssize_t
        self.order_ids = _grown(self.order_ids, room)
        self.order_sizes = _grown(self.order_sizes, room)
        self.order_levels = _grown(self.order_levels, room)
        self.order_before = _grown(self.order_before, room)
        self.order_behind = _grown(self.order_behind, room)
        self.order_slots = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.order_mask = 2 * room - 1
        for slot in range(len(slots)):
            if slots[slot]:
                order: cython.Py_ssize_t = slots[slot] - 1
                book: cython.Py_ssize_t = self.level_ladders[self.order_levels[order]] >> 1
                self.order_slots[self.slot_of(book, self.order_ids[order])] = slots[slot]
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow_levels(self) -> cython.int:
        """Double the room for levels."""
        room: cython.Py_ssize_t = 2 * len(self.level_prices)
        self.level_prices = _grown(self.level_prices, room)
        self.level_sizes = _grown(self.level_sizes, room)
        self.level_counts = _grown(self.level_counts, room)
        self.level_first = _grown(self.level_first, room)
        self.level_last = _grown(self.level_last, room)
        self.level_ladders = _grown(self.level_ladders, room)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow_rungs(self, least: cython.Py_ssize_t) -> cython.int:
        """Make room for at least so many rungs."""
        room: cython.Py_ssize_t = len(self.rung_keys)
        if least <= room:
            return 0
        while room < least:
            room *= 2
        self.rung_keys = _grown(self.rung_keys, room)
        self.rung_levels = _grown(self.rung_levels, room)
        return 0

    # -- instruments ------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def book_of(
        self, instrument: cython.uint, make: cython.bint, channel: cython.uint
    ) -> cython.Py_ssize_t:
        """Return the row of an instrument's book; -1 where there is none, or beyond the bound.

        With `make` it is made where there is none; an empty one goes to `channel`.
        """
        mixed: cython.uint = (instrument * _SPREAD_BOOKS) & _LOW
        slot: cython.Py_ssize_t = (mixed ^ (mixed >> 16)) & self.book_mask
        while self.book_slots[slot]:
            book: cython.Py_ssize_t = self.book_slots[slot] - 1
            if self.book_ids[book] == instrument:
                if (
                    make
                    and self.book_channels[book] != channel
                    and (self.ladder_lengths[2 * book] == self.ladder_lengths[2 * book + 1] == 0)
                ):
                    self.book_channels[book] = channel
                return book
            slot = (slot + 1) & self.book_mask
        if not make:
            return -1
        if self.book_count >= self.books_max:
            self.refused += 1
            return -1
        if self.book_count == len(self.book_ids):
            self.grow_books()
            return self.book_of(instrument, make, channel)
        book = self.book_count
        self.book_count += 1
        self.book_ids[book] = instrument
        self.book_channels[book] = channel
        self.book_slots[slot] = cython.cast(cython.uint, book + 1)
        return book

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow_books(self) -> cython.int:
        """Double the room for books, and find all of them new slots."""
        room: cython.Py_ssize_t = 2 * len(self.book_ids)
        book: cython.Py_ssize_t
        self.book_ids = _grown(self.book_ids, room)
        self.book_channels = _grown(self.book_channels, room)
        self.ladder_begins = _grown(self.ladder_begins, 2 * room)
        self.ladder_rooms = _grown(self.ladder_rooms, 2 * room)
        self.ladder_lengths = _grown(self.ladder_lengths, 2 * room)
        self.book_slots = memoryview(numpy.zeros(2 * room, numpy.uint32))
        self.book_mask = 2 * room - 1
        for book in range(self.book_count):
            mixed: cython.uint = (self.book_ids[book] * _SPREAD_BOOKS) & _LOW
            slot: cython.Py_ssize_t = (mixed ^ (mixed >> 16)) & self.book_mask
            while self.book_slots[slot]:
                slot = (slot + 1) & self.book_mask
            self.book_slots[slot] = cython.cast(cython.uint, book + 1)
        return 0

    # -- what it holds ----------------------------------------------------------------------

    def write_levels(
        self,
        instrument: cython.uint,
        depth: cython.int,
        words: cython.ulonglong[::1],
        at: cython.Py_ssize_t,
    ) -> cython.int:
        """Write `depth` levels of both sides into `words` from `at` on, as DBN's records have them.

        A level takes four words of eight bytes: bid price, ask price, both sizes, both counts;
        `UNDEFINED_PRICE` and zeros where there is none. Raises `UsageError` where they do not fit.
        """
        if depth < 0 or at < 0 or at + 4 * depth > len(words):
            raise UsageError(f"{depth} levels do not fit", "four words a level")
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        index: cython.int
        side: cython.int
        for index in range(depth):
            i: cython.Py_ssize_t = at + 4 * index
            words[i] = words[i + 1] = _NO_PRICE
            words[i + 2] = words[i + 3] = 0
            for side in range(2 if book >= 0 else 0):
                ladder: cython.Py_ssize_t = 2 * book + side
                rung: cython.Py_ssize_t = (
                    cython.cast(cython.Py_ssize_t, self.ladder_lengths[ladder]) - 1 - index
                )
                if rung < 0:
                    continue
                level: cython.Py_ssize_t = self.rung_levels[self.ladder_begins[ladder] + rung]
                size: cython.ulonglong = min(self.level_sizes[level], _SIZE_MAX)
                words[i + side] = cython.cast(cython.ulonglong, self.level_prices[level]) & _MASK
                words[i + 2] |= size << (32 * side)
                words[i + 3] |= cython.cast(cython.ulonglong, self.level_counts[level]) << (
                    32 * side
                )
        return 0

    def levels(self, instrument: int, side: int, depth: int = 10) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of at most `depth` levels of a side, best first."""
        _check_side(side)
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        if book < 0:
            return []
        ladder: cython.Py_ssize_t = 2 * book + side
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        length: cython.Py_ssize_t = self.ladder_lengths[ladder]
        rows: list = []
        index: cython.Py_ssize_t
        for index in range(begin + length - 1, begin + max(length - depth, 0) - 1, -1):
            level: cython.Py_ssize_t = self.rung_levels[index]
            rows.append(
                (self.level_prices[level], self.level_sizes[level], self.level_counts[level])
            )
        return rows

    def bids(self, instrument: int, depth: int = 10) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of at most `depth` bid levels, best first."""
        return self.levels(instrument, BID, depth)

    def asks(self, instrument: int, depth: int = 10) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of at most `depth` ask levels, best first."""
        return self.levels(instrument, ASK, depth)

    def find(self, instrument: int, order_id: int) -> tuple[int, int, int] | None:
        """Return side, price and size of an order; None where it is not known."""
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        order: cython.Py_ssize_t = self.find_order(book, order_id) if book >= 0 else -1
        if order < 0:
            return None
        level: cython.Py_ssize_t = self.order_levels[order]
        return self.level_ladders[level] & 1, self.level_prices[level], self.order_sizes[order]

    def orders(self, instrument: int, side: int) -> list[tuple[int, int, int]]:
        """Return (order id, price, size) of a side's orders in their priority."""
        _check_side(side)
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        rows: list = []
        if book < 0:
            return rows
        ladder: cython.Py_ssize_t = 2 * book + side
        begin: cython.Py_ssize_t = self.ladder_begins[ladder]
        index: cython.Py_ssize_t
        for index in range(begin + self.ladder_lengths[ladder] - 1, begin - 1, -1):
            level: cython.Py_ssize_t = self.rung_levels[index]
            order: cython.uint = self.level_first[level]
            while order != _NONE:
                rows.append(
                    (self.order_ids[order], self.level_prices[level], self.order_sizes[order])
                )
                order = self.order_behind[order]
        return rows

    def entries_of(self, instrument: int) -> int:
        """Return how many orders the instrument's book has; of one by level, how many levels."""
        book: cython.Py_ssize_t = self.book_of(instrument, False, 0)
        ladder: cython.Py_ssize_t
        rung: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        if book < 0:
            return 0
        for ladder in range(2 * book, 2 * book + 2):
            for rung in range(self.ladder_lengths[ladder]):
                level: cython.Py_ssize_t = self.rung_levels[self.ladder_begins[ladder] + rung]
                count += max(self.level_counts[level], 1)
        return count

    def has(self, instrument: int) -> bool:
        """Return whether the instrument has a book, be it an empty one."""
        return self.book_of(instrument, False, 0) >= 0

    def instruments(self, channel: int = -1) -> list[int]:
        """Return the instruments that have a book, in the order of their first records; of a
        channel, or of all (-1)."""
        return [
            self.book_ids[book]
            for book in range(self.book_count)
            if channel < 0 or self.book_channels[book] == channel
        ]

    @property
    def nbytes(self) -> int:
        """The bytes that all tables take."""
        tables: list = [
            self.order_ids, self.order_sizes, self.order_levels, self.order_before,
            self.order_behind, self.order_slots, self.level_prices, self.level_sizes,
            self.level_counts, self.level_first, self.level_last, self.level_ladders,
            self.book_ids, self.book_channels, self.book_slots, self.ladder_begins,
            self.ladder_rooms, self.ladder_lengths, self.rung_keys, self.rung_levels,
        ]  # fmt: skip
        return sum(numpy.asarray(each).nbytes for each in tables)


def _check_side(side: int) -> None:
    if side not in (BID, ASK):
        raise UsageError(f"{side} is no side of a book", "BID or ASK")


def _grown(table, room):
    """Return a table with more room, and what was in it."""
    before = numpy.asarray(table)
    found = numpy.zeros(room, before.dtype)
    found[: len(before)] = before
    return memoryview(found)
