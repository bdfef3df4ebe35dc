"""ActiveMQ Artemis: addresses are created on first use, queues by its AMQP management.

It has no exchanges: an address is a topic, and a queue on an address with wildcards gets what is
sent to any address that matches. Here the address `exchange.key` stands for a key of an exchange.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from feedhandler.lab.brokers import installations
from feedhandler.lab.brokers.brokerj import JAVA, MODEST_JAVA, java_environment
from feedhandler.lab.brokers.declaring import BrokerAdmin, BrokerFailed
from feedhandler.lab.brokers.process import Broker

#: Bytes of all addresses together, beyond which it pages to disk.
MODEST_BYTES, ALL_BYTES = "100M", "1G"
_ADDRESS_EXISTS = "AMQ229204"
#: How long its management may take to answer.
ANSWER_SECONDS = 20

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
    <global-max-size>{bytes_max}</global-max-size>
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


class ArtemisAdmin(BrokerAdmin):
    """Addresses and queues declared by Artemis' management, which takes AMQP messages."""

    kind = "artemis"

    def operation(self, resource: str, name: str, *arguments: Any) -> Any:
        """Call one operation of the management and return its result. Raises `BrokerFailed`."""
        from proton import ConnectionException, Message, ProtonException
        from proton.utils import BlockingConnection

        at = f"amqp://{self.host}:{self.port}"
        try:
            connection = BlockingConnection(
                at, user=self.user, password=self.password, timeout=ANSWER_SECONDS
            )
        except ConnectionException as error:
            raise BrokerFailed(f"{at}: {error}") from None
        try:
            answers = connection.create_receiver(None, dynamic=True)
            connection.create_sender("activemq.management").send(
                Message(
                    properties={"_AMQ_ResourceName": resource, "_AMQ_OperationName": name},
                    reply_to=answers.link.remote_source.address,
                    body=json.dumps(arguments),
                )
            )
            answer: Any = answers.receive()
        except ProtonException as error:
            raise BrokerFailed(f"{at}: {name}: {error}") from None
        finally:
            connection.close()
        if not answer.properties["_AMQ_OperationSucceeded"]:
            raise BrokerFailed(f"{at}: {name}: {answer.body}")
        return json.loads(answer.body)[0] if answer.body else None

    def version(self) -> str:
        """Return the version that the broker reports, with its name."""
        return f"Artemis {self.operation('broker', 'getVersion')}"

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Create the address, unless it exists already. Raises `BrokerFailed`."""
        try:
            self.operation("broker", "createAddress", name, "MULTICAST")
        except BrokerFailed as error:
            if _ADDRESS_EXISTS not in str(error):
                raise

    def queue(
        self, name: str, exchange: str, *keys: str, durable: bool = True, bytes_max: int = 0
    ) -> None:
        """Create a queue on the address of its key, or of the exchange where there is no key.

        A queue of Artemis has one address, so there is at most one key. A consumer attaches to
        `exchange.key::name`. The bound applies to the address; what exceeds it pages to disk.
        """
        assert len(keys) <= 1, "a queue of Artemis has one address"
        address = self.address(exchange, *keys)
        if bytes_max:
            bound = {"maxSizeBytes": bytes_max, "addressFullMessagePolicy": "PAGE"}
            self.operation("broker", "addAddressSettings", address, json.dumps(bound))
        wanted = {"name": name, "address": address, "routing-type": "MULTICAST", "durable": durable}
        self.operation("broker", "createQueue", json.dumps(wanted))
        self._addresses[name] = address

    @staticmethod
    def address(exchange: str, *keys: str) -> str:
        """Return the address that stands for a key of an exchange."""
        return ".".join((exchange, *keys)).rstrip(".")

    @cached_property
    def _addresses(self) -> dict[str, str]:
        """The addresses of the queues declared here, by queue."""
        return {}

    def delete(self, queue: str) -> None:
        """Remove a queue, its consumers and what is in it."""
        self.operation("broker", "destroyQueue", queue, True)

    def delete_exchange(self, name: str) -> None:
        """Remove the address, and the queues on it."""
        self.operation("broker", "deleteAddress", name, True)

    def source(self, queue: str) -> str:
        """Return the fully qualified name of a queue that was declared here."""
        return f"{self._addresses[queue]}::{queue}"

    def empty(self, queue: str) -> None:
        """Remove every message from a queue."""
        self.operation(f"queue.{queue}", "removeAllMessages")

    def count(self, queue: str) -> int:
        """Count the messages in a queue."""
        return int(self.operation(f"queue.{queue}", "countMessages"))


class Artemis(ArtemisAdmin, Broker):
    """One instance with one user who may do everything."""

    READY = "AMQ221007"

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        self.programs = installations.artemis()
        Broker.__init__(self, folder, password, modest)
        etc = folder / "etc"
        etc.mkdir()
        permissions = "".join(f'<permission type="{each}" roles="all"/>' for each in _PERMISSIONS)
        (etc / "broker.xml").write_text(
            _BROKER.format(
                data=escape(str(folder / "data")),
                port=self.port,
                permissions=permissions,
                bytes_max=MODEST_BYTES if modest else ALL_BYTES,
            )
        )
        for name, content in _FILES.items():
            (etc / name).write_text(
                content.format(folder=folder, user=self.user, password=self.password)
            )

    def command(self) -> list[str]:
        """Return the command of the Java virtual machine that becomes the broker."""
        etc = self.folder / "etc"
        return [
            *(MODEST_JAVA if self.modest else JAVA),
            f"-Dartemis.home={self.programs}",
            f"-Dartemis.instance={self.folder}",
            f"-Dartemis.instance.etc={etc}",
            f"-Djava.security.auth.login.config={etc}/login.config",
            f"-Dlog4j2.configurationFile=file:{etc}/log4j2.properties",
            *("-cp", f"{self.programs}/lib/artemis-boot.jar"),
            *("org.apache.activemq.artemis.boot.Artemis", "run"),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of a Java program."""
        return java_environment(self.folder)
