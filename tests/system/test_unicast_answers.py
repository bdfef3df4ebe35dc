"""A gateway gets back what both lines lost from a server that answers it alone: over UDP, or over
connections that are made when something is lost.

Real sockets on loopback: both lines lose the same packets, and the server is the product's own.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from test_gateway_loopback import running
from test_line_answers import LAST, SERVICE, Publisher, came_whole

from feedhandler.codecs import load_feed
from feedhandler.config import ServerConfig
from feedhandler.retrans.protocols.registry import REGISTRY
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.tcp import serve
from feedhandler.retrans.udp import serve_datagrams
from tests.support.line_answers import keep

pytestmark = pytest.mark.gateways_loop

CME = load_feed("cme-mdp3")


def trade(number: int) -> bytes:
    """A "trade report" of IEX DEEP, whose trade id tells its number."""
    return struct.pack("<HccQ8sIqq", 38, b"T", b"\0", number, b"ZVZZT   ", 100, 5, number)


def quote_request(number: int) -> bytes:
    """A quote request of CME MDP 3.0, whose time tells its number."""
    return CME.encode_message(39, transact_time=number)


class PacketPublisher(Publisher):
    """A publisher whose numbers count packets, of one message each."""

    async def publish(self) -> None:
        """Send everything; of the first and the last packets none is lost."""
        for number in range(1, LAST + 1):
            data = self.feed.encode_packet(sequence=number, messages=[self.message(number)])
            keep(self.feed, self.store, data)
            lost = 20 < number < LAST - 20 and self.draw.random() < 0.05
            self.lost += lost
            for line in self.lines:
                if not lost:
                    self.sock.sendto(data, line)
            if self.draw.random() < 0.02:
                await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("feed", "make", "message", "named", "password"),
    [
        ("iex-deep", Publisher, trade, {}, ""),
        ("cme-mdp3", PacketPublisher, quote_request, {"source_id": "USER"}, "SECRET"),
    ],
)
async def test_what_both_lines_lose_comes_to_the_asker_alone_and_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    feed: str,
    make: type[Publisher],
    message: Callable[[int], bytes],
    named: dict[str, Any],
    password: str,
) -> None:
    if password:
        monkeypatch.setenv("REPLAY_PASSWORD", password)
        named = {**named, "password_env": "REPLAY_PASSWORD"}
    publisher = make(load_feed(feed), message, seed=19)
    assert publisher.feed.recovery is not None
    facts = publisher.feed.recovery.retransmission
    assert facts is not None
    made = REGISTRY[facts.name].server
    assert made is not None
    server = made(ServerSetup(publisher.feed, {SERVICE: publisher.store}, ServerSettings()))
    listen: Any = serve_datagrams if facts.transport == "udp" else serve
    listener = await listen(server, "127.0.0.1", 0)
    host, port = listener.address
    config = publisher.configuration(ServerConfig(name="rts", address=f"{host}:{port}", **named))
    channel = msgspec.structs.replace(config.channels[0], retransmission_lines=())
    recovery = config.recovery
    if facts.transport == "tcp":  # however busy the machine, an answer comes
        recovery = msgspec.structs.replace(recovery, request_timeout_us=10_000_000)
    config = msgspec.structs.replace(config, channels=(channel,), recovery=recovery)
    try:
        async with running(config) as (gateway, _, url):
            client = gateway.core.servers["rts"].client
            snapshot = await came_whole(publisher, gateway, url)
    finally:
        closing = listener.close()
        if closing is not None:
            await closing
        publisher.sock.close()
    assert snapshot["recovery"]["servers"]["rts"]["up"]
    assert server.counts["packets"] >= client.counts["answered"] > 10
