"""Publishing to a real Broker-J: exchanges that are believed only where they reject."""

import asyncio

from broker_kit import BrokerJ
from broker_kit.clients import consume
from node_kit import in_thread
from publish_kit import check_group_sequences, check_stream, publishing, sequences


def test_packets_and_batches_arrive_byte_for_byte_and_in_order(brokerj: BrokerJ) -> None:
    broker = brokerj
    broker.exchange("publish.fine", unroutableMessageBehaviour="REJECT")
    broker.queue("publish.fine", "publish.fine", "#")
    broker.queue("publish.105", "publish.fine", "euronext.105")

    async def story() -> None:
        async with publishing(broker, exchange="publish.fine", require_route=True) as rig:
            await rig.both(1, 400)
            await rig.confirmed()
            assert (rig.seen["kind"], rig.seen["failures"]) == ("qpid", 0)
            found = await in_thread(consume, broker, "publish.fine")
            for service in (104, 105):
                check_stream(found, 400, service)
            check_group_sequences(found)
            assert sequences(await in_thread(consume, broker, "publish.105"), 104) == []

    asyncio.run(story())


def test_an_exchange_that_drops_what_it_cannot_route_is_not_published_to(brokerj: BrokerJ) -> None:
    broker = brokerj
    broker.exchange("publish.drops")

    async def story() -> None:
        async with publishing(broker, exchange="publish.drops", require_route=True) as rig:
            await rig.stream(1, 3)
            wanted = "set its unroutableMessageBehaviour to REJECT"
            await rig.until(lambda: wanted in rig.seen["reason"], "not trusted")
            assert rig.seen["sent"] == 0

    asyncio.run(story())


def test_what_no_queue_is_bound_for_is_rejected_and_never_confirmed(brokerj: BrokerJ) -> None:
    broker = brokerj
    broker.exchange("publish.nowhere", unroutableMessageBehaviour="REJECT")
    broker.queue("publish.104", "publish.nowhere", "euronext.104")

    async def story() -> None:
        async with publishing(broker, exchange="publish.nowhere", quality=False) as rig:
            await rig.both(1, 3)
            await rig.until(lambda: rig.seen["abandoned"] == 3, "given up")
            assert rig.seen["confirmed"] == 3
            assert rig.seen["rejected"] == 5 * 3
            assert "Unknown destination" in rig.told[-1]
            assert sequences(await in_thread(consume, broker, "publish.104")) == [1, 2, 3]

    asyncio.run(story())


def test_a_full_queue_rejects_and_takes_it_when_there_is_room(brokerj: BrokerJ) -> None:
    broker = brokerj
    full = {"type": "standard", "durable": True, "overflowPolicy": "REJECT"}
    broker.api("PUT", "queue", "publish.full", {**full, "maximumQueueDepthMessages": 2})

    async def story() -> None:
        async with publishing(broker, queue="publish.full", quality=False) as rig:
            await rig.stream(1, 4)
            await rig.until(lambda: rig.seen["rejected"] > 0, "rejected")
            await in_thread(broker.api, "POST", "queue", "publish.full/clearQueue", {})
            await rig.confirmed()
            assert (rig.seen["confirmed"], rig.seen["abandoned"]) == (4, 0)

    asyncio.run(story())
