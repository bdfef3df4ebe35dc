"""Faults on purpose: loss, duplication, reordering and delay per line, the same for every run.

The fault model, line by line and independently of the other lines:

- *loss*: a datagram is not sent on this line;
- *duplication*: it is sent twice in a row;
- *reordering*: it is overtaken by the next 1 to `reorder_distance` datagrams of its line (a
  uniform draw), and goes out right after the last of them;
- *delay*: everything on the line is `delay_us` late, plus a draw of up to `jitter_us` a datagram.
  A line is a queue: jitter stretches it but does not reorder it.

With `spare_shared` a datagram that one line has lost is never lost on a later line: every loss
can be made good from the other line. The lines later in the list then lose a little less than
their rate: B with rate b loses b times the share that A kept.

Beside what the lines do independently there is *shared loss*: `together` is the rate at which one
datagram is lost on every line at once, as behind a broken switch. What is lost like that can only
be fetched again. `spare_shared` leaves it alone: what was lost together is never spared.

An `Injector` is fed with the due times of consecutive datagrams, in chunks of any size, and
answers per line with the sends in their order. It is sans-IO. Each line and each kind of fault,
and shared loss, draws from a random stream of its own, one draw a datagram, so the outcome depends
on the seed and on the datagram's number alone: not on the chunk size, nor on whether another fault
is on.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError

#: How far reordering may displace a datagram: what waits for its turn is held in memory.
REORDER_DISTANCE_MAX = 4_096
#: Delay and jitter at most: what waits is held in memory.
DELAY_US_MAX = 10_000_000

Array = np.ndarray[Any, Any]

_LOSS, _DUPLICATE, _REORDER, _DISTANCE, _JITTER = range(5)
#: What shared loss draws from: no line has this number.
_TOGETHER_STREAM = (1 << 16,)


@dataclasses.dataclass(frozen=True, slots=True)
class LineFaults:
    """Faults of one line. Rates are probabilities, 0.0 to 1.0."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_distance: int = 8
    delay_us: int = 0
    jitter_us: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            rate = getattr(self, name)
            if not 0.0 <= rate <= 1.0:
                raise UsageError(f"{name} is a probability, not {rate}", "give 0.05 for 5 %")
        if not 1 <= self.reorder_distance <= REORDER_DISTANCE_MAX:
            raise UsageError(
                f"reorder_distance is {self.reorder_distance}",
                f"give 1 to {REORDER_DISTANCE_MAX:,} datagrams",
            )
        for name in ("delay_us", "jitter_us"):
            if not 0 <= getattr(self, name) <= DELAY_US_MAX:
                raise UsageError(
                    f"{name} is {getattr(self, name)}", f"give 0 to {DELAY_US_MAX:,} microseconds"
                )

    @property
    def shifts_time(self) -> bool:
        """Whether sends leave later than their due time."""
        return bool(self.delay_us or self.jitter_us)


@dataclasses.dataclass(slots=True)
class FaultCounts:
    """Counts of one line. `sends` = `datagrams` - `dropped` + `duplicated`."""

    datagrams: int = 0
    sends: int = 0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    #: Not dropped, only because another line had lost the same datagram.
    spared: int = 0
    #: Of the dropped ones, those that every line lost at once.
    together: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LineSends:
    """Sends of one line in their order.

    `due_ns` int64, never falling: when each leaves; `index` int64: which datagram, counted from
    the injector's first; `turn` int64, never falling: with or after which datagram of the stream
    it leaves, which is how sends of several lines that are due at once are best put in order.
    """

    due_ns: Array
    index: Array
    turn: Array

    def __len__(self) -> int:
        return len(self.index)


@dataclasses.dataclass(slots=True)
class _Line:
    """One line's streams and what it holds back for a later chunk."""

    faults: LineFaults
    streams: list[np.random.Generator]
    counts: FaultCounts = dataclasses.field(default_factory=FaultCounts)
    held_index: Array = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    held_after: Array = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    last_due_ns: int = np.iinfo(np.int64).min

    def draw(self, kind: int, count: int) -> Array:
        return self.streams[kind].random(count)

    def happens(self, kind: int, rate: float, count: int) -> Array:
        """Decide for each datagram; no draw where the fault is off."""
        return self.draw(kind, count) < rate if rate else np.zeros(count, bool)


