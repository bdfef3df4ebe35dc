"""Real brokers for the tests and benchmarks, each on loopback, started and stopped by process id.

`RabbitMQ3`, `RabbitMQ4`, `Artemis` and `BrokerJ` are the laboratory's (`feedhandler.lab.brokers`),
modest ones: a test wants little of them, and several run side by side. Their user's password is one
that wants escaping in a URL. `install` puts them where `installations` looks. Nothing here needs
more than Python's library; `clients`, which consumes, needs proton.
"""

from pathlib import Path

from feedhandler.lab import brokers
from feedhandler.lab.brokers import USER, VHOST, Absent, Broker, RabbitMQ, installations
from tests.support import free_addresses

PASSWORD = "s3cret/%?"


def ports(count: int) -> list[int]:
    """Some that no other process takes until a broker binds them, which may be seconds later."""
    return [free_addresses.port() for _ in range(count)]


class Modest:
    """Base of the tests' brokers: little memory, one password."""

    ports = staticmethod(ports)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PASSWORD, modest=True)


class RabbitMQ3(Modest, brokers.RabbitMQ3):
    pass


class RabbitMQ4(Modest, brokers.RabbitMQ4):
    pass


class Artemis(Modest, brokers.Artemis):
    pass


class BrokerJ(Modest, brokers.BrokerJ):
    pass


#: By the fixture's name.
BROKERS: dict[str, type[Broker]] = {
    "rabbitmq3": RabbitMQ3,
    "rabbitmq4": RabbitMQ4,
    "artemis": Artemis,
    "brokerj": BrokerJ,
}

__all__ = [
    "BROKERS",
    "PASSWORD",
    "USER",
    "VHOST",
    "Absent",
    "Artemis",
    "Broker",
    "BrokerJ",
    "RabbitMQ",
    "RabbitMQ3",
    "RabbitMQ4",
    "installations",
]
