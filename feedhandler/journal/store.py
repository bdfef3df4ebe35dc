"""A queue's journal and its blocks: what is written where and when, as steps for the caller.

What it is for: `add` takes contents into the journal and gives them ids, `record` takes status
changes; `seal` makes a segment of what waits and plans the writes and syncs that make it durable
(`Flush`); once these are done, `complete_flush` makes it count. One flush at a time: so whatever
does not verify behind the last good segment was never acknowledged.

When the block is full the next one is begun: a free one, or one in which nothing is pending. Before
a block is recycled everything that only its status records had is in the checkpoints of the blocks
concerned, in both of each, and its items' final status is in the file `ended`. Where no block is
available, items wait and status changes are still taken: when there is no room for them either,
checkpoints are written instead.

A round of checkpoints (every `checkpoint_bytes`, and with each new block) writes each block whose
checkpoints lack something, syncs it, and only then the newest block's, which has the position to
roll forward from.

While a segment is in flight and another segment's worth waits, `prepare` makes the next one, so
that the disk gets it as soon as the first is done.

What waits is guarded by `lock`, each block by its own (`Delivery` gives the order). One thread at a
time flushes: with `lock` alone where the segment fits into the newest block, else (`BlocksNeeded`)
with the locks of all blocks too (`everything`). Where there are no threads all locks are null
contexts.

No I/O and no clock: the time is an argument, and the caller executes the steps (`files.carry_out`).
A step that fails ends the store's life: memory may then be ahead of the disk.
"""

import contextlib
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from feedhandler.codecs.errors import UsageError
from feedhandler.journal.batch import Batch
from feedhandler.journal.block import Block, Lock
from feedhandler.journal.files import Create, Replace, Step, Sync, Write, WriteThrough
from feedhandler.journal.groups import (
    Group,
    Move,
    Pledge,
    Record,
    move_records,
)
from feedhandler.journal.layout import (
    TAIL_MAGIC,
    VERSION,
    BlockEntry,
    BlockHeader,
    Checkpoint,
    Control,
    Geometry,
    Roll,
    Status,
    pack_checkpoint,
    pack_control,
    pack_header,
    pages,
)
from feedhandler.journal.pending_batch import PendingBatch
from feedhandler.journal.producer_states import NAMES as PRODUCERS_NAMES
from feedhandler.journal.recovery import Recovered, block_path, control_path
from feedhandler.journal.segments import (
    STATUS_BYTES,
    build_segment,
    segment_bytes,
)
from feedhandler.journal.settings import QueueSettings, item_bytes_max
from feedhandler.journal.tombstone_index import FILE_BYTES_MAX as ENDED_BYTES_MAX
from feedhandler.journal.tombstone_index import KEEP_NS, Run, TombstoneIndex, runs_of
from feedhandler.journal.tombstone_index import NAME as ENDED_NAME

#: Upper limit on the status records of one segment: more wait for the next.
CHANGES_MAX = 4096
#: After so many status records checkpoints are due, whatever their bytes: each takes recovery a
#: microsecond.
CHANGES_CHECKPOINT = 1 << 16
#: Bytes reserved for what a segment has besides items; a great many status changes take more.
SEGMENT_SLACK = 16 << 10
#: Upper limit on the bytes blanked behind an interrupted write, so that recovery finds an end.
BLANK_BYTES_MAX = 4 << 20
#: The table of items of 1 KiB is a 64th of their bytes.
TABLE_SHARE = 64
BLOCK_NAME = "block-{:06}.queue"


@dataclass(slots=True)
class Flush:
    """One segment in flight: execute `steps` in order, then call `complete_flush`.

    `next_id`: ids below are durable afterwards; `changes_end`: how many status changes are (counted
    from the queue's opening); `groups_end`: how many of the groups that wait among items. `groups`:
    all groups in it.
    """

    steps: list[Step]
    next_id: int
    changes_end: int
    length: int = 0
    items: int = 0
    first_id: int = 0
    stamp_ns: int = 0
    crc: int = 0
    content_bytes: int = 0
    changes: int = 0
    groups: Sequence[Group] = ()
    groups_end: int = 0


