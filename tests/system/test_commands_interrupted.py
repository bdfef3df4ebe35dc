"""Ctrl-C at whatever moment of a command's first tenths of a second: the exit code that it has at
any later time, and no traceback. So it is while a named pipe has nobody at its other end.

The moments are those at which the interpreter has just loaded a module: `-X importtime` tells each
on stderr. What lies before the first module of ours is the interpreter's own start.
"""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.__main__ import interrupted_code
from feedhandler.config import loopback_config
from feedhandler.config.show import to_toml
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here
from tests.support.fixcast import definition
from tests.support.processes import opens_pipe

TIMEOUT_S = 120
#: Modules that a command loads after the first of ours, or more.
MODULES_LEAST = 300
#: What a command may say when it had begun its work.
COMMON = re.compile(r": (ready: |(sending|sent|listening) )|^feedhandler: lost amqp://\S+: closed$")
#: Commands that do not end by themselves, so that a signal always meets them.
COMMANDS = ("subscribe", "run", "decode", "exchange", "capture", "replay")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are taken, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def words(request: pytest.FixtureRequest, silent_port: int, tmp_path: Path) -> tuple[str, ...]:
    """The command named by the parameter, with something to wait for."""
    if request.param == "subscribe":
        return ("subscribe", f"amqp://127.0.0.1:{silent_port}", "euronext.104")
    if request.param == "run":
        config = tmp_path / "gateway.toml"
        config.write_text(
            to_toml(loopback_config(services=(104,), port_base=free_addresses.exchange_port()))
        )
        return ("run", str(config))
    if request.param == "decode":
        path, unread = tmp_path / "day.pcap", tmp_path / "unread"
        CaptureWriter(path).close()
        os.mkfifo(unread)
        return ("decode", str(path), "--as", "mbo", "--out", str(unread))
    if request.param == "replay":
        path = tmp_path / "slow.pcap"
        with CaptureWriter(path) as writer:
            for hour in range(2):
                writer.write(hour * 3_600 * 10**9, "239.1.1.1", 5_001, b"payload")
        return ("replay", str(path), "--line-a", f"{free_addresses.group()}:5001")
    if request.param == "capture":
        return (
            "capture",
            "--group",
            f"{free_addresses.group()}:5001",
            "--out",
            str(tmp_path / "x.pcap"),
        )
    return (
        "exchange",
        "--no-servers",
        "--rate",
        "100",
        "--port-base",
        str(free_addresses.exchange_port()),
    )


#: Moments of each command: at the first of our modules, and at random ones, more in `make hunt`.
MOMENTS = 8 if os.environ.get("FRESH") else 2


def moment(seed: int, command: str, turn: int) -> tuple[signal.Signals, int]:
    """A signal, and after how many modules it is sent."""
    chance = random.Random(f"{seed}/{command}/{turn}")
    position = chance.randrange(MODULES_LEAST) if turn else 0
    return chance.choice((signal.SIGINT, signal.SIGTERM)), position


@pytest.mark.parametrize("turn", range(MOMENTS))
@pytest.mark.parametrize("words", COMMANDS, indirect=True)
def test_an_interrupt_while_a_command_loads_is_an_orderly_end(
    words: tuple[str, ...], turn: int, seed: int
) -> None:
    number, position = moment(seed, words[0], turn)
    command = [sys.executable, "-X", "importtime", "-m", "feedhandler", *words]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr)
            # The last line before the guard stands, then so many further ones.
            guarded = itertools.dropwhile(lambda line: not line.endswith(" | signal\n"), lines)
            reached = list(itertools.islice(guarded, position + 2))
            assert reached, "no module of ours"
            process.send_signal(number)
            rest = "".join(lines)  # by the same reader, which may have the half of a line
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
    others = [line for line in rest.splitlines() if not line.startswith("import time:")]
    job = interrupted_code(words) != ExitCode.OK
    assert process.returncode == (ExitCode.INTERRUPTED if job else ExitCode.OK), rest
    assert [line for line in others if line == "feedhandler: interrupted"] == others[:job]
    assert not [line for line in others[job:] if not COMMON.search(line)]


#: Commands that open a named pipe, in or out, and go on in a loop that has signals of its own.
WITH_PIPES = {
    "keyed put": "keyed put amqp://127.0.0.1:1 orders PIPE",
    "overlay send": "overlay send TREE PIPE",
    "fixcast receive": "fixcast receive CHANNELS --out PIPE",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", WITH_PIPES)
def test_a_signal_ends_a_command_whose_named_pipe_has_nobody_at_its_other_end(
    tmp_path: Path, command: str, number: int
) -> None:
    pipe, tree, channels = (tmp_path / each for each in ("pipe", "tree.toml", "channels.toml"))
    os.mkfifo(pipe)
    channels.write_text(definition())
    port = str(free_addresses.port())
    plan = ("--receivers", "4", "--depth", "2", "--fan-out", "2", "--port", port)
    assert run_here("overlay", "plan", str(tree), *plan).returncode == 0
    files = {"PIPE": pipe, "TREE": tree, "CHANNELS": channels}
    words = [str(files.get(word, word)) for word in WITH_PIPES[command].split()]
    with subprocess.Popen(
        [sys.executable, "-m", "feedhandler", *words],
        cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not opens_pipe(process.pid):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.01)
                assert process.returncode is None, process.communicate()
                assert time.monotonic() < deadline, "it never opened the pipe"
            process.send_signal(number)
            out, wrong = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    job = interrupted_code(words) != ExitCode.OK
    assert process.returncode == (ExitCode.INTERRUPTED if job else ExitCode.OK)
    assert (out, wrong) == ("", "feedhandler: interrupted\n" if job else "")
