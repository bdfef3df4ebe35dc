"""NYSE XDP requests: messages by number, asked for over TCP and answered by multicast lines.

A request is a message in a packet with delivery flag 11, whose sequence number the client counts:
10 for messages by number, 13 for the mapping of symbols, 15 for a refresh. The server answers each
at once with message 11, which repeats that number. The messages that were asked for come by the
channel's retransmission lines, under delivery flag 13 (one packet) or 15 (one of several), or
message 31 under flag 21 says which numbers the server does not have. Mappings and refreshes come by
its refresh lines (`nyse_refresh`); a refresh is asked for with the mappings, which name its
symbols. The server sends a heartbeat once a
minute, a packet without messages; who does not answer it with message 12 within five seconds is
cut off. (XDP Common Client Specification 2.3c, chapters on the request server and its messages;
Integrated Feed Client Specification 2.5.)

A request names the product and the channel as the exchange numbers them: the service of a channel
is its ChannelID.

**The client** believes of the lines what `line_answers` says, and of the connection responses to
its own requests alone. A server that sends anything else, leaves a request without a response for
`ANSWER_NS`, or nothing at all for `dead_us`, is given up (`Broken`). Time-outs of single requests
are recovery's own.

The server is `nyse_xdp_server`.

Sans-IO; `retrans.protocols.setup` says what both must do.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import CONTROL, DATA
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import Event, RefreshAccepted, RefreshRejected
from feedhandler.retrans.packet_reading import packets_of
from feedhandler.retrans.protocol import (
    NEVER_NS,
    WIRE_ERRORS,
    RefreshReject,
    RetransReject,
    SendClock,
    StreamFramer,
    WireError,
)
from feedhandler.retrans.protocols import line_answers
from feedhandler.retrans.protocols.line_answers import LineAnswers
from feedhandler.retrans.protocols.setup import ClientSetup
from feedhandler.retrans.requesting import REQUESTS_MAX, PacketClient

#: Packet header: PktSize, DeliveryFlag, NumberMsgs, SeqNum, SendTime, SendTimeNS.
HEADER = struct.Struct("<HBBIII")
#: Messages, each with MsgSize and MsgType in front.
RETRANSMISSION_REQUEST = struct.Struct("<HHII10sBB")
RESPONSE = struct.Struct("<HHIII10sBBB")
HEARTBEAT_RESPONSE = struct.Struct("<HH10s")
MAPPING_REQUEST = struct.Struct("<HHI10sBBB")
REFRESH_REQUEST = struct.Struct("<HHI10sBB")
UNAVAILABLE = struct.Struct("<HHIIBB")
MESSAGE_HEADER = struct.Struct("<HH")
#: Message types.
RETRANSMISSION, RESPONDS, BEATS, MAPPING, REFRESH, MISSING = 10, 11, 12, 13, 15, 31
#: Delivery flags.
HEARTBEAT, ORIGINAL, ONE_PACKET, ONE_OF_SEVERAL, UNAVAILABLE_FLAG = 1, 11, 13, 15, 21
#: Characters of a SourceID; a NUL ends it.
SOURCE_ID_CHARS = 9
#: The greatest ChannelID and ProductID.
NUMBER_MAX = 255
#: The greatest sequence number.
SEQUENCE_MAX = 0xFFFF_FFFF
#: RetransmitMethod of a mapping request: deliver by UDP.
BY_UDP = 0
#: SymbolIndex of requests that mean every symbol of the channel.
ALL_SYMBOLS = 0
#: How long a server may take for a response, which it sends at once.
ANSWER_NS = 5_000_000_000

#: Status of a response, as the text on the wire.
STATUS: dict[bytes, RetransReject] = {
    b"0": RetransReject.NONE,
    b"1": RetransReject.PERMISSION,
    b"2": RetransReject.INVALID_RANGE,
    b"3": RetransReject.OVER_THRESHOLD,
    b"4": RetransReject.TOO_MANY_TODAY,
    b"5": RetransReject.TOO_MANY_TODAY,
    b"6": RetransReject.NO_LONGER_AVAILABLE,
    b"7": RetransReject.WRONG_SERVICE,
    b"8": RetransReject.WRONG_SERVICE,
    b"9": RetransReject.BADLY_FORMED,
}
#: The same of refresh requests.
REFRESH_STATUS: dict[bytes, RefreshReject] = {
    b"0": RefreshReject.NONE,
    b"1": RefreshReject.PERMISSION,
    b"2": RefreshReject.BADLY_FORMED,
    b"3": RefreshReject.BADLY_FORMED,
    b"4": RefreshReject.TOO_MANY_TODAY,
    b"5": RefreshReject.TOO_MANY_TODAY,
    b"6": RefreshReject.NO_DATA,
    b"7": RefreshReject.WRONG_SERVICE,
    b"8": RefreshReject.WRONG_SERVICE,
    b"9": RefreshReject.BADLY_FORMED,
}
#: What the client counts, by name.
COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    **line_answers.COUNTS,
    "mappings": "requests for the mapping of symbols that the server accepted",
    "mappings_rejected": "requests for the mapping of symbols that it rejected",
    "heartbeats": "heartbeats from the server, answered",
    "line_heartbeats": "heartbeats on retransmission lines",
    "wrong_flag": "packets of retransmission lines whose delivery flag is no retransmission's",
    "cut_off": "connections that ended within a packet",
    "silent": "no sign of life from the server in time",
    "unanswered": "no response to a request in time",
    "never_asked": "a response to a request that was never made",
    "answered_twice": "a second response to one request, or one to a request long forgotten",
    "wrong_source_id": "a response with another SourceID than ours",
    "wrong_service": "a response for another channel or product than asked for",
    "wrong_direction": "a message that no server may send",
    "broken": "connections given up because of what the server sent, or did not send",
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets are XDP's. Raises `UsageError`."""
    table = feed.table
    offsets = (table.length_at, table.flags_at, table.count_at, table.sequence_at)
    sizes = (table.length_size, table.flags_size, table.count_size, table.sequence_size)
    little = not (table.big_endian or table.fix or table.length_add)
    if offsets != (0, 2, 3, 4) or sizes != (2, 1, 1, 4) or not little or not feed.counts_messages:
        raise UsageError(f"{feed.name} has no XDP packets", 'name another protocol in "recovery"')


