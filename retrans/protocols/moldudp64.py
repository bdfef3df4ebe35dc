"""MoldUDP64 requests: messages by number over UDP, for one session of one channel.

A request is the session (10 bytes), the first number (u64) and the count (u16); the answer is a
downstream packet with the requested messages from the first on, as many as fit a datagram. What is
left of a range is asked for when its first part has come. A server that never had a number, or has
it no longer, says nothing, or sends a packet with count 0.

**The client** believes only a packet that the feed's scanner finds whole, of the session that was
asked about, inside a range that it asked for. Anything else is counted by name and ignored: over
UDP any host can send anything. An answer to a request that was cancelled is late, but is handed on
for another one that waits for it. A server that has answered nothing for `dead_us` since it was
asked is given up (`Broken`). Time-outs of single requests are recovery's own.

A request names the session, which only the stream gives: until a packet of a session was published,
nothing can be asked of it (`no_session`).

**The server** answers from its store, one datagram a request, and never more than what was asked.

Sans-IO: a datagram and the time are arguments. `retrans.protocols.setup` says what both must do.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import DATA
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Event, Packet, Rejected
from feedhandler.retrans.packet_reading import is_whole
from feedhandler.retrans.protocol import NEVER_NS, RetransReject
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.requesting import DatagramClient, UnderWay
from feedhandler.retrans.serving import DatagramServer
from feedhandler.retrans.store import PacketStore

#: Session, first number, count; the header of an answer is laid out alike.
REQUEST = struct.Struct(">10sQH")
#: The greatest count: 65,535 means the end of a session.
COUNT_MAX = 65_534
#: Most bytes of an answer, so that no network cuts it up.
DATAGRAM_BYTES_MAX = 1_400

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    "asked": "requests sent, those for the rest of a range as well",
    "not_asked": "requests not sent: no socket, too many under way, or snapshots, which it has not",
    "no_session": "requests not sent: the stream has not given its session yet",
    "cancelled": "requests that were cancelled",
    "rejected": "requests answered by a packet with count 0",
    "answered": "requests of which every message came",
    "packets": "retransmitted packets handed on",
    "late_packets": "retransmitted packets that no request waited for any more",
    "bad_packets": "datagrams that are no packet of the feed",
    "wrong_session": "packets of another session than asked about",
    "unasked_packet": "packets outside every range that was asked for",
    "silent": "no answer from the server in time",
    "broken": "servers given up because of what they did not send",
}
#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    "clients": "clients that came",
    "clients_refused": "clients beyond the bound",
    "requests": "requests that could be read",
    "badly_formed": "datagrams that are no request",
    "wrong_session": "requests of a session that is not served",
    "not_yet": "requests of numbers that were not sent yet",
    "gone": "requests of numbers that are no longer held, answered with count 0",
    "packets": "answers",
    "messages": "messages in them",
    "bytes": "bytes of them",
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets are MoldUDP64's. Raises `UsageError`."""
    table = feed.table
    offsets = (table.session_at, table.session_size, table.sequence_at, table.sequence_size)
    sizes = (table.count_size, table.header_size, table.message_length_size)
    if offsets != (0, 10, 10, 8) or sizes != (2, 20, 2) or not feed.counts_messages:
        raise UsageError(
            f"{feed.name} has no MoldUDP64 packets", 'include = "shared/moldudp64.toml"'
        )


@dataclass(slots=True)
class _Asked:
    """A request that the owner waits for; `missing` are the numbers of which nothing came yet."""

    request_id: int
    service: int
    session: bytes
    first: int
    end: int
    missing: RangeSet
    accepted: bool = False


