from dataclasses import dataclass
from enum import IntEnum

CAPACITY_MIN: int
CAPACITY_DEFAULT: int
CAPACITY_MAX: int

class RecordKind(IntEnum):
    PAD = 0
    PACKET = 1
    GAP = 2
    RESET = 3
    START = 4
    LINE_SILENT = 5
    LINE_BACK = 6
    MISMATCH = 7
    HOLE = 8
    CLOSED = 9
    MISSING = 10

class GapCause(IntEnum):
    DEADLINE = 1
    HOLD_FULL = 2
    JUMP = 3
    RESET = 4
    REFUSED = 5

class ResetCause(IntEnum):
    PACKET = 1
    SESSION = 2
    RESYNC = 3

@dataclass(frozen=True, slots=True)
class Event:
    kind: RecordKind
    channel: int
    line: int
    flags: int
    count: int
    sequence: int
    next_sequence: int
    received_ns: int
    session: int
    skip: int
    body: int
    auxiliary: int
    payload: bytes

class Ring:
    words: memoryview
    data: memoryview
    capacity: int
    mask: int
    head: int
    def __init__(self, capacity: int = ...) -> None: ...
    @property
    def published(self) -> int: ...
    @property
    def tail(self) -> int: ...
    def room(self) -> int: ...
    def put(
        self,
        kind: int,
        *,
        channel: int = 0,
        line: int = 0,
        flags: int = 0,
        count: int = 0,
        sequence: int = 0,
        next_sequence: int = 0,
        received_ns: int = 0,
        session: int = 0,
        skip: int = 0,
        body: int = 0,
        auxiliary: int = 0,
        payload: bytes = b"",
    ) -> bool: ...
    def publish(self) -> int: ...
    def readable(self) -> int: ...
    def release(self, position: int) -> None: ...
    def arm(self) -> bool: ...
    def rest(self, until_ns: int) -> None: ...
    def drain(self) -> list[Event]: ...
