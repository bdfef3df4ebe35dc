# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The latest message of every type, symbol and part that is no change of a book, undecoded.

What it is for: the state of a feed beside its books (reference data, quotes kept as messages,
trading states, auctions), for views of it and for snapshots. A *part* is what `conflate_by` names
in the feed's description: a level, an instrument group; of each value of it the latest message is
kept.

Kept by service. At most `messages_max` messages of a service are kept; those beyond are counted in
`refused`. Messages of unknown types, and those shorter than their layout, are counted in
`unknown_types` and `short`, and not kept. A message that opens a snapshot of all of a service takes
away what was kept of it; one that `revokes` others takes those away. Sans-IO.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs.feed_table import MessageIndex

from feedhandler.codecs.book_rules import CHANGES
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.fix_feed import FixFeed
from feedhandler.codecs.layouts import Layout
from feedhandler.codecs.visibility import Readonly

#: Messages kept of one service where nothing else is said: hundreds of times a busy one's.
MESSAGES_MAX = 1 << 20
#: Slots of types that the description does not have, and of those that are left to the books.
_UNKNOWN = cython.declare(cython.ushort, 0)
_IGNORED = cython.declare(cython.ushort, 1)


@cython.cclass
class KeptLayout:
    """How messages of one type are kept: `parts` are (first byte, size) of the fields that
    distinguish parts; `revokes` the types whose messages it takes away."""

    size: Readonly[cython.Py_ssize_t]
    parts: Readonly[list]
    revokes: Readonly[list]
    opens: Readonly[cython.bint]
    has_rules: Readonly[cython.bint]
    first: cython.Py_ssize_t
    behind: cython.Py_ssize_t

    def __init__(self, feed: Feed, ways: "list[Layout]") -> None:
        layout = ways[0]
        self.size = layout.least_size
        fields = [layout.by_name[name] for name in layout.conflate_by]
        self.parts = [(field.at, field.size) for field in fields]
        self.revokes = [feed.layout(name).code for name in layout.revokes]
        # Where one field names the part, its bytes: the usual way, without a list of slices.
        self.first, self.behind = (
            (fields[0].at, fields[0].at + fields[0].size) if len(fields) == 1 else (0, 0)
        )
        rules = feed.book.rules_of(layout.code) if feed.book is not None else []
        self.has_rules = bool(rules)
        self.opens = any(
            rule.does == "snapshot_begin" and rule.all and not rule.when for rule in rules
        )

    @cython.cfunc
    def part_of(self, data: bytes, at: cython.Py_ssize_t) -> bytes:
        """Return the bytes that name the part of the message at `at`."""
        if self.behind:
            return data[at + self.first : at + self.behind]
        return b"".join([data[at + first : at + first + width] for first, width in self.parts])


