# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Release for many receivers by one thread, at once.

The last one is late by what the others take, some tenth of a microsecond each, and not by what
Python does with their events. The caller decides when to release, and waits until then: `soonest`
says when that is.
"""

import time

import cython
from cython.cimports.feedhandler.overlay.release import Release

from feedhandler.overlay.release import Event


def soonest(holdings: list[Release]) -> int:
    """Return when any of them has something to release, by the sender's clock; 0: no deadline."""
    each: Release
    found: cython.longlong = 0
    for each in holdings:
        due_ns: cython.longlong = each._step()
        if due_ns and (not found or due_ns < found):
            found = due_ns
    return found


def release_all(holdings: list[Release], offset_ns: int = 0) -> list[tuple[int, list[Event]]]:
    """Release for each; return when that was, ns since 1970 by the own clock, and its events.

    `offset_ns` added to the own clock gives the sender's.
    """
    each: Release
    offset: cython.longlong = offset_ns
    clock = time.time_ns
    found: list[tuple[int, list[Event]]] = []
    for each in holdings:
        now_ns: cython.longlong = clock()
        found.append((now_ns, each._release(now_ns + offset)))
    return found
