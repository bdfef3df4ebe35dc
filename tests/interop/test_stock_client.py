"""Stock AMQP 1.0 clients against the node: python-qpid-proton as its users write it.

`BlockingConnection` and `MessagingHandler` run in threads of their own; nothing of ours is on
their side of the socket.
"""

import asyncio
import struct
import sys
from pathlib import Path
from typing import Any

import proton
import pytest
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container
from proton.utils import BlockingConnection, LinkDetached

from tests.support.durable import orders
from tests.support.durable import running as queues_running
from tests.support.node import PATIENCE_S, in_thread, running


def receive_blocking(url: str, address: str, count: int, credit: int, option: Any) -> list[Any]:
    """Receive with the blocking client; accept where the link is unsettled."""
    connection = BlockingConnection(url, timeout=PATIENCE_S)
    try:
        receiver = connection.create_receiver(address, credit=credit, options=option)
        found = []
        for _ in range(count):
            found.append(receiver.receive(timeout=PATIENCE_S))
            if isinstance(option, AtLeastOnce):
                receiver.accept()
        receiver.close()
        return found
    finally:
        connection.close()


@pytest.mark.gateways_loop
@pytest.mark.parametrize("credit", [1, 10, 500])
@pytest.mark.parametrize("option", [AtMostOnce(), AtLeastOnce()], ids=["settled", "unsettled"])
async def test_the_blocking_client_receives_packets(option: Any, credit: int) -> None:
    async with running() as rig:
        await rig.stream(1, 2)  # before a link is attached: no link gets these
        receiving = asyncio.create_task(
            in_thread(receive_blocking, rig.url, "euronext.104", 41, credit=credit, option=option)
        )
        await rig.until(lambda: rig.node.links == 1, "attached")
        put = rig.packets(3, 42)
        await rig.deliver()
        quality, *messages = await receiving
        assert quality.subject == "euronext.104.quality"
        assert str(quality.content_type) == "application/vnd.feedhandler.quality+json"
        assert [bytes(each.body) for each in messages] == put
        assert {each.subject for each in messages} == {"euronext.104"}
        sequences = [struct.unpack(">IHHQH", bytes(each.id))[3] for each in messages]
        assert sequences == list(range(3, 43))
        await rig.until(lambda: not rig.node.connections, "gone")
        accepted = 41 if isinstance(option, AtLeastOnce) else 0
        assert (rig.count("accepted"), rig.count("refused")) == (accepted, 0)


class Collect(MessagingHandler):
    """Receive `count` messages from each address, as the library's examples do."""

    def __init__(self, url: str, addresses: list[str], count: int) -> None:
        super().__init__(prefetch=100)
        self.url, self.addresses, self.count = url, addresses, count
        self.found: dict[str, list[proton.Message]] = {address: [] for address in addresses}
        self.errors: list[tuple[str, str]] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self.url, reconnect=False)
        for address in self.addresses:
            event.container.create_receiver(connection, address)

    def on_message(self, event: Any) -> None:
        self.found[event.receiver.source.address].append(event.message)
        self.end_when_done(event)

    def end_when_done(self, event: Any) -> None:
        if all(len(got) >= self.count for got in self.found.values()):
            event.connection.close()

    def on_link_error(self, event: Any) -> None:
        condition = event.link.remote_condition
        self.errors.append((event.link.source.address, condition.name))
        self.found.pop(event.link.source.address)
        self.end_when_done(event)

    def on_transport_error(self, event: Any) -> None:
        self.errors.append(("transport", str(event.transport.condition)))


@pytest.mark.gateways_loop
async def test_a_messaging_handler_receives_on_several_links_at_once() -> None:
    addresses = [
        "euronext.104?quality=0",
        "euronext.104?quality=0&as=message&types=230",
        "euronext.*.1003?quality=0&as=message",
        "#?quality=0&as=message&stamp=1",
    ]
    async with running() as rig:
        handler = Collect(rig.url, addresses, 100)
        receiving = asyncio.create_task(in_thread(Container(handler).run))
        await rig.until(lambda: rig.node.links == 4, "attached")
        put = rig.packets(1, 200)
        await rig.deliver()
        await receiving
        assert handler.errors == []
        packets, orders, symbol, everything = (handler.found[each] for each in addresses)
        assert [bytes(each.body) for each in packets[:200]] == put[: len(packets)]
        assert {bytes(each.body)[2:4] for each in orders} == {(230).to_bytes(2, "big")}
        assert {each.subject for each in symbol} == {"euronext.104.1003"}
        assert everything[0].annotations["x-opt-received-ns"] > 0
        for found in handler.found.values():
            numbers = [each.group_sequence for each in found]
            assert numbers == list(range(len(found)))


