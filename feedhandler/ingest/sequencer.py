"""The ordered part of a channel: the next is written, others are held, holes have deadlines.

A `Sequencer` knows the next number, `expected`, and moves it only when the record that moves it
has been written: a packet, or the announcement of a gap. It judges nothing; which packets belong
to the stream, and when it begins anew, is the arbiter's to say (`arbitration.py`).

A hole is noticed when a packet behind it is held or a heartbeat names a later number; `gap_wait_us`
from that instant it is given up, each hole by its own clock. It can be forced earlier.

Where somebody can get back what is missing (`recovery_wait_ns`), the hole is not given up then but
told, once, with a MISSING record, and has so much longer. That a hole was noticed at all, and that
none is left, is told as well: HOLE, and CLOSED.

`blocked` means that the ring had no room for the next record; `release` takes it up again.
"""

import cython
from cython.cimports.feedhandler.ingest import columns, records, slots
from cython.cimports.feedhandler.ingest.answers import (
    DIFFERENT,
    KEPT,
    NO_ROOM,
    OTHER_AGAIN,
    SAME_AGAIN,
    TOO_LONG,
)
from cython.cimports.feedhandler.ingest.fingerprint import CompareWindow, fingerprint
from cython.cimports.feedhandler.ingest.hold import Hold
from cython.cimports.feedhandler.ingest.lost import LostRanges

