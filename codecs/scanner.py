# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The scanner: from a packet's bytes to its header fields and the offsets of its messages.

One scanner walks the packets of every feed. What differs between feeds (offsets of fields, byte
order, what a length includes, what a sequence number counts, where a message keeps its symbol)
stands in a `FeedTable`, which `feedhandler.codecs.loader` builds from a feed description.

Promises: never reads outside `data[start:start + size]`; answers every packet with exactly one
`Reject` (0, `FINE`, where nothing is wrong) and never raises for what a peer sent; allocates
nothing per packet. The compiled module and this very file, interpreted, agree on every input.
Message *contents* are not examined, except type and symbol: unknown types pass, and so do messages
shorter than their layout and packets with an unknown delivery flag. They are counted.

Reject reasons (the values of `feedhandler.codecs.kinds.Reject`):

FINE                 nothing wrong
TRUNCATED            fewer bytes than the packet header (or than a reset's next number) needs
LENGTH_MISMATCH      the header's length field disagrees with the size of the datagram
COUNT_MISMATCH       the packet ends before or after the number of messages its header names
MESSAGE_SHORT        a message's size is too small for the message header itself
MESSAGE_OVERRUN      a message reaches past the packet's end
UNKNOWN_PACKET_TYPE  the kind field has a value that the description does not know
WRONG_CONSTANT       a field that must be constant (version, protocol) has another value
CONTROL_SHORT        a control packet's body is shorter than its layout
COMPRESSED           the body is compressed: inflate it before looking for messages
INDEX_FULL           more messages than the index has room for; the caller's doing, not the peer's
CHECKSUM             FIX: a message's CheckSum is not the sum of its bytes
MALFORMED            FIX: a field of a message's envelope or header is wrong or missing

A feed that is framed by FIX has no packet header. In place of a packet it has a *run*
(`feedhandler.codecs.fix_runs`): application messages with consecutive numbers, or one
administrative message. A datagram may hold several; `parse_next` reads the first in one go,
`parse_first` and `parse_further` of `feedhandler.codecs.fix_scanning` in two.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs.fix_runs import Run, symbol_value
from cython.cimports.feedhandler.codecs.fix_scanning import (
    check_run,
    fill_run,
    message_size_at,
    parse_run,
    scan_runs,
)
from cython.cimports.feedhandler.codecs.kinds import (
    COMPRESSED,
    CONTROL,
    CONTROL_SHORT,
    COUNT_MISMATCH,
    DATA,
    FINE,
    HEARTBEAT,
    INDEX_FULL,
    LENGTH_MISMATCH,
    MESSAGE_OVERRUN,
    MESSAGE_SHORT,
    RESET,
    TRUNCATED,
    UNKNOWN_KIND,
    UNKNOWN_PACKET_TYPE,
    UNSEQUENCED,
    WRONG_CONSTANT,
)
from cython.cimports.feedhandler.codecs.layout_sizes import SizeTable, layout_size

from feedhandler.codecs.visibility import Public, Readonly

if cython.compiled:
    from cython.cimports.feedhandler.codecs.first_bytes import first_bytes

#: The symbol of a message that has none.
NO_SYMBOL = 0xFFFF_FFFF_FFFF_FFFF
#: The symbol of a message that names several: `message_symbols` finds each.
SEVERAL_SYMBOLS = 0xFFFF_FFFF_FFFF_FFFE
#: The send time of messages that came without their packet's header.
NO_SEND_TIME = 0xFFFF_FFFF_FFFF_FFFF
#: `FeedTable.unsequenced` where the feed sets no number aside: no number equals it except the
#: largest u64, for which `sets_aside` decides.
NO_SEQUENCE = 0xFFFF_FFFF_FFFF_FFFF
#: Number of reject reasons, `FINE` included: the length of an array of counters by reason.
REJECT_COUNT = 13
#: Constant header fields a description may name (IEX-TP has two).
CONSTANTS_MAX = 4
#: Message types a description may lay out; slot 0 stands for every unknown type.
SLOTS_MAX = 255
#: Numbers that say where a group's elements keep their symbols (`FeedTable.set_group`).
GROUP_NUMBERS = 9
#: Default capacity of an index, in messages: the greatest u16 count.
INDEX_CAPACITY = 65_535


@cython.cclass
class FeedTable:
    """A feed description in the form that the scanner walks.

    `x_at` and `x_size` are a header field's offset from the packet's start and its size in bytes;
    size 0 means that the feed has no such field and it reads as 0. All of them lie in the header:
    the loader refuses others. What most feeds have is read in one go; the rest where the table says
    that it is there:

    varied        packets without a length, a count or a send time, with a text or bits for a
                  session, with a count `end_of_session`, with a header of `short_header` bytes
                  where their kind is in `shorts`, with bits that stand above their number, with
                  that of their first message, of a kind that some bits of its field tell, or that
                  are a reset because of their first message
    several       a datagram may hold several packets
    alone         nothing tells where a packet ends: it must be all of what holds it, also a batch
    odd_messages  messages are padded to `message_align` bytes (their sizes here are with padding),
                  have types of two parts or numbers of their own
    trailing_max  bytes that may follow the last message
    block_size    messages tell how long their fixed part is; groups begin behind it
    sized         messages do not tell their length: `sizes` has that of each type
    symbol_pad    eight bytes of what text is padded with: a shorter symbol is one of eight
    strips_symbols  some symbols are padded otherwise: blanks and NULs at their end count alike
    long_symbols  some symbols are texts of more than eight bytes: as in FIX

    Where the feed `sets_aside` a sequence number, `unsequenced` is it: a
    data packet that carries it is outside the sequence. With `fix` the feed is framed by FIX: no
    field of a packet header is used, and messages keep their symbols in fields `symbol_tag`. The
    methods below write the small arrays, one entry at a time.
    """

    big_endian: Public[cython.bint]
    counts_messages: Public[cython.bint]
    heartbeat_when_empty: Public[cython.bint]
    type_in_packet: Public[cython.bint]
    sets_aside: Public[cython.bint]
    unsequenced: Public[cython.ulonglong]
    header_size: Public[cython.int]
    heartbeat_adds: Public[cython.int]
    length_at: Public[cython.int]
    length_size: Public[cython.int]
    length_add: Public[cython.int]
    kind_at: Public[cython.int]
    kind_size: Public[cython.int]
    type_at: Public[cython.int]
    type_size: Public[cython.int]
    sequence_at: Public[cython.int]
    sequence_size: Public[cython.int]
    session_at: Public[cython.int]
    session_size: Public[cython.int]
    service_at: Public[cython.int]
    service_size: Public[cython.int]
    flags_at: Public[cython.int]
    flags_size: Public[cython.int]
    count_at: Public[cython.int]
    count_size: Public[cython.int]
    time_at: Public[cython.int]
    time_size: Public[cython.int]
    time_ns_at: Public[cython.int]
    reset_at: Public[cython.int]
    reset_size: Public[cython.int]
    constant_count: Public[cython.int]
    message_header_size: Public[cython.int]
    message_length_at: Public[cython.int]
    message_length_size: Public[cython.int]
    message_length_add: Public[cython.int]
    message_type_at: Public[cython.int]
    message_type_size: Public[cython.int]
    slot_count: Public[cython.int]
    no_symbol: Public[cython.ulonglong]
    several_symbols: Public[cython.ulonglong]
    symbol_pad: Public[cython.ulonglong]
    fix: Public[cython.bint]
    symbol_tag: Public[cython.uint]
    varied: Public[cython.bint]
    several: Public[cython.bint]
    alone: Public[cython.bint]
    long_symbols: Public[cython.bint]
    odd_messages: Public[cython.bint]
    strips_symbols: Public[cython.bint]
    short_header: Public[cython.int]
    end_of_session: Public[cython.int]
    kind_mask: Public[cython.int]
    reset_message: Public[cython.int]
    high_at: Public[cython.int]
    high_size: Public[cython.int]
    high_shift: Public[cython.int]
    session_shift: Public[cython.int]
    high_mask: Public[cython.ulonglong]
    session_mask: Public[cython.ulonglong]
    trailing_max: Public[cython.int]
    message_align: Public[cython.int]
    type_second_at: Public[cython.int]
    type_second_size: Public[cython.int]
    number_at: Public[cython.int]
    number_size: Public[cython.int]
    block_at: Public[cython.int]
    block_size: Public[cython.int]
    sized: Public[cython.bint]
    sizes: Public[SizeTable]
    constant_at: cython.int[4]
    constant_size: cython.int[4]
    constant_value: cython.ulonglong[4]
    kinds: cython.uchar[65536]
    shorts: cython.uchar[65536]
    slots: cython.uchar[65536]
    control_sizes: cython.ushort[65536]
    compressed: cython.uchar[256]
    symbol_at: cython.int[256]
    symbol_size: cython.int[256]
    symbol_big: cython.uchar[256]
    least_size: cython.uint[256]
    known_flags: cython.uchar[256]
    group: cython.int[256][9]

    def __init__(self) -> None:
        self.big_endian = self.counts_messages = False
        self.heartbeat_when_empty = self.type_in_packet = self.sets_aside = False
        self.unsequenced = NO_SEQUENCE
        self.header_size = self.heartbeat_adds = 0
        self.length_at = self.length_size = self.length_add = 0
        self.kind_at = self.kind_size = self.type_at = self.type_size = 0
        self.sequence_at = self.sequence_size = self.session_at = self.session_size = 0
        self.service_at = self.service_size = self.flags_at = self.flags_size = 0
        self.count_at = self.count_size = 0
        self.time_at = self.time_size = 0
        self.time_ns_at = -1
        self.reset_at = self.reset_size = 0
        self.constant_count = 0
        self.message_header_size = self.message_length_at = self.message_length_size = 0
        self.message_length_add = self.message_type_at = self.message_type_size = 0
        self.slot_count = 1
        self.no_symbol = NO_SYMBOL
        self.several_symbols = SEVERAL_SYMBOLS
        self.fix = False
        self.symbol_tag = 0
        self.symbol_pad = 0
        self.strips_symbols = False
        self.varied = self.several = self.alone = self.long_symbols = False
        self.short_header = 0
        self.end_of_session = self.reset_message = -1
        self.kind_mask = 0xFFFF
        self.high_at = self.high_size = self.high_shift = self.session_shift = 0
        self.high_mask = self.session_mask = 0
        self.odd_messages = False
        self.message_align = 1
        self.trailing_max = 0
        self.type_second_at = self.type_second_size = 0
        self.number_at = self.number_size = 0
        self.block_at = self.block_size = 0
        self.sized = False
        self.sizes = None
        if not cython.compiled:
            self.constant_at = [0] * CONSTANTS_MAX
            self.constant_size = [0] * CONSTANTS_MAX
            self.constant_value = [0] * CONSTANTS_MAX
            self.kinds = bytearray(65536)
            self.shorts = bytearray(65536)
            self.slots = bytearray(65536)
            self.control_sizes = [0] * 65536
            self.compressed = bytearray(256)
            self.symbol_at = [0] * 256
            self.symbol_size = [0] * 256
            self.symbol_big = bytearray(256)
            self.least_size = [0] * 256
            self.known_flags = bytearray(256)
            self.group = [[0] * GROUP_NUMBERS for _ in range(256)]
        for value in range(65536):
            self.kinds[value] = UNKNOWN_KIND
            self.slots[value] = self.shorts[value] = 0
            self.control_sizes[value] = 0
        for value in range(256):
            self.compressed[value] = 0
            self.symbol_at[value] = self.symbol_size[value] = self.symbol_big[value] = 0
            self.least_size[value] = 0
            self.known_flags[value] = 1

    def set_constant(self, at: int, size: int, value: int) -> None:
        """Require `value` of the header field of `size` bytes at `at`.

        Raises ValueError for more than `CONSTANTS_MAX` fields.
        """
        if self.constant_count >= CONSTANTS_MAX:
            raise ValueError(f"more than {CONSTANTS_MAX} constant header fields")
        self.constant_at[self.constant_count] = at
        self.constant_size[self.constant_count] = size
        self.constant_value[self.constant_count] = value
        self.constant_count += 1

    def set_kind(self, value: cython.ushort, kind: cython.uchar) -> None:
        """Set the kind (DATA, HEARTBEAT, ...) of packets whose kind field holds `value`.

        Raises ValueError for a kind above CONTROL.
        """
        if kind > CONTROL:
            raise ValueError(f"there is no kind {kind}")
        self.kinds[value] = kind

    def set_short(self, value: cython.ushort) -> None:
        """Mark packets whose kind field holds `value`: their header has `short_header` bytes."""
        self.shorts[value] = 1

    def has_short(self, packet_type: cython.int) -> bool:
        """Return whether packets whose kind field holds `packet_type` have the short header."""
        return bool(self.shorts[packet_type & self.kind_mask])

    def number_bits(self) -> int:
        """Return how many bits a packet's header has for its sequence number; 0: no field."""
        return 8 * self.sequence_size + int(self.high_mask).bit_length()

    def set_control(self, packet_type: cython.ushort, body_size: cython.ushort) -> None:
        """Set the least body size of packets of `packet_type`, which have no messages."""
        self.control_sizes[packet_type] = body_size

    def set_compressed(self, flags: cython.uchar) -> None:
        """Mark the delivery flag of packets whose body, where it has messages, is compressed."""
        self.compressed[flags] = 1

    def is_compressed(self, flags: cython.uchar) -> bool:
        """Return whether this delivery flag means a compressed body, where there are messages."""
        return bool(self.compressed[flags])

    def set_known_flags(self, flags: list[int]) -> None:
        """Set the known delivery flags; before this call all are known."""
        for value in range(256):
            self.known_flags[value] = value in flags

    def knows_flags(self, flags: cython.uchar) -> bool:
        """Return whether this delivery flag is known; a packet with another is uncompressed."""
        return bool(self.known_flags[flags])

    def set_type(
        self,
        message_type: cython.ushort,
        symbol_at: cython.int,
        symbol_size: cython.int,
        symbol_is_text: cython.bint,
        least_size: cython.uint,
    ) -> None:
        """Set where messages of `message_type` keep their symbol, and their least size.

        The symbol is at `symbol_at` from the message's first byte, `symbol_size` bytes long (0:
        none). Text has no byte order: it is read big-endian. Raises ValueError for more than
        `SLOTS_MAX` types.
        """
        if self.slot_count > SLOTS_MAX:
            raise ValueError(f"more than {SLOTS_MAX} message types")
        self.slots[message_type] = self.slot_count
        self.symbol_at[self.slot_count] = symbol_at
        self.symbol_size[self.slot_count] = symbol_size
        self.symbol_big[self.slot_count] = 2 if symbol_is_text else self.big_endian
        self.least_size[self.slot_count] = least_size
        self.slot_count += 1

    def set_group(self, message_type: cython.ushort, numbers: list[int]) -> None:
        """Set where the elements of messages of `message_type`, already set, keep their symbols.

        `numbers`, of each offset its field's size too (0: there is none): the first byte of what
        precedes the elements, counted from the message's, and how many bytes that is; in it the
        count and its size, and the elements' size and its size; the size of an element where that
        is not given; in an element its symbol, and its size.
        """
        index: cython.int
        for index in range(GROUP_NUMBERS):
            self.group[self.slots[message_type]][index] = numbers[index]

    def begin_sizes(self) -> SizeTable:
        """Begin the table of sizes of a feed whose messages do not tell theirs; return it."""
        self.sized = True
        self.sizes = SizeTable()
        return self.sizes

    def slot_of(self, message_type: cython.ushort) -> int:
        """Return the slot of a message type; 0 where no layout has it."""
        return self.slots[message_type]

    def set_symbol_order(self, message_type: cython.ushort, is_text: cython.bint) -> None:
        """Set whether symbols that elements name are text, which has no byte order."""
        self.symbol_big[self.slots[message_type]] = 2 if is_text else self.big_endian


@cython.cclass
class PacketHeader:
    """A packet's header as integers; written by `parse_header`, reused at will.

    sequence       as on the wire
    next_sequence  the number after this packet: sequence + 1, or + count where the feed counts
                   messages. Skip: the number after those that are skipped. Heartbeat: the number
                   expected next, where the feed gives it, else 0. Reset: the number that the
                   following packet will carry. Control, unsequenced: 0, and so for a heartbeat that
                   carries the number set aside.
    session        0 where the header has none
    send_time      raw, as on the wire (seconds * 10**9 + nanoseconds where there are two fields); 0
                   where the header has none
    service        0 where the header has none
    length         bytes of the whole packet, from its length field
    body           offset of the first byte after the header, from the packet's start
    packet_type    the type (or kind) field; 0 where the header has none
    kind           DATA, HEARTBEAT, RESET, CONTROL, UNSEQUENCED or SKIP
    flags          the delivery flag; 0 where the header has none
    count          messages in the packet

    `check_messages` sets two counters; both are 0 on any answer but FINE:

    unknown        messages of types that the description does not lay out
    short          messages that are shorter than their layout

    `element_at` and `element_size` are where `message_symbols` reads a message's symbols.
    """

    sequence: Public[cython.ulonglong]
    next_sequence: Public[cython.ulonglong]
    session: Public[cython.ulonglong]
    send_time: Public[cython.ulonglong]
    service: Public[cython.uint]
    length: Public[cython.uint]
    body: Public[cython.uint]
    packet_type: Public[cython.int]
    kind: Public[cython.int]
    flags: Public[cython.int]
    count: Public[cython.int]
    unknown: Public[cython.int]
    short: Public[cython.int]
    element_size: Public[cython.int]
    element_at: Public[cython.Py_ssize_t]
    run: Readonly[Run]

    def __init__(self) -> None:
        self.sequence = self.next_sequence = self.session = self.send_time = 0
        self.service = self.length = self.body = 0
        self.packet_type = self.kind = self.flags = self.count = 0
        self.unknown = self.short = 0
        self.element_at = self.element_size = 0
        self.run = Run()


@cython.cclass
class MessageIndex:
    """Positions of the messages of one packet or many, in preallocated arrays: 0..count-1.

    types      u16  message type
    symbols    u64  the symbol: an index, or up to 8 text bytes read big-endian as they stand
                    (padding included); `NO_SYMBOL` where the type has none or the message is short.
                    FIX: as `runs.symbol_value` makes it, or `SEVERAL_SYMBOLS`
    offsets    u32  first byte of the message (its size field, where it has one), from `start`
    sizes      u32  bytes of the whole message, its padding included
    sequences  u64  the message's own number where the feed counts messages, else the packet's; of
                    an unsequenced packet always that

    Of the packets that brought them (those with messages only), entries 0..packets-1:

    firsts      u32  entry of the packet's first message
    services    u32  the header's service
    send_times  u64  the header's send time, raw

    `unknown` counts messages of types that the description does not lay out, `short` those that are
    shorter than their layout. Both are in the index like any other. `capacity` is at most 2**32 -
    1.
    """

    types: Public[cython.ushort[::1]]
    symbols: Public[cython.ulonglong[::1]]
    offsets: Public[cython.uint[::1]]
    sizes: Public[cython.uint[::1]]
    sequences: Public[cython.ulonglong[::1]]
    firsts: Public[cython.uint[::1]]
    services: Public[cython.uint[::1]]
    send_times: Public[cython.ulonglong[::1]]
    count: Public[cython.Py_ssize_t]
    packets: Public[cython.Py_ssize_t]
    capacity: Public[cython.Py_ssize_t]
    unknown: Public[cython.Py_ssize_t]
    short: Public[cython.Py_ssize_t]

    def __init__(self, capacity: cython.Py_ssize_t = 65_535) -> None:
        self.capacity = capacity
        self.count = self.packets = self.unknown = self.short = 0
        # memoryviews, not arrays: their items are Python integers in the interpreted twin too.
        self.types = memoryview(numpy.zeros(capacity, numpy.uint16))
        self.symbols = memoryview(numpy.zeros(capacity, numpy.uint64))
        self.offsets = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.sizes = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.sequences = memoryview(numpy.zeros(capacity, numpy.uint64))
        self.firsts = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.services = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.send_times = memoryview(numpy.zeros(capacity, numpy.uint64))

    def clear(self) -> None:
        """Forget the entries and the counts."""
        self.count = self.packets = self.unknown = self.short = 0

    def arrays(self) -> dict[str, numpy.ndarray]:
        """Return numpy views (no copies) of the entries in use, by name."""
        return {
            name: numpy.asarray(getattr(self, name))[: self.count]
            for name in ("types", "symbols", "offsets", "sizes", "sequences")
        }


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u16(data: cython.const_uchar[::1], at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    if big:
        return (cython.cast(cython.uint, data[at]) << 8) | data[at + 1]
    return (cython.cast(cython.uint, data[at + 1]) << 8) | data[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _u32(data: cython.const_uchar[::1], at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    if big:
        return (
            (cython.cast(cython.uint, data[at]) << 24)
            | (cython.cast(cython.uint, data[at + 1]) << 16)
            | (cython.cast(cython.uint, data[at + 2]) << 8)
            | data[at + 3]
        )
    return (
        (cython.cast(cython.uint, data[at + 3]) << 24)
        | (cython.cast(cython.uint, data[at + 2]) << 16)
        | (cython.cast(cython.uint, data[at + 1]) << 8)
        | data[at]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _read(
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    big: cython.bint,
) -> cython.ulonglong:
    """Return the unsigned integer of `size` bytes (0..8) at `at`; of 0 bytes: 0."""
    if size == 2:
        return _u16(data, at, big)
    if size == 4:
        return _u32(data, at, big)
    if size == 1:
        return data[at]
    if size == 0:
        return 0
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | data[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field(
    first: cython.p_const_uchar,
    at: cython.int,
    size: cython.int,
    big: cython.bint,
    eight: cython.bint,
) -> cython.ulonglong:
    """Return `_read` of a packet that begins at `first`; `eight`: bytes for one load are there."""
    if eight:
        return first_bytes(first + at, size, big)
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | first[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _write(
    data: cython.uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    big: cython.bint,
    value: cython.ulonglong,
) -> cython.int:
    index: cython.int
    for index in range(size):
        data[at + (size - 1 - index if big else index)] = value & 0xFF
        value >>= 8
    return 0


@cython.ccall
@cython.nogil
def frame_length(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the whole length of the packet that begins at `start`, from its length field.

    0 while `size` is too small to hold that field. For cutting a TCP stream into packets. FIX: of
    the first message, which can stand alone; 0 while it is not whole. Without a length field: to
    the end of as many messages as the header counts; without a count as well, all of `size`.
    """
    if table.fix:
        return cython.cast(cython.int, message_size_at(data, start, start + size))
    if table.length_size == 0:
        return _walked_length(table, data, start, size)
    if size < table.length_at + table.length_size or start < 0 or start + size > len(data):
        return 0
    big: cython.bint = table.big_endian
    return (
        cython.cast(cython.int, _read(data, start + table.length_at, table.length_size, big))
        + table.length_add
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _walked_length(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the length of a packet that has no field for it; 0 where its messages end beyond."""
    at: cython.Py_ssize_t = start + table.header_size
    end: cython.Py_ssize_t = start + size
    length: cython.Py_ssize_t
    count: cython.int
    kind: cython.ushort
    if table.alone:
        return cython.cast(cython.int, size)
    if start < 0 or end > len(data):
        return 0
    if table.short_header and size >= table.short_header:
        kind = cython.cast(
            cython.ushort,
            _read(data, start + table.kind_at, table.kind_size, table.big_endian) & table.kind_mask,
        )
        if table.shorts[kind]:
            if table.kinds[kind] != DATA:
                return table.short_header
            at = start + table.short_header
    if size < at - start:
        return 0
    count = cython.cast(
        cython.int, _read(data, start + table.count_at, table.count_size, table.big_endian)
    )
    if count == table.end_of_session:
        count = 0
    for _ in range(count):
        if end - at < table.message_header_size:
            return 0
        length = cython.cast(
            cython.Py_ssize_t,
            _read(data, at + table.message_length_at, table.message_length_size, table.big_endian),
        )
        length += table.message_length_add
        if length < table.message_header_size or length > end - at:
            return 0
        at += padded(table, length, end - at)
    return cython.cast(cython.int, at - start)


@cython.boundscheck(False)  # the first line checks the packet against the bounds
@cython.ccall
@cython.nogil
def parse_header(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the header of the packet `data[start:start + size]` into `out`; return a `Reject`.

    `out` is complete only where the answer is FINE. The messages are not examined: `check_messages`
    or `scan_messages` does that.
    """
    if start < 0 or size < 1 or start + size > len(data):
        return TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    return parse_header_at(table, first, len(data) - start, size, out)


@cython.boundscheck(False)  # the first line checks the datagram against the bounds
@cython.ccall
@cython.nogil
def parse_next(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read the first packet header in the datagram `data[start:start + size]`; return a `Reject`.

    The next packet, where `out.length` is less than `size`, begins behind it. Only FIX, and feeds
    whose table says `several`, have more than one in a datagram.
    """
    if not table.fix and not table.several:
        return parse_header(table, data, start, size, out)
    if start < 0 or size < 1 or start + size > len(data):
        return TRUNCATED
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    if not table.fix:
        return _parse_varied(table, first, len(data) - start, size, out, False)
    return parse_run(table, first, len(data) - start, size, out, False)


@cython.cfunc
@cython.nogil
def parse_header_at(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
) -> cython.int:
    """Read a packet header for compiled callers that know its address; return a `Reject`.

    Of the `room` bytes from `first` on, the packet is the first `size`. See `parse_header`.
    """
    big: cython.bint = table.big_endian
    eight: cython.bint
    index: cython.int
    if table.fix:
        return parse_run(table, first, room, size, out, True)
    if table.varied:
        return _parse_varied(table, first, room, size, out, True)
    # The loader has checked that all fields lie in the header.
    eight = cython.compiled and table.header_size + 8 <= room
    if size < table.header_size or size > room:
        return TRUNCATED
    out.length = (
        cython.cast(cython.uint, _field(first, table.length_at, table.length_size, big, eight))
        + table.length_add
    )
    if out.length != size:
        return LENGTH_MISMATCH
    for index in range(table.constant_count):
        if (
            _field(first, table.constant_at[index], table.constant_size[index], big, eight)
            != table.constant_value[index]
        ):
            return WRONG_CONSTANT
    out.body = table.header_size
    out.sequence = _field(first, table.sequence_at, table.sequence_size, big, eight)
    out.session = _field(first, table.session_at, table.session_size, big, eight)
    out.service = cython.cast(
        cython.uint, _field(first, table.service_at, table.service_size, big, eight)
    )
    out.flags = cython.cast(cython.int, _field(first, table.flags_at, table.flags_size, big, eight))
    out.count = cython.cast(cython.int, _field(first, table.count_at, table.count_size, big, eight))
    out.packet_type = cython.cast(
        cython.int, _field(first, table.type_at, table.type_size, big, eight)
    )
    out.send_time = _field(first, table.time_at, table.time_size, big, eight)
    if table.time_ns_at >= 0:
        out.send_time = out.send_time * 1_000_000_000 + _field(
            first, table.time_ns_at, 4, big, eight
        )
    return _classify(table, first, out)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _within(
    first: cython.p_const_uchar,
    at: cython.int,
    size: cython.int,
    body: cython.int,
    big: cython.bint,
    eight: cython.bint,
) -> cython.ulonglong:
    """Return the header's field at `at`; 0 where a header of `body` bytes lacks it."""
    if at + size > body:
        return 0
    return _field(first, at, size, big, eight)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _session(
    first: cython.p_const_uchar, at: cython.int, size: cython.int, big: cython.bint
) -> cython.ulonglong:
    """Return a session as a number: the last eight bytes, mixed with any before them."""
    value: cython.ulonglong = 0
    index: cython.int
    if size <= 8:
        return _field(first, at, size, big, False)
    for index in range(size - 8):
        value = value * 0x0100_0193 + first[at + index]
    value = (value << 56) ^ (value >> 8) ^ _field(first, at + size - 8, 8, True, False)
    if not cython.compiled:
        value &= 0xFFFF_FFFF_FFFF_FFFF
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _set_number(
    table: FeedTable, first: cython.p_const_uchar, out: PacketHeader, eight: cython.bint
) -> cython.void:
    """Set the number and the session of a packet whose header has `out.body` bytes."""
    big: cython.bint = table.big_endian
    body: cython.int = cython.cast(cython.int, out.body)
    out.sequence = _within(first, table.sequence_at, table.sequence_size, body, big, eight)
    if table.high_size:
        out.sequence |= (
            (_within(first, table.high_at, table.high_size, body, big, eight) >> table.high_shift)
            & table.high_mask
        ) << (8 * table.sequence_size)
    out.session = 0
    if table.session_at + table.session_size <= body:
        out.session = _session(first, table.session_at, table.session_size, big)
    if table.session_mask:
        out.session = (out.session >> table.session_shift) & table.session_mask


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _parse_varied(
    table: FeedTable,
    first: cython.p_const_uchar,
    room: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    out: PacketHeader,
    alone: cython.bint,
) -> cython.int:
    """Read a header that lacks usual fields or has them elsewhere; see `parse_header_at`.

    `alone`: the packet must be all of the `size` bytes.
    """
    big: cython.bint = table.big_endian
    body: cython.int = table.header_size
    eight: cython.bint = cython.compiled and table.header_size + 8 <= room
    index: cython.int
    verdict: cython.int
    if size > room:
        return TRUNCATED
    out.packet_type = 0
    if table.type_size:
        if size < table.type_at + table.type_size:
            return TRUNCATED
        out.packet_type = cython.cast(
            cython.int, _field(first, table.type_at, table.type_size, big, eight) & table.kind_mask
        )
    if table.kind_size:
        out.kind = table.kinds[cython.cast(cython.ushort, out.packet_type)]
        if out.kind == UNKNOWN_KIND:
            return UNKNOWN_PACKET_TYPE
        if table.shorts[cython.cast(cython.ushort, out.packet_type)]:
            body = table.short_header
    if size < body:
        return TRUNCATED
    out.length = cython.cast(cython.uint, size)
    if table.length_size:
        out.length = cython.cast(
            cython.uint, _field(first, table.length_at, table.length_size, big, eight)
        ) + cython.cast(cython.uint, table.length_add)
        if not cython.compiled:
            out.length &= 0xFFFF_FFFF
        if out.length > size or out.length < body or (alone and out.length != size):
            return LENGTH_MISMATCH
    for index in range(table.constant_count):
        if (
            _within(first, table.constant_at[index], table.constant_size[index], body, big, eight)
            != table.constant_value[index]
        ):
            return WRONG_CONSTANT
    out.body = body
    _set_number(table, first, out, eight)
    out.service = cython.cast(
        cython.uint, _within(first, table.service_at, table.service_size, body, big, eight)
    )
    out.flags = cython.cast(
        cython.int, _within(first, table.flags_at, table.flags_size, body, big, eight)
    )
    out.send_time = _within(first, table.time_at, table.time_size, body, big, eight)
    if table.time_ns_at >= 0:
        out.send_time = out.send_time * 1_000_000_000 + _within(
            first, table.time_ns_at, 4, body, big, eight
        )
    verdict = _parse_count(table, first, out)
    if verdict == FINE:
        verdict = _classify(table, first, out)
    if verdict == FINE and table.reset_message >= 0:
        verdict = _find_reset(table, first, out)
    return verdict


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _find_reset(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Make a data packet whose first message says so a reset; return a `Reject`."""
    at: cython.int = cython.cast(cython.int, out.body)
    end: cython.int = cython.cast(cython.int, out.length)
    if out.kind != DATA or out.count == 0 or table.compressed[out.flags & 0xFF]:
        return FINE
    if at + table.message_header_size > end:
        return MESSAGE_OVERRUN
    if _type_at(table, first, at) != table.reset_message:
        return FINE
    out.kind = RESET
    if table.reset_size:
        size: cython.Py_ssize_t = _size_at(table, first, at, end - at)
        if at + size < end:
            end = at + cython.cast(cython.int, size)
        at += table.reset_at
        if at + table.reset_size > end:
            return TRUNCATED
        out.next_sequence = _field(first, at, table.reset_size, table.big_endian, False)
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _type_at(table: FeedTable, first: cython.p_const_uchar, at: cython.int) -> cython.int:
    """Return the type of the message that begins `at` bytes behind `first`."""
    kind: cython.int = cython.cast(
        cython.int,
        _field(first, at + table.message_type_at, table.message_type_size, table.big_endian, False),
    )
    if table.type_second_size:
        kind = (kind << 8) | first[at + table.type_second_at]
    return kind


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _parse_count(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Set `out.count`, and the number of a packet that has that of its first message."""
    big: cython.bint = table.big_endian
    body: cython.int = cython.cast(cython.int, out.body)
    offset: cython.int
    verdict: cython.int
    out.count = cython.cast(
        cython.int, _within(first, table.count_at, table.count_size, body, big, False)
    )
    if table.count_size and out.count == table.end_of_session:
        out.count = 0
    elif table.count_size == 0 and (not table.kind_size or out.kind == DATA or out.kind == RESET):
        verdict = _count_messages(table, first, out)
        if verdict != FINE:
            return verdict
    if table.number_size and table.sequence_size == 0 and out.count:
        offset = body + table.number_at
        if offset + table.number_size > cython.cast(cython.int, out.length):
            return MESSAGE_OVERRUN
        out.sequence = _field(first, offset, table.number_size, big, False)
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _count_messages(table: FeedTable, first: cython.p_const_uchar, out: PacketHeader) -> cython.int:
    """Set `out.count` to the messages between header and end; return a `Reject`."""
    at: cython.Py_ssize_t = out.body
    end: cython.Py_ssize_t = out.length
    size: cython.Py_ssize_t
    out.count = 0
    while end - at > table.trailing_max:
        if end - at < table.message_header_size:
            return MESSAGE_OVERRUN
        size = _size_at(table, first, at, end - at)
        if size < table.message_header_size or size == 0:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        at += padded(table, size, end - at)
        out.count += 1
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _size_at(
    table: FeedTable,
    first: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of the message that begins `at` bytes behind `first`, its header among `room`
    bytes: as it says, by its layout, or all of them."""
    if table.message_length_size:
        return table.message_length_add + cython.cast(
            cython.Py_ssize_t,
            _field(
                first,
                cython.cast(cython.int, at + table.message_length_at),
                table.message_length_size,
                table.big_endian,
                False,
            ),
        )
    if table.sized:
        return _layout_size(table, first + at if cython.compiled else first[at:], room)
    return room


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def padded(table: FeedTable, size: cython.Py_ssize_t, room: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the size of a message with its padding, as far as there is `room` for it."""
    over: cython.Py_ssize_t = size % table.message_align
    if over:
        size += table.message_align - over
    return size if size < room else room


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _layout_size(
    table: FeedTable, first: cython.p_const_uchar, room: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message that begins at `first`, its header among `room` bytes."""
    return layout_size(table.sizes, first, table.slots[_type_at(table, first, 0)], room)


@cython.ccall
@cython.nogil
def message_size_by_type(
    table: FeedTable, data: cython.const_uchar[::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message at `at` by the layout of its type; above what is left where
    it does not end by `end`. Its header must be there."""
    first = cython.address(data[at]) if cython.compiled else memoryview(data)[at:]
    return _layout_size(table, first, end - at)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _other_size(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the size of the message at `at`, where it is no u16; without one it goes to `end`,
    unless the layout of its type says otherwise."""
    if table.sized:
        return message_size_by_type(table, data, at, end)
    if table.message_length_size == 0:
        return end - at
    return table.message_length_add + cython.cast(
        cython.Py_ssize_t,
        _read(data, at + table.message_length_at, table.message_length_size, table.big_endian),
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _odd_type(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    message_type: cython.ushort,
) -> cython.int:
    """Return the type of the message at `at`, whose first part is `message_type`."""
    if table.type_second_size == 0:
        return message_type
    return ((message_type << 8) & 0xFFFF) | data[at + table.type_second_at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _classify(
    table: FeedTable,
    first: cython.p_const_uchar,
    out: PacketHeader,
) -> cython.int:
    """Set `out.kind` and `out.next_sequence`; return a `Reject`."""
    big: cython.bint = table.big_endian
    out.kind = DATA
    if table.kind_size:
        # The kind is in the same field as the type.
        out.kind = table.kinds[cython.cast(cython.ushort, out.packet_type)]
        if out.kind == UNKNOWN_KIND:
            return UNKNOWN_PACKET_TYPE
    if out.count == 0 and table.heartbeat_when_empty and out.kind == DATA:
        out.kind = HEARTBEAT
    if out.sequence == table.unsequenced and table.sets_aside and out.kind <= HEARTBEAT:
        # A heartbeat stays one, but its number says nothing about the sequence.
        if out.kind == DATA:
            out.kind = UNSEQUENCED
        out.next_sequence = 0
    elif out.kind == HEARTBEAT:
        out.next_sequence = 0
        if table.heartbeat_adds >= 0:
            out.next_sequence = out.sequence + table.heartbeat_adds
    elif out.kind == CONTROL:
        out.next_sequence = 0
    elif out.kind == RESET and table.reset_size:
        if out.length < cython.cast(cython.uint, table.reset_at + table.reset_size):
            return TRUNCATED
        out.next_sequence = _field(first, table.reset_at, table.reset_size, big, False)
    elif table.counts_messages:
        out.next_sequence = out.sequence + out.count
    else:
        out.next_sequence = out.sequence + 1
    if not cython.compiled:
        out.next_sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _check_body(table: FeedTable, header: PacketHeader) -> cython.int:
    """Return the `Reject` of a body that needs no walk of its messages; -2: walk it."""
    if header.kind == CONTROL or (
        header.kind == RESET and table.reset_size and table.reset_message < 0
    ):
        if header.length - header.body < table.control_sizes[header.packet_type & 0xFFFF]:
            return CONTROL_SHORT
        return FINE
    if header.count and table.compressed[header.flags & 0xFF]:
        return COMPRESSED
    return -2


@cython.ccall
@cython.nogil
def check_messages(
    table: FeedTable, data: cython.const_uchar[::1], start: cython.Py_ssize_t, header: PacketHeader
) -> cython.int:
    """Walk the messages of a packet whose header `parse_header` found FINE; return a `Reject`.

    FINE means: exactly `header.count` messages, ending exactly at the packet's end. Control
    packets, and resets that carry their number in the body, hold no messages: there the body must
    be at least as long as its layout. Counts into `header.unknown` and `header.short`.
    """
    header.unknown = header.short = 0
    if table.fix:
        return check_run(table, data, start, header)
    verdict: cython.int = _check_body(table, header)
    if verdict != -2:
        return verdict
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = start + header.body
    end: cython.Py_ssize_t = start + header.length
    least: cython.Py_ssize_t = table.message_header_size
    unknown: cython.int = 0
    short: cython.int = 0
    message_type: cython.ushort = cython.cast(cython.ushort, header.packet_type & 0xFFFF)
    length_at: cython.int = table.message_length_at
    length_size: cython.int = table.message_length_size
    length_add: cython.int = table.message_length_add
    type_at: cython.int = table.message_type_at
    type_size: cython.int = table.message_type_size
    size: cython.Py_ssize_t
    slot: cython.int
    if start < 0 or end > len(data):
        return TRUNCATED
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        # Most feeds have u16 sizes and types: those are read in place.
        if length_size == 2:
            size = _u16(data, at + length_at, big)
            size += length_add
        else:
            size = _other_size(table, data, at, end)
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        if type_size == 2:
            message_type = cython.cast(cython.ushort, _u16(data, at + type_at, big))
        elif type_size:
            message_type = data[at + type_at]
        if table.odd_messages:
            message_type = cython.cast(cython.ushort, _odd_type(table, data, at, message_type))
            size = padded(table, size, end - at)
        slot = table.slots[message_type]
        short += size < table.least_size[slot]
        unknown += slot == 0
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    header.unknown = unknown
    header.short = short
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2, check=True)  # -1 is NO_SYMBOL, an answer that must cost nothing
def _symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    slot: cython.int,
    header: PacketHeader,
) -> cython.ulonglong:
    """Return the symbol of the message of `size` bytes at `at`."""
    symbol_size: cython.int = table.symbol_size[slot]
    index: cython.Py_ssize_t = at + table.symbol_at[slot]
    if symbol_size == 0:
        if table.group[slot][8]:
            return _group_symbol(table, data, at, size, message_type, header)
        return table.no_symbol
    if size < table.symbol_at[slot] + symbol_size:
        return table.no_symbol
    if symbol_size == 4 and table.symbol_big[slot] == 1:
        # In place: most symbols are this, and the call would cost as much as the rest.
        return (
            (cython.cast(cython.uint, data[index]) << 24)
            | (cython.cast(cython.uint, data[index + 1]) << 16)
            | (cython.cast(cython.uint, data[index + 2]) << 8)
            | data[index + 3]
        )
    return symbol_at(table, data, index, symbol_size, table.symbol_big[slot])


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def symbol_at(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.int,
    order: cython.int,
) -> cython.ulonglong:
    """Return the symbol whose `size` bytes begin at `at`.

    `order`: of an integer 0 for little-endian, 1 for big-endian; 2: text, which counts as padded to
    eight bytes, or where it is longer becomes a number as FIX makes one.
    """
    length: cython.int = size
    value: cython.ulonglong
    if order == 2 and table.strips_symbols:
        while length > 0 and (data[at + length - 1] | 32) == 32:
            length -= 1
        if length == 0:
            return table.symbol_pad
    while size > 8 and length > 8 and (data[at + length - 1] | 32) == 32:  # a blank or NUL
        length -= 1
    if length <= 8:
        value = _read(data, at, length, order != 0)
        if order == 2 and 0 < length < 8:
            value = (value << (64 - 8 * length)) | (table.symbol_pad >> (8 * length))
        return value
    first = cython.address(data[at]) if cython.compiled else memoryview(data)[at:]
    return symbol_value(first, 0, length)


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def element_symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    message_type: cython.ushort,
    otherwise: cython.ulonglong,
) -> cython.ulonglong:
    """Return the symbol of the element at `at`; `otherwise` where elements have none."""
    slot: cython.int = table.slots[message_type]
    if table.group[slot][8] == 0:
        return otherwise
    return symbol_at(
        table, data, at + table.group[slot][7], table.group[slot][8], table.symbol_big[slot]
    )


@cython.ccall
@cython.nogil
def fixed_size(
    table: FeedTable, data: cython.const_uchar[::1], at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of header and fixed part of the message at `at`, as it says itself."""
    return table.message_header_size + cython.cast(
        cython.Py_ssize_t, _read(data, at + table.block_at, table.block_size, table.big_endian)
    )


@cython.ccall
@cython.nogil
def open_group(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    header: PacketHeader,
) -> cython.int:
    """Find the elements of the message of `size` bytes at `at` that have symbols.

    Sets `header.element_at`, of the first, and `element_size`; returns how many are whole. Where
    the message says that they have no bytes, all that it counts are.
    """
    slot: cython.int = table.slots[message_type]
    big: cython.bint = table.big_endian
    end: cython.Py_ssize_t = at + size
    offset: cython.Py_ssize_t = at + table.group[slot][0]
    count: cython.Py_ssize_t = 0
    fit: cython.Py_ssize_t
    if end > len(data):
        return 0
    header.element_size = table.group[slot][6]
    if table.block_size:
        if size < table.message_header_size:
            return 0
        offset = at + fixed_size(table, data, at)
    if offset + table.group[slot][1] > end:
        return 0
    if table.group[slot][5]:
        header.element_size = cython.cast(
            cython.int, _read(data, offset + table.group[slot][4], table.group[slot][5], big)
        )
    if header.element_size < table.group[slot][7] + table.group[slot][8]:
        return 0
    header.element_at = offset + table.group[slot][1]
    if table.group[slot][3]:
        count = cython.cast(
            cython.Py_ssize_t,
            _read(data, offset + table.group[slot][2], table.group[slot][3], big),
        )
    if header.element_size > 0:  # else the wire says that they have no bytes
        fit = (end - header.element_at) // header.element_size
        count = min(count, fit) if table.group[slot][3] else fit
    return cython.cast(cython.int, count)


@cython.cfunc
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def _group_symbol(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    message_type: cython.ushort,
    header: PacketHeader,
) -> cython.ulonglong:
    """Return the symbol of a message whose elements name it; SEVERAL_SYMBOLS where they differ."""
    count: cython.int = open_group(table, data, at, size, message_type, header)
    slot: cython.int = table.slots[message_type]
    offset: cython.Py_ssize_t = header.element_at + table.group[slot][7]
    symbol: cython.ulonglong
    if count == 0:
        return table.no_symbol
    symbol = symbol_at(table, data, offset, table.group[slot][8], table.symbol_big[slot])
    for _ in range(count - 1):
        offset += header.element_size
        if symbol_at(table, data, offset, table.group[slot][8], table.symbol_big[slot]) != symbol:
            return table.several_symbols
    return symbol


@cython.ccall
@cython.exceptval(6148914691236517205, check=True)
def symbol_of(
    table: FeedTable, message: cython.const_uchar[::1], message_type: cython.ushort
) -> cython.ulonglong:
    """Return the symbol of one whole message, as `MessageIndex.symbols` has it."""
    slot: cython.int = table.slots[message_type]
    return _symbol(table, message, 0, len(message), message_type, slot, PacketHeader())


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _close_packet(header: PacketHeader, out: MessageIndex, entry: cython.Py_ssize_t) -> cython.int:
    """Make the packet's messages, up to `entry`, part of `out`, and the packet where it has any."""
    if header.count:
        out.firsts[out.packets] = cython.cast(cython.uint, out.count)
        out.services[out.packets] = header.service
        out.send_times[out.packets] = header.send_time
        out.packets += 1
    out.count = entry
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _two(first: cython.p_const_uchar, at: cython.Py_ssize_t, big: cython.bint) -> cython.uint:
    """Return the unsigned integer of two bytes at `at`, which the caller has checked."""
    if big:
        return (cython.cast(cython.uint, first[at]) << 8) | first[at + 1]
    return (cython.cast(cython.uint, first[at + 1]) << 8) | first[at]


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)  # `_fill` has checked: the packet is in `data`, its entries in `out`
@cython.exceptval(-1, check=True)
def _fill_usual(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """`_fill` of messages like those of XDP and ITCH, in half the time.

    Their size has two bytes, and their type stands as it is.
    """
    first = cython.address(data[start]) if cython.compiled else memoryview(data)[start:]
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = header.body
    end: cython.Py_ssize_t = header.length
    least: cython.Py_ssize_t = table.message_header_size
    size_at: cython.int = table.message_length_at
    size_add: cython.int = table.message_length_add
    type_at: cython.int = table.message_type_at
    wide_type: cython.bint = table.message_type_size == 2
    entry: cython.Py_ssize_t = out.count
    unknown: cython.Py_ssize_t = 0
    short: cython.Py_ssize_t = 0
    sequence: cython.ulonglong = header.sequence
    step: cython.ulonglong = 1 if table.counts_messages and header.kind != UNSEQUENCED else 0
    message_type: cython.ushort
    size: cython.Py_ssize_t
    slot: cython.int
    offset: cython.Py_ssize_t
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        size = _two(first, at + size_at, big)
        size += size_add
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        message_type = first[at + type_at]
        if wide_type:
            message_type = cython.cast(cython.ushort, _two(first, at + type_at, big))
        slot = table.slots[message_type]
        offset = at + table.symbol_at[slot]
        if table.symbol_size[slot] == 4 and table.symbol_big[slot] == 1 and offset + 4 <= at + size:
            # In place: most symbols are this, and the call would cost as much as the rest.
            out.symbols[entry] = (_two(first, offset, True) << 16) | _two(first, offset + 2, True)
        elif (
            table.symbol_size[slot] == 2 and table.symbol_big[slot] < 2 and offset + 2 <= at + size
        ):
            out.symbols[entry] = _two(first, offset, table.symbol_big[slot] != 0)
        else:
            out.symbols[entry] = _symbol(table, data, start + at, size, message_type, slot, header)
        out.types[entry] = message_type
        out.offsets[entry] = cython.cast(cython.uint, start + at - base)
        out.sizes[entry] = cython.cast(cython.uint, size)
        out.sequences[entry] = sequence
        short += size < table.least_size[slot]
        unknown += slot == 0
        sequence += step
        if not cython.compiled:
            sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        entry += 1
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    out.unknown += unknown
    out.short += short
    return _close_packet(header, out, entry)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _fill_other(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """`_fill` of whatever messages a description tells."""
    big: cython.bint = table.big_endian
    at: cython.Py_ssize_t = start + header.body
    end: cython.Py_ssize_t = start + header.length
    least: cython.Py_ssize_t = table.message_header_size
    entry: cython.Py_ssize_t = out.count
    unknown: cython.Py_ssize_t = 0
    short: cython.Py_ssize_t = 0
    sequence: cython.ulonglong = header.sequence
    step: cython.ulonglong = 1 if table.counts_messages and header.kind != UNSEQUENCED else 0
    message_type: cython.ushort = cython.cast(cython.ushort, header.packet_type & 0xFFFF)
    length_at: cython.int = table.message_length_at
    length_size: cython.int = table.message_length_size
    type_size: cython.int = table.message_type_size
    size: cython.Py_ssize_t
    slot: cython.int
    for _ in range(header.count):
        if end - at < least:
            return COUNT_MISMATCH if at == end else MESSAGE_OVERRUN
        if length_size == 2:  # as in `check_messages`
            size = _u16(data, at + length_at, big)
            size += table.message_length_add
        else:
            size = _other_size(table, data, at, end)
        if size < least:
            return MESSAGE_SHORT
        if size > end - at:
            return MESSAGE_OVERRUN
        if type_size == 2:
            message_type = cython.cast(cython.ushort, _u16(data, at + table.message_type_at, big))
        elif type_size:
            message_type = data[at + table.message_type_at]
        if table.odd_messages:
            message_type = cython.cast(cython.ushort, _odd_type(table, data, at, message_type))
            size = padded(table, size, end - at)
            if table.number_size and step:  # the loader has put it into the message's header
                sequence = _read(data, at + table.number_at, table.number_size, big)
        out.types[entry] = message_type
        slot = table.slots[message_type]
        out.symbols[entry] = _symbol(table, data, at, size, message_type, slot, header)
        out.offsets[entry] = cython.cast(cython.uint, at - base)
        out.sizes[entry] = cython.cast(cython.uint, size)
        out.sequences[entry] = sequence
        short += size < table.least_size[slot]
        unknown += slot == 0
        sequence += step
        if not cython.compiled:
            sequence &= 0xFFFF_FFFF_FFFF_FFFF  # C wraps by itself
        entry += 1
        at += size
    if end - at > table.trailing_max:
        return COUNT_MISMATCH
    out.unknown += unknown
    out.short += short
    return _close_packet(header, out, entry)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _fill(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the messages to `out`, offsets counted from `base`; return a `Reject`, then none."""
    if table.fix:
        return fill_run(table, data, start, base, header, out)
    verdict: cython.int = _check_body(table, header)
    if verdict != -2:
        return verdict
    if start < 0 or start + header.length > len(data):
        return TRUNCATED
    if header.count > out.capacity - out.count:
        return INDEX_FULL
    if table.message_length_size == 2 and table.message_type_size and not table.odd_messages:
        return _fill_usual(table, data, start, base, header, out)
    return _fill_other(table, data, start, base, header, out)


@cython.ccall
@cython.nogil
def scan_messages(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Check the messages of a packet and write their positions to `out`; return a `Reject`.

    As `check_messages`, with every message's type, symbol, offset, size and number. `out` is
    emptied first; offsets count from `start`. On any answer but FINE `out` stays empty.
    """
    out.count = out.packets = out.unknown = out.short = 0
    return _fill(table, data, start, start, header, out)


@cython.ccall
@cython.nogil
def scan_packets(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Scan the consecutive packets in `data[start:start + size]`, appending to `out`.

    Offsets count from the beginning of `data`. Returns FINE at the end of the bytes; else the
    `Reject` of the first bad packet: what came before it is in `out`, and `header` holds the bad
    packet's.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    verdict: cython.int
    length: cython.Py_ssize_t
    if start < 0 or end > len(data):
        return TRUNCATED
    while at < end:
        length = frame_length(table, data, at, end - at)
        if length <= 0 or length > end - at:
            return TRUNCATED
        verdict = parse_header(table, data, at, length, header)
        if verdict == FINE:
            verdict = _fill(table, data, at, 0, header, out)
        if verdict != FINE:
            return verdict
        at += length
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _scan_several(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    header: PacketHeader,
    out: MessageIndex,
) -> cython.int:
    """Append the messages of all packets of a datagram, or of none where one is wrong."""
    packets: cython.Py_ssize_t = out.packets
    count: cython.Py_ssize_t = out.count
    end: cython.Py_ssize_t = start + size
    verdict: cython.int = TRUNCATED if size < 1 else FINE
    while start < end and verdict == FINE:
        verdict = parse_next(table, data, start, end - start, header)
        if verdict == FINE:
            verdict = _fill(table, data, start, 0, header, out)
        start += header.length
    if verdict != FINE:
        out.packets = packets
        out.count = count
    return verdict


@cython.ccall
@cython.nogil
def scan_datagrams(
    table: FeedTable,
    data: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    sizes: cython.const_uint[::1],
    header: PacketHeader,
    out: MessageIndex,
    rejects: cython.ulonglong[::1],
) -> cython.int:
    """Scan the datagrams `data[starts[i]:starts[i] + sizes[i]]`, appending to `out`.

    Offsets count from the beginning of `data`. A bad packet is counted in `rejects[reason]` and
    left out, a good one in `rejects[FINE]`. Returns the number of datagrams handled: all of them,
    or fewer where `out` became full.
    """
    index: cython.Py_ssize_t
    verdict: cython.int
    for index in range(len(starts)):
        if table.fix:
            verdict = scan_runs(table, data, starts[index], sizes[index], header, out)
        elif table.several:
            verdict = _scan_several(table, data, starts[index], sizes[index], header, out)
        else:
            verdict = parse_header(table, data, starts[index], sizes[index], header)
            if verdict == FINE:
                verdict = _fill(table, data, starts[index], 0, header, out)
        if verdict == INDEX_FULL:
            return cython.cast(cython.int, index)
        rejects[verdict] += 1
    return cython.cast(cython.int, len(starts))


@cython.ccall
@cython.nogil
def header_bytes(
    table: FeedTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.int:
    """Return the bytes of the header of the packet in `data[start:start + size]`.

    They are fewer than `table.header_size` where its kind has the short header. `size` may be less
    than that: then the kind counts as soon as it is there.
    """
    kind: cython.ushort
    if (
        table.short_header == 0
        or start < 0
        or size < table.kind_at + table.kind_size
        or start + size > len(data)
    ):
        return table.header_size
    kind = cython.cast(
        cython.ushort,
        _read(data, start + table.kind_at, table.kind_size, table.big_endian) & table.kind_mask,
    )
    return table.short_header if table.shorts[kind] else table.header_size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2, check=True)
def _whole_header(
    table: FeedTable, data: cython.uchar[::1], start: cython.Py_ssize_t
) -> cython.int:
    """Return the bytes of the header at `start`; -1 where `data` does not hold it whole."""
    body: cython.int
    if start < 0 or start > len(data):
        return -1
    body = header_bytes(table, data, start, len(data) - start)
    return body if start + body <= len(data) else -1


@cython.ccall
@cython.nogil
def patch_header(
    table: FeedTable,
    data: cython.uchar[::1],
    start: cython.Py_ssize_t,
    length: cython.uint,
    count: cython.int,
) -> cython.int:
    """Write `length` (of the whole packet) and `count` of messages into the header at `start`.

    A packet of which messages were left out keeps its header, with the length and count of what
    remains. Returns a `Reject` (TRUNCATED where the header does not fit into `data`). FIX has no
    header to patch; of other feeds the fields that are there are patched.
    """
    body: cython.int
    if table.fix:
        return FINE
    body = _whole_header(table, data, start)
    if body < 0:
        return TRUNCATED
    if table.length_at + table.length_size <= body:
        _write(
            data,
            start + table.length_at,
            table.length_size,
            table.big_endian,
            length - table.length_add,
        )
    if table.count_at + table.count_size <= body:
        _write(data, start + table.count_at, table.count_size, table.big_endian, count)
    return FINE


@cython.ccall
@cython.nogil
def write_number(
    table: FeedTable, data: cython.uchar[::1], start: cython.Py_ssize_t, number: cython.ulonglong
) -> cython.int:
    """Write a packet's sequence number into the header at `start`, and the bits above its field.

    The other bits beside those stay. Returns a `Reject` as `patch_header` does; of a number of more
    than `table.number_bits()` bits the upper ones are lost.
    """
    body: cython.int
    high: cython.ulonglong
    if table.fix:
        return FINE
    body = _whole_header(table, data, start)
    if body < 0:
        return TRUNCATED
    if table.sequence_at + table.sequence_size <= body:
        _write(data, start + table.sequence_at, table.sequence_size, table.big_endian, number)
    if table.high_size and table.high_at + table.high_size <= body:
        high = _read(data, start + table.high_at, table.high_size, table.big_endian)
        high &= ~(table.high_mask << table.high_shift)
        high |= ((number >> (8 * table.sequence_size)) & table.high_mask) << table.high_shift
        _write(data, start + table.high_at, table.high_size, table.big_endian, high)
    return FINE
