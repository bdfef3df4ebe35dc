# cython: language_level=3, boundscheck=True, wraparound=False
"""Items read back from their blocks, a segment at a time.

Compiled; the interpreted twin does the same. Reads through `Files`, and only what it needs.
"""

from bisect import bisect_left

import cython
import msgspec

from feedhandler.journal.segments import parse_segment


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item of the queue: its id, and its bytes as they were put."""

    id: int
    content: bytes


@cython.cclass
class SegmentReader:
    """Items' contents, a segment at a time; the last one read is kept."""

    def __init__(self, files: object) -> None:
        self._files = files
        self._of = (0, 0)
        self._first = self._end = 0
        self._data = b""
        self._spans = []
        self._damaged = []

    def content(self, block: object, number: cython.longlong) -> bytes | None:
        """The item's bytes; None where they do not verify. Raises `OSError`."""
        if not self._first <= number < self._end or self._of != (block.number, block.incarnation):
            self._read(block, number)
            if not self._first <= number < self._end:
                return None
        ordinal = number - self._first
        if self._damaged and ordinal in self._damaged:
            return None
        start, end = self._spans[ordinal]
        return self._data[start:end]

    def items(self, block: object, numbers: list) -> list:
        """These items of a block, in order, but for those that do not verify. Raises `OSError`."""
        items: list = []
        at: cython.Py_ssize_t = 0
        while at < len(numbers):
            number = numbers[at]
            content = self.content(block, number)
            if content is not None:
                items.append(Item(number, content))
            at += 1
            if self._first <= number < self._end and not self._damaged:
                # The others that are in the same segment, without asking for each anew.
                at = self._slice(numbers, at, bisect_left(numbers, self._end, at), items)
        return items

    @cython.cfunc
    def _slice(
        self, numbers: list, at: cython.Py_ssize_t, stop: cython.Py_ssize_t, items: list
    ) -> cython.Py_ssize_t:
        """Add these items of the segment at hand."""
        data: bytes = self._data
        spans: list = self._spans
        item = Item
        place: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        for place in range(at, stop):
            number = numbers[place]
            span: tuple = spans[number - self._first]
            begin, end = span[0], span[1]
            items.append(item(number, data[begin:end]))
        return stop

    @cython.cfunc
    def _read(self, block: object, number: cython.longlong) -> cython.bint:
        """Read the segment that item `number` is in."""
        offset, after = block.span_of(number)
        self._of = (block.number, block.incarnation)
        self._data = self._files.pread(block.path, max(after - offset, 0), offset)
        segment = parse_segment(memoryview(self._data), 0, block.place)
        self._first = self._end = 0
        if segment is not None:
            self._first = segment.first_id
            self._end = segment.first_id + segment.item_count
            self._spans, self._damaged = segment.spans, segment.damaged
        return True
