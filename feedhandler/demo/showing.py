"""`feedhandler demo`: the gateway's main job, shown live and checked.

A simulated exchange, a gateway and three subscribers run as processes of their own. Both lines lose
packets, independently, so arbitration has work to do, and both together lose one in a hundred,
which the gateway has to get back from the exchange's retransmission server. One packet that server
does not have either: it is announced lost, and a snapshot from the refresh server makes it good.
The exchange writes a ledger of what it sends, each subscriber one of what it gets and of what is
announced to it; at the end they are compared. A message that is neither delivered nor made good by
a snapshot (or is delivered twice, changed, or out of order) is a fault.

The session is a `Scene` of `demo_scenes`: one of UTP-MD, or of FIX channels.
"""

import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy
import zmq
import zmq.asyncio
from msgspec import Struct

from feedhandler._compiled import require_units
from feedhandler.codecs import UsageError, load_feed
from feedhandler.config import AmqpConfig, GatewaySettings, StatsConfig
from feedhandler.config.show import to_toml
from feedhandler.demo.view import Rates, make_view, milliseconds
from feedhandler.histogram import BUCKETS, percentiles_of
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ops.exchange import CLOSED, EURONEXT
from feedhandler.ops.scenes import SCENES, Scene
from feedhandler.ports import free_ports
from feedhandler.replay.exchange.ledger import read_ledger
from feedhandler.replay.exchange.ledger_check import CheckReport, Selection, check
from feedhandler.replay.generating.destinations import LINES
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.terminal.children import Child, Family
from feedhandler.terminal.console import ExitCode, complain, print_json, run_async, until_stopped

#: How long each stage may take before the demo gives up on it.
START_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 20.0
#: The exchange may need this long beyond the seconds that it sends.
END_SLACK_S = 60.0
#: Nothing new at any subscriber for this long after the exchange's end: everything has arrived.
IDLE_S = 1.0
STATS_INTERVAL_MS = 500
#: The gateway starts before the exchange: it tries its servers this often, so that they are found
#: before the first packet is lost.
RECONNECT_US = 50_000
#: Bases of the exchange's ports, its servers' below the kernel's ephemeral ports; the first is the
#: exchange's own default.
PORT_BASES = [base + 10 * part for base in (30_000, 12_000, 16_000, 20_000) for part in range(3)]


#: The fates of messages, as a report counts them.
FATES = ("ok", "refreshed", "lost_announced", "lost_unannounced", "corrupt", "duplicated",
         "reordered", "phantom", "contradicted")  # fmt: skip


class Options(Struct, frozen=True, kw_only=True):
    """The feed (its key), duration, rate, losses and seed of a demo."""

    feed: str = EURONEXT
    seconds: float = 20.0
    rate: float = 20_000.0
    loss: float = 0.02
    together: float = 0.01
    seed: int = 1
    loop: str = "uvloop"
    as_json: bool = False


class Subscriber(Struct):
    """One of the three subscribers: its subscription, and its latest report."""

    name: str
    pattern: str
    granularity: str
    ledger: Path
    attached: asyncio.Event
    received: int = 0
    latency: dict[str, int] = {}

    def on_line(self, line: str) -> None:
        """Take a line of the subscriber's output, a JSON object."""
        report = json.loads(line)
        self.received = report.get("received", self.received)
        self.latency = report.get("latency", self.latency)
        if "attached" in report:
            self.attached.set()


class Verdict(Struct):
    """The result of comparing the ledgers."""

    published: int
    reports: dict[str, CheckReport]
    latency_p50_ns: int
    latency_p99_ns: int
    #: The gateway's own account: retransmitted packets, requests, refreshes.
    recovery: dict[str, int] = {}
    #: The exchange's account of its lines: by name, counts of datagrams sent and lost.
    lines: dict[str, dict[str, int]] = {}

    @property
    def delivered(self) -> int:
        """Messages delivered to all subscribers together."""
        return sum(report.delivered for report in self.reports.values())

    @property
    def lost_unannounced(self) -> int:
        """Messages that a subscriber asked for, did not get, and that were not announced lost."""
        return sum(report.lost_unannounced for report in self.reports.values())

    @property
    def lost(self) -> int:
        """Messages that a subscriber asked for and never got, announced or not.

        Those that a snapshot made good are not among them.
        """
        return self.lost_unannounced + sum(
            report.lost_announced for report in self.reports.values()
        )

    @property
    def faults(self) -> list[str]:
        """All faults of the gateway, a line each."""
        faults = []
        for name, report in self.reports.items():
            if report.expected == 0:
                faults.append(f"{name}: the exchange sent nothing for it")
            if report.lost_announced:
                faults.append(f"{name}: {report.lost_announced:,} lost, announced, never made good")
            faults += [f"{name}: {fault}" for fault in report.faults()]
        return faults


def run(options: Options) -> int:
    """Run the demo; `FOUND` where the ledgers disagree or a process died.

    Raises `NotCompiledError`.
    """
    require_units(SCENES[options.feed].units)
    return run_async(lambda stop: Demo(options, stop).run())


