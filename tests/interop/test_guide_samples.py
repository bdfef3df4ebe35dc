"""The guides' samples, run as they stand in `docs/guides/samples/`, against the node."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.interop.install import SAMPLES
from tests.support.foreign_clients import Command, go_command, javascript_command
from tests.support.node import PATIENCE_S, NodeRig, running
from tests.support.security import SECRET, Certificates, gate, user

pytestmark = pytest.mark.gateways_loop

GUIDES = SAMPLES.parent
ADDRESS = "euronext.104?types=230"


def command_of(language: str, name: str = "subscribe") -> Command:
    """Return the command that starts a sample."""
    if language == "javascript":
        return javascript_command(SAMPLES / "javascript" / f"{name}.js")
    if language == "go":
        return go_command(name)
    return Command([sys.executable, str(SAMPLES / "python" / f"{name}.py")], {})


every_language = pytest.mark.parametrize("language", ["python", "javascript", "go"])


@contextlib.asynccontextmanager
async def sample(
    language: str, *words: str, name: str = "subscribe"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sample that runs while the block does."""
    command = command_of(language, name)
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
    """Return the lines that the sample prints of a quality message and `count - 1` packets."""
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
async def test_a_sample_prints_quality_packets_and_orders(language: str) -> None:
    async with running() as rig:
        quality, *lines = await spoken(rig, language, ADDRESS, 4)
        assert quality == "quality 104 WAITING: attached"
        packets = [line for line in lines if line.startswith("packet")]
        orders = [line for line in lines if line.startswith("  order")]
        assert packets == [f"packet 104 {n}: 3 messages, 208 bytes" for n in (1, 2, 3)]
        assert len(orders) == 9
        assert all(re.fullmatch(r"  order 100\d \x00 \x00 0 @ 0(\.0\d?)?", o) for o in orders)


@every_language
async def test_a_sample_says_why_it_was_refused(language: str) -> None:
    async with running() as rig, sample(language, rig.url, "euronext.104?as=byte") as process:
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await process.communicate()
        assert process.returncode == 1
        assert "amqp:invalid-field" in errors.decode()


@every_language
async def test_a_sample_resumes_by_tls_with_a_password(language: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    door = gate(user("ann", "euronext.104"), tls=certificates.issue("localhost"))
    password, tag = tmp_path / "password.txt", tmp_path / "tag.txt"
    password.write_text(SECRET + "\n")
    async with running(gate=door, history_bytes=1 << 20) as rig:
        words = [f"amqps://ann@localhost:{rig.tls_port}", "euronext.104?quality=0"]
        words += [certificates.ca, str(password), str(tag), "3"]

        async def spoken(*packets: int) -> None:
            before = rig.count("links_opened")
            async with sample(language, *words, name="resume") as process:
                await rig.until(lambda: rig.count("links_opened") > before, "attached")
                await rig.stream(*packets)
                async with asyncio.timeout(PATIENCE_S):
                    output, errors = await process.communicate()
                assert process.returncode == 0, errors.decode()
                said.extend(output.decode().splitlines())
            await rig.until(lambda: not rig.node.connections, "gone")

        said: list[str] = []
        await spoken(1, 5)
        await rig.stream(6, 6)
        await spoken(7, 7)
        assert said == [f"packet 104 {number}" for number in range(1, 7)]
        password.write_text("another one")
        async with sample(language, *words, name="resume") as process:
            async with asyncio.timeout(PATIENCE_S):
                _, errors = await process.communicate()
            assert process.returncode == 1
            assert "no connection" in errors.decode()


@every_language
def test_a_guide_shows_how_to_resume_word_for_word(language: str) -> None:
    (file,) = (SAMPLES / ("go-resume" if language == "go" else language)).glob("resume.*")
    page = (GUIDES / f"{language}.md").read_text()
    assert file.read_text() in page
    assert file.relative_to(GUIDES).as_posix() in page


@every_language
def test_a_guide_shows_its_sample_word_for_word(language: str) -> None:
    page = (GUIDES / f"{language}.md").read_text()
    (file,) = (p for p in (SAMPLES / language).iterdir() if p.stem == "subscribe")
    assert file.read_text() in page
    assert str(Path("samples") / language / file.name) in page
