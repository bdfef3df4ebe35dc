"""Arbitration, rule by rule, on the compiled core and on its interpreted twin."""

import pytest

from feedhandler.codecs.kinds import PacketKind
from feedhandler.counters import ChannelCounter, LineCounter, counter_array
from feedhandler.ingest.records import GapCause, RecordKind
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import Verdict
from tests.support.ingest import BODY, MS, NEVER, QUICK, body_of, fill, packets, unread

# -- first copy wins ------------------------------------------------------------------------


def test_the_first_copy_is_published_and_the_second_counted(channel):
    assert channel.data(0, 1, 2) == [Verdict.PUBLISHED] * 2
    assert channel.data(1, 1, 2, 3) == [Verdict.DUPLICATE, Verdict.DUPLICATE, Verdict.PUBLISHED]
    assert channel.data(0, 3) == [Verdict.DUPLICATE]
    assert channel.story() == [("start", 1), *packets(1, 2, 3)]
    assert channel.line(0, LineCounter.WON) == 2
    assert channel.line(1, LineCounter.WON) == 1
    assert channel.line(0, LineCounter.DUPLICATES) == 1
    assert channel.line(1, LineCounter.DUPLICATES) == 2


def test_a_record_carries_all_that_the_consumer_needs(make):
    channel = make(channel=9)
    channel.feed(1, 1, send_time=77, count=3)
    packet = channel.events[-1]
    assert (packet.kind, packet.channel, packet.line) == (RecordKind.PACKET, 9, 1)
    assert (packet.sequence, packet.next_sequence, packet.count) == (1, 2, 3)
    assert (packet.body, packet.skip, packet.auxiliary) == (16, 0, 77)
    assert packet.received_ns == channel.now + 7
    assert packet.payload[16:] == bytes.fromhex("9e3779b97f4a7c15") * 2
    assert channel.count(ChannelCounter.MESSAGES) == 3
    assert channel.count(ChannelCounter.BYTES) == len(packet.payload)


def test_a_packet_that_overlaps_what_was_published_skips_its_first_messages(make):
    channel = make(counts_messages=True)
    channel.feed(0, 1, next_sequence=6, count=5)
    channel.feed(1, 3, next_sequence=9, count=6)
    assert [(e.sequence, e.next_sequence, e.skip) for e in channel.events[1:]] == [
        (1, 6, 0),
        (3, 9, 3),
    ]
    assert channel.count(ChannelCounter.MESSAGES) == 8
    assert channel.arbiter.expected == 9


def test_a_held_packet_that_overlaps_skips_as_well_and_one_within_is_a_duplicate(make):
    channel = make(counts_messages=True)
    channel.feed(0, 1, next_sequence=2, count=1)
    channel.feed(0, 5, next_sequence=10, count=5)
    channel.feed(0, 7, next_sequence=9, count=2)
    channel.feed(0, 8, next_sequence=12, count=4)
    channel.feed(1, 2, next_sequence=6, count=4)
    assert [(e.sequence, e.skip) for e in channel.events[1:]] == [(1, 0), (2, 0), (5, 1), (8, 2)]
    assert channel.line(0, LineCounter.DUPLICATES) == 1
    assert channel.arbiter.expected == 12


# -- gaps -----------------------------------------------------------------------------------


def test_a_gap_that_the_other_line_fills_is_not_declared_lost(started):
    assert started.data(0, 5, 6) == [Verdict.HELD] * 2
    assert started.arbiter.state_name == "WAITING"
    started.data(1, 4)
    assert started.story() == packets(4, 5, 6)
    assert started.arbiter.state_name == "FLOWING"
    started.wait(100)
    assert started.count(ChannelCounter.GAPS) == 0


def test_reordered_packets_come_out_in_order(started):
    started.data(0, 8, 6, 9, 5, 7, 4)
    assert started.story() == packets(4, 5, 6, 7, 8, 9)
    assert started.count(ChannelCounter.HOLD_HIGH) == 5


