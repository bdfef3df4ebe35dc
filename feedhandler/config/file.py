"""The gateway's configuration: one frozen object, read from one TOML file.

`load_config(path)` reads, checks and returns a `Config`, or raises `ConfigError` with the file, the
line, the key and what is wrong with it. All settings are checked here, once; no other module checks
them again. Names end in their unit. Every setting has a default except what only the operator can
know: the channels and their lines. `show` writes a configuration back.

Whether a port is free or a group can be joined shows when the gateway runs, not here.
"""

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from feedhandler.addresses import is_endpoint, split_address
from feedhandler.amqp.policies import CONFLATE, LINK_POLICIES, POLICIES, fault_of_policy
from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.codecs.toml_text import (
    KeyPath,
    WrongKey,
    convert,
    parse_as,
    path_text,
    read_text,
    within,
)
from feedhandler.codecs.toml_text import setting as _setting
from feedhandler.config.amqp import AmqpConfig, check_amqp
from feedhandler.config.observing import HealthConfig, MetricsConfig
from feedhandler.config.publishing import MAX_DESTINATIONS, PublishConfig, check_destinations
from feedhandler.config.queues import MAX_QUEUES, DurableQueueConfig, check_queues
from feedhandler.config.recording import FILES_MIN, RecordConfig
from feedhandler.config.tcp_lines import TcpConfig, check_tcp, password_of
from feedhandler.config.trading_day import TradingDayConfig, check_day
from feedhandler.ingest.groups import check_group
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.operator_log import LogConfig
from feedhandler.retrans.settings import RecoverySettings

#: A channel with more lines than this is a mistake in the file: exchanges send two.
MAX_LINES = 8
#: Channels one process may carry: beyond it, shard by service over processes.
MAX_CHANNELS = 256
#: The simulated exchange's service of reference data.
LOOPBACK_REFERENCE = 101
#: Servers that resend packets: one or two of each kind that an exchange has, with a margin.
MAX_SERVERS = 64
#: The size of a block of whole packets in a link's queue, as a multiple of its packets' bytes: each
#: is framed and has an entry there, some 200 bytes.
BLOCK_FRAMING = 1.25
#: A history holds two of the largest datagrams at least.
HISTORY_BYTES_MIN = 131_072
#: Characters of a SourceID on the wire.
SOURCE_ID_CHARS = 20

#: Hosts of a listener on all addresses of this machine.
_ALL_ADDRESSES = {"0.0.0.0", "::"}

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
_Bytes = Annotated[int, Meta(ge=4096, le=2**32)]


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[gateway]`: the process, and settings of all its channels."""

    name: Annotated[_Name, _setting("names the gateway in logs and statistics")] = "gateway"
    feed: Annotated[
        str, _setting("a built-in feed (see `feedhandler feeds`), or a description's path (.toml)")
    ] = "euronext-utp-md"
    interface: Annotated[
        str, _setting("where lines are joined unless they say otherwise: a name or an address")
    ] = "127.0.0.1"
    loop: Annotated[Literal["uvloop", "asyncio"], _setting("the event loop: uvloop or asyncio")] = (
        "uvloop"
    )
    symbols: Annotated[
        Literal["index", "name"],
        _setting("symbols in routing keys: index, or name once reference data is known"),
    ] = "index"
    stay_awake: Annotated[
        bool,
        _setting(
            "keep idle processors from halting meanwhile: wake-ups are quicker, power is spent"
        ),
    ] = False

    coalesce_us: Annotated[
        int,
        _setting(
            "rest after a hand-over for each connection it wrote to: fewer, fuller writes; 0: none",
            ge=0,
            le=1000,
        ),
    ] = 0


class ReceiveConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[receive]`: the receive thread and its ring to the event loop."""

    ring_bytes: Annotated[_Bytes, _setting("hand-over ring to the event loop; a power of two")] = (
        8 * 2**20
    )
    socket_buffer_bytes: Annotated[
        _Bytes, _setting("receive buffer asked of the kernel, per line")
    ] = 8 * 2**20
    cpu: Annotated[
        int, _setting("processor the receive thread is pinned to; -1 for none", ge=-1, le=4095)
    ] = -1


class OverlayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[overlay]`: the receivers of lines that come through the overlay, a thread each."""

    gap_wait_us: Annotated[
        int,
        _setting(
            "a message waits so long beyond its deadline for a missing one before it",
            ge=0,
            le=1_000_000,
        ),
    ] = 2_000
    follow_clock: Annotated[
        bool, _setting("ask the parent for the sender's time: neither chrony nor PTP keeps clocks")
    ] = False
    cpu: Annotated[
        int, _setting("processor these threads are pinned to; -1 for none", ge=-1, le=4095)
    ] = -1


class StatsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[stats]`: the statistics bus."""

    bind: Annotated[
        str, _setting("ZeroMQ PUB endpoint such as tcp://127.0.0.1:5571; empty for none")
    ] = ""
    interval_ms: Annotated[int, _setting("time between snapshots", ge=10, le=3_600_000)] = 1000


class ControlConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[control]`: the control socket, which answers `feedhandler status`."""

    bind: Annotated[
        str, _setting("ZeroMQ endpoint such as ipc:///run/gateway.ipc; empty for none")
    ] = ""


class LineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[channel.line]]`: one line, by multicast, through the overlay or by TCP."""

    name: Annotated[_Name, _setting("names the line in statistics: A, B")]
    group: Annotated[str, _setting("the multicast group; none with a topology")] = ""
    port: Annotated[int, _setting("the UDP port", ge=0, le=65535)] = 0
    interface: Annotated[str, _setting("name or address; empty: the gateway's")] = ""
    source: Annotated[
        str, _setting("only from this sender, or these with commas between (SSM); empty: any")
    ] = ""
    source_filter: Annotated[
        Literal["kernel", "count"],
        _setting("who drops other senders: kernel, unseen; or count, by an any-source join"),
    ] = "kernel"
    topology: Annotated[
        str, _setting("a tree's file, or several with commas, in place of a group: an overlay line")
    ] = ""
    member: Annotated[
        str, _setting("which receiver of the topology the gateway is, such as receiver-0")
    ] = ""
    #: The server, in place of a group, of a line that comes by TCP.
    tcp: TcpConfig | None = None

    @property
    def topologies(self) -> tuple[str, ...]:
        """The files of the trees that carry the line; none for a multicast line."""
        return tuple(word.strip() for word in self.topology.split(",")) if self.topology else ()

    @property
    def overlay(self) -> tuple[tuple[str, ...], str] | None:
        """The topologies' files and the member; None for a multicast line."""
        return (self.topologies, self.member) if self.topology else None


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[server]]`: a retransmission or refresh server of the exchange, reached over TCP."""

    name: Annotated[_Name, _setting("names the server in channels and statistics: rts, rfs")]
    address: Annotated[str, _setting("host:port to connect to")]
    secondary: Annotated[
        str, _setting("host:port of the server that is asked where that one fails; empty: none")
    ] = ""
    source_id: Annotated[
        str,
        _setting(
            "who we are, as agreed with the exchange; 20 characters at most. This, `product`, "
            "`session` and a password are refused where the server's protocol has no use for them"
        ),
    ] = "feedhandler"
    product: Annotated[
        int,
        _setting("the feed's ProductID in requests (NYSE); other servers have none", ge=0, le=255),
    ] = 0
    session: Annotated[
        str,
        _setting("the session to log in to (Cboe: SessionSubId; GLIMPSE: empty, the current)"),
    ] = ""
    password_env: Annotated[
        str, _setting("the environment variable that has the password; empty: none")
    ] = ""
    password_file: Annotated[str, _setting("the file that has the password; empty: none")] = ""
    #: Groups that the server answers by, where not in the connection.
    lines: Annotated[tuple["ServerLineConfig", ...], Meta(max_length=MAX_LINES)] = field(
        name="line", default=()
    )

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """`address`, and `secondary` where there is one, as host and port. Raises `ValueError`."""
        return tuple(split_address(each) for each in (self.address, self.secondary) if each)

    def password(self) -> str:
        """Return the password, from the environment or a file; "" where neither is named.

        Raises `ConfigError` where it is not there.
        """
        where = f"server {self.name!r}: "
        return password_of(self.password_env, self.password_file, where)


class ServerLineConfig(LineConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[server.line]]`: a retransmission group, by which a FIX server answers many at once."""


class RetransmissionLineConfig(LineConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[channel.retransmission_line]]`: one multicast line by which requested packets come."""


