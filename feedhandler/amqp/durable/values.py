# cython: language_level=3, boundscheck=True, wraparound=False
"""AMQP 1.0's encoding, as far as queues read and write it: values, and a message's sections.

What it is for: `sections` finds where the sections of a message are, `fields_of` returns the items
of a list, `decode` converts a value to Python, `encode` the other way.

What it promises: bytes that are no value, or no message, raise a `SectionError`, whatever they are;
nothing is read beyond them; nesting is bounded. Compiled: it reads each byte before a message's
body. No I/O.

Source: OASIS AMQP 1.0, part 1 (types), 3.2 (sections).
"""

import struct
import uuid
from typing import Any

import cython

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
#: Depth of nested values; a deeper message is refused.
DEPTH_MAX = 8
#: Items of one compound value that are read.
ITEMS_MAX = 1024
_NUMBERS = {
    0x60: ">H", 0x61: ">h", 0x71: ">i", 0x81: ">q", 0x51: ">b", 0x54: ">b", 0x55: ">b",
    0x72: ">f", 0x82: ">d", 0x83: ">q",
}  # fmt: skip


class SectionError(ValueError):
    """Bytes that are no AMQP message."""


@cython.cfunc
def _number(data: bytes, at: cython.Py_ssize_t, width: cython.int) -> cython.ulonglong:
    """Return the unsigned big-endian number of `width` bytes at `at`. Raises `SectionError`."""
    end: cython.Py_ssize_t = at + width
    if end > len(data):
        raise SectionError("a value is cut off, or too deep")
    value: cython.ulonglong = 0
    while at < end:
        value = value << 8 | data[at]
        at += 1
    return value


def skip(data: bytes, at: cython.Py_ssize_t, depth: cython.int = 0) -> cython.Py_ssize_t:
    """Return where the value that begins at `at` ends. Raises `SectionError`."""
    if at >= len(data) or depth > DEPTH_MAX:
        raise SectionError("a value is cut off, or too deep")
    code: cython.int = data[at]
    if code == 0:
        return skip(data, skip(data, at + 1, depth + 1), depth + 1)
    kind: cython.int = code >> 4
    at += 1
    if kind == 4:
        size: cython.ulonglong = 0
    elif kind <= 9 and kind > 4:
        size = 1 << (kind - 5)
    elif kind >= 10 and kind & 1 == 0:
        size = 1 + _number(data, at, 1)
    elif kind >= 10:
        size = 4 + _number(data, at, 4)
    else:
        raise SectionError(f"no constructor: {code:#04x}")
    if size > cython.cast(cython.ulonglong, len(data) - at):
        raise SectionError("a value reaches past the message's end")
    return at + cython.cast(cython.Py_ssize_t, size)


@cython.ccall
def sections(data: bytes) -> list:
    """Return (code, offset, offset of its value, end) of each section, in order. Raises
    `SectionError`."""
    found: list = []
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = len(data)
    last: cython.int = 0
    while at < size:
        if data[at] != 0:
            raise SectionError("a section has no descriptor")
        value: cython.Py_ssize_t = skip(data, at + 1)
        code: cython.int = _section_code(data, at + 1, value)
        end: cython.Py_ssize_t = skip(data, value)
        if code < last or (code == last and code != DATA and code != SEQUENCE):
            raise SectionError("sections are out of order")
        last = code
        found.append((code, at, value, end))
        at = end
    if not found:
        raise SectionError("empty")
    return found


@cython.cfunc
def _section_code(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    kind: cython.int = data[at]
    code: cython.ulonglong = 0
    if kind == 0x53:
        code = data[at + 1]
    elif kind == 0x80:
        code = _number(data, at + 1, 8)
    elif kind == 0xA3:
        code = NAMES.get(data[at + 2 : end], 0)
    if not HEADER <= code <= FOOTER:
        raise SectionError("no section of a message")
    return code


@cython.ccall
def fields_of(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> list:
    """Return the items of a list, still encoded. Raises `SectionError`."""
    code: cython.int = data[at]
    if code == 0x45:
        return []
    if code != 0xC0 and code != 0xD0:
        raise SectionError("a section that should be a list is none")
    return _items(data, at, end, 1 if code == 0xC0 else 4)


@cython.cfunc
def _items(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, width: cython.int) -> list:
    """Return the encoded items of a list, or of a map, keys and values in turn. Raises
    `SectionError`."""
    number: cython.ulonglong
    fields: list = []
    count: cython.ulonglong = _number(data, at + 1 + width, width)
    index: cython.Py_ssize_t = at + 1 + 2 * width
    for number in range(count):
        after: cython.Py_ssize_t = skip(data, index)
        if after > end or number >= ITEMS_MAX:
            raise SectionError("a list's items reach past its end")
        fields.append(data[index:after])
        index = after
    return fields


@cython.ccall
def decode(data: bytes, at: cython.Py_ssize_t, depth: cython.int = 0) -> tuple:
    """Decode a value; return it and where it ends. What Python has no type for (arrays, decimals)
    is None. Raises `SectionError`."""
    end: cython.Py_ssize_t = skip(data, at, depth)
    return _value(data, at, end, depth), end


@cython.cfunc
def _value(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, depth: cython.int) -> object:
    code: cython.int = data[at]
    if code in (0xA1, 0xA3):
        return _text(data[at + 2 : end])
    if code in (0xB1, 0xB3):
        return _text(data[at + 5 : end])
    if code == 0xA0:
        return data[at + 2 : end]
    if code == 0xB0:
        return data[at + 5 : end]
    if code in (0x50, 0x52, 0x53):
        return data[at + 1]
    if code == 0x70:
        return _number(data, at + 1, 4)
    if code == 0x80:
        return _number(data, at + 1, 8)
    if code in (0x41, 0x42):
        return code == 0x41
    if code in (0x43, 0x44):
        return 0
    if code == 0x56:
        return data[at + 1] != 0
    if code in _NUMBERS:
        return struct.unpack_from(_NUMBERS[code], data, at + 1)[0]
    if code == 0x98:
        return uuid.UUID(bytes=data[at + 1 : end])
    if code in (0x45, 0xC0, 0xD0):
        return [decode(each, 0, depth + 1)[0] for each in fields_of(data, at, end)]
    if code in (0xC1, 0xD1):
        return _map(_items(data, at, end, 1 if code == 0xC1 else 4), depth)
    return None


@cython.cfunc
def _map(items: list, depth: cython.int) -> dict:
    index: cython.Py_ssize_t
    found: dict = {}
    for index in range(0, len(items) - 1, 2):
        key = decode(items[index], 0, depth + 1)[0]
        known = isinstance(key, str | int | bytes)
        found[key if known else None] = decode(items[index + 1], 0, depth + 1)[0]
    return found


@cython.cfunc
def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SectionError("text that is no UTF-8") from None


class Encoded(bytes):
    """A value that is encoded already."""


def encoded_list(items: list[bytes]) -> Encoded:
    """Encode a list of encoded values."""
    body = b"".join(items)
    return Encoded(b"\xd0" + struct.pack(">II", len(body) + 4, len(items)) + body)


def encode(value: Any) -> bytes:
    """Encode a value of a reply: None, bool, int, float, str, bytes, UUID, lists and maps of
    these."""
    if isinstance(value, Encoded):
        return bytes(value)
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
    return bytes(encoded_list([encode(each) for each in value]))


def symbol(text: str) -> bytes:
    """Encode a symbol: the key of an annotation."""
    return _sized(0xA3, text.encode("ascii", "replace"))


def _sized(code: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes([code, len(data)]) + data
    return struct.pack(">BI", code + 0x10, len(data)) + data
