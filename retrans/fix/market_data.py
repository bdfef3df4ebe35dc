"""Encoding and decoding of Market Data Requests and their answers, for both ends.

A request (V) asks for the messages of a time range, or, where it has no times, for the present
state of books. It names the channel as a Resend Request does, in TargetSubID (57) or another tag,
and securities by Symbol (55), else SecurityID (48); Symbol `[N/A]` stands for all of a channel.

An answer is a sequence of parts. Each begins with a message of our own (UP) that names the request,
the number of the part, and how many messages follow at once: the published messages as they were
published, or, of a state, one snapshot (W) for each security. The last part has the number of
messages in the whole answer, and a digest of them. Parts of several answers may alternate. A reject
(Y) takes the place of an answer, or ends one in the middle. FIX has no fields for times, parts and
reasons of this kind; ours are numbered from 20101, in the range that is left to agreements between
two parties.

None of these messages is part of a channel's sequence: their MsgSeqNum is 0.
"""

import enum
import hashlib
import re
from collections.abc import Collection
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.framing import SEQUENCE_MAX
from feedhandler.codecs.fix.market_entries import (
    ALL_SECURITIES,
    MESSAGE_FIELDS_MAX,
    utc_ns,
    utc_text,
)
from feedhandler.retrans.fix.request import CHANNEL_TAG

REQUEST, PART, REJECT, SNAPSHOT = b"V", b"UP", b"Y", b"W"
HEARTBEAT, TEST_REQUEST, LOGOUT = b"0", b"1", b"5"

#: BeginTime and EndTime of a range, UTCTimestamp.
BEGIN_TIME, END_TIME = 20101, 20102
#: Number of a part, from 1, and how many messages follow it.
PART_NUMBER, PART_MESSAGES = 20103, 20104
#: Name of the reason of a reject; time from which on messages are held, UTCTimestamp.
REJECT_CODE, HELD_FROM = 20105, 20106
#: In the last part: the `Digest` of the answer's messages, in hexadecimal digits.
DIGEST = 20107

#: MDReqID of a reject whose request had none.
NO_ID = b"NONE"
ID_BYTES_MAX = 64
#: Fields of a request: some ids, types and times, and two for each security.
REQUEST_FIELDS_MAX = 4096
#: Most securities that are searched for one by one in a message's bytes.
FEW_SECURITIES = 16
#: Tags by which a request would ask by number: BeginSeqNo, EndSeqNo, RefSeqNum, and those of the
#: application's own sequence.
_BY_NUMBER = {7, 16, 45, 1181, 1182, 1183, 1350}
_NUMBER = re.compile(rb"\d{1,20}\Z")


class Refusal(enum.Enum):
    """Reasons for rejecting a request: the text, and MDReqRejReason (281) where FIX has one."""

    UNKNOWN_SECURITY = "unknown security", "0"
    DUPLICATE_ID = "duplicate id", "1"
    TOO_MANY = "too many requests", "2"
    TOO_LARGE = "too large an answer", "2"
    UNSUPPORTED_TYPE = "not a snapshot", "4"
    UNSUPPORTED_DEPTH = "depth of a time range", "5"
    UNSUPPORTED_ENTRY_TYPE = "no entry type", "8"
    UNKNOWN_CHANNEL = "unknown channel", ""
    MALFORMED = "not as a request is written", ""
    BY_NUMBER = "asked for by number", ""
    TIME_NOT_HELD = "older than what is held", ""
    NOT_COMPLETE = "the server itself lacks messages", ""
    STATE_UNKNOWN = "the server does not know the state", ""
    CUT_SHORT = "messages left the store before they were sent", ""

    @property
    def reason(self) -> str:
        """MDReqRejReason (281); "" where FIX has none that fits."""
        return self.value[1]


class Refused(Exception):
    """A request is rejected; `held_from_ns` is set where an earlier range is not held."""

    def __init__(
        self, refusal: Refusal, text: str, id: bytes = NO_ID, held_from_ns: int = 0
    ) -> None:
        super().__init__(text)
        self.refusal = refusal
        self.text = text
        self.id = id
        self.held_from_ns = held_from_ns


