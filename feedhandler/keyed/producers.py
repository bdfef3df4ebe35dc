"""Deduplication by producer: the latest sequence number of each, by which repeats are recognised.

A producer sends each message with (id, epoch, sequence). Its sequence numbers begin at 1 in each
epoch and have no gaps; a producer that begins anew takes a higher epoch.

    stamp                                    standing
    the next sequence of the epoch known     NEXT: stored
    the first of a higher epoch              NEXT: stored; the producer before it is replaced
    one at or below the latest               REPEATED: accepted, and not stored again
    one beyond the next                      GAP: refused, for something before it is missing
    one of a lower epoch                     REPLACED: refused, another one has its id
    the first of an id not known             NEXT; any other sequence is a GAP

No I/O, no time; what is remembered goes to the disk with the messages (`queue.py`).
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

#: Bytes of a producer's id.
ID_BYTES_MAX = 64
#: Prefix of the ids of the node's own queues, which send to others. No client's id may have it, for
#: clients see queues' ids in tokens. They are never forgotten, or a message could come twice.
OWN = b"\0"


class Stamp(NamedTuple):
    """A producer's stamp of a message. `skips`: its sequence numbers rise, with gaps."""

    producer: bytes
    epoch: int
    sequence: int
    skips: bool = False


class Standing(Enum):
    """The judgement of a stamp, by what is known of its producer."""

    NEXT = "next"
    REPEATED = "repeated"
    GAP = "gap"
    REPLACED = "replaced"


class Producers:
    """The latest (epoch, sequence) of each producer; at most `producers_max`, the least recently
    seen are forgotten first (`forgotten` counts them)."""

    def __init__(
        self, producers_max: int, known: Iterable[tuple[bytes, tuple[int, int]]] = ()
    ) -> None:
        self._latest = dict(known)
        self._producers_max = producers_max
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._latest)

    def judge(self, stamp: Stamp) -> Standing:
        """Judge a stamp, without recording it."""
        epoch, sequence = self._latest.get(stamp.producer, (-1, 0))
        if stamp.epoch < epoch:
            return Standing.REPLACED
        if stamp.epoch > epoch:
            return Standing.NEXT if stamp.sequence == 1 or stamp.skips else Standing.GAP
        if stamp.sequence <= sequence:
            return Standing.REPEATED
        if stamp.skips:
            return Standing.NEXT
        return Standing.NEXT if stamp.sequence == sequence + 1 else Standing.GAP

    def fork(self, names: Iterable[bytes]) -> "Producers":
        """Copy what is known of these producers, to try stamps on."""
        known = [(name, self._latest[name]) for name in names if name in self._latest]
        return Producers(self._producers_max, known)

    def advance(self, stamp: Stamp) -> None:
        """Record a stamp as the latest of its producer."""
        self._latest.pop(stamp.producer, None)
        self._latest[stamp.producer] = stamp.epoch, stamp.sequence
        if len(self._latest) > self._producers_max:
            idle = next((name for name in self._latest if not name.startswith(OWN)), None)
            if idle is not None:
                del self._latest[idle]
                self.forgotten += 1
