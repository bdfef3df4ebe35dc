"""A broker as a process: started until it says that it is ready, ended by its process id.

What every kind has, besides: ports of loopback that nobody has, one user with a password that
wants escaping in a URL, and names for what tests declare in it.
"""

import base64
import collections
import http.client
import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

USER, PASSWORD, VHOST = "feed", "s3cret/%?", "market"
#: How long a broker may take to start or to end.
START_SECONDS = 60.0
STOP_SECONDS = 30.0
#: How many of its last lines are kept, to show where it fails.
LINES = 200


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Broker:
    """One broker in `folder`, which is there and empty; `start`, `kill` and `stop` it at will."""

    #: As `[[publish]] kind` calls it.
    kind: ClassVar[str]
    #: What it prints when it takes connections.
    READY: ClassVar[str]
    #: As the AMQP open frame's hostname: the virtual host, where that is how to name it.
    virtual_host: str | None = None
    #: The management's URL, of a broker that has one which a publisher asks.
    management: str = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.password = PASSWORD
        self._server: subprocess.Popen[str] | None = None
        self.said: collections.deque[str] = collections.deque(maxlen=LINES)

    @property
    def url(self) -> str:
        """For a publisher, password included."""
        return f"amqp://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}"

    # -- the process ------------------------------------------------------------------------

    def command(self) -> list[str]:
        """What runs the broker as this very process, without a child for it."""
        raise AssertionError("each kind has its own")

    def environment(self) -> dict[str, str]:
        """The whole environment of the process."""
        raise AssertionError("each kind has its own")

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        server = self._server = subprocess.Popen(
            self.command(),
            env=self.environment(),
            # What a broker writes wherever it stands, it writes there.
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        said, ready, told = self.said, threading.Event(), False
        said.clear()

        def listen() -> None:
            nonlocal told
            assert server.stdout is not None
            with server.stdout:
                for line in server.stdout:
                    said.append(line)
                    if self.READY in line:
                        told = True
                        ready.set()
            ready.set()

        threading.Thread(target=listen, daemon=True).start()
        if not ready.wait(START_SECONDS) or not told:
            self.kill()
            raise AssertionError(f"{self.kind} did not start:\n{''.join(said)}")

    @property
    def pid(self) -> int:
        """Of the running broker."""
        assert self._server is not None, "the broker does not run"
        return self._server.pid

    def freeze(self) -> None:
        """Let it do nothing more, with its connections open: it reads no longer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._server is not None, "the broker does not run"
        self._server.send_signal(number)

    def _end(self, number: int) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(number)
            server.send_signal(signal.SIGCONT)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(STOP_SECONDS)

    def kill(self) -> None:
        """`kill -9`, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the broker in order."""
        self._end(signal.SIGTERM)

    def discard(self) -> None:
        """End whatever runs for it, at once: nobody wants its data any more."""
        self.kill()

    # -- what is in it ----------------------------------------------------------------------

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Declare a durable exchange, or what this kind has instead."""
        raise AssertionError("each kind has its own")

    def queue(self, name: str, exchange: str, *keys: str) -> None:
        """Declare a durable queue, and bind it to an exchange."""
        raise AssertionError("each kind has its own")

    def source(self, queue: str) -> str:
        """The address that a consumer of a queue attaches to."""
        return queue

    def empty(self, queue: str) -> None:
        """Remove every message from a queue that nobody consumes."""
        raise AssertionError("each kind has its own")

    def count(self, queue: str) -> int:
        """How many messages are in a queue, as the management knows, which may lag behind."""
        raise AssertionError("each kind has its own")


def call(port: int, method: str, path: str, password: str, body: Any = None) -> Any:
    """One request of JSON to a broker's management; an error status raises AssertionError."""
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    deadline = time.monotonic() + START_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Basic {token}", "Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status < 400, f"{method} {path}: {answer.status} {content!r}"
            return json.loads(content) if content else None
        except OSError:
            assert time.monotonic() < deadline, "the management does not answer"
        finally:
            connection.close()
