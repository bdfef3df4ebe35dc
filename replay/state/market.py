# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""A market's state, rebuilt from any stream: order books, trades, quotes, states, names, indices.

What it is for: receivers of a feed that need its present state. The simulated
exchange cuts its snapshots from a `Market`, the tests compare one market with another, and a user
hands it what `feedhandler.subscribe` gives.

What it holds, separately for each service:

* order books: every resting order's latest message (230), in the order of their priority. An order
  is known by symbol, order date and order number. One that changes its price or grows goes to the
  back of its level's queue, one that shrinks keeps its priority.
* of every other type the latest message by symbol, and where one symbol has several, by part:
  quotes (140) by level, class states and timetables (516, 539) by instrument group, index
  compositions (548) by instrument. Sent again they are what they were.
* whether reference data has begun (550) and ended (551).

Promises. `snapshot(service)` gives messages from which a fresh market reaches an equal
`digest(service)`, the priority in every queue included; digests are equal exactly where states are.
Nothing in a stream makes it raise: what does not fit is counted by name in `problems`, see
`market_problems`. It holds at most `entries_max` orders and messages a service.

What it leaves to others: order and completeness of the stream. A packet that comes twice or is
missing shows in `problems` at best. Decoding waits until a view is read (`market_views`): a book is
built the first time it is asked for, and kept up to date from then on.

Snapshots. A refresh packet sequence may be handed to `apply` as it came, compressed or not: message
580 clears the service, 581 changes nothing. A subscriber's messages go to `take`, which clears a
service when the quality message with reason `snapshot-begin` says so, and some of its books when
one with reason `books-begin` does; there 580 is only a message.
A sequence reset is the first packet of a trading day and clears its service (`clears_on_reset`).

What message 231's RetransmissionIndicator holds is not public. Here `S` begins a retransmission of
orders (ActionType Y) and `E` ends it; in between, the first order of a symbol clears its book.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import cython
import msgspec
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs import scanner as scan
from cython.cimports.feedhandler.codecs.scanner import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.replay.state.market_orders import (
    OrderLayout,
    Orders,
    Resting,
    read_uint,
)

from feedhandler.codecs import scanner
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.loader import load_feed
from feedhandler.replay.state.book import Book
from feedhandler.replay.state.market_views import Books, Latest, Names, Quotes

#: Orders and messages kept of one service: hundreds of times a busy one's, some hundred MB at most.
ENTRIES_MAX = 1 << 20

#: What is done with a message of a type.
KEEP, ORDER, DELIMITER, REFERENCE_START, REFERENCE_END, REFRESH_START, REFRESH_END = range(7)
_C_KEEP = cython.declare(cython.int, KEEP)
_C_DELIMITER = cython.declare(cython.int, DELIMITER)
_C_REFERENCE_START = cython.declare(cython.int, REFERENCE_START)
_C_REFERENCE_END = cython.declare(cython.int, REFERENCE_END)
_C_REFRESH_START = cython.declare(cython.int, REFRESH_START)

#: Message types that are more than their latest message, by the name of their layout.
_KINDS = {
    "order_update": ORDER,
    "order_book_delimiter": DELIMITER,
    "start_reference_data": REFERENCE_START,
    "end_reference_data": REFERENCE_END,
    "start_refresh": REFRESH_START,
    "end_refresh": REFRESH_END,
}
#: Types of which one symbol has several: the field that tells them apart.
_PARTS = {
    "quote": "QuoteNumber",
    "class_state": "InstrumentGroupCode",
    "session_timetable": "InstrumentGroupCode",
    "index_portfolio": "ISIN",
}
#: ActionType's characters, and RetransmissionIndicator's.
_ADD, _MODIFY = cython.declare(cython.int, 65), cython.declare(cython.int, 77)
_DELETE, _CLEAR = cython.declare(cython.int, 68), cython.declare(cython.int, 70)
_AGAIN = cython.declare(cython.int, 89)
_START, _END = cython.declare(cython.int, 83), cython.declare(cython.int, 69)
_NO_SYMBOL = cython.declare(cython.ulonglong, scanner.NO_SYMBOL)


