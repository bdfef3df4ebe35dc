"""What happens in a generated market: orders that match, quotes that follow, trades, index values.

Three small markets, each fed with an instrument and a time, putting messages on tapes:
`ShareMarket` keeps a matching book for every equity, `IssuerMarket` the one bid and one ask that
an issuer shows for a warrant, `IndexMarket` the indices, computed from the shares' last prices.
None of them knows packets, services' sequence numbers or when
it will be asked next; that is the session generator's.

Promises. Books never cross: an order that could trade does, and only what is left rests. Every
event of the engine has a number, and the messages that report it (the trade, the order update,
the quotes it changed) all carry that number as SourceSeqNum and its time as SourceTime. So a book
rebuilt from all order updates up to number n equals every quote numbered n; within one system
numbers never decrease. Quotes show `QUOTE_DEPTH` levels, one message for each level that changed.
Prices are multiples of the tick. An order's number repeats from day to day, so some opening
orders date from the day before.

The mix of actions is a constant of this module; it makes about 1.5 quote messages to an order
message, the ratio in the source paper's Table 1.
"""

import random
from collections.abc import Callable
from itertools import repeat

from feedhandler.replay.generating.generator_wire import MessageTime, Wire
from feedhandler.replay.generating.instruments import Instrument
from feedhandler.replay.state.book import BUY, SELL, Book, Level, Order

#: Where a market puts one message.
Tape = Callable[[bytes], None]

#: Engine numbers, as in SystemID: each numbers its own events.
SHARE_SYSTEM, ISSUER_SYSTEM, INDEX_SYSTEM, REFERENCE_SYSTEM = 11, 12, 13, 10
#: Levels that quotes show (the feed's BBO10).
QUOTE_DEPTH = 10
#: Resting orders of one book: below, orders are only added; above, only taken away.
ORDERS_MIN, ORDERS_MAX = 16, 60
#: Orders on each side of a book when the session opens.
OPENING_ORDERS = 9
#: Opening orders that were entered on the day before.
CARRIED_OVER_SHARE = 0.2
#: An incoming order trades with at most so many resting ones (a bound, rarely met).
FILLS_MAX = 12
#: Cumulative shares of what an incoming instruction does; the rest adds an order.
CROSS, CANCEL, SHRINK, REPRICE = 0.014, 0.36, 0.44, 0.50
#: How strongly trading leans back to the opening price, and how far that lean goes at most.
LEAN, LEAN_MAX = 2.0, 0.4
#: A new order stands up to so many ticks behind the best, rather near than far.
BEHIND_TICKS = 14
#: An index is made of so many shares at most.
CONSTITUENTS_MAX = 20
#: A price stays above this many ticks, so that deep bids stay positive.
PRICE_FLOOR_TICKS = 60

_SIDE_CODE = {BUY: b"1", SELL: b"2"}
_EMPTY_ROW = (0, 0, 0)


class Share:
    """One equity while it trades: its book, its day's figures and the quotes last shown."""

    __slots__ = (
        "asks_shown",
        "bids_shown",
        "book",
        "halted",
        "halted_until_ns",
        "high",
        "instrument",
        "last",
        "low",
        "next_order",
        "traded",
        "trades",
    )

    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument
        self.book = Book()
        self.last = self.high = self.low = instrument.opening_price
        self.traded = 0
        self.trades = 0
        self.next_order = 1
        self.halted = False
        self.halted_until_ns = 0
        self.bids_shown = [_EMPTY_ROW] * QUOTE_DEPTH
        self.asks_shown = [_EMPTY_ROW] * QUOTE_DEPTH


