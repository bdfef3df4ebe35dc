"""Durable queues and stock clients, as their guides and libraries have it."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import proton
import pytest
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support.checkout import CHECKOUT
from tests.support.durable import ACCEPTED, orders, running
from tests.support.node import in_thread

DOCS = CHECKOUT / "docs"
SAMPLE = DOCS / "guides" / "samples" / "python" / "durable_queue.py"


def test_the_page_shows_its_sample_word_for_word() -> None:
    assert SAMPLE.read_text() in (DOCS / "queues.md").read_text()


async def test_the_sample_puts_cancels_and_takes(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SAMPLE),
            rig.url,
            "orders",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )
        out, errors = await asyncio.wait_for(process.communicate(), 120)
        assert errors.decode() == ""
        assert out.decode().splitlines() == [
            "cancel order-2: cancelled",
            "waiting: 2",
            "order-1 buy 100 IBM tried before: 0",
            "order-3 buy 300 IBM tried before: 0",
        ]
        await rig.until(lambda: rig.figure("depth") == 0, "the records")


class Through(MessagingHandler):
    """Sends so many messages with whatever credit there is, and takes them back."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(prefetch=50)
        self.url, self.count = url, count
        self.sent = self.confirmed = 0
        self.got: list[int] = []

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(self.url)
        event.container.create_sender(self.connection, "queue.orders")
        event.container.create_receiver(self.connection, "queue.orders")

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.sent < self.count:
            event.sender.send(proton.Message(id=self.sent, body=self.sent))
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        self.confirmed += 1
        self._finish()

    def on_message(self, event: Any) -> None:
        self.got.append(event.message.body)
        self._finish()

    def _finish(self) -> None:
        if self.confirmed == len(self.got) == self.count:
            self.connection.close()


async def test_a_messaging_handler_sends_and_receives(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        handler = Through(rig.url, 500)
        await in_thread(Container(handler).run)
        assert handler.got == list(range(500))
        await rig.until(lambda: rig.figure("delivered") == 500, "the records")


async def test_the_orderly_end_answers_what_is_on_its_way(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        client = await rig.client()
        link = await in_thread(client.sender)

        def send() -> list[Any]:
            sent = [client.send(link, proton.Message(body=n)) for n in range(100)]
            client.sync()
            return sent

        sent = await in_thread(send)
        ending = asyncio.create_task(rig.node.stop(5.0))
        await in_thread(client.pump, lambda: all(s.settled for s in sent), "the outcomes")
        assert all(each.remote_state == ACCEPTED for each in sent)
        client.drop()
        await ending


@pytest.mark.parametrize("durability", ["durable", "fast"])
async def test_either_durability_serves(tmp_path: Path, durability: str) -> None:
    async with running(orders(tmp_path, durability=durability)) as rig:
        client = await rig.client()
        await in_thread(client.put_numbers, await in_thread(client.sender), 1, 2)
        link = await in_thread(client.taker)
        assert await in_thread(client.wait_for, link, 2) == [1, 2]
        assert rig.figure("durability") == durability
