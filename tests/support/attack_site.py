"""Where an attack takes place: connections to a gateway's ports, from an address of its own."""

import asyncio
import contextlib
import socket
import ssl

from tests.support import amqp_wire as wire
from tests.support.raw_peer import Raw

#: How long a peer tries to say something to a node that does not read.
PUSH_S = 1.0
#: How long the node may take to answer those who have said goodbye.
GOODBYE_S = 5.0


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
    """Where a round takes place: `ports` by name, the address that it comes from, its peers."""

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
