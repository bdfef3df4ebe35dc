"""The measuring rig: a gateway process, subscriber processes, a sender at a fixed rate.

Everything is as a user runs it: `feedhandler run` with a configuration file, subscribers through
`feedhandler.subscribe`, multicast on loopback. One service, lines A and B, packets of five
messages and 336 bytes (the source paper's means: 5.05 messages and 287.53 bytes a packet).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    ServerConfig,
    StatsConfig,
)
from feedhandler.config.recording import RecordConfig
from feedhandler.config.show import to_toml
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.lab import processors
from feedhandler.ports import free_ports
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.retrans.settings import RecoverySettings
from tests.support.load import LoadGenerator, LoadResult, LoadTemplate
from tests.support.processes import cpu_seconds_of, resident_bytes

SERVICE = 104
MESSAGES_A_PACKET = 5
#: Offset of PacketSeqNum in the UTP-MD packet header (specification, packet header table).
SEQUENCE_OFFSET = 4
#: Symbols that the load's messages take turns with.
SYMBOLS = 500
START_SECONDS = 20.0
#: How long counts must stand still before a run counts as drained.
QUIET_SECONDS = 0.5
DRAIN_SECONDS = 15.0
#: Share of datagrams that may leave late before the sender counts as not keeping its schedule.
BEHIND_SHARE_MAX = 0.02
#: The processors of a rig whose parts are kept apart: the gateway's and the sender's, and the
#: subscribers'.
FIRST, SECOND = processors.split()
#: The load before the measured one: this part of its rate, for so long.
WARM_UP_SHARE = 4
WARM_UP_SECONDS = 1.0
#: What is due within so many microseconds leaves together: the sender shares the two processors
#: with what is measured, and one wake-up a packet would take one of them. At 7,100 packets a second
#: each still leaves alone.
BURST_US = 100
#: Packets that may wait behind a gap: at 200,000 a second a third of a second. Two processors that
#: are full let a process wait for some ten milliseconds, and that must not end as a loss.
HOLD_PACKETS = 1 << 16
#: A queue that ends a run above this is growing: a hand-over's worth for each subscriber.
QUEUED_BYTES_MAX = 1 << 20


def templates(lost_every: int = 0) -> list[LoadTemplate]:
    """Return packets of five order updates (64 bytes each), 336 bytes with their header.

    With `lost_every` = n, each nth one advances the sequence by two: a number that no line has.
    """
    feed = load_feed("euronext-utp-md")
    packets = []
    for number in range(SYMBOLS):
        messages = [
            feed.encode_message(
                230,
                symbol_index=10_000 + (number * 7 + index // 3) % SYMBOLS,
                source_time=36_000_000 + number,
                price=10_000 + index,
                volume=100 * (index + 1),
                order_id=number,
                side="B",
                action_type="A",
                price_scale_code=2,
            )
            for index in range(MESSAGES_A_PACKET)
        ]
        packet = feed.encode_packet(sequence=0, service=SERVICE, messages=messages)
        skips = lost_every and number % lost_every == lost_every - 1
        packets.append(LoadTemplate(packet, step=2 if skips else 1))
    return packets


@dataclass
class Outcome:
    """One run at one rate. `problems`: what must not happen at any rate that is no search for the
    highest. `slow`: what only says that the rate was not kept."""

    rate: int
    sent: int
    kept_schedule: bool
    subscribers: list[dict[str, Any]]
    gateway: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Nothing lost, no queue left, schedule kept."""
        return not self.problems and not self.slow

    @property
    def why(self) -> str:
        """Why it did not pass."""
        return "; ".join(self.slow + self.problems)


