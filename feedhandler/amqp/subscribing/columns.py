"""A batch of received packets, decoded into columns.

`Subscriber.batches()` yields one for each read: the bytes of everything that it brought, in order,
scanned once, and each message type's fields as numpy arrays or an Arrow record batch, all in
compiled code.
"""

from collections import Counter
from typing import Any

import cython
import numpy
from cython.cimports.feedhandler.amqp.proton import ReceiverLink
from cython.cimports.feedhandler.amqp.subscribing.inbox import Inbox

from feedhandler.amqp.subscribing.inbox import (
    PARTS,
    built_in_feed,
    day_of,
    reference_data_of,
)
from feedhandler.codecs import REJECT_TEXT, PacketKind, PeerError, Reject, UsageError
from feedhandler.codecs.columns import Columns
from feedhandler.codecs.feed_table import MessageIndex, PacketHeader
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.codecs.scanner import scan_messages, scan_packets
from feedhandler.codecs.visibility import Public, Readonly

#: Messages the index has room for at first; it doubles when a batch holds more.
INDEX_CAPACITY = 16_384


class Workspace:
    """Index and column decoders that one subscriber's batches share, to allocate none for each
    batch.

    `references`: what is known of symbols, by feed number.
    """

    def __init__(self, references: dict[int, ReferenceData] | None = None) -> None:
        self.references = {} if references is None else references
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
                raise PeerError(
                    f"a body is no packet of {feed.name}: {REJECT_TEXT[Reject(verdict)]}"
                )
            return self.index

    def scan_bodies(self, batch: "Batch") -> MessageIndex:
        """Index bodies that are single messages, as if they were one packet's messages.

        Their numbers and services come from the tags, and each counts as a packet of its own, with
        the send time that came with it. Raises PeerError where a body is no message of the feed.
        """
        header = self.header
        header.kind, header.flags = PacketKind.DATA, 0
        header.sequence, header.service, header.send_time = 0, batch.service, 0
        header.body, header.length, header.count = 0, len(batch.data), batch.count
        if batch.count > self.index.capacity:
            self.index = MessageIndex(2 * batch.count)
        verdict = scan_messages(batch.feed.table, batch.data, 0, header, self.index)
        if verdict:
            raise PeerError(
                f"a body is no message of {batch.feed.name}: {REJECT_TEXT[Reject(verdict)]}"
            )
        own = batch.sequences + (batch.numbers if batch.feed.counts_messages else 0)
        index, count = self.index, batch.count
        numpy.asarray(index.sequences)[:count] = own
        numpy.asarray(index.firsts)[:count] = numpy.arange(count)
        numpy.asarray(index.services)[:count] = batch.services
        numpy.asarray(index.send_times)[:count] = batch.send_times
        index.packets = count
        return index

    def learn(self, feed: Any, data: Any, index: MessageIndex) -> ReferenceData:
        """Add what the reference messages in `data` say to what is known of the feed's symbols;
        return all of it."""
        known = reference_data_of(feed, self.references)
        known.learn_columns(data, index.arrays())
        return known


_NO_PARTS = bytearray()
#: All bits of a tag's sequence but the highest, which marks a snapshot block's.
_LOW_BITS = (1 << 63) - 1


