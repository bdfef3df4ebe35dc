"""Nothing is lost: a whole exchange with its servers on loopback, a gateway, subscribers' markets.

The exchange runs in a thread, the gateway and its subscribers in the test's loop. Its session comes
from a seed, so the test plays it once more by itself and knows every state.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from test_gateway_loopback import QUICK, running

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    LineConfig,
    RefreshLineConfig,
    ServerConfig,
)
from feedhandler.market.stream_market import Market
from feedhandler.replay.exchange.simulated import STEP_NS, Exchange, ExchangePlan
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.packets import ORDERS, REFERENCE, SERVICES
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.retrans.settings import RecoverySettings
from tests.support import free_addresses
from tests.support.gateway_here import until
from tests.support.node import PATIENCE_S

FEED = load_feed("euronext-utp-md")
#: A little session: its state is whole in two seconds.
SECONDS, RATE, INSTRUMENTS, OPENING_NS = 2.0, 4_000.0, 40, 10 * 3600 * 10**9
RECOVERY = RecoverySettings(
    reconnect_us=20_000, reconnect_max_us=50_000, recovery_wait_us=5_000_000,
    refresh_timeout_us=3_000_000,
)  # fmt: skip


def planned(**changes: Any) -> ExchangePlan:
    """An exchange on groups and ports that no other test uses."""
    changes.setdefault("seconds", SECONDS)
    changes.setdefault("messages_per_s", RATE)
    return ExchangePlan(
        seed=7, instruments=INSTRUMENTS, opening_ns=OPENING_NS,
        heartbeat_ms=200, linger_s=15.0,
        group_prefixes=(free_addresses.prefix(), free_addresses.prefix()),
        recovery_prefixes=(free_addresses.prefix(), free_addresses.prefix()),
        **changes,
    )  # fmt: skip


def configured(plan: ExchangePlan, exchange: Exchange, **recovery: Any) -> Config:
    """A gateway of all services of that exchange, with its servers."""

    def lines(kind: Any, address: Any, service: int) -> tuple[Any, ...]:
        lines = [(name, *address(name, service)) for name in "AB"]
        return tuple(kind(name=name, group=group, port=port) for name, group, port in lines)

    channels = tuple(
        ChannelConfig(
            service=service,
            lines=lines(LineConfig, plan.address, service),
            refresh_lines=lines(RefreshLineConfig, plan.recovery_address, service),
            retransmission="rts",
            refresh="rfs",
            reference=service == REFERENCE,
        )
        for service in SERVICES
    )
    return Config(
        channels=channels,
        servers=(
            ServerConfig(name="rts", address=f"127.0.0.1:{exchange.ports['retransmission']}"),
            ServerConfig(name="rfs", address=f"127.0.0.1:{exchange.ports['refresh']}"),
        ),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        arbitration=QUICK,
        recovery=RECOVERY,
    )


def truth(plan: ExchangePlan) -> Market:
    """The state after the whole session, from the session itself."""
    day, opening_ns = plan.moment(FEED)
    generator = SessionGenerator(
        FEED, plan.seed, instruments=plan.instruments, messages_per_s=plan.messages_per_s,
        heartbeat_ns=plan.heartbeat_ms * 1_000_000, day=day, opening_ns=opening_ns,
    )  # fmt: skip
    market = Market(FEED, keeps_messages=True)
    until_ns, end_ns = 0, int(plan.seconds * 1e9)
    while until_ns < end_ns:
        until_ns = min(until_ns + STEP_NS, end_ns)
        for packet in generator.step(until_ns):
            market.apply(packet.packet)
    for packet in generator.close(until_ns):
        market.apply(packet.packet)
    return market


class Trading:
    """An exchange at work in a thread."""

    def __init__(self, plan: ExchangePlan) -> None:
        self.plan = plan
        self.exchange = Exchange(plan)
        self.thread = threading.Thread(target=self.exchange.run, daemon=True)

    def start(self) -> None:
        self.thread.start()

    async def until_closed(self) -> None:
        """Wait until the session's close was sent."""
        async with asyncio.timeout(PATIENCE_S):
            while self.exchange.progress().elapsed_ns < self.plan.seconds * 1e9:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.exchange.stop()
        await asyncio.to_thread(self.thread.join, PATIENCE_S)


