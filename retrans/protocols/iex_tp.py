"""IEX-TP gap fill: messages by number over UDP, answered by segments to the asker alone.

A gap fill request has a header (version, request type, message protocol id, channel id, session
id, number of ranges) and so many ranges, each a first and a last number, both inclusive. The answer
is one or more outbound segments, laid out as those of the lines. Ranges of one request ascend and
do not overlap; a request that breaks a rule is ignored. One without ranges is a test: the answer is
a segment without messages that has the next message's number and the next byte's offset. IEX's own
servers take ranges of sequence numbers alone, and give at most 1,000 messages for one request over
UDP. (IEX Transport Specification 1.25, Unicast Gap Fill and Gap Fill Request; IEX Trading Alert
2016-059 on tests and validation; TOPS and DEEP Specifications, Unicast Gap Fill Details.)

Not held against a server of IEX: that the number of ranges has four bytes, and that request type 1
means sequence numbers and 0 stream offsets. The order and sizes of the other fields are those that
public readers of the protocol agree on.

**The client** asks for one range a request. It believes only a segment that the feed's scanner
finds whole, of a channel that it asks for and of that channel's present session, and hands on what
a request waits for, each number once (`line_answers`), with the stream offset of what it cut off
put right. Anything else is counted by name and ignored: over UDP any host can send anything. Since
what a server does not have it leaves unanswered, silence alone means nothing: a server that has
owed something for `heartbeat_us` is sent a test, and given up (`Broken`) only where it has shown no
sign of life for `dead_us`. Time-outs of single requests are recovery's own. A request names the
session, which only the stream gives: until a packet was published, nothing can be asked
(`no_session`).

**The server** answers from its stores, with segments that hold what was asked and no more.

Gap fill over TCP has the same messages, but a connection takes ascending ranges only, which is not
how losses are asked for again; it is not offered here.

Sans-IO: a datagram and the time are arguments. `retrans.protocols.setup` says what both must do.
"""

import struct
from collections.abc import Callable, Iterator

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import DATA
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Event
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.protocols import line_answers
from feedhandler.retrans.protocols.line_answers import LineAnswers
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.requesting import DatagramClient
from feedhandler.retrans.serving import DatagramServer
from feedhandler.retrans.store import PacketStore

#: Version, request type, message protocol id, channel id, session id, number of ranges.
REQUEST = struct.Struct("<BBHIII")
#: First and last number.
RANGE = struct.Struct("<qq")
VERSION = 1
#: Request types.
STREAM_OFFSETS, SEQUENCE_NUMBERS = 0, 1
#: Header of a segment: version, message protocol id, channel id, session id, payload length,
#: message count, stream offset, first message's number, send time.
SEGMENT = struct.Struct("<BxHIIHHqqq")
#: Message protocol id, channel id and session id in a segment's header.
STREAM_PLACE = slice(2, 12)
#: Stream offset in it.
OFFSET_PLACE = slice(16, 24)
#: The greatest number of a range.
NUMBER_MAX = (1 << 63) - 1
#: Most ranges of one request that a server reads.
RANGES_MAX = 64
#: Most bytes of an answer's segment, so that no network cuts it up.
DATAGRAM_BYTES_MAX = 1_400

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    **line_answers.COUNTS,
    "no_session": "requests not sent: the stream has not given its session yet",
    "wrong_session": "packets of another session than asked about",
    "wrong_channel": "packets of a channel that this server is not asked for",
    "tests": "gap fill tests sent, to see whether a server that owes something is there",
    "tests_answered": "segments without messages that came from the server",
    "silent": "no answer from the server in time",
    "broken": "servers given up because of what they did not send",
}
#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    "clients": "clients that came",
    "clients_refused": "clients beyond the bound",
    "requests": "requests that could be read",
    "tests": "of those, tests",
    "badly_formed": "datagrams that are no request, or whose ranges do not ascend",
    "wrong_type": "requests of stream offsets",
    "wrong_session": "requests of a channel or session that is not served",
    "not_yet": "ranges of numbers that were not sent yet",
    "gone": "ranges of numbers that are no longer held",
    "too_many_waiting": "answers cut short because too many segments waited",
    "packets": "segments sent in answer to ranges",
    "messages": "messages in them",
    "bytes": "bytes of them",
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets are IEX-TP's segments. Raises `UsageError`."""
    table = feed.table
    offsets = (table.service_at, table.session_at, table.length_at, table.count_at)
    sizes = (table.service_size, table.session_size, table.length_size, table.count_size)
    number = (table.sequence_at, table.sequence_size, table.header_size, table.length_add)
    wrong = table.big_endian or not feed.counts_messages
    if offsets != (4, 8, 12, 14) or sizes != (4, 4, 2, 2) or number != (24, 8, 40, 40) or wrong:
        raise UsageError(f"{feed.name} has no IEX-TP segments", 'include = "shared/iex-tp.toml"')