@cython.cclass
class LatestMessages:
    """The messages of all services of a feed; see the module."""

    messages_max: Readonly[cython.Py_ssize_t]
    refused: Readonly[cython.ulonglong]
    unknown_types: Readonly[cython.ulonglong]
    short: Readonly[cython.ulonglong]
    clears: Readonly[cython.ulonglong]
    opens_snapshots: Readonly[cython.bint]
    layouts: Readonly[dict]
    services: Readonly[dict]
    counts: Readonly[dict]
    ranks: Readonly[dict]
    rules: list
    slots: cython.ushort[::1]

    def __init__(self, feed: Feed, messages_max: int = MESSAGES_MAX) -> None:
        self.messages_max = messages_max
        self.refused = self.unknown_types = self.short = 0
        #: How often a service was cleared.
        self.clears = 0
        self.layouts = {code: KeptLayout(feed, ways) for code, ways in feed.layouts.items()}
        #: Whether a message opens snapshots of all of a service.
        self.opens_snapshots = any(layout.opens for layout in self.layouts.values())
        #: Rules of types by slot; and slots by type.
        self.rules = [None, None]
        # The messages of a FIX feed are of books and states alone.
        slots = numpy.full(65_536, _IGNORED if isinstance(feed, FixFeed) else 0, numpy.uint16)
        for code, layout in self.layouts.items():
            slots[code] = _IGNORED if _is_of_books(feed, code) else len(self.rules)
            self.rules.append(layout)
        self.slots = memoryview(slots)
        self.ranks = _ranks(feed, self.layouts)
        #: By service: by type, then by symbol, and by part where the type has some: the message.
        self.services = {}
        #: Messages kept, by service.
        self.counts = {}

    # -- what comes in ----------------------------------------------------------------------

    def apply_packet(
        self,
        data: bytes,
        start: cython.Py_ssize_t,
        index: MessageIndex,
        skip: cython.Py_ssize_t,
        service: cython.uint,
    ) -> cython.int:
        """Take the messages of the packet at `start`, but for the first `skip`."""
        i: cython.Py_ssize_t
        for i in range(skip, index.count):
            if self.slots[index.types[i]] != _IGNORED:
                self.apply_message(
                    data, start + index.offsets[i], index.sizes[i], index.types[i],
                    index.symbols[i], service,
                )  # fmt: skip
        return 0

    def apply_message(
        self,
        data: bytes,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        code: cython.ushort,
        symbol: cython.ulonglong,
        service: cython.uint,
    ) -> cython.int:
        """Take the message of `size` bytes at `at`; `symbol` as the scanner's index has it."""
        slot: cython.ushort = self.slots[code]
        if slot == _IGNORED:
            return 0
        if slot == _UNKNOWN:
            self.unknown_types += 1
            return 0
        layout: KeptLayout = self.rules[slot]
        if size < layout.size:
            self.short += not layout.has_rules  # else the books' normaliser counts it
            return 0
        if layout.opens:
            return self.clear(service)
        kept: dict = self.services.get(service)
        if kept is None:
            kept = self.services[service] = {}
            self.counts[service] = 0
        for other in layout.revokes:
            self.counts[service] -= len(self._messages(kept, other))
            kept.pop(other, None)
        latest: dict = kept.get(code)
        if latest is None:
            latest = kept[code] = {}
        key: object = symbol
        if layout.parts:
            whole: dict = latest
            latest = whole.get(symbol)
            if latest is None:
                latest = whole[symbol] = {}
            key = layout.part_of(data, at)
        before: cython.Py_ssize_t = len(latest)
        latest[key] = data[at : at + size]
        if len(latest) > before:
            if self.counts[service] >= self.messages_max:
                del latest[key]
                if layout.parts and before == 0:
                    del whole[symbol]
                self.refused += 1
            else:
                self.counts[service] += 1
        return 0

    def clear(self, service: cython.uint) -> cython.int:
        """Take away what is kept of a service."""
        self.services.pop(service, None)
        self.counts.pop(service, None)
        self.clears += 1
        return 0

    # -- what is kept -----------------------------------------------------------------------

    def keeps(self, code: int) -> bool:
        """Return whether messages of a type of the feed are kept, and not left to the books."""
        return bool(self.slots[code] > _IGNORED)

    def symbols_of(self, code: int) -> list[int]:
        """Return the symbols of which messages of a type are kept."""
        return [symbol for kept in self.services.values() for symbol in kept.get(code, ())]

    def of_symbol(self, code: int, symbol: int) -> list[bytes]:
        """Return the messages of a type about a symbol, of each part one."""
        found: list[bytes] = []
        for kept in self.services.values():
            message = kept.get(code, {}).get(symbol)
            if isinstance(message, dict):
                found += message.values()
            elif message is not None:
                found.append(message)
        return found

    @cython.cfunc
    def _messages(self, kept: dict, code) -> list:
        """Return the messages of a type, those of each symbol together."""
        found: list = []
        for message in kept.get(code, {}).values():
            if isinstance(message, dict):
                found.extend(message.values())
            else:
                found.append(message)
        return found

    def snapshot(self, service: int) -> list[bytes]:
        """Return the messages that carry what is kept: reference data first, in the order of a
        session's, then the other types by number; of each type the first one first."""
        kept = self.services.get(service, {})
        ordered = sorted(kept, key=self.ranks.__getitem__)
        return [message for code in ordered for message in self._messages(kept, code)]

    def canonical(self, service: int) -> list[bytes]:
        """Return the messages kept of a service in an order that does not depend on how they
        came."""
        kept = self.services.get(service, {})
        found = []
        for code in sorted(kept):
            for _, message in sorted(kept[code].items()):
                several = isinstance(message, dict)
                found += [part for _, part in sorted(message.items())] if several else [message]
        return found


def _is_of_books(feed: Feed, code: int) -> bool:
    """Return whether messages of a type change books, or mark where they are sent anew."""
    rules = feed.book.rules_of(code) if feed.book is not None else []
    return any(
        rule.does in CHANGES
        or rule.does == "snapshot_end"
        or (rule.does == "snapshot_begin" and not rule.all)
        for rule in rules
    )


def _ranks(feed: Feed, layouts: dict[int, KeptLayout]) -> dict[int, tuple[int, int]]:
    """Return the order of types in a snapshot: beginnings of reference data, which revoke its end;
    the data; its end; the others."""
    revoked = {code for layout in layouts.values() for code in layout.revokes}

    def rank(code: int) -> int:
        if layouts[code].revokes:
            return 0
        if code in feed.references:
            return 1
        return 2 if code in revoked else 3

    return {code: (rank(code), code) for code in layouts}
