"""A producer whose messages count once: `async with keyed.producer(url, queue, id="loader")`.

What it is for: each message gets the next sequence number of (id, epoch), and is sent again, with
the same one, until the node has accepted it: over lost connections, and over restarts of the node.
A producer that begins anew takes a higher epoch (by default the time). One that knows what it has
sent before (line numbers of a file) names epoch and first sequence itself, and none of that is
stored twice, however often it is run.

    outcome                        then
    accepted                       it counts
    rejected: gap                  what is before it is sent again, and it behind that; where there
                                   is nothing before it, the producer is over
    released or rejected: no room  the same, after a wait
    rejected: replaced             the producer is over: another one has its id
    rejected: anything else        `Refused`; its sequence number has been used, unless the message
                                   was too large: then the next one is behind a gap
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.client import Ended
from feedhandler.amqp.durable.keyed_intake import CONDITIONS
from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import parse_endpoint
from feedhandler.amqp.working.connection import KeptConnection, Putter, QueueConnection, Said
from feedhandler.amqp.working.messages import head
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.keyed.producers import ID_BYTES_MAX, OWN, Stamp, Standing

GAP, REPLACED = CONDITIONS[Standing.GAP], CONDITIONS[Standing.REPLACED]
#: Conditions of a rejection after which the message is sent again.
REPEATED = (GAP, conditions.RESOURCE_LIMIT_EXCEEDED)
#: Messages that wait to be accepted; further `put`s wait.
WINDOW = 4096


class Refused(PeerError):
    """The node has refused a message for good; the text says why."""


class _Sent(Struct):
    sequence: int
    head: bytes
    body: bytes
    future: asyncio.Future[int]
    tries: int = 0
    #: What the node said of it last, where that was a gap before it.
    gap: str = ""


class Producer(KeptConnection):
    """A producer of one queue; see the module; made by `producer`. `accepted` and `refused` count
    messages."""

    def __init__(
        self, identity: Identity, queue: str, name: bytes, epoch: int, sequence: int
    ) -> None:
        super().__init__(identity)
        self.accepted = self.refused = 0
        self.id, self.epoch, self.sequence = name, epoch, sequence
        self._queue = queue
        #: Messages that are not accepted, in order: to be sent, and sent.
        self._unsent: deque[_Sent] = deque()
        self._sent: dict[int, _Sent] = {}
        self._again: list[_Sent] = []
        self._fault: PeerError | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._putter: Putter | None = None
        self._due = False
        self._pause: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until all is accepted, unless the block has raised, and close the connection."""
        try:
            if kind is None:
                await self.flush()
        finally:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            if self._pause is not None:
                self._pause.cancel()
            if self._connection is not None:
                await self._connection.close()

    # -- putting ----------------------------------------------------------------------------

    async def put(
        self,
        body: bytes,
        *,
        message_id: str = "",
        properties: Mapping[str, Any] | None = None,
    ) -> int:
        """Put a message; return its sequence number, once it is accepted. Raises `Refused`, and
        `PeerError` where the producer has ended."""
        return await (await self.put_soon(body, message_id=message_id, properties=properties))

    async def put_soon(
        self,
        body: bytes,
        *,
        message_id: str = "",
        properties: Mapping[str, Any] | None = None,
    ) -> asyncio.Future[int]:
        """Put a message as `put` does, waiting only until there is room among those in flight;
        return a future."""
        loop = asyncio.get_running_loop()
        while self._fault is None and len(self._unsent) + len(self._sent) >= WINDOW:
            room = loop.create_future()
            self._room.append(room)
            await room
        if self._fault is not None:
            raise self._fault
        stamp = Stamp(self.id, self.epoch, self.sequence)
        self.sequence += 1
        message = _Sent(
            stamp.sequence, head(len(body), stamp, message_id, properties), body,
            loop.create_future(),
        )  # fmt: skip
        message.future.add_done_callback(_look)
        self._unsent.append(message)
        self._send_soon()
        return message.future

    async def flush(self) -> None:
        """Wait until all that was put is accepted, or refused; raises as `put`, for the first one
        refused."""
        waiting = [each.future for each in (*self._sent.values(), *self._again, *self._unsent)]
        if waiting:
            await asyncio.wait(waiting)  # cancelled, it leaves the messages' futures alone
        for future in waiting:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                raise error

    # -- sending ----------------------------------------------------------------------------

    def _send_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self, *_: object) -> None:
        self._due = False
        putter = self._putter
        if putter is None or self._again or self._pause is not None:
            return
        while self._unsent and putter.ready:
            message = self._unsent.popleft()
            self._sent[message.sequence] = message
            putter.put(message.sequence, message.head, message.body)
        putter.connection.work()

    def _on_outcomes(self, putter: Putter, outcomes: list[Said]) -> None:
        for sequence, outcome, condition, reason, _ in outcomes:
            message = self._sent.pop(sequence, None)
            if message is None:
                continue
            if outcome == proton.ACCEPTED:
                self.accepted += 1
                if not message.future.done():  # its caller may have left
                    message.future.set_result(sequence)
            elif condition == REPLACED:
                self._again.append(message)
                self._fail(PeerError(f"producer {self.id!r} is over: {reason}", "another id"))
                return
            elif outcome == proton.REJECTED and condition not in REPEATED:
                self.refused += 1
                if not message.future.done():
                    message.future.set_exception(Refused(f"message {sequence}: {reason}", ""))
            else:
                message.tries += condition != GAP
                message.gap = reason if condition == GAP else ""
                self._again.append(message)
        if self._again and not self._sent:
            self._go_back()
        if len(self._unsent) + len(self._sent) < WINDOW:
            self._make_room()
        self._send_soon()

    def _make_room(self) -> None:
        """Wake all that wait for room; some may have left."""
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)

    def _go_back(self) -> None:
        """Queue messages to be sent again, in order, all that were sent being answered. End the
        producer where a gap is before the first of them: nothing will ever fill it."""
        again = sorted(self._again, key=lambda each: -each.sequence)
        if again[-1].gap:
            hint = "begin anew with a higher epoch"
            self._fail(PeerError(f"producer {self.id!r} is over: {again[-1].gap}", hint))
            return
        self._again = []
        tries = max(each.tries for each in again)
        self._unsent.extendleft(again)
        if tries:
            delay = self._backoff.delay_ns(tries) / 1e9
            self._pause = asyncio.get_running_loop().call_later(delay, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._send_soon()

    def _fail(self, fault: PeerError) -> None:
        """End the producer; all that wait for a message or for room get `fault`."""
        self._fault = fault
        for message in (*self._sent.values(), *self._again, *self._unsent):
            if not message.future.done():
                message.future.set_exception(fault)
        for waiting in (self._sent, self._again, self._unsent):
            waiting.clear()
        self._make_room()

    # -- kept attached ----------------------------------------------------------------------

    async def _open(self, connection: QueueConnection) -> None:
        self._putter = await connection.putter(self._queue, self._on_outcomes, self._send)
        self._send_soon()

    def _lost(self) -> None:
        self._putter = None
        self._again += self._sent.values()
        self._sent.clear()
        for message in self._again:
            message.tries, message.gap = 0, ""
        if self._again:
            self._go_back()

    def _end(self, error: Ended) -> None:
        self._fail(error)


def _look(future: asyncio.Future[int]) -> None:
    """Retrieve a message's exception, so that a future that is not awaited logs no error."""
    if not future.cancelled():
        future.exception()


def producer(
    url: str,
    queue: str,
    *,
    id: str | bytes = b"",
    epoch: int | None = None,
    sequence: int = 1,
    login: Login | None = None,
) -> Producer:
    """Make a producer that puts messages into a queue, each once; see the module.

    `id` (none: a random one) names the producer, 64 bytes at most, of which the first is not zero
    (only queues that send have such ids); `epoch` (none: the time, in us) must be above that of any
    producer with the id before it. Raises `UsageError`; entering it raises `PeerError`.
    """
    name = (id.encode() if isinstance(id, str) else id) or uuid.uuid4().hex.encode()
    if len(name) > ID_BYTES_MAX:
        raise UsageError(f"id has {len(name)} bytes", f"at most {ID_BYTES_MAX}")
    if name.startswith(OWN):
        raise UsageError("id begins with a zero byte", "only ids of queues do; take another")
    if sequence < 1:
        raise UsageError(f"sequence = {sequence}", "numbers begin at 1")
    return Producer(
        Identity(parse_endpoint(url), login),
        queue,
        name,
        time.time_ns() // 1000 if epoch is None else epoch,
        sequence,
    )
