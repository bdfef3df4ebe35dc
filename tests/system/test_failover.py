"""A gateway with a primary and a secondary request server gets all back, whichever of them fails.

Real sockets on loopback: both lines lose the same, and the primary is not there, breaks off, says
nothing, or has forgotten everything. UTP-MD has servers over TCP, MoldUDP64 over UDP.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from test_gateway_loopback import running
from test_line_answers import LAST, SERVICE, Publisher

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.feed import Feed
from feedhandler.config import Config, ServerConfig
from feedhandler.retrans.protocols.registry import REGISTRY
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import serve
from feedhandler.retrans.udp import serve_datagrams
from tests.support import free_addresses
from tests.support.gateway_here import until
from tests.support.line_answers import keep
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

UTP, ITCH = load_feed("euronext-utp-md"), load_feed("nasdaq-totalview-itch")
#: Losses are waited for as long as the test's patience: nothing may be given up.
RECOVERY = RecoverySettings(
    reconnect_us=20_000, reconnect_max_us=50_000, recovery_wait_us=60_000_000, retries=50,
    failback_us=100_000,
)  # fmt: skip


def utp_message(number: int) -> bytes:
    return UTP.encode_message("order_update", symbol_index=9, source_seq_num=number)


def itch_message(number: int) -> bytes:
    return ITCH.encode_message("order_delete", stock_locate=1, order_reference_number=number)


class Session(Publisher):
    """Both lines lose the same; a packet has one message, so that either feed numbers alike."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed, utp_message if feed is UTP else itch_message, seed=23)
        self.messages_max = 1
        #: What the lines have brought.
        self.known = PacketStore(1 << 22)

    def lose(self, first: int, end: int) -> bool:
        """Draw whether both lines lose a packet; `known` gets the others."""
        lost = super().lose(first, end)
        if not lost:
            keep(self.feed, self.known, self.packet(first, end))
        return lost

    def config(self, primary: str, secondary: str) -> Config:
        """A gateway of the one channel with both servers."""
        server = ServerConfig(name="rts", address=primary, secondary=secondary, source_id="ME")
        config = self.configuration(server)
        channel = msgspec.structs.replace(config.channels[0], retransmission_lines=())
        return msgspec.structs.replace(config, channels=(channel,), recovery=RECOVERY)

    async def serve(self, store: PacketStore, port: int = 0) -> tuple[Any, Any]:
        """The product's own server of the feed with these packets, and what listens."""
        protocol = self.feed.recovery.retransmission if self.feed.recovery else None
        assert protocol is not None
        make = REGISTRY[protocol.name].server
        assert make is not None
        server = make(ServerSetup(self.feed, {SERVICE: store}, ServerSettings(heartbeat_us=50_000)))
        listen: Any = serve_datagrams if self.feed is ITCH else serve
        return server, await listen(server, "127.0.0.1", port)


async def end(listener: Any) -> None:
    """Close what listens, by either transport."""
    closed = listener.close()
    if closed is not None:
        await closed


class Silent(asyncio.DatagramProtocol):
    """Takes requests and answers none."""


async def silent(feed: Feed) -> tuple[str, Any]:
    """A server that says nothing: its address, and what listens."""
    where = ("127.0.0.1", 0)
    if feed is ITCH:
        loop = asyncio.get_running_loop()
        listener: Any
        listener, _ = await loop.create_datagram_endpoint(Silent, local_addr=where)
        host, port = listener.get_extra_info("sockname")[:2]
    else:
        listener = await asyncio.start_server(lambda reader, writer: None, *where)
        host, port = listener.sockets[0].getsockname()[:2]
    return f"{host}:{port}", listener


@contextlib.asynccontextmanager
async def failing(session: Session, fault: str) -> AsyncIterator[tuple[str, Any]]:
    """A primary that fails: its address; and where it breaks off, what listens, and the server."""
    if fault == "not there":
        yield f"127.0.0.1:{free_addresses.port()}", None
    elif fault == "silent":
        address, listener = await silent(session.feed)
        yield address, None
        listener.close()
    else:
        forgetful = fault == "forgetful"
        server, listener = await session.serve(session.known if forgetful else session.store)
        host, port = listener.address
        yield f"{host}:{port}", (server, listener)
        await end(listener)


async def follow(url: str, session: Session, ready: asyncio.Event, came: list[bytes]) -> None:
    """Take in all messages."""
    async with feedhandler.subscribe(url, f"{session.feed.key}.#") as subscribed:
        ready.set()
        async for message in subscribed:
            if message.quality is None:
                came += session.feed.messages_of(bytes(message.body))
            if len(came) == LAST:
                return


@pytest.mark.parametrize("fault", ["not there", "silent", "forgetful", "breaks off"])
@pytest.mark.parametrize("feed", [UTP, ITCH], ids=["utp-md", "moldudp64"])
async def test_what_the_primary_does_not_bring_the_secondary_does(feed: Feed, fault: str) -> None:
    session, came, ready = Session(feed), list[bytes](), asyncio.Event()
    secondary, listener = await session.serve(session.store)
    host, port = listener.address
    async with (
        failing(session, fault) as (address, primary),
        running(session.config(address, f"{host}:{port}")) as (gateway, _, url),
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
    ):
        pair = gateway.core.servers["rts"]
        await until(lambda: pair.available)
        following = tasks.create_task(follow(url, session, ready, came))
        await ready.wait()
        sending = tasks.create_task(session.publish())
        if fault == "breaks off":
            await until(lambda: primary[0].counts["requests"] > 3)
            await end(primary[1])
        await following
        await sending
        counts = gateway.snapshot()["recovery"]["servers"]["rts"]
        if fault == "breaks off":
            _, back = await session.serve(session.store, primary[1].address[1])
            await until(lambda: pair.asked_end == 0)
            await end(back)
        assert gateway.snapshot()["channels"][0]["lost"] == 0
    await end(listener)
    session.sock.close()
    assert came == [session.message(number) for number in range(1, LAST + 1)]
    assert session.lost > 50
    assert secondary.counts["packets"] > 0
    assert counts["passed_on" if fault == "forgetful" else "failovers"] > 0
