"""Publishing to a real RabbitMQ 4: many keys over one link, and what it says of each message."""

from urllib.parse import quote

import pytest

from feedhandler.amqp.queueing import unsettled_map
from tests.support.brokers import VHOST, RabbitMQ4
from tests.support.brokers.clients import consume
from tests.support.node import in_thread
from tests.support.publish import (
    check_grain,
    check_group_sequences,
    check_stream,
    data,
    publishing,
    sequences,
    tag,
)


@pytest.mark.parametrize("grain", ["packet", "batch"])
async def test_packets_and_batches_arrive_byte_for_byte_and_in_order(
    rabbitmq4: RabbitMQ4, grain: str
) -> None:
    broker, name = rabbitmq4, f"publish {grain}/%"
    queue = f"publish.{grain}"
    broker.exchange(name)
    broker.queue(queue, name, "#")
    broker.queue(f"{queue}.105", name, "euronext.105")
    async with publishing(broker, exchange=name, grain=grain, require_route=True) as rig:
        await rig.both(1, 400)
        await rig.confirmed()
        assert rig.seen["kind"] == "rabbitmq-4"
        assert rig.seen["confirmed"] == rig.seen["sent"]
        found = await in_thread(consume, broker, queue)
        assert len(found) == rig.seen["sent"]
        for service in (104, 105):
            check_grain(found, 400, grain, service)
        check_group_sequences(found)
        assert sequences(await in_thread(consume, broker, f"{queue}.105"), 104) == []


async def test_each_symbol_has_its_own_key(rabbitmq4: RabbitMQ4) -> None:
    broker = rabbitmq4
    broker.exchange("publish.symbols")
    broker.queue("publish.symbols", "publish.symbols", "#")
    broker.queue("publish.1003", "publish.symbols", "euronext.104.1003")
    async with publishing(broker, exchange="publish.symbols", grain="message") as rig:
        await rig.both(1, 100)
        await rig.confirmed()
        found = await in_thread(consume, broker, "publish.symbols")
        check_group_sequences(found)
        wanted = [tag(m) for m in data(found) if m.subject == "euronext.104.1003"]
        one = await in_thread(consume, broker, "publish.1003")
        assert [tag(message) for message in one] == wanted


async def test_what_no_queue_is_bound_for_is_released_and_never_confirmed(
    rabbitmq4: RabbitMQ4,
) -> None:
    broker = rabbitmq4
    broker.exchange("publish.nowhere")
    broker.queue("publish.104", "publish.nowhere", "euronext.104")
    async with publishing(broker, exchange="publish.nowhere", quality=False) as rig:
        await rig.both(1, 3)
        await rig.until(lambda: rig.seen["abandoned"] == 3, "given up")
        await rig.until(lambda: rig.seen["confirmed"] == 3, "confirmed")
        assert rig.seen["released"] == 5 * 3
        assert sequences(await in_thread(consume, broker, "publish.104")) == [1, 2, 3]


async def test_a_full_queue_rejects_and_takes_it_when_there_is_room(
    rabbitmq4: RabbitMQ4, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled_map, "TRIES_MAX", 1 << 20)  # room is made however late
    broker = rabbitmq4
    broker.exchange("publish.full")
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    broker.api("PUT", f"queues/{VHOST}/publish.full", {"durable": True, "arguments": limits})
    broker.queue("publish.full.too", "publish.full", "#")
    at = f"bindings/{VHOST}/e/publish.full/q/publish.full"
    broker.api("POST", at, {"routing_key": "#", "arguments": {}})
    async with publishing(broker, exchange="publish.full", quality=False) as rig:
        await rig.stream(1, 3)
        await rig.until(lambda: rig.seen["rejected"] > 0, "rejected")
        await in_thread(broker.api, "DELETE", f"queues/{VHOST}/publish.full/contents")
        await rig.confirmed()
        assert (rig.seen["confirmed"], rig.seen["abandoned"]) == (3, 0)


async def test_an_exchange_that_is_missing_or_forbidden_is_waited_for(
    rabbitmq4: RabbitMQ4, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled_map, "TRIES_MAX", 1 << 20)  # the queue is bound however late
    broker = rabbitmq4
    broker.api("PUT", "users/weak", {"password": broker.password, "tags": ""})
    nothing = {"configure": "^$", "write": "^$", "read": "^$"}
    broker.api("PUT", f"permissions/{VHOST}/weak", nothing)
    weak = f"amqp://weak:{quote(broker.password, safe='')}@127.0.0.1:{broker.port}/{VHOST}"
    async with publishing(broker, exchange="publish.later", to=weak) as rig:
        await rig.stream(1, 10)
        await rig.until(lambda: "refused for user 'weak'" in rig.seen["reason"], "forbidden")
        allowed = {**nothing, "write": ".*"}
        await in_thread(broker.api, "PUT", f"permissions/{VHOST}/weak", allowed)
        await rig.until(lambda: "no exchange 'publish.later'" in rig.seen["reason"], "missing")
        assert rig.seen["sent"] == 0
        await in_thread(broker.exchange, "publish.later")
        await in_thread(broker.queue, "publish.later", "publish.later", "#")
        await rig.confirmed()
        # What came before the queue was bound was released, and comes behind the rest.
        found = await in_thread(consume, broker, "publish.later")
        assert sorted(sequences(found)) == [*range(1, 11)]


async def test_a_queue_takes_everything(rabbitmq4: RabbitMQ4) -> None:
    broker = rabbitmq4
    broker.api("PUT", f"queues/{VHOST}/publish%2Fall", {"durable": True})
    async with publishing(broker, queue="publish/all") as rig:
        await rig.both(1, 50)
        await rig.confirmed()
        check_stream(await in_thread(consume, broker, "publish/all"), 50, 105)
