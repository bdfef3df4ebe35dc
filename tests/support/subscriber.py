"""Helpers of the subscriber's system tests: one on a node, and a record of what it consumes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import feedhandler
from feedhandler.amqp.subscribing.upstream import ConnectionEvent
from feedhandler.codecs.feed import split_packets
from tests.support.node import PATIENCE_S, NodeRig, running

#: The number of what is a whole packet.
WHOLE = 0xFFFF


@contextlib.asynccontextmanager
async def patience() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


@contextlib.asynccontextmanager
async def subscribed(
    pattern: str = "euronext.104", *, node: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[NodeRig, feedhandler.Subscriber]]:
    """A node, by options of `running`, and a subscriber on it."""
    async with (
        running(**(node or {})) as rig,
        feedhandler.subscribe(rig.url, pattern, **options) as messages,
    ):
        yield rig, messages


class Story:
    """Record of a consumer: sequences of packets, (reason, state, lost) of quality messages."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[Any] = []
        self.events: list[ConnectionEvent] = []
        self.options = {"on_connection": self.events.append, **options}

    def piece(self, sequence: int, number: int) -> Any:
        """Return the entry of a message, or of the packet that is the message."""
        return sequence

    def note(self, quality: dict[str, Any]) -> Any:
        """Return the entry of a quality message."""
        return quality["reason"], quality["state"], quality.get("lost")

    def receive(self, message: Any) -> None:
        if message.content == "quality":
            self.seen.append(self.note(message.quality))
        elif message.content == "batch":
            self.seen += [self.piece(packet.sequence, WHOLE) for packet in message.packets()]
        else:
            self.seen.append(self.piece(message.sequence, message.number))

    def receive_batch(self, batch: Any) -> None:
        for note in batch.notes:
            self.receive(note)
        if batch.count and batch.grain == "batch":
            for body in split_packets(batch.feed, bytes(batch.data)):
                self.seen.append(self.piece(batch.feed.decode_packet(body).sequence, WHOLE))
        elif batch.count:
            self.seen += map(self.piece, batch.sequences.tolist(), batch.numbers.tolist())

    async def consume(self, messages: Any, form: str, until: Any) -> None:
        """Consume in one of the forms until `until` was seen."""
        async with patience():
            if form == "messages":
                async for message in messages:
                    before = len(self.seen)
                    self.receive(message)
                    if until in self.seen[before:]:
                        return
            elif form == "batches":
                async for batch in messages.batches():
                    before = len(self.seen)
                    self.receive_batch(batch)
                    if until in self.seen[before:]:
                        return
            else:
                delivering = asyncio.create_task(messages.deliver(self.receive_batch))
                looked_at = 0
                while until not in self.seen[looked_at:] and not delivering.done():
                    looked_at = len(self.seen)
                    await asyncio.sleep(0.002)
                delivering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await delivering

    @property
    def sequences(self) -> list[int]:
        return [x for x in self.seen if isinstance(x, int)]

    @property
    def notes(self) -> list[Any]:
        return [x for x in self.seen if not isinstance(x, int)]


class Pieces(Story):
    """A story in (sequence, message number) of messages, (sequence, WHOLE) of packets."""

    def piece(self, sequence: int, number: int) -> tuple[int, int]:
        return sequence, number

    @property
    def positions(self) -> list[tuple[int, int]]:
        return [x for x in self.seen if isinstance(x[0], int)]

    @property
    def notes(self) -> list[Any]:
        return [x for x in self.seen if not isinstance(x[0], int)]


def cut_off(rig: NodeRig) -> None:
    """End every connection of the node: to both sides it looks like a lost network."""
    for connection in list(rig.node.connections):
        connection.end()


async def came_back(rig: NodeRig, story: Story) -> None:
    await rig.until(lambda: sum(e.connected for e in story.events) == 2, "attached again")
