"""A limit order book: price levels with orders in priority.

A user rebuilds it from order messages with `add`, `modify` and `remove`, the three actions that an
order feed knows. Prices and volumes are whole numbers in the feed's own units; an order is known
by any hashable key, in UTP-MD by order date and number together, since numbers repeat from day to
day.

It promises price-time priority: best price first, and at a price the order that has stood there
longest; an order that changes its price or grows goes to the back of the queue, one that shrinks
keeps its priority. A level's volume and number of orders always equal the sum over its orders.

`add` and `modify` do not match orders, since a feed's user must take them as published.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass

from feedhandler.codecs.errors import PeerError

BUY, SELL = 1, -1


@dataclass(slots=True, eq=False)
class Order:
    """A resting order."""

    key: Hashable
    side: int
    price: int
    volume: int


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

    def top(self, depth: int) -> list[tuple[int, int, int]]:
        """Return (price, volume, orders) of at most `depth` levels, best first."""
        levels = self.levels
        rows = []
        for key in self.keys[: -depth - 1 : -1]:
            level = levels[key]
            rows.append((level.price, level.volume, len(level.orders)))
        return rows

    def place(self, order: Order) -> None:
        """Put the order at the back of its level's queue, opening the level if need be."""
        key = order.price * self.sign
        level = self.levels.get(key)
        if level is None:
            level = self.levels[key] = Level(order.price)
            insort(self.keys, key)
        level.orders[order.key] = order
        level.volume += order.volume

    def remove(self, order: Order) -> None:
        """Take the order out of its level, closing the level if it was the last."""
        key = order.price * self.sign
        level = self.levels[key]
        del level.orders[order.key]
        level.volume -= order.volume
        if not level.orders:
            del self.levels[key]
            del self.keys[bisect_left(self.keys, key)]


class Book:
    """The two sides of one instrument and every resting order by its key."""

    __slots__ = ("asks", "bids", "by_key")

    def __init__(self) -> None:
        self.bids = Side(BUY)
        self.asks = Side(SELL)
        self.by_key: dict[Hashable, Order] = {}

    def add(self, key: Hashable, side: int, price: int, volume: int) -> None:
        """Add a resting order.

        Raises `PeerError` if the key rests already or the volume is not positive.
        """
        if key in self.by_key:
            raise PeerError(f"order {key!r} is in the book already", "was an update lost?")
        if volume <= 0:
            raise PeerError(f"order {key!r} has volume {volume}", "volumes are positive")
        order = Order(key, side, price, volume)
        self.by_key[key] = order
        self.side(side).place(order)

    def modify(self, key: Hashable, price: int, volume: int) -> None:
        """Change a resting order.

        Raises `PeerError` if the key is unknown or the volume is not positive.
        """
        order = self._known(key)
        if volume <= 0:
            raise PeerError(f"order {key!r} has volume {volume}", "volumes are positive")
        side = self.side(order.side)
        if price == order.price and volume <= order.volume:
            side.levels[price * side.sign].volume += volume - order.volume
            order.volume = volume
            return
        side.remove(order)
        order.price, order.volume = price, volume
        side.place(order)

    def remove(self, key: Hashable) -> None:
        """Take an order out.

        Raises `PeerError` if the key is unknown.
        """
        order = self._known(key)
        del self.by_key[key]
        self.side(order.side).remove(order)

    def side(self, side: int) -> Side:
        """Return the bids for `BUY`, the asks for `SELL`."""
        return self.bids if side == BUY else self.asks

    def _known(self, key: Hashable) -> Order:
        order = self.by_key.get(key)
        if order is None:
            raise PeerError(f"order {key!r} is not in the book", "was an update lost?")
        return order
