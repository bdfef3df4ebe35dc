"""Forged sequence numbers, one to one with real traffic: the real stream does not notice.

`FORGED=n` sets how many (the campaign plays a million). Beyond the window nothing is believed
without confirmation. Inside it, where a line may well have lost what lies between, a forgery costs
at most itself, as the second part plays: at every distance, once and again, alone and in runs, on
fast feeds and on slow ones, whose real packets come later than `gap_wait_us`.
"""

import os
import random
import resource

import pytest

from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import PacketKind
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.ring import RecordKind
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support.ingest import BODY, MS, TWINS, Channel, body_of

FORGED = int(os.environ.get("FORGED", "10000"))
SEED = int(os.environ.get("SEED", "1"))


def test_forged_numbers_beyond_the_window_change_nothing():
    print(f"again with: SEED={SEED} FORGED={FORGED}")
    draw = random.Random(SEED)
    arbitration, ring_module, _ = TWINS["compiled"]
    ring = ring_module.Ring(1 << 20)
    settings = ArbitrationSettings()
    arbiter = arbitration.Arbiter(ring, settings=settings)
    arbiter.start(0)
    header = PacketHeader()
    header.body, header.count = BODY, 1
    payload = memoryview(bytes(BODY) + body_of(1))
    header.length = len(payload)
    window = 2 * settings.hold_packets
    published = 0
    memory = 0
    for sequence in range(1, FORGED + 1):
        now = sequence * MS // 20
        if sequence == FORGED // 10:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for line in (0, 1):
            header.sequence, header.next_sequence = sequence, sequence + 1
            arbiter.receive(line, header, payload, 0, now, now)
        if sequence > 1:
            header.sequence = sequence + window + draw.randrange(2, 2**32)
            header.next_sequence = header.sequence + 1
            arbiter.receive(draw.randrange(2), header, payload, 0, now, now)
        arbiter.tick(now)
        if sequence % 256 == 0 or sequence == FORGED:
            ring.publish()
            for event in ring.drain():
                if event.kind == 1:
                    published += 1
                    assert event.sequence == published
    assert published == FORGED == arbiter.expected - 1
    assert arbiter.line_array[:, LineCounter.QUARANTINED].sum() == FORGED - 1
    assert arbiter.channel_array[ChannelCounter.GAPS] == 0
    assert arbiter.held == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 1024, f"memory grew by {grown} KiB"


# -- inside the window ------------------------------------------------------------------------

#: Between two packets: far less than `gap_wait_us`, and far more.
FAST, SLOW = 50_000, 40 * MS
PACKETS = 800
#: What is forged lies before the feed's end: behind it nothing could prove it wrong.
LAST = PACKETS - 10
#: A packet that came in its time was published as it came.
Published = dict[int, tuple[int, bytes]]


class Feed:
    """Good lines with numbers from 1 on, one packet every `pace` ns, and forgeries on line 0.

    `forge(draw, sequence)` gives what is forged behind that packet, as (kind, number). With
    `lost`, no line brings those numbers.
    """

    def __init__(self, forge, *, twin="compiled", pace=FAST, alive=(0, 1), recovery_ms=0, lost=()):
        self.settings = ArbitrationSettings(
            hold_packets=256, quarantine_packets=16, compare_packets=256, packet_bytes_max=64
        )
        self.channel = Channel(twin, self.settings, recovery_wait_us=recovery_ms * 1000)
        self.draw = random.Random(SEED)
        self.published: Published = {}
        self.forged: set[int] = set()
        self.reported: list[tuple] = []
        for sequence in range(1, PACKETS + 1):
            for line in alive if sequence not in lost else ():
                self.channel.feed(line, sequence)
            self._read()
            for kind, number in forge(self.draw, sequence):
                self._forge(kind, number)
            self.channel.wait(pace / MS)
            self._read()
        self.channel.wait(200)
        self._read()

    def _forge(self, kind, number):
        if kind == PacketKind.HEARTBEAT:
            self.channel.heartbeat(0, number)
        elif kind == PacketKind.RESET:
            self.channel.reset(0, send_time=0, alone=True)
        else:
            self.forged.add(number)
            self.channel.feed(0, number, body=b"forged %d" % number)
        self._read()

    def _read(self):
        self.channel.collect()
        for event in self.channel.events:
            if event.kind == RecordKind.PACKET and event.flags == PacketKind.DATA:
                known = self.published.setdefault(
                    event.sequence, (self.channel.now, event.payload[BODY:])
                )
                assert known[1] == event.payload[BODY:] or event.sequence in self.forged
            self.reported.append((event.kind.name, event.sequence, event.next_sequence))
        self.channel.events.clear()

    def count(self, counter):
        return self.channel.count(counter)


