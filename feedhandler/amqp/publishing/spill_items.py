"""A message as an item of the journal: a head with its properties, then its bytes as they are sent.

    version | flags | length of reason | 0 | length of key | service | sequence | following | came
    1 byte  | 1     | 1                | 1 | 2             | 2       | 8        | 8         | 8
    key | reason | the message

Little-endian, 32 bytes before the key. `flags`: 1 where it belongs to a snapshot block. `reason`:
of a quality message; empty of all others. `came`: when it came, ns since 1970. The message is
whole: tag, group-sequence and body are those that it was given as it came, so it is the same
message after a restart. The envelope (`envelope`) is not stored: the broker may be another.

Valid journal content that is no such item (another queue's folder was configured, or a later
version wrote it) parses to None, never to an error. No I/O.
"""

import struct

from feedhandler.amqp.queueing.unsettled_map import WHOLE, OutgoingMessage

VERSION = 1
HEAD = struct.Struct("<BBBxHHQQQ")
_BLOCK = 1
#: Bytes of a reason; ours are shorter.
REASON_BYTES_MAX = 255


def pack_item(outgoing: OutgoingMessage) -> bytes:
    """Encode a message that is numbered and encoded as an item."""
    key, reason = outgoing.key.encode(), outgoing.reason.encode()[:REASON_BYTES_MAX]
    head = HEAD.pack(
        VERSION, _BLOCK if outgoing.block else 0, len(reason), len(key), outgoing.service,
        outgoing.sequence, outgoing.following, outgoing.came_ns,
    )  # fmt: skip
    return b"".join((head, key, reason, outgoing.data))


def parse_item(content: bytes) -> OutgoingMessage | None:
    """Decode the message of an item; None where `content` is no such item."""
    if len(content) < HEAD.size or content[0] != VERSION:
        return None
    _, flags, reason_size, key_size, service, sequence, following, came_ns = HEAD.unpack_from(
        content
    )
    key_end = HEAD.size + key_size
    data_at = key_end + reason_size
    if data_at >= len(content) or flags > _BLOCK:
        return None
    try:
        key = content[HEAD.size : key_end].decode()
        reason = content[key_end:data_at].decode()
    except UnicodeDecodeError:
        return None
    outgoing = OutgoingMessage(
        content[data_at:], service, sequence, following, flags == _BLOCK, reason, key
    )
    outgoing.came_ns = came_ns
    outgoing.number_at = WHOLE if reason else 0
    return outgoing
