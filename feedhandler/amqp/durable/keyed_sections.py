"""An AMQP message as a keyed queue reads it: its producer's stamp, where its key stands.

What it is for: `read_message` goes through a message once, and finds what `sections.look` does, the
stamp, and what the queue's key is read from: its body, or its properties and annotations.
`delivery_annotations` are what a consumer gets besides the message.

    a producer sends   by the message annotation, or application property
    its id             x-opt-producer      text or bytes, 1 to 64
    its epoch          x-opt-epoch         a number from 0; absent: 0
    its sequence       x-opt-sequence      a number from 1

    a consumer gets    by the delivery annotation
    the token          x-opt-token         text: the queue's identity and the message's number
    the fence          x-opt-fence         a number that rises with each delivery
    what it is after   x-opt-after         a list of fences: of messages of its keys that the same
                                           consumer had as it was sent; only where `run` is above 1

No I/O.
"""

from dataclasses import dataclass, field
from typing import Any

from feedhandler.amqp.durable.sections import Look, id_bytes
from feedhandler.amqp.durable.values import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    Encoded,
    SectionError,
    decode,
    encode,
    fields_of,
    sections,
    skip,
    symbol,
)
from feedhandler.keyed.producers import ID_BYTES_MAX, OWN, Stamp
from feedhandler.keyed.settings import Format

PRODUCER, EPOCH, SEQUENCE = "x-opt-producer", "x-opt-epoch", "x-opt-sequence"
TOKEN, FENCE, AFTER = "x-opt-token", "x-opt-fence", "x-opt-after"
REASON, ORIGIN = "x-opt-dead-reason", "x-opt-dead-queue"
#: AMQP's own properties in their order (3.2.4).
PROPERTY_NAMES = (
    "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type",
    "content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence",
    "reply-to-group-id",
)  # fmt: skip
_NUMBER_END = 1 << 64


@dataclass(slots=True)
class Read:
    """A parsed message: its sections, its stamp (None where the producer gave none), and what the
    key is read from."""

    look: Look
    stamp: Stamp | None
    material: Any


@dataclass(slots=True)
class _Parts:
    look: Look
    body: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    annotations: dict[Any, Any] = field(default_factory=dict)
    applications: dict[Any, Any] = field(default_factory=dict)


def read_message(data: bytes, form: Format) -> Read:
    """Parse a message for a queue of this format. Raises `SectionError` where it is no message, or
    its stamp is invalid."""
    parts = _Parts(Look(passed_on=len(data)))
    look = parts.look
    for code, at, value, end in sections(data):
        if code > DELIVERY_ANNOTATIONS:
            look.passed_on = min(look.passed_on, at)
        if code == HEADER:
            fields = fields_of(data, value, end)
            look.priority = fields[1] if len(fields) > 1 else b""
            look.ttl = fields[2] if len(fields) > 2 else b""
        elif code == MESSAGE_ANNOTATIONS:
            parts.annotations = _map(decode(data, value)[0])
        elif code == PROPERTIES:
            parts.properties = fields_of(data, value, end)
            if parts.properties and parts.properties[0] != b"\x40":
                look.message_id = id_bytes(decode(parts.properties[0], 0)[0])
        elif code == APPLICATION_PROPERTIES:
            parts.applications = _map(decode(data, value)[0])
        elif code in (DATA, VALUE):
            parts.body.append(_bytes(data, value, end, code))
    return Read(look, _stamp(parts), _material(parts, form))


def _map(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise SectionError("annotations or properties that are no map")
    return value


def _bytes(data: bytes, at: int, end: int, code: int) -> bytes:
    """Return a body section's bytes; b"" for a value that is neither text nor bytes."""
    kind = data[at]
    if kind == 0xA0 or (kind == 0xA1 and code == VALUE):
        return data[at + 2 : end]
    if kind == 0xB0 or (kind == 0xB1 and code == VALUE):
        return data[at + 5 : end]
    return b""


def _stamp(parts: _Parts) -> Stamp | None:
    for found in (parts.annotations, parts.applications):
        if PRODUCER not in found:
            continue
        producer: Any = found[PRODUCER]
        epoch: Any = found.get(EPOCH, 0)
        sequence: Any = found.get(SEQUENCE)
        name = producer.encode() if isinstance(producer, str) else producer
        if not isinstance(name, bytes) or not 0 < len(name) <= ID_BYTES_MAX:
            raise SectionError(f"{PRODUCER} is not text or bytes, 1 to {ID_BYTES_MAX}")
        if name.startswith(OWN):
            raise SectionError(f"{PRODUCER} begins with a zero byte, as only ids of queues do")
        if not _is_number(epoch, 0) or not _is_number(sequence, 1):
            raise SectionError(f"{EPOCH} is no number from 0, or {SEQUENCE} none from 1")
        return Stamp(name, epoch, sequence)
    return None


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _NUMBER_END


def _material(parts: _Parts, form: Format) -> Any:
    """Return what the structure reads: the body, or for `Format.AMQP` the properties and
    annotations by name."""
    if form is not Format.AMQP:
        return parts.body[0] if len(parts.body) == 1 else b"".join(parts.body)
    named = {
        f"properties.{name}": decode(each, 0)[0]
        for name, each in zip(PROPERTY_NAMES, parts.properties, strict=False)
        if each != b"\x40"
    }
    named |= {f"annotations.{name}": value for name, value in parts.annotations.items()}
    return named | {f"application.{name}": value for name, value in parts.applications.items()}


def delivery_annotations(token: str, fence: int, after: tuple[int, ...] = ()) -> bytes:
    """Encode the section with token, fence, and the fences that the message is after."""
    values = symbol(TOKEN) + encode(token) + symbol(FENCE) + b"\x80" + fence.to_bytes(8, "big")
    if not after:
        return b"\x00\x53\x71\xc1" + bytes([len(values) + 1, 4]) + values
    values += symbol(AFTER) + encode(list(after))
    return b"\x00\x53\x71\xd1" + (len(values) + 4).to_bytes(4, "big") + b"\0\0\0\6" + values


def with_reason(data: bytes, queue: str, reason: str) -> bytes:
    """Annotate a message for the dead queue with its queue and the reason; bytes that are no
    message are returned as they are."""
    added = {symbol(ORIGIN): encode(queue), symbol(REASON): encode(reason)}
    before, rest = b"", data
    try:
        for code, at, value, end in sections(data):
            if code == MESSAGE_ANNOTATIONS:
                added = _encoded_map(data, value, end) | added
                before, rest = data[:at], data[end:]
            elif code < MESSAGE_ANNOTATIONS:
                before, rest = data[:end], data[end:]
    except SectionError:
        return data
    pairs = {Encoded(key): Encoded(value) for key, value in added.items()}
    return before + b"\x00\x53\x72" + encode(pairs) + rest


def _encoded_map(data: bytes, at: int, end: int) -> dict[bytes, bytes]:
    """Return the keys and values of a map as they are encoded. Raises `SectionError`."""
    widths = {0xC1: 1, 0xD1: 4}
    if data[at] not in widths:
        raise SectionError("annotations that are no map")
    at += 1 + 2 * widths[data[at]]
    found = {}
    while at < end:
        value = skip(data, at)
        after = skip(data, value)
        found[data[at:value]] = data[value:after]
        at = after
    return found
