"""Commands whose standard streams are closed, full, or no longer read: exit code and messages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedhandler.config import loopback_config
from feedhandler.config.show import to_toml
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

TIMEOUT_S = 60
CLOSED = "bad file descriptor"


def started(words: str, redirections: str) -> subprocess.Popen[str]:
    """Start the command in a shell with these redirections."""
    line = f"exec {sys.executable} -m feedhandler {words} {redirections}"
    return subprocess.Popen(
        ["sh", "-c", line], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(words: str, redirections: str) -> tuple[int, str, str]:
    """Run the command to its end; return exit code, stdout and stderr."""
    with started(words, redirections) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("words", "redirections", "code", "said"),
    [
        ("--version", ">&-", 2, CLOSED),
        ("--help", ">&-", 2, CLOSED),
        ("feeds", ">&-", 2, CLOSED),
        ("config show", ">&-", 2, CLOSED),
        ("config show", ">/dev/full", 70, "no space left on device"),
        ("status tcp://127.0.0.1:PORT", ">&-", 3, "no gateway at"),
        ("status tcp://127.0.0.1:PORT", "<&- >&- 2>&-", 3, ""),
        ("user ann", "<&-", 2, CLOSED),
        ("fix check -", "<&-", 2, CLOSED),
        ("keyed put amqp://127.0.0.1:PORT orders -", "<&-", 3, "cannot connect"),
        ("subscribe amqp://127.0.0.1:PORT x --count 1", "<&-", 3, "cannot connect"),
    ],
)  # fmt: skip
def test_a_closed_stream_is_no_internal_error_and_hides_no_exit_code(
    words: str, redirections: str, code: int, said: str
) -> None:
    done = ended(words.replace("PORT", str(free_addresses.port())), redirections)
    assert done[:2] == (code, ""), done
    assert said in done[2]
    assert done[2].count("\n") == bool(said)


def test_without_a_stderr_messages_are_lost_and_not_among_the_results() -> None:
    assert ended("nope", "2>&-") == (2, "", "")
    code, out, _ = ended("--version", "2>&-")
    assert (code, out[:12]) == (0, "feedhandler ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_gateway_without_standard_streams_ends_in_order(closed: str, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    base = free_addresses.exchange_port()
    config.write_text(to_toml(loopback_config(services=(104,), port_base=base)))
    with started(f"run {config}", closed) as process:
        try:
            assert process.stderr is not None
            ready = process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert "ready: " in ready
    assert process.returncode == 0, rest


@pytest.mark.parametrize(
    "words", ["--help", "config show", "feeds", "feeds iex-deep", "doctor", "demo --help"]
)
def test_a_reader_that_goes_away_ends_a_command_quietly(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "feedhandler", *words.split()], cwd=CHECKOUT, stdout=out,
            stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
