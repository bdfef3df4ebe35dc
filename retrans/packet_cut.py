"""Cutting of packets to a range of sequence numbers, where numbers count messages.

A packet that was packed otherwise than it is wanted (an answer that holds more than was asked for,
a published packet of which the first messages are in a snapshot) becomes one with the wanted
messages alone. Everything else in its header stays.
"""

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.scanner import header_bytes, patch_header, write_number


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

    def cut(self, packet: bytes, first: int, end: int) -> bytes:
        """Return the packet with its messages of the numbers `first` to `end` - 1 alone.

        The packet must be one that the scanner accepts, and hold all of these numbers. Raises
        `BadPacket` where it is not accepted.
        """
        table = self._feed.table
        begin = self._feed.sequence_of(packet)
        spans = list(self._feed.message_spans(packet))[first - begin : end - begin]
        cut = bytearray(packet[: header_bytes(table, packet, 0, len(packet))])
        for start, length, _ in spans:
            cut += packet[start : start + length]
        write_number(table, cut, 0, first)
        patch_header(table, cut, 0, len(cut), len(spans))
        return bytes(cut)
