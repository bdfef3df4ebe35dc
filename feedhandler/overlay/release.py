"""Hold and release: messages in order, each no earlier than its deadline (section 6).

Messages come in any order; they leave in that of their ids, at their deadline or, where they come
later, at once. Of a message that is missing its followers wait `gap_wait_ns`; then the gap is
announced in its place in the order, and what comes of it later is dropped. Deadlines are the
overlay's time, waiting is local time: a step of a clock moves the one and not the other. No message
is held longer than `hold_ns_max` of local time, which only a step or a sender's wrong clock makes
necessary; that is counted. A receiver that does not know the time yet holds every dated message so
long.

    state of the epoch   next id comes          a later id comes or is told    gap_wait_ns is over
    complete             deliver, complete      hold, waiting                  -
    waiting              deliver what follows   hold, waiting                  announce, complete
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import Counts
from feedhandler.overlay.counters import OverlayCounter as C

_NEVER = 1 << 62


class ReleaseSettings(NamedTuple):
    """Bounds of holding.

    gap_wait_ns     a missing message is waited for so long: hedged copies are within a few ms
    hold_ns_max     no message is held longer
    messages_max    messages held: 16,384 of 1,456 bytes are 24 MB
    """

    gap_wait_ns: int = 20_000_000
    hold_ns_max: int = 100_000_000
    messages_max: int = 16_384


class Deliver(NamedTuple):
    """A message for the application. `datagram` is whole: its payload begins at `HEADER_BYTES`."""

    epoch: int
    id: int
    datagram: bytes
    deadline_ns: int
    arrived_ns: int  #: the overlay's time
    released_ns: int  #: the overlay's time
    late: bool


class Gap(NamedTuple):
    """Messages `first` to `last` of an epoch are lost."""

    epoch: int
    first: int
    last: int


class NewEpoch(NamedTuple):
    """The sender has restarted (or was heard for the first time): ids go on at `first`."""

    epoch: int
    first: int


class _Held(NamedTuple):
    id: int
    datagram: bytes
    deadline_ns: int
    arrived_ns: int
    arrived_local_ns: int


class ReleaseQueue:
    """What one receiver holds."""

    def __init__(self, settings: ReleaseSettings, clock: OverlayClock, counts: Counts) -> None:
        self._settings, self._clock, self._counts = settings, clock, counts
        self.epoch = 0
        #: The next id in order: all below are in `_ready`, delivered, or announced as lost.
        self.expected = 0
        #: Added to deadlines, for last hops that are shorter than others'.
        self.extra_ns = 0
        self._ready: deque[_Held | Gap | NewEpoch] = deque()
        self._waiting: dict[int, _Held] = {}
        self._ready_messages = 0
        #: One past the highest id of the epoch that is known to have been sent.
        self._told = 0
        self._gap_since_ns = _NEVER
        self._ready_epoch = 0

    def __len__(self) -> int:
        return self._ready_messages + len(self._waiting)

    def begin(self, epoch: int, first: int) -> None:
        """Follow a sender's epoch; the old one's missing messages are lost."""
        if self.epoch:
            self._close()
            first = 1
        self.epoch, self.expected, self._told = epoch, first, first
        self._ready.append(NewEpoch(epoch, first))

    def _close(self) -> None:
        while self.expected < self._told:
            self._give_up()
        self._gap_since_ns = _NEVER

    def add(self, id: int, datagram: bytes, deadline_ns: int, now_ns: int) -> bool:
        """Take a message of the epoch; whether it is late. One whose gap was announced, or for
        which there is no room, is dropped."""
        arrived_ns = self._clock.time_ns(now_ns)
        late = self._clock.known and 0 < deadline_ns < arrived_ns
        if id < self.expected:
            self._counts.add(C.AFTER_GAP)
            return late
        self._told = max(self._told, id + 1)
        if len(self) >= self._settings.messages_max:
            self._counts.add(C.OVERFLOW)
            self._arm(now_ns)
            return late
        self._waiting[id] = _Held(id, datagram, deadline_ns, arrived_ns, now_ns)
        self._advance()
        self._arm(now_ns)
        return late

    def told(self, last: int, now_ns: int) -> None:
        """A heartbeat says that messages up to `last` have been sent."""
        self._told = max(self._told, last + 1)
        self._arm(now_ns)

    def _advance(self) -> None:
        """Move what is next in order to what is ready; a new gap waits anew."""
        before = self.expected
        while (held := self._waiting.pop(self.expected, None)) is not None:
            self._ready.append(held)
            self._ready_messages += 1
            self.expected += 1
        if self.expected > before:
            self._gap_since_ns = _NEVER

    def _arm(self, now_ns: int) -> None:
        if self.expected >= self._told:
            self._gap_since_ns = _NEVER
        elif self._gap_since_ns == _NEVER:
            # A gap behind another one is as old as what came after it.
            next_held = self._waiting[min(self._waiting)] if self._waiting else None
            self._gap_since_ns = next_held.arrived_local_ns if next_held else now_ns

    def _give_up(self) -> None:
        """Announce the gap before the next message that came, and go on behind it."""
        end = min(self._waiting, default=self._told)
        self._counts.add(C.LOST, end - self.expected)
        self._ready.append(Gap(self.epoch, self.expected, end - 1))
        self.expected = end
        self._advance()

    def _due_ns(self, held: _Held) -> int:
        """The local time at which a message leaves."""
        if not held.deadline_ns:
            return held.arrived_local_ns
        latest_ns = held.arrived_local_ns + self._settings.hold_ns_max
        if not self._clock.known:
            return latest_ns
        return min(self._clock.local_ns(held.deadline_ns + self.extra_ns), latest_ns)

    @property
    def deadline_ns(self) -> int:
        """The local time at which `tick` has something to do."""
        due_ns = _NEVER
        if self._ready:
            head = self._ready[0]
            due_ns = self._due_ns(head) if isinstance(head, _Held) else 0
        return min(due_ns, self._gap_since_ns + self._settings.gap_wait_ns)

    def tick(self, now_ns: int) -> list[Deliver | Gap | NewEpoch]:
        """Give up gaps whose wait is over; answers with what leaves now, in order."""
        while now_ns >= self._gap_since_ns + self._settings.gap_wait_ns:
            self._give_up()
            self._gap_since_ns = _NEVER
            self._arm(now_ns)
        return list(self._leave(now_ns))

    def _leave(self, now_ns: int) -> Iterator[Deliver | Gap | NewEpoch]:
        time_ns = self._clock.time_ns(now_ns)
        while self._ready:
            head = self._ready[0]
            if isinstance(head, _Held):
                if self._due_ns(head) > now_ns:
                    return
                self._ready_messages -= 1
                self._ready.popleft()
                yield self._delivered(head, time_ns)
                continue
            self._ready.popleft()
            if isinstance(head, NewEpoch):
                self._ready_epoch = head.epoch
            yield head

    def _delivered(self, held: _Held, time_ns: int) -> Deliver:
        known = self._clock.known
        late = known and 0 < held.deadline_ns < held.arrived_ns
        early = held.deadline_ns > (time_ns if known else 0)
        self._counts.add(C.DELIVERED)
        self._counts.add(C.LATE, late)
        self._counts.add(C.UNDATED, not held.deadline_ns)
        self._counts.add(C.OVERHELD, early)
        return Deliver(
            self._ready_epoch, held.id, held.datagram, held.deadline_ns, held.arrived_ns, time_ns,
            late,
        )  # fmt: skip
