"""Entitlement: users log in by TCP and are given channels, a dictionary and keys.

`EntitlementServer` is the server of all connections, `EntitlementClient` a user's end of one. Both
are sans-IO: bytes go in, actions and events come out, and the driver of the server verifies
passwords, because that is slow on purpose. The session's messages are `entitlement_messages`'.

    CONNECTED ──Logon──▶ CHECKING ──right──▶ LIVE ──Logout──▶ ENDED
        └── any fault, and silence: one Logout with its reason ──▶ ENDED

`TABLE` has the next state for each state and input; a pair that is missing ends the connection.

A key is given `lead_ns` before it is valid, not earlier: a user's entitlement ends with the last
key that was given, so *revocation is not giving the next key*. A user whose channel is withdrawn is
informed, and can read on until then.

Limits: connections in all and for each user, bytes of a message, attempts by address, time until
the Logon, silence. A wrong password and an unknown user get the same answer.

Times are wall-clock ns and arguments, because keys are valid by the wall clock. Where that is set,
`clock_set` keeps it from counting as silence.
"""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from feedhandler.amqp.users import Throttle
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.fixcast import entitlement_messages as messages
from feedhandler.fixcast.entitlement_messages import (
    Dictionary,
    Given,
    Grant,
    Read,
    Withdrawal,
    given_fields,
    logon_fields,
    read_given,
)
from feedhandler.fixcast.keys import ChannelKey, KeyRing
from feedhandler.fixcast.session import NEVER

#: Bytes of a user's message: a Logon has a hundred.
CLIENT_MESSAGE_BYTES_MAX = 4096
#: Bytes of a server's message: a dictionary of all FIX has half of that.
SERVER_MESSAGE_BYTES_MAX = 1 << 20
#: Heartbeat intervals of silence that end a connection: one, and as much again for the answer.
SILENT_INTERVALS = 2
#: A connection's record of given keys is pruned beyond this size, of keys that are in no ring.
GIVEN_MAX = 4096
_SECOND = 1_000_000_000


class State(enum.Enum):
    """States of a connection at the server; a client uses the same."""

    CONNECTED = "connected"
    CHECKING = "checking"
    LIVE = "live"
    ENDED = "ended"


class Input(enum.Enum):
    """Inputs of a connection's state."""

    LOGON = "logon"
    RIGHT = "right"
    WRONG = "wrong"
    HEARTBEAT = "heartbeat"
    TEST = "test"
    LOGOUT = "logout"
    OTHER = "other"


#: The next state; a pair that is missing is a fault and ends the connection.
TABLE = {
    (State.CONNECTED, Input.LOGON): State.CHECKING,
    (State.CONNECTED, Input.LOGOUT): State.ENDED,
    (State.CHECKING, Input.RIGHT): State.LIVE,
    (State.CHECKING, Input.WRONG): State.ENDED,
    (State.CHECKING, Input.LOGOUT): State.ENDED,
    (State.LIVE, Input.HEARTBEAT): State.LIVE,
    (State.LIVE, Input.TEST): State.LIVE,
    (State.LIVE, Input.LOGOUT): State.ENDED,
}
_INPUTS = {
    messages.LOGON: Input.LOGON,
    messages.HEARTBEAT: Input.HEARTBEAT,
    messages.TEST_REQUEST: Input.TEST,
    messages.LOGOUT: Input.LOGOUT,
}


@dataclass(frozen=True, slots=True)
class EntitlementSettings:
    """Limits and times of the server.

    connections_max       connections of all users
    user_connections_max  connections of one user
    failures_max          failed Logons of an address within `failures_ns` that block it
    logon_ns              the longest time until the Logon
    heartbeat_ns          interval of Heartbeats, both ways
    lead_ns               how long before it is valid a key is given
    """

    connections_max: int = 1000
    user_connections_max: int = 4
    failures_max: int = 5
    failures_ns: int = 60 * _SECOND
    logon_ns: int = 5 * _SECOND
    heartbeat_ns: int = 30 * _SECOND
    lead_ns: int = 60 * _SECOND


