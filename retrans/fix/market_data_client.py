"""The client of Market Data Requests: requests, collects, and checks that the answer is whole.

A `MarketDataClient` has successive connections to one server; bytes and the time go in, events and
bytes to write come out (`retrans.reconnection` keeps it connected). An answer is `Complete` only
where its parts came in order and whole, its messages are as many as the last part says, their
numbers ascend within the stated range, without a gap where all were requested, and each concerns
what was requested; of a state, where every snapshot is marked with the request and as of one
number. Any other answer is requested again, with an MDReqID of its own, so that late messages of
the try before cannot be taken for it. After `tries_max` tries it is reported as `Failed`: no
partial answer is handed over.

Times are integer ns and arguments; the same seed gives the same waits.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.fix.datagram import SEQUENCE_RESET
from feedhandler.codecs.fix.fields import fields
from feedhandler.codecs.fix.framing import Frame, frame_message
from feedhandler.codecs.fix.market_entries import MESSAGE_FIELDS_MAX
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.events import Broken
from feedhandler.retrans.fix.market_data import (
    HEARTBEAT,
    LOGOUT,
    NO_ID,
    PART,
    REJECT,
    SNAPSHOT,
    TEST_REQUEST,
    Digest,
    MarketDataFormat,
    MarketDataRequest,
    Part,
    Refusal,
    concerns,
)
from feedhandler.retrans.fix.server import NEVER

#: Most requests under way or waiting to be sent: of a definition of channels, 1,024 at most, each
#: may want its state at the same time.
REQUESTS_MAX = 2048
#: Rejects after which another try may succeed; after others none will.
_PASSING = {Refusal.TOO_MANY.name, Refusal.CUT_SHORT.name, Refusal.STATE_UNKNOWN.name}
#: MsgType, the third field, of what cannot be among the messages of a part.
_HEADS = tuple(b"\x0135=%b\x01" % type for type in (PART, REJECT))


@dataclass(frozen=True, slots=True)
class MarketDataClientSettings:
    """The limits and waits of a client. Raises `UsageError` for a value below 1.

    under_way_max    requests at the server at a time
    answer_wait_us   without a part of an answer for so long, it is requested again
    retry_us, retry_most_us   the wait before that, which doubles
    answer_bytes_max of one answer
    heartbeat_us, dead_us, reconnect_us, reconnect_max_us   of the connection
    """

    under_way_max: int = 8
    answer_wait_us: int = 2_000_000
    tries_max: int = 4
    retry_us: int = 100_000
    retry_most_us: int = 2_000_000
    answer_bytes_max: int = 256 << 20
    heartbeat_us: int = 1_000_000
    dead_us: int = 5_000_000
    reconnect_us: int = 100_000
    reconnect_max_us: int = 1_000_000

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in self.__slots__) < 1:
            raise UsageError("requests need waits and room", "set nothing below 1")


class Complete(NamedTuple):
    """The whole answer to a request.

    Messages as published, about the numbers `first` to `last` of the sequence epoch `epoch`; or
    one snapshot for each security, all as of the number `last`.
    """

    request: int
    asked: MarketDataRequest
    messages: list[bytes]
    first: int
    last: int
    epoch: int


class Rejected(NamedTuple):
    """The server will not answer; `code` is a `Refusal`'s name, or another that it sent."""

    request: int
    asked: MarketDataRequest
    code: str
    text: str
    held_from_ns: int


class Failed(NamedTuple):
    """No try brought the whole answer; `reason` is the fault of the last one."""

    request: int
    asked: MarketDataRequest
    reason: str


Event = Complete | Rejected | Failed | Broken


class UnexpectedMessage(ValueError):
    """Messages came in an order in which they cannot be assigned to parts."""


