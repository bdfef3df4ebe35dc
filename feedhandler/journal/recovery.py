"""Recovery of a queue: control file, blocks, checkpoints, then roll forward to the last segment.

What it is for: after a crash, after a stop, and for readers that only look (`verify`, `list`): it
writes nothing. In the source's order (section 2.4): the control file names the blocks; each block's
header and tail confirm its identity and geometry; the latest valid checkpoint says from where to
roll forward; each segment from there on is checked and its items and status changes are applied.

What it means where something does not verify:

    the end of the newest block's data   an interrupted write: cut off, nothing was acknowledged
    a segment before the last one        damage: reported, skipped; its items are DAMAGED
    an item                              damage: the item is DAMAGED, reported
    one checkpoint                       the other one counts, and what was journalled since
    both                                 the block is read from its first segment, reported
    a segment of groups, the last one    an interrupted write: nothing of it counts, reported
    a snapshot of producers' states      the other counts, and what was journalled since; reported
    header or tail                       the other one counts; neither: the control file; reported
    another queue's, a later format's, a missing or a short file: refused
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.journal.block import Block
from feedhandler.journal.files import Files
from feedhandler.journal.groups import producers_in
from feedhandler.journal.layout import (
    CHECKPOINT,
    CONTROL_BYTES_MAX,
    HEADER_MAGIC,
    MARK_MAX,
    MARKED,
    PAGE,
    TAIL_MAGIC,
    VERSION_MIN,
    BlockEntry,
    Checkpoint,
    Control,
    Geometry,
    Reading,
    Roll,
    Status,
    checkpoint_bytes,
    parse_checkpoint,
    parse_control,
    parse_header,
)
from feedhandler.journal.producer_states import BYTES_MAX as PRODUCERS_BYTES_MAX
from feedhandler.journal.producer_states import NAMES as PRODUCERS_NAMES
from feedhandler.journal.producer_states import ProducerStates, Snapshot, parse_snapshot
from feedhandler.journal.segments import (
    HEAD,
    LATE,
    MARK_MIN,
    MOVE,
    SEGMENT_PLAIN,
    STATUS_MAX,
    BlockIdentity,
    Segment,
    find_segment,
    is_newer,
    parse_segment,
)

CONTROL_NAME = "control"


@dataclass(slots=True)
class RecoveryReport:
    """A report of what recovery did and found.

    `segments`, `items`, `changes`: how many were rolled forward; `torn`: whether an unfinished
    write was cut off; `items_damaged` and `changes_damaged`: how many do not verify;
    `segments_lost`: how many are missing; `problems`: a line for every fault.
    """

    segments: int = 0
    items: int = 0
    changes: int = 0
    torn: bool = False
    items_damaged: int = 0
    changes_damaged: int = 0
    segments_lost: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """A queue as it stands on disk.

    `live`: blocks in use, in the stream's order. `slots`: the slots of moved items, by their ids;
    `numbers`: ids of moved items, by their slots.
    """

    folder: str
    control: Control
    geometry: Geometry
    blocks: list[Block]
    live: list[Block]
    next_id: int
    sequence: int
    chain: int
    serial: int
    incarnation: int
    roll: Roll
    report: RecoveryReport
    producers: ProducerStates
    snapshot: Snapshot
    slots: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def queue_id(self) -> bytes:
        """The 16 bytes that distinguish this queue's records from those of others."""
        return bytes.fromhex(self.control.queue_id)


@dataclass(slots=True)
class _Read:
    """A block according to its checkpoints.

    `suspect`: one of them does not verify; `rebuilt`: neither is usable, so everything comes from
    the segments.
    """

    block: Block
    state: Checkpoint
    suspect: bool = False
    rebuilt: bool = False


def control_path(folder: str) -> str:
    """Return the path of a queue's control file."""
    return os.path.join(folder, CONTROL_NAME)


def block_path(folder: str, entry: BlockEntry) -> str:
    """Return the path of a block of the queue in `folder`."""
    return os.path.join(folder, entry.path)


def read_control(files: Files, folder: str) -> Control:
    """Read the control file.

    Raises `UsageError` where there is none, `PeerError` where it cannot be trusted.
    """
    path = control_path(folder)
    if not files.exists(path):
        raise UsageError(f"{folder}: no queue here", "its folder has a file `control`")
    reading, control = parse_control(files.pread(path, CONTROL_BYTES_MAX, 0))
    if control is None:
        raise refusal(path, reading, "`feedhandler queue repair` makes it anew from the blocks")
    return control


