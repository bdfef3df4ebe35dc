"""A keyed queue through AMQP: its rates, one hot key, and others beside a key that is far behind.

A gateway in a process of its own, durable, and one client process of ours (`keyed.producer`,
`keyed.consume`). The rates: all messages put, then all worked on, then both at once, with uniform
keys and handlers that do nothing; beside each what the gateway's process needs for a message, for
on two processors the client has the other one. One hot key: each message waits for the end of the
one before it to be on the disk, so beside it stand the disk's own syncs, what a server and a client
in C reach that do just that (`keyed_ceiling.c`), and the same queue with `run`, where a consumer
has several of the key at a time; all in the same run.
A crowd: messages of many keys come at a steady rate, alone, and then as many again of one key of
which a great many wait already; the others must not wait much longer for it.
"""

import asyncio
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from bench.keyed_site import KEYS, QUEUE, Site, body
from bench.keyed_work import syncs_a_second
from bench.programs import compiled
from feedhandler import keyed
from tests.support.processes import cpu_seconds_of

COUNT, QUICK_COUNT = 300_000, 50_000
HOT_COUNT, QUICK_HOT_COUNT = 50_000, 10_000
BEHIND, QUICK_BEHIND = 1_000_000, 50_000
WORKERS = 1000
#: Messages of one key that a consumer may have at a time, where that is tried.
RUN = 16
BAR_A_SECOND, GOAL_A_SECOND = 30_000, 100_000
BAR_SYNCS = 0.4
#: Of the crowd: messages of other keys a second, for how long, how many keys, how many workers.
OTHERS_A_SECOND = 1000
CROWD_SECONDS, QUICK_CROWD_SECONDS = 15.0, 4.0
CROWD_KEYS, CROWD_WORKERS = 1000, 64
HOT_KEY = KEYS + 1
#: How much longer the others may wait.
BAR_TIMES = 2.0
TICK_S = 0.005
SYNC_SECONDS, SYNC_TURNS = 1.0, 3
PATIENCE_S = 300.0
#: A stride that visits all keys, in no order.
STRIDE = 7919
SMOKE: dict[str, object] = {
    "QUICK_COUNT": 500, "QUICK_HOT_COUNT": 100, "QUICK_BEHIND": 500, "QUICK_CROWD_SECONDS": 0.5,
    "SYNC_SECONDS": 0.1, "SYNC_TURNS": 1,
}  # fmt: skip


@dataclass
class Worked:
    """Counts what handlers have done; `done` is set at `wanted`."""

    wanted: int
    count: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: keyed.Message) -> None:
        self.count += 1
        if self.count >= self.wanted:
            self.done.set()


class Clock:
    """Messages a second, and what the gateway's process needs for each."""

    def __init__(self, gateway: subprocess.Popen[bytes], count: int) -> None:
        self._pid, self._count = gateway.pid, count
        self._began, self._used = time.perf_counter(), cpu_seconds_of(gateway.pid)

    def read(self, what: str) -> dict[str, float]:
        """Return the figures since the start, and print them."""
        a_second = self._count / (time.perf_counter() - self._began)
        each_us = (cpu_seconds_of(self._pid) - self._used) / self._count * 1e6
        print(f"  {what}: {a_second:,.0f}/s; {each_us:.1f} us of the gateway's processor a message")
        return {"a_second": a_second, "gateway_us": each_us}


async def put(producer: keyed.Producer, count: int, key: int | None = None) -> None:
    """Put so many messages, of all keys or of one."""
    for number in range(count):
        of = body(number, number * STRIDE % KEYS) if key is None else body(0, key)
        await producer.put_soon(of)
    await producer.flush()


async def work_all(url: str, count: int, workers: int) -> None:
    """Work on so many messages."""
    worked = Worked(count)
    async with keyed.consume(url, QUEUE, worked, workers=workers), asyncio.timeout(PATIENCE_S):
        await worked.done.wait()


async def rates(site: Site, count: int) -> dict[str, Any]:
    """Put, work, and both at once."""
    found = {}
    with site.gateway() as gateway:
        async with site.producing() as producer:
            clock = Clock(gateway, count)
            await put(producer, count)
            found["put"] = clock.read("put")
            clock = Clock(gateway, count)
            await work_all(site.url, count, WORKERS)
            found["work"] = clock.read("work")
            clock = Clock(gateway, count)
            await asyncio.gather(put(producer, count), work_all(site.url, count, WORKERS))
            found["both"] = clock.read("both at once")
    return found


