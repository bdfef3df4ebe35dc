"""GLIMPSE: the state of an ITCH feed at request, whole, over SoupBinTCP.

A client logs in by username and password. From the login on the server sends, as sequenced packets,
the messages of the state now (directory, trading states, an "add order" for each open order), and
last "end of snapshot" (type G): the number of the first message of the multicast stream that is not
in it, in 20 digits. Each login has a snapshot of its own. (Nasdaq GLIMPSE 5.0; SoupBinTCP 3.00.)

**The client** has a connection only while a snapshot is wanted (`reconnection`, "On demand"): it is
made for a request, and closed behind the snapshot, or when the request was cancelled. A request
that comes before the login is answered takes the place of a cancelled one; a later one gets a
connection of its own, for the snapshot that runs may lack what was lost since. What becomes of a
connection:

    CLOSED ─connected▶ LOGIN ─accepted▶ SNAPSHOT ─end of snapshot▶ OVER ─disconnected▶ CLOSED
                         └─refused, nobody wants it, anything wrong▶ OVER ◀┘

**The form** of the snapshots is `GlimpseSnapshots`; the server is `glimpse_server`.

Sans-IO; `retrans.protocols.setup` says what it must do.
"""

import struct
from collections.abc import Iterator
from enum import Enum, auto

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream
from feedhandler.retrans.actions import AskRefresh
from feedhandler.retrans.events import (
    Broken,
    Event,
    Finished,
    RefreshAccepted,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
)
from feedhandler.retrans.protocol import NEVER_NS, RefreshReject, WireError
from feedhandler.retrans.protocols import moldudp64
from feedhandler.retrans.protocols.setup import ClientSetup
from feedhandler.retrans.requesting import PacketClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import WholeSnapshots

#: "End of snapshot": its type, and the digits of the number behind it.
END = b"G"
END_BYTES = len(END) + soupbin.NUMBER_BYTES
#: The greatest number of a message, as our tables keep it.
NUMBER_MAX = (1 << 63) - 1
#: The number of a snapshot's first packet.
FIRST = 1
#: The length in front of a message in the feed's packets.
MESSAGE_LENGTH = struct.Struct(">H")

#: What becomes of a request by a refusal of the login.
REFUSED: dict[bytes, RefreshReject] = {
    soupbin.NOT_AUTHORIZED: RefreshReject.PERMISSION,
    soupbin.NO_SESSION: RefreshReject.NO_DATA,
}
REFUSED_TEXT: dict[bytes, str] = {
    soupbin.NOT_AUTHORIZED: "not authorized: compare source_id and password with what the exchange "
    "has registered",
    soupbin.NO_SESSION: "there is no snapshot of this session",
}

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    "asked": "snapshots asked for",
    "not_asked": "snapshots not asked for: one is under way; or packets, which it has not",
    "cancelled": "requests that were cancelled",
    "logins": "logins that the server accepted",
    "login_refused": "logins that it refused",
    "heartbeats": "heartbeats from the server",
    "heartbeats_sent": "heartbeats sent",
    "snapshots": "snapshots that came whole",
    "failed_too_large": "snapshots of more than snapshot_bytes_max bytes",
    "failed_cut": "snapshots that failed as the connection broke, ended or could not be made",
    "cut_off": "connections that ended within a packet",
    "wrong_direction": "a packet that is not to be sent in this state",
    "bad_packet": "a packet that no SoupBinTCP server sends, or a message without a type",
    "malformed_answer": "an answer to the login, or an end of snapshot, that makes no sense",
    "silent": "no sign of life from the server in time",
    "unanswered": "no answer to the login, or no more of a snapshot, in time",
    "broken": "connections given up because of what the server sent, or did not send",
}


class State(Enum):
    """State of a connection (see the module)."""

    CLOSED = auto()
    LOGIN = auto()
    SNAPSHOT = auto()
    OVER = auto()