@cython.final
@cython.cclass
class ServiceState:
    """One service. `orders` by symbol; `latest` by type, then symbol, then, where the type has
    parts, by part. `again`: the symbols met so far in a retransmission of orders, else None; while
    books are told anew it is put by in `held_again`."""

    orders = cython.declare(dict, visibility="readonly")
    latest = cython.declare(dict, visibility="readonly")
    again = cython.declare(set, visibility="readonly")
    held_again = cython.declare(set, visibility="readonly")
    entries = cython.declare(cython.Py_ssize_t, visibility="readonly")

    def __init__(self) -> None:
        self.orders = {}
        self.latest = {}
        self.again = None
        self.held_again = None
        self.entries = 0


@cython.final
@cython.cclass
class Rule:
    """Rule by which messages of one type are kept; sizes of 0: they have no symbol or no parts."""

    code: cython.int
    kind: cython.int
    size: cython.Py_ssize_t
    symbol_at: cython.Py_ssize_t
    symbol_size: cython.int
    part_at: cython.Py_ssize_t
    part_size: cython.int

    def __init__(self, code: int, kind: int, size: int) -> None:
        self.code, self.kind, self.size = code, kind, size
        self.symbol_at = self.symbol_size = self.part_at = self.part_size = 0


@cython.final
@cython.cclass
class Market:
    """State of every service of a feed with UTP-MD's messages; see the module.

    `feed`: a `Feed`, the built-in `euronext-utp-md` by default. `services`: service number to
    `ServiceState`; `problems`: name to number of times. Views, by symbol over all services, decoded
    when looked at: `books` (`Book`), `trades` (240), `quotes` (140, by level), `states` (505),
    `reference` (553), `indices` (546), `names` (text). Raises `UsageError` for a feed that lacks
    the layouts it needs.
    """

    feed = cython.declare(object, visibility="readonly")
    problems = cython.declare(object, visibility="readonly")
    services = cython.declare(dict, visibility="readonly")
    clears_on_reset = cython.declare(cython.bint, visibility="public")
    entries_max = cython.declare(cython.Py_ssize_t, visibility="readonly")
    table: FeedTable
    header: PacketHeader
    index: MessageIndex
    orders: OrderLayout
    rules: dict
    awaited: dict
    reference_start: cython.int
    reference_end: cython.int
    indicator_at: cython.Py_ssize_t
    delimiter_start: bytes
    delimiter_end: bytes

    def __init__(
        self, feed: Any = None, *, clears_on_reset: bool = True, entries_max: int = ENTRIES_MAX
    ) -> None:
        self.feed = load_feed("euronext-utp-md") if feed is None else feed
        self.problems = Counter()
        self.awaited = {}
        self.services = {}
        self.clears_on_reset = clears_on_reset
        self.entries_max = entries_max
        self.table = self.feed.table
        self.header = PacketHeader()
        self.index = MessageIndex((1 << 8 * min(self.feed.table.count_size, 2)) - 1)
        self.orders = OrderLayout(self.feed)
        self.rules = {code: _rule(ways) for code, ways in self.feed.layouts.items()}
        self.reference_start = self.feed.layout("start_reference_data").code
        self.reference_end = self.feed.layout("end_reference_data").code
        delimiter = self.feed.layout("order_book_delimiter")
        if "retransmission_indicator" not in delimiter.by_name:
            raise UsageError(
                "order_book_delimiter has no retransmission_indicator", "markets know UTP-MD's"
            )
        self.indicator_at = delimiter.by_name["retransmission_indicator"].at
        self.delimiter_start, self.delimiter_end = (
            self.feed.encode_message(delimiter.code, retransmission_indicator=indicator)
            for indicator in "SE"
        )

    # -- what comes in --------------------------------------------------------------------------

    def apply(self, packet: bytes, refresh: bool = True) -> int:
        """Take in one packet of any kind; returns how many messages it brought. A refresh's
        packets are taken as such: message 580 clears the service, unless `refresh` is False."""
        return self._packet(bytes(packet), refresh)

    def apply_message(self, message: bytes, service: int = 0) -> None:
        """Take in one whole message of `service`, as `apply` does the messages of a packet."""
        self._single(bytes(message), service, True)

    def update(self, message: Any) -> None:
        """Take in what `feedhandler.subscribe` gives: packets, batches, single messages, and
        quality messages. Give one market the messages of one feed, and of one link a service: a
        snapshot belongs to the link on which it comes, and clears the service. Raises `UsageError`
        for normalised records."""
        content: str = message.content
        if content == "message":
            self._single(bytes(message.body), message.service, False)
        elif content == "quality":
            self._quality(message)
        elif content in ("packet", "batch"):
            self._packets(bytes(message.body))
        elif content == "records":
            raise UsageError(
                f"this market of {self.feed.name} takes packets and messages, no records",
                "open it with records=True",
            )

    def _quality(self, message: Any) -> None:
        """Apply a quality message: clear where a snapshot or a sequence epoch begins."""
        try:
            quality = message.quality
            reason = quality.get("reason")
        except (msgspec.DecodeError, AttributeError):
            self.problems["bad_message"] += 1
            return
        if reason == "snapshot-begin" or (reason == "reset" and self.clears_on_reset):
            self.clear(message.service)
        elif reason == "books-begin":
            self._begin_books(message.service, quality)
        elif reason == "books-end":
            self._end_books(message.service)

    def _begin_books(self, service: int, quality: dict[str, Any]) -> None:
        """Empty the books of the symbols that are published anew.

        Until the end, orders published again (Y) only add. `through` are the symbols that a
        retransmission of orders under way in the stream has completed."""
        state: ServiceState = self._state(service)
        orders: Orders
        try:
            symbols, through = set(quality["symbols"]), set(quality.get("through", ()))
        except (KeyError, TypeError):
            self.problems["bad_message"] += 1
            return
        self._end_books(service)
        for symbol in symbols:
            orders = state.orders.get(symbol)
            if orders is not None:
                self._empty(state, orders)
        if state.again is not None:
            state.held_again = state.again | through
            state.again = None

    def _end_books(self, service: int) -> None:
        state: ServiceState = self._state(service)
        if state.held_again is not None:
            state.again, state.held_again = state.held_again, None

    def clear(self, service: int) -> None:
        """Remove the state of `service`. Live books are emptied, and stay live."""
        state: ServiceState = self.services.get(service)
        if state is not None:
            self._clear_state(state)

    @cython.cfunc
    def _packets(self, data: bytes) -> cython.int:
        """Apply the packets that are concatenated in `data`."""
        view: cython.const_uchar[::1] = data
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(data)
        size: cython.Py_ssize_t
        while at < end:
            size = scan.frame_length(self.table, view, at, end - at)
            if size < self.table.header_size or size > end - at:
                self.problems["bad_packet"] += 1
                return 0
            self._packet(data if size == end else data[at : at + size], False)
            at += size
        return 0

    @cython.cfunc
    def _packet(self, data: bytes, refresh: cython.bint) -> cython.Py_ssize_t:
        """Apply the messages of one packet, return their number; `refresh`: 580 clears."""
        view: cython.const_uchar[::1] = data
        header: PacketHeader = self.header
        index: MessageIndex = self.index
        i: cython.Py_ssize_t
        verdict: cython.int = scan.parse_header(self.table, view, 0, len(data), header)
        if verdict == kinds.FINE:
            verdict = scan.scan_messages(self.table, view, 0, header, index)
        if verdict == kinds.COMPRESSED:
            try:
                data = self.feed.inflate(data)
            except BadPacket:
                self.problems["bad_packet"] += 1
                return 0
            view = data
            header.length = cython.cast(cython.uint, len(data))
            header.flags = 0
            verdict = scan.scan_messages(self.table, view, 0, header, index)
        if verdict != kinds.FINE:
            self.problems["bad_packet"] += 1
            return 0
        if header.kind == kinds.RESET and self.clears_on_reset:
            self.clear(header.service)
        if index.count == 0:
            return 0
        state: ServiceState = self._state(header.service)
        for i in range(index.count):
            self._message(
                state, data, view, index.offsets[i], index.sizes[i], index.types[i],
                index.symbols[i], refresh,
            )  # fmt: skip
        return index.count

    @cython.cfunc
    def _single(self, data: bytes, service: cython.uint, refresh: cython.bint) -> cython.int:
        """Apply one message that comes without its packet."""
        view: cython.const_uchar[::1] = data
        table: FeedTable = self.table
        size: cython.Py_ssize_t = len(data)
        symbol: cython.ulonglong = _NO_SYMBOL
        if size < table.message_header_size or size != table.message_length_add + cython.cast(
            cython.Py_ssize_t,
            read_uint(view, table.message_length_at, table.message_length_size, table.big_endian),
        ):
            self.problems["bad_message"] += 1
            return 0
        code: cython.int = cython.cast(
            cython.int,
            read_uint(view, table.message_type_at, table.message_type_size, table.big_endian),
        )
        rule: Rule = self.rules.get(code)
        if rule is not None and rule.symbol_size and size >= rule.size:
            symbol = read_uint(view, rule.symbol_at, rule.symbol_size, table.big_endian)
        self._message(self._state(service), data, view, 0, size, code, symbol, refresh)
        return 0

    @cython.cfunc
    @cython.inline
    def _state(self, service: object) -> ServiceState:
        state: ServiceState = self.services.get(service)
        if state is None:
            state = self.services[service] = ServiceState()
        return state

    @cython.cfunc
    def _message(
        self,
        state: ServiceState,
        data: bytes,
        view: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        code: cython.int,
        symbol: cython.ulonglong,
        refresh: cython.bint,
    ) -> cython.int:
        """One message of `size` bytes at `at`."""
        rule: Rule
        if code == self.orders.code and size >= self.orders.size:
            return self._order(state, data, view, at, size, symbol)
        rule = self.rules.get(code)
        if rule is None:
            self.problems["unknown_type"] += 1
        elif size < rule.size:
            self.problems["short_message"] += 1
        elif rule.kind == _C_KEEP:
            self._keep(state, rule, data, view, at, size, symbol)
        elif rule.kind == _C_DELIMITER:
            self._delimiter(state, view[at + self.indicator_at])
        elif rule.kind == _C_REFERENCE_START or rule.kind == _C_REFERENCE_END:
            self._reference(state, rule, data, view, at, size, symbol)
        elif rule.kind == _C_REFRESH_START and refresh:
            self._clear_state(state)
        return 0

    @cython.cfunc
    def _clear_state(self, state: ServiceState) -> cython.int:
        orders: Orders
        watched: dict = {}
        for symbol, orders in state.orders.items():
            orders.clear()
            if orders.live is not None:
                watched[symbol] = orders
        state.orders = watched
        state.latest = {}
        state.again = state.held_again = None
        state.entries = len(watched)
        return 0

    # -- latest messages ------------------------------------------------------------------------

    @cython.cfunc
    def _keep(
        self,
        state: ServiceState,
        rule: Rule,
        data: bytes,
        view: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        symbol: cython.ulonglong,
    ) -> cython.int:
        """Keep the message as the latest of its type, symbol and part."""
        key: object = symbol
        kept: dict = state.latest.get(rule.code)
        whole: dict
        if kept is None:
            kept = state.latest[rule.code] = {}
        if rule.part_size:
            whole = kept
            kept = whole.get(key)
            if kept is None:
                if not self._room(state):
                    return 0
                kept = whole[key] = {}
            if rule.part_size == 1:
                key = view[at + rule.part_at]
            else:
                key = data[at + rule.part_at : at + rule.part_at + rule.part_size]
        if key in kept or self._room(state):
            kept[key] = data[at : at + size]
        return 0

    @cython.cfunc
    @cython.inline
    def _room(self, state: ServiceState) -> cython.bint:
        """Return whether there is room for one more entry; count it, or that there is none."""
        if state.entries >= self.entries_max:
            self.problems["full"] += 1
            return False
        state.entries += 1
        return True

    @cython.cfunc
    def _reference(
        self,
        state: ServiceState,
        rule: Rule,
        data: bytes,
        view: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        symbol: cython.ulonglong,
    ) -> cython.int:
        """550 or 551. A new start takes the old end back; names stay until they are told anew."""
        if rule.kind == _C_REFERENCE_START:
            if state.latest.pop(self.reference_end, None) is not None:
                state.entries -= 1
        elif self.reference_start not in state.latest:
            self.problems["end_without_start"] += 1
        return self._keep(state, rule, data, view, at, size, symbol)

    # -- orders ---------------------------------------------------------------------------------

    @cython.cfunc
    def _delimiter(self, state: ServiceState, indicator: cython.int) -> cython.int:
        """231: a retransmission of orders begins or ends."""
        if indicator == _START:
            state.again = set()
            return 0
        if indicator != _END or state.again is None:
            self.problems["odd_delimiter"] += 1
        if indicator == _END:
            state.again = None
        return 0

    @cython.cfunc
    def _order(
        self,
        state: ServiceState,
        data: bytes,
        view: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        symbol: cython.ulonglong,
    ) -> cython.int:
        """230: an order comes, changes, goes; or the symbol's book is cleared."""
        layout: OrderLayout = self.orders
        action: cython.int = layout.action(view, at)
        key: cython.ulonglong = layout.key(view, at)
        orders: Orders = state.orders.get(symbol)
        if orders is None:
            if action == _CLEAR or not self._room(state):
                return 0
            orders = state.orders[symbol] = Orders(layout, self.awaited.pop(symbol, None))
        if action == _DELETE:
            if key in orders.resting:
                orders.remove(key)
                state.entries -= 1
            else:
                self.problems["unknown_order"] += 1
        elif action == _CLEAR:
            self._empty(state, orders)
        elif action in (_ADD, _MODIFY, _AGAIN):
            if action == _AGAIN and state.again is not None and symbol not in state.again:
                state.again.add(symbol)
                self._empty(state, orders)
            self._put(state, orders, key, action == _MODIFY, layout.read(data, view, at, size))
        else:
            self.problems["odd_action"] += 1
        return 0

    @cython.cfunc
    def _put(
        self,
        state: ServiceState,
        orders: Orders,
        key: cython.ulonglong,
        changes: cython.bint,
        now: Resting,
    ) -> cython.int:
        """Put an order that rests: at its old position where it shrank, else at the back."""
        order: Resting
        if now.side == 0 or now.volume == 0:
            self.problems["no_volume" if now.side else "odd_side"] += 1
            return 0
        order = orders.resting.get(key)
        if changes:
            if order is None:
                self.problems["unknown_order"] += 1
            elif order.side != now.side:
                self.problems["changed_side"] += 1
            elif now.price == order.price and now.volume <= order.volume:
                return orders.shrink(key, order, now)
        elif order is not None:
            self.problems["known_order"] += 1
        if order is not None:
            orders.remove(key)
            state.entries -= 1
        if self._room(state):
            orders.add(key, now)
        return 0

    @cython.cfunc
    def _empty(self, state: ServiceState, orders: Orders) -> cython.int:
        """Take out every order of one symbol."""
        state.entries -= len(orders.resting)
        return orders.clear()

    # -- what goes out --------------------------------------------------------------------------

    def snapshot(self, service: int) -> list[bytes]:
        """Messages from which a fresh market reaches this service's state: reference data, then
        the latest messages, then the orders, each symbol's in its priority."""
        state: ServiceState = self.services.get(service)
        messages: list = []
        if state is None:
            return messages
        for code in sorted(state.latest, key=self._rank):
            for kept in state.latest[code].values():
                if isinstance(kept, dict):
                    messages.extend(kept.values())
                else:
                    messages.append(kept)
        self._all_orders(state, messages)
        return messages

    def orders_of(self, service: int, symbol: int) -> int:
        """Return the number of orders in the symbol's book."""
        state: ServiceState = self.services.get(service)
        orders: Orders = None if state is None else state.orders.get(symbol)
        return 0 if orders is None else len(orders.resting)

    def book_messages(self, service: int, symbol: int) -> list[bytes]:
        """Return the symbol's orders in priority, as ActionType Y, without delimiters."""
        messages: list = []
        state: ServiceState = self.services.get(service)
        orders: Orders = None if state is None else state.orders.get(symbol)
        if orders is not None:
            orders.again(messages)
        return messages

    def through(self, service: int, symbol: int) -> bool:
        """Return whether a retransmission of orders under way has been through the symbol."""
        state: ServiceState = self.services.get(service)
        return state is not None and state.again is not None and symbol in state.again

    def _rank(self, code: int) -> tuple[int, int]:
        """550, then 553, then 551, then the rest by number."""
        rule: Rule = self.rules[code]
        if rule.kind == _C_REFERENCE_START:
            return 0, code
        if rule.kind == _C_REFERENCE_END:
            return 2, code
        return (1 if code in self.feed.references else 3), code

    @cython.cfunc
    def _all_orders(self, state: ServiceState, messages: list) -> cython.int:
        """Append the orders between delimiters to `messages`.

        Where the stream is retransmitting orders itself, the symbols it has completed come last,
        and the end delimiter is left to the stream."""
        orders: Orders
        through: set = set() if state.again is None else state.again
        before: cython.Py_ssize_t = len(messages)
        for symbol, orders in state.orders.items():
            if orders.resting and symbol not in through:
                if len(messages) == before:
                    messages.append(self.delimiter_start)
                orders.again(messages)
        if len(messages) > before:
            messages.append(self.delimiter_end)
        if state.again is not None:
            messages.append(self.delimiter_start)
            for symbol, orders in state.orders.items():
                if symbol in through:
                    orders.again(messages)
        return 0

    def digest(self, service: int) -> str:
        """Compute 32 hexadecimal digits that are equal exactly where a service's states are equal.

        The level totals and the action in an order message are not part of the order's state."""
        state: ServiceState = self.services.get(service)
        orders: Orders
        parts: list = []
        if state is not None:
            for _, kept in sorted(state.latest.items()):
                for _, one in sorted(kept.items()):
                    parts.extend(
                        [part for _, part in sorted(one.items())]
                        if isinstance(one, dict)
                        else [one]
                    )
            for symbol, orders in sorted(state.orders.items()):
                orders.parts(parts)
                if state.again is not None and symbol in state.again and orders.resting:
                    parts.append(b"again")
            parts.append(b"retransmitting" if state.again is not None else b"")
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()

    # -- views ----------------------------------------------------------------------------------

    def book(self, symbol: int) -> Book:
        """Return the symbol's book; its order keys are (order date, order number).

        It is live from now on, also where the symbol has no orders yet."""
        for state in self.services.values():
            orders = state.orders.get(symbol)
            if orders is not None:
                return orders.book()
        return self.awaited.setdefault(symbol, Book())

    @property
    def books(self) -> Mapping[int, Book]:
        """Books by symbol, of the symbols that have had orders."""
        return Books(self)

    @property
    def quotes(self) -> Mapping[int, Any]:
        """Quotes by symbol: a mapping from level (1 the best) to the record of message 140."""
        return Quotes(self, "quote")

    @property
    def trades(self) -> Mapping[int, Any]:
        """The last trade by symbol: the record of message 240, the day's figures in it."""
        return Latest(self, "trade")

    @property
    def states(self) -> Mapping[int, Any]:
        """The state of instruments by symbol: the record of message 505."""
        return Latest(self, "instrument_state")

    @property
    def reference(self) -> Mapping[int, Any]:
        """Reference data by symbol: the record of message 553."""
        return Latest(self, "reference_data")

    @property
    def indices(self) -> Mapping[int, Any]:
        """The latest value of indices by symbol: the record of message 546."""
        return Latest(self, "index_level")

    @property
    def names(self) -> Mapping[int, str]:
        """Names by symbol, from reference data."""
        return Names(self)

    def latest(self, type: int | str) -> Mapping[int, Any]:
        """Return the latest messages of a type (number or layout name) by symbol, as records."""
        return Latest(self, type)


def _rule(ways: list[Any]) -> Rule:
    """Make the rule for messages of a type from its layouts (ascending size)."""
    layout = ways[0]
    rule = Rule(layout.code, _KINDS.get(layout.name, KEEP), layout.size)
    if layout.symbol:
        field = layout.by_name[layout.symbol]
        rule.symbol_at, rule.symbol_size = field.at, field.size
    name = _PARTS.get(layout.name)
    for field in layout.fields:
        if field.wire == name:
            rule.part_at, rule.part_size = field.at, field.size
    return rule
