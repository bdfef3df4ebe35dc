# cython: language_level=3, boundscheck=True, wraparound=False
"""What waits for the disk: contents, which get their ids here, and status changes.

Items are counted with what each takes in a segment's table. Whoever calls holds the journal's lock.
Compiled; the interpreted twin does the same.
"""

from typing import TYPE_CHECKING

import cython

from feedhandler.journal.segments import ENTRY_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, ENTRY_BYTES)


@cython.cclass
class Waiting:
    """See the module. `content_bytes`: of all items, tables included; `next_id`: the next item's;
    `marks`: (first id, count, status) each; `marks_added`: how many there have been."""

    def __init__(self, next_id: int) -> None:
        self.contents: list[bytes] = []
        self.marks: list[tuple[int, int, int]] = []
        self.content_bytes = 0
        self.next_id = next_id
        self.marks_added = 0

    @cython.ccall
    def put(self, content: "Buffer") -> cython.longlong:
        """Take one item; its id."""
        number: cython.longlong = self.next_id
        self.contents.append(content)
        self.content_bytes += len(content) + _ENTRY_BYTES
        self.next_id = number + 1
        return number

    @cython.ccall
    def put_all(self, contents: list) -> cython.longlong:
        """Take items; the first one's id."""
        size: cython.Py_ssize_t = 0
        for content in contents:
            size += len(content)
        number: cython.longlong = self.next_id
        self.contents += contents
        self.content_bytes += size + _ENTRY_BYTES * len(contents)
        self.next_id = number + len(contents)
        return number

    @cython.ccall
    def record(self, first: object, count: cython.longlong, status: cython.int) -> cython.bint:
        """These items, marked in their blocks, became `status`."""
        marks: list = self.marks
        if marks:
            last: tuple = marks[len(marks) - 1]
            if last[2] == status and last[0] + last[1] == first:
                marks[len(marks) - 1] = (last[0], last[1] + count, status)
                return True
        marks.append((first, count, status))
        self.marks_added += 1
        return True

    @cython.ccall
    def batch(self, limit: cython.Py_ssize_t, count_max: cython.Py_ssize_t) -> tuple:
        """How many items come to `limit` at most, or one, and their own bytes."""
        contents: list = self.contents
        count: cython.Py_ssize_t = min(len(contents), count_max)
        if self.content_bytes <= limit and count == len(contents):
            return count, self.content_bytes - _ENTRY_BYTES * count
        size: cython.Py_ssize_t = 0
        n: cython.Py_ssize_t
        more: cython.Py_ssize_t
        for n in range(count):
            more = size + len(contents[n])
            if n and more + _ENTRY_BYTES * (n + 1) > limit:
                return n, size
            size = more
        return count, size

    @cython.ccall
    def take(self, count: cython.Py_ssize_t, size: cython.Py_ssize_t) -> list:
        """The first `count` items, of so many bytes, which wait no more."""
        contents: list = self.contents
        taken: list
        if count == len(contents):
            self.contents, taken = [], contents
        else:
            taken = contents[:count]
            del contents[:count]
        self.content_bytes -= size + _ENTRY_BYTES * count
        return taken

    @cython.ccall
    def take_marks(self, count: cython.Py_ssize_t) -> list:
        """The first `count` status changes, which wait no more."""
        taken: list = self.marks[:count]
        del self.marks[:count]
        return taken
