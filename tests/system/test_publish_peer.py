"""The publisher against a broker that does what brokers should not."""

import asyncio
import random
import socket
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from proton import Delivery, Endpoint

from feedhandler.amqp.publishing.publisher import Publishers
from feedhandler.config.publishing import PublishConfig
from tests.support.amqp import packet
from tests.support.amqp_wire import TRANSFER, Value, frame
from tests.support.broker_peer import broker
from tests.support.node import NodeRig
from tests.support.publish import DestinationRig, sequences, started, tag

RABBITMQ_4 = {"product": "RabbitMQ", "version": "4.0.5"}
ARTEMIS = {"product": "apache-activemq-artemis", "version": "2.40.0"}
BROKER_J = {"product": "Apache Qpid Broker-J Core", "version": "9.2.1"}


class PublishRig(DestinationRig):
    """A destination that is connected to again quickly."""

    def __init__(self, url: str, **settings: Any) -> None:
        usual = {"reconnect_us": 1000, "reconnect_max_us": 20_000, "exchange": "market data"}
        super().__init__(url, **usual | settings)


def publishing(url: str, **settings: Any) -> AbstractAsyncContextManager[PublishRig]:
    return started(PublishRig(url, **settings), 2.0)


@pytest.mark.gateways_loop
async def test_a_stream_arrives_confirmed_and_in_order() -> None:
    async with broker() as peer:
        async with publishing(peer.url) as rig:
            await rig.stream(1, 500)
            await rig.confirmed()
            assert rig.seen["confirmed"] == rig.seen["sent"] == 501
            assert (rig.seen["resent"], rig.seen["dropped"]) == (0, 0)
        assert sequences(peer.messages) == [*range(1, 501)]
        assert all(message.durable for message in peer.messages)
        assert peer.messages[1].subject == "euronext.104"
        assert bytes(peer.messages[500].body) == packet(500)
        assert peer.targets == ["/exchange/market%20data"]
        assert peer.goodbyes == 1
        assert rig.seen["state"] == "CLOSED"