class MarketDataRequest(NamedTuple):
    """A request for the messages of a time range, or for the present state of books.

    channel      "": the one that carries the securities
    securities   (): all of the channel
    begin_ns     start of a time range, UTC; -1: the books' present state
    end_ns       end of the range, excluded; -1: until now
    entry_types  MDEntryTypes that are wanted; (): all
    depth        price levels of a state; 0: all
    """

    id: bytes
    channel: str
    securities: tuple[bytes, ...] = ()
    begin_ns: int = -1
    end_ns: int = -1
    entry_types: tuple[bytes, ...] = ()
    depth: int = 0

    @property
    def of_state(self) -> bool:
        """Whether it asks for the present state."""
        return self.begin_ns < 0

    @property
    def whole(self) -> bool:
        """Whether it asks for all messages of its range."""
        return not self.securities and not self.entry_types


class Part(NamedTuple):
    """The head of a part: `messages` messages follow.

    The answer covers the numbers `first` to `last` (0: none) of the sequence epoch `epoch`; of
    a state both are its last number. `total` and `digest` are those of the whole answer, in its
    last part; -1 and b"" in the others.
    """

    id: bytes
    number: int
    messages: int
    first: int
    last: int
    epoch: int
    total: int = -1
    digest: bytes = b""


class Digest:
    """A digest of an answer's messages in order, which shows one missing, doubled or misplaced.

    It proves nothing against a server that means to deceive.
    """

    def __init__(self) -> None:
        self._sum = hashlib.blake2b(digest_size=8)

    def add(self, data: bytes) -> None:
        """Add the next message."""
        self._sum.update(data)

    @property
    def text(self) -> bytes:
        """The digest so far, as hexadecimal digits."""
        return self._sum.hexdigest().encode()


class Reject(NamedTuple):
    """A decoded reject; `code` may be one that is unknown to us."""

    id: bytes
    code: str
    text: str
    held_from_ns: int


