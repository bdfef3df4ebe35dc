"""Random clients of a durable queue: every message that was accepted has one fate, and one only.

Clients put, take, accept, release, reject, modify, detach, vanish, drain and cancel in random
order; at the end one takes what is left. `SEED=s` begins with another seed, `ROUNDS=n` does more.
"""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.durable import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    QueueClient,
    orders,
    running,
)
from tests.support.node import in_thread

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
STEPS = 120


class World:
    """Clients of one queue, and what became of each message as far as they know."""

    def __init__(self, port: int, draw: random.Random) -> None:
        self.port = port
        self.draw = draw
        self.next = 1
        self.accepted: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.rejected: Counter[int] = Counter()
        self.cancelled: set[int] = set()
        self.late: set[int] = set()
        self.clients: list[QueueClient] = []
        self.putting: dict[QueueClient, Any] = {}
        self.taking: dict[QueueClient, list[Any]] = {}
        for _ in range(3):
            self.join()

    def join(self) -> None:
        """One client more."""
        client = QueueClient(self.port)
        self.clients.append(client)
        self.putting[client] = client.sender()
        self.taking[client] = []

    def step(self) -> None:
        """One client does something."""
        client = self.draw.choice(self.clients)
        what = self.draw.choices(
            [self.put, self.take, self.settle, self.detach, self.vanish, self.cancel, self.drain],
            [6, 4, 8, 1, 1, 3, 1],
        )[0]
        what(client)

    def put(self, client: QueueClient) -> None:
        numbers = range(self.next, self.next + self.draw.randrange(1, 30))
        self.next = numbers.stop
        client.put_numbers(self.putting[client], *numbers)
        self.accepted.update(numbers)

    def take(self, client: QueueClient) -> None:
        if not self.taking[client] or self.draw.random() < 0.3:
            self.taking[client].append(client.taker(credit=0))
        self.draw.choice(self.taking[client]).flow(self.draw.randrange(1, 20))
        client.sync()

    def drain(self, client: QueueClient) -> None:
        for link in self.taking[client]:
            link.drain(self.draw.randrange(3))
            client.pump(lambda: not link.draining() or link.credit == 0, "drained")  # noqa: B023

    def settle(self, client: QueueClient) -> None:
        """Say something of some of what it has, in any order."""
        names = {link.name for link in self.taking[client]}
        held = [each for each in client.messages if each[0] in names]
        self.draw.shuffle(held)
        cut = self.draw.randrange(len(held) + 1)
        client.messages = held[cut:]
        for _, message, delivery in held[:cut]:
            number = int(message.body)
            state = self.draw.choice([ACCEPTED, ACCEPTED, ACCEPTED, RELEASED, MODIFIED, REJECTED])
            delivery.local.failed = self.draw.random() < 0.5
            delivery.update(state)
            delivery.settle()
            self.delivered[number] += state == ACCEPTED
            self.rejected[number] += state == REJECTED
        client.sync()

    def detach(self, client: QueueClient) -> None:
        if self.taking[client]:
            self.taking[client].pop(self.draw.randrange(len(self.taking[client]))).close()
            client.sync()

    def vanish(self, client: QueueClient) -> None:
        client.sync()
        client.drop()
        self.clients.remove(client)
        self.join()

    def cancel(self, client: QueueClient) -> None:
        number = self.draw.randrange(max(1, self.next - 60), self.next + 2)
        answer = client.ask(operation="cancel", message_id=f"m{number}")[0]["answer"]
        if answer == "cancelled":
            self.cancelled.add(number)
        elif answer == "delivering":
            self.late.add(number)
        else:
            assert answer in ("delivered", "unknown"), answer
            assert (answer == "unknown") == (number >= self.next)

    def finish(self) -> None:
        """Everybody leaves but one, who takes what is left."""
        for client in self.clients[1:]:
            client.sync()
            client.drop()
        last = self.clients[0]
        for link in self.taking[last]:
            link.close()
        link = last.taker(credit=10_000)
        while last.ask(operation="stat")[1]["depth"]:
            got, last.messages = last.of(link), []
            for message, delivery in got:
                delivery.update(ACCEPTED)
                delivery.settle()
                self.delivered[int(message.body)] += 1
            last.sync()
        last.close()

    def judge(self) -> list[str]:
        """Return a line for each message that ended a wrong number of times."""
        wrong = []
        for number in range(1, self.next):
            ends = self.delivered[number] + self.rejected[number] + (number in self.cancelled)
            # One that was rejected, or came back after a late cancel, is answered `cancelled` too.
            doubtful = number in self.late or (self.rejected[number] and number in self.cancelled)
            if ends != 1 and not (doubtful and ends in (0, 2)):
                wrong.append(f"{number} ended {ends} times")
        return wrong


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_every_message_ends_once_whatever_clients_do(tmp_path: Path, seed: int) -> None:
    about = f"SEED={seed} ROUNDS=1 python -m pytest {__file__}"
    async with running(orders(tmp_path, redeliveries_max=0)) as rig:
        world = await in_thread(World, rig.port, random.Random(seed))
        try:
            for _ in range(STEPS):
                await in_thread(world.step)
            await in_thread(world.finish)
        except Exception as error:
            raise AssertionError(about) from error
        assert not world.judge(), f"{about}: {world.judge()[:5]}"
        assert rig.figure("depth") == 0
        assert sum(world.delivered.values()) > 100
