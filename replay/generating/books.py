# cython: language_level=3, boundscheck=True, cdivision=True
"""Order books of a generated market, kept as messages.

`ShareBooks` holds every share's resting orders, price levels and quotes in flat arrays, the latest
message about each of them beside it. An event changes the book, patches the fields that it changes
in the messages concerned, and puts these on the tape: the order on the orders' channel, a quote for
each level that looks other than before on the quotes' channel, trades on theirs.

Promises, the same that the exchange's market makes. Books never cross: a better price is only ever
put strictly inside the spread, and orders that trade do so at the best price, in priority. Every
event has a number, which all its messages carry, and a time, the tape's. A quote shows the
level as it is after the events so far. Prices are multiples of the tick. An order's number repeats
from day to day, so a book that is filled before the session holds orders of the day before.

What an event should do to the quotes is the caller's to say (`SILENT`, `FLAT`, `SHIFT`): it keeps
the mix of services, while this module keeps the books sound and of even size.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cython
import numpy
from cython.cimports.feedhandler.replay.generating import indexes
from cython.cimports.feedhandler.replay.generating.deals import Deals, quotient
from cython.cimports.feedhandler.replay.generating.prng import Prng
from cython.cimports.feedhandler.replay.generating.tape import Tape
from cython.cimports.feedhandler.replay.generating.wirebytes import copy, put2, put4

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.generating.instruments import Instrument
from feedhandler.replay.generating.layouts import (
    ORDER_FIELDS,
    QUOTE_FIELDS,
    offsets,
    share_messages,
)

if TYPE_CHECKING:
    from feedhandler.codecs import Feed

#: What an event should do: change no level that quotes show, change one in place, or open or close
#: a level near the best, so that those behind it move.
SILENT, FLAT, SHIFT = range(3)
#: Orders and levels (of one side) of a book at most, and the levels that quotes show.
SLOTS, LEVELS, DEPTH = 44, 16, 10
#: Orders that a book is kept near, levels that a side grows to, and that it keeps at least.
ORDERS_AIM, LEVELS_AIM, LEVELS_MIN = 30, 13, 5
#: Orders with which each side of a book begins.
FIRST_ORDERS = 15
#: No trader sells into bids that stand at or below so many ticks.
FLOOR_TICKS = 60
#: Engine number, as in SystemID.
SHARE_SYSTEM = 11

_SILENT, _FLAT, _SHIFT = (cython.declare(cython.int, SILENT), cython.declare(cython.int, FLAT),
                          cython.declare(cython.int, SHIFT))  # fmt: skip
_SLOTS, _LEVELS = cython.declare(cython.int, SLOTS), cython.declare(cython.int, LEVELS)
_DEPTH, _AIM = cython.declare(cython.int, DEPTH), cython.declare(cython.int, ORDERS_AIM)
_LEVELS_MIN = cython.declare(cython.int, LEVELS_MIN)
_FLOOR = cython.declare(cython.int, FLOOR_TICKS)
_LEVELS_AIM = cython.declare(cython.int, LEVELS_AIM)
_ADD, _MODIFY = cython.declare(cython.int, 65), cython.declare(cython.int, 77)
_DELETE, _AGAIN = cython.declare(cython.int, 68), cython.declare(cython.int, 89)


@cython.final
@cython.cclass
class ShareBooks:
    """The books of `instruments`, share 0 the first. `dates`: the trading day and the one before,
    yyyymmdd. `number` counts events."""

    prng: Prng
    tape: Tape
    deals: Readonly[Deals]
    shares: Readonly[cython.int]
    tables: Readonly[dict]
    number: Readonly[cython.uint]
    orders: cython.uchar[::1]
    quotes: cython.uchar[::1]
    quoted: cython.uchar[::1]
    halted: Readonly[cython.uchar[::1]]
    sides: cython.schar[::1]
    prices: cython.int[::1]
    volumes: cython.int[::1]
    resting: cython.int[::1]
    next_order: cython.int[::1]
    ages: cython.longlong[::1]
    level_price: cython.int[::1]
    level_volume: cython.int[::1]
    level_count: cython.int[::1]
    levels: cython.int[::1]
    shown: cython.int[::1]
    tick: cython.int[::1]
    at_order: cython.int[::1]
    at_quote: cython.int[::1]
    date: cython.int
    previous_date: cython.int
    order_bytes: cython.int
    quote_bytes: cython.int
    scratch: cython.int[::1]

    def __init__(
        self, feed: "Feed", instruments: Sequence[Instrument], prng: Prng, tape: Tape,
        dates: tuple[int, int],
    ) -> None:  # fmt: skip
        self.prng, self.tape, self.shares = prng, tape, len(instruments)
        self.date, self.previous_date = dates
        self.number = 0
        self.order_bytes, self.quote_bytes = feed.layout(230).size, feed.layout(140).size
        self.at_order, self.at_quote = (
            offsets(feed, 230, ORDER_FIELDS),
            offsets(feed, 140, QUOTE_FIELDS),
        )
        self.tables = messages = share_messages(
            feed, instruments, dates[0], (SHARE_SYSTEM, SLOTS, DEPTH)
        )
        self.orders, self.quotes = memoryview(messages["orders"]), memoryview(messages["quotes"])
        self.deals = Deals(feed, instruments, messages, tape, indexes.TRADES, 0)
        count = self.shares
        self.tick = memoryview(numpy.array([share.tick for share in instruments], numpy.intc))
        self.resting = _numbers(count)
        self.next_order = memoryview(numpy.ones(count, numpy.intc))
        self.halted = memoryview(numpy.zeros(count, numpy.uint8))
        self.quoted = memoryview(numpy.zeros(count * DEPTH, numpy.uint8))
        self.prices, self.volumes = _numbers(count * SLOTS), _numbers(count * SLOTS)
        self.sides = memoryview(numpy.full(count * SLOTS, -1, numpy.int8))
        self.ages = memoryview(numpy.zeros(count * SLOTS, numpy.int64))
        self.level_price, self.level_volume, self.level_count = (
            _numbers(count * 2 * LEVELS) for _ in range(3)
        )
        self.levels = _numbers(count * 2)
        self.shown = _numbers(count * 2 * DEPTH * 3)
        self.scratch = _numbers(SLOTS)

    def mask(self) -> Any:
        """Return a mask, not 0 for quotes that were shown."""
        return self.quoted

    # -- events ---------------------------------------------------------------------------------

    def fill(self, share: cython.int) -> cython.int:
        """Fill an empty book with the orders of the day before, without messages."""
        side: cython.int
        _i: cython.int
        for side in range(2):
            base: cython.int = (share * 2 + side) * _LEVELS
            price: cython.int = self.deals.opening[share] + (
                self.tick[share] if side else -self.tick[share]
            )
            for _i in range(FIRST_ORDERS):
                count: cython.int = self.levels[share * 2 + side]
                if count < 10 or (count < 13 and self.prng.below(3) == 0):
                    level: cython.int = count
                    self._open_level(base, level, price)
                    price += (1 if side else -1) * self.tick[share] * (1 + self.prng.below(2))
                else:
                    level = self.prng.below(count)
                self._rest(share, side, level, self.level_price[base + level], 0, 1)
        return 0

    def act(self, share: cython.int, want: cython.int) -> cython.int:
        """Process one instruction: an order is added, changed, or cancelled."""
        self.number += 1
        if self.resting[share] >= _SLOTS - 1:
            return self.show(share, self._relieve(share))
        side: cython.int = -1
        if self.levels[share * 2] < _LEVELS_MIN:
            side = 0
        elif self.levels[share * 2 + 1] < _LEVELS_MIN:
            side = 1
        low: cython.int = -1
        if side < 0:
            low = self._change(share, want)
            # The side with fewer levels, mostly.
            side = self.prng.below(2)
            if self.levels[share * 2 + side] > self.levels[share * 2 + 1 - side] + 2:
                side = 1 - side
        if low < 0:
            low = self._enter(share, side, want)
        return self.show(share, low)

    def _relieve(self, share: cython.int) -> cython.int:
        """Cancel an order of a full book that shares its level; return the first changed level.

        There is one, since a book has more slots than levels."""
        slot: cython.int = self.prng.below(_SLOTS)
        while True:
            index: cython.int = share * _SLOTS + slot
            if self.sides[index] >= 0:
                base: cython.int = (share * 2 + self.sides[index]) * _LEVELS
                base += self._level_of(base, self.prices[index])
                if self.level_count[base] > 1:
                    return self._withdraw(share, slot)
            slot = slot + 1 if slot + 1 < _SLOTS else 0

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _change(self, share: cython.int, want: cython.int) -> cython.int:
        """Cancel or shrink an order, the likelier the more there are; -1 where none changed."""
        many: cython.int = self.resting[share]
        draw: cython.int = self.prng.below(1024)
        low: cython.int = -1
        if want != _SHIFT and draw >= 820:
            low = self._shrink(share, want)
        elif draw < 410 + (many - _AIM) * 40:
            low = self._cancel(share, want)
        return low

    def cross(self, share: cython.int) -> cython.int:
        """Trade an incoming order with the oldest one at the best price; nothing of it rests.

        Returns 1, or 0 where the book is too thin for that."""
        # Trading leans back to the opening price: 512 in 1024 there, at 10 % away 768.
        lean: cython.longlong = 512 + quotient(
            (self.deals.last[share] - self.deals.opening[share])
            * cython.cast(cython.longlong, 2560),
            self.deals.opening[share],
        )
        # Side 0 are the bids: sellers trade with them.
        side: cython.int = 0 if self.prng.below(1024) < lean else 1
        if side == 0 and self.level_price[share * 2 * _LEVELS] <= _FLOOR * self.tick[share]:
            side = 1
        base: cython.int = (share * 2 + side) * _LEVELS
        if self.levels[share * 2 + side] <= _LEVELS_MIN:
            return 0
        self.number += 1
        price: cython.int = self.level_price[base]
        slot: cython.int = self._first_at(share, side, price)
        volume: cython.int = self.volumes[share * _SLOTS + slot]
        if self.prng.below(2) == 0 and volume > 1:
            volume = 1 + self.prng.below(volume - 1)
        self.deals.add(share, price, volume, self.number)
        if volume == self.volumes[share * _SLOTS + slot]:
            self._remove(share, slot)
            if self.levels[share * 2 + side] and self.level_price[base] == price:
                self._order(
                    share, slot, _DELETE, 0, self.level_volume[base], self.level_count[base]
                )
            else:
                self._order(share, slot, _DELETE, 0, 0, 0)
        else:
            self.volumes[share * _SLOTS + slot] -= volume
            self.level_volume[base] -= volume
            self._order(
                share, slot, _MODIFY, self.volumes[share * _SLOTS + slot], self.level_volume[base],
                self.level_count[base],
            )  # fmt: skip
        self.show(share, 0)
        return 1

    # -- what is announced again ------------------------------------------------------------------

    def resent(self, share: cython.int, to: cython.uchar[::1], at: cython.Py_ssize_t) -> cython.int:
        """Write the share's orders, by priority, as orders announced again (ActionType Y), to
        `to[at:]`; returns how many. After a level's last order the level's figures are its own."""
        i: cython.int
        count: cython.int = self._sorted(share, self.scratch)
        for i in range(count):
            slot: cython.int = self.scratch[i]
            offset: cython.Py_ssize_t = (share * _SLOTS + slot) * cython.cast(
                cython.Py_ssize_t, self.order_bytes
            )
            copy(to, at, self.orders, offset, self.order_bytes)
            level: cython.int = (share * 2 + self.sides[share * _SLOTS + slot]) * _LEVELS
            level += self._level_of(level, self.prices[share * _SLOTS + slot])
            to[at + self.at_order[indexes.O_ACTION]] = _AGAIN
            put4(to, at + self.at_order[indexes.O_AGGREGATE], self.level_volume[level])
            put2(to, at + self.at_order[indexes.O_COUNT], self.level_count[level])
            at += self.order_bytes
        return count

    def retell(self, share: cython.int) -> cython.int:
        """Put the share's orders on the tape once more, and its quotes."""
        i: cython.int
        count: cython.int = self._sorted(share, self.scratch)
        for i in range(count):
            slot: cython.int = self.scratch[i]
            index: cython.Py_ssize_t = (share * _SLOTS + slot) * cython.cast(
                cython.Py_ssize_t, self.order_bytes
            )
            self.orders[index + self.at_order[indexes.O_ACTION]] = _AGAIN
            self.tape.put(indexes.ORDERS, self.orders, index, self.order_bytes, share)
        self.number += 1
        return self.show(share, 0)

    def clear(self, share: cython.int) -> cython.int:
        """Empty the book and blank its quotes; return the last price."""
        i: cython.int
        self.number += 1
        for i in range(_SLOTS):
            self.sides[share * _SLOTS + i] = -1
        self.resting[share] = 0
        self.levels[share * 2] = self.levels[share * 2 + 1] = 0
        self.show(share, 0)
        return self.deals.last[share]

    # -- the parts of events ----------------------------------------------------------------------

    def _enter(self, share: cython.int, side: cython.int, want: cython.int) -> cython.int:
        """Add a new order; return the first level that changed."""
        base: cython.int = (share * 2 + side) * _LEVELS
        count: cython.int = self.levels[share * 2 + side]
        step: cython.int = self.tick[share] if side else -self.tick[share]
        level: cython.int = -1
        if count == 0:
            # The other side is not empty: one tick behind its best.
            against: cython.int = (share * 2 + 1 - side) * _LEVELS
            price: cython.int = self.level_price[against] + step
            level = 0
            self._open_level(base, level, price)
        elif want == _SHIFT:
            level = self._gap(share, side) if count < _LEVELS else -1
            if level < 0 and self.levels[share * 2 + 1 - side] < _LEVELS:
                level = self._gap(share, 1 - side)
                if level >= 0:
                    side = 1 - side
                    base = (share * 2 + side) * _LEVELS
                    step = -step
                    count = self.levels[share * 2 + side]
            if level < 0 and self._alone(share) >= 0:
                return self._cancel(share, want)
        if level < 0 and (
            count < _LEVELS_AIM
            and (want == _SILENT or count < _LEVELS_MIN or self.prng.below(4) == 0)
        ):
            price = self.level_price[base + count - 1] + step * (1 + self.prng.below(2))
            if price > 0:
                level = count
                self._open_level(base, level, price)
        if level < 0:
            count = self.levels[share * 2 + side]
            if want == _SILENT and count > _DEPTH:
                level = _DEPTH + self.prng.below(count - _DEPTH)
            else:
                level = self.prng.below(1 + self.prng.below(count))
        i: cython.int = self._rest(
            share, side, level, self.level_price[base + level], self.number, 0
        )
        self._order(
            share, i, _ADD, self.volumes[share * _SLOTS + i], self.level_volume[base + level],
            self.level_count[base + level],
        )  # fmt: skip
        return level

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _gap(self, share: cython.int, side: cython.int) -> cython.int:
        """Open a level inside the spread, or in the first gap between levels; -1 where none is."""
        i: cython.int
        base: cython.int = (share * 2 + side) * _LEVELS
        count: cython.int = self.levels[share * 2 + side]
        step: cython.int = self.tick[share] if side else -self.tick[share]
        better: cython.int = self.level_price[base] - step
        against: cython.int = (share * 2 + 1 - side) * _LEVELS
        if self.levels[share * 2 + 1 - side] == 0 or (
            (better < self.level_price[against])
            if side == 0
            else (better > self.level_price[against])
        ):
            self._open_level(base, 0, better)
            return 0
        for i in range(1, count):
            if self.level_price[base + i] != self.level_price[base + i - 1] + step:
                self._open_level(base, i, self.level_price[base + i - 1] + step)
                return i
        return -1

    def _rest(
        self,
        share: cython.int,
        side: cython.int,
        level: cython.int,
        price: cython.int,
        age: cython.int,
        carried: cython.int,
    ) -> cython.int:
        """Add an order at an open level; return its slot. `carried`: from the day before."""
        slot: cython.int = self._free_slot(share)
        index: cython.int = share * _SLOTS + slot
        roll: cython.longlong = self.prng.below(1024)
        volume: cython.int = 1 + (2500 * roll * roll >> 20) * roll // 1024
        base: cython.int = (share * 2 + side) * _LEVELS + level
        self.prices[index], self.volumes[index], self.sides[index] = price, volume, side
        self.ages[index] = self._next_age(share)
        self.resting[share] += 1
        self.level_volume[base] += volume
        self.level_count[base] += 1
        at: cython.Py_ssize_t = index * cython.cast(cython.Py_ssize_t, self.order_bytes)
        put4(self.orders, at + self.at_order[indexes.O_ID], self.next_order[share])
        self.next_order[share] += 1
        put4(self.orders, at + self.at_order[indexes.O_PRICE], price)
        put4(self.orders, at + self.at_order[indexes.O_VOLUME], volume)
        put4(
            self.orders,
            at + self.at_order[indexes.O_DATE],
            self.previous_date if carried else self.date,
        )
        put4(self.orders, at + self.at_order[indexes.O_NUMBER], age)
        put4(self.orders, at + self.at_order[indexes.O_AGGREGATE], self.level_volume[base])
        put2(self.orders, at + self.at_order[indexes.O_COUNT], self.level_count[base])
        self.orders[at + self.at_order[indexes.O_SIDE]] = 50 if side else 49
        self._prioritise(share, slot)
        return slot

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _cancel(self, share: cython.int, want: cython.int) -> cython.int:
        """Cancel an order; return the first level that changed, -1 where none could be."""
        slot: cython.int = self._slot(share, want)
        return -1 if slot < 0 else self._withdraw(share, slot)

    def _withdraw(self, share: cython.int, slot: cython.int) -> cython.int:
        """Cancel the order of a slot; return the first level that changed."""
        side: cython.int = self.sides[share * _SLOTS + slot]
        price: cython.int = self.prices[share * _SLOTS + slot]
        base: cython.int = (share * 2 + side) * _LEVELS
        level: cython.int = self._remove(share, slot)
        if level < self.levels[share * 2 + side] and self.level_price[base + level] == price:
            self._order(
                share, slot, _DELETE, 0, self.level_volume[base + level],
                self.level_count[base + level],
            )  # fmt: skip
        else:
            self._order(share, slot, _DELETE, 0, 0, 0)
        return level

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _shrink(self, share: cython.int, want: cython.int) -> cython.int:
        """Reduce an order's volume, keeping its priority; return its level, -1 where none could."""
        slot: cython.int = self._slot(share, want)
        index: cython.int = share * _SLOTS + slot
        if slot < 0 or self.volumes[index] < 2:
            return -1
        volume: cython.int = 1 + self.prng.below(self.volumes[index] - 1)
        base: cython.int = (share * 2 + self.sides[index]) * _LEVELS
        level: cython.int = self._level_of(base, self.prices[index])
        self.level_volume[base + level] += volume - self.volumes[index]
        self.volumes[index] = volume
        self._order(
            share, slot, _MODIFY, volume, self.level_volume[base + level],
            self.level_count[base + level],
        )  # fmt: skip
        return level

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _slot(self, share: cython.int, want: cython.int) -> cython.int:
        """Draw an order whose removal has the effect `want`; -1 where a few tries find none.

        It is never the last order of a level that a thin side needs."""
        _i: cython.int
        if want == _SHIFT:
            return self._alone(share)
        found: cython.int = -1
        for _i in range(8):
            slot: cython.int = self.prng.below(_SLOTS)
            index: cython.int = share * _SLOTS + slot
            if self.sides[index] < 0:
                continue
            base: cython.int = share * 2 + self.sides[index]
            many: cython.int = self.levels[base]
            level: cython.int = self._level_of(base * _LEVELS, self.prices[index])
            alone: cython.bint = self.level_count[base * _LEVELS + level] == 1
            if alone and many <= _LEVELS_MIN:
                continue
            if want == _SILENT:
                if level >= _DEPTH:
                    return slot
                continue
            found = slot
            if not alone and level < _DEPTH:
                break
        return found

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _alone(self, share: cython.int) -> cython.int:
        """Find an order that is alone at one of the best levels, so that its removal closes it.

        Returns -1 where there is none."""
        _i: cython.int
        _turn: cython.int
        side: cython.int = self.prng.below(2)
        level: cython.int = self.prng.below(4)
        for _turn in range(2):
            base: cython.int = (share * 2 + side) * _LEVELS
            if self.levels[share * 2 + side] > _LEVELS_MIN:
                for _i in range(5):
                    if self.level_count[base + level] == 1:
                        return self._first_at(share, side, self.level_price[base + level])
                    level = level + 1 if level < 4 else 0
            side = 1 - side
        return -1

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _free_slot(self, share: cython.int) -> cython.int:
        """Find a slot without an order. There is one: `act` keeps books below `SLOTS` orders."""
        _i: cython.int
        slot: cython.int = self.prng.below(_SLOTS)
        for _i in range(_SLOTS):
            if self.sides[share * _SLOTS + slot] < 0:
                return slot
            slot = slot + 1 if slot + 1 < _SLOTS else 0
        raise AssertionError("a book has no free slot")

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _level_of(self, base: cython.int, price: cython.int) -> cython.int:
        """Find the level with this price; the side must have it."""
        i: cython.int
        for i in range(_LEVELS):
            if self.level_price[base + i] == price:
                return i
        raise AssertionError("a book has lost a level")

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _remove(self, share: cython.int, slot: cython.int) -> cython.int:
        """Take an order out, closing its level if it was the last; return the level's index."""
        index: cython.int = share * _SLOTS + slot
        base: cython.int = (share * 2 + self.sides[index]) * _LEVELS
        level: cython.int = self._level_of(base, self.prices[index])
        self.level_volume[base + level] -= self.volumes[index]
        self.level_count[base + level] -= 1
        self.resting[share] -= 1
        if self.level_count[base + level] == 0:
            self._close_level(base, level)
        self.sides[index] = -1
        return level

    def _open_level(self, base: cython.int, level: cython.int, price: cython.int) -> cython.int:
        """Make room for an empty level at this index."""
        i: cython.int
        count: cython.int = self.levels[base // _LEVELS]
        for i in range(count, level, -1):
            self.level_price[base + i] = self.level_price[base + i - 1]
            self.level_volume[base + i] = self.level_volume[base + i - 1]
            self.level_count[base + i] = self.level_count[base + i - 1]
        self.level_price[base + level] = price
        self.level_volume[base + level] = self.level_count[base + level] = 0
        self.levels[base // _LEVELS] = count + 1
        return 0

    def _close_level(self, base: cython.int, level: cython.int) -> cython.int:
        i: cython.int
        count: cython.int = self.levels[base // _LEVELS] - 1
        for i in range(level, count):
            self.level_price[base + i] = self.level_price[base + i + 1]
            self.level_volume[base + i] = self.level_volume[base + i + 1]
            self.level_count[base + i] = self.level_count[base + i + 1]
        self.level_price[base + count] = 0
        self.levels[base // _LEVELS] = count
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _first_at(self, share: cython.int, side: cython.int, price: cython.int) -> cython.int:
        """Find the slot of the order with priority at a price; -1 for none."""
        i: cython.int
        found: cython.int = -1
        for i in range(_SLOTS):
            index: cython.int = share * _SLOTS + i
            if (
                self.sides[index] == side
                and self.prices[index] == price
                and (found < 0 or self.ages[index] < self.ages[share * _SLOTS + found])
            ):
                found = i
        return found

    def _sorted(self, share: cython.int, to: cython.int[::1]) -> cython.int:
        """Write the slots of the share's orders to `to`, oldest first; return their number."""
        i: cython.int
        count: cython.int = 0
        base: cython.int = share * _SLOTS
        for i in range(_SLOTS):
            if self.sides[base + i] < 0:
                continue
            j: cython.int = count
            while j > 0 and self.ages[base + to[j - 1]] > self.ages[base + i]:
                to[j] = to[j - 1]
                j -= 1
            to[j] = i
            count += 1
        return count

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _next_age(self, share: cython.int) -> cython.longlong:
        """Return a priority later than every order's of the share: a new order number."""
        return self.next_order[share]

    # -- messages ---------------------------------------------------------------------------------

    def _prioritise(self, share: cython.int, slot: cython.int) -> cython.int:
        """Set the order's priority time to now: HHMMSSmmm and microseconds."""
        at: cython.Py_ssize_t = (share * _SLOTS + slot) * cython.cast(
            cython.Py_ssize_t, self.order_bytes
        )
        ms: cython.longlong = self.tape.milliseconds()
        s: cython.longlong = ms // 1000
        s = s // 3600 * 10_000 + s // 60 % 60 * 100 + s % 60
        put4(self.orders, at + self.at_order[indexes.O_PRIORITY_TIME], s * 1000 + ms % 1000)
        put2(self.orders, at + self.at_order[indexes.O_PRIORITY_MICROS], self.tape.microseconds())
        return 0

    def _order(
        self,
        share: cython.int,
        slot: cython.int,
        action: cython.int,
        volume: cython.int,
        aggregate: cython.int,
        count: cython.int,
    ) -> cython.int:
        """Put a 230: `volume` is the order's remainder; the level's figures are those after it."""
        at: cython.Py_ssize_t = (share * _SLOTS + slot) * cython.cast(
            cython.Py_ssize_t, self.order_bytes
        )
        put4(self.orders, at + self.at_order[indexes.O_TIME], self.tape.milliseconds())
        put4(self.orders, at + self.at_order[indexes.O_NUMBER], self.number)
        put4(self.orders, at + self.at_order[indexes.O_AGGREGATE], aggregate)
        put4(self.orders, at + self.at_order[indexes.O_VOLUME], volume)
        put2(self.orders, at + self.at_order[indexes.O_MICROS], self.tape.microseconds())
        put2(self.orders, at + self.at_order[indexes.O_COUNT], count)
        self.orders[at + self.at_order[indexes.O_ACTION]] = action
        return self.tape.put(indexes.ORDERS, self.orders, at, self.order_bytes, share)

    def show(self, share: cython.int, low: cython.int) -> cython.int:
        """Send a quote for every level from `low` on that differs from the one last shown."""
        side: cython.int
        level: cython.int
        price: cython.int
        volume: cython.int
        count: cython.int
        for level in range(low, _DEPTH):
            at: cython.Py_ssize_t = (share * _DEPTH + level) * cython.cast(
                cython.Py_ssize_t, self.quote_bytes
            )
            changed: cython.bint = False
            for side in range(2):
                base: cython.int = (share * 2 + side) * _LEVELS + level
                price = volume = count = 0
                if level < self.levels[share * 2 + side]:
                    price, volume = self.level_price[base], self.level_volume[base]
                    count = self.level_count[base]
                row: cython.int = ((share * 2 + side) * _DEPTH + level) * 3
                if (
                    self.shown[row] == price
                    and self.shown[row + 1] == volume
                    and self.shown[row + 2] == count
                ):
                    continue
                self.shown[row], self.shown[row + 1], self.shown[row + 2] = price, volume, count
                changed = True
                put4(
                    self.quotes, at + self.at_quote[indexes.Q_ASK if side else indexes.Q_BID], price
                )
                put4(
                    self.quotes,
                    at + self.at_quote[indexes.Q_ASK_SIZE if side else indexes.Q_BID_SIZE],
                    volume,
                )
                put2(
                    self.quotes,
                    at + self.at_quote[indexes.Q_ASKS if side else indexes.Q_BIDS],
                    count,
                )
            if changed:
                put4(self.quotes, at + self.at_quote[indexes.Q_NUMBER], self.number)
                put4(self.quotes, at + self.at_quote[indexes.Q_TIME], self.tape.milliseconds())
                put2(self.quotes, at + self.at_quote[indexes.Q_MICROS], self.tape.microseconds())
                self.quoted[share * _DEPTH + level] = 1
                self.tape.put(indexes.QUOTES, self.quotes, at, self.quote_bytes, share)
        return 0


def _numbers(count: int) -> memoryview:
    return memoryview(numpy.zeros(count, numpy.intc))
