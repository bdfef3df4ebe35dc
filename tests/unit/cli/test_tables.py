"""Tables at all widths: whole figures, or none; completion and help of the commands."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from feedhandler.codecs import list_feeds, load_feed
from feedhandler.demo.view import Row, table
from feedhandler.ops.feeds.listing import _capabilities
from feedhandler.ops.status import channel_table, line_table
from feedhandler.terminal.fitted import FittedTable

ROW = Row(
    service=104,
    packets_per_second=1_234_567.0,
    messages_per_second=7_654_321.0,
    from_a=123_456_789,
    from_b=98_765_432,
    recovered=1_234_567,
    duplicates=87_654_321,
    gaps=4_321,
    p50_ns=250_000.0,
    p99_ns=123_456_000.0,
)
CHANNEL = {
    "service": 104, "quality": "RECOVERING", "next": 123_456_789,
    "packets": 123_456_788, "messages": 987_654_321, "gaps": 4_321, "lost": 5_432,
    "latency_ns": {"p50": 250_000, "p99": 1_250_000},
    "recovery": {"state": "ASKING", "requested": [[123_456_700, 123_456_788]]},
    "lines": {"A": {"packets": 123_456_788}, "B": {"packets": 123_450_000}},
}  # fmt: skip
TABLES = {
    "demo": lambda: table([ROW]),
    "status, channels": lambda: channel_table([CHANNEL]),
    "status, lines": lambda: line_table([CHANNEL]),
    "feeds": lambda: _capabilities([load_feed(name) for name in list_feeds()]),
}


def drawn(made: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(made)
    return console.file.getvalue().splitlines()


def cells(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split()}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_figures_are_wgap_at_every_width(name: str, width: int) -> None:
    whole = cells(drawn(TABLES[name](), 1_000))
    lines = drawn(TABLES[name](), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    figures = {word for word in cells(lines) if word[0].isdigit()}
    assert figures or name == "feeds"
    assert figures <= whole


def test_columns_go_in_the_order_of_their_worth_and_are_named() -> None:
    made = FittedTable(("name",), ("kept", "first to go", "later"), drop_first=("first to go",))
    made.add_row("x", "1,000", "2,000", "3,000")
    assert "2,000" in "".join(drawn(made, 40))
    narrow = drawn(made, 20)
    assert "1,000" in "".join(narrow)
    assert "2,000" not in "".join(narrow)
    assert "(no room for first" in " ".join(narrow)


@pytest.mark.parametrize("command", [[], ["demo"], ["queue", "stat"], ["config", "check"]])
def test_a_short_help_is_the_long_one(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    from feedhandler.cli.app import chosen

    chosen([*command, "-h"])()
    short = capfd.readouterr().out
    chosen([*command, "--help"])()
    assert short == capfd.readouterr().out != ""


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["status", "--json"], ["status"]),
        (["keyed", "put", "x"], ["keyed put"]),
        (["keyed", "--help"], ["keyed"]),
        (["--help"], []),
        (["statsu"], []),
        ([], []),
    ],
)
def test_a_parser_is_made_of_the_command_alone_or_of_all_where_none_is_named(
    words: list[str], commands: list[str]
) -> None:
    from feedhandler.cli import app as cli

    made = cli._narrowed(cli.app, words)
    found = [cli._name_of(each) for each in made.registered_commands]
    for group in made.registered_groups:
        inner = cli._narrowed(cli.app, [str(group.name)]).registered_groups[0].typer_instance
        here = group.typer_instance
        assert here is not None
        assert inner is not None
        parts = [cli._name_of(each) for each in here.registered_commands]
        whole = len(parts) == len(inner.registered_commands)
        found += [str(group.name)] if whole else [f"{group.name} {each}" for each in parts]
    assert found == commands or (not commands and made is cli.app)


def asked(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return what the command prints for a shell that sets the environment variables `given`."""
    from feedhandler.cli.app import chosen

    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        chosen([])
    return capsys.readouterr().out


def completing(words: str, shell: str) -> dict[str, str]:
    """Return the environment variables by which a shell asks to complete a line's last word."""
    return {
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_FEEDHANDLER_COMPLETE": f"complete_{shell}",
    }


def test_a_shell_is_answered_by_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "feedhandler"], capture_output=True, timeout=60, check=False,
        env={**os.environ, **completing("feedhandler dec", "bash")},
    )  # fmt: skip
    assert b"decode" in done.stdout.split()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (completing("feedhandler feeds iex", "zsh"), "iex-deep"),
        (completing("feedhandler decode x.pcap --feed euro", "fish"), "euronext-utp-md"),
        *(({"_FEEDHANDLER_COMPLETE": f"source_{shell}"}, f"complete_{shell}")
          for shell in ("bash", "zsh", "fish")),
    ],
)  # fmt: skip
def test_every_shell_has_its_script_and_its_answers(
    given: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in asked(given, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("feedhandler decode x.pcap --feed iex-t", ["iex-tops"]),
        ("feedhandler replay x.pcap --feed nyse-o", ["nyse-openbook-ultra"]),
        ("feedhandler characterise x.pcap --feed eurone", ["euronext-utp-md"]),
        ("feedhandler lab --feed eurone", ["euronext-utp-md"]),
        ("feedhandler generate --profile mar", ["market"]),
        ("feedhandler demo --loop uv", ["uvloop"]),
        ("feedhandler feeds ch", ["check"]),
        ("feedhandler feeds iex-d", ["iex-deep", "iex-deep-plus"]),
        ("feedhandler feeds iex-deep --j", ["--json"]),
        ("feedhandler feeds check iex-d", ["iex-deep", "iex-deep-plus"]),
        ("feedhandler feeds new x --framing mold", ["moldudp64"]),
        ("feedhandler rec", []),  # the demo's own subscriber is no command
    ],
)
def test_values_are_completed_wherever_they_are_asked_for(
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(completing(words, "bash"), monkeypatch, capsys).split() == offered
