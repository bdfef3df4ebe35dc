"""The state machine of one channel's arbitration, as a table.

A channel is in one of five states:

JOINING      no number is expected yet: packets are collected for a moment, to start at the lowest
FLOWING      everything up to `expected` is published, nothing is known to be missing
WAITING      something is missing; packets behind the gap are held, and each gap has a deadline
BLOCKED      the ring lacked room; packets are held and written as soon as there is some
RESETTING    a reset or new session waits for ring room; until then nothing new is taken

An input is classified by its number alone, against `expected` (and `first`, the feed's first
number, while joining):

OLD    everything in it was expected before
NEXT   it begins at, or spans, `expected`
AHEAD  beyond, but within the window of `max_jump`
JUMP   beyond the window

A heartbeat's number is the one that the next packet will carry; for it NEXT means that the line
agrees with the channel, AHEAD that packets at the end of a burst were lost. While joining
everything is AHEAD, except what begins at `first`, which is NEXT: then there is no need to wait.

The table has the action; the next state follows from the conditions afterwards (something held or
known to be missing: WAITING; ring full: BLOCKED; and so on). Sequence resets, new sessions and
packets from before a reset are sorted out before the table is used: see `arbitration.py`.
"""

from enum import IntEnum


class State(IntEnum):
    """States of a channel."""

    JOINING = 0
    FLOWING = 1
    WAITING = 2
    BLOCKED = 3
    RESETTING = 4


class Input(IntEnum):
    """Inputs: packets and heartbeats, classified by number."""

    OLD = 0
    NEXT = 1
    AHEAD = 2
    JUMP = 3
    HEARTBEAT_OLD = 4
    HEARTBEAT_NEXT = 5
    HEARTBEAT_AHEAD = 6
    HEARTBEAT_JUMP = 7


class Action(IntEnum):
    """Actions on an input."""

    NOTHING = 0  # only note that the line is alive
    AGREE = 1  # the line expects the same number: the epoch is alive
    START = 2  # join the stream here
    HINT = 3  # remember the number as one that the stream may be joined at
    PUBLISH = 4  # write it to the ring, then what it releases
    HOLD = 5  # keep it until the gap before it is closed or given up
    DROP = 6  # count as duplicate, late or stale; compare with the first copy
    REVEAL = 7  # everything before the heartbeat's number is missing: the deadline runs
    QUARANTINE = 8  # set it aside until it is confirmed
    REFUSE = 9  # drop and count it: there is no room


class Verdict(IntEnum):
    """Outcome for a packet, returned by `Arbiter.receive`."""

    HEARD = 0
    PUBLISHED = 1
    HELD = 2
    DUPLICATE = 3
    LATE = 4
    STALE = 5
    QUARANTINED = 6
    REFUSED = 7
    RENUMBERED = 8


_HEARTBEATS = (
    Input.HEARTBEAT_OLD,
    Input.HEARTBEAT_NEXT,
    Input.HEARTBEAT_AHEAD,
    Input.HEARTBEAT_JUMP,
)
_AFTER_START = {
    Input.OLD: Action.DROP,
    Input.NEXT: Action.PUBLISH,
    Input.AHEAD: Action.HOLD,
    Input.JUMP: Action.QUARANTINE,
    Input.HEARTBEAT_OLD: Action.NOTHING,
    Input.HEARTBEAT_NEXT: Action.AGREE,
    Input.HEARTBEAT_AHEAD: Action.REVEAL,
    Input.HEARTBEAT_JUMP: Action.QUARANTINE,
}

#: (state, input) -> action, every pair.
TABLE: dict[State, dict[Input, Action]] = {
    State.JOINING: {
        Input.OLD: Action.HOLD,
        Input.NEXT: Action.START,
        Input.AHEAD: Action.HOLD,
        Input.JUMP: Action.HOLD,
        Input.HEARTBEAT_OLD: Action.NOTHING,
        Input.HEARTBEAT_NEXT: Action.START,
        Input.HEARTBEAT_AHEAD: Action.HINT,
        Input.HEARTBEAT_JUMP: Action.HINT,
    },
    State.FLOWING: _AFTER_START,
    State.WAITING: _AFTER_START,
    # The ring is full: what comes next in order has to wait like the rest.
    State.BLOCKED: {**_AFTER_START, Input.NEXT: Action.HOLD},
    State.RESETTING: {
        **dict.fromkeys(Input, Action.REFUSE),
        **dict.fromkeys(_HEARTBEATS, Action.NOTHING),
    },
}

#: Inputs per state in the flat form of the table.
INPUTS = len(Input)


def flat_table() -> bytes:
    """Return the table as bytes: the action of (state, input) at state * INPUTS + input."""
    return bytes(TABLE[state][what] for state in State for what in Input)


# The same as plain numbers, for the core.
(JOINING, FLOWING, WAITING, BLOCKED, RESETTING) = (int(state) for state in State)
(NOTHING, AGREE, START, HINT, PUBLISH, HOLD, DROP, REVEAL, QUARANTINE, REFUSE) = (
    int(action) for action in Action
)
(OLD, NEXT, AHEAD, JUMP) = (int(what) for what in Input if what not in _HEARTBEATS)
HEARTBEAT_INPUTS = int(Input.HEARTBEAT_OLD)
(HEARD, PUBLISHED, HELD, DUPLICATE, LATE, STALE, QUARANTINED, REFUSED, RENUMBERED) = (
    int(verdict) for verdict in Verdict
)
