"""A keyed queue over a store that takes its time, crashes and comes back: each message has one
effect, in its key's order, and nothing that may go is held up.

Each seed draws producers that send again what was not accepted, consumers that work, fail, fall
silent, die and wake up too late, cancels, and crashes at any moment, behind which the store has
what was durable. Beside the queue runs a model that looks at every message each time.

`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import json
import os
import random
from collections import deque
from typing import Any

import pytest

from feedhandler.keyed.producers import Producers, Stamp, Standing
from feedhandler.keyed.queue import (
    FULL_OF_KEY,
    FULL_OF_MESSAGES,
    PARKED_MARK,
    Delivery,
    KeyedQueue,
    Outcome,
)
from feedhandler.keyed.settings import Format, Full, KeyedSettings, Poison, Rule, Wrong
from feedhandler.keyed.structure import Structure
from tests.support.seeds import naming, seeds_to_play

SEEDS = int(os.environ.get("SEEDS", "25"))
STEPS = 300
CONSUMERS = 5
PRODUCERS = 3


class Disk:
    """Simulated disk: what is durable, and what was asked for and is lost with a crash."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Any, ...]] = deque()
        #: How much was asked for since ever, and how much of it is over.
        self.asks = self.done = 0
        self.messages: dict[int, bytes] = {}
        self.keys: dict[int, bytes] = {}
        self.marks: dict[int, int] = {}
        self.producers: dict[bytes, tuple[int, int]] = {}
        self.ends: dict[int, str] = {}
        self.dead: list[bytes] = []
        self.next = 1

    def ask(self, *what: Any) -> None:
        self.asked.append(what)
        self.asks += 1

    def add(self, content: bytes, keys: bytes, stamp: Stamp | None) -> int:
        number = self.next
        self.next += 1
        self.ask("add", number, content, keys, stamp)
        return number

    def divert(self, content: bytes, reason: str, stamp: Stamp | None) -> None:
        assert reason
        self.ask("dead", 0, content, b"", stamp)

    def note(self, stamp: Stamp) -> None:
        self.ask("note", 0, None, b"", stamp)

    def deliver(self, number: int) -> None:
        self.ask("end", number, "delivered")

    def bury(self, number: int, reason: str) -> None:
        assert reason
        self.ask("end", number, "dead")

    def cancel(self, number: int) -> None:
        self.ask("end", number, "cancelled")

    def expire(self, number: int) -> None:
        self.ask("end", number, "expired")

    def mark(self, number: int, mark: int) -> None:
        self.ask("mark", number, mark)

    def crash(self) -> None:
        """Crash: forget what was asked for and is not durable."""
        self.asked.clear()
        self.done = self.asks
        self.next = max(self.messages.keys() | self.ends.keys(), default=0) + 1

    def opened(self, structure: Structure, settings: KeyedSettings, epoch: int) -> KeyedQueue:
        """A queue that has been opened with what is durable."""
        queue = KeyedQueue(structure, settings, self, epoch, self.producers.items(), b"secret")
        kept = [
            (number, self.marks.get(number, 0), self.keys[number])
            for number in sorted(self.messages)
        ]
        for index in range(0, len(kept), 5):
            queue.restore_many(kept[index : index + 5])
        queue.durable(self.next - 1)
        return queue

    def sync(self, queue: KeyedQueue) -> None:
        """One thing more is durable."""
        kind, which, *rest = self.asked.popleft()
        self.done += 1
        if kind == "end":
            if which in self.messages:
                del self.messages[which], self.keys[which]
                self.marks.pop(which, None)
                self.ends[which] = rest[0]
            queue.ended(which)
            return
        if kind == "mark":
            if which in self.messages:
                self.marks[which] = rest[0]
            queue.marked(which)
            return
        content, keys, stamp = rest
        if stamp is not None:
            self.producers[stamp.producer] = stamp.epoch, stamp.sequence
        if kind == "add":
            self.messages[which], self.keys[which] = content, keys
            queue.durable(which)
        elif kind == "dead":
            self.dead.append(content)


