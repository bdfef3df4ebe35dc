"""A gateway with a durable queue that is killed (kill -9) again and again under its clients.

Traders put and cancel, a consumer takes and waits until its acceptance is recorded; what each was
told goes into a ledger. Whatever was accepted comes out, unless its cancel was asked for; what is
recorded as delivered, or was answered `cancelled`, never comes (again). `KILLS=n` sets how often,
`SEED=s` begins with another seed.
"""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import proton
import pytest

from feedhandler.ops import queue as queue_command
from tests.support.durable import ACCEPTED, QueueClient, orders
from tests.support.gateway import Market, start

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("SEED", "1"))
PATIENCE_S = 60.0
#: Messages that one life accepts before it is cut off, at most.
LIFE_MESSAGES_MAX = 600


class Book:
    """Record of what traders and consumer were answered, by the message's number."""

    def __init__(self) -> None:
        self.next = 1
        self.attempted: set[int] = set()
        self.accepted: set[int] = set()
        self.asked: set[int] = set()
        self.cancelled: set[int] = set()
        #: What the consumer has said it accepts: the gateway may have died before or after it
        #: recorded that, and before it could say so.
        self.said: set[int] = set()
        self.recorded: set[int] = set()
        self.came: dict[int, int] = {}
        self.wrong: list[str] = []

    def come(self, message: proton.Message) -> int:
        """A message has come to the consumer."""
        number = int(message.body)
        if number in self.recorded:
            self.wrong.append(f"{number} came again although its delivery was recorded")
        if number in self.cancelled:
            self.wrong.append(f"{number} came although it was cancelled")
        if number not in self.attempted or message.id != f"m{number}":
            self.wrong.append(f"{number} was never put")
        if number in self.came and message.first_acquirer:
            self.wrong.append(f"{number} came again, and as new")
        self.came[number] = self.came.get(number, 0) + 1
        return number


def trade(port: int, book: Book, draw: random.Random, over: threading.Event) -> None:
    """Put messages, twenty at a time, and cancel one of them now and then, until told."""
    client = QueueClient(port)
    link = client.sender()
    while not over.is_set():
        numbers = list(range(book.next, book.next + 20))
        book.next += 20
        book.attempted.update(numbers)
        sent = {n: client.send(link, proton.Message(id=f"m{n}", body=n)) for n in numbers}
        try:
            client.pump(lambda: all(each.settled for each in sent.values()), "outcomes")  # noqa: B023
        finally:
            book.accepted.update(n for n, each in sent.items() if each.remote_state == ACCEPTED)
        if draw.random() < 0.3:
            number = draw.choice(numbers)
            book.asked.add(number)
            if client.ask(operation="cancel", message_id=f"m{number}")[0]["answer"] == "cancelled":
                book.cancelled.add(number)
    client.close()


def consume(port: int, book: Book, draw: random.Random, over: threading.Event) -> None:
    """Take messages, accept them in portions and wait until that is recorded, until told and
    nothing is left."""
    client = QueueClient(port)
    client.new_session()
    link = client.sessions[-1].receiver("taker")
    link.source.address = "queue.orders"
    link.rcv_settle_mode = proton.Link.RCV_SECOND
    client.received[link.name] = []
    link.open()
    link.flow(50)
    held: list[tuple[int, proton.Delivery]] = []
    while True:
        done = over.is_set() and not held and client.ask(operation="stat")[1]["depth"] == 0
        ready = lambda: client.of(link) or held or over.is_set()  # noqa: B023, E731
        client.pump(lambda: bool(ready()), "messages")  # noqa: B023
        if done and not client.of(link):
            break
        held += [(book.come(message), delivery) for message, delivery in client.of(link)]
        client.messages.clear()
        batch, held = held, held[draw.randrange(len(held) + 1) :]
        batch = batch[: len(batch) - len(held)]
        book.said.update(number for number, _ in batch)
        for _, delivery in batch:
            delivery.update(ACCEPTED)
        client.pump(lambda: all(each.settled for _, each in batch), "the records")  # noqa: B023
        book.recorded.update(number for number, _ in batch)
        for _, delivery in batch:
            delivery.settle()
        link.flow(len(batch))
    client.close()


def guarded(task: Callable[..., None], failures: list[BaseException], *about: object) -> None:
    """Run a client; that its gateway is gone is what this is about."""
    try:
        task(*about)
    except (ConnectionError, proton.ProtonException):
        pass
    except BaseException as error:
        if "has gone" not in str(error):
            failures.append(error)


async def live(config: object, folder: Path, book: Book, seed: int, kill: bool) -> None:
    """One life of the gateway, with its clients."""
    draw = random.Random(seed)
    gateway = await start(config, folder / "gateway.toml")
    over, drained, failures = threading.Event(), threading.Event(), []
    port = config.amqp.address[1]
    wanted = len(book.accepted) + draw.randrange(1, LIFE_MESSAGES_MAX if kill else 200)
    draws = [random.Random(draw.random()) for _ in range(2)]
    threads = [
        threading.Thread(target=guarded, args=(task, failures, port, book, *about), daemon=True)
        for task, *about in ((trade, draws[0], over), (consume, draws[1], drained))
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(book.accepted) < wanted and not failures:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)
    if kill:
        gateway.send_signal(signal.SIGKILL)
    over.set()
    await asyncio.to_thread(threads[0].join)
    drained.set()  # nothing more is accepted: what is left is all that there will be
    await asyncio.to_thread(threads[1].join)
    if not kill:
        gateway.terminate()
    await asyncio.wait_for(gateway.wait(), PATIENCE_S)
    assert not failures, f"SEED={SEED}: {failures[0]!r}"


@pytest.mark.timeout(0 if KILLS > 1 else 200)
def test_a_killed_gateway_loses_nothing_that_it_accepted(tmp_path: Path) -> None:
    market, book = Market(1), Book()
    folder = tmp_path / "queue"
    config = market.config()
    config = type(config)(
        amqp=config.amqp,
        channels=config.channels,
        queues=(orders(folder, checkpoint_bytes=1 << 18),),
    )
    about = f"SEED={SEED} KILLS={KILLS} python -m pytest -s {__file__}"
    for seed in range(SEED, SEED + KILLS + 1):
        asyncio.run(live(config, tmp_path, book, seed, kill=seed < SEED + KILLS))
        assert not book.wrong, f"{about}: {book.wrong[:5]}"
        assert queue_command.verify(folder, as_json=False) == 0, about
    lost = book.accepted - book.asked - book.said
    assert not lost, f"{about}: lost {sorted(lost)[:9]}"
    print(
        f"{KILLS} kills, {len(book.accepted):,} accepted, {len(book.cancelled):,} cancelled,"
        f" {sum(book.came.values()) - len(book.came):,} came again"
    )
