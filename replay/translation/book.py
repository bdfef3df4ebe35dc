"""A limit order book: price levels with orders in priority.

A user rebuilds it from order messages with `add`, `modify` and `remove`, the three actions that an
order feed knows. Prices and volumes are whole numbers in the feed's own units; an order is known
by any hashable key, in UTP-MD by order date and number together, since numbers repeat from day to
day.

It promises price-time priority: best price first, and at a price the order that has stood there
longest; an order that changes its price or grows goes to the back of the queue, one that shrinks
keeps its priority. A level's volume and number of orders always equal the sum over its orders.

`add` and `modify` do not match orders, since a feed's user must take them as published; `crossed`
reports whether the book is crossed.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from feedhandler.codecs.errors import PeerError

BUY, SELL = 1, -1


class Row(NamedTuple):
    """One price level as in a quote; all zero where there is no such level."""

    price: int
    volume: int
    orders: int


NO_ROW = Row(0, 0, 0)


@dataclass(slots=True, eq=False)
class Order:
    """A resting order."""

    key: Hashable
    side: int
    price: int
    volume: int
    priority_ns: int = 0


class Level:
    """One price level of a side: its orders in priority, and their total volume."""

    __slots__ = ("orders", "price", "volume")

    def __init__(self, price: int) -> None:
        self.price = price
        self.volume = 0
        #: Insertion order of a dict is time priority here.
        self.orders: dict[Hashable, Order] = {}


class Side:
    """The levels of one side. Keys are `price * sign`, so the best level is always the last."""

    __slots__ = ("keys", "levels", "sign")

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.keys: list[int] = []
        self.levels: dict[int, Level] = {}

    def best(self) -> Level | None:
        """Return the best level, or None where the side is empty."""
        return self.levels[self.keys[-1]] if self.keys else None

    def top(self, depth: int) -> list[tuple[int, int, int]]:
        """Return (price, volume, orders) of at most `depth` levels, best first."""
        levels = self.levels
        rows = []
        for key in self.keys[: -depth - 1 : -1]:
            level = levels[key]
            rows.append((level.price, level.volume, len(level.orders)))
        return rows

    def place(self, order: Order) -> Level:
        """Put the order at the back of its level's queue, opening the level if need be."""
        key = order.price * self.sign
        level = self.levels.get(key)
        if level is None:
            level = self.levels[key] = Level(order.price)
            insort(self.keys, key)
        level.orders[order.key] = order
        level.volume += order.volume
        return level

    def remove(self, order: Order) -> Level:
        """Take the order out of its level, closing the level if it was the last."""
        key = order.price * self.sign
        level = self.levels[key]
        del level.orders[order.key]
        level.volume -= order.volume
        if not level.orders:
            del self.levels[key]
            del self.keys[bisect_left(self.keys, key)]
        return level


class Book:
    """The two sides of one instrument and every resting order by its key."""

    __slots__ = ("asks", "bids", "by_key")

    def __init__(self) -> None:
        self.bids = Side(BUY)
        self.asks = Side(SELL)
        self.by_key: dict[Hashable, Order] = {}

    @property
    def orders(self) -> list[Order]:
        """Every resting order, those that were added first before the others."""
        return list(self.by_key.values())

    def add(
        self, key: Hashable, side: int, price: int, volume: int, priority_ns: int = 0
    ) -> tuple[Order, Level]:
        """Add a resting order; returns it and its level.

        Raises `PeerError` if the key rests already or the volume is not positive.
        """
        if key in self.by_key:
            raise PeerError(f"order {key!r} is in the book already", "was an update lost?")
        if volume <= 0:
            raise PeerError(f"order {key!r} has volume {volume}", "volumes are positive")
        order = Order(key, side, price, volume, priority_ns)
        self.by_key[key] = order
        return order, self.side(side).place(order)

    def modify(self, key: Hashable, price: int, volume: int, priority_ns: int = 0) -> Level:
        """Change a resting order; returns the level it stands on afterwards.

        Raises `PeerError` if the key is unknown or the volume is not positive.
        """
        order = self._known(key)
        if volume <= 0:
            raise PeerError(f"order {key!r} has volume {volume}", "volumes are positive")
        side = self.side(order.side)
        if price == order.price and volume <= order.volume:
            level = side.levels[price * side.sign]
            level.volume += volume - order.volume
            order.volume = volume
            return level
        side.remove(order)
        order.price, order.volume, order.priority_ns = price, volume, priority_ns
        return side.place(order)

    def remove(self, key: Hashable) -> tuple[Order, Level]:
        """Take an order out; returns it and its level as it stands without it (perhaps empty).

        Raises `PeerError` if the key is unknown.
        """
        order = self._known(key)
        del self.by_key[key]
        return order, self.side(order.side).remove(order)

    def clear(self) -> None:
        """Remove all orders."""
        self.bids = Side(BUY)
        self.asks = Side(SELL)
        self.by_key.clear()

    def side(self, side: int) -> Side:
        """Return the bids for `BUY`, the asks for `SELL`."""
        return self.bids if side == BUY else self.asks

    def crossed(self) -> bool:
        """Return whether the best bid is at or above the best ask."""
        bid, ask = self.bids.best(), self.asks.best()
        return bid is not None and ask is not None and bid.price >= ask.price

    def row(self, side: int, number: int) -> Row:
        """Return level `number` of a side (1: the best), or `NO_ROW` where there is none."""
        rows = self.side(side).top(number)
        return Row(*rows[number - 1]) if len(rows) >= number else NO_ROW

    def _known(self, key: Hashable) -> Order:
        order = self.by_key.get(key)
        if order is None:
            raise PeerError(f"order {key!r} is not in the book", "was an update lost?")
        return order
