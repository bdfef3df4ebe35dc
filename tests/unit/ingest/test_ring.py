"""The hand-over ring, compiled and interpreted."""

import random
import threading

import pytest

from feedhandler.ingest import records
from feedhandler.ingest import ring as compiled_ring
from tests.support.twins import either, twins_of

ring_module = either(twins_of(compiled_ring))
PACKET = compiled_ring.RecordKind.PACKET
GAP = compiled_ring.RecordKind.GAP


def test_a_record_comes_out_as_it_was_written(ring_module):
    ring = ring_module.Ring(1 << 18)
    fields = {
        "channel": 65535, "line": 255, "flags": 255, "count": 65535, "sequence": 2**64 - 2,
        "next_sequence": 2**64 - 1, "received_ns": 2**63, "session": 2**64 - 1, "skip": 2**32 - 1,
        "body": 2**32 - 1, "auxiliary": 2**64 - 1, "payload": b"thirteen byte",
    }  # fmt: skip
    assert ring.put(PACKET, **fields)
    assert ring.put(GAP, channel=3, sequence=5, next_sequence=9, auxiliary=1)
    assert ring.drain() == [], "nothing is seen before publish"
    ring.publish()
    packet, gap = ring.drain()
    for name, value in fields.items():
        assert getattr(packet, name) == value, name
    assert (gap.kind, gap.channel, gap.sequence, gap.next_sequence) == (GAP, 3, 5, 9)
    assert ring.tail == ring.published == ring.head


def test_a_header_is_laid_out_as_the_table_says_and_its_words_are_found_by_name(ring_module):
    ring = ring_module.Ring(1 << 18)
    assert ring.put(
        PACKET, channel=3, line=4, flags=5, count=6, sequence=7, next_sequence=8, received_ns=9,
        session=10, skip=11, body=12, auxiliary=13, payload=b"thirteen byte",
    )  # fmt: skip
    assert ring.put(GAP, channel=3, line=4, sequence=7, next_sequence=8, received_ns=9, auxiliary=2)
    packet = {
        records.WORD_RECORD: (64 + 16) | 1 << 32 | 3 << 48,
        records.WORD_PAYLOAD: 13 | 4 << 32 | 5 << 40 | 6 << 48,
        records.WORD_SEQUENCE: 7,
        records.WORD_NEXT_SEQUENCE: 8,
        records.WORD_RECEIVED_NS: 9,
        records.WORD_SESSION: 10,
        records.WORD_MESSAGES: 11 | 12 << 32,
        records.WORD_AUXILIARY: 13,
    }
    assert list(packet) == list(range(records.HEADER_WORDS))
    assert list(ring.words[:8]) == list(packet.values())
    assert list(ring.words[10:18]) == [64 | 2 << 32 | 3 << 48, 4 << 32, 7, 8, 9, 0, 0, 2]


def test_records_never_wrap_and_a_full_ring_refuses(ring_module):
    ring = ring_module.Ring(1 << 18)
    draw = random.Random(7)
    written, read = [], []
    for number in range(3_000):
        payload = draw.randbytes(draw.randrange(0, 1500))
        while not ring.put(PACKET, sequence=number, payload=payload):
            ring.publish()
            read += ring.drain()
        written.append(payload)
    ring.publish()
    read += ring.drain()
    assert [event.payload for event in read] == written
    assert [event.sequence for event in read] == list(range(3_000))


def test_a_full_ring_takes_nothing_until_the_consumer_releases(ring_module):
    ring = ring_module.Ring(1 << 18)
    count = 0
    while ring.put(GAP, sequence=count):
        count += 1
    assert count == (1 << 18) // 64
    assert ring.room() == 0
    ring.publish()
    assert len(ring.drain()) == count
    assert ring.room() == 1 << 18
    assert ring.put(GAP)


def test_only_a_sleeping_consumer_is_woken(ring_module):
    ring = ring_module.Ring(1 << 18)
    ring.put(GAP)
    assert ring.publish() == 1, "a consumer that has not begun counts as asleep"
    ring.put(GAP)
    assert ring.publish() == 0
    assert not ring.arm(), "there is something to read"
    ring.drain()
    assert ring.arm()
    ring.put(GAP)
    assert ring.publish() == 1
    ring.put(GAP)
    assert ring.publish() == 0


@pytest.mark.parametrize("capacity", [0, 1 << 17, (1 << 18) + 8, 1 << 32])
def test_a_wrong_capacity_is_refused(ring_module, capacity):
    with pytest.raises(ValueError, match="power of two"):
        ring_module.Ring(capacity)


def test_two_threads_pass_every_record_in_order():
    ring = compiled_ring.Ring(1 << 18)
    total = 20_000

    def produce():
        for number in range(total):
            while not ring.put(PACKET, sequence=number, payload=number.to_bytes(9, "big")):
                ring.publish()
            if number % 37 == 0:
                ring.publish()
        ring.publish()

    producer = threading.Thread(target=produce)
    producer.start()
    expected = 0
    while expected < total:
        for event in ring.drain():
            assert event.sequence == expected
            assert event.payload == expected.to_bytes(9, "big")
            expected += 1
        if not producer.is_alive() and ring.tail == ring.published == ring.head:
            break
    producer.join()
    assert expected == total
