# What Python code sees of the orders; the meanings stand in market_orders.py.

from typing import Any

from typing_extensions import Buffer

from feedhandler.replay.state.book import Book

class Resting:
    price: int
    volume: int
    side: int
    level: int
    message: bytes

class OrderLayout:
    code: int
    size: int
    def __init__(self, feed: Any) -> None: ...

class Orders:
    resting: dict[int, Resting]
    live: Book | None
    def __init__(self, layout: OrderLayout, live: Book | None = None) -> None: ...
    def book(self) -> Book: ...
    def clear(self) -> int: ...

def read_uint(data: Buffer, at: int, size: int, big: bool) -> int: ...
