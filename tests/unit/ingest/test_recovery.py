"""Arbitration with recovery: gaps are reported before they are given up, and answers are judged."""

import pytest

from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.records import GapCause, RecordKind
from feedhandler.ingest.states import Verdict
from tests.support.ingest import MS, QUICK, Channel, fill, packets, unread

#: `gap_wait_us` of the settings, and what the channels here give recovery, in milliseconds.
GAP_WAIT, RECOVERY_WAIT = QUICK.gap_wait_us / 1000, 100
RECOVERED = 2


@pytest.fixture(params=("compiled", "interpreted"))
def channel(request):
    """Two lines and recovery, joined at 1."""
    made = Channel(request.param, recovery_wait_us=RECOVERY_WAIT * 1000)
    made.data(0, 1)
    assert made.story() == [("start", 1), *packets(1)]
    return made


def test_a_gap_is_reported_when_noticed_and_again_when_the_lines_have_had_their_time(channel):
    channel.data(0, 4)
    assert channel.story() == [("gap_noticed", 2, 4)]
    channel.wait(GAP_WAIT - 1)
    assert channel.story() == []
    channel.wait(1)
    assert channel.story() == [("missing", 2, 4)]
    assert channel.count(ChannelCounter.MISSING) == 2


def test_what_recovery_brings_fills_the_gap_in_order(channel):
    channel.data(0, 4, 5)
    channel.wait(GAP_WAIT)
    channel.story()
    assert channel.recover(3) == Verdict.HELD
    assert channel.recover(2) == Verdict.PUBLISHED
    assert channel.story() == [*packets(2, 3, 4, 5), ("closed", 6)]
    assert channel.line(RECOVERED, LineCounter.WON) == 2
    assert channel.line(RECOVERED, LineCounter.PACKETS) == 2


def test_a_line_that_fills_the_gap_in_time_leaves_nothing_to_ask(channel):
    channel.data(0, 3)
    channel.wait(GAP_WAIT - 1)
    channel.data(1, 2)
    assert channel.story() == [("gap_noticed", 2, 3), *packets(2, 3), ("closed", 4)]
    channel.wait(1000)
    assert [said for said in channel.story() if said[0] != "silent"] == []


def test_a_gap_that_recovery_does_not_fill_is_announced_after_its_wait(channel):
    channel.data(0, 3)
    channel.wait(GAP_WAIT + RECOVERY_WAIT - 1)
    assert channel.story() == [("gap_noticed", 2, 3), ("missing", 2, 3)]
    channel.wait(1)
    assert channel.story() == [("gap", 2, 3), *packets(3), ("closed", 4)]
    assert channel.recover(2) == Verdict.LATE


def test_each_gap_is_reported_at_its_own_time_though_the_first_is_still_open(channel):
    channel.data(0, 3)
    channel.wait(5)
    channel.data(0, 4, 6, 9)
    channel.wait(GAP_WAIT - 5)
    assert channel.story() == [("gap_noticed", 2, 3), ("missing", 2, 3)]
    channel.wait(5)
    assert channel.story() == [("missing", 5, 6), ("missing", 7, 9)]
    channel.recover(2)
    assert channel.story() == packets(2, 3, 4)
    channel.recover(7)
    channel.recover(5)
    assert channel.story() == packets(5, 6, 7)
    channel.data(1, 8)
    assert channel.story() == [*packets(8, 9), ("closed", 10)]


def test_a_gap_is_reported_once_though_lines_split_it(channel):
    channel.data(0, 9)
    channel.wait(GAP_WAIT)
    assert channel.story() == [("gap_noticed", 2, 9), ("missing", 2, 9)]
    channel.data(1, 5)
    channel.data(0, 10)
    channel.wait(GAP_WAIT)
    assert channel.story() == []


def test_what_a_heartbeat_reveals_is_reported_as_well(channel):
    channel.heartbeat(0, 4)
    assert channel.story() == [("gap_noticed", 2, 4)]
    channel.wait(GAP_WAIT)
    assert channel.story() == [("missing", 2, 4)]
    channel.recover(2)
    channel.recover(3)
    assert channel.story() == [*packets(2, 3), ("closed", 4)]


def test_what_cannot_be_had_is_given_up_at_once(channel):
    channel.data(0, 3, 5)
    channel.wait(GAP_WAIT)
    channel.story()
    channel.give_up(3)
    event = next(event for event in channel.events if event.kind == RecordKind.GAP)
    assert event.auxiliary == GapCause.REFUSED
    assert channel.story() == [("gap", 2, 3), *packets(3)]
    channel.give_up(5)
    assert channel.story() == [("gap", 4, 5), *packets(5), ("closed", 6)]


