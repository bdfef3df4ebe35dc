"""The laboratory beside what C and the kernel alone take, in turns, in the same run.

Both sides get the same packets from the same replayer, on the same processors, as urgently; and
have the same numbers of clients. On the other side stands `lab_ceiling.c`: a gateway that takes the
first copy of each packet and writes it to TCP connections, and clients that read and time. It has
no protocol on the wire, nothing held back, no gap filled, no credit, no queue policy.

Reported of each rate: latency and loss of either side, the processor time that each role spent
for a delivery, and ours over C's. Loss is a figure here, not a fault: it shows what load a machine
with these processors carries. Run alone: `python -m bench --only lab_ceiling`.
"""

import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.programs import compiled
from feedhandler.doctor.cpu_latency import staying_awake
from feedhandler.lab.laboratory import (
    ASK_S,
    DRAIN_S,
    LINGER_S,
    POLL_S,
    QUIET_S,
    REPLAYER,
    START_S,
    Laboratory,
    client_name,
    client_result,
    findings_of,
)
from feedhandler.lab.plan import Plan, StepPlan
from feedhandler.lab.results import Step, merged
from feedhandler.lab.supervisor import RoleFailed
from feedhandler.lab.view import View
from feedhandler.terminal.children import Child

#: Rates in Mbps and client counts: the laboratory's bars of whole packets.
LOADS = ((40.0, 10), (200.0, 10), (400.0, 4))
SECONDS, WARM_UP_S, ROUNDS = 15.0, 2.0, 2
QUICK_SECONDS, QUICK_ROUNDS = 4.0, 1
#: The receive buffer of a line: what the gateway asks for.
BUFFER_BYTES = 8 << 20
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
GATEWAY = "gateway"
#: What is set beside each other; of loss the difference says nothing as a ratio.
COMPARED = ("p50_ms", "p90_ms", "p99_ms")
SMOKE: dict[str, object] = {"LOADS": ((20.0, 2),), "QUICK_SECONDS": 1.0, "WARM_UP_S": 0.5}


class Program:
    """One process of the C program: written to and read a line at a time."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    async def hear(self) -> str:
        """Return its next line. Raises `RoleFailed` where it has ended."""
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await self.process.stdout.readline()
        if not line:
            raise RoleFailed(f"the {self.name} in C ended with {await self.process.wait()}")
        return line.decode().strip()

    async def ask(self, words: str) -> str:
        """Send it a line; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())
        return await self.hear()


class Ceiling(Laboratory):
    """A laboratory whose gateway and clients are the C program's, made anew for each step."""

    def __init__(self, plan: Plan, view: View, program: Path) -> None:
        super().__init__(plan, view)
        self._program = str(program)

    async def _have_clients(self, count: int) -> list[str]:
        """Return no clients: they come with each step's gateway."""
        return []

    async def _start(self, name: str, *words: str) -> Program:
        """Start a process that ends with the run, pinned and sampled like a role of its name."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.supervisor.children.append(Child(name, process))
        return Program(name, process)

    async def measure(self, plan: StepPlan, trial: bool = False) -> Step:
        """Measure one step, as `Laboratory.measure` does it."""
        step = Step(
            scenario=plan.scenario,
            exchange=plan.exchange,
            clients=plan.clients,
            broker="C",
            grain=plan.grain,
            rate_bps=plan.rate_bps,
            duration_s=plan.duration_s,
            warm_up_s=plan.warm_up_s,
            trial=trial,
        )
        before = list(self.supervisor.children)
        gateway, clients = await self._start_all(plan.clients)
        self._arrange(plan)
        planned = await self._planned(plan)
        with np.load(planned["path"]) as stored:
            pairs = zip(stored["services"].tolist(), stored["timed_from"].tolist(), strict=True)
            timed_from = " ".join(f"{service}:{first}" for service, first in pairs)
        await asyncio.gather(*(client.ask(f"expect {timed_from}") for client in clients))
        names = [client.name for client in clients]
        with staying_awake():
            async with self._load_watch(plan, names) as watch:
                step.sent = await self._play(plan, [])
        step.loads = watch.loads
        (wanted, *_) = planned["expected"]
        await self._drained(clients, wanted)
        verdicts = [json.loads(await client.ask("verdict")) for client in clients]
        step.results = [
            client_result(at, _answer(each, wanted)) for at, each in enumerate(verdicts)
        ]
        gateway.process.terminate()
        step.gateway = json.loads(await gateway.hear())
        for program in clients:
            program.process.kill()
        await asyncio.gather(*(each.process.wait() for each in (gateway, *clients)))
        self.supervisor.children[:] = before
        step.latency = merged(result.latency for result in step.results)
        step.findings = findings_of(step.results)
        self.run.steps.append(step)
        return step

    async def _start_all(self, count: int) -> tuple[Program, list[Program]]:
        """Start gateway and clients, connected; and the replayer's lines to it."""
        lines = self._lines()
        endpoints = [f"{group}:{port}" for line in lines for _, group, port in line]
        gateway = await self._start(
            GATEWAY, "gateway", self.plan.interface, str(count), str(BUFFER_BYTES), *endpoints
        )
        port = (await gateway.hear()).split()[-1]
        clients = [await self._start(client_name(at), "client", port) for at in range(count)]
        await gateway.hear()
        await self.supervisor.ask_all(
            "opening the lines", ASK_S, [REPLAYER], "open",
            lines=lines, interface=self.plan.interface,
        )  # fmt: skip
        return gateway, clients

    async def _drained(self, clients: Sequence[Program], wanted: int) -> None:
        """Wait until every client has everything, or until nothing comes any more."""
        loop = asyncio.get_running_loop()
        deadline, since, before = loop.time() + DRAIN_S, loop.time(), -1
        while loop.time() < deadline and loop.time() - since < QUIET_S:
            counts = [int(await client.ask("count")) for client in clients]
            if min(counts) >= wanted:
                break
            if sum(counts) != before:
                since, before = loop.time(), sum(counts)
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(LINGER_S)


