"""The order book of a security of a FIX channel, built from its current entries.

A `MarketState` (`retrans.fix.market_state`) keeps entries as they were published. `book_of` puts
those of bids and offers into a `Book` in their priority, prices and sizes as whole numbers in the
finest unit that the security's entries need; entries by price level are one order each.
"""

from decimal import Decimal
from typing import NamedTuple

from feedhandler.replay.state.book import BUY, SELL, Book
from feedhandler.retrans.fix.market_state import MarketState, decimal_of

_SIDES = {b"0": BUY, b"1": SELL}


class ScaledBook(NamedTuple):
    """A book whose prices are in units of 10 to the minus `price_places`, sizes likewise.
    `unread`: entries without a price, or with a size that is not above 0."""

    book: Book
    price_places: int
    size_places: int
    unread: int


def book_of(state: MarketState, security: bytes) -> ScaledBook:
    """Build the book of a security from its entries; an unknown security has an empty one."""
    held = state.securities.get(security)
    orders: list[tuple[tuple[bytes, int], int, Decimal, Decimal]] = []
    unread = 0
    for at, (entry, _) in enumerate(held.standing() if held else []):
        side = _SIDES.get(entry.type)
        price, size = decimal_of(entry.price), decimal_of(entry.size)
        if side is None:
            continue
        if price is None or size is None or size <= 0:
            unread += 1
        else:
            orders.append(((entry.id, 0 if entry.id else at), side, price, size))
    price_places = max((_places(each[2]) for each in orders), default=0)
    size_places = max((_places(each[3]) for each in orders), default=0)
    book = Book()
    for key, side, price, size in orders:
        book.add(key, side, int(price.scaleb(price_places)), int(size.scaleb(size_places)))
    return ScaledBook(book, price_places, size_places, unread)


def _places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) and exponent < 0 else 0
