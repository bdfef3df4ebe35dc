# Written by setup.py from the module of this name.

cdef enum:
    FREE = 0
    WAITING = 1
    READY = 2
    WOKEN = 3
    FOLLOWING = 4
    FLYING = 5
    PARKED = 6
