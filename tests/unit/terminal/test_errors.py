"""Exit codes and one-line errors, whatever a command's work raises."""

import asyncio
import errno
import importlib
import inspect
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import feedhandler
from feedhandler.__main__ import INTERRUPTED, UNTIL_STOPPED, interrupted_code
from feedhandler.cli import app as cli
from feedhandler.cli import replay as cli_replay
from feedhandler.codecs.errors import ConfigError, FeedhandlerError, PeerError, UsageError
from feedhandler.terminal.console import (
    ENDING_SIGNALS,
    ExitCode,
    HostFault,
    host_faults,
    interrupt,
    run_async,
    run_guarded,
    signal_handlers,
)
from tests.support.checkout import CHECKOUT

COMMANDS = [
    "demo",
    "run",
    "exchange",
    "replay",
    "decode",
    "subscribe",
    "feeds",
    "status",
    "control",
    "doctor",
    "config check",
    "config show",
]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), ExitCode.USAGE),
        (UsageError("wrong", "do right"), ExitCode.USAGE),
        (PeerError("gone"), ExitCode.PEER),
        (FeedhandlerError("odd"), ExitCode.FOUND),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), ExitCode.PEER),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.pcap"), ExitCode.USAGE),
        (OSError(errno.EADDRINUSE, "Address already in use"), ExitCode.USAGE),
        (PermissionError(errno.EACCES, "Permission denied", "x.pcap"), ExitCode.USAGE),
        (OSError(errno.EROFS, "Read-only file system", "x.pcap"), ExitCode.USAGE),
        (OSError(errno.ENOSPC, "No space left on device", "x.csv"), ExitCode.BUG),
        (OSError(errno.EDQUOT, "Error writing bytes to file. Detail: [errno 122]"), ExitCode.BUG),
        (HostFault("no space left on device"), ExitCode.BUG),
        (ValueError("a bug\nin two lines"), ExitCode.BUG),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert run_guarded(work) == code
    text = capsys.readouterr().err
    assert text.startswith("feedhandler: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "x.ledger"),
            ExitCode.BUG,
            "x.ledger: no space left on device (make room there, or name another path)",
        ),
        (OSError("odd"), ExitCode.BUG, "odd"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), ExitCode.PEER, "[Errno 104] reset"),
        (ConfigError("wrong"), ExitCode.USAGE, "wrong"),
    ],
)
def test_once_work_has_begun_the_hosts_failure_is_not_the_operators_mistake(
    error: Exception, code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        with host_faults():
            raise error

    assert run_guarded(work) == code
    assert capsys.readouterr().err == f"feedhandler: {reason}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("generate --out x.pcap", 130),
        ("decode x.pcap", 130),
        ("characterise x.pcap --feed iex-deep --out x", 130),
        ("characterise x --feed iex-deep --out x --once", 130),
        ("characterise x --feed iex-deep --out x --follow", 0),
        ("characterise x --feed iex-deep --out x --follow --once", 130),
        ("pipeline x.pcap --feed iex-deep --lake x", 130),
        ("lab --out x", 130),
        ("demo", 130),
        ("run gateway.toml", 0),
        ("exchange --seconds 10", 0),
        ("capture --group 239.1.1.1:5001", 0),
        ("subscribe amqp://127.0.0.1 # --count 10", 0),
        ("replay x.pcap --as-recorded", 0),
        ("replay x.pcap --as-recorded --write=y.pcap", 130),
        ("replay x.pcap --as-recorded --dry-run", 130),
        ("status", 130),
        ("status --watch", 0),
        ("keyed work amqp://127.0.0.1 orders -- ./book.sh", 0),
        ("keyed put amqp://127.0.0.1 orders -", 130),
        ("fixcast publish channels.toml -", 0),
        ("fixcast keys serve entitlement.toml", 0),
        ("fixcast keys fetch 127.0.0.1:1 --follow", 0),
        ("fixcast keys new keys one", 130),
        ("overlay echo 127.0.0.1:6001", 0),
        ("overlay measure", 130),
        ("", 130),
    ],
)
def test_a_signal_is_the_usual_end_of_what_goes_on_and_too_early_for_a_job(
    words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert interrupted_code(words.split()) == code
    assert run_guarded(work, code) == code
    assert capsys.readouterr().err == ("feedhandler: interrupted\n" if code else "")


def test_the_readme_and_the_help_tell_every_exit_code() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", readme, re.MULTILINE)}
    helped = {int(code) for code in re.findall(r"^  (\d+) ", cli.EXIT_CODES, re.MULTILINE)}
    assert table == helped == {*ExitCode}
    assert INTERRUPTED == ExitCode.INTERRUPTED


def test_the_readme_and_the_help_name_every_command_that_a_signal_ends_in_order() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    (row,) = re.findall(r"^\| 0 \|.*$", readme, re.MULTILINE)
    shown = {*UNTIL_STOPPED} - {"ledger-client"}
    assert shown <= {*re.findall(r"`([^`]+)`", row)}
    assert shown <= {*re.split(r",\s+|:\s+|\n\s*", cli.EXIT_CODES)}


def test_a_bug_shows_its_traceback_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> int:
        raise ValueError("a bug")

    monkeypatch.setenv("FEEDHANDLER_DEBUG", "1")
    with pytest.raises(ValueError, match="a bug"):
        run_guarded(work)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (PeerError("gone in the night"), ExitCode.PEER, "gone in the night"),
        (OSError(errno.ENODEV, "No such device"), ExitCode.BUG, "no such device"),
    ],
)
@pytest.mark.parametrize("loop_kind", ["uvloop", "asyncio"])
def test_an_exception_in_a_callback_ends_a_command_with_one_line(
    loop_kind: str, error: Exception, code: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    async def work(stop: asyncio.Event) -> int:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.wait_for(stop.wait(), 60)
        return ExitCode.OK

    assert run_async(work, loop_kind) == code
    assert capfd.readouterr().err == f"feedhandler: {reason}\n"


@pytest.mark.parametrize("loop_kind", ["uvloop", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_a_command_to_finish(loop_kind: str, number: signal.Signals) -> None:
    async def work(stop: asyncio.Event) -> int:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 60)
        return ExitCode.OK

    before = [signal.getsignal(each) for each in ENDING_SIGNALS]
    assert run_async(work, loop_kind) == ExitCode.OK
    assert [signal.getsignal(each) for each in ENDING_SIGNALS] == before


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_ends_work_without_a_loop(number: signal.Signals) -> None:
    def work() -> int:
        os.kill(os.getpid(), number)
        pytest.fail("not interrupted")

    with signal_handlers(interrupt):
        assert run_guarded(work) == ExitCode.INTERRUPTED


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.chosen(["--version"])() == ExitCode.OK
    assert capsys.readouterr().out == f"feedhandler {feedhandler.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.chosen([*command.split(), "--help"])() == ExitCode.OK
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"feedhandler {command}" in text


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("demo", "demo.showing"), ("exchange", "ops.exchange"), ("replay", "ops.replay.playing"),
        ("decode", "ops.decode"), ("subscribe", "ops.subscribe"), ("status", "ops.status"),
    ],
)  # fmt: skip
def test_every_option_of_the_work_can_be_given_on_the_command_line(
    command: str, module: str
) -> None:
    options = importlib.import_module(f"feedhandler.{module}").Options
    where = cli_replay if command == "replay" else cli
    given = re.findall(r"\b(\w+)=", inspect.getsource(getattr(where, command)))
    assert not set(options.__struct_fields__) - set(given)


