"""Books of any feed written as messages of the feed itself.

A `BookWriter` makes an instrument's book into messages: for a book by order the feed's addition of
each open order, in the order of priority; for one by level its level message of each price. Which
messages those are, and where they have the order, side, price, size and symbol, the feed's `[book]`
table says. A message that cannot hold an order (a short form, say) is passed over for the next that
can.

Where the latest message about an order is known (`order_messages`) it is written again, with what
is left of the order's size. Else fields that the table does not name are 0, blank or null, but for
the symbol's name, where the message has the field of the reference message that carries it, and the
event's time, which is that of the latest message that went into the book, where both give it alike.
Fields with what a level has together (`level_size`, `level_orders`) count up to each order.

Sans-IO. What no message can hold is counted in `unwritten`.
"""

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from feedhandler.codecs.book_rules import (
    REAL_SLACK,
    SELL_ID_BIT,
    Codes,
    EventTime,
    FieldLocation,
    MessageRules,
    Rule,
)
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.market.depth_book import ASK, BID, DepthBook

#: Decimal places of the prices that books have.
DECIMALS = 9
_SIDES = {BID: "buy", ASK: "sell"}


class Entry(NamedTuple):
    """An order, or a price level (`order` 0), of a book; `price` in 1e-9."""

    order: int
    side: int
    price: int
    size: int
    level_size: int = 0
    """of an order: what the orders of its level have together, up to and with it"""
    level_orders: int = 0


class Moment(NamedTuple):
    """The time that a message carries: in which fields, and the parts as its bytes have them."""

    time: EventTime
    values: list[int]

    def counts_like(self, time: EventTime) -> bool:
        """Return whether the parts mean the same in a message that carries its time like this."""
        units = [unit for _, unit in time.parts]
        return self.time.since == time.since and [unit for _, unit in self.time.parts] == units


def moment_of(message: bytes, rules: MessageRules) -> Moment | None:
    """Return the time that a message carries; None where it has none."""
    if rules.time is None or len(message) < rules.size:
        return None
    values = [
        int.from_bytes(message[part.at : part.at + part.size], "big" if part.big else "little")
        for part, _ in rules.time.parts
    ]
    return Moment(rules.time, values)


class _Form:
    """One message by which orders, or levels, of one side can be written. Raises `UsageError`."""

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
        self.code, self.least_size, self.when = layout.code, layout.size, rule.when
        self.side, self.side_code = side, None
        self.level_size, self.level_orders = rule.level_size, rule.level_orders
        for test in rule.when:
            _put(template, test.location, test.values[0])
        if isinstance(rule.side, Codes):
            self.side_codes, self.side_code = rule.side, _code_of(rule, side)
            _put(template, rule.side.location, self.side_code)
        self.template = bytes(template)
        self.message_code = feed.message_code
        self.long_symbols = feed.table.long_symbols
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
            if self.long_symbols and symbol >= LONG_SYMBOL_BIT:
                return None  # a digest: the text is in the messages alone
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
        if not (fits and self._write_price(message, entry, scales)):
            return None
        self._write_totals(message, entry)
        return bytes(message)

    def is_of(self, message: bytes) -> bool:
        """Return whether a message has this layout."""
        return len(message) >= self.least_size and self.message_code(message) == self.code

    def rewrite(self, known: bytes, entry: Entry) -> bytes | None:
        """Return the latest message about an order as its addition, with what is left of it; None
        where that does not fit."""
        message = bytearray(known)
        for test in self.when:
            _put(message, test.location, test.values[0])
        if self.side_code is not None:
            codes = self.side_codes
            if codes.meanings.get(_raw(message, codes.location)) != self.side:
                _put(message, codes.location, self.side_code)
        if not self._write_size(message, entry):
            return None
        self._write_totals(message, entry)
        return bytes(message)

    def _write_totals(self, message: bytearray, entry: Entry) -> None:
        """Write what the order's level has, or the field's greatest value where that is more."""
        for location, value in (
            (self.level_size, entry.level_size), (self.level_orders, entry.level_orders),
        ):  # fmt: skip
            if location is not None:
                most = (1 << (location.width or 8 * location.size)) - 1
                _put(message, location, min(value, most - (location.null == most)))

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
        """Write the price, and its scale where the message carries that; return whether it fits."""
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
    """Return the value by which a rule's message carries a side. Raises `UsageError`."""
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


