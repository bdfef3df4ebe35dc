"""Sequence numbers that continue from pass to pass, so that a repeated recording is one session.

Receivers would take all of a repeated recording for duplicates, since its numbers repeat.
`Renumberer` learns in the first pass which numbers each channel uses, and shifts them in every
later pass by a constant, so that the first number of a pass follows the last one of the pass
before. Gaps and duplicates inside the recording stay.

A channel is a service, where the feed's packets name one; else a group and port.
Refresh packets (with compressed bodies) of a service are numbered apart from its live ones. The
lines of a channel share its numbers, so A and B stay copies of each other.

Resets. After a reset the numbers begin anew: an *epoch*. Each group and port counts its own resets,
because on one line a reset may stand before packets that the other line has after it. A reset at
a recording's beginning is not repeated: the second pass just goes on. One in the middle is, and
the numbers after it are as recorded, as they are after any reset.

Heartbeats move with their channel where the feed says what their number means. Control packets,
what carries the number that the feed sets aside (packets outside the sequence, and heartbeats that
carry no number), and what is no packet of the feed, are left as they are. Sans-IO.
"""

import dataclasses
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import FeedTable
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.replay.captures.packet_headers import PacketHeaders, write_sequences
from feedhandler.replay.captures.reading import DatagramBatch
from feedhandler.replay.playing.selection import with_headers

#: Channels times groups of one recording at most: what a feed has is some dozens.
LINES_MAX = 65_536
#: Resets of one channel in one recording at most.
EPOCHS_MAX = 1_024

#: What channels are spread by over 64 bits (Knuth's multiplier).
_MIX = np.uint64(0x9E3779B97F4A7C15)

Array = np.ndarray[Any, Any]
#: A channel: service or endpoint, and whether its bodies are compressed.
Channel = int


@dataclasses.dataclass(slots=True)
class _Epoch:
    """The numbers between two resets of a channel: `lowest` of its data (None: it has none), and
    `after`, the number that follows everything in it."""

    lowest: int | None = None
    after: int = 0


