"""The configuration of a gateway of a simulated exchange: `feedhandler exchange --write-config`.

Lines, servers and logins are those of the exchange's plan, over loopback.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError, unwritable
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    ControlConfig,
    GatewaySettings,
    LineConfig,
    RefreshLineConfig,
    RetransmissionLineConfig,
    ServerConfig,
)
from feedhandler.config.show import to_toml
from feedhandler.ops import exchange
from feedhandler.ops.exchange import LOOPBACK, Options, plan
from feedhandler.ops.scenes import SCENES
from feedhandler.replay.exchange.plan import ExchangePlan
from feedhandler.replay.exchange.servers import PRODUCT, REFRESH, RETRANSMISSION
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.order_session import CHANNEL, SERVICE
from feedhandler.rpc import ENDPOINT_DEFAULT
from feedhandler.terminal.outputs import refuse_filled

Line = TypeVar("Line", bound=LineConfig)
#: The environment variable with the password of GLIMPSE and of CME's replay, which take any.
PASSWORD = "EXCHANGE_PASSWORD"
#: By protocol, what a gateway logs in or asks with: the exchange takes any but the product.
LOGINS: dict[str, dict[str, Any]] = {
    "cme-replay": {"source_id": "SIM", "password_env": PASSWORD},
    "glimpse": {"source_id": "SIM", "password_env": PASSWORD},
    "nyse-xdp": {"source_id": "SIM", "product": PRODUCT},
    "cboe-grp": {"source_id": "SIM", "session": "0001"},
    "cboe-spin": {"source_id": "SIM", "session": "0002"},
}


def run(options: Options, path: Path) -> int:
    """Write the configuration of a gateway to `path`, then send as `exchange.run` does."""
    if options.ledger is not None:
        refuse_filled(options.ledger)
        if options.ledger.resolve() == path.resolve():
            raise UsageError(f"{path} cannot be the configuration and the ledger", "name two files")
    write_config(options, path)
    hint = f"a gateway of it: feedhandler run {path}"
    print(f"feedhandler: exchange: {hint}", file=sys.stderr, flush=True)
    return exchange.run(options)


def write_config(options: Options, path: Path) -> None:
    """Write the configuration of a gateway of what `options` make the exchange send.

    Raises `UsageError` where the exchange is not on this host alone, or without its servers, and
    where another file is there; `ConfigError` where it cannot be written.
    """
    if not options.servers or {options.interface, options.host} != {LOOPBACK}:
        raise UsageError(
            "--write-config is for an exchange with servers on this host",
            "leave --no-servers, --interface and --listen out",
        )
    text = to_toml(gateway_config(options))
    try:
        if path.exists() and path.read_bytes() != text.encode():
            raise UsageError(f"{path} is there already", "name another file, or remove it")
        path.write_bytes(text.encode())
    except OSError as error:
        raise unwritable(path, error) from None


def gateway_config(options: Options) -> Config:
    """Return the configuration of a gateway of what `options` make the exchange send."""
    scene = SCENES.get(options.feed)
    if scene is not None:
        return scene.config(options.port_base, gateway=GatewaySettings(feed=scene.feed))
    sent = plan(options)
    ports = {RETRANSMISSION: sent.retransmission_port, REFRESH: sent.refresh_port}
    asked = {name: port for name, port in ports.items() if port is not None}
    return order_config(
        sent, asked, amqp=AmqpConfig(records=True), control=ControlConfig(bind=ENDPOINT_DEFAULT)
    )


def order_config(sent: ExchangePlan, ports: Mapping[str, int], **sections: Any) -> Config:
    """Return the configuration of a gateway of an order session.

    `ports` are those on which the exchange's servers listen; `sections` are further ones.
    """
    recovery = load_feed(sent.feed).recovery
    servers: list[ServerConfig] = []
    answers: tuple[RetransmissionLineConfig, ...] = ()
    refreshes: tuple[RefreshLineConfig, ...] = ()
    if recovery is not None:
        asked = {RETRANSMISSION: recovery.retransmission, REFRESH: recovery.snapshots}
        for name, port in ports.items():
            facts = asked[name]
            login = LOGINS.get(facts.name, {}) if facts is not None else {}
            servers.append(ServerConfig(name=name, address=f"{sent.host}:{port}", **login))
        if RETRANSMISSION in ports and recovery.retransmission_lines:
            answers = _lines(RetransmissionLineConfig, sent.recovery_address)
        if REFRESH in ports and recovery.snapshots_by_lines:
            refreshes = _lines(RefreshLineConfig, sent.refresh_address)
        elif recovery.loops and sent.refresh_s:
            refreshes = _lines(RefreshLineConfig, sent.recovery_address)
    channel = ChannelConfig(
        service=SERVICE,
        lines=_lines(LineConfig, sent.address),
        retransmission_lines=answers,
        refresh_lines=refreshes,
        retransmission=RETRANSMISSION if RETRANSMISSION in ports else "",
        refresh=REFRESH if REFRESH in ports else "",
    )
    sections.setdefault("gateway", GatewaySettings(feed=sent.feed))
    return Config(channels=(channel,), servers=tuple(servers), **sections)


def _lines(kind: type[Line], address: Callable[[str, int], tuple[str, int]]) -> tuple[Line, ...]:
    """Return lines A and B of the session's one channel."""
    addresses = {name: address(name, CHANNEL) for name in LINES}
    return tuple(kind(name=n, group=group, port=port) for n, (group, port) in addresses.items())
