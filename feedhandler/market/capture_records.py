"""Normalised records of a capture's packets, of each packet its first copy.

Packets are taken in the order of the capture: one whose number came before is passed over. After
numbers that did not come in order the records of that channel say that its books may be wrong
(FLAG_MAYBE_BAD_BOOK), until new numbers begin: with a new session, or with a reset on a line that
had brought the reset before. A reset behind other packets, and a further session, empties the
channel's books, as in a gateway: one clear event (action R) of instrument 0.

Compressed packets on a line that has brought no others are those of a refresh line: snapshots under
numbers of their own. They, and the resets on that line, say nothing that the live lines did not,
and are passed over. On a live line they are inflated, and are packets as all others.
"""

import datetime
from typing import Any

import numpy

from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.records import Records

Array = numpy.ndarray[Any, Any]
#: A line whose numbers fall back by more than this was not merely reordered.
REORDERED_MAX = 1_000
#: Where a datagram was sent to: group and port.
Line = tuple[str, int]


class _Numbers:
    """The numbers of one channel and session: what comes next, and whether something is missing."""

    def __init__(self) -> None:
        self.following: int | None = None
        self.has_gap = False
        #: Whether data of the session came before.
        self.has_begun = False
        #: The lines that have brought the reset with which the numbers began.
        self.reset_by: set[Line] = set()
        #: The last number that each line brought.
        self.reached: dict[Line, int] = {}

    def reset(self, line: Line, following: int) -> bool:
        """Take a reset; return whether it begins new numbers, or is another line's copy."""
        if self.reset_by and line not in self.reset_by:
            self.reset_by.add(line)
            return False
        self.following, self.has_gap, self.reset_by = following, False, {line}
        return True

    def falls_back(self, line: Line, first: int) -> bool:
        """Note a line's number; return whether it is far below the one before."""
        before, self.reached[line] = self.reached.get(line, first), first
        return first < before - REORDERED_MAX

    def advance(self, first: int, following: int) -> bool:
        """Take a data packet; return whether it is new."""
        if self.following is not None and first < self.following:
            return False
        self.has_gap |= self.following is not None and first > self.following
        self.following = following
        return True


