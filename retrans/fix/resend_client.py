"""The client of a server of Resend Requests, with the interface of `retrans.client.RequestClient`.

A gateway's recovery requests ranges of a service; here each becomes a Resend Request that names the
service's channel, and the messages that answer it become packets: runs of whole messages, as the
lines bring them. Answers come over the connection (`feed`), or by a retransmission group that many
receivers share (`datagram`), or on the lines, which is outside this module.

Only requested messages are believed: those of a channel and a number that some request waits for. A
GapFill stands for the numbers that it skips, as far as they were requested. The rest is ignored and
counted, for others ask too; but what a group brings is kept for `KEPT_NS`, since this receiver may
have the same loss and notice it later: then it need not ask. A message that is marked as a possible
duplicate is given the bytes that it was published with.

The protocol has no refusal: a refused request is not answered, and times out. A silent server is
sent a TestRequest (1). One that has ever answered such is dead when it stays silent; of others
nothing can be said.

Bounds: `REQUESTS_MAX` requests, and for each channel `KEPT_MAX` messages of `KEPT_BYTES_MAX` bytes
for `KEPT_NS`. Sans-IO: the time is an argument.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.fix.datagram import HEARTBEAT, SEQUENCE_RESET, TEST_REQUEST
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.framing import POSS_DUP, Frame, frame_message
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.codecs.fix_feed import is_administrative
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Accepted, Answered, Event, Packet
from feedhandler.retrans.fix.request import RequestFormat, ResendRequest
from feedhandler.retrans.protocol import NEVER_NS
from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.requesting import TcpClient, UnderWay
from feedhandler.retrans.settings import RecoverySettings

#: Most messages of a channel kept before they are requested, and their bytes: what a busy group
#: brings between a receiver that notices a loss early and one that notices it late.
KEPT_MAX = 4096
KEPT_BYTES_MAX = 4 << 20
#: How long they are kept: longer than the wait for the second line, and than a server's `once_ns`.
KEPT_NS = 1_000_000_000
#: Bytes of a packet that is made of several messages: a datagram's.
RUN_BYTES_MAX = 1400
#: BeginString of a GapFill that is cut to the requested numbers.
_BEGIN_STRING = b"FIXT.1.1"
_POSS_DUP = b"\x0143=Y\x01"

#: What is counted, by name.
COUNTS: dict[str, str] = {
    "asked": "requests sent, of both kinds",
    "not_asked": "requests not sent: no connection, or too many under way",
    "spared": "requests that needed not be sent: a retransmission group had brought it all",
    "cancelled": "requests that were cancelled",
    "accepted": "requests that the server accepted",
    "answered": "requests of which every packet came",
    "packets": "retransmitted packets handed on",
    "late_packets": "retransmitted packets that no request waited for any more",
    "heartbeats": "heartbeats from the server, answered",
    "heartbeats_sent": "heartbeats sent because the server was silent",
    "cut_off": "connections that ended within a packet",
    "broken": "connections given up because of what the server sent, or did not send",
    "silent": "no sign of life from the server in time",
    "not_fix": "bytes of a server that are no FIX message, or a datagram of a group",
    "other_channels": "messages of a channel that is not asked for here",
    "not_data": "messages of a server that are neither a channel's nor a GapFill",
    "sealed": "datagrams of a group that are encrypted",
}


class Topic(NamedTuple):
    """A channel as requests and answers name it: its id, and TargetCompID of its messages.

    Where those have no TargetCompID, no other channel may come by the same way.
    """

    id: str
    target: bytes


@dataclass(slots=True)
class _Asked:
    """A request whose answer is waited for."""

    request_id: int
    service: int
    missing: RangeSet
    accepted: bool = False


@dataclass(slots=True)
class _Kept:
    """Messages of one channel that came by a group, by number: (when, bytes, number after)."""

    messages: OrderedDict[int, tuple[int, bytes, int]] = field(default_factory=OrderedDict)
    size: int = 0
    #: The first one where nothing was asked for yet: what came in another is not known to be of it.
    epoch: int = 0

    def add(self, number: int, data: bytes, end: int, now_ns: int) -> None:
        """Keep a message, and drop what is too old or too much."""
        self._drop(number)
        self.messages[number] = (now_ns, data, end)
        self.size += len(data)
        while self.messages:
            oldest = next(iter(self.messages))
            if (
                self.messages[oldest][0] + KEPT_NS > now_ns
                and len(self.messages) <= KEPT_MAX
                and self.size <= KEPT_BYTES_MAX
            ):
                return
            self._drop(oldest)

    def _drop(self, number: int) -> None:
        known = self.messages.pop(number, None)
        if known is not None:
            self.size -= len(known[1])

    def begin(self, epoch: int) -> None:
        """Drop what was kept in another sequence epoch."""
        if epoch != self.epoch:
            self.messages.clear()
            self.size = 0
        self.epoch = epoch

    def of(self, first: int, end: int, now_ns: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number, number after, bytes) of the kept messages in a range, in order."""
        for number in range(first, end if self.messages else first):
            since, data, after = self.messages.get(number, (-KEPT_NS, b"", 0))
            if since + KEPT_NS > now_ns:
                yield number, after, data


