"""Recovery's refreshes: when a snapshot is asked for, awaited, given up, and when it heals."""

import random

import pytest

from feedhandler.codecs.times import DAY_NS
from feedhandler.retrans.actions import Alert, AskRefresh, Cancel, NoSnapshot
from feedhandler.retrans.healing import attempt_us
from feedhandler.retrans.protocol import RefreshReject
from feedhandler.retrans.quota import Quota
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import State
from tests.support.recovery import MS, NEVER, SECOND, SERVICE, UTC, asks, make
from tests.support.seeds import drawn


def lossy(**settings: int) -> Recovery:
    """A recovery that has just lost 10 to 19; its refresh request, number 1, is taken."""
    recovery = make(**settings)
    recovery.lost(10, 20, 0)
    assert recovery.pop_actions() == [AskRefresh(1, SERVICE)]
    return recovery


def test_loss_without_a_refresh_server_is_stale_at_once() -> None:
    recovery = make(refresh=False)
    recovery.lost(10, 20, 0)
    assert (recovery.state, recovery.pop_actions(), recovery.deadline_ns) == (
        State.STALE,
        [],
        NEVER,
    )
    recovery.want_snapshot(0)
    assert recovery.pop_actions() == [NoSnapshot("no refresh")]


def test_a_snapshot_heals_when_it_reaches_every_loss() -> None:
    recovery = lossy()
    recovery.lost(30, 35, MS)
    assert recovery.lost_ranges == [(10, 20), (30, 35)]
    assert recovery.pop_actions() == []
    assert not recovery.snapshot(33, 2 * MS)
    assert recovery.snapshot(34, 3 * MS)
    assert (recovery.state, recovery.lost_ranges) == (State.IN_SYNC, [])
    assert not recovery.snapshot(50, 4 * MS)


def test_an_unasked_snapshot_heals_while_refreshing_and_while_stale() -> None:
    refreshing, stale = lossy(), make(refresh=False)
    stale.lost(10, 20, 0)
    assert refreshing.snapshot(19, MS)
    assert refreshing.pop_actions() == [Cancel(1)]
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
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]


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
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]
    recovery.snapshot_began(16 * SECOND)
    # A second beginning, or a late word of the server, does not move the bound.
    recovery.snapshot_began(20 * SECOND)
    recovery.refresh_accepted(2, 20 * SECOND)
    recovery.refresh_accepted(2, 20 * SECOND)
    assert recovery.deadline_ns == 26 * SECOND
    recovery.tick(26 * SECOND)
    assert (recovery.state, recovery.pop_actions()) == (State.STALE, [])
    recovery.lost(30, 40, 27 * SECOND)
    assert (recovery.state, recovery.pop_actions()) == (State.STALE, [])
    recovery.tick(86 * SECOND)
    assert (recovery.state, recovery.pop_actions()) == (State.REFRESHING, [AskRefresh(3, SERVICE)])


def test_an_unanswered_refresh_is_cancelled_when_it_is_repeated() -> None:
    recovery = lossy()
    recovery.tick(10 * SECOND)
    assert recovery.pop_actions() == [Cancel(1), AskRefresh(2, SERVICE)]
    recovery.refresh_rejected(1, RefreshReject.PERMISSION, 11 * SECOND)
    assert (recovery.state, recovery.counts["late"]) == (State.REFRESHING, 1)


@pytest.mark.parametrize("reason", [1, 2, 3, 4, 7, 99])
def test_a_refresh_server_that_refuses_is_reported_to_the_operator_once(reason: int) -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, reason, MS)
    (alert,) = recovery.pop_actions()
    assert isinstance(alert, Alert)
    assert recovery.state is State.STALE
    recovery.tick(60 * SECOND + MS)
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]
    recovery.refresh_rejected(2, reason, 61 * SECOND)
    assert recovery.pop_actions() == []


def test_no_snapshot_yet_is_asked_for_again_soon() -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, RefreshReject.NO_DATA, MS)
    assert recovery.state is State.REFRESHING
    recovery.tick(recovery.deadline_ns)
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]


