"""From the hand-over ring to every subscriber.

What it is for: one `pump` a hand-over reads the records that the receive thread published, in
order, and delivers each packet to the links that want it, split as late as asked (`splitter`). A
record that is no live packet ends it, as reference data does in front of the packet that it is in:
`event` says what it is, the caller of `pump` applies it, and `resume` goes on behind it. So nothing
is called back in the middle of the deliveries.

Beside the live packets there are those that recovery has: a snapshot block (`block`) goes to its
links between two quality messages, and never mixes with live packets of its service; a stream that
is `closed` keeps its packets in its store and delivers nothing, until `replay` does. A packet
outside the sequence is delivered where it comes, and moves no number.

What it promises: order within a service; no packet behind a control event of the ring (a gap, a
reset) is delivered before the event was applied; a link's overrun concerns that link alone; it
never waits.

What it leaves to others: writing to sockets (the node flushes `dirty_peers` after each pump; who
calls `quality`, `block` or `replay` outside of one flushes, too), what control events mean
(`gateway/core.py`), names of symbols (`name_of`, `alias_of`), when a stream closes and opens.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import cython
import numpy
from cython.cimports.feedhandler.amqp.record_sink import RecordSink
from cython.cimports.feedhandler.amqp.sender_queue import Peer, SenderQueue
from cython.cimports.feedhandler.amqp.splitter import Splitter
from cython.cimports.feedhandler.amqp.stream import Stream
from cython.cimports.feedhandler.codecs.feed_table import FeedTable
from cython.cimports.feedhandler.ingest.records import (
    CHANNEL_SHIFT,
    COUNT_SHIFT,
    GAP,
    HEADER_BYTES,
    KIND_MASK,
    KIND_SHIFT,
    LINE_MASK,
    LINE_SHIFT,
    PACKET,
    PAD,
    PASSED,
    RESET,
    SKIPPED,
    START,
    WITHDRAWN,
    WORD_AUXILIARY,
    WORD_MESSAGES,
    WORD_NEXT_SEQUENCE,
    WORD_PAYLOAD,
    WORD_RECEIVED_NS,
    WORD_RECORD,
    WORD_SEQUENCE,
)
from cython.cimports.feedhandler.ingest.ring import Ring

from feedhandler.amqp import framing
from feedhandler.amqp.framing import BLOCK_LAST_MASK, BLOCK_SHIFT, SNAPSHOT_BIT
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.ingest.records import ControlEvent, RecordKind, RefreshLinePacket
from feedhandler.retrans.protocol import NEVER_NS as NEVER

if TYPE_CHECKING:
    from feedhandler.amqp.queueing.book_cache import BookCache

_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)
_QUALITY = cython.declare(cython.uint, framing.QUALITY_NOTE)

#: Kinds of records by number: they count from 0.
_KINDS = tuple(RecordKind)

#: Receive stamps remembered within one pump for the latency histograms; more are not counted.
STAMPS_MAX = 16_384
_STAMPS_MAX = cython.declare(cython.Py_ssize_t, STAMPS_MAX)
#: Half a word of a record. As a literal it would be an object, and the arithmetic around it slow.
_LOW_HALF = cython.declare(cython.ulonglong, 0xFFFF_FFFF)


class ReferenceMessages(NamedTuple):
    """The reference data in the packet that is delivered next: (type, message) each."""

    messages: tuple[tuple[int, bytes], ...]


@cython.cclass
class Fanout(Splitter):
    """All services' streams, and all links that receive from them.

    `name_of(symbol)` gives a symbol's word in routing keys, `alias_of(symbol)` another word that
    patterns may call it by, or None. Messages of `reference_types` are events, which
    costs a scan of every packet of at least `reference_bytes_min`.

    The ring's channels are the streams, and behind them those of refresh lines. `event` is what
    ended the last run of deliveries: a `ControlEvent` of any channel, a `RefreshLinePacket`,
    `ReferenceMessages`, or None where that was the end of the ring or of the share.

    `tap`, where it is set, is a recorder's ring: it gets a copy of every packet that is delivered,
    snapshots included; `tap_drops` counts those it had no room for. `book_cache`, where it is set,
    gets what is published: it keeps the books for links that conflate. `records`, where it is set,
    makes normalised records of what is published, for links that take those.
    """

    streams: Readonly[list]
    dirty_peers: Readonly[list]
    sender_queues: Readonly[list]
    ring: Ring
    event: Readonly[object]
    # The share that is being delivered: where it stands, where the ring and it end.
    position: cython.ulonglong
    share_end: cython.ulonglong
    share_limit: cython.ulonglong
    # The last packet whose reference data was an event.
    named: cython.ulonglong
    reference_bytes_min: cython.Py_ssize_t
    stamps: cython.longlong[::1]
    stamp_streams: cython.ushort[::1]
    stamp_count: cython.Py_ssize_t
    tap: Public[Ring]
    book_cache: Public[object]
    records: Public[RecordSink]
    tap_drops: Readonly[cython.ulonglong]
    tap_ns: cython.ulonglong
    quality_messages: Readonly[cython.ulonglong]

    def __init__(
        self,
        ring: Ring,
        table: FeedTable,
        streams: list[Stream],
        name_of: Callable[[int], str],
        alias_of: Callable[[int], str | None],
        reference_types: Iterable[int],
        reference_bytes_min: int,
    ) -> None:
        super().__init__(table, name_of, alias_of, reference_types)
        self.ring = ring
        self.streams: list[Stream] = streams
        self.reference_bytes_min = reference_bytes_min
        self.source = ring.data
        self.event: ControlEvent | RefreshLinePacket | ReferenceMessages | None = None
        self.named = NEVER
        self.position = self.share_end = self.share_limit = 0
        self.tap: Ring | None = None
        self.tap_drops = 0
        self.tap_ns = 0
        self.book_cache: "BookCache | None" = None
        self.records: RecordSink | None = None
        self.sender_queues: list[SenderQueue] = []
        self.dirty_peers: list[Any] = []
        self.stamps = memoryview(numpy.zeros(STAMPS_MAX, numpy.int64))
        self.stamp_streams = memoryview(numpy.zeros(STAMPS_MAX, numpy.uint16))
        self.stamp_count = 0
        self.quality_messages = 0

    # -- links ------------------------------------------------------------------------------

    def add(self, sender_queue: SenderQueue, resumed: Sequence[Stream] = ()) -> None:
        """Add a link from the next packet on, but not yet to the streams `resumed`."""
        self.sender_queues.append(sender_queue)
        if self.records is not None and sender_queue.subscription.schema:
            self.records.add(sender_queue)
        for stream in self.streams:
            if stream not in resumed:
                stream.admit(sender_queue)

    def remove(self, sender_queue: SenderQueue) -> None:
        """Remove a link."""
        if sender_queue not in self.sender_queues:
            return
        self.sender_queues.remove(sender_queue)
        if sender_queue in self.batching:
            self.batching.remove(sender_queue)
        if self.records is not None:
            self.records.remove(sender_queue)
        for stream in self.streams:
            stream.withhold(sender_queue)

    def quality(
        self, stream: Stream, body: bytes, sender_queues: list[SenderQueue] | None = None
    ) -> None:
        """Send a quality message to the service's links, or to these, ahead of later data.

        Its tag has the number of the packet that follows, and a message number of its own, so
        that a receiver that de-duplicates by tag keeps both.
        """
        if sender_queues is None and stream.history is not None:
            stream.history.note(stream.prefix, stream.next_sequence, body)
        if sender_queues is None and self.records is not None:
            self.records.heard(stream, body)
        self.plain.begin(stream.quality_template, stream.next_sequence, _QUALITY, 0)
        self.plain.append(body, 0, len(body))
        self.plain.finish(0)
        for sender_queue in list(stream.concerned if sender_queues is None else sender_queues):
            sender_queue.close_batch(stream.index)
            sender_queue.deliver(self.plain)
            self.quality_messages += 1

    # -- what recovery has ------------------------------------------------------------------

    def block(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        last: int,
        end: bytes,
        sender_queues: list[SenderQueue] | None = None,
    ) -> None:
        """Send a snapshot block: quality message `begin`, the packets, quality message `end`.

        It goes to the service's links, or to those of `sender_queues` that are, each packet thinned
        as a live one is; links without quality messages could not distinguish it from live packets
        and get nothing. All of it is queued before this returns. `last` is the snapshot's
        LastSeqNum, which is in the packets' tags. Its reference data is no event: see `references`.
        """
        data: bytes
        if sender_queues is None and stream.history is not None:
            following = stream.next_sequence
            stream.history.note(stream.prefix, following, begin, tuple(packets), last, end)
        if self.book_cache is not None:
            self.book_cache.clear(stream.service)
            for data in packets:
                self.book_cache.packet(bytes(data), stream.service)
        chosen = [
            each for each in stream.concerned if sender_queues is None or each in sender_queues
        ]
        is_published = sender_queues is None and self.records is not None
        if chosen or is_published:
            position = (last & BLOCK_LAST_MASK) << BLOCK_SHIFT
            self._block(stream, begin, packets, position, end, chosen, is_published)

    def books(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        position: tuple[int, int],
        end: bytes,
        sender_queue: SenderQueue,
    ) -> None:
        """Send some symbols' books to one link that is behind, between the messages `begin` and
        `end`. `position`: the number of the last live packet in them, and the first packet's
        index in their tags. It is no part of what is published: no recorder gets it."""
        tap, self.tap = self.tap, None
        try:
            first = ((position[0] & BLOCK_LAST_MASK) << BLOCK_SHIFT) + position[1]
            self._block(stream, begin, packets, first, end, [sender_queue])
        finally:
            self.tap = tap

    def _block(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        position: int,
        end: bytes,
        chosen: list[SenderQueue],
        makes_records: bool = False,
    ) -> None:
        """Send a block to the links `chosen`; `makes_records`: and as records to those that take
        them."""
        number: int
        data: bytes
        sender_queue: SenderQueue
        self.quality(stream, begin, chosen)
        tag = SNAPSHOT_BIT | position
        for sender_queue in chosen:
            sender_queue.chosen = True
        self.restricted = True
        try:
            if makes_records:
                self.records.reset(stream, tag, 0)
            for number, data in enumerate(packets):
                count = self._load(data)
                if makes_records and count > 0:
                    self._records(stream, tag + number, 0, 0, len(data), 0)
                self._deliver(stream, tag + number, 0, 0, len(data), count, 0)
        finally:
            self.restricted = False
            self.source = self.ring.data
            for sender_queue in chosen:
                sender_queue.chosen = False
        if makes_records:
            self._note_opened()
            self.records.heard(stream, end)
        self.quality(stream, end, chosen)
        self._end(False)

    def replay(
        self, stream: Stream, packets: list[tuple[int, int, bytes]], following: int = 0
    ) -> None:
        """Deliver stored packets (sequence, next sequence, bytes) as the live ones that they were
        when the stream was closed; when each was received is no longer known, and reference
        data in them is no event. Before them the stream stood at `following` at least."""
        data: bytes
        if following > stream.next_sequence:
            stream.next_sequence = following
        stream.open(packets[0][0] if packets else NEVER)
        try:
            for sequence, next_sequence, data in packets:
                count = self._load(data)
                stream.packets += 1
                stream.messages += count
                stream.next_sequence = next_sequence
                self._deliver(stream, sequence, 0, 0, len(data), count, 0)
        finally:
            self.source = self.ring.data
        self._end(False)

    def references(self, packets: list[bytes]) -> tuple[tuple[int, bytes], ...]:
        """Return the reference data in packets that are not in the ring: (type, message) each."""
        data: bytes
        found: list[tuple[int, bytes]] = []
        if not self.has_references:
            return ()
        try:
            for data in packets:
                if self._load(data) > 0:
                    found += self._references(0, len(data)) or ()
        finally:
            self.source = self.ring.data
            self.scanned = False
        return tuple(found)

    # -- the way of a packet ----------------------------------------------------------------

    def pump(self, bytes_max: cython.Py_ssize_t) -> cython.bint:
        """Deliver a share of what the ring holds, up to its first event, some `bytes_max` bytes at
        most; True when more waits.

        Where `event` is set, the share is not over: apply it, then `resume`. RuntimeError where
        that was left out.
        """
        if self.event is not None:
            raise RuntimeError("the event was not applied: apply it and resume, then pump")
        if cython.compiled:
            self.position = self.ring.tail_bytes
        else:
            self.position = self.ring.tail
        self.share_end = self.ring.readable()
        self.share_limit = self.position + bytes_max
        self.stamp_count = 0
        return self._run()

    def resume(self) -> cython.bint:
        """Go on with the share behind `event`, which has been applied; as `pump`."""
        if isinstance(self.event, ControlEvent):
            self._begin_epoch(self.event)
        self.event = None
        self.scanned = False
        return self._run()

    def _run(self) -> cython.bint:
        """Deliver up to the next event, or the end of the share."""
        position: cython.ulonglong = self.position
        end: cython.ulonglong = self.share_end
        limit: cython.ulonglong = self.share_limit
        streams: cython.Py_ssize_t = len(self.streams)
        while position < end and position < limit:
            offset: cython.Py_ssize_t = position & self.ring.mask
            first: cython.ulonglong = self.ring.words[(offset >> 3) + WORD_RECORD]
            kind: cython.int = (first >> KIND_SHIFT) & KIND_MASK
            channel: cython.Py_ssize_t = first >> CHANNEL_SHIFT
            if kind == PACKET and channel < streams:
                stream: Stream = self.streams[channel]
                if position != self.named and self._names(stream, offset):
                    self.named = self.position = position
                    return True
                self._packet(stream, offset)
            elif kind != PAD:
                if kind == PACKET:
                    self._refresh(channel, offset)
                else:
                    self._control(kind, channel, offset >> 3)
                if self.event is not None:
                    self.position = position + (first & _LOW_HALF)
                    return True
            position += first & _LOW_HALF
        self._end(position < end)
        self.ring.release(position)
        return position < end

    def _end(self, more: cython.bint) -> cython.int:
        """End of a hand-over: send the batches it filled; those that gather on stay noted."""
        sender_queue: SenderQueue
        for sender_queue in self.batching:
            sender_queue.more = more
            sender_queue.flush_due_batches()
        if more:
            self.batching = [each for each in self.batching if each.has_open_batch()]
        else:
            self.batching.clear()
        self._forget_ahead()
        if self.tap is not None:
            self.tap.publish()
        return 0

    def _tap(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.ulonglong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Copy a packet for the recorder; one of a store or a snapshot has the time of the latest
        packet before it."""
        self.tap_ns = received_ns or self.tap_ns
        if not cython.compiled:
            self.source = memoryview(self.source)
        if not self.tap.write_packet(
            stream.index, 0, 0, 0, sequence, stream.next_sequence, self.tap_ns, 0, 0, 0, 0,
            self.source, start, size,
        ):  # fmt: skip
            self.tap_drops += 1
        return 0

    def _control(
        self, kind: cython.int, channel: cython.Py_ssize_t, word: cython.Py_ssize_t
    ) -> cython.int:
        """End the run at a record that is no packet. Where it moves the stream on, the stream
        stands there when the event is applied."""
        following: cython.ulonglong = self.ring.words[word + WORD_NEXT_SEQUENCE]
        if kind in (GAP, RESET, SKIPPED, START, WITHDRAWN, PASSED) and channel < len(self.streams):
            stream: Stream = self.streams[channel]
            if kind not in (GAP, PASSED, SKIPPED) or not stream.closed:
                stream.next_sequence = following
        self.event = ControlEvent(
            _KINDS[kind],
            channel,
            (self.ring.words[word + WORD_PAYLOAD] >> LINE_SHIFT) & LINE_MASK,
            self.ring.words[word + WORD_SEQUENCE],
            following,
            self.ring.words[word + WORD_RECEIVED_NS],
            self.ring.words[word + WORD_AUXILIARY],
        )
        return 0

    def _begin_epoch(self, event: ControlEvent) -> None:
        """Move the stream and its store to a new epoch, or back to a range lost in error.

        Called once the event was applied, for applying it may deliver what is stored. (A store's
        numbers ascend.)
        """
        if event.kind not in (RESET, START, WITHDRAWN) or event.channel >= len(self.streams):
            return
        stream: Stream = self.streams[event.channel]
        stream.next_sequence = event.next_sequence
        if self.book_cache is not None and event.kind == RESET:
            self.book_cache.clear(stream.service)
        if self.records is not None and event.kind == RESET:
            self.records.reset(stream, event.next_sequence, event.received_ns)
            self._note_opened()
        if stream.history is not None:
            stream.history.begin(stream.prefix, event.next_sequence, stream.store.end)
        if stream.store is not None:
            stream.store.clear()

    def _names(self, stream: Stream, offset: cython.Py_ssize_t) -> cython.bint:
        """Return whether the packet has reference data, which is an event before it is delivered:
        its own messages have the names that it carries. What is stored only names nothing yet."""
        word: cython.Py_ssize_t = offset >> 3
        size: cython.Py_ssize_t = self.ring.words[word + WORD_PAYLOAD] & _LOW_HALF
        if not self.has_references or size < self.reference_bytes_min:
            return False
        if stream.closed and self.ring.words[word + WORD_SEQUENCE] < _UNSEQUENCED:
            return False
        found: list = self._references(offset + HEADER_BYTES, size)
        if found is None:
            return False
        self.event = ReferenceMessages(tuple(found))
        return True

    def _refresh(self, channel: cython.Py_ssize_t, offset: cython.Py_ssize_t) -> cython.int:
        """End the run at a packet of a refresh line; one outside the sequence is no part of a
        snapshot."""
        word: cython.Py_ssize_t = offset >> 3
        size: cython.Py_ssize_t = self.ring.words[word + WORD_PAYLOAD] & _LOW_HALF
        if self.ring.words[word + WORD_SEQUENCE] < _UNSEQUENCED:
            self.event = RefreshLinePacket(
                channel,
                self.ring.words[word + WORD_SEQUENCE],
                self._bytes(offset + HEADER_BYTES, size),
            )
        return 0

    def _packet(self, stream: Stream, offset: cython.Py_ssize_t) -> cython.int:
        """Deliver one packet record."""
        word: cython.Py_ssize_t = offset >> 3
        size: cython.Py_ssize_t = self.ring.words[word + WORD_PAYLOAD] & _LOW_HALF
        count: cython.Py_ssize_t = self.ring.words[word + WORD_PAYLOAD] >> COUNT_SHIFT
        sequence: cython.ulonglong = self.ring.words[word + WORD_SEQUENCE]
        received_ns: cython.longlong = self.ring.words[word + WORD_RECEIVED_NS]
        skip: cython.Py_ssize_t = self.ring.words[word + WORD_MESSAGES] & _LOW_HALF
        if sequence >= _UNSEQUENCED:
            return self._outside(stream, sequence, received_ns, offset + HEADER_BYTES, size, count)
        if stream.store is not None:
            stream.store.append(
                sequence, self.ring.words[word + WORD_NEXT_SEQUENCE], self.source,
                offset + HEADER_BYTES, size, received_ns, skip, count,
            )  # fmt: skip
        if stream.closed:
            return 0
        stream.packets += 1
        stream.messages += count - skip
        stream.next_sequence = self.ring.words[word + WORD_NEXT_SEQUENCE]
        self._note_stamp(stream, received_ns)
        return self._deliver(
            stream, sequence, received_ns, offset + HEADER_BYTES, size, count, skip
        )

    def _outside(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver a packet outside the sequence, even where the stream is closed: no snapshot has
        it.

        What is delivered while the stream is closed is not in its history, where it would stand
        among packets that are not published yet.
        """
        if stream.history is not None and not stream.closed:
            stream.store.append_unsequenced(
                sequence, stream.next_sequence, self.source, start, size, received_ns, count
            )
        stream.packets += 1
        stream.messages += count
        self._note_stamp(stream, received_ns)
        self._end_batches(stream)
        self._deliver(stream, sequence, received_ns, start, size, count, 0)
        return self._end_batches(stream)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1, check=True)
    def _note_stamp(self, stream: Stream, received_ns: cython.longlong) -> cython.int:
        """Remember when a packet came, for `note_latency`."""
        if self.stamp_count < _STAMPS_MAX:
            self.stamps[self.stamp_count] = received_ns
            self.stamp_streams[self.stamp_count] = stream.index
            self.stamp_count += 1
        return 0

    def _deliver(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        skip: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver the packet at `source[start : start + size]` to every link that wants of it."""
        if self.book_cache is not None and not self.restricted:
            self.book_cache.packet(self._bytes(start, size), stream.service, skip)
        if self.records is not None and count > 0 and not self.restricted:
            self._records(stream, sequence, received_ns, start, size, skip)
        if self.tap is not None:
            self._tap(stream, sequence, received_ns, start, size)
        if skip == 0 and stream.whole:
            self._whole(stream, sequence, received_ns, start, size)
        if count > 0 and (stream.fine or skip > 0):
            self._split(stream, sequence, received_ns, start, size, skip)
        self.scanned = False
        return 0

    def _records(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        skip: cython.Py_ssize_t,
    ) -> cython.int:
        """Make normalised records of a packet that is published, for the links that take those."""
        if not self.scanned and not self._scan(start, size):
            return 0
        self.scanned = True
        self.records.packet(
            stream, sequence, received_ns, self.source, start, self.header, self.index, skip
        )
        self._note_opened()
        return 0

    def _note_opened(self) -> cython.int:
        """Take the links that have records in an open batch."""
        sender_queue: SenderQueue
        if len(self.records.opened) > 0:
            for sender_queue in self.records.opened:
                if sender_queue not in self.batching:
                    self.batching.append(sender_queue)
            self.records.opened.clear()
        return 0

    @cython.ccall
    def flush(self) -> list[Peer]:
        """Write what the pump left in the engines, a write a connection.

        Returns the connections that need more than that: full sockets, backlogs, events.
        """
        peer: Peer
        rest: list = []
        for peer in self.dirty_peers:
            if not peer.gone and not peer.flush():
                rest.append(peer)
        self.dirty_peers.clear()
        return rest

    # -- measuring --------------------------------------------------------------------------

    def note_latency(self, now_ns: cython.longlong) -> cython.int:
        """Count how long the packets of this pump took from their stamp to the flush."""
        at: cython.Py_ssize_t
        for at in range(self.stamp_count):
            stream: Stream = self.streams[self.stamp_streams[at]]
            stream.latency.record(now_ns - self.stamps[at])
        return 0
