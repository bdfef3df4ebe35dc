"""A simulated market whose book updates are FIX messages: what a FIX channel's publisher is fed.

A `FixMarket` has securities with books by price, a few levels a side. `next_message` is what
happens next: mostly an incremental refresh (X) of one security, in which levels are put in,
changed and taken out and trades take from the best ones; every `SNAPSHOT_EVERY`th message is a
full refresh (W) of the next security in turn. Prices never cross, and the messages' entries, one
after the other, are the books (`bids`, `asks`): a reader that applies them has the same.

Messages are whole, without a number: the publisher numbers them. With a channel's header they have
150 to 400 bytes. Sans-IO: the time is an argument, and everything follows from the seed.
"""

import random
from collections.abc import Iterator

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.encode import MessageWriter

#: Price levels of a side, at most: a full refresh of both sides then has fewer than 400 bytes.
LEVELS_MAX = 4
#: Of so many messages one is a full refresh.
SNAPSHOT_EVERY = 25
#: A price is a whole number of hundredths; levels lie within so many of the middle.
PRICE_PLACES = 2
REACH = 12
#: An incremental refresh that has so many entries gets no more; one event has two at most.
ENTRIES_WISHED = 3
#: Securities of one market at most.
SECURITIES_MAX = 10_000
#: Prices stay above this: no level of a falling security may reach zero.
_MIDDLE_MIN = 10 * REACH
_NEW, _CHANGE, _DELETE = b"0", b"1", b"2"
_BID, _OFFER, _TRADE = b"0", b"1", b"2"
_TIME_DIGITS = 9


class Security:
    """One security: its symbol, and its levels by price, each a size and a number of orders."""

    __slots__ = ("asks", "bids", "middle", "symbol")

    def __init__(self, symbol: bytes, middle: int) -> None:
        self.symbol = symbol
        self.middle = middle
        self.bids: dict[int, tuple[int, int]] = {}
        self.asks: dict[int, tuple[int, int]] = {}

    def side(self, type: bytes) -> dict[int, tuple[int, int]]:
        """Return the levels of a side: price to (size, orders)."""
        return self.bids if type == _BID else self.asks

    def best(self, type: bytes) -> int:
        """Return the side's best price; the side must not be empty."""
        return max(self.bids) if type == _BID else min(self.asks)


class FixMarket:
    """One channel's securities, and what happens to them; all of it follows from `seed`."""

    def __init__(self, seed: int, symbols: list[str]) -> None:
        if not 1 <= len(symbols) <= SECURITIES_MAX:
            raise UsageError(
                f"a market cannot have {len(symbols):,} securities", f"1 to {SECURITIES_MAX:,}"
            )
        self._prng = random.Random(seed)
        self.securities = {
            symbol: Security(symbol.encode(), self._prng.randrange(2_000, 30_000))
            for symbol in symbols
        }
        self._list = list(self.securities.values())
        self._writer = MessageWriter(capacity=4096)
        self._count = 0
        self._turn = 0
        for each in self._list:
            for type in (_BID, _OFFER):
                for _ in range(LEVELS_MAX - 1):
                    self._open(each, type)

    def next_message(self, time_ns: int) -> bytes:
        """Make the next event, at `time_ns` after 1970: a whole message without a number."""
        self._count += 1
        # The first messages are full refreshes, so that changes have a book to change.
        if self._turn < len(self._list) or self._count % SNAPSHOT_EVERY == 0:
            security = self._list[self._turn % len(self._list)]
            self._turn += 1
            return self.snapshot(security, time_ns)
        return self._update(self._list[self._drawn(len(self._list))], time_ns)

    def snapshot(self, security: Security, time_ns: int) -> bytes:
        """Write the security's full refresh (W)."""
        writer = self._writer
        writer.begin(b"W")
        writer.put_time(52, time_ns, _TIME_DIGITS)
        writer.put_bytes(55, security.symbol)
        writer.put_number(268, len(security.bids) + len(security.asks))
        for type in (_BID, _OFFER):
            for price, (size, orders) in sorted(security.side(type).items(), reverse=type == _BID):
                writer.put_bytes(269, type)
                writer.put_decimal(270, price, PRICE_PLACES)
                writer.put_number(271, size)
                writer.put_number(346, orders)
        writer.finish()
        return writer.message()

    def _drawn(self, below: int) -> int:
        """Draw an integer of 0 to `below` - 1: not quite uniform, but fast."""
        return int(self._prng.random() * below)

    def _update(self, security: Security, time_ns: int) -> bytes:
        """Write an incremental refresh (X) of one security."""
        entries = list(self._event(security))
        while len(entries) < ENTRIES_WISHED and self._prng.random() < 0.5:
            entries += self._event(security)
        writer = self._writer
        writer.begin(b"X")
        writer.put_time(52, time_ns, _TIME_DIGITS)
        writer.put_time(60, time_ns, _TIME_DIGITS)
        writer.put_number(268, len(entries))
        for action, type, price, size, orders in entries:
            writer.put_bytes(279, action)
            writer.put_bytes(269, type)
            writer.put_bytes(55, security.symbol)
            writer.put_decimal(270, price, PRICE_PLACES)
            if size:
                writer.put_number(271, size)
            if orders:
                writer.put_number(346, orders)
        writer.finish()
        return writer.message()

    def _event(self, security: Security) -> Iterator[tuple[bytes, bytes, int, int, int]]:
        """Draw an event; yield its entries: action, type, price, size, orders (0: none)."""
        kind = self._prng.random()
        type = _BID if self._prng.random() < 0.5 else _OFFER
        side = security.side(type)
        if kind < 0.15 and len(side) > 1:
            yield from self._trade(security, type)
        elif kind < 0.35 and len(side) < LEVELS_MAX:
            yield self._open(security, type)
        elif kind < 0.5 and len(side) > 1:
            price = list(side)[self._drawn(len(side))]
            del side[price]
            yield _DELETE, type, price, 0, 0
        else:
            price = list(side)[self._drawn(len(side))]
            side[price] = self._stock()
            yield _CHANGE, type, price, *side[price]

    def _trade(
        self, security: Security, type: bytes
    ) -> Iterator[tuple[bytes, bytes, int, int, int]]:
        """Trade against the best level, wholly or in part; move the middle where it is used up."""
        side = security.side(type)
        price = security.best(type)
        size, orders = side[price]
        traded = min(size, 1 + self._drawn(2 * size))
        yield _NEW, _TRADE, price, traded, 0
        if traded == size:
            del side[price]
            security.middle = max(security.middle + (1 if type == _OFFER else -1), _MIDDLE_MIN)
            yield _DELETE, type, price, 0, 0
        else:
            side[price] = size - traded, max(orders - 1, 1)
            yield _CHANGE, type, price, *side[price]

    def _open(self, security: Security, type: bytes) -> tuple[bytes, bytes, int, int, int]:
        """Put in a level where none is, on its side of the other side's best."""
        side = security.side(type)
        below = type == _BID
        step = 1 + self._drawn(REACH)
        price = security.middle - step if below else security.middle + step
        others = security.side(_OFFER if below else _BID)
        if others:
            edge = security.best(_OFFER if below else _BID)
            price = min(price, edge - 1) if below else max(price, edge + 1)
        while price in side:
            price += -1 if below else 1
        side[price] = self._stock()
        return _NEW, type, price, *side[price]

    def _stock(self) -> tuple[int, int]:
        """Draw a level's size and number of orders."""
        orders = 1 + self._drawn(20)
        return 100 * orders + 10 * self._drawn(100), orders
