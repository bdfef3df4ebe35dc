"""Recovery's behaviour: requests, quotas, reject reasons, refresh; economy; convergence."""

import random

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Alert, Ask, AskRefresh, Cancel, GiveUp
from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.quota import DAY_NS, Quota
from feedhandler.retrans.reactions import REFRESH, RETRANSMISSION
from feedhandler.retrans.recovery import COUNTS, Recovery
from feedhandler.retrans.retransmission import RUNS_MAX
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import State
from tests.recovery_kit import MS, NEVER, SECOND, SERVICE, Faults, World, asks, make

# -- requests ---------------------------------------------------------------------------------


def test_a_run_is_one_request_and_a_long_one_is_split() -> None:
    recovery = make(request_packets_max=10)
    recovery.missing(5, 8, 3, 0)
    assert recovery.take() == [Ask(1, SERVICE, 5, 8, 3)]
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


def test_channels_take_turns_at_one_server() -> None:
    quota = Quota(0, 0, 2)
    settings = RecoverySettings(request_packets_max=1)
    busy, calm = (
        Recovery(service, settings, quota=quota, refresh=True, seed=service) for service in (1, 2)
    )
    for each in (busy, calm):
        each.server_up(0)
    busy.missing(1, 100, 1, 0)
    calm.missing(7, 8, 1, 0)
    assert asks(busy) == [(1, 2), (2, 3)]
    assert asks(calm) == []
    # `busy` waited first and has its turn; the next place is kept for `calm`.
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
    recovery.take()
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
    recovery.take()
    recovery.progress(15, MS)
    assert recovery.missing_ranges == [(15, 20), (30, 40)]
    recovery.progress(25, MS)
    assert recovery.take() == [Cancel(1)]
    recovery.closed(40, MS)
    assert recovery.take() == [Cancel(2)]
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
    recovery.take()
    recovery.tick(440 * MS)
    assert recovery.take() == [Cancel(1)]
    again_ns = recovery.deadline_ns
    assert 450 * MS <= again_ns <= 460 * MS
    recovery.tick(again_ns)
    assert recovery.take() == [Ask(2, SERVICE, 11, 20, 1)]
    recovery.tick(again_ns + 200 * MS)
    assert recovery.take() == [Cancel(2), GiveUp(20, 1)]
    assert recovery.state is State.REQUESTING


def test_a_late_answer_still_counts_and_cancels_the_repeat() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.tick(200 * MS)
    recovery.tick(recovery.deadline_ns)
    recovery.take()
    recovery.arrived(1, 10, 20, 230 * MS)
    assert recovery.take() == [Cancel(2)]
    assert (recovery.state, recovery.counts["late"]) == (State.SUSPECTING, 1)


def test_packets_out_of_order_complete_a_request_which_is_then_cancelled() -> None:
    recovery = make()
    recovery.missing(10, 12, 1, 0)
    recovery.take()
    recovery.arrived(1, 11, 12, MS)
    recovery.arrived(1, 10, 11, MS)
    assert recovery.take() == [Cancel(1)]


def test_an_answer_that_others_have_completed_is_not_repeated() -> None:
    recovery = make(request_packets_max=5)
    recovery.missing(10, 20, 1, 0)
    recovery.missing(30, 31, 1, 0)
    recovery.take()
    # Wider than asked for: it brings what the second request is for, too.
    recovery.arrived(1, 10, 20, MS)
    recovery.answered(2, MS)
    assert recovery.requested == [(30, 31)]
    assert (recovery.take(), recovery.counts["partial"]) == ([], 0)


def test_a_range_is_abandoned_when_its_time_is_over() -> None:
    recovery = make(recovery_wait_us=100_000)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 22, 1, 50 * MS)
    recovery.take()
    recovery.tick(100 * MS)
    assert recovery.take() == [Cancel(1), GiveUp(12, 1)]
    recovery.tick(150 * MS)
    assert recovery.take() == [Cancel(2), GiveUp(22, 1)]
    assert recovery.counts["out_of_time"] == 4


def test_with_little_time_left_nothing_new_is_asked_for() -> None:
    recovery = make(outstanding_max=1, recovery_wait_us=80_000)
    recovery.missing(10, 12, 1, 0)
    recovery.missing(20, 22, 1, 0)
    recovery.take()
    recovery.tick(70 * MS)
    # The first is under way and keeps its time; the second could only be late.
    assert recovery.requested == [(10, 12)]
    assert (recovery.missing_ranges, recovery.abandoned_ranges) == ([(10, 12)], [(20, 22)])
    recovery.arrived(1, 10, 12, 75 * MS)
    assert recovery.take() == [GiveUp(22, 1)]


