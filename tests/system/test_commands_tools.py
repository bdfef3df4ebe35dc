"""The commands that need no gateway: what they print, for people and for programs."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feedhandler.replay.captures.reading import Capture
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here
from tests.support.replay import joined


def command(*words: str, cwd: Path = CHECKOUT) -> list[str]:
    """The command line of a command of ours."""
    return [sys.executable, "-m", "feedhandler", *words]


def output(*words: str, code: int = 0) -> str:
    """Run the command, require the exit code `code`, and return its standard output."""
    done = run_here(*words)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture
def iex(captures: Path) -> Path:
    """The real IEX capture."""
    return next((captures / "iex").glob("*.pcap.gz"))


def test_config_check_says_ok() -> None:
    assert "ok: feed euronext-utp-md, 7 channels, 14 lines" in output(
        "config", "check", str(CHECKOUT / "docs" / "gateway.toml")
    )


def test_config_show_prints_everything_in_force(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text(
        '[[channel]]\nservice = 1\n[[channel.line]]\nname = "A"\ngroup = "239.1.1.1"\nport = 5001\n'
    )
    shown = tomllib.loads(output("config", "show", str(path)))
    assert shown["amqp"]["listen"] == "127.0.0.1:5672"
    assert shown["channel"][0]["line"][0]["port"] == 5001
    assert shown["arbitration"]["gap_wait_us"] == 10_000


def test_config_show_makes_a_file_to_start_from(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text(output("config", "show", "--comments"))
    assert "# " in path.read_text()
    assert "ok" in output("config", "check", str(path))


def test_feeds_shows_messages_and_fields() -> None:
    text = output("feeds", "euronext-utp-md")
    assert "symbol_index" in text
    layouts = [
        json.loads(line) for line in output("feeds", "euronext-utp-md", "--json").splitlines()
    ]
    assert {240, 230, 140} <= {layout["type"] for layout in layouts}


def test_doctor_looks_at_everything_a_feed_host_needs() -> None:
    done = run_here("doctor", "--json")
    assert done.returncode in (0, 1)
    checks = {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert {
        "compiled modules",
        "processors",
        "receive buffer",
        "interface 127.0.0.1",
        "multicast on 127.0.0.1",
        "clock",
        "privileges",
        "overlay hooks",
        "file descriptors",
    } <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")
    failed = any(check["status"] == "fail" for check in checks.values())
    assert done.returncode == (1 if failed else 0)


def test_decode_prints_a_json_object_for_every_message(iex: Path) -> None:
    lines = output("decode", str(iex), "--feed", "iex-deep", "--json").splitlines()
    assert len(lines) == 48_325
    first = json.loads(lines[0])
    assert {"seq", "type", "symbol", "service", "captured_ns"} <= set(first)
    numbers = [json.loads(line)["seq"] for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_decode_shows_only_what_was_asked_for(iex: Path) -> None:
    words = ["decode", str(iex), "--feed", "iex-deep", "--json"]
    some = [json.loads(line) for line in output(*words, "--limit", "2000").splitlines()]
    assert len(some) == 2000
    symbol = next(message["symbol"] for message in some if message["symbol"])
    kind = next(message["type"] for message in some if message["symbol"] == symbol)
    chosen = output(*words, "--symbol", symbol, "--types", str(kind), "--limit", "5").splitlines()
    assert chosen
    for line in chosen:
        message = json.loads(line)
        assert (message["symbol"], message["type"]) == (symbol, kind)


def test_decode_prints_a_table_for_people(iex: Path) -> None:
    lines = output("decode", str(iex), "--feed", "iex-deep", "--limit", "3").splitlines()
    assert len(lines) == 3
    assert all("=" in line for line in lines)


def test_a_capture_that_is_cut_short_is_read_to_its_last_whole_record(
    iex: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.pcap.gz"
    path.write_bytes(iex.read_bytes()[:100_000])
    done = run_here("decode", str(path), "--feed", "iex-deep")
    assert done.returncode == 1
    assert done.stdout
    assert "cut short after" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_a_command_quietly(iex: Path) -> None:
    with subprocess.Popen(
        command("decode", str(iex), "--feed", "iex-deep", "--json"),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=200) == 0


def test_replay_sends_a_capture_and_gives_an_account(iex: Path) -> None:
    account = json.loads(
        output(
            *("replay", str(iex), "--feed", "iex-deep", "--speed", "flat", "--loss", "5%"),
            *("--line-a", f"{free_addresses.group()}:5001"),
            *("--line-b", f"{free_addresses.group()}:5001"),
            *("--spare-shared", "--seed", "7", "--json"),
        )
    )
    datagrams = sum(1 for _ in Capture(iex))
    assert account["complete"]
    assert account["datagrams"] == datagrams
    for line in account["lines"]:
        assert line["sent"] == datagrams - line["dropped"]
        assert 0 < line["dropped"] < datagrams * 0.1


def test_a_signal_ends_a_replay_in_good_order(iex: Path) -> None:
    group = free_addresses.group()
    with subprocess.Popen(
        command("replay", str(iex), "--line-a", f"{group}:5002", "--interface", "127.0.0.1"),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_until_it_sends(group, 5002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0
        assert "Traceback" not in errors


def _wait_until_it_sends(group: str, port: int) -> None:
    with joined(group, port) as receiver:
        assert receiver.recv(65_536)
