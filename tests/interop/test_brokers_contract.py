"""The behaviour of each broker that the gateway builds upon: addresses, routing, memory.

Nothing of ours but the kit is in these tests: stock clients send and receive.
"""

from typing import Any

import pytest
from proton import Message

from tests.support.brokers import BROKERS, Broker, BrokerJ, RabbitMQ3, RabbitMQ4
from tests.support.brokers.clients import Attempt, connected, consume

#: Where to send for one key of an exchange.
ADDRESSES = {
    "rabbitmq-3": "/exchange/{exchange}/{key}",
    "rabbitmq-4": "/exchanges/{exchange}/{key}",
    "artemis": "{exchange}.{key}",
    "qpid": "{exchange}/{key}",
}
#: How many messages a sender may have on its way at first.
CREDIT = {"rabbitmq-3": 65536, "rabbitmq-4": 170, "artemis": 1000, "qpid": 20000}

each_broker = pytest.mark.parametrize("name", BROKERS)
both_rabbits = pytest.mark.parametrize("name", ["rabbitmq3", "rabbitmq4"])


def message(body: str = "", **more: Any) -> Message:
    """One data section, durable."""
    return Message(body=body.encode(), durable=True, inferred=True, **more)


def bodies(broker: Broker, queue: str) -> list[str]:
    return [bytes(message.body).decode() for message in consume(broker, queue)]


def prepared(request: pytest.FixtureRequest, name: str, exchange: str, key: str) -> Broker:
    """A broker with an exchange, and a queue of its name bound to it."""
    broker = request.getfixturevalue(name)
    broker.exchange(exchange)
    broker.queue(f"{exchange}.queue", exchange, key)
    return broker


@each_broker
def test_a_broker_routes_by_topic_and_gives_back_each_message_once_in_order(
    request: pytest.FixtureRequest, name: str
) -> None:
    broker = prepared(request, name, "topics", "euronext.#")
    broker.queue("topics.some", "topics", "euronext.104.*")
    wanted = [str(number) for number in range(50)]
    with connected(broker) as connection:
        for key, part in (("euronext.104.7", wanted[:25]), ("euronext.105", wanted[25:])):
            address = ADDRESSES[broker.kind].format(exchange="topics", key=key)
            sender = connection.create_sender(address)
            for body in part:
                sender.send(message(body, subject=key))
    assert bodies(broker, "topics.queue") == wanted
    assert bodies(broker, "topics.some") == wanted[:25]
    assert bodies(broker, "topics.queue") == []


@each_broker
def test_a_broker_grants_the_credit_that_the_publisher_reckons_with(
    request: pytest.FixtureRequest, name: str
) -> None:
    broker = prepared(request, name, "credit", "some")
    address = ADDRESSES[broker.kind].format(exchange="credit", key="some")
    assert Attempt(broker, address, message("x")).credit == CREDIT[broker.kind]
    assert bodies(broker, "credit.queue") == ["x"]


# The first version's addresses, which 4.0 understands too unless the configuration forbids them.


@both_rabbits
def test_an_address_of_the_first_version_names_an_exchange_and_a_key(
    request: pytest.FixtureRequest, name: str
) -> None:
    broker = prepared(request, name, "first", "a.#")
    for address, subject in (
        ("/exchange/first/a.1", None),
        ("/exchange/first", "a.2"),
        ("/amq/queue/first.queue", None),
    ):
        assert Attempt(broker, address, message(address, subject=subject)).outcome == "accepted"
    refused = Attempt(broker, "/exchange/no-such/a.1", message())
    assert (refused.outcome, refused.condition) == ("refused", "amqp:not-found")
    arrived = ["/exchange/first/a.1", "/exchange/first", "/amq/queue/first.queue"]
    assert bodies(broker, "first.queue") == arrived


def test_rabbitmq_3_accepts_what_no_queue_gets(rabbitmq3: RabbitMQ3) -> None:
    rabbitmq3.exchange("nowhere")
    assert Attempt(rabbitmq3, "/exchange/nowhere/a", message()).outcome == "accepted"
    assert Attempt(rabbitmq3, "/amq/queue/no-such-queue", message()).outcome == "accepted"


def test_rabbitmq_3_has_no_target_that_each_message_names(rabbitmq3: RabbitMQ3) -> None:
    rabbitmq3.exchange("unnamed")
    refused = Attempt(rabbitmq3, None, message(address="/exchange/unnamed/a"))
    assert (refused.outcome, refused.condition) == ("refused", "amqp:invalid-field")


def test_rabbitmq_3_makes_a_queue_of_a_misspelt_name(rabbitmq3: RabbitMQ3) -> None:
    assert Attempt(rabbitmq3, "/queue/misspelt", message("lost to all")).outcome == "accepted"
    assert bodies(rabbitmq3, "misspelt") == ["lost to all"]


