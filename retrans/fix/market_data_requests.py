"""The server of Market Data Requests: many clients, each with several answers under way.

Plain state machines: a `MarketDataServer` has what all clients share, the histories of its
channels; a `MarketDataSession` is one connection. Bytes and the time go in, bytes to write come
out; `retrans.tcp.serve` moves them. A request is rejected with its reason, or answered: the
messages of a time range as they were published, or the books' present state, one snapshot (W) for
each security, all as of one number, not below the last that had been sent when the request came.

An answer is sent part by part (`market_data`), a part a tick, and the answers of a client take
turns, as clients do: a long one delays no other. The cost of a request is bounded: the messages of
its range, the entries of its state, and the messages that are examined in a tick.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.retrans.fix.market_data import (
    HEARTBEAT,
    LOGOUT,
    NO_ID,
    REQUEST,
    REQUEST_FIELDS_MAX,
    TEST_REQUEST,
    Digest,
    MarketDataFormat,
    MarketDataRequest,
    Part,
    Refusal,
    Refused,
    concerns,
)
from feedhandler.retrans.fix.market_history import MarketHistory
from feedhandler.retrans.serving import ClientSession, ClientsServer

#: Longest message of a client: a request that names a thousand securities fits.
REQUEST_BYTES_MAX = 64 << 10
#: Most MDReqIDs of a client that are remembered, to recognise one that comes twice.
IDS_MAX = 1024
#: Messages that the state takes in one tick of a session that waits for it.
CATCH_UP_MESSAGES = 500


@dataclass(frozen=True, slots=True)
class MarketDataSettings:
    """The limits of clients and of their answers.

    Raises `UsageError` for a value below 1, and for heartbeats later than `dead_us`.

    clients_max          connections at a time
    waiting_max          answers of a client under way
    requests_s           requests of a client a second, and as many at once
    range_messages_max   messages of a time range, before securities are filtered
    state_entries_max    entries of a state
    part_messages, part_bytes   of a part: what a client is given before the next one's turn
    scan_messages        messages examined for a part
    """

    clients_max: int = 256
    waiting_max: int = 16
    requests_s: int = 50
    range_messages_max: int = 1_000_000
    state_entries_max: int = 200_000
    part_messages: int = 64
    part_bytes: int = 32 << 10
    scan_messages: int = 512
    heartbeat_us: int = 1_000_000
    dead_us: int = 5_000_000

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in self.__slots__) < 1:
            raise UsageError("a server of requests needs room and time", "set nothing below 1")
        if self.heartbeat_us > self.dead_us:
            raise UsageError("heartbeats come too late", "set heartbeat_us below dead_us")


class MarketDataServer(ClientsServer[MarketDataSettings, "MarketDataSession"]):
    """Serves the channels in `histories`; `channel_of` returns a security's channel."""

    def __init__(
        self,
        form: MarketDataFormat,
        histories: Mapping[str, MarketHistory],
        settings: MarketDataSettings | None = None,
        channel_of: Callable[[bytes], str | None] | None = None,
    ) -> None:
        super().__init__(settings or MarketDataSettings(), Counter())
        self.form = form
        self.histories = histories
        self._channel_of = channel_of or self._channel_by_books

    def session(self, peer: str, now_ns: int) -> "MarketDataSession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(MarketDataSession(self, peer, now_ns))

    def catch_up(self, messages: int = CATCH_UP_MESSAGES) -> bool:
        """Apply up to `messages` messages to each channel's state; return whether all are done.

        Must be called often enough that no message leaves a store before its state has taken it.
        """
        behind = 0
        for history in self.histories.values():
            behind += not history.catch_up(messages)
        return not behind

    def accept(self, asked: MarketDataRequest) -> "_Answer":
        """Return the answer to a request. Raises `Refused`."""
        for each in asked.entry_types:
            if len(each) != 1 or not each.isalnum():
                text = f"{each.decode('utf-8', 'replace')!r} is no MDEntryType (269)"
                raise Refused(Refusal.UNSUPPORTED_ENTRY_TYPE, text)
        name = self._channel(asked)
        history = self.histories[name]
        for security in asked.securities:
            if security not in history.state.securities and self._channel_of(security) != name:
                text = f"no security {security.decode('utf-8', 'replace')} on this channel"
                raise Refused(Refusal.UNKNOWN_SECURITY, text)
        if asked.of_state:
            return _StateAnswer(self, history, asked)
        if asked.depth:
            text = "MarketDepth (264) of a time range is 0: messages come as they were published"
            raise Refused(Refusal.UNSUPPORTED_DEPTH, text)
        first, end = history.numbers(asked.begin_ns, asked.end_ns)
        most = self.settings.range_messages_max
        if end - first > most:
            text = f"{end - first:,} messages, and at most {most:,} a request: ask for less time"
            raise Refused(Refusal.TOO_LARGE, text)
        return _RangeAnswer(self, history, asked, first, end)

    def _channel(self, asked: MarketDataRequest) -> str:
        """Return the channel of a request, named or by its securities. Raises `Refused`."""
        names = {asked.channel}
        if not asked.channel and asked.securities:
            names = {self._channel_of(security) or "" for security in asked.securities}
        if len(names) > 1:
            raise Refused(Refusal.UNKNOWN_CHANNEL, "securities of several channels: ask for each")
        (name,) = names
        if name in self.histories:
            return name
        if asked.securities and not name:
            raise Refused(Refusal.UNKNOWN_SECURITY, "no channel carries this security")
        text = f"tag {self.form.channel_tag}: no channel {name!r} here"
        raise Refused(Refusal.UNKNOWN_CHANNEL, text)

    def _channel_by_books(self, security: bytes) -> str | None:
        """Return the channel on which a security was seen, or None."""
        for name, each in self.histories.items():
            if security in each.state.securities:
                return name
        return None