class BlocksNeeded(Exception):
    """What waits needs more than the newest block's room: all blocks have to be locked."""


@dataclass(slots=True)
class Growth:
    """A new block that is being created: execute `steps`, then call `grown`."""

    steps: list[Step]
    control: Control
    block: Block


@dataclass(slots=True)
class Counts:
    """Counts since the queue was opened; `prepared`: segments made while another was in flight."""

    flushes: int = 0
    prepared: int = 0
    items: int = 0
    content_bytes: int = 0
    journal_bytes: int = 0
    changes: int = 0
    rounds: int = 0
    checkpoints: int = 0
    blocks_reused: int = 0
    blocks_grown: int = 0
    stalls: int = 0
    groups: int = 0
    moved: int = 0


def creation(
    folder: str, settings: QueueSettings, queue_id: bytes, now_ns: int, version: int = VERSION
) -> tuple[list[Step], Control]:
    """Return the steps that create a queue, and its control file, which is written last.

    The queue exists once the control file does.
    """
    geometry = Geometry(settings.block_bytes)
    steps: list[Step] = []
    blocks = []
    for number in range(1, settings.blocks + 1):
        entry = block_entry(settings, number)
        blocks.append(entry)
        path = block_path(folder, entry)
        steps += _new_block(path, queue_id, number, geometry, now_ns, version)
    control = Control(queue_id.hex(), settings.block_bytes, now_ns, tuple(blocks), version)
    names = (ENDED_NAME, *PRODUCERS_NAMES) if version >= VERSION else (ENDED_NAME,)
    steps += [Create(os.path.join(folder, name), 0) for name in names]
    steps.append(Replace(control_path(folder), pack_control(control)))
    return steps, control


def block_entry(settings: QueueSettings, number: int) -> BlockEntry:
    """Return where block `number` goes: the configured folders take turns."""
    name = BLOCK_NAME.format(number)
    if settings.paths:
        name = os.path.join(settings.paths[(number - 1) % len(settings.paths)], name)
    return BlockEntry(number, name)


def _new_block(
    path: str, queue_id: bytes, number: int, geometry: Geometry, now_ns: int, version: int
) -> list[Step]:
    """Return the steps that create a zero-filled block with header, tail and empty checkpoint."""
    header = BlockHeader(queue_id, number, geometry, now_ns, version)
    free = Checkpoint(queue_id, number, stamp_ns=now_ns, version=version)
    return [
        Create(path, geometry.block_bytes),
        Write(path, 0, pack_header(header)),
        Write(path, geometry.tail, pack_header(header, TAIL_MAGIC)),
        Write(path, geometry.checkpoints[0], pack_checkpoint(free)),
        Sync(path),
    ]


