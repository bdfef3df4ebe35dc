"""Cutting of packets to a range of sequence numbers, where numbers count messages.

A packet that was packed otherwise than it is wanted (an answer that holds more than was asked for,
a published packet of which the first messages are in a snapshot) becomes one with the wanted
messages alone. Everything else in its header stays.
"""

from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.scanner import patch_header


def can_be_cut(feed: Feed) -> bool:
    """Return whether packets of a feed can be cut by number."""
    table = feed.table
    return bool(
        feed.counts_messages
        and table.sequence_size
        and table.count_size
        and not (table.fix or table.number_size)
        and table.message_align == 1
    )


class PacketCutter:
    """Cuts packets of `feed`.

    Raises `UsageError` for a feed whose numbers count packets, or whose headers have no number or
    no count.
    """

    def __init__(self, feed: Feed) -> None:
        if not can_be_cut(feed):
            raise UsageError(
                f"packets of {feed.name} cannot be cut", "its numbers must count messages"
            )
        self._feed = feed
        self._order: Any = feed.byte_order

    def cut(self, packet: bytes, first: int, end: int) -> bytes:
        """Return the packet with its messages of the numbers `first` to `end` - 1 alone.

        The packet must be one that the scanner accepts, and hold all of these numbers. Raises
        `BadPacket` where it is not accepted.
        """
        table = self._feed.table
        at, size = table.sequence_at, table.sequence_size
        begin = int.from_bytes(packet[at : at + size], self._order)
        spans = list(self._feed.message_spans(packet))[first - begin : end - begin]
        cut = bytearray(packet[: table.header_size])
        for start, length, _ in spans:
            cut += packet[start : start + length]
        cut[at : at + size] = first.to_bytes(size, self._order)
        patch_header(table, cut, 0, len(cut), len(spans))
        return bytes(cut)
