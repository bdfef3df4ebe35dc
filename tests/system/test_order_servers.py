"""An exchange of orders with the servers of its feed: what both lines lose comes back, and what not
even the retransmission server has is healed by a snapshot.

The gateway's configuration is the one that `feedhandler exchange --write-config` writes.
"""

import asyncio
from datetime import date
from typing import Any

import pytest
from test_gateway_loopback import QUICK, running

import feedhandler
from feedhandler.codecs import Feed, load_feed
from feedhandler.config import AmqpConfig, Config
from feedhandler.market.stream_market import Market
from feedhandler.ops.exchange_config import PASSWORD, order_config
from feedhandler.replay.exchange.plan import Offered
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.generator import NINE_O_CLOCK_NS
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.retrans.settings import RecoverySettings
from tests.support import free_addresses
from tests.support.gateway_here import until
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

DAY = date(2026, 3, 2)


def plan(feed: Feed, gap_s: float | None) -> ExchangePlan:
    """Two seconds, both lines lossy, of the same packets too, and a line of answers."""
    groups, answers = ((free_addresses.prefix(), free_addresses.prefix()) for _ in range(2))
    offered = Offered.of(feed)
    return ExchangePlan(
        feed=feed.name, seed=12, seconds=2.0, messages_per_s=800.0, instruments=20,
        faults=(LineFaults(loss=0.1), LineFaults(loss=0.1)), together=0.03, gap_s=gap_s,
        group_prefixes=groups, base_ports=(free_addresses.port(), free_addresses.port()),
        recovery_prefixes=answers,
        recovery_base_ports=(free_addresses.port(), free_addresses.port()),
        day=DAY, opening_ns=NINE_O_CLOCK_NS, heartbeat_ms=200,
        retransmission_port=0, refresh_port=0 if offered.refresh else None,
        refresh_s=0.3 if offered.refresh_lines else None,
        refresh_faults=(LineFaults(loss=0.2), LineFaults()),
    )  # fmt: skip


def configuration(sent: ExchangePlan, exchange: Exchange) -> Config:
    return order_config(
        sent, exchange.ports,
        arbitration=QUICK,
        recovery=RecoverySettings(
            # However busy the machine is, nothing is given up that the server has; but where
            # one packet cannot be had, it is not waited for.
            request_timeout_us=5_000_000, retries=50,
            recovery_wait_us=60_000_000 if sent.gap_s is None else 500_000,
            refresh_backoff_us=20_000, refresh_retry_us=500_000,
        ),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
    )  # fmt: skip


def books(market: Market) -> dict[str, Any]:
    """Every order of every book, in priority, and its levels."""
    return {
        name: [
            (side.orders, side.top(99))
            for side in (market.books[name].bids, market.books[name].asks)
        ]
        for name in market.instruments()
    }


def truth(feed: Feed, sent: ExchangePlan) -> tuple[Market, int]:
    """The market of everything that the exchange generates, and how many messages that are."""
    market = Market(feed)
    session = OrderSession(
        feed, sent.seed, instruments=sent.instruments, messages_per_s=sent.messages_per_s,
        day=DAY, opening_ns=NINE_O_CLOCK_NS,
    )  # fmt: skip
    for each in session.packets(int(sent.seconds * 1e9), step_ns=50_000_000):
        market.apply(each.packet)
    return market, session.messages


class Followed:
    """Record of what a subscriber was told: the market, the count of live messages, the reasons."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.market = Market(feed)
        self.live = 0
        self.reasons: list[str] = []

    async def follow(self, url: str, ready: asyncio.Event) -> None:
        async with feedhandler.subscribe(url, f"{self.feed.key}.#") as subscribed:
            ready.set()
            async for message in subscribed:
                self.market.update(message)
                if message.quality is not None:
                    self.reasons.append(message.quality["reason"])
                elif not message.snapshot:
                    self.live += len([*self.feed.messages_of(bytes(message.body))])


@pytest.mark.parametrize(
    ("name", "gap_s"),
    [
        ("nasdaq-totalview-itch", None),
        ("nasdaq-totalview-itch", 0.8),
        ("cboe-byx-pitch", 0.8),
        ("nyse-integrated-pillar", 0.8),
        ("iex-deep-plus", None),
        ("cme-mdp3", 0.8),
    ],
)
async def test_what_both_lines_lose_comes_back_and_the_books_are_true(
    monkeypatch: pytest.MonkeyPatch, name: str, gap_s: float | None
) -> None:
    monkeypatch.setenv(PASSWORD, "SECRET")
    feed = load_feed(name)
    sent = plan(feed, gap_s)
    exchange, followed = Exchange(sent), Followed(feed)
    expected, count = truth(feed, sent)
    ready = asyncio.Event()
    async with (
        running(configuration(sent, exchange)) as (gateway, _, url),
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
    ):
        following = tasks.create_task(followed.follow(url, ready))
        await ready.wait()
        sending = tasks.create_task(asyncio.to_thread(exchange.run))
        if gap_s is None:
            await until(lambda: followed.live == count)
        else:
            await until(lambda: "snapshot-end" in followed.reasons)
        await until(lambda: books(followed.market) == books(expected))
        exchange.stop()  # it would wait for further questions
        result = await sending
        snapshot = gateway.snapshot()
        following.cancel()
    assert result.lines["A"].together > 10
    assert result.servers["retransmission"]["packets"] > 0
    assert snapshot["recovery"]["retransmitted"] > 0
    assert followed.market.states == expected.states
    if gap_s is None:
        assert snapshot["channels"][0]["lost"] == 0
        assert "gap" not in followed.reasons
    else:
        assert result.withheld is not None
        kinds = ("snapshots", "spins", "loops")
        assert sum(result.servers["refresh"].get(name, 0) for name in kinds) >= 1
