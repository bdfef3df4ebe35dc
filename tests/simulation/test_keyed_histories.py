"""Histories of a keyed queue, judged by a checker of linearizability.

Producers put and repeat, consumers take, end, give back, die and speak up too late, messages are
cancelled, and the queue crashes; each operation is written down with when it was called and when
its outcome was known. Porcupine (`tests/interop/go-histories`) then looks for an order of them in
which each key's queue is first in, first out, one message in hand at a time, tries counted and
fences rising. The rules' mutants leave histories that have no such order.

Each history has 10,000 operations; `HISTORIES=n` plays n of them (`make crash-keyed`: 50), `SEED=s`
just one.
"""

import itertools
import json
import os
import random
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from feedhandler.keyed.producers import Stamp
from feedhandler.keyed.queue import Delivery, Outcome
from feedhandler.keyed.settings import Format, KeyedSettings, Rule
from feedhandler.keyed.structure import Structure
from tests.interop.install import go_program
from tests.simulation import test_keyed_queue as rules
from tests.simulation.test_keyed_queue import Disk
from tests.support.needs import absent
from tests.support.seeds import seeds_to_play

OPERATIONS = 10_000
HISTORIES = int(os.environ.get("HISTORIES", "1"))
#: Histories that a mutant has to be noticed in one of.
MUTANT_HISTORIES = 24
CONSUMERS, PRODUCERS = 6, 4
AGAIN = "SEED={} python -m pytest tests/simulation/test_keyed_histories.py"


@dataclass
class Operation:
    """As `tests/interop/go-histories` reads it."""

    op: str
    key: str
    call: int
    id: int = 0
    place: int = 0
    fence: int = 0
    tries: int = 0
    said: str = "ok"
    returned: int = 0

    def line(self) -> str:
        """For the checker."""
        row = asdict(self)
        row["return"] = row.pop("returned")
        return json.dumps(row)


