"""Dispatch by key, compiled and interpreted, against a model that scans all messages."""

import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.keyed import dispatch as compiled
from feedhandler.keyed.slot_states import FLYING, FOLLOWING, PARKED, READY, WOKEN
from tests.support.seeds import rerun

interpreted = load_interpreted("feedhandler.keyed.dispatch")

SEEDS = int(os.environ.get("SEEDS", "100"))
#: Steps of one seed, and of those between two looks at everything.
STEPS = 200
LOOK = 10
CONSUMERS = 4


class Naive:
    """Model of what `Dispatch` promises: it looks at every message each time."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.messages: dict[int, frozenset[int]] = {}  # in order of their numbers
        self.holder: dict[int, int] = {}
        self.parked: set[int] = set()
        self.tries: dict[int, int] = {}

    def may_go(self, message: int, consumer: int) -> bool:
        if message in self.holder or message in self.parked:
            return False
        for key in self.messages[message]:
            same = [each for each in self.messages if key in self.messages[each]]
            before = same[: same.index(message)]
            flying = [each for each in same if each in self.holder]
            if flying != before or len(before) >= self.run:
                return False
            if any(self.holder[each] != consumer for each in before):
                return False
        return True

    def next(self, consumer: int) -> int:
        return next((each for each in self.messages if self.may_go(each, consumer)), 0)

    def end(self, message: int) -> None:
        del self.messages[message]
        self.holder.pop(message, None)
        self.parked.discard(message)


class Course:
    """One seed's steps, taken by a dispatch and by the model; they must agree after each."""

    def __init__(self, made: Callable[..., Any], seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.key_slots = draw.choice((1, 1, 2, 3))
        run = draw.choice((1, 1, 2, 5))
        self.room = draw.choice((8, 40))
        self.keys_max = draw.choice((4, 1000))
        self.keys = draw.choice((2, 6, 50))
        self.dispatch = made(self.room, self.keys_max, key_slots=self.key_slots, run=run)
        self.model = Naive(run)
        self.slots: dict[int, int] = {}
        self.message = 0
        self.shown: list[tuple[int, ...]] = []
        self.reported: set[int] = set()

    def run(self) -> None:
        steps = [self.enqueue] * 6 + [self.take] * 7 + [self.acknowledge] * 4 + [
            self.recall, self.give_back, self.cancel, self.park, self.unpark,
        ]  # fmt: skip
        for step in range(STEPS):
            self.random.choice(steps)()
            if step % LOOK == 0:
                self.look()
        if not self.random.randrange(4):
            self.leave()
            self.look()

    def look(self) -> None:
        dispatch, model = self.dispatch, self.model
        assert dispatch.count == len(model.messages)
        assert dispatch.flying == len(model.holder)
        assert dispatch.parked == len(model.parked)
        assert dispatch.keys.count == len(set().union(*model.messages.values()))
        alone: set[int] = set()
        for_all = False
        for message, slot in self.slots.items():
            state = dispatch.state(slot)
            assert dispatch.find(message) == slot
            assert dispatch.consumer(slot) == model.holder.get(message, 0)
            assert (state == FLYING) == (message in model.holder)
            assert (state == PARKED) == (message in model.parked)
            may = [who for who in range(1, CONSUMERS + 1) if model.may_go(message, who)]
            assert (state in (READY, WOKEN)) == (len(may) == CONSUMERS), (message, state)
            assert (state == FOLLOWING) == (len(may) == 1), (message, state)
            for_all |= len(may) == CONSUMERS
            alone |= set(may) if len(may) == 1 else set()
        assert dispatch.open_to_all() == for_all
        assert {who for who in range(1, CONSUMERS + 1) if dispatch.follows(who)} == alone
        assert alone <= dispatch.followed | self.reported
        self.reported = alone
        dispatch.followed.clear()

    def pick(self, of: Any) -> int:
        return self.random.choice(sorted(of)) if of else 0

    def enqueue(self) -> None:
        self.message += self.random.choice((1, 1, 3))
        many = (
            self.random.randint(0, self.key_slots) if self.random.random() < 0.1 else self.key_slots
        )
        keys = [self.random.randrange(self.keys) for _ in range(many)]
        # The same lower half for all keys: slots of the table that collide.
        digests = numpy.array([word for key in keys for word in (key, 7)], numpy.uint64)
        slot = self.dispatch.enqueue(self.message, digests)
        known = set().union(*self.model.messages.values())
        fits = len(self.model.messages) < self.room and len(known | set(keys)) <= self.keys_max
        assert bool(slot) == fits
        if slot:
            assert slot not in self.slots.values()
            self.slots[self.message] = slot
            self.model.messages[self.message] = frozenset(keys)
            self.model.tries[self.message] = 0

    def take(self) -> None:
        consumer = self.random.randint(1, CONSUMERS)
        expected = self.model.next(consumer)
        slot = self.dispatch.take(consumer)
        assert (self.dispatch.ids[slot] if slot else 0) == expected
        if slot:
            assert self.dispatch.tries[slot] == self.model.tries[expected]
            self.model.holder[expected] = consumer
        self.shown.append((consumer, expected))

    def acknowledge(self) -> None:
        if message := self.pick(self.model.holder):
            self.end(message)

    def end(self, message: int) -> None:
        self.dispatch.end(self.slots.pop(message))
        self.model.end(message)

    def cancel(self) -> None:
        if message := self.pick(self.model.messages):
            self.end(message)

    def give_back(self) -> None:
        if message := self.pick(self.model.holder):
            failed = self.random.random() < 0.5
            self.dispatch.give_back(self.slots[message], failed)
            del self.model.holder[message]
            self.model.tries[message] += failed

    def recall(self) -> None:
        """Its consumer has failed at it: what is behind it waits until it is given back."""
        if message := self.pick(self.model.holder):
            self.dispatch.recall(self.slots[message])
            self.model.holder[message] = 0

    def leave(self) -> None:
        """A consumer is gone: what it has comes back, in an order of the caller's."""
        gone = self.random.randint(1, CONSUMERS)
        for message in [each for each, who in self.model.holder.items() if who == gone]:
            self.dispatch.give_back(self.slots[message], True)
            del self.model.holder[message]
            self.model.tries[message] += 1

    def park(self) -> None:
        if message := self.pick(self.model.holder):
            self.dispatch.park(self.slots[message])
            del self.model.holder[message]
            self.model.parked.add(message)

    def unpark(self) -> None:
        if message := self.pick(self.model.parked):
            self.dispatch.unpark(self.slots[message])
            self.model.parked.remove(message)
            self.model.tries[message] = 0


@pytest.mark.parametrize(
    ("made", "seeds"),
    [(compiled.Dispatch, SEEDS), (interpreted.Dispatch, SEEDS // 20)],
    ids=["compiled", "interpreted"],
)
def test_dispatch_is_what_a_scan_of_all_messages_finds(
    made: Callable[..., Any], seeds: int, seed: int, request: pytest.FixtureRequest
) -> None:
    for each in range(seed, seed + seeds):
        try:
            Course(made, each).run()
        except AssertionError:
            print(rerun(request.node.nodeid, each))
            raise


class Looked:
    """A table that counts looks at it."""

    def __init__(self, table: Any) -> None:
        self.table, self.looks = table, 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return self.table[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.table[index] = value


def test_an_old_message_and_one_that_never_was_are_looked_for_at_few_places() -> None:
    room = 100
    dispatch = interpreted.Dispatch(room)
    none = numpy.zeros(0, numpy.uint64)
    old = {number: dispatch.enqueue(number, none) for number in range(1, room)}
    last = 50 * room
    for number in range(room, last):
        dispatch.end(dispatch.enqueue(number, none))
    dispatch.ids = looked = Looked(dispatch.ids)
    assert {number: dispatch.find(number) for number in old} == old
    assert not any(dispatch.find(number) for number in range(room, last + room))
    assert looked.looks <= 2 * (last + room)
    looked.looks = 0
    for slot in old.values():
        dispatch.end(slot)
    assert looked.looks <= 9 * len(old)
    assert not any(dispatch.find(number) for number in old)


@pytest.mark.parametrize("made", [compiled.Dispatch, interpreted.Dispatch])
def test_messages_with_the_same_low_bits_are_found_and_named_and_end_in_any_order(
    made: Callable[..., Any],
) -> None:
    dispatch, none = made(7), numpy.zeros(0, numpy.uint64)
    numbers = [5, 13, 21, 29, 37]
    for order in itertools.permutations(numbers):
        slots = {}
        for number in numbers:
            slots[number] = dispatch.enqueue((1 << 64) - 1, none)
            dispatch.name(slots[number], number)
        for number in order:
            assert {each: dispatch.find(each) for each in numbers if each in slots} == slots
            dispatch.end(slots.pop(number))
            assert not dispatch.find(number)
    assert dispatch.count == 0


@pytest.mark.parametrize("made", [compiled.Dispatch, interpreted.Dispatch])
def test_many_at_a_time_are_the_same_as_one_by_one(made: Callable[..., Any]) -> None:
    draw = random.Random(5)
    keys = [[draw.randrange(1, 9) for _ in range(2)] for _ in range(60)]
    one, many = made(50, key_slots=2), made(50, key_slots=2)
    words = [numpy.array([w for key in pair for w in (0, key)], numpy.uint64) for pair in keys]
    slots = numpy.zeros(60, numpy.int32)
    alone = [one.enqueue(number, word) for number, word in enumerate(words, 1)]
    numbers = numpy.arange(1, 61, dtype=numpy.uint64)
    assert many.enqueue_many(numbers, numpy.concatenate(words), slots) == 50
    assert alone == slots.tolist()
    while one.count:
        some = numpy.zeros(7, numpy.int32)
        taken = many.take_many(1, some)
        assert some[:taken].tolist() == [one.take(1) for _ in range(taken)] != []
        assert taken == 7 or one.take(1) == 0
        many.end_many(some[:taken])
        for slot in some[:taken]:
            one.end(slot)
    assert many.count == 0
    with pytest.raises(ValueError, match="as many keys"):
        many.enqueue_many(numbers, numpy.zeros(3, numpy.uint64), slots)
