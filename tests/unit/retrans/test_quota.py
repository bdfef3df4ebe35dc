"""A server's quota: rate, day, slots, turns, what the server says; back-off; settings."""

import msgspec
import pytest

from feedhandler.codecs.trading_day import TradingDay
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.quota import POLL_NS, SECOND_NS, Quota
from feedhandler.retrans.settings import RECOVERY_BOUNDS, RecoverySettings
from tests.support.recovery import UTC

DAY_NS = 86_400 * SECOND_NS


def test_no_second_sees_more_than_its_requests_and_a_burst() -> None:
    quota = Quota(100, 0, 1 << 20, UTC)
    taken = []
    now_ns = SECOND_NS
    while now_ns < 4 * SECOND_NS:
        while quota.try_acquire(1, now_ns):
            taken.append(now_ns)
        ready_ns = quota.ready_ns(now_ns)
        assert ready_ns > now_ns
        now_ns = ready_ns
    assert 300 <= len(taken) <= 310
    for at in range(len(taken) - 110):
        assert taken[at + 110] - taken[at] >= SECOND_NS - SECOND_NS // 100


def test_a_slow_rate_lets_one_request_through_at_a_time() -> None:
    quota = Quota(2, 0, 16, UTC)
    assert quota.try_acquire(1, 0)
    assert not quota.try_acquire(1, 0)
    assert quota.ready_ns(0) == SECOND_NS // 2
    assert not quota.try_acquire(1, SECOND_NS // 2 - 1)
    assert quota.try_acquire(1, SECOND_NS // 2)


def test_without_a_limit_only_the_slots_count() -> None:
    quota = Quota(0, 0, 3, UTC)
    assert [quota.try_acquire(1, 0) for _ in range(4)] == [True, True, True, False]
    assert quota.ready_ns(0) == POLL_NS
    quota.release()
    assert quota.try_acquire(1, 0)


def test_slots_are_given_in_turn() -> None:
    quota = Quota(0, 0, 2, UTC)
    assert quota.try_acquire(1, 0)
    assert quota.try_acquire(1, 0)
    assert not quota.try_acquire(1, 0)
    assert not quota.try_acquire(2, 0)
    assert not quota.try_acquire(3, 0)
    quota.release()
    # 1 waits longest, so 2 and 3 must leave it its slot, and are refused.
    assert not quota.try_acquire(3, 0)
    assert not quota.try_acquire(2, 0)
    assert quota.try_acquire(1, 0)
    quota.release()
    # It has had its turn: now it stands behind the others.
    assert not quota.try_acquire(1, 0)
    assert list(quota.waiting) == [2, 3, 1]
    quota.withdraw(2)
    assert quota.try_acquire(3, 0)


def test_the_day_is_used_up_until_it_turns_and_a_clock_set_back_turns_nothing() -> None:
    evening = TradingDay("America/New_York", "18:00")
    noon_ns = 1_700_000_000 * SECOND_NS
    turns_ns = evening.turns_ns(noon_ns)
    quota = Quota(0, 2, 16, evening)
    assert quota.try_acquire(1, noon_ns)
    assert quota.try_acquire(1, noon_ns)
    assert quota.exhausted(turns_ns - 1)
    assert not quota.try_acquire(1, turns_ns - 1)
    assert not quota.exhausted(turns_ns)
    assert quota.try_acquire(1, turns_ns)
    assert quota.try_acquire(1, noon_ns)
    assert not quota.try_acquire(1, noon_ns)
    assert quota.used_today == 2


def test_a_refusal_pauses_once_and_the_second_closes() -> None:
    quota = Quota(0, 0, 16, UTC)
    assert quota.try_acquire(1, 1000)
    assert not quota.refuse(1000, 2000, 500)
    assert quota.paused_until_ns == 2500
    assert not quota.try_acquire(1, 2000)
    assert quota.ready_ns(2000) == 2500
    # Sent before the pause: no second word.
    assert not quota.refuse(1000, 2600, 500)
    assert quota.try_acquire(1, 2600)
    assert quota.refuse(2600, 2700, 500)
    assert quota.exhausted(2700)
    quota.reopen()
    assert not quota.exhausted(2700)


def test_what_ended_the_day_is_taken_back_by_the_operator() -> None:
    quota = Quota(0, 2, 16, UTC)
    assert not quota.resume(0)
    assert (quota.try_acquire(1, 0), quota.try_acquire(1, 0), quota.try_acquire(1, 0)) == (
        True,
        True,
        False,
    )
    assert quota.closed_until_ns(0) == DAY_NS
    assert quota.resume(1)
    assert quota.closed_until_ns(1) == 0
    assert quota.used_today == 0
    quota.refuse(1, 2, 500)
    quota.refuse(502, 503, 500)
    assert quota.closed_until_ns(504) == DAY_NS
    assert quota.resume(504)
    assert quota.try_acquire(1, 504)
    # Two words are needed again.
    assert not quota.refuse(504, 505, 500)


def test_an_accepted_request_after_the_pause_forgets_the_refusal() -> None:
    quota = Quota(0, 0, 16, UTC)
    quota.refuse(1000, 2000, 500)
    quota.accept(1900)
    assert quota.paused_until_ns == 2500
    quota.accept(2500)
    assert quota.paused_until_ns == 0
    assert not quota.refuse(2600, 2700, 500)


def test_what_was_too_wide_is_halved_until_a_new_epoch() -> None:
    quota = Quota(0, 0, 16, UTC)
    assert quota.width(1000) == 1000
    quota.narrow(1000)
    quota.narrow(1000)
    assert quota.width(1000) == 500
    assert quota.width(100) == 100
    quota.narrow(1)
    assert quota.width(1000) == 1
    quota.reopen()
    assert quota.width(1000) == 1000


def test_waits_double_up_to_the_bound_and_are_jittered() -> None:
    backoff = Backoff(100, 1000, seed=3)
    for tries, whole_us in ((1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (500, 1000)):
        waits = [backoff.delay_ns(tries) for _ in range(100)]
        assert whole_us * 500 <= min(waits) < max(waits) <= whole_us * 1000


def test_the_same_seed_gives_the_same_waits() -> None:
    waits = [[Backoff(100, 1000, seed).delay_ns(1) for _ in range(3)] for seed in (1, 1, 2)]
    assert waits[0] == waits[1] != waits[2]


@pytest.mark.parametrize("name", RECOVERY_BOUNDS)
def test_settings_outside_their_bounds_are_refused(name: str) -> None:
    least, most = RECOVERY_BOUNDS[name]
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=name):
            RecoverySettings(**{name: value})
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({name: value}, RecoverySettings)


def test_every_recovery_setting_has_bounds() -> None:
    assert set(RECOVERY_BOUNDS) == set(RecoverySettings.__struct_fields__)


@pytest.mark.parametrize(
    "wrong",
    [{"heartbeat_us": 6_000_000}, {"reconnect_us": 6_000_000}],
    ids=lambda wrong: str(wrong),
)
def test_what_must_be_shorter_is(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must not be longer"):
        RecoverySettings(**wrong)
