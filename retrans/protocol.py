# cython: annotation_typing=False
"""The bytes of UTP-MD's recovery over TCP: requests, responses, heartbeats.

Packet types are 20 and 10 (retransmission request and response), 22 and 23 (the same for refresh),
2 and 24 (heartbeat and its answer); their layouts are the `[[controls]]` of the feed's description.
`StreamFramer` cuts a TCP stream into packets, `RecoveryProtocol.read` decodes one, and its other
methods encode packets.

Promises: what the peer sent wrong becomes a `WireError` with a name to count it by, however the
bytes were cut; nothing is kept beyond one incomplete packet of bounded size. Left to others:
whether a packet makes sense at that moment (`client`, `server`).

Ranges are half-open here and inclusive on the wire (BeginSeqNum to EndSeqNum).

Compiled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import CONTROL, DATA, HEARTBEAT
from cython.cimports.feedhandler.codecs.scanner import frame_length, header_bytes, parse_header

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import REJECT_TEXT, Reject
from feedhandler.codecs.times import UNIT_NS, day_of, day_start_ns
from feedhandler.codecs.visibility import Public, Readonly

#: A deadline that never comes.
NEVER_NS = 2**63 - 1
#: Default of the longest packet of a connection: what a line may carry by default.
PACKET_BYTES_MAX = 2048
#: Bytes of a SourceID.
SOURCE_ID_BYTES = 20
#: Delivery flag of a retransmitted packet, and of a compressed one that belongs to a refresh.
RETRANSMITTED = 1
REFRESH = 17


class RetransReject(IntEnum):
    """Reasons for refusing a retransmission: RejectReason of packet type 10."""

    NONE = 0
    """accepted"""
    PERMISSION = 1
    """no permission, or a SourceID that the server does not know"""
    INVALID_RANGE = 2
    """an empty range, or numbers that have not been sent yet"""
    OVER_THRESHOLD = 3
    """more numbers than one request may name"""
    TOO_MANY_TODAY = 4
    """this SourceID has used up its requests of the day"""
    NO_LONGER_AVAILABLE = 5
    """the range begins before what the server still holds"""
    BADLY_FORMED = 6
    """the request itself cannot be read"""
    WRONG_SERVICE = 7
    """the server does not serve this ServiceID"""


class RefreshReject(IntEnum):
    """Reasons for refusing a refresh: RejectReason of packet type 23."""

    NONE = 0
    """accepted"""
    PERMISSION = 1
    """no permission, or a SourceID that the server does not know"""
    WRONG_SERVICE = 2
    """the server does not serve this ServiceID"""
    BADLY_FORMED = 3
    """the request itself cannot be read"""
    WRONG_PACKET_TYPE = 4
    """this server takes no refresh requests"""
    TOO_MANY_TODAY = 5
    """this SourceID has used up its requests of the day"""
    NO_DATA = 6
    """there is no snapshot of this service"""
    SECONDARY = 7
    """sent to the secondary server instead of the primary"""


#: Names of `WireError` and what each means.
WIRE_ERRORS: dict[str, str] = {
    "length_too_small": "a packet length below that of a packet header",
    "length_too_big": "a packet longer than any packet of this connection may be",
    "unknown_type": "a packet type that the feed's description does not know",
    "bad_packet": "a packet that the feed's scanner rejects",
    "wrong_body_size": "a control packet whose body is not as long as its layout",
    "wrong_count": "a control packet that claims to hold more than one entry",
    "malformed_answer": "a response whose status and reason make no sense",
}


class WireError(PeerError):
    """Bytes that do not follow the protocol.

    `name` is a key of `WIRE_ERRORS`; `packet_type`, `number` and `service` are those of the
    packet's header where that could be read, else 0.
    """

    def __init__(self, name: str, message: str, header: PacketHeader | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.packet_type = header.packet_type if header else 0
        self.number = header.sequence if header else 0
        self.service = header.service if header else 0


@dataclass(slots=True)
class Heartbeat:
    """Packet type 2: the peer is alive and expects a `HeartbeatReply`."""


@dataclass(slots=True)
class HeartbeatReply:
    """Packet type 24: the answer to a heartbeat."""

    source_id: str


@dataclass(slots=True)
class RetransRequest:
    """Packet type 20: a request for the packets `first` to `end` - 1 of `service`.

    `number` is its PacketSeqNum. The range is empty where `end` <= `first`, which the wire allows.
    """

    number: int
    service: int
    first: int
    end: int
    source_id: str


@dataclass(slots=True)
class RefreshRequest:
    """Packet type 22: a request for a snapshot of `service`."""

    number: int
    service: int
    source_id: str


@dataclass(slots=True)
class Response:
    """Packet type 10, or 23 where `refresh`: the answer to the request with PacketSeqNum `number`.

    `reason` is 0 where the request was accepted.
    """

    refresh: bool
    number: int
    service: int
    source_id: str
    reason: int


@dataclass(slots=True)
class Data:
    """A packet with messages, which are not decoded; `flags` is its DeliveryFlag."""

    service: int
    sequence: int
    next_sequence: int
    flags: int


@dataclass(slots=True)
class Other:
    """A packet that the feed knows but that is not allowed on a connection (a sequence reset)."""

    packet_type: int


Frame = Heartbeat | HeartbeatReply | RetransRequest | RefreshRequest | Response | Data | Other


@cython.final
@cython.cclass
class StreamFramer:
    """Cuts a stream into packets by their length field.

    `feed` returns the packets that have become whole. Where the stream stops making sense,
    `failure` is the reason; packets that were whole before that are still returned, so that it does
    not matter how the bytes were cut. After that the framer takes nothing more: `feed` raises the
    failure.
    """

    _table: FeedTable
    _header_size: cython.Py_ssize_t
    _packet_bytes_max: cython.Py_ssize_t
    _type_at: cython.Py_ssize_t
    _type_end: cython.Py_ssize_t
    _types: object
    _order: object
    _type_is_masked: cython.bint
    _buffer: bytes
    failure: Public[object]

    def __init__(self, feed: Feed, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self._table = feed.table
        #: The bytes of the shortest header.
        self._header_size = feed.table.short_header or feed.table.header_size
        self._packet_bytes_max = packet_bytes_max
        kind = feed.description.packet.kind
        #: The wire bytes of the packet types that the feed knows; None where it has no such field.
        self._types: frozenset[bytes] | None = None
        self._type_at, self._type_end = 0, 0
        self._type_is_masked = False
        self._order: Any = feed.byte_order
        if kind is not None:
            size = feed.table.kind_size
            codes = kind.data + kind.heartbeat + kind.reset + kind.control
            self._types = frozenset([code.to_bytes(size, self._order) for code in codes])
            self._type_at = feed.table.kind_at
            self._type_end = feed.table.kind_at + size
            self._type_is_masked = kind.mask is not None
        self._buffer = b""
        self.failure: WireError | None = None

    @property
    def buffered(self) -> int:
        """Bytes held of an incomplete packet."""
        return len(self._buffer)

    @cython.locals(
        view=cython.const_uchar[::1],
        at=cython.Py_ssize_t,
        size=cython.Py_ssize_t,
        head=cython.Py_ssize_t,
        length=cython.Py_ssize_t,
        whole=bytes,
    )
    @cython.returns(list)
    @cython.ccall
    def feed(self, data: bytes) -> list[bytes]:
        """Take in received bytes and return the packets that are whole now.

        Raises the `failure` of an earlier call; one found now ends the list of packets and is kept.
        """
        if self.failure is not None:
            raise self.failure
        whole = self._buffer + data if self._buffer else data
        packets: list[bytes] = []
        at, size = 0, len(whole)
        view = whole
        while size - at >= self._header_size:
            head = header_bytes(self._table, view, at, size - at)
            if size - at < head:
                break
            length = frame_length(self._table, view, at, size - at)
            self.failure = self._judge(whole, length, at, head)
            if self.failure is not None:
                at = size
                break
            if length > size - at:
                break
            packets.append(whole[at : at + length])
            at += length
        self._buffer = whole[at:]
        return packets

    @cython.locals(
        data=bytes, length=cython.Py_ssize_t, at=cython.Py_ssize_t, head=cython.Py_ssize_t
    )
    @cython.cfunc
    def _judge(self, data: bytes, length: int, at: int, head: int) -> WireError | None:
        """Return the fault of the packet header at `at`, of `head` bytes, or None."""
        if length < head:
            return WireError("length_too_small", f"a packet of {length} bytes")
        if length > self._packet_bytes_max:
            return WireError("length_too_big", f"a packet of {length} bytes")
        if self._types is not None:
            kind = data[at + self._type_at : at + self._type_end]
            if self._type_is_masked:
                number = int.from_bytes(kind, self._order) & self._table.kind_mask
                kind = number.to_bytes(len(kind), self._order)
            if kind not in self._types:
                number = int.from_bytes(kind, self._order)
                return WireError("unknown_type", f"a packet of unknown type {number}")
        return None


@cython.final
@cython.cclass
class SendClock:
    """Converts the time to a packet header's raw send time, in the feed's unit.

    Where the feed counts from midnight, it is the calendar day's midnight in the feed's time zone.
    """

    _zone: object
    _start: object
    _end: object
    _unit_ns: object
    _from_midnight: cython.bint

    def __init__(self, feed: Feed) -> None:
        given = feed.description.packet.send_time
        self._zone = feed.zone
        self._unit_ns = 1 if given.nanoseconds else UNIT_NS[given.unit]
        self._from_midnight = given.since == "midnight"
        self._start = self._end = 0

    @cython.cfunc
    def _midnight_ns(self, now_ns: int) -> int:
        """Return the last midnight of the feed's time zone before `now_ns`, in ns since 1970."""
        if not self._start <= now_ns < self._end:
            day = day_of(now_ns, self._zone)
            self._start = day_start_ns(day, self._zone)
            self._end = day_start_ns(day + timedelta(days=1), self._zone)
        return self._start

    @cython.ccall
    def send_time(self, now_ns: int) -> int:
        """Return `now_ns` as a packet header's raw send time."""
        since = self._midnight_ns(now_ns) if self._from_midnight else 0
        return (now_ns - since) // self._unit_ns