def test_what_the_server_says_was_not_sent_yet_is_no_gap(channel):
    channel.data(0, 12)
    channel.wait(GAP_WAIT)
    assert channel.story() == [("gap_noticed", 2, 12), ("missing", 2, 12)]
    channel.disprove(11)
    channel.give_up(12)
    assert channel.story() == [("closed", 2)]
    channel.wait(RECOVERY_WAIT)
    channel.data(1, *range(2, 12))
    assert channel.story() == packets(*range(2, 12))
    assert channel.data(1, 12, body=b"the real one") == [Verdict.PUBLISHED]
    assert channel.count(ChannelCounter.GAPS) == 0


def test_a_server_that_is_behind_disproves_nothing(channel):
    channel.data(0, *range(4, 12))
    channel.wait(GAP_WAIT)
    channel.story()
    channel.disprove(3)
    channel.give_up(4)
    assert channel.story() == [("gap", 2, 4), *packets(*range(4, 12)), ("closed", 12)]


def test_giving_up_what_is_not_missing_changes_nothing(channel):
    channel.give_up(100)
    channel.data(0, 2)
    channel.give_up(2)
    assert channel.story() == packets(2)
    channel.data(0, 4)
    channel.give_up(3, epoch=7)
    assert channel.story() == [("gap_noticed", 3, 4)]


def test_an_answer_of_another_epoch_changes_nothing(channel):
    channel.data(0, 3)
    channel.wait(GAP_WAIT)
    channel.reset(0, send_time=2)
    assert ("reset", 2) in channel.story()
    channel.feed(0, 3, send_time=3)
    channel.story()
    assert channel.recover(2, epoch=0) == Verdict.STALE
    assert channel.story() == []
    assert channel.recover(2, epoch=1) == Verdict.PUBLISHED
    assert channel.story() == [*packets(2, 3), ("closed", 4)]


def test_a_late_answer_is_known_by_its_send_time_for_a_while_after_a_reset(channel):
    channel.data(0, 3, send_time=5)
    channel.wait(GAP_WAIT)
    channel.reset(0, send_time=9)
    channel.feed(0, 3, send_time=10)
    channel.story()
    assert channel.recover(2, epoch=1, send_time=6) == Verdict.STALE
    assert channel.story() == []
    assert channel.recover(2, epoch=1, send_time=9) == Verdict.PUBLISHED
    channel.wait(QUICK.epoch_window_us / 1000)
    channel.feed(0, 5, send_time=12)
    assert channel.recover(4, epoch=1, send_time=6) == Verdict.PUBLISHED


def test_what_recovery_brings_beyond_the_window_is_refused_and_never_quarantined(channel):
    assert channel.recover(1_000_000) == Verdict.REFUSED
    assert channel.line(RECOVERED, LineCounter.REFUSED) == 1
    assert channel.story() == []


def test_what_recovery_brings_twice_is_compared_with_the_first_copy(channel):
    assert channel.recover(1) == Verdict.DUPLICATE
    assert channel.recover(1, body=b"otherwise") == Verdict.DUPLICATE
    assert channel.story() == [("mismatch", 1)]


def test_before_the_stream_is_joined_recovery_has_no_say():
    channel = Channel(recovery_wait_us=1000)
    assert channel.recover(1) == Verdict.STALE
    channel.give_up(10)
    assert channel.story() == []


def test_a_heartbeat_or_reset_from_recovery_is_no_packet(channel):
    from feedhandler.codecs.kinds import PacketKind

    assert channel.recover(2, kind=PacketKind.RESET, next_sequence=9) == Verdict.STALE


def test_control_events_that_find_no_room_are_written_when_there_is_some(channel):
    channel.reading = False
    fill(channel)
    channel.data(0, 3)
    said = unread(channel)
    channel.wait(1)
    assert said + channel.story() == [("gap_noticed", 2, 3)]
    channel.reading = False
    fill(channel)
    channel.wait(GAP_WAIT + 1)
    said = unread(channel)
    channel.wait(1)
    assert said + channel.story() == [("missing", 2, 3)]
    channel.reading = False
    fill(channel)
    channel.recover(2)
    unread(channel)
    channel.wait(2)
    channel.data(0, 4)
    assert channel.line(RECOVERED, LineCounter.WON) == 1
    assert channel.count(ChannelCounter.GAPS) == 0


def test_silence_of_recovery_is_no_silence_of_a_line(channel):
    channel.wait(3_000)
    silent = [said for said in channel.story() if said[0] == "silent"]
    assert silent == [("silent", 0), ("silent", 1)]
    assert MS == 1_000_000
