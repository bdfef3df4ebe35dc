"""A keyed queue without its disk and its clients: what each message is, from its coming to its end.

What it is for: messages of one key are worked on one after the other, in order; those of different
keys side by side; each has one effect. The queue decides; a `Store` makes it durable and says so,
later; nothing counts before. `dispatch.py` knows who may go next, `structure.py` reads keys,
`producers.py` knows what was sent before.

    a delivery is   it came there by                  the store is asked to    then
    HELD            `take`
    ENDING          `acknowledge`; `give_back` of     end it: delivered, dead  its keys go on
                    the last try (poison)
    MARKING         `give_back` with a failure        count the try            it waits in its place
    PARKING         `give_back` of the last try,      mark it parked           it keeps its keys
                    where the poisoned are parked                              until unparked

So a key goes to nobody before the end of what had it is durable, and a delivery count is never
forgotten. Who was given up (gone, or later than `timeout_ns`) has nothing any more: its delivery's
fence is not known, and what it says is `stale`. Fences rise with each delivery, over restarts too:
an outside store that keeps the highest it has seen of a key can refuse the late one itself.

No I/O; the time is an argument.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy

from feedhandler.keyed.dispatch import Dispatch
from feedhandler.keyed.producers import Producers, Stamp, Standing
from feedhandler.keyed.slot_states import FLYING, FREE, PARKED
from feedhandler.keyed.structure import Digester, Misfit, Structure

#: Tries that a mark can count; the one above it says parked.
TRIES_MAX = 126
PARKED_MARK = 127
#: A fence is the opening of the queue and, in these low bits, the deliveries since.
FENCE_SHIFT = 40
NEVER = 1 << 63


class Poison(Enum):
    """What becomes of a message that has failed too often."""

    DEAD = "dead"
    PARK = "park"


class Wrong(Enum):
    """What becomes of a message that is not of the structure, or has no key."""

    DEAD = "dead"
    REJECT = "reject"


class Full(Enum):
    """What a producer is told where there is no room."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class KeyedSettings:
    """What is declared when a queue is created, beside its structure."""

    messages_max: int = 1_000_000
    keys_max: int = 1_000_000
    run: int = 1
    tries_max: int = 5
    poison: Poison = Poison.DEAD
    wrong: Wrong = Wrong.DEAD
    full: Full = Full.WAIT
    timeout_ns: int = NEVER
    producers_max: int = 100_000


class Outcome(Enum):
    """What becomes of a message that is put."""

    STORING = auto()  # accepted once it is durable: `stored` is called with its ticket
    REPEATED = auto()  # it is here, or was; accepted once its producer's latest is durable
    REJECTED = auto()  # refused for good, with the reason
    FULL = auto()  # no room now


@dataclass(frozen=True, slots=True)
class Put:
    """The answer to `put`; `ticket` is the put that has to be durable before it is accepted."""

    outcome: Outcome
    ticket: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message in a consumer's hands. `tries`: how often it has failed before."""

    fence: int
    number: int
    tries: int


class State(Enum):
    """See the module's table."""

    HELD = auto()
    ENDING = auto()
    MARKING = auto()
    PARKING = auto()


@dataclass(slots=True)
class _Flight:
    delivery: Delivery
    slot: int
    consumer: int
    since_ns: int
    state: State = State.HELD


class Store(Protocol):
    """Where the queue's messages are; it does what it is asked in the order in which it is asked,
    and says by the queue's `stored`, `ended` and `marked` what is durable."""

    def add(self, ticket: int, content: bytes, stamp: Stamp | None) -> None:
        """Add a message, together with what its producer has come to."""

    def add_dead(self, ticket: int, content: bytes, reason: str, stamp: Stamp | None) -> None:
        """Put a message that is no good into the dead queue."""

    def note(self, ticket: int, stamp: Stamp) -> None:
        """Remember what a producer has come to, without its message."""

    def deliver(self, number: int) -> None:
        """The message has ended: delivered."""

    def cancel(self, number: int) -> None:
        """The message has ended: cancelled."""

    def bury(self, number: int, reason: str) -> None:
        """The message has ended: it goes to the dead queue, in one with its end."""

    def mark(self, number: int, mark: int) -> None:
        """Keep a pending message's mark."""


