"""The tallies of stretches merged in the order of the capture, for the tables.

`Digest.add` takes what `Tally.columns` gave for the next stretch; `Digest.merge` takes the digest
of the stretches that come next. Channels, cells and pairs get one numbering; sums are added; what
lies across a boundary is stitched: the interarrival between a symbol's last message before it and
its first one behind it, copies of a packet on either side, epochs of numbers. Adding the parts of a
capture gives what one tally of the whole gives, and merging is associative: however neighbours are
merged first, the result is the same to the byte.

What depends on all that came before (which copies pair up across boundaries, which epoch a stretch
begins in) is not decided while digests are merged: stretches keep what it takes, and `resolve`
decides it in their order. A digest that was resolved can be merged into, but is not merged into
another one any more.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from feedhandler.characterise import millisecond_buckets
from feedhandler.characterise.channels import ChannelMap, key_of
from feedhandler.characterise.skew import APART_NS_MAX, LEFT_MAX
from feedhandler.characterise.tally import STRAY_MAX, TOTALS
from feedhandler.codecs.scanner import REJECT_COUNT
from feedhandler.histogram import FINE_BUCKETS, fine_bucket_of

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

_FIRST_NS, _LAST_NS = TOTALS.index("first_ns"), TOTALS.index("last_ns")


class Channel(NamedTuple):
    """A service on one line; `refresh`: its packets with compressed bodies."""

    group: int
    port: int
    service: int
    refresh: bool


class Pending(NamedTuple):
    """Packets of one service that wait for their second copy."""

    numbers: Array
    channels: Array
    times_ns: Array


class Stretch(NamedTuple):
    """Part of a stretch that is settled when all before it is known. `indexes`: of its channels;
    `sessions`, `epochs`, `runs` as `Tally.columns` has them; `pairs`: those met within it, in their
    order; `left`: packets that wait for a copy, of one service each."""

    indexes: Array
    sessions: Array
    epochs: Array
    runs: Array
    pairs: list[tuple[int, int]]
    left: list[Pending]


#: Of a symbol on one channel: messages, when the first and the last one came, type of the first.
Symbol = tuple[int, int, int, int]


class FineHistogram:
    """Histogram on the fine scale of `histogram`; times that went backwards are counted apart."""

    def __init__(self) -> None:
        self.buckets = np.zeros(FINE_BUCKETS, np.int64)
        self.within_1ms = self.within_10ms = self.backwards = 0

    def add(self, since_ns: Array) -> None:
        """Count each time of a short array of ns (i64)."""
        for since in since_ns.tolist():
            if since < 0:
                self.backwards += 1
                continue
            self.buckets[fine_bucket_of(since)] += 1
            self.within_1ms += since <= 1_000_000
            self.within_10ms += since <= 10_000_000

    def merge(self, other: "FineHistogram") -> None:
        """Add another's counts."""
        self.buckets += other.buckets
        self.within_1ms += other.within_1ms
        self.within_10ms += other.within_10ms
        self.backwards += other.backwards

    @property
    def count(self) -> int:
        """The number of times in buckets."""
        return int(self.buckets.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the non-empty buckets: of thousands they are mostly few."""
        used = np.flatnonzero(self.buckets)
        tallies = self.within_1ms, self.within_10ms, self.backwards
        return _histogram, (used.astype(np.int32), self.buckets[used], tallies)


def _histogram(used: Array, counts: Array, tallies: tuple[int, int, int]) -> FineHistogram:
    histogram = FineHistogram()
    histogram.buckets[used] = counts
    histogram.within_1ms, histogram.within_10ms, histogram.backwards = tallies
    return histogram


class Cell:
    """Counts of messages of one type on one channel, and the interarrival of their symbols."""

    def __init__(self) -> None:
        self.messages = 0
        self.message_bytes = 0
        self.interarrival = FineHistogram()


class Digest:
    """Merged tallies of a session's stretches; see the module's text.

    channels    in order of appearance, with a row of `totals` (i64, columns `TOTALS`) each
    cells       by (channel's index, message type)
    pairs       histograms of skew by (index of the first channel, of the later one)
    channel_map which lines carry one channel's numbers, where packets name no service
    foreign     datagrams that are no packets of the feed, by `Reject`
    overflow    packets beyond the channels' bound, symbols beyond theirs
    stretches   of each stretch that was added: by channel's index the epoch of numbers it began
                in, and its runs (i64[4, n]: index, epoch, first number, number after the last)
    """

    def __init__(self, channel_map: ChannelMap | None = None) -> None:
        self.channel_map = channel_map
        self.channels: list[Channel] = []
        self.totals = np.zeros((0, len(TOTALS)), np.int64)
        self.cells: dict[tuple[int, int], Cell] = {}
        self.foreign = np.zeros(REJECT_COUNT, np.int64)
        self.overflow = np.zeros(2, np.int64)
        self._index_of: dict[Channel, int] = {}
        self._buckets: list[Columns] = []
        self._minutes: list[Array] = []
        self._symbols: dict[tuple[int, int], Symbol] = {}
        self._skews: dict[tuple[int, int], FineHistogram] = {}
        self._unsettled: list[Stretch] = []
        # What is settled of the stretches before those.
        self._pairs: dict[tuple[int, int], FineHistogram] = {}
        self._stretches: list[tuple[dict[int, int], Array]] = []
        self._runs: list[Array] = []
        self._epochs: dict[int, int] = {}
        self._sessions: dict[int, tuple[int, int]] = {}
        self._pending: dict[int, Pending] = {}

    def add(self, part: Columns) -> None:
        """Add the next stretch of the capture, as `Tally.columns` returned it."""
        indexes = self._channel_indexes(_channels_of(part), part["totals"])
        self._add_cells(part, indexes)
        rows = zip(
            indexes[part["symbol_channels"]].tolist(),
            part["symbol_symbols"].tolist(),
            part["symbol_counts"].tolist(),
            part["symbol_first_ns"].tolist(),
            part["symbol_last_ns"].tolist(),
            part["cells"][1][part["symbol_first_cells"]].tolist(),
            strict=True,
        )
        self._add_symbols(rows)
        self._unsettled.append(
            Stretch(
                indexes,
                part["sessions"],
                part["epochs"],
                part["runs"],
                self._add_skew(part, indexes),
                _left_of(part, indexes),
            )
        )
        self._add_minutes(part["minutes"], indexes)
        self._buckets.append(buckets_of(part))
        self.foreign += part["foreign"]
        self.overflow += part["overflow"]

    def merge(self, other: "Digest") -> None:
        """Merge a digest of the stretches that come next; `other` must not be used any more.

        Raises `ValueError` where pairs, stretches or runs of `other` were asked for: what lies
        across its beginning can then not be known any more.
        """
        if other._stretches:
            raise ValueError("a digest that was settled is not merged into another")
        indexes = self._channel_indexes(other.channels, other.totals)
        for (index, code), cell in other.cells.items():
            mine = self.cells.setdefault((int(indexes[index]), code), Cell())
            mine.messages += cell.messages
            mine.message_bytes += cell.message_bytes
            mine.interarrival.merge(cell.interarrival)
        mapped = indexes.tolist()
        self._add_symbols(
            (mapped[index], symbol, *row) for (index, symbol), row in other._symbols.items()
        )
        for (first, later), histogram in other._skews.items():
            self._skew((int(indexes[first]), int(indexes[later]))).merge(histogram)
        self._unsettled += [_renumbered(stretch, indexes) for stretch in other._unsettled]
        for minutes in other._minutes:
            self._add_minutes(minutes, indexes)
        self._buckets += other._buckets
        self.foreign += other.foreign
        self.overflow += other.overflow

    def _channel_indexes(self, channels: Iterable[Channel], totals: Array) -> Array:
        """Return our index of each of the channels, whose totals are added."""
        indexes = np.zeros(len(totals), np.int64)
        for number, channel in enumerate(channels):
            index = self._index_of.get(channel)
            if index is None:
                index = self._index_of[channel] = len(self.channels)
                self.channels.append(channel)
                self.totals = np.concatenate([self.totals, totals[number][None]])
            else:
                before = self.totals[index].copy()
                self.totals[index] += totals[number]
                self.totals[index, _FIRST_NS] = min(before[_FIRST_NS], totals[number, _FIRST_NS])
                self.totals[index, _LAST_NS] = max(before[_LAST_NS], totals[number, _LAST_NS])
            indexes[number] = index
        return indexes

    def _add_cells(self, part: Columns, indexes: Array) -> None:
        """Add the counts of the part's cells."""
        cells = []
        for channel, code, messages, message_bytes in part["cells"].T.tolist():
            cell = self.cells.setdefault((int(indexes[channel]), code), Cell())
            cell.messages += messages
            cell.message_bytes += message_bytes
            cells.append(cell)
        of, buckets = part["interarrival_cell"], part["interarrival_bucket"]
        edges = np.searchsorted(of, np.arange(len(cells) + 1))
        for number, cell in enumerate(cells):
            within = slice(edges[number], edges[number + 1])
            cell.interarrival.buckets[buckets[within]] += part["interarrival_count"][within]
        for number, tallies in enumerate(part["interarrival_tallies"].T.tolist()):
            histogram = cells[number].interarrival
            histogram.within_1ms += tallies[0]
            histogram.within_10ms += tallies[1]
            histogram.backwards += tallies[2]

    def _add_symbols(self, rows: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Add the counts of symbols, and the interarrivals across the boundary."""
        across: dict[tuple[int, int], list[int]] = {}
        symbols = self._symbols
        for channel, symbol, messages, first_ns, last_ns, code in rows:
            key = channel, symbol
            known = symbols.get(key)
            if known is None:
                symbols[key] = messages, first_ns, last_ns, code
                continue
            across.setdefault((channel, code), []).append(first_ns - known[2])
            symbols[key] = known[0] + messages, known[1], last_ns, known[3]
        for cell, since_ns in across.items():
            self.cells[cell].interarrival.add(np.array(since_ns, np.int64))

    def _add_minutes(self, minutes: Array, indexes: Array) -> None:
        if minutes.shape[1]:
            minutes = minutes.copy()
            minutes[0] = indexes[minutes[0]]
            self._minutes.append(minutes)

    def _skew(self, pair: tuple[int, int]) -> FineHistogram:
        return self._skews.setdefault(pair, FineHistogram())

    def _add_skew(self, part: Columns, indexes: Array) -> list[tuple[int, int]]:
        """Add the counts of the pairs that the part met, and return the pairs in their order."""
        firsts = indexes[part["skew_first_channel"]].tolist()
        laters = indexes[part["skew_later_channel"]].tolist()
        of = part["skew_pair"]
        edges = np.searchsorted(of, np.arange(len(firsts) + 1))
        pairs = list(zip(firsts, laters, strict=True))
        for number, pair in enumerate(pairs):
            histogram = self._skew(pair)
            within = slice(edges[number], edges[number + 1])
            histogram.buckets[part["skew_bucket"][within]] += part["skew_count"][within]
            histogram.backwards += int(part["skew_backwards"][number])
        return pairs

    # -- what is settled in the order of stretches ------------------------------------------------

    @property
    def pairs(self) -> dict[tuple[int, int], FineHistogram]:
        """Histograms of skew; see the class."""
        self.resolve()
        return self._pairs

    @property
    def stretches(self) -> list[tuple[dict[int, int], Array]]:
        """Of each stretch the epochs and runs; see the class."""
        self.resolve()
        return self._stretches

    def resolve(self) -> None:
        """Decide what depends on all that came before, for the stretches that came since."""
        for stretch in self._unsettled:
            for pair in stretch.pairs:
                self._pairs[pair] = self._skew(pair)
            for left in stretch.left:
                key = self.key_of(self.channels[int(left.channels[0])])
                left = self._paired_within(left)
                before = self._pending.get(key)
                self._pending[key] = left if before is None else self._paired(before, left)
            self._add_runs(stretch)
        self._unsettled.clear()

    def _count_pairs(self, pair: tuple[int, int], since_ns: Array) -> None:
        self._pairs[pair] = self._skew(pair)
        self._pairs[pair].add(since_ns)

    def key_of(self, channel: Channel) -> int:
        """Return the channel number of a channel's packets, common to all of its lines."""
        return key_of(self.channel_map, channel.group << 16 | channel.port, channel.service)

    def _paired_within(self, left: Pending) -> Pending:
        """Count the pairs among one stretch's leftovers; return the rest.

        These are copies so far apart that the ring had dropped the first; with a boundary between
        them they would have been paired by `_paired`.
        """
        order = np.argsort(left.numbers, kind="stable")
        numbers = left.numbers[order]
        stay = np.ones(len(numbers), bool)
        found: dict[tuple[int, int], list[int]] = {}
        for index in np.flatnonzero(numbers[1:] == numbers[:-1]).tolist():
            one, other = int(order[index]), int(order[index + 1])
            pair = int(left.channels[one]), int(left.channels[other])
            since = int(left.times_ns[other] - left.times_ns[one])
            if stay[one] and pair[0] != pair[1] and since <= APART_NS_MAX:
                stay[[one, other]] = False
                found.setdefault(pair, []).append(since)
        for pair, since_ns in found.items():
            self._count_pairs(pair, np.array(since_ns, np.int64))
        return Pending(*(column[stay] for column in left))

    def _paired(self, before: Pending, left: Pending) -> Pending:
        """Count the pairs between two stretches; return what still waits, at most `LEFT_MAX`."""
        _, mine, theirs = np.intersect1d(before.numbers, left.numbers, return_indices=True)
        since = left.times_ns[theirs] - before.times_ns[mine]
        first, later = before.channels[mine], left.channels[theirs]
        fitting = (first != later) & (since <= APART_NS_MAX)
        mine, theirs, since = mine[fitting], theirs[fitting], since[fitting]
        first, later = first[fitting], later[fitting]
        for pair in set(zip(first.tolist(), later.tolist(), strict=True)):
            chosen = (first == pair[0]) & (later == pair[1])
            self._count_pairs(pair, since[chosen])
        stay, come = np.ones(len(before.numbers), bool), np.ones(len(left.numbers), bool)
        stay[mine] = come[theirs] = False
        return Pending(
            *(
                np.concatenate([old[stay], new[come]])[-LEFT_MAX:]
                for old, new in zip(before, left, strict=True)
            )
        )

    def _add_runs(self, stretch: Stretch) -> None:
        """Add the stretch's runs, their epochs counted on from where the channel was."""
        indexes = stretch.indexes
        starts = np.zeros(len(indexes), np.int64)
        for number, index in enumerate(indexes.tolist()):
            first, latest, reset, after = stretch.sessions[number].tolist()
            epoch = self._epochs.get(index, 0)
            if index in self._sessions:
                session, reached = self._sessions[index]
                epoch += first != session or 0 < reset <= reached + 1 - STRAY_MAX
                after = after or reached
            starts[number] = epoch
            self._epochs[index] = epoch + int(stretch.epochs[number])
            self._sessions[index] = (latest, after)
        runs = stretch.runs.astype(np.int64)
        if runs.shape[1]:
            runs[1] += starts[runs[0]]
            runs[0] = indexes[runs[0]]
            self._runs.append(runs)
        self._stretches.append((dict(zip(indexes.tolist(), starts.tolist(), strict=True)), runs))

    # -- the whole ------------------------------------------------------------------------------

    def buckets(self) -> Array:
        """Return the milliseconds with packets, i64[4, n].

        Rows: milliseconds since 1970, rising; packets; payload bytes; file bytes.
        """
        rows = np.empty((4, sum(map(millisecond_buckets.count, self._buckets))), np.int64)
        used = 0
        for part in map(millisecond_buckets.expanded, self._buckets):
            # A stretch mostly begins in the millisecond in which the one before it ended.
            same = int(used > 0 and part.shape[1] > 0 and rows[0, used - 1] == part[0, 0])
            rows[1:, used - same : used] += part[1:, :same]
            here = rows[:, used : used + part.shape[1] - same]
            here[:] = part[:, same:]
            used += here.shape[1]
        return summed([rows[:, :used]], 4)

    def minutes(self) -> dict[int, Array]:
        """Return the minutes with packets by channel's index, i64[5, n].

        Rows: minutes since 1970, rising; packets; payload bytes; file bytes; messages.
        """
        rows = np.concatenate(self._minutes or [np.zeros((6, 0), np.int64)], axis=1)
        return {
            index: summed([rows[1:, rows[0] == index]], 5) for index in np.unique(rows[0]).tolist()
        }

    def runs(self) -> dict[int, dict[int, Array]]:
        """Return by channel's index and epoch the numbers it brought, i64[n, 2]: ranges that
        may touch and overlap."""
        self.resolve()
        rows = np.concatenate(self._runs or [np.zeros((4, 0), np.int64)], axis=1)
        runs: dict[int, dict[int, Array]] = {}
        for index in np.unique(rows[0]).tolist():
            mine = rows[:, rows[0] == index]
            runs[index] = {
                epoch: mine[2:, mine[1] == epoch].T for epoch in np.unique(mine[1]).tolist()
            }
        return runs

    def symbol_counts(self) -> dict[int, list[tuple[int, int]]]:
        """Return (symbol, messages) by channel's index, most messages first."""
        found: dict[int, list[tuple[int, int]]] = {}
        for (channel, symbol), row in self._symbols.items():
            found.setdefault(channel, []).append((symbol, row[0]))
        for each in found.values():
            each.sort(key=lambda row: (-row[1], row[0]))
        return found


def _channels_of(part: Columns) -> Iterable[Channel]:
    """Yield the part's channels, in its numbering."""
    for line, service in zip(part["lines"].tolist(), part["services"].tolist(), strict=True):
        yield Channel(line >> 17, line >> 1 & 0xFFFF, service, bool(line & 1))


def _left_of(part: Columns, indexes: Array) -> list[Pending]:
    """Return the packets that the part left without a copy, by service."""
    channels = indexes[part["left_channel"]] if len(indexes) else part["left_channel"]
    left = []
    for service in np.unique(part["left_service"]).tolist():
        chosen = part["left_service"] == service
        columns = part["left_number"], channels, part["left_time_ns"]
        left.append(Pending(*(column[chosen] for column in columns)))
    return left


def _renumbered(stretch: Stretch, indexes: Array) -> Stretch:
    """Return the stretch with its channels' indexes in another digest."""
    return stretch._replace(
        indexes=indexes[stretch.indexes] if len(stretch.indexes) else stretch.indexes,
        pairs=[(int(indexes[first]), int(indexes[later])) for first, later in stretch.pairs],
        left=[each._replace(channels=indexes[each.channels]) for each in stretch.left],
    )


def buckets_of(part: Columns) -> Columns:
    """Select the compact millisecond buckets (`millisecond_buckets.expanded`) among a stretch's
    columns."""
    return {name: part[f"moments_{name}"] for name in millisecond_buckets.NAMES}


def summed(parts: list[Array], columns: int) -> Array:
    """Sum the parts' columns, i64[columns, n], to one entry for each value of the first, rising."""
    if len(parts) == 1:
        rows = parts[0]
    else:
        rows = np.concatenate(parts or [np.zeros((columns, 0), np.int64)], axis=1)
    if not rows.shape[1]:
        return rows
    if np.all(rows[0, 1:] > rows[0, :-1]):
        return rows
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], rows[0, 1:] != rows[0, :-1]]))
    totals = np.add.reduceat(rows[1:], starts, axis=1)
    return np.concatenate([rows[:1, starts], totals])
