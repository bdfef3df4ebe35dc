# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The feed table, packet header and message index that the scanner works with.

`feedhandler.codecs.loader` builds the `FeedTable` of a description; the scanner and its part for
FIX (`feedhandler.codecs.fix_scanning`) read packets by it into a `PacketHeader` and a
`MessageIndex`.
"""

import cython
import numpy
from cython.cimports.feedhandler.codecs.fix_runs import Run
from cython.cimports.feedhandler.codecs.kinds import CONTROL, UNKNOWN_KIND
from cython.cimports.feedhandler.codecs.layout_sizes import SizeTable

from feedhandler.codecs.visibility import Public, Readonly

#: The symbol of a message that has none.
NO_SYMBOL = 0xFFFF_FFFF_FFFF_FFFF
#: The symbol of a message that names several: `message_symbols` finds each.
SEVERAL_SYMBOLS = 0xFFFF_FFFF_FFFF_FFFE
#: The send time of messages that came without their packet's header.
NO_SEND_TIME = 0xFFFF_FFFF_FFFF_FFFF
#: `FeedTable.unsequenced` where the feed sets no number aside: no number equals it except the
#: largest u64, for which `sets_aside` decides.
NO_SEQUENCE = 0xFFFF_FFFF_FFFF_FFFF
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
                  that of their first message, of a kind of some bits of its field, or that
                  are a reset because of their first message
    several       a datagram may hold several packets
    alone         nothing says where a packet ends: it must be all of what holds it, also a batch
    odd_messages  messages are padded to `message_align` bytes (their sizes here are with padding),
                  have types of two parts or numbers of their own
    trailing_max  bytes that may follow the last message
    block_size    messages give how long their fixed part is; groups begin behind it
    sized         messages do not carry their length: `sizes` has that of each type
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
        """Begin the table of sizes of a feed whose messages do not carry theirs; return it."""
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
