"""A queue's reading side: items handed out in order, and the status of each, by its id.

What it is for: `take` hands pending items out, oldest first, each to one consumer; `deliver`
records that one was delivered, `release` gives one back. `cancel` finds an item's block by its
range of ids and cancels it where it is pending. One that a consumer has is not cancelled at once:
it becomes cancelled if it comes back, and is to be cancelled at its destination if it is delivered
(`forward`). The answer for a delivered one says so, however long ago that was.

What it promises: an item that is cancelled, expired or delivered is never handed out again; one
whose bytes do not verify is never handed out at all. Changes go into the journal of `store.py`,
which makes them durable. Reads only what it needs, through `Files`.

Any thread may call. An item's status is read and changed under the lock of its block alone: a
cancel waits neither for work on another block nor for the disk. Only `cancel_all` and `expire` take
the locks of all blocks. Consumers take turns (`_taking`); they read what they took without a
block's lock, because an item that is handed out keeps its block from being recycled. The order of
locks: `_taking`, blocks by their numbers, the journal (`Store.lock`).
"""

import contextlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from feedhandler.codecs.errors import UsageError
from feedhandler.journal.block import Block
from feedhandler.journal.cancels import ANSWERS, CancelAnswer, ForwardPage
from feedhandler.journal.files import Files
from feedhandler.journal.groups import (
    Group,
    Move,
    ProducerState,
    check_changes,
    marked,
    runs_of_changes,
)
from feedhandler.journal.layout import Status
from feedhandler.journal.reading import Item, SegmentReader
from feedhandler.journal.segments import HEAD_BYTES, head_stamp
from feedhandler.journal.store import Store

#: Upper limit on delivered orders known to be finished; beyond it the older half is forgotten, and
#: their cancels would be forwarded, which an exchange refuses.
CLOSED_MAX = 1_000_000
#: Items that are read together, under their block's lock.
READ_ITEMS = 64
#: Items that a walk over all of them reads at a time.
WALK_ITEMS = 4096
#: Items that are ended at a time.
ENDED_AT_ONCE = 4096
_DELIVERED = bytes([Status.DELIVERED])


