"""Order books of a feed, kept for receivers that are behind and are sent a book instead of orders.

What it is for: `conflate` drops the orders that wait for a symbol, and sends the symbol's book as
it is when the receiver takes again. A `BookCache` maintains these books from everything that the
fan-out publishes; it exists only where something may be conflated, as it costs about a microsecond
a message.

The books are kept by the feed's `[book]` table (`KeptBooks`).

What it promises: a book is what a receiver would have that had received everything that was
published since the gateway began, snapshot blocks included; no better where the stream has losses.

What it leaves to others: which books are wanted and when (`conflation`, `backlog`), thinning and
framing (`fanout`). No I/O.
"""

from typing import TYPE_CHECKING, Any

from feedhandler.amqp.queueing.loss_tracker import BOOKS_BEGIN, BOOKS_END, LossTracker
from feedhandler.codecs import Feed
from feedhandler.codecs.book_rules import BY_POSITION, CHANGES, OF_QUOTES, MessageRules
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import pack_messages
from feedhandler.market.kept_books import KeptBooks
from feedhandler.retrans.snapshots import PACKET_BYTES_MAX, PacketFramer

if TYPE_CHECKING:
    from feedhandler.amqp.fanout import Fanout

#: Bytes of orders, about, of the books between one pair of borders, which are one book at least; so
#: that no more than this is encoded at a time.
BLOCK_BYTES = 65_536
#: Most books between one pair of borders: their symbols are named in it.
BLOCK_BOOKS = 256
#: Bytes of an order in a book's block, about.
ORDER_BYTES = 64


class BookCache:
    """The books of every service of `feed`. Raises `UsageError` for a feed whose books cannot be
    kept, or not be sent; `book_cache_of` returns None for it."""

    def __init__(self, feed: Feed) -> None:
        check_conflatable(feed)
        self.books = KeptBooks(feed)
        self._feed = feed
        self._next_index: dict[int, tuple[int, int]] = {}

    # -- what is published ------------------------------------------------------------------

    def packet(self, data: bytes, service: int, skip: int = 0) -> None:
        """Apply a packet of a service that is published, but for its first `skip` messages."""
        self.books.apply(data, service, skip)

    def clear(self, service: int) -> None:
        """Empty a service's books, as an epoch or a snapshot block begins."""
        self.books.clear(service)

    # -- what is wanted ---------------------------------------------------------------------

    def orders_of(self, service: int, symbol: int) -> int:
        """Return how many orders a book has."""
        return self.books.orders_of(service, symbol)

    def symbol_of_order(self, service: int, order: int) -> int | None:
        """Return the symbol of an order that is open, or went lately; None of others."""
        return self.books.symbol_of_order(service, order)

    def prices_known(self, service: int, symbol: int) -> bool:
        """Return whether a symbol's book can be sent: not before the scale of prices is known."""
        return self.books.prices_known(service, symbol)

    def fits(self, service: int, symbols: list[int], symbol: int) -> bool:
        """Return whether another symbol's book goes between the same borders as those of
        `symbols`."""
        if not symbols:
            return True
        orders = sum(self.books.orders_of(service, each) for each in [*symbols, symbol])
        return orders * ORDER_BYTES <= BLOCK_BYTES and len(symbols) < BLOCK_BOOKS

    def send(
        self,
        fanout: "Fanout",
        stream: Any,
        symbols: list[int],
        loss_tracker: LossTracker,
        sender_queue: Any,
    ) -> None:
        """Send the books of these symbols to one receiver, as they are now."""
        service: int = stream.service
        messages = [
            message for symbol in symbols for message in self.books.book_messages(service, symbol)
        ]
        framer = PacketFramer(self._feed, service, 0)
        last = max(stream.next_sequence - 1, 0)
        runs = pack_messages(messages, PACKET_BYTES_MAX - self._feed.table.header_size)
        packets = [framer.packet(last, b"".join(run), len(run)) for run in runs]
        named = [self._named(symbol) for symbol in symbols]
        begin = loss_tracker.books_border(
            BOOKS_BEGIN, symbols=named, through=self._through(service, symbols), last=last,
            packets=len(packets),
        )  # fmt: skip
        end = loss_tracker.books_border(BOOKS_END, symbols=named, last=last, next=last + 1)
        index = self._allocate_indexes(service, last, len(packets))
        fanout.books(stream, begin, packets, (last, index), end, sender_queue)

    def _named(self, symbol: int) -> int | str | None:
        """Return a symbol as quality messages name it: by its text, or by its index."""
        return self._feed.symbol_name(symbol) if self._feed.symbols_are_text else symbol

    def _through(self, service: int, symbols: list[int]) -> list[int | str | None]:
        """Return the symbols that a snapshot of orders under way has been through."""
        met = [symbol for symbol in symbols if self.books.through(service, symbol)]
        return [self._named(symbol) for symbol in met]

    def _allocate_indexes(self, service: int, last: int, count: int) -> int:
        """Allocate `count` indexes in the tags of blocks with this `last`; return the first."""
        before, index = self._next_index.get(service, (-1, 0))
        index = index if before == last else 0
        self._next_index[service] = (last, index + count)
        return index


def check_conflatable(feed: Feed) -> None:
    """Raise `UsageError` where books cannot stand for the messages of `feed` that change them."""
    if feed.book is None:
        raise UsageError(f"{feed.name} has no [book] table", "its books are not known")
    if not feed.book.conflates:
        raise UsageError(f"{feed.name}: other messages belong to those that change its books")
    for given in feed.book.messages:
        changes = [rule for rule in given.rules if rule.does in CHANGES and not rule.snapshot]
        does = {rule.does for rule in given.rules}
        if any(rule.does in OF_QUOTES or rule.group for rule in changes):
            raise UsageError(f"{feed.name}: {given.name} has quotes, or several changes in one")
        if does & BY_POSITION:
            raise UsageError(f"{feed.name}: {given.name} names levels by position, no book does")
        if changes and does & {"status", "directory"}:
            raise UsageError(f"{feed.name}: {given.name} carries more than a change of a book")
    levels = [feed.layout(message.name) for message in feed.book.messages if _sets_levels(message)]
    if levels and all(layout.conflate == "latest" for layout in levels):
        raise UsageError(f"{feed.name}: of its levels the latest messages are enough")


def _sets_levels(given: MessageRules) -> bool:
    return any(rule.does == "level" for rule in given.rules)


def book_cache_of(feed: Feed) -> BookCache | None:
    """Make a book cache of the feed's books; None where they cannot be kept."""
    try:
        return BookCache(feed)
    except UsageError:
        return None
