"""The server of NYSE XDP requests: judges them, and has the packets sent by multicast lines.

The wire and its source are `nyse_xdp`'s. A request is judged and answered at once in the
connection; its packets go out by the retransmission lines of the channel, cut to what was asked
for, a share with each `tick`. Numbers that are not there are announced on the lines by message 31.
Refreshes and mappings go out by the refresh lines, numbered by themselves (`nyse_refresh`). The
server sends heartbeats, and closes a client that does not answer them.

Sans-IO; `retrans.protocols.setup` says what it must do.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from feedhandler.codecs.feed import pack_messages
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.packet_reading import packets_of
from feedhandler.retrans.protocol import (
    NEVER_NS,
    WIRE_ERRORS,
    RetransReject,
    StreamFramer,
    WireError,
)
from feedhandler.retrans.protocols.nyse_refresh import (
    BODY_BYTES_MAX,
    by_symbol,
    flag_of,
    refresh_bodies,
)
from feedhandler.retrans.protocols.nyse_xdp import (
    ALL_SYMBOLS,
    BEATS,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_RESPONSE,
    MAPPING,
    MAPPING_REQUEST,
    MISSING,
    ONE_OF_SEVERAL,
    ONE_PACKET,
    ORIGINAL,
    REFRESH,
    REFRESH_REQUEST,
    RESPONDS,
    RESPONSE,
    RETRANSMISSION,
    RETRANSMISSION_REQUEST,
    UNAVAILABLE,
    UNAVAILABLE_FLAG,
    Packets,
    check_feed,
    check_services,
    exactly,
    messages_of,
    packet_of,
)
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.server import DailyQuota
from feedhandler.retrans.serving import ClientsServer, PacketSession, PacketsOwed
from feedhandler.retrans.settings import ServerSettings

#: Longest packet of a client.
REQUEST_BYTES_MAX = 256
#: Most answers that wait to go out for one client.
ANSWERS_WAITING_MAX = 4096
#: Offset of the delivery flag in a packet.
FLAG_AT = 2

#: The status on the wire of each reason.
WORDS: dict[RetransReject, bytes] = {
    RetransReject.NONE: b"0",
    RetransReject.PERMISSION: b"1",
    RetransReject.INVALID_RANGE: b"2",
    RetransReject.OVER_THRESHOLD: b"3",
    RetransReject.TOO_MANY_TODAY: b"4",
    RetransReject.NO_LONGER_AVAILABLE: b"6",
    RetransReject.WRONG_SERVICE: b"7",
    RetransReject.BADLY_FORMED: b"9",
}
ACCEPTED, REFRESHES_TODAY, INVALID_PRODUCT = b"0", b"5", b"8"

#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    "clients": "connections accepted",
    "clients_refused": "connections closed because there were too many",
    "clients_left": "connections that the client or the network ended",
    "clients_silent": "connections closed because a heartbeat was not answered",
    "clients_wrong": "connections closed because of what the client sent",
    "wrong_direction": "messages that no client may send",
    "too_many_waiting": "connections closed because too many answers waited",
    "heartbeats_sent": "heartbeats sent",
    "heartbeats_answered": "answers to those heartbeats",
    "requests": "requests of all kinds",
    "accepted": "requests accepted",
    "rejected": "requests rejected",
    "unavailable": "messages sent that numbers are not to be had",
    "snapshots": "refreshes put on the refresh lines",
    "mappings": "mappings of symbols put there",
    "packets": "packets put on the retransmission lines",
    "bytes": "bytes of them",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of type `code`; `first` and `last` are 1 where it names no numbers, `symbol` is
    `ALL_SYMBOLS` where it names none."""

    code: int
    source: bytes
    product: int
    channel: int
    first: int = 1
    last: int = 1
    symbol: int = ALL_SYMBOLS


def read_request(code: int, message: bytes) -> Request:
    """Read a message that a client sent. Raises `WireError` for one that it may not send."""
    if code == RETRANSMISSION:
        first, last, source, product, channel = exactly(RETRANSMISSION_REQUEST, message)
        return Request(code, source, product, channel, first, last)
    if code == REFRESH:
        symbol, source, product, channel = exactly(REFRESH_REQUEST, message)
        return Request(code, source, product, channel, symbol=symbol)
    if code == MAPPING:
        symbol, source, product, channel, _ = exactly(MAPPING_REQUEST, message)
        return Request(code, source, product, channel, symbol=symbol)
    raise WireError("wrong_direction", f"message {code}, which no client may send")


