"""Multicast lines that datagrams are sent to: their sockets and their groups.

A `MulticastLine` is one of the identical lines of a feed: an interface and either one group and
port for everything, or a group and port for each of several channels (a service, say), by key.
`open_lines` opens one socket a line and numbers the destinations the way `Sender` wants them.

Sockets send with a time to live of 1, so nothing leaves the local network by accident, and loop
back to receivers on this host.
"""

import contextlib
import dataclasses
import ipaddress
import socket
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.playing.inject import LineFaults

#: A group and a port.
Endpoint = tuple[str, int]

#: Multicast that must not leave the local network.
MULTICAST_TTL = 1
#: What a line may have waiting for its interface. The kernel cuts this to net.core.wmem_max.
SEND_BUFFER_BYTES = 4 << 20
#: In a table of destinations: this line does not carry that channel.
NO_DESTINATION = 0xFFFF


@dataclasses.dataclass(frozen=True)
class MulticastLine:
    """One line: `groups` is one (group, port), or a mapping from channel key to (group, port).

    `interface` is a name (`eth1`) or the interface's own IPv4 address; `faults` is what happens to
    datagrams on this line.
    """

    name: str
    groups: Endpoint | Mapping[Any, Endpoint]
    interface: str = "127.0.0.1"
    faults: LineFaults = dataclasses.field(default_factory=LineFaults)

    def __post_init__(self) -> None:
        for group, port in self.endpoints():
            try:
                multicast = ipaddress.IPv4Address(group).is_multicast
            except ValueError:
                multicast = False
            if not multicast:
                raise ConfigError(
                    f"line {self.name}: '{group}' is no IPv4 multicast group",
                    "groups lie between 224.0.0.0 and 239.255.255.255",
                )
            if not 0 < port < 65_536:
                raise ConfigError(f"line {self.name}: {port} is no port", "give 1 to 65535")

    def endpoints(self) -> list[Endpoint]:
        """Return all groups and ports of the line."""
        return list(self.groups.values()) if isinstance(self.groups, Mapping) else [self.groups]


@dataclasses.dataclass(frozen=True)
class NumberedLines:
    """Numbered destinations, nothing opened. `destinations` are (line number, group, port), the
    rest is as in `OpenLines`."""

    destinations: list[tuple[int, str, int]]
    channels: list[Hashable]
    table: np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class OpenLines:
    """Open sockets, one a line, and numbered destinations.

    `interfaces` are the lines', as they were given. `destinations` is what `Sender` takes.
    `channels` are the keys in the order of their numbers; none where every line has one group for
    everything (then there is one channel, number 0). `table` u16[lines, channels] is a destination
    number, or `NO_DESTINATION`.
    """

    sockets: list[socket.socket]
    interfaces: list[str]
    destinations: list[tuple[socket.socket, str, int]]
    channels: list[Hashable]
    table: np.ndarray[Any, Any]

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets:
            sock.close()

    def line_of_destination(self) -> list[int]:
        """Return the line number of each destination."""
        sockets = {id(sock): number for number, sock in enumerate(self.sockets)}
        return [sockets[id(sock)] for sock, _, _ in self.destinations]


def open_multicast_sender(interface: str) -> socket.socket:
    """Open a UDP socket that multicasts through `interface` (name or address).

    Raises `ConfigError` where the interface cannot be used."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        request = struct.pack("@4s4si", b"\0" * 4, *_interface(interface))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, MULTICAST_TTL)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot send multicast through interface '{interface}': {_reason(error)}",
            "give the name or the IPv4 address of one of this host's, as `ip address` lists them",
        ) from None
    return sock


def _reason(error: OSError) -> str:
    """Return the reason; `if_nametoindex` raises without an error number for unknown names."""
    return error.strerror.lower() if error.strerror else "no such interface"


def _interface(interface: str) -> tuple[bytes, int]:
    """Return address and index for IP_MULTICAST_IF, one of which is 0."""
    with contextlib.suppress(ValueError):
        return ipaddress.IPv4Address(interface).packed, 0
    return b"\0" * 4, socket.if_nametoindex(interface)


def number_lines(lines: Sequence[MulticastLine]) -> NumberedLines:
    """Assign numbers to the lines' destinations. Raises `UsageError` for mixed groups."""
    if not lines:
        raise UsageError("there is no line to send to", "give at least line A")
    mapped = [isinstance(line.groups, Mapping) for line in lines]
    if any(mapped) and not all(mapped):
        raise UsageError(
            "one line has one group, another has a group for each channel",
            "give every line the same kind",
        )
    channels: dict[Hashable, int] = {}
    for line in lines:
        for key in line.groups if isinstance(line.groups, Mapping) else ():
            channels.setdefault(key, len(channels))
    table = np.full((len(lines), max(1, len(channels))), NO_DESTINATION, np.uint16)
    destinations: list[tuple[int, str, int]] = []
    for number, line in enumerate(lines):
        groups = line.groups if isinstance(line.groups, Mapping) else {None: line.groups}
        for key, (group, port) in groups.items():
            table[number, channels.get(key, 0)] = len(destinations)
            destinations.append((number, group, port))
    if len(destinations) >= NO_DESTINATION:
        raise UsageError(
            f"{len(destinations):,} groups and ports are too many to send to", "choose a part"
        )
    return NumberedLines(destinations, list(channels), table)


def open_lines(
    lines: Sequence[MulticastLine],
    open_socket: Callable[[str], socket.socket] = open_multicast_sender,
) -> OpenLines:
    """Open every line; `open_socket` makes the socket out of a line's interface.

    Raises `ConfigError` for an interface, `UsageError` for mixed groups.
    """
    numbered = number_lines(lines)
    sockets: list[socket.socket] = []
    try:
        for line in lines:
            sockets.append(open_socket(line.interface))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    destinations = [(sockets[line], group, port) for line, group, port in numbered.destinations]
    interfaces = [line.interface for line in lines]
    return OpenLines(sockets, interfaces, destinations, numbered.channels, numbered.table)