#: In which states each type of packet may come; heartbeats and debug packets in all.
MAY_COME: dict[bytes, frozenset[State]] = {
    soupbin.LOGIN_ACCEPTED: frozenset({State.LOGIN}),
    soupbin.LOGIN_REJECTED: frozenset({State.LOGIN}),
    soupbin.SEQUENCED: frozenset({State.SNAPSHOT}),
    soupbin.END_OF_SESSION: frozenset({State.SNAPSHOT}),
    soupbin.UNSEQUENCED: frozenset(),
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's messages are those of a GLIMPSE server. Raises `UsageError`.

    Its packets are MoldUDP64's, and it has no message of the end's type.
    """
    moldudp64.check_feed(feed)
    if feed.layouts.get(END[0]):
        raise UsageError(
            f"{feed.name} has a message of type {END.decode()}", "GLIMPSE ends snapshots by it"
        )


class GlimpseClient(PacketClient):
    """The client of one channel's GLIMPSE server; `counts` counts by the names of `COUNTS`.

    Raises `UsageError` for a feed of another framing, another number of channels than one, and
    credentials that are missing or do not fit.
    """

    def __init__(self, setup: ClientSetup) -> None:
        check_feed(setup.feed)
        if len(setup.refresh) != 1 or setup.retransmission:
            raise UsageError(
                "a GLIMPSE server serves one channel, and no requests for packets",
                "give each channel a refresh [[server]] of its own",
            )
        if not setup.password:
            raise UsageError(
                "a GLIMPSE server is logged in to by username and password",
                'source_id = "the username", and password_file or password_env',
            )
        super().__init__(setup.settings, dict.fromkeys(COUNTS, 0))
        login = Login(setup.source_id, setup.password, setup.session, FIRST)
        self._login = login.encode()
        self._service = setup.refresh[0].service
        self._bytes_max = setup.settings.snapshot_bytes_max
        self.state = State.CLOSED
        #: The request that waits for a connection, and the one that has it; 0: none.
        self._waiting_id = self._request_id = 0
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        super()._begin(now_ns)
        self._stream = SoupStream(soupbin.FROM_SERVER)
        self._messages: list[bytes] = []
        self._bytes = 0
        #: When the server sent what it owed.
        self._brought_ns = now_ns

    # -- the connection -------------------------------------------------------------------------

    @property
    def wants(self) -> bool:
        """Whether a snapshot waits for a connection."""
        return self._waiting_id != 0

    def connected(self, now_ns: int) -> None:
        """Begin a new connection, with the login, for the request that waits."""
        super().connected(now_ns)
        self.state = State.LOGIN
        self._request_id, self._waiting_id = self._waiting_id, 0
        self._output += self._login

    def disconnected(self, now_ns: int) -> None:
        """End the connection."""
        super().disconnected(now_ns)
        self.state = State.CLOSED

    @property
    def _held(self) -> int:
        return self._stream.held

    def failed(self, reason: str, now_ns: int) -> list[Event]:
        """Take that the connection could not be made, or broke: the request fails by that."""
        request_id = self._request_id or self._waiting_id
        self._request_id = self._waiting_id = 0
        if not request_id:
            return []
        self.counts["failed_cut"] += 1
        return [RefreshFailed(request_id, reason)]

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next; 0 for a connection that is not wanted any more."""
        if not self._up:
            return NEVER_NS
        if not self._request_id:
            return 0
        dead_ns = min(self._heard_ns, self._brought_ns) + self._dead_ns
        return min(dead_ns, self._said_ns + self._heartbeat_ns)

    # -- asking ---------------------------------------------------------------------------------

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot; return False (and count it) where one is under way."""
        if self._waiting_id or self._request_id:
            self.counts["not_asked"] += 1
            return False
        self.counts["asked"] += 1
        if self.state is State.LOGIN:
            self._request_id = request.request_id
        else:
            self._waiting_id = request.request_id
        return True

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        if request_id and request_id in (self._waiting_id, self._request_id):
            self.counts["cancelled"] += 1
            self._waiting_id = self._request_id = 0
            self._messages.clear()

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: send a heartbeat, give a silent server up, end an unwanted connection."""
        if now_ns < self.deadline_ns:
            return []
        if not self._request_id:
            return [self._finish()]
        if broken := self._silence(now_ns):
            return broken
        if now_ns >= self._brought_ns + self._dead_ns:
            text = "sent nothing that was wanted"
            return [self._late("unanswered", self._brought_ns, text, now_ns)]
        self._said_ns = now_ns
        self.counts["heartbeats_sent"] += 1
        self._output += soupbin.packet(soupbin.CLIENT_HEARTBEAT)
        return []

    def _packets(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        packets, fault = self._stream.feed(data)
        yield from packets
        if fault:
            raise WireError("bad_packet", fault)

    def _packet(self, packet: tuple[bytes, bytes], now_ns: int, events: list[Event]) -> None:
        try:
            self._process(*packet, now_ns, events)
        except WireError:
            raise
        except PeerError as error:  # a field that cannot be read
            raise WireError("malformed_answer", error.message) from None

    def _process(self, kind: bytes, payload: bytes, now_ns: int, events: list[Event]) -> None:
        if kind in (soupbin.SERVER_HEARTBEAT, soupbin.DEBUG):
            self.counts["heartbeats"] += kind == soupbin.SERVER_HEARTBEAT
            return
        if self.state not in MAY_COME[kind]:
            raise WireError("wrong_direction", f"a packet of type {kind!r} in {self.state.name}")
        self._brought_ns = now_ns
        if kind == soupbin.LOGIN_ACCEPTED:
            self._accepted(LoginAccepted.decode(payload), events)
        elif kind == soupbin.LOGIN_REJECTED:
            self._rejected(payload, events)
        elif kind == soupbin.END_OF_SESSION:
            raise WireError("malformed_answer", "the end of the session before that of a snapshot")
        elif payload[:1] == END:
            self._end(payload, events)
        else:
            self._message(payload, events)

    def _accepted(self, accepted: LoginAccepted, events: list[Event]) -> None:
        if accepted.number != FIRST:
            raise PeerError(f"a snapshot from packet {accepted.number} on", "ask the exchange")
        self.state = State.SNAPSHOT
        self.counts["logins"] += 1
        if self._request_id:
            events.append(RefreshAccepted(self._request_id))

    def _rejected(self, payload: bytes, events: list[Event]) -> None:
        text = REFUSED_TEXT.get(payload, f"reason {payload[:1]!r}")
        if self._request_id:
            reason = REFUSED.get(payload, RefreshReject.PERMISSION)
            events.append(RefreshRejected(self._request_id, reason))
            self._request_id = 0
        raise WireError("login_refused", f"a refusal of the login: {text}")

    def _message(self, payload: bytes, events: list[Event]) -> None:
        if not payload:
            raise WireError("bad_packet", "a message without a type")
        if not self._request_id:
            return
        self._bytes += MESSAGE_LENGTH.size + len(payload)
        if self._bytes > self._bytes_max:
            self.counts["failed_too_large"] += 1
            events.append(RefreshFailed(self._request_id, COUNTS["failed_too_large"]))
            events.append(self._finish())
        else:
            self._messages.append(MESSAGE_LENGTH.pack(len(payload)) + payload)

    def _end(self, payload: bytes, events: list[Event]) -> None:
        following = soupbin.decode_number(payload[1:END_BYTES])
        if len(payload) != END_BYTES or not 0 < following <= NUMBER_MAX:
            raise PeerError("an end of snapshot without a number", "the server is at fault")
        if self._request_id:
            self.counts["snapshots"] += 1
            last, messages = following - 1, tuple(self._messages)
            events.append(RefreshSnapshot(self._request_id, self._service, last, messages))
        events.append(self._finish())

    # -- ends -----------------------------------------------------------------------------------

    def _finish(self) -> Finished:
        """End a connection of which nothing more is wanted."""
        self._up = False
        self.state = State.OVER
        self._request_id = 0
        self._messages = []
        self._output += soupbin.packet(soupbin.LOGOUT_REQUEST)
        return Finished()

    def _break(self, name: str, reason: str) -> Broken:
        self.state = State.OVER
        self._messages = []
        return super()._break(name, reason)


class GlimpseSnapshots(WholeSnapshots):
    """The form of GLIMPSE's snapshots: whole, framed as packets outside the sequence.

    Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        check_feed(feed)
        super().__init__(feed)
