"""A queue block in memory: the status of each of its items, and their positions in the file.

What it is for: finding an item by its id, marking it, and knowing what the block's two checkpoints
on disk cover. A block holds consecutive ids, from `first_id` on. What it leaves to others: when
checkpoints are written (`store.py`) and which block is used next. No I/O.

The block's `lock` must be held to read or change an item's status. In an open queue that is a mutex
(`engine.py`); a simulation has no threads and needs no lock.
"""

import contextlib
import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feedhandler.journal.groups import Group, Pledge
from feedhandler.journal.layout import (
    MARKED,
    VERSION,
    Checkpoint,
    Geometry,
    Roll,
    Status,
    pack_checkpoint,
)
from feedhandler.journal.segments import BlockIdentity

_PENDING = b"\0"
#: Translation of status bytes on disk: to the status, whatever the mark; and to the mark.
_STATUSES = bytes(range(MARKED)) + bytes(MARKED)
_MARKS = bytes(MARKED) + bytes(range(MARKED))

#: A mutex, or a null context where there are no threads.
Lock = contextlib.AbstractContextManager[Any]


class Block:
    """A block in use, or free (`incarnation` 0).

    `end`: where its next segment goes. `active`: how many items are pending. `slot`: index of the
    older checkpoint, which is written next. `uncovered`: for each checkpoint the sequence of the
    first change that it lacks; 0: it has all. `marks`: of each item up to the last one with a mark;
    `pledges`: changes by groups that are not on the disk yet; `moved`: positions of segments with
    items that were moved there; `serial` and `as_of`: of the checkpoint that the block was read
    from.
    """

    def __init__(
        self, queue_id: bytes, path: str, geometry: Geometry, state: Checkpoint,
        version: int = VERSION,
    ) -> None:  # fmt: skip
        self.queue_id = queue_id
        self.version = version
        self.pledges: list[Pledge] = []
        self.path = path
        self.geometry = geometry
        self.number = state.block
        self.slot = 0
        self.uncovered = [0, 0]
        self.lock: Lock = contextlib.nullcontext()
        self._restore(state)

    def _restore(self, state: Checkpoint) -> None:
        self.incarnation = state.incarnation
        self.first_id = state.first_id
        self.statuses = bytearray(state.statuses.translate(_STATUSES))
        self.marks = bytearray(state.statuses.translate(_MARKS).rstrip(_PENDING))
        self.moved = set(state.moved)
        self.serial, self.as_of = state.serial, state.as_of
        self.ordinals = array("I", state.ordinals)
        self.offsets = array("Q", state.offsets)
        self.end = state.end or self.geometry.data
        self.first_stamp_ns = state.first_stamp_ns
        self.last_stamp_ns = state.last_stamp_ns
        self.last_sequence = state.last_sequence
        self.active = self.statuses.count(_PENDING)
        self.identity = BlockIdentity(self.queue_id, self.number, self.incarnation)

    def begin(self, incarnation: int, first_id: int, sequence: int) -> None:
        """Recycle the block: begin a new use of it, without items."""
        state = Checkpoint(self.queue_id, self.number, incarnation=incarnation)
        state.first_id, state.last_sequence = first_id, sequence
        self._restore(state)
        self.uncovered = [sequence + 1, sequence + 1]

    @property
    def next_id(self) -> int:
        """The id after its last item's."""
        return self.first_id + len(self.statuses)

    def holds(self, number: int) -> bool:
        """Return whether item `number` is in the block."""
        return self.first_id <= number < self.first_id + len(self.statuses)

    @property
    def reusable(self) -> bool:
        """Return whether the block may be recycled: nothing in it is pending or pledged."""
        return self.active == 0 and not self.pledges

    def has_room(self, length: int, items: int) -> bool:
        """Return whether a segment of `length` bytes and so many items fits."""
        return (
            self.end + length <= self.geometry.tail
            and len(self.statuses) + items <= self.geometry.items_max
        )

    def add_segment(
        self, length: int, first_id: int, items: int, stamp_ns: int, sequence: int
    ) -> None:
        """Add the segment that stands at `end`; ids that were skipped are those of lost items."""
        if items:
            lost = first_id - self.next_id
            if lost > 0:
                self.statuses.extend(bytes([Status.DAMAGED]) * lost)
            self.ordinals.append(len(self.statuses))
            self.offsets.append(self.end)
            self.statuses.extend(bytes(items))
            self.active += items
            self.first_stamp_ns = self.first_stamp_ns or stamp_ns
            self.last_stamp_ns = stamp_ns
        self.end += length
        self.last_sequence = sequence
        self.touch(sequence)

    def touch(self, sequence: int) -> None:
        """Record a change that is journalled with `sequence` at the earliest."""
        for slot in (0, 1):
            if not self.uncovered[slot]:
                self.uncovered[slot] = sequence

    def is_pending(self, number: int) -> bool:
        """Return whether item `number`, which the block holds, is pending."""
        return not self.statuses[number - self.first_id]

    def mark_of(self, number: int) -> int:
        """Return the mark of item `number`, which the block holds."""
        at = number - self.first_id
        return self.marks[at] if at < len(self.marks) else 0

    def set_mark(self, number: int, mark: int, sequence: int) -> None:
        """Set the mark of item `number`, where it is pending."""
        at = number - self.first_id
        if self.statuses[at]:
            return
        if at >= len(self.marks):
            if not mark:
                return
            self.marks.extend(bytes(at + 1 - len(self.marks)))
        self.marks[at] = mark
        self.touch(sequence)

    def byte_of(self, number: int) -> int:
        """Return item `number`'s status as a byte on disk."""
        at = number - self.first_id
        return self.statuses[at] or (self.mark_of(number) and MARKED | self.mark_of(number))

    def has_read(self, sequence: int) -> bool:
        """Return whether the checkpoint that the block was read from covers that segment."""
        return self.serial > 0 and (self.as_of - sequence) & 0xFFFFFFFF < 1 << 31

    def set_byte(self, number: int, byte: int, sequence: int) -> None:
        """Set item `number`'s status and mark from a status byte on disk, whatever they were."""
        at = number - self.first_id
        status = _STATUSES[byte]
        self.active += (not status) - (not self.statuses[at])
        self.statuses[at] = 0
        self.set_mark(number, _MARKS[byte], sequence)
        self.statuses[at] = status
        self.touch(sequence)

    def pledge(self, group: Group, number: int, byte: int, sequence: int) -> None:
        """Set item `number`'s status byte by a group that is not on the disk yet."""
        after = _STATUSES[byte] or (_MARKS[byte] and byte)
        # First the pledge: who makes a segment looks at both, and has no lock of the block.
        self.pledges.append(Pledge(group, number, self.byte_of(number), after))
        self.set_byte(number, byte, sequence)
        group.blocks.add(self)

    def redeem(self, group: Group, sequence: int) -> None:
        """Drop the group's pledges: it is on the disk, in the segment of that sequence."""
        self.pledges = [pledge for pledge in self.pledges if pledge.group is not group]
        self.touch(sequence)

    def set_status(self, number: int, status: int, sequence: int) -> bool:
        """Set the status of item `number`, where it is pending; return whether it was."""
        return self.set_run(number, 1, status, sequence)

    def set_run(self, first: int, count: int, status: int, sequence: int) -> bool:
        """Set the status of `count` items from `first` on; return False unless all are pending.

        It is journalled with `sequence` at the earliest.
        """
        at = first - self.first_id
        if any(self.statuses[at : at + count]):
            return False
        self.statuses[at : at + count] = bytes([status]) * count
        self.active -= count
        self.touch(sequence)
        return True

    def apply_run(self, first: int, count: int, status: int, sequence: int) -> int:
        """Apply a status record for `count` items from `first` on; return how many it changed.

        It changes pending items, and those whose bytes do not verify: these had ended before the
        loss could matter.
        """
        if self.set_run(first, count, status, sequence):
            return count
        marked = 0
        for at in range(first - self.first_id, first - self.first_id + count):
            if self.statuses[at] in (Status.PENDING, Status.DAMAGED):
                self.active -= not self.statuses[at]
                self.statuses[at] = status
                marked += 1
        self.touch(sequence)
        return marked

    def next_pending(self, number: int) -> int:
        """Return the first pending id from `number` on; -1 where there is none."""
        found = self.statuses.find(_PENDING, max(number - self.first_id, 0))
        return found + self.first_id if found >= 0 else -1

    def pending_from(self, number: int, limit: int) -> list[int]:
        """Return up to `limit` pending ids from `number` on.

        They lie among the `limit` ids from the first pending one on, so there may be more behind.
        """
        if not self.active or (first := self.next_pending(number)) < 0:
            return []
        at = first - self.first_id
        statuses = self.statuses[at : at + limit]
        if not any(statuses):
            return list(range(first, first + len(statuses)))
        return [first + n for n, status in enumerate(statuses) if not status]

    def span_of(self, number: int) -> tuple[int, int]:
        """Return where the segment of item `number` begins, and the latest position of its end.

        (0, 0) where the block holds no such item. The lock is not needed.
        """
        offsets = self.offsets
        at = bisect_right(self.ordinals, number - self.first_id) - 1
        if not 0 <= at < len(offsets):
            return 0, 0
        return offsets[at], offsets[at + 1] if at + 1 < len(offsets) else self.end

    def span_at(self, offset: int) -> tuple[int, int]:
        """Return where a segment with items begins, and the latest position of its end."""
        at = self.offsets.index(offset)
        return offset, self.offsets[at + 1] if at + 1 < len(self.offsets) else self.end

    def checkpoint(
        self, serial: int, stamp_ns: int, next_id: int, roll: Roll, sequence: int
    ) -> tuple[int, bytes]:
        """Return the older checkpoint's position and its new bytes.

        It then covers everything up to the segment of that sequence.
        """
        state = Checkpoint(
            self.queue_id, self.number, serial, self.incarnation, stamp_ns, self.first_id,
            next_id, self.end, self.first_stamp_ns, self.last_stamp_ns, self.last_sequence,
            self.active, roll, self.ordinals, self.offsets, self.packed_statuses(),
            frozenset(self.moved), self.version, sequence & 0xFFFFFFFF,
        )  # fmt: skip
        position = self.geometry.checkpoints[self.slot]
        self.uncovered[self.slot] = 0
        self.slot = 1 - self.slot
        return position, pack_checkpoint(state)

    @property
    def marked(self) -> int:
        """Return how many pending items have a mark."""
        return sum(map(self.is_marked, range(self.first_id, self.first_id + len(self.marks))))

    def is_marked(self, number: int) -> bool:
        """Return whether item `number` is pending and has a mark."""
        return self.is_pending(number) and self.mark_of(number) > 0

    def packed_statuses(self) -> bytes:
        """Return a status byte for each item, as on disk: with marks, without pledged changes."""
        if not self.marks and not self.pledges:
            return bytes(self.statuses)
        data = bytearray(self.statuses)
        if self.marks:
            some = np.frombuffer(data, np.uint8)[: len(self.marks)]
            marks = np.frombuffer(self.marks, np.uint8)
            some[(some == 0) & (marks > 0)] |= MARKED
            some[some == MARKED] |= marks[some == MARKED]
        for pledge in reversed(self.pledges):
            at = pledge.number - self.first_id
            if data[at] == pledge.after:
                data[at] = pledge.before
        return bytes(data)

    @property
    def dirty(self) -> bool:
        """Return whether neither checkpoint covers everything."""
        return bool(self.uncovered[0] and self.uncovered[1])


def pending_slots(
    live: Sequence[Block], numbers: Mapping[int, int]
) -> Iterator[tuple[int, Block, int]]:
    """Return pending items in order of ids: id, block, and slot, which is the id unless moved.

    `numbers`: ids of moved items by their slots. The blocks must not change during the iteration.
    """
    moved = []
    for slot, number in numbers.items():
        for block in live:
            if block.holds(slot) and block.is_pending(slot):
                moved.append((number, block, slot))
    moved.sort(key=lambda entry: entry[0])
    return heapq.merge(moved, _standing(live, numbers), key=lambda entry: entry[0])


def _standing(
    live: Sequence[Block], numbers: Mapping[int, int]
) -> Iterator[tuple[int, Block, int]]:
    """Yield pending items that were not moved, in order."""
    for block in live:
        number = block.next_pending(block.first_id)
        while number >= 0:
            if number not in numbers:
                yield number, block, number
            number = block.next_pending(number + 1)
