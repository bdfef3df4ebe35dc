"""Check of a subscriber's ledger against the exchange's: the outcome of every message.

Each message that was sent and that the subscriber asked for has exactly one fate: ok, lost and
announced, refreshed (lost and announced, and then made good by a snapshot), lost unannounced,
corrupt (delivered with other bytes), duplicated, or reordered (it came after a later one of its
service). Beside the fates, deliveries that match nothing sent are phantoms, and messages that were
announced lost and came all the same are counted as contradicted. Only `ok` and announced losses are
what a gateway may do: `CheckReport.clean`.

The order checked is that within a service; services have no order among each other. What was sent
before the announced start of the subscriber's stream is not expected. Where a service's stream
begins with a snapshot, what that snapshot covers is not expected either.

Vectorised: sorting and searching arrays of 64-bit keys, a few seconds for millions of messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.exchange.ledger import Ledger, RecordKind, Records
from feedhandler.retrans.ranges import RangeSet

#: A key is service, sequence, number in so many bits: 64 in all.
SEQUENCE_BITS, NUMBER_BITS = 36, 12
#: How many offenders of each fault a report names.
OFFENDERS_MAX = 5
#: Announced ranges of one service that a check can hold exactly.
ANNOUNCED_RANGES_MAX = 1_000_000

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class Offender(NamedTuple):
    """A message with a fault; `number` is its index in the packet."""

    service: int
    sequence: int
    number: int


@dataclass(frozen=True)
class Selection:
    """Subscription whose ledger is checked: a routing-key pattern and, where given, message types.

    A message is selected if the pattern matches the key of its service (`euronext.104`) or its
    own (`euronext.104.10616`). `names` gives the symbol's word where keys carry names.
    """

    pattern: str = "#"
    types: Sequence[int] = ()
    names: Mapping[int, str] = field(default_factory=dict)

    def mask(self, feed: Feed, messages: Records) -> Mask:
        """Return a mask (bool, one per message) of the selected messages."""
        # A pair of numbers sorts faster as one: the symbol's index among the symbols is short.
        symbols, symbol_index = np.unique(messages["symbol"], return_inverse=True)
        pairs = (messages["service"].astype(np.uint64) << np.uint64(32)) | symbol_index.astype(
            np.uint64
        )
        unique, inverse = np.unique(pairs, return_inverse=True)
        wanted = np.array(
            [
                self._wants(feed, int(pair) >> 32, int(symbols[int(pair) & 0xFFFF_FFFF]))
                for pair in unique
            ],
            bool,
        )
        mask: Mask = wanted[inverse] if len(unique) else np.zeros(0, bool)
        if self.types:
            mask = mask & np.isin(messages["type"], np.array(self.types, np.uint16))
        return mask

    def _wants(self, feed: Feed, service: int, symbol: int) -> bool:
        of_service = [feed.key, str(service)]
        word = self.names.get(symbol) or feed.symbol_text(symbol)
        pattern = self.pattern.split(".")
        return matches(pattern, of_service) or matches(pattern, [*of_service, word])


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a topic pattern matches a key: `*` is one word, `#` any number of them."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(matches(rest, words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and matches(rest, words[1:])


@dataclass
class CheckReport:
    """Counts of one check. The seven fates, `ok` to `reordered`, add up to `expected`."""

    expected: int = 0
    ok: int = 0
    lost_announced: int = 0
    refreshed: int = 0
    lost_unannounced: int = 0
    corrupt: int = 0
    duplicated: int = 0
    reordered: int = 0
    phantom: int = 0
    contradicted: int = 0
    #: Deliveries, as the subscriber's ledger has them.
    delivered: int = 0
    #: Sent, selected, but before the announced start.
    before_start: int = 0
    #: The first few messages with each fault.
    offenders: dict[str, list[Offender]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Return whether nothing happened that a gateway may not do."""
        return not (
            self.lost_unannounced or self.corrupt or self.duplicated or self.reordered
            or self.phantom or self.contradicted
        )  # fmt: skip

    def faults(self) -> Iterator[str]:
        """Yield a line for each kind of fault, with its first offenders."""
        for name, offenders in self.offenders.items():
            positions = ", ".join(f"{o.service}:{o.sequence}.{o.number}" for o in offenders)
            count, fault = getattr(self, name), name.replace("_", " ")
            yield f"{count:,} {fault} (service:packet.message {positions})"


def check(
    feed: Feed, sent: Ledger, received: Ledger, selection: Selection | None = None
) -> CheckReport:
    """Check every message of `sent` that `selection` asks for against `received`.

    Raises `UsageError` for ledgers of another feed and for numbers beyond the keys' bits.
    """
    for ledger in (sent, received):
        if ledger.feed != feed.key:
            raise UsageError(
                f"a ledger of {ledger.feed} cannot be checked as {feed.key}", "name its own feed"
            )
    return _Check(feed, sent.records, received.records, selection or Selection()).report()