class _Resolver:
    """An event loop that finds several addresses of a host."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *found: tuple[str, int]) -> None:
        self._loop = loop
        self._found = found

    async def getaddrinfo(self, host: str, port: int, **hints: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", each)
            for each in self._found
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_of_a_brokers_addresses_the_first_that_answers_is_taken() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with broker() as peer:
            addresses = closed.getsockname(), ("127.0.0.1", peer.port)
            async with publishing("amqp://broker.firm") as rig:
                rig.publisher._loop = _Resolver(rig.publisher._loop, *addresses)
                await rig.stream(1, 5)
                await rig.confirmed()
                assert rig.seen["failures"] == 0
        assert sequences(peer.messages) == [*range(1, 6)]


async def test_connections_that_break_lose_nothing_and_double_only_the_unconfirmed(
    seed: int,
) -> None:
    chance = random.Random(seed)

    def answer(number: int, message: Any) -> Any:
        return "drop" if chance.random() < 0.01 else Delivery.ACCEPTED

    async with broker(answer) as peer:
        async with publishing(peer.url, window=50) as rig:
            await rig.stream(1, 2000, share=20)
            await rig.confirmed()
            assert rig.seen["resent"] > 0
            assert rig.seen["connects"] == peer.accepted > 1
            assert rig.seen["confirmed"] == rig.seen["sent"] == 2001
        came = sequences(peer.messages)
        assert sorted(set(came)) == [*range(1, 2001)]
        once = list(dict.fromkeys(came))
        assert once == [*range(1, 2001)], "whatever came twice, first copies are in order"
        assert len(peer.messages) - 2001 <= rig.seen["resent"]


@pytest.mark.parametrize(
    ("answer", "counter"),
    [
        (Delivery.RELEASED, "released"),
        (Delivery.REJECTED, "rejected"),
        (Delivery.MODIFIED, "modified"),
        ("settle", "untold"),
    ],
)
async def test_what_a_broker_gives_back_is_sent_again(answer: Any, counter: str) -> None:
    def once(number: int, message: Any) -> Any:
        return answer if number == 5 else Delivery.ACCEPTED

    async with broker(once) as peer:
        async with publishing(peer.url) as rig:
            await rig.stream(1, 20)
            await rig.confirmed()
            assert rig.seen[counter] == 1
            assert rig.seen["resent"] == 1
            assert rig.seen["abandoned"] == 0
            assert rig.seen["confirmed"] == 21
        assert sequences(peer.messages) == [*range(1, 21), 4]
        assert peer.messages[4].id == peer.messages[21].id


@pytest.mark.parametrize("answer", [Delivery.REJECTED, "undeliverable"])
async def test_what_the_broker_never_accepts_is_given_up_announced_and_never_counted_as_confirmed(
    answer: Any,
) -> None:
    def never_three(number: int, message: Any) -> Any:
        return answer if tag(message)[3:] == (3, 0xFFFF) else Delivery.ACCEPTED

    async with broker(never_three) as peer:
        async with publishing(peer.url) as rig:
            await rig.stream(1, 5)
            await rig.until(lambda: rig.seen["abandoned"] == 1, "given up")
            await rig.confirmed()
        notes = [m for m in peer.messages if m.subject.endswith("quality")]
        assert b'"reason":"overflow"' in bytes(notes[-1].body)
        assert b'"lost":[[3,3]]' in bytes(notes[-1].body)
        assert rig.seen["confirmed"] == rig.seen["sent"] - 1
        assert any("given up" in line for line in rig.reported)
        if answer == Delivery.REJECTED:
            assert any("the test says no" in line for line in rig.reported)


async def test_a_broker_that_answers_nothing_costs_no_more_than_the_bound() -> None:
    async with broker(lambda number, message: None) as peer:
        async with publishing(peer.url, window=10, queue_bytes=200_000) as rig:
            await rig.until(lambda: rig.seen["state"] == "UP", "up")
            await rig.stream(1, 3000)
            seen = rig.seen
            assert seen["unconfirmed"] == 10
            assert seen["queued_bytes"] + seen["unconfirmed_bytes"] <= 200_000
            assert seen["dropped"] > 0
            await rig.until(lambda: any("does not keep up" in line for line in rig.reported))
            peer.answer = lambda number, message: Delivery.ACCEPTED
            peer.break_off()
            await rig.confirmed()
        notes = [m for m in peer.messages if m.subject.endswith("quality")]
        assert b'"reason":"overflow"' in bytes(notes[-1].body)
        assert sequences(peer.messages)[-1] == 3000


async def test_a_broker_without_credit_gets_nothing_and_all_of_it_later() -> None:
    async with broker(credit=0) as peer:
        async with publishing(peer.url) as rig:
            await rig.until(lambda: rig.seen["state"] == "UP", "up")
            await rig.stream(1, 30)
            assert peer.messages == []
            peer.credit = 1
            peer.break_off()
            await rig.confirmed()
        assert sequences(peer.messages) == [*range(1, 31)]


async def test_a_broker_that_is_not_there_is_reported_once_and_waited_for() -> None:
    async with broker() as peer:
        port = peer.port
    async with publishing(f"amqp://127.0.0.1:{port}") as rig:
        await rig.until(lambda: rig.seen["failures"] > 3, "several tries")
        await rig.stream(1, 5)
        assert rig.seen["queued"] == 6
        assert len(rig.reported) == 1
        assert "refused" in rig.reported[0].lower()
        assert rig.seen["reason"]
    assert "6 messages were not confirmed" in rig.reported[-1]


async def test_a_link_that_is_refused_is_reported_with_the_brokers_words() -> None:
    async with broker() as peer:
        peer.refuse = ("amqp:not-found", "no such exchange")
        async with publishing(peer.url) as rig:
            await rig.until(lambda: rig.seen["failures"] > 1, "refused")
            assert "amqp:not-found: no such exchange" in rig.reported[0]
            peer.refuse = None
            await rig.confirmed()


async def test_a_broker_of_an_unknown_kind_is_not_published_to() -> None:
    async with broker() as peer:
        peer.properties = {"product": "Sparrow", "version": "9"}
        async with publishing(peer.url) as rig:
            await rig.until(lambda: rig.seen["failures"] > 0, "refused")
            assert "Sparrow 9 is of no kind that is known" in rig.reported[0]
            assert peer.targets == []


async def test_a_kind_that_is_set_needs_no_detecting() -> None:
    async with broker() as peer:
        peer.properties = {}
        async with publishing(f"{peer.url}/market", kind="rabbitmq-3") as rig:
            await rig.confirmed()
            assert peer.hostnames == ["vhost:market"]


async def test_rabbitmq_3_is_not_trusted_without_a_look_at_its_bindings() -> None:
    async with broker() as peer, publishing(peer.url, require_route=True) as rig:
        await rig.until(lambda: rig.seen["failures"] > 0, "refused")
        assert "set `management`, or require_route = false" in rig.reported[0]
        assert peer.targets == []


async def test_a_batch_that_gathers_is_sent_after_its_time_though_more_waits() -> None:
    async with broker() as peer:
        settings = {"grain": "batch", "batch_max_us": 5000, "quality": False}
        async with publishing(peer.url, **settings) as rig:
            await rig.until(lambda: rig.seen["state"] == "UP", "up")
            rig.packets(1, 50)
            rig.ring.publish()
            for _ in range(20):
                assert rig.fanout.pump(1), "the loop has more to do"
            assert rig.seen["sent"] == 0
            await rig.until(lambda: len(peer.messages) == 1, "its time")
            assert bytes(peer.messages[0].body) == b"".join(packet(n) for n in range(1, 21))
            await rig.deliver()
            await rig.confirmed()
            await rig.until(lambda: len(peer.messages) == 2, "the rest, at once")
        rest = b"".join(packet(n) for n in range(21, 51))
        assert bytes(peer.messages[1].body) == rest


async def test_a_queue_is_declared_by_the_links_target() -> None:
    async with broker() as peer:
        goal = {"exchange": "", "queue": "all of it"}
        async with publishing(peer.url, require_route=True, **goal) as rig:
            await rig.confirmed()
        assert peer.targets == ["/queue/all%20of%20it"]


@pytest.mark.parametrize(
    ("properties", "goal", "targets", "to"),
    [
        (RABBITMQ_4, "exchange", ["/exchanges/a%2Fb", None], "/exchanges/a%2Fb/euronext.104"),
        (ARTEMIS, "topic", [None], "a/b.euronext.104"),
    ],
)
async def test_without_a_target_each_message_says_where_it_goes(
    properties: dict[str, str], goal: str, targets: list[str | None], to: str
) -> None:
    async with broker() as peer:
        peer.properties = properties
        goals = {"exchange": "", goal: "a/b", "quality": False}
        async with publishing(peer.url, **goals) as rig:
            await rig.stream(1, 20)
            await rig.confirmed()
        assert peer.targets == targets
        assert {message.address for message in peer.messages} == {to}
        assert sequences(peer.messages) == [*range(1, 21)]


async def test_what_a_broker_has_not_is_reported_with_what_to_write_instead() -> None:
    async with broker() as peer:
        goal = {"exchange": "", "topic": "md"}
        async with publishing(peer.url, **goal) as rig:
            await rig.until(lambda: rig.seen["failures"] > 0, "refused")
            assert 'RabbitMQ has no topics; write exchange = "amq.topic"' in rig.reported[0]
            assert peer.targets == []


async def test_a_broker_that_became_another_kind_gets_its_messages_in_the_new_way() -> None:
    async with broker(lambda number, message: None if number > 5 else Delivery.ACCEPTED) as peer:
        async with publishing(peer.url, quality=False) as rig:
            await rig.stream(1, 20)
            await rig.until(lambda: len(peer.messages) == 20, "sent")
            peer.properties = RABBITMQ_4
            peer.answer = lambda number, message: Delivery.ACCEPTED
            peer.break_off()
            await rig.confirmed()
        again = peer.messages[20:]
        assert sequences(peer.messages)[20:] == [*range(6, 21)]
        assert {m.address for m in again} == {"/exchanges/market%20data/euronext.104"}


async def test_brokers_of_two_kinds_are_published_to_at_once() -> None:
    async with broker() as old, broker() as new:
        new.properties = RABBITMQ_4
        rig = NodeRig()
        configs = tuple(
            PublishConfig(name=name, to=peer.url, exchange="x", require_route=False)
            for name, peer in (("old", old), ("new", new))
        )
        both = Publishers(configs, rig.fanout, rig.feed.type_code, "gateway", lambda text: None)
        rig.node.start()
        both.start(rig.qualities)
        await rig.stream(1, 100)
        await rig.until(lambda: all(one["confirmed"] == 101 for one in both.snapshot()))
        await both.stop(2.0)
        await rig.node.stop(0.1)
        assert sequences(old.messages) == sequences(new.messages) == [*range(1, 101)]
        assert [m.body for m in old.messages] == [m.body for m in new.messages]
        assert [m.id for m in old.messages] == [m.id for m in new.messages]


async def test_an_exchange_of_rabbitmq_4_that_is_not_there_is_waited_for() -> None:
    async with broker() as peer:
        peer.properties = RABBITMQ_4
        peer.refuse = ("amqp:not-found", "no exchange 'x'")
        async with publishing(peer.url, exchange="x") as rig:
            await rig.stream(1, 5)
            await rig.until(lambda: rig.seen["failures"] > 1, "refused")
            assert "amqp:not-found: no exchange 'x'" in rig.reported[0]
            assert set(peer.targets) == {"/exchanges/x"}, "the link itself was not tried"
            peer.refuse = None
            await rig.confirmed()
        assert sequences(peer.messages) == [*range(1, 6)]


async def test_an_exchange_that_says_it_drops_what_it_cannot_route_is_not_trusted() -> None:
    async with broker() as peer:
        peer.properties = BROKER_J
        peer.capabilities = ("DISCARD_UNROUTABLE",)
        async with publishing(peer.url, require_route=True) as rig:
            await rig.until(lambda: rig.seen["failures"] > 0, "refused")
            assert "unroutableMessageBehaviour to REJECT" in rig.reported[0]
            peer.capabilities = ("REJECT_UNROUTABLE",)
            await rig.confirmed()
        for word in ("accepted", "rejected", "released", "modified"):
            assert f"amqp:{word}:list" in peer.outcomes[-1]


async def test_virtual_hosts_are_asked_for_as_the_broker_wants_once_it_is_known() -> None:
    async with broker() as peer:
        peer.properties = BROKER_J
        async with publishing(f"{peer.url}/market") as rig:
            await rig.confirmed()
            assert rig.seen["failures"] == 0
            assert len(rig.reported) == 1
        assert peer.hostnames == ["vhost:market", "market"]


async def test_a_broker_that_says_nothing_of_a_message_gets_it_again_over_a_new_connection() -> (
    None
):
    def deaf(number: int, message: Any) -> Any:
        return None if number <= 5 else Delivery.ACCEPTED

    async with broker(deaf) as peer:
        settings = {"confirm_timeout_us": 1000, "quality": False}
        async with publishing(peer.url, **settings) as rig:
            await rig.stream(1, 5)
            await rig.confirmed()
            assert any("nothing was said of a message" in line for line in rig.reported)
        # On a busy machine the confirmations, too, may come too late, and all again.
        assert sequences(peer.messages)[:10] == [*range(1, 6)] * 2


async def test_a_broker_without_credit_is_not_left_for_messages_that_it_was_not_sent_again() -> (
    None
):
    async with broker(lambda number, message: None) as peer:
        async with publishing(peer.url, quality=False) as rig:
            await rig.stream(1, 3)
            await rig.until(lambda: len(peer.messages) == 3, "sent")
            for outgoing in rig.publisher.destination.unsettled.held.values():
                outgoing.tried_ns -= 1000 * rig.publisher.config.confirm_timeout_us
            peer.credit, peer.answer = 0, lambda number, message: Delivery.ACCEPTED
            peer.break_off()
            await rig.until(
                lambda: rig.seen["connects"] == 2 and rig.seen["state"] == "UP", "up again"
            )
            rig.publisher.tick(time.monotonic_ns() // 1_000_000)
            assert not rig.publisher.gone
            peer.credit = 10
            peer.break_off()
            await rig.confirmed()
        assert sequences(peer.messages) == [1, 2, 3, 1, 2, 3]


async def test_an_error_of_ours_while_it_connects_is_reported_and_does_not_end_a_publisher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker() as peer:
        rig = PublishRig(peer.url)

        async def fails() -> str | None:
            monkeypatch.undo()
            raise RuntimeError("the test says so")

        monkeypatch.setattr(rig.publisher, "_route_problem", fails)
        async with started(rig, 2.0):
            await rig.stream(1, 5)
            await rig.confirmed()
        assert "internal error: RuntimeError: the test says so; trying again" in rig.reported[0]
        assert sequences(peer.messages) == [1, 2, 3, 4, 5]


async def test_a_connection_that_breaks_with_each_message_is_reported_once() -> None:
    async with broker(lambda number, message: "drop") as peer, publishing(peer.url) as rig:
        await rig.stream(1, 5)
        await rig.until(lambda: rig.seen["failures"] > 5, "breaks again and again")
        assert len(rig.reported) == 2, "up once, down once"
        peer.answer = lambda number, message: Delivery.ACCEPTED
        await rig.confirmed()
        await rig.until(lambda: len(rig.reported) == 3, "up again, when it confirms")
        assert "publishing to" in rig.reported[2]


async def test_a_link_that_the_broker_offers_is_refused_and_harms_nothing() -> None:
    async with broker() as peer, publishing(peer.url) as rig:
        await rig.confirmed()
        (connection,) = peer.connections
        session = connection.connection.session_head(Endpoint.LOCAL_ACTIVE)
        links = [session.receiver("mine"), session.sender("mine too")]
        for link in links:
            link.open()
        connection.work()
        closed = Endpoint.REMOTE_CLOSED
        await rig.until(lambda: all(link.state & closed for link in links), "refused")
        assert links[0].remote_condition.name == "amqp:not-allowed"
        links[1].close()
        connection.work()
        await rig.stream(1, 5)
        await rig.confirmed()
        assert rig.seen["connects"] == 1


async def test_a_broker_that_sends_on_our_link_is_left_and_gets_the_unconfirmed_again() -> None:
    def deaf(number: int, message: Any) -> Any:
        return None if 3 <= number <= 5 else Delivery.ACCEPTED

    async with broker(deaf) as peer, publishing(peer.url, quality=False) as rig:
        await rig.stream(1, 5)
        await rig.until(lambda: len(peer.messages) == 5, "five have come")
        (connection,) = peer.connections
        named = Value(0xA0, b"t")
        connection.socket.write(frame(TRANSFER, 0, 0, named, 0, False, payload=b"not yours"))
        await rig.until(lambda: rig.seen["connects"] == 2, "a new connection")
        assert connection.connection.remote_condition.name == "amqp:not-allowed"
        await rig.confirmed()
        assert any("whose sender is the other side" in line for line in rig.reported)
        assert sequences(peer.messages) == [1, 2, 3, 4, 5, 3, 4, 5]
        assert (rig.seen["resent"], rig.seen["abandoned"]) == (3, 0)