class Renumberer:
    """The shift of the numbers of each pass but the first; see the module's text.

    Call it with each batch, and `next_pass` where the recording begins again. `dropped_resets`
    counts resets that were not repeated. Raises `UsageError` at the bounds above.
    """

    def __init__(self, table: FeedTable) -> None:
        self.dropped_resets = 0
        self._table = table
        self._by_endpoint = table.service_size == 0
        self._learning = True
        self._epochs: dict[Channel, list[_Epoch]] = {}
        self._moves: dict[Channel, list[int]] = {}
        # Resets that each line has seen in this pass.
        self._resets: dict[tuple[Channel, int], int] = {}

    def __call__(self, batch: DatagramBatch) -> DatagramBatch:
        """Write the numbers of this pass into the batch's bytes; return the batch.

        The first pass only learns. Resets that are not repeated are left out."""
        batch = with_headers(batch, self._table)
        assert batch.headers is not None
        if not len(batch):
            return batch
        channel, epoch = self._assign(batch, batch.headers)
        if self._learning:
            self._learn(batch.headers, channel, epoch)
            return batch
        return self._renumber(batch, batch.headers, channel, epoch)

    def learn(self, batch: DatagramBatch) -> None:
        """Learn the numbers of a batch of the first pass without playing it."""
        batch = with_headers(batch, self._table)
        assert batch.headers is not None
        channel, epoch = self._assign(batch, batch.headers)
        self._learn(batch.headers, channel, epoch)

    def next_pass(self) -> None:
        """Begin another pass. Raises `UsageError` where numbers would outgrow their field."""
        self._resets.clear()
        for channel, epochs in self._epochs.items():
            first = self._first_epoch(epochs)
            last = epochs[-1]
            moves = self._moves.get(channel, [0] * len(epochs))
            lowest = epochs[first].lowest
            if lowest is None:
                continue
            move = last.after + moves[-1] - lowest
            self._check(epochs[first].after + move)
            self._moves[channel] = [move] * (first + 1) + [0] * (len(epochs) - first - 1)
        self._learning = False

    def _check(self, after: int) -> None:
        """Raise `UsageError` where numbers outgrow their field."""
        if after > 1 << self._table.number_bits():
            raise UsageError(
                "the sequence numbers have reached the end of their field",
                "loop less often, or begin a new session",
            )

    @staticmethod
    def _first_epoch(epochs: list[_Epoch]) -> int:
        """Return the first epoch that has data; resets before it are not repeated."""
        for number, epoch in enumerate(epochs):
            if epoch.lowest is not None:
                return number
        return 0

    def _assign(self, batch: DatagramBatch, headers: PacketHeaders) -> tuple[Array, Array]:
        """Return the channel and the epoch of each datagram (int64), counting resets."""
        line = (batch.destination.astype(np.int64) << 16) | batch.destination_port
        channel = line if self._by_endpoint else headers.service.astype(np.int64)
        channel = channel * 2 + headers.compressed
        resets = (headers.kind == PacketKind.RESET) & (headers.verdict == Reject.FINE)
        epoch = np.zeros(len(batch), np.int64)
        if not self._resets and not resets.any():
            return channel, epoch
        # One number a pair of channel and line: 64 bits are enough to distinguish some dozens.
        mixed = channel.astype(np.uint64) * _MIX ^ line.astype(np.uint64)
        _, firsts, which = np.unique(mixed, return_index=True, return_inverse=True)
        for number, first in enumerate(firsts.tolist()):
            pair = (int(channel[first]), int(line[first]))
            here = np.flatnonzero(which == number)
            counted = np.cumsum(resets[here])
            before = self._resets.get(pair, 0)
            epoch[here] = before + counted
            if counted[-1]:
                self._resets[pair] = before + int(counted[-1])
        if len(self._resets) > LINES_MAX:
            raise UsageError(f"more than {LINES_MAX:,} lines and channels", "loop a part of them")
        return channel, epoch

    def _learn(self, headers: PacketHeaders, channel: Array, epoch: Array) -> None:
        fine = headers.verdict == Reject.FINE
        data = fine & (headers.kind == PacketKind.DATA)
        positioned = data | (fine & (headers.kind == PacketKind.RESET)) | self._positioned(headers)
        key = channel * EPOCHS_MAX + epoch
        if epoch.max(initial=0) >= EPOCHS_MAX:
            raise UsageError(f"more than {EPOCHS_MAX:,} resets of one channel", "loop a part")
        for number in np.unique(key[positioned]).tolist():
            learned = self._epoch(number // EPOCHS_MAX, number % EPOCHS_MAX)
            here = key == number
            learned.after = max(learned.after, int(headers.next_sequence[here & positioned].max()))
            numbers = headers.sequence[here & data]
            if len(numbers):
                lowest = int(numbers.min())
                learned.lowest = lowest if learned.lowest is None else min(learned.lowest, lowest)

    def _positioned(self, headers: PacketHeaders) -> Array:
        """Return a mask of the heartbeats whose number states a position in the sequence."""
        if self._table.heartbeat_adds < 0:
            return np.zeros(len(headers), bool)
        positioned = (headers.verdict == Reject.FINE) & (headers.kind == PacketKind.HEARTBEAT)
        if self._table.sets_aside:
            positioned &= headers.sequence != np.uint64(self._table.unsequenced)
        return positioned

    def _epoch(self, channel: Channel, number: int) -> _Epoch:
        epochs = self._epochs.setdefault(channel, [])
        if len(self._epochs) > LINES_MAX:
            raise UsageError(f"more than {LINES_MAX:,} channels", "loop a part of them")
        while len(epochs) <= number:
            epochs.append(_Epoch())
        return epochs[number]

    def _renumber(
        self, batch: DatagramBatch, headers: PacketHeaders, channel: Array, epoch: Array
    ) -> DatagramBatch:
        """Write the numbers of this pass, and leave out the resets that are not repeated."""
        moves = np.zeros(len(batch), np.int64)
        again = np.zeros(len(batch), bool)
        for one in np.unique(channel).tolist():
            here = np.flatnonzero(channel == one)
            amounts = np.array([*self._moves.get(one, ()), 0], np.int64)
            moves[here] = amounts[np.minimum(epoch[here], len(amounts) - 1)]
            first = self._first_epoch(self._epochs.get(one, []))
            again[here] = epoch[here] <= first
        fine = headers.verdict == Reject.FINE
        moved = (fine & (headers.kind == PacketKind.DATA)) | self._positioned(headers)
        rows = np.flatnonzero(moved & (moves != 0))
        if len(rows):
            batch = self._write(batch, headers, rows, moves[rows].astype(np.uint64))
        leading = fine & (headers.kind == PacketKind.RESET) & again
        if leading.any():
            self.dropped_resets += int(leading.sum())
            batch = batch.select(~leading)
        return batch

    def _write(
        self, batch: DatagramBatch, headers: PacketHeaders, rows: Array, moves: Array
    ) -> DatagramBatch:
        sequence, after = headers.sequence.copy(), headers.next_sequence.copy()
        sequence[rows] += moves
        after[rows] += moves
        write_sequences(self._table, batch.data, batch.offset[rows], sequence[rows])
        changed = headers.select(slice(None))
        changed.sequence, changed.next_sequence = sequence, after
        return dataclasses.replace(batch, headers=changed)
