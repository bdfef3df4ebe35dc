"""Delivery of one packet to the links of its service: as it is, thinned, or message by message.

What it is for: a `Splitter` holds one packet, in the ring or elsewhere, and delivers it to the
links of its service. A link that takes the whole service gets the packet's bytes as they are. Only
where some link wants less than a packet (one symbol, some types, single messages) is the packet
scanned and split, and then the links of a symbol come from a cache (`Route`): the source paper
found that about 70 % of a symbol's repeats follow within a millisecond (section 2.2). The routes of
a packet's messages are found first, and what they lead to is prefetched meanwhile.

What it promises: a message is framed once for all links that want it in the same form; while
`restricted`, only links that are `chosen` get anything.

What it leaves to others: which packet and when (`fanout`), names of symbols (`name_of`,
`alias_of`).
"""

from collections.abc import Callable, Iterable

import cython
from cython.cimports.feedhandler.amqp.framing import Frame, Template, copy
from cython.cimports.feedhandler.amqp.sender_queue import SenderQueue
from cython.cimports.feedhandler.amqp.stream import Route, Stream
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.message_symbols import (
    SymbolWalk,
    begin_symbols,
    next_symbol,
)
from cython.cimports.feedhandler.codecs.scanner import parse_header, patch_header, scan_messages

if cython.compiled:
    from cython.cimports.feedhandler.amqp.prefetch import prefetch

from feedhandler.amqp import framing
from feedhandler.amqp.routing import Grain
from feedhandler.amqp.sender_queue import MESSAGES_MAX, PACKET_BYTES_MAX, SECTIONS_BYTES_MAX
from feedhandler.codecs.feed import key_word
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.codecs.visibility import Public, Readonly

_BATCH_GRAIN = cython.declare(cython.int, Grain.BATCH)
_WHOLE = cython.declare(cython.uint, framing.WHOLE_PACKET)
#: FIX symbols from here on are digests of their text. (As literals they would be objects.)
_LONG_SYMBOL = cython.declare(cython.ulonglong, LONG_SYMBOL_BIT)
#: Bits of `built`: which of the two frames holds the message in hand already.
_PLAIN_BUILT = cython.declare(cython.int, 1)
_STAMPED_BUILT = cython.declare(cython.int, 2)
#: Messages whose routes are found before the first of them is delivered: more than most packets
#: have. `near` has as many slots.
_AHEAD = cython.declare(cython.Py_ssize_t, 8)
#: Bytes that a delivery reads of a sender queue, of its link's wrapper, of a template and of the
#: template's head.
_SENDER_QUEUE_BYTES = cython.declare(cython.size_t, 192)
_SENDER_BYTES = cython.declare(cython.size_t, 128)
_TEMPLATE_BYTES = cython.declare(cython.size_t, 128)
_HEAD_BYTES = cython.declare(cython.size_t, 256)


