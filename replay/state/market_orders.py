# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Resting orders of one symbol, kept as the feed's messages and readable as a book.

`Orders` keeps the latest message about every order in one dictionary, whose order is the queue of
each price level at once: an order that changes its price or grows loses its priority and goes to
the end, one that shrinks keeps it. That makes applying a message cheap; price levels (a `Book`) are
built on the first access, and are kept up to date from then on.

`OrderLayout` holds the offsets of fields in order messages, from the feed's description. `market`
keeps bounds and counters and interprets actions.
"""

from operator import attrgetter
from typing import Any

import cython

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.state.book import BUY, SELL, Book

_C_BUY, _C_SELL = cython.declare(cython.int, BUY), cython.declare(cython.int, SELL)
#: ActionType Y: an order that is published again.
_AGAIN = cython.declare(cython.int, 89)
_level_of = attrgetter("level")
#: Fields of order messages that markets read: those of four bytes, and the others.
_FOUR_BYTES = ("Price", "Volume", "OrderID", "OrderDate", "OrderPriorityTime")
_OTHERS = ("Side", "ActionType", "OrderPriorityMicroSecs", "AggregatedVolume", "NumberOrders")


def read_uint(data, at, size, big):
    """Read the unsigned integer of `size` bytes (0..8) at `at`."""
    value: cython.ulonglong = 0
    index: cython.Py_ssize_t
    if size == 4 and big:
        return (
            (cython.cast(cython.ulonglong, data[at]) << 24)
            | (cython.cast(cython.ulonglong, data[at + 1]) << 16)
            | (cython.cast(cython.ulonglong, data[at + 2]) << 8)
            | data[at + 3]
        )
    for index in range(size):
        value = (value << 8) | data[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
def _write_uint(
    data: bytearray,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    big: cython.bint,
    value: cython.ulonglong,
) -> cython.int:
    """Write `value`, or the field's greatest value where it is more, as `size` bytes at `at`."""
    index: cython.Py_ssize_t
    if size < 8 and value >> (8 * size):
        value = (cython.cast(cython.ulonglong, 1) << (8 * size)) - 1
    for index in range(size):
        data[at + (size - 1 - index if big else index)] = value & 0xFF
        value >>= 8
    return 0


@cython.final
@cython.cclass
class Resting:
    """A resting order: its values and the latest message about it. `level` is a key of side and
    price that sorts by price."""


@cython.final
@cython.cclass
class OrderLayout:
    """Offsets and sizes of fields in order messages (230). Raises `UsageError` for a feed that has
    no such message, or whose prices, volumes, dates or order numbers are not of four bytes."""

    def __init__(self, feed: Any) -> None:
        layout = feed.layout("order_update")
        fields = {field.wire: field for field in layout.fields if field.kind != "x"}
        for name in (*_FOUR_BYTES, *_OTHERS):
            if name not in fields:
                raise UsageError(f"order_update has no {name}", "markets know UTP-MD's messages")
            if name in _FOUR_BYTES and fields[name].size != 4:
                raise UsageError(f"{name} has {fields[name].size} bytes", "markets know four")
        self.code, self.size, self.big = layout.code, layout.size, feed.byte_order == "big"
        self.price_at, self.volume_at = fields["Price"].at, fields["Volume"].at
        self.id_at, self.date_at = fields["OrderID"].at, fields["OrderDate"].at
        self.side_at, self.action_at = fields["Side"].at, fields["ActionType"].at
        self.clock_at = fields["OrderPriorityTime"].at
        self.microseconds_at = fields["OrderPriorityMicroSecs"].at
        level_volume, level_orders = fields["AggregatedVolume"], fields["NumberOrders"]
        self.level_volume_at, self.level_volume_size = level_volume.at, level_volume.size
        self.level_orders_at, self.level_orders_size = level_orders.at, level_orders.size

    def key(self, view, at):
        """Return the order's key: its date in the upper 32 bits, its number in the lower."""
        return (read_uint(view, at + self.date_at, 4, self.big) << 32) | read_uint(
            view, at + self.id_at, 4, self.big
        )

    def action(self, view, at):
        """Return the character of ActionType, as a number."""
        return view[at + self.action_at]

    def read(self, data, view, at, size):
        """Read the order from the message of `size` bytes at `at`; side 0 where it is invalid."""
        side: cython.int = view[at + self.side_at]
        order: Resting = Resting.__new__(Resting)
        order.price = read_uint(view, at + self.price_at, 4, self.big)
        order.volume = read_uint(view, at + self.volume_at, 4, self.big)
        # `1` and `B` buy, `2` and `S` sell.
        order.side = (
            _C_BUY if side == 49 or side == 66 else _C_SELL if side == 50 or side == 83 else 0
        )
        order.level = cython.cast(cython.longlong, order.price) * 2 + (order.side == _C_BUY)
        order.message = data[at : at + size]
        return order

    def again(self, message, volume, count):
        """Return a copy of the order message as ActionType Y, with these totals of its level."""
        copy: bytearray = bytearray(message)
        copy[self.action_at] = _AGAIN
        _write_uint(copy, self.level_volume_at, self.level_volume_size, self.big, volume)
        _write_uint(copy, self.level_orders_at, self.level_orders_size, self.big, count)
        return bytes(copy)

    def priority_ns(self, message):
        """Return the priority time in ns after midnight, from HHMMSSmmm and microseconds."""
        view: cython.const_uchar[::1] = message
        clock: cython.longlong = cython.cast(
            cython.longlong, read_uint(view, self.clock_at, 4, self.big)
        )
        seconds: cython.longlong = clock // 1000
        seconds = seconds // 10_000 * 3600 + seconds // 100 % 100 * 60 + seconds % 100
        microseconds = cython.cast(
            cython.longlong, read_uint(view, self.microseconds_at, 2, self.big)
        )
        return (seconds * 1000 + clock % 1000) * 1_000_000 + microseconds * 1000


