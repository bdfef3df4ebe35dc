"""A worker's connection that is made again (`amqp.working.connection`), without a node."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.amqp.client import Ended
from feedhandler.amqp.identity import Identity
from feedhandler.amqp.request import parse_endpoint
from feedhandler.amqp.working.connection import KeptConnection

#: Attempts to connect of each outage.
TRIES = 4


class Kept(KeptConnection):
    """A connection that is lost twice, and made again by the last of `TRIES` attempts."""

    def __init__(self) -> None:
        super().__init__(Identity(parse_endpoint("amqp://127.0.0.1:5672"), None))
        self.tries = self.losses = 0
        self._backoff: Any = SimpleNamespace(delay_ns=lambda tries: 0)

    async def _open(self, connection: Any) -> None:
        pass

    def _lost(self) -> None:
        self.losses += 1

    def _end(self, error: Ended) -> None:
        pass

    async def _attach(self) -> None:
        self.tries += 1
        if self.tries % TRIES:
            raise Ended("no answer")
        self._over = asyncio.get_running_loop().create_future()
        if self.tries == TRIES:
            self._over.set_result(None)


async def test_who_waits_for_a_node_is_told_once_for_each_time_that_it_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    kept._over = asyncio.get_running_loop().create_future()
    kept._over.set_result(None)
    keeping = asyncio.create_task(kept._keep())
    async with asyncio.timeout(30):
        while kept.tries < 2 * TRIES:
            await asyncio.sleep(0)
    keeping.cancel()
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert (
        said
        == [
            "amqp://127.0.0.1:5672: the node closed the connection: connecting again",
        ]
        * 2
    )
