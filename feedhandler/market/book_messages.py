"""Books of any feed kept from its stream, and written as messages of the feed itself.

A `BookWriter` makes an instrument's book into messages: for a book by order the feed's addition of
each open order, in the order of priority; for one by level its level message of each price. Which
messages those are, and where they have the order, side, price, size and symbol, the feed's `[book]`
table says. A message that cannot hold an order (a short form, say) is passed over for the next that
can. Fields that the table does not name are 0, blank or null, but for the symbol's name, where the
message has the field of the reference message that tells it, and the event's time, which is that of
the latest message that went into the book, where both tell it alike.

`KeptBooks` is all that is needed to keep the books of a feed's services and to write them at any
moment: a reader that applies the written messages to empty books has the books that it keeps.

Sans-IO. Nothing in a stream makes it raise; what no message can hold is counted in `unwritten`.
"""

import contextlib
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.book_rules import (
    REAL_SLACK,
    SELL_ID_BIT,
    Codes,
    EventTime,
    FieldLocation,
    MessageRules,
    Rule,
)
from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.market.depth_book import ASK, BID, DepthBook
from feedhandler.market.records import Records

#: Orders that were taken off lately whose symbols are still known, at least; twice as many at most.
GONE_ORDERS = 1 << 15
#: Decimal places of the prices that books have.
DECIMALS = 9
_SIDES = {BID: "buy", ASK: "sell"}


class Entry(NamedTuple):
    """An order, or a price level (`order` 0), of a book; `price` in 1e-9."""

    order: int
    side: int
    price: int
    size: int


class Moment(NamedTuple):
    """The time that a message tells: how it does, and the parts as its bytes have them."""

    time: EventTime
    values: list[int]

    def counts_like(self, time: EventTime) -> bool:
        """Return whether the parts mean the same in a message that tells its time like this."""
        units = [unit for _, unit in time.parts]
        return self.time.since == time.since and [unit for _, unit in self.time.parts] == units


def moment_of(message: bytes, rules: MessageRules) -> Moment | None:
    """Return the time that a message tells; None where it tells none."""
    if rules.time is None or len(message) < rules.size:
        return None
    values = [
        int.from_bytes(message[part.at : part.at + part.size], "big" if part.big else "little")
        for part, _ in rules.time.parts
    ]
    return Moment(rules.time, values)


