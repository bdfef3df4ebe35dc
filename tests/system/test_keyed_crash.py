"""A keyed queue whose producers, consumers and gateway are killed (kill -9) at any moment.

Eight processes send, eight work, and each message has one effect in a store outside, in its key's
order; no key stands still. `KILLS=n MESSAGES=m` say how often and how many (`make crash-keyed`: 300
and 2,000,000), `SEED=s` draws another course.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from feedhandler.keyed.definition import Definition
from tests.support.durable import orders
from tests.support.gateway import Market, start
from tests.support.keyed_client import open_effects

KILLS = int(os.environ.get("KILLS", "4"))
MESSAGES = int(os.environ.get("MESSAGES", "6000"))
CLIENTS = int(os.environ.get("CLIENTS", "8"))
KEYS = 300
#: Without an effect for so long, something stands still.
PATIENCE_S = 120.0
LOOK_S = 0.02
KEY = Definition(fields=("key",))

Process = asyncio.subprocess.Process


class Site:
    """The gateway, its clients, and the store outside."""

    def __init__(self, folder: Path, market: Market, seed: int) -> None:
        self.folder = folder
        self.draw = random.Random(seed)
        self.seed = seed
        queue = orders(folder / "queue", key=KEY, block_bytes=8 << 20)
        config = market.config()
        fields = {name: getattr(config, name) for name in config.__struct_fields__}
        self.config = type(config)(**{**fields, "queues": (queue,)})
        assert config.amqp.address is not None
        self.url = f"amqp://127.0.0.1:{config.amqp.address[1]}"
        self.effects = open_effects(folder)
        self.gateway: Process
        self.clients: dict[str, Process] = {}
        self.killed = {"gateway": 0, "produce": 0, "consume": 0}

    async def open(self) -> None:
        self.gateway = await start(self.config, self.folder / "gateway.toml")
        for number in range(CLIENTS):
            for what in ("produce", "consume"):
                await self.launch(f"{what}-{number}")

    async def launch(self, name: str) -> None:
        """Start a client, again or for the first time."""
        what = name.partition("-")[0]
        more = [MESSAGES // CLIENTS, KEYS, self.seed] if what == "produce" else []
        self.clients[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.keyed_client", what, self.url, str(self.folder),
            name, *map(str, more), stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def kill(self) -> None:
        """Kill somebody, and start it again."""
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

    def check(self) -> None:
        """Each message has one effect, in its key's order."""
        last: dict[tuple[str, str], int] = {}
        count = 0
        rows = self.effects.execute("select key, producer, number from effects order by place")
        seen: set[tuple[str, int]] = set()
        for key, producer, number in rows:
            assert (producer, number) not in seen, f"{producer} {number} twice"
            seen.add((producer, number))
            assert last.get((key, producer), 0) < number, f"{producer} {number} out of order"
            last[key, producer] = number
            count += 1
        assert count == MESSAGES // CLIENTS * CLIENTS


@pytest.mark.timeout(0 if KILLS > 50 else 280)
def test_each_message_has_one_effect_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        with Market(1) as market:
            site = Site(tmp_path, market, seed)
            try:
                await site.open()
                wanted = MESSAGES // CLIENTS * CLIENTS
                for number in range(KILLS):
                    await site.until(wanted * (number + 1) // (KILLS + 2))
                    await site.kill()
                await site.until(wanted)
                site.check()
                site.gateway.terminate()
                assert await asyncio.wait_for(site.gateway.wait(), PATIENCE_S) == 0
            finally:
                await site.close()
            print(f"{wanted:,} messages, killed: {site.killed}")

    asyncio.run(scenario())