class RefreshLineConfig(LineConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[channel.refresh_line]]`: one multicast line that carries the channel's snapshots."""


class ChannelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[channel]]`: one sequence-number space, its lines, and the servers that resend packets."""

    service: Annotated[int, _setting("the service, second word of keys", ge=0, le=65535)]
    retransmission: Annotated[
        str, _setting("the server that is asked for what every line lost; empty: none")
    ] = ""
    refresh: Annotated[
        str, _setting("the server that is asked for snapshots; empty: only unasked ones")
    ] = ""
    reference: Annotated[
        bool, _setting("carries the reference data: refreshed before any other channel")
    ] = False
    topic: Annotated[
        str, _setting("the channel's id in requests to FIX servers; other feeds have none")
    ] = ""
    target: Annotated[
        str, _setting("TargetCompID of the channel's FIX messages; empty: as topic")
    ] = ""
    lines: Annotated[tuple[LineConfig, ...], Meta(min_length=1, max_length=MAX_LINES)] = field(
        name="line"
    )
    refresh_lines: Annotated[tuple[RefreshLineConfig, ...], Meta(max_length=MAX_LINES)] = field(
        name="refresh_line", default=()
    )
    retransmission_lines: Annotated[
        tuple[RetransmissionLineConfig, ...], Meta(max_length=MAX_LINES)
    ] = field(name="retransmission_line", default=())

    @property
    def refreshes(self) -> bool:
        """Return whether snapshots are available."""
        return bool(self.refresh or self.refresh_lines)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration; made by `load_config`, `parse_config` or `loopback_config`."""

    gateway: GatewaySettings = GatewaySettings()
    trading_day: TradingDayConfig = TradingDayConfig()
    arbitration: ArbitrationSettings = ArbitrationSettings()
    recovery: RecoverySettings = RecoverySettings()
    receive: ReceiveConfig = ReceiveConfig()
    overlay: OverlayConfig = OverlayConfig()
    amqp: AmqpConfig = AmqpConfig()
    stats: StatsConfig = StatsConfig()
    control: ControlConfig = ControlConfig()
    record: RecordConfig = RecordConfig()
    metrics: MetricsConfig = MetricsConfig()
    health: HealthConfig = HealthConfig()
    log: LogConfig = LogConfig()
    publish: Annotated[tuple[PublishConfig, ...], Meta(max_length=MAX_DESTINATIONS)] = ()
    queues: Annotated[tuple[DurableQueueConfig, ...], Meta(max_length=MAX_QUEUES)] = field(
        name="queue", default=()
    )
    servers: Annotated[tuple[ServerConfig, ...], Meta(max_length=MAX_SERVERS)] = field(
        name="server", default=()
    )
    channels: Annotated[tuple[ChannelConfig, ...], Meta(min_length=1, max_length=MAX_CHANNELS)] = (
        field(name="channel")
    )

    @property
    def overlay_lines(self) -> list[tuple[KeyPath, LineConfig]]:
        """Lines that come through the overlay, with their key paths in the file."""
        return [
            (("channel", number, key, position), line)
            for number, channel in enumerate(self.channels)
            for key, lines in (("line", channel.lines), ("refresh_line", channel.refresh_lines))
            for position, line in enumerate(lines)
            if line.topology
        ]

    @property
    def tcp_lines(self) -> list[tuple[KeyPath, LineConfig, TcpConfig]]:
        """Lines that come by TCP, with their key paths in the file and their servers."""
        return [
            (("channel", number, "line", position), line, line.tcp)
            for number, channel in enumerate(self.channels)
            for position, line in enumerate(channel.lines)
            if line.tcp is not None
        ]

    def interface_of(self, line: LineConfig) -> str:
        """Return the interface where `line` is joined: its own, or the gateway's."""
        return line.interface or self.gateway.interface

    @property
    def waiting_bytes_max(self) -> int:
        """The upper bound of bytes that wait for all links and destinations together."""
        links = self.amqp.max_links * self.amqp.queue_bytes
        return links + sum(destination.queue_bytes for destination in self.publish)

    @property
    def conflates(self) -> bool:
        """Return whether any link or destination may be conflated, which needs books."""
        policies = {self.amqp.when_full, *(each.when_full for each in self.publish)}
        return self.amqp.conflate or CONFLATE in policies