def test_rabbitmq_3_does_not_know_the_second_version(rabbitmq3: RabbitMQ3) -> None:
    rabbitmq3.exchange("second3")
    refused = Attempt(rabbitmq3, "/exchanges/second3/a.1", message())
    assert (refused.outcome, refused.condition) == ("refused", "amqp:invalid-field")


# The second version's.


def test_rabbitmq_4_takes_the_key_from_the_address_alone(
    request: pytest.FixtureRequest, rabbitmq4: RabbitMQ4
) -> None:
    prepared(request, "rabbitmq4", "second", "a.#")
    rabbitmq4.queue("second.empty", "second", "")
    for address in ("/exchanges/second/a.1", "/exchanges/second", "/queues/second.queue"):
        attempt = Attempt(rabbitmq4, address, message(address, subject="a.2"))
        assert attempt.outcome == "accepted", address
    assert bodies(rabbitmq4, "second.queue") == ["/exchanges/second/a.1", "/queues/second.queue"]
    assert bodies(rabbitmq4, "second.empty") == ["/exchanges/second"]


def test_rabbitmq_4_routes_each_message_by_its_own_address_where_the_target_is_null(
    request: pytest.FixtureRequest, rabbitmq4: RabbitMQ4
) -> None:
    prepared(request, "rabbitmq4", "null", "a.*")
    for key in ("a.1", "a.2"):
        there = message(key, address=f"/exchanges/null/{key}")
        assert Attempt(rabbitmq4, None, there).outcome == "accepted"
    astray = Attempt(rabbitmq4, None, message(address="/exchanges/null/b"))
    assert astray.outcome == "released"
    missing = Attempt(rabbitmq4, None, message(address="/exchanges/no-such/b"))
    assert missing.outcome == "rejected"
    assert bodies(rabbitmq4, "null.queue") == ["a.1", "a.2"]


def test_rabbitmq_4_unescapes_names_and_keys(rabbitmq4: RabbitMQ4) -> None:
    rabbitmq4.exchange("with space")
    rabbitmq4.queue("escaped", "with space", "a/b.%")
    attempt = Attempt(rabbitmq4, "/exchanges/with%20space/a%2Fb.%25", message("there"))
    assert attempt.outcome == "accepted"
    assert bodies(rabbitmq4, "escaped") == ["there"]


def test_rabbitmq_4_releases_what_no_queue_gets_and_refuses_what_is_not_there(
    rabbitmq4: RabbitMQ4,
) -> None:
    rabbitmq4.exchange("nowhere")
    assert Attempt(rabbitmq4, "/exchanges/nowhere/a", message()).outcome == "released"
    for address in ("/exchanges/no-such/a", "/queues/no-such"):
        refused = Attempt(rabbitmq4, address, message())
        assert (refused.outcome, refused.condition) == ("refused", "amqp:not-found")


# Broker-J and Artemis.


def test_broker_j_takes_the_key_from_the_address_or_else_from_the_subject(
    request: pytest.FixtureRequest, brokerj: BrokerJ
) -> None:
    prepared(request, "brokerj", "keys", "a.*")
    for address, more in (
        ("keys/a.1", {"subject": "b"}),
        ("keys", {"subject": "a.2"}),
        (None, {"address": "keys/a.3"}),
        (None, {"address": "keys", "subject": "a.4"}),
    ):
        attempt = Attempt(brokerj, address, message(str(address), **more))
        assert attempt.outcome == "accepted", address
    assert len(bodies(brokerj, "keys.queue")) == 4
    refused = Attempt(brokerj, "no-such/a", message())
    assert (refused.outcome, refused.condition) == ("refused", "amqp:not-found")


def test_broker_j_says_whether_an_exchange_discards_or_rejects_what_no_queue_gets(
    brokerj: BrokerJ,
) -> None:
    brokerj.exchange("nowhere")
    lost = Attempt(brokerj, "nowhere", message())
    assert (lost.outcome, "DISCARD_UNROUTABLE" in lost.capabilities) == ("accepted", True)
    brokerj.exchange("strict", unroutableMessageBehaviour="REJECT")
    attempt = Attempt(brokerj, "strict", message(), outcomes=True)
    assert (attempt.outcome, "REJECT_UNROUTABLE" in attempt.capabilities) == ("rejected", True)
    # Who does not say that it can bear a rejection loses the link.
    refused = Attempt(brokerj, "strict", message())
    assert (refused.outcome, refused.condition) == ("refused", "amqp:not-found")


def test_artemis_makes_an_address_of_any_name_and_accepts_what_no_queue_gets(
    request: pytest.FixtureRequest,
) -> None:
    broker = prepared(request, "artemis", "made", "a.#")
    for key in ("a.1", "b.1"):
        assert Attempt(broker, f"made.{key}", message(key)).outcome == "accepted"
        there = message(f"to {key}", address=f"made.{key}")
        assert Attempt(broker, None, there).outcome == "accepted"
    assert bodies(broker, "made.queue") == ["a.1", "to a.1"]
