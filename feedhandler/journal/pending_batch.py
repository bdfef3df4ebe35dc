# cython: language_level=3, boundscheck=True, wraparound=False
"""The queue for the disk: items, which get their ids here, status changes, and groups of both.

A group with items waits among the items, and `cut` makes sure that a segment takes all of it or
none. One without items waits among the status changes as one entry, so that it overtakes items for
which no block has room; but where order matters it stays behind a waiting group with items.

An item's size includes its entry in a segment's table. The caller holds the journal's lock.
Compiled; the interpreted twin does the same.
"""

from typing import TYPE_CHECKING

import cython

from feedhandler.codecs.visibility import Readonly
from feedhandler.journal.segments import ENTRY_BYTES, STATUS_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from feedhandler.journal.groups import Group

_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, ENTRY_BYTES)


@cython.cclass
class PendingBatch:
    """Items and changes that wait for the disk; see the module.

    `content_bytes`: bytes of all items, table entries included; `next_id`: id of the next item;
    `changes`: (first id, count, status) each, or a group without items; `changes_added`: how many
    of them there have been; `groups`: those that wait among the items; `groups_added`: how many of
    these there have been.
    """

    contents: Readonly[list]
    changes: Readonly[list]
    groups: Readonly[list]
    bundles: Readonly[cython.Py_ssize_t]
    groups_added: Readonly[cython.longlong]
    content_bytes: Readonly[cython.Py_ssize_t]
    next_id: Readonly[cython.longlong]
    changes_added: Readonly[cython.longlong]

    def __init__(self, next_id: int) -> None:
        self.contents: list[bytes] = []
        self.changes: list = []
        self.groups: list[Group] = []
        self.groups_added = 0
        self.bundles = 0
        self.content_bytes = 0
        self.next_id = next_id
        self.changes_added = 0

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def put(self, content: "Buffer") -> cython.longlong:
        """Add one item and return its id."""
        number: cython.longlong = self.next_id
        self.contents.append(content)
        self.content_bytes += len(content) + _ENTRY_BYTES
        self.next_id = number + 1
        return number

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def put_all(self, contents: list) -> cython.longlong:
        """Add items and return the first one's id."""
        size: cython.Py_ssize_t = 0
        for content in contents:
            size += len(content)
        number: cython.longlong = self.next_id
        self.contents += contents
        self.content_bytes += size + _ENTRY_BYTES * len(contents)
        self.next_id = number + len(contents)
        return number

    def record(self, first: object, count: cython.longlong, status: cython.int) -> cython.bint:
        """Add a status change of items that are already marked in their blocks."""
        changes: list = self.changes
        if changes and type(changes[len(changes) - 1]) is tuple:
            last: tuple = changes[len(changes) - 1]
            if last[2] == status and last[0] + last[1] == first:
                changes[len(changes) - 1] = (last[0], last[1] + count, status)
                return True
        changes.append((first, count, status))
        self.changes_added += 1
        return True

    @property
    def grouped(self) -> bool:
        """Whether any group waits."""
        return bool(self.groups or self.bundles)

    def put_group(self, group: "Group", contents: list) -> None:
        """Add a group and its items.

        Only ends (status records and nothing else) may overtake what waits for room.
        """
        group.first_id = self.next_id
        if contents:
            group.content_bytes = sum(map(len, contents))
            self.put_all(contents)
        group.end_id = self.next_id
        plain = not group.producers and all(record[2] <= STATUS_MAX for record in group.records)
        if contents or (self.groups and not plain):
            group.among_items = True
            self.groups.append(group)
            self.groups_added += 1
        else:
            self.changes.append(group)
            self.changes_added += 1
            self.bundles += 1

    def cut(self, count: int, size: int, records_max: int) -> tuple[int, int, list]:
        """Reduce the first `count` items so that no group is split.

        Returns the number of items, their bytes, and the groups among them, which take
        `records_max` records at most; a single group may be larger.
        """
        first = self.next_id - len(self.contents)
        record_count = 0
        taken: list = []
        for group in self.groups:
            record_count += group.record_count
            within = group.end_id <= first + count and record_count <= records_max
            if not within and not taken and group.first_id == first:
                count = group.end_id - first
                return count, group.content_bytes, [group]
            if not within:
                if group.first_id < first + count:
                    count = group.first_id - first
                    size = sum(map(len, self.contents[:count]))
                break
            taken.append(group)
        return count, size, taken

    def remove_groups(self, count: int) -> None:
        """Remove the first `count` groups."""
        del self.groups[:count]

    @cython.ccall
    def batch(self, limit: cython.Py_ssize_t, count_max: cython.Py_ssize_t) -> tuple:
        """Return how many items fit into `limit` bytes, at least one, and their content bytes."""
        contents: list = self.contents
        count: cython.Py_ssize_t = min(len(contents), count_max)
        if self.content_bytes <= limit and count == len(contents):
            return count, self.content_bytes - _ENTRY_BYTES * count
        size: cython.Py_ssize_t = 0
        n: cython.Py_ssize_t
        for n in range(count):
            more: cython.Py_ssize_t = size + len(contents[n])
            if n and more + _ENTRY_BYTES * (n + 1) > limit:
                return n, size
            size = more
        return count, size

    @cython.ccall
    def pop(self, count: cython.Py_ssize_t, size: cython.Py_ssize_t) -> list:
        """Remove and return the first `count` items, which have `size` bytes."""
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
    def pop_changes(self, count: cython.Py_ssize_t) -> list:
        """Remove and return the first `count` status changes."""
        taken: list = self.changes[:count]
        del self.changes[:count]
        if self.bundles:
            for change in taken:
                self.bundles -= type(change) is not tuple
        return taken