class _Form:
    """One message by which orders, or levels, of one side can be told. Raises `UsageError`."""

    def __init__(self, feed: Feed, given: MessageRules, rule: Rule, side: str) -> None:
        layout = feed.layout(given.name)
        absent = {each.name: None for each in layout.named if each.null is not None}
        template = bytearray(feed.encode_message(given.name, **absent))
        assert rule.symbol is not None
        assert rule.price is not None
        assert rule.size is not None
        assert feed.book is not None
        if rule.size.scale_location is not None or rule.size.scale_name:
            raise UsageError(f"{given.name}: its sizes have a scale of their own")
        for test in rule.when:
            _put(template, test.location, test.values[0])
        if isinstance(rule.side, Codes):
            _put(template, rule.side.location, _code_of(rule, side))
        self.template = bytes(template)
        self.size_decimals = feed.book.size_decimals
        self.id_bit = SELL_ID_BIT if feed.book.ids_per_side and side == "sell" else 0
        self.symbol, self.order, self.price, self.size = (
            rule.symbol, rule.order, rule.price, rule.size,
        )  # fmt: skip
        self.time = given.time
        self.pad = feed.table.symbol_pad & 0xFF
        self.name: tuple[int, int, bytes] | None = None
        named = [reference.name for reference in feed.references.values()]
        wanted = {name[0].wire for name in named if len(name) == 1}
        for field in layout.named:
            if field.wire in wanted and field.kind == "c" and field.at != self.symbol.at:
                pad = b" " if field.pad == "space" else b"\0"
                self.name = (field.at, field.size, pad)

    def begun(self, symbol: int, name: str, moment: Moment | None) -> bytearray | None:
        """Return a message of a symbol, without an order; None where the symbol does not fit."""
        message = bytearray(self.template)
        index = self.symbol
        if index.text:
            text = symbol.to_bytes(8, "big")
            if any(each != self.pad for each in text[index.size :]):
                return None
            filled = text[: index.size].ljust(index.size, bytes((self.pad,)))
            message[index.at : index.at + index.size] = filled
        elif not _put(message, index, symbol):
            return None
        if self.name is not None:
            at, size, pad = self.name
            message[at : at + size] = name.encode("latin-1", "replace")[:size].ljust(size, pad)
        if moment is not None and self.time is not None and moment.counts_like(self.time):
            for (part, _), value in zip(self.time.parts, moment.values, strict=True):
                _put(message, part, value)
        return message

    def write(self, begun: bytearray, entry: Entry, scales: Mapping[str, int]) -> bytes | None:
        """Return the message of an entry; None where it does not fit."""
        message, order = bytearray(begun), entry.order ^ self.id_bit
        for location in reversed(self.order):
            bits = 8 * location.size
            if not _put(message, location, order & ((1 << bits) - 1)):
                return None
            order >>= bits
        fits = not order and self._write_size(message, entry)
        return bytes(message) if fits and self._write_price(message, entry, scales) else None

    def _write_size(self, message: bytearray, entry: Entry) -> bool:
        """Write the size; return whether it fits."""
        if self.size.floating:
            unit = 10**self.size_decimals
            found = _put_real(message, self.size, entry.size / unit) * unit
            # As the normaliser reads it.
            return int(found + found * REAL_SLACK[self.size.size]) == entry.size
        size = entry.size * 10 ** max(self.size.decimals, 0)
        value, rest = divmod(size, 10**self.size_decimals)
        return rest == 0 and _put_number(message, self.size, value)

    def _write_price(self, message: bytearray, entry: Entry, scales: Mapping[str, int]) -> bool:
        """Write the price, and its scale where the message tells that; return whether it fits."""
        location, price = self.price, entry.price
        if location.floating:
            return round(_put_real(message, location, price / 10**DECIMALS) * 10**DECIMALS) == price
        decimals = scales.get(location.scale_name) if location.scale_name else location.decimals
        if location.scale_location is not None:
            ways = (n for n in range(DECIMALS + 1) if price % 10 ** (DECIMALS - n) == 0)
            decimals = next((n for n in ways if n in location.scale_codes), None)
        if decimals is None:
            return False
        if location.scale_location is not None:
            code = location.scale_codes.index(decimals)
            if not _put(message, location.scale_location, code):
                return False
        value, rest = divmod(price * 10**decimals, 10**DECIMALS)
        return rest == 0 and _put_number(message, location, value)


def _code_of(rule: Rule, side: str) -> int:
    """Return the value by which a rule's message tells a side. Raises `UsageError`."""
    assert isinstance(rule.side, Codes)
    same = [test for test in rule.when if test.location == rule.side.location]
    for value, meaning in rule.side.meanings.items():
        if meaning == side and all(value in test.values for test in same):
            return value
    raise UsageError(f"no value means {side}")


def _put(message: bytearray, location: FieldLocation, raw: int) -> bool:
    """Write a value as its bytes have it, unsigned; return whether it fits, and is not the null."""
    width = location.width or 8 * location.size
    if not 0 <= raw < 1 << width:
        return False
    order: Literal["big", "little"] = "big" if location.big else "little"
    at = slice(location.at, location.at + location.size)
    if location.width:
        mask = ((1 << width) - 1) << location.shift
        raw = raw << location.shift | int.from_bytes(message[at], order) & ~mask
    message[at] = raw.to_bytes(location.size, order)
    return location.null is None or raw != location.null


def _put_number(message: bytearray, location: FieldLocation, value: int) -> bool:
    """Write a number; return whether it fits, and is not the null value."""
    if not location.signed:
        return _put(message, location, value)
    half = 1 << (8 * location.size - 1)
    return -half <= value < half and _put(message, location, value & (2 * half - 1))


