"""The hand-over ring: one producer (a receive thread), one consumer (the event loop).

A byte ring of power-of-two capacity. A record is eight 64-bit words in the machine's byte order
and then the payload, padded to eight bytes; it never wraps: where the end of the ring is too near,
a PAD record fills it (of a PAD only the first word is valid, for it may be eight bytes long).

    w0  record size in bytes, header and padding included (u32) | kind << 32 | channel << 48
    w1  payload length (u32) | line << 32 (u8) | flags << 40 (u8) | message count << 48 (u16)
    w2  sequence                      w3  next sequence
    w4  received_ns                   w5  session
    w6  skip (u32) | offset of the first message in the payload << 32
    w7  auxiliary

| kind | says | w2 | w3 | w7 |
|---|---|---|---|---|
| PACKET | the next packet; flags is its `PacketKind`, `skip` its leading messages that were \
delivered before | its sequence | the sequence after it | raw send time |
| PACKET, of kind UNSEQUENCED | a packet outside the sequence | a number of its own, with \
`UNSEQUENCED_BIT` | expected | raw send time |
| GAP | this range was lost on every line | first missing | one past the last | `GapCause` |
| RESET | a new epoch begins | 0 | the number the next packet carries | `ResetCause` |
| START | the stream was joined here | first sequence | the same | 0 |
| LINE_SILENT, LINE_BACK | `line` fell silent, or came back | expected | expected | 0 |
| MISMATCH | `line` showed other message bytes than the first copy; may precede the packet | \
sequence | next sequence | 0 |
| GAP_NOTICED | a first gap was noticed (where recovery listens) | expected | end of the \
gap | epoch |
| MISSING | the lines had their time; recovery is asked for this range | first missing | one past \
the last | epoch |
| CLOSED | nothing is missing any more | expected | expected | epoch |
| WITHDRAWN | what was announced lost from the new number on was not: `line` goes on there | \
expected, until now | expected, from now on | epoch |
| SKIPPED | the publisher says that no messages carry these numbers | first skipped | one past the \
last | 0 |
| PASSED | the stream goes past what it published before it went back | expected | expected, from \
now on | epoch |

`received_ns` is the kernel's stamp of the packet (CLOCK_REALTIME); in the other kinds it is the
stamp of the latest packet that the channel had seen.

The producer writes at `head` and shows a whole batch at once by `publish` (atomic release). The
consumer reads from `tail` to `published`, releases what it has read, and before it sleeps calls
`arm`: only then does the next `publish` ask for a wake-up. In that way the eventfd is written
once per sleep and not once per batch. A consumer that would rather find more at a time says by
`rest` until when it wishes to sleep (CLOCK_MONOTONIC); its writer keeps to that.

Promises: records come out in the order written, whole, each once; a record that does not fit is
refused (`write_*` return 0) and nothing is overwritten. Left to others: waking and sleeping.
"""

from dataclasses import dataclass

import cython
from cython.cimports.feedhandler.ingest.records import (
    BODY_SHIFT,
    CHANNEL_SHIFT,
    COUNT_MASK,
    COUNT_SHIFT,
    FLAGS_MASK,
    FLAGS_SHIFT,
    HEADER_BYTES,
    HEADER_WORDS,
    KIND_MASK,
    KIND_SHIFT,
    LINE_MASK,
    LINE_SHIFT,
    PACKET,
    PAD,
    WORD_AUXILIARY,
    WORD_MESSAGES,
    WORD_NEXT_SEQUENCE,
    WORD_PAYLOAD,
    WORD_RECEIVED_NS,
    WORD_RECORD,
    WORD_SEQUENCE,
    WORD_SESSION,
)

from feedhandler.codecs.visibility import Readonly
from feedhandler.ingest.records import RecordKind

if cython.compiled:
    from cython.cimports.feedhandler.ingest.atomics import (
        exchange,
        fence,
        load_acquire,
        store_release,
    )
    from cython.cimports.libc.string import memcpy

