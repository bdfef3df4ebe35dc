"""A node within the measuring process, and clients that are driven by hand.

What `bench_routing`, `bench_node` and the leak campaign measure is the node alone: so the ring is
filled here instead of by a receive thread, and the clients are the project's own engine over real
sockets on loopback, each moved only when the measurement says so.
"""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import uvloop

from feedhandler.amqp import proton
from feedhandler.amqp.serving.node import Node
from feedhandler.codecs import load_feed
from feedhandler.config import loopback_config
from feedhandler.config.amqp import AmqpConfig
from feedhandler.gateway.core import GatewayCore
from feedhandler.gateway.io import CoreRunner
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring

FEED = load_feed("euronext-utp-md")
SERVICE = 104
KEY = f"{FEED.key}.{SERVICE}"
#: A message type that no feed description knows: framed by its size field, of no symbol.
OTHER_TYPE = 999
#: How long a client may take to attach.
ATTACH_SECONDS = 20.0
#: A client's receive buffer: what one pump sends it must fit, or the node would wait.
RECEIVE_BUFFER_BYTES = 4 << 20


def order(symbol: int) -> bytes:
    """Return one order update of 64 bytes."""
    return FEED.encode_message(230, symbol_index=symbol, price=100, price_scale_code=2)


def message_of(size: int) -> bytes:
    """Return one market message of `size` bytes; its length field leaves out its own two."""
    return struct.pack(">HH", size - 2, OTHER_TYPE) + bytes(size - 4)


def packet_of(messages: Iterable[bytes]) -> bytes:
    """Return a packet of these messages; its number is that of the ring's record."""
    return FEED.encode_packet(sequence=0, service=SERVICE, messages=list(messages))


class LocalNode:
    """The gateway's core and listening node of one service, without a receive thread; to be made
    within a running event loop. `settings` are the `[amqp]` table's."""

    def __init__(self, **settings: Any) -> None:
        self.ring = Ring(1 << 22)
        options: dict[str, Any] = {
            "listen": "127.0.0.1:0", "idle_timeout_ms": 0, "max_symbols": 10_000
        }  # fmt: skip
        amqp = AmqpConfig(**(options | settings))
        runner = CoreRunner(lambda: None, lambda *_: None)
        config = loopback_config(FEED.name, [SERVICE], amqp=amqp)
        core = GatewayCore(config, FEED, self.ring, runner, time.time_ns(), os.getpid())
        (self.stream,) = core.streams
        self.fanout, self.qualities = core.fanout, core.qualities
        self.node = Node(
            core.fanout, amqp, core.qualities, FEED.type_code, "bench", pump=runner.pump
        )
        # Without retransmission nothing is put into a receive thread's inlet.
        runner.bind(core, self.node, None)  # type: ignore[arg-type]
        self.node.start()
        runner.start()
        self.sequence = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"amqp://127.0.0.1:{self.node.address[1]}"

    def put(self, packets: Iterable[tuple[bytes, int]]) -> None:
        """Hand over packets (bytes, messages), as the receive thread does."""
        for payload, count in packets:
            self.sequence += 1
            self.ring.put(
                RecordKind.PACKET, count=count, sequence=self.sequence,
                next_sequence=self.sequence + 1, payload=payload, body=FEED.table.header_size,
            )  # fmt: skip
        self.ring.publish()


class LocalClient:
    """One connection with receiving links, moved by `turn` only; `received` counts messages.

    `login`: `user`, `password` and `hostname`, where the other end wants them.
    """

    def __init__(self, port: int, **login: str) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.engine = proton.Connection(
            self.sock.fileno(), server=False, container="bench client", **login
        )
        self.links: list[Any] = []
        self.open_links = 0
        self.received = 0
        self._owed: dict[int, int] = {}
        self._credit = 0

    async def attach(self, addresses: Iterable[str], credit: int, *, settled: bool = True) -> None:
        """Attach a link to each address; done once the node has opened them all."""
        self._credit = credit
        for address in addresses:
            name = f"link {len(self.links)}"
            beside = self.links[0] if self.links else None
            self.links.append(
                self.engine.receiver(name, address, settled=settled, credit=credit, beside=beside)
            )
        async with asyncio.timeout(ATTACH_SECONDS):
            while self.open_links < len(self.links):
                self.turn()
                await asyncio.sleep(0)

    def turn(self) -> int:
        """Read what has come, give credit back, write; how many messages that were."""
        self.engine.turn()
        for kind, link in self.engine.news:
            if kind == proton.LINK_REMOTE_OPEN:
                self.open_links += 1
            elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
                raise RuntimeError(f"the node ended a link: {link.remote_condition}")
        count = 0
        for link in self.links:
            if link.count:
                count += link.count
                owed = self._owed.get(id(link), 0) + link.count
                if owed * 2 >= self._credit:
                    link.flow(owed)
                    owed = 0
                self._owed[id(link)] = owed
                link.clear()
        self.engine.flush()
        self.received += count
        return count

    def close(self) -> None:
        """Close the socket without an AMQP close."""
        for link in list(self.engine.links.values()):
            link.release()
        self.sock.close()


@contextlib.asynccontextmanager
async def clients_beside(port: int, asked: list[list[str]], credit: int) -> AsyncIterator[None]:
    """Run a process with a connection for each list of addresses, which receives during the block.

    Its memory is not part of what is measured here.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_receive, args=(port, asked, credit, there), daemon=True)
    child.start()
    try:
        attached = asyncio.to_thread(here.poll, ATTACH_SECONDS)
        if not await attached:
            raise TimeoutError("the clients did not attach")
        yield
    finally:
        child.kill()
        child.join()


def _receive(port: int, asked: list[list[str]], credit: int, ready: Any) -> None:
    """Run the process of `clients_beside`: attach the links, then receive without end."""

    async def receive() -> None:
        for links in asked:
            client = LocalClient(port)
            await client.attach(links, credit)
            asyncio.get_running_loop().add_reader(client.sock.fileno(), client.turn)
        ready.send(True)
        await asyncio.Event().wait()

    uvloop.run(receive())
