"""Items of a keyed queue's journal: messages with the digests of their keys, and parcels.

    item        byte 0    then
    message     0x4B      u8 keys; 16 bytes for each key's digest; the message
    parcel      0x4F      u8 bytes of the queue's name; u16 bytes of the reason; name; reason;
                          the message

A parcel is a message on its way to another queue: it has been taken out of this one (or never was
in it), and counts as sent as soon as it is durable here. Little-endian. No I/O.
"""

import struct
from typing import NamedTuple

from feedhandler.keyed.structure import DIGEST_BYTES

MESSAGE, PARCEL = 0x4B, 0x4F
_MESSAGE = struct.Struct("<BB")
_PARCEL = struct.Struct("<BBH")
#: Bytes that an item has beside its message, at most.
REASON_BYTES_MAX = 1000


class Parcel(NamedTuple):
    """A message on its way to `queue`; `reason`: why it was diverted there ("": it was sent
    there)."""

    queue: str
    reason: str
    message: bytes


def overhead(key_slots: int) -> int:
    """Return the bytes that an item has beside its message, at most, with `key_slots` keys."""
    return max(_MESSAGE.size + key_slots * DIGEST_BYTES, _PARCEL.size + 255 + REASON_BYTES_MAX)


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
    parcel = parcel_in(item)
    return b"" if parcel is None else parcel.message


def wrap_parcel(parcel: Parcel) -> bytes:
    """Encode the item of a parcel; a reason that is too long is cut."""
    name, reason = parcel.queue.encode(), parcel.reason.encode()[:REASON_BYTES_MAX]
    return _PARCEL.pack(PARCEL, len(name), len(reason)) + name + reason + parcel.message


def parcel_in(item: bytes) -> Parcel | None:
    """Decode a parcel; None where the item is none."""
    if len(item) < _PARCEL.size or item[0] != PARCEL:
        return None
    _, name_bytes, reason_bytes = _PARCEL.unpack_from(item)
    at = _PARCEL.size
    name = item[at : at + name_bytes]
    reason = item[at + name_bytes : at + name_bytes + reason_bytes]
    if len(name) + len(reason) < name_bytes + reason_bytes:
        return None
    return Parcel(
        name.decode(errors="replace"),
        reason.decode(errors="replace"),
        item[at + name_bytes + reason_bytes :],
    )
