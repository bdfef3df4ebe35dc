"""Two servers of one kind: every state and input of the table, stories of requests that move."""

from typing import Any

import pytest

from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Broken,
    Event,
    Finished,
    Packet,
    RefreshAccepted,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
    Rejected,
)
from feedhandler.retrans.failover import (
    PRIMARY_END,
    REFUSED_HERE,
    SECONDARY_END,
    TABLE,
    FailoverPair,
    Input,
    State,
)
from feedhandler.retrans.protocol import NEVER_NS, RefreshReject, RetransReject
from feedhandler.retrans.settings import RecoverySettings

MS = 1_000_000
SETTINGS = RecoverySettings(
    request_timeout_us=200_000, refresh_timeout_us=2_000_000, failback_us=1_000_000,
    reconnect_us=1_000, reconnect_max_us=1_000,
)  # fmt: skip
P, S = PRIMARY_END, SECONDARY_END


class Client:
    """A client that keeps what it was asked, and tells what a test has it tell."""

    def __init__(self) -> None:
        self.asked: dict[int, Ask | AskRefresh] = {}
        self.up = False
        self.takes = True
        self.counts = {"asked": 0}
        self.deadline_ns = NEVER_NS
        self.said: list[Event] = []

    def connected(self, now_ns: int) -> None:
        self.up = True

    def disconnected(self, now_ns: int) -> None:
        self.up = False
        self.asked.clear()

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        said, self.said = self.said, []
        return said

    def tick(self, now_ns: int) -> list[Event]:
        return []

    def data_to_send(self) -> bytes:
        return b""

    def ask(self, request: Ask | AskRefresh, now_ns: int) -> bool:
        if self.up and self.takes:
            self.counts["asked"] += 1
            self.asked[request.request_id] = request
        return self.up and self.takes

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        return self.ask(request, now_ns)

    def cancel(self, request_id: int) -> None:
        self.asked.pop(request_id, None)


class DemandClient(Client):
    """The same on demand: it can always be asked for a snapshot."""

    @property
    def wants(self) -> bool:
        return bool(self.asked) and not self.up

    def ask(self, request: Ask | AskRefresh, now_ns: int) -> bool:
        self.counts["asked"] += 1
        self.asked[request.request_id] = request
        return True

    def disconnected(self, now_ns: int) -> None:
        self.up = False

    def failed(self, reason: str, now_ns: int) -> list[Event]:
        failed, self.asked = list(self.asked), {}
        return [RefreshFailed(each, reason) for each in failed]


class Story:
    """A pair, what it reported, and the time."""

    def __init__(self, make: type[Client] = Client, up: tuple[int, ...] = (P, S)) -> None:
        self.now = 1_000 * MS
        self.reported: list[Any] = []
        self.deadlines = 0
        self.pair = FailoverPair(
            make,
            SETTINGS,
            on_events=lambda events, now_ns: self.reported.extend(events),
            on_up=lambda now_ns: self.reported.append("up"),
            on_down=lambda reason, now_ns: self.reported.append(f"down: {reason}"),
            on_switch=lambda text, now_ns: self.reported.append(text),
            on_deadline=self._deadline,
            seed=3,
        )
        for end in up:
            self.up(end)
        self.reported.clear()

    def _deadline(self, now_ns: int) -> None:
        assert now_ns == self.now
        self.deadlines += 1

    def client(self, end: int) -> Any:
        return self.pair.ends[end].client

    def up(self, end: int) -> None:
        self.pair.ends[end].made(self.now)

    def down(self, end: int, reason: str = "closed") -> None:
        self.pair.ends[end].lost(reason, self.now)

    def says(self, end: int, *events: Event) -> None:
        self.client(end).said = list(events)
        self.pair.ends[end].feed(b"x", self.now)

    def ask(self, request_id: int) -> bool:
        return self.pair.ask(Ask(request_id, 7, 10, 20, 0), self.now)

    def at(self, milliseconds: int) -> None:
        """Let time pass up to then, ticking when it is due."""
        until = 1_000 * MS + milliseconds * MS
        while self.pair.deadline_ns <= until:
            self.now = self.pair.deadline_ns
            self.pair.tick(self.now)
        self.now = until

    def asked(self) -> tuple[set[int], set[int]]:
        """Return the ids of the requests that wait at the primary, and at the secondary."""
        return set(self.client(P).asked), set(self.client(S).asked)


def in_state(state: State) -> Story:
    """A pair in a state, both servers there but for the primary of SECONDARY."""
    story = Story()
    if state is not State.PRIMARY:
        story.down(P)
    if state is State.RETURNING:
        story.up(P)
    assert story.pair.state is state
    return story


@pytest.mark.parametrize("what", Input)
@pytest.mark.parametrize("state", State)
def test_the_table_is_whole_and_only_the_end_that_fails_is_left(state: State, what: Input) -> None:
    with_other, without = TABLE[state][what]
    if what in (Input.PRIMARY_DOWN, Input.PRIMARY_SILENT):
        assert with_other is not State.PRIMARY, "a primary that fails is not asked"
        assert without is state or state is State.RETURNING, "without another there is no change"
    if what in (Input.SECONDARY_UP, Input.PRIMARY_UP) and state is not State.SECONDARY:
        assert with_other is state, "who comes changes nothing while the other is well"
    if what is Input.DUE:
        assert with_other is (State.SECONDARY if state is State.SECONDARY else State.PRIMARY)