def refusal(path: str, reading: Reading, hint: str) -> PeerError:
    """Return the error that says why a file is not used."""
    words = {
        Reading.NEWER: ("was written by a later version", "use that version or a newer one"),
        Reading.FOREIGN: ("belongs to another queue", "give the queue its own files back"),
        Reading.BLANK: ("is empty", hint),
    }
    reason, remedy = words.get(reading, ("is damaged", hint))
    return PeerError(f"{path}: {reason}", remedy)


def damaged_pages(path: str, count: int) -> str:
    """Return the message that pages of the file `ended` do not verify."""
    return f"{path}: {count} page(s) do not verify (a write that was cut short, or damage)"


def recover(
    files: Files, folder: str, advance: Callable[[int], None] = lambda count: None
) -> Recovered:
    """Recover the queue in `folder`; `advance(1)` is called for each block read.

    Raises `UsageError`, `PeerError`, `OSError`.
    """
    control = read_control(files, folder)
    report = RecoveryReport()
    read = []
    for entry in control.blocks:
        read.append(_read_block(files, folder, control, entry, report))
        advance(1)
    read.sort(key=lambda one: one.block.incarnation)
    newest = max((one.state for one in read), key=lambda state: state.serial, default=None)
    assert newest is not None
    live = [one.block for one in read if one.block.incarnation]
    producers, snapshot, doubtful = _read_producers(files, folder, control, report)
    recovered = Recovered(
        folder, control, Geometry(control.block_bytes),
        sorted((one.block for one in read), key=lambda block: block.number), live,
        newest.next_id, newest.roll.sequence, newest.roll.chain,
        max(newest.serial, snapshot.serial),
        max(block.incarnation for block in (one.block for one in read)), newest.roll, report,
        producers, snapshot,
    )  # fmt: skip
    if doubtful and live and snapshot.roll.sequence < recovered.roll.sequence:
        first = Roll(0, live[0].incarnation, live[0].geometry.data)
        recovered.roll = snapshot.roll if snapshot.serial else first
    for one in read:
        if one.rebuilt or one.suspect:
            recovered.roll = _earlier(recovered.roll, one)
    for block in live:
        _read_moves(files, recovered, block)
    _roll_forward(files, recovered, newest.roll)
    recovered.next_id = max([recovered.next_id, *(block.next_id for block in live)])
    return recovered


def _earlier(roll: Roll, one: _Read) -> Roll:
    """Return the earlier start: `roll`, or what a block with a bad checkpoint needs."""
    if one.rebuilt:
        own = Roll(one.block.last_sequence, one.block.incarnation, one.block.geometry.data)
    else:
        own = one.state.roll
    return own if own.sequence < roll.sequence else roll


def _read_producers(
    files: Files, folder: str, control: Control, report: RecoveryReport
) -> tuple[ProducerStates, Snapshot, bool]:
    """Read both snapshots of producers' states.

    Returns the states by the later snapshot, that snapshot, and whether either does not verify.
    """
    best, doubtful = Snapshot(), False
    if control.version == VERSION_MIN:
        return ProducerStates(), best, doubtful
    slot = 0
    for number, name in enumerate(PRODUCERS_NAMES):
        path = os.path.join(folder, name)
        data = files.pread(path, PRODUCERS_BYTES_MAX, 0) if files.exists(path) else b"\xff"
        reading, found = parse_snapshot(data, bytes.fromhex(control.queue_id))
        if reading in (Reading.FOREIGN, Reading.NEWER):
            raise refusal(path, reading, "")
        if reading is Reading.DAMAGED:
            doubtful = True
            report.problems.append(
                f"{path}: does not verify (a write that was cut short, or damage); the other one"
                " counts"
            )
        if found is not None and found.serial > best.serial:
            best, slot = found, 1 - number
    states = ProducerStates(best)
    states.slot = slot
    # What the older one lacks is unknown; any sequence has it written before it is needed.
    states.uncovered[slot] = int(best.serial > 0 or doubtful)
    if not best.serial:
        states.uncovered = [int(doubtful)] * 2
    return states, best, doubtful


# -- one block --------------------------------------------------------------------------------


