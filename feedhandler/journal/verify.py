"""Verification of every byte of a queue in use: for `feedhandler queue verify`, and for tests.

What it is for: recovery reads only what it needs; this reads each block from its first segment to
its last and checks every CRC, the chain, the fill between contents and trailer, the order of
sequence numbers, and each record of the file `ended`. It writes nothing, so it may run beside the
queue's owner: a segment that is being written at that moment is not checked, because recovery found
it unfinished.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from feedhandler.journal.block import Block
from feedhandler.journal.files import Files
from feedhandler.journal.layout import PAGE
from feedhandler.journal.recovery import Recovered, damaged_pages, recover
from feedhandler.journal.segments import (
    ENTRY_BYTES,
    HEAD_BYTES,
    STATUS_BYTES,
    Segment,
    find_segment,
    parse_segment,
)
from feedhandler.journal.tombstone_index import NAME as ENDED_NAME
from feedhandler.journal.tombstone_index import READ_BYTES_MAX, parse_records


@dataclass(slots=True)
class Verified:
    """Counts of what was checked, and a line for everything that does not verify."""

    recovered: Recovered
    blocks: int = 0
    segments: int = 0
    items: int = 0
    pending: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def verify(
    files: Files, folder: str, advance: Callable[[int], None] = lambda count: None
) -> Verified:
    """Verify the queue in `folder`; `advance(1)` after each block. Raises as `recover` does."""
    recovered = recover(files, folder)
    found = Verified(recovered, problems=list(recovered.report.problems))
    for block in recovered.live:
        _verify_block(files, block, found)
        advance(1)
    _verify_ended(files, folder, found)
    return found


def _verify_ended(files: Files, folder: str, found: Verified) -> None:
    """Verify the file with the final status of items in recycled blocks."""
    path = os.path.join(folder, ENDED_NAME)
    if files.exists(path):
        data = files.pread(path, READ_BYTES_MAX, 0)
        bad: list[int] = []
        for _ in parse_records(data, found.recovered.queue_id, bad.append):
            pass
        if bad:
            found.problems.append(damaged_pages(path, len(bad)))
        found.bytes += len(data)


def _verify_block(files: Files, block: Block, found: Verified) -> None:
    """Verify one block's segments, first to last."""
    start = block.geometry.data
    data = memoryview(files.pread(block.path, block.end - start, start))
    at, sequence, chain = 0, 0, 0
    while at < len(data):
        segment = parse_segment(data, at, block.identity)
        if segment is None:
            found.problems.append(f"{block.path}: no segment verifies at {start + at:,}")
            segment = find_segment(data, at + PAGE, block.identity, sequence)
            if segment is None:
                break
        for text in _wrong(data, segment, sequence, chain):
            found.problems.append(f"{block.path}: segment {segment.sequence}: {text}")
        found.segments += 1
        found.items += segment.item_count
        sequence, chain = segment.sequence, segment.crc
        at = segment.at + segment.length
    found.blocks += 1
    found.pending += block.active
    found.bytes += len(data)


def _wrong(data: memoryview, segment: Segment, sequence: int, chain: int) -> list[str]:
    """Return the faults of a segment that follows `sequence` and `chain` (0: the block's first)."""
    wrong = []
    if segment.repaired:
        wrong.append("its header does not verify, its trailer does")
    if not segment.whole:
        wrong.append("its head does not verify")
    if segment.damaged:
        first = segment.first_id
        wrong.append("items " + ", ".join(str(first + n) for n in segment.damaged) + " are damaged")
    if segment.statuses_lost:
        wrong.append(f"{segment.statuses_lost} status record(s) are damaged")
    if sequence and segment.sequence != sequence + 1:
        wrong.append(f"follows segment {sequence}")
    elif sequence and segment.previous != chain:
        wrong.append("does not follow the one before")
    end = segment.at + segment.length
    used = HEAD_BYTES + STATUS_BYTES * segment.status_count + ENTRY_BYTES * segment.item_count
    last = max([segment.at + used, *(span[1] for span in segment.spans)])
    if segment.whole and not segment.damaged and any(data[last : end - HEAD_BYTES]):
        wrong.append("its fill is not zero")
    if bytes(data[end - HEAD_BYTES : end]) != bytes(data[segment.at : segment.at + HEAD_BYTES]):
        wrong.append("its header and trailer differ")
    return wrong