class Demo:
    """One run, stage by stage."""

    def __init__(self, options: Options, stop: asyncio.Event) -> None:
        self.options = options
        self.scene: Scene = SCENES[options.feed]
        self.stop = stop
        self.family = Family()
        self.rates = Rates()
        self.recovery: dict[str, int] = {}
        self.lines: dict[str, dict[str, int]] = {}
        self.gateway_ready = asyncio.Event()
        self.exchange_ended = asyncio.Event()
        self.port_base = PORT_BASES[0]

    async def run(self) -> int:
        """Run all stages; stops the children and removes the temporary folder in any case."""
        with tempfile.TemporaryDirectory(prefix="feedhandler-demo-") as folder:
            self.folder = Path(folder)
            self.subscribers = list(self._subscribers())
            code: int | None = await until_stopped(self._work(), self.stop)
            if code is None:
                complain("demo: interrupted, nothing was checked")
            return ExitCode.INTERRUPTED if code is None else code

    def _subscribers(self) -> Iterator[Subscriber]:
        for name, pattern, granularity in self.scene.subscribers:
            ledger = self.folder / f"{name}.ledger"
            yield Subscriber(name, pattern, granularity, ledger, asyncio.Event())

    async def _work(self) -> int:
        with contextlib.ExitStack() as held:
            self.port_base = free_port_base(self.scene, held)
            return await self._work_there()

    async def _work_there(self) -> int:
        async with self.family:
            amqp_port, stats_port = free_ports(2)
            await self._start_gateway(amqp_port, stats_port)
            await self._start_subscribers(f"amqp://127.0.0.1:{amqp_port}")
            watching = asyncio.create_task(self._watch_statistics(stats_port))
            try:
                await self._run_exchange()
                await self._until_idle()
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            await self._stop_children()
        return self._report(self._verdict())

    async def _start_gateway(self, amqp_port: int, stats_port: int) -> None:
        feed, loop = self.scene.feed, self.options.loop
        config = self.scene.config(
            self.port_base,
            amqp=AmqpConfig(listen=f"127.0.0.1:{amqp_port}"),
            arbitration=ArbitrationSettings(gap_wait_us=self.scene.gap_wait_us),
            recovery=RecoverySettings(reconnect_us=RECONNECT_US, reconnect_max_us=RECONNECT_US),
            gateway=GatewaySettings(feed=feed, loop=loop),  # type: ignore[arg-type]
            stats=StatsConfig(bind=f"tcp://127.0.0.1:{stats_port}", interval_ms=STATS_INTERVAL_MS),
        )
        path = self.folder / "gateway.toml"
        path.write_text(to_toml(config))

        def on_error(line: str) -> None:
            if ": ready: " in line:
                self.gateway_ready.set()

        await self.family.start("gateway", "-m", "feedhandler", "run", str(path), on_error=on_error)
        await self.family.until(self.gateway_ready, START_TIMEOUT_S, "starting the gateway")

    async def _start_subscribers(self, url: str) -> None:
        for each in self.subscribers:
            await self.family.start(
                f"subscriber {each.pattern}",
                *("-m", "feedhandler", "ledger-client", url, each.pattern, each.granularity),
                *(self.scene.feed, str(each.ledger)),
                on_line=each.on_line,
            )
        for subscriber in self.subscribers:
            what = f"attaching to {subscriber.pattern}"
            await self.family.until(subscriber.attached, START_TIMEOUT_S, what)

    async def _run_exchange(self) -> None:
        options = self.options
        exchange = await self.family.start(
            "exchange",
            *("-m", "feedhandler", "exchange", "--seconds", str(options.seconds)),
            *("--rate", str(options.rate), "--loss", str(options.loss)),
            *("--loss-together", str(options.together)),
            *self.scene.arguments(options.seconds),
            *("--seed", str(options.seed), "--port-base", str(self.port_base)),
            *("--ledger", str(self.folder / "exchange.ledger"), "--json"),
            on_line=self._on_exchange_line,
            on_error=self._on_exchange_error,
        )
        watching = asyncio.create_task(self._note_end(exchange))
        try:
            seconds = options.seconds + END_SLACK_S
            await self.family.until(self.exchange_ended, seconds, "the exchange's session")
        finally:
            watching.cancel()

    def _on_exchange_line(self, line: str) -> None:
        """Take the exchange's account, which it prints at its end."""
        self.lines = json.loads(line)["lines"]

    def _on_exchange_error(self, line: str) -> None:
        """Freeze the rates once the session is over: later ones would mean nothing."""
        if CLOSED in line:
            self.rates.frozen = True

    async def _note_end(self, exchange: Child) -> None:
        """Wait for the exchange, with its servers, to end."""
        if await exchange.wait() == 0:
            self.rates.frozen = True
            self.exchange_ended.set()

    async def _until_idle(self) -> None:
        """Wait until nothing new has come to any subscriber for `IDLE_S`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_TIMEOUT_S
        before, since = -1, loop.time()
        while loop.time() - since < IDLE_S and loop.time() < deadline:
            now = sum(subscriber.received for subscriber in self.subscribers)
            if now != before:
                before, since = now, loop.time()
            await asyncio.sleep(IDLE_S / 10)

    async def _stop_children(self) -> None:
        """Stop the subscribers first, so that they leave in order; then the gateway.

        Raises the failure of a child that ended with another exit code than 0.
        """
        for child in reversed(self.family.children):
            if child.process.returncode is None and await child.stop() != 0:
                raise child.failure()
            if child.process.returncode != 0:
                raise child.failure()

    async def _watch_statistics(self, port: int) -> None:
        """Show each snapshot of the statistics bus, and keep recovery's counts; until cancelled."""
        rates, view = self.rates, None
        if not self.options.as_json:
            view = make_view(sys.stdout.isatty())
        context = zmq.asyncio.Context()
        bus = context.socket(zmq.SUB)
        try:
            bus.connect(f"tcp://127.0.0.1:{port}")
            bus.subscribe(b"stats")
            while True:
                _, body = await bus.recv_multipart()
                snapshot: dict[str, Any] = msgspec.json.decode(body)
                self.recovery = {
                    name: count
                    for name, count in snapshot.get("recovery", {}).items()
                    if isinstance(count, int)
                }
                if view is not None:
                    view.show(rates.rows(snapshot))
        finally:
            if view is not None:
                view.close()
            bus.close(linger=0)
            context.term()

    def _verdict(self) -> Verdict:
        feed = load_feed(self.scene.feed)
        sent = read_ledger(self.folder / "exchange.ledger")
        reports = {
            each.pattern: check(feed, sent, read_ledger(each.ledger), Selection(each.pattern))
            for each in self.subscribers
        }
        buckets = numpy.zeros(BUCKETS, numpy.uint64)
        for subscriber in self.subscribers:
            for bucket, count in subscriber.latency.items():
                buckets[int(bucket)] += count
        p50, p99 = percentiles_of(buckets, 0.5, 0.99)
        return Verdict(
            published=len(sent.records),
            reports=reports,
            latency_p50_ns=p50,
            latency_p99_ns=p99,
            recovery=self.recovery,
            lines={name: each for name, each in self.lines.items() if name in LINES},
        )

    def _report(self, verdict: Verdict) -> int:
        if self.options.as_json:
            print_json(self._as_dict(verdict))
        else:
            print(*line_texts(verdict), sep="\n")
            for each in self.subscribers:
                report = verdict.reports[each.pattern]
                print(
                    f"  {each.pattern:<20} as={each.granularity:<8} {report.delivered:>9,} "
                    f"delivered, {report.refreshed:,} made good by a snapshot"
                )
            print(self._last_line(verdict))
        for fault in verdict.faults:
            complain(f"demo: {fault}")
        return ExitCode.FOUND if verdict.faults else ExitCode.OK

    def _last_line(self, verdict: Verdict) -> str:
        retransmitted, requests, refreshes = (
            verdict.recovery.get(name, 0) for name in ("retransmitted", "requests", "refreshes")
        )
        return (
            f"demo: {verdict.published:,} messages published, {verdict.delivered:,} delivered, "
            f"{verdict.lost:,} lost, "
            f"{retransmitted:,} retransmitted in {requests:,} requests, "
            f"{refreshes:,} refresh{'' if refreshes == 1 else 'es'}, "
            f"latency p50 {milliseconds(verdict.latency_p50_ns)} "
            f"p99 {milliseconds(verdict.latency_p99_ns)}"
        )

    def _as_dict(self, verdict: Verdict) -> dict[str, Any]:
        fates = Counter[str]()
        for report in verdict.reports.values():
            for name in FATES:
                fates[name] += getattr(report, name)
        return {
            "published": verdict.published,
            "delivered": verdict.delivered,
            "lost": verdict.lost,
            **fates,
            "recovery": verdict.recovery,
            "lines": verdict.lines,
            "subscribers": {
                pattern: report.delivered for pattern, report in verdict.reports.items()
            },
            "latency_ns": {"p50": verdict.latency_p50_ns, "p99": verdict.latency_p99_ns},
            "seed": self.options.seed,
        }


def line_texts(verdict: Verdict) -> Iterator[str]:
    """Yield a line of text for each line: what it lost of what was sent."""
    for name, counts in verdict.lines.items():
        yield (
            f"  line {name}: {counts['dropped']:,} of {counts['datagrams']:,} datagrams lost, "
            f"{counts['together']:,} of them on both lines"
        )


def free_port_base(scene: Scene, held: contextlib.ExitStack) -> int:
    """Return a base for the exchange's ports, all of which are free on this host.

    While `held` is open, no other demo takes them: a name in the kernel (an abstract socket)
    reserves them. Raises `UsageError` where every range is in use.
    """
    for base in random.sample(PORT_BASES, len(PORT_BASES)):
        claim = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            claim.bind(f"\0feedhandler demo, ports from {base}")
            for address in scene.groups(base):
                probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                stack.enter_context(probe).bind(address)
            for port in scene.tcp_ports:
                stack.enter_context(socket.create_server(("127.0.0.1", base + port)))
            return base
    raise UsageError("every range of ports for the exchange is in use", "end other demos")
