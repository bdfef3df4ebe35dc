"""Messages packed differently on two lines, for tests of arbitration by message."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from feedhandler.codecs import load_feed
from feedhandler.codecs.feed_table import FeedTable, PacketHeader
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support.fix_messages import sealed
from tests.support.ingest import MS, TWINS

SETTINGS = ArbitrationSettings(
    hold_packets=32, quarantine_packets=4, compare_packets=16, silent_us=3_600_000_000
)
#: One packet on its way: line, first message, one past the last.
Step = tuple[int, int, int]


def packings(count: int) -> list[tuple[tuple[int, int], ...]]:
    """Every way to put `count` messages into packets, as ranges."""
    return [
        tuple(zip((0, *cuts), (*cuts, count), strict=True))
        for size in range(count)
        for cuts in combinations(range(1, count), size)
    ]


def merges(one: Sequence[Any], other: Sequence[Any]) -> Iterator[list[Any]]:
    """Every order of both that keeps the order of each."""
    total = len(one) + len(other)
    for indexes in combinations(range(total), len(one)):
        first, second = iter(one), iter(other)
        yield [next(first) if index in indexes else next(second) for index in range(total)]


class IexMessages:
    """Messages of a binary feed that counts messages: IEX DEEP."""

    def __init__(self) -> None:
        self.feed = load_feed("iex-deep")
        self.table = self.feed.table
        self.body = self.table.header_size

    def message(self, number: int) -> bytes:
        """A message that differs from number to number, in length too."""
        if number % 3:
            return self.feed.encode_message("system_event", timestamp=number)
        return self.feed.encode_message("security_directory", timestamp=number, symbol="S")

    def packet(self, number: int, messages: Sequence[bytes]) -> bytes:
        """A whole packet."""
        return self.feed.encode_packet(sequence=number, messages=list(messages))


class FixMessages:
    """Messages of a feed that is framed by FIX."""

    body = 0

    def __init__(self) -> None:
        self.table = FeedTable()
        self.table.fix = self.table.counts_messages = True
        self.table.symbol_tag = 55

    def message(self, number: int) -> bytes:
        """A message that differs from number to number, in length too; its number is patched."""
        return number.to_bytes(2, "big")

    def packet(self, number: int, messages: Sequence[bytes]) -> bytes:
        """The messages with their numbers."""
        return b"".join(
            sealed(b"35=X|34=%d|55=S%d|58=%s|" % (number + at, each[1], each.hex().encode() * 3))
            for at, each in enumerate(messages)
        )


class PackedChannel:
    """One arbiter for many short cases: each takes up the numbers where the last one ended.

    `kind` makes messages; the case's messages are numbered from 0.
    """

    def __init__(self, kind: Any, count: int, twin: str = "compiled", **options: Any) -> None:
        arbitration, ring, self.recovered = TWINS[twin]
        self.kind = kind
        self.ring = ring.Ring(1 << 18)
        self.arbiter = arbitration.Arbiter(
            self.ring, settings=SETTINGS, counts_messages=True, table=kind.table, **options
        )
        self.arbiter.start(0)
        self.messages = [kind.message(number) for number in range(count)]
        self.header = PacketHeader()
        self.now, self.base, self.position = MS, 1, 0
        self.cases = 0

    def give(self, line: int, first: int, end: int, forged: int = -1, again: bool = False) -> int:
        """Messages `first` to `end` - 1 come in a packet; `forged` has another last byte, and
        `again`: they are marked as sent again."""
        messages = self.messages[first:end]
        if forged >= 0:
            one = bytearray(messages[forged - first])
            one[-1] ^= 1
            messages[forged - first] = bytes(one)
        payload = memoryview(self.kind.packet(self.base + first, messages))
        header = self.header
        header.kind, header.count, header.flags = 0, end - first, again
        header.sequence, header.next_sequence = self.base + first, self.base + end
        header.length, header.body = len(payload), self.kind.body
        return int(self.arbiter.receive(line, header, payload, 0, self.now, self.now))

    def beat(self, line: int, following: int) -> None:
        """A heartbeat names the message that is next."""
        header = self.header
        header.kind, header.count, header.flags = 1, 0, 0
        header.sequence = header.next_sequence = self.base + following
        header.length = header.body
        self.arbiter.receive(line, header, memoryview(bytes(64)), 0, self.now, self.now)

    def end(self) -> None:
        """A heartbeat on both lines names the next number, and the lines' time passes."""
        for line in (0, 1):
            self.beat(line, len(self.messages))
        self.now += 100 * MS
        self.arbiter.tick(self.now)

    def read(self) -> list[tuple[str, int, int, bytes]]:
        """Return the events since the last call: ("packet" or "gap", first, end, message bytes)."""
        self.ring.publish()
        said = []
        for event in self.ring.drain():
            if event.kind == RecordKind.PACKET:
                first = event.sequence - self.base
                left = self.kind.packet(event.sequence, self.messages[first : first + event.skip])
                body = event.payload[event.body :][len(left) - self.kind.body :]
                said.append(("packet", first + event.skip, event.next_sequence - self.base, body))
            elif event.kind == RecordKind.GAP:
                said.append(
                    ("gap", event.sequence - self.base, event.next_sequence - self.base, b"")
                )
        return said

    def case(self, steps: Sequence[Step]) -> None:
        """Play one case, and check that the published stream is the sent one, or is marked."""
        there = set()
        for line, first, end in steps:
            self.give(line, first, end)
            there |= set(range(first, end))
        self.end()
        expected, at = 0, 0
        said = self.read()
        for what, first, end, body in said:
            assert first == expected, (steps, said)
            expected = end
            if what == "gap":
                assert there.isdisjoint(range(first, end)), (steps, said)
            else:
                whole = self.kind.packet(self.base + first, self.messages[first:end])
                assert body == whole[self.kind.body :], (steps, said)
                at += end - first
        assert (expected, at) == (len(self.messages), len(there)), (steps, said)
        assert self.arbiter.state_name == "FLOWING"
        self.base += len(self.messages)
        self.cases += 1
