"""Books, trades and trading states of a FIX channel's market data, rebuilt from its stream.

`FixBooks` is to FIX what `VenueMarket` is to feeds with a `[book]` table: it is given what
`feedhandler.subscribe` hands out (packets, batches, single messages, and the quality messages
between them), or datagrams of a capture, and its views are mappings by symbol, the text of Symbol
(55) or else of SecurityID (48). Prices are whole numbers with nine decimals, sizes are cut to whole
units.

* books: the bids and offers that W and X messages leave in force (`retrans.fix.market_state`). A
  view is built of the entries when it is looked at.
* trades: the last entry of type 2 that is new; its time is that of the entry (272, 273), else
  TransactTime (60). Its side is AggressorSide (2446).
* states: SecurityTradingStatus (326) of SecurityStatus messages (f).

Promises: nothing in a stream makes it raise; what does not fit is counted by name in `problems`.
Order and completeness of the stream are its caller's. Sans-IO.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import BadPacket, Feed
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix_feed import FixFeed, type_code
from feedhandler.market.venue_market import Trade, View
from feedhandler.replay.state.book import BUY, SELL
from feedhandler.replay.state.fix_book import standing_of
from feedhandler.retrans.fix.market_data import MESSAGE_FIELDS_MAX, utc_ns
from feedhandler.retrans.fix.market_state import NEW, MarketState, decimal_of, name_of, split

#: Decimal places of prices.
DECIMALS = 9
_FULL, _INCREMENTAL, _STATUS = (type_code(label) for label in ("W", "X", "f"))
_TRADE = b"2"
#: A trade's entry in a message's bytes, without which its fields need not be read.
_HAS_TRADE = b"\x01269=2\x01"
_AGGRESSORS = {b"1": "B", b"2": "A"}
#: SecurityTradingStatus: halt; resume, ready to trade, fast market; pre-open, opening rotation,
#: pre-cross, cross; not available, post-close. Others say nothing of a state.
_STATES = {
    b"2": "halted",
    **dict.fromkeys((b"3", b"17", b"23"), "trading"),
    **dict.fromkeys((b"21", b"22", b"24", b"25"), "auction"),
    **dict.fromkeys((b"18", b"26"), "closed"),
}


class FixSideView:
    """One side of a book, as it is when looked at."""

    def __init__(self, state: MarketState, security: bytes, side: int) -> None:
        self._state, self._security, self._side = state, security, side

    def _standing(self) -> list[tuple[bytes, int, int]]:
        """Return (id, price, size) of each bid or offer, those of a price in their priority, the
        best price first."""
        standing, _ = standing_of(self._state, self._security)
        found = sorted(
            (each for each in standing if each.side == self._side),
            key=lambda each: each.price,
            reverse=self._side == BUY,
        )
        return [(each.id, int(each.price.scaleb(DECIMALS)), int(each.size)) for each in found]

    def top(self, depth: int) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of at most `depth` levels, best first; a level that is told
        as a whole has 0 orders."""
        levels: dict[int, tuple[int, int]] = {}
        for id, price, size in self._standing():
            whole, orders = levels.get(price, (0, 0))
            levels[price] = (whole + size, orders + bool(id))
        return [(price, *each) for price, each in list(levels.items())[:depth]]

    @property
    def orders(self) -> list[tuple[str, int, int]]:
        """(MDEntryID, price, size) of every order, in priority; none in a book by level."""
        return [(id.decode("latin-1"), price, size) for id, price, size in self._standing() if id]


class FixBookView:
    """The book of one security, as it is when looked at."""

    def __init__(self, state: MarketState, security: bytes) -> None:
        self.bids = FixSideView(state, security, BUY)
        self.asks = FixSideView(state, security, SELL)

    @property
    def crossed(self) -> bool:
        """Whether the best bid is not below the best ask."""
        bids, asks = self.bids.top(1), self.asks.top(1)
        return bool(bids and asks) and bids[0][0] >= asks[0][0]


