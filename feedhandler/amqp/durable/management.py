"""Management requests to a queue: cancel, cancel-all, forward, find, stat.

What it is for: `Management.do` takes the application-properties of a request, and `reply` is called
with those of the answer, and its body, once the answer holds: `cancelled` is sent when that is
durable. An invalid request is answered too, with a status code that says so.

    operation    arguments                                    answer
    cancel       message-id, or id (the queue's number);      cancelled, delivered, delivering,
                 wait: the final status, not `delivering`     expired, damaged, unknown
    cancel-all                                                cancelled and delivering: how many;
                                                              what is to be forwarded, first page
    forward      after, until: of the page before             a further page of that
    find         message-id, or id                            pending, delivered, ..., unknown
    stat                                                      figures of the queue

Keyed queues take further requests (`keyed_management`).

What it promises: of a request about many messages `MESSAGES_A_STEP` are looked at at a time; the
rest is done in later turns of the loop (`steps`), and the answer is the same. Requests that look at
all of a queue are done in such steps, too.

What it leaves to others: messages on the wire (`sections`), links (`links`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from feedhandler.amqp.durable.sections import id_bytes
from feedhandler.amqp.durable.values import (
    encode,
    encoded_list,
)
from feedhandler.amqp.work_budget import WorkBudget
from feedhandler.counters import QueueCounter

if TYPE_CHECKING:
    from feedhandler.amqp.durable.stored import Cancelled, Forwarding, StoredQueue

Reply = Callable[[dict[str, Any], Any], None]
#: Work in steps. A step that yields a callable waits: it is called with the continuation.
Steps = Iterator[Callable[[Callable[[], None]], None] | None]

#: Messages that one step concerns: under a millisecond's work.
MESSAGES_A_STEP = 32
#: Operations of every queue.
OF_EVERY_QUEUE = ("cancel", "cancel-all", "forward", "find", "stat")
#: Steps of one turn of the loop, of all requests to a queue.
STEPS_A_TURN = 4

#: Largest number of a message; they count from 1, and no disk lasts long enough to reach it. Every
#: client library has an integer type for this range.
NUMBER_MAX = (1 << 63) - 1

#: Status codes by answer: 200 done; 409 too late; 410 gone; 404 unknown.
CODES = {
    "cancelled": 200,
    "delivered": 409,
    "delivering": 409,
    "expired": 410,
    "damaged": 410,
    "unknown": 404,
    "stopped": 503,
    "unparked": 200,
    "keys": 200,
    "list": 200,
    "created": 201,
    "exists": 200,
    "different": 409,
    "invalid": 400,
}
#: Of several messages with one message-id, the answer that comes first here is given.
_WORST = ("stopped", "delivered", "delivering", "damaged", "expired", "cancelled", "unknown")


class Management:
    """Handles the management requests of `queue`. `may_cancel`: the client may cancel and find, not
    only read figures."""

    def __init__(self, queue: "StoredQueue", may_cancel: bool) -> None:
        self.queue = queue
        self._may_cancel = may_cancel

    def run(self, steps: Steps) -> None:
        """Run these steps, as far as this turn of the loop has units for them; the rest in later
        turns."""
        run_steps(self.queue.budget, steps)

    def do(self, arguments: dict[str, Any], reply: Reply, heard: Callable[[], bool]) -> Steps:
        """Process a request, in steps; `reply` is called once, now or later. `heard()`:
        whether a link still waits for the answer."""
        queue = self.queue
        queue.counts[QueueCounter.REQUESTS] += 1
        operation = arguments.get("operation")
        if queue.fault:
            reply(_status(503, "stopped", f"queue {queue.name} has stopped: {queue.fault}"), None)
        elif operation == "stat":
            reply(_status(200, "stat", "OK"), queue.snapshot())
        elif operation == "create" and operation not in queue.operations:
            reply(_status(409, "different", "it is there already, and has no key"), None)
        elif operation not in queue.operations:
            reason = f"operation is none of {', '.join(queue.operations)}"
            reply(_status(400, "invalid", reason), None)
        elif not self._may_cancel:
            reason = f"not entitled to cancel in queue {queue.name}"
            reply(_status(403, "unauthorized", reason), None)
        elif operation == "cancel-all":
            queue.cancel_all(partial(self._report_cancelled, reply))
        elif operation == "forward":
            self._forward(arguments, reply)
        elif operation not in OF_EVERY_QUEUE:
            yield from queue.asked(operation, arguments, reply)
        else:
            yield from self._of_some(operation, arguments, reply, heard)

    def _of_some(
        self, operation: str, arguments: dict[str, Any], reply: Reply, heard: Callable[[], bool]
    ) -> Steps:
        """Cancel or find the messages that the arguments name."""
        message_id = id_bytes(arguments.get("message-id"))
        number = arguments.get("id")
        if message_id:
            numbers = self.queue.ids.find(message_id)
        elif number is None:
            reply(_status(400, "invalid", "neither message-id nor id"), None)
            return
        elif is_number(number) and number > 0:
            numbers = [number]
        else:
            reason = f"id is no number of a message: those are from 1 to {NUMBER_MAX}"
            reply(_status(400, "invalid", reason), None)
            return
        if not numbers:
            reply(_status(404, "unknown", "no message has had this id"), [])
        elif operation == "find":
            yield from self._find(numbers, reply, heard)
        else:
            yield from self._cancel(numbers, bool(arguments.get("wait")), reply)

    def _find(self, numbers: list[int], reply: Reply, heard: Callable[[], bool]) -> Steps:
        found: list[bytes] = []
        word = "unknown"
        for number in numbers:
            if len(found) % MESSAGES_A_STEP == MESSAGES_A_STEP - 1:
                yield None
                if not heard():
                    break
            word = self.queue.status_of(number)
            found.append(encode({"id": number, "status": word}))
        status = _status(404, word, _WORDS[word]) if word == "unknown" else _status(200, word, "OK")
        reply(status, encoded_list(found))

    def _cancel(self, numbers: list[int], wait: bool, reply: Reply) -> Steps:
        answers: dict[int, str] = {}

        def hear(number: int, answer: str) -> None:
            answers[number] = answer
            if len(answers) == len(numbers):
                self.run(report())

        def report() -> Steps:
            worst = min(set(answers.values()), key=_WORST.index)
            body: list[bytes] = []
            for number in numbers:
                if len(body) % MESSAGES_A_STEP == MESSAGES_A_STEP - 1:
                    yield None
                body.append(encode({"id": number, "answer": answers[number]}))
            reply(_status(CODES[worst], worst, _WORDS[worst]), encoded_list(body))

        for count, number in enumerate(numbers, 1):
            self.queue.cancel(number, partial(hear, number), wait)
            if count % MESSAGES_A_STEP == 0:
                yield None

    def _report_cancelled(self, reply: Reply, result: "Cancelled | None") -> None:
        if result is None:
            reply(_status(503, "stopped", _WORDS["stopped"]), None)
            return
        figures = {"cancelled": result.cancelled, "delivering": result.delivering}
        reply(_status(200, "cancelled", "OK"), {**figures, **_page(result.forward)})

    def _forward(self, arguments: dict[str, Any], reply: Reply) -> None:
        """Answer with a further page of what is to be forwarded."""
        after, until = arguments.get("after", 0), arguments.get("until")
        if not is_number(after) or not (until is None or is_number(until)):
            reason = f"after and until are numbers from 0 to {NUMBER_MAX}"
            reply(_status(400, "invalid", reason), None)
            return

        def report(page: "Forwarding | None") -> None:
            if page is None:
                reply(_status(503, "stopped", _WORDS["stopped"]), None)
            else:
                reply(_status(200, "forward", "OK"), _page(page))

        self.queue.forward(after, until, report)


def run_steps(budget: WorkBudget, steps: Steps) -> None:
    """Run steps, each for a unit of the budget."""
    go_on = partial(run_steps, budget, steps)
    while budget.try_spend(1):
        try:
            hold = next(steps)
        except StopIteration:
            return
        if hold is not None:
            hold(go_on)
            return
    budget.wait(go_on)


def _page(page: "Forwarding") -> dict[str, Any]:
    return {"forward": page.messages, "until": page.until, "more": page.more}


def is_number(value: Any) -> bool:
    """Return whether an argument is an integer that a message can have as its id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= NUMBER_MAX


_WORDS = {
    "cancelled": "it will never be delivered",
    "delivered": "too late: it was delivered; cancel it at its destination",
    "delivering": "too late: a consumer has it; cancelled if it comes back",
    "expired": "its trading day was over",
    "damaged": "its bytes were lost",
    "unknown": "no message has had this id",
    "stopped": "the queue has stopped",
    "unparked": "it is tried again, and its keys go on behind it",
}


def answer_of(word: str, reason: str = "") -> dict[str, Any]:
    """Return the application-properties of an answer with this word, and the reason or a standard
    text."""
    return _status(CODES[word], word, reason or _WORDS.get(word, "OK"))


def _status(code: int, answer: str, description: str) -> dict[str, Any]:
    return {"status-code": code, "status-description": description, "answer": answer}