def test_a_gap_is_announced_with_its_exact_range_at_its_deadline(started):
    noticed = started.now
    started.data(0, 6, 7)
    assert started.arbiter.deadline_ns == noticed + 10_000_000
    started.wait(9.999)
    assert started.story() == []
    started.wait(0.001)
    assert started.story() == [("gap", 4, 6), *packets(6, 7)]
    assert started.count(ChannelCounter.GAPS) == 1
    assert started.count(ChannelCounter.LOST) == 2


def test_a_gap_is_kept_open_until_the_lines_are_read_up_to_its_deadline(started):
    started.arbiter.note_read(started.now)
    started.data(0, 5, 7)
    started.now += 400 * MS
    started.data(1, 4)
    assert started.story() == packets(4, 5)
    started.now += 400 * MS
    started.arbiter.note_read(started.now)
    started.wait(0)
    assert started.story() == [("gap", 6, 7), *packets(7)]


def test_each_gap_has_its_own_deadline(started):
    started.data(0, 5)
    started.wait(4)
    started.data(0, 7, 8)
    started.wait(6)
    assert started.story() == [("gap", 4, 5), *packets(5)]
    started.wait(3.9)
    assert started.story() == []
    started.wait(0.1)
    assert started.story() == [("gap", 6, 7), *packets(7, 8)]


def test_filling_part_of_a_gap_does_not_prolong_the_wait(started):
    started.data(0, 8)
    started.wait(9)
    started.data(1, 6)
    started.wait(1)
    assert started.story() == [("gap", 4, 6), ("packet", 6), ("gap", 7, 8), ("packet", 8)]


def test_what_comes_after_its_range_was_announced_is_late_and_never_published(started):
    started.data(0, 6, 7, 8)
    started.wait(10)
    started.story()
    assert started.data(1, 4, 5) == [Verdict.LATE] * 2
    assert started.data(1, 6, 3) == [Verdict.DUPLICATE] * 2
    assert started.story() == []
    assert started.line(1, LineCounter.LATE) == 2


def test_the_list_of_lost_ranges_is_bounded_and_forgets_the_oldest(channel):
    channel.data(0, 1)
    for sequence in range(3, 3 + 2 * 70, 2):
        channel.data(0, sequence)
        channel.wait(10)
    assert channel.count(ChannelCounter.GAPS) == 70
    channel.data(0, 142)
    assert channel.data(1, 2) == [Verdict.DUPLICATE]
    assert channel.data(1, 140, 100) == [Verdict.LATE] * 2


def test_a_full_hold_gives_the_earliest_gap_up_at_once(started):
    started.data(0, *range(5, 21))
    assert started.story() == []
    assert started.data(0, 21) == [Verdict.PUBLISHED]
    assert started.story() == [("gap", 4, 5), *packets(*range(5, 22))]
    assert started.count(ChannelCounter.HOLD_FULL) == 1


def test_a_full_hold_never_gives_up_the_packet_in_hand(started):
    started.data(0, *range(7, 23))
    assert started.story() == []
    assert started.data(0, 6) == [Verdict.PUBLISHED]
    assert started.story() == [("gap", 4, 6), *packets(*range(6, 23))]


def test_a_gap_says_why_it_was_announced(started):
    started.data(0, 5)
    started.wait(10)
    started.data(0, *range(7, 24))
    started.reset(0, send_time=5)
    causes = [e.auxiliary for e in started.events if e.kind == RecordKind.GAP]
    assert causes == [GapCause.DEADLINE, GapCause.HOLD_FULL]
    started.story()
    started.data(0, 4, send_time=6)
    started.reset(0, send_time=7)
    causes = [e.auxiliary for e in started.events if e.kind == RecordKind.GAP]
    assert causes == [GapCause.RESET]


# -- what one packet says, and what follows says otherwise ------------------------------------