def _read_block(
    files: Files, folder: str, control: Control, entry: BlockEntry, report: RecoveryReport
) -> _Read:
    path = block_path(folder, entry)
    queue_id = bytes.fromhex(control.queue_id)
    geometry = Geometry(control.block_bytes)
    if not files.exists(path):
        raise PeerError(f"{path}: a block of the queue is missing", "put the file back")
    if len(files.pread(path, 1, geometry.block_bytes - 1)) != 1:
        raise PeerError(
            f"{path}: shorter than the block's {geometry.block_bytes:,} bytes",
            "put the whole file back",
        )
    for offset, magic, name in ((0, HEADER_MAGIC, "header"), (geometry.tail, TAIL_MAGIC, "tail")):
        reading, _ = parse_header(files.pread(path, PAGE, offset), queue_id, entry.number, magic)
        if reading in (Reading.FOREIGN, Reading.NEWER):
            raise refusal(path, reading, "")
        if reading is not Reading.GOOD:
            report.problems.append(f"{path}: its {name} is damaged")
    states: list[Checkpoint | None] = []
    suspect = False
    for slot, offset in enumerate(geometry.checkpoints):
        size = checkpoint_bytes(files.pread(path, CHECKPOINT.size, offset))
        data = files.pread(path, min(size, geometry.checkpoint_bytes), offset)
        reading, state = parse_checkpoint(data, queue_id, entry.number, geometry)
        if reading in (Reading.FOREIGN, Reading.NEWER):
            raise refusal(path, reading, "")
        if reading is Reading.DAMAGED:
            suspect = True
            report.problems.append(
                f"{path}: checkpoint {slot + 1} does not verify (a write that was cut short, or"
                " damage); the other one counts"
            )
        states.append(state)
    return _chosen(
        files, path, geometry, queue_id, entry.number, states, suspect, report, control.version
    )


def _chosen(
    files: Files, path: str, geometry: Geometry, queue_id: bytes, number: int,
    states: list[Checkpoint | None], suspect: bool, report: RecoveryReport, version: int,
) -> _Read:  # fmt: skip
    """Return the block by its later checkpoint, or by its first segment if none is usable."""
    first, second = (state.serial if state else -1 for state in states)
    best = 0 if first > second else 1
    state = states[best]
    if suspect or state is None:
        page = files.pread(path, geometry.tail - geometry.data, geometry.data)
        segment = _first_segment(memoryview(page), queue_id, number)
        known = state.incarnation if state else 0
        if segment is not None and segment.incarnation > known:
            report.problems.append(f"{path}: no checkpoint can be used, all segments are read")
            blank = Checkpoint(
                queue_id, number, incarnation=segment.incarnation, first_id=segment.first_id,
                last_sequence=segment.sequence - 1,
            )  # fmt: skip
            block = Block(queue_id, path, geometry, blank, version)
            block.uncovered = [1, 1]
            return _Read(block, Checkpoint(queue_id, number), True, True)
    if state is None:
        state = Checkpoint(queue_id, number)
    block = Block(queue_id, path, geometry, state, version)
    block.slot = 1 - best
    # What the older one lacks is unknown; any sequence has it written before it is needed.
    block.uncovered[1 - best] = 1
    return _Read(block, state, suspect)


def _first_segment(data: memoryview, queue_id: bytes, number: int) -> Segment | None:
    """Return the segment at the start of a block's data, of whatever use of the block."""
    incarnation = HEAD.unpack_from(data, 0)[3]
    return parse_segment(data, 0, BlockIdentity(queue_id, number, incarnation))


# -- roll forward -----------------------------------------------------------------------------


def _roll_forward(files: Files, recovered: Recovered, newest: Roll) -> None:
    """Apply what was journalled from `recovered.roll` on.

    Up to where the `newest` checkpoint starts, segments may be missing: their blocks were recycled,
    because nothing in them was wanted any more.
    """
    roll = recovered.roll
    recovered.sequence, recovered.chain = roll.sequence, roll.chain
    for block in recovered.live:
        if block.incarnation < roll.incarnation:
            continue
        start = roll.offset if block.incarnation == roll.incarnation else block.geometry.data
        _roll_block(files, recovered, block, start, newest.sequence)
    _apply_snapshot(recovered)
    if recovered.live:
        recovered.report.torn = _torn(files, recovered.live[-1])
    if recovered.sequence < newest.sequence:
        recovered.sequence, recovered.chain = newest.sequence, newest.chain


