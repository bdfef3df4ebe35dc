"""Waits between attempts: doubling, jittered, bounded.

Receivers that lost the same packet, or the same server, lose it at the same instant. The jitter
keeps them from coming back at the same instant too.
"""

import random

#: Doublings after which the wait no longer grows, whatever the bound says.
DOUBLINGS_MAX = 32


class Backoff:
    """Waits of half to all of `first_us`, then of twice that, and so on up to `most_us`.

    The same `seed` gives the same waits.
    """

    __slots__ = ("_first_ns", "_most_ns", "_random")

    def __init__(self, first_us: int, most_us: int, seed: int) -> None:
        self._first_ns = first_us * 1000
        self._most_ns = max(first_us, most_us) * 1000
        self._random = random.Random(seed)

    def delay_ns(self, tries: int) -> int:
        """Return the wait in ns after `tries` failures (1: the first); at least half `first_us`."""
        doublings = min(max(tries - 1, 0), DOUBLINGS_MAX)
        whole = min(self._first_ns << doublings, self._most_ns)
        return self._random.randint(whole // 2, whole)