class Injector:
    """Plans the sends of several lines; see the module's text.

    `lines`: the faults of each line, in the order A, B, ...; `seed`: any non-negative integer;
    `together`: the rate of shared loss, a probability. `counts` has a `FaultCounts` a line.
    """

    def __init__(
        self,
        lines: Sequence[LineFaults],
        seed: int = 0,
        spare_shared: bool = False,
        together: float = 0.0,
    ) -> None:
        if seed < 0:
            raise UsageError(f"a seed is not negative, {seed} is", "give 0 or more")
        if not 0.0 <= together <= 1.0:
            raise UsageError(f"together is a probability, not {together}", "give 0.05 for 5 %")
        self.seed = seed
        self.spare_shared = spare_shared
        self.together = together
        self._together_stream = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=_TOGETHER_STREAM)
        )
        self._lines = [
            _Line(
                faults,
                [
                    np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, kind)))
                    for kind in range(5)
                ],
            )
            for number, faults in enumerate(lines)
        ]
        self._next_index = 0

    @property
    def counts(self) -> list[FaultCounts]:
        """Counts so far, per line."""
        return [line.counts for line in self._lines]

    @property
    def oldest_held(self) -> int:
        """The lowest number of a datagram that is still to be sent; the next one's if none is."""
        held = [int(line.held_index.min()) for line in self._lines if len(line.held_index)]
        return min([self._next_index, *held])

    def plan(self, due_ns: Array, present: Sequence[Array] | None = None) -> list[LineSends]:
        """Return the sends, per line, that the next datagrams make final.

        `due_ns` int64, never falling, also from chunk to chunk: when each would leave without
        faults. `present`, where given, holds a bool array a line: whether the datagram exists on
        that line at all. Datagrams displaced past the last one given here come with a later
        call, or with `finish`.
        """
        due_ns = np.asarray(due_ns, np.int64)
        first = self._next_index
        self._next_index += len(due_ns)
        together = np.zeros(len(due_ns), bool)
        if self.together:
            together = self._together_stream.random(len(due_ns)) < self.together
        lost_before = np.zeros(len(due_ns), bool)
        answer = []
        for number, line in enumerate(self._lines):
            here = present[number] if present is not None else None
            kept = self._keep(line, together, lost_before, here)
            answer.append(self._order(line, due_ns, first, kept))
        return answer

    def finish(self) -> list[LineSends]:
        """Return the sends still held back, per line, at the end of the stream."""
        answer = []
        for line in self._lines:
            order = np.argsort(line.held_after, kind="stable")
            index, turn = line.held_index[order], line.held_after[order] // 2
            line.held_index = line.held_after = np.empty(0, np.int64)
            line.counts.sends += len(index)
            due_ns = np.full(len(index), line.last_due_ns, np.int64)
            answer.append(LineSends(due_ns, index, turn))
        return answer

    def restart(self) -> None:
        """Discard what is held back and begin due times at 0 again; random draws continue."""
        for line in self._lines:
            line.held_index = line.held_after = np.empty(0, np.int64)
            line.last_due_ns = np.iinfo(np.int64).min

    def _keep(
        self, line: _Line, together: Array, lost_before: Array, present: Array | None
    ) -> Array:
        """Draw how often each datagram is sent on this line: 0, 1 or 2. Updates `lost_before`.

        `together`: a mask of those lost on every line.
        """
        faults, count = line.faults, len(together)
        lost = line.happens(_LOSS, faults.loss, count)
        twice = line.happens(_DUPLICATE, faults.duplicate, count)
        if present is not None:
            lost &= present
        if self.spare_shared:
            spared = lost & lost_before
            line.counts.spared += int(spared.sum())
            lost &= ~lost_before
            lost_before |= lost
        shared = together if present is None else together & present
        line.counts.together += int(shared.sum())
        lost |= shared
        copies = np.where(lost, 0, 1 + twice)
        if present is not None:
            copies[~present] = 0
            count = int(present.sum())
        line.counts.datagrams += count
        line.counts.dropped += int(lost.sum())
        line.counts.duplicated += int((copies == 2).sum())
        return copies

    def _order(self, line: _Line, due_ns: Array, first: int, copies: Array) -> LineSends:
        """Put the sends into the order in which they leave, and hold back what comes later."""
        faults = line.faults
        count = len(due_ns)
        index = np.arange(first, first + count, dtype=np.int64)
        # Twice the number of the datagram after which it leaves; odd: displaced to behind it.
        after = 2 * index
        if faults.reorder:
            moved = line.happens(_REORDER, faults.reorder, count)
            steps = 1 + (line.draw(_DISTANCE, count) * faults.reorder_distance).astype(np.int64)
            after += np.where(moved, 2 * steps + 1, 0)
            line.counts.reordered += int((moved & (copies > 0)).sum())
        leaves_ns = due_ns + faults.delay_us * 1_000
        if faults.jitter_us:
            leaves_ns += (line.draw(_JITTER, count) * faults.jitter_us * 1_000).astype(np.int64)
        index = np.concatenate([line.held_index, np.repeat(index, copies)])
        after = np.concatenate([line.held_after, np.repeat(after, copies)])
        if faults.reorder:
            order = np.argsort(after, kind="stable")
            index, after = index[order], after[order]
            now = int(np.searchsorted(after, 2 * (first + count), side="left"))
            line.held_index, line.held_after = index[now:], after[now:]
            index, after = index[:now], after[:now]
        line.counts.sends += len(index)
        # A displaced datagram leaves with the one before it; nothing leaves before that did.
        turn = after // 2
        due = leaves_ns[turn - first] if count else np.empty(0, np.int64)
        if faults.jitter_us and len(due):
            due = np.maximum(np.maximum.accumulate(due), line.last_due_ns)
        if count:
            latest = int(due[-1]) if len(due) else line.last_due_ns
            line.last_due_ns = max(latest, int(due_ns[-1]) + faults.delay_us * 1_000)
        return LineSends(due, index, turn)
