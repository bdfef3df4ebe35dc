"""The far end of a subscriber's link: what the gateway's fan-out sends, given to the oracle.

Each link has credit without end, and each message is read the moment it is sent: its tag, its
group-sequence, which messages are a block. `WholeLink` is the subscriber whose view is checked in
full, `LateLink` one that attached later with snapshot=1.
"""

import json
import struct

from oracle import Link, Subscriber
from sessions import DATA, FEED, parse

from feedhandler.amqp.framing import (
    BLOCK_SHIFT,
    QUALITY_NOTE,
    SNAPSHOT_BIT,
    WHOLE_PACKET,
    Reader,
    is_unsequenced,
)
from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from tests.support.amqp import FakeLink

#: Day, feed, service, sequence number, message number.
TAG = struct.Struct(">IHHQH")
#: More than any run sends: no link is given up.
QUEUE_BYTES = 1 << 30


class ReadLink(FakeLink):
    """A link that takes all services, and reads what it is sent."""

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__()
        self.subscriber = subscriber
        self._reader = Reader()
        self._count = 0
        #: service -> begin marker and packets of the block that is being sent.
        self._blocks: dict[int, tuple[bytes, list[bytes]]] = {}

    def sender_queue(self, peer: Peer, options: str = "") -> SenderQueue:
        """The gateway's side of it."""
        address = f"{FEED.key}.#{options}"
        subscription = parse_address(address, FEED.type_code, snapshots=True)
        return SenderQueue(peer, self, subscription, QUEUE_BYTES, 0)

    def send(self, data, start: int, size: int) -> int:
        """A message."""
        reader, end = self._reader, start + size
        assert reader.parse(data, start, end)
        assert reader.group_sequence == self._count, "messages are numbered without a gap"
        self._count += 1
        body = bytes(data[reader.body_at : reader.body_at + reader.body_size])
        _, number, service, sequence, message = TAG.unpack_from(data, reader.tag_at)
        assert number == FEED.number
        if message == QUALITY_NOTE:
            self._quality(service, body, json.loads(body)["reason"])
            return 0
        assert message == WHOLE_PACKET
        if is_unsequenced(sequence):
            self.outside(body)
        elif sequence & SNAPSHOT_BIT:
            begin, packets = self._blocks[service]
            index = len(packets)
            packets.append(body)
            last = json.loads(begin)["last"] if not index else self._last
            assert sequence == SNAPSHOT_BIT | last << BLOCK_SHIFT | index, f"service {service}"
            self._last = last
        else:
            assert service not in self._blocks, "a live packet of the service in its block"
            self.packet(service, sequence, body)
        return 0

    def _quality(self, service: int, body: bytes, reason: str) -> None:
        if reason == "snapshot-begin":
            assert service not in self._blocks
            self._blocks[service] = body, []
        elif reason == "snapshot-end":
            begin, packets = self._blocks.pop(service)
            self.block(service, begin, packets, body)
        else:
            assert service not in self._blocks, f"{reason} in a block"
            self.quality(service, body, reason)


class WholeLink(ReadLink):
    """The subscriber that the oracle speaks of."""

    def outside(self, packet: bytes) -> None:
        self.subscriber.outside(packet)

    def packet(self, service: int, sequence: int, packet: bytes) -> None:
        header = parse(packet)
        assert header.sequence == sequence, "the tag is the packet's"
        self.subscriber.packet(service, sequence, header.next_sequence, packet, header.kind == DATA)

    def quality(self, service: int, body: bytes, reason: str) -> None:
        self.subscriber.quality(service, body)

    def block(self, service: int, begin: bytes, packets: list[bytes], end: bytes) -> None:
        last = json.loads(begin)["last"]
        self.subscriber.block(service, begin, packets, last, end, None)


class LateLink(ReadLink):
    """One that came later and asked for each service's state first."""

    def __init__(self, subscriber: Subscriber, link: Link) -> None:
        super().__init__(subscriber)
        self.link = link

    def outside(self, packet: bytes) -> None:
        pass

    def packet(self, service: int, sequence: int, packet: bytes) -> None:
        assert service not in self.link.withheld, "a packet for a link that takes no part yet"
        self.link.market.apply(packet)

    def quality(self, service: int, body: bytes, reason: str) -> None:
        link = self.link
        if reason == "snapshot":
            link.withheld.add(service)
        else:
            link.withheld.discard(service)
        if reason in ("snapshot", "no snapshot"):
            self.subscriber.quality_of_links(service, body, [link])
        elif reason == "reset":
            link.block(service, [])

    def block(self, service: int, begin: bytes, packets: list[bytes], end: bytes) -> None:
        self.link.withheld.discard(service)
        last = json.loads(begin)["last"]
        self.subscriber.block(service, begin, packets, last, end, [self.link])
