"""A gateway gets back what both lines lost from a server that answers by multicast lines.

Real sockets on loopback: both lines lose the same packets, the server is the product's own, and its
answers go out by the channel's retransmission lines.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
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
from feedhandler.gateway.process import Gateway
from feedhandler.retrans.protocols.registry import REGISTRY
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import RequestListener, serve
from tests.support import free_addresses
from tests.support.gateway_here import multicast_sender, until
from tests.support.line_answers import keep
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

SERVICE, PRODUCT, LAST = 3, 7, 2_000
#: Losses are waited for as long as the test's patience: nothing may be given up.
RECOVERY = RecoverySettings(
    reconnect_us=20_000, reconnect_max_us=50_000, recovery_wait_us=60_000_000, retries=50
)


def xdp_message(number: int) -> bytes:
    """An "add order" of NYSE XDP, whose order id tells its number."""
    return struct.pack("<HHIIIQII", 39, 100, 0, 9, number, number, 100, 5) + b"BFIRM \0"


def pitch_message(number: int) -> bytes:
    """An "add order" of Cboe PITCH, whose order id tells its number."""
    return struct.pack("<BBIQcH6sHB", 26, 0x22, 0, number, b"B", 100, b"ZVZZT ", 10, 1)


class Publisher:
    """Two lines that lose the same, a store of all, and retransmission lines."""

    def __init__(self, feed: Feed, message: Callable[[int], bytes], seed: int) -> None:
        self.feed, self.message = feed, message
        self.draw = random.Random(seed)
        self.lines = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.answers = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.store = PacketStore(1 << 22)
        self.lost = 0
        self.messages_max = 5
        self.sock = multicast_sender()

    def retransmit(self, service: int, data: bytes) -> None:
        """Put a datagram on the retransmission lines."""
        assert service == SERVICE
        for line in self.answers:
            self.sock.sendto(data, line)

    def packet(self, first: int, end: int) -> bytes:
        """A packet with the messages `first` to `end` - 1."""
        return self.feed.encode_packet(
            sequence=first,
            service=SERVICE if self.feed.table.service_size else 0,
            messages=[self.message(number) for number in range(first, end)],
        )

    def lose(self, first: int, end: int) -> bool:
        """Draw whether both lines lose a packet."""
        return 20 < first < LAST - 20 and self.draw.random() < 0.05

    async def publish(self) -> None:
        """Send everything; of the first and the last packets none is lost."""
        first = 1
        while first <= LAST:
            end = min(first + self.draw.randint(1, self.messages_max), LAST + 1)
            data = self.packet(first, end)
            keep(self.feed, self.store, data)
            lost = self.lose(first, end)
            self.lost += lost * (end - first)
            for line in self.lines:
                if not lost:
                    self.sock.sendto(data, line)
            first = end
            if self.draw.random() < 0.05:
                await asyncio.sleep(0.002)

    def state(self, service: int) -> tuple[int, tuple[bytes, ...]]:
        """Every order that was added: the state of the books up to the number."""
        last = self.store.end - 1
        return last, tuple(self.message(number) for number in range(1, last + 1))

    def configuration(self, server: ServerConfig) -> Config:
        """A gateway of the one channel; the server is the one that it asks for packets."""

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
            publisher.state,
            retransmit=publisher.retransmit,
            product=PRODUCT,
        )
    )
    listener = await serve(server, "127.0.0.1", 0)
    try:
        yield listener, server
    finally:
        await listener.close()


async def came_whole(publisher: Publisher, gateway: Gateway, url: str) -> dict[str, Any]:
    """Publish everything, take it from a gateway, and check that nothing is lost, though both lines
    lost some of it; return the gateway's snapshot of then."""
    came: list[bytes] = []
    states: list[str] = []
    async with feedhandler.subscribe(url, f"{publisher.feed.key}.#") as subscribed:
        sending = asyncio.create_task(publisher.publish())
        async with asyncio.timeout(PATIENCE_S):
            async for message in subscribed:
                if message.quality is not None:
                    states.append(message.quality["reason"])
                else:
                    came += publisher.feed.messages_of(bytes(message.body))
                if len(came) == LAST:
                    break
        await sending
    snapshot = gateway.snapshot()
    assert came == [publisher.message(number) for number in range(1, LAST + 1)]
    assert publisher.lost > 50
    assert sum(channel["lost"] for channel in snapshot["channels"]) == 0
    assert "gap" not in states
    assert snapshot["recovery"]["retransmitted"] > 10
    return snapshot


@pytest.mark.parametrize(
    ("feed", "protocol", "message", "named"),
    [
        ("nyse-integrated-xdp", "nyse-xdp", xdp_message, {"source_id": "US", "product": PRODUCT}),
        ("cboe-byx-pitch", "cboe-grp", pitch_message, {"source_id": "USER", "session": "0001"}),
    ],
)
async def test_what_both_lines_lose_comes_by_retransmission_lines_and_nothing_is_missing(
    feed: str, protocol: str, message: Callable[[int], bytes], named: dict[str, Any]
) -> None:
    publisher = Publisher(load_feed(feed), message, seed=17)
    async with serving(publisher, protocol) as (listener, server):
        host, port = listener.address
        config = publisher.configuration(
            ServerConfig(name="rts", address=f"{host}:{port}", **named)
        )
        async with running(config) as (gateway, _, url):
            client = gateway.core.servers["rts"].client
            await until(lambda: client.up)
            await came_whole(publisher, gateway, url)
    publisher.sock.close()
    assert server.counts["packets"] >= client.counts["answered"] > 10


async def test_what_no_proxy_gives_back_a_spin_makes_good() -> None:
    """There is a Spin Server alone: what was lost is announced, and the open orders come whole."""
    publisher = Publisher(load_feed("cboe-byx-pitch"), pitch_message, seed=18)
    #: What a subscriber knows: the latest spin, and what came live since; live, all in all.
    known: list[bytes] = []
    live: list[bytes] = []
    reasons: list[str] = []
    everything = [pitch_message(number) for number in range(1, LAST + 1)]
    async with serving(publisher, "cboe-spin") as (listener, server):
        host, port = listener.address
        spin = ServerConfig(name="spin", address=f"{host}:{port}", source_id="USER", session="0001")
        config = publisher.configuration(spin)
        channel = msgspec.structs.replace(
            config.channels[0], retransmission="", retransmission_lines=(), refresh="spin"
        )
        config = msgspec.structs.replace(config, channels=(channel,))
        async with running(config) as (gateway, _, url):
            await until(lambda: gateway.core.servers["spin"].client.up)
            async with feedhandler.subscribe(url, "byx.#") as subscribed:
                sending = asyncio.create_task(publisher.publish())
                async with asyncio.timeout(PATIENCE_S):
                    async for message in subscribed:
                        if message.quality is not None:
                            reasons.append(message.quality["reason"])
                            if reasons[-1] == "snapshot-begin":
                                known = []
                        else:
                            bodies = publisher.feed.messages_of(bytes(message.body))
                            known += bodies
                            live += [] if message.snapshot else known[-1:]
                        if known == everything and reasons[-1] != "snapshot-begin":
                            break
                await sending
            assert gateway.snapshot()["channels"][0]["quality"] == "REFRESHED"
    publisher.sock.close()
    assert len(live) < LAST
    assert set(live) < set(everything)
    assert "gap" in reasons
    assert server.counts["spins"] >= 1
