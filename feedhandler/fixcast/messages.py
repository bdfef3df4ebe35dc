"""FIX messages of a channel as bytes: header and administrative messages out, values in.

A publisher is given whole FIX messages, with or without numbers of their own. `Header.application`
gives one the channel's header: its number, and the channel's sender, topic and sequence epoch;
every other field stays as it was. `Header.administrative` makes Logon, Logout, Heartbeat, GapFill
and Time Beacon. `read_datagram` makes the `Message` values of a line's datagram.

The smallest header has four fields, BeginString, BodyLength, MsgType and MsgSeqNum; SenderCompID
(49), SenderSubID (50, the epoch) and TargetCompID (56, the topic) are added as configured.
"""

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.fix.datagram import (
    HEARTBEAT,
    LOGON,
    LOGOUT,
    RESEND_REQUEST,
    SEQUENCE_RESET,
    TEST_REQUEST,
    TIME_BEACON,
)
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.framing import POSS_DUP, Frame, frame_all, frame_message
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject
from feedhandler.fixcast.stamping import Stamper
from feedhandler.fixcast.values import NUMBER_FIRST, Kind, Message

SOH = b"\x01"
#: Messages that are framed in one call.
RUN_MESSAGES = 1024
KINDS = {
    HEARTBEAT: Kind.HEARTBEAT,
    LOGON: Kind.LOGON,
    LOGOUT: Kind.LOGOUT,
    SEQUENCE_RESET: Kind.GAP_FILL,
    TIME_BEACON: Kind.BEACON,
}
#: All types of the session's messages, which take no number. The others among them, TestRequest,
#: ResendRequest and Reject, are not sent by multicast, and are passed over where they are.
_REJECT = 0x33
_ADMINISTRATIVE = frozenset({*KINDS, TEST_REQUEST, RESEND_REQUEST, _REJECT})
_TYPES = {
    Kind.HEARTBEAT: b"0",
    Kind.LOGON: b"A",
    Kind.LOGOUT: b"5",
    Kind.GAP_FILL: b"4",
    Kind.BEACON: b"UB",
}
#: Header fields that a channel writes itself: MsgType, MsgSeqNum, PossDupFlag, SenderCompID,
#: SenderSubID, TargetCompID.
_OWN = (b"35=", b"34=", b"43=", b"49=", b"50=", b"56=")
#: Header fields with data, which may contain SOH: 90 and 91, 212 and 213.
_DATA = re.compile(rb"\x01(?:90|212)=")
#: Verdicts on a message that may be published: it needs no number, because it gets one here.
_READABLE = (FixReject.FINE, FixReject.SEQUENCE_MISSING)
#: Verdicts that more bytes can change.
_UNFINISHED = (FixReject.TRUNCATED, FixReject.BODY_LENGTH_BEYOND)
_SENDER_SUB_ID = re.compile(rb"\x0150=(\d{1,20})\x01")
_NEW_SEQUENCE = re.compile(rb"\x0136=(\d{1,20})\x01")
_VALUE = re.compile(rb"[^\x01=]*\Z")
_BEGIN_STRING = re.compile(rb"FIX[T.0-9]{1,9}\Z")
#: DefaultApplVerID of a FIXT Logon: FIX 5.0 SP2.
_APPLICATION_VERSION = 9
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Header:
    """The header fields that a channel writes into every message.

    begin_string     BeginString (8)
    sender           SenderCompID (49), the publisher; b"": left out
    target           TargetCompID (56), the topic; b"": left out
    has_epoch        whether SenderSubID (50) has the sequence epoch
    """

    begin_string: bytes = b"FIXT.1.1"
    sender: bytes = b""
    target: bytes = b""
    has_epoch: bool = True

    def __post_init__(self) -> None:
        for value in (self.sender, self.target):
            if not _VALUE.match(value):
                raise ConfigError(f"{value!r} cannot be a CompID", "leave out SOH and =")
        if not _BEGIN_STRING.match(self.begin_string):
            raise ConfigError(f"{self.begin_string!r} is no BeginString", "such as FIXT.1.1")

    def application(self, data: bytes, number: int, epoch: int, poss_dup: bool = False) -> bytes:
        """Return the message `data` with the channel's header.

        Raises `UsageError` where it is no whole FIX message, or an administrative one.
        """
        frame = framed(data)
        if frame.message_type in _ADMINISTRATIVE:
            raise UsageError(
                "an administrative message is not published", "give application messages alone"
            )
        head = data[frame.body : frame.header_end]
        if _DATA.search(head):
            raise UsageError(
                "a header with data fields (90, 212) is not published", "leave them out"
            )
        kept = [f for f in head.split(SOH)[:-1] if not f.startswith(_OWN)]
        parts = [self._head(data[frame.type_at : frame.type_at + frame.type_size])]
        parts[0] += self._own(number, epoch, poss_dup)
        parts += [field + SOH for field in kept]
        parts.append(data[frame.header_end : frame.body_end])
        return envelope(self.begin_string, b"".join(parts))

    def stamper(self, epoch: int) -> Stamper:
        """Return a stamper, which does the same as `application`, many times as fast."""
        own = b"50=%d\x01" % epoch if self.has_epoch else b""
        return Stamper(self.begin_string, own + self._names())

    def administrative(
        self, message: Message, heartbeat_ns: int = 0, poss_dup: bool = False
    ) -> bytes:
        """Return an administrative message; `heartbeat_ns` is the interval in a Logon."""
        text = self._head(_TYPES[message.kind])
        if message.kind is Kind.BEACON:
            return envelope(self.begin_string, text + self._names())
        text += self._own(message.number, message.epoch, poss_dup)
        if message.kind is Kind.GAP_FILL:
            text += b"123=Y\x0136=%d\x01" % message.new_number
        elif message.kind is Kind.LOGON:
            text += b"98=0\x01108=%d\x01" % (-(-heartbeat_ns // _SECOND_NS))
            text += b"141=Y\x01" if message.number == NUMBER_FIRST else b""
            if self.begin_string.startswith(b"FIXT"):
                text += b"1137=%d\x01" % _APPLICATION_VERSION
        return envelope(self.begin_string, text)

    def repeated(self, data: bytes) -> bytes:
        """Return a message of the channel marked as a possible duplicate."""
        frame = framed(data)
        begin = frame.type_at + frame.type_size + 1
        repeated = data[frame.body : begin] + b"43=Y\x01" + data[begin : frame.body_end]
        return envelope(self.begin_string, repeated)

    def _head(self, message_type: bytes) -> bytes:
        return b"35=%b\x01" % message_type

    def _own(self, number: int, epoch: int, poss_dup: bool) -> bytes:
        text = b"34=%d\x01" % number
        if poss_dup:
            text = b"43=Y\x01" + text
        if self.has_epoch:
            text += b"50=%d\x01" % epoch
        return text + self._names()

    def _names(self) -> bytes:
        """Return the fields of sender and topic."""
        text = b"49=%b\x01" % self.sender if self.sender else b""
        return text + b"56=%b\x01" % self.target if self.target else text


def framed(data: bytes) -> Frame:
    """Return the frame of a message, which may lack a number. Raises `UsageError` on a fault."""
    frame = Frame()
    verdict = FixReject(frame_message(data, 0, len(data), frame))
    if verdict not in _READABLE or frame.end != len(data):
        raise UsageError(f"byte {frame.fault_at}: {REJECT_TEXT[verdict]}", "give whole messages")
    return frame


def enveloped(datagram: bytes, begin_string: bytes = b"FIXT.1.1") -> bytes:
    """Wrap a sealed datagram in a FIX message of the user-defined type `US`, for a TCP session."""
    data = b"95=%d\x0196=%b\x01" % (len(datagram), datagram)
    return envelope(begin_string, b"35=US\x0134=0\x01" + data)


def datagram_of(message: bytes) -> bytes | None:
    """Return the sealed datagram in a message of type `US`; None where it is none."""
    try:
        said = fields(message)
    except FixError:
        return None
    return dict(said).get(96) if said[0] == (35, b"US") else None


class Cutter:
    """Splitter of a byte stream into messages to be published.

    Messages may lack a number, and may be separated by line ends.
    """

    def __init__(self) -> None:
        self._held = b""
        self._gone = 0
        self._begins = memoryview(array("I", bytes(4 * RUN_MESSAGES)))
        self._numbers = memoryview(array("Q", bytes(8 * RUN_MESSAGES)))

    @property
    def held(self) -> int:
        """Bytes of a message that is not complete yet."""
        return len(self._held)

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that these bytes complete. Raises `UsageError` with a faulty byte's
        position."""
        held, at = self._held + data, 0
        frame = Frame()
        while True:
            # Most files are nothing but whole messages with numbers.
            for end in self._run_from(held, at, frame):
                yield held[at:end]
                at = end
            while held[at : at + 1] in (b"\n", b"\r"):
                at += 1
            verdict = FixReject(frame_message(held, at, len(held) - at, frame))
            if at == len(held) or verdict in _UNFINISHED:
                break
            if verdict not in _READABLE:
                raise UsageError(
                    f"byte {self._gone + max(frame.fault_at, at)}: {REJECT_TEXT[verdict]}",
                    "give whole FIX messages, one behind the other",
                )
            yield held[at : frame.end]
            at = frame.end
        self._held = held[at:]
        self._gone += at

    def _run_from(self, held: bytes, at: int, frame: Frame) -> list[int]:
        """Return the ends of the consecutive messages from `at` on that are valid and numbered."""
        count = frame_all(held, at, len(held) - at, frame, self._begins, self._numbers)
        if not count:
            return []
        ends = self._begins[1:count].tolist()
        # The frame is of the last of them, or of the one that ended the run.
        last = frame.end if frame.begin == self._begins[count - 1] else frame.begin
        return [*ends, last]


def read_datagram(data: bytes, frame: Frame) -> tuple[list[Message], FixReject]:
    """Read a datagram's messages up to the first faulty one, and return them with its fault."""
    messages: list[Message] = []
    at = 0
    while at < len(data) or not at:
        verdict = frame_message(data, at, len(data) - at, frame)
        if verdict:
            return messages, FixReject(verdict)
        kind = KINDS.get(frame.message_type, Kind.APPLICATION)
        if kind is Kind.APPLICATION and frame.message_type in _ADMINISTRATIVE:
            at = frame.end
            continue
        new_number = 0
        if kind is Kind.GAP_FILL:
            found = _NEW_SEQUENCE.search(data, frame.header_end - 1, frame.body_end)
            if found is None:
                return messages, FixReject.NEW_SEQUENCE_MISSING
            new_number = int(found[1])
        said = _SENDER_SUB_ID.search(data, frame.body, frame.header_end)
        messages.append(
            Message(
                kind,
                0 if kind is Kind.BEACON else frame.sequence,
                data[at : frame.end],
                new_number,
                int(said[1]) if said else 0,
                bool(frame.flags & POSS_DUP),
                data[frame.target_at : frame.target_at + frame.target_size],
            )
        )
        at = frame.end
    return messages, FixReject.FINE
