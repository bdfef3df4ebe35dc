"""The measuring rig before a RabbitMQ 3.10 of its own, for the faults of a broker.

A gateway process that publishes every packet, confirmed, beside its own subscribers; samples of its
memory and of what it holds for the broker, twice a second; and what a stock client then finds.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import every
from bench.rig import SERVICE, Rig
from feedhandler.config.observing import MetricsConfig
from feedhandler.config.publishing import PublishConfig
from feedhandler.ports import free_ports
from tests.support.brokers import USER, VHOST, RabbitMQ3
from tests.support.brokers.clients import LAST, connected

EXCHANGE = "market"
SAMPLE_SECONDS = 0.5
#: How long anything is waited for.
PATIENCE_SECONDS = 120.0
#: Of the process that counts what a queue has: the lowest priority, since on two processors no
#: other process is to wait for it. Among other busy processes it would hardly run.
READER_NICENESS = 10


@dataclass
class Sample:
    """The destination at one moment."""

    seconds: float
    memory_bytes: int
    held_bytes: int
    destination: dict[str, Any]


class BrokerRig:
    """A broker, a gateway that publishes to it, and samples of both."""

    def __init__(self, broker: RabbitMQ3, rig: Rig, metrics: str) -> None:
        self.broker = broker
        self.rig = rig
        self.metrics = metrics
        self.samples: list[Sample] = []
        self._sampled = threading.Condition()
        self._began = time.monotonic()

    def sample(self) -> None:
        """Look at the destination and the gateway once."""
        (seen,) = self.rig.snapshot(PATIENCE_SECONDS)["destinations"]
        held = seen["queued_bytes"] + seen["unconfirmed_bytes"]
        now = time.monotonic() - self._began
        with self._sampled:
            self.samples.append(Sample(now, self.rig.memory_bytes(), held, seen))
            self._sampled.notify_all()

    @property
    def now_seconds(self) -> float:
        """On the samples' clock."""
        return time.monotonic() - self._began

    def until(
        self, condition: Callable[[Sample], bool], what: str, seconds: float = PATIENCE_SECONDS
    ) -> Sample:
        """Wait for a new sample of which something is true."""
        begin = len(self.samples)
        with self._sampled:
            if not self._sampled.wait_for(
                lambda: any(map(condition, self.samples[begin:])), seconds
            ):
                last = self.samples[-1] if self.samples else None
                raise TimeoutError(f"never happened: {what}; {last}")
            return next(filter(condition, self.samples[begin:]))

    def settled(self) -> Sample:
        """Wait until the broker has confirmed all that was sent, or the gateway given it up.

        That nothing is held does not say so by itself: a sample may have been begun before the
        load's last packets came in.
        """
        sent = self.rig.numbers_sent

        def over(sample: Sample) -> bool:
            seen = sample.destination
            ended = seen["confirmed"] + seen["dropped"] + seen["abandoned"]
            return not sample.held_bytes and ended >= sent

        return self.until(over, f"all {sent:,} confirmed or given up")


@contextlib.contextmanager
def broker_rig(queue_bytes: int, subscribers: int = 0, **settings: Any) -> Iterator[BrokerRig]:
    """Run the whole rig; the exchange has no binding yet. `settings`: of the destination."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = folder / "broker"
        home.mkdir()
        broker = RabbitMQ3(home)
        broker.schedulers = 2
        stack.callback(broker.discard)
        broker.start()
        broker.exchange(EXCHANGE)
        secret = folder / "password"
        secret.write_text(broker.password)
        (port,) = free_ports(1)
        destination = PublishConfig(
            name="rabbitmq",
            to=f"amqp://{USER}@127.0.0.1:{broker.port}/{VHOST}",
            password_file=str(secret),
            kind="rabbitmq-3",
            exchange=EXCHANGE,
            management=broker.management,
            queue_bytes=queue_bytes,
            reconnect_max_us=500_000,
            **settings,
        )
        metrics = f"127.0.0.1:{port}"
        tables = {"publish": (destination,), "metrics": MetricsConfig(listen=metrics)}
        rig = stack.enter_context(Rig("packet", subscribers, **tables))
        made = BrokerRig(broker, rig, f"http://{metrics}/metrics")
        stack.enter_context(every(SAMPLE_SECONDS, made.sample))
        yield made


@dataclass
class Found:
    """Packets that a stock client found in a queue, by sequence number."""

    ranges: list[tuple[int, int]]
    doubled: int
    differing: int
    disordered: int


def seal(broker: RabbitMQ3, queue: str) -> None:
    """Put a last message into a queue, which nothing comes behind."""
    from proton import Message

    with connected(broker) as connection:
        sender = connection.create_sender(broker.source(queue))
        sender.send(Message(id=LAST, body=LAST, durable=True))


def read(broker: RabbitMQ3, queue: str) -> Found | None:
    """Read a sealed queue to its last message, and leave it as it is; None where it broke off."""
    command = [
        *("nice", "-n", str(READER_NICENESS)),
        *(sys.executable, "-m", "bench.broker_reader", str(broker.port), queue),
    ]
    done = subprocess.run(command, input=broker.password, capture_output=True, text=True)
    if done.returncode:
        return None
    said = json.loads(done.stdout)
    return Found([(a, b) for a, b in said.pop("ranges")], **said)


def missing(found: list[Found], last: int) -> int:
    """Return how many of the sequence numbers 1..`last` no reader found."""
    seen = bytearray(last + 1)
    for each in found:
        for begin, end in each.ranges:
            seen[begin : end + 1] = b"\1" * (end + 1 - begin)
    return seen.count(0, 1)


def key() -> str:
    """Return the binding that gets every packet."""
    return f"euronext.{SERVICE}"
