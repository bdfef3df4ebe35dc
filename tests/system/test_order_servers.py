"""An exchange of ITCH orders with its servers: what both lines lose comes back, and what not even
the request server has is healed by GLIMPSE."""

import asyncio
from datetime import date
from typing import Any

import pytest
from test_gateway_loopback import QUICK, running
from test_line_answers import until

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    ServerConfig,
)
from feedhandler.market.venue_market import VenueMarket
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.generator import NINE_O_CLOCK_NS
from feedhandler.replay.generating.order_session import CHANNEL, OrderSession
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.retrans.settings import RecoverySettings
from tests.support import places
from tests.support.node import PATIENCE_S, Run, gateways_loop

FEED = load_feed("nasdaq-totalview-itch")
DAY = date(2026, 3, 2)
PASSWORD = "SIMULATED_PASSWORD"


def plan(hole_s: float | None) -> ExchangePlan:
    """Two seconds, both lines lossy, of the same packets too."""
    groups = [places.group().rsplit(".", 1)[0] for _ in "AB"]
    return ExchangePlan(
        feed=FEED.name, seed=12, seconds=2.0, messages_per_s=800.0, instruments=20,
        faults=(LineFaults(loss=0.1), LineFaults(loss=0.1)), together=0.03, hole_s=hole_s,
        group_prefixes=(groups[0], groups[1]), base_ports=(places.port(), places.port()),
        day=DAY, opening_ns=NINE_O_CLOCK_NS, heartbeat_ms=200,
        retransmission_port=0, refresh_port=0,
    )  # fmt: skip


def configuration(sent: ExchangePlan, exchange: Exchange) -> Config:
    addresses = [(name, *sent.address(name, CHANNEL)) for name in "AB"]
    lines = tuple(LineConfig(name=n, group=group, port=port) for n, group, port in addresses)
    here = "127.0.0.1"
    return Config(
        gateway=GatewaySettings(feed=sent.feed),
        arbitration=QUICK,
        recovery=RecoverySettings(
            # However busy the machine is, nothing is given up that the server has.
            request_timeout_us=5_000_000, recovery_wait_us=60_000_000, retries=50,
            refresh_backoff_us=20_000, refresh_retry_us=500_000,
        ),
        amqp=AmqpConfig(listen=f"{here}:0"),
        servers=(
            ServerConfig(name="requests", address=f"{here}:{exchange.retransmission_port}"),
            ServerConfig(
                name="glimpse", address=f"{here}:{exchange.refresh_port}", source_id="anyone",
                password_env=PASSWORD,
            ),
        ),
        channels=(
            ChannelConfig(service=1, retransmission="requests", refresh="glimpse", lines=lines),
        ),
    )  # fmt: skip


def books(market: VenueMarket) -> dict[str, Any]:
    """Every order of every book, in priority."""
    return {
        name: (market.books[name].bids.orders, market.books[name].asks.orders)
        for name in market.instruments()
    }


def truth(sent: ExchangePlan) -> VenueMarket:
    """The market of everything that the exchange generates."""
    market = VenueMarket(FEED)
    session = OrderSession(
        FEED, sent.seed, instruments=sent.instruments, messages_per_s=sent.messages_per_s,
        day=DAY, opening_ns=NINE_O_CLOCK_NS,
    )  # fmt: skip
    for each in session.packets(int(sent.seconds * 1e9), step_ns=50_000_000):
        market.apply(each.packet)
    return market


@pytest.mark.parametrize("hole_s", [None, 0.8])
@gateways_loop
def test_what_both_lines_lose_comes_back_and_the_books_are_true(
    run: Run, monkeypatch: pytest.MonkeyPatch, hole_s: float | None
) -> None:
    monkeypatch.setenv(PASSWORD, "SECRET")
    sent = plan(hole_s)
    exchange, market = Exchange(sent), VenueMarket(FEED)
    reasons: list[str] = []

    async def follow(url: str, ready: asyncio.Event) -> None:
        async with feedhandler.subscribe(url, "itch.#") as subscribed:
            ready.set()
            async for told in subscribed:
                market.take(told)
                if told.quality is not None:
                    reasons.append(told.quality["reason"])

    async def scenario() -> None:
        ready = asyncio.Event()
        expected = truth(sent)
        async with (
            running(configuration(sent, exchange)) as (gateway, _, url),
            asyncio.timeout(PATIENCE_S),
            asyncio.TaskGroup() as tasks,
        ):
            following = tasks.create_task(follow(url, ready))
            await ready.wait()
            result = await asyncio.to_thread(exchange.run)
            await until(lambda: books(market) == books(expected))
            snapshot = gateway.snapshot()
            following.cancel()
        assert result.lines["A"].together > 10
        assert result.servers["retransmission"]["packets"] > 0
        assert snapshot["recovery"]["retransmitted"] > 0
        assert market.states == expected.states
        if hole_s is None:
            assert snapshot["channels"][0]["lost"] == 0
            assert "gap" not in reasons
        else:
            assert result.withheld is not None
            assert "snapshot-end" in reasons
            assert result.servers["refresh"]["snapshots"] >= 1

    run(scenario())
