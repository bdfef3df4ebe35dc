"""Brokers of several kinds: each as a process on loopback, and the objects declared in it.

The process of each kind (`RabbitMQ3`, `RabbitMQ4`, `Artemis`, `BrokerJ`) has one interface
(`process.Broker`): `start`, `stop`, `kill`, `freeze` and `thaw` it, on data of its own. So do
declarations in a broker that may run anywhere (`declaring.Declares`): exchanges, queues and their
bounds, by the broker's own management. `installations` knows where the brokers are installed. All
of it needs Python's library only, but for Artemis' management, which needs proton.
"""

from feedhandler.lab.brokers.artemis import Artemis, ArtemisDeclares
from feedhandler.lab.brokers.brokerj import BrokerJ, BrokerJDeclares
from feedhandler.lab.brokers.declaring import BrokerFailed, Declares
from feedhandler.lab.brokers.installations import Absent
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
