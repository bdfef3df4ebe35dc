"""The source paper's control datagrams: their senders and their content.

What it is for: the paper measured the broker alone. For every packet with an odd sequence number
(of messages: for every odd message of such a packet) the gateway sent a small datagram to one
process as it published, and one control client as it received; that process stamped both on arrival
(section 4). `ControlLink` is the gateway's side, a link of the fan-out like any other that sends
a datagram instead of the message: it exists only in a measurement of that kind, and the product's
packet path is free of it. `Sender` is the client's side.

What it promises: the gateway's datagram leaves before the message does, so that none of the
broker's time is missing. A datagram that the kernel does not take is lost, and counts as unmatched.
"""

import contextlib
import socket
import struct
from typing import Any

import numpy as np

from feedhandler.addresses import split_address
from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.proton import SenderLink
from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from feedhandler.codecs.errors import UsageError

#: One datagram: service, sequence number, message number; big-endian, as in a tag.
DATAGRAM = struct.Struct(">HQH")
ROW = np.dtype([("service", ">u2"), ("sequence", ">u8"), ("number", ">u2")])
#: Offset in a tag, behind trading day and feed, which are not needed here.
_IN_TAG = 6
#: The message number of a whole packet, which is odd.
_WHOLE = 0xFFFF
#: The byte limits of a link that queues nothing.
_NO_BYTES = 1 << 16


def connected(address: str) -> socket.socket:
    """Return a non-blocking UDP socket connected to `host:port`.

    Raises UsageError for a bad address.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.connect(split_address(address))
    except (OSError, ValueError):
        sock.close()
        raise UsageError(f"{address!r} is no address of a stamping process", "host:port") from None
    # A full buffer may lose a datagram, but never hold up what is measured.
    sock.setblocking(False)
    return sock


class ControlLink(SenderQueue):
    """A link that takes every packet, or every message, and sends a datagram for the sampled ones.

    `asked` is an address, such as `#?as=message&quality=0`.
    """

    def __new__(cls, sock: socket.socket, asked: str) -> "ControlLink":
        """Make the instance without arguments: a compiled base would take them as its own."""
        return super().__new__(cls)

    def __init__(self, sock: socket.socket, asked: str) -> None:
        subscription = parse_address(asked, lambda word: 0)
        super().__init__(Peer([]), SenderLink(), subscription, _NO_BYTES, _NO_BYTES)
        self.sock = sock
        self.sampled = 0

    def deliver(self, frame: Any) -> int:
        """Send the datagram of a sampled message; called before any other link gets the message."""
        at = frame.template.tag_at + _IN_TAG
        datagram = frame.memory[at : at + DATAGRAM.size]
        # The last byte of the sequence number, and of the message number.
        if datagram[9] & datagram[11] & 1:
            self.sampled += 1
            with contextlib.suppress(OSError):
                self.sock.send(datagram)
        return 0


def attach(fanout: Fanout, address: str, grain: str) -> ControlLink:
    """Add a link to a gateway's fan-out that sends datagrams to `address`.

    To be called before other links are added, so that it is the first. Raises UsageError.
    """
    sender_queue = ControlLink(connected(address), f"#?as={grain}&quality=0")
    fanout.add(sender_queue)
    return sender_queue


class Sender:
    """The control client's side: sends a datagram for each sampled delivery of a batch."""

    def __init__(self, address: str) -> None:
        self._sock = connected(address)

    def send(self, batch: Any) -> None:
        """Send the datagrams of a batch's sampled packets or messages."""
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
        """Close the socket."""
        self._sock.close()