def hot_in_c(folder: Path, turns: int) -> float:
    """Return round trips a second between a server and a client in C, each answer synced."""
    command = [str(compiled("keyed_ceiling", folder)), str(folder / "ceiling"), str(turns)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(figures["turns"] / figures["seconds"])


async def hot(site: Site, count: int, syncs: float, in_c: float, what: str) -> dict[str, float]:
    """Measure one key: messages a second, and their shares of the disk's syncs and of C's rate."""
    with site.gateway() as gateway:
        async with site.producing() as producer:
            await put(producer, count, HOT_KEY)
            clock = Clock(gateway, count)
            await work_all(site.url, count, RUN)
            found = clock.read(f"one hot key, {what}")
    found |= {"of_syncs": found["a_second"] / syncs, "of_c": found["a_second"] / in_c}
    print(
        f"  that is {found['of_syncs']:.0%} of the disk's {syncs:,.0f} syncs/s (bar"
        f" {BAR_SYNCS:.0%}), {found['of_c']:.0%} of the {in_c:,.0f} turns/s in C"
    )
    return found


async def waits_ms(
    site: Site, producer: keyed.Producer, seconds: float, beside: bool
) -> list[float]:
    """Return how long messages of other keys waited from being put to being handled, in ms.

    `beside`: as many messages of the hot key come, too.
    """
    waits: list[float] = []
    wanted = round(OTHERS_A_SECOND * seconds)
    done = asyncio.Event()

    async def handler(message: keyed.Message) -> None:
        number = int(message.body[message.body.index(b'"n":') + 4 : message.body.index(b"}")])
        if number:
            waits.append((time.monotonic_ns() - number) / 1e6)
            if len(waits) == wanted:
                done.set()

    async with keyed.consume(site.url, QUEUE, handler, workers=CROWD_WORKERS):
        began, sent = time.monotonic(), 0
        while sent < wanted:
            due = min(round((time.monotonic() - began) * OTHERS_A_SECOND), wanted)
            for _ in range(due - sent):
                await producer.put_soon(body(time.monotonic_ns(), sent % CROWD_KEYS))
                if beside:
                    await producer.put_soon(body(0, HOT_KEY))
                sent += 1
            await asyncio.sleep(TICK_S)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
    return waits


async def crowd(site: Site, behind: int, seconds: float) -> dict[str, Any]:
    """Return the others' p99 alone, and beside a key with this many messages waiting."""
    found: dict[str, Any] = {}
    with site.gateway():
        async with site.producing() as producer:
            alone = await waits_ms(site, producer, seconds, beside=False)
            await put(producer, behind, HOT_KEY)
            beside = await waits_ms(site, producer, seconds, beside=True)
    for name, waits in (("alone", alone), ("beside", beside)):
        p50, p99 = numpy.percentile(waits, [50, 99])
        found[name] = {"p50_ms": float(p50), "p99_ms": float(p99)}
    found["times"] = found["beside"]["p99_ms"] / found["alone"]["p99_ms"]
    print(
        f"  others wait p99 {found['alone']['p99_ms']:.2f} ms, beside a key with {behind:,} waiting"
        f" and half of what comes {found['beside']['p99_ms']:.2f} ms: {found['times']:.2f} times"
        f" (bar {BAR_TIMES:g})"
    )
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Measure rates, the hot key, the crowd."""
    found: dict[str, Any] = {
        "bar_a_second": BAR_A_SECOND, "goal_a_second": GOAL_A_SECOND, "problems": []
    }  # fmt: skip
    print(f"  bar {BAR_A_SECOND:,}/s, goal {GOAL_A_SECOND:,}")
    with tempfile.TemporaryDirectory(prefix="feedhandler-bench-") as made:
        folder = Path(made)
        syncs = max(syncs_a_second(folder, SYNC_SECONDS) for _ in range(SYNC_TURNS))
        found["rates"] = asyncio.run(rates(Site(folder / "rates"), QUICK_COUNT if quick else COUNT))
        count = QUICK_HOT_COUNT if quick else HOT_COUNT
        found["hot_in_c"] = hot_in_c(folder, count)
        for name, run in (("hot", 1), ("hot_run", RUN)):
            site = Site(folder / name, run)
            found[name] = asyncio.run(hot(site, count, syncs, found["hot_in_c"], f"run = {run}"))
        behind, seconds = (QUICK_BEHIND, QUICK_CROWD_SECONDS) if quick else (BEHIND, CROWD_SECONDS)
        found["crowd"] = asyncio.run(crowd(Site(folder / "crowd"), behind, seconds))
    return found
