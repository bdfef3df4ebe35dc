"""Ring records written as a capture's: pcap records or pcapng packet blocks, without the GIL.

`FrameWriter.drain` walks what a tap's ring shows and lays out one record a packet in `out`: header
with nanoseconds, Ethernet, IPv4 with its checksum, UDP, payload. Records are pcap's, or, if asked
for, pcapng's enhanced packet blocks, with a packet's endpoint as its interface. An endpoint (a line
or a channel) has a head made beforehand; only lengths, checksum, sender and time are
filled in for each packet. What a frame looks like is `records`'s: a switch would deliver it so.

A tap is an ordinary `Ring` whose producer never waits: a thread that has a packet in its hands
writes a copy as a PACKET record and, once a batch, publishes; where there is no room it counts the
packet and forgets it. Of the records, only these words are looked at: `received_ns`; the endpoint,
which is `line` in a ring of received datagrams and `channel` in one of published packets; and
`session`, which may hold the datagram's sender: IPv4 address << 16 | port (0: not known).

Left to others: when to drain, where the bytes go, and how much room is left there.
"""

from collections.abc import Sequence

import cython
from cython.cimports.feedhandler.ingest.records import (
    CHANNEL_SHIFT,
    HEADER_BYTES,
    KIND_MASK,
    KIND_SHIFT,
    LINE_MASK,
    LINE_SHIFT,
    PACKET,
    WORD_PAYLOAD,
    WORD_RECEIVED_NS,
    WORD_RECORD,
    WORD_SESSION,
)
from cython.cimports.feedhandler.ingest.ring import Ring
from cython.cimports.feedhandler.replay.captures.records import (
    begin_block,
    begin_record,
    fit_headers,
    put16,
)

from feedhandler.codecs.visibility import Readonly
from feedhandler.replay.captures.records import (
    BLOCK_HEAD_BYTES,
    BLOCK_TAIL_BYTES,
    FRAME_BYTES_MIN,
    HEADERS_BYTES,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    frame_headers,
)

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset

#: The longest record there is: `room` below it may not get anything written.
RECORD_SPACE = BLOCK_HEAD_BYTES + HEADERS_BYTES + PAYLOAD_BYTES_MAX + 3 + BLOCK_TAIL_BYTES
#: More packets than any ring brings.
NO_LIMIT = 1 << 63

_HEAD = cython.declare(cython.Py_ssize_t, HEADERS_BYTES)
_BLOCK_TAIL = cython.declare(cython.Py_ssize_t, BLOCK_TAIL_BYTES)
_FRAME_MIN = cython.declare(cython.Py_ssize_t, FRAME_BYTES_MIN)
_PAYLOAD_MAX = cython.declare(cython.Py_ssize_t, PAYLOAD_BYTES_MAX)
_U32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)


