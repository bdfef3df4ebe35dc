"""Reading of packets that a peer sends: cut from a stream, and checked by the feed's scanner."""

from collections.abc import Iterator
from typing import Protocol

from feedhandler.codecs.feed_table import FeedTable, PacketHeader
from feedhandler.codecs.kinds import FINE
from feedhandler.codecs.scanner import check_messages, parse_next
from feedhandler.retrans.protocol import WireError


class PacketStream(Protocol):
    """Splitter of a stream into packets: `failure` is the fault that ended it."""

    @property
    def failure(self) -> WireError | None:
        """The fault that ended the stream; None: it has not ended."""
        ...

    def feed(self, data: bytes) -> list[bytes]:
        """Take in bytes and return the packets that are whole now."""
        ...


def packets_of(stream: PacketStream, data: bytes) -> Iterator[bytes]:
    """Yield the packets that are whole now. Raises the stream's failure behind them."""
    yield from stream.feed(data)
    if stream.failure is not None:
        raise stream.failure


def is_whole(table: FeedTable, data: bytes, header: PacketHeader) -> bool:
    """Read the header of a packet, which must fill `data`, and walk its messages.

    Returns whether all is well.
    """
    return (
        parse_next(table, data, 0, len(data), header) == FINE
        and header.length == len(data)
        and check_messages(table, data, 0, header) == FINE
    )