@cython.final
@cython.cclass
class _Form:
    """Encodes and decodes the packets of one control type by the byte offsets of their fields.

    Offsets are looked up once, since requests come by the thousand when a line is bad.
    """

    _order: object
    _blank: bytes
    _fields: dict
    size: Readonly[cython.Py_ssize_t]

    def __init__(self, feed: Feed, code: int) -> None:
        packet, layout = feed.description.packet, feed.controls[code]
        self._order: Any = feed.byte_order
        self._blank = feed.encode_packet(
            kind="control", packet_type=code, body=feed.encode_control(code), count=1, flags=0
        )
        header = {field.wire: (field.at, field.size) for field in feed.header.named}
        self._fields = {
            "number": header[packet.sequence.field],
            "service": header[packet.service],
            "send_time": header[packet.send_time.field],
        }
        begin = feed.header_size_of(code)
        if any(at + size > begin for at, size in self._fields.values()):
            raise UsageError(
                f"{layout.name} of {feed.name} has a header without number, service or send time",
                "leave its value out of packet.kind.short",
            )
        for field in layout.named:
            self._fields[field.name] = (begin + field.at, field.size)
        self.size = len(self._blank)

    def fill(self, texts: Mapping[str, str], **numbers: int) -> bytes:
        """Return a packet with these fields. Raises `UsageError` for values that do not fit."""
        data = bytearray(self._blank)
        for name, value in numbers.items():
            at, size = self._fields[name]
            if value >> (8 * size):
                raise UsageError(f"{name} = {value} does not fit {size} bytes")
            data[at : at + size] = value.to_bytes(size, self._order)
        for name, text in texts.items():
            at, size = self._fields[name]
            octets = text.encode("latin-1", "replace")
            if len(octets) > size:
                raise UsageError(f"{name} = {text!r} is longer than {size} bytes")
            data[at : at + len(octets)] = octets
        return bytes(data)

    @cython.locals(packet=bytes)
    @cython.ccall
    def number(self, packet: bytes, name: str) -> int:
        """Return an integer field of a packet of `size` bytes."""
        at, size = self._fields[name]
        return int.from_bytes(packet[at : at + size], self._order)

    @cython.locals(packet=bytes)
    @cython.ccall
    def text(self, packet: bytes, name: str) -> str:
        """Return a text field of a packet of `size` bytes, without its padding."""
        at, size = self._fields[name]
        return packet[at : at + size].split(b"\0", 1)[0].rstrip(b" ").decode("latin-1")


