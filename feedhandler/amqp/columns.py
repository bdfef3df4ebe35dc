"""A batch of received packets, decoded into columns.

What `Subscriber.batches()` yields: the bytes of everything one read brought, in order, scanned
once, and each message type's fields as numpy arrays or an Arrow record batch, all in compiled
code.
"""

from collections import Counter
from functools import cached_property
from typing import Any

import numpy

from feedhandler.amqp.inbox import Inbox, Message, built_in_feed, day_of
from feedhandler.codecs import REJECT_TEXT, PeerError, Reject, UsageError
from feedhandler.codecs.columns import Columns
from feedhandler.codecs.scanner import MessageIndex, PacketHeader, scan_packets

#: Messages the index has room for at first; it doubles when a batch holds more.
INDEX_CAPACITY = 16_384


class Workspace:
    """What one subscriber's batches share, so that none is allocated for each: the index and the
    decoders of each message type."""

    def __init__(self) -> None:
        self.index = MessageIndex(INDEX_CAPACITY)
        self.header = PacketHeader()
        self.decoders: dict[int | str, Columns] = {}

    def scan(self, feed: Any, data: Any) -> MessageIndex:
        """Index the packets in `data`. Raises PeerError where they are none of the feed's."""
        while True:
            self.index.clear()
            verdict = scan_packets(feed.table, data, 0, len(data), self.header, self.index)
            if verdict == Reject.INDEX_FULL:
                self.index = MessageIndex(2 * self.index.capacity)
                continue
            if verdict:
                raise PeerError(f"a body is no packet of {feed.name}: {REJECT_TEXT[verdict]}")
            return self.index


class Batch:
    """Bodies one behind the other.

    data      their bytes
    parts     int64[n, 3]: start in data, size, the gateway's receive stamp or 0, a body a row
    quality   the quality messages that precede these data
    day       trading day of the data, yyyymmdd (0 where unknown)
    """

    def __init__(self, feed: Any, grain: str, quality: list[Message], workspace: Workspace) -> None:
        self.feed = feed
        self._workspace = workspace
        self.grain = grain
        self.quality = [note.quality for note in quality]
        self.data = b""
        self.parts = numpy.empty((0, 3), numpy.int64)
        self.day = 0

    def fill(self, inbox: Inbox, arena: bytearray, bounds: memoryview, first: int, end: int) -> int:
        """Take messages `first` .. `end` - 1 of a link's arena, until a quality message.

        Returns how many were taken, and learns from their tags which feed and day they are of.
        """
        data = bytearray(bounds[end] - bounds[first])
        parts = numpy.empty((end - first, 3), numpy.int64)
        taken = inbox.gather(arena, bounds, first, end, data, parts)
        self.data = memoryview(data)[: inbox.gathered_bytes]
        self.parts = parts[:taken]
        self.day = inbox.day
        if self.feed is None and taken:
            self.feed = built_in_feed(inbox.feed_number)
        return taken

    @cached_property
    def index(self) -> MessageIndex:
        """Type, symbol, offset and size of every market message in `data`, until the next batch.

        Raises PeerError where the bodies are no packets of the feed.
        """
        if not len(self.parts):
            return MessageIndex(1)
        if self.grain == "message" and not self.feed.table.type_in_packet:
            return self.feed.index_messages(self.data, self.parts[:, :2])
        return self._workspace.scan(self.feed, self.data)

    def __len__(self) -> int:
        """Market messages in the batch."""
        return int(self.index.count)

    def types(self) -> dict[int | str, int]:
        """How many messages there are of each type."""
        counts = Counter(self.index.arrays()["types"].tolist())
        return {self.feed.type_label(code): count for code, count in counts.items()}

    def __bool__(self) -> bool:
        """A batch is true even where it holds quality messages alone."""
        return True

    def columns(self, message_type: int | str) -> dict[str, Any]:
        """All fields of one message type as numpy arrays, one row a message, by field name.

        The arrays are reused: they hold until the subscriber's next batch is asked for columns of
        the same type. `arrow` gives columns of their own memory.
        """
        return self._decoded(message_type).arrays

    def arrow(self, message_type: int | str) -> Any:
        """The same as a pyarrow RecordBatch."""
        return self._decoded(message_type).to_arrow()

    def _decoded(self, message_type: int | str) -> Columns:
        decoders = self._workspace.decoders
        decoder = decoders.get(message_type)
        if decoder is None:
            if self.feed is None:
                raise UsageError("a batch of quality messages alone has no feed and no columns")
            decoder = decoders[message_type] = Columns(self.feed, message_type)
        decoder.decode(self.data, self.index, day_of(self.day))
        return decoder