def test_too_many_refreshes_today_ends_asking_until_the_next_day() -> None:
    recovery = lossy()
    recovery.refresh_rejected(1, RefreshReject.TOO_MANY_TODAY, MS)
    assert recovery.state is State.STALE
    recovery.pop_actions()
    recovery.refresh_up(2 * MS)
    recovery.want_snapshot(2 * MS)
    assert recovery.pop_actions() == [NoSnapshot("resting")]
    assert recovery.deadline_ns == DAY_NS
    assert recovery.snapshot(30, 3 * MS)
    recovery.want_snapshot(4 * MS)
    assert recovery.pop_actions() == [NoSnapshot("resting")]
    recovery.lost(40, 50, 4 * MS)
    assert (recovery.state, recovery.pop_actions()) == (State.STALE, [])
    recovery.tick(DAY_NS)
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]


def test_a_refusal_does_not_disturb_a_snapshot_under_way() -> None:
    recovery = lossy()
    recovery.snapshot_began(MS)
    recovery.refresh_rejected(1, RefreshReject.NO_DATA, 2 * MS)
    assert recovery.deadline_ns == 10 * SECOND + MS
    assert recovery.snapshot(20, 3 * MS)


def test_a_refresh_server_that_comes_back_is_asked_at_once() -> None:
    recovery = lossy(refresh_tries=1)
    recovery.refresh_up(MS)
    assert recovery.pop_actions() == [Cancel(1), AskRefresh(2, SERVICE)]
    # It has answered: nothing is repeated.
    recovery.refresh_accepted(2, 2 * MS)
    recovery.refresh_up(3 * MS)
    assert recovery.pop_actions() == []
    recovery.tick(20 * SECOND)
    assert recovery.state is State.STALE
    recovery.refresh_up(21 * SECOND)
    assert (recovery.state, recovery.pop_actions()) == (State.REFRESHING, [AskRefresh(3, SERVICE)])


def test_a_wanted_snapshot_is_asked_for_without_a_change_of_state() -> None:
    recovery = make(refresh_tries=1)
    recovery.want_snapshot(SECOND)
    recovery.want_snapshot(SECOND)
    assert (recovery.state, recovery.pop_actions()) == (State.IN_SYNC, [AskRefresh(1, SERVICE)])
    assert not recovery.snapshot(30, SECOND + MS)
    recovery.pop_actions()
    # A storm of newcomers makes one request a second.
    recovery.want_snapshot(SECOND + 2 * MS)
    recovery.want_snapshot(SECOND + 3 * MS)
    assert recovery.pop_actions() == []
    assert recovery.deadline_ns == 2 * SECOND
    recovery.tick(2 * SECOND)
    assert recovery.pop_actions() == [AskRefresh(2, SERVICE)]
    recovery.tick(12 * SECOND)
    assert (recovery.state, recovery.pop_actions(), recovery.deadline_ns) == (
        State.IN_SYNC,
        [NoSnapshot("timed out"), Cancel(2)],
        NEVER,
    )


def test_a_loss_joins_the_refresh_that_was_wanted() -> None:
    recovery = make()
    recovery.want_snapshot(SECOND)
    recovery.pop_actions()
    recovery.lost(10, 20, SECOND + MS)
    assert (recovery.state, recovery.pop_actions()) == (State.REFRESHING, [])


# -- attempts are bounded -----------------------------------------------------------------------


def test_a_server_that_comes_and_goes_without_a_word_leaves_the_service_stale() -> None:
    recovery = lossy()
    stale_ns = 0
    for second in range(1, 200):
        recovery.tick(second * SECOND)
        recovery.refresh_up(second * SECOND)
        if recovery.state is State.STALE:
            stale_ns += SECOND
    # Three tries of ten seconds, the same once more since the server had come back, then the rest
    # of a minute, and all over again.
    assert 55 * SECOND <= stale_ns <= 85 * SECOND
    assert recovery.counts["rests"] >= 3


def test_asking_again_after_a_reconnect_keeps_the_try_and_its_time() -> None:
    recovery = lossy(refresh_tries=2)
    recovery.refresh_up(9 * SECOND)
    assert recovery.pop_actions() == [Cancel(1), AskRefresh(2, SERVICE)]
    assert recovery.deadline_ns == 10 * SECOND
    recovery.tick(10 * SECOND)
    recovery.tick(20 * SECOND)
    assert recovery.state is State.STALE


