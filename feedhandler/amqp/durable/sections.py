"""An AMQP message's sections, as far as a queue looks into them, and the ones it writes itself.

What it is for: a producer's message is kept as it came. `look` finds what a queue has to know of
it: where the sections begin that it passes on untouched (all behind header and delivery
annotations, AMQP 1.0, 3.2), and the message-id. `head_of` makes the header with which a message is
handed out: how often that was tried before belongs there. `read_request` and `write_reply` are the
same for management messages, which are read whole.

What it promises: bytes that are no message are a `SectionError`, whatever they are; nothing is read
beyond them; nesting is bounded. No I/O.
"""

import struct
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78
#: Sections by the names they may have in place of their codes.
NAMES = {
    f"amqp:{name}".encode(): code
    for name, code in (
        ("header:list", HEADER),
        ("delivery-annotations:map", DELIVERY_ANNOTATIONS),
        ("message-annotations:map", MESSAGE_ANNOTATIONS),
        ("properties:list", PROPERTIES),
        ("application-properties:map", APPLICATION_PROPERTIES),
        ("data:binary", DATA),
        ("amqp-sequence:list", SEQUENCE),
        ("amqp-value:*", VALUE),
        ("footer:map", FOOTER),
    )
}
#: Values in values in values: no message of a queue's is deeper.
DEPTH_MAX = 8
#: Items of one compound value that is read.
ITEMS_MAX = 1024
#: A longer message-id is not told in an answer, so that answers are bounded.
ID_BYTES_MAX = 1024
#: Constructors by their upper half: bytes of the value, or of its size.
_FIXED_BYTES = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_BYTES = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
_NUMBERS = {
    0x50: ">B", 0x60: ">H", 0x70: ">I", 0x80: ">Q", 0x51: ">b", 0x61: ">h", 0x71: ">i", 0x81: ">q",
    0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x72: ">f", 0x82: ">d", 0x83: ">q",
}  # fmt: skip
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}

MessageId = str | bytes | int | uuid.UUID


class SectionError(ValueError):
    """Bytes that are no AMQP message."""


@dataclass(slots=True)
class Look:
    """What a queue knows of a message: where what it passes on begins; its priority and ttl, as
    they are encoded (b"": none); the message-id, by `id_bytes` (b"": none)."""

    passed_on: int = 0
    priority: bytes = b""
    ttl: bytes = b""
    message_id: bytes = b""


