"""A durable queue and a client that is not proton's: rhea, in a process of its own."""

import asyncio
import json
import os
from pathlib import Path

from tests.interop.install import HERE
from tests.support.durable import orders, running
from tests.support.foreign_clients import javascript_command


async def test_rhea_puts_cancels_gives_back_and_takes(tmp_path: Path) -> None:
    command = javascript_command(HERE / "javascript" / "queue.js")
    async with running(orders(tmp_path)) as rig:
        process = await asyncio.create_subprocess_exec(
            *command.words,
            str(rig.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **command.environment},
        )
        out, errors = await asyncio.wait_for(process.communicate(), 120)
        assert errors.decode() == ""
        report = json.loads(out)
        assert (report["accepted"], report["answer"], report["correlation"]) == (
            10,
            "cancelled",
            "c1",
        )
        assert sorted(report["taken"]) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert report["counts"]["5"] == 1
        assert report["counts"]["6"] == 0
        await rig.until(lambda: rig.figure("depth") == 0, "the records")
