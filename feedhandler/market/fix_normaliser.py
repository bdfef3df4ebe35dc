# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Market data in FIX normalised to order events: what `normaliser` makes of other feeds' messages.

A full refresh (W) replaces a security's book, an incremental one (X) changes it, a security status
(f) carries a trading state. Where `keeps_terms` is set, SecurityDefinition and
SecurityList (d, y) and their updates (BP, BK) define instruments. An entry is an order where it has
an MDEntryID (278), else a price level: by its position (MDPriceLevel, 1023) or by its price. Bids,
offers and trades have events; entries of other types have none.

Order ids are the MDEntryIDs that are whole numbers; of others a digest in the upper half of the
numbers. Symbols of more than eight bytes are digests, too (`texts` has what they stand for).

A message that cannot be read, and an entry whose action means nothing, are counted in `short`.
Sans-IO.
"""

from decimal import Decimal

import cython
from cython.cimports.feedhandler.codecs.fix_runs import symbol_number
from cython.cimports.feedhandler.market.normaliser import Ladder, Normaliser
from cython.cimports.feedhandler.market.order_table import OrderTable

from feedhandler.codecs.dbn import FLAG_MAYBE_BAD_BOOK, FLAG_SNAPSHOT, UNDEFINED_PRICE
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.market_entries import (
    ACTIONS,
    BID,
    CHANGE,
    DELETE,
    DELETE_FROM,
    DELETE_THRU,
    EMPTY_BOOK,
    MESSAGE_FIELDS_MAX,
    NEW,
    OFFER,
    OVERLAY,
    TRADE,
    decimal_of,
    entry_time_ns,
    name_of,
    split,
)
from feedhandler.codecs.fix_feed import FixFeed, type_code
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.market.fix_definitions import securities, terms_of
from feedhandler.market.normaliser import LADDERS_MAX, ROOM
from feedhandler.market.wire_rules import STATES

#: Levels by position of one side of a book, at most: further ones drop out.
LEVELS_MAX = 1 << 12
#: Digits of an MDEntryID that is its order id, at most: below the digests.
_ID_DIGITS = 18
_FULL = cython.declare(cython.ushort, type_code("W"))
_INCREMENTAL = cython.declare(cython.ushort, type_code("X"))
_STATUS = cython.declare(cython.ushort, type_code("f"))
#: Messages that define instruments, and whether they define several.
_DEFINITIONS = {
    **dict.fromkeys((type_code("d"), type_code("BP")), False),
    **dict.fromkeys((type_code("y"), type_code("BK")), True),
}
_BUY, _SELL = cython.declare(cython.uchar, 1), cython.declare(cython.uchar, 2)
_A, _R = cython.declare(cython.uchar, 65), cython.declare(cython.uchar, 82)
_T = cython.declare(cython.uchar, 84)
_NO_PRICE = cython.declare(cython.longlong, UNDEFINED_PRICE)
_SIZE_MAX = cython.declare(cython.longlong, (1 << 32) - 2)
_LONG = cython.declare(cython.ulonglong, LONG_SYMBOL_BIT)
_SNAPSHOT = cython.declare(cython.uchar, FLAG_SNAPSHOT)
_MAYBE_BAD = cython.declare(cython.uchar, FLAG_MAYBE_BAD_BOOK)
_SIDES = {BID: 1, OFFER: 2}
#: AggressorSide (2446).
_AGGRESSORS = {b"1": 1, b"2": 2}
#: SecurityTradingStatus (326): halt; resume, ready to trade, fast market; pre-open, opening
#: rotation, pre-cross, cross; not available, post-close. Others say nothing of a state.
_STATES = {
    b"2": STATES.index("halted"),
    **dict.fromkeys((b"3", b"17", b"23"), STATES.index("trading")),
    **dict.fromkeys((b"21", b"22", b"24", b"25"), STATES.index("auction")),
    **dict.fromkeys((b"18", b"26"), STATES.index("closed")),
}
_UNITS = Decimal(10**9)
#: Beyond it, prices in 1e-9 do not fit 63 bits.
_PRICE_LIMIT = Decimal(UNDEFINED_PRICE) / _UNITS


@cython.cclass
class FixNormaliser(Normaliser):
    """Order events of a feed that is framed by FIX; see the module, and `Normaliser`."""

    symbol_tag: cython.int

    def __init__(self, feed: FixFeed, orders: OrderTable | None = None, room: int = ROOM) -> None:
        Normaliser.__init__(self, feed, orders, room)
        self.numbers_symbols = True
        self.symbol_tag = feed.symbol_tag

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
        """Append the records of a message, as `Normaliser.message` does."""
        first: cython.Py_ssize_t = self.count
        if at < 0 or size < 0 or at + size > len(data):
            return 0
        defines: cython.bint = False
        if message_type != _INCREMENTAL and message_type != _FULL and message_type != _STATUS:
            self.short += message_type == 0
            defines = self.keeps_terms and message_type in _DEFINITIONS
            if not defines:
                return 0
        self.send_ns = send_ns
        self.received_ns, self.channel = received_ns, channel
        self.sequence = cython.cast(cython.uint, sequence & 0xFFFF_FFFF)
        try:
            found = fields(bytes(data[at : at + size]), MESSAGE_FIELDS_MAX)
        except FixError:
            self.short += 1
            return 0
        if defines:
            return self.define(found, _DEFINITIONS[message_type])
        root, entries = split(found)
        self.stamp(root, {})
        if message_type == _STATUS:
            return self.note_status(root)
        self.append_events(root, entries, message_type == _FULL)
        if self.count > first:
            self.flag_last(first)
        return self.count - first

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def define(self, found: list, is_list: cython.bint) -> cython.int:
        """Note the instruments that a message defines, and what it says of them."""
        self.stamp(dict(found), {})
        for said in securities(found, is_list):
            instrument: cython.uint = self.security_of(said)
            if instrument:
                self.named.append((instrument, self.event_ns))
                self.terms[instrument] = terms_of(said)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def note_status(self, root: dict) -> cython.int:
        """Note the trading state that a security status gives."""
        state = _STATES.get(root.get(326, b""))
        instrument: cython.uint = self.security_of(root)
        if instrument and state is not None:
            self.statuses.append((instrument, state, self.event_ns))
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def stamp(self, root: dict, said: dict) -> cython.int:
        """Set the time of events that follow: the entry's, or else that of sending."""
        time_ns: cython.longlong = entry_time_ns(root, said)
        self.event_ns = self.send_ns
        if time_ns >= 0:
            self.event_ns = time_ns
        return 0

    @cython.cfunc
    @cython.exceptval(4294967295, check=True)
    def security_of(self, said: dict) -> cython.uint:
        """Return the instrument id of the security that fields name; 0 where they name none."""
        name: bytes = said.get(self.symbol_tag) or name_of(said)
        if not name:
            return 0
        symbol: cython.ulonglong = symbol_number(name)
        if symbol >= _LONG and symbol not in self.texts:
            self.texts[symbol] = name.decode("latin-1")
        return self.number_of(symbol)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def append_events(self, root: dict, entries: list, full: cython.bint) -> cython.int:
        """Append the events of a W or an X."""
        self.instrument = self.scope = self.security_of(root)
        self.flags = (_MAYBE_BAD if self.maybe_bad else 0) | (_SNAPSHOT if full else 0)
        if full and self.instrument:
            self.empty_book()
        for pairs in entries:
            said: dict = dict(pairs)
            # An entry that names no instrument has that of the one before it.
            security: cython.uint = self.security_of(said)
            if security:
                self.instrument = self.scope = security
            if self.instrument == 0:
                self.unnamed += 1
            else:
                self.entry(root, said, NEW if full else said.get(279, b""))
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def empty_book(self) -> cython.int:
        """Empty the security's book."""
        self.forget(self.instrument)
        return self.put(_R, 0, 0, _NO_PRICE, 0)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def entry(self, root: dict, said: dict, action: bytes) -> cython.int:
        """Append the events of one entry."""
        kind: bytes = said.get(269, b"")
        side: cython.uchar = _SIDES.get(kind, 0)
        self.stamp(root, said)
        if kind == EMPTY_BOOK:
            return self.empty_book()
        if action not in ACTIONS:
            self.short += 1
            return 0
        if kind == TRADE:
            return self.trade(said, action)
        if kind and side == 0:
            return 0
        if 278 in said or 280 in said:
            return self.by_id(said, action, side)
        if 1023 in said:
            return self.by_position(said, action, side)
        return self.set_level(
            side, self.price_in(said), 0 if action == DELETE else self.size_in(said)
        )

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def trade(self, said: dict, action: bytes) -> cython.int:
        """Append a trade, if it is new."""
        price: cython.longlong = self.price_in(said)
        side: cython.uchar = _AGGRESSORS.get(said.get(2446, b""), 0)
        if action != NEW or price == _NO_PRICE:
            return 0
        return self.put(_T, side, 0, price, self.size_in(said))

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def by_id(self, said: dict, action: bytes, side: cython.uchar) -> cython.int:
        """Add, change or delete an order."""
        own: bytes = said.get(278, b"")
        meant: bytes = own if action == NEW else said.get(280, own)
        order_id: cython.ulonglong = _number_of(meant)
        new_id: cython.ulonglong = _number_of(own) if own else order_id
        slot: cython.Py_ssize_t = self.orders.find(self.scope, order_id)
        price: cython.longlong = self.price_in(said)
        size: cython.uint = self.size_in(said)
        self.unknown_orders += slot < 0 and action in (CHANGE, DELETE)
        if slot >= 0:
            if side == 0:
                side = self.orders.sides[slot]
            if action == CHANGE and 270 not in said:
                price = self.orders.prices[slot]
            if action == DELETE or new_id != order_id:
                self.reduce(order_id, slot, self.orders.sizes[slot])
        if action == DELETE:
            return 0
        if size and price != _NO_PRICE:
            return self.add(new_id, side, price, size)
        # An order without a price or a size is not in the book.
        slot = self.orders.find(self.scope, new_id)
        return 0 if slot < 0 else self.reduce(new_id, slot, self.orders.sizes[slot])

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def by_position(self, said: dict, action: bytes, side: cython.uchar) -> cython.int:
        """Insert, change or remove price levels by position, from 1: the best."""
        text: bytes = said[1023]
        position: cython.Py_ssize_t = int(text) if text.isdigit() and len(text) < 10 else 0
        ladder: Ladder = self.ladders.get((self.instrument, side))
        price: cython.longlong = self.price_in(said)
        size: cython.uint = self.size_in(said)
        if side == 0:
            self.sideless += 1
            return 0
        if ladder is None:
            if len(self.ladders) >= LADDERS_MAX:
                self.orders.refused += 1
                return 0
            ladder = self.ladders[self.instrument, side] = Ladder(self.channel)
        count: cython.Py_ssize_t = len(ladder.prices)
        extends: cython.bint = position == count + 1 and action in (NEW, OVERLAY)
        if position < 1 or (position > count and not extends):
            self.unknown_orders += 1
            return 0
        if action == NEW or extends:
            ladder.prices.insert(position - 1, price)
            ladder.sizes.insert(position - 1, size)
            self.put_level(_A, side, price, size)
            return self.remove_levels(ladder, side, LEVELS_MAX, count + 1)
        if action in (CHANGE, OVERLAY):
            if action == CHANGE and 270 not in said:
                price = ladder.prices[position - 1]
            return self.change_level(ladder, side, position - 1, price, size)
        return self.remove_levels(
            ladder, side,
            0 if action == DELETE_THRU else position - 1,
            count if action == DELETE_FROM else position,
        )  # fmt: skip

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def price_in(self, said: dict) -> cython.longlong:
        """Return an entry's price in 1e-9; `UNDEFINED_PRICE` where it has none that fits."""
        number = decimal_of(said[270]) if 270 in said else None
        if number is None:
            return _NO_PRICE
        if abs(number) >= _PRICE_LIMIT:
            self.unscaled += 1
            return _NO_PRICE
        return int(number * _UNITS)

    @cython.cfunc
    @cython.exceptval(4294967295, check=True)
    def size_in(self, said: dict) -> cython.uint:
        """Return an entry's size in whole units; 0 where it has none."""
        number = decimal_of(said[271]) if 271 in said else None
        if number is None or number <= 0:
            return 0
        if number > _SIZE_MAX:
            self.clamped += 1
            return _SIZE_MAX
        return int(number)


def _number_of(entry_id: bytes) -> int:
    """Return the order id of an MDEntryID."""
    if entry_id.isdigit() and len(entry_id) <= _ID_DIGITS and entry_id[:1] != b"0":
        return int(entry_id)
    return symbol_number(entry_id) | LONG_SYMBOL_BIT
