"""What a slot of a keyed queue is in; the table stands in `feedhandler.keyed.dispatch`."""

FREE = 0
WAITING = 1
READY = 2
WOKEN = 3
FOLLOWING = 4
FLYING = 5
PARKED = 6
