"""A stock client for what tests have published: proton's own blocking connection."""

import contextlib
from collections.abc import Iterator
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from .process import USER, Broker

CONSUME_SECONDS = 10.0
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
    management's count says, and nobody waits for a time-out. (RabbitMQ 3 fails at a drain.)
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