@drawn(4)
def test_no_attempt_lasts_longer_than_its_bound_whatever_a_server_does(seed: int) -> None:
    chance = random.Random(seed)
    recovery = lossy()
    bound_ns = attempt_us(RecoverySettings()) * 1000
    began_ns, now_ns, request_id = 0, 0, 1
    while now_ns < 600 * SECOND:
        now_ns += chance.randint(1, 4000) * MS
        recovery.tick(now_ns)
        for action in recovery.pop_actions():
            if isinstance(action, AskRefresh):
                request_id = action.request_id
        before = recovery.state
        name, *about = chance.choice(
            (
                ("refresh_up",),
                ("refresh_accepted", request_id),
                ("snapshot_began",),
                ("snapshot", 5),
                ("lost", 30, 31),
            )
        )
        getattr(recovery, name)(*about, now_ns)
        if recovery.state is State.STALE:
            began_ns = 0
        elif before is State.STALE or not began_ns:
            began_ns = now_ns
        elif recovery.state is State.REFRESHING:
            assert now_ns - began_ns <= bound_ns + 4 * SECOND
    assert recovery.counts["rests"] > 1


# -- who wants a snapshot is told where there is none -------------------------------------------


def test_a_wanted_snapshot_that_is_refused_is_reported_once() -> None:
    recovery = make()
    recovery.want_snapshot(SECOND)
    recovery.want_snapshot(SECOND)
    recovery.refresh_rejected(1, RefreshReject.PERMISSION, SECOND + MS)
    alert, refusal = recovery.pop_actions()[1:]
    assert isinstance(alert, Alert)
    assert refusal == NoSnapshot("refused")
    assert recovery.counts["wants_refused"] == 1


def test_a_wanted_snapshot_that_keeps_failing_is_reported() -> None:
    recovery = make(refresh_tries=1)
    recovery.want_snapshot(SECOND)
    recovery.snapshot_began(2 * SECOND)
    recovery.snapshot_failed("gap", 3 * SECOND)
    assert NoSnapshot("failed") in recovery.pop_actions()


def test_a_snapshot_wanted_while_another_is_tried_for_is_answered_with_it() -> None:
    recovery = lossy(refresh_tries=1)
    recovery.want_snapshot(MS)
    assert recovery.pop_actions() == []
    recovery.tick(10 * SECOND)
    assert recovery.pop_actions() == [NoSnapshot("timed out"), Cancel(1)]
    assert recovery.state is State.STALE
    recovery.want_snapshot(11 * SECOND)
    assert recovery.pop_actions() == [NoSnapshot("resting")]
    recovery.tick(70 * SECOND)
    recovery.tick(80 * SECOND)
    # None has been wanted since.
    assert recovery.counts["wants_refused"] == 2


def test_a_snapshot_that_comes_is_no_refusal() -> None:
    healed, satisfied = lossy(), make()
    for recovery in (healed, satisfied):
        recovery.want_snapshot(SECOND)
        recovery.snapshot(30, 2 * SECOND)
        recovery.tick(100 * SECOND)
        recovery.reset(100 * SECOND)
        assert not any(isinstance(each, NoSnapshot) for each in recovery.pop_actions())


def test_a_new_epoch_ends_what_was_wanted() -> None:
    recovery = make()
    recovery.want_snapshot(SECOND)
    recovery.reset(2 * SECOND)
    assert NoSnapshot("reset") in recovery.pop_actions()


def test_without_a_refresh_server_the_cycle_is_waited_for_and_no_request_is_counted() -> None:
    recovery = Recovery(
        SERVICE,
        RecoverySettings(refresh_tries=1),
        quota=Quota(0, 0, 1, UTC),
        refresh=True,
        refresh_server=False,
        seed=1,
        trading_day=UTC,
    )
    recovery.lost(10, 20, 0)
    assert (recovery.state, recovery.pop_actions()) == (State.REFRESHING, [])
    assert recovery.deadline_ns == 10 * SECOND
    recovery.tick(10 * SECOND)
    assert recovery.state is State.STALE
    recovery.snapshot_began(11 * SECOND)
    assert recovery.snapshot(30, 12 * SECOND)
    assert (recovery.pop_actions(), recovery.counts["refreshes"]) == ([], 0)