class Delivery:
    """The reading side of a queue; see the module.

    `damaged`: how many items did not verify when they were to be handed out.
    """

    def __init__(self, store: Store, files: Files) -> None:
        self.handed: set[int] = set()
        self.damaged = 0
        self._store = store
        self._files = files
        self._taking = store.new_lock()
        self._reader, self._looker = SegmentReader(files), SegmentReader(files)
        self._finder = SegmentReader(files)
        self._cursor = 0
        #: The block that was looked up last; the next look-up is mostly for it too.
        self._near: Block | None = None
        self._expired_end = 0
        self._returned: list[int] = []
        self._unwanted: set[int] = set()
        self._closed: set[int] = set()

    # -- handing out ------------------------------------------------------------------------

    def take(self, limit: int) -> list[Item]:
        """Take up to `limit` pending items, oldest first, for one consumer. Raises `OSError`."""
        items: list[Item] = []
        with self._taking:
            while len(items) < limit:
                block, numbers = self._claim(limit - len(items))
                if block is None:
                    break
                found = self._read(self._reader, block, numbers)
                items += found
                if len(found) < len(numbers):
                    self._spoil_others(numbers, found)
        return items

    def _spoil_others(self, numbers: list[int], found: list[Item]) -> None:
        """Mark as damaged those of these items that were not found to verify."""
        for number in sorted(set(numbers).difference(item.id for item in found)):
            self.spoil(number)

    def _read(self, reader: SegmentReader, block: Block, numbers: list[int]) -> list[Item]:
        """Read these items of a block, by their ids, moved or not."""
        slots = self._store.slots
        if not slots or len(numbers) > 1 or numbers[0] not in slots:
            return reader.items(block, numbers)
        content = reader.content(block, slots[numbers[0]])
        return [] if content is None else [Item(numbers[0], content)]

    def claim(self, limit: int) -> list[tuple[int, Block]]:
        """Take items as `take` does, but without reading: return ids and their blocks.

        For a caller that reads them itself with a `SegmentReader`, and calls `spoil` for those that
        do not verify.
        """
        claimed: list[tuple[int, Block]] = []
        with self._taking:
            while len(claimed) < limit:
                block, numbers = self._claim(limit - len(claimed))
                if block is None:
                    break
                claimed += [(number, block) for number in numbers]
        return claimed

    def _moved_pending(self, after: int) -> list[int]:
        """Return ids above `after` of moved items that are undelivered."""
        pending = []
        for number in sorted(number for number in list(self._store.slots) if number > after):
            with self._holding(number) as (block, slot):
                if block is not None and block.is_pending(slot):
                    pending.append(number)
        return pending

    def _claim(self, limit: int) -> tuple[Block | None, list[int]]:
        """Claim the next pending items of one block; no block: there are none."""
        while (number := self._next_returned()) >= 0:
            block = self._hand(number)
            if block is not None:
                return block, [number]
        if self._store.arrived:
            block, number = self._claim_moved()
            if block is not None:
                return block, [number]
        visible_end = self._store.visible_end
        block, numbers = self._pending(
            self._cursor, limit, lambda _, numbers: self.handed.update(numbers)
        )
        self._cursor = numbers[-1] + 1 if numbers else visible_end
        return block, numbers

    def hold(self, number: int) -> None:
        """Hold an item for its owner: it neither expires nor is it cancelled with the others.

        `claim` may still return it.
        """
        self._hand(number)

    def _hand(self, number: int) -> Block | None:
        """Claim an item and return its block; None where it is not pending."""
        with self._holding(number) as (block, slot):
            if block is None or not block.is_pending(slot):
                return None
            self.handed.add(number)
            return block

    def _claim_moved(self) -> tuple[Block | None, int]:
        """Claim the oldest moved item, where it is the next one; no block: it is not."""
        store = self._store
        while store.arrived:
            number = store.arrived[0]
            _, others = self._pending(self._cursor, 1, lambda block, numbers: None)
            if others and others[0] < number:
                break
            with store.lock:
                heapq.heappop(store.arrived)
            if number not in self.handed:
                block = self._hand(number)
                if block is not None:
                    return block, number
        return None, 0

    def _next_returned(self) -> int:
        """Remove and return the oldest item that was given back; -1: there is none."""
        with self._store.lock:
            return heapq.heappop(self._returned) if self._returned else -1

    def _pending(
        self, number: int, limit: int, use: Callable[[Block, list[int]], None]
    ) -> tuple[Block | None, list[int]]:
        """Return the first block with pending ids from `number` on, and up to `limit` of them.

        `use` is called with them while the block is locked.
        """
        while True:
            live = self._store.live
            at = max(bisect_right(live, number, key=_first_id) - 1, 0)
            for block in live[at:]:
                with block.lock:
                    if self._store.live is not live:
                        break  # a block was recycled: begin again with the present order
                    numbers = block.pending_from(number, limit)
                    while block.moved and numbers:
                        # What was moved there is found by its own id.
                        others = [n for n in numbers if n not in self._store.numbers]
                        if others:
                            numbers = others
                            break
                        numbers = block.pending_from(numbers[-1] + 1, limit)
                    if numbers:
                        use(block, numbers)
                        return block, numbers
            else:
                return None, []

    def spoil(self, number: int) -> None:
        """Mark an item as damaged, because its bytes do not verify.

        One that was moved while the caller read its old slot is given back instead.
        """
        with self._holding(number) as (block, slot):
            if slot != number and block and SegmentReader(self._files).content(block, slot):
                # It was moved while the caller read its old slot: give it back instead.
                with self._store.lock:
                    if number in self.handed:
                        heapq.heappush(self._returned, number)
                self.handed.discard(number)
                return
            self.handed.discard(number)
            if block is not None and self._set_status(block, slot, 1, Status.DAMAGED):
                self.damaged += 1

    def peek(self, after: int, limit: int) -> list[Item]:
        """Read up to `limit` undelivered items with ids above `after`, handed out or not.

        Raises `OSError`.
        """
        items: list[Item] = []
        asked: list[int] = []
        begin = after

        def read(block: Block, numbers: list[int]) -> None:
            asked.extend(numbers)
            items.extend(self._looker.items(block, numbers))

        with self._taking:
            while len(items) < limit:
                _, numbers = self._pending(after + 1, limit - len(items), read)
                if not numbers:
                    break
                after = numbers[-1]
        if len(items) < len(asked):
            self._spoil_others(asked, items)
        if self._store.slots:
            with self._taking:
                self._add_moved(items, begin, limit)
            items = sorted(items, key=lambda item: item.id)[:limit]
        return items

    def _add_moved(self, items: list[Item], after: int, limit: int) -> None:
        """Add the first of the undelivered moved items above `after`."""
        for number in self._moved_pending(after)[:limit]:
            with self._holding(number) as (block, slot):
                content = self._looker.content(block, slot) if block is not None else None
            if content is None:
                self.spoil(number)
            else:
                items.append(Item(number, content))

    def read(self, number: int) -> bytes | None:
        """Read a pending item's content; None: it is not pending, or does not verify.

        Raises `OSError`.
        """
        with self._holding(number) as (block, slot):
            if block is None or not block.is_pending(slot):
                return None
            return SegmentReader(self._files).content(block, slot)

    def read_many(self, numbers: Sequence[int], bytes_max: int) -> dict[int, bytes | None]:
        """Read the first of several items, ascending, until `bytes_max` bytes or more are read.

        Returns contents by id, as `read` does. Items that lie together are read together, and the
        segment of the last is kept for the next call: one thread at a time. Raises `OSError`.
        """
        reader = self._finder
        contents: dict[int, bytes | None] = {}
        size = index = 0
        while index < len(numbers) and size < bytes_max:
            with self._holding(numbers[index]) as (block, slot):
                here: dict[int, bytes | None] = {}
                if block is None or slot != numbers[index]:
                    if block is not None and block.is_pending(slot):
                        here[slot] = reader.content(block, slot)
                    run = {numbers[index]: slot}
                else:
                    most = min(index + READ_ITEMS, len(numbers))
                    end = bisect_left(numbers, block.next_id, index, most)
                    run = {n: n for n in numbers[index:end] if n not in self._store.slots}
                    asked = [number for number in run if block.is_pending(number)]
                    here = {item.id: item.content for item in reader.items(block, asked)}
            for number, slot in run.items():
                contents[number] = content = here.get(slot)
                size += len(content or b"")
            while index < len(numbers) and numbers[index] in contents:
                index += 1
        return contents

    def at_hand(self, number: int) -> bytes | None:
        """Return an item's content where `read_many` has its segment in memory, else None.

        Also None where the item is not pending. Must not be called while `read_many` runs.
        """
        with self._holding(number) as (block, slot):
            if block is None or not block.is_pending(slot):
                return None
            return self._finder.at_hand(block, slot)

    def walk(self) -> Iterator[list[tuple[int, int, bytes]]]:
        """Yield everything undelivered as lists of (id, mark, content), oldest first.

        A list has `WALK_ITEMS` at most, besides moved ones. For an owner that keeps ids in memory,
        when the queue is opened. Items that do not verify become damaged. Raises `OSError`.
        """
        reader = SegmentReader(self._files)
        moved = self._moved_pending(0)
        after = 0
        while True:
            asked: list[int] = []
            items: list[tuple[int, int, bytes]] = []

            def read(block: Block, numbers: list[int]) -> None:
                asked.extend(numbers)  # noqa: B023
                items.extend(_with_marks(block, reader.items(block, numbers)))  # noqa: B023

            _, numbers = self._pending(after + 1, WALK_ITEMS, read)
            for number in sorted(set(asked).difference(item[0] for item in items)):
                self.spoil(number)
            here = [n for n in moved if not numbers or n < numbers[-1]]
            if here:
                moved = moved[len(here) :]
                contents = [(number, self.mark_of(number), self.read(number)) for number in here]
                items += [item for item in contents if item[2] is not None]  # type: ignore[misc]
                items.sort()
            if items:
                yield items
            if not numbers:
                return
            after = numbers[-1]

    def walk_blocks(self, first: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield (slot, content) of all items in the blocks in use, from slot `first` on.

        Whatever their status; None where they do not verify. An item that was moved is met at its
        first slot, which is its id; None at the one where it stands now, which is no item's id. For
        an owner that keeps an index, before the queue is used. Raises `OSError`.
        """
        reader = SegmentReader(self._files)
        for block in self._store.live:
            for slot in range(max(block.first_id, first), block.next_id):
                moved = slot in self._store.numbers
                yield slot, None if moved else reader.content(block, slot)

    # -- ending items -----------------------------------------------------------------------

    def deliver(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Record that items were delivered.

        Returns those that were pending, and those of them whose cancel is to be forwarded.
        """
        delivered: list[int] = []
        forward: list[int] = []
        elsewhere: list[int] = []
        if self._store.numbers:
            numbers = [number for number in numbers if number not in self._store.numbers]
        for first, count in consecutive(numbers):
            while count:
                with self._standing(first) as block:
                    some = 1 if block is None else min(count, block.next_id - first)
                    run = range(first, first + some)
                    if block is not None:
                        self._deliver(block, run, delivered, forward)
                    self.handed.difference_update(run)
                    if self._store.slots:
                        elsewhere += [number for number in run if number in self._store.slots]
                first += some
                count -= some
        for number in elsewhere:
            with self._holding(number) as (block, slot):
                if block is not None and self._set_status(block, slot, 1, Status.DELIVERED):
                    delivered.append(number)
                    if number in self._unwanted:
                        self._unwanted.discard(number)
                        forward.append(number)
        return delivered, forward

    def _deliver(self, block: Block, run: range, delivered: list[int], forward: list[int]) -> None:
        """Deliver these items of one block, which is locked."""
        if self._set_status(block, run.start, len(run), Status.DELIVERED):
            done = list(run)
        else:
            done = [n for n in run if self._set_status(block, n, 1, Status.DELIVERED)]
        delivered += done
        if self._unwanted:
            forward += [number for number in done if number in self._unwanted]
            self._unwanted.difference_update(done)

    def release(self, number: int) -> Status:
        """Give an item back, and return its status now.

        It is cancelled or expired where its cancel, or the end of its day, came meanwhile; else it
        is pending and the next to be handed out.
        """
        with self._holding(number) as (block, slot):
            if number not in self.handed:
                return Status.PENDING
            self.handed.discard(number)
            status = Status.PENDING
            if number in self._unwanted:
                self._unwanted.discard(number)
                status = Status.CANCELLED
            elif number < self._expired_end:
                status = Status.EXPIRED
            if (
                status is Status.PENDING
                or block is None
                or not self._set_status(block, slot, 1, status)
            ):
                with self._store.lock:
                    heapq.heappush(self._returned, number)
                return Status.PENDING
            return status

    def cancel(self, number: int) -> CancelAnswer:
        """Cancel one item; where the answer is DELIVERED, the cancel is to be forwarded."""
        return self.cancel_now(number)[0]

    def cancel_now(self, number: int) -> tuple[CancelAnswer, bool]:
        """Cancel as `cancel`; return also whether this call cancelled the item."""
        if not 1 <= number < self._store.visible_end:
            return CancelAnswer.UNKNOWN, False
        with self._holding(number) as (block, slot):
            if block is None or block.byte_of(slot) == Status.MOVED:
                status = self._status_ended(number)
                return ANSWERS[Status.DELIVERED if status is None else status], False
            if number in self.handed and block.is_pending(slot):
                self._unwanted.add(number)
                return CancelAnswer.DELIVERING, False
            changed = self._set_status(block, slot, 1, Status.CANCELLED)
            return ANSWERS[Status(block.statuses[slot - block.first_id])], changed

    def cancel_all(self, since_ns: int) -> tuple[list[int], list[int]]:
        """Cancel everything pending, with all blocks locked.

        Returns the cancelled ids, and those to forward: delivered since `since_ns` and not closed.
        What consumers have is cancelled or forwarded when they are done. Raises `OSError`.
        """
        with self._store.everything() as live:
            cancelled = self._cancel_all(live)
            return cancelled, list(self._to_forward(live, since_ns))

    def cancel_all_by_page(
        self, since_ns: int, limit: int
    ) -> tuple[list[int], list[int], ForwardPage]:
        """Cancel as `cancel_all`, for a caller that forwards page by page.

        Returns the cancelled ids; those that consumers have; and the first `limit` of these and of
        the delivered ones. All of that is of the same moment. Raises `OSError`.
        """
        with self._store.everything() as live:
            cancelled = self._cancel_all(live)
            until = self._store.visible_end
            page = self._forward_page(live, since_ns, 0, until, limit)
            return cancelled, self._in_hand(live, 0, until), page

    def forward_page(self, since_ns: int, after: int, until: int, limit: int) -> ForwardPage:
        """Return the next page of cancels to forward: ids above `after` and below `until`.

        An item that a consumer had in an earlier page, and has given back since, is cancelled now
        and is in no further page. Raises `OSError`.
        """
        with self._store.everything() as live:
            return self._forward_page(live, since_ns, after, until, limit)

    def _cancel_all(self, live: tuple[Block, ...]) -> list[int]:
        """Cancel everything pending that no consumer has; mark what consumers have as unwanted."""
        cancelled = self._end_all(live, Status.CANCELLED, self._store.visible_end)
        self._unwanted |= self.handed
        return cancelled

    def _forward_page(
        self, live: tuple[Block, ...], since_ns: int, after: int, until: int, limit: int
    ) -> ForwardPage:
        until = min(until, self._store.visible_end)
        delivered = ((n, True) for n in self._to_forward(live, since_ns, after, limit + 1))
        in_hand = ((n, False) for n in self._in_hand(live, after, until))
        both = (item for item in heapq.merge(delivered, in_hand) if item[0] < until)
        found = list(islice(both, limit + 1))
        return ForwardPage(found[:limit], until, len(found) > limit)

    def _in_hand(self, live: tuple[Block, ...], after: int, until: int) -> list[int]:
        """Return the ids between these that consumers have, in order."""
        return sorted(
            number
            for number in self.handed
            if after < number < until
            and any(
                block.is_pending(slot)
                for slot in (self._store.slots.get(number, number),)
                for block in live
                if block.holds(slot)
            )
        )

    def _to_forward(
        self, live: tuple[Block, ...], since_ns: int, after: int = 0, limit: int | None = None
    ) -> Iterator[int]:
        """Yield up to `limit` ids above `after` that were delivered since and are not closed."""
        found = self._delivered_since(live, since_ns, after)
        return islice((n for n in found if n not in self._closed), limit)

    def close_order(self, number: int) -> None:
        """Record that a delivered item's order is finished: no cancel of it is forwarded."""
        self._closed.add(number)
        if len(self._closed) > CLOSED_MAX:
            self._closed = set(sorted(self._closed)[CLOSED_MAX // 2 :])

    def expire(self, before_ns: int) -> list[int]:
        """Expire what came before `before_ns` and is pending; return the ids.

        What consumers have expires when they give it back. Raises `OSError`.
        """
        with self._store.everything() as live:
            self._closed = {number for number in self._closed if self.find(number) is not None}
            self._expired_end = self.first_since(before_ns)
            return self._end_all(live, Status.EXPIRED, self._expired_end)

    def _end_all(self, live: tuple[Block, ...], status: Status, end: int) -> list[int]:
        """Give every pending item below `end` that no consumer has `status`; return the ids."""
        ended: list[int] = []
        for block in live:
            after = block.first_id
            while block.active and (numbers := block.pending_from(after, ENDED_AT_ONCE)):
                after = numbers[-1] + 1
                free = [n for n in numbers if n < end and n not in self.handed]
                if block.moved:
                    free = [n for n in free if n not in self._store.numbers]
                for first, count in consecutive(free):
                    self._set_status(block, first, count, status)
                ended += free
                if after >= end:
                    break
        for number, slot in sorted(self._store.slots.items()):
            block = next((one for one in live if one.holds(slot)), None)  # type: ignore
            if number < end and number not in self.handed and block is not None:
                ended += [number] if self._set_status(block, slot, 1, status) else []
        return ended

    def _set_status(self, block: Block, first: int, count: int, status: Status) -> bool:
        """Set the status of a locked block's items and journal it; False unless all are pending."""
        if not block.set_run(first, count, status, self._store.sequence + 1):
            return False
        if block.moved and count == 1:
            first = self._store.numbers.get(first, first)
        self._store.record(first, count, status)
        return True

    # -- groups -----------------------------------------------------------------------------

    def commit(
        self,
        contents: list[bytes],
        ends: Sequence[tuple[int, int]] = (),
        marks: Sequence[tuple[int, int]] = (),
        producers: Mapping[bytes, ProducerState] | None = None,
    ) -> tuple[Group, list[int]]:
        """Commit a group of new items, ends (id, status), marks and producers' states, or nothing.

        Returns the group, and the ids that it delivers whose cancel is to be forwarded. Raises
        `UsageError` where an item is not pending or the group is too large: then nothing was done.
        """
        producers = producers or {}
        check_changes(ends, marks, producers)
        changes = [*ends, *((number, marked(mark)) for number, mark in marks)]
        group = Group(runs_of_changes(changes), producers)
        self._store.check_group(group, contents)
        forward: list[int] = []
        with self._holding_all([number for number, _ in changes]) as found:
            for (number, _), (block, slot) in zip(changes, found, strict=True):
                if block is None or not block.is_pending(slot):
                    raise UsageError(
                        f"item {number} is not pending: nothing of its group was done",
                        "it has ended, or there is no such item",
                    )
            # Pledge before the group can be written and redeemed.
            for (_, byte), (block, slot) in zip(changes, found, strict=True):
                assert block is not None
                block.pledge(group, slot, byte, self._store.sequence + 1)
            self._store.commit(group, contents)
            for number, status in ends:
                self.handed.discard(number)
                if number in self._unwanted:
                    self._unwanted.discard(number)
                    forward += [number] if status == Status.DELIVERED else []
        return group, forward

    @contextlib.contextmanager
    def _holding_all(self, numbers: list[int]) -> Iterator[list[tuple[Block | None, int]]]:
        """Lock the blocks of these items and yield blocks and slots; None: no block holds it."""
        while True:
            slots = [self._store.slots.get(number, number) for number in numbers]
            found = [
                (None if number in self._store.numbers else self.find(slot), slot)
                for number, slot in zip(numbers, slots, strict=True)
            ]
            with contextlib.ExitStack() as held:
                for block in sorted({one for one, _ in found if one}, key=lambda one: one.number):
                    held.enter_context(block.lock)
                if slots == [self._store.slots.get(number, number) for number in numbers] and all(
                    block is None or block.holds(slot) for block, slot in found
                ):
                    yield found
                    return

    def mark_of(self, number: int) -> int:
        """Return the mark of a pending item; 0 where it has none, or is not pending."""
        with self._holding(number) as (block, slot):
            return block.mark_of(slot) if block and block.is_pending(slot) else 0

    # -- moving -----------------------------------------------------------------------------

    def move(self, block: Block, items_max: int, bytes_max: int) -> int:
        """Write some pending items of a block again, under their ids, to free the block.

        Returns how many. Raises `OSError`.
        """
        store = self._store
        group = Group([], {})
        contents: list[bytes] = []
        size = 0
        reader = SegmentReader(self._files)
        bad: list[int] = []
        with self._taking, block.lock:
            for slot in block.pending_from(block.first_id, items_max):
                content = reader.content(block, slot)
                if content is None:
                    bad.append(store.numbers.get(slot, slot))
                    continue
                if contents and size + len(content) > bytes_max:
                    break
                size += len(content)
                contents.append(content)
                number = store.numbers.get(slot, slot)
                group.moves.append(Move(number, block, block.incarnation, slot))
            group.record_count = len(group.moves)
            if contents:
                store.moving = True
                store.commit(group, contents)
        for number in bad:
            self.spoil(number)
        return len(contents)

    # -- finding ----------------------------------------------------------------------------

    def find(self, number: int) -> Block | None:
        """Return the block that holds slot `number`; None: recycled since.

        That may change until the block is locked.
        """
        near = self._near
        if near is not None and near.holds(number):
            return near
        live = self._store.live
        at = bisect_right(live, number, key=_first_id) - 1
        if at < 0 or not live[at].holds(number):
            return None
        self._near = live[at]
        return live[at]

    @contextlib.contextmanager
    def _standing(self, number: int) -> Iterator[Block | None]:
        """Lock and yield the block that holds slot `number`; None: recycled since."""
        while (block := self.find(number)) is not None:
            with block.lock:
                if block.holds(number):
                    yield block
                    return
        yield None

    @contextlib.contextmanager
    def _holding(self, number: int) -> Iterator[tuple[Block | None, int]]:
        """Lock and yield the block of item `number`, and its slot there; None: recycled since.

        The slot is the id, unless the item was moved.
        """
        slots = self._store.slots
        while number not in self._store.numbers:  # else it is a slot of a move, not an id
            slot = slots.get(number, number)
            block = self.find(slot)
            if block is None:
                if slot == slots.get(number, number):
                    break
                continue
            with block.lock:
                if block.holds(slot) and slot == slots.get(number, number):
                    yield block, slot
                    return
        yield None, number

    def status(self, number: int) -> Status | None:
        """Return an item's status; None where that is not known (any more)."""
        with self._holding(number) as (block, slot):
            status = Status.MOVED
            if block is not None:
                status = Status(block.statuses[slot - block.first_id])
            return self._status_ended(number) if status is Status.MOVED else status

    def _status_ended(self, number: int) -> Status | None:
        with self._store.lock:
            return self._store.tombstones.status(number)

    def first_since(self, stamp_ns: int) -> int:
        """Return the first id whose segment was journalled at `stamp_ns` or later."""
        for block in self._store.live:
            if not block.statuses or block.last_stamp_ns < stamp_ns:
                continue
            if block.first_stamp_ns >= stamp_ns:
                return block.first_id
            at = bisect_left(
                range(len(block.offsets)),
                stamp_ns,
                key=lambda n: self._stamp(block, n),
            )
            return block.first_id + block.ordinals[at]
        return self._store.visible_end

    def _stamp(self, block: Block, index: int) -> int:
        """Return when a block's segment was journalled, ns since 1970.

        Where its header does not verify, the stamp of the next one counts.
        """
        for offset in block.offsets[index:-1]:
            data = self._files.pread(block.path, HEAD_BYTES, offset)
            stamp_ns = head_stamp(data, block.identity)
            if stamp_ns >= 0:
                return stamp_ns
        return block.last_stamp_ns

    def _delivered_since(self, live: tuple[Block, ...], stamp_ns: int, after: int) -> Iterator[int]:
        """Yield ids above `after` of delivered items of the day, oldest first.

        All blocks are locked, so none is recycled meanwhile, and final statuses do not change.
        """
        first = max(self.first_since(stamp_ns), after + 1)
        moved = (n for n, slot in sorted(self._store.slots.items())
                 if n >= first and self._byte_at(live, slot) == Status.DELIVERED)  # fmt: skip
        before = self._store.tombstones.delivered_since(stamp_ns, after)
        # A block is recycled when nothing in it is pending, whatever older blocks still hold.
        yield from heapq.merge(moved, before, self._delivered_in(live, first))

    def _byte_at(self, live: tuple[Block, ...], slot: int) -> int:
        """Return the status byte at a slot of these blocks; `MOVED` where none holds it."""
        return next((block.byte_of(slot) for block in live if block.holds(slot)), Status.MOVED)

    def _delivered_in(self, live: tuple[Block, ...], first: int) -> Iterator[int]:
        """Yield ids from `first` on of delivered items in these blocks that were not moved."""
        for block in live:
            at = block.statuses.find(_DELIVERED, max(first - block.first_id, 0))
            while at >= 0:
                if not block.moved or block.first_id + at not in self._store.numbers:
                    yield block.first_id + at
                at = block.statuses.find(_DELIVERED, at + 1)


def _with_marks(block: Block, items: list[Item]) -> list[tuple[int, int, bytes]]:
    """Return (id, mark, content) of a block's items."""
    if not block.marks:
        return [(item.id, 0, item.content) for item in items]
    return [(item.id, block.mark_of(item.id), item.content) for item in items]


def consecutive(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive ids: (the first, how many)."""
    first = count = 0
    for number in numbers:
        if number == first + count and count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count


def _first_id(block: Block) -> int:
    return block.first_id
