# cython: initializedcheck=False
# (Every view is made in `__init__`.)
"""The content of one stretch of a capture, counted in one compiled walk; no I/O, mergeable.

`Tally.count` walks datagrams given as columns: packet header, then the messages where they are
wanted. It keeps only what `digest` can merge with the next stretch's; of that, only the
milliseconds with packets grow with the capture:

- *channels*: a service on one group and port, its refresh packets apart. Totals, and totals by
  minute. A packet whose body is compressed is a refresh packet: no other is sent so.
- *millisecond buckets*: each millisecond in which packets came, of all channels together
  (`millisecond_buckets`).
- *runs*: the numbers that a channel brought, as ranges. A reset or a new session that goes back
  begins a new *epoch*; the state at the stretch's begin is kept, so that `digest` can number them.
- *cells*: a channel and a message type, with counts and bytes.
- `interarrival` and `skew`, see there.

A FIX datagram may hold several runs of messages: each counts as a packet, the first of them with
what the capture file has beside the payload. A GapFill counts among the controls, and its numbers
are no loss.

Bytes are counted two ways: the UDP payload, and what a classic capture file has of the packet (the
frame as captured and 16 bytes before it). A datagram whose header is not of the feed is counted by
reason and is in no channel; a packet whose messages are not whole stays counted as a packet.
"""

import cython
import numpy as np
from cython.cimports.feedhandler.characterise.interarrival import Interarrival
from cython.cimports.feedhandler.characterise.skew import Skew
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import CONTROL, DATA, FINE, RESET, SKIP
from cython.cimports.feedhandler.codecs.scanner import parse_header, parse_next, scan_messages

from feedhandler.characterise.millisecond_buckets import compact
from feedhandler.characterise.skew import CHANNELS_MAX

if cython.compiled:
    from cython.cimports.feedhandler.codecs.scanner import parse_header_at

from feedhandler.codecs.scanner import REJECT_COUNT
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES

#: Message types that are counted apart; those beyond are counted as one.
TYPES_MAX = 512
MILLISECOND_NS, MINUTE_NS = 1_000_000, 60_000_000_000

#: A reset that leads back less far than this keeps the sequence epoch: packets overtook it.
STRAY_MAX = 1_024

#: The columns of a channel's totals.
TOTALS = (
    "packets",
    "payload_bytes",
    "file_bytes",
    "messages",
    "read_messages",
    "message_bytes",
    "data",
    "heartbeats",
    "resets",
    "controls",
    "unsequenced",
    "broken",
    "first_ns",
    "last_ns",
)
#: Kinds of packets; their counts are in the totals from `data` on.
KINDS = 5

_KINDS = cython.declare(cython.Py_ssize_t, KINDS)
_CHANNELS_MAX = cython.declare(cython.int, CHANNELS_MAX)
_TYPES_MAX = cython.declare(cython.int, TYPES_MAX)
#: The log2 of the hash table's slots: four for each channel.
SLOT_BITS = 10
assert 1 << SLOT_BITS == 4 * CHANNELS_MAX
_SLOT_SHIFT = cython.declare(cython.int, 64 - SLOT_BITS)
_SLOT_MASK = cython.declare(cython.Py_ssize_t, (1 << SLOT_BITS) - 1)
#: Spreads neighbouring groups and ports over the table (the golden ratio's fraction).
_FACTOR = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
#: Before any time, and behind all.
_NEVER = cython.declare(cython.longlong, 1 << 62)
_RECORD_HEADER = cython.declare(cython.longlong, RECORD_HEADER_BYTES)
_STRAY_MAX = cython.declare(cython.ulonglong, STRAY_MAX)
_MILLISECOND = cython.declare(cython.longlong, MILLISECOND_NS)
_MINUTE = cython.declare(cython.longlong, MINUTE_NS)
_FIRST_ROOM = 4_096