@contextlib.asynccontextmanager
async def trading(**changes: Any) -> AsyncIterator[Trading]:
    """An exchange that has its ports, and is not started yet."""
    plan = planned(retransmission_port=0, refresh_port=0, refresh_s=0.5, **changes)
    work = Trading(plan)
    try:
        yield work
    finally:
        if work.thread.is_alive():
            await work.stop()


class Watcher:
    """A subscriber to everything, with a market of its own."""

    def __init__(self, url: str, pattern: str = "euronext.#", **options: Any) -> None:
        self.market = Market(FEED, keeps_messages=True)
        self.messages = feedhandler.subscribe(url, pattern, **options)
        self.live = dict.fromkeys(SERVICES, 0)
        self.blocks = dict.fromkeys(SERVICES, 0)
        self.states: dict[int, list[str]] = {service: [] for service in SERVICES}
        self.lost = 0
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> "Watcher":
        await self.messages.__aenter__()
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.messages.__aexit__(None, None, None)

    async def _watch(self) -> None:
        async for message in self.messages:
            self.market.update(message)
            quality = message.quality
            if quality is not None:
                self.states[message.service].append(quality["state"])
                self.blocks[message.service] += quality["reason"] == "snapshot-begin"
                if quality["reason"] == "gap":
                    self.lost += sum(last - first + 1 for first, last in quality["lost"])
            elif not message.snapshot:
                self.live[message.service] += 1

    async def until_equal(self, market: Market, services: Any = SERVICES) -> None:
        """Wait until its state of each service is the true one."""
        wanted = {service: market.digest(service) for service in services}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while any(self.market.digest(s) != d for s, d in wanted.items()):
                    await asyncio.sleep(0.05)
        different = [s for s, digest in wanted.items() if self.market.digest(s) != digest]
        assert not different, {s: (self.live[s], self.states[s][-3:]) for s in different}


def all_up(gateway: Any) -> bool:
    snapshot = gateway.core.recovery_snapshot(gateway.runner.now_ns())
    return all(each["up"] for each in snapshot["servers"].values())


@pytest.mark.gateways_loop
async def test_what_both_lines_lose_is_retransmitted_and_nothing_is_missing() -> None:
    lossy = (LineFaults(loss=0.02), LineFaults(loss=0.02))
    async with trading(together=0.02, faults=lossy) as work:
        config = configured(work.plan, work.exchange)
        async with running(config) as (gateway, _, url), Watcher(url) as watcher:
            await until(lambda: all_up(gateway))
            work.start()
            await work.until_closed()
            await watcher.until_equal(truth(work.plan))
            snapshot = gateway.snapshot()
            assert watcher.lost == 0
            assert sum(channel["lost"] for channel in snapshot["channels"]) == 0
            recovered = snapshot["recovery"]
            assert recovered["retransmitted"] > 10
            missing = sum(channel["arbitration"]["missing"] for channel in snapshot["channels"])
            assert recovered["requests"] <= missing
            assert recovered["refreshes"] == 0
            await until(lambda: all(c["recovery"]["state"] == "IN_SYNC"
                                    for c in gateway.snapshot()["channels"]))  # fmt: skip
            states = set().union(*watcher.states.values())
            assert "RECOVERING" in states
            assert "STALE" not in states


