"""The receiver's side of a channel's session (`feedhandler/fixcast/reception.py`)."""

from typing import Any

import pytest

from feedhandler.fixcast import reception
from feedhandler.fixcast.reception import (
    ACTIONS,
    ACTIVITY,
    BEGIN_REACH,
    GAPS_MAX,
    RETRANSMISSION,
    Active,
    Deliver,
    Ended,
    Event,
    Heard,
    Joined,
    Lost,
    Missing,
    NewEpoch,
    Reception,
    ReceptionSettings,
    Silent,
    Skipped,
    State,
)
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message

MS = 1_000_000
SECOND = 1000 * MS
A, B = 0, 1


def app(number: int, text: str = "", epoch: int = 0, poss_dup: bool = False) -> Message:
    return Message(Kind.APPLICATION, number, (text or f"m{number}").encode(), 0, epoch, poss_dup)


def says(kind: Kind, number: int, epoch: int = 0) -> Message:
    return Message(kind, number, epoch=epoch)


def fill(number: int, new_number: int) -> Message:
    return Message(Kind.GAP_FILL, number, b"", new_number)


class Channel:
    """A reception, with the time, and the events of its stream and of the others."""

    def __init__(self, **settings: Any) -> None:
        self.now_ns = 0
        self.reception = Reception(ReceptionSettings(**settings), 0)

    def hear(self, *messages: Message, line: int = A) -> list[Event]:
        events: list[Event] = []
        for message in messages:
            events += self.reception.receive(message, line, self.now_ns)
        return events

    def wait(self, duration_ns: int) -> list[Event]:
        """Let the time pass, from deadline to deadline."""
        events: list[Event] = []
        end_ns = self.now_ns + duration_ns
        while (deadline_ns := self.reception.deadline_ns) <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            events += self.reception.tick(self.now_ns)
            assert self.reception.deadline_ns > self.now_ns
        self.now_ns = end_ns
        return events


def numbers(events: list[Event]) -> list[int]:
    return [event.number for event in events if isinstance(event, Deliver)]


def joined(**settings: Any) -> Channel:
    """A channel where 1 to 3 were received on both lines."""
    channel = Channel(**settings)
    channel.hear(app(1), app(2), app(3))
    channel.hear(app(1), app(2), app(3), line=B)
    return channel


def gapped(**settings: Any) -> Channel:
    """A channel where 4 and 5 are missing, and 6 is there."""
    channel = joined(**settings)
    assert numbers(channel.hear(app(6))) == ([] if settings.get("ordered", True) else [6])
    return channel


FAR = 10 + (1 << 20)
# For each kind at each position: the message, and (floor, top, deliveries, gaps) after it.
CASES = {
    ("application", "first"): (app(9), (10, 10, [9], [])),
    ("application", "below"): (app(2, "other"), (4, 7, [], [(4, 5)])),
    ("application", "known"): (app(2), (4, 7, [], [(4, 5)])),
    ("application", "missing"): (app(4), (5, 7, [4], [(5, 5)])),
    ("application", "next"): (app(7), (4, 8, [], [(4, 5)])),
    ("application", "ahead"): (app(9), (4, 10, [], [(4, 5), (7, 8)])),
    ("application", "far"): (app(FAR), (4, 7, [], [(4, 5)])),
    ("next number", "first"): (says(Kind.HEARTBEAT, 9), (9, 9, [], [])),
    ("next number", "below"): (says(Kind.HEARTBEAT, 2), (4, 7, [], [(4, 5)])),
    ("next number", "next"): (says(Kind.LOGOUT, 7), (4, 7, [], [(4, 5)])),
    ("next number", "ahead"): (says(Kind.HEARTBEAT, 9), (4, 9, [], [(4, 5), (7, 8)])),
    ("next number", "far"): (says(Kind.HEARTBEAT, FAR), (4, 7, [], [(4, 5)])),
    ("fill", "first"): (fill(5, 9), (9, 9, [], [])),
    ("fill", "known"): (fill(1, 4), (4, 7, [], [(4, 5)])),
    ("fill", "missing"): (fill(5, 6), (4, 7, [], [(4, 4)])),
    ("fill", "next"): (fill(7, 9), (4, 9, [], [(4, 5)])),
    ("fill", "ahead"): (fill(8, 9), (4, 9, [], [(4, 5), (7, 7)])),
    ("fill", "far"): (fill(7, FAR), (4, 7, [], [(4, 5)])),
}


