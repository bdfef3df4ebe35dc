"""Last hops of different length (model 3): measured, exchanged over the tree, and compensated.

A receiver that hands messages to an isolated process is not the end: the hop between them differs
from machine to machine and hardly varies ("Jasper", section 8). The receiver sends probes to a port
of the process, which returns whatever comes there; half of a round trip is the last hop, and the
median of the last `SAMPLES` of them is part of each report. On the way up the tree the longest one
counts, and the sender announces that to all receivers; each holds messages longer by the difference
to its own. (In the source each receiver informs every other one: N^2 messages for N.)

A last hop counts up to `bound_ns`, so a receiver that lies makes the others hold for no more than
that. One that has not reported its last hop for `VALID_INTERVALS` does not count any more, and a
receiver whose process does not answer neither reports nor holds.

A probe is a number and a seal over it, 24 bytes, which only the receiver can make; its answer is
the same bytes, accepted once and within `WAIT_NS`.
"""

import hashlib
import statistics
from collections import OrderedDict, deque

#: Number of round trips of which the median counts: some three seconds.
SAMPLES = 64
#: Interval of probes.
PROBE_NS = 50_000_000
#: A longer round trip does not count: the process was stalled.
WAIT_NS = 1_000_000_000
#: Without any answer for this long the last hop is unknown.
VALID_NS = 5_000_000_000
#: Upper limit on a last hop: four times what the source saw at its 90th percentile.
BOUND_NS = 200_000
#: Intervals for which a child's last hop counts, if no other is reported.
VALID_INTERVALS = 5
_NUMBER_BYTES = 8
_SEAL_BYTES = 16
PROBE_BYTES = _NUMBER_BYTES + _SEAL_BYTES


class Probes:
    """Probes in flight to an echo: numbers, sealed with `key`.

    At most `asked_max` are waited for; a further one replaces the oldest. Times are of one clock,
    which may be set.
    """

    def __init__(self, key: bytes, asked_max: int = WAIT_NS // PROBE_NS) -> None:
        self._key, self._asked_max = key, asked_max
        self._number = 0
        self._asked: OrderedDict[bytes, int] = OrderedDict()

    def probe(self, now_ns: int) -> bytes:
        """Make a probe of `PROBE_BYTES`, to be sent now."""
        self._number += 1
        number = self._number.to_bytes(_NUMBER_BYTES, "little")
        seal = hashlib.blake2b(number, digest_size=_SEAL_BYTES, key=self._key).digest()
        self._asked[number + seal] = now_ns
        while len(self._asked) > self._asked_max:
            self._asked.popitem(last=False)
        return number + seal

    def answered(self, datagram: bytes, now_ns: int) -> int | None:
        """Take the answer to a probe, once; return its round trip in ns, or None for anything else.

        It is negative where the clock was set back.
        """
        asked_ns = self._asked.pop(datagram, None)
        return None if asked_ns is None else now_ns - asked_ns


class LastHop:
    """A receiver's last hop: send `probe` to its process, and pass its answers to `answered`.

    `key` seals probes. Times are of one clock, which may be set.
    """

    def __init__(self, key: bytes) -> None:
        self._probes = Probes(key)
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._answered_ns = 0
        #: When `probe` is wanted next; 0: at once.
        self.probe_ns = 0
        #: The longest last hop of all receivers, as the sender announced it; 0: none.
        self.longest_ns = 0

    def probe(self, now_ns: int) -> bytes:
        """Make a probe, to be sent now."""
        self.probe_ns = now_ns + PROBE_NS
        return self._probes.probe(now_ns)

    def answered(self, datagram: bytes, now_ns: int) -> bool:
        """Take a datagram of the process; return whether it is the answer to a probe."""
        trip_ns = self._probes.answered(datagram, now_ns)
        if trip_ns is None:
            return False
        if 0 <= trip_ns <= WAIT_NS:
            self.observe(trip_ns, now_ns)
        return True

    def observe(self, trip_ns: int, now_ns: int) -> None:
        """Record a round trip."""
        if abs(now_ns - self._answered_ns) > VALID_NS:
            self._samples.clear()
        self._samples.append(trip_ns)
        self._answered_ns = now_ns

    def own_ns(self, now_ns: int) -> int:
        """Return the last hop, at least 1 ns; 0 where it is not known (any more)."""
        if not self._samples or abs(now_ns - self._answered_ns) > VALID_NS:
            return 0
        return max(round(statistics.median(self._samples) / 2), 1)

    def extra_ns(self, now_ns: int) -> int:
        """Return the extra hold: how much shorter the own last hop is than the longest; 0:
        unknown."""
        own = self.own_ns(now_ns)
        return max(min(self.longest_ns, BOUND_NS) - own, 0) if own else 0


class LongestHop:
    """The longest last hop below a proxy or the sender, of those reported recently."""

    def __init__(self, bound_ns: int = BOUND_NS) -> None:
        self.bound_ns = bound_ns
        self._reported: dict[str, tuple[int, int]] = {}

    def report(self, child: str, last_hop_ns: int, interval: int) -> None:
        """Record the longest last hop below a child; 0: none is known there."""
        if last_hop_ns:
            self._reported[child] = min(last_hop_ns, self.bound_ns), interval
        else:
            self._reported.pop(child, None)

    def longest_ns(self, interval: int) -> int:
        """Return the longest, as of an interval; 0: none is known."""
        self._reported = {
            child: it for child, it in self._reported.items() if interval - it[1] < VALID_INTERVALS
        }
        return max((each for each, _ in self._reported.values()), default=0)
