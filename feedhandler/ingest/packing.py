# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Comparison of a channel's copies, whether or not its lines pack messages alike.

Where numbers count messages, one line may send [5, 8) in one packet and the other [5, 6) and [6,
8). Their copies can then be compared by message only. As long as every copy covers the numbers of
the first one, a packet has one fingerprint. The first copy that covers others shows that the lines
differ (`by_message`), and from there on each message has its own fingerprint; what was published
before that is not compared with it. Where numbers count packets, none of this happens.

A FIX message that is sent again with PossDupFlag has other bytes than the original: it is compared
with nothing.

A FIX packet consists only of messages, so one of which a part is published already is trimmed to
the rest, and is then treated like any packet.

Left to others: what follows from a comparison, and which bytes are compared.
"""

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import DATA, SKIP
from cython.cimports.feedhandler.codecs.message_walk import message_end, message_size
from cython.cimports.feedhandler.codecs.scanner import patch_header
from cython.cimports.feedhandler.ingest.answers import DIFFERENT, OTHER_SPAN, SAME, UNKNOWN
from cython.cimports.feedhandler.ingest.fingerprint import (
    CompareWindow,
    fingerprint,
    fingerprint_at,
)
from cython.cimports.feedhandler.ingest.hold import PacketPool
from cython.cimports.feedhandler.ingest.slots import (
    COUNT,
    KIND,
    LENGTH,
    NEXT,
    SEQUENCE,
    SLOT_WORDS,
)

from feedhandler.codecs.visibility import Public, Readonly

if cython.compiled:
    from cython.cimports.feedhandler.codecs.fix_runs import message_bytes
    from cython.cimports.libc.string import memcmp, memmove


@cython.final
@cython.cclass
class Copies:
    """Fingerprints of what was published or held, of the latest `numbers` numbers.

    `table` is the feed's, by which messages are found; None where numbers count packets. In all
    methods `data[at:at + length]` are the messages `sequence` to `sequence + span` - 1.
    """

    table: Readonly[FeedTable]
    window: Readonly[CompareWindow]
    by_message: Public[cython.bint]
    is_fix: Readonly[cython.bint]

    def __init__(self, table, numbers: int) -> None:
        self.table = table
        self.window = CompareWindow(numbers)
        self.by_message = False
        self.is_fix = table is not None and table.fix

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def are_again(self, header: PacketHeader) -> cython.bint:
        """Return whether the packet's messages are marked as sent again (PossDupFlag)."""
        return self.is_fix and header.flags != 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note(
        self, header: PacketHeader, data: cython.const_uchar[::1], start: cython.Py_ssize_t
    ) -> cython.int:
        """Remember the first copy that begins at `start`, message by message.

        Skipped numbers and FIX messages with PossDupFlag are not remembered.
        """
        if header.kind == SKIP or self.are_again(header):
            return 0
        return self._note_each(
            header.sequence, header.next_sequence - header.sequence, data, start + header.body,
            header.length - header.body,
        )  # fmt: skip

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def note_held(
        self,
        sequence: cython.ulonglong,
        span: cython.ulonglong,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        print_64: cython.ulonglong,
    ) -> cython.int:
        """Remember a first copy whose fingerprint is known."""
        if self.by_message and span != 1:
            return self._note_each(sequence, span, data, at, length)
        return self.window.remember(sequence, print_64, span)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _note_each(
        self,
        sequence: cython.ulonglong,
        span: cython.ulonglong,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        """Remember each message of a packet."""
        end: cython.Py_ssize_t = at + length
        while span > 0 and at < end:
            size: cython.Py_ssize_t = message_size(self.table, data, at, end)
            if size == 0:
                return 0
            self.window.remember(sequence, fingerprint(data, at, size), 1)
            at += size
            sequence += 1
            span -= 1
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def compare(
        self,
        sequence: cython.ulonglong,
        span: cython.ulonglong,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        print_64: cython.ulonglong,
    ) -> cython.int:
        """Compare with the first copy: SAME, DIFFERENT (once for each number) or UNKNOWN.

        `print_64` is the fingerprint of all the given bytes.
        """
        if self.by_message and span != 1:
            return self._compare_each(sequence, span, data, at, length)
        answer: cython.int = self.window.compare(sequence, print_64, span)
        if answer == OTHER_SPAN:
            self.differ()
            return UNKNOWN
        return answer

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def _compare_each(
        self,
        sequence: cython.ulonglong,
        span: cython.ulonglong,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        """Compare by message: DIFFERENT where one is; SAME where one is known and none differs."""
        answer: cython.int = UNKNOWN
        end: cython.Py_ssize_t = at + length
        while span > 0 and at < end:
            size: cython.Py_ssize_t = message_size(self.table, data, at, end)
            if size == 0:
                return answer
            one: cython.int = self.window.compare(sequence, fingerprint(data, at, size), 1)
            if one == DIFFERENT or (one == SAME and answer == UNKNOWN):
                answer = one
            at += size
            sequence += 1
            span -= 1
        return answer

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def compare_packet(
        self, header: PacketHeader, data: cython.const_uchar[::1], start: cython.Py_ssize_t
    ) -> cython.int:
        """Compare a packet that begins at `start`, as `compare`."""
        length: cython.Py_ssize_t = header.length - header.body
        span: cython.ulonglong = header.next_sequence - header.sequence
        if header.kind == SKIP or self.are_again(header):
            return UNKNOWN
        if self.by_message and span != 1:
            return self._compare_each(header.sequence, span, data, start + header.body, length)
        answer: cython.int = self.window.compare(
            header.sequence, fingerprint(data, start + header.body, length), span
        )
        if answer == OTHER_SPAN:
            self.differ()
            return UNKNOWN
        return answer

    @cython.boundscheck(False)  # the first line checks the bounds
    @cython.ccall
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def known_span(
        self,
        sequence: cython.ulonglong,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.ulonglong:
        """Return how many numbers FIX messages cover, from `sequence` on, if all are copies.

        They are where each byte of them is a first copy's; 0 where that is not known.
        """
        if at < 0 or length < 1 or at + length > len(data):
            return 0
        first = cython.address(data[0]) + at if cython.compiled else memoryview(data)[at:]
        if self.by_message:
            return self._known_each(sequence, first, length)
        return self.window.span_of(sequence, fingerprint_at(first, length))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(6148914691236517205, check=True)
    def _known_each(
        self, sequence: cython.ulonglong, first: cython.p_const_uchar, length: cython.Py_ssize_t
    ) -> cython.ulonglong:
        """Return `known_span` where each message has its own fingerprint."""
        at: cython.Py_ssize_t = 0
        span: cython.ulonglong = 0
        while at < length:
            if not self.window.knows(sequence + span):
                return 0
            if cython.compiled:
                size: cython.Py_ssize_t = message_bytes(first, at, length)
            else:
                size = message_size(self.table, first, at, length)
            if size == 0 or (
                self.window.span_of(
                    sequence + span,
                    fingerprint_at(first + at if cython.compiled else first[at:], size),
                )
                != 1
            ):
                return 0
            at += size
            span += 1
        return span

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def differ(self) -> cython.int:
        """Compare by message from now on, because the lines pack messages differently."""
        if self.table is not None:
            self.by_message = True
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def trim(
        self,
        header: PacketHeader,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        number: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """Trim a FIX packet to what is from `number` on; return where that begins.

        Other packets cannot begin within: their record says how many messages to skip.
        """
        self.differ()
        if not self.is_fix or number <= header.sequence:
            return start
        if header.kind == DATA:
            end: cython.Py_ssize_t = message_end(
                self.table, data, start, start + header.length, number - header.sequence
            )
            if end < 0:
                return start
            header.count -= cython.cast(cython.int, number - header.sequence)
            header.length -= cython.cast(cython.uint, end - start)
            start = end
        header.sequence = number
        return start

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def trim_held(
        self, pool: PacketPool, slot: cython.Py_ssize_t, number: cython.ulonglong
    ) -> cython.int:
        """Trim the FIX packet in a slot of `pool` to what is from `number` on."""
        word: cython.Py_ssize_t = slot * SLOT_WORDS
        start: cython.Py_ssize_t = slot * pool.slot_bytes
        length: cython.Py_ssize_t = pool.words[word + LENGTH]
        if not self.is_fix or number <= pool.words[word + SEQUENCE]:
            return 0
        if pool.words[word + KIND] == DATA:
            end: cython.Py_ssize_t = message_end(
                self.table, pool.slab, start, start + length, number - pool.words[word + SEQUENCE]
            )
            if end < 0:
                return 0
            pool.words[word + COUNT] -= number - pool.words[word + SEQUENCE]
            pool.words[word + LENGTH] = start + length - end
            _move(pool.slab, start, end, start + length - end)
        pool.words[word + SEQUENCE] = number
        return 0

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def cut(self, pool: PacketPool, slot: cython.Py_ssize_t, until: cython.ulonglong) -> cython.int:
        """Trim the packet in a slot of `pool` to the messages before number `until`."""
        start: cython.Py_ssize_t = slot * pool.slot_bytes
        word: cython.Py_ssize_t = slot * SLOT_WORDS
        count: cython.ulonglong = until - pool.words[word + SEQUENCE]
        end: cython.Py_ssize_t = -1
        if pool.words[word + KIND] == SKIP:
            pool.words[word + NEXT] = until
        elif self.table is not None:
            end = message_end(
                self.table, pool.slab, pool.body_at(slot), start + pool.words[word + LENGTH], count
            )
        if end < 0:
            return 0
        pool.words[word + LENGTH] = end - start
        pool.words[word + NEXT] = until
        pool.words[word + COUNT] = count
        return patch_header(
            self.table, pool.slab, start, cython.cast(cython.uint, end - start),
            cython.cast(cython.int, count),
        )  # fmt: skip

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def clear(self) -> cython.int:
        """Forget all first copies, for a new epoch."""
        return self.window.clear()


@cython.cfunc
@cython.nogil
def _move(
    slab: cython.uchar[::1], to: cython.Py_ssize_t, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    """Move bytes to the front, within a slot."""
    if size <= 0 or to < 0 or at < to or at + size > len(slab):
        return 0
    if cython.compiled:
        memmove(cython.address(slab[to]), cython.address(slab[at]), size)
    else:
        slab[to : to + size] = bytes(slab[at : at + size])
    return 0


@cython.ccall
@cython.nogil
def begin_alike(
    one: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    other: cython.const_uchar[::1],
    other_at: cython.Py_ssize_t,
    other_length: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether two runs of messages with one first number are equal as far as both go.

    Raises `IndexError` where one is outside its buffer.
    """
    least: cython.Py_ssize_t = length if length < other_length else other_length
    if least <= 0:
        return True
    if at < 0 or other_at < 0 or at + least > len(one) or other_at + least > len(other):
        raise IndexError("messages outside their buffer")
    if cython.compiled:
        return memcmp(cython.address(one[at]), cython.address(other[other_at]), least) == 0
    return one[at : at + least] == other[other_at : other_at + least]
