"""One-way delays between all pairs of hosts: what a network has before a tree is laid over it.

The members of a topology, whatever their roles there, send each other probes: each host to every
other host, in windows of a second. The median of a pair's delays in a window is the pair's delay in
that window. Routing a message from one host to another through a third one would help where the sum
of both ways is shorter than the direct way: a violation of the triangle inequality ("Jasper",
section 2.2, with windows of one second and at least 10 us to be gained). Clock errors do not affect
that: each host's is added once and subtracted once on either way. They do affect the delays
themselves.

A probe is a number, the time when it was sent, and its target, with a seal of the sending member's
key: 34 bytes. Nothing is ever answered. A member that runs in a tree at the same address drops
probes as too short.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy

from feedhandler.overlay.topology import Address, Topology

#: A window, ns; they begin with the seconds of the sender's clock.
WINDOW_NS = 1_000_000_000
#: What a way through a third host must save to count, us.
GAIN_US = 10.0
#: A window is closed when the one so many later has begun: probes that come after that are lost.
OPEN_WINDOWS = 2
#: A probe that is older, or as far ahead, is an old recording, or of a clock out of step.
FRESH_NS = 10_000_000_000
_PROBE = Struct("<QqH")
_SEAL_BYTES = 16
PROBE_BYTES = _PROBE.size + _SEAL_BYTES


@dataclass(frozen=True, slots=True)
class PairWindow:
    """One window of a pair of hosts: delays one way, us. `window`: its number since 1970."""

    window: int
    source: str
    target: str
    count: int
    p50_us: float
    p99_us: float


class MeshHost:
    """One host's part of a mesh.

    `counts`: datagrams by outcome, `taken` or the reason for dropping. Raises `UsageError` for a
    name that the topology does not have.
    """

    def __init__(self, topology: Topology, name: str) -> None:
        me = topology.member(name)
        self.me = me
        self.counts: Counter[str] = Counter()
        self._number = 0
        self._index = topology.members.index(me)
        self._others = [member for member in topology.members if member is not me]
        self._index_of = {each.name: at for at, each in enumerate(topology.members)}
        self._source_of = {other.address: other for other in self._others}
        self._seen: dict[str, tuple[int, int]] = {}
        self._delays: dict[tuple[int, str], list[int]] = {}
        self._closed = 0

    def targets(self, turn: int) -> Sequence[Address]:
        """Return the targets of a round in order; each round begins with another one.

        So none is always the last.
        """
        others = self._others
        at = turn % len(others) if others else 0
        return [each.address for each in others[at:] + others[:at]]

    def probe(self, target: Address, now_ns: int) -> bytes:
        """Make a probe for one of `targets`, to be sent now."""
        self._number += 1
        member = self._source_of[target]
        head = _PROBE.pack(self._number, now_ns, self._index_of[member.name])
        return head + _seal(self.me.key, head)

    def receive(self, datagram: bytes, address: Address, came_ns: int) -> None:
        """Take a datagram; anything but a probe of another member to this one is dropped.

        Drops are counted.
        """
        self.counts[self._judge(datagram, address, came_ns)] += 1

    def _judge(self, datagram: bytes, address: Address, came_ns: int) -> str:
        source = self._source_of.get(address)
        if source is None:
            return "stranger"
        if len(datagram) != PROBE_BYTES:
            return "length"
        number, sent_ns, target = _PROBE.unpack_from(datagram)
        if target != self._index or not hmac.compare_digest(
            _seal(source.key, datagram[: _PROBE.size]), datagram[_PROBE.size :]
        ):
            return "seal"
        # By time, then number: a host that was started again begins with number 1.
        if (sent_ns, number) <= self._seen.get(source.name, (0, 0)):
            return "number"
        if abs(came_ns - sent_ns) > FRESH_NS:
            return "stale"
        self._seen[source.name] = sent_ns, number
        window = sent_ns // WINDOW_NS
        if window <= self._closed:
            return "late"
        self._delays.setdefault((window, source.name), []).append(came_ns - sent_ns)
        return "taken"

    def close(self, now_ns: int) -> Iterator[PairWindow]:
        """Yield the windows that are over, in order, and forget them.

        With `now_ns` far ahead these are all, at the end.
        """
        last = now_ns // WINDOW_NS - OPEN_WINDOWS
        over = sorted(delay for delay in self._delays if delay[0] <= last)
        for window, source in over:
            delays = numpy.array(self._delays.pop((window, source))) / 1e3
            p50, p99 = map(float, numpy.quantile(delays, (0.5, 0.99)))
            yield PairWindow(window, source, self.me.name, len(delays), p50, p99)
        self._closed = max(self._closed, last)


def _seal(key: bytes, head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=_SEAL_BYTES, key=key).digest()


# -- evaluation -------------------------------------------------------------------------------


def violations(delays: numpy.ndarray) -> numpy.ndarray:
    """Return what each pair would gain by the best way through a third host, us.

    `delays`: us, (hosts, hosts), from row to column, NaN where not known. float64, (hosts, hosts),
    negative where it would lose, NaN where no way is known; the diagonal is NaN.
    """
    hosts = len(delays)
    found = numpy.full((hosts, hosts), numpy.nan)
    for source in range(hosts):
        # Rows: the host in between; columns: the target.
        ways = delays[source][:, None] + delays
        ways[source, :] = numpy.nan
        numpy.fill_diagonal(ways, numpy.nan)
        ways[numpy.isnan(ways)] = numpy.inf
        best = ways.min(axis=0, initial=numpy.inf)
        gain = delays[source] - best
        gain[~numpy.isfinite(best)] = numpy.nan
        gain[source] = numpy.nan
        found[source] = gain
    return found


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of all pairs, us: float64, (windows, hosts, hosts).

    From row to column, NaN where not known.
    """

    hosts: Sequence[str]
    #: Number of each window since 1970.
    numbers: Sequence[int]
    p50: numpy.ndarray
    p99: numpy.ndarray

    def gains(self) -> numpy.ndarray:
        """Return each pair's gain by a third host in each window (`violations`).

        float64, (windows, hosts, hosts).
        """
        return numpy.array([violations(each) for each in self.p50])

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs with any known delay: indices of source and target."""
        known = ~numpy.isnan(self.p50).all(axis=0)
        return [(int(a), int(b)) for a, b in zip(*numpy.nonzero(known), strict=True)]


def windows_of(rows: Sequence[PairWindow]) -> Windows:
    """Put all hosts' rows together; of two for the same pair and window the later one counts."""
    hosts = sorted({each.source for each in rows} | {each.target for each in rows}, key=_natural)
    numbers = sorted({each.window for each in rows})
    host_at: Mapping[str, int] = {name: at for at, name in enumerate(hosts)}
    window_at = {number: at for at, number in enumerate(numbers)}
    p50 = numpy.full((len(numbers), len(hosts), len(hosts)), numpy.nan)
    p99 = p50.copy()
    for row in rows:
        at = window_at[row.window], host_at[row.source], host_at[row.target]
        p50[at], p99[at] = row.p50_us, row.p99_us
    return Windows(hosts, numbers, p50, p99)


def _natural(name: str) -> tuple[str, int, str]:
    """Return a sort key that orders names by their last number."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name