@pytest.mark.gateways_loop
async def test_what_no_server_can_retransmit_is_refreshed() -> None:
    async with trading(gap_s=0.7) as work:
        config = configured(work.plan, work.exchange)
        async with running(config) as (gateway, _, url), Watcher(url) as watcher:
            await until(lambda: all_up(gateway))
            work.start()
            await work.until_closed()
            await watcher.until_equal(truth(work.plan))
            assert watcher.lost == 1
            assert watcher.blocks[ORDERS] == 1
            assert sum(watcher.blocks.values()) == 1
            states = watcher.states[ORDERS]
            assert states.index("STALE") < states.index("REFRESHED")
            assert gateway.snapshot()["channels"][3]["quality"] == "REFRESHED"


async def test_a_gateway_that_starts_in_mid_day_comes_to_the_true_state() -> None:
    # Long enough for a gateway that takes seconds to start, on a busy machine.
    async with trading(seconds=6.0, together=0.01) as work:
        config = configured(work.plan, work.exchange)
        work.start()
        await until(lambda: work.exchange.progress().elapsed_ns > 1.2e9)
        # A block that was sent before the watcher is there is sent to it again.
        async with (
            running(config) as (gateway, _, url),
            Watcher(url, snapshot=True) as watcher,
        ):
            await work.until_closed()
            await watcher.until_equal(truth(work.plan))
            assert gateway.snapshot()["recovery"]["mid_day_starts"] >= 3
            assert watcher.blocks[REFERENCE] == 1
            assert watcher.blocks[ORDERS] >= 1


async def test_who_attaches_late_gets_the_state_first_if_it_wants() -> None:
    async with trading(seconds=2.5) as work:
        config = configured(work.plan, work.exchange)
        async with running(config) as (gateway, _, url):
            await until(lambda: all_up(gateway))
            work.start()
            await until(lambda: work.exchange.progress().elapsed_ns > 1.5e9)
            async with (
                Watcher(url, snapshot=True) as watcher,
                Watcher(url, "euronext.104", as_="message", snapshot=True) as fine,
                Watcher(url, "euronext.104") as without,
            ):
                await work.until_closed()
                true = truth(work.plan)
                await watcher.until_equal(true)
                await fine.until_equal(true, [ORDERS])
                assert watcher.blocks[ORDERS] == 1
                assert without.blocks[ORDERS] == 0


async def test_a_retransmission_server_that_dies_leaves_stale_and_then_refreshed_streams() -> None:
    async with trading(seconds=2.5, together=0.02) as work:
        exchange = work.exchange
        config = configured(work.plan, exchange)
        with socket.socket() as unused:
            # A port that refuses: the server is never there.
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            dead = ServerConfig(name="rts", address=f"127.0.0.1:{port}")
            config = Config(
                channels=config.channels,
                servers=(dead, config.servers[1]),
                amqp=config.amqp,
                arbitration=config.arbitration,
                recovery=RecoverySettings(recovery_wait_us=50_000, refresh_timeout_us=2_000_000),
            )
            async with running(config) as (gateway, _, url), Watcher(url) as watcher:
                work.start()
                await work.until_closed()
                await watcher.until_equal(truth(work.plan))
                snapshot = gateway.snapshot()
                assert snapshot["recovery"]["retransmitted"] == 0
                assert watcher.lost > 0
                assert snapshot["recovery"]["refreshes"] > 0
                assert "STALE" in watcher.states[ORDERS]


async def test_symbols_are_known_by_name_and_by_index_once_reference_data_is_there() -> None:
    async with trading() as work:
        config = configured(work.plan, work.exchange)
        async with running(config) as (gateway, _, url):
            await until(lambda: all_up(gateway))
            true = truth(work.plan)
            traded = set(true.trades)
            symbol = min(each for each, name in true.names.items() if name in traded)
            name = true.names[symbol].replace(".", "_")
            async with (
                Watcher(url, f"euronext.102.{name}", as_="message") as by_name,
                Watcher(url, f"euronext.102.{symbol}", as_="message") as by_index,
            ):
                work.start()
                await work.until_closed()
                await until(lambda: by_index.live[102] > 0)
                await until(lambda: by_name.live[102] == by_index.live[102])
                assert gateway.core.names[symbol] == name