def test_a_packet_ahead_is_no_gap_when_its_own_line_goes_on_below_it(started):
    started.data(0, 12)
    started.data(0, 4)
    started.wait(100)
    assert started.story() == packets(4)
    assert started.arbiter.deadline_ns > started.now + 1_000 * MS
    started.data(0, 5, 6, 7, 8, 9, 10, 11)
    started.data(0, 12, body=b"the real one")
    assert started.story() == packets(*range(5, 13))
    assert started.count(ChannelCounter.CONTRADICTED) == 1


def test_two_packets_from_the_other_line_pass_by_a_line_that_says_nothing_more(started):
    started.data(0, 12)
    started.data(1, 4, 5)
    started.wait(100)
    assert started.story() == packets(4, 5)
    started.data(0, 13)
    started.wait(10)
    assert started.story() == [("gap", 6, 12), *packets(12, 13)], "but now it goes on there"


def test_what_only_a_line_that_leads_has_brought_is_not_lost_however_long_the_other_takes(started):
    started.data(1, 9)  # it lost those before
    started.data(0, 4, 5)
    started.wait(100)
    started.data(0, 6, 7, 8, 10)
    assert started.story() == packets(4, 5, 6, 7, 8)
    started.wait(10)
    assert started.story() == packets(9, 10)
    assert started.count(ChannelCounter.LOST) == 0


def test_what_was_forged_gives_way_to_what_comes_with_its_number(started):
    started.data(0, 9, body=b"forged")
    started.data(1, 4, 5)
    started.wait(100)
    started.data(1, 6, 7, 8, 10)
    started.data(1, 9)
    assert [e.payload for e in started.events if e.sequence == 9] == [bytes(BODY) + body_of(9)]
    assert started.story() == packets(4, 5, 6, 7, 8, 9, 10)
    assert started.count(ChannelCounter.CONTRADICTED) == 1


def test_what_overtook_on_its_line_comes_at_its_position(started):
    started.data(0, 7, 4, 5, 6)
    assert started.story() == packets(4, 5, 6, 7)


def test_a_heartbeat_is_no_gap_when_its_own_line_goes_on_below_it(started):
    started.heartbeat(0, 12)
    started.data(0, 4)
    started.wait(100)
    assert started.story() == packets(4)


@pytest.mark.parametrize("ahead", [5_000, 16_000])
def test_one_forged_packet_far_ahead_costs_no_real_one(make, ahead):
    settings = ArbitrationSettings()
    channel = make(settings=settings, ring_bytes=1 << 20)
    for line in (0, 1):
        channel.data(line, *range(1, 101))
    channel.feed(0, 100 + ahead, body=b"forged")
    channel.story()
    last = 100 + 50 * settings.gap_wait_us // 2_000
    for sequence in range(101, last + 1):  # a feed goes on, for many times that wait
        channel.wait(2)
        for line in (0, 1):
            channel.data(line, sequence)
    assert channel.story() == packets(*range(101, last + 1))
    assert channel.count(ChannelCounter.LOST) == 0


def test_another_line_with_the_same_packet_makes_it_believed_again(started):
    started.data(0, 12, 4)
    started.data(1, 12)
    started.wait(10)
    assert started.story() == [*packets(4), ("gap", 5, 12), ("packet", 12)]


def test_a_range_announced_lost_is_taken_back_when_its_packets_come(started):
    started.data(0, 12)
    started.wait(10)
    assert started.story() == [("gap", 4, 12), ("packet", 12)]
    assert started.data(0, 4) == [Verdict.PUBLISHED]
    assert started.story() == [("withdrawn", 4, 13), ("packet", 4)]
    started.data(0, *range(5, 12))
    assert started.story() == [*packets(*range(5, 12)), ("passed", 12, 13)]
    started.data(0, 12, 13)
    assert started.story() == packets(13), "what was published is not published again"
    assert started.count(ChannelCounter.WITHDRAWN) == 8


def test_a_range_stays_lost_while_another_line_has_gone_on_behind_it(started):
    started.data(0, 8, 9, 10, 11)
    started.wait(10)
    started.story()
    assert started.data(1, 4, 5, 6) == [Verdict.LATE] * 3
    assert started.data(1, 7) == [Verdict.PUBLISHED], "as many as were published behind it"
    assert started.story() == [("withdrawn", 4, 12), *packets(4, 5, 6, 7), ("passed", 8, 12)]


