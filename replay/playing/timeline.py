"""One line of time through several recordings and several passes.

Captures that are played one after the other are either pieces of one recording, whose times go on
by themselves, or recordings of different days, which may even lie backwards. And a pass that is
played again begins with times long gone. A `Timeline` moves the times of each piece by a whole
amount, so that they go on where the piece before it ended:

- the first piece keeps its times, and so does each that begins at or after the end of the one
  before it, or at most `OVERLAP_NS` earlier: two files of one recorder;
- any other piece, and every further pass, begins one mean distance between datagrams after the last
  time so far.

Amounts are whole nanoseconds, and the distance is that of the first pass for all: every pass takes
exactly as long as the one before it, and nothing adds up. Sans-IO.
"""

import dataclasses

from feedhandler.replay.captures.reading import DatagramBatch

#: How far a file may reach back behind its predecessor's end and still be its continuation: what
#: a recorder with several queues mixes up when it begins a new file.
OVERLAP_NS = 1_000_000_000
#: Between two passes of a recording that has no distances: a single datagram.
LONE_DISTANCE_NS = 1_000_000


class Timeline:
    """Places pieces one after the other; see the module's text.

    `begin` announces a new piece, calling the instance places a batch of it: the same batch with
    its times moved, and `moved_ns` saying by how much.
    """

    def __init__(self) -> None:
        self._moved_ns = 0
        self._first_ns = self._last_ns = 0
        self._count = 0
        self._between_ns: int | None = None  # passes
        self._undecided = True
        self._again = False

    def begin(self, again: bool = False) -> None:
        """What comes now is another piece; `again`: one that was played already."""
        self._undecided = True
        self._again = self._again or again

    def __call__(self, batch: DatagramBatch) -> DatagramBatch:
        """The batch at its place."""
        if not len(batch):
            return batch
        if self._undecided:
            self._decide(int(batch.time_ns[0]))
        if self._moved_ns:
            time_ns = batch.time_ns + self._moved_ns
            batch = dataclasses.replace(batch, time_ns=time_ns, moved_ns=self._moved_ns)
        if not self._count:
            self._first_ns = self._last_ns = int(batch.time_ns[0])
        self._count += len(batch)
        self._last_ns = max(self._last_ns, int(batch.time_ns.max()))
        return batch

    def _decide(self, first_ns: int) -> None:
        """Where the piece that begins with `first_ns` goes."""
        behind = first_ns + self._moved_ns < self._last_ns - OVERLAP_NS
        if self._count and self._again:
            if self._between_ns is None:
                self._between_ns = self._distance_ns()
            self._moved_ns = self._last_ns + self._between_ns - first_ns
        elif self._count and behind:
            self._moved_ns = self._last_ns + self._distance_ns() - first_ns
        self._undecided = self._again = False

    def _distance_ns(self) -> int:
        """The mean distance between datagrams so far."""
        if self._count < 2 or self._last_ns == self._first_ns:
            return LONE_DISTANCE_NS
        return (self._last_ns - self._first_ns) // (self._count - 1)