def test_the_table_of_positions_is_whole() -> None:
    assert {(group.value, position.value) for group, position in ACTIONS} == CASES.keys()
    assert {(state, heard) for state in State for heard in Heard} == ACTIVITY.keys()


@pytest.mark.parametrize("where", CASES, ids=" ".join)
def test_every_kind_of_message_at_every_position(where: tuple[str, str]) -> None:
    message, (floor, top, delivered, gaps) = CASES[where]
    channel = Channel() if where[1] == "first" else gapped()
    events = channel.hear(message)
    reception = channel.reception
    assert (reception.floor, reception.top) == (floor, top)
    assert numbers(events) == delivered
    assert reception.missing == gaps


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("heard", Heard)
def test_activity_follows_its_table(state: State, heard: Heard) -> None:
    channel = Channel(gap_wait_ns=0, recovery_wait_ns=0)
    if state is State.SILENT:
        channel.hear(app(1))
        channel.wait(6 * SECOND)
    elif state is not State.UNHEARD:
        channel.hear(app(1))
    if state is State.ENDED:
        channel.hear(says(Kind.LOGOUT, 2))
    assert channel.reception.state is state
    match heard:
        case Heard.ANY:
            channel.hear(Message(Kind.BEACON))
        case Heard.ADVANCE:
            channel.hear(app(2))
        case Heard.LOGOUT:
            channel.hear(says(Kind.LOGOUT, 2))
        case Heard.SILENCE:
            channel.wait(6 * SECOND)
    assert channel.reception.state is ACTIVITY[state, heard]


def test_a_late_receiver_begins_with_what_it_hears_first() -> None:
    channel = Channel()
    assert channel.hear(app(500)) == [Joined(500), Deliver(500, b"m500"), Active()]
    assert channel.hear(app(499), app(501)) == [Deliver(501, b"m501")]
    channel = Channel()
    assert channel.hear(says(Kind.HEARTBEAT, 500)) == [Joined(500), Active()]
    assert numbers(channel.hear(app(500))) == [500]


