"""The file of a queue's message-ids, and completing the index when the queue is opened.

What it is for: `open_index` reads the file `message-ids` in the queue's folder, and takes from the
items themselves what that lacks: those of the newest blocks. It runs in a thread, before the queue
is used. `IndexFile.append` adds a page, in the queue's thread.

What it promises: the file is an aid only. Where it cannot be written, or is damaged or gone, the
ids of items in recycled blocks are unknown after a restart; messages are not affected.
"""

import os
from collections.abc import Callable

from feedhandler.amqp.durable.message_ids import FILE_NAME, MessageIds
from feedhandler.amqp.durable.sections import id_of
from feedhandler.journal.engine import Engine
from feedhandler.journal.files import Create, Files, Replace, Sync, Write, carry_out
from feedhandler.operator_log import log_event

#: Bytes of the file that are read at most: records of a day, and the rest of the day before.
FILE_BYTES_MAX = 1 << 30


class IndexFile:
    """The file of message-ids, open for appending at `end`."""

    def __init__(self, files: Files, path: str, end: int) -> None:
        self._files = files
        self._path = path
        self._end = end
        self._failed = False

    def append(self, record: bytes) -> None:
        """Append a page's record, and sync it before its items' blocks are recycled. A failure is
        reported once; later calls do nothing."""
        if self._failed:
            return
        try:
            carry_out(self._files, [Write(self._path, self._end, record), Sync(self._path)])
            self._end += len(record)
        except OSError as error:
            self._failed = True
            text = f"{self._path}: cannot be written: {error.strerror or error}: "
            text += "message-ids of recycled blocks will be unknown after a restart"
            log_event("queue_index", text)


def open_index(
    engine: Engine, files: Files, message_in: Callable[[bytes], bytes]
) -> tuple[MessageIds, IndexFile]:
    """Return the index of an open queue that is not in use yet, and its file. `message_in` finds
    the AMQP message in an item. Raises `OSError`."""
    path = os.path.join(engine.folder, FILE_NAME)
    if not files.exists(path):
        carry_out(files, [Create(path, 0)])
    data = files.pread(path, FILE_BYTES_MAX, 0)
    ids = MessageIds(engine.queue_id)
    kept = ids.load(data, engine.since_ns, engine.visible_end)
    if len(kept) != len(data):
        carry_out(files, [Replace(path, kept)])
    file = IndexFile(files, path, len(kept))
    for number, content in engine.walk_blocks(ids.covered + 1):
        ids.add(number, id_of(message_in(content)) if content is not None else b"")
        if ids.page_due:
            file.append(ids.full_page(engine.now_ns()))
    return ids, file
