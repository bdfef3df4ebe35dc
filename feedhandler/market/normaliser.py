# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Messages of any feed to normalised order events: DBN's MBO records, by the feed's `[book]` table.

Fields are read from the bytes at offsets that were resolved when the normaliser was made
(`wire_rules`); no record of a message is built. What a message leaves out (whose order it is, its
side and price, what is left of it) is kept by order in an `OrderTable`; price levels and quotes are
kept there, too.

Records (`records`) say of

* an order: A(dd), M(odify) with its new price and size, C(ancel) by `size`, with the price of the
  order; an execution is T(rade) with the aggressor's side, F(ill) of the order, and C; a replaced
  order is C of the old one and A of the new one.
* a trade that no order shows: T alone. Trades have no order id.
* a price level (a book by level): A where it is new, M with its new size, C of all of it where it
  is gone; `order_id` is 0.
* a level by its position: the same, by its price, whatever position it has.
* a quote: an order for each side, whose id is (whose quote it is * 2 + (0 bid, 1 ask)) + 1. A side
  that the book has not for the time being is kept as well, so that a later message may bring it in.
* an emptied book: R(clear); with `instrument_id` 0 all books of the channel.

The last record about an instrument in a message has FLAG_LAST. A trading status, and a message that
names an instrument, make no order event: `statuses` (instrument, state, time) and `named`
(instrument, time) have those since the last `clear`.

