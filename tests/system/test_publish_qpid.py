"""Publishing to a real Broker-J: exchanges that are believed only where they reject."""

import pytest

from feedhandler.amqp.queueing import unsettled_map
from tests.support.brokers import BrokerJ
from tests.support.brokers.clients import consume
from tests.support.node import in_thread
from tests.support.publish import GRAINS, check_grain, check_group_sequences, publishing, sequences


@pytest.mark.parametrize("grain", GRAINS)
async def test_every_grain_arrives_byte_for_byte_and_in_order(brokerj: BrokerJ, grain: str) -> None:
    broker, name = brokerj, f"publish.{grain}"
    broker.exchange(name, unroutableMessageBehaviour="REJECT")
    broker.queue(name, name, "#")
    broker.queue(f"{name}.105", name, "euronext.105.#")
    async with publishing(broker, exchange=name, grain=grain, require_route=True) as rig:
        await rig.both(1, 200)
        await rig.confirmed()
        assert (rig.seen["kind"], rig.seen["failures"]) == ("qpid", 0)
        found = await in_thread(consume, broker, name)
        for service in (104, 105):
            check_grain(found, 200, grain, service)
        check_group_sequences(found)
        one = await in_thread(consume, broker, f"{name}.105")
        check_grain(one, 200, grain, 105)
        assert sequences(one, 104) == []


async def test_an_exchange_that_drops_what_it_cannot_route_is_not_published_to(
    brokerj: BrokerJ,
) -> None:
    broker = brokerj
    broker.exchange("publish.drops")
    async with publishing(broker, exchange="publish.drops", require_route=True) as rig:
        await rig.stream(1, 3)
        wanted = "set its unroutableMessageBehaviour to REJECT"
        await rig.until(lambda: wanted in rig.seen["reason"], "not trusted")
        assert rig.seen["sent"] == 0


async def test_what_no_queue_is_bound_for_is_rejected_and_never_confirmed(brokerj: BrokerJ) -> None:
    broker = brokerj
    broker.exchange("publish.nowhere", unroutableMessageBehaviour="REJECT")
    broker.queue("publish.104", "publish.nowhere", "euronext.104")
    async with publishing(broker, exchange="publish.nowhere", quality=False) as rig:
        await rig.both(1, 3)
        await rig.until(lambda: rig.seen["abandoned"] == 3, "given up")
        await rig.until(lambda: rig.seen["confirmed"] == 3, "confirmed")
        assert rig.seen["rejected"] == 5 * 3
        assert "Unknown destination" in rig.reported[-1]
        assert sequences(await in_thread(consume, broker, "publish.104")) == [1, 2, 3]


async def test_a_full_queue_rejects_and_takes_it_when_there_is_room(
    brokerj: BrokerJ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled_map, "TRIES_MAX", 1 << 20)  # room is made however late
    broker = brokerj
    full = {"type": "standard", "durable": True, "overflowPolicy": "REJECT"}
    broker.api("PUT", "queue", "publish.full", {**full, "maximumQueueDepthMessages": 2})
    async with publishing(broker, queue="publish.full", quality=False) as rig:
        await rig.stream(1, 4)
        await rig.until(lambda: rig.seen["rejected"] > 0, "rejected")
        await in_thread(broker.api, "POST", "queue", "publish.full/clearQueue", {})
        await rig.confirmed()
        assert (rig.seen["confirmed"], rig.seen["abandoned"]) == (4, 0)
