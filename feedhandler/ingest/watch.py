"""Watch over the lines of a channel: which of them fell silent, and which are back.

Anything that passed the checks counts as life, heartbeats above all. The silence of a line that
never sent counts from `start`. Whether all lines are silent follows from their records.
"""

import cython
import numpy
from cython.cimports.feedhandler.ingest import columns, records
from cython.cimports.feedhandler.ingest.output import Output

from feedhandler.codecs.visibility import Readonly

#: No deadline. (The largest signed number: C would keep a larger literal as a Python object.)
NEVER = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
#: Wait before a record that found no room in the ring is tried again.
RETRY_NS = cython.declare(cython.ulonglong, 1_000_000)


@cython.final
@cython.cclass
class LineWatch:
    """Watch over `lines` lines, silent after `wait_ns`; call `check` at `next_check`."""

    out: Output
    wait: cython.ulonglong
    heard: cython.ulonglong[::1]
    latest: cython.ulonglong[::1]
    silent: cython.uchar[::1]
    next_check: Readonly[cython.ulonglong]

    def __init__(self, out, lines: int, wait_ns: int) -> None:
        self.out = out
        self.wait = wait_ns
        self.heard = memoryview(numpy.zeros(lines, numpy.uint64))
        #: The number behind the latest packet of each line.
        self.latest = memoryview(numpy.zeros(lines, numpy.uint64))
        self.silent = memoryview(bytearray(lines))
        self.next_check = NEVER

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def start(self, now_ns: cython.ulonglong) -> cython.int:
        """Start counting at `now_ns`."""
        line: cython.Py_ssize_t
        for line in range(self.heard.shape[0]):
            self.heard[line] = now_ns
        self.next_check = now_ns + self.wait
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def line_alive(
        self, line: cython.int, now_ns: cython.ulonglong, expected: cython.ulonglong
    ) -> cython.int:
        """Record that the line is alive, and announce it if it was silent.

        Without ring room its next packet announces it. `next_check` may be too early for a line
        that was heard since, never too late.
        """
        self.heard[line] = now_ns
        if self.silent[line] and self.out.control_event(
            records.LINE_BACK, line, expected, expected, 0
        ):
            self.silent[line] = 0
            if now_ns + self.wait < self.next_check:
                self.next_check = now_ns + self.wait
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def check(self, now_ns: cython.ulonglong, expected: cython.ulonglong) -> cython.int:
        """Announce each line that has been silent for `wait_ns`."""
        line: cython.int
        self.next_check = NEVER
        for line in range(cython.cast(cython.int, self.heard.shape[0])):
            if self.silent[line]:
                continue
            due: cython.ulonglong = self.heard[line] + self.wait
            if now_ns >= due:
                if self.out.control_event(records.LINE_SILENT, line, expected, expected, 0):
                    self.silent[line] = 1
                    self.out.count_line(line, columns.LINE_SILENCES)
                    continue
                due = now_ns + RETRY_NS
            if due < self.next_check:
                self.next_check = due
        return 0
