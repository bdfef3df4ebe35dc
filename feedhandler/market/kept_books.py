"""Books of a feed's services kept from its stream, to be written as the feed's messages.

`KeptBooks` is all that is needed to keep the books of a feed's services and to write them at any
moment: a reader that applies the written messages to empty books has the books that it keeps. Of
each open order the latest message is kept, so that nothing is lost that the feed sent of it.

Sans-IO. Nothing in a stream makes it raise.
"""

from functools import partial

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.book_writer import BookWriter, Moment, moment_of
from feedhandler.market.order_messages import OrderMessages
from feedhandler.market.records import Records
from feedhandler.market.stream_reader import StreamReader

#: Orders that were taken off lately whose symbols are still known, at least; twice as many at most.
GONE_ORDERS = 1 << 15


class KeptBooks:
    """The books of every service of `feed`, each service's by itself. Raises `UsageError` where
    they could not be written."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.writer = BookWriter(feed)
        assert feed.book is not None
        #: Whether changes of an order name its symbol.
        self.names_symbols = feed.book.names_symbols
        self._services: dict[int, StreamReader] = {}
        self._rewritable = self.writer.rewritable()
        self._known = ReferenceData(feed)
        self._rules = {message.code: message for message in feed.book.messages}
        #: What was applied last, of each service: whether it is a packet, else it is a message.
        self._latest: dict[int, tuple[bool, bytes]] = {}
        #: The symbols of orders that were taken off lately, by service and order.
        self._gone: dict[tuple[int, int], int] = {}
        self._gone_before: dict[tuple[int, int], int] = {}

    # -- what is published ------------------------------------------------------------------

    def apply(self, packet: bytes, service: int, skip: int = 0) -> None:
        """Apply a packet, but for its first `skip` messages. What the scanner rejects, and what is
        compressed, is left out; a gateway publishes neither."""
        reader = self._reader_of(service)
        if reader.read(packet, service, skip) > skip:
            self._latest[service] = (True, packet)
        if not self.names_symbols:
            self._note_gone(service, reader.records)

    def apply_message(self, message: bytes, service: int) -> None:
        """Apply one whole message."""
        reader = self._reader_of(service)
        if reader.read_message(message, service):
            self._latest[service] = (False, message)
        if not self.names_symbols:
            self._note_gone(service, reader.records)

    def clear(self, service: int) -> None:
        """Empty a service's books."""
        if (reader := self._services.get(service)) is not None:
            reader.records.clear()
            reader.empty(service)

    def _reader_of(self, service: int) -> StreamReader:
        reader = self._services.get(service)
        if reader is None:
            orders = OrderMessages(Records(self.feed, "mbo"), self._rewritable)
            reader = self._services[service] = StreamReader(self.feed, orders, self._known)
        return reader

    def _records_of(self, service: int) -> Records | None:
        reader = self._services.get(service)
        return None if reader is None else reader.records

    def _note_gone(self, service: int, records: Records) -> None:
        """Remember the symbols of orders that were taken off: messages that name them may wait to
        be looked at."""
        events = records.of("mbo")
        gone = events[events["action"] == b"C"]
        symbol_of = records.normaliser.symbol_of
        for order, instrument in zip(
            gone["order_id"].tolist(), gone["instrument_id"].tolist(), strict=True
        ):
            self._gone[service, order] = symbol_of(instrument)
        if len(self._gone) >= GONE_ORDERS:
            self._gone, self._gone_before = {}, self._gone

    # -- what is wanted ---------------------------------------------------------------------

    def symbol_of_order(self, service: int, order: int) -> int | None:
        """Return the symbol of an order that is open, or was taken off lately; None of others.

        For feeds whose changes of orders do not name symbols: order ids are unique in a service.
        """
        records = self._records_of(service)
        if records is None:
            return None
        orders = records.normaliser.orders
        slot = orders.find(service, order)
        if slot >= 0:
            return records.normaliser.symbol_of(orders.instruments[slot])
        key = (service, order)
        return self._gone.get(key, self._gone_before.get(key))

    def prices_known(self, service: int, symbol: int) -> bool:
        """Return whether the scale of a symbol's prices is known, without which its book is not."""
        if not self.feed.needs_reference_scales:
            return True
        records = self._records_of(service)
        if records is None:
            return False
        normaliser = records.normaliser
        return bool(normaliser.scales_of(normaliser.instrument_of(symbol)))

    def orders_of(self, service: int, symbol: int) -> int:
        """Return how many orders a book has; of a book by level, how many levels."""
        records = self._records_of(service)
        if records is None:
            return 0
        return records.book.entries_of(records.normaliser.instrument_of(symbol))

    def book_messages(self, service: int, symbol: int) -> list[bytes]:
        """Return the messages that carry a symbol's book as it is."""
        reader = self._services.get(service)
        if reader is None:
            return []
        records = reader.records
        instrument = records.normaliser.instrument_of(symbol)
        if not records.book.has(instrument):
            return []
        return self.writer.messages(
            records.book, instrument, symbol, name=self._known.names.get(symbol, ""),
            scales=records.normaliser.scales_of(instrument), moment=self._moment(service),
            known=partial(reader.orders.message, instrument),
        )  # fmt: skip

    def through(self, service: int, symbol: int) -> bool:
        """Return whether a snapshot of orders under way in the stream has been through the symbol,
        so that its further orders only add."""
        records = self._records_of(service)
        if records is None:
            return False
        met = records.normaliser.snapshot_under_way(service)
        return met is not None and records.normaliser.instrument_of(symbol) in met

    def _moment(self, service: int) -> Moment | None:
        """Return the time of the latest message that carries one, of those applied last."""
        found = None
        is_packet, data = self._latest.get(service, (False, b""))
        for message in self.feed.messages_of(data) if is_packet else (data,):
            rules = self._rules.get(self.feed.message_code(message))
            found = found if rules is None else moment_of(message, rules) or found
        return found
