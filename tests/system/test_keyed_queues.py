"""Keyed queues at a node on a socket: serial per key, parallel across keys, once, over restarts."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import proton
import pytest

from feedhandler.amqp.durable.keyed import KeyedDurableQueue
from feedhandler.amqp.durable.outbox import SENDER
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.keyed.definition import Definition
from feedhandler.keyed.settings import Format, Full, Poison, Rule, Wrong
from feedhandler.ops import queue as queue_command
from tests.support.durable import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    QueueClient,
    orders,
    running,
)
from tests.support.durable import of_account as of
from tests.support.node import in_thread

#: A question goes to the node and back, so that this many are a while.
LOOKS = 5000
ACCOUNT = Definition(fields=("account",))


def keyed(folder: Path, key: Definition = ACCOUNT, **settings: Any) -> DurableQueueConfig:
    """The queue `orders`, serial per account."""
    return orders(folder / "orders", key=key, **settings)


def dead(folder: Path) -> DurableQueueConfig:
    """The queue that dead messages go to."""
    return orders(folder / "dead", name="dead")


def numbers(client: QueueClient, link: proton.Receiver) -> list[tuple[str, int]]:
    """(account, number) of what a link has got."""
    texts = (bytes(message.body).decode() for message, _ in client.of(link))
    return [(text.split('"')[3], int(text.split(": ")[-1][:-1])) for text in texts]


def settle(client: QueueClient, link: proton.Receiver, index: int, state: int = ACCEPTED) -> None:
    """Settle one delivery of a link, and hear that the node has."""
    delivery = client.of(link)[index][1]
    if state == MODIFIED:
        delivery.local.failed = True
    delivery.update(state)
    delivery.settle()
    client.sync()


def until_figure(client: QueueClient, name: str, value: int) -> None:
    """Ask for the queue's figures until one of them is this."""
    for _ in range(LOOKS):
        if client.ask(operation="stat")[1][name] == value:
            return
    raise AssertionError(f"{name} never was {value}")


def play(talk: Callable[[QueueClient], None], *configs: DurableQueueConfig) -> dict[str, Any]:
    """Have one client talk with a node; the figures of `orders` at the end."""
    figures: dict[str, Any] = {}

    async def scenario() -> None:
        async with running(*configs) as rig:
            await in_thread(talk, await rig.client())
            figures.update(rig.orders.snapshot())

    asyncio.run(scenario())
    return figures


async def test_one_of_each_key_is_out_and_the_next_follows_its_acknowledgement(
    tmp_path: Path,
) -> None:
    async with running(keyed(tmp_path)) as rig:
        one, two, three = [await rig.client() for _ in range(3)]
        putting = await in_thread(one.sender)
        sent = [of("a", 1), of("a", 2), of("b", 3), of("b", 4), of("c", 5)]
        await in_thread(one.put, putting, *sent)
        first = await in_thread(two.taker, credit=2)
        await in_thread(two.wait_for, first, 2)
        second = await in_thread(three.taker, credit=9)
        await in_thread(three.wait_for, second, 1)
        await in_thread(three.sync)
        assert (numbers(two, first), numbers(three, second)) == (
            [("a", 1), ("b", 3)],
            [("c", 5)],
        )
        await in_thread(settle, two, first, 0)
        await in_thread(three.wait_for, second, 2)
        assert numbers(three, second)[1] == ("a", 2)
        fences = [m.instructions["x-opt-fence"] for m, _ in two.of(first) + three.of(second)]
        assert fences == sorted(set(fences))
        tokens = {m.instructions["x-opt-token"] for m, _ in two.of(first) + three.of(second)}
        assert len(tokens) == 4
        await rig.until(lambda: rig.figure("in_hand") == 3, "the acknowledgement")
        assert (rig.figure("depth"), rig.figure("delivered"), rig.figure("keys")) == (4, 1, 3)


