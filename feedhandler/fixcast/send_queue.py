# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""A channel's datagrams on their way out: being filled, then waiting for the token bucket.

Messages are stamped straight into the datagram that is being filled, in a slab used as a ring;
nothing is allocated for a message, and its bytes are written once. A datagram consists of whole
messages, and is complete as in `datagrams.Packer`: when the next message does not fit, or
`period_ns` after its first one. Complete ones wait, in order, until `due` says how many may leave;
`gone` charges the bucket for them. `offsets` and `sizes`, rings too, have the datagrams' positions
in the slab, from index `first` on.

Bounded: while the queue is full (`waiting_max` datagrams wait, or there is no room for a message of
the greatest length) no message is taken. Administrative messages and datagrams made elsewhere have
`SPARE` slots more; beyond them they are refused, and the caller counts them.
"""

import cython
import numpy
from cython.cimports.feedhandler.fixcast.pacing import TokenBucket
from cython.cimports.feedhandler.fixcast.stamping import Stamper
from cython.cimports.feedhandler.retrans.store import PacketStore

from feedhandler.codecs.visibility import Readonly
from feedhandler.fixcast.pacing import OVERHEAD_BYTES

if cython.compiled:
    from cython.cimports.libc.string import memcpy

#: Slots for datagrams that are taken although the queue is full: Heartbeats, Logons, GapFills,
#: answers.
SPARE = 64
#: How long a channel that waits for the bucket gathers datagrams for one system call: a tenth of a
#: clock period. One wake-up for each datagram costs more processor time than sending it.
GATHER_NS = 100_000
_GATHER_NS = cython.declare(cython.longlong, GATHER_NS)
_NEVER = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_OVERHEAD = cython.declare(cython.longlong, OVERHEAD_BYTES)


@cython.final
@cython.cclass
class SendQueue:
    """Datagrams of one channel, of at most `bytes_max` bytes.

    A message longer than that, up to `longest`, goes alone. A `period_ns` of 0: each message goes
    at once, alone.

    count          datagrams that wait, without the one that is being filled
    deadline_ns    when that one's period is over; the largest signed number: there is none
    message_bytes  stamped bytes of the application messages taken
    """

    bytes_max: Readonly[cython.Py_ssize_t]
    longest: Readonly[cython.Py_ssize_t]
    waiting_max: Readonly[cython.Py_ssize_t]
    slots: Readonly[cython.Py_ssize_t]
    first: Readonly[cython.Py_ssize_t]
    count: Readonly[cython.Py_ssize_t]
    period_ns: Readonly[cython.longlong]
    deadline_ns: Readonly[cython.longlong]
    message_bytes: Readonly[cython.ulonglong]
    slab: Readonly[cython.uchar[::1]]
    offsets: Readonly[cython.longlong[::1]]
    sizes: Readonly[cython.longlong[::1]]
    reserve: cython.Py_ssize_t
    open_at: cython.Py_ssize_t
    open_size: cython.Py_ssize_t

    def __init__(self, period_ns: int, bytes_max: int, longest: int, waiting_max: int) -> None:
        self.period_ns = period_ns
        self.bytes_max = bytes_max
        self.longest = longest
        self.waiting_max = waiting_max
        self.reserve = max(longest, bytes_max)
        # Large enough that the longest message fits again once what waits has left.
        self.slab = memoryview(numpy.zeros(waiting_max * bytes_max + 3 * self.reserve, numpy.uint8))
        self.slots = waiting_max + SPARE
        self.offsets = memoryview(numpy.zeros(self.slots, numpy.int64))
        self.sizes = memoryview(numpy.zeros(self.slots, numpy.int64))
        self.first = self.count = self.open_at = self.open_size = 0
        self.deadline_ns = 0x7FFF_FFFF_FFFF_FFFF
        self.message_bytes = 0

    def is_full(self) -> cython.bint:
        """Return whether no message may be taken now."""
        return self.count >= self.waiting_max or self._room_for(self.reserve) < 0

    # -- filling ----------------------------------------------------------------------------

    def publish(
        self,
        stamper: Stamper,
        store: PacketStore,
        data: bytes,
        number: cython.ulonglong,
        now_ns: cython.longlong,
    ) -> cython.bint:
        """Take one application message under this number, and keep it in `store`.

        Returns 0 where it cannot be published, or is too long. Not to be called while the queue is
        full.
        """
        if not data:
            return 0
        first = cython.cast(cython.p_const_uchar, data) if cython.compiled else memoryview(data)
        return self._publish(stamper, store, first, len(data), number, now_ns)

    def publish_each(
        self,
        stamper: Stamper,
        store: PacketStore,
        messages: list,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.ulonglong,
        now_ns: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Take `messages[begin:end]`, numbered from `number` on; return how many were taken.

        It stops where the queue is full, and before a message that cannot be published.
        """
        index: cython.Py_ssize_t
        end = min(end, len(messages))
        for index in range(begin, end):
            data: bytes = messages[index]
            if self.is_full() or not self.publish(stamper, store, data, number, now_ns):
                return index - begin
            number += 1
        return max(end - begin, 0)

    def _publish(
        self,
        stamper: Stamper,
        store: PacketStore,
        first: cython.p_const_uchar,
        size: cython.Py_ssize_t,
        number: cython.ulonglong,
        now_ns: cython.longlong,
    ) -> cython.bint:
        """Stamp the `size` bytes from `first` on into the datagram; return 0 where refused."""
        total: cython.Py_ssize_t = stamper.measure(first, size, 0, number)
        if total == 0 or stamper.frame.end != size or total > self.longest:
            return 0
        offset: cython.Py_ssize_t = self._grow(total, now_ns)
        if offset < 0:
            return 0
        stamper.write(first, self.slab, offset)
        store.append(number, number + 1, self.slab, offset, total, now_ns)
        self.message_bytes += total
        self._close_full()
        return 1

    def add(self, data: cython.const_uchar[::1], now_ns: cython.longlong) -> cython.bint:
        """Take a message that is stamped already; return 0 where there is no room for it."""
        size: cython.Py_ssize_t = len(data)
        if size < 1 or size > self.reserve:
            return 0
        offset: cython.Py_ssize_t = self._grow(size, now_ns)
        if offset < 0:
            return 0
        self._copy(data, offset)
        self._close_full()
        return 1

    def push(self, data: cython.const_uchar[::1]) -> cython.bint:
        """Take a whole datagram, behind the one being filled; return 0 where there is no room."""
        size: cython.Py_ssize_t = len(data)
        self.flush()
        offset: cython.Py_ssize_t = self._room_for(size) if 0 < size <= self.reserve else -1
        if offset < 0 or self.count >= self.slots:
            return 0
        self._copy(data, offset)
        self._wait(offset, size)
        return 1

    def tick(self, now_ns: cython.longlong) -> cython.int:
        """Complete the datagram whose period is over."""
        return self.flush() if now_ns >= self.deadline_ns else 0

    def flush(self) -> cython.int:
        """Complete the datagram that is being filled, where there is one."""
        if self.open_size:
            self._wait(self.open_at, self.open_size)
            self.open_size = 0
            self.deadline_ns = _NEVER
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _grow(self, size: cython.Py_ssize_t, now_ns: cython.longlong) -> cython.Py_ssize_t:
        """Return an offset for a message, in the datagram being filled or a new one; -1: none."""
        if self.open_size and self.open_size + size <= self.bytes_max:
            offset: cython.Py_ssize_t = self.open_at + self.open_size
            self.open_size += size
            return offset
        # The full one takes a slot now, and the new one will.
        if self.count + 2 > self.slots:
            return -1
        self.flush()
        offset = self._room_for(max(size, self.bytes_max))
        if offset >= 0:
            self.open_at = offset
            self.open_size = size
            self.deadline_ns = now_ns + self.period_ns
        return offset

    def _close_full(self) -> cython.int:
        """Complete the datagram being filled, where nothing more may go into it."""
        if self.open_size >= self.bytes_max or self.period_ns == 0:
            self.flush()
        return 0

    def _wait(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Append a datagram to those that wait; there must be a slot for it."""
        index: cython.Py_ssize_t = self.first + self.count
        if index >= self.slots:
            index -= self.slots
        self.offsets[index] = at
        self.sizes[index] = size
        self.count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _room_for(self, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where `size` bytes are free behind the last datagram; -1: nowhere."""
        if self.count == 0 and self.open_size == 0:
            return 0 if size <= len(self.slab) else -1
        oldest: cython.Py_ssize_t = self.offsets[self.first] if self.count else self.open_at
        if self.open_size:
            free: cython.Py_ssize_t = self.open_at + self.open_size
        else:
            last: cython.Py_ssize_t = self.first + self.count - 1
            if last >= self.slots:
                last -= self.slots
            free = self.offsets[last] + self.sizes[last]
        if free > oldest:
            if free + size <= len(self.slab):
                return free
            return 0 if size <= oldest else -1
        return free if free + size <= oldest else -1

    def _copy(self, data: cython.const_uchar[::1], index: cython.Py_ssize_t) -> cython.int:
        """Copy a message or datagram into the slab, where there is room for it."""
        size: cython.Py_ssize_t = len(data)
        if cython.compiled:
            memcpy(cython.address(self.slab[index]), cython.address(data[0]), size)
        else:
            self.slab[index : index + size] = data
        return 0

    # -- leaving ----------------------------------------------------------------------------

    def due(
        self, bucket: TokenBucket, now_ns: cython.longlong, most: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return how many of the first datagrams may leave now, `most` at most."""
        index: cython.Py_ssize_t = self.first
        count: cython.Py_ssize_t = 0
        before: cython.longlong = 0
        while count < self.count and count < most:
            size: cython.longlong = self.sizes[index] + _OVERHEAD
            if not bucket.admits(before, size, now_ns):
                break
            before += size
            count += 1
            index = index + 1 if index + 1 < self.slots else 0
        return count

    @cython.ccall
    @cython.exceptval(-2, check=False)
    def ready_ns(self, bucket: TokenBucket, now_ns: cython.longlong) -> cython.Py_ssize_t:
        """Return when to call `due` again; the largest signed number: nothing waits.

        The first datagram may leave then, and within `GATHER_NS` as many more as a quarter of the
        bucket.
        """
        index: cython.Py_ssize_t = self.first
        count: cython.Py_ssize_t = 0
        wanted: cython.longlong = 0
        if self.count == 0:
            return _NEVER
        first_ns: cython.longlong = bucket.ready_ns(self.sizes[self.first] + _OVERHEAD, now_ns)
        while count < self.count and wanted < bucket.burst_bytes // 4:
            wanted += self.sizes[index] + _OVERHEAD
            count += 1
            index = index + 1 if index + 1 < self.slots else 0
        more_ns: cython.longlong = bucket.ready_ns(min(wanted, bucket.burst_bytes // 4), now_ns)
        return max(first_ns, min(more_ns, now_ns + _GATHER_NS))

    def gone(
        self, bucket: TokenBucket, count: cython.Py_ssize_t, now_ns: cython.longlong
    ) -> cython.int:
        """Remove the first `count` datagrams, sent by now, and charge the bucket for them."""
        total: cython.longlong = 0
        while count > 0 and self.count > 0:
            total += self.sizes[self.first] + _OVERHEAD
            self.first = self.first + 1 if self.first + 1 < self.slots else 0
            self.count -= 1
            count -= 1
        return bucket.charge(total, now_ns)

    def datagrams(self, count: int) -> list[bytes]:
        """Return copies of the first `count` datagrams that wait."""
        found: list = []
        ahead: cython.Py_ssize_t
        for ahead in range(min(cython.cast(cython.Py_ssize_t, count), self.count)):
            index: cython.Py_ssize_t = (self.first + ahead) % self.slots
            at: cython.Py_ssize_t = self.offsets[index]
            found.append(bytes(self.slab[at : at + self.sizes[index]]))
        return found
