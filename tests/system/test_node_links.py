"""The node towards links: credit to the letter, outcomes, drain, many links, sessions that end."""

import gc
import socket
import weakref
from typing import Any

import proton
import pytest

from feedhandler.amqp.proton import UNSETTLED_MAX
from tests.support.node import RawClient, in_thread, running

pytestmark = pytest.mark.gateways_loop

REMOTE_CLOSED = proton.Endpoint.REMOTE_CLOSED


@pytest.mark.parametrize("credit", [1, 10])
async def test_a_link_gets_exactly_as_many_messages_as_it_granted(credit: int) -> None:
    async with running() as rig:
        client, link = await rig.attached("euronext.104?quality=0")
        await rig.stream(1, 50)
        for turn in range(1, 4):
            link.flow(credit)
            await in_thread(client.pump, lambda n=turn: len(client.got(link)) == n * credit)
            await in_thread(client.sync)
            assert len(client.got(link)) == turn * credit
        assert [each.sequence for each in client.got(link)] == list(range(1, 3 * credit + 1))


async def test_drain_gives_what_waits_and_takes_the_rest_of_the_credit_back() -> None:
    async with running() as rig:
        client, link = await rig.attached("euronext.104?quality=0")
        await rig.stream(1, 3)
        link.drain(10)
        await in_thread(client.pump, lambda: not link.draining(), "drained")
        assert len(client.got(link)) == 3
        assert link.credit == 0
        link.drain(5)  # nothing waits: all of it comes back
        await in_thread(client.pump, lambda: not link.draining(), "drained")
        assert len(client.got(link)) == 3
        link.drain_mode = False
        link.flow(1)
        await rig.stream(4, 6)
        await in_thread(client.pump, lambda: len(client.got(link)) == 4, "after the drain")


async def test_a_drain_of_more_than_the_connection_takes_at_once_is_answered() -> None:
    async with running() as rig:
        rig.narrow()
        client = rig.raw(receive_buffer=4096)
        link = client.receiver("euronext.104?quality=0")
        await in_thread(client.attached, link)
        await rig.stream(1, 2000)  # some 800 kB
        link.drain(20_000)
        await in_thread(client.pump, lambda: not link.draining(), "drained")
        assert [each.sequence for each in client.got(link)] == list(range(1, 2001))
        assert link.credit == 0


async def test_outcomes_are_counted_once_each_and_settled() -> None:
    async with running() as rig:
        client, _ = await rig.attached("euronext.104?quality=0", 100, settled=False)
        client.settle = False
        await rig.stream(1, 40)
        await in_thread(client.pump, lambda: len(client.deliveries) == 40, "deliveries")
        for index, delivery in enumerate(client.deliveries):
            assert not delivery.settled
            state = [
                proton.Delivery.ACCEPTED,
                proton.Delivery.REJECTED,
                proton.Delivery.RELEASED,
                proton.Delivery.MODIFIED,
            ][index % 4]
            delivery.update(state)
        # The outcomes of all, then the settlement of all: two dispositions for each.
        client._write()
        for delivery in client.deliveries:
            delivery.settle()
        client._write()
        await rig.until(lambda: rig.count("accepted") + rig.count("refused") >= 40, "all outcomes")
        await in_thread(client.sync)
        assert (rig.count("accepted"), rig.count("refused")) == (10, 30)
        (sender_queue,) = rig.fanout.sender_queues
        assert sender_queue.sender.unsettled == 0
        assert not sender_queue.sender.settled
        await in_thread(client.close)
        assert (rig.count("accepted"), rig.count("refused")) == (10, 30)


async def test_a_subscriber_that_never_settles_is_held_at_a_bound() -> None:
    async with running() as rig:
        client, link = await rig.attached("euronext.104?quality=0", 50_000, settled=False)
        client.settle = False
        await rig.stream(1, 12_000)
        await in_thread(client.pump, lambda: len(client.deliveries) == UNSETTLED_MAX, "the bound")
        await in_thread(client.sync)
        assert len(client.deliveries) == UNSETTLED_MAX
        for delivery in client.deliveries:
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
        await in_thread(client.pump, lambda: len(client.deliveries) == 12_000, "the rest")
        assert [each.sequence for each in client.got(link)] == list(range(1, 12_001))


