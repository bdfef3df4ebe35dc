"""A SoupBinTCP session as a line: its sequenced messages become packets of MoldUDP64.

Each sequenced data packet is one message; its number is the one before plus 1, from the number on
that the server named when it accepted the login. Messages that come together are put into packets
as MoldUDP64 has them (session, first number, count, messages with their lengths), so that a channel
reads them as any line's. A server's heartbeat becomes MoldUDP64's, with the number that comes next,
and the end of the session its end. (SoupBinTCP 3.00 and 4.00; MoldUDP64 1.00.)

**The login** asks for the session that was followed before, from the number behind the last message
that came whole: what the server still has is not lost by a reconnection. The first login asks for
the configured session, from its latest message on (`first` 0) or from 1. A server that no longer
has the session is asked for its current one from 1 on: all of that is new. What becomes of a
connection:

    CLOSED ─connected▶ LOGIN ─accepted▶ FOLLOWING ─end of session, anything wrong▶ OVER
                         └─refused, anything wrong, no answer▶ OVER ─disconnected▶ CLOSED

Sans-IO: bytes and the time are arguments.
"""

import struct
from enum import Enum, auto

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import PeerError
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream
from feedhandler.ingest.tcp.stream import Joined, StreamClient, StreamEvent, StreamFault
from feedhandler.retrans.settings import RecoverySettings

#: MoldUDP64's header: session, first number, count; and the length in front of a message.
HEADER = struct.Struct(">10sQH")
LENGTH = struct.Struct(">H")
#: The count of a heartbeat, and of the end of a session.
HEARTBEAT, END_OF_SESSION = 0, 0xFFFF
#: The greatest number of a message, as our tables keep it.
NUMBER_MAX = (1 << 63) - 1
#: The number of a session's first message.
FIRST = 1

REFUSED_TEXT: dict[bytes, str] = {
    soupbin.NOT_AUTHORIZED: "not authorized: compare username and password with what the exchange "
    "has registered",
    soupbin.NO_SESSION: "it has no such session",
}


class State(Enum):
    """The states of a connection (see the module)."""

    CLOSED = auto()
    LOGIN = auto()
    FOLLOWING = auto()
    OVER = auto()


#: In which states each type of packet may come; all others in any.
MAY_COME: dict[bytes, frozenset[State]] = {
    soupbin.LOGIN_ACCEPTED: frozenset({State.LOGIN}),
    soupbin.LOGIN_REJECTED: frozenset({State.LOGIN}),
    soupbin.SEQUENCED: frozenset({State.FOLLOWING}),
    soupbin.END_OF_SESSION: frozenset({State.FOLLOWING}),
}


