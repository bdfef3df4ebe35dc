"""Two lines, six packets, each arriving, lost or doubled on each line: every case in every order.

Six packets have 3**12 fates, and two lines of six packets can be merged in 924 orders: 491 million
cases. They are not played one by one. Where a case stands after some packets is told by little:
how far each line has come, and which packets have arrived, on which line first (`Standing`). Two
histories with the same standing leave the arbiter in the same state, but for its counters; so each
standing is reached once, by any history, and every step that is possible from it is taken once and
checked. Every case is then a walk over checked steps, and all walks end in a checked end: numbers
that did not come are announced, or reported missing and, brought by recovery, published.

That a standing tells the whole state is not believed but tested, on the interpreted twin, of which
every field can be seen. Half as many are, as a check of the argument, played one by one as well.

`PACKETS=6` plays six packets (`make simulate`); without it there are four.
"""

import math
import os
import random
from itertools import combinations, product
from typing import NamedTuple

import pytest

from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.ingest import slots
from feedhandler.ingest.records import (
    KIND_MASK,
    KIND_SHIFT,
    WORD_NEXT_SEQUENCE,
    WORD_RECORD,
    WORD_SEQUENCE,
)
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support.ingest import BODY, MS, TWINS, body_of

#: Packets of a case, two at least.
PACKETS = int(os.environ.get("PACKETS", "4"))
OK, LOST, DOUBLED = range(3)
FATES = (OK, LOST, DOUBLED)
COPIES = {OK: 1, LOST: 0, DOUBLED: 2}
SETTINGS = ArbitrationSettings(
    hold_packets=16, quarantine_packets=4, compare_packets=16, silent_us=3_600_000_000
)
PACKET, GAP, MISSING = 1, 2, 10
WAIT_MS = 10


class Standing(NamedTuple):
    """Packets taken from A and B, and of each packet the line that brought it first, or None."""

    a: int
    b: int
    first: tuple[int | None, ...]

    def after(self, line: int, fate: int) -> "Standing":
        """The standing when `line`'s next packet has that fate."""
        index = self.b if line else self.a
        first = list(self.first)
        if fate != LOST and first[index] is None:
            first[index] = line
        return Standing(self.a + (line == 0), self.b + (line == 1), tuple(first))

    @property
    def run(self) -> int:
        """How many packets have arrived without a gap before them."""
        return next(
            (index for index, line in enumerate(self.first) if line is None), len(self.first)
        )


class Player:
    """One arbiter for all cases: each case takes up the numbers where the last one ended."""

    def __init__(self, twin: str, recovery: bool = False) -> None:
        arbitration, ring, self.recovered = TWINS[twin]
        self.ring = ring.Ring(1 << 18)
        self.arbiter = arbitration.Arbiter(
            self.ring, settings=SETTINGS, recovery_wait_us=1_000_000 if recovery else 0
        )
        self.arbiter.start(0)
        self.payload = memoryview(bytes(BODY) + body_of(1))
        self.header = PacketHeader()
        self.header.length, self.header.body, self.header.count = len(self.payload), BODY, 1
        self.now = 0
        self.base = 1
        self.position = 0
        self.give(0, 0, 1)
        self.base += 1
        self.read()

    def give(self, line: int, offset: int, copies: int) -> None:
        """Packet number `offset` of the case comes on `line`, so often."""
        header = self.header
        header.kind = 0
        header.sequence = self.base + offset
        header.next_sequence = header.sequence + 1
        for _ in range(copies):
            self.arbiter.receive(line, header, self.payload, 0, 1, self.now)

    def end(self, count: int) -> None:
        """The case is over: a heartbeat names the next number, and the lines' time passes."""
        header = self.header
        header.kind, header.next_sequence = 1, self.base + count
        self.arbiter.receive(0, header, self.payload, 0, 1, self.now)
        self.now += WAIT_MS * MS
        self.arbiter.tick(self.now)

    def recover(self, offset: int) -> None:
        """Recovery brings a packet."""
        header = self.header
        header.kind = 0
        header.sequence = self.base + offset
        header.next_sequence = header.sequence + 1
        epoch = self.arbiter.stream.epoch if hasattr(self.arbiter, "stream") else 0
        self.recovered.recover(self.arbiter, header, self.payload, 0, 1, self.now, epoch)

    def read(self) -> list[tuple[int, int, int]]:
        """Packets, gaps and missing ranges since the last call: (kind, first, end), places of
        the case."""
        self.ring.publish()
        words, mask = self.ring.words, self.ring.mask
        position, end = self.position, self.ring.readable()
        said = []
        while position < end:
            word = (position & mask) >> 3
            first = words[word + WORD_RECORD]
            kind = first >> KIND_SHIFT & KIND_MASK
            if kind in (PACKET, GAP, MISSING):
                sequence, following = words[word + WORD_SEQUENCE], words[word + WORD_NEXT_SEQUENCE]
                said.append((kind, sequence - self.base, following - self.base))
            position += first & 0xFFFFFFFF
        self.position = end
        self.ring.release(end)
        return said

    def walk(self, path: tuple[tuple[int, int], ...]) -> None:
        """Take these steps, (line, fate), from the beginning of a case."""
        offsets = [0, 0]
        for line, fate in path:
            self.give(line, offsets[line], COPIES[fate])
            offsets[line] += 1

    def finish(self, first: tuple[int | None, ...], said: list[tuple[int, int, int]]) -> None:
        """End the case and check all that was said of it; `said` are the records so far."""
        count = len(first)
        self.end(count)
        said += self.read()
        missing = runs(first)
        if [end for kind, _, end in said if kind == MISSING]:
            assert [(low, high) for kind, low, high in said if kind == MISSING] == missing
            for low, high in missing:
                for index in range(low, high):
                    self.recover(index)
            said += self.read()
            missing = []
        outcomes = [(kind, low, high) for kind, low, high in said if kind != MISSING]
        packets = [(PACKET, n, n + 1) for n in range(count)]
        for low, high in missing:
            packets[low:high] = [(GAP, low, high)] + [(0, 0, 0)] * (high - low - 1)
        assert outcomes == [each for each in packets if each[0]]
        assert self.arbiter.expected == self.base + count
        assert self.arbiter.state_name == "FLOWING"
        self.base += count


