from collections.abc import Callable, Sequence
from typing import Any

from feedhandler.amqp.outlet import Outlet, Peer
from feedhandler.amqp.queueing.books import BookKeeper
from feedhandler.amqp.splitter import Splitter
from feedhandler.amqp.stream import Stream
from feedhandler.codecs.scanner import FeedTable
from feedhandler.ingest.ring import Ring

STAMPS_MAX: int
SNAPSHOT_BIT: int
BLOCK_SHIFT: int

class Fanout(Splitter):
    streams: list[Stream]
    dirty_peers: list[Any]
    outlets: list[Outlet]
    quality_messages: int
    tap: Ring | None
    tap_drops: int
    keeper: BookKeeper | None
    def __init__(
        self,
        ring: Ring,
        table: FeedTable,
        streams: list[Stream],
        name_of: Callable[[Stream, int], str],
        on_mark: Callable[..., None],
        reference_type: int = -1,
        on_reference: Callable[[Stream, bytes], None] | None = None,
        on_refresh: Callable[[int, int, bytes], None] | None = None,
        alias_of: Callable[[Stream, int], str | None] | None = None,
        reference_bytes_min: int = 0,
    ) -> None: ...
    def add(self, outlet: Outlet, resumed: Sequence[Stream] = ()) -> None: ...
    def remove(self, outlet: Outlet) -> None: ...
    def quality(self, stream: Stream, body: bytes, outlets: list[Outlet] | None = None) -> None: ...
    def block(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        last: int,
        end: bytes,
        outlets: list[Outlet] | None = None,
    ) -> None: ...
    def books(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        place: tuple[int, int],
        end: bytes,
        outlet: Outlet,
    ) -> None: ...
    def replay(
        self, stream: Stream, packets: list[tuple[int, int, bytes]], following: int = 0
    ) -> None: ...
    def learn(self, stream: Stream, packets: list[bytes]) -> None: ...
    def pump(self, bytes_max: int) -> bool: ...
    def settle(self) -> list[Peer]: ...
    def note_latency(self, now_ns: int) -> int: ...
