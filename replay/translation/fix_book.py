"""The order book of a security of a FIX channel, built from its current entries.

A `MarketState` (`retrans.fix.market_state`) keeps entries as they were published. `book_of` puts
those of bids and offers into a `Book` in their priority, prices and sizes as whole numbers in the
finest unit that the security's entries need; entries by price level are one order each.
"""

from decimal import Decimal
from typing import NamedTuple

from feedhandler.codecs.fix.market_entries import decimal_of
from feedhandler.replay.translation.book import BUY, SELL, Book
from feedhandler.retrans.fix.market_state import MarketState

_SIDES = {b"0": BUY, b"1": SELL}


class ScaledBook(NamedTuple):
    """A book whose prices are in units of 10 to the minus `price_places`, sizes likewise.
    `unread`: entries without a price, or with a size that is not above 0."""

    book: Book
    price_places: int
    size_places: int
    unread: int


class Standing(NamedTuple):
    """A bid or an offer that stands: its MDEntryID (b"": a price level), side, price and size."""

    id: bytes
    side: int
    price: Decimal
    size: Decimal


def standing_of(state: MarketState, security: bytes) -> tuple[list[Standing], int]:
    """Return the bids and offers of a security, those of a price in their priority, and how many
    of its entries are `unread`."""
    held = state.securities.get(security)
    found: list[Standing] = []
    unread = 0
    for entry, _ in held.standing() if held else []:
        side = _SIDES.get(entry.type)
        price, size = decimal_of(entry.price), decimal_of(entry.size)
        if side is None:
            continue
        if price is None or size is None or size <= 0:
            unread += 1
        else:
            found.append(Standing(entry.id, side, price, size))
    return found, unread


def book_of(state: MarketState, security: bytes) -> ScaledBook:
    """Build the book of a security from its entries; an unknown security has an empty one."""
    orders, unread = standing_of(state, security)
    price_places = max((_decimal_places(each.price) for each in orders), default=0)
    size_places = max((_decimal_places(each.size) for each in orders), default=0)
    book = Book()
    for at, (id, side, price, size) in enumerate(orders):
        key = (id, 0 if id else at)
        book.add(key, side, int(price.scaleb(price_places)), int(size.scaleb(size_places)))
    return ScaledBook(book, price_places, size_places, unread)


def _decimal_places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) and exponent < 0 else 0
