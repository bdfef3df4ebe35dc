"""RabbitMQ as a node of its own: own name, ports, data, Erlang cookie and port mapper.

So it meddles with no other broker of the machine. Exchanges, queues and bindings are declared
over the management API. Version 3 is this machine's package; version 4 runs inside a Debian of
its own, with that one as its root, and sees `folder` there as `/mnt`.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from . import places
from .process import PASSWORD, STOP_SECONDS, USER, VHOST, Broker, call, free_ports

_CONFIG = f"""\
listeners.tcp.1 = 127.0.0.1:{{amqp}}
management.tcp.ip = 127.0.0.1
management.tcp.port = {{http}}
default_user = {USER}
default_pass = {PASSWORD}
default_vhost = {VHOST}
loopback_users = none
"""
_TLS = """\
listeners.ssl.1 = 127.0.0.1:{}
ssl_options.cacertfile = {}
ssl_options.certfile = {}
ssl_options.keyfile = {}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
"""


class RabbitMQ(Broker):
    """What both versions have in common."""

    READY = "Starting broker... completed"
    virtual_host = f"vhost:{VHOST}"
    #: Processors that it may take.
    schedulers = 1
    PLUGINS: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.http_port, self._distribution, self._mapper = free_ports(3)
        self.management = f"http://127.0.0.1:{self.http_port}"
        #: The folder as the broker sees it.
        self.inside = folder
        self._epmd: subprocess.Popen[bytes] | None = None
        for part in ("data", "log", "home"):
            (folder / part).mkdir()
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(amqp=self.port, http=self.http_port))
        (folder / "plugins").write_text(f"[{self.PLUGINS}].")

    @property
    def url(self) -> str:
        return f"{super().url}/{VHOST}"

    # -- the process ------------------------------------------------------------------------

    def within(self, *command: str) -> list[str]:
        """The command that runs one where the broker's programs are."""
        return [*command]

    def start(self) -> None:
        if self._epmd is None:
            epmd = self.within("epmd", "-address", "127.0.0.1", "-port", str(self._mapper))
            self._epmd = subprocess.Popen(
                epmd, env=self.environment(), stdin=subprocess.DEVNULL, cwd=self.folder
            )
        super().start()

    def command(self) -> list[str]:
        return self.within(f"/{places.RABBITMQ_SCRIPT}")

    def environment(self) -> dict[str, str]:
        inside = self.inside
        # Schedulers that wait do not spin, for the tests' sake.
        quiet = f"+S {self.schedulers}:{self.schedulers} +sbwt none +sbwtdcpu none +sbwtdio none"
        loopback = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        return {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "HOME": str(inside / "home"),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(inside / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(inside / "no.conf"),
            "RABBITMQ_MNESIA_BASE": str(inside / "data"),
            "RABBITMQ_LOG_BASE": str(inside / "log"),
            "RABBITMQ_PID_FILE": str(inside / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(inside / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} {quiet}",
            # The script then becomes the broker, instead of running one as its child.
            "RUNNING_UNDER_SYSTEMD": "1",
        }

    def stop(self) -> None:
        """End the broker in order, and its port mapper."""
        super().stop()
        self._end_mapper()

    def discard(self) -> None:
        super().discard()
        self._end_mapper()

    def _end_mapper(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(STOP_SECONDS)
            self._epmd = None

    # -- what is in it ----------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the management API; `path` below `/api/`."""
        return call(self.http_port, method, f"/api/{path}", self.password, body)

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        body = {"type": kind, "durable": True, "arguments": arguments}
        self.api("PUT", f"exchanges/{VHOST}/{name}", body)

    def queue(self, name: str, exchange: str, *keys: str) -> None:
        self.api("PUT", f"queues/{VHOST}/{name}", {"durable": True})
        for key in keys:
            at = f"bindings/{VHOST}/e/{exchange}/q/{name}"
            self.api("POST", at, {"routing_key": key, "arguments": {}})

    def unbind(self, name: str, exchange: str, key: str) -> None:
        """Let an exchange bring a queue no more of one key."""
        self.api("DELETE", f"bindings/{VHOST}/e/{exchange}/q/{name}/{quote(key, safe='')}")

    def delete(self, name: str) -> None:
        """Remove a queue with what is in it."""
        self.api("DELETE", f"queues/{VHOST}/{name}")

    def empty(self, queue: str) -> None:
        self.api("DELETE", f"queues/{VHOST}/{queue}/contents")

    def count(self, queue: str) -> int:
        return int(self.api("GET", f"queues/{VHOST}/{queue}").get("messages", 0))


class RabbitMQ3(RabbitMQ):
    """AMQP 1.0 by its plugin, addresses of the first version."""

    kind = "rabbitmq-3"
    PLUGINS = "rabbitmq_amqp1_0,rabbitmq_management,rabbitmq_auth_mechanism_ssl"

    def __init__(self, folder: Path) -> None:
        places.rabbitmq_3()
        super().__init__(folder)
        self.tls_port = 0
        self.ca = ""

    def serve_tls(self, ca: str, certificate: str, key: str) -> None:
        """Have a port for TLS too, to be called before the start: with this certificate and its
        key. One of the CA `ca` logs its bearer in by EXTERNAL, as the user of its common name."""
        (self.tls_port,) = free_ports(1)
        self.ca = ca
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write(_TLS.format(self.tls_port, ca, certificate, key))

    @property
    def tls_url(self) -> str:
        """As `url`, with TLS."""
        return self.sealed(super().url.partition("//")[2].rpartition("@")[0] + "@")

    def sealed(self, user: str) -> str:
        """With TLS, as somebody else: `user` is all of the URL up to and with the `@`."""
        return f"amqps://{user}127.0.0.1:{self.tls_port}/{VHOST}"

    def source(self, queue: str) -> str:
        return f"/amq/queue/{queue}"


class RabbitMQ4(RabbitMQ):
    """AMQP 1.0 as its own protocol, addresses of the second version."""

    kind = "rabbitmq-4"
    PLUGINS = "rabbitmq_management"

    def __init__(self, folder: Path) -> None:
        self.root = places.rabbitmq_4()
        super().__init__(folder)
        self.inside = Path("/mnt")

    def within(self, *command: str) -> list[str]:
        """Each process has the mounts for itself: nothing is left to be unmounted."""
        script = (
            "root=$1 folder=$2; shift 2\n"
            'mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" &&\n'
            'mount --bind "$folder" "$root/mnt" && exec chroot "$root" "$@"'
        )
        shell = ["sh", "-c", script, "sh", str(self.root), str(self.folder)]
        return [*places.namespace(), *shell, *command]

    def source(self, queue: str) -> str:
        return f"/queues/{queue}"
