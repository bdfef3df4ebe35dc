"""Producer states: (epoch, sequence) by producer id, durable beyond the recycling of blocks.

What it is for: groups bring producers' states into segments; the states of durable segments are
kept here, and each round of checkpoints writes them as a snapshot into one of two files in turn, so
that a block may be recycled. Where a snapshot does not verify, the preceding one counts, and what
was journalled since. A snapshot may also hold status records for which no block had room
(`Snapshot.records`).

What it promises: at most `PRODUCERS_MAX` producers are kept; beyond that the longest idle are
forgotten first, and counted, except those whose ids begin with a zero byte: these belong to the
queue's owner, are few, and are never forgotten. No I/O.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from crc32c import crc32c

from feedhandler.journal.groups import PRODUCER_ID_BYTES_MAX, ProducerState, Record
from feedhandler.journal.layout import PAGE, Reading, Roll, pages

#: Upper limit on producers whose state is kept.
PRODUCERS_MAX = 1 << 17
NAMES = ("producers-1", "producers-2")
MAGIC = b"FHQP"
VERSION = 2
#: magic, version, head's bytes, queue, serial, roll (sequence, incarnation, page, chain),
#: producers, records, bytes of all, and how many were forgotten beyond the bound.
HEAD = struct.Struct("<4sHH16sQQQIIIIIQ")
ENTRY = struct.Struct("<BQQ")
RECORD = struct.Struct("<QIHH")
CRC_BYTES = 4
#: Upper limit on the bytes read from a file.
BYTES_MAX = pages(
    HEAD.size + PRODUCERS_MAX * (ENTRY.size + PRODUCER_ID_BYTES_MAX) + (1 << 20) + CRC_BYTES
)


@dataclass(slots=True)
class Snapshot:
    """Producers' states, longest idle first, as of all segments up to `roll`.

    `serial`: its position in the common numbering of checkpoints and snapshots.
    """

    serial: int = 0
    roll: Roll = field(default_factory=Roll)
    states: dict[bytes, ProducerState] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    forgotten: int = 0


def pack_snapshot(queue_id: bytes, snapshot: Snapshot) -> bytes:
    """Encode a snapshot as whole pages."""
    parts = [b""]
    for producer, (epoch, sequence) in snapshot.states.items():
        parts.append(ENTRY.pack(len(producer), epoch, sequence) + producer)
    parts += [RECORD.pack(*record, 0) for record in snapshot.records]
    size = HEAD.size + sum(map(len, parts))
    roll = snapshot.roll
    parts[0] = HEAD.pack(
        MAGIC, VERSION, HEAD.size, queue_id, snapshot.serial, roll.sequence, roll.incarnation,
        roll.offset // PAGE, roll.chain, len(snapshot.states), len(snapshot.records), size,
        snapshot.forgotten,
    )  # fmt: skip
    data = b"".join(parts)
    return (data + struct.pack("<I", crc32c(data))).ljust(pages(size + CRC_BYTES), b"\0")


def parse_snapshot(data: bytes, queue_id: bytes) -> tuple[Reading, Snapshot | None]:
    """Decode the snapshot in one of the two files; the second value is None unless it is `GOOD`."""
    if not any(data[: HEAD.size]):
        return Reading.BLANK, None
    if len(data) < HEAD.size:
        return Reading.DAMAGED, None
    (magic, version, head, queue, serial, sequence, incarnation, page, chain, producers, records,
     size, forgotten) = HEAD.unpack_from(data)  # fmt: skip
    if magic != MAGIC or head != HEAD.size or not HEAD.size <= size <= len(data) - CRC_BYTES:
        return Reading.DAMAGED, None
    if crc32c(data[:size]) != int.from_bytes(data[size : size + CRC_BYTES], "little"):
        return Reading.DAMAGED, None
    if version > VERSION:
        return Reading.NEWER, None
    if queue != queue_id:
        return Reading.FOREIGN, None
    found = Snapshot(serial, Roll(sequence, incarnation, page * PAGE, chain), forgotten=forgotten)
    at = HEAD.size
    for _ in range(producers):
        length, epoch, number = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        found.states[bytes(data[at : at + length])] = epoch, number
        at += length
    for _ in range(records):
        found.records.append(RECORD.unpack_from(data, at)[:3])
        at += RECORD.size
    return Reading.GOOD, found


class ProducerStates:
    """Producers' states in memory; see the module.

    `settled`: states on the disk; `latest`: every producer's state, including those in flight;
    `uncovered`: for each file the sequence of the first change that its snapshot lacks, 0: none;
    `slot`: index of the file that is written next; `forgotten`: how many producers were dropped
    beyond the limit.
    """

    def __init__(self, found: Snapshot | None = None) -> None:
        found = found or Snapshot()
        self.settled = dict(found.states)
        self.latest = dict(found.states)
        self.forgotten = found.forgotten
        self.uncovered = [0, 0]
        self.slot = 0

    def record(self, states: Mapping[bytes, ProducerState], sequence: int) -> None:
        """Record states that are on the disk, in the segment of that sequence."""
        for producer, state in states.items():
            self.settled.pop(producer, None)
            self.settled[producer] = state
        self.touch(sequence)
        while len(self.settled) > PRODUCERS_MAX:
            idle = next((name for name in self.settled if name[:1] != b"\0"), None)
            if idle is None:
                return
            if self.latest.get(idle) == self.settled.pop(idle):
                self.latest.pop(idle, None)
            self.forgotten += 1

    def touch(self, sequence: int) -> None:
        """Record that the segment of that sequence has a change that the snapshots lack."""
        self.uncovered = [first or sequence for first in self.uncovered]

    @property
    def dirty(self) -> bool:
        """Whether neither snapshot covers everything."""
        return bool(self.uncovered[0] and self.uncovered[1])

    def snapshot(
        self, queue_id: bytes, serial: int, roll: Roll, records: list[Record]
    ) -> tuple[str, bytes]:
        """Return the name of the older snapshot's file and its new bytes, with everything."""
        name = NAMES[self.slot]
        self.uncovered[self.slot] = 0
        self.slot = 1 - self.slot
        state = Snapshot(serial, roll, self.settled, records, self.forgotten)
        return name, pack_snapshot(queue_id, state)
