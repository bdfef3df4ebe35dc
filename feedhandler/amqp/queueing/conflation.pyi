from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from feedhandler.amqp.queueing.window import Parcel

NEVER: int
LATEST: int
BOOK: int
FENCE: int
ENTRY_BYTES: int
PIECE_BYTES: int
DIRTY_BYTES: int
ORDERS_MIN: int
SUPERSEDED_SHARE: int

class Waiting:
    parcel: Parcel
    pieces: list[bytes | None]
    modes: list[int]
    keys: list[Any]
    lead: int
    live: int
    place: int
    size: int
    def __init__(
        self, parcel: Parcel, pieces: list[Any], modes: list[int], keys: list[Any], lead: int = ...
    ) -> None: ...

class Conflation:
    bytes_max: int
    bytes: int
    entries: OrderedDict[int, Waiting]
    front: deque[Parcel]
    index: dict[Any, tuple[Waiting, int]]
    orders: dict[tuple[int, int], deque[tuple[Waiting, int]]]
    dirty: dict[tuple[int, int], bool]
    turn: deque[tuple[int, int]] | None
    fences: dict[int, int]
    last: int
    sealed: int
    superseded: int
    conflated: int
    conflated_bytes: int
    gone: dict[int, list[int]]
    def __init__(self, bytes_max: int, orders_max: Callable[[int, int], int]) -> None: ...
    def __len__(self) -> int: ...
    def put(self, waiting: Waiting) -> int: ...
    def put_front(self, parcel: Parcel) -> None: ...
    def take_gone(self) -> dict[int, list[int]]: ...
    def next_size(self) -> int: ...
    def peek(self) -> Parcel | None: ...
    def clear(self) -> None: ...
    def pop(self) -> Waiting: ...
    def at_end_of_turn(self) -> bool: ...
    def due(self) -> tuple[int, int] | None: ...
    def clean(self, key: tuple[int, int]) -> None: ...
    def squeeze(self) -> bool: ...
