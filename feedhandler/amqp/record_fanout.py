# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Normalised records to the links that ask for them: `as=mbo`, `bbo`, `mbp10`, `trades`,
`status`, `definition`.

What it is for: every packet that the fan-out publishes goes through `market.records` once; what
follows from it goes to each link of its schema, as far as the link's patterns name the instruments.
A link learns an instrument's symbol before its first record: a symbol mapping record stands in
front of it, as in DBN's own streams. Books are kept from the first packet on, whether or not there
are links, so that a link may come at any time.

What it promises: a link's records are in the order of the stream, and go out in batches, each of
one service; records say FLAG_MAYBE_BAD_BOOK from a loss on until a snapshot or a new sequence epoch
made it good.

What it leaves to others: sending and queues (`sender_queue`), what a record is (`market`), which
packets are published and when (`fanout`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

import cython
import msgspec
import numpy
from cython.cimports.feedhandler.amqp.record_sink import RecordSink
from cython.cimports.feedhandler.amqp.sender_queue import SenderQueue
from cython.cimports.feedhandler.amqp.stream import Stream
from cython.cimports.feedhandler.market.records import LevelRecords, Records

from feedhandler.amqp.sender_queue import PACKET_BYTES_MAX
from feedhandler.codecs.dbn import (
    FLAG_LAST,
    FLAG_MAYBE_BAD_BOOK,
    FLAG_SNAPSHOT,
    MBO,
    SCHEMAS,
    STATUS,
    UNDEFINED_PRICE,
    UNDEFINED_TIME,
    encode_definition,
    encode_symbol_mapping,
    pack_definition,
)
from feedhandler.codecs.feed import key_word
from feedhandler.codecs.visibility import Public, Readonly

if TYPE_CHECKING:
    from feedhandler.codecs import Feed

#: Interest of a link in an instrument: not looked up yet, not wanted, wanted, wanted and its
#: symbol has been sent.
_NEW, _UNWANTED, _WANTED, _DEFINED = range(4)
_C_NEW = cython.declare(cython.uchar, _NEW)
_C_WANTED = cython.declare(cython.uchar, _WANTED)
#: Bytes of records that go into a batch at once: it has that much room beyond its bound.
_CHUNK_BYTES = cython.declare(cython.Py_ssize_t, PACKET_BYTES_MAX)
_WORD = cython.declare(cython.Py_ssize_t, 8)
_EVENT_WORDS = cython.declare(cython.Py_ssize_t, MBO.itemsize // 8)
_NO_TIME = cython.declare(cython.ulonglong, UNDEFINED_TIME)
#: Instruments, and records of a packet, that there is room for at first.
_ROOM = 256


@cython.final
@cython.cclass
class Instruments:
    """The instruments of one service by ordinal, in the order in which they came; 0 stands for all
    of them. `suspect`: the books may be wrong."""

    stream: Readonly[Stream]
    ids: Readonly[list]
    ordinals: Readonly[dict]
    suspect: Public[cython.bint]

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.ids: list[int] = [0]
        self.ordinals: dict[int, int] = {0: 0}
        self.suspect = False

    @cython.cfunc
    @cython.exceptval(4294967295, check=True)
    def ordinal_of(self, instrument: cython.uint) -> cython.uint:
        """Return the ordinal of an instrument, which is a new one where it is not known."""
        found = self.ordinals.get(instrument)
        if found is not None:
            return found
        index = self.ordinals[instrument] = len(self.ids)
        self.ids.append(instrument)
        return index


@cython.final
@cython.cclass
class Selection:
    """Instruments of one service that one link takes."""

    link: Readonly[SenderQueue]
    schema: Readonly[str]
    stream: Stream
    levels: object
    defines: cython.bint
    fanout: "RecordFanout"
    interest: cython.uchar[::1]

    def __init__(self, fanout: "RecordFanout", link: SenderQueue, stream: Stream) -> None:
        self.fanout, self.link, self.stream = fanout, link, stream
        self.schema: str = link.subscription.schema
        #: The link takes definitions only.
        self.defines = self.schema == "definition"
        self.interest = memoryview(bytearray(_ROOM))
        self.interest[0] = _DEFINED
        #: What the link does with records that it cannot take now; None: they wait.
        self.levels = getattr(link, "replace", None)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def add(
        self,
        octets: cython.const_uchar[::1],
        ordinals: cython.const_uint[::1],
        record_bytes: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
    ) -> cython.int:
        """Take `count` records, whose instruments have these ordinals."""
        index: cython.Py_ssize_t
        first: cython.Py_ssize_t = -1
        for index in range(count):
            if cython.cast(cython.Py_ssize_t, ordinals[index]) >= self.interest.shape[0]:
                self.widen()
            interest: cython.uchar = self.interest[ordinals[index]]
            if interest == _C_NEW:
                interest = self.look(ordinals[index])
            if interest >= _C_WANTED:
                if interest == _C_WANTED:
                    if first >= 0:
                        self.send(octets, record_bytes, first, index, sequence, received_ns)
                    first = index
                    self.send_symbol(ordinals[index], sequence, received_ns)
                elif first < 0:
                    first = index
            elif first >= 0:
                self.send(octets, record_bytes, first, index, sequence, received_ns)
                first = -1
        if first >= 0:
            self.send(octets, record_bytes, first, count, sequence, received_ns)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def send(
        self,
        octets: cython.const_uchar[::1],
        record_bytes: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
    ) -> cython.int:
        """Put the records `first` to `end` into the link's batch."""
        many: cython.Py_ssize_t = _CHUNK_BYTES // record_bytes
        if self.defines:
            return 0
        if self.levels is not None and self.levels(self.stream, octets, record_bytes, first, end):
            return 0
        template = self.stream.records_stamped if self.link.stamp else self.stream.records_plain
        if not self.link.has_open_batch():
            self.fanout.opened.append(self.link)
        while first < end:
            last: cython.Py_ssize_t = min(end, first + many)
            self.link.batch(
                self.stream.index, template, sequence, received_ns, octets,
                first * record_bytes, (last - first) * record_bytes,
            )  # fmt: skip
            first = last
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def widen(self) -> cython.int:
        """Make room for the interest of all instruments that are known."""
        interest = bytearray(2 * len(self.fanout.of(self.stream).ids))
        interest[: len(self.interest)] = bytes(self.interest)
        self.interest = memoryview(interest)
        return 0

    def look(self, index: int) -> int:
        """Find out whether the link wants the instrument; return its interest."""
        symbol = self.fanout.symbol_of(self.stream, index)
        feed, service = self.stream.words
        words = self.fanout.words_of(symbol)
        wanted = any(self.link.subscription.wants_symbol(feed, service, word) for word in words)
        interest = _WANTED if wanted else _UNWANTED
        self.interest[index] = interest
        return interest

    def send_symbol(self, index: int, sequence: int, received_ns: int) -> None:
        """Send the link the symbol of an instrument: by a mapping, or its definition."""
        self.interest[index] = _DEFINED
        octets = self.fanout.mapping(self.stream, index, received_ns, self.defines)
        if not self.link.has_open_batch():
            self.fanout.opened.append(self.link)
        template = self.stream.records_stamped if self.link.stamp else self.stream.records_plain
        self.link.batch(self.stream.index, template, sequence, received_ns, octets, 0, len(octets))

    def define(self, index: int, sequence: int, received_ns: int) -> None:
        """Send an instrument's symbol anew, where the link wants it: a message has named it."""
        if index >= len(self.interest):
            self.widen()
        if self.look(index) >= _WANTED:
            self.send_symbol(index, sequence, received_ns)

    def forget(self, ordinals: Iterable[int] | None = None) -> None:
        """Look anew at the instruments of these ordinals, or at all: their names have changed."""
        for index in range(1, len(self.interest)) if ordinals is None else ordinals:
            if 0 < index < len(self.interest):
                self.interest[index] = _NEW


@cython.final
@cython.cclass
class RecordFanout(RecordSink):
    """The records of all services, and the links that take them.

    `name_of(symbol)` gives a symbol's word in routing keys, `alias_of(symbol)` another one or None;
    `names` are the names that reference data has given; `day` is the trading day. Raises
    `UsageError` for a feed without `[book]`.
    """

    records: Readonly[Records]
    feed: object
    name_of: object
    alias_of: object
    names: object
    midnights: object
    has_send_time: cython.bint
    instruments: list
    selections: dict
    ordinals: cython.uint[::1]
    last_statuses: dict
    terms: dict
    received_ns: cython.longlong

    def __init__(
        self,
        feed: "Feed",
        streams: Sequence[Stream],
        name_of: Callable[[int], str],
        alias_of: Callable[[int], str | None],
        names: Mapping[int, str],
        day: date,
    ) -> None:
        super().__init__()
        self.feed, self.name_of, self.alias_of, self.names = feed, name_of, alias_of, names
        self.records = Records(feed)
        self.records.normaliser.keeps_terms = True
        self.has_send_time = feed.send_time_ns(0, feed.midnights(day)) is not None
        self.instruments = [Instruments(stream) for stream in streams]
        self.selections: dict[SenderQueue, dict[int, Selection]] = {}
        self.ordinals = memoryview(numpy.zeros(_ROOM, numpy.uint32))
        #: The last trading status of each instrument, by service.
        self.last_statuses = {}
        #: Terms of each instrument from directory messages, as `pack_definition` gives them.
        self.terms = {}
        #: When the newest packet with records was received.
        self.received_ns = 0
        self.set_day(day)

    def set_day(self, day: date) -> None:
        """Set the trading day; symbols have no names, terms and statuses until these come
        anew."""
        self.last_statuses.clear()
        self.terms.clear()
        self.midnights = self.feed.midnights(day)
        self.records.normaliser.set_day(day)
        for selections in self.selections.values():
            for selection in selections.values():
                selection.forget()

    def of(self, stream: Stream) -> Instruments:
        """Return the instruments of a service."""
        return self.instruments[stream.index]

    # -- links ------------------------------------------------------------------------------

    def add(self, link: SenderQueue) -> None:
        """Make records of the schema that a new link takes."""
        self.selections[link] = {}
        made: LevelRecords = self.records.outputs.get(link.subscription.schema)
        if made is not None and not made.active:
            made.begin()

    def remove(self, link: SenderQueue) -> None:
        """Make no more records of a schema that no link takes."""
        if self.selections.pop(link, None) is None:
            return
        schema = link.subscription.schema
        made: LevelRecords = self.records.outputs.get(schema)
        if made is not None and all(x.subscription.schema != schema for x in self.selections):
            made.active = False

    def selection(self, stream: Stream, link: SenderQueue) -> Selection:
        """Return the instruments of a service that a link has selected."""
        selections = self.selections[link]
        found = selections.get(stream.index)
        if found is None:
            found = selections[stream.index] = Selection(self, link, stream)
        return found

    def renamed(self, symbols: Iterable[int]) -> None:
        """Look anew at these symbols, whose names have changed."""
        numbers = [self.records.normaliser.instrument_of(symbol) for symbol in symbols]
        for selections in self.selections.values():
            for index, selection in selections.items():
                known = self.instruments[index].ordinals
                selection.forget([known[number] for number in numbers if number in known])

    def snapshot(self) -> dict[str, int]:
        """Return `counters.BOOK_COUNTS` and `BOOK_GAUGES` by name."""
        normaliser, book = self.records.normaliser, self.records.book
        return {
            "unknown_orders": normaliser.unknown_orders,
            "short": normaliser.short,
            "sideless": normaliser.sideless,
            "unscaled": normaliser.unscaled,
            "clamped": normaliser.clamped,
            "unnamed": normaliser.unnamed,
            "refused": normaliser.orders.refused + book.refused,
            "instruments": book.book_count,
            "orders": book.order_count,
            "levels": book.level_count,
            "book_bytes": book.nbytes,
        }

    # -- symbols ----------------------------------------------------------------------------

    def symbol_of(self, stream: Stream, index: int) -> int:
        """Return the symbol of an instrument as in the scanner's index."""
        return self.records.normaliser.symbol_of(self.of(stream).ids[index])

    def words_of(self, symbol: int) -> list[str]:
        """Return the words by which patterns may name a symbol."""
        words = [self.name_of(symbol), self.alias_of(symbol)]
        if symbol in self.records.normaliser.texts:
            words.append(key_word(self.records.normaliser.text_of(symbol)))
        return [word for word in words if word is not None]

    def mapping(
        self, stream: Stream, index: int, received_ns: int, definition: bool = False
    ) -> bytes:
        """Return the record that gives an instrument's symbol: a mapping, or its definition."""
        instrument = self.of(stream).ids[index]
        symbol = self.symbol_of(stream, index)
        name = self.names.get(symbol) or self.records.normaliser.text_of(symbol)
        at_ns = received_ns or UNDEFINED_TIME
        if definition:
            terms = self.terms.get(instrument) or pack_definition({})
            return encode_definition(self.feed.number, instrument, name, at_ns, at_ns, terms)
        return encode_symbol_mapping(self.feed.number, instrument, name, at_ns)

    # -- what is published ------------------------------------------------------------------

    def packet(self, stream, sequence, received_ns, data, start, header, index, skip):
        """Make the records of a packet that is published, but for its first `skip` messages, and
        give them to the links."""
        records: Records = self.records
        instruments: Instruments = self.instruments[stream.index]
        sent_ns: cython.ulonglong = _NO_TIME
        came_ns: cython.ulonglong = _NO_TIME
        if self.has_send_time:
            send_ns = self.feed.send_time_ns(header.send_time, self.midnights)
            sent_ns = _NO_TIME if send_ns is None else send_ns
        if received_ns != 0:
            came_ns = received_ns
        records.clear()
        records.normaliser.maybe_bad = instruments.suspect
        records.apply_packet(data, start, index, skip, sent_ns, came_ns, stream.service)
        return self.give(stream, sequence, received_ns)

    def reset(self, stream: Stream, sequence: int, received_ns: int) -> None:
        """Empty a service's books: its numbers begin anew, or a snapshot of all follows."""
        self.records.clear()
        self.of(stream).suspect = False
        self.records.empty(stream.service, received_ns)
        self.give(stream, sequence, received_ns)

    def heard(self, stream: Stream, body: bytes) -> None:
        """Take a quality message that is published: it says whether the books may be wrong."""
        quality = msgspec.json.decode(body)
        self.of(stream).suspect = bool(quality.get("stale") or quality.get("doubt"))

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def give(
        self, stream: Stream, sequence: cython.ulonglong, received_ns: cython.longlong
    ) -> cython.int:
        """Deliver the new records to the service's links."""
        records: Records = self.records
        link: SenderQueue
        located: str = ""
        count: cython.Py_ssize_t = 0
        stride: cython.Py_ssize_t = 0
        octets: cython.const_uchar[::1] = records.normaliser.octets
        if received_ns != 0:
            self.received_ns = received_ns
        if len(records.statuses) > 0 or len(records.normaliser.named) > 0:
            self.give_statuses(stream, sequence, received_ns)
        if records.normaliser.count == 0 or not stream.takes_records:
            return 0
        for link in stream.takes_records:
            selection: Selection = self.selection(stream, link)
            if selection.schema == "status":
                continue
            if selection.schema != located:
                located = selection.schema
                if located == "mbo" or located == "definition":
                    stride, count = _EVENT_WORDS, records.normaliser.count
                    octets = records.normaliser.octets
                    self.locate(
                        self.instruments[stream.index], records.normaliser.words, stride, count
                    )
                else:
                    made: LevelRecords = records.outputs[located]
                    stride, count, octets = made.stride, made.count, made.octets
                    self.locate(self.instruments[stream.index], made.words, stride, count)
            if count > 0 and not link.overrun:
                selection.add(octets, self.ordinals, _WORD * stride, count, sequence, received_ns)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def give_statuses(
        self, stream: Stream, sequence: cython.ulonglong, received_ns: cython.longlong
    ) -> cython.int:
        """Deliver trading statuses to the links that take them, and definitions of instruments that
        messages have named."""
        instruments: Instruments = self.instruments[stream.index]
        for instrument, terms in self.records.normaliser.terms.items():
            self.terms[instrument] = pack_definition(terms)
        rows = self.records.of("status")
        for row in rows:
            self.last_statuses[stream.index, int(row["instrument_id"])] = row.tobytes()
        for link in stream.takes_records:
            selection: Selection = self.selection(stream, link)
            if selection.defines:
                for instrument, _ in self.records.normaliser.named:
                    selection.define(instruments.ordinal_of(instrument), sequence, received_ns)
            elif selection.schema == "status" and len(rows) and not link.overrun:
                octets = memoryview(rows.view(numpy.uint8))
                ordinals = [instruments.ordinal_of(each) for each in rows["instrument_id"].tolist()]
                selection.add(
                    octets, memoryview(numpy.array(ordinals, numpy.uint32)), STATUS.itemsize,
                    len(rows), sequence, received_ns,
                )  # fmt: skip
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def locate(
        self,
        instruments: Instruments,
        words: cython.const_ulonglong[::1],
        stride: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Find the ordinals of the records' instruments."""
        index: cython.Py_ssize_t
        before: cython.uint = 0
        ordinal: cython.uint = 0
        if count > self.ordinals.shape[0]:
            self.ordinals = memoryview(numpy.zeros(2 * count, numpy.uint32))
        for index in range(count):
            instrument: cython.uint = words[index * stride] >> 32
            if instrument != before:
                ordinal = instruments.ordinal_of(instrument)
                before = instrument
            self.ordinals[index] = ordinal
        return 0

    # -- the present state ------------------------------------------------------------------

    def present(self, link: SenderQueue, streams: Iterable[Stream], received_ns: int) -> None:
        """Send a link the present state of these services: orders, or levels, that it wants."""
        for stream in streams:
            selection = self.selection(stream, link)
            instruments: Instruments = self.of(stream)
            for instrument in self.records.book.instruments(stream.service):
                instruments.ordinal_of(instrument)
            for index, instrument in enumerate(list(instruments.ids)):
                if index and self._wants(selection, index):
                    self._send_present(selection, index, instrument, received_ns)
            link.close_batch(stream.index)

    def _wants(self, selection: Selection, index: int) -> bool:
        if index >= len(selection.interest):
            selection.widen()
        return selection.interest[index] >= _WANTED or selection.look(index) >= _WANTED

    def _send_present(
        self, selection: Selection, index: int, instrument: int, received_ns: int
    ) -> None:
        stream: Stream = selection.stream
        if selection.defines:
            if selection.interest[index] != _DEFINED:
                selection.send_symbol(index, stream.next_sequence, received_ns)
            return
        rows = self.state(stream, selection.schema, instrument, received_ns)
        if not len(rows):
            return
        octets = memoryview(rows.view(numpy.uint8))
        ordinals = memoryview(numpy.full(len(rows), index, numpy.uint32))
        sequence = stream.next_sequence
        size = rows.dtype.itemsize
        selection.add(octets, ordinals, size, len(rows), sequence, received_ns)

    def latest(self, stream: Stream, schema: str, instruments: Sequence[int]) -> numpy.ndarray:
        """Return one record of each instrument, with its levels as they are."""
        rows = [
            self.state(stream, schema, x, self.received_ns, snapshot=False) for x in instruments
        ]
        return numpy.concatenate(rows)

    def state(
        self, stream: Stream, schema: str, instrument: int, received_ns: int, snapshot: bool = True
    ) -> numpy.ndarray:
        """Return records of an instrument's book as it is: for `mbo` a clear and each order, for
        levels one record; its last trading status; none of trades."""
        flags = FLAG_SNAPSHOT if snapshot else 0
        if self.of(stream).suspect:
            flags |= FLAG_MAYBE_BAD_BOOK
        common = {
            "publisher_id": self.feed.number,
            "ts_event": received_ns,
            "ts_recv": received_ns,
            "sequence": max(stream.next_sequence - 1, 0) & 0xFFFF_FFFF,
        }
        if schema == "status":
            known = self.last_statuses.get((stream.index, instrument), b"")
            return numpy.frombuffer(known, STATUS)
        if schema == "mbo":
            return self._orders(stream, instrument, {**common, "flags": flags})
        made: LevelRecords = self.records.outputs[schema]
        if made.depth == 0:
            return numpy.zeros(0, SCHEMAS[schema].records)
        return made.present(instrument, {**common, "flags": flags | FLAG_LAST})

    def _orders(self, stream: Stream, instrument: int, common: dict[str, int]) -> numpy.ndarray:
        """Return a clear of the book and an addition of each of its orders, or of each level."""
        book = self.records.book
        rows = [
            (side, *each)
            for side in (0, 1)
            for each in (
                book.orders(instrument, side)
                or [(0, price, size) for price, size, _ in book.levels(instrument, side, 1 << 30)]
            )
        ]
        made = numpy.zeros(1 + len(rows), MBO)
        for name, value in common.items():
            made[name] = value
        made["length"], made["rtype"] = MBO.itemsize // 4, SCHEMAS["mbo"].rtype
        made["instrument_id"], made["channel_id"] = instrument, stream.service & 0xFF
        made["action"], made["side"], made["price"] = b"A", b"N", UNDEFINED_PRICE
        made["action"][0] = b"R"
        for index, (side, order_id, price, size) in enumerate(rows, 1):
            made["side"][index] = b"A" if side else b"B"
            made["order_id"][index], made["price"][index] = order_id, price
            made["size"][index] = min(size, 0xFFFF_FFFF)
        made["flags"][-1] |= FLAG_LAST
        return made
