"""Books, trades and trading states of any feed with a `[book]` table, rebuilt from its stream.

`VenueMarket` is given what `feedhandler.subscribe` hands out (packets, batches, single messages, or
records of `as_="mbo"`, and the quality messages between them), or packets of a capture. Its views
are mappings by symbol: by name, or by the number that messages have for it. Prices are whole
numbers with nine decimals (`PRICE_SCALE`).

Promises: nothing in a stream makes it raise; what does not fit is counted by name in `problems`.
Order and completeness of the stream are its caller's. Sans-IO.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy

from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.dbn import MBO, STATUS_ACTIONS, UNDEFINED_TIME
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.codecs.feed import Feed, split_packets
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.depth_book import ASK, BID, DepthBook
from feedhandler.market.records import Records

#: Trading states by DBN's action.
_STATE_OF = {action: state for state, (action, _) in STATUS_ACTIONS.items()}
#: Counts of the normaliser that are problems of the stream.
_COUNTED = ("unknown_orders", "short", "sideless", "unscaled", "clamped", "unnamed")


class Trade(NamedTuple):
    """A trade: its price, size and aggressor's side (B, A, or N where it is not told), and when it
    happened, ns since 1970; `UNDEFINED_TIME` where that is not told."""

    price: int
    size: int
    side: str
    time_ns: int


class SideView:
    """One side of a book, as it is when looked at."""

    def __init__(self, book: DepthBook, instrument: int, side: int) -> None:
        self._book, self._instrument, self._side = book, instrument, side

    def top(self, depth: int) -> list[tuple[int, int, int]]:
        """Return (price, size, orders) of at most `depth` levels, best first."""
        return self._book.levels(self._instrument, self._side, depth)

    @property
    def orders(self) -> list[tuple[int, int, int]]:
        """(order id, price, size) of every order, in priority; none in a book by level."""
        return self._book.orders(self._instrument, self._side)


class BookView:
    """The book of one instrument, as it is when looked at."""

    def __init__(self, book: DepthBook, instrument: int) -> None:
        self.bids = SideView(book, instrument, BID)
        self.asks = SideView(book, instrument, ASK)

    @property
    def crossed(self) -> bool:
        """Whether the best bid is not below the best ask."""
        bids, asks = self.bids.top(1), self.asks.top(1)
        return bool(bids and asks) and bids[0][0] >= asks[0][0]


class View(Mapping[str | int, Any]):
    """A mapping by symbol: iterated by name, looked up by name or number."""

    def __init__(self, market: "VenueMarket", look: Callable[[int], Any]) -> None:
        self._market, self._look = market, look

    def __getitem__(self, symbol: str | int) -> Any:
        found = self._look(self._market.instrument_of(symbol))
        if found is None:
            raise KeyError(symbol)
        return found

    def __iter__(self) -> Iterator[str]:
        for name, instrument in self._market.instruments().items():
            if self._look(instrument) is not None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


class VenueMarket:
    """The state of every service of a feed; see the module.

    `books` (`BookView`), `trades` (the last `Trade`), `states` (trading, halted, auction, quoting,
    closed) are by symbol. Raises `UsageError` for a feed without `[book]`.
    """

    def __init__(self, feed: Feed, *, clears_on_reset: bool = True) -> None:
        self.feed = feed
        self.clears_on_reset = clears_on_reset
        self._records = Records(feed, "mbo")
        self._normaliser, self._book = self._records.normaliser, self._records.book
        self._known = ReferenceData(feed)
        #: Names that came with records: by instrument.
        self._named: dict[int, str] = {}
        self._trades: dict[int, Trade] = {}
        self._states: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        #: Instruments by name, and of how many instruments and names they were made.
        self._instruments: dict[str, int] = {}
        self._made_of = (-1, -1)
        self.books = View(self, self._book_of)
        self.trades = View(self, self._trades.get)
        self.states = View(self, self._states.get)

    # -- what comes in ----------------------------------------------------------------------

    def apply(self, packet: bytes, service: int = 0) -> int:
        """Take in the packets of a datagram; return how many messages they have.

        `service` is theirs where the feed's headers have none.
        """
        return self._apply(packet, None if self.feed.table.service_size else service)

    def _apply(self, packet: bytes, service: int | None) -> int:
        """Take in the packets of a datagram, of a service, or of that in their headers."""
        count = 0
        try:
            for begin, header, index in self.feed.scanned(packet):
                count += index.count
                self._known.learn_packet(packet, begin, index)
                self._records.clear()
                self._records.apply_packet(
                    packet, begin, index, 0, UNDEFINED_TIME, UNDEFINED_TIME,
                    header.service if service is None else service,
                )  # fmt: skip
                self._note()
        except BadPacket:
            self._counts["bad_packet"] += 1
        return count

    def apply_message(self, message: bytes, service: int = 0) -> None:
        """Take in one whole message of a service."""
        code = self.feed.message_code(message)
        if code in self._known.references:
            self._known.learn(code, message)
        self._records.clear()
        self._records.apply_message(
            message, 0, len(message), code, UNDEFINED_TIME, UNDEFINED_TIME, 0, service
        )
        self._note()

    def update(self, message: Any) -> None:
        """Take in what `feedhandler.subscribe` hands out, quality messages included. Give one
        market the messages of one feed, and of one link a service."""
        try:
            if message.content == "quality":
                self._quality(message)
            elif message.content == "records":
                self._apply_records(message)
            elif message.content == "batch":
                for packet in split_packets(self.feed, message.body):
                    self._apply(packet, message.service)
            elif message.content != "message" or self.feed.table.type_in_packet:
                self._apply(message.body, message.service)
            else:
                self.apply_message(message.body, message.service)
        except FeedhandlerError:
            self._counts["bad_message"] += 1

    def clear(self, service: int) -> None:
        """Empty the books of a service."""
        self._records.clear()
        self._records.empty(service, UNDEFINED_TIME)

    def _quality(self, message: Any) -> None:
        reason = (message.quality or {}).get("reason")
        if reason == "snapshot-begin" or (reason == "reset" and self.clears_on_reset):
            self.clear(message.service)
        elif reason == "books-begin":
            for symbol in (message.quality or {}).get("symbols", ()):
                self._empty_book(symbol)

    def _empty_book(self, symbol: str | int) -> None:
        """Empty the book of a symbol, which is told anew, as a gateway names it."""
        numbers = (symbol,) if isinstance(symbol, int) else self.feed.symbols_named(symbol)
        for instrument in map(self._normaliser.instrument_of, numbers):
            if instrument:
                self._records.empty_book(instrument)

    def _apply_records(self, message: Any) -> None:
        """Take in order events that a gateway has normalised already."""
        records = message.records()
        self._named.update(message.symbols)
        if not len(records):
            return
        if records.dtype != MBO:
            self._counts["other_records"] += 1
            return
        self._records.apply(records)
        self._note_trades(records)

    def _note(self) -> None:
        """Keep the trades and statuses of what was taken in."""
        for status in self._records.of("status"):
            self._states[int(status["instrument_id"])] = _STATE_OF[int(status["action"])]
        self._note_trades(self._records.of("mbo"))

    def _note_trades(self, events: numpy.ndarray) -> None:
        for event in events[events["action"] == b"T"]:
            self._trades[int(event["instrument_id"])] = Trade(
                int(event["price"]),
                int(event["size"]),
                event["side"].decode(),
                int(event["ts_event"]),
            )

    # -- what it knows ----------------------------------------------------------------------

    @property
    def problems(self) -> Counter[str]:
        """Number of times that something did not fit, by name."""
        counted = Counter({name: getattr(self._normaliser, name) for name in _COUNTED})
        counted["refused"] = self._normaliser.orders.refused + self._book.refused
        return +(counted + self._counts)

    @property
    def names(self) -> dict[int, str]:
        """The names that reference data has told, by the number that messages have."""
        return dict(self._known.names)

    def instruments(self) -> dict[str, int]:
        """Return the instrument ids by name; of those that have none by the number in messages."""
        numbers = dict.fromkeys([*self._book.instruments(), *self._states, *self._trades])
        size = (len(numbers), len(self._known.names) + len(self._named))
        if size != self._made_of:
            self._instruments = {self._name_of(number): number for number in numbers}
            self._made_of = size
        return self._instruments

    def instrument_of(self, symbol: str | int) -> int:
        """Return the instrument id of a symbol, by its name or the number in messages; 0 where it
        is not known."""
        if isinstance(symbol, int):
            return self._normaliser.instrument_of(symbol)
        return self.instruments().get(symbol, 0)

    def _name_of(self, instrument: int) -> str:
        if instrument in self._named:
            return self._named[instrument]
        symbol = self._normaliser.symbol_of(instrument)
        text = self._normaliser.texts.get(symbol) or self.feed.symbol_name(symbol)
        return self._known.names.get(symbol) or text or str(symbol)

    def _book_of(self, instrument: int) -> BookView | None:
        if not instrument or not self._book.has(instrument):
            return None
        return BookView(self._book, instrument)
