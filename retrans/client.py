# cython: annotation_typing=False
"""The client of a UTP-MD retransmission or refresh server: one connection, all services.

A plain state machine. The owner reports that the connection is there (`connected`) or gone
(`disconnected`), makes requests, and passes on bytes (`feed`) and the time (`tick`); the client
returns events, bytes to write (`data_to_send`) and the next deadline. It sends heartbeats when the
server is silent, answers the server's, and declares a server dead that stays silent.

What the server sends is believed only as far as it answers a request: a response must echo one of
our requests, its SourceID and service; a packet must be whole by the feed's own scanner, carry the
delivery flag of a retransmission and lie inside a range that was accepted. Anything else, and a
packet of a snapshot that cannot be read, is counted by name (`COUNTS`) and reported once as
`Broken`; whatever that connection brings afterwards is ignored. A readable packet of a snapshot is
handed on unchanged.

A server answers in order, and slowly at times: requests that were cancelled or are done stay known,
so that an answer to them counts as late, not as wrong. A packet that answers a cancelled request
but is waited for by another one is handed on for that one, unless that one is of a later sequence
epoch. Each packet is handed on once per request.

Left to others: time-outs and retries of requests (`recovery`), connecting (`tcp`), whether a
snapshot makes sense (`refresh`).

Compiled.
"""

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import DATA
from cython.cimports.feedhandler.codecs.scanner import check_messages
from cython.cimports.feedhandler.retrans.protocol import RecoveryProtocol, StreamFramer
from cython.cimports.feedhandler.retrans.ranges import RangeSet
from cython.cimports.feedhandler.retrans.refresh_packets import RefreshReader

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import REJECT_TEXT, Reject
from feedhandler.codecs.visibility import Readonly
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Broken,
    Event,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.protocol import (
    NEVER_NS,
    PACKET_BYTES_MAX,
    REFRESH,
    RETRANSMITTED,
    SOURCE_ID_BYTES,
    WIRE_ERRORS,
    Frame,
    Heartbeat,
    HeartbeatReply,
    RefreshRequest,
    Response,
    RetransRequest,
    WireError,
)
from feedhandler.retrans.refresh_packets import FAULTS
from feedhandler.retrans.settings import RecoverySettings

#: Most requests under way, most that wait for a response, and most that were accepted and wait for
#: packets. Of those that wait for a response the oldest that was cancelled is forgotten first: a
#: server that answers it after all is so far behind that a new connection is better.
REQUESTS_MAX = 4096
#: Most accepted ranges remembered for each service, answered or not; beyond it the set is
#: coarsened to half as many. A line that loses every hundredth packet adds one for each loss.
GRANTED_RANGES_MAX = 1024

#: What is counted, by name.
COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    "asked": "requests sent, of both kinds",
    "not_asked": "requests not sent: no connection, or too many under way",
    "cancelled": "requests that were cancelled",
    "accepted": "requests that the server accepted",
    "rejected": "requests that the server rejected",
    "answered": "requests of which every packet came",
    "packets": "retransmitted packets handed on",
    "late_packets": "retransmitted packets that no request waited for any more",
    "refresh_packets": "packets of snapshots handed on",
    "heartbeats": "heartbeats from the server, answered",
    "heartbeats_sent": "heartbeats sent because the server was silent",
    "cut_off": "connections that ended within a packet",
    "broken": "connections given up because of what the server sent, or did not send",
    "silent": "no sign of life from the server in time",
    "never_asked": "a response to a request that was never made",
    "answered_twice": "a second response to one request, or one to a request long forgotten",
    "never_sent": "far too many requests that the server accepted and sent no packets for",
    "wrong_answer_type": "a refresh response to a retransmission request, or the other way round",
    "wrong_service": "a response for another service than asked for",
    "wrong_source_id": "a response with another SourceID than ours",
    "wrong_flag": "a packet whose delivery flag is not that of a retransmission",
    "bad_messages": "a retransmitted packet whose messages do not fit it",
    **{name: f"a packet of a snapshot that {what}" for name, what in FAULTS.items()},
    "unasked_packet": "a packet outside every range that was accepted",
    "wrong_direction": "a packet that only a client, or only a line, may send",
}


