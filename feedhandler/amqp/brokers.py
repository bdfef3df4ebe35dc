"""What differs between kinds of brokers: how they are known, and how each wants to be addressed.

One function or table a question, so that a further kind is a further line in each. A kind is the
word that stands in the configuration.

    rabbitmq-3   RabbitMQ up to 3.13 with its AMQP 1.0 plugin: addresses of version 1; routes by the
                 subject. Settles as accepted what no queue is bound for
    rabbitmq-4   RabbitMQ 4: addresses of version 2, percent-encoded. A link to an exchange routes
                 all it brings by one key, so each message says in its `to` where it goes
    artemis      ActiveMQ Artemis: a topic is an address for each routing key, said in `to`; a queue
                 an address of its own. Both come into being as they are used
    qpid         Apache Qpid Broker-J: exchanges, routing by the subject, and queues. An exchange
                 drops what no queue is bound for and says accepted, unless it is configured not to

Addresses are built here and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

RABBITMQ_3, RABBITMQ_4, ARTEMIS, QPID = "rabbitmq-3", "rabbitmq-4", "artemis", "qpid"
KINDS = (RABBITMQ_3, RABBITMQ_4, ARTEMIS, QPID)

#: What messages go to; the word is the key in the configuration.
Form = Literal["exchange", "topic", "queue"]

#: The message annotation that tells Artemis to treat the address in `to` as a topic's: the key
#: `x-opt-jms-dest` with the byte 1 (amqp-bindmap-jms, 3.2.1).
_AS_TOPIC = b"\xa3\x0ex-opt-jms-dest\x51\x01"


#: What a link to an exchange of Broker-J is told with whose unroutableMessageBehaviour is DISCARD.
_DISCARD_UNROUTABLE = "DISCARD_UNROUTABLE"


@dataclass(frozen=True)
class Way:
    """How to reach what messages go to: the target of the link, and what goes around each message.

    `address`: the target's, empty where each message has its own. `capability`: what the target is
    to be able to do. `durable`: a queue that comes into being is to be. `outcomes`: say which
    outcomes we understand. `to`: the address of a message by its subject. `annotations`: an encoded
    annotation, key and value. `probe`: a target to attach to first, to see that it is there and may
    be written to.
    """

    address: str = ""
    capability: str = ""
    durable: bool = False
    outcomes: bool = False
    to: Callable[[str], str] | None = None
    annotations: bytes = b""
    probe: str = ""


def _exchange_1(name: str, declare: bool) -> Way:
    """`/exchange/X`, by the subject (rabbitmq_amqp1_0/README.md, "Routing and Addressing")."""
    return Way(f"/exchange/{_quoted(name)}")


def _queue_1(name: str, declare: bool) -> Way:
    """`/queue/Q` declares the queue, durable as the target is; `/amq/queue/Q` wants it there."""
    return Way(
        f"/queue/{_quoted(name)}" if declare else f"/amq/queue/{_quoted(name)}", durable=True
    )


def _exchange_4(name: str, declare: bool) -> Way:
    """`/exchanges/X/KEY` in each message (rabbitmq.com/docs/amqp, "Target Address v2")."""
    exchange = f"/exchanges/{_quoted(name)}"
    return Way(to=lambda subject: f"{exchange}/{_quoted(subject)}", probe=exchange)


def _queue_4(name: str, declare: bool) -> Way:
    return Way(f"/queues/{_quoted(name)}")


def _topic_artemis(name: str, declare: bool) -> Way:
    """`NAME.KEY` in each message, so that consumers can use wildcards behind the name."""
    return Way(to=lambda subject: f"{name}.{subject}", annotations=_AS_TOPIC)


def _queue_artemis(name: str, declare: bool) -> Way:
    return Way(name, capability="queue")


def _exchange_qpid(name: str, declare: bool) -> Way:
    """The exchange's name, by the subject. It closes the link where it would reject a message, but
    to who says to understand that."""
    return Way(name, outcomes=True)


def _queue_qpid(name: str, declare: bool) -> Way:
    return Way(name, outcomes=True)


_WAYS: dict[tuple[str, str], Callable[[str, bool], Way]] = {
    (RABBITMQ_3, "exchange"): _exchange_1,
    (RABBITMQ_3, "queue"): _queue_1,
    (RABBITMQ_4, "exchange"): _exchange_4,
    (RABBITMQ_4, "queue"): _queue_4,
    (ARTEMIS, "topic"): _topic_artemis,
    (ARTEMIS, "queue"): _queue_artemis,
    (QPID, "exchange"): _exchange_qpid,
    (QPID, "queue"): _queue_qpid,
}
#: What is asked for, what there is not; what to say instead.
_INSTEAD: dict[tuple[str, str], tuple[str, str]] = {
    (RABBITMQ_3, "topic"): ("RabbitMQ has no topics", 'exchange = "amq.topic"'),
    (RABBITMQ_4, "topic"): ("RabbitMQ has no topics", 'exchange = "amq.topic"'),
    (QPID, "topic"): ("Broker-J has no topics", 'exchange = "amq.topic"'),
    (ARTEMIS, "exchange"): ("Artemis has no exchanges", 'topic = "market", or queue = "..."'),
}


def way_to(kind: str, form: Form, name: str, declare: bool) -> Way:
    """How to reach an exchange, topic or queue of a broker of this kind; `unlike` tells which there
    are. `declare`: have it made where it is missing and the link can."""
    return _WAYS[kind, form](name, declare)


def unlike(kind: str, form: str) -> tuple[str, str] | None:
    """Why such a broker has not what is asked for, and what to write instead; None where it has."""
    return _INSTEAD.get((kind, form))


def kind_of(properties: dict[str, str]) -> str | None:
    """The kind of a broker that opens its connection with these properties; None: not known."""
    product = properties.get("product", "").lower()
    major = properties.get("version", "").partition(".")[0]
    if product == "rabbitmq":
        return {"3": RABBITMQ_3, "4": RABBITMQ_4}.get(major)
    if "artemis" in product:
        return ARTEMIS
    return QPID if "qpid" in product else None


def product_of(properties: dict[str, str]) -> str:
    """What a broker calls itself, for people."""
    words = [properties.get("product", ""), properties.get("version", "")]
    return " ".join(filter(None, words)) or "a broker that does not say what it is"


def hostname_of(kind: str, host: str, vhost: str) -> str:
    """What to open a connection with: brokers that have virtual hosts look for one in there.

    RabbitMQ wants its name behind `vhost:`, and takes anything else for the default one; Broker-J
    wants the name alone. It is sent before the broker has said what it is: where nobody else has
    either (`kind` is ""), RabbitMQ's way is tried first.
    """
    if not vhost:
        return host
    return vhost if kind in (QPID, ARTEMIS) else f"vhost:{vhost}"


def hides_unroutable(kind: str) -> bool:
    """Whether it settles as accepted what there is no queue for, and does not say beforehand."""
    return kind == RABBITMQ_3


def drops_unroutable(capabilities: tuple[str, ...]) -> bool:
    """Whether the target of a link says that it settles as accepted what it has no queue for."""
    return _DISCARD_UNROUTABLE in capabilities


def _quoted(name: str) -> str:
    """Percent-encoded, slashes too."""
    return quote(name, safe="")
