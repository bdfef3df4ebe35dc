"""Subscribes to the gateway with python-qpid-proton and prints what comes.

pip install python-qpid-proton
python subscribe.py amqp://127.0.0.1:5672 'euronext.104?types=230'
"""

import json
import struct
import sys

from proton import Link
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption

#: Messages on their way at most. proton tops the credit up by itself; its default, 10, is slow.
CREDIT = 1000
#: The packet header of UTP-MD: length, type, sequence number, time in ms, service, flag, count.
PACKET = struct.Struct(">HHIIHBB")


class Settled(LinkOption):
    """Messages are settled as they are sent: a market's data is not given back."""

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = Link.SND_SETTLED


def order(message: memoryview) -> str:
    """An order update (type 230) by its fields' offsets."""
    symbol, price, volume = (struct.unpack_from(">I", message, at)[0] for at in (4, 16, 24))
    side, action, scale = message[44:45].tobytes(), message[46:47].tobytes(), message[47]
    return f"order {symbol} {action.decode()} {side.decode()} {volume} @ {price / 10**scale}"


def print_packet(body: memoryview) -> None:
    """A packet's header, and its messages: each begins with its size less 2, and its type."""
    length, _, sequence, _, service, _, count = PACKET.unpack_from(body)
    print(f"packet {service} {sequence}: {count} messages, {length} bytes")
    at = PACKET.size
    for _ in range(count):
        size, kind = struct.unpack_from(">HH", body, at)
        if kind == 230:
            print(" ", order(body[at : at + size + 2]))
        at += size + 2


class Subscriber(MessagingHandler):
    """Prints each message; ends after `count` of them, or never."""

    def __init__(self, url: str, address: str, count: int | None) -> None:
        super().__init__(prefetch=CREDIT)
        self.url, self.address, self.left, self.next = url, address, count, 0

    def on_start(self, event) -> None:
        connection = event.container.connect(self.url, reconnect=False)
        event.container.create_receiver(connection, self.address, options=Settled())

    def on_message(self, event) -> None:
        message = event.message
        if message.group_sequence != self.next:  # thinning leaves no gap here
            raise SystemExit(f"{message.group_sequence - self.next} messages were lost")
        self.next += 1
        body = memoryview(message.body)
        if str(message.content_type).endswith(".quality+json"):
            told = json.loads(bytes(body))
            print(f"quality {told['service']} {told['state']}: {told['reason']}")
        else:
            print_packet(body)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                event.connection.close()

    def on_link_error(self, event) -> None:
        condition = event.link.remote_condition
        raise SystemExit(f"refused: {condition.name}: {condition.description}")

    def on_transport_error(self, event) -> None:
        raise SystemExit(f"no connection: {event.transport.condition}")


if __name__ == "__main__":
    url, address, *rest = sys.argv[1:]
    Container(Subscriber(url, address, int(rest[0]) if rest else None)).run()