def runs(first: tuple[int | None, ...]) -> list[tuple[int, int]]:
    """The ranges of packets that did not arrive, half-open."""
    found: list[tuple[int, int]] = []
    for index, line in enumerate(first):
        if line is None:
            if found and found[-1][1] == index:
                found[-1] = (found[-1][0], index + 1)
            else:
                found.append((index, index + 1))
    return found


def explore(count: int, player: Player) -> tuple[int, int, int]:
    """Reach every standing once and take every step from it; standings, steps and the number of
    cases whose every step was among them."""
    start = Standing(0, 0, (None,) * count)
    paths: dict[Standing, tuple[tuple[int, int], ...]] = {start: ()}
    cases = {start: 1}
    steps = 0
    layer = [start]
    for _ in range(2 * count):
        coming: dict[Standing, int] = {}
        for standing in layer:
            for line, fate in product((0, 1), FATES):
                if (standing.b if line else standing.a) == count:
                    continue
                following = standing.after(line, fate)
                check_step(player, standing, paths[standing], line, fate)
                steps += 1
                paths.setdefault(following, (*paths[standing], (line, fate)))
                coming[following] = coming.get(following, 0) + cases[standing]
        cases.update(coming)
        layer = list(coming)
    for standing in layer:
        player.walk(paths[standing])
        player.finish(standing.first, player.read())
    return len(paths), steps, sum(cases[standing] for standing in layer)


def check_step(
    player: Player, standing: Standing, path: tuple[tuple[int, int], ...], line: int, fate: int
) -> None:
    """Check that one step from a standing brings the packets that it joins up, no more, no less."""
    player.walk(path)
    assert player.read() == [(PACKET, n, n + 1) for n in range(standing.run)]
    following = standing.after(line, fate)
    player.give(line, standing.b if line else standing.a, COPIES[fate])
    said = player.read()
    assert said == [(PACKET, n, n + 1) for n in range(standing.run, following.run)]
    player.finish(following.first, [(PACKET, n, n + 1) for n in range(standing.run)] + said)


@pytest.mark.parametrize("recovery", [False, True], ids=["alone", "with recovery"])
def test_every_fate_in_every_order(recovery):
    standings, steps, cases = explore(PACKETS, Player("compiled", recovery))
    print(f"{standings:,} standings, {steps:,} steps, {cases:,} cases")
    assert cases == 9**PACKETS * math.comb(2 * PACKETS, PACKETS)


@pytest.mark.parametrize("twin", TWINS)
def test_every_fate_in_every_order_one_by_one(twin):
    player, count = Player(twin), PACKETS // 2
    for fates in product(FATES, repeat=2 * count):
        for a_steps in combinations(range(2 * count), count):
            standing = Standing(0, 0, (None,) * count)
            for step in range(2 * count):
                line = int(step not in a_steps)
                index = standing.b if line else standing.a
                fate = fates[count * line + index]
                player.give(line, index, COPIES[fate])
                standing = standing.after(line, fate)
            player.finish(standing.first, player.read())


#: Histories whose standings are compared.
PLAYS = 4_000 if PACKETS > 4 else 800
#: What is no state: counters, the ring, settings, and the slots that packets lie in.
NO_STATE = {"out", "ring", "settings", "actions", "pool", "order", "head"}
#: What a line showed when: it decides of packets that their own line went back behind, or that the
#: other line passes by; no line does so here before a case ends. (The cases which
#: are played one by one, depend on none of this.)
NO_STATE |= {"belief", "by_line", "latest"}


def state_of(core: object) -> dict[str, object]:
    """Every field of an interpreted core and of its parts, by name; held packets by their words."""
    found: dict[str, object] = {}
    for name, value in vars(core).items():
        if name in NO_STATE:
            continue
        if isinstance(value, memoryview):
            found[name] = value.tolist()
        elif type(value).__module__.startswith("feedhandler"):
            found[name] = state_of(value)
        else:
            found[name] = value
    if "asked" in found:
        # Below `expected` it means nothing: it is raised to there before it is looked at.
        found["asked"] = max(core.asked, core.expected)
    if hasattr(core, "order"):
        words = core.pool.words.tolist()
        begins = [core.slot(index) * slots.SLOT_WORDS for index in range(core.count)]
        # But for the order in which it came, and where.
        found["held"] = [words[begin : begin + slots.ORDER] for begin in begins]
    return found


@pytest.mark.parametrize("recovery", [False, True], ids=["alone", "with recovery"])
def test_a_standing_tells_the_whole_state(recovery):
    seed = 1
    print(f"seed {seed}")
    draw = random.Random(seed)
    known: dict[Standing, dict[str, object]] = {}
    again = 0
    for _ in range(PLAYS):
        player = Player("interpreted", recovery)
        standing = Standing(0, 0, (None,) * PACKETS)
        for _ in range(draw.randrange(2 * PACKETS + 1)):
            line = draw.choice([line for line in (0, 1) if standing[line] < PACKETS])
            fate = draw.choice(FATES)
            player.give(line, standing[line], COPIES[fate])
            standing = standing.after(line, fate)
        state = state_of(player.arbiter)
        again += standing in known
        assert known.setdefault(standing, state) == state, f"{standing}"
    assert again > PLAYS // 4
