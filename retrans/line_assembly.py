"""Assembly of snapshots from refresh lines that are each read by itself.

Where the numbers of a line's packets mean nothing outside one snapshot, lines cannot be arbitrated
by numbers. So each line is assembled by itself, and the first snapshot that comes whole is used
(`LineAssembly`). Packets of a line are read only while a snapshot is wanted. Parts of
one may stand at different live numbers: it holds everything up to the lowest (`last`), and the live
stream must have come as far as the highest before it is used.

`protocols.cme_snapshots` and `protocols.nyse_refresh` have such lines.

Sans-IO: a datagram and the time are arguments.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar
from typing import Protocol as TypingProtocol

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import MessageIndex, PacketHeader
from feedhandler.codecs.kinds import DATA, FINE
from feedhandler.codecs.scanner import parse_next, scan_messages
from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.refresh import RefreshEvent, Snapshot, SnapshotFailed
from feedhandler.retrans.send_times import SendTimes
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import runs_of
from feedhandler.retrans.snapshots import MESSAGES_MAX, PacketFramer
from feedhandler.retrans.store import PacketStore

#: What an assembler counts; each name is one of `refresh.COUNTS`, for lines read by themselves.
COUNTS: dict[str, str] = {
    "packets": "packets taken in while a snapshot was waited for",
    "began": "snapshots begun",
    "snapshots": "snapshots that came whole",
    "started_over": "snapshots begun while one was under way on the same line",
    "outside": "packets outside a snapshot, or come again; dropped",
    "malformed": "datagrams that the scanner rejects",
    "failed_gap": "snapshots that failed because a packet of theirs was lost",
    "failed_reset": "snapshots that failed because the live lines began a new sequence epoch",
    "failed_malformed": "snapshots that failed because a packet of theirs could not be read",
    "failed_too_large": "snapshots of more than `snapshot_bytes_max` bytes",
    "failed_timed_out": "snapshots that did not go on for `refresh_timeout_us`",
}


class Gathering(TypingProtocol):
    """A snapshot under way on one line."""

    deadline_ns: int


UnderWay = TypeVar("UnderWay", bound=Gathering)


class LineAssembly(ABC, Generic[UnderWay]):
    """Assembles the snapshots of one channel's lines; `counts` counts by the names of `COUNTS`.

    Events are taken by `take`, as `refresh.RefreshAssembler`'s. While one line's snapshot goes on,
    the failure of another's is counted and not reported.
    """

    def __init__(self, feed: Feed, service: int, settings: RecoverySettings) -> None:
        self.service = service
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._feed = feed
        self._table = feed.table
        self._bytes_max = settings.snapshot_bytes_max
        self._patience_ns = settings.refresh_timeout_us * 1_000
        self._header = PacketHeader()
        self._index = MessageIndex(MESSAGES_MAX)
        #: What is under way, by line.
        self._lines: dict[int, UnderWay] = {}
        self._events: list[RefreshEvent] = []

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called; `NEVER_NS` while nothing is under way."""
        return min((line.deadline_ns for line in self._lines.values()), default=NEVER_NS)

    def pop_events(self) -> list[RefreshEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def idle(self) -> None:
        """Forget the snapshots under way: none is wanted."""
        self._lines.clear()

    def gap(self, now_ns: int) -> None:
        """Do nothing: a line's gap shows in its numbers."""

    def reset(self, now_ns: int) -> None:
        """Fail what is under way: the live lines begin a new sequence epoch."""
        for line in list(self._lines):
            self._fail(line, "reset")

    def tick(self, now_ns: int) -> None:
        """Fail what has not gone on for too long."""
        for line, under_way in list(self._lines.items()):
            if under_way.deadline_ns <= now_ns:
                self._fail(line, "timed_out")

    def packet(self, data: bytes, sequence: int, now_ns: int) -> None:
        """Refuse with `AssertionError`: packets of these lines are never arbitrated."""
        raise AssertionError("an arbitrated packet of lines that are read one by one")

    def datagram(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in the next datagram of a line."""
        header = self._header
        self.tick(now_ns)
        self.counts["packets"] += 1
        if (
            parse_next(self._table, data, 0, len(data), header) != FINE
            or header.length != len(data)
            or scan_messages(self._table, data, 0, header, self._index) != FINE
        ):
            self.counts["malformed"] += 1
            self._fail(line, "malformed")
        elif header.kind == DATA:
            self._process_data(line, data, now_ns)

    @abstractmethod
    def _process_data(self, line: int, data: bytes, now_ns: int) -> None:
        """Take in a packet of data, whose header and messages were just read."""

    def _framed(
        self, messages: Sequence[bytes], reaches: Mapping[int, int], send_time: int
    ) -> Snapshot:
        """Return a whole snapshot, by symbol as of the live numbers `reaches`."""
        self.counts["snapshots"] += 1
        last, highest = min(reaches.values()), max(reaches.values())
        framer = PacketFramer(self._feed, self.service, send_time)
        runs = runs_of(messages, self._table.header_size)
        packets = tuple(framer.packet(last, b"".join(run), len(run)) for run in runs)
        return Snapshot(self.service, last, packets, len(messages), send_time, highest, reaches)

    def _fail(self, line: int, reason: str) -> None:
        """Fail what is under way on a line, if anything is."""
        if self._lines.pop(line, None) is None:
            return
        self.counts[f"failed_{reason}"] += 1
        if not self._lines:
            self._events.append(SnapshotFailed(self.service, reason))


class LineSnapshots:
    """Base of the forms of such snapshots (`snapshot_forms.Snapshots`)."""

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        self._feed, self._settings = feed, settings
        self._times = SendTimes(feed, settings)

    def whole(self, event: RefreshSnapshot) -> Snapshot:
        """Refuse with `AssertionError`: no server of these sends a snapshot at once."""
        raise AssertionError(f"a snapshot came at once: {event}")

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return whether the send time of what reaches least far fits the packets around it."""
        return self._times.fit(snapshot, store)
