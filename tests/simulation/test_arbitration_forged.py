"""Forged sequence numbers, one to one with real traffic: the real stream does not notice.

`FORGED=n` sets how many (the campaign plays a million).
"""

import os
import random
import resource

from feedhandler.codecs.scanner import PacketHeader
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support.ingest import BODY, MS, TWINS, body_of

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
