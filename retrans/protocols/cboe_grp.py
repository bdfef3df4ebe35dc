"""Cboe's Gap Request Proxy: messages by number, asked for over TCP, answered by multicast lines.

A gap request (type 3) names unit, first number and count; the response (type 4) repeats them with
a status. The messages come by the unit's gap response lines, in sequenced units with their own
numbers; heartbeats there carry number 0. (Cboe US Equities/Options Multicast PITCH Specification
2.41, Gap Request Proxy Messages.) Login and heartbeats are `cboe_session`'s.

Some refusals are for the moment: too many requests in this second or minute, a unit that is
unavailable now. Then the request ends without its messages, and recovery asks again after a
back-off. "Out of range" means ahead of what was sent, or too far behind: since nobody knows
which, it is taken for messages that are not to be had, which disproves nothing.

A response says of a gap what it says of each request for the same one, the first first.

Sans-IO; `retrans.protocols.setup` says what both must do.
"""

import struct
from collections import deque

from feedhandler.codecs.kinds import DATA
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Event
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.protocol import NEVER_NS, RetransReject, WireError
from feedhandler.retrans.protocols import cboe_session, line_answers
from feedhandler.retrans.protocols.cboe_session import (
    CboeClient,
    CboeServer,
    CboeSession,
    check_units,
    exactly,
    unit_of,
)
from feedhandler.retrans.protocols.line_answers import LineAnswers
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.requesting import REQUESTS_MAX
from feedhandler.retrans.server import DailyQuota
from feedhandler.retrans.serving import PacketsOwed

#: Messages: length, type, unit, sequence number, count; and a status.
GAP_REQUEST = struct.Struct("<BBBIH")
GAP_RESPONSE = struct.Struct("<BBBIHc")
#: Message types.
REQUESTS, RESPONDS = 0x03, 0x04
#: The greatest count of a request, and the greatest sequence number.
COUNT_MAX, SEQUENCE_MAX = 65_535, 0xFFFF_FFFF
#: Most answers that wait to go out for one client.
ANSWERS_WAITING_MAX = 4096

#: Status of a response: accepted; and those that hold for the moment only.
ACCEPTED = b"A"
MINUTE_EXHAUSTED, SECOND_EXHAUSTED, UNIT_UNAVAILABLE = b"M", b"S", b"U"
NOT_NOW = (MINUTE_EXHAUSTED, SECOND_EXHAUSTED, UNIT_UNAVAILABLE)
OUT_OF_RANGE, DAY_EXHAUSTED, COUNT_EXCEEDED, INVALID_UNIT = b"O", b"D", b"C", b"I"
#: What the others are to recovery.
STATUS: dict[bytes, RetransReject] = {
    OUT_OF_RANGE: RetransReject.NO_LONGER_AVAILABLE,
    DAY_EXHAUSTED: RetransReject.TOO_MANY_TODAY,
    COUNT_EXCEEDED: RetransReject.OVER_THRESHOLD,
    INVALID_UNIT: RetransReject.WRONG_SERVICE,
}

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    **cboe_session.COUNTS,
    **line_answers.COUNTS,
    "not_now": "requests that the server will not answer at the moment",
    "line_heartbeats": "heartbeats on retransmission lines",
    "wrong_unit": "packets of retransmission lines of another unit than the line's",
    "never_asked": "a response to a request that was never made, or to one long forgotten",
    "not_answered": "requests forgotten because no response came for so many",
}
#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    **cboe_session.SERVER_COUNTS,
    "too_many_waiting": "connections closed because too many answers waited",
    "requests": "gap requests",
    "accepted": "gap requests accepted",
    "rejected": "gap requests rejected",
    "cut_short": "answers cut short because the messages had left the window meanwhile",
    "packets": "packets put on the retransmission lines",
    "bytes": "bytes of them",
}