def harmed(feed: Feed, plain: Feed) -> list[int]:
    """Real packets that were not published, or later than they would have been without forgeries;
    but for those whose numbers were forged."""
    real = {n: entry for n, entry in feed.published.items() if entry[1] == body_of(n)}
    return [
        number
        for number, (when, _) in plain.published.items()
        if number not in feed.forged and (number not in real or real[number][0] > when)
    ]


def once(distance, kind=PacketKind.DATA, copies=1, every=PACKETS):
    """So many copies behind the 50th packet, and then behind each `every`th."""

    def forge(draw, sequence):
        wanted = 50 <= sequence < LAST - distance and (sequence - 50) % every == 0
        return [(kind, sequence + distance)] * copies if wanted else []

    return forge


def runs(length, kind=PacketKind.DATA):
    """Runs of different numbers anywhere in the window, one for each ten real packets."""

    def forge(draw, sequence):
        if sequence < 20 or sequence % 10 or sequence > LAST - 20:
            return []
        first = sequence + draw.randrange(2, LAST - 15 - sequence)
        return [(kind, first + step) for step in range(length)]

    return forge


def anywhere(draw, sequence):
    """One number anywhere in the window for each real packet."""
    if not 10 < sequence < LAST - 20:
        return []
    return [(PacketKind.DATA, sequence + draw.randrange(2, min(500, LAST - sequence)))]


#: How far ahead of the stream one number is forged; more of them in a campaign.
DISTANCES = (2, 3, 10, 100, 255, 300, 512) if FORGED > 10_000 else (2, 100, 255, 512)
FORGERIES = {
    **{f"{distance} ahead": once(distance) for distance in DISTANCES},
    "every tenth": once(77, every=10),
    "twice": once(77, copies=2),
    "ten times": once(77, copies=10, every=20),
    "a run of three": runs(3),
    "a run of twelve": runs(12),
    "one to one": anywhere,
    "a reset": once(0, PacketKind.RESET, copies=2, every=5),
    "a heartbeat": once(90, PacketKind.HEARTBEAT),
    "a near heartbeat": once(3, PacketKind.HEARTBEAT, every=7),
    "a heartbeat again and again": once(90, PacketKind.HEARTBEAT, copies=10, every=3),
}


OUTNUMBERED = ("a run of three", "a run of twelve", "one to one")


@pytest.mark.parametrize("recovery_ms", [0, 100])
@pytest.mark.parametrize("alive", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("pace", [FAST, SLOW])
def test_a_forged_number_inside_the_window_costs_itself_at_most(pace, alive, recovery_ms):
    plain = Feed(lambda draw, sequence: [], pace=pace, alive=alive, recovery_ms=recovery_ms)
    assert len(plain.published) == PACKETS
    for name, forge in FORGERIES.items():
        feed = Feed(forge, pace=pace, alive=alive, recovery_ms=recovery_ms)
        # Whole runs of forgeries on a line that says nothing itself cannot be told from a line that
        # leads, until the other has gone on for as long: each costs one packet then, or delays it.
        alone = alive == (1,) and name in OUTNUMBERED
        found = harmed(feed, plain)
        assert len(found) <= (len(feed.forged) if alone else 0), f"{name}: {found[:10]}"
        if pace == FAST and alive != (1,):
            assert feed.count(ChannelCounter.GAPS) == 0, name


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_a_thousand_forgeries_anywhere_inside_the_window_change_nothing(twin):
    # As many as FORGED says for the compiled core.
    global PACKETS, LAST
    kept = PACKETS, LAST
    PACKETS = 300 if twin == "interpreted" else max(FORGED // 4, 300)
    LAST = PACKETS - 10
    try:
        feed = Feed(anywhere, twin=twin, lost=(150, 151))
    finally:
        PACKETS, LAST = kept
    assert set(range(1, 150)) <= set(feed.published) | feed.forged
    assert ("GAP", 150, 152) in feed.reported or {150, 151} & feed.forged
    assert feed.count(ChannelCounter.LOST) - feed.count(ChannelCounter.WITHDRAWN) <= 2
