"""A worker's connection to a node: links that put, links that take, requests to management.

`KeptConnection` is one that is made again, after a wait, when it was lost.
"""

import abc
import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.client import ClientConnection, Ended
from feedhandler.amqp.durable.queues import MANAGEMENT, PREFIX
from feedhandler.amqp.durable.values import (
    APPLICATION_PROPERTIES,
    VALUE,
    SectionError,
    decode,
    encode,
    encoded_list,
    sections,
)
from feedhandler.amqp.identity import Identity
from feedhandler.retrans.backoff import Backoff

_log = logging.getLogger(__name__)

#: Largest message that is taken.
MESSAGE_BYTES_MAX = 64 << 20
ANSWERS = 64
#: How long the node may take to answer a request.
ANSWER_SECONDS = 30.0
CORRELATION_PLACE = 5
#: The first wait before connecting again, and the longest.
RETRY_US = 50_000
RETRY_MOST_US = 5_000_000


class Said(NamedTuple):
    """The node's outcome for a message that was put; `state`: the encoded fields of a state of part
    4."""

    number: int
    outcome: int
    condition: str
    reason: str
    state: bytes | None


class _End:
    """One end of a link. `over`: it has ended, and `error` says why. `on_end` is called then;
    without it, the end of the link ends the connection."""

    def __init__(
        self,
        connection: "QueueConnection",
        link: Any,
        on_end: Callable[[Ended | None], None] | None = None,
    ) -> None:
        self.connection = connection
        self.link = link
        self.on_end = on_end
        self.over = False
        self.error: Ended | None = None
        self.answered: asyncio.Future[None] = connection.loop.create_future()
        link.owner = self

    def heard(self) -> None:
        """Process what may have come on the link."""

    def end(self, error: Ended | None) -> None:
        """Record that the link has ended, and notify `answered` or `on_end`."""
        self.over, self.error = True, error
        if not self.answered.done():
            self.answered.set_exception(error or Ended("the connection was closed"))
            self.answered.exception()  # retrieved, so that an unawaited future logs no error
        elif self.on_end is not None:
            self.on_end(error)


class Taker(_End):
    """A link that takes messages. `on_messages` gets (number, message or None for one that is too
    large), in order."""

    def __init__(
        self,
        connection: "QueueConnection",
        link: proton.IntakeLink,
        on_messages: Callable[["Taker", list[tuple[int, bytes | None]]], None],
    ) -> None:
        super().__init__(connection, link)
        self._on_messages = on_messages

    def heard(self) -> None:
        """Hand on the messages that have come."""
        link: proton.IntakeLink = self.link
        if link.arrived:
            came = [(number, data) for number, data, *_ in link.arrived]
            link.clear()
            self._on_messages(self, came)

    def settle(self, number: int, outcome: int, reason: str = "") -> None:
        """Settle a message with this outcome; `connection.work` writes it."""
        if self.over:
            return
        if outcome == proton.ACCEPTED:
            self.link.accept(number)
        else:
            condition = "feedhandler:rejected" if outcome == proton.REJECTED else ""
            self.link.give_back(number, outcome, condition, reason)

    def enlist(self, number: int, state: bytes) -> None:
        """Accept a message in a transaction; `settle` closes it once that has committed."""
        self.link.enlist(number, state)

    def flow(self, credit: int) -> None:
        """Grant `credit` more messages."""
        if not self.over and credit > 0:
            self.link.flow(credit)


class Putter(_End):
    """A link that puts messages. `on_outcomes` gets their outcomes."""

    def __init__(
        self,
        connection: "QueueConnection",
        link: proton.HandoutLink,
        on_outcomes: Callable[["Putter", list[Said]], None],
        on_credit: Callable[["Putter"], None],
        on_end: Callable[[Ended | None], None] | None = None,
    ) -> None:
        super().__init__(connection, link, on_end)
        self._on_outcomes = on_outcomes
        self._on_credit = on_credit
        link.wants_flow = True

    @property
    def ready(self) -> bool:
        """Whether one more may be put now."""
        return not self.over and self.link.ready()

    def put(self, number: int, head: bytes, body: bytes, state: bytes | None = None) -> None:
        """Put a message, in a transaction where `state` is given; the caller has checked `ready`,
        and calls `connection.work` in the end."""
        self.link.hand_out(number, head, body, 0, state)

    def heard(self) -> None:
        """Hand on the outcomes of messages that have come."""
        link: proton.HandoutLink = self.link
        if link.dispositions:
            dispositions = link.dispositions.copy()
            link.dispositions.clear()
            outcomes = []
            for number, outcome, _, state, _ in dispositions:
                condition, reason = link.reason(number) if outcome != proton.ACCEPTED else ("", "")
                link.finish(number)
                outcomes.append(Said(number, outcome, condition, reason, state))
            self._on_outcomes(self, outcomes)

    def flowed(self) -> None:
        """Report that the node has given credit."""
        self.link.wants_flow = True
        self._on_credit(self)