def test_what_other_channels_publish_of_the_same_lines_says_nothing_of_a_loss(make):
    counters = counter_array(LineCounter, 2)
    one, other = (make(channel=each, line_counters=counters, rows=[0, 1]) for each in (0, 1))
    for channel in (one, other):
        channel.data(0, 1, 2, 3)
        channel.data(1, 1, 2, 3)
    one.data(0, 8, 9, 10, 11)
    one.wait(10)
    one.story()
    for sequence in (4, 5, 6):
        assert one.data(1, sequence) == [Verdict.LATE]
        other.data(1, sequence)
    assert one.data(1, 7) == [Verdict.PUBLISHED]
    assert one.story() == [("withdrawn", 4, 12), *packets(4, 5, 6, 7), ("passed", 8, 12)]


def test_after_that_one_packet_of_the_line_is_no_gap_and_two_in_a_row_are(started):
    started.data(0, 12)
    started.wait(10)
    started.data(0, 4)
    started.story()
    started.data(0, 9)
    started.wait(100)
    assert started.story() == []
    started.data(0, 10)
    started.wait(10)
    assert started.story() == [("gap", 5, 9), *packets(9, 10), ("gap", 11, 12)][:3]


# -- start ----------------------------------------------------------------------------------


def test_joining_in_the_middle_starts_at_the_lowest_number_seen(channel):
    assert channel.data(0, 500, 501) == [Verdict.HELD] * 2
    channel.wait(5)
    channel.data(1, 498, 500)
    assert channel.story() == []
    channel.wait(5)
    assert channel.story() == [("start", 498), ("packet", 498)]
    channel.data(1, 499)
    assert channel.story() == packets(499, 500, 501)
    assert channel.data(1, 497) == [Verdict.STALE]


def test_joining_starts_when_the_hold_is_full(channel):
    channel.data(0, *range(100, 116))
    assert channel.story() == []
    channel.data(0, 116)
    assert channel.story() == [("start", 100), *packets(*range(100, 117))]


def test_the_first_number_starts_at_once_and_keeps_what_is_held(channel):
    channel.data(0, 3)
    channel.data(0, 1)
    assert channel.story() == [("start", 1), ("packet", 1)]
    channel.data(1, 2)
    assert channel.story() == packets(2, 3)


def test_a_heartbeat_alone_tells_where_to_start(channel):
    channel.heartbeat(0, 700)
    channel.wait(10)
    assert channel.story() == [("start", 700)]
    channel.data(0, 700)
    assert channel.story() == packets(700)


def test_a_heartbeat_at_the_first_number_starts_at_once(channel):
    channel.heartbeat(0, 1)
    assert channel.story() == [("start", 1)]
    channel.heartbeat(0, 0)
    channel.data(1, 1)
    assert channel.story() == packets(1)


def test_a_heartbeat_above_the_start_reveals_what_is_missing(channel):
    channel.data(0, 50)
    channel.heartbeat(1, 54)
    channel.heartbeat(1, 53)
    channel.wait(10)
    assert channel.story() == [("start", 50), ("packet", 50)]
    channel.wait(10)
    assert channel.story() == [("gap", 51, 54)]


def test_a_wild_number_while_joining_does_not_hold_the_stream_up(channel):
    channel.data(0, 10**12, 60, 61)
    channel.wait(10)
    assert channel.story() == [("start", 60), *packets(60, 61)]
    assert channel.arbiter.state_name == "FLOWING"
    assert channel.arbiter.held == 0


# -- heartbeats -----------------------------------------------------------------------------


def test_a_heartbeat_reveals_a_loss_at_the_end_of_a_burst(started):
    started.heartbeat(0, 6)
    assert started.arbiter.state_name == "WAITING"
    started.wait(9)
    started.data(1, 4)
    started.wait(1)
    assert started.story() == [("packet", 4), ("gap", 5, 6)]
    assert started.arbiter.state_name == "FLOWING"


