"""What differs between kinds of brokers: how they are known, how they are addressed.

One function a question, so that a further kind is a further line in each. A kind is the word that
stands in the configuration.

    rabbitmq-3   RabbitMQ up to 3.13 with its AMQP 1.0 plugin: addresses of version 1. It settles
                 as accepted what no queue is bound for, and publishes by way of AMQP 0-9-1
"""

from urllib.parse import quote

RABBITMQ_3 = "rabbitmq-3"
KINDS = (RABBITMQ_3,)


def kind_of(properties: dict[str, str]) -> str | None:
    """The kind of a broker that opens its connection with these properties; None: not known."""
    if properties.get("product") == "RabbitMQ" and properties.get("version", "").startswith("3."):
        return RABBITMQ_3
    return None


def product_of(properties: dict[str, str]) -> str:
    """What a broker calls itself, for people."""
    words = [properties.get("product", ""), properties.get("version", "")]
    return " ".join(filter(None, words)) or "a broker that does not say what it is"


def hostname_of(host: str, vhost: str) -> str:
    """What to open a connection with: brokers that have virtual hosts look for one in there.

    RabbitMQ wants its name behind `vhost:`, and takes anything else for the default one. It is
    sent before the broker has said what it is.
    """
    return f"vhost:{vhost}" if vhost else host


def target_of(kind: str, exchange: str) -> str:
    """The address of a link whose messages go to `exchange`, each by its subject as routing key.

    Version 1, `/exchange/X` (deps/rabbitmq_amqp1_0/README.md, "Routing and Addressing"). The
    broker ends the session with amqp:not-found where there is no such exchange.
    """
    assert kind == RABBITMQ_3, kind
    return f"/exchange/{quote(exchange, safe='')}"


def hides_unroutable(kind: str) -> bool:
    """Whether it settles as accepted what it had no queue for."""
    return kind == RABBITMQ_3
