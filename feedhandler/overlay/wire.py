"""The overlay's datagrams: a header of 56 bytes, little-endian, and a payload.

    0   2  magic "OV"
    2   1  version, 1
    3   1  kind (`Kind`)
    4   2  number of the tree
    6   2  bytes of payload, at most 1,400
    8   8  epoch: when the numbering member began, ns since 1970; after a restart it is higher
    16  8  id, from 1 in each epoch
    24  8  when it was sent, ns since 1970 by the sender's clock
    32  8  deadline, ns since 1970; 0: none
    40  16 seal: keyed BLAKE2b over bytes 0 to 39 and the payload

Data and heartbeats are numbered by the tree's sender and sealed with the tree's key; they pass
through proxies unchanged, so that a seal holds from end to end. A heartbeat has no payload and
repeats the last id. A notice, sealed and sent in the same way, announces the longest last hop to
all receivers (8 bytes, ns; `last_hop`). Reports and probes go from a child to its parent, answers
back; they are numbered by the member that sends them and sealed with its own key.

A key that all members of a tree share keeps strangers out. It does not keep a member from sending
in the sender's name: members are machines of one operator.
"""

import hashlib
import hmac
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

MAGIC, VERSION = b"OV", 1
SEAL_BYTES = 16
KEY_BYTES = 32
#: Upper limit on a payload: fits into an Ethernet frame of 1,500 bytes with all headers.
PAYLOAD_MAX = 1_400
_HEAD = Struct("<2sBBHHQQqq")
SEALED_FROM = _HEAD.size
#: Offset of the tree's number in a datagram.
TREE_AT = 4
HEAD_BYTES = SEALED_FROM + SEAL_BYTES


class Kind(IntEnum):
    """Kinds of datagrams."""

    DATA = 1
    HEARTBEAT = 2
    REPORT = 3
    PROBE = 4
    ANSWER = 5
    NOTICE = 6


class Fault(IntEnum):
    """Reasons for dropping a datagram; each is a counter."""

    SHORT = 1
    MAGIC = 2
    VERSION = 3
    KIND = 4
    LENGTH = 5
    NUMBER = 6
    TREE = 7
    STRANGER = 8
    SEAL = 9
    STALE = 10
    CONTENT = 11
    ECHO = 12


class Head(NamedTuple):
    """A datagram's header, without the fields that are the same in all."""

    kind: int
    tree: int
    epoch: int
    id: int
    sent_ns: int
    deadline_ns: int = 0


def seal(key: bytes, head: bytes, payload: bytes) -> bytes:
    """Compute the seal of a header's first 40 bytes and a payload."""
    sealing = hashlib.blake2b(head, digest_size=SEAL_BYTES, key=key)
    sealing.update(payload)
    return sealing.digest()


def encode(head: Head, payload: bytes, key: bytes) -> bytes:
    """Encode a datagram. Raises `ValueError` where the payload is too long."""
    if len(payload) > PAYLOAD_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes: at most {PAYLOAD_MAX}")
    first = _HEAD.pack(
        MAGIC, VERSION, head.kind, head.tree, len(payload), head.epoch, head.id, head.sent_ns,
        head.deadline_ns,
    )  # fmt: skip
    return first + seal(key, first, payload) + payload


def read(datagram: bytes) -> Head | Fault:
    """Return the header of a datagram, or the fault that it has. The seal is not checked."""
    if len(datagram) < HEAD_BYTES:
        return Fault.SHORT
    magic, version, kind, tree, length, epoch, number, sent_ns, deadline_ns = _HEAD.unpack_from(
        datagram
    )
    if magic != MAGIC:
        return Fault.MAGIC
    if version != VERSION:
        return Fault.VERSION
    if not Kind.DATA <= kind <= Kind.NOTICE:
        return Fault.KIND
    if length != len(datagram) - HEAD_BYTES or length > PAYLOAD_MAX:
        return Fault.LENGTH
    if (
        (number == 0 and kind not in (Kind.HEARTBEAT, Kind.NOTICE))
        or epoch == 0
        or sent_ns < 0
        or deadline_ns < 0
    ):
        return Fault.NUMBER
    return Head(kind, tree, epoch, number, sent_ns, deadline_ns)


def payload_of(datagram: bytes) -> bytes:
    """Return the payload of a datagram in which `read` found no fault."""
    return datagram[HEAD_BYTES:]


def is_sealed(datagram: bytes, key: bytes) -> bool:
    """Return whether a datagram without fault was sealed with this key; takes constant time."""
    wanted = seal(key, datagram[:SEALED_FROM], datagram[HEAD_BYTES:])
    return hmac.compare_digest(wanted, datagram[SEALED_FROM:HEAD_BYTES])
