"""Publishing to a real Artemis: an address for each key, or one queue."""

import json

import pytest

from tests.support.brokers import Artemis
from tests.support.brokers.clients import consume
from tests.support.node import in_thread
from tests.support.publish import (
    check_grain,
    check_group_sequences,
    check_stream,
    data,
    publishing,
    tag,
)


async def test_each_key_is_an_address_and_wildcards_find_them(artemis: Artemis) -> None:
    broker = artemis
    broker.queue("publish.all", "publish.md", "#")
    broker.queue("publish.one", "publish.md", "euronext.104.1003")
    async with publishing(broker, topic="publish.md", grain="message") as rig:
        await rig.both(1, 100)
        await rig.confirmed()
        assert rig.seen["kind"] == "artemis"
        found = await in_thread(consume, broker, "publish.all")
        check_group_sequences(found)
        for service in (104, 105):
            check_grain(found, 100, "message", service)
        wanted = [tag(m) for m in data(found) if m.subject == "euronext.104.1003"]
        one = await in_thread(consume, broker, "publish.one")
        assert [tag(message) for message in one] == wanted


@pytest.mark.parametrize("grain", ["packet", "batch"])
async def test_packets_and_batches_arrive_byte_for_byte_and_in_order(
    artemis: Artemis, grain: str
) -> None:
    broker, topic = artemis, f"publish.{grain}"
    broker.queue(topic, topic, "#")
    async with publishing(broker, topic=topic, grain=grain) as rig:
        await rig.both(1, 400)
        await rig.confirmed()
        found = await in_thread(consume, broker, topic)
        for service in (104, 105):
            check_grain(found, 400, grain, service)
        check_group_sequences(found)


async def test_a_queue_comes_into_being_and_takes_everything(artemis: Artemis) -> None:
    broker = artemis
    async with publishing(broker, queue="publish.queue") as rig:
        await rig.both(1, 100)
        await rig.confirmed()
        info = await in_thread(broker.operation, "broker", "getAddressInfo", "publish.queue")
        assert "ANYCAST" in info
        broker._addresses["publish.queue"] = "publish.queue"
        check_stream(await in_thread(consume, broker, "publish.queue"), 100, 105)


async def test_a_full_address_rejects_and_takes_it_when_there_is_room(artemis: Artemis) -> None:
    broker = artemis
    settings = {"maxSizeBytes": 3000, "pageSizeBytes": 1000, "addressFullMessagePolicy": "FAIL"}
    broker.operation("broker", "addAddressSettings", "publish.full", json.dumps(settings))
    async with publishing(broker, queue="publish.full", quality=False) as rig:
        await rig.stream(1, 6)
        await rig.until(lambda: rig.seen["rejected"] > 0, "rejected")
        await in_thread(broker.operation, "queue.publish.full", "removeAllMessages")
        await rig.until(lambda: rig.seen["confirmed"] + rig.seen["abandoned"] == 6, "answered")
        assert rig.seen["confirmed"] > 1, "some came again and were taken"