def _roll_block(files: Files, recovered: Recovered, block: Block, start: int, known: int) -> None:
    """Apply one block's segments from `start` on; `known`: the newest checkpoint's sequence."""
    tail = block.geometry.tail
    data = memoryview(files.pread(block.path, tail - start, start))
    at = 0
    while at < len(data):
        segment = parse_segment(data, at, block.identity)
        if segment is None or segment.sequence <= recovered.sequence:
            if is_newer(data, at, block.identity):
                raise refusal(block.path, Reading.NEWER, "")
            segment = find_segment(data, at + PAGE, block.identity, recovered.sequence)
            if segment is None:
                return
        if _is_unfinished(recovered, block, segment, data, known):
            recovered.report.problems.append(
                f"{block.path}: segment {segment.sequence}, the last one, holds a group and does"
                " not verify as a whole (a write that was cut short, or damage): nothing of it"
                " counts"
            )
            return
        if segment.sequence > recovered.snapshot.roll.sequence:
            _apply_snapshot(recovered)
        _check_order(recovered, block, segment, known)
        _apply(recovered, block, segment, start + segment.at)
        at = segment.at + segment.length


def _is_unfinished(
    recovered: Recovered, block: Block, segment: Segment, data: memoryview, known: int
) -> bool:
    """Return whether a segment of groups is an interrupted write.

    That is so where it does not verify as a whole and nothing shows that it was finished: no
    checkpoint, of its block or to roll from, and no segment behind it.
    """
    return (
        segment.version != SEGMENT_PLAIN
        and not segment.is_sound()
        and segment.sequence > known
        and not block.has_read(segment.sequence)
        and block is recovered.live[-1]
        and find_segment(data, segment.at + PAGE, block.identity, segment.sequence) is None
    )


def _apply_snapshot(recovered: Recovered) -> None:
    """Apply, once, the records that only the snapshot has.

    Checkpoints that were written after the snapshot have them too.
    """
    records, recovered.snapshot.records = recovered.snapshot.records, []
    for first, count, status in records:
        _change_range(recovered, first, count, status, max(recovered.sequence, 1), snapshot=True)


def _check_order(recovered: Recovered, block: Block, segment: Segment, known: int) -> None:
    """Report segments missing before this one, and a break of the chain."""
    report = recovered.report
    lost = segment.sequence - 1 - max(recovered.sequence, min(known, segment.sequence - 1))
    if lost:
        report.segments_lost += lost
        report.problems.append(
            f"{block.path}: {lost} segment(s) before sequence {segment.sequence} do not verify"
        )
    elif (
        segment.sequence == recovered.sequence + 1
        and recovered.chain
        and segment.previous != recovered.chain
    ):
        report.problems.append(
            f"{block.path}: segment {segment.sequence} does not follow the one before"
        )


def _apply(recovered: Recovered, block: Block, segment: Segment, offset: int) -> None:
    """Apply one segment's items and status changes."""
    report = recovered.report
    recovered.sequence, recovered.chain = segment.sequence, segment.crc
    report.segments += 1
    fresh = offset >= block.end
    if fresh:
        block.end = offset
        lost = segment.first_id - block.next_id if segment.item_count else 0
        block.add_segment(
            segment.length, segment.first_id, segment.item_count, segment.stamp_ns,
            segment.sequence,
        )  # fmt: skip
        for ordinal in segment.damaged:
            block.set_status(segment.first_id + ordinal, Status.DAMAGED, segment.sequence)
        report.items += segment.item_count
        report.items_damaged += len(segment.damaged) + max(lost, 0)
    if segment.version != SEGMENT_PLAIN:
        _apply_moves(recovered, block, segment, offset, fresh=fresh)
    for first, count, status in segment.statuses:
        report.changes += _change_range(recovered, first, count, status, segment.sequence)
    if segment.version != SEGMENT_PLAIN and segment.sequence > recovered.snapshot.roll.sequence:
        for producer, state in producers_in(segment.statuses):
            recovered.producers.record({producer: state}, segment.sequence)
            recovered.producers.latest.pop(producer, None)  # it is the one heard last
            recovered.producers.latest[producer] = state
    report.changes_damaged += segment.statuses_lost
    if segment.repaired or not segment.whole or segment.damaged or segment.statuses_lost:
        report.problems.append(
            f"{block.path}: segment {segment.sequence} is damaged: {len(segment.damaged)} item(s)"
            f" and {segment.statuses_lost} status record(s) do not verify"
        )


def _change_range(
    recovered: Recovered,
    first: int,
    count: int,
    status: int,
    sequence: int,
    *,
    snapshot: bool = False,
) -> int:
    """Apply a record, an end or a mark, to `count` ids from `first` on; return its effect.

    That is the number of items it concerned. A mark that a block's checkpoint already covers is
    skipped, because the checkpoint may have later ones too; with `snapshot` that is decided by the
    checkpoint's serial. Records of other kinds are ignored.
    """
    live = recovered.live
    marked = 0
    for number, slot in _moved_among(recovered, first, count):
        if number != slot:
            marked += _change_range(recovered, slot, 1, status, sequence, snapshot=snapshot)
    if status <= STATUS_MAX:
        return marked + apply_range(live, first, count, status, sequence)
    if not MARK_MIN <= status < MARK_MIN + MARKED:
        return marked
    for block, numbers in blocks_of(live, first, count):
        read = block.serial > recovered.snapshot.serial if snapshot else block.has_read(sequence)
        if not read:
            for number in numbers:
                marked += block.is_pending(number)
                block.set_mark(number, status & MARK_MAX, sequence)
    return marked


