"""A feed with two bad lines, again and again: what comes out is what went in.

Fault model, drawn anew for each seed, every probability possibly zero: loss (0 to 30 %),
duplication (0 to 50 %), reordering by random delay (to 100 ms), skew between the lines (to 500 ms),
outages of a line, a sequence reset in the middle, heartbeats that are lost like anything else, a
short or a long hold, a short or a long wait for gaps.

Safety: published numbers ascend, each comes once, with the bytes that were sent; published and
announced numbers together are all numbers, none is both; no number that no line brought is
published. Where the wait is longer than any delay and nothing was reset, the announced ranges are
exactly what was missing on both lines; where only the hold is large and nothing was reset, none of
them had come when its loss was announced. The running hash of the output equals that of the
fault-free feed without the announced numbers.

Packets outside the sequence, some of them equal byte for byte, change none of that, and are
published as often as a line brought them.

`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import hashlib
import heapq
import os
import random
from collections import Counter

import pytest

from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import PacketKind
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import Verdict
from tests.support.ingest import BODY, MS, TWINS, body_of
from tests.support.seeds import drawn, naming, seeds_to_play

DATA, HEARTBEAT, RESET, _, OUTSIDE, _ = map(int, PacketKind)
PACKETS = 2_000
#: Heartbeats of each line at the end, a second apart.
BEATS = 3
#: Nanoseconds between two packets.
PACE = 400_000
SEEDS = int(os.environ.get("SEEDS", "10"))
#: Lines that fall silent for longer than quarantine remembers: played whatever `SEEDS` is.
DIRECTED = 86


class World:
    """One seed's feed, faults and settings."""

    def __init__(self, seed: int, packets: int = PACKETS) -> None:
        draw = self.draw = random.Random(seed)
        self.resets = draw.random() < 0.3
        self.small_hold = draw.random() < 0.2
        self.skew = draw.choice([0, 0, draw.randrange(5 * MS), draw.randrange(500 * MS)])
        self.jitter = draw.choice([0, draw.randrange(1, 5 * MS), draw.randrange(1, 100 * MS)])
        self.loss = [draw.choice([0, 0.01, draw.random() * 0.3]) for _ in "AB"]
        self.doubled = [draw.choice([0, draw.random() * 0.5]) for _ in "AB"]
        self.patient = draw.random() < 0.7
        wait = (self.skew + self.jitter) // 1000 + 1 if self.patient else draw.randrange(20_000)
        self.settings = ArbitrationSettings(
            gap_wait_us=wait, start_wait_us=wait, packet_bytes_max=64, compare_packets=256,
            hold_packets=64 if self.small_hold else 4096, quarantine_packets=16,
        )  # fmt: skip
        self.epochs = self._numbers(packets)
        self.exact = self.patient and not self.resets and not self.small_hold
        self.arrivals = self._arrivals()

    def _numbers(self, packets: int) -> list[int]:
        """Return how many packets each epoch has."""
        if not self.resets:
            return [packets]
        first = self.draw.randrange(packets // 4, packets)
        return [first, packets - first + 1]

    def _arrivals(self) -> list[tuple]:
        """(time, tie, line, kind, sequence, next, send time, epoch), in order of arrival."""
        draw, heap, tie = self.draw, [], 0
        outages = [
            (begin, begin + draw.randrange(100 * MS)) if draw.random() < 0.3 else (-1, -1)
            for begin in (draw.randrange(PACKETS * PACE), draw.randrange(PACKETS * PACE))
        ]
        self.came: list[set[int]] = [set() for _ in self.epochs]
        sent_at = 0
        for epoch, count in enumerate(self.epochs):
            plan = [(DATA, n, n + 1) for n in range(1 + (epoch > 0), count + 1)]
            plan = [item for n, item in enumerate(plan) for item in self._with_heartbeat(n, item)]
            if epoch:
                plan.insert(0, (RESET, 1, 2))
            for kind, sequence, after in plan:
                sent_at += PACE
                for line in (0, 1):
                    outage = outages[line][0] <= sent_at <= outages[line][1]
                    lost = outage or draw.random() < self.loss[line]
                    if lost and kind != RESET:
                        continue
                    if kind == DATA:
                        self.came[epoch].add(sequence)
                    for _ in range(1 + (draw.random() < self.doubled[line])):
                        delay = line * self.skew
                        if kind != RESET and self.jitter:
                            delay += draw.randrange(self.jitter)
                        tie += 1
                        heapq.heappush(
                            heap,
                            (sent_at + delay, tie, line, kind, sequence, after, sent_at, epoch),
                        )
        for line in (0, 1) * BEATS:
            tie += 1
            last = self.epochs[-1] + 1
            late = sent_at + self.skew + self.jitter + MS * (1 + 1000 * (tie % BEATS))
            heap.append((late + line, tie, line, HEARTBEAT, last, last, late, len(self.epochs) - 1))
        return sorted(heap)

    def add_outside(self) -> None:
        """Packets outside the sequence among the others, out of a draw of their own. Their bytes
        are their number in `arrivals`; every fifth has those of the one before."""
        draw, until = random.Random(self.draw.random()), self.arrivals[-1][0] - 2 * MS
        self.outside: list[Counter[int]] = [Counter(), Counter()]
        added = []
        for number in range(60):
            sent_at, name = draw.randrange(until), number - (number % 5 == 4)
            for line in (0, 1):
                delay = line * self.skew + draw.randrange(self.jitter + 1)
                if draw.random() >= self.loss[line] and sent_at + delay < until:
                    self.outside[line][name] += 1
                    added.append((sent_at + delay, -number, line, OUTSIDE, name, 0, sent_at, 0))
        self.arrivals = sorted(self.arrivals + added)

    def _with_heartbeat(self, index: int, item: tuple) -> list[tuple]:
        """A packet, and after some a heartbeat that names the next one."""
        return [item] if index % 97 else [item, (HEARTBEAT, item[2], item[2])]


class Run:
    """One world played through one twin."""

    def __init__(self, world: World, twin: str = "compiled") -> None:
        arbitration, ring, _ = TWINS[twin]
        self.ring = ring.Ring(1 << 20)
        self.arbiter = arbitration.Arbiter(self.ring, settings=world.settings)
        self.events: list = []
        #: What was announced lost although a line had brought it.
        self.had: set[int] = set()
        self.lost: set[int] = set()
        self.verdicts: set[tuple[str, int]] = set()
        self.play(world)

    def play(self, world: World) -> None:
        """Feed every arrival at its time, every deadline at its own, then wait for the rest."""
        header, arbiter, now = PacketHeader(), self.arbiter, 0
        header.body = BODY
        came: set[int] = set()
        arbiter.start(0)
        payloads = [memoryview(bytes(BODY) + body_of(n)) for n in range(max(world.epochs) + 2)]
        for at, _, line, kind, sequence, after, sent_at, epoch in world.arrivals:
            while arbiter.deadline_ns <= at:
                now = max(now, arbiter.deadline_ns)
                arbiter.tick(now)
            now = at
            payload = payloads[sequence] if kind == DATA else memoryview(bytes([epoch] * BODY))
            if kind == OUTSIDE:
                payload = memoryview(bytes(BODY) + sequence.to_bytes(8))
            header.sequence, header.next_sequence, header.kind = sequence, after, kind
            header.length, header.send_time = len(payload), sent_at
            header.count = 1 if kind == DATA else 0
            state = arbiter.state
            self.read(came)
            self.verdicts.add((state, arbiter.receive(line, header, payload, 0, at, at)))
            if kind == DATA and sequence not in self.lost:
                came.add(sequence)
            self.read(came)
        end = now + 10_000 * MS
        while arbiter.deadline_ns <= end:
            arbiter.tick(arbiter.deadline_ns)
        self.read(came)

    def read(self, came: set[int]) -> None:
        """Take what the arbiter has said; `came` are the numbers that it has been given."""
        self.ring.publish()
        for event in self.ring.drain():
            self.events.append(event)
            if event.kind == RecordKind.GAP:
                lost = set(range(event.sequence, event.next_sequence))
                self.lost |= lost
                self.had |= came & lost
            elif event.kind == RecordKind.WITHDRAWN:
                self.lost -= set(range(event.next_sequence, event.sequence))
                self.had &= self.lost


def check(world: World, run: Run) -> None:
    """The promises of the module's docstring."""
    epoch, expected = 0, None
    announced: list[set[int]] = [set() for _ in world.epochs]
    texts: list[dict[int, bytes]] = [{} for _ in world.epochs]
    behind: set[int] = set()
    published: list[set[int]] = [set() for _ in world.epochs]
    chain, fault_free = hashlib.sha256(), hashlib.sha256()
    for event in run.events:
        if event.kind == RecordKind.RESET:
            epoch, expected, behind = epoch + 1, 1, set()
        elif event.kind == RecordKind.START:
            expected = event.sequence
        elif event.kind == RecordKind.WITHDRAWN:
            while expected in behind:
                expected += 1
            assert event.sequence == expected > event.next_sequence
            expected = event.next_sequence
            announced[epoch].difference_update(range(expected, event.sequence))
            behind = {number for number in published[epoch] if number >= expected}
        elif event.kind == RecordKind.GAP:
            while expected in behind:
                expected += 1
            assert event.sequence == expected, "ranges join up"
            announced[epoch].update(range(event.sequence, event.next_sequence))
            expected = event.next_sequence
        elif event.kind == RecordKind.PACKET:
            while expected in behind:
                expected += 1
            assert event.sequence == expected, "in order, each once"
            assert event.flags != DATA or event.sequence not in published[epoch], "each once"
            expected = event.next_sequence
            if event.flags == DATA:
                assert event.payload[BODY:] == body_of(event.sequence)
                published[epoch].add(event.sequence)
                texts[epoch][event.sequence] = event.payload[BODY:]
        else:
            assert event.kind != RecordKind.MISMATCH, "equal bytes raise no alarm"
    while expected in behind:
        expected += 1
    for numbers in texts:
        for _, text in sorted(numbers.items()):
            chain.update(text)
    assert epoch == len(world.epochs) - 1
    assert expected == world.epochs[-1] + 1, "the stream went on to its end"
    for number, count in enumerate(world.epochs):
        assert published[number] <= world.came[number], "nothing invented"
        first = min(published[number] | announced[number], default=1)
        whole = set(range(first, count + 1))
        if number < len(world.epochs) - 1:
            whole = set(range(first, max(published[number] | announced[number]) + 1))
        assert published[number] | announced[number] == whole
        assert not published[number] & announced[number]
        for sequence in sorted(whole - announced[number]):
            fault_free.update(body_of(sequence))
        if world.exact:
            assert announced[number] == whole - world.came[number]
    assert chain.digest() == fault_free.digest()
    if not world.resets and not world.small_hold:
        assert not run.had, "what a line has brought in time is not lost"


def play(seed: int) -> Run:
    """Play and check one seed; a failure names it."""
    world = World(seed)
    run = Run(world)
    with naming(seed, __file__):
        check(world, run)
    return run


@pytest.mark.timeout(3600)
def test_what_comes_out_is_what_went_in():
    seeds = seeds_to_play([DIRECTED, *range(SEEDS)])
    print(f"{len(seeds)} seeds; one alone with SEED=n")
    reached: set[tuple[str, int]] = set()
    for seed in seeds:
        reached |= play(seed).verdicts
    if len(seeds) > 1:
        verdicts = {verdict for _, verdict in reached}
        # A reset is believed by what follows it, which has a verdict of its own.
        rarely = {Verdict.REFUSED, Verdict.RENUMBERED}
        assert verdicts >= set(Verdict) - rarely, "some verdict was never reached"


@drawn(3)
def test_the_interpreted_twin_says_the_same(seed):
    world = World(seed, packets=400)
    world.add_outside()
    ours = Run(world)
    twin = Run(world, "interpreted")
    assert twin.verdicts == ours.verdicts
    fields = [
        [(int(e.kind), e.line, e.sequence, e.next_sequence, e.payload) for e in run.events]
        for run in (ours, twin)
    ]
    assert fields[0] == fields[1], f"seed {seed}"
    assert (ours.arbiter.line_array == twin.arbiter.line_array).all()
    assert (ours.arbiter.channel_array == twin.arbiter.channel_array).all()


@drawn(6)
def test_packets_outside_the_sequence_change_nothing_else(seed):
    plain, world = World(seed, packets=400), World(seed, packets=400)
    world.add_outside()
    without, run = Run(plain), Run(world)
    sequenced = [event for event in run.events if event.flags != OUTSIDE]
    check(world, without)
    assert [(e.kind, e.sequence, e.next_sequence, e.payload) for e in sequenced] == [
        (e.kind, e.sequence, e.next_sequence, e.payload) for e in without.events
    ], f"seed {seed}"
    came = Counter(int.from_bytes(e.payload[BODY:]) for e in run.events if e.flags == OUTSIDE)
    one, other = world.outside
    assert set(came) == set(one | other)
    for name, count in came.items():
        # At least as often as either line brought it, and no more often than both together did.
        assert max(one[name], other[name]) <= count <= one[name] + other[name]
        assert count == 1 or name % 5 == 3, "once, unless it was sent twice"
    lines = run.arbiter.line_array - without.arbiter.line_array
    copies = sum((one + other).values()) - came.total()
    assert lines[:, LineCounter.DUPLICATES].sum() == copies
    assert lines[:, LineCounter.WON].sum() == came.total()
    lines[:, [LineCounter.DUPLICATES, LineCounter.WON]] = 0
    assert not lines.any()
    assert run.arbiter.channel_array[ChannelCounter.UNSEQUENCED] == came.total()
