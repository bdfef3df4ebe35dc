"""Trees of the overlay in simulated time: when what happens, a receiver that lies, and what every
receiver must have held to at the end."""

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from feedhandler.overlay.delays import Report
from feedhandler.overlay.fairness import LADDER
from feedhandler.overlay.members import Sends
from feedhandler.overlay.release import Deliver, Event, Gap, Restart
from feedhandler.overlay.wire import HEAD_BYTES, Head, Kind, encode, read
from tests.support.seeds import naming, seeds_to_play

EpochAndId = tuple[int, int]
US, MS, S = 1_000, 1_000_000, 1_000_000_000
BEGIN_NS = 1_800_000_000 * S


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


class TreeWorld(Timeline, ABC):
    """Members, their clocks and what receivers had; time in ns from `BEGIN_NS`.

    A subclass has the links (`send`) and the faults, and says what a member is known by: its name,
    or its address. `root` is the sender's; receivers are the members with `had`.
    """

    def __init__(self, root: Hashable, rng: random.Random) -> None:
        super().__init__()
        self.root, self.rng = root, rng
        self.off: dict[Any, int] = {}
        self.members: dict[Any, Any] = {}
        self.armed: set[Any] = set()
        self.down: set[Any] = set()
        self.sent: dict[EpochAndId, bytes] = {}
        self.deadlines: list[int] = []
        self.had: dict[Any, list[Event]] = {}
        #: Receivers whose clock was set far: what they held then is due at once.
        self.set_far: set[Any] = set()

    @abstractmethod
    def send(self, source: Any, sends: Sends) -> None:
        """Put datagrams on their way."""

    def clock(self, at: Any) -> int:
        """A member's own clock."""
        return BEGIN_NS + self.now + self.off[at]

    def delay(self, index: int, spikes: float) -> int:
        """Draw how long the copy number `index` of a datagram takes."""
        delay = 20 * US + index * 3 * US + int(self.rng.expovariate(1 / (15 * US)))
        if self.rng.random() < spikes:
            delay += int(self.rng.expovariate(1 / (2 * MS)))
        return delay

    def release(self, at: Any) -> None:
        """Release what a receiver may release now, and check it."""
        if at not in self.had:
            return
        member = self.members[at]
        here = member.senders_time(self.clock(at))
        for event in member.release(self.clock(at)):
            if isinstance(event, Deliver):
                due = event.deadline_ns <= here or at in self.set_far
                assert due, "released before its deadline"
                assert self.sent[event.epoch, event.id] == event.payload
            if isinstance(event, Gap):
                assert event.first <= event.last, "a gap of nothing"
            self.had[at].append(event)

    def arm(self, at: Any) -> None:
        """Wake a member when it wants to be woken."""
        member = self.members[at]
        wanted = [member.deadline_ns]
        if at in self.had:
            wanted.append(member.release_ns)
        due = min((each for each in wanted if each), default=0)
        if due and at not in self.armed:
            self.armed.add(at)
            self.later(max(due - self.clock(at), 10 * US), lambda: self.wake(at))

    def wake(self, at: Any) -> None:
        """A member's time has come."""
        self.armed.discard(at)
        if at in self.down:
            return
        self.send(at, self.members[at].tick(self.clock(at)))
        self.release(at)
        self.arm(at)

    def publish(self, number: int, counted: bool) -> Head:
        """The sender has a message; `counted`: its deadline is among those that never go back."""
        payload = f"message {number}".encode()
        sends = self.members[self.root].send(payload, self.clock(self.root))
        head = read(sends[0][0])
        assert isinstance(head, Head)
        self.sent[head.epoch, head.id] = payload
        if head.deadline_ns and counted:
            self.deadlines.append(head.deadline_ns)
        self.send(self.root, sends)
        self.arm(self.root)
        return head


def play_seeds(play: Callable[[int], object], seeds: Iterable[int], file: str) -> None:
    """Play seeds; a failure prints how to play its seed again."""
    for seed in seeds_to_play(seeds):
        with naming(seed, file):
            play(seed)


def lie(
    datagram: bytes, rng: random.Random, bound_ns: int, key_of: Callable[[int], bytes]
) -> bytes:
    """Return the datagram; in place of a report, the one that a receiver that lies sends.

    Its delays and last hop are as long as can be, everything is late, and now and then its interval
    is one that is far ahead. `key_of`: the receiver's key in the tree of that number.
    """
    head = read(datagram)
    if not isinstance(head, Head) or head.kind != Kind.REPORT:
        return datagram
    interval = int.from_bytes(datagram[HEAD_BYTES : HEAD_BYTES + 8], "little")
    interval += rng.choice([0, 0, 3, 1 << 60])
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
