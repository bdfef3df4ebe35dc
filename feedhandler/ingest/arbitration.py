# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Arbitration: two or more identical lines in, one stream in order out, each packet once.

An `Arbiter` serves one channel, that is one space of sequence numbers. Packets of all lines and the
time are passed to it, and it writes records (packets, gaps, resets, line events; see `ring.py`) to
a `Ring`. It does no input or output and reads no clock.

What it promises:

* Records of packets appear in sequence, each number once, however the lines lose, repeat, delay
  or reorder them. `expected` moves only when the record that moves it has been written.
* A missing packet has `gap_wait_us` from the instant its absence was noticed (a later packet came,
  or a heartbeat named a later number). Then its exact range is announced and the stream goes on; a
  packet of an announced range is published only where the announcement is withdrawn.
* One packet with a wild number cannot move the stream: beyond `max_jump` it is quarantined until
  another line shows the same one, a heartbeat fits it, or, with nothing else alive for `resync_us`,
  its line goes on from it; below, until its own line goes on below it (`sequencer.py`).
* An unsequenced packet is published once, when its first copy comes, and changes nothing else: it
  begins no stream, reveals no gap, and is never late (see below).
* Everything is bounded: the hold, the quarantine, the window of compared fingerprints, the list of
  announced ranges. What happens at each bound is counted.

`states.py` has the action for each input as a table. Before the table is used, packets that do not
belong to the current epoch are sorted out: the feed's reset packet and a new session id begin a
new one (an *epoch*), everything held is released with its gaps announced, and what the other line
still brings from before is counted as stale. `epochs.py` says when a reset is believed, and how
such stragglers are recognised; `output.Outside` handles unsequenced packets.

Two clocks: `received_ns` is the kernel's stamp (CLOCK_REALTIME) and only passed on; all waiting is
measured in `now_ns`, which must be CLOCK_MONOTONIC or, in simulations, any rising number, so that a
step of the host's time of day neither delays nor hastens anything.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.ingest import answers, columns, records, slots, states
from cython.cimports.feedhandler.ingest.answers import (
    CONFIRMED,
    DIFFERENT,
    NO_EVIDENCE,
    REPEATED,
    SAME,
)
from cython.cimports.feedhandler.ingest.epochs import Epochs
from cython.cimports.feedhandler.ingest.fingerprint import fingerprint
from cython.cimports.feedhandler.ingest.hold import PacketPool
from cython.cimports.feedhandler.ingest.output import Output, Outside
from cython.cimports.feedhandler.ingest.packing import Copies
from cython.cimports.feedhandler.ingest.quarantine import Quarantine
from cython.cimports.feedhandler.ingest.sequencer import Sequencer
from cython.cimports.feedhandler.ingest.watch import LineWatch
from cython.cimports.feedhandler.ingest.withdrawal import withdraws

from feedhandler.codecs.visibility import Readonly
from feedhandler.counters import ChannelCounter, LineCounter, counter_array
from feedhandler.ingest.output import OUTSIDE_MAX
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import State, flat_table

#: Wait before a record that found no room in the ring is tried again.
RETRY_NS = cython.declare(cython.ulonglong, 1_000_000)
#: After so long without anything that fits, a lower number without a later send time begins a
#: epoch anew as well (no line lags by a minute; send times may count from midnight).
IDLE_NS = cython.declare(cython.ulonglong, 60_000_000_000)
#: Shortest interval of a channel's MISMATCH records: lines that differ permanently do so in every
#: packet, and a record for each would double what subscribers get. The counters count each.
ALARM_INTERVAL_NS = cython.declare(cython.ulonglong, 1_000_000_000)
#: No deadline: the largest signed number (C would keep a larger literal as a Python object).
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
#: Upper limit on a channel's lines (A, B, and room for retransmission and refresh lines).
LINES_MAX = 16