class QueueConnection(ClientConnection):
    """A worker's connection; see the module. `on_over` is called once as it ends, with the reason
    (None where we closed it)."""

    def __init__(self, identity: Identity, on_over: Callable[[Ended | None], None]) -> None:
        super().__init__(identity)
        self._on_over = on_over
        self._ends: list[_End] = []
        self._names = itertools.count(1)
        self._clients: dict[str, _ManagementClient] = {}

    async def taker(
        self,
        queue: str,
        credit: int,
        on_messages: Callable[[Taker, list[tuple[int, bytes | None]]], None],
    ) -> Taker:
        """Attach a link that takes messages of a queue. Raises `Ended` where the node refuses."""
        link = self._engine.taker(
            f"taker-{next(self._names)}", PREFIX + queue,
            credit=credit, message_bytes_max=MESSAGE_BYTES_MAX,
        )  # fmt: skip
        return await self._attached(Taker(self, link, on_messages))

    async def putter(
        self,
        queue: str,
        on_outcomes: Callable[[Putter, list[Said]], None],
        on_credit: Callable[[Putter], None],
        on_end: Callable[[Ended | None], None] | None = None,
    ) -> Putter:
        """Attach a link that puts messages into a queue, or declares and discharges transactions
        (`COORDINATOR`). Raises `Ended` where the node refuses."""
        address = queue if queue == proton.COORDINATOR else PREFIX + queue
        link = self._engine.putter(f"putter-{next(self._names)}", address)
        return await self._attached(Putter(self, link, on_outcomes, on_credit, on_end))

    async def ask(self, queue: str, **arguments: Any) -> tuple[dict[str, Any], Any]:
        """Send a request to a queue's management; return the answer's properties, and its body.
        Raises `Ended`."""
        client = self._clients.get(queue)
        if client is None or client.over:
            link = self._engine.taker(
                f"answers-{next(self._names)}", "", credit=ANSWERS,
                message_bytes_max=MESSAGE_BYTES_MAX,
            )  # fmt: skip
            client = _ManagementClient(self)
            client.answers = await self._attached(Taker(self, link, client.answered))
            await client.open(queue + MANAGEMENT)
            self._clients[queue] = client
        return await client.ask(arguments)

    async def _attached(self, end: Any) -> Any:
        self._ends.append(end)
        self.work()
        await self.in_time(end.answered)
        return end

    # -- from the event loop ----------------------------------------------------------------

    def _read(self) -> None:
        for end in tuple(self._ends):
            end.heard()

    def _handle(self, kind: int, link: Any) -> None:
        end = link.owner if link is not None else None
        if end is None:
            if kind == proton.LINK_REMOTE_OPEN and link is not None:
                link.refuse(conditions.NOT_ALLOWED, "a worker takes no links")
        elif kind == proton.LINK_REMOTE_OPEN:
            if isinstance(end, Taker):
                given = bool(link.source_address)
            else:
                given = bool(link.target_address) or link.coordinator
            if given and not end.answered.done():
                end.answered.set_result(None)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            name, text = link.remote_condition
            link.close()
            self._drop(end, Ended(text or "the node ended the link", condition=name))
        elif kind == proton.LINK_FLOW and isinstance(end, Putter):
            end.flowed()

    def _drop(self, end: _End, error: Ended | None) -> None:
        if end in self._ends:
            self._ends.remove(end)
        waited_for = end.answered.done() and not end.over
        end.end(error)
        if waited_for and end.on_end is None and not self.over and error is not None:
            self.finish(error)  # the connection is of no use without this link

    def _gone(self, error: Ended | None) -> None:
        for end in tuple(self._ends):
            end.heard()
            end.end(error)
        self._ends.clear()
        self._on_over(error)


class KeptConnection(abc.ABC):
    """Base of a queue's clients. `connects` counts connections; without `reconnect` the first end
    is for good."""

    def __init__(self, identity: Identity, reconnect: bool = True) -> None:
        self.connects = 0
        self._identity = identity
        self._reconnect = reconnect
        self._connection: QueueConnection | None = None
        self._backoff = Backoff(RETRY_US, RETRY_MOST_US, random.getrandbits(32))
        self._over: asyncio.Future[Ended | None]
        self._keeper: asyncio.Task[None]

    @abc.abstractmethod
    async def _open(self, connection: QueueConnection) -> None:
        """Attach the link on a new connection. Raises `Ended`."""

    @abc.abstractmethod
    def _lost(self) -> None:
        """Handle the end of a connection: messages in hand are lost with it."""

    @abc.abstractmethod
    def _end(self, error: Ended) -> None:
        """Handle the final end."""

    async def _begin(self) -> None:
        """Connect, and keep that up until `_keeper` is cancelled. Raises `Ended` where the first
        connection fails."""
        await self._attach()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _attach(self) -> None:
        self._over = over = asyncio.get_running_loop().create_future()

        def on_over(error: Ended | None) -> None:
            if not over.done():
                over.set_result(error)

        connection = QueueConnection(self._identity, on_over)
        try:
            await connection.connect()
            await self._open(connection)
        except BaseException:
            connection.abandon()
            raise
        self._connection = connection
        self.connects += 1

    async def _keep(self) -> None:
        tries = 0
        error: Ended | None = None
        while True:
            error = error or await self._over or Ended("the node closed the connection")
            self._lost()
            if self._connection is not None:
                # An end leaves the socket open, for what was received; nobody takes that any more.
                self._connection.abandon()
            if error.final or not self._reconnect:
                self._end(error)
                return
            tries += 1
            # Who waits for the node is told so once, for each time that it is lost.
            level = logging.WARNING if tries == 1 else logging.INFO
            _log.log(level, "%s: %s: connecting again", self._identity.endpoint.shown, error)
            await asyncio.sleep(self._backoff.delay_ns(tries) / 1e9)
            try:
                await self._attach()
                tries, error = 0, None
            except Ended as failure:
                error = failure


