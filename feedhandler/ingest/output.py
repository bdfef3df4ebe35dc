"""Output of one channel: its records in the ring, and its counters.

Every method that writes returns 1, or 0 when the ring has no room; that is counted here, and
nothing else has happened then. Columns are those of `columns.py`.

`Outside` writes unsequenced packets, each once, whichever lines bring it.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import columns, records, slots, states
from cython.cimports.feedhandler.ingest.fingerprint import UnsequencedWindow, fingerprint
from cython.cimports.feedhandler.ingest.hold import PacketPool
from cython.cimports.feedhandler.ingest.ring import Ring

from feedhandler.codecs.visibility import Public, Readonly

#: Upper limit on unsequenced packets that wait for ring room.
OUTSIDE_MAX = 32
_OUTSIDE_MAX = cython.declare(cython.Py_ssize_t, OUTSIDE_MAX)


@cython.final
@cython.cclass
class Output:
    """Records of `channel` in `ring`; `rows` are its lines' rows in `line_counters`.

    `received_ns` (stamp of the latest packet) and `session` go into records without payload.
    """

    ring: Readonly[Ring]
    channel: Readonly[cython.int]
    line_array: Readonly[object]
    channel_array: Readonly[object]
    line_counters: cython.ulonglong[::1]
    rows: cython.longlong[::1]
    counters: cython.ulonglong[::1]
    received_ns: Public[cython.ulonglong]
    session: Public[cython.ulonglong]
    sequenced: cython.ulonglong
    sequenced_won: cython.ulonglong[::1]

    def __init__(
        self,
        ring,
        channel: int,
        line_counters: numpy.ndarray,
        rows: list[int],
        channel_counters: numpy.ndarray,
    ) -> None:
        self.ring = ring
        self.channel = channel
        self.line_array = line_counters
        self.channel_array = channel_counters
        self.line_counters = memoryview(line_counters.reshape(-1))
        self.rows = memoryview(numpy.array(rows, numpy.int64) * line_counters.shape[1])
        self.counters = memoryview(channel_counters)
        self.received_ns = 0
        self.session = 0
        # Published packets of this channel, unsequenced ones left out, all and by line: the lines'
        # counters are of all channels that share them.
        self.sequenced = 0
        self.sequenced_won = memoryview(numpy.zeros(len(rows), numpy.uint64))

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def packet(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        skip: cython.ulonglong,
    ) -> cython.int:
        """Write a packet that has just come, without its first `skip` messages."""
        if header.kind == kinds.SKIP:
            return self._skipped(line, header.sequence, header.next_sequence)
        if not self.ring.write_packet(
            self.channel, line, header.kind, header.count, header.sequence,
            header.next_sequence, received_ns, header.session,
            cython.cast(cython.uint, skip), header.body, header.send_time,
            data, start, header.length,
        ):  # fmt: skip
            self.counters[columns.CHANNEL_RING_FULL] += 1
            return 0
        return self._published(line, header.count, skip, header.length)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def held(self, pool: PacketPool, slot: cython.Py_ssize_t, skip: cython.ulonglong) -> cython.int:
        """Write a packet that waited in `slot` of `pool`, without its first `skip` messages."""
        line: cython.int = pool.word(slot, slots.LINE)
        count: cython.ulonglong = pool.word(slot, slots.COUNT)
        length: cython.Py_ssize_t = pool.word(slot, slots.LENGTH)
        if pool.word(slot, slots.KIND) == kinds.SKIP:
            return self._skipped(line, pool.word(slot, slots.SEQUENCE), pool.word(slot, slots.NEXT))
        if not self.ring.write_packet(
            self.channel, line, cython.cast(cython.int, pool.word(slot, slots.KIND)),
            cython.cast(cython.int, count), pool.word(slot, slots.SEQUENCE),
            pool.word(slot, slots.NEXT), pool.word(slot, slots.RECEIVED),
            pool.word(slot, slots.SESSION), cython.cast(cython.uint, skip),
            cython.cast(cython.uint, pool.word(slot, slots.BODY)),
            pool.word(slot, slots.SEND_TIME), pool.slab, slot * pool.slot_bytes, length,
        ):  # fmt: skip
            self.counters[columns.CHANNEL_RING_FULL] += 1
            return 0
        return self._published(line, count, skip, length)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _skipped(
        self, line: cython.int, sequence: cython.ulonglong, next_sequence: cython.ulonglong
    ) -> cython.int:
        """Write a record that the publisher skips these numbers."""
        if not self.control_event(records.SKIPPED, line, sequence, next_sequence, 0):
            return 0
        self.counters[columns.CHANNEL_SKIPPED] += next_sequence - sequence
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _published(
        self,
        line: cython.int,
        messages: cython.ulonglong,
        skip: cython.ulonglong,
        length: cython.ulonglong,
    ) -> cython.int:
        """Count one published packet."""
        self.line_counters[self.rows[line] + columns.LINE_WON] += 1
        self.sequenced += 1
        self.sequenced_won[line] += 1
        self.counters[columns.CHANNEL_PACKETS] += 1
        self.counters[columns.CHANNEL_BYTES] += length
        if messages > skip:
            self.counters[columns.CHANNEL_MESSAGES] += messages - skip
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def control_event(
        self,
        kind: cython.int,
        line: cython.int,
        sequence: cython.ulonglong,
        next_sequence: cython.ulonglong,
        auxiliary: cython.ulonglong,
    ) -> cython.int:
        """Write a record without payload."""
        if not self.ring.write_control_event(
            kind, self.channel, line, sequence, next_sequence,
            self.received_ns, self.session, auxiliary,
        ):  # fmt: skip
            self.counters[columns.CHANNEL_RING_FULL] += 1
            return 0
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def won_by_others(self, line: cython.int) -> cython.ulonglong:
        """Return how many published packets, unsequenced ones left out, this line did not bring."""
        return self.sequenced - self.sequenced_won[line]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def count_outside(self, line: cython.int) -> cython.int:
        """Count the packet just published as unsequenced."""
        self.sequenced -= 1
        self.sequenced_won[line] -= 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def count_line(self, line: cython.int, column: cython.int) -> cython.int:
        """Add one to a column of a line."""
        self.line_counters[self.rows[line] + column] += 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def count(self, column: cython.int, amount: cython.ulonglong) -> cython.int:
        """Add `amount` to a column of the channel."""
        self.counters[column] += amount
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def highest(self, column: cython.int, value: cython.ulonglong) -> cython.int:
        """Raise a high-water mark of the channel."""
        if value > self.counters[column]:
            self.counters[column] = value
        return 0


@cython.final
@cython.cclass
class Outside:
    """Unsequenced packets on their way to `out`: each is written when its first copy comes.

    A copy is recognised by the fingerprint of the whole packet, for `wait_ns`
    (`UnsequencedWindow`). Without ring room they wait in slots of `pool`, in order: `waiting` of
    them, `OUTSIDE_MAX` at most. In the ring each has its own number, with the bit
    `UNSEQUENCED_BIT`.
    """

    out: Output
    pool: PacketPool
    window: UnsequencedWindow
    slots: cython.int[::1]
    waiting: Readonly[cython.Py_ssize_t]

    def __init__(self, out, pool, wait_ns: int) -> None:
        self.out = out
        self.pool = pool
        self.window = UnsequencedWindow(wait_ns)
        self.slots = memoryview(numpy.full(OUTSIDE_MAX, -1, numpy.int32))
        self.waiting = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def publish(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        expected: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Write the packet, or keep it until there is room.

        Returns PUBLISHED; DUPLICATE where another line has shown it, REFUSED where too many wait or
        it is too long. `header` gets its number, and `expected`.
        """
        whole: cython.ulonglong = fingerprint(data, start, header.length)
        if self.window.is_copy(line, whole, now_ns):
            self.out.count_line(line, columns.LINE_DUPLICATES)
            return states.DUPLICATE
        header.sequence = self.window.number
        header.next_sequence = expected
        if self.waiting or not self.out.packet(line, header, data, start, received_ns, 0):
            if not self._keep(line, header, data, start, received_ns, now_ns):
                return states.REFUSED
        else:
            self.out.count_outside(line)
        self.out.count(columns.CHANNEL_UNSEQUENCED, 1)
        self.out.count(
            columns.CHANNEL_UNSEQUENCED_FORGOTTEN, self.window.remember(line, whole, now_ns)
        )
        return states.PUBLISHED

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _keep(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        now_ns: cython.ulonglong,
    ) -> cython.int:
        """Keep a packet until the ring has room; return 0 where there is no room for it."""
        if self.waiting >= _OUTSIDE_MAX:
            self.out.count_line(line, columns.LINE_REFUSED)
            return 0
        slot: cython.Py_ssize_t = self.pool.store(line, header, data, start, received_ns, now_ns, 0)
        if slot < 0:
            self.out.count_line(line, columns.LINE_OVERSIZE)
            return 0
        self.slots[self.waiting] = cython.cast(cython.int, slot)
        self.waiting += 1
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def flush(self) -> cython.int:
        """Write the packets that waited; return 0 where there is no room for all."""
        at: cython.Py_ssize_t
        written: cython.Py_ssize_t = 0
        while written < self.waiting and self.out.held(self.pool, self.slots[written], 0):
            self.out.count_outside(
                cython.cast(cython.int, self.pool.word(self.slots[written], slots.LINE))
            )
            self.pool.give_back(self.slots[written])
            written += 1
        self.waiting -= written
        for at in range(self.waiting):
            self.slots[at] = self.slots[at + written]
        return self.waiting == 0
