"""Durable queues at a node on a socket: put, get, compete, cancel; what clients do wrong."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proton
import pytest

from feedhandler.amqp.durable import links
from feedhandler.journal import BlockingQueue, QueueSettings
from feedhandler.keyed.definition import Definition
from feedhandler.keyed.settings import Format
from tests.support.durable import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    REMOTE_CLOSED,
    QueueClient,
    orders,
    running,
)
from tests.support.node import in_thread


@pytest.mark.gateways_loop
async def test_what_is_put_is_accepted_and_comes_out_in_order(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put_numbers(putting, *range(1, 601))
        taking = client.taker(credit=1000)
        assert client.wait_for(taking, 600) == list(range(1, 601))
        first = client.of(taking)[0][0]
        assert (first.id, first.durable, first.first_acquirer) == ("m1", True, True)
        client.settle_all(taking)
        client.close()

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        await rig.until(lambda: rig.figure("delivered") == 600, "deliveries recorded")
        assert (rig.figure("put"), rig.figure("depth"), rig.figure("handed_out")) == (
            600,
            0,
            600,
        )


async def test_consumers_compete_and_each_message_goes_to_one(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        clients = [await rig.client() for _ in range(3)]
        links = [await in_thread(each.taker, credit=1000) for each in clients[:2]]
        putting = await in_thread(clients[2].sender)
        await in_thread(clients[2].put_numbers, putting, *range(300))
        both = list(zip(clients[:2], links, strict=True))
        for client, link in both:
            await in_thread(client.wait_for, link, 100)
        for client, _ in both:
            await in_thread(client.sync)
        got = [client.bodies(link) for client, link in both]
        assert sorted(got[0] + got[1]) == list(range(300))
        assert all(each == sorted(each) for each in got)


async def test_what_a_consumer_had_goes_to_the_next_in_order_with_its_count(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        dying, living = await rig.client(), await rig.client()
        putting = await in_thread(dying.sender)
        await in_thread(dying.put_numbers, putting, *range(20))
        first = await in_thread(dying.taker, credit=10)
        assert await in_thread(dying.wait_for, first, 10) == list(range(10))
        second = await in_thread(living.taker, credit=3)
        assert await in_thread(living.wait_for, second, 3) == [10, 11, 12]
        dying.drop()
        await rig.until(lambda: rig.figure("returned") == 10, "the return")
        second.flow(100)
        got = await in_thread(living.wait_for, second, 20)
        assert got == [10, 11, 12, *range(10), *range(13, 20)]
        header = [(m.first_acquirer, m.delivery_count) for m, _ in living.of(second)]
        assert header == [(True, 0)] * 3 + [(False, 1)] * 10 + [(True, 0)] * 7


@pytest.mark.parametrize("leave", ["link", "session", "connection"])
async def test_what_a_consumer_had_when_it_said_goodbye_was_not_a_failure(
    tmp_path: Path, leave: str
) -> None:
    """JMS clients fetch far ahead, and some close a consumer behind each message."""
    async with running(orders(tmp_path, redeliveries_max=1)) as rig:
        putting = await rig.client()
        await in_thread(putting.put_numbers, await in_thread(putting.sender), 1, 2, 3)
        for times in range(1, 4):
            client = await rig.client()
            link = await in_thread(client.taker, credit=3)
            assert await in_thread(client.wait_for, link, 3) == [1, 2, 3]
            parts = {"link": link, "session": link.session, "connection": client.connection}
            parts[leave].close()
            await in_thread(client.close)
            await rig.until(lambda n=3 * times: rig.figure("returned") == n, "the return")
        link = await in_thread(putting.taker, credit=3)
        assert await in_thread(putting.wait_for, link, 3) == [1, 2, 3]
        header = [(m.first_acquirer, m.delivery_count) for m, _ in putting.of(link)]
        assert header == [(False, 0)] * 3


async def test_who_waits_with_credit_gets_what_another_gives_back_at_once(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        dying, living = await rig.client(), await rig.client()
        first = await in_thread(dying.taker, credit=3)
        putting = await in_thread(living.sender)
        await in_thread(living.put_numbers, putting, 1, 2, 3)
        await in_thread(dying.wait_for, first, 3)
        second = await in_thread(living.taker, credit=100)
        dying.of(first)[1][1].update(RELEASED)
        dying.of(first)[1][1].settle()
        await in_thread(dying.sync)
        assert await in_thread(living.wait_for, second, 1) == [2]
        first.close()
        await in_thread(dying.sync)
        assert await in_thread(living.wait_for, second, 3) == [2, 1, 3]


@pytest.mark.parametrize("waiting", [0, 50])
async def test_an_acknowledgement_looks_at_few_of_many_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """With messages that wait nobody has credit, and without any everybody has."""
    looks: list[str] = []

    def counted(name: str) -> None:
        plain = getattr(links.Consumer, name)

        def look(consumer: links.Consumer) -> Any:
            looks.append(name)
            return plain(consumer)

        monkeypatch.setattr(links.Consumer, name, look)

    def talk(client: QueueClient) -> proton.Receiver:
        putting = client.sender()
        takers = [client.taker(credit=1 if waiting else 2) for _ in range(50)]
        client.put_numbers(putting, *range(50 + waiting))
        client.pump(lambda: len(client.messages) == 50, "a message each")
        client.sync()
        assert all(len(client.bodies(taker)) == 1 for taker in takers)
        return takers[0]

    async with running(orders(tmp_path)) as rig:
        client = await rig.client()
        taker = await in_thread(talk, client)
        for name in ("ready", "settle_drain"):
            counted(name)
        await in_thread(client.settle_all, taker)
        await rig.until(lambda: rig.figure("delivered") == 1, "the acknowledgement")
        assert len(looks) < 10


async def test_what_is_said_right_before_a_goodbye_counts(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender(settled=True)
        for number in (1, 2, 3):
            client.send(putting, proton.Message(body=number))
        putting.close()
        link = client.taker(credit=3)
        client.wait_for(link, 3)
        for _, delivery in client.of(link)[:2]:
            delivery.update(ACCEPTED)
            delivery.settle()
        link.close()
        assert client.wait_for(client.taker(), 1) == [3]

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())


@pytest.mark.parametrize(
    ("state", "failed", "count"), [(RELEASED, False, 0), (MODIFIED, True, 1), (MODIFIED, False, 0)]
)
async def test_what_is_given_back_is_given_again(
    tmp_path: Path, state: int, failed: bool, count: int
) -> None:
    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2, 3)
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        (delivery,) = (each for _, each in client.of(link))
        delivery.local.failed = failed
        delivery.update(state)
        delivery.settle()
        link.flow(3)
        assert client.wait_for(link, 4) == [1, 1, 2, 3]
        again = client.of(link)[1][0]
        assert (again.first_acquirer, again.delivery_count) == (False, count)

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())


async def test_what_is_rejected_is_dead(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2)
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        client.settle_all(link, REJECTED)
        link.flow(1)
        assert client.wait_for(link, 1) == [2]
        assert client.ask(operation="find", message_id="m1")[0]["answer"] == "cancelled"

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert (rig.figure("dead"), rig.figure("depth")) == (1, 1)


async def test_dead_messages_go_to_the_queue_for_them(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2)
        link = client.taker(credit=1)
        for _ in range(3):
            client.wait_for(link, 1)
            for _, delivery in client.of(link):
                delivery.local.failed = True
            client.settle_all(link, MODIFIED)
            link.flow(1)
        assert client.wait_for(link, 1) == [2]
        buried = client.taker("queue.dead", credit=9)
        assert client.wait_for(buried, 1) == [1]
        assert client.of(buried)[0][0].id == "m1"

    dead = orders(tmp_path / "dead", name="dead")
    queue = orders(tmp_path / "orders", redeliveries_max=2, dead="dead")
    async with running(queue, dead) as rig:
        await in_thread(talk, await rig.client())
        await rig.until(lambda: rig.figure("depth") == 1, "the dead one's end")
        assert rig.figure("dead") == 1


async def test_what_is_dead_is_kept_where_the_queue_for_it_has_stopped(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2)
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        client.settle_all(link, REJECTED)
        client.close()

    def talk_again(client: QueueClient) -> None:
        link = client.taker(credit=2)
        assert client.wait_for(link, 2) == [1, 2]

    dead = orders(tmp_path / "dead", name="dead")
    queue = orders(tmp_path / "orders", dead="dead")
    async with running(queue, dead) as rig:
        rig.queues.all["dead"].stop("its disk is gone")
        await in_thread(talk, await rig.client())
        await rig.until(lambda: rig.figure("in_hand") == 1, "the live one is given back")
    async with running(queue, dead) as rig:
        await in_thread(talk_again, await rig.client())


BY_GROUP = Definition(format=Format.AMQP, fields=("properties.group-id",))


@pytest.mark.parametrize("key", [None, BY_GROUP])
async def test_what_is_too_large_for_the_queue_of_the_dead_does_not_stop_that_queue(
    tmp_path: Path, key: Definition | None
) -> None:
    def talk(client: QueueClient) -> None:
        sending = client.sender()
        client.put(sending, proton.Message(id="big", group_id="a", body=bytes(1 << 20)))
        client.put(sending, proton.Message(id="small", group_id="a", body=b"2"))
        link = client.taker(credit=1)
        client.wait_for(link, 1)
        client.settle_all(link, REJECTED)
        link.flow(1)
        client.wait_for(link, 1)
        client.settle_all(link, REJECTED)
        buried = client.taker("queue.dead", credit=9)
        client.wait_for(buried, 1)
        assert client.of(buried)[0][0].id == "small"

    dead = orders(tmp_path / "dead", name="dead")
    large = {"message_bytes_max": 2 << 20, "block_bytes": 4 << 20}
    queue = orders(tmp_path / "orders", dead="dead", key=key, **large)
    async with running(queue, dead) as rig:
        await in_thread(talk, await rig.client())
        assert not rig.queues.all["dead"].fault
        assert rig.figure("dead") == 2


async def test_credit_is_honoured_and_drained(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put_numbers(putting, *range(5))
        link = client.taker(credit=2)
        assert client.wait_for(link, 2) == [0, 1]
        client.sync()
        assert client.bodies(link) == [0, 1]
        link.drain(10)
        client.pump(lambda: not link.draining(), "the drain")
        assert client.bodies(link) == [0, 1, 2, 3, 4]
        assert link.credit == 0
        link.drain(0)
        client.sync()
        link.flow(1)
        client.put_numbers(putting, 5)
        assert client.wait_for(link, 6)[-1] == 5

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())


async def test_pre_settled_links_on_both_sides(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender(settled=True)
        for number in range(300):
            client.send(putting, proton.Message(body=number))
        link = client.taker(credit=1000, settled=True)
        assert client.wait_for(link, 300) == list(range(300))

    async with running(orders(tmp_path, credit=16)) as rig:
        await in_thread(talk, await rig.client())
        await rig.until(lambda: rig.figure("delivered") == 300, "deliveries recorded")


async def test_a_producer_never_has_more_on_its_way_than_its_credit(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        link = client.sender()
        client.pump(lambda: link.credit > 0, "credit")
        assert link.credit == 16
        client.put_numbers(link, *range(100))

    async with running(orders(tmp_path, credit=16)) as rig:
        await in_thread(talk, await rig.client())


async def test_what_is_no_message_or_too_large_is_rejected_with_a_reason(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        link = client.sender()
        assert link.remote_max_message_size == 5000
        large, good, nonsense = client.put(
            link, proton.Message(body=b"x" * 500_000), proton.Message(body=1), b"8=FIX.4.3"
        )
        assert [each.remote_state for each in (large, good, nonsense)] == [
            REJECTED,
            ACCEPTED,
            REJECTED,
        ]
        condition = large.remote.condition
        assert condition.name == "amqp:link:message-size-exceeded"
        assert "5000 bytes at most" in condition.description
        assert nonsense.remote.condition.name == "amqp:decode-error"
        aborted = link.delivery("half")
        link.send(b"\x00\x53")
        client.sync()
        aborted.abort()
        client.put_numbers(link, 2)
        assert client.wait_for(client.taker(), 2) == [1, 2]

    async with running(orders(tmp_path, message_bytes_max=5000)) as rig:
        await in_thread(talk, await rig.client())
        assert rig.figure("refused") == 2


@pytest.mark.parametrize("address", ["queue.nothing", "queue.nothing/$management", "queue."])
async def test_an_unknown_queue_is_not_found(tmp_path: Path, address: str) -> None:
    def talk(client: QueueClient) -> None:
        for link in (client.sender(address), client.taker(address)):
            condition = client.refusal(link)
            assert condition.name == "amqp:not-found"
            assert "no queue is named" in condition.description
        assert client.refusal(client.sender("euronext.104")).name == "amqp:not-allowed"

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert rig.count("links_refused") == 3


SELECTOR = proton.Described(proton.symbol("apache.org:selector-filter:string"), "colour = 'red'")


def _browse(source: proton.Terminus) -> None:
    source.distribution_mode = proton.Terminus.DIST_MODE_COPY


def _select(source: proton.Terminus) -> None:
    source.filter.put_dict({proton.symbol("jms-selector"): SELECTOR})


def _filter_by_what_is_no_map(source: proton.Terminus) -> None:
    source.filter.put_string("red")


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (_browse, "cannot be browsed"),
        (_select, "no filters or selectors: jms-selector"),
        (_filter_by_what_is_no_map, "no filters or selectors"),
    ],
)
async def test_who_would_take_what_he_means_to_leave_is_refused(
    tmp_path: Path, ask: Callable[[proton.Terminus], None], why: str
) -> None:
    """A browser of JMS, or a consumer with a selector: ignored, it would empty the queue."""

    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2, 3)
        link = client.sessions[-1].receiver("browser")
        link.source.address = "queue.orders"
        ask(link.source)
        link.open()
        link.flow(10)
        condition = client.refusal(link)
        assert condition.name == "amqp:not-implemented"
        assert why in condition.description
        assert client.wait_for(client.taker(), 3) == [1, 2, 3]

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert rig.count("links_unsupported") == 1


async def test_a_pending_message_is_cancelled_by_its_message_id(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put_numbers(putting, *range(1, 6))
        reply, body = client.ask(operation="cancel", message_id="m2")
        assert (reply["status-code"], reply["answer"]) == (200, "cancelled")
        assert body == [{"id": 2, "answer": "cancelled"}]
        assert client.ask(operation="cancel", id=4)[0]["answer"] == "cancelled"
        link = client.taker(credit=2)
        assert client.wait_for(link, 2) == [1, 3]
        assert client.ask(operation="cancel", message_id="m1")[0]["answer"] == "delivering"
        client.settle_all(link)
        reply, _ = client.ask(operation="cancel", message_id="m1")
        assert (reply["status-code"], reply["answer"]) == (409, "delivered")
        assert client.ask(operation="cancel", message_id="m3")[0]["answer"] == "delivered"
        assert client.ask(operation="cancel", message_id="m9")[0]["status-code"] == 404
        assert client.ask(operation="cancel", id=6)[0]["answer"] == "unknown"
        link.flow(9)
        assert client.wait_for(link, 1) == [5]

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert (rig.figure("cancelled"), rig.figure("depth")) == (2, 1)


async def test_who_waits_hears_what_became_of_a_message_that_a_consumer_had(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        consumer, trader = await rig.client(), await rig.client()
        putting = await in_thread(trader.sender)
        await in_thread(trader.put_numbers, putting, 1, 2)
        link = await in_thread(consumer.taker, credit=2)
        await in_thread(consumer.wait_for, link, 2)
        asked = [
            asyncio.create_task(
                in_thread((await rig.client()).ask, operation="cancel", id=n, wait=True)
            )
            for n in (1, 2)
        ]
        await rig.until(lambda: rig.figure("cancels_late") == 2, "the questions")
        (_, kept), (_, back) = consumer.of(link)
        kept.update(ACCEPTED)
        back.update(RELEASED)
        for each in (kept, back):
            each.settle()
        await in_thread(consumer.sync)
        answers = [(await each)[0]["answer"] for each in asked]
        assert answers == ["delivered", "cancelled"]
        assert rig.figure("depth") == 0


async def test_everything_pending_is_cancelled_at_once(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put_numbers(putting, *range(3000))
        link = client.taker(credit=2)
        client.wait_for(link, 2)
        reply, body = client.ask(operation="cancel-all")
        assert (reply["answer"], body["cancelled"], body["delivering"]) == ("cancelled", 2998, 2)
        link.flow(5)
        client.put_numbers(putting, 7)
        assert client.wait_for(link, 3)[-1] == 7

    async with running(orders(tmp_path, credit=1000)) as rig:
        await in_thread(talk, await rig.client())


async def test_cancelling_all_tells_page_by_page_which_cancels_are_to_be_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedhandler.amqp.durable.queue.FORWARD_PAGE", 3)

    def talk(client: QueueClient) -> None:
        putting = client.sender()
        client.put_numbers(putting, *range(1, 6))
        client.put(putting, proton.Message(id=1 << 63, body=6), b"\x00\x53\x77\x40")
        link = client.taker(credit=6)
        client.wait_for(link, 6)
        for _, delivery in client.of(link)[:4]:
            delivery.update(ACCEPTED)
        client.pump(lambda: all(d.settled for _, d in client.of(link)[:4]), "four deliveries")
        reply, body = client.ask(operation="cancel-all")
        assert (reply["status-code"], body["cancelled"], body["delivering"]) == (200, 1, 2)
        assert body["forward"] == [
            {"id": n, "message-id": f"m{n}", "answer": "delivered"} for n in (1, 2, 3)
        ]
        assert body["more"]
        client.put_numbers(putting, 8)
        further = {"after": 3, "until": body["until"]}
        reply, body = client.ask(operation="forward", **further)
        assert (reply["answer"], body["more"]) == ("forward", False)
        assert body["forward"] == [
            {"id": 4, "message-id": "m4", "answer": "delivered"},
            {"id": 5, "message-id": "m5", "answer": "delivering"},
            {"id": 6, "message-id": 1 << 63, "answer": "delivering"},
        ]
        assert client.ask(operation="forward", after="m4")[0]["status-code"] == 400

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert rig.figure("cancelled") == 1


async def test_management_tells_figures_and_what_was_asked_wrongly(tmp_path: Path) -> None:
    def talk(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2, 3)
        reply, body = client.ask(operation="stat")
        assert reply["status-code"] == 200
        assert (body["name"], body["depth"], body["put"]) == ("orders", 3, 3)
        assert client.ask(operation="find", id=2)[1] == [{"id": 2, "status": "pending"}]
        reply, _ = client.ask(operation="find", id=99)
        assert reply["status-code"] == 404
        assert reply["status-description"] == "no message has had this id"
        for number in (0, -1, proton.ulong(1 << 63), proton.ulong((1 << 64) - 1), "one", True):
            for operation in ("find", "cancel"):
                reply, _ = client.ask(operation=operation, id=number)
                assert reply["status-code"] == 400, (operation, number)
                assert reply["status-description"].startswith("id is no number of a message")
        reply, _ = client.ask(operation="forward", after=proton.ulong(1 << 63))
        assert reply["status-code"] == 400
        for arguments in ({"operation": "explode"}, {}, {"operation": "cancel"}):
            assert client.ask(**arguments)[0]["status-code"] == 400
        _, asking = client.management()
        elsewhere = proton.Message(reply_to="elsewhere", properties={"operation": "stat"})
        lost, bad = client.put(asking, elsewhere, b"no request")
        assert lost.remote.condition.name == "amqp:precondition-failed"
        assert bad.remote.condition.name == "amqp:decode-error"
        quiet = proton.Message(properties={"operation": "cancel", "id": 1})
        assert client.put(asking, quiet)[0].remote_state == ACCEPTED

    async with running(orders(tmp_path)) as rig:
        await in_thread(talk, await rig.client())
        assert rig.figure("cancelled") == 1


def failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but for its first call, which fails in an unforeseen way."""
    faults = iter([ZeroDivisionError("unforeseen")])

    def either(*arguments: Any) -> Any:
        for fault in faults:
            raise fault
        return function(*arguments)

    return either


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "pre-settled"])
async def test_a_message_that_fails_on_its_way_to_one_consumer_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    async with running(orders(tmp_path), faults=1) as rig:
        producer, first, second = [await rig.client() for _ in range(3)]
        await in_thread(first.taker, settled=settled)
        monkeypatch.setattr(links, "head_of", failing_once(links.head_of))
        await in_thread(producer.put_numbers, await in_thread(producer.sender), 1)
        await in_thread(first.pump, lambda: bool(first.connection.state & REMOTE_CLOSED))
        assert first.connection.remote_condition.name == "amqp:internal-error"
        await in_thread(second.wait_for, await in_thread(second.taker), 1)
        assert second.messages[0][1].body == 1