class Producer:
    """Sends numbered messages, and each again until it is accepted."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.epoch = self.sequence = 1
        self.message: Operation | None = None
        self.content = b""
        self.waits_for = 0


class Recording:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.structure = Structure(Format.JSON, ("a",), Rule.COMPOSITE)
        self.settings = KeyedSettings(
            messages_max=20, keys_max=200, tries_max=100, timeout_ns=self.draw.choice([30, 1 << 63])
        )
        self.disk = Disk()
        self.operations: list[Operation] = []
        self.keys = self.draw.choice([6, 40])
        self.ids = itertools.count(1)
        self.now = self.epoch = 0
        self.producers = [Producer(b"p%d" % n) for n in range(PRODUCERS)]
        #: By number: key and id of each message.
        self.about: dict[int, tuple[str, int]] = {}
        self.restart()

    def restart(self) -> None:
        self.epoch += 1
        self.disk.crash()
        self.queue = self.disk.opened(self.structure, self.settings, self.epoch)
        self.holds: dict[int, list[Delivery]] = {n: [] for n in range(1, CONSUMERS + 1)}
        self.late: list[tuple[int, Delivery]] = []
        #: Operations whose outcome the disk decides, by message.
        self.open: dict[int, Operation] = {}
        for producer in self.producers:
            producer.waits_for = 0

    def note(self, op: str, number: int, **more: Any) -> Operation:
        """Write an operation down that begins now."""
        key, name = self.about[number]
        operation = Operation(op, key, self.now, name, **more)
        self.operations.append(operation)
        return operation

    def at_once(self, op: str, number: int, **more: Any) -> None:
        """One whose outcome is known at once."""
        self.note(op, number, **more).returned = self.now + 1

    # -- steps ------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += 2
        acts = [
            (self.send, 4), (self.take, 12), (self.work, 10), (self.sync, 14), (self.fail, 1.5),
            (self.die, 0.3), (self.wake, 0.5), (self.cancel, 0.5), (self.tick, 1),
            (self.crash, 0.2),
        ]  # fmt: skip
        (act,) = self.draw.choices([a for a, _ in acts], [w for _, w in acts])
        act()

    def send(self) -> None:
        producer = self.draw.choice(self.producers)
        if producer.waits_for:
            return
        if producer.message is None:
            key = str(int(self.keys * self.draw.random() ** 2))
            producer.content = json.dumps({"a": key, "n": next(self.ids)}).encode()
            producer.message = Operation("put", key, self.now, json.loads(producer.content)["n"])
            self.operations.append(producer.message)
            if self.draw.random() < 0.05:  # it begins anew
                producer.epoch, producer.sequence = producer.epoch + 1, 1
        stamp = Stamp(producer.name, producer.epoch, producer.sequence)
        if self.draw.random() < 0.1 and stamp.sequence > 1:
            # It has lost count: what comes too early is refused.
            self.put(b'{"a": "0", "n": 0}', stamp._replace(sequence=stamp.sequence + 2))
        answer = self.put(producer.content, stamp)
        if answer.outcome in (Outcome.STORING, Outcome.REPEATED):
            producer.waits_for = self.disk.asks
            if self.disk.done == self.disk.asks:
                self.accept(producer)

    def put(self, content: bytes, stamp: Stamp) -> Any:
        answer = self.queue.put(content, stamp)
        if answer.outcome is Outcome.STORING:
            item = json.loads(content)
            self.about[answer.number] = item["a"], item["n"]
            for producer in self.producers:
                if producer.message is not None and producer.message.id == item["n"]:
                    producer.message.place = answer.number
        return answer

    def accept(self, producer: Producer) -> None:
        assert producer.message is not None
        producer.message.returned = self.now
        producer.message, producer.waits_for = None, 0
        producer.sequence += 1

    def sync(self) -> None:
        for _ in range(self.draw.randrange(1, 6)):
            if not self.disk.asked:
                return
            kind, number = self.disk.asked[0][:2]
            self.disk.sync(self.queue)
            self.now += 1
            if kind in ("end", "mark") and number in self.open:
                operation = self.open.pop(number)
                operation.said, operation.returned = "ok", self.now
            for producer in self.producers:
                if 0 < producer.waits_for <= self.disk.done:
                    if self.draw.random() < 0.05:
                        producer.waits_for = 0  # the answer is lost: it sends again
                    else:
                        self.accept(producer)

    def take(self) -> None:
        consumer = self.draw.randrange(1, CONSUMERS + 1)
        delivery = self.queue.take(consumer, self.now)
        if delivery is not None:
            self.at_once("take", delivery.number, fence=delivery.fence, tries=delivery.tries)
            self.holds[consumer].append(delivery)

    def done(self, consumer: int, delivery: Delivery) -> None:
        """A consumer says that it has done its work."""
        number, fence = delivery.number, delivery.fence
        if self.queue.acknowledge(consumer, fence):
            self.open[number] = self.note("done", number, fence=fence, said="unknown")
        else:
            self.at_once("done", number, fence=fence, said="stale")

    def back(self, delivery: Delivery, held: bool, failed: bool) -> None:
        """A consumer has given a message back, or had it taken away; `held`: it was still its."""
        number, fence = delivery.number, delivery.fence
        self.at_once("back", number, fence=fence, said="ok" if held else "stale")
        if held and failed:
            self.now += 2
            self.open[number] = self.note("try", number, said="unknown")

    def one_in_hand(self) -> tuple[int, Delivery] | None:
        consumer = self.draw.choice(list(self.holds))
        if not self.holds[consumer]:
            return None
        return consumer, self.holds[consumer].pop(self.draw.randrange(len(self.holds[consumer])))

    def work(self) -> None:
        if (found := self.one_in_hand()) is not None:
            self.done(*found)

    def fail(self) -> None:
        if (found := self.one_in_hand()) is not None:
            consumer, delivery = found
            held = self.queue.holds(consumer, delivery.fence)
            failed = self.draw.random() < 0.7
            self.queue.give_back(consumer, delivery.fence, failed)
            self.back(delivery, held, failed)

    def die(self) -> None:
        consumer = self.draw.choice(list(self.holds))
        gone, self.holds[consumer] = self.holds[consumer], []
        held = [each for each in gone if self.queue.holds(consumer, each.fence)]
        self.queue.gone(consumer, failed=True)
        for delivery in held:
            self.back(delivery, True, failed=True)
        self.late += [(consumer, delivery) for delivery in gone]

    def tick(self) -> None:
        had = [
            (consumer, delivery)
            for consumer, held in self.holds.items()
            for delivery in held
            if self.queue.holds(consumer, delivery.fence)
        ]
        self.queue.tick(self.now)
        for consumer, delivery in had:
            if not self.queue.holds(consumer, delivery.fence):
                self.back(delivery, True, failed=True)

    def wake(self) -> None:
        """Have a consumer that was given up say that it has done its work."""
        if self.late:
            self.done(*self.late.pop(self.draw.randrange(len(self.late))))

    def cancel(self) -> None:
        if self.disk.messages:
            number = self.draw.choice(list(self.disk.messages))
            if number not in self.open and self.queue.cancel(number):
                self.open[number] = self.note("cancel", number, said="unknown")

    def crash(self) -> None:
        """No consumer holds anything any more; what was asked for is durable, or never was."""
        had = [
            (each.number, each.fence)
            for consumer, held in self.holds.items()
            for each in held
            if self.queue.holds(consumer, each.fence)
        ]
        for number, operation in self.open.items():
            operation.returned = self.now
            if operation.fence:  # said by who had it, and perhaps in vain
                had.append((number, operation.fence))
        self.now += 2
        self.restart()
        for number, fence in had:
            self.at_once("back", number, fence=fence)


def program() -> str:
    """The checker; skips where it is not installed."""
    found = go_program("histories")
    if found is None:
        absent("clients", "Porcupine is not installed; run python -m tests.interop.install")
    return str(found)


def record(seed: int, operations: int) -> Recording:
    """A history of at least so many operations."""
    recording = Recording(seed)
    while len(recording.operations) < operations:
        recording.step()
    return recording


def verdict(recording: Recording) -> str:
    """Return the checker's verdict on a recording, as it prints it."""
    lines = "\n".join(operation.line() for operation in recording.operations)
    done = subprocess.run(
        [program()], input=lines, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.timeout(3600)
def test_every_history_has_an_order_in_which_each_key_is_a_queue() -> None:
    program()
    for seed in seeds_to_play(range(HISTORIES)):
        recording = record(seed, OPERATIONS)
        said = verdict(recording)
        assert said.startswith("ok"), f"{said}; again: {AGAIN.format(seed)}"
        kinds = {(each.op, each.said) for each in recording.operations}
        wanted = {
            ("done", "stale"),
            ("back", "ok"),
            ("try", "ok"),
            ("try", "unknown"),
            ("cancel", "ok"),
        }
        assert kinds >= wanted, "the history has no such operation"


@pytest.mark.parametrize(
    "mutant",
    [
        rules.free_keys_at_once, rules.store_again_what_is_repeated,
        rules.take_what_comes_out_of_order, rules.forget_producers, rules.believe_the_dead,
        rules.count_no_try, rules.repeat_fences, rules.lose_one_at_a_restart,
        rules.hand_out_the_cancelled, rules.hand_out_what_is_not_durable,
    ],
)  # fmt: skip
def test_the_checker_notices(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program()
    mutant(monkeypatch)
    for seed in range(MUTANT_HISTORIES):
        try:
            recording = record(seed, 1500)
        except (KeyError, ValueError, AssertionError):
            continue  # it does not even run
        if not verdict(recording).startswith("ok"):
            return
    pytest.fail("every history has an order")
