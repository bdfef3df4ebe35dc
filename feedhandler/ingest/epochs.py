"""Epochs: which epoch a packet belongs to, while the lines disagree about it.

A sequence reset begins a new epoch on the line that shows it first. For a window after it the other
line still brings packets from before, and its own copy of the reset. Both must change nothing. A
packet from before is recognised

* by its send time, where there is one: earlier than the reset's (but neither later than the old
  epoch's begin nor than half the reset's: then a time of day has wrapped at midnight);
* by its number, where that fits only the old epoch's end or only the new one's beginning;
* and where it fits both, by its line, which has or has not been seen in the new epoch.

A copy of the reset has the same bytes, or comes from a line not seen in the new epoch yet, without
a send time that would distinguish it. After the window every line is assumed to be in the new
epoch: then the same bytes are a new reset.

A reset is believed where nothing is lost by it (no stream was joined), where another line shows it
too, or where what follows agrees; until then it is *pending*, in a slot of the arbiter's:

 what follows a pending reset | then it is |
---|---|
 a reset to the same number on another line | believed |
 on any line, the number it names, sent no earlier | believed |
 on its line, a later number of its epoch, by its send time | believed |
 on its line, sent no earlier, a number from where the line was in the old epoch on | forged |
 anything else | pending |

New sessions need none of this: their ids distinguish them. The last few are remembered.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest.answers import BELIEVED, FORGED, NOTHING

from feedhandler.codecs.visibility import Public, Readonly

#: No deadline. (The largest signed number: C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
#: Number of earlier session ids that are remembered.
PAST_SESSIONS = cython.declare(cython.Py_ssize_t, 8)


@cython.final
@cython.cclass
class Epochs:
    """The current epoch of a channel of `lines` lines, and how it began.

    `first` is the epoch's first number (the arbiter sets it when the stream is joined),
    `reset_time` the send time of the reset that began it, if one did.
    """

    number: Readonly[cython.int]
    ends: cython.ulonglong
    window: cython.ulonglong
    fingerprint: cython.ulonglong
    old_expected: cython.ulonglong
    old_first_time: cython.ulonglong
    first: Public[cython.ulonglong]
    reset_time: Readonly[cython.ulonglong]
    line_epoch: cython.int[::1]
    past: cython.ulonglong[::1]
    past_count: cython.Py_ssize_t
    busy_until: cython.ulonglong
    pending_time: cython.ulonglong
    pending_next: cython.ulonglong
    pending_old: cython.ulonglong
    pending: Readonly[cython.Py_ssize_t]
    pending_line: cython.int

    def __init__(self, lines: int, window_ns: int) -> None:
        self.line_epoch = memoryview(numpy.zeros(lines, numpy.int32))
        self.past = memoryview(numpy.zeros(PAST_SESSIONS, numpy.uint64))
        self.past_count = 0
        self.window = window_ns
        self.number = 0
        self.ends = self.busy_until = self.reset_time = self.fingerprint = 0
        # The pending reset: its slot (-1: none), line, send time and the number it names; and the
        # number its line would send next if the reset were forged.
        self.pending = -1
        self.pending_line = 0
        self.pending_time = self.pending_next = self.pending_old = 0
        self.old_expected = self.old_first_time = self.first = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def changing(self, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether older packets may still come (`mixed`), or a reset is pending."""
        return now_ns < self.busy_until

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def mixed(self, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether packets from before the current epoch may still come."""
        return now_ns < self.ends

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def suspend(
        self,
        slot: cython.Py_ssize_t,
        line: cython.int,
        header: PacketHeader,
        old: cython.ulonglong,
    ) -> cython.int:
        """Make a reset without evidence pending; `old`: its line's position in the old epoch."""
        self.pending = slot
        self.pending_line = line
        self.pending_time = header.send_time
        self.pending_next = header.next_sequence
        self.pending_old = old
        self.busy_until = NEVER
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def resume(self) -> cython.Py_ssize_t:
        """End the pending state; return the slot of the reset that was pending."""
        slot: cython.Py_ssize_t = self.pending
        self.pending = -1
        self.busy_until = self.ends
        return slot

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def judge(
        self, line: cython.int, header: PacketHeader, max_jump: cython.ulonglong
    ) -> cython.int:
        """Return the evidence of a packet about the pending reset: BELIEVED, FORGED, or NOTHING."""
        number: cython.ulonglong = header.sequence
        timed: cython.bint = header.send_time > 0 and self.pending_time > 0
        later: cython.bint = timed and header.send_time >= self.pending_time
        if header.kind == kinds.RESET:
            if line != self.pending_line and header.next_sequence == self.pending_next:
                return BELIEVED
            return NOTHING
        if header.kind == kinds.HEARTBEAT:
            number = header.next_sequence
        if number == self.pending_next:
            return BELIEVED if later or not timed else NOTHING
        if line != self.pending_line or number == 0:
            return NOTHING
        if self.pending_old <= number <= self.pending_old + max_jump and (later or not timed):
            return FORGED
        if later and self.pending_next < number <= self.pending_next + max_jump:
            return BELIEVED
        return NOTHING

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def leave(
        self,
        expected: cython.ulonglong,
        first_time: cython.ulonglong,
        first: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """End the epoch, which had reached `expected` (0: nothing); the next begins at `first`.

        `first_time`: send time of its first packet.
        """
        self.old_expected = expected
        self.old_first_time = first_time
        self.number += 1
        self.first = first
        self.reset_time = 0
        self.fingerprint = 0
        self.ends = self.busy_until = now_ns
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def by_reset(
        self, line: cython.int, send_time: cython.ulonglong, fingerprint: cython.ulonglong
    ) -> cython.int:
        """Record that a reset packet on `line` began the epoch just entered."""
        self.ends += self.window
        self.busy_until = self.ends
        self.reset_time = send_time
        self.fingerprint = fingerprint
        self.line_epoch[line] = self.number
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def is_copy(
        self,
        line: cython.int,
        header: PacketHeader,
        fingerprint: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.bint:
        """Return whether this reset is another line's copy of the one that began the epoch."""
        timed: cython.bint = header.send_time > 0 and header.send_time != self.reset_time
        if now_ns >= self.ends:
            return False
        if fingerprint != self.fingerprint and (timed or self.line_epoch[line] == self.number):
            return False
        self.line_epoch[line] = self.number
        return True

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def sent_before(self, header: PacketHeader) -> cython.bint:
        """Return whether a packet's send time says that it is from before the epoch.

        To be called while `mixed`. It was sent before the reset, and perhaps before the stream was
        joined. Only times that count from midnight can be lower and later, and then they are lower
        by far.
        """
        return 0 < header.send_time < self.reset_time and (
            header.send_time >= self.old_first_time or header.send_time > self.reset_time // 2
        )

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def straggles(
        self,
        line: cython.int,
        header: PacketHeader,
        expected: cython.ulonglong,
        max_jump: cython.ulonglong,
    ) -> cython.bint:
        """Return whether this packet of the same session is from before the epoch.

        To be called while `mixed`. A packet of the new epoch also moves its line to that epoch.
        """
        sequence: cython.ulonglong = header.sequence
        if header.send_time > 0 and self.reset_time > 0:
            if header.send_time < self.reset_time:
                return self.sent_before(header)
            if header.send_time > self.reset_time:
                if header.kind != kinds.RESET:
                    self.line_epoch[line] = self.number
                return False
        if header.kind == kinds.RESET:
            return False
        if header.kind == kinds.HEARTBEAT:
            if header.next_sequence == 0:
                return False
            sequence = header.next_sequence
        in_old: cython.bint = (
            self.old_expected > 0
            and sequence <= self.old_expected + max_jump
            and sequence + max_jump >= self.old_expected
        )
        in_new: cython.bint = header.next_sequence >= self.first and sequence <= expected + max_jump
        if in_old and in_new:
            return self.line_epoch[line] != self.number
        if in_new:
            self.line_epoch[line] = self.number
        return in_old

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def leave_session(self, session: cython.ulonglong) -> cython.int:
        """Remember an id whose packets are stale from now on; it replaces the oldest."""
        self.past[self.past_count % PAST_SESSIONS] = session
        self.past_count += 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def is_past_session(self, session: cython.ulonglong) -> cython.bint:
        """Return whether this is one of the last few sessions."""
        at: cython.Py_ssize_t
        for at in range(min(self.past_count, PAST_SESSIONS)):  # noqa: SIM110 (no GIL here)
            if self.past[at] == session:
                return True
        return False
