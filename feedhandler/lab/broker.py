"""The broker of a laboratory run: an existing one at a URL, or one that the laboratory starts.

What it is for: `open_broker` starts a broker by name, or connects to the one at a URL; `prepare`
declares the queues of a step as the source paper had them: one for each client, bound to a direct
exchange by one key for each service, or to a topic exchange by a pattern. `publish` makes the
gateway's side of it.

    direct, packets    direct exchange, one binding for each service: `euronext.104`
    direct, messages   topic exchange, one binding for each service: `euronext.104.*`. Messages'
                       keys end with their symbol, which a direct exchange would need in the binding
    topic              topic exchange, one binding: `euronext.#`

Artemis has no exchanges: a queue has one address, so a client has a queue for each binding. Queues
are not durable, so that no measurement waits for a disk; each has the step's limit. Calls block: in
an event loop, make them on a thread.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from feedhandler.amqp.brokers import hostname_of
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.config.publishing import PublishConfig
from feedhandler.lab.brokers import (
    Absent,
    Artemis,
    ArtemisAdmin,
    Broker,
    BrokerAdmin,
    BrokerFailed,
    BrokerJ,
    BrokerJAdmin,
    RabbitMQ3,
    RabbitMQ3Admin,
    RabbitMQ4,
    RabbitMQ4Admin,
    RabbitMQAdmin,
)
from feedhandler.lab.results import Exchange
from feedhandler.lab.sampling import pids_listening

#: By the name on the command line: what may be started, the first that is installed.
STARTED: dict[str, tuple[type[Broker], ...]] = {
    "rabbitmq": (RabbitMQ3, RabbitMQ4),
    "rabbitmq-3": (RabbitMQ3,),
    "rabbitmq-4": (RabbitMQ4,),
    "artemis": (Artemis,),
    "qpid": (BrokerJ,),
}
#: By the same names: the management of a broker at a URL.
GIVEN: dict[str, type[BrokerAdmin]] = {
    "rabbitmq": RabbitMQAdmin,
    "rabbitmq-3": RabbitMQ3Admin,
    "rabbitmq-4": RabbitMQ4Admin,
    "artemis": ArtemisAdmin,
    "qpid": BrokerJAdmin,
}
#: First part of the name of everything that is declared.
PREFIX = "feedhandler-lab"
#: The virtual host of a URL that names none.
VHOSTS = {"rabbitmq": "/", "rabbitmq-3": "/", "rabbitmq-4": "/", "qpid": "default"}
AMQP_PORT = 5672
#: Unconfirmed messages of the gateway at most, unless the broker grants less credit.
WINDOW = 10_000


@dataclass(frozen=True)
class Binding:
    """The subscription of a step's clients: an exchange, its kind, and the binding keys."""

    exchange: str
    kind: str
    keys: tuple[str, ...]


def binding_of(exchange: Exchange, grain: str, feed_key: str, services: Iterable[int]) -> Binding:
    """Return the binding of a client's queue for this exchange, grain and set of services."""
    if exchange == "topic":
        return Binding(f"{PREFIX}-topic", "topic", (f"{feed_key}.#",))
    keys = tuple(f"{feed_key}.{service}" for service in services)
    if grain == "message":
        return Binding(f"{PREFIX}-direct", "topic", tuple(f"{key}.*" for key in keys))
    return Binding(f"{PREFIX}-direct", "direct", keys)


