import socket
from collections.abc import Sequence

from typing_extensions import Buffer

BATCH: int
LINES_MAX: int

class LineSender:
    errors: dict[int, int]
    sent: int
    def __init__(self, lines: Sequence[tuple[socket.socket, tuple[str, int]]]) -> None: ...
    def send(
        self, slab: Buffer, offsets: Buffer, sizes: Buffer, first: int, count: int
    ) -> None: ...

class Alarm:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def set(self, at_ns: int) -> None: ...
    def close(self) -> None: ...
