"""Messages of a queue as its clients write and read them. No I/O."""

import struct
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from feedhandler.amqp.durable.keyed_sections import AFTER, EPOCH, FENCE, PRODUCER, SEQUENCE, TOKEN
from feedhandler.amqp.durable.sections import MessageId
from feedhandler.amqp.durable.values import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    decode,
    encode,
    encoded_list,
    fields_of,
    sections,
)
from feedhandler.keyed.producers import Stamp


class Message(Struct, frozen=True, kw_only=True):
    """A message that a worker handles.

    token       text, unique for ever: a handler that stores it does the message's work once
    fence       rises with each delivery of its key: a store refuses a lower one than it has seen
    tries       how often it has failed before
    after       fences of messages of its keys that the same consumer had as this one was sent, and
                which are to be done before it; with `run` 1 there are none
    body        its bytes; the repr of a value that is neither text nor bytes
    """

    body: bytes
    token: str = ""
    fence: int = 0
    tries: int = 0
    after: tuple[int, ...] = ()
    message_id: MessageId | None = None
    properties: dict[str, Any] = {}
    annotations: dict[str, Any] = {}


def read(data: bytes) -> Message:
    """Parse a message that has come. Raises `SectionError`."""
    values: dict[str, Any] = {}
    body = b""
    for code, _, value, end in sections(data):
        if code == HEADER:
            fields = fields_of(data, value, end)
            values["tries"] = (decode(fields[4], 0)[0] or 0) if len(fields) > 4 else 0
        elif code == DELIVERY_ANNOTATIONS:
            annotations = decode(data, value)[0] or {}
            values["token"] = annotations.get(TOKEN, "")
            values["fence"] = annotations.get(FENCE, 0)
            after = annotations.get(AFTER)
            if isinstance(after, list):
                values["after"] = tuple(each for each in after if isinstance(each, int))
        elif code == MESSAGE_ANNOTATIONS:
            values["annotations"] = decode(data, value)[0] or {}
        elif code == PROPERTIES:
            fields = fields_of(data, value, end)
            values["message_id"] = decode(fields[0], 0)[0] if fields else None
        elif code == APPLICATION_PROPERTIES:
            values["properties"] = decode(data, value)[0] or {}
        elif code in (DATA, VALUE):
            found = decode(data, value)[0]
            if isinstance(found, str):
                found = found.encode()
            body += found if isinstance(found, bytes) else repr(found).encode()
    return Message(body=body, **values)


def head(
    size: int,
    stamp: Stamp | None = None,
    message_id: str = "",
    properties: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode all of a message before its body, which is one data section of `size` bytes."""
    parts = [b"\x00\x53\x70\xc0\x02\x01\x41"]  # durable
    if message_id:
        parts.append(b"\x00\x53\x73" + encoded_list([encode(message_id)]))
    named = dict(properties or {})
    if stamp is not None:
        named |= {PRODUCER: stamp.producer, EPOCH: stamp.epoch, SEQUENCE: stamp.sequence}
    if named:
        parts.append(b"\x00\x53\x74" + encode(named))
    parts.append(b"\x00\x53\x75\xb0" + struct.pack(">I", size))
    return b"".join(parts)
