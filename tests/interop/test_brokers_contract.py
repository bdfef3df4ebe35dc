"""What the gateway builds upon in each broker: its addresses, its routing, its memory.

Nothing of ours but the kit is in these tests: a stock client sends and receives.
"""

from typing import Any

import pytest
from broker_kit import BROKERS, Broker
from broker_kit.clients import connected, consume
from proton import Message

#: Where to send for one key of an exchange.
ADDRESSES = {
    "rabbitmq-3": "/exchange/{exchange}/{key}",
    "rabbitmq-4": "/exchanges/{exchange}/{key}",
    "artemis": "{exchange}.{key}",
    "qpid": "{exchange}/{key}",
}


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the kit's brokers."""
    return request.getfixturevalue(request.param)


def send(connection: Any, address: str, *bodies: bytes, key: str = "") -> None:
    """Durable messages, each confirmed before the next."""
    sender = connection.create_sender(address)
    for body in bodies:
        sender.send(Message(body=body, durable=True, inferred=True, subject=key or None))


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [bytes(message.body) for message in consume(broker, queue)]


def test_a_broker_routes_by_topic_and_keeps_what_is_durable_over_a_crash(broker: Broker) -> None:
    broker.exchange("contract")
    broker.queue("contract.some", "contract", "euronext.104.*")
    broker.queue("contract.all", "contract", "euronext.#")
    wanted = [b"%d" % number for number in range(50)]
    with connected(broker) as connection:
        for key, part in (("euronext.104.7", wanted[:25]), ("euronext.105", wanted[25:])):
            address = ADDRESSES[broker.kind].format(exchange="contract", key=key)
            send(connection, address, *part, key=key)
    broker.kill()
    broker.start()
    assert bodies(broker, "contract.all") == wanted
    assert bodies(broker, "contract.some") == wanted[:25]
    assert bodies(broker, "contract.all") == []
