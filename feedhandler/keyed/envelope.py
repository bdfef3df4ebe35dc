"""Items of a keyed queue's journal: messages with the digests of their keys, and outbox entries.

    item        byte 0    then
    message     0x4B      u8 keys; 16 bytes for each key's digest; the message
    outbox      0x4F      u8 bytes of the queue's name; u16 bytes of the reason; name; reason;
                          the message

An outbox entry is a message on its way to another queue: it was taken out of this one (or never was
in it), and counts as sent as soon as it is durable here. Little-endian. No I/O.
"""

import struct
from typing import NamedTuple

from feedhandler.keyed.structure import DIGEST_BYTES

MESSAGE, OUTBOX_ENTRY = 0x4B, 0x4F
_MESSAGE = struct.Struct("<BB")
_OUTBOX_ENTRY = struct.Struct("<BBH")
#: Bytes that an item has beside its message, at most.
REASON_BYTES_MAX = 1000


class OutboxEntry(NamedTuple):
    """A message on its way to `queue`; `reason`: why it was diverted there ("": it was sent
    there)."""

    queue: str
    reason: str
    message: bytes


def overhead(key_slots: int) -> int:
    """Return the bytes that an item has beside its message, at most, with `key_slots` keys."""
    return max(
        _MESSAGE.size + key_slots * DIGEST_BYTES, _OUTBOX_ENTRY.size + 255 + REASON_BYTES_MAX
    )


def wrap(message: bytes, keys: bytes) -> bytes:
    """Encode the item of a message; `keys` are digests, one behind the other."""
    return _MESSAGE.pack(MESSAGE, len(keys) // DIGEST_BYTES) + keys + message


def keys_of(item: bytes) -> bytes | None:
    """Return the digests of a message's keys; None where the item is no message."""
    if len(item) < _MESSAGE.size or item[0] != MESSAGE:
        return None
    end = _MESSAGE.size + item[1] * DIGEST_BYTES
    return item[_MESSAGE.size : end] if end <= len(item) else None


def message_at(item: bytes) -> int:
    """Return the offset of the message in an item of kind MESSAGE."""
    return _MESSAGE.size + item[1] * DIGEST_BYTES


def message_in(item: bytes) -> bytes:
    """Return the message in an item; b"" where there is none."""
    keys = keys_of(item)
    if keys is not None:
        return item[message_at(item) :]
    entry = outbox_entry_in(item)
    return b"" if entry is None else entry.message


def wrap_outbox_entry(entry: OutboxEntry) -> bytes:
    """Encode the item of an outbox entry; a reason that is too long is cut."""
    name, reason = entry.queue.encode(), entry.reason.encode()[:REASON_BYTES_MAX]
    return _OUTBOX_ENTRY.pack(OUTBOX_ENTRY, len(name), len(reason)) + name + reason + entry.message


def outbox_entry_in(item: bytes) -> OutboxEntry | None:
    """Decode an outbox entry; None where the item is none."""
    if len(item) < _OUTBOX_ENTRY.size or item[0] != OUTBOX_ENTRY:
        return None
    _, name_bytes, reason_bytes = _OUTBOX_ENTRY.unpack_from(item)
    at = _OUTBOX_ENTRY.size
    name = item[at : at + name_bytes]
    reason = item[at + name_bytes : at + name_bytes + reason_bytes]
    if len(name) + len(reason) < name_bytes + reason_bytes:
        return None
    return OutboxEntry(
        name.decode(errors="replace"),
        reason.decode(errors="replace"),
        item[at + name_bytes + reason_bytes :],
    )
