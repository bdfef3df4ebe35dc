"""The latest packets of one service, in a window of fixed size, from which they are retransmitted.

A retransmission server keeps one for each service it serves, the gateway one for each channel it
publishes (for the catch-up after a snapshot, and as the history for links that resume). Packets lie
back to back in one slab that is written round and round; the oldest give way to the newest. Beside
them a table of their numbers, in ascending order, allows binary search for a range.

Packets outside the sequence (`append_unsequenced`) are kept at the position where they came, for
readers by serial; by number they are not found.

Numbers of different sequence epochs are not comparable, so a new one begins with `clear`. A store
that is `keeping` keeps the packets of earlier epochs until they give way: they are no longer found
by number, but by serial (how many packets were taken before it, over all epochs) they can still be
read, which is how a history crosses a reset.

A packet of which the first messages were in one before (`skip`) is found by number only where the
store can trim it (`trim_by`): then as a packet of the messages that it brought.

Promises: nothing is allocated for a packet that comes; what is held is bounded in bytes and in
packets; a packet comes out as it went in. Left to others: which packets belong together (a new
epoch calls for `clear`), and what is in them.
"""

import mmap
from collections.abc import Callable

import cython
from cython.cimports.feedhandler.retrans.entries import (
    COUNT,
    ENTRY_WORDS,
    NEXT,
    OFFSET,
    RUN,
    SEQUENCE,
    SIZE,
    SKIP,
    STAMP,
)

from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.codecs.visibility import Public, Readonly

if cython.compiled:
    from cython.cimports.libc.string import memcpy

#: Average bytes of a packet, from which a store without a bound of packets derives one. A packet
#: with one short message is smaller, but a busy service packs several into one.
PACKET_BYTES_USUAL = 128
#: Least number of packets that a store makes room for.
PACKETS_LEAST = 16
_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)


def _room_for(size: int) -> memoryview:
    """Return zeroed memory whose pages are allocated one by one as they are first written.

    Unused room costs address space, not memory. Huge pages would come two megabytes at a time, and
    clearing one delays the storing of a packet by milliseconds.
    """
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(room)