class KeyedQueue:
    """See the module. `epoch` is above that of every opening before; `on_ready` is called where
    something may have become free for who waits."""

    def __init__(
        self,
        structure: Structure,
        settings: KeyedSettings,
        store: Store,
        epoch: int,
        known: Iterable[tuple[bytes, tuple[int, int]]] = (),
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.structure = structure
        self.settings = settings
        self.producers = Producers(settings.producers_max, known)
        self.dispatch = Dispatch(
            settings.messages_max, settings.keys_max, structure.places, settings.run
        )
        self.stale = self.repeated = self.refused = self.timeouts = self.buried = 0
        self.on_ready = on_ready
        self._digester = Digester()
        self._store = store
        self._fences = epoch << FENCE_SHIFT
        self._ticket = 0
        #: Puts that are not durable: the keys' digests, None where there is no message to dispatch.
        self._coming: dict[int, numpy.ndarray | None] = {}
        self._flights: dict[int, _Flight] = {}
        self._fence_of: dict[int, int] = {}
        #: What becomes of messages that nobody has, once it is durable.
        self._cancelling: set[int] = set()
        self._unparking: dict[int, int] = {}

    # -- what producers send ---------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether one more message fits, with those that are on their way to the disk."""
        coming = sum(words is not None for words in self._coming.values())
        return self.dispatch.count + coming < self.settings.messages_max

    def put(self, content: bytes, stamp: Stamp | None = None) -> Put:
        """A producer sends a message."""
        if stamp is not None:
            standing = self.producers.judge(stamp)
            if standing is Standing.REPEATED:
                self.repeated += 1
                return Put(Outcome.REPEATED, self._ticket)
            if standing is not Standing.NEXT:
                self.refused += 1
                return Put(Outcome.REJECTED, reason=_refusal(standing, stamp))
        if not self.has_room:
            if self.settings.full is Full.WAIT:
                return Put(Outcome.FULL, reason="the queue is full")
            return Put(Outcome.REJECTED, reason="the queue is full")
        self._ticket += 1
        ticket = self._ticket
        try:
            words = self._digester.words(self.structure.keys(content))
        except Misfit as misfit:
            return self._misfit(ticket, content, stamp, str(misfit))
        if stamp is not None:
            self.producers.advance(stamp)
        self._coming[ticket] = words
        self._store.add(ticket, content, stamp)
        return Put(Outcome.STORING, ticket)

    def _misfit(self, ticket: int, content: bytes, stamp: Stamp | None, reason: str) -> Put:
        """A message without a key: its producer has sent it all the same, and goes on behind it."""
        if stamp is not None:
            self.producers.advance(stamp)
        if self.settings.wrong is Wrong.DEAD:
            self._coming[ticket] = None
            self._store.add_dead(ticket, content, reason, stamp)
            return Put(Outcome.STORING, ticket)
        self.refused += 1
        if stamp is not None:
            self._coming[ticket] = None
            self._store.note(ticket, stamp)
        return Put(Outcome.REJECTED, reason=reason)

    def stored(self, ticket: int, number: int = 0) -> None:
        """A put is durable, as message `number` (0: nothing of it is to be handed out)."""
        words = self._coming.pop(ticket)
        if words is not None:
            slot = self.dispatch.enqueue(number, words)
            assert slot, "room was made sure of before"
            self.on_ready()

    def restore(self, number: int, content: bytes, mark: int) -> None:
        """A message that was here when the queue was closed; in the order of their numbers, before
        anything else. `mark` is what the store had of it."""
        try:
            words = self._digester.words(self.structure.keys(content))
        except Misfit:  # it had a key when it came: the bytes are damaged
            words = numpy.zeros(0, numpy.uint64)
        slot = self.dispatch.enqueue(number, words)
        assert slot, "no more messages than the queue takes"
        if mark == PARKED_MARK:
            self.dispatch.park(slot)
        else:
            self.dispatch.remember(slot, mark)

    # -- what consumers do -----------------------------------------------------------------------

    def take(self, consumer: int, now_ns: int) -> Delivery | None:
        """The oldest message that this consumer (above 0) may have."""
        slot = self.dispatch.take(consumer)
        if not slot:
            return None
        fence = self._fences | self.dispatch.taken
        number = self.dispatch.number(slot)
        delivery = Delivery(fence, number, self.dispatch.failures(slot))
        self._flights[fence] = _Flight(delivery, slot, consumer, now_ns)
        self._fence_of[number] = fence
        return delivery

    def acknowledge(self, consumer: int, fence: int) -> bool:
        """The consumer has done its work; False where the message is not its own any more."""
        flight = self._own(consumer, fence)
        if flight is None:
            return False
        flight.state = State.ENDING
        self._store.deliver(flight.delivery.number)
        return True

    def give_back(self, consumer: int, fence: int, failed: bool, reason: str = "") -> bool:
        """The consumer gives a message back; False where it is not its own any more."""
        flight = self._own(consumer, fence)
        if flight is None:
            return False
        self._give_back(flight, failed, reason)
        return True

    def gone(self, consumer: int, failed: bool) -> None:
        """A consumer is gone, with what it had; given back in the order in which it was taken."""
        for flight in [f for f in self._flights.values() if f.consumer == consumer]:
            if flight.state is State.HELD:
                self._give_back(flight, failed, "its consumer was lost")

    def tick(self, now_ns: int) -> None:
        """Take back what consumers have had too long."""
        late = [
            flight
            for flight in self._flights.values()
            if flight.state is State.HELD and now_ns - flight.since_ns >= self.settings.timeout_ns
        ]
        for flight in late:
            self.timeouts += 1
            self._give_back(flight, True, "its consumer took too long")

    @property
    def deadline_ns(self) -> int:
        """When `tick` is wanted; NEVER where nobody has anything, or as long as he likes."""
        if self.settings.timeout_ns == NEVER:
            return NEVER
        held = (f.since_ns for f in self._flights.values() if f.state is State.HELD)
        return min(held, default=NEVER - self.settings.timeout_ns) + self.settings.timeout_ns

    def cancel(self, number: int) -> bool:
        """Have a message end that nobody has: from now on nobody gets it. False where a consumer
        has it, or there is none."""
        slot = self._slot_of(number)
        if not slot:
            return False
        if number not in self._cancelling:
            if self.dispatch.state(slot) != PARKED:
                self.dispatch.park(slot)
            self._cancelling.add(number)
            self._unparking.pop(number, None)
            self._store.cancel(number)
        return True

    def unpark(self, number: int) -> bool:
        """Have a parked message tried again, as one that was never tried; False for none."""
        slot = self._slot_of(number)
        if not slot or self.dispatch.state(slot) != PARKED or number in self._cancelling:
            return False
        if number not in self._unparking:
            self._unparking[number] = slot
            self._store.mark(number, 0)
        return True

    def _own(self, consumer: int, fence: int) -> _Flight | None:
        flight = self._flights.get(fence)
        if flight is None or flight.consumer != consumer or flight.state is not State.HELD:
            self.stale += 1
            return None
        return flight

    def _give_back(self, flight: _Flight, failed: bool, reason: str) -> None:
        tries = flight.delivery.tries + failed
        if not failed:
            self._land(flight)
            self.dispatch.give_back(flight.slot, False)
            self.on_ready()
        elif tries < self.settings.tries_max:
            flight.state = State.MARKING
            self._store.mark(flight.delivery.number, min(tries, TRIES_MAX))
        elif self.settings.poison is Poison.PARK:
            flight.state = State.PARKING
            self._store.mark(flight.delivery.number, PARKED_MARK)
        else:
            self.buried += 1
            flight.state = State.ENDING
            self._store.bury(flight.delivery.number, f"failed {tries} times; {reason}".rstrip("; "))

    def _land(self, flight: _Flight) -> None:
        """Nobody has it any more."""
        del self._flights[flight.delivery.fence]
        del self._fence_of[flight.delivery.number]

    # -- what has become durable -----------------------------------------------------------------

    def ended(self, number: int) -> None:
        """A message's end is durable, whoever asked for it: its keys go on."""
        fence = self._fence_of.get(number)
        if fence is not None:
            flight = self._flights[fence]
            self._land(flight)
            self.dispatch.end(flight.slot)
        elif slot := self._slot_of(number):
            self._cancelling.discard(number)
            self.dispatch.end(slot)
        self.on_ready()

    def marked(self, number: int) -> None:
        """A message's mark is durable: it waits again, or is parked."""
        slot = self._unparking.pop(number, 0)
        if slot:
            self.dispatch.unpark(slot)
            self.on_ready()
            return
        fence = self._fence_of.get(number)
        if fence is None:
            return  # it was cancelled meanwhile
        flight = self._flights[fence]
        self._land(flight)
        if flight.state is State.PARKING:
            self.dispatch.park(flight.slot)
        else:
            self.dispatch.give_back(flight.slot, True)
        self.on_ready()

    # -- looking ---------------------------------------------------------------------------------

    def _slot_of(self, number: int) -> int:
        """Where a message is; 0 for nowhere. It looks through all: for what is rare."""
        for slot in numpy.flatnonzero(numpy.asarray(self.dispatch.ids) == number):
            if self.dispatch.state(slot) not in (FREE, FLYING):
                return int(slot)
        return 0


def _refusal(standing: Standing, stamp: Stamp) -> str:
    if standing is Standing.REPLACED:
        return f"epoch {stamp.epoch} of this producer is over: another one has its id"
    return f"sequence {stamp.sequence}: something before it is missing"
