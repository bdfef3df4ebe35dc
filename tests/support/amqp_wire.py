"""AMQP 1.0's own encoding, as far as tests need it: frames, performatives, values.

For tests that must say what no client would say. Values that are decoded keep their wire type, so
that what is encoded again is the same but for what a test changed. Written after AMQP 1.0 part 1
(types) and part 2 (framing); it knows nothing of proton.
"""

import struct
from dataclasses import dataclass
from typing import Any

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SOURCE, TARGET, ERROR = 0x28, 0x29, 0x1D
ACCEPTED = 0x24

#: Constructors of values that have no bytes of their own.
EMPTY = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
#: Constructor -> (bytes, format) of the integers.
FIXED = {
    0x50: (1, ">B"), 0x51: (1, ">b"), 0x52: (1, ">B"), 0x53: (1, ">B"), 0x54: (1, ">b"),
    0x55: (1, ">b"), 0x56: (1, ">B"), 0x60: (2, ">H"), 0x61: (2, ">h"), 0x70: (4, ">I"),
    0x71: (4, ">i"), 0x72: (4, ">I"), 0x73: (4, ">I"), 0x80: (8, ">Q"), 0x81: (8, ">q"),
    0x82: (8, ">Q"), 0x83: (8, ">q"),
}  # fmt: skip
LIST0, LIST8, LIST32, MAP8, MAP32 = 0x45, 0xC0, 0xD0, 0xC1, 0xD1
BINARY = 0xB0


@dataclass
class Value:
    """One value: its constructor, and an int, bytes or a list of values (a map: keys and values
    in turn); `descriptor` where it is a described one."""

    code: int
    value: Any
    descriptor: "Value | None" = None

    def encode(self) -> bytes:
        """Return its bytes."""
        head = b"" if self.descriptor is None else b"\0" + self.descriptor.encode()
        return head + bytes([self.code]) + self._body()

    def _body(self) -> bytes:
        code = self.code
        if code in EMPTY or code == LIST0:
            return b""
        if code in FIXED:
            size, form = FIXED[code]
            return struct.pack(form.upper(), self.value % (1 << (8 * size)))
        if code in (LIST8, MAP8, LIST32, MAP32):
            body = b"".join(each.encode() for each in self.value)
            if code in (LIST8, MAP8):
                return struct.pack(">BB", (len(body) + 1) & 0xFF, len(self.value) & 0xFF) + body
            return struct.pack(">II", len(body) + 4, len(self.value)) + body
        if code >> 4 == 0xA:
            return bytes([len(self.value) & 0xFF]) + self.value
        if code >> 4 == 0xB:
            return struct.pack(">I", len(self.value)) + self.value
        return bytes(self.value)  # arrays, decimals, floats: as they came


class Raw(Value):
    """A value that is encoded already."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0x40, None)
        self.data = data

    def encode(self) -> bytes:
        """Return its bytes."""
        return self.data


def decode(data: bytes, at: int = 0, counted: bool = True) -> tuple[Value, int]:
    """(value, where the next one begins). Raises `IndexError` or `struct.error` on nonsense.

    A list or map says both how many values it holds and in how many bytes: the count is believed,
    or, not `counted`, the size, and then what goes beyond it is not read.
    """
    code = data[at]
    if code == 0:
        descriptor, at = decode(data, at + 1, counted)
        value, at = decode(data, at, counted)
        value.descriptor = descriptor
        return value, at
    at += 1
    if code in EMPTY:
        return Value(code, EMPTY[code]), at
    if code == LIST0:
        return Value(code, []), at
    if code in FIXED:
        size, form = FIXED[code]
        return Value(code, struct.unpack_from(form, data, at)[0]), at + size
    if code in (LIST8, MAP8, LIST32, MAP32):
        form = ">BB" if code in (LIST8, MAP8) else ">II"
        size, count = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        end = at - struct.calcsize(form) // 2 + size
        values: list[Value] = []
        inside = data if counted else data[:end]
        while len(values) < count if counted else at < end:
            value, at = decode(inside, at, counted)
            values.append(value)
        return Value(code, values), at if counted else end
    if code >> 4 in (0xA, 0xB):
        form = ">B" if code >> 4 == 0xA else ">I"
        (size,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return Value(code, data[at : at + size]), at + size
    if code >> 4 in (0xE, 0xF):
        head = 1 if code >> 4 == 0xE else 4
        size = head + int.from_bytes(data[at : at + head], "big")
    else:
        size = {0x7: 4, 0x8: 8, 0x9: 16}[code >> 4]
    return Value(code, data[at : at + size]), at + size


@dataclass
class Frame:
    """One frame: AMQP's or SASL's (`kind` 1), its performative, and what a transfer carries."""

    channel: int
    performative: Value | None
    payload: bytes = b""
    kind: int = 0

    @property
    def code(self) -> int:
        """Which performative it is; 0 where it is empty, which is a heartbeat."""
        if self.performative is None or self.performative.descriptor is None:
            return 0
        return int(self.performative.descriptor.value)

    def field(self, index: int) -> Any:
        """A field's value; None where it is not there."""
        fields = [] if self.performative is None else self.performative.value
        return fields[index].value if index < len(fields) else None

    def encode(self) -> bytes:
        body = b"" if self.performative is None else self.performative.encode()
        return frame_bytes(body + self.payload, self.channel, self.kind)


