"""The guides' samples, run as they stand in `docs/guides/samples/`, against the node."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from clients_kit import Command, go_command, javascript_command
from node_kit import PATIENCE_S, NodeRig, running

from tests.interop.install import SAMPLES

GUIDES = SAMPLES.parent
ADDRESS = "euronext.104?types=230"


def command_of(language: str) -> Command:
    """How a sample is started."""
    if language == "javascript":
        return javascript_command(SAMPLES / "javascript" / "subscribe.js")
    if language == "go":
        return go_command("subscribe")
    return Command([sys.executable, str(SAMPLES / "python" / "subscribe.py")], {})


every_language = pytest.mark.parametrize("language", ["python", "javascript", "go"])


@contextlib.asynccontextmanager
async def sample(language: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sample that runs while the block does."""
    command = command_of(language)
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, **command.environment}
    process = await asyncio.create_subprocess_exec(
        *command.words, *words, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def spoken(rig: NodeRig, language: str, address: str, count: int) -> list[str]:
    """What the sample prints of a quality message and `count - 1` packets."""
    async with sample(language, rig.url, address, str(count)) as process:
        await rig.until(lambda: rig.node.links == 1, "attached")
        await rig.stream(1, count - 1)
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        await rig.until(lambda: not rig.node.connections, "gone in order")
        assert rig.count("connections_failed") == 0
        return output.decode().splitlines()


@every_language
def test_a_sample_prints_quality_packets_and_orders(language: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            quality, *lines = await spoken(rig, language, ADDRESS, 4)
            assert quality == "quality 104 WAITING: attached"
            packets = [line for line in lines if line.startswith("packet")]
            orders = [line for line in lines if line.startswith("  order")]
            assert packets == [f"packet 104 {n}: 3 messages, 208 bytes" for n in (1, 2, 3)]
            assert len(orders) == 9
            assert all(re.fullmatch(r"  order 100\d \x00 \x00 0 @ 0(\.0\d?)?", o) for o in orders)

    uvloop.run(scenario())


@every_language
def test_a_sample_says_why_it_was_refused(language: str) -> None:
    async def scenario() -> None:
        async with running() as rig, sample(language, rig.url, "euronext.104?as=byte") as process:
            async with asyncio.timeout(PATIENCE_S):
                _, errors = await process.communicate()
            assert process.returncode == 1
            assert "amqp:invalid-field" in errors.decode()

    uvloop.run(scenario())


@every_language
def test_a_guide_shows_its_sample_word_for_word(language: str) -> None:
    page = (GUIDES / f"{language}.md").read_text()
    (file,) = (p for p in (SAMPLES / language).iterdir() if p.stem == "subscribe")
    assert file.read_text() in page
    assert str(Path("samples") / language / file.name) in page