def load_config(path: str | Path) -> Config:
    """Load and check the configuration in file `path`.

    Raises `ConfigError` naming file, line and key.
    """
    text = read_text(path, "docs/gateway.toml is an example to start from")
    return parse_config(text, str(path))


def parse_config(text: str, source: str = "configuration") -> Config:
    """Parse and check the configuration in `text`; `source` names it in errors.

    Raises `ConfigError` naming line and key.
    """
    return parse_as(text, source, "configuration", _checked)


def _checked(values: dict[str, Any]) -> Config:
    """Convert and check the values of a configuration. Raises `WrongKey`."""
    config = _convert(values)
    for check in _CHECKS:
        check(config)
    return config


def loopback_config(
    feed: str = "euronext-utp-md",
    services: Iterable[int] = range(101, 108),
    listen: str = "127.0.0.1:0",
    port_base: int = 30_000,
    with_servers: bool = False,
    **sections: Any,
) -> Config:
    """Make a configuration for `services` over loopback, as `feedhandler exchange` sends them.

    Line A of service s is 239.101.1.(s-100):(port_base+s), line B 239.101.2.(s-100):(1000 more).
    `with_servers`: its servers on ports port_base+1 and port_base+2 and its refresh lines too.
    `sections` replace whole sections: `stats=StatsConfig(...)`, `arbitration=...`.
    """
    channels = tuple(
        ChannelConfig(
            service=service,
            lines=tuple(loopback_lines(service, port_base)),
            refresh_lines=tuple(loopback_refresh_lines(service, port_base)) if with_servers else (),
            retransmission="rts" if with_servers else "",
            refresh="rfs" if with_servers else "",
            reference=with_servers and service == LOOPBACK_REFERENCE,
        )
        for service in services
    )
    if with_servers:
        sections.setdefault(
            "servers",
            tuple(
                ServerConfig(name=name, address=f"127.0.0.1:{port_base + number}")
                for number, name in enumerate(("rts", "rfs"), 1)
            ),
        )
    sections.setdefault("gateway", GatewaySettings(feed=feed))
    sections.setdefault("amqp", AmqpConfig(listen=listen))
    return Config(channels=channels, **sections)


def loopback_lines(service: int, port_base: int = 30_000) -> Iterator[LineConfig]:
    """Yield the simulated exchange's lines A and B of `service` (101..355)."""
    for number, name in enumerate("AB"):
        group = f"239.101.{1 + number}.{service - 100}"
        yield LineConfig(name=name, group=group, port=port_base + 1000 * number + service)


def loopback_refresh_lines(service: int, port_base: int = 30_000) -> Iterator[RefreshLineConfig]:
    """Yield the simulated exchange's refresh lines A and B of `service` (101..355)."""
    for number, name in enumerate("AB"):
        group = f"239.101.{3 + number}.{service - 100}"
        port = port_base + 1000 * (2 + number) + service
        yield RefreshLineConfig(name=name, group=group, port=port)


def described(table: type[Struct]) -> Iterator[tuple[str, str]]:
    """Yield each field of `table` with its one-line description."""
    for item in msgspec.structs.fields(table):
        notes = [note for note in getattr(item.type, "__metadata__", ()) if isinstance(note, Meta)]
        yield item.name, next((note.description for note in notes if note.description), "")


#: Settings that check their own bounds, with their name at the front of the message.
_OWN_BOUNDS = {*ArbitrationSettings.__struct_fields__, *RecoverySettings.__struct_fields__}


