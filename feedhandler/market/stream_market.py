"""The market of any feed, rebuilt from its stream: books, trades, states, the latest messages.

`Market` is given what `feedhandler.subscribe` hands out (packets, batches, single messages, or
records of `as_="mbo"`, and the quality messages between them), or packets of a capture. Its views
are mappings by symbol: by name, or by the number that messages have for it. Prices are whole
numbers with nine decimals (`PRICE_SCALE`).

Books are kept by the feed's `[book]` table, in one compiled book for all feeds (`depth_book`). Of
all other types the latest message is kept by symbol and part (`latest_messages`): reference data,
quotes, states, auctions, indices. The simulated exchange cuts its snapshots from a market, and
tests compare one market with another by `digest`.

Promises: nothing in a stream makes it raise; what does not fit is counted by name in `problems`.
Order and completeness of the stream are its caller's. Sans-IO.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from feedhandler.codecs import feed_table
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.dbn import MBO, STATUS_ACTIONS, UNDEFINED_TIME
from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.codecs.feed import Feed, split_packets
from feedhandler.codecs.kinds import Reject
from feedhandler.codecs.loader import load_feed
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.book_writer import BookWriter, Entry
from feedhandler.market.depth_book import ASK, BID, ORDERS_MAX, DepthBook
from feedhandler.market.latest_messages import MESSAGES_MAX, LatestMessages
from feedhandler.market.order_messages import OrderMessages
from feedhandler.market.records import Records
from feedhandler.market.stream_reader import StreamReader
from feedhandler.market.views import BookView, LatestView, Trade, View

#: What `Market.problems` counts.
PROBLEMS: dict[str, str] = {
    "bad_packet": "packets that the scanner rejects, or whose compressed body cannot be inflated",
    "bad_message": "messages that do not end where their size says, odd quality messages",
    "other_records": "records that are no order events (`as_` other than mbo)",
    "unknown_types": "messages of a type that the feed's description does not have; not kept",
    "short": "messages shorter than their layout; not kept",
    "unknown_orders": "orders changed or deleted that are not known; a change adds them",
    "sideless": "orders that are neither bought nor sold; not kept",
    "unscaled": "prices whose decimal places are not known",
    "clamped": "sizes beyond what records hold",
    "unnamed": "messages of symbols beyond those that are numbered; not kept",
    "odd": "orders without size or price, and levels that have orders set as a whole; not kept",
    "refused": "orders and messages beyond the bounds; not kept",
}
#: Trading states by DBN's action.
_STATE_OF = {action: state for state, (action, _) in STATUS_ACTIONS.items()}
#: Counts of the normaliser that are problems of the stream.
_COUNTED = ("unknown_orders", "short", "sideless", "unscaled", "clamped", "unnamed")


class Market:
    """The state of every service of a feed; see the module.

    `feed`: `euronext-utp-md` where none is given. `books` (`BookView`), `trades` (the last `Trade`)
    and `states` (trading, halted, auction, quoting, closed) are by symbol. `keeps_messages`:
    whether the latest message about each open order is kept, too, so that snapshots and digests
    have all that the feed sent of it. One instrument belongs to one service at a time. Bounds:
    `orders_max` of all services; `messages_max` of a service's messages, of trades, of states.
    Raises `UsageError` for a feed without `[book]`.
    """

    def __init__(
        self,
        feed: Feed | None = None,
        *,
        clears_on_reset: bool = True,
        keeps_messages: bool = False,
        orders_max: int = ORDERS_MAX,
        messages_max: int = MESSAGES_MAX,
    ) -> None:
        self.feed = load_feed("euronext-utp-md") if feed is None else feed
        self.clears_on_reset = clears_on_reset
        self._records = Records(self.feed, "mbo", book=DepthBook(orders_max))
        self._normaliser, self._book = self._records.normaliser, self._records.book
        self._writer = _writer_of(self.feed)
        kept = self._writer.rewritable() if keeps_messages and self._writer is not None else {}
        self._orders = OrderMessages(self._records, kept)
        self.latest_messages = LatestMessages(self.feed, messages_max)
        self._known = ReferenceData(self.feed)
        self._reader = StreamReader(
            self.feed, self._orders, self._known, self.latest_messages, clears_on_reset
        )
        #: Names that came with records: by instrument.
        self._named: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        #: Instruments by name, and of which instruments and how many changes of names they were
        #: made.
        self._instruments: dict[str, int] = {}
        self._made_of: tuple[dict[int, None], int] | None = None
        self.books = View(self, self._book_of)
        self.trades = View(self, self._trade_of)
        self.states = View(self, self._state_of)

    # -- what comes in ----------------------------------------------------------------------

    def apply(self, packet: bytes, service: int = 0) -> int:
        """Take in the packets of a datagram, compressed or not; return how many messages they have.

        A message that opens a snapshot of all of its service clears it, as a reset does.
        `service` is theirs where the feed's headers have none.
        """
        return self._apply(bytes(packet), None if self.feed.table.service_size else service)

    def _apply(self, packet: bytes, service: int | None) -> int:
        """Take in the packets of a datagram, of a service, or of that in their headers."""
        channel = -1 if service is None else service
        count = self._reader.read(packet, channel, 0)
        if -count == Reject.COMPRESSED:
            with contextlib.suppress(BadPacket):
                count = self._reader.read(self.feed.inflated(packet), channel, 0)
        if count < 0:
            self._counts["bad_packet"] += 1
        return max(count, 0)

    def apply_message(self, message: bytes, service: int = 0) -> None:
        """Take in one whole message of a service. Raises `UsageError` for a feed whose messages do
        not carry their type."""
        if self.feed.table.type_in_packet:
            raise UsageError(f"{self.feed.name} has types in packets", "apply whole packets")
        if not self._reader.read_message(bytes(message), service):
            self._counts["bad_message"] += 1

    def update(self, message: Any) -> None:
        """Take in what `feedhandler.subscribe` hands out, quality messages included.

        Give one market the messages of one feed, and of one link a service: a snapshot belongs to
        the link on which it comes, and clears what it is about: all of the service, or of a feed
        whose snapshots are of books alone its books. Contents other than packets, batches,
        messages, records and quality are passed over; what is odd is counted in `bad_message`.
        """
        content = message.content
        if not 0 <= message.service < 1 << 32:
            self._counts["bad_message"] += 1
            return
        try:
            if content == "quality":
                self._quality(message)
            elif content == "records":
                self._apply_records(message)
            elif content == "batch":
                for packet in split_packets(self.feed, message.body):
                    self._apply(packet, message.service)
            elif content == "packet" or (content == "message" and self.feed.table.type_in_packet):
                self._apply(bytes(message.body), message.service)
            elif content == "message":
                self.apply_message(bytes(message.body), message.service)
        except (FeedhandlerError, msgspec.DecodeError):
            self._counts["bad_message"] += 1

    def clear(self, service: int) -> None:
        """Empty the books of a service, and take away its latest messages, trades and states.

        Names and scales from reference data stay.
        """
        self._records.clear()
        self._reader.empty(service)

    def _quality(self, message: Any) -> None:
        """Clear where a snapshot or a sequence epoch begins; empty books that are sent anew."""
        quality = message.quality or {}
        if not isinstance(quality, dict):
            self._counts["bad_message"] += 1
            return
        reason, service = quality.get("reason"), message.service
        symbols, through = quality.get("symbols", ()), quality.get("through", ())
        if reason == "reset" and self.clears_on_reset:
            self.clear(service)
        elif reason == "snapshot-begin":
            self._begin_snapshot(service)
        elif reason == "books-begin":
            for instrument in self._instruments_named(symbols):
                self._records.empty_book(instrument)
            self._normaliser.resume_snapshot(service)
            self._normaliser.hold_snapshot(service, self._instruments_named(through))
        elif reason == "books-end":
            self._normaliser.resume_snapshot(service)

    def _begin_snapshot(self, service: int) -> None:
        """Clear what a snapshot of a service sends anew: all of it where the feed has a message
        that opens such a snapshot, else the books alone."""
        if self.latest_messages.opens_snapshots:
            self.clear(service)
        else:
            self._records.clear()
            self._records.empty(service, UNDEFINED_TIME)

    def _instruments_named(self, symbols: Any) -> set[int]:
        """Return the instruments of symbols as a gateway names them; what names none is counted."""
        named = symbols if isinstance(symbols, (list, tuple)) else [None]
        known = [symbol for symbol in named if isinstance(symbol, (str, int))]
        self._counts["bad_message"] += len(named) > len(known)
        numbers = (number for symbol in known for number in self.symbols_of(symbol))
        return {self._normaliser.instrument_of(number) for number in numbers} - {0}

    def _apply_records(self, message: Any) -> None:
        """Take in order events that a gateway has normalised already."""
        records = message.records()
        if message.symbols:
            self._named.update(message.symbols)
            self._made_of = None
        if not len(records):
            return
        if records.dtype != MBO:
            self._counts["other_records"] += 1
            return
        self._records.apply(records, message.service)
        self._orders.forget()
        for event in records[records["action"] == b"T"]:
            price, size, moment = (int(event[name]) for name in ("price", "size", "ts_event"))
            side = (event["side"] or b"N")[0]
            trade = (message.service, price, size, side, moment)
            self._reader.put(self._reader.trades, int(event["instrument_id"]), trade)

    def _trade_of(self, instrument: int) -> Trade | None:
        if instrument not in self._reader.trades:
            return None
        _, price, size, side, time_ns = self._reader.trades[instrument]
        signed = price - (1 << 64) if price >> 63 > 0 else price
        return Trade(signed, size, chr(side), time_ns)

    def _state_of(self, instrument: int) -> str | None:
        state = self._reader.states.get(instrument)
        return None if state is None else _STATE_OF[state[1]]

    # -- what it knows ----------------------------------------------------------------------

    def latest(self, type: int | str) -> LatestView:
        """Return the latest messages of a type (number, label or layout name) by symbol, as
        records. Raises `UsageError` for a type that the feed does not have, or that changes
        books."""
        layout = self.feed.layout(type)
        if not self.latest_messages.keeps(layout.code):
            raise UsageError(f"messages {layout.name} change books", "see `books`")
        return LatestView(self, layout)

    @property
    def problems(self) -> Counter[str]:
        """Number of times that something did not fit, by name; see `PROBLEMS`."""
        counted = Counter({name: getattr(self._normaliser, name) for name in _COUNTED})
        latest = self.latest_messages
        counted["short"] += latest.short
        counted["unknown_types"] = latest.unknown_types
        counted["odd"] = self._book.odd
        counted["refused"] = self._normaliser.orders.refused + self._book.refused + latest.refused
        counted["refused"] += self._reader.refused
        return +(counted + self._counts)

    @property
    def names(self) -> dict[int, str]:
        """The names that reference data has given, by the number that messages have."""
        return dict(self._known.names)

    def instruments(self) -> dict[str, int]:
        """Return the instrument ids by name; of those that have none by the number in messages."""
        numbers = dict.fromkeys(
            [*self._book.instruments(), *self._reader.states, *self._reader.trades]
        )
        made_of = (numbers, self._known.changes)
        if made_of != self._made_of:
            self._instruments = {self._name_of(number): number for number in numbers}
            self._made_of = made_of
        return self._instruments

    def instrument_of(self, symbol: str | int) -> int:
        """Return the instrument id of a symbol, by its name or the number in messages; 0 where it
        is not known."""
        if isinstance(symbol, int):
            return self._normaliser.instrument_of(symbol)
        return self.instruments().get(symbol, 0)

    def symbols_of(self, symbol: str | int | None) -> tuple[int, ...]:
        """Return the symbols, as the scanner's index has them, of a name or a number; None is that
        of messages without one."""
        if symbol is None:
            return (feed_table.NO_SYMBOL,)
        if isinstance(symbol, int):
            return (symbol,)
        named = tuple(number for number, name in self._known.names.items() if name == symbol)
        return named or self.feed.symbols_named(symbol)

    def name_of(self, symbol: int) -> str | None:
        """Return the name of a symbol as the scanner's index has it: that of reference data, or
        the text in messages, or the number; None of messages without one."""
        text = self._normaliser.texts.get(symbol) or self.feed.symbol_name(symbol)
        return self._known.names.get(symbol) or text

    def decode(self, code: int, message: bytes) -> Any:
        """Return the record of a message of a type, with the scales and names that are known."""
        type = self.feed.type_label(code) if self.feed.table.type_in_packet else None
        return self.feed.decode_message(message, type=type, known=self._known)

    def _name_of(self, instrument: int) -> str:
        if instrument in self._named:
            return self._named[instrument]
        symbol = self._symbol_of(instrument)
        return self.name_of(symbol) or str(symbol)

    def _symbol_of(self, instrument: int) -> int:
        """Return the symbol of an instrument; of one that records alone number."""
        try:
            return self._normaliser.symbol_of(instrument)
        except IndexError:
            return instrument

    def _book_of(self, instrument: int) -> BookView | None:
        if not instrument or not self._book.has(instrument):
            return None
        return BookView(self._book, instrument)

    # -- what goes out ----------------------------------------------------------------------

    def snapshot(self, service: int) -> list[bytes]:
        """Return messages from which a fresh market reaches this service's state: the latest
        messages, reference data first, then the orders, each book's in its priority.

        Where the feed marks the beginning and the end of orders that are sent anew, they stand
        between. Where the stream is doing so itself, the books that it has been through come last,
        and the end is left to the stream. Raises `UsageError` for a feed whose books no messages
        carry one by one.
        """
        writer = self._writer or BookWriter(self.feed)
        messages = self.latest_messages.snapshot(service)
        through = self._normaliser.snapshot_under_way(service)
        instruments = self._book.instruments(service)
        if writer.opening is None or writer.closing is None:
            return [*messages, *self._orders_of(writer, instruments)]
        rest = self._orders_of(writer, [n for n in instruments if n not in (through or ())])
        if rest:
            messages += [writer.opening, *rest, writer.closing]
        if through is not None:
            messages.append(writer.opening)
            messages += self._orders_of(writer, [n for n in instruments if n in through])
        return messages

    def book_messages(self, symbol: str | int) -> list[bytes]:
        """Return the messages that carry a symbol's book, as `snapshot` has them. Raises
        `UsageError` as that does."""
        instrument = self.instrument_of(symbol)
        writer = self._writer or BookWriter(self.feed)
        return self._orders_of(writer, [instrument] if self._book.has(instrument) else [])

    def _orders_of(self, writer: BookWriter, instruments: list[int]) -> list[bytes]:
        return [message for each in instruments for message in self._book_messages(writer, each)]

    def _book_messages(self, writer: BookWriter, instrument: int) -> list[bytes]:
        """Return the messages that carry an instrument's book."""
        symbol = self._symbol_of(instrument)
        return writer.messages(
            self._book, instrument, symbol, name=self._known.names.get(symbol, ""),
            scales=self._normaliser.scales_of(instrument),
            known=partial(self._orders.message, instrument),
        )  # fmt: skip

    def digest(self, service: int) -> str:
        """Compute 32 hexadecimal digits that are equal exactly where a service's states are equal:
        its latest messages, and its books with the priority of orders. Trades and states that no
        latest message carries are no part of it."""
        through = self._normaliser.snapshot_under_way(service)
        parts = chain(
            self.latest_messages.canonical(service),
            self._canonical_books(service, through or set()),
            [b"" if through is None else b"under way"],
        )
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.blake2b(whole, digest_size=16).hexdigest()

    def _canonical_books(self, service: int, through: set[int]) -> Iterator[bytes]:
        """Yield a service's books in an order that does not depend on how they came."""
        book = self._book
        for instrument in sorted(book.instruments(service), key=self._symbol_of):
            if not book.entries_of(instrument):
                continue
            depth = book.level_count
            sides = [
                (book.levels(instrument, side, depth), book.orders(instrument, side))
                for side in (BID, ASK)
            ]
            yield repr((self._symbol_of(instrument), sides, instrument in through)).encode()
            for side in (BID, ASK):
                for order, price, size in sides[side][1]:
                    yield self._details_of(instrument, Entry(order, side, price, size))

    def _details_of(self, instrument: int, entry: Entry) -> bytes:
        """Return the order's latest message, rewritten to its present price and size; b"" where
        none is kept."""
        known = self._orders.message(instrument, entry.order)
        if known is None or self._writer is None:
            return b""
        return self._writer.rewritten(known, entry) or b""


def _writer_of(feed: Feed) -> BookWriter | None:
    """Return what writes the feed's books; None where no messages carry them."""
    try:
        return BookWriter(feed)
    except UsageError:
        if feed.book is None:
            raise
        return None
