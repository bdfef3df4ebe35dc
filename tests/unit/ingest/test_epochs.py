"""Resets, sessions and jumps: where one epoch ends and what makes another believed."""

import pytest

from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.records import RecordKind, ResetCause
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import Verdict
from tests.support.ingest import fill, packets, unread

# -- resets ---------------------------------------------------------------------------------


def test_the_first_copy_of_a_reset_renumbers_and_the_other_does_not(started):
    assert started.reset(0, send_time=100) == Verdict.RENUMBERED
    assert started.story() == [("reset", 2), ("packet", 1)]
    started.data(0, 2, 3, send_time=101)
    assert started.reset(1, send_time=100) == Verdict.DUPLICATE
    started.data(1, 2, 3, 4, send_time=101)
    assert started.story() == packets(2, 3, 4)
    assert started.count(ChannelCounter.RESETS) == 1


def test_a_reset_alone_is_believed_when_what_follows_agrees(started):
    assert started.reset(0, send_time=100, alone=True) == Verdict.QUARANTINED
    started.wait(1000)
    assert started.story() == []
    started.data(0, 2, send_time=101)
    assert started.story() == [("reset", 2), *packets(1, 2)]


def test_a_reset_alone_is_believed_when_the_other_line_shows_it(started):
    started.reset(0, send_time=100, alone=True)
    assert started.reset(1, send_time=100, alone=True) == Verdict.DUPLICATE
    assert started.story() == [("reset", 2), ("packet", 1)]


@pytest.mark.parametrize("send_time", [0, 100])
def test_a_reset_alone_is_forged_when_its_line_goes_on_in_the_old_epoch(started, send_time):
    for _ in range(3):
        started.reset(0, send_time=send_time, alone=True)
    started.data(1, 4, send_time=send_time and 101)
    started.data(0, 5, send_time=send_time and 102)
    assert started.story() == packets(4, 5)
    started.wait(10_000)
    started.data(0, 6, send_time=send_time and 103)
    assert [said for said in started.story() if said[0] not in ("silent", "back")] == packets(6)
    assert started.count(ChannelCounter.RESETS) == 0


def test_a_second_real_reset_works_again(started):
    for day in (100, 200, 300):
        started.reset(0, send_time=day)
        started.reset(1, send_time=day)
        assert started.story() == [("reset", 2), ("packet", 1)]
        started.data(0, 2, send_time=day + 1)
        started.data(1, 2, send_time=day + 1)
        assert started.story() == packets(2)


def test_a_reset_with_the_same_bytes_works_again_after_the_window(started):
    started.reset(0)
    started.reset(1)
    started.data(0, 2, 3)
    started.story()
    started.wait(5000)
    started.story()
    assert started.reset(0) == Verdict.RENUMBERED
    assert started.reset(1) == Verdict.DUPLICATE
    assert started.story() == [("back", 0), ("reset", 2), ("packet", 1), ("back", 1)]


def test_a_reset_without_send_time_from_a_line_not_yet_in_the_epoch_is_a_copy(started):
    started.reset(0, head=b"A" * 16)
    assert started.reset(1, head=b"B" * 16) == Verdict.DUPLICATE
    assert started.reset(1, head=b"B" * 16) == Verdict.RENUMBERED, "now the line is in the epoch"


def test_a_reset_lets_go_what_is_held_with_its_gaps_announced(started):
    started.data(0, 5, 8)
    started.heartbeat(0, 10)
    started.reset(0, send_time=9)
    assert started.story() == [
        ("gap", 4, 5), ("packet", 5), ("gap", 6, 8), ("packet", 8), ("gap", 9, 10),
        ("reset", 2), ("packet", 1),
    ]  # fmt: skip


def test_a_reset_while_joining_starts_first_when_something_is_held(channel):
    channel.data(0, 50, 52)
    channel.reset(0, send_time=9)
    assert channel.story() == [
        ("start", 50), ("packet", 50), ("gap", 51, 52), ("packet", 52), ("reset", 2), ("packet", 1)
    ]  # fmt: skip


def test_a_reset_may_be_the_very_first_packet(channel):
    channel.reset(0)
    channel.data(0, 2)
    channel.reset(1)
    channel.data(1, 2)
    assert channel.story() == [("reset", 2), *packets(1, 2)]


