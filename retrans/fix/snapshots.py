"""Snapshots of a feed that is framed by FIX: the state of books, which comes whole."""

from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.fix.state_client import fits, snapshot_of, trimmed
from feedhandler.retrans.refresh import Snapshot
from feedhandler.retrans.snapshot_forms import Assembler
from feedhandler.retrans.store import PacketStore


class FixSnapshots:
    """States of books, as Market Data Requests bring them."""

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """None: a state comes whole."""
        return ()

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Its packets."""
        return snapshot_of(event)

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """By what both say of their sequence epoch."""
        return fits(snapshot, store)

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Whole messages: the first packet may begin with some that are in the state."""
        first = snapshot.last + 1
        packets = store.packets(first, following)
        if packets and packets[0][0] < first:
            _, end, data = packets[0]
            packets[0] = (first, end, trimmed(data, first))
        return packets
