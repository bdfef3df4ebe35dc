"""Brokers beside the node: who feeds, who receives, and proton's own sender in C.

The feeding and the receiving processes are the same whatever stands between them: `feed` has the
project's publisher (or the node alone), `receive` its engine with credit and nothing else. The
brokers are the tests' (`tests.support.brokers`); where one is not installed its figures are left
out, with the reason.
"""

import asyncio
import contextlib
import multiprocessing
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.local import KEY, LocalClient, LocalNode, message_of, packet_of
from feedhandler.amqp.publishing.publisher import Publishers, State
from feedhandler.config.publishing import PublishConfig
from tests.support.brokers import BROKERS, PASSWORD, USER, VHOST, Absent, Broker, RabbitMQ
from tests.support.processes import cpu_seconds_of

EXCHANGE = "bench"
#: The key of messages that no feed description knows: they have no symbol.
MESSAGE_KEY = f"{KEY}.-"
MESSAGES_A_PACKET = 4
PACKETS_A_TURN = 50
#: What may wait for the slowest before the feeding process pauses, and for how long.
AHEAD_BYTES = 1 << 20
AHEAD_MESSAGES = 2000
PAUSE_SECONDS = 0.001
CREDIT = 2000
START_SECONDS = 60.0
#: Where Debian's libqpid-proton11-dev-examples puts proton's examples.
SEND_SOURCE = Path("/usr/share/proton/examples/c/send.c")
#: Wraps the one call that connects: the example knows no users, and no virtual hosts. Its messages
#: become durable, as ours are, which is what costs a broker most.
SEND_PRELUDE = """
#include <stdlib.h>
#include <proton/connection.h>
#include <proton/message.h>
#include <proton/proactor.h>
#include <proton/sasl.h>
#include <proton/transport.h>
static void connect_as_user(pn_proactor_t *proactor, const char *address) {
  pn_connection_t *connection = pn_connection();
  pn_transport_t *transport = pn_transport();
  const char *host = getenv("BENCH_HOST");
  pn_connection_set_user(connection, getenv("BENCH_USER"));
  pn_connection_set_password(connection, getenv("BENCH_PASSWORD"));
  if (host) pn_connection_set_hostname(connection, host);
  pn_sasl_allowed_mechs(pn_sasl(transport), "PLAIN");
  pn_sasl_set_allow_insecure_mechs(pn_sasl(transport), true);
  pn_proactor_connect2(proactor, connection, transport, address);
}
static void clear_durable(pn_message_t *message) {
  pn_message_clear(message);
  pn_message_set_durable(message, true);
}
#define pn_proactor_connect2(proactor, connection, transport, address) \\
  connect_as_user(proactor, address)
#define pn_message_clear clear_durable
"""


@contextlib.contextmanager
def processors(most: int) -> Iterator[int]:
    """Let what is started meanwhile share `most` processors, brokers and their virtual machines
    included: it inherits them. How many there are: fewer where the machine has no more."""
    allowed = os.sched_getaffinity(0)
    shared = sorted(allowed)[:most]
    os.sched_setaffinity(0, shared)
    try:
        yield len(shared)
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def broker(name: str) -> Iterator[Broker]:
    """Run a broker; raises Absent where it is not installed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        made = BROKERS[name](Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.discard()


def transient_queue(made: Broker, name: str) -> str:
    """Bind a queue that need not outlive the broker to the exchange; return its address."""
    if isinstance(made, RabbitMQ):
        made.api("PUT", f"queues/{VHOST}/{name}", {"durable": False})
        made.api("POST", f"bindings/{VHOST}/e/{EXCHANGE}/q/{name}", {"routing_key": "#"})
    else:
        made.queue(name, EXCHANGE, MESSAGE_KEY)
    return made.source(name)


def publish_options(made: Broker, **more: Any) -> dict[str, Any]:
    """Return the options of `[[publish]]` for this broker."""
    where = {} if more.get("queue") else {"exchange": EXCHANGE}
    if made.kind == "artemis" and where:
        where = {"topic": EXCHANGE}
    return {
        "name": "bench", "to": made.url, "kind": made.kind, "quality": False,
        "require_route": False, "grain": "message", **where, **more,
    }  # fmt: skip


# -- processes --------------------------------------------------------------------------------


@dataclass
class Child:
    """A process that counts; `ready` is what it said once it was ready."""

    process: Any
    count: Any
    ready: Any

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.process.pid)


@contextlib.contextmanager
def child(target: Any, *arguments: Any) -> Iterator[Child]:
    """Run `target(arguments..., count, report)` in a process of its own, until the block ends."""
    context = multiprocessing.get_context("spawn")
    count = context.Value("Q", 0, lock=False)
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, count, there), daemon=True)
    process.start()
    try:
        if not here.poll(START_SECONDS):
            raise TimeoutError(f"{target.__name__} did not start")
        yield Child(process, count, here.recv())
    finally:
        process.kill()
        process.join()


def feed(size: int, publish: dict[str, Any] | None, links: int, count: Any, report: Any) -> None:
    """Send market messages of `size` bytes, as fast as they are taken: to a broker, or to the
    node's links once there are so many. `count`: messages confirmed, or handed to the node."""
    uvloop.run(_feed(size, publish, links, count, report))


