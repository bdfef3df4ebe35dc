"""A server of a line by TCP, out of a capture: to try `[channel.line.tcp]` of a gateway with.

    feedhandler generate --feed nasdaq-totalview-itch --duration 30s --out itch.pcap
    python examples/tcp_line.py itch.pcap --feed nasdaq-totalview-itch --port 7001 &
    feedhandler run gateway.toml

The line: address = "127.0.0.1:7001", framing = "soupbin", username = "USER01" and any password. The
first service of the capture is sent, once for all its lines, `--rate` messages a second. Each login
gets what it asks for, whenever it comes. `--framing length` or `length-little` sends the packets.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from feedhandler.codecs import Feed, load_feed, soupbin
from feedhandler.codecs.scanner import PacketHeader, parse_header
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream
from feedhandler.replay.captures.reading import Capture

SESSION = "EXAMPLE001"
#: The length in front of a message in a MoldUDP64 packet.
LENGTH_BYTES = 2


def packets(feed: Feed, path: Path) -> Iterator[bytes]:
    """Yield the packets of the capture's first service that go on with the numbers."""
    header, service, following = PacketHeader(), -1, 0
    for each in Capture(path):
        data = each.payload
        if parse_header(feed.table, data, 0, len(data), header):
            continue
        service = header.service if service < 0 else service
        is_next = header.sequence >= following and header.next_sequence > header.sequence
        if header.service == service and is_next:
            following = header.next_sequence
            yield data


class Server:
    """What was sent, and the clients that follow it."""

    def __init__(self, soup: bool) -> None:
        self.soup = soup
        self.sent: list[bytes] = []
        self.more = asyncio.Condition()

    async def publish(self, frames: list[bytes], rate: float) -> None:
        """Send frames at a rate, from one absolute anchor."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while len(self.sent) < len(frames):
            due = int((loop.time() - began) * rate) + 1
            async with self.more:
                self.sent += frames[len(self.sent) : due]
                self.more.notify_all()
            await asyncio.sleep(0.01)
        print(f"all {len(frames):,} sent", flush=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        at = len(self.sent)
        if self.soup:
            stream, packets = SoupStream(soupbin.FROM_CLIENT), []
            while not packets:
                if not (data := await reader.read(4_096)):
                    return
                packets, _ = stream.feed(data)
            login = Login.decode(packets[0][1])
            if login.session not in ("", SESSION):
                writer.write(soupbin.packet(soupbin.LOGIN_REJECTED, soupbin.NO_SESSION))
                writer.close()
                return
            at = (login.number or max(len(self.sent), 1)) - 1
            writer.write(LoginAccepted(SESSION, at + 1).encode())
        following = asyncio.create_task(self._follow(at, writer))
        while await reader.read(4_096):  # heartbeats
            pass
        following.cancel()
        writer.close()

    async def _follow(self, at: int, writer: asyncio.StreamWriter) -> None:
        """Write all frames from `at` on, and a sign of life each second."""
        beat = soupbin.packet(soupbin.SERVER_HEARTBEAT) if self.soup else bytes(2)
        with contextlib.suppress(OSError):
            while True:
                if at == len(self.sent):
                    await self._wait()
                new = self.sent[at:]
                at += len(new)
                writer.write(b"".join(new) or beat)
                await writer.drain()

    async def _wait(self) -> None:
        """Wait for the next frames, for a second at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0), self.more:
                await self.more.wait()


async def main() -> None:
    """Read the capture and serve it."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("capture", type=Path)
    words.add_argument("--feed", required=True)
    words.add_argument("--framing", choices=["soupbin", "length", "length-little"])
    words.add_argument("--port", type=int, default=7001)
    words.add_argument("--rate", type=float, default=1_000.0)
    given = words.parse_args()
    feed, soup = load_feed(given.feed), given.framing in (None, "soupbin")
    frames: list[bytes] = []
    for data in packets(feed, given.capture):
        if soup:
            bodies = (bytes(each)[LENGTH_BYTES:] for each in feed.messages_of(data))
            frames += (soupbin.packet(soupbin.SEQUENCED, body) for body in bodies)
        else:
            order = "little" if given.framing == "length-little" else "big"
            frames.append(len(data).to_bytes(2, order) + data)
    server = Server(soup)
    async with await asyncio.start_server(server.serve, "127.0.0.1", given.port) as listener:
        host, port = listener.sockets[0].getsockname()
        print(f"{len(frames):,} frames on {host}:{port}", flush=True)
        publishing = asyncio.create_task(server.publish(frames, given.rate))
        await asyncio.gather(publishing, listener.serve_forever())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
