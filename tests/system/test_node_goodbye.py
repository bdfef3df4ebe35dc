"""The node's orderly end: what waits is delivered, clients hear why, no client holds it up."""

import asyncio

import proton
import pytest

from feedhandler.amqp.serving import connection
from feedhandler.amqp.serving.connection import unsent_bytes
from tests.support.node import PATIENCE_S, RawClient, in_thread, running

pytestmark = pytest.mark.gateways_loop

REMOTE_CLOSED = proton.Endpoint.REMOTE_CLOSED


def goodbye_of(client: RawClient) -> str:
    """Read to the end; the condition with which the node closed the connection."""
    client.pump(lambda: client.gone or bool(client.connection.state & REMOTE_CLOSED), "the goodbye")
    condition = client.connection.remote_condition
    return condition.name if condition else ""


async def test_stop_delivers_what_waits_and_says_why() -> None:
    async with running() as rig:
        rig.narrow()
        quick, slow = RawClient(rig.port), RawClient(rig.port, receive_buffer=4096)
        links = [each.receiver("euronext.104?quality=0", 20_000) for each in (quick, slow)]
        await in_thread(quick.attached, links[0])
        await in_thread(slow.attached, links[1])
        await rig.stream(1, 2000)  # more than socket and engine hold
        stopping = asyncio.create_task(rig.node.stop(PATIENCE_S))
        conditions = await asyncio.gather(in_thread(goodbye_of, quick), in_thread(goodbye_of, slow))
        assert conditions == ["amqp:connection:forced"] * 2
        for client, link in zip((quick, slow), links, strict=True):
            assert [each.sequence for each in client.got(link)] == list(range(1, 2001))
        for client in (quick, slow):
            await in_thread(client.close)
        await stopping
        assert not rig.node.connections
        assert rig.count("connections_failed") == 0


async def test_a_client_that_talks_until_the_end_still_hears_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that sends until the end still gets every message and the node's close.

    Were the socket closed while the client still speaks, the kernel would answer its next word
    with a reset and drop what it had not sent yet.
    """
    # However long it stands still, it is a client that reads.
    monkeypatch.setattr(connection, "LINGER_SECONDS", PATIENCE_S)
    monkeypatch.setattr(connection, "LINGER_SECONDS_MAX", PATIENCE_S)
    async with running() as rig:
        client = RawClient(rig.port, receive_buffer=4096)
        link = client.receiver("euronext.104?quality=0", 5000)
        await in_thread(client.attached, link)
        await rig.stream(1, 3000)
        stopping = asyncio.create_task(rig.node.stop(PATIENCE_S))
        await rig.until(lambda: not rig.node.listening, "stop has begun")

        def talk_and_listen() -> str:
            def more() -> bool:
                link.flow(1)
                return client.gone or bool(client.connection.state & REMOTE_CLOSED)

            client.pump(more, "the goodbye")
            return client.connection.remote_condition.name

        assert await in_thread(talk_and_listen) == "amqp:connection:forced"
        assert [each.sequence for each in client.got(link)] == list(range(1, 3001))
        await in_thread(client.close)
        await stopping


@pytest.mark.parametrize("bound_is_over", [False, True])
async def test_a_client_is_waited_for_as_long_as_it_reads_and_within_a_bound(
    monkeypatch: pytest.MonkeyPatch, bound_is_over: bool
) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", PATIENCE_S)
    monkeypatch.setattr(connection, "LINGER_SECONDS_MAX", 0.0 if bound_is_over else PATIENCE_S)
    async with running() as rig:
        client = RawClient(rig.port, receive_buffer=4096)
        await in_thread(client.attached, client.receiver("euronext.104?quality=0", 5000))
        await rig.stream(1, 200)
        stopping = asyncio.create_task(rig.node.stop(PATIENCE_S))
        await rig.until(lambda: any(each.leave_by for each in rig.node.connections), "it leaves")
        (leaving,) = rig.node.connections
        unsent = unsent_bytes(leaving.sock)
        assert unsent > 4096
        await in_thread(client.pump, lambda: unsent_bytes(leaving.sock) < unsent, "reading on")
        assert _tick_overdue(leaving) is bound_is_over
        await rig.until(lambda: _tick_overdue(leaving), "nothing more is read")
        await stopping
        client.drop()


def _tick_overdue(leaving: connection.NodeConnection) -> bool:
    """Let the time until which a client is waited for be over; return whether it has ended."""
    leaving.leave_by = 0.001
    leaving.on_tick(0)
    return leaving.gone


async def test_stop_finishes_in_time_though_clients_neither_read_nor_answer() -> None:
    async with running() as rig:
        rig.narrow()
        stuck, deaf = RawClient(rig.port, receive_buffer=4096), RawClient(rig.port)
        for client in (stuck, deaf):
            await in_thread(client.attached, client.receiver("euronext.104", 20_000))
        await rig.stream(1, 2000)
        async with asyncio.timeout(PATIENCE_S):  # bounded by its own time, not by the clients
            await rig.node.stop(0.5)
        assert not rig.node.connections
        assert rig.fanout.sender_queues == []
        for client in (stuck, deaf):
            client.drop()


async def test_a_stopped_node_accepts_no_client_and_stopping_twice_does_no_harm() -> None:
    async with running() as rig:
        port = rig.port
        await rig.node.stop(1)
        await rig.node.stop(1)
        try:
            RawClient(port)
        except ConnectionRefusedError:
            return
        raise AssertionError("the port still listens")
