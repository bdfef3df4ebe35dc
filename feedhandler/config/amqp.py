"""`[amqp]`: the settings of the embedded AMQP node.

Names end in their unit; every setting has a default, but for what a user may receive. The
configuration holds passwords as hashes only, and even those are never shown.
"""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from feedhandler.addresses import is_loopback, split_address
from feedhandler.amqp.users import (
    ANONYMOUS,
    Entitlement,
    QueueRights,
    User,
    entitlement_of,
    parse_hash,
)
from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.codecs.toml_text import KeyPath, WrongKey, within
from feedhandler.codecs.toml_text import setting as _setting

#: Users of one node; an installation with more would want a directory service.
MAX_USERS = 10_000
#: The longest password file; a longer one is something else.
HASH_BYTES_MAX = 1024
#: The mask of a hash where a configuration is shown.
MASK = "***"

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_\-.@]{1,64}$")]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Bytes = Annotated[int, Meta(ge=4096, le=2**32)]


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[amqp.tls]`: the node's TLS listener; files in PEM, read again when they change."""

    listen: Annotated[str, _setting("host:port for amqps, such as 0.0.0.0:5671; empty: no TLS")] = (
        ""
    )
    certificate: Annotated[
        str, _setting("the node's certificate, and behind it what leads to its CA")
    ] = ""
    key: Annotated[str, _setting("the certificate's key, without passphrase")] = ""
    client_ca: Annotated[
        str, _setting("CAs whose client certificates are accepted; empty: none are asked for")
    ] = ""
    client_certificate: Annotated[
        Literal["optional", "required"],
        _setting("with client_ca: optional, or required of every client"),
    ] = "optional"

    @property
    def address(self) -> tuple[str, int] | None:
        """`listen` as host and port; None where there is no TLS."""
        return split_address(self.listen) if self.listen else None


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[amqp.limits]`: what one client, user or address may have; 0 for no limit of its own."""

    connections_per_address: Annotated[
        _Count, _setting("connections of one client address at a time")
    ] = 500
    connections_per_user: Annotated[
        _Count, _setting("connections of one user at a time, unless the user says otherwise")
    ] = 0
    links_per_connection: Annotated[_Count, _setting("links of one connection at a time")] = 2000
    sessions_per_connection: Annotated[
        int, _setting("sessions of one connection at a time", ge=1, le=32_768)
    ] = 2048
    attaches_per_s: Annotated[
        _Count, _setting("links that one connection may ask for a second, twice as many at once")
    ] = 1000
    unsettled_per_link: Annotated[
        int, _setting("messages on their way that a link has not settled", ge=1, le=1_000_000)
    ] = 10_000
    connections_before_login: Annotated[
        int,
        _setting(
            "connections that have not logged in yet, beside max_connections; beyond, the address "
            "with most of them makes room",
            ge=1,
            le=100_000,
        ),
    ] = 1000
    login_ms: Annotated[
        int, _setting("a client must have logged in and opened after so long", ge=100, le=600_000)
    ] = 10_000
    failed_logins: Annotated[
        _Count, _setting("log-ins of one address that may fail in a minute; then none is heard")
    ] = 20


class UserConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[amqp.users]]`: a user that may log in, and its entitlement."""

    name: Annotated[_Name, _setting("the user; `anonymous` is who logs in without a name")]
    password: Annotated[str, _setting("a hash that `feedhandler user` makes; never shown")] = ""
    password_file: Annotated[str, _setting("the file that has the hash; empty: none")] = ""
    certificate: Annotated[
        str, _setting("a name in the client's certificate: common name, DNS, mail or URI")
    ] = ""
    services: Annotated[
        tuple[str, ...], _setting("what may be received: feed.service, * for any of either")
    ]
    symbols: Annotated[
        tuple[str, ...], _setting("of these symbols: words of keys, beginnings (MS*), * for all")
    ] = ("*",)
    put: Annotated[
        tuple[str, ...], _setting("durable queues that messages may be put into; * for all")
    ] = ()
    get: Annotated[
        tuple[str, ...], _setting("durable queues whose messages may be got; * for all")
    ] = ()
    cancel: Annotated[
        tuple[str, ...], _setting("durable queues whose messages may be cancelled; * for all")
    ] = ()
    create: Annotated[
        tuple[str, ...], _setting("queues that may be created, in queues_folder; * for any name")
    ] = ()
    connections: Annotated[
        _Count, _setting("connections at a time; 0: limits.connections_per_user")
    ] = 0

    def __repr__(self) -> str:
        """Represent the user without the hash."""
        return f"UserConfig(name={self.name!r}, services={self.services!r})"

    @property
    def entitlement(self) -> Entitlement:
        """The entitlement by `services` and `symbols`. Raises `ValueError`."""
        return entitlement_of(self.services, self.symbols)

    def user(self, password: str, connections_max: int) -> User:
        """Make the user with this hash; `connections_max` is for a user without a bound."""
        return User(
            self.name,
            self.entitlement,
            password,
            self.certificate,
            self.connections or connections_max,
            QueueRights(*map(frozenset, (self.put, self.get, self.cancel, self.create))),
        )