@pytest.mark.parametrize(
    ("state", "what", "next_state"),
    [
        (State.PRIMARY, Input.PRIMARY_DOWN, State.SECONDARY),
        (State.PRIMARY, Input.SECONDARY_DOWN, State.PRIMARY),
        (State.PRIMARY, Input.PRIMARY_SILENT, State.RETURNING),
        (State.SECONDARY, Input.PRIMARY_UP, State.RETURNING),
        (State.SECONDARY, Input.SECONDARY_DOWN, State.SECONDARY),
        (State.SECONDARY, Input.SECONDARY_SILENT, State.SECONDARY),
        (State.RETURNING, Input.PRIMARY_DOWN, State.SECONDARY),
        (State.RETURNING, Input.SECONDARY_DOWN, State.PRIMARY),
        (State.RETURNING, Input.SECONDARY_SILENT, State.PRIMARY),
        (State.RETURNING, Input.DUE, State.PRIMARY),
    ],
)
def test_what_happens_to_the_ends_leads_where_the_table_says(
    state: State, what: Input, next_state: State
) -> None:
    story = in_state(state)
    end = P if what.name.startswith("PRIMARY") else S
    assert story.ask(1)
    if what is Input.DUE:
        story.says(S, Accepted(1))
        story.at(1_000)
    elif what.name.endswith("SILENT"):
        story.at(100)
    elif what.name.endswith("UP"):
        story.up(end)
    else:
        story.down(end)
    assert story.pair.state is next_state
    assert TABLE[state][what][0] is next_state


def test_a_start_begins_with_the_primary_unless_it_is_not_there() -> None:
    story = Story(up=(S,))
    assert story.reported == []
    assert story.pair.asked_end == P
    assert not story.ask(1)
    assert not story.pair.available
    story.down(P, "refused")
    assert story.reported == ["up", "secondary is asked now: refused"]
    story = Story(up=(S, P))
    assert story.pair.state is State.PRIMARY
    assert story.pair.available


def test_requests_of_a_broken_connection_move_and_recovery_hears_nothing_of_it() -> None:
    story = Story()
    for request_id in (1, 2):
        assert story.ask(request_id)
    story.says(P, Accepted(1), Packet(1, 7, 10, 12, b"data"))
    story.down(P)
    assert story.asked() == (set(), {1, 2})
    story.says(S, Accepted(1), Answered(1), Accepted(2), Answered(2))
    assert story.reported == [
        Accepted(1), Packet(1, 7, 10, 12, b"data"), "secondary is asked now: closed",
        Accepted(1), Answered(1), Accepted(2), Answered(2),
    ]  # fmt: skip
    counts = story.pair.counts
    assert (counts["failovers"], counts["moved"], counts["asked"]) == (1, 2, 4)


def test_without_a_secondary_recovery_hears_that_there_is_none_to_ask() -> None:
    story = Story(up=(P,))
    story.ask(1)
    story.down(P, "closed")
    assert story.reported == ["down: closed"]
    assert story.pair.deadline_ns == NEVER_NS, "what was asked is forgotten"
    story.up(S)
    assert story.reported[1:] == ["up", "secondary is asked now: it is connected"]
    story.down(S, "broken")
    assert story.reported[3:] == ["down: broken"]
    story.up(P)
    assert story.reported[4:] == ["up", "primary is asked now: it is connected"]


def test_a_request_without_an_answer_for_half_its_time_moves_with_all_others() -> None:
    story = Story()
    story.ask(1)
    story.at(50)
    story.ask(2)
    story.at(99)
    assert story.asked() == ({1, 2}, set())
    story.at(100)
    assert story.asked() == (set(), {1, 2})
    assert story.reported == ["secondary is asked now: no answer in time"]
    story.at(1_099)
    assert story.pair.state is State.PRIMARY, "the secondary was silent as well"


def test_an_answered_or_cancelled_request_is_no_sign_of_silence() -> None:
    story = Story()
    story.ask(1)
    story.ask(2)
    story.says(P, Accepted(1))
    story.pair.cancel(2)
    story.pair.cancel(99)
    assert story.asked() == ({1}, set())
    assert story.pair.deadline_ns == NEVER_NS
    story.at(5_000)
    assert story.pair.state is State.PRIMARY


def test_silence_without_another_server_is_left_to_recovery() -> None:
    story = Story(up=(P,))
    story.ask(1)
    story.at(5_000)
    assert story.asked() == ({1}, set())
    assert story.reported == []


