"""A receiving link over a socket pair, for what takes messages from links."""

from feedhandler.amqp.framing import QUALITY_NOTE, WHOLE_PACKET, Frame, Template
from feedhandler.amqp.subscribing.inbox import Inbox
from tests.support.amqp_pair import Pair

PREFIX = b"\x01\x35\x1a\xa8\x00\x01\x00\x68"
PACKETS = Template("euronext.104", "application/vnd.feedhandler.packet", PREFIX)
QUALITY = Template("euronext.104", "application/vnd.feedhandler.quality+json", PREFIX)


class Intake(Pair):
    """A receiving link over a socket pair; `granted` is what was given back."""

    def __init__(self, credit: int) -> None:
        super().__init__(credit=100, address="euronext.#")
        self.credit, self.number = credit, 0
        self.granted: list[int] = []
        self.link, self.inbox = self.receiver, Inbox()

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
        self.turn()

    def grant(self, consumed: int) -> None:
        self.granted.append(consumed)
