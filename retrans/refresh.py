"""Refresh packets in, snapshots out: one service's refresh line, taken apart and checked.

A `RefreshAssembler` is fed with the packets of a service's refresh line in order; putting the lines
A and B in order is arbitration's. Between message 580 and message 581 it gathers; a snapshot that
came whole leaves as packets of at most 1,400 bytes, inflated, the start and end messages in them.

It promises never to raise for what a peer sent, to hold at most `snapshot_bytes_max` bytes, to
inflate no packet beyond `inflated_bytes_max` (and to stop inflating there), and to come to an
outcome within `refresh_timeout_us` of a start. Every outcome is told once by `take` and counted by
name in `counts`:

* `SnapshotBegan` at a start. A start while one runs starts over: what was gathered is dropped.
* `Snapshot` at an end whose LastSeqNum equals the start's.
* `SnapshotFailed` for a packet missing or broken in between, an end that names another LastSeqNum,
  a snapshot too large, a reset of the line's numbering, or time that has run out.

After a failure it waits for the next start. What comes outside a refresh is dropped: a line that
is joined in the middle of a cycle brings its rest first. An end without a start is counted.

Sans-IO: the time is an argument, `deadline_ns` says when `tick` wants to be called.
"""

import zlib
from dataclasses import dataclass
from typing import Any

from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.scanner import MessageIndex, PacketHeader, parse_header, scan_messages
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import (
    MESSAGES_MAX,
    PACKET_BYTES_MAX,
    PacketFramer,
    RefreshTypes,
)

#: A deadline that never comes.
NEVER = (1 << 63) - 1