@cython.cclass
class Splitter:
    """The current packet, in `source`, and the frames that it is put into.

    `name_of(symbol)` returns a symbol's word in routing keys, `alias_of(symbol)` another word that
    patterns may call it by, or None; neither may deliver anything. Reference data are messages of
    `reference_types`. `has_send_time`: a message alone brings the send time of its
    packet's header, without which its own times are not known; to be set before the first packet.
    `scanned`: the packet that is delivered next was searched for reference data, so that `header`
    and `index` are its own already.
    """

    source: cython.const_uchar[::1]
    table: FeedTable
    header: PacketHeader
    walk: SymbolWalk
    index: MessageIndex
    plain: Frame
    stamped: Frame
    thin_memory: object
    thin: cython.uchar[::1]
    touched: list
    ahead: list
    near: cython.int[8]
    batching: list
    name_of: object
    alias_of: object
    is_reference: cython.uchar[::1]
    has_references: cython.bint
    restricted: cython.bint
    scanned: cython.bint
    has_send_time: Public[cython.bint]
    route_lookups: Readonly[cython.ulonglong]
    route_hits: Readonly[cython.ulonglong]
    route_resets: Readonly[cython.ulonglong]

    def __init__(
        self,
        table: FeedTable,
        name_of: Callable[[int], str],
        alias_of: Callable[[int], str | None],
        reference_types: Iterable[int],
    ) -> None:
        self.table = table
        self.name_of = name_of
        self.alias_of = alias_of
        #: By message type: whether it is reference data.
        self.is_reference = memoryview(bytearray(65_536))
        self.has_references = False
        for code in reference_types:
            self.is_reference[code] = self.has_references = True
        self.restricted = self.scanned = False
        self.has_send_time = False
        self.header = PacketHeader()
        self.walk = SymbolWalk()
        self.index = MessageIndex(MESSAGES_MAX)
        self.plain = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.stamped = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.thin_memory = bytearray(PACKET_BYTES_MAX)
        self.thin = self.thin_memory
        self.source = self.thin
        self.touched = []
        self.ahead = [None] * _AHEAD
        self.batching = []
        self.route_lookups = self.route_hits = self.route_resets = 0

    def _load(self, data: cython.const_uchar[::1]) -> cython.Py_ssize_t:
        """Set a packet that is not in the ring as the current one; return how many messages it
        has."""
        self.source = data
        if parse_header(self.table, data, 0, len(data), self.header) != 0:
            return 0
        return self.header.count

    def _scan(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
        """Find the current packet's messages; False where it is not to be read."""
        if parse_header(self.table, self.source, start, size, self.header) != 0:
            return False
        return scan_messages(self.table, self.source, start, self.header, self.index) == 0

    @cython.cfunc
    def _references(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> list:
        """Copy the reference data in the current packet, each message behind its type; None where
        there is none."""
        number: cython.Py_ssize_t
        found: list = None
        self.scanned = self._scan(start, size)
        if self.scanned:
            for number in range(self.index.count):
                if self.is_reference[self.index.types[number]]:
                    found = found or []
                    at: cython.Py_ssize_t = start + self.index.offsets[number]
                    whole = self._bytes(at, self.index.sizes[number])
                    found.append((self.index.types[number], whole))
        return found

    def _whole(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver a packet as it is to the links that take all of its service."""
        sender_queue: SenderQueue
        built: cython.int = 0
        for sender_queue in stream.whole:
            if self.restricted and not sender_queue.chosen:
                continue
            if sender_queue.grain == _BATCH_GRAIN:
                if not sender_queue.has_open_batch() and sender_queue not in self.batching:
                    self.batching.append(sender_queue)
                template: Template = (
                    stream.batch_stamped if sender_queue.stamp else stream.batch_plain
                )
                sender_queue.batch(
                    stream.index, template, sequence, received_ns, self.source, start, size
                )
                if self.table.alone:
                    sender_queue.close_batch(stream.index)
                continue
            bit: cython.int = _STAMPED_BUILT if sender_queue.stamp else _PLAIN_BUILT
            frame: Frame = self.stamped if sender_queue.stamp else self.plain
            if built & bit == 0:
                template = stream.packet_stamped if sender_queue.stamp else stream.packet_plain
                frame.begin(template, sequence, _WHOLE, received_ns)
                frame.append(self.source, start, size)
                frame.finish(0)
                built |= bit
            sender_queue.deliver(frame)
        return 0

    def _end_batches(self, stream: Stream) -> cython.int:
        """Finish the open batches of a service: a packet outside the sequence has a batch of its
        own, so that a batch's tag holds for all its packets."""
        sender_queue: SenderQueue
        for sender_queue in stream.whole:
            sender_queue.close_batch(stream.index)
        for sender_queue in stream.fine:
            if sender_queue.grain == _BATCH_GRAIN:
                sender_queue.close_batch(stream.index)
        for sender_queue in stream.takes_records:
            sender_queue.close_batch(stream.index)
        return 0

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
        sender_queue: SenderQueue
        first: cython.Py_ssize_t = skip
        number: cython.Py_ssize_t
        if not self.scanned and not self._scan(start, size):
            return 0
        while first < self.index.count:
            ahead: cython.Py_ssize_t = self._look_ahead(stream, start, first)
            for number in range(first, first + ahead):
                message_type: cython.int = self.index.types[number]
                route: Route = self.ahead[number - first]
                if route is None:
                    self._deliver_several(stream, sequence, number, received_ns, start)
                    continue
                built: cython.int = 0
                for sender_queue in route.singles:
                    if self.restricted and not sender_queue.chosen:
                        continue
                    if sender_queue.wants_type(message_type):
                        built = self._single(
                            sender_queue, route, sequence, number, received_ns, start, built
                        )
                for sender_queue in route.thinned:
                    if self.restricted and not sender_queue.chosen:
                        continue
                    if sender_queue.wants_type(message_type) and sender_queue.select(number) == 1:
                        self.touched.append(sender_queue)
            if skip > 0:
                self._select_for_whole(stream, first, ahead)
            first += ahead
        if self.touched:
            for sender_queue in self.touched:
                self._thin(stream, sender_queue, sequence, received_ns, start, size)
            self.touched.clear()
        return 0

    def _select_for_whole(
        self, stream: Stream, first: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> cython.int:
        """Select messages for the links that take the whole service."""
        sender_queue: SenderQueue
        number: cython.Py_ssize_t
        for number in range(first, first + count):
            for sender_queue in stream.whole:
                if self.restricted and not sender_queue.chosen:
                    continue
                if sender_queue.select(number) == 1:
                    self.touched.append(sender_queue)
        return 0

    def _deliver_several(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        number: cython.Py_ssize_t,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver a message that names several symbols: to each link once, with the key of the
        first symbol that the link wants."""
        sender_queue: SenderQueue
        at: cython.Py_ssize_t = start + self.index.offsets[number]
        message_type: cython.int = self.index.types[number]
        reached: list = []
        self._open_symbols(at, number)
        symbol: cython.ulonglong = next_symbol(self.table, self.source, self.header, self.walk)
        while symbol != self.table.no_symbol:
            route: Route = self._route(stream, symbol)
            built: cython.int = 0
            for sender_queue in route.singles + route.thinned:
                if sender_queue in reached or not sender_queue.wants_type(message_type):
                    continue
                if self.restricted and not sender_queue.chosen:
                    continue
                reached.append(sender_queue)
                if sender_queue in route.singles:
                    built = self._single(
                        sender_queue, route, sequence, number, received_ns, start, built
                    )
                elif sender_queue.select(number) == 1:
                    self.touched.append(sender_queue)
            symbol = next_symbol(self.table, self.source, self.header, self.walk)
        return 0

    def _open_symbols(self, at: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.int:
        """Begin to read the symbols of the message at `at`, which is `number` in the index."""
        return begin_symbols(
            self.table,
            self.source,
            at,
            at + self.index.sizes[number],
            self.index.types[number],
            self.header,
            self.walk,
        )

    def _look_ahead(
        self, stream: Stream, start: cython.Py_ssize_t, first: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Find the routes of the next messages, from `first` on, and put them into `ahead`; return
        how many.

        What their deliveries will read is prefetched meanwhile: with a thousand links little of it
        is in the processor's caches, and so the messages of a packet wait for it together rather
        than one by one.
        """
        each: cython.Py_ssize_t
        wanted: cython.Py_ssize_t = 0
        count: cython.Py_ssize_t = min(_AHEAD, self.index.count - first)
        for each in range(count):
            if self.index.symbols[first + each] == self.table.several_symbols:
                self.ahead[each] = None  # each has a route of its own
                continue
            if self.index.symbols[first + each] >= _LONG_SYMBOL and self.table.long_symbols:
                self._read_symbol(start, first + each)
            route: Route = self._route(stream, self.index.symbols[first + each])
            self.ahead[each] = route
            if cython.compiled and len(route.singles) > 0:
                sender_queue: SenderQueue = route.singles[0]
                prefetch(cython.cast(cython.p_void, sender_queue), _SENDER_QUEUE_BYTES)
                prefetch(cython.cast(cython.p_void, route.plain), _TEMPLATE_BYTES)
                self.near[wanted] = cython.cast(cython.int, each)
                wanted += 1
        if cython.compiled:
            self._fetch(first, wanted)
        return count

    def _fetch(self, first: cython.Py_ssize_t, wanted: cython.Py_ssize_t) -> cython.int:
        """Prefetch what the first sender queues of these routes (`near`) lead to, step by step."""
        each: cython.Py_ssize_t
        kept: cython.Py_ssize_t = 0
        for each in range(wanted):
            route: Route = self.ahead[self.near[each]]
            sender_queue: SenderQueue = route.singles[0]
            if sender_queue.wants_type(self.index.types[first + self.near[each]]):
                prefetch(cython.cast(cython.p_void, sender_queue.sender), _SENDER_BYTES)
                if route.plain is not None:
                    prefetch(cython.address(route.plain.view[0]), _HEAD_BYTES)
                self.near[kept] = self.near[each]
                kept += 1
        for each in range(kept):
            route = self.ahead[self.near[each]]
            sender_queue = route.singles[0]
            if sender_queue.sender is not None:
                sender_queue.sender.fetch()
        return 0

    def _forget_ahead(self) -> cython.int:
        """Drop the references to routes that are done with: their links may end before the next
        packet."""
        each: cython.Py_ssize_t
        for each in range(_AHEAD):
            self.ahead[each] = None
        return 0

    def _read_symbol(self, start: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.int:
        """Find the text of a message's symbol, from which its route may have to be made."""
        at: cython.Py_ssize_t = start + self.index.offsets[number]
        self._open_symbols(at, number)
        next_symbol(self.table, self.source, self.header, self.walk)
        return 0

    def _bytes(self, start: int, size: int) -> bytes:
        """Copy a part of the current packet."""
        return bytes(memoryview(self.source)[start : start + size])

    def _single(
        self,
        sender_queue: SenderQueue,
        route: Route,
        sequence: cython.ulonglong,
        number: cython.Py_ssize_t,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        built: cython.int,
    ) -> cython.int:
        """Deliver one message alone; return which frames hold it by now."""
        frame: Frame = self.stamped if sender_queue.stamp else self.plain
        bit: cython.int = _STAMPED_BUILT if sender_queue.stamp else _PLAIN_BUILT
        if built & bit == 0:
            frame.begin(
                route.template(sender_queue.stamp),
                sequence,
                cython.cast(cython.uint, number),
                received_ns,
            )
            frame.set_send_time(self.header.send_time)
            self._body(frame, start, number)
            frame.finish(0)
        sender_queue.deliver(frame)
        return built | bit

    def _body(
        self, frame: Frame, start: cython.Py_ssize_t, number: cython.Py_ssize_t
    ) -> cython.int:
        """Append the bytes of one message; as a packet of its own where only the header has its
        type."""
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

    def _thin(
        self,
        stream: Stream,
        sender_queue: SenderQueue,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver the messages that a link selected, under the packet's header with their count."""
        index: cython.Py_ssize_t
        length: cython.Py_ssize_t = self.header.body
        frame: Frame = self.stamped if sender_queue.stamp else self.plain
        count: cython.Py_ssize_t = sender_queue.selected_count
        sender_queue.selected_count = 0
        copy(self.thin, 0, self.source, start, length)
        for index in range(count):
            number: cython.Py_ssize_t = sender_queue.selected[index]
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
        if sender_queue.grain == _BATCH_GRAIN:
            if not sender_queue.has_open_batch() and sender_queue not in self.batching:
                self.batching.append(sender_queue)
            template: Template = stream.batch_stamped if sender_queue.stamp else stream.batch_plain
            sender_queue.batch(stream.index, template, sequence, received_ns, self.thin, 0, length)
            if self.table.alone:
                sender_queue.close_batch(stream.index)
            return 0
        template = stream.packet_stamped if sender_queue.stamp else stream.packet_plain
        frame.begin(template, sequence, _WHOLE, received_ns)
        frame.append(self.thin, 0, length)
        frame.finish(0)
        sender_queue.deliver(frame)
        return 0

    @cython.cfunc
    def _route(self, stream: Stream, symbol: cython.ulonglong) -> Route:
        """Return the symbol's links, from the cache or found now."""
        index: cython.int = stream.symbols.get(symbol)
        self.route_lookups += 1
        if index >= 0:
            route: Route = stream.routes[index]
            if route is not None:
                self.route_hits += 1
                return route
        return self._work_out(stream, symbol)

    def _word_of(self, symbol: int) -> str:
        """Return the symbol's word in routing keys. A long one is only known by its text, which
        `walk` has just found."""
        if self.table.long_symbols and LONG_SYMBOL_BIT <= symbol < self.table.several_symbols:
            text = self._bytes(self.walk.text_at, self.walk.text_size)
            return key_word(text.rstrip(b"\0 ").decode("latin-1"))
        return self.name_of(symbol)

    def _work_out(self, stream: Stream, symbol: int) -> Route:
        """Find the links that want the symbol, and cache them."""
        feed, service = stream.words
        words = [self._word_of(symbol)]
        alias = self.alias_of(symbol)
        if alias is not None:
            words.append(alias)
        wanted: list[SenderQueue] = [
            sender_queue
            for sender_queue in stream.candidates(words)
            if any(sender_queue.subscription.wants_symbol(feed, service, word) for word in words)
        ]
        route = Route(
            f"{stream.key}.{words[0]}",
            stream.prefix,
            tuple(sender_queue for sender_queue in wanted if sender_queue.grain == Grain.MESSAGE),
            tuple(sender_queue for sender_queue in wanted if sender_queue.grain != Grain.MESSAGE),
            self.has_send_time,
        )
        if not stream.keep_route(symbol, words, route):
            # The bound on symbols is reached: start the cache afresh rather than stop caching.
            self.route_resets += 1
        return route
