"""A receiver's books, healed by snapshots (`retrans/fix/market_follower.py`)."""

import pytest

from feedhandler.retrans.fix.market_data import MarketDataFormat
from feedhandler.retrans.fix.market_follower import (
    Healed,
    MarketFollower,
    Standing,
    Unhealed,
    Wanted,
)
from tests.support.fix_market import refresh

FORMAT = MarketDataFormat()


def order(number: int) -> bytes:
    return refresh(f"279=0|269=0|278=o{number}|55=A|270=10|271={number}")


def state(number: int) -> list[bytes]:
    """A snapshot as of a number: all orders up to it."""
    entries = [
        b"269=0\x01278=o%d\x01270=10\x01271=%d\x01" % (each, each) for each in range(1, number + 1)
    ]
    return [FORMAT.snapshot(b"r", number, 7, b"55=A\x01", entries)]


def ids(follower: MarketFollower) -> list[str]:
    """The orders that stand."""
    return [text.split(b"\x01")[1].decode()[4:] for text in follower.state.contents().get(b"A", [])]


def joined(number: int) -> MarketFollower:
    follower = MarketFollower()
    follower.joined(number, 7)
    return follower


def delivered(follower: MarketFollower, first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert follower.deliver(number, order(number)) == []


def test_a_follower_of_the_first_message_on_has_whole_books() -> None:
    follower = MarketFollower()
    assert follower.standing is Standing.BROKEN
    assert follower.joined(1) == []
    delivered(follower, 1, 3)
    assert follower.standing is Standing.WHOLE
    assert ids(follower) == ["o1", "o2", "o3"]


def test_a_late_joiner_wants_the_state() -> None:
    assert MarketFollower().joined(5, 7) == [Wanted(4, 0)]


@pytest.mark.parametrize("as_of", [4, 5, 6, 7])
def test_live_messages_up_to_the_snapshot_are_dropped_and_later_ones_applied(as_of: int) -> None:
    follower = joined(5)
    delivered(follower, 5, 6)
    assert follower.standing is Standing.BROKEN
    assert follower.snapshot(state(as_of), as_of, 7) == [Healed(as_of, max(6, as_of))]
    delivered(follower, 7, 9)
    assert ids(follower) == [f"o{number}" for number in range(1, 10)]
    assert follower.state.number == follower.number == 9
    assert follower.counts["contained"] == (as_of == 7)


def test_a_snapshot_before_the_loss_is_of_no_use() -> None:
    follower = joined(5)
    delivered(follower, 5, 6)
    assert follower.snapshot(state(3), 3, 7) == [Wanted(4, 1)]
    assert follower.snapshot(state(3), 3, 7) == [Wanted(4, 2)]
    assert follower.snapshot(state(4), 4, 7) == [Healed(4, 6)]


def test_a_loss_breaks_the_books_until_a_snapshot_behind_it() -> None:
    follower = joined(1)
    delivered(follower, 1, 3)
    assert follower.lost(5) == [Wanted(5, 0)]
    delivered(follower, 6, 7)
    assert follower.lost(9) == []
    delivered(follower, 10, 11)
    assert follower.snapshot(state(8), 8, 7) == [Wanted(9, 1)]
    assert follower.snapshot(state(10), 10, 7) == [Healed(10, 11)]
    assert ids(follower) == [f"o{number}" for number in range(1, 12)]
    # Healed is healed: the next loss begins anew.
    assert follower.lost(12) == [Wanted(12, 0)]


def test_a_loss_that_the_snapshot_contains_is_none() -> None:
    follower = joined(5)
    follower.snapshot(state(9), 9, 7)
    assert follower.lost(8) == []
    assert follower.standing is Standing.WHOLE
    assert follower.counts["contained"] == 1


def test_what_is_skipped_is_not_missing() -> None:
    follower = joined(1)
    delivered(follower, 1, 2)
    follower.skipped(5)
    assert follower.state.number == follower.number == 5
    delivered(follower, 6, 6)
    assert ids(follower) == ["o1", "o2", "o6"]
    late = joined(5)
    late.skipped(7)
    assert late.snapshot(state(4), 4, 7) == [Healed(4, 7)]


def test_held_messages_that_have_no_room_are_missing() -> None:
    follower = MarketFollower(held_bytes_max=3 * len(order(5)))
    follower.joined(5, 7)
    delivered(follower, 5, 9)
    assert follower.counts["not_held"] == 2
    assert follower.snapshot(state(5), 5, 7) == [Wanted(6, 1)]
    assert follower.snapshot(state(6), 6, 7) == [Healed(6, 9)]
    assert ids(follower) == [f"o{number}" for number in range(1, 10)]


def test_a_state_of_another_epoch_is_of_no_use() -> None:
    follower = joined(5)
    assert follower.snapshot(state(9), 9, 6) == [Wanted(4, 1)]
    assert follower.renumbered(8) == []
    assert follower.standing is Standing.WHOLE
    assert follower.snapshot(state(9), 9, 7) == []
    assert ids(follower) == []
    delivered(follower, 1, 1)
    assert ids(follower) == ["o1"]


def test_a_new_epoch_joined_late_wants_its_own_state() -> None:
    follower = joined(5)
    follower.renumbered(8)
    assert follower.joined(3) == [Wanted(2, 0)]
    assert follower.snapshot(state(9), 9, 7) == [Wanted(2, 1)]
    assert follower.snapshot(state(2), 2, 8) == [Healed(2, 2)]


def test_without_an_answer_the_books_stay_unknown_and_say_so() -> None:
    follower = joined(5)
    assert follower.failed("no answer") == [Unhealed("no answer")]
    assert follower.standing is Standing.BROKEN
    assert follower.want() == [Wanted(4, 0)]
    assert follower.snapshot(state(6), 6, 7) == [Healed(6, 6)]
    assert follower.want() == []
    assert follower.failed("late") == []
