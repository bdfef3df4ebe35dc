"""The controller: starts the roles, takes them through each step, collects the results.

A run: the replayer reads its packets; the gateway is started for their services; as many clients
are started once as the largest step needs. Then, for each step: the step's clients attach, the
replayer plans what it will send, the clients expect that, it is played, all drain, the clients send
their verdicts, and detach. Numbers go on from step to step, so a step begins with a warm gateway;
what comes within the warm-up is checked but not timed.

Direct mode: latency is from the kernel's stamp of the packet's first copy at the gateway to the
return of the client's read, both of this machine's real-time clock. The paper's mode has a stamping
role besides (`stamping`), which measures the latency.
"""

import asyncio
import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from feedhandler.amqp.request import without_credentials
from feedhandler.amqp.routing import ADDRESS_CHARS_MAX, PATTERNS_MAX
from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    ControlConfig,
    GatewaySettings,
    LineConfig,
)
from feedhandler.config.publishing import PublishConfig
from feedhandler.config.show import to_toml
from feedhandler.doctor import cpu_latency
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.lab import machine, processors, thresholds
from feedhandler.lab.feeder import FAST_BPS
from feedhandler.lab.loads import CLIENT_PREFIX, LoadWatch, by_role, traffic_of
from feedhandler.lab.plan import CLIENTS_MAX, Plan, StepPlan, patterns
from feedhandler.lab.results import (
    ClientResult,
    Exchange,
    Run,
    Scenario,
    Sent,
    Step,
    Sweep,
    latency_of_answer,
    merged,
)
from feedhandler.lab.stamping import STAMPER, Stamping, start_stamping
from feedhandler.lab.supervisor import Supervisor
from feedhandler.lab.sweep import Search, trial_of
from feedhandler.lab.view import View
from feedhandler.ports import free_ports, free_udp_port
from feedhandler.rpc import ask

#: How long each stage may take before the run fails.
START_S, LOAD_S, PLAN_S, ASK_S, DRAIN_S = 60.0, 300.0, 120.0, 30.0, 30.0
#: Allowance beyond the scheduled time of a step's sending: a machine that is too slow takes longer.
PLAY_SLACK_S = 60.0
#: When no client has got anything new for this long, what is missing will not come.
QUIET_S = 2.0
#: Wait after everything has come, for second copies.
LINGER_S = 0.1
#: How often clients are asked for their counts.
POLL_S = 0.05
#: Lines A and B.
LINES = 2
#: Groups of the lines are 239.(110 + line).(of this process).(1 + index of the service).
GROUP_OF_LINES = 110
#: Packets that may wait behind a gap. Processes that share two processors let one wait for tens of
#: milliseconds, and that must not end as a loss of a line.
HOLD_PACKETS = 1 << 16
#: The gateway's pause for each client after a hand-over (`gateway.coalesce_us`): clients that
#: share a processor are woken one after another, each at the cost of some twenty microseconds.
COALESCE_US = 20
#: Wrong deliveries of a client that its line names.
NAMED_MAX = 3
GATEWAY, REPLAYER = "gateway", "replayer"