def _answer(verdict: dict[str, Any], wanted: int) -> dict[str, Any]:
    """Return a C client's verdict as a laboratory client's; its gateway has kept copies from it."""
    buckets = verdict["buckets"]
    return {
        **verdict,
        "expected": wanted,
        "lost": wanted - verdict["received"],
        "duplicated": 0,
        "announced_lost": 0,
        "findings": [],
        "buckets": [int(bucket) for bucket in buckets],
        "counts": list(buckets.values()),
    }


def per_delivery_us(step: Step) -> dict[str, float]:
    """Return each role's processor time for one delivery of the measured part, in us; all clients
    are one role."""
    seconds = step.sent.duration_ns / 1e9
    return {
        loads.role: 1e6 * seconds * float(np.mean(loads.user_cpu + loads.system_cpu))
        / max(1, step.latency.count)
        for loads in step.loads
        if len(loads.t_s)
    }  # fmt: skip


def figures(step: Step) -> dict[str, float]:
    """Return a step's figures; `lost_pct` of all that clients had to get."""
    found = step.latency.percentiles(*_SHARES.values())
    expected = sum(result.expected for result in step.results)
    lost = sum(result.lost for result in step.results)
    return {
        **{f"{name}_ms": ns / 1e6 for name, ns in zip(_SHARES, found, strict=True)},
        "lost_pct": 100 * lost / max(1, expected),
        "mbps": step.sent.rate_bps / 1e6,
        "packets_per_s": step.sent.packets * 1e9 / max(1, step.sent.duration_ns),
        **{f"{role}_us": value for role, value in per_delivery_us(step).items()},
    }


def measured(
    program: Path | None, loads: Sequence[tuple[float, int]], seconds: float, messages: int = 0
) -> list[Step]:
    """Run one turn of one side: a step of whole packets for each of `loads` (Mbps, clients). Ours
    where `program` is None; `messages` as in `Plan.generate_messages`."""
    with tempfile.TemporaryDirectory(prefix="bench-lab-ceiling-") as folder:
        plan = Plan(
            out=Path(folder),
            exchanges=("topic",),
            clients=(max(clients for _, clients in loads),),
            duration_s=seconds,
            warm_up_s=min(WARM_UP_S, seconds),
            generate_messages=messages,
        )
        view = View(quiet=True)
        made = Laboratory(plan, view) if program is None else Ceiling(plan, view, program)

        async def measure() -> list[Step]:
            async with made:
                return [
                    await made.measure(plan.step("packets", "topic", clients, mbps * 1e6))
                    for mbps, clients in loads
                ]

        return asyncio.run(measure())


def compare(
    loads: Sequence[tuple[float, int]] = LOADS,
    seconds: float = SECONDS,
    rounds: int = ROUNDS,
    messages: int = 0,
) -> dict[str, Any]:
    """Run both sides in turns; return each load's median figures of either, and ours over C's."""
    turns: dict[str, list[list[Step]]] = {"ours": [], "c": []}
    with tempfile.TemporaryDirectory(prefix="lab-ceiling-") as folder:
        program = compiled("lab_ceiling", folder)
        for _ in range(rounds):
            turns["ours"].append(measured(None, loads, seconds, messages))
            turns["c"].append(measured(program, loads, seconds, messages))
    found: dict[str, Any] = {}
    for index, (mbps, clients) in enumerate(loads):
        sides = {
            side: _medians([figures(steps[index]) for steps in each])
            for side, each in turns.items()
        }
        ours, c = sides["ours"], sides["c"]
        names = [*COMPARED, *(name for name in ours if name.endswith("_us"))]
        ratio = {name: ours[name] / c[name] for name in names if c.get(name)}
        found[f"{mbps:g}"] = {"clients": clients, **sides, "ratio": ratio}
    return found


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {
        name: statistics.median(turn.get(name, 0.0) for turn in turns)
        for name in turns[0]
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Print two lines for each load."""
    for mbps, one in found.items():
        for side, word in (("ours", "ours"), ("c", "in C")):
            each = one[side]
            roles = ", ".join(
                f"{name.removesuffix('_us')} {each[name]:.2f}"
                for name in each
                if name[-3:] == "_us"
            )
            print(
                f"  {mbps:>3} Mbps to {one['clients']:2}, {word}: p50 {each['p50_ms']:.3f}"
                f" p90 {each['p90_ms']:.3f} p99 {each['p99_ms']:.3f} ms, lost"
                f" {each['lost_pct']:.3f} %; us of a processor a delivery: {roles}",
                flush=True,
            )
        ratio = ", ".join(
            f"{name.removesuffix('_ms').removesuffix('_us')} {value:.1f}"
            for name, value in one["ratio"].items()
        )
        print(f"      ours over C's: {ratio}", flush=True)


def faults(found: dict[str, Any]) -> list[str]:
    """Return a text for each speed and side of which nothing was timed: a fault at any speed."""
    return [
        f"{mbps} Mbps: nothing was timed on the side {side!r}"
        for mbps, one in found.items()
        for side in ("ours", "c")
        if not one[side]["p50_ms"]
    ]


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all loads, both sides in turns."""
    if quick:
        found = compare(LOADS, seconds=QUICK_SECONDS, rounds=QUICK_ROUNDS)
    else:
        found = compare()
    report(found)
    return {**found, "problems": faults(found)}
