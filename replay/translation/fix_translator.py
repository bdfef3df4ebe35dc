"""Book messages of a binary feed as FIX Market Data: W and X, with exact prices.

A `FixTranslator` is given the packets of a binary feed in their order and answers with FIX messages
that have no number yet: `fixcast`'s publisher, or another sender, numbers them. Books made of the
FIX messages (`retrans.fix.market_state`, `replay.translation.fix_book`) are those of the binary
feed, message by message, the priority of orders included.

  binary                              FIX
  an order, or a level, that is new   X, New; an order with MDEntryID (278)
  one that changes                    X, Change; Delete and New where its side changes
  one that goes                       X, Delete
  all of a symbol that goes           W with an empty book (MDEntryType J)
  a symbol's whole book               W
  a trade                             X, New, MDEntryType 2

A binary message about no book and no trade gives nothing, and is counted by its type; what
cannot be (an order that goes and was not there) gives nothing, and is counted by name, as books
count it. `BOOK_FEEDS` are the feeds whose messages are understood. Sans-IO; a decode and an
encoding in Python a message, some ten thousand a second: for conversions and tests, not for lines.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.fix.encode import Value, encode
from feedhandler.codecs.fix.market_entries import utc_text
from feedhandler.codecs.prices import Price
from feedhandler.codecs.reference_data import ReferenceData

#: Orders and levels that stand, over all symbols, as many as a `Market` holds.
STANDING_MAX = 1 << 20
_NEW, _CHANGE, _DELETE = "0", "1", "2"
_BID, _OFFER, _TRADE, _EMPTY = "0", "1", "2", "J"
_SIDES = {"B": _BID, "1": _BID, "S": _OFFER, "2": _OFFER}

Entry = list[tuple[int, Value]]
#: A translator, a record, its symbol: the messages, each as type and entries.
Rule = Callable[["FixTranslator", Any, str], Iterator[tuple[str, list[Entry]]]]


class FixTranslator:
    """Translates one feed's packets; `counts` has what gave no message, by name.

    `standing`: by symbol the sides of what stands, by order or by side and price. Raises
    `UsageError` for a feed that is not one of `BOOK_FEEDS`.
    """

    def __init__(self, feed: Feed) -> None:
        if feed.name not in BOOK_FEEDS:
            raise UsageError(
                f"{feed.name} cannot be translated to FIX", f"known: {', '.join(BOOK_FEEDS)}"
            )
        self.feed = feed
        self.counts: Counter[str] = Counter()
        self.standing: dict[str, dict[object, str]] = {}
        self._rules = BOOK_FEEDS[feed.name]
        self._known = ReferenceData(feed)
        self._room = STANDING_MAX
        #: Price and size of orders whose messages do not repeat them.
        self._resting: dict[tuple[str, object], tuple[Price, int]] = {}
        #: Symbols met so far in a retransmission of orders; None: there is none.
        self._again: set[str] | None = None

    def packet(self, data: bytes, day: date | None = None) -> list[bytes]:
        """Translate a packet to FIX messages. Raises `BadPacket` where it is none."""
        packet = self.feed.decode_packet(data, day, known=self._known)
        found = []
        for label, symbol, record in zip(
            packet.types, packet.symbols, packet.messages, strict=True
        ):
            rule = self._rules.get(label)
            if rule is None:
                self.counts[f"type_{label}"] += 1
                continue
            name = self.feed.symbol_text(symbol)
            for type, entries in rule(self, record, name):
                found.append(self._message(type, name, entries, record))
        return found

    def _message(self, type: str, symbol: str, entries: list[Entry], record: Any) -> bytes:
        """Encode a message without a number. X has the symbol in each entry, W before them."""
        body: list[tuple[int, Value]] = [(35, type)]
        if time_ns := getattr(record, "event_time_ns", None):
            body.append((60, utc_text(time_ns).decode()))
        if type == "W":
            return encode([*body, (55, symbol), (268, [list(entry) for entry in entries])])
        named = [[*entry[:2], (55, symbol), *entry[2:]] for entry in entries]
        return encode([*body, (268, named)])

    # -- what stands ----------------------------------------------------------------------------

    def put(
        self, symbol: str, key: object, side: str, rest: Entry, again: bool = False
    ) -> list[Entry]:
        """Return the entries that add or change `key` on `side`, with the fields `rest`.

        `again`: an existing entry is deleted and added anew, at the back of its queue. Returns
        none, and counts it, where `STANDING_MAX` entries are kept."""
        before = self.standing.get(symbol, {}).get(key)
        if before is None and not self._room:
            self.counts["full"] += 1
            return []
        entries: list[Entry] = []
        if before is not None and (again or before != side):
            entries += self.delete(symbol, key)
            before = None
        if before is None:
            self._room -= 1
        self.standing.setdefault(symbol, {})[key] = side
        action = _NEW if before is None else _CHANGE
        entries.append([(279, action), (269, side), *rest])
        return entries

    def delete(self, symbol: str, key: object, rest: Entry | None = None) -> list[Entry]:
        """Return the entries that delete `key`; none, and counted, where it is unknown."""
        standing = self.standing.get(symbol, {})
        side = standing.pop(key, None)
        self._resting.pop((symbol, key), None)
        if side is None:
            self.counts["unknown_entry"] += 1
            return []
        self._room += 1
        if not standing:
            del self.standing[symbol]
        return [[(279, _DELETE), (269, side), *(_id(key) if rest is None else rest)]]

    def clear(self, symbol: str) -> None:
        """Remove all entries of the symbol."""
        gone = self.standing.pop(symbol, {})
        self._room += len(gone)
        for key in gone:
            self._resting.pop((symbol, key), None)

    def rest(
        self, symbol: str, key: int, side: str, price: Price, size: int, again: bool = False
    ) -> list[Entry]:
        """Put an order whose later messages do not repeat price or size; else as `put`."""
        if not price.known or not size:
            self.counts["no_volume" if price.known else "no_scale"] += 1
            return []
        entries = self.put(
            symbol, key, side, [(278, str(key)), (270, _price(price)), (271, size)], again
        )
        if entries:
            self._resting[symbol, key] = price, size
        return entries

    def order(self, symbol: str, key: int) -> tuple[str, Price, int] | None:
        """Return side, price and size of a resting order; None, and counted, if unknown."""
        found = self._resting.get((symbol, key))
        if found is None:
            self.counts["unknown_entry"] += 1
            return None
        return self.standing[symbol][key], *found

    def retransmission(self, begins: bool) -> None:
        """Begin or end a retransmission of orders."""
        self._again = set() if begins else None

    def begins_again(self, symbol: str) -> bool:
        """Return whether this is the symbol's first order in a retransmission of orders."""
        if self._again is None or symbol in self._again:
            return False
        self._again.add(symbol)
        return True


