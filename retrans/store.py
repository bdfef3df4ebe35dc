"""The latest packets of one service, in a window of fixed size: retransmissions come from it.

A retransmission server keeps one for each service it serves, the gateway one for each channel it
publishes (for the catch-up after a snapshot). Packets lie back to back in one slab that is written
round and round; the oldest give way to the newest. Beside them a table of their numbers, in
ascending order, so that a range is found by halving.

Promises: nothing is allocated for a packet that comes; what is held is bounded in bytes and in
packets; a packet comes out as it went in. Left to others: which packets belong together (a new
numbering calls for `clear`), and what is in them.
"""

import cython
import numpy

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    SEQUENCE, NEXT, RUN, OFFSET, SIZE = range(5)
    ENTRY_WORDS = 5

#: Where the caller sets no bound of packets: room for packets of so many bytes on the average. A
#: packet with one short message is smaller, but a busy service packs several into one.
PACKET_BYTES_USUAL = 128
#: Least number of packets that a store makes room for.
PACKETS_LEAST = 16


@cython.final
@cython.cclass
class PacketStore:
    """At most `bytes_max` bytes and `packets_max` packets (0: what `bytes_max` may well hold).

    first, end   numbers of the oldest packet held and one past the newest; both 0 when empty
    count        packets held;  `bytes` their bytes
    evicted      packets that gave way to later ones
    refused      packets not taken: an old number, an empty range, too long for the store
    numbering    how often it was cleared: numbers of different numberings are not comparable
    """

    def __init__(self, bytes_max: int, packets_max: int = 0) -> None:
        if bytes_max < 1 or packets_max < 0:
            raise ValueError("a packet store needs room")
        packets_max = packets_max or max(bytes_max // PACKET_BYTES_USUAL, PACKETS_LEAST)
        # zeros() maps pages lazily: room that was never needed costs address space, not memory.
        self.slab = memoryview(numpy.zeros(bytes_max, numpy.uint8))
        self.table = memoryview(numpy.zeros(packets_max * ENTRY_WORDS, numpy.uint64))
        self.bytes_max = bytes_max
        self.packets_max = packets_max
        self.evicted = self.refused = self.numbering = 0
        self.oldest = self.count = self.bytes = self.write = 0
        self.first = self.end = 0

    def clear(self):
        """Forget every packet: a new numbering begins. The counters stay."""
        self.oldest = self.count = self.bytes = self.write = 0
        self.first = self.end = 0
        self.numbering += 1
        return 0

    @cython.locals(place=cython.Py_ssize_t, word=cython.Py_ssize_t, run=cython.ulonglong)
    def append(self, sequence, next_sequence, data, start, size):
        """Keep the packet `data[start:start + size]`, which carries the numbers `sequence` to
        `next_sequence` - 1; 1, or 0 where it is refused: numbers below `end`, no numbers at all,
        or longer than the store. Raises IndexError where it is not inside `data`."""
        if start < 0 or size < 1 or start + size > len(data):
            raise IndexError("packet outside its buffer")
        if sequence < self.end or next_sequence <= sequence or size > self.bytes_max:
            self.refused += 1
            return 0
        self._make_room(size)
        run = sequence
        if self.count > 0 and sequence == self.end:
            run = self.table[self._entry(self.count - 1) + RUN]
        word = self._entry(self.count)
        self.table[word + SEQUENCE] = sequence
        self.table[word + NEXT] = next_sequence
        self.table[word + RUN] = run
        self.table[word + OFFSET] = self.write
        self.table[word + SIZE] = size
        place = self.write
        if cython.compiled:
            memcpy(cython.address(self.slab[place]), cython.address(data[start]), size)
        else:
            self.slab[place : place + size] = data[start : start + size]
        self.write += size
        self.bytes += size
        self.count += 1
        self.end = next_sequence
        if self.count == 1:
            self.first = sequence
        return 1

    @cython.locals(offset=cython.Py_ssize_t)
    def _make_room(self, size):
        """Let the oldest go until `size` bytes at `write`, and an entry, are free.

        What lies at or behind `write` in the slab is older than anything before it, so the oldest
        packet tells how far the free room reaches.
        """
        if self.count == self.packets_max:
            self._evict()
        if self.write + size > self.bytes_max:
            while self.count > 0:
                offset = self.table[self._entry(0) + OFFSET]
                if offset < self.write:
                    break
                self._evict()
            self.write = 0
        while self.count > 0:
            offset = self.table[self._entry(0) + OFFSET]
            if offset < self.write or offset >= self.write + size:
                break
            self._evict()
        return 0

    def _evict(self):
        """The oldest packet gives way."""
        self.bytes -= self.table[self._entry(0) + SIZE]
        self.oldest = self.oldest + 1 if self.oldest + 1 < self.packets_max else 0
        self.count -= 1
        self.evicted += 1
        self.first = self.table[self._entry(0) + SEQUENCE] if self.count else self.end
        return 0

    @cython.locals(at=cython.Py_ssize_t)
    def _entry(self, place):
        """Word of the table where the packet at `place` (0: the oldest) begins."""
        at = self.oldest + place
        if at >= self.packets_max:
            at -= self.packets_max
        return at * ENTRY_WORDS

    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    def _place_of(self, number):
        """Place of the first packet that ends beyond `number`; `count` where none does."""
        low = 0
        high = self.count
        while low < high:
            middle = (low + high) >> 1
            if self.table[self._entry(middle) + NEXT] <= number:
                low = middle + 1
            else:
                high = middle
        return low

    @cython.locals(place=cython.Py_ssize_t, word=cython.Py_ssize_t, run=cython.ulonglong)
    def covers(self, first, end):
        """Is every number from `first` to `end` - 1 held? An empty range is."""
        if first >= end:
            return True
        if first < self.first or end > self.end:
            return False
        place = self._place_of(end - 1)
        word = self._entry(place)
        # An entry's run is the first number that is joined to it without a hole.
        run = self.table[word + RUN]
        return self.table[word + SEQUENCE] < end and run <= first

    def packets(self, first: cython.ulonglong, end: cython.ulonglong) -> list:
        """(sequence, next sequence, bytes) of the packets with numbers in `first` to `end` - 1,
        ascending; those that only reach into the range are among them."""
        found: list = []
        place: cython.Py_ssize_t = self._place_of(first)
        while place < self.count and first < end:
            word: cython.Py_ssize_t = self._entry(place)
            if self.table[word + SEQUENCE] >= end:
                break
            offset: cython.Py_ssize_t = self.table[word + OFFSET]
            size: cython.Py_ssize_t = self.table[word + SIZE]
            if cython.compiled:
                data = cython.cast(cython.p_char, cython.address(self.slab[offset]))[:size]
            else:
                data = bytes(self.slab[offset : offset + size])
            found.append((self.table[word + SEQUENCE], self.table[word + NEXT], data))
            place += 1
        return found