def test_stragglers_of_the_old_epoch_are_known_by_their_send_time(started):
    started.data(0, 4, send_time=90)
    started.reset(0, send_time=100)
    started.story()
    assert started.data(1, 4, 5, 6, send_time=95) == [Verdict.STALE] * 3
    assert started.heartbeat(1, 9, send_time=96) == Verdict.STALE
    assert started.data(0, 2, send_time=101) == [Verdict.PUBLISHED]
    assert started.data(1, 2, 3, send_time=101) == [Verdict.DUPLICATE, Verdict.PUBLISHED]
    assert started.story() == packets(2, 3)
    assert started.line(1, LineCounter.STALE) == 4


def test_stragglers_without_send_time_are_known_by_their_number(make):
    channel = make(settings=ArbitrationSettings(hold_packets=16))
    channel.data(0, *range(1, 101))
    channel.reset(0)
    channel.story()
    assert channel.data(1, 99, 100, 101) == [Verdict.STALE] * 3
    assert channel.heartbeat(1, 101) == Verdict.STALE
    assert channel.data(1, 3) == [Verdict.HELD], "fits the new epoch only"
    channel.data(0, 2)
    assert channel.story() == packets(2, 3)


def test_where_a_number_fits_both_epochs_the_lines_own_reset_decides(started):
    started.reset(0)
    started.story()
    assert started.data(1, 2, 3) == [Verdict.STALE] * 2
    assert started.heartbeat(1, 4) == Verdict.STALE
    assert started.heartbeat(1, 0) == Verdict.HEARD
    assert started.data(0, 2) == [Verdict.PUBLISHED]
    started.reset(1)
    assert started.data(1, 2, 3) == [Verdict.DUPLICATE, Verdict.PUBLISHED]


def test_after_the_window_every_line_is_of_the_new_epoch(started):
    started.reset(0)
    started.wait(5000)
    started.story()
    assert started.data(1, 2) == [Verdict.PUBLISHED]


def test_a_send_time_that_wrapped_at_midnight_is_not_old(channel):
    started = channel
    started.data(0, 1, send_time=86_300_000)
    started.reset(0, send_time=86_399_000)
    assert started.data(0, 2, send_time=3) == [Verdict.PUBLISHED]


def test_a_straggler_sent_before_the_stream_was_joined_is_old(make):
    channel = make()
    channel.data(0, 40, send_time=1_000)
    channel.wait(10)
    channel.reset(0, send_time=1_200)
    channel.story()
    assert channel.data(0, 17, send_time=900) == [Verdict.STALE]
    assert channel.data(1, 18, send_time=901) == [Verdict.STALE]
    assert channel.story() == []


def test_a_reset_too_long_for_its_slot_is_refused_and_counted(started):
    assert started.reset(0, body=bytes(4000)) == Verdict.REFUSED
    assert started.line(0, LineCounter.OVERSIZE) == 1


# -- sessions -------------------------------------------------------------------------------


@pytest.fixture
def session_7(channel):
    channel.data(0, 1, 2, session=7)
    channel.data(1, 1, 2, session=7)
    channel.story()
    return channel


def test_a_new_session_that_begins_at_the_first_number_is_believed(session_7):
    session_7.data(0, 1, session=8)
    assert session_7.story() == [("reset", 1), ("packet", 1)]
    assert session_7.data(1, 3, session=7) == [Verdict.STALE]
    assert session_7.heartbeat(1, 3, session=7) == Verdict.STALE
    session_7.data(1, 1, 2, session=8)
    assert session_7.story() == packets(2)
    assert session_7.count(ChannelCounter.SESSIONS) == 1


def test_a_heartbeat_at_the_first_number_begins_a_session(session_7):
    session_7.heartbeat(1, 1, session=8)
    assert session_7.story() == [("reset", 1)]
    session_7.data(1, 1, session=8)
    assert session_7.story() == packets(1)


def test_a_new_session_in_its_middle_needs_the_other_line(session_7):
    assert session_7.data(0, 5, session=8) == [Verdict.QUARANTINED]
    assert session_7.story() == []
    assert session_7.data(1, 6, session=8) == [Verdict.QUARANTINED]
    assert session_7.story() == [("reset", 1)]
    session_7.wait(10)
    assert session_7.story() == [("gap", 1, 5), *packets(5, 6)]


def test_a_heartbeat_confirms_a_new_session_far_from_its_beginning(session_7):
    session_7.data(0, 1000, session=8)
    session_7.heartbeat(0, 1001, session=8)
    assert session_7.story() == [("reset", 1), ("gap", 1, 1000), ("packet", 1000)]