@cython.cfunc
@cython.locals(at=cython.Py_ssize_t, low=cython.Py_ssize_t, high=cython.Py_ssize_t, flags=bytearray)
def _strike(flags: bytearray, low: int, high: int) -> int:
    """Clear `flags[low:high]` and return how many were set.

    A packet has few numbers, so a loop is quicker than slices.
    """
    struck = 0
    for at in range(low, high):
        if flags[at]:
            flags[at] = 0
            struck += 1
    return struck


@cython.final
@cython.cclass
class _Request:
    """One request and the state of its answer.

    Once it is accepted, `due` has a byte for each number of the range, 1 until the server has sent
    it. `wanted` has the same until the number is handed to the owner; `over`: the owner waits no
    more.
    """

    request_id: Readonly[object]
    service: Readonly[object]
    first: Readonly[object]
    end: Readonly[object]
    epoch: Readonly[object]
    refresh: Readonly[cython.bint]
    over: Readonly[cython.bint]
    due: Readonly[bytearray]
    wanted: Readonly[bytearray]
    due_count: Readonly[cython.Py_ssize_t]
    wanted_count: Readonly[cython.Py_ssize_t]

    def __init__(self, request: Ask | AskRefresh) -> None:
        self.request_id = request.request_id
        self.service = request.service
        self.refresh = isinstance(request, AskRefresh)
        self.over = False
        self.first = self.end = self.epoch = 0
        if isinstance(request, Ask):
            self.first, self.end, self.epoch = request.first, request.end, request.epoch
        self.due, self.due_count = bytearray(), 0
        self.wanted_count = self.end - self.first
        self.wanted = bytearray(b"\1") * self.wanted_count

    @cython.cfunc
    def accept(self) -> None:
        """Mark every number of the range as due: the server has accepted the request."""
        self.due_count = self.end - self.first
        self.due = bytearray(b"\1") * self.due_count

    @cython.returns(cython.bint)
    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def sent(self, first: int, end: int) -> bool:
        """Mark `first` to `end` - 1 as sent by the server; return False where none is new.

        The numbers must lie inside the range.
        """
        new = _strike(self.due, first - self.first, end - self.first)
        self.due_count -= new
        return new > 0

    @cython.returns(cython.bint)
    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def given(self, first: int, end: int) -> bool:
        """Mark the numbers among `first` to `end` - 1 that are in the range as handed to the owner.

        Returns False where the owner waits for none of them.
        """
        low, high = max(first, self.first) - self.first, min(end, self.end) - self.first
        new = _strike(self.wanted, low, high)
        self.wanted_count -= new
        return new > 0

    @cython.ccall
    def finish(self) -> None:
        """Mark the request as over: the owner waits no more."""
        self.over = True
        self.wanted = bytearray()


