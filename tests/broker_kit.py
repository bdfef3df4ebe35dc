"""Real brokers for the tests, started on loopback and stopped by their process ids.

`RabbitMQ` runs Debian's `rabbitmq-server` as a node of its own: own name, ports, data, Erlang
cookie and port mapper, so that it meddles with no other broker of the machine. Its exchanges,
queues and bindings are declared over the management API.
"""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

USER, PASSWORD, VHOST = "feed", "s3cret/%?", "market"
#: How long a broker may take to start or to end.
START_SECONDS = 60.0
STOP_SECONDS = 30.0
#: What it prints when it takes connections.
READY = "Starting broker... completed"

_CONFIG = f"""\
listeners.tcp.1 = 127.0.0.1:{{amqp}}
management.tcp.ip = 127.0.0.1
management.tcp.port = {{http}}
default_user = {USER}
default_pass = {PASSWORD}
default_vhost = {VHOST}
loopback_users = none
"""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class RabbitMQ:
    """One broker in `folder`; `start`, `kill` and `stop` it any number of times."""

    def __init__(self, script: Path, folder: Path) -> None:
        self.script = script
        self.folder = folder
        self.port, self.http_port, self._distribution, self._mapper = free_ports(4)
        self.password = PASSWORD
        self._server: subprocess.Popen[str] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        for part in ("data", "log", "home"):
            (folder / part).mkdir()
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(amqp=self.port, http=self.http_port))
        (folder / "plugins").write_text("[rabbitmq_amqp1_0,rabbitmq_management].")

    @property
    def url(self) -> str:
        """For a publisher, password included."""
        return f"amqp://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{VHOST}"

    @property
    def management(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    # -- the process ------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        environment = self._environment()
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper)], env=environment
            )
        self._server = subprocess.Popen(
            [self.script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        ready, said = threading.Event(), []
        server = self._server

        def listen() -> None:
            assert server.stdout is not None
            for line in server.stdout:
                said.append(line)
                if READY in line:
                    ready.set()
            ready.set()

        threading.Thread(target=listen, daemon=True).start()
        assert ready.wait(START_SECONDS), "the broker did not start in time"
        assert READY in "".join(said), "".join(said)

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +S 1:1"
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no.conf"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
            # The script then becomes the broker, instead of running one as its child.
            "RUNNING_UNDER_SYSTEMD": "1",
        }

    def _end(self, number: int) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(number)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(STOP_SECONDS)

    def kill(self) -> None:
        """`kill -9`, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the broker in order, and its port mapper."""
        self._end(signal.SIGTERM)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(STOP_SECONDS)
            self._epmd = None

    # -- what is in it ----------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the management API; `path` below the virtual host's."""
        token = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        deadline = time.monotonic() + START_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)
            try:
                connection.request(
                    method,
                    f"/api/{path}",
                    None if body is None else json.dumps(body),
                    {"Authorization": f"Basic {token}", "Content-Type": "application/json"},
                )
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status < 400, f"{method} {path}: {answer.status} {content!r}"
                return json.loads(content) if content else None
            except OSError:
                assert time.monotonic() < deadline, "the management API does not answer"
            finally:
                connection.close()

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Declare a durable exchange."""
        body = {"type": kind, "durable": True, "arguments": arguments}
        self.api("PUT", f"exchanges/{VHOST}/{name}", body)

    def queue(self, name: str, exchange: str, *keys: str) -> None:
        """Declare a durable queue, and bind it to an exchange."""
        self.api("PUT", f"queues/{VHOST}/{name}", {"durable": True})
        for key in keys:
            at = f"bindings/{VHOST}/e/{exchange}/q/{name}"
            self.api("POST", at, {"routing_key": key, "arguments": {}})


@contextlib.contextmanager
def rabbitmq(script: Path, folder: Path) -> Iterator[RabbitMQ]:
    """A broker that runs while the block does. `script` starts it: conftest's fixture."""
    broker = RabbitMQ(script, folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
