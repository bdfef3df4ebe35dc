"""Evidence of lines for gaps, and which of it to believe.

A line's numbers do not go back, except where a message is marked as sent again. So a packet ahead
of the stream (or a heartbeat's number) below which its own line then goes on either overtook the
packets before it or is forged: it is *contradicted*, and is no evidence of a gap. What makes it
believed or contradicted:

| what comes after it | then it is |
|---|---|
| nothing, or later numbers of its line | believed |
| the same packet on another line, or from recovery | believed for good |
| a lower number of its line that is next, or held | contradicted |
| two copies in a row, of what was published before, on its line | contradicted |
| two packets that are next, from other lines, and nothing more from its own | contradicted |
| it does not follow on its line's latest, and the line was distrusted lately | contradicted |

Each input, while anything is held or known to be missing, has an *order*; 0 is contradicted for
good. Here is only what is known of each line; the packets are the `Sequencer`'s.
"""

import cython
import numpy

from feedhandler.codecs.visibility import Readonly

#: How long a line is distrusted after it showed a packet that was not sent (or one was forged in
#: its name): one packet ahead is then no evidence, two in a row are.
DISTRUST_NS = cython.declare(cython.ulonglong, 60_000_000_000)


@cython.final
@cython.cclass
class Belief:
    """The order of what `lines` lines have shown; line number `lines` is recovery, always believed.

    `serial` is the latest order.
    """

    lines: cython.int
    serial: Readonly[cython.ulonglong]
    _began: cython.ulonglong
    _went_on: cython.ulonglong
    _went_on_before: cython.ulonglong
    _heard: cython.ulonglong[::1]
    _below: cython.ulonglong[::1]
    _copied: cython.ulonglong[::1]
    _shown: cython.ulonglong[::1]
    _claimed: cython.ulonglong[::1]
    _distrusted_until: cython.ulonglong[::1]
    _forged_until: cython.ulonglong[::1]

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.serial = 1
        # By line: the order of the latest input, and of the latest with which it went on below what
        # it had shown; the number after its latest copy, and after the latest packet it showed.
        self._heard = memoryview(numpy.zeros(lines, numpy.uint64))
        self._below = memoryview(numpy.zeros(lines, numpy.uint64))
        self._copied = memoryview(numpy.zeros(lines, numpy.uint64))
        self._shown = memoryview(numpy.zeros(lines, numpy.uint64))
        # The order of the first packet held, and of each line's first since then, or since it went
        # on below that.
        self._began = 0
        self._claimed = memoryview(numpy.zeros(lines, numpy.uint64))
        # The orders of the latest two packets that were next.
        self._went_on = self._went_on_before = 0
        # Until when a line is distrusted; and until when it counts as forged.
        self._distrusted_until = memoryview(numpy.zeros(lines, numpy.uint64))
        self._forged_until = memoryview(numpy.zeros(lines, numpy.uint64))

    # -- inputs ------------------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note_input(self, line: cython.int, again: cython.bint) -> cython.int:
        """Record an input from a line; one sent `again` does not show how far the line is."""
        self.serial += 1
        if not again:
            self._heard[line] = self.serial
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def progress(self, line: cython.int) -> cython.int:
        """Record that the latest input is the packet that is next."""
        self._below[line] = self.serial
        self._went_on_before = self._went_on
        self._went_on = self.serial
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def copy(
        self, line: cython.int, sequence: cython.ulonglong, next_sequence: cython.ulonglong
    ) -> cython.int:
        """Record that the latest input was published before.

        Two copies in a row show that the line has gone on below what it showed.
        """
        if sequence == self._copied[line]:
            self._below[line] = self.serial
        self._copied[line] = next_sequence
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def claim(self, line: cython.int, first: cython.bint) -> cython.int:
        """Record that the latest input is ahead and held; `first`: nothing else is held."""
        if first:
            self._began = self.serial
        if line < self.lines and (
            self._claimed[line] < self._began or self._claimed[line] < self._below[line]
        ):
            self._claimed[line] = self.serial
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def show(
        self, line: cython.int, sequence: cython.ulonglong, next_sequence: cython.ulonglong
    ) -> cython.bint:
        """Record the latest input's numbers, from `sequence` to `next_sequence`.

        Returns whether it follows on what the line showed last.
        """
        follows: cython.bint = True
        if line < self.lines:
            follows = sequence == self._shown[line]
            self._shown[line] = next_sequence
        return follows

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def pass_by(self, line: cython.int, order: cython.ulonglong) -> cython.int:
        """Record that what the line showed as the `order`-th input is contradicted.

        If that was its latest, the line's next input is judged afresh.
        """
        if order == self._heard[line]:
            self._below[line] = self.serial
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def distrust(self, line: cython.int, now_ns: cython.ulonglong) -> cython.int:
        """Distrust the line from now on: it, or someone in its name, showed an unsent packet."""
        if line < self.lines:
            self._distrusted_until[line] = now_ns + DISTRUST_NS
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def catch_out(self, line: cython.int, now_ns: cython.ulonglong) -> cython.int:
        """Mark the line as forged: another packet came with the number of one it showed."""
        if line < self.lines:
            self._forged_until[line] = now_ns + DISTRUST_NS
        return self.distrust(line, now_ns)

    # -- judgement ---------------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def believes(self, line: cython.int, order: cython.ulonglong) -> cython.bint:
        """Return whether what the line showed as the `order`-th input is uncontradicted."""
        if line >= self.lines:
            return True
        if order < self._below[line] or order == 0:
            return False
        return (
            order != self._heard[line]
            or order != self._claimed[line]
            or order >= self._went_on_before
        )

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def distrusts(self, line: cython.int, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether the line is distrusted now."""
        return line < self.lines and now_ns < self._distrusted_until[line]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def is_forged(self, line: cython.int, now_ns: cython.ulonglong) -> cython.bint:
        """Return whether packets are being forged in the line's name."""
        return line < self.lines and now_ns < self._forged_until[line]
