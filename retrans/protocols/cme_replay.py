"""CME's TCP replay: packets by number, one request a connection, for MDP 3.0.

The client connects, and logs on by username and password. The server confirms the logon; the client
names a channel and the first and last number of at most 2,000 packets; the server sends these
packets as they were published, then a logout, and closes the connection. A logout in place of the
packets refuses the request, one in place of the confirmation the logon; its text says why. What the
client says is FIX text without BeginString: logon (35=A, 553, 554), Market Data Request (35=V,
1180 ApplID, the channel, 262, 1182 ApplBegSeqNum, 1183 ApplEndSeqNum, both inclusive), heartbeat
(35=0) and logout (35=5). What the server says is MDP packets, each behind its length (u16,
little-endian); logon, logout and heartbeat are the messages 15, 16 and 12. (CME Group Client
Systems Wiki: MDP 3.0 - TCP Recovery, and its message pages.) That there is no BeginString, and that
the length leaves itself out, is from public handlers of the feed which use it.

A service is the MDP channel, as CME numbers it.

**The client** has a connection only while something is asked for (`reconnection`, "On demand"). Its
request spans what waits then, as far as one request may: gaps that follow one another closely come
by one connection. Packets of a span that are not waited for are counted and ignored. Where a span
of several requests is refused, each is asked for alone. A refusal's text is for people, and a
server may be a moment behind the lines: a request that is refused ends without its packets, and
recovery asks again after a back-off, as often as it may. What becomes of a connection:

    CLOSED ─connected▶ LOGON ─confirmed▶ REPLAY ─logout▶ OVER ─disconnected▶ CLOSED
                         └─refused, nobody waits, anything wrong▶ OVER ◀┘

A request counts as accepted when it is sent: the server has confirmed the logon by then. Requests
outlast a connection that breaks, and go with the next one; time-outs are recovery's own.
On the lines, packets of a heartbeat have numbers, and are replayed as well: a heartbeat is one of
those where it was sent before the logon was confirmed, else the connection's own.

The server is `cme_replay_server`.

Sans-IO; `retrans.protocols.setup` says what it must do.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Broken,
    Event,
    Finished,
    Packet,
)
from feedhandler.retrans.packet_reading import is_whole, packets_of
from feedhandler.retrans.protocol import NEVER_NS, WireError
from feedhandler.retrans.protocols.setup import ClientSetup
from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.requesting import PacketClient, UnderWay

#: Length in front of a packet of the server.
LENGTH = struct.Struct("<H")
#: Header of a packet: MsgSeqNum, SendingTime.
PACKET = struct.Struct("<IQ")
#: Header of a message: MsgSize, BlockLength, TemplateID, SchemaID, Version.
MESSAGE = struct.Struct("<HHHHH")
#: The shortest packet of one message.
PACKET_BYTES_LEAST = PACKET.size + MESSAGE.size
#: Messages of the session.
HEARTBEAT, LOGON, LOGOUT = 12, 15, 16
SESSION_MESSAGES = {"admin_heartbeat": HEARTBEAT, "admin_login": LOGON, "admin_logout": LOGOUT}
#: Types of the client's messages (35), and tags.
LOGS_ON, REQUESTS, BEATS, LOGS_OUT = b"A", b"V", b"0", b"5"
MSG_TYPE, USERNAME, PASSWORD, REQ_ID, CHANNEL, BEGIN, END = 35, 553, 554, 262, 1180, 1182, 1183
SOH = b"\x01"
#: Most packets of one request.
PACKETS_MAX = 2_000
#: The greatest number of a packet.
NUMBER_MAX = 0xFFFF_FFFF

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    "asked": "requests taken, of all kinds",
    "not_asked": "requests not taken: too many under way, or snapshots, which it has not",
    "cancelled": "requests that were cancelled",
    "logins": "logins that the server accepted",
    "login_refused": "logins that it refused",
    "spans": "requests sent, each for what waited then",
    "rejected": "requests that the server refused",
    "alone": "requests that were refused together with others, and asked for alone",
    "answered": "requests of which every packet came",
    "cut_short": "requests of which the server sent a part",
    "packets": "replayed packets handed on",
    "late_packets": "replayed packets that no request waited for any more",
    "others_packets": "packets of numbers that were not asked for",
    "heartbeats": "heartbeats from the server",
    "heartbeats_sent": "heartbeats sent",
    "failed": "connections that could not be made, or broke",
    "cut_off": "connections that ended within a packet",
    "length_too_small": "a packet length below that of a packet with a message",
    "bad_packet": "a packet that the feed's scanner rejects",
    "wrong_direction": "a packet that is not to be sent in this state",
    "silent": "no sign of life from the server in time",
    "broken": "connections given up because of what the server sent, or did not send",
}


class State(Enum):
    """State of a connection (see the module)."""

    CLOSED = auto()
    LOGON = auto()
    REPLAY = auto()
    OVER = auto()


#: In which states messages of the session may come, by template; heartbeats in all. What is not
#: listed is a replayed packet, which comes in `State.REPLAY`.
MAY_COME: dict[int, frozenset[State]] = {
    LOGON: frozenset({State.LOGON}),
    LOGOUT: frozenset({State.LOGON, State.REPLAY}),
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets are MDP 3.0's. Raises `UsageError`."""
    table = feed.table
    offsets = (table.sequence_at, table.sequence_size, table.header_size, table.length_size)
    codes = {way.name: code for code, ways in feed.layouts.items() for way in ways}
    session = {name: codes.get(name) for name in SESSION_MESSAGES}
    if offsets != (0, 4, PACKET.size, 0) or feed.counts_messages or session != SESSION_MESSAGES:
        raise UsageError(f"{feed.name} has no MDP 3.0 packets", 'include = "shared/cme-mdp3.toml"')


