"""A keyed queue whose power is cut at every call to its disk: what was said stays true.

The queue's rules and its store, as they ship, on a simulated disk (`journal`'s): producers with
stamps, consumers that acknowledge, fail and refuse, messages that end together with what their
consumer has put, cancels. At each call that changes something on the disk the power is cut, in
several ways, and the queue opened from what is left:

    put             who heard that it counts has it there, once; its producer has come to it exactly
                    where it counts
    ended           who heard so does not see it again
    in one          a message that ended with others that were put: all of that, or nothing
    tries           what was counted is not forgotten
    dead            here, or on its way to the dead queue: one of the two

And in a second course it goes on from such a cut, again and again, until all has ended.
`OPERATIONS=n SAMPLES=n` make it longer (`make simulate-journal`), `SEED=s` plays just one.
"""

import contextlib
import json
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from feedhandler.journal.engine import Committed, Engine
from feedhandler.journal.layout import Status
from feedhandler.journal.settings import QueueSettings
from feedhandler.keyed.envelope import OutboxEntry, keys_of, message_in
from feedhandler.keyed.journal_store import JournalStore
from feedhandler.keyed.producers import Stamp
from feedhandler.keyed.queue import Delivery, KeyedQueue, Outcome
from feedhandler.keyed.settings import Format, KeyedSettings, Rule
from feedhandler.keyed.structure import Structure
from tests.support.journal import DAY_NS, FOLDER, QUEUE_ID, SMALL
from tests.support.seeds import seeds_to_play
from tests.support.simulated_disk import SimulatedDisk

OPERATIONS = int(os.environ.get("OPERATIONS", "50"))
SAMPLES = int(os.environ.get("SAMPLES", "2"))
#: Operations of one seed.
SCRIPT = 100
CUTS = 12
PRODUCERS = [b"p1", b"p2", b"producer-of-16-b"]
TRIES_MAX = 3
AGAIN = "SEED={} python -m pytest tests/simulation/test_keyed_power.py"


class Opened:
    """A queue as its owner has it, on some disk: the part of a `PersistentQueue` that the store
    uses, written when the course says so."""

    def __init__(self, disk: SimulatedDisk, settings: QueueSettings, opening: int) -> None:
        with patch(f"{Engine.__module__}.Owner"), patch("os.urandom", lambda _: QUEUE_ID):
            self.engine = Engine(FOLDER, settings, files=disk, clock=lambda: DAY_NS)
        self.journal_store = JournalStore(self, "dead", self._read)  # type: ignore[arg-type]
        self.queue = KeyedQueue(
            Structure(Format.JSON, ("key",), Rule.COMPOSITE),
            KeyedSettings(messages_max=1000, keys_max=1000, tries_max=TRIES_MAX),
            self.journal_store, opening, self.engine.producers().items(), b"secret",
        )  # fmt: skip
        self.journal_store.restore(self.queue)

    def commit_soon(self, *group: Any) -> Committed:
        return self.engine.commit(*group)

    def walk(self) -> Iterator[list[tuple[int, int, bytes]]]:
        return self.engine.walk()

    def _read(self, number: int, then: Callable[[bytes | None], None]) -> None:
        content = self.engine.read(number)
        then(None if content is None else message_in(content))

    def flush(self) -> bool:
        """Write one segment; who waited for it hears."""
        wrote = self.engine.flush()
        for callback in self.journal_store.settled():
            callback()
        return wrote

    def messages(self) -> dict[int, tuple[int, bytes]]:
        """Mark and content of what waits."""
        return {
            number: (mark, message_in(item))
            for items in self.walk()
            for number, mark, item in items
            if keys_of(item) is not None
        }

    def outbox(self) -> set[bytes]:
        """Messages on their way to the dead queue."""
        return {entry.message for _, entry in self.journal_store.outbox}


@dataclass
class Known:
    """Message with what was asked of it and what was said of it."""

    stamp: Stamp | None
    content: bytes
    number: int
    put: bool = False
    asked_end: bool = False
    ended: bool = False
    asked_dead: bool = False
    tries_asked: int = 0
    tries: int = 0
    #: Those that were put in one with its end.
    outputs: list["Known"] = field(default_factory=list)


