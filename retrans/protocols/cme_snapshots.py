"""CME's market recovery feed: the books of a channel by multicast, in loops that never end.

A loop has a snapshot (template 52) of each instrument that was active this week. Its packets are
numbered from 1; each snapshot says how many the loop has (911 TotNumReports), and the number of the
last packet of the live lines that is in it (369 LastMsgSeqNumProcessed), which grows in the course
of the loop. Line B is a stand-in for A, with loops of its own. (CME Group Client Systems Wiki: MDP
3.0 - MBP and MBOFD Market Recovery; Market Data Snapshot Full Refresh.)

**Assembly.** Each line is assembled by itself (`LoopAssembler`): a number means nothing outside its
loop, so lines cannot be arbitrated by numbers. A loop begins with packet 1 and is whole when the
snapshots of as many instruments have come as it has; one of which a packet is lost, or that is too
large, or does not go on for `refresh_timeout_us`, has failed, and the next one is waited for. What
a line brings is looked at only while somebody waits for a snapshot.

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
from feedhandler.codecs.kinds import DATA, FINE
from feedhandler.codecs.scanner import MessageIndex, PacketHeader, parse_next, scan_messages
from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.protocols.cme_replay import MESSAGE
from feedhandler.retrans.protocols.cme_replay import check_feed as check_packets
from feedhandler.retrans.refresh import RefreshEvent, Snapshot, SnapshotBegan, SnapshotFailed
from feedhandler.retrans.send_times import SendTimes
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import Assembler, runs_of
from feedhandler.retrans.snapshots import MESSAGES_MAX, PacketFramer
from feedhandler.retrans.store import PacketStore

#: The message of a snapshot, and its first fields: LastMsgSeqNumProcessed, TotNumReports,
#: SecurityID.
BOOK = "snapshot_full_refresh"
FIELDS = struct.Struct("<IIi")
#: The first packet of a loop.
FIRST = 1

#: What an assembler counts; each name is one of `refresh.COUNTS`, for loops.
COUNTS: dict[str, str] = {
    "packets": "packets taken in while a snapshot was waited for",
    "began": "loops begun",
    "snapshots": "loops that came whole",
    "started_over": "loops begun while one was under way on the same line",
    "outside": "packets outside a loop, or come again; dropped",
    "malformed": "datagrams that the scanner rejects",
    "failed_gap": "loops that failed because a packet of theirs was lost",
    "failed_reset": "loops that failed because the live lines began a new sequence epoch",
    "failed_malformed": "loops that failed because a packet of theirs could not be read",
    "failed_too_large": "loops of more than `snapshot_bytes_max` bytes",
    "failed_timed_out": "loops that did not go on for `refresh_timeout_us`",
}


@dataclass(slots=True)
class _Loop:
    """A loop under way on one line."""

    expected: int
    deadline_ns: int
    total: int = 0
    size: int = 0
    last: int = 0
    highest: int = 0
    send_time: int = 0
    #: The snapshots by instrument.
    books: dict[int, bytes] = field(default_factory=dict)


class LoopAssembler:
    """Assembles the loops of one channel's lines; `counts` counts by the names of `COUNTS`.

    Events are taken by `take`, as `refresh.RefreshAssembler`'s. While one line's loop goes on, the
    failure of another's is counted and not told.
    """

    def __init__(self, feed: Feed, service: int, settings: RecoverySettings) -> None:
        self.service = service
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._feed = feed
        self._table = feed.table
        self._code = feed.layout(BOOK).code
        self._bytes_max = settings.snapshot_bytes_max
        self._patience_ns = settings.refresh_timeout_us * 1_000
        self._header = PacketHeader()
        self._index = MessageIndex(MESSAGES_MAX)
        self._loops: dict[int, _Loop] = {}
        #: The send time of each line's latest packet.
        self._latest: dict[int, int] = {}
        self._events: list[RefreshEvent] = []

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; `NEVER_NS` while no loop is under way."""
        return min((loop.deadline_ns for loop in self._loops.values()), default=NEVER_NS)

    def take(self) -> list[RefreshEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def idle(self) -> None:
        """Forget what is under way: nobody waits for a snapshot."""
        self._loops.clear()

    def gap(self, now_ns: int) -> None:
        """Do nothing: a line's gap shows in its numbers."""

    def reset(self, now_ns: int) -> None:
        """Fail what is under way: the live lines begin a new sequence epoch."""
        self._latest.clear()
        for line in list(self._loops):
            self._fail(line, "reset")

    def tick(self, now_ns: int) -> None:
        """Fail loops that have not gone on for too long."""
        for line, loop in list(self._loops.items()):
            if loop.deadline_ns <= now_ns:
                self._fail(line, "timed_out")

    def packet(self, data: bytes, sequence: int, now_ns: int) -> None:
        """Take in a packet that was arbitrated: a loop's never are."""
        raise NotImplementedError("lines of loops are read one by one")

    def datagram(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in the next datagram of a line."""
        header = self._header
        self.tick(now_ns)
        self.counts["packets"] += 1
        if (
            parse_next(self._table, data, 0, len(data), header) != FINE
            or header.length != len(data)
            or header.kind != DATA
            or scan_messages(self._table, data, 0, header, self._index) != FINE
        ):
            self.counts["malformed"] += 1
            self._fail(line, "malformed")
            return
        loop = self._loops.get(line)
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
        self.counts["started_over"] += line in self._loops
        self.counts["began"] += 1
        self._loops[line] = _Loop(FIRST, now_ns + self._patience_ns)

    def _gather(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in the messages of a loop's next packet, which was just indexed."""
        loop, index = self._loops[line], self._index
        loop.expected += 1
        loop.deadline_ns = now_ns + self._patience_ns
        for place in range(index.count):
            at, size = index.offsets[place], index.sizes[place]
            if index.types[place] != self._code or size < MESSAGE.size + FIELDS.size:
                continue
            last, loop.total, instrument = FIELDS.unpack_from(data, at + MESSAGE.size)
            if not loop.books:
                self._events.append(SnapshotBegan(self.service, last))
            if not loop.books or last < loop.last:
                loop.last, loop.send_time = last, self._header.send_time
            loop.highest = max(loop.highest, last)
            loop.size += size
            loop.books[instrument] = data[at : at + size]
            if loop.size > self._bytes_max:
                self._fail(line, "too_large")
                return
            if len(loop.books) >= loop.total:
                self._complete(line)
                return

    def _complete(self, line: int) -> None:
        loop = self._loops.pop(line)
        self.counts["snapshots"] += 1
        framer = PacketFramer(self._feed, self.service, loop.send_time)
        runs = runs_of(list(loop.books.values()), self._table.header_size)
        packets = tuple(framer.packet(loop.last, b"".join(run), len(run)) for run in runs)
        self._events.append(
            Snapshot(
                self.service, loop.last, packets, len(loop.books), loop.send_time, loop.highest
            )
        )

    def _fail(self, line: int, reason: str) -> None:
        """Fail a line's loop, if one is under way."""
        if self._loops.pop(line, None) is None:
            return
        self.counts[f"failed_{reason}"] += 1
        if not self._loops:
            self._events.append(SnapshotFailed(self.service, reason))


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets and snapshots are MDP 3.0's. Raises `UsageError`."""
    check_packets(feed)
    if BOOK not in {each.name for ways in feed.layouts.values() for each in ways}:
        raise UsageError(f"{feed.name} has no message {BOOK}", 'include = "shared/cme-mdp3.toml"')


class LoopSnapshots:
    """The form of CME's snapshots: loops on lines of their own.

    Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        check_feed(feed)
        self._feed, self._settings = feed, settings
        self._times = SendTimes(feed, settings)

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """One for all lines of a service."""
        return (LoopAssembler(self._feed, service, self._settings),)

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """No server of these sends one: raises `NotImplementedError`."""
        raise NotImplementedError(event)

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return whether the send time of what reaches least far fits the packets around it."""
        return self._times.fit(snapshot, store)

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Whole packets: numbers count packets."""
        return store.packets(snapshot.last + 1, following)
