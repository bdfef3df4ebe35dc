"""Two AMQP connections of ours over a socket pair: a server that sends, a client that receives."""

import socket
from typing import Any

from feedhandler.amqp import proton
from feedhandler.amqp.proton import Connection, ReceiverLink, SenderLink


class Pair:
    """A server and a client connection, and one link between them."""

    def __init__(self, *, settled: bool = True, credit: int = 0, address: str = "e.1") -> None:
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        self.sockets = ends
        self.server = Connection(ends[0].fileno(), server=True, container="server")
        self.client = Connection(ends[1].fileno(), server=False, container="client")
        self.receiver: ReceiverLink = self.client.receiver(
            "n", address, settled=settled, credit=credit
        )
        self.sender: SenderLink | None = None
        self.client_events: list[tuple[int, Any]] = []
        self.server_events: list[tuple[int, Any]] = []
        for _ in range(10):
            self.turn()

    def turn(self) -> None:
        """Let each side read, act and write once."""
        self.client.flush()
        self.server.receive()
        for kind, link in self.server.events():
            self.server_events.append((kind, link))
            if kind == proton.CONNECTION_REMOTE_OPEN:
                self.server.open()
            elif kind == proton.LINK_REMOTE_OPEN:
                self.sender = link
                link.open()
        self.server.flush()
        self.client.receive()
        self.client_events += self.client.events()

    def messages(self) -> list[bytes]:
        """Return the messages that the client has gathered, and forget them."""
        link = self.receiver
        bounds = memoryview(link.bounds).cast("q")
        found = [bytes(link.arena[bounds[i] : bounds[i + 1]]) for i in range(link.count)]
        bounds.release()
        link.clear()
        return found

    def close(self) -> None:
        for end in self.sockets:
            end.close()
