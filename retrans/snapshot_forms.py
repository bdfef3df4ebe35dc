"""The forms in which a feed's snapshots come: as packets to be assembled, or whole.

A feed with a binary protocol (UTP-MD) sends them as packets, by lines or connections. Those of a
feed that is framed by FIX come whole (`fix.snapshots`).
"""

from collections.abc import Callable
from typing import Protocol

from feedhandler.codecs import Feed
from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.refresh import RefreshAssembler, Snapshot
from feedhandler.retrans.send_times import SendTimes
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore

#: Where a snapshot's packets come from, each numbered by itself.
LINES, TCP = range(2)


class Snapshots(Protocol):
    """A feed's snapshots."""

    def assemblers(self, service: int) -> tuple[RefreshAssembler, ...]:
        """Who puts a service's snapshots together, of `LINES` and `TCP`; none where they come
        whole."""

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Return a complete snapshot as packets."""

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return whether the snapshot is of its stream's sequence epoch."""

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """(first number, number after, packet) of what was published from the snapshot on."""


class PacketSnapshots:
    """Snapshots of a feed with a binary protocol."""

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        self._feed, self._settings = feed, settings
        self.fit: Callable[[Snapshot, PacketStore], bool] = SendTimes(feed, settings).fit

    def assemblers(self, service: int) -> tuple[RefreshAssembler, ...]:
        """One for the refresh lines, one for the connection."""
        return tuple(RefreshAssembler(self._feed, service, self._settings) for _ in (LINES, TCP))

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """No server of these sends one: raises `NotImplementedError`."""
        raise NotImplementedError(event)

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Whole packets: a snapshot ends where one does."""
        return store.packets(snapshot.last + 1, following)
