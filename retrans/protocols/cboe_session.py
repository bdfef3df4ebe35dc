"""Cboe's sessions over TCP: sequenced units, login and heartbeats, which its servers share.

Gap Request Proxy and Spin Server speak in units: a header of 8 bytes (length, count of messages,
unit, sequence number) and that many messages, each with its length and type in front; all
little-endian, text padded with blanks. A client's first message is the login (type 1: SessionSubId,
username, two blanks, password); the answer (type 2) accepts it or says why not, and then the
connection is closed. A peer with nothing to send sends a unit without messages now and then:
servers each second, and a client from which none comes for too long is closed. (Cboe US
Equities/Options Multicast PITCH Specification 2.41, Gap Request Proxy Messages, Spin Messages.)

`CboeClient` and `CboeSession` are the two ends of that; what else is said is their subclasses'
(`cboe_grp`, `cboe_spin`). Sans-IO; `retrans.protocols.setup` says what both must do.
"""

import struct
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.retrans.events import Event
from feedhandler.retrans.packet_reading import packets_of
from feedhandler.retrans.protocol import NEVER_NS, WIRE_ERRORS, StreamFramer, WireError
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.requesting import PacketClient
from feedhandler.retrans.serving import ClientsServer, PacketSession
from feedhandler.retrans.settings import ServerSettings

#: Hdr Length, Hdr Count, Hdr Unit, Hdr Sequence.
UNIT = struct.Struct("<HBBI")
#: Messages, each with its length and type in front.
MESSAGE_HEADER = struct.Struct("<BB")
LOGIN = struct.Struct("<BB4s4s2s10s")
LOGIN_RESPONSE = struct.Struct("<BBc")
#: Message types.
LOGS_IN, LOGIN_ANSWERED = 0x01, 0x02
#: Status of a login.
LOGGED_IN, NOT_AUTHORIZED, IN_USE, INVALID_SESSION = b"A", b"N", b"B", b"S"
LOGIN_TEXT: dict[bytes, str] = {
    NOT_AUTHORIZED: "not authorized: compare source_id and password with what Cboe has registered",
    IN_USE: "the session is in use: another client has logged in to it",
    INVALID_SESSION: "invalid session: compare session with the SessionSubId that Cboe gave",
}
#: Characters of SessionSubId, username and password.
SESSION_CHARS, USERNAME_CHARS, PASSWORD_CHARS = 4, 4, 10
#: The greatest unit.
UNIT_MAX = 255
#: Longest unit that a server sends: a spin fills them, and the length is a u16.
UNIT_BYTES_MAX = 65_535
#: Longest unit that a client sends.
REQUEST_BYTES_MAX = 256

#: What a client counts, by name.
COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    "logins": "logins that the server accepted",
    "login_refused": "logins that it refused",
    "not_logged_in": "messages of a server before it has answered the login",
    "heartbeats": "heartbeats from the server",
    "heartbeats_sent": "heartbeats sent",
    "cut_off": "connections that ended within a packet",
    "silent": "no sign of life from the server in time",
    "unanswered": "no answer in time: to the login, to a request, or the rest of one",
    "wrong_direction": "a message that no server may send",
    "broken": "connections given up because of what the server sent, or did not send",
}
#: What a server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    "clients": "connections accepted",
    "clients_refused": "connections closed because there were too many",
    "clients_left": "connections that the client or the network ended",
    "clients_silent": "connections closed because nothing came from the client",
    "clients_wrong": "connections closed because of what the client sent",
    "logins": "logins accepted",
    "login_refused": "logins refused",
    "not_logged_in": "messages of clients that had not logged in",
    "wrong_direction": "messages that no client may send",
    "heartbeats": "heartbeats from clients",
    "heartbeats_sent": "heartbeats sent",
}


def check_feed(feed: Feed) -> None:
    """Check that the feed's packets are sequenced units. Raises `UsageError`."""
    table = feed.table
    offsets = (table.length_at, table.count_at, table.service_at, table.sequence_at)
    sizes = (table.length_size, table.count_size, table.service_size, table.sequence_size)
    messages = (table.message_length_at, table.message_length_size, table.message_type_at)
    plain = not (table.big_endian or table.fix or table.length_add or table.kind_size)
    if (
        offsets != (0, 2, 3, 4)
        or sizes != (2, 1, 1, 4)
        or messages != (0, 1, 1)
        or not plain
        or not feed.counts_messages
    ):
        raise UsageError(
            f"{feed.name} has no sequenced units", 'include = "shared/cboe-pitch.toml"'
        )


def check_units(services: list[int]) -> None:
    """Check that each service can be a unit. Raises `UsageError`."""
    for service in services:
        if service > UNIT_MAX:
            raise UsageError(
                f"service {service} is no unit", f"units are numbered up to {UNIT_MAX}"
            )