class _Answer(ABC):
    """An answer, given in parts; the base of the two kinds."""

    def __init__(
        self, server: MarketDataServer, history: MarketHistory, asked: MarketDataRequest
    ) -> None:
        self.server = server
        self.history = history
        self.asked = asked
        self.first = self.last = self.epoch = self.total = 0
        self._part = 0
        self._digest = Digest()

    @abstractmethod
    def tick(self) -> tuple[bytes, bool]:
        """Return the next part, b"" where there is none yet, and whether it is the last.

        Raises `Refused`.
        """

    def _encode(self, messages: list[bytes], last: bool) -> bytes:
        self._part += 1
        self.total += len(messages)
        for message in messages:
            self._digest.add(message)
        self.server.counts["parts"] += 1
        self.server.counts["messages"] += len(messages)
        part = Part(
            self.asked.id,
            self._part,
            len(messages),
            self.first,
            self.last,
            self.epoch,
            self.total if last else -1,
            self._digest.text if last else b"",
        )
        return self.server.form.part(part) + b"".join(messages)


class _RangeAnswer(_Answer):
    """The messages with the numbers `first` to `end` - 1, or those of them that are wanted."""

    def __init__(
        self,
        server: MarketDataServer,
        history: MarketHistory,
        asked: MarketDataRequest,
        first: int,
        end: int,
    ) -> None:
        super().__init__(server, history, asked)
        if first < end:
            self.first, self.last = first, end - 1
            self.epoch = history.epoch_of(first)
        self._at, self._end = first, end
        self._store_epoch = history.channel.store.epoch
        self._securities = frozenset(asked.securities)

    def tick(self) -> tuple[bytes, bool]:
        if self.history.channel.store.epoch != self._store_epoch:
            raise Refused(Refusal.CUT_SHORT, "a new sequence epoch has begun")
        settings = self.server.settings
        messages: list[bytes] = []
        size = 0
        until = min(self._at + settings.scan_messages, self._end)
        for _, after, data in self.history.slice(self._at, until):
            if self.asked.whole or concerns(data, self._securities, self.asked.entry_types):
                messages.append(data)
                size += len(data)
            self._at = after
            if len(messages) >= settings.part_messages or size >= settings.part_bytes:
                break
        last = self._at >= self._end
        return (self._encode(messages, last) if messages or last else b"", last)


class _StateAnswer(_Answer):
    """The state of a channel's books, or of some of them.

    It is cut once the state has everything that had been sent when the request came.
    """

    def __init__(
        self, server: MarketDataServer, history: MarketHistory, asked: MarketDataRequest
    ) -> None:
        super().__init__(server, history, asked)
        self._wanted = history.end - 1
        self._store_epoch = history.channel.store.epoch
        self._cut: deque[tuple[bytes, list[bytes]]] | None = None

    def tick(self) -> tuple[bytes, bool]:
        if self._cut is None:
            self.history.catch_up(CATCH_UP_MESSAGES)
            same = self.history.channel.store.epoch == self._store_epoch
            if same and self.history.state.number < self._wanted:
                return b"", False
            self._cut_state()
        assert self._cut is not None
        settings, form = self.server.settings, self.server.form
        messages: list[bytes] = []
        size = 0
        while self._cut and len(messages) < settings.part_messages and size < settings.part_bytes:
            instrument, entries = self._cut.popleft()
            messages.append(
                form.snapshot(self.asked.id, self.last, self.epoch, instrument, entries)
            )
            size += len(messages[-1])
        return self._encode(messages, not self._cut), not self._cut

    def _cut_state(self) -> None:
        """Cut the state as it is now. Raises `Refused` where it is not known, or too large."""
        state = self.history.state
        names = self.asked.securities or tuple(sorted(state.securities))
        known = all(state.knows(name) for name in names)
        if not known or not (self.asked.securities or state.whole):
            text = "messages are missing here: wait for snapshots of the publisher's"
            raise Refused(Refusal.STATE_UNKNOWN, text)
        most = self.server.settings.state_entries_max
        held = [state.securities[name] for name in names if name in state.securities]
        if sum(each.count for each in held) > most:
            text = f"more than {most:,} entries: ask for some of the securities"
            raise Refused(Refusal.TOO_LARGE, text)
        types, depth = self.asked.entry_types, self.asked.depth
        found = {each.name: (each.instrument, each.texts(types, depth)) for each in held}
        # A security that the channel carries, and of which nothing was sent, has an empty book.
        for name in names:
            found.setdefault(name, (b"55=%b\x01" % name, []))
        self._cut = deque(found.values())
        self.first = self.last = state.number
        self.epoch = self.history.epoch


