"""Consume, transform, produce in one call: what a handler returns counts with its message's end."""

import asyncio
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedhandler import keyed
from feedhandler.amqp.conditions import RESOURCE_LIMIT_EXCEEDED
from feedhandler.amqp.durable.coordinator import Coordinator
from feedhandler.amqp.durable.transactions import TransactionError, Transactions
from feedhandler.config.queues import DurableQueueConfig
from tests.support.durable import QueueRig, orders, running
from tests.system.test_keyed_workers import ACCOUNT, body, url


def out(folder: Path, name: str = "out", **settings: Any) -> DurableQueueConfig:
    """A queue that handlers put into."""
    return orders(folder / name, name=name, **settings)


def depth(rig: QueueRig, name: str) -> int:
    """Messages of a queue."""
    found: int = rig.queues.all[name].snapshot()["depth"]
    return found


def doubled(message: keyed.Message) -> list[keyed.Output]:
    """A handler for a thread or a process: one message more in each of two queues."""
    content = json.loads(message.body)
    return [
        keyed.Output("out", message.body, message_id=f"m{content['n']}"),
        keyed.Output("audit", b"%d" % content["n"], properties={"account": content["account"]}),
    ]


async def a_doubled(message: keyed.Message) -> list[keyed.Output]:
    """The same as a coroutine."""
    return doubled(message)


async def everything(rig: QueueRig, name: str, wanted: int) -> list[keyed.Message]:
    """Take all of a queue's messages."""
    got: list[keyed.Message] = []

    async def handler(message: keyed.Message) -> None:
        got.append(message)

    async with keyed.consume(url(rig), name, handler, workers=1):
        await rig.until(lambda: len(got) >= wanted, f"what is in {name}")
    return got


async def put(rig: QueueRig, count: int, accounts: int) -> None:
    """Put so many messages into `orders`."""
    async with keyed.producer(url(rig), "orders", id="p") as producer:
        for number in range(count):
            await producer.put_soon(body(number % accounts, number))


async def put_more(rig: QueueRig) -> None:
    """Put one message more into `orders`."""
    async with keyed.producer(url(rig), "orders") as producer:
        await producer.put(body(0, 7))