def test_one_line_alone_brings_a_new_session_after_the_resync_time(session_7):
    session_7.wait(1000)
    session_7.data(0, *range(3, 10), session=8)
    assert session_7.story() == []
    session_7.data(0, 10, session=8)
    session_7.wait(10)
    assert session_7.story() == [("reset", 1), ("gap", 1, 3), *packets(*range(3, 11))]
    assert session_7.count(ChannelCounter.RESYNCS) == 1


def test_an_earlier_session_comes_back_only_when_the_present_one_is_dead(session_7):
    session_7.data(0, 1, session=8)
    session_7.story()
    assert session_7.data(0, 3, session=7) == [Verdict.STALE]
    session_7.wait(1000)
    assert session_7.data(0, 3, session=7) == [Verdict.QUARANTINED]
    session_7.data(1, 3, session=7)
    session_7.wait(10)
    assert session_7.story() == [("reset", 1), ("gap", 1, 3), ("packet", 3)]


# -- jumps ----------------------------------------------------------------------------------


def test_a_jump_beyond_the_window_is_quarantined(started):
    assert started.data(0, 4 + 33) == [Verdict.QUARANTINED]
    assert started.data(0, 4 + 32) == [Verdict.HELD]
    assert started.line(0, LineCounter.QUARANTINED) == 1


def test_the_other_line_confirms_a_jump_and_the_gap_is_announced_at_once(started):
    started.data(0, 6)
    started.data(0, 1000, 1001, 1002)
    assert started.story() == []
    started.data(1, 1001)
    assert started.story() == [
        ("gap", 4, 6), ("packet", 6), ("gap", 7, 1000), *packets(1000, 1001, 1002)
    ]  # fmt: skip
    assert started.count(ChannelCounter.JUMPS) == 1


def test_the_same_number_with_other_bytes_confirms_nothing(started):
    started.data(0, 1000)
    started.data(1, 1000, body=b"something else")
    assert started.story() == []


def test_a_line_that_repeats_itself_confirms_nothing(started):
    for _ in range(5):
        started.data(0, 1000)
    assert started.story() == []
    assert started.line(0, LineCounter.QUARANTINED) == 5


def test_a_heartbeat_just_past_a_quarantined_packet_confirms_it(started):
    started.data(0, 1000)
    started.heartbeat(0, 1003)
    assert started.story() == [("gap", 4, 1000), ("packet", 1000)]


def test_a_packet_confirms_a_heartbeat_that_jumped_before_it(started):
    started.heartbeat(0, 1003)
    started.data(1, 1000)
    assert started.story() == [("gap", 4, 1000), ("packet", 1000)]


def test_heartbeats_far_from_a_quarantined_packet_confirm_nothing(started):
    started.data(0, 1000)
    started.heartbeat(0, 1000)
    started.heartbeat(0, 2000)
    started.data(0, 3000)
    assert started.story() == []


def test_both_lines_heartbeats_confirm_a_jump_without_a_packet(started):
    started.heartbeat(0, 1000)
    assert started.story() == []
    started.heartbeat(1, 1000)
    assert started.story() == [("gap", 4, 1000)]
    assert started.data(0, 1000) == [Verdict.PUBLISHED]


def test_the_only_living_line_moves_the_stream_after_the_resync_time(started):
    started.data(0, *range(100, 104))
    started.wait(1000)
    started.data(0, *range(104, 107))
    assert started.story() == []
    started.data(0, 107)
    assert started.story() == [("gap", 4, 100), *packets(*range(100, 108))]
    assert started.count(ChannelCounter.RESYNCS) == 1


def test_a_broken_run_does_not_move_the_stream(started):
    started.wait(1000)
    started.data(0, *range(100, 200, 2))
    assert started.story() == []


def test_a_run_does_not_move_a_stream_that_lives(started):
    for sequence in range(4, 40):
        started.data(1, sequence)
        started.data(0, 1000 + sequence)
        started.wait(50)
    assert started.count(ChannelCounter.RESYNCS) == 0
    assert started.arbiter.expected == 40


def test_a_heartbeat_that_agrees_keeps_the_epoch_alive(started):
    for number in range(30):
        started.wait(100)
        started.heartbeat(1, 4)
        started.data(0, 1000 + number)
    assert started.story() == []


def test_heartbeats_of_the_only_living_line_move_an_idle_stream(started):
    started.wait(1000)
    for _ in range(7):
        started.heartbeat(0, 1000)
    assert started.story() == []
    started.heartbeat(0, 1000)
    assert started.story() == [("gap", 4, 1000)]


