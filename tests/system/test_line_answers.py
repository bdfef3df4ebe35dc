"""A gateway gets back what both lines lost from a server that answers by multicast lines.

Real sockets on loopback: both lines lose the same packets, the server is the product's own, and its
answers go out by the channel's retransmission lines.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from test_gateway_loopback import QUICK, running

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.feed import Feed
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    RetransmissionLineConfig,
    ServerConfig,
)
from feedhandler.retrans.protocols.registry import REGISTRY
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import RequestListener, serve
from tests.support import places
from tests.support.line_answers import keep
from tests.support.node import PATIENCE_S, Run, gateways_loop

SERVICE, PRODUCT, LAST = 3, 7, 3_000
#: Losses are waited for as long as the test's patience: nothing may be given up.
RECOVERY = RecoverySettings(
    reconnect_us=20_000, reconnect_max_us=50_000, recovery_wait_us=60_000_000, retries=50
)


def xdp_message(number: int) -> bytes:
    """An "add order" of NYSE XDP, whose order id tells its number."""
    return struct.pack("<HHIIIQII", 39, 100, 0, 9, number, number, 100, 5) + b"BFIRM \0"


class Publisher:
    """Two lines that lose the same, a store of all, and retransmission lines."""

    def __init__(self, feed: Feed, message: Callable[[int], bytes], seed: int) -> None:
        self.feed, self.message = feed, message
        self.draw = random.Random(seed)
        self.lines = [(places.group(), places.port()) for _ in "AB"]
        self.answers = [(places.group(), places.port()) for _ in "AB"]
        self.store = PacketStore(1 << 22)
        self.lost = 0
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        here = socket.inet_aton("127.0.0.1")
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)

    def retransmit(self, service: int, data: bytes) -> None:
        """Put a datagram on the retransmission lines."""
        assert service == SERVICE
        for line in self.answers:
            self.sock.sendto(data, line)

    async def publish(self) -> None:
        """Send everything; of the first and the last packets none is lost."""
        first = 1
        while first <= LAST:
            end = min(first + self.draw.randint(1, 5), LAST + 1)
            data = self.feed.encode_packet(
                sequence=first,
                service=SERVICE if self.feed.table.service_size else 0,
                messages=[self.message(number) for number in range(first, end)],
            )
            keep(self.feed, self.store, data)
            lost = 20 < first < LAST - 20 and self.draw.random() < 0.05
            self.lost += lost * (end - first)
            for line in self.lines:
                if not lost:
                    self.sock.sendto(data, line)
            first = end
            if self.draw.random() < 0.05:
                await asyncio.sleep(0.002)

    def configuration(self, server: ServerConfig) -> Config:
        """A gateway of the one channel."""

        def lines(kind: Any, named: list[tuple[str, int]]) -> Any:
            return tuple(
                kind(name=name, group=group, port=port)
                for name, (group, port) in zip("AB", named, strict=True)
            )

        return Config(
            gateway=GatewaySettings(feed=self.feed.name),
            channels=(
                ChannelConfig(
                    service=SERVICE,
                    retransmission="rts",
                    lines=lines(LineConfig, self.lines),
                    retransmission_lines=lines(RetransmissionLineConfig, self.answers),
                ),
            ),
            servers=(server,),
            amqp=AmqpConfig(listen="127.0.0.1:0"),
            arbitration=QUICK,
            recovery=RECOVERY,
        )


@contextlib.asynccontextmanager
async def serving(
    publisher: Publisher, protocol: str
) -> AsyncIterator[tuple[RequestListener, Any]]:
    """The product's own server of a protocol, on a port."""
    make = REGISTRY[protocol].server
    assert make is not None
    server = make(
        ServerSetup(
            publisher.feed,
            {SERVICE: publisher.store},
            ServerSettings(heartbeat_us=50_000),
            retransmit=publisher.retransmit,
            product=PRODUCT,
        )
    )
    listener = await serve(server, "127.0.0.1", 0)
    try:
        yield listener, server
    finally:
        await listener.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("feed", "protocol", "message", "named"),
    [("nyse-integrated-xdp", "nyse-xdp", xdp_message, {"source_id": "US", "product": PRODUCT})],
)
@gateways_loop
def test_what_both_lines_lose_comes_by_retransmission_lines_and_nothing_is_missing(
    run: Run, feed: str, protocol: str, message: Callable[[int], bytes], named: dict[str, Any]
) -> None:
    async def session() -> None:
        publisher = Publisher(load_feed(feed), message, seed=17)
        came: list[bytes] = []
        states: list[str] = []
        async with serving(publisher, protocol) as (listener, server):
            host, port = listener.address
            config = publisher.configuration(
                ServerConfig(name="rts", address=f"{host}:{port}", **named)
            )
            async with running(config) as (gateway, _, url):
                client = gateway.core.servers["rts"].client
                await until(lambda: client.up)
                async with feedhandler.subscribe(url, f"{publisher.feed.key}.#") as subscribed:
                    sending = asyncio.create_task(publisher.publish())
                    async with asyncio.timeout(PATIENCE_S):
                        async for told in subscribed:
                            if told.quality is not None:
                                states.append(told.quality["reason"])
                            else:
                                came += publisher.feed.messages_of(bytes(told.body))
                            if len(came) == LAST:
                                break
                    await sending
                snapshot = gateway.snapshot()
        publisher.sock.close()
        assert came == [message(number) for number in range(1, LAST + 1)]
        assert publisher.lost > 50
        assert sum(channel["lost"] for channel in snapshot["channels"]) == 0
        assert "gap" not in states
        assert snapshot["recovery"]["retransmitted"] > 10
        assert server.counts["packets"] >= client.counts["answered"] > 10

    run(session())
