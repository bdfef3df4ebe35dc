# cython: language_level=3, boundscheck=True, cdivision=True
"""From messages to packets on two lines, as columns: sequence numbers, times, sizes, losses.

A `Tape` has an open packet for each real-time channel. Messages are put there; a packet is cut
when it holds its limit, when the next message does not fit, or by `cut`. What is cut goes into
the block that `begin` gave: the packet's bytes into its data, and one row of columns. A caller that
puts messages looks at `full` from time to time and has the block taken away.

Channels are numbers: 0 to 6 are the services 101 to 107, 7 to 13 their refresh channels. Times are
nanoseconds after midnight, exchange time; `now_ns` is moved along by the caller. A packet leaves at
`now_ns`, or when the leased line is free again: every byte of a frame takes its time, on both
lines, and no second has more than the line carries. Line B's copy comes later by a random skew;
either copy may be lost, and is then marked.

The tape also keeps account: packets, payload bytes and messages by channel, and how soon a symbol
comes back on its service's line A (packets that A lost do not count, for no receiver sees them).
Times of messages are those of their packets, as in the source paper.
"""

from typing import TYPE_CHECKING, Any

import cython
import numpy
from cython.cimports.feedhandler.replay.generating.prng import Prng
from cython.cimports.feedhandler.replay.generating.wirebytes import copy, put2, put4

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.replay.generating.packets import PACKET_BYTES_MAX, SERVICES

if TYPE_CHECKING:
    from feedhandler.codecs import Feed

#: Real-time channels, and with their refresh channels.
REALTIME: int = len(SERVICES)
CHANNELS = 2 * REALTIME
HEADER_BYTES = 16
#: What is written into each packet's header.
HEADER_FIELDS = ("PacketLength", "PacketSeqNum", "SendTime", "NumberMsgEntries")
#: Bytes of messages in one packet at most.
ROOM = PACKET_BYTES_MAX - HEADER_BYTES
#: Messages of one packet at most: the shortest that are put there have 8 bytes.
MESSAGES_MAX = 255
#: A block is full when it has no room for so many further packets: no step makes more.
SPARE_PACKETS = 96
#: Ethernet, IPv4 and UDP headers before a payload, and the shortest frame.
FRAME_HEADERS, FRAME_BYTES_MIN = 42, 60
#: Upper edges of the interarrival histogram: 1, 2 and 5 times each power of ten, 1 us to 500 s.
EDGES_NS: tuple[int, ...] = tuple(m * 10**k for k in range(3, 12) for m in (1, 2, 5))
#: What `flags` says: the copy on line A, on line B is lost.
LOST_A, LOST_B = 1, 2

_HEADER = cython.declare(cython.int, HEADER_BYTES)
_ROOM = cython.declare(cython.int, ROOM)
_MESSAGES = cython.declare(cython.int, MESSAGES_MAX)
_SPARE = cython.declare(cython.Py_ssize_t, SPARE_PACKETS)
_PACKET_MAX = cython.declare(cython.Py_ssize_t, PACKET_BYTES_MAX)
_FRAME_HEADERS = cython.declare(cython.int, FRAME_HEADERS)
_FRAME_MIN = cython.declare(cython.int, FRAME_BYTES_MIN)
_EDGES = cython.declare(cython.Py_ssize_t, len(EDGES_NS))
_LOST_A, _LOST_B = cython.declare(cython.int, LOST_A), cython.declare(cython.int, LOST_B)

#: Columns of a block, a row a packet: line A's time, line B's, the channel, where the payload
#: begins and its length, its messages, and what was lost.
COLUMNS: dict[str, Any] = {
    "time_a_ns": numpy.int64,
    "time_b_ns": numpy.int64,
    "channel": numpy.uint8,
    "offset": numpy.uint32,
    "length": numpy.uint16,
    "messages": numpy.uint16,
    "lost": numpy.uint8,
}


