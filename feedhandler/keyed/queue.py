"""The rules of a keyed queue, without disk and clients: each message's way from put to end.

What it is for: messages of one key are worked on one after the other, in order; those of different
keys side by side; each has one effect. The queue decides; a `JournalStore` makes it durable and
says so, later; nothing counts before. `dispatch.py` knows who may go next, `structure.py` reads
keys, `producers.py` knows what was sent before.

A message has its position as soon as it is put, and no consumer gets it before it is durable.

    a delivery is   it came there by                  the store is asked to    then
    HELD            `take`
    ENDING          `acknowledge`; `give_back` of     end it: delivered, dead  its keys go on
                    the last try (poison)
    MARKING         `give_back` with a failure        count the try            it waits as before
    PARKING         `give_back` of the last try,      mark it parked           it keeps its keys
                    where the poisoned are parked                              until unparked

So no consumer gets a key before the end of the message that had it is durable, and a delivery count
is never lost. A consumer that was given up (gone, or later than `timeout_ns`) holds nothing any
more: its delivery's fence is not known, and its outcome is `stale`. Fences rise with each delivery,
over restarts too: an outside store that keeps the highest it has seen of a key can refuse the late
one itself.

No I/O; the time is an argument.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy

from feedhandler.keyed.dispatch import Dispatch
from feedhandler.keyed.producers import Producers, Stamp, Standing
from feedhandler.keyed.settings import NEVER, TRIES_MAX, Full, KeyedSettings, Poison, Wrong
from feedhandler.keyed.slot_states import FLYING, FREE, PARKED
from feedhandler.keyed.structure import DIGEST_BYTES, Digester, Misfit, Structure

if TYPE_CHECKING:
    from feedhandler.keyed.journal_store import JournalStore

#: Mark of a message that is parked; lower marks count tries.
PARKED_MARK = 127
#: A fence is the opening of the queue and, in these low bits, the deliveries since.
FENCE_SHIFT = 40
#: A message has this number until the store has given it its own.
COMING = (1 << 64) - 1
#: Slots, or keys, that are looked at in a step where all are: under a millisecond's work.
LOOK = 1 << 16
#: Messages that expire at a time.
SHARE = 256
FULL_OF_MESSAGES = "the queue is full"
FULL_OF_KEY = "as many messages of one of its keys wait as may"
Found = TypeVar("Found")
#: Work in steps, and its result.
Looking = Generator[None, None, Found]


class Outcome(Enum):
    """The outcome of putting a message."""

    STORING = auto()  # accepted once what the store was asked is durable
    REPEATED = auto()  # it is here, or was; accepted as above
    REJECTED = auto()  # refused for good, with the reason
    NOTED = auto()  # refused for good once durable, as its sequence number counts as used
    FULL = auto()  # no room now: it may be sent again


class Put(NamedTuple):
    """The answer to `put`; `number`: of a message that is to be handed out, else 0."""

    outcome: Outcome
    number: int = 0
    reason: str = ""
    standing: Standing = Standing.NEXT


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message in a consumer's hands. `tries`: how often it has failed before; `after`: fences of
    the deliveries that its consumer has of its keys, the last one of each key."""

    fence: int
    number: int
    tries: int
    after: tuple[int, ...] = ()


class Line(NamedTuple):
    """A message, or a key by its first message: its number, how many messages the key has (0: not
    asked for), whether it is `in hand`, `parked` or `waiting`, which consumer has it (0: none), and
    how often it has failed."""

    number: int
    messages: int
    standing: str
    consumer: int
    tries: int


class State(Enum):
    """State of a delivery; see the module's table."""

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


