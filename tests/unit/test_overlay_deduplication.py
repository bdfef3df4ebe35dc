"""De-duplication of the overlay's messages, as Appendix A and beyond."""

import random

import pytest

from feedhandler.overlay.deduplication import SLOTS_MAX, Deduplicator, Verdict, slots_for


def taken(buffer: Deduplicator, epoch: int, id: int) -> Verdict:
    verdict = buffer.judge(epoch, id)
    if verdict in (Verdict.ACCEPTED, Verdict.NEW_EPOCH):
        buffer.accept(epoch, id)
    return verdict


@pytest.mark.parametrize(
    ("rate", "slots"), [(0, 64), (64, 64), (65, 128), (1000, 1024), (1 << 30, SLOTS_MAX)]
)
def test_slots_are_the_next_power_of_two_of_the_rate(rate: int, slots: int) -> None:
    assert slots_for(rate) == slots


@pytest.mark.parametrize(
    ("before", "copy", "verdict"),
    [
        ([(1, 1)], (1, 2), Verdict.ACCEPTED),
        ([(1, 1)], (1, 1), Verdict.DUPLICATE),
        ([(1, 5)], (1, 3), Verdict.ACCEPTED),  # out of order
        ([(1, 65)], (1, 1), Verdict.VIOLATION),  # its slot has a higher one
        ([(1, 66)], (1, 1), Verdict.VIOLATION),  # 64 behind or more, and its slot empty
        ([(1, 65)], (1, 2), Verdict.ACCEPTED),  # 63 behind
        ([(2, 9)], (1, 10), Verdict.STALE),
        ([(1, 9)], (2, 1), Verdict.NEW_EPOCH),
        ([(1, 9), (2, 1)], (2, 9), Verdict.ACCEPTED),
        ([(1, 9), (2, 1)], (1, 10), Verdict.STALE),
    ],
)
def test_the_verdict_on_a_copy(
    before: list[tuple[int, int]], copy: tuple[int, int], verdict: Verdict
) -> None:
    buffer = Deduplicator(64)
    for each in before:
        taken(buffer, *each)
    assert buffer.judge(*copy) is verdict
    assert buffer.judge(*copy) is verdict, "judging changes nothing"


def test_an_epoch_that_was_told_before_its_first_message_begins_at_once() -> None:
    buffer = Deduplicator(64)
    taken(buffer, 1, 5)
    buffer.begin(2)
    assert taken(buffer, 1, 6) is Verdict.STALE
    assert taken(buffer, 2, 5) is Verdict.ACCEPTED


def test_nothing_is_accepted_twice_in_any_order(seed: int) -> None:
    dice, buffer = random.Random(seed), Deduplicator(64)
    seen: set[int] = set()
    for top in range(1, 20_000):
        id = max(1, top // 2 - dice.choice([0, 0, 1, 5, 60, 64, 70, 200]))
        if taken(buffer, 1, id) in (Verdict.ACCEPTED, Verdict.NEW_EPOCH):
            assert id not in seen
            seen.add(id)
