"""A queue's reading side: items handed out in order, and what becomes of each, by its id.

What it is for: `take` hands pending items out, oldest first, each to one consumer; `deliver` says
that one was truly delivered, `release` gives one back. `cancel` finds an item's block by its range
of ids and cancels it where it is pending. One that is in a consumer's hands is neither pending nor
delivered: it becomes cancelled if it comes back, and is to be cancelled at its destination if it
is delivered (`forward`). One that is delivered is told so, however long ago that was.

What it promises: an item that is cancelled, expired or delivered is never handed out again; one
whose bytes do not verify is never handed out at all. What has changed here goes into the journal of
`store.py`, which makes it durable. Reads only what it needs, through `Files`.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import Enum, auto

import msgspec

from feedhandler.journal.block import Block
from feedhandler.journal.files import Files
from feedhandler.journal.layout import Status
from feedhandler.journal.segments import HEAD, parse_segment
from feedhandler.journal.store import Store


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item of the queue: its id, and its bytes as they were put."""

    id: int
    content: bytes


class CancelAnswer(Enum):
    """What came of cancelling an item.

    CANCELLED: it was pending, and will never be delivered. DELIVERED: too late, it went to its
    destination (the cancel-forward hook is told). DELIVERING: a consumer has it; it is cancelled if
    it comes back, and forwarded if it is delivered. EXPIRED: its day was over. DAMAGED: its bytes
    were lost. UNKNOWN: no item has had this id yet.
    """

    CANCELLED = auto()
    DELIVERED = auto()
    DELIVERING = auto()
    EXPIRED = auto()
    DAMAGED = auto()
    UNKNOWN = auto()


ANSWERS: dict[Status, CancelAnswer] = {
    Status.PENDING: CancelAnswer.CANCELLED,
    Status.DELIVERED: CancelAnswer.DELIVERED,
    Status.CANCELLED: CancelAnswer.CANCELLED,
    Status.EXPIRED: CancelAnswer.EXPIRED,
    Status.DAMAGED: CancelAnswer.DAMAGED,
}


class SegmentReader:
    """Items' contents, a segment at a time; the last one read is kept."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._of: tuple[int, int] = (0, 0)
        self._first = self._end = 0
        self._data = b""
        self._spans: list[tuple[int, int]] = []
        self._damaged: list[int] = []

    def content(self, block: Block, number: int) -> bytes | None:
        """The item's bytes; None where they do not verify. Raises `OSError`."""
        if not self._first <= number < self._end or self._of != (block.number, block.incarnation):
            self._read(block, number)
            if not self._first <= number < self._end:
                return None
        ordinal = number - self._first
        if self._damaged and ordinal in self._damaged:
            return None
        start, end = self._spans[ordinal]
        return self._data[start:end]

    def _read(self, block: Block, number: int) -> None:
        """Read the segment that item `number` is in."""
        offset, after = block.span_of(number)
        self._of = (block.number, block.incarnation)
        self._data = self._files.pread(block.path, after - offset, offset)
        segment = parse_segment(memoryview(self._data), 0, block.place)
        self._first = self._end = 0
        if segment is not None:
            self._first = segment.first_id
            self._end = segment.first_id + segment.item_count
            self._spans, self._damaged = segment.spans, segment.damaged


