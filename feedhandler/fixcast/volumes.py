"""Volumes of instruments, measured from a capture: the input of a plan of channels.

A `VolumeMeter` takes a capture's datagrams and adds up the bytes of each instrument's messages.
Both lines carry the same messages, and one may have lost some: for each service an instrument's
volume is that of the line which brought most of it. Refresh packets (those that are compressed) are
left out. The bytes of a message that names several instruments are shared among them.

Beside the whole capture's volumes the meter keeps those of its busiest minute: a plan that is even
over a day may be uneven while the market is fast.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import NO_SYMBOL, SEVERAL_SYMBOLS, MessageIndex, PacketHeader
from feedhandler.codecs.fix_feed import FixFeed
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.codecs.fix_scanning import begin_symbols_of, next_symbol_of
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.codecs.scanner import REJECT_COUNT, scan_datagrams
from feedhandler.fixcast.planner import INSTRUMENTS_MAX, Volume
from feedhandler.replay.captures.packet_headers import read_headers
from feedhandler.replay.captures.reading import DatagramBatch

Array = np.ndarray[Any, Any]

#: Messages that are indexed at a time: twice what one packet can have.
INDEX_MESSAGES = 1 << 17
MINUTE_NS = 60_000_000_000
#: Kinds of packets that carry messages.
_KINDS = (PacketKind.DATA, PacketKind.UNSEQUENCED)


class Line(NamedTuple):
    """Origin of messages: the header's service, group and port as one number."""

    service: int
    endpoint: int


#: By line, by symbol (as the scanner has it, or its text): bytes of messages.
Weights = dict[Line, Counter[int | str]]


