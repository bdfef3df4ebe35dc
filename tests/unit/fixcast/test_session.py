"""The publisher's side of a channel's session (`feedhandler/fixcast/session.py`)."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.session import (
    NEVER,
    TABLE,
    Input,
    PublisherSession,
    SessionSettings,
    State,
)
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message

SECOND = 1_000_000_000


def live(**settings: int) -> PublisherSession:
    session = PublisherSession(SessionSettings(**settings))
    session.start(0, epoch=7)
    return session


def given(session: PublisherSession, what: Input) -> None:
    """Give a session one input, without regard to its state."""
    match what:
        case Input.START:
            session.start(0, epoch=session.epoch + 1)
        case Input.PUBLISH:
            session.publish(0)
        case Input.SKIP:
            session.skip(session.next + 5, 0)
        case Input.DUE:
            session.tick(0)
        case Input.STOP:
            session.stop(0)


def in_state(state: State) -> PublisherSession:
    session = PublisherSession(SessionSettings())
    if state is not State.IDLE:
        session.start(0, epoch=1)
    if state is State.ENDED:
        session.stop(0)
    assert session.state is state
    return session


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", Input)
def test_every_input_in_every_state_does_as_the_table_says(state: State, what: Input) -> None:
    session = in_state(state)
    if (following := TABLE.get((state, what))) is None:
        with pytest.raises(UsageError):
            given(session, what)
        assert session.state is state
    else:
        given(session, what)
        assert session.state is following


def test_channels_number_their_messages_by_themselves() -> None:
    one, other = live(), live()
    assert [one.publish(0), one.publish(0), other.publish(0)] == [1, 2, 1]


def test_administrative_messages_carry_the_next_number_and_take_none() -> None:
    session = PublisherSession(SessionSettings(heartbeat_ns=SECOND, logon_ns=SECOND))
    assert session.start(0, epoch=7) == Message(Kind.LOGON, 1, epoch=7)
    assert [session.publish(0), session.publish(0)] == [1, 2]
    assert session.tick(SECOND) == [
        Message(Kind.LOGON, 3, epoch=7),
        Message(Kind.HEARTBEAT, 3, epoch=7),
    ]
    assert session.skip(10, SECOND) == Message(Kind.GAP_FILL, 3, b"", 10, 7)
    assert session.publish(SECOND) == 10
    assert session.stop(SECOND) == [Message(Kind.LOGOUT, 11, epoch=7)]


def test_a_heartbeat_follows_silence() -> None:
    session = live(heartbeat_ns=SECOND, logon_ns=0)
    session.publish(SECOND // 2)
    assert session.deadline_ns == SECOND // 2 + SECOND
    assert session.tick(SECOND) == []
    assert [said.kind for said in session.tick(session.deadline_ns)] == [Kind.HEARTBEAT]
    assert session.deadline_ns == SECOND // 2 + 2 * SECOND


def test_a_logon_is_repeated_on_its_timer() -> None:
    session = live(heartbeat_ns=0, logon_ns=10 * SECOND)
    times = []
    for _ in range(3):
        times.append(session.deadline_ns)
        assert [said.kind for said in session.tick(times[-1])] == [Kind.LOGON]
    assert times == [10 * SECOND, 20 * SECOND, 30 * SECOND]


def test_a_beacon_has_no_number() -> None:
    session = live(heartbeat_ns=0, logon_ns=0, beacon_ns=SECOND)
    assert session.tick(SECOND) == [Message(Kind.BEACON, 0, epoch=7)]


def test_after_a_logout_nothing_is_sent() -> None:
    session = live(beacon_ns=SECOND)
    assert [said.kind for said in session.stop(0)] == [Kind.LOGOUT]
    assert session.stop(0) == []
    assert session.deadline_ns == NEVER
    assert session.tick(100 * SECOND) == []


def test_after_the_last_number_a_new_epoch_begins() -> None:
    session = live()
    session.stop(0)
    session.start(0, epoch=8, next_number=NUMBER_MAX)
    assert len(str(session.publish(0))) == 20
    assert session.exhausted
    with pytest.raises(UsageError, match="no number left"):
        session.publish(0)
    session.stop(0)
    session.start(0, epoch=9)
    assert session.publish(0) == 1


@pytest.mark.parametrize(
    ("epoch", "number"), [(6, 1), (7, 1), (7, 2)], ids=["older", "again", "a number again"]
)
def test_no_number_is_taken_twice(epoch: int, number: int) -> None:
    session = live()
    session.publish(0)
    session.publish(0)
    session.stop(0)
    with pytest.raises(UsageError, match="comes after"):
        session.start(0, epoch, number)


def test_an_epoch_goes_on_where_it_ended() -> None:
    session = live()
    session.publish(0)
    session.stop(0)
    session.start(0, epoch=7, next_number=2)
    assert session.publish(0) == 2


@pytest.mark.parametrize("target", [1, 2, NUMBER_MAX + 1])
def test_only_forward_is_skipped(target: int) -> None:
    session = live()
    session.publish(0)
    with pytest.raises(UsageError, match="cannot skip"):
        session.skip(target, 0)
