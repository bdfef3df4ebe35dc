"""Brokers of several kinds: each as a process on loopback, and what is declared in it.

A kind's process (`RabbitMQ3`, `RabbitMQ4`, `Artemis`, `BrokerJ`) has one manner (`process.Broker`):
`start`, `stop`, `kill`, `freeze` and `thaw` it on data of its own. What is declared in one, running
anywhere, has one manner too (`declaring.Declares`): exchanges, queues and their bounds, by the
broker's own management. `places` knows where the brokers are installed. Nothing here needs more
than Python's library, but Artemis' management, which needs proton.
"""

from feedhandler.lab.brokers.artemis import Artemis, ArtemisDeclares
from feedhandler.lab.brokers.brokerj import BrokerJ, BrokerJDeclares
from feedhandler.lab.brokers.declaring import BrokerFailed, Declares
from feedhandler.lab.brokers.places import Absent
from feedhandler.lab.brokers.process import USER, VHOST, Broker
from feedhandler.lab.brokers.rabbitmq import (
    RabbitMQ,
    RabbitMQ3,
    RabbitMQ3Declares,
    RabbitMQ4,
    RabbitMQ4Declares,
    RabbitMQDeclares,
)

__all__ = [
    "USER",
    "VHOST",
    "Absent",
    "Artemis",
    "ArtemisDeclares",
    "Broker",
    "BrokerFailed",
    "BrokerJ",
    "BrokerJDeclares",
    "Declares",
    "RabbitMQ",
    "RabbitMQ3",
    "RabbitMQ3Declares",
    "RabbitMQ4",
    "RabbitMQ4Declares",
    "RabbitMQDeclares",
]
