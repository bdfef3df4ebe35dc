"""A gateway in the test's own event loop, a socket that sends to its lines, and a wait."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from feedhandler.config import Config
from feedhandler.gateway import Gateway
from tests.support.node import PATIENCE_S


@contextlib.asynccontextmanager
async def gateway_here(config: Config) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway from ready to stopped, and its URL."""
    gateway = Gateway(config)
    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(gateway.run(ready.set, stop))
    waiting = asyncio.create_task(ready.wait())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        host, port = gateway.node.address
        yield gateway, f"amqp://{host}:{port}"
    finally:
        waiting.cancel()
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(task, return_exceptions=True)
    await task


def multicast_sender() -> socket.socket:
    """A socket whose datagrams to multicast groups stay on this machine."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    return made


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so, by looking again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
