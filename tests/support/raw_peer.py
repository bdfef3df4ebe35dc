"""A peer that says bytes and hears frames: what no well-kept client says, for tests to say it."""

import asyncio
import contextlib
import socket
import struct

from tests.support import amqp_wire as wire
from tests.support.amqp_wire import Frame
from tests.support.node import PATIENCE_S


class Raw:
    """A socket that says bytes and hears frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def frame(self) -> Frame:
        """The next frame; protocol headers are passed over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                head = await self.reader.readexactly(8)
                if head[:4] != b"AMQP":
                    break
            rest = await self.reader.readexactly(int.from_bytes(head[:4], "big") - 8)
        (found,) = wire.split(head + rest)
        assert isinstance(found, Frame)
        return found

    async def hear(self, code: int) -> Frame:
        """The next frame of a performative; others are passed over."""
        while (found := await self.frame()).code != code:
            pass
        return found

    async def end(self) -> bytes:
        """Whatever still comes until the node closes."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                return await self.reader.read(-1)
        return b""

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


#: What a link of a stream asks for: its packets, and nothing beside.
ADDRESS = "euronext.104?quality=0"
#: What breaks the protocol once a session on channel 0 has the link with handle 0.
BREACHES = {
    "a channel beyond the bound": wire.begin(65535),
    "no such performative": wire.frame(0x1A),
    "a performative cut short": wire.frame_bytes(wire.described(wire.FLOW, 0).encode()[:-2]),
    "no such channel": wire.attach("b", 1, ADDRESS, 5),
    "no such handle": wire.flow(9, 1),
    "handle beyond the bound": wire.attach("b", 2**32 - 1, ADDRESS),
    "a channel that has a session": wire.begin(),
    "a session that answers none of the node's": wire.frame(
        wire.BEGIN, wire.ushort(0), 0, 9, 9, channel=1
    ),
    "the end of a session never begun": wire.frame(wire.END, channel=5),
    "a link on an ended session": wire.frame(wire.END) + wire.attach("b", 1, ADDRESS),
    "the detach of a link that is none": wire.frame(wire.DETACH, 9, True),
    "a link detached twice": 2 * wire.frame(wire.DETACH, 0, True),
    "a message on a link that is none": wire.frame(
        wire.TRANSFER, 9, 0, wire.Value(0xA0, b"t"), 0, payload=b"x"
    ),
    "a frame too large": wire.frame_bytes(bytes(70_000)),
    "a frame smaller than its header": struct.pack(">IBBH", 7, 2, 0, 0),
}
