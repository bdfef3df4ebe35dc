"""Opening a queue: create it where there is none, else recover it, and tidy up before use.

What it is for: the one way from a folder to a `Store` with its `Delivery`, for the product and for
simulated disks alike. What it leaves to others: ownership (`owner.py`) and threads (`queue.py`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from feedhandler.journal.block import Block, Lock
from feedhandler.journal.delivery import Delivery
from feedhandler.journal.files import Create, Files, Replace, Step, Sync, Write, carry_out
from feedhandler.journal.layout import (
    HEADER_MAGIC,
    TAIL_MAGIC,
    VERSION,
    BlockHeader,
    Status,
    pack_control,
    pack_header,
    pages,
)
from feedhandler.journal.producer_states import NAMES as PRODUCERS_NAMES
from feedhandler.journal.recovery import (
    Recovered,
    RecoveryReport,
    control_path,
    damaged_pages,
    recover,
)
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import Store, creation
from feedhandler.journal.tombstone_index import KEEP_NS, READ_BYTES_MAX, TombstoneIndex, runs_of
from feedhandler.journal.tombstone_index import NAME as ENDED_NAME


@dataclass(slots=True)
class Opened:
    """A queue ready for use.

    It has the queue's writing and reading side, recovery's report, and the ids that expired on
    opening.
    """

    store: Store
    delivery: Delivery
    report: RecoveryReport
    expired: list[int]


def open_store(
    files: Files,
    folder: str,
    settings: QueueSettings,
    queue_id: bytes,
    now_ns: int,
    new_lock: Callable[[], Lock] = contextlib.nullcontext,
) -> Opened:
    """Open the queue in `folder`, or create it.

    `queue_id`: 16 random bytes that identify a new queue; `new_lock` makes a mutex where threads
    share the queue. Raises `PeerError` where a file cannot be trusted, and `OSError`.
    """
    if not files.exists(control_path(folder)):
        steps, _ = creation(folder, settings, queue_id, now_ns)
        carry_out(files, steps)
    found = recover(files, folder)
    if found.control.version < VERSION and not any(block.active for block in found.live):
        carry_out(files, _renewal(found))
        found = recover(files, folder)
    for name in PRODUCERS_NAMES if found.control.version >= VERSION else ():
        if not files.exists(os.path.join(folder, name)):
            carry_out(files, [Create(os.path.join(folder, name), 0)])
    since_ns = settings.day_began_ns(now_ns) or now_ns - KEEP_NS
    tombstones = TombstoneIndex(found.queue_id)
    path = os.path.join(folder, ENDED_NAME)
    if not files.exists(path):
        carry_out(files, [Create(path, 0)])
    data = files.pread(path, READ_BYTES_MAX, 0)
    shorter = tombstones.load(data, since_ns)
    for block in found.live:
        # The block was about to be recycled when a crash came: its own statuses count, but for
        # what was moved elsewhere.
        for first, count in _own(block):
            tombstones.forget(first, first + count)
    if tombstones.damaged:
        found.report.problems.append(damaged_pages(path, tombstones.damaged))
    if shorter is not None:
        carry_out(files, [Replace(path, shorter)])
        data = shorter
    store = Store(found, settings, tombstones, new_lock)
    store.ended_end = pages(len(data))
    carry_out(files, store.tidy(found.report.torn))
    delivery = Delivery(store, files)
    expired = delivery.expire(day) if (day := settings.day_began_ns(now_ns)) else []
    while (flush := store.seal(now_ns)) is not None:
        carry_out(files, flush.steps)
        store.complete_flush()
    return Opened(store, delivery, found.report, expired)


def _own(block: Block) -> Iterator[tuple[int, int]]:
    """Yield runs (first id, count) of a block's items that were not moved to another one."""
    if Status.MOVED not in block.statuses:
        yield block.first_id, len(block.statuses)
        return
    for first, count, status in runs_of(block.first_id, block.statuses):
        if status != Status.MOVED:
            yield first, count


def _renewal(found: Recovered) -> list[Step]:
    """Return the steps that convert an empty queue of an earlier format to this one.

    They write headers and tails one after the other, then the control file, which completes the
    conversion. The final statuses of its items stay known.
    """
    control = msgspec.structs.replace(found.control, version=VERSION)
    steps: list[Step] = []
    for block in found.blocks:
        header = BlockHeader(found.queue_id, block.number, found.geometry, found.control.created_ns)
        for offset, magic in ((0, HEADER_MAGIC), (found.geometry.tail, TAIL_MAGIC)):
            steps += [Write(block.path, offset, pack_header(header, magic)), Sync(block.path)]
    steps += [Create(os.path.join(found.folder, name), 0) for name in PRODUCERS_NAMES]
    return [*steps, Replace(control_path(found.folder), pack_control(control))]
