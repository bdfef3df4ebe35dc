"""The parts of an engine that its scheduler works on at every put.

What it is for: `Engine.scheduling` returns them to the two schedulers, `commit_scheduler.py`
(asyncio) and `blocking.py` (threads), which bind what they need once. Nobody else has them:
whatever else an owner of a queue needs is a public method of its engine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from feedhandler.journal.files import Files
from feedhandler.journal.mutex import Mutex
from feedhandler.journal.pending_batch import PendingBatch


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What a scheduler has of its engine; see the module.

    `lock` guards `pending`, what waits for the disk, and is held by who calls `add`, which adds
    items and returns the first one's id. `check_sizes` raises `UsageError` where one is too large.
    `files` execute the steps of a segment; `clock` returns ns since 1970. `waiting_bytes_max`: what
    may wait; `journal_bytes`: with so much a segment is made at once; `journal_max_ns`: an item
    waits no longer for one; `item_bytes_max`: the largest item.
    """

    lock: Mutex
    pending: PendingBatch
    files: Files
    clock: Callable[[], int]
    add: Callable[[list[bytes]], int]
    check_sizes: Callable[[list[bytes]], None]
    waiting_bytes_max: int
    journal_bytes: int
    item_bytes_max: int
    journal_max_ns: int