def test_a_server_that_is_down_is_waited_for() -> None:
    recovery = make(up=False, retries=0)
    recovery.missing(10, 12, 1, 0)
    assert recovery.take() == []
    recovery.server_up(MS)
    assert asks(recovery) == [(10, 12)]
    recovery.arrived(1, 10, 11, MS)
    recovery.server_down(2 * MS)
    assert (recovery.take(), recovery.requested) == ([], [])
    # No try was spent: the range is not at fault.
    recovery.server_up(3 * MS)
    assert asks(recovery) == [(11, 12)]
    recovery.server_down(4 * MS)
    recovery.tick(500 * MS)
    assert recovery.take() == [GiveUp(12, 1)]


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
    assert recovery.take() == [GiveUp(12, 4)]
    recovery.reset(MS)
    assert recovery.state is State.IN_SYNC


def test_a_hole_is_given_up_only_when_nothing_before_it_may_come() -> None:
    recovery = make()
    for first in (10, 20, 30):
        recovery.missing(first, first + 5, 1, 0)
    recovery.take()
    recovery.rejected(2, RetransReject.NO_LONGER_AVAILABLE, MS)
    assert recovery.take() == []
    recovery.arrived(1, 10, 15, MS)
    assert recovery.take() == [GiveUp(25, 1)]
    # Said once; a packet that comes after all is nothing to give up.
    recovery.arrived(3, 30, 32, MS)
    recovery.tick(2 * MS)
    assert recovery.take() == []
    recovery.missing(20, 25, 1, 2 * MS)
    assert recovery.take() == []


def test_more_holes_than_may_wait_are_abandoned() -> None:
    recovery = make(up=False)
    for at in range(RUNS_MAX + 2):
        recovery.missing(10 * at + 1, 10 * at + 3, 1, 0)
    assert recovery.counts["crowded"] == 4
    assert recovery.counts["abandoned"] == 4
    # The last deadline kept covers what came beyond.
    recovery.tick(500 * MS)
    assert recovery.missing_ranges == []
    assert recovery.take() == [GiveUp(10 * (RUNS_MAX + 1) + 3, 1)]


def test_a_new_numbering_voids_everything() -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.lost(1, 5, 0)
    recovery.take()
    recovery.reset(MS)
    assert recovery.take() == [Cancel(1), Cancel(2)]
    assert (recovery.state, recovery.deadline_ns) == (State.IN_SYNC, NEVER)
    # What still answers belongs to the old numbers.
    recovery.missing(10, 12, 2, 2 * MS)
    recovery.arrived(1, 10, 12, 2 * MS)
    assert recovery.missing_ranges == [(10, 12)]
    # A numbering whose reset was not told is noticed by its epoch.
    recovery.take()
    recovery.missing(10, 12, 3, 3 * MS)
    assert recovery.take() == [Cancel(3), Ask(4, SERVICE, 10, 12, 3)]


def test_an_empty_range_is_the_callers_fault() -> None:
    recovery = make()
    with pytest.raises(UsageError):
        recovery.missing(10, 10, 1, 0)


# -- reject reasons -----------------------------------------------------------------------------


def test_every_reason_has_a_reaction() -> None:
    assert set(RETRANSMISSION) == set(RetransReject) - {RetransReject.NONE}
    assert set(REFRESH) == set(RefreshReject) - {RefreshReject.NONE}


@pytest.mark.parametrize("reason", [RetransReject.INVALID_RANGE, RetransReject.NO_LONGER_AVAILABLE])
def test_what_cannot_be_had_is_abandoned_without_a_word(reason: int) -> None:
    recovery = make()
    recovery.missing(10, 20, 1, 0)
    recovery.take()
    recovery.rejected(1, reason, MS)
    assert recovery.take() == [GiveUp(20, 1)]
    recovery.lost(10, 20, 2 * MS)
    assert recovery.take() == [AskRefresh(2, SERVICE)]


