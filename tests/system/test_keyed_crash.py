"""A keyed queue whose producers, consumers and gateway are killed (kill -9) at any moment.

Some processes send, some work, and each message has one effect in a store outside, in its key's
order; no key stands still. In a second course the effect is a message in another queue. `KILLS=n
MESSAGES=m` say how often and how many (`make crash-keyed`: 300 and 2,000,000; a tenth of both for
the second), `SEED=s` draws another course.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from feedhandler import keyed
from feedhandler.keyed.definition import Definition
from tests.support.durable import orders
from tests.support.gateway import Market, start
from tests.support.keyed_client import open_effects

KILLS = int(os.environ.get("KILLS", "2"))
MESSAGES = int(os.environ.get("MESSAGES", "1200"))
CLIENTS = int(os.environ.get("CLIENTS", "2"))
KEYS = 300
#: Without an effect for so long, something stands still.
PATIENCE_S = 120.0
LOOK_S = 0.02
KEY = Definition(fields=("key",))

Process = asyncio.subprocess.Process


class Site:
    """The gateway, its clients, and the store outside; `work`: what its workers do."""

    messages = MESSAGES // CLIENTS * CLIENTS
    work = "consume"

    def __init__(self, folder: Path, market: Market, seed: int) -> None:
        self.folder = folder
        self.draw = random.Random(seed)
        self.seed = seed
        queue = orders(folder / "queue", key=KEY, block_bytes=8 << 20)
        out = orders(folder / "out", name="out", key=KEY, block_bytes=8 << 20)
        config = market.config()
        fields = {name: getattr(config, name) for name in config.__struct_fields__}
        self.config = type(config)(**{**fields, "queues": (queue, out)})
        assert config.amqp.address is not None
        self.url = f"amqp://127.0.0.1:{config.amqp.address[1]}"
        self.effects = open_effects(folder)
        self.gateway: Process
        self.clients: dict[str, Process] = {}
        self.killed = {"gateway": 0, "produce": 0, self.work: 0}

    async def open(self) -> None:
        self.gateway = await start(self.config, self.folder / "gateway.toml")
        for number in range(CLIENTS):
            for what in ("produce", self.work):
                await self.launch(f"{what}-{number}")

    async def launch(self, name: str) -> None:
        """Start a client, again or for the first time."""
        what = name.partition("-")[0]
        more = [self.messages // CLIENTS, KEYS, self.seed] if what == "produce" else []
        self.clients[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.keyed_client", what, self.url, str(self.folder),
            name, *map(str, more), stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def kill(self) -> None:
        """Kill one process, and start it again."""
        what = self.draw.choice(list(self.killed))
        at_work = [
            name
            for name, each in self.clients.items()
            if each.returncode is None and name.startswith(what)
        ]
        name = self.draw.choice(at_work) if at_work else "gateway"
        self.killed[name.partition("-")[0]] += 1
        victim = self.gateway if name == "gateway" else self.clients[name]
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        if name == "gateway":
            self.gateway = await start(self.config, self.folder / "gateway.toml")
        else:
            await self.launch(name)

    def done(self) -> int:
        """Effects there are."""
        count: int = self.effects.execute("select count(*) from effects").fetchone()[0]
        return count

    async def until(self, wanted: int) -> None:
        """Until there are so many effects; who has ended by himself is no failure's sign."""
        loop = asyncio.get_running_loop()
        before, since = -1, loop.time()
        while (now := self.done()) < wanted:
            if now > before:
                before, since = now, loop.time()
            assert loop.time() - since < PATIENCE_S, f"{now} of {wanted}: {self.killed}"
            for name, process in list(self.clients.items()):
                if process.returncode not in (None, 0):
                    await self.launch(name)  # the gateway was gone as it began
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """End everybody."""
        for process in (*self.clients.values(), self.gateway):
            if process.returncode is None:
                process.kill()
                await process.wait()
        self.effects.close()

    def rows(self) -> list[tuple[str, str, int]]:
        """Key, producer and number of each effect, in order."""
        return self.effects.execute(
            "select key, producer, number from effects order by place"
        ).fetchall()

    def check(self) -> None:
        """Each message has one effect, in its key's order."""
        last: dict[tuple[str, str], int] = {}
        seen: set[tuple[str, int]] = set()
        rows = self.rows()
        for key, producer, number in rows:
            assert (producer, number) not in seen, f"{producer} {number} twice"
            seen.add((producer, number))
            assert last.get((key, producer), 0) < number, f"{producer} {number} out of order"
            last[key, producer] = number
        assert len(rows) == self.messages


class OutputSite(Site):
    """The effect of each message is one in another queue, which we read: what comes again has its
    token, and what was put twice has not."""

    messages = max(MESSAGES // 10, 600) // CLIENTS * CLIENTS
    work = "transform"

    def __init__(self, folder: Path, market: Market, seed: int) -> None:
        super().__init__(folder, market, seed)
        self._effects: dict[str, tuple[str, str, int]] = {}
        self._reading = contextlib.AsyncExitStack()

    async def open(self) -> None:
        await super().open()
        await self._reading.enter_async_context(keyed.consume(self.url, "out", self._read))

    async def _read(self, message: keyed.Message) -> None:
        content = json.loads(message.body)
        self._effects.setdefault(message.token, (content["key"], content["p"], content["n"]))

    def done(self) -> int:
        return len(self._effects)

    def rows(self) -> list[tuple[str, str, int]]:
        return list(self._effects.values())

    async def close(self) -> None:
        await self._reading.aclose()
        await super().close()


@pytest.mark.timeout(0 if KILLS > 50 else 280)
@pytest.mark.parametrize(("kind", "kills"), [(Site, KILLS), (OutputSite, max(KILLS // 10, 2))])
async def test_each_message_has_one_effect_whichever_process_is_killed(
    tmp_path: Path, seed: int, kind: type[Site], kills: int
) -> None:
    with Market(1) as market:
        site = kind(tmp_path, market, seed)
        try:
            await site.open()
            for number in range(kills):
                await site.until(site.messages * (number + 1) // (kills + 2))
                await site.kill()
            await site.until(site.messages)
            site.check()
            site.gateway.terminate()
            assert await asyncio.wait_for(site.gateway.wait(), PATIENCE_S) == 0
        finally:
            await site.close()
        print(f"{site.messages:,} messages, killed: {site.killed}")