def _put_real(message: bytearray, location: FieldLocation, value: float) -> float:
    """Write a value as floating point; return the value that the bytes have."""
    form = (">" if location.big else "<") + ("f" if location.size == 4 else "d")
    octets = struct.pack(form, value)
    message[location.at : location.at + location.size] = octets
    return float(struct.unpack(form, octets)[0])


class BookWriter:
    """Writes books of a feed as its messages. Raises `UsageError` where the feed's `[book]` names
    no message that tells an order, or a level, with its symbol."""

    def __init__(self, feed: Feed) -> None:
        if feed.book is None:
            raise UsageError(f"{feed.name} has no [book] table", "its books are not known")
        self._by_level = feed.book.by == "level"
        self._forms = {side: _forms(feed, name) for side, name in _SIDES.items()}
        if not all(self._forms.values()):
            raise UsageError(f"{feed.name} has no message that tells a book's orders one by one")
        #: Orders and levels that no message could hold.
        self.unwritten = 0

    def messages(
        self,
        book: DepthBook,
        instrument: int,
        symbol: int,
        *,
        name: str = "",
        scales: Mapping[str, int] = MappingProxyType({}),
        moment: Moment | None = None,
    ) -> list[bytes]:
        """Return the messages of an instrument's book, bids first, each side from its best price.

        `symbol` is as the scanner's index has it, `name` for messages that have both, `scales`
        those of the instrument's prices where reference data tells them.
        """
        written: list[bytes] = []
        for side, forms in self._forms.items():
            begun = [(form, form.begun(symbol, name, moment)) for form in forms]
            ways = [(form, start) for form, start in begun if start is not None]
            for entry in self._entries(book, instrument, side):
                tried = (form.write(start, entry, scales) for form, start in ways)
                message = next((each for each in tried if each is not None), None)
                if message is None:
                    self.unwritten += 1
                else:
                    written.append(message)
        return written

    def _entries(self, book: DepthBook, instrument: int, side: int) -> Iterator[Entry]:
        if self._by_level:
            for price, size, _ in book.levels(instrument, side, book.level_count):
                yield Entry(0, side, price, size)
        else:
            for order, price, size in book.orders(instrument, side):
                yield Entry(order, side, price, size)


def _forms(feed: Feed, side: str) -> list[_Form]:
    """Return the messages that tell an order or a level of a side, the first to be tried first:
    live ones before those of snapshots, in the order of the table."""
    assert feed.book is not None
    does = "level" if feed.book.by == "level" else "add"
    found: list[tuple[bool, int, _Form]] = []
    for given in feed.book.messages:
        if any(rule.also for rule in given.rules):
            continue  # it tells two orders
        for rule in given.rules:
            on_side = rule.side if isinstance(rule.side, str) else side
            if rule.does == does and not rule.group and rule.symbol and on_side == side:
                with contextlib.suppress(UsageError):
                    found.append((rule.snapshot, rule.number, _Form(feed, given, rule, side)))
    return [form for _, _, form in sorted(found, key=lambda each: each[:2])]


