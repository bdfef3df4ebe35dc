"""The books of a feed, kept for receivers that are behind and are sent a book instead of orders.

What it is for: `conflate` gives up the orders that wait for a symbol, and sends the symbol's book
as it is when the receiver takes again. That needs somebody who knows the book. A `BookKeeper`
hears everything that the fan-out publishes, and only where something may be conflated: it costs
about a microsecond a message.

What it promises: a book is what a receiver would have that had received everything that was
published since the gateway began, snapshot blocks included; no better where the stream has holes.

What it leaves to others: which books are wanted and when (`conflation`, `backlog`), thinning and
framing (`fanout`). No I/O.
"""

from typing import Any, Protocol

from feedhandler.amqp.queueing.shortfall import BOOKS_BEGIN, BOOKS_END, Shortfall
from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import pack_messages
from feedhandler.replay.state.market import Market
from feedhandler.retrans.snapshots import PACKET_BYTES_MAX, PacketFramer

#: Books sent between one pair of marks: about so many bytes of orders, and one book at least, so
#: that no more than this is made at a time.
BLOCK_BYTES = 65_536
#: Most books between one pair of marks: their symbols are named in it.
BLOCK_BOOKS = 256
#: What an order takes in a book's block, about.
ORDER_BYTES = 64


class Sends(Protocol):
    """What the keeper asks of the fan-out."""

    def books(
        self,
        stream: Any,
        begin: bytes,
        packets: list[bytes],
        place: tuple[int, int],
        end: bytes,
        outlet: Any,
    ) -> None: ...


class BookKeeper:
    """The books of every service of `feed`. Raises `UsageError` for a feed whose books cannot be
    kept; `keeper_of` gives None for it."""

    def __init__(self, feed: Feed) -> None:
        self.market = Market(feed)
        self._feed = feed
        self._place: dict[int, tuple[int, int]] = {}

    # -- what is published ------------------------------------------------------------------

    def packet(self, data: bytes) -> None:
        """A packet is published."""
        self.market.apply(data, refresh=False)

    def clear(self, service: int) -> None:
        """A numbering begins, or a snapshot block."""
        self.market.clear(service)

    # -- what is wanted ---------------------------------------------------------------------

    def orders_of(self, service: int, symbol: int) -> int:
        """How many orders a book has."""
        return self.market.orders_of(service, symbol)

    def fits(self, service: int, symbols: list[int], symbol: int) -> bool:
        """Whether another symbol's book goes between the same marks as those of `symbols`."""
        if not symbols:
            return True
        orders = sum(self.market.orders_of(service, each) for each in [*symbols, symbol])
        return orders * ORDER_BYTES <= BLOCK_BYTES and len(symbols) < BLOCK_BOOKS

    def send(
        self, fanout: Sends, stream: Any, symbols: list[int], shortfall: Shortfall, outlet: Any
    ) -> None:
        """Have the books of these symbols sent to one receiver, as they are now."""
        service: int = stream.service
        messages = [
            message for symbol in symbols for message in self.market.book_messages(service, symbol)
        ]
        framer = PacketFramer(self._feed, service, 0)
        last = max(stream.next_sequence - 1, 0)
        runs = pack_messages(messages, PACKET_BYTES_MAX - self._feed.table.header_size)
        packets = [framer.packet(last, b"".join(run), len(run)) for run in runs]
        through = [symbol for symbol in symbols if self.market.through(service, symbol)]
        begin = shortfall.mark(
            BOOKS_BEGIN, symbols=symbols, through=through, last=last, packets=len(packets)
        )
        end = shortfall.mark(BOOKS_END, symbols=symbols, last=last, next=last + 1)
        place = self._places(service, last, len(packets))
        fanout.books(stream, begin, packets, (last, place), end, outlet)

    def _places(self, service: int, last: int, count: int) -> int:
        """Places in the tags of blocks with one `last`, each given once."""
        before, place = self._place.get(service, (-1, 0))
        place = place if before == last else 0
        self._place[service] = (last, place + count)
        return place


def keeper_of(feed: Feed) -> BookKeeper | None:
    """A keeper of the feed's books; None where nobody knows how: it has no orders, or others."""
    try:
        return BookKeeper(feed)
    except UsageError:
        return None