class Store:
    """The queue's writing side; see the module.

    `ended`: final statuses of ids below the live blocks; `live`: blocks in use, in the stream's
    order; `new_lock` makes a mutex, where there are threads.
    """

    def __init__(
        self,
        found: Recovered,
        settings: QueueSettings,
        tombstones: TombstoneIndex,
        new_lock: Callable[[], Lock] = contextlib.nullcontext,
    ) -> None:
        self.new_lock = new_lock
        self.lock = new_lock()
        self.folder = found.folder
        self.settings = settings
        self.control = found.control
        self.geometry = found.geometry
        self.queue_id = found.queue_id
        self.blocks = found.blocks
        for block in self.blocks:
            block.lock = new_lock()
        self.live = tuple(found.live)
        self.tombstones = tombstones
        self.ended_end = 0
        self.version = found.control.version
        self.producers = found.producers
        #: Slots of moved items by their ids; and their ids by their slots.
        self.slots, self.numbers = found.slots, found.numbers
        #: Heap of moved items that may not have been handed out yet.
        self.arrived = sorted(set(self.numbers.values()))
        self.moving = False
        self.counts = Counts()
        self.visible_end = found.next_id
        self.sequence = found.sequence
        self.chain = found.chain
        self.serial = found.serial
        self.incarnation = found.incarnation
        self.roll = found.roll
        self.stamp_ns = max((block.last_stamp_ns for block in self.live), default=0)
        self.in_flight: Flush | None = None
        self.growing = False
        #: What waits for the disk.
        self.pending = PendingBatch(found.next_id)
        self._since_checkpoint = self._changes_since_checkpoint = 0
        self._prepared: Flush | None = None
        self.item_bytes_max = item_bytes_max(self.geometry)
        self._data_bytes = self.geometry.tail - self.geometry.data
        # A queue that was made with small blocks may be opened with settings for large ones.
        self.journal_bytes = min(settings.journal_bytes, self._data_bytes // 2)
        # Room for the table, so that items of 1 KiB and above fit by their bytes alone.
        self._journal_bytes_max = self.journal_bytes + self.journal_bytes // TABLE_SHARE
        # At most one segment is in flight and one is prepared: two buffers in turn.
        size = pages(self._journal_bytes_max) + SEGMENT_SLACK
        self._buffers = (bytearray(size), bytearray(size))
        self._changes_max = min(CHANGES_MAX, self._data_bytes // 2 // STATUS_BYTES)

    # -- taking in --------------------------------------------------------------------------

    @property
    def next_id(self) -> int:
        """The next item's id."""
        return self.pending.next_id

    @property
    def changes_added(self) -> int:
        """Return how many status changes there have been since the queue was opened."""
        return self.pending.changes_added

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what waits for the disk, items' table entries included."""
        return self.pending.content_bytes

    @property
    def has_waiting(self) -> bool:
        """Return whether there is anything to seal."""
        pending = self.pending
        return bool(pending.contents or pending.changes or pending.groups or self._prepared)

    @property
    def full_segment(self) -> bool:
        """Return whether the journal has reached its size."""
        return self.pending.content_bytes >= self.journal_bytes

    def check_sizes(self, contents: list[bytes]) -> None:
        """Check the items' sizes. Raises `UsageError` where one is larger than a block can hold."""
        largest = max(map(len, contents), default=0)
        if largest > self.item_bytes_max:
            raise UsageError(
                f"an item of {largest:,} bytes: a block of this queue holds at "
                f"most {self.item_bytes_max:,}",
                "make the queue anew with a larger block_bytes",
            )

    def add(self, contents: list[bytes]) -> int:
        """Add items to the journal, and return the first one's id; the lock is held.

        Raises `UsageError` where one is too large, and adds none.
        """
        if sum(map(len, contents)) > self.item_bytes_max:
            self.check_sizes(contents)
        return self.pending.put_all(contents)

    def record(self, first: int, count: int, status: int) -> None:
        """Journal a status change of items that are already marked in their blocks."""
        with self.lock:
            self.counts.changes += count
            self.pending.record(first, count, status)

    def check_group(self, group: Group, contents: list[bytes]) -> None:
        """Check that a group fits into a segment, by its bytes, records and items.

        Raises `UsageError` where it does not, or where the queue's format has no groups.
        """
        if self.version < VERSION:
            raise UsageError(
                f"{self.folder}: a queue of format {self.version} has no groups, marks or"
                " producers' states",
                f"empty it and open it anew: it is of format {VERSION} then",
            )
        length = segment_bytes(len(contents), sum(map(len, contents)), group.record_count)
        if (
            length > self._data_bytes
            or group.record_count > self._changes_max
            or len(contents) > self.geometry.items_max
        ):
            raise UsageError(
                f"a group of {length:,} bytes and {group.record_count:,} records: a segment of this"
                f" queue takes {self._data_bytes:,} and {self._changes_max:,}",
                "commit less at once, or make the queue anew with a larger block_bytes",
            )

    def commit(self, group: Group, contents: list[bytes]) -> None:
        """Add a group to the journal; its changes are already pledged in their blocks."""
        with self.lock:
            self.counts.groups += 1
            self.pending.put_group(group, contents)
            for producer, state in group.producers.items():
                self.producers.latest[producer] = state

    @contextlib.contextmanager
    def everything(self) -> Iterator[tuple[Block, ...]]:
        """Lock all blocks in use, and yield them in the stream's order."""
        while True:
            live = self.live
            with contextlib.ExitStack() as held:
                for block in sorted(live, key=lambda block: block.number):
                    held.enter_context(block.lock)
                if self.live is live:
                    yield live
                    return

    # -- writing ----------------------------------------------------------------------------

    def seal(self, now_ns: int, *, alone: bool = True) -> Flush | None:
        """Make a segment of what waits; None where nothing waits, or no block has room for it.

        Where not all blocks are locked (`alone` is false) it raises `BlocksNeeded` rather than
        change more than the newest.
        """
        assert self.in_flight is None
        if self._prepared is not None:
            self.go_on()
            return self.in_flight
        if not self.has_waiting:
            return None
        batch = self._batch()
        if batch.length > self._data_bytes:
            batch = batch.changes_alone()
        if not alone and (self._checkpoint_due(0, 0) or not self._fits(batch.length, batch.count)):
            raise BlocksNeeded
        self.stamp_ns = max(self.stamp_ns, now_ns)
        steps: list[Step] = []
        if not self._make_room(batch.length, batch.count, steps):
            self.counts.stalls += batch.count > 0
            if not batch.entries:
                return None
            batch = batch.changes_alone()
            if not self._fits(batch.length, 0):
                return self._recorded_by_checkpoints(batch)
        self.in_flight = self._segment(batch, steps)
        return self.in_flight

    def prepare(self, now_ns: int) -> Flush | None:
        """Make the segment that follows the one in flight, of what waits.

        None: nothing waits, no segment is in flight, or the new one would not go right behind it.
        """
        ahead, pending = self.in_flight, self.pending
        if ahead is None or self._prepared or not ahead.length:
            return None
        if not pending.contents and not pending.changes and not pending.groups:
            return None
        batch = self._batch()
        if self._checkpoint_due(ahead.length, ahead.changes) or not self.live[-1].has_room(
            ahead.length + batch.length, ahead.items + batch.count
        ):
            return None
        self.stamp_ns = max(self.stamp_ns, now_ns)
        self._prepared = self._segment(batch, [], ahead)
        self.counts.prepared += 1
        return self._prepared

    def go_on(self) -> None:
        """Make the prepared segment the one in flight."""
        self.in_flight, self._prepared = self._prepared, None

    def complete_flush(self) -> Flush:
        """Complete the flush whose steps are done: its items are visible, its changes durable."""
        flush, self.in_flight = self.in_flight, None
        assert flush is not None
        counts = self.counts
        counts.flushes += 1
        if flush.length:
            self.sequence += 1
            self.chain = flush.crc
            self.live[-1].add_segment(
                flush.length, flush.first_id, flush.items, flush.stamp_ns, self.sequence
            )
            self.visible_end = flush.next_id
            self._since_checkpoint += flush.length
            self._changes_since_checkpoint += flush.changes
            counts.items += flush.items
            counts.content_bytes += flush.content_bytes
            counts.journal_bytes += flush.length
            for group in flush.groups:
                self._redeem(group)
        return flush

    def _redeem(self, group: Group) -> None:
        """Redeem a group that is on the disk, in the last segment: checkpoints may include it."""
        for block in group.blocks:
            block.redeem(group, max(self.sequence, 1))
        group.blocks.clear()
        for slot, move in enumerate(group.moves, group.first_id):
            self._moved(slot, move)
        if group.moves:
            self.moving = False
        if group.producers:
            self.producers.record(group.producers, self.sequence)

    def _moved(self, slot: int, move: Move) -> None:
        """Move an item to `slot` of the newest block.

        Pledges of groups that are not on the disk yet move with it.
        """
        newest, old = self.live[-1], move.block
        if move.late:
            newest.set_byte(slot, Status.MOVED, self.sequence)
            return
        newest.set_byte(slot, old.byte_of(move.slot), self.sequence)
        old.set_byte(move.slot, Status.MOVED, self.sequence)
        newest.moved.add(newest.offsets[-1])
        for pledge in [one for one in old.pledges if one.number == move.slot]:
            old.pledges.remove(pledge)
            group, _, before, after = pledge
            newest.pledges.append(Pledge(group, slot, before, after))
            group.blocks.add(newest)
        self.slots[move.number] = slot
        self.numbers[slot] = move.number
        heapq.heappush(self.arrived, move.number)
        if len(self.arrived) > 2 * len(self.slots):
            self.arrived = sorted(self.slots)  # no consumer takes any
        self.counts.moved += 1

    def _batch(self) -> Batch:
        """Choose the content of the next segment: a journal's size of items, one, or a group."""
        pending = self.pending
        changes = pending.changes[: self._changes_max]
        count, size = pending.batch(self._journal_bytes_max, self.geometry.items_max)
        if not pending.grouped:
            return Batch(changes, changes, count, size)
        groups: list[Group] = []
        if pending.groups:
            count, size, groups = pending.cut(count, size, self._changes_max)
        batch = Batch.of(changes, count, size, groups, self._changes_max)
        if groups and pending.bundles > len(batch.bundles):
            # The bundles that are left came before the groups, so their changes go first.
            count = groups[0].first_id - (pending.next_id - len(pending.contents))
            size = sum(map(len, pending.contents[:count]))
            batch = Batch.of(changes, count, size, [], self._changes_max)
        return batch

    def _segment(self, batch: Batch, steps: list[Step], ahead: Flush | None = None) -> Flush:
        """Make the next segment of the newest block, behind `ahead` where one is in flight."""
        pending, block = self.pending, self.live[-1]
        count, size = batch.count, batch.size
        first_id = pending.next_id - len(pending.contents)
        records = batch.records
        if batch.moves:
            before = ahead.groups if ahead is not None else ()
            moves = [
                record for group in batch.groups for record in move_records(group, first_id, before)
            ]
            records = moves + records[batch.moves :]
        contents = pending.pop(count, size)
        pending.pop_changes(len(batch.entries))
        pending.remove_groups(len(batch.groups))
        sequence, chain, end = self.sequence + 1, self.chain, block.end
        if ahead is not None:
            sequence, chain, end = sequence + 1, ahead.crc, end + ahead.length
        data, crc = build_segment(
            block.identity, sequence, self.stamp_ns, chain, first_id, contents, records,
            self._buffers[sequence % 2], batch.version,
        )  # fmt: skip
        write = WriteThrough if self.settings.durable else Write
        steps.append(write(block.path, end, data))
        return Flush(
            steps, first_id + count, self.changes_added - len(pending.changes), len(data), count,
            first_id, self.stamp_ns, crc, size, len(batch.records), batch.all_groups,
            pending.groups_added - len(pending.groups),
        )  # fmt: skip

    def _fits(self, length: int, items: int) -> bool:
        return bool(self.live) and self.live[-1].has_room(length, items)

    def _checkpoint_due(self, length: int, changes: int) -> bool:
        """Return whether checkpoints are due once so much more has been journalled."""
        return (
            self._since_checkpoint + length >= self.settings.checkpoint_bytes
            or self._changes_since_checkpoint + changes >= CHANGES_CHECKPOINT
        )

    def _make_room(self, length: int, items: int, steps: list[Step]) -> bool:
        """Make room for a segment in the newest block or a new one, with checkpoints where due.

        Adds the steps for that; returns False where no block is available.
        """
        if self._fits(length, items):
            if self._checkpoint_due(0, 0):
                self.round(steps)
            return True
        return self._begin_block(steps)

    def _recorded_by_checkpoints(self, batch: Batch) -> Flush:
        """Make a flush of checkpoints for status changes that no block has room for.

        Both checkpoints of each block have them. Those of groups are valid only together: a
        snapshot has them before.
        """
        steps: list[Step] = []
        pending = self.pending
        pending.pop_changes(len(batch.entries))
        for group in batch.all_groups:
            self._redeem(group)
        if batch.all_groups:
            self._snapshot(steps, batch.changes)
        for block in self.live:
            while any(block.uncovered):
                self._checkpoint(block, steps)
        if batch.all_groups:
            # No segment has the producers' states: one snapshot alone would be their only copy.
            self._snapshot(steps)
        self.in_flight = Flush(
            steps, self.visible_end, self.changes_added - len(pending.changes),
            groups_end=pending.groups_added - len(pending.groups),
        )  # fmt: skip
        return self.in_flight

    # -- checkpoints and blocks -------------------------------------------------------------

    def _snapshot(self, steps: list[Step], records: Sequence[Record] = ()) -> None:
        """Add the steps that write the older snapshot: producers' states, and `records`."""
        self.serial += 1
        newest = self.live[-1]
        roll = Roll(self.sequence, newest.incarnation, newest.end, self.chain)
        name, data = self.producers.snapshot(self.queue_id, self.serial, roll, list(records))
        path = os.path.join(self.folder, name)
        steps += [Write(path, 0, data), Sync(path)]

    def _checkpoint(self, block: Block, steps: list[Step], *, sync: bool = True) -> None:
        self.serial += 1
        self.counts.checkpoints += 1
        offset, data = block.checkpoint(
            self.serial, self.stamp_ns, self.visible_end, self.roll, self.sequence
        )
        steps.append(Write(block.path, offset, data))
        if sync:
            steps.append(Sync(block.path))

    def round(self, steps: list[Step]) -> None:
        """Write a round of checkpoints, the newest block's last, with the position to roll from.

        A `fast` queue does not sync the last one.
        """
        self.counts.rounds += 1
        newest = self.live[-1]
        for block in self.live[:-1]:
            if block.dirty:
                self._checkpoint(block, steps)
        if self.producers.dirty:
            self._snapshot(steps)
        self.roll = Roll(self.sequence, newest.incarnation, newest.end, self.chain)
        self._checkpoint(newest, steps, sync=self.settings.durable)
        self._since_checkpoint = self._changes_since_checkpoint = 0

    def _begin_block(self, steps: list[Step]) -> bool:
        """Begin another block; return False where none is available."""
        block = self._next_block()
        if block is None:
            return False
        if block.incarnation:
            self._give_up(block, steps)
        for other in self.live:
            if other.dirty:
                self._checkpoint(other, steps)
        if self.live and self.producers.dirty:
            self._snapshot(steps)
        self.incarnation += 1
        block.begin(self.incarnation, self.visible_end, self.sequence)
        self.live = (*self.live, block)
        self.roll = Roll(self.sequence, block.incarnation, block.end, self.chain)
        # Both, one after the other: a crash between the two leaves a good one.
        self._checkpoint(block, steps)
        self._checkpoint(block, steps)
        self._since_checkpoint = self._changes_since_checkpoint = 0
        return True

    def _next_block(self) -> Block | None:
        """Return a block that was never used, or the oldest reusable one; None: there is none."""
        for block in self.blocks:
            if not block.incarnation:
                return block
        return next((block for block in self.live[:-1] if block.reusable), None)

    def _give_up(self, block: Block, steps: list[Step]) -> None:
        """Add the steps that save elsewhere what only this block has, before it is recycled."""
        self.counts.blocks_reused += 1
        self.live = tuple(other for other in self.live if other is not block)
        for other in self.live:
            while any(0 < first <= block.last_sequence for first in other.uncovered):
                self._checkpoint(other, steps)
        while any(0 < first <= block.last_sequence for first in self.producers.uncovered):
            self._snapshot(steps)
        if not block.statuses:
            return
        path = os.path.join(self.folder, ENDED_NAME)
        runs = self._runs(block)
        if not runs:
            return
        data = self.tombstones.record(block.last_stamp_ns, runs)
        if self.ended_end + len(data) <= ENDED_BYTES_MAX:
            steps += [Write(path, self.ended_end, data), Sync(path)]
            self.ended_end += len(data)
        else:
            data = self.tombstones.shortened(self.stamp_ns - KEEP_NS)
            steps.append(Replace(path, data))
            self.ended_end = len(data)

    def _runs(self, block: Block) -> list[Run]:
        """Return the final statuses of a block's items, by their ids.

        An item that was moved there is listed under its own id; one that was moved away only where
        its final status is known.
        """
        runs = runs_of(block.first_id, block.statuses)
        if Status.MOVED not in block.statuses and not block.moved:
            return runs
        here = sorted(slot for slot in self.numbers if block.holds(slot))
        known: list[Run] = []
        for first, count, status in runs:
            apart = [slot for slot in here if first <= slot < first + count]
            if status == Status.MOVED:
                apart = list(range(first, first + count))
            for slot in apart:
                if slot > first:
                    known.append((first, slot - first, status))
                first, count = slot + 1, count - (slot + 1 - first)
                known += self._run_of(slot, status)
            if count:
                known.append((first, count, status))
        return sorted(known)

    def _run_of(self, slot: int, status: int) -> list[Run]:
        """Return the final status of the item that was moved to or from `slot`, if it is known."""
        number = self.numbers.pop(slot, slot)
        if self.slots.get(number) == slot:
            del self.slots[number]
        if status != Status.MOVED:
            return [(number, 1, status)]
        end = self.tombstones.status(slot)
        return [] if end is None else [(slot, 1, end)]

    # -- moving -----------------------------------------------------------------------------

    def pinned(self) -> Block | None:
        """Return a block that only a few pending items keep from being recycled.

        Only where blocks are short: none is available, the newest is half full, and the items fit
        into what is left of it; else None.
        """
        if self.version < VERSION or self.moving or not self.live or self._next_block() is not None:
            return None
        newest = self.live[-1]
        left = self.geometry.tail - newest.end
        if 2 * left > self._data_bytes and 2 * len(newest.statuses) < self.geometry.items_max:
            return None
        found = min(self.live[:-1], key=lambda block: block.active, default=None)
        if found is None or not found.active or found.active > self.geometry.items_max // 8:
            return None
        share = found.active / len(found.statuses)
        few = share * (found.end - self.geometry.data) <= min(self._data_bytes // 8, left)
        return found if few else None

    # -- growth -----------------------------------------------------------------------------

    @property
    def wants_block(self) -> bool:
        """Return whether to make another block: none is available, and the newest is half full."""
        if self.growing or len(self.blocks) >= self.settings.blocks_max or not self.live:
            return False
        newest = self.live[-1]
        used = max(
            (newest.end - self.geometry.data) / self._data_bytes,
            len(newest.statuses) / self.geometry.items_max,
        )
        return used >= 0.5 and self._next_block() is None

    def grow(self, now_ns: int) -> Growth:
        """Return the steps that create one more block, with the block."""
        self.growing = True
        number = max(block.number for block in self.blocks) + 1
        entry = block_entry(self.settings, number)
        path = block_path(self.folder, entry)
        control = Control(
            self.control.queue_id, self.control.block_bytes, self.control.created_ns,
            (*self.control.blocks, entry), self.version,
        )  # fmt: skip
        steps = _new_block(path, self.queue_id, number, self.geometry, now_ns, self.version)
        steps.append(Replace(control_path(self.folder), pack_control(control)))
        free = Checkpoint(self.queue_id, number)
        block = Block(self.queue_id, path, self.geometry, free, self.version)
        block.lock = self.new_lock()
        return Growth(steps, control, block)

    def grown(self, growth: Growth, *, made: bool = True) -> None:
        """Add the new block; or, not `made`, go on without it."""
        self.growing = False
        if made:
            self.control = growth.control
            self.blocks.append(growth.block)
            self.counts.blocks_grown += 1

    # -- after recovery ---------------------------------------------------------------------

    def tidy(self, torn: bool) -> list[Step]:
        """Return the steps that recovery leaves to do before anything is added.

        They blank an unfinished write (`torn`), and write checkpoints of what was rolled forward.
        """
        steps: list[Step] = []
        if not self.live:
            self._begin_block(steps)
            return steps
        newest = self.live[-1]
        if torn:
            size = min(self.geometry.tail - newest.end, BLANK_BYTES_MAX)
            steps += [Write(newest.path, newest.end, bytes(size)), Sync(newest.path)]
        self.round(steps)
        steps.append(Sync(newest.path))
        return steps