def text_of(message_type: bytes, *fields: tuple[int, str | int]) -> bytes:
    """Return a message of the client: BodyLength, MsgType, these fields, CheckSum."""
    body = b"35=" + message_type + SOH
    body += b"".join(f"{tag}={value}".encode("ascii") + SOH for tag, value in fields)
    message = b"9=%d" % len(body) + SOH + body
    return message + b"10=%03d" % (sum(message) & 0xFF) + SOH


def template_of(packet: bytes) -> int:
    """Return the template of a packet's first message."""
    template: int = MESSAGE.unpack_from(packet, PACKET.size)[2]
    return template


class PacketBuffer:
    """Cuts what a server sends into packets; holds one that is incomplete.

    `feed` returns the packets that are whole now. Where a length makes no sense, `failure` says so,
    behind the packets before it; after that nothing more is taken.
    """

    def __init__(self) -> None:
        self.failure: WireError | None = None
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes held of an incomplete packet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in received bytes and return the packets that are whole now."""
        self._held += data
        held, at = self._held, 0
        packets: list[bytes] = []
        while self.failure is None and len(held) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(held, at)
            if size < PACKET_BYTES_LEAST:
                self.failure = WireError("length_too_small", f"a packet of {size} bytes")
                break
            if len(held) - at < LENGTH.size + size:
                break
            at += LENGTH.size
            packets.append(bytes(held[at : at + size]))
            at += size
        del held[:at]
        if self.failure is not None:
            held.clear()
        return packets


def _credential(what: str, text: str) -> str:
    if not (text.isascii() and text.isprintable() and text):
        raise UsageError(
            f"CME's replay is logged in to by username and password: {what} is missing, or is not "
            "printable ASCII",
            'source_id = "the username", and password_file or password_env',
        )
    return text


@dataclass(slots=True)
class _Asked:
    """A request that the owner waits for; `missing` are the numbers that have not come yet."""

    request_id: int
    service: int
    missing: RangeSet
    #: Whether the connection's request spans it, and whether it must not be spanned with others.
    sent: bool = False
    alone: bool = False
    accepted: bool = False


class ReplayClient(PacketClient):
    """The client of a replay server, for any number of channels.

    `counts` counts by the names of `COUNTS`. Raises `UsageError` for a feed of another framing, for
    snapshots, and for credentials that cannot be sent.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_feed(setup.feed)
        if setup.refresh:
            raise UsageError("a replay server has no snapshots", 'leave "refresh" out')
        settings = setup.settings
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        self._range_max = min(settings.request_packets_max, PACKETS_MAX)
        self._requests: UnderWay[_Asked] = UnderWay(self.counts, self._range_max, "packets")
        self._table = setup.feed.table
        self._logon = text_of(
            LOGS_ON,
            (USERNAME, _credential("source_id", setup.source_id)),
            (PASSWORD, _credential("the password", setup.password)),
        )
        self._header = PacketHeader()
        self._number = 0
        self.state = State.CLOSED
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        super()._begin(now_ns)
        self._stream = PacketBuffer()
        #: What was requested: channel, first number, number after; and the number that comes next.
        self._span = (0, 0, 0)
        self._next = 0
        #: SendingTime of the confirmation.
        self._confirmed_ns = 0
        for asked in self._requests.values():
            asked.sent = False

    # -- the connection -------------------------------------------------------------------------

    @property
    def wants(self) -> bool:
        """Return whether a request waits for a connection."""
        return any(not asked.sent for asked in self._requests.values())

    def connected(self, now_ns: int) -> None:
        """Begin a new connection, with the logon."""
        super().connected(now_ns)
        self.state = State.LOGON
        self._output += self._logon

    def disconnected(self, now_ns: int) -> None:
        """End the connection; requests wait for the next one."""
        super().disconnected(now_ns)
        self.state = State.CLOSED

    @property
    def _held(self) -> int:
        return self._stream.held

    def failed(self, reason: str, now_ns: int) -> list[Event]:
        """Take that the connection could not be made, or broke: requests wait for the next one."""
        self.counts["failed"] += 1
        return []

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` must be called next; 0 for a connection that is no longer wanted."""
        if not self._up:
            return NEVER_NS
        if not self._awaited:
            return 0
        return min(self._heard_ns + self._dead_ns, self._said_ns + self._heartbeat_ns)

    @property
    def _awaited(self) -> bool:
        """Return whether a request waits for the packets of this connection."""
        logon = self.state is State.LOGON
        return any(logon or asked.sent for asked in self._requests.values())

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request packets; return False (and count it) where there is no room, or no such number.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        first, end = request.first, request.end
        if not self._requests.check(request) or not 0 < first <= end - 1 <= NUMBER_MAX:
            self.counts["not_asked"] += 1
            return False
        self.counts["asked"] += 1
        self._requests[request.request_id] = _Asked(
            request.request_id, request.service, RangeSet([(first, end - 1)])
        )
        return True

    def _request(self, now_ns: int, events: list[Event]) -> None:
        """Request what waits, from the oldest on, as far as one request may span it."""
        waiting = list(self._requests.values())
        oldest = waiting[0]
        service, low, high = oldest.service, oldest.missing.lowest, oldest.missing.highest
        oldest.sent = True
        for asked in waiting[1:]:
            first, last = min(low, asked.missing.lowest), max(high, asked.missing.highest)
            together = asked.service == service and not (oldest.alone or asked.alone)
            if together and last - first < self._range_max:
                asked.sent, low, high = True, first, last
        self._span, self._next = (service, low, high + 1), low
        self._number += 1
        self.counts["spans"] += 1
        self._output += text_of(
            REQUESTS, (CHANNEL, service), (REQ_ID, f"{service}-{self._number}"),
            (BEGIN, low), (END, high),
        )  # fmt: skip
        self._said_ns = now_ns
        self.state = State.REPLAY
        for asked in waiting:
            if asked.sent and not asked.accepted:
                asked.accepted = True
                events.append(Accepted(asked.request_id))

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: send a heartbeat, leave a connection that is no use, or a silent one."""
        if now_ns < self.deadline_ns:
            return []
        if not self._awaited:
            return [self._finish()]
        if broken := self._silence(now_ns):
            return broken
        self.counts["heartbeats_sent"] += 1
        self._said_ns = now_ns
        self._output += text_of(BEATS)
        return []

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._stream, data)

    def _packet(self, packet: bytes, now_ns: int, events: list[Event]) -> None:
        """Take a packet. Raises `WireError` for one that cannot be read, or is not allowed now."""
        if not is_whole(self._table, packet, self._header):
            raise WireError("bad_packet", "a packet that cannot be read")
        template = template_of(packet)
        number, sent_ns = PACKET.unpack_from(packet)
        if template == HEARTBEAT and sent_ns >= self._confirmed_ns:
            self.counts["heartbeats"] += 1
            return
        if self.state not in MAY_COME.get(template, frozenset({State.REPLAY})):
            raise WireError("wrong_direction", f"message {template} in state {self.state.name}")
        if template == LOGON:
            self._confirmed_ns = sent_ns
            self._logged_on(now_ns, events)
        elif template == LOGOUT:
            self._logged_out(packet, events)
        else:
            self._replayed(packet, number, events)

    def _logged_on(self, now_ns: int, events: list[Event]) -> None:
        self.counts["logins"] += 1
        if self._requests:
            self._request(now_ns, events)
        else:
            events.append(self._finish())

    def _logged_out(self, packet: bytes, events: list[Event]) -> None:
        text = packet[PACKET_BYTES_LEAST:].split(b"\0", 1)[0].decode("ascii", "replace").strip()
        if self.state is State.LOGON:
            events.append(self._break("login_refused", f"the server refuses the logon: {text}"))
            return
        refused = self._next == self._span[1]
        sent = [asked for asked in self._requests.values() if asked.sent]
        for asked in sent:
            if refused and len(sent) > 1:
                self.counts["alone"] += 1
                asked.sent, asked.alone = False, True
                continue
            del self._requests[asked.request_id]
            self.counts["rejected" if refused else "cut_short"] += 1
            events.append(Answered(asked.request_id))
        events.append(self._finish())

    def _replayed(self, packet: bytes, number: int, events: list[Event]) -> None:
        """Hand a packet to each request that waits for it."""
        service, first, end = self._span
        if not first <= number < end:
            self.counts["others_packets"] += 1
            return
        self._next = number + 1
        before = len(events)
        for asked in list(self._requests.values()):
            if asked.service != service or not asked.missing.touches(number, number):
                continue
            asked.missing.discard(number, number)
            self.counts["packets"] += 1
            events.append(Packet(asked.request_id, service, number, number + 1, packet))
            if not asked.missing:
                self.counts["answered"] += 1
                events.append(Answered(asked.request_id))
                del self._requests[asked.request_id]
        self.counts["late_packets"] += len(events) == before

    def _finish(self) -> Finished:
        """Leave the connection, which has brought what it could."""
        self._output += text_of(LOGS_OUT)
        self._up = False
        self.state = State.OVER
        return Finished()

    def _break(self, name: str, reason: str) -> Broken:
        self.state = State.OVER
        return super()._break(name, reason)


def fields_of(text: bytes) -> dict[int, bytes]:
    """Return the fields of a message of the client, behind BodyLength and before CheckSum.

    Raises `WireError` for what is no field.
    """
    fields: dict[int, bytes] = {}
    for part in _parts(text):
        tag, equals, value = part.partition(b"=")
        if not (tag.isdigit() and len(tag) <= 5 and equals and value):
            raise WireError("badly_formed", "a message with something that is no field")
        fields.setdefault(int(tag), value)
    return fields


def _parts(text: bytes) -> Iterable[bytes]:
    return text.split(SOH)[1:-2]
