# States, inputs, actions and verdicts for C. states.py says the same to Python, and what they mean.

cdef enum:
    JOINING = 0
    FLOWING = 1
    WAITING = 2
    BLOCKED = 3
    RENUMBERING = 4

cdef enum:
    OLD = 0
    NEXT = 1
    AHEAD = 2
    JUMP = 3
    HEARTBEAT_INPUTS = 4
    INPUTS = 8

cdef enum:
    NOTHING = 0
    AGREE = 1
    START = 2
    HINT = 3
    PUBLISH = 4
    HOLD = 5
    DROP = 6
    REVEAL = 7
    QUARANTINE = 8
    REFUSE = 9

cdef enum:
    HEARD = 0
    PUBLISHED = 1
    HELD = 2
    DUPLICATE = 3
    LATE = 4
    STALE = 5
    QUARANTINED = 6
    REFUSED = 7
    RENUMBERED = 8
