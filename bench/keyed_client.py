"""The AMQP 1.0 client of the keyed bench, the same for every peer: python-qpid-proton.

`python -m bench.keyed_client put|take` reads its job as one line of JSON. `put` sends a workload,
in order, over one link, and says when all was accepted. `take` runs workers, a receiving link each:
a worker handles what comes one after the other, waits as long as the handler takes, and accepts. It
says `attached`, reads on standard input when to begin, for several such processes begin together,
says `ready` once all links have credit, and then a line for each handling (`keyed_work.Handled`),
until it is killed.
"""

import json
import select
import sys
import time
from collections import deque
from typing import Any

import proton
from proton.handlers import MessagingHandler
from proton.reactor import Container

from bench.keyed_work import Handled, Message, Workload

#: What may be on its way to a peer that grants more credit.
WINDOW = 1000
FLUSH_SECONDS = 0.05
#: Links of one connection: RabbitMQ takes 256 of a session; and connections that few workers share.
LINKS_MAX = 100
CONNECTIONS = 8


class Client(MessagingHandler):
    """A connection as the job's user; what the peer ends is an error."""

    def __init__(self, job: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.job = job

    def connect(self, container: Container) -> Any:
        login = {name: self.job[name] for name in ("user", "password") if self.job[name]}
        if login:
            login["allowed_mechs"] = "PLAIN"
        host = {"virtual_host": self.job["hostname"]} if self.job["hostname"] else {}
        at = f"amqp://127.0.0.1:{self.job['port']}"
        return container.connect(at, reconnect=False, heartbeat=0, **login, **host)

    def on_link_error(self, event: Any) -> None:
        raise SystemExit(f"link: {event.link.remote_condition}")

    def on_session_error(self, event: Any) -> None:
        raise SystemExit(f"session: {event.session.remote_condition}")

    def on_connection_error(self, event: Any) -> None:
        raise SystemExit(f"connection: {event.connection.remote_condition}")

    def on_transport_error(self, event: Any) -> None:
        raise SystemExit(f"transport: {event.transport.condition}")


class Putting(Client):
    """Sends the workload; each message is durable, and has its key wherever a peer looks for it."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.left = deque(Workload(**job["workload"]).messages())
        self.waited_for = len(self.left)
        self.on_way = 0

    def on_start(self, event: Any) -> None:
        self.connection = self.connect(event.container)
        self.sender = event.container.create_sender(self.connection, self.job["target"])

    def on_sendable(self, event: Any) -> None:
        while self.left and self.sender.credit and self.on_way < WINDOW:
            self.sender.send(_encoded(self.left.popleft()))
            self.on_way += 1

    def on_accepted(self, event: Any) -> None:
        self.on_way -= 1
        self.waited_for -= 1
        if not self.waited_for:
            self.connection.close()
        elif self.on_way <= WINDOW // 2:
            self.on_sendable(event)

    def on_rejected(self, event: Any) -> None:
        raise SystemExit(f"not accepted: {event.delivery.remote.condition}")

    def on_released(self, event: Any) -> None:
        raise SystemExit("not accepted: released, so no queue has it")


def _encoded(message: Message) -> proton.Message:
    body = message.body(time.monotonic_ns())
    return proton.Message(
        body=body, inferred=True, durable=True, correlation_id=message.key, group_id=message.key
    )


class Worker:
    """One link: messages that wait for the worker, and the one that it handles."""

    def __init__(self, number: int, taking: "Taking", link: Any) -> None:
        self.number, self.taking, self.link = number, taking, link
        self.waiting: deque[tuple[Any, dict[str, Any]]] = deque()
        self.busy = False
        self.began_ns = 0

    def receive(self, delivery: Any, message: proton.Message) -> None:
        self.waiting.append((delivery, json.loads(bytes(message.body))))
        if not self.busy:
            self.begin()

    def begin(self) -> None:
        while self.waiting:
            self.began_ns = time.monotonic_ns()
            if self.taking.handler_seconds:
                self.busy = True
                self.taking.container.schedule(self.taking.handler_seconds, self)
                return
            self.end()

    def on_timer_task(self, event: Any) -> None:
        """End the handler's work."""
        self.busy = False
        self.end()
        self.begin()

    def end(self) -> None:
        delivery, result = self.waiting.popleft()
        done = time.monotonic_ns()
        handled = Handled(
            self.number, result["key"], result["sequence"], result["sent_ns"], self.began_ns, done
        )
        print(*handled)
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        self.link.flow(1)


class Taking(Client):
    """The workers of one process. No link has credit before all are attached: the first would
    otherwise get the messages of all."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job, prefetch=0, auto_accept=False, auto_settle=False)
        self.handler_seconds = job["handler_ms"] / 1000
        self.workers: list[Worker] = []
        self.opened = 0

    def on_start(self, event: Any) -> None:
        self.container = event.container
        count, sources, first = self.job["workers"], self.job["sources"], self.job["first"]
        self.going = False
        connections = max(min(count, CONNECTIONS), -(-count // LINKS_MAX))
        made = [self.connect(event.container) for _ in range(connections)]
        for number in range(first, first + count):
            source = sources[number % len(sources)]
            connection = made[number % connections]
            link = event.container.create_receiver(connection, source, name=f"worker {number}")
            worker = Worker(number, self, link)
            self.workers.append(worker)
        self.by_link = {(w.link.connection, w.link.name): w for w in self.workers}
        self.container.schedule(FLUSH_SECONDS, self)

    def on_link_opened(self, event: Any) -> None:
        self.opened += 1
        if self.opened == len(self.workers):
            print("attached", flush=True)

    def on_message(self, event: Any) -> None:
        self.by_link[event.connection, event.link.name].receive(event.delivery, event.message)

    def on_timer_task(self, event: Any) -> None:
        if not self.going and select.select([sys.stdin], [], [], 0.0)[0]:
            self.going = True
            seconds = (int(sys.stdin.readline()) - time.monotonic_ns()) / 1e9
            self.container.schedule(max(seconds, 0.0), Beginning(self))
        sys.stdout.flush()
        self.container.schedule(FLUSH_SECONDS, self)


class Beginning:
    """The moment at which the workers of one process get credit."""

    def __init__(self, taking: Taking) -> None:
        self.taking = taking

    def on_timer_task(self, event: Any) -> None:
        print("ready", time.monotonic_ns())
        for worker in self.taking.workers:
            worker.link.flow(self.taking.job["prefetch"])


def main() -> None:
    job = json.loads(sys.stdin.readline())
    if sys.argv[1] == "put":
        began = time.monotonic_ns()
        Container(Putting(job)).run()
        print("put", began, time.monotonic_ns(), flush=True)
    else:
        Container(Taking(job)).run()


if __name__ == "__main__":
    main()
