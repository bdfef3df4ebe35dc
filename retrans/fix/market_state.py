"""The books of a channel, built from its published messages: the source of snapshots.

A `MarketState` takes W and X messages in the order of their numbers and keeps, by security, the
entries that are in force: of a W its own, of an X what New, Change, Delete leave. An entry is known
by MDEntryID (278); else by its price level (1023), where later levels move when one is inserted or
removed; else by type and price. Of types that are no book, such as trades, the last entry is kept,
whatever its MDEntryID; what changes or deletes an earlier one changes nothing.
A change that makes an order dearer, cheaper or larger puts it behind the others (price-time
priority), so that a snapshot has the orders of a price in their priority.

Entries are kept as text: a snapshot is their texts one behind the other, and lacks nothing that was
published. `replay.translation.fix_book` makes a `Book` of them.

Promises: nothing in a published message makes it raise; what does not fit is counted in `problems`.
Where messages are missing (`lost`), or there was no room, a security's state is not known until a W
brings it: `knows` says so.
"""

from collections import Counter
from decimal import Decimal

from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.market_entries import (
    ACTIONS,
    ALL_SECURITIES,
    BID,
    CHANGE,
    DELETE,
    DELETE_THRU,
    EMPTY_BOOK,
    MESSAGE_FIELDS_MAX,
    NEW,
    OFFER,
    OVERLAY,
    Pairs,
    decimal_of,
    name_of,
    split,
)

#: Most securities of a channel: more than any exchange lists on one.
SECURITIES_MAX = 100_000
#: Most entries of all securities: some hundred MB.
ENTRIES_MAX = 1 << 20

_BOOKS = (BID, OFFER)
#: Tags that an entry of X has and one of W has not: MDUpdateAction, DeleteReason, MDSubBookType,
#: MarketDepth, MDStreamID, states of the instrument; the instrument, its underlyings and legs. Then
#: what follows the entries: the queue's fields, Signature.
X_ONLY = frozenset((
    279, 285, 1173, 264, 1500, 291, 292,
    55, 65, 48, 22, 454, 455, 456, 460, 461, 1151, 167, 762, 200, 541, 1079, 201, 202, 947, 206,
    231, 969, 996, 1147, 207, 106, 348, 349, 107, 350, 351, 223, 470, 864, 865, 866, 867, 868,
    711, 311, 309, 305, 555, 600, 602, 603, 623, 624,
    813, 814, 815, 812, 93, 89,
))  # fmt: skip
#: Positions of an entry among others, which change without a message: MDPriceLevel,
#: MDEntryPositionNo. The first is encoded anew.
_POSITIONS = frozenset((1023, 290))


class Entry:
    """An entry in force: its id, type, price and size (b"": none), and its text."""

    __slots__ = ("id", "price", "size", "text", "type")

    def __init__(self, said: dict[int, bytes], pairs: Pairs, before: "Entry | None") -> None:
        self.id: bytes = said.get(278, before.id if before else b"")
        self.type: bytes = said.get(269, before.type if before else b"")
        self.price: bytes = said.get(270, before.price if before else b"")
        self.size: bytes = said.get(271, b"")
        text = b"269=%b\x01" % self.type
        # A change may leave out unchanged fields: the type, the price, the id.
        for tag, value in ((278, self.id), (270, self.price)):
            text += b"%d=%b\x01" % (tag, value) if value else b""
        self.text = text + b"".join(
            b"%d=%b\x01" % (tag, value)
            for tag, value in pairs
            if tag not in X_ONLY and tag not in _POSITIONS and tag not in (269, 278, 270, 280)
        )


