# cython: annotation_typing=False
"""Assembly of snapshots from the refresh packets of one service.

A `RefreshAssembler` is fed with the packets of a service's refresh line in order; arbitration has
merged the lines A and B before. It gathers the messages from message 580 to message 581; a whole
snapshot is returned as packets of at most 1,400 bytes, inflated, the start and end messages in
them.

It promises never to raise for what a peer sent, to hold at most `snapshot_bytes_max` bytes, to
inflate no packet beyond `inflated_bytes_max` (and to stop inflating there), and to come to an
outcome within `refresh_timeout_us` of a start. Every outcome is returned once by `take` and counted
by name in `counts`:

* `SnapshotBegan` at a start. A start while one runs starts over: what was gathered is dropped.
* `Snapshot` at an end whose LastSeqNum equals the start's.
* `SnapshotFailed` for a packet missing or broken in between, an end that names another LastSeqNum,
  a snapshot too large, a reset of the line's numbers, or time that has run out.

After a failure it waits for the next start. What comes outside a refresh is dropped: a line that is
joined in the middle of a cycle brings the rest of that cycle first. An end without a start is
counted.

Sans-IO: the time is an argument, `deadline_ns` says when `tick` must be called.

Compiled, since cyclic snapshots come all day whether or not one is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cython
from cython.cimports.feedhandler.codecs.feed_table import MessageIndex
from cython.cimports.feedhandler.retrans.refresh_packets import RefreshReader
from cython.cimports.feedhandler.retrans.snapshots import PacketFramer

from feedhandler.codecs.visibility import Readonly
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import MESSAGES_MAX, PACKET_BYTES_MAX, RefreshTypes

#: A deadline that never comes.
NEVER = (1 << 63) - 1
#: The same two for C.
_NEVER = cython.declare(cython.longlong, NEVER)
_MESSAGES_MAX = cython.declare(cython.int, MESSAGES_MAX)

#: The keys of `RefreshAssembler.counts`, and what each counts.
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
    "failed_reset": "refreshes that failed because the line began a new sequence epoch",
    "failed_malformed": "refreshes that failed because a packet of theirs could not be read",
    "failed_end_differs": "refreshes whose end named another LastSeqNum than the start",
    "failed_too_large": "refreshes of more than `snapshot_bytes_max` bytes",
    "failed_message_too_long": "refreshes with a message too long for a packet of 1,400 bytes",
    "failed_timed_out": "refreshes that had not ended after `refresh_timeout_us`",
}


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """A refresh has begun; it will hold the state up to live packet `last`."""

    service: int
    last: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot, valid up to live packet `last`; parts of it may reach as far as `highest`
    (0: none does), each symbol as far as `reaches` says where that is known.

    `packets` hold `messages` messages, 580 first and 581 last. All packets have the sequence number
    `last`, the flag 0 and the raw `send_time` of the packet that brought the start.
    """

    service: int
    last: int
    packets: tuple[bytes, ...]
    messages: int
    send_time: int
    highest: int = 0
    reaches: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A refresh that had begun has failed; `reason` is a name of `COUNTS` without its `failed_`."""

    service: int
    reason: str


RefreshEvent = SnapshotBegan | Snapshot | SnapshotFailed


@cython.final
@cython.cclass
class _Gathering:
    """A refresh under way: its messages so far, framed into packets as they come.

    Messages that follow one another in a packet are copied as one stretch.
    """

    last: Readonly[object]
    send_time: Readonly[object]
    bytes: Readonly[cython.Py_ssize_t]
    messages: Readonly[cython.Py_ssize_t]
    packets: Readonly[list]
    _framer: PacketFramer
    _body: bytearray
    _data: bytes
    _room: cython.Py_ssize_t
    _used: cython.Py_ssize_t
    _from: cython.Py_ssize_t
    _to: cython.Py_ssize_t
    _count: cython.int

    def __init__(self, framer: PacketFramer, room: int, last: int, send_time: int) -> None:
        self.last = last
        self.send_time = send_time
        self.bytes = 0
        self.messages = 0
        self.packets: list[bytes] = []
        self._framer = framer
        self._room = room
        self._body = bytearray()
        self._used = 0
        self._count = 0
        #: The packet of the stretch that is not copied yet, and the stretch's bounds in it.
        self._data = b""
        self._from = self._to = 0

    @cython.locals(at=cython.Py_ssize_t, size=cython.Py_ssize_t)
    @cython.returns(cython.bint)
    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def add(self, data: bytes, at: int, size: int) -> bool:
        """Add the message at `data[at:at + size]`; return False where it fits into no packet."""
        if size > self._room:
            return False
        if self._used + size > self._room or self._count == _MESSAGES_MAX:
            self.close()
        if data is not self._data or at != self._to:
            self._copy()
            self._data, self._from = data, at
        self._to = at + size
        self._used += size
        self._count += 1
        self.messages += 1
        self.bytes += size
        return True

    @cython.cfunc
    def close(self) -> None:
        """Frame the messages gathered since the last packet."""
        self._copy()
        self.packets.append(self._framer.packet(self.last, self._body, self._count))
        self._body.clear()
        self._used = self._count = 0

    @cython.cfunc
    def _copy(self) -> None:
        if self._from < self._to:
            self._body += self._data[self._from : self._to]
        self._from = self._to


@cython.final
@cython.cclass
class RefreshAssembler:
    """Assembles the snapshots of one service; see the module.

    Raises `UsageError` for a feed that has no refresh.
    """

    service: Readonly[object]
    counts: Readonly[dict]
    deadline_ns: Readonly[cython.longlong]
    _feed: object
    _order: object
    _settings: object
    _types: object
    _expected: object
    _reader: RefreshReader
    _gathering: _Gathering
    _events: list
    _start_code: cython.int
    _end_code: cython.int
    _room: cython.Py_ssize_t
    _bytes_max: cython.longlong

    def __init__(self, feed: Any, service: int, settings: RecoverySettings) -> None:
        self.service = service
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        #: When `tick` must be called; `NEVER` while no refresh is under way.
        self.deadline_ns = NEVER
        self._feed = feed
        self._order = feed.byte_order
        self._settings = settings
        self._types = RefreshTypes(feed)
        self._start_code, self._end_code = self._types.start, self._types.end
        self._room = PACKET_BYTES_MAX - feed.table.header_size
        self._bytes_max = settings.snapshot_bytes_max
        self._reader = RefreshReader(feed, settings.inflated_bytes_max)
        self._gathering: _Gathering | None = None
        self._expected: int | None = None
        self._events: list[RefreshEvent] = []

    @property
    def running(self) -> bool:
        """Whether a refresh is under way."""
        return self._gathering is not None

    @cython.returns(list)
    @cython.ccall
    def pop_events(self) -> list[RefreshEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def packet(self, data: bytes, sequence: int, now_ns: int) -> None:
        """Take in the refresh line's next packet, with its `sequence` number on that line."""
        self.tick(now_ns)
        self.counts["packets"] += 1
        if self._expected is not None and sequence != self._expected:
            self.gap(now_ns)
        self._expected = sequence + 1
        body = self._read(bytes(data))
        if body is not None:
            self._walk(body, now_ns)

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def gap(self, now_ns: int) -> None:
        """Fail the refresh under way, as packets of the line were lost."""
        self.tick(now_ns)
        self._fail("gap")

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def reset(self, now_ns: int) -> None:
        """Fail the refresh under way, as its line's numbers begin anew; any may follow."""
        self.tick(now_ns)
        self._expected = None
        self._fail("reset")

    @cython.locals(now_ns=cython.longlong)
    @cython.ccall
    def tick(self, now_ns: int) -> None:
        """Fail the refresh under way where its time has run out."""
        if now_ns >= self.deadline_ns:
            self._fail("timed_out")

    @cython.locals(data=bytes)
    @cython.returns(bytes)
    @cython.cfunc
    def _read(self, data: bytes) -> bytes | None:
        """Inflate a packet and index its messages; return None where none are of use."""
        body = self._reader.read(data)
        if self._reader.fault:
            self._broken(self._reader.fault)
        elif body is not None and self._reader.header.service != self.service:
            self._broken("wrong_service")
            return None
        return body

    @cython.cfunc
    def _broken(self, name: str) -> None:
        """Count a useless packet under `name`, and fail the refresh under way, which lacks it."""
        self.counts[name] += 1
        self._fail("malformed")

    @cython.locals(
        now_ns=cython.longlong,
        index=MessageIndex,
        types=cython.ushort[::1],
        offsets=cython.uint[::1],
        sizes=cython.uint[::1],
        i=cython.Py_ssize_t,
        at=cython.Py_ssize_t,
        size=cython.Py_ssize_t,
        code=cython.int,
        outside=cython.bint,
    )
    @cython.cfunc
    def _walk(self, data: bytes, now_ns: int) -> None:
        """Handle every message of the packet that was just indexed."""
        index = self._reader.index
        types, offsets, sizes = index.types, index.offsets, index.sizes
        outside = False
        for i in range(index.count):
            code, at, size = types[i], offsets[i], sizes[i]
            if code == self._start_code:
                self._start(data, at, size, now_ns)
            elif code == self._end_code:
                self._end(data, at, size)
            elif self._gathering is None:
                outside = True
            else:
                self._gather(data, at, size)
        self.counts["outside"] += outside

    @cython.locals(at=cython.Py_ssize_t, size=cython.Py_ssize_t, now_ns=cython.longlong)
    @cython.cfunc
    def _start(self, data: bytes, at: int, size: int, now_ns: int) -> None:
        """Begin a refresh at message 580; one under way is dropped and counted."""
        if size < self._types.size:
            self._broken("malformed")
            return
        if self._gathering is not None:
            self.counts["started_over"] += 1
        last = self._types.last(data[at : at + size], self._order)
        send_time = self._reader.header.send_time
        framer = PacketFramer(self._feed, self.service, send_time)
        self._gathering = _Gathering(framer, self._room, last, send_time)
        self.deadline_ns = now_ns + self._settings.refresh_timeout_us * 1000
        self.counts["began"] += 1
        self._events.append(SnapshotBegan(self.service, last))
        self._gather(data, at, size)

    @cython.locals(at=cython.Py_ssize_t, size=cython.Py_ssize_t)
    @cython.cfunc
    def _gather(self, data: bytes, at: int, size: int) -> None:
        """Add one message to the refresh under way, or fail it where a bound is exceeded."""
        gathering = self._gathering
        assert gathering is not None
        if not gathering.add(data, at, size):
            self._fail("message_too_long")
        elif gathering.bytes > self._bytes_max:
            self._fail("too_large")

    @cython.locals(at=cython.Py_ssize_t, size=cython.Py_ssize_t)
    @cython.cfunc
    def _end(self, data: bytes, at: int, size: int) -> None:
        """Complete the refresh at message 581; fail it where LastSeqNum is not the start's."""
        if self._gathering is None:
            self.counts["end_without_start"] += 1
        elif size < self._types.size:
            self._broken("malformed")
        elif self._types.last(data[at : at + size], self._order) != self._gathering.last:
            self._fail("end_differs")
        else:
            self._gather(data, at, size)
            self._complete()

    @cython.cfunc
    def _complete(self) -> None:
        """Emit the snapshot, unless its last message has just made it too large."""
        gathering = self._gathering
        if gathering is None:
            return
        gathering.close()
        self._stop()
        self.counts["snapshots"] += 1
        packets = tuple(gathering.packets)
        self._events.append(
            Snapshot(self.service, gathering.last, packets, gathering.messages, gathering.send_time)
        )

    @cython.cfunc
    def _fail(self, reason: str) -> None:
        """Fail the refresh under way, if there is one."""
        if self._gathering is None:
            return
        self._stop()
        self.counts[f"failed_{reason}"] += 1
        self._events.append(SnapshotFailed(self.service, reason))

    @cython.cfunc
    def _stop(self) -> None:
        self._gathering = None
        self.deadline_ns = _NEVER
