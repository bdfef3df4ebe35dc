"""The site of hostile clients: a `Site` with raw peers, the frames that they send, and the table
of attacks, which `tests/support/attacks.py` fills.

Frames are `amqp_wire`'s; here is what attacks say beyond a link of a stream: log-ins, messages,
requests.
"""

import asyncio
import contextlib
import inspect
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.support import amqp_wire as wire
from tests.support.raw_peer import Raw

#: How long a peer tries to say something to a node that does not read.
PUSH_S = 1.0
#: How long the node may take to answer those who have said goodbye.
GOODBYE_S = 5.0
QUEUE = "queue.orders"


class Peer(Raw):
    """A raw peer that gives up where the node has closed, or takes nothing more. `opened`: it has
    said its open, and reads."""

    opened = False

    async def push(self, *data: bytes) -> bool:
        """Say this, and wait until the socket has it; whether that came about."""
        with contextlib.suppress(
            OSError, TimeoutError, RuntimeError
        ):  # uvloop's, where it is closed
            async with asyncio.timeout(PUSH_S):
                self.say(*data)
                await self.writer.drain()
            return not self.writer.is_closing()
        return False


class Site:
    """Site of a round: `ports` by name, the address that it comes from, its peers."""

    def __init__(self, ports: dict[str, int], host: str, long: bool) -> None:
        self.ports = ports
        self.host = host
        #: A campaign: as much as it takes, where a round in the ordinary gate does with less.
        self.long = long
        self.peers: list[Peer] = []

    async def peer(
        self, port: str = "amqp", *, reads: bool = True, tls: bool = False, host: str = ""
    ) -> Peer:
        """A new connection; who does not read has small buffers, too."""
        sock = socket.socket()
        sock.setblocking(False)
        if not reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((host or self.host, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[port]))
        context = None
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="127.0.0.1" if tls else None
        )
        if not reads:
            writer.transport.pause_reading()
        self.peers.append(Peer(reader, writer))
        return self.peers[-1]

    async def client(self, *data: bytes, **how: bool) -> Peer:
        """A peer that has opened the connection, begun a session, and said this."""
        peer = await self.peer(**how)
        peer.opened = how.get("reads", True)
        await peer.push(wire.opening(), wire.begin(), *data)
        return peer

    async def heard(self) -> None:
        """The node has taken in what those who read have said: it has answered their goodbye."""

        async def goodbye(peer: Peer) -> None:
            await peer.push(wire.frame(wire.CLOSE))
            await peer.end()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*(goodbye(each) for each in self.peers if each.opened))

    def close(self) -> None:
        """All peers are gone at once, without a word."""
        for each in self.peers:
            each.writer.transport.abort()
        self.peers.clear()


@dataclass(frozen=True)
class Attack:
    """See the module."""

    what: str
    run: Callable[[Site], Awaitable[None]]
    moves: tuple[str, ...]


def sasl(mechanism: str, response: bytes) -> bytes:
    """A client's choice of how to log in."""
    chosen = wire.described(0x41, mechanism.encode(), wire.Value(wire.BINARY, response))
    return wire.frame_bytes(chosen.encode(), kind=1)


def tls_hello() -> bytes:
    """Return the ClientHello of a TLS client."""
    said = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return said.read()


ATTACKS: dict[str, Attack] = {}


def attack(*moves: str) -> Callable[[Callable[[Site], Awaitable[None]]], None]:
    """Put a coroutine into the table."""

    def put(run: Callable[[Site], Awaitable[None]]) -> None:
        what = (inspect.getdoc(run) or "").splitlines()[0].rstrip(".")
        ATTACKS[run.__name__.replace("_", " ")] = Attack(what, run, moves)

    return put


# -- what is said: links, messages, requests --------------------------------------------------


def sending(name: str, handle: int, address: str) -> bytes:
    """The attach of a link that sends to this address."""
    return wire.frame(
        wire.ATTACH, name, handle, False, wire.ubyte(0), wire.ubyte(0),
        wire.described(wire.SOURCE), wire.described(wire.TARGET, address), None, None, 0,
    )  # fmt: skip


def answers(name: str, handle: int, address: str) -> bytes:
    """The attach of a link that takes a queue's answers; `address` is their reply-to."""
    return wire.frame(
        wire.ATTACH, name, handle, True, wire.ubyte(1), wire.ubyte(0),
        wire.described(wire.SOURCE, f"{QUEUE}/$management"), wire.described(wire.TARGET, address),
    )  # fmt: skip


def transfer(
    handle: int, number: int, payload: bytes, more: bool = False, settled: bool = False
) -> bytes:
    """A frame of a message."""
    tag = wire.Value(0xA0, number.to_bytes(4, "big"))
    return wire.frame(wire.TRANSFER, handle, number, tag, 0, settled, more, payload=payload)


def message(body: bytes, message_id: str | None = None) -> bytes:
    """A message of a queue's: properties and data."""
    data = wire.Value(wire.BINARY, body, wire.Value(0x53, 0x75))
    return wire.described(0x73, message_id).encode() + data.encode()


def request(operation: str, reply_to: str | None, **arguments: wire.Value) -> bytes:
    """A management request."""
    pairs = [wire.wire("operation"), wire.wire(operation)]
    for name, value in arguments.items():
        pairs += [wire.wire(name.replace("_", "-")), value]
    head = wire.described(0x73, None, None, None, None, reply_to)
    asked = wire.Value(wire.MAP32, pairs, wire.Value(0x53, 0x74))
    return head.encode() + asked.encode()


def nested(depth: int) -> wire.Value:
    """Maps in maps."""
    value = wire.wire("bottom")
    for _ in range(depth):
        value = wire.Value(wire.MAP32, [wire.wire("k"), value])
    return value


async def produce(peer: Peer, handle: int, *payloads: bytes) -> None:
    """Send these messages, as the node gives credit."""
    sent = credit = 0
    while sent < len(payloads):
        while sent >= credit:
            granted = await peer.hear(wire.FLOW)
            if granted.field(4) == handle:
                credit = (granted.field(5) or 0) + (granted.field(6) or 0)
        due = range(sent, min(credit, len(payloads)))
        await peer.push(*(transfer(handle, n, payloads[n], settled=True) for n in due))
        sent = due.stop
