"""A gateway as it ships beside hostile clients: its process, a feed at a steady pace, one good
subscriber, and the process that attacks.

`AttackRig` keeps the good subscriber in a thread of its own, and has an attack of
`tests/support/attacks.py` carried out by a child: what the attacker computes takes no turn of the
subscriber's. What the subscriber is handed out is compared with what was sent; each delivery's time
from the gateway's receive stamp is noted.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

import feedhandler
from feedhandler.amqp.users import hash_password
from feedhandler.config import Config, ControlConfig
from feedhandler.config.amqp import LimitsConfig, TlsConfig, UserConfig
from feedhandler.config.observing import MetricsConfig
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.doctor.memory_bounds import memory_bounds
from feedhandler.histogram import Histogram
from feedhandler.rpc import KEEP_NS, ask
from tests.support import free_addresses, gateway
from tests.support.attacks import ATTACKS
from tests.support.gateway import Ledger, Market
from tests.support.security import SECRET, Certificates

PATIENCE_S = 60.0
#: Packets a second, of both services together.
RATE = 500
#: The node's bounds: small ones, so that what passes them is soon seen.
AMQP: dict[str, Any] = {
    "queue_bytes": 1 << 20,
    "history_bytes": 1 << 20,
    "max_connections": 300,
    "max_links": 500,
    "anonymous": True,
    "plain_without_tls": True,
    "limits": LimitsConfig(unsettled_per_link=1000),
}
#: No round makes the gateway grow by more, although the bounds' sum is far above that.
GROWTH_BYTES_MAX = 160 << 20


class StampedLedger(Ledger):
    """A ledger that notes how long each delivery took from the gateway's receive stamp."""

    latency = Histogram()

    def receive(self, message: Any) -> None:
        if message.received_ns:
            self.latency.record(max(0, time.time_ns() - message.received_ns))
        super().receive(message)


@dataclass
class Outcome:
    """Result of an attack, with what the good subscriber saw of it.

    `resident`: the gateway's memory in bytes before, at most, and after. `moved`: the node's
    counters, by how much. `problems`: promises that were broken.
    """

    name: str
    rounds: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    resident: tuple[int, int, int]
    moved: dict[str, int]
    problems: list[str] = field(default_factory=list)


def configured(market: Market, folder: Path, hashed: Callable[[str], str]) -> Config:
    """The gateway that is attacked: with users, TLS, a durable queue, control and metrics."""
    certificate, key = Certificates(folder).issue("127.0.0.1")
    rights = {"services": ("*",), "put": ("*",), "get": ("*",), "cancel": ("*",)}
    secret = folder / "ann.hash"  # a configuration that is written out shows no hash
    secret.write_text(hashed(SECRET))
    users = (
        UserConfig(name="ann", password_file=str(secret), **rights),
        UserConfig(name="anonymous", **rights),
    )
    tls = TlsConfig(listen=f"127.0.0.1:{free_addresses.port()}", certificate=certificate, key=key)
    queue = DurableQueueConfig(
        name="orders", folder=str(folder / "orders"), durability="fast", blocks_max=16, credit=64
    )
    return structs.replace(
        market.config(users=users, tls=tls, **AMQP),
        queues=(queue,),
        control=ControlConfig(bind=f"tcp://127.0.0.1:{free_addresses.port()}"),
        metrics=MetricsConfig(listen=f"127.0.0.1:{free_addresses.port()}"),
    )