@cython.final
@cython.cclass
class Arbiter:
    """Arbitration of one channel; see the module's docstring.

    `ring` takes the records, `channel` is the index they carry. `first_sequence` is the number a
    day of this feed begins with, `counts_messages` whether numbers count messages; where they do,
    `table` is the feed's, so that lines may pack messages differently. Lines are 0 .. lines - 1;
    with `recovery_wait_us`, the time that recovery has for what they do not bring, line `lines` is
    recovery (see `recovered.py`). `line_counters` (uint64, a row of `LineCounter` columns for each
    line of the process) with `rows` (indices of this channel's lines in it) and `channel_counters`
    (one row) may be shared with the owner, or are made here. Raises `ValueError` for no lines or
    more than `LINES_MAX`.
    """

    out: Readonly[Output]
    stream: Sequencer
    watch: LineWatch
    quarantine: Quarantine
    epochs: Epochs
    pool: PacketPool
    outside: Outside
    settings: Readonly[object]
    line_count: Readonly[cython.int]
    actions: cython.uchar[::1]
    start_wait: cython.ulonglong
    resync_wait: cython.ulonglong
    max_jump: cython.ulonglong
    resync_run: cython.ulonglong
    first_sequence: cython.ulonglong
    # state of the stream
    state: Readonly[cython.int]
    session: Readonly[cython.ulonglong]
    joined: cython.bint
    last_accepted: cython.ulonglong
    work_deadline: cython.ulonglong
    next_alarm: cython.ulonglong
    # joining
    join_seen: cython.bint
    join_since: cython.ulonglong
    join_lowest: cython.ulonglong
    join_highest: cython.ulonglong
    join_line: cython.int
    # a new epoch that is being announced
    pending_cause: cython.int
    pending_slot: cython.Py_ssize_t
    pending_reported: cython.bint
    pending_next: cython.ulonglong
    pending_session: cython.ulonglong

    def __init__(
        self,
        ring,
        *,
        lines: int = 2,
        channel: int = 0,
        first_sequence: int = 1,
        counts_messages: bool = False,
        settings: ArbitrationSettings | None = None,
        recovery_wait_us: int = 0,
        table: FeedTable | None = None,
        line_counters: numpy.ndarray | None = None,
        rows: list[int] | None = None,
        channel_counters: numpy.ndarray | None = None,
    ) -> None:
        if not 1 <= lines <= LINES_MAX:
            raise ValueError(f"a channel has 1 to {LINES_MAX} lines, not {lines}")
        settings = settings or ArbitrationSettings()
        recovered = int(recovery_wait_us > 0)
        rows = rows or list(range(lines + recovered))
        if line_counters is None:
            line_counters = counter_array(LineCounter, len(rows))
        if channel_counters is None:
            channel_counters = counter_array(ChannelCounter, 1)[0]
        self.out = Output(ring, channel, line_counters, rows, channel_counters)
        self.settings = settings
        self.line_count = lines
        self.first_sequence = first_sequence
        self.actions = memoryview(bytearray(flat_table()))
        self.max_jump = settings.jump_numbers(counts_messages)
        self.start_wait = settings.start_wait_us * 1000
        self.resync_wait = settings.resync_us * 1000
        self.resync_run = settings.resync_run_packets
        numbers = settings.compare_numbers(counts_messages)
        copies = Copies(table if counts_messages else None, numbers)
        self._make_parts(lines, copies, recovery_wait_us * 1000)

    def _make_parts(self, lines: int, copies: Copies, recovery_ns: int) -> None:
        """Allocate everything that the channel will ever need."""
        settings = self.settings
        # Two slots more: for a reset that is pending or waits for ring room, and for a packet that
        # is taken before the one that it replaces is freed.
        slots_needed = settings.hold_packets + settings.quarantine_packets + 2 + OUTSIDE_MAX
        slots_needed += slots.RUN_MAX * lines
        self.pool = PacketPool(slots_needed, settings.packet_bytes_max)
        self.stream = Sequencer(
            self.out, self.pool, settings.hold_packets, settings.gap_wait_us * 1000, recovery_ns,
            copies, lines,
        )  # fmt: skip
        self.quarantine = Quarantine(self.pool, settings.quarantine_packets, lines)
        self.epochs = Epochs(lines, settings.epoch_window_us * 1000)
        self.watch = LineWatch(self.out, lines, settings.silent_us * 1000)
        self.outside = Outside(self.out, self.pool, settings.unsequenced_window_us * 1000)
        self.pending_slot = -1
        self.work_deadline = NEVER
        if not cython.compiled:
            self._zero_fields()

    def _zero_fields(self) -> None:
        """Set the fields that C zeroes by itself."""
        self.state = self.session = self.pending_session = 0
        self.joined = self.join_seen = self.pending_reported = False
        self.last_accepted = self.next_alarm = self.join_since = 0
        self.join_lowest = self.join_highest = self.join_line = 0
        self.pending_cause = self.pending_next = 0

    # -- properties for Python --------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The state as a word."""
        return State(self.state).name

    @property
    def expected(self) -> int:
        """The next number; it moves only when its record has been written."""
        return self.stream.expected

    @property
    def line_array(self) -> numpy.ndarray:
        """Counters by line, rows as given (columns: `LineCounter`)."""
        return self.out.line_array

    @property
    def channel_array(self) -> numpy.ndarray:
        """Counters of the channel (columns: `ChannelCounter`)."""
        return self.out.channel_array

    @property
    def held(self) -> int:
        """Number of packets held now."""
        return self.stream.hold.count

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next; the largest signed 64-bit number for never."""
        return self.next_deadline()

    # -- the four verbs ---------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def start(self, now_ns: cython.ulonglong) -> cython.int:
        """Begin at `now_ns`: a line's silence counts from now on."""
        self.last_accepted = now_ns
        return self.watch.start(now_ns)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def is_old(self, header: PacketHeader, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether this packet would be dropped as a copy, and its messages need no check.

        Not where it may still be believed: a low number may begin an epoch whose reset waits for
        ring room, or, when nothing has fitted for `resync_us`, one whose reset was not seen.
        """
        return (
            self.joined
            and header.kind == kinds.DATA
            and header.next_sequence <= self.stream.expected
            and header.session == self.session
            and self.pending_cause == 0
            and self.epochs.pending < 0
            and now_ns - self.last_accepted < self.resync_wait
        )

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def receive(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Take the packet `data[start:start + header.length]` of `line`; return a `Verdict`.

        `header` is the scanner's, checked and accepted; `received_ns` the kernel's stamp; `now_ns`
        the time of this process.
        """
        self.out.received_ns = received_ns
        self.watch.line_alive(line, now_ns, self.stream.expected)
        if header.kind == kinds.DATA:
            self.watch.latest[line] = header.next_sequence
        if (
            self.state == states.FLOWING
            and header.sequence == self.stream.expected
            and header.kind == kinds.DATA
            and header.next_sequence > self.stream.expected
            and header.session == self.session
            and not self.epochs.changing(now_ns)
        ):
            return self._publish(line, header, data, start, received_ns, now_ns)
        return self._sort(line, header, data, start, received_ns, now_ns)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def tick(self, now_ns: cython.ulonglong) -> cython.int:
        """Let time pass: deadlines of gaps, of the start, of lines, of a full ring."""
        if now_ns >= self.watch.next_check:
            self.watch.check(now_ns, self.stream.expected)
        if now_ns >= self.work_deadline:
            self._advance(now_ns)
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def note_read(self, now_ns: cython.ulonglong) -> cython.int:
        """Note that all lines have been read up to `now_ns`: until the next call, no packet makes a
        gap be given up for a deadline after it. Without any call packets do so by their own time.
        """
        self.stream.read_up_to = now_ns
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def next_deadline(self) -> cython.ulonglong:
        """Return when `tick` must be called next."""
        if self.watch.next_check < self.work_deadline:
            return self.watch.next_check
        return self.work_deadline

    # -- packets ----------------------------------------------------------------------------

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _sort(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Sort out what is not of this epoch, then act by the table."""
        if header.kind >= kinds.CONTROL and header.kind != kinds.SKIP:
            if header.kind == kinds.UNSEQUENCED:
                return self._outside(line, header, data, start, received_ns, now_ns)
            self.out.count_line(line, columns.LINE_CONTROL)
            return states.HEARD
        if header.kind == kinds.HEARTBEAT:
            self.out.count_line(line, columns.LINE_HEARTBEATS)
        if self.pending_cause or self.stream.blocked:
            self._advance(now_ns)
        if self.pending_cause == 0 and self.epochs.pending >= 0 and header.session == self.session:
            self._judge_reset(line, header, now_ns)
        if self.pending_cause == 0:
            if (
                self.epochs.mixed(now_ns)
                and header.session == self.session
                and self.epochs.straggles(line, header, self.stream.expected, self.max_jump)
            ):
                self.out.count_line(line, columns.LINE_STALE)
                return states.STALE
            if header.kind == kinds.RESET:
                if self._is_repeated_reset(header):
                    return states.HEARD
                return self._reset(line, header, data, start, received_ns, now_ns)
            if header.session != self.session:
                if self.joined or self.join_seen:
                    return self._other_session(line, header, data, start, received_ns, now_ns)
                self._adopt_session(header.session)
        return self._act(line, header, data, start, received_ns, now_ns)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _outside(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Publish an unsequenced packet, unless another line has shown it."""
        if self.stream.blocked:
            self._advance(now_ns)
        verdict: cython.int = self.outside.publish(
            line, header, data, start, received_ns, self.stream.expected, now_ns
        )
        if self.outside.waiting:
            self.stream.blocked = True
            self._settle(now_ns)
        return verdict

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _act(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Do what the table says."""
        action: cython.int = self.actions[self.state * states.INPUTS + self._input_of(header)]
        if line < self.line_count and (
            self.state != states.FLOWING or action == states.HOLD or action == states.REVEAL
        ):
            self.stream.belief.note_input(line, self.stream.copies.are_again(header))
        if action == states.PUBLISH:
            return self._publish(line, header, data, start, received_ns, now_ns)
        if action == states.DROP:
            return self._drop_old(line, header, data, start, received_ns, now_ns)
        if action == states.HOLD:
            return self._hold(line, header, data, start, received_ns, now_ns)
        if action == states.QUARANTINE:
            return self._quarantine(line, header, data, start, received_ns, now_ns)
        if action == states.START:
            if self._start_at(self.first_sequence, now_ns):
                return self._act(line, header, data, start, received_ns, now_ns)
            if header.kind == kinds.HEARTBEAT:
                return states.HEARD
            return self._hold(line, header, data, start, received_ns, now_ns)
        if action == states.REFUSE:
            self.out.count_line(line, columns.LINE_REFUSED)
            return states.REFUSED
        if action == states.REVEAL:
            self.last_accepted = now_ns
            self.stream.reveal(line, header.next_sequence, now_ns)
            self._advance(now_ns)  # a packet that it makes believed may be next
        elif action == states.HINT:
            self._hint(line, header.next_sequence, now_ns)
        elif action == states.AGREE:
            self.last_accepted = now_ns
        return states.HEARD

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _input_of(self, header: PacketHeader) -> cython.int:
        """Return the table's input for this packet: its number against `expected`."""
        number: cython.ulonglong = header.sequence
        end: cython.ulonglong = header.next_sequence
        base: cython.int = 0
        if header.kind == kinds.HEARTBEAT:
            base = states.HEARTBEAT_INPUTS
            number = end
            if end == 0:
                return base + states.OLD
        if not self.joined:
            if number == self.first_sequence:
                return base + states.NEXT
            return base + states.AHEAD
        if base == 0 and end <= self.stream.expected:
            return states.OLD
        if number <= self.stream.expected:
            # A data packet reaches past `expected` here; a heartbeat only names a number.
            if base and number < self.stream.expected:
                return base + states.OLD
            return base + states.NEXT
        if number - self.stream.expected <= self.max_jump:
            return base + states.AHEAD
        return base + states.JUMP

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _publish(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Write the packet that is next, then whatever waited for it.

        One that ends in what was published before the stream went back is cut, and so goes through
        the hold.
        """
        if header.sequence != self.stream.expected:
            start = self.stream.copies.trim(header, data, start, self.stream.expected)
        if self.state != states.FLOWING and self.stream.meets_island(header.next_sequence):
            if self.stream.is_full():
                self.out.count_line(line, columns.LINE_REFUSED)
                return states.REFUSED
            verdict: cython.int = self._hold(line, header, data, start, received_ns, now_ns)
            self._advance(now_ns)
            return verdict
        if not self.stream.publish(line, header, data, start, received_ns):
            return self._hold(line, header, data, start, received_ns, now_ns)
        self.last_accepted = now_ns
        if self.state != states.FLOWING:
            self.stream.progress(line, self.stream.copies.are_again(header))
            self._advance(now_ns)
        return states.PUBLISHED

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _hold(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Keep a packet that cannot be published yet."""
        answer: cython.int = self.stream.keep(line, header, data, start, received_ns, now_ns)
        if answer == answers.NO_ROOM:
            self._make_room(header.sequence, now_ns)
            if self.stream.is_full() and (
                self.stream.blocked or header.sequence > self.stream.expected
            ):
                self.out.count_line(line, columns.LINE_REFUSED)
                return states.REFUSED
            # What is expected has moved: judge the packet again. It is next, or there is room.
            return self._act(line, header, data, start, received_ns, now_ns)
        if answer == answers.TOO_LONG:
            self.out.count_line(line, columns.LINE_OVERSIZE)
            self._settle(now_ns)
            return states.REFUSED
        if answer != answers.KEPT:
            if answer == answers.OTHER_AGAIN:
                self._alarm(line, header, now_ns)
            self.out.count_line(line, columns.LINE_DUPLICATES)
            self._settle(now_ns)
            return states.DUPLICATE
        self.last_accepted = now_ns
        if not self.joined and not self.join_seen:
            self.join_seen = True
            self.join_since = now_ns
        if self.joined and self.stream.has_next():  # a packet that it made believed
            self._advance(now_ns)
        self._settle(now_ns)
        return states.HELD

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _make_room(self, sequence: cython.ulonglong, now_ns: cython.ulonglong) -> cython.int:
        """Give the earliest gap up now, up to the first packet at hand: the hold is full.

        Nothing is given up where a contradicted packet can be dropped instead.
        """
        if self.joined and self.stream.make_room():
            return 0
        self.out.count(columns.CHANNEL_HOLD_FULL, 1)
        if not self.joined:
            self._begin(now_ns)
        lowest: cython.ulonglong = self.stream.lowest()
        if self.joined and lowest > self.stream.expected:
            self.stream.force(lowest if lowest < sequence else sequence, records.BY_HOLD_FULL)
        self._advance(now_ns)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _drop_old(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Drop a number that was expected before: late, from before the start, or a duplicate.

        It is published where it makes an announced loss be withdrawn, and quarantined where it may
        begin an epoch.
        """
        if self.stream.lost.touches(header.sequence, header.next_sequence):
            if self.epochs.pending < 0 and withdraws(
                self.stream, line, header, data, start, received_ns, now_ns
            ):
                self.last_accepted = now_ns
                self._advance(now_ns)
                return states.PUBLISHED
            self.out.count_line(line, columns.LINE_LATE)
            return states.LATE
        self.stream.copy(line, header)
        compared: cython.int = self.stream.copies.compare_packet(header, data, start)
        if compared != SAME and self._is_newer(header, now_ns):
            return self._quarantine(line, header, data, start, received_ns, now_ns)
        if compared == DIFFERENT:
            self._alarm(line, header, now_ns)
        if header.sequence < self.epochs.first:
            self.out.count_line(line, columns.LINE_STALE)
            return states.STALE
        self.out.count_line(line, columns.LINE_DUPLICATES)
        return states.DUPLICATE

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _alarm(
        self, line: cython.int, header: PacketHeader, now_ns: cython.ulonglong
    ) -> cython.int:
        """Count message bytes that differ from the first copy's, and write MISMATCH at intervals.

        Without ring room only the count is kept, and the next difference is written.
        """
        self.out.count_line(line, columns.LINE_MISMATCHES)
        self.out.count(columns.CHANNEL_MISMATCHES, 1)
        if now_ns >= self.next_alarm and self.out.control_event(
            records.MISMATCH, line, header.sequence, header.next_sequence, 0
        ):
            self.next_alarm = now_ns + ALARM_INTERVAL_NS
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_newer(self, header: PacketHeader, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether a low number looks like a new epoch whose reset was not seen.

        Only when nothing has fitted for `resync_us`, and then by the send time.
        """
        if now_ns - self.last_accepted < self.resync_wait:
            return False
        if now_ns - self.last_accepted >= IDLE_NS:
            return True
        return header.send_time > self.stream.last_send_time and self.stream.last_send_time > 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _hint(
        self, line: cython.int, number: cython.ulonglong, now_ns: cython.ulonglong
    ) -> cython.int:
        """Record, while joining, a number at which the stream may be joined if none lower comes."""
        if not self.join_seen:
            self.join_seen = True
            self.join_since = now_ns
        if self.join_lowest == 0 or number < self.join_lowest:
            self.join_lowest = number
        if number > self.join_highest:
            self.join_highest = number
            self.join_line = line
        self._settle(now_ns)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _start_at(self, number: cython.ulonglong, now_ns: cython.ulonglong) -> cython.int:
        """Join the stream at `number`; return 0 when the ring has no room for the record."""
        if not self.out.control_event(records.START, 0, number, number, 0):
            self.stream.blocked = True
            self._settle(now_ns)
            return 0
        self.out.count(columns.CHANNEL_STARTS, 1)
        self.joined = True
        self.epochs.first = number
        self.last_accepted = now_ns
        self.stream.begin(number, now_ns)
        if self.join_highest > number and self.join_highest - number <= self.max_jump:
            self.stream.reveal(self.join_line, self.join_highest, now_ns)
        while self.stream.hold.count:
            slot: cython.Py_ssize_t = self.stream.hold.highest()
            if self.pool.word(slot, slots.SEQUENCE) - number <= self.max_jump:
                break
            self.stream.hold.pop_highest()
            self.out.count(columns.CHANNEL_EVICTED, self.quarantine.add(slot))
        self._settle(now_ns)
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _begin(self, now_ns: cython.ulonglong) -> cython.int:
        """Join at the lowest number seen."""
        lowest: cython.ulonglong = self.join_lowest
        if self.stream.hold.count and (lowest == 0 or self.stream.lowest() < lowest):
            lowest = self.stream.lowest()
        return self._start_at(lowest, now_ns)

    # -- progress ---------------------------------------------------------------------------

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _advance(self, now_ns: cython.ulonglong) -> cython.int:
        """Do everything that can be done by now: start, release, give up, renumber."""
        self.stream.blocked = False
        if self.outside.waiting and not self.outside.flush():
            self.stream.blocked = True
            return self._settle(now_ns)
        if not self.joined and (self.stream.hold.count or self.join_lowest):
            if self.pending_cause == 0 and now_ns < self.join_since + self.start_wait:
                return self._settle(now_ns)
            if not self._begin(now_ns):
                return 0
        if self.joined:
            self.stream.release(now_ns)
        if self.pending_cause and not self.stream.blocked:
            self._finish_reset(now_ns)
        return self._settle(now_ns)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _settle(self, now_ns: cython.ulonglong) -> cython.int:
        """Set the state and the next deadline from the present conditions."""
        if self.joined:
            self.stream.report_gaps()
        self.work_deadline = NEVER
        if self.pending_cause:
            self.state = states.RESETTING
            self.work_deadline = now_ns + RETRY_NS
        elif not self.joined:
            self.state = states.JOINING
            if self.stream.blocked:
                self.work_deadline = now_ns + RETRY_NS
            elif self.join_seen:
                self.work_deadline = self.join_since + self.start_wait
        elif self.stream.blocked:
            self.state = states.BLOCKED
            self.work_deadline = now_ns + RETRY_NS
        elif self.stream.waiting():
            self.state = states.WAITING
            self.work_deadline = self.stream.deadline()
        else:
            self.state = states.FLOWING
        return 0

    # -- new epochs ---------------------------------------------------------------------

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_repeated_reset(self, header: PacketHeader) -> cython.bint:
        """Return whether this is a FIX Logon repeated before anything of its epoch has come."""
        begun: cython.bint = self.joined and self.stream.expected == self.epochs.first
        return self.stream.copies.is_fix and begun and header.next_sequence == self.epochs.first

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _reset(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Handle the feed's reset packet, which begins a new epoch once it is believed."""
        whole: cython.ulonglong = fingerprint(data, start, header.length)
        if self.epochs.is_copy(line, header, whole, now_ns):
            self.out.count_line(line, columns.LINE_DUPLICATES)
            return states.DUPLICATE
        slot: cython.Py_ssize_t = self.pool.store(
            line, header, data, start, received_ns, now_ns, whole
        )
        if slot < 0:
            self.out.count_line(line, columns.LINE_OVERSIZE)
            return states.REFUSED
        if self.joined and header.session == self.session:
            if self.epochs.pending >= 0:
                self.pool.give_back(self.epochs.resume())
            self.out.count_line(line, columns.LINE_QUARANTINED)
            old: cython.ulonglong = self.stream.position_of(line, self.watch.latest[line])
            self.epochs.suspend(slot, line, header, old)
            return states.QUARANTINED
        self._renumber(records.BY_PACKET, header.session, header.next_sequence, slot, now_ns)
        return states.RENUMBERED

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _judge_reset(
        self, line: cython.int, header: PacketHeader, now_ns: cython.ulonglong
    ) -> cython.int:
        """Believe the pending reset, or drop it, if this packet says so."""
        slot: cython.Py_ssize_t = self.epochs.pending
        answer: cython.int = self.epochs.judge(line, header, self.max_jump)
        if answer == answers.BELIEVED:
            self._renumber(
                records.BY_PACKET, self.session, self.pool.word(slot, slots.NEXT),
                self.epochs.resume(), now_ns,
            )  # fmt: skip
        elif answer == answers.FORGED:
            self.pool.give_back(self.epochs.resume())
            self.out.count(columns.CHANNEL_CONTRADICTED, 1)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _renumber(
        self,
        cause: cython.int,
        session: cython.ulonglong,
        number: cython.ulonglong,
        slot: cython.Py_ssize_t,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Begin a new epoch at `number`, after everything held is released."""
        self.stream.force_all(records.BY_RESET)
        self.pending_cause = cause
        self.pending_session = session
        self.pending_next = number
        self.pending_slot = slot
        self.pending_reported = False
        self._advance(now_ns)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _finish_reset(self, now_ns: cython.ulonglong) -> cython.int:
        """Write RESET, then the reset packet itself if there is one; or be blocked."""
        slot: cython.Py_ssize_t = self.pending_slot
        if not self.pending_reported:
            self.out.session = self.pending_session
            if not self.out.control_event(
                records.RESET, 0, 0, self.pending_next, self.pending_cause
            ):
                self.out.session = self.session
                self.stream.blocked = True
                return 0
            self._enter_epoch(now_ns)
        if slot >= 0:
            if not self.out.held(self.pool, slot, 0):
                self.stream.blocked = True
                return 0
            self.pool.give_back(slot)
            self.pending_slot = -1
        self.pending_cause = 0
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _enter_epoch(self, now_ns: cython.ulonglong) -> cython.int:
        """Enter the new epoch, whose RESET record is written, and forget the old epoch.

        What is needed to recognise its stragglers is kept.
        """
        slot: cython.Py_ssize_t = self.pending_slot
        self.pending_reported = True
        reached: cython.ulonglong = self.stream.expected if self.joined else 0
        self.epochs.leave(reached, self.stream.first_time, self.pending_next, now_ns)
        if slot >= 0:
            self.epochs.by_reset(
                cython.cast(cython.int, self.pool.word(slot, slots.LINE)),
                self.pool.word(slot, slots.SEND_TIME),
                self.pool.word(slot, slots.FINGERPRINT),
            )
        if self.joined and self.session != self.pending_session:
            self.epochs.leave_session(self.session)
        self._adopt_session(self.pending_session)
        self.joined = True
        if self.epochs.pending >= 0:
            self.pool.give_back(self.epochs.resume())
        self.join_lowest = 0
        self.last_accepted = now_ns
        self.stream.restart(self.pending_next)
        self.stream.epoch = self.epochs.number
        self.stream.first_time = self.epochs.reset_time
        self.stream.last_send_time = self.epochs.reset_time
        self.quarantine.forget_runs()
        if self.pending_cause == records.BY_PACKET:
            self.out.count(columns.CHANNEL_RESETS, 1)
            self.quarantine.clear()
        elif self.pending_cause == records.BY_SESSION:
            self.out.count(columns.CHANNEL_SESSIONS, 1)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _adopt_session(self, session: cython.ulonglong) -> cython.int:
        """Make this the current session."""
        self.session = session
        self.out.session = session
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _other_session(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Handle a packet of another session: an earlier one, a new one that begins, or unclear."""
        number: cython.ulonglong = header.sequence
        if header.kind == kinds.HEARTBEAT:
            number = header.next_sequence
        if self.epochs.is_past_session(header.session):
            # Only when the present session is dead may an earlier one come back.
            if now_ns - self.last_accepted < self.resync_wait:
                self.out.count_line(line, columns.LINE_STALE)
                return states.STALE
        elif number == self.first_sequence:
            self.quarantine.clear()
            self._renumber(records.BY_SESSION, header.session, self.first_sequence, -1, now_ns)
            return self._act(line, header, data, start, received_ns, now_ns)
        return self._quarantine(line, header, data, start, received_ns, now_ns)

    # -- quarantine -------------------------------------------------------------------------

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _quarantine(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Set a packet aside whose number is not believed yet, and weigh the evidence."""
        print_64: cython.ulonglong = 0
        if header.kind != kinds.HEARTBEAT:
            print_64 = fingerprint(data, start + header.body, header.length - header.body)
        evidence: cython.int = self.quarantine.weigh(
            line, header, print_64, header.session != self.session, self.max_jump
        )
        run: cython.ulonglong = self.quarantine.follow_run(line, header)
        if (
            evidence == NO_EVIDENCE
            and header.kind == kinds.DATA
            and header.session == self.session
            and header.sequence > self.stream.expected
            and self.quarantine.lines_agree(line, self.resync_run, self.max_jump)
        ):
            evidence = CONFIRMED
        alone: cython.bint = (
            run >= self.resync_run
            and now_ns - self.last_accepted >= self.resync_wait
            and evidence != CONFIRMED
        )
        self.out.count_line(line, columns.LINE_QUARANTINED)
        if evidence != REPEATED:
            slot: cython.Py_ssize_t = self.pool.store(
                line, header, data, start, received_ns, now_ns, print_64
            )
            if slot < 0:
                self.out.count_line(line, columns.LINE_OVERSIZE)
            else:
                self.out.count(columns.CHANNEL_EVICTED, self.quarantine.add(slot))
        if evidence == CONFIRMED or alone:
            self._confirm(header.session, alone, now_ns)
        return states.QUARANTINED

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _confirm(
        self, session: cython.ulonglong, alone: cython.bint, now_ns: cython.ulonglong
    ) -> cython.int:
        """Believe the quarantine's anchor and what is near it: announce the gap, go on there.

        `alone`: the evidence is one line's after `resync_us`, not two lines' or a heartbeat's.
        """
        # A jump forward excludes what has been passed meanwhile.
        least: cython.ulonglong = 0
        if session == self.session and self.quarantine.anchor >= self.stream.expected:
            least = self.stream.expected
        first: cython.ulonglong = self.quarantine.lowest(session, least, self.max_jump)
        if session != self.session:
            self._renumber(records.BY_SESSION, session, self.first_sequence, -1, now_ns)
        elif first < self.stream.expected:
            self._renumber(records.BY_RESYNC, session, first, -1, now_ns)
        if self.pending_cause:
            return 0  # no ring room for the record now; the evidence stays and is found again
        if alone:
            self.out.count(columns.CHANNEL_RESYNCS, 1)
        else:
            self.out.count(columns.CHANNEL_JUMPS, 1)
        if first > self.stream.expected and first - self.stream.expected > self.max_jump:
            self.stream.force(first, records.BY_JUMP)
            self._advance(now_ns)
        self._adopt(first, session, now_ns)
        return self._advance(now_ns)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _adopt(
        self, first: cython.ulonglong, session: cython.ulonglong, now_ns: cython.ulonglong
    ) -> cython.int:
        """Move the quarantined packets from `first` on into the hold; drop the others."""
        at: cython.Py_ssize_t
        for at in range(self.quarantine.capacity):
            slot: cython.Py_ssize_t = self.quarantine.remove(at)
            if slot < 0:
                continue
            sequence: cython.ulonglong = self.pool.word(slot, slots.SEQUENCE)
            next_sequence: cython.ulonglong = self.pool.word(slot, slots.NEXT)
            if (
                self.pool.word(slot, slots.SESSION) == session
                and self.pool.word(slot, slots.KIND) == kinds.DATA
                and sequence >= first
                and sequence - first <= self.max_jump
                and not self.stream.hold.contains(sequence, next_sequence)
                and not self.stream.is_full()
                and self.stream.enlist(slot, self.pool.word(slot, slots.FINGERPRINT), False)
            ):
                continue
            self.pool.give_back(slot)
        self.last_accepted = now_ns
        return 0