def _raw(message: bytearray, location: FieldLocation) -> int:
    """Return a value as its bytes have it, unsigned."""
    order: Literal["big", "little"] = "big" if location.big else "little"
    raw = int.from_bytes(message[location.at : location.at + location.size], order)
    return raw >> location.shift & ((1 << location.width) - 1) if location.width else raw


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
    no message that carries an order, or a level, with its symbol."""

    def __init__(self, feed: Feed) -> None:
        if feed.book is None:
            raise UsageError(f"{feed.name} has no [book] table", "its books are not known")
        self._book = feed.book
        self._by_level = feed.book.by == "level"
        self._forms = {side: _forms(feed, name) for side, name in _SIDES.items()}
        if not all(self._forms.values()):
            raise UsageError(f"{feed.name} has no message that carries a book's orders one by one")
        #: The messages between which a book's orders stand, where the feed has such.
        self.opening: bytes | None
        self.closing: bytes | None
        self.opening, self.closing = _borders(feed)
        #: Orders and levels that no message could hold.
        self.unwritten = 0

    def rewritable(self) -> dict[int, int]:
        """Return the least size, by type, of the messages that carry all of an order: those that
        bring orders, where none that changes one may leave out the price."""
        whole = {
            given.code: given.size
            for given in self._book.messages
            if all(
                rule.price is not None and rule.price.null is None
                for rule in given.rules
                if rule.does == "modify"
            )
        }
        forms = [form for ways in self._forms.values() for form in ways]
        return {form.code: form.least_size for form in forms if form.code in whole}

    def messages(
        self,
        book: DepthBook,
        instrument: int,
        symbol: int,
        *,
        name: str = "",
        scales: Mapping[str, int] = MappingProxyType({}),
        moment: Moment | None = None,
        known: Callable[[int], bytes | None] | None = None,
    ) -> list[bytes]:
        """Return the messages of an instrument's book, bids first, each side from its best price.

        `symbol` is as the scanner's index has it, `name` for messages that have both, `scales`
        those of the instrument's prices where reference data gives them; `known` returns
        the latest message about an order, by its id, of a type that is `rewritable`.
        """
        written: list[bytes] = []
        for side, forms in self._forms.items():
            begun = [(form, form.begun(symbol, name, moment)) for form in forms]
            ways = [(form, start) for form, start in begun if start is not None]
            for entry in self._entries(book, instrument, side):
                message = _rewritten(forms, known(entry.order), entry) if known else None
                if message is None:
                    tried = (form.write(start, entry, scales) for form, start in ways)
                    message = next((each for each in tried if each is not None), None)
                if message is None:
                    self.unwritten += 1
                else:
                    written.append(message)
        return written

    def rewritten(self, known: bytes, entry: Entry) -> bytes | None:
        """Return the addition that the latest message about an order makes; None where it makes
        none."""
        return _rewritten(self._forms[entry.side], known, entry)

    def _entries(self, book: DepthBook, instrument: int, side: int) -> Iterator[Entry]:
        if self._by_level:
            for price, size, _ in book.levels(instrument, side, book.level_count):
                yield Entry(0, side, price, size)
        else:
            level = total = count = 0
            for order, price, size in book.orders(instrument, side):
                if price != level or not count:
                    level, total, count = price, 0, 0
                total, count = total + size, count + 1
                yield Entry(order, side, price, size, total, count)


def _rewritten(forms: Iterable[_Form], known: bytes | None, entry: Entry) -> bytes | None:
    """Return the addition that the latest message about an order makes; None where there is none
    such."""
    if known is None:
        return None
    for form in forms:
        if form.is_of(known):
            return form.rewrite(known, entry)
    return None


def _borders(feed: Feed) -> tuple[bytes, bytes] | tuple[None, None]:
    """Return the messages that begin and end orders that are sent anew, each book by itself."""
    found: dict[str, bytes] = {}
    assert feed.book is not None
    for given in feed.book.messages:
        for rule in given.rules:
            if rule.does in ("snapshot_begin", "snapshot_end") and rule.when and not rule.all:
                message = bytearray(feed.encode_message(given.name))
                for test in rule.when:
                    _put(message, test.location, test.values[0])
                found.setdefault(rule.does, bytes(message))
    if len(found) < 2:
        return None, None
    return found["snapshot_begin"], found["snapshot_end"]


def _forms(feed: Feed, side: str) -> list[_Form]:
    """Return the messages that carry an order or a level of a side, the first to be tried first:
    live ones before those of snapshots, in the order of the table."""
    assert feed.book is not None
    does = "level" if feed.book.by == "level" else "add"
    found: list[tuple[bool, int, _Form]] = []
    for given in feed.book.messages:
        if any(rule.also for rule in given.rules):
            continue  # it is about two orders
        for rule in given.rules:
            on_side = rule.side if isinstance(rule.side, str) else side
            if rule.does == does and not rule.group and rule.symbol and on_side == side:
                with contextlib.suppress(UsageError):
                    found.append((rule.snapshot, rule.number, _Form(feed, given, rule, side)))
    first: dict[int, tuple[bool, int]] = {}
    for snapshot, number, form in found:
        first[form.code] = min(first.get(form.code, (True, number)), (snapshot, number))
    # Of one type the form of snapshots is tried first: that is what a book sent anew is.
    found.sort(key=lambda each: (first[each[2].code], not each[0], each[1]))
    return [form for _, _, form in found]