def _id(key: object) -> Entry:
    return [(278, str(key))]


def _price(price: Price) -> Value:
    """Return the price with all its decimals. Raises `UsageError` while its scale is unknown."""
    return price.decimal


# -- euronext-utp-md -----------------------------------------------------------------------------


def _utp_order(to: FixTranslator, order: Any, symbol: str) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 230: an order comes, changes, goes, is sent again; or the book is cleared."""
    action = order.action_type
    key = f"{order.order_date}-{order.order_id}"
    if action == "F" or (action == "Y" and to.begins_again(symbol)):
        to.clear(symbol)
        yield "W", [[(269, _EMPTY)]]
    if action == "D":
        if entries := to.delete(symbol, key):
            yield "X", entries
    elif action in ("A", "M", "Y"):
        side = _SIDES.get(order.side)
        if side is None or not order.volume:
            to.counts["no_volume" if side else "odd_side"] += 1
            return
        rest: Entry = [(278, key), (270, _price(order.price)), (271, order.volume)]
        if entries := to.put(symbol, key, side, rest, again=action != "M"):
            yield "X", entries
    elif action != "F":
        to.counts["odd_action"] += 1


def _utp_delimiter(to: FixTranslator, delimiter: Any, _: str) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 231: a retransmission of orders begins or ends."""
    to.retransmission(delimiter.retransmission_indicator == "S")
    yield from ()


