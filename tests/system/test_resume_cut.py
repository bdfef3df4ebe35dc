"""Subscribers whose TCP connections are cut, again and again, under load, and that come back.

What must hold: as long as the gateway's history has what came in between, nothing is lost or comes
twice, wherever a connection was cut, in the middle of catching up too. Where the history is too
small, a quality message says exactly what is lacking. The instants are random, the seed is printed.
"""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from feedhandler.amqp.subscribing import upstream
from feedhandler.config import HISTORY_BYTES_MIN
from tests.support.gateway import SERVICES, Ledger, Market, Relay, kill, start, subscribed, until

CUTS = 4 * int(os.environ.get("CRASHES", "1"))
RATE = 4000
#: Packets a service between two cuts.
LULL = 600
#: Packets a service that no history of the least size holds.
TOO_MANY = 3000
GRAINS = ("packet", "batch", "message")


async def rig(
    stack: AsyncExitStack, market: Market, folder: Path, history_bytes: int
) -> tuple[Relay, list[Ledger]]:
    """A gateway with a history, a relay before it, and a subscriber of each grain."""
    config = market.config(history_bytes=history_bytes)
    stack.push_async_callback(kill, await start(config, folder / "gateway.toml"))
    relay = await stack.enter_async_context(Relay(market.port))
    ledgers = [await subscribed(stack, market, [relay.url], grain) for grain in GRAINS]
    return relay, ledgers


async def passed(market: Market, ledgers: list[Ledger], packets: int) -> None:
    """Wait until the subscribers have what is sent in so many packets a service from now."""
    goal = {service: number + packets for service, number in market.sent.items()}
    await until(ledgers, lambda x: x.has(goal), f"{packets} packets")


async def come_back(ledgers: list[Ledger], url: str, times: int) -> None:
    await until(ledgers, lambda x: x.attached[url] >= times, "attached again")


@pytest.fixture(autouse=True)
def soon_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscribers that try more often than they would."""
    monkeypatch.setattr(upstream, "RETRY_MOST_US", 200_000)


@pytest.mark.timeout(60 + 10 * CUTS)
async def test_a_subscriber_whose_connection_is_cut_misses_nothing_and_gets_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    instants = random.Random(seed)
    async with AsyncExitStack() as stack:
        market = stack.enter_context(Market(RATE))
        relay, ledgers = await rig(stack, market, tmp_path, 64 << 20)
        market.start()
        await passed(market, ledgers, 1)
        for turn in range(CUTS):
            if turn % 2 == 0:  # every other one cuts what the one before it has to send again
                await passed(market, ledgers, instants.randrange(1, LULL))
            relay.cut()
            await come_back(ledgers, relay.url, 2 + turn)
        market.stop()
        await until(ledgers, lambda x: x.has(market.sent), "all that was sent")
        for ledger in ledgers:
            ledger.assert_whole()
            assert ledger.messages.reconnects == CUTS
            assert ledger.notices("resume")


def joined(ranges: list[list[int]]) -> list[tuple[int, int]]:
    """Ranges, those that follow each other as one."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        begun = found.pop()[0] if found and first == found[-1][1] + 1 else first
        found.append((begun, last))
    return found


def assert_announced(ledger: Ledger, service: int) -> None:
    """Check that what is missing was announced, no more and no less, in as many steps as the link
    was overtaken: one gap, and another one for each time that it had read something in between."""
    gaps = ledger.gaps[service]
    notes = [x for x in ledger.notices("resume") if x["service"] == service]
    ranges = [each for note in notes for each in note["lost"]]
    announced = joined(ranges)
    assert gaps
    assert [last for _, last in announced] == [last for _, last in gaps]
    for (begun, _), (first, _) in zip(announced, gaps, strict=True):
        # Of a packet that is gone it is not known whether the message read last was its last.
        assert begun == first or (ledger.grain == "message" and begun == first - 1)
    assert [(x["state"], x["doubt"]) for x in notes] == [
        ("STALE", "too slow" if number else "too late") for number in range(len(notes))
    ]
    quality = ledger.messages.quality[service]
    assert quality.stale == tuple(announced)
    lost = sum(last - begun + 1 for begun, last in announced)
    assert (quality.lost_ranges, quality.lost_total) == (len(ranges), lost)


async def test_what_a_small_history_no_longer_has_is_announced_to_the_number(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        market = stack.enter_context(Market(RATE))
        relay, ledgers = await rig(stack, market, tmp_path, HISTORY_BYTES_MIN)
        market.start()
        await passed(market, ledgers, 100)
        relay.open = False
        relay.cut()
        goal = {service: number + TOO_MANY for service, number in market.sent.items()}
        while any(market.sent[service] < goal[service] for service in SERVICES):
            await asyncio.sleep(0.01)
        relay.open = True
        await come_back(ledgers, relay.url, 2)
        await passed(market, ledgers, 100)
        market.stop()
        await until(ledgers, lambda x: x.has(market.sent), "all that was sent")
        assert ledgers[0].reached == market.sent
        for ledger in ledgers:
            for service in SERVICES:
                assert_announced(ledger, service)