@pytest.mark.gateways_loop
async def test_a_messaging_handler_hears_why_an_address_is_refused() -> None:
    async with running() as rig:
        wrong = "euronext.104?colour=red"
        handler = Collect(rig.url, ["euronext.104", wrong, "queue.a"], 3)
        receiving = asyncio.create_task(in_thread(Container(handler).run))
        await rig.until(lambda: rig.count("links_refused") == 2, "refused")
        await rig.stream(1, 10)
        await receiving
        assert sorted(handler.errors) == [
            (wrong, "amqp:invalid-field"),
            ("queue.a", "amqp:not-found"),
        ]
        assert len(handler.found["euronext.104"]) >= 3


@pytest.mark.gateways_loop
async def test_the_blocking_client_hears_why_an_address_is_refused() -> None:
    def ask(url: str) -> str:
        connection = BlockingConnection(url, timeout=PATIENCE_S)
        try:
            with pytest.raises(LinkDetached) as refusal:
                connection.create_receiver("euronext.104?as=byte")
            with pytest.raises(LinkDetached):
                connection.create_sender("euronext.104")
            connection.create_receiver("euronext.104").close()  # the connection lives on
            return str(refusal.value.condition)
        finally:
            connection.close()

    async with running() as rig:
        assert await in_thread(ask, rig.url) == "amqp:invalid-field"


@pytest.mark.gateways_loop
async def test_a_client_in_a_process_of_its_own_receives(tmp_path: Any) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import sys\n"
        "from proton.utils import BlockingConnection\n"
        "connection = BlockingConnection(sys.argv[1], timeout=60)\n"
        "receiver = connection.create_receiver('euronext.104?quality=0', credit=10)\n"
        "print('attached', flush=True)\n"
        "for _ in range(30):\n"
        "    message = receiver.receive(timeout=60)\n"
        "    print(message.subject, message.group_sequence, len(message.body), flush=True)\n"
        "connection.close()\n"
    )
    async with running() as rig:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), rig.url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(2 * PATIENCE_S):
            assert await process.stdout.readline() == b"attached\n"
            put = rig.packets(1, 30)
            await rig.deliver()
            output, _ = await process.communicate()
        assert process.returncode == 0
        assert output.decode().splitlines() == [
            f"euronext.104 {index} {len(data)}" for index, data in enumerate(put)
        ]


class Transformer(MessagingHandler, TransactionHandler):
    """Takes orders and puts a result of each, in transactions of three: the first one it aborts,
    and commits the next."""

    def __init__(self, url: str, settle_at_once: bool) -> None:
        super().__init__(prefetch=3, auto_accept=False)
        self.url, self.settle_at_once = url, settle_at_once
        self.got: list[tuple[int, int]] = []
        self.ends: list[str] = []
        self.transaction: Any = None
        self.waiting: list[Any] = []

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = self.container.connect(self.url, reconnect=False)
        self.receiver = self.container.create_receiver(self.connection, "queue.orders")
        self.sender = self.container.create_sender(self.connection, "queue.out")
        self.declare()

    def declare(self) -> None:
        self.container.declare_transaction(
            self.connection, handler=self, settle_before_discharge=self.settle_at_once
        )

    def on_message(self, event: Any) -> None:
        self.got.append((event.message.body, event.message.delivery_count))
        self.waiting.append((event.message.body, event.delivery))
        self.transform()

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.transform()

    def transform(self) -> None:
        if self.transaction is None or len(self.waiting) < 3:
            return
        for body, delivery in self.waiting:
            self.transaction.send(self.sender, proton.Message(body=body + 100))
            self.transaction.accept(delivery)
        self.waiting.clear()
        transaction, self.transaction = self.transaction, None
        if self.ends:
            transaction.commit()
        else:
            transaction.abort()

    def on_transaction_aborted(self, event: Any) -> None:
        self.ends.append("aborted")
        self.declare()

    def on_transaction_committed(self, event: Any) -> None:
        self.ends.append("committed")
        self.connection.close()


@pytest.mark.parametrize("settle_at_once", [True, False])
async def test_a_transaction_of_protons_own_is_aborted_or_committed_as_a_whole(
    tmp_path: Path, settle_at_once: bool
) -> None:
    def work(url: str) -> Transformer:
        connection = BlockingConnection(url, timeout=PATIENCE_S)
        sender = connection.create_sender("queue.orders")
        for number in range(3):
            sender.send(proton.Message(body=number))
        connection.close()
        transformer = Transformer(url, settle_at_once)
        Container(transformer).run()
        return transformer

    configs = orders(tmp_path / "orders"), orders(tmp_path / "out", name="out")
    async with queues_running(*configs) as rig:
        done = await in_thread(work, rig.url)
        assert done.ends == ["aborted", "committed"]
        assert [number for number, _ in done.got] == [0, 1, 2, 0, 1, 2]
        # What proton had not settled it releases itself: that is no failure.
        assert {count for _, count in done.got[3:]} == {1 if settle_at_once else 0}
        await rig.until(lambda: rig.figure("depth") == 0, "the outbox's end")
        assert rig.queues.all["out"].snapshot()["depth"] == 3