def test_the_primary_is_asked_again_once_it_has_stayed_for_the_named_time() -> None:
    story = in_state(State.SECONDARY)
    story.up(P)
    story.at(900)
    story.down(P)
    story.up(P)
    story.at(1_899)
    assert story.pair.asked_end == S
    story.ask(1)
    story.at(1_900)
    assert story.pair.asked_end == P
    assert story.asked() == (set(), {1}), "it may still be answered there"
    story.ask(2)
    assert story.asked() == ({2}, {1})
    assert story.reported[-1] == "primary is asked now: it has been connected for long enough"
    assert story.pair.counts["failbacks"] == 1
    assert story.deadlines > 0


@pytest.mark.parametrize("reason", RetransReject)
def test_what_one_server_refuses_the_other_is_asked_once(reason: RetransReject) -> None:
    if not reason:
        return
    story = Story()
    story.ask(1)
    story.says(P, Rejected(1, reason))
    if reason not in REFUSED_HERE:
        assert story.reported == [Rejected(1, reason)]
        return
    assert (story.reported, story.asked()[1]) == ([], {1})
    assert story.pair.state is State.PRIMARY
    story.says(S, Rejected(1, reason))
    assert story.reported == [Rejected(1, reason)]
    assert story.pair.counts["passed_on"] == 1


def test_a_refusal_is_reported_where_the_other_is_not_there_or_cannot_be_asked() -> None:
    refusal = Rejected(1, RetransReject.NO_LONGER_AVAILABLE)
    for takes in (True, False):
        story = Story(up=(P,) if takes else (P, S))
        story.client(S).takes = takes
        story.ask(1)
        story.says(P, refusal)
        assert story.reported == [refusal]


def test_a_refused_refresh_is_asked_of_the_other_and_an_accepted_one_moves_with_its_server() -> (
    None
):
    story = Story()
    assert story.pair.ask_refresh(AskRefresh(1, 7), story.now)
    story.says(P, RefreshRejected(1, RefreshReject.SECONDARY))
    story.says(S, RefreshAccepted(1))
    story.pair.ask_refresh(AskRefresh(2, 8), story.now)
    story.says(P, RefreshAccepted(2))
    story.down(P)
    assert story.asked()[1] == {1, 2}
    story.says(S, RefreshSnapshot(2, 8, 5, ()))
    assert story.reported[-1] == RefreshSnapshot(2, 8, 5, ())
    story.at(5_000)
    assert story.pair.ask_refresh(AskRefresh(3, 7), story.now)
    assert len(story.pair._asked) == 1, "of snapshots by lines no event tells the end"


def test_a_refresh_that_was_accepted_long_ago_does_not_move_with_its_server() -> None:
    """Where snapshots come by lines, no event says that it has come."""
    story = Story()
    story.pair.ask_refresh(AskRefresh(1, 7), story.now)
    story.says(P, RefreshAccepted(1))
    story.at(SETTINGS.refresh_timeout_us // 1_000)
    story.down(P)
    assert story.asked() == (set(), set())
    assert story.pair.counts["moved"] == 0


def test_events_of_requests_that_have_moved_or_are_unknown_are_handed_on() -> None:
    story = Story()
    story.ask(1)
    story.down(P)
    story.up(P)
    story.says(P, Packet(1, 7, 10, 12, b"late"), Rejected(77, RetransReject.PERMISSION))
    assert story.reported[1:] == [
        Packet(1, 7, 10, 12, b"late"),
        Rejected(77, RetransReject.PERMISSION),
    ]


def test_on_demand_a_snapshot_that_fails_at_one_comes_from_the_other() -> None:
    story = Story(DemandClient, up=())
    assert story.pair.on_demand
    assert story.pair.available
    story.pair.ask_refresh(AskRefresh(1, 7), story.now)
    assert story.pair.ends[P].connect_ns < NEVER_NS
    story.down(P, "refused")
    assert story.reported == ["secondary is asked now: refused"]
    assert story.pair.state is State.RETURNING
    assert story.asked() == (set(), {1})
    story.up(S)
    story.says(S, RefreshAccepted(1), RefreshSnapshot(1, 7, 5, ()), Finished())
    story.down(S)
    assert story.reported[1:] == [RefreshAccepted(1), RefreshSnapshot(1, 7, 5, ())]
    story.at(1_000)
    assert story.pair.state is State.PRIMARY


def test_a_snapshot_that_is_asked_of_the_primary_again_is_cancelled_at_the_secondary() -> None:
    """Else it may come after a reset, and be taken for one of the new sequence epoch."""
    story = Story(DemandClient, up=())
    story.pair.ask_refresh(AskRefresh(1, 7), story.now)
    story.down(P, "refused")
    story.up(S)
    story.says(S, RefreshAccepted(1))
    story.at(1_000)
    assert story.pair.state is State.PRIMARY
    story.pair.ask_refresh(AskRefresh(2, 7), story.now)
    assert story.asked() == ({2}, set())


def test_on_demand_both_fail() -> None:
    story = Story(DemandClient, up=())
    story.pair.ask_refresh(AskRefresh(1, 7), story.now)
    story.down(P, "refused")
    story.up(S)
    story.says(S, Broken("nonsense"))
    story.down(S, "nonsense")
    assert RefreshFailed(1, "nonsense") in story.reported
    assert story.asked() == (set(), set())
    assert story.pair.ask_refresh(AskRefresh(2, 7), story.now)
