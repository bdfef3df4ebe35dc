"""Stock clients for what brokers do: proton's own blocking connection and messaging handler."""

import contextlib
from collections.abc import Iterator
from typing import Any

from proton import Data, Delivery, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container, SenderOption
from proton.utils import BlockingConnection

from feedhandler.lab.brokers import USER, Broker

CONSUME_SECONDS = 60.0
CREDIT = 500
LAST = "the last one"


@contextlib.contextmanager
def connected(broker: Broker) -> Iterator[Any]:
    """A blocking connection to a broker, as its user."""
    connection = BlockingConnection(
        f"amqp://127.0.0.1:{broker.port}",
        user=USER,
        password=broker.password,
        virtual_host=broker.virtual_host,
        allowed_mechs="PLAIN",
        timeout=CONSUME_SECONDS,
    )
    try:
        yield connection
    finally:
        connection.close()


def consume(broker: Broker, queue: str) -> list[Message]:
    """Everything that is in a queue, accepted.

    Behind it a last message is put: what comes before that one is everything, whatever the
    management's count says, and no call waits for a time-out. (RabbitMQ 3 fails at a drain.)
    """
    found: list[Message] = []
    with connected(broker) as connection:
        address = broker.source(queue)
        connection.create_sender(address).send(Message(id=LAST, body=LAST, durable=True))
        receiver = connection.create_receiver(address, credit=CREDIT)
        while (message := receiver.receive()).id != LAST:
            found.append(message)
            receiver.accept()
        receiver.accept()
    return found


class Attempt(MessagingHandler):
    """One message to one address, by a connection of its own; `outcome` tells how it went.

    `accepted`, `released`, `rejected` or `modified`; `refused` where the broker ends the link, or
    the session, or the connection before. `condition` is what it says then, `credit` what it
    granted at first, `capabilities` what it says that the target can do. With `outcomes` the sender
    says that it can bear each of them.
    """

    def __init__(
        self, broker: Broker, address: str | None, message: Message, outcomes: bool = False
    ) -> None:
        super().__init__(auto_settle=True)
        self.broker, self.address, self.message = broker, address, message
        self.options = [_Outcomes()] if outcomes else []
        self.outcome = self.condition = ""
        self.credit = 0
        self.capabilities: set[str] = set()
        Container(self).run()

    def on_start(self, event: Any) -> None:
        at = f"amqp://{USER}@127.0.0.1:{self.broker.port}"
        self.connection = event.container.connect(
            at,
            user=USER,
            password=self.broker.password,
            virtual_host=self.broker.virtual_host,
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        event.container.create_sender(self.connection, self.address, options=self.options)

    def on_sendable(self, event: Any) -> None:
        if not self.credit:
            self.credit = event.sender.credit
            self.capabilities = _symbols(event.sender.remote_target.capabilities)
            event.sender.send(self.message)

    def on_settled(self, event: Any) -> None:
        state = {
            Delivery.ACCEPTED: "accepted",
            Delivery.RELEASED: "released",
            Delivery.REJECTED: "rejected",
            Delivery.MODIFIED: "modified",
        }
        self._end(state[event.delivery.remote_state])

    def on_link_error(self, event: Any) -> None:
        self._end("refused", event.link.remote_condition)

    def on_session_error(self, event: Any) -> None:
        self._end("refused", event.session.remote_condition)

    def on_connection_error(self, event: Any) -> None:
        self._end("refused", event.connection.remote_condition)

    def on_transport_error(self, event: Any) -> None:
        self._end("refused", event.transport.condition)

    def _end(self, outcome: str, condition: Any = None) -> None:
        if not self.outcome:
            self.outcome, self.condition = outcome, condition.name if condition else ""
            self.connection.close()


def _symbols(data: Data) -> set[str]:
    """The symbols of a field that has none, one, or an array of them."""
    data.rewind()
    value = data.get_object() if data.next() else None
    return {str(each) for each in getattr(value, "elements", [value])} - {"None"}


class _Outcomes(SenderOption):
    """Says which outcomes the sender can bear."""

    def apply(self, sender: Any) -> None:
        outcomes = sender.source.outcomes
        outcomes.put_array(False, Data.SYMBOL)
        outcomes.enter()
        for name in ("accepted", "rejected", "released", "modified"):
            outcomes.put_symbol(symbol(f"amqp:{name}:list"))
        outcomes.exit()