@cython.final
@cython.cclass
class Orders:
    """The orders of one symbol: `resting` maps keys to `Resting`, in priority. `live` is the book
    that is kept up to date, given empty or built by `book`."""

    def __init__(self, layout: OrderLayout, live: Book | None = None) -> None:
        self.layout = layout
        self.resting: dict[int, Resting] = {}
        self.live: Book | None = live

    def add(self, key, order):
        """Append a new order; its key must not be present."""
        self.resting[key] = order
        if self.live is not None:
            self._add_live(key, order)
        return 0

    def shrink(self, key, order, now):
        """Update an order to `now`, which differs in its volume only; it keeps its priority."""
        order.volume = now.volume
        order.message = now.message
        if self.live is not None:
            name = _name(key)
            self.live.modify(name, order.price, order.volume)
            self.live.by_key[name].priority_ns = self.layout.priority_ns(order.message)
        return 0

    def remove(self, key):
        """Remove an order. Raises `KeyError` where the key is absent."""
        del self.resting[key]
        if self.live is not None:
            self.live.remove(_name(key))
        return 0

    def clear(self):
        """Remove all orders."""
        self.resting.clear()
        if self.live is not None:
            self.live.clear()
        return 0

    def book(self) -> Book:
        """Return the live book, built on the first call; its keys are (order date, number)."""
        if self.live is None:
            self.live = Book()
            for key, order in self.resting.items():
                self._add_live(key, order)
        return self.live

    def _add_live(self, key: int, order: Resting) -> None:
        priority_ns = self.layout.priority_ns(order.message)
        self.live.add(_name(key), order.side, order.price, order.volume, priority_ns)

    def again(self, messages):
        """Append each order's message as ActionType Y to `messages`, in priority.

        Level totals are running: a level's last order has the final ones."""
        order: Resting
        volumes: dict = {}
        counts: dict = {}
        for order in self.resting.values():
            level: object = order.level
            volumes[level] = volume = volumes.get(level, 0) + order.volume
            counts[level] = count = counts.get(level, 0) + 1
            messages.append(self.layout.again(order.message, volume, count))
        return 0

    def parts(self, parts):
        """Append the orders in canonical form, for comparison: by level, in priority, with action
        and level totals blanked."""
        order: Resting
        for order in sorted(self.resting.values(), key=_level_of):
            parts.append(self.layout.again(order.message, 0, 0))
        return 0


def _name(key: int) -> tuple[int, int]:
    """Split an order's key into that of a book: order date and number."""
    return key >> 32, key & 0xFFFF_FFFF
