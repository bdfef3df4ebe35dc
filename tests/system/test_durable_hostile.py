"""Durable queues towards clients that send what they may not: no credit, no end of a message."""

import socket
from pathlib import Path
from typing import Any

import proton
import pytest

from feedhandler.amqp.durable import intake, queue
from feedhandler.amqp.serving import connection
from tests.support import amqp_wire as wire
from tests.support.durable import orders, running
from tests.support.node import PATIENCE_S, in_thread
from tests.support.processes import resident_bytes


class RawSender:
    """A client that sends what it likes, on links to the queue `orders`."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.sock.sendall(wire.opening() + wire.begin())
        self.received = b""
        self.until(wire.BEGIN)  # which says the session's window

    def link(self, handle: int) -> bytes:
        """The attach of a sending link."""
        return wire.frame(
            wire.ATTACH, f"s{handle}", handle, False, wire.ubyte(0), wire.ubyte(0),
            wire.described(wire.SOURCE), wire.described(wire.TARGET, "queue.orders"), None, None, 0,
        )  # fmt: skip

    def transfer(self, handle: int, number: int, payload: bytes, more: bool = False) -> bytes:
        """A frame of a message."""
        tag = wire.Value(0xA0, bytes([number & 0xFF]))
        return wire.frame(wire.TRANSFER, handle, number, tag, 0, False, more, payload=payload)

    def until(self, code: int, count: int = 1) -> list[wire.Frame]:
        """Read until so many frames of this performative have come."""
        while True:
            frames = [each for each in wire.split(self.received) if isinstance(each, wire.Frame)]
            found = [each for each in frames if each.code == code]
            if len(found) >= count:
                return found
            data = self.sock.recv(65536)
            assert data, f"the node has gone: {frames}"
            self.received += data

    def condition(self, detach: wire.Frame) -> bytes:
        """Why the node has detached a link."""
        value: bytes = detach.field(2)[0].value
        return value


@pytest.mark.parametrize("waits", [False, True], ids=["before the attach's answer", "after it"])
async def test_a_message_beyond_the_credit_ends_its_link_and_no_other(
    tmp_path: Path, waits: bool
) -> None:
    def talk(port: int) -> bytes:
        client = RawSender(port)
        client.sock.sendall(client.link(0))
        if waits:
            client.until(wire.FLOW)
        client.sock.sendall(b"".join(client.transfer(0, n, b"\x00\x53\x77\x40") for n in range(17)))
        return client.condition(client.until(wire.DETACH)[0])

    async with running(orders(tmp_path, credit=16)) as rig:
        good = await rig.client()
        link = await in_thread(good.sender)
        assert await in_thread(talk, rig.port) == b"amqp:link:transfer-limit-exceeded"
        assert rig.count("links_over_credit") == 1
        await in_thread(good.put_numbers, link, 1, 2)


@pytest.mark.parametrize("bound", ["PARTIAL_BYTES_MAX", "PARTIAL_BYTES_TOTAL"])
async def test_messages_that_come_in_part_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(connection, bound, 1 << 19)
    part, links = bytes(60_000), 20
    async with running(orders(tmp_path, message_bytes_max=100_000)) as rig:
        client = await in_thread(RawSender, rig.port)
        await in_thread(client.sock.sendall, b"".join(client.link(n) for n in range(links)))
        await in_thread(client.until, wire.FLOW, links)
        for n in range(links):
            await in_thread(client.sock.sendall, client.transfer(n, n, part, more=True))
        detaches = await in_thread(client.until, wire.DETACH)
        assert client.condition(detaches[0]) == b"amqp:resource-limit-exceeded"
        assert rig.count("links_partial") > 0
        await rig.until(lambda: rig.node.partial_bytes <= 1 << 19, "what is within the bound")
        client.sock.close()
        await rig.until(lambda: rig.node.partial_bytes == 0, "nothing held")


async def test_what_is_sent_on_a_link_that_was_refused_is_not_kept(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        client = await in_thread(RawSender, rig.port)
        wrong = client.link(0).replace(b"queue.orders", b"queue.wrongs")
        await in_thread(client.sock.sendall, wrong)
        await in_thread(client.until, wire.DETACH)
        before = resident_bytes()
        for _ in range(800):
            await in_thread(client.sock.sendall, client.transfer(0, 0, bytes(50_000), True))
        await in_thread(client.sock.sendall, client.transfer(0, 0, b"end") + client.link(1))
        await in_thread(client.until, wire.FLOW)
        assert resident_bytes() - before < 20 << 20  # of 40


async def test_large_messages_are_read_as_far_as_there_is_room_and_come_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "READ_BYTES_MAX", 100_000)
    monkeypatch.setattr(intake, "RECENT_BYTES_MAX", 0)  # nothing is in memory any more
    read: list[int] = []
    async with running(orders(tmp_path)) as rig:
        inner = rig.orders._read

        def noted(*arguments: Any) -> Any:
            found = inner(*arguments)
            read.append(sum(len(content or b"") for _, content in found))
            return found

        monkeypatch.setattr(rig.orders, "_read", noted)
        client = await rig.client()
        link = await in_thread(client.sender)
        sent = [proton.Message(body=n, properties={"x": "y" * 30_000}) for n in range(20)]
        await in_thread(client.put, link, *sent)
        taker = await in_thread(client.taker)
        assert await in_thread(client.wait_for, taker, 20) == list(range(20))
    assert sum(read) > 600_000
    assert max(read) < 100_000 + 31_000