class SegmentCutter(PacketCutter):
    """Cuts segments; the stream offset is that of the first message that is left."""

    def cut(self, packet: bytes, first: int, end: int) -> bytes:
        """Return the segment with its messages of the numbers `first` to `end` - 1 alone."""
        cut = bytearray(super().cut(packet, first, end))
        begin = SEGMENT.unpack_from(packet)[7]
        spans = self._feed.message_spans(packet)
        start = next(at for index, (at, _, _) in enumerate(spans) if index == first - begin)
        offset = int.from_bytes(packet[OFFSET_PLACE], "little") + start - SEGMENT.size
        cut[OFFSET_PLACE] = offset.to_bytes(8, "little")
        return bytes(cut)


class GapFillClient(DatagramClient):
    """The client of a gap fill server, for any number of channels.

    `counts` counts by the names of `COUNTS`. Raises `UsageError` for a feed of another framing, and
    for snapshots.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_feed(setup.feed)
        if setup.refresh:
            raise UsageError(
                "a gap fill server has no snapshots", 'leave "refresh" out of its channels'
            )
        settings = setup.settings
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        self._requests = self._answers = LineAnswers(
            setup.feed, self.counts, settings.request_packets_max, SegmentCutter(setup.feed)
        )
        self._channels = tuple(each.service for each in setup.retransmission)
        self._latest: Callable[[int], bytes] = setup.latest
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        super()._begin(now_ns)
        #: The channel that was asked about last.
        self._asked_channel = 0
        self._tested_ns = NEVER_NS

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        if not self._up or self._owing_ns == NEVER_NS:
            return NEVER_NS
        return min(self._owing_ns + self._dead_ns, self._tested_ns + self._heartbeat_ns)

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request a range; return False (and count it) where it cannot be sent.

        Raises `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        room = self._answers.check(request)
        latest = self._latest(request.service)
        if not room or not self._up or not latest or request.end - 1 > NUMBER_MAX:
            self.counts["not_asked" if latest else "no_session"] += 1
            return False
        self._answers.add(request)
        self._asked_channel = request.service
        self._output.append(request_of(latest, (request.first, request.end - 1)))
        self._owes(now_ns)
        return True

    def _owes(self, now_ns: int) -> None:
        """Note that the server owes a sign of life from now on, if it did not before."""
        if self._owing_ns == NEVER_NS:
            self._owing_ns = self._tested_ns = now_ns

    # -- time and datagrams ---------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: test a server that owes something, give up one that shows no life."""
        if now_ns < self.deadline_ns:
            return []
        if broken := self._silence(now_ns):
            return broken
        self._tested_ns = now_ns
        latest = self._latest(self._asked_channel)
        if latest:
            self.counts["tests"] += 1
            self._output.append(request_of(latest))
        return []

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in one datagram and return its events."""
        answers = self._answers
        if not self._up or not data or not answers.read(data):
            return []
        header = answers.header
        if header.service not in self._channels:
            self.counts["wrong_channel"] += 1
            return []
        if data[STREAM_PLACE] != self._latest(header.service)[STREAM_PLACE]:
            self.counts["wrong_session"] += 1
            return []
        events: list[Event] = []
        if header.kind == DATA:
            events = answers.packet(header.service, data)
        else:
            self.counts["tests_answered"] += 1
        self._owing_ns = NEVER_NS
        if len(answers):
            self._owes(now_ns)
        return events


def request_of(segment: bytes, *ranges: tuple[int, int]) -> bytes:
    """Return a request about the stream of a segment: of (first, last) ranges, or a test."""
    _, protocol, channel, session = SEGMENT.unpack_from(segment)[:4]
    header = REQUEST.pack(VERSION, SEQUENCE_NUMBERS, protocol, channel, session, len(ranges))
    return header + b"".join(RANGE.pack(*each) for each in ranges)


class GapFillServer(DatagramServer):
    """The gap fill server of any number of channels; a channel's session is its packets'.

    `counts` counts by the names of `SERVER_COUNTS`. One answer has `request_packets_max` messages
    at most. Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        super().__init__(setup.settings, dict.fromkeys(SERVER_COUNTS, 0))
        self.setup = setup
        self.cutter = SegmentCutter(setup.feed)

    def answer(self, data: bytes) -> Iterator[bytes]:
        """Yield the segments that answer a request; none where it is ignored."""
        counts = self.counts
        ranges = ranges_of(data)
        if ranges is None:
            counts["badly_formed"] += 1
            return
        counts["requests"] += 1
        stream = data[2:12]
        store = self.setup.stores.get(int.from_bytes(data[4:8], "little"))
        newest = store.packet(store.next_serial - 1) if store is not None and store.count else None
        if store is None or newest is None or newest[2][STREAM_PLACE] != stream:
            counts["wrong_session"] += 1
        elif not ranges:
            counts["tests"] += 1
            yield following(newest[2])
        elif data[1] != SEQUENCE_NUMBERS:
            counts["wrong_type"] += 1
        else:
            yield from self._filled(store, ranges)

    def _filled(self, store: PacketStore, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the segments of ranges, as far as they are held and the bound reaches."""
        counts, left = self.counts, self.setup.settings.request_packets_max
        for first, last in ranges:
            end = min(last + 1, first + left)
            if not left or first >= store.end:
                counts["not_yet"] += bool(left)
                return
            found = 0
            for segment in self._segments(store, first, end):
                count = SEGMENT.unpack_from(segment)[5]
                found += count
                counts["packets"] += 1
                counts["messages"] += count
                counts["bytes"] += len(segment)
                yield segment
            counts["gone"] += not found
            left -= found

    def _segments(self, store: PacketStore, first: int, end: int) -> Iterator[bytes]:
        """Yield what is held of the numbers `first` to `end` - 1, neighbours in one segment."""
        segment = bytearray()
        count = following_number = 0
        for begin, after, packet in store.packets(first, end):
            low, high = max(first, begin), min(end, after)
            whole = (low, high) == (begin, after)
            cut = packet if whole else self.cutter.cut(packet, low, high)
            fits = len(segment) + len(cut) - SEGMENT.size <= DATAGRAM_BYTES_MAX
            if segment and (low != following_number or not fits):
                yield counted(segment, count)
                segment, count = bytearray(), 0
            segment += cut[SEGMENT.size :] if segment else cut
            count += high - low
            following_number = high
        if segment:
            yield counted(segment, count)


def counted(segment: bytearray, count: int) -> bytes:
    """Return a segment with its payload's length and the number of its messages put right."""
    struct.pack_into("<HH", segment, 12, len(segment) - SEGMENT.size, count)
    return bytes(segment)


def following(segment: bytes) -> bytes:
    """Return a segment without messages that has the number and the offset behind `segment`."""
    _, protocol, channel, session, size, count, offset, number, at = SEGMENT.unpack_from(segment)
    return SEGMENT.pack(
        VERSION, protocol, channel, session, 0, 0, offset + size, number + count, at
    )


def ranges_of(data: bytes) -> list[tuple[int, int]] | None:
    """Return the (first, last) ranges of a request; None for one that breaks a rule."""
    if len(data) < REQUEST.size or data[0] != VERSION:
        return None
    count = REQUEST.unpack_from(data)[5]
    if count > RANGES_MAX or len(data) != REQUEST.size + count * RANGE.size:
        return None
    ranges: list[tuple[int, int]] = list(RANGE.iter_unpack(data[REQUEST.size :]))
    before = -1 if data[1] == STREAM_OFFSETS else 0
    for first, last in ranges:
        if not before < first <= last < NUMBER_MAX:
            return None
        before = last
    return ranges