async def _feed(
    size: int, publish: dict[str, Any] | None, links: int, count: Any, report: Any
) -> None:
    rig = LocalNode()
    packet = packet_of([message_of(size)] * MESSAGES_A_PACKET)
    load = [(packet, MESSAGES_A_PACKET)] * PACKETS_A_TURN
    publisher: Any = None
    if publish is not None:
        configs = (PublishConfig(**publish),)
        publishers = Publishers(configs, rig.fanout, rig.node.message_type, "bench", print)
        publishers.start(rig.qualities)
        (publisher,) = publishers.all
        while publisher.state is not State.UP:
            await asyncio.sleep(PAUSE_SECONDS)
    report.send(rig.node.address[1])
    while True:
        if publisher is not None:
            count.value = publisher.destination.unsettled.confirmed
            ready = len(publisher.destination.queue) < AHEAD_MESSAGES
        else:
            count.value = rig.stream.messages
            sender_queues = rig.fanout.sender_queues
            ready = len(sender_queues) >= links and all(
                o.queued_bytes < AHEAD_BYTES for o in sender_queues
            )
        if ready:
            rig.put(load)
            rig.node.pump()
        await asyncio.sleep(0 if ready else PAUSE_SECONDS)


def receive(port: int, login: dict[str, str], address: str, count: Any, report: Any) -> None:
    """Receive messages from one address, and count them."""

    async def run() -> None:
        client = LocalClient(port, **login)

        def readable() -> None:
            client.turn()
            count.value = client.received

        await client.attach([address], CREDIT)
        asyncio.get_running_loop().add_reader(client.sock.fileno(), readable)
        readable()
        report.send(True)
        await asyncio.Event().wait()

    uvloop.run(run())


def login_of(made: Broker) -> dict[str, str]:
    """Return what a client logs in with at this broker: host name, user and password."""
    return {"hostname": made.virtual_host or "", "user": USER, "password": PASSWORD}


@dataclass
class Rate:
    """Rate over a while: pieces a second, and processors used by each part."""

    a_second: float
    processors: dict[str, float]


def watch(seconds: float, counting: list[Child], parts: dict[str, list[int]]) -> Rate:
    """Count for a while. `parts`: the processes whose time is measured."""

    def spent() -> dict[str, float]:
        return {name: sum(map(cpu_seconds_of, pids)) for name, pids in parts.items()}

    began, first, used = time.monotonic(), sum(c.count.value for c in counting), spent()
    time.sleep(seconds)
    took = time.monotonic() - began
    done = sum(c.count.value for c in counting) - first
    return Rate(done / took, {name: (now - used[name]) / took for name, now in spent().items()})


# -- proton's own sender ----------------------------------------------------------------------


def build_sender(folder: Path) -> Path:
    """Compile proton's example; raises Absent where the package or a compiler is not there."""
    if not SEND_SOURCE.exists() or shutil.which("cc") is None:
        raise Absent(
            f"no {SEND_SOURCE} or no compiler; "
            "apt install gcc libqpid-proton11-dev libqpid-proton11-dev-examples"
        )
    prelude, program = folder / "prelude.h", folder / "send"
    prelude.write_text(SEND_PRELUDE)
    command = f"cc -O2 -include {prelude} {SEND_SOURCE} -o {program} -lqpid-proton"
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"proton's example does not compile: {done.stderr.strip()[:200]}")
    return program


def bare_rate(program: Path, made: Broker, address: str, count: int) -> float:
    """Return confirmed messages a second of the C sender, without connecting."""

    def seconds_of(messages: int) -> float:
        environment = {**os.environ, "BENCH_USER": USER, "BENCH_PASSWORD": PASSWORD}
        if made.virtual_host:
            environment["BENCH_HOST"] = made.virtual_host
        command = [str(program), "127.0.0.1", str(made.port), address, str(messages)]
        began = time.monotonic()
        subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=START_SECONDS
        )
        return time.monotonic() - began

    alone = seconds_of(1)
    return count / max(seconds_of(count) - alone, 1e-6)