def check_services(services: list[int]) -> None:
    """Check that a request can name each service. Raises `UsageError`."""
    for service in services:
        if service > NUMBER_MAX:
            raise UsageError(
                f"service {service} is no ChannelID",
                f"give channels the exchange's numbers, 0 to {NUMBER_MAX}",
            )


def source_field(source_id: str) -> bytes:
    """Return a SourceID as requests have it. Raises `UsageError` where it does not fit."""
    if not (source_id.isascii() and source_id.isprintable() and source_id == source_id.strip()):
        raise UsageError(f"SourceID {source_id!r} cannot be sent", "use plain ASCII")
    if not 1 <= len(source_id) <= SOURCE_ID_CHARS:
        raise UsageError(
            f"SourceID {source_id!r} has {len(source_id)} characters",
            f"source_id has 1 to {SOURCE_ID_CHARS} here",
        )
    return source_id.encode("ascii")


def packet_of(flag: int, sequence: int, messages: Sequence[bytes], send_time: int) -> bytes:
    """Return a packet of messages, with its send time in ns since 1970."""
    body = b"".join(messages)
    sent = divmod(send_time, 1_000_000_000)
    return HEADER.pack(HEADER.size + len(body), flag, len(messages), sequence, *sent) + body


class Packets:
    """Encodes packets of one message or none, with the time of sending."""

    def __init__(self, feed: Feed) -> None:
        self._clock = SendClock(feed)

    def packet(self, flag: int, sequence: int, message: bytes, now_ns: int) -> bytes:
        """Return a packet with this message; b"": with none."""
        messages = [message] if message else []
        return packet_of(flag, sequence, messages, self._clock.send_time(now_ns))


def messages_of(packet: bytes) -> list[tuple[int, bytes]]:
    """Return (type, bytes) of each message of a packet. Raises `WireError` where they do not fit
    it."""
    messages: list[tuple[int, bytes]] = []
    at = HEADER.size
    for _ in range(packet[3]):
        if at + MESSAGE_HEADER.size > len(packet):
            raise WireError("wrong_count", "a packet with fewer messages than it says")
        size, code = MESSAGE_HEADER.unpack_from(packet, at)
        if size < MESSAGE_HEADER.size or at + size > len(packet):
            raise WireError("bad_packet", f"a message of {size} bytes, which does not fit")
        messages.append((code, packet[at : at + size]))
        at += size
    if at != len(packet):
        raise WireError("wrong_count", "a packet with more than the messages it says")
    return messages


