# What Python code sees of the tape; the meanings stand in generator_tape.py.

from typing import Any

from feedhandler.codecs import Feed
from feedhandler.replay.generating.dice import Dice

REALTIME: int
CHANNELS: int
HEADER_BYTES: int
ROOM: int
MESSAGES_MAX: int
SPARE_PACKETS: int
EDGES_NS: tuple[int, ...]
LOST_A: int
LOST_B: int
COLUMNS: dict[str, Any]

class Tape:
    now_ns: int
    free_ns: int
    count: int
    used: int
    within_1_ms: int
    within_10_ms: int
    repeats: int
    columns: dict[str, Any]
    tables: dict[str, Any]
    def __init__(
        self,
        feed: Feed,
        symbols: int,
        dice: Dice,
        *,
        byte_ps: int = ...,
        second_bytes: int = ...,
        losses: tuple[int, int] = ...,
        skew_ns: tuple[int, int] = ...,
    ) -> None: ...
    def full(self) -> bool: ...
    def begin(self, data: Any, columns: dict[str, Any]) -> int: ...
    def data_so_far(self) -> Any: ...
    def set_limit(self, channel: int, messages: int) -> None: ...
    def set_sequence(self, channel: int, sequence: int) -> None: ...
    def put(self, channel: int, source: Any, at: int, size: int, symbol: int) -> int: ...
    def cut(self, channel: int) -> int: ...
    def send(self, channel: int, source: Any, at: int, size: int, count: int) -> int: ...
    def control(self, channel: int, packet: bytes, number: int) -> int: ...
