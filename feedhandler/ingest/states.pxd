# Written by setup.py from the module of this name.

cdef enum:
    INPUTS = 8
    JOINING = 0
    FLOWING = 1
    WAITING = 2
    BLOCKED = 3
    RENUMBERING = 4
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
    OLD = 0
    NEXT = 1
    AHEAD = 2
    JUMP = 3
    HEARTBEAT_INPUTS = 4
    HEARD = 0
    PUBLISHED = 1
    HELD = 2
    DUPLICATE = 3
    LATE = 4
    STALE = 5
    QUARANTINED = 6
    REFUSED = 7
    RENUMBERED = 8
