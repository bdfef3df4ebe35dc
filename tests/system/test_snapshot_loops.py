"""A gateway without any server heals what both lines lost by CME's market recovery feed.

Real sockets on loopback: both lines lose the same, two more lines loop the books, and the market of
a subscriber is that of the exchange in the end.
"""

import asyncio
import random

import pytest
from test_gateway_loopback import QUICK, running

import feedhandler
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    RefreshLineConfig,
)
from feedhandler.market.stream_market import Market
from feedhandler.retrans.settings import RecoverySettings
from tests.support import free_addresses
from tests.support.cme_books import (
    FEED,
    INSTRUMENTS,
    PRICE,
    Levels,
    active,
    key,
    packet,
    snapshot,
    update,
)
from tests.support.gateway_here import multicast_sender
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

CHANNEL, LAST = 310, 3_000


class Exchange:
    """Two lines that lose the same, and two of loops, each at its own pace."""

    def __init__(self) -> None:
        self.draw = random.Random(23)
        self.lines = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.loops = [(free_addresses.group(), free_addresses.port()) for _ in "AB"]
        self.levels: Levels = {}
        self.active: set[int] = set()
        self.number = self.lost = 0
        self.sock = multicast_sender()

    def _next(self) -> bytes:
        self.number += 1
        made = update(self.number, self.draw, self.levels)
        return packet(self.number, made, send_time=self.number)

    async def publish(self) -> None:
        """Send everything; a third of the way through, some is lost on both lines."""
        while self.number < LAST:
            data = self._next()
            lost = LAST // 3 < self.number < LAST // 2 and self.draw.random() < 0.05
            self.lost += lost
            for line in self.lines:
                if not lost:
                    self.sock.sendto(data, line)
            if self.draw.random() < 0.05:
                await asyncio.sleep(0.002)

    async def loop(self, line: int) -> None:
        """Loop on a line until the end: a packet a book, as it is then."""
        while True:
            books = active(self.levels, self.active)
            for number, instrument in enumerate(books, 1):
                book = snapshot(instrument, self.levels, self.number, len(books))
                data = packet(number, book, send_time=self.number)
                self.sock.sendto(data, self.loops[line])
                await asyncio.sleep(0.001 + 0.002 * line)
            await asyncio.sleep(0.01)

    def configuration(self) -> Config:
        """A gateway of the one channel, with its lines and nothing else."""
        lines = tuple(
            LineConfig(name=name, group=group, port=port)
            for name, (group, port) in zip("AB", self.lines, strict=True)
        )
        loops = tuple(
            RefreshLineConfig(name=name, group=group, port=port)
            for name, (group, port) in zip("AB", self.loops, strict=True)
        )
        return Config(
            gateway=GatewaySettings(feed=FEED.name),
            channels=(ChannelConfig(service=CHANNEL, lines=lines, refresh_lines=loops),),
            amqp=AmqpConfig(listen="127.0.0.1:0"),
            arbitration=QUICK,
            recovery=RecoverySettings(refresh_backoff_us=20_000, refresh_retry_us=100_000),
        )


def levels_of(market: Market) -> Levels:
    """The levels of a market, as the exchange has them."""
    found: Levels = {}
    for instrument in INSTRUMENTS:
        if instrument not in market.books:
            continue
        view = market.books[instrument]
        for side, levels in ((b"0", view.bids.top(99)), (b"1", view.asks.top(99))):
            for price, size, _ in levels:
                assert price % PRICE == 0
                found[key(instrument, side, price)] = size.to_bytes(4, "big")
    return found


async def test_what_no_server_gives_back_loops_make_good_and_books_are_those_of_the_exchange() -> (
    None
):
    exchange = Exchange()
    market = feedhandler.Market(FEED)
    assert isinstance(market, Market)
    reasons: list[str] = []
    looping: list[asyncio.Task[None]] = []
    try:
        async with running(exchange.configuration()) as (gateway, _, url):
            async with feedhandler.subscribe(url, "cme.#") as subscribed:
                sending = asyncio.create_task(exchange.publish())
                looping = [asyncio.create_task(exchange.loop(line)) for line in (0, 1)]
                at, whole = 0, True
                async with asyncio.timeout(PATIENCE_S):
                    async for message in subscribed:
                        market.update(message)
                        if message.quality is not None:
                            reasons.append(message.quality["reason"])
                            whole = message.quality["state"] in ("OK", "REFRESHED")
                        elif not message.snapshot:
                            at = max(at, message.sequence)
                        if at == LAST and whole:
                            break
                await sending
            assert gateway.snapshot()["channels"][0]["quality"] in ("OK", "REFRESHED")
            loops = gateway.core.recovery.snapshot(0)["refresh"]
    finally:
        for task in looping:
            task.cancel()
        exchange.sock.close()
    assert exchange.lost > 5
    assert "gap" in reasons
    assert loops["snapshots"] >= 1
    assert levels_of(market) == exchange.levels
    assert not market.problems["bad_packet"]