class Laboratory:
    """One run of a plan; `run` holds the results so far."""

    def __init__(self, plan: Plan, view: View) -> None:
        self.plan = plan
        self.view = view
        self.feed: Feed = load_feed(plan.feed)
        self.run = Run(
            started=_now(),
            configuration={
                **msgspec.to_builtins(plan, enc_hook=str),
                "broker_url": without_credentials(plan.broker_url),
            },
            machine=machine.machine(),
            versions=machine.versions(),
            seeds={"generator": plan.seed},
        )
        self.supervisor = Supervisor(plan.silent_s)
        self.services: list[int] = []
        self.stamping: Stamping | None = None
        #: Subscriptions of clients that want some symbols, by exchange and client; empty: all
        #: clients want everything.
        self._chosen: dict[str, list[str]] = {}
        self._symbols: list[int] = []
        self._gateway = ""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "Laboratory":
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        """Start replayer and clients, load the packets, and start the rest of the roles."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="feedhandler-lab-"))
        self.folder = Path(folder)
        await self._stack.enter_async_context(self.supervisor)
        self.view.report("starting the roles")
        await self.supervisor.enlist_role(REPLAYER, "replayer")
        await self._have_clients(max(self.plan.clients))
        await self.supervisor.greeted("starting the roles", START_S, REPLAYER)
        await self._load()
        if self.plan.symbols:
            await self._choose()
        if self.plan.mode == "paper":
            self.stamping = await start_stamping(self.supervisor)
        await self._begin()

    async def _choose(self) -> None:
        """Request the replayer's choice of symbols for clients that want only some.

        Raises `UsageError` where they are more than an address may have.
        """
        clients = CLIENTS_MAX if self.plan.sweep == "clients" else max(self.plan.clients)
        self.view.report("choosing symbols")
        (chosen,) = await self.supervisor.ask_all(
            "choosing symbols", LOAD_S, [REPLAYER], "choose",
            words=list(self.plan.symbols), seed=self.plan.seed, clients=clients,
        )  # fmt: skip
        self._chosen, self._symbols = chosen["patterns"], chosen["symbols"]
        self.run.configuration["symbols_known"] = chosen["known"]
        for exchange in self.plan.exchanges:
            for pattern in self._chosen[exchange]:
                if pattern.count(",") >= PATTERNS_MAX or len(pattern) > ADDRESS_CHARS_MAX:
                    raise UsageError(
                        f"a client's symbols are {pattern.count(',') + 1:,} keys of a {exchange} "
                        "exchange, more than one address may have",
                        "fewer --symbols, or --exchange topic",
                    )

    # A laboratory with a broker overrides these (`broker_laboratory`).

    async def _begin(self) -> None:
        """Prepare what all steps share; nothing here."""

    async def _prepare(self, plan: StepPlan) -> None:
        """Prepare what one step needs before its clients attach: a gateway.

        One gateway serves all steps, except in the paper's mode, where it sends control datagrams
        either of packets or of messages.
        """
        wanted = plan.grain if self.plan.mode == "paper" else "any"
        await self._have_gateway(wanted, plan.grain)

    async def _have_gateway(
        self, wanted: str, grain: str, publish: tuple[PublishConfig, ...] = ()
    ) -> None:
        """Keep the gateway that runs if it is of the kind `wanted`; else replace it."""
        if self._gateway == wanted:
            return
        if self._gateway:
            await self.supervisor.dismiss(GATEWAY)
        await self._start_gateway(grain, publish)
        self._gateway = wanted

    async def _finish(self, plan: StepPlan) -> None:
        """Clean up after a step's clients have left; nothing here."""

    @property
    def broker(self) -> str:
        """The broker between gateway and clients; the embedded node counts as one."""
        return self.plan.broker

    @property
    def queue_limit_bytes(self) -> int:
        """The limit of each client's queue, bytes."""
        return AmqpConfig().queue_bytes

    def _pids(self) -> dict[str, int]:
        """Return the processes whose load is sampled: name to process id."""
        return {child.name: child.process.pid for child in self.supervisor.children}

    async def _have_clients(self, count: int) -> list[str]:
        """Return the names of the first `count` clients; start those that do not run yet."""
        names = [client_name(number) for number in range(count)]
        there = {child.name for child in self.supervisor.children}
        for name in names:
            if name not in there:
                await self.supervisor.enlist_role(name, "client")
        await self.supervisor.greeted("starting the clients", START_S, *names)
        return names

    async def measure_all(self) -> None:
        """Measure every step of the plan."""
        steps = list(self.plan.steps())
        self.view.expect(len(steps))
        for step in steps:
            await self.measure(step)

    async def sweep_all(self) -> None:
        """Search the limit for each scenario and exchange of the plan."""
        for scenario in self.plan.scenarios:
            for exchange in self.plan.exchanges:
                await self._sweep(scenario, exchange)

    async def _sweep(self, scenario: Scenario, exchange: Exchange) -> None:
        """Search how far rate or clients can rise until latency exceeds the bound."""
        plan = self.plan
        assert plan.bound is not None
        by_rate = plan.sweep == "rate"
        found = Sweep(
            quantity="rate" if by_rate else "clients",
            bound=str(plan.bound),
            scenario=scenario,
            exchange=exchange,
        )
        self.run.sweeps.append(found)
        search = Search(plan.rate_bps if by_rate else max(plan.clients), whole=not by_rate)
        for value in search.values():
            clients, rate_bps = max(plan.clients), plan.rate_bps
            if by_rate:
                rate_bps = value
            else:
                clients = int(value)
            step = await self.measure(plan.step(scenario, exchange, clients, rate_bps), trial=True)
            trial = trial_of(step, value, plan.bound)
            found.trials.append(trial)
            search.report(trial.held)
            found.held, found.failed = search.held, search.failed
            self.view.report_trial(trial)
        self.view.report_sweep(found)

    async def _load(self) -> None:
        """Load the packets in the replayer, which reads or generates them.

        Raises `UsageError` where they are to be played at their own pace and have no times.
        """
        plan = self.plan
        self.view.report("reading the capture" if plan.captures else "generating packets")
        (loaded,) = await self.supervisor.ask_all(
            "loading packets",
            LOAD_S,
            [REPLAYER],
            "load",
            feed=plan.feed,
            captures=[str(path.absolute()) for path in plan.captures],
            seed=plan.seed,
            messages=plan.generate_messages,
        )
        self.run.configuration["workload"] = loaded["workload"]
        self.run.configuration["flaws"] = loaded["flaws"]
        self.services = [int(service) for service in loaded["workload"]["packets_by_service"]]
        if plan.pace:
            line_bps = loaded["workload"]["recorded_line_mbps"] * 1e6
            if not line_bps:
                raise UsageError("these captures have no times to play them by", "give a --rate")
            # Steps carry the mean rate, rounded as the rates that it is compared with.
            rate_bps = round(line_bps * LINES * plan.pace, -3)
            self.plan = msgspec.structs.replace(plan, rate_bps=rate_bps)

    async def _start_gateway(self, grain: str, publish: tuple[PublishConfig, ...]) -> None:
        """Start a gateway for the services that are played, and open its lines."""
        self.amqp_port, control_port = free_ports(2)
        lines = self._lines()
        control = f"tcp://127.0.0.1:{control_port}"
        config = Config(
            gateway=GatewaySettings(
                feed=self.plan.feed,
                interface=self.plan.interface,
                stay_awake=True,
                coalesce_us=COALESCE_US,
            ),
            channels=tuple(
                ChannelConfig(
                    service=service,
                    lines=tuple(
                        LineConfig(name="AB"[number], group=line[at][1], port=line[at][2])
                        for number, line in enumerate(lines)
                    ),
                )
                for at, service in enumerate(self.services)
            ),
            arbitration=ArbitrationSettings(hold_packets=HOLD_PACKETS),
            amqp=AmqpConfig(listen=f"127.0.0.1:{self.amqp_port}"),
            control=ControlConfig(bind=control),
            publish=publish,
        )
        self.control = control
        path = self.folder / "gateway.toml"
        path.write_text(to_toml(config))
        self.run.configuration["gateway"] = path.read_text()
        ready = asyncio.Event()

        def on_error(line: str) -> None:
            if ": ready: " in line:
                ready.set()

        self.view.report("starting the gateway")
        words = ["feedhandler", "run", str(path)]
        if self.stamping is not None:
            words = ["feedhandler.lab.gateway", str(path), self.stamping.gateway, grain]
        await self.supervisor.enlist(GATEWAY, "-m", *words, on_error=on_error)
        await self.supervisor.during("starting the gateway", START_S, ready.wait())
        await self.supervisor.ask_all(
            "opening the lines", ASK_S, [REPLAYER], "open",
            lines=lines, interface=self.plan.interface,
        )  # fmt: skip

    def _lines(self) -> list[list[tuple[int, str, int]]]:
        """Return lines A and B: service, group and free port of each service."""
        own = os.getpid() % 250 + 1
        return [
            [
                (service, f"239.{GROUP_OF_LINES + number}.{own}.{1 + at}", free_udp_port())
                for at, service in enumerate(self.services)
            ]
            for number in range(LINES)
        ]

    def _arrange(self, plan: StepPlan) -> None:
        """Pin the sender and the gateway to one processor and the clients to the others.

        All of them get a better niceness than other processes of the machine; see `processors`. At
        high rates one processor would be too little for sender and gateway while the others are
        idle: there the scheduler chooses.
        """
        first, second = processors.split()
        apart = self.plan.apart and plan.rate_bps < FAST_BPS
        record: dict[str, Any] = {"apart": apart}
        if apart:
            record |= processors.describe()
        before = [processors.put_first(child.process.pid) for child in self.supervisor.children]
        record["nice"] = processors.NICE if all(before) else 0
        record["awake"] = not cpu_latency.fault()
        for child in self.supervisor.children:
            mine = first if child.name in (GATEWAY, REPLAYER) else second
            processors.pin(child.process.pid, mine if apart else first | second)
        self.run.configuration["processors"] = record

    # -- one step ---------------------------------------------------------------------------

    async def measure(self, plan: StepPlan, trial: bool = False) -> Step:
        """Take the roles through one step; append its result to the run and return it."""
        self.view.begin(plan)
        names = await self._have_clients(plan.clients)
        await self._prepare(plan)
        self._arrange(plan)
        step = Step(
            scenario=plan.scenario,
            exchange=plan.exchange,
            clients=plan.clients,
            broker=self.broker,
            mode=self.plan.mode,
            grain=plan.grain,
            rate_bps=plan.rate_bps,
            pace=plan.pace,
            symbols=plan.symbols,
            duration_s=plan.duration_s,
            warm_up_s=plan.warm_up_s,
            started=_now(),
            trial=trial,
            queue_limit_bytes=self.queue_limit_bytes,
        )
        await self._attach(plan, names)
        expected = await self._expect(plan, names)
        async with self._load_watch(plan, names) as watch:
            step.sent = await self._play(plan, names)
        step.loads = watch.loads
        step.traffic = list(traffic_of(step))
        await self._drain(expected, names)
        step.gateway = await self.supervisor.during(
            "asking the gateway", ASK_S, asyncio.to_thread(ask, self.control, "status")
        )
        step.results = await self._verdicts(names)
        await self.supervisor.ask_all("detaching", ASK_S, names, "detach")
        await self._finish(plan)
        step.latency = merged(result.latency for result in step.results)
        step.findings = findings_of(step.results)
        if self.stamping is not None:
            step.latency = await self.stamping.latency()
        step.verdicts = thresholds.judge(step)
        if not step.latency.count:
            # Its latencies of 0 would be taken for measured ones.
            step.findings.append(f"{thresholds.NOTHING_TIMED} in {plan.duration_s:g} s")
        self.run.steps.append(step)
        self.view.end(step)
        return step

    async def _attach(self, plan: StepPlan, names: list[str]) -> None:
        """Subscribe each client; in the paper's mode the first one is the control client."""
        asking = []
        for number, name in enumerate(names):
            fields = self._source(plan, number)
            if self.stamping is not None and number == 0:
                fields["control"] = self.stamping.client
            fields |= {"grain": plan.grain, "feed": self.plan.feed}
            asking.append(self.supervisor.ask(name, "attach", ASK_S, **fields))
        await self.supervisor.during("attaching", ASK_S + 1.0, asyncio.gather(*asking))

    def _source(self, plan: StepPlan, number: int) -> dict[str, Any]:
        """Return the source of one client: the node's URL and the pattern to subscribe to."""
        everything = patterns(plan.exchange, self.feed.key, self.services)
        chosen = self._chosen[plan.exchange][number] if self._chosen else ""
        return {"url": f"amqp://127.0.0.1:{self.amqp_port}", "pattern": chosen or everything}

    async def _expect(self, plan: StepPlan, names: list[str]) -> list[int]:
        """Send the clients what to expect; return the number of AMQP messages for each."""
        planned = await self._planned(plan)
        requests = [
            self.supervisor.ask(name, "expect", ASK_S, path=path)
            for name, path in zip(names, planned["paths"], strict=True)
        ]
        if self.stamping is not None:
            requests.append(self.supervisor.ask(STAMPER, "expect", ASK_S, path=planned["path"]))
        await self.supervisor.during(
            "planning", ASK_S + 1.0, asyncio.gather(*requests), tuple(names)
        )
        return [int(count) for count in planned["expected"]]

    async def _planned(self, plan: StepPlan) -> dict[str, Any]:
        """Request the replayer's plan of what it will send; return its answer."""
        (planned,) = await self.supervisor.ask_all(
            "planning", PLAN_S, [REPLAYER], "plan",
            rate_bps=plan.rate_bps, pace=plan.pace,
            warm_up_s=plan.warm_up_s, duration_s=plan.duration_s,
            messages=plan.grain == "message", clients=plan.clients, folder=str(self.folder),
        )  # fmt: skip
        return planned

    async def _play(self, plan: StepPlan, names: list[str]) -> Sent:
        """Play the step with the replayer, and show the progress meanwhile."""
        seconds = plan.warm_up_s + plan.duration_s + PLAY_SLACK_S
        watching = asyncio.create_task(self._watch(plan, names))
        try:
            answers = await self.supervisor.during(
                "playing",
                seconds,
                self.supervisor.ask(REPLAYER, "play", seconds),
                talking=(REPLAYER, *names),
            )
        finally:
            watching.cancel()
        self.run.configuration["sender_real_time"] = answers["real_time"]
        return msgspec.convert(answers["sent"], Sent, strict=False)

    def _load_watch(self, plan: StepPlan, names: list[str]) -> LoadWatch:
        """Return a watch of this step's roles: processors, memory and network bytes."""
        pids = {
            name: pid
            for name, pid in self._pids().items()
            if name in names or not name.startswith(CLIENT_PREFIX)
        }
        progress = self.supervisor.progress
        return LoadWatch(by_role(pids), plan.warm_up_s, lambda: progress.get(REPLAYER, {}))

    async def _watch(self, plan: StepPlan, names: list[str]) -> None:
        """Show the step's progress until cancelled."""
        progress = self.supervisor.progress
        while True:
            await asyncio.sleep(POLL_S * 4)
            clients = [progress[name] for name in names if name in progress]
            self.view.show(progress.get(REPLAYER, {}).get("share", 0.0), clients)

    async def _drain(self, expected: list[int], names: list[str]) -> None:
        """Wait until every client has everything, or until nothing more arrives."""
        loop = asyncio.get_running_loop()
        deadline, since, before = loop.time() + DRAIN_S, loop.time(), -1
        while True:
            answers = await self.supervisor.ask_all("draining", ASK_S, names, "count")
            counts = [answer["deliveries"] for answer in answers]
            if all(
                each["ended"] or each["deliveries"] >= wanted
                for each, wanted in zip(answers, expected, strict=True)
            ):
                break
            if sum(counts) != before:
                since, before = loop.time(), sum(counts)
            if loop.time() - since > QUIET_S or loop.time() > deadline:
                return
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(LINGER_S)

    async def _verdicts(self, names: list[str]) -> list[ClientResult]:
        verdicts = await self.supervisor.ask_all("collecting", ASK_S, names, "verdict")
        symbols = self._symbols or [0] * len(names)
        return [
            client_result(number, each, symbols[number]) for number, each in enumerate(verdicts)
        ]


