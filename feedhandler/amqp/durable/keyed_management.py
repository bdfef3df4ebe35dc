"""Management requests that only keyed queues answer.

operation    arguments                            answer
unpark       id                                   unparked; unknown where it is not parked
keys                                              the longest: values, first's consumer, count
list         after: an id                         what is not delivered above it, a page
create       definition, as `creation` reads it   exists, or different
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from feedhandler.amqp.durable.creation import NotCreated, config_of, same
from feedhandler.amqp.durable.keyed_sections import read_message
from feedhandler.amqp.durable.management import NUMBER_MAX, Reply, Steps, answer_of, is_number
from feedhandler.amqp.durable.values import SectionError
from feedhandler.keyed.envelope import message_in
from feedhandler.keyed.queue import Line
from feedhandler.keyed.structure import Misfit

if TYPE_CHECKING:
    from feedhandler.amqp.durable.keyed import KeyedDurableQueue

OPERATIONS = ("unpark", "keys", "list", "create")
#: Keys, and messages, of one answer.
KEYS_LISTED = 64
PAGE_MESSAGES = 64


class KeyedManagement:
    """Handles these requests for one queue."""

    def __init__(self, queue: "KeyedDurableQueue") -> None:
        self._queue = queue

    def do(self, operation: str, arguments: dict[str, Any], reply: Reply) -> Steps:
        """Process a request, in steps; `reply` is called once, now or later."""
        core, after = self._queue.core, arguments.get("after", 0)
        if operation == "create":
            reply(answer_of(*self._created_again(arguments)), None)
        elif operation == "unpark":
            self._unpark(arguments.get("id"), reply)
        elif operation == "keys":
            self._report("keys", (yield from core.longest(KEYS_LISTED)), reply)
        elif is_number(after):
            self._report("list", (yield from core.lines(after, PAGE_MESSAGES)), reply)
        else:
            reply(answer_of("invalid", f"after is a number from 0 to {NUMBER_MAX}"), None)

    def _created_again(self, arguments: dict[str, Any]) -> tuple[str, str]:
        """Return the answer and its reason for a request to create this queue, which exists."""
        queue = self._queue
        try:
            wanted = config_of("", queue.name, arguments)
        except NotCreated as refusal:
            return refusal.word, refusal.reason
        others = same(queue.config, wanted)
        return ("different", f"it was created with {others}") if others else ("exists", "")

    def _unpark(self, number: Any, reply: Reply) -> None:
        queue = self._queue
        if not is_number(number) or not number:
            reply(answer_of("invalid", f"id is a number from 1 to {NUMBER_MAX}"), None)
        elif queue.status_of(number) == "pending" and queue.core.unpark(number):
            queue.journal_store.when_durable(partial(reply, answer_of("unparked"), None))
            queue.push_soon()
        else:
            reply(answer_of("unknown", "no message with this id is parked"), None)

    def _report(self, what: str, lines: list[Line], reply: Reply) -> None:
        """Answer with these lines, whose messages are read in the queue's thread."""
        names = [self._queue.who(line.consumer) for line in lines]

        def work() -> list[dict[str, Any]]:
            return [self._row(what, *each) for each in zip(lines, names, strict=True)]

        def reply_rows(rows: list[dict[str, Any]] | None) -> None:
            if rows is None:
                reply(answer_of("stopped"), None)
            else:
                reply(answer_of(what), {what: rows})

        self._queue.in_thread(work, reply_rows)

    def _row(self, what: str, line: Line, consumer: str) -> dict[str, Any]:
        row = {
            "key": self._values(line.number),
            "standing": line.standing,
            "consumer": consumer,
            "tries": line.tries,
        }
        if what == "keys":
            return {"first": line.number, "messages": line.messages, **row}
        return {"id": line.number, **row}

    def _values(self, number: int) -> str:
        """Return the values of a message's key, for display; "" where it cannot be read. Called in
        the queue's thread."""
        queue = self._queue
        content = queue.store.engine.read(number)
        if content is None:
            return ""
        try:
            read = read_message(message_in(content), queue.definition.format)
            return queue.core.structure.shown(read.material)
        except (SectionError, Misfit):
            return ""
