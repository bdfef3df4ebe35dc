"""What goes around a message on its way to a broker: header, annotations, its own address.

What it is for: the same message goes to every broker, but where it goes is said in different ways.
To some the link says it, and routes by the subject; to others each message does, in its `to`. A
message waits without either, because what the broker is may not be known yet, or may have changed
by the time it is sent again. An `Envelope` is what one connection adds as it sends.

What it promises: the header says durable always (a broker may take a message without one for
transient); all else of a message is the same whichever way it goes.

What it leaves to others: which broker wants what (`brokers`).
"""

from collections.abc import Callable

import cython

if cython.compiled:
    from cython.cimports.feedhandler.amqp.framing import read_uint, write_uint
    from cython.cimports.feedhandler.amqp.proton import PublisherLink
else:
    from feedhandler.amqp.framing import read_uint, write_uint
    from feedhandler.amqp.proton import PublisherLink

from feedhandler.amqp.framing import TAG_BYTES

#: The header section: durable, all else as by default (AMQP 1.0, 3.2.1).
HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
#: Addresses of routing keys that are remembered; past it all are made anew.
ADDRESSES_MAX = 100_000

# A message of ours begins with its properties: constructor, size and count of a list, message-id,
# user-id, and then the null in the place of `to` (`framing.Template`).
_BEFORE_SIZE = b"\x00\x53\x73\xd0"
_AFTER_SIZE = cython.declare(cython.Py_ssize_t, 8)
_TO_AT = cython.declare(cython.Py_ssize_t, 8 + 4 + 2 + TAG_BYTES + 1)
_ADDRESSES_MAX = cython.declare(cython.Py_ssize_t, ADDRESSES_MAX)


@cython.cclass
class Envelope:
    """`annotations`: an encoded section, or nothing. `address(subject)`: what a message has in its
    `to`; None where the link says where messages go."""

    def __init__(
        self, annotations: bytes = b"", address: Callable[[str], str] | None = None
    ) -> None:
        self.address = address
        lead = bytearray(HEADER + annotations)
        if address is not None:
            lead += _BEFORE_SIZE + bytes(4)
        self.lead = lead
        self.size_at = len(lead) - 4
        self.known = {}

    @cython.ccall
    def send(
        self, link: PublisherLink, number: cython.ulonglong, key: str, data: bytes
    ) -> cython.int:
        """Send a message with this subject under this number; the caller has asked `ready`."""
        to: bytes
        if self.address is None:
            link.send_parts(number, self.lead, data, 0, 0, b"")
            return 0
        to = self.known.get(key)
        if to is None:
            to = self._learn(key)
        size: cython.ulonglong = read_uint(data, 4, 4) + len(to) - 1
        write_uint(self.lead, self.size_at, 4, size)
        link.send_parts(number, self.lead, data, _AFTER_SIZE, _TO_AT, to)
        return 0

    def _learn(self, key: str) -> bytes:
        """The encoded address of a routing key."""
        assert self.address is not None
        value = self.address(key).encode()
        short = len(value) < 256
        size = bytes([0xA1, len(value)]) if short else b"\xb1" + len(value).to_bytes(4, "big")
        if len(self.known) >= _ADDRESSES_MAX:
            self.known.clear()
        self.known[key] = size + value
        return size + value