class MarketDataFormat:
    """Encodes and decodes the messages of both ends, with a set tag of the channel.

    Raises `UsageError` for a tag that has another meaning.
    """

    def __init__(self, channel_tag: int = CHANNEL_TAG, begin_string: str = "FIXT.1.1") -> None:
        if not 0 < channel_tag < 10**9 or channel_tag in {8, 9, 10, 34, 35, 262, 263, 264}:
            raise UsageError(
                f"tag {channel_tag} cannot say the channel", f"such as {CHANNEL_TAG}, TargetSubID"
            )
        self.channel_tag = channel_tag
        self._begin_string = begin_string.encode()

    def message(self, type: bytes, text: bytes = b"") -> bytes:
        """Encode a message of `type` with the fields in `text` and MsgSeqNum 0."""
        return envelope(self._begin_string, b"35=%b\x0134=0\x01%b" % (type, text))

    # -- requests ------------------------------------------------------------------------------

    def request(self, asked: MarketDataRequest) -> bytes:
        """Encode a request."""
        text = b""
        if asked.channel:
            text += b"%d=%b\x01" % (self.channel_tag, asked.channel.encode())
        text += b"262=%b\x01263=0\x01264=%d\x01" % (asked.id, asked.depth)
        if asked.entry_types:
            text += b"267=%d\x01" % len(asked.entry_types)
            text += b"".join(b"269=%b\x01" % each for each in asked.entry_types)
        named = asked.securities or (ALL_SECURITIES,)
        text += b"146=%d\x01" % len(named) + b"".join(b"55=%b\x01" % each for each in named)
        for tag, time_ns in ((BEGIN_TIME, asked.begin_ns), (END_TIME, asked.end_ns)):
            if time_ns >= 0:
                text += b"%d=%b\x01" % (tag, utc_text(time_ns))
        return self.message(REQUEST, text)

    def read_request(self, data: bytes) -> MarketDataRequest:
        """Decode a request. Raises `Refused` where it is malformed or not supported."""
        try:
            found = fields(data, REQUEST_FIELDS_MAX)
        except FixError as error:
            raise Refused(Refusal.MALFORMED, str(error)) from None
        values = dict(found)
        id = values.get(262, NO_ID)
        if len(id) > ID_BYTES_MAX or 262 not in values:
            raise Refused(
                Refusal.MALFORMED, f"MDReqID (262) has 1 to {ID_BYTES_MAX} bytes", id[:ID_BYTES_MAX]
            )
        try:
            return self._request(id, found, values)
        except _Wrong as error:
            raise Refused(Refusal.MALFORMED, str(error), id) from None

    def _request(
        self, id: bytes, found: list[tuple[int, bytes]], values: dict[int, bytes]
    ) -> MarketDataRequest:
        for tag in (262, 263, 264, self.channel_tag, BEGIN_TIME, END_TIME):
            if sum(each == tag for each, _ in found) > 1:
                raise _Wrong(f"tag {tag} comes twice")
        if by_number := sorted(_BY_NUMBER & values.keys() - {self.channel_tag}):
            text = f"tag {by_number[0]}: messages are asked for by number with Resend Requests (2)"
            raise Refused(Refusal.BY_NUMBER, text, id)
        if 263 not in values:
            raise _Wrong("SubscriptionRequestType (263) is missing")
        if values[263] != b"0":
            text = "SubscriptionRequestType (263) is 0 here: updates come by multicast"
            raise Refused(Refusal.UNSUPPORTED_TYPE, text, id)
        types = tuple(value for tag, value in found if tag == 269)
        securities = _securities(found)
        for tag, count in ((267, len(types)), (146, len(securities))):
            if _number(values, tag, 0) != count:
                raise _Wrong(f"tag {tag} counts other than the {count} that are there")
        times = [_time(values, tag) for tag in (BEGIN_TIME, END_TIME)]
        if times[0] < 0 <= times[1] or times[0] > times[1] >= 0:
            raise _Wrong("a time range begins with BeginTime (20101), before its end")
        named = tuple(each for each in dict.fromkeys(securities) if each != ALL_SECURITIES)
        try:
            channel = values.get(self.channel_tag, b"").decode()
        except UnicodeDecodeError:
            raise _Wrong("the channel's name is not UTF-8") from None
        depth = _number(values, 264, 0)
        return MarketDataRequest(id, channel, named, times[0], times[1], types, depth)

    # -- answers -------------------------------------------------------------------------------

    def part(self, part: Part) -> bytes:
        """Encode the head of a part."""
        text = b"50=%d\x01" % part.epoch if part.epoch else b""
        text += b"262=%b\x01%d=%d\x01" % (part.id, PART_NUMBER, part.number)
        text += b"%d=%d\x017=%d\x0116=%d\x01" % (
            PART_MESSAGES, part.messages, part.first, part.last
        )  # fmt: skip
        if part.total < 0:
            text += b"893=N\x01"
        else:
            text += b"911=%d\x01893=Y\x01%d=%b\x01" % (part.total, DIGEST, part.digest)
        return self.message(PART, text)

    def read_part(self, values: dict[int, bytes]) -> Part:
        """Decode the head of a part from its fields. Raises `ValueError` where it is wrong."""
        last = values.get(893)
        if last not in (b"Y", b"N") or 262 not in values or (last == b"Y" and DIGEST not in values):
            raise _Wrong("a part without MDReqID (262), LastFragment (893) or digest")
        numbers = [_number(values, tag) for tag in (PART_NUMBER, PART_MESSAGES, 7, 16)]
        total, digest = (_number(values, 911), values[DIGEST]) if last == b"Y" else (-1, b"")
        number, messages, first, end = numbers
        return Part(
            values[262], number, messages, first, end, _number(values, 50, 0), total, digest
        )

    def reject(self, refused: Refused) -> bytes:
        """Encode a reject."""
        text = b"262=%b\x01" % refused.id
        if refused.refusal.reason:
            text += b"281=%b\x01" % refused.refusal.reason.encode()
        text += b"58=%b\x01" % refused.text.encode().replace(b"\x01", b"|")
        text += b"%d=%b\x01" % (REJECT_CODE, refused.refusal.name.encode())
        if refused.held_from_ns:
            text += b"%d=%b\x01" % (HELD_FROM, utc_text(refused.held_from_ns))
        return self.message(REJECT, text)

    def read_reject(self, values: dict[int, bytes]) -> Reject:
        """Decode a reject from its fields. Raises `ValueError` where it is wrong."""
        if 262 not in values:
            raise _Wrong("a reject without MDReqID (262)")
        code = values.get(REJECT_CODE, values.get(281, b"")).decode("ascii", "replace")
        text = values.get(58, b"").decode("utf-8", "replace")
        return Reject(values[262], code, text, max(_time(values, HELD_FROM), 0))

    def snapshot(
        self, id: bytes, number: int, epoch: int, instrument: bytes, entries: list[bytes]
    ) -> bytes:
        """Encode the state of one security's book as of `number` of the epoch `epoch`.

        An empty book has one entry of type J (Empty Book).
        """
        text = b"50=%d\x01" % epoch if epoch else b""
        text += b"369=%d\x01262=%b\x01%b" % (number, id, instrument)
        entries = entries or [b"269=J\x01"]
        return self.message(SNAPSHOT, text + b"268=%d\x01" % len(entries) + b"".join(entries))