def test_a_full_quarantine_forgets_the_oldest(started):
    started.data(0, *range(1000, 10_000, 1000))
    assert started.count(ChannelCounter.EVICTED) == 1
    started.data(1, 1000)
    assert started.story() == []
    started.data(1, 9000)
    assert started.story() == [("gap", 4, 9000), ("packet", 9000)]


def test_a_reset_that_both_lines_lost_is_made_up_for_by_the_send_time(channel):
    for line in (0, 1):
        channel.data(line, *range(1, 21), send_time=50)
    channel.wait(1000)
    channel.story()
    assert channel.data(0, 2, 3, send_time=60, body=b"new") == [Verdict.QUARANTINED] * 2
    assert channel.story() == []
    assert channel.data(1, 3, send_time=60, body=b"new") == [Verdict.QUARANTINED]
    assert channel.story() == [("reset", 2), *packets(2, 3)]


def test_a_line_alone_begins_anew_after_a_lost_reset(channel):
    channel.data(0, *range(1, 21), send_time=50)
    channel.wait(1000)
    channel.story()
    for sequence in range(2, 10):
        channel.data(0, sequence, send_time=60, body=b"new %d" % sequence)
    assert channel.story()[-9:] == [("reset", 2), *packets(*range(2, 10))]
    assert [e for e in channel.events if e.kind == RecordKind.RESET] == []
    assert channel.count(ChannelCounter.RESYNCS) == 1


def test_after_a_minute_of_nothing_a_low_number_needs_no_later_send_time(channel):
    channel.data(0, *range(1, 21))
    channel.wait(59_999)
    assert channel.data(0, 5, body=b"x") == [Verdict.DUPLICATE]
    channel.wait(1)
    channel.data(0, *range(30, 31))
    channel.story()
    channel.wait(60_000)
    channel.story()
    channel.data(0, 2, body=b"new")
    channel.data(1, 2, body=b"new")
    assert ("reset", 2) in channel.story()


def test_lines_that_lag_by_more_than_the_quarantine_agree_by_their_runs(started):
    # Line B is always 20 packets behind A, and only eight are kept: none is seen twice.
    for sequence in range(1000, 1032):
        started.data(0, sequence)
        started.data(1, sequence - 20)
    # The jump is announced; A's packets that had left the quarantine make a second, small gap.
    assert started.story() == [
        ("gap", 4, 984),
        *packets(*range(984, 1000)),
        ("gap", 1000, 1004),
        *packets(*range(1004, 1032)),
    ]
    assert started.count(ChannelCounter.JUMPS) == 1


def test_runs_far_from_each_other_agree_on_nothing(started):
    started.data(0, *range(1000, 1016))
    started.data(1, *range(5000, 5016))
    assert started.story() == []


def test_a_reset_says_what_caused_it(session_7):
    session_7.reset(0, session=7)
    session_7.data(0, 1, session=9)
    assert [e.auxiliary for e in session_7.events if e.kind == RecordKind.RESET] == [
        ResetCause.PACKET,
        ResetCause.SESSION,
    ]


@pytest.mark.parametrize("lines", [0, 17])
def test_a_wrong_number_of_lines_is_refused(make, lines):
    with pytest.raises(ValueError, match="lines"):
        make(lines=lines)


@pytest.mark.parametrize(
    "field", [{"gap_wait_us": -1}, {"hold_packets": 0}, {"packet_bytes_max": 70_000}]
)
def test_a_setting_out_of_range_names_itself(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        ArbitrationSettings(**field)


def test_several_earlier_sessions_are_remembered(session_7):
    for session in (8, 9, 10):
        session_7.data(0, 1, session=session)
    session_7.story()
    for session in (7, 8, 9):
        assert session_7.data(1, 1, session=session) == [Verdict.STALE]


def test_a_confirmed_session_that_finds_no_room_is_announced_when_there_is_some(session_7):
    session_7.data(0, 5, session=8)
    session_7.reading = False
    fill(session_7)
    session_7.data(1, 5, session=8)
    assert session_7.arbiter.state_name == "RESETTING"
    assert unread(session_7) == []
    session_7.wait(1)
    assert session_7.story() == [("reset", 1)]
    session_7.data(0, 5, session=8)
    session_7.wait(10)
    assert session_7.story() == [("gap", 1, 5), ("packet", 5)]
