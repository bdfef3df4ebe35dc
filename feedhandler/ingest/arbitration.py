# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Arbitration: two or more identical lines in, one stream in order out, each packet once.

An `Arbiter` serves one channel, that is one space of sequence numbers. It is fed with packets of
all lines and with the time, and writes records (packets, gaps, resets, line events; see `ring.py`)
to a `Ring`. It does no input or output and reads no clock.

What it promises:

* Records of packets appear in sequence, each number once, however the lines lose, repeat, delay
  or reorder them. `expected` moves only when the record that moves it has been written.
* A missing packet has `gap_wait_us` from the instant its absence was noticed (a later packet came,
  or a heartbeat's number told). Then its exact range is announced and the stream goes on; a packet
  of an announced range is never published.
* One packet with a wild number cannot move the stream: beyond `max_jump` a packet is quarantined
  until another line shows the same one, or a heartbeat fits its number, or, with nothing else
  alive for `resync_us`, its line goes on consecutively from it.
* Everything is bounded: the hold, the quarantine, the window of compared fingerprints, the list of
  announced ranges. What happens at each bound is counted.

What to do for which input stands as a table in `states.py`. Before the table is asked, packets
that do not belong to the current numbering are sorted out: the feed's reset packet and a new
session id begin a new one (an *epoch*), everything held is let go with its gaps announced, and
what the other line still brings from before is counted as stale. Such a straggler is known by its
session id; by a send time before the reset's; where neither tells, by its number, and, where the
number fits both epochs, by whether its line has been seen in the new one.

Two clocks: `received_ns` is the kernel's stamp (CLOCK_REALTIME) and only passed on; all waiting is
measured in `now_ns`, which must be CLOCK_MONOTONIC or, in simulations, any rising number, so that
a step of the host's time of day neither hangs nor hurries anything.
"""

import cython
import numpy

from feedhandler.counters import ChannelCounter, LineCounter, counter_array
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import State, flat_table

if cython.compiled:
    from cython.cimports.feedhandler.codecs import scanner as kinds
    from cython.cimports.feedhandler.ingest import columns, states
    from cython.cimports.feedhandler.ingest import hold as slots
    from cython.cimports.feedhandler.ingest import ring as records
    from cython.cimports.feedhandler.ingest.epochs import Epochs
    from cython.cimports.feedhandler.ingest.fingerprint import (
        DIFFERENT,
        SAME,
        CompareWindow,
        fingerprint,
    )
    from cython.cimports.feedhandler.ingest.hold import Hold, PacketPool
    from cython.cimports.feedhandler.ingest.lost import LostRanges
    from cython.cimports.feedhandler.ingest.output import Output
    from cython.cimports.feedhandler.ingest.quarantine import CONFIRMED, REPEATED, Quarantine
else:
    from feedhandler.codecs import scanner as kinds
    from feedhandler.ingest import columns, states
    from feedhandler.ingest import hold as slots
    from feedhandler.ingest.epochs import Epochs
    from feedhandler.ingest.fingerprint import DIFFERENT, SAME, CompareWindow, fingerprint
    from feedhandler.ingest.hold import Hold, PacketPool
    from feedhandler.ingest.lost import LostRanges
    from feedhandler.ingest.output import Output
    from feedhandler.ingest.quarantine import CONFIRMED, REPEATED, Quarantine
    from feedhandler.ingest.ring import RecordKind as records

#: How soon a record that found no room in the ring is tried again.
RETRY_NS = cython.declare(cython.ulonglong, 1_000_000)
#: After so long without anything that fits, a lower number needs no later send time to count as
#: a numbering begun anew (no line lags by a minute; send times may count from midnight).
IDLE_NS = cython.declare(cython.ulonglong, 60_000_000_000)
#: No deadline. (The largest signed number: C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
#: `max_jump` in holds, where a feed counts packets: twice the hold, so that behind a hole the hold
#: overflows, and gives the hole up, before honest packets look like a jump.
PACKETS_PER_HOLD = 2
#: The same where a feed counts messages: a full packet carries about so many.
MESSAGES_PER_PACKET = 64
#: The same for the window of compared packets, whose memory it multiplies: a usual packet.
MESSAGES_PER_PACKET_USUAL = 16
#: Lines of one channel, at most (A, B, and room for retransmission and refresh lines).
LINES_MAX = 16

# Causes, as in `ring.GapCause` and `ring.ResetCause`.
BY_DEADLINE = cython.declare(cython.int, 1)
BY_FULL_HOLD = cython.declare(cython.int, 2)
BY_JUMP = cython.declare(cython.int, 3)
BY_RESET = cython.declare(cython.int, 4)
RESET_PACKET = cython.declare(cython.int, 1)
NEW_SESSION = cython.declare(cython.int, 2)
RESYNC = cython.declare(cython.int, 3)


def _numbers(count: int) -> memoryview:
    """`count` zeroed unsigned 64-bit integers."""
    return memoryview(numpy.zeros(count, numpy.uint64))


@cython.final
@cython.cclass
class Arbiter:
    """Arbitration of one channel; see the module's docstring.

    `ring` takes the records, `channel` is the index they carry. `first_sequence` is the number a
    day of this feed begins with, `counts_messages` whether numbers count messages. Lines are
    0 .. lines - 1. `line_counters` (uint64, a row of `LineCounter` columns per line of the
    process) with `rows` (this channel's lines' rows in it) and `channel_counters` (one row) may
    be shared with the owner; without them the arbiter makes its own.
    """

    def __init__(
        self,
        ring,
        *,
        lines: int = 2,
        channel: int = 0,
        first_sequence: int = 1,
        counts_messages: bool = False,
        settings: ArbitrationSettings | None = None,
        line_counters: numpy.ndarray | None = None,
        rows: list[int] | None = None,
        channel_counters: numpy.ndarray | None = None,
    ) -> None:
        if not 1 <= lines <= LINES_MAX:
            raise ValueError(f"a channel has 1 to {LINES_MAX} lines, not {lines}")
        settings = settings or ArbitrationSettings()
        if line_counters is None:
            line_counters = counter_array(LineCounter, lines)
        if channel_counters is None:
            channel_counters = counter_array(ChannelCounter, 1)[0]
        self.out = Output(
            ring, channel, line_counters, rows or list(range(lines)), channel_counters
        )
        self.settings = settings
        self.line_count = lines
        self.first_sequence = first_sequence
        self.actions = memoryview(bytearray(flat_table()))
        self._take_settings(settings, counts_messages)
        self._make_tables(settings, lines)

    def _take_settings(self, settings: ArbitrationSettings, counts_messages: bool) -> None:
        """Times in nanoseconds, sizes in sequence numbers, and the window sized to them."""
        self.gap_wait = settings.gap_wait_us * 1000
        self.start_wait = settings.start_wait_us * 1000
        self.silent_wait = settings.silent_us * 1000
        self.resync_wait = settings.resync_us * 1000
        self.resync_run = settings.resync_run_packets
        width = MESSAGES_PER_PACKET if counts_messages else PACKETS_PER_HOLD
        self.max_jump = settings.max_jump or settings.hold_packets * width
        usual = MESSAGES_PER_PACKET_USUAL if counts_messages else 1
        self.window = CompareWindow(settings.compare_packets * usual)

    def _make_tables(self, settings: ArbitrationSettings, lines: int) -> None:
        """Everything the channel will ever need."""
        # One slot more for a reset packet that waits for ring room.
        slots_needed = settings.hold_packets + settings.quarantine_packets + 1
        self.pool = PacketPool(slots_needed, settings.packet_bytes_max)
        self.hold = Hold(self.pool, settings.hold_packets)
        self.lost = LostRanges()
        self.quarantine = Quarantine(self.pool, settings.quarantine_packets, lines)
        self.epochs = Epochs(lines, settings.epoch_window_us * 1000)
        self.heard = _numbers(lines)
        self.silent = memoryview(bytearray(lines))
        self.pending_slot = -1
        self.work_deadline = NEVER
        self.silence_check = NEVER
        if not cython.compiled:
            self._zero_fields()

    def _zero_fields(self) -> None:
        """The fields that C zeroes by itself."""
        self.state = self.expected = self.session = 0
        self.joined = self.blocked = self.join_seen = self.pending_told = False
        self.last_send_time = self.last_accepted = 0
        self.join_since = self.join_lowest = self.join_highest = 0
        self.known_next = self.known_since = self.later_next = self.later_since = 0
        self.forced_until = self.forced_cause = 0
        self.pending_cause = self.pending_next = self.pending_session = 0

    # -- for Python -------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The state as a word."""
        return State(self.state).name

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
        """Packets held now."""
        return self.hold.count

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next; the largest signed 64-bit number for never."""
        return self.next_deadline()

    # -- the four verbs ---------------------------------------------------------------------

    def start(self, now_ns):
        """Begin at `now_ns`: from now on a line that says nothing is silent."""
        line: cython.int
        for line in range(self.line_count):
            self.heard[line] = now_ns
        self.last_accepted = now_ns
        self.silence_check = now_ns + self.silent_wait
        return 0

    def is_old(self, header):
        """Would this packet be a copy of something seen? (Then its messages need no check.)"""
        return (
            self.joined
            and header.kind == kinds.DATA
            and header.next_sequence <= self.expected
            and header.session == self.session
        )

    def receive(self, line, header, data, start, received_ns, now_ns):
        """Take the packet `data[start:start + header.length]` of `line`; returns a `Verdict`.

        `header` is the scanner's, checked and accepted; `received_ns` the kernel's stamp;
        `now_ns` the time of this process.
        """
        self.out.received_ns = received_ns
        self.heard[line] = now_ns
        if self.silent[line]:
            self._line_back(line)
        if (
            self.state == states.FLOWING
            and header.sequence == self.expected
            and header.kind == kinds.DATA
            and header.next_sequence > self.expected
            and header.session == self.session
            and not self.epochs.changing(now_ns)
        ):
            return self._publish(line, header, data, start, received_ns, now_ns)
        return self._sort(line, header, data, start, received_ns, now_ns)

    def tick(self, now_ns):
        """Let time pass: deadlines of holes, of the start, of lines, of a full ring."""
        if now_ns >= self.silence_check:
            self._check_lines(now_ns)
        if now_ns >= self.work_deadline:
            self._advance(now_ns)
        return 0

    def next_deadline(self):
        """When `tick` must be called next."""
        if self.silence_check < self.work_deadline:
            return self.silence_check
        return self.work_deadline

    # -- what to do with a packet -----------------------------------------------------------

    def _sort(self, line, header, data, start, received_ns, now_ns):
        """Sort out what is not of this numbering, then act by the table."""
        if header.kind == kinds.CONTROL:
            self.out.count_line(line, columns.LINE_CONTROL)
            return states.HEARD
        if header.kind == kinds.HEARTBEAT:
            self.out.count_line(line, columns.LINE_HEARTBEATS)
        if self.pending_cause or self.blocked:
            self._advance(now_ns)
        if self.pending_cause == 0:
            if (
                self.epochs.changing(now_ns)
                and header.session == self.session
                and self.epochs.straggles(line, header, self.expected, self.max_jump)
            ):
                self.out.count_line(line, columns.LINE_STALE)
                return states.STALE
            if header.kind == kinds.RESET:
                return self._reset(line, header, data, start, received_ns, now_ns)
            if header.session != self.session:
                if self.joined or self.join_seen:
                    return self._other_session(line, header, data, start, received_ns, now_ns)
                self._take_session(header.session)
        return self._act(line, header, data, start, received_ns, now_ns)

    def _act(self, line, header, data, start, received_ns, now_ns):
        """Do what the table says."""
        action: cython.int = self.actions[self.state * states.INPUTS + self._place(header)]
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
            self._reveal(header.next_sequence, now_ns)
        elif action == states.HINT:
            self._hint(header.next_sequence, now_ns)
        elif action == states.AGREE:
            self.last_accepted = now_ns
        return states.HEARD

    def _place(self, header):
        """The table's input for this packet: its number against `expected`."""
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
        if base == 0 and end <= self.expected:
            return states.OLD
        if number <= self.expected:
            # A data packet reaches past `expected` here; a heartbeat only names a number.
            if base and number < self.expected:
                return base + states.OLD
            return base + states.NEXT
        if number - self.expected <= self.max_jump:
            return base + states.AHEAD
        return base + states.JUMP

    def _publish(self, line, header, data, start, received_ns, now_ns):
        """Write the packet that is next, then whatever waited for it."""
        if not self.out.packet(
            line, header, data, start, received_ns, self.expected - header.sequence
        ):
            self.blocked = True
            return self._hold(line, header, data, start, received_ns, now_ns)
        self.window.remember(
            header.sequence,
            fingerprint(data, start + header.body, header.length - header.body),
        )
        self.expected = header.next_sequence
        self.last_accepted = now_ns
        self.last_send_time = header.send_time
        if self.epochs.first_time == 0:
            self.epochs.first_time = header.send_time
        if self.state != states.FLOWING:
            self._moved()
            self._advance(now_ns)
        return states.PUBLISHED

    def _hold(self, line, header, data, start, received_ns, now_ns):
        """Keep a packet that cannot be published yet."""
        slot: cython.Py_ssize_t
        noticed: cython.ulonglong = now_ns
        if self.hold.contains(header.sequence, header.next_sequence):
            if self.window.compare(
                header.sequence,
                fingerprint(data, start + header.body, header.length - header.body),
            ) == DIFFERENT:
                self._alarm(line, header)
            self.out.count_line(line, columns.LINE_DUPLICATES)
            return states.DUPLICATE
        if self.hold.count >= self.hold.capacity:
            self._make_room(header.sequence, now_ns)
            if self.hold.count >= self.hold.capacity and (
                self.blocked or header.sequence > self.expected
            ):
                self.out.count_line(line, columns.LINE_REFUSED)
                return states.REFUSED
            # What is expected has moved: judge the packet again. It is next, or there is room.
            return self._act(line, header, data, start, received_ns, now_ns)
        if self.known_next >= header.sequence and self.known_next > self.expected:
            noticed = self.known_since
        slot = self.pool.take(
            line, header, data, start, received_ns, noticed,
            fingerprint(data, start + header.body, header.length - header.body),
        )  # fmt: skip
        if slot < 0:
            self.out.count_line(line, columns.LINE_OVERSIZE)
            self._settle(now_ns)
            return states.REFUSED
        self.hold.insert(slot)
        self.window.remember(header.sequence, self.pool.word(slot, slots.FINGERPRINT))
        self.out.count_line(line, columns.LINE_HELD)
        self.out.highest(columns.CHANNEL_HOLD_HIGH, self.hold.count)
        self.last_accepted = now_ns
        if not self.joined and not self.join_seen:
            self.join_seen = True
            self.join_since = now_ns
        self._settle(now_ns)
        return states.HELD

    def _make_room(self, sequence, now_ns):
        """The hold is full: give the earliest hole up now, up to the first packet in hand."""
        lowest: cython.ulonglong
        self.out.count(columns.CHANNEL_HOLD_FULL, 1)
        if not self.joined:
            self._begin(now_ns)
        lowest = self.pool.word(self.hold.lowest(), slots.SEQUENCE)
        if self.joined and lowest > self.expected:
            self.forced_until = lowest if lowest < sequence else sequence
            self.forced_cause = BY_FULL_HOLD
        self._advance(now_ns)
        return 0

    def _drop_old(self, line, header, data, start, received_ns, now_ns):
        """A number that was expected before: late, from before the start, or a duplicate."""
        compared: cython.int
        if self.lost.touches(header.sequence, header.next_sequence):
            self.out.count_line(line, columns.LINE_LATE)
            return states.LATE
        compared = self.window.compare(
            header.sequence,
            fingerprint(data, start + header.body, header.length - header.body),
        )
        if compared != SAME and self._is_newer(header, now_ns):
            return self._quarantine(line, header, data, start, received_ns, now_ns)
        if compared == DIFFERENT:
            self._alarm(line, header)
        if header.sequence < self.epochs.first:
            self.out.count_line(line, columns.LINE_STALE)
            return states.STALE
        self.out.count_line(line, columns.LINE_DUPLICATES)
        return states.DUPLICATE

    def _alarm(self, line, header):
        """Message bytes differ from the first copy's. (Without ring room only the count tells.)"""
        self.out.count_line(line, columns.LINE_MISMATCHES)
        self.out.count(columns.CHANNEL_MISMATCHES, 1)
        self.out.mark(records.MISMATCH, line, header.sequence, header.next_sequence, 0)
        return 0

    def _is_newer(self, header, now_ns):
        """Does a low number look like a numbering begun anew whose reset nobody saw?

        Only when nothing has fitted for `resync_us`, and then by the send time.
        """
        if now_ns - self.last_accepted < self.resync_wait:
            return False
        if now_ns - self.last_accepted >= IDLE_NS:
            return True
        return header.send_time > self.last_send_time and self.last_send_time > 0

    # -- heartbeats and the start -----------------------------------------------------------

    def _reveal(self, number, now_ns):
        """A heartbeat will be followed by `number`: all before it has been sent."""
        self.last_accepted = now_ns
        if self.known_next <= self.expected:
            self.known_next = number
            self.known_since = now_ns
        elif number > self.known_next and number > self.later_next:
            # An older hole has its own deadline; this one is looked at after it.
            self.later_next = number
            self.later_since = now_ns
        self._settle(now_ns)
        return 0

    def _hint(self, number, now_ns):
        """While joining: the stream may be joined at `number` if nothing lower comes."""
        if not self.join_seen:
            self.join_seen = True
            self.join_since = now_ns
        if self.join_lowest == 0 or number < self.join_lowest:
            self.join_lowest = number
        if number > self.join_highest:
            self.join_highest = number
        self._settle(now_ns)
        return 0

    def _start_at(self, number, now_ns):
        """Join the stream at `number`; 0 when the ring lacks room to say so."""
        slot: cython.Py_ssize_t
        if not self.out.mark(records.START, 0, number, number, 0):
            self.blocked = True
            self._settle(now_ns)
            return 0
        self.out.count(columns.CHANNEL_STARTS, 1)
        self.joined = True
        self.expected = number
        self.epochs.first = number
        self.last_accepted = now_ns
        if self.join_highest > number and self.join_highest - number <= self.max_jump:
            self.known_next = self.join_highest
            self.known_since = now_ns
        # Until now nobody knew that anything was missing: the holes' waits begin here.
        self.hold.notice_again(now_ns)
        while self.hold.count:
            slot = self.hold.highest()
            if self.pool.word(slot, slots.SEQUENCE) - number <= self.max_jump:
                break
            self.hold.take_highest()
            self.out.count(columns.CHANNEL_EVICTED, self.quarantine.add(slot))
        self._settle(now_ns)
        return 1

    def _begin(self, now_ns):
        """Join at the lowest number seen."""
        lowest: cython.ulonglong = self.join_lowest
        held: cython.ulonglong
        if self.hold.count:
            held = self.pool.word(self.hold.lowest(), slots.SEQUENCE)
            if lowest == 0 or held < lowest:
                lowest = held
        return self._start_at(lowest, now_ns)

    # -- going on ---------------------------------------------------------------------------

    def _advance(self, now_ns):
        """Do everything that can be done by now: start, release, give up, renumber."""
        self.blocked = False
        if not self.joined and (self.hold.count or self.join_lowest):
            if self.pending_cause == 0 and now_ns < self.join_since + self.start_wait:
                return self._settle(now_ns)
            if not self._begin(now_ns):
                return 0
        if self.joined:
            self._release(now_ns)
        if self.pending_cause and not self.blocked:
            self._finish_renumbering(now_ns)
        return self._settle(now_ns)

    def _release(self, now_ns):
        """Write held packets in order and give up the holes that are due."""
        slot: cython.Py_ssize_t
        end: cython.ulonglong
        while not self.blocked:
            if self.hold.count:
                slot = self.hold.lowest()
                if self.pool.word(slot, slots.NEXT) <= self.expected:
                    self.out.count_line(
                        cython.cast(cython.int, self.pool.word(slot, slots.LINE)),
                        columns.LINE_DUPLICATES,
                    )
                    self.hold.drop_lowest()
                    continue
                if self.pool.word(slot, slots.SEQUENCE) <= self.expected:
                    self._emit(slot)
                    continue
            end = self._due(now_ns)
            if end == 0:
                break
            self._give_up(end)
        return 0

    def _emit(self, slot):
        """Write a held packet and free its slot, or be blocked."""
        sequence: cython.ulonglong = self.pool.word(slot, slots.SEQUENCE)
        if not self.out.held(self.pool, slot, self.expected - sequence):
            self.blocked = True
            return 0
        self.expected = self.pool.word(slot, slots.NEXT)
        self.last_send_time = self.pool.word(slot, slots.SEND_TIME)
        if self.epochs.first_time == 0:
            self.epochs.first_time = self.last_send_time
        self.hold.drop_lowest()
        self._moved()
        return 1

    def _due(self, now_ns):
        """One past the missing range that must be given up now; 0 when none must."""
        end: cython.ulonglong = 0
        lowest: cython.ulonglong = 0
        if self.hold.count:
            lowest = self.pool.word(self.hold.lowest(), slots.SEQUENCE)
        if self.forced_until > self.expected:
            end = self.forced_until
        else:
            self.forced_cause = BY_DEADLINE
            if self.known_next > self.expected and now_ns >= self.known_since + self.gap_wait:
                end = self.known_next
            if (
                lowest
                and now_ns >= self.pool.word(self.hold.lowest(), slots.NOTICED) + self.gap_wait
            ):
                end = lowest
        if lowest and end > lowest:
            end = lowest
        return end

    def _give_up(self, end):
        """Announce [expected, end) as lost and go on behind it, or be blocked."""
        if not self.out.mark(records.GAP, 0, self.expected, end, self.forced_cause):
            self.blocked = True
            return 0
        self.lost.add(self.expected, end)
        self.out.count(columns.CHANNEL_GAPS, 1)
        self.out.count(columns.CHANNEL_LOST, end - self.expected)
        self.expected = end
        self._moved()
        return 1

    def _moved(self):
        """`expected` has moved: forget what heartbeats told of numbers before it."""
        if self.known_next <= self.expected:
            self.known_next = self.later_next
            self.known_since = self.later_since
            self.later_next = 0
        return 0

    def _settle(self, now_ns):
        """Find the state and the next deadline from what is true now."""
        deadline: cython.ulonglong = NEVER
        other: cython.ulonglong
        if self.pending_cause:
            self.state = states.RENUMBERING
            deadline = now_ns + RETRY_NS
        elif not self.joined:
            self.state = states.JOINING
            if self.blocked:
                deadline = now_ns + RETRY_NS
            elif self.join_seen:
                deadline = self.join_since + self.start_wait
        elif self.blocked:
            self.state = states.BLOCKED
            deadline = now_ns + RETRY_NS
        elif self.hold.count or self.known_next > self.expected:
            self.state = states.WAITING
            if self.known_next > self.expected:
                deadline = self.known_since + self.gap_wait
            if self.hold.count:
                other = self.pool.word(self.hold.lowest(), slots.NOTICED) + self.gap_wait
                if other < deadline:
                    deadline = other
        else:
            self.state = states.FLOWING
        self.work_deadline = deadline
        return 0

    # -- new numberings ---------------------------------------------------------------------

    def _reset(self, line, header, data, start, received_ns, now_ns):
        """The feed's reset packet: the first copy begins a new numbering, others do not."""
        slot: cython.Py_ssize_t
        whole: cython.ulonglong = fingerprint(data, start, header.length)
        if self.epochs.is_copy(line, header, whole, now_ns):
            self.out.count_line(line, columns.LINE_DUPLICATES)
            return states.DUPLICATE
        slot = self.pool.take(line, header, data, start, received_ns, now_ns, whole)
        if slot < 0:
            self.out.count_line(line, columns.LINE_OVERSIZE)
            return states.REFUSED
        self._renumber(RESET_PACKET, header.session, header.next_sequence, slot, now_ns)
        return states.RENUMBERED

    def _renumber(self, cause, session, number, slot, now_ns):
        """Begin a new numbering at `number`, after everything held is let go."""
        last: cython.ulonglong = 0
        if self.hold.count:
            last = self.pool.word(self.hold.highest(), slots.SEQUENCE)
        if self.known_next > last:
            last = self.known_next
        if self.later_next > last:
            last = self.later_next
        self.forced_until = last
        self.forced_cause = BY_RESET
        self.pending_cause = cause
        self.pending_session = session
        self.pending_next = number
        self.pending_slot = slot
        self.pending_told = False
        self._advance(now_ns)
        return 0

    def _finish_renumbering(self, now_ns):
        """Write RESET, then the reset packet itself if there is one; or be blocked."""
        slot: cython.Py_ssize_t = self.pending_slot
        if not self.pending_told:
            self.out.session = self.pending_session
            if not self.out.mark(records.RESET, 0, 0, self.pending_next, self.pending_cause):
                self.out.session = self.session
                self.blocked = True
                return 0
            self._enter_epoch(now_ns)
        if slot >= 0:
            if not self.out.held(self.pool, slot, 0):
                self.blocked = True
                return 0
            self.pool.give_back(slot)
            self.pending_slot = -1
        self.pending_cause = 0
        return 1

    def _enter_epoch(self, now_ns):
        """The RESET record is written: forget the old numbering, but for its stragglers."""
        slot: cython.Py_ssize_t = self.pending_slot
        self.pending_told = True
        self.epochs.leave(self.expected if self.joined else 0, self.pending_next, now_ns)
        if slot >= 0:
            self.epochs.by_reset(
                cython.cast(cython.int, self.pool.word(slot, slots.LINE)),
                self.pool.word(slot, slots.SEND_TIME),
                self.pool.word(slot, slots.FINGERPRINT),
            )
        if self.joined and self.session != self.pending_session:
            self.epochs.leave_session(self.session)
        self._take_session(self.pending_session)
        self.expected = self.pending_next
        self.joined = True
        self.join_lowest = 0
        self.known_next = 0
        self.later_next = 0
        self.forced_until = 0
        self.last_accepted = now_ns
        self.last_send_time = self.epochs.first_time
        self.lost.clear()
        self.window.clear()
        self.quarantine.forget_runs()
        if self.pending_cause == RESET_PACKET:
            self.out.count(columns.CHANNEL_RESETS, 1)
            self.quarantine.clear()
        elif self.pending_cause == NEW_SESSION:
            self.out.count(columns.CHANNEL_SESSIONS, 1)
        return 0

    def _take_session(self, session):
        """From now on this is the session."""
        self.session = session
        self.out.session = session
        return 0

    def _other_session(self, line, header, data, start, received_ns, now_ns):
        """A packet of another session: an earlier one, a new one that begins, or a doubt."""
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
            self._renumber(NEW_SESSION, header.session, self.first_sequence, -1, now_ns)
            return self._act(line, header, data, start, received_ns, now_ns)
        return self._quarantine(line, header, data, start, received_ns, now_ns)

    # -- quarantine -------------------------------------------------------------------------

    def _quarantine(self, line, header, data, start, received_ns, now_ns):
        """Set a packet aside whose number is not believed yet, and weigh the evidence."""
        slot: cython.Py_ssize_t
        evidence: cython.int
        alone: cython.bint
        print_64: cython.ulonglong = 0
        if header.kind != kinds.HEARTBEAT:
            print_64 = fingerprint(data, start + header.body, header.length - header.body)
        evidence = self.quarantine.weigh(
            line, header, print_64, header.session != self.session, self.max_jump
        )
        alone = (
            self.quarantine.follow_run(line, header) >= self.resync_run
            and now_ns - self.last_accepted >= self.resync_wait
            and evidence != CONFIRMED
        )
        self.out.count_line(line, columns.LINE_QUARANTINED)
        if evidence != REPEATED:
            slot = self.pool.take(line, header, data, start, received_ns, now_ns, print_64)
            if slot < 0:
                self.out.count_line(line, columns.LINE_OVERSIZE)
            else:
                self.out.count(columns.CHANNEL_EVICTED, self.quarantine.add(slot))
        if evidence == CONFIRMED or alone:
            self._confirm(header.session, alone, now_ns)
        return states.QUARANTINED

    def _confirm(self, session, alone, now_ns):
        """Believe the quarantine's anchor and what is near it: announce the gap, go on there.

        `alone` says that it is one line's word after `resync_us`, not two lines' or a heartbeat's.
        """
        first: cython.ulonglong
        # Of a jump forward nothing that has been passed meanwhile is part.
        least: cython.ulonglong = 0
        if session == self.session and self.quarantine.anchor >= self.expected:
            least = self.expected
        first = self.quarantine.lowest(session, least, self.max_jump)
        if session != self.session:
            self._renumber(NEW_SESSION, session, self.first_sequence, -1, now_ns)
        elif first < self.expected:
            self._renumber(RESYNC, session, first, -1, now_ns)
        if self.pending_cause:
            return 0  # no room to say so now; the evidence stays and will be found again
        if alone:
            self.out.count(columns.CHANNEL_RESYNCS, 1)
        else:
            self.out.count(columns.CHANNEL_JUMPS, 1)
        if first > self.expected and first - self.expected > self.max_jump:
            self.forced_until = first
            self.forced_cause = BY_JUMP
            self._advance(now_ns)
        self._adopt(first, session, now_ns)
        return self._advance(now_ns)

    def _adopt(self, first, session, now_ns):
        """Move the quarantined packets from `first` on into the hold; drop the others."""
        at: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        sequence: cython.ulonglong
        next_sequence: cython.ulonglong
        for at in range(self.quarantine.capacity):
            slot = self.quarantine.take(at)
            if slot < 0:
                continue
            sequence = self.pool.word(slot, slots.SEQUENCE)
            next_sequence = self.pool.word(slot, slots.NEXT)
            if (
                self.pool.word(slot, slots.SESSION) == session
                and self.pool.word(slot, slots.KIND) == kinds.DATA
                and sequence >= first
                and sequence - first <= self.max_jump
                and not self.hold.contains(sequence, next_sequence)
                and self.hold.insert(slot)
            ):
                self.window.remember(sequence, self.pool.word(slot, slots.FINGERPRINT))
            else:
                self.pool.give_back(slot)
        self.last_accepted = now_ns
        return 0

    # -- lines ------------------------------------------------------------------------------

    def _check_lines(self, now_ns):
        """Announce each line that has said nothing for `silent_us`."""
        line: cython.int
        due: cython.ulonglong
        check: cython.ulonglong = NEVER
        for line in range(self.line_count):
            if self.silent[line]:
                continue
            due = self.heard[line] + self.silent_wait
            if now_ns >= due:
                if self.out.mark(
                    records.LINE_SILENT, line, self.expected, self.expected, 0
                ):
                    self.silent[line] = 1
                    self.out.count_line(line, columns.LINE_SILENCES)
                    continue
                due = now_ns + RETRY_NS
            if due < check:
                check = due
        self.silence_check = check
        return 0

    def _line_back(self, line):
        """A silent line speaks again. Without room to say so, its next packet will."""
        due: cython.ulonglong
        if not self.out.mark(records.LINE_BACK, line, self.expected, self.expected, 0):
            return 0
        self.silent[line] = 0
        due = self.heard[line] + self.silent_wait
        if due < self.silence_check:
            self.silence_check = due
        return 0
