"""`feedhandler replay --tcp`: what is sent while clients and signals wait for their turn."""

import asyncio
import itertools
from typing import Any

from feedhandler.ops.replay import tcp


class Followed:
    """A line with a client."""

    followed = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def publish(self, frames: list[bytes]) -> None:
        self.sent += frames


async def test_a_signal_is_heeded_while_everything_is_late() -> None:
    server: Any = Followed()
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    frames = 100 * tcp.BURST
    due = zip(itertools.repeat(0, frames), itertools.repeat([b"frame"]), strict=False)
    assert not await tcp._send(server, next(due), due, stop)
    assert len(server.sent) <= tcp.BURST + 1
