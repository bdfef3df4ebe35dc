from collections.abc import Callable
from typing import Any

from feedhandler.amqp.outlet import Outlet, Peer
from feedhandler.codecs.scanner import FeedTable
from feedhandler.histogram import Histogram
from feedhandler.ingest.ring import Ring

STAMPS_MAX: int

class Route:
    key: str
    def __init__(self, key: str, prefix: bytes) -> None: ...

class Stream:
    index: int
    service: int
    key: str
    prefix: bytes
    whole: list[Outlet]
    fine: list[Outlet]
    concerned: list[Outlet]
    packets: int
    messages: int
    next_sequence: int
    latency: Histogram
    def __init__(
        self, index: int, service: int, key: str, prefix: bytes, symbols_max: int
    ) -> None: ...
    def set_prefix(self, prefix: bytes) -> None: ...
    def forget_routes(self) -> None: ...
    @property
    def words(self) -> list[str]: ...

class Fanout:
    streams: list[Stream]
    dirty_peers: list[Any]
    outlets: list[Outlet]
    route_lookups: int
    route_hits: int
    route_resets: int
    quality_messages: int
    def __init__(
        self,
        ring: Ring,
        table: FeedTable,
        streams: list[Stream],
        name_of: Callable[[Stream, int], str],
        on_mark: Callable[..., None],
        reference_type: int = -1,
        on_reference: Callable[[Stream, bytes], None] | None = None,
    ) -> None: ...
    def add(self, outlet: Outlet) -> None: ...
    def remove(self, outlet: Outlet) -> None: ...
    def quality(self, stream: Stream, body: bytes, outlets: list[Outlet] | None = None) -> None: ...
    def pump(self, bytes_max: int) -> bool: ...
    def settle(self) -> list[Peer]: ...
    def note_latency(self, now_ns: int) -> int: ...
