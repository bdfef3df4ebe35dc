"""A keyed queue with a million waiting messages: how soon after a start it hands one out.

The queue is filled first, through a gateway. Then a gateway is started anew, and a consumer
attached as soon as that is possible; the clock runs from the start of the process to the first
message. Beside it the same with a few messages: what a start takes anyhow.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from feedhandler import keyed
from feedhandler.amqp.client import Ended
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.config import loopback_config
from feedhandler.config_show import to_toml
from feedhandler.keyed.definition import Definition
from feedhandler.ports import free_ports
from feedhandler.queue_settings import DurableQueueConfig

WAITING, QUICK_WAITING = 1_000_000, 100_000
KEYS = 10_000
MESSAGE_BYTES = 100
TURNS = 3
BAR_S = 3.0
START_SECONDS_MAX = 60.0
PAUSE_S = 0.01
QUEUE = "orders"
SMOKE: dict[str, object] = {"QUICK_WAITING": 1000, "TURNS": 1}


def body(number: int) -> bytes:
    """One of the waiting messages."""
    return b'{"key": %d, "n": %d}' % (number % KEYS, number) + b" " * (MESSAGE_BYTES - 30)


class Site:
    """A gateway with a keyed queue in `folder`."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"amqp://127.0.0.1:{self.port}"
        self.path = folder / "gateway.toml"
        table = DurableQueueConfig(
            name=QUEUE, folder=str(folder / "queue"),
            key=Definition(fields=("key",), messages_max=2 * WAITING),
        )  # fmt: skip
        config = loopback_config(services=[104], listen=f"127.0.0.1:{self.port}", queues=(table,))
        self.path.write_text(to_toml(config), encoding="utf-8")

    @contextlib.contextmanager
    def gateway(self) -> Any:
        """The gateway's process, for as long as the block runs."""
        words = [sys.executable, "-m", "feedhandler", "run", str(self.path)]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_SECONDS_MAX)

    async def fill(self, count: int) -> None:
        """Put so many messages, as a producer does."""
        with self.gateway():
            producer = await self._attached(lambda: keyed.producer(self.url, QUEUE, id="fill"))
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_exit(producer)
                for number in range(count):
                    await producer.put_soon(body(number))

    async def first(self) -> float:
        """Seconds from a start of the gateway to the first message that it hands out."""
        came = asyncio.Event()
        over = asyncio.Event()

        async def handler(message: keyed.Message) -> None:
            came.set()
            await over.wait()

        began = time.perf_counter()
        with self.gateway():
            work = await self._attached(lambda: keyed.consume(self.url, QUEUE, handler))
            async with asyncio.timeout(START_SECONDS_MAX):
                await came.wait()
            took = time.perf_counter() - began
            over.set()
            await work.__aexit__(None, None, None)
        return took

    async def _attached(self, make: Any) -> Any:
        """A client, as soon as the gateway takes it."""
        deadline = time.perf_counter() + START_SECONDS_MAX
        while True:
            try:
                return await make().__aenter__()
            except (Ended, FeedhandlerError):
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(PAUSE_S)


def run(quick: bool = False) -> dict[str, Any]:
    """Seconds with many waiting, and with hardly any: each start takes one."""
    count = QUICK_WAITING if quick else WAITING
    found: dict[str, Any] = {"waiting": count, "bar_s": BAR_S, "problems": []}
    for name, waiting in (("one", TURNS), ("many", count)):
        with tempfile.TemporaryDirectory(prefix="feedhandler-bench-") as folder:
            site = Site(Path(folder))
            asyncio.run(site.fill(waiting))
            turns = [asyncio.run(site.first()) for _ in range(TURNS)]
        found[name] = {"seconds": statistics.median(turns), "turns": turns}
    many, one = found["many"]["seconds"], found["one"]["seconds"]
    print(
        f"  {count:,} waiting: the first is handed out {many:.2f} s after the start"
        f" (bar {BAR_S:g}); with {TURNS} waiting {one:.2f} s"
    )
    return found