def test_a_heartbeat_that_agrees_or_lags_or_has_no_number_changes_nothing(started):
    for number in (4, 2, 0):
        assert started.heartbeat(0, number) == Verdict.HEARD
    started.wait(50)
    assert started.story() == []
    assert started.line(0, LineCounter.HEARTBEATS) == 3


def test_a_later_heartbeat_has_a_deadline_of_its_own(started):
    started.heartbeat(0, 5)
    started.wait(6)
    started.heartbeat(0, 7)
    started.wait(4)
    assert started.story() == [("gap", 4, 5)]
    started.wait(6)
    assert started.story() == [("gap", 5, 7)]


def test_packets_below_a_heartbeats_number_share_its_deadline(started):
    started.heartbeat(0, 9)
    started.wait(6)
    started.data(1, 6)
    started.wait(4)
    assert started.story() == [("gap", 4, 6), ("packet", 6), ("gap", 7, 9)]


# -- mismatch -------------------------------------------------------------------------------


def test_differing_bytes_raise_one_alarm_per_packet(started):
    started.data(0, 4)
    started.data(1, 4, body=b"tampered")
    started.data(1, 4, body=b"tampered again")
    assert started.story() == [("packet", 4), ("mismatch", 4)]
    assert started.count(ChannelCounter.MISMATCHES) == 1
    assert started.line(1, LineCounter.MISMATCHES) == 1


def test_held_packets_are_compared_too(started):
    started.data(0, 5)
    started.data(1, 5, body=b"tampered")
    assert started.story() == [("mismatch", 5)]


def test_lines_that_differ_for_good_are_reported_at_once_and_then_once_a_second(started):
    for sequence in range(4, 2504):  # a packet a millisecond
        started.data(0, sequence)
        started.data(1, sequence, body=b"tampered")
        started.now += MS
    mismatches = [said for said in started.story() if said[0] == "mismatch"]
    assert mismatches == [("mismatch", 4), ("mismatch", 1004), ("mismatch", 2004)]
    assert started.count(ChannelCounter.MISMATCHES) == 2500
    assert started.line(1, LineCounter.MISMATCHES) == 2500


def test_a_mismatch_that_found_no_room_is_made_up_for_by_the_next(started):
    started.data(0, 4, 5)
    started.reading = False
    fill(started)
    started.data(1, 4, body=b"tampered")
    assert unread(started) == packets(4, 5)
    started.data(1, 5, body=b"tampered")
    assert started.story() == [("mismatch", 5)]
    assert started.count(ChannelCounter.MISMATCHES) == 2


def test_headers_may_differ_between_lines(started):
    started.data(0, 4, head=b"a" * 16)
    started.data(1, 4, head=b"b" * 16)
    assert started.story() == packets(4)


def test_only_the_latest_packets_are_compared(channel):
    channel.data(0, *range(1, 66))
    channel.data(1, 1, body=b"x")
    channel.data(1, 2, body=b"x")
    assert channel.count(ChannelCounter.MISMATCHES) == 1


# -- lines ----------------------------------------------------------------------------------


def test_a_silent_line_is_reported_and_its_return_too(started):
    started.wait(2000)
    started.data(0, 4)
    started.wait(1500)
    assert started.story() == [("packet", 4), ("silent", 1)]
    started.wait(1500)
    assert started.story() == [("silent", 0)]
    assert started.arbiter.deadline_ns == NEVER
    started.heartbeat(1, 0)
    assert started.story() == [("back", 1)]
    started.wait(3000)
    assert started.story() == [("silent", 1)]
    assert started.line(1, LineCounter.SILENCES) == 2


def test_a_line_that_never_spoke_counts_from_the_start(channel):
    channel.wait(2999)
    assert channel.story() == []
    channel.wait(1)
    assert channel.story() == [("silent", 0), ("silent", 1)]


# -- a full ring ----------------------------------------------------------------------------


