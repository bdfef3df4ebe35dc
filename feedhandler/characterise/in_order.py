"""The second walk of `arbitrated` over one slice: first copies, in the order of their numbers.

`InOrder` is given the slice's batches and its `Plan`, keeps of each batch the packets that count,
and holds back packets that come too early: the plan says which numbers the slice will bring, so a
packet waits only for one that is still to come. A tally gets its packets in the order of numbers,
all services together; where numbers of another slice belong in between, or where waiting would take
too much memory, a service continues in tallies of its own. Sans-IO.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from feedhandler.characterise import ranges
from feedhandler.characterise.channels import ChannelMap, keys_of, tally_keys
from feedhandler.characterise.digest import Columns
from feedhandler.characterise.tally import STRAY_MAX, Tally
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import FeedTable
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.replay.captures.packet_headers import (
    PacketHeaders,
    having_field,
    read_headers,
)
from feedhandler.replay.captures.reading import COLUMNS, DatagramBatch

Array = np.ndarray[Any, Any]

#: Payload bytes that may wait for lower numbers of their slice.
HELD_BYTES_MAX = 64 << 20
#: Separate tallies that one slice may need: some megabytes each.
PIECES_MAX = 128
#: Stands for a service: the tally shared by all services that need none of their own.
MAIN = -1
#: Stands for a number: before the first break.
_FROM_THE_BEGINNING = -1

#: The first and the last (epoch, number) of something.
Span = tuple[tuple[int, int], tuple[int, int]]


class Plan(NamedTuple):
    """Contribution of a slice to the arbitrated stream.

    lines    the lines that count, (group, port)
    channels which of them carry one channel's numbers, where packets name no service
    epochs   by (group, port, service), the epoch of numbers in which the line begins the slice
    wanted   by (service, epoch), the numbers that no slice before this one brings
    breaks   by service and epoch, numbers before which packets of other slices belong; a service
             that is not in here has its numbers in one piece
    """

    lines: frozenset[tuple[int, int]]
    epochs: dict[tuple[int, int, int], int]
    wanted: dict[tuple[int, int], ranges.Ranges]
    breaks: dict[int, dict[int, Array]]
    channels: ChannelMap | None = None


def ordered_span(plan: Plan, service: int) -> Span | None:
    """Return the first and the last (epoch, number) that the plan wants of a service."""
    epochs = sorted(epoch for whose, epoch in plan.wanted if whose == service)
    if not epochs:
        return None
    first, last = plan.wanted[service, epochs[0]], plan.wanted[service, epochs[-1]]
    return (epochs[0], int(first[0, 0])), (epochs[-1], int(last[-1, 1]) - 1)


class _Rows(NamedTuple):
    """Packets with their sort keys."""

    batch: DatagramBatch
    service: Array
    epoch: Array
    number: Array

    def select(self, rows: Array) -> "_Rows":
        return _Rows(self.batch.select(rows), *(column[rows] for column in self[1:]))


class InOrder:
    """The second walk over one slice; see the module's text.

    `messages`: whether tallies look at messages. Raises `UsageError` where more than `PIECES_MAX`
    tallies would be needed.
    """

    def __init__(self, table: FeedTable, plan: Plan, *, messages: bool = True) -> None:
        self._table = table
        self._plan = plan
        self._messages = messages
        self._lines = np.array([group << 16 | port for group, port in plan.lines], np.uint64)
        self._epochs = _Epochs(plan.epochs)
        self._came: dict[tuple[int, int], ranges.Ranges] = {}
        self._breaks = {service: dict(each) for service, each in plan.breaks.items()}
        self._held: _Rows | None = None
        self._tallies: dict[tuple[int, int, int], Tally] = {}
        self._firsts: dict[tuple[int, int, int], int] = {}

    def add(self, batch: DatagramBatch) -> None:
        """Add the next datagrams of the slice."""
        headers = read_headers(self._table, batch.data, batch.offset, batch.length)
        line = batch.destination.astype(np.uint64) << np.uint64(16) | batch.destination_port
        mine = (headers.verdict == Reject.FINE) & (headers.compressed == 0)
        mine = np.flatnonzero(mine & np.isin(line, self._lines))
        if not len(mine):
            return
        batch, headers, line = batch.select(mine), headers.select(mine), line[mine]
        epoch = self._epochs.of(batch, headers, line, _field(self._table, batch))
        first = headers.sequence.astype(np.int64)
        after = headers.next_sequence.astype(np.int64)
        data = (headers.kind == PacketKind.DATA) & (after > first)
        # A reset has a number too: its own, whatever it leads to. (In FIX it has none.)
        reset = (headers.kind == PacketKind.RESET) & (not self._table.fix)
        after[reset] = first[reset] + 1
        service = keys_of(self._plan.channels, line, headers.service)
        chosen = self._first_copies(np.flatnonzero(data | reset), service, epoch, first, after)
        number = first
        if self._table.reset_message >= 0:
            # Such resets have messages. One that leads back stands before what it leads to.
            data |= reset
            leads = headers.next_sequence.astype(np.int64)
            back = reset & (leads + STRAY_MAX <= first)
            number = np.where(back, np.maximum(leads - 1, 0), first)
        chosen = chosen[data[chosen]]
        self._hold(_Rows(batch, service, epoch, number).select(chosen))
        self._let_go(self._ready())
        if self._held is not None and len(self._held.batch.data) > HELD_BYTES_MAX:
            self._wait_no_longer()

    def finish(self) -> list[tuple[int, int, int, Columns]]:
        """Return the tallies: service (or `MAIN`), epoch, first number, columns."""
        if self._held is not None:
            self._let_go(np.ones(len(self._held.number), bool))
        return [
            (key[0], key[1], self._firsts[key], tally.columns())
            for key, tally in self._tallies.items()
        ]

    def _first_copies(
        self, rows: Array, service: Array, epoch: Array, first: Array, after: Array
    ) -> Array:
        """Select the rows whose first number came in no row and no slice before."""
        chosen = []
        for key in sorted(set(zip(service[rows].tolist(), epoch[rows].tolist(), strict=True))):
            mine = rows[(service[rows] == key[0]) & (epoch[rows] == key[1])]
            came = self._came.get(key, ranges.NOTHING)
            fresh = _firsts(first[mine], after[mine]) & ~ranges.within(first[mine], came)
            fresh &= ranges.within(first[mine], self._plan.wanted.get(key, ranges.NOTHING))
            numbers = np.stack([first[mine], after[mine]], axis=1)
            self._came[key] = ranges.union(came, numbers)
            chosen.append(mine[fresh])
        return np.sort(np.concatenate(chosen)) if chosen else rows

    def _hold(self, rows: _Rows) -> None:
        """Add rows to wait, behind those that do."""
        if self._held is not None and len(self._held.number):
            rows = _joined(self._held, rows)
        self._held = rows

    def _missing(self, service: int) -> list[tuple[int, ranges.Ranges]]:
        """Return, by epoch, the numbers of a service that the slice will still bring."""
        epochs = sorted(epoch for whose, epoch in self._plan.wanted if whose == service)
        found = []
        for epoch in epochs:
            came = self._came.get((service, epoch), ranges.NOTHING)
            missing = ranges.minus(self._plan.wanted[service, epoch], came)
            if len(missing):
                found.append((epoch, missing))
        return found

    def _ready(self) -> Array:
        """Return which of the held rows have nothing to wait for (bool[n])."""
        assert self._held is not None
        _, service, epoch, number = self._held
        ready = np.ones(len(number), bool)
        for each in np.unique(service).tolist():
            missing = self._missing(each)
            if missing:
                until, least = missing[0][0], int(missing[0][1][0, 0])
                early = (epoch < until) | ((epoch == until) & (number < least))
                ready &= early | (service != each)
        return ready

    def _wait_no_longer(self) -> None:
        """Release all held rows; what they waited for will be in tallies of its own."""
        assert self._held is not None
        for service in np.unique(self._held.service).tolist():
            for epoch, missing in self._missing(service):
                breaks = self._breaks.setdefault(service, {})
                known = breaks.get(epoch, np.zeros(0, np.int64))
                breaks[epoch] = np.unique(np.concatenate([known, missing.reshape(-1)]))
        self._let_go(np.ones(len(self._held.number), bool))

    def _let_go(self, ready: Array) -> None:
        """Count those rows, in order; the others keep waiting."""
        assert self._held is not None
        rows = _in_order(self._held.select(np.flatnonzero(ready)))
        rest = self._held.select(np.flatnonzero(~ready))
        self._held = _compact(rest) if len(rest.number) else None
        own = np.isin(rows.service, list(self._breaks))
        self._count((MAIN, 0, 0), rows.select(np.flatnonzero(~own)))
        if own.any():
            self._count_own(rows.select(np.flatnonzero(own)))

    def _count_own(self, rows: _Rows) -> None:
        """Count rows of services that need tallies of their own."""
        found = set(zip(rows.service.tolist(), rows.epoch.tolist(), strict=True))
        for service, epoch in sorted(found):
            mine = rows.select(np.flatnonzero((rows.service == service) & (rows.epoch == epoch)))
            breaks = self._breaks[service].get(epoch, np.zeros(0, np.int64))
            edges = np.concatenate([[_FROM_THE_BEGINNING], breaks])
            begins = edges[np.searchsorted(breaks, mine.number, side="right")]
            for each in np.unique(begins).tolist():
                self._count((service, epoch, each), mine.select(np.flatnonzero(begins == each)))

    def _count(self, key: tuple[int, int, int], rows: _Rows) -> None:
        """Count rows, which are in order, in one tally. Raises `UsageError` beyond the bound."""
        if not len(rows.number):
            return
        if key not in self._tallies:
            if len(self._tallies) >= PIECES_MAX:
                raise UsageError(
                    f"service {key[0]}: its lines lie too far apart in the captures to be put in "
                    "order",
                    "merge the captures by their times first, with mergecap say",
                )
            keys = tally_keys(self._plan.channels)
            self._tallies[key] = Tally(self._table, self._messages, keys)
            self._firsts[key] = int(rows.number[0])
        batch = rows.batch
        # A channel is on one line here: where packets name no service, on its first.
        named = self._plan.channels is None or self._plan.channels.by_service
        stream = np.zeros(len(rows.number), np.int64) if named else rows.service
        self._tallies[key].count(
            batch.data,
            batch.offset,
            batch.length,
            batch.frame_length,
            batch.time_ns,
            (stream >> 16).astype(np.uint32),
            (stream & 0xFFFF).astype(np.uint16),
        )


class _Epochs:
    """The epoch of its channel's numbers for each packet, as `Tally` counts epochs."""

    def __init__(self, starts: dict[tuple[int, int, int], int]) -> None:
        self._now = dict(starts)
        self._session: dict[tuple[int, int, int], int] = {}
        self._reached: dict[tuple[int, int, int], int] = {}

    def of(
        self, batch: DatagramBatch, headers: PacketHeaders, line: Array, session: Array
    ) -> Array:
        """Return the epoch of each row (i64)."""
        epochs = np.zeros(len(batch), np.int64)
        lines, of_line = np.unique(line, return_inverse=True)
        services, of_service = np.unique(headers.service, return_inverse=True)
        channel = of_line * len(services) + of_service
        for each in np.unique(channel).tolist():
            rows = np.flatnonzero(channel == each)
            address = int(lines[each // len(services)])
            key = (address >> 16, address & 0xFFFF, int(services[each % len(services)]))
            epochs[rows] = self._of_channel(key, headers.select(rows), session[rows])
        return epochs

    def _of_channel(self, key: tuple[int, int, int], headers: PacketHeaders, session: Array) -> Any:
        """Return the epochs of one channel's packets."""
        latest = self._session.setdefault(key, int(session[0]))
        data = (headers.kind == PacketKind.DATA) & (headers.next_sequence > headers.sequence)
        if (session == latest).all() and not (headers.kind == PacketKind.RESET).any():
            if data.any():
                self._reached[key] = int(headers.next_sequence[np.flatnonzero(data)[-1]])
            return self._now.setdefault(key, 0)
        epochs = []
        for row in range(len(headers)):
            self._step(key, headers, row, int(session[row]), data=bool(data[row]))
            epochs.append(self._now[key])
        return epochs

    def _step(
        self,
        key: tuple[int, int, int],
        headers: PacketHeaders,
        row: int,
        session: int,
        *,
        data: bool,
    ) -> None:
        """Advance a channel's epoch by one packet."""
        epoch = self._now.setdefault(key, 0)
        if session != self._session[key]:
            self._session[key] = session
            epoch += 1
        if headers.kind[row] == PacketKind.RESET:
            reached = self._reached.get(key, 0)
            epoch += 0 < int(headers.next_sequence[row]) + STRAY_MAX <= reached
            self._reached[key] = int(headers.sequence[row]) + 1
        elif data:
            self._reached[key] = int(headers.next_sequence[row])
        self._now[key] = epoch


def _field(table: FeedTable, batch: DatagramBatch) -> Array:
    """Return the session in each packet's header (u64); 0 where it has none."""
    found = np.zeros(len(batch), np.uint64)
    at, size = table.session_at, table.session_size
    rows: Any = slice(None)
    if table.short_header:
        rows = having_field(table, batch.data, batch.offset, at + size)
    offset = batch.offset[rows].astype(np.int64)
    for index in range(size):
        byte = batch.data[offset + at + index]
        shift = 8 * (size - 1 - index if table.big_endian else index)
        found[rows] |= byte.astype(np.uint64) << np.uint64(shift)
    if table.session_mask:
        found = found >> np.uint64(table.session_shift) & np.uint64(table.session_mask)
    return found


def _firsts(first: Array, after: Array) -> Array:
    """Return which packets' first numbers no packet before them in the array brought (bool[n])."""
    order = np.argsort(first, kind="stable")
    starts, ends = first[order], after[order]
    same = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    if (same | (starts[1:] >= ends[:-1])).all():
        fresh = np.ones(len(first), bool)
        fresh[order[1:][same]] = False
        return fresh
    # Packets of overlapping numbers that are no copies of one another.
    came: set[int] = set()
    found = []
    for number, end in zip(first.tolist(), after.tolist(), strict=True):
        found.append(number not in came)
        came.update(range(number, end))
    return np.array(found, bool)


def _in_order(rows: _Rows) -> _Rows:
    """Sort each service's rows by epoch and number, within the positions that its rows have."""
    by = np.lexsort((rows.number, rows.epoch, rows.service))
    by_service = np.argsort(rows.service, kind="stable")
    order = np.empty(len(by), np.int64)
    order[by_service] = by
    return rows.select(order)


def _joined(one: _Rows, other: _Rows) -> _Rows:
    """Join the rows of both, over the bytes of both."""
    before = np.uint32(len(one.batch.data))
    moved = dataclasses.replace(
        other.batch,
        offset=other.batch.offset + before,
        frame_offset=other.batch.frame_offset + before,
    )
    return _Rows(
        _concatenated(one.batch, moved),
        *(np.concatenate(pair) for pair in zip(one[1:], other[1:], strict=True)),
    )


def _concatenated(one: DatagramBatch, other: DatagramBatch) -> DatagramBatch:
    names = ("data", *COLUMNS)
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names
    }
    return DatagramBatch(**joined)


def _compact(rows: _Rows) -> _Rows:
    """Copy the rows over their own payloads alone."""
    length = rows.batch.length.astype(np.int64)
    starts = np.cumsum(length) - length
    shift = np.repeat(rows.batch.offset.astype(np.int64) - starts, length)
    data = rows.batch.data[np.arange(int(length.sum())) + shift]
    offset = starts.astype(np.uint32)
    batch = dataclasses.replace(rows.batch, data=data, offset=offset, frame_offset=offset)
    return _Rows(batch, *rows[1:])
