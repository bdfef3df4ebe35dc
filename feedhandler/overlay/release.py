"""Hold and release: messages in order, none before its deadline.

A message is held until the sender's time has reached its deadline; one without a deadline, or that
came later than it, may be had at once. Messages are released in the order of their ids. Where one
is missing, those behind it wait `gap_wait_ns` beyond their own deadline, for another copy may come;
then the missing ones are announced as a gap, and what still comes of them is dropped and counted
(`passed`): order holds, and who needs them asks a recovery service. The end of a stream is known by
heartbeats.

A sender that was restarted (a higher epoch) begins with id 1, which is told; what is left of the
epoch before is released first. A receiver that has just begun takes the lowest id that it has as
the first one; `start_wait_ns` after that came, unless it is 1, for messages of several trees
overtake each other.

In model 3 messages go to a program behind a last hop; `extra_hold_ns` is what this receiver's last
hop is shorter than the longest one, and is held besides.

All times here are the sender's.
"""

import heapq
from typing import NamedTuple

from feedhandler.overlay.wire import Head

#: Messages held at a time: a second at 65,536 a second. Beyond, the sender's deadlines are wrong.
HELD_MAX = 65_536
#: A deadline further ahead of the sending than this counts as that far.
HOLD_MAX_NS = 1_000_000_000

Place = tuple[int, int]


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


class Release:
    """See the module."""

    def __init__(self, gap_wait_ns: int, extra_hold_ns: int = 0, start_wait_ns: int = 0) -> None:
        self.gap_wait_ns = gap_wait_ns
        self.start_wait_ns = start_wait_ns
        self.extra_hold_ns = extra_hold_ns
        self._held: dict[Place, Deliver] = {}
        self._order: list[Place] = []
        self._next: Place | None = None
        #: The last id that heartbeats told of, and when they did.
        self._last: Place = (0, 0)
        self._heard_ns = 0
        self.delivered = self.late = self.passed = self.overfull = self.missing = 0

    def put(self, head: Head, payload: bytes, now_ns: int) -> bool:
        """The first copy of a message has come; whether that is later than its deadline."""
        place = head.epoch, head.id
        deadline = min(head.deadline_ns, head.sent_ns + HOLD_MAX_NS)
        late = bool(deadline) and now_ns > deadline
        self.late += late
        if self._next is not None and place < self._next:
            self.passed += 1
        elif len(self._held) >= HELD_MAX:
            self.overfull += 1
        else:
            self._held[place] = Deliver(*place, payload, head.sent_ns, deadline, now_ns, late)
            heapq.heappush(self._order, place)
        return late

    def heard(self, epoch: int, last_id: int, now_ns: int) -> None:
        """A heartbeat has told the last id of an epoch."""
        if self._next is None and not self._order:
            self._next = epoch, last_id + 1
        if (epoch, last_id) > self._last:
            self._last, self._heard_ns = (epoch, last_id), now_ns

    @property
    def held(self) -> int:
        """Messages that are held now."""
        return len(self._held)

    def _due(self, place: Place) -> int:
        """When a held message may be had; 1 for at once."""
        deadline = self._held[place].deadline_ns
        return deadline + self.extra_hold_ns if deadline else 1

    def _step(self) -> tuple[int, Event | None]:
        """What comes next, and when; (0, None) for nothing."""
        if self._next is None:
            if not self._order:
                return 0, None
            place = self._order[0]
            due, held = self._due(place), self._held[place]
            if place[1] > 1:
                due = max(due, held.arrived_ns + self.start_wait_ns)
            return due, held
        epoch, number = self._next
        first = self._order[0] if self._order else None
        if first is not None and first == self._next:
            return self._due(first), self._held[first]
        if first is not None and first[0] == epoch:
            since = max(self._due(first), self._held[first].arrived_ns)
            return since + self.gap_wait_ns, Gap(epoch, number, first[1] - 1)
        if self._last[0] == epoch and self._last[1] >= number:
            return self._heard_ns + self.gap_wait_ns, Gap(epoch, number, self._last[1])
        later = first[0] if first is not None else self._last[0]
        return (1, Restart(later)) if later > epoch else (0, None)

    @property
    def deadline_ns(self) -> int:
        """When `release` has something; 0: not by time."""
        return self._step()[0]

    def release(self, now_ns: int) -> list[Event]:
        """What may be had now, in order."""
        found: list[Event] = []
        while True:
            at, event = self._step()
            if event is None or at > now_ns:
                return found
            found.append(event)
            if isinstance(event, Restart):
                self._next = event.epoch, 1
            elif isinstance(event, Gap):
                self.missing += event.last - event.first + 1
                self._next = event.epoch, event.last + 1
            else:
                place = heapq.heappop(self._order)
                del self._held[place]
                self._next = place[0], place[1] + 1
                self.delivered += 1
