"""Queues that are serial per key, parallel across keys, and exactly once.

`consume` works on a queue's messages, `producer` puts messages that count once, `create` makes a
queue: clients of a node. The queue itself is in the other modules here (`queue`: its rules).
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.amqp.working.consume import Consumption as Consumption
    from feedhandler.amqp.working.consume import Reject as Reject
    from feedhandler.amqp.working.consume import consume as consume
    from feedhandler.amqp.working.manage import ask as ask
    from feedhandler.amqp.working.manage import create as create
    from feedhandler.amqp.working.messages import Message as Message
    from feedhandler.amqp.working.produce import Producer as Producer
    from feedhandler.amqp.working.produce import Refused as Refused
    from feedhandler.amqp.working.produce import producer as producer
    from feedhandler.amqp.working.transactions import Output as Output
    from feedhandler.keyed.definition import Definition as Definition

__getattr__ = lazy_names(__name__)