class SecurityState:
    """The entries of one security in force: `entries` by id, price or type, `levels` by type.

    `types` has the type of each entry that is kept as the last of its type, by MDEntryID.
    """

    __slots__ = ("entries", "instrument", "levels", "name", "types")

    def __init__(self, name: bytes, instrument: bytes) -> None:
        self.name = name
        self.instrument = instrument
        self.entries: dict[tuple[bytes, ...], Entry] = {}
        self.levels: dict[bytes, list[Entry]] = {}
        self.types: dict[bytes, bytes] = {}

    @property
    def count(self) -> int:
        """The number of entries in force."""
        return len(self.entries) + sum(len(each) for each in self.levels.values())

    def clear(self) -> None:
        """Remove all entries."""
        self.entries.clear()
        self.levels.clear()
        self.types.clear()

    def remove(self, key: tuple[bytes, ...]) -> Entry | None:
        """Remove and return an entry; None where there is none."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.types.pop(entry.id, None)
        return entry

    def standing(self) -> list[tuple[Entry, int]]:
        """Return all entries with their level (0: none), those of a price in their priority."""
        found = [(entry, 0) for entry in self.entries.values()]
        for type in sorted(self.levels):
            found += [(entry, at) for at, entry in enumerate(self.levels[type], 1)]
        return found

    def texts(self, types: tuple[bytes, ...] = (), depth: int = 0) -> list[bytes]:
        """Return the texts of entries of `types` (none: all), the best `depth` prices (0: all)."""
        standing = [each for each in self.standing() if not types or each[0].type in types]
        if depth:
            standing = _best(standing, depth)
        return [
            entry.text + b"1023=%d\x01" % level if level else entry.text
            for entry, level in standing
        ]


def _best(standing: list[tuple[Entry, int]], depth: int) -> list[tuple[Entry, int]]:
    """Return the entries at the best `depth` prices of each side, and those of no side."""
    kept: dict[bytes, set[Decimal]] = {}
    for side in (BID, OFFER):
        prices = {price_of(entry) for entry, _ in standing if entry.type == side}
        kept[side] = set(sorted(prices, reverse=side == BID)[:depth])
    return [
        each
        for each in standing
        if each[0].type not in kept or price_of(each[0]) in kept[each[0].type]
    ]


def price_of(entry: Entry) -> Decimal:
    """Return the entry's price; 0 where it has none that can be read."""
    return decimal_of(entry.price) or Decimal(0)


