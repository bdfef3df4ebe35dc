"""Real brokers for the tests and benchmarks, each on loopback, started and stopped by process id.

`RabbitMQ3`, `RabbitMQ4`, `Artemis` and `BrokerJ` have one manner (`process.Broker`): `start`,
`stop`, `kill`, `freeze` and `thaw` the process on data of its own; declare `exchange` and `queue`
by the broker's own management. `places` knows where they are installed, and `install` puts them
there. Nothing here needs more than Python's library; `clients`, which consumes, needs proton.
"""

from .artemis import Artemis
from .brokerj import BrokerJ
from .places import Absent
from .process import PASSWORD, USER, VHOST, Broker
from .rabbitmq import RabbitMQ, RabbitMQ3, RabbitMQ4

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
]
