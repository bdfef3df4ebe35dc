"""Qpid Broker-J with a BDB message store; everything is declared over its HTTP management."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feedhandler.lab.brokers import installations
from feedhandler.lab.brokers.declaring import BrokerAdmin
from feedhandler.lab.brokers.process import Broker

#: A small heap, and no compiler that wants more time than a test has.
MODEST_JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
MODEST_DIRECT_BYTES = "256m"
#: Room for some queues of 500 MiB; all else is the virtual machine's own choice.
JAVA = ["java", "-Xmx2g"]
DIRECT_BYTES = "4g"


def java_environment(folder: Path) -> dict[str, str]:
    """Return the environment that a Java program needs."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(folder), "LANG": "C.UTF-8"}


class BrokerJAdmin(BrokerAdmin):
    """Exchanges, queues and bindings over the HTTP management.

    The virtual host's node has the virtual host's name.
    """

    kind = "qpid"
    HTTP_PORT = 8080

    @property
    def virtual_host(self) -> str:
        """The virtual host's name, as it is."""
        return self.vhost

    @property
    def url(self) -> str:
        """The URL for a publisher, with the virtual host as its path."""
        return f"{super().url}/{quote(self.vhost, safe='')}"

    def api(self, method: str, what: str, name: str, body: Any = None) -> Any:
        """Call the management for an object `name` of the virtual host. Raises `BrokerFailed`."""
        words = (quote(self.vhost, safe=""), quote(self.vhost, safe=""), quote(name))
        return self.call(method, f"/api/latest/{what}/{'/'.join(words)}", body)

    def version(self) -> str:
        """Return the version that the broker reports, with its name."""
        return f"Broker-J {self.call('GET', '/api/latest/broker')['productVersion']}"

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Declare a durable exchange."""
        self.api("PUT", "exchange", name, {"type": kind, "durable": True, **arguments})

    def queue(
        self, name: str, exchange: str, *keys: str, durable: bool = True, bytes_max: int = 0
    ) -> None:
        """Declare a queue, bound by each key; producers of a full one wait."""
        wanted: dict[str, Any] = {"type": "standard", "durable": durable}
        if bytes_max:
            wanted["maximumQueueDepthBytes"] = bytes_max
            wanted["overflowPolicy"] = "PRODUCER_FLOW_CONTROL"
        self.api("PUT", "queue", name, wanted)
        for key in keys:
            body = {"bindingKey": key, "destination": name, "arguments": {}}
            self.api("POST", "exchange", f"{exchange}/bind", body)

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        self.api("DELETE", "queue", queue)

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange."""
        self.api("DELETE", "exchange", name)

    def empty(self, queue: str) -> None:
        """Remove every message from a queue."""
        self.api("POST", "queue", f"{queue}/clearQueue", {})

    def count(self, queue: str) -> int:
        """Count the messages in a queue."""
        return int(self.api("GET", "queue", queue)["statistics"]["queueDepthMessages"])


class BrokerJ(BrokerJAdmin, Broker):
    """An instance with one virtual host, which also serves clients that name another one."""

    READY = "BRK-1004"

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        self.programs = installations.brokerj()
        Broker.__init__(self, folder, password, modest)
        (self.http_port,) = self.ports(1)
        (folder / "initial.json").write_text(json.dumps(self._configuration()))

    def _configuration(self) -> dict[str, Any]:
        plain = {"authenticationProvider": "plain", "bindingAddress": "127.0.0.1"}
        user = {"name": self.user, "type": "managed", "password": self.password}
        aliases = [{"name": each, "type": each} for each in ("nameAlias", "defaultAlias")]
        amqp = {"name": "AMQP", "port": self.port, "protocols": ["AMQP_1_0"]}
        node = {
            "name": self.vhost,
            "type": "JSON",
            "defaultVirtualHostNode": True,
            "virtualHostInitialConfiguration": json.dumps({"type": "BDB"}),
        }
        rule = {"name": "Root", "type": "NameAndLevel", "level": "WARN", "loggerName": "ROOT"}
        return {
            "name": "test",
            "modelVersion": "9.0",
            "authenticationproviders": [
                # PLAIN without TLS too.
                {"name": "plain", "type": "Plain", "secureOnlyMechanisms": [], "users": [user]}
            ],
            "brokerloggers": [
                {"name": "console", "type": "Console", "brokerloginclusionrules": [rule]}
            ],
            "ports": [
                {**amqp, **plain, "virtualhostaliases": aliases},
                {"name": "HTTP", "port": self.http_port, "protocols": ["HTTP"], **plain},
            ],
            "virtualhostnodes": [node],
            "plugins": [
                {
                    "type": "MANAGEMENT-HTTP",
                    "name": "http",
                    "httpBasicAuthenticationEnabled": True,
                }
            ],
        }

    def command(self) -> list[str]:
        """Return the command of the Java virtual machine that becomes the broker."""
        store = ["-st", "JSON", "-sp", str(self.folder / "store.json")]
        return [
            *(MODEST_JAVA if self.modest else JAVA),
            f"-XX:MaxDirectMemorySize={MODEST_DIRECT_BYTES if self.modest else DIRECT_BYTES}",
            f"-Dqpid.work_dir={self.folder}",
            *("-cp", f"{self.programs}/lib/*", "org.apache.qpid.server.Main"),
            *(*store, "-icp", str(self.folder / "initial.json")),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of a Java program."""
        return java_environment(self.folder)
