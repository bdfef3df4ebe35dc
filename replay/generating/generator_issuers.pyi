# What Python code sees of issuers and indices; the meanings stand in generator_issuers.py.

from collections.abc import Sequence
from typing import Any

from feedhandler.codecs import Feed
from feedhandler.replay.generating.dice import Dice
from feedhandler.replay.generating.generator_books import ShareBooks
from feedhandler.replay.generating.generator_tape import Tape
from feedhandler.replay.generating.instruments import Instrument

ISSUER_SYSTEM: int

class IssuerQuotes:
    warrants: int
    first: int
    number: int
    tables: dict[str, Any]
    def __init__(
        self,
        feed: Feed,
        instruments: Sequence[Instrument],
        first: int,
        dice: Dice,
        tape: Tape,
    ) -> None: ...
    def marks(self, name: str) -> Any: ...
    def act(self, warrant: int) -> int: ...
    def clear(self, warrant: int) -> int: ...
    def trade(self, warrant: int) -> int: ...
    def update_price(self, warrant: int) -> int: ...

class IndexValues:
    indices: int
    first: int
    tables: dict[str, Any]
    def __init__(
        self,
        feed: Feed,
        instruments: Sequence[Instrument],
        first: int,
        tape: Tape,
        books: ShareBooks,
        shares: Sequence[Instrument],
    ) -> None: ...
    def marks(self) -> Any: ...
    def show(self, count: int) -> int: ...
