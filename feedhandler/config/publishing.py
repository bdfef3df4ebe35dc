"""`[[publish]]`: the settings of a broker that the gateway publishes to.

A password is never shown: not by `repr`, not in an error, not by `config show`. It may stand in
the URL, in an environment variable or in a file; the latter two are read when the gateway starts.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta, Struct

from feedhandler.addresses import is_loopback
from feedhandler.amqp import brokers
from feedhandler.amqp.policies import DESTINATION_POLICIES, JOURNAL, fault_of_policy
from feedhandler.codecs.toml_text import WrongKey, within
from feedhandler.codecs.toml_text import setting as _setting
from feedhandler.config.amqp import MASK
from feedhandler.config.tcp_lines import password_of

AMQP_PORT = 5672
TLS_PORT = 5671
#: Brokers published to: each is a connection, a queue and a window of its own.
MAX_DESTINATIONS = 64
#: With a journal: the largest batch that its blocks are made for; and a job at the journal may
#: read and write one eighth of `queue_bytes`, which has to hold a batch and the largest packet.
JOURNAL_BATCH_BYTES_MAX = 4 * 2**20
JOURNAL_SHARE = 8
JOURNAL_PACKET_BYTES = 80_000

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
_Bytes = Annotated[int, Meta(ge=65_536, le=2**32)]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker, and our credentials there. `user` is empty for none."""

    host: str
    port: int
    vhost: str
    user: str
    password: str = field(repr=False)
    encrypted: bool = False

    @property
    def shown(self) -> str:
        """The address for people, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether the broker is on this machine."""
        return is_loopback(self.host)


class PublishConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[publish]]`: one destination."""

    name: Annotated[_Name, _setting("names the destination in statistics and messages")]
    to: Annotated[str, _setting("amqp://user:password@host:port/vhost; shown without password")]
    exchange: Annotated[
        str, _setting("RabbitMQ, Broker-J: the exchange; a message's subject is its routing key")
    ] = ""
    topic: Annotated[
        str, _setting("Artemis: each message goes to the address `<topic>.<subject>`, multicast")
    ] = ""
    queue: Annotated[str, _setting("the one queue for all messages")] = ""
    declare: Annotated[
        bool, _setting("have what is missing made, where the broker does that over AMQP")
    ] = True
    password_env: Annotated[
        str, _setting("the environment variable that has the password; empty: none")
    ] = ""
    password_file: Annotated[str, _setting("the file that has the password; empty: none")] = ""
    ca: Annotated[
        str, _setting("CAs whose brokers are believed, a file in PEM; empty: the system's")
    ] = ""
    certificate: Annotated[str, _setting("our certificate, a file in PEM; empty: none")] = ""
    key: Annotated[str, _setting("its key, a file in PEM without passphrase")] = ""
    plain_over_network: Annotated[
        bool, _setting("send the password unencrypted to another machine than this one")
    ] = False
    kind: Annotated[
        Literal["auto", "rabbitmq-3", "rabbitmq-4", "artemis", "qpid"],
        _setting("the broker's kind: auto (as it says itself), or one of them"),
    ] = "auto"
    management: Annotated[
        str, _setting("RabbitMQ 3: URL of the management plugin, to see that there is a queue")
    ] = ""
    require_route: Annotated[
        bool, _setting("publish only where what no queue is bound for is not confirmed")
    ] = True
    patterns: Annotated[
        str, _setting("what to publish: patterns as in a subscription, with commas between")
    ] = "#"
    types: Annotated[str, _setting("only these message types, with commas between; empty: all")] = (
        ""
    )
    grain: Annotated[
        Literal[
            "packet", "batch", "message", "mbo", "bbo", "mbp10", "trades", "status", "definition"
        ],
        _setting(
            "what one AMQP message holds: packet, batch or message; or, where amqp.records is on, "
            "a batch of normalised records: mbo, bbo, mbp10, trades, status or definition"
        ),
    ] = msgspec.field(name="as", default="packet")
    quality: Annotated[bool, _setting("publish quality messages too")] = True
    stamp: Annotated[
        bool, _setting("with the kernel's receive stamp: the annotation x-opt-received-ns")
    ] = False
    window: Annotated[int, _setting("unconfirmed messages at most", ge=1, le=10_000)] = 2000
    queue_bytes: Annotated[
        _Bytes, _setting("bytes that wait or are unconfirmed at most; beyond it `when_full`")
    ] = 64 * 2**20
    when_full: Annotated[
        str,
        _setting(
            "what gives way at that bound: drop_oldest, detach, conflate; or journal: nothing"
        ),
    ] = "drop_oldest"
    journal_folder: Annotated[
        str, _setting("journal: the folder of this destination's journal; made where it is not")
    ] = ""
    journal_bytes_max: Annotated[
        int,
        _setting(
            "journal: bytes of its files at most; then new messages are dropped", ge=2**26, le=2**36
        ),
    ] = 2**30
    journal_durability: Annotated[
        Literal["fast", "durable"],
        _setting("journal: fast survives a killed gateway, durable (synced) a power cut too"),
    ] = "fast"
    journal_max_us: Annotated[
        int,
        _setting("journal: what is unconfirmed is written after so long", ge=0, le=10**7),
    ] = 2000
    batch_max_bytes: Annotated[int, _setting("largest body of a batch", ge=1500, le=2**24)] = 65_536
    batch_max_us: Annotated[
        int,
        _setting(
            "a batch gathers this long at most while more waits; 0: not past a hand-over",
            ge=0,
            le=10**7,
        ),
    ] = 1000
    max_frame_bytes: Annotated[int, _setting("largest AMQP frame taken", ge=512, le=2**24)] = 65_536
    idle_timeout_ms: Annotated[
        int, _setting("a broker silent for this long is dropped; 0: never", ge=0, le=86_400_000)
    ] = 30_000
    connect_timeout_us: Annotated[
        int, _setting("connecting may take this long, until the link is there", ge=1000, le=10**9)
    ] = 10_000_000
    confirm_timeout_us: Annotated[
        int,
        _setting(
            "a broker that says nothing of a message for so long is connected to anew; 0: never",
            ge=0,
            le=10**10,
        ),
    ] = 60_000_000
    reconnect_us: Annotated[
        int, _setting("first wait before connecting again; doubles, with jitter", ge=1000, le=10**9)
    ] = 100_000
    reconnect_max_us: Annotated[
        int, _setting("longest wait before connecting again", ge=1000, le=10**10)
    ] = 10_000_000

    def __repr__(self) -> str:
        """Represent the destination without its password."""
        return f"PublishConfig(name={self.name!r}, to={self.shown_to!r})"

    @property
    def address(self) -> str:
        """The published part of the stream, as a subscription's address."""
        types = f"&types={self.types}" if self.types else ""
        stamp = "&stamp=1" if self.stamp else ""
        return f"{self.patterns}?as={self.grain}&quality={int(self.quality)}{types}{stamp}"

    @property
    def form(self) -> Literal["exchange", "topic", "queue"]:
        """The kind of target that messages go to: the key that is set."""
        if self.exchange:
            return "exchange"
        return "topic" if self.topic else "queue"

    @property
    def goal(self) -> str:
        """The name of the exchange, topic or queue."""
        return self.exchange or self.topic or self.queue

    @property
    def shown_to(self) -> str:
        """`to` with the password masked."""
        head, at, rest = self.to.rpartition("@")
        scheme, slashes, user = head.partition("://")
        if not at or ":" not in user:
            return self.to
        return f"{scheme}{slashes}{user.partition(':')[0]}:{MASK}@{rest}"

    @property
    def broker_address(self) -> BrokerAddress:
        """`to`, parsed. Raises `ValueError`, without the text, where it is no AMQP URL."""
        try:
            parts = urlsplit(self.to)
            port = parts.port or (TLS_PORT if parts.scheme == "amqps" else AMQP_PORT)
            (parts.hostname or "").encode("idna")  # UnicodeError for a name that no resolver takes
        except ValueError:
            raise ValueError("no URL with a host and a port") from None
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("wants amqp[s]://host, with user, password, port and vhost as needed")
        if parts.query or parts.fragment:
            raise ValueError("nothing may follow the vhost; write # ? / as %23 %3F %2F")
        return BrokerAddress(
            parts.hostname,
            port,
            unquote(parts.path[1:]),
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            parts.scheme == "amqps",
        )

    def resolved(self) -> BrokerAddress:
        """Return the address with its password, from the environment or a file where configured so.

        Raises `ConfigError` where it cannot be read.
        """
        address, where = self.broker_address, f"publish {self.name!r}: "
        password = password_of(self.password_env, self.password_file, where)
        return replace(address, password=password or address.password)


def check_destinations(destinations: tuple[PublishConfig, ...]) -> None:
    """Check the `[[publish]]` tables. Raises `WrongKey`, whose path begins with the number."""
    names: set[str] = set()
    folders: set[str] = set()
    for number, destination in enumerate(destinations):
        if destination.name in names:
            raise WrongKey((number, "name"), f"a second destination {destination.name!r}")
        names.add(destination.name)
        with within(number):
            _check(destination)
        if folder := destination.journal_folder:
            if os.path.realpath(folder) in folders:
                hint = "each destination has a journal of its own"
                raise WrongKey((number, "journal_folder"), f"a second journal in {folder}", hint)
            folders.add(os.path.realpath(folder))


def _check(config: PublishConfig) -> None:
    try:
        address = config.broker_address
    except ValueError as error:
        raise WrongKey(
            ("to",), str(error), "for example amqp://feed@10.0.0.5:5672/market"
        ) from None
    sources = [bool(address.password), bool(config.password_env), bool(config.password_file)]
    if sum(sources) > 1:
        raise WrongKey(
            ("to",), "has more than one password", "in the URL, password_env, or password_file"
        )
    if any(sources) and not address.user:
        raise WrongKey(("to",), "has a password but no user", "amqp://user@host:port/vhost")
    secret = bool(address.user) and not address.local and not config.plain_over_network
    if secret and not address.encrypted:
        hint = "amqps://, or plain_over_network = true where the network between is trusted"
        raise WrongKey(("to",), "would send the password unencrypted to another machine", hint)
    if wrong := fault_of_policy(config.when_full, config.quality, DESTINATION_POLICIES):
        raise WrongKey(("when_full",), wrong, f"one of {', '.join(DESTINATION_POLICIES)}")
    if secret and config.management.startswith("http://"):
        hint = "https://, or plain_over_network = true where the network between is trusted"
        raise WrongKey(
            ("management",), "would send the password unencrypted to another machine", hint
        )
    for key in ("ca", "certificate", "key"):
        if getattr(config, key) and not address.encrypted:
            raise WrongKey((key,), "says nothing without TLS", "write amqps:// in `to`")
    if bool(config.certificate) != bool(config.key):
        missing = "key" if config.certificate else "certificate"
        raise WrongKey((missing,), "missing", "a certificate and its key")
    _check_goal(config)
    _check_management(config)
    _check_bounds(config)
    _check_journal(config)


def _check_goal(config: PublishConfig) -> None:
    """Check the exchange, topic or queue."""
    goals = [key for key in ("exchange", "topic", "queue") if getattr(config, key)]
    if not goals:
        hint = 'exchange = "amq.topic" is there in every RabbitMQ and Broker-J; Artemis wants topic'
        raise WrongKey(("exchange",), "empty, and neither topic nor queue is set", hint)
    if len(goals) > 1:
        raise WrongKey(
            (goals[1],), f"beside {goals[0]}", "exactly one of exchange, topic and queue"
        )
    if wrong := brokers.unlike(config.kind, config.form):
        raise WrongKey((config.form,), *wrong)
    if config.kind == brokers.ARTEMIS and config.broker_address.vhost:
        raise WrongKey(
            ("to",), "names a virtual host, and Artemis has none", "end it behind the port"
        )


def _check_management(config: PublishConfig) -> None:
    """Check the settings for looking up an exchange's queues."""
    if config.management and not config.management.startswith(("http://", "https://")):
        raise WrongKey(
            ("management",), "is no http:// or https:// URL", "for example http://10.0.0.5:15672"
        )
    if "@" in config.management:
        raise WrongKey(("management",), "may not hold a user", "the one of `to` is used")
    if config.management and config.kind not in ("auto", brokers.RABBITMQ_3):
        raise WrongKey(("management",), "only RabbitMQ 3 is asked there", "take it out")
    made = config.queue and config.declare
    needed = config.require_route and not made and not config.management
    if config.kind == brokers.RABBITMQ_3 and needed:
        hint = "set management, or require_route = false to trust that it leads on"
        raise WrongKey(
            ("require_route",), "wants management, to see whether there is a queue", hint
        )


def _check_bounds(config: PublishConfig) -> None:
    if config.queue_bytes < 2 * config.batch_max_bytes:
        raise WrongKey(
            ("queue_bytes",), "is less than two batches", "make it larger, or batch_max_bytes less"
        )


def _check_journal(config: PublishConfig) -> None:
    if config.when_full != JOURNAL:
        if config.journal_folder:
            raise WrongKey(("journal_folder",), "says nothing by itself", 'when_full = "journal"')
        return
    if not config.journal_folder:
        hint = f'for example journal_folder = "/var/lib/feedhandler/{config.name}"'
        raise WrongKey(("journal_folder",), "missing, with when_full = journal", hint)
    if config.batch_max_bytes > JOURNAL_BATCH_BYTES_MAX:
        hint = f"at most {JOURNAL_BATCH_BYTES_MAX} with when_full = journal"
        raise WrongKey(("batch_max_bytes",), "is more than an item of the journal holds", hint)
    least = JOURNAL_SHARE * (config.batch_max_bytes + JOURNAL_PACKET_BYTES)
    if config.queue_bytes < least:
        hint = f"at least {least}, or batch_max_bytes less"
        raise WrongKey(("queue_bytes",), "is too little for when_full = journal", hint)
