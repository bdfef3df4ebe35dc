"""Helpers of tests of durable queues: a node with queues on a real socket, and a client of them.

`QueueClient` is a `RawClient` that puts, takes messages whole and settles them when the test says
so, and asks management questions. Used from the test's own loop by `await in_thread(...)`.
"""

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import proton

from feedhandler.amqp.durable.queue import DurableQueue
from feedhandler.amqp.durable.queues import DurableQueues
from feedhandler.config.queues import DurableQueueConfig
from tests.support.node import NodeRig, RawClient, Settings, in_thread

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
RELEASED, MODIFIED = proton.Delivery.RELEASED, proton.Delivery.MODIFIED
REMOTE_CLOSED = proton.Endpoint.REMOTE_CLOSED
REMOTE_ACTIVE = proton.Endpoint.REMOTE_ACTIVE
ANSWERED = REMOTE_ACTIVE | REMOTE_CLOSED
#: AMQP 1.0, 4.5: what is asked of a coordinator, and states.
DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = 0x31, 0x32, 0x33, 0x34


def orders(folder: Path, **settings: Any) -> DurableQueueConfig:
    """The queue `orders`, with small blocks."""
    small = {"block_bytes": 1 << 20, "message_bytes_max": 1 << 18}
    return DurableQueueConfig(**{"name": "orders", "folder": str(folder), **small, **settings})


def of_account(account: str, number: int, **stamp: Any) -> proton.Message:
    """Message `number` of an account; `stamp`: annotations of a producer's."""
    body = f'{{"account": "{account}", "n": {number}}}'.encode()
    message = proton.Message(id=f"m{number}", body=body)
    if stamp:
        message.properties = {
            f"x-opt-{name}": proton.ulong(value) if isinstance(value, int) else value
            for name, value in stamp.items()
        }
    return message


class QueueRig(NodeRig):
    """A node with durable queues."""

    queues: DurableQueues
    clients: list["QueueClient"]

    async def client(self, **named: Any) -> "QueueClient":
        """A client, gone by the end of the block if not before."""
        client: QueueClient = await in_thread(QueueClient, self.port, **named)
        self.clients.append(client)
        return client

    @property
    def orders(self) -> DurableQueue:
        """The queue `orders`."""
        return self.queues.all["orders"]

    def figure(self, name: str) -> Any:
        """One figure of the queue `orders`."""
        return self.orders.snapshot()[name]


@contextlib.asynccontextmanager
async def running(
    *configs: DurableQueueConfig,
    gate: Any = None,
    disk: dict[str, Any] | None = None,
    settings: Settings | None = None,
    faults: int = 0,
    folder: str = "",
) -> AsyncIterator[QueueRig]:
    """A node with these queues, while the block runs. `faults`: as `node.running`; `folder`: of
    queues that clients create."""
    rig = QueueRig(settings, gate=gate)
    rig.queues = rig.node.queues = DurableQueues(configs, rig.node.flush, folder, **(disk or {}))
    rig.clients = []
    await rig.queues.open()
    rig.node.start()
    try:
        yield rig
    finally:
        for client in rig.clients:
            client.drop()
        await rig.node.stop(5.0)
        await rig.queues.close()
    assert rig.count("connections_faulted") == faults, "errors of ours; see the node's `fault`"


