"""Last hops of different length (model 3): measured, exchanged over the tree, and held off.

A receiver that hands messages to an isolated process is not the end: what lies between differs from
machine to machine and hardly varies ("Jasper", section 8). The receiver sends probes to a port of
the process, which sends back whatever comes there; half of a round trip is the last hop, the
median of the last `SAMPLES` of them is told with each report. On the way up the tree the longest
one counts, and the sender tells that to all receivers; each holds messages for what its own last
hop is shorter. (In the source each receiver tells every other one: N^2 messages for N.)

A last hop counts up to `bound_ns`, so a receiver that lies has the others hold for no more than
that. One that has not told its last hop for `VALID_INTERVALS` does not count any more, and a
receiver whose process does not answer neither tells nor holds.

A probe is a number and a seal over it, 24 bytes, which nobody but the receiver can make; its answer
is the same bytes, taken once and within `WAIT_NS`.
"""

import hashlib
import statistics
from collections import OrderedDict, deque

#: Round trips of which the median counts: some three seconds.
SAMPLES = 64
#: How often the process is probed.
PROBE_NS = 50_000_000
#: An answer that takes longer is none: the process has stood still.
WAIT_NS = 1_000_000_000
#: Without any answer for so long the last hop is not known.
VALID_NS = 5_000_000_000
#: A last hop counts up to here: four times what the source saw at its 90th percentile.
BOUND_NS = 200_000
#: Intervals for which a child's last hop counts, where it tells no other.
VALID_INTERVALS = 5
_NUMBER_BYTES = 8
_SEAL_BYTES = 16
PROBE_BYTES = _NUMBER_BYTES + _SEAL_BYTES


class Probes:
    """Probes that are on their way to an echo: numbers, sealed with `key`. At most `asked_max` are
    waited for; the oldest is given up for a further one. Times are of one clock, which may be
    set."""

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
        """Take the answer to a probe, once; its round trip in ns, negative where the clock was set
        back, or None for what is no answer."""
        asked_ns = self._asked.pop(datagram, None)
        return None if asked_ns is None else now_ns - asked_ns


class LastHop:
    """A receiver's own: `probe` is sent to its process, `answered` takes what comes from there.
    `key` seals probes. Times are of one clock, which may be set."""

    def __init__(self, key: bytes) -> None:
        self._probes = Probes(key)
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._answered_ns = 0
        #: When `probe` is wanted next; 0: at once.
        self.probe_ns = 0
        #: The longest last hop of all receivers, as the sender has told; 0: none.
        self.longest_ns = 0

    def probe(self, now_ns: int) -> bytes:
        """A probe, to be sent now."""
        self.probe_ns = now_ns + PROBE_NS
        return self._probes.probe(now_ns)

    def answered(self, datagram: bytes, now_ns: int) -> bool:
        """Something has come from the process; whether it is the answer to a probe."""
        trip_ns = self._probes.answered(datagram, now_ns)
        if trip_ns is None:
            return False
        if 0 <= trip_ns <= WAIT_NS:
            self.observe(trip_ns, now_ns)
        return True

    def observe(self, trip_ns: int, now_ns: int) -> None:
        """A round trip took so long."""
        if abs(now_ns - self._answered_ns) > VALID_NS:
            self._samples.clear()
        self._samples.append(trip_ns)
        self._answered_ns = now_ns

    def own_ns(self, now_ns: int) -> int:
        """The last hop, at least 1 ns; 0 where it is not known (any more)."""
        if not self._samples or abs(now_ns - self._answered_ns) > VALID_NS:
            return 0
        return max(round(statistics.median(self._samples) / 2), 1)

    def extra_ns(self, now_ns: int) -> int:
        """What to hold besides: by how much the own last hop is shorter than the longest."""
        own = self.own_ns(now_ns)
        return max(min(self.longest_ns, BOUND_NS) - own, 0) if own else 0


class LongestHop:
    """The longest last hop below a proxy or the sender, of those told lately."""

    def __init__(self, bound_ns: int = BOUND_NS) -> None:
        self.bound_ns = bound_ns
        self._told: dict[str, tuple[int, int]] = {}

    def told(self, child: str, last_hop_ns: int, interval: int) -> None:
        """A child has told the longest of those below it; 0: none is known there."""
        if last_hop_ns:
            self._told[child] = min(last_hop_ns, self.bound_ns), interval
        else:
            self._told.pop(child, None)

    def longest_ns(self, interval: int) -> int:
        """The longest, as of an interval; 0: none is known."""
        self._told = {
            child: it for child, it in self._told.items() if interval - it[1] < VALID_INTERVALS
        }
        return max((each for each, _ in self._told.values()), default=0)
