"""What lines say of holes, and which of it to believe.

A line's numbers do not go back, but for what is marked as sent again. So a packet ahead of the
stream (or a heartbeat's number) that its own line goes on below has either overtaken what it
precedes, or is forged: it is *contradicted*, and speaks for no hole.
What makes it believed or contradicted:

| what comes after it | then it is |
|---|---|
| nothing, or later numbers of its line | believed |
| the same packet on another line, or from recovery | believed for good |
| a lower number of its line that is next, or held | contradicted |
| two copies in a row, of what was published before, on its line | contradicted |
| two packets that are next, from other lines, and nothing more from its own | contradicted |
| it does not follow on its line's latest, and the line was caught out lately | contradicted |

What comes while anything is held or known to be missing has an *order*; 0 is contradicted for good.
No packets here, only what is known of each line. The packets are the `Sequencer`'s.
"""

import cython
import numpy

#: How long a line is distrusted that has shown what was not sent, or in whose name somebody has:
#: one packet ahead says nothing then, two in a row do.
DISTRUST_NS = cython.declare(cython.ulonglong, 60_000_000_000)


@cython.final
@cython.cclass
class Belief:
    """The order of what `lines` lines have said; line number `lines` is recovery, which is always
    believed. `serial` is the latest order."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.serial = 1
        # By line: the order of the latest that was heard, and of the latest by which it went on
        # below what it had shown; the number after its latest copy, and after what it has shown.
        self._heard = memoryview(numpy.zeros(lines, numpy.uint64))
        self._below = memoryview(numpy.zeros(lines, numpy.uint64))
        self._copied = memoryview(numpy.zeros(lines, numpy.uint64))
        self._shown = memoryview(numpy.zeros(lines, numpy.uint64))
        # The order of the first that was held, and of the first of each line since, or since it
        # went on below that.
        self._began = 0
        self._claimed = memoryview(numpy.zeros(lines, numpy.uint64))
        # The orders of the latest two packets that were next.
        self._went_on = self._went_on_before = 0
        # Until when a line is distrusted; and those among them in whose name somebody has forged.
        self._distrusted_until = memoryview(numpy.zeros(lines, numpy.uint64))
        self._forged_until = memoryview(numpy.zeros(lines, numpy.uint64))

    # -- what comes --------------------------------------------------------------------------

    def hear(self, line, again):
        """Something comes from a line; what is sent `again` does not say where the line is."""
        self.serial += 1
        if not again:
            self._heard[line] = self.serial
        return 0

    def progress(self, line):
        """What it was, is the packet that is next."""
        self._below[line] = self.serial
        self._went_on_before = self._went_on
        self._went_on = self.serial
        return 0

    def copy(self, line, sequence, next_sequence):
        """It was published before: right behind the line's latest copy, or anywhere."""
        if sequence == self._copied[line]:
            self._below[line] = self.serial
        self._copied[line] = next_sequence
        return 0

    def claim(self, line, first):
        """It is ahead, and held; `first`: nothing else is."""
        if first:
            self._began = self.serial
        if line < self.lines and (
            self._claimed[line] < self._began or self._claimed[line] < self._below[line]
        ):
            self._claimed[line] = self.serial
        return 0

    def show(self, line, sequence, next_sequence):
        """It goes from `sequence` to `next_sequence`: whether it follows on what the line has shown
        last."""
        follows: cython.bint = True
        if line < self.lines:
            follows = sequence == self._shown[line]
            self._shown[line] = next_sequence
        return follows

    def pass_by(self, line, order):
        """What the line showed is contradicted; if others have passed it by, what it says next is
        looked at by itself."""
        if order == self._heard[line]:
            self._below[line] = self.serial
        return 0

    def distrust(self, line, now_ns):
        """The line has shown what was not sent, or somebody has in its name."""
        if line < self.lines:
            self._distrusted_until[line] = now_ns + DISTRUST_NS
        return 0

    def catch_out(self, line, now_ns):
        """Another packet came with the number of one that the line showed: that was forged."""
        if line < self.lines:
            self._forged_until[line] = now_ns + DISTRUST_NS
        return self.distrust(line, now_ns)

    # -- what to believe ---------------------------------------------------------------------

    def believes(self, line, order):
        """Is what the line showed as the `order`-th thing uncontradicted?"""
        if line >= self.lines:
            return True
        if order < self._below[line] or order == 0:
            return False
        return (
            order != self._heard[line]
            or order != self._claimed[line]
            or order >= self._went_on_before
        )

    def distrusts(self, line, now_ns):
        """Was the line caught out lately?"""
        return line < self.lines and now_ns < self._distrusted_until[line]

    def is_forged(self, line, now_ns):
        """Does somebody forge in the line's name?"""
        return line < self.lines and now_ns < self._forged_until[line]
