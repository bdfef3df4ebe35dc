"""A keyed queue with a million waiting messages: how soon after a start it hands one out.

The queue is filled first, through a gateway. Then a gateway is started anew, and a consumer
attached as soon as that is possible; the clock runs from the start of the process to the first
message. Beside it the same with a few messages: what a start takes anyhow.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.keyed_site import QUEUE, START_SECONDS_MAX, Site
from feedhandler import keyed

WAITING, QUICK_WAITING = 1_000_000, 100_000
TURNS = 3
BAR_S = 3.0
SMOKE: dict[str, object] = {"QUICK_WAITING": 1000, "TURNS": 1}


async def first(site: Site) -> float:
    """Return seconds from a start of the gateway to the first message that it hands out."""
    came = asyncio.Event()
    over = asyncio.Event()

    async def handler(message: keyed.Message) -> None:
        came.set()
        await over.wait()

    began = time.perf_counter()
    with site.gateway():
        work = await site.attached(lambda: keyed.consume(site.url, QUEUE, handler))
        async with asyncio.timeout(START_SECONDS_MAX):
            await came.wait()
        took = time.perf_counter() - began
        over.set()
        await work.__aexit__(None, None, None)
    return took


def run(quick: bool = False) -> dict[str, Any]:
    """Measure seconds with many waiting, and with hardly any: each start takes one."""
    count = QUICK_WAITING if quick else WAITING
    found: dict[str, Any] = {"waiting": count, "bar_s": BAR_S, "problems": []}
    for name, waiting in (("one", TURNS), ("many", count)):
        with tempfile.TemporaryDirectory(prefix="feedhandler-bench-") as folder:
            site = Site(Path(folder))
            asyncio.run(site.fill(waiting))
            turns = [asyncio.run(first(site)) for _ in range(TURNS)]
        found[name] = {"seconds": statistics.median(turns), "turns": turns}
    many, one = found["many"]["seconds"], found["one"]["seconds"]
    print(
        f"  {count:,} waiting: the first is handed out {many:.2f} s after the start"
        f" (bar {BAR_S:g}); with {TURNS} waiting {one:.2f} s"
    )
    return found
