"""`feedhandler overlay` as a user runs it: a whole tree on loopback, its end, its complaints."""

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedhandler.cli import chosen
from feedhandler.ops.console import run_command
from feedhandler.overlay.topology_file import read_topology

CHECKOUT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
MESSAGES = 300
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def overlay(*words: object) -> list[str]:
    return [sys.executable, "-m", "feedhandler", "overlay", *map(str, words)]


#: Ports below those that the kernel gives out by itself; each process of the tests has its own.
PORTS = itertools.count(10_000 + os.getpid() % 200 * 100)


def free_ports(count: int) -> int:
    """The first of so many ports that nobody has, or has had, here."""
    while (first := next(PORTS)) < 32_000:
        for _ in range(count - 1):
            next(PORTS)
        try:
            for port in range(first, first + count):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no ports")


def planned(path: Path, *more: object) -> dict[str, Any]:
    words = ["plan", path, "--receivers", 4, "--depth", 2, "--fan-out", 2, "--port", free_ports(7)]
    done = subprocess.run(
        overlay(*words, "--json", *more), cwd=CHECKOUT, capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A member's process, once it is at its address."""
    process = subprocess.Popen(
        overlay(*words), cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert " is at 127.0.0.1:" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
    """Stop a process; its exit code and what it printed."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output


def done_here(words: list[str]) -> int:
    """Run a command in this process; its exit code. Signals are whose they were afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        return run_command(lambda: chosen(words))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_tree_on_loopback_brings_each_message_once_in_order(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    assert planned(tree)["goodput"] == 0.5
    assert stat.S_IMODE(tree.stat().st_mode) == 0o600
    lines = "".join(f"message {n}\n" for n in range(1, MESSAGES + 1))
    receive = ("receive", tree, "receiver-1", "--json", "--count", MESSAGES)
    with (
        running("proxy", tree, "proxy-0-0") as proxy,
        running("proxy", tree, "proxy-0-1", "--json") as second,
        running(*receive) as receiver,
        running("receive", tree, "receiver-3") as other,
    ):
        done = subprocess.run(
            overlay("send", tree, "-", "--rate", 2_000, "--json"), cwd=CHECKOUT, input=lines,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sent"] == MESSAGES
        output, _ = receiver.communicate(timeout=TIMEOUT_S)
        assert receiver.returncode == 0
        *events, end = [json.loads(line) for line in output.splitlines()]
        payloads = [bytes.fromhex(each["payload"]).decode() for each in events]
        assert payloads == lines.splitlines()
        assert [each["id"] for each in events] == list(range(1, MESSAGES + 1))
        assert all(each["released_ns"] >= each["deadline_ns"] for each in events)
        assert end["missing"] == 0
        code, told = ended(second, signal.SIGTERM)
        assert (code, json.loads(told)["counts"]["forwarded"]) == (0, 4 * (MESSAGES + 2))
        code, told = ended(proxy)
        assert (code, "forwarded 1,208" in told) == (0, True)
        assert ended(other)[0] == 0


def test_datagrams_of_a_program_go_through_a_tree_to_a_program(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree, "--hedging", 0)
    into = free_ports(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as program:
        program.bind(("127.0.0.1", 0))
        program.settimeout(TIMEOUT_S)
        to = f"127.0.0.1:{program.getsockname()[1]}"
        with (
            running("proxy", tree, "proxy-0-0"),
            running("receive", tree, "receiver-0", "--to", to),
            running("send", tree, "--from", f"127.0.0.1:{into}") as sender,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
        ):
            for n in range(20):
                source.sendto(b"%d" % n, ("127.0.0.1", into))
            assert [program.recv(2_048) for _ in range(20)] == [b"%d" % n for n in range(20)]
            assert ended(sender)[0] == 0


def test_a_failed_proxy_is_replaced_while_the_tree_runs(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree, "--hedging", 0)
    instead = f"127.0.0.1:{free_ports(1)}"
    with running("receive", tree, "receiver-0", "--json", "--count", 5) as receiver:
        done = subprocess.run(
            overlay("plan", tree, "--replace", f"proxy-0-0={instead}"), cwd=CHECKOUT,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert "version 2" in done.stdout
        assert read_topology(tree).version == 2
        receiver.send_signal(signal.SIGHUP)
        assert receiver.poll() is None
        with running("proxy", tree, "proxy-0-0"):
            done = subprocess.run(
                overlay("send", tree, "-"), cwd=CHECKOUT, input="a\nb\nc\nd\ne\n",
                capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            output, _ = receiver.communicate(timeout=TIMEOUT_S)
    assert [json.loads(line).get("id") for line in output.splitlines()][:5] == [1, 2, 3, 4, 5]


def test_a_topology_that_is_no_later_one_is_refused_and_the_member_goes_on(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree)
    with running("proxy", tree, "proxy-0-0") as proxy:
        proxy.send_signal(signal.SIGHUP)
        assert proxy.stderr is not None
        assert "the topology stays as it was: its version 1" in proxy.stderr.readline()
        tree.write_text("junk")
        proxy.send_signal(signal.SIGHUP)
        assert "not TOML" in proxy.stderr.readline()
        assert ended(proxy)[0] == 0


def test_the_example_of_a_tree_in_one_process_runs() -> None:
    done = subprocess.run(
        [sys.executable, "examples/overlay_tree.py"], cwd=CHECKOUT, capture_output=True, text=True,
        timeout=TIMEOUT_S, env={**os.environ, "PORT": str(free_ports(7))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("20 messages, 1 to 20, in order: True") == 4


def test_techniques_are_measured_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["overlay", "measure", "--receivers", "40", "--hedging", "0", "--hedging", "1",
             "--messages", "60", "--rate", "40", "--spikes", "1%", "--json"]  # fmt: skip
    assert done_here(words) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    names = ["unicast", "CloudEx's way", "tree, H = 0", "tree, H = 1"]
    assert [row["technique"] for row in rows] == names
    for row in rows:
        assert row["missing"] == 0
    delivered = rows.pop(1)  # a message in time everywhere has a window of 0
    assert 0 <= delivered["window_p50_us"] <= delivered["latency_p99_us"]
    assert delivered["latency_p50_us"] == delivered["rule_latency_p50_us"]
    for row in rows:
        assert 0 < row["window_p50_us"] <= row["latency_p99_us"]
        assert row["held_latency_p50_us"] >= row["latency_p50_us"]


@pytest.fixture(scope="module")
def one_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("overlay") / "tree.toml"
    planned(tree)
    return tree


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "{new}", "--receivers", 0), "receivers"),
        (("plan", "{tree}"), "is there already (replace a member of it by --replace"),
        (("plan", "{new}", "--fan-out", 3), "a fan-out without a depth (give --depth, too)"),
        (("plan", "{new}", "--depth", 3, "--fan-out", 9), "81 proxies in its last layer"),
        (("plan", "{new}", "--host", "nowhere"), "'nowhere' is no IPv4 address"),
        (("plan", "{new}", "--port", 65_530), "ports end at 65535"),
        (("plan", "{tree}", "--replace", "nobody=10.0.0.1:5"), "no member nobody"),
        (("plan", "{tree}", "--replace", "proxy-0-0"), "is no address"),
        (("proxy", "{none}", "proxy-0-0"), "cannot read"),
        (("proxy", "{tree}", "receiver-0"), "receiver-0 is a receiver (name a proxy"),
        (("receive", "{tree}", "proxy-0-0"), "proxy-0-0 is a proxy (name a receiver"),
        (("receive", "{tree}", "receiver-0", "--to", "there"), "'there' is no address"),
        (("receive", "{tree}", "receiver-0", "--slots", 3), "a power of two"),
        (("proxy", "{tree}", "proxy-0-0", "--cpu", 999), "no processor 999"),
        (("send", "{tree}"), "a sender has one source of messages"),
        (("send", "{tree}", "{none}"), "cannot read"),
        (("send", "{tree}", "--from", "1.2.3.4:5"), "cannot listen to 1.2.3.4:5"),
        (("send", "{tree}", "-", "--fair", 2), "it goes from 0.5 to 0.999"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_exit_code_2(
    tmp_path: Path,
    one_tree: Path,
    words: tuple[object, ...],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {"{tree}": one_tree, "{new}": tmp_path / "new.toml", "{none}": tmp_path / "none"}
    given = [str(places.get(str(each), each)) for each in words]
    assert done_here(["overlay", *given]) == 2
    complained = capfd.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


def test_an_address_that_somebody_has_is_told(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree)
    with running("proxy", tree, "proxy-0-0"):
        done = subprocess.run(
            overlay("proxy", tree, "proxy-0-0"), cwd=CHECKOUT, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    assert done.returncode == 2
    assert "proxy-0-0 cannot have 127.0.0.1:" in done.stderr