class XdpServer(ClientsServer[ServerSettings, "XdpSession"]):
    """The request server of one product; each service is a channel.

    `counts` counts by the names of `SERVER_COUNTS`. `setup.refresher` is a `SnapshotSource`; a
    snapshot goes out with the send time of the channel's latest packet. Raises `UsageError` for a
    feed of another framing, and for services that are no ChannelIDs.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        check_services(list(setup.stores))
        super().__init__(setup.settings, dict.fromkeys(SERVER_COUNTS, 0))
        self.setup = setup
        self.packets = Packets(setup.feed)
        self.cutter = PacketCutter(setup.feed)
        #: By service, the number of the refresh lines' next message.
        self._refresh_next = dict.fromkeys(setup.stores, setup.feed.first_sequence)
        self.quotas = [DailyQuota(setup.settings.requests_per_day) for _ in range(2)]

    def session(self, peer: str, now_ns: int) -> "XdpSession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(XdpSession(self, now_ns))

    def judge(self, request: Request, now_ns: int) -> bytes:
        """Return the status of a request; counts it for the day."""
        allowed = self.settings.source_ids
        name = request.source.split(b"\0", 1)[0].rstrip(b" ").decode("latin-1")
        refresh = request.code == REFRESH
        if not name or (allowed and name not in allowed):
            return WORDS[RetransReject.PERMISSION]
        if request.product != self.setup.product:
            return INVALID_PRODUCT
        if request.channel not in self.setup.stores:
            return WORDS[RetransReject.WRONG_SERVICE]
        if not self.setup.feed.first_sequence <= request.first <= request.last:
            return WORDS[RetransReject.INVALID_RANGE]
        if request.last - request.first >= self.settings.request_packets_max:
            return WORDS[RetransReject.OVER_THRESHOLD]
        day_ns = self.setup.feed.trading_day.since_ns(now_ns)
        if not self.quotas[refresh].try_acquire(name, day_ns):
            return REFRESHES_TODAY if refresh else WORDS[RetransReject.TOO_MANY_TODAY]
        return ACCEPTED

    def refresh(self, request: Request, now_ns: int) -> bytes:
        """Put a refresh, or mappings, on the refresh lines; return the status."""
        if self.setup.refresher is None:
            return WORDS[RetransReject.BADLY_FORMED]
        service = request.channel
        state = self.setup.refresher(service)
        bodies = [] if state is None else self._bodies(request, *state)
        if not bodies:
            return WORDS[RetransReject.NO_LONGER_AVAILABLE]
        send_time = self._send_time(service, now_ns)
        for index, body in enumerate(bodies):
            flag, number = flag_of(index, len(bodies)), self._refresh_next[service]
            self.setup.refresh(service, packet_of(flag, number, body, send_time))
            self._refresh_next[service] += len(body)
        self.counts["snapshots" if request.code == REFRESH else "mappings"] += 1
        return ACCEPTED

    def _bodies(
        self, request: Request, last: int, messages: tuple[bytes, ...]
    ) -> list[list[bytes]]:
        """Return the messages of each packet of an answer."""
        feed = self.setup.feed
        symbols = by_symbol(feed, messages)
        if request.symbol != ALL_SYMBOLS:
            symbols = {symbol: symbols[symbol] for symbol in {request.symbol} & symbols.keys()}
        if request.code == REFRESH:
            return list(refresh_bodies(symbols.values(), last))
        mappings = [
            each
            for of in symbols.values()
            for each in of
            if feed.message_code(each) in feed.references
        ]
        return pack_messages(mappings, BODY_BYTES_MAX)

    def _send_time(self, service: int, now_ns: int) -> int:
        """Return the send time of a channel's latest packet; now, where there is none."""
        store = self.setup.stores[service]
        latest = store.packet(store.next_serial - 1)
        if latest is None:
            return now_ns
        *_, seconds, nanoseconds = HEADER.unpack_from(latest[2])
        return int(seconds * 1_000_000_000 + nanoseconds)

    def say_missing(self, service: int, first: int, end: int, now_ns: int) -> None:
        """Say by the lines that `first` to `end` - 1 are not to be had."""
        message = UNAVAILABLE.pack(
            UNAVAILABLE.size, MISSING, first, end - 1, self.setup.product, service
        )
        self.counts["unavailable"] += 1
        self.setup.retransmit(
            service, self.packets.packet(UNAVAILABLE_FLAG, first, message, now_ns)
        )

    def retransmit(self, answer: PacketsOwed, room: int, now_ns: int) -> int:
        """Put packets of an answer on the lines, about `room` bytes; return how many bytes."""
        store, used = answer.store, 0
        while answer.at < answer.end and used < room:
            held = store.packets(answer.at, answer.end) if answer.same else []
            if not held or held[0][0] > answer.at:
                until = held[0][0] if held else answer.end
                self.say_missing(answer.service, answer.at, until, now_ns)
                answer.at = until
            for first, end, packet in held:
                if first > answer.at or used >= room:
                    break
                end = min(end, answer.end)
                cut = bytearray(self.cutter.cut(packet, answer.at, end))
                cut[FLAG_AT] = answer.flag
                self.setup.retransmit(answer.service, bytes(cut))
                self.counts["packets"] += 1
                self.counts["bytes"] += len(cut)
                used += len(cut)
                answer.at = end
        return used