@pytest.mark.parametrize("reason", [1, 6, 7, 99])
def test_the_operator_is_told_once_of_what_only_he_can_mend(reason: int) -> None:
    recovery = make()
    for first in (10, 20):
        recovery.missing(first, first + 5, 1, 0)
    recovery.take()
    recovery.rejected(1, reason, MS)
    alert, given_up = recovery.take()
    assert isinstance(alert, Alert)
    assert str(SERVICE) in alert.text
    assert f"({reason})" in alert.text
    assert given_up == GiveUp(15, 1)
    recovery.rejected(2, reason, MS)
    assert recovery.take() == [GiveUp(25, 1)]


def test_too_wide_a_range_is_halved_at_once_and_stays_so() -> None:
    recovery = make(request_packets_max=8)
    recovery.missing(1, 9, 1, 0)
    recovery.take()
    recovery.rejected(1, RetransReject.OVER_THRESHOLD, MS)
    assert asks(recovery) == [(1, 5), (5, 9)]
    recovery.missing(11, 19, 1, MS)
    assert asks(recovery) == [(11, 15), (15, 19)]


def test_a_single_packet_over_the_threshold_is_abandoned() -> None:
    recovery = make()
    recovery.missing(1, 2, 1, 0)
    recovery.take()
    recovery.rejected(1, RetransReject.OVER_THRESHOLD, MS)
    assert recovery.take() == [GiveUp(2, 1)]


def test_too_many_today_is_waited_out_once_and_then_closes_the_quota() -> None:
    recovery = make()
    for first in (10, 20, 30):
        recovery.missing(first, first + 5, 1, 0)
    recovery.take()
    for request_id in (1, 2):
        recovery.rejected(request_id, RetransReject.TOO_MANY_TODAY, MS)
    assert recovery.take() == []
    recovery.missing(40, 45, 1, 2 * MS)
    assert recovery.take() == []
    # One sent before the pause is refused after it: no second word.
    again_ns = recovery.deadline_ns
    recovery.rejected(3, RetransReject.TOO_MANY_TODAY, again_ns + MS)
    assert asks(recovery) == [(10, 15), (20, 25), (30, 35), (40, 45)]
    recovery.rejected(4, RetransReject.TOO_MANY_TODAY, again_ns + 2 * MS)
    alert, given_up = recovery.take()
    assert isinstance(alert, Alert)
    assert "today" in alert.text
    assert given_up == GiveUp(15, 1)
    recovery.rejected(5, RetransReject.TOO_MANY_TODAY, again_ns + 2 * MS)
    assert recovery.take() == [GiveUp(25, 1)]
    # Nothing more today, and everything is abandoned at once.
    recovery.missing(50, 55, 1, again_ns + 3 * MS)
    assert recovery.take() == []
    recovery.arrived(6, 30, 35, again_ns + 3 * MS)
    recovery.arrived(7, 40, 45, again_ns + 3 * MS)
    assert recovery.take() == [GiveUp(55, 1)]
    recovery.closed(60, again_ns + 4 * MS)
    recovery.missing(60, 65, 1, DAY_NS)
    assert asks(recovery) == [(60, 65)]


def test_a_closed_quota_reaches_what_waits_for_a_back_off() -> None:
    recovery = make(requests_per_day=2, recovery_wait_us=60_000_000)
    recovery.missing(10, 12, 1, 0)
    recovery.tick(200 * MS)
    recovery.take()
    recovery.missing(20, 22, 1, 201 * MS)
    assert recovery.take() == [Ask(2, SERVICE, 20, 22, 1)]
    recovery.tick(202 * MS)
    assert recovery.take() == [GiveUp(12, 1)]


def test_a_reset_opens_a_closed_quota() -> None:
    quota = Quota(0, 0, 16)
    recovery = make(quota=quota)
    quota.closed = True
    recovery.reset(0)
    recovery.missing(10, 12, 1, 0)
    assert asks(recovery) == [(10, 12)]


# -- refresh ------------------------------------------------------------------------------------


def lossy(**settings: int) -> Recovery:
    """A recovery that has just lost 10 to 19; its refresh request, number 1, is taken."""
    recovery = make(**settings)
    recovery.lost(10, 20, 0)
    assert recovery.take() == [AskRefresh(1, SERVICE)]
    return recovery


def test_loss_without_a_refresh_server_is_stale_at_once() -> None:
    recovery = make(refresh=False)
    recovery.lost(10, 20, 0)
    assert (recovery.state, recovery.take(), recovery.deadline_ns) == (State.STALE, [], NEVER)
    recovery.want_snapshot(0)
    assert recovery.take() == []


