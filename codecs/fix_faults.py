"""Faults of a FIX datagram that the scanner rejects: message, byte, field, found and expected."""

from typing import NamedTuple

from feedhandler.codecs.fix.framing import Frame, frame_message
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject

#: Numbers from here on are beyond the gateway's: `scanning` rejects them.
SEQUENCE_END = 1 << 62


class FixFault(NamedTuple):
    """The first fault of a datagram."""

    message: int
    """the message's number in the datagram, from 1"""
    at: int
    """the byte where it is wrong, from the datagram's first"""
    reason: FixReject
    found: str
    """the bytes there, with `|` for SOH"""

    @property
    def what(self) -> str:
        """The text of the reason."""
        return REJECT_TEXT[self.reason]


class BeyondCount(NamedTuple):
    """A message whose number FIX allows and the gateway does not."""

    message: int
    """the message's number in the datagram, from 1"""
    at: int
    """its first byte"""
    number: int


def find_beyond(data: bytes) -> BeyondCount | None:
    """Return the first message with a number from `SEQUENCE_END` on, or None.

    The datagram must be framed right.
    """
    frame, at, number = Frame(), 0, 0
    while at < len(data) and not frame_message(data, at, len(data) - at, frame):
        number += 1
        if frame.sequence >= SEQUENCE_END:
            return BeyondCount(number, at, frame.sequence)
        at = frame.end
    return None


def find_fault(data: bytes) -> FixFault | None:
    """Return the first message of a datagram that its framing rejects, or None."""
    frame, at, number = Frame(), 0, 0
    while at < len(data) or number == 0:
        number += 1
        reason = FixReject(frame_message(data, at, len(data) - at, frame))
        if reason != FixReject.FINE:
            index = frame.fault_at if data else 0
            found = data[index : index + 24].replace(b"\x01", b"|").decode("latin-1")
            return FixFault(number, index, reason, found)
        at = frame.end
    return None
