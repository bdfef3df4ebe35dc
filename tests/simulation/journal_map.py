"""A map of a queue's files: the owner of each byte, and what its decay may cost.

Read from the bytes themselves, by the format document and not by recovery: a map from positions to
`Region`s, so that a test knows beforehand which items a flipped bit may concern, and whether
it has to be reported.
"""

import struct
from bisect import bisect_right
from dataclasses import dataclass

from feedhandler.journal.layout import CHECKPOINT, HEADER, PAGE
from feedhandler.journal.opening import Opened
from feedhandler.journal.producer_states import HEAD
from feedhandler.journal.producer_states import NAMES as PRODUCERS_NAMES
from feedhandler.journal.segments import MOVE, PRODUCER
from tests.support.journal import FOLDER
from tests.support.simulated_disk import SimulatedDisk

NOTHING: frozenset[int] = frozenset()
SEGMENT, RECORD, ENTRY = 64, 24, 16
ENDED_HEAD = struct.calcsize("<4sHH16sQQQII")


@dataclass(frozen=True)
class Region:
    """Region of a file from `start` on, and what a flipped bit in it costs.

    `reported`: a flipped bit is reported. `items`: those whose bytes are lost by it; `ends`: those
    of which something else may be (0: producers' states). `gone`: nothing of its segment counts.
    `fatal`: the queue is refused.
    """

    start: int
    kind: str
    reported: bool = False
    items: frozenset[int] = NOTHING
    ends: frozenset[int] = NOTHING
    gone: bool = False
    fatal: bool = False


