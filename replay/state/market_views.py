"""Views of a `Market`: mappings by symbol that decode on access.

A market keeps messages undecoded, so that applying one is cheap. These views find a symbol's
message in the service that has it and return the codecs' record. They hold no data of their own
and always show the current state of the market.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from feedhandler.replay.state.book import Book

if TYPE_CHECKING:
    from feedhandler.replay.state.market import Market


class Latest(Mapping[int, Any]):
    """Records of the latest messages of one type; by part where the type has parts."""

    def __init__(self, market: "Market", type: int | str) -> None:
        self._market = market
        self._code = market.feed.layout(type).code

    def message(self, symbol: int) -> Any:
        """Return the symbol's undecoded message, or a dictionary of them by part.

        Raises `KeyError` where there is none."""
        for state in self._market.services.values():
            kept = state.latest.get(self._code)
            if kept is not None and symbol in kept:
                return kept[symbol]
        raise KeyError(symbol)

    def __getitem__(self, symbol: int) -> Any:
        kept, decode = self.message(symbol), self._market.feed.decode_message
        if isinstance(kept, dict):
            return {part: decode(message) for part, message in sorted(kept.items())}
        return decode(kept)

    def __iter__(self) -> Iterator[int]:
        found: dict[int, None] = {}
        for state in self._market.services.values():
            found.update(dict.fromkeys(state.latest.get(self._code, ())))
        return iter(found)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Quotes(Latest):
    """Quotes by symbol, then by level."""


class Names(Latest):
    """Names by symbol, from reference data."""

    def __init__(self, market: "Market") -> None:
        super().__init__(market, "reference_data")

    def __getitem__(self, symbol: int) -> str:
        reference = self._market.feed.references.get(self._code)
        definition = None if reference is None else reference.read(self.message(symbol))
        if definition is None:
            raise KeyError(symbol)
        return str(definition[1])


class Books(Mapping[int, Book]):
    """Books by symbol. A book is kept up to date from the first access on."""

    def __init__(self, market: "Market") -> None:
        self._market = market

    def __getitem__(self, symbol: int) -> Book:
        if not any(symbol in state.orders for state in self._market.services.values()):
            raise KeyError(symbol)
        return self._market.book(symbol)

    def __iter__(self) -> Iterator[int]:
        found: dict[int, None] = {}
        for state in self._market.services.values():
            found.update(dict.fromkeys(state.orders))
        return iter(found)

    def __len__(self) -> int:
        return sum(1 for _ in self)
