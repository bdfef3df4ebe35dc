"""The state machine of one channel's recovery, as a table.

A channel is in one of five states:

IN_SYNC     nothing is known to be missing
SUSPECTING  a gap is known, and the other line may still fill it; or everything that was asked for
            has come, and arbitration has still to say that the gap is closed
REQUESTING  something is missing on every line: it is asked for, or waits to be asked for, or has
            been abandoned and waits to be announced lost
REFRESHING  something was announced lost, and a snapshot is on its way, or asked for, or about to be
STALE       something was announced lost and nothing is under way that would heal it: there is no
            refresh server, or its tries are used up until the next turn

Loss outranks what is merely missing: retransmission goes on while REFRESHING and while STALE, and
its answers are treated there exactly as in REQUESTING. A snapshot heals in either, whether it was
asked for or came by itself.

The inputs are of four kinds. Control events of arbitration, in the stream's order: NOTICED,
MISSING, LOST, CLOSED, PROGRESS, RESET. The retransmission server's side: ACCEPTED, REJECTED,
ARRIVED, ANSWERED, SERVER_UP, SERVER_DOWN. The refresh side: REFRESH_ACCEPTED, REFRESH_REJECTED,
REFRESH_UP, SNAPSHOT_BEGAN, SNAPSHOT_FAILED, SNAPSHOT, WANT_SNAPSHOT. And the clock: TICK.

A rule says what is done (`Action`) and which states may follow. Which of them does is what is true
afterwards, as `Recovery` derives it; it refuses to go where the rule does not lead. Where a rule
does nothing, the input changes nothing in that state.
"""

from enum import Enum, IntEnum, auto
from typing import NamedTuple


class State(IntEnum):
    """The state of a channel's recovery (see the module)."""

    IN_SYNC = 0
    SUSPECTING = 1
    REQUESTING = 2
    REFRESHING = 3
    STALE = 4


class Input(IntEnum):
    """The inputs of the machine; the methods of `Recovery` bear the same names."""

    NOTICED = auto()
    MISSING = auto()
    LOST = auto()
    CLOSED = auto()
    PROGRESS = auto()
    RESET = auto()
    ACCEPTED = auto()
    REJECTED = auto()
    ARRIVED = auto()
    ANSWERED = auto()
    SERVER_UP = auto()
    SERVER_DOWN = auto()
    REFRESH_ACCEPTED = auto()
    REFRESH_REJECTED = auto()
    REFRESH_UP = auto()
    SNAPSHOT_BEGAN = auto()
    SNAPSHOT_FAILED = auto()
    SNAPSHOT = auto()
    WANT_SNAPSHOT = auto()
    TICK = auto()


class Action(Enum):
    """The actions of the machine; the values are the words of the documentation."""

    NOTHING = "nothing changes"
    SUSPECT = "remember that a gap is known"
    REQUEST = "take the range in as missing and ask for it as soon as the quota allows"
    LOSE = "stop asking for the range; a snapshot must heal it"
    SETTLE = "nothing is missing: cancel what is under way"
    ADVANCE = "nothing below the number is missing any more"
    VOID = "forget everything, cancel what is under way"
    WAIT_ON = "the request was accepted: its clock restarts"
    REACT = "as the table of reject reasons says"
    TAKE = "those numbers are not missing any more; the request's clock restarts"
    CHECK = "the answer is over: ask again for what it left out"
    COUNT_LATE = "it answers a request that is void"
    CONNECT = "ask for what waited for the server"
    DISCONNECT = "requests under way are void: they wait for the server"
    AWAIT_REFRESH = "the refresh was accepted: its clock restarts"
    REACT_REFRESH = "as the refresh server's table of reject reasons says"
    RETRY_REFRESH = "the refresh server is back: ask it now"
    AWAIT_SNAPSHOT = "a snapshot has begun: wait for its end instead of asking again"
    REFRESH_AGAIN = "the snapshot failed: ask again after a pause, or rest"
    HEAL = "healed where the snapshot reaches every lost range; else as a failed one"
    SATISFY = "nothing was lost: the snapshot is for those who wanted one"
    WANT = "ask for a snapshot; say so where one cannot be had"
    LOOK = "do what has become due"


class Rule(NamedTuple):
    """One entry of the table."""

    action: Action
    next: tuple[State, ...]


_SYNC, _SUSPECT, _REQUEST, _REFRESH, _STALE = State

#: The states in which nothing is lost: a channel returns to one of them when it is healed.
_UNHURT = (_SYNC, _SUSPECT, _REQUEST)


def _same(state: State, rows: dict[Input, Action]) -> dict[Input, Rule]:
    """Return rules that do something and stay in `state`."""
    return {event: Rule(action, (state,)) for event, action in rows.items()}


