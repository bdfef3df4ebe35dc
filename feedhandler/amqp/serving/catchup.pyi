from collections.abc import Callable
from typing import Any

from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.history import History, Place
from feedhandler.amqp.outlet import Outlet
from feedhandler.amqp.stream import Stream

class Cursor:
    outlet: Outlet
    stream: Stream
    history: History
    place: Place
    following: int
    def __init__(self, outlet: Outlet, stream: Stream, place: Place, following: int) -> None: ...
    def move(self, place: Place, following: int) -> None: ...

class CatchUps:
    cursors: Any
    packets_read: int
    bytes_read: int
    overtaken: int
    arrived: list[Outlet]
    def __init__(self, fanout: Fanout, on_overtaken: Callable[[Cursor], bool]) -> None: ...
    def add(self, outlet: Outlet, stream: Stream, place: Place, following: int) -> None: ...
    def remove(self, outlet: Outlet, stream: Stream | None = None) -> None: ...
    def turn(self, bytes_max: int) -> bool: ...
    def tell(self, outlet: Outlet, stream: Stream, sequence: int, body: bytes) -> int: ...
