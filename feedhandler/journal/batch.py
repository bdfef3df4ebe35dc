"""Selection of what goes into one segment: waiting items, status changes and groups of both.

What it is for: a group is taken as a whole or not yet, wherever it waits (`PendingBatch`); the
producer states of all groups in a segment are written once, each the latest. No I/O.
"""

from dataclasses import dataclass, field
from typing import Any

from feedhandler.journal.groups import Group, ProducerState, Record, producer_records
from feedhandler.journal.segments import SEGMENT_PLAIN, SEGMENT_VERSION, segment_bytes


@dataclass(slots=True)
class Batch:
    """Content of one segment: items, status changes and groups.

    `count` and `size`: the number of items and their bytes; `entries`: the first of the waiting
    ones; `changes`: the status changes as records; `groups`: groups of those items; `bundles`:
    groups without items. `records`: all records, with empty ones in front for `moves`, which are
    filled in when the items' ids are assigned. `length`: the segment's size in bytes.
    """

    entries: list[Any]
    changes: list[Record]
    count: int = 0
    size: int = 0
    groups: list[Group] = field(default_factory=list)
    bundles: list[Group] = field(default_factory=list)
    moves: int = 0
    records: list[Record] = field(init=False)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.records = self.changes
        if self.groups or self.bundles:
            self.moves = sum(len(group.moves) for group in self.groups)
            self.records = [(0, 0, 0)] * self.moves + self.changes
            producers: dict[bytes, ProducerState] = {}
            for group in self.bundles:
                producers.update(group.producers)
            for group in self.groups:
                self.records += group.records
                producers.update(group.producers)
            self.records += producer_records(producers)
        self.length = segment_bytes(self.count, self.size, len(self.records))

    @classmethod
    def of(
        cls, entries: list[Any], count: int, size: int, groups: list[Group], most: int
    ) -> "Batch":
        """Make a batch with groups, of as many entries as take `most` records, but at least one."""
        changes: list[Record] = []
        bundles: list[Group] = []
        taken = record_count = 0
        for entry in entries:
            bundle = entry if isinstance(entry, Group) else None
            record_count += bundle.record_count if bundle else 1
            if taken and record_count > most:
                break
            taken += 1
            if bundle:
                changes += bundle.records
                bundles.append(bundle)
            else:
                changes.append(entry)
        return cls(entries[:taken], changes, count, size, groups, bundles)

    def changes_alone(self) -> "Batch":
        """Return the batch without its items and their groups."""
        return Batch(self.entries, self.changes, bundles=self.bundles)

    @property
    def all_groups(self) -> list[Group]:
        """All groups in the batch."""
        return self.bundles + self.groups

    @property
    def version(self) -> int:
        """The segment's version: one with a group in it is valid only as a whole."""
        return SEGMENT_VERSION if self.groups or self.bundles else SEGMENT_PLAIN
