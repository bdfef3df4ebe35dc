"""The commands that run a gateway: exchange, run, subscribe, and the demo, as an operator would."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.config import loopback_config
from feedhandler.config.show import to_toml
from feedhandler.replay.exchange.ledger import read_ledger
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here

TIMEOUT_S = 120
#: One that no other process hears.
EXCHANGE = ("exchange", "--rate", "1000", "--port-base", str(free_addresses.exchange_port()))


def command(*words: str) -> list[str]:
    """The command line of a command of ours."""
    return [sys.executable, "-m", "feedhandler", *words]


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command in the background, ended at the end of the block at the latest."""
    with subprocess.Popen(
        command(*words),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_exchange_sends_a_session_and_keeps_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "sent.ledger"
    words = ["exchange", "--rate", "1000", "--port-base", str(free_addresses.exchange_port(1))]
    words += ["--seconds", "1", "--seed", "3", "--ledger", str(path)]
    done = run_here(*words, "--loss", "10%", "--json")
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    ledger = read_ledger(path)
    assert ledger.feed == load_feed("euronext-utp-md").key
    assert len(ledger.records) == account["messages"] > 0
    assert set(ledger.records["service"].tolist()) <= set(range(101, 108))


def test_an_exchange_of_fix_channels_ends_in_order_when_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "sent.ledger"
    port_base = str(free_addresses.exchange_port(1))
    words = ["--feed", "fix", "--rate", "2000", "--port-base", port_base, "--ledger", str(path)]
    with running("exchange", *words, "--json") as exchange:
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists() or path.stat().st_size < 1_000:
            assert time.monotonic() < deadline, "it does not publish"
            time.sleep(0.01)
        exchange.send_signal(signal.SIGTERM)
        output, errors = exchange.communicate(timeout=TIMEOUT_S)
        assert exchange.returncode == 0, errors
    account = json.loads(output)
    assert account["stopped"]
    assert len(read_ledger(path).records) == account["messages"]
    assert account["next_sequences"] == {
        service: each["messages"] + 1 for service, each in account["by_service"].items()
    }


def whole_demo(*words: str) -> dict[str, Any]:
    """The account of a demo at whose end nothing is lost, wrong or there twice."""
    done = subprocess.run(
        command("demo", *words, "--seconds", "2", "--rate", "3000", "--json"),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    for what in ("lost", "lost_unannounced", "corrupt", "duplicated"):
        assert account[what] == 0, what
    return account


def test_a_demo_gets_back_all_that_both_lines_lose() -> None:
    account = whole_demo("--loop", "asyncio")
    assert account["published"] > 0
    assert account["recovery"]["retransmitted"] > 0
    assert account["refreshed"] > 0
    assert set(account["subscribers"]) == {"euronext.104", "euronext.104.10001", "euronext.#"}


def test_a_demo_of_fix_channels_gets_back_all_that_both_lines_lose() -> None:
    account = whole_demo("--feed", "fix")
    assert account["published"] == 6_000
    assert account["refreshed"] > 0
    lines = account["lines"]
    assert lines["A"]["dropped"] > lines["A"]["together"] == lines["B"]["together"] > 0
    # One datagram the server of Resend Requests does not have, and a refresh heals it; where the
    # gateway finds that server late, the others, too.
    assert account["recovery"]["retransmitted"] <= lines["A"]["together"]
    assert account["recovery"]["refreshes"] > 0
    assert set(account["subscribers"]) == {"fix.1", "fix.1.EQ1001", "fix.#"}


def test_an_interrupted_demo_ends_its_children() -> None:
    with running("demo", "--seconds", "60", "--rate", "3000") as demo:
        deadline = time.monotonic() + TIMEOUT_S
        while len(children := _children_of(demo.pid)) < 5:
            assert time.monotonic() < deadline, "its children do not start"
            time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=TIMEOUT_S)
        assert demo.returncode == 130, errors
        assert "Traceback" not in errors
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    ]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running gateway for the simulated exchange, and that; the URL of its node. Who needs it
    comes last: it runs to the end of the module."""
    port = free_addresses.port()
    path = tmp_path_factory.mktemp("gateway") / "gateway.toml"
    path.write_text(
        to_toml(
            loopback_config(listen=f"127.0.0.1:{port}", port_base=free_addresses.exchange_port())
        )
    )
    with running("run", str(path)) as process:
        assert process.stderr is not None
        assert any(": ready: 7 channels, 14 lines" in line for line in process.stderr)
        with running(*EXCHANGE) as exchange:
            yield f"amqp://127.0.0.1:{port}"
            exchange.send_signal(signal.SIGINT)
            _, errors = exchange.communicate(timeout=TIMEOUT_S)
            assert exchange.returncode == 0, errors
            assert "Traceback" not in errors
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors


def test_subscribe_prints_as_many_messages_as_asked(gateway: str) -> None:
    words = ["subscribe", gateway, "euronext.104.#", "--json", "--count", "50", "--stamp"]
    subscriber = run_here(*words)
    assert subscriber.returncode == 0, subscriber.stderr
    lines = [json.loads(line) for line in subscriber.stdout.splitlines()]
    assert len(lines) == 50
    for line in lines:
        assert {"seq", "type", "symbol", "key", "service", "latency_us"} <= set(line)
        assert line["service"] == 104
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)


@pytest.mark.parametrize("granularity", ["packet", "batch"])
def test_every_granularity_prints_single_messages(gateway: str, granularity: str) -> None:
    words = ["subscribe", gateway, "euronext.#", "--as", granularity, "--json", "--count", "200"]
    subscriber = run_here(*words)
    assert subscriber.returncode == 0, subscriber.stderr
    lines = subscriber.stdout.splitlines()
    assert len(lines) == 200
    assert all("seq" in json.loads(line) for line in lines)


def test_a_signal_ends_a_subscriber_in_good_order(gateway: str) -> None:
    with running("subscribe", gateway, "euronext.104") as subscriber:
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline()
        subscriber.send_signal(signal.SIGTERM)
        _, errors = subscriber.communicate(timeout=TIMEOUT_S)
        assert subscriber.returncode == 0
        assert "Traceback" not in errors


def test_an_address_that_the_node_refuses_is_exit_code_3(gateway: str) -> None:
    done = run_here("subscribe", gateway, "euronext.104?types=nope", "--count", "1")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "types=nope" in done.stderr


def test_the_readmes_subscriber_receives(gateway: str) -> None:
    readme = (CHECKOUT / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]
    program = program.replace("amqp://127.0.0.1:5672", gateway)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as subscriber:
        assert subscriber.stdout is not None
        try:
            line = next(line for line in subscriber.stdout if line.startswith("euronext.104."))
        finally:
            subscriber.kill()
    assert " 230 " in line
