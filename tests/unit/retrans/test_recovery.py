"""Recovery's requests: what is asked for, when, how often, and what each reject reason does."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import DAY_NS
from feedhandler.retrans.actions import Alert, Ask, AskRefresh, Cancel, Disprove, GiveUp
from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.quota import SILENCE_NS, Quota
from feedhandler.retrans.reactions import REFRESH, RETRANSMISSION
from feedhandler.retrans.recovery import COUNTS, Recovery
from feedhandler.retrans.retransmission import RUNS_MAX
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import State
from tests.support.recovery import MS, NEVER, SECOND, SERVICE, UTC, asks, make

# -- requests ---------------------------------------------------------------------------------


def test_a_run_is_one_request_and_a_long_one_is_split() -> None:
    recovery = make(request_packets_max=10)
    recovery.missing(5, 8, 3, 0)
    assert recovery.pop_actions() == [Ask(1, SERVICE, 5, 8, 3)]
    recovery.missing(20, 45, 3, 0)
    assert asks(recovery) == [(20, 30), (30, 40), (40, 45)]
    assert recovery.requested == [(5, 8), (20, 30), (30, 40), (40, 45)]


def test_what_is_asked_for_is_not_asked_for_again() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.missing(5, 25, 1, MS)
    assert asks(recovery) == [(10, 20), (5, 10), (20, 25)]
    recovery.missing(5, 25, 1, 2 * MS)
    assert asks(recovery) == []


def test_outstanding_requests_are_bounded_and_the_lowest_go_first() -> None:
    recovery = make(outstanding_max=2)
    for first in (30, 10, 20, 40):
        recovery.missing(first, first + 2, 1, 0)
    assert asks(recovery) == [(30, 32), (10, 12)]
    assert recovery.deadline_ns <= MS
    recovery.arrived(1, 30, 32, MS)
    assert asks(recovery) == [(20, 22)]
    recovery.answered(1, MS)
    assert asks(recovery) == []
    recovery.arrived(2, 10, 12, MS)
    assert asks(recovery) == [(40, 42)]


def test_runs_that_follow_closely_are_gathered_and_leave_together() -> None:
    recovery = make(request_gather_us=2_000)
    recovery.missing(10, 12, 1, 0)
    assert asks(recovery) == [(10, 12)]
    recovery.missing(20, 21, 1, MS)
    recovery.missing(30, 31, 1, MS)
    assert asks(recovery) == []
    assert recovery.deadline_ns == 2 * MS
    recovery.tick(2 * MS)
    assert asks(recovery) == [(20, 21), (30, 31)]
    # What comes after that time is alone again.
    recovery.missing(40, 41, 1, 4 * MS)
    assert asks(recovery) == [(40, 41)]


def test_gathering_delays_neither_a_slot_that_comes_free_nor_a_narrower_try() -> None:
    recovery = make(request_gather_us=2_000, outstanding_max=1)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 22, 1, 0)
    assert asks(recovery) == [(10, 12)]
    recovery.tick(2 * MS)
    recovery.arrived(1, 10, 12, 3 * MS)
    assert asks(recovery) == [(20, 22)]
    recovery.rejected(2, RetransReject.OVER_THRESHOLD, 3 * MS)
    assert asks(recovery) == [(20, 21)]


def test_channels_take_turns_at_one_server() -> None:
    quota = Quota(0, 0, 2, UTC)
    settings = RecoverySettings(request_packets_max=1)
    busy, calm = (
        Recovery(service, settings, quota=quota, refresh=True, seed=service, trading_day=UTC)
        for service in (1, 2)
    )
    for each in (busy, calm):
        each.server_up(0)
    busy.missing(1, 100, 1, 0)
    calm.missing(7, 8, 1, 0)
    assert asks(busy) == [(1, 2), (2, 3)]
    assert asks(calm) == []
    # `busy` waited first and has its turn; the next slot is kept for `calm`.
    busy.arrived(1, 1, 2, MS)
    assert asks(busy) == [(3, 4)]
    busy.arrived(2, 2, 3, MS)
    assert asks(busy) == []
    calm.tick(calm.deadline_ns)
    assert asks(calm) == [(7, 8)]
    # Only the channel that lost something is affected.
    assert busy.state is State.REQUESTING
    calm.closed(9, 2 * MS)
    assert (calm.state, busy.state) == (State.IN_SYNC, State.REQUESTING)


def test_the_rate_is_kept_and_everything_is_asked_for_in_the_end() -> None:
    recovery = make(requests_per_s=10, outstanding_max=100, recovery_wait_us=60_000_000)
    for first in range(10, 40, 2):
        recovery.missing(first, first + 1, 1, 0)
    seen = asks(recovery)
    assert len(seen) == 1
    while len(seen) < 15:
        now_ns = recovery.deadline_ns
        for first, end in recovery.requested:
            recovery.arrived(len(seen), first, end, now_ns)
        recovery.tick(now_ns)
        seen += asks(recovery)
        assert len(seen) <= 2 + now_ns * 10 // SECOND
    assert seen == [(first, first + 1) for first in range(10, 40, 2)]


def test_of_a_partial_answer_only_the_rest_is_asked_for_again() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.accepted(1, MS)
    recovery.arrived(1, 10, 13, MS)
    recovery.arrived(1, 15, 18, MS)
    recovery.pop_actions()
    recovery.answered(1, MS)
    assert asks(recovery) == []
    assert MS < recovery.deadline_ns <= 21 * MS
    recovery.tick(recovery.deadline_ns)
    assert asks(recovery) == [(13, 15), (18, 20)]
    assert (recovery.counts["partial"], recovery.counts["retries"]) == (1, 1)


def test_what_a_line_brings_is_not_asked_for_again() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.missing(30, 40, 1, 0)
    recovery.pop_actions()
    recovery.progress(15, MS)
    assert recovery.missing_ranges == [(15, 20), (30, 40)]
    recovery.progress(25, MS)
    assert recovery.pop_actions() == [Cancel(1)]
    recovery.closed(40, MS)
    assert recovery.pop_actions() == [Cancel(2)]
    assert (recovery.state, recovery.deadline_ns) == (State.IN_SYNC, NEVER)


def test_a_request_times_out_and_progress_restarts_its_clock() -> None:
    recovery = make(retries=1, recovery_wait_us=60_000_000)
    recovery.missing(10, 20, 1, 0)
    assert recovery.deadline_ns == 200 * MS
    recovery.accepted(1, 50 * MS)
    assert recovery.deadline_ns == 250 * MS
    recovery.accepted(1, 60 * MS)
    assert recovery.deadline_ns == 250 * MS
    recovery.arrived(1, 10, 11, 240 * MS)
    assert recovery.deadline_ns == 440 * MS
    # Packets that it did not ask for are no progress of it.
    recovery.arrived(1, 50, 51, 300 * MS)
    assert recovery.deadline_ns == 440 * MS
    recovery.pop_actions()
    recovery.tick(440 * MS)
    assert recovery.pop_actions() == [Cancel(1)]
    again_ns = recovery.deadline_ns
    assert 450 * MS <= again_ns <= 460 * MS
    recovery.tick(again_ns)
    assert recovery.pop_actions() == [Ask(2, SERVICE, 11, 20, 1)]
    recovery.tick(again_ns + 200 * MS)
    assert recovery.pop_actions() == [Cancel(2), GiveUp(20, 1)]
    assert recovery.state is State.REQUESTING


def test_a_late_answer_still_counts_and_cancels_the_repeat() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.tick(200 * MS)
    recovery.tick(recovery.deadline_ns)
    recovery.pop_actions()
    recovery.arrived(1, 10, 20, 230 * MS)
    assert recovery.pop_actions() == [Cancel(2)]
    assert (recovery.state, recovery.counts["late"]) == (State.SUSPECTING, 1)


def test_packets_out_of_order_complete_a_request_which_is_then_cancelled() -> None:
    recovery = make()
    recovery.missing(10, 12, 1, 0)
    recovery.pop_actions()
    recovery.arrived(1, 11, 12, MS)
    recovery.arrived(1, 10, 11, MS)
    assert recovery.pop_actions() == [Cancel(1)]


def test_an_answer_that_others_have_completed_is_not_repeated() -> None:
    recovery = make(request_packets_max=5)
    recovery.missing(10, 20, 1, 0)
    recovery.missing(30, 31, 1, 0)
    recovery.pop_actions()
    # Wider than asked for: it brings what the second request is for, too.
    recovery.arrived(1, 10, 20, MS)
    recovery.answered(2, MS)
    assert recovery.requested == [(30, 31)]
    assert (recovery.pop_actions(), recovery.counts["partial"]) == ([], 0)


def test_a_range_is_abandoned_when_its_time_is_over() -> None:
    recovery = make(recovery_wait_us=100_000)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 22, 1, 50 * MS)
    recovery.pop_actions()
    recovery.tick(100 * MS)
    assert recovery.pop_actions() == [Cancel(1), GiveUp(12, 1)]
    recovery.tick(150 * MS)
    assert recovery.pop_actions() == [Cancel(2), GiveUp(22, 1)]
    assert recovery.counts["out_of_time"] == 4


def test_with_little_time_left_nothing_new_is_asked_for() -> None:
    recovery = make(outstanding_max=1, recovery_wait_us=80_000)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 22, 1, 0)
    recovery.pop_actions()
    recovery.tick(70 * MS)
    # The first is under way and keeps its time; the second could only be late.
    assert recovery.requested == [(10, 12)]
    assert (recovery.missing_ranges, recovery.abandoned_ranges) == ([(10, 12)], [(20, 22)])
    recovery.arrived(1, 10, 12, 75 * MS)
    assert recovery.pop_actions() == [GiveUp(22, 1)]


def test_a_server_that_is_down_is_waited_for() -> None:
    recovery = make(up=False, retries=0)
    recovery.missing(10, 12, 1, 0)
    assert recovery.pop_actions() == []
    recovery.server_up(MS)
    assert asks(recovery) == [(10, 12)]
    recovery.arrived(1, 10, 11, MS)
    recovery.server_down(2 * MS)
    assert (recovery.pop_actions(), recovery.requested) == ([], [])
    # No try was spent: the range is not at fault.
    recovery.server_up(3 * MS)
    assert asks(recovery) == [(11, 12)]
    recovery.server_down(4 * MS)
    recovery.tick(500 * MS)
    assert recovery.pop_actions() == [GiveUp(12, 1)]


def test_a_server_that_stays_down_holds_nothing_back() -> None:
    recovery = make()
    wait_ns = RecoverySettings().recovery_wait_us * 1000
    recovery.server_down(MS)
    recovery.missing(10, 12, 1, 300 * MS)
    # A second report does not prolong it.
    recovery.server_down(350 * MS)
    recovery.pop_actions()
    assert recovery.deadline_ns == MS + wait_ns
    recovery.tick(MS + wait_ns)
    assert recovery.pop_actions() == [GiveUp(12, 1)]
    for at in range(1, 100):
        recovery.missing(10 + 10 * at, 12 + 10 * at, 1, SECOND * at)
        assert recovery.pop_actions() == [GiveUp(12 + 10 * at, 1)]
    assert recovery.counts["unreachable"] == 200
    recovery.server_up(200 * SECOND)
    recovery.missing(2000, 2001, 1, 200 * SECOND)
    assert asks(recovery) == [(2000, 2001)]


def test_a_server_that_never_was_there_is_waited_for_once() -> None:
    recovery = make(up=False)
    recovery.missing(10, 12, 1, SECOND)
    assert recovery.pop_actions() == []
    recovery.tick(recovery.deadline_ns)
    assert recovery.pop_actions() == [GiveUp(12, 1)]
    recovery.missing(20, 22, 1, 60 * SECOND)
    assert recovery.pop_actions() == [GiveUp(22, 1)]


@pytest.mark.parametrize(("answers", "lasts_ms"), [(False, 100), (True, 100), (False, 1000)])
def test_a_server_that_drops_its_connections_is_waited_for_once(
    answers: bool, lasts_ms: int
) -> None:
    recovery = make(retries=0)
    recovery.server_down(MS)
    now_ns = 2 * SECOND
    recovery.server_up(now_ns)
    if answers:
        recovery.missing(5, 6, 1, now_ns)
        recovery.accepted(1, now_ns)
        recovery.arrived(1, 5, 6, now_ns)
        recovery.closed(6, now_ns)
    now_ns += lasts_ms * MS
    recovery.server_down(now_ns)
    recovery.pop_actions()
    recovery.missing(10, 12, 1, now_ns + MS)
    alive = answers or lasts_ms == 1000
    assert recovery.pop_actions() == ([] if alive else [GiveUp(12, 1)])
    recovery.server_up(now_ns + 2 * MS)
    recovery.missing(20, 22, 1, now_ns + 3 * MS)
    assert (20, 22) in asks(recovery)


def fall_silent(recovery: Recovery) -> int:
    """Let the server leave three requests without a word, one after another; when that is so."""
    now_ns = 0
    for first in (10, 20, 30):
        recovery.missing(first, first + 1, 1, now_ns)
        now_ns += 200 * MS
        recovery.tick(now_ns)
        recovery.closed(first + 5, now_ns)
    recovery.pop_actions()
    return now_ns


def test_a_silent_server_holds_nothing_back() -> None:
    recovery = make(retries=0)
    now_ns = fall_silent(recovery)
    recovery.missing(40, 45, 1, now_ns + SECOND)
    assert recovery.pop_actions() == [GiveUp(45, 1)]
    assert recovery.counts["unreachable"] == 5
    # One request now and then, and if nothing comes of that either, the same again.
    now_ns += SILENCE_NS
    recovery.missing(50, 52, 1, now_ns)
    assert asks(recovery) == [(50, 52)]
    recovery.tick(now_ns + 200 * MS)
    assert GiveUp(52, 1) in recovery.pop_actions()
    recovery.missing(60, 62, 1, now_ns + SECOND)
    assert recovery.pop_actions() == [GiveUp(62, 1)]


@pytest.mark.parametrize("sign", ["accepted", "rejected", "arrived", "server_up"])
def test_the_first_sign_of_life_ends_a_silence(sign: str) -> None:
    recovery = make(retries=0)
    now_ns = fall_silent(recovery)
    about = {"rejected": (3, 5), "arrived": (3, 30, 31), "server_up": ()}.get(sign, (3,))
    getattr(recovery, sign)(*about, now_ns + MS)
    recovery.missing(40, 45, 1, now_ns + 2 * MS)
    assert asks(recovery) == [(40, 45)]


def test_requests_that_stall_together_do_not_make_a_server_silent() -> None:
    recovery = make(recovery_wait_us=60_000_000)
    for first in range(10, 160, 10):
        recovery.missing(first, first + 1, 1, 0)
    recovery.pop_actions()
    recovery.tick(200 * MS)
    recovery.tick(recovery.deadline_ns)
    assert asks(recovery)


def test_what_came_while_the_server_was_down_is_not_asked_for() -> None:
    recovery = make(up=False)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 24, 1, 0)
    recovery.progress(15, MS)
    recovery.server_up(2 * MS)
    assert asks(recovery) == [(20, 24)]


def test_without_a_retransmission_server_a_range_is_given_up_at_once() -> None:
    recovery = make(rts=False, up=False)
    recovery.missing(10, 12, 4, 0)
    assert recovery.pop_actions() == [GiveUp(12, 4)]
    recovery.reset(MS)
    assert recovery.state is State.IN_SYNC


def test_a_hole_is_given_up_only_when_nothing_before_it_may_come() -> None:
    recovery = make()
    for first in (10, 20, 30):
        recovery.missing(first, first + 5, 1, 0)
    recovery.pop_actions()
    recovery.rejected(2, RetransReject.NO_LONGER_AVAILABLE, MS)
    assert recovery.pop_actions() == []
    recovery.arrived(1, 10, 15, MS)
    assert recovery.pop_actions() == [GiveUp(25, 1)]
    # Said once; a packet that comes after all is nothing to give up.
    recovery.arrived(3, 30, 32, MS)
    recovery.tick(2 * MS)
    assert recovery.pop_actions() == []
    recovery.missing(20, 25, 1, 2 * MS)
    assert recovery.pop_actions() == []


def test_more_holes_than_may_wait_are_abandoned() -> None:
    recovery = make(up=False)
    for at in range(RUNS_MAX + 2):
        recovery.missing(10 * at + 1, 10 * at + 3, 1, 0)
    assert recovery.counts["crowded"] == 4
    assert recovery.counts["abandoned"] == 4
    # The last deadline kept covers what came beyond.
    recovery.tick(500 * MS)
    assert recovery.missing_ranges == []
    assert recovery.pop_actions() == [GiveUp(10 * (RUNS_MAX + 1) + 3, 1)]


def test_a_new_epoch_voids_everything() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.lost(1, 5, 0)
    recovery.pop_actions()
    recovery.reset(MS)
    assert recovery.pop_actions() == [Cancel(1), Cancel(2)]
    assert (recovery.state, recovery.deadline_ns) == (State.IN_SYNC, NEVER)
    # What still answers belongs to the old numbers.
    recovery.missing(10, 12, 2, 2 * MS)
    recovery.arrived(1, 10, 12, 2 * MS)
    assert recovery.missing_ranges == [(10, 12)]
    # An epoch whose reset was not announced is noticed by its number.
    recovery.pop_actions()
    recovery.missing(10, 12, 3, 3 * MS)
    assert recovery.pop_actions() == [Cancel(3), Ask(4, SERVICE, 10, 12, 3)]


def test_an_empty_range_is_the_callers_fault() -> None:
    recovery = make()
    with pytest.raises(UsageError):
        recovery.missing(10, 10, 1, 0)


# -- reject reasons -----------------------------------------------------------------------------


def test_every_reason_has_a_reaction() -> None:
    assert set(RETRANSMISSION) == set(RetransReject) - {RetransReject.NONE}
    assert set(REFRESH) == set(RefreshReject) - {RefreshReject.NONE}


def test_what_was_not_sent_yet_is_announced_and_asked_for_when_it_is_missing_again() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, RetransReject.INVALID_RANGE, MS)
    assert recovery.pop_actions() == [Disprove(19, 1)]
    recovery.closed(10, 2 * MS)  # arbitration believes the server
    assert recovery.state.name == "IN_SYNC"
    assert recovery.deadline_ns == NEVER
    recovery.missing(12, 14, 1, 3 * MS)
    assert recovery.pop_actions() == [Ask(2, SERVICE, 12, 14, 1)]
    recovery.rejected(2, RetransReject.INVALID_RANGE, 4 * MS)
    assert recovery.pop_actions() == [Disprove(13, 1)]


def test_a_server_that_lags_is_asked_again_until_the_tries_are_used_up() -> None:
    recovery = make(retries=1)
    recovery.missing(10, 20, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, RetransReject.INVALID_RANGE, MS)
    assert recovery.pop_actions() == [Disprove(19, 1)]
    recovery.missing(10, 20, 1, MS)  # arbitration does not believe the server
    assert recovery.pop_actions() == []
    recovery.tick(recovery.deadline_ns)
    assert recovery.pop_actions() == [Ask(2, SERVICE, 10, 20, 1)]
    recovery.rejected(2, RetransReject.INVALID_RANGE, 50 * MS)
    assert recovery.pop_actions() == [Disprove(19, 1), GiveUp(20, 1)]


def test_what_cannot_be_had_is_abandoned_without_a_word() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, RetransReject.NO_LONGER_AVAILABLE, MS)
    assert recovery.pop_actions() == [GiveUp(20, 1)]
    recovery.lost(10, 20, 2 * MS)
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]


@pytest.mark.parametrize("reason", [1, 6, 7, 99])
def test_the_operator_is_told_once_of_what_only_he_can_mend(reason: int) -> None:
    recovery = make()
    for first in (10, 20):
        recovery.missing(first, first + 5, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, reason, MS)
    alert, given_up = recovery.pop_actions()
    assert isinstance(alert, Alert)
    assert str(SERVICE) in alert.text
    assert f"({reason})" in alert.text
    assert given_up == GiveUp(15, 1)
    recovery.rejected(2, reason, MS)
    assert recovery.pop_actions() == [GiveUp(25, 1)]


def test_too_wide_a_range_is_halved_at_once_and_stays_so() -> None:
    recovery = make(request_packets_max=8)
    recovery.missing(1, 9, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, RetransReject.OVER_THRESHOLD, MS)
    assert asks(recovery) == [(1, 5), (5, 9)]
    recovery.missing(11, 19, 1, MS)
    assert asks(recovery) == [(11, 15), (15, 19)]


def test_a_single_packet_over_the_threshold_is_abandoned() -> None:
    recovery = make()
    recovery.missing(1, 2, 1, 0)
    recovery.pop_actions()
    recovery.rejected(1, RetransReject.OVER_THRESHOLD, MS)
    assert recovery.pop_actions() == [GiveUp(2, 1)]


def test_too_many_today_is_waited_out_once_and_then_closes_the_quota() -> None:
    recovery = make()
    for first in (10, 20, 30):
        recovery.missing(first, first + 5, 1, 0)
    recovery.pop_actions()
    for request_id in (1, 2):
        recovery.rejected(request_id, RetransReject.TOO_MANY_TODAY, MS)
    assert recovery.pop_actions() == []
    recovery.missing(40, 45, 1, 2 * MS)
    assert recovery.pop_actions() == []
    # One sent before the pause is refused after it: no second word.
    again_ns = recovery.deadline_ns
    recovery.rejected(3, RetransReject.TOO_MANY_TODAY, again_ns + MS)
    assert asks(recovery) == [(10, 15), (20, 25), (30, 35), (40, 45)]
    recovery.rejected(4, RetransReject.TOO_MANY_TODAY, again_ns + 2 * MS)
    alert, given_up = recovery.pop_actions()
    assert isinstance(alert, Alert)
    assert "today" in alert.text
    assert given_up == GiveUp(15, 1)
    recovery.rejected(5, RetransReject.TOO_MANY_TODAY, again_ns + 2 * MS)
    assert recovery.pop_actions() == [GiveUp(25, 1)]
    # Nothing more today, and everything is abandoned at once.
    recovery.missing(50, 55, 1, again_ns + 3 * MS)
    assert recovery.pop_actions() == []
    recovery.arrived(6, 30, 35, again_ns + 3 * MS)
    recovery.arrived(7, 40, 45, again_ns + 3 * MS)
    assert recovery.pop_actions() == [GiveUp(55, 1)]
    recovery.closed(60, again_ns + 4 * MS)
    recovery.missing(60, 65, 1, DAY_NS)
    assert asks(recovery) == [(60, 65)]


def test_a_closed_quota_reaches_what_waits_for_a_back_off() -> None:
    recovery = make(requests_per_day=2, recovery_wait_us=60_000_000)
    recovery.missing(10, 12, 1, 0)
    recovery.tick(200 * MS)
    recovery.pop_actions()
    recovery.missing(20, 22, 1, 201 * MS)
    assert recovery.pop_actions() == [Ask(2, SERVICE, 20, 22, 1)]
    recovery.tick(202 * MS)
    assert recovery.pop_actions() == [GiveUp(12, 1)]


def test_every_counter_is_described_and_counted_from_nothing() -> None:
    assert set(make().counts) == set(COUNTS)
    assert all(COUNTS.values())
