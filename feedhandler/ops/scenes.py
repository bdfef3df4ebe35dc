"""The demo's sessions, by feed: subscribers, the gateway's configuration, the exchange."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from feedhandler.config import (
    ChannelConfig,
    Config,
    LineConfig,
    ServerConfig,
    ServerLineConfig,
    loopback_config,
    loopback_lines,
    loopback_refresh_lines,
)
from feedhandler.fixcast import exchange_plan as fix
from feedhandler.ops.exchange import EURONEXT, FIX, REFRESH_PORT, RETRANSMISSION_PORT
from feedhandler.replay.exchange.plan import FEED_NAME
from feedhandler.replay.generating.instruments import FIRST_SYMBOL
from feedhandler.replay.generating.packets import SERVICES

#: Compiled units that the demo's processes need: `make demo` compiles no others.
UNITS = ("codecs", "ingest", "retrans", "amqp", "subscribing", "exchange", "market")
#: Both lines come from one sender on this machine, side by side: a packet that came from neither
#: after this long will not come, and is requested.
GAP_WAIT_US = 1_000
#: A publisher of FIX sends a channel's datagrams one line after the other, from one thread: on a
#: busy machine it may be preempted in between.
FIX_GAP_WAIT_US = 10_000
#: The gateway's names of the servers of Resend Requests, and of Market Data Requests.
SERVER, STATES = "rts", "mds"
#: When the packet is lost that the retransmission server does not have either, as a share of the
#: session: late enough to find books that are full, early enough to be seen made good.
GAP_AT_SHARE = 0.25


class Scene(Struct, frozen=True):
    """One feed's part of the demo.

    subscribers   name, routing-key pattern and granularity of each
    gap_wait_us   how long the gateway waits for the other line
    config        makes the gateway's configuration, for a base of ports and further sections
    arguments     makes those of `feedhandler exchange`, for a session of this many seconds
    groups        yields the exchange's multicast groups and ports, for a base of ports
    tcp_ports     of its servers, above the base
    units         compiled units that its processes need
    """

    feed: str
    subscribers: tuple[tuple[str, str, str], ...]
    gap_wait_us: int
    config: Callable[..., Config]
    arguments: Callable[[float], tuple[str, ...]]
    groups: Callable[[int], Iterator[tuple[str, int]]]
    tcp_ports: tuple[int, ...]
    units: tuple[str, ...] = UNITS


def _subscribers(key: str, service: int, symbol: str) -> tuple[tuple[str, str, str], ...]:
    """Return subscribers of one channel, of one security, and of everything."""
    return (
        ("service", f"{key}.{service}", "packet"),
        ("symbol", f"{key}.{service}.{symbol}", "message"),
        ("pattern", f"{key}.#", "batch"),
    )


def _euronext_config(port_base: int, **sections: Any) -> Config:
    return loopback_config(port_base=port_base, with_servers=True, **sections)


def _euronext_arguments(seconds: float) -> tuple[str, ...]:
    return "--gap-at", str(seconds * GAP_AT_SHARE)


def _fix_arguments(seconds: float) -> tuple[str, ...]:
    return "--feed", FIX, *_euronext_arguments(seconds)


def _euronext_groups(port_base: int) -> Iterator[tuple[str, int]]:
    for service in SERVICES:
        for lines in (loopback_lines, loopback_refresh_lines):
            yield from ((line.group, line.port) for line in lines(service, port_base))


def _fix_config(port_base: int, **sections: Any) -> Config:
    channels = []
    for service in fix.SERVICES:
        addresses = (fix.line_address(service, number, port_base) for number in (0, 1))
        lines = tuple(
            LineConfig(name=name, group=group, port=port)
            for name, (group, port) in zip("AB", addresses, strict=True)
        )
        topic = fix.channel_id(service)
        channels.append(
            ChannelConfig(
                service=service, topic=topic, retransmission=SERVER, refresh=STATES, lines=lines
            )
        )
    group, port = fix.retransmission_address(port_base)
    server = ServerConfig(
        name=SERVER,
        address=f"127.0.0.1:{port_base + RETRANSMISSION_PORT}",
        lines=(ServerLineConfig(name="R", group=group, port=port),),
    )
    states = ServerConfig(name=STATES, address=f"127.0.0.1:{port_base + REFRESH_PORT}")
    return Config(channels=tuple(channels), servers=(server, states), **sections)


def _fix_groups(port_base: int) -> Iterator[tuple[str, int]]:
    for service in fix.SERVICES:
        for number in (0, 1):
            yield fix.line_address(service, number, port_base)
    yield fix.retransmission_address(port_base)


SCENES = {
    EURONEXT: Scene(
        feed=FEED_NAME,
        subscribers=_subscribers(EURONEXT, 104, str(FIRST_SYMBOL)),
        gap_wait_us=GAP_WAIT_US,
        config=_euronext_config,
        arguments=_euronext_arguments,
        groups=_euronext_groups,
        tcp_ports=(RETRANSMISSION_PORT, REFRESH_PORT),
    ),
    FIX: Scene(
        feed=fix.FEED_NAME,
        subscribers=_subscribers(FIX, fix.SERVICES[0], fix.symbols_of(fix.SERVICES[0])[0]),
        gap_wait_us=FIX_GAP_WAIT_US,
        config=_fix_config,
        arguments=_fix_arguments,
        units=(*UNITS, "fixcast"),
        groups=_fix_groups,
        tcp_ports=(RETRANSMISSION_PORT, REFRESH_PORT),
    ),
}
