"""Groups: items, ends, marks and producers' states of one `commit`, valid only together.

What it is for: a `Group` waits for the disk as a whole and goes there in one segment, which is
valid as a whole or not at all. Until it is there no checkpoint may include it: each block keeps
what a group has changed in it as a `Pledge`, and a checkpoint written meanwhile has the earlier
status.

A producer's state is stored in a segment as bytes (length of the id, epoch, sequence, id), split
into records of 12 bytes each. No I/O.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.journal.layout import MARK_MAX, MARKED, Status
from feedhandler.journal.segments import LATE, MOVE, PRODUCER

if TYPE_CHECKING:
    from feedhandler.journal.block import Block

#: Upper limit on the bytes of a producer's id.
PRODUCER_ID_BYTES_MAX = 64
#: Epochs and sequences are below this.
NUMBER_END = 1 << 64
_STATE = struct.Struct("<BQQ")
_SLOT = struct.Struct("<QI")

#: Three fields of a record in a segment: first id, count, status; or those of another kind.
Record = tuple[int, int, int]
#: Epoch and sequence of a producer.
ProducerState = tuple[int, int]


class Pledge(NamedTuple):
    """A change by a group that is not on the disk yet: an item's status byte before and after."""

    group: "Group"
    number: int
    before: int
    after: int


@dataclass(slots=True)
class Move:
    """An item that is written again: its id, and its present block and slot."""

    number: int
    block: "Block"
    incarnation: int
    slot: int
    #: Whether the item had ended when its segment was built.
    late: bool = False

    def byte(self, ahead: Sequence["Group"]) -> int:
        """Return the status byte that its record has; `MOVED` where the block has been recycled.

        A mark by a group that waits behind `ahead`, the groups in flight, is left out: that group
        may never be on the disk, and its own record has the mark. An end is not left out.
        """
        if self.block.incarnation != self.incarnation:
            return Status.MOVED
        byte = self.block.byte_of(self.slot)
        if 0 < byte < MARKED:
            return byte
        waiting = (
            pledge.before
            for pledge in self.block.pledges
            if pledge.number == self.slot and pledge.group not in ahead
        )
        return next(waiting, byte)


@dataclass(slots=True, eq=False)
class Group:
    """A group of changes; see the module.

    `first_id` to `end_id` - 1 are its items' ids; `record_count`: how many records it takes in a
    segment; `among_items`: whether it waits among the items; `blocks`: those that have pledges of
    it; `moves`: its items, where they are moved ones.
    """

    records: list[Record]
    producers: Mapping[bytes, ProducerState]
    record_count: int = 0
    first_id: int = 0
    end_id: int = 0
    content_bytes: int = 0
    among_items: bool = False
    blocks: set["Block"] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record_count = (
            len(self.records) + len(self.moves) + sum(map(records_of, self.producers))
        )


def records_of(producer: bytes) -> int:
    """Return the number of records that a producer's state takes."""
    return -(-(_STATE.size + len(producer)) // _SLOT.size)


def check_changes(
    ends: Sequence[tuple[int, int]],
    marks: Sequence[tuple[int, int]],
    producers: Mapping[bytes, ProducerState],
) -> None:
    """Check the changes of a group. Raises `UsageError` where one is invalid or an item is named
    twice."""
    numbers = [number for number, _ in (*ends, *marks)]
    if len(set(numbers)) < len(numbers):
        raise UsageError("a group changes an item twice", "name each item once")
    for number, status in ends:
        if status not in (Status.DELIVERED, Status.CANCELLED, Status.EXPIRED):
            raise UsageError(f"item {number} cannot end as {status}", "take 1, 2 or 3")
    for number, mark in marks:
        if not 0 <= mark <= MARK_MAX:
            raise UsageError(f"item {number}: a mark of {mark}", f"take 0 to {MARK_MAX}")
    for producer, state in producers.items():
        if not 0 < len(producer) <= PRODUCER_ID_BYTES_MAX:
            raise UsageError(
                f"a producer's id of {len(producer)} bytes", f"take 1 to {PRODUCER_ID_BYTES_MAX}"
            )
        if not all(0 <= number < NUMBER_END for number in state):
            raise UsageError(f"a producer's state of {state}", "take numbers of 64 bits")


def runs_of_changes(changes: Iterable[tuple[int, int]]) -> list[Record]:
    """Convert (id, status) pairs to records: adjacent ids with the same status become one."""
    runs: list[Record] = []
    for number, status in sorted(changes):
        if runs and runs[-1][2] == status and runs[-1][0] + runs[-1][1] == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, status)
        else:
            runs.append((number, 1, status))
    return runs


def marked(mark: int) -> int:
    """Return the status byte of a pending item with that mark."""
    return MARKED | mark


def move_records(group: Group, first_id: int, ahead: Sequence[Group]) -> Iterator[Record]:
    """Yield the records of a group's moves, in the segment whose first item is `first_id`.

    Each has the item's id, its ordinal in the segment, and its mark as the segments up to this one
    have it; `ahead` are the groups of the one in flight. An item that has ended meanwhile is not
    moved: its record has the flag `LATE`.
    """
    for slot, move in enumerate(group.moves, group.first_id):
        byte = move.byte(ahead)
        move.late = 0 < byte < MARKED
        more = LATE if move.late else (byte & MARK_MAX) << 8
        yield move.number, slot - first_id, MOVE | more


def producer_records(producers: Mapping[bytes, ProducerState]) -> Iterator[Record]:
    """Yield the records that hold producers' states."""
    for producer, (epoch, sequence) in producers.items():
        data = _STATE.pack(len(producer), epoch, sequence) + producer
        for part, at in enumerate(range(0, len(data), _SLOT.size)):
            yield (*_SLOT.unpack(data[at : at + _SLOT.size].ljust(_SLOT.size, b"\0")),
                   PRODUCER | part << 8)  # fmt: skip


def producers_in(records: Iterable[Record]) -> Iterator[tuple[bytes, ProducerState]]:
    """Yield the producers' states among records, in order; incomplete ones are left out."""
    data, part = b"", 0
    for first, count, kind in records:
        if kind & 0xFF != PRODUCER:
            continue
        if kind >> 8 == 0:
            data, part = b"", 0
        if kind >> 8 != part:
            continue
        data += _SLOT.pack(first, count)
        part += 1
        size = _STATE.size + data[0]
        if part == -(-size // _SLOT.size):
            _, epoch, sequence = _STATE.unpack_from(data)
            yield data[_STATE.size : size], (epoch, sequence)
