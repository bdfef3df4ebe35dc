"""The simulated network: multicast lines that lose, repeat, delay and reorder, and TCP links.

Fault model of a line (`LineFaults`), every figure drawn per seed and every one possibly zero:
loss in runs of a drawn mean length, on this line alone; duplication; a delay of its own for each
copy, which reorders; a constant skew; outages, in which nothing passes; heartbeats lost more often
than data. Faults that hit both lines of a channel alike stand in `Shared`: single packets lost on
both, and blackouts.

A `TcpLink` delivers each side's bytes in order, in chunks cut at random, each with a delay; it can
stall, break in the middle of what is under way, and refuse connections. The owner of the
clock drives it: `pending` says when something happens next, `deliver` does it. A `Connection` has
one driven, with a client at its end and a server that subclasses have.

Nothing here knows what the bytes mean, but for the packet kinds that loss may spare.
"""

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MS = 1_000_000
NEVER = 2**63 - 1

DATA, HEARTBEAT, RESET = range(3)

#: Bounds of what is drawn.
LOSS_MAX, DOUBLED_MAX, JITTER_NS_MAX, SKEW_NS_MAX = 0.3, 0.5, 100 * MS, 500 * MS


def sometimes(draw: random.Random, chance: float, low: float, high: float) -> float:
    """A uniform draw with probability `chance`, else zero."""
    return draw.uniform(low, high) if draw.random() < chance else 0.0


@dataclass
class LineFaults:
    """Faults of one line until `until_ns`; see the module's text. Rates are probabilities."""

    loss: float = 0.0
    run_mean: float = 1.0
    doubled: float = 0.0
    jitter_ns: int = 0
    skew_ns: int = 0
    beats_lost: float = 0.0
    outages: list[tuple[int, int]] = field(default_factory=list)
    until_ns: int = NEVER

    @classmethod
    def drawn(cls, draw: random.Random, duration_ns: int, second: bool) -> "LineFaults":
        """A line of a seed: a swarm of intensities. Only the second line lags behind."""
        faults = cls(until_ns=duration_ns)
        faults.loss = draw.choice([0.0, 0.01, 0.05, draw.random() * LOSS_MAX])
        faults.run_mean = draw.choice([1.0, 1.0, draw.uniform(1.0, 20.0)])
        faults.doubled = sometimes(draw, 0.5, 0.0, DOUBLED_MAX)
        jitters = [0, 0, draw.randrange(1, 5 * MS), draw.randrange(1, JITTER_NS_MAX)]
        faults.jitter_ns = draw.choice(jitters)
        if second:
            skews = [0, 0, draw.randrange(5 * MS), draw.randrange(SKEW_NS_MAX)]
            faults.skew_ns = draw.choice(skews)
        faults.beats_lost = sometimes(draw, 0.3, 0.0, 1.0)
        for _ in range(draw.choice([0, 0, 1, 2])):
            begin = draw.randrange(duration_ns)
            faults.outages.append((begin, begin + draw.randrange(300 * MS)))
        return faults


@dataclass
class Shared:
    """Faults that hit both lines alike until `until_ns`: single lost packets, and blackouts."""

    loss: float = 0.0
    blackouts: list[tuple[int, int]] = field(default_factory=list)
    until_ns: int = NEVER

    @classmethod
    def drawn(cls, draw: random.Random, duration_ns: int) -> "Shared":
        """The shared faults of a seed."""
        shared = cls(until_ns=duration_ns)
        shared.loss = draw.choice([0.0, 0.01, 0.03, draw.random() * 0.2])
        for _ in range(draw.choice([0, 0, 1, 2])):
            begin = draw.randrange(duration_ns)
            shared.blackouts.append((begin, begin + draw.randrange(300 * MS)))
        return shared

    def lost(self, draw: random.Random, sends: Sequence[tuple[int, int]]) -> set[int]:
        """Return the indices of `sends`, (sent at, kind), lost on both lines; never a reset."""
        return {
            index
            for index, (at, kind) in enumerate(sends)
            if kind != RESET
            and at < self.until_ns
            and (
                (self.loss and draw.random() < self.loss)
                or any(begin <= at < end for begin, end in self.blackouts)
            )
        }


