"""A broker that stops reading: its process stands still, with its connection open.

What waits stays within its bound, what gives way is counted and announced, the gateway's own
subscribers get everything meanwhile, and once the broker goes on all that waited is confirmed.
"""

import asyncio
import random
from typing import Any

import msgspec
import pytest

import feedhandler
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, Sent, decoded
from tests.support.brokers import BROKERS, Broker, RabbitMQ3
from tests.support.brokers.clients import consume
from tests.support.flow import Reader, Traffic, without
from tests.support.node import PATIENCE_S, in_thread
from tests.support.publish import PublishRig, data, publishing, sequences

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


def settings_of(broker: Broker, name: str, **more: Any) -> dict[str, Any]:
    """A small queue towards the exchange or topic `name`, and patience for a broker that stops."""
    return {
        FORMS[broker.kind]: name,
        "kind": broker.kind,
        "require_route": False,
        "queue_bytes": QUEUE_BYTES,
        "window": 200,
        "patterns": "euronext.104",
        "idle_timeout_ms": 0,
        **more,
    }


async def packets(rig: PublishRig, attached: asyncio.Event, goal: list[int]) -> list[int]:
    """Return the numbers that the gateway's own subscriber gets, to the one `goal` will have."""
    found: list[int] = []
    async with feedhandler.subscribe(rig.url, "euronext.104", reconnect=False) as messages:
        attached.set()
        async for message in messages:
            if message.content == "packet":
                found.append(message.sequence)
                if goal == found[-1:]:
                    break
    return found


def dropped_numbers(found: list[Any]) -> list[int]:
    """The numbers that the quality messages say were dropped."""
    notes = [msgspec.json.decode(each.body) for each in found if each not in data(found)]
    ranges = [each for note in notes if note["reason"] == "overflow" for each in note["lost"]]
    return [number for first, last in ranges for number in range(first, last + 1)]


async def test_a_broker_that_stops_reading_costs_its_own_queue_alone(
    broker: Broker,
) -> None:
    broker.exchange("stall")
    broker.queue("stall.all", "stall", "#")
    async with publishing(broker, **settings_of(broker, "stall")) as rig:
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
        assert 0 < seen["full_seconds"] <= seen["behind_seconds"]
        assert 0 < seen["confirm_ns"]["p50"] <= seen["confirm_ns"]["max"]
        found = await in_thread(consume, broker, "stall.all")
        came = sequences(found)
        missing = sorted({*range(1, last + 11)} - {*came})
        assert came == sorted(came), "in order"
        assert len(came) == len({*came}), "once each"
        assert dropped_numbers(found) == missing, "each that gave way is announced, and no other"
        assert len(missing) == seen["dropped"]
        async with asyncio.timeout(PATIENCE_S):
            assert await subscriber == [*range(1, last + 11)], "the others got everything"


async def test_a_destination_that_detaches_gives_up_what_waits_and_begins_anew(
    rabbitmq3: RabbitMQ3,
) -> None:
    broker = rabbitmq3
    broker.exchange("stall.detach")
    broker.queue("stall.detach.all", "stall.detach", "#")
    settings = settings_of(broker, "stall.detach", when_full="detach")
    async with publishing(broker, **settings) as rig:
        await rig.up()
        await rig.stream(1, 100)
        await rig.confirmed()
        broker.freeze()
        try:
            last = await until_full(rig, 100)
            await rig.stream(last + 1, last + 100)
            assert rig.seen["detached"] == 1
            assert rig.seen["queued_bytes"] == 0, "all that waited has gone"
        finally:
            broker.thaw()
        await rig.confirmed()
        await rig.stream(last + 101, last + 110)
        await rig.confirmed()
        seen = rig.seen
        assert (seen["detached"], seen["overflows"], seen["connects"]) == (1, 1, 2)
        assert any("detached: more than" in line for line in rig.reported)
        found = await in_thread(consume, broker, "stall.detach.all")
        came = list(dict.fromkeys(sequences(found)))
        assert came == sorted(came), "first copies are in order"
        assert came[-10:] == [*range(last + 101, last + 111)]
        missing = sorted({*range(1, last + 111)} - {*came})
        assert sorted({*dropped_numbers(found)}) == missing, (
            "each that gave way is announced, and no other"
        )
        assert len(missing) == seen["dropped"]


async def test_a_destination_that_conflates_brings_its_consumers_to_the_present_state(
    rabbitmq3: RabbitMQ3, seed: int
) -> None:
    broker = rabbitmq3
    broker.exchange("stall.conflate")
    broker.queue("stall.conflate.all", "stall.conflate", "#")
    traffic, whole = Traffic(random.Random(seed), symbols=20), Reader()

    async def stream(rig: PublishRig, first: int, last: int) -> None:
        for number in range(first, last + 1):
            messages = without(traffic.messages(6), 240, 523)  # what conflation cannot keep one of
            data = FEED.encode_packet(sequence=number, service=104, messages=messages)
            rig.put(data, number, len(messages))
            whole.receive(Sent("euronext.104", "packet", b"", 0, data, None))
        await rig.deliver()

    settings = settings_of(broker, "stall.conflate", when_full="conflate")
    async with publishing(broker, **settings) as rig:
        rig.control_event(RecordKind.START, sequence=0, next_sequence=1)
        await rig.up()
        await stream(rig, 1, 100)
        await rig.confirmed()
        last = 100
        broker.freeze()
        try:
            while rig.seen["conflated"] < 2000:
                await stream(rig, last + 1, last + 50)
                last += 50
                assert rig.seen["queued_bytes"] + rig.seen["unconfirmed_bytes"] <= QUEUE_BYTES
                assert last < 100_000, "nothing is ever conflated"
        finally:
            broker.thaw()
        await rig.confirmed()
        await stream(rig, last + 1, last + 10)
        await rig.confirmed()
        seen = rig.seen
        assert (seen["dropped"], seen["connects"], seen["resent"]) == (0, 1, 0)
        found = await in_thread(consume, broker, "stall.conflate.all")
        consumer, reasons = Reader(), []
        for each in found:
            consumer.receive(decoded(each.encode()))
            if each.subject.endswith(".quality"):
                reasons.append(msgspec.json.decode(each.body)["reason"])
        assert {"conflated", "caught-up"} <= {*reasons}
        assert len(sequences(found)) < last, "less came than was published"
        assert consumer.market.digest(104) == whole.market.digest(104)
