"""A receiving link over a socket pair, for what takes messages from links."""

import socket
from typing import Any

from feedhandler.amqp import proton
from feedhandler.amqp.framing import QUALITY_NOTE, WHOLE_PACKET, Frame, Template
from feedhandler.amqp.subscribing.inbox import Inbox

PREFIX = b"\x01\x35\x1a\xa8\x00\x01\x00\x68"
PACKETS = Template("euronext.104", "application/vnd.feedhandler.packet", PREFIX)
QUALITY = Template("euronext.104", "application/vnd.feedhandler.quality+json", PREFIX)


class Intake:
    """A receiving link over a socket pair; `granted` is what was given back."""

    def __init__(self, credit: int) -> None:
        self.credit, self.number = credit, 0
        self.granted: list[int] = []
        self.sockets = socket.socketpair()
        for end in self.sockets:
            end.setblocking(False)
        self.server = proton.Connection(self.sockets[0].fileno(), server=True, container="node")
        self.client = proton.Connection(self.sockets[1].fileno(), server=False, container="us")
        self.link = self.client.receiver("feed", "euronext.#", settled=True, credit=100)
        self.inbox = Inbox()
        self.sender: Any = None
        for _ in range(5):
            self._cross()

    def _cross(self) -> None:
        self.client.flush()
        self.server.receive()
        for kind, link in self.server.events():
            if kind == proton.CONNECTION_REMOTE_OPEN:
                self.server.open()
            elif kind == proton.LINK_REMOTE_OPEN:
                self.sender = link
                link.open()
        self.server.flush()
        self.client.receive()
        self.client.events()

    def bring(self, *bodies: bytes) -> None:
        """Have these on the link; what begins with a brace is a quality message."""
        for body in bodies:
            note = body.startswith(b"{")
            frame = Frame(4_096)
            frame.begin(QUALITY if note else PACKETS, 7, QUALITY_NOTE if note else WHOLE_PACKET, 0)
            frame.append(body, 0, len(body))
            frame.finish(self.number)
            self.number += 1
            data = frame.snapshot()
            self.sender.send(data, 0, len(data))
        self._cross()

    def grant(self, consumed: int) -> None:
        self.granted.append(consumed)

    def close(self) -> None:
        for end in self.sockets:
            end.close()