#: The same in every state; only the state that follows differs.
_EVERYWHERE = {
    Input.NOTICED: Action.SUSPECT,
    Input.MISSING: Action.REQUEST,
    Input.LOST: Action.LOSE,
    Input.RESET: Action.VOID,
    Input.SERVER_UP: Action.CONNECT,
    Input.SERVER_DOWN: Action.DISCONNECT,
    Input.REFRESH_UP: Action.RETRY_REFRESH,
    Input.TICK: Action.LOOK,
}
#: Nothing is under way at the retransmission server.
_NO_REQUESTS = {
    Input.CLOSED: Action.SETTLE,
    Input.PROGRESS: Action.NOTHING,
    Input.ACCEPTED: Action.COUNT_LATE,
    Input.REJECTED: Action.COUNT_LATE,
    Input.ARRIVED: Action.COUNT_LATE,
    Input.ANSWERED: Action.NOTHING,
}
#: Requests may be under way at the retransmission server.
_REQUESTS = {
    Input.CLOSED: Action.SETTLE,
    Input.PROGRESS: Action.ADVANCE,
    Input.ACCEPTED: Action.WAIT_ON,
    Input.REJECTED: Action.REACT,
    Input.ARRIVED: Action.TAKE,
    Input.ANSWERED: Action.CHECK,
}
#: A subscriber may have requested a snapshot; nothing is lost.
_WANTED = {
    Input.REFRESH_ACCEPTED: Action.AWAIT_REFRESH,
    Input.REFRESH_REJECTED: Action.REACT_REFRESH,
    Input.SNAPSHOT_BEGAN: Action.AWAIT_SNAPSHOT,
    Input.SNAPSHOT_FAILED: Action.REFRESH_AGAIN,
    Input.SNAPSHOT: Action.SATISFY,
    Input.WANT_SNAPSHOT: Action.WANT,
}
_LOSE = Rule(Action.LOSE, (_REFRESH, _STALE))
_VOID = Rule(Action.VOID, (_SYNC,))

#: (state, input) -> rule, every pair.
TABLE: dict[State, dict[Input, Rule]] = {
    _SYNC: {
        **_same(_SYNC, {**_EVERYWHERE, **_NO_REQUESTS, **_WANTED}),
        Input.NOTICED: Rule(Action.SUSPECT, (_SUSPECT,)),
        Input.MISSING: Rule(Action.REQUEST, (_REQUEST,)),
        Input.LOST: _LOSE,
        Input.CLOSED: Rule(Action.NOTHING, (_SYNC,)),
    },
    _SUSPECT: {
        **_same(_SUSPECT, {**_EVERYWHERE, **_NO_REQUESTS, **_WANTED}),
        Input.MISSING: Rule(Action.REQUEST, (_REQUEST,)),
        Input.LOST: _LOSE,
        Input.CLOSED: Rule(Action.SETTLE, (_SYNC,)),
        Input.RESET: _VOID,
    },
    _REQUEST: {
        **_same(_REQUEST, {**_EVERYWHERE, **_REQUESTS, **_WANTED}),
        Input.LOST: _LOSE,
        Input.CLOSED: Rule(Action.SETTLE, (_SYNC,)),
        Input.PROGRESS: Rule(Action.ADVANCE, (_REQUEST, _SUSPECT)),
        Input.ARRIVED: Rule(Action.TAKE, (_REQUEST, _SUSPECT)),
        Input.RESET: _VOID,
    },
    _REFRESH: {
        **_same(_REFRESH, {**_EVERYWHERE, **_REQUESTS, **_WANTED}),
        Input.RESET: _VOID,
        Input.REFRESH_REJECTED: Rule(Action.REACT_REFRESH, (_REFRESH, _STALE)),
        Input.SNAPSHOT_FAILED: Rule(Action.REFRESH_AGAIN, (_REFRESH, _STALE)),
        Input.SNAPSHOT: Rule(Action.HEAL, (_REFRESH, _STALE, *_UNHURT)),
        Input.TICK: Rule(Action.LOOK, (_REFRESH, _STALE)),
    },
    _STALE: {
        **_same(_STALE, {**_EVERYWHERE, **_REQUESTS}),
        **_same(_STALE, dict.fromkeys(_WANTED, Action.NOTHING)),
        Input.WANT_SNAPSHOT: Rule(Action.WANT, (_STALE,)),
        Input.RESET: _VOID,
        Input.REFRESH_UP: Rule(Action.RETRY_REFRESH, (_REFRESH, _STALE)),
        Input.SNAPSHOT: Rule(Action.HEAL, (_STALE, *_UNHURT)),
        Input.TICK: Rule(Action.LOOK, (_STALE, _REFRESH)),
    },
}