class XdpSession(PacketSession[XdpServer]):
    """The server's end of one client's connection: while it is paused, the lines go on."""

    def __init__(self, server: XdpServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self._framer = StreamFramer(server.setup.feed, REQUEST_BYTES_MAX)
        self._answers: deque[PacketsOwed] = deque()
        self._number = 0
        #: Since when a heartbeat is not answered; NEVER_NS: none is.
        self._unanswered_ns = NEVER_NS

    @property
    def _busy(self) -> bool:
        return bool(self._answers)

    def _drop(self) -> None:
        self._answers.clear()

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` must be called next: at once while packets wait for the lines."""
        if self.closed:
            return NEVER_NS
        if self._answers:
            return self._now_ns
        return min(self._said_ns + self._heartbeat_ns, self._unanswered_ns + self._dead_ns)

    def tick(self, now_ns: int) -> bytes:
        """Let time pass: put a share of what waits on the lines, and return a heartbeat if due."""
        if self.closed:
            return b""
        self._now_ns = now_ns
        if now_ns >= self._unanswered_ns + self._dead_ns:
            self._close("clients_silent", "the client does not answer heartbeats")
            return b""
        self._share(now_ns)
        if not self._beats(now_ns):
            return b""
        self._unanswered_ns = min(self._unanswered_ns, now_ns)
        return self._encode(HEARTBEAT, b"", now_ns)

    def _share(self, now_ns: int) -> None:
        room = self._server.settings.chunk_bytes
        while self._answers and room > 0:
            answer = self._answers[0]
            room -= self._server.retransmit(answer, room, now_ns)
            if answer.at >= answer.end:
                self._answers.popleft()

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._framer, data)

    def _packet(self, packet: bytes, now_ns: int, output: bytearray) -> None:
        for code, message in messages_of(packet):
            output += self._message(code, message, packet, now_ns)

    def _encode(self, flag: int, message: bytes, now_ns: int) -> bytes:
        self._number += bool(message)
        return self._server.packets.packet(flag, self._number, message, now_ns)

    def _message(self, code: int, message: bytes, packet: bytes, now_ns: int) -> bytes:
        if code == BEATS:
            exactly(HEARTBEAT_RESPONSE, message)
            self._counts["heartbeats_answered"] += 1
            self._unanswered_ns = NEVER_NS
            return b""
        request = read_request(code, message)
        self._counts["requests"] += 1
        status = self._server.judge(request, now_ns)
        if status == ACCEPTED:
            status = self._granted(request, now_ns)
        self._counts["accepted" if status == ACCEPTED else "rejected"] += 1
        number = int.from_bytes(packet[4:8], "little")
        named = (request.first, request.last) if code == RETRANSMISSION else (0, 0)
        response = RESPONSE.pack(
            RESPONSE.size, RESPONDS, number, *named,
            request.source, request.product, request.channel, status[0],
        )  # fmt: skip
        return self._encode(ORIGINAL, response, now_ns)

    def _granted(self, request: Request, now_ns: int) -> bytes:
        """Begin what a request that is granted asks for; return the status."""
        channel, first, end = request.channel, request.first, request.last + 1
        if request.code != RETRANSMISSION:
            return self._server.refresh(request, now_ns)
        store = self._server.setup.stores[channel]
        if end <= store.first:
            return WORDS[RetransReject.NO_LONGER_AVAILABLE]
        if len(self._answers) >= ANSWERS_WAITING_MAX:
            raise WireError("too_many_waiting", "requests faster than the lines take the answers")
        held = store.packets(first, end)
        flag = ONE_PACKET if len(held) == 1 else ONE_OF_SEVERAL
        self._answers.append(PacketsOwed(store, first, end, channel, flag))
        return ACCEPTED
