"""Brokers of several kinds: each as a process on loopback, and the objects declared in it.

The processes of all kinds (`RabbitMQ3`, `RabbitMQ4`, `Artemis`, `BrokerJ`) have one interface,
`process.Broker`: `start`, `stop`, `kill`, `freeze` and `thaw`, on data of their own. The management
of a broker that may run anywhere has one interface, too, `declaring.BrokerAdmin`: exchanges, queues
and their bounds. `installations` knows where brokers are installed. Only Python's library is
needed, except for Artemis' management, which needs proton.
"""

from feedhandler.lab.brokers.artemis import Artemis, ArtemisAdmin
from feedhandler.lab.brokers.brokerj import BrokerJ, BrokerJAdmin
from feedhandler.lab.brokers.declaring import BrokerAdmin, BrokerFailed
from feedhandler.lab.brokers.installations import Absent
from feedhandler.lab.brokers.process import USER, VHOST, Broker
from feedhandler.lab.brokers.rabbitmq import (
    RabbitMQ,
    RabbitMQ3,
    RabbitMQ3Admin,
    RabbitMQ4,
    RabbitMQ4Admin,
    RabbitMQAdmin,
)

__all__ = [
    "USER",
    "VHOST",
    "Absent",
    "Artemis",
    "ArtemisAdmin",
    "Broker",
    "BrokerAdmin",
    "BrokerFailed",
    "BrokerJ",
    "BrokerJAdmin",
    "RabbitMQ",
    "RabbitMQ3",
    "RabbitMQ3Admin",
    "RabbitMQ4",
    "RabbitMQ4Admin",
    "RabbitMQAdmin",
]
