"""Workers and producers that are stopped (SIGSTOP) and wake up when others have taken over."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from feedhandler import keyed
from feedhandler.keyed.definition import Definition
from tests.support.durable import QueueRig, orders, running
from tests.support.keyed_client import open_effects
from tests.support.node import in_thread

KEY = Definition(fields=("key",), timeout_ms=200)
SECONDS = 60
#: A worker that waits in its first message for a word, and then has its effect, if it may.
WORKER = """
import asyncio, sys
from pathlib import Path
from feedhandler import keyed
from tests.support import keyed_client

async def main(url, folder):
    database = keyed_client.open_effects(folder)

    async def handler(message):
        (folder / "begun").touch()
        await asyncio.to_thread((folder / "go").read_text)
        try:
            keyed_client.effect(database, message)
        finally:
            (folder / "woken").touch()

    async with keyed.consume(url, "orders", handler) as work:
        await work.wait()

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""
#: A producer that waits between its messages for a word.
PRODUCER = """
import asyncio, sys
from pathlib import Path
from feedhandler import PeerError, keyed

async def main(url, folder):
    async with keyed.producer(url, "orders", id="p", epoch=1) as put:
        await put.put(b'{"key": "a", "p": "p", "n": 1}')
        (folder / "begun").touch()
        await asyncio.to_thread((folder / "go").read_text)
        try:
            await put.put(b'{"key": "a", "p": "p", "n": 2}')
        except PeerError as error:
            (folder / "refused").write_text(error.message)

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


async def child(text: str, rig: QueueRig, folder: Path) -> asyncio.subprocess.Process:
    """A process that waits in its work, and is stopped there."""
    os.mkfifo(folder / "go")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, f"amqp://127.0.0.1:{rig.port}", str(folder)
    )
    await rig.until((folder / "begun").exists, "the child's work")
    process.send_signal(signal.SIGSTOP)
    return process


async def wake(process: asyncio.subprocess.Process, folder: Path) -> None:
    """Let it go on."""
    process.send_signal(signal.SIGCONT)
    await in_thread((folder / "go").write_text, "now")


async def test_a_worker_that_wakes_up_too_late_has_no_effect(tmp_path: Path) -> None:
    async with running(orders(tmp_path / "queue", key=KEY)) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        effects = open_effects(tmp_path)
        async with keyed.producer(url, "orders") as put:
            await put.put(b'{"key": "a", "p": "p", "n": 1}')
        slow = await child(WORKER, rig, tmp_path)
        fences = []

        async def handler(message: keyed.Message) -> None:
            fences.append(message.fence)
            effects.execute("replace into fences values ('a', ?)", (message.fence,))
            effects.execute("insert into effects (token, key) values (?, 'a')", (message.token,))

        async with keyed.consume(url, "orders", handler):
            await rig.until(lambda: rig.figure("delivered") == 1, "the other's work")
        await wake(slow, tmp_path)
        await rig.until((tmp_path / "woken").exists, "the awakening")
        await rig.until(lambda: rig.figure("stale") == 1, "what it says")
        slow.kill()
        await slow.wait()
        assert effects.execute("select count(*) from effects").fetchone()[0] == 1
        assert effects.execute("select fence from fences").fetchall() == [(fences[0],)]
        effects.close()


async def test_a_producer_that_wakes_up_replaced_puts_nothing(tmp_path: Path) -> None:
    async with running(orders(tmp_path / "queue", key=KEY)) as rig:
        old = await child(PRODUCER, rig, tmp_path)
        async with keyed.producer(f"amqp://127.0.0.1:{rig.port}", "orders", id="p", epoch=2) as put:
            await put.put(b'{"key": "a", "p": "p", "n": 2}')
        await wake(old, tmp_path)
        async with asyncio.timeout(SECONDS):
            await old.wait()
        assert "is over" in (tmp_path / "refused").read_text()
        assert rig.figure("depth") == 2
