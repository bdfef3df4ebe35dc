"""Fingerprints of message bytes, and the windows in which the lines' copies are compared.

A fingerprint is a fast 64-bit digest over little-endian words in four independent lanes. Different
bytes have equal ones by accident with a chance of about 2**-64; it is no defence against someone
who constructs a collision.
"""

import cython
import numpy
from cython.cimports.feedhandler.ingest.answers import (
    DIFFERENT,
    OTHER_SPAN,
    SAME,
    UNKNOWN,
)

from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.codecs.visibility import Readonly

if cython.compiled:
    from cython.cimports.feedhandler.ingest.atomics import load_word
else:

    def load_word(chunk: memoryview) -> int:
        """Return eight bytes as a little-endian word."""
        return int.from_bytes(chunk, "little")


#: Unsequenced packets whose fingerprints a channel keeps: such packets are few, and copies come
#: within the lines' skew.
UNSEQUENCED_KEPT = 256
_KEPT = cython.declare(cython.Py_ssize_t, UNSEQUENCED_KEPT)
#: The last eight bits of their numbers distinguish equal packets.
_REPEATS = cython.declare(cython.ulonglong, 256)
_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)

#: Odd multipliers below 2**63 (C keeps larger literals as Python objects), one per lane.
FACTOR_1 = cython.declare(cython.ulonglong, 0x1E3779B97F4A7C15)
FACTOR_2 = cython.declare(cython.ulonglong, 0x3F58476D1CE4E5B9)
FACTOR_3 = cython.declare(cython.ulonglong, 0x14D049BB133111EB)
FACTOR_4 = cython.declare(cython.ulonglong, 0x2127599BF4325C37)
MASK_64 = (1 << 64) - 1
#: The bits of an entry of `CompareWindow` that hold the span: as many as a count of messages has.
#: The other 48 hold the fingerprint, so different bytes look equal there with a chance of 2**-48.
_SPAN_BITS = cython.declare(cython.ulonglong, 0xFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mix(
    lane: cython.ulonglong, word: cython.ulonglong, factor: cython.ulonglong
) -> cython.ulonglong:
    """Mix one word into a lane; the shift lets high bits reach the low ones again."""
    lane = (lane ^ word) * factor
    if not cython.compiled:
        lane &= MASK_64
    return lane ^ (lane >> 29)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _with_span(fingerprint: cython.ulonglong, span: cython.ulonglong) -> cython.ulonglong:
    """Pack fingerprint and span into one word."""
    word: cython.ulonglong = fingerprint << 16 | (span & _SPAN_BITS)
    if not cython.compiled:
        word &= MASK_64
    return word


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fingerprint_at(first: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    """Return the `fingerprint` of the `length` bytes from `first` on, for compiled callers."""
    lane_1: cython.ulonglong = length + 1
    lane_2: cython.ulonglong = 2
    lane_3: cython.ulonglong = 3
    lane_4: cython.ulonglong = 4
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = length
    while end - at >= 32:
        if cython.compiled:
            lane_1 = _mix(lane_1, load_word(first + at), FACTOR_1)
            lane_2 = _mix(lane_2, load_word(first + at + 8), FACTOR_2)
            lane_3 = _mix(lane_3, load_word(first + at + 16), FACTOR_3)
            lane_4 = _mix(lane_4, load_word(first + at + 24), FACTOR_4)
        else:
            lane_1 = _mix(lane_1, load_word(first[at : at + 8]), FACTOR_1)
            lane_2 = _mix(lane_2, load_word(first[at + 8 : at + 16]), FACTOR_2)
            lane_3 = _mix(lane_3, load_word(first[at + 16 : at + 24]), FACTOR_3)
            lane_4 = _mix(lane_4, load_word(first[at + 24 : at + 32]), FACTOR_4)
        at += 32
    while end - at >= 8:
        if cython.compiled:
            lane_1 = _mix(lane_1, load_word(first + at), FACTOR_2)
        else:
            lane_1 = _mix(lane_1, load_word(first[at : at + 8]), FACTOR_2)
        at += 8
    tail: cython.ulonglong = 0
    shift: cython.int = 0
    while at < end:
        tail |= cython.cast(cython.ulonglong, first[at]) << shift
        shift += 8
        at += 1
    lane_1 = _mix(lane_1, tail, FACTOR_3)
    lane_2 = _mix(lane_2, lane_1, FACTOR_4)
    lane_3 = _mix(lane_3, lane_2, FACTOR_1)
    return _mix(lane_4, lane_3, FACTOR_2)


@cython.boundscheck(False)  # the first line checks the bounds
@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def fingerprint(
    data: cython.const_uchar[::1], start: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.ulonglong:
    """Return the digest of `data[start:start + length]`. Raises `IndexError` where that is
    outside."""
    if start < 0 or length < 0 or start + length > len(data):
        raise IndexError("fingerprint outside the buffer")
    if cython.compiled:
        return fingerprint_at(cython.address(data[0]) + start, length)
    return fingerprint_at(memoryview(data)[start:], length)


@cython.final
@cython.cclass
class CompareWindow:
    """Fingerprints of the latest packets by sequence number, in a table of fixed size.

    A number's slot is its remainder, so consecutive numbers never replace each other before the
    window (a power of two, at least `capacity` numbers) has passed. A fingerprint is stored with
    its `span`, how many numbers it covers (modulo 65,536): two packets that begin with the same
    number can only be compared if their spans are equal.
    """

    entries: cython.ulonglong[::1]
    mask: cython.ulonglong

    def __init__(self, capacity: int) -> None:
        size = 1 << max(capacity - 1, 1).bit_length()
        self.entries = memoryview(numpy.zeros(2 * size, numpy.uint64))
        self.mask = size - 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def remember(
        self, sequence: cython.ulonglong, fingerprint: cython.ulonglong, span: cython.ulonglong
    ) -> cython.int:
        """Keep the first copy's fingerprint.

        Keys are the number plus one: 0 is empty.
        """
        index: cython.ulonglong = (sequence & self.mask) * 2
        self.entries[index] = sequence + 1
        self.entries[index + 1] = _with_span(fingerprint, span)
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def compare(
        self, sequence: cython.ulonglong, fingerprint: cython.ulonglong, span: cython.ulonglong
    ) -> cython.int:
        """Compare with the first copy: SAME, DIFFERENT, OTHER_SPAN, or UNKNOWN.

        UNKNOWN: not, or no longer, in the window. DIFFERENT is returned once for each number.
        """
        index: cython.ulonglong = (sequence & self.mask) * 2
        key: cython.ulonglong = sequence + 1
        if self.entries[index] != key:
            return UNKNOWN
        known: cython.ulonglong = self.entries[index + 1]
        given: cython.ulonglong = _with_span(fingerprint, span)
        if known == given:
            return SAME
        if (known ^ given) & _SPAN_BITS:
            return OTHER_SPAN
        self.entries[index] = 0
        return DIFFERENT

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def knows(self, sequence: cython.ulonglong) -> cython.bint:
        """Return whether a packet that begins with this number is kept."""
        return self.entries[(sequence & self.mask) * 2] == sequence + 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def span_of(
        self, sequence: cython.ulonglong, fingerprint: cython.ulonglong
    ) -> cython.ulonglong:
        """Return the span, modulo 65,536, of the packet with this number and fingerprint; 0:
        none."""
        index: cython.ulonglong = (sequence & self.mask) * 2
        if self.entries[index] != sequence + 1:
            return 0
        if (self.entries[index + 1] ^ _with_span(fingerprint, 0)) & ~_SPAN_BITS:
            return 0
        return self.entries[index + 1] & _SPAN_BITS

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def clear(self) -> cython.int:
        """Forget everything, for a new epoch."""
        index: cython.ulonglong = 0
        while index <= self.mask:
            self.entries[index * 2] = 0
            index += 1
        return 0


@cython.final
@cython.cclass
class UnsequencedWindow:
    """The latest unsequenced packets: their fingerprints, and which lines showed each.

    They have no number by which to recognise a copy, and two of them may be equal byte for byte. So
    occurrences are matched line by line: the n-th one on a line is the copy of the n-th on another.
    A packet whose bytes are unique is never taken for a copy; of equal ones within `wait_ns`, one
    can be only where each line has lost what the other brought.
    """

    prints: cython.ulonglong[::1]
    shown_by: cython.ulonglong[::1]
    first_ns: cython.ulonglong[::1]
    repeats: cython.ulonglong[::1]
    wait: cython.ulonglong
    repeat: cython.ulonglong
    next_index: cython.Py_ssize_t
    number: Readonly[cython.ulonglong]

    def __init__(self, wait_ns: int) -> None:
        self.prints = memoryview(numpy.zeros(UNSEQUENCED_KEPT, numpy.uint64))
        self.shown_by = memoryview(numpy.zeros(UNSEQUENCED_KEPT, numpy.uint64))
        self.first_ns = memoryview(numpy.zeros(UNSEQUENCED_KEPT, numpy.uint64))
        self.repeats = memoryview(numpy.zeros(UNSEQUENCED_KEPT, numpy.uint64))
        self.wait = wait_ns
        self.next_index = 0
        self.number = 0
        self.repeat = 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def is_copy(
        self, line: cython.int, fingerprint: cython.ulonglong, now_ns: cython.ulonglong
    ) -> cython.bint:
        """Return whether this is the copy of a packet that another line has shown already.

        If so that is recorded; else `number` is the packet's number, and `remember` is to be called
        next, once it is published. The number is made of the fingerprint and of how many equal
        packets are known: all gateways that saw the same packets give each the same number.
        """
        step: cython.Py_ssize_t
        bit: cython.ulonglong = cython.cast(cython.ulonglong, 1) << line
        self.repeat = 0
        for step in range(_KEPT):
            at: cython.Py_ssize_t = (self.next_index + step) % _KEPT  # the oldest first
            if self.shown_by[at] == 0 or self.prints[at] != fingerprint:
                continue
            if self.shown_by[at] & bit == 0 and now_ns <= self.first_ns[at] + self.wait:
                self.shown_by[at] |= bit
                return True
            self.repeat = (self.repeats[at] + 1) % _REPEATS
        self.number = _UNSEQUENCED | fingerprint >> 10 << 8 | self.repeat
        return False

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def remember(
        self, line: cython.int, fingerprint: cython.ulonglong, now_ns: cython.ulonglong
    ) -> cython.int:
        """Keep the packet last passed to `is_copy`, which is published.

        Returns 1 where the entry that it replaces might still have been needed.
        """
        forgotten: cython.int = (
            self.shown_by[self.next_index] != 0
            and now_ns <= self.first_ns[self.next_index] + self.wait
        )
        self.prints[self.next_index] = fingerprint
        self.shown_by[self.next_index] = cython.cast(cython.ulonglong, 1) << line
        self.first_ns[self.next_index] = now_ns
        self.repeats[self.next_index] = self.repeat
        self.next_index = (self.next_index + 1) % _KEPT
        return forgotten