class SoupBinClient(StreamClient):
    """The client of one session.

    `login` is the first one; `packet_bytes_max` bounds packets of more than one message. A longer
    message has a packet of its own, which the channel refuses and counts. Raises `UsageError` for
    credentials that do not fit.
    """

    def __init__(self, times: RecoverySettings, login: Login, packet_bytes_max: int) -> None:
        super().__init__(times)
        login.encode()
        self.state = State.CLOSED
        self._login = login
        self._bytes_max = packet_bytes_max
        #: The session that is asked for, the number that comes next, and whether it was followed.
        self._session, self._next, self._followed = login.session, login.number, False
        self._begin()

    def _begin(self) -> None:
        """Reset everything that belongs to one connection."""
        self._stream = SoupStream(soupbin.FROM_SERVER)
        self._messages: list[bytes] = []
        self._size = HEADER.size

    # -- the connection -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Return whether the login was accepted, and the session goes on."""
        return self.state is State.FOLLOWING

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` must be called next."""
        dead_ns = super().deadline_ns
        return min(dead_ns, self._said_ns + self._heartbeat_ns) if self._connected else dead_ns

    def connected(self, now_ns: int) -> None:
        """Begin a new connection, with the login."""
        super().connected(now_ns)
        self._begin()
        self.state = State.LOGIN
        login = self._login
        asked = Login(login.username, login.password, self._session, self._next)
        self._output += asked.encode()

    def disconnected(self, now_ns: int) -> None:
        """End the connection; half a message that came is forgotten."""
        super().disconnected(now_ns)
        self._begin()
        self.state = State.CLOSED

    def _logout(self) -> bytes:
        return soupbin.packet(soupbin.LOGOUT_REQUEST) if self.up else b""

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[StreamEvent]:
        """Let time pass: send a heartbeat, give a silent server up."""
        events = super().tick(now_ns)
        if events:
            self.state = State.OVER
        elif self._connected and now_ns >= self._said_ns + self._heartbeat_ns:
            self._said_ns = now_ns
            self.counts["heartbeats_sent"] += 1
            self._output += soupbin.packet(soupbin.CLIENT_HEARTBEAT)
        return events

    def feed(self, data: bytes, now_ns: int) -> list[StreamEvent]:
        """Take in received bytes; return packets of the feed, and what became of the session."""
        if not self._connected:
            return []
        self.counts["bytes"] += len(data)
        events: list[StreamEvent] = []
        packets, fault = self._stream.feed(data)
        beat = False
        try:
            at = 0
            while at < len(packets):
                kind, payload = packets[at]
                if kind == soupbin.SEQUENCED and self.state is State.FOLLOWING:
                    at = self._run(packets, at, events)
                    continue
                at += 1
                if kind == soupbin.SERVER_HEARTBEAT:
                    self.counts["heartbeats"] += 1
                    beat = True
                else:
                    self._other(kind, payload, events)
            if fault:
                raise StreamFault("malformed", f"the server sent {fault}")
        except StreamFault as broken:
            return self._over(broken, events)
        except PeerError as error:
            return self._over(StreamFault("malformed", f"the server sent {error.message}"), events)
        self._flush(events)
        if self.state is State.FOLLOWING:
            if packets:  # in LOGIN the answer counts alone
                self._heard_ns = now_ns
            if beat:
                events.append(self._header(self._next, HEARTBEAT))
        return events

    def _over(self, fault: StreamFault, events: list[StreamEvent]) -> list[StreamEvent]:
        """Give the connection up, behind the messages before the fault."""
        self._flush(events)
        events.append(self._broken(fault))
        self.state = State.OVER
        return events

    def _other(self, kind: bytes, payload: bytes, events: list[StreamEvent]) -> None:
        """Take a packet that is no message."""
        if self.state not in MAY_COME.get(kind, State):
            text = f"the server sent a packet of type {kind!r} in {self.state.name}"
            raise StreamFault("malformed", text)
        if kind == soupbin.LOGIN_ACCEPTED:
            self._accepted(LoginAccepted.decode(payload), events)
        elif kind == soupbin.LOGIN_REJECTED:
            self._rejected(payload)
        elif kind == soupbin.END_OF_SESSION:
            self._flush(events)
            events.append(self._header(self._next, END_OF_SESSION))
            self.is_hopeless = True
            raise StreamFault("ended", f"the server ended session {self._session!r}")
        else:
            self.counts["ignored"] += 1

    def _accepted(self, accepted: LoginAccepted, events: list[StreamEvent]) -> None:
        session, number = accepted.session, accepted.number
        if not FIRST <= number <= NUMBER_MAX:
            raise PeerError(f"a session from number {number} on", "ask the exchange")
        if self._followed and session != self._session:
            self._forget()
            raise StreamFault("refused", f"the server is in session {session!r} now")
        self.state = State.FOLLOWING
        self.counts["logins"] += 1
        self._session, self._next, self._followed = session, number, True
        events.append(Joined(f"logged in, session {session!r} from number {number} on"))

    def _rejected(self, payload: bytes) -> None:
        reason = payload[:1]
        if reason == soupbin.NO_SESSION and self._followed:
            self._forget()
        else:
            self.is_hopeless = True
        text = REFUSED_TEXT.get(reason, f"reason {reason!r}")
        raise StreamFault("refused", f"the server refused the login: {text}")

    def _forget(self) -> None:
        """Ask for the server's current session next, from its beginning."""
        self._session, self._next, self._followed = "", FIRST, False

    # -- packets of the feed --------------------------------------------------------------------

    def _run(self, packets: list[tuple[bytes, bytes]], at: int, events: list[StreamEvent]) -> int:
        """Take sequenced messages from `at` on; return the offset of the first packet that is none.

        An empty message stands alone.
        """
        messages, size, bytes_max = self._messages, self._size, self._bytes_max
        while at < len(packets):
            kind, payload = packets[at]
            if kind != soupbin.SEQUENCED:
                break
            at += 1
            length = len(payload)
            if size + LENGTH.size + length > bytes_max or not length:
                self._flush(events)
                size = HEADER.size
            messages.append(LENGTH.pack(length))
            messages.append(payload)
            size += LENGTH.size + length
            if not length:
                self._flush(events)
                size = HEADER.size
        self._size = size
        return at

    def _flush(self, events: list[StreamEvent]) -> None:
        """Make the packet of the messages that wait."""
        if not self._messages:
            return
        count = len(self._messages) // 2
        events.append(self._header(self._next, count) + b"".join(self._messages))
        self._next += count
        self.counts["messages"] += count
        self._messages.clear()
        self._size = HEADER.size

    def _header(self, number: int, count: int) -> bytes:
        self.counts["packets"] += 1
        return HEADER.pack(self._session.encode("latin-1").ljust(10), number, count)