class LabBroker:
    """A running broker, with its management.

    `kind` is as in `[[publish]]`, `version` as the broker reports it; `pids` are its processes, as
    far as they run on this machine; `started` is true where the laboratory started it.
    """

    def __init__(self, admin: BrokerAdmin, started: Broker | None, pids: Sequence[int]) -> None:
        self.admin = admin
        self.started = started is not None
        self.kind = admin.kind
        self.version = admin.version()
        self.pids = list(pids)
        self._process = started
        self._queues: list[str] = []
        self._exchange = ""

    @property
    def hostname(self) -> str:
        """The hostname that clients send in the AMQP open frame."""
        vhost = "" if self.kind == "artemis" else self.admin.vhost
        return hostname_of(self.kind, self.admin.host, vhost)

    @property
    def url(self) -> str:
        """The URL for clients: with the password, without the virtual host."""
        return self.admin.base_url

    def prepare(self, binding: Binding, clients: int, limit_bytes: int) -> list[list[str]]:
        """Declare the exchange and the queues of a step; return each client's source addresses.

        Removes what was declared for the step before. Raises PeerError where the broker refuses.
        """
        single = self.kind == "artemis"
        bindings = [(key,) for key in binding.keys] if single else [binding.keys]
        found: list[list[str]] = []
        self.clear()
        with self._asking():
            self.admin.exchange(binding.exchange, binding.kind)
            self._exchange = binding.exchange
            for client in range(clients):
                sources = []
                for index, keys in enumerate(bindings):
                    name = f"{PREFIX}-{client + 1}-{index + 1}"
                    self.admin.queue(
                        name, binding.exchange, *keys, durable=False, bytes_max=limit_bytes
                    )
                    self._queues.append(name)
                    sources.append(self.admin.source(name))
                found.append(sources)
        return found

    def clear(self) -> None:
        """Remove the queues and the exchange that were declared. Raises PeerError."""
        with self._asking():
            while self._queues:
                self.admin.delete(self._queues.pop())
            if self._exchange and self.kind != "artemis":
                self.admin.delete_exchange(self._exchange)
        self._exchange = ""

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except BrokerFailed as error:
            raise PeerError(f"{self.version}: {error}") from None

    @property
    def password(self) -> str:
        """Password of the user that publishes and consumes; empty where there is none."""
        return self.admin.password

    def publish(
        self, binding: Binding, grain: str, feed_key: str, queue_bytes: int, password_file: str
    ) -> PublishConfig:
        """Return the gateway's destination; a password, if any, is read from `password_file`."""
        at = self.admin.url.partition("://")[2].rpartition("@")[2]
        user = f"{quote(self.admin.user, safe='')}@" if self.admin.user else ""
        artemis = self.kind == "artemis"
        return PublishConfig(
            name="lab",
            to=f"amqp://{user}{at}",
            password_file=password_file if self.password else "",
            kind=self.kind,  # type: ignore[arg-type]
            require_route=False,
            patterns=f"{feed_key}.#",
            grain=grain,  # type: ignore[arg-type]
            quality=False,
            stamp=True,
            window=WINDOW,
            queue_bytes=queue_bytes,
            plain_over_network=True,
            exchange="" if artemis else binding.exchange,
            topic=binding.exchange if artemis else "",
        )

    def close(self) -> None:
        """End a broker that the laboratory started; in any other, remove what was declared."""
        if self._process is not None:
            self._process.discard()
        else:
            self.clear()


def open_broker(name: str, url: str, folder: Path, management_port: int = 0) -> LabBroker:
    """Return the broker called `name`: the one at `url`, or one started in `folder`, which is made.

    Raises UsageError where it is not installed, with the command that installs it, or where the URL
    is none; PeerError where it does not start or answer.
    """
    try:
        return _given(name, url, management_port) if url else _started(name, folder)
    except BrokerFailed as error:
        raise PeerError(f"broker {name}: {error}", "is it running, and its management?") from None


def _started(name: str, folder: Path) -> LabBroker:
    folder.mkdir()
    reasons = []
    for kind in STARTED[name]:
        try:
            broker = kind(folder)
        except Absent as error:
            reasons.append(str(error))
            continue
        broker.bound = True
        try:
            broker.start()
            return LabBroker(broker, broker, [broker.pid])
        except BaseException:
            broker.discard()
            raise
    raise UsageError("; ".join(reasons), "or name one that runs: --broker-url")


def _given(name: str, url: str, management_port: int) -> LabBroker:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or AMQP_PORT
    except ValueError:
        host = None
    if parts.scheme != "amqp" or not host:
        raise UsageError("--broker-url is no amqp:// URL", "amqp://user:password@host:5672/vhost")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    vhost = unquote(parts.path[1:]) or VHOSTS.get(name, "")
    kind = GIVEN[name]
    address = (host, port, management_port or kind.HTTP_PORT, user, password, vhost)
    made = kind(*address)
    made.patience_s = 0.0
    if kind is RabbitMQAdmin:
        major = made.version().rpartition(" ")[2].partition(".")[0]
        made = (RabbitMQ3Admin if major == "3" else RabbitMQ4Admin)(*address)
        made.patience_s = 0.0
    return LabBroker(made, None, pids_listening(port) if _is_here(host) else [])


def _is_here(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