class AttackRig:
    """See the module; all runs while the block does. `hashed` makes the users' hashes, whose cost
    each log-in has."""

    def __init__(
        self,
        folder: Path,
        growth_bytes_max: int = GROWTH_BYTES_MAX,
        hashed: Callable[[str], str] = hash_password,
    ) -> None:
        self.market = Market(RATE)
        self._growth_bytes_max = growth_bytes_max
        self.config = configured(self.market, folder, hashed)
        #: What it may take: what it has before any attack, and every bound.
        self.bound = sum(each.most for each in memory_bounds(self.config))
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack = contextlib.AsyncExitStack()
        self._said: list[str] = []

    def __enter__(self) -> "AttackRig":
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def attack(self, name: str, rounds: int = 1, seconds: float = 0.0) -> Outcome:
        """Carry out so many rounds of an attack, or rounds for so long; an empty name is none."""
        outcome: Outcome = self._do(self._attack(name, rounds, seconds))
        return outcome

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        self._stack.enter_context(self.market)
        self.gateway = await gateway.start(self.config, self._folder / "gateway.toml")
        self._stack.push_async_callback(gateway.kill, self.gateway)
        self._listening = asyncio.create_task(self._listen())
        messages = feedhandler.subscribe(
            f"amqp://{self.config.amqp.listen}", "euronext.#", as_="packet", stamp=True
        )
        self.ledger = StampedLedger(self.market, "packet")
        self.ledger.follow(await self._stack.enter_async_context(messages))
        self._stack.push_async_callback(self.ledger.close)
        self.attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.attacks",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._stack.push_async_callback(gateway.kill, self.attacker)
        self.market.start()
        await self._caught_up()
        self.bound += self.resident()

    async def _listen(self) -> None:
        """Take what the gateway says, or it would stand still; a traceback is kept."""
        assert self.gateway.stderr is not None
        async for line in self.gateway.stderr:
            if b"internal error" in line or b"Traceback" in line:
                self._said.append(line.decode().strip())

    async def _attack(self, name: str, rounds: int, seconds: float) -> Outcome:
        before, calm = self.resident(), await self._node()
        self._forget_peak()
        self.ledger.latency = Histogram()
        if name:
            done = await self._command(name, rounds, seconds)
        else:
            await asyncio.sleep(seconds)
            done = {"rounds": 0, "error": ""}
        problems = [done["error"]] if done["error"] else []
        try:
            await self._caught_up()
            after = await self._calm_again(calm, ATTACKS[name].moves if name else ())
        except (AssertionError, feedhandler.FeedhandlerError) as error:
            problems.append(str(error))
            after = await self._node()
        moved = {key: after[key] - calm[key] for key in after if after[key] != calm[key]}
        p50, p99 = self.ledger.latency.percentiles(0.5, 0.99)
        peak = self.resident("VmHWM")
        problems += self._said
        self._said.clear()
        if moved.get("connections_faulted"):
            problems.append(f"{moved['connections_faulted']} connections ended by our own errors")
        if peak - before > self._growth_bytes_max:
            problems.append(f"memory grew by {peak - before:,} bytes")
        if peak > self.bound:
            problems.append(f"{peak:,} bytes resident, more than all bounds, {self.bound:,}")
        return Outcome(
            name, done["rounds"], p50 / 1e6, p99 / 1e6, self.ledger.latency.maximum / 1e6,
            (before, peak, self.resident()), moved, problems,
        )  # fmt: skip

    async def _command(self, name: str, rounds: int, seconds: float) -> dict[str, Any]:
        """Have the child attack."""
        assert self.attacker.stdin is not None
        assert self.attacker.stdout is not None
        amqp = self.config.amqp
        order = {
            "name": name,
            "rounds": rounds,
            "seconds": seconds,
            "ports": {
                "amqp": amqp.address[1] if amqp.address else 0,
                "tls": amqp.tls.address[1] if amqp.tls.address else 0,
                "metrics": int(self.config.metrics.listen.rpartition(":")[2]),
                "control": int(self.config.control.bind.rpartition(":")[2]),
            },
        }
        self.attacker.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(seconds + PATIENCE_S):
            return dict(json.loads(await self.attacker.stdout.readline()))

    async def _caught_up(self) -> None:
        """The good subscriber has everything that was sent until now, in order and whole."""
        sent = self.market.sent
        await gateway.until([self.ledger], lambda each: each.has(sent), "everything came")
        lost = {service: gaps for service, gaps in self.ledger.gaps.items() if gaps}
        assert not lost, f"the good subscriber lacks {lost}"

    async def _calm_again(self, calm: dict[str, Any], moves: tuple[str, ...]) -> dict[str, Any]:
        """The node once it has seen the attack, and nothing is left but the good subscriber."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            await asyncio.sleep(KEEP_NS / 1e9)  # an answer is given again for so long
            now = await self._node()
            left = {key: now[key] for key in ("connections", "links") if now[key] != 1}
            unmoved = [key for key in moves if now[key] == calm[key]]
            if not left and not unmoved:
                return now
            assert time.monotonic() < deadline, f"left behind: {left}; never counted: {unmoved}"

    async def _node(self) -> dict[str, Any]:
        """The node's part of the gateway's status."""
        assert self.gateway.returncode is None, "the gateway has ended"
        status = await asyncio.to_thread(
            ask, self.config.control.bind, "status", timeout_s=PATIENCE_S
        )
        return dict(status["node"])

    def resident(self, what: str = "VmRSS") -> int:
        """Bytes that the gateway has."""
        text = Path(f"/proc/{self.gateway.pid}/status").read_text()
        return int(text.split(f"{what}:")[1].split()[0]) * 1024

    def _forget_peak(self) -> None:
        """Have the kernel note the highest memory anew (proc(5), clear_refs)."""
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/{self.gateway.pid}/clear_refs", os.O_WRONLY)
            os.write(fd, b"5")
            os.close(fd)