class GrpClient(CboeClient):
    """The client of a Gap Request Proxy, for any number of units.

    Raises `UsageError` for a feed of another framing, services that are no units, and credentials
    that do not fit.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_units([each.service for each in setup.retransmission])
        range_max = min(setup.settings.request_packets_max, COUNT_MAX)
        counts = dict.fromkeys(COUNTS, 0)
        self._answers = LineAnswers(setup.feed, counts, range_max)
        super().__init__(setup, counts)
        self._requests = self._answers

    def _begun(self) -> None:
        #: Requests without a response, by (unit, first number, count), those for the same in order.
        self._sent: dict[tuple[int, int, int], deque[int]] = {}
        self._sent_count = 0
        self._answers.clear()

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request messages; return False (and count it) where there is no connection or no room.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        room = self._answers.check(request)
        if not room or not self._up or request.end - 1 > SEQUENCE_MAX:
            self.counts["not_asked"] += 1
            return False
        self._forget_oldest()
        self._answers.add(request)
        gap = (request.service, request.first, request.end - request.first)
        self._sent.setdefault(gap, deque()).append(request.request_id)
        self._sent_count += 1
        self.say(GAP_REQUEST.pack(GAP_REQUEST.size, REQUESTS, *gap), request.service)
        self._owes(now_ns)
        return True

    def _forget_oldest(self) -> None:
        """Make room for a request: a server that is so far behind answers others first."""
        while self._sent_count >= REQUESTS_MAX:
            gap = next(iter(self._sent))
            self._sent_count -= len(self._sent.pop(gap))
            self.counts["not_answered"] += 1

    # -- responses, and what the lines bring ----------------------------------------------------

    def _message(self, code: int, message: bytes, now_ns: int, events: list[Event]) -> None:
        if code != RESPONDS:
            raise WireError("wrong_direction", f"message {code:#04x}, which no proxy may send")
        unit, first, count, status = exactly(GAP_RESPONSE, message)
        waiting = self._sent.get((unit, first, count))
        if waiting is None:
            raise WireError("never_asked", f"a response about {count} messages from {first}")
        if status != ACCEPTED and status not in STATUS and status not in NOT_NOW:
            raise WireError("malformed_answer", f"a response with status {status!r}")
        request_id = waiting.popleft()
        self._sent_count -= 1
        if not waiting:
            del self._sent[unit, first, count]
        self._paid(now_ns, bool(self._sent))
        if status == ACCEPTED:
            self._answers.accept(request_id, events)
        elif status in STATUS:
            self._answers.reject(request_id, STATUS[status], events)
        else:
            self.counts["not_now"] += request_id in self._answers
            self._answers.end(request_id, events)

    def datagram(self, service: int, data: bytes, now_ns: int) -> list[Event]:
        """Take in a datagram of a unit's retransmission lines and return its events."""
        answers = self._answers
        if not self._up or not answers.read(data):
            return []
        header = answers.header
        if not header.count:
            self.counts["line_heartbeats"] += 1
            return []
        if header.service != service or header.kind != DATA:
            self.counts["wrong_unit" if header.kind == DATA else "others_packets"] += 1
            return []
        return answers.packet(service, data)


class GrpServer(CboeServer):
    """A Gap Request Proxy for units; `counts` counts by the names of `SERVER_COUNTS`."""

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup, SERVER_COUNTS)
        self.cutter = PacketCutter(setup.feed)
        self.quota = DailyQuota(setup.settings.requests_per_day)

    def session(self, peer: str, now_ns: int) -> CboeSession:
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(GrpSession(self, now_ns))

    def judge(self, username: str, unit: int, first: int, count: int, now_ns: int) -> bytes:
        """Return the status of a request; counts it for the day."""
        store = self.setup.stores.get(unit)
        if store is None:
            return INVALID_UNIT
        if not 0 < count <= self.settings.request_packets_max:
            return COUNT_EXCEEDED
        if not self.quota.try_acquire(username, self.setup.feed.trading_day.since_ns(now_ns)):
            return DAY_EXHAUSTED
        return ACCEPTED if store.covers(first, first + count) else OUT_OF_RANGE

    def retransmit(self, answer: PacketsOwed, room: int) -> int:
        """Put packets of an answer on the lines, about `room` bytes; return how many bytes."""
        store, used = answer.store, 0
        if not (answer.same and store.covers(answer.at, answer.end)):
            self.counts["cut_short"] += 1
            answer.at = answer.end
        for _, end, packet in store.packets(answer.at, answer.end):
            if used >= room:
                break
            end = min(end, answer.end)
            cut = self.cutter.cut(packet, answer.at, end)
            self.setup.retransmit(answer.service, cut)
            self.counts["packets"] += 1
            self.counts["bytes"] += len(cut)
            used += len(cut)
            answer.at = end
        return used


class GrpSession(CboeSession):
    """A client of a Gap Request Proxy."""

    _server: GrpServer

    def __init__(self, server: GrpServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self._answers: deque[PacketsOwed] = deque()

    def _due_ns(self) -> int:
        return self._now_ns if self._answers else NEVER_NS

    def _tick(self, now_ns: int) -> bytes:
        room = self._server.settings.chunk_bytes
        while self._answers and room > 0:
            answer = self._answers[0]
            room -= self._server.retransmit(answer, room)
            if answer.at >= answer.end:
                self._answers.popleft()
        return b""

    def _message(self, code: int, message: bytes, now_ns: int) -> bytes:
        if code != REQUESTS:
            raise WireError("wrong_direction", f"message {code:#04x}, which no client may send")
        assert self.name is not None
        unit, first, count = exactly(GAP_REQUEST, message)
        counts = self._server.counts
        counts["requests"] += 1
        status = self._server.judge(self.name[1], unit, first, count, now_ns)
        counts["accepted" if status == ACCEPTED else "rejected"] += 1
        if status == ACCEPTED:
            if len(self._answers) >= ANSWERS_WAITING_MAX:
                raise WireError("too_many_waiting", "requests faster than the lines take them")
            store = self._server.setup.stores[unit]
            self._answers.append(PacketsOwed(store, first, first + count, unit))
        return unit_of(
            GAP_RESPONSE.pack(GAP_RESPONSE.size, RESPONDS, unit, first, count, status), unit=unit
        )
