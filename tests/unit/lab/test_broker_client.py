"""A client of a broker, before the project's own node, which has sources too."""

import asyncio
from typing import Any

import pytest

from feedhandler.codecs.errors import PeerError
from feedhandler.lab.broker_client import BrokerSubscriber
from tests.support.amqp import FEED, STAMP_NS
from tests.support.node import NodeRig


class Taken:
    """Record of delivered batches: sequence numbers by service, and stamps."""

    def __init__(self) -> None:
        self.sequences: dict[int, list[int]] = {}
        self.stamps: list[int] = []

    def __call__(self, batch: Any) -> None:
        self.stamps += batch.stamps.tolist()
        for service, sequence in zip(batch.services, batch.sequences, strict=True):
            self.sequences.setdefault(int(service), []).append(int(sequence))


def url(rig: NodeRig) -> str:
    host, port = rig.node.address
    return f"amqp://{host}:{port}"


async def test_everything_of_every_queue_is_delivered_with_its_stamp() -> None:
    rig = NodeRig(services=(104, 105))
    rig.node.start()
    sources = [f"euronext.{service}?stamp=1&quality=0" for service in (104, 105)]
    taken = Taken()
    async with BrokerSubscriber(url(rig), sources, "packet", FEED) as messages:
        delivering = asyncio.create_task(messages.deliver(taken))
        for channel in (0, 1):
            rig.packets(1, 300, channel)
        await rig.deliver()
        wanted = {service: [*range(1, 301)] for service in (104, 105)}
        await rig.until(lambda: taken.sequences == wanted)
        assert sorted(taken.stamps) == sorted(2 * [STAMP_NS + n for n in range(1, 301)])
    await delivering
    await rig.node.stop(0.1)


async def test_quality_messages_are_nothing_and_holes_in_numbers_neither() -> None:
    rig = NodeRig(services=(104, 105))
    rig.node.start()
    taken = Taken()
    source = ["euronext.104?stamp=1"]
    async with BrokerSubscriber(url(rig), source, "packet", FEED) as messages:
        rig.packets(1, 3)
        await rig.deliver()
        await rig.until(lambda: messages._intakes[0].link.count > 3)
        delivering = asyncio.create_task(messages.deliver(taken))
        await rig.until(lambda: taken.sequences == {104: [1, 2, 3]})
    await delivering
    await rig.node.stop(0.1)


async def test_what_goes_wrong_in_the_callback_ends_the_delivery() -> None:
    rig = NodeRig(services=(104, 105))
    rig.node.start()

    def fail(batch: Any) -> None:
        raise RuntimeError("not this")

    async with BrokerSubscriber(url(rig), ["euronext.104"], "packet", FEED) as messages:
        rig.packets(1, 3)
        await rig.deliver()
        with pytest.raises(RuntimeError, match="not this"):
            await asyncio.wait_for(messages.deliver(fail), 60)
        rig.packets(4, 5)
        await rig.deliver()
    await rig.node.stop(0.1)


async def test_a_refusal_is_reported_and_so_is_the_brokers_end() -> None:
    rig = NodeRig(services=(104, 105))
    rig.node.start()
    node = url(rig)
    with pytest.raises(PeerError, match="ended the link"):
        async with BrokerSubscriber(node, ["no such?key=1"], "packet", FEED):
            pass
    async with BrokerSubscriber(node, ["euronext.104"], "packet", FEED) as messages:
        delivering = asyncio.create_task(messages.deliver(Taken()))
        await asyncio.sleep(0)
        await rig.node.stop(0.1)
        with pytest.raises(PeerError, match="the gateway stops"):
            await asyncio.wait_for(delivering, 60)
    with pytest.raises(PeerError, match="cannot connect"):
        async with BrokerSubscriber(node, ["euronext.104"], "packet", FEED):
            pass