class QueueClient(RawClient):
    """A client of queues. `messages` are (link's name, message, delivery) as they came."""

    def __init__(self, port: int, **named: Any) -> None:
        super().__init__(port, **named)
        self.messages: list[tuple[str, proton.Message, proton.Delivery]] = []
        self._tags = itertools.count(1)
        self._names = itertools.count(1)

    def _receive(self, delivery: proton.Delivery) -> None:
        link = delivery.link
        if not link.is_receiver or delivery.partial or not delivery.readable:
            return
        message = proton.Message()
        message.decode(link.recv(delivery.pending))
        link.advance()
        self.messages.append((link.name, message, delivery))

    # -- putting ----------------------------------------------------------------------------

    def sender(self, address: str = "queue.orders", settled: bool = False) -> proton.Sender:
        """Attach a sending link; returns when the node has answered."""
        if not self.sessions:
            self.new_session()
        link = self.sessions[-1].sender(f"sender {next(self._names)}")
        link.target.address = address
        link.snd_settle_mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
        link.open()
        self.pump(lambda: bool(link.state & ANSWERED), "the attach")
        return link

    def send(self, link: proton.Sender, message: proton.Message | bytes) -> proton.Delivery:
        """Send one message; waits for credit only."""
        self.pump(lambda: link.credit > 0, "credit")
        delivery = link.delivery(str(next(self._tags)))
        link.send(message if isinstance(message, bytes) else message.encode())
        link.advance()
        if link.snd_settle_mode == proton.Link.SND_SETTLED:
            delivery.settle()
        return delivery

    def put(self, link: proton.Sender, *messages: proton.Message | bytes) -> list[proton.Delivery]:
        """Send messages and wait until each is settled; their deliveries."""
        sent = [self.send(link, message) for message in messages]
        self.pump(lambda: all(each.settled for each in sent), "the outcomes")
        return sent

    def put_numbers(self, link: proton.Sender, *numbers: int) -> None:
        """Put messages with these numbers as bodies and as message-ids; all are accepted."""
        sent = self.put(link, *(proton.Message(id=f"m{n}", body=n) for n in numbers))
        assert all(each.remote_state == ACCEPTED for each in sent)

    # -- taking -----------------------------------------------------------------------------

    def taker(
        self, address: str = "queue.orders", credit: int = 100, settled: bool = False
    ) -> proton.Receiver:
        """Attach a receiving link; returns when the node has answered."""
        link = self.receiver(address, credit, f"taker {next(self._names)}", settled)
        self.pump(lambda: bool(link.state & ANSWERED), "the attach")
        return link

    def bodies(self, link: proton.Receiver) -> list[Any]:
        """Bodies of what a link has got, in order."""
        return [message.body for name, message, _ in self.messages if name == link.name]

    def wait_for(self, link: proton.Receiver, count: int) -> list[Any]:
        """Bodies, once so many have come."""
        self.pump(lambda: len(self.bodies(link)) >= count, f"{count} messages")
        return self.bodies(link)

    def of(self, link: proton.Receiver) -> list[tuple[proton.Message, proton.Delivery]]:
        """Return the messages that a link has got, with their deliveries."""
        return [(message, each) for name, message, each in self.messages if name == link.name]

    def settle_all(self, link: proton.Receiver, state: int = ACCEPTED) -> None:
        """Settle everything that a link has got, with this outcome."""
        for _, delivery in self.of(link):
            if not delivery.settled and delivery.local_state == 0:
                delivery.update(state)
                delivery.settle()
        self.messages = [each for each in self.messages if each[0] != link.name]
        self.sync()

    # -- transactions -----------------------------------------------------------------------

    def coordinator(self) -> proton.Sender:
        """Attach a link to the coordinator; returns when the node has answered."""
        if not self.sessions:
            self.new_session()
        link = self.sessions[-1].sender(f"coordinator {next(self._names)}")
        link.target.type = proton.Terminus.COORDINATOR
        link.open()
        self.pump(lambda: bool(link.state & ANSWERED), "the attach")
        return link

    def order(self, link: proton.Sender, code: int, *fields: Any) -> proton.Delivery:
        """Send a declare or a discharge, and wait for the answer."""
        body = proton.Described(proton.ulong(code), list(fields))
        (sent,) = self.put(link, proton.Message(body=body))
        return sent

    def declare(self, link: proton.Sender) -> bytes:
        """Begin a transaction: its id."""
        answer = self.order(link, DECLARE)
        assert answer.remote_state == DECLARED, answer.remote.condition
        return bytes(answer.remote.data[0])

    def discharge(self, link: proton.Sender, name: bytes, fail: bool = False) -> str:
        """End a transaction: "" where that was accepted, else condition and reason."""
        answer = self.order(link, DISCHARGE, name, fail)
        if answer.remote_state == ACCEPTED:
            return ""
        assert answer.remote_state == REJECTED
        return f"{answer.remote.condition.name}: {answer.remote.condition.description}"

    def send_in(
        self, link: proton.Sender, name: bytes, message: proton.Message, outcome: Any = None
    ) -> proton.Delivery:
        """Send one message in a transaction; waits for credit only."""
        self.pump(lambda: link.credit > 0, "credit")
        delivery = link.delivery(str(next(self._tags)))
        delivery.local.data = [name] if outcome is None else [name, outcome]
        delivery.update(TRANSACTIONAL)
        link.send(message.encode())
        link.advance()
        return delivery

    def put_in(self, link: proton.Sender, name: bytes, *messages: proton.Message) -> None:
        """Put messages in a transaction; each is answered as its part."""
        sent = [self.send_in(link, name, message) for message in messages]
        self.pump(lambda: all(each.settled for each in sent), "the outcomes")
        for each in sent:
            assert each.remote_state == TRANSACTIONAL, each.remote.condition
            assert bytes(each.remote.data[0]) == name

    def say_in(
        self, delivery: proton.Delivery, name: bytes, outcome: Any = None, settle: bool = True
    ) -> None:
        """Say in a transaction what becomes of a message: accepted, if nothing else."""
        delivery.local.data = [name, outcome or proton.Described(proton.ulong(ACCEPTED), [])]
        delivery.update(TRANSACTIONAL)
        if settle:
            delivery.settle()

    # -- asking -----------------------------------------------------------------------------

    def ask(self, queue: str = "orders", **arguments: Any) -> tuple[dict[str, Any], Any]:
        """Ask the queue's management: application-properties and body of the answer."""
        answers, asking = self.management(queue)
        correlation = f"c{next(self._tags)}"
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        address = answers.remote_source.address
        request = proton.Message(reply_to=address, correlation_id=correlation, properties=named)
        self.put(asking, request)
        self.wait_for(answers, 1)
        message = self.of(answers)[-1][0]
        assert message.correlation_id == correlation
        for link in (answers, asking):
            link.close()
        self.pump(lambda: bool(answers.state & REMOTE_CLOSED), "the end of the management")
        return dict(message.properties), message.body

    def management(self, queue: str = "orders") -> tuple[proton.Receiver, proton.Sender]:
        """A link for answers and one for requests."""
        if not self.sessions:
            self.new_session()
        answers = self.sessions[-1].receiver(f"answers {next(self._names)}")
        answers.source.dynamic = True
        answers.open()
        answers.flow(10)
        self.received[answers.name] = []
        self.pump(lambda: bool(answers.state & REMOTE_ACTIVE), "the answers' attach")
        return answers, self.sender(f"queue.{queue}/$management")

    def refusal(self, link: proton.Link) -> proton.Condition:
        """Why the node has closed a link."""
        self.pump(lambda: bool(link.state & REMOTE_CLOSED), "the refusal")
        return link.remote_condition
