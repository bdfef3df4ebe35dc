"""A broker that stops reading: its process stands still, with its connection open.

What waits stays within its bound, what gives way is counted and told, the gateway's own
subscribers get everything meanwhile, and once the broker goes on all that waited is confirmed.
"""

import asyncio
from typing import Any

import msgspec
import pytest
from broker_kit import BROKERS, Broker
from broker_kit.clients import consume
from node_kit import PATIENCE_S, in_thread
from publish_kit import PublishRig, data, publishing, sequences

import feedhandler

QUEUE_BYTES = 1 << 18
FORMS = {"rabbitmq-3": "exchange", "rabbitmq-4": "exchange", "artemis": "topic", "qpid": "exchange"}


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the kit's brokers."""
    return request.getfixturevalue(request.param)


async def until_full(rig: PublishRig, number: int) -> int:
    """Stream until the queue has given way; the last number. The bound holds all along."""
    while not rig.seen["dropped"]:
        await rig.stream(number + 1, number + 50)
        number += 50
        assert rig.seen["queued_bytes"] + rig.seen["unconfirmed_bytes"] <= QUEUE_BYTES
        assert number < 100_000, "the queue never fills"
    return number


async def packets(rig: PublishRig, attached: asyncio.Event, goal: list[int]) -> list[int]:
    """What a subscriber of the gateway itself gets, to the number that `goal` will have."""
    found: list[int] = []
    async with feedhandler.subscribe(rig.url, "euronext.104", reconnect=False) as messages:
        attached.set()
        async for message in messages:
            if message.content == "packet":
                found.append(message.sequence)
                if goal == found[-1:]:
                    break
    return found


def told(found: list[Any]) -> list[int]:
    """The numbers that the quality messages say were dropped."""
    notes = [msgspec.json.decode(each.body) for each in found if each not in data(found)]
    ranges = [each for note in notes if note["reason"] == "overflow" for each in note["lost"]]
    return [number for first, last in ranges for number in range(first, last + 1)]


def test_a_broker_that_stops_reading_costs_its_own_queue_and_nobody_else(broker: Broker) -> None:
    broker.exchange("stall")
    broker.queue("stall.all", "stall", "#")

    async def story() -> None:
        settings: dict[str, Any] = {
            FORMS[broker.kind]: "stall",
            "kind": broker.kind,
            "require_route": False,
            "queue_bytes": QUEUE_BYTES,
            "window": 200,
            "patterns": "euronext.104",
            "idle_timeout_ms": 0,
        }
        async with publishing(broker, **settings) as rig:
            attached = asyncio.Event()
            goal: list[int] = []
            subscriber = asyncio.create_task(packets(rig, attached, goal))
            await attached.wait()
            await rig.up()
            await rig.stream(1, 100)
            await rig.confirmed()
            broker.freeze()
            try:
                last = await until_full(rig, 100)
            finally:
                broker.thaw()
            await rig.confirmed()
            goal.append(last + 10)
            await rig.stream(last + 1, last + 10)
            await rig.confirmed()
            seen = rig.seen
            assert (seen["overflows"], seen["connects"], seen["resent"]) == (1, 1, 0)
            found = await in_thread(consume, broker, "stall.all")
            came = sequences(found)
            missing = sorted({*range(1, last + 11)} - {*came})
            assert came == sorted(came), "in order"
            assert len(came) == len({*came}), "once each"
            assert told(found) == missing, "each that gave way is told, and no other"
            assert len(missing) == seen["dropped"]
            async with asyncio.timeout(PATIENCE_S):
                assert await subscriber == [*range(1, last + 11)], "the others got everything"

    asyncio.run(story())
