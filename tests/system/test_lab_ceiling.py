"""The ceiling in C: the first copy of each packet reaches every client, and is timed."""

import asyncio
import json
import shutil
import struct
import time
from pathlib import Path

import pytest

from bench.bench_lab_ceiling import Program
from bench.programs import compiled
from feedhandler.histogram import Histogram
from feedhandler.ports import free_udp_port
from tests.support.gateway_here import multicast_sender

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
GROUPS = ("239.192.79.1", "239.192.79.2")
WAIT_S = 20.0


def packet(service: int, sequence: int, size: int = 40) -> bytes:
    """Return a UTP-MD packet with only what the program reads: number and service."""
    return struct.pack(">4xI4xH", sequence, service).ljust(size, b"\0")


async def started(program: str, *words: str) -> Program:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *words, stdin=pipe, stdout=pipe)
    return Program(words[0], process)


async def counted(client: Program, wanted: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while int(await client.ask("count")) < wanted:
        assert time.monotonic() < deadline, "packets do not come"
        await asyncio.sleep(0)


async def measured(program: str) -> tuple[dict[str, int], list[dict[str, object]]]:
    """Four packets of one service, each line without one of them, and one of another service."""
    port = free_udp_port()
    endpoints = [f"{group}:{port}" for group in GROUPS]
    gateway = await started(program, "gateway", "127.0.0.1", "2", "1048576", *endpoints)
    made = [gateway]
    try:
        tcp_port = (await gateway.hear()).split()[1]
        clients = [await started(program, "client", tcp_port) for _ in range(2)]
        made += clients
        assert await gateway.hear() == "ready"
        for client in clients:
            assert await client.ask("expect 104:3 107:1") == "ok"
        with multicast_sender() as sender:
            sent = [(0, 104, 1), (1, 104, 1), (0, 104, 2), (1, 104, 3), (0, 104, 3), (1, 104, 4)]
            for line, service, sequence in [*sent, (0, 107, 1)]:
                sender.sendto(packet(service, sequence, 40 + sequence), (GROUPS[line], port))
        for client in clients:
            await counted(client, 5)
        verdicts = [json.loads(await client.ask("verdict")) for client in clients]
        gateway.process.terminate()
        return json.loads(await gateway.hear()), verdicts
    finally:
        for each in made:
            if each.process.returncode is None:
                each.process.kill()
            await each.process.wait()


def test_each_packet_comes_once_whichever_line_lost_it_and_is_timed_as_ours_are(
    tmp_path: Path,
) -> None:
    counts, verdicts = asyncio.run(measured(str(compiled("lab_ceiling", tmp_path))))
    assert counts == {"packets": 5, "duplicates": 2, "drops": 0, "overruns": 0}
    for verdict in verdicts:
        assert (verdict["received"], verdict["body_bytes"]) == (5, 5 * 40 + 1 + 2 + 3 + 4 + 1)
        # Timed are 3 and 4 of the one service, and all of the other.
        assert verdict["count"] == 3
        histogram = Histogram()
        for bound in (verdict["min_ns"], verdict["max_ns"]):
            assert 0 < bound < WAIT_S * 1e9  # type: ignore[operator]
            histogram.record(bound)
        filled = {str(at) for at, count in enumerate(histogram.counts()) if count}
        assert filled <= set(verdict["buckets"])  # type: ignore[call-overload]
        assert sum(verdict["buckets"].values()) == 3  # type: ignore[attr-defined]
