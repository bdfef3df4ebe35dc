"""The workload of keyed queues, its offline schedule, and what a history must show.

Nothing here opens a socket. `Workload.messages` is what is put, in order; `rounds` is how many
steps a greedy schedule of it takes, the ceiling that a queue is compared with; `check` finds in a
history of handlings what was lost, doubled, out of order in its key, or beside another of its key.
"""

import heapq
import itertools
import json
import os
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Rule = Literal["composite", "pair", "any"]
#: What one sync of the disk writes.
PAGE_BYTES = 4096


class Message(NamedTuple):
    """One message: the fields that its key is made of, and its number, from 0, in that key."""

    fields: tuple[int, ...]
    sequence: int

    @property
    def key(self) -> str:
        """As text, for peers that have keys of text."""
        return "-".join(map(str, self.fields))

    def body(self, sent_ns: int) -> bytes:
        """Return the body as JSON; a keyed queue's key is its `key`, or its `fields`' values."""
        fields = {"key": self.key, "fields": self.fields, "sequence": self.sequence}
        return json.dumps({**fields, "sent_ns": sent_ns}).encode()


class Handled(NamedTuple):
    """One handling by one worker; times of the clock that all processes share."""

    worker: int
    key: str
    sequence: int
    sent_ns: int
    began_ns: int
    done_ns: int


@dataclass(frozen=True)
class Workload:
    """`count` messages over `keys` keys, uniform (`zipf` 0) or by Zipf's law; the same by seed.

    `fields`: 1: a key is one value; 2: two different ones, as of a transfer's accounts. `in_turn`:
    no chance, one message of each key and then the next of each.
    """

    count: int
    keys: int
    zipf: float = 0.0
    fields: int = 1
    seed: int = 1
    in_turn: bool = False

    def messages(self) -> list[Message]:
        """Return the workload's messages in the order in which they are put."""
        chance = random.Random(self.seed)
        weights = [1.0 / rank**self.zipf for rank in range(1, self.keys + 1)]
        cumulative = list(itertools.accumulate(weights))
        values = range(self.keys)

        def drawn() -> tuple[int, ...]:
            while True:
                found = chance.choices(values, cum_weights=cumulative, k=self.fields)
                if len(set(found)) == self.fields:
                    return tuple(found)

        if not 1 <= self.fields <= (1 if self.in_turn else self.keys):
            raise ValueError(f"{self.fields} different fields of {self.keys} keys")
        last: Counter[tuple[int, ...]] = Counter()
        made = []
        for number in range(self.count):
            fields = (number % self.keys,) if self.in_turn else drawn()
            made.append(Message(fields, last[fields]))
            last[fields] += 1
        return made


# -- the offline schedule ---------------------------------------------------------------------


def values_of(fields: tuple[int, ...], rule: Rule) -> set[Hashable]:
    """Return the values that a message holds while handled, which no other may hold meanwhile."""
    if rule == "composite":
        return {fields}
    return {tuple(sorted(fields))} if rule == "pair" else set(fields)


def rounds(keys: Iterable[tuple[int, ...]], workers: int, rule: Rule = "composite") -> int:
    """Steps of the greedy schedule of messages that all wait already, in this order.

    Every step takes as long, so workers begin and end together. In each, the oldest eligible ones
    are handled, one a worker; eligible is who shares no value with an older one that waits.
    """
    if workers < 1:
        raise ValueError("no worker, no schedule")
    held = [values_of(fields, rule) for fields in keys]
    chains: dict[Hashable, deque[int]] = defaultdict(deque)
    for number, values in enumerate(held):
        for value in values:
            chains[value].append(number)
    behind = [
        sum(chains[value][0] != number for value in values) for number, values in enumerate(held)
    ]
    eligible = [number for number, count in enumerate(behind) if not count]
    steps = 0
    while eligible:
        steps += 1
        handled = [heapq.heappop(eligible) for _ in range(min(workers, len(eligible)))]
        for value in itertools.chain.from_iterable(held[number] for number in handled):
            chains[value].popleft()
            if chains[value]:
                behind[chains[value][0]] -= 1
                if not behind[chains[value][0]]:
                    heapq.heappush(eligible, chains[value][0])
    return steps


# -- what a history shows ---------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Faults of a history, counted in messages."""

    lost: int
    doubled: int
    strange: int
    disordered: int
    overlapping: int

    @property
    def problems(self) -> list[str]:
        """In words; empty for a history as it should be."""
        return [f"{count:,} {name}" for name, count in vars(self).items() if count]


def check(messages: Sequence[Message], history: Iterable[Handled]) -> Verdict:
    """Compare what was put with what was handled."""
    wanted = {(message.key, message.sequence) for message in messages}
    seen: Counter[tuple[str, int]] = Counter()
    by_key: dict[str, list[Handled]] = defaultdict(list)
    for handled in history:
        seen[handled.key, handled.sequence] += 1
        by_key[handled.key].append(handled)
    disordered = overlapping = 0
    for handlings in by_key.values():
        handlings.sort(key=lambda handled: handled.began_ns)
        for before, after in itertools.pairwise(handlings):
            disordered += after.sequence < before.sequence
            overlapping += after.began_ns < before.done_ns
    return Verdict(
        lost=len(wanted - seen.keys()),
        doubled=sum(count - 1 for count in seen.values()),
        strange=len(seen.keys() - wanted),
        disordered=disordered,
        overlapping=overlapping,
    )


@dataclass(frozen=True)
class Figures:
    """Of one history: messages a second, and the wait before the handler in milliseconds."""

    a_second: float
    wait_p50_ms: float
    wait_p99_ms: float
    workers_used: int


def figures(history: Sequence[Handled], ready_ns: int) -> Figures:
    """Return the figures since consumers were ready: what was put before waits from then on."""
    if not history:
        return Figures(0.0, 0.0, 0.0, 0)
    began = max(ready_ns, min(handled.sent_ns for handled in history))
    took = max(handled.done_ns for handled in history) - began
    waits = sorted(handled.began_ns - max(handled.sent_ns, began) for handled in history)

    def percentile(share: float) -> float:
        return waits[min(len(waits) - 1, int(len(waits) * share))] / 1e6

    workers = len({handled.worker for handled in history})
    return Figures(len(history) / max(took, 1) * 1e9, percentile(0.5), percentile(0.99), workers)


# -- the disk ---------------------------------------------------------------------------------


def syncs_a_second(folder: Path, seconds: float) -> float:
    """Return how many pages a second a folder's disk writes in place and syncs by fdatasync."""
    path, page, done = folder / "syncs", bytes(PAGE_BYTES), 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, page, 0)
        os.fsync(descriptor)
        began = time.monotonic()
        while (took := time.monotonic() - began) < seconds or not done:
            os.pwrite(descriptor, page, 0)
            os.fdatasync(descriptor)
            done += 1
        return done / took
    finally:
        os.close(descriptor)
        path.unlink()


def read_history(lines: Iterable[str]) -> Iterator[Handled]:
    """Yield the handlings that workers wrote: the fields of `Handled`, a line each."""
    for line in lines:
        worker, key, *numbers = line.split()
        sequence, sent, began, done = map(int, numbers)
        yield Handled(int(worker), key, sequence, sent, began, done)
