from collections import Counter

from feedhandler.overlay.deduplication import Deduplicator
from feedhandler.overlay.port import Port
from feedhandler.overlay.topology import Address, Topology

RING: int

class Forwarder(Port):
    heard_ns: int
    def direct(
        self, topology: Topology, name: str, copies: Deduplicator, targets: tuple[Address, ...]
    ) -> None: ...
    def serve(self, until_ns: int, busy: bool = False) -> bool: ...
    def rare(self) -> tuple[bytes, Address, int] | None: ...
    def refresh(self) -> None: ...
    def drain_counts(self, counts: Counter[str]) -> None: ...
