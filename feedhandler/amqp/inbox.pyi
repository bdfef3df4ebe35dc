import datetime
from typing import Any

from typing_extensions import Buffer

from feedhandler.amqp.proton import ReceiverLink
from feedhandler.codecs.errors import PeerError

class Message:
    key: str
    body: bytes
    tag: bytes
    content: str
    day: int
    feed_number: int
    service: int
    sequence: int
    number: int
    received_ns: int
    group_sequence: int
    feed: Any
    @property
    def seq(self) -> int: ...
    @property
    def quality(self) -> dict[str, Any] | None: ...
    @property
    def snapshot(self) -> bool: ...
    @property
    def type(self) -> int | str: ...
    @property
    def symbol(self) -> str: ...
    @property
    def own_sequence(self) -> int: ...
    def record(self) -> Any: ...
    def packets(self) -> list[Any]: ...
    def records(self) -> list[Any]: ...
    @property
    def date(self) -> datetime.date | None: ...

def day_of(number: int) -> datetime.date | None: ...
def feed_of(message: Message) -> Any: ...
def built_in_feed(number: int) -> Any: ...
def split_packets(feed: Any, data: Buffer) -> list[bytes]: ...

class Inbox:
    feed: Any
    expected: int
    messages: int
    malformed: int
    bodies: bytearray
    parts: bytearray
    day: int
    feed_number: int
    service: int
    snapshot: bool
    failure: PeerError | None
    def __init__(self, feed: Any = None) -> None: ...
    def read(self, data: Buffer, bounds: Buffer, count: int) -> list[Message]: ...
    def collect(self, link: ReceiverLink, first: int, end: int) -> int: ...
    def quality_at(self, data: Buffer, bounds: Buffer, place: int) -> Message | None: ...
