"""The forms in which a feed's snapshots come: as packets to be assembled, or whole.

UTP-MD sends them as packets, by lines or connections (`PacketSnapshots`). Where a server sends the
messages of a state over a connection, the snapshot comes whole (`WholeSnapshots`); that of a feed
that is framed by FIX, too (`fix.snapshots`). Lines whose numbers mean nothing outside one snapshot
are each read by itself (`line_assembly`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from feedhandler.codecs import Feed
from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.refresh import RefreshAssembler, RefreshEvent, Snapshot
from feedhandler.retrans.send_times import SendTimes
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import MESSAGES_MAX, PACKET_BYTES_MAX, PacketFramer
from feedhandler.retrans.store import PacketStore

#: Where a snapshot's packets come from, each numbered by itself.
LINES, TCP = range(2)


class Assembler(Protocol):
    """Assembler of a service's snapshots: `refresh.RefreshAssembler`, or one like it."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts by name."""
        ...

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        ...

    def pop_events(self) -> list[RefreshEvent]:
        """Return the events since the last call, in order."""
        ...

    def packet(self, data: bytes, sequence: int, now_ns: int) -> None:
        """Take in the line's next packet, with its `sequence` number on that line."""

    def gap(self, now_ns: int) -> None:
        """Fail the refresh under way, as packets of the line were lost."""

    def reset(self, now_ns: int) -> None:
        """Fail the refresh under way, as its line's numbers begin anew."""

    def tick(self, now_ns: int) -> None:
        """Fail the refresh under way where its time has run out."""


class LineAssembler(Assembler, Protocol):
    """An assembler of lines that are not arbitrated, since each numbers its packets by itself."""

    def datagram(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in the next datagram of a line."""

    def idle(self) -> None:
        """Forget the snapshots under way: none is wanted."""


class Snapshots(Protocol):
    """A feed's snapshots."""

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """Return a service's assemblers, of `LINES` and `TCP`; none where snapshots come whole."""

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Return a complete snapshot as packets."""

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return whether the snapshot is of its stream's sequence epoch."""

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Return the packets published since the snapshot: (first number, number after, packet)."""


class PacketSnapshots:
    """Snapshots of a feed with a binary protocol."""

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        self._feed, self._settings = feed, settings
        self.fit: Callable[[Snapshot, PacketStore], bool] = SendTimes(feed, settings).fit

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """Return an assembler for the refresh lines, and one for the connection."""
        return tuple(RefreshAssembler(self._feed, service, self._settings) for _ in (LINES, TCP))

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Refuse with `AssertionError`: no server of these sends a snapshot at once."""
        raise AssertionError(f"a snapshot came at once: {event}")

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Return whole packets: a snapshot ends at the end of a packet."""
        return store.packets(snapshot.last + 1, following)


def runs_of(messages: Sequence[bytes], header_bytes: int) -> list[tuple[bytes, ...]]:
    """Return messages in runs, as many a run as a packet of a datagram's size holds."""
    runs: list[tuple[bytes, ...]] = []
    run: list[bytes] = []
    room = PACKET_BYTES_MAX - header_bytes
    for message in messages:
        if run and (len(message) > room or len(run) == MESSAGES_MAX):
            runs.append(tuple(run))
            run, room = [], PACKET_BYTES_MAX - header_bytes
        run.append(message)
        room -= len(message)
    return [*runs, tuple(run)] if run else runs


class WholeSnapshots:
    """Snapshots that come whole, as messages; they become packets outside the sequence.

    Raises `UsageError` for a feed whose packets cannot be cut.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._cutter = PacketCutter(feed)

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """Return none: there is nothing to assemble."""
        return ()

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Return a complete snapshot as packets outside the sequence."""
        framer = PacketFramer(self._feed, event.service, 0)
        runs = runs_of(event.messages, self._feed.table.header_size)
        packets = tuple(framer.packet(0, b"".join(run), len(run)) for run in runs)
        return Snapshot(event.service, event.last, packets, len(event.messages), 0)

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return True: the snapshot was asked for in the stream's present sequence epoch."""
        return True

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Return packets of whole messages: messages in the snapshot are cut off the first one."""
        first = snapshot.last + 1
        packets = store.packets(first, following)
        if packets and packets[0][0] < first:
            _, end, data = packets[0]
            packets[0] = (first, end, self._cutter.cut(data, first, end))
        return packets
