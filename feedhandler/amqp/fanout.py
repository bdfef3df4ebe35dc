"""From the hand-over ring to every subscriber: route, split as late as asked, frame, send.

What it is for: one `pump` a hand-over reads the records that the receive thread published, in
order, and delivers each packet to the links that want it. A link that takes a whole service gets
the packet's bytes as they are. Only where some link wants less than a packet (one symbol, some
types, single messages) is the packet scanned and split, and then the links of a symbol come from
a cache (`Route`): the source paper found that about 70 % of a symbol's repeats follow within a
millisecond (section 2.2).

Beside the live packets there are those that recovery has: a snapshot block (`block`) goes to its
links between two quality messages, and never mixes with live packets of its service; a stream that
is `closed` keeps its packets in its store and delivers nothing, until `replay` does.

What it promises: order within a service; a mark in the ring (a gap, a reset) is told to `on_mark`
before any later packet is delivered; a link's overrun concerns that link alone; it never waits.

What it leaves to others: writing to sockets (the node flushes `dirty_peers` after each pump; who
calls `quality`, `block` or `replay` outside of one flushes, too), what marks mean (`quality`),
names of symbols (`name_of`, `alias_of`), when a stream closes and opens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import cython
import numpy

if cython.compiled:
    from cython.cimports.feedhandler.amqp.framing import Frame, Template, copy
    from cython.cimports.feedhandler.amqp.outlet import Outlet, Peer
    from cython.cimports.feedhandler.amqp.stream import Route, Stream
    from cython.cimports.feedhandler.codecs.scanner import (
        FeedTable,
        MessageIndex,
        PacketHeader,
        parse_header,
        patch_header,
        scan_messages,
    )
    from cython.cimports.feedhandler.ingest.ring import (
        GAP,
        HEADER_BYTES,
        PACKET,
        PAD,
        RESET,
        START,
        Ring,
    )
else:
    from feedhandler.amqp.framing import Frame, Template, copy
    from feedhandler.amqp.outlet import Outlet, Peer
    from feedhandler.amqp.stream import Route, Stream
    from feedhandler.codecs.scanner import (
        FeedTable,
        MessageIndex,
        PacketHeader,
        parse_header,
        patch_header,
        scan_messages,
    )
    from feedhandler.ingest.ring import GAP, HEADER_BYTES, PACKET, PAD, RESET, START, Ring

from feedhandler.amqp import framing
from feedhandler.amqp.framing import BLOCK_SHIFT, SNAPSHOT_BIT
from feedhandler.amqp.outlet import MESSAGES_MAX, PACKET_BYTES_MAX, SECTIONS_BYTES_MAX
from feedhandler.amqp.routing import Grain
from feedhandler.retrans.protocol import NEVER_NS as NEVER

_BATCH_GRAIN = cython.declare(cython.int, Grain.BATCH)
_WHOLE = cython.declare(cython.uint, framing.WHOLE_PACKET)
_QUALITY = cython.declare(cython.uint, framing.QUALITY_NOTE)

#: Receive stamps remembered within one pump for the latency histograms; more are not counted.
STAMPS_MAX = 16_384
_STAMPS_MAX = cython.declare(cython.Py_ssize_t, STAMPS_MAX)
#: Bits of `built`: which of the two frames holds the message in hand already.
_PLAIN_BUILT = cython.declare(cython.int, 1)
_STAMPED_BUILT = cython.declare(cython.int, 2)


@cython.cclass
class Fanout:
    """All services' streams, and all links that receive from them.

    `name_of(stream, symbol)` gives a symbol's word in routing keys, `alias_of(stream, symbol)`
    another word that patterns may call it by, or None. `on_mark(kind, channel, line, sequence,
    next sequence, received_ns, auxiliary)` hears every record that is no packet, between the
    packets it stands between. `on_reference(stream, message bytes)` hears messages of
    `reference_type` (-1: none), which costs a scan of every packet of at least
    `reference_bytes_min`; it may not deliver anything.

    The ring's channels are the streams, and behind them those of refresh lines: their packets go
    to `on_refresh(channel, sequence, packet bytes)`.

    `tap`, where it is set, is a recorder's ring: it gets a copy of every packet that is delivered,
    snapshots included; `tap_drops` counts those it had no room for. `keeper`, where it is set,
    hears what is published: it keeps the books for links that conflate.
    """

    def __init__(
        self,
        ring: Ring,
        table: FeedTable,
        streams: list[Stream],
        name_of: Callable[[Any, int], str],
        on_mark: Callable[..., None],
        reference_type: int = -1,
        on_reference: Callable[[Any, bytes], None] | None = None,
        on_refresh: Callable[[int, int, bytes], None] | None = None,
        alias_of: Callable[[Any, int], str | None] | None = None,
        reference_bytes_min: int = 0,
    ) -> None:
        self.ring = ring
        self.table = table
        self.streams = streams
        self.name_of = name_of
        self.on_mark = on_mark
        self.reference_type = reference_type
        self.on_reference = on_reference
        self.on_refresh = on_refresh
        self.alias_of = alias_of
        self.reference_bytes_min = reference_bytes_min
        self.restricted = False
        self.source = ring.data
        self.tap = None
        self.tap_drops = 0
        self.tap_ns = 0
        self.keeper = None
        self.outlets = []
        self.dirty_peers = []
        self.header = PacketHeader()
        self.index = MessageIndex(MESSAGES_MAX)
        self.plain = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.stamped = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.thin_memory = bytearray(PACKET_BYTES_MAX)
        self.thin = self.thin_memory
        self.touched = []
        self.batching = []
        self.stamps = memoryview(numpy.zeros(STAMPS_MAX, numpy.int64))
        self.stamp_streams = memoryview(numpy.zeros(STAMPS_MAX, numpy.uint16))
        self.stamp_count = 0
        self.route_lookups = self.route_hits = self.route_resets = 0
        self.quality_messages = 0

    # -- links ------------------------------------------------------------------------------

    def add(self, outlet: Outlet, resumed: Sequence[Stream] = ()) -> None:
        """Let a link take part from the next packet on, but not yet in the streams `resumed`."""
        self.outlets.append(outlet)
        for stream in self.streams:
            if stream not in resumed:
                stream.admit(outlet)

    def remove(self, outlet: Outlet) -> None:
        """Let a link take no further part."""
        if outlet not in self.outlets:
            return
        self.outlets.remove(outlet)
        if outlet in self.batching:
            self.batching.remove(outlet)
        for stream in self.streams:
            stream.withhold(outlet)

    def quality(self, stream: Stream, body: bytes, outlets: list[Outlet] | None = None) -> None:
        """Send a quality message to the service's links, or to these, ahead of later data.

        Its tag has the number of the packet that follows, and a message number of its own, so
        that whoever de-duplicates by tag keeps both.
        """
        if outlets is None and stream.history is not None:
            stream.history.note(stream.prefix, stream.next_sequence, body)
        self.plain.begin(stream.quality_template, stream.next_sequence, _QUALITY, 0)
        self.plain.append(body, 0, len(body))
        self.plain.finish(0)
        for outlet in list(stream.concerned if outlets is None else outlets):
            outlet.close_batch(stream.index)
            outlet.deliver(self.plain)
            self.quality_messages += 1

    # -- what recovery has ------------------------------------------------------------------

    def block(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        last: int,
        end: bytes,
        outlets: list[Outlet] | None = None,
    ) -> None:
        """Send a snapshot block: quality message `begin`, the packets, quality message `end`.

        It goes to the service's links, or to those of `outlets` that are, each packet thinned as
        a live one is; links without quality messages could not tell it from live packets and get
        nothing. All of it is queued before this returns. `last` is the snapshot's LastSeqNum,
        which is in the packets' tags. Reference data in it names symbols first.
        """
        data: bytes
        if self.reference_type >= 0:
            self.learn(stream, packets)
        if outlets is None and stream.history is not None:
            following = stream.next_sequence
            stream.history.note(stream.prefix, following, begin, tuple(packets), last, end)
        if self.keeper is not None:
            self.keeper.clear(stream.service)
            for data in packets:
                self.keeper.packet(bytes(data))
        chosen = [each for each in stream.concerned if outlets is None or each in outlets]
        if chosen:
            self._block(stream, begin, packets, last << BLOCK_SHIFT, end, chosen)

    def books(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        place: tuple[int, int],
        end: bytes,
        outlet: Outlet,
    ) -> None:
        """Send some symbols' books to one link that is behind, between the marks `begin` and
        `end`. `place`: the number of the last live packet in them, and the first packet's place
        in their tags. It is no part of what is published: no recorder hears of it."""
        tap, self.tap = self.tap, None
        try:
            self._block(stream, begin, packets, (place[0] << BLOCK_SHIFT) + place[1], end, [outlet])
        finally:
            self.tap = tap

    def _block(
        self,
        stream: Stream,
        begin: bytes,
        packets: list[bytes],
        place: int,
        end: bytes,
        chosen: list[Outlet],
    ) -> None:
        """Send a block to the links `chosen`."""
        number: int
        data: bytes
        outlet: Outlet
        self.quality(stream, begin, chosen)
        tag = SNAPSHOT_BIT | place
        for outlet in chosen:
            outlet.chosen = True
        self.restricted = True
        try:
            for number, data in enumerate(packets):
                count = self._take(data)
                self._deliver(stream, tag + number, 0, 0, len(data), count, 0)
        finally:
            self.restricted = False
            self.source = self.ring.data
            for outlet in chosen:
                outlet.chosen = False
        self.quality(stream, end, chosen)
        self._end(False)

    def replay(
        self, stream: Stream, packets: list[tuple[int, int, bytes]], following: int = 0
    ) -> None:
        """Deliver stored packets (sequence, next sequence, bytes) as the live ones that they were
        when the stream was closed; when each was received is no longer known. Before them the
        stream stood at `following` at least."""
        data: bytes
        if following > stream.next_sequence:
            stream.next_sequence = following
        stream.open(packets[0][0] if packets else NEVER)
        try:
            for sequence, next_sequence, data in packets:
                count = self._take(data)
                stream.packets += 1
                stream.messages += count
                stream.next_sequence = next_sequence
                self._deliver(stream, sequence, 0, 0, len(data), count, 0)
        finally:
            self.source = self.ring.data
        self._end(False)

    def learn(self, stream: Stream, packets: list[bytes]) -> None:
        """Tell `on_reference` of the reference messages in packets that are not delivered here."""
        data: bytes
        try:
            for data in packets:
                if self._take(data) > 0:
                    self._learn(stream, 0, len(data))
        finally:
            self.source = self.ring.data

    @cython.cfunc
    def _take(self, data: cython.const_uchar[::1]) -> cython.Py_ssize_t:
        """Take a packet in hand that is not in the ring; how many messages it has."""
        self.source = data
        if parse_header(self.table, data, 0, len(data), self.header) != 0:
            return 0
        return self.header.count

    @cython.cfunc
    def _learn(
        self, stream: Stream, start: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.int:
        """Look for reference messages in a packet that nobody has split."""
        number: cython.Py_ssize_t
        if parse_header(self.table, self.source, start, size, self.header) != 0:
            return 0
        if scan_messages(self.table, self.source, start, self.header, self.index) != 0:
            return 0
        for number in range(self.index.count):
            if self.index.types[number] == self.reference_type:
                self.on_reference(stream, self._message_bytes(start, number))
        return 0

    # -- the way of a packet ----------------------------------------------------------------

    @cython.ccall
    def pump(self, bytes_max: cython.Py_ssize_t) -> cython.bint:
        """Deliver what the ring holds, some `bytes_max` bytes at most; True when more waits."""
        position: cython.ulonglong
        end: cython.ulonglong
        limit: cython.ulonglong
        offset: cython.Py_ssize_t
        place: cython.Py_ssize_t
        first: cython.ulonglong
        kind: cython.int
        streams: cython.Py_ssize_t = len(self.streams)
        if cython.compiled:
            position = self.ring.tail_bytes
        else:
            position = self.ring.tail
        end = self.ring.readable()
        limit = position + bytes_max
        self.stamp_count = 0
        while position < end and position < limit:
            offset = cython.cast(cython.Py_ssize_t, position & self.ring.mask)
            first = self.ring.words[offset >> 3]
            kind = cython.cast(cython.int, (first >> 32) & 0xFFFF)
            place = cython.cast(cython.Py_ssize_t, first >> 48)
            if kind == PACKET:
                if place < streams:
                    self._packet(self.streams[place], offset)
                else:
                    self._refresh(place, offset)
            elif kind != PAD:
                self._mark(kind, place, offset >> 3)
            position += first & 0xFFFF_FFFF
        self._end(position < end)
        self.ring.release(position)
        return position < end

    @cython.cfunc
    def _end(self, more: cython.bint) -> cython.int:
        """End of a hand-over: send the batches it filled; those that gather on stay noted."""
        outlet: Outlet
        for outlet in self.batching:
            outlet.more = more
            outlet.settle_batches()
        if more:
            self.batching = [each for each in self.batching if each.has_open_batch()]
        else:
            self.batching.clear()
        if self.tap is not None:
            self.tap.publish()
        return 0

    @cython.cfunc
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

    @cython.cfunc
    def _mark(
        self, kind: cython.int, place: cython.Py_ssize_t, word: cython.Py_ssize_t
    ) -> cython.int:
        """Tell of a record that is no packet.

        At a new numbering the stream and its store follow after that: who hears of it may still
        have to deliver what is stored of the old one.
        """
        stream: Stream = None
        following: cython.ulonglong = self.ring.words[word + 3]
        if kind in (GAP, RESET, START) and place < len(self.streams):
            stream = self.streams[place]
            if kind != GAP or not stream.closed:
                stream.next_sequence = following
        self.on_mark(
            kind,
            place,
            (self.ring.words[word + 1] >> 32) & 0xFF,
            self.ring.words[word + 2],
            following,
            self.ring.words[word + 4],
            self.ring.words[word + 7],
        )
        if stream is not None and kind != GAP:
            stream.next_sequence = following
            if self.keeper is not None and kind == RESET:
                self.keeper.clear(stream.service)
            if stream.history is not None:
                stream.history.begin(stream.prefix, following, stream.store.end)
            if stream.store is not None:
                stream.store.clear()
        return 0

    @cython.cfunc
    def _refresh(self, place: cython.Py_ssize_t, offset: cython.Py_ssize_t) -> cython.int:
        """Hand on a packet of a refresh line."""
        size: cython.Py_ssize_t
        if self.on_refresh is not None:
            size = cython.cast(cython.Py_ssize_t, self.ring.words[(offset >> 3) + 1] & 0xFFFF_FFFF)
            self.on_refresh(
                place,
                self.ring.words[(offset >> 3) + 2],
                self._bytes(offset + HEADER_BYTES, size),
            )
        return 0

    @cython.cfunc
    def _packet(self, stream: Stream, offset: cython.Py_ssize_t) -> cython.int:
        """Deliver one packet record."""
        word: cython.Py_ssize_t = offset >> 3
        size: cython.Py_ssize_t = cython.cast(
            cython.Py_ssize_t, self.ring.words[word + 1] & 0xFFFF_FFFF
        )
        count: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.ring.words[word + 1] >> 48)
        sequence: cython.ulonglong = self.ring.words[word + 2]
        received_ns: cython.longlong = self.ring.words[word + 4]
        skip: cython.Py_ssize_t = cython.cast(
            cython.Py_ssize_t, self.ring.words[word + 6] & 0xFFFF_FFFF
        )
        if stream.store is not None:
            stream.store.append(
                sequence, self.ring.words[word + 3], self.source, offset + HEADER_BYTES, size,
                received_ns, skip, count,
            )  # fmt: skip
        if stream.closed:
            return 0
        stream.packets += 1
        stream.messages += count - skip
        stream.next_sequence = self.ring.words[word + 3]
        if self.stamp_count < _STAMPS_MAX:
            self.stamps[self.stamp_count] = received_ns
            self.stamp_streams[self.stamp_count] = stream.index
            self.stamp_count += 1
        return self._deliver(
            stream, sequence, received_ns, offset + HEADER_BYTES, size, count, skip
        )

    @cython.cfunc
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
        if self.keeper is not None and not self.restricted:
            self.keeper.packet(self._bytes(start, size))
        if self.tap is not None:
            self._tap(stream, sequence, received_ns, start, size)
        if skip == 0 and stream.whole:
            self._whole(stream, sequence, received_ns, start, size)
        if count == 0:
            return 0
        if stream.fine or skip > 0:
            self._split(stream, sequence, received_ns, start, size, skip)
        elif self.reference_type >= 0 and size >= self.reference_bytes_min and not self.restricted:
            self._learn(stream, start, size)
        return 0

    @cython.cfunc
    def _whole(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver a packet as it is to the links that take all of its service."""
        outlet: Outlet
        frame: Frame
        template: Template
        built: cython.int = 0
        bit: cython.int
        for outlet in stream.whole:
            if self.restricted and not outlet.chosen:
                continue
            if outlet.grain == _BATCH_GRAIN:
                if not outlet.has_open_batch() and outlet not in self.batching:
                    self.batching.append(outlet)
                template = stream.batch_stamped if outlet.stamp else stream.batch_plain
                outlet.batch(
                    stream.index, template, sequence, received_ns, self.source, start, size
                )
                continue
            bit = _STAMPED_BUILT if outlet.stamp else _PLAIN_BUILT
            frame = self.stamped if outlet.stamp else self.plain
            if built & bit == 0:
                template = stream.packet_stamped if outlet.stamp else stream.packet_plain
                frame.begin(template, sequence, _WHOLE, received_ns)
                frame.append(self.source, start, size)
                frame.finish(0)
                built |= bit
            outlet.deliver(frame)
        return 0

    @cython.cfunc
    def _split(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        skip: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver a packet's messages to the links that want less than the packet.

        `skip` leading messages were delivered before: then whole-service links, too, get what is
        left as a thinned packet.
        """
        outlet: Outlet
        route: Route
        number: cython.Py_ssize_t
        built: cython.int
        message_type: cython.int
        if parse_header(self.table, self.source, start, size, self.header) != 0:
            return 0
        if scan_messages(self.table, self.source, start, self.header, self.index) != 0:
            return 0
        for number in range(skip, self.index.count):
            message_type = self.index.types[number]
            if message_type == self.reference_type and not self.restricted:
                self.on_reference(stream, self._message_bytes(start, number))
            route = self._route(stream, self.index.symbols[number])
            built = 0
            for outlet in route.singles:
                if self.restricted and not outlet.chosen:
                    continue
                if outlet.wants_type(message_type):
                    built = self._single(outlet, route, sequence, number, received_ns, start, built)
            for outlet in route.thinned:
                if self.restricted and not outlet.chosen:
                    continue
                if outlet.wants_type(message_type) and outlet.select(number) == 1:
                    self.touched.append(outlet)
            if skip > 0:
                for outlet in stream.whole:
                    if self.restricted and not outlet.chosen:
                        continue
                    if outlet.select(number) == 1:
                        self.touched.append(outlet)
        if self.touched:
            for outlet in self.touched:
                self._thin(stream, outlet, sequence, received_ns, start, size)
            self.touched.clear()
        return 0

    def _message_bytes(self, start: int, number: int) -> bytes:
        """One message of the packet in hand, as bytes of its own."""
        return self._bytes(start + self.index.offsets[number], self.index.sizes[number])

    def _bytes(self, start: int, size: int) -> bytes:
        """A part of the packet in hand, as bytes of its own."""
        return bytes(memoryview(self.source)[start : start + size])

    @cython.cfunc
    def _single(
        self,
        outlet: Outlet,
        route: Route,
        sequence: cython.ulonglong,
        number: cython.Py_ssize_t,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        built: cython.int,
    ) -> cython.int:
        """Deliver one message alone; which frames hold it by now."""
        frame: Frame = self.stamped if outlet.stamp else self.plain
        bit: cython.int = _STAMPED_BUILT if outlet.stamp else _PLAIN_BUILT
        if built & bit == 0:
            frame.begin(
                route.template(outlet.stamp),
                sequence,
                cython.cast(cython.uint, number),
                received_ns,
            )
            self._body(frame, start, number)
            frame.finish(0)
        outlet.deliver(frame)
        return built | bit

    @cython.cfunc
    def _body(
        self, frame: Frame, start: cython.Py_ssize_t, number: cython.Py_ssize_t
    ) -> cython.int:
        """The bytes of one message; in a packet of its own where only the header has its type."""
        begin: cython.Py_ssize_t = start + self.index.offsets[number]
        length: cython.Py_ssize_t = self.index.sizes[number]
        body: cython.Py_ssize_t = self.header.body
        if not self.table.type_in_packet:
            frame.append(self.source, begin, length)
            return 0
        copy(self.thin, 0, self.source, start, body)
        copy(self.thin, body, self.source, begin, length)
        patch_header(self.table, self.thin, 0, cython.cast(cython.uint, body + length), 1)
        frame.append(self.thin, 0, body + length)
        return 0

    @cython.cfunc
    def _thin(
        self,
        stream: Stream,
        outlet: Outlet,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver the messages a link selected, under the packet's header with their number."""
        place: cython.Py_ssize_t
        number: cython.Py_ssize_t
        length: cython.Py_ssize_t = self.header.body
        template: Template
        frame: Frame = self.stamped if outlet.stamp else self.plain
        count: cython.Py_ssize_t = outlet.selected_count
        outlet.selected_count = 0
        copy(self.thin, 0, self.source, start, length)
        for place in range(count):
            number = outlet.selected[place]
            copy(
                self.thin,
                length,
                self.source,
                start + self.index.offsets[number],
                self.index.sizes[number],
            )
            length += self.index.sizes[number]
        patch_header(
            self.table,
            self.thin,
            0,
            cython.cast(cython.uint, length),
            cython.cast(cython.int, count),
        )
        if outlet.grain == _BATCH_GRAIN:
            if not outlet.has_open_batch() and outlet not in self.batching:
                self.batching.append(outlet)
            template = stream.batch_stamped if outlet.stamp else stream.batch_plain
            outlet.batch(stream.index, template, sequence, received_ns, self.thin, 0, length)
            return 0
        template = stream.packet_stamped if outlet.stamp else stream.packet_plain
        frame.begin(template, sequence, _WHOLE, received_ns)
        frame.append(self.thin, 0, length)
        frame.finish(0)
        outlet.deliver(frame)
        return 0

    @cython.cfunc
    def _route(self, stream: Stream, symbol: cython.ulonglong) -> Route:
        """The symbol's links, from the cache or worked out now."""
        route: Route
        place: cython.int = stream.symbols.get(symbol)
        self.route_lookups += 1
        if place >= 0:
            route = stream.routes[place]
            if route is not None:
                self.route_hits += 1
                return route
        return self._work_out(stream, symbol)

    def _work_out(self, stream: Stream, symbol: int) -> Route:
        """Find the links that want the symbol, and remember them."""
        feed, service = stream.words
        words = [self.name_of(stream, symbol)]
        alias = None if self.alias_of is None else self.alias_of(stream, symbol)
        if alias is not None:
            words.append(alias)
        wanted: list[Outlet] = [
            outlet
            for outlet in stream.candidates(words)
            if any(outlet.subscription.wants_symbol(feed, service, word) for word in words)
        ]
        route = Route(
            f"{stream.key}.{words[0]}",
            stream.prefix,
            tuple(outlet for outlet in wanted if outlet.grain == Grain.MESSAGE),
            tuple(outlet for outlet in wanted if outlet.grain != Grain.MESSAGE),
        )
        if not stream.keep_route(symbol, words, route):
            # The bound on symbols is reached: start the cache afresh rather than stop caching.
            self.route_resets += 1
        return route

    @cython.ccall
    def settle(self) -> list:
        """Write what the pump left in the engines, a write a connection.

        Returns the connections that need more than that: full sockets, backlogs, events.
        """
        peer: Peer
        rest: list = []
        for peer in self.dirty_peers:
            if not peer.gone and not peer.settle():
                rest.append(peer)
        self.dirty_peers.clear()
        return rest

    # -- measuring --------------------------------------------------------------------------

    @cython.ccall
    def note_latency(self, now_ns: cython.longlong) -> cython.int:
        """After the flush: count how long the packets of this pump took from their stamp."""
        place: cython.Py_ssize_t
        stream: Stream
        for place in range(self.stamp_count):
            stream = self.streams[self.stamp_streams[place]]
            stream.latency.record(now_ns - self.stamps[place])
        return 0
