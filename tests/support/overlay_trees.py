"""Trees of the overlay in simulated time: when what happens, a receiver that lies, and what every
receiver must have held to at the end."""

import heapq
import random
from collections.abc import Callable, Iterable, Sequence

from feedhandler.overlay.delays import Report
from feedhandler.overlay.fairness import LADDER
from feedhandler.overlay.release import Deliver, Event, Gap, Restart
from feedhandler.overlay.wire import HEAD_BYTES, Head, Kind, encode, read

EpochAndId = tuple[int, int]


class Timeline:
    """Timeline of events, ns; those due together happen in the order in which they were planned."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def later(self, after: int, what: Callable[[], None]) -> None:
        """Have something happen."""
        self._number += 1
        heapq.heappush(self._events, (self.now + max(after, 0), self._number, what))

    def run(self, until: int) -> None:
        """Play on until a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until


def lie(
    datagram: bytes, rng: random.Random, bound_ns: int, key_of: Callable[[int], bytes]
) -> bytes:
    """Return the datagram; in place of a report, the one that a receiver that lies sends.

    Its delays and last hop are as long as can be, and everything is late. `key_of`: the
    receiver's key in the tree of that number.
    """
    head = read(datagram)
    if not isinstance(head, Head) or head.kind != Kind.REPORT:
        return datagram
    interval = int.from_bytes(datagram[HEAD_BYTES : HEAD_BYTES + 8], "little")
    low = rng.choice([1, bound_ns // 2, 1 << 60])
    rungs = (low,) + (1 << 60,) * (len(LADDER) - 1)
    report = Report(interval, 1, 5, rungs, (1 << 8192) - 1, last_hop_ns=1 << 60)
    return encode(head, report.encoded(), key_of(head.tree))


def ids_in_order(name: str, had: Sequence[Event]) -> list[EpochAndId]:
    """Epoch and id of each message that a receiver had: once, and in order."""
    ids = [(each.epoch, each.id) for each in had if isinstance(each, Deliver)]
    assert ids == sorted(set(ids)), f"{name}: twice, or out of order"
    return ids


def announced(name: str, had: Sequence[Event], ids: Sequence[EpochAndId]) -> set[EpochAndId]:
    """Return what was announced missing to a receiver, and check that it had none of it."""
    gaps = {
        (each.epoch, n) for each in had if isinstance(each, Gap)
        for n in range(each.first, each.last + 1)
    }  # fmt: skip
    assert not gaps & set(ids), f"{name}: had, and announced as missing"
    return gaps


def check_nothing_unannounced(
    name: str, had: Sequence[Event], ids: Sequence[EpochAndId], gaps: set[EpochAndId],
    sent: Iterable[EpochAndId],
) -> None:  # fmt: skip
    """From its first message on a receiver has had what was sent, or it was announced missing."""
    restarted = {each.epoch for each in had if isinstance(each, Restart)}
    expected = {
        each for each in sent
        # The last messages before a restart may be missing, which is what it tells.
        if each >= ids[0] and not any(
            each[0] < epoch and each > max(p for p in {*gaps, *ids} if p[0] < epoch)
            for epoch in restarted
        )
    }  # fmt: skip
    assert expected <= gaps | set(ids), f"{name}: neither had nor announced"