class MarketState:
    """The books of one channel.

    number      the last message contained; 0: none
    securities  state by Symbol, or by SecurityID where there is no Symbol
    problems    counts of what did not fit, by name
    levels_max  most levels of a book by price level: more drop out without a Delete (0: no limit)
    """

    def __init__(self, *, levels_max: int = 0, entries_max: int = ENTRIES_MAX) -> None:
        self.number = 0
        self.securities: dict[bytes, SecurityState] = {}
        self.problems: Counter[str] = Counter()
        self.entries = 0
        self._levels_max = levels_max
        self._entries_max = entries_max
        self._whole = True
        self._known: set[bytes] = set()
        self._unknown: set[bytes] = set()

    def clear(self, whole: bool = True) -> None:
        """Forget everything; `whole`: a new sequence epoch begins, and nothing is missing."""
        self.number = self.entries = 0
        self.securities.clear()
        self._known.clear()
        self._unknown.clear()
        self._whole = whole

    def lost(self) -> None:
        """Record that messages are missing: no state is known any more."""
        self._whole = False
        self._known.clear()
        self.problems["lost"] += 1

    @property
    def whole(self) -> bool:
        """Return whether the state of every security is known."""
        return self._whole and not self._unknown

    def knows(self, security: bytes) -> bool:
        """Return whether the state of this security is known."""
        return security in self._known or (self._whole and security not in self._unknown)

    def contents(self) -> dict[bytes, list[bytes]]:
        """Return the texts of the entries in force, by security; equal books have equal texts."""
        return {
            name: texts for name, each in sorted(self.securities.items()) if (texts := each.texts())
        }

    def apply(self, data: bytes, number: int) -> None:
        """Apply the message with this number; one that cannot be read counts as lost."""
        self.number = number
        try:
            found = fields(data, MESSAGE_FIELDS_MAX)
        except FixError:
            self.problems["unreadable"] += 1
            self.lost()
            return
        if found[0][1] in (b"W", b"X"):
            self._entries(found, found[0][1] == b"W")

    def _entries(self, found: Pairs, full: bool) -> None:
        root, entries = split(found)
        state = self._security(root)
        if full and state is not None:
            self._begin(state)
        for pairs in entries:
            said = dict(pairs)
            # An entry that names no instrument has that of the one before it.
            if name_of(said):
                state = self._security(said)
            if state is None:
                self.problems["no_security"] += 1
            else:
                self._entry(state, said, pairs, NEW if full else said.get(279, b""))

    def _security(self, said: dict[int, bytes]) -> SecurityState | None:
        name = name_of(said)
        state = self.securities.get(name)
        if state is None and name:
            if len(self.securities) >= SECURITIES_MAX:
                self.problems["no_room"] += 1
                self._whole = False
                return None
            instrument = b"".join(
                b"%d=%b\x01" % (tag, said[tag]) for tag in (55, 48, 22) if tag in said
            )
            if 55 not in said:
                instrument = b"55=%b\x01" % ALL_SECURITIES + instrument
            state = self.securities[name] = SecurityState(name, instrument)
        return state

    def _begin(self, state: SecurityState) -> None:
        """Clear a security's entries at a W, which has all of them; its state is known."""
        self.entries -= state.count
        state.clear()
        self._known.add(state.name)
        self._unknown.discard(state.name)

    def _entry(
        self, state: SecurityState, said: dict[int, bytes], pairs: Pairs, action: bytes
    ) -> None:
        before = state.count
        type = said.get(269, b"")
        if type == EMPTY_BOOK:
            state.clear()
        elif action not in ACTIONS:
            self.problems["unknown_action"] += 1
        elif action in (NEW, OVERLAY) and self.entries >= self._entries_max:
            self.problems["no_room"] += 1
            self._forget(state)
        elif 278 not in said and 280 not in said and 1023 in said:
            self._level(state, said, pairs, action)
        else:
            self._keyed(state, said, pairs, action)
        self.entries += state.count - before

    def _forget(self, state: SecurityState) -> None:
        """Mark a security's state as unknown, as there is no room for its entries."""
        self._unknown.add(state.name)
        self._known.discard(state.name)

    def _keyed(
        self, state: SecurityState, said: dict[int, bytes], pairs: Pairs, action: bytes
    ) -> None:
        """Apply an entry that is known by its id, its price, or its type."""
        id, key = _key(state, said, action)
        before = state.entries.get(key)
        is_last = len(key) == 2 and key[0] not in _BOOKS
        if is_last and action != NEW and id and before is not None and id != before.id:
            return  # of an entry before the last one
        if action == DELETE:
            if state.remove(key) is None:
                self.problems["unknown_entry"] += 1
            return
        if action == CHANGE and before is None:
            self.problems["unknown_entry"] += 1
        entry = Entry(said, pairs, before if action == CHANGE else None)
        if not entry.type:
            self.problems["no_type"] += 1
            return
        target = (entry.id,) if entry.id and not is_last else key
        if is_last or before is None or target != key or not _keeps_priority(before, entry):
            state.remove(key)
        state.entries[target] = entry
        if is_last and entry.id:
            state.types[entry.id] = entry.type

    def _level(
        self, state: SecurityState, said: dict[int, bytes], pairs: Pairs, action: bytes
    ) -> None:
        """Apply an entry that is known by its price level."""
        levels = state.levels.setdefault(said.get(269, b""), [])
        text = said[1023]
        at = int(text) - 1 if text.isdigit() and len(text) < 10 else -1
        there = 0 <= at < len(levels)
        if at < 0 or not (there or (action in (NEW, OVERLAY) and at == len(levels))):
            self.problems["unknown_level"] += 1
        elif action == NEW:
            levels.insert(at, Entry(said, pairs, None))
            if self._levels_max:
                del levels[self._levels_max :]
        elif action in (CHANGE, OVERLAY):
            before = levels[at] if there and action == CHANGE else None
            levels[at : at + 1] = [Entry(said, pairs, before)]
        elif action == DELETE:
            del levels[at]
        else:
            del levels[slice(at + 1) if action == DELETE_THRU else slice(at, None)]


def _key(
    state: SecurityState, said: dict[int, bytes], action: bytes
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the id of the entry that is meant, b"" for none, and its key.

    The id is MDEntryID, or MDEntryRefID where another entry is changed. The key is the id; in a
    book, where there is no id, type and price; of other types the type.
    """
    id = said.get(278, b"")
    if action != NEW:
        id = said.get(280, id)
    type = said.get(269, b"")
    if not type and (id,) not in state.entries:
        type = state.types.get(id, b"")
    if type and type not in _BOOKS:
        return id, (type, b"")
    return id, (id,) if id else (type, said.get(270, b""))


def _keeps_priority(before: Entry, after: Entry) -> bool:
    """Return whether a changed order keeps its priority: same price, and not larger."""
    was, now = ((decimal_of(each.price), decimal_of(each.size)) for each in (before, after))
    if was[0] != now[0]:
        return False
    return was[1] is None or now[1] is None or now[1] <= was[1]