class Send(NamedTuple):
    """An action: send these bytes on a connection."""

    connection: int
    data: bytes


class Close(NamedTuple):
    """An action: close a connection, once what was sent before has gone."""

    connection: int


class Verify(NamedTuple):
    """An action: verify a password, and call `verified` with the result."""

    connection: int
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Verify({self.connection}, {self.user!r})"


Action = Send | Close | Verify


@dataclass(slots=True)
class _Connection:
    """One connection at the server."""

    id: int
    address: str
    heard_ns: int
    state: State = State.CONNECTED
    user: str = ""
    expected: int = 1
    next: int = 1
    sent_ns: int = 0
    stream: FixStream = field(default_factory=lambda: FixStream(CLIENT_MESSAGE_BYTES_MAX))
    channels: set[str] = field(default_factory=set)
    given: set[ChannelKey] = field(default_factory=set)


class EntitlementServer:
    """Server that gives users what they are entitled to, sans-IO.

    `users` has the channels of each user, `grants` what is said of a channel, `rings` its keys,
    which others may add to: `tick` gives what is due. `counts`: what happened, by kind.
    """

    def __init__(
        self,
        users: dict[str, Iterable[str]],
        grants: Iterable[Grant],
        rings: Iterable[KeyRing],
        settings: EntitlementSettings | None = None,
        dictionary: Dictionary | None = None,
    ) -> None:
        self.settings = settings or EntitlementSettings()
        self.counts: Counter[str] = Counter()
        self._grants = {grant.channel: grant for grant in grants}
        self._rings = {ring.channel: ring for ring in rings}
        self._dictionary = dictionary
        self._users: dict[str, set[str]] = {}
        self._connections: dict[int, _Connection] = {}
        self._throttle = Throttle(self.settings.failures_max, self.settings.failures_ns)
        for name, channels in users.items():
            self._users[name] = self._known(channels)

    def __len__(self) -> int:
        return len(self._connections)

    # -- inputs

    def connected(self, id: int, address: str, now_ns: int) -> list[Action]:
        """Handle a new connection `id` from an address."""
        connection = self._connections[id] = _Connection(id, address, now_ns)
        if len(self._connections) > self.settings.connections_max:
            return self._end(connection, "too many connections", "too_many_connections", now_ns)
        if self._throttle.shut(address, now_ns):
            return self._end(connection, "too many failed Logons", "shut_out", now_ns)
        return []

    def received(self, id: int, data: bytes, now_ns: int) -> list[Action]:
        """Handle bytes of a connection."""
        connection = self._connections.get(id)
        if connection is None or connection.state is State.ENDED:
            return []
        actions: list[Action] = []
        try:
            said = connection.stream.receive(data)
            for each in said:
                if connection.state is not State.ENDED:
                    actions += self._process(connection, messages.read(each), now_ns)
            if connection.stream.fault and connection.state is not State.ENDED:
                connection.stream.receive(b"")
        except PeerError as error:
            actions += self._end(connection, error.message, "malformed", now_ns)
        return actions

    def verified(self, id: int, right: bool, now_ns: int) -> list[Action]:
        """Handle the result of `Verify`."""
        connection = self._connections.get(id)
        if connection is None or connection.state is not State.CHECKING:
            return []
        # Whatever the password: connections that were there before would try one each.
        if self._throttle.shut(connection.address, now_ns):
            return self._end(connection, "too many failed Logons", "shut_out", now_ns)
        if not right or connection.user not in self._users:
            self._throttle.failed(connection.address, now_ns)
            connection.state = TABLE[State.CHECKING, Input.WRONG]
            return self._end(connection, "user or password is wrong", "wrong_password", now_ns)
        used = sum(
            each.user == connection.user and each.state is State.LIVE
            for each in self._connections.values()
        )
        if used >= self.settings.user_connections_max:
            return self._end(
                connection, "too many connections of this user", "user_connections", now_ns
            )
        connection.state = TABLE[State.CHECKING, Input.RIGHT]
        self.counts["logons"] += 1
        heartbeat_s = max(self.settings.heartbeat_ns // _SECOND, 1)
        actions = self._say(connection, messages.LOGON, now_ns, logon_fields(heartbeat_s))
        if self._dictionary:
            actions += self._give(connection, self._dictionary, now_ns)
        return actions + self._update(connection, now_ns)

    def closed(self, id: int) -> None:
        """Forget a connection that was closed."""
        self._connections.pop(id, None)

    def entitle(self, user: str, channels: Iterable[str], now_ns: int) -> list[Action]:
        """Set a user's channels from now on. Raises `UsageError` where a channel does not exist."""
        self._users[user] = self._known(channels)
        return [a for each in self._of(user) for a in self._update(each, now_ns)]

    def dismiss(self, user: str, now_ns: int) -> list[Action]:
        """Remove a user, whose sessions end with a Logout."""
        self._users.pop(user, None)
        return [
            action
            for each in self._of(user)
            for action in self._end(each, "the user was dismissed", "dismissed", now_ns)
        ]

    def clock_set(self, by_ns: int) -> None:
        """Record that the clock was set forward by so much, or back where that is negative."""
        for connection in self._connections.values():
            connection.heard_ns += by_ns
            connection.sent_ns += by_ns

    @property
    def users(self) -> set[str]:
        """Names of all users."""
        return set(self._users)

    def tick(self, now_ns: int) -> list[Action]:
        """Give keys that are due, send Heartbeats, end silent connections."""
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            if connection.state is State.LIVE:
                actions += self._keys(connection, now_ns)
            if now_ns >= self._silent_ns(connection):
                actions += self._end(connection, "nothing was heard", "silent", now_ns)
            elif (
                connection.state is State.LIVE
                and now_ns >= connection.sent_ns + self.settings.heartbeat_ns
            ):
                actions += self._say(connection, messages.HEARTBEAT, now_ns)
        return actions

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to do next."""
        deadlines = [NEVER]
        for each in self._connections.values():
            deadlines.append(self._silent_ns(each))
            if each.state is State.LIVE:
                deadlines.append(each.sent_ns + self.settings.heartbeat_ns)
                deadlines += [key.from_ns - self.settings.lead_ns for key in self._lacking(each)]
        return min(deadlines)

    # -- internals

    def _of(self, user: str) -> list[_Connection]:
        """Return the live connections of a user."""
        live = (each for each in self._connections.values() if each.state is State.LIVE)
        return [each for each in live if each.user == user]

    def _known(self, channels: Iterable[str]) -> set[str]:
        given = set(channels)
        for id in sorted(given - self._grants.keys()):
            raise UsageError(
                f"there is no channel {id}", f"there are: {', '.join(sorted(self._grants))}"
            )
        return given

    def _silent_ns(self, connection: _Connection) -> int:
        """Return when a connection has been silent for too long."""
        if connection.state in (State.CONNECTED, State.CHECKING):
            return connection.heard_ns + self.settings.logon_ns
        if connection.state is State.LIVE:
            return connection.heard_ns + SILENT_INTERVALS * self.settings.heartbeat_ns
        return NEVER

    def _process(self, connection: _Connection, message: Read, now_ns: int) -> list[Action]:
        """Handle one message."""
        if message.sequence != connection.expected:
            return self._end(
                connection,
                f"MsgSeqNum is {message.sequence}, expected is {connection.expected}",
                "wrong_number",
                now_ns,
            )
        connection.expected += 1
        event = _INPUTS.get(message.type, Input.OTHER)
        state = TABLE.get((connection.state, event))
        if state is None:
            type = message.type.decode(errors="replace")
            what = f"a {type} is not expected here"
            return self._end(connection, what, "unexpected", now_ns)
        if state is State.ENDED:
            return self._end(connection, "", "logouts", now_ns)
        if event is Input.LOGON and self._throttle.shut(connection.address, now_ns):
            return self._end(connection, "too many failed Logons", "shut_out", now_ns)
        if event is Input.LOGON:
            connection.user = message.text(messages.USER)
            connection.state = state
            return [Verify(connection.id, connection.user, message.text(messages.PASSWORD))]
        connection.heard_ns = now_ns
        if event is Input.TEST:
            answer = message.values.get(messages.TEST_ID, b"")
            fields = [(messages.TEST_ID, answer)] if answer else []
            return self._say(connection, messages.HEARTBEAT, now_ns, fields)
        return []

    def _update(self, connection: _Connection, now_ns: int) -> list[Action]:
        """Announce channels that were granted or withdrawn, then give keys."""
        actions: list[Action] = []
        entitled = self._users[connection.user]
        for id in sorted(connection.channels - entitled):
            actions += self._give(connection, Withdrawal(id), now_ns)
        for id in sorted(entitled - connection.channels):
            actions += self._give(connection, self._grants[id], now_ns)
        connection.channels = set(entitled)
        return actions + self._keys(connection, now_ns)

    def _lacking(self, connection: _Connection) -> list[ChannelKey]:
        """Return the keys of a connection's channels that it has not been given."""
        return [
            key
            for id in sorted(connection.channels)
            if id in self._rings
            for key in self._rings[id].listed()
            if key not in connection.given
        ]

    def _keys(self, connection: _Connection, now_ns: int) -> list[Action]:
        """Give the keys that are valid, or will be soon."""
        actions: list[Action] = []
        if len(connection.given) > GIVEN_MAX:
            held = (key for ring in self._rings.values() for key in ring.listed())
            connection.given.intersection_update(held)
        for key in self._lacking(connection):
            if key.until_ns <= now_ns:
                connection.given.add(key)
            elif key.from_ns - self.settings.lead_ns <= now_ns:
                connection.given.add(key)
                actions += self._give(connection, key, now_ns)
                self.counts["keys"] += 1
        return actions

    def _give(self, connection: _Connection, given: Given, now_ns: int) -> list[Action]:
        type, fields = given_fields(given)
        return self._say(connection, type, now_ns, fields)

    def _say(
        self,
        connection: _Connection,
        type: bytes,
        now_ns: int,
        fields: Iterable[tuple[int, messages.Value]] = (),
    ) -> list[Action]:
        data = messages.write(type, connection.next, fields)
        connection.next += 1
        connection.sent_ns = now_ns
        return [Send(connection.id, data)]

    def _end(self, connection: _Connection, why: str, counted: str, now_ns: int) -> list[Action]:
        """End a connection with one Logout, which has the reason as its text."""
        self.counts[counted] += 1
        fields: list[tuple[int, messages.Value]] = [(messages.TEXT, why)] if why else []
        said = self._say(connection, messages.LOGOUT, now_ns, fields)
        connection.state = State.ENDED
        return [*said, Close(connection.id)]


# -- the user's end
# -------------------------------------------------------------------------------------


class LoggedOn(NamedTuple):
    """The server has accepted the Logon."""


class LoggedOut(NamedTuple):
    """The session has ended: the server's reason, or the client's own."""

    text: str


Event = LoggedOn | LoggedOut | Given


class EntitlementClient:
    """A user's end of one connection, sans-IO; `data_to_send` has the bytes to send.

    rings     keys by channel, expired ones removed
    channels  what was granted, by channel
    """

    def __init__(self, user: str, password: str, heartbeat_ns: int = 30 * _SECOND) -> None:
        self.rings: dict[str, KeyRing] = {}
        self.channels: dict[str, Grant] = {}
        self.dictionary: Dictionary | None = None
        self.state = State.CONNECTED
        self._user, self._password = user, password
        self._interval_ns = heartbeat_ns
        self._stream = FixStream(SERVER_MESSAGE_BYTES_MAX)
        self._output: list[bytes] = []
        self._next = self._expected = 1
        self._sent_ns = self._heard_ns = 0

    def start(self, now_ns: int) -> None:
        """Send the Logon."""
        interval_s = max(self._interval_ns // _SECOND, 1)
        self._heard_ns = now_ns
        self._say(messages.LOGON, now_ns, logon_fields(interval_s, self._user, self._password))
        self.state = State.CHECKING

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and clear them."""
        data, self._output = b"".join(self._output), []
        return data

    def receive(self, data: bytes, now_ns: int) -> list[Event]:
        """Handle the server's bytes, and return events. Raises `PeerError` where they are
        faulty."""
        events: list[Event] = []
        for each in self._stream.receive(data):
            if self.state is not State.ENDED:
                events += self._process(messages.read(each), now_ns)
        if self._stream.fault and self.state is not State.ENDED:
            self._stream.receive(b"")
        return events

    def tick(self, now_ns: int) -> list[Event]:
        """Send a Heartbeat where one is due; return `LoggedOut` where the server was silent."""
        if self.state not in (State.CHECKING, State.LIVE):
            return []
        if now_ns >= self._heard_ns + SILENT_INTERVALS * self._interval_ns:
            self.state = State.ENDED
            return [LoggedOut("the server was silent")]
        if self.state is State.LIVE and now_ns >= self._sent_ns + self._interval_ns:
            self._say(messages.HEARTBEAT, now_ns)
        return []

    def clock_set(self, by_ns: int) -> None:
        """Record that the clock was set forward by so much, or back where that is negative."""
        self._heard_ns += by_ns
        self._sent_ns += by_ns

    def stop(self, now_ns: int) -> None:
        """Send the Logout."""
        if self.state in (State.CHECKING, State.LIVE):
            self._say(messages.LOGOUT, now_ns)
        self.state = State.ENDED

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to do next."""
        if self.state not in (State.CHECKING, State.LIVE):
            return NEVER
        silent_ns = self._heard_ns + SILENT_INTERVALS * self._interval_ns
        if self.state is State.CHECKING:
            return silent_ns  # Heartbeats begin when the Logon is answered
        return min(silent_ns, self._sent_ns + self._interval_ns)

    def _say(
        self, type: bytes, now_ns: int, fields: Iterable[tuple[int, messages.Value]] = ()
    ) -> None:
        self._output.append(messages.write(type, self._next, fields))
        self._next += 1
        self._sent_ns = now_ns

    def _process(self, message: Read, now_ns: int) -> list[Event]:
        if message.sequence != self._expected:
            raise PeerError(
                f"the server's MsgSeqNum is {message.sequence}, expected is {self._expected}",
                "connect anew",
            )
        self._expected += 1
        self._heard_ns = now_ns
        if message.type == messages.LOGOUT:
            self.state = State.ENDED
            return [LoggedOut(message.text(messages.TEXT))]
        if self.state is State.CHECKING:
            if message.type != messages.LOGON:
                raise PeerError("the server's first message is no Logon", "see the server")
            self.state = State.LIVE
            self._interval_ns = max(messages.number(message.values, messages.INTERVAL), 1) * _SECOND
            return [LoggedOn()]
        if message.type == messages.TEST_REQUEST:
            fields = [(messages.TEST_ID, message.values.get(messages.TEST_ID, b"-"))]
            self._say(messages.HEARTBEAT, now_ns, fields)
        event = read_given(message)
        if event is None:
            return []
        self._keep(event, now_ns)
        return [event]

    def _keep(self, given: Given, now_ns: int) -> None:
        match given:
            case ChannelKey():
                ring = self.rings.setdefault(given.channel, KeyRing(given.channel))
                ring.expire(now_ns)
                try:
                    ring.add(given)
                except UsageError as error:
                    raise PeerError(error.message, "see the server") from None
            case Dictionary():
                self.dictionary = given
            case Withdrawal():
                self.channels.pop(given.channel, None)
            case _:
                self.channels[given.channel] = given
