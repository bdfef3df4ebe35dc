"""The books of a FIX channel, kept by a subscriber behind two lossy lines.

    python examples/fix_books.py --seconds 2

A simulated exchange publishes FIX messages (W and X) on two multicast lines of this machine; each
loses datagrams, and some are lost on both. A gateway makes one stream of the lines, fetches by
Resend Requests what both lost, and hands it out by AMQP; here a subscriber makes books of it. At
the end they are compared, entry by entry, with those made of the exchange's own messages.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import feedhandler
from feedhandler.config import AmqpConfig, GatewaySettings, StatsConfig
from feedhandler.config.show import to_toml
from feedhandler.fixcast.exchange import FixExchange
from feedhandler.fixcast.exchange_plan import FixExchangePlan, market_seed, symbols_of
from feedhandler.ops.exchange import RETRANSMISSION_PORT
from feedhandler.ops.scenes import FIX, SCENES
from feedhandler.replay.generating.fix_market import FixMarket
from feedhandler.replay.translation.fix_book import book_of
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.terminal.children import Family

#: With this seed the second datagram of the exchange is lost on both lines, and others after it.
SEED = 50
#: The channel whose books are kept, and the security with most messages.
CHANNEL, SECURITY = 1, b"EQ1001"
PATIENCE_S = 120.0


class Books:
    """A subscriber's books; the last message that they are made of; ranges announced as lost."""

    def __init__(self, url: str) -> None:
        self.state = MarketState()
        self.number = 0
        self.lost: list[list[int]] = []
        self.attached = asyncio.Event()
        self._url = url

    async def follow(self) -> None:
        """Apply each message, until it is cancelled."""
        async with feedhandler.subscribe(self._url, f"fix.{CHANNEL}", as_="message") as messages:
            self.attached.set()
            async for message in messages:
                if message.content == "quality":
                    self.lost += (message.quality or {}).get("lost", [])
                else:
                    self.number = message.own_sequence
                    self.state.apply(message.body, self.number)

    async def have(self, number: int) -> None:
        """Wait for the message with this number."""
        async with asyncio.timeout(PATIENCE_S):
            while self.number < number:
                await asyncio.sleep(0.01)


async def main(seconds: float, rate: float, port: int, port_base: int) -> None:
    plan = FixExchangePlan(
        seed=SEED,
        seconds=seconds,
        messages_per_s=rate,
        losses=(0.02, 0.02),
        together=0.03,
        port_base=port_base,
        server_port=port_base + RETRANSMISSION_PORT,
        # Its server answers until the books have the last message, however busy the machine is.
        linger_s=PATIENCE_S,
    )
    config = SCENES[FIX].config(
        port_base,
        amqp=AmqpConfig(listen=f"127.0.0.1:{port}"),
        gateway=GatewaySettings(feed=SCENES[FIX].feed),
        # The gateway is there before the exchange's server: it looks for it often. What is missing
        # is waited for as long as it takes, for these books are to be whole.
        recovery=RecoverySettings(
            reconnect_us=50_000,
            reconnect_max_us=50_000,
            retries=20,
            recovery_wait_us=60_000_000,
            request_timeout_us=2_000_000,
        ),
        stats=StatsConfig(bind=""),
    )
    ready = asyncio.Event()

    def on_error(line: str) -> None:
        if ": ready: " in line:
            ready.set()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        async with Family() as family:
            await family.start("gateway", "-m", "feedhandler", "run", str(path), on_error=on_error)
            await family.until(ready, PATIENCE_S, "starting the gateway")
            books = Books(f"amqp://127.0.0.1:{port}")
            following = asyncio.create_task(books.follow())
            await family.until(books.attached, PATIENCE_S, "attaching to the gateway")
            exchange, closed, done = FixExchange(plan), asyncio.Event(), asyncio.Event()
            running = asyncio.create_task(
                exchange.run(done, lambda progress: closed.set() if progress.closed else None)
            )
            await family.until(closed, seconds + PATIENCE_S, "publishing")
            await books.have(exchange.messages[CHANNEL])
            done.set()
            result = await running
            following.cancel()
    lost = result.lines["A"].together
    expected = expected_books(plan.seed, result.messages[CHANNEL])
    best = book_of(books.state, SECURITY)
    bid, offer = (side.top(1)[0][0] for side in (best.book.bids, best.book.asks))
    print(f"{SECURITY.decode()}: {bid} bid, {offer} offered (of 10^{best.price_places})")
    print(
        f"{books.number:,} messages, {lost:,} datagrams lost on both lines, "
        f"{len(books.state.securities)} books"
    )
    if books.lost:
        raise SystemExit(f"messages were lost: {books.lost}")
    if books.state.contents() != expected.contents():
        raise SystemExit("the books are others than the exchange's")
    print("the same as the exchange's")


def expected_books(seed: int, count: int) -> MarketState:
    """Return the books that the channel's first messages make, without lines and gateway."""
    market, state = FixMarket(market_seed(seed, CHANNEL), symbols_of(CHANNEL)), MarketState()
    for number in range(1, count + 1):
        state.apply(market.next_message(0), number)
    return state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=5_000.0, help="messages a second")
    parser.add_argument("--port", type=int, default=5_672, help="of the gateway")
    parser.add_argument("--port-base", type=int, default=30_000, help="of the exchange")
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.rate, given.port, given.port_base))