def test_a_snapshot_heals_when_it_reaches_every_loss() -> None:
    recovery = lossy()
    recovery.lost(30, 35, MS)
    assert recovery.lost_ranges == [(10, 20), (30, 35)]
    assert recovery.take() == []
    assert not recovery.snapshot(33, 2 * MS)
    assert recovery.snapshot(34, 3 * MS)
    assert (recovery.state, recovery.lost_ranges) == (State.IN_SYNC, [])
    assert not recovery.snapshot(50, 4 * MS)


def test_an_unasked_snapshot_heals_while_refreshing_and_while_stale() -> None:
    refreshing, stale = lossy(), make(refresh=False)
    stale.lost(10, 20, 0)
    assert refreshing.snapshot(19, MS)
    assert refreshing.take() == [Cancel(1)]
    stale.snapshot_began(MS)
    assert stale.snapshot(19, MS)
    assert {refreshing.state, stale.state} == {State.IN_SYNC}


def test_retransmission_goes_on_while_refreshing() -> None:
    recovery = lossy()
    recovery.missing(30, 32, 1, MS)
    assert asks(recovery) == [(30, 32)]
    recovery.arrived(2, 30, 31, 2 * MS)
    assert recovery.state is State.REFRESHING
    assert recovery.snapshot(25, 3 * MS)
    assert recovery.state is State.REQUESTING


def test_too_old_a_snapshot_is_not_enough_and_is_asked_for_again() -> None:
    recovery = lossy()
    recovery.refresh_accepted(1, MS)
    recovery.snapshot_began(2 * MS)
    assert not recovery.snapshot(18, 3 * MS)
    assert recovery.state is State.REFRESHING
    again_ns = recovery.deadline_ns
    assert 503 * MS <= again_ns <= 1003 * MS
    recovery.tick(again_ns)
    assert recovery.take() == [AskRefresh(2, SERVICE)]


def test_a_snapshot_that_begins_in_the_pause_is_waited_for_instead() -> None:
    recovery = lossy()
    recovery.snapshot_failed("a gap", MS)
    recovery.snapshot_began(2 * MS)
    assert recovery.deadline_ns == 10 * SECOND + 2 * MS
    assert recovery.snapshot(30, 3 * MS)
    assert recovery.counts["refreshes"] == 1


def test_broken_snapshots_use_up_the_tries() -> None:
    recovery = lossy(refresh_tries=3)
    now_ns = 0
    for _ in range(3):
        assert recovery.state is State.REFRESHING
        now_ns += MS
        recovery.snapshot_began(now_ns)
        recovery.snapshot_failed("no end", now_ns)
    assert recovery.state is State.STALE
    assert recovery.deadline_ns == now_ns + 60 * SECOND


def test_refreshes_time_out_rest_and_are_tried_again() -> None:
    recovery = lossy(refresh_tries=2)
    recovery.refresh_accepted(1, 5 * SECOND)
    recovery.tick(15 * SECOND)
    assert recovery.take() == [AskRefresh(2, SERVICE)]
    recovery.snapshot_began(16 * SECOND)
    # A second beginning, or a late word of the server, does not move the bound.
    recovery.snapshot_began(20 * SECOND)
    recovery.refresh_accepted(2, 20 * SECOND)
    recovery.refresh_accepted(2, 20 * SECOND)
    assert recovery.deadline_ns == 26 * SECOND
    recovery.tick(26 * SECOND)
    assert (recovery.state, recovery.take()) == (State.STALE, [])
    recovery.lost(30, 40, 27 * SECOND)
    assert (recovery.state, recovery.take()) == (State.STALE, [])
    recovery.tick(86 * SECOND)
    assert (recovery.state, recovery.take()) == (State.REFRESHING, [AskRefresh(3, SERVICE)])


def test_an_unanswered_refresh_is_cancelled_when_it_is_repeated() -> None:
    recovery = lossy()
    recovery.tick(10 * SECOND)
    assert recovery.take() == [Cancel(1), AskRefresh(2, SERVICE)]
    recovery.refresh_rejected(1, RefreshReject.PERMISSION, 11 * SECOND)
    assert (recovery.state, recovery.counts["late"]) == (State.REFRESHING, 1)