def test_no_arguments_show_the_commands_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.chosen([])() == ExitCode.OK
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert command.split()[0] in text
    assert "Exit codes:" in text


def options_of(parser: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every option of every command, behind the words that begin the command."""
    for name, command in getattr(parser, "commands", {}).items():
        yield from options_of(command, (*path, name))
    yield from ((path, each) for each in parser.params if each.opts[0].startswith("--"))


OPTIONS = list(options_of(typer.main.get_command(cli.app)))
FLOATS = [(path, each.opts[0]) for path, each in OPTIONS if "float" in each.type.name]


@pytest.mark.parametrize(("path", "option"), FLOATS)
def test_no_option_takes_a_number_that_is_none(
    path: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("nan", "inf", "-inf"):
        assert cli.chosen([*path, option, text])() == ExitCode.USAGE
        said = capsys.readouterr().err
        assert f"'{option}'" in said
        assert re.search(r"is no finite number|is not in the range", said)
    assert len(FLOATS) > 20


def test_help_names_what_an_option_takes_and_no_function() -> None:
    for _, option in OPTIONS:
        assert option.metavar or not hasattr(option.type, "func"), option.opts
        wide = isinstance(option.default, int) and option.default > 1_000_000
        assert not wide or isinstance(option.show_default, str), option.opts