Promises: nothing in a message makes `message` raise; what does not fit is counted (`short`,
`unknown_orders`, `sideless`, `unscaled`, `clamped`, `unnamed`) and makes no record, or one without
a price. A message belongs to a channel: clocks, snapshots and, where messages about orders do not
name the symbol, order ids are a channel's own. It leaves order and completeness of the stream to
its caller, and says in the records what that means (`maybe_bad`).
"""

import math
import struct
from bisect import bisect_left, insort
from datetime import date
from operator import attrgetter

import cython
import numpy
from cython.cimports.feedhandler.codecs.feed_table import FeedTable
from cython.cimports.feedhandler.codecs.scanner import fixed_size, symbol_at
from cython.cimports.feedhandler.market.order_table import OrderTable
from cython.cimports.feedhandler.market.wire_rules import (
    WireCodes,
    WireField,
    WireMessage,
    WireRule,
    WireStep,
    WireTerm,
    WireTest,
)

from feedhandler.codecs.book_rules import POSITIONS_MAX, SELL_ID_BIT
from feedhandler.codecs.dbn import (
    FLAG_LAST,
    FLAG_MAYBE_BAD_BOOK,
    FLAG_SNAPSHOT,
    MBO,
    RTYPE_MBO,
    UNDEFINED_PRICE,
    UNDEFINED_TIME,
)
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.prices import NO_DECIMALS, SCALE_MAX
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.market.definitions import read_term
from feedhandler.market.wire_rules import DOES, SINCE

#: Symbols that are numbered; further ones are counted in `unnamed`, their messages dropped.
INSTRUMENTS_MAX = 1 << 22
#: Records that the buffer has room for at first; it grows where one message needs more.
ROOM = 4096
#: Sides of books whose levels are known by position; levels of further ones are refused.
LADDERS_MAX = 1 << 20
_POSITIONS_MAX = cython.declare(cython.Py_ssize_t, POSITIONS_MAX)
#: In the order table: a side of a quote that is known, and not in the book.
_HIDDEN = cython.declare(cython.uchar, 4)
_DECIMALS_MAX = cython.declare(cython.int, SCALE_MAX)

#: What rules do, and what times count from, as `wire_rules` has them.
_C_ADD = cython.declare(cython.int, DOES.index("add"))
_C_MODIFY = cython.declare(cython.int, DOES.index("modify"))
_C_REPLACE = cython.declare(cython.int, DOES.index("replace"))
_C_REDUCE = cython.declare(cython.int, DOES.index("reduce"))
_C_EXECUTE = cython.declare(cython.int, DOES.index("execute"))
_C_CLEAR = cython.declare(cython.int, DOES.index("clear"))
_C_TRADE = cython.declare(cython.int, DOES.index("trade"))
_C_LEVEL = cython.declare(cython.int, DOES.index("level"))
_C_QUOTE = cython.declare(cython.int, DOES.index("quote"))
_C_STATUS = cython.declare(cython.int, DOES.index("status"))
_C_DIRECTORY = cython.declare(cython.int, DOES.index("directory"))
_C_BEGIN = cython.declare(cython.int, DOES.index("snapshot_begin"))
_C_END = cython.declare(cython.int, DOES.index("snapshot_end"))
_C_QUOTE_SIDE = cython.declare(cython.int, DOES.index("quote_side"))
_C_QUOTE_DELETE = cython.declare(cython.int, DOES.index("quote_delete"))
_C_INSERT = cython.declare(cython.int, DOES.index("level_insert"))
_C_CHANGE = cython.declare(cython.int, DOES.index("level_change"))
_C_THROUGH = cython.declare(cython.int, DOES.index("delete_through"))
_MIDNIGHT = cython.declare(cython.int, SINCE.index("midnight"))
_CLOCK = cython.declare(cython.int, SINCE.index("clock"))
_SEND_SECOND = cython.declare(cython.int, SINCE.index("send_second"))
_NO_DECIMALS = cython.declare(cython.int, NO_DECIMALS)

_BUY = cython.declare(cython.uchar, 1)
_SELL = cython.declare(cython.uchar, 2)
_A = cython.declare(cython.uchar, 65)
_C = cython.declare(cython.uchar, 67)
_F = cython.declare(cython.uchar, 70)
_M = cython.declare(cython.uchar, 77)
_R = cython.declare(cython.uchar, 82)
_T = cython.declare(cython.uchar, 84)
_MASK = cython.declare(cython.ulonglong, (1 << 64) - 1)
_SELL_ID_BIT = cython.declare(cython.ulonglong, SELL_ID_BIT)
_NO_TIME = cython.declare(cython.ulonglong, UNDEFINED_TIME)
_NO_PRICE = cython.declare(cython.longlong, UNDEFINED_PRICE)
_SIZE_MAX = cython.declare(cython.longlong, (1 << 32) - 1)
_SECOND_NS = cython.declare(cython.ulonglong, 1_000_000_000)
_LAST = cython.declare(cython.ulonglong, FLAG_LAST)
_SNAPSHOT = cython.declare(cython.uchar, FLAG_SNAPSHOT)
_MAYBE_BAD = cython.declare(cython.uchar, FLAG_MAYBE_BAD_BOOK)
_POWERS: cython.longlong[::1] = memoryview(10 ** numpy.arange(19))
#: Length in words of four bytes, and kind, of every record.
_HEAD = cython.declare(cython.ulonglong, MBO.itemsize // 4 | RTYPE_MBO << 8)


@cython.cclass
class Ladder:
    """Levels of one side of a book by position, the best first; those without a price or a size,
    which no book has, keep their position. `channel`: that of the first."""

    channel: cython.uint
    prices: list
    sizes: list

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.prices: list[int] = []
        self.sizes: list[int] = []


@cython.cclass
class Normaliser:
    """Makes records of a feed's messages. Raises `UsageError` for a feed without `[book]`.

    `orders` holds what messages about orders leave out; one that the caller gives is used, so that
    it may be bounded otherwise. `records` are those of the messages since the last `clear`.
    `instruments_of(channel)`, where it is set, gives the instruments that a clear of a channel is
    about; else, where orders are known by their symbols, it is about all. Where `keeps_terms` is
    set, `terms` has what directory messages said of their instruments since the last `clear`:
    fields of DBN's definition by name, by instrument, of the last such message.
    """

    feed: Readonly[object]
    buffer: Readonly[object]
    orders: Readonly[OrderTable]
    count: Readonly[cython.Py_ssize_t]
    unknown_orders: Public[cython.ulonglong]
    unscaled: Public[cython.ulonglong]
    clamped: Public[cython.ulonglong]
    short: Public[cython.ulonglong]
    sideless: Public[cython.ulonglong]
    unnamed: Public[cython.ulonglong]
    publisher_id: Readonly[cython.uint]
    instruments_of: Public[object]
    maybe_bad: Public[cython.bint]
    table: FeedTable
    slots: cython.uchar[::1]
    teaches: cython.uchar[::1]
    messages: list
    symbols: list
    statuses: Readonly[list]
    named: Readonly[list]
    keeps_terms: Public[cython.bint]
    terms: Readonly[dict]
    terms_of: tuple
    texts: Readonly[dict]
    words: cython.ulonglong[::1]
    octets: cython.uchar[::1]
    room: cython.Py_ssize_t
    instruments: dict
    scales: dict
    clocks: dict
    snapshots: dict
    held: dict
    ladders: dict
    depths: dict
    ranks: dict
    size_decimals: cython.int
    depth: cython.int
    has_depth: cython.bint
    marks_snapshots: cython.bint
    names_symbols: cython.bint
    numbers_symbols: cython.bint
    absent: cython.bint
    by_level: cython.bint
    keeps_quotes: cython.bint
    ids_per_side: cython.bint
    clock: object
    references: object
    midnights: object
    begins_ns: cython.ulonglong
    early_ns: cython.ulonglong
    late_ns: cython.ulonglong
    clock_code: cython.int
    data: cython.const_uchar[::1]
    at: cython.Py_ssize_t
    fixed_end: cython.Py_ssize_t
    end: cython.Py_ssize_t
    element_at: cython.Py_ssize_t
    element_end: cython.Py_ssize_t
    event_ns: cython.ulonglong
    send_ns: cython.ulonglong
    received_ns: cython.ulonglong
    channel: cython.uint
    sequence: cython.uint
    instrument: cython.uint
    scope: cython.uint
    flags: cython.uchar

    def __init__(self, feed: Feed, orders: OrderTable | None = None, room: int = ROOM) -> None:
        if feed.book is None:
            raise UsageError(
                f"{feed.name} has no order books", "its description needs a [book] table"
            )
        self.feed = feed
        self.table = feed.table
        self.orders = OrderTable() if orders is None else orders
        self.publisher_id = feed.number
        self.names_symbols = feed.book.names_symbols
        self.by_level = feed.book.by == "level"
        self.keeps_quotes = feed.book.keeps_quotes
        self.ids_per_side = feed.book.ids_per_side
        self.size_decimals = feed.book.size_decimals
        #: Levels by position, best first, by instrument and side; depths by instrument.
        self.ladders, self.depths = {}, {}
        #: Of books by price whose depth is bounded: prices by instrument and side, the best first,
        #: those of bids negative; and the depth where no message carries it.
        self.ranks, self.depth = {}, feed.book.depth
        self.has_depth = feed.book.depth > 0
        self.messages = [None]
        self.slots = memoryview(bytearray(65_536))
        by_size = sorted(feed.book.messages, key=attrgetter("size"))
        for code in dict.fromkeys(each.code for each in by_size):
            self.slots[code] = len(self.messages)
            self.messages.append([WireMessage(each) for each in by_size if each.code == code])
        self.numbers_symbols = any(
            rule.symbol is not None and (rule.symbol.text or rule.symbol.size > 4)
            for each in feed.book.messages
            for rule in each.rules
        )
        self.clock, self.references, self.midnights = feed.clock, feed.references, None
        self.clock_code = -1 if feed.clock is None else feed.clock.code
        #: By message type: whether it carries a moment or a scale.
        self.teaches = memoryview(bytearray(65_536))
        for code, reference in feed.references.items():
            self.teaches[code] = bool(reference.scales)
        if feed.clock is not None:
            self.teaches[feed.clock.code] = True
        self.instruments, self.clocks, self.snapshots = {}, {}, {}
        #: Whether some rules are for snapshots alone: then no other opens a book of one.
        self.marks_snapshots = any(
            rule.snapshot and rule.does not in ("snapshot_begin", "snapshot_end")
            for each in feed.book.messages
            for rule in each.rules
        )
        #: Snapshots that are held, while books are sent anew.
        self.held = {}
        #: Decimal places of prices by instrument, by what prices say to have them.
        self.scales = {name: {} for name in feed.scale_names}
        #: The symbols by instrument id, from 1.
        self.symbols = []
        #: The texts of symbols that are digests, as far as messages have them.
        self.texts = {}
        self.unknown_orders = self.unscaled = self.clamped = self.short = 0
        self.sideless = self.unnamed = 0
        self.instruments_of = None
        self.statuses, self.named = [], []
        self.keeps_terms, self.terms, self.terms_of = False, {}, None
        self.maybe_bad = False
        self.room = max(room, 1)
        self.count = 0
        self.buffer = numpy.zeros(self.room, MBO)
        self.words = memoryview(self.buffer.view(numpy.uint64))
        self.octets = memoryview(self.buffer.view(numpy.uint8))

    @property
    def records(self) -> numpy.ndarray:
        """The records since the last `clear`, dtype `MBO`: a view, good until the next message."""
        return self.buffer[: self.count]

    def clear(self) -> cython.int:
        """Begin the records anew."""
        self.count = 0
        if self.statuses:
            self.statuses.clear()
        if self.named:
            self.clear_named()
        return 0

    def clear_named(self) -> cython.int:
        """Forget which instruments messages have named, and what they said of them."""
        self.named.clear()
        self.terms.clear()
        self.terms_of = None
        return 0

    def set_day(self, day: date) -> None:
        """Set the trading day that times since midnight belong to.

        Without it, the day of the first send or receive time that is known.
        """
        self.midnights = self.feed.midnights(day)
        # Moments before 1970 count modulo 2^64, as the sums do.
        self.begins_ns, self.early_ns, self.late_ns = (each & _MASK for each in self.midnights)

    def instrument_ids(self) -> dict[int, int]:
        """Return the numbers of symbols, by the symbol as the scanner's index has it.

        Empty where the feed's own numbers are used.
        """
        return dict(self.instruments)

    def instrument_of(self, symbol: int) -> int:
        """Return the instrument id of a symbol as the scanner's index has it; 0: none yet."""
        return self.instruments.get(symbol, 0) if self.numbers_symbols else symbol & 0xFFFF_FFFF

    def symbol_of(self, instrument: int) -> int:
        """Return the symbol of an instrument as the scanner's index has it."""
        return self.symbols[instrument - 1] if self.numbers_symbols else instrument

    def text_of(self, symbol: int) -> str:
        """Return the text of a symbol."""
        return self.texts.get(symbol) or self.feed.symbol_text(symbol)

    def scales_of(self, instrument: int) -> dict[str, int]:
        """Return the decimal places that reference data has stated of an instrument's prices."""
        return {
            name: scales[instrument] for name, scales in self.scales.items() if instrument in scales
        }

    def message(
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
        """Append the records of the message of `size` bytes at `at`; return how many they are.

        `send_ns` and `received_ns` are ns since 1970, `UNDEFINED_TIME` where not known. A message
        without rules has none.
        """
        first: cython.Py_ssize_t = self.count
        if at < 0 or size < 0 or at + size > len(data):
            return 0
        self.data = data
        self.at = self.element_at = at
        self.end = self.element_end = at + size
        self.send_ns, self.received_ns = send_ns, received_ns
        self.channel, self.sequence = channel, cython.cast(cython.uint, sequence & 0xFFFF_FFFF)
        if self.teaches[message_type]:
            self.fixed_end = self.end
            self.learn(message_type, size)
        if self.slots[message_type] == 0:
            return 0
        message: WireMessage = self.choose(self.slots[message_type], size)
        if message is None:
            self.short += 1
            return 0
        self.run(message)
        if self.count > first:
            self.flag_last(first)
        return self.count - first

    @cython.cfunc
    def choose(self, slot: cython.uchar, size: cython.Py_ssize_t) -> WireMessage:
        """Return the largest layout that is not longer than the message; None where all are."""
        each: WireMessage
        found: WireMessage = None
        for each in self.messages[slot]:
            if each.size <= size:
                found = each
        return found

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def learn(self, message_type: cython.ushort, size: cython.Py_ssize_t) -> cython.int:
        """Take the moment of a clock message, the scale of a reference message."""
        whole: bytes = bytes(self.data[self.at : self.end])
        if message_type == self.clock_code:
            if self.midnights is None:
                self.guess_day()
            self.clocks[self.channel] = self.clock.read(whole, self.midnights)
        reference = self.references.get(message_type)
        if reference is not None:
            for name, scale in reference.read_scales(whole).items():
                self.scales[name][self.number_of(reference.symbol(whole))] = scale
        return 0

    @cython.ccall
    def guess_day(self):
        """Set the day by the time of sending or receiving, where one is known."""
        for known_ns in (self.send_ns, self.received_ns):
            if known_ns != _NO_TIME and known_ns < 1 << 62:
                self.set_day(self.feed.trading_day.of(known_ns))
                return

    @cython.ccall
    @cython.exceptval(4294967295, check=True)
    def number_of(self, symbol: cython.ulonglong) -> cython.uint:
        """Return the instrument id of a symbol; 0 where there are too many symbols."""
        if not self.numbers_symbols:
            return symbol & 0xFFFF_FFFF
        number = self.instruments.get(symbol)
        if number is None:
            if len(self.instruments) >= INSTRUMENTS_MAX:
                self.unnamed += 1
                return 0
            number = self.instruments[symbol] = len(self.instruments) + 1
            self.symbols.append(symbol)
        return number

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def run(self, message: WireMessage) -> cython.int:
        """Run the rules of a message, then those of its groups."""
        rules: list
        steps: list
        self.fixed_end = self.end
        if self.table.block_size:
            self.fixed_end = min(self.end, self.at + fixed_size(self.table, self.data, self.at))
        elif message.groups:
            self.fixed_end = min(self.end, self.at + message.fixed_size)
        self.event_ns = self.time_of(message)
        if message.rules:
            self.fire(message.rules)
        for rules, steps in message.groups:
            self.run_group(rules, steps)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def run_group(self, rules: list, steps: list) -> cython.int:
        """Run rules for each whole element of the group that the last step leads to."""
        step: WireStep
        offset: cython.Py_ssize_t = self.fixed_end
        begin: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t = 0
        for step in steps:
            offset += count * length
            begin, offset = offset, offset + step.head
            if offset > self.end:
                return 0
            length = step.size
            self.element_at = begin
            self.element_end = offset
            if step.length is not None:
                length = self.header_value(step.length)
            if length <= 0:
                return 0
            count = (self.end - offset) // length
            if step.count is not None:
                if step.count_in_message:
                    self.element_at = self.at
                    self.element_end = self.fixed_end
                count = min(count, cython.cast(cython.Py_ssize_t, self.header_value(step.count)))
        for _ in range(count):
            self.element_at = offset
            self.element_end = offset + length
            self.fire(rules)
            offset += length
        return 0

    @cython.cfunc
    @cython.exceptval(6148914691236517205, check=True)
    def header_value(self, field: WireField) -> cython.ulonglong:
        """Return a number of at most 32 bits of the bytes in front of a group; 0 without it."""
        i: cython.Py_ssize_t = self.element_at + field.at
        value: cython.ulonglong = 0
        index: cython.Py_ssize_t
        if i + field.size > self.element_end or field.size > 4:
            return 0
        for index in range(field.size):
            value = (value << 8) | self.data[i + (index if field.big else field.size - 1 - index)]
        return value

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def fire(self, rules: list) -> cython.int:
        """Apply the first rule whose conditions hold, and the next such one behind an `also`."""
        rule: WireRule
        for rule in rules:
            if not rule.tests or self.holds(rule.tests):
                self.apply(rule)
                if not rule.also:
                    return 0
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def holds(self, tests: list) -> cython.bint:
        """Return whether all conditions hold; not where a field is missing."""
        test: WireTest
        index: cython.Py_ssize_t
        for test in tests:
            self.absent = False
            value: cython.ulonglong = self.raw(test.field)
            found: cython.bint = False
            for index in range(test.values.shape[0]):
                found = found or test.values[index] == value
            if not found:
                return False
        return True

    @cython.cfunc
    @cython.exceptval(6148914691236517205, check=True)
    def raw(self, field: WireField) -> cython.ulonglong:
        """Return a value as its bytes have it, unsigned; sets `absent` where there is none."""
        i: cython.Py_ssize_t = self.at + field.at
        limit: cython.Py_ssize_t = self.fixed_end
        value: cython.ulonglong = 0
        index: cython.Py_ssize_t
        if field.in_element:
            i = self.element_at + field.at
            limit = self.element_end
        if i + field.size > limit:
            self.absent = True
            return 0
        if field.big:
            for index in range(i, i + field.size):
                value = (value << 8) | self.data[index]
        else:
            for index in range(field.size):
                value = (value << 8) | self.data[i + field.size - 1 - index]
        if field.has_null and value == field.null:
            self.absent = True
        return (value >> field.shift) & field.mask

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def integer(self, field: WireField) -> cython.longlong:
        """Return a value as a signed integer; unsigned ones beyond it are its greatest."""
        value: cython.ulonglong = self.raw(field)
        sign: cython.ulonglong = (field.mask >> 1) + 1
        if field.is_signed:
            if value & sign:
                return -cython.cast(cython.longlong, (field.mask - value) & _MASK) - 1
            return value
        if value > 0x7FFF_FFFF_FFFF_FFFF:
            return _NO_PRICE
        return value

    @cython.cfunc
    @cython.exceptval(-100, check=False)
    def decimals_of(self, field: WireField) -> cython.int:
        """Return the decimal places of a price; `NO_DECIMALS` where they are not known."""
        if field.scale_field is not None:
            byte: cython.int = self.raw(field.scale_field) & 0xFF
            return field.scale_codes[byte]
        if field.scale_name:
            return self.scales[field.scale_name].get(self.instrument, _NO_DECIMALS)
        return field.decimals

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def price_of(self, field: WireField) -> cython.longlong:
        """Return a price in 1e-9; `UNDEFINED_PRICE` where there is none, or no scale of it."""
        if field is None:
            return _NO_PRICE
        if field.is_real:
            return self.real_price(field)
        self.absent = False
        value: cython.longlong = self.integer(field)
        if self.absent or value == _NO_PRICE:
            return _NO_PRICE
        decimals: cython.int = self.decimals_of(field)
        if self.absent or decimals == _NO_DECIMALS:
            self.unscaled += 1
            return _NO_PRICE
        if decimals <= 9:
            power: cython.longlong = _POWERS[9 - decimals]
            if value > _NO_PRICE // power or value < -(_NO_PRICE // power):
                self.unscaled += 1
                return _NO_PRICE
            return value * power
        power = _POWERS[min(decimals, _DECIMALS_MAX) - 9]
        return value // power if value >= 0 else -(-value // power)

    @cython.cfunc
    @cython.exceptval(4294967295, check=True)
    def size_of(self, field: WireField) -> cython.uint:
        """Return a size in the units of records, at most 2^32 - 2; 0 where there is none."""
        if field.is_real:
            return self.real_size(field)
        self.absent = False
        value: cython.longlong = self.integer(field)
        if self.absent or value <= 0:
            return 0
        decimals: cython.int = max(self.decimals_of(field), 0) - self.size_decimals
        if 0 < decimals <= _DECIMALS_MAX:
            value //= _POWERS[decimals]
        elif decimals < 0:
            value = min(value, _SIZE_MAX) * _POWERS[-decimals]
        if value > _SIZE_MAX - 1:
            self.clamped += 1
            value = _SIZE_MAX - 1
        return value

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def real(self, field: WireField) -> cython.double:
        """Return a floating point value; NaN where there is none."""
        self.absent = False
        raw: cython.ulonglong = self.raw(field)
        narrow: cython.uint = raw
        if self.absent:
            return math.nan
        if not cython.compiled:
            octets = int(raw).to_bytes(field.size, "little")
            return struct.unpack("<f" if field.size == 4 else "<d", octets)[0]
        if field.size == 4:
            return cython.cast(cython.p_float, cython.address(narrow))[0]
        return cython.cast(cython.p_double, cython.address(raw))[0]

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def real_price(self, field: WireField) -> cython.longlong:
        """Return a floating point price to the nearest 1e-9; `UNDEFINED_PRICE` of none, or where
        records cannot have it."""
        value: cython.double = self.real(field) * 1e9
        if value != value:
            return _NO_PRICE
        if not -9.2e18 < value < 9.2e18:
            self.unscaled += 1
            return _NO_PRICE
        return cython.cast(cython.longlong, value + 0.5 if value >= 0 else value - 0.5)

    @cython.cfunc
    @cython.exceptval(4294967295, check=True)
    def real_size(self, field: WireField) -> cython.uint:
        """Return a floating point size as `size_of` does."""
        value: cython.double = self.real(field) * _POWERS[self.size_decimals]
        if not value > 0:
            return 0
        if value > _SIZE_MAX - 1:
            self.clamped += 1
            return _SIZE_MAX - 1
        return cython.cast(cython.uint, value + value * field.slack)

    @cython.cfunc
    @cython.exceptval(255, check=False)
    def side_of(self, codes: WireCodes) -> cython.uchar:
        """Return the meaning of a field of codes; 0 where its value means nothing."""
        if codes is None:
            return 0
        if codes.field is None:
            return codes.constant
        self.absent = False
        value: cython.ulonglong = self.raw(codes.field)
        if self.absent:
            return 0
        if value < 256:
            return codes.small[value]
        return codes.meanings.get(value, 0)

    @cython.cfunc
    @cython.exceptval(6148914691236517205, check=True)
    def order_of(self, rule: WireRule) -> cython.ulonglong:
        """Return the order id: of several fields, the first ones in its upper bits."""
        field: WireField
        order_id: cython.ulonglong = 0
        for field in rule.orders:
            if field.size < 8:
                order_id = (order_id << 8 * field.size) & _MASK
            else:
                order_id = 0
            order_id |= self.raw(field)
        return order_id

    @cython.cfunc
    @cython.exceptval(6148914691236517205, check=True)
    def time_of(self, message: WireMessage) -> cython.ulonglong:
        """Return the event's time in ns since 1970, or else the packet's send time."""
        total: cython.ulonglong = 0
        index: cython.Py_ssize_t
        since: cython.int = message.since
        if since == 0:
            return self.send_ns
        self.absent = False
        for index in range(message.time_units.shape[0]):
            total += self.raw(message.time_fields[index]) * message.time_units[index]
        total &= _MASK
        if self.absent:
            return self.send_ns
        if since == _MIDNIGHT:
            if self.midnights is None:
                self.guess_day()
                if self.midnights is None:
                    return self.send_ns
            return (total + (self.late_ns if total >= self.begins_ns else self.early_ns)) & _MASK
        if since == _CLOCK:
            clock_ns = self.clocks.get(self.channel)
            return self.send_ns if clock_ns is None else (total + clock_ns) & _MASK
        if since == _SEND_SECOND:
            if self.send_ns == _NO_TIME:
                return _NO_TIME
            within: cython.ulonglong = self.send_ns % _SECOND_NS
            total = (total + self.send_ns - within) & _MASK
            return total if total <= self.send_ns else (total - _SECOND_NS) & _MASK
        return total

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def name_instrument(self, rule: WireRule) -> cython.int:
        """Set the instrument that a rule is about; return 0 where it is not known."""
        field: WireField = rule.symbol
        offset: cython.Py_ssize_t = self.at + field.at
        limit: cython.Py_ssize_t = self.fixed_end
        if field.in_element:
            offset = self.element_at + field.at
            limit = self.element_end
        if offset + field.size > limit:
            return 0
        if field.is_text:
            symbol: cython.ulonglong = symbol_at(self.table, self.data, offset, field.size, 2)
        else:
            self.absent = False
            symbol = self.raw(field)
            if self.absent:
                return 0
        if not self.numbers_symbols:
            self.instrument = cython.cast(cython.uint, symbol & 0xFFFF_FFFF)
            return 1
        self.instrument = self.number_of(symbol)
        return 1 if self.instrument else 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def apply(self, rule: WireRule) -> cython.int:
        """Do what a rule says: append its records."""
        self.flags = _MAYBE_BAD if self.maybe_bad else 0
        if rule.snapshot:
            self.flags |= _SNAPSHOT
        self.instrument = 0
        if rule.symbol is not None and not self.name_instrument(rule):
            return 0
        self.scope = self.instrument if self.names_symbols else self.channel
        if rule.does == _C_STATUS:
            status: cython.int = self.side_of(rule.state)
            if status:
                self.statuses.append((self.instrument, status, self.event_ns))
            return 0
        if rule.does == _C_DIRECTORY:
            if self.instrument:
                entry: tuple = (self.instrument, self.event_ns)
                if not self.named or self.named[len(self.named) - 1] != entry:
                    self.named.append(entry)
                self.set_depth(rule)
                if self.keeps_terms and rule.terms:
                    self.read_terms(rule)
            return 0
        if rule.does == _C_END:
            # The end of one of all books leaves orders that the stream is sending anew.
            if not rule.whole or self.snapshots.get(self.channel) is None:
                self.snapshots.pop(self.channel, None)
            return 0
        if rule.does == _C_BEGIN:
            self.snapshots[self.channel] = None if rule.whole else set()
            if rule.whole:
                self.held.pop(self.channel, None)
            return self.clear_books(rule) if rule.whole else 0
        if (
            self.snapshots
            and self.channel in self.snapshots
            and (rule.snapshot or not self.marks_snapshots)
        ):
            self.open_snapshot(rule)
        if rule.does == _C_CLEAR:
            return self.clear_books(rule)
        if rule.does == _C_TRADE:
            side: cython.uchar = self.side_of(rule.side)
            return self.put(_T, side, 0, self.price_of(rule.price), self.size_of(rule.size))
        if rule.does == _C_QUOTE:
            return self.quote(rule)
        if rule.does >= _C_QUOTE_SIDE:
            if rule.does >= _C_THROUGH:
                return self.delete_range(rule)
            if rule.does >= _C_INSERT:
                return self.apply_level_position(rule)
            return self.change_quote(rule)
        return self.level(rule) if self.by_level else self.apply_order(rule)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def read_terms(self, rule: WireRule) -> cython.int:
        """Keep what a directory message says of its instrument; of its groups' elements the first
        that has a term counts."""
        term: WireTerm
        known: dict = {}
        source: tuple = (self.at, self.sequence, self.instrument)
        if self.terms_of == source:
            known = self.terms[self.instrument]
        else:
            self.terms_of = source
            self.terms[self.instrument] = known
        for term in rule.terms:
            if term.none and self.holds(term.none):
                continue
            raw: list = [self.term_value(term, field) for field in term.fields]
            for name, value in read_term(term.term, raw).items():
                known.setdefault(name, value)
        return 0

    @cython.cfunc
    def term_value(self, term: WireTerm, field: WireField):
        """Return the value of a field: an integer, or a text's bytes; None where it has none."""
        offset: cython.Py_ssize_t
        limit: cython.Py_ssize_t
        if field is None:
            return None
        if field.is_text and not term.is_code:
            offset, limit = self.at + field.at, self.fixed_end
            if field.in_element:
                offset, limit = self.element_at + field.at, self.element_end
            if offset + field.size > limit:
                return None
            return bytes(self.data[offset : offset + field.size])
        if term.is_price:
            price: cython.longlong = self.price_of(field)
            return None if price == _NO_PRICE else price
        self.absent = False
        value: object = self.raw(field)
        if field.is_signed and not term.is_code:
            value = self.integer(field)
        return None if self.absent else value

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def open_snapshot(self, rule: WireRule) -> cython.int:
        """Mark what belongs to a snapshot; an instrument's first order in it clears its book."""
        seen: set = self.snapshots[self.channel]
        self.flags |= _SNAPSHOT
        if seen is None or rule.does == _C_TRADE:
            return 0
        if self.instrument and self.instrument not in seen:
            seen.add(self.instrument)
            self.forget(self.instrument)
            self.put(_R, 0, 0, _NO_PRICE, 0)
        return 0

    def snapshot_under_way(self, channel: int) -> set[int] | None:
        """Return the instruments that a snapshot of a channel's orders has been through, the one it
        is at included; None where none is under way."""
        return self.snapshots.get(channel)

    def hold_snapshot(self, channel: int, through: set[int]) -> None:
        """Take what comes next for no part of the snapshot under way: books sent anew, by orders
        as it has them. It has been through these instruments, too."""
        met = self.snapshots.get(channel)
        if met is not None:
            del self.snapshots[channel]
            self.held[channel] = met | through

    def resume_snapshot(self, channel: int) -> None:
        """Go on with a snapshot that was held."""
        if channel in self.held:
            self.snapshots[channel] = self.held.pop(channel)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def clear_books(self, rule: WireRule) -> cython.int:
        """Empty the book of the instrument, or all books of the channel."""
        if not rule.whole:
            if self.instrument == 0:  # in records it would be all of them
                self.unnamed += 1
                return 0
            self.forget(self.instrument)
        else:
            self.instrument = 0
            self.forget_orders()
        return self.put(_R, 0, 0, _NO_PRICE, 0)

    def forget(self, instrument: cython.uint) -> cython.int:
        """Forget all orders and levels of an instrument."""
        if self.ladders:
            self.ladders.pop((instrument, _BUY), None)
            self.ladders.pop((instrument, _SELL), None)
        if self.ranks:
            self.ranks.pop((instrument, _BUY), None)
            self.ranks.pop((instrument, _SELL), None)
        return self.orders.clear(instrument)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def forget_orders(self) -> cython.int:
        """Forget all orders and levels of the channel."""
        for key in [*self.ladders]:
            ladder: Ladder = self.ladders[key]
            if ladder.channel == self.channel:
                del self.ladders[key]
        if not self.names_symbols:
            return self.orders.clear_scope(self.channel)
        if self.instruments_of is None:
            self.ranks.clear()
            return self.orders.clear_all()
        for instrument in self.instruments_of(self.channel):
            self.forget(instrument)
        return 0

    def empty(self, channel: int, received_ns: int) -> None:
        """Append a record that empties all books of a channel, whose numbers begin anew."""
        self.channel, self.sequence, self.instrument = channel, 0, 0
        self.flags = FLAG_LAST
        self.event_ns = self.received_ns = received_ns
        self.send_ns = _NO_TIME
        self.snapshots.pop(channel, None)
        self.held.pop(channel, None)
        self.clocks.pop(channel, None)
        self.forget_orders()
        self.put(_R, 0, 0, _NO_PRICE, 0)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def apply_order(self, rule: WireRule) -> cython.int:
        """Do what a rule says of one order."""
        order_id: cython.ulonglong = self.order_of(rule)
        side: cython.uchar = self.side_of(rule.side)
        if self.ids_per_side:
            if side == 0:
                self.sideless += 1
                return 0
            order_id = self.id_of(order_id, side)
        if rule.does == _C_ADD:
            return self.add(order_id, side, self.price_of(rule.price), self.size_of(rule.size))
        slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
        if slot < 0:
            self.unknown_orders += 1
            return self.apply_unknown(rule, order_id, side)
        if rule.symbol is None:
            self.instrument = self.orders.instruments[slot]
        if rule.does == _C_MODIFY:
            return self.modify(rule, order_id, slot)
        if rule.does == _C_EXECUTE:
            return self.execute(rule, order_id, slot)
        if rule.does == _C_REDUCE:
            return self.reduce(order_id, slot, self.size_of(rule.size))
        if side == 0:
            side = self.orders.sides[slot]
        self.reduce(order_id, slot, self.orders.sizes[slot])
        if rule.does == _C_REPLACE:
            new_id: cython.ulonglong = self.id_of(self.raw(rule.new_order), side)
            return self.add(new_id, side, self.price_of(rule.price), self.size_of(rule.size))
        return 0

    @cython.cfunc
    @cython.exceptval(6148914691236517205, check=True)
    def id_of(self, order_id: cython.ulonglong, side: cython.uchar) -> cython.ulonglong:
        """Return the id by which an order of a side is known, and which its records have."""
        if self.ids_per_side and side == _SELL:
            return order_id ^ _SELL_ID_BIT
        return order_id

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def apply_unknown(
        self, rule: WireRule, order_id: cython.ulonglong, side: cython.uchar
    ) -> cython.int:
        """Append what a message says of an order that is not known: its trade, or all of it."""
        if rule.symbol is None or rule.price is None:
            return 0
        price: cython.longlong = self.price_of(rule.price)
        if rule.does == _C_EXECUTE:
            return self.put(_T, 3 - side if side else 0, 0, price, self.size_of(rule.size))
        if rule.does == _C_MODIFY and side:
            return self.add(order_id, side, price, self.size_of(rule.size))
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def add(
        self,
        order_id: cython.ulonglong,
        side: cython.uchar,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.int:
        """Add an order to the instrument's book; one that is there already is changed."""
        if side == 0:
            self.sideless += 1
            return 0
        slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
        if slot >= 0:
            if self.orders.instruments[slot] == self.instrument and (
                self.orders.sides[slot] == side
            ):
                self.orders.prices[slot] = price
                self.orders.sizes[slot] = size
                return self.put(_M, side, order_id, price, size)
            self.take_off(order_id, slot)
        self.orders.put(self.scope, order_id, self.instrument, side, price, size)
        return self.put(_A, side, order_id, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def take_off(self, order_id: cython.ulonglong, slot: cython.Py_ssize_t) -> cython.int:
        """Take an order out of the book that it is in, which may be another instrument's."""
        instrument: cython.uint = self.instrument
        self.instrument = self.orders.instruments[slot]
        self.reduce(order_id, slot, self.orders.sizes[slot])
        self.instrument = instrument
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def modify(
        self, rule: WireRule, order_id: cython.ulonglong, slot: cython.Py_ssize_t
    ) -> cython.int:
        """Change an order: its price where the message carries one, and its size."""
        side: cython.uchar = self.side_of(rule.side)
        price: cython.longlong = self.orders.prices[slot]
        size: cython.uint = self.size_of(rule.size)
        if size == 0:
            return self.reduce(order_id, slot, self.orders.sizes[slot])
        if rule.price is not None:
            price = self.price_of(rule.price)
        if side == 0:
            side = self.orders.sides[slot]
        return self.add(order_id, side, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def execute(
        self, rule: WireRule, order_id: cython.ulonglong, slot: cython.Py_ssize_t
    ) -> cython.int:
        """Trade against a resting order: the trade, the order's fill, and what the order loses."""
        side: cython.uchar = self.orders.sides[slot]
        left: cython.uint = self.orders.sizes[slot]
        size: cython.uint = self.size_of(rule.size)
        taken: cython.uint = size
        price: cython.longlong = self.orders.prices[slot]
        if rule.price is not None:
            price = self.price_of(rule.price)
        if rule.remaining is not None:
            remaining: cython.uint = self.size_of(rule.remaining)
            taken = left - remaining if remaining < left else 0
        self.put(_T, 3 - side, 0, price, size)
        self.put(_F, side, order_id, price, size)
        return self.reduce(order_id, slot, taken)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def reduce(
        self, order_id: cython.ulonglong, slot: cython.Py_ssize_t, size: cython.uint
    ) -> cython.int:
        """Take so much off an order; it is gone where nothing is left."""
        left: cython.uint = self.orders.sizes[slot]
        side: cython.uchar = self.orders.sides[slot]
        price: cython.longlong = self.orders.prices[slot]
        if size < left:
            if size == 0:
                return 0
            self.orders.sizes[slot] = left - size
            return self.put(_C, side, order_id, price, size)
        self.orders.remove(slot)
        return self.put(_C, side, order_id, price, left)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def level(self, rule: WireRule) -> cython.int:
        """Set a price level to a size; a size of 0, or a rule that deletes, removes it."""
        side: cython.uchar = self.side_of(rule.side)
        price: cython.longlong = self.price_of(rule.price)
        size: cython.uint = 0
        if rule.does == _C_LEVEL:
            size = self.size_of(rule.size)
        return self.set_level(side, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def set_level(
        self, side: cython.uchar, price: cython.longlong, size: cython.uint
    ) -> cython.int:
        """Set the price level of a side to a size; 0 removes it."""
        if side == 0 or price == _NO_PRICE:
            self.sideless += side == 0
            return 0
        key: cython.ulonglong = ((price & _MASK) << 1 | (side == _SELL)) & _MASK
        slot: cython.Py_ssize_t = self.orders.find(self.scope, key)
        if slot < 0:
            if size == 0:
                self.unknown_orders += 1
                return 0
            self.orders.put(self.scope, key, self.instrument, side, price, size)
            self.put(_A, side, 0, price, size)
            return self.keep_depth(side, price) if self.has_depth else 0
        if size == 0:
            return self.drop_level(slot)
        self.orders.sizes[slot] = size
        return self.put(_M, side, 0, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def drop_level(self, slot: cython.Py_ssize_t) -> cython.int:
        """Take a price level off its book."""
        side: cython.uchar = self.orders.sides[slot]
        price: cython.longlong = self.orders.prices[slot]
        size: cython.uint = self.orders.sizes[slot]
        self.orders.remove(slot)
        ranks: list = self.ranks.get((self.instrument, side)) if self.has_depth else None
        if ranks is not None:
            rank: object = price if side == _SELL else -price
            at: cython.Py_ssize_t = bisect_left(ranks, rank)
            if at < len(ranks) and ranks[at] == rank:
                del ranks[at]
        return self.put(_C, side, 0, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def keep_depth(self, side: cython.uchar, price: cython.longlong) -> cython.int:
        """Take off the levels that a new one moves beyond the book's depth."""
        depth: cython.Py_ssize_t = self.depths.get(self.instrument, self.depth)
        if depth == 0:
            return 0
        ranks: list = self.ranks.get((self.instrument, side))
        if ranks is None:
            ranks = self.ranks[self.instrument, side] = []
        insort(ranks, price if side == _SELL else -price)
        return self.trim(side, depth)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def set_depth(self, rule: WireRule) -> cython.int:
        """Note the depth of the book of the instrument that a directory message names."""
        depth: cython.longlong = rule.depth
        if rule.depth_field is not None:
            self.absent = False
            depth = self.integer(rule.depth_field)
            if self.absent:
                return 0
        if not 0 < depth <= _POSITIONS_MAX or self.depths.get(self.instrument) == depth:
            return 0
        self.depths[self.instrument] = depth
        self.has_depth = True
        for side in (_BUY, _SELL):
            if self.by_level and (self.instrument, side) not in self.ladders:
                self.trim(side, depth)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def trim(self, side: cython.uchar, depth: cython.Py_ssize_t) -> cython.int:
        """Take off the levels beyond a depth, also those that came before it was known."""
        ranks: list = self.ranks.get((self.instrument, side))
        if ranks is None and self.depth == 0 and self.orders.count:
            # Without a depth from the beginning, levels were not ranked as they came.
            ranks = [rank for rank, _, _ in self.ranked(side)]
            self.ranks[self.instrument, side] = ranks
        if ranks is None:
            return 0
        while len(ranks) > depth:
            worst: cython.longlong = ranks.pop()
            self.set_level(side, worst if side == _SELL else -worst, 0)
        return 0

    @cython.cfunc
    def ranked(self, side: cython.uchar) -> list:
        """Return (rank, id, scope) of the instrument's orders, or levels, of a side, the best
        first; it walks the whole table."""
        table: OrderTable = self.orders
        slot: cython.Py_ssize_t
        found: list = []
        for slot in range(table.slots):
            if table.sides[slot] == side and table.instruments[slot] == self.instrument:
                rank: object = table.prices[slot] if side == _SELL else -table.prices[slot]
                found.append((rank, table.ids[slot], table.scopes[slot]))
        return [each for each in sorted(found) if table.find(each[2], each[1]) >= 0]

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def delete_range(self, rule: WireRule) -> cython.int:
        """Take off what a side has from its best position to one, or from one to its last."""
        side: cython.uchar = self.side_of(rule.side)
        self.absent = False
        position: cython.longlong = self.integer(rule.position)
        if side == 0 or self.absent or position < 1:
            self.sideless += side == 0
            self.unknown_orders += side != 0
            return 0
        ladder: Ladder = self.ladders.get((self.instrument, side))
        if ladder is not None:
            count: cython.Py_ssize_t = len(ladder.prices)
            first: cython.Py_ssize_t = 0 if rule.does == _C_THROUGH else position - 1
            end: cython.Py_ssize_t = min(position, count) if rule.does == _C_THROUGH else count
            return self.remove_levels(ladder, side, first, end)
        table: OrderTable = self.orders
        found: list = self.ranked(side)
        chosen = found[:position] if rule.does == _C_THROUGH else found[position - 1 :]
        for _, order_id, scope in chosen:
            slot: cython.Py_ssize_t = table.find(scope, order_id)
            if self.by_level:
                self.drop_level(slot)
            else:
                self.reduce(order_id, slot, table.sizes[slot])
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def remove_levels(
        self, ladder: Ladder, side: cython.uchar, first: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Take the levels `first` to `end`, without the latter, away; those behind them move up."""
        for at in range(end - 1, first - 1, -1):
            self.remove_level(ladder, side, at)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def quote(self, rule: WireRule) -> cython.int:
        """Set both sides of a quote."""
        whose: cython.ulonglong = 0
        if rule.of is not None:
            self.absent = False
            whose = self.raw(rule.of)
        whose = (whose << 1) & _MASK
        if self.keeps_quotes:
            self.keep_side(
                (whose + 1) & _MASK, _BUY, self.price_of(rule.bid_price),
                self.size_of(rule.bid_size), self.holds(rule.bid_tests),
            )  # fmt: skip
            return self.keep_side(
                (whose + 2) & _MASK, _SELL, self.price_of(rule.ask_price),
                self.size_of(rule.ask_size), self.holds(rule.ask_tests),
            )  # fmt: skip
        self.quote_side((whose + 1) & _MASK, _BUY, rule.bid_price, rule.bid_size)
        return self.quote_side((whose + 2) & _MASK, _SELL, rule.ask_price, rule.ask_size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def quote_side(
        self, order_id: cython.ulonglong, side: cython.uchar, price: WireField, size: WireField
    ) -> cython.int:
        """Set one side of a quote: nothing where it is as it was."""
        value: cython.longlong = self.price_of(price)
        many: cython.uint = self.size_of(size)
        slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
        if many == 0 or value == _NO_PRICE:
            return 0 if slot < 0 else self.reduce(order_id, slot, self.orders.sizes[slot])
        if slot >= 0 and self.orders.prices[slot] == value and self.orders.sizes[slot] == many:
            return 0
        return self.add(order_id, side, value, many)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def change_quote(self, rule: WireRule) -> cython.int:
        """Set one side of a quote and say of both whether the book has them, or delete the quote.

        A quote that is not known begins with a side whose message names its symbol.
        """
        price: cython.longlong = _NO_PRICE
        size: cython.uint = 0
        side: cython.uchar
        reported: cython.uchar = self.side_of(rule.side)
        known: cython.bint = False
        self.absent = False
        whose: cython.ulonglong = 0
        if rule.of is not None:
            whose = (self.raw(rule.of) << 1) & _MASK
        opens: cython.bint = rule.does == _C_QUOTE_SIDE and rule.symbol is not None
        if rule.does == _C_QUOTE_SIDE and reported == 0:
            self.sideless += 1
            return 0
        for side in range(_BUY, _SELL + 1):
            order_id: cython.ulonglong = (whose + side) & _MASK
            slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
            if slot < 0 and not (opens and side == reported):
                continue
            known = True
            if slot >= 0:
                self.instrument = self.orders.instruments[slot]
                if rule.does == _C_QUOTE_DELETE:
                    self.hide(slot, order_id)
                    self.orders.remove(slot)
                    continue
                price, size = self.orders.prices[slot], self.orders.sizes[slot]
            if side == reported:
                price, size = self.price_of(rule.price), self.size_of(rule.size)
            tests: list = rule.bid_tests if side == _BUY else rule.ask_tests
            self.keep_side(order_id, side, price, size, self.holds(tests))
        self.unknown_orders += not known
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def keep_side(
        self,
        order_id: cython.ulonglong,
        side: cython.uchar,
        price: cython.longlong,
        size: cython.uint,
        shown: cython.bint,
    ) -> cython.int:
        """Keep one side of a quote; the book has it where it is `shown` with a price and a size."""
        slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
        shown = shown and size > 0 and price != _NO_PRICE
        was_shown: cython.bint = slot >= 0 and not self.orders.sides[slot] & _HIDDEN
        if was_shown and shown and self.orders.instruments[slot] == self.instrument:
            if self.orders.prices[slot] == price and self.orders.sizes[slot] == size:
                return 0
            self.orders.prices[slot], self.orders.sizes[slot] = price, size
            return self.put(_M, side, order_id, price, size)
        if was_shown:
            self.hide(slot, order_id)
        self.orders.put(
            self.scope, order_id, self.instrument, side if shown else side | _HIDDEN, price, size
        )
        return self.put(_A, side, order_id, price, size) if shown else 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def hide(self, slot: cython.Py_ssize_t, order_id: cython.ulonglong) -> cython.int:
        """Take a side of a quote out of its instrument's book, where it is there, and keep it."""
        instrument: cython.uint = self.instrument
        side: cython.uchar = self.orders.sides[slot]
        if side & _HIDDEN:
            return 0
        self.instrument = self.orders.instruments[slot]
        self.put(_C, side, order_id, self.orders.prices[slot], self.orders.sizes[slot])
        self.instrument = instrument
        self.orders.sides[slot] = side | _HIDDEN
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def apply_level_position(self, rule: WireRule) -> cython.int:
        """Insert, change or remove the level at a position, from 1: the best."""
        side: cython.uchar = self.side_of(rule.side)
        self.absent = False
        position: cython.longlong = self.integer(rule.position)
        if side == 0:
            self.sideless += 1
            return 0
        ladder: Ladder = self.ladders.get((self.instrument, side))
        if ladder is None and rule.does == _C_INSERT:
            if len(self.ladders) >= LADDERS_MAX:
                self.orders.refused += 1
                return 0
            ladder = Ladder(self.channel)
            self.ladders[self.instrument, side] = ladder
        if ladder is None:
            self.unknown_orders += 1
            return 0
        depth: cython.Py_ssize_t = self.depths.get(self.instrument, self.depth or _POSITIONS_MAX)
        count: cython.Py_ssize_t = len(ladder.prices)
        limit: cython.Py_ssize_t = min(count + 1, depth) if rule.does == _C_INSERT else count
        if self.absent or position < 1 or position > limit:
            self.unknown_orders += 1
            return 0
        at: cython.Py_ssize_t = position - 1
        if rule.does == _C_INSERT:
            while len(ladder.prices) >= depth:
                self.remove_level(ladder, side, len(ladder.prices) - 1)
            price: cython.longlong = self.price_of(rule.price)
            size: cython.uint = self.size_of(rule.size)
            ladder.prices.insert(at, price)
            ladder.sizes.insert(at, size)
            return self.put_level(_A, side, price, size)
        if rule.does == _C_CHANGE:
            return self.change_level(
                ladder, side, at, self.price_of(rule.price), self.size_of(rule.size)
            )
        return self.remove_level(ladder, side, at)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def change_level(
        self,
        ladder: Ladder,
        side: cython.uchar,
        at: cython.Py_ssize_t,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.int:
        """Give a level a size, and where it differs a price."""
        old_price: cython.longlong = ladder.prices[at]
        old_size: cython.uint = ladder.sizes[at]
        ladder.prices[at], ladder.sizes[at] = price, size
        if price == old_price and old_size and size:
            return self.put_level(_M, side, price, size)
        self.put_level(_C, side, old_price, old_size)
        return self.put_level(_A, side, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def remove_level(self, ladder: Ladder, side: cython.uchar, at: cython.Py_ssize_t) -> cython.int:
        """Take a level away; those behind it move up."""
        price: cython.longlong = ladder.prices.pop(at)
        size: cython.uint = ladder.sizes.pop(at)
        return self.put_level(_C, side, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def put_level(
        self, action: cython.uchar, side: cython.uchar, price: cython.longlong, size: cython.uint
    ) -> cython.int:
        """Append a record of a level; none where it has no price or no size."""
        if size == 0 or price == _NO_PRICE:
            return 0
        return self.put(action, side, 0, price, size)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def put(
        self,
        action: cython.uchar,
        side: cython.uchar,
        order_id: cython.ulonglong,
        price: cython.longlong,
        size: cython.uint,
    ) -> cython.int:
        """Append a record."""
        at: cython.Py_ssize_t = self.count * 7
        delta: cython.ulonglong = 0
        recorded: cython.ulonglong = self.received_ns
        if self.count >= self.room:
            self.grow()
        if recorded == _NO_TIME:
            recorded = self.send_ns
        elif self.send_ns != _NO_TIME:
            delta = (recorded - self.send_ns) & 0xFFFF_FFFF
        self.words[at] = (
            _HEAD
            | cython.cast(cython.ulonglong, self.publisher_id) << 16
            | cython.cast(cython.ulonglong, self.instrument) << 32
        )
        self.words[at + 1] = self.event_ns
        self.words[at + 2] = order_id
        self.words[at + 3] = price & _MASK
        self.words[at + 4] = (
            cython.cast(cython.ulonglong, size)
            | cython.cast(cython.ulonglong, self.flags) << 32
            | cython.cast(cython.ulonglong, self.channel & 0xFF) << 40
            | cython.cast(cython.ulonglong, action) << 48
            | cython.cast(cython.ulonglong, 66 if side == _BUY else 65 if side else 78) << 56
        )
        self.words[at + 5] = recorded
        self.words[at + 6] = delta | cython.cast(cython.ulonglong, self.sequence) << 32
        self.count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow(self) -> cython.int:
        """Double the room for records."""
        buffer: object = numpy.zeros(2 * self.room, MBO)
        buffer[: self.count] = self.buffer[: self.count]
        self.buffer = buffer
        self.words = memoryview(buffer.view(numpy.uint64))
        self.octets = memoryview(buffer.view(numpy.uint8))
        self.room *= 2
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def flag_last(self, first: cython.Py_ssize_t) -> cython.int:
        """Set FLAG_LAST in the last of the records from `first` on about each instrument."""
        index: cython.Py_ssize_t = self.count - 1
        behind: cython.ulonglong = self.words[7 * index] >> 32
        seen: set = set()
        self.words[7 * index + 4] |= _LAST << 32
        while index > first:
            index -= 1
            instrument: cython.ulonglong = self.words[7 * index] >> 32
            if instrument != behind:
                seen.add(behind)
                behind = instrument
                if instrument not in seen:
                    self.words[7 * index + 4] |= _LAST << 32
        return 0
