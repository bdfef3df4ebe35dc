"""SoupBinTCP 3.00/4.00: packets in a byte stream, for clients and servers alike.

A packet is a length (u16, big-endian, of all that follows it), a type (one character) and a
payload. `SoupStream` cuts a stream into packets, however it comes in pieces; `packet` makes one,
`Login` and `LoginAccepted` those with fields of fixed width. Text is ASCII, padded with blanks on
the right, sessions and numbers on the left.

No I/O, no time: who is silent for too long is the owner's to say (`HEARTBEAT_NS`).
"""

import struct
from dataclasses import dataclass

from feedhandler.codecs.errors import PeerError, UsageError

#: Types of packets, as the specification names them.
DEBUG = b"+"
LOGIN_REQUEST = b"L"
LOGIN_ACCEPTED = b"A"
LOGIN_REJECTED = b"J"
SEQUENCED = b"S"
UNSEQUENCED = b"U"
SERVER_HEARTBEAT = b"H"
CLIENT_HEARTBEAT = b"R"
END_OF_SESSION = b"Z"
LOGOUT_REQUEST = b"O"

#: What each end may send.
FROM_SERVER = frozenset(
    (DEBUG, LOGIN_ACCEPTED, LOGIN_REJECTED, SEQUENCED, UNSEQUENCED, SERVER_HEARTBEAT,
     END_OF_SESSION)
)  # fmt: skip
FROM_CLIENT = frozenset((DEBUG, LOGIN_REQUEST, UNSEQUENCED, CLIENT_HEARTBEAT, LOGOUT_REQUEST))

#: Why a login is refused.
NOT_AUTHORIZED, NO_SESSION = b"A", b"S"
REJECT_REASONS = {NOT_AUTHORIZED: "not authorized", NO_SESSION: "no such session"}

#: Either end sends something at least every second, and may take 15 s of silence for a dead peer.
HEARTBEAT_NS = 1_000_000_000

#: Most bytes of a payload: the length counts the type as well.
PAYLOAD_BYTES_MAX = 65_534
SESSION_BYTES = 10
NUMBER_BYTES = 20
USERNAME_BYTES = 6
PASSWORD_BYTES = 10

_HEAD = struct.Struct(">H")
_LOGIN = struct.Struct("6s10s10s20s")
_ACCEPTED = struct.Struct("10s20s")


class SoupStream:
    """Cuts a stream into packets.

    `types` are those that the peer may send, `payload_bytes_max` bounds their payloads. What is
    held never exceeds one packet and one piece of the stream.
    """

    def __init__(self, types: frozenset[bytes], payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._types = types
        self._bytes_max = payload_bytes_max
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a packet that has not come whole."""
        return len(self._held)

    def feed(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], str]:
        """Take in bytes; return the (type, payload) of each packet, and a fault or "".

        Behind a fault the stream cannot be read on: packets before it are returned, the rest is
        dropped.
        """
        self._held += data
        packets: list[tuple[bytes, bytes]] = []
        held, at, size, fault = bytes(self._held), 0, len(self._held), ""
        types, length_max, unpack_from = self._types, self._bytes_max + 1, _HEAD.unpack_from
        while size - at >= 3:
            length = unpack_from(held, at)[0]
            kind = held[at + 2 : at + 3]
            if not 0 < length <= length_max or kind not in types:
                fault = self._fault(length, kind)
                break
            end = at + 2 + length
            if end > size:
                break
            packets.append((kind, held[at + 3 : end]))
            at = end
        if not fault and size - at >= 2 and not _HEAD.unpack_from(held, at)[0]:
            fault = "a packet without a type"
        self._held = bytearray() if fault else self._held[at:]
        return packets, fault

    def _fault(self, length: int, kind: bytes) -> str:
        """Return what is wrong with a packet that cannot be."""
        if not length:
            return "a packet without a type"
        if kind not in self._types:
            return f"a packet of type {kind!r}"
        return f"a packet of {length - 1} bytes, more than {self._bytes_max}"


def packet(kind: bytes, payload: bytes = b"") -> bytes:
    """Encode a packet. Raises `UsageError` for a payload that is too long."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"a payload of {len(payload)} bytes", f"a packet has {PAYLOAD_BYTES_MAX} at most"
        )
    return _HEAD.pack(len(payload) + 1) + kind + payload


@dataclass(frozen=True, slots=True)
class Login:
    """A login: `session` "" asks for the current one, `number` 0 for its latest message."""

    username: str = ""
    password: str = ""
    session: str = ""
    number: int = 1

    def encode(self) -> bytes:
        """Encode the Login Request. Raises `UsageError` for a field that is too long."""
        return packet(
            LOGIN_REQUEST,
            _text("the username", self.username, USERNAME_BYTES)
            + _text("the password", self.password, PASSWORD_BYTES)
            + _session(self.session)
            + _number(self.number),
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Login":
        """Decode the payload of a Login Request. Raises `PeerError`."""
        if len(payload) < _LOGIN.size:
            raise PeerError("a login that is cut short", "the client's bytes are at fault")
        username, password, session, number = _LOGIN.unpack_from(payload)
        return cls(_read(username), _read(password), _read(session), decode_number(number))


@dataclass(frozen=True, slots=True)
class LoginAccepted:
    """The session, and the number of the first sequenced packet that follows."""

    session: str
    number: int

    def encode(self) -> bytes:
        """Encode the packet. Raises `UsageError` for a session that is too long."""
        return packet(LOGIN_ACCEPTED, _session(self.session) + _number(self.number))

    @classmethod
    def decode(cls, payload: bytes) -> "LoginAccepted":
        """Decode the payload. Raises `PeerError`."""
        if len(payload) < _ACCEPTED.size:
            raise PeerError("an accepted login that is cut short", "the server is at fault")
        session, number = _ACCEPTED.unpack_from(payload)
        return cls(_read(session), decode_number(number))


def _text(what: str, text: str, size: int) -> bytes:
    """Encode a text field. Raises `UsageError`, without the text, where it does not fit."""
    if len(text) > size or not (text.isascii() and text.isprintable()):
        raise UsageError(
            f"{what} is not {size} ASCII characters at most", "as the exchange gave it"
        )
    return text.encode().ljust(size)


def _session(text: str) -> bytes:
    """Encode a session, which stands to the right in its field."""
    return _text("the session", text, SESSION_BYTES).strip().rjust(SESSION_BYTES)


def _number(number: int) -> bytes:
    if not 0 <= number < 10**NUMBER_BYTES:
        raise UsageError(f"{number} is no sequence number", f"it has {NUMBER_BYTES} digits at most")
    return (b"%d" % number).rjust(NUMBER_BYTES)


def _read(text: bytes) -> str:
    return text.decode("latin-1").strip(" \0")


def decode_number(text: bytes) -> int:
    """Decode a sequence number. Raises `PeerError` where there is none."""
    digits = text.strip(b" \0")
    if not digits.isdigit():
        raise PeerError(f"{text!r} where a sequence number stands", "the peer is at fault")
    return int(digits)