def _convert(values: dict[str, Any]) -> Config:
    """Convert to types, within bounds; a missing key's error names the table to add it to."""
    day = values.get("trading_day")
    if isinstance(day, dict) and isinstance(day.get("date"), datetime.date):
        day["date"] = day["date"].isoformat()
    try:
        return convert(values, Config)
    except WrongKey as wrong:
        path, reason = wrong.path, wrong.reason
        if reason == "missing":
            tables = [key for key in path[:-1] if isinstance(key, str)] or ["channel"]
            wrong.hint = f"add it below [[{'.'.join(tables)}]]"
            if path[-1] in ("channel", "line"):
                wrong.hint = (
                    f"add a [[{'channel' if path[-1] == 'channel' else 'channel.line'}]] table"
                )
            raise
        key, _, rest = reason.partition(" must be ")
        if rest and key in _OWN_BOUNDS:
            raise WrongKey((*path, key), f"must be {rest}") from None
        raise


def _check_trading_day(config: Config) -> None:
    with within("trading_day"):
        check_day(config.trading_day)


def _check_gateway(config: Config) -> None:
    if not config.gateway.interface:
        raise WrongKey(("gateway", "interface"), "empty", "an interface's name or address: eth1")
    if not config.gateway.feed:
        raise WrongKey(("gateway", "feed"), "empty", "`feedhandler feeds` lists the built-in ones")


def _check_bounds(config: Config) -> None:
    for section in ("receive", "record"):
        ring = getattr(config, section).ring_bytes
        if ring & (ring - 1):
            hint = f"the next larger one is {1 << ring.bit_length()}"
            raise WrongKey((section, "ring_bytes"), f"{ring} is not a power of two", hint)
    if wrong := fault_of_policy(config.amqp.when_full, True):
        raise WrongKey(("amqp", "when_full"), wrong, f"one of {', '.join(POLICIES)}")
    for section, bind in (("stats", config.stats.bind), ("control", config.control.bind)):
        if bind and not is_endpoint(bind):
            hint = "for example tcp://127.0.0.1:5571"
            raise WrongKey((section, "bind"), f"{bind!r} is no ZeroMQ endpoint", hint)
    if config.control.bind and config.control.bind == config.stats.bind:
        hint = "each socket has an endpoint of its own"
        raise WrongKey(("control", "bind"), f"{config.control.bind} is stats.bind already", hint)


def _check_record(config: Config) -> None:
    """Check the bounds of `[record]` that depend on each other."""
    record = config.record
    least = FILES_MIN * record.file_bytes
    if record.total_bytes < least:
        reason = f"{record.total_bytes} is less than {FILES_MIN} files of file_bytes"
        raise WrongKey(("record", "total_bytes"), reason, f"at least {least}, or smaller files")


def _check_channels(config: Config) -> None:
    seen_services: dict[int, int] = {}
    for number, channel in enumerate(config.channels):
        path: KeyPath = ("channel", number)
        if channel.service in seen_services:
            first = seen_services[channel.service]
            reason = f"service {channel.service} is channel[{first}] already"
            raise WrongKey((*path, "service"), reason, "one channel for each service")
        seen_services[channel.service] = number
        _check_lines("line", channel.lines, path)
        _check_lines("refresh_line", channel.refresh_lines, path)
        _check_retransmission_lines(channel, path)
        _check_servers_of(channel, {server.name for server in config.servers}, path)


def _check_queue(config: Config) -> None:
    """Check that the largest snapshot block, queued as a whole, fits into a link's queue."""
    recovery, queue = config.recovery, config.amqp.queue_bytes
    least = round(BLOCK_FRAMING * (recovery.snapshot_bytes_max + recovery.store_bytes))
    if queue < least and any(channel.refreshes for channel in config.channels):
        reason = f"{queue} holds no block of recovery.snapshot_bytes_max and store_bytes, framed"
        raise WrongKey(("amqp", "queue_bytes"), reason, f"at least {least}, or make those smaller")


