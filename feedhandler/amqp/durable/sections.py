"""An AMQP message's sections, as far as a queue reads them, and those that it writes itself.

What it is for: a producer's message is kept as it came. `look` finds what a queue needs of it:
where the sections begin that it passes on untouched (all behind header and delivery annotations,
AMQP 1.0, 3.2), and the message-id. `head_of` makes the header with which a message is handed out,
which has the number of failed deliveries. `read_request` and `write_reply` are for management
messages, which are read whole.

What it promises: bytes that are no message raise a `SectionError`, whatever they are; nothing is
read beyond them; nesting is bounded. No I/O.
"""

import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from feedhandler.amqp.durable.values import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    SectionError,
    decode,
    encode,
    encoded_list,
    fields_of,
    sections,
)

#: Bytes of a message-id in an answer; a longer one is left out, so that answers are bounded.
ID_BYTES_MAX = 1024
MessageId = str | bytes | int | uuid.UUID


@dataclass(slots=True)
class Look:
    """Parts of a message that a queue needs: the offset of what it passes on; priority and ttl,
    encoded (b"": none); the message-id, by `id_bytes` (b"": none)."""

    passed_on: int = 0
    priority: bytes = b""
    ttl: bytes = b""
    message_id: bytes = b""


@dataclass(slots=True)
class Request:
    """A management request: application-properties, reply-to, and the encoded correlation-id of its
    answer."""

    arguments: dict[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    correlation: bytes = b"\x40"


def look(data: bytes) -> Look:
    """Find what a queue needs of a message. Raises `SectionError`."""
    found = Look(passed_on=len(data))
    for code, at, value, end in sections(data):
        if code == HEADER:
            fields = fields_of(data, value, end)
            found.priority = fields[1] if len(fields) > 1 else b""
            found.ttl = fields[2] if len(fields) > 2 else b""
        elif code > DELIVERY_ANNOTATIONS:
            found.passed_on = min(found.passed_on, at)
        if code == PROPERTIES:
            fields = fields_of(data, value, end)
            if fields and fields[0] != b"\x40":
                found.message_id = id_bytes(decode(fields[0], 0)[0])
    return found


def id_of(data: bytes) -> bytes:
    """Return a message's message-id, by `id_bytes`; b"" for none, and for bytes that are no
    message: such are put by other means than AMQP."""
    try:
        return look(data).message_id
    except SectionError:
        return b""


def message_id(data: bytes) -> MessageId | None:
    """Return a message's message-id as its producer wrote it; None where it has none, or one longer
    than `ID_BYTES_MAX`, and for bytes that are no message."""
    try:
        for code, _, value, end in sections(data):
            if code == PROPERTIES:
                fields = fields_of(data, value, end)
                found = decode(fields[0], 0)[0] if fields else None
                return found if id_bytes(found) and len(fields[0]) <= ID_BYTES_MAX else None
    except SectionError:
        pass
    return None


def shown(data: bytes) -> tuple[str, bytes]:
    """Return a message for display: its message-id as text ("" for none), and its body's bytes (the
    repr of a value that is neither text nor bytes). Raises `SectionError`."""
    message_id, body = "", b""
    for code, _, value, end in sections(data):
        if code == PROPERTIES:
            fields = fields_of(data, value, end)
            found = decode(fields[0], 0)[0] if fields else None
            message_id = "" if found is None else _words(found).decode(errors="replace")
        elif code in (DATA, SEQUENCE, VALUE):
            body += _words(decode(data, value)[0])
    return message_id, body


def _words(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode()


def id_bytes(value: Any) -> bytes:
    """Encode a message-id (unsigned number, text, bytes or UUID) so that equal bytes mean equal
    ids; b"" for anything else. A number is equal whatever AMQP type it came in: clients choose
    differently."""
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, uuid.UUID):
        return b"g" + value.bytes
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return b"u" + value.to_bytes(8, "big")
    return b""


# -- handing out ------------------------------------------------------------------------------


def head_of(found: Look, first: bool, count: int) -> bytes:
    """Build the header section of a message that is handed out: durable; `first`: to no consumer
    before; `count`: failed deliveries."""
    if not found.priority and not found.ttl:
        return _plain_head(first, min(count, 255))
    fields = [
        b"\x41",
        found.priority or b"\x40",
        found.ttl or b"\x40",
        b"\x41" if first else b"\x42",
        b"\x70" + min(count, 0xFFFF_FFFF).to_bytes(4, "big"),
    ]
    return b"\x00\x53\x70" + encoded_list(fields)


@lru_cache(maxsize=512)
def _plain_head(first: bool, count: int) -> bytes:
    """Build the header of a message without priority and ttl, with `count` up to 255."""
    return b"\x00\x53\x70\xc0\x07\x05\x41\x40\x40" + bytes([0x41 if first else 0x42, 0x52, count])


# -- management -------------------------------------------------------------------------------


def read_request(data: bytes) -> Request:
    """Parse a management message. Raises `SectionError`."""
    found = Request()
    for code, _, value, end in sections(data):
        if code == PROPERTIES:
            fields = fields_of(data, value, end)
            fields += [b"\x40"] * (6 - len(fields))
            reply_to = decode(fields[4], 0)[0]
            found.reply_to = reply_to if isinstance(reply_to, str) else ""
            # Without a correlation-id the answer has the request's message-id.
            found.correlation = fields[0] if fields[5] == b"\x40" else fields[5]
        elif code == APPLICATION_PROPERTIES:
            arguments = decode(data, value)[0]
            if not isinstance(arguments, dict):
                raise SectionError("application-properties that are no map")
            found.arguments = {str(key): each for key, each in arguments.items()}
    return found


def write_reply(request: Request, arguments: dict[str, Any], body: Any) -> bytes:
    """Encode the answer to a request: application-properties, and a value as body."""
    fields = [b"\x40", b"\x40", encode(request.reply_to), b"\x40", b"\x40", request.correlation]
    return b"".join((
        b"\x00\x53\x73", encoded_list(fields), b"\x00\x53\x74", encode(arguments),
        b"\x00\x53\x77", encode(body),
    ))  # fmt: skip