class KeyedQueue:
    """The rules of one keyed queue; see the module.

    `epoch` is above that of every opening before; `secret` is the same in each (none: keys are not
    kept); `on_ready` is called where a message may have become free for a consumer.
    """

    def __init__(
        self,
        structure: Structure,
        settings: KeyedSettings,
        store: "JournalStore",
        epoch: int,
        known: Iterable[tuple[bytes, tuple[int, int]]] = (),
        secret: bytes = b"",
    ) -> None:
        self.structure = structure
        self.settings = settings
        self.producers = Producers(settings.producers_max, known)
        self.dispatch = Dispatch(
            settings.messages_max,
            settings.keys_max,
            structure.key_slots,
            settings.run,
            settings.key_messages_max,
        )
        self.dispatch.visible = 0
        self.stale = self.repeated = self.refused = self.timeouts = self.buried = self.misfits = 0
        self.on_ready: Callable[[], None] = lambda: None
        self._digester = Digester(secret)
        self._store = store
        self._fences = epoch << FENCE_SHIFT
        #: Messages below this have expired, unless a consumer has them.
        self._expired_below = 0
        self._flights: dict[int, _Flight] = {}
        #: Of each consumer that has any, its flights by their fences, in the order of its taking.
        self._flights_of: dict[int, dict[int, _Flight]] = {}
        self._fence_of: dict[int, int] = {}
        #: Messages without a consumer: those whose end is on its way to the disk, and those that
        #: are being unparked.
        self._withdrawn: set[int] = set()
        self._unparking: dict[int, int] = {}

    # -- what producers send ---------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Return how many messages more fit, whatever their keys are."""
        dispatch = self.dispatch
        keys_left = (dispatch.keys.keys_max - dispatch.keys.count) // dispatch.key_slots
        return min(self.settings.messages_max - dispatch.count, keys_left)

    def put(self, content: bytes, stamp: Stamp | None = None, material: Any = None) -> Put:
        """Put a producer's message. `material` is what its keys are read from, where that is not
        its content."""
        if stamp is not None:
            standing = self.producers.judge(stamp)
            if standing is Standing.REPEATED:
                self.repeated += 1
                return Put(Outcome.REPEATED)
            if standing is not Standing.NEXT:
                self.refused += 1
                return Put(Outcome.REJECTED, 0, _refusal(standing, stamp), standing)
        try:
            keys = self.structure.keys(content if material is None else material)
        except Misfit as misfit:
            return self._misfit(content, stamp, str(misfit))
        digests = self._digester.digests(keys)
        slot = self.dispatch.enqueue(COMING, numpy.frombuffer(digests, numpy.uint64))
        if slot <= 0:
            self.refused += 1
            reason = FULL_OF_KEY if slot < 0 else FULL_OF_MESSAGES
            full = self.settings.full
            return Put(Outcome.FULL if full is Full.WAIT else Outcome.REJECTED, reason=reason)
        if stamp is not None:
            self.producers.advance(stamp)
        number = self._store.add(content, digests, stamp)
        self.dispatch.name(slot, number)
        return Put(Outcome.STORING, number)

    def put_sent(self, content: bytes, stamp: Stamp, material: Any) -> Put:
        """Put a message that another queue sends and will not keep: unless the queue is full, it is
        stored here or in the dead queue, once."""
        if self.producers.judge(stamp) is Standing.REPEATED:
            self.repeated += 1
            return Put(Outcome.REPEATED)
        reason = self.refusal([(None, material)])
        if reason in (FULL_OF_MESSAGES, FULL_OF_KEY):
            return Put(Outcome.FULL, reason=reason)
        if reason:
            return self.divert_sent(content, stamp, reason)
        return self.put(content, stamp, material)

    def divert_sent(self, content: bytes, stamp: Stamp, reason: str) -> Put:
        """Divert a message without a key that another queue sends to the dead queue."""
        self.misfits += 1
        self.producers.advance(stamp)
        self._store.divert(content, reason, stamp)
        return Put(Outcome.STORING)

    def refusal(self, puts: Iterable[tuple[Stamp | None, Any]]) -> str:
        """Return why not all of these (stamp, material) could be put now, one after the other; ""
        where they could."""
        puts = list(puts)
        dispatch = self.dispatch
        producers = self.producers.fork(stamp.producer for stamp, _ in puts if stamp is not None)
        more: Counter[tuple[int, int]] = Counter()
        count = 0
        for stamp, material in puts:
            if stamp is not None:
                standing = producers.judge(stamp)
                if standing is Standing.REPEATED:
                    continue
                if standing is not Standing.NEXT:
                    return _refusal(standing, stamp)
                producers.advance(stamp)
            try:
                digests = self._digester.digests(self.structure.keys(material))
            except Misfit as misfit:
                return str(misfit)
            count += 1
            words = numpy.frombuffer(digests, numpy.uint64).tolist()
            more.update(set(zip(words[::2], words[1::2], strict=True)))
        fresh = 0
        for (high, low), times in more.items():
            key = dispatch.keys.find(high, low)
            fresh += not key
            if times + (dispatch.lengths[key] if key else 0) > dispatch.key_messages_max:
                return FULL_OF_KEY
        keys_left = dispatch.keys.keys_max - dispatch.keys.count
        if dispatch.count + count > self.settings.messages_max or fresh > keys_left:
            return FULL_OF_MESSAGES
        return ""

    def _misfit(self, content: bytes, stamp: Stamp | None, reason: str) -> Put:
        """Refuse or divert a message without a key; its sequence number counts as used."""
        self.misfits += 1
        if stamp is not None:
            self.producers.advance(stamp)
        if self.settings.wrong is Wrong.DEAD:
            self._store.divert(content, reason, stamp)
            return Put(Outcome.STORING)
        self.refused += 1
        if stamp is None:
            return Put(Outcome.REJECTED, reason=reason)
        self._store.note(stamp)
        return Put(Outcome.NOTED, reason=reason)

    def durable(self, number: int) -> None:
        """Make all messages up to this number available, as they are durable."""
        if number > self.dispatch.visible:
            self.dispatch.visible = number
            self.on_ready()

    def restore(self, number: int, keys: bytes, mark: int) -> None:
        """Add a message of a queue that is opened; in the order of their numbers, before anything
        else. `mark` and `keys` are what the store had of it."""
        slot = self.dispatch.enqueue(number, numpy.frombuffer(keys, numpy.uint64))
        assert slot > 0, "no more messages than the queue takes"
        self.dispatch.visible = number
        if mark == PARKED_MARK:
            self.dispatch.park(slot)
        else:
            self.dispatch.remember(slot, mark)

    def restore_many(self, items: Sequence[tuple[int, int, bytes]]) -> None:
        """Add many messages as `restore` does: (number, mark, keys) of each."""
        digests = b"".join([keys for _, _, keys in items])
        if len(digests) != len(items) * self.structure.key_slots * DIGEST_BYTES:
            for number, mark, keys in items:
                self.restore(number, keys, mark)
            return
        numbers = numpy.fromiter((number for number, _, _ in items), numpy.uint64, len(items))
        slots = numpy.zeros(len(items), numpy.int32)
        taken = self.dispatch.enqueue_many(numbers, numpy.frombuffer(digests, numpy.uint64), slots)
        assert taken == len(items), "no more messages than the queue takes"
        self.dispatch.visible = items[-1][0]
        for index, (_, mark, _) in enumerate(items):
            if mark == PARKED_MARK:
                self.dispatch.park(int(slots[index]))
            elif mark:
                self.dispatch.remember(int(slots[index]), mark)

    # -- what consumers do -----------------------------------------------------------------------

    def take(self, consumer: int, now_ns: int) -> Delivery | None:
        """Take the oldest message that this consumer (above 0) may have; None for none."""
        slot = self.dispatch.take(consumer)
        if not slot:
            return None
        fence = self._fences | self.dispatch.taken
        number = self.dispatch.number(slot)
        after: tuple[int, ...] = ()
        if self.settings.run > 1:
            after = tuple(self._fence_of[each] for each in self.dispatch.before(slot))
        delivery = Delivery(fence, number, self.dispatch.failures(slot), after)
        flight = _Flight(delivery, slot, consumer, now_ns)
        self._flights[fence] = self._flights_of.setdefault(consumer, {})[fence] = flight
        self._fence_of[number] = fence
        return delivery

    @property
    def open_to_all(self) -> bool:
        """Return whether there is a message that any consumer may have."""
        return self.dispatch.open_to_all()

    def follows(self, consumer: int) -> bool:
        """Return whether there is, or will be, a message that only this consumer may have."""
        return self.dispatch.follows(consumer)

    def followed(self) -> list[int]:
        """Return the consumers for which such a message has come since the last call."""
        found = list(self.dispatch.followed)
        self.dispatch.followed.clear()
        return found

    def acknowledge(self, consumer: int, fence: int) -> bool:
        """End a delivery as done; return False where the consumer does not hold it any more."""
        flight = self._own(consumer, fence)
        if flight is None:
            return False
        flight.state = State.ENDING
        self._store.deliver(flight.delivery.number)
        return True

    def give_back(self, consumer: int, fence: int, failed: bool, reason: str = "") -> bool:
        """Return a message to its position; return False where the consumer does not hold it any
        more."""
        flight = self._own(consumer, fence)
        if flight is None:
            return False
        self._give_back(flight, failed, reason)
        return True

    def refuse(self, consumer: int, fence: int, reason: str) -> bool:
        """Treat a message as failed for the last time; return False where the consumer does not
        hold it any more."""
        flight = self._own(consumer, fence)
        if flight is None:
            return False
        self._poison(flight, reason)
        return True

    def gone(self, consumer: int, failed: bool) -> None:
        """Give back all that a consumer had which is gone, in the order in which it was taken."""
        for flight in list(self._flights_of.get(consumer, {}).values()):
            if flight.state is State.HELD:
                self._give_back(flight, failed, "its consumer was lost")

    def tick(self, now_ns: int) -> None:
        """Take back what consumers have held for longer than `timeout_ns`."""
        late = []
        for flight in self._flights.values():  # the one held longest comes first
            if now_ns - flight.since_ns < self.settings.timeout_ns:
                break
            if flight.state is State.HELD:
                late.append(flight)
        for flight in late:
            self.timeouts += 1
            self._give_back(flight, True, "its consumer took too long")

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` is due; NEVER where no message is held, or without a time-out."""
        if self.settings.timeout_ns == NEVER:
            return NEVER
        held = (f.since_ns for f in self._flights.values() if f.state is State.HELD)
        return next(held, NEVER - self.settings.timeout_ns) + self.settings.timeout_ns

    def cancel(self, number: int) -> bool:
        """Cancel a message that no consumer has; return False where one has it, or there is no such
        message."""
        slot = self.slot_of(number)
        if not slot:
            return False
        if number not in self._withdrawn:
            self._withdraw(slot, number)
            self._store.cancel(number)
        return True

    def _withdraw(self, slot: int, number: int) -> None:
        """Withhold a message from consumers, as its end is on its way to the disk."""
        if self.dispatch.state(slot) != PARKED:
            self.dispatch.park(slot)
        self._withdrawn.add(number)
        self._unparking.pop(number, None)

    def cancel_all(self) -> Iterator[list[int]]:
        """Cancel all messages that are here now and that no consumer has, a share at each step;
        yield their numbers."""
        return self._end_all(self.dispatch.visible + 1, self._store.cancel)

    def expire(self, before: int) -> Iterator[list[int]]:
        """Expire the messages below this number, as `cancel_all` does. What a consumer has expires
        if it comes back."""
        self._expired_below = max(self._expired_below, before)
        return self._end_all(before, self._store.expire)

    def _end_all(self, before: int, end: Callable[[int], None]) -> Iterator[list[int]]:
        ids = numpy.asarray(self.dispatch.ids)
        for low, high in _shares(self.dispatch.fresh):
            part = ids[low:high]
            slots = numpy.flatnonzero((part > 0) & (part < before)) + low
            for index in range(0, len(slots), SHARE):
                yield self._end_some(slots[index : index + SHARE].tolist(), before, end)
            yield []

    def _end_some(self, slots: list[int], before: int, end: Callable[[int], None]) -> list[int]:
        """End what is in these slots, below this number and with no consumer; return its
        numbers."""
        numbers: list[int] = []
        for slot in slots:
            number = self.dispatch.number(slot)  # another's by now, perhaps
            there = number < before and self.dispatch.state(slot) not in (FREE, FLYING)
            if there and number not in self._withdrawn:
                self._withdraw(slot, number)
                end(number)
                numbers.append(number)
        return numbers

    def unpark(self, number: int) -> bool:
        """Have a parked message tried again, with its tries at 0; return False where there is
        none."""
        slot = self.slot_of(number)
        if not slot or self.dispatch.state(slot) != PARKED or number in self._withdrawn:
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
        if flight.delivery.number < self._expired_below:
            flight.state = State.ENDING
            self._store.expire(flight.delivery.number)
        elif not failed:
            self._land(flight)
            self.dispatch.give_back(flight.slot, False)
            self.on_ready()
        elif tries < self.settings.tries_max:
            flight.state = State.MARKING
            self.dispatch.recall(flight.slot)
            self._store.mark(flight.delivery.number, min(tries, TRIES_MAX))
        else:
            self._poison(flight, f"failed {tries} times; {reason}".rstrip("; "))

    def _poison(self, flight: _Flight, reason: str) -> None:
        """Park or bury a message that has no further try."""
        if self.settings.poison is Poison.PARK:
            flight.state = State.PARKING
            self.dispatch.recall(flight.slot)
            self._store.mark(flight.delivery.number, PARKED_MARK)
        else:
            self.buried += 1
            flight.state = State.ENDING
            self._store.bury(flight.delivery.number, reason)

    def _land(self, flight: _Flight) -> None:
        """Forget a delivery."""
        fence, consumer = flight.delivery.fence, flight.consumer
        del self._flights[fence]
        del self._fence_of[flight.delivery.number]
        own = self._flights_of[consumer]
        del own[fence]
        if not own:
            del self._flights_of[consumer]

    # -- what has become durable -----------------------------------------------------------------

    def ended(self, number: int) -> None:
        """Free the keys of a message whose end is durable."""
        fence = self._fence_of.get(number)
        if fence is not None:
            flight = self._flights[fence]
            self._land(flight)
            self.dispatch.end(flight.slot)
        elif slot := self.slot_of(number):
            self._withdrawn.discard(number)
            self.dispatch.end(slot)
        self.on_ready()

    def marked(self, number: int) -> None:
        """Let a message whose mark is durable wait again, or be parked."""
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

    def holds(self, consumer: int, fence: int) -> bool:
        """Return whether this consumer holds that delivery."""
        flight = self._flights.get(fence)
        return flight is not None and flight.consumer == consumer and flight.state is State.HELD

    def longest(self, limit: int) -> Looking[list[Line]]:
        """Look for the keys with the most messages, a share at each step; return at most `limit` of
        them, the longest first."""
        dispatch = self.dispatch
        lengths = numpy.asarray(dispatch.lengths)
        keys = numpy.zeros(0, numpy.int64)
        least = 0
        for low, high in _shares(dispatch.keys.fresh):
            if low > 1:
                yield
            keys = numpy.append(keys, numpy.flatnonzero(lengths[low:high] > least) + low)
            if len(keys) > limit:
                keys = keys[numpy.argpartition(lengths[keys], -limit)[-limit:]]
                least = int(lengths[keys].min())
        # A key may have been another's, or nobody's, since it was looked at.
        now = sorted(((int(lengths[key]), key) for key in keys.tolist()), reverse=True)
        return [self._line(dispatch.chain(key, 1)[0], length) for length, key in now if length]

    def lines(self, after: int, limit: int) -> Looking[list[Line]]:
        """Look for the messages with numbers above `after`, a share at each step; return the first
        `limit` of them, in order: fewer where some end meanwhile, none where there is none."""
        while True:
            numbers = yield from self._lowest(after, limit)
            slots = [self.dispatch.find(number) for number in numbers]
            lines = [self._line(slot, 0) for slot in slots if slot]
            if lines or not numbers:
                return lines
            after = numbers[-1]

    def _lowest(self, after: int, limit: int) -> Looking[list[int]]:
        """Look for the lowest numbers above `after`, a share at each step; return at most `limit`,
        in order. A message that is here all the time, and durable, is not missed."""
        ids = numpy.asarray(self.dispatch.ids)
        until = self.dispatch.visible
        lowest = numpy.zeros(0, numpy.uint64)
        for low, high in _shares(self.dispatch.fresh):
            if low > 1:
                yield
            part = ids[low:high]
            lowest = numpy.append(lowest, part[(part > after) & (part <= until)])
            if len(lowest) > limit:
                lowest = numpy.partition(lowest, limit - 1)[:limit]
                until = int(lowest.max())
        lowest.sort()
        numbers: list[int] = lowest.tolist()
        return numbers

    def _line(self, slot: int, messages: int) -> Line:
        dispatch = self.dispatch
        standing = {FLYING: "in hand", PARKED: "parked"}.get(dispatch.state(slot), "waiting")
        return Line(
            dispatch.number(slot), messages, standing, dispatch.consumer(slot),
            dispatch.failures(slot),
        )  # fmt: skip

    @property
    def in_hand(self) -> int:
        """Number of messages that consumers have, or whose end is on its way to the disk."""
        return len(self._flights)

    def slot_of(self, number: int) -> int:
        """Return the slot of a message that no consumer has; 0 for none."""
        if number > self.dispatch.visible:
            return 0
        slot = self.dispatch.find(number)
        return 0 if slot and self.dispatch.state(slot) == FLYING else slot


def _shares(end: int) -> Iterator[tuple[int, int]]:
    """Divide the numbers from 1 to `end` - 1 into shares: the bounds of each."""
    for low in range(1, end, LOOK):
        yield low, min(low + LOOK, end)


def _refusal(standing: Standing, stamp: Stamp) -> str:
    if standing is Standing.REPLACED:
        return f"epoch {stamp.epoch} of this producer is over: another one has its id"
    return f"sequence {stamp.sequence}: something before it is missing"
