"""Lines: one socket each, bound to its own multicast group so that lines cannot be confused.

A socket that is bound to a port alone receives every group that any process on the host has joined
on that port. So each line's socket is bound to its group's address and has IP_MULTICAST_ALL off.
With a `source` the receiver checks the sender of every datagram, and drops and counts foreign ones.
By default the join is source-specific as well, so that most of them never arrive and cannot be
counted; `source_filter="count"` joins for any source, so that each one is counted, at the price of
receiving it.

Every fault here is one that the operator can correct: it is raised as `ConfigError`, one line that
names the line, with the remedy as its hint.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Literal

from feedhandler.codecs.errors import ConfigError
from feedhandler.ingest.groups import SOURCES_MAX

# Linux values that this Python's socket module does not name.
IP_ADD_SOURCE_MEMBERSHIP = 39
IP_MULTICAST_ALL = 49
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
SO_RXQ_OVFL = 40
SIOCGIFADDR = 0x8915

#: Receive buffer requested for a line: half a second of a very busy one.
RECEIVE_BUFFER_BYTES = 16 << 20
#: The most that can be asked for: the kernel takes a signed number of 32 bits.
SO_RCVBUF_MAX = 2**31 - 1

#: How a line's packets stand in a TCP stream: messages of a SoupBinTCP session, or packets behind
#: a length of two bytes, big- or little-endian.
TcpFraming = Literal["soupbin", "length", "length-little"]


@dataclass(frozen=True)
class TcpServer:
    """The server of a line that comes by TCP, and how to log in to it (`soupbin` alone).

    `first`: the number that the first login asks for; 0: the latest message.
    """

    host: str
    port: int
    framing: TcpFraming
    username: str = ""
    password: str = field(default="", repr=False)
    session: str = ""
    first: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Line:
    """One multicast line: `group` and `port` on `interface` (a name, or a local IPv4 address).

    `source` is the sender's address, or several separated by commas: an exchange that fails over
    sends from another one. `source_filter` selects what drops other senders: the `"kernel"`, by a
    source-specific join, or the receive thread, which can `"count"` them. Lines are equal when they
    would receive the same: the name is for people.
    """

    name: str = field(compare=False)
    group: str
    port: int
    interface: str
    source: str | None = None
    source_filter: Literal["kernel", "count"] = "kernel"
    #: Of a line that comes through the overlay: its topologies' files, and the receiver's name
    #: there. It is not joined; `group` and `port` are the receiver's address.
    overlay: tuple[tuple[str, ...], str] | None = None
    #: Of a line that comes by TCP. It is not joined; `group` and `port` are the server's address.
    tcp: TcpServer | None = None


@dataclass(frozen=True)
class ChannelPlan:
    """One channel: its `service` id (ignored where the feed's header has none) and its lines.

    `recovery_wait_us`: the time that recovery has for what the lines do not bring; 0: there is
    none. `refresh`: the lines carry snapshots, whose packets may be compressed.
    """

    service: int
    lines: tuple[Line, ...] = field(default=())
    recovery_wait_us: int = 0
    refresh: bool = False


def open_line(line: Line, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> socket.socket:
    """Return a bound, joined, non-blocking socket of `line`. Raises `ConfigError`."""
    group = _group(line)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        set_receive_buffer(sock, receive_buffer_bytes)
        _bind(sock, line)
        _join(sock, line, group)
    except BaseException:
        sock.close()
        raise
    return sock


def set_receive_buffer(sock: socket.socket, wanted_bytes: int) -> int:
    """Set the receive buffer, with privilege if there is any; return the actual size in bytes.

    (The kernel doubles the requested size, to pay for its own overhead, and caps it silently.)
    """
    wanted_bytes = min(wanted_bytes, SO_RCVBUF_MAX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted_bytes)
    # Without the privilege net.core.rmem_max is the limit; the caller sees the actual size.
    with contextlib.suppress(PermissionError):
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, wanted_bytes)
    return receive_buffer(sock)


def receive_buffer(sock: socket.socket) -> int:
    """Return the socket's receive buffer in bytes, in the terms of the requested size."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def _group(line: Line) -> ipaddress.IPv4Address:
    """Return the group's address. Raises `ConfigError` where group or port is invalid."""
    try:
        group = ipaddress.IPv4Address(line.group)
    except ValueError as error:
        raise ConfigError(
            f"line {line.name}: group {line.group!r} is not an IPv4 address",
            "give a multicast group such as 239.1.2.3",
        ) from error
    if not group.is_multicast:
        raise ConfigError(
            f"line {line.name}: group {line.group} is not a multicast address",
            "multicast groups lie in 224.0.0.0 to 239.255.255.255",
        )
    if not 0 < line.port < 65536:
        raise ConfigError(f"line {line.name}: port {line.port} is not in 1..65535")
    return group


def _bind(sock: socket.socket, line: Line) -> None:
    """Bind to the group's own address."""
    try:
        sock.bind((line.group, line.port))
    except OSError as error:
        hint = {
            errno.EADDRINUSE: "another program holds it without SO_REUSEADDR; stop it (ss -ulpn)",
            errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE",
        }.get(error.errno or 0, "check the group and the port")
        raise ConfigError(
            f"line {line.name}: cannot bind {line.group}:{line.port}: {error.strerror}", hint
        ) from error


def _join(sock: socket.socket, line: Line, group: ipaddress.IPv4Address) -> None:
    """Join the group on the line's interface, source-specific where the kernel is to filter."""
    address, index = _interface(line)
    try:
        if line.source is None or line.source_filter == "count":
            request = struct.pack("=4s4si", group.packed, address, index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        else:
            if index:
                address = _address_of(line)
            for source in source_addresses(line):
                request = struct.pack("=4s4s4s", group.packed, address, source.to_bytes(4, "big"))
                sock.setsockopt(socket.IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, request)
    except OSError as error:
        hint = {
            errno.ENODEV: "no interface has that address; see `ip address`",
            errno.ENOBUFS: "raise net.ipv4.igmp_max_memberships or igmp_max_msf",
        }.get(error.errno or 0, "is the interface up, and has it the MULTICAST flag?")
        raise ConfigError(
            f"line {line.name}: cannot join {line.group} on {line.interface}: {error.strerror}",
            hint,
        ) from error


def _interface(line: Line) -> tuple[bytes, int]:
    """Return (address, 0) for an interface given by address, (zero, index) for one by name."""
    try:
        return ipaddress.IPv4Address(line.interface).packed, 0
    except ValueError:
        pass
    try:
        return bytes(4), socket.if_nametoindex(line.interface)
    except OSError as error:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"line {line.name}: interface: no such interface {line.interface!r}",
            f"there are: {known}",
        ) from error


def _address_of(line: Line) -> bytes:
    """Return the IPv4 address of a named interface, which the source-specific join needs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", os.fsencode(line.interface)[:15])
        return fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]


def source_addresses(line: Line) -> tuple[int, ...]:
    """Return the line's sources as integers, none for any. Raises `ConfigError`."""
    if line.source is None:
        return ()
    try:
        found = tuple(int(ipaddress.IPv4Address(word.strip())) for word in line.source.split(","))
    except ValueError as error:
        raise ConfigError(
            f"line {line.name}: source {line.source!r} is not an IPv4 address",
            "give the sender's address, or leave it out to accept any",
        ) from error
    if len(found) > SOURCES_MAX:
        raise ConfigError(f"line {line.name}: {len(found)} sources; at most {SOURCES_MAX}")
    return found