class Map:
    """The regions of every file of a closed queue."""

    def __init__(self, disk: SimulatedDisk, opened: Opened) -> None:
        self._disk = disk
        self._files: dict[str, list[Region]] = {}
        store = opened.store
        self._rolled = store.roll.sequence
        self._slots = store.slots
        self._numbers = store.numbers
        for block in store.blocks:
            data = disk.pread(block.path, block.geometry.block_bytes, 0)
            end = block.end if block in store.live else block.geometry.data
            newest = block is store.live[-1]
            self._files[block.path] = self._block(data, block.geometry, end, newest)
        self._files[f"{FOLDER}/control"] = [Region(0, "control", reported=True, fatal=True)]
        self._files[f"{FOLDER}/ended"] = self._ended(disk.pread(f"{FOLDER}/ended", 1 << 30, 0))
        for name in PRODUCERS_NAMES:
            path = f"{FOLDER}/{name}"
            self._files[path] = self._snapshot(disk.pread(path, 1 << 30, 0))
        self.sizes = {path: disk.size(path) for path in self._files}

    def paths(self) -> list[str]:
        """Files that hold anything."""
        return [path for path, size in self.sizes.items() if size]

    def regions(self, path: str) -> list[Region]:
        """Return a file's regions in order."""
        return self._files[path]

    def at(self, path: str, byte: int) -> Region:
        """Return the region that a byte belongs to."""
        regions = self._files[path]
        return regions[bisect_right(regions, byte, key=lambda index: index.start) - 1]

    def _snapshot(self, data: bytes) -> list[Region]:
        used = HEAD.unpack_from(data)[-2] + 4 if data else 0
        return (
            [Region(0, "snapshot", reported=True), Region(used, "fill")]
            if data
            else [Region(0, "fill")]
        )

    def _block(self, data: bytes, geometry, end: int, newest: bool) -> list[Region]:
        regions = [Region(0, "header", reported=True), Region(HEADER.size, "fill")]
        read = (0, 0, 0)
        for at in geometry.checkpoints:
            head = data[at : at + CHECKPOINT.size]
            items, segments, as_of, serial, incarnation = struct.unpack_from("<IIIQQ", head, 28)
            read = max(read, (serial, incarnation, as_of))
            blank = not any(head)
            used = CHECKPOINT.size if blank else CHECKPOINT.size + 8 * segments + items + 4
            regions += [Region(at, "checkpoint", reported=True), Region(at + used, "fill")]
        at = geometry.data
        while at < end:
            length = struct.unpack_from("<I", data, at + 48)[0]
            incarnation, sequence = struct.unpack_from("<QQ", data, at + 8)
            as_of = read[2] if incarnation == read[1] else 0
            covered = sequence <= max(as_of, self._rolled)
            last = newest and at + length == end
            regions += self._segment(data, at, unsure=last and not covered)
            at += length
        regions.append(Region(at, "free"))
        tail = [
            Region(geometry.tail, "tail", reported=True),
            Region(geometry.tail + HEADER.size, "fill"),
        ]
        return [region for region in regions if region.start < geometry.tail] + tail

    def _segment(self, data: bytes, at: int, *, unsure: bool) -> list[Region]:
        """Return a segment's regions; `unsure`: neither checkpoints nor a segment behind it show
        that it was finished.
        """
        _, version, _, _, sequence, _, first, items, statuses, length, *_ = struct.unpack_from(
            "<4sHHQQQQIIIIII", data, at
        )
        regions = [Region(at, "segment header", reported=True)]
        record = at + SEGMENT
        concerned = frozenset([0, *range(first, first + items)])
        for _ in range(statuses):
            start, count, kind = struct.unpack_from("<QIB", data, record)
            ends = NOTHING
            if kind == MOVE:  # without it the content belongs to no item
                both = frozenset([start, first + count])
                regions.append(Region(record, "move record", reported=True, ends=both))
                concerned |= both
                record += RECORD
                continue
            elif sequence > self._rolled:
                ends = frozenset([0] if kind == PRODUCER else range(start, start + count))
            concerned |= ends
            regions.append(Region(record, "status record", reported=True, ends=ends))
            record += RECORD
        contents = []
        end = record + ENTRY * items
        for number in range(first, first + items):
            offset, size = struct.unpack_from("<II", data, record)
            item, ends = frozenset([number]), NOTHING
            if number in self._numbers or number in self._slots:
                # Where it stood or stands; until checkpoints know, it may be found in either.
                current = self._slots.get(self._numbers.get(number, number)) == number
                item, ends = NOTHING, frozenset([self._numbers.get(number, number), number])
                if current and sequence <= self._rolled:
                    item, ends = frozenset([self._numbers[number]]), NOTHING
            if not size:  # where nothing stands may be said wrongly, as long as it is inside
                regions.append(Region(record, "unused entry", reported=True, ends=item | ends))
            at_entry = record + (0 if size else 4)
            regions.append(Region(at_entry, "table entry", reported=True, items=item, ends=ends))
            if size:
                begin = at + offset
                contents.append(Region(begin, "content", reported=True, items=item, ends=ends))
            end = at + offset + size
            record += ENTRY
        regions += contents
        if version > 1 and unsure:
            regions[1:] = [
                Region(region.start, region.kind, reported=True, ends=concerned, gone=True)
                for region in regions[1:]
            ]
        if end < at + length - SEGMENT:
            regions.append(Region(end, "segment fill", reported=True))
        regions.append(Region(at + length - SEGMENT, "trailer", reported=True))
        return regions

    def _ended(self, data: bytes) -> list[Region]:
        regions = []
        at = 0
        while at < len(data):
            runs = struct.unpack_from("<I", data, at + ENDED_HEAD - 8)[0]
            ids: set[int] = set()
            for first, count, _ in struct.iter_unpack(
                "<QII", data[at + ENDED_HEAD : at + ENDED_HEAD + 16 * runs]
            ):
                ids.update(range(first, first + count))
            regions.append(Region(at, "ended", reported=True, ends=frozenset(ids)))
            used = ENDED_HEAD + 16 * runs
            regions.append(Region(at + used, "fill"))
            at += -(-used // PAGE) * PAGE
        return regions or [Region(0, "fill")]


View = dict[int, tuple[object, ...]]


def view_of(opened: Opened) -> View:
    """Return what everybody can know of a queue, by id.

    It is each id's status, bytes and mark of what is pending, and (0) how far producers have come.
    """
    contents = {item.id: item.content for item in opened.delivery.peek(0, 1 << 30)}
    view: View = {0: tuple(sorted(opened.store.producers.latest.items()))}
    for number in range(1, opened.store.visible_end):
        if number in opened.store.numbers:
            continue  # the id was never given out
        mark = opened.delivery.mark_of(number)
        view[number] = (opened.delivery.status(number), contents.get(number), mark)
    return view


def differing(one: View, other: View) -> set[int]:
    """Ids of which the two say different things."""
    return {n for n in one.keys() | other.keys() if one.get(n) != other.get(n)}
