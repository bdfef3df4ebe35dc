"""Interarrival of each symbol's messages in one stretch of a capture: no I/O, compiled, mergeable.

`Interarrival` takes of each message its *channel* (one service on one line), its symbol, its time
and the *cell* that its interarrival is counted in (a channel and a message type). Messages are
taken in the order of the capture. Of every symbol of every channel it keeps the count and the first
and the last occurrence, so that two stretches that follow one another can be put together: what is
missing between them is one interarrival a symbol, which `digest` adds. The result equals that of a
window function over the whole capture, on any input.

An interarrival is the time since the message before of the same symbol and channel; messages of
one packet have the same time, so it is often 0. Where the capture's clock stepped back it would be
negative: those are counted apart (`backwards`) and are in no bucket.
"""

import cython
import numpy as np
from cython.cimports.feedhandler.histogram import fine_bucket_of

from feedhandler.codecs.visibility import Public
from feedhandler.histogram import FINE_BUCKETS

#: Symbols of all channels together; what comes beyond is counted (`overflow`) and left out.
SYMBOLS_MAX = 1 << 22
_SYMBOLS_MAX = cython.declare(cython.Py_ssize_t, SYMBOLS_MAX)
_WITHIN_SHORT = cython.declare(cython.longlong, 1_000_000)
_WITHIN_LONG = cython.declare(cython.longlong, 10_000_000)

#: Spreads neighbouring symbols over the table (the golden ratio's fraction, halved).
_FACTOR = cython.declare(cython.ulonglong, 0x4F1B_BCDC_BFA5_3E0B)

_FIRST_CAPACITY, _FIRST_CELLS = 1 << 10, 8