def test_a_full_ring_makes_packets_wait_and_loses_nothing(started):
    started.reading = False
    fill(started)
    assert started.data(0, 4, 5) == [Verdict.HELD] * 2
    assert started.arbiter.state_name == "BLOCKED"
    assert started.arbiter.expected == 4
    started.wait(3)
    assert started.count(ChannelCounter.RING_FULL) >= 3
    assert unread(started) == []
    started.wait(1)
    assert started.story() == packets(4, 5)
    assert started.data(1, 4, 6) == [Verdict.DUPLICATE, Verdict.PUBLISHED]


def test_when_hold_and_ring_are_full_packets_are_refused_and_later_announced(started):
    started.reading = False
    fill(started)
    assert started.data(0, *range(4, 20)) == [Verdict.HELD] * 16
    assert started.data(0, 20, 21) == [Verdict.REFUSED] * 2
    assert started.line(0, LineCounter.REFUSED) == 2
    unread(started)
    started.data(0, 22)
    started.wait(11)
    assert started.story() == [*packets(*range(4, 20)), ("gap", 20, 22), ("packet", 22)]


def test_a_start_waits_for_room(channel):
    channel.reading = False
    fill(channel)
    channel.data(0, 50)
    channel.wait(11)
    assert channel.arbiter.state_name == "JOINING"
    assert unread(channel) == []
    channel.wait(1)
    assert channel.story() == [("start", 50), ("packet", 50)]


def test_a_start_at_the_first_number_waits_for_room(make):
    for first in ("data", "heartbeat"):
        channel = make()
        channel.reading = False
        fill(channel)
        assert getattr(channel, first)(0, 1) in ([Verdict.HELD], Verdict.HEARD)
        assert unread(channel) == []
        channel.wait(12)
        channel.data(0, 1)
        assert channel.story() == [("start", 1), ("packet", 1)]


def test_a_gap_waits_for_room(started):
    started.reading = False
    started.data(0, 5)
    fill(started)
    started.wait(11)
    assert started.arbiter.expected == 4
    assert unread(started) == []
    started.wait(1)
    assert started.story() == [("gap", 4, 5), ("packet", 5)]


def test_a_reset_waits_for_room_and_refuses_what_follows_it(started):
    started.reading = False
    fill(started)
    started.reset(0, send_time=5)
    assert started.arbiter.state_name == "RESETTING"
    assert started.data(0, 2, send_time=6) == [Verdict.REFUSED]
    assert started.heartbeat(0, 3, send_time=6) == Verdict.HEARD
    started.wait(2)
    assert unread(started) == []
    started.wait(1)
    assert started.story() == [("reset", 2), ("packet", 1)]
    assert started.arbiter.expected == 2


def test_a_reset_record_and_its_packet_may_be_written_apart(started):
    started.reading = False
    filled = fill(started)
    started.ring.publish()
    started.ring.drain()
    for _ in range(filled - 2):
        started.ring.put(RecordKind.LINE_BACK)
    started.reset(0, send_time=5, body=bytes(200))
    assert started.arbiter.state_name == "RESETTING"
    assert unread(started) == [("reset", 2)]
    started.wait(1)
    assert started.story() == [("packet", 1)]


def test_line_events_and_alarms_wait_or_are_counted_when_the_ring_is_full(started):
    started.reading = False
    fill(started)
    started.data(1, 3, body=b"tampered")
    assert started.count(ChannelCounter.RING_FULL) == 1
    started.wait(3001)
    assert unread(started) == []
    started.wait(2)
    assert started.story() == [("silent", 0), ("silent", 1)]
    started.reading = False
    fill(started)
    started.heartbeat(0, 0)
    unread(started)
    started.heartbeat(0, 0)
    assert started.story() == [("back", 0)]


def test_a_packet_longer_than_a_slot_can_pass_but_not_be_held(started):
    assert started.data(0, 4, body=bytes(3000)) == [Verdict.PUBLISHED]
    assert started.data(0, 6, body=bytes(3000)) == [Verdict.REFUSED]
    assert started.data(0, 1000, body=bytes(3000)) == [Verdict.QUARANTINED]
    assert started.line(0, LineCounter.OVERSIZE) == 2