def test_a_beacon_shows_that_the_channel_is_active_and_nothing_else() -> None:
    channel = Channel(silence_ns=SECOND)
    assert channel.hear(Message(Kind.BEACON)) == [Active()]
    channel.hear(app(1))
    channel.wait(SECOND // 2)
    assert channel.hear(Message(Kind.BEACON)) == []
    assert channel.wait(SECOND * 3 // 4) == []
    assert channel.wait(SECOND) == [Silent()]
    assert channel.hear(Message(Kind.BEACON)) == [Active()]
    assert channel.reception.top == 2


def test_a_lost_logout_is_silence() -> None:
    channel = joined(silence_ns=SECOND)
    assert channel.wait(10 * SECOND) == [Silent()]
    assert channel.hear(app(4)) == [Deliver(4, b"m4"), Active()]


def test_a_channel_that_brings_an_older_epoch_only_is_silent() -> None:
    channel = Channel(silence_ns=2 * SECOND)
    channel.hear(app(1, epoch=5))
    events: list[Event] = []
    for number in range(1, 5):
        events += channel.wait(SECOND) + channel.hear(app(number, epoch=4), fill(3, 3))
    assert events == [Silent()]
    counts = channel.reception.counts
    assert (counts["older_epoch"], counts["wrong"]) == (4, 4)


def test_a_logout_ends_the_session_and_tells_the_last_number() -> None:
    channel = joined(gap_wait_ns=0)
    assert channel.hear(says(Kind.LOGOUT, 6)) == [Ended(6), Missing(4, 5)]
    assert channel.hear(app(3), says(Kind.LOGOUT, 6), line=B) == []
    assert channel.reception.state is State.ENDED
    assert numbers(channel.hear(app(4), app(5), line=RETRANSMISSION)) == [4, 5]


def test_what_is_below_is_ignored() -> None:
    channel = joined()
    assert channel.hear(app(1), app(2)) == []
    assert channel.hear(app(3), line=RETRANSMISSION) == []
    assert channel.reception.counts["duplicates"] == 6
    channel.hear(app(2, "other bytes"))
    assert channel.reception.counts["differing"] == 1


@pytest.mark.parametrize(
    "message", [app(0), app(NUMBER_MAX + 2), fill(5, 5), fill(5, 4), says(Kind.HEARTBEAT, 0)]
)
def test_what_cannot_be_is_counted(message: Message) -> None:
    channel = joined()
    assert channel.hear(message) == []
    assert channel.reception.counts["wrong"] == 1


def test_numbers_of_20_digits_are_received() -> None:
    channel = Channel()
    last = NUMBER_MAX
    assert numbers(channel.hear(app(last - 1), app(last), says(Kind.LOGOUT, last + 1))) == [
        last - 1,
        last,
    ]


def test_a_gap_exists_only_when_both_lines_lack_it() -> None:
    channel = gapped(reorder_wait_ns=0, gap_wait_ns=20 * MS)
    assert channel.wait(5 * MS) == []
    assert channel.hear(app(4), line=B) == [Deliver(4, b"m4")]
    assert channel.hear(app(6), line=B) == [Missing(5, 5)]
    # The other line never comes.
    channel = gapped(reorder_wait_ns=0, gap_wait_ns=20 * MS)
    assert channel.wait(19 * MS) == []
    assert channel.wait(1 * MS) == [Missing(4, 5)]
    # It is enough that it says how far it is.
    channel = gapped(reorder_wait_ns=0)
    assert channel.hear(says(Kind.HEARTBEAT, 7), line=B) == [Missing(4, 5)]


def test_lines_that_pack_differently_agree_by_message() -> None:
    channel = Channel(reorder_wait_ns=0)
    # A loses the datagram with 2 to 4, B those with 1 and 2, and with 5 and 6.
    events = channel.hear(app(1), app(5), app(6), app(7))
    events += channel.hear(app(3), app(4), app(7), line=B)
    assert numbers(events) == [1]
    assert [event for event in events if isinstance(event, Missing)] == [Missing(2, 2)]
    assert numbers(channel.hear(app(2), line=RETRANSMISSION)) == [2, 3, 4, 5, 6, 7]


def test_later_messages_wait_or_do_not_as_set() -> None:
    channel = gapped(ordered=True)
    assert channel.hear(app(7)) == []
    assert channel.hear(app(5), line=B) == []
    assert channel.hear(app(4), line=B) == [Deliver(n, f"m{n}".encode()) for n in (4, 5, 6, 7)]
    channel = gapped(ordered=False)
    assert channel.hear(app(7)) == [Deliver(7, b"m7")]
    assert channel.hear(app(5), line=B) == [Deliver(5, b"m5", late=True)]
    assert channel.hear(app(4), app(4), line=B) == [Deliver(4, b"m4", late=True)]
    assert channel.reception.floor == 8


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_not_recovered_is_lost_at_its_position(ordered: bool) -> None:
    channel = gapped(ordered=ordered, gap_wait_ns=MS, recovery_wait_ns=SECOND)
    assert channel.wait(MS) == [Missing(4, 5)]
    assert numbers(channel.hear(app(5), line=RETRANSMISSION)) == ([] if ordered else [5])
    expected: list[Event] = [Lost(4, 4)]
    if ordered:
        expected += [Deliver(5, b"m5"), Deliver(6, b"m6")]
    assert channel.wait(SECOND) == expected
    assert channel.hear(app(4)) == []
    assert channel.reception.counts["unfitting"] == 1


def test_where_nothing_is_asked_for_a_gap_is_lost_at_once() -> None:
    channel = gapped(gap_wait_ns=MS, recovery_wait_ns=0)
    assert channel.wait(MS) == [Lost(4, 5), Deliver(6, b"m6")]


def test_what_waits_is_bounded() -> None:
    channel = gapped(held_max=3)
    assert channel.hear(app(7), app(8)) == []
    assert channel.hear(app(9))[0] == Lost(4, 5)
    assert channel.reception.settled == [], "no server was asked for it"
    assert channel.reception.counts["given_up_for_room"] == 1
    assert channel.reception.floor == 10


def test_gaps_are_bounded() -> None:
    channel = joined()
    for number in range(5, 5 + 2 * GAPS_MAX + 2, 2):
        channel.hear(app(number))
    assert len(channel.reception.missing) == GAPS_MAX
    assert channel.reception.counts["lost"] == 1


def test_a_gap_fill_skips_and_nothing_is_lost() -> None:
    channel = gapped()
    assert channel.hear(fill(4, 6), line=RETRANSMISSION) == [Skipped(4, 5), Deliver(6, b"m6")]
    assert channel.hear(fill(7, 9)) == [Skipped(7, 8)]
    assert numbers(channel.hear(app(9))) == [9]
    assert channel.reception.counts["lost"] == 0
    # What was received is not skipped.
    channel = gapped()
    assert channel.hear(fill(3, 9)) == [Skipped(4, 5), Deliver(6, b"m6"), Skipped(7, 8)]


def test_what_others_asked_for_fills_gaps_and_does_no_harm() -> None:
    channel = gapped()
    events = channel.hear(
        app(2, poss_dup=True), app(4, poss_dup=True), app(5, poss_dup=True), app(6, poss_dup=True),
        line=RETRANSMISSION,
    )  # fmt: skip
    assert numbers(events) == [4, 5, 6]
    fresh = Channel()
    assert fresh.hear(app(4, poss_dup=True), line=RETRANSMISSION) == []
    assert fresh.reception.top is None
    # Where they come by the main group.
    assert channel.hear(app(2, poss_dup=True), app(3, poss_dup=True)) == []
    assert channel.wait(2 * SECOND) == []


def test_a_new_epoch_that_is_announced_begins_at_once() -> None:
    channel = Channel(gap_wait_ns=0)
    channel.hear(app(1, epoch=5), app(2, epoch=5), app(4, epoch=5))
    assert channel.hear(app(2, "n2", epoch=6)) == [
        Lost(3, 3),
        Deliver(4, b"m4"),
        NewEpoch(6, False),
        Missing(1, 1),
    ]
    assert channel.hear(app(3, epoch=5), line=B) == []
    assert channel.reception.counts["older_epoch"] == 1
    assert numbers(channel.hear(app(1, "n1", epoch=6), line=B)) == [1, 2]


def test_a_new_epoch_after_a_logout_is_no_doubt() -> None:
    channel = Channel()
    channel.hear(app(1, epoch=5), says(Kind.LOGOUT, 2, epoch=5))
    assert channel.hear(says(Kind.LOGON, 1, epoch=6)) == [NewEpoch(6, True), Active()]


def test_who_comes_late_to_a_new_epoch_joins_it() -> None:
    channel = Channel()
    channel.hear(app(1, epoch=5))
    late = BEGIN_REACH + 1
    assert channel.hear(app(late, epoch=6))[:2] == [NewEpoch(6, False), Joined(late)]


def test_a_new_epoch_is_recognised_by_its_messages_alone() -> None:
    channel = Channel(epoch_wait_ns=SECOND, recovery_wait_ns=0)
    for number in range(1, 101):
        channel.hear(app(number))
        channel.hear(app(number), line=B)
    channel.wait(SECOND // 2)
    assert channel.hear(app(1, "n1"), app(2, "n2"), app(3, "n3")) == []
    assert channel.hear(app(1, "n1"), app(2, "n2"), app(3, "n3"), line=B) == []
    events = channel.wait(SECOND // 2)
    assert events == [NewEpoch(0, False), *(Deliver(n, b"n%d" % n) for n in (1, 2, 3))]
    assert numbers(channel.hear(app(4, "n4"))) == [4]


def test_a_new_epoch_is_recognised_by_heartbeats() -> None:
    channel = joined(epoch_wait_ns=SECOND)
    events: list[Event] = []
    for _ in range(4):
        events += channel.wait(SECOND // 2)
        events += channel.hear(says(Kind.HEARTBEAT, 1))
    assert events == [NewEpoch(0, False)]
    assert numbers(channel.hear(app(1, "n1"))) == [1]


def test_a_new_epoch_is_recognised_by_messages_that_are_far_between() -> None:
    channel = joined(epoch_wait_ns=SECOND, silence_ns=5 * SECOND)
    events: list[Event] = []
    for number in (1, 2, 3):
        events += channel.wait(2 * SECOND)
        events += channel.hear(app(number, f"n{number}"))
    assert events == [NewEpoch(0, False), *(Deliver(n, b"n%d" % n) for n in (1, 2, 3))]


def test_stray_messages_that_are_far_between_are_no_epoch() -> None:
    channel = joined(epoch_wait_ns=SECOND, silence_ns=SECOND)
    for number in (1, 2, 3):
        channel.wait(2 * SECOND)
        assert channel.hear(app(number, f"n{number}")) in ([], [Active()])
    assert not channel.reception.counts["epochs"]


def test_while_the_old_epoch_is_heard_there_is_no_new_one() -> None:
    channel = Channel(epoch_wait_ns=SECOND)
    for number in range(1, 101):
        events = channel.hear(app(number), app(number % 7 + 1, f"forged{number}"))
        events += channel.wait(SECOND // 10)
        assert not [event for event in events if isinstance(event, NewEpoch)]
    assert channel.reception.top == 101


def test_a_single_stray_message_is_no_epoch() -> None:
    channel = joined(epoch_wait_ns=SECOND, silence_ns=100 * SECOND)
    assert channel.hear(app(1, "stray")) == []
    assert channel.wait(50 * SECOND) == []


def test_a_stray_message_does_not_hide_the_epoch_that_follows() -> None:
    channel = joined(epoch_wait_ns=SECOND, silence_ns=100 * SECOND)
    channel.wait(2 * SECOND)
    channel.hear(app(FAR))
    events = channel.hear(*(app(n, f"n{n}") for n in (1, 2, 3)))
    assert events == [NewEpoch(0, False), *(Deliver(n, b"n%d" % n) for n in (1, 2, 3))]


def test_a_long_outage_is_lost_as_a_whole() -> None:
    channel = joined(epoch_wait_ns=SECOND)
    channel.wait(2 * SECOND)
    events = channel.hear(app(FAR), app(FAR + 1), app(FAR + 2))
    assert events[0] == Lost(4, FAR - 1)
    assert numbers(events) == [FAR, FAR + 1, FAR + 2]


def test_one_line_is_a_channel_too() -> None:
    channel = Channel(lines=1, reorder_wait_ns=MS)
    channel.hear(app(1), app(3))
    assert channel.wait(MS) == [Missing(2, 2)]


def test_a_receiver_that_stops_gives_up_what_is_missing() -> None:
    channel = gapped()
    assert channel.reception.finish() == [Lost(4, 5), Deliver(6, b"m6")]
    assert channel.reception.missing == []
    assert channel.reception.deadline_ns < NEVER


def test_a_receiver_that_stops_delivers_an_epoch_that_it_had_still_to_recognise() -> None:
    channel = Channel(gap_wait_ns=20 * MS)
    channel.hear(*(app(number) for number in range(1, 10)))
    channel.wait(20 * MS)
    assert channel.hear(app(1, "n1"), app(2, "n2"), app(4, "n4"), app(5, "n5")) == []
    delivered = [Deliver(1, b"n1"), Deliver(2, b"n2"), Lost(3, 3), Deliver(4, b"n4")]
    events = channel.reception.finish()
    assert events == [NewEpoch(0, False), *delivered, Deliver(5, b"n5")]
    assert channel.reception.finish() == []


@pytest.mark.parametrize(("wait_ns", "count"), [(19 * MS, 3), (20 * MS, 2)], ids=["soon", "few"])
def test_a_receiver_that_stops_takes_no_late_or_stray_messages_for_an_epoch(
    wait_ns: int, count: int
) -> None:
    channel = Channel(gap_wait_ns=20 * MS)
    channel.hear(app(9))
    channel.wait(wait_ns)
    channel.hear(*(app(number) for number in range(1, count + 1)), line=B)
    assert channel.reception.finish() == []


def test_what_is_remembered_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "RECENT_MAX", 2)
    # The oldest of three is no longer known as a copy; it is ignored all the same.
    channel = joined()
    assert channel.hear(app(1), app(3), line=B) == []
    assert channel.reception.counts["unfitting"] == 2
    assert channel.reception.counts["duplicates"] == 3


def test_where_the_epoch_is_announced_late_messages_are_no_new_one() -> None:
    channel = Channel(gap_wait_ns=0, recovery_wait_ns=0, silence_ns=100 * SECOND)
    channel.hear(app(1, epoch=5), app(9, epoch=5))
    channel.wait(10 * SECOND)
    assert channel.hear(*(app(number, epoch=5) for number in (2, 3, 4, 5))) == []
    assert channel.wait(10 * SECOND) == []
    assert channel.reception.counts["epochs"] == 0


def test_an_epoch_that_is_recognised_has_the_end_that_it_announced() -> None:
    channel = joined(epoch_wait_ns=SECOND)
    for line in (A, B):
        channel.hear(
            says(Kind.LOGON, 1), app(1, "n1"), app(2, "n2"), says(Kind.LOGOUT, 3), line=line
        )
    assert channel.wait(SECOND) == [
        NewEpoch(0, False),
        Deliver(1, b"n1"),
        Deliver(2, b"n2"),
        Ended(3),
    ]
    assert channel.reception.state is State.ENDED
    assert channel.wait(10 * SECOND) == []
    events = channel.hear(says(Kind.LOGON, 1), app(1, "o1"), app(2, "o2"))
    assert events[0] == NewEpoch(0, True)
    assert channel.reception.state is State.ACTIVE


def test_a_gap_fill_of_this_epoch_may_skip_any_number() -> None:
    channel = Channel()
    channel.hear(app(1, epoch=5))
    skipped = Message(Kind.GAP_FILL, 2, b"", FAR, epoch=5)
    assert channel.hear(skipped, app(FAR, epoch=5)) == [
        Skipped(2, FAR - 1),
        Deliver(FAR, b"m%d" % FAR),
    ]
    assert channel.hear(skipped, app(FAR, epoch=5), line=B) == []
    assert channel.reception.counts["lost"] == 0


@pytest.mark.parametrize("first", [fill(5, 1 << 63), app(5000), says(Kind.HEARTBEAT, 5000)])
def test_an_epoch_that_is_stated_after_messages_that_state_none_is_recognised(
    first: Message,
) -> None:
    channel = Channel(epoch_wait_ns=SECOND, recovery_wait_ns=0)
    channel.hear(first)
    begun = [app(number, epoch=7) for number in (1, 2, 3)]
    assert channel.hear(*begun) == []
    delivered = [Deliver(each.number, each.body) for each in begun]
    assert channel.wait(SECOND) == [NewEpoch(7, False), *delivered]
    assert numbers(channel.hear(app(4, epoch=7))) == [4]
    assert channel.hear(*begun) == []


def test_messages_that_state_an_epoch_may_go_on_after_some_that_state_none() -> None:
    channel = joined()
    assert numbers(channel.hear(app(4, epoch=7), app(5, epoch=7))) == [4, 5]
    assert channel.reception.epoch == 7
    assert channel.hear(app(1, "n1", epoch=8))[0] == NewEpoch(8, False)
