"""The latest packets of one service, in a window of fixed size: retransmissions come from it.

A retransmission server keeps one for each service it serves, the gateway one for each channel it
publishes (for the catch-up after a snapshot, and as the history for links that resume). Packets
lie back to back in one slab that is written round and round; the oldest give way to the newest.
Beside them a table of their numbers, in ascending order, so that a range is found by halving.

Packets outside the sequence (`append_unsequenced`) are kept at the place where they came, for who
reads by serial; by number they are not offered.

Numbers of different numberings are not comparable, so a new one begins with `clear`. A store that
is `keeping` holds on to the packets before it until they give way: by their numbers they are out of
sight, but by their serial (how many packets were taken before it, over all numberings) they can
still be read, which is how a history crosses a reset.

Promises: nothing is allocated for a packet that comes; what is held is bounded in bytes and in
packets; a packet comes out as it went in. Left to others: which packets belong together (a new
numbering calls for `clear`), and what is in them.
"""

import mmap

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

if cython.compiled:
    from cython.cimports.libc.string import memcpy

#: Where the caller sets no bound of packets: room for packets of so many bytes on the average. A
#: packet with one short message is smaller, but a busy service packs several into one.
PACKET_BYTES_USUAL = 128
#: Least number of packets that a store makes room for.
PACKETS_LEAST = 16
_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)


def _room_for(size: int) -> memoryview:
    """Zeroed memory whose pages come one by one as they are written for the first time: room that
    was never needed costs address space, not memory. Huge pages would come two megabytes at a time,
    and clearing one keeps whoever stores a packet for milliseconds."""
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(room)


