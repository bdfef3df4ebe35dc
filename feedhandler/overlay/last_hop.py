"""Last hops of different length (model 3, section 8): measured, exchanged, and held off.

A receiver that hands messages to an isolated process measures how long that takes. The maximum of
all receivers goes up the tree and comes down again; a receiver adds to its hold what its own last
hop is shorter than that, so that messages reach all processes together. The maximum is exchanged
over the tree instead of among all receivers: N messages for N^2.
"""

from collections import deque
from collections.abc import Hashable

#: Samples of the own last hop that count: the source shows it stable within a second.
SAMPLES = 256
#: A last hop counts up to here: the source measured 50 us at the 90th percentile.
LAST_HOP_NS_MAX = 1_000_000
#: A neighbour's word counts for so long.
VALID_NS = 5_000_000_000


class LastHop:
    """The own last hop of a receiver, and what it has to hold because of others'."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._longest_ns = 0
        self._heard_ns = 0

    def observe(self, latency_ns: int) -> None:
        """A message took so long from the receiver to its process."""
        self._samples.append(min(max(latency_ns, 0), LAST_HOP_NS_MAX))

    @property
    def own_ns(self) -> int:
        """The median of the own last hop; 0 where there is none."""
        ordered = sorted(self._samples)
        return ordered[len(ordered) // 2] if ordered else 0

    def longest(self, latency_ns: int, now_ns: int) -> None:
        """The parent has told the longest last hop of all."""
        self._longest_ns, self._heard_ns = min(latency_ns, LAST_HOP_NS_MAX), now_ns

    def extra_ns(self, now_ns: int) -> int:
        """The hold to add; 0 where nothing was measured, or nothing was told lately."""
        if not self._samples or now_ns - self._heard_ns > VALID_NS:
            return 0
        return max(0, self._longest_ns - self.own_ns)


class LongestHop:
    """The longest last hop below a proxy or the sender, of those told lately."""

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[int, int, int]] = {}

    def add(self, child: Hashable, latency_ns: int, receivers: int, now_ns: int) -> None:
        """A child has told the longest of its subtree."""
        self._told[child] = (min(latency_ns, LAST_HOP_NS_MAX), receivers, now_ns)

    def longest(self, now_ns: int) -> tuple[int, int]:
        """Latency in ns, and of how many receivers; (0, 0) where none was told."""
        self._told = {who: it for who, it in self._told.items() if now_ns - it[2] <= VALID_NS}
        told = self._told.values()
        return max((each[0] for each in told), default=0), sum(each[1] for each in told)