@cython.final
@cython.cclass
class Tape:
    """See the module. `symbols`: how many instruments there are. `byte_ps`: picoseconds that a
    frame's byte takes on the leased line, both lines' copies together; `second_bytes`: bytes of
    frames that it carries in one second of the clock, 0 for no bound. `losses` of A and B count in
    2**32; B's skew is `skew_ns[0]` and up to `skew_ns[1]` more."""

    now_ns: Public[cython.longlong]
    free_ns: Readonly[cython.longlong]
    latest_b_ns: Readonly[cython.longlong]
    count: Readonly[cython.Py_ssize_t]
    used: Readonly[cython.Py_ssize_t]
    data_max: Readonly[cython.Py_ssize_t]
    packets_max: Readonly[cython.Py_ssize_t]
    within_1_ms: Readonly[cython.longlong]
    within_10_ms: Readonly[cython.longlong]
    repeats: Readonly[cython.longlong]
    columns: Readonly[dict]
    tables: Readonly[dict]
    last_ns: cython.longlong[::1]
    packets: cython.longlong[::1]
    bytes: cython.longlong[::1]
    messages: cython.longlong[::1]
    edges_ns: cython.longlong[::1]
    gaps: cython.longlong[::1]
    sent_ns: cython.longlong[::1]
    times_a: cython.longlong[::1]
    times_b: cython.longlong[::1]
    data: cython.uchar[::1]
    flags: cython.uchar[::1]
    headers: cython.uchar[::1]
    open_data: cython.uchar[::1]
    channels: cython.uchar[::1]
    lengths: cython.ushort[::1]
    entries: cython.ushort[::1]
    offsets: cython.uint[::1]
    sequences: cython.uint[::1]
    open_bytes: cython.int[::1]
    open_count: cython.int[::1]
    open_limit: cython.int[::1]
    open_symbols: cython.int[::1]
    symbols: cython.Py_ssize_t
    length_at: cython.Py_ssize_t
    sequence_at: cython.Py_ssize_t
    time_at: cython.Py_ssize_t
    count_at: cython.Py_ssize_t
    prng: Prng
    loss_a: cython.uint
    loss_b: cython.uint
    skew_ns_min: cython.int
    skew_ns_spread: cython.int
    byte_ps: cython.longlong
    second_bytes: cython.longlong
    second: cython.longlong
    carried: cython.longlong

    def __init__(
        self, feed: "Feed", symbols: int, prng: Prng, *, byte_ps: int = 0, second_bytes: int = 0,
        losses: tuple[int, int] = (0, 0), skew_ns: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.symbols, self.prng, self.byte_ps = symbols, prng, byte_ps
        self.second_bytes, self.second, self.carried = second_bytes, -1, 0
        self.loss_a, self.loss_b = losses
        self.skew_ns_min, self.skew_ns_spread = skew_ns
        self.now_ns = self.free_ns = self.latest_b_ns = 0
        self.within_1_ms = self.within_10_ms = self.repeats = 0
        self.length_at, self.sequence_at, self.time_at, self.count_at = _header_offsets(feed)
        self.headers = memoryview(_headers(feed))
        self.tables: dict[str, Any] = {
            "packets": numpy.zeros(CHANNELS, numpy.int64),
            "bytes": numpy.zeros(CHANNELS, numpy.int64),
            "messages": numpy.zeros(CHANNELS, numpy.int64),
            "gaps": numpy.zeros((REALTIME, len(EDGES_NS) + 1), numpy.int64),
            "sequences": numpy.ones(CHANNELS, numpy.uintc),
            "last_ns": numpy.full(REALTIME * symbols, -1, numpy.int64),
            "sent_ns": numpy.zeros(CHANNELS, numpy.int64),
        }
        tables = self.tables
        self.packets, self.bytes = memoryview(tables["packets"]), memoryview(tables["bytes"])
        self.messages = memoryview(tables["messages"])
        self.gaps = memoryview(tables["gaps"].reshape(-1))
        self.sequences = memoryview(tables["sequences"])
        self.last_ns, self.sent_ns = memoryview(tables["last_ns"]), memoryview(tables["sent_ns"])
        self.edges_ns = memoryview(numpy.array(EDGES_NS, numpy.int64))
        self.open_data = memoryview(numpy.zeros(REALTIME * PACKET_BYTES_MAX, numpy.uint8))
        self.open_bytes = memoryview(numpy.zeros(REALTIME, numpy.intc))
        self.open_count = memoryview(numpy.zeros(REALTIME, numpy.intc))
        self.open_limit = memoryview(numpy.full(REALTIME, MESSAGES_MAX, numpy.intc))
        self.open_symbols = memoryview(numpy.zeros(REALTIME * MESSAGES_MAX, numpy.intc))
        self.count = self.used = self.data_max = self.packets_max = 0

    def begin(self, data, columns: dict) -> cython.int:
        """Cut into `data` (uint8) and `columns` (`COLUMNS`, all of one length) from now on."""
        self.columns = columns
        self.data = memoryview(data)
        self.times_a, self.times_b = (
            memoryview(columns["time_a_ns"]),
            memoryview(columns["time_b_ns"]),
        )
        self.channels, self.flags = memoryview(columns["channel"]), memoryview(columns["lost"])
        self.offsets, self.lengths = memoryview(columns["offset"]), memoryview(columns["length"])
        self.entries = memoryview(columns["messages"])
        self.count = self.used = 0
        self.data_max, self.packets_max = len(self.data), len(self.flags)
        return 0

    def full(self) -> cython.bint:
        """Return whether the block should be taken away before more is put."""
        return (
            self.count + _SPARE > self.packets_max
            or self.used + _SPARE * _PACKET_MAX > self.data_max
        )

    def set_limit(self, channel: int, messages: int) -> None:
        """Cut the channel's packets at so many messages from now on."""
        self.open_limit[channel] = messages

    def set_sequence(self, channel: int, sequence: int) -> None:
        """Set the number of the channel's next packet."""
        self.sequences[channel] = sequence

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def milliseconds(self) -> cython.longlong:
        """Return the SourceTime of the present event."""
        return self.now_ns // 1_000_000 % 86_400_000

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def microseconds(self) -> cython.longlong:
        """Return the SourceTimeMicroSecs of the present event."""
        return self.now_ns // 1_000 % 1_000

    def put(
        self,
        channel: cython.int,
        source: cython.uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.int,
        symbol: cython.int,
    ) -> cython.int:
        """Put `source[at:at + size]`, a whole message of the instrument `symbol` (its number in
        the listing, -1 for none), into the channel's open packet."""
        if self.open_bytes[channel] + size > _ROOM:
            self.cut(channel)
        count: cython.int = self.open_count[channel]
        copy(self.open_data, channel * _PACKET_MAX + self.open_bytes[channel], source, at, size)
        self.open_symbols[channel * _MESSAGES + count] = symbol
        self.open_bytes[channel] += size
        self.open_count[channel] = count + 1
        if count + 1 >= self.open_limit[channel]:
            self.cut(channel)
        return 0

    def cut(self, channel: cython.int) -> cython.int:
        """Send the channel's open packet, if it holds anything."""
        count: cython.int = self.open_count[channel]
        if count == 0:
            return 0
        size: cython.int = self.open_bytes[channel]
        self.open_count[channel] = self.open_bytes[channel] = 0
        self.send(channel, self.open_data, channel * _PACKET_MAX, size, count)
        if not self.flags[self.count - 1] & _LOST_A:
            time_ns: cython.longlong = self.times_a[self.count - 1]
            self.open_count[channel] = count
            self._gaps_of(channel, time_ns)
            self.open_count[channel] = 0
        return 0

    def send(
        self,
        channel: cython.int,
        source: cython.uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.int,
        count: cython.int,
    ) -> cython.int:
        """Send `source[at:at + size]`, the body of a packet with `count` messages."""
        time_ns: cython.longlong = self._leaves(_HEADER + size)
        index: cython.Py_ssize_t = self.used
        copy(self.data, index, self.headers, channel * _HEADER, _HEADER)
        put2(self.data, index + self.length_at, _HEADER + size)
        put4(self.data, index + self.sequence_at, self.sequences[channel])
        put4(self.data, index + self.time_at, time_ns // 1_000_000 % 86_400_000)
        self.data[index + self.count_at] = count
        copy(self.data, index + _HEADER, source, at, size)
        self.sequences[channel] += 1
        return self._record(channel, time_ns, _HEADER + size, count)

    def control(self, channel: cython.int, packet, number: cython.uint) -> cython.int:
        """Send a packet that is whole but for its send time and `number`, what it says of the
        sequence; it takes no sequence number."""
        i: cython.Py_ssize_t
        time_ns: cython.longlong = self._leaves(len(packet))
        for i in range(len(packet)):
            self.data[self.used + i] = packet[i]
        put4(self.data, self.used + self.sequence_at, number)
        put4(self.data, self.used + self.time_at, time_ns // 1_000_000 % 86_400_000)
        return self._record(channel, time_ns, len(packet), 0)

    @cython.cfunc
    @cython.exceptval(check=True)
    def _leaves(self, size: cython.int) -> cython.longlong:
        """Return when a packet of `size` bytes leaves: now, when the line is free, or with the next
        second where this one has carried what it may."""
        time_ns: cython.longlong = self.now_ns if self.now_ns > self.free_ns else self.free_ns
        if self.second_bytes:
            bytes_: cython.longlong = 2 * (size + _FRAME_HEADERS)
            second: cython.longlong = time_ns // 1_000_000_000
            if second == self.second and self.carried + bytes_ > self.second_bytes:
                second += 1
                time_ns = second * 1_000_000_000
            if second != self.second:
                self.second, self.carried = second, 0
            self.carried += bytes_
        return time_ns

    def _record(
        self, channel: cython.int, time_ns: cython.longlong, size: cython.int, count: cython.int
    ) -> cython.int:
        """Append the row of the packet of `size` bytes at the end of the data."""
        row: cython.Py_ssize_t = self.count
        frame: cython.longlong = size + _FRAME_HEADERS
        if frame < _FRAME_MIN:
            frame = _FRAME_MIN
        self.free_ns = time_ns + frame * self.byte_ps // 1000
        # Now and then a switch on the way is busy.
        skew: cython.longlong = self.prng.below(self.skew_ns_spread)
        if skew & 127 == 127:
            skew *= 8
        lost: cython.int = 0
        if self.loss_a and self.prng.next_u32() < self.loss_a:
            lost |= _LOST_A
        if self.loss_b and self.prng.next_u32() < self.loss_b:
            lost |= _LOST_B
        self.times_a[row] = time_ns
        # A line does not overtake itself.
        self.latest_b_ns = max(self.latest_b_ns, time_ns + self.skew_ns_min + skew)
        self.times_b[row] = self.latest_b_ns
        self.channels[row], self.flags[row] = channel, lost
        self.offsets[row], self.lengths[row] = self.used, size
        self.entries[row] = count
        self.packets[channel] += 1
        self.bytes[channel] += size
        self.messages[channel] += count
        self.sent_ns[channel] = time_ns
        self.used += size
        self.count = row + 1
        return 0

    def _gaps_of(self, channel: cython.int, time_ns: cython.longlong) -> cython.int:
        """Count the time since the same symbol's last message, for all of the open packet."""
        i: cython.Py_ssize_t
        for i in range(self.open_count[channel]):
            index: cython.Py_ssize_t = self.open_symbols[channel * _MESSAGES + i]
            if index < 0:
                continue
            index += channel * self.symbols
            gap: cython.longlong = time_ns - self.last_ns[index]
            if self.last_ns[index] >= 0:
                self.repeats += 1
                edge: cython.Py_ssize_t = 0
                if gap <= 1_000_000:
                    self.within_1_ms += 1
                elif gap > 10_000_000:
                    edge = 13
                if gap <= 10_000_000:
                    self.within_10_ms += 1
                while edge < _EDGES and gap > self.edges_ns[edge]:
                    edge += 1
                self.gaps[channel * (_EDGES + 1) + edge] += 1
            self.last_ns[index] = time_ns
        return 0


def _header_offsets(feed: Any) -> list[int]:
    """Return the offsets of the header fields that change. Raises `UsageError` for other feeds."""
    offsets = {field.wire: field.at for field in feed.header.fields}
    if any(name not in offsets for name in HEADER_FIELDS):
        raise UsageError(
            f"the header of {feed.name} is not UTP-MD's", "generate sessions of euronext-utp-md"
        )
    return [offsets[name] for name in HEADER_FIELDS]


def _headers(feed: Any) -> numpy.ndarray:
    """Build the channels' packet headers, 16 bytes each; refreshes have the compressed flag."""
    flag = feed.description.packet.compressed_flags[0]
    headers = [
        feed.encode_packet(service=service, flags=flags)[:HEADER_BYTES]
        for flags in (0, flag)
        for service in SERVICES
    ]
    return numpy.frombuffer(b"".join(headers), numpy.uint8).copy()
