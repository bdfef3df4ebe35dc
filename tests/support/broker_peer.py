"""A broker that does as a test says: stock proton behind a socket, for the publisher's tests.

`FakeBroker` accepts connections and links, hands each message to `answer(number, message)`, which
gives a disposition or None to leave the message unanswered, and can break every connection.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import proton
from proton import Delivery, Message

#: What RabbitMQ 3 says of itself as it opens a connection.
RABBITMQ = {"product": "RabbitMQ", "version": "3.10.8"}

Answer = Callable[[int, Message], Any]


class _Connection(asyncio.Protocol):
    """One accepted connection, driven through proton's own binding."""

    def __init__(self, broker: "FakeBroker") -> None:
        self.broker = broker
        self.connection = proton.Connection()
        self.engine = proton.Transport(proton.Transport.SERVER)
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        self.engine.sasl().allowed_mechs("ANONYMOUS")
        self.engine.bind(self.connection)

    def connection_made(self, transport: Any) -> None:
        self.socket = transport
        self.broker.connections.add(self)
        self.broker.accepted += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.broker.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        while data:
            room = self.engine.capacity()
            if room <= 0:
                return
            self.engine.push(data[:room])
            data = data[room:]
            self.work()

    def work(self) -> None:
        """Act upon events and write."""
        while (event := self.collector.peek()) is not None:
            self._handle(event)
            self.collector.pop()
            if self.socket.is_closing():
                return
        while (pending := self.engine.pending()) > 0:
            self.socket.write(self.engine.peek(pending))
            self.engine.pop(pending)

    def _handle(self, event: Any) -> None:
        broker = self.broker
        if event.type == proton.Event.CONNECTION_REMOTE_OPEN:
            broker.hostnames.append(self.connection.remote_hostname)
            self.connection.properties = {
                proton.symbol(key): value for key, value in broker.properties.items()
            }
            self.connection.open()
        elif event.type == proton.Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif event.type == proton.Event.LINK_REMOTE_OPEN:
            if event.link.state & proton.Endpoint.LOCAL_UNINIT:  # not the answer to our own
                self._attach(event.link)
        elif event.type == proton.Event.DELIVERY:
            self._receive(event.delivery)
        elif event.type == proton.Event.CONNECTION_REMOTE_CLOSE:
            broker.goodbyes += 1
            self.connection.close()

    def _attach(self, link: Any) -> None:
        self.broker.targets.append(link.remote_target.address)
        outcomes = link.remote_source.outcomes
        outcomes.rewind()
        self.broker.outcomes.append(str(outcomes.get_object()) if outcomes.next() else "")
        if self.broker.refuse:
            link.target.type = proton.Terminus.UNSPECIFIED
            link.open()
            link.condition = proton.Condition(*self.broker.refuse)
            link.close()
            return
        link.target.copy(link.remote_target)
        for word in self.broker.capabilities:
            link.target.capabilities.put_object(proton.symbol(word))
        link.open()
        link.flow(self.broker.credit)

    def _receive(self, delivery: Any) -> None:
        if delivery.partial or not delivery.readable:
            return
        link = delivery.link
        message = Message()
        message.decode(link.recv(delivery.pending))
        link.advance()
        link.flow(1)
        self.broker.messages.append(message)
        answer = self.broker.answer(len(self.broker.messages), message)
        if answer == "drop":
            self.socket.abort()
        elif answer == "settle":
            delivery.settle()
        elif answer is not None:
            if answer == "undeliverable":
                delivery.local.undeliverable = True
                answer = Delivery.MODIFIED
            elif answer == Delivery.REJECTED:
                delivery.local.condition = proton.Condition("test:refused", "the test says no")
            delivery.update(answer)
            delivery.settle()
            if answer == Delivery.ACCEPTED:
                self.broker.accepted_ids.append(bytes(message.id))


class FakeBroker:
    """Fake broker with what all its connections have in common."""

    def __init__(self, answer: Answer | None = None, credit: int = 1000) -> None:
        self.answer: Answer = answer or (lambda number, message: Delivery.ACCEPTED)
        self.credit = credit
        self.properties = dict(RABBITMQ)
        self.refuse: tuple[str, str] | None = None
        self.connections: set[_Connection] = set()
        self.messages: list[Message] = []
        self.accepted_ids: list[bytes] = []
        self.targets: list[str | None] = []
        self.capabilities: tuple[str, ...] = ()
        self.outcomes: list[str] = []
        self.hostnames: list[str] = []
        self.accepted = 0
        self.goodbyes = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def break_off(self) -> None:
        """Break every connection, without a word."""
        for connection in list(self.connections):
            connection.socket.abort()


@contextlib.asynccontextmanager
async def broker(
    answer: Answer | None = None, credit: int = 1000, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeBroker]:
    """A broker that listens while the block runs."""
    made = FakeBroker(answer, credit)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(made), "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.break_off()
        server.close()
        await server.wait_closed()