class _Wrong(ValueError):
    """A field is missing or has a wrong value."""


def _securities(found: list[tuple[int, bytes]]) -> list[bytes]:
    """Return the securities of a request's group (146).

    Each begins with Symbol, or with SecurityID where that comes first.
    """
    inside = False
    named: list[bytes] = []
    delimiter = 0
    for tag, value in found:
        inside = inside or tag == 146
        if not inside or tag not in (55, 48):
            continue
        delimiter = delimiter or tag
        if tag == delimiter:
            named.append(value)
        elif value != ALL_SECURITIES and (tag == 55 or named[-1] == ALL_SECURITIES):
            # Of both, Symbol is used where it says anything.
            named[-1] = value
    return named


def _number(values: dict[int, bytes], tag: int, missing: int | None = None) -> int:
    text = values.get(tag)
    if text is None and missing is not None:
        return missing
    if text is None or not _NUMBER.match(text) or int(text) > SEQUENCE_MAX:
        raise _Wrong(f"tag {tag} is not a number")
    return int(text)


def _time(values: dict[int, bytes], tag: int) -> int:
    """Return a UTCTimestamp field in ns since 1970; -1 where it is missing.

    Raises `_Wrong` where it is no UTCTimestamp.
    """
    if tag not in values:
        return -1
    time_ns = utc_ns(values[tag])
    if time_ns < 0:
        raise _Wrong(f"tag {tag} is not a UTCTimestamp")
    return time_ns


def concerns(data: bytes, securities: Collection[bytes], types: Collection[bytes]) -> bool:
    """Return whether a message concerns one of these securities and has one of these types.

    `types` are MDEntryTypes; none of either stands for any. One that must be read and cannot be, as
    a field is faulty, does: its publisher has sent it, and whoever asked is not to lack it.
    """
    if not securities and not types:
        return True
    # Most messages of a channel are about others: the fields are read only where the text occurs.
    # With many securities, searching for each would take longer than reading.
    few = 0 < len(securities) <= FEW_SECURITIES
    if few and not any(b"=%b\x01" % security in data for security in securities):
        return False
    try:
        found = fields(data, MESSAGE_FIELDS_MAX)
    except FixError:
        return True
    named = not securities or any(tag in (55, 48) and value in securities for tag, value in found)
    return named and (not types or any(tag == 269 and value in types for tag, value in found))