class CaptureRecords:
    """Records of `schemas` (`codecs.dbn.SCHEMAS`), made of a capture's datagrams.

    `day` is the trading day; None: that of each datagram's own time. `rejected` are other feeds'
    datagrams, `copies` packets that had come before, of `packets`; `first_ns` and `last_ns` are the
    earliest and the latest time of a datagram. `fallen_back` counts packets passed over whose
    line's numbers had fallen far back: old packets that were sent again, or numbers that began anew
    without a word; `refreshes` those of refresh lines. Raises `UsageError` for a feed without
    books.
    """

    def __init__(self, feed: Feed, *schemas: str, day: datetime.date | None = None) -> None:
        self.records = Records(feed, *schemas, name_of=self._name_of)
        self.schemas = schemas
        self.rejected = self.copies = self.fallen_back = self.packets = self.refreshes = 0
        self.first_ns = self.last_ns = 0
        self.day: datetime.date | None = None
        self._feed = feed
        self._follows_days = day is None
        self._known = ReferenceData(feed)
        self._numbers: dict[tuple[int, int], _Numbers] = {}
        #: The session of each line's latest data, by channel.
        self._sessions: dict[tuple[int, Line], int] = {}
        self._refresh_lines: set[Line] = set()
        if day is not None:
            self._set_day(day)

    def _set_day(self, day: datetime.date) -> None:
        self.day = day
        self.records.normaliser.set_day(day)

    def day_of(self, time_ns: int) -> datetime.date:
        """Return the trading day of a datagram that was captured then."""
        if self._follows_days or self.day is None:
            return self._feed.trading_day.of(time_ns)
        return self.day

    def add(self, payload: bytes, time_ns: int, line: Line, channel: int | None = None) -> None:
        """Take one datagram: when it was captured (ns since 1970), and where it was sent to.

        `channel` distinguishes channels whose packets name no service; None: packets do.
        """
        day = self.day_of(time_ns)
        if day != self.day:
            self._set_day(day)
        self.first_ns = min(self.first_ns or time_ns, time_ns)
        self.last_ns = max(self.last_ns, time_ns)
        try:
            try:
                self._scan(payload, time_ns, line, channel)
            except BadPacket as error:
                if error.reason is not Reject.COMPRESSED or self._feed.table.several:
                    raise
                self._inflate(payload, time_ns, line, channel)
        except BadPacket:
            self.rejected += 1

    def _scan(self, payload: bytes, time_ns: int, line: Line, channel: int | None) -> None:
        for begin, header, index in self._feed.scanned(payload):
            self.packets += 1
            if header.kind == PacketKind.RESET and line in self._refresh_lines:
                self.refreshes += 1
            elif self._is_new(time_ns, line, channel, header):
                self._packet(payload, time_ns, begin, header, index)
            else:
                self.copies += 1

    def _inflate(self, payload: bytes, time_ns: int, line: Line, channel: int | None) -> None:
        """Take a compressed packet: of a live line as any other, else as a refresh line's."""
        plain = self._feed.inflated(payload)
        if line not in self._refresh_lines:
            is_live = any(line in numbers.reached for numbers in self._numbers.values())
            if is_live:
                self._scan(plain, time_ns, line, channel)
                return
            self._refresh_lines.add(line)
        self.packets += 1
        self.refreshes += 1

    def _is_new(self, time_ns: int, line: Line, channel: int | None, header: Any) -> bool:
        """Return whether a packet is no copy; set what its records say of the books."""
        stream = header.service if channel is None else channel
        numbers = self._numbers.setdefault((stream, header.session), _Numbers())
        is_new = True
        if header.kind == PacketKind.RESET:
            has_books = numbers.following is not None
            is_new = numbers.reset(line, header.next_sequence)
            if is_new and has_books:
                self.records.empty(header.service, time_ns)
        elif header.kind == PacketKind.DATA:
            fell_back = numbers.falls_back(line, header.sequence)
            is_new = numbers.advance(header.sequence, header.next_sequence)
            if self._begins_session(stream, line, header.session, numbers):
                self.records.empty(header.service, time_ns)
            self.fallen_back += fell_back and not is_new
        self.records.normaliser.maybe_bad = numbers.has_gap
        return is_new

    def _begins_session(self, stream: int, line: Line, session: int, numbers: _Numbers) -> bool:
        """Note the session of a line's data; return whether it is the first line of a channel to
        come from another one, whose orders are gone. Other lines may have sessions of their own."""
        before = self._sessions.get((stream, line), session)
        self._sessions[stream, line] = session
        begins = before != session and not numbers.has_begun
        numbers.has_begun = True
        return begins

    def _packet(self, data: bytes, time_ns: int, begin: int, header: Any, index: Any) -> None:
        sent_ns = self._feed.send_time_ns(header.send_time, self._feed.midnights(self.day))
        self._known.learn_packet(data, begin, index)
        sent_ns = UNDEFINED_TIME if sent_ns is None else sent_ns
        self.records.apply_packet(data, begin, index, 0, sent_ns, time_ns, header.service)

    def pop(self) -> list[Array]:
        """Return the records since the last call, an array a schema."""
        made = [self.records.of(schema).copy() for schema in self.schemas]
        self.records.clear()
        return made

    def _name_of(self, instrument: int) -> str:
        symbol = self.records.normaliser.symbol_of(instrument)
        return self._known.names.get(symbol) or self.records.normaliser.text_of(symbol)

    def names(self) -> dict[int, str]:
        """Return the symbols' names by instrument id, as far as they are known."""
        numbers = self.records.normaliser.instrument_ids()
        if not numbers:
            return {symbol & 0xFFFF_FFFF: name for symbol, name in self._known.names.items()}
        names = {
            number: self._known.names.get(symbol)
            or self.records.normaliser.texts.get(symbol)
            or self._feed.symbol_name(symbol)
            for symbol, number in numbers.items()
        }
        return {number: name for number, name in names.items() if name}