class KeptBooks:
    """The books of every service of `feed`, each service's by itself. Raises `UsageError` where
    they could not be written."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.writer = BookWriter(feed)
        assert feed.book is not None
        #: Whether changes of an order name its symbol.
        self.names_symbols = feed.book.names_symbols
        self._services: dict[int, Records] = {}
        self._known = ReferenceData(feed)
        self._rules = {message.code: message for message in feed.book.messages}
        #: What was applied last, of each service: whether it is a packet, else it is a message.
        self._latest: dict[int, tuple[bool, bytes]] = {}
        #: The symbols of orders that were taken off lately, by service and order.
        self._gone: dict[tuple[int, int], int] = {}
        self._gone_before: dict[tuple[int, int], int] = {}

    # -- what is published ------------------------------------------------------------------

    def apply(self, packet: bytes, service: int, skip: int = 0) -> None:
        """Apply a packet, but for its first `skip` messages."""
        records = self._records_of(service)
        with contextlib.suppress(BadPacket):
            for begin, _, index in self.feed.scanned(packet):
                self._known.learn_packet(packet, begin, index)
                records.clear()
                records.apply_packet(
                    packet, begin, index, skip, UNDEFINED_TIME, UNDEFINED_TIME, service
                )
                if index.count > skip:
                    self._latest[service] = (True, packet)
                if not self.names_symbols:
                    self._note_gone(service, records)

    def apply_message(self, message: bytes, service: int) -> None:
        """Apply one whole message."""
        records, code = self._records_of(service), self.feed.message_code(message)
        self._latest[service] = (False, message)
        if code in self._known.references:
            self._known.learn(code, message)
        records.clear()
        records.apply_message(
            message, 0, len(message), code, UNDEFINED_TIME, UNDEFINED_TIME, 0, service
        )
        if not self.names_symbols:
            self._note_gone(service, records)

    def clear(self, service: int) -> None:
        """Empty a service's books."""
        if (records := self._services.get(service)) is not None:
            records.clear()
            records.empty(service, UNDEFINED_TIME)

    def _records_of(self, service: int) -> Records:
        records = self._services.get(service)
        if records is None:
            records = self._services[service] = Records(self.feed, "mbo")
        return records

    def _note_gone(self, service: int, records: Records) -> None:
        """Remember the symbols of orders that were taken off: messages that name them may wait to
        be looked at."""
        events = records.of("mbo")
        gone = events[events["action"] == b"C"]
        symbol_of = records.normaliser.symbol_of
        for order, instrument in zip(
            gone["order_id"].tolist(), gone["instrument_id"].tolist(), strict=True
        ):
            self._gone[service, order] = symbol_of(instrument)
        if len(self._gone) >= GONE_ORDERS:
            self._gone, self._gone_before = {}, self._gone

    # -- what is wanted ---------------------------------------------------------------------

    def symbol_of_order(self, service: int, order: int) -> int | None:
        """Return the symbol of an order that is open, or was taken off lately; None of others.

        For feeds whose changes of orders do not name symbols: order ids are unique in a service.
        """
        records = self._services.get(service)
        if records is None:
            return None
        orders = records.normaliser.orders
        slot = orders.find(service, order)
        if slot >= 0:
            return records.normaliser.symbol_of(orders.instruments[slot])
        key = (service, order)
        return self._gone.get(key, self._gone_before.get(key))

    def prices_known(self, service: int, symbol: int) -> bool:
        """Return whether the scale of a symbol's prices is known, without which its book is not."""
        if not self.feed.needs_reference_scales:
            return True
        records = self._services.get(service)
        if records is None:
            return False
        normaliser = records.normaliser
        return bool(normaliser.scales_of(normaliser.instrument_of(symbol)))

    def orders_of(self, service: int, symbol: int) -> int:
        """Return how many orders a book has; of a book by level, how many levels."""
        records = self._services.get(service)
        if records is None:
            return 0
        return records.book.entries_of(records.normaliser.instrument_of(symbol))

    def book_messages(self, service: int, symbol: int) -> list[bytes]:
        """Return the messages that tell a symbol's book as it is."""
        records = self._services.get(service)
        instrument = 0 if records is None else records.normaliser.instrument_of(symbol)
        if records is None or not records.book.has(instrument):
            return []
        return self.writer.messages(
            records.book, instrument, symbol, name=self._known.names.get(symbol, ""),
            scales=records.normaliser.scales_of(instrument), moment=self._moment(service),
        )  # fmt: skip

    def _moment(self, service: int) -> Moment | None:
        """Return the time of the latest message that tells one, of those applied last."""
        found = None
        is_packet, data = self._latest.get(service, (False, b""))
        for message in self.feed.messages_of(data) if is_packet else (data,):
            rules = self._rules.get(self.feed.message_code(message))
            found = found if rules is None else moment_of(message, rules) or found
        return found
