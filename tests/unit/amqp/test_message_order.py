"""Order of a worker's client: it begins nothing before what it comes after, whatever fails."""

import os
import random
from collections import defaultdict

from feedhandler.amqp.durable.keyed_sections import delivery_annotations
from feedhandler.amqp.working.message_order import MessageOrder, OrderedMessage
from feedhandler.amqp.working.messages import read

#: Courses of the random test: `SEEDS` in a campaign.
COURSES = int(os.environ.get("SEEDS", "8"))


def begun(order: MessageOrder[int]) -> list[OrderedMessage[int]]:
    """All that may be worked on now."""
    found = []
    while (turn := order.begin()) is not None:
        found.append(turn)
    return found


def of(afters: dict[int, tuple[int, ...]], credit: int = 100) -> MessageOrder[int]:
    order: MessageOrder[int] = MessageOrder(credit)
    for fence, after in afters.items():
        assert order.add(fence, fence, after)
    return order


def test_a_message_waits_for_those_that_it_comes_after() -> None:
    order = of({1: (), 2: (), 3: (1, 2), 4: (), 5: (3,), 6: (0,)})
    first = begun(order)
    assert [turn.item for turn in first] == [1, 2, 4, 6]
    assert order.end(first[0]) == []
    assert order.begin() is None, "it comes after 2, too"
    order.end(first[1])
    third = order.begin()
    assert third.item == 3
    assert order.begin() is None
    order.end(third)
    assert [turn.item for turn in begun(order)] == [5]


def test_with_a_failure_goes_what_comes_after_it_and_nothing_else() -> None:
    order = of({1: (), 2: (), 3: (2,), 4: (1,), 5: (4,), 6: (3,), 7: (6, 5), 8: ()})
    first = begun(order)
    assert [turn.item for turn in first] == [1, 2, 8]
    assert order.end(first[0], failed=True) == [4, 5, 7]
    order.end(first[1])
    (third,) = begun(order)
    order.end(third)
    (sixth,) = begun(order)
    order.end(sixth)
    assert begun(order) == []


def test_what_was_on_its_way_as_another_failed_goes_back_too() -> None:
    order = of({1: (), 2: (1,)}, credit=4)
    (first,) = begun(order)
    assert order.end(first, failed=True) == [2]
    assert not order.add(3, 3, (2,))
    assert order.add(4, 4)
    assert not order.add(5, 5, (3,))
    assert not order.add(6, 6, (1, 4))
    # Of what failed as 2 had come, nothing can be on its way once 4 more have.
    assert order.add(7, 7, (1, 2))
    for fence in range(8, 12):
        assert order.add(fence, fence)
    assert not order._failed


def test_what_is_dropped_leaves_no_trace() -> None:
    order = of({1: (), 2: (), 3: (1,), 4: (2,), 5: (3,), 6: ()})
    first = begun(order)[:2]
    order.add(7, 7)
    assert order.drop() == [3, 4, 5, 7]
    for turn in first:
        assert order.end(turn) == []
    assert order.begin() is None


def test_messages_of_a_queue_without_keys_wait_for_no_other() -> None:
    order: MessageOrder[int] = MessageOrder(2)
    for item in range(6):
        assert order.add(item, 0)
    for turn in begun(order):
        assert order.end(turn, failed=turn.item % 2 == 0) == []
    for item in range(6):
        assert order.add(item, 0)
    assert order.drop() == list(range(6))


class Wire:
    """A queue with `run` that gives one client all it may have, and hears of it later."""

    def __init__(self, chance: random.Random, messages: int, credit: int) -> None:
        self.chance = chance
        self.keys = [tuple(chance.sample(range(6), chance.randrange(3))) for _ in range(messages)]
        self.waiting = list(range(messages))
        self.order: MessageOrder[tuple[int, int]] = MessageOrder(credit)
        self.credit = credit
        self.fence = 0
        self.taken: dict[int, int] = {}  # what the client has as the queue knows it: its fence
        self.coming: list[tuple[int, int, tuple[int, ...]]] = []
        self.reported: list[tuple[int, bool]] = []
        self.working: list[OrderedMessage[tuple[int, int]]] = []
        self.done: dict[int, list[int]] = defaultdict(list)

    def send(self) -> None:
        for message in self.waiting:
            before = [m for m in range(message) if set(self.keys[m]) & set(self.keys[message])]
            if len(self.taken) < self.credit and all(m not in self.waiting for m in before):
                self.waiting.remove(message)
                self.fence += 1
                after = tuple(self.taken[m] for m in before if m in self.taken)
                self.taken[message] = self.fence
                self.coming.append((message, self.fence, after))
                return

    def arrive(self) -> None:
        if self.coming:
            message, fence, after = self.coming.pop(0)
            if not self.order.add((message, fence), fence, after):
                self.reported.append((message, False))

    def begin(self) -> None:
        if (turn := self.order.begin()) is not None:
            busy = {key for other in self.working for key in self.keys[other.item[0]]}
            assert busy.isdisjoint(self.keys[turn.item[0]]), "two at a time"
            self.working.append(turn)

    def end(self) -> None:
        if self.working:
            turn = self.working.pop(self.chance.randrange(len(self.working)))
            failed = self.chance.random() < 0.2
            for message, _ in [turn.item, *self.order.end(turn, failed)]:
                self.reported.append((message, not failed))
            if not failed:
                for key in self.keys[turn.item[0]]:
                    self.done[key].append(turn.item[0])

    def hear(self) -> None:
        """The queue hears all that was said: credit comes with it."""
        for message, done in self.reported:
            del self.taken[message]
            if not done:
                self.waiting = sorted([message, *self.waiting])
        self.reported.clear()


def test_any_course_keeps_the_order_of_every_key(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(COURSES):
        wire = Wire(chance, messages=60, credit=chance.choice((1, 3, 12)))
        while wire.waiting or wire.taken:
            chance.choice((wire.send, wire.arrive, wire.begin, wire.end, wire.hear))()
        for key, messages in wire.done.items():
            assert messages == [n for n in range(60) if key in wire.keys[n]]


def test_a_message_says_what_it_comes_after() -> None:
    data = b"\x00\x53\x75\xa0\x01x"
    assert read(delivery_annotations("t-1", 5, (7, 1 << 60)) + data).after == (7, 1 << 60)
    alone = read(delivery_annotations("t-1", 5) + data)
    assert (alone.after, alone.token, alone.fence) == ((), "t-1", 5)
    assert read(delivery_annotations("t" * 90, 5, tuple(range(8))) + data).token == "t" * 90