def padded(what: str, text: str, size: int) -> bytes:
    """Return text as a field of `size` bytes. Raises `UsageError` where it does not fit."""
    if not (text.isascii() and text.isprintable()) or len(text) > size:
        raise UsageError(f"{what} is not {size} ASCII characters at most", "as Cboe gave it")
    return text.encode("ascii").ljust(size)


def unit_of(*messages: bytes, unit: int = 0) -> bytes:
    """Return a unit with these messages; without any it is a heartbeat."""
    size = UNIT.size + sum(map(len, messages))
    return UNIT.pack(size, len(messages), unit, 0) + b"".join(messages)


def messages_of(data: bytes) -> list[tuple[int, bytes]]:
    """Return (type, bytes) of each message of a unit. Raises `WireError` where they do not fit."""
    messages: list[tuple[int, bytes]] = []
    at = UNIT.size
    for _ in range(data[2]):
        size = data[at] if at < len(data) else 0
        if size < MESSAGE_HEADER.size or at + size > len(data):
            raise WireError("bad_packet", f"a message of {size} bytes, which does not fit")
        messages.append((data[at + 1], data[at : at + size]))
        at += size
    if at != len(data):
        raise WireError("wrong_count", "a unit with more than the messages it counts")
    return messages


def exactly(layout: struct.Struct, message: bytes) -> tuple[Any, ...]:
    """Return the fields of a message behind its header; longer ones have more than we know.

    Raises `WireError` for one that is too short.
    """
    if len(message) < layout.size:
        raise WireError("wrong_body_size", f"a message of {len(message)} bytes, not {layout.size}")
    return layout.unpack_from(message)[2:]


