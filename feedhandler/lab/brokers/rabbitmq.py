"""RabbitMQ as a node with its own name, ports, data, Erlang cookie and port mapper.

So it does not interfere with any other broker of the machine. Exchanges, queues and bindings are
declared over the management API. Version 3 is this machine's package; version 4 runs chrooted in a
Debian of its own, and sees `folder` there as `/mnt`.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from feedhandler.lab.brokers import installations
from feedhandler.lab.brokers.declaring import BrokerAdmin
from feedhandler.lab.brokers.process import STOP_SECONDS, Broker, end_with_us

_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {http_port}
default_user = {user}
default_pass = {password}
default_vhost = {vhost}
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


class RabbitMQAdmin(BrokerAdmin):
    """The management plugin's interface, which must be enabled: exchanges, queues, bindings."""

    HTTP_PORT = 15672

    @property
    def virtual_host(self) -> str:
        """The virtual host, with the prefix that RabbitMQ wants in the open frame."""
        return f"vhost:{self.vhost}"

    @property
    def url(self) -> str:
        """The URL for a publisher, with the virtual host as its path."""
        return f"{super().url}/{quote(self.vhost, safe='')}"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call the management API; `path` is below `/api/`. Raises `BrokerFailed`."""
        return self.call(method, f"/api/{path}", body)

    def _path(self, kind: str, *names: str) -> str:
        """Return the path of objects of a kind in the virtual host, or of one of them."""
        return "/".join((kind, *(quote(name, safe="") for name in (self.vhost, *names))))

    def version(self) -> str:
        """Return the version that the broker reports, with its name."""
        return f"RabbitMQ {self.api('GET', 'overview')['rabbitmq_version']}"

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Declare a durable exchange."""
        body = {"type": kind, "durable": True, "arguments": arguments}
        self.api("PUT", self._path("exchanges", name), body)

    def queue(
        self, name: str, exchange: str, *keys: str, durable: bool = True, bytes_max: int = 0
    ) -> None:
        """Declare a queue, bound by each key; a full one drops its oldest messages."""
        bound = {"x-max-length-bytes": bytes_max} if bytes_max else {}
        self.api("PUT", self._path("queues", name), {"durable": durable, "arguments": bound})
        for key in keys:
            at = f"{self._path('bindings')}/e/{quote(exchange, safe='')}/q/{quote(name, safe='')}"
            self.api("POST", at, {"routing_key": key, "arguments": {}})

    def unbind(self, name: str, exchange: str, key: str) -> None:
        """Remove the binding of a queue to one key of an exchange."""
        words = "/".join(quote(each, safe="") for each in (exchange, "q", name, key))
        self.api("DELETE", f"{self._path('bindings')}/e/{words}")

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        self.api("DELETE", self._path("queues", queue))

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange."""
        self.api("DELETE", self._path("exchanges", name))

    def empty(self, queue: str) -> None:
        """Remove every message from a queue."""
        self.api("DELETE", f"{self._path('queues', queue)}/contents")

    def count(self, queue: str) -> int:
        """Count the messages in a queue, as of the last statistics."""
        return int(self.api("GET", self._path("queues", queue)).get("messages", 0))


class RabbitMQ3Admin(RabbitMQAdmin):
    """RabbitMQ 3, with its version 1 of AMQP 1.0 addresses."""

    kind = "rabbitmq-3"

    def source(self, queue: str) -> str:
        """Return a queue's address of version 1."""
        return f"/amq/queue/{queue}"


class RabbitMQ4Admin(RabbitMQAdmin):
    """RabbitMQ 4, with its version 2 of AMQP 1.0 addresses."""

    kind = "rabbitmq-4"

    def source(self, queue: str) -> str:
        """Return a queue's address of version 2."""
        return f"/queues/{quote(queue, safe='')}"


