"""Queues that are serial per key, parallel across keys, and exactly once.

`consume` works on a queue's messages, `producer` puts messages that count once, `create` makes a
queue: clients of a node. The queue itself is in the other modules here (`queue`: its rules).
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.amqp.working.consume import Consumption, Reject, consume
    from feedhandler.amqp.working.manage import ask, create
    from feedhandler.amqp.working.messages import Message
    from feedhandler.amqp.working.produce import Producer, Refused, producer
    from feedhandler.amqp.working.transactions import Output
    from feedhandler.keyed.definition import Definition

__all__ = [
    "Consumption",
    "Definition",
    "Message",
    "Output",
    "Producer",
    "Refused",
    "Reject",
    "ask",
    "consume",
    "create",
    "producer",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Consumption": ".amqp.working.consume",
        "Definition": "definition",
        "Message": ".amqp.working.messages",
        "Output": ".amqp.working.transactions",
        "Producer": ".amqp.working.produce",
        "Refused": ".amqp.working.produce",
        "Reject": ".amqp.working.consume",
        "ask": ".amqp.working.manage",
        "consume": ".amqp.working.consume",
        "create": ".amqp.working.manage",
        "producer": ".amqp.working.produce",
    },
)
