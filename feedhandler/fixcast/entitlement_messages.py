"""Messages of the entitlement session: a regular FIX session by TCP, between a user and a server.

Logon, Heartbeat, TestRequest and Logout are FIX's own. What a user is given comes in user-defined
types, from the server alone:

    UD  dictionary   20001 name, 96 its content
    UC  channel      20002 id, 20003 message types (none: all), 20004 publishers' public keys in
                     hex, 96 its definition
    UK  key          20002 channel, 20005 key id, 20006 valid from and 20007 until, ns since 1970,
                     96 the secret
    UR  withdrawal   20002 channel: no further key of it will come

Tags 20000 to 39999 are for bilateral use, types that begin with U for users. Every message has
MsgSeqNum (34), which counts from 1 in each direction.
"""

from collections.abc import Iterable
from typing import NamedTuple

from feedhandler.codecs.errors import FeedhandlerError, PeerError
from feedhandler.codecs.fix.encode import Value, encode
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.fixcast.keys import FOREVER, KEY_ID_MAX, ChannelKey

LOGON, HEARTBEAT, TEST_REQUEST, LOGOUT = b"A", b"0", b"1", b"5"
DICTIONARY, CHANNEL, KEY, WITHDRAWAL = b"UD", b"UC", b"UK", b"UR"
SEQUENCE, TYPE, TEXT, DATA = 34, 35, 58, 96
ENCRYPTION, INTERVAL, TEST_ID, APPLICATION_VERSION = 98, 108, 112, 1137
USER, PASSWORD = 553, 554
NAME, CHANNEL_ID, TYPES, PUBLISHERS, KEY_ID, FROM, UNTIL = range(20001, 20008)
#: Upper limit on the fields of one message; those used here have a dozen.
FIELDS_MAX = 64
#: FIX 5.0 SP2.
_VERSION = 9
_NUMBER_DIGITS_MAX = 20


class Grant(NamedTuple):
    """A channel that a user may receive.

    types       message types; none: all
    publishers  public keys of those who sign it
    definition  the channel's definition, as text
    """

    channel: str
    types: tuple[str, ...] = ()
    publishers: tuple[bytes, ...] = ()
    definition: bytes = b""


class Dictionary(NamedTuple):
    """A FIX dictionary, as the text of a file."""

    name: str
    content: bytes


class Withdrawal(NamedTuple):
    """The withdrawal of a channel: no further key of it will come."""

    channel: str


Given = Grant | Dictionary | ChannelKey | Withdrawal


class Read(NamedTuple):
    """A decoded message: type, number, and fields by tag, the first of a repeated tag."""

    type: bytes
    sequence: int
    values: dict[int, bytes]

    def text(self, tag: int) -> str:
        """Return a field as text; bytes that are not UTF-8 are replaced."""
        return self.values.get(tag, b"").decode(errors="replace")


def read(data: bytes) -> Read:
    """Decode a framed message. Raises `PeerError` where its fields are faulty."""
    values: dict[int, bytes] = {}
    try:
        for tag, value in fields(data, FIELDS_MAX):
            values.setdefault(tag, value)
    except FixError as error:
        raise PeerError(f"a message that cannot be read: {error}", "see its sender") from error
    return Read(values.get(TYPE, b""), number(values, SEQUENCE), values)


def number(values: dict[int, bytes], tag: int) -> int:
    """Return a field as a whole number. Raises `PeerError` where it is none."""
    text = values.get(tag, b"")
    if not text.isdigit() or len(text) > _NUMBER_DIGITS_MAX:
        raise PeerError(f"field {tag} is no number: {text[:20]!r}", "see its sender")
    return int(text)


def write(type: bytes, sequence: int, more: Iterable[tuple[int, Value]] = ()) -> bytes:
    """Encode a message with these fields after its number."""
    return encode([(TYPE, type), (SEQUENCE, sequence), *more])


def logon_fields(heartbeat_s: int, user: str = "", password: str = "") -> list[tuple[int, Value]]:
    """Return the fields of a Logon; the server's names no user."""
    named: list[tuple[int, Value]] = [(USER, user), (PASSWORD, password)] if user else []
    return [(ENCRYPTION, 0), (INTERVAL, heartbeat_s), *named, (APPLICATION_VERSION, _VERSION)]


def given_fields(given: Given) -> tuple[bytes, list[tuple[int, Value]]]:
    """Return the type and fields of what a user is given."""
    match given:
        case ChannelKey():
            pairs: list[tuple[int, Value]] = [(CHANNEL_ID, given.channel), (KEY_ID, given.id)]
            pairs += [(FROM, given.from_ns), (UNTIL, given.until_ns), (DATA, given.secret)]
            return KEY, pairs
        case Dictionary():
            return DICTIONARY, [(NAME, given.name), (DATA, given.content)]
        case Withdrawal():
            return WITHDRAWAL, [(CHANNEL_ID, given.channel)]
    more: list[tuple[int, Value]] = [(CHANNEL_ID, given.channel)]
    if given.types:
        more.append((TYPES, " ".join(given.types)))
    if given.publishers:
        more.append((PUBLISHERS, " ".join(publisher.hex() for publisher in given.publishers)))
    if given.definition:
        more.append((DATA, given.definition))
    return CHANNEL, more


def read_given(message: Read) -> Given | None:
    """Return what a message gives; None where it is another type.

    Raises `PeerError` where it is faulty.
    """
    channel = message.text(CHANNEL_ID)
    if message.type not in (DICTIONARY, CHANNEL, KEY, WITHDRAWAL):
        return None
    if message.type == DICTIONARY:
        return Dictionary(message.text(NAME), message.values.get(DATA, b""))
    if not channel:
        raise PeerError(f"a {message.type.decode()} names no channel", "see the server")
    if message.type == WITHDRAWAL:
        return Withdrawal(channel)
    try:
        if message.type == KEY:
            return _read_key(message, channel)
        publishers = tuple(bytes.fromhex(each) for each in message.text(PUBLISHERS).split())
    except (ValueError, FeedhandlerError) as error:
        raise PeerError(f"channel {channel}: {error}", "see the server") from None
    types = tuple(message.text(TYPES).split())
    return Grant(channel, types, publishers, message.values.get(DATA, b""))


def _read_key(message: Read, channel: str) -> ChannelKey:
    id, begin, end = (number(message.values, tag) for tag in (KEY_ID, FROM, UNTIL))
    secret = message.values.get(DATA, b"")
    return ChannelKey(channel, min(id, KEY_ID_MAX + 1), secret, begin, min(end, FOREVER))
