"""Peers of the keyed queue, each behind `Peer`: what starts it, puts, takes, stops it.

A peer declares a queue anew for each scenario and says by which commands the clients run; who runs
them is `bench_keyed_peers`. What speaks AMQP 1.0 has one client, `keyed_client`; Kafka has
Confluent's parallel consumer, for its own consumer knows order by partition only. Whatever is not
installed raises `Absent`, which says what brings it.

All are durable, as one node: RabbitMQ's quorum queues and Artemis' journal sync before they accept,
and Kafka is set to (`log.flush.interval.messages`), for by itself it leaves that to the kernel.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import uvloop

from bench.keyed_work import Workload
from bench.local import LocalNode
from bench.peers import child
from feedhandler.amqp.durable.queues import DurableQueues
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.keyed.definition import Definition
from feedhandler.lab import brokers
from feedhandler.lab.brokers.process import end_with_us
from feedhandler.ports import free_ports
from tests.interop.install import java_classes

Absent = brokers.Absent
#: What a link may have beyond what its worker handles, where the peer keeps order per link.
PREFETCH = 100
#: What a link of a keyed queue may have beyond the message that its worker handles: no more than is
#: handled while that one's end goes to the disk, for no other worker gets it meanwhile.
BEHIND_MS = 1.0
#: Messages of one key that a worker of a keyed queue may have at a time, where that is tried.
RUN = 16
#: That the AMQP workers are spread over: each has one thread in Python.
PROCESSES = 2
#: Shards of a consistent hash: no more, however many workers there are.
SHARDS_MAX = 32
KAFKA_VERSION = "3.9.1, parallel consumer 0.5.3.3"
PARTITIONS = 8
KAFKA_START_SECONDS = 60.0
KAFKA_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Command:
    """A client: its words, and what it reads on standard input."""

    words: list[str]
    stdin: str


class Peer(Protocol):
    """One system that gives messages of one key in order."""

    name: ClassVar[str]
    #: Whether it promises order over several workers; else it has one.
    parallel: ClassVar[bool]

    def start(self) -> str:
        """Start it; what it is, with its version. Raises `Absent`."""

    def declare(self, queue: str, workers: int) -> None:
        """Make a new queue, for so many workers."""

    def produce(self, queue: str, workload: Workload) -> Command:
        """Return the command that puts the workload and, all accepted, says `put BEGAN DONE`."""

    def consume(self, queue: str, workers: int, handler_ms: float) -> list[Command]:
        """Return the commands that run the workers, in one process or more.

        Each says `attached` when it could begin, reads a line with the time at which to begin (one
        process alone need not), says `ready NOW`, and then a line for each handling.
        """

    def stop(self) -> None:
        """End what runs; its data is not wanted any more."""


class AmqpPeer(ABC):
    """Base of the peers that speak AMQP 1.0: the client that they share."""

    login: ClassVar[tuple[str, str]] = ("", "")
    hostname = ""
    port = 0

    def prefetch(self, handler_ms: float) -> int:
        """Return a link's credit: how many messages it may have at a time."""
        return PREFETCH

    @abstractmethod
    def target(self, queue: str) -> str:
        """Return the address where messages are put."""

    def sources(self, queue: str) -> list[str]:
        """Return the addresses that workers take from, in turn."""
        return [self.target(queue)]

    def _command(self, verb: str, **job: Any) -> Command:
        user, password = self.login
        login = {"port": self.port, "hostname": self.hostname, "user": user, "password": password}
        words = [sys.executable, "-m", "bench.keyed_client", verb]
        return Command(words, json.dumps({**login, **job}) + "\n")

    def produce(self, queue: str, workload: Workload) -> Command:
        return self._command("put", target=self.target(queue), workload=asdict(workload))

    def consume(self, queue: str, workers: int, handler_ms: float) -> list[Command]:
        bounds = [workers * part // PROCESSES for part in range(PROCESSES + 1)]
        return [
            self._command(
                "take",
                sources=self.sources(queue),
                first=first,
                workers=last - first,
                prefetch=self.prefetch(handler_ms),
                handler_ms=handler_ms,
            )
            for first, last in itertools.pairwise(bounds)
            if last > first
        ]


# -- RabbitMQ and Artemis ---------------------------------------------------------------------


class _HashingRabbitMQ(brokers.RabbitMQ4):
    PLUGINS = "rabbitmq_management,rabbitmq_consistent_hash_exchange"


class BrokerPeer(AmqpPeer):
    """One of the laboratory's brokers, as its project delivers it."""

    kind: ClassVar[type[brokers.Broker]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker: Any = None

    def start(self) -> str:
        folder = self.folder / type(self).__name__
        folder.mkdir()
        self.broker = self.kind(folder)
        self.broker.start()
        self.port, self.hostname = self.broker.port, self.broker.virtual_host or ""
        self.login = (self.broker.user, self.broker.password)
        return str(self.broker.version())

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.discard()


class RabbitMQSingle(BrokerPeer):
    """A quorum queue with single active consumer: one worker at a time has all, in order."""

    name: ClassVar[str] = "rabbitmq4_single"
    parallel: ClassVar[bool] = True
    kind = _HashingRabbitMQ

    def _quorum(self, queue: str) -> None:
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        path = f"queues/{brokers.VHOST}/{queue}"
        self.broker.api("PUT", path, {"durable": True, "arguments": arguments})

    def declare(self, queue: str, workers: int) -> None:
        self._quorum(queue)

    def target(self, queue: str) -> str:
        return str(self.broker.source(queue))


class RabbitMQHash(RabbitMQSingle):
    """A consistent-hash exchange over a quorum queue for each worker, as far as `SHARDS_MAX`.

    It hashes the correlation-id: AMQP 1.0 names the routing key in the link's target, once for all.
    """

    name: ClassVar[str] = "rabbitmq4_hash"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shards: list[str] = []

    def declare(self, queue: str, workers: int) -> None:
        self.broker.exchange(queue, "x-consistent-hash", **{"hash-property": "correlation_id"})
        self.shards = [f"{queue}-{number}" for number in range(min(workers, SHARDS_MAX))]
        for shard in self.shards:
            self._quorum(shard)
            path = f"bindings/{brokers.VHOST}/e/{queue}/q/{shard}"
            self.broker.api("POST", path, {"routing_key": "1", "arguments": {}})

    def target(self, queue: str) -> str:
        return f"/exchanges/{queue}"

    def sources(self, queue: str) -> list[str]:
        return [str(self.broker.source(shard)) for shard in self.shards]


class ArtemisGroups(BrokerPeer):
    """Message groups: the first message of a group-id pins that to one consumer."""

    name: ClassVar[str] = "artemis_groups"
    parallel: ClassVar[bool] = True
    kind = brokers.Artemis

    def declare(self, queue: str, workers: int) -> None:
        self.broker.exchange(queue)
        self.broker.queue(queue, queue)

    def target(self, queue: str) -> str:
        return queue

    def sources(self, queue: str) -> list[str]:
        return [str(self.broker.source(queue))]


# -- Kafka ------------------------------------------------------------------------------------


class KafkaParallel:
    """One node that is its own controller (KRaft), with Confluent's parallel consumer by key."""

    name: ClassVar[str] = "kafka_parallel"
    parallel: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "kafka"
        self.server: subprocess.Popen[bytes] | None = None
        self.servers = ""
        self.java: list[str] = []

    def start(self) -> str:
        classes = java_classes("kafka")
        if classes is None or shutil.which("java") is None:
            raise Absent("Kafka is not installed; python -m tests.interop.install")
        self.java = ["java", "-Xmx1g", "-cp", classes]
        self.folder.mkdir()
        port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        properties = self.folder / "server.properties"
        properties.write_text(_KAFKA.format(port=port, controller=controller, folder=self.folder))
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=": one that begins with a hyphen would be taken for an option otherwise.
        words = ["format", f"--cluster-id={identity}", "-c", str(properties)]
        with (self.folder / "log").open("wb") as log:
            subprocess.run(
                [*self.java, "kafka.tools.StorageTool", *words],
                check=True,
                stdout=log,
                stderr=log,
                timeout=KAFKA_START_SECONDS,
            )
            self.server = subprocess.Popen(
                [*self.java, "kafka.Kafka", str(properties)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_us,
            )
        deadline = time.monotonic() + KAFKA_START_SECONDS
        while not _answers(port):
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise brokers.BrokerFailed(f"Kafka did not start: {self._said()}")
            time.sleep(0.1)
        return f"Kafka {KAFKA_VERSION}"

    def _said(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "no word")

    def _client(self, *words: str, stdin: str = "") -> Command:
        verb, *more = words
        return Command([*self.java, "Client", verb, self.servers, *more], stdin)

    def declare(self, queue: str, workers: int) -> None:
        words = self._client("create", queue, str(PARTITIONS)).words
        subprocess.run(words, check=True, timeout=KAFKA_START_SECONDS, capture_output=True)

    def produce(self, queue: str, workload: Workload) -> Command:
        lines = [f"{message.key} {message.sequence}\n" for message in workload.messages()]
        return self._client("put", queue, stdin="".join(lines))

    def consume(self, queue: str, workers: int, handler_ms: float) -> list[Command]:
        return [self._client("take", queue, str(workers), str(round(handler_ms * 1000)))]

    def stop(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGKILL)
            self.server.wait(KAFKA_STOP_SECONDS)


_KAFKA = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={folder}/data
log.flush.interval.messages=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


# -- ours -------------------------------------------------------------------------------------


def _node(folder: str, queues: list[str], key: Definition | None, count: Any, report: Any) -> None:
    """Run a node with durable queues, in a process of its own; `key`: they are keyed."""

    async def run() -> None:
        configs = tuple(
            DurableQueueConfig(name=name, folder=f"{folder}/{name}", key=key) for name in queues
        )
        made = LocalNode()
        made.node.queues = DurableQueues(configs, made.node.flush)
        await made.node.queues.open()
        report.send(made.node.address[1])
        await asyncio.Event().wait()

    uvloop.run(run())


class SerialQueue(AmqpPeer):
    """The node's durable queue with one worker, who keeps the order of every key by being alone."""

    name: ClassVar[str] = "serial"
    parallel: ClassVar[bool] = False
    what: ClassVar[str] = "the node's durable queue, one worker"
    key: ClassVar[Definition | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name
        self.running = contextlib.ExitStack()

    def start(self) -> str:
        self.folder.mkdir()
        return self.what

    def declare(self, queue: str, workers: int) -> None:
        self.running.close()
        made = self.running.enter_context(child(_node, str(self.folder), [queue], self.key))
        self.port = made.ready

    def target(self, queue: str) -> str:
        return f"queue.{queue}"

    def stop(self) -> None:
        self.running.close()


class KeyedQueue(SerialQueue):
    """The node's keyed queue, and a link for each worker."""

    name: ClassVar[str] = "keyed"
    parallel: ClassVar[bool] = True
    what: ClassVar[str] = "the node's keyed queue"
    key: ClassVar[Definition | None] = Definition(fields=("key",))

    def prefetch(self, handler_ms: float) -> int:
        return 1 + min(round(BEHIND_MS / handler_ms), PREFETCH) if handler_ms else PREFETCH


class KeyedRuns(KeyedQueue):
    """The same, with several messages of a key at one worker at a time, in order."""

    name: ClassVar[str] = "keyed_run"
    what: ClassVar[str] = f"the node's keyed queue, run = {RUN}"
    key: ClassVar[Definition | None] = Definition(fields=("key",), run=RUN)

    def prefetch(self, handler_ms: float) -> int:
        return max(RUN if handler_ms < RUN else 1, super().prefetch(handler_ms))


#: By name, in the order that they run.
PEERS: dict[str, Any] = {
    each.name: each
    for each in (
        KeyedQueue,
        KeyedRuns,
        SerialQueue,
        RabbitMQSingle,
        RabbitMQHash,
        ArtemisGroups,
        KafkaParallel,
    )
}


def environment() -> dict[str, str]:
    """Return a client's environment: it finds the bench from any folder."""
    root = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": root}