def exactly(layout: struct.Struct, message: bytes) -> tuple[Any, ...]:
    """Return the fields of a message behind its header. Raises `WireError` for another size."""
    if len(message) != layout.size:
        raise WireError("wrong_body_size", f"a message of {len(message)} bytes, not {layout.size}")
    return layout.unpack(message)[2:]


@dataclass(slots=True)
class _Sent:
    """A request without a response: what kind it is, whose, and since when."""

    code: int
    request_id: int
    service: int
    sent_ns: int


class XdpClient(PacketClient):
    """The client of a request server; `counts` counts by the names of `COUNTS`.

    Raises `UsageError` for a feed of another framing, a SourceID, product or service that requests
    cannot name.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_feed(setup.feed)
        check_services([each.service for each in (*setup.retransmission, *setup.refresh)])
        if not 1 <= setup.product <= NUMBER_MAX:
            raise UsageError(
                "requests name the feed's ProductID, which is missing",
                f"product = 1 to {NUMBER_MAX}, as the feed's client specification lists it",
            )
        super().__init__(setup.settings, dict.fromkeys(COUNTS, 0))
        self._feed = setup.feed
        self._source = source_field(setup.source_id)
        self._product = setup.product
        self._encoder = Packets(setup.feed)
        self._answer_ns = min(self._dead_ns, ANSWER_NS)
        range_max = setup.settings.request_packets_max
        self._requests = self._answers = LineAnswers(setup.feed, self.counts, range_max)
        self._number = 0
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        super()._begin(now_ns)
        self._framer = StreamFramer(self._feed)
        self._answers.clear()
        self._sent: dict[int, _Sent] = {}
        #: Refreshes that the owner waits for a response to.
        self._refreshes: set[int] = set()
        self._first_number = self._number + 1

    @property
    def _held(self) -> int:
        return self._framer.buffered

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        if not self._up:
            return NEVER_NS
        return min(self._heard_ns + self._dead_ns, self._owed_ns + self._answer_ns)

    @property
    def _owed_ns(self) -> int:
        """Since when the server owes a response; far in the future where it owes none."""
        oldest = next(iter(self._sent.values()), None)
        return NEVER_NS if oldest is None else oldest.sent_ns

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request messages; return False (and count it) where there is no connection or no room.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        if not (self._answers.check(request) and self._can_ask(request.end - 1)):
            self.counts["not_asked"] += 1
            return False
        self._answers.add(request)
        message = RETRANSMISSION_REQUEST.pack(
            RETRANSMISSION_REQUEST.size, RETRANSMISSION, request.first, request.end - 1,
            self._source, self._product, request.service,
        )  # fmt: skip
        self._send(RETRANSMISSION, request.request_id, request.service, message, now_ns)
        return True

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request mapping and refresh of all symbols; return False (and count it) where that cannot
        be sent.

        Raises `UsageError` for a `request_id` that is under way.
        """
        if request.request_id in self._refreshes:
            raise UsageError(f"request {request.request_id} is under way", "use a new number")
        if not self.ask_mapping(request.service, now_ns):
            return False
        self.counts["asked"] += 1
        self._refreshes.add(request.request_id)
        message = REFRESH_REQUEST.pack(
            REFRESH_REQUEST.size, REFRESH, ALL_SYMBOLS, self._source, self._product,
            request.service,
        )  # fmt: skip
        self._send(REFRESH, request.request_id, request.service, message, now_ns)
        return True

    def ask_mapping(self, service: int, now_ns: int) -> bool:
        """Request the mapping of all symbols; return False (and count it) where it cannot be sent.

        The mapping comes by lines; the response is counted.
        """
        if not self._can_ask(0):
            self.counts["not_asked"] += 1
            return False
        self.counts["asked"] += 1
        message = MAPPING_REQUEST.pack(
            MAPPING_REQUEST.size, MAPPING, ALL_SYMBOLS, self._source, self._product, service,
            BY_UDP,
        )  # fmt: skip
        self._send(MAPPING, 0, service, message, now_ns)
        return True

    def _can_ask(self, last: int) -> bool:
        return self._up and len(self._sent) < REQUESTS_MAX and last <= SEQUENCE_MAX

    def _send(self, code: int, request_id: int, service: int, message: bytes, now_ns: int) -> None:
        number = self._number = self._number % SEQUENCE_MAX + 1
        self._sent[number] = _Sent(code, request_id, service, now_ns)
        self._output += self._encoder.packet(ORIGINAL, number, message, now_ns)

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        if request_id in self._refreshes:
            self._refreshes.discard(request_id)
            self.counts["cancelled"] += 1
        self._answers.cancel(request_id)

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: give up a server that is silent, or does not respond."""
        if not self._up or now_ns < self.deadline_ns:
            return []
        return self._silence(now_ns) or [
            self._late("unanswered", self._owed_ns, "did not respond", now_ns)
        ]

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._framer, data)

    def _packet(self, packet: bytes, now_ns: int, events: list[Event]) -> None:
        messages = messages_of(packet)
        if not messages:
            self.counts["heartbeats"] += 1
            message = HEARTBEAT_RESPONSE.pack(HEARTBEAT_RESPONSE.size, BEATS, self._source)
            self._number = self._number % SEQUENCE_MAX + 1
            self._output += self._encoder.packet(ORIGINAL, self._number, message, now_ns)
        for code, message in messages:
            if code != RESPONDS:
                raise WireError("wrong_direction", f"message {code}, which no server may send")
            self._response(message, events)

    def _response(self, message: bytes, events: list[Event]) -> None:
        number, _, _, source, product, channel, status = exactly(RESPONSE, message)
        sent = self._sent.get(number)
        if source.split(b"\0", 1)[0].rstrip(b" ") != self._source:
            raise WireError("wrong_source_id", "a response for another client")
        if sent is None:
            if self._first_number <= number <= self._number:
                raise WireError("answered_twice", f"another response to request {number}")
            raise WireError("never_asked", f"a response to request {number}, which was never made")
        if (product, channel) != (self._product, sent.service):
            raise WireError("wrong_service", f"a response for channel {channel}")
        word = bytes([status])
        if word not in STATUS:
            raise WireError("malformed_answer", f"a response with status {word!r}")
        del self._sent[number]
        self._answered(sent, word, events)

    def _answered(self, sent: _Sent, status: bytes, events: list[Event]) -> None:
        """Apply a response to the request that it answers."""
        accepted = STATUS[status] is RetransReject.NONE
        if sent.code == MAPPING:
            self.counts["mappings" if accepted else "mappings_rejected"] += 1
        elif sent.code == REFRESH:
            if sent.request_id not in self._refreshes:
                return
            self._refreshes.discard(sent.request_id)
            self.counts["accepted" if accepted else "rejected"] += 1
            if accepted:
                events.append(RefreshAccepted(sent.request_id))
            else:
                events.append(RefreshRejected(sent.request_id, REFRESH_STATUS[status]))
        elif accepted:
            self._answers.accept(sent.request_id, events)
        else:
            self._answers.reject(sent.request_id, STATUS[status], events)

    # -- retransmission lines -------------------------------------------------------------------

    def datagram(self, service: int, data: bytes, now_ns: int) -> list[Event]:
        """Take in a datagram of a service's retransmission lines and return its events."""
        answers = self._answers
        if not self._up or not answers.read(data):
            return []
        header = answers.header
        if header.kind == CONTROL and header.flags == UNAVAILABLE_FLAG:
            return self._unavailable(service, data)
        if header.flags == HEARTBEAT or not header.count:
            self.counts["line_heartbeats"] += 1
            return []
        if header.kind != DATA or header.flags not in (ONE_PACKET, ONE_OF_SEVERAL):
            self.counts["wrong_flag"] += 1
            return []
        return answers.packet(service, data)

    def _unavailable(self, service: int, data: bytes) -> list[Event]:
        """Take in messages 31: numbers that are not to be had."""
        events: list[Event] = []
        try:
            for code, message in messages_of(data):
                fields = exactly(UNAVAILABLE, message)
                if code != MISSING or fields[2:] != (self._product, service):
                    self.counts["others_packets"] += 1
                    continue
                first, last = fields[:2]
                if first <= last:
                    events += self._answers.unavailable(service, first, last + 1)
        except WireError:
            self.counts["bad_packets"] += 1
        return events
