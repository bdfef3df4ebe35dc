from collections import deque
from collections.abc import Callable
from enum import Enum

from feedhandler.amqp.framing import Template
from feedhandler.histogram import Histogram

TRIES_MAX: int
RETURNED_SHARE: int

class Outcome(Enum):
    ACCEPTED = 1
    RELEASED = 2
    MODIFIED = 3
    REJECTED = 4
    UNTOLD = 5
    UNDELIVERABLE = 6

class Verdict(Enum):
    CONFIRM = 1
    RETRY = 2
    ABANDON = 3

VERDICTS: dict[Outcome, Verdict]

class Parcel:
    data: bytes
    service: int
    sequence: int
    following: int
    block: bool
    reason: str
    key: str
    sent_ns: int
    tried_ns: int
    tries: int
    number_at: int
    template: Template | None
    came_ns: int
    item: int
    ended: bool
    spilled: bool
    def __init__(
        self,
        data: bytes,
        service: int,
        sequence: int,
        following: int,
        block: bool = False,
        reason: str = "",
        key: str = "",
    ) -> None: ...
    def cut(self, data: bytes) -> Parcel: ...

class Window:
    messages_max: int
    bytes_max: int
    returned_max: int
    bytes: int
    held: dict[int, Parcel]
    again: deque[int]
    waiting: list[tuple[int, int]]
    confirmed: int
    resent: int
    counts: dict[Outcome, int]
    latency: Histogram
    def __init__(
        self, messages_max: int, bytes_max: int, retry_ns: Callable[[int], int]
    ) -> None: ...
    def room(self, size: int) -> bool: ...
    def add(self, parcel: Parcel, now_ns: int) -> int: ...
    def confirm(self, number: int, now_ns: int) -> bool: ...
    def come_back(self, number: int, outcome: Outcome, now_ns: int) -> Parcel | None: ...
    @property
    def oldest_ns(self) -> int | None: ...
    def lost(self) -> int: ...
    def due(self, now_ns: int) -> bool: ...
    @property
    def deadline_ns(self) -> int | None: ...
    def next_again(self) -> int: ...
