"""The ordered part of a channel: the next is written, others are held, gaps have deadlines.

A `Sequencer` knows the next number, `expected`, and moves it only when the record that moves it has
been written: a packet, or a declared loss. It judges nothing; the arbiter decides which
packets belong to the stream, and when it begins anew (`arbitration.py`).

A *gap* is a range of missing numbers, noticed when a packet behind it is held or a heartbeat names
a later number. It is given up `gap_wait_us` after that, each gap by its own clock, or earlier when
forced; then a GAP record declares it lost.

Where there is recovery (`recovery_wait_ns`), the gap is not given up then but reported, once, with
a MISSING record, and has that much longer. GAP_NOTICED and CLOSED records report that a first
gap was noticed, and that none is left.

`blocked` means that the ring had no room for the next record; `release` continues there.

A packet ahead, or a heartbeat's number, is no evidence of a gap where its own line goes on below
it: it is *contradicted* (`belief.py`), has no clock, and stands aside until the stream comes to it.
A gap is as old as the first believed packet behind it. When the stream comes to a packet aside,
that is written where its line may just have reordered (it came less than `gap_wait_us` ago), or
where recovery or a given-up gap leads to it. Otherwise the stream waits, as if it had not come,
for the real one; and it is written where none comes, because what a line has brought is not lost.
"""

import cython
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import columns, records, slots
from cython.cimports.feedhandler.ingest.answers import (
    DIFFERENT,
    KEPT,
    NO_ROOM,
    OTHER_AGAIN,
    SAME_AGAIN,
    TOO_LONG,
)
from cython.cimports.feedhandler.ingest.belief import Belief
from cython.cimports.feedhandler.ingest.fingerprint import fingerprint
from cython.cimports.feedhandler.ingest.hold import Hold, PacketPool
from cython.cimports.feedhandler.ingest.lost import Islands, LostRanges, Runs
from cython.cimports.feedhandler.ingest.output import Output
from cython.cimports.feedhandler.ingest.packing import Copies, begin_alike

from feedhandler.codecs.visibility import Public, Readonly

#: No deadline. (The largest signed number: C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
#: How long a stream that went back may stand still before an island, where no line shows that
#: anything is missing there: then what lies between is lost after all.
ISLAND_WAIT_NS = cython.declare(cython.ulonglong, 1_000_000_000)