class FixBooks:
    """The state of every service of a FIX feed; see the module.

    `books` (`FixBookView`), `trades` (the last `Trade`), `states` (trading, halted, auction,
    closed) are by symbol. Raises `UsageError` for a feed that is not framed by FIX.
    """

    def __init__(self, feed: Feed, *, clears_on_reset: bool = True) -> None:
        if not isinstance(feed, FixFeed):
            raise UsageError(f"{feed.name} is not framed by FIX", "see feedhandler.Market")
        self.feed = feed
        self.clears_on_reset = clears_on_reset
        self._services: dict[int, MarketState] = {}
        self._trades: dict[bytes, Trade] = {}
        self._states: dict[bytes, str] = {}
        self._counts: Counter[str] = Counter()
        self.books = View(self, self._book_of)
        self.trades = View(self, self._trades.get)
        self.states = View(self, self._states.get)

    # -- what comes in ----------------------------------------------------------------------

    def apply(self, packet: bytes, service: int = 0) -> int:
        """Take in the messages of a datagram of a service; return how many they are."""
        count = 0
        try:
            for begin, _, index in self.feed.scanned(packet):
                count += index.count
                for i in range(index.count):
                    at = begin + index.offsets[i]
                    message = packet[at : at + index.sizes[i]]
                    self._message(message, index.types[i], index.sequences[i], service)
        except BadPacket:
            self._counts["bad_packet"] += 1
        return count

    def apply_message(self, message: bytes, service: int = 0) -> None:
        """Take in one whole message of a service."""
        self.apply(message, service)

    def update(self, message: Any) -> None:
        """Take in what `feedhandler.subscribe` hands out, quality messages included. Give one
        market the messages of one link a service."""
        if message.content == "records":
            self._counts["other_records"] += 1
        elif message.content != "quality":
            self.apply(bytes(message.body), message.service)
        else:
            reason = (message.quality or {}).get("reason")
            if reason == "snapshot-begin" or (reason == "reset" and self.clears_on_reset):
                self.clear(message.service)

    def clear(self, service: int) -> None:
        """Empty the books of a service."""
        if service in self._services:
            self._services[service].clear()

    def _message(self, data: bytes, code: int, number: int, service: int) -> None:
        if code in (_FULL, _INCREMENTAL):
            state = self._services.get(service)
            if state is None:
                state = self._services[service] = MarketState()
            state.apply(data, number)
        if code == _STATUS or (code in (_FULL, _INCREMENTAL) and _HAS_TRADE in data):
            try:
                found = fields(data, MESSAGE_FIELDS_MAX)
            except FixError:
                self._counts["bad_message"] += 1
                return
            if code == _STATUS:
                self._note_status(dict(found))
            else:
                self._note_trades(*split(found))

    def _note_status(self, said: Mapping[int, bytes]) -> None:
        security, state = name_of(dict(said)), _STATES.get(said.get(326, b""))
        if security and state is not None:
            self._states[security] = state

    def _note_trades(self, root: dict[int, bytes], entries: list[list[tuple[int, bytes]]]) -> None:
        """Keep the trades among a message's entries, of each security the last."""
        security = name_of(root)
        for pairs in entries:
            said = dict(pairs)
            security = name_of(said) or security
            price, size = decimal_of(said.get(270, b"")), decimal_of(said.get(271, b""))
            is_new = said.get(269) == _TRADE and said.get(279, NEW) == NEW
            if is_new and security and price is not None:
                self._trades[security] = Trade(
                    int(price.scaleb(DECIMALS)),
                    int(size or 0),
                    _AGGRESSORS.get(said.get(2446, b""), "N"),
                    _time_ns({**root, **said}),
                )

    # -- what it knows ----------------------------------------------------------------------

    @property
    def problems(self) -> Counter[str]:
        """What did not fit, by name: the number of times."""
        counted = self._counts.copy()
        for state in self._services.values():
            counted += state.problems
        return counted

    @property
    def names(self) -> dict[int, str]:
        """The names that reference data has told: none, for messages have symbols as text."""
        return {}

    def instruments(self) -> dict[str, bytes]:
        """Return the symbols as messages have them, by their text."""
        securities = [each for state in self._services.values() for each in state.securities]
        known = dict.fromkeys([*securities, *self._trades, *self._states])
        return {security.decode("latin-1"): security for security in known}

    def instrument_of(self, symbol: str | int) -> bytes:
        """Return a symbol as messages have it."""
        return str(symbol).encode("latin-1", "replace")

    def _book_of(self, security: bytes) -> FixBookView | None:
        for state in self._services.values():
            if security in state.securities:
                return FixBookView(state, security)
        return None


def _time_ns(said: Mapping[int, bytes]) -> int:
    """Return when an entry was made, ns since 1970; `UNDEFINED_TIME` where that is not told."""
    text = said.get(60, b"")
    if 272 in said and 273 in said:
        text = said[272] + b"-" + said[273]
    time_ns = utc_ns(text)
    return UNDEFINED_TIME if time_ns < 0 else time_ns