@cython.final
@cython.cclass
class Interarrival:
    """Interarrival histograms; see the module's text.

    A row for each symbol of a channel, in order of appearance: symbols u64, channels i32, counts
    i64, first_ns and last_ns i64, first_cells i32 (the cell of the first occurrence). A row for
    each cell: buckets u32[FINE_BUCKETS], within_1ms, within_10ms, backwards i64. `rows` and `cells`
    are how many are in use.
    """

    rows: Public[cython.Py_ssize_t]
    cells: Public[cython.Py_ssize_t]
    overflow: Public[cython.Py_ssize_t]
    capacity: Public[cython.Py_ssize_t]
    symbols: Public[cython.ulonglong[::1]]
    channels: Public[cython.int[::1]]
    counts: Public[cython.longlong[::1]]
    first_ns: Public[cython.longlong[::1]]
    last_ns: Public[cython.longlong[::1]]
    first_cells: Public[cython.int[::1]]
    buckets: Public[cython.uint[:, ::1]]
    tallies: Public[cython.longlong[:, ::1]]
    _slots: cython.int[::1]
    _bits: cython.int

    def __init__(self) -> None:
        self.rows = 0
        self.cells = 0
        self.overflow = 0
        self._bits = 11
        self._allot(_FIRST_CAPACITY)
        self._allot_cells(_FIRST_CELLS)

    def _allot(self, capacity: cython.Py_ssize_t) -> None:
        """Allocate so many rows, keep those in use, and rebuild the hash table."""
        rows: cython.Py_ssize_t = self.rows
        row: cython.Py_ssize_t
        kept = self.columns() if rows else {}
        made = {
            "symbols": np.zeros(capacity, np.uint64),
            "channels": np.zeros(capacity, np.int32),
            "counts": np.zeros(capacity, np.int64),
            "first_ns": np.zeros(capacity, np.int64),
            "last_ns": np.zeros(capacity, np.int64),
            "first_cells": np.zeros(capacity, np.int32),
        }
        for name, column in kept.items():
            made[name][:rows] = column
        self.symbols = memoryview(made["symbols"])
        self.channels = memoryview(made["channels"])
        self.counts = memoryview(made["counts"])
        self.first_ns = memoryview(made["first_ns"])
        self.last_ns = memoryview(made["last_ns"])
        self.first_cells = memoryview(made["first_cells"])
        self.capacity = capacity
        while 1 << self._bits < 2 * capacity:
            self._bits += 1
        self._slots = memoryview(np.full(1 << self._bits, -1, np.int32))
        for row in range(rows):
            self._slots[self._find(self.channels[row], self.symbols[row])] = row

    def _allot_cells(self, cells: cython.Py_ssize_t) -> None:
        """Allocate so many cells, and keep those in use."""
        buckets = np.zeros((cells, FINE_BUCKETS), np.uint32)
        tallies = np.zeros((3, cells), np.int64)
        if self.cells:
            buckets[: self.cells] = np.asarray(self.buckets)[: self.cells]
            tallies[:, : self.cells] = np.asarray(self.tallies)[:, : self.cells]
        self.buckets = memoryview(buckets)
        self.tallies = memoryview(tallies)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _find(self, channel: cython.int, symbol: cython.ulonglong) -> cython.Py_ssize_t:
        """Find a symbol's slot in the hash table: its own, or the free one where it belongs."""
        mixed: cython.ulonglong = symbol ^ (cython.cast(cython.ulonglong, channel) << 40)
        mixed = mixed * _FACTOR
        if not cython.compiled:
            mixed &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        mask: cython.Py_ssize_t = (cython.cast(cython.Py_ssize_t, 1) << self._bits) - 1
        index: cython.Py_ssize_t = mixed >> (64 - self._bits)
        while True:
            row: cython.int = self._slots[index]
            if row < 0 or (self.symbols[row] == symbol and self.channels[row] == channel):
                return index
            index = (index + 1) & mask

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note(
        self,
        cell: cython.int,
        channel: cython.int,
        symbol: cython.ulonglong,
        time_ns: cython.longlong,
    ) -> cython.int:
        """Count one message. Called in the order of the capture."""
        if cell >= self.cells:
            self.know(cell)
        index: cython.Py_ssize_t = self._find(channel, symbol)
        row: cython.int = self._slots[index]
        if row < 0:
            return self._begin(index, cell, channel, symbol, time_ns)
        since: cython.longlong = time_ns - self.last_ns[row]
        self.last_ns[row] = time_ns
        self.counts[row] += 1
        if since < 0:
            self.tallies[2, cell] += 1
            return 0
        self.buckets[cell, fine_bucket_of(since)] += 1
        self.tallies[0, cell] += since <= _WITHIN_SHORT
        self.tallies[1, cell] += since <= _WITHIN_LONG
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def know(self, cell: cython.int) -> cython.int:
        """Begin a new cell, the one after the last."""
        with cython.gil:
            if cell >= len(self.buckets):
                self._allot_cells(2 * len(self.buckets))
            self.cells = cell + 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _begin(
        self,
        index: cython.Py_ssize_t,
        cell: cython.int,
        channel: cython.int,
        symbol: cython.ulonglong,
        time_ns: cython.longlong,
    ) -> cython.int:
        """Add a symbol that has not been seen on its channel yet, or count it as overflow."""
        if self.rows == self.capacity:
            if self.rows >= _SYMBOLS_MAX:
                self.overflow += 1
                return 0
            with cython.gil:
                self._allot(2 * self.capacity)
            index = self._find(channel, symbol)
        row: cython.Py_ssize_t = self.rows
        self._slots[index] = cython.cast(cython.int, row)
        self.symbols[row] = symbol
        self.channels[row] = channel
        self.counts[row] = 1
        self.first_ns[row] = self.last_ns[row] = time_ns
        self.first_cells[row] = cell
        self.rows = row + 1
        return 0

    def columns(self) -> dict[str, np.ndarray]:
        """Return the rows in use as arrays by name (views)."""
        return {
            name: np.asarray(getattr(self, name))[: self.rows]
            for name in ("symbols", "channels", "counts", "first_ns", "last_ns", "first_cells")
        }

    def histograms(self) -> dict[str, np.ndarray]:
        """Return what was counted, without the empty buckets.

        `cell` i32, `bucket` i32, `count` i64; and `tallies` i64[3, cells]: within 1 ms, within 10
        ms, backwards.
        """
        used = np.asarray(self.buckets)[: self.cells]
        cell, bucket = np.nonzero(used)
        return {
            "cell": cell.astype(np.int32),
            "bucket": bucket.astype(np.int32),
            "count": used[cell, bucket].astype(np.int64),
            "tallies": np.asarray(self.tallies)[:, : self.cells].copy(),
        }