class Collected:
    """The answer of one try, as far as it has come; `fault` is the first fault found in it."""

    def __init__(self, asked: MarketDataRequest, bytes_max: int) -> None:
        self.asked = asked
        self.messages: list[bytes] = []
        self.fault = ""
        self.part: Part | None = None
        self._bytes = 0
        self._bytes_max = bytes_max
        self._next = 0
        self._named: set[bytes] = set()
        self._securities = frozenset(asked.securities)
        self._frame = Frame()
        self._digest = Digest()

    def begin(self, part: Part) -> None:
        """Begin a part."""
        before = self.part
        self.part = part
        if part.number != (before.number + 1 if before else 1):
            self._wrong("a part is missing, or came twice")
        if before and (before.first, before.last, before.epoch) != (
            part.first, part.last, part.epoch
        ):  # fmt: skip
            self._wrong("the parts are about different ranges")
        if before is None:
            self._next = part.first

    def add(self, data: bytes) -> None:
        """Add a message of the part, and check it."""
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            self._wrong("the answer is larger than set")
        elif self.asked.of_state:
            self._snapshot(data)
        else:
            self._message(data)
        if not self.fault:
            self.messages.append(data)
            self._digest.add(data)

    def finish(self) -> None:
        """Check the whole answer, after its last part."""
        part = self.part
        assert part is not None
        if part.total != len(self.messages):
            self._wrong(f"{len(self.messages)} messages, and {part.total} are said")
        elif part.digest != self._digest.text:
            self._wrong("the messages are not those whose sum is said")
        elif self.asked.of_state and not self._securities <= self._named:
            self._wrong("a security's snapshot is missing")
        elif self._lacks_end(part.last):
            self._wrong(f"message {self._next} is missing")

    def _lacks_end(self, last: int) -> bool:
        """Return whether the range, all of which was requested, lacks its last number."""
        return last > 0 and self.asked.whole and not self.asked.of_state and self._next <= last

    def _wrong(self, fault: str) -> None:
        if not self.fault:
            self.fault = fault
            self.messages.clear()

    def _message(self, data: bytes) -> None:
        """Check that a message has the next number, or a later one where not all are requested.

        A GapFill takes the place of what the publisher left out.
        """
        frame, part = self._frame, self.part
        assert part is not None
        frame_message(data, 0, len(data), frame)  # the stream has found it whole
        number, after = frame.sequence, frame.sequence + 1
        if frame.message_type == SEQUENCE_RESET:
            after = _new_number(data)
        if not number < after or not part.first <= number <= after - 1 <= part.last:
            self._wrong("a message is not of the range")
        elif number < self._next:
            self._wrong("messages are not in order")
        elif number > self._next and self.asked.whole:
            self._wrong(f"message {self._next} is missing")
        elif not self.asked.whole and not concerns(data, self._securities, self.asked.entry_types):
            self._wrong("a message is about something else")
        self._next = after

    def _snapshot(self, data: bytes) -> None:
        """Check that a snapshot is marked with the request and as of the part's number."""
        part = self.part
        assert part is not None
        values = dict(reversed(fields(data, MESSAGE_FIELDS_MAX)))
        name = values.get(55, b"")
        if name in (b"", b"[N/A]"):
            name = values.get(48, b"")
        if values.get(35) != SNAPSHOT or values.get(262) != part.id:
            self._wrong("a snapshot is not marked with the request")
        elif values.get(369) != b"%d" % part.last or int(values.get(50, b"0")) != part.epoch:
            self._wrong("a snapshot is as of another number")
        elif name in self._named or (self._securities and name not in self._securities):
            self._wrong("a snapshot comes twice, or is of another security")
        self._named.add(name)


def _new_number(data: bytes) -> int:
    """Return NewSeqNo (36) of a GapFill; 0 where it has none."""
    text = dict(fields(data)).get(36, b"")
    return int(text) if text.isdigit() and len(text) <= 20 else 0


class _Ask:
    """A request with its tries.

    `due_ns`: when it is sent; while `collected` is set, when its try is given up.
    """

    def __init__(self, number: int, asked: MarketDataRequest, now_ns: int) -> None:
        self.number = number
        self.asked = asked
        self.tries = 0
        self.due_ns = now_ns
        self.collected: Collected | None = None

    @property
    def id(self) -> bytes:
        """MDReqID of the try that is under way."""
        return b"%b-%d" % (self.asked.id, self.tries)