@cython.final
@cython.cclass
class Sequencer:
    """Order for one channel: records go to `out`, waiting packets into `pool`.

    `hold_packets` wait at most, a gap waits `gap_wait_ns` for the lines and then
    `recovery_wait_ns` for recovery, and `copies` (`packing.Copies`) compares what comes twice.
    Gaps below `asked` were reported as missing; `epoch` goes into these records. `first_time` is
    the send time of the first packet published since the start or restart, `last_send_time` the
    latest's. Packets of line `lines` are recovery's.
    """

    out: Readonly[Output]
    pool: Readonly[PacketPool]
    hold: Readonly[Hold]
    copies: Readonly[Copies]
    lost: Readonly[LostRanges]
    expected: Public[cython.ulonglong]
    blocked: Public[cython.bint]
    last_send_time: Public[cython.ulonglong]
    first_time: Public[cython.ulonglong]
    epoch: Public[cython.ulonglong]
    gap_wait: cython.ulonglong
    give_up_wait: cython.ulonglong
    asked: cython.ulonglong
    recovering: cython.bint
    gap_reported: cython.bint
    known_next: cython.ulonglong
    known_since: cython.ulonglong
    later_next: cython.ulonglong
    later_since: cython.ulonglong
    forced_until: cython.ulonglong
    cause: cython.int
    # belief
    aside: Readonly[Hold]
    lines: cython.int
    belief: Readonly[Belief]
    by_line: cython.bint
    known_line: cython.int
    later_line: cython.int
    known_order: cython.ulonglong
    later_order: cython.ulonglong
    # losses announced in error
    runs: Runs
    islands: Readonly[Islands]
    island_at: cython.ulonglong
    island_since: cython.ulonglong
    read_up_to: cython.ulonglong

    def __init__(
        self, out, pool, hold_packets: int, gap_wait_ns: int, recovery_wait_ns: int,
        copies, lines: int,
    ) -> None:  # fmt: skip
        self.out = out
        self.pool = pool
        self.hold = Hold(pool, hold_packets)
        # Contradicted packets; both together hold `hold_packets` at most.
        self.aside = Hold(pool, hold_packets)
        self.lines = lines
        self.belief = Belief(lines)
        self.by_line = False
        self.known_line = self.later_line = 0
        self.known_order = self.later_order = 0
        self.runs = Runs(pool, lines)
        self.islands = Islands()
        # Where the stream stands, and since when, while there are islands.
        self.island_at = self.island_since = 0
        # No gap is given up for a deadline after this time: a line may not be read up to it yet.
        self.read_up_to = NEVER
        self.copies = copies
        self.lost = LostRanges(lines)
        self.gap_wait = gap_wait_ns
        self.give_up_wait = gap_wait_ns + recovery_wait_ns
        self.recovering = recovery_wait_ns > 0
        self.gap_reported = False
        self.asked = self.epoch = 0
        self.expected = 0
        self.blocked = False
        self.last_send_time = self.first_time = 0
        self.known_next = self.known_since = self.later_next = self.later_since = 0
        self.forced_until = 0
        self.cause = records.BY_DEADLINE

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def publish(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
    ) -> cython.int:
        """Write the packet that is next; return 0 when the ring is full.

        Call `release` for the packets that waited for it.
        """
        if not self.out.packet(
            line, header, data, start, received_ns, self.expected - header.sequence
        ):
            self.blocked = True
            return 0
        if self.copies.by_message or header.kind == kinds.SKIP or self.copies.are_again(header):
            self.copies.note(header, data, start)
        else:  # inline, because passing the buffer on costs more than all the rest
            self.copies.window.remember(
                header.sequence,
                fingerprint(data, start + header.body, header.length - header.body),
                header.next_sequence - header.sequence,
            )
        self.expected = header.next_sequence
        self.last_send_time = header.send_time
        if self.first_time == 0:
            self.first_time = header.send_time
        self._moved()
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def keep(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Hold a packet that is not next; return KEPT, or why not.

        NO_ROOM: the hold is full. SAME_AGAIN, OTHER_AGAIN: it is held already, with the same or
        with other message bytes. TOO_LONG: longer than a slot.
        """
        noticed: cython.ulonglong = now_ns
        print_64: cython.ulonglong = fingerprint(
            data, start + header.body, header.length - header.body
        )
        if self.hold.contains(header.sequence, header.next_sequence):
            again: cython.int = self._again(line, header, data, start, print_64, now_ns)
            if again != KEPT:
                return again
        elif self.aside.contains(header.sequence, header.next_sequence) and (
            self._again_aside(line, header, data, start, print_64, now_ns)
        ):
            return SAME_AGAIN
        if self.is_full():
            return NO_ROOM
        # A heartbeat may have shown the gap before this packet did.
        if self.known_next >= header.sequence and self.known_next > self.expected:
            noticed = self.known_since
        slot: cython.Py_ssize_t = self.pool.store(
            line, header, data, start, received_ns, noticed, print_64
        )
        if slot < 0:
            return TOO_LONG
        self.enlist(slot, print_64, True)
        if self.copies.are_again(header):
            return self._kept(line)
        if self.belief.show(line, header.sequence, header.next_sequence):
            self._believe_before(line, header.sequence)
        elif self.belief.distrusts(line, now_ns):
            self.pool.words[slot * slots.SLOT_WORDS + slots.ORDER] = 0
        return self._kept(line)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _kept(self, line: cython.int) -> cython.int:
        """Count a held packet; return KEPT."""
        self.out.count_line(line, columns.LINE_HELD)
        self.out.highest(columns.CHANNEL_HOLD_HIGH, self.hold.count + self.aside.count)
        return KEPT

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def enlist(
        self, slot: cython.Py_ssize_t, print_64: cython.ulonglong, fresh: cython.bint
    ) -> cython.bint:
        """Insert a packet into the hold; return 0 where that is full.

        `fresh`: it has just come from its line.
        """
        self.belief.claim(self.speaker(slot), self.hold.count + self.aside.count == 0)
        self.pool.words[slot * slots.SLOT_WORDS + slots.ORDER] = self.belief.serial
        if not self.hold.insert(slot, fresh):
            return 0
        if self.pool.word(slot, slots.KIND) == kinds.SKIP:
            return 1
        self.copies.note_held(
            self.pool.word(slot, slots.SEQUENCE), self.pool.span(slot), self.pool.slab,
            self.pool.body_at(slot), self.pool.body_size(slot), print_64,
        )  # fmt: skip
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _is_alike(
        self,
        slot: cython.Py_ssize_t,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
    ) -> cython.bint:
        """Return whether two packets that begin with one number have the same messages.

        Compared as far as both go: the one in this slot, and the given one.
        """
        return begin_alike(
            self.pool.slab, self.pool.body_at(slot), self.pool.body_size(slot),
            data, start + header.body, header.length - header.body,
        )  # fmt: skip

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _believe_before(self, line: cython.int, sequence: cython.ulonglong) -> cython.int:
        """Believe what the line showed just before `sequence`, where it goes on: no lone packet."""
        index: cython.Py_ssize_t = self.aside.index_of(sequence) - 1
        if index < 0:
            return 0
        slot: cython.Py_ssize_t = self.aside.slot(index)
        if self.pool.word(slot, slots.NEXT) == sequence and (self.speaker(slot) == line):
            self.enlist(self.aside.remove(index), self.pool.word(slot, slots.FINGERPRINT), False)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _believe_below(self, line: cython.int, number: cython.ulonglong) -> cython.int:
        """Believe what the line showed below `number`, which its heartbeat names."""
        at: cython.Py_ssize_t = self.aside.index_of(number)
        while at > 0:
            at -= 1
            slot: cython.Py_ssize_t = self.aside.slot(at)
            if self.speaker(slot) == line:
                self.enlist(self.aside.remove(at), self.pool.word(slot, slots.FINGERPRINT), False)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _again_aside(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        print_64: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.bint:
        """Handle a packet whose number stands aside; return 1 where it is the same packet.

        Another line's copy brings it back into the hold. A packet with other bytes replaces it.
        """
        index: cython.Py_ssize_t = self.aside.index_of(header.sequence)
        slot: cython.Py_ssize_t = self.aside.slot(index)
        if self.pool.word(slot, slots.FINGERPRINT) == print_64:
            if self.speaker(slot) != line:
                self._confirm(slot)
                self.enlist(self.aside.remove(index), print_64, False)
            return 1
        if self.pool.word(slot, slots.KIND) != header.kind or (
            self.pool.word(slot, slots.NEXT) != header.next_sequence
            and self._is_alike(slot, header, data, start)
        ):
            return 0  # packed differently: no evidence about the rest
        self._catch_out(slot, now_ns)
        self.pool.give_back(self.aside.remove(index))
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _again(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        print_64: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Handle a packet whose number is held; return SAME_AGAIN, OTHER_AGAIN or KEPT.

        The same packet from another line makes it believed for good; a contradicted one with other
        bytes is replaced by this one (KEPT).
        """
        index: cython.Py_ssize_t = self.hold.index_of(header.sequence)
        slot: cython.Py_ssize_t = self.hold.slot(index)
        while self.pool.word(slot, slots.NEXT) < header.next_sequence:
            index += 1
            slot = self.hold.slot(index)
        if self.pool.word(slot, slots.FINGERPRINT) == print_64:
            if self.speaker(slot) != line:
                self._confirm(slot)
            return SAME_AGAIN
        if self.pool.word(slot, slots.KIND) != header.kind:
            return SAME_AGAIN  # skipped on one line: the held one stays
        if self.pool.word(slot, slots.NEXT) != header.next_sequence:
            self.copies.differ()
            if self._is_alike(slot, header, data, start):
                # Packed differently; one that is not believed does not count as its copy.
                return SAME_AGAIN if self._is_good(slot) else KEPT
        if not self._is_good(slot):
            self._catch_out(slot, now_ns)
            self.pool.give_back(self.hold.remove(index))
            return KEPT
        if (
            self.copies.compare(
                header.sequence, header.next_sequence - header.sequence, data,
                start + header.body, header.length - header.body, print_64,
            )
            == DIFFERENT
        ):  # fmt: skip
            return OTHER_AGAIN
        return SAME_AGAIN

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _confirm(self, slot: cython.Py_ssize_t) -> cython.int:
        """Believe this packet for good, as recovery's are: two lines have shown it."""
        self.pool.words[slot * slots.SLOT_WORDS + slots.SPEAKER] = self.lines
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _catch_out(self, slot: cython.Py_ssize_t, now_ns: cython.ulonglong) -> cython.int:
        """Count the packet in this slot as forged, and mark its line: another had its number."""
        self.out.count(columns.CHANNEL_CONTRADICTED, 1)
        return self.belief.catch_out(self.speaker(slot), now_ns)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def is_full(self) -> cython.bint:
        """Return whether there is no room for one more packet."""
        return self.hold.count + self.aside.count >= self.hold.capacity

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def make_room(self) -> cython.bint:
        """Drop the highest contradicted packet; return 0 where there is none."""
        self._set_aside()
        if self.aside.count == 0:
            return 0
        self.pool.give_back(self.aside.pop_highest())
        self.out.count(columns.CHANNEL_EVICTED, 1)
        return 1

    # -- belief -----------------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def speaker(self, slot: cython.Py_ssize_t) -> cython.int:
        """Return the line by which the packet in this slot is believed or not."""
        return self.pool.word(slot, slots.SPEAKER)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def progress(self, line: cython.int, again: cython.bint) -> cython.int:
        """Record that the next packet came: from a line, from recovery, or sent `again`."""
        self.by_line = line < self.lines and not again
        if self.by_line:
            self.belief.progress(line)
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def copy(self, line: cython.int, header: PacketHeader) -> cython.int:
        """Record that a line shows what was published before.

        That is evidence where anything is held, or where the line brings what was announced lost;
        not where it is sent again.
        """
        if self.copies.are_again(header):
            return 0
        if self.runs.all:
            self.runs.pass_over(line, header)
        if self.hold.count or self.aside.count or self.known_next > self.expected:
            self.belief.copy(line, header.sequence, header.next_sequence)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _is_good(self, slot: cython.Py_ssize_t) -> cython.bint:
        """Return whether the packet in this slot is believed."""
        return self.belief.believes(self.speaker(slot), self.pool.word(slot, slots.ORDER))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _set_aside(self) -> cython.int:
        """Set the lowest contradicted packets aside, and forget contradicted heartbeats' numbers.

        Packets from the first believed one on stay in the hold.
        """
        while self.hold.count:
            slot: cython.Py_ssize_t = self.hold.lowest()
            if self._is_good(slot):
                break
            slot = self.hold.pop_lowest()
            self.belief.pass_by(self.speaker(slot), self.pool.word(slot, slots.ORDER))
            self.pool.words[slot * slots.SLOT_WORDS + slots.ORDER] = 0
            self.aside.insert(slot, False)
        while self.known_next > self.expected and not self.belief.believes(
            self.known_line, self.known_order
        ):
            self._next_known()
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def disprove(self, number: cython.ulonglong) -> cython.int:
        """Contradict packets and heartbeats' numbers from `number` on, which was not sent yet.

        The source has everything that was sent; where too many packets stand there, it is taken to
        lag, and nothing is done.
        """
        at: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.hold.index_of(number)
        if self.hold.count - first >= slots.RUN_MAX:
            return 0  # the source of that statement lags
        self.asked = self.expected
        for at in range(first, self.hold.count):
            slot: cython.Py_ssize_t = self.hold.slot(at)
            self.pool.words[slot * slots.SLOT_WORDS + slots.ORDER] = 0
        if self.known_next > number:
            self.known_order = 0
        if self.later_next > number:
            self.later_order = 0
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def believed_end(self) -> cython.ulonglong:
        """Return the highest number with believed evidence; 0 for none."""
        end: cython.ulonglong = 0
        at: cython.Py_ssize_t = self.hold.count
        self._set_aside()
        while at > 0 and end == 0:
            at -= 1
            slot: cython.Py_ssize_t = self.hold.slot(at)
            if self._is_good(slot):
                end = self.pool.word(slot, slots.SEQUENCE)
        if self.known_next > end:
            end = self.known_next
        return end

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def position_of(self, line: cython.int, latest: cython.ulonglong) -> cython.ulonglong:
        """Return where a line is whose latest packet ended before `latest`.

        That is behind the highest two consecutive packets that are held of it; else at `latest`,
        but not ahead of what is next.
        """
        at: cython.Py_ssize_t = self.hold.count
        above: cython.ulonglong = 0
        while at > 0:
            at -= 1
            slot: cython.Py_ssize_t = self.hold.slot(at)
            if self.speaker(slot) != line:
                continue
            if above and self.pool.word(slot, slots.NEXT) == above:
                return above + 1
            above = self.pool.word(slot, slots.SEQUENCE)
        return latest if latest < self.expected else self.expected

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def reveal(
        self, line: cython.int, number: cython.ulonglong, now_ns: cython.ulonglong
    ) -> cython.int:
        """Record that a heartbeat names `number` as next: all before it is missing from now."""
        since: cython.ulonglong = now_ns
        self._believe_below(line, number)
        if self.known_next > self.expected:
            if number > self.known_next:
                if number > self.later_next:
                    # An older gap has its own deadline; this one is handled after it.
                    self.later_next = number
                    self.later_since = now_ns
                    self.later_line = line
                    self.later_order = self.belief.serial
                return 0
            if line != self.known_line:
                # Its line lags; should the other's number prove wrong, this one stands.
                since = self.known_since
                if number < self.known_next:
                    self.later_next = self.known_next
                    self.later_since = self.known_since
                    self.later_line = self.known_line
                    self.later_order = self.known_order
            elif number == self.known_next:
                return 0
        self.known_next = number
        self.known_since = since
        self.known_line = line
        self.known_order = self.belief.serial
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def force(self, until: cython.ulonglong, cause: cython.int) -> cython.int:
        """Give up every gap before `until` at the next `release`, for `cause` (`GapCause`)."""
        self.forced_until = until
        self.cause = cause
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def force_all(self, cause: cython.int) -> cython.int:
        """Give up every known gap, and so release everything that is held and believed.

        Contradicted packets beyond are dropped.
        """
        last: cython.ulonglong = self.believed_end()
        if self.later_next > last and self.belief.believes(self.later_line, self.later_order):
            last = self.later_next
        if self.islands.highest() > last:
            last = self.islands.highest()
        while self.aside.count:
            self.pool.give_back(self.aside.pop_highest())
            self.out.count(columns.CHANNEL_CONTRADICTED, 1)
        while self.hold.count and self.pool.word(self.hold.highest(), slots.SEQUENCE) > last:
            self.pool.give_back(self.hold.pop_highest())
            self.out.count(columns.CHANNEL_CONTRADICTED, 1)
        return self.force(last, cause)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def release(self, now_ns: cython.ulonglong) -> cython.int:
        """Write held packets in order and give up the gaps that are due."""
        self.blocked = False
        while not self.blocked:
            if self.islands.count and self.islands.first[0] <= self.expected:
                self._pass_island()
                continue
            if self.aside.count and self._pass_aside(now_ns):
                continue
            if self.hold.count:
                slot: cython.Py_ssize_t = self.hold.lowest()
                if self.pool.word(slot, slots.NEXT) <= self.expected:
                    self._drop_copy(self.hold, now_ns)
                    continue
                if self.pool.word(slot, slots.SEQUENCE) <= self.expected:
                    self._emit(self.hold)
                    continue
            end: cython.ulonglong = self._due(now_ns)
            if end == 0:
                break
            if self.aside.count and (
                self.pool.word(self.aside.lowest(), slots.SEQUENCE) <= self.expected
            ):
                # Better than a loss: no other came, and recovery could not help.
                self._emit(self.aside)
            else:
                self._give_up(end)
        if self.recovering and not self.blocked:
            self._report(now_ns)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _pass_island(self) -> cython.int:
        """Pass the first island, with a PASSED record; or be blocked."""
        end: cython.ulonglong = self.islands.end[0]
        if end > self.expected:
            if not self.out.control_event(records.PASSED, 0, self.expected, end, self.epoch):
                self.blocked = True
                return 0
            self.expected = end
        self.islands.drop_first()
        return self._moved()

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def meets_island(self, next_sequence: cython.ulonglong) -> cython.bint:
        """Return whether a packet that ends before this number ends in an island."""
        return self.islands.count > 0 and next_sequence > self.islands.first[0]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _pass_aside(self, now_ns: cython.ulonglong) -> cython.bint:
        """Handle the first packet aside; return 0 where its turn has not come."""
        slot: cython.Py_ssize_t = self.aside.lowest()
        if self.pool.word(slot, slots.NEXT) <= self.expected:
            return self._drop_copy(self.aside, now_ns)
        if self.pool.word(slot, slots.SEQUENCE) > self.expected or (
            self.hold.count and self.lowest() <= self.expected
        ):
            return 0
        if self._is_doubtful(slot, now_ns):
            # The real one is coming, or will be noticed as missing.
            return 0
        self._emit(self.aside)
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _is_doubtful(self, slot: cython.Py_ssize_t, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether this packet aside must wait for another with its number.

        It must where it came `gap_wait` ago or earlier, and either a line has brought the stream
        here (no line reorders so widely) or its own line is distrusted.
        """
        return now_ns >= self.pool.word(slot, slots.NOTICED) + self.gap_wait and (
            self.by_line or self.belief.distrusts(self.speaker(slot), now_ns)
        )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _drop_copy(self, hold: Hold, now_ns: cython.ulonglong) -> cython.bint:
        """Drop the lowest of these packets, whose numbers were published meanwhile."""
        slot: cython.Py_ssize_t = hold.lowest()
        if (
            self.pool.word(slot, slots.KIND) == kinds.DATA
            and self.copies.compare(
                self.pool.word(slot, slots.SEQUENCE), self.pool.span(slot), self.pool.slab,
                self.pool.body_at(slot), self.pool.body_size(slot),
                self.pool.word(slot, slots.FINGERPRINT),
            )
            == DIFFERENT
        ):  # fmt: skip
            self._catch_out(slot, now_ns)
        else:
            self.out.count_line(
                cython.cast(cython.int, self.pool.word(slot, slots.LINE)), columns.LINE_DUPLICATES
            )
        hold.drop_lowest()
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def _next_gap(self) -> cython.Py_ssize_t:
        """Return the index of the packet behind the first unreported gap; -1 for none.

        `asked` moves up to where that gap begins.
        """
        if self.asked < self.expected:
            self.asked = self.expected
        if self.islands.count and self.islands.first[0] <= self.asked < self.islands.end[0]:
            self.asked = self.islands.end[0]
        at: cython.Py_ssize_t = self.hold.index_of(self.asked)
        while at < self.hold.count:
            slot: cython.Py_ssize_t = self.hold.slot(at)
            if self._is_good(slot):
                if self.pool.word(slot, slots.SEQUENCE) > self.asked:
                    return at
                if self.pool.word(slot, slots.NEXT) > self.asked:
                    self.asked = self.pool.word(slot, slots.NEXT)
            at += 1
        return -1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _report(self, now_ns: cython.ulonglong) -> cython.int:
        """Report every gap that is `gap_wait` old with a MISSING record, or be blocked."""
        while True:
            at: cython.Py_ssize_t = self._next_gap()
            if at >= 0:
                end: cython.ulonglong = self.pool.word(self.hold.slot(at), slots.SEQUENCE)
                noticed: cython.ulonglong = self.pool.word(self.hold.slot(at), slots.NOTICED)
            else:
                end = self.known_next
                noticed = self.known_since
            if end <= self.asked or now_ns < noticed + self.gap_wait:
                return 0
            if self.islands.count and self.asked < self.islands.first[0] < end:
                end = self.islands.first[0]
            if not self.out.control_event(records.MISSING, 0, self.asked, end, self.epoch):
                self.blocked = True
                return 0
            self.out.count(columns.CHANNEL_MISSING, end - self.asked)
            self.asked = end

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def report_gaps(self) -> cython.int:
        """Write GAP_NOTICED at a first gap, CLOSED when the last is gone; or be blocked."""
        end: cython.ulonglong = self.expected
        self._set_aside()
        waiting: cython.bint = self.hold.count > 0 or self.known_next > self.expected
        if not self.recovering or waiting == self.gap_reported:
            return 0
        if waiting:
            end = self.lowest() if self.hold.count else self.known_next
        if self.out.control_event(
            records.GAP_NOTICED if waiting else records.CLOSED, 0, self.expected, end, self.epoch
        ):
            self.gap_reported = waiting
        else:
            self.blocked = True
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _emit(self, hold: Hold) -> cython.int:
        """Write the lowest of these packets and free its slot, or be blocked."""
        slot: cython.Py_ssize_t = hold.lowest()
        sequence: cython.ulonglong = self.pool.word(slot, slots.SEQUENCE)
        if self.meets_island(self.pool.word(slot, slots.NEXT)):
            self.copies.cut(self.pool, slot, self.islands.first[0])
        if sequence != self.expected:
            self.copies.differ()
            self.copies.trim_held(self.pool, slot, self.expected)
            sequence = self.pool.word(slot, slots.SEQUENCE)
        if not self.out.held(self.pool, slot, self.expected - sequence):
            self.blocked = True
            return 0
        self.expected = self.pool.word(slot, slots.NEXT)
        self.last_send_time = self.pool.word(slot, slots.SEND_TIME)
        if self.first_time == 0:
            self.first_time = self.last_send_time
        hold.drop_lowest()
        return self._moved()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def _due(self, now_ns: cython.ulonglong) -> cython.ulonglong:
        """Return one past the missing range that must be given up now; 0 when none must."""
        end: cython.ulonglong = 0
        read_ns: cython.ulonglong = now_ns if now_ns < self.read_up_to else self.read_up_to
        self._set_aside()
        lowest: cython.ulonglong = self.lowest()
        if self.forced_until > self.expected:
            end = self.forced_until
        else:
            self.cause = records.BY_DEADLINE
            if self.islands.count:
                if self.island_at != self.expected:
                    self.island_at = self.expected
                    self.island_since = now_ns
                if read_ns >= self.island_since + ISLAND_WAIT_NS:
                    end = self.islands.first[0]
            if self.known_next > self.expected and read_ns >= self.known_since + self.give_up_wait:
                end = self.known_next
            if lowest and read_ns >= (
                self.pool.word(self.hold.lowest(), slots.NOTICED) + self.give_up_wait
            ):
                end = lowest
        if lowest and end > lowest:
            end = lowest
        self._drop_forged(end, now_ns)
        if self.aside.count:
            lowest = self.pool.word(self.aside.lowest(), slots.SEQUENCE)
            if self.expected < lowest and lowest < end:
                end = lowest
        if self.islands.count and end > self.islands.first[0]:
            end = self.islands.first[0]
        return end

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _drop_forged(self, end: cython.ulonglong, now_ns: cython.ulonglong) -> cython.int:
        """Drop packets aside below `end` that come from lines in whose name packets are forged."""
        while (
            self.aside.count
            and self.pool.word(self.aside.lowest(), slots.SEQUENCE) < end
            and self.belief.is_forged(self.speaker(self.aside.lowest()), now_ns)
        ):
            self.out.count(columns.CHANNEL_CONTRADICTED, 1)
            self.aside.drop_lowest()
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _give_up(self, end: cython.ulonglong) -> cython.int:
        """Announce [expected, end) as lost and go on behind it, or be blocked."""
        line: cython.int
        if not self.out.control_event(records.GAP, 0, self.expected, end, self.cause):
            self.blocked = True
            return 0
        self.lost.add(
            self.expected,
            end,
            self.cause == records.BY_DEADLINE or self.cause == records.BY_REFUSAL,
        )
        for line in range(self.lines):
            self.lost.note(line, self.out.won_by_others(line))
        self.out.count(columns.CHANNEL_GAPS, 1)
        self.out.count(columns.CHANNEL_LOST, end - self.expected)
        self.expected = end
        self.by_line = False
        return self._moved()

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def go_back(self, first: cython.ulonglong) -> cython.int:
        """Go back to `first`, as the lines have it, because an announcement was withdrawn."""
        self.expected = self.asked = first
        self.known_next = self.later_next = self.forced_until = 0
        self.by_line = True
        return 0

    # -- positions ----------------------------------------------------------------------------

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _moved(self) -> cython.int:
        """Forget heartbeats' numbers that `expected` has reached."""
        if self.known_next <= self.expected:
            self._next_known()
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _next_known(self) -> cython.int:
        """Use the later heartbeat's number from now on."""
        self.known_next = self.later_next
        self.known_since = self.later_since
        self.known_line = self.later_line
        self.known_order = self.later_order
        self.later_next = 0
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def waiting(self) -> cython.bint:
        """Return whether anything is held, known to be missing, or an island ahead."""
        return (
            self.hold.count > 0
            or self.aside.count > 0
            or self.islands.count > 0
            or self.known_next > self.expected
        )

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def deadline(self) -> cython.ulonglong:
        """Return when the earliest gap must be given up, or the next one reported."""
        deadline: cython.ulonglong = NEVER
        self._set_aside()
        if self.islands.count:
            deadline = self.island_since + ISLAND_WAIT_NS
        if self.known_next > self.expected and self.known_since + self.give_up_wait < deadline:
            deadline = self.known_since + self.give_up_wait
        if self.hold.count:
            noticed: cython.ulonglong = self.pool.word(self.hold.lowest(), slots.NOTICED)
            if noticed + self.give_up_wait < deadline:
                deadline = noticed + self.give_up_wait
        if not self.recovering:
            return deadline
        at: cython.Py_ssize_t = self._next_gap()
        if at >= 0:
            noticed = self.pool.word(self.hold.slot(at), slots.NOTICED)
            if noticed + self.gap_wait < deadline:
                deadline = noticed + self.gap_wait
        elif self.known_next > self.asked and self.known_since + self.gap_wait < deadline:
            deadline = self.known_since + self.gap_wait
        return deadline

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def lowest(self) -> cython.ulonglong:
        """Return the lowest number held; 0 when none is."""
        return self.pool.word(self.hold.lowest(), slots.SEQUENCE) if self.hold.count else 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def has_next(self) -> cython.bint:
        """Return whether what is next is held, and may be written."""
        return not self.blocked and self.hold.count > 0 and self.lowest() <= self.expected

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def begin(self, number: cython.ulonglong, now_ns: cython.ulonglong) -> cython.int:
        """Join the stream at `number`, with what is held already.

        The waits of its gaps begin now, because nothing was known to be missing before.
        """
        self.expected = self.asked = number
        return self.hold.notice_again(now_ns, self.belief.serial)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def restart(self, number: cython.ulonglong) -> cython.int:
        """Begin a new epoch at `number`, with nothing held: forget the old one."""
        self.expected = self.asked = number
        self.known_next = 0
        self.later_next = 0
        self.forced_until = 0
        self.islands.count = 0
        self.runs.forget_all()
        self.lost.clear()
        return self.copies.clear()