@cython.final
@cython.cclass
class RecoveryProtocol:
    """Encodes and decodes one feed's recovery packets; `header` is that of the last one read.

    Raises `UsageError` for a feed whose description has no such packets.
    """

    _clock: SendClock
    header: Readonly[PacketHeader]
    _feed: object
    _heartbeat_reply: object
    _requests: tuple
    _responses: tuple
    _table: FeedTable
    _forms: dict

    def __init__(self, feed: Feed) -> None:
        codes = {layout.name: code for code, layout in feed.controls.items()}
        try:
            self._heartbeat_reply = codes["heartbeat_response"]
            self._requests = (codes["retransmission_request"], codes["refresh_request"])
            self._responses = (codes["retransmission_response"], codes["refresh_response"])
        except KeyError as error:
            raise UsageError(
                f"{feed.name} has no {error.args[0].replace('_', ' ')}",
                "recovery over TCP needs a feed whose description has its control packets",
            ) from None
        self._clock = SendClock(feed)
        self.header = PacketHeader()
        self._feed = feed
        self._table = feed.table
        self._forms = {
            code: _Form(feed, code)
            for code in (self._heartbeat_reply, *self._requests, *self._responses)
        }

    # -- reading --------------------------------------------------------------------------------

    @cython.ccall
    def read(self, packet: bytes) -> Frame:
        """Decode one whole packet; `header` then has its header. Raises `WireError`."""
        self.open(packet)
        return self.meaning(packet)

    @cython.returns(cython.int)
    def open(self, packet: bytes) -> int:
        """Read a packet's header into `header` and return its kind. Raises `WireError`."""
        verdict = parse_header(self._table, packet, 0, len(packet), self.header)
        if verdict:
            raise WireError("bad_packet", REJECT_TEXT[Reject(verdict)])
        return self.header.kind

    @cython.ccall
    def meaning(self, packet: bytes) -> Frame:
        """Decode the packet whose header `open` has just read. Raises `WireError`."""
        header = self.header
        kind = header.kind
        if kind == DATA:
            return Data(header.service, header.sequence, header.next_sequence, header.flags)
        if kind == HEARTBEAT:
            if header.length != header.body or header.count:
                raise WireError("wrong_body_size", "a heartbeat with a body", header)
            return Heartbeat()
        form = self._forms.get(header.packet_type)
        if kind != CONTROL or form is None:
            return Other(header.packet_type)
        if len(packet) != form.size:
            size, code = header.length - header.body, header.packet_type
            raise WireError("wrong_body_size", f"type {code} with a {size}-byte body", header)
        if header.count > 1:
            code = header.packet_type
            raise WireError("wrong_count", f"type {code} with {header.count} entries", header)
        return self._control(packet, form, header)

    @cython.locals(form=_Form, header=PacketHeader)
    @cython.cfunc
    def _control(self, packet: bytes, form: _Form, header: PacketHeader) -> Frame:
        code, number, service = header.packet_type, header.sequence, header.service
        source_id = form.text(packet, "source_id")
        if code == self._requests[0]:
            first, last = form.number(packet, "begin_seq_num"), form.number(packet, "end_seq_num")
            return RetransRequest(number, service, first, last + 1, source_id)
        if code == self._requests[1]:
            return RefreshRequest(number, service, source_id)
        if code == self._heartbeat_reply:
            return HeartbeatReply(source_id)
        status, reason = form.text(packet, "status"), form.number(packet, "reject_reason")
        if (status, reason) != ("A", 0) and (status != "R" or reason == 0):
            raise WireError("malformed_answer", f"status {status!r} with reason {reason}", header)
        answered = form.number(packet, "source_seq_num")
        return Response(code == self._responses[1], answered, service, source_id, reason)

    def is_request(self, packet_type: int) -> bool:
        """Return whether this is the packet type of a request, of either kind."""
        return packet_type in self._requests

    def is_refresh(self, packet_type: int) -> bool:
        """Return whether this is the packet type of a refresh request or response."""
        return packet_type in (self._requests[1], self._responses[1])

    # -- making ---------------------------------------------------------------------------------

    def heartbeat(self, now_ns: int) -> bytes:
        """Encode a heartbeat (packet type 2)."""
        return self._feed.encode_packet(kind="heartbeat", send_time=self._clock.send_time(now_ns))

    def heartbeat_reply(self, source_id: str, now_ns: int) -> bytes:
        """Encode a heartbeat's answer (type 24). Raises `UsageError` for a long SourceID."""
        form = self._forms[self._heartbeat_reply]
        return form.fill({"source_id": source_id}, send_time=self._clock.send_time(now_ns))

    def retrans_request(self, request: RetransRequest, now_ns: int) -> bytes:
        """Encode a retransmission request (type 20). Raises `UsageError` for wrong values."""
        return self._forms[self._requests[0]].fill(
            {"source_id": request.source_id},
            number=request.number,
            service=request.service,
            send_time=self._clock.send_time(now_ns),
            begin_seq_num=request.first,
            end_seq_num=request.end - 1,
        )

    def refresh_request(self, request: RefreshRequest, now_ns: int) -> bytes:
        """Encode a refresh request (type 22). Raises `UsageError` for wrong values."""
        return self._forms[self._requests[1]].fill(
            {"source_id": request.source_id},
            number=request.number,
            service=request.service,
            send_time=self._clock.send_time(now_ns),
        )

    def response(self, response: Response, now_ns: int) -> bytes:
        """Encode a response (type 10 or 23). Raises `UsageError` for wrong values."""
        return self._forms[self._responses[response.refresh]].fill(
            {"source_id": response.source_id, "status": "R" if response.reason else "A"},
            service=response.service,
            send_time=self._clock.send_time(now_ns),
            source_seq_num=response.number,
            reject_reason=response.reason,
        )
