"""Views of a `Market`: mappings by symbol, that show it as it is when looked at.

They hold no data of their own. A symbol is looked up by its name, or by the number that messages
have for it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from feedhandler.codecs.layouts import Layout
from feedhandler.market.depth_book import ASK, BID, DepthBook

if TYPE_CHECKING:
    from feedhandler.market.stream_market import Market


class Trade(NamedTuple):
    """A trade: its price, size and aggressor's side (B, A, or N where it is not given), and when it
    happened, ns since 1970; `UNDEFINED_TIME` where that is not given."""

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

    def __init__(self, market: "Market", look: Callable[[int], Any]) -> None:
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


class LatestView(Mapping[str | int | None, Any]):
    """Records of the latest messages of one type, by symbol; None is that of messages without one.

    Where the description's `conflate_by` names fields, a symbol's value is a mapping from their
    values (one, or a tuple) to the latest record with them.
    """

    def __init__(self, market: "Market", layout: Layout) -> None:
        self._market, self._layout = market, layout

    def __getitem__(self, symbol: str | int | None) -> Any:
        latest = self._market.latest_messages
        numbers = self._market.symbols_of(symbol)
        messages = [m for number in numbers for m in latest.of_symbol(self._layout.code, number)]
        if not messages:
            raise KeyError(symbol)
        records = [self._market.decode(self._layout.code, message) for message in messages]
        if not self._layout.conflate_by:
            return records[-1]
        return {self._part_of(record): record for record in records}

    def _part_of(self, record: Any) -> Any:
        values = tuple(getattr(record, name) for name in self._layout.conflate_by)
        return values[0] if len(values) == 1 else values

    def __iter__(self) -> Iterator[str | None]:
        symbols = self._market.latest_messages.symbols_of(self._layout.code)
        for name in dict.fromkeys(map(self._market.name_of, symbols)):
            if not set(self._market.symbols_of(name)).isdisjoint(symbols):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)
