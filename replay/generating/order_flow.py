"""An order market without a feed: which orders come and go, drawn from a seed.

An `OrderFlow` yields `Action`s: every instrument is announced and opened, then orders are added,
reduced, replaced by new ones, deleted and executed, trades against hidden orders happen, and now
and then an instrument halts and opens again. The same seed and settings give the same actions on
any machine; `order_writers` makes each feed's messages of them, so that sessions of several feeds
have the same market.

Books never cross: an incoming order that reaches the other side executes the oldest order at the
best price there, and what is left of it lapses. An execution has the price of the order. Each side
of a book holds `SIDE_ORDERS_MAX` orders at most, so a session takes bounded memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.prng import Prng

#: What actions do.
DIRECTORY, STATUS, ADD, REDUCE = "directory", "status", "add", "reduce"
REPLACE, DELETE, EXECUTE, TRADE = "replace", "delete", "execute", "trade"
#: Instruments are numbered from 1; a feed's narrowest number has two bytes.
INSTRUMENTS_MAX = 10_000
SIDE_ORDERS_MAX = 64
RATE_MAX = 200_000
#: Waits of this mean and more are put together: a draw is at most about 7 times its mean.
DRAWN_MEAN_NS = 1 << 28
#: Prices count 1e-4, in ticks of a cent, and orders stand within so many ticks of the middle.
TICK, SPREAD_TICKS = 100, 20
MIDDLE_TICKS_MIN, MIDDLE_TICKS_SPREAD = 1_000, 40_000
#: Sizes are round lots.
LOT, LOTS_MAX = 100, 20
#: Of 1024 draws: orders that come, are reduced, replaced, deleted; hidden trades; halts.
ODDS = ((ADD, 560), (DELETE, 820), (REDUCE, 900), (REPLACE, 980), (TRADE, 1020), (STATUS, 1024))


class Action(NamedTuple):
    """One market event. `time_ns` is since 1970, `price` counts 1e-4; `size` is what an order
    has at first, loses or trades; `left` what remains of it; `side` is the order's, B or S, and
    blank in trades; `new_order` names what replaces `order`; `state` is T(rading) or H(alted)."""

    time_ns: int
    does: str
    instrument: int
    order: int = 0
    side: str = ""
    price: int = 0
    size: int = 0
    left: int = 0
    new_order: int = 0
    trade: int = 0
    state: str = ""
    #: Of a replaced order: the price and size that it had.
    old_price: int = 0
    old_size: int = 0
    #: The size of all orders at the price, on the order's side, afterwards; and at the price of a
    #: replaced order, before the new one comes.
    level: int = 0
    old_level: int = 0


class Order:
    """An order that rests in a book."""

    __slots__ = ("id", "price", "size")

    def __init__(self, id: int, price: int, size: int) -> None:
        self.id, self.price, self.size = id, price, size


class OrderBook:
    """The orders of one instrument, and the middle that their prices are drawn around."""

    __slots__ = ("halted", "middle", "sides")

    def __init__(self, middle: int) -> None:
        self.middle = middle
        self.halted = False
        self.sides: dict[str, list[Order]] = {"B": [], "S": []}

    def level(self, side: str, price: int) -> int:
        """Return how much stands at a price."""
        return sum(order.size for order in self.sides[side] if order.price == price)

    def best(self, side: str) -> Order | None:
        """Return the order that trades first: the oldest at the best price."""
        sign = -1 if side == "B" else 1
        return min(self.sides[side], key=lambda o: (sign * o.price, o.id), default=None)


class OrderFlow:
    """An endless market from a seed; see the module.

    `start_ns` (since 1970) is when it begins, `messages_per_s` how many actions come a second on
    average. Raises `UsageError` for settings out of bounds.
    """

    def __init__(
        self, seed: int, *, start_ns: int, instruments: int = 100, messages_per_s: float = 20_000.0
    ) -> None:
        if not 0 < instruments <= INSTRUMENTS_MAX:
            raise UsageError(f"{instruments} instruments", f"use 1 to {INSTRUMENTS_MAX:,}")
        if not 0 < messages_per_s <= RATE_MAX:
            raise UsageError(f"{messages_per_s} messages a second", f"use up to {RATE_MAX:,}")
        self._prng = Prng(seed)
        self.now_ns = start_ns
        mean_ns = int(1e9 / messages_per_s)
        # A wait that is drawn has 31 bits: a longer one is so many times that.
        self._times = 1 + mean_ns // DRAWN_MEAN_NS
        self._mean_ns = mean_ns // self._times
        self.books = [
            OrderBook((MIDDLE_TICKS_MIN + self._prng.below(MIDDLE_TICKS_SPREAD)) * TICK)
            for _ in range(instruments)
        ]
        self._orders = self._trades = 0

    def actions(self) -> Iterator[Action]:
        """Yield actions in order of time, without an end: directory, opening, market."""
        for does, state in ((DIRECTORY, ""), (STATUS, "T")):
            for instrument in range(1, len(self.books) + 1):
                self._wait()
                yield Action(self.now_ns, does, instrument, state=state)
        while True:
            self._wait()
            action = self._draw()
            if action is not None:
                yield action

    def _wait(self) -> None:
        self.now_ns += 1 + self._prng.wait(self._mean_ns) * self._times

    def _draw(self) -> Action | None:
        """Draw what happens now; None where what was drawn is not possible."""
        prng = self._prng
        instrument = 1 + prng.below(len(self.books))
        book, side = self.books[instrument - 1], "BS"[prng.below(2)]
        odds = prng.below(1024)
        does = next(does for does, below in ODDS if odds < below)
        if does == STATUS or book.halted:
            book.halted = not book.halted
            return Action(self.now_ns, STATUS, instrument, state="H" if book.halted else "T")
        if does == ADD:
            return self._arrive(instrument, book, side)
        if does == TRADE:
            self._trades += 1
            return Action(
                self.now_ns, TRADE, instrument, price=book.middle, size=self._size(),
                trade=self._trades,
            )  # fmt: skip
        orders = book.sides[side]
        if not orders:
            return None
        return self._change(instrument, side, book, orders[prng.below(len(orders))], does)

    def _arrive(self, instrument: int, book: OrderBook, side: str) -> Action | None:
        """Let an order come: it executes the best of the other side, or rests."""
        prng = self._prng
        book.middle = max(book.middle + (prng.below(3) - 1) * TICK, MIDDLE_TICKS_MIN * TICK // 2)
        sign = 1 if side == "B" else -1
        price = book.middle + sign * (2 - prng.below(SPREAD_TICKS)) * TICK
        size = self._size()
        other = "S" if side == "B" else "B"
        best = book.best(other)
        if best is not None and sign * (price - best.price) >= 0:
            return self._execute(instrument, other, book, best, size)
        orders = book.sides[side]
        if len(orders) >= SIDE_ORDERS_MAX:
            return self._change(instrument, side, book, orders[0], DELETE)
        self._orders += 1
        orders.append(Order(self._orders, price, size))
        return Action(
            self.now_ns, ADD, instrument, self._orders, side, price, size, left=size,
            level=book.level(side, price),
        )  # fmt: skip

    def _execute(
        self, instrument: int, side: str, book: OrderBook, order: Order, size: int
    ) -> Action:
        size = min(size, order.size)
        order.size -= size
        if not order.size:
            book.sides[side].remove(order)
        self._trades += 1
        return Action(
            self.now_ns, EXECUTE, instrument, order.id, side, order.price, size,
            left=order.size, trade=self._trades, level=book.level(side, order.price),
        )  # fmt: skip

    def _change(
        self, instrument: int, side: str, book: OrderBook, order: Order, does: str
    ) -> Action:
        """Reduce, replace or delete an order; the least size is not reduced but deleted."""
        orders = book.sides[side]
        old_price, old_size = order.price, order.size
        if does == REDUCE and old_size > LOT:
            size = LOT * (1 + self._prng.below(old_size // LOT - 1))
            order.size -= size
            return Action(
                self.now_ns, REDUCE, instrument, order.id, side, old_price, size, left=order.size,
                level=book.level(side, old_price),
            )  # fmt: skip
        orders.remove(order)
        old_level = book.level(side, old_price)
        if does != REPLACE:
            return Action(
                self.now_ns, DELETE, instrument, order.id, side, old_price, old_size,
                level=old_level,
            )  # fmt: skip
        # A replacement moves away from the other side, so it cannot reach it.
        away = TICK * self._prng.below(3)
        price = max(old_price - away, TICK) if side == "B" else old_price + away
        size = self._size()
        self._orders += 1
        orders.append(Order(self._orders, price, size))
        return Action(
            self.now_ns, REPLACE, instrument, order.id, side, price, size, left=size,
            new_order=self._orders, old_price=old_price, old_size=old_size,
            level=book.level(side, price), old_level=old_level,
        )  # fmt: skip

    def _size(self) -> int:
        return LOT * (1 + self._prng.below(LOTS_MAX))


def simple(actions: Iterator[Action]) -> Iterator[Action]:
    """Split the actions that not every feed has a single message for.

    A replacement becomes a deletion and an addition, a reduction a deletion and an addition by the
    same id: so all feeds send the actions as the same messages, one each.
    """
    for action in actions:
        if action.does == REPLACE:
            yield action._replace(
                does=DELETE, price=action.old_price, size=action.old_size, left=0, new_order=0,
                level=action.old_level,
            )  # fmt: skip
            yield action._replace(does=ADD, order=action.new_order, new_order=0)
        elif action.does == REDUCE:
            yield action._replace(
                does=DELETE, size=action.size + action.left, left=0,
                level=action.level - action.left,
            )  # fmt: skip
            yield action._replace(does=ADD, size=action.left)
        else:
            yield action
