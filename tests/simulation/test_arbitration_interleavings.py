"""Two lines, few packets, each arriving, lost or doubled on each line: every case there is.

Six packets have 3**12 fates; each is played under one of the 924 orders in which the lines' packets
can be merged, all of which occur. Three packets are played with every fate under every order.
"""

from itertools import combinations, product

import pytest
from ingest_kit import BODY, MS, TWINS, body_of

from feedhandler.codecs.scanner import PacketHeader
from feedhandler.ingest.settings import ArbitrationSettings

OK, LOST, DOUBLED = range(3)
COPIES = {OK: 1, LOST: 0, DOUBLED: 2}
SETTINGS = ArbitrationSettings(
    hold_packets=16, quarantine_packets=4, compare_packets=16, silent_us=3_600_000_000
)
PACKET, GAP = 1, 2


class Player:
    """One arbiter for all cases: each case takes up the numbering where the last one ended."""

    def __init__(self, twin: str) -> None:
        arbitration, ring = TWINS[twin]
        self.ring = ring.Ring(1 << 18)
        self.arbiter = arbitration.Arbiter(self.ring, settings=SETTINGS)
        self.arbiter.start(0)
        self.payload = memoryview(bytes(BODY) + body_of(1))
        self.header = PacketHeader()
        self.header.length, self.header.body, self.header.count = len(self.payload), BODY, 1
        self.now = 0
        self.base = 1
        self.position = 0
        self.play(1, [(0, OK)], (0,))

    def play(self, count: int, fates: list[tuple[int, int]], merge: tuple[int, ...]) -> None:
        """Play one case and check it: `fates` are (packet, fate) of A and then of B, `merge` the
        places of A's packets in the order of arrival."""
        base, header, receive = self.base, self.header, self.arbiter.receive
        header.kind = 0
        a, b = iter(fates[:count]), iter(fates[count:])
        a_places = set(merge)
        arrived = 0
        for place in range(len(fates)):
            line = 0 if place in a_places else 1
            packet, fate = next(b if line else a)
            header.sequence = base + packet
            header.next_sequence = base + packet + 1
            for _ in range(COPIES[fate]):
                arrived |= 1 << packet
                receive(line, header, self.payload, 0, 1, self.now)
        header.kind, header.next_sequence = 1, base + count
        receive(0, header, self.payload, 0, 1, self.now)
        self.now += 10 * MS
        self.arbiter.tick(self.now)
        self.base += count
        self.check(base, count, arrived)

    def check(self, base: int, count: int, arrived: int) -> None:
        """Each number once and in order: as a packet if any copy came, in a gap otherwise."""
        self.ring.publish()
        words, mask = self.ring.words, self.ring.mask
        position, end = self.position, self.ring.readable()
        expected = base
        while position < end:
            word = (position & mask) >> 3
            kind = words[word] >> 32 & 0xFFFF
            if kind in (PACKET, GAP):
                first, after = words[word + 2], words[word + 3]
                assert first == expected
                for number in range(first, after):
                    assert (arrived >> (number - base) & 1) == (kind == PACKET)
                expected = after
            position += words[word] & 0xFFFFFFFF
        assert expected == base + count == self.arbiter.expected
        assert self.arbiter.state_name == "FLOWING"
        self.position = end
        self.ring.release(end)


def cases(count: int):
    """Every fate of `count` packets on two lines."""
    for fates in product((OK, LOST, DOUBLED), repeat=2 * count):
        yield [(place % count, fate) for place, fate in enumerate(fates)]


def merges(count: int) -> list[tuple[int, ...]]:
    """Every order in which two lines of `count` packets can be merged."""
    return list(combinations(range(2 * count), count))


@pytest.mark.parametrize("twin", TWINS)
def test_every_fate_of_three_packets_in_every_order(twin):
    player = Player(twin)
    for fates in cases(3):
        for merge in merges(3):
            player.play(3, fates, merge)


def test_every_fate_of_six_packets():
    player = Player("compiled")
    orders = merges(6)
    for number, fates in enumerate(cases(6)):
        player.play(6, fates, orders[number % len(orders)])
    assert number + 1 == 3**12