async def test_an_answer_that_cannot_be_made_ends_the_connection_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    async with running(orders(tmp_path), faults=1) as rig:
        asking, other = await rig.client(), await rig.client()
        putting = await in_thread(other.sender)
        await in_thread(other.put_numbers, putting, 1)
        monkeypatch.setattr(links, "write_reply", failing_once(links.write_reply))
        answers, requests = await in_thread(asking.management)
        address = answers.remote_source.address
        cancel = proton.Message(reply_to=address, properties={"operation": "cancel", "id": 1})
        await in_thread(asking.send, requests, cancel)
        await in_thread(asking.pump, lambda: bool(asking.connection.state & REMOTE_CLOSED))
        await in_thread(other.put_numbers, putting, 2)
        reply, _ = await in_thread(other.ask, operation="find", id=1)
        assert reply["answer"] == "cancelled"
    assert not wrong


def test_what_was_accepted_is_there_after_a_restart_with_its_message_ids(tmp_path: Path) -> None:
    def before(client: QueueClient) -> None:
        client.put_numbers(client.sender(), *range(1, 11))
        link = client.taker(credit=3)
        client.wait_for(link, 3)
        client.of(link)[0][1].update(ACCEPTED)
        client.of(link)[0][1].settle()
        client.sync()
        client.ask(operation="cancel", message_id="m5")
        client.close()

    def after(client: QueueClient) -> None:
        assert client.ask(operation="cancel", message_id="m1")[0]["answer"] == "delivered"
        assert client.ask(operation="cancel", message_id="m6")[0]["answer"] == "cancelled"
        link = client.taker()
        assert client.wait_for(link, 7) == [2, 3, 4, 7, 8, 9, 10]
        assert not any(message.first_acquirer for message, _ in client.of(link))
        client.settle_all(link)
        client.close()

    async def scenario(talk: Any) -> None:
        async with running(orders(tmp_path)) as rig:
            await in_thread(talk, await rig.client())

    asyncio.run(scenario(before))
    asyncio.run(scenario(after))
    with BlockingQueue(tmp_path) as queue:
        assert queue.statistics()["pending"] == 0


async def test_bytes_that_were_put_otherwise_travel_as_data(tmp_path: Path) -> None:
    with BlockingQueue(tmp_path, QueueSettings(block_bytes=1 << 20)) as queue:
        queue.put(b"8=FIX.4.3")
    async with running(orders(tmp_path)) as rig:
        client = await rig.client()
        link = await in_thread(client.taker)
        assert await in_thread(client.wait_for, link, 1) == [b"8=FIX.4.3"]