def arrivals(
    draw: random.Random,
    faults: LineFaults,
    sends: Sequence[tuple[int, int]],
    lost: set[int] | frozenset[int] = frozenset(),
    certain: set[int] | frozenset[int] = frozenset(),
) -> list[tuple[int, int]]:
    """Return what comes out of a line as (arrival, index into `sends`), not sorted.

    `sends` are (sent at, kind). Of those in `lost` nothing arrives; those in `certain`, and every
    reset, are only skewed.
    """
    random_, came, run = draw.random, [], 0
    # A run of losses begins, and ends, with the chances that make `loss` of all packets lost.
    loss, mean = faults.loss, faults.run_mean
    begin_run, stop_run = loss, 1.0 - loss
    if mean > 1.0:
        begin_run, stop_run = loss / (1.0 - loss) / mean, 1.0 / mean
    for index, (at, kind) in enumerate(sends):
        if kind == RESET or index in certain:
            came.append((at + faults.skew_ns, index))
            continue
        if index in lost:
            continue
        if at >= faults.until_ns:
            came.append((at, index))
            continue
        if loss:
            run = random_() >= stop_run if run else random_() < begin_run
        if run or (faults.outages and any(begin <= at < end for begin, end in faults.outages)):
            continue
        if kind == HEARTBEAT and faults.beats_lost and random_() < faults.beats_lost:
            continue
        late = at + faults.skew_ns
        jitter = faults.jitter_ns
        came.append((late + int(random_() * jitter) if jitter else late, index))
        if faults.doubled and random_() < faults.doubled:
            came.append((late + int(random_() * jitter) if jitter else late, index))
    return came


@dataclass
class TcpFaults:
    """Faults of a TCP link until `until_ns`. Rates are per chunk or per connection attempt."""

    delay_ns: int = 100_000
    jitter_ns: int = 0
    chunk_bytes: int = 65_536
    stall: float = 0.0
    stall_ns: int = 0
    breaks: float = 0.0
    refused: float = 0.0
    until_ns: int = NEVER

    @classmethod
    def drawn(cls, draw: random.Random, duration_ns: int) -> "TcpFaults":
        """The TCP faults of a seed."""
        faults = cls(until_ns=duration_ns)
        faults.delay_ns = draw.choice([20_000, 100_000, draw.randrange(5 * MS)])
        faults.jitter_ns = draw.choice([0, draw.randrange(1, 2 * MS)])
        faults.chunk_bytes = draw.choice([65_536, 1448, draw.randrange(1, 200)])
        faults.stall = sometimes(draw, 0.2, 0.0, 0.05)
        faults.stall_ns = draw.randrange(1, 400 * MS)
        faults.breaks = sometimes(draw, 0.2, 0.0, 0.02)
        faults.refused = sometimes(draw, 0.2, 0.0, 0.7)
        return faults

    def healed(self) -> "TcpFaults":
        """The same link when all is well."""
        return TcpFaults(self.delay_ns, self.jitter_ns, 65_536)


#: What is given instead of bytes when the connection is gone.
CLOSED = None


