"""The tutorial (`docs/tutorial.md`), as it stands there: its files, its commands, in its order."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here

PAGE = (CHECKOUT / "docs" / "tutorial.md").read_text()
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def page() -> str:
    """The page, with addresses that no other test has."""
    base = free_addresses.exchange_port()
    moved = {30_000 + number: base + number for number in (1, 2, 104, 1104, 2104, 3104)}
    moved |= {5672: free_addresses.port(), 5572: free_addresses.port()}
    text = PAGE.replace("feedhandler exchange", f"feedhandler exchange --port-base {base}")
    return re.sub(r"\b(\d{4,5})\b", lambda m: str(moved.get(int(m[1]), m[1])), text)


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def words_of(page: str, command: str) -> list[str]:
    """The page's command that begins so, as this Python runs it."""
    (line,) = {
        line for block in blocks(page, "sh") for line in block.splitlines()
        if line.startswith(command)
    }  # fmt: skip
    return [sys.executable, "-m", *shlex.split(line)]


@contextlib.contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in the background, which Ctrl-C ends in good order."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors
        finally:
            process.kill()


def ready(gateway: subprocess.Popen[str]) -> None:
    """Wait until the gateway says so."""
    assert gateway.stderr is not None
    assert any(": ready: 1 channels, 2 lines" in line for line in gateway.stderr)


def ended(words: list[str], folder: Path, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command that ends by itself, with one of these exit codes; return what it prints."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode in codes, done.stderr
    return done.stdout


def states(page: str, folder: Path, until: str) -> set[str]:
    """The states that the page's subscriber is told, up to the first of this one."""
    seen: set[str] = set()
    with running([*words_of(page, "feedhandler subscribe"), "--json"], folder) as subscriber:
        assert subscriber.stdout is not None
        for line in subscriber.stdout:
            message = json.loads(line)
            if "state" in message:
                seen.add(message["state"])
                if message["state"] == until:
                    break
    return seen


def test_a_reader_who_follows_the_page_sees_what_it_says(page: str, tmp_path: Path) -> None:
    plain, servers, more, refreshes = blocks(page, "toml")
    (program,) = blocks(page, "python")
    # The page leaves the node where it is by default.
    port = re.search(r"amqp://(127.0.0.1:\d+)", page)
    assert port is not None
    node = f'\n[amqp]\nlisten = "{port[1]}"\n'
    config = tmp_path / "gate.toml"
    config.write_text(plain + node)
    (tmp_path / "quotes.py").write_text(program)
    ended(words_of(page, "feedhandler config check"), tmp_path)
    with running(words_of(page, "feedhandler exchange"), tmp_path):
        with running(words_of(page, "feedhandler run"), tmp_path) as gateway:
            ready(gateway)
            assert "RECOVERING" not in states(page, tmp_path, "STALE")
        healed = plain.replace("[[channel]]", f"{servers}\n[[channel]]", 1)
        healed = healed.replace("service = 104\n", f"service = 104\n{more}")
        config.write_text(f"{healed}\n{refreshes}{node}")
        with running(words_of(page, "feedhandler run"), tmp_path) as gateway:
            ready(gateway)
            states(page, tmp_path, "RECOVERING")
            output = ended([sys.executable, "quotes.py"], tmp_path)
            orders = re.findall(r"^euronext\.104\.\d+ \d+ .*price=", output, re.M)
            assert len(orders) == 100, output[:500]
            watch = words_of(page, "feedhandler status")
            endpoint = re.search(r'bind = "(.*?)"', plain)
            assert endpoint is not None
            asked = [word for word in watch if word != "--watch"]
            # 1 while a channel lacks something, which may be at any moment.
            assert "104" in ended([*asked, endpoint[1]], tmp_path, codes=(0, 1))


def test_sessions_are_made_and_read_without_an_exchange(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def printed(command: str) -> str:
        done = run_here(*words_of(page, command)[3:])
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed("feedhandler generate")
    assert printed("feedhandler decode").count("order") >= 3
    printed("feedhandler characterise")
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000
