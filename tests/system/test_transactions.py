"""Transactions at a node: all of one counts, or nothing, over links, queues and crashes."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import proton
import pytest

from feedhandler.amqp.durable.queue import OUTBOX
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.journal.files import Files, carry_out
from feedhandler.journal.layout import VERSION_MIN
from feedhandler.journal.store import creation
from feedhandler.keyed.definition import Definition
from tests.support.durable import (
    ACCEPTED,
    DISCHARGE,
    REJECTED,
    QueueClient,
    QueueRig,
    of_account,
    orders,
    running,
)
from tests.support.gateway import Market, kill, start
from tests.support.node import PATIENCE_S, in_thread

ACCOUNT = Definition(fields=("account",))
KINDS = ["keyed", "plain"]


def queue(folder: Path, name: str, kind: str, **settings: Any) -> DurableQueueConfig:
    """A queue of this name, and kind."""
    key = ACCOUNT if kind == "keyed" else None
    return orders(folder / name, name=name, key=key, **settings)


def of(number: int, account: str = "a", **stamp: Any) -> proton.Message:
    """A message of an account."""
    return of_account(account, number, **stamp)


def numbers(client: QueueClient, link: proton.Receiver) -> list[int]:
    """The numbers of what a link has got."""
    texts = (bytes(message.body).decode() for message, _ in client.of(link))
    return [int(text.split(": ")[-1][:-1]) for text in texts]


def figures(rig: QueueRig, name: str) -> tuple[int, int, int, int]:
    """Depth, delivered, put and outbox of a queue."""
    snapshot = rig.queues.all[name].snapshot()
    return snapshot["depth"], snapshot["delivered"], snapshot["put"], snapshot["outbox"]


async def taken(
    client: QueueClient, *of_orders: proton.Message, credit: int = 10
) -> proton.Receiver:
    """Have messages put into `orders`, and got."""
    putting = await in_thread(client.sender)
    await in_thread(client.put, putting, *of_orders)
    link = await in_thread(client.taker, credit=credit)
    await in_thread(client.wait_for, link, min(len(of_orders), credit))
    return link


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("home", KINDS)
async def test_what_is_consumed_and_produced_counts_together_at_the_discharge(
    tmp_path: Path, home: str, target: str
) -> None:
    configs = queue(tmp_path, "orders", home), queue(tmp_path, "out", target)
    async with running(*configs) as rig:
        client = await rig.client()
        link = await taken(client, of(1), of(2, "b"))
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        out, back = [await in_thread(client.sender, f"queue.{n}") for n in ("out", "orders")]
        await in_thread(client.put_in, out, name, of(11), of(12))
        await in_thread(client.put_in, back, name, of(3, "c"))
        first, second = (delivery for _, delivery in client.of(link))
        client.say_in(first, name)
        client.say_in(second, name, settle=False)
        await in_thread(client.sync)
        assert figures(rig, "out")[::2] == (0, 0)
        assert figures(rig, "orders")[:3] == (2, 0, 2)
        assert await in_thread(client.discharge, control, name) == ""
        await rig.until(lambda: figures(rig, "out") == (2, 0, 2, 0), "what was produced")
        await rig.until(lambda: figures(rig, "orders") == (1, 2, 3, 0), "the outbox's end")
        await in_thread(client.pump, lambda: second.settled, "our settlement")
        assert second.remote_state == ACCEPTED
        await in_thread(client.wait_for, link, 3)
        assert numbers(client, link) == [1, 2, 3]
        reading = await in_thread(client.taker, "queue.out", 5 if target == "plain" else 1)
        count = 2 if target == "plain" else 1
        await in_thread(client.wait_for, reading, count)
        assert numbers(client, reading) == [11, 12][:count]
        assert not client.of(reading)[0][0].annotations
        again = await in_thread(client.discharge, control, name)
        assert again.startswith("amqp:transaction:unknown-id")
        assert rig.queues.transactions.kept_bytes == 0


@pytest.mark.parametrize(
    ("home", "target", "dead"),
    [*((home, target, False) for home in KINDS for target in KINDS),
     *((home, "plain", True) for home in KINDS)],
)  # fmt: skip
async def test_what_comes_from_another_queue_is_found_and_cancelled_by_its_message_id(
    tmp_path: Path, home: str, target: str, dead: bool
) -> None:
    def send(client: QueueClient, link: proton.Receiver) -> None:
        delivery = client.of(link)[0][1]
        if dead:
            delivery.update(REJECTED)
            delivery.settle()
        else:
            control = client.coordinator()
            name = client.declare(control)
            client.put_in(client.sender("queue.out"), name, of(1))
            client.say_in(delivery, name)
            assert client.discharge(control, name) == ""
        client.sync()

    def ask(client: QueueClient, operation: str) -> str:
        answer, _ = client.ask("out", operation=operation, message_id="m1")
        return str(answer["answer"])

    settings = {"dead": "out"} if dead else {}
    configs = queue(tmp_path, "orders", home, **settings), queue(tmp_path, "out", target)
    async with running(*configs) as rig:
        client = await rig.client()
        await in_thread(send, client, await taken(client, of(1)))
        await rig.until(lambda: figures(rig, "out")[2] == 1, "what was sent")
        assert await in_thread(ask, client, "find") == "pending"
        assert await in_thread(ask, client, "cancel") == "cancelled"
        assert figures(rig, "out")[0] == 0


@pytest.mark.parametrize("home", KINDS)
async def test_what_is_more_than_its_homes_journal_takes_at_once_is_rolled_back(
    tmp_path: Path, home: str
) -> None:
    def talk(client: QueueClient) -> None:
        control, putting = client.coordinator(), client.sender()
        for target in ("orders", "out"):
            name = client.declare(control)
            client.put_in(putting, name, of(1))
            large = proton.Message(body=b'{"account": "a", "x": "' + b"x" * 250_000 + b'"}')
            client.put_in(client.sender(f"queue.{target}"), name, *[large] * 5)
            answer = client.discharge(control, name)
            assert "amqp:transaction:rollback: queue orders: a group of 1,2" in answer
        name = client.declare(control)
        client.put_in(putting, name, of(1))
        assert client.discharge(control, name) == ""

    configs = queue(tmp_path, "orders", home), queue(tmp_path, "out", home)
    async with running(*configs) as rig:
        await in_thread(talk, await rig.client())
        await rig.until(lambda: figures(rig, "orders") == (1, 0, 1, 0), "what was put")
        assert figures(rig, "out") == (0, 0, 0, 0)


class Held(Files):
    """Files whose writes wait while `gate` is closed, and fail once it is `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def pwrite_through(self, path: str, data: memoryview, offset: int) -> int:
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise OSError(5, "Input/output error")
        return super().pwrite_through(path, data, offset)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("home", KINDS)
async def test_a_discharge_is_answered_once_it_is_on_the_disk_or_by_the_end_of_its_link(
    tmp_path: Path, home: str, broken: bool
) -> None:
    files = Held()
    async with running(queue(tmp_path, "orders", home), disk={"files": files}) as rig:
        client = await rig.client()
        link = await taken(client, of(1))
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        client.say_in(client.of(link)[0][1], name)
        await in_thread(client.sync)
        files.gate.clear()
        body = proton.Described(proton.ulong(DISCHARGE), [name, False])
        sent = await in_thread(client.send, control, proton.Message(body=body))
        await in_thread(client.sync)
        assert not sent.settled
        files.broken = broken
        files.gate.set()
        if broken:
            refusal = await in_thread(client.refusal, control)
            assert refusal.name == "amqp:internal-error"
            assert "whether the transaction counts" in refusal.description
        else:
            await in_thread(client.pump, lambda: sent.settled, "the answer")
            assert sent.remote_state == ACCEPTED


async def test_a_journal_of_the_first_format_has_no_transactions(tmp_path: Path) -> None:
    config = queue(tmp_path, "orders", "plain")
    steps, _ = creation(config.folder, config.settings(), bytes(16), 1, VERSION_MIN)
    carry_out(Files(), steps)
    with patch("feedhandler.journal.opening.VERSION", VERSION_MIN):  # or it is made anew
        async with running(config) as rig:
            client = await rig.client()
            link = await taken(client, of(1))
            putting, control = [
                await in_thread(make) for make in (client.sender, client.coordinator)
            ]
            names = [await in_thread(client.declare, control) for _ in range(2)]
            client.say_in(client.of(link)[0][1], names[0])
            sent = client.send_in(putting, names[1], of(2))
            await in_thread(client.pump, lambda: sent.settled, "the refusal")
            assert sent.remote_state == REJECTED
            for name in names:
                assert "format 1" in await in_thread(client.discharge, control, name)
            assert figures(rig, "orders")[:3] == (1, 0, 1)


@pytest.mark.parametrize("home", KINDS)
async def test_a_rollback_forgets_what_was_put_and_gives_again_what_the_client_had_settled(
    tmp_path: Path, home: str
) -> None:
    async with running(queue(tmp_path, "orders", home), queue(tmp_path, "out", home)) as rig:
        client = await rig.client()
        link = await taken(client, of(1), of(2, "b"))
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        out = await in_thread(client.sender, "queue.out")
        await in_thread(client.put_in, out, name, of(11))
        first, second = (delivery for _, delivery in client.of(link))
        client.say_in(first, name)
        client.say_in(second, name, settle=False)
        assert await in_thread(client.discharge, control, name, True) == ""
        await in_thread(client.wait_for, link, 3)
        message = client.of(link)[2][0]
        assert (numbers(client, link)[2], message.delivery_count) == (1, 1)
        assert not second.settled
        # What the client has not settled is its own still, to be disposed of anew.
        second.update(ACCEPTED)
        second.settle()
        name = await in_thread(client.declare, control)
        client.say_in(client.of(link)[2][1], name)
        assert await in_thread(client.discharge, control, name) == ""
        await rig.until(lambda: figures(rig, "orders") == (0, 2, 2, 0), "both ends")
        assert figures(rig, "out") == (0, 0, 0, 0)


@pytest.mark.parametrize("home", KINDS)
async def test_a_discharge_counts_though_its_consumer_leaves_in_the_same_breath(
    tmp_path: Path, home: str
) -> None:
    def talk(client: QueueClient, link: proton.Receiver) -> proton.Delivery:
        control = client.coordinator()
        name = client.declare(control)
        client.say_in(client.of(link)[0][1], name)
        order = proton.Described(proton.ulong(DISCHARGE), [name, False])
        sent = client.send(control, proton.Message(body=order))
        link.close()
        client.pump(lambda: sent.settled, "the answer")
        return sent

    async with running(queue(tmp_path, "orders", home)) as rig:
        client = await rig.client()
        link = await taken(client, of(1), of(2), credit=1)
        answer = await in_thread(talk, client, link)
        assert answer.remote_state == ACCEPTED, answer.remote.condition
        assert figures(rig, "orders")[:3] == (1, 1, 2)


@pytest.mark.parametrize("gone", ["coordinator", "session", "connection"])
async def test_what_is_not_discharged_is_rolled_back_with_its_link(
    tmp_path: Path, gone: str
) -> None:
    async with running(queue(tmp_path, "orders", "keyed")) as rig:
        client = await rig.client()
        link = await taken(client, of(1), credit=1)
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        putting = await in_thread(client.sender)
        await in_thread(client.put_in, putting, name, of(2))
        client.say_in(client.of(link)[0][1], name)
        await in_thread(client.sync)
        if gone == "coordinator":
            control.close()
            link.flow(1)
            await in_thread(client.wait_for, link, 2)
            assert client.of(link)[1][0].delivery_count == 0
            sent = client.send_in(putting, name, of(3))
            await in_thread(client.pump, lambda: sent.settled, "the refusal")
            assert sent.remote.condition.name == "amqp:transaction:unknown-id"
        elif gone == "session":
            client.sessions[-1].close()
            await in_thread(client.new_session)
            await in_thread(client.taker)
        else:
            client.drop()
            other = await rig.client()
            await in_thread(other.wait_for, await in_thread(other.taker), 1)
        await rig.until(lambda: rig.queues.transactions.open == 0, "the rollback")
        assert rig.queues.transactions.kept_bytes == 0
        assert figures(rig, "orders")[:3] == (1, 0, 1)


@pytest.mark.parametrize("why", ["two queues", "outside", "rejected", "structure", "gone", "stamp"])
async def test_what_cannot_be_is_rolled_back_as_a_whole_with_the_reason(
    tmp_path: Path, why: str
) -> None:
    reasons = {
        "two queues": "of orders, and not of other too",
        "outside": "disposed of outside of it",
        "rejected": "rejected outside of a transaction",
        "structure": "a message to queue orders: ",
        "gone": "not its consumer's any more",
        "stamp": "a producer's sequence number counts where",
    }
    configs = queue(tmp_path, "orders", "keyed"), queue(tmp_path, "other", "keyed")
    async with running(*configs) as rig:
        client = await rig.client()
        link = await taken(client, of(1), credit=1)
        putting = await in_thread(client.sender)
        aside = await in_thread(client.sender, "queue.other")
        await in_thread(client.put, aside, of(2))
        other = await in_thread(client.taker, "queue.other")
        await in_thread(client.wait_for, other, 1)
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        await in_thread(client.put_in, aside, name, of(3))
        mine, theirs = client.of(link)[0][1], client.of(other)[0][1]
        client.say_in(mine, name, settle=why != "outside")
        if why == "two queues":
            client.say_in(theirs, name)
        elif why == "outside":
            await in_thread(client.sync)
            mine.update(ACCEPTED)
        elif why == "rejected":
            client.say_in(theirs, name, proton.Described(proton.ulong(REJECTED), []))
        elif why == "structure":
            sent = client.send_in(putting, name, proton.Message(body=b"{}"))
            await in_thread(client.pump, lambda: sent.settled, "the refusal")
            assert sent.remote_state == REJECTED
        elif why == "gone":
            link.close()
        else:
            await in_thread(client.put_in, aside, name, of(4, producer="p", epoch=0, sequence=1))
        answer = await in_thread(client.discharge, control, name)
        assert answer.startswith("amqp:transaction:rollback: ")
        assert reasons[why] in answer
        await in_thread(client.sync)
        assert figures(rig, "orders")[1:3] == (0, 1)
        assert figures(rig, "other")[1:3] == (0, 1)
        assert rig.queues.transactions.kept_bytes == 0


async def test_what_is_no_order_and_what_was_not_declared_is_refused(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        control, putting = client.coordinator(), client.sender()
        for fields, condition in (
            ((0x31, b"global"), "amqp:not-implemented"),
            ((0x32, b"nobody's", False), "amqp:transaction:unknown-id"),
            ((0x32, "text", False), "amqp:decode-error"),
            ((0x32,), "amqp:decode-error"),
            ((0x99,), "amqp:decode-error"),
        ):
            answer = client.order(control, *fields)
            assert (answer.remote_state, answer.remote.condition.name) == (REJECTED, condition)
        (answer,) = client.put(control, proton.Message(body="declare"))
        assert answer.remote.condition.name == "amqp:decode-error"
        sent = client.send_in(putting, b"nobody's", of(1))
        client.pump(lambda: sent.settled, "the refusal")
        assert sent.remote.condition.name == "amqp:transaction:unknown-id"
        client.put(putting, of(1))
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        client.say_in(client.of(link)[0][1], b"nobody's")
        assert client.refusal(link).name == "amqp:transaction:unknown-id"
        names = [client.declare(control) for _ in range(64)]
        answer = client.order(control, 0x31)
        assert answer.remote.condition.name == "amqp:resource-limit-exceeded"
        assert [client.discharge(control, name) for name in names] == [""] * 64

    async with running(queue(tmp_path, "orders", "plain")) as rig:
        await in_thread(talk, await rig.client())
        assert figures(rig, "orders") == (1, 0, 1, 0)


@pytest.mark.parametrize("home", KINDS)
async def test_what_waits_to_be_sent_on_is_neither_handed_out_nor_cancelled(
    tmp_path: Path, home: str
) -> None:
    full = Definition(fields=("account",), messages_max=1)
    configs = queue(tmp_path, "orders", home), orders(tmp_path / "out", name="out", key=full)
    async with running(*configs) as rig:
        client = await rig.client()
        putting, out = [
            await in_thread(client.sender, f"queue.{each}") for each in ("orders", "out")
        ]
        control = await in_thread(client.coordinator)
        name = await in_thread(client.declare, control)
        await in_thread(client.put_in, putting, name, of(1))
        await in_thread(client.put_in, out, name, of(11))
        await in_thread(client.put, out, of(10))
        assert await in_thread(client.discharge, control, name) == ""
        await in_thread(client.put, putting, of(2, "b"))
        link = await in_thread(client.taker)
        await in_thread(client.wait_for, link, 2)
        await in_thread(client.sync)
        assert numbers(client, link) == [1, 2]
        assert figures(rig, "orders")[0::3] == (3, 1)
        _, body = await in_thread(client.ask, operation="cancel-all")
        assert body["cancelled"] == 0
        reading = await in_thread(client.taker, "queue.out", 1)
        await in_thread(client.wait_for, reading, 1)
        client.of(reading)[0][1].update(ACCEPTED)
        client.of(reading)[0][1].settle()
        reading.flow(1)
        await in_thread(client.wait_for, reading, 2)
        assert numbers(client, reading) == [10, 11]
        await rig.until(lambda: figures(rig, "orders")[0::3] == (2, 0), "the outbox's end")


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("home", KINDS)
def test_what_had_arrived_is_not_there_twice_where_its_end_was_not_recorded(
    tmp_path: Path, home: str, target: str
) -> None:
    configs = queue(tmp_path, "orders", home), queue(tmp_path, "out", target)

    async def cut() -> None:
        async with running(*configs) as rig:
            rig.queues.all["orders"]._outbox._ended = lambda *_: None
            client = await rig.client()
            link = await taken(client, of(1))
            control = await in_thread(client.coordinator)
            name = await in_thread(client.declare, control)
            client.say_in(client.of(link)[0][1], name)
            out = await in_thread(client.sender, "queue.out")
            await in_thread(client.put_in, out, name, of(11), of(12))
            assert await in_thread(client.discharge, control, name) == ""
            await rig.until(lambda: figures(rig, "out")[0] == 2, "what was produced")
            assert figures(rig, "orders")[0] == 2

    async def again() -> None:
        async with running(*configs) as rig:
            await rig.until(lambda: figures(rig, "orders")[0] == 0, "the outbox's end")
            assert figures(rig, "out")[0] == 2

    asyncio.run(cut())
    asyncio.run(again())


class Looked(OrderedDict[int, None]):
    """Numbers that count looks at them."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            self.looks += 1
            yield number


async def test_of_what_waits_to_be_sent_on_a_commit_looks_at_the_first_and_only_for_more_of_it(
    tmp_path: Path,
) -> None:
    full = Definition(fields=("account",), messages_max=1)
    configs = queue(tmp_path, "orders", "plain"), orders(tmp_path / "out", name="out", key=full)

    def prepare(client: QueueClient) -> tuple[proton.Sender, list[bytes]]:
        """Three transactions, of which the second sends nothing on; then `out` is full."""
        control, home, out = client.coordinator(), client.sender(), client.sender("queue.out")
        names = [client.declare(control) for _ in range(3)]
        for name, sent in zip(names, (range(11, 21), (), (21,)), strict=True):
            client.put_in(home, name, of(1))
            client.put_in(out, name, *map(of, sent))
        client.put(out, of(10))
        return control, names

    async with running(*configs) as rig:
        client = await rig.client()
        control, (first, plain, more) = await in_thread(prepare, client)
        assert await in_thread(client.discharge, control, first) == ""
        kept = rig.orders._outbox_numbers
        lowest = min(kept)
        assert (len(kept), figures(rig, "orders")[3]) == (10, 10)
        rig.orders._outbox_numbers = looked = Looked(kept)
        assert await in_thread(client.discharge, control, plain) == ""
        assert looked.looks == 0
        assert await in_thread(client.discharge, control, more) == ""
        assert looked.looks == 1
        assert rig.orders.store.producer(OUTBOX) == (lowest, max(looked) + 1)


async def test_a_killed_gateway_has_sent_on_once_what_a_transaction_put(tmp_path: Path) -> None:
    """The target is full, so that the messages for it wait at their homes when the gateway dies."""
    full = Definition(fields=("account",), messages_max=2)
    configs = (
        queue(tmp_path, "keyed", "keyed"),
        queue(tmp_path, "plain", "plain"),
        orders(tmp_path / "out", name="out", key=full),
    )

    def before(client: QueueClient) -> None:
        out, control, names = client.sender("queue.out"), client.coordinator(), []
        for index, home in enumerate(("keyed", "plain"), 1):
            client.put(client.sender(f"queue.{home}"), of(10 * index))
            link = client.taker(f"queue.{home}", credit=1)
            client.wait_for(link, 1)
            names.append(client.declare(control))
            client.say_in(client.of(link)[0][1], names[-1])
            mine = [of(10 * index + n, f"{home} {n}") for n in (1, 2)]
            client.put_in(out, names[-1], *mine)
        client.put(out, of(1, "x"), of(2, "y"))
        assert [client.discharge(control, name) for name in names] == ["", ""]

    def take(client: QueueClient, count: int) -> list[int]:
        """Return the numbers of what comes out of `out`, as many as there is room for at a time."""
        link = client.taker("queue.out", credit=2)
        for number in range(count):
            client.wait_for(link, number + 1)
            delivery = client.of(link)[number][1]
            delivery.update(ACCEPTED)
            delivery.settle()
            link.flow(1)
        client.sync()
        return numbers(client, link)

    market = Market(1)
    config = market.config()
    config = type(config)(amqp=config.amqp, channels=config.channels, queues=configs)
    gateway = await start(config, tmp_path / "gateway.toml")
    try:
        client = await in_thread(QueueClient, config.amqp.address[1])
        await in_thread(before, client)
    finally:
        await kill(gateway)
    client.drop()
    async with running(*configs) as rig:
        waiting = [figures(rig, name)[0::3] for name in ("keyed", "plain")]
        assert waiting == [(2, 2), (2, 2)]
        found = await in_thread(take, await rig.client(), 6)
        assert sorted(found) == [1, 2, 11, 12, 21, 22]
        await rig.until(
            lambda: [figures(rig, name)[0::3] for name in ("keyed", "plain")] == [(0, 0)] * 2,
            "the outbox's end",
        )
    async with running(*configs) as rig:
        left = [figures(rig, name)[0::3] for name in ("keyed", "plain", "out")]
        assert left == [(0, 0)] * 3