class TcpLink:
    """One connection; `send(0, ...)` is the client's side, `send(1, ...)` the server's.

    `deliver` answers with (receiving side, bytes or `CLOSED`), each `CLOSED` once a side. After a
    break the bytes under way are cut at a random byte.
    """

    def __init__(self, draw: random.Random, faults: TcpFaults) -> None:
        self.draw = draw
        self.faults = faults
        self.broken = False
        #: To each side: (when, bytes or CLOSED), in order.
        self._under_way: tuple[deque, deque] = (deque(), deque())
        self._last = [0, 0]

    def send(self, side: int, data: bytes, now_ns: int) -> None:
        """Give the network bytes of `side`; what comes after a break is dropped."""
        if self.broken or not data:
            return
        faults, draw = self.faults, self.draw
        calm = now_ns >= faults.until_ns
        index = 0
        while index < len(data):
            size = len(data)
            if not calm and faults.chunk_bytes < len(data) - index:
                size = draw.randrange(1, faults.chunk_bytes + 1)
            self._put(1 - side, data[index : index + size], now_ns, calm)
            index += size
            if not calm and faults.breaks and draw.random() < faults.breaks:
                self.break_off(now_ns)
                return

    def break_off(self, now_ns: int) -> None:
        """The connection is gone: each side still gets some of what was under way, then learns."""
        if self.broken:
            return
        self.broken = True
        for side in (0, 1):
            chunks = self._under_way[side]
            for _ in range(self.draw.randrange(len(chunks) + 1)):
                chunks.pop()
            if chunks and len(chunks[-1][1]) > 1:
                at, data = chunks.pop()
                chunks.append((at, data[: self.draw.randrange(1, len(data))]))
            self._put(side, CLOSED, now_ns, True)

    def close(self, now_ns: int) -> None:
        """A side has closed: what is under way arrives, and then each side learns."""
        if not self.broken:
            self.broken = True
            for side in (0, 1):
                self._put(side, CLOSED, now_ns, True)

    @property
    def pending(self) -> int:
        """When something arrives next; `NEVER` when nothing is under way."""
        return min((chunks[0][0] for chunks in self._under_way if chunks), default=NEVER)

    def deliver(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        """Return and remove what has arrived by now: (receiving side, bytes or `CLOSED`)."""
        came: list[tuple[int, bytes | None]] = []
        for side in (0, 1):
            chunks = self._under_way[side]
            while chunks and chunks[0][0] <= now_ns:
                came.append((side, chunks.popleft()[1]))
        return came

    def _put(self, side: int, data: bytes | None, now_ns: int, calm: bool) -> None:
        faults, draw = self.faults, self.draw
        at = now_ns + faults.delay_ns
        if faults.jitter_ns:
            at += draw.randrange(faults.jitter_ns)
        if not calm and faults.stall and draw.random() < faults.stall:
            at += faults.stall_ns
        self._last[side] = at = max(at, self._last[side])
        self._under_way[side].append((at, data))


class Connection(ABC):
    """A client's connection to a server, over a link.

    `to_client(data, now_ns)` gets the server's bytes, or `CLOSED`; `schedule(at, function)` calls
    `function(now_ns)` at that time.
    """

    def __init__(
        self,
        link: TcpLink,
        schedule: Callable[..., None],
        to_client: Callable[[bytes | None, int], None],
    ) -> None:
        self.link = link
        self.to_client = to_client
        self.open = True
        self._schedule = schedule

    def send(self, data: bytes, now_ns: int) -> None:
        """The client's bytes."""
        self.link.send(0, data, now_ns)
        self.watch()

    def close(self, now_ns: int) -> None:
        """The client hangs up: the server learns, the client hears no more."""
        self.to_client = lambda data, now_ns: None
        self.link.break_off(now_ns)
        self.watch()

    def watch(self) -> None:
        """Deliver what is on its way when it arrives."""
        if self.link.pending < NEVER:
            self._schedule(self.link.pending, self._deliver)

    def _deliver(self, now_ns: int) -> None:
        for side, data in self.link.deliver(now_ns):
            if side == 0:
                self.to_client(data, now_ns)
            elif data is CLOSED:
                self.open = False
                self.ended()
            elif self.open:
                self.heard(data, now_ns)
        self.watch()

    @abstractmethod
    def heard(self, data: bytes, now_ns: int) -> None:
        """The server gets these bytes."""

    def ended(self) -> None:
        """The client is gone; who minds overrides it."""
        return
