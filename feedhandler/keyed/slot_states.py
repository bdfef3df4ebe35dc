"""States of a slot of a keyed queue; the table is in `feedhandler.keyed.dispatch`."""

FREE = 0
WAITING = 1
READY = 2
WOKEN = 3
FOLLOWING = 4
FLYING = 5
PARKED = 6