@cython.final
@cython.cclass
class PacketStore:
    """At most `bytes_max` bytes and `packets_max` packets (0: what `bytes_max` may well hold).

    first, end   numbers of the oldest packet held and one past the newest; both 0 when empty
    count        packets held;  `bytes` their bytes
    evicted      packets that gave way to later ones
    refused      packets not taken: an old number, an empty range, too long for the store
    numbering    how often it was cleared: numbers of different numberings are not comparable
    keeping      `clear` lets packets give way only as room is needed
    taken        packets ever taken: the serial of the next one
    held         packets held of all numberings;  `held_bytes` their bytes
    gone_first   number of the packet that gave way last;  `gone_next` the number after it. Of one
                 outside the sequence, which came before the packet with a number, that number and
                 the next: not all that follows the packet before it is held
    """

    def __init__(self, bytes_max: int, packets_max: int = 0) -> None:
        if bytes_max < 1 or packets_max < 0:
            raise ValueError("a packet store needs room")
        packets_max = packets_max or max(bytes_max // PACKET_BYTES_USUAL, PACKETS_LEAST)
        self.slab = _room_for(bytes_max)
        self.table = _room_for(8 * packets_max * ENTRY_WORDS).cast("Q")
        self.bytes_max = bytes_max
        self.packets_max = packets_max
        self.evicted = self.refused = self.numbering = 0
        self.keeping = False
        self.oldest = self.count = self.bytes = self.write = 0
        self.taken = self.held = self.held_bytes = self.gone_first = self.gone_next = 0
        self.first = self.end = 0

    def clear(self):
        """Forget every packet: a new numbering begins. The counters stay."""
        if not self.keeping:
            self.oldest = self.held = self.held_bytes = self.write = 0
        self.count = self.bytes = 0
        self.first = self.end = 0
        self.numbering += 1
        return 0

    @cython.locals(run=cython.ulonglong)
    def append(self, sequence, next_sequence, data, start, size, received_ns=0, skip=0, count=0):
        """Keep the packet `data[start:start + size]`, which carries the numbers `sequence` to
        `next_sequence` - 1; 1, or 0 where it is refused: numbers below `end`, no numbers at all,
        or longer than the store. Raises IndexError where it is not inside `data`.

        `received_ns` and its `count` of messages come out as they went in. Of a packet with `skip`
        its first messages were in the one before: such a one may reach back below `end`, but is
        not offered by number.
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
        run = sequence
        if skip > 0:
            run = next_sequence
        elif self.count > 0 and sequence == self.end:
            run = self.table[self._entry(self.held - 1) + RUN]
        if self.first == self.end:
            self.first = sequence
        self._keep(sequence, next_sequence, run, data, start, size, received_ns, skip, count)
        self.end = next_sequence
        return 1

    @cython.locals(run=cython.ulonglong)
    def append_unsequenced(self, number, following, data, start, size, received_ns=0, count=0):
        """Keep a packet outside the sequence, known by `number` (with `UNSEQUENCED_BIT`), before
        the packet that will carry `following`; 1, or 0 where it is longer than the store.

        In the table it is a packet without numbers, and its own stands in the place of `skip`.
        """
        if start < 0 or size < 1 or start + size > len(data):
            raise IndexError("packet outside its buffer")
        if size > self.bytes_max:
            self.refused += 1
            return 0
        self._make_room(size)
        run = following
        if self.count > 0 and following == self.end:
            run = self.table[self._entry(self.held - 1) + RUN]
        self._keep(following, following, run, data, start, size, received_ns, number, count)
        return 1

    @cython.locals(place=cython.Py_ssize_t, word=cython.Py_ssize_t)
    def _keep(self, sequence, next_sequence, run, data, start, size, received_ns, skip, count):
        """Put a packet, for which there is room, behind all others."""
        word = self._entry(self.held)
        self.table[word + SEQUENCE] = sequence
        self.table[word + NEXT] = next_sequence
        self.table[word + RUN] = run
        self.table[word + OFFSET] = self.write
        self.table[word + SIZE] = size
        self.table[word + STAMP] = received_ns
        self.table[word + SKIP] = skip
        self.table[word + COUNT] = count
        place = self.write
        if cython.compiled:
            memcpy(cython.address(self.slab[place]), cython.address(data[start]), size)
        else:
            self.slab[place : place + size] = data[start : start + size]
        self.write += size
        self.bytes += size
        self.held_bytes += size
        self.count += 1
        self.held += 1
        self.taken += 1
        return 0

    @cython.locals(offset=cython.Py_ssize_t)
    def _make_room(self, size):
        """Let the oldest go until `size` bytes at `write`, and an entry, are free.

        What lies at or behind `write` in the slab is older than anything before it, so the oldest
        packet tells how far the free room reaches.
        """
        if self.held == self.packets_max:
            self._evict()
        if self.write + size > self.bytes_max:
            while self.held > 0:
                offset = self.table[self._entry(0) + OFFSET]
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

    @cython.locals(word=cython.Py_ssize_t, size=cython.Py_ssize_t)
    def _evict(self):
        """The oldest packet gives way."""
        word = self._entry(0)
        size = self.table[word + SIZE]
        self.gone_first = self.table[word + SEQUENCE]
        self.gone_next = self.table[word + NEXT] + (self.table[word + SKIP] >= _UNSEQUENCED)
        self.oldest = self.oldest + 1 if self.oldest + 1 < self.packets_max else 0
        self.held -= 1
        self.held_bytes -= size
        self.evicted += 1
        if self.held < self.count:
            self.bytes -= size
            self.count -= 1
            self.first = self.table[self._entry(0) + SEQUENCE] if self.count else self.end
        return 0

    @cython.locals(at=cython.Py_ssize_t)
    def _entry(self, place):
        """Word of the table where the packet at `place` (0: the oldest of all) begins."""
        at = self.oldest + place
        if at >= self.packets_max:
            at -= self.packets_max
        return at * ENTRY_WORDS

    def entry(self, serial):
        """Word of the table where the packet with this serial begins; -1 where it is not held."""
        if serial >= self.taken or serial + self.held < self.taken:
            return -1
        return self._entry(serial + self.held - self.taken)

    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    def _search(self, low, high, number):
        """First of the places `low` to `high` - 1, of one numbering, whose packet ends beyond
        `number`; `high` where none does."""
        while low < high:
            middle = (low + high) >> 1
            if self.table[self._entry(middle) + NEXT] <= number:
                low = middle + 1
            else:
                high = middle
        return low

    def packet(self, serial) -> tuple[int, int, bytes, int, int, int] | None:
        """(sequence, next sequence, bytes, received_ns, skip, count) of the packet with this
        serial; None where it is not held."""
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

    def find(self, begin, end, number):
        """Serial of the first packet that ends beyond `number` among those held with the serials
        `begin` to `end` - 1, which must be of one numbering; `end` where there is none."""
        begin = max(begin, self.taken - self.held)
        shift = self.taken - self.held
        return end if begin >= end else shift + self._search(begin - shift, end - shift, number)

    @cython.locals(place=cython.Py_ssize_t)
    def find_unsequenced(self, number):
        """Serial of the latest packet held that is known by this number; -1 where there is none."""
        for place in range(self.held - 1, -1, -1):
            if self.table[self._entry(place) + SKIP] == number:
                return self.taken - self.held + place
        return -1

    @cython.locals(place=cython.Py_ssize_t, word=cython.Py_ssize_t, run=cython.ulonglong)
    def covers(self, first, end):
        """Is every number from `first` to `end` - 1 held? An empty range is."""
        if first >= end:
            return True
        if first < self.first or end > self.end:
            return False
        place = self._search(self.held - self.count, self.held, end - 1)
        word = self._entry(place)
        # An entry's run is the first number that is joined to it without a hole.
        run = self.table[word + RUN]
        return self.table[word + SEQUENCE] < end and run <= first

    @cython.locals(place=cython.Py_ssize_t, word=cython.Py_ssize_t, total=cython.Py_ssize_t)
    def bytes_of(self, first, end):
        """Bytes of the packets with numbers in `first` to `end` - 1."""
        total = 0
        for place in range(self._search(self.held - self.count, self.held, first), self.held):
            word = self._entry(place)
            if self.table[word + SEQUENCE] >= end:
                break
            total += self.table[word + SIZE]
        return total

    def packets(
        self, first: cython.ulonglong, end: cython.ulonglong
    ) -> list[tuple[int, int, bytes]]:
        """(sequence, next sequence, bytes) of the packets with numbers in `first` to `end` - 1,
        ascending; those that only reach into the range are among them."""
        found: list = []
        place: cython.Py_ssize_t = self._search(self.held - self.count, self.held, first)
        while place < self.held and first < end:
            word: cython.Py_ssize_t = self._entry(place)
            if self.table[word + SEQUENCE] >= end:
                break
            if self.table[word + SKIP] == 0:
                found.append(
                    (self.table[word + SEQUENCE], self.table[word + NEXT], self._data(word))
                )
            place += 1
        return found

    @cython.locals(offset=cython.Py_ssize_t, size=cython.Py_ssize_t)
    def _data(self, word):
        """The bytes of the packet whose entry begins at `word`."""
        offset = self.table[word + OFFSET]
        size = self.table[word + SIZE]
        if cython.compiled:
            return cython.cast(cython.p_char, cython.address(self.slab[offset]))[:size]
        return bytes(self.slab[offset : offset + size])