def _utp_trade(_: FixTranslator, trade: Any, symbol: str) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 240: a trade."""
    yield "X", [_trade(trade.price, trade.volume, trade.trade_id_number)]


def _trade(price: Price, size: int, id: int) -> Entry:
    return [(279, _NEW), (269, _TRADE), (270, _price(price)), (271, size), (1003, str(id))]


# -- iex-deep ------------------------------------------------------------------------------------


def _iex_level(side: str) -> Rule:
    """Make the rule for a price level of `side` that has another size (0: deleted)."""

    def rule(to: FixTranslator, level: Any, symbol: str) -> Iterator[tuple[str, list[Entry]]]:
        if entries := _level(to, symbol, side, level.price, level.size):
            yield "X", entries

    return rule


def _level(
    to: FixTranslator, symbol: str, side: str, price: Price, size: int, orders: int = 0
) -> list[Entry]:
    """Return the entries that put a price level, or delete it where its size is 0."""
    key, at = (side, price.decimal), (270, _price(price))
    if not size:
        return to.delete(symbol, key, [at])
    rest: Entry = [at, (271, size)]
    return to.put(symbol, key, side, [*rest, (346, orders)] if orders else rest)


def _iex_trade(_: FixTranslator, trade: Any, symbol: str) -> Iterator[tuple[str, list[Entry]]]:
    """Translate a trade report."""
    yield "X", [_trade(trade.price, trade.size, trade.trade_id)]


# -- nyse-openbook-ultra -------------------------------------------------------------------------


def _openbook_full(to: FixTranslator, full: Any, symbol: str) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 230: all price points of a symbol."""
    to.clear(symbol)
    entries = [entry[1:] for entry in _points(to, full, symbol)]
    yield "W", entries or [[(269, _EMPTY)]]


def _openbook_delta(
    to: FixTranslator, delta: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 231: the price points that changed."""
    if entries := _points(to, delta, symbol):
        yield "X", entries


def _points(to: FixTranslator, change: Any, symbol: str) -> list[Entry]:
    """Return the entries of the price points of an update."""
    entries = []
    for point in change.price_points:
        if side := _SIDES.get(point.side):
            price, size = point.price_numerator, point.volume
            entries += _level(to, symbol, side, price, size, point.num_orders)
        else:
            to.counts["odd_side"] += 1
    return entries


# -- nyse-integrated-xdp -------------------------------------------------------------------------


def _integrated_add(
    to: FixTranslator, order: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 100: an order comes."""
    side = _SIDES.get(order.side)
    if side is None:
        to.counts["odd_side"] += 1
    elif entries := to.rest(symbol, order.order_id, side, order.price, order.volume, again=True):
        yield "X", entries


def _integrated_modify(
    to: FixTranslator, order: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 101: an order has another price or size, and may have lost its priority."""
    if before := to.order(symbol, order.order_id):
        lost = bool(order.position_change)
        if entries := to.rest(
            symbol, order.order_id, before[0], order.price, order.volume, again=lost
        ):
            yield "X", entries


def _integrated_delete(
    to: FixTranslator, order: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 102: an order goes."""
    if entries := to.delete(symbol, order.order_id):
        yield "X", entries


def _integrated_execution(
    to: FixTranslator, trade: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 103: an order trades, in part or whole."""
    entries: list[Entry] = []
    if before := to.order(symbol, trade.order_id):
        side, price, size = before
        if trade.volume < size:
            entries = to.rest(symbol, trade.order_id, side, price, size - trade.volume)
        else:
            entries = to.delete(symbol, trade.order_id)
    if trade.price.known and trade.printable_flag:
        entries.append(_trade(trade.price, trade.volume, trade.trade_id))
    if entries:
        yield "X", entries


def _integrated_replace(
    to: FixTranslator, order: Any, symbol: str
) -> Iterator[tuple[str, list[Entry]]]:
    """Translate 104: an order goes, and another comes on its side."""
    if before := to.order(symbol, order.order_id):
        entries = to.delete(symbol, order.order_id)
        entries += to.rest(symbol, order.new_order_id, before[0], order.price, order.volume, True)
        yield "X", entries


#: By feed the messages about books and trades, by type.
BOOK_FEEDS: dict[str, dict[int | str, Rule]] = {
    "euronext-utp-md": {230: _utp_order, 231: _utp_delimiter, 240: _utp_trade},
    "iex-deep": {"8": _iex_level(_BID), "5": _iex_level(_OFFER), "T": _iex_trade},
    "nyse-integrated-xdp": {
        100: _integrated_add,
        101: _integrated_modify,
        102: _integrated_delete,
        103: _integrated_execution,
        104: _integrated_replace,
    },
    "nyse-openbook-ultra": {230: _openbook_full, 231: _openbook_delta},
}