class CboeClient(PacketClient):
    """The client's end of successive connections to one server; `counts` counts by name.

    Subclasses have `_begun`, which resets what belongs to one connection, `_message`, which takes a
    message that is no login's, and `say` what they ask. What is asked before the login is accepted
    waits for that. A server that `_owes` an answer for `dead_us` is given up.

    Raises `UsageError` for a feed of another framing, and for credentials that do not fit.
    """

    def __init__(self, setup: ClientSetup, counts: dict[str, int]) -> None:
        check_feed(setup.feed)
        if not setup.session:
            raise UsageError(
                "Cboe's servers are logged in to by session, username and password",
                'session = "the SessionSubId", source_id = "the username", and password_file',
            )
        super().__init__(setup.settings, counts)
        self._feed = setup.feed
        self._login = LOGIN.pack(
            LOGIN.size, LOGS_IN,
            padded("session", setup.session, SESSION_CHARS),
            padded("source_id, the username,", setup.source_id, USERNAME_CHARS),
            b"  ",
            padded("the password", setup.password, PASSWORD_CHARS),
        )  # fmt: skip
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        super()._begin(now_ns)
        self._framer = StreamFramer(self._feed, UNIT_BYTES_MAX)
        self._logged_in = False
        #: What waits for the login.
        self._waiting = bytearray()
        #: Since when the server owes an answer, or more of one.
        self._owing_ns = NEVER_NS
        self._begun()

    @abstractmethod
    def _begun(self) -> None:
        """Reset what a subclass knows of one connection."""

    @abstractmethod
    def _message(self, code: int, message: bytes, now_ns: int, events: list[Event]) -> None:
        """Take a message of a server that has accepted the login. Raises `WireError`."""

    # -- the connection -------------------------------------------------------------------------

    def connected(self, now_ns: int) -> None:
        """Begin a new connection, with the login; nothing of an earlier one counts any more."""
        super().connected(now_ns)
        self._output += unit_of(self._login)
        self._owes(now_ns)

    @property
    def _held(self) -> int:
        return self._framer.buffered

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        if not self._up:
            return NEVER_NS
        dead_ns = min(self._heard_ns, self._owing_ns) + self._dead_ns
        return min(dead_ns, self._said_ns + self._heartbeat_ns)

    def say(self, message: bytes, unit: int) -> None:
        """Send a message, once the login is accepted."""
        target = self._output if self._logged_in else self._waiting
        target += unit_of(message, unit=unit)

    def _owes(self, now_ns: int) -> None:
        """Note that the server owes an answer from now on, if it did not before."""
        self._owing_ns = min(self._owing_ns, now_ns)

    def _paid(self, now_ns: int, more: bool) -> None:
        """Note that the server has answered; `more`: it owes something yet."""
        self._owing_ns = now_ns if more else NEVER_NS

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass: send a heartbeat, give up a silent server, or one that does not answer."""
        if not self._up or now_ns < self.deadline_ns:
            return []
        if broken := self._silence(now_ns):
            return broken
        if now_ns >= self._owing_ns + self._dead_ns:
            return [self._late("unanswered", self._owing_ns, "did not answer", now_ns)]
        self._said_ns = now_ns
        if self._logged_in:  # the login must be the first message, and it has been sent
            self.counts["heartbeats_sent"] += 1
            self._output += unit_of()
        return []

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._framer, data)

    def _packet(self, packet: bytes, now_ns: int, events: list[Event]) -> None:
        messages = messages_of(packet)
        self.counts["heartbeats"] += not messages
        for code, message in messages:
            if code == LOGIN_ANSWERED:
                self._answered(message, now_ns)
            elif not self._logged_in:
                raise WireError("not_logged_in", f"message {code:#04x} before the login's answer")
            else:
                self._message(code, message, now_ns, events)

    def _answered(self, message: bytes, now_ns: int) -> None:
        (status,) = exactly(LOGIN_RESPONSE, message)
        if self._logged_in:
            raise WireError("wrong_direction", "a second answer to the login")
        if status != LOGGED_IN:
            text = LOGIN_TEXT.get(status, f"status {status!r}")
            raise WireError("login_refused", f"a refusal of the login: {text}")
        self._logged_in = True
        self.counts["logins"] += 1
        self._paid(now_ns, bool(self._waiting))
        self._output += self._waiting
        self._waiting.clear()


class CboeServer(ClientsServer[ServerSettings, "CboeSession"]):
    """Base of Cboe's servers: the state that all clients share; `counts` counts by name.

    A client is known by SessionSubId and username: that of `setup.session`, and those of the
    settings' `source_ids`; where these are empty, any. Passwords are not compared.

    Raises `UsageError` for a feed of another framing, and for services that are no units.
    """

    def __init__(self, setup: ServerSetup, counts: dict[str, str]) -> None:
        check_feed(setup.feed)
        check_units(list(setup.stores))
        super().__init__(setup.settings, dict.fromkeys(counts, 0))
        self.setup = setup

    def login(self, name: tuple[str, str]) -> bytes:
        """Return the status of a login by (SessionSubId, username)."""
        session, username = name
        if self.setup.session and session != self.setup.session:
            return INVALID_SESSION
        if self.settings.source_ids and username not in self.settings.source_ids:
            return NOT_AUTHORIZED
        if any(each.name == name for each in self.sessions):
            return IN_USE
        return LOGGED_IN


class CboeSession(PacketSession[CboeServer]):
    """The server's end of one client's connection.

    Subclasses have `_message`, which takes a message of a client that has logged in and returns
    bytes to write, and may have more to say as time passes (`_due_ns`, `_tick`).
    """

    closes_slow = False

    def __init__(self, server: CboeServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        #: SessionSubId and username, once logged in.
        self.name: tuple[str, str] | None = None
        self._framer = StreamFramer(server.setup.feed, REQUEST_BYTES_MAX)

    @abstractmethod
    def _message(self, code: int, message: bytes, now_ns: int) -> bytes:
        """Take a message of a client that has logged in. Raises `WireError`."""

    def _due_ns(self) -> int:
        """Return when `_tick` has something to do."""
        return NEVER_NS

    def _tick(self, now_ns: int) -> bytes:
        """Return what is to be written now."""
        return b""

    @property
    def _busy(self) -> bool:
        return self._due_ns() <= self._now_ns

    def _drop(self) -> None:
        """Discard what waits to be sent; here nothing does."""

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return min(super().deadline_ns, NEVER_NS if self.closed else self._due_ns())

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write: heartbeats among them."""
        if self._idle(now_ns):
            return b""
        output = self._tick(now_ns)
        return output + unit_of() if self._beats(now_ns) else output

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._framer, data)

    def _packet(self, packet: bytes, now_ns: int, output: bytearray) -> None:
        messages = messages_of(packet)
        self._counts["heartbeats"] += not messages
        for code, message in messages:
            output += self._process(code, message, now_ns)

    def _process(self, code: int, message: bytes, now_ns: int) -> bytes:
        if self.closed:
            return b""
        if code == LOGS_IN:
            return self._logged_in(message)
        if self.name is None:
            raise WireError("not_logged_in", f"message {code:#04x} before its login")
        return self._message(code, message, now_ns)

    def _logged_in(self, message: bytes) -> bytes:
        if self.name is not None:
            raise WireError("wrong_direction", "a second login")
        session, username, _, _ = exactly(LOGIN, message)
        name = (session.decode("latin-1").rstrip(" "), username.decode("latin-1").rstrip(" "))
        status = self._server.login(name)
        if status == LOGGED_IN:
            self.name = name
            self._counts["logins"] += 1
        else:
            self._close("login_refused", LOGIN_TEXT[status])
        return unit_of(LOGIN_RESPONSE.pack(LOGIN_RESPONSE.size, LOGIN_ANSWERED, status))
