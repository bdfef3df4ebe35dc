"""RabbitMQ 4 as a peer of the persistent queue: accept with confirms, and deliver, of one queue.

Driven by the project's own engine, one connection: sending, as many messages under way as the
broker's credit allows, each durable and counted when the broker has accepted it; receiving, with
credit, settled by the broker as it sends, which spares it the acknowledgement that ours makes
durable.
"""

import asyncio
import select
import struct
import time

from bench.local import LocalClient
from tests.support.brokers import USER, RabbitMQ4

#: A header section that says: durable.
DURABLE = bytes.fromhex("005370c0020141")
QUEUE = "journal-peer"
WINDOW = 4096
CREDIT = 2000
PATIENCE_SECONDS = 60.0


def declare(made: RabbitMQ4, kind: str) -> None:
    """Declare a durable queue: "quorum" or "classic"."""
    body = {"durable": True, "arguments": {"x-queue-type": kind}}
    made.api("PUT", made._path("queues", QUEUE), body)


def rates(made: RabbitMQ4, kind: str, size: int, count: int) -> tuple[float, float]:
    """Return messages a second accepted, then delivered."""
    declare(made, kind)
    try:
        return _accepted(made, size, count), asyncio.run(_delivered(made, count))
    finally:
        made.delete(QUEUE)


def _client(made: RabbitMQ4) -> LocalClient:
    return LocalClient(
        made.port, user=USER, password=made.password, hostname=made.virtual_host or ""
    )


def _wait(client: LocalClient) -> None:
    """Wait until something can be read."""
    if not select.select([client.sock], [], [], PATIENCE_SECONDS)[0]:
        raise TimeoutError("the broker says nothing")


def _accepted(made: RabbitMQ4, size: int, count: int) -> float:
    data = b"\x00\x53\x75\xb0" + struct.pack(">I", size) + bytes(size)
    client = _client(made)
    try:
        link = client.engine.publisher("journal", made.source(QUEUE), durable=True, outcomes=True)
        sent = confirmed = 0
        began = 0.0
        while confirmed < count:
            client.turn()
            while sent < count and sent - confirmed < WINDOW and link.credit() and link.ready():
                began = began or time.perf_counter()
                link.send_parts(sent, DURABLE, data, 0, 0, b"")
                sent += 1
            client.engine.flush()
            confirmed += len(link.confirmed)
            link.confirmed.clear()
            if link.returned:
                raise RuntimeError(f"the broker gave messages back: {link.returned[0]}")
            if confirmed < count:
                _wait(client)
        return count / (time.perf_counter() - began)
    finally:
        client.close()


async def _delivered(made: RabbitMQ4, count: int) -> float:
    client = _client(made)
    try:
        began = time.perf_counter()
        await client.attach([made.source(QUEUE)], CREDIT, settled=True)
        while client.received < count:
            if not client.turn():
                _wait(client)
        return count / (time.perf_counter() - began)
    finally:
        client.close()