def client_name(number: int) -> str:
    """Return the name of the client with this number (from 0)."""
    return f"{CLIENT_PREFIX}{number + 1}"


def client_result(number: int, verdict: dict[str, Any], symbols: int = 0) -> ClientResult:
    """Return a client's answer as a result."""
    return ClientResult(
        number=number,
        symbols=symbols,
        expected=verdict["expected"],
        received=verdict["received"],
        lost=verdict["lost"],
        duplicated=verdict["duplicated"],
        reordered=verdict["reordered"],
        announced_lost=verdict["announced_lost"],
        body_bytes=verdict["body_bytes"],
        findings=verdict["findings"],
        latency=latency_of_answer(verdict),
    )


def findings_of(results: Iterable[ClientResult]) -> list[str]:
    """Return what fails a step, one line each; clients with equal findings share a line."""
    findings: dict[str, list[int]] = {}
    for result in results:
        wrong = [
            f"{count:,} {what}"
            for what, count in (
                ("lost", result.lost),
                ("twice or never sent", result.duplicated),
                ("out of order", result.reordered),
                ("announced lost", result.announced_lost),
            )
            if count
        ]
        if wrong:
            some = "; ".join(result.findings[:NAMED_MAX])
            text = f"{', '.join(wrong)} of {result.expected:,}" + (f" ({some})" if some else "")
            findings.setdefault(text, []).append(result.number + 1)
    return [
        f"client{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}: {text}"
        for text, numbers in findings.items()
    ]


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