class ShareMarket:
    """The equities' matching engine. `orders`, `quotes`, `trades` take the messages it makes."""

    def __init__(
        self,
        wire: Wire,
        rng: random.Random,
        instruments: list[Instrument],
        orders: Tape,
        quotes: Tape,
        trades: Tape,
    ) -> None:
        self.shares = [Share(instrument) for instrument in instruments]
        self.number = 0
        self._wire = wire
        self._rng = rng
        self._random = rng.random
        self._orders, self._quotes, self._trades = orders, quotes, trades

    def open(self, share: Share, time: MessageTime) -> None:
        """Fill an empty book from both sides, then show its quotes."""
        tick, centre = share.instrument.tick, share.instrument.opening_price
        carried = 0
        for side in (BUY, SELL):
            for _ in repeat(None, OPENING_ORDERS):
                price = centre - side * tick * (1 + int(self._random() * 8))
                if self._random() < CARRIED_OVER_SHARE:
                    carried += 1
                    key = (time.previous_date, carried)
                else:
                    key = (time.date, self._order_number(share))
                self.number += 1
                order, level = share.book.add(key, side, price, self._volume(), time.ns)
                self._order_message(share, order, level, b"A", order.volume, time)
        self._show(share, time, BUY, SELL)

    def act(self, share: Share, time: MessageTime) -> None:
        """One instruction arrives: an order is added, changed, cancelled, or trades."""
        resting = share.book.orders
        draw = self._random()
        if len(resting) < ORDERS_MIN:
            draw = 1.0
        elif len(resting) > ORDERS_MAX:
            draw = min(draw, CANCEL - CROSS)
        if draw >= REPRICE:
            self._enter(share, time)
        elif draw < CROSS:
            self._cross(share, time)
        else:
            order = resting[int(self._random() * len(resting))]
            if draw < CANCEL:
                self._cancel(share, order, time)
            elif draw < SHRINK and order.volume > 1:
                self._shrink(share, order, time)
            else:
                self._reprice(share, order, time)

    def close(self, share: Share, time: MessageTime) -> None:
        """The closing price; the book is cleared and its quotes go blank."""
        self.number += 1
        self._trades(
            self._wire.closing_price(share.instrument, share.last, self.number, SHARE_SYSTEM, time)
        )
        share.book.clear()
        self._orders(self._wire.clear(share.instrument, self.number, SHARE_SYSTEM, time))
        self._show(share, time, BUY, SELL)

    def _enter(self, share: Share, time: MessageTime) -> None:
        book = share.book
        bids, asks = len(book.bids.keys) + 1, len(book.asks.keys) + 1
        side = BUY if self._random() * (bids + asks) < asks else SELL
        key = (time.date, self._order_number(share))
        price = self._passive_price(share, side)
        self.number += 1
        order, level = book.add(key, side, price, self._volume(), time.ns)
        self._order_message(share, order, level, b"A", order.volume, time)
        self._show(share, time, side)

    def _cancel(self, share: Share, order: Order, time: MessageTime) -> None:
        self.number += 1
        _, level = share.book.remove(order.key)
        self._order_message(share, order, level, b"D", 0, time)
        self._show(share, time, order.side)

    def _shrink(self, share: Share, order: Order, time: MessageTime) -> None:
        self.number += 1
        volume = 1 + int(self._random() * (order.volume - 1))
        level = share.book.modify(order.key, order.price, volume)
        self._order_message(share, order, level, b"M", volume, time)
        self._show(share, time, order.side)

    def _reprice(self, share: Share, order: Order, time: MessageTime) -> None:
        price = self._passive_price(share, order.side)
        if price == order.price:
            self._cancel(share, order, time)
            return
        self.number += 1
        level = share.book.modify(order.key, price, order.volume, time.ns)
        self._order_message(share, order, level, b"M", order.volume, time)
        self._show(share, time, order.side)

    def _cross(self, share: Share, time: MessageTime) -> None:
        """An order that trades at once; what is left of it rests where it cannot cross."""
        book, instrument = share.book, share.instrument
        lean = LEAN * (instrument.opening_price - share.last) / instrument.opening_price
        side = BUY if self._random() < 0.5 + max(-LEAN_MAX, min(LEAN_MAX, lean)) else SELL
        best = book.side(-side).best()
        low = PRICE_FLOOR_TICKS * instrument.tick
        if best is None or (best.price <= low and side == SELL):
            self._enter(share, time)
            return
        limit = best.price + side * instrument.tick * int(self._random() * 2)
        left = self._volume()
        before = share.last
        for order, level, filled in book.match(side, limit, left, FILLS_MAX):
            left -= filled
            self.number += 1
            self._trade(share, order.price, filled, time)
            gone = order.key not in book.by_key
            self._order_message(
                share, order, level, b"D" if gone else b"M", 0 if gone else order.volume, time
            )
            self._show(share, time, -side)
        if share.last != before:
            self._trades(self._wire.price_update(share, self.number, SHARE_SYSTEM, time))
        against = book.side(-side).best()
        if left > 0 and (against is None or against.price * side > limit * side):
            self.number += 1
            key = (time.date, self._order_number(share))
            order, level = book.add(key, side, limit, left, time.ns)
            self._order_message(share, order, level, b"A", left, time)
            self._show(share, time, side)

    def _passive_price(self, share: Share, side: int) -> int:
        """A price on the tick that rests: often inside the spread by a tick, else behind it."""
        tick, book = share.instrument.tick, share.book
        own, against = book.side(side).best(), book.side(-side).best()
        if own is None:
            base = against.price - side * tick if against is not None else share.last
            return max(tick, base - side * tick * int(self._random() * 4))
        behind = int(BEHIND_TICKS * self._random() ** 2)
        if behind == 0 and self._random() < 0.6:
            better = own.price + side * tick
            if against is None or better * side < against.price * side:
                return better
        price = own.price - side * tick * behind
        return price if price >= tick else tick

    def _volume(self) -> int:
        return 1 + int(2500 * self._random() ** 3)

    def _order_number(self, share: Share) -> int:
        number = share.next_order
        share.next_order = number + 1
        return number

    def _trade(self, share: Share, price: int, volume: int, time: MessageTime) -> None:
        share.trades += 1
        share.traded += volume
        direction = b"+" if price > share.last else b"-" if price < share.last else b"="
        share.last = price
        share.high, share.low = max(share.high, price), min(share.low, price)
        self._trades(self._wire.trade(share, volume, direction, self.number, SHARE_SYSTEM, time))

    def _order_message(
        self, share: Share, order: Order, level: Level, action: bytes, volume: int,
        time: MessageTime,
    ) -> None:  # fmt: skip
        self._orders(
            self._wire.order(
                share.instrument,
                order,
                _SIDE_CODE[order.side],
                action,
                volume,
                level.volume,
                len(level.orders),
                self.number,
                SHARE_SYSTEM,
                time,
            )
        )

    def _show(self, share: Share, time: MessageTime, *sides: int) -> None:
        """A quote for every level that looks other than when it was last shown."""
        bids, asks = share.bids_shown, share.asks_shown
        for side in sides:
            rows = share.book.side(side).top(QUOTE_DEPTH)
            if len(rows) < QUOTE_DEPTH:
                rows += [_EMPTY_ROW] * (QUOTE_DEPTH - len(rows))
            if side == BUY:
                share.bids_shown = rows
            else:
                share.asks_shown = rows
        for number, shown in enumerate(zip(share.bids_shown, share.asks_shown, strict=True)):
            bid, ask = shown
            if bid != bids[number] or ask != asks[number]:
                self._quotes(
                    self._wire.quote(
                        share.instrument, number + 1, bid, ask, self.number, SHARE_SYSTEM, time
                    )
                )