#: No deadline. (The largest signed number: C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class Sequencer:
    """Order for one channel: records go to `out`, waiting packets into `pool`.

    `hold_packets` wait at most, a hole waits `gap_wait_ns` for the lines and then
    `recovery_wait_ns` for recovery, and the latest `compare_numbers` numbers' fingerprints are
    kept. Holes below `asked` were told as missing; `epoch` goes into what is told. `first_time` is
    the send time of the first packet published since the start or restart, `last_send_time` the
    latest's.
    """

    def __init__(
        self, out, pool, hold_packets: int, gap_wait_ns: int, recovery_wait_ns: int,
        compare_numbers: int,
    ) -> None:  # fmt: skip
        self.out = out
        self.pool = pool
        self.hold = Hold(pool, hold_packets)
        self.window = CompareWindow(compare_numbers)
        self.lost = LostRanges()
        self.gap_wait = gap_wait_ns
        self.give_up_wait = gap_wait_ns + recovery_wait_ns
        self.recovering = recovery_wait_ns > 0
        self.hole_told = False
        self.asked = self.epoch = 0
        self.expected = 0
        self.blocked = False
        self.last_send_time = self.first_time = 0
        self.known_next = self.known_since = self.later_next = self.later_since = 0
        self.forced_until = 0
        self.cause = records.BY_DEADLINE

    def publish(self, line, header, data, start, received_ns):
        """Write the packet that is next; 0 when the ring is full. What it frees, `release` does."""
        if not self.out.packet(
            line, header, data, start, received_ns, self.expected - header.sequence
        ):
            self.blocked = True
            return 0
        self.window.remember(
            header.sequence,
            fingerprint(data, start + header.body, header.length - header.body),
        )
        self.expected = header.next_sequence
        self.last_send_time = header.send_time
        if self.first_time == 0:
            self.first_time = header.send_time
        self._moved()
        return 1

    def keep(self, line, header, data, start, received_ns, now_ns):
        """Hold a packet that is not next: KEPT, or why not.

        NO_ROOM: the hold is full. SAME_AGAIN, OTHER_AGAIN: it is held already, with the same or
        with other message bytes. TOO_LONG: longer than a slot.
        """
        slot: cython.Py_ssize_t
        print_64: cython.ulonglong
        noticed: cython.ulonglong = now_ns
        print_64 = fingerprint(data, start + header.body, header.length - header.body)
        if self.hold.contains(header.sequence, header.next_sequence):
            if self.window.compare(header.sequence, print_64) == DIFFERENT:
                return OTHER_AGAIN
            return SAME_AGAIN
        if self.hold.count >= self.hold.capacity:
            return NO_ROOM
        # A heartbeat may have told of the hole before this packet did.
        if self.known_next >= header.sequence and self.known_next > self.expected:
            noticed = self.known_since
        slot = self.pool.take(line, header, data, start, received_ns, noticed, print_64)
        if slot < 0:
            return TOO_LONG
        self.hold.insert(slot)
        self.window.remember(header.sequence, print_64)
        self.out.count_line(line, columns.LINE_HELD)
        self.out.highest(columns.CHANNEL_HOLD_HIGH, self.hold.count)
        return KEPT

    def reveal(self, number, now_ns):
        """A heartbeat says that `number` is sent next: all before it is missing from now."""
        if self.known_next <= self.expected:
            self.known_next = number
            self.known_since = now_ns
        elif number > self.known_next and number > self.later_next:
            # An older hole has its own deadline; this one is looked at after it.
            self.later_next = number
            self.later_since = now_ns
        return 0

    def force(self, until, cause):
        """Give up every hole before `until` at the next `release`, for `cause` (`GapCause`)."""
        self.forced_until = until
        self.cause = cause
        return 0

    def force_all(self, cause):
        """Give up every hole that is known, and so let go everything that is held."""
        last: cython.ulonglong = 0
        if self.hold.count:
            last = self.pool.word(self.hold.highest(), slots.SEQUENCE)
        if self.known_next > last:
            last = self.known_next
        if self.later_next > last:
            last = self.later_next
        return self.force(last, cause)

    def release(self, now_ns):
        """Write held packets in order and give up the holes that are due."""
        slot: cython.Py_ssize_t
        end: cython.ulonglong
        self.blocked = False
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
        if self.recovering and not self.blocked:
            self._report(now_ns)
        return 0

    def _next_hole(self):
        """Place of the packet behind the first hole that was not told of yet; -1 for none.

        `asked` moves up to where that hole begins.
        """
        at: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        if self.asked < self.expected:
            self.asked = self.expected
        at = self.hold.place(self.asked)
        while at < self.hold.count:
            slot = self.hold.slot(at)
            if self.pool.word(slot, slots.SEQUENCE) > self.asked:
                return at
            if self.pool.word(slot, slots.NEXT) > self.asked:
                self.asked = self.pool.word(slot, slots.NEXT)
            at += 1
        return -1

    def _report(self, now_ns):
        """Tell of every hole that is `gap_wait` old, or be blocked."""
        at: cython.Py_ssize_t
        end: cython.ulonglong
        noticed: cython.ulonglong
        while True:
            at = self._next_hole()
            if at >= 0:
                end = self.pool.word(self.hold.slot(at), slots.SEQUENCE)
                noticed = self.pool.word(self.hold.slot(at), slots.NOTICED)
            else:
                end = self.known_next
                noticed = self.known_since
            if end <= self.asked or now_ns < noticed + self.gap_wait:
                return 0
            if not self.out.mark(records.MISSING, 0, self.asked, end, self.epoch):
                self.blocked = True
                return 0
            self.out.count(columns.CHANNEL_MISSING, end - self.asked)
            self.asked = end

    def tell(self):
        """Tell recovery when a first hole is noticed and when the last is gone, or be blocked."""
        waiting: cython.bint = self.waiting()
        end: cython.ulonglong = self.expected
        if not self.recovering or waiting == self.hole_told:
            return 0
        if waiting:
            end = self.lowest() if self.hold.count else self.known_next
        if self.out.mark(
            records.HOLE if waiting else records.CLOSED, 0, self.expected, end, self.epoch
        ):
            self.hole_told = waiting
        else:
            self.blocked = True
        return 0

    def _emit(self, slot):
        """Write a held packet and free its slot, or be blocked."""
        sequence: cython.ulonglong = self.pool.word(slot, slots.SEQUENCE)
        if not self.out.held(self.pool, slot, self.expected - sequence):
            self.blocked = True
            return 0
        self.expected = self.pool.word(slot, slots.NEXT)
        self.last_send_time = self.pool.word(slot, slots.SEND_TIME)
        if self.first_time == 0:
            self.first_time = self.last_send_time
        self.hold.drop_lowest()
        return self._moved()

    def _due(self, now_ns):
        """One past the missing range that must be given up now; 0 when none must."""
        end: cython.ulonglong = 0
        lowest: cython.ulonglong = self.lowest()
        if self.forced_until > self.expected:
            end = self.forced_until
        else:
            self.cause = records.BY_DEADLINE
            if self.known_next > self.expected and now_ns >= self.known_since + self.give_up_wait:
                end = self.known_next
            if lowest and now_ns >= (
                self.pool.word(self.hold.lowest(), slots.NOTICED) + self.give_up_wait
            ):
                end = lowest
        if lowest and end > lowest:
            end = lowest
        return end

    def _give_up(self, end):
        """Announce [expected, end) as lost and go on behind it, or be blocked."""
        if not self.out.mark(records.GAP, 0, self.expected, end, self.cause):
            self.blocked = True
            return 0
        self.lost.add(self.expected, end)
        self.out.count(columns.CHANNEL_GAPS, 1)
        self.out.count(columns.CHANNEL_LOST, end - self.expected)
        self.expected = end
        return self._moved()

    def _moved(self):
        """`expected` has moved: forget what heartbeats told of numbers before it."""
        if self.known_next <= self.expected:
            self.known_next = self.later_next
            self.known_since = self.later_since
            self.later_next = 0
        return 0

    def waiting(self):
        """Is something held, or known to be missing?"""
        return self.hold.count > 0 or self.known_next > self.expected

    def deadline(self):
        """When the earliest hole must be given up, or the next one told of."""
        deadline: cython.ulonglong = NEVER
        noticed: cython.ulonglong
        at: cython.Py_ssize_t
        if self.known_next > self.expected:
            deadline = self.known_since + self.give_up_wait
        if self.hold.count:
            noticed = self.pool.word(self.hold.lowest(), slots.NOTICED)
            if noticed + self.give_up_wait < deadline:
                deadline = noticed + self.give_up_wait
        if not self.recovering:
            return deadline
        at = self._next_hole()
        if at >= 0:
            noticed = self.pool.word(self.hold.slot(at), slots.NOTICED)
            if noticed + self.gap_wait < deadline:
                deadline = noticed + self.gap_wait
        elif self.known_next > self.asked and self.known_since + self.gap_wait < deadline:
            deadline = self.known_since + self.gap_wait
        return deadline

    def lowest(self):
        """The lowest number held; 0 when none is."""
        return self.pool.word(self.hold.lowest(), slots.SEQUENCE) if self.hold.count else 0

    def begin(self, number, now_ns):
        """Join the stream at `number`, with what is held already.

        Until now nobody knew that anything was missing: the holes' waits begin here.
        """
        self.expected = self.asked = number
        return self.hold.notice_again(now_ns)

    def restart(self, number):
        """A new numbering begins at `number`, with nothing held: forget the old one."""
        self.expected = self.asked = number
        self.known_next = 0
        self.later_next = 0
        self.forced_until = 0
        self.lost.clear()
        return self.window.clear()