def frame_bytes(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    """A frame around any bytes."""
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def split(data: bytes) -> list[bytes | Frame]:
    """A conversation's protocol headers (as they are) and frames; a rest that is none is left."""
    found: list[bytes | Frame] = []
    at = 0
    while at + 8 <= len(data):
        if data[at : at + 4] == b"AMQP":
            found.append(data[at : at + 8])
            at += 8
            continue
        size, offset, kind, channel = struct.unpack_from(">IBBH", data, at)
        if at + size > len(data):
            break
        body = data[at + 4 * offset : at + size]
        if body:
            performative, end = decode(body)
            found.append(Frame(channel, performative, body[end:], kind))
        else:
            found.append(Frame(channel, None, b"", kind))
        at += size
    return found


def wire(value: Any) -> Value:
    """A Python value as AMQP's: None, bool, int (uint), str (string), bytes (symbol), lists."""
    if isinstance(value, Value):
        return value
    if value is None:
        return Value(0x40, None)
    if isinstance(value, bool):
        return Value(0x41 if value else 0x42, value)
    if isinstance(value, int):
        return Value(0x70, value)
    if isinstance(value, str):
        return Value(0xB1, value.encode())
    if isinstance(value, bytes):
        return Value(0xB3, value)
    return Value(LIST32, [wire(each) for each in value])


def described(code: int, *fields: Any) -> Value:
    """A described list, as performatives and termini are."""
    value = wire(list(fields))
    value.descriptor = Value(0x53, code)
    return value


def ulong(value: int) -> Value:
    return Value(0x80, value)


def ushort(value: int) -> Value:
    return Value(0x60, value)


def ubyte(value: int) -> Value:
    return Value(0x50, value)


def opening(max_frame: int = 65536, idle_ms: int | None = None) -> bytes:
    """The protocol's header and a client's open."""
    return AMQP_HEADER + frame(OPEN, "raw", "127.0.0.1", max_frame, ushort(65535), idle_ms)


def frame(code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> bytes:
    """One frame of a performative with these fields."""
    return Frame(channel, described(code, *fields), payload).encode()


def begin(channel: int = 0, window: int = 2048, handle_max: int = 255) -> bytes:
    return frame(BEGIN, None, 0, window, window, handle_max, channel=channel)


def attach(name: str, handle: int, address: str | None, channel: int = 0, **how: Any) -> bytes:
    """A receiving link's attach; `source` instead of an address, `settle` the sender's mode."""
    source = how.get("source", described(SOURCE, address))
    mode = ubyte(how.get("settle", 1))
    return frame(
        ATTACH, name, handle, True, mode, ubyte(how.get("rcv", 0)), source, described(TARGET),
        channel=channel,
    )  # fmt: skip


def flow(handle: int, credit: int, channel: int = 0, count: int = 0, drain: bool = False) -> bytes:
    """A receiver's flow for one link."""
    return frame(FLOW, 0, 2048, 0, 2048, handle, count, credit, None, drain, channel=channel)
