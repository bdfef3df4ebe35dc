"""`feedhandler keyed` against a node on a socket."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import beside, run_here
from tests.support.durable import orders, running

SECONDS = 60
#: A worker that notes what it did, once for each token. It fails once and refuses one; each has one
#: of its key behind it, so both have been told before the last is done.
WORKER = """
import json, os, pathlib, sys
message = json.load(sys.stdin)
if message["n"] == 3 and os.environ["FEEDHANDLER_TRIES"] == "0":
    sys.exit(1)
if message["n"] == 2:
    sys.exit(65)
token = os.environ["FEEDHANDLER_TOKEN"]
assert int(os.environ["FEEDHANDLER_FENCE"]) > 0
with open(pathlib.Path(sys.argv[1], message["account"]), "a") as file:
    file.write(f"{message['n']}\\n")
"""


def run(*words: str) -> tuple[int, str, str]:
    """Exit code, output, complaints of a command."""
    return run_here("keyed", *words)


def test_a_queue_from_its_creation_to_its_end_by_commands(tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    messages = [{"account": "ab"[number % 2], "n": number} for number in range(6)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in [*messages, {"n": 9}]))
    done = tmp_path / "done"
    done.mkdir()

    with beside(running(folder=str(tmp_path / "queues"))) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        made = run("create", url, "orders", "--field", "account")
        assert made == (0, "queue orders: created\n", "")
        again = run("create", url, "orders", "--field", "account")
        assert (again[0], again[1]) == (0, "queue orders: is there already, and the same\n")
        other = run("create", url, "orders", "--field", "symbol")
        assert other[0] == 2
        assert "was created with fields = ('account',)" in other[2]
        for times in range(2):
            code, out, wrong = run(
                "put", url, "orders", str(lines), "--id", "monday", "--epoch", "1"
            )
            refused = 0 if times else 1
            assert (code, "it has no account" in wrong) == (refused, not times)
            assert out == f"queue orders: {7 - refused} accepted, {refused} refused\n"
        rows = run("list", url, "orders")[1].splitlines()
        assert len(rows) == 6
        assert "account = a" in rows[0]
        assert "3 messages" in run("keys", url, "orders")[1].splitlines()[0]
        work = ["--workers", "2", "--count", "5", "--", sys.executable, "-c", WORKER]
        code, out, _ = run("work", url, "orders", *work, str(done))
        assert (code, out) == (0, "queue orders: 5 done, 1 failed, 1 rejected\n")
        did = [(done / each).read_text().split() for each in "ab"]
        assert did == [["0", "4"], ["1", "3", "5"]]
        code, out, _ = run("stat", url, "orders", "--json")
        figures = json.loads(out)
        assert (figures["depth"], figures["repeated"], figures["dead"]) == (0, 7, 1)


def test_what_goes_wrong_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    plain = orders(tmp_path / "plain", name="plain")
    with beside(running(plain, folder=str(tmp_path))) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        for words, code, text in (
            (("stat", url, "nowhere"), 3, "no queue is named 'nowhere'"),
            (("stat", "amqp://127.0.0.1:1", "orders"), 3, "cannot connect"),
            (("create", url, "orders", "--field", "a..b"), 2, "no path of JSON"),
            (("create", url, "plain", "--field", "a"), 2, "is there already, and has no key"),
            (("create", url, "a/b", "--field", "a"), 2, "'a/b' is not 1 to 64 letters"),
            (("put", url, "orders", str(tmp_path / "none")), 2, "no such file"),
            (("put", url, "nowhere", "-"), 3, "no queue is named"),
        ):
            got, out, wrong = run(*words)
            assert (got, out, wrong.count("\n")) == (code, "", 1), (words, wrong)
            assert text in wrong


def test_a_command_that_cannot_be_run_costs_no_message(tmp_path: Path) -> None:
    plain, vanishing = tmp_path / "plain.sh", tmp_path / "vanishing.sh"
    plain.write_text("#!/bin/sh\n")
    vanishing.write_text("#!/bin/sh\nrm $0\n")
    vanishing.chmod(0o755)
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"account": "{number}"}}\n' for number in range(4)))
    with beside(running(folder=str(tmp_path / "queues"))) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        run("create", url, "orders", "--field", "account")
        run("put", url, "orders", str(lines))
        for command, text in (
            (str(plain), "it is not executable (chmod +x"),
            (str(tmp_path / "none.sh"), "no such command (check the path)"),
            ("no-such-command", "no such command (give its path)"),
        ):
            code, out, wrong = run("work", url, "orders", "--", command)
            assert (code, out, wrong.count("\n")) == (2, "", 1), wrong
            assert text in wrong
        code, out, wrong = run("work", url, "orders", "--", str(vanishing))
        assert (code, out) == (70, "queue orders: 1 done, 0 failed, 0 rejected\n")
        assert "no such file or directory (its message was given back)" in wrong
        figures = json.loads(run("stat", url, "orders", "--json")[1])
        assert (figures["depth"], figures["dead"]) == (3, 0)
        rows = run("list", url, "orders")[1]
        assert "failed" not in rows


def depth(url: str) -> int:
    """How many messages the queue holds."""
    return int(json.loads(run("stat", url, "orders", "--json")[1])["depth"])


def until_depth(url: str, wanted: int) -> None:
    """Wait until the queue holds so many messages."""
    deadline = time.monotonic() + SECONDS
    while depth(url) != wanted:
        assert time.monotonic() < deadline, f"the queue never held {wanted} messages"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_put_ends_while_its_input_brings_nothing(tmp_path: Path, number: int) -> None:
    with beside(running(folder=str(tmp_path))) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        run("create", url, "orders", "--field", "account")
        with subprocess.Popen(
            [sys.executable, "-m", "feedhandler", "keyed", "put", url, "orders", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b'{"account": "a"}\n{"account"')
            process.stdin.flush()
            until_depth(url, 1)
            process.send_signal(number)
            assert process.wait(timeout=SECONDS) == 130
            assert process.stdout.read() == b"queue orders: 1 accepted, 0 refused\n"


def test_ctrl_c_lets_the_work_in_hand_be_done(tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"account": "a"}\n{"account": "a"}\n')
    end = tmp_path / "end"
    os.mkfifo(end)
    with beside(running(folder=str(tmp_path))) as rig:
        url = f"amqp://127.0.0.1:{rig.port}"
        run("create", url, "orders", "--field", "account")
        run("put", url, "orders", str(lines))
        work = [sys.executable, "-c", f"open({str(end)!r}).read()"]
        with subprocess.Popen(
            [sys.executable, "-m", "feedhandler", "keyed", "work", url, "orders", "--", *work],
            stdout=subprocess.PIPE,
        ) as process:
            # It opens when the work has begun.
            with end.open("w") as fifo:
                process.send_signal(signal.SIGINT)
                fifo.write("now")
            out, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (0, b"queue orders: 1 done, 0 failed, 0 rejected\n")
        until_depth(url, 1)
