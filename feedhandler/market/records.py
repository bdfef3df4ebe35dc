# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Normalised records of several schemas, made of order events and the books that they keep.

`Records.apply_message` is given a feed's messages, one after the other in the order of the stream;
`Records.of` gives the records of a schema that followed from them:

* `mbo`: the events themselves.
* `trades`: the trades.
* `status`: trading statuses; `definition`: instruments, with their names and what directory
  messages say of them, as messages name them and where one has its first event.
* `bbo`, `mbp10`: each trade, with the levels before it, and each event that changed the best level,
  or one of ten, with the levels behind it. An event is all that one message does to an instrument:
  of its parts the last one that changed such a level stands in the record.

The books are kept once, whichever schemas are made of them. A schema that is not `active` is not
made, and may be made again later (`LevelRecords.begin`). Sans-IO.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import cython
import numpy
from cython.cimports.feedhandler.codecs.feed_table import MessageIndex
from cython.cimports.feedhandler.market.depth_book import DepthBook
from cython.cimports.feedhandler.market.normaliser import Normaliser

from feedhandler.codecs.dbn import (
    FLAG_LAST,
    MBO,
    SCHEMAS,
    UNDEFINED_PRICE,
    Schema,
    encode_definition,
    encode_status,
    pack_definition,
)
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.fix_feed import FixFeed
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.market.fix_normaliser import FixNormaliser
from feedhandler.market.wire_rules import STATES

Array = numpy.ndarray[Any, Any]

