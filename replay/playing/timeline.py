"""One continuous timeline through several recordings and several passes.

Captures that are played in sequence are either parts of one recording, whose times continue, or
recordings of different days, in any order. A repeated pass begins with times that are already past.
A `Timeline` shifts the times of each piece by a constant, so that they continue where the piece
before it ended:

- the first piece keeps its times, and so does each that begins at or after the end of the one
  before it, or at most `OVERLAP_NS` earlier: two files of one recorder;
- any other piece, and every further pass, begins one mean interarrival time after the last time so
  far.

Shifts are whole nanoseconds, and all passes use the mean interarrival time of the first one: each
pass takes exactly as long as the one before it, and no rounding error accumulates. Sans-IO.
"""

import dataclasses

from feedhandler.replay.captures.reading import DatagramBatch

#: How far before its predecessor's end a file may begin and still continue it: a recorder with
#: several queues reorders this much when it begins a new file.
OVERLAP_NS = 1_000_000_000
#: The time between two passes of a recording without interarrival times (a single datagram).
LONE_DISTANCE_NS = 1_000_000


class Timeline:
    """The shift of times that joins pieces in sequence; see the module's text.

    `begin` announces a new piece. Calling the instance returns a batch of it with its times
    shifted and the shift in `moved_ns`.
    """

    def __init__(self) -> None:
        self._moved_ns = 0
        self._first_ns = self._last_ns = 0
        self._count = 0
        self._between_ns: int | None = None  # passes
        self._undecided = True
        self._again = False

    def begin(self, again: bool = False) -> None:
        """Begin another piece; `again`: a repeated pass."""
        self._undecided = True
        self._again = self._again or again

    def __call__(self, batch: DatagramBatch) -> DatagramBatch:
        """Return the batch with shifted times; the given batch is not changed."""
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
        """Choose the shift of the piece whose first recorded time is `first_ns`."""
        behind = first_ns + self._moved_ns < self._last_ns - OVERLAP_NS
        if self._count and self._again:
            if self._between_ns is None:
                self._between_ns = self._distance_ns()
            self._moved_ns = self._last_ns + self._between_ns - first_ns
        elif self._count and behind:
            self._moved_ns = self._last_ns + self._distance_ns() - first_ns
        self._undecided = self._again = False

    def _distance_ns(self) -> int:
        """Return the mean interarrival time of the datagrams so far, in ns."""
        if self._count < 2 or self._last_ns == self._first_ns:
            return LONE_DISTANCE_NS
        return (self._last_ns - self._first_ns) // (self._count - 1)
