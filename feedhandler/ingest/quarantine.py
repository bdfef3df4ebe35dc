"""Quarantine: packets whose number is not believed yet, and the evidence that would confirm them.

One forged packet with a number far ahead must not make all real ones old. So a packet beyond the
window, or of a session that was not announced, is set aside until something independent agrees with
it:

* another line shows the same packet (or, for a new session, any packet of it);
* this line and another one each show several packets in a row, close together;
* a heartbeat's number lies just past the packet's (or the other way round: a heartbeat that
  jumped is set aside too, and a packet just before its number confirms it).

Besides, each line's latest run of unbelieved consecutive packets is counted; when nothing else is
alive, a long enough run is taken for the stream (the arbiter decides that).

Bounded: a new entry replaces the oldest.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import slots
from cython.cimports.feedhandler.ingest.answers import CONFIRMED, NO_EVIDENCE, REPEATED
from cython.cimports.feedhandler.ingest.hold import PacketPool

from feedhandler.codecs.visibility import Readonly


@cython.final
@cython.cclass
class Quarantine:
    """Quarantine of at most `capacity` packets of `lines` lines, in slots of `pool`.

    `anchor` is, after `weigh`, the number that the evidence supports.
    """

    pool: PacketPool
    ring: cython.int[::1]
    capacity: Readonly[cython.Py_ssize_t]
    next_index: cython.Py_ssize_t
    anchor: Readonly[cython.ulonglong]
    run_next: cython.ulonglong[::1]
    run_session: cython.ulonglong[::1]
    run_length: cython.ulonglong[::1]

    def __init__(self, pool, capacity: int, lines: int) -> None:
        self.pool = pool
        self.capacity = capacity
        self.ring = memoryview(numpy.full(capacity, -1, numpy.int32))
        self.next_index = 0
        self.anchor = 0
        self.run_next = memoryview(numpy.zeros(lines, numpy.uint64))
        self.run_session = memoryview(numpy.zeros(lines, numpy.uint64))
        self.run_length = memoryview(numpy.zeros(lines, numpy.uint64))

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def weigh(
        self,
        line: cython.int,
        header: PacketHeader,
        fingerprint: cython.ulonglong,
        new_session: cython.bint,
        max_jump: cython.ulonglong,
    ) -> cython.int:
        """Return the strongest evidence for this packet: NO_EVIDENCE, REPEATED or CONFIRMED."""
        index: cython.Py_ssize_t
        evidence: cython.int = NO_EVIDENCE
        beating: cython.bint = header.kind == kinds.HEARTBEAT
        self.anchor = header.next_sequence if beating else header.sequence
        for index in range(self.capacity):
            slot: cython.Py_ssize_t = self.ring[index]
            if slot < 0:
                continue
            found: cython.int = self._evidence(
                slot, line, header, fingerprint, new_session, max_jump
            )
            if found > evidence:
                evidence = found
                if beating and self.pool.word(slot, slots.KIND) == kinds.DATA:
                    self.anchor = self.pool.word(slot, slots.SEQUENCE)
        return evidence

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _evidence(
        self,
        slot: cython.Py_ssize_t,
        line: cython.int,
        header: PacketHeader,
        fingerprint: cython.ulonglong,
        new_session: cython.bint,
        max_jump: cython.ulonglong,
    ) -> cython.int:
        """Return the evidence of one entry for this packet."""
        entry_next: cython.ulonglong = self.pool.word(slot, slots.NEXT)
        entry_line: cython.int = self.pool.word(slot, slots.LINE)
        entry_kind: cython.int = self.pool.word(slot, slots.KIND)
        if self.pool.word(slot, slots.SESSION) != header.session:
            return NO_EVIDENCE
        if entry_kind == header.kind:
            if (
                entry_next == header.next_sequence
                and self.pool.word(slot, slots.FINGERPRINT) == fingerprint
            ):
                return REPEATED if entry_line == line else CONFIRMED
            return CONFIRMED if new_session and entry_line != line else NO_EVIDENCE
        if header.kind == kinds.HEARTBEAT:
            if entry_next <= header.next_sequence <= entry_next + max_jump:
                return CONFIRMED
        elif header.next_sequence <= entry_next <= header.next_sequence + max_jump:
            return CONFIRMED
        return NO_EVIDENCE

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def follow_run(self, line: cython.int, header: PacketHeader) -> cython.ulonglong:
        """Count this packet into its line's run; return the run's length."""
        number: cython.ulonglong = header.sequence
        if header.kind == kinds.HEARTBEAT:
            number = header.next_sequence
        if self.run_session[line] == header.session and self.run_next[line] == number:
            self.run_length[line] += 1
        else:
            self.run_length[line] = 1
            self.run_session[line] = header.session
        self.run_next[line] = header.next_sequence
        return self.run_length[line]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def lines_agree(
        self, line: cython.int, run: cython.ulonglong, max_jump: cython.ulonglong
    ) -> cython.bint:
        """Return whether this line and another each show `run` packets in a row, close together.

        After an outage longer than the window both lines go on far ahead, but the one that is read
        later lags by more packets than are kept here: no packet is seen twice, yet both lines carry
        the same stream.
        """
        other: cython.Py_ssize_t
        if self.run_length[line] < run:
            return 0
        for other in range(self.run_length.shape[0]):
            if (
                other == line
                or self.run_length[other] < run
                or self.run_session[other] != self.run_session[line]
            ):
                continue
            if self.run_next[other] > self.run_next[line]:
                apart: cython.ulonglong = self.run_next[other] - self.run_next[line]
            else:
                apart = self.run_next[line] - self.run_next[other]
            if apart <= max_jump:
                return 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def add(self, slot: cython.Py_ssize_t) -> cython.int:
        """Add a slot; return 1 when the oldest entry was replaced."""
        evicted: cython.int = 0
        if self.ring[self.next_index] >= 0:
            self.pool.give_back(self.ring[self.next_index])
            evicted = 1
        self.ring[self.next_index] = slot
        self.next_index = self.next_index + 1 if self.next_index + 1 < self.capacity else 0
        return evicted

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def lowest(
        self, session: cython.ulonglong, least: cython.ulonglong, max_jump: cython.ulonglong
    ) -> cython.ulonglong:
        """Return the lowest number near `anchor`: where the stream that it belongs to begins."""
        index: cython.Py_ssize_t
        first: cython.ulonglong = self.anchor
        for index in range(self.capacity):
            slot: cython.Py_ssize_t = self.ring[index]
            if (
                slot >= 0
                and self.pool.word(slot, slots.KIND) == kinds.DATA
                and self.pool.word(slot, slots.SESSION) == session
            ):
                sequence: cython.ulonglong = self.pool.word(slot, slots.SEQUENCE)
                if least <= sequence < first and self.anchor - sequence <= max_jump:
                    first = sequence
        return first

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def remove(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Remove an entry without freeing its slot; return the slot, or -1."""
        slot: cython.Py_ssize_t = self.ring[index]
        self.ring[index] = -1
        return slot

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def clear(self) -> cython.int:
        """Remove every entry and free its slot."""
        index: cython.Py_ssize_t
        for index in range(self.capacity):
            if self.ring[index] >= 0:
                self.pool.give_back(self.ring[index])
                self.ring[index] = -1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def forget_runs(self) -> cython.int:
        """Forget the runs, for a new epoch."""
        line: cython.Py_ssize_t
        for line in range(self.run_length.shape[0]):
            self.run_length[line] = 0
        return 0
