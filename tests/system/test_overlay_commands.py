"""`feedhandler overlay` as a user runs it: a whole tree on loopback, its end, its complaints."""

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedhandler.overlay.last_hop import BOUND_NS
from feedhandler.overlay.topology_file import read_topology
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import Done, run_here

TIMEOUT_S = 120
MESSAGES = 300


def overlay(*words: object) -> list[str]:
    return [sys.executable, "-m", "feedhandler", "overlay", *map(str, words)]


#: Ports below those that the kernel gives out by itself; each process of the tests has its own.
PORTS = itertools.count(10_000 + os.getpid() % 200 * 100)


def free_ports(count: int) -> int:
    """The first of so many ports that are free here, and always were."""
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


def done(*words: object) -> Done:
    """A command of this process, at its end."""
    return run_here("overlay", *map(str, words))


def written(path: Path, lines: str) -> Path:
    """A file with messages, a line each."""
    path.write_text(lines)
    return path


def planned(path: Path, *more: object) -> dict[str, Any]:
    words = ["plan", path, "--receivers", 4, "--depth", 2, "--fan-out", 2, "--port", free_ports(7)]
    plan = done(*words, "--json", *more)
    assert plan.returncode == 0, plan.stderr
    tree: dict[str, Any] = json.loads(plan.stdout)
    return tree


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


