# cython: annotation_typing=False
"""Encoding of snapshots: cutting one into refresh packets, and framing messages in general.

A refresh is message 580 (start, with LastSeqNum), the messages that make up a service's state, and
message 581 (end, the same LastSeqNum), in packets with numbers of their own. Under delivery
flag 17 everything after a packet's header is one zlib stream; a packet has at most 1,400 bytes on
the wire and at most 255 messages (its count is a u8), and its inflated length must still fit a u16.

`SnapshotCutter` makes such packets. `PacketFramer` puts messages into plain packets; the cutter and
`refresh` share it. The caller chooses the messages (`market` makes them). No I/O; nothing
here keeps state between calls but an estimate of how well messages compress.

Compiled.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable
from cython.cimports.feedhandler.codecs.scanner import patch_header, write_number

from feedhandler.codecs.errors import UsageError

#: The specification's bound on a packet, header included.
PACKET_BYTES_MAX = 1400
#: The greatest value of the packet header's count field.
MESSAGES_MAX = 255
#: Bytes that a body may inflate to, so that the inflated packet's length fits the field, a u16.
INFLATED_BODY_MAX = 65_535 - 16
#: Zlib's fastest: the next levels save a few percent of the bytes and cost as much of the time.
LEVEL = 1
#: A window of 8 KiB, and tables to match: a packet's body gains nothing by more, and making a
#: compressor of the usual size takes twice as long as compressing a packet.
WINDOW_BITS = 13
MEMORY_LEVEL = 5
#: Messages tried in a first packet; from then on the last packet's ratio decides.
_FIRST_TRY = 40
#: Aim a little below the bound: a try that is too large is wasted, one too small costs little.
_AIM = 0.97


def deflated(body, level=LEVEL):
    """Return a packet's body compressed (zlib, RFC 1950)."""
    packer = zlib.compressobj(level, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return packer.compress(body) + packer.flush()


@cython.final
@cython.cclass
class PacketFramer:
    """Makes packets of one service, with the same send time and flags, from message bytes."""

    _table: FeedTable
    _order: object
    _header: bytes

    def __init__(self, feed: Any, service: int, send_time: int, flags: int = 0) -> None:
        self._table = feed.table
        self._order = feed.byte_order
        self._header = feed.encode_packet(service=service, send_time=send_time, flags=flags)

    @cython.returns(bytes)
    @cython.ccall
    def packet(self, sequence: int, body: bytes, count: int) -> bytes:
        """Return a packet with this body, which holds `count` messages, plain or compressed."""
        table = self._table
        packet = bytearray(self._header)
        packet += body
        if table.high_size:
            if sequence >> table.number_bits():
                raise OverflowError(f"the number {sequence} does not fit the packet's header")
            write_number(table, packet, 0, sequence)
        else:
            at, size = table.sequence_at, table.sequence_size
            packet[at : at + size] = sequence.to_bytes(size, self._order)
        patch_header(table, packet, 0, len(packet), count)
        return bytes(packet)


class RefreshTypes:
    """The codes of the messages 580 and 581 of a feed, and where they keep LastSeqNum.

    Raises `UsageError` for a feed that has no refresh.
    """

    def __init__(self, feed: Any) -> None:
        try:
            start, end = feed.layout("start_refresh"), feed.layout("end_refresh")
            flags = feed.description.packet.compressed_flags[0]
            last = start.by_name["last_seq_num"]
        except (UsageError, IndexError, KeyError):
            raise UsageError(
                f"{feed.name} has no refresh", "use a feed with messages 580 and 581"
            ) from None
        self.start: int = start.code
        self.end: int = end.code
        self.size: int = max(start.size, end.size)
        self.last_at: int = last.at
        self.last_size: int = last.size
        #: The delivery flag of compressed refresh packets.
        self.compressed: int = flags

    def last(self, message: bytes, order: Any) -> int:
        """Return LastSeqNum of a whole message 580 or 581."""
        return int.from_bytes(message[self.last_at : self.last_at + self.last_size], order)


class SnapshotCutter:
    """Cuts snapshots of a feed's services into refresh packets. `level` is zlib's, 1 to 9.

    Raises `UsageError` for a feed that has no refresh.
    """

    def __init__(self, feed: Any, level: int = LEVEL) -> None:
        self._feed = feed
        self._types = RefreshTypes(feed)
        self._level = level
        self._room = PACKET_BYTES_MAX - feed.table.header_size
        self._try = _FIRST_TRY

    def cut(
        self,
        service: int,
        messages: Sequence[bytes],
        last: int,
        refresh_sequence: int,
        send_time_ms: int,
        compress: bool = True,
    ) -> list[bytes]:
        """Return the packets of one refresh, 580, `messages`, 581, from `refresh_sequence` on.

        `last` is LastSeqNum, the number of the last live packet that the snapshot holds;
        `send_time_ms` is the raw send time of the packets. Raises `UsageError` for a message that
        fits into no packet.
        """
        types = self._types
        whole = [
            self._feed.encode_message(types.start, last_seq_num=last),
            *messages,
            self._feed.encode_message(types.end, last_seq_num=last),
        ]
        flags = types.compressed if compress else 0
        framer = PacketFramer(self._feed, service, send_time_ms, flags)
        packets: list[bytes] = []
        at = 0
        while at < len(whole):
            body, count = (self._squeeze if compress else self._fill)(whole, at)
            packets.append(framer.packet(refresh_sequence + len(packets), body, count))
            at += count
        return packets

    def _fill(self, messages: Sequence[bytes], at: int) -> tuple[bytes, int]:
        """Return the bytes and the count of the messages from `at` on that fit uncompressed.

        Raises `UsageError` where the first does not fit.
        """
        count = _fitting(messages, at, MESSAGES_MAX, self._room)
        if count == 0:
            raise _too_long(messages[at])
        return b"".join(messages[at : at + count]), count

    def _squeeze(self, messages: Sequence[bytes], at: int) -> tuple[bytes, int]:
        """Return the compressed bytes and the count of messages from `at` on: about as many as fit.

        Raises `UsageError` where the first does not fit.
        """
        count = _fitting(messages, at, min(self._try, MESSAGES_MAX), INFLATED_BODY_MAX)
        while count > 0:
            packed = deflated(b"".join(messages[at : at + count]), self._level)
            fitting = int(count * _AIM * self._room / len(packed))
            if len(packed) <= self._room:
                if at + count < len(messages):
                    self._try = max(fitting, 1)
                return packed, count
            count = min(fitting, count - 1)
        raise _too_long(messages[at])


def _fitting(messages: Sequence[bytes], at: int, count_max: int, bytes_max: int) -> int:
    """Return how many messages from `at` on stay within both bounds."""
    used = count = 0
    for message in messages[at : at + count_max]:
        used += len(message)
        if used > bytes_max:
            break
        count += 1
    return count


def _too_long(message: bytes) -> UsageError:
    return UsageError(f"a message of {len(message)} bytes fits into no refresh packet")
