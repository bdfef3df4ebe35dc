"""Consume, transform, produce: a message is acknowledged together with what is put, or not at all.

What it is for: `Committer.commit` ends one message of a consumer, and puts others into queues of
the same node, in a transaction of its own (AMQP 1.0, part 4): declare, put, accept, discharge.

What it promises: the discharge is sent once the node has all that belongs to it, so that a commit
covers all of it. Where it is not known whether the node has committed (the answer never came), that
is not tried again: either the message has ended, or it comes again, and none of its outputs were
put.

A discharge that the node cannot do now (a queue is full) is tried again; the message is not counted
as failed for it.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from feedhandler.amqp import proton
from feedhandler.amqp.client import Ended
from feedhandler.amqp.durable.transactions import DECLARE, DISCHARGE, NOT_HELD
from feedhandler.amqp.durable.values import SectionError, decode, encode, encoded_list
from feedhandler.amqp.working.connection import Line, QueueConnection, Said, Taker
from feedhandler.amqp.working.messages import head
from feedhandler.retrans.backoff import Backoff

#: Transactions that are open on one connection at a time: what a node allows, with room to spare.
OPEN_MAX = 48
#: Discharges of one message's outputs before it counts as failed, and the waits between them.
TRIES = 8
RETRY_US = 50_000
RETRY_MOST_US = 2_000_000
_ACCEPTED = b"\x00\x53\x24\x45"


class Output(Struct, frozen=True):
    """A message that a handler has put into a queue of the same node, together with the end of the
    message that it handled. `properties` are application properties."""

    queue: str
    body: bytes
    message_id: str = ""
    properties: Mapping[str, Any] = {}


def outputs_of(result: Any) -> list[Output]:
    """Return the outputs of a handler's result: none (None), an `Output`, or several. Raises
    `TypeError` for anything else, which would otherwise be lost silently."""
    if result is None:
        return []
    if isinstance(result, Output):
        return [result]
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        outputs = list(result)
        if all(isinstance(output, Output) for output in outputs):
            return outputs
    raise TypeError(
        f"the handler returned {type(result).__name__}: return Output, several, or None"
    )


class Committed(Enum):
    """The result of a commit."""

    DONE = auto()  # the message has ended, and its outputs are there
    REFUSED = auto()  # an output was refused by its queue, or there was no room for too long
    GONE = auto()  # the message is not this consumer's any more, or it is unknown: send no outcome


class Committer:
    """Commits the messages of one connection; see the module."""

    def __init__(self, connection: QueueConnection) -> None:
        self.connection = connection
        self._free = asyncio.Semaphore(OPEN_MAX)
        #: Links that put, by their queue; the one to the coordinator among them.
        self._lines: dict[str, Line] = {}

    async def commit(
        self, taker: Taker, number: int, outputs: list[Output]
    ) -> tuple[Committed, str]:
        """End message `number` and put `outputs`, together; return the result, and the reason."""
        backoff = Backoff(RETRY_US, RETRY_MOST_US, random.getrandbits(32))
        reason = ""
        for tries in range(1, TRIES + 1):
            if self.connection.over:
                return Committed.GONE, reason
            try:
                async with self._free:
                    fate, reason = await self._try(taker, number, outputs)
            except Ended as error:
                # The connection is lost; or a queue is not there, is closed to us, has stopped.
                fate, reason = Committed.REFUSED if error.final else None, error.message
            if self.connection.over and fate is not Committed.DONE:
                return Committed.GONE, reason
            if fate is not None:
                return fate, reason
            await asyncio.sleep(backoff.delay_ns(tries) / 1e9)
        return Committed.REFUSED, reason

    async def _try(
        self, taker: Taker, number: int, outputs: list[Output]
    ) -> tuple[Committed | None, str]:
        """Run one transaction; return None as the result where it was rolled back, and may be tried
        again."""
        control = await self._line(proton.COORDINATOR)
        answer = await control.put(_order(DECLARE, []))
        if answer.outcome != proton.DECLARED:
            return None, answer.reason
        name = _name_of(answer.state)
        state = bytes(encoded_list([encode(name)]))
        try:
            lines = [await self._line(output.queue) for output in outputs]
            puts = [
                line.put(_message_of(each), state)
                for line, each in zip(lines, outputs, strict=True)
            ]
            outcomes = await asyncio.gather(*puts)
        except Ended:
            if not (self.connection.over or control.over):
                await self._discharge(control, name, fail=True)
            raise
        refused = next((each for each in outcomes if each.outcome != proton.TRANSACTIONAL), None)
        if refused is not None:
            await self._discharge(control, name, fail=True)
            return Committed.REFUSED, refused.reason
        if taker.over:
            return Committed.GONE, ""
        taker.enlist(number, bytes(encoded_list([encode(name), _ACCEPTED])))
        try:
            answer = await self._discharge(control, name, fail=False)
        except Ended as error:
            return Committed.GONE, error.message
        if answer.outcome == proton.ACCEPTED:
            return Committed.DONE, ""
        # Without an outcome it may have committed: another try would put all twice.
        again = answer.outcome == proton.REJECTED and answer.reason != NOT_HELD
        return (None if again else Committed.GONE), answer.reason

    async def _discharge(self, control: Line, name: bytes, *, fail: bool) -> Said:
        return await control.put(_order(DISCHARGE, [name, fail]))

    async def _line(self, queue: str) -> Line:
        """Return the attached link that puts into a queue. Raises `Ended`."""
        line = self._lines.get(queue)
        if line is None or line.over:
            line = self._lines[queue] = Line(self.connection)
        await line.open(queue)
        return line


def _message_of(output: Output) -> bytes:
    body = output.body
    return head(len(body), None, output.message_id, output.properties) + body


def _order(code: int, fields: list[Any]) -> bytes:
    """Encode a message that declares or discharges."""
    packed = encoded_list([encode(field) for field in fields]) if fields else b"\x45"
    return b"\x00\x53\x77\x00\x53" + bytes([code]) + packed


def _name_of(state: bytes | None) -> bytes:
    """Return the transaction's id in a declared state. Raises `Ended`."""
    try:
        fields = decode(state or b"", 0)[0]
    except SectionError:
        fields = None
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], bytes):
        raise Ended("the node declared a transaction without an id")
    return fields[0]
