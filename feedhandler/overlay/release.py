# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Hold and release: messages in order, none before its deadline.

A message is held until the sender's time has reached its deadline; one without a deadline, or that
came later than it, may be released at once. Messages are released in the order of their ids. Where
one is missing, those behind it wait `gap_wait_ns` beyond their own deadline, because another copy
may come; then the missing ones are announced as a gap, and what still comes of them is dropped and
counted (`passed`): order holds, and a recovery service can supply them. Heartbeats show the end of
a stream.

A sender that was restarted (a higher epoch) begins with id 1, which is announced; what is left of
the epoch before is released first. A receiver that has just begun takes the lowest id that it has
as the first one, or what follows the last one that a heartbeat named; unless it is 1 it waits
`start_wait_ns` after it came, because messages of several trees overtake each other.

In model 3 messages go to a program behind a last hop; `extra_hold_ns` is the difference of this
receiver's last hop to the longest one, and is held in addition.

All times here are the sender's.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import cython

from feedhandler.codecs.visibility import Public, Readonly

#: Upper limit on held messages: a second at 65,536 a second. With more the deadlines are wrong.
HELD_MAX = 65_536
#: Upper limit on a deadline after the sending, and after the arrival, for the own clock may be
#: behind; a later one counts as this.
HOLD_MAX_NS = 1_000_000_000
#: Upper limits on times and waits, so that sums fit 64 bits: the year 2116, 36 years.
_TIME_MAX_NS = cython.declare(cython.longlong, 1 << 62)
WAIT_MAX_NS = 1 << 60
#: Kinds of what comes next.
_NOTHING = cython.declare(cython.int, 0)
_MESSAGE = cython.declare(cython.int, 1)
_GAP = cython.declare(cython.int, 2)
_RESTART = cython.declare(cython.int, 3)
_START = cython.declare(cython.int, 4)


class Deliver(NamedTuple):
    """A message to deliver; `late`: it came after its deadline."""

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
    """The sender has begun anew with this epoch.

    Its last messages of the epoch before may be missing, which cannot be known.
    """

    epoch: int


Event = Deliver | Gap | Restart


@cython.final
@cython.cclass
class Release:
    """Held messages and their order; see the module."""

    gap_wait_ns: Public[cython.longlong]
    start_wait_ns: Public[cython.longlong]
    extra_hold_ns: Public[cython.longlong]
    delivered: Readonly[cython.longlong]
    late: Readonly[cython.longlong]
    passed: Readonly[cython.longlong]
    overfull: Readonly[cython.longlong]
    missing: Readonly[object]
    _held: list
    _begun: cython.bint
    # Epochs and ids are as wide as the wire has them, and one more.
    _epoch: object
    _number: object
    _start_epoch: object
    _start: object
    _last_epoch: object
    _last: object
    _to: object
    _start_ns: cython.longlong
    _heard_ns: cython.longlong
    _kind: cython.int

    def __init__(self, gap_wait_ns: int, extra_hold_ns: int = 0, start_wait_ns: int = 0) -> None:
        self.gap_wait_ns = min(gap_wait_ns, WAIT_MAX_NS)
        self.start_wait_ns = min(start_wait_ns, WAIT_MAX_NS)
        self.extra_hold_ns = min(extra_hold_ns, WAIT_MAX_NS)
        #: Heap of held messages: epoch, id, deadline, arrival, and the `Deliver`.
        self._held = []
        #: Epoch and id to be released next, once `_begun`.
        self._begun = False
        self._epoch, self._number = 0, 0
        #: From a heartbeat before anything was begun: what to begin with, and when it came.
        self._start_epoch, self._start, self._start_ns = 0, 0, 0
        #: The last id that a heartbeat named, and when it came.
        self._last_epoch, self._last = 0, 0
        self._heard_ns = 0
        #: The last id of a gap, or the epoch of a restart.
        self._to = 0
        self._kind = _NOTHING
        self.delivered = self.late = self.passed = self.overfull = self.missing = 0

    def put(self, head, payload: bytes, now_ns: int) -> bool:
        """Take the first copy of a message; return whether it came later than its deadline."""
        self._set_back(now_ns)
        epoch, number = head.epoch, head.id
        deadline = min(head.deadline_ns, head.sent_ns + HOLD_MAX_NS, now_ns + HOLD_MAX_NS)
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
        """Take a heartbeat, which names the last id of an epoch."""
        self._set_back(now_ns)
        if not self._begun and not self._held and epoch > self._start_epoch:
            self._start_epoch, self._start, self._start_ns = epoch, last_id + 1, now_ns
            if not last_id or not self.start_wait_ns:
                self._begin()
        if (epoch, last_id) > (self._last_epoch, self._last):
            self._last_epoch, self._last, self._heard_ns = epoch, last_id, now_ns

    @cython.cfunc
    def _set_back(self, now_ns: cython.longlong):
        """Where the clock was set back, have what came before be due now, not as much later."""
        if self._held and self._held[0][3] > now_ns + HOLD_MAX_NS:
            self._held = [
                (epoch, number, min(deadline, now_ns), min(arrived, now_ns), held)
                for epoch, number, deadline, arrived, held in self._held
            ]
        self._heard_ns = min(self._heard_ns, now_ns)
        self._start_ns = min(self._start_ns, now_ns)

    @cython.cfunc
    def _begin(self):
        """Begin with what heartbeats named."""
        self._begun, self._epoch, self._number = True, self._start_epoch, self._start

    @property
    def held(self) -> int:
        """Number of messages that are held now."""
        return len(self._held)

    @cython.cfunc
    @cython.exceptval(check=True)
    def _step(self) -> cython.longlong:
        """Return when what comes next may be released, 0: nothing; set `_kind` and `_to`."""
        due: cython.longlong
        arrived: cython.longlong
        self._kind = _NOTHING
        if not self._held:
            return self._behind(0)
        first: tuple = self._held[0]
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

    @cython.cfunc
    @cython.exceptval(check=True)
    def _behind(self, held_epoch) -> cython.longlong:
        """Return as `_step`, where no message of this epoch is held.

        Next is what heartbeats named, then what follows this epoch.
        """
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
        """When `release` has something; 0: no deadline."""
        return self._step()

    def release(self, now_ns: int) -> list[Event]:
        """Return the events that may be delivered now, in order."""
        return self._release(now_ns)

    @cython.cfunc
    def _release(self, now_ns: cython.longlong) -> list:
        found: list = []
        while self._step() <= now_ns and self._kind != _NOTHING:
            if self._kind == _START:
                self._begin()
            elif self._kind == _MESSAGE:
                first: tuple = self._held[0]
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