def test_a_tree_on_loopback_brings_each_message_once_in_order(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    assert planned(tree)["goodput"] == 0.5
    assert stat.S_IMODE(tree.stat().st_mode) == 0o600
    lines = "".join(f"message {n}\n" for n in range(1, MESSAGES + 1))
    receive = ("receive", tree, "receiver-1", "--json", "--count", MESSAGES)
    with (
        running("proxy", tree, "proxy-0-0") as proxy,
        running("proxy", tree, "proxy-0-1", "--busy", "--json") as second,
        running(*receive) as receiver,
        running("receive", tree, "receiver-3") as other,
    ):
        sent = subprocess.run(
            overlay("send", tree, "-", "--rate", 2_000, "--json"), cwd=CHECKOUT, input=lines,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert sent.returncode == 0, sent.stderr
        assert json.loads(sent.stdout)["sent"] == MESSAGES
        output, _ = receiver.communicate(timeout=TIMEOUT_S)
        assert receiver.returncode == 0
        *events, end = [json.loads(line) for line in output.splitlines()]
        payloads = [bytes.fromhex(each["payload"]).decode() for each in events]
        assert payloads == lines.splitlines()
        assert [each["id"] for each in events] == list(range(1, MESSAGES + 1))
        assert all(each["released_ns"] >= each["deadline_ns"] for each in events)
        assert end["missing"] == 0
        code, printed = ended(second, signal.SIGTERM)
        assert (code, json.loads(printed)["counts"]["forwarded"]) == (0, 4 * (MESSAGES + 3))
        code, printed = ended(proxy)
        assert (code, "forwarded 1,212" in printed) == (0, True)
        assert ended(other)[0] == 0


def test_two_trees_of_one_sender_are_merged_by_number(tmp_path: Path) -> None:
    tree, beside = tmp_path / "tree.toml", tmp_path / "tree-2.toml"
    planned(tree)
    answer = done("plan", beside, "--beside", tree, "--port", free_ports(2), "--json")
    assert answer.returncode == 0, answer.stderr
    one, other = read_topology(tree), read_topology(beside)
    assert (one.tree, other.tree, other.shape) == (1, 2, one.shape)
    same = [
        a.name for a, b in zip(one.members, other.members, strict=True) if a.address == b.address
    ]
    assert same == [each.name for each in one.members if each.role != "proxy"]
    assert not {each.key for each in one.members} & {each.key for each in other.members}
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(running("proxy", each, name, "--json"))
            for each in (tree, beside)
            for name in ("proxy-0-0", "proxy-0-1")
        ]
        # However late one of the trees is, nothing is given up, at the start neither.
        receive = ("receive", tree, "receiver-1", "--also", beside, "--gap-wait-us", 60_000_000)
        receiver = stack.enter_context(running(*receive, "--json", "--count", MESSAGES))
        sent = done(
            "send",
            tree,
            written(tmp_path / "lines", "message\n" * MESSAGES),
            "--also",
            beside,
            "--rate",
            2_000,
            "--json",
        )
        assert sent.returncode == 0, sent.stderr
        output, _ = receiver.communicate(timeout=TIMEOUT_S)
        *events, end = [json.loads(line) for line in output.splitlines()]
        assert [each["id"] for each in events] == list(range(1, MESSAGES + 1))
        assert (end["missing"], receiver.returncode) == (0, 0)
        # Each takes half of the messages, and heartbeats.
        firsts = [json.loads(ended(each)[1])["counts"]["first"] for each in proxies]
        assert all(MESSAGES // 2 < each < MESSAGES for each in firsts), firsts


def page(address: str, path: str) -> tuple[int, str]:
    """Status and body of an HTTP page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_members_tell_how_they_are_while_they_run(tmp_path: Path) -> None:
    tree, address = tmp_path / "tree.toml", f"127.0.0.1:{free_addresses.port()}"
    planned(tree)
    control = f"ipc://{tmp_path}/control"
    with ExitStack() as stack:
        proxy = stack.enter_context(
            running("proxy", tree, "proxy-0-0", "--metrics", address, "--control", control)
        )
        stack.enter_context(running("receive", tree, "receiver-0", "--control", control + "-2"))
        assert page(address, "/live") == (200, "live\n")
        sent = done("send", tree, written(tmp_path / "lines", "a\nb\n"))
        assert sent.returncode == 0, sent.stderr
        # Two messages and two heartbeats at least, each to its own and to its neighbour's children.
        name = 'feedhandler_overlay_member_forwarded_total{member="proxy-0-0",tree="1"} '
        while True:
            code, text = page(address, "/metrics")
            assert code == 200
            if float(text.partition(name)[2].partition("\n")[0] or 0) >= 16:
                break
        while (found := done("status", control)).returncode == 0:
            """The sender has ended, which is noticed after a second."""
        assert found.returncode == 1
        last_lines = found.stdout.splitlines()[-2:]
        assert "not ready: tree 1: nothing of the sender for" in last_lines[0]
        assert "forwarded " in last_lines[1]
        assert page(address, "/ready")[0] == 503
        code, text, _ = done("status", control + "-2", "--json")
        assert (code, json.loads(text)["trees"][0]["delivered"]) == (1, 2)
        assert ended(proxy)[0] == 0
        code, _, wrong = done("status", control)
        assert (code, "no member at ipc://" in wrong) == (3, True)


class LateEcho:
    """Sends each probe back when the next one comes: a last hop as long as that."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._sock.getsockname())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        held = b""
        while True:
            probe, address = self._sock.recvfrom(100)
            if not probe:
                return
            self._sock.sendto(held or b"none yet", address)
            held = probe

    def close(self) -> None:
        self._sock.sendto(b"", self._sock.getsockname())
        self._thread.join()
        self._sock.close()


def test_receivers_hold_what_the_last_hop_to_their_process_is_shorter(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree)
    near, far = f"127.0.0.1:{free_ports(1)}", LateEcho()
    with ExitStack() as stack:
        stack.callback(far.close)
        for name in ("proxy-0-0", "proxy-0-1"):
            stack.enter_context(running("proxy", tree, name))
        echo = stack.enter_context(running("echo", near, "--json"))
        one, other = (
            stack.enter_context(running("receive", tree, name, "--json", "--echo", address))
            for name, address in (("receiver-0", near), ("receiver-3", far.address))
        )
        # Reports are of whole seconds; what they say comes back at once.
        sent = done(
            "send", tree, written(tmp_path / "lines", "message\n" * 150), "--rate", 50, "--json"
        )
        assert sent.returncode == 0, sent.stderr
        sender, first, second = (
            json.loads(output.splitlines()[-1])
            for output in (sent.stdout, ended(one)[1], ended(other)[1])
        )
        answered = json.loads(ended(echo)[1])
    assert sender["longest_hop_us"] == BOUND_NS / 1e3 < second["last_hop_us"]
    assert second["extra_hold_us"] == 0
    wanted = max(sender["longest_hop_us"] - first["last_hop_us"], 0)
    assert first["extra_hold_us"] == pytest.approx(wanted)
    assert second["counts"]["echo"] == 1, "what was no answer"
    assert (answered["answered"] >= first["counts"]["echoes"] > 0, answered["dropped"]) == (True, 0)


def test_a_program_that_is_not_there_is_counted(tmp_path: Path) -> None:
    tree, to = tmp_path / "tree.toml", f"127.0.0.1:{free_ports(1)}"
    planned(tree)
    with (
        running("proxy", tree, "proxy-0-0"),
        running("receive", tree, "receiver-0", "--to", to, "--count", 20, "--json") as receiver,
    ):
        sent = done("send", tree, written(tmp_path / "lines", "message\n" * 20))
        assert sent.returncode == 0, sent.stderr
        output, _ = receiver.communicate(timeout=TIMEOUT_S)
    # What the kernel hears of an address comes back with the next sending.
    assert 0 < json.loads(output.splitlines()[-1])["counts"]["unrelayed"] <= 20


def test_a_failed_proxy_is_replaced_while_the_tree_runs(tmp_path: Path) -> None:
    tree = tmp_path / "tree.toml"
    planned(tree, "--hedging", 0)
    instead = f"127.0.0.1:{free_ports(1)}"
    with running("receive", tree, "receiver-0", "--json", "--count", 5) as receiver:
        answer = done("plan", tree, "--replace", f"proxy-0-0={instead}")
        assert "version 2" in answer.stdout
        assert read_topology(tree).version == 2
        receiver.send_signal(signal.SIGHUP)
        assert receiver.poll() is None
        with running("proxy", tree, "proxy-0-0"):
            sent = done("send", tree, written(tmp_path / "lines", "a\nb\nc\nd\ne\n"))
            assert sent.returncode == 0, sent.stderr
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
    example = subprocess.run(
        [sys.executable, "examples/overlay_tree.py"], cwd=CHECKOUT, capture_output=True, text=True,
        timeout=TIMEOUT_S, env={**os.environ, "PORT": str(free_ports(7))},
    )  # fmt: skip
    assert example.returncode == 0, example.stderr
    assert example.stdout.count("20 messages, 1 to 20, in order: True") == 4


def test_members_of_a_mesh_measure_their_delays_and_one_puts_them_together(tmp_path: Path) -> None:
    path = tmp_path / "tree.toml"
    words = ["plan", path, "--receivers", 2, "--depth", 1, "--port", free_ports(3), "--json"]
    assert done(*words).returncode == 0
    names = [each.name for each in read_topology(path).members]
    mesh = ["measure", "--triangles", "--topology", path, "--seconds", 600, "--rate", 50]
    files: list[object] = []
    with ExitStack() as stack:
        members = [stack.enter_context(running(*mesh, "--member", name)) for name in names]
        for name, member in zip(names, members, strict=True):
            # Windows of both others have come to each: all hear each other.
            assert member.stdout is not None
            heard: dict[str, str] = {}
            while len(heard) < 2:
                line = member.stdout.readline()
                assert line, "it has ended"
                heard[json.loads(line)["source"]] = line
            member.send_signal(signal.SIGINT)
            rest, _ = member.communicate(timeout=TIMEOUT_S)
            assert member.returncode == 0
            file = tmp_path / f"{name}.jsonl"
            file.write_text("".join(heard.values()) + rest)
            files += ["--read", file]
    answer = done("measure", "--triangles", *files, "--json")
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert max(row["pairs"] for row in rows) == 6