#: How many levels of each side the records of a schema have.
DEPTHS: Final[Mapping[str, int]] = {"trades": 0, "bbo": 1, "mbp10": 10}
#: Records, and instruments whose levels were reported, that there is room for at first.
_ROOM = 256
#: Words of eight bytes: of an event; of a record in front of its levels; of a level.
_EVENT_WORDS = cython.declare(cython.Py_ssize_t, MBO.itemsize // 8)
_HEAD_WORDS = cython.declare(cython.Py_ssize_t, SCHEMAS["trades"].records.itemsize // 8)
_LEVEL_WORDS = cython.declare(cython.Py_ssize_t, 4)
_TRADE, _CLEAR = cython.declare(cython.int, 84), cython.declare(cython.int, 82)
_NONE = cython.declare(cython.ulonglong, 78)
_LAST = cython.declare(cython.ulonglong, FLAG_LAST)
_NO_PRICE = cython.declare(cython.ulonglong, UNDEFINED_PRICE)
_LOW = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
#: The bits of an event's first word that say who publishes it.
_PUBLISHER = cython.declare(cython.ulonglong, 0xFFFF_0000)
_BYTE = cython.declare(cython.ulonglong, 0xFF)


@cython.final
@cython.cclass
class LevelRecords:
    """Trades, and what changes in the first `depth` levels of each side (0: trades alone).

    `active`: records are made. `stride` is a record's length in words of eight bytes, `count` how
    many there are.
    """

    depth: Readonly[cython.int]
    count: Readonly[cython.Py_ssize_t]
    stride: Readonly[cython.Py_ssize_t]
    active: Public[cython.bint]
    buffer: Readonly[object]
    book: DepthBook
    dtype: object
    head: cython.ulonglong
    words: cython.ulonglong[::1]
    sent: cython.ulonglong[::1]
    octets: cython.uchar[::1]
    room: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    offsets: dict
    pending: dict
    is_pending: cython.bint
    pending_instrument: cython.uint
    pending_at: cython.Py_ssize_t
    pending_depth: cython.int

    def __init__(self, book: DepthBook, depth: int, schema: Schema, active: bool) -> None:
        self.book, self.depth, self.dtype = book, depth, schema.records
        self.stride = schema.records.itemsize // 8
        self.head = schema.records.itemsize // 4 | schema.rtype << 8
        self.active = active
        self.room, self.count = _ROOM, 0
        self.buffer = numpy.zeros(self.room, self.dtype)
        self.words = memoryview(self.buffer.view(numpy.uint64))
        self.octets = memoryview(self.buffer.view(numpy.uint8))
        self.is_pending = False
        self.pending = {}
        self.forget()

    def forget(self) -> None:
        """Take all levels for empty, as they are before any event."""
        self.offsets, self.rows = {}, 0
        self.sent = memoryview(numpy.zeros(0, numpy.uint64))

    def begin(self) -> None:
        """Make records from here on, of changes of the levels as they are now."""
        self.active = True
        self.forget()
        for instrument in self.book.instruments():
            offset: cython.Py_ssize_t = self.offset_of(instrument)
            self.book.write_levels(instrument, self.depth, self.sent, offset)

    @property
    def records(self) -> Array:
        """The records since the last `clear`: a view, good until the next event."""
        return self.buffer[: self.count]

    def present(self, instrument: int, now: Mapping[str, int]) -> Array:
        """Return one record with the levels as they are; `now` are fields of it: publisher, times,
        sequence, flags. No part of `records`."""
        made = numpy.zeros(1, self.dtype)
        for name, value in now.items():
            made[name] = value
        made["length"], made["rtype"] = made.itemsize // 4, self.head >> 8
        made["instrument_id"], made["price"] = instrument, UNDEFINED_PRICE
        made["action"], made["side"] = b"N", b"N"
        self.book.write_levels(
            instrument, self.depth, memoryview(made.view(numpy.uint64)), _HEAD_WORDS
        )
        return made

    # -- of one event -----------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def report(
        self,
        events: cython.const_ulonglong[::1],
        at: cython.Py_ssize_t,
        instrument: cython.uint,
        depth: cython.int,
    ) -> cython.int:
        """Append a record of the event at `at`, with the levels as they are."""
        index: cython.Py_ssize_t = self.count * self.stride
        tail: cython.ulonglong = events[at + 4]
        if self.count >= self.room:
            self.grow()
        self.words[index] = (
            self.head | (events[at] & _PUBLISHER) | cython.cast(cython.ulonglong, instrument) << 32
        )
        self.words[index + 1] = events[at + 1]
        self.words[index + 2] = events[at + 3]
        self.words[index + 3] = (
            (tail & _LOW)
            | ((tail >> 48) & _BYTE) << 32
            | (tail >> 56) << 40
            | ((tail >> 32) & _BYTE) << 48
            | cython.cast(cython.ulonglong, depth) << 56
        )
        self.words[index + 4] = events[at + 5]
        self.words[index + 5] = events[at + 6]
        if self.depth > 0:
            self.book.write_levels(instrument, self.depth, self.words, index + _HEAD_WORDS)
        self.count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def note(self, at: cython.Py_ssize_t, instrument: cython.uint, depth: cython.int) -> cython.int:
        """Remember that the event at `at` changed a level, of an instrument whose events go on."""
        if depth >= self.depth:
            return 0
        if self.is_pending and self.pending_instrument != instrument:
            self.pending[self.pending_instrument] = (self.pending_at, self.pending_depth)
        self.is_pending, self.pending_instrument = True, instrument
        self.pending_at, self.pending_depth = at, depth
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def finish(self, events: cython.const_ulonglong[::1], instrument: cython.uint) -> cython.int:
        """End an instrument's events: where levels differ from those last reported, report them."""
        if self.is_pending and self.pending_instrument == instrument:
            self.is_pending = False
            if self.pending:
                self.pending.pop(instrument, None)
            return self.keep_if_new(events, self.pending_at, instrument, self.pending_depth)
        if self.pending and instrument in self.pending:
            at, depth = self.pending.pop(instrument)
            return self.keep_if_new(events, at, instrument, depth)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def keep_if_new(
        self,
        events: cython.const_ulonglong[::1],
        at: cython.Py_ssize_t,
        instrument: cython.uint,
        depth: cython.int,
    ) -> cython.int:
        """Append a record where the levels are not those reported last; return whether."""
        index: cython.Py_ssize_t
        is_new: cython.bint = False
        i: cython.Py_ssize_t = self.offset_of(instrument)
        self.report(events, at, instrument, depth)
        levels: cython.Py_ssize_t = (self.count - 1) * self.stride + _HEAD_WORDS
        for index in range(_LEVEL_WORDS * self.depth):
            if self.sent[i + index] != self.words[levels + index]:
                is_new = True
                self.sent[i + index] = self.words[levels + index]
        if not is_new:
            self.count -= 1
        return is_new

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def offset_of(self, instrument: cython.uint) -> cython.Py_ssize_t:
        """Return where the levels stand that were reported last of an instrument: at first none."""
        found = self.offsets.get(instrument)
        width: cython.Py_ssize_t = _LEVEL_WORDS * self.depth
        index: cython.Py_ssize_t
        if found is not None:
            return found
        offset: cython.Py_ssize_t = self.rows * width
        if offset + width > self.sent.shape[0]:
            wider = numpy.zeros(2 * len(self.sent) + _ROOM * width, numpy.uint64)
            wider[: len(self.sent)] = self.sent
            self.sent = memoryview(wider)
        for index in range(offset, offset + width, _LEVEL_WORDS):
            self.sent[index] = self.sent[index + 1] = _NO_PRICE
        self.offsets[instrument] = offset
        self.rows += 1
        return offset

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow(self) -> cython.int:
        """Double the room for records."""
        buffer: object = numpy.zeros(2 * self.room, self.dtype)
        buffer[: self.count] = self.buffer[: self.count]
        self.buffer = buffer
        self.words = memoryview(buffer.view(numpy.uint64))
        self.octets = memoryview(buffer.view(numpy.uint8))
        self.room *= 2
        return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _signed(word: cython.ulonglong) -> cython.longlong:
    """Return a price of its word."""
    if cython.compiled:
        return word
    return word - (1 << 64) if word >> 63 else word


@cython.final
@cython.cclass
class Records:
    """Records of the given schemas of a feed; without any, of all of them but `definition`, none
    `active` but `mbo` and `status`.

    `name_of` gives an instrument's name for definitions; without it, the symbol's text is taken.
    `book` keeps the books; without it, one of the usual bounds does. Raises `UsageError` for a feed
    without `[book]`, and for another schema.
    """

    normaliser: Readonly[Normaliser]
    book: Readonly[DepthBook]
    outputs: Readonly[dict]
    levels: list
    keeps_events: Readonly[cython.bint]
    makes_definitions: Readonly[cython.bint]
    statuses: list
    definitions: list
    defined: object
    name_of: object
    channel: cython.longlong

    def __init__(
        self,
        feed: Feed,
        *schemas: str,
        name_of: Callable[[int], str] | None = None,
        book: DepthBook | None = None,
    ) -> None:
        for schema in schemas:
            if schema not in SCHEMAS:
                raise UsageError(f"unknown records {schema!r}", f"known: {', '.join(SCHEMAS)}")
        self.normaliser = FixNormaliser(feed) if isinstance(feed, FixFeed) else Normaliser(feed)
        self.book = DepthBook() if book is None else book
        self.normaliser.instruments_of = self.book.instruments
        self.keeps_events = not schemas or "mbo" in schemas
        self.outputs = {
            name: LevelRecords(self.book, depth, SCHEMAS[name], bool(schemas))
            for name, depth in DEPTHS.items()
            if not schemas or name in schemas
        }
        self.levels = list(self.outputs.values())
        self.makes_definitions = "definition" in schemas
        self.normaliser.keeps_terms = self.makes_definitions
        self.statuses: list[bytes] = []
        self.definitions: list[bytes] = []
        self.defined: set[int] = set()
        self.name_of = name_of
        #: The channel of the events under way; -1: as the events have it, in eight bits.
        self.channel = -1

    def apply_message(
        self,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        message_type: cython.ushort,
        send_ns: cython.ulonglong,
        received_ns: cython.ulonglong,
        sequence: cython.ulonglong,
        channel: cython.uint,
    ) -> cython.int:
        """Take the message of `size` bytes at `at`; times are ns since 1970."""
        if not self.keeps_events:
            self.normaliser.clear()
        first: cython.Py_ssize_t = self.normaliser.count
        self.channel = channel
        self.normaliser.message(
            data, at, size, message_type, send_ns, received_ns, sequence, channel
        )
        if self.normaliser.statuses:
            self.note_statuses(received_ns)
        if self.makes_definitions:
            self.define(first, received_ns)
        return self.apply_words(self.normaliser.words, first, self.normaliser.count)

    def note_statuses(self, received_ns: int) -> None:
        """Make records of the statuses that a message had."""
        for instrument, state, event_ns in self.normaliser.statuses:
            self.statuses.append(
                encode_status(
                    self.normaliser.publisher_id, instrument, STATES[state], event_ns, received_ns
                )
            )
        self.normaliser.statuses.clear()

    def define(self, first: int, received_ns: int) -> None:
        """Make definitions of instruments that a message named, and of those that are new in it."""
        events = self.normaliser.records[first:]
        defined = [*self.normaliser.named]
        for instrument, event_ns in zip(
            events["instrument_id"].tolist(), events["ts_event"].tolist(), strict=True
        ):
            if instrument and instrument not in self.defined:
                self.defined.add(instrument)
                defined.append((instrument, event_ns))
        for instrument, event_ns in defined:
            self.defined.add(instrument)
            self.definitions.append(self.definition(instrument, event_ns, received_ns))
        if defined:
            self.normaliser.clear_named()

    def definition(self, instrument: int, event_ns: int, received_ns: int) -> bytes:
        """Return the record that defines an instrument."""
        normaliser = self.normaliser
        if self.name_of is None:
            name = normaliser.text_of(normaliser.symbol_of(instrument))
        else:
            name = self.name_of(instrument)
        return encode_definition(
            normaliser.publisher_id, instrument, name, event_ns, received_ns,
            pack_definition(normaliser.terms.get(instrument, {})),
        )  # fmt: skip

    def apply_packet(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        index: MessageIndex,
        skip: cython.Py_ssize_t,
        send_ns: cython.ulonglong,
        received_ns: cython.ulonglong,
        channel: cython.uint,
    ) -> cython.int:
        """Take the messages of the packet at `start`, as the scanner found them, but for the first
        `skip`."""
        i: cython.Py_ssize_t
        for i in range(skip, index.count):
            self.apply_message(
                data, start + index.offsets[i], index.sizes[i], index.types[i],
                send_ns, received_ns, index.sequences[i], channel,
            )  # fmt: skip
        return 0

    def empty(self, channel: int, received_ns: int) -> None:
        """Empty all books of a channel, as numbers begin anew there."""
        if not self.keeps_events:
            self.normaliser.clear()
        first: cython.Py_ssize_t = self.normaliser.count
        self.channel = channel
        self.normaliser.empty(channel, received_ns)
        self.apply_words(self.normaliser.words, first, self.normaliser.count)

    def empty_book(self, instrument: int) -> None:
        """Empty the book of one instrument, which is sent anew."""
        self.normaliser.forget(instrument)
        self.book.apply_record(instrument, 0, 0, 0, _CLEAR, cython.cast(cython.uchar, _NONE), 0)

    def apply(self, events: Array, channel: int = -1) -> None:
        """Take order events (dtype `MBO`) of whole messages, in the order of the stream; no records
        of `mbo` follow from them. `channel` is theirs; -1: that in the records, of eight bits."""
        if not len(events):
            return
        self.channel = channel
        events = numpy.require(events, requirements=("C", "A", "W"))
        self.apply_words(memoryview(events.view(numpy.uint64)), 0, len(events))

    def of(self, schema: str) -> Array:
        """Return the records of a schema since the last `clear`: a view, good until the next
        message. Raises KeyError for a schema that is not made."""
        if schema == "mbo":
            return self.normaliser.records
        if schema in ("status", "definition"):
            rows = self.statuses if schema == "status" else self.definitions
            return numpy.frombuffer(b"".join(rows), SCHEMAS[schema].records)
        made: LevelRecords = self.outputs[schema]
        return made.records

    def clear(self) -> cython.int:
        """Begin the records of all schemas anew."""
        made: LevelRecords
        self.normaliser.clear()
        if self.statuses:
            self.statuses = []
        if self.definitions:
            self.definitions = []
        for made in self.levels:
            made.count = 0
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def apply_words(
        self,
        events: cython.const_ulonglong[::1],
        first: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
    ) -> cython.int:
        """Apply the events `first` to `count`, without the latter."""
        index: cython.Py_ssize_t
        made: LevelRecords
        for index in range(first, count):
            at: cython.Py_ssize_t = index * _EVENT_WORDS
            tail: cython.ulonglong = events[at + 4]
            instrument: cython.uint = events[at] >> 32
            action: cython.uchar = (tail >> 48) & 0xFF
            if action == _CLEAR and instrument == 0:
                self.clear_all(events, at)
                continue
            if action == _TRADE:
                for made in self.levels:
                    if made.active:
                        made.report(events, at, instrument, 0)
            else:
                depth: cython.int = self.book.apply_record(
                    instrument, events[at + 2],
                    _signed(events[at + 3]),
                    cython.cast(cython.uint, tail & _LOW), action,
                    cython.cast(cython.uchar, tail >> 56), self.channel_of(tail),
                )  # fmt: skip
                for made in self.levels:
                    if made.active:
                        made.note(at, instrument, depth)
            if (tail >> 32) & _LAST:
                for made in self.levels:
                    if made.active:
                        made.finish(events, instrument)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def channel_of(self, tail: cython.ulonglong) -> cython.uint:
        """Return the channel of an event, of which its fifth word is given."""
        if self.channel >= 0:
            return self.channel
        return (tail >> 40) & 0xFF

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def clear_all(self, events: cython.const_ulonglong[::1], at: cython.Py_ssize_t) -> cython.int:
        """Empty all books of a channel, and report each whose levels were not empty."""
        made: LevelRecords
        instrument: cython.uint
        tail: cython.ulonglong = events[at + 4]
        self.book.apply_record(
            0, 0, 0, 0, _CLEAR, cython.cast(cython.uchar, _NONE), self.channel_of(tail)
        )
        for made in self.levels:
            if made.active and made.depth > 0:
                for instrument in list(made.offsets):
                    made.keep_if_new(events, at, instrument, 0)
        return 0