def test_who_has_nothing_in_hand_goes_before_who_has_room_for_more(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        busy, idle = client.taker(credit=1), client.taker(credit=1)
        client.put(putting, of("a", 1), of("b", 2))
        client.wait_for(busy, 1), client.wait_for(idle, 1)
        settle(client, idle, 0)
        idle.flow(9), busy.flow(9)  # the busy one's room is heard of last
        client.sync()
        client.put(putting, of("c", 3))
        client.wait_for(idle, 2)
        client.put(putting, of("d", 4))
        client.pump(lambda: len(client.messages) == 4, "the next one")
        assert numbers(client, idle)[1:] == [("c", 3)]
        assert numbers(client, busy) == [("a", 1), ("d", 4)]

    play(talk, keyed(tmp_path))


def test_a_drain_is_answered_once_no_link_with_room_may_have_anything(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        first, second = client.taker(credit=1), client.taker(credit=0)
        client.put(putting, of("a", 1), of("a", 2))
        client.wait_for(first, 1)
        second.drain(5)
        client.pump(lambda: not second.credit, "the unused credit")
        assert not client.of(second)
        settle(client, first, 0)
        second.flow(1)
        client.wait_for(second, 1)

    play(talk, keyed(tmp_path))
    play(talk, keyed(tmp_path / "run", Definition(fields=("account",), run=4)))


def test_a_restart_keeps_what_waits_who_sent_it_and_what_failed(tmp_path: Path) -> None:
    config = keyed(tmp_path)
    seen: list[int] = []

    def before(client: QueueClient) -> None:
        putting = client.sender()
        sent = [of("a", n, producer="p", epoch=1, sequence=n) for n in (1, 2)]
        assert [each.remote_state for each in client.put(putting, *sent)] == [ACCEPTED, ACCEPTED]
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        seen.append(client.of(link)[0][0].instructions["x-opt-fence"])
        settle(client, link, 0, MODIFIED)
        link.flow(1)
        client.wait_for(link, 2)
        message = client.of(link)[1][0]
        assert (message.delivery_count, numbers(client, link)[1]) == (1, ("a", 1))
        settle(client, link, 1, MODIFIED)

    def behind(client: QueueClient) -> None:
        putting = client.sender()
        again = of("a", 1, producer="p", epoch=1, sequence=1)
        gap = of("a", 9, producer="p", epoch=1, sequence=9)
        states = [each.remote_state for each in client.put(putting, again, gap)]
        assert states == [ACCEPTED, REJECTED]
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        message = client.of(link)[0][0]
        assert message.delivery_count == 2
        assert message.instructions["x-opt-fence"] > max(seen)
        settle(client, link, 0)
        link.flow(5)
        client.wait_for(link, 2)
        assert numbers(client, link) == [("a", 1), ("a", 2)]
        other = of("a", 3, producer="p", epoch=2, sequence=1)
        late = of("a", 3, producer="p", epoch=1, sequence=3)
        states = [each.remote_state for each in client.put(putting, other, late)]
        assert states == [ACCEPTED, REJECTED]

    assert play(before, config)["depth"] == 2
    figures = play(behind, config)
    assert (figures["depth"], figures["repeated"], figures["refused"]) == (2, 1, 2)


def test_no_client_speaks_as_a_queue_that_sends_to_this_one(tmp_path: Path) -> None:
    """Queues' ids stand in tokens: who has seen one could have its messages taken for repeats."""

    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put(putting, of("a", 1))
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        token = client.of(link)[0][0].instructions["x-opt-token"]
        own = SENDER + bytes.fromhex(token.partition("-")[0])
        for name in (own, own.decode("latin-1")):
            forged = of("a", 2, producer=name, epoch=0, sequence=1 << 40)
            (sent,) = client.put(putting, forged)
            assert sent.remote_state == REJECTED
            assert "zero byte" in sent.remote.condition.description

    assert play(talk, keyed(tmp_path))["refused"] == 2


def test_what_fails_too_often_goes_to_the_dead_with_the_reason_and_its_key_goes_on(
    tmp_path: Path,
) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put(putting, of("a", 1), of("a", 2))
        link = client.taker(credit=1)
        for index in range(2):
            client.wait_for(link, index + 1)
            settle(client, link, index, MODIFIED)
            link.flow(1)
        client.wait_for(link, 3)
        assert numbers(client, link)[2] == ("a", 2)
        settle(client, link, 2, REJECTED)
        graves = client.taker("queue.dead", credit=5)
        client.wait_for(graves, 2)
        assert numbers(client, graves) == [("a", 1), ("a", 2)]
        annotations = [message.annotations for message, _ in client.of(graves)]
        assert [each["x-opt-dead-queue"] for each in annotations] == ["orders", "orders"]
        assert annotations[0]["x-opt-dead-reason"].startswith("failed 2 times")
        assert "rejected" in annotations[1]["x-opt-dead-reason"]

    figures = play(talk, keyed(tmp_path, dead="dead", redeliveries_max=1), dead(tmp_path))
    assert (figures["dead"], figures["depth"], figures["in_hand"]) == (2, 0, 0)


def test_a_parked_message_holds_its_key_until_it_is_tried_again(tmp_path: Path) -> None:
    key = Definition(fields=("account",), poison=Poison.PARK)
    config = keyed(tmp_path, key, redeliveries_max=1)

    def fails(client: QueueClient) -> None:
        putting = client.sender()
        client.put(putting, of("a", 1), of("a", 2))
        link = client.taker(credit=1)
        for index in range(2):
            client.wait_for(link, index + 1)
            settle(client, link, index, MODIFIED)
            link.flow(1)
        client.put(putting, of("b", 3))
        client.wait_for(link, 3)
        assert numbers(client, link) == [("a", 1), ("a", 1), ("b", 3)]

    def again(client: QueueClient) -> None:
        link = client.taker(credit=5)
        client.wait_for(link, 1)
        client.sync()
        assert numbers(client, link) == [("b", 3)]
        reply, _ = client.ask(operation="unpark", id=1)
        assert reply["answer"] == "unparked"
        client.wait_for(link, 2)
        assert numbers(client, link) == [("b", 3), ("a", 1)]
        settle(client, link, 1)
        client.wait_for(link, 3)

    assert play(fails, config)["parked"] == 1
    assert play(again, config)["parked"] == 0


@pytest.mark.parametrize("outcome", [ACCEPTED, RELEASED])
async def test_who_takes_too_long_has_nothing_any_more(tmp_path: Path, outcome: int) -> None:
    key = Definition(fields=("account",), timeout_ms=50)
    async with running(keyed(tmp_path, key)) as rig:
        slow, quick = await rig.client(), await rig.client()
        putting = await in_thread(slow.sender)
        await in_thread(slow.put, putting, of("a", 1), of("a", 2))
        first = await in_thread(slow.taker, credit=1)
        await in_thread(slow.wait_for, first, 1)
        await rig.until(lambda: rig.figure("timeouts") == 1, "the time-out")
        second = await in_thread(quick.taker, credit=1)
        await in_thread(quick.wait_for, second, 1)
        assert numbers(quick, second) == [("a", 1)]
        # A busy machine may let more time-outs pass before they are seen.
        assert quick.of(second)[0][0].delivery_count >= 1
        delivery = slow.of(first)[0][1]
        delivery.update(outcome)  # and hears what the node says of it
        await in_thread(slow.pump, lambda: delivery.settled, "the answer")
        assert delivery.remote_state == RELEASED
        assert (rig.figure("stale"), rig.figure("delivered"), rig.figure("depth")) == (1, 0, 2)
        assert rig.figure("returned") == 0


@pytest.mark.parametrize("wrong", list(Wrong))
def test_what_has_no_key_is_never_dropped(tmp_path: Path, wrong: Wrong) -> None:
    bodies = [b"no json", b'{"n": 1}', b'{"account": null}', b'{"account": {"a": 1}}', b"[" * 5000]

    def talk(client: QueueClient) -> None:
        putting = client.sender()
        sent = client.put(putting, *(proton.Message(body=body) for body in bodies))
        states = {each.remote_state for each in sent}
        if wrong is Wrong.REJECT:
            assert states == {REJECTED}
            assert all(each.remote.condition.description for each in sent)
            return
        assert states == {ACCEPTED}
        graves = client.taker("queue.dead", credit=9)
        assert [bytes(body) for body in client.wait_for(graves, len(bodies))] == bodies
        assert all(m.annotations["x-opt-dead-reason"] for m, _ in client.of(graves))

    key = Definition(fields=("account",), wrong=wrong)
    figures = play(talk, keyed(tmp_path, key, dead="dead"), dead(tmp_path))
    assert (figures["misfits"], figures["depth"]) == (len(bodies), 0)


def test_any_serves_one_after_the_other_what_shares_a_value(tmp_path: Path) -> None:
    def transfer(number: int, one: str, other: str) -> proton.Message:
        return proton.Message(body=f'{{"from": "{one}", "to": "{other}", "n": {number}}}'.encode())

    def talk(client: QueueClient) -> None:
        putting = client.sender()
        pairs = ["ab", "cd", "bc", "ef", "ca"]
        sent = client.put(putting, *(transfer(n, *pair) for n, pair in enumerate(pairs)))
        assert {each.remote_state for each in sent} == {ACCEPTED}
        link = client.taker(credit=9)

        def got() -> list[int]:
            return [int(bytes(m.body).split(b": ")[-1][:-1]) for m, _ in client.of(link)]

        client.wait_for(link, 3)
        client.sync()
        assert got() == [0, 1, 3]
        settle(client, link, 0)
        assert got() == [0, 1, 3]
        settle(client, link, 1)
        client.wait_for(link, 4)
        client.sync()
        assert got() == [0, 1, 3, 2]
        settle(client, link, 3)
        client.wait_for(link, 5)

    play(talk, keyed(tmp_path, Definition(fields=("from", "to"), rule=Rule.ANY)))


def test_a_full_queue_takes_no_more_and_a_full_key_leaves_the_others_room(tmp_path: Path) -> None:
    key = Definition(fields=("account",), messages_max=6, key_messages_max=3)

    def talk(client: QueueClient) -> None:
        putting = client.sender()
        sent = client.put(putting, *(of("a", n) for n in range(4)))
        assert [each.remote_state for each in sent] == [ACCEPTED] * 3 + [RELEASED]
        sent = client.put(putting, *(of("b", n) for n in range(3)))
        assert [each.remote_state for each in sent] == [ACCEPTED] * 3
        client.sync()
        assert putting.credit == 0
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        settle(client, link, 0)
        client.put(putting, of("c", 9))

    figures = play(talk, keyed(tmp_path, key))
    assert (figures["depth"], figures["full"]) == (6, 1)
    with_reject = Definition(fields=("account",), key_messages_max=1, full=Full.REJECT)

    def refused(client: QueueClient) -> None:
        sent = client.put(client.sender(), of("a", 1), of("a", 2))
        assert [each.remote_state for each in sent] == [ACCEPTED, REJECTED]

    play(refused, keyed(tmp_path / "other", with_reject))


def test_cancels_free_keys_and_say_what_came_of_it(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put(putting, of("a", 1), of("a", 2), of("a", 3), of("b", 4))
        assert client.ask(operation="find", message_id="m2")[0]["answer"] == "pending"
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        answers = [client.ask(operation="cancel", message_id=f"m{n}")[0] for n in (1, 2, 2, 7)]
        assert [each["answer"] for each in answers] == [
            "delivering", "cancelled", "cancelled", "unknown",
        ]  # fmt: skip
        settle(client, link, 0)
        until_figure(client, "delivered", 1)
        reply, body = client.ask(operation="cancel-all")
        assert (reply["answer"], body["cancelled"], body["delivering"]) == ("cancelled", 2, 0)
        link.flow(9)
        client.sync()
        assert len(client.of(link)) == 1

    figures = play(talk, keyed(tmp_path))
    assert (figures["depth"], figures["keys"], figures["cancelled"]) == (0, 0, 3)


def fix_order(account: str) -> bytes:
    """An order of FIX for an account."""
    body = f"35=D\x011={account}\x0155=VOD\x01".encode()
    whole = b"8=FIX.4.4\x019=%d\x01%s" % (len(body), body)
    return whole + b"10=%03d\x01" % (sum(whole) & 0xFF)


@pytest.mark.parametrize(
    ("form", "field"),
    [
        (Format.FIX, "1"),
        (Format.AMQP, "application.account"),
        (Format.AMQP, "account"),
        (Format.AMQP, "properties.group-id"),
    ],
)
def test_keys_of_every_format(tmp_path: Path, form: Format, field: str) -> None:
    def message(account: str) -> proton.Message:
        if form is Format.FIX:
            return proton.Message(body=fix_order(account))
        made = proton.Message(body=b"x", properties={"account": account})
        made.group_id = account
        return made

    def talk(client: QueueClient) -> None:
        sent = client.put(client.sender(), *(message(a) for a in ("x", "x", "y")))
        assert {each.remote_state for each in sent} == {ACCEPTED}
        link = client.taker(credit=9)
        client.wait_for(link, 2)
        client.sync()
        assert len(client.of(link)) == 2

    figures = play(talk, keyed(tmp_path, Definition(fields=(field,), format=form)))
    assert (figures["keys"], figures["depth"]) == (2, 3)


def test_what_waits_is_listed_and_drained_as_it_was_put(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(client: QueueClient) -> None:
        client.put(client.sender(), of("a", 1), of("b", 2))

    play(put, keyed(tmp_path))
    folder, out = tmp_path / "orders", tmp_path / "out.jsonl"
    assert queue_command.list_items(folder, 10, False) == 0
    assert 'm1  {"account": "a", "n": 1}' in capsys.readouterr().out
    assert queue_command.drain(folder, out) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["message_id"], json.loads(row["body"])["n"]) for row in rows] == [
        ("m1", 1), ("m2", 2),
    ]  # fmt: skip
    assert play(lambda client: None, keyed(tmp_path))["depth"] == 0


def test_a_second_creation_that_differs_is_refused(tmp_path: Path) -> None:
    play(lambda client: None, keyed(tmp_path))

    async def scenario(config: DurableQueueConfig, why: str) -> None:
        with pytest.raises(Exception, match=why):
            async with running(config):
                pass

    other = Definition(fields=("account", "symbol"))
    asyncio.run(scenario(keyed(tmp_path, other), "was created with fields"))
    asyncio.run(scenario(orders(tmp_path / "orders"), "with keys"))
    plain = orders(tmp_path / "plain")

    def put(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1)

    play(put, plain)
    asyncio.run(scenario(orders(tmp_path / "plain", key=ACCOUNT), "without keys"))


async def test_the_link_on_which_a_queue_was_created_asks_about_it(tmp_path: Path) -> None:
    definition = msgspec.json.encode(ACCOUNT).decode()

    def talk(client: QueueClient) -> None:
        answers, asking = client.management("made")
        address, heard = answers.remote_source.address, []
        for operation in ("stat", "create", "create", "stat", "cancel-all"):
            asked = {"operation": operation, "definition": definition}
            client.put(asking, proton.Message(reply_to=address, properties=asked))
            client.wait_for(answers, len(heard) + 1)
            heard.append(client.of(answers)[-1][0].properties["answer"])
        assert heard == ["unknown", "created", "exists", "stat", "cancelled"]

    async with running(folder=str(tmp_path)) as rig:
        await in_thread(talk, await rig.client())


def test_publishers_create_queues_that_are_kept(tmp_path: Path) -> None:
    definition = msgspec.json.encode(ACCOUNT).decode()
    other = msgspec.json.encode(Definition(fields=("symbol",))).decode()

    def creates(client: QueueClient) -> None:
        ask = partial(client.ask, queue="made", operation="create")
        assert client.ask(queue="made", operation="stat")[0]["answer"] == "unknown"
        assert ask(definition='{"fields": []}')[0]["answer"] == "invalid"
        assert ask(definition=definition, dead="nowhere")[0]["answer"] == "invalid"
        assert ask(definition=definition)[0]["answer"] == "created"
        assert ask(definition=definition)[0]["answer"] == "exists"
        client.put(client.sender("queue.made"), of("a", 1), of("a", 2))

    def finds(client: QueueClient) -> None:
        reply, _ = client.ask(queue="made", operation="create", definition=other)
        assert reply["answer"] == "different"
        assert "account" in reply["status-description"]
        link = client.taker("queue.made", credit=5)
        client.wait_for(link, 1)
        _, rows = client.ask(queue="made", operation="keys")
        assert [(row["key"], row["messages"], row["standing"]) for row in rows["keys"]] == [
            ("account = a", 2, "in hand")
        ]
        _, rows = client.ask(queue="made", operation="list")
        assert [(row["id"], row["standing"]) for row in rows["list"]] == [
            (1, "in hand"), (2, "waiting"),
        ]  # fmt: skip

    async def scenario(talk: Callable[[QueueClient], None]) -> None:
        async with running(folder=str(tmp_path)) as rig:
            await in_thread(talk, await rig.client())

    asyncio.run(scenario(creates))
    asyncio.run(scenario(finds))


async def test_a_days_end_frees_what_waits_and_lets_who_has_one_finish(tmp_path: Path) -> None:
    now_ns = 1_800_000_000 * 10**9
    config = keyed(tmp_path, day_end="00:00", day_zone="UTC")
    clock = [now_ns]
    async with running(config, disk={"clock": lambda: clock[0]}) as rig:
        client = await rig.client()
        putting = await in_thread(client.sender)
        items = [of("a", 1), of("a", 2), of("b", 3), of("b", 4)]
        sent = await in_thread(client.put, putting, *items)
        assert [each.remote_state for each in sent] == [ACCEPTED] * 4
        link = await in_thread(client.taker, credit=1)
        await in_thread(client.wait_for, link, 1)
        clock[0] += 86_400 * 10**9
        await rig.until(lambda: rig.figure("expired") == 3, "the day's end")
        await in_thread(client.put, putting, of("a", 5))
        await in_thread(settle, client, link, 0)
        link.flow(9)
        await in_thread(client.wait_for, link, 2)
        assert numbers(client, link) == [("a", 1), ("a", 5)]
        assert rig.figure("expired") == 3


async def test_a_disk_that_fails_stops_the_queue_and_says_so(tmp_path: Path) -> None:
    async with running(keyed(tmp_path)) as rig:
        client = await rig.client()
        putting = await in_thread(client.sender)
        await in_thread(client.put, putting, of("a", 1))
        queue = rig.orders
        assert isinstance(queue, KeyedDurableQueue)
        queue.store.engine.stop(OSError(5, "the disk is gone"))
        await in_thread(client.refusal, putting)
        assert rig.figure("state") == "stopped"
