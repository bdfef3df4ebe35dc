"""The file of a queue's message-ids, and making the index whole when the queue is opened.

What it is for: `open_index` reads the file `message-ids` in the queue's folder, and from the items
themselves what that lacks: those of the newest blocks. It runs in a thread, before anybody uses the
queue. `IndexFile.append` adds a page, in the queue's thread.

What it promises: the file is an aid and no more. Where it cannot be written, or is damaged or gone,
the ids of items whose blocks were used anew are unknown after a restart; no message is concerned.
"""

import os
from collections.abc import Callable

from feedhandler.amqp.durable.message_ids import FILE_NAME, MessageIds
from feedhandler.amqp.durable.sections import look
from feedhandler.amqp.durable.values import SectionError
from feedhandler.journal.engine import Engine
from feedhandler.journal.files import Create, Files, Replace, Sync, Write, carry_out
from feedhandler.journal.opening import KEEP_NS
from feedhandler.journal.reading import SegmentReader
from feedhandler.notes import tell

#: More of the file is not read: records of a day, and the rest of the day before.
FILE_BYTES_MAX = 1 << 30


class IndexFile:
    """The file, from where it ends now on."""

    def __init__(self, files: Files, path: str, end: int) -> None:
        self._files = files
        self._path = path
        self._end = end
        self._failed = False

    def append(self, record: bytes) -> None:
        """Add a page's record, and have it on the disk before its items' blocks are used anew."""
        if self._failed:
            return
        try:
            carry_out(self._files, [Write(self._path, self._end, record), Sync(self._path)])
            self._end += len(record)
        except OSError as error:
            self._failed = True
            tell("queue_index", f"{self._path}: cannot be written: {error.strerror or error}: "
                 "message-ids of recycled blocks will be unknown after a restart")  # fmt: skip


def open_index(
    engine: Engine, message_in: Callable[[bytes], bytes]
) -> tuple[MessageIds, IndexFile]:
    """The index of an open queue that nobody uses yet, and its file; `message_in` finds the AMQP
    message in an item. Raises `OSError`."""
    files, store = engine.files, engine.store
    path = os.path.join(engine.folder, FILE_NAME)
    if not files.exists(path):
        carry_out(files, [Create(path, 0)])
    data = files.pread(path, FILE_BYTES_MAX, 0)
    ids = MessageIds(store.queue_id)
    since_ns = engine.day_ns or engine.clock() - KEEP_NS
    kept = ids.load(data, since_ns, store.visible_end)
    if len(kept) != len(data):
        carry_out(files, [Replace(path, kept)])
    file = IndexFile(files, path, len(kept))
    reader = SegmentReader(files)
    for block in store.live:
        for number in range(max(block.first_id, ids.covered + 1), block.next_id):
            content = reader.content(block, number)
            ids.add(number, _message_id(message_in(content)) if content is not None else b"")
            if ids.page_due:
                file.append(ids.full_page(engine.clock()))
    return ids, file


def _message_id(content: bytes) -> bytes:
    try:
        return look(content).message_id
    except SectionError:
        return b""  # put by other means than AMQP