class Line:
    """A link that puts, whose callers wait for each outcome."""

    def __init__(self, connection: "QueueConnection") -> None:
        self._connection = connection
        self._putter: Putter | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._unsent: list[tuple[int, bytes, bytes | None]] = []
        self._waiting: dict[int, asyncio.Future[Said]] = {}

    @property
    def over(self) -> bool:
        """Whether the link has ended."""
        return self._putter is not None and self._putter.over

    async def open(self, address: str) -> None:
        """Attach the link, unless it is attached. Raises `Ended`."""
        async with self._opening:
            if self._putter is None:
                self._putter = await self._connection.putter(
                    address, self._heard, lambda putter: self._send(), self.stop
                )

    async def put(self, data: bytes, state: bytes | None = None) -> Said:
        """Put a message, and wait for the node's outcome. Raises `Ended`."""
        if self._connection.over or self.over:
            raise Ended("the connection is over")
        number = next(self._numbers)
        future = self._waiting[number] = self._connection.loop.create_future()
        self._unsent.append((number, data, state))
        self._connection.loop.call_soon(self._send)
        try:
            return await future
        finally:
            del self._waiting[number]

    def _send(self) -> None:
        putter = self._putter
        if putter is None or not self._unsent:
            return
        sent = 0
        while sent < len(self._unsent) and putter.ready:
            number, data, state = self._unsent[sent]
            putter.put(number, data, b"", state)
            sent += 1
        del self._unsent[:sent]
        self._connection.work()

    def _heard(self, putter: Putter, outcomes: list[Said]) -> None:
        for outcome in outcomes:
            future = self._waiting.get(outcome.number)
            if future is not None and not future.done():
                future.set_result(outcome)

    def stop(self, error: Ended | None) -> None:
        """Fail the messages that wait, as the link or the connection has ended."""
        _fail(self._waiting, error)


class _ManagementClient(Line):
    """Requests to a queue's management, and their `answers`, of which each has the number of its
    request."""

    def __init__(self, connection: QueueConnection) -> None:
        super().__init__(connection)
        self.answers: Taker
        self._requests = itertools.count(1)
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], Any]]] = {}

    async def ask(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Send a request, and wait for the answer. Raises `Ended` after `ANSWER_SECONDS`."""
        number = next(self._requests)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        fields = [b"\x40"] * 4 + [encode(self.answers.link.source_address), encode(number)]
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        data = b"\x00\x53\x73" + encoded_list(fields) + b"\x00\x53\x74" + encode(named)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                said = await self.put(data + b"\x00\x53\x77\x40")
                if said.outcome != proton.ACCEPTED:
                    raise Ended(said.reason or "refused", condition=said.condition)
                return await future
        except TimeoutError:
            raise Ended(f"no answer within {ANSWER_SECONDS:.0f} s") from None
        finally:
            del self._asked[number]

    def answered(self, taker: Taker, came: list[tuple[int, bytes | None]]) -> None:
        """Process answers that have come."""
        for number, data in came:
            taker.settle(number, proton.ACCEPTED)
            taker.flow(1)
            try:
                self._read(data or b"")
            except SectionError:
                continue  # it is no answer to a request
        taker.connection.loop.call_soon(taker.connection.work)

    def _read(self, data: bytes) -> None:
        properties: dict[str, Any] = {}
        body: Any = None
        correlation = None
        for code, _, value, _ in sections(data):
            if code == APPLICATION_PROPERTIES:
                properties = decode(data, value)[0]
            elif code == VALUE:
                body = decode(data, value)[0]
            else:
                found = decode(data, value)[0]
                if isinstance(found, list) and len(found) > CORRELATION_PLACE:
                    correlation = found[CORRELATION_PLACE]
        future = self._asked.get(correlation) if isinstance(correlation, int) else None
        if future is not None and not future.done():
            future.set_result((properties, body))

    def stop(self, error: Ended | None) -> None:
        """Fail the requests that wait, too."""
        super().stop(error)
        _fail(self._asked, error)


def _fail(waiting: Mapping[int, asyncio.Future[Any]], error: Ended | None) -> None:
    for future in waiting.values():
        if not future.done():
            future.set_exception(error or Ended("the connection was closed"))
            future.exception()  # retrieved: no error is logged if unawaited