class Warrant:
    """One warrant while it trades: what its issuer shows, and the day's figures."""

    __slots__ = ("bid", "high", "instrument", "last", "low", "spread", "traded", "trades")

    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument
        self.bid = self.last = self.high = self.low = instrument.opening_price
        self.spread = 1
        self.traded = 0
        self.trades = 0


class IssuerMarket:
    """Warrants: an issuer moves its two-sided quote, and now and then somebody takes it."""

    def __init__(
        self, wire: Wire, rng: random.Random, instruments: list[Instrument], quotes: Tape,
        trades: Tape,
    ) -> None:  # fmt: skip
        self.warrants = [Warrant(instrument) for instrument in instruments]
        self.number = 0
        self._wire = wire
        self._random = rng.random
        self._quotes, self._trades = quotes, trades

    def act(self, warrant: Warrant, time: MessageTime) -> None:
        """The issuer changes its quote by a tick or two, or only its size."""
        draw = self._random()
        opening = warrant.instrument.opening_price
        if draw < 0.6:
            down = self._random() * 2 * opening < warrant.bid
            warrant.bid = max(1, warrant.bid + (-1 if down else 1))
        elif draw < 0.75:
            warrant.spread = 1 + int(self._random() * 3)
        self.number += 1
        volume = 1000 * (1 + int(self._random() * 50))
        bid = (warrant.bid, volume, 1)
        ask = (warrant.bid + warrant.spread, volume, 1)
        instrument = warrant.instrument
        self._quotes(self._wire.quote(instrument, 1, bid, ask, self.number, ISSUER_SYSTEM, time))

    def trade(self, warrant: Warrant, time: MessageTime) -> None:
        """Somebody takes the issuer's bid or ask; a price update follows."""
        price = warrant.bid + (warrant.spread if self._random() < 0.6 else 0)
        volume = 100 * (1 + int(self._random() * 40))
        direction = b"+" if price > warrant.last else b"-" if price < warrant.last else b"="
        warrant.trades += 1
        warrant.traded += volume
        warrant.last = price
        warrant.high, warrant.low = max(warrant.high, price), min(warrant.low, price)
        self.number += 1
        wire, number = self._wire, self.number
        self._trades(wire.trade(warrant, volume, direction, number, ISSUER_SYSTEM, time))
        self._trades(wire.price_update(warrant, number, ISSUER_SYSTEM, time))

    def close(self, warrant: Warrant, time: MessageTime) -> None:
        """The closing price; the issuer's quote goes blank."""
        self.number += 1
        instrument, number = warrant.instrument, self.number
        self._trades(
            self._wire.closing_price(instrument, warrant.last, number, ISSUER_SYSTEM, time)
        )
        self._quotes(
            self._wire.quote(instrument, 1, _EMPTY_ROW, _EMPTY_ROW, number, ISSUER_SYSTEM, time)
        )


class IndexMarket:
    """Indices: their value moves as the last prices of their constituents do."""

    def __init__(
        self, wire: Wire, indices: list[Instrument], shares: list[Share], values: Tape
    ) -> None:
        self._wire = wire
        self._values = values
        self._indices = [(index, _constituents(index, shares)) for index in indices]
        self._high = [index.opening_price for index in indices]
        self._low = [index.opening_price for index in indices]

    def show(self, time: MessageTime) -> None:
        """A message with the present value of every index."""
        for place, (index, shares) in enumerate(self._indices):
            # Each constituent weighs the same at the opening.
            relative = sum(share.last / share.instrument.opening_price for share in shares)
            level = int(index.opening_price * relative / len(shares))
            high = self._high[place] = max(self._high[place], level)
            low = self._low[place] = min(self._low[place], level)
            self._values(self._wire.index(index, level, high, low, len(shares), INDEX_SYSTEM, time))


def _constituents(index: Instrument, shares: list[Share]) -> list[Share]:
    """The most active shares of the index's own market, or of all where it has too few."""
    local = [share for share in shares if share.instrument.mic == index.mic]
    return (local if len(local) >= 3 else shares)[:CONSTITUENTS_MAX]
