"""A gateway with a keyed queue in a process of its own, for the benchmarks of keyed queues."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from feedhandler import keyed
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.config import loopback_config
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.config.show import to_toml
from feedhandler.keyed.definition import Definition
from feedhandler.ports import free_ports

KEYS = 10_000
MESSAGE_BYTES = 100
#: A key may have half of these: more than wait of one in any bench.
MESSAGES_MAX = 4_000_000
START_SECONDS_MAX = 60.0
PAUSE_S = 0.01
QUEUE = "orders"


def body(number: int, key: int) -> bytes:
    """Return a message with a key and a number."""
    return b'{"key": %d, "n": %d}' % (key, number) + b" " * (MESSAGE_BYTES - 30)


class Site:
    """A gateway with a keyed queue in `folder`; `run`: as of its definition."""

    def __init__(self, folder: Path, run: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        (self.port,) = free_ports(1)
        self.url = f"amqp://127.0.0.1:{self.port}"
        self.path = folder / "gateway.toml"
        table = DurableQueueConfig(
            name=QUEUE, folder=str(folder / "queue"),
            key=Definition(fields=("key",), messages_max=MESSAGES_MAX, run=run),
        )  # fmt: skip
        config = loopback_config(services=[104], listen=f"127.0.0.1:{self.port}", queues=(table,))
        self.path.write_text(to_toml(config), encoding="utf-8")

    @contextlib.contextmanager
    def gateway(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the gateway's process, for as long as the block runs."""
        words = [sys.executable, "-m", "feedhandler", "run", str(self.path)]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_SECONDS_MAX)

    @contextlib.asynccontextmanager
    async def producing(self) -> AsyncIterator[keyed.Producer]:
        """Attach a producer, as soon as the gateway takes it."""
        made: keyed.Producer = await self.attached(lambda: keyed.producer(self.url, QUEUE, id="p"))
        try:
            yield made
        finally:
            await made.__aexit__(None, None, None)

    async def fill(self, count: int) -> None:
        """Put so many messages, as a producer does."""
        with self.gateway():
            async with self.producing() as producer:
                for number in range(count):
                    await producer.put_soon(body(number, number % KEYS))

    async def attached(self, make: Callable[[], Any]) -> Any:
        """Attach a client, as soon as the gateway takes it."""
        deadline = time.perf_counter() + START_SECONDS_MAX
        while True:
            try:
                return await make().__aenter__()
            except FeedhandlerError:
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(PAUSE_S)
