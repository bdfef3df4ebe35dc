"""Hold and release: order, deadlines, gaps, bounds."""

import pytest

from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import Counts
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.release import Deliver, Gap, NewEpoch, ReleaseQueue, ReleaseSettings

SETTINGS = ReleaseSettings(gap_wait_ns=100, hold_ns_max=1_000, messages_max=4)
#: The overlay's time of these tests is 10,000 ahead of the local one.
AHEAD = 10_000


class Rig:
    """A queue, joined at message 1, and what left it."""

    def __init__(self, known: bool = True) -> None:
        self.counts, self.clock = Counts(), OverlayClock(AHEAD, known)
        self.queue = ReleaseQueue(SETTINGS, self.clock, self.counts)
        self.queue.begin(1, 1)
        self.left: list[object] = []

    def add(self, id: int, deadline_ns: int = 0, now_ns: int = 0) -> bool:
        """Add a message whose deadline is this local time."""
        dated = deadline_ns + AHEAD if deadline_ns else 0
        return self.queue.add(id, b"%d" % id, dated, now_ns)

    def tick(self, now_ns: int) -> list[object]:
        """What left, in short."""
        short: list[object] = []
        for each in self.queue.tick(now_ns):
            if isinstance(each, Deliver):
                short.append((each.epoch, each.id, each.late))
            elif isinstance(each, Gap):
                short.append(tuple(each))
        return short


def test_messages_leave_in_order_at_their_deadlines() -> None:
    rig = Rig()
    assert rig.queue.deadline_ns == 0  # the epoch is to be told
    assert rig.queue.tick(0) == [NewEpoch(1, 1)]
    rig.add(2, deadline_ns=60)
    rig.add(1, deadline_ns=50)
    assert len(rig.queue) == 2
    assert rig.queue.deadline_ns == 50
    assert rig.tick(49) == []
    assert rig.tick(50) == [(1, 1, False)]
    assert rig.queue.deadline_ns == 60
    assert rig.tick(60) == [(1, 2, False)]
    assert rig.queue.deadline_ns > 1 << 60


def test_the_late_and_the_undated_leave_at_once() -> None:
    rig = Rig()
    assert rig.add(1, deadline_ns=50, now_ns=51)
    assert not rig.add(2, now_ns=51)
    assert rig.tick(51) == [(1, 1, True), (1, 2, False)]
    assert rig.counts[C.LATE] == rig.counts[C.UNDATED] == 1
    assert rig.counts[C.DELIVERED] == 2


def test_a_gap_is_announced_in_its_place_once_its_wait_is_over() -> None:
    rig = Rig()
    rig.add(3, deadline_ns=500, now_ns=10)
    rig.add(6, now_ns=20)
    assert rig.queue.deadline_ns == 0
    assert rig.tick(10) == []
    assert rig.queue.deadline_ns == 110
    assert rig.tick(109) == []
    assert rig.tick(110) == [(1, 1, 2)]
    # The second gap waits since message 6 came, and is told behind message 3.
    assert rig.queue.deadline_ns == 120
    assert rig.tick(120) == []
    assert rig.tick(500) == [(1, 3, False), (1, 4, 5), (1, 6, False)]
    assert rig.counts[C.LOST] == 4
    assert not rig.add(2, deadline_ns=600, now_ns=501)
    assert rig.add(2, deadline_ns=400, now_ns=501)
    assert rig.counts[C.AFTER_GAP] == 2


def test_a_message_that_fills_the_gap_stops_its_wait() -> None:
    rig = Rig()
    rig.add(2, now_ns=10)
    rig.add(1, now_ns=100)
    assert rig.tick(110) == [(1, 1, False), (1, 2, False)]
    assert rig.counts[C.LOST] == 0


def test_a_heartbeat_tells_of_messages_that_never_came() -> None:
    rig = Rig()
    rig.add(1)
    rig.tick(0)
    rig.queue.told(3, 40)
    rig.queue.told(3, 60)
    assert rig.queue.deadline_ns == 140
    assert rig.tick(140) == [(1, 2, 3)]
    rig.queue.told(3, 200)
    assert rig.queue.deadline_ns > 1 << 60


def test_a_restarted_sender_is_followed_behind_what_is_held() -> None:
    rig = Rig()
    rig.add(1, deadline_ns=50)
    rig.add(3, deadline_ns=60)
    rig.queue.begin(2, 9)
    rig.add(1, deadline_ns=70)
    left = rig.queue.tick(70)
    told = [(type(each).__name__, *each[:3]) for each in left]
    assert [each[0] for each in told] == [
        "NewEpoch", "Deliver", "Gap", "Deliver", "NewEpoch", "Deliver",
    ]  # fmt: skip
    assert [each[1] for each in told] == [1, 1, 1, 1, 2, 2]
    assert told[4] == ("NewEpoch", 2, 1)


def test_no_more_is_held_than_there_is_room_for() -> None:
    rig = Rig()
    for id in (1, 3, 4, 5):
        rig.add(id, deadline_ns=900)
    rig.add(6, deadline_ns=900)
    assert rig.counts[C.OVERFLOW] == 1
    rig.tick(100)
    rig.queue.told(6, 100)
    assert rig.tick(900) == [(1, 1, False), (1, 2, 2), (1, 3, False), (1, 4, False), (1, 5, False),
                             (1, 6, 6)]  # fmt: skip


def test_nothing_is_held_longer_than_the_bound() -> None:
    rig = Rig()
    rig.add(1, deadline_ns=1 << 50)
    assert rig.queue.tick(0)
    assert rig.queue.deadline_ns == 1_000
    assert rig.tick(1_000) == [(1, 1, False)]
    assert rig.counts[C.OVERHELD] == 1


def test_without_the_time_dated_messages_are_held_for_the_bound() -> None:
    rig = Rig(known=False)
    assert not rig.add(1, deadline_ns=5, now_ns=6)
    rig.add(2, now_ns=6)
    rig.queue.tick(6)
    assert rig.queue.deadline_ns == 1_006
    assert rig.tick(1_006) == [(1, 1, False), (1, 2, False)]
    assert rig.counts[C.OVERHELD] == 1


@pytest.mark.parametrize("step_ns", [-300, 300])
def test_a_step_of_the_clock_moves_what_is_held(step_ns: int) -> None:
    rig = Rig()
    rig.add(1, deadline_ns=500)
    rig.queue.tick(0)
    rig.clock.wall(0, AHEAD + step_ns)
    assert rig.queue.deadline_ns == 500 - step_ns


def test_an_extra_hold_is_added_to_every_deadline() -> None:
    rig = Rig()
    rig.queue.extra_ns = 40
    rig.add(1, deadline_ns=50)
    rig.queue.tick(0)
    assert rig.queue.deadline_ns == 90
