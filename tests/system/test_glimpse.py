"""A gateway heals by GLIMPSE what neither line brought and no MoldUDP64 request brings back.

Real sockets on loopback: both lines lose the same, the request server has forgotten a stretch of
the session, and the GLIMPSE server is the product's own.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_gateway_loopback import running
from test_line_answers import LAST, SERVICE, Publisher

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import AmqpConfig, Config, ServerConfig
from feedhandler.market.stream_market import Market
from feedhandler.retrans.actions import AskRefresh
from feedhandler.retrans.events import RefreshFailed, RefreshSnapshot
from feedhandler.retrans.protocols.glimpse import GlimpseClient
from feedhandler.retrans.protocols.glimpse_server import GlimpseServer
from feedhandler.retrans.protocols.moldudp64 import MoldServer
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, ServerSetup
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.tcp import RequestConnection, RequestListener, serve
from feedhandler.retrans.udp import serve_datagrams
from tests.support.gateway_here import until
from tests.support.line_answers import keep
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

FEED = load_feed("nasdaq-totalview-itch")
USER, PASSWORD = "MEUSER", "SECRET"
#: The numbers that the request server has forgotten.
FORGOTTEN = range(1_000, 1_500)


def message(number: int) -> bytes:
    """Order `number` is added; each third message deletes the order before the last."""
    if number % 3 == 0:
        gone = number - 2
        return FEED.encode_message(
            "order_delete", stock_locate=gone % 7 + 1, order_reference_number=gone
        )
    return FEED.encode_message(
        "add_order_no_mpid_attribution", stock_locate=number % 7 + 1, stock="ZVZZT",
        order_reference_number=number, buy_sell_indicator="BS"[number % 2], shares=100,
        price=90_000 + 20_000 * (number % 2) + number % 50,
    )  # fmt: skip


def open_orders(last: int) -> tuple[bytes, ...]:
    """The orders that are open behind message `last`."""
    gone = {number - 2 for number in range(3, last + 1, 3)}
    return tuple(message(n) for n in range(1, last + 1) if n % 3 and n not in gone)


class Session(Publisher):
    """Both lines lose the same, all of `FORGOTTEN` too; requests are answered by `kept`."""

    def __init__(self, seed: int) -> None:
        super().__init__(FEED, message, seed)
        self.kept = PacketStore(1 << 22)

    def lose(self, first: int, end: int) -> bool:
        """Draw whether a packet is lost; `kept` gets those that are not forgotten."""
        forgotten = first in FORGOTTEN or end in FORGOTTEN
        if not forgotten:
            keep(FEED, self.kept, self.packet(first, end))
        return forgotten or super().lose(first, end)

    def state(self, service: int) -> tuple[int, tuple[bytes, ...]]:
        """The open orders now."""
        assert service == SERVICE
        last = self.store.end - 1
        return last, open_orders(last)

    def gateway(self, requests: str, glimpse: str, folder: Path) -> Config:
        """A gateway of the one channel with both servers."""
        (folder / "password").write_text(PASSWORD)
        os.chmod(folder / "password", 0o600)
        config = self.configuration(ServerConfig(name="rts", address=requests))
        other = ServerConfig(
            name="glimpse", address=glimpse, source_id=USER,
            password_file=str(folder / "password"),
        )  # fmt: skip
        channel = msgspec.structs.replace(
            config.channels[0], retransmission_lines=(), refresh="glimpse"
        )
        return msgspec.structs.replace(
            config,
            channels=(channel,),
            servers=(*config.servers, other),
            amqp=AmqpConfig(listen="127.0.0.1:0", records=True),
            recovery=RecoverySettings(refresh_backoff_us=20_000, refresh_retry_us=1_000_000),
        )


def glimpse_server(session: Session, **settings: Any) -> GlimpseServer:
    return GlimpseServer(
        ServerSetup(
            FEED, {SERVICE: session.store}, ServerSettings(**settings), session.state,
            passwords={USER: PASSWORD},
        )
    )  # fmt: skip


@contextlib.asynccontextmanager
async def serving(session: Session) -> AsyncIterator[tuple[str, str, GlimpseServer]]:
    """Both servers: their addresses, and the one of snapshots."""
    mold = MoldServer(ServerSetup(FEED, {SERVICE: session.kept}, ServerSettings()))
    glimpse = glimpse_server(session, heartbeat_us=50_000)
    requests = await serve_datagrams(mold, "127.0.0.1", 0)
    listener = await serve(glimpse, "127.0.0.1", 0)
    try:
        yield *(f"{host}:{port}" for host, port in (requests.address, listener.address)), glimpse
    finally:
        requests.close()
        await listener.close()


def books(market: Market) -> dict[str, Any]:
    """Every order of every book, in priority."""
    return {
        name: (market.books[name].bids.orders, market.books[name].asks.orders)
        for name in market.instruments()
    }


async def test_what_no_request_brings_back_a_snapshot_heals_and_the_books_are_true(
    tmp_path: Path,
) -> None:
    session = Session(seed=19)
    market, records = feedhandler.Market(FEED), feedhandler.Market(FEED)
    assert isinstance(market, Market)
    assert isinstance(records, Market)
    reasons: list[str] = []
    numbers: set[int] = set()

    async def follow(url: str, target: Market, **options: Any) -> None:
        async with feedhandler.subscribe(url, "itch.#", **options) as subscribed:
            following.release()
            async for received in subscribed:
                target.update(received)
                if received.quality is not None and target is market:
                    reasons.append(received.quality["reason"])
                elif target is market and not received.snapshot:
                    numbers.add(received.sequence)

    following = asyncio.Semaphore(0)
    truth = Market(FEED)
    for number in range(1, LAST + 1):
        truth.apply_message(message(number))
    async with (
        serving(session) as (requests, glimpse, server),
        running(session.gateway(requests, glimpse, tmp_path)) as (gateway, _, url),
        asyncio.TaskGroup() as tasks,
    ):
        assert gateway.core.recovery_snapshot(0)["servers"]["glimpse"]["up"]
        assert server.counts["clients"] == 0, "no connection before a snapshot is wanted"
        followers = [
            tasks.create_task(follow(url, market)),
            tasks.create_task(follow(url, records, as_="mbo")),
        ]
        async with asyncio.timeout(PATIENCE_S):
            for _ in followers:
                await following.acquire()
        await session.publish()
        await until(lambda: books(market) == books(truth) == books(records))
        await until(lambda: not server.sessions)
        assert gateway.core.recovery.snapshot(0)["lost"] == [], "all that was lost is healed"
        assert gateway.snapshot()["recovery"]["retransmitted"] > 10
        for follower in followers:
            follower.cancel()
    session.sock.close()
    assert {"gap", "snapshot-begin", "snapshot-end"} <= set(reasons)
    assert not set(FORGOTTEN[10:-10]) & numbers
    assert server.counts["logins"] == server.counts["logouts"] >= 1
    assert set(market.problems) <= {"unknown_orders"}, "orders of the lost stretch"
    assert not records.problems


class Owner:
    """A connection on demand, and what it reported."""

    def __init__(self, password: str = PASSWORD) -> None:
        self.reported: list[Any] = []
        settings = RecoverySettings(
            reconnect_us=1_000, reconnect_max_us=4_000, dead_us=200_000, heartbeat_us=50_000
        )
        client = GlimpseClient(
            ClientSetup(FEED, settings, USER, refresh=(ChannelNames(SERVICE),), password=password)
        )
        self.server = ReconnectingClient(
            client, settings, on_events=self._receive, on_up=lambda now_ns: None,
            on_down=lambda reason, now_ns: self.reported.append(reason), seed=1,
        )  # fmt: skip

    def _receive(self, events: list[Any], now_ns: int) -> None:
        self.reported += events

    async def ask(self, connection: RequestConnection, request_id: int) -> Any:
        """A snapshot, or that it failed."""
        assert self.server.ask_refresh(AskRefresh(request_id, SERVICE), connection.clock())

        def came() -> list[Any]:
            kinds = (RefreshSnapshot, RefreshFailed)
            return [e for e in self.reported if isinstance(e, kinds) and e.request_id == request_id]

        await until(lambda: bool(came()))
        return came()[0]


@pytest.mark.parametrize("fault", ["nobody listens", "silent", "slow reader"])
async def test_a_connection_on_demand_fails_and_works_again(fault: str) -> None:
    session, owner = Session(seed=20), Owner()
    for number in range(1, 4):
        keep(FEED, session.store, session.packet(number, number + 1))
    listener: RequestListener | asyncio.Server
    listener = await serve(glimpse_server(session), "127.0.0.1", 0)
    address = listener.address
    connection = RequestConnection(owner.server, *address)
    connection.start()
    if fault == "slow reader":
        await slow_reader(session)
    else:
        await listener.close()
        if fault == "silent":
            silent = await asyncio.start_server(lambda r, w: None, *address)
        failed = await owner.ask(connection, 1)
        assert isinstance(failed, RefreshFailed)
        if fault == "silent":
            assert "silent" in failed.reason
            silent.close()
        listener = await serve(glimpse_server(session), *address)
    ids = itertools.count(2)
    for _ in range(2):
        request_id = next(ids)
        # On a busy machine the server may seem silent: as recovery does, it is asked again.
        while isinstance(came := await owner.ask(connection, request_id), RefreshFailed):
            request_id = next(ids)
        assert came == RefreshSnapshot(request_id, SERVICE, 3, open_orders(3))
        await until(lambda: not connection.up)
    await connection.close()
    await listener.close()
    session.sock.close()


async def slow_reader(session: Session) -> None:
    """A client that logs in and reads nothing is closed; what waits for it is bounded."""
    state = (message(1),) * 600_000  # far more than both ends' sockets take
    server = GlimpseServer(
        ServerSetup(
            FEED,
            {SERVICE: session.store},
            ServerSettings(dead_us=300_000, heartbeat_us=100_000),
            lambda service: (9, state),
        )
    )
    listener = await serve(server, "127.0.0.1", 0)
    owner = Owner()
    _, writer = await asyncio.open_connection(*listener.address, limit=1 << 12)
    owner.server.client.ask_refresh(AskRefresh(1, SERVICE), 0)
    owner.server.client.connected(0)
    writer.write(owner.server.data_to_send())
    await until(lambda: server.counts["clients_slow"] == 1)
    assert server.counts["bytes"] < len(state) * 38
    assert not server.sessions
    writer.close()
    await listener.close()
