"""Bytes through each TCP socket of this machine, as the kernel counts them (sock_diag(7)).

What it is for: the network load of each role. On loopback an interface's counters are shared by
all; the kernel also counts for each connection what was received and what the peer has
acknowledged, and any process may ask for that. `request` and `parse` are the netlink messages,
`tcp_sockets` exchanges them.

What it leaves to others: whose socket an inode is (`sampling`). UDP sockets are not counted by the
kernel in this way.
"""

import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

# From <linux/netlink.h>, <linux/sock_diag.h>, <linux/inet_diag.h>, <linux/tcp.h>.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_SYN_RECV, _TIME_WAIT, _LISTEN = 1 << 3, 1 << 6, 1 << 10
#: The states in which a process has a connection.
_STATES = 0xFFF & ~(_SYN_RECV | _TIME_WAIT | _LISTEN)

#: Length, type, flags, sequence number, port id.
_HEADER = struct.Struct("=IHHII")
#: Family, protocol, extensions, padding, states; the socket id asked for, which is any.
_REQUEST = struct.Struct("=BBBBI48x")
#: Family, state, timer, retransmissions; id: ports (big-endian), addresses, interface, cookie;
#: expiry, two queues, user, inode.
_MESSAGE = struct.Struct("=BBBB2s2s16s16sIQIIIII")
_ATTRIBUTE = struct.Struct("=HH")
#: Of tcp_info: bytes acknowledged by the peer, bytes received.
_TCP_BYTES = struct.Struct("=QQ")
_TCP_BYTES_AT = 120

#: One answer's room; the kernel sends as many as it takes.
ANSWER_BYTES = 1 << 16


class Connection(Struct, frozen=True):
    """One socket: its inode and local port, bytes received, and bytes acknowledged by the peer."""

    inode: int
    port: int
    in_bytes: int
    out_bytes: int


def request(family: int, states: int = _STATES) -> bytes:
    """Return the netlink request for all TCP sockets of an address family in these states."""
    extensions = 1 << (_INET_DIAG_INFO - 1)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, states)
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    length = _HEADER.size + len(body)
    return _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + body


def parse(answer: bytes) -> tuple[list[Connection], bool]:
    """Parse one answer: its sockets, and whether the dump is complete.

    Raises OSError where the kernel refuses, ValueError where the lengths make no sense.
    """
    connections: list[Connection] = []
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size or at + length > len(answer):
            raise ValueError(f"a netlink message of {length} bytes at {at}")
        if kind == _NLMSG_DONE:
            return connections, True
        if kind == _NLMSG_ERROR:
            (number,) = struct.unpack_from("=i", answer, at + _HEADER.size)
            raise OSError(-number, "sock_diag refuses")
        if kind == _SOCK_DIAG_BY_FAMILY:
            connections.append(_connection(answer, at + _HEADER.size, at + length))
        at += _padded(length)
    return connections, False


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _connection(answer: bytes, at: int, end: int) -> Connection:
    fields = _MESSAGE.unpack_from(answer, at)
    out_bytes = in_bytes = 0
    for kind, begin, stop in _attributes(answer, at + _MESSAGE.size, end):
        if kind == _INET_DIAG_INFO and stop - begin >= _TCP_BYTES_AT + _TCP_BYTES.size:
            out_bytes, in_bytes = _TCP_BYTES.unpack_from(answer, begin + _TCP_BYTES_AT)
    return Connection(fields[-1], int.from_bytes(fields[4], "big"), in_bytes, out_bytes)


def _attributes(answer: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, begin and end of each attribute's content. Raises ValueError for a bad length."""
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if length < _ATTRIBUTE.size or at + length > end:
            raise ValueError(f"an attribute of {length} bytes at {at}")
        yield kind, at + _ATTRIBUTE.size, at + length
        at += _padded(length)


def tcp_sockets(states: int = _STATES) -> list[Connection]:
    """Return all TCP sockets of this network namespace in these states. Raises OSError."""
    connections: list[Connection] = []
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            netlink.send(request(family, states))
            complete = False
            while not complete:
                some, complete = parse(netlink.recv(ANSWER_BYTES))
                connections.extend(some)
    return connections


def listening(port: int) -> list[int]:
    """Return the inodes of the sockets that listen on a port."""
    return [each.inode for each in tcp_sockets(_LISTEN) if each.port == port]