@cython.final
@cython.cclass
class Tally:
    """The counts of one stretch; see the module's text.

    `table`: the feed's. `messages`: whether messages are walked; else their number is the headers'.
    `channel_keys`: where packets name no service, by group and port (`group << 16 | port`) the
    channel whose numbers they carry (`channels`). `foreign`: datagrams that are no packets of the
    feed, by `Reject`; `channel_overflow`: packets of channels beyond `CHANNELS_MAX`.
    """

    interarrival: Readonly[Interarrival]
    skew: Readonly[Skew]
    channels: Public[cython.Py_ssize_t]
    cells: Public[cython.Py_ssize_t]
    types: Public[cython.Py_ssize_t]
    buckets: Public[cython.Py_ssize_t]
    minutes: Public[cython.Py_ssize_t]
    runs: Public[cython.Py_ssize_t]
    _room: cython.Py_ssize_t
    channel_overflow: Public[cython.longlong]
    foreign: Public[cython.longlong[::1]]
    _table: FeedTable
    _header: PacketHeader
    _index: MessageIndex
    _with_messages: cython.bint
    _channel_keys: object
    _slots: cython.int[::1]
    _lines: cython.ulonglong[::1]
    _services: cython.uint[::1]
    _skew_indexes: cython.int[::1]
    _payload: cython.longlong[::1]
    _on_file: cython.longlong[::1]
    _counted: cython.longlong[::1]
    _totals: cython.longlong[:, ::1]
    _kinds: cython.longlong[::1]
    _broken: cython.longlong[::1]
    _first_ns: cython.longlong[::1]
    _last_ns: cython.longlong[::1]
    _run_first: cython.ulonglong[::1]
    _run_after: cython.ulonglong[::1]
    _first_session: cython.ulonglong[::1]
    _session: cython.ulonglong[::1]
    _reset_to: cython.ulonglong[::1]
    _reached: cython.ulonglong[::1]
    _epochs: cython.longlong[::1]
    _moment_from: cython.longlong
    _moment_until: cython.longlong
    _minute_from: cython.longlong
    _minute_until: cython.longlong
    _latest_ns: cython.longlong
    _moment_packets: cython.longlong
    _moment_payload: cython.longlong
    _moment_file: cython.longlong
    _type_indexes: cython.int[::1]
    _type_codes: cython.int[::1]
    _cell_of: cython.int[:, ::1]
    _cells: cython.longlong[:, ::1]
    _buckets: cython.longlong[:, ::1]
    _minutes: cython.longlong[:, ::1]
    _runs: cython.ulonglong[:, ::1]

    def __init__(
        self, table: FeedTable, messages: bool = True, channel_keys: dict[int, int] | None = None
    ) -> None:
        self._table = table
        self._channel_keys = channel_keys
        self._with_messages = messages
        self._header = PacketHeader()
        self._index = MessageIndex()
        self.interarrival = Interarrival()
        self.skew = Skew()
        self.channels = self.cells = self.types = 0
        self.channel_overflow = 0
        self.foreign = memoryview(np.zeros(REJECT_COUNT, np.int64))
        self._allot_channels()
        self._type_indexes = memoryview(np.full(65_536, -1, np.int32))
        self._type_codes = memoryview(np.zeros(TYPES_MAX, np.int32))
        self._cell_of = memoryview(np.full((CHANNELS_MAX, TYPES_MAX), -1, np.int32))
        self._cells = memoryview(np.zeros((4, 64), np.int64))
        self._buckets = memoryview(np.zeros((4, _FIRST_ROOM), np.int64))
        self._minutes = memoryview(np.zeros((6, _FIRST_ROOM), np.int64))
        self._runs = memoryview(np.zeros((4, _FIRST_ROOM), np.uint64))
        self.buckets = self.minutes = self.runs = 0
        self._room = _FIRST_ROOM
        # The current millisecond: its begin and end, and its counts; likewise the current minute.
        self._moment_from = self._moment_until = _NEVER
        self._moment_packets = self._moment_payload = self._moment_file = 0
        self._minute_from = self._minute_until = _NEVER
        self._latest_ns = -_NEVER

    def _allot_channels(self) -> None:
        room = CHANNELS_MAX
        self._slots = memoryview(np.full(1 << SLOT_BITS, -1, np.int32))
        self._lines = memoryview(np.zeros(room, np.uint64))
        self._services = memoryview(np.zeros(room, np.uint32))
        self._skew_indexes = memoryview(np.zeros(room, np.int32))
        # Of the current minute, and by kind of packet: what `_close_minute` adds to the
        # totals. One array a column: indexing then takes one bounds check.
        self._payload = memoryview(np.zeros(room, np.int64))
        self._on_file = memoryview(np.zeros(room, np.int64))
        self._counted = memoryview(np.zeros(room, np.int64))
        self._kinds = memoryview(np.zeros(KINDS * room, np.int64))
        self._totals = memoryview(np.zeros((4 + KINDS, room), np.int64))
        self._broken = memoryview(np.zeros(room, np.int64))
        self._first_ns = memoryview(np.zeros(room, np.int64))
        self._last_ns = memoryview(np.zeros(room, np.int64))
        # the current run: its first number, the number after its last
        self._run_first = memoryview(np.zeros(room, np.uint64))
        self._run_after = memoryview(np.zeros(room, np.uint64))
        # session of the first packet and of the latest; the number that a reset at the very
        # beginning leads to, plus 1 (0: there was none); the number after the latest packet
        self._first_session = memoryview(np.zeros(room, np.uint64))
        self._session = memoryview(np.zeros(room, np.uint64))
        self._reset_to = memoryview(np.zeros(room, np.uint64))
        self._reached = memoryview(np.zeros(room, np.uint64))
        self._epochs = memoryview(np.zeros(room, np.int64))

    def count(
        self, data: np.ndarray, offset: np.ndarray, length: np.ndarray, frame_length: np.ndarray,
        time_ns: np.ndarray, destination: np.ndarray, port: np.ndarray,
    ) -> None:  # fmt: skip
        """Count the datagrams `data[offset[i]:offset[i] + length[i]]`, in the capture's order.

        The columns are a `DatagramBatch`'s. Raises `ValueError` where one is shorter than `offset`.
        """
        self._reserve(len(offset))
        self._count(
            memoryview(data),
            memoryview(offset),
            memoryview(length),
            memoryview(frame_length),
            memoryview(time_ns),
            memoryview(destination),
            memoryview(port),
        )

    @cython.boundscheck(False)  # the first lines check that columns are long enough
    def _count(
        self,
        data: cython.const_uchar[::1],
        offset: cython.const_uint[::1],
        length: cython.const_uint[::1],
        frame_length: cython.const_uint[::1],
        time_ns: cython.const_longlong[::1],
        destination: cython.const_uint[::1],
        port: cython.const_ushort[::1],
    ) -> cython.int:
        row: cython.Py_ssize_t
        rows: cython.Py_ssize_t = len(offset)
        if rows > min(len(length), len(frame_length), len(time_ns), len(destination), len(port)):
            raise ValueError("columns of different lengths")
        room: cython.Py_ssize_t = len(data)
        if cython.compiled:
            first: cython.p_const_uchar = cython.address(data[0])
        with cython.nogil:
            for row in range(rows):
                if self._table.several:
                    self._several(
                        data, offset[row], length[row], frame_length[row], time_ns[row],
                        destination[row], port[row],
                    )  # fmt: skip
                    continue
                if cython.compiled:
                    verdict: cython.int = parse_header_at(
                        self._table,
                        first + offset[row],
                        room - offset[row],
                        length[row],
                        self._header,
                    )
                else:
                    verdict = parse_header(
                        self._table, data, offset[row], length[row], self._header
                    )
                if verdict != FINE:
                    self.foreign[verdict] += 1
                    continue
                channel: cython.int = self._channel(destination[row], port[row], time_ns[row])
                if channel < 0:
                    self.channel_overflow += 1
                    continue
                self._packet(channel, length[row], _RECORD_HEADER + frame_length[row], time_ns[row])
                if self._with_messages and self._header.count:
                    self._messages(channel, data, offset[row], time_ns[row])
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _several(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        on_file: cython.longlong,
        time_ns: cython.longlong,
        group: cython.uint,
        port: cython.ushort,
    ) -> cython.int:
        """Count the packets of a datagram that may hold several, up to one that is malformed."""
        end: cython.Py_ssize_t = start + size
        on_file += _RECORD_HEADER
        while True:
            verdict: cython.int = parse_next(self._table, data, start, end - start, self._header)
            if verdict != FINE:
                self.foreign[verdict] += 1
                return 0
            channel: cython.int = self._channel(group, port, time_ns)
            if channel < 0:
                self.channel_overflow += 1
                return 0
            self._packet(channel, self._header.length, on_file, time_ns)
            on_file = 0
            if self._with_messages and self._header.count:
                self._messages(channel, data, start, time_ns)
            start += self._header.length
            if start >= end:
                return 0

    def _reserve(self, packets: cython.Py_ssize_t) -> None:
        """Make room for what so many packets may add, and each channel's current minute and run.

        Where datagrams hold several packets that is not all: `_close_minute` and `_close_run` make
        room themselves then.
        """
        packets += CHANNELS_MAX
        used: cython.Py_ssize_t = max(self.buckets, self.minutes, self.runs)
        if used + packets <= self._room:
            return
        self._buckets = _grown(self._buckets, self.buckets, packets)
        self._minutes = _grown(self._minutes, self.minutes, packets)
        self._runs = _grown(self._runs, self.runs, packets)
        self._room = min(self._buckets.shape[1], self._minutes.shape[1], self._runs.shape[1])

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.boundscheck(False)  # slots are masked, and each holds a channel
    @cython.exceptval(-2, check=True)
    def _channel(
        self, group: cython.ulonglong, port: cython.ulonglong, time_ns: cython.longlong
    ) -> cython.int:
        """Return the channel of the packet whose header was read, or -1 if there is no room."""
        refresh: cython.ulonglong = (
            self._header.count > 0 and self._table.compressed[self._header.flags & 0xFF] != 0
        )
        line: cython.ulonglong = (group << 17) | (port << 1) | refresh
        service: cython.uint = self._header.service
        mixed: cython.ulonglong = line ^ (cython.cast(cython.ulonglong, service) << 48)
        mixed = mixed * _FACTOR
        if not cython.compiled:
            mixed &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        index: cython.Py_ssize_t = mixed >> _SLOT_SHIFT
        channel: cython.int = self._slots[index]
        while channel >= 0:
            if self._lines[channel] == line and self._services[channel] == service:
                return channel
            index = (index + 1) & _SLOT_MASK
            channel = self._slots[index]
        if self.channels == _CHANNELS_MAX:
            return -1
        return self._new_channel(index, line, time_ns)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _new_channel(
        self, index: cython.Py_ssize_t, line: cython.ulonglong, time_ns: cython.longlong
    ) -> cython.int:
        channel: cython.int = self.channels
        self._slots[index] = channel
        self._lines[channel] = line
        self._services[channel] = self._header.service
        self._first_ns[channel] = self._last_ns[channel] = time_ns
        self._first_session[channel] = self._session[channel] = self._header.session
        with cython.gil:
            self._skew_indexes[channel] = self._skew_index(channel)
        self.channels += 1
        return channel

    def _skew_index(self, channel: cython.int) -> int:
        """Return the index under which the skew of a channel's numbers is counted."""
        for other in range(channel):
            if self._key(other) == self._key(channel):
                return self._skew_indexes[other]
        return self.skew.add_service()

    def _key(self, channel: cython.int) -> int:
        """Return whose numbers a channel carries: its service, or with a map its channel number."""
        if self._channel_keys is None:
            return self._services[channel]
        endpoint = self._lines[channel] >> 1
        return self._channel_keys.get(endpoint, endpoint)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.boundscheck(False)  # `channel` is one of ours, and a kind one of `KINDS`
    @cython.exceptval(-1, check=True)
    def _packet(
        self,
        channel: cython.int,
        length: cython.longlong,
        on_file: cython.longlong,
        time_ns: cython.longlong,
    ) -> cython.int:
        """Count a packet whose header is in `_header`."""
        kind: cython.int = self._header.kind
        counted: cython.int = CONTROL if kind == SKIP else kind
        if time_ns < self._moment_from or time_ns >= self._moment_until:
            self._turn_moment(time_ns)
        self._moment_packets += 1
        self._moment_payload += length
        self._moment_file += on_file
        self._payload[channel] += length
        self._on_file[channel] += on_file
        self._counted[channel] += self._header.count
        self._kinds[_KINDS * channel + counted] += 1
        if time_ns >= self._latest_ns:
            self._latest_ns = self._last_ns[channel] = time_ns
        elif time_ns > self._last_ns[channel]:
            self._last_ns[channel] = time_ns
        elif time_ns < self._first_ns[channel]:
            self._first_ns[channel] = time_ns
        if not self._lines[channel] & 1:
            self._number(channel, kind, time_ns)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _turn_moment(self, time_ns: cython.longlong) -> cython.int:
        """Begin another millisecond, and another minute where it lies in one."""
        self._close_moment()
        # Captures begin after 1970, so truncation rounds down.
        self._moment_from = time_ns - time_ns % _MILLISECOND
        self._moment_until = self._moment_from + _MILLISECOND
        if time_ns < self._minute_from or time_ns >= self._minute_until:
            self._close_minute()
            self._minute_from = time_ns - time_ns % _MINUTE
            self._minute_until = self._minute_from + _MINUTE
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _close_moment(self) -> cython.int:
        at: cython.Py_ssize_t = self.buckets
        if self._moment_packets:
            self._buckets[0, at] = self._moment_from // _MILLISECOND
            self._buckets[1, at] = self._moment_packets
            self._buckets[2, at] = self._moment_payload
            self._buckets[3, at] = self._moment_file
            self.buckets = at + 1
        self._moment_packets = self._moment_payload = self._moment_file = 0
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _close_minute(self) -> cython.int:
        """Add the current minute of each channel that had packets in it."""
        channel: cython.Py_ssize_t
        kind: cython.Py_ssize_t
        part: cython.Py_ssize_t
        for channel in range(self.channels):
            packets: cython.longlong = 0
            for kind in range(_KINDS):
                packets += self._kinds[_KINDS * channel + kind]
                self._totals[4 + kind, channel] += self._kinds[_KINDS * channel + kind]
                self._kinds[_KINDS * channel + kind] = 0
            if packets == 0:
                continue
            at: cython.Py_ssize_t = self.minutes
            if at == self._minutes.shape[1]:
                with cython.gil:
                    self._minutes = _grown(self._minutes, at, 1)
            self._minutes[0, at] = channel
            self._minutes[1, at] = self._minute_from // _MINUTE
            self._minutes[2, at] = packets
            self._minutes[3, at] = self._payload[channel]
            self._minutes[4, at] = self._on_file[channel]
            self._minutes[5, at] = self._counted[channel]
            for part in range(4):
                self._totals[part, channel] += self._minutes[2 + part, at]
            self._payload[channel] = self._on_file[channel] = self._counted[channel] = 0
            self.minutes = at + 1
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.boundscheck(False)  # `channel` is one of ours, and a kind one of four
    @cython.exceptval(-1, check=True)
    def _number(
        self, channel: cython.int, kind: cython.int, time_ns: cython.longlong
    ) -> cython.int:
        """Add the numbers of a packet to the channel's runs."""
        first: cython.ulonglong = self._header.sequence
        after: cython.ulonglong = self._header.next_sequence
        if self._header.session != self._session[channel]:
            self._session[channel] = self._header.session
            self._close_run(channel)
            self._epochs[channel] += 1
        if kind == RESET:
            if self._reached[channel] == 0:
                self._reset_to[channel] = after + 1
            elif after + _STRAY_MAX <= self._reached[channel]:
                self._close_run(channel)
                self._epochs[channel] += 1
            if self._table.fix:
                return 0  # it has no number of its own
            after = first + 1  # the reset's own number; the next one may be far
        elif (kind != DATA and kind != SKIP) or after <= first:
            return 0
        elif kind == DATA:
            self.skew.note(self._skew_indexes[channel], channel, first, time_ns)
        if self._run_after[channel] != first:
            self._close_run(channel)
            self._run_first[channel] = first
        self._run_after[channel] = self._reached[channel] = after
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _close_run(self, channel: cython.int) -> cython.int:
        at: cython.Py_ssize_t = self.runs
        if self._run_after[channel] > self._run_first[channel]:
            if at == self._runs.shape[1]:
                with cython.gil:
                    self._runs = _grown(self._runs, at, 1)
            self._runs[0, at] = channel
            self._runs[1, at] = self._epochs[channel]
            self._runs[2, at] = self._run_first[channel]
            self._runs[3, at] = self._run_after[channel]
            self.runs = at + 1
        self._run_first[channel] = self._run_after[channel] = 0
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _messages(
        self,
        channel: cython.int,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        time_ns: cython.longlong,
    ) -> cython.int:
        """Count the messages of a packet whose header is in `_header`."""
        if self._lines[channel] & 1:
            return 0  # compressed
        if scan_messages(self._table, data, start, self._header, self._index) != FINE:
            self._broken[channel] += 1
            return 0
        entry: cython.Py_ssize_t
        for entry in range(self._index.count):
            size: cython.longlong = self._index.sizes[entry]
            cell: cython.int = self._cell(channel, self._index.types[entry])
            self._cells[2, cell] += 1
            self._cells[3, cell] += size
            if self._index.symbols[entry] != self._table.no_symbol:
                self.interarrival.note(cell, channel, self._index.symbols[entry], time_ns)
            elif cell >= self.interarrival.cells:
                self.interarrival.know(cell)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _cell(self, channel: cython.int, code: cython.int) -> cython.int:
        """Return the cell of a message type on a channel."""
        type_index: cython.int = self._type_indexes[code]
        if type_index < 0:
            type_index = self._new_type(code)
        cell: cython.int = self._cell_of[channel, type_index]
        if cell < 0:
            cell = self.cells
            with cython.gil:
                self._cells = _grown(self._cells, cell, 1)
            self._cell_of[channel, type_index] = cell
            self._cells[0, cell] = channel
            self._cells[1, cell] = self._type_codes[type_index]
            self._cells[2, cell] = self._cells[3, cell] = 0
            self.cells += 1
        return cell

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _new_type(self, code: cython.int) -> cython.int:
        index: cython.int = self.types
        if index == _TYPES_MAX - 1:
            self._type_codes[index] = -1
        else:
            self._type_codes[index] = code
            self.types += 1
        self._type_indexes[code] = index
        return index

    def columns(self) -> dict[str, np.ndarray]:
        """Return all that `digest` needs, arrays by name; closes current minute and runs."""
        self._reserve(0)
        self._close_moment()
        self._close_minute()
        for channel in range(self.channels):
            self._close_run(channel)
        used = self.channels
        whole = {
            "lines": np.asarray(self._lines)[:used],
            "services": np.asarray(self._services)[:used],
            "totals": self._whole_totals(),
            "sessions": self._whole_sessions(),
            "epochs": np.asarray(self._epochs)[:used],
            "cells": np.asarray(self._cells)[:, : self.cells],
            "minutes": np.asarray(self._minutes)[:, : self.minutes],
            "runs": np.asarray(self._runs)[:, : self.runs],
            "foreign": np.asarray(self.foreign),
            "overflow": np.array([self.channel_overflow, self.interarrival.overflow], np.int64),
        }
        parts = [
            ("moments", compact(np.asarray(self._buckets)[:, : self.buckets])),
            ("symbol", self.interarrival.columns()),
            ("interarrival", self.interarrival.histograms()),
            ("skew", self.skew.histograms()),
            ("left", self.skew.leftovers()),
        ]
        for prefix, columns in parts:
            whole.update({f"{prefix}_{name}": column for name, column in columns.items()})
        return {name: np.ascontiguousarray(column) for name, column in whole.items()}

    def _whole_totals(self) -> np.ndarray:
        """Return the totals, a row a channel, with the columns `TOTALS`."""
        used = self.channels
        cells = np.asarray(self._cells)[:, : self.cells]
        totals = np.asarray(self._totals)[:, :used]
        read = np.zeros((2, used), np.int64)
        for part in range(2):
            np.add.at(read[part], cells[0], cells[2 + part])
        ends = [
            np.asarray(self._broken)[:used],
            np.asarray(self._first_ns)[:used],
            np.asarray(self._last_ns)[:used],
        ]
        return np.array([*totals[:4], *read, *totals[4:], *ends]).T

    def _whole_sessions(self) -> np.ndarray:
        """Return what `digest` needs to number epochs, a row a channel (u64[n, 4]).

        Columns: session of its first packet, of its latest, what a reset at the very beginning
        leads to plus 1 (0: none), the number after its latest packet.
        """
        columns = [
            np.asarray(self._first_session),
            np.asarray(self._session),
            np.asarray(self._reset_to),
            np.asarray(self._reached),
        ]
        return np.array(columns).T[: self.channels]


def _grown(columns: object, used: cython.Py_ssize_t, more: cython.Py_ssize_t) -> object:
    """Return `columns` (2-d), or a longer copy where `more` entries do not fit."""
    old = np.asarray(columns)
    if used + more <= old.shape[1]:
        return columns
    made = np.zeros((old.shape[0], max(used + more, 2 * old.shape[1])), old.dtype)
    made[:, :used] = old[:, :used]
    return memoryview(made)
