"""Management of a queue: a request about many messages, or all, is done in turns; same answer."""

from collections import Counter
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import numpy
import proton
import pytest

from feedhandler.amqp.durable.creation import CreationManagement
from feedhandler.amqp.durable.keyed import KeyedDurableQueue
from feedhandler.amqp.durable.keyed_management import KeyedManagement
from feedhandler.amqp.durable.management import MESSAGES_A_STEP, STEPS_A_TURN, Management
from feedhandler.amqp.durable.stored import StoredQueue
from feedhandler.amqp.durable.values import (
    encode,
)
from feedhandler.amqp.work_budget import WorkBudget
from feedhandler.counters import QueueCounter
from tests.support.turns import Loop

#: Messages that one message-id stands for.
MANY = 5000
#: Steps in which all of a queue is looked at.
SHARES = 50
#: Messages of one turn; one more may be left of the step before.
A_TURN = STEPS_A_TURN * (MESSAGES_A_STEP + 1)


class Queue:
    """A queue that counts what it is asked in each turn; every third message is delivered."""

    operations = StoredQueue.operations

    def __init__(self) -> None:
        self.loop = Loop()
        self.budget = WorkBudget(self.loop.call_soon, STEPS_A_TURN)
        self.fault = ""
        self.counts = numpy.zeros(len(QueueCounter), numpy.uint64)
        self.ids = SimpleNamespace(find=lambda _: list(range(1, MANY + 1)))
        self.looks: Counter[int] = Counter()
        self.turn = 0
        self.recorded: list[Callable[[], None]] = []

    def status_of(self, number: int) -> str:
        self.looks[self.turn] += 1
        return "pending" if number % 3 else "delivered"

    def cancel(self, number: int, callback: Callable[[str], None], wait: bool) -> None:
        self.looks[self.turn] += 1
        self.recorded.append(lambda: callback("cancelled" if number % 3 else "delivered"))

    def run(self) -> None:
        while self.loop.soon or self.recorded:
            self.turn += 1
            recorded, self.recorded = self.recorded, []
            for each in recorded:
                each()
            self.loop.turn()


class Keyed(Queue):
    """A keyed queue without messages, all of which is looked at in `SHARES` steps."""

    operations = KeyedDurableQueue.operations

    def __init__(self) -> None:
        super().__init__()
        self.core = SimpleNamespace(lines=self.look, longest=self.look)
        self.asked = KeyedManagement(self).do  # type: ignore[arg-type]

    def look(self, *_: Any) -> Generator[None, None, list[Any]]:
        for _ in range(SHARES):
            self.looks[self.turn] += 1
            yield
        return []

    def in_thread(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        on_done(work())


def asked(queue: Queue, heard: Callable[[], bool] = lambda: True, **arguments: Any) -> list[Any]:
    """The answers to one request."""
    answers: list[Any] = []
    management = Management(queue, True)  # type: ignore[arg-type]

    def reply(properties: dict[str, Any], body: Any) -> None:
        data = proton.Data()
        data.decode(encode(body))
        data.rewind()
        data.next()
        answers.append((properties["answer"], data.get_object()))

    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    management.run(management.do(named, reply, heard))
    queue.run()
    return answers


def test_a_find_of_many_messages_is_done_in_turns() -> None:
    queue = Queue()
    ((word, body),) = asked(queue, operation="find", message_id="m")
    assert word == "pending"
    assert body == [
        {"id": n, "status": "pending" if n % 3 else "delivered"} for n in range(1, MANY + 1)
    ]
    assert max(queue.looks.values()) <= A_TURN


def test_a_cancel_of_many_messages_is_done_in_turns_and_answered_when_all_are_recorded() -> None:
    queue = Queue()
    ((word, body),) = asked(queue, operation="cancel", message_id="m")
    assert word == "delivered"
    assert body == [
        {"id": n, "answer": "cancelled" if n % 3 else "delivered"} for n in range(1, MANY + 1)
    ]
    assert max(queue.looks.values()) <= A_TURN


def test_a_find_without_a_waiter_ends_early_and_is_still_over() -> None:
    queue = Queue()
    assert len(asked(queue, lambda: False, operation="find", message_id="m")) == 1
    assert sum(queue.looks.values()) <= MESSAGES_A_STEP


@pytest.mark.parametrize("operation", ["list", "keys"])
async def test_a_look_at_all_of_a_queue_is_done_in_turns_also_where_a_client_may_create_it(
    operation: str,
) -> None:
    queue = Keyed()
    assert asked(queue, operation=operation) == [(operation, {operation: []})]
    queues: Any = SimpleNamespace(all={"orders": queue})
    making = CreationManagement(queues, "orders", lambda: None, True)
    making.queue.budget = queue.budget
    answers: list[Any] = []
    steps = making.do({"operation": operation}, lambda *answer: answers.append(answer), bool)
    making.run(steps)
    queue.run()
    assert [body for _, body in answers] == [{operation: []}]
    assert sum(queue.looks.values()) == 2 * SHARES
    assert max(queue.looks.values()) <= STEPS_A_TURN
