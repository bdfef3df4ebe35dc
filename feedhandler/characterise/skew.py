# cython: initializedcheck=False
# (Every view is made in `__init__`.)
"""Skew: the time between the copies of a packet on two lines. No I/O, compiled, mergeable.

`Skew` takes of each numbered packet its service, its channel (the service on one line), its number
and its time. The first copy waits in a ring, one a service and `RING` numbers long; the copy on
another channel makes a pair, counted by which channel was first. Copies without a second are kept
(`leftovers`, bounded), so that `digest` can pair them with copies in the next stretch of the
capture. A pair whose times go backwards is counted apart.
"""

import cython
import numpy as np
from cython.cimports.feedhandler.histogram import fine_bucket_of

from feedhandler.codecs.visibility import Public
from feedhandler.histogram import FINE_BUCKETS

#: Numbers of a service that may wait for their second copy: at 100,000 packets a second, 80 ms.
RING = 8_192
#: Copies that are further apart than this are not taken for one packet's.
APART_NS_MAX = 10_000_000_000
#: Leftovers kept of a stretch; older ones are unlikely to find their copy.
LEFT_MAX = 65_536
#: Channels that pairs are counted for.
CHANNELS_MAX = 256

_RING = cython.declare(cython.Py_ssize_t, RING)
_APART = cython.declare(cython.longlong, APART_NS_MAX)
_LEFT = cython.declare(cython.Py_ssize_t, LEFT_MAX)
_FIRST_ROOM = 8


