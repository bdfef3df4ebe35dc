"""The window: every outcome, the order after a lost connection, the bounds."""

import random

import pytest

from feedhandler.amqp.queueing.unsettled_map import (
    RETURNED_SHARE,
    TRIES_MAX,
    VERDICTS,
    Outcome,
    OutgoingMessage,
    UnsettledMap,
    Verdict,
)

RETRY_NS = 1_000
FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.ACCEPTED]


def window(messages: int = 100, size: int = 1 << 20) -> UnsettledMap:
    return UnsettledMap(messages, size, lambda tries: tries * RETRY_NS)


def outgoing(number: int, size: int = 10) -> OutgoingMessage:
    return OutgoingMessage(bytes([number % 256]) * size, 104, number, number + 1)


def filled(count: int, messages: int = 100) -> UnsettledMap:
    """A window with `count` messages on their way, numbered from 1."""
    made = window(messages)
    assert [made.add(outgoing(number), 0) for number in range(1, count + 1)] == [
        *range(1, count + 1)
    ]
    return made


def again(made: UnsettledMap) -> list[int]:
    """The numbers to send again, taken."""
    numbers = []
    while (number := made.next_again()) != 0:
        numbers.append(number)
    return numbers


def test_every_outcome_has_its_verdict_and_only_accepted_is_success() -> None:
    assert set(VERDICTS) == set(Outcome)
    confirmed = [outcome for outcome in Outcome if VERDICTS[outcome] is Verdict.CONFIRM]
    assert confirmed == [Outcome.ACCEPTED]


def test_what_is_confirmed_leaves_the_window_in_any_order() -> None:
    made = filled(5)
    assert made.bytes == 50
    assert all(made.confirm(number, 0) for number in (3, 1, 5))
    assert list(made.held) == [2, 4]
    assert made.bytes == 20
    assert made.confirmed == 3


def test_a_confirmation_of_what_is_not_there_changes_nothing() -> None:
    made = filled(1)
    assert not made.confirm(7, 0)
    assert made.confirm(1, 0)
    assert not made.confirm(1, 0)
    assert (made.confirmed, made.bytes) == (1, 0)


@pytest.mark.parametrize("outcome", FAILURES)
def test_no_other_outcome_counts_as_confirmed(outcome: Outcome) -> None:
    made = filled(3)
    given_up = made.come_back(2, outcome, 0)
    assert made.confirmed == 0
    assert made.counts[outcome] == 1
    if VERDICTS[outcome] is Verdict.ABANDON:
        assert given_up.sequence == 2
        assert list(made.held) == [1, 3]
        assert not made.due(10**9)
    else:
        assert given_up is None
        assert list(made.held) == [1, 2, 3]
        assert not made.due(RETRY_NS - 1)
        assert made.deadline_ns == RETRY_NS
        assert made.due(RETRY_NS)
        assert again(made) == [2]


@pytest.mark.parametrize("outcome", [each for each in FAILURES if each != Outcome.UNDELIVERABLE])
def test_a_message_that_keeps_coming_back_is_given_up_in_the_end(outcome: Outcome) -> None:
    made, now = filled(1), 0
    for tries in range(1, TRIES_MAX):
        assert made.come_back(1, outcome, now) is None
        now += tries * RETRY_NS
        assert made.due(now)
        assert again(made) == [1]
    given_up = made.come_back(1, outcome, now)
    assert given_up.data == outgoing(1).data
    assert (len(made.held), made.bytes) == (0, 0)
    assert made.deadline_ns is None


def test_what_comes_back_twice_at_once_or_is_unknown_changes_nothing() -> None:
    made = filled(1)
    assert made.come_back(9, Outcome.RELEASED, 0) is None
    assert made.counts[Outcome.RELEASED] == 0


def test_messages_that_come_back_cannot_fill_the_window() -> None:
    made = filled(40, messages=40)
    waiting = [made.come_back(number, Outcome.RELEASED, 0) for number in range(1, 41)]
    assert waiting[: 40 // RETURNED_SHARE] == [None] * (40 // RETURNED_SHARE)
    assert all(waiting[40 // RETURNED_SHARE :])
    assert len(made.held) == 40 // RETURNED_SHARE
    assert made.room(10)


def test_after_a_lost_connection_everything_unconfirmed_is_sent_again_in_order() -> None:
    made = filled(6)
    made.confirm(2, 0)
    made.come_back(4, Outcome.RELEASED, 0)
    assert made.lost() == 5
    assert again(made) == [1, 3, 4, 5, 6]
    assert made.resent == 5
    assert not made.due(10**9), "what waited is on its way again and does not come twice"


def test_what_waits_for_credit_to_be_sent_again_is_not_waited_for() -> None:
    made = filled(2)
    assert made.oldest_ns == 0
    made.lost()
    assert made.oldest_ns is None
    assert made.next_again() == 1
    assert made.oldest_ns == 0


def test_a_connection_lost_while_sending_again_begins_from_the_first_unconfirmed() -> None:
    made = filled(4)
    made.lost()
    assert made.next_again() == 1
    made.add(outgoing(5), 0)
    assert made.lost() == 5
    assert again(made) == [1, 2, 3, 4, 5]


def test_the_window_is_bounded_in_messages_and_in_bytes() -> None:
    made = window(messages=3, size=25)
    assert made.room(25)
    assert not made.room(26)
    made.add(outgoing(1), 0)
    made.add(outgoing(2), 0)
    assert made.room(5)
    assert not made.room(6)
    made.add(outgoing(3, size=5), 0)
    assert not made.room(0)
    made.confirm(1, 0)
    assert made.room(10)


def test_how_long_a_message_took_counts_from_the_first_time_that_it_was_sent() -> None:
    made = window()
    made.add(outgoing(1), 1_000)
    made.add(outgoing(2), 2_000)
    made.confirm(2, 5_000)
    made.lost()
    assert made.next_again() == 1
    made.confirm(1, 1_001_000)
    assert made.latency.count == 2
    assert made.latency.maximum == 1_000_000


def test_over_any_course_of_events_nothing_is_lost_and_nothing_unconfirmed_is_forgotten(
    seed: int,
) -> None:
    chance = random.Random(seed)
    made = window(messages=50, size=2_000)
    now, under_way = 0, []
    added = confirmed = given_up = 0
    for _ in range(20_000):
        now += chance.randrange(2_000)
        made.due(now)
        what = chance.random()
        if (number := made.next_again()) != 0:
            if number in made.held:
                under_way.append(number)
        elif what < 0.5 and made.room(40):
            under_way.append(made.add(outgoing(added, 40), 0))
            added += 1
        elif what < 0.8 and under_way:
            confirmed += made.confirm(under_way.pop(chance.randrange(len(under_way))), now)
        elif what < 0.97 and under_way:
            number = under_way.pop(chance.randrange(len(under_way)))
            given_up += made.come_back(number, chance.choice(FAILURES), now) is not None
        elif what >= 0.99:
            under_way.clear()
            held = list(made.held)
            assert made.lost() == len(held)
            assert list(made.again) == held == sorted(held)
        assert len(made.held) <= 50
        assert made.bytes == 40 * len(made.held) <= 2_000
        assert added == confirmed + given_up + len(made.held)
    assert min(confirmed, given_up, made.resent) > 0
