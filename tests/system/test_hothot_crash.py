"""Two gateways on the same lines, killed in turn under load, and subscribers attached to both.

What must hold: whichever process is killed at whatever moment, the stream goes on without a gap,
nothing comes twice, and every service keeps its order: all that was sent, byte for byte.
`CRASHES` sets how often (`make crash` runs many); the instants are random, the seed is printed.
"""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest

from feedhandler.amqp.subscribing import upstream
from tests.support.gateway import Ledger, Market, kill, start, subscribed, until

CRASHES = int(os.environ.get("CRASHES", "2"))
RATE = 500
#: Between a gateway's return and the next crash, packets a service.
LULL = 100


class Pair:
    """Two gateway processes of one market; closed with the block."""

    def __init__(self, market: Market, folder: Path) -> None:
        self.configs = [market.config(number) for number in range(2)]
        self.urls = [f"amqp://{config.amqp.listen}" for config in self.configs]
        self._folder = folder
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, number: int) -> None:
        path = self._folder / f"{number}.toml"
        self._processes[number] = await start(self.configs[number], path)

    async def kill(self, number: int) -> None:
        await kill(self._processes[number])

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(self.start(number) for number in range(2)))
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(self.kill(number) for number in self._processes))


async def crash(pair: Pair, victim: int, ledgers: list[Ledger], market: Market, lull: int) -> None:
    """Kill one `lull` packets from now, start it again; returns when the other may be killed."""
    goal = {service: number + lull for service, number in market.sent.items()}
    await until(ledgers, lambda x: x.has(goal), "the packets before the crash")
    url = pair.urls[victim]
    before = ledgers[0].attached[url]
    await pair.kill(victim)
    await pair.start(victim)
    await until(ledgers, lambda x: x.attached[url] > before, "attached again")
    back = market.sent  # what was sent before that, the other one alone may have
    await until(ledgers, lambda x: x.has(back), "what the other gateway has")


@pytest.mark.timeout(60 + 20 * CRASHES)
async def test_nothing_is_lost_or_comes_twice_when_two_gateways_are_killed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(upstream, "RETRY_MOST_US", 200_000)  # sooner back, more crashes a minute
    instants = random.Random(seed)
    async with AsyncExitStack() as stack:
        market = stack.enter_context(Market(RATE))
        pair = await stack.enter_async_context(Pair(market, tmp_path))
        ledgers = [
            await subscribed(stack, market, pair.urls, grain)
            for grain in ("packet", "batch", "message")
        ]
        market.start()
        for turn in range(CRASHES):
            await crash(pair, turn % 2, ledgers, market, instants.randrange(1, LULL))
        market.stop()
        await until(ledgers, lambda x: x.has(market.sent), "all that was sent")
        for ledger in ledgers:
            ledger.assert_whole()
            assert sum(ledger.attached.values()) == 2 + CRASHES
