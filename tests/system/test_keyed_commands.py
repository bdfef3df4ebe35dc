"""`feedhandler keyed` against a node on a socket."""

import asyncio
import json
import signal
import sys
from pathlib import Path

from tests.support.durable import running
from tests.support.node import in_thread

SECONDS = 60
#: A worker that notes what it did, once for each token. It fails once and refuses one; each has one
#: of its key behind it, so both have been told before the last is done.
WORKER = """
import json, os, pathlib, sys
told = json.load(sys.stdin)
if told["n"] == 3 and os.environ["FEEDHANDLER_TRIES"] == "0":
    sys.exit(1)
if told["n"] == 2:
    sys.exit(65)
token = os.environ["FEEDHANDLER_TOKEN"]
assert int(os.environ["FEEDHANDLER_FENCE"]) > 0
with open(pathlib.Path(sys.argv[1], told["account"]), "a") as file:
    file.write(f"{told['n']}\\n")
"""


async def run(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, output, complaints of a command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "keyed", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(SECONDS):
        out, wrong = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, out.decode(), wrong.decode()


def test_a_queue_from_its_creation_to_its_end_by_commands(tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    told = [{"account": "ab"[number % 2], "n": number} for number in range(6)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in [*told, {"n": 9}]))
    done = tmp_path / "done"
    done.mkdir()

    async def scenario() -> None:
        async with running(folder=str(tmp_path / "queues")) as rig:
            url = f"amqp://127.0.0.1:{rig.port}"
            made = await run("create", url, "orders", "--field", "account")
            assert made == (0, "queue orders: created\n", "")
            again = await run("create", url, "orders", "--field", "account")
            assert (again[0], again[1]) == (0, "queue orders: is there already, and the same\n")
            other = await run("create", url, "orders", "--field", "symbol")
            assert other[0] == 2
            assert "was created with fields = ('account',)" in other[2]
            for times in range(2):
                code, out, wrong = await run(
                    "put", url, "orders", str(lines), "--id", "monday", "--epoch", "1"
                )
                refused = 0 if times else 1
                assert (code, "it has no account" in wrong) == (refused, not times)
                assert out == f"queue orders: {7 - refused} accepted, {refused} refused\n"
            rows = (await run("list", url, "orders"))[1].splitlines()
            assert len(rows) == 6
            assert "account = a" in rows[0]
            assert "3 messages" in (await run("keys", url, "orders"))[1].splitlines()[0]
            work = ["--workers", "2", "--count", "5", "--", sys.executable, "-c", WORKER]
            code, out, _ = await run("work", url, "orders", *work, str(done))
            assert (code, out) == (0, "queue orders: 5 done, 1 failed, 1 rejected\n")
            did = [(done / each).read_text().split() for each in "ab"]
            assert did == [["0", "4"], ["1", "3", "5"]]
            code, out, _ = await run("stat", url, "orders", "--json")
            figures = json.loads(out)
            assert (figures["depth"], figures["repeated"], figures["dead"]) == (0, 7, 1)

    asyncio.run(scenario())


def test_what_goes_wrong_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(folder=str(tmp_path)) as rig:
            url = f"amqp://127.0.0.1:{rig.port}"
            for words, code, text in (
                (("stat", url, "nowhere"), 3, "no queue is named 'nowhere'"),
                (("stat", "amqp://127.0.0.1:1", "orders"), 3, "cannot connect"),
                (("create", url, "orders", "--field", "a..b"), 2, "no path of JSON"),
                (("put", url, "orders", str(tmp_path / "none")), 2, "no such file"),
                (("put", url, "nowhere", "-"), 3, "no queue is named"),
            ):
                got, out, wrong = await run(*words)
                assert (got, out, wrong.count("\n")) == (code, "", 1), (words, wrong)
                assert text in wrong

    asyncio.run(scenario())


def test_ctrl_c_lets_the_work_in_hand_be_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(folder=str(tmp_path)) as rig:
            url = f"amqp://127.0.0.1:{rig.port}"
            await run("create", url, "orders", "--field", "account")
            await run("put", url, "orders", "-", stdin=b'{"account": "a"}\n{"account": "a"}\n')
            begun, end = tmp_path / "begun", tmp_path / "end"
            text = f"import os, pathlib; pathlib.Path({str(begun)!r}).touch(); "
            text += f"os.mkfifo({str(end)!r}); open({str(end)!r}).read()"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "feedhandler", "keyed", "work", url, "orders", "--",
                sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            queue = rig.queues.all["orders"]
            await rig.until(end.exists, "the work's begin")
            process.send_signal(signal.SIGINT)
            await in_thread(end.write_text, "now")
            async with asyncio.timeout(SECONDS):
                out, _ = await process.communicate()
            assert (process.returncode, out.decode()) == (
                0, "queue orders: 1 done, 0 failed, 0 rejected\n",
            )  # fmt: skip
            await rig.until(lambda: queue.snapshot()["depth"] == 1, "the acknowledgement")

    asyncio.run(scenario())