@cython.final
@cython.cclass
class PacketStore:
    """A window of packets: at most `bytes_max` bytes and `packets_max` packets.

    `packets_max` 0: as many as `bytes_max` holds of usual size. Raises ValueError where either
    bound leaves no room.

    first, end   numbers of the oldest packet held and one past the newest; both 0 when empty
    count        packets held;  `bytes` their bytes
    evicted      packets that gave way to later ones
    refused      packets not taken: an old number, an empty range, too long for the store
    epoch        how often it was cleared: numbers of different sequence epochs are not comparable
    keeping      `clear` lets packets give way only as room is needed
    next_serial  the serial of the next packet: how many were ever kept
    held         packets held of all epochs;  `held_bytes` their bytes
    gone_first   number of the packet that gave way last;  `gone_next` the number after it. For an
                 unsequenced packet, which came before the packet with a number: that number and the
                 next, since not all that follows the packet before it is held
    """

    slab: cython.uchar[::1]
    table: cython.ulonglong[::1]
    oldest: cython.Py_ssize_t
    write: cython.Py_ssize_t
    keeping: Public[cython.bint]
    trims: cython.bint
    cut: object
    bytes_max: Readonly[cython.Py_ssize_t]
    packets_max: Readonly[cython.Py_ssize_t]
    count: Readonly[cython.Py_ssize_t]
    bytes: Readonly[cython.Py_ssize_t]
    held: Readonly[cython.Py_ssize_t]
    held_bytes: Readonly[cython.Py_ssize_t]
    next_serial: Readonly[cython.Py_ssize_t]
    first: Readonly[cython.ulonglong]
    end: Readonly[cython.ulonglong]
    evicted: Readonly[cython.ulonglong]
    refused: Readonly[cython.ulonglong]
    epoch: Readonly[cython.ulonglong]
    gone_first: Readonly[cython.ulonglong]
    gone_next: Readonly[cython.ulonglong]

    def __init__(self, bytes_max: int, packets_max: int = 0) -> None:
        if bytes_max < 1 or packets_max < 0:
            raise ValueError("a packet store needs room")
        packets_max = packets_max or max(bytes_max // PACKET_BYTES_USUAL, PACKETS_LEAST)
        self.slab = _room_for(bytes_max)
        self.table = _room_for(8 * packets_max * ENTRY_WORDS).cast("Q")
        self.bytes_max = bytes_max
        self.packets_max = packets_max
        self.evicted = self.refused = self.epoch = 0
        self.keeping = self.trims = False
        self.cut: Callable[[bytes, int, int], bytes] | None = None
        self.oldest = self.count = self.bytes = self.write = 0
        self.next_serial = self.held = self.held_bytes = self.gone_first = self.gone_next = 0
        self.first = self.end = 0

    def trim_by(self, cut: Callable[[bytes, int, int], bytes]) -> None:
        """Find packets with `skip` by number as well, cut by `cut(packet, first, end)`; set before
        any is stored."""
        self.cut = cut
        self.trims = True

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def clear(self) -> cython.int:
        """Forget every packet by number, as a new sequence epoch begins; the counters stay.

        A store that is `keeping` still has them by serial.
        """
        if not self.keeping:
            self.oldest = self.held = self.held_bytes = self.write = 0
        self.count = self.bytes = 0
        self.first = self.end = 0
        self.epoch += 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def append(
        self,
        sequence: cython.ulonglong,
        next_sequence: cython.ulonglong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        received_ns: cython.ulonglong = 0,
        skip: cython.ulonglong = 0,
        count: cython.ulonglong = 0,
    ) -> cython.int:
        """Store the packet `data[start:start + size]`, numbers `sequence` to `next_sequence` - 1.

        Returns 1, or 0 where it is refused: numbers below `end`, no numbers at all, or longer than
        the store. Raises IndexError where it is not inside `data`. `received_ns` and its `count` of
        messages are stored with it. Where `skip` is given, that many first messages were in the
        packet before: such a packet may reach back below `end`, but is not found by number unless
        the store trims.
        """
        if start < 0 or size < 1 or start + size > len(data):
            raise IndexError("packet outside its buffer")
        if (
            next_sequence <= sequence
            or next_sequence <= self.end
            or (sequence < self.end and skip == 0)
            or size > self.bytes_max
        ):
            self.refused += 1
            return 0
        self._make_room(size)
        run: cython.ulonglong = sequence + skip if self.trims else sequence
        if skip > 0 and not self.trims:
            run = next_sequence
        elif self.count > 0 and run == self.end:
            run = self.table[self._entry(self.held - 1) + RUN]
        if self.first == self.end:
            self.first = sequence + skip if self.trims else sequence
        self._keep(sequence, next_sequence, run, data, start, size, received_ns, skip, count)
        self.end = next_sequence
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def append_unsequenced(
        self,
        number: cython.ulonglong,
        following: cython.ulonglong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        received_ns: cython.ulonglong = 0,
        count: cython.ulonglong = 0,
    ) -> cython.int:
        """Store an unsequenced packet, before the one that will carry the number `following`.

        It is found by `number` (with `UNSEQUENCED_BIT`). Returns 1, or 0 where it is longer than
        the store; raises IndexError where it is not inside `data`. Its table entry has no range of
        numbers, and `number` in the word of `skip`.
        """
        if start < 0 or size < 1 or start + size > len(data):
            raise IndexError("packet outside its buffer")
        if size > self.bytes_max:
            self.refused += 1
            return 0
        self._make_room(size)
        run: cython.ulonglong = following
        if self.count > 0 and following == self.end:
            run = self.table[self._entry(self.held - 1) + RUN]
        self._keep(following, following, run, data, start, size, received_ns, number, count)
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _keep(
        self,
        sequence: cython.ulonglong,
        next_sequence: cython.ulonglong,
        run: cython.ulonglong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        received_ns: cython.ulonglong,
        skip: cython.ulonglong,
        count: cython.ulonglong,
    ) -> cython.int:
        """Put a packet, for which there is room, behind all others."""
        word: cython.Py_ssize_t = self._entry(self.held)
        self.table[word + SEQUENCE] = sequence
        self.table[word + NEXT] = next_sequence
        self.table[word + RUN] = run
        self.table[word + OFFSET] = self.write
        self.table[word + SIZE] = size
        self.table[word + STAMP] = received_ns
        self.table[word + SKIP] = skip
        self.table[word + COUNT] = count
        index: cython.Py_ssize_t = self.write
        if cython.compiled:
            memcpy(cython.address(self.slab[index]), cython.address(data[start]), size)
        else:
            self.slab[index : index + size] = data[start : start + size]
        self.write += size
        self.bytes += size
        self.held_bytes += size
        self.count += 1
        self.held += 1
        self.next_serial += 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _make_room(self, size: cython.Py_ssize_t) -> cython.int:
        """Evict the oldest packets until `size` bytes at `write`, and a table entry, are free.

        What lies at or behind `write` in the slab is older than anything before it, so the oldest
        packet shows how far the free room reaches.
        """
        if self.held == self.packets_max:
            self._evict()
        if self.write + size > self.bytes_max:
            while self.held > 0:
                offset: cython.Py_ssize_t = self.table[self._entry(0) + OFFSET]
                if offset < self.write:
                    break
                self._evict()
            self.write = 0
        while self.held > 0:
            offset = self.table[self._entry(0) + OFFSET]
            if offset < self.write or offset >= self.write + size:
                break
            self._evict()
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _evict(self) -> cython.int:
        """Evict the oldest packet."""
        word: cython.Py_ssize_t = self._entry(0)
        size: cython.Py_ssize_t = self.table[word + SIZE]
        self.gone_first = self.table[word + SEQUENCE]
        self.gone_next = self.table[word + NEXT] + (self.table[word + SKIP] >= _UNSEQUENCED)
        self.oldest = self.oldest + 1 if self.oldest + 1 < self.packets_max else 0
        self.held -= 1
        self.held_bytes -= size
        self.evicted += 1
        if self.held < self.count:
            self.bytes -= size
            self.count -= 1
            self.first = self._begin(self._entry(0)) if self.count else self.end
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _begin(self, word: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the first number that a packet is found by."""
        if self.trims and self.table[word + SKIP] < _UNSEQUENCED:
            return self.table[word + SEQUENCE] + self.table[word + SKIP]
        return self.table[word + SEQUENCE]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def _entry(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the first table word of the packet at `index` (0: the oldest of all epochs)."""
        at: cython.Py_ssize_t = self.oldest + index
        if at >= self.packets_max:
            at -= self.packets_max
        return at * ENTRY_WORDS

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def entry(self, serial: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the first table word of the packet with this serial; -1 where it is not held."""
        if serial >= self.next_serial or serial + self.held < self.next_serial:
            return -1
        return self._entry(serial + self.held - self.next_serial)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def _search(
        self, low: cython.Py_ssize_t, high: cython.Py_ssize_t, number: cython.ulonglong
    ) -> cython.Py_ssize_t:
        """Return the first index, `low` to `high` - 1, whose packet ends above `number`; or `high`.

        The packets must be of one sequence epoch.
        """
        while low < high:
            middle: cython.Py_ssize_t = (low + high) >> 1
            if self.table[self._entry(middle) + NEXT] <= number:
                low = middle + 1
            else:
                high = middle
        return low

    @cython.ccall
    def packet(self, serial: cython.Py_ssize_t) -> tuple[int, int, bytes, int, int, int] | None:
        """Return (sequence, next sequence, bytes, received_ns, skip, count) of a serial.

        Returns None where it is not held.
        """
        word: cython.Py_ssize_t = self.entry(serial)
        if word < 0:
            return None
        return (
            self.table[word + SEQUENCE],
            self.table[word + NEXT],
            self._data(word),
            self.table[word + STAMP],
            self.table[word + SKIP],
            self.table[word + COUNT],
        )

    def find(
        self, begin: cython.Py_ssize_t, end: cython.Py_ssize_t, number: cython.ulonglong
    ) -> cython.Py_ssize_t:
        """Return the serial of the first packet that ends beyond `number`, or `end`.

        Searches the packets held with the serials `begin` to `end` - 1, which must be of one
        sequence epoch.
        """
        begin = max(begin, self.next_serial - self.held)
        shift = self.next_serial - self.held
        return end if begin >= end else shift + self._search(begin - shift, end - shift, number)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def find_unsequenced(self, number: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the serial of the latest unsequenced packet with this number, or -1."""
        index: cython.Py_ssize_t
        for index in range(self.held - 1, -1, -1):
            if self.table[self._entry(index) + SKIP] == number:
                return self.next_serial - self.held + index
        return -1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def covers(self, first: cython.ulonglong, end: cython.ulonglong) -> cython.bint:
        """Return whether all numbers from `first` to `end` - 1 are held; an empty range is."""
        if first >= end:
            return True
        if first < self.first or end > self.end:
            return False
        index: cython.Py_ssize_t = self._search(self.held - self.count, self.held, end - 1)
        word: cython.Py_ssize_t = self._entry(index)
        # An entry's run is the first number from which on there is no gap up to it.
        run: cython.ulonglong = self.table[word + RUN]
        return self.table[word + SEQUENCE] < end and run <= first

    def bytes_of(self, first: cython.ulonglong, end: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the total bytes of the packets with numbers in `first` to `end` - 1."""
        index: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        for index in range(self._search(self.held - self.count, self.held, first), self.held):
            word: cython.Py_ssize_t = self._entry(index)
            if self.table[word + SEQUENCE] >= end:
                break
            total += self.table[word + SIZE]
        return total

    def packets(
        self, first: cython.ulonglong, end: cython.ulonglong
    ) -> list[tuple[int, int, bytes]]:
        """Return (sequence, next sequence, bytes) of the packets in `first` to `end` - 1.

        In ascending order; packets that only reach into the range are among them, those with `skip`
        where the store trims.
        """
        found: list = []
        index: cython.Py_ssize_t = self._search(self.held - self.count, self.held, first)
        while index < self.held and first < end:
            word: cython.Py_ssize_t = self._entry(index)
            if self.table[word + SEQUENCE] >= end:
                break
            if self.table[word + SKIP] == 0:
                found.append(
                    (self.table[word + SEQUENCE], self.table[word + NEXT], self._data(word))
                )
            elif self.trims and self.table[word + SKIP] < _UNSEQUENCED:
                begin: cython.ulonglong = self._begin(word)
                following: cython.ulonglong = self.table[word + NEXT]
                if begin < end:
                    data: object = self._data(word)
                    found.append((begin, following, self.cut(data, begin, following)))
            index += 1
        return found

    @cython.cfunc
    def _data(self, word: cython.Py_ssize_t) -> object:
        """Return the bytes of the packet whose table entry begins at `word`."""
        offset: cython.Py_ssize_t = self.table[word + OFFSET]
        size: cython.Py_ssize_t = self.table[word + SIZE]
        if cython.compiled:
            return cython.cast(cython.p_char, cython.address(self.slab[offset]))[:size]
        return bytes(self.slab[offset : offset + size])