async def test_two_hundred_links_on_five_connections_each_get_their_own() -> None:
    async with running() as rig:
        clients = [rig.raw() for _ in range(5)]
        wanted = ["euronext.104", "euronext.104?as=batch", "euronext.104.{}?as=message",
                  "euronext.*.{}"]  # fmt: skip
        links: list[tuple[RawClient, Any]] = []
        for index in range(200):
            client = clients[index % 5]
            address = wanted[index // 5 % 4].format(1000 + index % 7)
            links.append((client, client.receiver(address, 1000)))
        for client in clients:
            await in_thread(client.attached, *(link for c, link in links if c is client))
        assert rig.node.links == 200
        put = rig.packets(1, 30)
        await rig.deliver()
        symbols = [n for data in put for n in rig.feed.decode_packet(data).symbols]
        for index, (client, link) in enumerate(links):
            kind, symbol = index // 5 % 4, 1000 + index % 7
            expected = b"".join(put) if kind < 2 else symbols.count(symbol)

            def whole(client: Any = client, link: Any = link, kind: int = kind) -> Any:
                data = [each for each in client.got(link) if "quality" not in each.content]
                if kind < 2:
                    return b"".join(each.body for each in data)
                if kind == 2:
                    return len(data)
                return sum(len(rig.feed.decode_packet(each.body).symbols) for each in data)

            await in_thread(client.pump, lambda w=whole, e=expected: w() == e, link.name)
        for client in clients:
            await in_thread(client.close)
        await rig.until(lambda: not rig.node.connections, "all gone")
        assert rig.node.links == 0
        assert rig.fanout.sender_queues == []


async def test_the_first_message_of_a_link_is_the_quality_of_its_service() -> None:
    async with running(services=(104, 105)) as rig:
        await rig.stream(1, 3)
        client = rig.raw()
        link = client.receiver("euronext.#", 10)
        await in_thread(client.pump, lambda: len(client.got(link)) == 2, "two services")
        assert [each.key for each in client.got(link)] == [
            "euronext.104.quality",
            "euronext.105.quality",
        ]
        assert b'"attached"' in client.got(link)[0].body
        assert b'"next":4' in client.got(link)[0].body


async def test_a_link_that_closes_leaves_its_connection_and_the_others_alone() -> None:
    async with running() as rig:
        client = rig.raw()
        first = client.receiver("euronext.104?quality=0", 100)
        second = client.receiver("euronext.104?quality=0", 100)
        await in_thread(client.attached, first, second)
        await rig.stream(1, 2)
        await in_thread(client.pump, lambda: len(client.got(first)) == 2, "both")
        first.close()
        await in_thread(client.pump, lambda: bool(first.state & REMOTE_CLOSED), "detach")
        await rig.stream(3, 4)
        await in_thread(client.pump, lambda: len(client.got(second)) == 4, "the other")
        assert len(client.got(first)) == 2
        assert rig.node.links == 1


async def test_a_session_that_ends_takes_its_links_along_and_no_others() -> None:
    async with running() as rig:
        client = rig.raw()
        session = client.new_session()
        doomed = [client.receiver("euronext.104", 100, f"doomed {n}") for n in range(3)]
        client.new_session()
        kept = client.receiver("euronext.104?quality=0", 100)
        await in_thread(client.attached, *doomed, kept)
        assert rig.node.links == 4
        session.close()
        await in_thread(client.pump, lambda: bool(session.state & REMOTE_CLOSED), "the end")
        await rig.until(lambda: rig.node.links == 1, "links of the session gone")
        await rig.stream(1, 5)
        await in_thread(client.pump, lambda: len(client.got(kept)) == 5, "the other session")
        # Sessions come and go without anything of them staying behind.
        for turn in range(50):
            client.new_session()
            link = client.receiver("euronext.104", 1, f"turn {turn}")
            if turn % 2:
                await in_thread(client.attached, link)
            client.sessions.pop().close()
        client.sessions = client.sessions[:2]
        await in_thread(client.sync)
        await rig.until(lambda: rig.node.links == 1, "all of them gone")
        (connection,) = rig.node.connections
        assert len(connection.engine.links) == 1


async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    """Its descriptor's number belongs to the next client that comes."""
    async with running() as rig:
        client, _ = await rig.attached("euronext.104?quality=0", 50)
        (connection,) = rig.node.connections
        number = connection.sock.fileno()
        rig.packets(1, 20)
        rig.ring.publish()
        while rig.fanout.pump(1 << 18):  # in the engine, not written yet
            pass
        assert rig.fanout.dirty_peers == [connection]
        connection.end()
        client.drop()
        successor = rig.raw()
        await rig.until(lambda: len(rig.node.connections) == 1, "accepted")
        (other,) = rig.node.connections
        assert other.sock.fileno() == number
        rig.node.flush()
        quiet = successor.receiver("euronext.104", 1)
        await in_thread(successor.attached, quiet)
        await in_thread(successor.pump, lambda: len(successor.got(quiet)) == 1, "quality")


async def test_a_connection_that_is_gone_leaves_nothing_behind() -> None:
    async with running() as rig:
        client, _ = await rig.attached("euronext.104", 5)
        await rig.stream(1, 20)
        (connection,) = rig.node.connections
        watch = weakref.ref(connection)
        del connection
        gc.disable()
        try:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.drop()
            await rig.until(lambda: not rig.node.connections, "noticed")
            await rig.stream(21, 21)
            await rig.until(lambda: watch() is None, "freed without the cycle collector")
        finally:
            gc.enable()