class Producer:
    """Sends numbered messages, and each again until it is accepted."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.epoch = 1
        self.sequence = 1
        self.content = b""
        self.waits_for = 0
        self.refused = False
        self.accepted: list[bytes] = []


class Course:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        rule = draw.choice(list(Rule))
        fields = ("a",) if rule is Rule.COMPOSITE and draw.random() < 0.5 else ("a", "b")
        self.structure = Structure(Format.JSON, fields, rule)
        self.settings = KeyedSettings(
            messages_max=draw.choice([8, 60]), keys_max=200, tries_max=draw.choice([1, 3]),
            key_messages_max=draw.choice([0, 0, 5]),
            poison=draw.choice(list(Poison)), wrong=draw.choice(list(Wrong)),
            full=draw.choice(list(Full)), timeout_ns=draw.choice([20, 1 << 63]),
        )  # fmt: skip
        self.wanted = draw.choice([2, 5, 40])
        self.disk = Disk()
        self.now = self.epoch = self.made = self.fence = 0
        self.producers = [Producer(b"p%d" % n) for n in range(PRODUCERS)]
        self.effects: list[int] = []
        self.restart()

    def restart(self) -> None:
        """The queue is opened with what is durable; no consumer holds anything."""
        self.epoch += 1
        self.disk.crash()
        self.came_to = dict(self.disk.producers)
        self.queue = self.disk.opened(self.structure, self.settings, self.epoch)
        self.holds: dict[int, list[Delivery]] = {n: [] for n in range(1, CONSUMERS + 1)}
        self.lost: list[tuple[int, Delivery]] = []
        for producer in self.producers:
            producer.waits_for = 0

    # -- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += self.draw.randrange(3)
        acts = [
            (self.send, 6), (self.take, 6), (self.work, 5), (self.sync, 9), (self.fail, 2),
            (self.die, 0.4), (self.wake, 1), (self.cancel, 0.6), (self.unpark, 0.6),
            (self.crash, 0.3), (self.tick, 1), (self.end_of_day, 0.05),
        ]  # fmt: skip
        (act,) = self.draw.choices([a for a, _ in acts], [w for _, w in acts])
        act()
        self.look()

    def send(self) -> None:
        producer = self.draw.choice(self.producers)
        if producer.waits_for:
            return
        if not producer.content:
            self.made += 1
            values = [self.draw.randrange(self.wanted) for _ in "ab"]
            fields = {"a": values[0], "b": values[1], "n": self.made}
            if self.draw.random() < 0.05:
                del fields["a"]
            producer.content = json.dumps(fields).encode()
            if self.draw.random() < 0.05:
                producer.epoch, producer.sequence = producer.epoch + 1, 1
        stamp = Stamp(producer.name, producer.epoch, producer.sequence)
        if self.draw.random() < 0.1:  # another producer under its name, or out of order
            wrong = self.draw.choice([(-1, 0), (0, 2)])
            other = Stamp(stamp.producer, stamp.epoch + wrong[0], stamp.sequence + wrong[1])
            epoch, sequence = self.came_to.get(producer.name, (-1, 0))
            follows = other.epoch > epoch and other.sequence == 1
            if other.epoch > 0 and not follows and other[1:] != (epoch, sequence + 1):
                answer = self.queue.put(b'{"a": 1, "b": 1}', other)
                assert answer.outcome in (Outcome.REJECTED, Outcome.REPEATED)
        answer = self.queue.put(producer.content, stamp)
        if answer.outcome in (Outcome.STORING, Outcome.NOTED):
            self.came_to[producer.name] = stamp.epoch, stamp.sequence
        if answer.outcome in (Outcome.STORING, Outcome.REPEATED, Outcome.NOTED):
            producer.waits_for = self.disk.asks
            producer.refused = answer.outcome is Outcome.NOTED
            if self.disk.done == self.disk.asks:
                self.accept(producer)
        elif answer.outcome is Outcome.FULL:
            assert answer.reason
            assert self.settings.full is Full.WAIT
        elif answer.outcome is Outcome.REJECTED:
            assert answer.reason
            assert answer.reason in (FULL_OF_MESSAGES, FULL_OF_KEY)

    def accept(self, producer: Producer) -> None:
        if not producer.refused:
            producer.accepted.append(producer.content)
        producer.content, producer.waits_for = b"", 0
        producer.sequence += 1

    def sync(self) -> None:
        for _ in range(self.draw.randrange(1, 6)):
            if not self.disk.asked:
                return
            self.disk.sync(self.queue)
            for producer in self.producers:
                if 0 < producer.waits_for <= self.disk.done:
                    self.accept(producer)

    def take(self) -> None:
        consumer = self.draw.randrange(1, CONSUMERS + 1)
        wanted = self.eligible()
        delivery = self.queue.take(consumer, self.now)
        assert (delivery.number if delivery else 0) == (wanted[0] if wanted else 0)
        if delivery is not None:
            assert delivery.fence > self.fence, "fences rise"
            assert delivery.tries == self.disk.marks.get(delivery.number, 0), "tries are durable"
            self.fence = delivery.fence
            self.holds[consumer].append(delivery)

    def work(self) -> None:
        consumer = self.draw.choice(list(self.holds))
        if self.holds[consumer]:
            delivery = self.holds[consumer].pop(self.draw.randrange(len(self.holds[consumer])))
            if self.queue.acknowledge(consumer, delivery.fence):
                self.effects.append(delivery.number)

    def fail(self) -> None:
        consumer = self.draw.choice(list(self.holds))
        if self.holds[consumer]:
            delivery = self.holds[consumer].pop()
            self.queue.give_back(consumer, delivery.fence, self.draw.random() < 0.6, "no luck")

    def die(self) -> None:
        consumer = self.draw.choice(list(self.holds))
        self.queue.gone(consumer, failed=True)
        self.lost += [(consumer, delivery) for delivery in self.holds[consumer]]
        self.holds[consumer] = []

    def tick(self) -> None:
        self.queue.tick(self.now)

    def wake(self) -> None:
        """Have a consumer that was given up acknowledge, and check that it is refused as stale."""
        if self.lost:
            consumer, delivery = self.lost.pop(self.draw.randrange(len(self.lost)))
            before = self.queue.stale
            assert not self.queue.acknowledge(consumer, delivery.fence)
            assert self.queue.stale == before + 1

    def cancel(self) -> None:
        if self.disk.messages:
            self.queue.cancel(self.draw.choice(list(self.disk.messages)))

    def unpark(self) -> None:
        parked = [n for n, mark in self.disk.marks.items() if mark == PARKED_MARK]
        if parked and not self.disk.asked:
            self.queue.unpark(self.draw.choice(parked))

    def end_of_day(self) -> None:
        before = self.disk.next
        for _ in self.queue.expire(before):
            pass
        kept = set(self.disk.messages) - self.held() - {e[1] for e in self.disk.asked}
        assert not kept, "the day's messages that no consumer has are over"

    def held(self) -> set[int]:
        return {flight.delivery.number for flight in self.queue._flights.values()}

    def crash(self) -> None:
        self.restart()

    # -- what must be true -------------------------------------------------------------------

    def keys(self, number: int) -> set[bytes]:
        return set(self.structure.keys(self.disk.messages[number]))

    def eligible(self) -> list[int]:
        """Messages that may go, by looking at all of them: nothing before them has one of their
        keys, and no consumer has them."""
        busy = self.held()
        busy |= {n for n, mark in self.disk.marks.items() if mark == PARKED_MARK}
        busy |= {entry[1] for entry in self.disk.asked if entry[0] == "end"}
        found, before = [], set[bytes]()
        for number in sorted(self.disk.messages):
            keys = self.keys(number)
            if not keys & before and number not in busy:
                found.append(number)
            before |= keys
        return found

    def look(self) -> None:
        flying = [flight.delivery.number for flight in self.queue._flights.values()]
        keys = [
            key for number in flying if number in self.disk.messages for key in self.keys(number)
        ]
        assert len(keys) == len(set(keys)), "two of one key are with consumers"
        coming = sum(entry[0] == "add" for entry in self.disk.asked)
        assert self.queue.dispatch.count == len(self.disk.messages) + coming

    def finish(self) -> None:
        """Everybody goes on without faults: all that was accepted comes to its end."""
        for _ in range(4000):
            self.now += 100
            while self.disk.asked:
                self.sync()
            for consumer in self.holds:
                while self.holds[consumer]:
                    delivery = self.holds[consumer].pop(0)
                    if self.queue.acknowledge(consumer, delivery.fence):
                        self.effects.append(delivery.number)
            self.tick()
            while self.disk.asked:
                self.sync()
            for number in [n for n, mark in self.disk.marks.items() if mark == PARKED_MARK]:
                self.queue.unpark(number)
            while self.disk.asked:
                self.sync()
            if not self.disk.messages:
                break
            self.take()
        assert not self.disk.messages, "nothing stands still"
        delivered = [n for n, end in self.disk.ends.items() if end == "delivered"]
        sent = [content for producer in self.producers for content in producer.accepted]
        assert len(set(sent)) == len(sent)
        ended = len(self.disk.ends) + len(self.disk.dead)
        rest = {p.content for p in self.producers if p.content}
        assert len(sent) <= ended <= len(sent) + len(rest), (
            "each accepted message once, and no other"
        )
        assert set(delivered) <= set(self.effects)


def play(seed: int) -> Course:
    course = Course(seed)
    for _ in range(STEPS):
        course.step()
    course.finish()
    return course


@pytest.mark.timeout(3600)
def test_each_message_has_one_effect_in_its_keys_order() -> None:
    totals = {"stale": 0, "repeated": 0, "refused": 0, "timeouts": 0, "buried": 0}
    for seed in seeds_to_play(range(SEEDS)):
        with naming(seed, __file__):
            course = play(seed)
        for name in totals:
            totals[name] += getattr(course.queue, name)
    if not os.environ.get("SEED"):
        assert all(totals.values()), totals


def hand_out_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedQueue.put

    def put(self: KeyedQueue, content: bytes, *rest: Any) -> Any:
        answer = plain(self, content, *rest)
        self.dispatch.visible = max(self.dispatch.visible, answer.number)
        return answer

    patch.setattr(KeyedQueue, "put", put)


def free_keys_at_once(patch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: KeyedQueue, consumer: int, fence: int) -> bool:
        flight = self._own(consumer, fence)
        if flight is not None:
            self._store.deliver(flight.delivery.number)
            self._land(flight)
            self.dispatch.end(flight.slot)
        return flight is not None

    patch.setattr(KeyedQueue, "acknowledge", acknowledge)


def store_again_what_is_repeated(patch: pytest.MonkeyPatch) -> None:
    def judge(self: Producers, stamp: Stamp) -> Standing:
        standing = plain(self, stamp)
        return Standing.NEXT if standing is Standing.REPEATED else standing

    plain = Producers.judge
    patch.setattr(Producers, "judge", judge)


def take_what_comes_out_of_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "judge", lambda self, stamp: Standing.NEXT)


def forget_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "advance", lambda self, stamp: None)


def believe_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedQueue, "gone", lambda self, consumer, failed: None)


def count_no_try(patch: pytest.MonkeyPatch) -> None:
    def give_back(self: KeyedQueue, flight: Any, failed: bool, reason: str) -> None:
        self._land(flight)
        self.dispatch.give_back(flight.slot, failed)

    patch.setattr(KeyedQueue, "_give_back", give_back)


def repeat_fences(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedQueue.__init__

    def begin(self: KeyedQueue, structure: Any, settings: Any, store: Any, *rest: Any) -> None:
        plain(self, structure, settings, store, 1, *rest[1:])

    patch.setattr(KeyedQueue, "__init__", begin)


def lose_one_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    plain = KeyedQueue.restore_many
    patch.setattr(KeyedQueue, "restore_many", lambda self, items: plain(self, items[:4]))


def hand_out_the_cancelled(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: KeyedQueue, number: int) -> bool:
        self._store.cancel(number)
        return True

    patch.setattr(KeyedQueue, "cancel", cancel)


@pytest.mark.parametrize(
    "mutant",
    [
        free_keys_at_once, store_again_what_is_repeated, take_what_comes_out_of_order,
        forget_producers, believe_the_dead, count_no_try, repeat_fences, lose_one_at_a_restart,
        hand_out_the_cancelled, hand_out_what_is_not_durable,
    ],
)  # fmt: skip
def test_the_model_notices(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        deque(map(play, range(60)), 0)