class RabbitMQ(RabbitMQAdmin, Broker):
    """The process of RabbitMQ, common to both versions."""

    READY = "Starting broker... completed"
    PLUGINS: ClassVar[str]

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        Broker.__init__(self, folder, password, modest)
        #: Processors that it may take; 0: all.
        self.schedulers = 1 if modest else 0
        self.http_port, self._distribution, self._mapper = self.ports(3)
        self.management = f"http://127.0.0.1:{self.http_port}"
        #: The folder as the broker sees it.
        self.inside = folder
        self._epmd: subprocess.Popen[bytes] | None = None
        for part in ("data", "log", "home"):
            (folder / part).mkdir()
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(**vars(self)))
        (folder / "plugins").write_text(f"[{self.PLUGINS}].")

    # -- the process ------------------------------------------------------------------------

    def within(self, *command: str) -> list[str]:
        """Return `command` wrapped so that it runs where the broker's programs are."""
        return [*command]

    def start(self) -> None:
        """Start a port mapper of its own, unless there is one, then the broker."""
        if self._epmd is None:
            epmd = self.within("epmd", "-address", "127.0.0.1", "-port", str(self._mapper))
            self._epmd = subprocess.Popen(
                epmd,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=self.bound,
                preexec_fn=end_with_us if self.bound else None,
            )
        super().start()

    def command(self) -> list[str]:
        """Return the command of the start script, which becomes the broker."""
        return self.within(f"/{installations.RABBITMQ_SCRIPT}")

    def environment(self) -> dict[str, str]:
        """Return the whole environment: files, ports and names are of this folder alone."""
        inside = self.inside
        # Schedulers that wait do not spin: other processes need the processor.
        quiet = "+sbwt none +sbwtdcpu none +sbwtdio none"
        if self.schedulers:
            quiet = f"+S {self.schedulers}:{self.schedulers} {quiet}"
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
        """Kill every process of the broker at once, its port mapper too."""
        super().discard()
        self._end_mapper()

    def _end_mapper(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(STOP_SECONDS)
            self._epmd = None


class RabbitMQ3(RabbitMQ3Admin, RabbitMQ):
    """RabbitMQ 3: AMQP 1.0 by its plugin, version 1 addresses."""

    PLUGINS = "rabbitmq_amqp1_0,rabbitmq_management,rabbitmq_auth_mechanism_ssl"

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        installations.rabbitmq_3()
        RabbitMQ.__init__(self, folder, password, modest)
        self.tls_port = 0
        self.ca = ""

    def serve_tls(self, ca: str, certificate: str, key: str) -> None:
        """Listen on a port for TLS too, with this certificate and key; to be called before `start`.

        A client certificate of the CA `ca` logs in by EXTERNAL, as the user of its common name.
        """
        (self.tls_port,) = self.ports(1)
        self.ca = ca
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write(_TLS.format(self.tls_port, ca, certificate, key))

    @property
    def tls_url(self) -> str:
        """The URL as `url`, with TLS."""
        return self.sealed(self.url.partition("//")[2].rpartition("@")[0] + "@")

    def sealed(self, user: str) -> str:
        """Return the TLS URL for other credentials: `user` ends with the URL's `@`."""
        return f"amqps://{user}127.0.0.1:{self.tls_port}/{self.vhost}"


class RabbitMQ4(RabbitMQ4Admin, RabbitMQ):
    """RabbitMQ 4: AMQP 1.0 as its own protocol, version 2 addresses."""

    PLUGINS = "rabbitmq_management"

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        self.root = installations.rabbitmq_4()
        RabbitMQ.__init__(self, folder, password, modest)
        self.inside = Path("/mnt")

    def within(self, *command: str) -> list[str]:
        """Wrap `command` in a mount namespace of its own, so that no mount outlives the process."""
        script = (
            "root=$1 folder=$2; shift 2\n"
            'mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" &&\n'
            'mount --bind "$folder" "$root/mnt" && exec chroot "$root" "$@"'
        )
        shell = ["sh", "-c", script, "sh", str(self.root), str(self.folder)]
        return [*installations.namespace(), *shell, *command]
