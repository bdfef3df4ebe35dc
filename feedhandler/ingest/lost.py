"""The latest ranges announced as lost: for recognising late packets, and for withdrawals.

A packet of such a range is late, not a duplicate; an erroneous announcement can be withdrawn.
`Runs` are packets that come of such ranges after all, until they are enough to believe that lines
go on there; `Islands` are ranges that had been published behind by then. `withdrawal.py` says what
is enough.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import slots
from cython.cimports.feedhandler.ingest.fingerprint import fingerprint
from cython.cimports.feedhandler.ingest.hold import PacketPool

from feedhandler.codecs.visibility import Readonly

#: Upper limit on ranges; a new one replaces the oldest, whose packets count as duplicates then.
LOST_RANGES = cython.declare(cython.Py_ssize_t, 64)
#: No number: the largest signed one. (C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class LostRanges:
    """Half-open ranges in ascending order, `LOST_RANGES` of them at most.

    Each has, by line, how many packets others had published when it was announced.
    """

    first: cython.ulonglong[::1]
    end: cython.ulonglong[::1]
    published: cython.ulonglong[::1]
    doubtful: cython.uchar[::1]
    count: cython.Py_ssize_t
    newest: cython.Py_ssize_t
    lines: cython.Py_ssize_t

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.first = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
        self.end = memoryview(numpy.zeros(LOST_RANGES, numpy.uint64))
        self.doubtful = memoryview(bytearray(LOST_RANGES))
        self.published = memoryview(numpy.zeros(LOST_RANGES * lines, numpy.uint64))
        self.count = 0
        self.newest = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def touches(self, sequence: cython.ulonglong, next_sequence: cython.ulonglong) -> cython.bint:
        """Return whether [sequence, next_sequence) overlaps a range.

        Nearly always the newest range decides.
        """
        at: cython.Py_ssize_t = self.newest
        seen: cython.Py_ssize_t = 0
        while seen < self.count:
            if self.end[at] <= sequence:
                return False
            if self.first[at] < next_sequence:
                return True
            at = at - 1 if at > 0 else LOST_RANGES - 1
            seen += 1
        return False

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def _index_of(self, sequence: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index of the first range that ends behind `sequence`; -1 where none does."""
        at: cython.Py_ssize_t = self.newest
        seen: cython.Py_ssize_t = 0
        while seen < self.count and self.end[at] > sequence:
            if seen + 1 == self.count or self.end[self._before(at)] <= sequence:
                return at
            at = self._before(at)
            seen += 1
        return -1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _before(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index of the preceding range."""
        return at - 1 if at > 0 else LOST_RANGES - 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def published_before(self, sequence: cython.ulonglong, line: cython.int) -> cython.ulonglong:
        """Return how many packets others than `line` had published when the range was announced.

        The range is the first that ends behind `sequence`; 0 where none does.
        """
        at: cython.Py_ssize_t = self._index_of(sequence)
        return self.published[at * self.lines + line] if at >= 0 else 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def first_of(self, sequence: cython.ulonglong) -> cython.ulonglong:
        """Return where the first range that ends behind `sequence` begins; `NEVER` for none."""
        at: cython.Py_ssize_t = self._index_of(sequence)
        return self.first[at] if at >= 0 else NEVER

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note(self, line: cython.int, published: cython.ulonglong) -> cython.int:
        """Set how many packets others than this line had published before the newest range."""
        self.published[self.newest * self.lines + line] = published
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def newest_first(self) -> cython.ulonglong:
        """Return where the newest range begins; there must be one."""
        return self.first[self.newest]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def newest_end(self) -> cython.ulonglong:
        """Return one past the newest range; there must be one."""
        return self.end[self.newest]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def cut(self, first: cython.ulonglong) -> cython.int:
        """End the newest range before `first`, or remove it where nothing of it is left."""
        self.end[self.newest] = first
        if first <= self.first[self.newest]:
            self.newest = self._before(self.newest)
            self.count -= 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def is_doubtful(self, sequence: cython.ulonglong) -> cython.bint:
        """Return whether this number is in a range that may be withdrawn."""
        at: cython.Py_ssize_t = self._index_of(sequence)
        return at >= 0 and self.doubtful[at] != 0 and self.first[at] <= sequence

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def add(
        self, first: cython.ulonglong, end: cython.ulonglong, doubtful: cython.bint
    ) -> cython.int:
        """Add the next range, joined to the newest where they touch and are of one kind.

        `doubtful`: the range may be withdrawn, if lines go on in it.
        """
        if self.count and self.end[self.newest] == first and self.doubtful[self.newest] == doubtful:
            self.end[self.newest] = end
            return 0
        self.newest = self.newest + 1 if self.newest + 1 < LOST_RANGES else 0
        if self.count < LOST_RANGES:
            self.count += 1
        self.first[self.newest] = first
        self.end[self.newest] = end
        self.doubtful[self.newest] = doubtful
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def clear(self) -> cython.int:
        """Forget all ranges, for a new epoch."""
        self.count = 0
        return 0


@cython.final
@cython.cclass
class Runs:
    """For each line, the consecutive packets of announced ranges that it brought.

    They are in slots of `pool`, `RUN_MAX` of a line at most. `first` is where each run begins,
    `count` how many packets it has; `all`: packets of all lines.
    """

    pool: PacketPool
    lines: cython.int
    slots: cython.int[::1]
    count: cython.int[::1]
    all: Readonly[cython.int]
    first: cython.ulonglong[::1]
    next: cython.ulonglong[::1]
    others: cython.ulonglong[::1]

    def __init__(self, pool, lines: int) -> None:
        self.pool = pool
        self.lines = lines
        self.slots = memoryview(numpy.zeros(lines * slots.RUN_MAX, numpy.int32))
        self.count = memoryview(numpy.zeros(lines, numpy.int32))
        self.all = 0
        self.first = memoryview(numpy.zeros(lines, numpy.uint64))
        self.next = memoryview(numpy.zeros(lines, numpy.uint64))
        self.others = memoryview(numpy.zeros(lines, numpy.uint64))

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def follow(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
        others: cython.ulonglong,
    ) -> cython.int:
        """Add a packet to its line's run and return the run's length; 0: a copy, or too long.

        `others`: how many published packets this line did not bring; a change of it ends a run.
        """
        if self.count[line]:
            if self.first[line] <= header.sequence and header.next_sequence <= self.next[line]:
                return 0
            if (
                others != self.others[line]
                or header.sequence != self.next[line]
                or self.count[line] == slots.RUN_MAX
            ):
                self.forget(line)
        slot: cython.Py_ssize_t = self.pool.store(
            line, header, data, start, received_ns, now_ns,
            fingerprint(data, start + header.body, header.length - header.body),
        )  # fmt: skip
        if slot < 0:
            self.forget(line)
            return 0
        if self.count[line] == 0:
            self.first[line] = header.sequence
        self.slots[line * slots.RUN_MAX + self.count[line]] = cython.cast(cython.int, slot)
        self.count[line] += 1
        self.all += 1
        self.next[line] = header.next_sequence
        self.others[line] = others
        return self.count[line]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def pass_over(self, line: cython.int, header: PacketHeader) -> cython.int:
        """Extend the line's run over a packet that was published before, where it is next."""
        if self.count[line] and header.sequence == self.next[line]:
            self.next[line] = header.next_sequence
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def forget(self, line: cython.int) -> cython.int:
        """End the line's run and free its packets: they are just late."""
        at: cython.Py_ssize_t
        for at in range(self.count[line]):
            self.pool.give_back(self.slots[line * slots.RUN_MAX + at])
        return self.let_go(line)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def let_go(self, line: cython.int) -> cython.int:
        """End the line's run without freeing its packets, which the caller has taken."""
        self.all -= self.count[line]
        self.count[line] = 0
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def forget_all(self) -> cython.int:
        """End the runs of all lines and free their packets."""
        line: cython.int
        for line in range(self.lines):
            self.forget(line)
        return 0


@cython.final
@cython.cclass
class Islands:
    """Ranges published behind the point that the stream went back to; it passes them later.

    `ISLANDS_MAX` at most, in ascending order; the furthest are dropped.
    """

    first: cython.ulonglong[::1]
    end: cython.ulonglong[::1]
    count: cython.Py_ssize_t

    def __init__(self) -> None:
        self.first = memoryview(numpy.zeros(slots.ISLANDS_MAX + 1, numpy.uint64))
        self.end = memoryview(numpy.zeros(slots.ISLANDS_MAX + 1, numpy.uint64))
        self.count = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def rise(
        self, lost: LostRanges, begin: cython.ulonglong, expected: cython.ulonglong
    ) -> cython.ulonglong:
        """Withdraw the losses between `begin` and `expected`, as the stream goes back to `begin`.

        What lies between them is published, and becomes islands. Returns how many numbers are not
        lost.
        """
        end: cython.ulonglong = expected
        withdrawn: cython.ulonglong = 0
        while lost.count and lost.newest_end() > begin:
            if lost.newest_end() < end:
                self._add(lost.newest_end(), end)
            first: cython.ulonglong = lost.newest_first()
            if first < begin:
                first = begin
            withdrawn += lost.newest_end() - first
            end = first
            lost.cut(first)
        return withdrawn

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _add(self, first: cython.ulonglong, end: cython.ulonglong) -> cython.int:
        """Put a range before all others."""
        at: cython.Py_ssize_t
        if self.count and self.first[0] <= end:
            self.first[0] = first
            return 0
        if self.count < slots.ISLANDS_MAX:
            self.count += 1
        for at in range(self.count - 1, 0, -1):
            self.first[at] = self.first[at - 1]
            self.end[at] = self.end[at - 1]
        self.first[0] = first
        self.end[0] = end
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def drop_first(self) -> cython.int:
        """Remove the first range, which the stream has passed."""
        at: cython.Py_ssize_t
        self.count -= 1
        for at in range(self.count):
            self.first[at] = self.first[at + 1]
            self.end[at] = self.end[at + 1]
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def highest(self) -> cython.ulonglong:
        """Return one past the highest; 0 where there is none."""
        return self.end[self.count - 1] if self.count else 0