@cython.final
@cython.cclass
class RequestClient:
    """The client's end of successive connections to one server.

    `source_id` (printable ASCII, 1 to 20 characters) identifies us to the server; `counts` counts
    by the names of `COUNTS`.

    Raises `UsageError` for a feed without recovery over TCP, and for a SourceID that does not fit.
    """

    _feed: object
    _table: FeedTable
    _protocol: RecoveryProtocol
    _due_requests: cython.Py_ssize_t
    _heartbeat_ns: cython.longlong
    _dead_ns: cython.longlong
    _heard_ns: cython.longlong
    _probed_ns: cython.longlong
    _range_max: object
    _number: object
    _first_number: object
    _up: cython.bint
    source_id: Readonly[str]
    counts: Readonly[dict]
    _framer: StreamFramer
    _reader: RefreshReader
    _requests: dict
    _ids: dict
    _due: dict
    _granted: dict
    _epochs: dict
    _refreshing: set
    _output: bytearray

    def __init__(self, feed: Feed, source_id: str, settings: RecoverySettings) -> None:
        if not (source_id.isascii() and source_id.isprintable()) or source_id != source_id.strip():
            raise UsageError(f"SourceID {source_id!r} cannot be sent", "use plain ASCII")
        if not 1 <= len(source_id) <= SOURCE_ID_BYTES:
            raise UsageError(
                f"SourceID {source_id!r} has {len(source_id)} characters",
                f"it has 1 to {SOURCE_ID_BYTES}",
            )
        self._feed = feed
        self._table = feed.table
        self._protocol = RecoveryProtocol(feed)
        self._heartbeat_ns = settings.heartbeat_us * 1_000
        self._dead_ns = settings.dead_us * 1_000
        self._range_max = settings.request_packets_max
        self._reader = RefreshReader(feed, settings.inflated_bytes_max)
        self.source_id = source_id
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._number = 0
        self._up = False
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        """Reset everything that belongs to one connection."""
        self._framer = StreamFramer(self._feed, PACKET_BYTES_MAX)
        self._requests: dict[int, _Request] = {}
        self._ids: dict[int, _Request] = {}
        self._due: dict[int, list[_Request]] = {}
        self._due_requests = 0
        self._granted: dict[int, RangeSet] = {}
        #: By service, the sequence epoch of the request accepted last: that of the packets.
        self._epochs: dict[int, int] = {}
        self._first_number = self._number + 1
        self._refreshing: set[int] = set()
        self._output = bytearray()
        self._heard_ns = self._probed_ns = now_ns

    # -- the connection -------------------------------------------------------------------------

    def connected(self, now_ns: int) -> None:
        """Begin a new connection; nothing of an earlier one counts any more."""
        self._begin(now_ns)
        self._up = True

    def disconnected(self, now_ns: int) -> None:
        """End the connection, and every request with it."""
        if self._up and self._framer.buffered:
            self.counts["cut_off"] += 1
        self._up = False
        self._begin(now_ns)

    @property
    def up(self) -> bool:
        """Whether there is a connection whose server has not broken the protocol."""
        return self._up

    @property
    def outstanding(self) -> int:
        """The number of requests that the owner waits for."""
        return len(self._ids)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        if not self._up:
            return NEVER_NS
        return min(
            max(self._heard_ns, self._probed_ns) + self._heartbeat_ns,
            self._heard_ns + self._dead_ns,
        )

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        output = bytes(self._output)
        self._output.clear()
        return output

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request packets; return False (and count it) where there is no connection or no room.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        if not 0 < request.end - request.first <= self._range_max:
            raise UsageError(
                f"a request for {request.end - request.first} packets",
                f"ask for 1 to {self._range_max}",
            )
        return self._ask(request, now_ns)

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot; return False (and count it) where there is no connection or no room.

        Raises `UsageError` for a `request_id` that is under way.
        """
        return self._ask(request, now_ns)

    @cython.locals(now_ns=cython.longlong)
    @cython.returns(cython.bint)
    def _ask(self, request: Ask | AskRefresh, now_ns: int) -> bool:
        if request.request_id in self._ids:
            raise UsageError(f"request {request.request_id} is under way", "use a new number")
        if not self._up or not self._make_room():
            self.counts["not_asked"] += 1
            return False
        number = self._number % 0xFFFF_FFFF + 1
        who, service = self.source_id, request.service
        if isinstance(request, Ask):
            wanted = RetransRequest(number, service, request.first, request.end, who)
            packet = self._protocol.retrans_request(wanted, now_ns)
        else:
            packet = self._protocol.refresh_request(RefreshRequest(number, service, who), now_ns)
        self._number = number
        self._requests[number] = self._ids[request.request_id] = _Request(request)
        self._output += packet
        self.counts["asked"] += 1
        return True

    @cython.returns(cython.bint)
    def _make_room(self) -> bool:
        """Return whether there is room for a request; forgets the oldest cancelled one for it."""
        if len(self._ids) >= REQUESTS_MAX:
            return False
        if len(self._requests) >= REQUESTS_MAX:
            del self._requests[next(n for n, known in self._requests.items() if known.over)]
        return True

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        known = self._ids.pop(request_id, None)
        if known is not None:
            known.finish()
            self.counts["cancelled"] += 1

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: send heartbeats to a silent server, then give it up."""
        if not self._up or now_ns < self.deadline_ns:
            return []
        if now_ns >= self._heard_ns + self._dead_ns:
            silent_ms = (now_ns - self._heard_ns) // 1_000_000
            return [self._break("silent", f"the server was silent for {silent_ms} ms")]
        self._output += self._protocol.heartbeat(now_ns)
        self._probed_ns = now_ns
        self.counts["heartbeats_sent"] += 1
        return []

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in received bytes and return their events; after `Broken` everything is ignored."""
        if not self._up or not data:
            return []
        self._heard_ns = now_ns
        events: list[Event] = []
        try:
            for packet in self._framer.feed(data):
                self._packet(packet, now_ns, events)
            if self._framer.failure is not None:
                raise self._framer.failure
        except WireError as error:
            events.append(self._break(error.name, f"the server sent {error.message}"))
        return events

    def _break(self, name: str, reason: str) -> Broken:
        self.counts[name] += 1
        self.counts["broken"] += 1
        self._up = False
        return Broken(reason)

    @cython.locals(packet=bytes, now_ns=cython.longlong, events=list)
    @cython.cfunc
    def _packet(self, packet: bytes, now_ns: int, events: list[Event]) -> None:
        """Append the events of one packet to `events`. Raises `WireError` for a wrong one."""
        if self._protocol.open(packet) == DATA:
            self._data(packet, events)
            return
        frame: Frame = self._protocol.meaning(packet)
        if isinstance(frame, Response):
            self._response(frame, events)
        elif isinstance(frame, Heartbeat):
            self.counts["heartbeats"] += 1
            self._output += self._protocol.heartbeat_reply(self.source_id, now_ns)
        elif isinstance(frame, HeartbeatReply):
            # A server need not know who we are before the first request.
            if frame.source_id not in ("", self.source_id):
                raise WireError("wrong_source_id", f"an answer for {frame.source_id!r}")
        else:
            raise WireError("wrong_direction", "a packet that no server may send")

    # -- responses ------------------------------------------------------------------------------

    @cython.locals(events=list, known=_Request)
    @cython.cfunc
    def _response(self, response: Response, events: list[Event]) -> None:
        known = self._judge(response)
        del self._requests[response.number]
        accepted = response.reason == 0
        if accepted and known.refresh:
            self._refreshing.add(known.service)
        elif accepted:
            self._grant(known)
        if known.over:
            return
        self.counts["accepted" if accepted else "rejected"] += 1
        if known.refresh or not accepted:
            self._finish(known)
        request_id = known.request_id
        if accepted:
            events.append(RefreshAccepted(request_id) if known.refresh else Accepted(request_id))
        elif known.refresh:
            events.append(RefreshRejected(request_id, response.reason))
        else:
            events.append(Rejected(request_id, response.reason))

    @cython.locals(known=_Request)
    @cython.returns(_Request)
    @cython.cfunc
    def _judge(self, response: Response) -> _Request:
        """Return the request that a response answers. Raises `WireError` for a wrong response."""
        number = response.number
        known = self._requests.get(number)
        if response.source_id != self.source_id:
            raise WireError("wrong_source_id", f"an answer for {response.source_id!r}")
        if known is None:
            if self._first_number <= number <= self._number:
                raise WireError("answered_twice", f"another answer to request {number}")
            raise WireError("never_asked", f"an answer to request {number}, which was never made")
        if known.refresh != response.refresh:
            raise WireError("wrong_answer_type", "an answer of the wrong kind")
        if known.service != response.service:
            raise WireError(
                "wrong_service",
                f"an answer for service {response.service}, asked for {known.service}",
            )
        return known

    @cython.locals(known=_Request, granted=RangeSet)
    @cython.cfunc
    def _grant(self, known: _Request) -> None:
        """Record that the server has promised the packets of a request.

        Raises `WireError` where too many accepted requests wait for packets.
        """
        if self._due_requests >= REQUESTS_MAX:
            raise WireError("never_sent", f"no packets for {REQUESTS_MAX} requests it accepted")
        known.accept()
        service = known.service
        due = self._due.setdefault(service, [])
        if self._epochs.get(service) != known.epoch:
            # What is still due of another epoch would take this one's packets of the same numbers.
            self._due_requests -= len(due)
            due.clear()
        self._epochs[service] = known.epoch
        due.append(known)
        self._due_requests += 1
        granted = self._granted.get(service)
        if granted is None:
            granted = RangeSet(limit=GRANTED_RANGES_MAX, only_grows=True)
            self._granted[service] = granted
        granted.add(known.first, known.end - 1)

    @cython.locals(known=_Request)
    @cython.cfunc
    def _finish(self, known: _Request) -> None:
        known.finish()
        self._ids.pop(known.request_id, None)

    # -- packets --------------------------------------------------------------------------------

    @cython.locals(packet=bytes, events=list, header=PacketHeader, known=_Request)
    @cython.cfunc
    def _data(self, packet: bytes, events: list[Event]) -> None:
        """Handle a packet with messages, whose header the protocol has just read.

        Raises `WireError` where it was not requested or does not fit.
        """
        header = self._protocol.header
        service, first, end = header.service, header.sequence, header.next_sequence
        if header.flags == REFRESH:
            if service not in self._refreshing:
                raise _unasked(f"a refresh of service {service}")
            self._check_refresh(packet)
            self.counts["refresh_packets"] += 1
            events.append(RefreshPacket(service, first, packet))
            return
        if header.flags != RETRANSMITTED:
            raise WireError("wrong_flag", f"a packet with delivery flag {header.flags}")
        self._note_sent(service, first, end)
        self._check(packet)
        late = True
        epoch = self._epochs.get(service)
        for known in list(self._ids.values()):
            if known.service != service or first >= known.end or end <= known.first:
                continue
            if known.epoch != epoch:
                continue
            if not known.given(first, end):
                continue
            late = False
            self.counts["packets"] += 1
            events.append(Packet(known.request_id, service, first, end, packet))
            if known.wanted_count == 0:
                self.counts["answered"] += 1
                self._finish(known)
                events.append(Answered(known.request_id))
        self.counts["late_packets"] += late

    @cython.locals(known=_Request, granted=RangeSet)
    @cython.cfunc
    def _note_sent(self, service: int, first: int, end: int) -> None:
        """Mark the numbers as sent for the request accepted earliest that they are due for.

        A server answers in order: what those before it still lack was cut short, and is not
        waited for. Numbers sent a second time, or out of that order, are allowed. Raises
        `WireError` where no accepted range holds them.
        """
        due = self._due.get(service, [])
        for index, known in enumerate(due):
            if known.first <= first and end <= known.end and known.sent(first, end):
                over = index + (known.due_count == 0)
                if over:
                    del due[:over]
                    self._due_requests -= over
                return
        granted = self._granted.get(service)
        if granted is not None and granted.covers(first, end - 1):
            return  # sent twice
        raise _unasked(f"packet {first} of service {service}")

    @cython.locals(packet=bytes)
    @cython.cfunc
    def _check_refresh(self, packet: bytes) -> None:
        """Check that a snapshot's packet can be read. Raises `WireError` where not."""
        reader = self._reader
        reader.read(packet)
        if reader.fault:
            raise WireError(reader.fault, f"a packet of a snapshot that {FAULTS[reader.fault]}")

    @cython.locals(packet=bytes)
    @cython.cfunc
    def _check(self, packet: bytes) -> None:
        """Check the messages of the packet just read. Raises `WireError` for wrong ones."""
        verdict = check_messages(self._table, packet, 0, self._protocol.header)
        if verdict:
            raise WireError(
                "bad_messages", f"a packet that does not fit: {REJECT_TEXT[Reject(verdict)]}"
            )


def _unasked(what: str) -> WireError:
    return WireError("unasked_packet", f"{what}, which was not asked for")