#: Smallest ring: a few of the largest UDP datagrams.
CAPACITY_MIN = 1 << 18
#: Default: 16,000 packets of 336 bytes; a larger one only adds cache misses.
CAPACITY_DEFAULT = 1 << 23
#: Record sizes are u32 words, so positions inside the ring must be as well.
CAPACITY_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Event:
    """One record, for tests and tools; fields as in the table above."""

    kind: RecordKind
    channel: int
    line: int
    flags: int
    count: int
    sequence: int
    next_sequence: int
    received_ns: int
    session: int
    skip: int
    body: int
    auxiliary: int
    payload: bytes


@cython.final
@cython.cclass
class Ring:
    """The ring over `capacity` bytes, a power of two from `CAPACITY_MIN` to `CAPACITY_MAX`."""

    words: Readonly[cython.ulonglong[::1]]
    data: Readonly[cython.uchar[::1]]
    capacity: Readonly[cython.ulonglong]
    mask: Readonly[cython.ulonglong]
    # The producer's own: nobody else reads or writes these two.
    head: Readonly[cython.ulonglong]
    seen_tail: cython.ulonglong
    # Each shared position has a cache line to itself.
    padding_1: cython.ulonglong[8]
    published_bytes: cython.ulonglong
    padding_2: cython.ulonglong[8]
    tail_bytes: cython.ulonglong
    padding_3: cython.ulonglong[8]
    asleep: cython.ulonglong
    rest_until_ns: cython.ulonglong
    padding_4: cython.ulonglong[7]

    def __init__(self, capacity: int = CAPACITY_DEFAULT) -> None:
        if capacity & (capacity - 1) or not CAPACITY_MIN <= capacity <= CAPACITY_MAX:
            raise ValueError(
                f"ring capacity {capacity} is not a power of two in {CAPACITY_MIN}..{CAPACITY_MAX}"
            )
        memory = memoryview(bytearray(capacity))
        self.data = memory
        self.words = memory.cast("Q")
        self.capacity = capacity
        self.mask = capacity - 1
        self.head = 0
        self.seen_tail = 0
        self.published_bytes = 0
        self.tail_bytes = 0
        self.asleep = 1  # a consumer that has not begun is woken by the first batch
        self.rest_until_ns = 0

    @property
    def published(self) -> int:
        """Position up to which the consumer may read, in bytes since the start."""
        return self.readable()

    @property
    def tail(self) -> int:
        """Position up to which the consumer has read, in bytes since the start."""
        if cython.compiled:
            return load_acquire(cython.address(self.tail_bytes))
        else:
            return self.tail_bytes

    # -- producer ---------------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def refresh_room(self) -> cython.ulonglong:
        """Look at the consumer's position again; the free bytes."""
        if cython.compiled:
            self.seen_tail = load_acquire(cython.address(self.tail_bytes))
        else:
            self.seen_tail = self.tail_bytes
        return self.capacity - (self.head - self.seen_tail)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def room(self) -> cython.ulonglong:
        """Free bytes; what a record may take is less by up to its own size (see `reserve`)."""
        return self.refresh_room()

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def reserve(self, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Offset of `size` contiguous free bytes (a multiple of eight), or -1.

        Where they do not fit before the end of the ring, that rest is padded away first.
        """
        offset: cython.ulonglong = self.head & self.mask
        to_end: cython.ulonglong = self.capacity - offset
        need: cython.ulonglong = (
            size if to_end >= cython.cast(cython.ulonglong, size) else to_end + size
        )
        if need > self.capacity - (self.head - self.seen_tail) and need > self.refresh_room():
            return -1
        if to_end < cython.cast(cython.ulonglong, size):
            self.words[(offset >> 3) + WORD_RECORD] = to_end | (
                cython.cast(cython.ulonglong, PAD) << KIND_SHIFT
            )
            self.head += to_end
            offset = 0
        return offset

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def write_packet(
        self,
        channel: cython.int,
        line: cython.int,
        flags: cython.int,
        count: cython.int,
        sequence: cython.ulonglong,
        next_sequence: cython.ulonglong,
        received_ns: cython.ulonglong,
        session: cython.ulonglong,
        skip: cython.uint,
        body: cython.uint,
        auxiliary: cython.ulonglong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        """Write one PACKET record; 1, or 0 when there is no room for it."""
        if start < 0 or length < 0 or start + length > len(data):
            raise IndexError("packet outside its buffer")
        size: cython.Py_ssize_t = HEADER_BYTES + ((length + 7) & ~7)
        offset: cython.Py_ssize_t = self.reserve(size)
        if offset < 0:
            return 0
        word: cython.Py_ssize_t = offset >> 3
        self.words[word + WORD_RECORD] = (
            cython.cast(cython.ulonglong, size)
            | (cython.cast(cython.ulonglong, PACKET) << KIND_SHIFT)
            | (cython.cast(cython.ulonglong, channel) << CHANNEL_SHIFT)
        )
        self.words[word + WORD_PAYLOAD] = (
            cython.cast(cython.ulonglong, length)
            | (cython.cast(cython.ulonglong, line & LINE_MASK) << LINE_SHIFT)
            | (cython.cast(cython.ulonglong, flags & FLAGS_MASK) << FLAGS_SHIFT)
            | (cython.cast(cython.ulonglong, count & COUNT_MASK) << COUNT_SHIFT)
        )
        self.words[word + WORD_SEQUENCE] = sequence
        self.words[word + WORD_NEXT_SEQUENCE] = next_sequence
        self.words[word + WORD_RECEIVED_NS] = received_ns
        self.words[word + WORD_SESSION] = session
        self.words[word + WORD_MESSAGES] = skip | (
            cython.cast(cython.ulonglong, body) << BODY_SHIFT
        )
        self.words[word + WORD_AUXILIARY] = auxiliary
        if length > 0:
            if cython.compiled:
                memcpy(
                    cython.address(self.data[offset + HEADER_BYTES]),
                    cython.address(data[start]),
                    length,
                )
            else:
                begin = offset + HEADER_BYTES
                self.data[begin : begin + length] = data[start : start + length]
        self.head += size
        return 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-1, check=True)
    def write_control_event(
        self,
        kind: cython.int,
        channel: cython.int,
        line: cython.int,
        sequence: cython.ulonglong,
        next_sequence: cython.ulonglong,
        received_ns: cython.ulonglong,
        session: cython.ulonglong,
        auxiliary: cython.ulonglong,
    ) -> cython.int:
        """Write one record without payload; 1, or 0 when there is no room for it."""
        offset: cython.Py_ssize_t = self.reserve(HEADER_BYTES)
        if offset < 0:
            return 0
        word: cython.Py_ssize_t = offset >> 3
        self.words[word + WORD_RECORD] = (
            cython.cast(cython.ulonglong, HEADER_BYTES)
            | (cython.cast(cython.ulonglong, kind) << KIND_SHIFT)
            | (cython.cast(cython.ulonglong, channel) << CHANNEL_SHIFT)
        )
        self.words[word + WORD_PAYLOAD] = (
            cython.cast(cython.ulonglong, line & LINE_MASK) << LINE_SHIFT
        )
        self.words[word + WORD_SEQUENCE] = sequence
        self.words[word + WORD_NEXT_SEQUENCE] = next_sequence
        self.words[word + WORD_RECEIVED_NS] = received_ns
        self.words[word + WORD_SESSION] = session
        self.words[word + WORD_MESSAGES] = 0
        self.words[word + WORD_AUXILIARY] = auxiliary
        self.head += HEADER_BYTES
        return 1

    def put(
        self,
        kind: int,
        *,
        channel: int = 0,
        line: int = 0,
        flags: int = 0,
        count: int = 0,
        sequence: int = 0,
        next_sequence: int = 0,
        received_ns: int = 0,
        session: int = 0,
        skip: int = 0,
        body: int = 0,
        auxiliary: int = 0,
        payload: bytes = b"",
    ) -> bool:
        """Write one record from Python (for tests and tools); False when there is no room."""
        if kind == RecordKind.PACKET:
            return bool(
                self.write_packet(
                    channel,
                    line,
                    flags,
                    count,
                    sequence,
                    next_sequence,
                    received_ns,
                    session,
                    skip,
                    body,
                    auxiliary,
                    memoryview(payload),
                    0,
                    len(payload),
                )
            )
        return bool(
            self.write_control_event(
                kind, channel, line, sequence, next_sequence, received_ns, session, auxiliary
            )
        )

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def publish(self) -> cython.int:
        """Show everything written so far; 1 when the consumer sleeps and must be woken."""
        if cython.compiled:
            store_release(cython.address(self.published_bytes), self.head)
            fence()
            if load_acquire(cython.address(self.asleep)) == 0:
                return 0
            return exchange(cython.address(self.asleep), 0)
        else:
            self.published_bytes = self.head
            waking = self.asleep
            self.asleep = 0
            return waking

    # -- consumer ---------------------------------------------------------------------------

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def readable(self) -> cython.ulonglong:
        """Position up to which records may be read."""
        if cython.compiled:
            return load_acquire(cython.address(self.published_bytes))
        else:
            return self.published_bytes

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def release(self, position: cython.ulonglong) -> cython.void:
        """Give the bytes before `position` back to the producer."""
        if cython.compiled:
            store_release(cython.address(self.tail_bytes), position)
        else:
            self.tail_bytes = position

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def arm(self) -> cython.bint:
        """Ask to be woken by the next batch. False when one came already: read on, don't sleep."""
        if cython.compiled:
            exchange(cython.address(self.asleep), 1)
            if self.readable() == self.tail_bytes:
                return True
            exchange(cython.address(self.asleep), 0)
            return False
        else:
            self.asleep = int(self.published_bytes == self.tail_bytes)
            return bool(self.asleep)

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def rest(self, until_ns: cython.ulonglong) -> cython.void:
        """To be called before `arm`: the consumer wishes not to be woken before `until_ns`."""
        self.rest_until_ns = until_ns

    def drain(self) -> list[Event]:
        """Read and release everything published, as objects (for tests and tools)."""
        position = self.tail
        end = self.readable()
        events = []
        while position < end:
            offset = position & self.mask
            first = self.words[(offset >> 3) + WORD_RECORD]
            if (first >> KIND_SHIFT) & KIND_MASK != RecordKind.PAD:
                events.append(self._event(offset))
            position += first & 0xFFFFFFFF
        self.release(position)
        return events

    def _event(self, offset: int) -> Event:
        """Return the record at `offset` as an object."""
        words = [self.words[(offset >> 3) + i] for i in range(HEADER_WORDS)]
        record, payload = words[WORD_RECORD], words[WORD_PAYLOAD]
        begin = offset + HEADER_BYTES
        return Event(
            kind=RecordKind((record >> KIND_SHIFT) & KIND_MASK),
            channel=record >> CHANNEL_SHIFT,
            line=(payload >> LINE_SHIFT) & LINE_MASK,
            flags=(payload >> FLAGS_SHIFT) & FLAGS_MASK,
            count=payload >> COUNT_SHIFT,
            sequence=words[WORD_SEQUENCE],
            next_sequence=words[WORD_NEXT_SEQUENCE],
            received_ns=words[WORD_RECEIVED_NS],
            session=words[WORD_SESSION],
            skip=words[WORD_MESSAGES] & 0xFFFFFFFF,
            body=words[WORD_MESSAGES] >> BODY_SHIFT,
            auxiliary=words[WORD_AUXILIARY],
            payload=bytes(self.data[begin : begin + (payload & 0xFFFFFFFF)]),
        )