class ResendClient(TcpClient):
    """The client's end of successive connections to one server; `topics`: the channel by service.

    Raises `UsageError` for channels that have the same target.
    """

    def __init__(
        self,
        topics: Mapping[int, Topic],
        settings: RecoverySettings,
    ) -> None:
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        self._requests: UnderWay[_Asked]
        self._topics = dict(topics)
        self._services = {topic.target: service for service, topic in topics.items()}
        if len(self._services) < len(self._topics):
            raise UsageError(
                "channels of one server cannot be distinguished", "give each a target of its own"
            )
        self._form = RequestFormat()
        self._frame = Frame()
        self._kept: dict[int, _Kept] = {service: _Kept() for service in topics}
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        """Reset everything that belongs to one connection; what a group brought is kept."""
        super()._begin(now_ns)
        self._requests.clear()
        self._stream = FixStream()
        self._found: list[Event] = []
        self._answers_tests = False

    @property
    def _held(self) -> int:
        return self._stream.held

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        if not self._up:
            return NEVER_NS
        if self._found:
            return 0
        probe_ns = max(self._heard_ns, self._said_ns) + self._heartbeat_ns
        return min(probe_ns, self._heard_ns + self._dead_ns) if self._answers_tests else probe_ns

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Request a range; return False (and count it) where there is no connection or no room.

        Messages of the range that a group has brought are returned by the next `tick`. Raises
        `UsageError` for a range that is empty or wider than the settings allow, and for a
        `request_id` that is under way.
        """
        if not self._requests.check(request) or not self._up:
            self.counts["not_asked"] += 1
            return False
        asked = _Asked(
            request.request_id, request.service, RangeSet([(request.first, request.end - 1)])
        )
        self._requests[request.request_id] = asked
        self._look_up(asked, request, now_ns)
        if not asked.missing:
            self.counts["spared"] += 1
            return True
        channel = self._topics[request.service].id
        wanted = ResendRequest(channel, asked.missing.lowest, asked.missing.highest)
        self._output += self._form.encode(wanted)
        self.counts["asked"] += 1
        return True

    def _look_up(self, asked: _Asked, request: Ask, now_ns: int) -> None:
        """Answer from what a group brought before this receiver requested it."""
        kept = self._kept[request.service]
        kept.begin(request.epoch)
        runs = _Runs(self, self._found)
        for number, end, data in kept.of(request.first, request.end, now_ns):
            runs.add(asked, number, end, data)
        runs.close()

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: return what was found, test a silent server, give it up."""
        if not self._up or now_ns < self.deadline_ns:
            return []
        events, self._found = self._found, []
        if self._answers_tests and (broken := self._silence(now_ns)):
            return events + broken
        if now_ns >= max(self._heard_ns, self._said_ns) + self._heartbeat_ns:
            self._output += self._form.test()
            self._said_ns = now_ns
            self.counts["heartbeats_sent"] += 1
        return events

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in the connection's bytes and return their events; after `Broken`, none."""
        if not self._up or not data:
            return []
        self._heard_ns = now_ns
        events, self._found = self._found, []
        try:
            messages = self._stream.receive(data)
        except PeerError:
            messages = []
        self._deliver(messages, events, None)
        if self._stream.fault:
            events.append(self._break("not_fix", "the server sent something other than FIX"))
        return events

    def datagram(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in a datagram of the retransmission group and return its events."""
        events, self._found = self._found, []
        messages, at = [], 0
        while at < len(data):
            if frame_message(data, at, len(data) - at, self._frame):
                self.counts["sealed" if data.startswith(b"FS") else "not_fix"] += 1
                break
            messages.append(data[at : self._frame.end])
            at = self._frame.end
        self._deliver(messages, events, now_ns)
        return events

    # -- messages -------------------------------------------------------------------------------

    def _deliver(self, messages: list[bytes], events: list[Event], kept_ns: int | None) -> None:
        """Hand whole messages to the requests that wait for them.

        `kept_ns`: the time as of which the others are kept; None: they are not.
        """
        runs = _Runs(self, events)
        for message in messages:
            read = self._read(message)
            if read is None:
                continue
            service, number, end, data = read
            if not self._hand(runs, service, number, end, data):
                self.counts["late_packets"] += 1
                if kept_ns is not None:
                    self._kept[service].add(number, data, end, kept_ns)
        runs.close()

    def _hand(self, runs: "_Runs", service: int, number: int, end: int, data: bytes) -> bool:
        """Hand a message to each request that waits for numbers of it; return whether any does."""
        wanted = False
        for asked in list(self._requests.values()):
            if asked.service == service and asked.missing.touches(number, end - 1):
                runs.add(asked, number, end, data)
                wanted = True
        return wanted

    def _read(self, data: bytes) -> tuple[int, int, int, bytes] | None:
        """Return a channel's message as (service, number, number after, bytes), else None.

        Answers test requests, and removes PossDupFlag.
        """
        frame = self._frame
        if frame_message(data, 0, len(data), frame):
            self.counts["not_fix"] += 1
            return None
        type, number, end = frame.message_type, frame.sequence, frame.sequence + 1
        if type == HEARTBEAT and not number:
            self._answers_tests = True
            self.counts["heartbeats"] += 1
            return None
        if type == TEST_REQUEST:
            self._output += self._form.reply(data) or b""
            return None
        if type == SEQUENCE_RESET:
            end = _gap_filled(data)
        elif is_administrative(type):
            end = 0
        service = self._service_of(data[frame.target_at : frame.target_at + frame.target_size])
        if end <= number or service is None:
            self.counts["not_data" if service is not None else "other_channels"] += 1
            return None
        if frame.flags & POSS_DUP:
            data = without_poss_dup(data, frame)
        return service, number, end, data

    def _service_of(self, target: bytes) -> int | None:
        if not target and len(self._topics) == 1:
            return next(iter(self._topics))
        return self._services.get(target)

    def done(self, asked: _Asked) -> bool:
        """Remove a request whose range has all come; return whether it was still waited for."""
        if self._requests.pop(asked.request_id, None) is None:
            return False
        self.counts["answered"] += 1
        return True


class _Runs:
    """Joins consecutive messages of one request to packets, appended to `events`."""

    def __init__(self, client: ResendClient, events: list[Event]) -> None:
        self._client = client
        self._events = events
        self._asked: _Asked | None = None
        self._first = self._end = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, asked: _Asked, number: int, end: int, data: bytes) -> None:
        """Take a message for a request; of a GapFill only the requested numbers."""
        ranges = asked.missing.within(number, end - 1)
        if not ranges:
            return
        asked.missing.discard(number, end - 1)
        if end - number > 1 or _is_gap_fill(data):
            self.close()
            for first, last in ranges:
                cut = (first, last) != (number, end - 1)
                self._report(asked, first, last + 1, gap_fill(first, last + 1) if cut else data)
        else:
            self._join(asked, number, data)
        if not asked.missing:
            self.close()
            if self._client.done(asked):
                self._events.append(Answered(asked.request_id))

    def _join(self, asked: _Asked, number: int, data: bytes) -> None:
        joins = asked is self._asked and number == self._end
        if not joins or self._bytes + len(data) > RUN_BYTES_MAX:
            self.close()
            self._asked, self._first, self._end = asked, number, number
        self._parts.append(data)
        self._bytes += len(data)
        self._end += 1

    def close(self) -> None:
        """Emit the packet that is being joined."""
        if self._asked is not None and self._parts:
            self._report(self._asked, self._first, self._end, b"".join(self._parts))
        self._asked, self._bytes = None, 0
        self._parts = []

    def _report(self, asked: _Asked, first: int, end: int, data: bytes) -> None:
        if not asked.accepted:
            asked.accepted = True
            self._client.counts["accepted"] += 1
            self._events.append(Accepted(asked.request_id))
        self._client.counts["packets"] += 1
        self._events.append(Packet(asked.request_id, asked.service, first, end, data))


def gap_fill(first: int, end: int) -> bytes:
    """Encode a GapFill for `first` to `end` - 1."""
    return envelope(_BEGIN_STRING, b"35=4\x0134=%d\x01123=Y\x0136=%d\x01" % (first, end))


def _is_gap_fill(data: bytes) -> bool:
    return b"\x0135=4\x01" in data[:48]


def _gap_filled(data: bytes) -> int:
    """Return NewSeqNo (36) of a GapFill; 0 for any other message."""
    try:
        values = dict(reversed(fields(data)))
    except FixError:
        return 0
    text = values.get(36, b"")
    if values.get(123) != b"Y" or not text.isdigit() or len(text) > 20:
        return 0
    return int(text)


def without_poss_dup(data: bytes, frame: Frame) -> bytes:
    """Return a message without PossDupFlag, as published: lines are compared byte by byte."""
    at = data.find(_POSS_DUP, frame.body - 1, frame.header_end)
    if at < 0:
        return data
    begin_string = data[frame.begin + 2 : data.index(b"\x01", frame.begin)]
    return envelope(begin_string, data[frame.body : at + 1] + data[at + 6 : frame.body_end])