@cython.final
@cython.cclass
class Skew:
    """Skew histograms; see the module's text.

    A row for each pair of channels: first_channels and later_channels i32, buckets
    u32[FINE_BUCKETS] and backwards i64. `left_behind` counts leftovers beyond the bound.
    """

    services: Public[cython.Py_ssize_t]
    pairs: Public[cython.Py_ssize_t]
    left: Public[cython.Py_ssize_t]
    left_behind: Public[cython.Py_ssize_t]
    _numbers: cython.ulonglong[::1]
    _times: cython.longlong[::1]
    _channels: cython.int[::1]
    _pair_of: cython.int[:, ::1]
    _buckets: cython.uint[:, ::1]
    _sides: cython.int[:, ::1]
    _backwards: cython.longlong[::1]
    _left_services: cython.int[::1]
    _left_channels: cython.int[::1]
    _left_numbers: cython.ulonglong[::1]
    _left_ns: cython.longlong[::1]

    def __init__(self) -> None:
        self.services = 0
        self.pairs = 0
        self.left = 0
        self.left_behind = 0
        self._pair_of = memoryview(np.full((CHANNELS_MAX, CHANNELS_MAX), -1, np.int32))
        self._left_services = memoryview(np.zeros(LEFT_MAX, np.int32))
        self._left_channels = memoryview(np.zeros(LEFT_MAX, np.int32))
        self._left_numbers = memoryview(np.zeros(LEFT_MAX, np.uint64))
        self._left_ns = memoryview(np.zeros(LEFT_MAX, np.int64))
        self._allot_rings(_FIRST_ROOM)
        self._allot_pairs(_FIRST_ROOM)

    def _allot_rings(self, services: cython.Py_ssize_t) -> None:
        used, room = self.services * RING, services * RING
        numbers = np.zeros(room, np.uint64)
        times = np.zeros(room, np.int64)
        channels = np.full(room, -1, np.int32)
        if used:
            numbers[:used] = np.asarray(self._numbers)[:used]
            times[:used] = np.asarray(self._times)[:used]
            channels[:used] = np.asarray(self._channels)[:used]
        self._numbers = memoryview(numbers)
        self._times = memoryview(times)
        self._channels = memoryview(channels)

    def _allot_pairs(self, pairs: cython.Py_ssize_t) -> None:
        buckets = np.zeros((pairs, FINE_BUCKETS), np.uint32)
        sides = np.zeros((2, pairs), np.int32)
        backwards = np.zeros(pairs, np.int64)
        if self.pairs:
            buckets[: self.pairs] = np.asarray(self._buckets)[: self.pairs]
            sides[:, : self.pairs] = np.asarray(self._sides)[:, : self.pairs]
            backwards[: self.pairs] = np.asarray(self._backwards)[: self.pairs]
        self._buckets = memoryview(buckets)
        self._sides = memoryview(sides)
        self._backwards = memoryview(backwards)

    def add_service(self) -> int:
        """Make room for one more service; return its index."""
        if self.services * RING == len(self._numbers):
            self._allot_rings(2 * self.services)
        self.services += 1
        return self.services - 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note(
        self,
        service: cython.int,
        channel: cython.int,
        number: cython.ulonglong,
        time_ns: cython.longlong,
    ) -> cython.int:
        """Take one packet. `service` is an index that `add_service` returned."""
        slot: cython.Py_ssize_t = number & (_RING - 1)
        slot += service * _RING
        waiting: cython.int = self._channels[slot]
        if waiting >= 0:
            if self._numbers[slot] == number:
                if waiting == channel:
                    return 0
                since: cython.longlong = time_ns - self._times[slot]
                if since <= _APART:
                    self._channels[slot] = -1
                    return self._count(waiting, channel, since)
            self._leave(service, slot)
        self._channels[slot] = channel
        self._numbers[slot] = number
        self._times[slot] = time_ns
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _count(self, first: cython.int, later: cython.int, since: cython.longlong) -> cython.int:
        pair: cython.int = self._pair_of[first, later]
        if pair < 0:
            with cython.gil:
                if self.pairs == len(self._buckets):
                    self._allot_pairs(2 * self.pairs)
            pair = self.pairs
            self._pair_of[first, later] = pair
            self._sides[0, pair] = first
            self._sides[1, pair] = later
            self.pairs += 1
        if since < 0:
            self._backwards[pair] += 1
        else:
            self._buckets[pair, fine_bucket_of(since)] += 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _leave(self, service: cython.int, slot: cython.Py_ssize_t) -> cython.int:
        """Move the copy that waits at `slot` to the leftovers, or count it beyond the bound."""
        if self.left == _LEFT:
            self.left_behind += 1
            return 0
        self._left_services[self.left] = service
        self._left_channels[self.left] = self._channels[slot]
        self._left_numbers[self.left] = self._numbers[slot]
        self._left_ns[self.left] = self._times[slot]
        self.left += 1
        return 0

    def histograms(self) -> dict[str, np.ndarray]:
        """Return what was counted, without the empty buckets.

        `pair`, `bucket` i32, `count` i64; and of each pair `first_channel`, `later_channel` i32,
        `backwards` i64.
        """
        used = np.asarray(self._buckets)[: self.pairs]
        pair, bucket = np.nonzero(used)
        sides = np.asarray(self._sides)[:, : self.pairs]
        return {
            "pair": pair.astype(np.int32),
            "bucket": bucket.astype(np.int32),
            "count": used[pair, bucket].astype(np.int64),
            "first_channel": sides[0].copy(),
            "later_channel": sides[1].copy(),
            "backwards": np.asarray(self._backwards)[: self.pairs].copy(),
        }

    def leftovers(self) -> dict[str, np.ndarray]:
        """Return the copies without a second.

        `service` i32 (index), `channel` i32, `number` u64, `time_ns` i64. Those that still waited
        at the end come last, in the order of the ring's slots.
        """
        (slot,) = np.nonzero(np.asarray(self._channels)[: self.services * RING] >= 0)
        left = self.left
        return {
            "service": np.concatenate(
                [np.asarray(self._left_services)[:left], (slot // RING).astype(np.int32)]
            ),
            "channel": np.concatenate(
                [np.asarray(self._left_channels)[:left], np.asarray(self._channels)[slot]]
            ),
            "number": np.concatenate(
                [np.asarray(self._left_numbers)[:left], np.asarray(self._numbers)[slot]]
            ),
            "time_ns": np.concatenate(
                [np.asarray(self._left_ns)[:left], np.asarray(self._times)[slot]]
            ),
        }