@pytest.mark.parametrize(
    ("handler", "options"),
    [(a_doubled, {"workers": 80}), (doubled, {"workers": 4}),
     (doubled, {"workers": 2, "processes": True})],
    ids=["coroutines", "threads", "processes"],
)  # fmt: skip
async def test_what_handlers_return_is_put_once_and_in_order(
    tmp_path: Path, handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    configs = (
        orders(tmp_path / "q", key=ACCOUNT),
        out(tmp_path, key=ACCOUNT),
        out(tmp_path, "audit"),
    )
    async with running(*configs) as rig:
        await put(rig, 200, 100)
        async with keyed.consume(url(rig), "orders", handler, **options) as work:
            await rig.until(lambda: depth(rig, "orders") == 0, "the end of the queue")
            await rig.until(lambda: work.done == 200, "the commits")
        assert (work.failed, work.stale) == (0, 0)
        assert rig.queues.transactions.open == 0
        await rig.until(lambda: depth(rig, "audit") == 200, "what was put")
        audit = await everything(rig, "audit", 200)
        assert sorted(int(each.body) for each in audit) == list(range(200))
        assert all(each.properties["account"] == int(each.body) % 100 for each in audit)
        by_account: dict[int, list[int]] = defaultdict(list)
        for each in await everything(rig, "out", 200):
            content = json.loads(each.body)
            assert each.message_id == f"m{content['n']}"
            by_account[content["account"]].append(content["n"])
        for account, numbers in by_account.items():
            assert numbers == list(range(account, 200, 100))


async def test_an_output_that_is_not_taken_is_a_failure_of_its_handler_and_nothing_of_it_is_there(
    tmp_path: Path,
) -> None:
    faults: dict[int, Any] = {
        1: keyed.Output("out", b"no account"),
        2: keyed.Output("nowhere", b"x"),
        3: "a text that would be lost",
        4: keyed.Output("out", b'{"account": 1, "x": "' + b"x" * (1 << 18) + b'"}'),
    }
    tries: dict[int, list[int]] = defaultdict(list)

    async def handler(message: keyed.Message) -> Any:
        number = json.loads(message.body)["n"]
        tries[number].append(message.tries)
        good = keyed.Output("out", message.body)
        fault = faults.get(number)
        if message.tries == 2 or fault is None:
            return good
        return fault if isinstance(fault, str) else [good, fault]

    configs = orders(tmp_path / "q", key=ACCOUNT), out(tmp_path, key=ACCOUNT)
    async with running(*configs) as rig:
        await put(rig, 6, 6)
        async with keyed.consume(url(rig), "orders", handler, workers=6) as work:
            await rig.until(lambda: depth(rig, "orders") == 0, "the end of the queue")
            await rig.until(lambda: work.done == 6, "the commits")
        assert work.connects == 1
        assert work.failed == 2 * len(faults)
        assert all(tries[number] == [0, 1, 2] for number in faults)
        await rig.until(lambda: depth(rig, "out") == 6, "what was put")


async def test_a_node_without_room_for_transactions_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare, asked = Transactions.declare, itertools.count()

    def declared(transactions: Transactions, owner: object) -> Any:
        if next(asked) < 3:
            raise TransactionError(
                RESOURCE_LIMIT_EXCEEDED, "the node's transactions have no room; try again later"
            )
        return declare(transactions, owner)

    monkeypatch.setattr(Transactions, "declare", declared)
    configs = orders(tmp_path / "q", key=ACCOUNT), out(tmp_path), out(tmp_path, "audit")
    async with running(*configs) as rig:
        await put(rig, 1, 1)
        async with keyed.consume(url(rig), "orders", a_doubled) as work:
            await rig.until(lambda: work.done == 1, "the commit")
        assert (next(asked), work.failed) == (4, 0)


async def test_a_commit_whose_answer_never_comes_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, lost = Coordinator._discharged, itertools.count()

    def discharged(control: Coordinator, *rest: Any) -> None:
        if next(lost):
            answered(control, *rest)
        else:
            control.end("amqp:internal-error", "the answer is lost")

    monkeypatch.setattr(Coordinator, "_discharged", discharged)
    configs = orders(tmp_path / "q", key=ACCOUNT), out(tmp_path), out(tmp_path, "audit")
    async with running(*configs) as rig:
        await put(rig, 1, 1)
        async with keyed.consume(url(rig), "orders", a_doubled) as work:
            await rig.until(lambda: work.stale == 1, "the end of the commit")
            await put_more(rig)
            await rig.until(lambda: work.done == 1, "another commit")
        await rig.until(lambda: depth(rig, "orders") == 0, "the end of the queue")
        await rig.until(lambda: depth(rig, "out") == 2, "what was put")
        assert sorted(json.loads(each.body)["n"] for each in await everything(rig, "out", 2)) == [
            0,
            7,
        ]


async def test_who_has_lost_his_message_puts_nothing(tmp_path: Path) -> None:
    late = asyncio.Event()
    seen: list[int] = []

    async def handler(message: keyed.Message) -> keyed.Output:
        seen.append(message.fence)
        if len(seen) == 1:
            await late.wait()
        return keyed.Output("out", b"by %d" % message.fence)

    slow = keyed.Definition(fields=("account",), timeout_ms=1000)
    async with running(orders(tmp_path / "q", key=slow), out(tmp_path)) as rig:
        await put(rig, 1, 1)
        async with keyed.consume(url(rig), "orders", handler, workers=2) as work:
            await rig.until(lambda: depth(rig, "orders") == 0, "another worker's commit")
            late.set()
            await rig.until(lambda: work.stale >= 1, "the late one's answer")
        await rig.until(lambda: depth(rig, "out") == 1, "what was put")
        got = await everything(rig, "out", 1)
        assert got[0].body in [b"by %d" % fence for fence in seen[1:]]


@pytest.mark.random
async def test_connections_that_are_lost_at_any_moment_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    draw, count = random.Random(seed), 300
    configs = orders(tmp_path / "q", key=ACCOUNT), out(tmp_path), out(tmp_path, "audit")
    async with running(*configs) as rig:
        await put(rig, count, 20)
        async with keyed.consume(url(rig), "orders", a_doubled, workers=8) as work:
            for left in sorted(draw.sample(range(20, count), 6), reverse=True):
                await rig.until(lambda left=left: depth(rig, "orders") <= left, "progress")
                for connection in list(rig.node.connections):
                    connection.end()
            await rig.until(lambda: depth(rig, "orders") == 0, "the end of the queue")
        assert work.connects > 1
        await rig.until(
            lambda: rig.queues.all["orders"].snapshot()["outbox"] == 0, "the outbox's end"
        )
        for name in ("out", "audit"):
            assert depth(rig, name) == count
            assert rig.queues.all[name].snapshot()["put"] == count
