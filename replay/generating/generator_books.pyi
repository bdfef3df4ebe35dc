# What Python code sees of the books; the meanings stand in generator_books.py.

from collections.abc import Sequence
from typing import Any

from feedhandler.codecs import Feed
from feedhandler.replay.generating.dice import Dice
from feedhandler.replay.generating.generator_tape import Tape
from feedhandler.replay.generating.instruments import Instrument

SILENT: int
FLAT: int
SHIFT: int
SHARE_SYSTEM: int
SLOTS: int
LEVELS: int
DEPTH: int

class ShareBooks:
    shares: int
    number: int
    tables: dict[str, Any]
    halted: Any
    def __init__(
        self,
        feed: Feed,
        instruments: Sequence[Instrument],
        dice: Dice,
        tape: Tape,
        dates: tuple[int, int],
    ) -> None: ...
    def marks(self, name: str) -> Any: ...
    def fill(self, share: int) -> int: ...
    def act(self, share: int, want: int) -> int: ...
    def cross(self, share: int) -> int: ...
    def update_price(self, share: int) -> int: ...
    def retell(self, share: int) -> int: ...
    def clear(self, share: int) -> int: ...
    def show(self, share: int, low: int) -> int: ...
    def retold(self, share: int, to: Any, at: int) -> int: ...

def quotient(number: int, by: int) -> int: ...