class Course:
    """One seed."""

    def __init__(self, seed: int, settings: QueueSettings = SMALL) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.settings = settings
        self.disk = SimulatedDisk()
        self.openings = 1
        self.known: dict[int, Known] = {}
        self.sequences: Counter[bytes] = Counter()
        self.made = 0
        self.totals: Counter[str] = Counter()
        self.weights = [self.draw.choice((1, 3, 8)) for _ in range(7)]
        self.begin(self.disk, Opened(self.disk, settings, self.openings))

    def begin(self, disk: SimulatedDisk, opened: Opened) -> None:
        self.disk = disk
        self.opened = opened
        self.queue, self.store = self.opened.queue, self.opened.journal_store
        self.held: deque[Delivery] = deque()

    # -- steps ------------------------------------------------------------------------------

    def step(self) -> None:
        acts = (self.put, self.put, self.take, self.end, self.fail, self.refuse, self.answer)
        (act,) = self.draw.choices(acts, self.weights)
        act()
        if self.draw.random() < 0.05:
            self.cancel()
        if self.draw.random() < 0.6:
            self.store.push()
        while self.draw.random() < 0.7 and self.opened.flush():
            pass
        if self.opened.engine.growth_due:
            self.opened.engine.grow()
        if self.draw.random() < 0.1 and not self.store.busy:
            self.store.move_some()
        if self.draw.random() < 0.1:
            self.send_outbox()

    def content(self) -> bytes:
        self.made += 1
        more = "x" * self.draw.choice((0, 10, 400, 3000))
        return json.dumps({"key": self.draw.randrange(12), "n": self.made, "x": more}).encode()

    def add(self, content: bytes, stamp: Stamp | None) -> Known:
        answer = self.queue.put(content, stamp, content)
        assert answer.outcome is Outcome.STORING
        known = self.known[answer.number] = Known(stamp, content, answer.number)

        def mark_put() -> None:
            known.put = True

        self.store.when_durable(mark_put)
        return known

    def put(self) -> None:
        if self.opened.engine.waiting_bytes > self.settings.journal_bytes:
            return
        for _ in range(self.draw.choice((1, 3))):
            name = self.draw.choice([*PRODUCERS, b""])
            self.sequences[name] += 1
            self.add(self.content(), Stamp(name, 1, self.sequences[name]) if name else None)

    def take(self) -> None:
        delivery = self.queue.take(1, 0)
        if delivery is not None:
            known = self.known[delivery.number]
            assert known.put, "it was handed out before it was durable"
            assert not known.ended
            assert delivery.tries >= known.tries
            self.held.append(delivery)

    def ended(self, known: Known) -> Callable[[], None]:
        def mark_ended() -> None:
            known.ended = True
            for output in known.outputs:
                output.put = True

        return mark_ended

    def end(self) -> None:
        if self.held:
            delivery = self.held.popleft()
            if self.queue.acknowledge(1, delivery.fence):
                known = self.known[delivery.number]
                known.asked_end = True
                self.store.when_durable(self.ended(known))

    def answer(self) -> None:
        """End a message together with others that are put."""
        if self.held and self.opened.engine.waiting_bytes < self.settings.journal_bytes:
            delivery = self.held.popleft()
            known = self.known[delivery.number]
            with self.store.unit():
                if self.queue.acknowledge(1, delivery.fence):
                    known.asked_end = True
                    known.outputs = [self.add(self.content(), None) for _ in range(2)]
            if known.asked_end:
                self.store.when_durable(self.ended(known))

    def fail(self) -> None:
        if self.held:
            delivery = self.held.popleft()
            known = self.known[delivery.number]
            if not self.queue.holds(1, delivery.fence):
                return
            known.tries_asked = delivery.tries + 1
            known.asked_dead |= known.tries_asked >= TRIES_MAX
            self.queue.give_back(1, delivery.fence, True)

            def mark_tries(tries: int = known.tries_asked) -> None:
                known.tries = max(known.tries, tries)

            self.store.when_durable(mark_tries)

    def refuse(self) -> None:
        if self.held:
            delivery = self.held.popleft()
            if self.queue.holds(1, delivery.fence):
                known = self.known[delivery.number]
                known.asked_dead = True
                self.queue.refuse(1, delivery.fence, "no good")

    def cancel(self) -> None:
        waiting = [number for number, known in self.known.items() if known.put and not known.ended]
        if waiting:
            known = self.known[self.draw.choice(waiting)]
            if self.queue.cancel(known.number):
                known.asked_end = True

    def send_outbox(self) -> None:
        """The dead queue has taken what went there."""
        while self.store.outbox:
            number, entry = self.store.outbox.popleft()
            self.totals["forwarded"] += 1
            known = next(each for each in self.known.values() if each.content == entry.message)
            known.asked_end = True
            self.store.arrived(number)
            self.store.when_durable(self.ended(known))

    # -- what must be true ------------------------------------------------------------------

    def judge(self, disk: SimulatedDisk) -> Opened:
        """The queue as it is found on that disk; fails where something is wrong."""
        self.openings += 1
        found = Opened(disk, self.settings, self.openings)
        messages, outbox = found.messages(), found.outbox()
        producers = found.engine.producers()
        again = AGAIN.format(self.seed)
        assert set(messages) <= set(self.known), f"invented; {again}"
        for number, known in self.known.items():
            here, dead = messages.get(number), known.content in outbox
            self.judge_one(known, here, dead, f"message {number}; {again}")
            for output in known.outputs:
                if not (output.asked_end or output.asked_dead):
                    self.totals["in one"] += 1
                    ended = here is None and not dead
                    assert (output.number in messages) is ended, f"half of {number}; {again}"
            if known.stamp is not None:
                counts = producers.get(known.stamp.producer, (0, 0))[1] >= known.stamp.sequence
                there = here is not None or dead
                gone = known.asked_end or known.asked_dead
                assert counts or not known.put, f"its producer is forgotten: {number}; {again}"
                assert counts or not there, f"it would be stored twice: {number}; {again}"
                assert there or gone or not counts, f"counted, and not there: {number}; {again}"
        assert found.queue.dispatch.count == len(messages)
        self.totals["cuts"] += 1
        return found

    def judge_one(
        self, known: Known, here: tuple[int, bytes] | None, dead: bool, which: str
    ) -> None:
        if here is not None:
            assert here[1] == known.content, f"altered: {which}"
            assert not known.ended, f"it has ended: {which}"
            assert not dead, f"here, and on its way to the dead: {which}"
            assert known.tries <= here[0] <= known.tries_asked, f"tries: {which}"
        elif known.put:
            assert dead or known.asked_end or known.asked_dead, f"lost: {which}"
        if dead:
            assert known.asked_dead, f"dead: {which}"
            assert not known.ended, f"it has gone to the dead: {which}"
            self.totals["dead"] += 1

    def play(self, samples: int) -> Counter[str]:
        """A script whose power is cut at each of its calls."""
        draw = random.Random(self.seed)

        def cut(_: str) -> None:
            for _ in range(samples):
                self.judge(self.disk.after_power_cut(draw))

        self.disk.before_call = cut
        for _ in range(SCRIPT):
            self.step()
        return self.totals

    # -- going on ---------------------------------------------------------------------------

    def play_on(self) -> Counter[str]:
        """A script that goes on from cut to cut, until all has ended."""
        for _ in range(CUTS):
            calls = self.draw.randrange(1, 60)

            def cut(_: str) -> None:
                nonlocal calls
                calls -= 1
                if not calls:
                    raise PowerCut

            self.disk.before_call = cut
            with contextlib.suppress(PowerCut):
                for _ in range(SCRIPT):
                    self.step()
            self.go_on(self.disk.after_power_cut(self.draw))
        self.finish()
        return self.totals

    def go_on(self, disk: SimulatedDisk) -> None:
        """Open the queue on that disk: what it has is what there is from now on."""
        found = self.judge(disk)
        messages, outbox = found.messages(), found.outbox()
        for number, known in list(self.known.items()):
            known.outputs = []
            if number in messages:
                known.put, known.asked_end, known.asked_dead = True, False, False
                known.tries = known.tries_asked = messages[number][0]
            elif known.content in outbox:
                known.put = known.asked_dead = True
            elif known.asked_end or known.asked_dead:
                known.ended = True
            else:
                del self.known[number]  # it never was: its number is another's
        self.known = {
            number: known
            for number, known in self.known.items()
            if number < found.engine.visible_end
        }
        for name in PRODUCERS:
            self.sequences[name] = found.engine.producers().get(name, (0, 0))[1]
        self.begin(disk, found)

    def finish(self) -> None:
        """Everybody goes on without faults."""
        self.disk.before_call = lambda name: None
        for _ in range(100_000):
            self.take()
            self.end()
            self.send_outbox()
            self.store.push()
            while self.opened.flush():
                pass
            if not self.queue.dispatch.count and not self.store.busy and not self.store.outbox:
                break
        left = [number for number, known in self.known.items() if not known.ended]
        assert not left, f"they stand still: {left}; {AGAIN.format(self.seed)}"


