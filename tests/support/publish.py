"""A publisher before a real broker: a fan-out of two services, and what a client then finds."""

import contextlib
import itertools
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from proton import Message

from feedhandler.amqp.policies import CONFLATE
from feedhandler.amqp.publishing.publisher import Publisher, Publishers
from feedhandler.amqp.queueing.book_cache import book_cache_of
from feedhandler.config.publishing import PublishConfig
from tests.support.amqp import FEED, packet
from tests.support.brokers import Broker
from tests.support.node import NodeRig

RigT = TypeVar("RigT", bound="DestinationRig")

#: What one AMQP message may hold.
GRAINS = ("packet", "batch", "message")


class DestinationRig(NodeRig):
    """Services and one destination; no client attaches to the node."""

    def __init__(self, url: str, services: tuple[int, ...] = (104,), **settings: Any) -> None:
        super().__init__(services=services)
        self.reported: list[str] = []
        config = PublishConfig(**{"name": "firm", "to": url, "require_route": False, **settings})
        self.publishers = Publishers(
            (config,), self.fanout, self.feed.type_code, "gateway", self.reported.append
        )
        if config.when_full == CONFLATE:
            self.fanout.book_cache = book_cache_of(FEED)
            self.publisher.destination.conflate(self.fanout, FEED)

    @property
    def publisher(self) -> Publisher:
        (one,) = self.publishers.all
        return one

    @property
    def seen(self) -> dict[str, Any]:
        """The destination's part of a snapshot."""
        (one,) = self.publishers.snapshot()
        return one

    async def confirmed(self, what: str = "all confirmed") -> None:
        await self.until(
            lambda: self.seen["state"] == "UP" and not self.publisher._unfinished(), what
        )


class PublishRig(DestinationRig):
    """Two services, and a destination at a real broker."""

    def __init__(self, broker: Broker, **settings: Any) -> None:
        waits = {"reconnect_us": 10_000, "reconnect_max_us": 200_000}
        super().__init__(broker.url, (104, 105), **waits | settings)

    async def both(self, first: int, last: int) -> None:
        """Stream packets of both services."""
        for begin in range(first, last + 1, 50):
            for channel in (0, 1):
                self.packets(begin, min(last, begin + 49), channel)
            await self.deliver()

    async def up(self) -> None:
        await self.until(lambda: self.seen["state"] == "UP", f"up, and not {self.seen['reason']}")


@contextlib.asynccontextmanager
async def started(rig: RigT, stop_seconds: float) -> AsyncIterator[RigT]:
    """A rig that publishes while the block runs."""
    rig.node.start()
    rig.publishers.start(rig.qualities)
    try:
        yield rig
    finally:
        await rig.publishers.stop(stop_seconds)
        await rig.node.stop(0.1)


def publishing(broker: Broker, **settings: Any) -> AbstractAsyncContextManager[PublishRig]:
    """A rig that publishes to this broker while the block runs."""
    return started(PublishRig(broker, **settings), 5.0)


def tag(message: Message) -> tuple[int, ...]:
    """Day, feed, service, sequence, message number."""
    return struct.unpack(">IHHQH", bytes(message.id))


def data(messages: list[Message]) -> list[Message]:
    """All but the quality messages."""
    return [message for message in messages if not message.subject.endswith(".quality")]


def sequences(messages: list[Message], service: int = 104) -> list[int]:
    """Of one service's packets, in the order in which they came."""
    return [tag(each)[3] for each in data(messages) if tag(each)[2] == service]


def check_stream(messages: list[Message], last: int, service: int = 104) -> None:
    """Exactly the packets 1..`last` of a service, each byte of them, in order."""
    found = [each for each in data(messages) if tag(each)[2] == service]
    assert [tag(each)[3] for each in found] == [*range(1, last + 1)]
    assert [tag(each)[4] for each in found] == [0xFFFF] * last
    assert [bytes(each.body) for each in found] == [
        packet(number, service=service) for number in range(1, last + 1)
    ]
    assert all(each.durable for each in found)


def check_grain(messages: list[Message], last: int, grain: str, service: int = 104) -> None:
    """Check that the messages are what `grain` makes of the packets 1..`last` of a service.

    They hold each byte of it, by rising tags, each tag the one of what its body begins with.
    """
    found = [each for each in data(messages) if tag(each)[2] == service]
    whole = [packet(number, service=service) for number in range(1, last + 1)]
    if grain == "message":
        header = FEED.table.header_size
        assert [tag(each)[3:] for each in found] == [
            (number, index) for number in range(1, last + 1) for index in range(5)
        ]
        assert b"".join(bytes(each.body) for each in found) == b"".join(
            each[header:] for each in whole
        )
        return
    assert b"".join(bytes(each.body) for each in found) == b"".join(whole)
    assert (len(found) < last) == (grain == "batch"), "only batches hold several"
    starts = itertools.accumulate(map(len, whole), initial=0)
    begins = {start: number for number, start in enumerate(starts, 1)}
    offsets = itertools.accumulate((len(each.body) for each in found[:-1]), initial=0)
    assert [tag(each)[3:] for each in found] == [(begins[at], 0xFFFF) for at in offsets]


def check_group_sequences(messages: list[Message]) -> None:
    """Consecutive for each routing key, first copies."""
    counted: Counter[str] = Counter()
    for message in messages:
        assert message.group_sequence == counted[message.subject], message.subject
        counted[message.subject] += 1