def _moved_among(recovered: Recovered, first: int, count: int) -> list[tuple[int, int]]:
    """Return those of these ids that were moved, each with its slot."""
    if not recovered.slots:
        return []
    slots = recovered.slots
    some: Iterable[int] = range(first, first + count) if count < len(slots) else list(slots)
    return [(n, slots[n]) for n in some if first <= n < first + count and n in slots]


def _read_moves(files: Files, recovered: Recovered, block: Block) -> None:
    """Read which items of a block were moved there, as far as its checkpoint knows."""
    for offset, after in [block.span_at(offset) for offset in sorted(block.moved)]:
        data = memoryview(files.pread(block.path, after - offset, offset))
        segment = parse_segment(data, 0, block.identity)
        if segment is None:
            recovered.report.problems.append(f"{block.path}: no segment verifies at {offset:,}")
            continue
        for number, ordinal, kind in segment.statuses:
            if kind & 0xFF == MOVE and not kind & LATE:
                recovered.slots[number] = segment.first_id + ordinal
                recovered.numbers[segment.first_id + ordinal] = number


def _apply_moves(
    recovered: Recovered, block: Block, segment: Segment, offset: int, *, fresh: bool
) -> None:
    """Apply a segment's moves: the moved items stand there now, and nowhere else.

    Where a moved item's bytes do not verify, it stays where it was.
    """
    for number, ordinal, kind in segment.statuses:
        slot = segment.first_id + ordinal
        if kind & 0xFF != MOVE or not block.holds(slot):
            continue
        if kind & LATE:
            block.set_byte(slot, Status.MOVED, segment.sequence)
            continue
        before = [number]
        if number in recovered.slots:
            before += [at for at, of in recovered.numbers.items() if of == number]
        if block.statuses[slot - block.first_id] == Status.DAMAGED and any(
            other.is_pending(old)
            for old in before
            for other, _ in blocks_of(recovered.live, old, 1)
        ):
            continue
        byte = kind >> 8 and MARKED | kind >> 8
        for old in sorted(set(before)):
            for other, _ in blocks_of(recovered.live, old, 1) if old < slot else ():
                if fresh and other.byte_of(old) not in (Status.MOVED, Status.DAMAGED):
                    byte = other.byte_of(old)
                other.set_byte(old, Status.MOVED, segment.sequence)
        if fresh and block.is_pending(slot):
            block.set_byte(slot, byte, segment.sequence)
        block.moved.add(offset)
        if recovered.slots.get(number, 0) <= slot:
            recovered.slots[number] = slot
        recovered.numbers[slot] = number


def blocks_of(live: list[Block], first: int, count: int) -> Iterator[tuple[Block, range]]:
    """Yield each block that holds some of `count` ids from `first` on, with these ids."""
    end = first + count
    at = max(bisect_right(live, first, key=_first_id) - 1, 0)
    while at < len(live) and live[at].first_id < end:
        block = live[at]
        start, stop = max(first, block.first_id), min(end, block.next_id)
        if start < stop:
            yield block, range(start, stop)
        at += 1


def apply_range(live: list[Block], first: int, count: int, status: int, sequence: int) -> int:
    """Give the pending ones of `count` ids from `first` on `status`; return how many those were."""
    return sum(
        block.apply_run(numbers.start, len(numbers), status, sequence)
        for block, numbers in blocks_of(live, first, count)
    )


def _first_id(block: Block) -> int:
    return block.first_id


def _torn(files: Files, block: Block) -> bool:
    """Return whether something that is not of an earlier use follows the block's last segment."""
    if block.end >= block.geometry.tail:
        return False
    if not any(files.pread(block.path, PAGE, block.end)):
        return False
    rest = memoryview(files.pread(block.path, block.geometry.tail - block.end, block.end))
    incarnation = HEAD.unpack_from(rest, 0)[3]
    if incarnation >= block.incarnation:
        return True
    return parse_segment(rest, 0, BlockIdentity(block.queue_id, block.number, incarnation)) is None