@cython.cclass
class Batch:
    """The bodies of several AMQP messages, concatenated.

    data       their bytes
    count      how many bodies (AMQP messages) there are
    starts, sizes, stamps, sequences, numbers, services
               int64[count]: of each body its start in `data`, its size, the gateway's receive
               stamp (0 unless asked for), and its tag's sequence (of a snapshot: without the bit
               that marks it; of a packet outside the sequence at least 2**62), message number
               and service
    notes      the quality messages that precede these data, as `Message`s
    day        trading day of the data, yyyymmdd (0 where unknown)
    service    service of the first body
    snapshot   whether these data are part of a snapshot block; no batch has some that are and
               some that are not
    """

    feed: Public[object]
    grain: Readonly[str]
    notes: Readonly[list]
    data: Readonly[object]
    count: Readonly[cython.Py_ssize_t]
    day: Readonly[cython.int]
    service: Readonly[cython.int]
    snapshot: Readonly[cython.bint]
    parts: Readonly[bytearray]
    width: Readonly[cython.Py_ssize_t]
    workspace: object
    scanned: object

    def __init__(self, feed: Any, grain: str, quality: list | None, workspace: Workspace) -> None:
        self.feed = feed
        self.grain = grain
        self.notes = quality or []
        self.data = b""
        self.parts = _NO_PARTS
        self.width = self.count = self.day = self.service = 0
        self.snapshot = False
        self.workspace = workspace
        self.scanned: MessageIndex | None = None

    @property
    def quality(self) -> list[dict[str, Any]]:
        """Decoded quality messages that precede these data."""
        return [note.quality for note in self.notes]

    def fill(
        self,
        inbox: Inbox,
        link: ReceiverLink,
        first: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Take messages `first` .. `end` - 1 of a link, until a quality message, the border of a
        snapshot block, or a failure of the inbox.

        Returns how many were taken; sets feed, day and service from their tags.
        """
        self.count = inbox.collect(link, first, end)
        self.width = end - first
        self.data = inbox.bodies
        self.parts = inbox.parts
        self.day = inbox.day
        self.service = inbox.service
        self.snapshot = inbox.snapshot and self.count > 0
        if self.feed is None and self.count > 0:
            self.feed = built_in_feed(inbox.feed_number)
        return self.count

    def collect(self, messages: list) -> None:
        """Fill the batch with these messages, of one kind and none of them a quality message."""
        count = len(messages)
        parts = numpy.zeros((PARTS, count), numpy.int64)
        sizes = [len(message.body) for message in messages]
        parts[0, 1:] = numpy.cumsum(sizes[:-1])
        parts[1] = sizes
        parts[2] = [message.received_ns for message in messages]
        parts[3] = [message.sequence & _LOW_BITS for message in messages]
        parts[4] = [message.number for message in messages]
        parts[5] = [message.service for message in messages]
        sent = [message.send_time for message in messages]
        parts[6] = numpy.array(sent, numpy.uint64).view(numpy.int64)
        self.data = b"".join([message.body for message in messages])
        self.parts = bytearray(parts.tobytes())
        self.count = self.width = count
        self.day = messages[0].day
        self.service = messages[0].service
        self.snapshot = messages[0].snapshot
        if self.feed is None:
            self.feed = built_in_feed(messages[0].feed_number)

    def _part(self, number: int) -> Any:
        return numpy.frombuffer(self.parts, numpy.int64, self.count, 8 * number * self.width)

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def stamp(self, index: cython.Py_ssize_t) -> cython.longlong:
        """Return the receive stamp of one body in ns; quicker than `stamps` for a few. Raises
        IndexError."""
        if index < 0 or index >= self.count:
            raise IndexError("the batch has not so many bodies")
        if cython.compiled:
            return cython.cast(cython.p_longlong, cython.cast(cython.p_char, self.parts))[
                2 * self.width + index
            ]
        return memoryview(self.parts).cast("q")[2 * self.width + index]

    @property
    def starts(self) -> Any:
        """int64[count]: start of each body in `data`."""
        return self._part(0)

    @property
    def sizes(self) -> Any:
        """int64[count]: size of each body in bytes."""
        return self._part(1)

    @property
    def stamps(self) -> Any:
        """int64[count]: the gateway's receive stamp of each body in ns since 1970; 0 unless asked
        for."""
        return self._part(2)

    @property
    def sequences(self) -> Any:
        """int64[count]: sequence number of the (first) packet of each body."""
        return self._part(3)

    @property
    def numbers(self) -> Any:
        """int64[count]: message number of each body in its packet; 65,535 for whole packets."""
        return self._part(4)

    @property
    def services(self) -> Any:
        """int64[count]: service number of each body."""
        return self._part(5)

    @property
    def send_times(self) -> Any:
        """uint64[count]: send time of the packet of each single message, as in its header;
        `feed_table.NO_SEND_TIME` where it came without."""
        return self._part(6).view(numpy.uint64)

    @property
    def index(self) -> MessageIndex:
        """Index of type, symbol, offset and size of every market message in `data`; valid until the
        next batch.

        Raises PeerError where the bodies are no packets of the feed.
        """
        if self.scanned is None:
            if not self.count:
                self.scanned = MessageIndex(1)
            elif self.grain == "message" and not self.feed.table.type_in_packet:
                self.scanned = self.workspace.scan_bodies(self)
            else:
                self.scanned = self.workspace.scan(self.feed, self.data)
        return self.scanned

    def __len__(self) -> int:
        """Return the number of market messages in the batch."""
        return int(self.index.count)

    def types(self) -> dict[int | str, int]:
        """Count the messages of each type."""
        counts = Counter(self.index.arrays()["types"].tolist())
        return {self.feed.type_label(code): count for code, count in counts.items()}

    def __bool__(self) -> bool:
        """Return True, even for a batch that holds quality messages alone."""
        return True

    def columns(self, message_type: int | str) -> dict[str, Any]:
        """Return all fields of one message type as numpy arrays, one row a message, by field name.

        The arrays are reused: they are valid until the subscriber's next batch is asked for columns
        of the same type. `arrow` returns columns with memory of their own.
        """
        return self._decoded(message_type).arrays

    def arrow(self, message_type: int | str) -> Any:
        """Return all fields of one message type as a pyarrow RecordBatch with memory of its own."""
        return self._decoded(message_type).to_arrow()

    def _decoded(self, message_type: int | str) -> Columns:
        decoders = self.workspace.decoders
        decoder = decoders.get(message_type)
        if decoder is None:
            if self.feed is None:
                raise UsageError("a batch of quality messages alone has no feed and no columns")
            decoder = decoders[message_type] = Columns(self.feed, message_type)
        scales = None
        if self.feed.needs_reference_scales:
            scales = self.workspace.learn(self.feed, self.data, self.index).all_scales
        decoder.decode(self.data, self.index, day_of(self.day), scales)
        return decoder


def pack(waiting: Any, feed: Any, grain: str, workspace: Workspace) -> Batch:
    """Remove the first messages from the deque and return them as one batch, split where
    `Batch.fill` would split."""
    notes: list[Any] = []
    bodies: list[Any] = []
    while waiting:
        message = waiting[0]
        if bodies and (message.content == "quality" or message.snapshot != bodies[0].snapshot):
            break
        (notes if message.content == "quality" else bodies).append(waiting.popleft())
    return _packed(notes, bodies, feed, grain, workspace)


def _packed(notes: list, bodies: list, feed: Any, grain: str, workspace: Workspace) -> Batch:
    batch = Batch(feed, grain, notes, workspace)
    if bodies:
        batch.collect(bodies)
    return batch
