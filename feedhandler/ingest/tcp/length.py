"""Packets of a feed in a byte stream, each behind its length of two bytes.

A stream has no numbers of its own: after a reconnection it goes on where the server does, and what
was missed shows as a gap. A length of 0 is a sign of life. A length beyond `packet_bytes_max` means
that what is read are no lengths (another byte order, a server of something else): the connection is
given up, for nothing behind it can be found.

Sans-IO: bytes and the time are arguments.
"""

from typing import Literal

from feedhandler.ingest.tcp.stream import Joined, StreamClient, StreamEvent, StreamFault
from feedhandler.retrans.settings import RecoverySettings

LENGTH_BYTES = 2


class LengthClient(StreamClient):
    """The client of a stream of packets; what it holds never exceeds one packet and one read."""

    def __init__(
        self,
        times: RecoverySettings,
        packet_bytes_max: int,
        byte_order: Literal["big", "little"] = "big",
    ) -> None:
        super().__init__(times)
        self._bytes_max = packet_bytes_max
        self._order: Literal["big", "little"] = byte_order
        self._held, self._begun = b"", False

    def connected(self, now_ns: int) -> None:
        """Begin a new connection, at the beginning of a packet."""
        super().connected(now_ns)
        self._held, self._begun = b"", False

    def feed(self, data: bytes, now_ns: int) -> list[StreamEvent]:
        """Take in received bytes; return the packets that are whole."""
        if not self._connected:
            return []
        self.counts["bytes"] += len(data)
        events: list[StreamEvent] = []
        if not self._begun:
            self._begun = True
            events.append(Joined("the stream is there"))
        self._heard_ns = now_ns
        held, at = self._held + data, 0
        size, order, bytes_max = len(held), self._order, self._bytes_max
        while size - at >= LENGTH_BYTES:
            begin = at + LENGTH_BYTES
            length = int.from_bytes(held[at:begin], order)
            if length > bytes_max:
                text = f"the server sent a length of {length}, more than packet_bytes_max"
                events.append(self._broken(StreamFault("malformed", text)))
                break
            if begin + length > size:
                break
            at = begin + length
            if length:
                events.append(held[begin:at])
                self.counts["packets"] += 1
            else:
                self.counts["heartbeats"] += 1
        self._held = held[at:]
        return events
