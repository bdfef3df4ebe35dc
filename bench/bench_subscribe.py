"""`feedhandler.subscribe` alone: a node in one process at full speed, one subscriber in another.

Messages a second as Python objects (`async for message`), and by the batch form with the columns
of every order update decoded (`async for batch in messages.batches()`). The peer, in the same run,
is qpid-proton's own `MessagingHandler` to `MessagingHandler`.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Coroutine
from typing import Any

import uvloop

import feedhandler
from bench.bench_gateway import peer_rate
from bench.rig import MESSAGES_A_PACKET, SERVICE, templates

OBJECTS_BAR = 150_000
COLUMNS_BAR = 5_000_000
#: Packets put into the ring at a time: a hand-over of a busy moment.
PACKETS_A_TURN = 500
#: For a connection, and for messages that do not come.
PATIENCE_SECONDS = 20.0
SECONDS = 10.0
QUICK_SECONDS = 2.0
SMOKE: dict[str, object] = {"QUICK_SECONDS": 0.5}


def _serve(ports: Any) -> None:
    """Run a node that sends as fast as its subscriber takes; an empty ring is refilled."""
    from bench.local import LocalNode

    async def serve() -> None:
        rig = LocalNode()
        ports.put(rig.node.address[1])
        packets = [(template.payload, MESSAGES_A_PACKET) for template in templates()]
        sender_queues = rig.fanout.sender_queues
        while True:
            # Only while the subscriber keeps up: what is measured is its side.
            if sender_queues and all(
                sender_queue.queued_bytes < 1 << 20 for sender_queue in sender_queues
            ):
                rig.put(packets[:PACKETS_A_TURN])
                rig.node.pump()
            await asyncio.sleep(0)

    uvloop.run(serve())


async def _objects(url: str, seconds: float) -> float:
    """Return market messages a second, each a Python object."""
    count = 0
    async with feedhandler.subscribe(url, f"euronext.{SERVICE}", as_="message") as messages:
        began = time.monotonic()
        async for _message in messages:
            count += 1
            if count & 0x3FF == 0 and time.monotonic() - began > seconds:
                break
    return count / (time.monotonic() - began)


async def _columns(url: str, seconds: float) -> float:
    """Return market messages a second, all their fields in columns."""
    count = 0
    async with feedhandler.subscribe(url, f"euronext.{SERVICE}", as_="batch") as messages:
        began = time.monotonic()
        async for batch in messages.batches():
            if batch.count:
                count += len(batch.columns(230)["seq"])
            if time.monotonic() - began > seconds:
                break
    return count / (time.monotonic() - began)


async def _within(measuring: Coroutine[Any, Any, float], seconds: float) -> float:
    """Return the figure; raises `TimeoutError` where nothing is delivered."""
    return await asyncio.wait_for(measuring, seconds + PATIENCE_SECONDS)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both figures beside the peer's."""
    seconds = QUICK_SECONDS if quick else SECONDS
    peer = peer_rate(2.0 if quick else 5.0)
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=_serve, args=(ports,), daemon=True)
    server.start()
    url = f"amqp://127.0.0.1:{ports.get(timeout=30)}"
    try:
        objects = uvloop.run(_within(_objects(url, seconds), seconds))
        columns = uvloop.run(_within(_columns(url, seconds), seconds))
    finally:
        server.terminate()
        server.join()
    print(
        f"  objects: {objects:,.0f} messages/s (bar {OBJECTS_BAR:,}), {objects / peer:.1f} times "
        f"MessagingHandler's {peer:,.0f}/s"
    )
    print(f"  columns: {columns:,.0f} messages/s (bar {COLUMNS_BAR:,}), {columns / peer:.0f} times")
    return {
        "objects_a_second": objects,
        "objects_bar": OBJECTS_BAR,
        "columns_a_second": columns,
        "columns_bar": COLUMNS_BAR,
        "peer_a_second": peer,
    }