@pytest.mark.parametrize("reason", [1, 2, 3, 4, 7, 99])
def test_a_refresh_server_that_will_not_is_told_to_the_operator_once(reason: int) -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, reason, MS)
    (alert,) = recovery.take()
    assert isinstance(alert, Alert)
    assert recovery.state is State.STALE
    recovery.tick(60 * SECOND + MS)
    assert recovery.take() == [AskRefresh(2, SERVICE)]
    recovery.refresh_rejected(2, reason, 61 * SECOND)
    assert recovery.take() == []


def test_no_snapshot_yet_is_asked_for_again_soon() -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, RefreshReject.NO_DATA, MS)
    assert recovery.state is State.REFRESHING
    recovery.tick(recovery.deadline_ns)
    assert recovery.take() == [AskRefresh(2, SERVICE)]


def test_too_many_refreshes_today_ends_asking_until_the_next_day() -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, RefreshReject.TOO_MANY_TODAY, MS)
    assert recovery.state is State.STALE
    recovery.take()
    recovery.refresh_up(2 * MS)
    recovery.want_snapshot(2 * MS)
    assert recovery.take() == []
    assert recovery.deadline_ns == DAY_NS
    assert recovery.snapshot(30, 3 * MS)
    recovery.want_snapshot(4 * MS)
    recovery.lost(40, 50, 4 * MS)
    assert (recovery.state, recovery.take()) == (State.STALE, [])
    recovery.tick(DAY_NS)
    assert recovery.take() == [AskRefresh(2, SERVICE)]


def test_a_refusal_does_not_disturb_a_snapshot_under_way() -> None:
    recovery = lossy()
    recovery.snapshot_began(MS)
    recovery.refresh_rejected(1, RefreshReject.NO_DATA, 2 * MS)
    assert recovery.deadline_ns == 10 * SECOND + MS
    assert recovery.snapshot(20, 3 * MS)


def test_a_refresh_server_that_comes_back_is_asked_at_once() -> None:
    recovery = lossy(refresh_tries=1)
    recovery.refresh_up(MS)
    assert recovery.take() == [Cancel(1), AskRefresh(2, SERVICE)]
    # It has answered: nothing is repeated.
    recovery.refresh_accepted(2, 2 * MS)
    recovery.refresh_up(3 * MS)
    assert recovery.take() == []
    recovery.tick(20 * SECOND)
    assert recovery.state is State.STALE
    recovery.refresh_up(21 * SECOND)
    assert (recovery.state, recovery.take()) == (State.REFRESHING, [AskRefresh(3, SERVICE)])


def test_a_wanted_snapshot_is_asked_for_without_a_change_of_state() -> None:
    recovery = make(refresh_tries=1)
    recovery.want_snapshot(SECOND)
    recovery.want_snapshot(SECOND)
    assert (recovery.state, recovery.take()) == (State.IN_SYNC, [AskRefresh(1, SERVICE)])
    assert not recovery.snapshot(30, SECOND + MS)
    recovery.take()
    # A storm of newcomers makes one request a second.
    recovery.want_snapshot(SECOND + 2 * MS)
    recovery.want_snapshot(SECOND + 3 * MS)
    assert recovery.take() == []
    assert recovery.deadline_ns == 2 * SECOND
    recovery.tick(2 * SECOND)
    assert recovery.take() == [AskRefresh(2, SERVICE)]
    recovery.tick(12 * SECOND)
    assert (recovery.state, recovery.take(), recovery.deadline_ns) == (
        State.IN_SYNC,
        [Cancel(2)],
        NEVER,
    )


def test_a_loss_joins_the_refresh_that_was_wanted() -> None:
    recovery = make()
    recovery.want_snapshot(SECOND)
    recovery.take()
    recovery.lost(10, 20, SECOND + MS)
    assert (recovery.state, recovery.take()) == (State.REFRESHING, [])


def test_every_counter_is_described_and_counted_from_nothing() -> None:
    assert set(make().counts) == set(COUNTS)
    assert all(COUNTS.values())


# -- economy ------------------------------------------------------------------------------------


def world(seed: int, faults: Faults | None = None, **settings: int) -> World:
    return World(make(**settings), faults or Faults(), seed)