@dataclass(slots=True)
class Request:
    """A management message: application-properties, where the answer goes, and what it is told
    apart by there, encoded."""

    arguments: dict[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    correlation: bytes = b"\x40"


def skip(data: bytes, at: int, depth: int = 0) -> int:
    """Where the value that begins at `at` ends."""
    if at >= len(data) or depth > DEPTH_MAX:
        raise SectionError("a value is cut off, or too deep")
    code = data[at]
    if code == 0:
        return skip(data, skip(data, at + 1, depth + 1), depth + 1)
    end = at + 1
    kind = code >> 4
    width = _SIZE_BYTES.get(kind)
    if width is None:
        size = _FIXED_BYTES.get(kind, -1)
        if size < 0:
            raise SectionError(f"no constructor: {code:#04x}")
        end += size
    else:
        end += width + int.from_bytes(data[end : end + width], "big")
    if end > len(data):
        raise SectionError("a value reaches past the message's end")
    return end


def sections(data: bytes) -> list[tuple[int, int, int, int]]:
    """(code, where it begins, where its value begins, where it ends) of each section, in order."""
    found, at, last = [], 0, 0
    while at < len(data):
        if data[at] != 0:
            raise SectionError("a section has no descriptor")
        value = skip(data, at + 1)
        code = _section_code(data, at + 1, value)
        end = skip(data, value)
        if code < last or (code == last and code not in (DATA, SEQUENCE)):
            raise SectionError("sections are out of order")
        last = code
        found.append((code, at, value, end))
        at = end
    if not found:
        raise SectionError("empty")
    return found


def _section_code(data: bytes, at: int, end: int) -> int:
    kind = data[at]
    if kind == 0x53:
        code = data[at + 1]
    elif kind == 0x80:
        code = int.from_bytes(data[at + 1 : end], "big")
    elif kind == 0xA3:
        code = NAMES.get(data[at + 2 : end], 0)
    else:
        code = 0
    if not HEADER <= code <= FOOTER:
        raise SectionError("no section of a message")
    return code


def look(data: bytes) -> Look:
    """What a queue has to know of a message. Raises `SectionError`."""
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


def fields_of(data: bytes, at: int, end: int) -> list[bytes]:
    """The items of a list, encoded as they are. Raises `SectionError`."""
    code = data[at]
    if code == 0x45:
        return []
    if code not in (0xC0, 0xD0):
        raise SectionError("a section that should be a list is none")
    width = 1 if code == 0xC0 else 4
    count = int.from_bytes(data[at + 1 + width : at + 1 + 2 * width], "big")
    place = at + 1 + 2 * width
    fields: list[bytes] = []
    for _ in range(count):
        after = skip(data, place)
        if after > end or len(fields) >= ITEMS_MAX:
            raise SectionError("a list's items reach past its end")
        fields.append(data[place:after])
        place = after
    return fields


def message_id(data: bytes) -> MessageId | None:
    """A message's message-id as its producer wrote it; None where it has none, or one longer than
    `ID_BYTES_MAX`, and for bytes that are no message."""
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
    """A message for people: its message-id as text ("" for none), its body's bytes (of a value that
    is neither text nor bytes: as Python writes it). Raises `SectionError`."""
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
    """A message-id as bytes that differ where the ids do: an unsigned number, text, bytes, UUID.
    b"" for what is none. (Clients that ask for an id say a number as what they have.)"""
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
    """The header section of a message that is handed out: durable; `first`: to nobody before;
    `count`: tries that have failed."""
    if not found.priority and not found.ttl:
        return _plain_head(first, min(count, 255))
    fields = (
        b"\x41",
        found.priority or b"\x40",
        found.ttl or b"\x40",
        b"\x41" if first else b"\x42",
        b"\x70" + min(count, 0xFFFF_FFFF).to_bytes(4, "big"),
    )
    body = b"".join(fields)
    return b"\x00\x53\x70\xd0" + struct.pack(">II", len(body) + 4, len(fields)) + body


@lru_cache(maxsize=512)
def _plain_head(first: bool, count: int) -> bytes:
    """As `head_of`, for a message without priority and ttl, and few tries."""
    return b"\x00\x53\x70\xc0\x07\x05\x41\x40\x40" + bytes([0x41 if first else 0x42, 0x52, count])


# -- management -------------------------------------------------------------------------------


def read_request(data: bytes) -> Request:
    """A management message. Raises `SectionError`."""
    found = Request()
    for code, _, value, end in sections(data):
        if code == PROPERTIES:
            fields = fields_of(data, value, end)
            fields += [b"\x40"] * (6 - len(fields))
            reply_to = decode(fields[4], 0)[0]
            found.reply_to = reply_to if isinstance(reply_to, str) else ""
            # Whoever gives no correlation-id is answered by his message-id.
            found.correlation = fields[0] if fields[5] == b"\x40" else fields[5]
        elif code == APPLICATION_PROPERTIES:
            arguments = decode(data, value)[0]
            if not isinstance(arguments, dict):
                raise SectionError("application-properties that are no map")
            found.arguments = {str(key): each for key, each in arguments.items()}
    return found


def write_reply(request: Request, arguments: dict[str, Any], body: Any) -> bytes:
    """The answer to a request: application-properties, and a value as body."""
    fields = [b"\x40", b"\x40", encode(request.reply_to), b"\x40", b"\x40", request.correlation]
    packed = b"".join(fields)
    properties = b"\xd0" + struct.pack(">II", len(packed) + 4, len(fields)) + packed
    return b"".join((
        b"\x00\x53\x73", properties, b"\x00\x53\x74", encode(arguments), b"\x00\x53\x77",
        encode(body),
    ))  # fmt: skip


def decode(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """(value, where it ends). What Python has no like of (arrays, decimals) is None. Raises
    `SectionError`."""
    end = skip(data, at, depth)
    code = data[at]
    if code in _CONSTANTS:
        return _CONSTANTS[code], end
    if code == 0x56:
        return data[at + 1] != 0, end
    if code in _NUMBERS:
        return struct.unpack_from(_NUMBERS[code], data, at + 1)[0], end
    if code == 0x98:
        return uuid.UUID(bytes=data[at + 1 : end]), end
    if code in (0xA0, 0xB0):
        return data[at + (2 if code == 0xA0 else 5) : end], end
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return _text(data[at + (2 if code < 0xB0 else 5) : end]), end
    if code in (0x45, 0xC0, 0xD0):
        return [decode(each, 0, depth + 1)[0] for each in fields_of(data, at, end)], end
    if code in (0xC1, 0xD1):
        items = fields_of(bytes([code - 1]) + data[at + 1 : end], 0, end - at)
        values = [decode(each, 0, depth + 1)[0] for each in items]
        keys = (key if isinstance(key, str | int | bytes) else None for key in values[::2])
        return dict(zip(keys, values[1::2], strict=False)), end
    return None, end


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SectionError("text that is no UTF-8") from None


class Encoded(bytes):
    """A value that is encoded already."""


def encoded_list(items: list[bytes]) -> Encoded:
    """A list of encoded values."""
    body = b"".join(items)
    return Encoded(b"\xd0" + struct.pack(">II", len(body) + 4, len(items)) + body)


def encode(value: Any) -> bytes:
    """A value of a reply: None, bool, int, float, str, bytes, UUID, lists and maps of these."""
    if isinstance(value, Encoded):
        return value
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        if value >> 63 > 0:
            return struct.pack(">BQ", 0x80, value)
        return struct.pack(">Bq", 0x81, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0x82, value)
    if isinstance(value, uuid.UUID):
        return b"\x98" + value.bytes
    if isinstance(value, str):
        return _sized(0xA1, value.encode())
    if isinstance(value, bytes):
        return _sized(0xA0, value)
    if isinstance(value, dict):
        return b"\xd1" + encoded_list([encode(each) for pair in value.items() for each in pair])[1:]
    return encoded_list([encode(each) for each in value])


def symbol(text: str) -> bytes:
    """A symbol: the key of an annotation."""
    return _sized(0xA3, text.encode("ascii", "replace"))


def _sized(code: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes([code, len(data)]) + data
    return struct.pack(">BI", code + 0x10, len(data)) + data
