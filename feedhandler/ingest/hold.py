"""Packets that must wait: their bytes in a preallocated slab, and the order of those held.

`PacketPool` owns a fixed number of slots; a slot is a row of words (the header fields that are
needed later, timestamps, the fingerprint) and room for one packet's bytes. Free slots are a stack,
so that only as much memory is ever touched as was needed at once. `Hold` is the sequence of slots
that wait behind a gap, ordered by sequence number; nearly every insertion is an append.

Promises: nothing is allocated after construction; a packet that finds no free slot, or is longer
than a slot, is refused (-1). Left to the arbiter: what happens then.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest.slots import (
    BODY,
    COUNT,
    FINGERPRINT,
    KIND,
    LENGTH,
    LINE,
    NEXT,
    NOTICED,
    ORDER,
    RECEIVED,
    SEND_TIME,
    SEQUENCE,
    SESSION,
    SLOT_WORDS,
    SPEAKER,
)

from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.libc.string import memcpy


@cython.final
@cython.cclass
class PacketPool:
    """Pool of `slots` packet slots of `slot_bytes` bytes each."""

    words: cython.ulonglong[::1]
    slab: Readonly[cython.uchar[::1]]
    free: cython.int[::1]
    free_count: cython.Py_ssize_t
    slot_bytes: Readonly[cython.Py_ssize_t]

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.words = memoryview(numpy.zeros(slots * SLOT_WORDS, numpy.uint64))
        # zeros() maps pages lazily: an unused slab costs address space, not memory.
        self.slab = memoryview(numpy.zeros(slots * slot_bytes, numpy.uint8))
        self.free = memoryview(numpy.arange(slots - 1, -1, -1, dtype=numpy.int32))
        self.free_count = slots
        self.slot_bytes = slot_bytes

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def store(
        self,
        line: cython.int,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        noticed_ns: cython.ulonglong,
        fingerprint: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """Copy a packet into a free slot and return the slot; -1: none is free, or it is too long.

        A heartbeat has nothing to copy: its slot stands for the number it names. Raises
        `IndexError` where the packet is outside its buffer.
        """
        length: cython.Py_ssize_t = header.length
        if header.kind == kinds.HEARTBEAT:
            length = 0
        if self.free_count == 0 or length > self.slot_bytes:
            return -1
        if start < 0 or start + length > len(data):
            raise IndexError("packet outside its buffer")
        self.free_count -= 1
        slot: cython.Py_ssize_t = self.free[self.free_count]
        word: cython.Py_ssize_t = slot * SLOT_WORDS
        self.words[word + SEQUENCE] = header.sequence
        self.words[word + NEXT] = header.next_sequence
        self.words[word + RECEIVED] = received_ns
        self.words[word + SESSION] = header.session
        self.words[word + SEND_TIME] = header.send_time
        self.words[word + LENGTH] = length
        self.words[word + BODY] = header.body
        self.words[word + LINE] = line
        self.words[word + COUNT] = header.count
        self.words[word + KIND] = header.kind
        self.words[word + NOTICED] = noticed_ns
        self.words[word + FINGERPRINT] = fingerprint
        self.words[word + ORDER] = 0
        self.words[word + SPEAKER] = line
        if length > 0:
            if cython.compiled:
                memcpy(
                    cython.address(self.slab[slot * self.slot_bytes]),
                    cython.address(data[start]),
                    length,
                )
            else:
                begin = slot * self.slot_bytes
                self.slab[begin : begin + length] = data[start : start + length]
        return slot

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def give_back(self, slot: cython.Py_ssize_t) -> cython.int:
        """Free the slot."""
        self.free[self.free_count] = slot
        self.free_count += 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def word(self, slot: cython.Py_ssize_t, which: cython.int) -> cython.ulonglong:
        """Return one word of a slot."""
        return self.words[slot * SLOT_WORDS + which]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def span(self, slot: cython.Py_ssize_t) -> cython.ulonglong:
        """Return how many numbers the packet in this slot covers."""
        return self.words[slot * SLOT_WORDS + NEXT] - self.words[slot * SLOT_WORDS + SEQUENCE]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def body_at(self, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where the messages of the packet in this slot begin in the slab."""
        return slot * self.slot_bytes + self.words[slot * SLOT_WORDS + BODY]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def body_size(self, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the size of the messages of the packet in this slot, in bytes."""
        return self.words[slot * SLOT_WORDS + LENGTH] - self.words[slot * SLOT_WORDS + BODY]


@cython.final
@cython.cclass
class Hold:
    """Slots ordered by sequence number, at most `capacity` of them."""

    pool: PacketPool
    order: cython.int[::1]
    mask: cython.Py_ssize_t
    head: cython.Py_ssize_t
    count: Readonly[cython.Py_ssize_t]
    capacity: Readonly[cython.Py_ssize_t]

    def __init__(self, pool: PacketPool, capacity: int) -> None:
        size = 1 << max(capacity - 1, 1).bit_length()
        self.pool = pool
        self.order = memoryview(numpy.zeros(size, numpy.int32))
        self.mask = size - 1
        self.head = 0
        self.count = 0
        self.capacity = capacity

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def lowest(self) -> cython.Py_ssize_t:
        """Return the slot with the lowest number, or -1."""
        return self.order[self.head] if self.count else -1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def highest(self) -> cython.Py_ssize_t:
        """Return the slot with the highest number, or -1."""
        return self.order[(self.head + self.count - 1) & self.mask] if self.count else -1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def slot(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the slot at `index`, counted from the lowest; `index` must be below `count`."""
        return self.order[(self.head + index) & self.mask]

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def index_of(self, sequence: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index of the first packet that begins at `sequence` or later; else `count`."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self.count
        while low < high:
            middle: cython.Py_ssize_t = (low + high) >> 1
            slot: cython.Py_ssize_t = self.order[(self.head + middle) & self.mask]
            if self.pool.words[slot * SLOT_WORDS + SEQUENCE] < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def contains(self, sequence: cython.ulonglong, next_sequence: cython.ulonglong) -> cython.bint:
        """Return whether a packet is held that begins at `sequence` and reaches `next_sequence`."""
        low: cython.Py_ssize_t = self.index_of(sequence)
        while low < self.count:
            slot: cython.Py_ssize_t = self.order[(self.head + low) & self.mask]
            if self.pool.words[slot * SLOT_WORDS + SEQUENCE] != sequence:
                return False
            if self.pool.words[slot * SLOT_WORDS + NEXT] >= next_sequence:
                return True
            low += 1
        return False

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def insert(self, slot: cython.Py_ssize_t, fresh: cython.bint) -> cython.int:
        """Insert a slot in order; return 1, or 0 when the hold is full.

        The gap before the new packet was noticed when another line's packet behind it came, if
        there is one. Where the packet has just come (`fresh`), its own line has gone on below the
        packets it brought behind it: those are no evidence of a gap any more, and their ORDER
        becomes 0.
        """
        if self.count >= self.capacity:
            return 0
        sequence: cython.ulonglong = self.pool.words[slot * SLOT_WORDS + SEQUENCE]
        at: cython.Py_ssize_t = self.count
        while at > 0:
            other: cython.Py_ssize_t = self.order[(self.head + at - 1) & self.mask]
            if self.pool.words[other * SLOT_WORDS + SEQUENCE] <= sequence:
                break
            self.order[(self.head + at) & self.mask] = other
            noticed: cython.ulonglong = self.pool.words[other * SLOT_WORDS + NOTICED]
            if (
                self.pool.words[other * SLOT_WORDS + SPEAKER]
                == self.pool.words[slot * SLOT_WORDS + LINE]
            ):
                if fresh:
                    self.pool.words[other * SLOT_WORDS + ORDER] = 0
            elif (
                self.pool.words[other * SLOT_WORDS + ORDER] > 0
                and noticed < self.pool.words[slot * SLOT_WORDS + NOTICED]
            ):
                self.pool.words[slot * SLOT_WORDS + NOTICED] = noticed
            at -= 1
        self.order[(self.head + at) & self.mask] = slot
        self.count += 1
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def notice_again(self, now_ns: cython.ulonglong, order: cython.ulonglong) -> cython.int:
        """Restart the age of every gap now, and give every packet this order."""
        at: cython.Py_ssize_t = 0
        while at < self.count:
            slot: cython.Py_ssize_t = self.order[(self.head + at) & self.mask]
            self.pool.words[slot * SLOT_WORDS + NOTICED] = now_ns
            self.pool.words[slot * SLOT_WORDS + ORDER] = order
            at += 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def drop_lowest(self) -> cython.int:
        """Remove the lowest slot and free it."""
        self.pool.give_back(self.order[self.head])
        self.head = (self.head + 1) & self.mask
        self.count -= 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def pop_lowest(self) -> cython.Py_ssize_t:
        """Remove and return the lowest slot without freeing it."""
        slot: cython.Py_ssize_t = self.order[self.head]
        self.head = (self.head + 1) & self.mask
        self.count -= 1
        return slot

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def remove(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Remove and return the slot at `index` without freeing it."""
        slot: cython.Py_ssize_t = self.order[(self.head + index) & self.mask]
        while index + 1 < self.count:
            self.order[(self.head + index) & self.mask] = self.order[
                (self.head + index + 1) & self.mask
            ]
            index += 1
        self.count -= 1
        return slot

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def pop_highest(self) -> cython.Py_ssize_t:
        """Remove and return the highest slot without freeing it."""
        self.count -= 1
        return self.order[(self.head + self.count) & self.mask]
