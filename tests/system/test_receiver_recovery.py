"""The receive thread with recovery, a recorder's tap, and refresh lines, on real multicast."""

import time

import pytest
from test_receiver_loopback import (  # noqa: F401 (fixtures)
    QUIET,
    Consumer,
    groups,
    packet,
    sender,
    unused_port,
)

from feedhandler.counters import LineCounter
from feedhandler.ingest.lines import ChannelPlan
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring

RECOVERY_WAIT_US = 20_000_000
#: Lines A and B, then recovery.
RECOVERED = 2


@pytest.fixture
def consumer(groups):  # noqa: F811
    """Two lines with recovery; nothing but recovery's word ends a gap."""
    plan = ChannelPlan(104, groups, recovery_wait_us=RECOVERY_WAIT_US)
    with Consumer([plan], first_channel=0) as running:
        yield running


def missing(consumer):
    return [(e.sequence, e.next_sequence) for e in consumer.events if e.kind == RecordKind.MISSING]


def test_a_packet_put_into_the_inlet_fills_the_hole(consumer, groups, sender):  # noqa: F811
    for sequence in (1, 2, 5):
        sender.send(groups[0], packet(sequence))
    consumer.until(missing)
    assert missing(consumer) == [(3, 5)]
    now = time.time_ns()
    assert consumer.receiver.fill(0, packet(3), 0, now)
    assert consumer.receiver.fill(0, packet(4), 0, now)
    assert consumer.until_packets(5) == [1, 2, 3, 4, 5]
    consumer.until(lambda self: RecordKind.CLOSED in self.kinds())
    brought = [e for e in consumer.events if e.kind == RecordKind.PACKET and e.line == RECOVERED]
    assert [e.sequence for e in brought] == [3, 4]
    assert [e.received_ns for e in brought] == [now, now]
    assert consumer.receiver.line_counters[RECOVERED, LineCounter.WON] == 2
    assert consumer.receiver.recovered_rows == {"104/R": RECOVERED}


def test_what_is_given_up_is_announced_and_the_stream_goes_on(consumer, groups, sender):  # noqa: F811
    for sequence in (1, 4):
        sender.send(groups[0], packet(sequence))
    consumer.until(missing)
    assert consumer.receiver.give_up(0, 4, 0)
    assert consumer.until_packets(2) == [1, 4]
    gap = next(e for e in consumer.events if e.kind == RecordKind.GAP)
    assert (gap.sequence, gap.next_sequence) == (2, 4)


def test_bad_packets_in_the_inlet_are_counted_by_reason(consumer, groups, sender):  # noqa: F811
    for sequence in (1, 3):
        sender.send(groups[0], packet(sequence))
    consumer.until(missing)
    consumer.receiver.fill(0, packet(2)[:-1], 0, 1)
    consumer.receiver.fill(0, b"short", 0, 1)
    consumer.receiver.fill(9, packet(2), 0, 1)  # no such channel
    consumer.receiver.fill(0, packet(2), 0, 1)
    assert consumer.until_packets(3) == [1, 2, 3]
    counted = consumer.receiver.line_counters[RECOVERED]
    assert (counted[LineCounter.LENGTH_MISMATCH], counted[LineCounter.TRUNCATED]) == (1, 1)


def test_a_full_inlet_says_so(consumer):
    consumer.receiver.stop()
    filled = 0
    while consumer.receiver.fill(0, packet(1), 0, 1):
        filled += 1
    assert filled > 1000


def test_the_tap_gets_every_datagram_and_counts_what_it_has_no_room_for(groups, sender):  # noqa: F811
    tap = Ring(1 << 18)
    with Consumer([ChannelPlan(104, groups)], tap=tap) as consumer:
        for sequence in range(1, 11):
            for line in groups:
                sender.send(line, packet(sequence))
        sender.send(groups[0], b"not a packet")
        consumer.until_counted(0, LineCounter.TRUNCATED, 1)
        consumer.until_counted(1, LineCounter.PACKETS, 10)
        copies = []
        consumer.until(lambda _: copies.extend(tap.drain()) or len(copies) == 21)
        assert sorted(e.payload for e in copies if e.line == 0)[-1] == b"not a packet"
        assert [e.payload for e in copies if e.line == 1] == [packet(s) for s in range(1, 11)]
        assert all(abs(e.received_ns - time.time_ns()) < 60 * 10**9 for e in copies)
        sent = 10
        while consumer.receiver.tap_drops == 0:
            sent += 1
            sender.send(groups[1], packet(sent))
            consumer.until_counted(1, LineCounter.PACKETS, sent)
        consumer.until_packets(sent)


def test_compressed_packets_pass_on_refresh_lines_and_nowhere_else(groups, sender):  # noqa: F811
    squeezed = bytearray(packet(1))
    squeezed[14] = 17
    plain, refresh = ChannelPlan(104, groups[:1]), ChannelPlan(104, groups[1:], refresh=True)
    with Consumer([plain, refresh], settings=QUIET) as consumer:
        for line in groups:
            sender.send(line, bytes(squeezed))
        events = consumer.until(lambda self: self.sequences())
        consumer.until_counted(0, LineCounter.COMPRESSED, 1)
        assert [e.channel for e in events if e.kind == RecordKind.PACKET] == [1]