class _Check:
    """One check, step by step; arrays are in order of keys unless they say `arrival`."""

    def __init__(self, feed: Feed, sent: Records, received: Records, selection: Selection) -> None:
        kinds = received["kind"]
        self.arrivals = received[kinds <= RecordKind.PACKED]
        self.packed = bool((self.arrivals["kind"] == RecordKind.PACKED).any())
        if self.packed and not (self.arrivals["kind"] == RecordKind.PACKED).all():
            raise UsageError(
                "a ledger of packets and of single messages", "one ledger for each subscription"
            )
        self.counts_messages = feed.counts_messages
        self.starts = _starts(received)
        self.covered = _covered(received[kinds == RecordKind.REFRESHED])
        losses = received[np.isin(kinds, (RecordKind.LOST, RecordKind.WITHDRAWN))]
        self.announced = _ranges(losses, RecordKind.LOST)
        self.withdrawn = _ranges(losses, RecordKind.WITHDRAWN)
        self.result = CheckReport(delivered=len(self.arrivals))
        messages = sent[sent["kind"] == RecordKind.MESSAGE]
        self.expected = self._expected(messages[selection.mask(feed, messages)])

    def report(self) -> CheckReport:
        keys, order = self._sorted_keys()
        self.expected = self.expected[order]
        arrival_keys = self._keys(self.arrivals, self.arrivals["number"])
        index = np.searchsorted(keys, arrival_keys)
        found = np.zeros(len(index), bool)
        inside = index < len(keys)
        found[inside] = keys[index[inside]] == arrival_keys[inside]
        self._note("phantom", self.arrivals, ~found)
        index = index[found]
        self._fates(index, self.arrivals[found])
        return self.result

    def _expected(self, selected: Records) -> Records:
        """Return the expected messages: none from before a service's announced start."""
        late = np.zeros(len(selected), bool)
        for service, start in self.starts.items():
            own = self._own_numbers(selected)
            late |= (selected["service"] == service) & (own < start)
        self.result.before_start = int(late.sum())
        self.result.expected = len(selected) - self.result.before_start
        return selected[~late]

    def _fates(self, index: NDArray[np.intp], arrivals: Records) -> None:
        """Count each expected message's outcome; arrival i is expected message `index[i]`."""
        expected = self.expected
        times = np.bincount(index, minlength=len(expected))
        wrong = np.zeros(len(expected), bool)
        wrong[index[arrivals["hash"] != expected["hash"][index]]] = True
        disordered = np.zeros(len(expected), bool)
        disordered[self._overtaken(index, arrivals["service"])] = True
        lost = times == 0
        announced = self._lies_in(self.announced, expected)
        disordered &= ~self._lies_in(self.withdrawn, expected)
        covered = self._is_covered(expected)
        fates = [
            ("refreshed", lost & announced & covered),
            ("lost_announced", lost & announced),
            ("lost_unannounced", lost & ~announced),
            ("corrupt", wrong),
            ("duplicated", times > 1),
            ("reordered", disordered),
        ]
        decided = np.zeros(len(expected), bool)
        for name, mask in fates:
            mask = mask & ~decided
            decided |= mask
            if name in ("refreshed", "lost_announced"):
                setattr(self.result, name, int(mask.sum()))
            else:
                self._note(name, expected, mask)
        self.result.ok = int((~decided).sum())
        self._note("contradicted", expected, announced & ~lost)

    def _overtaken(self, index: NDArray[np.intp], services: NDArray[Any]) -> NDArray[np.intp]:
        """Return indices of expected messages that first arrived after a later one."""
        _, first = np.unique(index, return_index=True)
        first.sort()
        index, services = index[first], services[first]
        overtaken = []
        for service in np.unique(services):
            own = index[services == service]
            overtaken.append(own[own < np.maximum.accumulate(own)])
        return np.concatenate(overtaken) if overtaken else np.zeros(0, np.intp)

    def _lies_in(self, known: dict[int, RangeSet], messages: Records) -> Mask:
        """Return a mask of the messages that lie in an announced range."""
        mask = np.zeros(len(messages), bool)
        own = self._own_numbers(messages)
        for service, ranges in known.items():
            firsts = np.array([first for first, _ in ranges], np.uint64)
            lasts = np.array([last for _, last in ranges], np.uint64)
            which = np.flatnonzero(messages["service"] == service)
            begun = np.searchsorted(firsts, own[which], side="right")
            last_begun = np.where(begun > 0, begun - 1, 0)
            mask[which] = (begun > 0) & (own[which] <= lasts[last_begun])
        return mask

    def _is_covered(self, messages: Records) -> Mask:
        """Return a mask of the messages that a snapshot's state includes."""
        mask = np.zeros(len(messages), bool)
        own = self._own_numbers(messages)
        for service, last in self.covered.items():
            mask |= (messages["service"] == service) & (own <= last)
        return mask

    def _own_numbers(self, messages: Records) -> Keys:
        """Return the numbers that announcements use: of packets, or of messages."""
        if self.counts_messages:
            return messages["sequence"] + messages["number"].astype(np.uint64)
        own: Keys = messages["sequence"]
        return own

    def _sorted_keys(self) -> tuple[Keys, NDArray[np.intp]]:
        """Return sorted keys of the expected messages, and the order that sorts them.

        Against delivered packets, a message's number is its rank among the selected ones of its
        packet, since that is what thinning leaves.
        """
        keys = self._keys(self.expected, self.expected["number"])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if self.packed and len(keys):
            packet = keys >> np.uint64(NUMBER_BITS)
            begins = np.flatnonzero(np.r_[True, packet[1:] != packet[:-1]])
            sizes = np.diff(np.r_[begins, len(packet)])
            rank = np.arange(len(packet)) - np.repeat(begins, sizes)
            keys = (packet << np.uint64(NUMBER_BITS)) | rank.astype(np.uint64)
        return keys, order

    def _keys(self, messages: Records, number: NDArray[Any]) -> Keys:
        sequence = messages["sequence"]
        if self.counts_messages and not self.packed:
            # A message's own number identifies it however packets were cut.
            sequence, number = self._own_numbers(messages), np.zeros(len(messages), np.uint16)
        if len(messages) and (
            sequence.max() >= 1 << SEQUENCE_BITS or number.max() >= 1 << NUMBER_BITS
        ):
            raise UsageError(
                f"sequence {sequence.max()} or message number {number.max()} is too large",
                f"a check handles {SEQUENCE_BITS} and {NUMBER_BITS} bits",
            )
        key: Keys = messages["service"].astype(np.uint64) << np.uint64(SEQUENCE_BITS + NUMBER_BITS)
        key |= sequence << np.uint64(NUMBER_BITS)
        key |= number.astype(np.uint64)
        return key

    def _note(self, name: str, messages: Records, mask: Mask) -> None:
        """Count a fault and keep its first offenders."""
        rows = np.flatnonzero(mask)
        setattr(self.result, name, len(rows))
        if len(rows):
            self.result.offenders[name] = [
                Offender(int(m["service"]), int(m["sequence"]), int(m["number"]))
                for m in messages[rows[:OFFENDERS_MAX]]
            ]