def _check_servers(config: Config) -> None:
    names: set[str] = set()
    for number, server in enumerate(config.servers):
        here: KeyPath = ("server", number)
        if server.name in names:
            raise WrongKey((*here, "name"), f"a second server {server.name!r}")
        names.add(server.name)
        _check_addresses(server, here)
        identity = server.source_id
        if not (identity.isascii() and identity.isprintable() and len(identity) <= SOURCE_ID_CHARS):
            reason = f"{identity!r} is not {SOURCE_ID_CHARS} ASCII characters at most"
            raise WrongKey((*here, "source_id"), reason, "the exchange has given you yours")
        if server.password_env and server.password_file:
            hint = "password_env, or password_file"
            raise WrongKey((*here, "password_env"), "there is password_file as well", hint)
        _check_lines("line", server.lines, here)


def _check_addresses(server: ServerConfig, here: KeyPath) -> None:
    """Check a server's addresses: two servers, where there is a secondary."""
    for key in ("address", "secondary"):
        try:
            if key == "address" or server.secondary:
                split_address(getattr(server, key))
        except ValueError as error:
            raise WrongKey((*here, key), str(error), "for example 10.0.0.1:7001") from None
    if len(set(server.addresses)) < len(server.addresses):
        hint = "the other server's address, or leave secondary out"
        raise WrongKey((*here, "secondary"), f"{server.secondary} is the primary's address", hint)


def _check_amqp(config: Config) -> None:
    with within("amqp"):
        check_amqp(config.amqp)


def _check_published_records(config: Config, number: int, published: PublishConfig) -> None:
    """Check a destination that takes normalised records."""
    if not config.amqp.records:
        reason = f"{published.grain!r} needs order books, which the gateway does not keep"
        raise WrongKey(("publish", number, "as"), reason, "records = true in [amqp]")
    if published.when_full not in LINK_POLICIES:
        reason = f"{published.when_full!r} is not offered with as = {published.grain!r}"
        raise WrongKey(
            ("publish", number, "when_full"), reason, f"one of {', '.join(LINK_POLICIES)}"
        )
    if published.types:
        reason = f"chooses among the feed's messages, not records of {published.grain}"
        raise WrongKey(("publish", number, "types"), reason, "leave it out")


def _check_publish(config: Config) -> None:
    for number, each in enumerate(config.publish):
        if each.grain in SCHEMAS:
            _check_published_records(config, number, each)
    with within("publish"):
        check_destinations(config.publish)


def _check_queues(config: Config) -> None:
    with within("queue"):
        check_queues(config.queues)
    known = {"*", *(queue.name for queue in config.queues)}
    for number, user in enumerate(config.amqp.users):
        for key in ("put", "get", "cancel"):
            for name in getattr(user, key):
                if name not in known and not config.amqp.queues_folder:
                    hint = f"known: {', '.join(sorted(known))}"
                    reason = f"no queue is named {name!r}"
                    raise WrongKey(("amqp", "users", number, key), reason, hint)


def _check_servers_of(channel: ChannelConfig, known: set[str], path: KeyPath) -> None:
    for key in ("retransmission", "refresh"):
        name = getattr(channel, key)
        if name and name not in known:
            hint = f"known: {', '.join(sorted(known))}" if known else "add a [[server]] table"
            raise WrongKey((*path, key), f"no server is named {name!r}", hint)


def _check_retransmission_lines(channel: ChannelConfig, path: KeyPath) -> None:
    _check_lines("retransmission_line", channel.retransmission_lines, path)
    if channel.retransmission_lines and not channel.retransmission:
        hint = "name the channel's retransmission server, or leave the line out"
        here = (*path, "retransmission_line", 0)
        raise WrongKey(here, "nothing is asked for that could come by it", hint)


def _check_lines(kind: str, lines: tuple[LineConfig, ...], path: KeyPath) -> None:
    names: set[str] = set()
    addresses: dict[tuple[object, ...], str] = {}
    for number, line in enumerate(lines):
        here: KeyPath = (*path, kind, number)
        if line.name in names:
            raise WrongKey((*here, "name"), f"a second line {line.name!r} in this channel")
        names.add(line.name)
        address: tuple[object, ...]
        if line.tcp is not None:
            _check_tcp(kind, path, line, here)
            address, key, what = line.tcp.identity, "tcp", line.tcp.address
            hint = "each line has a server, a username or a session of its own"
        elif line.topology or line.member:
            _check_overlay(line, here, answers=kind == "retransmission_line" or path[0] == "server")
            address, key, what = (line.overlay,), "member", line.member
            hint = "each line has a member or a topology of its own"
        else:
            _check_group(kind, line, here)
            address, key, what = (
                (line.group, line.port, line.source), "group", f"{line.group}:{line.port}",
            )  # fmt: skip
            hint = "each line has a group or port of its own"
        if address in addresses:
            raise WrongKey((*here, key), f"{what} is line {addresses[address]!r} already", hint)
        addresses[address] = line.name