class VolumeMeter:
    """Meter of a capture of a feed. `by_service`: each service is a content.

    rejected       datagrams that are no packets of the feed, by reason
    messages       messages that were measured, on all lines
    unnamed_bytes  bytes of messages that name no instrument
    busiest_ns     start of the busiest minute, ns since 1970
    """

    def __init__(self, feed: Feed, by_service: bool = False) -> None:
        self.rejected: Counter[str] = Counter()
        self.messages = self.unnamed_bytes = self.busiest_ns = 0
        self._feed, self._is_fix = feed, isinstance(feed, FixFeed)
        self._by_service = by_service
        self._known = ReferenceData(feed)
        self._long: dict[int, str] = {}
        self._index, self._header = MessageIndex(INDEX_MESSAGES), PacketHeader()
        self._all: Weights = {}
        self._minute: Weights = {}
        self._busiest: Weights = {}
        self._minute_number = self._minute_bytes = self._busiest_bytes = 0

    def add(self, batch: DatagramBatch) -> None:
        """Measure datagrams, which are roughly in the order of their times.

        Raises `UsageError` where there are more than `INSTRUMENTS_MAX` instruments.
        """
        rows, data = self._rows(batch), memoryview(batch.data)
        while len(rows):
            # memoryviews, not arrays: their items are Python integers, also in the twin.
            rejects = memoryview(np.zeros(REJECT_COUNT, np.uint64))
            starts = memoryview(batch.offset[rows].astype(np.int64))
            sizes = memoryview(batch.length[rows])
            self._index.clear()
            done = scan_datagrams(
                self._feed.table, data, starts, sizes, self._header, self._index, rejects
            )
            self._count_rejects(np.asarray(rejects))
            self._measure(batch, rows[:done])
            rows = rows[done:]
        if sum(map(len, self._all.values())) > INSTRUMENTS_MAX:
            raise UsageError(
                f"more than {INSTRUMENTS_MAX:,} instruments", "plan for a part of them"
            )

    def volumes(self) -> list[Volume]:
        """Return each instrument's volume in the whole capture, bytes."""
        return self._volumes(self._all)

    def busiest_volumes(self) -> list[Volume]:
        """Return each instrument's volume in the minute with most bytes; it may be 0."""
        self._close_minute()
        found = dict.fromkeys(((each.content, each.symbol) for each in self.volumes()), 0)
        found |= {(each.content, each.symbol): each.volume for each in self._volumes(self._busiest)}
        return [Volume(*key, volume) for key, volume in found.items()]

    # -- measuring ------------------------------------------------------------------------------

    def _rows(self, batch: DatagramBatch) -> Array:
        """Return the rows of the datagrams to be scanned, in the order of the bytes. int64."""
        headers = read_headers(self._feed.table, batch.data, batch.offset, batch.length)
        fine = headers.verdict == Reject.FINE
        wanted = fine & np.isin(headers.kind, _KINDS) & (headers.compressed == 0)
        if self._is_fix:
            # The first message of a datagram says nothing of the others.
            wanted = np.ones(len(batch), bool)
        else:
            self._count_rejects(np.bincount(headers.verdict[~fine], minlength=REJECT_COUNT))
        rows = np.flatnonzero(wanted)
        return rows[np.argsort(batch.offset[rows], kind="stable")]

    def _count_rejects(self, rejects: Array) -> None:
        for reason in np.flatnonzero(rejects).tolist():
            if reason != Reject.FINE:
                self.rejected[Reject(reason).name.lower()] += int(rejects[reason])

    def _measure(self, batch: DatagramBatch, rows: Array) -> None:
        """Add up the messages in the index, which are of these datagrams."""
        arrays = self._index.arrays()
        symbols, sizes = arrays["symbols"], arrays["sizes"].astype(np.int64)
        self.messages += len(symbols)
        self._learn(batch.data, arrays)
        firsts = np.asarray(self._index.firsts)[: self._index.packets].astype(np.int64)
        counts = np.diff(np.append(firsts, len(symbols)))
        services = np.repeat(np.asarray(self._index.services)[: len(firsts)], counts)
        starts = batch.offset[rows].astype(np.int64)
        of = rows[np.searchsorted(starts, arrays["offsets"].astype(np.int64), "right") - 1]
        endpoints = batch.destination[of].astype(np.int64) << 16 | batch.destination_port[of]
        minutes = batch.time_ns[of] // MINUTE_NS
        for minute, line, mask in _parts(minutes, services, endpoints):
            if minute > self._minute_number:
                self._close_minute()
                self._minute_number = minute
            found = self._weights(symbols[mask], sizes[mask], batch.data, arrays["offsets"][mask])
            self._minute_bytes += found.total()
            for weights in (self._all, self._minute):
                weights.setdefault(line, Counter()).update(found)

    def _weights(
        self, symbols: Array, sizes: Array, data: Array, offsets: Array
    ) -> Counter[int | str]:
        """Return the bytes of each symbol in these messages."""
        weights: Counter[int | str] = Counter()
        several = np.flatnonzero(symbols == SEVERAL_SYMBOLS)
        for at in several.tolist():
            names = self._names(data, int(offsets[at]), int(sizes[at]))
            for number, name in enumerate(names):
                weights[name] += (int(sizes[at]) + number) // len(names)
        different, which = np.unique(symbols, return_inverse=True)
        totals = np.bincount(which, sizes, len(different)).astype(np.int64)
        for symbol, total in zip(different.tolist(), totals.tolist(), strict=True):
            if symbol == NO_SYMBOL:
                self.unnamed_bytes += total
            elif symbol != SEVERAL_SYMBOLS:
                weights[self._long.get(symbol, symbol)] += total
        return weights

    def _names(self, data: Array, offset: int, size: int) -> list[str]:
        """Return the instruments that a FIX message names, each once.

        They are read as the scanner has read them: up to a faulty field, if there is one.
        """
        view, header, table = memoryview(data), self._header, self._feed.table
        begin_symbols_of(view, offset, offset + size, header)
        names: dict[str, None] = {}
        while next_symbol_of(table, view, header) != NO_SYMBOL:
            at = header.run.symbol_at
            names[bytes(view[at : at + header.run.symbol_size]).decode("latin-1")] = None
        return list(names)

    def _learn(self, data: Array, arrays: dict[str, Array]) -> None:
        """Learn the names of symbols that are numbers, or digests of long names."""
        if self._is_fix:
            symbols = arrays["symbols"]
            long = symbols[(symbols >= LONG_SYMBOL_BIT) & (symbols < SEVERAL_SYMBOLS)]
            for symbol in set(np.unique(long).tolist()) - self._long.keys():
                at = int(np.flatnonzero(symbols == symbol)[0])
                offset, size = int(arrays["offsets"][at]), int(arrays["sizes"][at])
                self._long[symbol] = self._names(data, offset, size)[0]
        else:
            self._known.learn_columns(data, arrays)

    def _close_minute(self) -> None:
        if self._minute_bytes > self._busiest_bytes:
            self._busiest, self._busiest_bytes = self._minute, self._minute_bytes
            self.busiest_ns = self._minute_number * MINUTE_NS
        self._minute, self._minute_bytes = {}, 0

    # -- results --------------------------------------------------------------------------------

    def _volumes(self, weights: Weights) -> list[Volume]:
        """Return volumes: by service that of the line with most, all services added up."""
        most: Counter[tuple[int, str]] = Counter()
        for line, counter in weights.items():
            for name, total in self._by_name(counter).items():
                most[line.service, name] = max(most[line.service, name], total)
        found: Counter[tuple[str, str]] = Counter()
        for (service, name), total in most.items():
            found[str(service) if self._by_service else "", name] += total
        return [Volume(*key, total) for key, total in found.items()]

    def _by_name(self, counter: Counter[int | str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for symbol, total in counter.items():
            if isinstance(symbol, int):
                symbol = self._known.names.get(symbol) or self._feed.symbol_name(symbol) or ""
            if symbol:
                found[symbol] += total
        return found


def _parts(minutes: Array, services: Array, endpoints: Array) -> Iterator[tuple[int, Line, Array]]:
    """Yield each minute and line with the mask of its messages, the earliest minute first."""
    for minute in np.unique(minutes).tolist():
        for endpoint in np.unique(endpoints[minutes == minute]).tolist():
            mask = (minutes == minute) & (endpoints == endpoint)
            for service in np.unique(services[mask]).tolist():
                yield minute, Line(service, endpoint), mask & (services == service)