class Delivery:
    """What consumers and cancellers ask of a queue; see the module."""

    def __init__(self, store: Store, files: Files) -> None:
        self.handed: set[int] = set()
        self.damaged = 0
        self._store = store
        self._files = files
        self._reader = SegmentReader(files)
        self._cursor = 0
        #: The block that was asked for last; the next question mostly concerns it too.
        self._near: Block | None = None
        self._expired_end = 0
        self._returned: list[int] = []
        self._unwanted: set[int] = set()
        self._closed: set[int] = set()

    # -- handing out ------------------------------------------------------------------------

    def take(self, limit: int) -> list[Item]:
        """Up to `limit` pending items, oldest first, that nobody else has. Raises `OSError`."""
        items: list[Item] = []
        while len(items) < limit:
            number = self._next()
            if number < 0:
                break
            item = self._item(number)
            if item is not None:
                items.append(item)
        self.handed.update(item.id for item in items)
        return items

    def look(self, after: int, limit: int) -> list[Item]:
        """Up to `limit` undelivered items with ids above `after`, handed out or not."""
        items: list[Item] = []
        while len(items) < limit:
            after = self._pending_from(after + 1)
            if after < 0:
                break
            item = self._item(after)
            if item is not None:
                items.append(item)
        return items

    def _next(self) -> int:
        """The next item to hand out; -1 where none is."""
        while self._returned:
            number = heapq.heappop(self._returned)
            block = self.find(number)
            if block is not None and not block.statuses[number - block.first_id]:
                return number
        number = self._pending_from(self._cursor)
        self._cursor = number + 1 if number >= 0 else self._store.visible_end
        return number

    def _pending_from(self, number: int) -> int:
        """The first pending id from `number` on; -1 where none is."""
        near = self._near
        if near is not None and near.first_id <= number < near.next_id:
            found = near.next_pending(number)
            if found >= 0:
                return found
        live = self._store.live
        at = max(bisect_right(live, number, key=_first_id) - 1, 0)
        for block in live[at:]:
            if block.active:
                found = block.next_pending(number)
                if found >= 0:
                    return found
        return -1

    def _item(self, number: int) -> Item | None:
        """The item; what does not verify is marked and left out."""
        block = self.find(number)
        assert block is not None
        content = self._reader.content(block, number)
        if content is not None:
            return Item(number, content)
        self.damaged += 1
        self._mark(block, number, Status.DAMAGED)
        return None

    # -- what becomes of items --------------------------------------------------------------

    def deliver(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """These items were delivered: which of them were pending, and of these whose cancel is to
        be forwarded."""
        delivered, forward = [], []
        for number in numbers:
            self.handed.discard(number)
            block = self.find(number)
            if block is None or not self._mark(block, number, Status.DELIVERED):
                continue
            delivered.append(number)
            if number in self._unwanted:
                self._unwanted.discard(number)
                forward.append(number)
        return delivered, forward

    def release(self, number: int) -> Status:
        """A consumer gives an item back: what it is now. It was to be cancelled, or its day has
        ended, meanwhile; else it is pending, and the next to be handed out."""
        if number not in self.handed:
            return Status.PENDING
        self.handed.discard(number)
        status = Status.PENDING
        if number in self._unwanted:
            self._unwanted.discard(number)
            status = Status.CANCELLED
        elif number < self._expired_end:
            status = Status.EXPIRED
        block = self.find(number)
        if status is Status.PENDING or block is None or not self._mark(block, number, status):
            heapq.heappush(self._returned, number)
            return Status.PENDING
        return status

    def cancel(self, number: int) -> CancelAnswer:
        """Cancel one item; where that answers DELIVERED, the cancel is to be forwarded."""
        if not 1 <= number < self._store.visible_end:
            return CancelAnswer.UNKNOWN
        block = self.find(number)
        if block is None:
            status = self._store.ended.status(number)
            return ANSWERS[Status.DELIVERED if status is None else status]
        if number in self.handed and not block.statuses[number - block.first_id]:
            self._unwanted.add(number)
            return CancelAnswer.DELIVERING
        self._mark(block, number, Status.CANCELLED)
        return ANSWERS[Status(block.statuses[number - block.first_id])]

    def cancel_all(self, since_ns: int) -> tuple[list[int], list[int]]:
        """Cancel everything pending. The ids; and those to forward: delivered since `since_ns` and
        not closed. What consumers have is cancelled or forwarded when they are done."""
        cancelled = self._end_all(Status.CANCELLED, self._store.visible_end)
        self._unwanted |= self.handed
        forward = [n for n in self._delivered_since(since_ns) if n not in self._closed]
        return cancelled, forward

    def close_order(self, number: int) -> None:
        """A delivered item is done with (its order filled): no cancel of it is forwarded."""
        self._closed.add(number)

    def expire(self, before_ns: int) -> list[int]:
        """What came before and is pending expires; the ids. What consumers have does when they
        give it back. Raises `OSError`."""
        self._closed = {number for number in self._closed if self.find(number) is not None}
        self._expired_end = self.first_since(before_ns)
        return self._end_all(Status.EXPIRED, self._expired_end)

    def _end_all(self, status: Status, end: int) -> list[int]:
        """Every pending item below `end` that nobody has becomes `status`."""
        ended = []
        for block in self._store.live:
            number = block.next_pending(block.first_id) if block.active else -1
            while 0 <= number < end:
                if number not in self.handed:
                    self._mark(block, number, status)
                    ended.append(number)
                number = block.next_pending(number + 1)
        return ended

    def _mark(self, block: Block, number: int, status: Status) -> bool:
        """Mark a pending item and journal it; whether it was pending."""
        if not block.mark(number, status, self._store.sequence + 1):
            return False
        self._store.record(number, 1, status)
        return True

    # -- finding ----------------------------------------------------------------------------

    def find(self, number: int) -> Block | None:
        """The block that holds item `number`, by its range of ids; None: used anew since."""
        near = self._near
        if near is not None and near.first_id <= number < near.next_id:
            return near
        live = self._store.live
        at = bisect_right(live, number, key=_first_id) - 1
        if at < 0 or number >= live[at].next_id:
            return None
        self._near = live[at]
        return self._near

    def status(self, number: int) -> Status | None:
        """What an item is; None where that is not known (any more)."""
        block = self.find(number)
        if block is None:
            return self._store.ended.status(number)
        return Status(block.statuses[number - block.first_id])

    def first_since(self, stamp_ns: int) -> int:
        """The first id whose segment was journalled at `stamp_ns` or later."""
        for block in self._store.live:
            if not block.statuses or block.last_stamp_ns < stamp_ns:
                continue
            if block.first_stamp_ns >= stamp_ns:
                return block.first_id
            for ordinal, offset in zip(block.ordinals, block.offsets, strict=True):
                head = self._files.pread(block.path, HEAD.size, offset)
                if HEAD.unpack(head)[5] >= stamp_ns:
                    return block.first_id + ordinal
        return self._store.visible_end

    def _delivered_since(self, stamp_ns: int) -> Iterator[int]:
        """Ids of delivered items of the day, oldest first."""
        yield from self._store.ended.delivered_since(stamp_ns)
        first = self.first_since(stamp_ns)
        for block in self._store.live:
            for ordinal, status in enumerate(block.statuses):
                if status == Status.DELIVERED and block.first_id + ordinal >= first:
                    yield block.first_id + ordinal


def _first_id(block: Block) -> int:
    return block.first_id