class Rig:
    """A gateway with `subscribers` subscribers of one grain; `run` sends a load through it.

    `apart`: the gateway and the sender have the first processor to themselves, the subscribers the
    second. In a data centre subscribers run on other hosts; here they would otherwise take the
    gateway's turn at every message that wakes them. `lost_every`: one number in so many is lost on
    both lines, and a retransmission server has it. The grain `recovered` stands for a subscriber
    that times recoveries. `record`: everything is recorded. `tables`: of the configuration, as they
    are to be.
    """

    def __init__(
        self,
        grain: str,
        subscribers: int,
        *,
        stamp: bool = False,
        apart: bool = False,
        lost_every: int = 0,
        record: bool = False,
        **tables: Any,
    ) -> None:
        self.grain = grain
        self.tables = tables
        self.record = record
        self.lost_every = lost_every
        self.apart = apart
        self.count = subscribers
        self.stamp = stamp
        self._stack = contextlib.ExitStack()
        self.gateway: subprocess.Popen[str]
        self._subscribers: list[subprocess.Popen[str]] = []
        self.warm_up_packets = 0

    def __enter__(self) -> "Rig":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        port, stats = free_ports(2)
        lines = tuple(
            LineConfig(name=name, group=f"239.102.{number}.{os.getpid() % 250 + 1}", port=port)
            for number, name in enumerate("AB")
        )
        servers: tuple[ServerConfig, ...] = ()
        if self.lost_every:
            (self._server_port,) = free_ports(1)
            self.start_server()
            servers = (ServerConfig(name="rts", address=f"127.0.0.1:{self._server_port}"),)
        channel = ChannelConfig(
            service=SERVICE, lines=lines, retransmission=servers[0].name if servers else ""
        )
        config = Config(
            # Two processors that take turns with all parts: what halts is woken late.
            gateway=GatewaySettings(stay_awake=True),
            channels=(channel,),
            servers=servers,
            arbitration=ArbitrationSettings(hold_packets=HOLD_PACKETS),
            # The server of this rig bears any number of requests.
            recovery=RecoverySettings(requests_per_s=0),
            amqp=AmqpConfig(listen=f"127.0.0.1:{port}", records=self.grain in SCHEMAS),
            stats=StatsConfig(bind=f"tcp://127.0.0.1:{stats}", interval_ms=100),
            record=RecordConfig(dir=str(folder) if self.record else "", what="both"),
            **self.tables,
        )
        self.config = config
        path = folder / "gateway.toml"
        path.write_text(to_toml(config))
        context = zmq.Context()
        self._stack.callback(context.destroy, 0)
        self._bus = context.socket(zmq.SUB)
        self._bus.setsockopt(zmq.CONFLATE, 0)
        self._bus.setsockopt(zmq.SUBSCRIBE, b"stats")
        self._bus.connect(f"tcp://127.0.0.1:{stats}")
        self.gateway = self._child([sys.executable, "-m", "feedhandler", "run", str(path)])
        self.snapshot(START_SECONDS)
        url = f"amqp://127.0.0.1:{port}"
        key = f"euronext.{SERVICE}"
        command = [sys.executable, "-m", "bench.subscriber", url, key, self.grain]
        if self.grain == "recovered":
            command += ["--gap-wait-us", str(config.arbitration.gap_wait_us)]
        for _ in range(self.count):
            self._subscribers.append(self._child(command + ["--stamp"] * self.stamp))
        for child in self._subscribers:
            self._await_line(child, "ready")
        if self.apart:
            processors.pin(self.gateway.pid, FIRST)
            for child in self._subscribers:
                processors.pin(child.pid, SECOND)
        (line_a, line_b) = config.channels[0].lines
        self.load = self._stack.enter_context(
            LoadGenerator(
                templates(self.lost_every),
                [
                    MulticastLine("A", (line_a.group, line_a.port)),
                    MulticastLine("B", (line_b.group, line_b.port)),
                ],
                sequence_offset=SEQUENCE_OFFSET,
                # Spinning would take half a processor from what is measured.
                spin_ns=0,
            )
        )

    def start_server(self) -> None:
        """Start the retransmission server, and wait until it listens."""
        self.server = self._child([sys.executable, "-m", "bench.rts", str(self._server_port)])
        self._await_line(self.server, "ready")
        processors.set_real_time(self.server.pid)

    @property
    def numbers_sent(self) -> int:
        """Sequence numbers up to the last packet sent, those that no line had included."""
        return int(self.load.next_sequences[0]) - 1

    def _child(self, command: list[str]) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
        )
        self._stack.callback(_end, child)
        return child

    def _await_line(self, child: subprocess.Popen[str], wanted: str) -> None:
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], START_SECONDS)[0]:
            raise TimeoutError(f"{child.args!r} said nothing")
        line = child.stdout.readline().strip()
        if line != wanted:
            raise RuntimeError(f"{child.args!r} said {line!r}")

    def snapshot(self, seconds: float) -> dict[str, Any]:
        """Return the newest statistics of the gateway, at most a tenth of a second old."""
        if not self._bus.poll(int(seconds * 1000)):
            raise TimeoutError("the gateway publishes no statistics")
        body = b"{}"
        while self._bus.poll(0):
            body = self._bus.recv_multipart()[1]
        return dict(json.loads(body))

    def settled(self) -> dict[str, Any]:
        """Return the statistics once they no longer move."""
        deadline = time.monotonic() + DRAIN_SECONDS
        quiet_since, last = time.monotonic(), (-1, -1)
        while True:
            found = self.snapshot(5.0)
            now = (found["channels"][0]["packets"], found["node"]["sent"])
            if now != last:
                quiet_since, last = time.monotonic(), now
            if time.monotonic() - quiet_since > QUIET_SECONDS or time.monotonic() > deadline:
                return found

    def run(self, rate: int, seconds: float) -> Outcome:
        """Send `rate` unique packets a second; then compare what was sent with what arrived."""
        # A gateway that has run for a while has its pools filled: so has this one.
        self.warm_up_packets = self._send(rate // WARM_UP_SHARE, WARM_UP_SECONDS).datagrams
        before = self.settled()
        numbers = self.numbers_sent
        spent = self.cpu_seconds()
        with processors.preferred(FIRST if self.apart else None):
            result = self._send(rate, seconds)
        busy = self.snapshot(5.0)
        after = self.settled()
        late = result.behind > BEHIND_SHARE_MAX * result.datagrams
        outcome = Outcome(rate, result.datagrams, not late, [], after)
        outcome.cpu_seconds = {who: now - spent[who] for who, now in self.cpu_seconds().items()}
        published = after["channels"][0]["packets"] - before["channels"][0]["packets"]
        lost = after["channels"][0]["lost"] - before["channels"][0]["lost"]
        if late:
            outcome.slow.append(f"sender late: {result.behind} of {result.datagrams}")
        expected = self.numbers_sent - numbers
        if published != expected or lost:
            outcome.problems.append(f"{expected - published} packets not published")
        drops = kernel_drops(after) - kernel_drops(before)
        if drops and published != expected:
            outcome.problems.append(f"{drops} kernel drops")
        if busy["node"]["queued_bytes"] > QUEUED_BYTES_MAX:
            outcome.slow.append(f"{busy['node']['queued_bytes']} bytes queued at the end")
        if busy["node"]["links_overrun"]:
            outcome.problems.append("a subscriber was detached")
        return outcome

    def _send(self, rate: int, seconds: float) -> LoadResult:
        """Send a load; where numbers are left out, one packet more, which shows the last gap."""
        result = self.load.run(rate, seconds, BURST_US)
        if self.lost_every:
            self.load.run(rate, 1.5 / rate)
        return result

    def stop_reading(self) -> subprocess.Popen[str]:
        """Let the last subscriber stop as it is, its connection open; it will not be heard of.

        The caller kills it.
        """
        child = self._subscribers.pop()
        child.send_signal(signal.SIGSTOP)
        return child

    def finish(self) -> list[dict[str, Any]]:
        """End the subscribers; what each one counted."""
        reports = []
        for child in self._subscribers:
            child.send_signal(signal.SIGTERM)
        for child in self._subscribers:
            out, _ = child.communicate(timeout=DRAIN_SECONDS)
            reports.append(json.loads(out.strip().splitlines()[-1]))
        return reports

    def cpu_seconds(self) -> dict[str, float]:
        """Return user and system time so far: the gateway's, and the subscribers' together."""
        return {
            "gateway": cpu_seconds_of(self.gateway.pid),
            "subscribers": sum(cpu_seconds_of(child.pid) for child in self._subscribers),
        }

    def memory_bytes(self) -> int:
        """Return resident memory of the gateway process."""
        return resident_bytes(self.gateway.pid)


def kernel_drops(snapshot: dict[str, Any]) -> int:
    """Return the datagrams that the kernel dropped before the gateway read them, of both lines."""
    lines = snapshot["channels"][0]["lines"].values()
    return sum(line.get("kernel_drops", 0) for line in lines)


def _end(child: subprocess.Popen[str]) -> None:
    """Stop a child, kindly first."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout is not None:
        child.stdout.close()
