"""Stock AMQP clients in processes of their own, told by a test what to do.

Each program beside this (`python/`, `javascript/`, `go/`) knows the same words, one JSON object a
line on stdin, and answers with events, one JSON object a line on stdout, so that one scenario runs
with every client.

Orders: `connect(port, max_frame, idle_ms)`, `attach(link, address, settled, session, name,
selector)` without credit, `credit(link, count)`, `drain(link)`, `outcome(link, place, what)` with
accept, reject, release or modify for the link's message number `place`, `detach(link)`,
`end(session)`, `dynamic(link)`, `sender(link, address)`, `close()`, and `reset()`, which cuts the
connection with a TCP reset. `link` and `session` are the test's own words for them.

Three more programs (`jms/`, `vertx/`, `rust/`) take no orders: each goes through all of its
scenarios in one process, for Java is slow to start, and tells by the same events and some of its
own (`test_java_and_rust_clients`).

Events: `opened`, `attached` (link, address, filter), `message` (link, subject, id, content, number,
body), `drained`, `detached`, `ended`, `closed` (condition, description), `disconnected`, `gone`.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.install import HERE, go_program, java_classes, node_path, rust_program
from tests.support.needs import absent
from tests.support.node import PATIENCE_S

CLIENTS = ("proton", "rhea", "go-amqp")
every_client = pytest.mark.parametrize("kind", CLIENTS)

_REMEDY = "run python -m tests.interop.install"


@dataclass
class Command:
    """Command that starts a program."""

    words: list[str]
    environment: dict[str, str]


def javascript_command(script: Path) -> Command:
    """A Node.js program with the installed packages; skips where there are none."""
    packages, node = node_path(), shutil.which("node")
    if packages is None or node is None:
        absent("clients", f"rhea is not installed; {_REMEDY}")
    return Command([str(node), str(script)], {"NODE_PATH": str(packages)})


def go_command(name: str) -> Command:
    """A Go program of ours; skips where it is not built."""
    program = go_program(name)
    if program is None:
        absent("clients", f"the Go program {name} is not built; {_REMEDY}")
    return Command([str(program)], {})


def java_command(name: str) -> Command:
    """A Java program of ours; skips where it is not built. It lives for a second or two, too short
    to be compiled well."""
    classes, java = java_classes(name), shutil.which("java")
    if classes is None or java is None:
        absent("clients", f"the Java program {name} is not built; {_REMEDY}")
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
    return Command([str(java), *quick, "-cp", str(classes), "Client"], {})


def rust_command() -> Command:
    """The Rust program; skips where it is not built."""
    program = rust_program()
    if program is None:
        absent("clients", f"the Rust program is not built; {_REMEDY}")
    return Command([str(program)], {})


def command_of(kind: str) -> Command:
    """Return the command of a library's obedient client; skip where it is not installed."""
    if kind == "rhea":
        return javascript_command(HERE / "javascript" / "client.js")
    if kind == "go-amqp":
        return go_command("client")
    return Command([sys.executable, str(HERE / "python" / "client.py")], {})


@dataclass
class Message:
    """One message as the foreign library decoded it."""

    subject: str
    tag: bytes
    content: str
    number: int
    body: bytes

    @property
    def sequence(self) -> int:
        """The packet's number, out of the tag."""
        return int.from_bytes(self.tag[8:16], "big")


class Client:
    """One foreign client's process. Events are kept in `reported` until a test asks for them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.reported: list[dict[str, Any]] = []
        self.messages: dict[str, list[Message]] = {}

    def order(self, verb: str, **what: Any) -> None:
        """Tell the client to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps({"do": verb, **what}) + "\n").encode())

    async def hear(self, event: str, **which: Any) -> dict[str, Any]:
        """Wait for an event, and take it; messages go where they belong meanwhile."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for report in self.reported:
                    if report["event"] == event and which.items() <= report.items():
                        self.reported.remove(report)
                        return report
                await self._read()

    async def receive(self, link: str, count: int) -> list[Message]:
        """Wait until a link has received so many messages; all of them so far."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages.get(link, [])) < count:
                await self._read()
        return self.messages.get(link, [])

    async def attach(self, link: str, address: str, **how: Any) -> dict[str, Any]:
        """Attach a receiving link and wait for the answer."""
        self.order("attach", link=link, address=address, **how)
        return await self.hear("attached", link=link)

    async def settle_down(self) -> None:
        """Wait until the node has answered everything so far: AMQP answers in order."""
        word = f"echo {os.urandom(4).hex()}"
        await self.attach(word, "euronext.999")
        self.order("detach", link=word)
        await self.hear("detached", link=word)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, f"the client has ended; it had reported {self.reported}"
        report = json.loads(line)
        assert report["event"] != "failed", report
        if report["event"] == "message":
            self.messages.setdefault(report["link"], []).append(
                Message(
                    report["subject"],
                    bytes.fromhex(report["id"]),
                    report["content"].rpartition(".")[2],
                    report["number"],
                    bytes.fromhex(report["hex"])
                    if "hex" in report
                    else base64.b64decode(report["body"]),
                )
            )
        else:
            self.reported.append(report)


@contextlib.asynccontextmanager
async def client(kind: str, port: int, **options: Any) -> AsyncIterator[Client]:
    """A connected client of this kind; its process ends with the block."""
    async with started(command_of(kind)) as made:
        made.order("connect", port=port, **options)
        await made.hear("opened")
        yield made


@contextlib.asynccontextmanager
async def started(command: Command, *words: str) -> AsyncIterator[Client]:
    """A client's process, which ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *command.words,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **command.environment},
        limit=1 << 24,
    )
    try:
        yield Client(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