def rain(world: World, rate: float, seconds: int, answer: int = 1) -> int:
    """Lose that share of a packet a millisecond on both lines; the number of runs lost."""
    chance = random.Random(world.seed + 1)
    runs = begin = 0
    for number in range(world.newest + 1, world.newest + 1 + seconds * 1000):
        world.run(world.now_ns + MS)
        world.newest = number
        if chance.random() < rate:
            begin = begin or number
        elif begin:
            world.lose(begin, number)
            runs, begin = runs + 1, 0
    return runs


def test_one_percent_lost_costs_one_request_a_run_and_not_a_packet_too_many() -> None:
    trial = world(1)
    runs = rain(trial, 0.01, 10)
    trial.run(trial.now_ns + SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked, trial.refreshes) == (set(), runs, 0)
    assert trial.asked_numbers == len(trial.fetched)


def test_twenty_percent_lost_is_recovered_without_a_storm() -> None:
    trial = world(2)
    runs = rain(trial, 0.2, 10)
    trial.run(trial.now_ns + SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked) == (set(), runs)


def test_a_slow_server_and_a_slow_rate_make_no_storm_either() -> None:
    trial = world(3, Faults(answer_ms=20, stall=0.05, partial=0.05), requests_per_s=200)
    runs = rain(trial, 0.2, 5)
    trial.run(trial.now_ns + 30 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert trial.asked <= 1.5 * runs
    assert trial.asked <= 200 * 6 + 20


def test_more_loss_than_the_quota_allows_wastes_no_request() -> None:
    trial = world(6, requests_per_s=20)
    rain(trial, 0.2, 5)
    trial.run(trial.now_ns + 5 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert 20 * 5 <= trial.asked <= 20 * 6 + 20
    # Each request brought what it asked for, in time: none was for a hole about to be given up.
    assert trial.recovery.counts["late"] == trial.recovery.counts["cancelled"] == 0
    assert len(trial.fetched) == trial.asked_numbers


@pytest.mark.parametrize("reason", [2, 3, 4, 5])
def test_a_blackout_that_nobody_can_fill_is_one_refresh(reason: int) -> None:
    trial = world(4, Faults(refuse=1.0, reasons=(reason,)), request_packets_max=100)
    trial.lose(1, 10_001)
    trial.run(SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert trial.lost == set(range(1, 10_001))
    assert trial.refreshes == 1
    assert trial.asked <= 16 * 9


def test_a_blackout_that_the_server_fills_is_one_set_of_requests() -> None:
    trial = world(5, request_packets_max=100)
    trial.lose(1, 2_001)
    trial.run(SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert (trial.lost, trial.asked, trial.asked_numbers) == (set(), 20, 2_000)


# -- convergence --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_after_healing_everything_is_in_sync_again(seed: int) -> None:
    print(f"seed {seed}: pytest tests/unit/test_recovery_core.py -k 'after_healing and {seed}'")
    chance = random.Random(seed)

    def draw(most: float) -> float:
        return chance.choice((0.0, chance.random() * most))

    faults = Faults(
        refuse=draw(0.5),
        stall=draw(0.5),
        partial=draw(0.5),
        disconnect=draw(0.3),
        refresh_refuse=draw(0.8),
        refresh_stall=draw(0.8),
        snapshot_fail=draw(0.8),
        snapshot_old=draw(0.8),
        answer_ms=chance.choice((1, 10, 200)),
        refresh_ms=chance.choice((10, 1000)),
    )
    trial = world(
        seed,
        faults,
        request_packets_max=chance.choice((1, 3, 1000)),
        outstanding_max=chance.choice((1, 2, 16)),
        requests_per_s=chance.choice((0, 20, 1000)),
        requests_per_day=chance.choice((0, 0, 50)),
        refresh_timeout_us=2_000_000,
        refresh_retry_us=10_000_000,
    )
    rain(trial, draw(0.2), 3)
    trial.faults = Faults()
    # The worst: a snapshot's time-out, a rest, and one more try.
    trial.run(trial.now_ns + 15 * SECOND)
    assert trial.recovery.state is State.IN_SYNC
    assert not trial.holes
    assert trial.recovery.requested == []
    trial.run(trial.now_ns + 86_400 * SECOND)
    lost = len(trial.lost)
    rain(trial, 0.01, 1)
    trial.run(trial.now_ns + SECOND)
    assert (trial.recovery.state, len(trial.lost)) == (State.IN_SYNC, lost)
