"""Requests that are answered by multicast lines: what was asked for, and what of it has come.

A server takes requests over a connection and sends the packets on retransmission lines, for all
that listen: what others asked for comes by as well, packed as the server likes, twice where there
are two such lines, and at times before the server's own word that it accepts the request. So
`LineAnswers` hands on what a request waits for, cut to that, each number once a request; the rest
is counted by name and ignored. What a server says it has no longer is not waited for.

Answers to the asker alone that are packed as the server likes (`iex_tp`) are much the same.

Sans-IO; each client (`nyse_xdp`, `cboe_grp`, `iex_tp`) has one, and gives it what its server says.
"""

from dataclasses import dataclass

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Event, Packet, Rejected
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.packet_reading import is_whole
from feedhandler.retrans.protocol import RetransReject
from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.requesting import UnderWay

#: What is counted, by name.
COUNTS: dict[str, str] = {
    "asked": "requests sent, of all kinds",
    "not_asked": "requests not sent: no connection, or too many under way",
    "cancelled": "requests that were cancelled",
    "accepted": "requests that the server accepted",
    "rejected": "requests that the server rejected",
    "answered": "requests of which every message came",
    "unavailable": "requests of which the server has something no longer",
    "packets": "retransmitted packets, or parts of them, handed on",
    "others_packets": "packets of retransmission lines that no request waits for",
    "bad_packets": "datagrams of retransmission lines that are no packet of the feed",
}


@dataclass(slots=True)
class _Asked:
    """A request that the owner waits for; `gone` is what of `missing` will not come."""

    request_id: int
    service: int
    missing: RangeSet
    gone: RangeSet
    accepted: bool = False


class LineAnswers(UnderWay[_Asked]):
    """The requests of one client; `counts` counts by the names of `COUNTS`.

    `range_max`: most numbers of one request; `cutter`: what cuts packets, where their headers need
    more than the feed's own. Raises `UsageError` for a feed whose packets cannot be cut.
    """

    def __init__(
        self, feed: Feed, counts: dict[str, int], range_max: int, cutter: PacketCutter | None = None
    ) -> None:
        super().__init__(counts, range_max)
        self._table = feed.table
        self._cutter = cutter or PacketCutter(feed)
        #: The header of the datagram just read.
        self.header = PacketHeader()

    def add(self, request: Ask) -> None:
        """Wait for the packets of a request that is sent."""
        missing = RangeSet([(request.first, request.end - 1)])
        self[request.request_id] = _Asked(request.request_id, request.service, missing, RangeSet())
        self.counts["asked"] += 1

    # -- what the server says -------------------------------------------------------------------

    def accept(self, request_id: int, events: list[Event]) -> None:
        """Note that the server accepts a request; reported once, whatever comes first."""
        asked = self.get(request_id)
        if asked is not None:
            self._accept(asked, events)

    def reject(self, request_id: int, reason: RetransReject, events: list[Event]) -> None:
        """Note that the server rejects a request."""
        if self.pop(request_id, None) is not None:
            self.counts["rejected"] += 1
            events.append(Rejected(request_id, reason))

    def end(self, request_id: int, events: list[Event]) -> None:
        """End a request that the server will not answer now: what it lacks is to be asked again."""
        if self.pop(request_id, None) is not None:
            events.append(Answered(request_id))

    # -- what the lines bring -------------------------------------------------------------------

    def read(self, data: bytes) -> bool:
        """Read a datagram's `header` and walk its messages; return whether all is well.

        One that is not is counted.
        """
        whole = is_whole(self._table, data, self.header)
        self.counts["bad_packets"] += not whole
        return whole

    def packet(self, service: int, data: bytes) -> list[Event]:
        """Hand the packet just read to the requests that wait for numbers of it."""
        first, end = self.header.sequence, self.header.next_sequence
        events: list[Event] = []
        for asked in list(self.values()):
            if asked.service == service and asked.missing.touches(first, end - 1):
                self._hand(asked, first, end, data, events)
        self.counts["others_packets"] += not events
        return events

    def unavailable(self, service: int, first: int, end: int) -> list[Event]:
        """Note that the server does not have `first` to `end` - 1, or has them no longer."""
        events: list[Event] = []
        for asked in list(self.values()):
            if asked.service == service:
                for low, high in asked.missing.within(first, end - 1):
                    asked.gone.add(low, high)
                self._settle(asked, events)
        return events

    def _accept(self, asked: _Asked, events: list[Event]) -> None:
        if not asked.accepted:
            asked.accepted = True
            self.counts["accepted"] += 1
            events.append(Accepted(asked.request_id))

    def _hand(self, asked: _Asked, first: int, end: int, data: bytes, events: list[Event]) -> None:
        self._accept(asked, events)
        for low, high in asked.missing.within(first, end - 1):
            whole = (low, high + 1) == (first, end)
            part = data if whole else self._cutter.cut(data, low, high + 1)
            self.counts["packets"] += 1
            events.append(Packet(asked.request_id, asked.service, low, high + 1, part))
        asked.missing.discard(first, end - 1)
        asked.gone.discard(first, end - 1)
        self._settle(asked, events)

    def _settle(self, asked: _Asked, events: list[Event]) -> None:
        """End a request that nothing more will come of."""
        if not asked.missing:
            self.counts["answered"] += 1
            events.append(Answered(asked.request_id))
        elif asked.gone.total == asked.missing.total:
            self.counts["unavailable"] += 1
            events.append(Rejected(asked.request_id, RetransReject.NO_LONGER_AVAILABLE))
        else:
            return
        del self[asked.request_id]