#: What `RefreshAssembler.counts` counts.
COUNTS: dict[str, str] = {
    "packets": "packets taken in, whatever they held",
    "began": "refreshes begun (message 580)",
    "snapshots": "refreshes that came whole",
    "started_over": "refreshes begun while one was running; the one before is dropped",
    "end_without_start": "ends (message 581) without a start, as where the start was lost",
    "outside": "packets of messages between refreshes; dropped",
    "malformed": "packets that the scanner rejects, or whose zlib stream is broken",
    "too_large_inflated": "packets that inflate to more than `inflated_bytes_max`; not inflated",
    "wrong_service": "packets of another service",
    "failed_gap": "refreshes that failed because a packet of theirs was lost",
    "failed_reset": "refreshes that failed because the line's numbering began anew",
    "failed_malformed": "refreshes that failed because a packet of theirs could not be read",
    "failed_end_differs": "refreshes whose end named another LastSeqNum than the start",
    "failed_too_large": "refreshes of more than `snapshot_bytes_max` bytes",
    "failed_message_too_long": "refreshes with a message too long for a packet of 1,400 bytes",
    "failed_timed_out": "refreshes that had not ended after `refresh_timeout_us`",
}


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """A refresh began: it will hold everything up to live packet `last`."""

    service: int
    last: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot, good for live packet `last`: `packets` hold `messages` messages, 580 first
    and 581 last. The packets' sequence number is `last` in all, their flag 0."""

    service: int
    last: int
    packets: tuple[bytes, ...]
    messages: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A refresh that had begun came to nothing; `reason` is a name of `COUNTS` after `failed_`."""

    service: int
    reason: str


RefreshEvent = SnapshotBegan | Snapshot | SnapshotFailed


class _Gathering:
    """A refresh under way: what came of it, framed into packets as it comes."""

    def __init__(self, framer: PacketFramer, room: int, last: int) -> None:
        self.last = last
        self.bytes = 0
        self.messages = 0
        self.packets: list[bytes] = []
        self._framer = framer
        self._room = room
        self._body = bytearray()
        self._count = 0

    def add(self, message: bytes) -> bool:
        """Take in a message; False where it fits into no packet."""
        size = len(message)
        if size > self._room:
            return False
        if len(self._body) + size > self._room or self._count == MESSAGES_MAX:
            self.close()
        self._body += message
        self._count += 1
        self.messages += 1
        self.bytes += size
        return True

    def close(self) -> None:
        """Frame what is open."""
        self.packets.append(self._framer.packet(self.last, bytes(self._body), self._count))
        self._body.clear()
        self._count = 0


class RefreshAssembler:
    """Assembles the snapshots of one service; see the module.

    Raises `UsageError` for a feed that has no refresh.
    """

    def __init__(self, feed: Any, service: int, settings: RecoverySettings) -> None:
        self.service = service
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        #: When `tick` wants to be called; `NEVER` while no refresh is under way.
        self.deadline_ns = NEVER
        self._feed = feed
        self._order = feed.byte_order
        self._settings = settings
        self._types = RefreshTypes(feed)
        self._header = PacketHeader()
        self._index = MessageIndex(MESSAGES_MAX)
        self._gathering: _Gathering | None = None
        self._expected: int | None = None
        self._events: list[RefreshEvent] = []

    @property
    def running(self) -> bool:
        """Is a refresh under way?"""
        return self._gathering is not None

    def take(self) -> list[RefreshEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def packet(self, data: bytes, sequence: int, now_ns: int) -> None:
        """The refresh line's next packet, `sequence` its number there."""
        self.tick(now_ns)
        self.counts["packets"] += 1
        if self._expected is not None and sequence != self._expected:
            self.gap(now_ns)
        self._expected = sequence + 1
        body = self._read(bytes(data))
        if body is not None:
            self._walk(body, now_ns)

    def gap(self, now_ns: int) -> None:
        """Packets of the line were lost."""
        self.tick(now_ns)
        self._fail("gap")

    def reset(self, now_ns: int) -> None:
        """The line's numbering begins anew; any number may come next."""
        self.tick(now_ns)
        self._expected = None
        self._fail("reset")

    def tick(self, now_ns: int) -> None:
        """Time has come to `now_ns`."""
        if now_ns >= self.deadline_ns:
            self._fail("timed_out")

    def _read(self, data: bytes) -> bytes | None:
        """The packet, inflated, its messages in the index; None where it has none to offer."""
        table, header = self._feed.table, self._header
        verdict = parse_header(table, data, 0, len(data), header)
        if verdict == Reject.FINE and header.kind != PacketKind.DATA:
            return None
        if verdict == Reject.FINE and header.service != self.service:
            self._broken("wrong_service")
            return None
        if verdict == Reject.FINE:
            verdict = scan_messages(table, data, 0, header, self._index)
        if verdict == Reject.COMPRESSED:
            inflated = self._inflate(data[header.body :])
            if inflated is None:
                return None
            data = data[: header.body] + inflated
            # As if it had come uncompressed; the length need not fit into the header's field.
            header.length, header.flags = len(data), 0
            verdict = scan_messages(table, data, 0, header, self._index)
        if verdict != Reject.FINE:
            self._broken("malformed")
            return None
        return data

    def _inflate(self, body: bytes) -> bytes | None:
        """A packet's body inflated; None where it is no zlib stream or inflates to too much."""
        most = self._settings.inflated_bytes_max
        inflater = zlib.decompressobj()
        try:
            inflated = inflater.decompress(body, most + 1)
        except zlib.error:
            self._broken("malformed")
            return None
        if len(inflated) <= most and not inflater.unused_data:
            return inflated
        self._broken("malformed" if len(inflated) <= most else "too_large_inflated")
        return None

    def _broken(self, name: str) -> None:
        """A packet that is of no use; what is under way lacks it from now on."""
        self.counts[name] += 1
        self._fail("malformed")

    def _walk(self, data: bytes, now_ns: int) -> None:
        """Every message of the packet whose index was made."""
        types, offsets, sizes = self._index.types, self._index.offsets, self._index.sizes
        start, end = self._types.start, self._types.end
        outside = False
        for place in range(self._index.count):
            code, at = types[place], offsets[place]
            message = data[at : at + sizes[place]]
            if code == start:
                self._start(message, now_ns)
            elif code == end:
                self._end(message)
            elif self._gathering is None:
                outside = True
            else:
                self._gather(message)
        self.counts["outside"] += outside

    def _start(self, message: bytes, now_ns: int) -> None:
        """Message 580."""
        if len(message) < self._types.size:
            self._broken("malformed")
            return
        if self._gathering is not None:
            self.counts["started_over"] += 1
        last = self._types.last(message, self._order)
        framer = PacketFramer(self._feed, self.service, self._header.send_time)
        room = PACKET_BYTES_MAX - self._feed.table.header_size
        self._gathering = _Gathering(framer, room, last)
        self.deadline_ns = now_ns + self._settings.refresh_timeout_us * 1000
        self.counts["began"] += 1
        self._events.append(SnapshotBegan(self.service, last))
        self._gather(message)

    def _gather(self, message: bytes) -> None:
        """One message of the refresh under way."""
        gathering = self._gathering
        assert gathering is not None
        if not gathering.add(message):
            self._fail("message_too_long")
        elif gathering.bytes > self._settings.snapshot_bytes_max:
            self._fail("too_large")

    def _end(self, message: bytes) -> None:
        """Message 581."""
        if self._gathering is None:
            self.counts["end_without_start"] += 1
        elif len(message) < self._types.size:
            self._broken("malformed")
        elif self._types.last(message, self._order) != self._gathering.last:
            self._fail("end_differs")
        else:
            self._gather(message)
            self._complete()

    def _complete(self) -> None:
        """The end was the last message; nothing where that made the snapshot too large."""
        gathering = self._gathering
        if gathering is None:
            return
        gathering.close()
        self._stop()
        self.counts["snapshots"] += 1
        packets = tuple(gathering.packets)
        self._events.append(Snapshot(self.service, gathering.last, packets, gathering.messages))

    def _fail(self, reason: str) -> None:
        """The refresh under way, if one is, has failed."""
        if self._gathering is None:
            return
        self._stop()
        self.counts[f"failed_{reason}"] += 1
        self._events.append(SnapshotFailed(self.service, reason))

    def _stop(self) -> None:
        self._gathering = None
        self.deadline_ns = NEVER