class PowerCut(Exception):
    """The power is gone."""


def test_power_cut_at_every_call_leaves_what_was_said() -> None:
    total: Counter[str] = Counter()
    for seed in seeds_to_play(range(1, max(OPERATIONS // SCRIPT, 2) + 1)):
        total += Course(seed).play(SAMPLES)
    print(dict(total))
    if not os.environ.get("SEED"):
        assert all(total[name] for name in ("cuts", "in one", "dead", "forwarded")), total


def test_a_queue_that_goes_on_from_cut_to_cut_ends_every_message_once() -> None:
    total: Counter[str] = Counter()
    for seed in seeds_to_play(range(1, max(OPERATIONS // 10, 3) + 1)):
        total += Course(seed).play_on()
    print(dict(total))


def play_some(settings: QueueSettings = SMALL) -> None:
    """Enough for any fault that is not a rare one."""
    for seed in range(1, 12):
        Course(seed, settings).play(1)


def test_the_oracle_bites_where_nothing_is_synced() -> None:
    with pytest.raises(AssertionError, match=r"lost|forgotten"):
        play_some(replace(SMALL, durability="fast"))


def end_apart(patch: pytest.MonkeyPatch) -> None:
    """Make what is put in one with an end a group by itself."""
    plain = JournalStore._end

    def end(self: JournalStore, number: int, status: Any) -> None:
        plain(self, number, status)
        self.push()

    patch.setattr(JournalStore, "_end", end)


def say_at_once(patch: pytest.MonkeyPatch) -> None:
    """Tell those who wait for the disk at once, before it is done."""

    def hear(self: JournalStore, callback: Callable[[], None]) -> None:
        callback()

    patch.setattr(JournalStore, "when_durable", hear)


def forget_producers(patch: pytest.MonkeyPatch) -> None:
    """A message without what its producer has come to."""
    plain = JournalStore.add

    def add(self: JournalStore, content: bytes, keys: bytes, stamp: Stamp | None) -> int:
        return plain(self, content, keys, None)

    patch.setattr(JournalStore, "add", add)


def bury_without_its_end(patch: pytest.MonkeyPatch) -> None:
    """A message goes to the dead queue, and stays."""

    def bury(self: JournalStore, number: int, reason: str) -> None:
        self._read(
            number, lambda content: self.send(OutboxEntry(self.dead, reason, content or b""))
        )
        self.push()
        self._end(number, Status.CANCELLED)

    patch.setattr(JournalStore, "bury", bury)


def count_no_try(patch: pytest.MonkeyPatch) -> None:
    """A mark that is not written."""
    patch.setattr(JournalStore, "mark", lambda self, number, mark: self.queue.marked(number))


@pytest.mark.parametrize(
    "mutant", [end_apart, say_at_once, forget_producers, bury_without_its_end, count_no_try]
)
def test_the_oracle_bites(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        play_some()
