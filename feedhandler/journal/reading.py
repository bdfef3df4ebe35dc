# cython: language_level=3, boundscheck=True, wraparound=False
"""Reading of items from their blocks, a segment at a time.

Where many items are wanted, their segment's table is read, and then only their contents, each into
its own `bytes`. Where few are, or where the table does not verify, the whole segment is read and
kept, because the next items are mostly in it too.

Compiled; the interpreted twin does the same. Reads through `Files`, and only what it needs.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

import cython
import msgspec
from cython.cimports.feedhandler.journal.segments import item_crc

from feedhandler.journal.scatter import PARTS_MAX
from feedhandler.journal.segments import ENTRY_BYTES, parse_segment, read_table

if TYPE_CHECKING:
    from feedhandler.journal.block import Block
    from feedhandler.journal.files import Files

#: From this number of items on the segment's table is read rather than the whole segment.
MANY = 8
#: Bytes read of a segment to find its table: enough for 2,000 items, or fewer and status changes.
TABLE_BYTES = 32 << 10

_LOW = cython.declare(cython.ulonglong, 0xFFFFFFFF)
_PARTS_MAX = cython.declare(cython.Py_ssize_t, PARTS_MAX)


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item of the queue: its id, and its bytes as they were put."""

    id: int
    content: bytes


@cython.cclass
class SegmentReader:
    """Reader of items' contents, a segment at a time; keeps the segment read last. Not
    thread-safe."""

    _files: object
    _of: tuple
    _first: cython.longlong
    _end: cython.longlong
    _data: bytes
    _spans: list
    _damaged: list
    _at: cython.longlong
    _table: bytes

    def __init__(self, files: "Files") -> None:
        self._files = files
        self._of = (0, 0)
        self._first = self._end = 0
        #: The whole segment; or its position in its file, and its table.
        self._data = b""
        self._spans = []
        self._damaged = []
        self._at = 0
        self._table = b""

    def content(self, block: "Block", number: cython.longlong) -> bytes | None:
        """Read the item's bytes; None where they do not verify. Raises `OSError`."""
        if self._table or not self._has(block, number):
            self._read(block, number)
            if not self._first <= number < self._end:
                return None
        ordinal = number - self._first
        if self._damaged and ordinal in self._damaged:
            return None
        start, end = self._spans[ordinal]
        return self._data[start:end]

    def at_hand(self, block: "Block", number: cython.longlong) -> bytes | None:
        """Return the item's content if its segment is in memory, else None; reads nothing."""
        if self._table or not self._has(block, number):
            return None
        return self.content(block, number)

    def items(self, block: "Block", numbers: list) -> list[Item]:
        """Read these items of a block, in order, except those that do not verify. Raises
        `OSError`."""
        items: list = []
        at: cython.Py_ssize_t = 0
        many: cython.bint = len(numbers) >= MANY
        while at < len(numbers):
            number = numbers[at]
            if many and not self._has(block, number):
                self._read_table(block, number)
            if self._table and self._has(block, number):
                at = self._gather(block, numbers, at, bisect_left(numbers, self._end, at), items)
                continue
            content = self.content(block, number)
            if content is not None:
                items.append(Item(number, content))
            at += 1
            if self._first <= number < self._end and not self._damaged:
                # The others in the same segment, without a lookup for each.
                at = self._slice(numbers, at, bisect_left(numbers, self._end, at), items)
        return items

    def _has(self, block: object, number: cython.longlong) -> cython.bint:
        """Return whether the item is in the segment in memory."""
        return self._first <= number < self._end and self._of == (block.number, block.incarnation)

    def _slice(
        self, numbers: list, at: cython.Py_ssize_t, stop: cython.Py_ssize_t, items: list
    ) -> cython.Py_ssize_t:
        """Add items `at` to `stop` - 1, which are in the segment in memory; return `stop`."""
        data: bytes = self._data
        spans: list = self._spans
        item = Item
        index: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        for index in range(at, stop):
            number = numbers[index]
            span: tuple = spans[number - self._first]
            begin, end = span[0], span[1]
            items.append(item(number, data[begin:end]))
        return stop

    def _gather(
        self,
        block: object,
        numbers: list,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        items: list,
    ) -> cython.Py_ssize_t:
        """Read and add a run of consecutive items by the table; return the next item's index."""
        entries: cython.const[cython.uint][::1] = memoryview(self._table).cast("I")
        first: cython.longlong = numbers[at]
        entry: cython.Py_ssize_t = 4 * (first - self._first)
        count: cython.Py_ssize_t = 0
        limit: cython.Py_ssize_t = min(stop - at, _PARTS_MAX)
        begin: cython.longlong = entries[entry]
        end: cython.longlong = begin
        number: cython.longlong = first
        sizes: list = []
        while count < limit and numbers[at + count] == number and entries[entry] == end:
            sizes.append(entries[entry + 1])
            end += entries[entry + 1]
            entry += 4
            number += 1
            count += 1
        contents = self._files.pread_parts(block.path, sizes, self._at + begin)
        if contents is None:
            return at + count  # the file ends too early: none of them verifies
        seed: cython.ulonglong = block.identity.seed
        item = Item
        entry -= 4 * count
        number = first
        for content in contents:
            if (
                entries[entry + 3] == (cython.cast(cython.ulonglong, number) & _LOW)
                and item_crc(seed, number, content) == entries[entry + 2]
            ):
                items.append(item(number, content))
            entry += 4
            number += 1
        return at + count

    def _read_table(self, block: object, number: cython.longlong) -> cython.bint:
        """Read the table of the segment that has item `number`; return whether it verifies."""
        offset, after = block.span_of(number)
        size = max(min(after - offset, TABLE_BYTES), 0)
        data: bytes = self._files.pread(block.path, size, offset)
        found = read_table(memoryview(data), block.identity)
        if found is None:
            return False
        first: cython.longlong = found[0]
        table: cython.Py_ssize_t = found[2]
        if not first <= number < first + found[1]:
            return False
        self._of = (block.number, block.incarnation)
        self._first, self._end = first, first + found[1]
        self._at = offset
        self._table = data[table : table + found[1] * ENTRY_BYTES]
        self._data, self._spans, self._damaged = b"", [], []
        return True

    def _read(self, block: object, number: cython.longlong) -> cython.bint:
        """Read the whole segment that has item `number`."""
        offset, after = block.span_of(number)
        self._of = (block.number, block.incarnation)
        self._data = self._files.pread(block.path, max(after - offset, 0), offset)
        self._table = b""
        segment = parse_segment(memoryview(self._data), 0, block.identity)
        self._first = self._end = 0
        if segment is not None:
            self._first = segment.first_id
            self._end = segment.first_id + segment.item_count
            self._spans, self._damaged = segment.spans, segment.damaged
        return True