# -- the rest -------------------------------------------------------------------------------


def test_control_packets_on_a_line_are_counted_and_ignored(started):
    assert started.feed(0, 9, kind=PacketKind.CONTROL) == Verdict.HEARD
    assert started.line(0, LineCounter.CONTROL) == 1
    assert started.story() == []


def test_only_certain_copies_need_no_check_of_their_messages(started):
    header = started.header
    header.kind, header.session = int(PacketKind.DATA), 0
    header.sequence, header.next_sequence = 3, 4
    assert started.arbiter.is_old(header, started.now)
    header.next_sequence = 5
    assert not started.arbiter.is_old(header, started.now)


def test_what_may_yet_be_believed_is_no_certain_copy(started):
    header = started.header
    header.kind, header.session = int(PacketKind.DATA), 0
    header.sequence, header.next_sequence = 3, 4
    assert started.arbiter.is_old(header, started.now + 1000 * MS - 1)
    assert not started.arbiter.is_old(header, started.now + 1000 * MS), "a resync may want it"


def test_while_a_reset_waits_for_room_no_low_number_is_a_certain_copy(started):
    started.reading = False
    fill(started)
    assert started.reset(0, send_time=9) == Verdict.RENUMBERED
    header = started.header
    header.kind, header.session = int(PacketKind.DATA), 0
    header.sequence, header.next_sequence = 2, 3
    assert not started.arbiter.is_old(header, started.now)
    unread(started)
    assert started.feed(0, 2, send_time=10) == Verdict.PUBLISHED, "it is next in the new epoch"


def test_bytes_outside_the_buffer_are_an_error_of_the_caller_not_a_read(make):
    channel = make()
    channel.header.sequence, channel.header.next_sequence = 1, 2
    channel.header.length, channel.header.body = 500, 16
    channel.header.kind = channel.header.count = 0
    channel.header.session = channel.header.send_time = 0
    with pytest.raises(IndexError):
        channel.arbiter.receive(0, channel.header, memoryview(bytes(100)), 0, 1, 1)


def test_three_lines_arbitrate_like_two(make):
    channel = make(lines=3, settings=QUICK)
    channel.data(2, 1, 2)
    channel.data(0, 1, 3)
    channel.data(1, 4)
    assert channel.story() == [("start", 1), *packets(1, 2, 3, 4)]


def test_a_reset_forgets_what_was_quarantined(started):
    started.data(0, 1000)
    started.reset(0, send_time=5)
    started.data(1, 1000, send_time=6)
    assert ("packet", 1000) not in started.story()


def test_the_same_held_number_reaching_further_is_held_as_well(make):
    channel = make(counts_messages=True)
    channel.feed(0, 1)
    channel.feed(0, 5, next_sequence=7, count=2)
    assert channel.feed(1, 5, next_sequence=9, count=4) == Verdict.HELD
    assert channel.feed(1, 5, next_sequence=8, count=3) == Verdict.DUPLICATE
    channel.feed(0, 2, next_sequence=5, count=3)
    assert [(e.sequence, e.skip) for e in channel.events[1:]] == [(1, 0), (2, 0), (5, 0), (5, 2)]


def test_counters_may_be_shared_with_the_owner(make):
    lines = counter_array(LineCounter, 5)
    channels = counter_array(ChannelCounter, 3)
    channel = make(line_counters=lines, rows=[4, 1], channel_counters=channels[2])
    channel.data(0, 1)
    channel.data(1, 1, 2)
    assert lines[:, LineCounter.WON].tolist() == [0, 1, 0, 0, 1]
    assert channels[2, ChannelCounter.PACKETS] == 2


def test_a_packet_longer_than_its_buffer_cannot_be_held(started):
    started.header.sequence, started.header.next_sequence = 6, 7
    started.header.length = 500
    with pytest.raises(IndexError):
        started.arbiter.receive(0, started.header, memoryview(bytes(100)), 0, 1, started.now)
