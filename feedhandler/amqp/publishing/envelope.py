"""Header, annotations and address that a message gets on its way to a broker.

What it is for: the same message goes to every broker, but brokers differ in where they look for its
address: some take it from the link, and route by the subject; others from each message's `to`. A
message waits without either, because the kind of broker may not be known yet, or may have changed
by the time it is sent again. An `Envelope` is what one connection adds as it sends.

What it promises: the header says durable always (a broker may treat a message without one as
transient); all else of a message is the same whichever way it goes. A message that brings
annotations (receive stamp, send time) still has one section of them, with its own behind the
envelope's.

What it leaves to others: which broker needs what (`brokers`).
"""

from collections.abc import Callable

import cython
from cython.cimports.feedhandler.amqp.framing import copy, read_uint, write_uint
from cython.cimports.feedhandler.amqp.proton import PublisherLink

from feedhandler.amqp.framing import TAG_BYTES, annotations_section

#: The header section: durable, all else as by default (AMQP 1.0, 3.2.1).
HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
#: Addresses of routing keys that are remembered; past it all are encoded again.
ADDRESSES_MAX = 100_000

# Our messages begin with their properties: constructor, size and count of a list, message-id,
# user-id, and then the null for `to` (`framing.Template`).
_BEFORE_SIZE = b"\x00\x53\x73\xd0"
_AFTER_SIZE = cython.declare(cython.Py_ssize_t, 8)
_TO_AT = cython.declare(cython.Py_ssize_t, 8 + 4 + 2 + TAG_BYTES + 1)
_ADDRESSES_MAX = cython.declare(cython.Py_ssize_t, ADDRESSES_MAX)
# One that brings annotations has a section before that: constructor, size and count of a map, and
# its pairs.
_ANNOTATIONS = cython.declare(cython.int, 0x72)
_PAIRS_AT = cython.declare(cython.Py_ssize_t, 12)


@cython.cclass
class Envelope:
    """Header, annotations and address for the messages of one connection.

    `annotations`: encoded pairs of a map, two values each, to go with `address`; or nothing.
    `address(subject)`: what a message has in its `to`; None where the link says where messages go.
    """

    address: object
    lead: cython.uchar[::1]
    annotations: bytes
    annotated: dict
    known: dict

    def __init__(
        self, annotations: bytes = b"", address: Callable[[str], str] | None = None
    ) -> None:
        assert address is not None or not annotations, "annotations go with an address"
        self.address = address
        self.annotations = annotations
        self.lead = bytearray(HEADER)
        if address is not None:
            plain = annotations_section(annotations, 2) if annotations else b""
            self.lead = bytearray(HEADER + plain + _BEFORE_SIZE + bytes(4))
        self.annotated = {}
        self.known = {}

    def send(
        self, link: PublisherLink, number: cython.ulonglong, key: str, data: bytes
    ) -> cython.int:
        """Send a message with this subject under this number; the caller has checked that the link
        is `ready`."""
        if self.address is None:
            link.send_parts(number, self.lead, data, 0, 0, b"")
            return 0
        to: bytes = self.known.get(key)
        if to is None:
            to = self._learn(key)
        lead: cython.uchar[::1] = self.lead
        begin: cython.Py_ssize_t = 0
        if data[2] == _ANNOTATIONS:
            begin = 8 + cython.cast(cython.Py_ssize_t, read_uint(data, 4, 4))
            lead = self._annotated_lead(data, begin)
            copy(lead, len(lead) - 8 - (begin - _PAIRS_AT), data, _PAIRS_AT, begin - _PAIRS_AT)
        size: cython.ulonglong = read_uint(data, begin + 4, 4) + len(to) - 1
        write_uint(lead, len(lead) - 4, 4, size)
        link.send_parts(number, lead, data, begin + _AFTER_SIZE, begin + _TO_AT, to)
        return 0

    def _annotated_lead(self, data: bytes, begin: int) -> bytearray:
        """Return the lead with room for the annotations of a message whose properties begin at
        `begin`."""
        lead: bytearray | None = self.annotated.get(begin)
        if lead is None:
            room = bytes(begin - _PAIRS_AT)
            count = int.from_bytes(data[8:12]) + (2 if self.annotations else 0)
            section = annotations_section(self.annotations + room, count)
            lead = self.annotated[begin] = bytearray(HEADER + section + _BEFORE_SIZE + bytes(4))
        return lead

    def _learn(self, key: str) -> bytes:
        """Encode and remember the address of a routing key."""
        assert self.address is not None
        value = self.address(key).encode()
        short = len(value) < 256
        size = bytes([0xA1, len(value)]) if short else b"\xb1" + len(value).to_bytes(4, "big")
        if len(self.known) >= _ADDRESSES_MAX:
            self.known.clear()
        self.known[key] = size + value
        return size + value