def hash_of(user: UserConfig) -> str:
    """Return the hash of the user's password, from its file where it has one.

    Raises `ConfigError` where the file has none.
    """
    path = user.password_file
    if not path:
        return user.password
    try:
        with Path(path).open("rb") as file:
            password = file.read(HASH_BYTES_MAX).decode().strip()
        parse_hash(password)
    except OSError as error:
        raise ConfigError(
            f"{path}: {reason_of(error)}", "a file with the hash on its one line"
        ) from None
    except ValueError:
        raise ConfigError(f"{path}: holds no hash", "`feedhandler user` makes one") from None
    return password


class AmqpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[amqp]`: the embedded node and its bounds."""

    listen: Annotated[
        str,
        _setting("host:port subscribers connect to; port 0 picks one; empty: by [amqp.tls] only"),
    ] = "127.0.0.1:5672"
    anonymous: Annotated[
        bool | Literal["auto"],
        _setting("whether clients may come in without a name; auto: on loopback, without users"),
    ] = "auto"
    plain_without_tls: Annotated[
        bool, _setting("take passwords on connections without TLS, in clear text")
    ] = False
    queue_bytes: Annotated[
        _Bytes,
        _setting("waiting bytes per subscriber, room for a snapshot block; beyond it `when_full`"),
    ] = 64 * 2**20
    queues_folder: Annotated[
        str, _setting("where queues are kept that clients create; empty: none may be created")
    ] = ""
    conflate: Annotated[
        bool,
        _setting("links may ask for full=conflate; the gateway keeps every book for that"),
    ] = False
    records: Annotated[
        bool,
        _setting(
            "links may ask for normalised records (as=mbo, bbo, mbp10, trades, status, "
            "definition); the gateway keeps every book for that"
        ),
    ] = False
    when_full: Annotated[
        str,
        _setting("links that do not ask by `full=`: detach, drop_oldest or conflate"),
    ] = "detach"
    history_bytes: Annotated[
        int,
        _setting(
            "published packets kept per service for links that resume (half as much again for "
            "quality messages and snapshot blocks); 0 for none",
            ge=0,
            le=2**32,
        ),
    ] = 16 * 2**20
    max_connections: Annotated[
        int, _setting("connections at a time that have logged in", ge=1, le=100_000)
    ] = 1000
    max_links: Annotated[int, _setting("receiving links at a time", ge=1, le=1_000_000)] = 10_000
    max_frame_bytes: Annotated[
        int, _setting("largest AMQP frame, offered and accepted", ge=512, le=2**24)
    ] = 65_536
    batch_max_bytes: Annotated[
        int, _setting("largest body of an `as=batch` message", ge=1500, le=2**24)
    ] = 65_536
    idle_timeout_ms: Annotated[
        int, _setting("a peer silent for this long is dropped; 0 for never", ge=0, le=86_400_000)
    ] = 30_000
    max_symbols: Annotated[
        int, _setting("symbols remembered for routing and names", ge=1, le=100_000_000)
    ] = 1_000_000

    tls: Annotated[TlsConfig, _setting("the TLS listener, `[amqp.tls]`")] = TlsConfig()
    limits: Annotated[LimitsConfig, _setting("bounds, `[amqp.limits]`")] = LimitsConfig()
    users: Annotated[
        tuple[UserConfig, ...],
        _setting("who may log in, one `[[amqp.users]]` each", max_length=MAX_USERS),
    ] = ()

    @property
    def address(self) -> tuple[str, int] | None:
        """`listen` as host and port; None where there is only TLS."""
        return split_address(self.listen) if self.listen else None

    @property
    def lets_anonymous(self) -> bool:
        """Whether a client may log in without a name."""
        if self.anonymous != "auto":
            return self.anonymous
        addresses = [each for each in (self.address, self.tls.address) if each is not None]
        return not self.users and all(is_loopback(host) for host, _ in addresses)


def check_amqp(amqp: AmqpConfig) -> None:
    """Check `[amqp]`. Raises `WrongKey`, whose path begins within the table."""
    _check_addresses(amqp)
    _check_users(amqp)
    _check_entry(amqp)


def _check_addresses(amqp: AmqpConfig) -> None:
    addresses: tuple[tuple[KeyPath, str, str], ...] = (
        (("listen",), amqp.listen, "127.0.0.1:5672"),
        (("tls", "listen"), amqp.tls.listen, "0.0.0.0:5671"),
    )
    for key, text, example in addresses:
        try:
            if text:
                split_address(text)
        except ValueError as error:
            raise WrongKey(key, str(error), f"for example {example}") from None
    tls = amqp.tls
    if not amqp.listen and not tls.listen:
        raise WrongKey(
            ("listen",), "empty, and there is no tls.listen", "for example 127.0.0.1:5672"
        )
    if tls.listen:
        for name, value in (("certificate", tls.certificate), ("key", tls.key)):
            if not value:
                raise WrongKey(
                    ("tls", name), "missing", "tls.listen wants a certificate and its key"
                )
    elif tls.certificate or tls.key or tls.client_ca:
        raise WrongKey(("tls", "listen"), "missing", "for example 0.0.0.0:5671")
    if tls.client_certificate == "required" and not tls.client_ca:
        raise WrongKey(
            ("tls", "client_ca"), "missing", "who signs the certificates that are required"
        )


def _check_users(amqp: AmqpConfig) -> None:
    names: set[str] = set()
    certificates: set[str] = set()
    for number, user in enumerate(amqp.users):
        here: KeyPath = ("users", number)
        if user.name in names:
            raise WrongKey((*here, "name"), f"a second user {user.name!r}")
        names.add(user.name)
        if user.certificate in certificates:
            raise WrongKey((*here, "certificate"), f"a second user with {user.certificate!r}")
        certificates |= {user.certificate} - {""}
        with within(*here):
            _check_user(user)
        if user.certificate and not amqp.tls.client_ca:
            raise WrongKey(
                (*here, "certificate"), "no client certificate is asked for", "tls.client_ca"
            )


def _check_user(user: UserConfig) -> None:
    ways = [bool(user.password), bool(user.password_file), bool(user.certificate)]
    if user.name == ANONYMOUS:
        if any(ways):
            raise WrongKey(
                ("name",), "anonymous has no password and no certificate", "choose another name"
            )
    elif not any(ways):
        raise WrongKey(
            ("password",), "missing", "a hash that `feedhandler user` makes, or a certificate"
        )
    if user.password and user.password_file:
        raise WrongKey(("password",), "given twice", "password, or password_file")
    try:
        if user.password:
            parse_hash(user.password)
    except ValueError as error:
        raise WrongKey(("password",), str(error), "never the password itself") from None
    of_queues = bool(user.put or user.get or user.cancel or user.create)
    if not (user.services or of_queues) or not user.symbols:
        key = "symbols" if user.services else "services"
        raise WrongKey((key,), "empty: nothing could be received", '["*"] for all')
    try:
        entitlement_of(user.services, ("*",))
    except ValueError as error:
        raise WrongKey(("services",), str(error), "for example euronext.104, iex.*") from None
    try:
        entitlement_of(("*",), user.symbols)
    except ValueError as error:
        raise WrongKey(("symbols",), str(error), "for example AAPL, MS*") from None


def _check_entry(amqp: AmqpConfig) -> None:
    """Check that clients can log in, and that a listener's users are stated."""
    with_password = [u for u in amqp.users if u.password or u.password_file]
    if amqp.plain_without_tls and not amqp.listen:
        raise WrongKey(("plain_without_tls",), "there is no listener without TLS", "leave it out")
    if amqp.lets_anonymous or (amqp.tls.listen and amqp.users):
        return
    if with_password and amqp.plain_without_tls:
        return
    if amqp.users:
        hint = "add [amqp.tls], or plain_without_tls = true where the network is trusted"
        raise WrongKey(
            ("users", 0), "no user could log in: passwords are taken under TLS only", hint
        )
    hint = "anonymous = true where everybody on that network may receive all; or [[amqp.users]]"
    raise WrongKey(
        ("listen",), f"{amqp.listen or amqp.tls.listen} is not loopback: who may log in?", hint
    )