def _check_tcp(kind: str, path: KeyPath, line: LineConfig, here: KeyPath) -> None:
    """Check a line by TCP, which only channels have, and only for the live stream."""
    if (path[0], kind) != ("channel", "line"):
        raise WrongKey(
            (*here, "tcp"), "only a [[channel.line]] comes by TCP", "give group and port"
        )
    with within(*here):
        check_tcp(line)


def _check_overlay(line: LineConfig, here: KeyPath, *, answers: bool) -> None:
    """Check that an overlay line has a topology and a member, and no key of a multicast line.

    Servers' answers do not come by one.
    """
    if answers and line.topology:
        reason = "a server answers by multicast, not through the overlay"
        raise WrongKey((*here, "topology"), reason, "give group and port")
    if not line.topology:
        raise WrongKey((*here, "topology"), "missing", "the tree's file that has the member")
    if not line.member:
        raise WrongKey((*here, "member"), "missing", "a receiver of the topology: receiver-0")
    for key in ("group", "port", "interface", "source"):
        if getattr(line, key):
            reason = "a line comes by a group or through a topology, not both"
            raise WrongKey((*here, key), reason, f"leave out {key}, or topology and member")


def _check_group(kind: str, line: LineConfig, here: KeyPath) -> None:
    """Check group, port and sources; only with a source can other senders' packets be counted."""
    for key in ("group", "port"):
        if not getattr(line, key):
            table = f"{here[0]}.{kind}"
            other = ", or a table [channel.line.tcp]" if table == "channel.line" else ""
            raise WrongKey((*here, key), "missing", f"add it below [[{table}]]{other}")
    with within(*here):
        check_group(line.group, line.source)
    if line.source_filter == "count" and not line.source:
        hint = "name the source, or leave source_filter out"
        raise WrongKey((*here, "source_filter"), "nothing to count without a source", hint)


def _check_history(config: Config) -> None:
    """Check that a history has room for any packet, or is off."""
    if 0 < config.amqp.history_bytes < HISTORY_BYTES_MIN:
        reason = f"{config.amqp.history_bytes} bytes may not hold one packet"
        hint = f"at least {HISTORY_BYTES_MIN}, or 0 for none"
        raise WrongKey(("amqp", "history_bytes"), reason, hint)


def _check_observed(config: Config) -> None:
    """Check the HTTP endpoint's address and the conditions of readiness."""
    try:
        if config.metrics.listen:
            split_address(config.metrics.listen)
    except ValueError as error:
        raise WrongKey(("metrics", "listen"), str(error), "for example 127.0.0.1:9464") from None
    _check_ports(config)
    with within("health"):
        config.health.check()


def _check_ports(config: Config) -> None:
    """Check that no two listeners want one port of one address."""
    listeners: tuple[KeyPath, ...] = (
        ("amqp", "listen"), ("amqp", "tls", "listen"), ("metrics", "listen"),
    )  # fmt: skip
    texts = (config.amqp.listen, config.amqp.tls.listen, config.metrics.listen)
    taken: dict[int, list[tuple[str, str]]] = {}
    for path, text in zip(listeners, texts, strict=True):
        host, port = split_address(text) if text else ("", 0)
        for other, key in taken.get(port, []) if port else []:
            if host == other or {host, other} & _ALL_ADDRESSES:
                raise WrongKey(path, f"{text}: {key} is there already", "give each a port")
        taken.setdefault(port, []).append((host, path_text(path)))


_CHECKS = (
    _check_gateway,
    _check_trading_day,
    _check_amqp,
    _check_bounds,
    _check_record,
    _check_publish,
    _check_queues,
    _check_servers,
    _check_channels,
    _check_queue,
    _check_history,
    _check_observed,
)
