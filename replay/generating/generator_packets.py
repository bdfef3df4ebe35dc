"""From messages to packets: seven services' sequence numbers, packet sizes and heartbeats.

Messages go onto a service's tape one by one; a packet is cut when it holds the service's usual
number of messages, and whatever is open is cut when the caller says that a burst has ended.
Times come from the `MessageTime` that the caller moves along: a packet is due at its last event.
A packet header is packed by `struct` with the offsets of the feed description; control packets
go through `Feed.encode_packet`. Heartbeats do not advance the sequence.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.generator_wire import MessageTime

REFERENCE, TRADES, QUOTES, ORDERS = 101, 102, 103, 104
WARRANT_TRADES, WARRANT_QUOTES, INDICES = 105, 106, 107
SERVICES = (REFERENCE, TRADES, QUOTES, ORDERS, WARRANT_TRADES, WARRANT_QUOTES, INDICES)

#: The specification's bound on a packet.
PACKET_BYTES_MAX = 1400
#: Packet type of market data.
MARKET_DATA = 501
#: Messages at which a packet is cut. With the generator's bursts these give the messages a packet
#: that follow from the source paper's Table 1.
PACKET_MESSAGES = {
    REFERENCE: 3,
    TRADES: 1,
    QUOTES: 15,
    ORDERS: 9,
    WARRANT_TRADES: 2,
    WARRANT_QUOTES: 6,
    INDICES: 6,
}


class Outgoing(NamedTuple):
    """One packet, due `due_ns` after the session's start; `messages` is 0 in control packets."""

    due_ns: int
    service: int
    packet: bytes
    messages: int


class _Service:
    """One service: its open packet, its next sequence number, when it last sent."""

    __slots__ = ("last_sent_ns", "messages", "messages_max", "number", "sequence")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = 1
        self.messages: list[bytes] = []
        self.messages_max = PACKET_MESSAGES[number]
        self.last_sent_ns = 0


class PacketCutter:
    """Cuts the messages of seven services into packets; `time` is moved along by the caller.

    `start_ns` is the session's start, after midnight; `messages` counts what was put on tapes.
    """

    def __init__(self, feed: Feed, time: MessageTime, start_ns: int, heartbeat_ns: int) -> None:
        self.messages = 0
        #: Earliest moment, since the session's start, at which a service may need a heartbeat.
        self.heartbeat_due_ns = heartbeat_ns
        self._feed = feed
        self._time = time
        self._start_ns = start_ns
        self._heartbeat_ns = heartbeat_ns
        self._services = {number: _Service(number) for number in SERVICES}
        self._due: list[Outgoing] = []
        self._header = header_packer(feed)

    def tape(self, number: int) -> Callable[[bytes], None]:
        """A function that puts one message into the service's open packet."""
        service = self._services[number]
        messages = service.messages

        def put(message: bytes) -> None:
            messages.append(message)
            if len(messages) >= service.messages_max:
                self._cut(service)

        return put

    def set_messages_max(self, number: int, messages: int | None) -> None:
        """Cut the service's packets at `messages` from now on; None: at its usual number."""
        usual = PACKET_MESSAGES[number]
        self._services[number].messages_max = usual if messages is None else messages

    def cut_all(self) -> None:
        """The burst has ended: nothing is held back."""
        for service in self._services.values():
            if service.messages:
                self._cut(service)

    def reset_all(self) -> None:
        """A sequence reset on every service: the packet itself is 1, the next one 2."""
        for service in self._services.values():
            self._send(service, self._control(service, "reset", service.sequence), 0)
            service.sequence = 2

    def beat(self) -> None:
        """Heartbeats for the services that have been idle long enough."""
        now = self._time.ns - self._start_ns
        for service in self._services.values():
            if now - service.last_sent_ns >= self._heartbeat_ns:
                self._beat(service)
        oldest = min(service.last_sent_ns for service in self._services.values())
        self.heartbeat_due_ns = oldest + self._heartbeat_ns

    def beat_all(self) -> None:
        """A heartbeat for every service, idle or not."""
        for service in self._services.values():
            self._beat(service)

    def _beat(self, service: _Service) -> None:
        """What a heartbeat says of the sequence is as the feed's description tells."""
        said = {"next": service.sequence, "last": service.sequence - 1, "none": 0}
        sequence = said[self._feed.description.packet.sequence.heartbeat]
        self._send(service, self._control(service, "heartbeat", sequence), 0)

    def take(self) -> list[Outgoing]:
        """What was cut since the last call, in order of `due_ns`, each service's in sequence."""
        due, self._due = self._due, []
        due.sort(key=_due_ns)
        return due

    def next_sequences(self) -> dict[int, int]:
        """The number that the next packet of each service will carry."""
        return {number: service.sequence for number, service in self._services.items()}

    def _cut(self, service: _Service) -> None:
        messages = service.messages
        body = b"".join(messages)
        count = len(messages)
        messages.clear()
        self.messages += count
        packet = self._header(
            len(body), MARKET_DATA, service.sequence, self._time.milliseconds, service.number, count
        )
        service.sequence += 1
        self._send(service, packet + body, count)

    def _send(self, service: _Service, packet: bytes, count: int) -> None:
        assert len(packet) <= PACKET_BYTES_MAX
        service.last_sent_ns = self._time.ns - self._start_ns
        self._due.append(Outgoing(service.last_sent_ns, service.number, packet, count))

    def _control(self, service: _Service, kind: str, sequence: int) -> bytes:
        return self._feed.encode_packet(
            kind=kind, sequence=sequence, service=service.number, send_time=self._time.milliseconds
        )


def header_packer(feed: Feed) -> Callable[[int, int, int, int, int, int], bytes]:
    """A packer of (body length, packet type, sequence, send time, service, messages) to a header.

    Raises `UsageError` for a feed whose packet header is not UTP-MD's.
    """
    names = ["PacketLength", "PacketType", "PacketSeqNum", "SendTime", "ServiceID", "DeliveryFlag",
             "NumberMsgEntries"]  # fmt: skip
    fields = sorted(feed.header.fields, key=lambda field: field.at)
    if [field.wire for field in fields] != names:
        raise UsageError(
            f"the header of {feed.name} is not UTP-MD's", "generate sessions of euronext-utp-md"
        )
    header = struct.Struct(">" + "".join(field.code for field in fields))
    pack, size = header.pack, header.size

    def packed(body: int, kind: int, sequence: int, time: int, service: int, count: int) -> bytes:
        return pack(size + body, kind, sequence, time, service, 0, count)

    return packed


def _due_ns(packet: Outgoing) -> int:
    return packet.due_ns
