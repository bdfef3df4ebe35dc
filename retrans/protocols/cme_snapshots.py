"""CME's market recovery feed: the books of a channel by multicast, in loops that never end.

A loop has a snapshot (template 52) of each instrument that was active this week. Its packets are
numbered from 1; each snapshot says how many the loop has (911 TotNumReports), and the number of the
last packet of the live lines that is in it (369 LastMsgSeqNumProcessed), which grows in the course
of the loop. Line B is a stand-in for A, with loops of its own. (CME Group Client Systems Wiki: MDP
3.0 - MBP and MBOFD Market Recovery; Market Data Snapshot Full Refresh.)

**Assembly.** Each line is assembled by itself (`line_assembly`): a number means nothing outside its
loop. A loop begins with packet 1 and is whole when the snapshots of as many instruments have come
as it has; one of which a packet is lost, or that is too large, or does not go on for
`refresh_timeout_us`, has failed, and the next one is waited for.

**How far it reaches.** The instruments of one loop stand at different live numbers. It holds
everything up to the lowest of them (`last`), so it heals what was lost up to there; what came after
is applied over it once more. An update sets a price level to what it is, or deletes it, so applying
one that is in a snapshot already changes nothing in the end: of each level the latest update
decides. For that end to be the truth, the live stream must have come as far as the highest of the
numbers (`highest`), and a loop is not used before.

There is no server: nothing is asked for. Snapshots of orders (template 53) are passed over.

Sans-IO: a datagram and the time are arguments.
"""

import struct
from dataclasses import dataclass, field

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.retrans.line_assembly import LineAssembly, LineSnapshots
from feedhandler.retrans.protocols.cme_replay import MESSAGE
from feedhandler.retrans.protocols.cme_replay import check_feed as check_packets
from feedhandler.retrans.refresh import Snapshot, SnapshotBegan
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import Assembler
from feedhandler.retrans.store import PacketStore

#: The message of a snapshot, and its first fields: LastMsgSeqNumProcessed, TotNumReports,
#: SecurityID.
BOOK = "snapshot_full_refresh"
FIELDS = struct.Struct("<IIi")
#: The first packet of a loop.
FIRST = 1


@dataclass(slots=True)
class _Loop:
    """A loop under way on one line."""

    expected: int
    deadline_ns: int
    total: int = 0
    size: int = 0
    last: int = 0
    send_time: int = 0
    #: By instrument: its snapshot, and how far that reaches.
    books: dict[int, bytes] = field(default_factory=dict)
    reaches: dict[int, int] = field(default_factory=dict)


class LoopAssembler(LineAssembly[_Loop]):
    """Assembles the loops of one channel's lines."""

    def __init__(self, feed: Feed, service: int, settings: RecoverySettings) -> None:
        super().__init__(feed, service, settings)
        self._code = feed.layout(BOOK).code
        #: The send time of each line's latest packet.
        self._latest: dict[int, int] = {}

    def reset(self, now_ns: int) -> None:
        """Fail what is under way: the live lines begin a new sequence epoch."""
        self._latest.clear()
        super().reset(now_ns)

    def _process_data(self, line: int, data: bytes, now_ns: int) -> None:
        header, loop = self._header, self._lines.get(line)
        if self._is_late(line):
            self.counts["outside"] += 1
            return
        if header.sequence == FIRST:
            self._begin(line, now_ns)
        elif loop is None or header.sequence < loop.expected:
            self.counts["outside"] += 1
            return
        elif header.sequence > loop.expected:
            self._fail(line, "gap")
            self.counts["outside"] += 1
            return
        self._gather(line, data, now_ns)

    def _is_late(self, line: int) -> bool:
        """Return whether the packet just read was sent before the line's latest one: a copy, or of
        the loop before. One that is far earlier is of a clock that was set back."""
        sent_ns = self._header.send_time
        late_ns = self._latest.get(line, sent_ns) - sent_ns
        if 0 < late_ns <= self._patience_ns:
            return True
        self._latest[line] = sent_ns
        return False

    def _begin(self, line: int, now_ns: int) -> None:
        self.counts["started_over"] += line in self._lines
        self.counts["began"] += 1
        self._lines[line] = _Loop(FIRST, now_ns + self._patience_ns)

    def _gather(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in the messages of a loop's next packet, which was just indexed."""
        loop, index = self._lines[line], self._index
        loop.expected += 1
        loop.deadline_ns = now_ns + self._patience_ns
        for i in range(index.count):
            at, size = index.offsets[i], index.sizes[i]
            if index.types[i] != self._code or size < MESSAGE.size + FIELDS.size:
                continue
            last, loop.total, instrument = FIELDS.unpack_from(data, at + MESSAGE.size)
            if not loop.books:
                self._events.append(SnapshotBegan(self.service, last))
            if not loop.books or last < loop.last:
                loop.last, loop.send_time = last, self._header.send_time
            loop.size += size
            loop.books[instrument], loop.reaches[instrument] = data[at : at + size], last
            if loop.size > self._bytes_max:
                self._fail(line, "too_large")
                return
            if len(loop.books) >= loop.total:
                self._complete(line)
                return

    def _complete(self, line: int) -> None:
        loop = self._lines.pop(line)
        self._events.append(self._framed([*loop.books.values()], loop.reaches, loop.send_time))


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets and snapshots are MDP 3.0's. Raises `UsageError`."""
    check_packets(feed)
    if BOOK not in {way.name for ways in feed.layouts.values() for way in ways}:
        raise UsageError(f"{feed.name} has no message {BOOK}", 'include = "shared/cme-mdp3.toml"')


class LoopSnapshots(LineSnapshots):
    """The form of CME's snapshots: loops on lines of their own.

    Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        check_feed(feed)
        super().__init__(feed, settings)

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """One for all lines of a service."""
        return (LoopAssembler(self._feed, service, self._settings),)

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Whole packets: numbers count packets."""
        return store.packets(snapshot.last + 1, following)
