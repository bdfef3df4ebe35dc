"""Differences between kinds of brokers: how each is recognised, and how it is addressed.

One function or table for each difference, so that a further kind is a further line in each. A kind
is the word of the configuration.

    rabbitmq-3   RabbitMQ up to 3.13 with its AMQP 1.0 plugin: addresses of version 1; routes by the
                 subject. Settles as accepted what no queue is bound for
    rabbitmq-4   RabbitMQ 4: addresses of version 2, percent-encoded. A link to an exchange routes
                 all it brings by one key, so each message says in its `to` where it goes
    artemis      ActiveMQ Artemis: a topic is an address for each routing key, said in `to`; a queue
                 an address of its own. Both are created as they are used
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

#: What messages are sent to; the word is the key in the configuration.
Form = Literal["exchange", "topic", "queue"]

#: The message annotation that makes Artemis treat the address in `to` as a topic's: the key
#: `x-opt-jms-dest` with the byte 1 (amqp-bindmap-jms, 3.2.1).
_AS_TOPIC = b"\xa3\x0ex-opt-jms-dest\x51\x01"


#: Capability that Broker-J announces for an exchange whose unroutableMessageBehaviour is DISCARD.
_DISCARD_UNROUTABLE = "DISCARD_UNROUTABLE"


@dataclass(frozen=True)
class Way:
    """Way to a broker's exchange, topic or queue: the link's target, and what is added to messages.

    `address`: the target's, empty where each message has its own. `capability`: the target's
    terminus capability. `durable`: a queue that is created is to be durable. `outcomes`: announce
    the outcomes that we understand. `to`: the address of a message by its subject. `annotations`:
    an encoded annotation, key and value. `probe`: a target to attach to first, to see that it
    exists and may be written to.
    """

    address: str = ""
    capability: str = ""
    durable: bool = False
    outcomes: bool = False
    to: Callable[[str], str] | None = None
    annotations: bytes = b""
    probe: str = ""


def _quoted(name: str) -> str:
    """Percent-encode a name, slashes too."""
    return quote(name, safe="")


def _exchange_4(name: str, declare: bool) -> Way:
    """Address each message to `/exchanges/X/KEY` (rabbitmq.com/docs/amqp, "Target Address v2")."""
    exchange = f"/exchanges/{_quoted(name)}"
    return Way(to=lambda subject: f"{exchange}/{_quoted(subject)}", probe=exchange)


#: By kind and form, from the name and whether to declare it.
_WAYS: dict[tuple[str, str], Callable[[str, bool], Way]] = {
    # Routed by the subject (rabbitmq_amqp1_0/README.md, "Routing and Addressing").
    (RABBITMQ_3, "exchange"): lambda name, _: Way(f"/exchange/{_quoted(name)}"),
    # `/queue/Q` declares the queue, `/amq/queue/Q` must exist.
    (RABBITMQ_3, "queue"): lambda name, declare: Way(
        f"{'' if declare else '/amq'}/queue/{_quoted(name)}", durable=True
    ),
    (RABBITMQ_4, "exchange"): _exchange_4,
    (RABBITMQ_4, "queue"): lambda name, _: Way(f"/queues/{_quoted(name)}"),
    # `NAME.KEY` in each message, so that consumers can use wildcards behind the name.
    (ARTEMIS, "topic"): lambda name, _: Way(
        to=lambda subject: f"{name}.{subject}", annotations=_AS_TOPIC
    ),
    (ARTEMIS, "queue"): lambda name, _: Way(name, capability="queue"),
    # Routed by the subject. Broker-J closes the link where it would reject a message, unless the
    # link announces that it understands that outcome.
    (QPID, "exchange"): lambda name, _: Way(name, outcomes=True),
    (QPID, "queue"): lambda name, _: Way(name, outcomes=True),
}
#: By kind and form that does not exist: why, and what to write instead.
_INSTEAD: dict[tuple[str, str], tuple[str, str]] = {
    (RABBITMQ_3, "topic"): ("RabbitMQ has no topics", 'exchange = "amq.topic"'),
    (RABBITMQ_4, "topic"): ("RabbitMQ has no topics", 'exchange = "amq.topic"'),
    (QPID, "topic"): ("Broker-J has no topics", 'exchange = "amq.topic"'),
    (ARTEMIS, "exchange"): ("Artemis has no exchanges", 'topic = "market", or queue = "..."'),
}


def way_to(kind: str, form: Form, name: str, declare: bool) -> Way:
    """Return how to reach an exchange, topic or queue of a broker of this kind. `declare`: have it
    created where it is missing and the link can. Raises KeyError for what `unlike` rejects."""
    return _WAYS[kind, form](name, declare)


def unlike(kind: str, form: str) -> tuple[str, str] | None:
    """Return why such a broker lacks what is asked for, and what to write instead; None where it
    has it."""
    return _INSTEAD.get((kind, form))


def kind_of(properties: dict[str, str]) -> str | None:
    """Return the kind of a broker that opens its connection with these properties; None if
    unknown."""
    product = properties.get("product", "").lower()
    major = properties.get("version", "").partition(".")[0]
    if product == "rabbitmq":
        return {"3": RABBITMQ_3, "4": RABBITMQ_4}.get(major)
    if "artemis" in product:
        return ARTEMIS
    return QPID if "qpid" in product else None


def product_of(properties: dict[str, str]) -> str:
    """Return a broker's product and version, for display."""
    words = [properties.get("product", ""), properties.get("version", "")]
    return " ".join(filter(None, words)) or "a broker that does not say what it is"


def hostname_of(kind: str, host: str, vhost: str) -> str:
    """Return the hostname to open a connection with, which names the virtual host.

    RabbitMQ wants its name behind `vhost:`, and takes anything else for the default one; Broker-J
    wants the name alone. It is sent before the broker has said what it is: where the kind is not
    known from elsewhere either (`kind` is ""), RabbitMQ's way is tried first.
    """
    if not vhost:
        return host
    return vhost if kind in (QPID, ARTEMIS) else f"vhost:{vhost}"


def hides_unroutable(kind: str) -> bool:
    """Return whether it settles as accepted what no queue is bound for, and does not say so
    beforehand."""
    return kind == RABBITMQ_3


def drops_unroutable(capabilities: tuple[str, ...]) -> bool:
    """Return whether the link's target says that it accepts and drops what it has no queue for."""
    return _DISCARD_UNROUTABLE in capabilities
