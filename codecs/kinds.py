"""Kinds of packets and reasons to reject one, as enumerations and as plain numbers.

`REJECT_TEXT` has the text of each reason, for counters and reports.
"""

from enum import IntEnum

#: Inside the product an unsequenced packet has a number, too, with this bit set: in records of the
#: ring and in tags. No packet of the sequence has so high a number.
UNSEQUENCED_BIT = 1 << 62


class PacketKind(IntEnum):
    """The kinds of packets."""

    DATA = 0
    """carries market messages and advances the sequence"""
    HEARTBEAT = 1
    """says that the line lives; does not advance the sequence"""
    RESET = 2
    """the sequence starts anew"""
    CONTROL = 3
    """requests and answers of recovery; no messages"""
    UNSEQUENCED = 4
    """carries market messages outside the sequence: its number is one that the feed sets aside"""
    SKIP = 5
    """says that the publisher skips a range of numbers: no messages carry them"""


class Reject(IntEnum):
    """The reasons to reject a packet; 0 where nothing is wrong."""

    FINE = 0
    TRUNCATED = 1
    LENGTH_MISMATCH = 2
    COUNT_MISMATCH = 3
    MESSAGE_SHORT = 4
    MESSAGE_OVERRUN = 5
    UNKNOWN_PACKET_TYPE = 6
    WRONG_CONSTANT = 7
    CONTROL_SHORT = 8
    COMPRESSED = 9
    INDEX_FULL = 10
    CHECKSUM = 11
    MALFORMED = 12


REJECT_TEXT: dict[Reject, str] = {
    Reject.FINE: "nothing wrong",
    Reject.TRUNCATED: "fewer bytes than the packet header needs",
    Reject.LENGTH_MISMATCH: "the header's length differs from the size of the datagram",
    Reject.COUNT_MISMATCH: "the packet does not end after the number of messages it names",
    Reject.MESSAGE_SHORT: "a message's size is too small for its own header",
    Reject.MESSAGE_OVERRUN: "a message reaches past the packet's end",
    Reject.UNKNOWN_PACKET_TYPE: "a packet type that the feed's description does not know",
    Reject.WRONG_CONSTANT: "a constant header field (version, protocol) has another value",
    Reject.CONTROL_SHORT: "a control packet's body is shorter than its layout",
    Reject.COMPRESSED: "the body is compressed and must be inflated first",
    Reject.INDEX_FULL: "more messages than the index has room for",
    Reject.CHECKSUM: "a message's checksum is not the sum of its bytes",
    Reject.MALFORMED: "a field of a message's envelope or header is wrong or missing",
}

# The same as plain numbers, for the cores.
(DATA, HEARTBEAT, RESET, CONTROL, UNSEQUENCED, SKIP) = (int(kind) for kind in PacketKind)
#: What `FeedTable.kinds` holds for a value that the description does not name.
UNKNOWN_KIND = 255
(
    FINE,
    TRUNCATED,
    LENGTH_MISMATCH,
    COUNT_MISMATCH,
    MESSAGE_SHORT,
    MESSAGE_OVERRUN,
    UNKNOWN_PACKET_TYPE,
    WRONG_CONSTANT,
    CONTROL_SHORT,
    COMPRESSED,
    INDEX_FULL,
    CHECKSUM,
    MALFORMED,
) = (int(reject) for reject in Reject)
