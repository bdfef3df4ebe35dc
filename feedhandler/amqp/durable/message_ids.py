"""Index of a queue's items by message-id, so that a producer can cancel by the id that it chose.

What it is for: a message-id is in the item's own bytes, which are durable; this is an index over
them, completed whenever the queue is opened. An entry is an item's id in the queue and a keyed hash
of its message-id (8 bytes; the key is the queue's random number, so that no client can construct
collisions). Items that ended stay in the index for the day: "already delivered" is an answer,
"unknown" is not.

The newest entries are a dictionary; full pages of them are sorted arrays, 16 bytes an entry, which
`full_page` also returns as a record for the file `message-ids`. What the file lacks is in items
that are still there: a page is written before the blocks of its items can be recycled.

What it promises: at most `ENTRIES_MAX` entries, the oldest page is dropped; a record that does not
verify is not used. No I/O.
"""

import struct
from hashlib import blake2b

import numpy
from crc32c import crc32c

FILE_NAME = "message-ids"
#: Entries of a page: sorting one takes the event loop half a millisecond.
PAGE_ENTRIES = 8192
#: Items of a page at most, those without a message-id too: as many are read again, besides those of
#: the newest block, when a queue is opened.
PAGE_ITEMS = 65_536
#: Entries of the index, those of items that ended today included: 64 MiB.
ENTRIES_MAX = 1 << 22
#: Magic, version, bytes of this, queue, first id covered, last, when, entries, CRC32C of all else.
RECORD = struct.Struct("<4sHH16sQQQII")
MAGIC = b"FHQM"
VERSION = 1
_WORD = numpy.dtype("<u8")
ENTRY_BYTES = 2 * _WORD.itemsize
#: Hashes in order, and the id of each.
Page = tuple[numpy.ndarray, numpy.ndarray]
#: One item's, or several items', ids.
Ids = int | list[int]


class MessageIds:
    """The index of one queue; `queue_id` is its random number."""

    def __init__(self, queue_id: bytes) -> None:
        self._queue_id = queue_id
        self._pages: list[Page] = []
        self._entries = 0
        self._newest: dict[int, Ids] = {}
        self._count = 0
        #: Ids up to this one are in pages, as far as they have message-ids.
        self.covered = 0
        self.last = 0
        self.forgotten = 0

    def __len__(self) -> int:
        return self._entries + self._count

    def add(self, number: int, message_id: bytes) -> None:
        """Add item `number` (each above the one before) with this message-id, as of `id_bytes`; b""
        for none."""
        self.last = number
        if not message_id:
            return
        key = self._hash(message_id)
        known = self._newest.get(key)
        if known is None:
            self._newest[key] = number
        elif isinstance(known, list):
            known.append(number)
        else:
            self._newest[key] = [known, number]
        self._count += 1

    def find(self, message_id: bytes) -> list[int]:
        """Return the items with this message-id, oldest first: several where a producer has reused
        it."""
        key = self._hash(message_id)
        found: list[int] = []
        word = numpy.uint64(key)
        for hashes, numbers in self._pages:
            first, end = hashes.searchsorted(word), hashes.searchsorted(word, "right")
            found += numbers[first:end].tolist()
        newest = self._newest.get(key, [])
        return found + (newest if isinstance(newest, list) else [newest])

    @property
    def page_due(self) -> bool:
        """Whether the newest entries fill a page, or its items are many."""
        return self._count >= PAGE_ENTRIES or self.last - self.covered >= PAGE_ITEMS

    def full_page(self, stamp_ns: int) -> bytes:
        """Make a page of the newest entries; return the record for the file, which also says up to
        which id items need not be read again. b"" where there is no newer item."""
        if self.last <= self.covered:
            return b""
        first, self.covered = self.covered + 1, self.last
        pairs = [
            (key, number)
            for key, known in self._newest.items()
            for number in (known if isinstance(known, list) else (known,))
        ]
        hashes = numpy.fromiter((pair[0] for pair in pairs), _WORD, len(pairs))
        numbers = numpy.fromiter((pair[1] for pair in pairs), _WORD, len(pairs))
        order = hashes.argsort(kind="stable")
        page = hashes[order], numbers[order]
        self._newest.clear()
        self._count = 0
        self._keep(page)
        return self._record(first, self.covered, stamp_ns, page)

    def _keep(self, page: Page) -> None:
        if not len(page[0]):
            return
        self._pages.append(page)
        self._entries += len(page[0])
        while self._entries > ENTRIES_MAX and len(self._pages) > 1:
            gone = len(self._pages.pop(0)[0])
            self._entries -= gone
            self.forgotten += gone

    # -- the file ---------------------------------------------------------------------------

    def _record(self, first: int, last: int, stamp_ns: int, page: Page) -> bytes:
        body = page[0].tobytes() + page[1].tobytes()
        head = RECORD.pack(
            MAGIC, VERSION, RECORD.size, self._queue_id, first, last, stamp_ns, len(page[0]), 0
        )[:-4]
        return head + struct.pack("<I", crc32c(body, crc32c(head))) + body

    def load(self, data: bytes, since_ns: int, end_id: int) -> bytes:
        """Load the file's records that are not older than `since_ns`; return the bytes that the
        file must hold now.

        Loading stops at the first record that does not verify, or has ids from `end_id` on, which
        do not exist: items from there on must be read again.
        """
        kept, at = [], 0
        while (record := self._parse(data, at)) is not None:
            first, last, stamp_ns, end, page = record
            if last >= end_id or (self.covered and first > self.covered + 1):
                break
            self.covered = max(self.covered, last)
            if stamp_ns >= since_ns:
                self._keep(page)
                kept.append(data[at:end])
            at = end
        self.last = self.covered
        return b"".join(kept)

    def _parse(self, data: bytes, at: int) -> tuple[int, int, int, int, Page] | None:
        """Parse the record at `at` into first id, last, time stamp, end and page; None where there
        is none."""
        if at + RECORD.size > len(data):
            return None
        magic, version, _, queue, first, last, stamp_ns, count, crc = RECORD.unpack_from(data, at)
        end = at + RECORD.size + ENTRY_BYTES * count
        if (magic, version, queue) != (MAGIC, VERSION, self._queue_id) or end > len(data):
            return None
        body = data[at + RECORD.size : end]
        if crc32c(body, crc32c(data[at : at + RECORD.size - 4])) != crc:
            return None
        words = numpy.frombuffer(body, _WORD)
        return first, last, stamp_ns, end, (words[:count], words[count:])

    def _hash(self, message_id: bytes) -> int:
        return int.from_bytes(blake2b(message_id, digest_size=8, key=self._queue_id).digest())
