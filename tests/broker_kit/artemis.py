"""ActiveMQ Artemis: addresses made by whoever names them, queues by its AMQP management.

It has no exchanges: an address is a topic, and a queue on an address with wildcards gets what is
sent to any address that matches. `exchange.key` stands for the key of an exchange here.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from . import places
from .brokerj import JAVA, java_environment
from .process import USER, Broker

_PERMISSIONS = (
    "createAddress",
    "deleteAddress",
    "createDurableQueue",
    "deleteDurableQueue",
    "createNonDurableQueue",
    "deleteNonDurableQueue",
    "send",
    "consume",
    "browse",
    "manage",
)

_BROKER = """\
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>test</name>
    <journal-type>NIO</journal-type>
    <paging-directory>{data}/paging</paging-directory>
    <bindings-directory>{data}/bindings</bindings-directory>
    <journal-directory>{data}/journal</journal-directory>
    <large-messages-directory>{data}/large</large-messages-directory>
    <journal-min-files>2</journal-min-files>
    <journal-pool-files>4</journal-pool-files>
    <journal-file-size>10M</journal-file-size>
    <global-max-size>100M</global-max-size>
    <acceptors>
      <acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP</acceptor>
    </acceptors>
    <security-settings>
      <security-setting match="#">{permissions}</security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <auto-delete-queues>false</auto-delete-queues>
        <auto-delete-addresses>false</auto-delete-addresses>
        <default-address-routing-type>MULTICAST</default-address-routing-type>
        <default-queue-routing-type>MULTICAST</default-queue-routing-type>
        <max-delivery-attempts>-1</max-delivery-attempts>
      </address-setting>
    </address-settings>
  </core>
</configuration>
"""

_FILES = {
    "bootstrap.xml": """\
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration="file:{folder}/etc/broker.xml"/>
</broker>
""",
    "management.xml": '<management-context xmlns="http://activemq.apache.org/schema"/>\n',
    "login.config": """\
activemq {{
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    org.apache.activemq.jaas.properties.user="users.properties"
    org.apache.activemq.jaas.properties.role="roles.properties";
}};
""",
    "users.properties": "{user} = {password}\n",
    "roles.properties": "all = {user}\n",
    "log4j2.properties": """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
logger.server.name = org.apache.activemq.artemis.core.server
logger.server.level = INFO
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %m%n
""",
}


class Artemis(Broker):
    """One instance with one user who may do everything."""

    kind = "artemis"
    READY = "AMQ221007"

    def __init__(self, folder: Path) -> None:
        self.programs = places.artemis()
        super().__init__(folder)
        self._addresses: dict[str, str] = {}
        etc = folder / "etc"
        etc.mkdir()
        permissions = "".join(f'<permission type="{each}" roles="all"/>' for each in _PERMISSIONS)
        (etc / "broker.xml").write_text(
            _BROKER.format(
                data=escape(str(folder / "data")), port=self.port, permissions=permissions
            )
        )
        for name, content in _FILES.items():
            (etc / name).write_text(
                content.format(folder=folder, user=USER, password=self.password)
            )

    def command(self) -> list[str]:
        etc = self.folder / "etc"
        return [
            *JAVA,
            f"-Dartemis.home={self.programs}",
            f"-Dartemis.instance={self.folder}",
            f"-Dartemis.instance.etc={etc}",
            f"-Djava.security.auth.login.config={etc}/login.config",
            f"-Dlog4j2.configurationFile=file:{etc}/log4j2.properties",
            *("-cp", f"{self.programs}/lib/artemis-boot.jar"),
            *("org.apache.activemq.artemis.boot.Artemis", "run"),
        ]

    def environment(self) -> dict[str, str]:
        return java_environment(self.folder)

    # -- what is in it ----------------------------------------------------------------------

    def operation(self, resource: str, name: str, *arguments: Any) -> Any:
        """One operation of the management, asked as a message; what it returns."""
        from proton import Message
        from proton.utils import BlockingConnection

        connection = BlockingConnection(
            f"amqp://127.0.0.1:{self.port}", user=USER, password=self.password, timeout=20
        )
        try:
            answers = connection.create_receiver(None, dynamic=True)
            connection.create_sender("activemq.management").send(
                Message(
                    properties={"_AMQ_ResourceName": resource, "_AMQ_OperationName": name},
                    reply_to=answers.link.remote_source.address,
                    body=json.dumps(arguments),
                )
            )
            answer = answers.receive()
        finally:
            connection.close()
        assert answer.properties["_AMQ_OperationSucceeded"], f"{name}: {answer.body}"
        return json.loads(answer.body)[0] if answer.body else None

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        self.operation("broker", "createAddress", name, "MULTICAST")

    def queue(self, name: str, exchange: str, *keys: str) -> None:
        """A queue has one address: at most one key, and none is the exchange's name itself."""
        assert len(keys) <= 1, "a queue of Artemis has one address"
        address = ".".join((exchange, *keys)).rstrip(".")
        wanted = {"name": name, "address": address, "routing-type": "MULTICAST", "durable": True}
        self.operation("broker", "createQueue", json.dumps(wanted))
        self._addresses[name] = address

    def source(self, queue: str) -> str:
        return f"{self._addresses[queue]}::{queue}"

    def empty(self, queue: str) -> None:
        self.operation(f"queue.{queue}", "removeAllMessages")

    def count(self, queue: str) -> int:
        return int(self.operation(f"queue.{queue}", "countMessages"))
