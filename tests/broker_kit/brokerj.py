"""Qpid Broker-J, its messages in a BDB store, everything declared over its HTTP management."""

import json
import os
from pathlib import Path
from typing import Any

from . import places
from .process import USER, VHOST, Broker, call, free_ports

#: A small heap, and no compiler that wants more time than a test has.
JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def java_environment(folder: Path) -> dict[str, str]:
    """What a Java program needs to know."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(folder), "LANG": "C.UTF-8"}


class BrokerJ(Broker):
    """One virtual host, which also who names another one comes to."""

    kind = "qpid"
    READY = "BRK-1004"
    virtual_host = VHOST

    def __init__(self, folder: Path) -> None:
        self.programs = places.brokerj()
        super().__init__(folder)
        (self.http_port,) = free_ports(1)
        (folder / "initial.json").write_text(json.dumps(self._configuration()))

    @property
    def url(self) -> str:
        return f"{super().url}/{VHOST}"

    def _configuration(self) -> dict[str, Any]:
        plain = {"authenticationProvider": "plain", "bindingAddress": "127.0.0.1"}
        user = {"name": USER, "type": "managed", "password": self.password}
        aliases = [{"name": each, "type": each} for each in ("nameAlias", "defaultAlias")]
        amqp = {"name": "AMQP", "port": self.port, "protocols": ["AMQP_1_0"]}
        node = {
            "name": VHOST,
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
        store = ["-st", "JSON", "-sp", str(self.folder / "store.json")]
        return [
            *JAVA,
            "-XX:MaxDirectMemorySize=256m",
            f"-Dqpid.work_dir={self.folder}",
            *("-cp", f"{self.programs}/lib/*", "org.apache.qpid.server.Main"),
            *(*store, "-icp", str(self.folder / "initial.json")),
        ]

    def environment(self) -> dict[str, str]:
        return java_environment(self.folder)

    # -- what is in it ----------------------------------------------------------------------

    def api(self, method: str, what: str, name: str, body: Any = None) -> Any:
        """One call of the management: of an object `name` in the virtual host."""
        path = f"/api/latest/{what}/{VHOST}/{VHOST}/{name}"
        return call(self.http_port, method, path, self.password, body)

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        self.api("PUT", "exchange", name, {"type": kind, "durable": True, **arguments})

    def queue(self, name: str, exchange: str, *keys: str) -> None:
        self.api("PUT", "queue", name, {"type": "standard", "durable": True})
        for key in keys:
            body = {"bindingKey": key, "destination": name, "arguments": {}}
            self.api("POST", "exchange", f"{exchange}/bind", body)

    def empty(self, queue: str) -> None:
        self.api("POST", "queue", f"{queue}/clearQueue", {})

    def count(self, queue: str) -> int:
        return int(self.api("GET", "queue", queue)["statistics"]["queueDepthMessages"])
