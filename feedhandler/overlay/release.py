# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Hold and release: messages in order, none before its deadline.

A message is held until the sender's time has reached its deadline; one without a deadline, or that
came later than it, may be had at once. Messages are released in the order of their ids. Where one
is missing, those behind it wait `gap_wait_ns` beyond their own deadline, for another copy may come;
then the missing ones are announced as a gap, and what still comes of them is dropped and counted
(`passed`): order holds, and who needs them asks a recovery service. The end of a stream is known by
heartbeats.

A sender that was restarted (a higher epoch) begins with id 1, which is told; what is left of the
epoch before is released first. A receiver that has just begun takes the lowest id that it has as
the first one, or what follows the last one that a heartbeat told; `start_wait_ns` after that came,
unless it is 1, for messages of several trees overtake each other.

In model 3 messages go to a program behind a last hop; `extra_hold_ns` is what this receiver's last
hop is shorter than the longest one, and is held besides.

All times here are the sender's.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import cython

#: Messages held at a time: a second at 65,536 a second. Beyond, the sender's deadlines are wrong.
HELD_MAX = 65_536
#: A deadline further ahead of the sending than this counts as that far.
HOLD_MAX_NS = 1_000_000_000
#: Times and waits beyond these count as these, so that sums fit 64 bits: the year 2116, 36 years.
_TIME_MAX_NS = cython.declare(cython.longlong, 1 << 62)
WAIT_MAX_NS = 1 << 60
#: What comes next.
_NOTHING = cython.declare(cython.int, 0)
_MESSAGE = cython.declare(cython.int, 1)
_GAP = cython.declare(cython.int, 2)
_RESTART = cython.declare(cython.int, 3)
_START = cython.declare(cython.int, 4)


class Deliver(NamedTuple):
    """A message: `late` where it came after its deadline."""

    epoch: int
    id: int
    payload: bytes
    sent_ns: int
    deadline_ns: int
    arrived_ns: int
    late: bool


class Gap(NamedTuple):
    """Messages that have not come: the first and the last."""

    epoch: int
    first: int
    last: int


class Restart(NamedTuple):
    """The sender has begun anew with this epoch; what it had sent last before may be missing, and
    nobody can tell."""

    epoch: int


Event = Deliver | Gap | Restart


@cython.final
@cython.cclass
class Release:
    """See the module."""

    def __init__(self, gap_wait_ns: int, extra_hold_ns: int = 0, start_wait_ns: int = 0) -> None:
        self.gap_wait_ns = min(gap_wait_ns, WAIT_MAX_NS)
        self.start_wait_ns = min(start_wait_ns, WAIT_MAX_NS)
        self.extra_hold_ns = min(extra_hold_ns, WAIT_MAX_NS)
        #: A heap of what is held: epoch, id, deadline, arrival, and the `Deliver`.
        self._held = []
        #: What is to be had next, once that is known.
        self._begun = False
        self._epoch, self._number = 0, 0
        #: What a heartbeat told before anything was begun: what to begin with, and since when.
        self._start_epoch, self._start, self._start_ns = 0, 0, 0
        #: The last id that heartbeats told of, and when they did.
        self._last_epoch, self._last = 0, 0
        self._heard_ns = 0
        #: Up to which id a gap goes, or the epoch of a restart.
        self._to = 0
        self._kind = _NOTHING
        self.delivered = self.late = self.passed = self.overfull = self.missing = 0

    def put(self, head, payload: bytes, now_ns: int) -> bool:
        """The first copy of a message has come; whether that is later than its deadline."""
        epoch, number = head.epoch, head.id
        deadline = min(head.deadline_ns, head.sent_ns + HOLD_MAX_NS)
        late = bool(deadline) and now_ns > deadline
        self.late += late
        if self._begun and (epoch, number) < (self._epoch, self._number):
            self.passed += 1
        elif len(self._held) >= HELD_MAX:
            self.overfull += 1
        else:
            held = Deliver(epoch, number, payload, head.sent_ns, deadline, now_ns, late)
            heappush(self._held, (epoch, number, deadline, now_ns, held))
        return late

    def heard(self, epoch: int, last_id: int, now_ns: int) -> None:
        """A heartbeat has told the last id of an epoch."""
        if not self._begun and not self._held and epoch > self._start_epoch:
            self._start_epoch, self._start, self._start_ns = epoch, last_id + 1, now_ns
            if not last_id or not self.start_wait_ns:
                self._begin()
        if (epoch, last_id) > (self._last_epoch, self._last):
            self._last_epoch, self._last, self._heard_ns = epoch, last_id, now_ns

    def _begin(self):
        """Begin with what heartbeats told."""
        self._begun, self._epoch, self._number = True, self._start_epoch, self._start

    @property
    def held(self) -> int:
        """Messages that are held now."""
        return len(self._held)

    @cython.locals(first=tuple, due=cython.longlong, arrived=cython.longlong)
    def _step(self):
        """When what comes next may be had, 0 for nothing; `_kind` and `_to` say what it is."""
        self._kind = _NOTHING
        if not self._held:
            return self._behind(0)
        first = self._held[0]
        due, arrived = first[2], first[3]
        due = min(due, _TIME_MAX_NS) + self.extra_hold_ns if due else 1
        if not self._begun:
            self._kind = _MESSAGE
            return max(due, arrived + self.start_wait_ns) if first[1] > 1 else due
        if first[0] != self._epoch:
            return self._behind(first[0])
        if first[1] == self._number:
            self._kind = _MESSAGE
            return due
        self._kind, self._to = _GAP, first[1] - 1
        return max(due, arrived) + self.gap_wait_ns

    def _behind(self, held_epoch):
        """As `_step`, where no message of this epoch is held: what heartbeats told, then what comes
        behind this epoch."""
        if not self._begun:
            if not self._start_epoch:
                return 0
            self._kind = _START
            return self._start_ns + self.start_wait_ns
        if self._last_epoch == self._epoch and self._last >= self._number:
            self._kind, self._to = _GAP, self._last
            return self._heard_ns + self.gap_wait_ns
        later = held_epoch or self._last_epoch
        if later <= self._epoch:
            return 0
        self._kind, self._to = _RESTART, later
        return 1

    @property
    def deadline_ns(self) -> int:
        """When `release` has something; 0: not by time."""
        return self._step()

    def release(self, now_ns: int) -> list[Event]:
        """What may be had now, in order."""
        return self._release(now_ns)

    @cython.locals(first=tuple)
    def _release(self, now_ns):
        found: list = []
        while self._step() <= now_ns and self._kind != _NOTHING:
            if self._kind == _START:
                self._begin()
            elif self._kind == _MESSAGE:
                first = self._held[0]
                if not self._begun and first[0] == self._start_epoch and first[1] > self._start:
                    self._begin()  # what lies between is a gap
                    continue
                heappop(self._held)
                self._begun, self._epoch, self._number = True, first[0], first[1] + 1
                self.delivered += 1
                found.append(first[4])
            elif self._kind == _GAP:
                found.append(Gap(self._epoch, self._number, self._to))
                self.missing += self._to - self._number + 1
                self._number = self._to + 1
            else:
                found.append(Restart(self._to))
                self._epoch, self._number = self._to, 1
        return found