def _starts(records: Records) -> dict[int, int]:
    """Return the first number of each service's stream: as first announced, or after the snapshot
    that the stream begins with."""
    starts: dict[int, int] = {}
    begun = _first_arrivals(records)
    kinds = records["kind"]
    for record in records[kinds == RecordKind.START]:
        starts.setdefault(int(record["service"]), int(record["sequence"]))
    for index in np.flatnonzero(kinds == RecordKind.REFRESHED):
        service, last = int(records["service"][index]), int(records["sequence"][index])
        if service in starts and index < begun.get(service, len(records)):
            starts[service] = max(starts[service], last + 1)
    return starts


def _first_arrivals(records: Records) -> dict[int, int]:
    """Return the index of each service's first delivered message among the records."""
    rows = np.flatnonzero(records["kind"] <= RecordKind.PACKED)
    services, first = np.unique(records["service"][rows], return_index=True)
    return dict(zip(services.tolist(), rows[first].tolist(), strict=True))


def _covered(records: Records) -> dict[int, int]:
    """Return the highest number that a snapshot covers, by service."""
    covered: dict[int, int] = {}
    for record in records:
        service = int(record["service"])
        covered[service] = max(covered.get(service, 0), int(record["sequence"]))
    return covered


def _ranges(records: Records, kind: RecordKind) -> dict[int, RangeSet]:
    """Return the ranges whose latest announcement is of this kind, by service.

    Raises `UsageError` for more than `ANNOUNCED_RANGES_MAX` ranges of a service."""
    found: dict[int, RangeSet] = {}
    for record in records:
        ranges = found.setdefault(int(record["service"]), RangeSet(limit=ANNOUNCED_RANGES_MAX))
        change = ranges.add if record["kind"] == kind else ranges.discard
        change(int(record["sequence"]), int(record["symbol"]))
    if any(ranges.widened for ranges in found.values()):
        raise UsageError(
            f"more than {ANNOUNCED_RANGES_MAX:,} announced ranges", "check a shorter session"
        )
    return {service: ranges for service, ranges in found.items() if ranges}
