"""Mutated frames of a hostile node at `feedhandler.subscribe`: messages, or one `PeerError`.

A run is 4,000 frames, or a tenth of `FEEDHANDLER_FUZZ_FRAMES`.
"""

import asyncio
import contextlib
import os
import random
from typing import Any

import pytest

import feedhandler
from feedhandler.codecs import PeerError
from tests.fuzz.frame_mutator import FOLDER, Mutator, Part, copy_of
from tests.support.amqp_wire import BEGIN, TRANSFER, Frame, split, wire

pytestmark = pytest.mark.gateways_loop

FRAMES = int(os.environ.get("FEEDHANDLER_FUZZ_FRAMES", "40000")) // 10
#: How long one conversation may take: the node that says it has closed by then.
PATIENCE_S = 60.0
#: How a client's attach begins, and how long the node waits for one.
ATTACHED, WAIT_S = b"\x00\x53\x12", 0.1
EDGES = (0, 1, 0x7F, 0x80, 0xFF)


class HostileNode:
    """Says one mutated conversation to each client, then closes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mutator = Mutator(seed)
        parts = split((FOLDER / "subscriber.node").read_bytes())
        first = next(
            index
            for index, part in enumerate(parts)
            if isinstance(part, Frame) and part.code == TRANSFER
        )
        self.beginning, self.rest = parts[:first], parts[first:]
        self.frames = 0

    def conversation(self) -> tuple[bytes, bytes]:
        """Return a node's mutated bytes: until it has heard of a link, and from then on."""
        rng = self.rng
        said = []
        for each in self.beginning:
            plain = each.encode() if isinstance(each, Frame) else each
            harmed = isinstance(each, Frame) and rng.random() < 0.02
            said.append(self.mutator.mutated(copy_of(each), True) if harmed else Part(plain, False))
        said += [self.harm(copy_of(each)) for each in self.rest if isinstance(each, Frame)]
        while rng.random() < 0.9:
            said.append(self.harm(copy_of(rng.choice(self.rest))))  # type: ignore[arg-type]
        self.frames += sum(part.mutated for part in said)
        opened = next(
            index
            for index, part in enumerate(self.beginning)
            if isinstance(part, Frame) and part.code == BEGIN
        )
        begun = b"".join(part.data for part in said[:opened])
        return begun, b"".join(part.data for part in said[opened:])

    def harm(self, frame: Frame) -> Part:
        """A frame of the stream: most often a message with other bytes in its body."""
        rng = self.rng
        if rng.random() < 0.01:
            return self.mutator.mutated(frame, True)
        if rng.random() < 0.002:  # a link that was not asked for
            frame = copy_of(self.beginning[-1])  # type: ignore[arg-type]
            assert frame.performative is not None
            frame.performative.value[0].value = b"mine"
            frame.performative.value[1] = wire(7)
            frame.performative.value[2] = wire(rng.random() < 0.5)
            return Part(frame.encode(), True)
        if frame.code == TRANSFER and frame.payload.find(b"quality") < 0:
            frame.payload = self.payload(frame.payload)
            return Part(frame.encode(), True)
        return Part(frame.encode(), False)

    def payload(self, data: bytes) -> bytes:
        """A message whose body, or seldom whose sections, are damaged, or cut, or twice there."""
        rng = self.rng
        if rng.random() < 0.99:
            changed = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(data) // 2, len(data))] = rng.choice(EDGES)
            return bytes(changed)
        way = rng.randrange(4)
        if way == 0:
            return data[: rng.randrange(len(data))]
        if way == 1:
            return data + data
        if way == 2:
            return rng.randbytes(rng.randrange(100))
        changed = bytearray(data)
        changed[rng.randrange(min(80, len(data)))] = rng.randrange(256)
        return bytes(changed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun, rest = self.conversation()
        heard = b""
        writer.write(begun)
        try:
            with contextlib.suppress(TimeoutError):  # the client may not have understood
                async with asyncio.timeout(WAIT_S):
                    while ATTACHED not in heard and (more := await reader.read(65536)):
                        heard += more
            writer.write(rest)
            writer.write_eof()
            while await reader.read(65536):
                pass
        except OSError:
            pass
        writer.close()


async def listen(url: str) -> int:
    """Subscribe until the end, which a PeerError may tell; how many messages came."""
    got = 0
    with contextlib.suppress(PeerError):
        async with feedhandler.subscribe(url, "euronext.104", reconnect=False) as messages:
            async for _ in messages:
                got += 1
    return got


async def test_a_hostile_node_ends_a_subscription_with_a_peer_error_and_nothing_else(
    seed: int,
) -> None:
    node = HostileNode(seed)
    wrong: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    url = f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    conversations = messages = 0
    while node.frames < FRAMES:
        async with asyncio.timeout(PATIENCE_S):
            messages += await listen(url)
        conversations += 1
        assert wrong == []
    server.close()
    print(f"{node.frames:,} frames in {conversations:,} conversations, {messages:,} messages")
    assert messages > conversations, "what was whole was received"
