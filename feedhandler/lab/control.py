"""The source paper's control datagrams: who sends them, and what is in them.

What it is for: the paper measured the broker alone. For every packet with an odd sequence number
(of messages: for every odd message of such a packet) the gateway sent a small datagram to one
process as it published, and one control client as it received; that process stamped both on arrival
(section 4). `ControlOutlet` is the gateway's side, a link of the fan-out like any other that sends
a datagram instead of the message: it is there in a measurement of that kind alone, and nothing of
the way of a packet knows of it. `Sender` is the client's side.

What it promises: the gateway's datagram leaves before the message does, so that no time of the
broker is missing. A datagram that the kernel does not take is lost, and shows as one that has no
match.
"""

import contextlib
import socket
import struct
from typing import Any

import numpy as np

from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.outlet import Outlet, Peer
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.routing import parse_address
from feedhandler.codecs.errors import UsageError

#: One datagram: service, sequence number, message number; big-endian, as in a tag.
DATAGRAM = struct.Struct(">HQH")
ROW = np.dtype([("service", ">u2"), ("sequence", ">u8"), ("number", ">u2")])
#: A tag begins with trading day and feed, which nobody needs here.
_IN_TAG = 6
#: The message number of a whole packet, which is odd.
_WHOLE = 0xFFFF
#: Of a link that keeps nothing.
_NO_BYTES = 1 << 16


def is_marked(sequence: int, number: int) -> bool:
    """Whether a packet (number 0xFFFF) or message has a control datagram."""
    return bool(sequence & number & 1)


def connected(place: str) -> socket.socket:
    """A UDP socket towards `host:port`. Raises UsageError for what is no such place."""
    host, _, port = place.rpartition(":")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.connect((host, int(port)))
    except (OSError, ValueError, OverflowError):
        sock.close()
        raise UsageError(f"{place!r} is no place of a stamping process", "host:port") from None
    # A full buffer may lose a datagram, but never hold up what is measured.
    sock.setblocking(False)
    return sock


class ControlOutlet(Outlet):
    """A link that takes every packet, or every message, and sends a datagram for the marked ones.

    `asked`: as an address, such as `#?as=message&quality=0`.
    """

    def __new__(cls, sock: socket.socket, asked: str) -> "ControlOutlet":
        """Compiled classes are made by their base's arguments."""
        return super().__new__(cls)

    def __init__(self, sock: socket.socket, asked: str) -> None:
        subscription = parse_address(asked, lambda word: 0)
        super().__init__(Peer([]), SenderLink(), subscription, _NO_BYTES, _NO_BYTES)
        self.sock = sock
        self.marked = 0

    def deliver(self, frame: Any) -> int:
        """Called with each message before anybody else is."""
        at = frame.template.tag_at + _IN_TAG
        datagram = frame.memory[at : at + DATAGRAM.size]
        # The last byte of the sequence number, and of the message number.
        if datagram[9] & datagram[11] & 1:
            self.marked += 1
            with contextlib.suppress(OSError):
                self.sock.send(datagram)
        return 0


def attach(fanout: Fanout, place: str, grain: str) -> ControlOutlet:
    """Have a gateway's fan-out send datagrams to `place`; to be called before other links come, so
    that it is the first. Raises UsageError."""
    outlet = ControlOutlet(connected(place), f"#?as={grain}&quality=0")
    fanout.add(outlet)
    return outlet


class Sender:
    """The control client's side: a datagram for each marked delivery of a batch."""

    def __init__(self, place: str) -> None:
        self._sock = connected(place)

    def take(self, batch: Any) -> None:
        """Send what this batch has of marked packets or messages."""
        odd = batch.sequences & batch.numbers & 1
        chosen = np.flatnonzero(odd)
        if not len(chosen):
            return
        rows = np.empty(len(chosen), ROW)
        rows["service"] = batch.services[chosen]
        rows["sequence"] = batch.sequences[chosen]
        rows["number"] = batch.numbers[chosen]
        data = rows.tobytes()
        for at in range(0, len(data), DATAGRAM.size):
            with contextlib.suppress(OSError):
                self._sock.send(data[at : at + DATAGRAM.size])

    def close(self) -> None:
        """No more datagrams."""
        self._sock.close()