@cython.final
@cython.cclass
class FrameWriter:
    """Lays out the packets of one ring; `out` holds what `drain` last wrote.

    `endpoints` are (group, port, source) of each in turn; an unknown source is "". Endpoints are
    lines where `by_line`, else channels. `packets` counts records made, `unwritable` packets
    of an unknown endpoint or too long for a UDP datagram. At most `limit` records are made: the
    next packets stay in the ring. `blocks` asks for pcapng's blocks; times then count nanoseconds.
    """

    out: Readonly[cython.uchar[::1]]
    packets: Readonly[cython.ulonglong]
    unwritable: Readonly[cython.ulonglong]
    full: Readonly[cython.bint]
    heads: cython.const_uchar[::1]
    head_count: cython.Py_ssize_t
    by_line: cython.bint
    blocks: cython.bint
    head_bytes: cython.Py_ssize_t
    limit: cython.ulonglong

    def __init__(
        self,
        endpoints: Sequence[tuple[str, int, str]],
        buffer_bytes: int,
        by_line: bool,
        blocks: bool = False,
        limit: int = NO_LIMIT,
    ) -> None:
        if buffer_bytes < RECORD_SPACE:
            raise ValueError(f"a buffer of {buffer_bytes} bytes cannot hold a record")
        self.out = memoryview(bytearray(buffer_bytes))
        self.heads = memoryview(
            b"".join(
                frame_headers(group, port, source or "0.0.0.0", 0, 0)
                for group, port, source in endpoints
            )
        )
        self.head_count = len(endpoints)
        self.by_line = by_line
        self.blocks = blocks
        self.head_bytes = BLOCK_HEAD_BYTES if blocks else RECORD_HEADER_BYTES
        self.limit = limit
        self.packets = 0
        self.unwritable = 0
        self.full = False

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def drain(self, ring: Ring, room: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Lay out packets until the ring is empty or the next would not fit into `room` bytes.

        Returns the bytes laid out, from the start of `out`. What was laid out is released. `full`
        is set where a packet was left for want of room.
        """
        filled: cython.Py_ssize_t = 0
        self.full = False
        if room > self.out.shape[0]:
            room = self.out.shape[0]
        if cython.compiled:
            position: cython.ulonglong = ring.tail_bytes
        else:
            position = ring.tail
        end: cython.ulonglong = ring.readable()
        while position < end and self.packets < self.limit:
            offset: cython.Py_ssize_t = position & ring.mask
            first: cython.ulonglong = ring.words[(offset >> 3) + WORD_RECORD]
            if (first >> KIND_SHIFT) & KIND_MASK == PACKET:
                second: cython.ulonglong = ring.words[(offset >> 3) + WORD_PAYLOAD]
                length: cython.Py_ssize_t = second & _U32
                address: cython.Py_ssize_t = (
                    (second >> LINE_SHIFT) & LINE_MASK if self.by_line else first >> CHANNEL_SHIFT
                )
                if address >= self.head_count or length > _PAYLOAD_MAX:
                    self.unwritable += 1
                else:
                    need: cython.Py_ssize_t = self.head_bytes + max(_HEAD + length, _FRAME_MIN)
                    if self.blocks:
                        need = ((need + 3) & ~3) + _BLOCK_TAIL
                    if filled + need > room:
                        self.full = True
                        break
                    self.record(ring, offset, address, length, filled, need)
                    filled += need
            position += first & _U32
        ring.release(position)
        return filled

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def record(
        self,
        ring: Ring,
        offset: cython.Py_ssize_t,
        index: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Write one packet as a record of `size` bytes at `at`."""
        frame: cython.Py_ssize_t = max(_HEAD + length, _FRAME_MIN)
        start: cython.Py_ssize_t = at + self.head_bytes
        body: cython.Py_ssize_t = start + _HEAD
        # Up to the frame's least length, and in a block up to a multiple of four.
        padding: cython.Py_ssize_t = at + size - body - length
        if self.blocks:
            padding -= _BLOCK_TAIL
        if cython.compiled:
            # The last bytes are asked for first: `out` and the ring check their own bounds.
            self.out[body + length + padding - 1]
            memcpy(
                cython.address(self.out[start]),
                cython.address(self.heads[index * _HEAD]),
                _HEAD,
            )
            if length > 0:
                ring.data[offset + HEADER_BYTES + length - 1]
                memcpy(
                    cython.address(self.out[body]),
                    cython.address(ring.data[offset + HEADER_BYTES]),
                    length,
                )
            if padding > 0:
                memset(cython.address(self.out[body + length]), 0, padding)
        else:
            out, begin = self.out, offset + HEADER_BYTES
            out[start:body] = self.heads[index * _HEAD : (index + 1) * _HEAD]
            out[body : body + length] = ring.data[begin : begin + length]
            out[body + length : body + length + padding] = bytes(padding)
        stamp: cython.ulonglong = ring.words[(offset >> 3) + WORD_RECEIVED_NS]
        if self.blocks:
            begin_block(self.out, at, size, index, stamp, frame)
        else:
            begin_record(self.out, at, stamp, frame)
        sender: cython.ulonglong = ring.words[(offset >> 3) + WORD_SESSION]
        if sender != 0:
            put16(self.out, start + 26, cython.cast(cython.uint, (sender >> 32) & 0xFFFF))
            put16(self.out, start + 28, cython.cast(cython.uint, (sender >> 16) & 0xFFFF))
            put16(self.out, start + 34, cython.cast(cython.uint, sender & 0xFFFF))
        fit_headers(self.out, start, length)
        self.packets += 1
        return 0
