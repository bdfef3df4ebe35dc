"""What one channel writes: its records in the ring, and its counters.

Every verb that writes returns 1, or 0 when the ring has no room; that is counted here and nothing
else has happened then. Columns are those of `columns.py`.
"""

import cython
import numpy

if cython.compiled:
    from cython.cimports.feedhandler.ingest import columns
    from cython.cimports.feedhandler.ingest import hold as slots
else:
    from feedhandler.ingest import columns
    from feedhandler.ingest import hold as slots


@cython.final
@cython.cclass
class Output:
    """Records of `channel` in `ring`; `rows` are its lines' rows in `line_counters`.

    `received_ns` (stamp of the latest packet) and `session` go into records without payload.
    """

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

    def packet(self, line, header, data, start, received_ns, skip):
        """Write a packet that has just come, without its first `skip` messages."""
        if not self.ring.write_packet(
            self.channel, line, header.kind, header.count, header.sequence,
            header.next_sequence, received_ns, header.session,
            cython.cast(cython.uint, skip), header.body, header.send_time,
            data, start, header.length,
        ):  # fmt: skip
            self.counters[columns.CHANNEL_RING_FULL] += 1
            return 0
        return self._published(line, header.count, skip, header.length)

    def held(self, pool, slot, skip):
        """Write a packet that waited in `slot` of `pool`."""
        line: cython.int = cython.cast(cython.int, pool.word(slot, slots.LINE))
        count: cython.ulonglong = pool.word(slot, slots.COUNT)
        length: cython.Py_ssize_t = pool.word(slot, slots.LENGTH)
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

    def _published(self, line, messages, skip, length):
        """Count one published packet."""
        self.line_counters[self.rows[line] + columns.LINE_WON] += 1
        self.counters[columns.CHANNEL_PACKETS] += 1
        self.counters[columns.CHANNEL_BYTES] += length
        if messages > skip:
            self.counters[columns.CHANNEL_MESSAGES] += messages - skip
        return 1

    def mark(self, kind, line, sequence, next_sequence, auxiliary):
        """Write a record without payload."""
        if not self.ring.write_mark(
            kind, self.channel, line, sequence, next_sequence,
            self.received_ns, self.session, auxiliary,
        ):  # fmt: skip
            self.counters[columns.CHANNEL_RING_FULL] += 1
            return 0
        return 1

    def count_line(self, line, column):
        """One more in a column of a line."""
        self.line_counters[self.rows[line] + column] += 1
        return 0

    def count(self, column, amount):
        """More in a column of the channel."""
        self.counters[column] += amount
        return 0

    def highest(self, column, value):
        """Raise a high-water mark of the channel."""
        if value > self.counters[column]:
            self.counters[column] = value
        return 0