class MarketDataSession(ClientSession[MarketDataServer]):
    """The server's end of one client's connection; `peer` names it in reports."""

    def __init__(self, server: MarketDataServer, peer: str, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self.peer = peer
        self._form = server.form
        self._settings = server.settings
        self._stream = FixStream(REQUEST_BYTES_MAX)
        self._answers: deque[_Answer] = deque()
        self._ids: dict[bytes, None] = {}
        self._request_ns = 1_000_000_000 // self._settings.requests_s or 1
        self._due_ns = 0

    @property
    def _busy(self) -> bool:
        return bool(self._answers)

    def _drop(self) -> None:
        self._answers.clear()

    # -- time and bytes --------------------------------------------------------------------------

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write."""
        if self._idle(now_ns, patient=self._busy):
            return b""
        data = self._part()
        if not data and now_ns >= self._said_ns + self._heartbeat_ns:
            data = self._form.message(HEARTBEAT)
        if data:
            self._said_ns = now_ns
        return data

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in the client's bytes and return the bytes to write."""
        if self.closed or not data:
            return b""
        self._now_ns = self._heard_ns = now_ns
        out = b""
        # After a fault the connection is closed, and the rest of the stream is ignored.
        for message in self._stream.receive(data):
            if not self.closed:
                out += self._message(message, now_ns)
        if self._stream.fault and not self.closed:
            self._close("clients_wrong", "the client sent something other than FIX messages")
        if out:
            self._said_ns = now_ns
        return out

    def _part(self) -> bytes:
        """Return a part of the answer whose turn it is, or a reject."""
        if not self._answers:
            return b""
        answer = self._answers.popleft()
        try:
            data, last = answer.tick()
        except Refused as refused:
            return self._reject(refused, answer.asked.id)
        if last:
            self._counts["answers"] += 1
        else:
            self._answers.append(answer)
        return data

    # -- what a client may send ------------------------------------------------------------------

    def _message(self, data: bytes, now_ns: int) -> bytes:
        try:
            found = fields(data, REQUEST_FIELDS_MAX)
        except FixError:
            found = []
        type = found[0][1] if found else b""
        if type == REQUEST or not found:
            return self._request(data, now_ns)
        if type == TEST_REQUEST:
            values = dict(found)
            return self._form.message(HEARTBEAT, b"112=%b\x01" % values.get(112, NO_ID))
        if type == LOGOUT:
            self._close("clients_left", "the client logged out")
            return self._form.message(LOGOUT)
        self._counts["heartbeats" if type == HEARTBEAT else "other_messages"] += 1
        return b""

    def _request(self, data: bytes, now_ns: int) -> bytes:
        self._counts["requests"] += 1
        id = NO_ID
        try:
            asked = self._form.read_request(data)
            id = asked.id
            self._admit(id, now_ns)
            self._answers.append(self._server.accept(asked))
        except Refused as refused:
            return self._reject(refused, id)
        self._counts["accepted"] += 1
        return b""

    def _admit(self, id: bytes, now_ns: int) -> None:
        """Admit a request. Raises `Refused` where its id was used, or it is one too many."""
        if id in self._ids:
            raise Refused(Refusal.DUPLICATE_ID, "an MDReqID (262) is used once", id)
        self._ids[id] = None
        if len(self._ids) > IDS_MAX:
            del self._ids[next(iter(self._ids))]
        if len(self._answers) >= self._settings.waiting_max:
            text = f"{self._settings.waiting_max} answers are under way: wait for one"
            raise Refused(Refusal.TOO_MANY, text)
        # Each request is due `_request_ns` after the one before; a second's worth may come at once.
        due_ns = max(self._due_ns, now_ns) + self._request_ns
        if due_ns > now_ns + 1_000_000_000:
            text = f"more than {self._settings.requests_s} requests a second"
            raise Refused(Refusal.TOO_MANY, text)
        self._due_ns = due_ns

    def _reject(self, refused: Refused, id: bytes) -> bytes:
        self._counts[f"rejected_{refused.refusal.name.lower()}"] += 1
        if refused.id == NO_ID:
            refused.id = id
        return self._form.reject(refused)