class MoldClient(DatagramClient):
    """The client of one channel's request server; `counts` counts by the names of `COUNTS`.

    Raises `UsageError` for a feed of another framing, and for another number of channels than one.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_feed(setup.feed)
        if len(setup.retransmission) != 1 or setup.refresh:
            raise UsageError(
                "a MoldUDP64 request server serves one channel, and has no snapshots",
                "give each channel a [[server]] of its own",
            )
        settings = setup.settings
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        range_max = min(settings.request_packets_max, COUNT_MAX)
        self._requests: UnderWay[_Asked] = UnderWay(self.counts, range_max)
        self._table = setup.feed.table
        self._header = PacketHeader()
        self._latest: Callable[[int], bytes] = setup.latest
        self._begin(0)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        owing = self._up and self._owing_ns < NEVER_NS
        return self._owing_ns + self._dead_ns if owing else NEVER_NS

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request a range; return False (and count it) where it cannot be sent.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        first, end = request.first, request.end
        room = self._requests.check(request)
        session = self._latest(request.service)[:10]
        if not (self._up and room and session):
            self.counts["not_asked" if session else "no_session"] += 1
            return False
        asked = _Asked(
            request.request_id, request.service, session, first, end, RangeSet([(first, end - 1)])
        )
        self._requests[request.request_id] = asked
        self._send(asked, now_ns)
        return True

    def _send(self, asked: _Asked, now_ns: int) -> None:
        """Ask for the first run of what is missing."""
        first, last = next(iter(asked.missing))
        self._output.append(REQUEST.pack(asked.session, first, last - first + 1))
        self.counts["asked"] += 1
        self._owing_ns = min(self._owing_ns, now_ns)

    # -- time and datagrams ---------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: give a silent server up."""
        return self._silence(now_ns) if self._up else []

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in one datagram and return its events."""
        header = self._header
        if not self._up or not data:
            return []
        if not is_whole(self._table, data, header):
            self.counts["bad_packets"] += 1
            return []
        same = [request for request in self._requests.values() if data.startswith(request.session)]
        if self._requests and not same:
            self.counts["wrong_session"] += 1
            return []
        if header.kind != DATA:
            return self._refused(header.sequence, same, now_ns)
        return self._deliver(data, same, now_ns)

    def _refused(self, number: int, same: list[_Asked], now_ns: int) -> list[Event]:
        """Take a packet with count 0: the server does not have what was asked for first."""
        events: list[Event] = []
        for asked in same:
            if next(iter(asked.missing))[0] == number:
                self.counts["rejected"] += 1
                reason = RetransReject.NO_LONGER_AVAILABLE
                events.append(Rejected(asked.request_id, reason))
                del self._requests[asked.request_id]
                self._heard(now_ns)
        return events

    def _deliver(self, data: bytes, same: list[_Asked], now_ns: int) -> list[Event]:
        """Hand a packet to each request that waits for numbers of it."""
        first, end = self._header.sequence, self._header.next_sequence
        events: list[Event] = []
        inside = [each for each in same if each.first <= first and end <= each.end]
        for asked in inside:
            if asked.missing.touches(first, end - 1):
                self._hand(asked, first, end, data, events, now_ns)
        if not events:
            late = inside or not same
            self.counts["late_packets" if late else "unasked_packet"] += 1
            if late:  # too late for the request, but the server is there
                self._heard(now_ns)
        return events

    def _hand(
        self, asked: _Asked, first: int, end: int, data: bytes, events: list[Event], now_ns: int
    ) -> None:
        if not asked.accepted:
            asked.accepted = True
            events.append(Accepted(asked.request_id))
        asked.missing.discard(first, end - 1)
        self.counts["packets"] += 1
        events.append(Packet(asked.request_id, asked.service, first, end, data))
        if asked.missing:
            self._send(asked, now_ns)
        else:
            self.counts["answered"] += 1
            events.append(Answered(asked.request_id))
            del self._requests[asked.request_id]
        self._heard(now_ns)

    def _heard(self, now_ns: int) -> None:
        """Note that the server has answered: what it owes, if anything, it owes from now on."""
        self._owing_ns = now_ns if self._requests else NEVER_NS


class MoldServer(DatagramServer):
    """The request server of one or several sessions; each service's session is its packets'.

    `counts` counts by the names of `SERVER_COUNTS`. Raises `UsageError` for a feed of another
    framing.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        super().__init__(setup.settings, dict.fromkeys(SERVER_COUNTS, 0))
        self.stores = setup.stores
        self._messages_max = setup.settings.request_packets_max

    def answer(self, data: bytes) -> tuple[bytes, ...]:
        """Return the one datagram that answers a request; none where it is ignored."""
        if len(data) != REQUEST.size:
            return self._silent("badly_formed")
        session, first, count = REQUEST.unpack(data)
        if not 0 < count <= COUNT_MAX or not first:
            return self._silent("badly_formed")
        self.counts["requests"] += 1
        store = self._store_of(session)
        if store is None:
            return self._silent("wrong_session")
        if first >= store.end:
            return self._silent("not_yet")
        end = min(first + min(count, self._messages_max), store.end)
        messages = _messages(store, first, end)
        if not messages:
            self.counts["gone"] += 1
            return (REQUEST.pack(session, first, 0),)
        packet = REQUEST.pack(session, first, len(messages)) + b"".join(messages)
        self.counts["packets"] += 1
        self.counts["messages"] += len(messages)
        self.counts["bytes"] += len(packet)
        return (packet,)

    def _silent(self, name: str) -> tuple[bytes, ...]:
        self.counts[name] += 1
        return ()

    def _store_of(self, session: bytes) -> PacketStore | None:
        """Return the store whose packets are of a session; None where no store's are."""
        for service in self.stores:
            store = self.stores[service]
            newest = store.packet(store.next_serial - 1) if store.count else None
            if newest is not None and newest[2].startswith(session):
                return store
        return None


def _messages(store: PacketStore, first: int, end: int) -> list[bytes]:
    """Return the messages `first` to `end` - 1, with their lengths, as far as they fit a datagram.

    Ends before a number that is not held; empty where the first is not.
    """
    messages: list[bytes] = []
    room = DATAGRAM_BYTES_MAX - REQUEST.size
    for sequence, _, packet in store.packets(first, end):
        number, at = sequence, REQUEST.size
        while at < len(packet) and number < end:
            size = 2 + int.from_bytes(packet[at : at + 2], "big")
            if number == first + len(messages):
                room -= size
                if messages and room < 0:
                    return messages
                messages.append(packet[at : at + size])
            number, at = number + 1, at + size
    return messages