class MarketDataClient:
    """Requests to one server."""

    def __init__(
        self,
        form: MarketDataFormat,
        settings: MarketDataClientSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.form = form
        self.settings = settings or MarketDataClientSettings()
        self.counts: Counter[str] = Counter()
        self.up = False
        self._numbers = itertools.count(1)
        self._asks: dict[int, _Ask] = {}
        self._under_way: dict[bytes, _Ask] = {}
        self._backoff = Backoff(self.settings.retry_us, self.settings.retry_most_us, seed)
        self._stream = FixStream()
        self._output = bytearray()
        self._heard_ns = self._sent_ns = 0
        # The part that is being read: how many of its messages are to come, and its request.
        self._left = 0
        self._reading: _Ask | None = None

    # -- asking ----------------------------------------------------------------------------------

    def ask(
        self,
        channel: str,
        now_ns: int,
        *,
        securities: Sequence[bytes] = (),
        begin_ns: int = -1,
        end_ns: int = -1,
        entry_types: Sequence[bytes] = (),
        depth: int = 0,
    ) -> int:
        """Request a time range of a channel, or without times its books' present state.

        Returns the number of the request, which its events carry. Raises `UsageError` where too
        many wait.
        """
        if len(self._asks) >= REQUESTS_MAX:
            raise UsageError(f"{REQUESTS_MAX} requests wait already", "wait for some answers")
        number = next(self._numbers)
        id = f"r{number}".encode()
        named = tuple(dict.fromkeys(securities))
        asked = MarketDataRequest(id, channel, named, begin_ns, end_ns, tuple(entry_types), depth)
        self._asks[number] = _Ask(number, asked, now_ns)
        return number

    def cancel(self, request: int) -> None:
        """Drop a request whose answer is not wanted any more."""
        ask = self._asks.pop(request, None)
        if ask is not None:
            self._under_way.pop(ask.id, None)
            ask.collected = None  # what is left of a part that is being read is no one's

    # -- the connection --------------------------------------------------------------------------

    def connected(self, now_ns: int) -> None:
        """Begin a connection."""
        self.up = True
        self._heard_ns = self._sent_ns = now_ns

    def disconnected(self, now_ns: int) -> None:
        """End the connection; incomplete answers are requested again on the next one.

        A request whose tries are used up fails there instead.
        """
        self.up = False
        self._stream = FixStream()
        self._output.clear()
        self._left, self._reading = 0, None
        for ask in list(self._under_way.values()):
            ask.collected = None
            ask.due_ns = now_ns
        self._under_way.clear()

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        data = bytes(self._output)
        self._output.clear()
        return data

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` must be called next."""
        if not self.up:
            return NEVER
        settings = self.settings
        deadline_ns = min(
            self._sent_ns + settings.heartbeat_us * 1000, self._heard_ns + settings.dead_us * 1000
        )
        for ask in self._asks.values():
            if ask.collected is not None or len(self._under_way) < settings.under_way_max:
                deadline_ns = min(deadline_ns, ask.due_ns)
        return deadline_ns

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: send what is due, request again what does not come."""
        if not self.up:
            return []
        if now_ns >= self._heard_ns + self.settings.dead_us * 1000:
            return [Broken("the server is silent")]
        events: list[Event] = []
        for ask in list(self._asks.values()):
            if now_ns < ask.due_ns:
                continue
            if ask.collected is not None:
                events += self._again(ask, "no answer, or no more of it", now_ns)
            elif ask.tries >= self.settings.tries_max:
                events += self._fail(ask, "the connection broke")
            elif len(self._under_way) < self.settings.under_way_max:
                self._send(ask, now_ns)
        if now_ns >= self._sent_ns + self.settings.heartbeat_us * 1000:
            self._put(self.form.message(HEARTBEAT), now_ns)
        return events

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in the server's bytes and return their events.

        After `Broken`, the last event, the connection must be closed.
        """
        self._heard_ns = now_ns
        events: list[Event] = []
        try:
            for message in self._stream.receive(data):
                events += self._message(message, now_ns)
            if self._stream.fault:
                events.append(Broken("the server sent something other than FIX messages"))
        except (PeerError, ValueError) as error:
            self.counts["wrong"] += 1
            events.append(Broken(f"the server sent what it may not: {error}"))
        return events

    # -- what comes ------------------------------------------------------------------------------

    def _message(self, data: bytes, now_ns: int) -> list[Event]:
        if self._left:
            # As published, which says nothing of its body's fields.
            if data.startswith(_HEADS, data.index(b"\x0135=")):
                raise UnexpectedMessage(f"a part ends {self._left} messages early")
            return self._body(data, now_ns)
        found = fields(data, MESSAGE_FIELDS_MAX)
        type = found[0][1]
        if type == PART:
            return self._begin(self.form.read_part(dict(found)), now_ns)
        if type == REJECT:
            return self._rejected(dict(found), now_ns)
        if type == TEST_REQUEST:
            said = dict(found).get(112, NO_ID)
            self._put(self.form.message(HEARTBEAT, b"112=%b\x01" % said), now_ns)
        elif type == LOGOUT:
            return [Broken("the server logged out")]
        elif type != HEARTBEAT:
            raise UnexpectedMessage("a message belongs to no part")
        return []

    def _begin(self, part: Part, now_ns: int) -> list[Event]:
        self._left = part.messages
        ask = self._reading = self._under_way.get(part.id)
        if ask is None or ask.collected is None:
            self.counts["parts_of_no_request"] += 1
            return []
        ask.due_ns = now_ns + self.settings.answer_wait_us * 1000
        ask.collected.begin(part)
        return self._part_ended(now_ns) if not self._left else []

    def _body(self, data: bytes, now_ns: int) -> list[Event]:
        self._left -= 1
        if self._reading is None or self._reading.collected is None:
            return []
        self._reading.collected.add(data)
        return self._part_ended(now_ns) if not self._left else []

    def _part_ended(self, now_ns: int) -> list[Event]:
        """Judge the answer after a whole part: complete, wrong, or to be continued."""
        ask, self._reading = self._reading, None
        assert ask is not None
        assert ask.collected is not None
        collected, part = ask.collected, ask.collected.part
        assert part is not None
        if part.total >= 0 and not collected.fault:
            collected.finish()
        if collected.fault:
            self.counts["wrong_answers"] += 1
            return self._again(ask, collected.fault, now_ns)
        if part.total < 0:
            return []
        self._forget(ask)
        self.counts["complete"] += 1
        return [
            Complete(ask.number, ask.asked, collected.messages, part.first, part.last, part.epoch)
        ]

    def _rejected(self, values: dict[int, bytes], now_ns: int) -> list[Event]:
        reject = self.form.read_reject(values)
        ask = self._under_way.get(reject.id)
        if ask is None:
            self.counts["rejects_of_no_request"] += 1
            return []
        if reject.code in _PASSING and ask.tries < self.settings.tries_max:
            return self._again(ask, reject.text, now_ns)
        self._forget(ask)
        self.counts["rejected"] += 1
        return [Rejected(ask.number, ask.asked, reject.code, reject.text, reject.held_from_ns)]

    # -- tries -----------------------------------------------------------------------------------

    def _send(self, ask: _Ask, now_ns: int) -> None:
        ask.tries += 1
        asked = ask.asked._replace(id=ask.id)
        ask.collected = Collected(ask.asked, self.settings.answer_bytes_max)
        ask.due_ns = now_ns + self.settings.answer_wait_us * 1000
        self._under_way[ask.id] = ask
        self.counts["requests"] += 1
        self._put(self.form.request(asked), now_ns)

    def _again(self, ask: _Ask, reason: str, now_ns: int) -> list[Event]:
        """Schedule the next try after a failed one, or fail the request where tries are used up."""
        self._under_way.pop(ask.id, None)
        ask.collected = None
        if self._reading is ask:
            self._reading = None  # what is left of this part is not of the next try
        if ask.tries >= self.settings.tries_max:
            return self._fail(ask, reason)
        ask.due_ns = now_ns + self._backoff.delay_ns(ask.tries)
        return []

    def _fail(self, ask: _Ask, reason: str) -> list[Event]:
        self._forget(ask)
        self.counts["failed"] += 1
        return [Failed(ask.number, ask.asked, reason)]

    def _forget(self, ask: _Ask) -> None:
        self._under_way.pop(ask.id, None)
        self._asks.pop(ask.number, None)

    def _put(self, data: bytes, now_ns: int) -> None:
        self._output += data
        self._sent_ns = now_ns
